"""What is measured for tuning, behind the real server: loads on one configuration of one repository.

Every configuration is served from a copy whose config alone differs; the repository itself stays as it is. What a
server cannot do is a finding, not the end of the session.
"""

import contextlib
import math
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np

from accel.bench import probing, usage
from accel.bench.endpoint import InferenceProtocol
from accel.bench.feeds import rebatch
from accel.bench.goodput import Probe, combined
from accel.bench.load import END, FEED, SENT, Arrivals, Generator, Load, fit_feeds
from accel.bench.machine_noise import NoiseSample, disturbed
from accel.bench.rounds import BUSY_TURNS, REPEATS
from accel.core import hardware
from accel.core.errors import AccelError, InputError, StageError
from accel.core.feeds import Feed
from accel.core.values import PYTHON_BACKEND
from accel.triton import manifest as manifests, rescheduled, settings as schedules
from accel.triton.folders import link_tree
from accel.triton.manifest import Manifest
from accel.triton.reading import read_configs, read_points
from accel.triton.servers import answers, server as servers
from accel.triton.servers.server import Server
from accel.triton.settings import Settings

WINDOW_S, CALLS, FEW_CALLS = 0.6, 8, 3
"""Each point of a curve lasts so long, and until so many requests have ended: few where each takes longer than that."""
LARGEST_BATCH = 64
LEAST = probing.LEAST_REQUESTS
LONGEST_S, FEW = 60.0, 30
"""A load so small that its requests would take longer is held by those of that time, by a few at least."""
SPREAD = (*range(0, 100, 5), 99)
"""Percentiles that stand for how much equal calls differ; the longest of a few calls is an accident."""
TURNS = 8
"""Requests of each client that say what a closed loop carries: those of several may be answered at once."""
SWITCHED, SWITCHES = 8, 24
"""Up to this size batches are alternated, so many of them at least, to see what a change of size costs."""
WARM_S = 5.0
SLEPT_S = 0.4
"""A call that took so much longer waited for a batcher that slept, which ``missed`` says; no instance was held."""
IDLE, MANY = 0.7, 64
"""Instances that compute for less than this share of the time wait for requests; so many clients send what they can."""


T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Goal:
    """What a configuration must do.

    Attributes:
        limit_ms: budget of 99 % of the requests; None where they may take as long as they do (offline).
        arrivals / gaps_s: of the open loop (see ``Load``); None for a closed one, whose level is the clients.
        rate_per_s: requests per second that are to be carried; None for as many as can be.
        limits_ms: budgets of other percentiles (``p50``, ``p90``, ``p95``), of all requests that were due.
        hit_rate: share of the requests that ask what was asked before, and the others never; None where nobody says,
            and what is sent repeats.
    """

    limit_ms: float | None
    arrivals: Arrivals | None
    gaps_s: tuple[float, ...] = ()
    rate_per_s: float | None = None
    limits_ms: Mapping[str, float] = field(default_factory=dict)
    hit_rate: float | None = None

    @property
    def budget_ms(self) -> float:
        """Budget of 99 % of the requests, infinite where there is none."""
        return math.inf if self.limit_ms is None else self.limit_ms

    @property
    def words(self) -> str:
        """Its budgets in words."""
        every = {**({} if self.limit_ms is None else {"p99": self.limit_ms}), **self.limits_ms}
        budgets = ", ".join(f"{name} within {limit:g} ms" for name, limit in every.items()) or "no budget of latency"
        return budgets if self.hit_rate is None else f"{budgets}, where {self.hit_rate:.1%} of the requests repeat"

    def load(self, level: float) -> Load:
        """Return the load of a level: a rate, or a number of clients."""
        if self.arrivals is None:
            return Load(concurrency=int(level))
        return Load(rate_per_s=level, arrivals=self.arrivals, gaps_s=self.gaps_s)


