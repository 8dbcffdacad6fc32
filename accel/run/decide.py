"""Choose: measurements and constraints in, a decision with a reason for every variant out.

A pure function of values. Speeds are compared as ratios with their intervals, never as two single times: pairs of one
interleaved session directly, pairs that never met through the baseline that both of their sessions held. Two variants
are equivalent when the interval of their ratio lies inside ±3 %; between those the higher precision wins, then the
smaller artifact. Where the interval neither lies inside nor leaves 1 out, the choice between the two is undecided: the
one that looks faster is chosen, and the decision says so.
"""

import functools
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import starmap
from typing import Literal

import numpy as np

from accel.bench.machine_noise import QUOTA, taker
from accel.bench.race import behind, equivalent, slower
from accel.bench.stability import Ratio, ratio_interval
from accel.core.values import Decision, Measurement, Rejected, Status
from accel.report import formats

_PRECISION = {"fp32": 5, "tf32": 4, "fp16": 3, "bf16": 2, "int8": 1, "fp8": 1}
Objective = Literal["latency", "throughput", "traffic"]


@dataclass(frozen=True, slots=True)
class Candidate:
    """One variant as the choice sees it.

    Attributes:
        reason: why it cannot be chosen, where ``status`` is not ``ok``.
        precision: the one whose gate it was held against: the coarsest that any part of it may compute in.
        measurements: all points known of it, oldest first; may come from several sessions.
        choosable: False for a variant that no repository of the wanted release can serve, with ``reason``.
        repository: what was served, relative to the run directory; None where the choice is between variants alone.
    """

    id: str
    status: Status
    reason: str | None
    precision: str
    bytes: int
    measurements: tuple[Measurement, ...]
    choosable: bool = True
    repository: str | None = None


@dataclass(frozen=True, slots=True)
class Constraints:
    """What a chosen variant must keep; None is no constraint. A figure with an interval is held by its worse end."""

    max_p99_ms: float | None = None
    min_throughput_per_s: float | None = None
    max_memory_mib: float | None = None
    max_gpu_memory_mib: float | None = None

    def named(self) -> dict[str, float]:
        """Return those that are set, by name."""
        return {name: value for name, value in asdict(self).items() if value is not None}


FREE = Constraints()


