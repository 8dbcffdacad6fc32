"""Few lengths for many: how long requests are, and to which sizes padding them costs least."""

import bisect
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
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


def measured_cost(times: Sequence[tuple[int, float, float]]) -> Callable[[int], float]:
    """Return the cost of a request at any size, from what requests of some sizes were measured to take.

    A cost never falls as the size grows: where a larger size was faster, both have their mean, weighted by requests
    (isotonic regression by pooling neighbours). Between two sizes it is the straight line; beyond the ends, theirs.

    Args:
        times: size, how many requests have it, and what each takes; at least one, no size twice.
    """
    pools: list[tuple[list[int], float, float]] = []
    for size, weight, cost in sorted(times):
        sizes = [size]
        while pools and pools[-1][2] >= cost:
            before, more, other = pools.pop()
            sizes, cost, weight = before + sizes, (cost * weight + other * more) / (weight + more), weight + more
        pools.append((sizes, weight, cost))
    known = [(size, cost) for sizes, _, cost in pools for size in sizes]

    def cost_of(size: int) -> float:
        at = bisect.bisect_left(known, (size, -math.inf))
        if at == 0 or at == len(known):
            return known[min(at, len(known) - 1)][1]
        (low, least), (high, most) = known[at - 1], known[at]
        return least + (most - least) * (size - low) / (high - low)

    return cost_of


def bucket_of(sizes: tuple[int, ...], length: int) -> int:
    """Return the smallest of ascending ``sizes`` that holds a length; the largest of them where none does."""
    return next((size for size in sizes if size >= length), sizes[-1])


def own_lengths(mask: "np.ndarray") -> "np.ndarray":
    """Return for each row of a mask (rows, positions) where the last shown position ends; 0 where none is shown."""
    shown = mask != 0
    return (mask.shape[1] - shown[:, ::-1].argmax(axis=1)) * shown.any(axis=1)
