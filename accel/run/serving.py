"""Measuring repositories as served: a real Triton server for each, all under the same loads, round after round.

The counterpart of ``measuring`` for ``--bench triton``. Every repository gets a server of its own; its answers are held
against the stored reference before any time is taken. Then the loads go round over all servers in a new order each
time, as the rounds in process do, so that ratios are ratios of one session. A server that lacks a backend answers
through the Python-backend twin, and the measurement says so.
"""

from __future__ import annotations

import contextlib
import dataclasses
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from accel.bench import stability
from accel.bench.interleave import interleave
from accel.core.errors import AccelError, CheckFailed, StageError
from accel.core.files import replace_folder
from accel.core.hardware import Hardware
from accel.core.values import Failed, Measurement
from accel.run import store
from accel.run.decide import Objective
from accel.run.job import Job
from accel.run.stages import REPOSITORY, Stage
from accel.run.store import Store
from accel.run.tasks import Described, bench_feeds

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
    """One interleaved session over all repositories of a run.

    Attributes:
        via: how the servers were run: ``embedded``, ``local`` or ``docker``; None where no repository was served.
        release: their Triton release, or None where it is not known.
    """

    via: str | None
    release: str | None
    entries: tuple[Entry, ...]


def serve_all(
    entrants: Sequence[Entrant],
    described: Stage[Described],
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
    key = store.key(
        repositories=[(e.name, e.emitted.key) for e in entrants],
        samples=described.value.samples.sha256,
        via=job.via,
        limit=job.constraints.max_p99_ms,
        hardware=hardware.fingerprint,
        code=store.code_hash("run/serving.py", "bench", "triton", "run/tasks.py"),
    )
    if (session := kept.get("served", key, Session)) is None:
        with kept.writing("served", key) as folder:
            feeds = _feeds(described, folder, job)
            session = _Session(job, feeds, folder, progress).run(entrants)
            kept.put("served", key, session, folder)
    raw = {file.name: file for file in (kept.folder("served", key) / "raw").iterdir()}
    replace_folder(job.run_dir / "measurements" / "served", raw)
    return session


def _feeds(described: Stage[Described], folder: Path, job: Job) -> list[dict[str, np.ndarray]]:
    from accel.core.feeds import read_feeds

    out = folder / "feeds.npz"
    points = {"opt": {name: shape.opt for name, shape in described.value.source.profile.items()}}
    bench_feeds(described.value, described.folder, points, out, items=FEEDS)
    stored = read_feeds(out)
    return [stored[name] for name in sorted(stored)]


@dataclass(slots=True)
class _Seen:
    """The windows of one load, the span of each, and what became of the requests (``bench.served.Sent``)."""

    windows: list[Any] = field(default_factory=list)
    spans: list[tuple[Any, Any]] = field(default_factory=list)
    failures: int = 0
    error: str | None = None
    first_ms: float = 0.0


class _Runner:
    """One repository behind its server, and the process that sends to it."""

    def __init__(self, entrant: Entrant, job: Job, feeds: Sequence[Mapping[str, np.ndarray]]) -> None:
        self.entrant = entrant
        self.name = entrant.name
        self.seen = {n: _Seen() for n in CONCURRENCY}
        self.twin = False
        self.load_ms = 0.0
        self._job, self._feeds = job, feeds
        self._open = contextlib.ExitStack()

    def open(self) -> None:
        """Start the server, check its answers, and warm it up at every load."""
        from accel.bench.load import Generator, fit_feeds
        from accel.triton import manifest
        from accel.triton.servers import answers
        from accel.triton.servers.server import lacking, start

        name, root = self.name, self.entrant.emitted.folder / REPOSITORY
        if self.entrant.rival and lacking(root, via=self._job.via):
            raise CheckFailed(
                "this server has no such backend, and the repository beside it serves the artifact through the Python "
                "backend"
            )
        logs = self._job.run_dir / "logs"
        begin = time.monotonic()
        self.server = self._open.enter_context(start(root, via=self._job.via, log=logs / f"{name}.server.log"))
        self.load_ms = self.load_ms or (time.monotonic() - begin) * 1e3
        promised = manifest.read(self.server.root)
        model = promised.models[0]
        self.twin = model in self.server.twins
        errors = [f for f in answers.check(self.server.endpoint, self.server.root) if f.severity == "error"]
        if errors:
            raise CheckFailed(f"served, it answers otherwise than in process: {errors[0].field}: {errors[0].why}")
        generator = Generator(self.server.endpoint.grpc, log=logs / f"{name}.load.log", timeout_s=self._job.timeout_s)
        self.generator = self._open.enter_context(generator)
        self.served = generator.describe(model)
        self.feeds = fit_feeds(self._feeds, promised.inputs)
        generator.open(model, self.feeds)
        for n in CONCURRENCY:
            self._window(n, WARM_S)

    def turn(self) -> None:
        """Put each load on the server for one window."""
        for n in CONCURRENCY:
            self._round(n)

    def close(self) -> None:
        """Stop the server and what sends to it."""
        self._open.close()

    def _round(self, concurrency: int) -> None:
        seen, generator = self.seen[concurrency], self.generator
        before, window, after = self._window(concurrency, ROUND_S)
        seen.windows.append(window)
        seen.spans.append((before, after))
        seen.failures += generator.failures
        seen.error = seen.error or generator.error
        seen.first_ms = seen.first_ms or generator.first_ms

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
        return stability.p99_calls(ROUNDS)


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
        self._id = uuid.uuid4().hex[:12]

    def run(self, entrants: Sequence[Entrant]) -> Session:
        runners = [_Runner(e, self._job, self._feeds) for e in entrants]
        errors = interleave(runners, ROUNDS, opening="starting a server", turn="served, round", progress=self._progress)
        (self._folder / "raw").mkdir()
        entries = tuple(self._entry(r, errors.get(r.name)) for r in runners)
        endpoints = [r.server.endpoint for r in runners if r.name not in errors]
        via, release = (endpoints[0].via, endpoints[0].release) if endpoints else (None, None)
        return Session(via, release, entries)

    def _entry(self, runner: _Runner, error: AccelError | None) -> Entry:
        """Return what a repository did; one whose loads give no figures fails alone, as one whose server ended does."""
        if error is None:
            raw = {f"{n}/{i:03d}": w.rows for n, seen in runner.seen.items() for i, w in enumerate(seen.windows)}
            np.savez_compressed(self._folder / "raw" / f"{runner.name}.npz", **raw)
            try:
                return Entry(runner.name, tuple(self._summary(runner, n) for n in CONCURRENCY))
            except StageError as found:
                error = found
        log = self._job.run_dir / "logs" / f"{runner.name}.server.log"
        return Entry(runner.name, (), Failed("serve", error.message, log=str(log) if log.exists() else None))

    def _summary(self, runner: _Runner, concurrency: int) -> Measurement:
        """Reduce one load to its figures.

        Raises:
            StageError: no request of one of its rounds was answered, so that it pairs with none of the others.
        """
        from accel.bench.load import Load
        from accel.bench.served import Labels, summarise

        entrant, seen, load = runner.entrant, runner.seen[concurrency], Load(concurrency=concurrency)
        if any(len(w.answered) == 0 for w in seen.windows):
            raise StageError(
                f"{load}: no request of a whole round was answered; the first error: {seen.error}",
                fix="look at the server's log",
            )
        point = summarise(
            load,
            seen.windows,
            seen.spans,
            runner.feeds,
            runner.served,
            seen,
            labels=Labels(
                backend="python" if runner.twin else entrant.backend,
                threads=self._job.threads,
                precision=entrant.precision,
                repository=f"repositories/{entrant.name}",
            ),
            raw=f"measurements/served/{entrant.name}.npz",
            session=self._id,
        )
        scenario: Objective = "latency" if concurrency == 1 else "throughput"
        item_ms = [w.seconds * 1e3 / len(w.answered) for w in seen.windows]
        rounds = [float(np.median(w.latency_ms)) for w in seen.windows] if scenario == "latency" else item_ms
        return dataclasses.replace(
            point,
            scenario=scenario,
            rounds_ms=tuple(rounds),
            stable=stability.stable(rounds),
            load_ms=runner.load_ms,
        )