def decide(
    candidates: Sequence[Candidate],
    *,
    device: str,
    objective: Objective,
    constraints: Constraints,
    baseline: str | None,
    via: Literal["inprocess", "triton"] = "inprocess",
) -> Decision:
    """Choose among the variants of one device.

    Args:
        via: how the candidates were measured.
        candidates: every variant that was asked for on the device, whatever became of it.
        baseline: id of the source framework's own variant, the unit of speed-ups.
    """
    if device == "cpu":
        constraints = replace(constraints, max_gpu_memory_mib=None)
    rejected: dict[str, str] = {}
    points: dict[str, Measurement] = {}
    allowed: dict[str, set[tuple[int, int]]] = {}
    for candidate in candidates:
        if (reason := _unfit(candidate)) is not None:
            rejected[candidate.id] = reason
            continue
        broken = _broken_at(candidate, objective, constraints)
        allowed[candidate.id] = {place for place, why in broken.items() if why is None}
        if allowed[candidate.id]:
            points[candidate.id] = min(_longest(candidate, objective, allowed[candidate.id]), key=_time)
        else:
            lacks = ": not every request fits its shape" if objective == "traffic" else ""
            rejected[candidate.id] = next((b for b in broken.values() if b), f"has no {objective} measurement{lacks}")
    field = [c for c in candidates if c.id in points]
    base = next((c for c in candidates if c.id == baseline), None)
    verdict = functools.partial(
        Decision, device=device, objective=objective, constraints=constraints.named(), baseline=baseline, via=via
    )
    if not field:
        why = "no variant passed its gate and the constraints, was built and was measured"
        return verdict(chosen=None, ties=(), rejected=tuple(starmap(Rejected, rejected.items())), reason=why)

    shown = {c.id: tuple(m for m in _points(c, objective) if _place(m) == _place(points[c.id])) for c in field}

    def ratio(a: str, b: str) -> Ratio | None:
        return _ratio(shown[a], shown[b], base, objective)

    fastest = _fastest([c.id for c in field], shown, base, objective)
    against = {c.id: ratio(c.id, fastest) for c in field if c.id != fastest}
    tied = [c for c in field if c.id == fastest or ((r := against[c.id]) is not None and equivalent(r))]
    chosen = max(tied, key=lambda c: (_PRECISION.get(c.precision, 0), -c.bytes))

    def defeat(loser: Candidate) -> _Defeat | None:
        """Return what beats it: what is slower than any other, at any of its points, is not the fastest.

        A race lets go what is behind the best point of that moment, which need not be the best one in the end.
        """
        for other in sorted(field, key=lambda c: (c is not chosen, c.id != fastest, _time(points[c.id]))):
            if other is loser:
                continue
            own = _place(points[other.id])
            for place in (own, *sorted(allowed[other.id] - {own})):
                there = tuple(m for m in _points(other, objective) if _place(m) == place)
                both = _paired(shown[loser.id], there)
                found = ratio_interval(*both) if both else ratio(loser.id, other.id) if place == own else None
                if found is not None and _beaten(found, both):
                    return _Defeat(other.id if place == own else f"{other.id} at batch {place[0]}", found, both)
        return None

    defeats = {c.id: defeat(c) for c in field if c not in tied}
    open_ = tuple(id for id, found in defeats.items() if found is None)
    for candidate in field:
        if (lost := defeats.get(candidate.id)) is not None:
            rejected[candidate.id] = lost.told()
            if lost.by != chosen.id and any(c.id == lost.by for c in tied):
                rejected[candidate.id] += f", with which {chosen.id} ties"
        elif candidate.id != chosen.id:
            found = ratio(candidate.id, chosen.id)
            rejected[candidate.id] = _not_chosen(candidate, chosen, found, tie=candidate in tied)
    ties = tuple(c.id for c in tied if c.id != chosen.id)
    speedup = _speedup(base, shown[chosen.id], objective)
    return verdict(
        chosen=chosen.id,
        repository=chosen.repository,
        ties=ties,
        rejected=tuple(Rejected(c.id, rejected[c.id]) for c in candidates if c.id != chosen.id),
        reason=_won(chosen, points[chosen.id], speedup, ties, open_, baseline),
        speedup=speedup[0] if speedup else None,
        speedup_ci=(speedup[1], speedup[2]) if speedup else None,
        verdict="undecided" if open_ else "decided",
        undecided=open_,
        batch=points[chosen.id].batch,
        concurrency=points[chosen.id].concurrency,
        warning=_disturbed(
            [
                points[chosen.id],
                *_bases(shown[chosen.id], base, objective),
                *(p for p in points.values() if p.noise and 2 * p.noise.disturbed_rounds > len(p.rounds_ms)),
            ]
        ),
    )


def finalists(
    candidates: Sequence[Candidate],
    *,
    objective: Objective,
    baseline: str | None,
    most: int = 3,
    constraints: Constraints = FREE,
) -> list[str]:
    """Return the ids that a newcomer must be measured beside: the fastest that may be chosen, and the baseline."""
    base = next((c for c in candidates if c.id == baseline), None)
    shown: dict[str, tuple[Measurement, ...]] = {}
    for candidate in candidates:
        broken = _broken_at(candidate, objective, constraints)
        kept = {place for place, why in broken.items() if why is None}
        if kept and _unfit(candidate) is None:
            place = _place(min(_longest(candidate, objective, kept), key=_time))
            shown[candidate.id] = tuple(m for m in _points(candidate, objective) if _place(m) == place)
    best: list[str] = []
    while shown and len(best) < most:
        best.append(_fastest(list(shown), shown, base, objective))
        del shown[best[-1]]
    return best + [c.id for c in candidates if c.id == baseline and c.id not in best]


