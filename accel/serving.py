"""Measuring repositories as served: a real Triton server for each, all under the same loads, round after round.

The counterpart of ``measuring`` for ``--bench triton``. Every repository gets a server of its own; its answers are held
against the stored reference before any time is taken. Then the loads go round over all servers in a new order each
time, as the rounds in process do, so that ratios are ratios of one session. A server that lacks a backend answers
through the Python-backend twin, and the measurement says so.
"""

from __future__ import annotations

import contextlib
import dataclasses
import random
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from accel import store
from accel.artifacts import Failed, Measurement, to_json
from accel.bench import stability
from accel.bench.rounds import MEMORY_RESERVE
from accel.decide import Objective
from accel.errors import AccelError, CheckFailed
from accel.hardware import Hardware, available_memory_bytes
from accel.job import Job
from accel.stages import REPOSITORY, Described, Stage
from accel.store import Store
from accel.worker import run_task

CONCURRENCY = (1, 4, 16)
"""Requests under way at once: one for the latency, more for the throughput that batching and instances give."""
ROUNDS, ROUND_S, SETTLE_S = 7, 0.5, 0.2
"""How often each load comes round, how long its window lasts, and how long it runs before."""
WARM_S = 0.5
FEEDS = 8
"""Different real samples that the requests carry, all at the typical shape."""


@dataclass(frozen=True, slots=True)
class Entrant:
    """A repository that can be served.

    Attributes:
        name: folder below ``repositories/``.
        backend: the backend it was emitted for.
        precision: what the artifact really computes in.
        rival: whether another repository of the run serves the same artifact through the Python backend.
    """

    name: str
    emitted: Stage
    backend: str
    precision: str
    rival: bool = False


@dataclass(frozen=True, slots=True)
class Entry:
    """What one repository did under load, or why it did not."""

    name: str
    points: tuple[Measurement, ...]
    failed: Failed | None = None


@dataclass(frozen=True, slots=True)
class Session:
    """One interleaved session over all repositories of a run."""

    via: str
    entries: tuple[Entry, ...]


def serve_all(
    entrants: Sequence[Entrant],
    described: Stage,
    *,
    job: Job,
    kept: Store,
    hardware: Hardware,
    progress: Callable[[str, str], None],
) -> Session:
    """Serve, check and measure every repository, or return what a stored session found for the same ones.

    Args:
        progress: called with (repository's name, what is being done).

    Raises:
        UnavailableError: there is no server to be had.
    """
    made: Described = described.value
    key = store.key(
        repositories=[(e.name, e.emitted.key) for e in entrants],
        samples=made.samples.sha256,
        via=job.via,
        limit=job.constraints.max_p99_ms,
        hardware=hardware.fingerprint,
        code=store.code_hash("serving.py", "bench", "triton", "tasks.py"),
    )
    if (session := kept.get("served", key, Session)) is None:
        with kept.writing("served", key) as folder:
            feeds = _feeds(described, folder, job)
            session = _Session(job, feeds, folder, progress).run(entrants)
            kept.put("served", key, session, folder)
    raw = {file.name: file for file in (kept.folder("served", key) / "raw").iterdir()}
    store.replace_folder(job.run_dir / "measurements" / "served", raw)
    return session


def _feeds(described: Stage, folder: Path, job: Job) -> list[dict[str, np.ndarray]]:
    from accel.samples import read_feeds

    made: Described = described.value
    out = folder / "feeds.npz"
    params = {
        "source": to_json(made.source),
        "samples": to_json(made.samples),
        "samples_folder": str(described.folder),
        "points": {"opt": {name: list(shape.opt) for name, shape in made.source.profile.items()}},
        "out": str(out),
        "items": FEEDS,
    }
    log = job.run_dir / "logs" / "served.log"
    run_task("bench_feeds", params, log=log, threads=job.threads, timeout_s=job.timeout_s)
    stored = read_feeds(out)
    return [stored[name] for name in sorted(stored)]


@dataclass(slots=True)
class _Seen:
    """The windows of one load, and what the server counted during them alone."""

    windows: list[Any] = field(default_factory=list)
    counted: dict[str, int] = field(default_factory=dict)
    cpu_s: float | None = 0.0
    seconds: float = 0.0
    rss_mib: float = 0.0
    failures: int = 0
    error: str | None = None
    gauges: dict[str, float] = field(default_factory=dict)


