"""Optuna chooses among configurations as ``accel tune`` asks it to."""

import optuna

from accel.triton.settings import Settings
from accel.triton.tune import search


def main() -> None:
    options = [("small", Settings(n, 2, batching, (), 0)) for n in (1, 2, 4, 8) for batching in (False, True)]
    found = search.optuna(options, lambda option: float(option[1].instances), trials=6)
    assert 1 <= len(found) <= 6, found
    assert next(iter(found)) == options[0], found
    print(optuna.__version__, max(found, key=found.__getitem__))


if __name__ == "__main__":
    main()