def _fastest(
    ids: Sequence[str], shown: Mapping[str, tuple[Measurement, ...]], base: Candidate | None, objective: Objective
) -> str:
    """Return the id that none beats in a session of their own: single times of different sessions only break the start.

    Args:
        shown: each id's points at the batch it is compared at, oldest first.
    """
    best = min(ids, key=lambda id: _time(shown[id][-1]))
    for _ in ids:
        ratios = {id: _ratio(shown[id], shown[best], base, objective) for id in ids if id != best}
        faster = {id: found[0] for id, found in ratios.items() if found is not None and found[0] < 1}
        if not faster:
            break
        best = min(faster, key=faster.__getitem__)
    return best


def _unfit(candidate: Candidate) -> str | None:
    if candidate.status != "ok":
        return candidate.reason or candidate.status
    return None if candidate.choosable else candidate.reason or "cannot be served by the wanted release"


def _points(candidate: Candidate, objective: Objective) -> tuple[Measurement, ...]:
    """Return the points of an objective; those of one round, which compare with nothing, only where all are such."""
    found = tuple(m for m in candidate.measurements if m.scenario == objective)
    return tuple(m for m in found if len(m.rounds_ms) != 1) or found


def _longest(candidate: Candidate, objective: Objective, places: Collection[tuple[int, int]]) -> list[Measurement]:
    """Return of each place the newest point, where it took part in its session longest.

    Others were behind, by fewer rounds: also behind those that a newer session timed again.
    """
    points = [m for m in _points(candidate, objective) if _place(m) in places]
    most: dict[str, int] = {}
    for m in points:
        most[m.session] = max(most.get(m.session, 0), len(m.rounds_ms))
    return [m for m in {_place(m): m for m in points}.values() if len(m.rounds_ms) == most[m.session]]


def _place(point: Measurement) -> tuple[int, int]:
    """Return what a point was measured at: its batch, and how many requests were in flight."""
    return point.batch, point.concurrency


def _time(point: Measurement) -> float:
    """Return what a point is compared by: the median over its rounds, as the race that measured it does."""
    if point.scenario == "latency":
        return point.p50_ms or point.mean_ms
    return float(np.median(point.rounds_ms)) if len(point.rounds_ms) > 1 else 1e3 / point.throughput_per_s


def _bases_in(
    session: str, base: Candidate | None, objective: Objective, *, least: int | None = None
) -> dict[tuple[int, int], Measurement]:
    """Return the baseline's points of a session by their place.

    Args:
        least: rounds that a point has at least; None for as many as any has: others left the race early.
    """
    found = [m for m in (_points(base, objective) if base else ()) if m.session == session]
    least = max((len(m.rounds_ms) for m in found), default=0) if least is None else least
    return {_place(m): m for m in found if len(m.rounds_ms) >= least}


def _base_in(session: str, base: Candidate | None, objective: Objective) -> Measurement | None:
    """Return the baseline's best point of a session."""
    return min(_bases_in(session, base, objective).values(), key=_time, default=None)


def _ratio(
    a: Sequence[Measurement], b: Sequence[Measurement], base: Candidate | None, objective: Objective
) -> Ratio | None:
    """Return time a / time b with its interval: from their newest common session, else through the baseline."""
    if (both := _paired(a, b)) is not None:
        return ratio_interval(*both)
    for point in reversed(a):
        for other in reversed(b):
            of_a, of_b = (_bases_in(p.session, base, objective) for p in (point, other))
            if not of_a.keys() & of_b.keys():
                of_a, of_b = (_bases_in(p.session, base, objective, least=2) for p in (point, other))
            if common := of_a.keys() & of_b.keys():  # one batch stands for the baseline in both sessions
                place = min(common, key=lambda at: _time(of_a[at]) + _time(of_b[at]))
                first = ratio_interval(point.rounds_ms, of_a[place].rounds_ms)
                second = ratio_interval(other.rounds_ms, of_b[place].rounds_ms)
                return first[0] / second[0], first[1] / second[2], first[2] / second[1]
    return None