@dataclass(frozen=True, slots=True)
class Subject:
    """One repository that is tuned.

    Attributes:
        name: what reports call it.
        root: the repository as it ships; ``served``: a copy that this machine's server can serve.
        model: the model that clients call; ``worker``: the one whose config is tuned.
        backend: what answers here.
        feeds: what is sent; ``sizes``: the batch items of each.
        max_batch: ``max_batch_size`` of the worker; 0 where it cannot merge requests.
        default: how it is scheduled as it ships.
        config: the worker's ``ModelConfig``.
        same_shape: only requests of one shape are merged.
        whole: no axis counts items: a request is sent as it is.
    """

    name: str
    root: Path
    served: Path
    manifest: Manifest
    model: str
    worker: str
    backend: str
    feeds: tuple[Feed, ...]
    sizes: tuple[int, ...]
    max_batch: int
    default: Settings
    config: Any = None
    via: str | None = None
    logs: Path = Path()
    protocol: InferenceProtocol = "grpc"
    whole: bool = False

    @property
    def kinds(self) -> tuple[int, ...]:
        """The kind of each feed's shape, without its batch axis."""
        shapes = [tuple(v.shape[1:] for v in feed.values()) for feed in self.feeds]
        known = list(dict.fromkeys(shapes))
        return tuple(known.index(shape) for shape in shapes)


@dataclass(frozen=True, slots=True)
class Curve:
    """How long batches take on one server of some instances.

    Attributes:
        instances / threads: of the server; ``threads`` None where the config cannot say.
        batches: items of a request.
        alone_s / beside_s: seconds that an instance is held by such a request, alone and while all others are busy: the
            medians, since a few calls that something else disturbed would move the means.
        request_s: seconds that each further request of a merged batch costs.
        spread: durations of equal calls by their median, at the percentiles ``SPREAD``.
        overhead_s: what a client sees beyond queue and computation.
        missed: share of the batches whose end did not wake the batcher, so that waiting requests waited on.
        switch_s: seconds more that a batch of each size takes where the one before it had another; empty for none.
        front_s: seconds between two requests when as many come as client and server can pass on; 0 where the instances
            end that before.
        rss_mib / gpu_mib: memory of the server's processes, and that in use on its GPUs; None where it is not known.
        start_s: from the start of the server until it is ready.
        kinds: factor of each further kind of shape.
        failed: batch → why it could not be measured.
        cut_ms: the budget for which larger batches were left out: they take longer; None where all were measured.
    """

    instances: int
    threads: int | None
    batches: tuple[int, ...]
    alone_s: tuple[float, ...]
    beside_s: tuple[float, ...]
    request_s: float
    spread: tuple[float, ...]
    overhead_s: float
    rss_mib: float | None
    start_s: float
    kinds: tuple[float, ...] = (1.0,)
    failed: dict[str, str] = field(default_factory=dict)
    cut_ms: float | None = None
    gpu_mib: float | None = None
    front_s: float = 0.0
    switch_s: tuple[float, ...] = ()
    missed: float = 0.0

    def serves(self, limit_ms: float) -> bool:
        """Say whether it says enough for a budget."""
        return self.cut_ms is None or limit_ms <= self.cut_ms

    def service(self, items: int, requests: int, kind: int) -> list[float]:
        """Return what a batch takes while 1, 2, … instances are busy (``scheduler.Service``)."""
        ends = [float(np.interp(items, self.batches, line)) for line in (self.alone_s, self.beside_s)]
        if items > self.batches[-1]:
            ends = [end * items / self.batches[-1] for end in ends]
        factor = self.kinds[kind] if kind < len(self.kinds) else 1.0
        steps = np.linspace(ends[0], ends[1], self.instances) if self.instances > 1 else np.array(ends[:1])
        return [float(s) * factor + (requests - 1) * self.request_s for s in steps]

    def switch(self, items: int) -> float:
        """Return what a batch takes more where the one before it had another size."""
        return float(np.interp(items, self.batches, self.switch_s)) if self.switch_s else 0.0


def largest_batch(subject: Subject, settings: Settings) -> int:
    """Return the items of the largest batch that the server may form."""
    if not settings.batching or subject.max_batch < 1:
        return max(1, *subject.sizes)
    return subject.max_batch if settings.delay_us or not settings.preferred else max(settings.preferred)


