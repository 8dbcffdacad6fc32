"""Which variants are measured together, at which points; what was measured before is kept.

A measuring session is a stored result like any other. A run whose variants were all measured measures nothing; a
variant that is new is measured in a session of its own together with the finalists and the baseline, so that ratios
stay ratios of one session.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from accel.bench.rounds import Contestant, Plan, Point, measure
from accel.bench.stability import p99_calls
from accel.core.files import replace_folder
from accel.core.hardware import Hardware
from accel.core.values import Failed, Measurement, ModelSource, Variant
from accel.run import store
from accel.run.decide import Objective
from accel.run.job import Job
from accel.run.stages import FILES, Stage, Stages
from accel.run.store import Store
from accel.run.tasks import Described, bench_feeds

THROUGHPUT = Plan("throughput", rounds=3, round_s=0.3, warm_s=0.2, least=1)


@dataclass(frozen=True, slots=True)
class Entry:
    """One variant in a session: the build that was measured, and its points."""

    id: str
    build_key: str
    points: tuple[Measurement, ...]


@dataclass(frozen=True, slots=True)
class Session:
    """One interleaved session. ``settings`` hashes everything but the contestants."""

    settings: str
    scenario: Objective
    number: int
    entries: tuple[Entry, ...]


@dataclass(frozen=True, slots=True)
class Entrant:
    """A variant that can be measured, and what it really computes in, as its proof found."""

    variant: Variant
    built: Stage
    precision: str


@dataclass(frozen=True, slots=True)
class Measured:
    """All that is known of the entrants: their points from every session (oldest first), failures, and what was new."""

    points: Mapping[str, tuple[Measurement, ...]]
    failed: Mapping[str, Failed]
    fresh: frozenset[str]


Finalists = Callable[[Mapping[str, tuple[Measurement, ...]]], Sequence[str]]


def measure_all(
    entrants: Sequence[Entrant],
    described: Stage[Described],
    *,
    scenario: Objective,
    job: Job,
    stages: Stages,
    kept: Store,
    hardware: Hardware,
    finalists: Finalists,
    progress: Callable[[str, str], None],
) -> Measured:
    """Measure what no stored session holds, and return all points.

    Args:
        entrants: variants that were built and compared.
        finalists: from the points known so far, the ids a newcomer is measured beside.
    """
    made = described.value
    plan = _plan(scenario, job)
    points = {e.variant.id: _points(e.variant, made.source, scenario) for e in entrants}
    settings = store.key(
        plan=plan,
        samples=made.samples.sha256,
        threads=job.threads,
        hardware=hardware.fingerprint,
        code=store.code_hash("bench", "run/tasks.py", "builders/__init__.py"),
    )
    keys = {e.variant.id: e.built.key for e in entrants}
    known = _known(kept, settings, keys, {id: [p.key for p in wanted] for id, wanted in points.items()})
    missing = [e.variant.id for e in entrants if e.variant.id not in known]
    for name, session in kept.all("measure", Session).items():
        if name in kept.used:
            _show_raw(kept.root / name, f"{session.scenario}-{session.number}", job)
    if not missing:
        return Measured(known, {}, frozenset())
    beside = [id for id in finalists(known) if id in keys] if known else []
    chosen = [e for e in entrants if e.variant.id in {*missing, *beside}]
    number = 1 + max((s.number for s in kept.all("measure", Session).values()), default=0)
    key = store.key(settings=settings, number=number, entries=[(e.variant.id, e.built.key) for e in chosen])
    with kept.writing("measure", key) as folder:
        feeds = _feeds({p.key: p for e in chosen for p in points[e.variant.id]}, described, folder, job)
        contestants = [
            Contestant(
                id=e.variant.id,
                artifact=e.built.value,
                folder=e.built.folder / FILES,
                python=stages.python(e.variant),
                log=job.run_dir / "logs" / f"{e.variant.id}.log",
                points=points[e.variant.id],
                precision=e.precision,
            )
            for e in chosen
        ]
        results = measure(
            contestants,
            plan,
            feeds=feeds,
            raw_dir=folder / "raw",
            raw_prefix=f"measurements/{scenario}-{number}",
            threads=job.threads,
            timeout_s=job.timeout_s,
            progress=progress,
        )
        good = {id: found for id, found in results.items() if not isinstance(found, Failed)}
        entries = tuple(Entry(id, keys[id], found) for id, found in good.items())
        final = kept.put("measure", key, Session(settings, scenario, number, entries), folder)
    _show_raw(final, f"{scenario}-{number}", job)
    merged = {id: (*known.get(id, ()), *good.get(id, ())) for id in {*known, *good}}
    failed = {id: found for id, found in results.items() if isinstance(found, Failed)}
    return Measured(merged, failed, frozenset(good))


def batch_axis(source: ModelSource) -> str | None:
    """Return the name of the dynamic leading axis that all inputs share, or None."""
    leading = {spec.dims[0] if spec.dims else None for spec in source.inputs}
    axis = leading.pop()
    return axis if not leading and isinstance(axis, str) else None


def batches(source: ModelSource) -> list[int]:
    """Return the batch sizes of the throughput scenario: powers of two from the least to the largest of the profile."""
    axis = batch_axis(source)
    if axis is None:
        return [1]
    first = source.profile[source.inputs[0].name]
    low, high = first.min[0], first.max[0]
    return [n for n in (1 << i for i in range(high.bit_length())) if low <= n <= high] or [low]


def _show_raw(result: Path, name: str, job: Job) -> None:
    """Let the run directory hold the raw samples of a session, also where a kill or a user took them away."""
    raw = {file.name: file for file in (result / "raw").iterdir()}
    replace_folder(job.run_dir / "measurements" / name, raw)


def _plan(scenario: Objective, job: Job) -> Plan:
    plan = THROUGHPUT
    if scenario == "latency":
        plan = Plan("latency", rounds=job.rounds, round_s=job.round_s, warm_s=min(1.5, 3 * job.round_s))
    if (limit := job.constraints.max_p99_ms) is None:
        return plan
    return dataclasses.replace(plan, least=p99_calls(plan.rounds), limit_ms=limit)


def _points(variant: Variant, source: ModelSource, scenario: Objective) -> tuple[Point, ...]:
    opt = {name: shape.opt for name, shape in variant.profile.items()}
    if variant.static is not None:
        batch = next(iter(opt.values()))[0] if batch_axis(source) else 1
        return (Point(f"static-{variant.static}", batch, opt),)
    axis = batch_axis(source)
    sizes = batches(source)[:1] if scenario == "latency" else batches(source)
    return tuple(
        Point(f"b{n}", n, {name: (n, *shape[1:]) if axis else shape for name, shape in opt.items()}) for n in sizes
    )


def _known(
    kept: Store, settings: str, keys: Mapping[str, str], wanted: Mapping[str, Sequence[str]]
) -> dict[str, tuple[Measurement, ...]]:
    found: dict[str, tuple[Measurement, ...]] = {}
    sessions = sorted(kept.all("measure", Session).items(), key=lambda item: item[1].number)
    for folder, session in sessions:
        if session.settings == settings:
            for entry in session.entries:
                if keys.get(entry.id) == entry.build_key and len(entry.points) == len(wanted[entry.id]):
                    found[entry.id] = (*found.get(entry.id, ()), *entry.points)
                    kept.used.add(folder)
    return found


def _feeds(points: Mapping[str, Point], described: Stage[Described], folder: Path, job: Job) -> Path:
    feeds = folder / "feeds.npz"
    shapes = {key: point.shapes for key, point in points.items()}
    bench_feeds(described.value, described.folder, shapes, feeds)
    return feeds