def _paired(a: Sequence[Measurement], b: Sequence[Measurement]) -> tuple[Sequence[float], Sequence[float]] | None:
    """Return the times of both in the rounds of their newest common session."""
    for point in reversed(a):
        for other in reversed(b):
            if point.session == other.session and min(len(point.rounds_ms), len(other.rounds_ms)) > 1:
                return point.rounds_ms, other.rounds_ms
    return None


def _beaten(ratio: Ratio, both: tuple[Sequence[float], Sequence[float]] | None) -> bool:
    """Say whether one is slower for certain, or far behind in each round, as what left the race early may be.

    Args:
        ratio: its time over another's.
        both: the times of the two where both were timed in the same rounds.
    """
    return slower(ratio) or (both is not None and behind(*both) is not None)


def _to_base(points: Sequence[Measurement], base: Candidate | None, objective: Objective) -> Ratio | None:
    """Return time / the baseline's time, from the newest session that held both."""
    for point in reversed(points):
        if (own := _base_in(point.session, base, objective)) is not None:
            return ratio_interval(point.rounds_ms, own.rounds_ms)
    return None


def _bases(points: Sequence[Measurement], base: Candidate | None, objective: Objective) -> list[Measurement]:
    """Return the baseline's points that speed-ups of these rest on, whether or not it keeps the constraints."""
    return [own for point in points if (own := _base_in(point.session, base, objective)) is not None]


def _speedup(base: Candidate | None, chosen: Sequence[Measurement], objective: Objective) -> Ratio | None:
    found = _to_base(chosen, base, objective)
    return (1 / found[0], 1 / found[2], 1 / found[1]) if found else None


def _broken(point: Measurement, constraints: Constraints) -> str | None:
    """Say which constraint a point breaks, with the figure found, or None."""
    if (limit := constraints.max_p99_ms) is not None:
        if point.p50_ci_ms[0] > limit:
            return f"p50 is at least {point.p50_ci_ms[0]:.4g} ms, over the limit of {limit:g} ms for p99"
        if point.p99_ci_ms is None:
            longer = "; measure longer (--rounds)" if point.scenario == "latency" else f" at batch {point.batch}"
            return f"p99 cannot be held against {limit:g} ms: only {point.samples} samples{longer}"
        if point.p99_ci_ms[1] > limit:
            return f"p99 may reach {point.p99_ci_ms[1]:.4g} ms (upper bound), over the limit of {limit:g} ms"
    limit, reached = constraints.min_throughput_per_s, point.throughput_ci_per_s[0]
    if limit is not None and reached < limit:
        return f"throughput reaches {formats.figures(reached)}/s (lower bound), under the demanded {limit:g}/s"
    in_server = point.server.gpu_memory_mib if point.server else None
    on_card = point.gpu.memory_peak_mib if point.gpu else in_server
    for what, limit, used in (
        ("peak memory", constraints.max_memory_mib, point.peak_rss_mib or None),
        ("GPU memory", constraints.max_gpu_memory_mib, on_card),
    ):
        if limit is not None and used is None:
            return f"{what} could not be read, to be held against the limit of {limit:g} MiB"
        if limit is not None and used is not None and used > limit:
            return f"{what} {used:.0f} MiB is over the limit of {limit:g} MiB"
    return None


def _broken_at(
    candidate: Candidate, objective: Objective, constraints: Constraints
) -> dict[tuple[int, int], str | None]:
    """Return what ``_broken`` says of the newest point at each place: an older session cannot excuse it."""
    return {_place(m): _broken(m, constraints) for m in _points(candidate, objective)}