def _missed(items: float) -> float:
    """Return how often the end of a batch did not wake the batcher, by the mean items of batches under two clients.

    One's request is computed, the other's waits. Its batch is of one, unless its beginning was missed: it then begins
    when the next request comes, with that one. So p of the single ones are followed by a pair, and each pair by a
    single one: pairs are p / (1 + p) of all, which is what the mean lies above 1.
    """
    return min(1.0, max(0.0, (items - 1) / (2 - items))) if items < 1.5 else 1.0


class Held(NamedTuple):
    """What a server did under a load.

    Attributes:
        batch_s: seconds that an instance was held by each batch.
        items: mean items of a batch.
        requests_per_s: that were answered.
        idle: the instances waited for requests.
        computed_s: of it, what each request was computed by the server's own account; 0 where it does not say.
    """

    batch_s: float
    items: float
    requests_per_s: float = 0.0
    idle: bool = False
    computed_s: float = 0.0


class _Counted(NamedTuple):
    """What a server counted so far: calls of the model, their items, and how long all requests were computed."""

    calls: int
    items: int
    requests: int
    compute_ns: int


class Trial:
    """A server that runs one configuration, and the process that sends to it."""

    def __init__(
        self, subject: Subject, server: Server, generator: Generator, start_s: float, *, cached: bool = False
    ) -> None:
        self._subject, self._server, self._generator, self.start_s = subject, server, generator, start_s
        self._cached, self._before = cached, (0, 0)
        self._disturbed = 0
        self._open(subject.feeds)

    def probe(
        self, goal: Goal, level: float, *, seconds: float = probing.SECONDS, least: int = LEAST, seed: int = 0
    ) -> Probe:
        """Put one load on it and hold it against the budget.

        Args:
            seed: of the arrivals, and of the order of what is sent.

        Raises:
            StageError: the server ended.
        """
        with self.watched():
            (found,) = probing.together([self.part(goal, level, least, seed)], seconds=seconds)
        return found

    def part(self, goal: Goal, level: float, least: int, seed: int) -> probing.Part:
        """Return a load on this model, which may be a part of one on several; the rarer its requests, the fewer.

        Where they may take as long as they do, a few say how many there are in a second.
        """
        self._open(self._subject.feeds, seed=seed, hit_rate=goal.hit_rate)
        if goal.limit_ms is None:
            least = min(least, max(FEW, int(level) * TURNS))
        elif goal.arrivals is not None:
            least = min(least, max(FEW, int(level * LONGEST_S)))
        load, sizes = goal.load(level), self._subject.sizes
        if load.gaps_s:  # a recording is met at another place each time
            place = random.Random(seed).randrange(len(load.gaps_s))
            load = replace(load, gaps_s=load.gaps_s[place:] + load.gaps_s[:place])
        return probing.Part(self._generator, load, goal.budget_ms, sizes, goal.limits_ms, least)

    def warm(self, largest: int, instances: int) -> None:
        """Have batches of each size computed before anything is measured: the first of a size takes longer.

        Of a model that takes long for it, those of the first seconds.
        """
        begin = time.monotonic()
        with self.watched():
            for size in range(1, largest + 1):
                if time.monotonic() - begin > WARM_S:
                    break
                with contextlib.suppress(InputError):  # a size that fails is a finding of the curve
                    self._open(self._of(self._subject.feeds[:1], size), hit_rate=0.0 if self._cached else None)
                    self._latency_s(instances, 0.0)
        self._before = self._asked() if self._cached else self._before

    def memory_mib(self) -> float | None:
        """Return the resident memory of the server's processes, where it can be known."""
        return usage.use(self._server.endpoint)[1] or None

    def gpu_memory_mib(self) -> float | None:
        """Return the memory in use on the GPUs that the server sees; None where it publishes none."""
        found = usage.gauges(self._server.endpoint).get("nv_gpu_memory_used_bytes")
        return None if found is None else found / 2**20

    def hit_share(self) -> float | None:
        """Return which share the response cache answered of the requests since ``warm``; None where there were none."""
        hits, misses = (now - before for now, before in zip(self._asked(), self._before, strict=True))
        return hits / (hits + misses) if hits + misses else None

    def _asked(self) -> tuple[int, int]:
        """Return what the server counted of its response cache so far: hits and misses."""
        told = self._generator.statistics(self._subject.model)
        return told["cache_hits"], told["cache_misses"]

    def curve(self, settings: Settings, limit_ms: float = math.inf, *, longest_s: float = math.inf) -> Curve:
        """Measure how long batches take; the server must merge requests where it can.

        Args:
            limit_ms: batches larger than the first that takes longer than this are left out: no request in one of them
                can be answered in time.
            longest_s: after this time no larger batch is begun either.

        Raises:
            StageError: the server ended, or cannot answer a request of one item.
        """
        n, most = settings.instances, min(max(1, self._subject.max_batch), LARGEST_BATCH)
        sizes = sorted({*(1 << i for i in range(most.bit_length())), most} & set(range(1, most + 1)))
        window_s, begin, cut, late = WINDOW_S, time.monotonic(), False, False
        alone: dict[int, np.ndarray] = {}
        beside: dict[int, np.ndarray] = {}
        failed: dict[str, str] = {}
        with self.watched():
            first = self._subject.feeds[:1]
            for batch in sizes:
                cut = bool(alone) and 1e3 * float(np.median(alone[max(alone)])) > limit_ms
                late = bool(alone) and time.monotonic() - begin > longest_s
                if cut or late:
                    break
                try:
                    self._open(self._of(first, batch))
                    one = self._calmly(lambda: self._latency_s(1, window_s))
                    all_ = self._calmly(lambda: self._latency_s(n, window_s)) if n > 1 else one
                    alone[batch], beside[batch] = one, all_
                except InputError as error:
                    failed[str(batch)] = error.message
            if 1 not in alone:
                raise StageError(f"{self._subject.name} answers no request of one item: {failed.get('1')}")
            done = [b for b in sizes if b in alone]
            one_client = self._calmly(lambda: self._held(1, n, window_s, first))
            busy = self._calmly(lambda: self._held(2 * n, n, window_s, first))
            # The calmer of the two windows that one client had: a disturbed one would count as way to the server.
            one_s = min(
                float(np.median(alone[1])), 1 / one_client.requests_per_s if one_client.requests_per_s else math.inf
            )
            known_s = one_s - one_client.computed_s if one_client.computed_s else None
            overhead = max(0.0, float(np.median(beside[1])) - busy.batch_s if known_s is None else known_s)
            front = 0.0
            if busy.idle and (many := self._calmly(lambda: self._held(MANY, n, window_s, first))).idle:
                front = 1 / many.requests_per_s
            each = 0.0
            whole = max((b for b in done if 1e3 * float(np.median(alone[b])) <= limit_ms), default=1)
            if whole > 1 and settings.batching:
                merged = self._calmly(lambda: self._held(2 * n * whole, n, window_s, first))
                single = float(np.interp(merged.items, done, [np.median(beside[b]) - overhead for b in done]))
                each = max(0.0, merged.batch_s - single) / max(1.0, merged.items - 1)
            switch: tuple[float, ...] = ()
            if settings.batching and len(done) > 1:
                switch = self._calmly(lambda: self._switch_s({b: float(np.median(alone[b])) for b in done}, window_s))
            kinds = [1.0]
            for kind in range(1, max(self._subject.kinds, default=0) + 1):
                self._open(self._of([self._subject.feeds[self._subject.kinds.index(kind)]], 1)[:1])
                kinds.append(float(np.median(self._latency_s(1, window_s)) / np.median(alone[1])))
        awake = {b: found[found < np.median(found) + SLEPT_S] for b, found in alone.items()}
        relative = np.concatenate([found / np.median(found) for found in awake.values()])
        # Where it was the time that was over, no batch that takes as long as the largest says what is next.
        enough_ms = limit_ms if cut and math.isfinite(limit_ms) else 1e3 * float(np.median(alone[done[-1]]))
        return Curve(
            n,
            settings.threads,
            tuple(done),
            alone_s=tuple(max(1e-6, float(np.median(alone[b])) - overhead) for b in done),
            beside_s=tuple(max(1e-6, float(np.median(beside[b])) - overhead) for b in done),
            request_s=each,
            spread=tuple(float(v) for v in np.percentile(relative, SPREAD)),
            overhead_s=overhead,
            rss_mib=self.memory_mib(),
            gpu_mib=self.gpu_memory_mib(),
            front_s=front,
            switch_s=switch,
            missed=_missed(busy.items) if settings.batching else 0.0,
            start_s=self.start_s,
            kinds=tuple(kinds),
            failed=failed,
            cut_ms=enough_ms if cut or late else None,
        )

    def _of(self, feeds: Sequence[Feed], items: int) -> Sequence[Feed]:
        """Return feeds of so many items; as they are where nothing counts items."""
        return feeds if self._subject.whole else rebatch(feeds, items)

    def _calmly(self, measure: Callable[[], T]) -> T:
        """Measure again what other processes disturbed, unless they do not stop."""
        for attempt in range(1 + REPEATS):
            before = NoiseSample.now()
            found = measure()
            if not disturbed(NoiseSample.now().since(before), hardware.cpu_threads()) or self._disturbed >= BUSY_TURNS:
                break
            self._disturbed += attempt == REPEATS
        return found

    def _latency_s(self, clients: int, seconds: float) -> np.ndarray:
        """Return the latencies of a closed loop, of requests that all succeed."""
        self._generator.start(Load(concurrency=clients))
        try:
            first = self._generator.window(seconds / 4, least=clients)
            least = FEW_CALLS if first.seconds > seconds else CALLS
            window = self._generator.window(seconds, least=max(clients, least))
        finally:
            self._generator.stop()
        if self._generator.failures:
            raise InputError(self._generator.error or "a request failed")
        return window.latency_ms / 1e3

    def _switch_s(self, alone_s: Mapping[int, float], seconds: float) -> tuple[float, ...]:
        """Return what a batch of each size takes more where the one before it had another, by the median.

        A runtime prepares itself anew for another shape, also for one that it had before. Large ones are left out.

        Args:
            alone_s: seconds of each size, asked for again and again.
        """
        sizes = [size for size in alone_s if size <= SWITCHED] if len(alone_s) > 2 else list(alone_s)
        self._open([rebatch(self._subject.feeds[:1], size)[0] for size in sizes])
        self._generator.start(Load(concurrency=1))
        try:
            self._generator.window(seconds / 4, least=len(sizes))
            rows = self._generator.window(2 * seconds, least=SWITCHES).answered
        finally:
            self._generator.stop()
        rows = rows[np.argsort(rows[:, SENT])]
        took_s = (rows[:, END] - rows[:, SENT]) / 1e9
        other = np.append(False, rows[1:, FEED] != rows[:-1, FEED])
        awake = took_s < np.array([alone_s[size] for size in sizes])[rows[:, FEED].astype(int)] + SLEPT_S
        of = {size: took_s[other & awake & (rows[:, FEED] == n)] for n, size in enumerate(sizes)}
        seen = {size: float(np.median(found)) for size, found in of.items() if len(found)}
        return tuple(max(0.0, seen.get(size, usual_s) - usual_s) for size, usual_s in alone_s.items())

    def _held(self, clients: int, instances: int, seconds: float, feeds: Sequence[Feed]) -> Held:
        """Return what each batch of the server takes under so many clients.

        Instances that are never idle are held by all of the time, also by what lies between two batches. Of others the
        server's own account says how long a batch was computed.
        """
        self._open(self._of(feeds, 1), slots=clients)
        self._generator.start(Load(concurrency=clients))
        try:
            self._generator.window(seconds / 4, least=clients)
            before, begin = self._counted(), time.monotonic()
            self._generator.window(seconds, least=max(CALLS, clients))
            after, end = self._counted(), time.monotonic()
        finally:
            self._generator.stop()
        batches, items, requests, compute_ns = (b - a for a, b in zip(before, after, strict=True))
        batches, wall_s, each_s = max(1, batches), end - begin, compute_ns / 1e9 / max(1, requests)
        idle = 0 < batches * each_s < IDLE * instances * wall_s
        held_s = each_s if idle else instances * wall_s / batches
        return Held(held_s, items / batches, requests / wall_s, idle, each_s)

    def _counted(self) -> _Counted:
        """Return the server's counters of the model; one that groups requests does not say what each group took."""
        told = self._generator.statistics(self._subject.model)
        if self._subject.manifest.grouping is not None and (found := usage.model_calls(self._server.endpoint)):
            return _Counted(*found, told["requests"], 0)
        compute_ns = told["input_ns"] + told["infer_ns"] + told["output_ns"]
        return _Counted(told["executions"], told["inferences"], told["requests"], compute_ns)

    def _open(self, feeds: Sequence[Feed], *, slots: int = 64, seed: int = 0, hit_rate: float | None = None) -> None:
        fitted = fit_feeds(feeds, self._subject.manifest.inputs)
        self._generator.open(self._subject.model, fitted, slots=slots, seed=seed, hit_rate=hit_rate)

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        """Say how the server ended, where it did."""
        try:
            yield
        except AccelError as error:
            if not self._server.alive():
                raise self._server.failure() from error
            raise


