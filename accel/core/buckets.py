"""Few lengths for many: how long requests are, and to which sizes padding them costs least."""

import itertools
import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np


def buckets(histogram: Mapping[int, float], cost: Callable[[int], float], most: int) -> tuple[int, ...]:
    """Choose at most ``most`` sizes so that padding every request to the next one costs least in all.

    Formula: the minimum over sets B of ``sum(histogram[n] * cost(min(b for b in B if b >= n)) for n in histogram)``.
    An optimum needs no size but those that occur, and ends with the largest; dynamic programming over them is exact
    and takes ``most * len(histogram)**2`` steps.

    Args:
        histogram: length → how many requests have it, or their share.
        cost: of one request at a size; must not fall as the size grows.
        most: largest number of sizes.

    Returns:
        The sizes, ascending; fewer than ``most`` where more would save nothing.

    Raises:
        ValueError: there are no requests, or ``most`` is below 1.
    """
    lengths = sorted(n for n, count in histogram.items() if count > 0)
    if not lengths or most < 1:
        raise ValueError(f"no lengths, or {most} sizes for them")
    before = [0.0, *itertools.accumulate(histogram[n] for n in lengths)]
    # What the first j lengths cost, the j-th being the largest size; each turn allows one size more.
    best: list[tuple[float, tuple[int, ...]]] = [(0.0, ()), *((math.inf, ()) for _ in lengths)]
    for _ in range(min(most, len(lengths))):
        best = [
            min(
                (best[j], *((best[i][0] + (before[j] - before[i]) * cost(n), (*best[i][1], n)) for i in range(j))),
                key=lambda found: (found[0], len(found[1])),
            )
            for j, n in enumerate((0, *lengths))
        ]
    return best[-1][1]


def bucket_of(sizes: tuple[int, ...], length: int) -> int:
    """Return the smallest of ascending ``sizes`` that holds a length; the largest of them where none does."""
    return next((size for size in sizes if size >= length), sizes[-1])


def own_lengths(mask: "np.ndarray") -> "np.ndarray":
    """Return for each row of a mask (rows, positions) where the last shown position ends; 0 where none is shown."""
    shown = mask != 0
    return (mask.shape[1] - shown[:, ::-1].argmax(axis=1)) * shown.any(axis=1)
