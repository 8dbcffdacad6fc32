"""Interleaved rounds over several variants, each in a fresh process: the parent's side of measuring.

The order of the rounds is ``interleave``'s. A variant whose process dies leaves the session; the others go on.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np

from accel.bench import stability, timed
from accel.bench.card import CardWatch, watch_card
from accel.bench.interleave import interleave
from accel.core.hardware import available_memory_bytes
from accel.core.processes import Worker
from accel.core.values import Artifact, CallSplit, Failed, Measurement

SPLIT_CALLS = 7
"""Calls of a point that are taken apart on a GPU."""

LONG_CALL_MS = 500.0
"""From such a call on, larger batches are not warmed up: what a first call adds, in milliseconds, is lost in theirs."""


@dataclass(frozen=True, slots=True)
class Point:
    """One batch size and its input shapes, by the key of its feed."""

    key: str
    batch: int
    shapes: Mapping[str, tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class Contestant:
    """One built variant in a session.

    Attributes:
        python: interpreter of its environment.
        points: what it is timed at; a static build has its one shape.
        precision: what it really computes in, as its proof found: asking the timed process would change its memory.
    """

    id: str
    artifact: Artifact
    folder: Path
    python: Path
    log: Path
    points: tuple[Point, ...]
    precision: str


@dataclass(frozen=True, slots=True)
class Plan:
    """How long to look.

    Attributes:
        least: calls made in a round however long they take.
        limit_ms: what a call may take; a point whose calls take longer is not called ``least`` times.
    """

    scenario: Literal["latency", "throughput"]
    rounds: int
    round_s: float
    warm_s: float
    least: int = 3
    limit_ms: float | None = None


@dataclass(slots=True)
class _Seen:
    rounds: list[np.ndarray] = field(default_factory=list)
    item_ms: list[float] = field(default_factory=list)


class _Runner:
    """The process of one contestant; ``watch`` looks at the GPU while it works."""

    def __init__(
        self, contestant: Contestant, plan: Plan, feeds: Path, threads: int, timeout_s: float, watch: CardWatch | None
    ) -> None:
        self.contestant = contestant
        self.on_gpu = contestant.artifact.variant.target.device == "cuda"
        self.watch = watch if self.on_gpu else None
        self.splits: dict[str, CallSplit | None] = {}
        self.name = contestant.id
        self.seen = {p.key: _Seen() for p in contestant.points}
        self.peak_rss_mib = 0.0
        self._plan, self._feeds, self._threads, self._timeout_s = plan, feeds, threads, timeout_s
        self._worker: Worker | None = None
        self.opened: timed.Opened | None = None

    def open(self) -> None:
        c = self.contestant
        self._worker = worker = Worker(c.log, threads=self._threads, timeout_s=self._timeout_s, python=c.python)
        points = tuple(p.key for p in c.points)
        with self.watch.loading(c.id) if self.watch else nullcontext():
            mode = self._plan.scenario
            opened = worker.call(timed.open_timed, c.artifact, c.folder, self._threads, mode, self._feeds, points)
            self.opened = self.opened or opened
            for point in c.points:
                if worker.call(timed.warm, point.key, self._plan.warm_s) > LONG_CALL_MS:
                    break
        if self.on_gpu and not self.splits:
            self.splits = {p.key: worker.call(timed.split, p.key, SPLIT_CALLS) for p in c.points}

    def turn(self) -> None:
        for point in self.contestant.points:
            self._round(point)

    def close(self) -> None:
        if self._worker is not None:
            self._worker.close()
            self._worker = None
            if self.watch:
                self.watch.closed(self.contestant.id)

    def _round(self, point: Point) -> None:
        plan = self._plan
        assert self._worker is not None
        with self.watch.timing(self.contestant.id, point.key) if self.watch else nullcontext():
            answer = self._worker.call(
                timed.time_round, plan.scenario, point.key, plan.round_s, plan.least, plan.limit_ms
            )
        times = np.array(answer.times_ns, dtype=np.int64)
        seen = self.seen[point.key]
        seen.rounds.append(times)
        if self._plan.scenario == "latency":
            seen.item_ms.append(float(np.median(times)) / 1e6 / point.batch)
        else:
            seen.item_ms.append(answer.elapsed_ns / 1e6 / (len(times) * point.batch))
        self.peak_rss_mib = max(self.peak_rss_mib, answer.peak_rss_mib)


def measure(
    contestants: Sequence[Contestant],
    plan: Plan,
    *,
    feeds: Path,
    raw_dir: Path,
    raw_prefix: str,
    threads: int,
    timeout_s: float,
    progress: Callable[[str, str], None],
) -> dict[str, tuple[Measurement, ...] | Failed]:
    """Time all contestants in one session.

    Args:
        feeds: ``.npz`` with keys ``<point>/<input>``.
        raw_dir: folder for the raw samples, one ``.npz`` per variant with keys ``<point>/<round>`` (int64 ns).
        raw_prefix: that folder's path relative to the run directory.
        progress: called with (variant id, what is being done).

    Returns:
        For each id its measured points, or how its process failed.
    """
    session = uuid.uuid4().hex[:12]
    watch = watch_card(c.artifact.variant.target.device for c in contestants)
    runners = [_Runner(c, plan, feeds, threads, timeout_s, watch) for c in contestants]
    errors = interleave(
        runners,
        plan.rounds,
        opening="loading and warming up",
        turn="round",
        progress=progress,
        rooms=(available_memory_bytes, watch.room_mib) if watch else (available_memory_bytes,),
    )
    raw_dir.mkdir(parents=True, exist_ok=True)
    results: dict[str, tuple[Measurement, ...] | Failed] = {}
    for runner in runners:
        id, points = runner.name, runner.contestant.points
        if id in errors:
            results[id] = Failed("measure", errors[id].message, log=str(runner.contestant.log))
            continue
        name = f"{plan.scenario}-{id}.npz"
        keyed = {f"{p}/{i:03d}": r for p, seen in runner.seen.items() for i, r in enumerate(seen.rounds)}
        np.savez_compressed(raw_dir / name, **keyed)  # type: ignore[arg-type]
        results[id] = tuple(_summary(runner, p, plan, threads, session, f"{raw_prefix}/{name}") for p in points)
    return results


def _summary(runner: _Runner, point: Point, plan: Plan, threads: int, session: str, raw: str) -> Measurement:
    seen = runner.seen[point.key]
    rounds_ms = [times / 1e6 for times in seen.rounds]
    pooled = np.concatenate(rounds_ms)
    assert runner.opened is not None
    median = lambda values: float(np.median(values))  # noqa: E731
    item_ms = np.array(seen.item_ms)
    slow, fast = stability.interval([np.array([v]) for v in item_ms], lambda v: float(np.mean(v)))
    p99 = stability.percentile(pooled, 99)
    return Measurement(
        scenario=plan.scenario,
        via="inprocess",
        backend=runner.contestant.artifact.variant.target.name,
        batch=point.batch,
        concurrency=runner.opened.slots if plan.scenario == "throughput" else 1,
        threads=threads,
        shapes=point.shapes,
        p50_ms=stability.percentile(pooled, 50),
        p90_ms=stability.percentile(pooled, 90),
        p95_ms=stability.percentile(pooled, 95),
        p99_ms=p99,
        p99_ci_ms=stability.interval(rounds_ms, lambda v: float(np.percentile(v, 99))) if p99 is not None else None,
        mean_ms=float(pooled.mean()),
        p50_ci_ms=stability.interval(rounds_ms, median),
        throughput_per_s=1e3 / float(item_ms.mean()),
        throughput_ci_per_s=(1e3 / fast, 1e3 / slow),
        stable=stability.stable(seen.item_ms),
        samples=len(pooled),
        raw=raw,
        peak_rss_mib=runner.peak_rss_mib,
        load_ms=runner.opened.load_ms,
        first_ms=runner.opened.first_ms,
        effective_precision=runner.contestant.precision,
        rounds_ms=tuple(seen.item_ms),
        session=session,
        split=runner.splits.get(point.key),
        gpu=runner.watch.use(runner.contestant.id, point.key, len(pooled) * point.batch) if runner.watch else None,
    )