@contextlib.contextmanager
def trial(subject: Subject, settings: Settings | None, scratch: Path) -> Iterator[Trial]:
    """Serve a copy of a repository with these settings; None serves it as it ships.

    Raises:
        StageError: the server does not become ready, or answers otherwise where more is set than how it schedules.
    """
    root = _copy(subject, settings, scratch / "repository")
    begin = time.monotonic()
    log = subject.logs / f"{subject.name}.server.log"
    with servers.start(root, via=subject.via, log=log, allow_changed=True, grace_s=0) as running:
        start_s = time.monotonic() - begin
        if settings is not None and not settings.plain:
            wrong = [f for f in answers.check(running.endpoint, root) if f.severity == "error"]
            if wrong:
                raise StageError(f"with {settings} it answers otherwise: {wrong[0].field}: {wrong[0].why}")
        with _generator(running, subject, subject.logs / f"{subject.name}.load.log") as generator:
            cached = (subject.default if settings is None else settings).cached
            yield Trial(subject, running, generator, start_s, cached=bool(cached))


def _generator(running: Server, subject: Subject, log: Path) -> Generator:
    return Generator(running.endpoint.grpc, http=running.endpoint.http_for(subject.protocol), log=log)


def _copy(subject: Subject, settings: Settings | None, root: Path) -> Path:
    link_tree(subject.served, root)
    if settings is not None:
        schedules.write(root, settings, cpu_threads=hardware.cpu_threads(), models=(subject.worker,))
        rescheduled.start(root, settings.variables)
    return root


