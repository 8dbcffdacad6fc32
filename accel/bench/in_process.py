"""A variant that is measured in a fresh process of its own: the parent's side of it."""

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np

from accel.bench import stability, timed
from accel.bench.card import CardWatch
from accel.bench.checker import Check
from accel.bench.rounds import Reached
from accel.core.errors import CheckFailed
from accel.core.processes import Worker
from accel.core.values import Artifact, CallSplit, LengthTime, Measurement, RequestTime, Traffic

SPLIT_CALLS = 7
"""Calls of a point that are timed part by part on a GPU."""

LENGTHS = 4
"""Parts by length in which the times of the traffic are shown."""

LONG_CALL_MS = 500.0
"""From such a call on, larger batches are not warmed up: what a first call adds, in milliseconds, is lost in theirs."""


@dataclass(frozen=True, slots=True)
class TrafficGroup:
    """Requests of the traffic that share a feed: how many they are, their tokens without padding, and the length."""

    feed: str
    requests: int
    tokens: int | None
    length: int | None


@dataclass(frozen=True, slots=True)
class TimedShape:
    """One batch size and its input shapes, by the key of its feed.

    Attributes:
        groups: of the traffic, longest first, all of which a round answers; empty for a point of one feed.
    """

    key: str
    batch: int
    shapes: Mapping[str, tuple[int, ...]] = field(hash=False)
    groups: tuple[TrafficGroup, ...] = ()

    @property
    def items(self) -> float:
        """Batch items of a call, on average."""
        return sum(g.requests for g in self.groups) / len(self.groups) if self.groups else self.batch

    @property
    def feeds(self) -> tuple[str, ...]:
        """Keys of its feeds."""
        return tuple(g.feed for g in self.groups) or (self.key,)


