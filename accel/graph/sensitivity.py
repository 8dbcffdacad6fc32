"""Find the largest share of INT8 products that keeps an accuracy floor, and the trade-off on the way.

Naive INT8 ruins a transformer, and a few layers do most of the harm. Trying every combination is out of the question,
and even the exhaustive greedy search, which tries every remaining layer at every step, takes n(n+1)/2 evaluations of
the whole task. Here each layer is tried alone once; added in the order of harm per work saved, the layers give a curve;
where it crosses the floor is found by halving; and layers left out there are tried once more, each on top.
"""

from __future__ import annotations

import math
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from accel.core.errors import StageError, UsageError
from accel.core.feeds import Feed
from accel.graph import prepared
from accel.graph.prepared import Base, Prepared
from accel.graph.symmetric import Method, Quantised

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
    """Products that read one activation, quantised together; what quantising them alone does.

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
        units: least harmful per work first.
        curve: choices along that order, by share.
        evaluations / exhaustive: how often ``score`` was called, and how often an exhaustive greedy search would.
    """

    to: Quantised
    method: Method
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
    source: Path,
    calibration: Sequence[Feed],
    score: Callable[[Path], float],
    floor: float,
    *,
    to: Quantised = "int8",
    method: Method = "percentile",
    base: Base = "fp32",
    evaluations: int | None = None,
    threads: int = 0,
) -> Search:
    """Search the FP32 model at ``source``.

    Args:
        calibration: real samples by input name; disjoint from those that ``score`` uses.
        score: takes a quantised file, valid until it returns, and gives its accuracy: more is better, and what is not
            finite counts as the lowest score there is.
        floor: the least score that will do.
        base: what the rest of the scored files is in; FP32 runs fastest on a CPU.
        evaluations: how often ``score`` may be called; by default a quarter of the exhaustive search, at least two
            for each unit.

    Raises:
        UsageError: too few evaluations to try every unit once.
        InputError, SampleError, StageError, UnavailableError: as ``prepared.prepare``.
    """
    start = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="accel-search-") as name:
        ready = prepared.prepare(
            source, Path(name), to=to, feeds=calibration, method=method, base=base, threads=threads
        )
        trials = _Trials(ready, score)
        groups = _groups(ready)
        exhaustive = len(groups) * (len(groups) + 1) // 2
        allowed = max(exhaustive // 4, 2 * len(groups)) if evaluations is None else evaluations
        if allowed < len(groups) + 2:
            raise UsageError(
                f"{allowed} evaluations cannot try {len(groups)} groups of products once, and all and none of them",
                fix=f"allow {len(groups) + 2} or more",
            )
        everything = trials.step(range(len(groups)), groups)
        nothing = trials.step((), groups)
        if everything.score >= floor or not nothing.score >= floor:
            chosen = everything if everything.score >= floor else nothing
            units: tuple[Unit, ...] = ()
        else:
            alone = [trials.step((i,), groups) for i in range(len(groups))]
            order = _order(alone, nothing)
            chosen = _climb(trials, groups, order, floor, allowed=allowed)
            units = tuple(Unit(groups[i], alone[i].share, alone[i].score) for i in order)
    return Search(
        to=to,
        method=method,
        floor=floor,
        chosen=chosen,
        holds=chosen.score >= floor,
        float_score=nothing.score,
        units=units,
        curve=tuple(sorted(trials.along, key=lambda s: s.share)),
        evaluations=trials.count,
        exhaustive=exhaustive,
        search_s=time.monotonic() - start,
    )


class _Trials:
    """Scores choices, each once, and counts."""

    def __init__(self, ready: Prepared, score: Callable[[Path], float]) -> None:
        self._ready = ready
        self._score = score
        self._known: dict[frozenset[int], Step] = {}
        self.along: list[Step] = []

    @property
    def count(self) -> int:
        """How many choices were scored."""
        return len(self._known)

    def step(self, on: Sequence[int], groups: Sequence[tuple[str, ...]]) -> Step:
        """Score the graph with these groups quantised and the others not."""
        key = frozenset(on)
        if key not in self._known:
            kept = tuple(n for i, group in enumerate(groups) if i not in key for n in group)
            path = self._ready.write(kept, "trial.onnx")
            found = float(self._score(path))
            path.unlink()
            score = found if math.isfinite(found) else -sys.float_info.max
            self._known[key] = Step(self._ready.share(kept), len(self._ready.products) - len(kept), score, kept)
            if len(key) in (0, len(groups)):
                self.along.append(self._known[key])
        return self._known[key]


def _groups(ready: Prepared) -> list[tuple[str, ...]]:
    """Return the products' nodes by the activation that they read, in graph order."""
    found: dict[str, list[str]] = {}
    for product in ready.products:
        found.setdefault(product.activation, []).append(product.node)
    return [tuple(nodes) for nodes in found.values()]


def _order(alone: Sequence[Step], nothing: Step) -> list[int]:
    """Return the units, least harm per work first."""

    def harm(index: int) -> tuple[float, float]:
        lost = nothing.score - alone[index].score
        # A unit that costs nothing has no price: the larger comes first. NaN counts as infinite harm.
        return (lost / alone[index].share, 0.0) if lost > 0 else (0.0, -alone[index].share)

    return sorted(range(len(alone)), key=harm)


def _climb(
    trials: _Trials, groups: Sequence[tuple[str, ...]], order: Sequence[int], floor: float, *, allowed: int
) -> Step:
    """Follow the order to the floor, then add what still fits."""

    def along(count: int) -> Step:
        step = trials.step(order[:count], groups)
        if step not in trials.along:
            trials.along.append(step)
        return step

    low, high = 0, len(order)  # ``low`` units hold the floor, ``high`` do not
    for count in _evenly(len(order)):
        if trials.count >= allowed:
            break
        if along(count).score >= floor:
            low = max(low, count)
    high = min((c for c in _evenly(len(order)) if c > low), default=high)
    while high - low > 1 and trials.count < allowed:
        middle = (low + high) // 2
        if along(middle).score >= floor:
            low = middle
        else:
            high = middle
    on = list(order[:low])
    best = trials.step(on, groups)
    for index in order[low:]:
        if trials.count >= allowed:
            break
        step = trials.step([*on, index], groups)
        if step.score >= floor:
            on.append(index)
            best = step
    return best


def _evenly(count: int) -> Iterator[int]:
    """Yield the lengths, from one to less than all, at which the curve is measured."""
    yield from sorted({round(count * i / CURVE) for i in range(1, CURVE)} - {0, count})


def table(found: Search) -> str:
    """Return the trade-off curve as text: share of INT8 against score, the chosen row marked."""
    rows = sorted({*found.curve, found.chosen}, key=lambda s: s.share)
    if not rows:
        raise StageError("the search scored nothing")
    lines = [f"{'share':>6} {'products':>8} {'score':>9}   floor {found.floor:g}"]
    for row in rows:
        mark = "  <- chosen" if row == found.chosen else "" if row.score >= found.floor else "  below the floor"
        lines.append(f"{row.share:6.1%} {row.quantised:8} {row.score:9.5f}{mark}")
    return "\n".join(lines)