@dataclass(frozen=True, slots=True)
class Share:
    """One model's part in a server that several share.

    Attributes:
        share: its share of all requests.
    """

    subject: Subject
    settings: Settings
    goal: Goal
    share: float


class SharedTrial:
    """A server that runs a configuration of each of several models, and a process for each that sends to it."""

    def __init__(self, shares: Sequence[Share], trials: Sequence[Trial]) -> None:
        self._shares, self._trials = shares, trials

    def probe(
        self, goal: Goal, level: float, *, seconds: float = probing.SECONDS, least: int = LEAST, seed: int = 0
    ) -> Probe:
        """Put one load on all of them, each its share of it, and hold each against its own budget.

        Args:
            goal: not looked at: each share has its own.
            level: requests per second of all together.
            seed: as of ``Trial``; no two models have the same arrivals.

        Raises:
            StageError: the server ended.
        """
        with self._trials[0].watched():
            both = enumerate(zip(self._shares, self._trials, strict=True))
            each = seed * len(self._shares)
            parts = [trial.part(one.goal, level * one.share, least, each + n) for n, (one, trial) in both]
            found = probing.together(parts, seconds=seconds)
        return combined(level, {one.subject.model: p for one, p in zip(self._shares, found, strict=True)})

    def warm(self) -> None:
        """As of ``Trial``, each model in turn."""
        for one, alone in zip(self._shares, self._trials, strict=True):
            alone.warm(largest_batch(one.subject, one.settings), one.settings.instances)

    def memory_mib(self) -> float | None:
        """As of ``Trial``: of the one server."""
        return self._trials[0].memory_mib()

    def gpu_memory_mib(self) -> float | None:
        """As of ``Trial``: of the one server."""
        return self._trials[0].gpu_memory_mib()

    def hit_share(self) -> None:
        """Return nothing: no response cache is tried here."""