class _Runner:
    """One repository behind its server, and the process that sends to it."""

    def __init__(self, entrant: Entrant, job: Job, feeds: Sequence[Mapping[str, np.ndarray]]) -> None:
        self.entrant = entrant
        self.seen = {n: _Seen() for n in CONCURRENCY}
        self.twin = False
        self.load_ms = 0.0
        self._job, self._feeds = job, feeds
        self._open = contextlib.ExitStack()

    def open(self) -> None:
        """Start the server, check its answers, and warm it up at every load."""
        from accel.bench.load import Generator, fit_feeds
        from accel.triton import manifest, served
        from accel.triton.server import start

        name, root = self.entrant.name, self.entrant.emitted.folder / REPOSITORY
        logs = self._job.run_dir / "logs"
        begin = time.monotonic()
        self.server = self._open.enter_context(start(root, via=self._job.via, log=logs / f"{name}.server.log"))
        self.load_ms = self.load_ms or (time.monotonic() - begin) * 1e3
        promised = manifest.read(self.server.root)
        model = promised.models[0]
        self.twin = model in self.server.twins
        errors = [f for f in served.check(self.server.endpoint, self.server.root) if f.severity == "error"]
        if errors:
            raise CheckFailed(f"served, it answers otherwise than in process: {errors[0].field}: {errors[0].why}")
        generator = Generator(self.server.endpoint.grpc, log=logs / f"{name}.load.log", timeout_s=self._job.timeout_s)
        self.generator = self._open.enter_context(generator)
        self.served = generator.describe(model)
        self.feeds = fit_feeds(self._feeds, promised.inputs)
        generator.open(model, self.feeds)
        for n in CONCURRENCY:
            self._window(n, WARM_S)

    def round(self, concurrency: int) -> None:
        """Put one load on the server for one window."""

        seen, generator = self.seen[concurrency], self.generator
        before, window, after = self._window(concurrency, ROUND_S)
        seen.windows.append(window)
        for key, value in after.counters.items():
            seen.counted[key] = seen.counted.get(key, 0) + value - before.counters[key]
        used = None if before.cpu_s is None or after.cpu_s is None else after.cpu_s - before.cpu_s
        seen.cpu_s = None if seen.cpu_s is None or used is None else seen.cpu_s + used
        seen.seconds += (after.at_ns - before.at_ns) / 1e9
        seen.rss_mib = max(seen.rss_mib, after.rss_mib)
        seen.gauges = after.gauges
        seen.failures += generator.failures
        seen.error = seen.error or generator.error

    def _window(self, concurrency: int, seconds: float) -> tuple[Any, Any, Any]:
        """Return the mark before a window, the window, and the mark after it."""
        from accel.bench.load import Load, Window
        from accel.bench.served import mark

        generator, endpoint, model = self.generator, self.server.endpoint, self.served.model
        generator.start(Load(concurrency=concurrency))
        try:
            generator.window(SETTLE_S, least=1)
            before = mark(generator, endpoint, model)
            generator.window(0.0, least=0)  # what ended while the mark was read belongs to no window
            window = generator.window(seconds, least=max(3, concurrency))
            wanted = self._wanted(window)
            if wanted > len(window.rows):
                more = generator.window(0.0, least=wanted - len(window.rows))
                rows = np.concatenate([window.rows, more.rows])
                window = Window(window.begin_ns, more.end_ns, rows, window.cpu_s + more.cpu_s)
            return before, window, mark(generator, endpoint, model)
        finally:
            generator.stop()

    def _wanted(self, window: Any) -> int:
        """Return how many requests a window needs for a p99 that is demanded, where it can be held at all."""
        limit = self._job.constraints.max_p99_ms
        if limit is None or not len(window.answered) or float(np.median(window.latency_ms)) > limit:
            return 0
        return -(-P99_REQUESTS // ROUNDS)

    def close(self) -> None:
        self._open.close()


P99_REQUESTS = 600
"""Requests at a load on which a p99 is demanded: six beyond the percentile, one more than it needs."""


class _Session:
    """All repositories of one session."""

    def __init__(
        self,
        job: Job,
        feeds: Sequence[Mapping[str, np.ndarray]],
        folder: Path,
        progress: Callable[[str, str], None],
    ) -> None:
        self._job, self._feeds, self._folder, self._progress = job, feeds, folder, progress
        self._failed: dict[str, Failed] = {}
        self._id = uuid.uuid4().hex[:12]

    def run(self, entrants: Sequence[Entrant]) -> Session:
        runners = [_Runner(e, self._job, self._feeds) for e in entrants]
        try:
            resident = self._open_all(runners)
            for number in range(ROUNDS):
                order = [r for r in runners if r.entrant.name not in self._failed]
                random.Random(number).shuffle(order)
                for runner in order:
                    with self._watch(runner, f"served, round {number + 1} of {ROUNDS}"):
                        if not resident:
                            runner.open()
                        for n in CONCURRENCY:
                            runner.round(n)
                    if not resident:
                        runner.close()
            via = next((r.server.endpoint.via for r in runners if r.entrant.name not in self._failed), "")
        finally:
            for runner in runners:
                runner.close()
        (self._folder / "raw").mkdir()
        return Session(via, tuple(self._entry(r) for r in runners))

    def _open_all(self, runners: Sequence[_Runner]) -> bool:
        """Open all; where memory does not hold them together, close them again and return False."""
        free = available_memory_bytes()
        for runner in runners:
            with self._watch(runner, "starting a server"):
                runner.open()
                if runner.twin and runner.entrant.rival:
                    raise CheckFailed(
                        "this server has no such backend, and the repository beside it serves the artifact through "
                        "the Python backend"
                    )
            if available_memory_bytes() < MEMORY_RESERVE * free:
                for opened in runners:
                    opened.close()
                return False
        return True

    @contextlib.contextmanager
    def _watch(self, runner: _Runner, doing: str) -> Iterator[None]:
        """Turn a repository's failure into its result and stop its server; the others go on."""
        name = runner.entrant.name
        self._progress(name, doing)
        try:
            yield
        except AccelError as error:
            log = self._job.run_dir / "logs" / f"{name}.server.log"
            self._failed[name] = Failed("serve", error.message, log=str(log) if log.exists() else None)
            runner.close()

    def _entry(self, runner: _Runner) -> Entry:
        name = runner.entrant.name
        if name in self._failed:
            return Entry(name, (), self._failed[name])
        raw = {f"{n}/{i:03d}": w.rows for n, seen in runner.seen.items() for i, w in enumerate(seen.windows)}
        np.savez_compressed(self._folder / "raw" / f"{name}.npz", **raw)
        return Entry(name, tuple(self._summary(runner, n) for n in CONCURRENCY))

    def _summary(self, runner: _Runner, concurrency: int) -> Measurement:
        from accel.bench.load import Load
        from accel.bench.served import Labels, Mark, summarise

        entrant, seen = runner.entrant, runner.seen[concurrency]
        zero = Mark(0, dict.fromkeys(seen.counted, 0), None if seen.cpu_s is None else 0.0, 0.0, seen.gauges)
        total = Mark(int(seen.seconds * 1e9), seen.counted, seen.cpu_s, seen.rss_mib, seen.gauges)
        labels = Labels(
            backend="python" if runner.twin else entrant.backend,
            threads=self._job.threads,
            precision=entrant.precision,
            repository=f"repositories/{entrant.name}",
        )
        point = summarise(
            Load(concurrency=concurrency),
            seen.windows,
            [zero, total],
            runner.feeds,
            runner.served,
            runner.generator,
            labels=labels,
            raw=f"measurements/served/{entrant.name}.npz",
            session=self._id,
        )
        scenario: Objective = "latency" if concurrency == 1 else "throughput"
        item_ms = [w.seconds * 1e3 / max(1, len(w.answered)) for w in seen.windows]
        rounds = [float(np.median(w.latency_ms)) for w in seen.windows] if scenario == "latency" else item_ms
        return dataclasses.replace(
            point,
            scenario=scenario,
            rounds_ms=tuple(rounds),
            stable=stability.stable(rounds),
            load_ms=runner.load_ms,
            failures=seen.failures,
            error=seen.error,
        )
