"""The one search for layers: the largest share of INT8 that keeps an accuracy floor, and the trade-off on the way.

Naive INT8 ruins a transformer, and a few layers do most of the harm. Trying every combination is out of the question,
and even the exhaustive greedy search, which tries every remaining layer at every step, takes n(n+1)/2 evaluations of
the whole task. Here each layer is tried alone once; added in the order of harm per work saved, the layers give a curve;
where it crosses the floor is found by halving; and layers left out there are tried once more, each on top.

Knows names of nodes and a score, nothing of graphs.
"""

import math
import sys
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from accel.core.errors import UsageError

CURVE = 8
"""Points of the curve that are measured besides those that the search needs."""


@dataclass(frozen=True, slots=True)
class Step:
    """One choice that was scored.

    Attributes:
        share: share of the products' multiplications that is quantised; ``quantised`` how many products.
        score: what ``score`` said; more is better.
        kept: nodes of products in floating point.
    """

    share: float
    quantised: int
    score: float
    kept: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Unit:
    """Products that are quantised together; what quantising them alone does.

    Attributes:
        work: share of all multiplications.
        score: the score with this unit alone quantised.
    """

    nodes: tuple[str, ...]
    work: float
    score: float


@dataclass(frozen=True, slots=True)
class Search:
    """What was found.

    Attributes:
        chosen: the choice with the largest share whose score holds the floor; its ``kept`` is what
            ``quantize.for_tensorrt`` takes. Nothing is quantised where no choice holds it.
        holds: whether the chosen score reaches the floor: False where even the floating-point graph misses it.
        float_score: the score with nothing quantised.
        units: least harmful per work first; empty where the order was given, or no unit had to be tried.
        curve: choices along that order, by share.
        evaluations / exhaustive: how often ``score`` was called, and how often an exhaustive greedy search would.
    """

    floor: float
    chosen: Step
    holds: bool
    float_score: float
    units: tuple[Unit, ...]
    curve: tuple[Step, ...]
    evaluations: int
    exhaustive: int
    search_s: float


def search(
    units: Sequence[tuple[str, ...]],
    work: Mapping[str, int],
    score: Callable[[tuple[str, ...]], float],
    floor: float,
    *,
    order: Sequence[int] | None = None,
    evaluations: int | None = None,
    points: int = CURVE,
) -> Search:
    """Search the choices of units.

    Args:
        units: nodes that are quantised together; ``work`` the multiplications of each node.
        score: takes the nodes that stay in floating point and gives the accuracy: more is better, and what is not
            finite counts as the lowest score there is.
        floor: the least score that will do.
        order: in which units are quantised, where that is known; otherwise each is tried alone.
        evaluations: how often ``score`` may be called; by default a quarter of the exhaustive search, at least two
            for each unit.
        points: of the curve that are measured in any case.

    Raises:
        UsageError: too few evaluations to try every unit once.
    """
    start = time.monotonic()
    count, total = len(units), sum(work[n] for unit in units for n in unit)
    exhaustive = count * (count + 1) // 2
    allowed = max(exhaustive // 4, 2 * count) if evaluations is None else evaluations
    if order is None and allowed < count + 2:
        raise UsageError(
            f"{allowed} evaluations cannot try {count} groups of products once, and all and none of them",
            fix=f"allow {count + 2} or more",
        )
    known: dict[frozenset[int], Step] = {}

    def trial(on: Collection[int]) -> Step:
        key = frozenset(on)
        if key not in known:
            kept = tuple(n for i, unit in enumerate(units) if i not in key for n in unit)
            quantised = [n for i in sorted(key) for n in units[i]]
            found = float(score(kept))
            value = found if math.isfinite(found) else -sys.float_info.max
            known[key] = Step(sum(work[n] for n in quantised) / total, len(quantised), value, kept)
        return known[key]

    everything, nothing = trial(range(count)), trial(())
    along = {everything, nothing}
    tried: tuple[Unit, ...] = ()
    if everything.score >= floor or not nothing.score >= floor:
        chosen = everything if everything.score >= floor else nothing
    else:
        if order is None:
            alone = [trial((i,)) for i in range(count)]
            order = _order(alone, nothing)
            tried = tuple(Unit(units[i], alone[i].share, alone[i].score) for i in order)
        chosen = _climb(trial, order, floor, points=points, more=lambda: len(known) < allowed, along=along)
    return Search(
        floor=floor,
        chosen=chosen,
        holds=chosen.score >= floor,
        float_score=nothing.score,
        units=tried,
        curve=tuple(sorted(along, key=lambda s: s.share)),
        evaluations=len(known),
        exhaustive=exhaustive,
        search_s=time.monotonic() - start,
    )


def _order(alone: Sequence[Step], nothing: Step) -> list[int]:
    """Return the units, least harm per work first."""

    def harm(index: int) -> tuple[float, float]:
        lost = nothing.score - alone[index].score
        # A unit that costs nothing has no price: the larger comes first. NaN counts as infinite harm.
        return (lost / alone[index].share, 0.0) if lost > 0 else (0.0, -alone[index].share)

    return sorted(range(len(alone)), key=harm)


def _climb(
    trial: Callable[[Collection[int]], Step],
    order: Sequence[int],
    floor: float,
    *,
    points: int,
    more: Callable[[], bool],
    along: set[Step],
) -> Step:
    """Follow the order to the floor, then add what still fits; ``along`` collects the steps that were measured."""

    def holds(length: int) -> bool:
        step = trial(order[:length])
        along.add(step)
        return step.score >= floor

    lengths = sorted({round(len(order) * i / points) for i in range(1, points)} - {0, len(order)})
    low = 0  # so many units hold the floor
    for length in lengths:
        if more() and holds(length):
            low = length
    high = min((n for n in lengths if n > low), default=len(order))  # so many do not
    while high - low > 1 and more():
        middle = (low + high) // 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    on = list(order[:low])
    for index in order[low:]:
        if more() and trial([*on, index]).score >= floor:
            on.append(index)
    return trial(on)


def table(found: Search) -> str:
    """Return the trade-off curve as text: share of INT8 against score, the chosen row marked."""
    rows = sorted({*found.curve, found.chosen}, key=lambda s: s.share)
    lines = [f"{'share':>6} {'products':>8} {'score':>9}   floor {found.floor:g}"]
    for row in rows:
        mark = "  <- chosen" if row == found.chosen else "" if row.score >= found.floor else "  below the floor"
        lines.append(f"{row.share:6.1%} {row.quantised:8} {row.score:9.5f}{mark}")
    return "\n".join(lines)
