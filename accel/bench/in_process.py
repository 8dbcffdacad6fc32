"""A variant that is measured in a fresh process of its own: the parent's side of it."""

from collections.abc import Collection, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np

from accel.bench import stability, timed
from accel.bench.card import CardWatch
from accel.bench.checker import Check
from accel.core.errors import CheckFailed
from accel.core.processes import Worker
from accel.core.values import Artifact, CallSplit, Measurement

SPLIT_CALLS = 7
"""Calls of a point that are timed part by part on a GPU."""

LONG_CALL_MS = 500.0
"""From such a call on, larger batches are not warmed up: what a first call adds, in milliseconds, is lost in theirs."""


@dataclass(frozen=True, slots=True)
class TimedShape:
    """One batch size and its input shapes, by the key of its feed; ``feed`` is that feed's name in the proof."""

    key: str
    batch: int
    shapes: Mapping[str, tuple[int, ...]]
    feed: str = ""


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
class ProcessRunner:
    """One built variant and the process that times it.

    Attributes:
        python: interpreter of its environment.
        timed_shapes: what it is timed at; a static build has its one shape.
        precision: what it really computes in, as its proof found: asking the timed process would change its memory.
        feeds: ``.npz`` with keys ``<point>/<input>``.
        check: what its answers are held against after every round; None where they need not be right.
        watch: looks at the GPU while a variant on it works.
        spare: processes that an earlier session of this run left, by name; ``leave`` puts this one there.
        calls_ns: for each point the calls of each round (int64 ns); ``item_ms`` is the time of a batch item in each.
    """

    name: str
    artifact: Artifact
    folder: Path
    python: Path
    log: Path
    timed_shapes: tuple[TimedShape, ...]
    precision: str
    plan: Plan
    feeds: Path
    threads: int
    timeout_s: float
    watch: CardWatch | None = None
    check: Check | None = None
    spare: dict[str, Worker] | None = None
    calls_ns: dict[str, list[np.ndarray]] = field(default_factory=dict)
    item_ms: dict[str, list[float]] = field(default_factory=dict)
    peak_rss_mib: float = 0.0
    splits: dict[str, CallSplit | None] = field(default_factory=dict)
    opened: timed.Opened | None = None
    _worker: Worker | None = None
    _last: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.watch = self.watch if self.artifact.variant.target.device == "cuda" else None

    def open(self) -> None:
        worker = (self.spare or {}).pop(self.name, None) or Worker(
            self.log, threads=self.threads, timeout_s=self.timeout_s, python=self.python
        )
        self._worker = worker
        points = tuple(p.key for p in self.timed_shapes)
        with self.watch.loading(self.name) if self.watch else nullcontext():
            opened = worker.call(
                timed.open_timed,
                self.artifact,
                self.folder,
                self.threads,
                self.plan.scenario,
                self.feeds,
                points,
                self.check,
            )
            self.opened = self.opened or opened
            for point in self.timed_shapes:
                if worker.call(timed.warm, point.key, self.plan.warm_s) > LONG_CALL_MS:
                    break
        if self.artifact.variant.target.device == "cuda" and not self.splits:
            for point in self.timed_shapes:
                self.splits[point.key] = worker.call(timed.split, point.key, SPLIT_CALLS)

    def turn(self, points: Collection[str]) -> None:
        plan, worker = self.plan, self._worker
        assert worker is not None
        self._last = [point.key for point in self.timed_shapes if point.key in points]
        for point in self.timed_shapes:
            if point.key not in points:
                continue
            with self.watch.timing(self.name, point.key) if self.watch else nullcontext():
                answer = worker.call(
                    timed.time_round, plan.scenario, point.key, plan.round_s, plan.least, plan.limit_ms
                )
            times = np.array(answer.times_ns, dtype=np.int64)
            call_ns = float(np.median(times)) if plan.scenario == "latency" else answer.elapsed_ns / len(times)
            self.calls_ns.setdefault(point.key, []).append(times)
            self.item_ms.setdefault(point.key, []).append(call_ns / 1e6 / point.batch)
            self.peak_rss_mib = max(self.peak_rss_mib, answer.peak_rss_mib)
        if reasons := worker.call(timed.wrong):
            raise CheckFailed(f"timed for {plan.scenario}, it answers otherwise than when it was proved: {reasons[0]}")

    def discard(self) -> None:
        for key in self._last:
            self.calls_ns[key].pop()
            self.item_ms[key].pop()

    def times(self) -> Mapping[str, Sequence[float]]:
        return self.item_ms

    def leave(self) -> None:
        if self._worker is not None and self.spare is not None:
            self.spare[self.name] = self._worker
            self._worker = None
        self.close()

    def close(self) -> None:
        if self._worker is not None:
            self._worker.close()
            self._worker = None
            if self.watch:
                self.watch.closed(self.name)

    def raw(self) -> dict[str, np.ndarray]:
        """Return the ns of all calls."""
        return {f"{key}/{i:03d}": times for key, rounds in self.calls_ns.items() for i, times in enumerate(rounds)}

    def points(self, session: str, raw: str) -> tuple[Measurement, ...]:
        return tuple(self._summary(point, session, raw) for point in self.timed_shapes)

    def _summary(self, point: TimedShape, session: str, raw: str) -> Measurement:
        item_ms = self.item_ms[point.key]
        rounds_ms = [times / 1e6 for times in self.calls_ns[point.key]]
        figures = stability.latency_figures(np.concatenate(rounds_ms), rounds_ms)
        slow, fast = stability.interval([np.array([v]) for v in item_ms], lambda v: float(np.mean(v)))
        items = figures["samples"] * point.batch
        assert self.opened is not None
        return Measurement(
            **figures,
            scenario=self.plan.scenario,
            via="inprocess",
            backend=self.artifact.variant.target.name,
            batch=point.batch,
            concurrency=self.opened.slots if self.plan.scenario == "throughput" else 1,
            threads=self.threads,
            shapes=point.shapes,
            throughput_per_s=1e3 / float(np.mean(item_ms)),
            throughput_ci_per_s=(1e3 / fast, 1e3 / slow),
            stable=stability.stable(item_ms),
            raw=raw,
            peak_rss_mib=self.peak_rss_mib,
            load_ms=self.opened.load_ms,
            first_ms=self.opened.first_ms,
            effective_precision=self.precision,
            rounds_ms=tuple(item_ms),
            session=session,
            split=self.splits.get(point.key),
            gpu=self.watch.use(self.name, point.key, items) if self.watch else None,
        )