@contextlib.contextmanager
def shared_trial(shares: Sequence[Share], scratch: Path) -> Iterator[SharedTrial]:
    """Serve a copy of each repository, with its settings, on one server.

    Raises:
        StageError: the server does not become ready.
    """
    roots = [_copy(one.subject, one.settings, scratch / f"repository-{n}") for n, one in enumerate(shares)]
    first, begin = shares[0].subject, time.monotonic()
    beside = [f"--model-repository={root}" for root in roots[1:]]
    log = first.logs / "together.server.log"
    with (
        servers.start(roots[0], via=first.via, log=log, flags=beside, allow_changed=True, grace_s=0) as running,
        contextlib.ExitStack() as stack,
    ):
        start_s, trials = time.monotonic() - begin, []
        for one in shares:
            generator = _generator(running, one.subject, first.logs / f"{one.subject.model}.load.log")
            trials.append(Trial(one.subject, running, stack.enter_context(generator), start_s))
        yield SharedTrial(shares, trials)


def subject(
    root: Path,
    *,
    name: str,
    scratch: Path,
    logs: Path,
    via: str | None = None,
    data: Sequence[Feed] | None = None,
    protocol: InferenceProtocol = "grpc",
) -> Subject:
    """Prepare a repository for tuning: a copy that the server here can serve, and what is sent to it.

    Args:
        data: what is sent; None takes the repository's stored typical sample.

    Raises:
        InputError: it is not of accel's making, was changed since it was emitted, is stateful, or routes requests.
        StageError: it cannot be served.
    """
    manifest = manifests.read(root)
    if manifest.states:
        raise InputError(
            f"{root} is a stateful model: how its sequences are merged is not tuned",
            fix="accel bench measures it; docs/sequences.md says which fields to change",
        )
    if manifest.core is not None:
        raise InputError(
            f"{root} has a model that groups requests for {manifest.core}: the two are not tuned together",
            fix="tune the native repository, and set instance_group and parameters of the core to what it finds",
        )
    served = scratch / "served"
    with servers.start(root, via=via, log=logs / f"{name}.server.log", grace_s=0) as running:
        link_tree(running.root, served)
        backend = PYTHON_BACKEND if running.python_models else manifest.backend
    promised = manifests.read(served)
    worker, _ = manifests.holder(served, promised)
    config = read_configs(served)[worker]
    feeds = tuple(data if data is not None else [read_points(served, promised)["opt"].inputs])
    own_axis = all(spec.dims[:1] == ("batch",) for spec in promised.inputs)
    if data is None and promised.inputs and own_axis:
        feeds = tuple(rebatch(feeds, 1))
    sizes = tuple(int(next(iter(f.values())).shape[0]) if own_axis else 1 for f in feeds)
    return Subject(
        name,
        root,
        served,
        promised,
        promised.models[0],
        worker,
        backend,
        feeds,
        sizes,
        config.max_batch_size,
        schedules.read(config),
        config,
        via,
        logs,
        protocol,
        whole=not own_axis,
    )