@dataclass(frozen=True, slots=True)
class MeasurementPlan:
    """How long to look.

    Attributes:
        least: calls made in a round however long they take.
        limit_ms: what a call may take; a point whose calls take longer is not called ``least`` times.
    """

    scenario: Literal["latency", "throughput", "traffic"]
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
        first_pass_ms: of the traffic's points, the first pass after loading.
        precision: what it really computes in, as its proof found: asking the timed process would change its memory.
        feeds: ``.npz`` with keys ``<point>/<input>``.
        check: what its answers are held against after every round; None where they need not be right.
        watch: looks at the GPU while a variant on it works.
        spare: processes that an earlier session of this run left, by name; ``leave`` puts this one there.
        calls_ns: for each point the calls of each round (int64 ns); ``round_ms`` is what each is compared by: the
            median time of a call for latency, else the mean time of a batch item.
    """

    name: str
    artifact: Artifact
    folder: Path
    python: Path
    log: Path
    timed_shapes: tuple[TimedShape, ...]
    precision: str
    plan: MeasurementPlan
    feeds: Path
    threads: int
    timeout_s: float
    watch: CardWatch | None = None
    check: Check | None = None
    spare: dict[str, Worker] | None = None
    calls_ns: dict[str, list[np.ndarray]] = field(default_factory=dict)
    round_ms: dict[str, list[float]] = field(default_factory=dict)
    peak_rss_mib: float = 0.0
    splits: dict[str, CallSplit | None] = field(default_factory=dict)
    first_pass_ms: dict[str, float] = field(default_factory=dict)
    opened: timed.OpenedSession | None = None
    _worker: Worker | None = None
    _last: str = ""
    _cold: set[str] = field(default_factory=set)
    _call_ms: float = 0.0

    def __post_init__(self) -> None:
        self.watch = self.watch if self.artifact.variant.target.device == "cuda" else None

    def open(self) -> None:
        worker = (self.spare or {}).pop(self.name, None) or Worker(
            self.log, threads=self.threads, timeout_s=self.timeout_s, python=self.python
        )
        self._worker = worker
        points = tuple(feed for p in self.timed_shapes for feed in p.feeds)
        with self.watch.loading(self.name) if self.watch else nullcontext():
            opened = worker.call(
                timed.open_timed,
                self.artifact,
                self.folder,
                self.threads,
                "latency" if self.plan.scenario == "latency" else "throughput",
                self.feeds,
                points,
                self.check,
            )
            self.opened = self.opened or opened
            for point in self.timed_shapes:
                if point.groups:
                    first = worker.call(timed.time_round, "traffic", point.key, 0.0, 1)  # meets every shape
                    self.first_pass_ms.setdefault(point.key, first.elapsed_ns / 1e6)
        self._cold, self._call_ms = {p.key for p in self.timed_shapes if not p.groups}, 0.0
        if self.artifact.variant.target.device == "cuda" and not self.splits and self.plan.scenario != "traffic":
            for point in self.timed_shapes:
                self.splits[point.key] = worker.call(timed.split, point.key, SPLIT_CALLS)

    def turn(self, point: str) -> None:
        plan, worker = self.plan, self._worker
        assert worker is not None
        shape = self._shape(point)
        if point in self._cold and self._call_ms <= LONG_CALL_MS:
            self._call_ms = worker.call(timed.warm, point, plan.warm_s)
        self._cold.discard(point)
        with self.watch.timing(self.name, point) if self.watch else nullcontext():
            answer = worker.call(timed.time_round, plan.scenario, point, plan.round_s, plan.least, plan.limit_ms)
        times = np.array(answer.times_ns, dtype=np.int64)
        latency = plan.scenario == "latency"
        taken_ns = float(np.median(times)) if latency else answer.elapsed_ns / len(times) / shape.items
        self.calls_ns.setdefault(point, []).append(times)
        self.round_ms.setdefault(point, []).append(taken_ns / 1e6)
        self.peak_rss_mib = max(self.peak_rss_mib, answer.peak_rss_mib)
        self._last = point

    def discard(self) -> None:
        self.calls_ns[self._last].pop()
        self.round_ms[self._last].pop()
        if self.watch:
            self.watch.discard(self.name, self._last)

    def end_turn(self) -> None:
        assert self._worker is not None
        if reasons := self._worker.call(timed.wrong):
            found = f"timed for {self.plan.scenario}, it answers otherwise than when it was proved: {reasons[0]}"
            raise CheckFailed(found)

    def times(self) -> Mapping[str, Sequence[float]]:
        return self.round_ms

    def reached(self, point: str) -> Reached:
        shape = self._shape(point)
        median_ms = float(np.median(np.concatenate(self.calls_ns[point]))) / 1e6
        return Reached(self.peak_rss_mib, median_ms, 1e3 / min(self.item_ms(shape)))

    def _shape(self, point: str) -> TimedShape:
        return next(shape for shape in self.timed_shapes if shape.key == point)

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

    def item_ms(self, point: TimedShape) -> list[float]:
        """Return the time of a batch item in each round: its share of a call of latency, where a round has a call's."""
        items = point.items if self.plan.scenario == "latency" else 1
        return [ms / items for ms in self.round_ms[point.key]]

    def raw(self) -> dict[str, np.ndarray]:
        """Return the ns of all calls."""
        return {f"{key}/{i:03d}": times for key, rounds in self.calls_ns.items() for i, times in enumerate(rounds)}

    def points(self, session: str, raw: str) -> dict[str, Measurement]:
        return {p.key: self._summary(p, session, raw) for p in self.timed_shapes if p.key in self.round_ms}

    def _summary(self, point: TimedShape, session: str, raw: str) -> Measurement:
        round_ms = self.round_ms[point.key]
        item_ms = self.item_ms(point)
        rounds_ms = [times / 1e6 for times in self.calls_ns[point.key]]
        figures = stability.latency_figures(np.concatenate(rounds_ms), rounds_ms)
        slow, fast = stability.interval([np.array([v]) for v in item_ms], lambda v: float(np.mean(v)))
        items = round(figures["samples"] * point.items)
        assert self.opened is not None
        return Measurement(
            **figures,
            scenario=self.plan.scenario,
            via="inprocess",
            backend=self.artifact.variant.target.name,
            batch=point.batch,
            concurrency=1 if self.plan.scenario == "latency" else self.opened.slots,
            threads=self.threads,
            shapes=point.shapes,
            throughput_per_s=1e3 / float(np.mean(item_ms)),
            throughput_ci_per_s=(1e3 / fast, 1e3 / slow),
            stable=stability.stable(round_ms),
            raw=raw,
            peak_rss_mib=self.peak_rss_mib,
            load_ms=self.opened.load_ms,
            first_ms=self.opened.first_ms,
            effective_precision=self.precision,
            rounds_ms=tuple(round_ms),
            session=session,
            split=self.splits.get(point.key),
            gpu=self.watch.use(self.name, point.key, items) if self.watch else None,
            traffic=self._traffic(point) if point.groups else None,
        )

    def _traffic(self, point: TimedShape) -> Traffic:
        groups = point.groups
        passes_ms = np.concatenate([t.reshape(-1, len(groups)) for t in self.calls_ns[point.key]]) / 1e6
        lengths = list(dict.fromkeys(group.length for group in groups))[::-1]
        by_length = []
        for chosen in np.array_split(np.arange(len(lengths)), min(LENGTHS, len(lengths))):
            part = [i for i, group in enumerate(groups) if group.length in {lengths[k] for k in chosen}]
            waited = np.repeat(passes_ms[:, part], [groups[i].requests for i in part], axis=1).ravel()
            found = [stability.percentile(waited, q) for q in (50, 90)]
            count = sum(groups[i].requests for i in part)
            p50 = found[0] if found[0] is not None else float(np.median(waited))
            by_length.append(LengthTime(groups[part[0]].length, count, p50, found[1]))
        tokens = [group.tokens for group in groups if group.tokens is not None]
        places = [group.length * group.requests for group in groups if group.length is not None]
        return Traffic(
            requests=sum(group.requests for group in groups),
            tokens=sum(tokens) if tokens else None,
            places=sum(places) if places else None,
            shapes=len({(group.length, group.requests) for group in groups}),
            first_pass_ms=self.first_pass_ms[point.key],
            by_length=tuple(by_length),
            request_times=request_times(groups, passes_ms),
        )


def request_times(groups: Sequence[TrafficGroup], passes_ms: np.ndarray) -> tuple[RequestTime, ...]:
    """Return what a request of each padded length costs, shortest first; nothing without lengths.

    Args:
        passes_ms: times of the calls (passes, groups).
    """
    call_ms = np.median(passes_ms, axis=0)
    found = []
    for length in sorted({group.length for group in groups if group.length is not None}):
        own = [i for i, group in enumerate(groups) if group.length == length]
        requests = sum(groups[i].requests for i in own)
        found.append(RequestTime(length, requests, float(call_ms[own].sum()) / requests))
    return tuple(found)
