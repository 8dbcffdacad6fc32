"""The one search for layers: the largest share of INT8 that keeps an accuracy floor, and the trade-off on the way.

Naive INT8 ruins a transformer, and a few layers do most of the harm. Trying every combination is out of the question,
and even the exhaustive greedy search, which tries every remaining layer at every step, takes n(n+1)/2 evaluations of
the whole task. Here each layer is tried alone once; added in the order of harm per work saved, the layers give a curve;
where it crosses the floor is found by halving; and layers left out there are tried once more, each on top. What is
best so far stands when the time is over; where there is too little to try each layer, neighbours are tried together.

Knows names of nodes and a score, nothing of graphs.
"""

import math
import operator
import sys
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from accel.core.errors import UsageError

CURVE = 8
"""Points of the curve that are measured besides those that the search needs."""
LEAST_GROUPS = 8
"""With time for fewer than these to be tried alone, none is: units are quantised from the middle outwards."""


@dataclass(frozen=True, slots=True)
class ScoredChoice:
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
        units: least harmful per work first; empty where the order was given or estimated, or no unit had to be tried.
        curve: choices along that order, by share.
        evaluations / exhaustive: how often ``score`` was called, and how often an exhaustive greedy search would.
    """

    floor: float
    chosen: ScoredChoice
    holds: bool
    units: tuple[Unit, ...]
    curve: tuple[ScoredChoice, ...]
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
    estimate: Callable[[tuple[str, ...]], float] | None = None,
    evaluations: int | None = None,
    points: int = CURVE,
    seconds: float = math.inf,
    loss: Callable[[float], float] = operator.neg,
) -> Search:
    """Search the choices of units.

    Args:
        units: nodes that are quantised together; ``work`` the multiplications of each node.
        score: takes the nodes that stay in floating point and gives the accuracy: more is better, and what is not
            finite counts as the lowest score there is.
        floor: the least score that will do.
        order: in which units are quantised, where that is known; otherwise each is tried alone.
        estimate: says in less time than ``score`` what is lost, in any unit; where there is no time to score each unit
            alone, they are ranked by it, and nothing quantised is scored only where nothing else holds.
        evaluations: how often ``score`` may be called; by default a quarter of the exhaustive search, at least two
            for each unit.
        points: of the curve that are measured in any case.
        seconds: after which no other choice is scored; half of them go into trying units alone, and what was not tried
            then counts as the most harmful.
        loss: makes of a score what adds up over units (the noise, of a figure in dB).

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
    known: dict[frozenset[int], ScoredChoice] = {}

    def trial(on: Collection[int]) -> ScoredChoice:
        key = frozenset(on)
        if key not in known:
            kept = _nodes(units, (i for i in range(count) if i not in key))
            quantised = _nodes(units, sorted(key))
            found = float(score(kept))
            value = found if math.isfinite(found) else -sys.float_info.max
            known[key] = ScoredChoice(sum(work[n] for n in quantised) / total, len(quantised), value, kept)
        return known[key]

    everything = trial(range(count))
    along = {everything}
    tried: tuple[Unit, ...] = ()
    # A trial was made: half of the time is enough for as many as this, if no trial takes longer.
    fit = seconds / 2 / max(time.monotonic() - start, 1e-9)
    quick = estimate if order is None and fit < count else None
    if quick is None:  # where time is short, the float graph is taken to hold it
        along.add(trial(()))
    if everything.score >= floor:
        chosen = everything
    elif quick is None and not trial(()).score >= floor:
        chosen = trial(())
    else:
        groups: list[tuple[int, ...]] = [(i,) for i in (range(count) if order is None else order)]
        until = time.monotonic() + seconds / 2
        least = 0.0
        if quick is not None:
            least = quick(_nodes(units, range(count)))
            begin = time.monotonic()
            quick(())
            fit = seconds / 2 / max(time.monotonic() - begin, 1e-9)
        if order is None and fit < LEAST_GROUPS:
            groups = [(i,) for i in from_the_middle(count)]
        elif order is None:
            groups = _neighbours(count, fit)
            harm: dict[tuple[int, ...], tuple[float, float]] = {}
            for group in (group for group in groups if time.monotonic() < until):
                if quick is not None:
                    lost = quick(_nodes(units, (i for i in range(count) if i not in group))) - least
                else:
                    lost = loss(trial(group).score) - loss(trial(()).score)
                share = sum(work[n] for n in _nodes(units, group)) / total
                # A group that costs nothing has no price: the larger comes first.
                harm[group] = (lost / share, 0.0) if lost > 0 else (0.0, -share)
            ranked = sorted(harm, key=lambda group: harm[group])
            if quick is None:
                alone = ((_nodes(units, group), trial(group)) for group in ranked)
                tried = tuple(Unit(nodes, choice.share, choice.score) for nodes, choice in alone)
            groups = ranked + [group for group in groups if group not in harm]

        def more() -> bool:
            return len(known) < allowed and time.monotonic() - start < seconds

        found = _climb(trial, groups, floor, points=points, more=more, along=along)
        chosen = max((found, *(c for c in known.values() if c.score >= floor)), key=lambda choice: choice.share)
    return Search(
        floor=floor,
        chosen=chosen,
        holds=chosen.score >= floor,
        units=tried,
        curve=tuple(sorted(along, key=lambda s: s.share)),
        evaluations=len(known),
        exhaustive=exhaustive,
        search_s=time.monotonic() - start,
    )


def from_the_middle(count: int) -> list[int]:
    """Return the units of a network from its middle outwards: the first, and before that the last, come at the end."""
    return sorted(range(count), key=lambda i: -min(i + 1, 2 * (count - 1 - i)))


def _neighbours(count: int, limit: float) -> list[tuple[int, ...]]:
    """Return all units in groups of neighbours, as few in each as a limit of groups allows."""
    together = 1 if count <= limit else -(-count // int(limit))
    return [tuple(range(i, min(i + together, count))) for i in range(0, count, together)]


def _nodes(units: Sequence[tuple[str, ...]], chosen: Iterable[int]) -> tuple[str, ...]:
    return tuple(node for index in chosen for node in units[index])


def _climb(
    trial: Callable[[Collection[int]], ScoredChoice],
    groups: Sequence[tuple[int, ...]],
    floor: float,
    *,
    points: int,
    more: Callable[[], bool],
    along: set[ScoredChoice],
) -> ScoredChoice:
    """Follow the order to the floor, then add what still fits; ``along`` collects the steps that were measured."""

    def holds(length: int) -> bool:
        step = trial([i for group in groups[:length] for i in group])
        along.add(step)
        return step.score >= floor

    lengths = sorted({round(len(groups) * i / points) for i in range(1, points)} - {0, len(groups)})
    low = 0  # so many groups hold the floor
    for length in lengths:
        if more() and holds(length):
            low = length
    high = min((n for n in lengths if n > low), default=len(groups))  # so many do not
    while high - low > 1 and more():
        middle = (low + high) // 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    on = [i for group in groups[:low] for i in group]
    for index in (i for group in groups[low:] for i in group):
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