def _disturbed(points: Sequence[Measurement]) -> str | None:
    """Say that other processes took part of the machine while figures were measured that the choice rests on."""
    worst = max((p.noise for p in points if p.noise), key=lambda n: n.disturbed_rounds, default=None)
    if worst is None or worst.disturbed_rounds == 0:
        return None
    found = f"{taker(worst)} in {worst.disturbed_rounds} rounds, which does not slow all variants alike"
    if taker(worst) == QUOTA:
        return f"{found}; give it a larger quota, or fewer --threads, before relying on the speed-up"
    return f"the machine was busy: {found}; measure again when it is quiet (--remeasure) before relying on the speed-up"


@dataclass(frozen=True, slots=True)
class _Defeat:
    """What a candidate is slower than for certain, or far behind in each round.

    Attributes:
        by: the id, and its batch where that is not the one it is compared at.
        ratio: the loser's time over that one's, with its interval.
        both: the times that it rests on where both were timed in the same rounds.
    """

    by: str
    ratio: Ratio
    both: tuple[Sequence[float], Sequence[float]] | None

    def told(self) -> str:
        """Say by how much."""
        # So few rounds, or a machine that changed so much between them, that their interval says nothing.
        if not slower(self.ratio) and self.both is not None and (seen := behind(*self.both)) is not None:
            least, rounds, of = seen
            which = f"each of {of}" if rounds == of else f"{rounds} of {of}"
            return f"takes {self.ratio[0]:.2f}× the time of {self.by}, at least {least:.2f}× in {which} rounds"
        return f"takes {_figure(self.ratio)} the time of {self.by}"


def _figure(ratio: Ratio) -> str:
    return f"{ratio[0]:.2f}× [{ratio[1]:.2f}, {ratio[2]:.2f}]"


def _not_chosen(candidate: Candidate, chosen: Candidate, ratio: Ratio | None, *, tie: bool) -> str:
    """Say why a candidate that nothing beat was not chosen.

    Args:
        ratio: its time over the choice's, with its interval.
        tie: whether the two are equivalent.
    """
    if ratio is None:
        return f"was never measured beside {chosen.id}, nor beside a common baseline"
    if not tie:
        return f"undecided: takes {_figure(ratio)} the time of {chosen.id}; measure longer (--budget-s, --rounds)"
    if _PRECISION.get(chosen.precision, 0) > _PRECISION.get(candidate.precision, 0):
        held = f"which is held to the gate of {chosen.precision}, not {candidate.precision}"
        return f"ties with {chosen.id} ({_figure(ratio)} its time), {held}"
    return f"ties with {chosen.id} ({_figure(ratio)} its time), whose artifact is smaller or came first"


def _won(
    chosen: Candidate,
    point: Measurement,
    speedup: Ratio | None,
    ties: Sequence[str],
    undecided: Sequence[str],
    baseline: str | None,
) -> str:
    at = f"{point.concurrency} requests at a time" if point.via == "triton" else f"batch {point.batch}"
    rate = formats.figures(point.throughput_per_s)
    figures: Mapping[str, str] = {
        "latency": f"p50 {point.p50_ms:.4g} ms" if point.p50_ms else f"a mean of {point.mean_ms:.4g} ms",
        "throughput": f"{rate} items/s at {at}",
        "traffic": f"{rate} requests/s of their own lengths in groups of {point.batch}",
    }
    text = f"{chosen.id} passes its gate with {figures[point.scenario]}"
    if (tokens := point.tokens_per_s) is not None:
        text += f", {formats.figures(tokens)} tokens/s"
    if chosen.id == baseline:
        text += ": nothing that passes beats the framework itself"
    elif speedup is not None:
        text += f", {speedup[0]:.2f}× [{speedup[1]:.2f}, {speedup[2]:.2f}] the speed of {baseline}"
    if ties:
        text += f"; {', '.join(ties)} tie within ±3 % and lose on precision or size"
    if undecided:
        text += f"; undecided between it and {', '.join(undecided)}, of which it looks fastest"
    return text if point.stable else text + "; the point was unstable"
