"""Which configurations to try when each trial costs a measurement: all, hill climbing, or Optuna.

Each of them takes the options, the first of which is what ships, and ``evaluate``, which returns the items per second
that an option carries within the budget. A server or a recorded surface may stand behind it.
"""

import random
from collections.abc import Callable, Sequence
from typing import Any, Literal

from accel.bench.goodput import WITHIN
from accel.core.errors import UnavailableError
from accel.triton.overrides import without_schedule
from accel.triton.settings import Settings

Mode = Literal["predict", "brute", "quick", "optuna"]
Option = tuple[str, Settings]
"""A repository's name, and how it is scheduled."""
Evaluate = Callable[[Option], float]
STARTUP = 4
"""Trials of Optuna that are drawn at random before its sampler has anything to learn from."""


def coordinates(option: Option) -> tuple[Any, ...]:
    """Return what an option is made of: repository, instances with threads and all else that is set, what is merged,
    the delay, whether answers are cached.
    """
    name, s = option
    setup = s.instances, s.threads or 0, without_schedule(s.fields), s.variables
    return name, setup, s.preferred if s.batching else None, s.delay_us, bool(s.cached)


def shortlist(options: Sequence[Option], expected: Evaluate) -> list[Option]:
    """Return the most promising option of each repository, instances and threads, without and with a cache.

    The most promising comes first, and what differs from it by the cache second: what a cache costs is not predicted.
    What is predicted alike within 3 % behaves alike: of those the plainest stands for all.

    Args:
        expected: what an option carries by prediction.
    """
    leaders: dict[Any, Option] = {}
    for option in sorted(options, key=lambda o: -expected(o)):
        name, setup, *_, cached = coordinates(option)
        leader = leaders.setdefault((name, setup, cached), option)
        alike = expected(option) * (1 + WITHIN) >= expected(leader)
        if alike and _plainness(option[1]) < _plainness(leader[1]):
            leaders[name, setup, cached] = option
    found = sorted(leaders.values(), key=lambda o: -expected(o))
    other = next((o for o in found if bool(o[1].cached) != bool(found[0][1].cached)), None)
    return found if other is None else [found[0], other, *(o for o in found[1:] if o is not other)]


def few(options: Sequence[Option]) -> int:
    """Return how many trials a search has, where nobody says."""
    return max(8, len(options) // 8)


def _plainness(settings: Settings) -> tuple[int, bool, int]:
    """Order settings by how little they ask of who reads them."""
    return settings.delay_us, settings.batching and bool(settings.preferred), len(settings.preferred)


def _values(options: Sequence[Option]) -> list[list[Any]]:
    """Return the values of each coordinate, in order; no batching before all that is merged."""
    return [sorted({coordinates(o)[i] for o in options}, key=lambda v: (v is not None, v)) for i in range(5)]


def brute(options: Sequence[Option], evaluate: Evaluate, *, seed: int = 0) -> dict[Option, float]:
    """Try all, what ships first and then in random order: the machine's drift is of no kind of them, and what was tried
    when the time ends stands for all.
    """
    others = list(options[1:])
    random.Random(seed).shuffle(others)
    return {option: evaluate(option) for option in [*options[:1], *others]}


def quick(
    options: Sequence[Option], evaluate: Evaluate, *, trials: int, seed: int = 0, first: Sequence[Option] = ()
) -> dict[Option, float]:
    """Climb: from what ships to the first better neighbour while there is one; then from elsewhere until it is enough.

    A neighbour differs in one coordinate, by one step where it has an order.

    Args:
        first: what is promising: tried after what ships, and the best of them is where it begins.
    """
    drawn = random.Random(seed)
    found: dict[Option, float] = {}
    values = _values(options)

    def value(option: Option) -> float:
        """Return what an option carries; what may not be measured any more is below everything."""
        if option not in found and len(found) < trials:
            found[option] = evaluate(option)
        return found.get(option, -1.0)

    def near(option: Option) -> list[Option]:
        here = coordinates(option)
        steps = []
        for other in options:
            there = coordinates(other)
            apart = [i for i in range(5) if there[i] != here[i]]
            ordered = apart in ([0], [2]) or (
                len(apart) == 1
                and abs(values[apart[0]].index(there[apart[0]]) - values[apart[0]].index(here[apart[0]])) == 1
            )
            # no batching has no delay either: both change at once
            if ordered or (apart == [2, 3] and None in (here[2], there[2])):
                steps.append(other)
        drawn.shuffle(steps)
        return steps

    place = max([options[0], *first], key=value)
    while len(found) < min(trials, len(options)):
        here = value(place)
        better = next((o for o in near(place) if value(o) > here), None)
        place = better or drawn.choice([o for o in options if o not in found] or [place])
    return found


def optuna(
    options: Sequence[Option], evaluate: Evaluate, *, trials: int, seed: int = 0, first: Sequence[Option] = ()
) -> dict[Option, float]:
    """Let Optuna's TPE sampler choose, what ships first.

    Args:
        first: what is promising: tried after what ships, and the sampler learns from it.

    Raises:
        UnavailableError: Optuna is not installed.
    """
    try:
        import optuna as library
    except ImportError as error:
        raise UnavailableError("Optuna is not installed", fix="pip install 'accel[tune]'") from error
    library.logging.set_verbosity(library.logging.ERROR)
    known = {coordinates(option): option for option in options}
    values = _values(options)
    names = ("repository", "instances", "merged", "delay", "cached")
    drawn = random.Random(seed)
    found: dict[Option, float] = {}
    study = library.create_study(
        direction="maximize",
        sampler=library.samplers.TPESampler(seed=seed, n_startup_trials=STARTUP, multivariate=False),
    )

    def index(option: Option) -> dict[str, int]:
        return {n: v.index(c) for n, v, c in zip(names, values, coordinates(option), strict=True)}

    for promising in (options[0], *first):
        study.enqueue_trial(index(promising))
    for _ in range(20 * trials):  # one that is known already costs nothing
        if len(found) >= min(trials, len(options)):
            break
        trial = study.ask()
        chosen = [v[trial.suggest_categorical(n, list(range(len(v))))] for n, v in zip(names, values, strict=True)]
        if chosen[2] is None:
            chosen[3] = 0
        option = known.get(tuple(chosen))
        # What is no option, or is known, its sampler would propose for ever: another one is drawn after it.
        if (option is None or option in found) and (untried := [o for o in options if o not in found]):
            study.enqueue_trial(index(drawn.choice(untried)))
        if option is None:
            study.tell(trial, state=library.trial.TrialState.FAIL)
            continue
        if option not in found:
            found[option] = evaluate(option)
        study.tell(trial, found[option])
    return found
