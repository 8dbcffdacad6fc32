"""A repository that is measured as served: a real Triton server of its own, and the process that sends to it.

The server's answers are held against the stored reference before any time is taken. A server that lacks a backend
answers through the repository's Python-backend variant, and the measurement says so.
"""

import contextlib
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from accel.bench import stability
from accel.bench.checker import SHARE
from accel.bench.endpoint import Endpoint
from accel.bench.expected import Expected
from accel.bench.load import Generator, Load, Window, fit_feeds
from accel.bench.race import LEAST_ROUNDS
from accel.bench.rounds import Reached
from accel.bench.served import Span, VariantLabels, items, mark, summarise
from accel.core.errors import AccelError, CheckFailed, StageError
from accel.core.feeds import Feed
from accel.core.values import PYTHON_BACKEND, Measurement
from accel.run.job import Job

if TYPE_CHECKING:
    from accel.triton.servers.server import Server

CONCURRENCY = (1, 4, 16)
"""Requests under way at once: one for the latency, more for the throughput that batching and instances give."""
ROUNDS, ROUND_S, SETTLE_S = 21, 0.5, 0.2
"""How often each load comes round at most, how long its window lasts, and how long it runs before."""
WARM_S = 0.5
END_S = 1.0
"""How long the process of a server that no longer answers may take to end."""


@dataclass(slots=True)
class _Seen:
    """The windows of one load, the span of each, and what became of the requests (``bench.served.Sent``)."""

    windows: list[Window] = field(default_factory=list)
    spans: list[Span] = field(default_factory=list)
    failures: int = 0
    error: str | None = None
    first_ms: float = 0.0


class ServerRunner:
    """One repository behind its server.

    Args:
        name: folder below ``repositories/``.
        root: the repository.
        backend: the backend it was emitted for.
        precision: what the artifact really computes in.
        has_python_variant: whether another repository of the run serves the same artifact through the Python backend.
        feeds: different real samples, all at the typical shape.
        expected: what the responses to them should be; under load as many are looked at as cost little.
    """

    def __init__(
        self,
        name: str,
        root: Path,
        *,
        backend: str,
        precision: str,
        has_python_variant: bool,
        job: Job,
        feeds: Sequence[Feed],
        expected: Expected | None = None,
    ) -> None:
        self.name, self._root, self._has_python_variant = name, root, has_python_variant
        self._labels = VariantLabels(backend, job.threads, precision, f"repositories/{name}")
        self._job, self._feeds, self._expected = job, feeds, expected
        self._turns = self._checked = 0
        self._seen = {n: _Seen() for n in CONCURRENCY}
        self._last = _Seen()
        self._load_ms = 0.0
        self._open = contextlib.ExitStack()
        self.log = job.run_dir / "logs" / f"{name}.server.log"
        self.endpoint: Endpoint | None = None

    def open(self) -> None:
        """Start the server, check its answers, and warm it up at every load."""
        from accel.triton.servers.server import lacking, start

        if self._has_python_variant and lacking(self._root, via=self._job.via):
            raise CheckFailed(
                "this server has no such backend, and the repository beside it serves the artifact through the Python "
                "backend"
            )
        begin = time.monotonic()
        server = self._open.enter_context(start(self._root, via=self._job.via, log=self.log, grace_s=0))
        self._server, self.endpoint = server, server.endpoint
        self._load_ms = self._load_ms or (time.monotonic() - begin) * 1e3
        with self._ended_server_told():
            self._warm_up(server)

    def _warm_up(self, server: "Server") -> None:
        from accel.triton import manifest

        promised = manifest.read(server.root)
        model = promised.models[0]
        if model in server.python_models:
            self._labels = replace(self._labels, backend=PYTHON_BACKEND)
        self._served_root = server.root
        self._check("served")
        log = self.log.with_name(f"{self.name}.load.log")
        generator = Generator(server.endpoint.grpc, log=log, timeout_s=self._job.timeout_s)
        self._generator = self._open.enter_context(generator)
        self._served = generator.describe(model)
        self._fitted = fit_feeds(self._feeds, promised.inputs)
        check = self._expected.for_load(self._fitted) if self._expected else None
        generator.open(model, self._fitted, check=check, share=SHARE)
        for n in CONCURRENCY:
            self._window(n, WARM_S)

    @property
    def threads(self) -> int:
        """CPU threads that it can use at once."""
        return self._job.threads

    def turn(self, point: str) -> None:
        """Put one of the loads on the server for a window."""
        with self._ended_server_told():
            seen = self._last = self._seen[int(point)]
            window, span = self._window(int(point), ROUND_S)
            seen.windows.append(window)
            seen.spans.append(span)
            seen.failures += self._generator.failures
            seen.error = seen.error or self._generator.error
            seen.first_ms = seen.first_ms or self._generator.first_ms

    def end_turn(self) -> None:
        """Hold the worst answers under load against their gate, and now and then what comes after it."""
        with self._ended_server_told():
            if self._expected is not None and (worst := self._generator.worst()[1]):
                verdict = self._expected.judge(self._fitted, worst)
                if not verdict.passed:
                    raise CheckFailed(f"served under load, it answers otherwise than in process: {verdict.reasons[0]}")
            self._turns += 1
            if self._turns & (self._turns - 1) == 0:  # 1, 2, 4, 8…, and when it leaves: large shapes take long
                self._check_after_load()

    def _check_after_load(self) -> None:
        """Hold the answers against what they were, where the last windows got any and they were not looked at since."""
        last = [seen.windows[-1] for seen in self._seen.values() if seen.windows]
        if self._checked < self._turns and all(len(window.answered) for window in last):
            self._checked = self._turns
            self._check("served, after the load")

    def _check(self, when: str) -> None:
        """Hold the answers at the stored points against what they were in process."""
        from accel.triton.servers import answers

        assert self.endpoint is not None
        errors = [f for f in answers.check(self.endpoint, self._served_root) if f.severity == "error"]
        if errors:
            raise CheckFailed(f"{when}, it answers otherwise than in process: {errors[0].field}: {errors[0].why}")

    @contextlib.contextmanager
    def _ended_server_told(self) -> Iterator[None]:
        """Raise in place of an error that comes of the server's end the one that says how it ended."""
        try:
            yield
        except AccelError as error:
            until = time.monotonic() + (0.0 if isinstance(error, CheckFailed) else END_S)
            while (alive := self._server.alive()) and time.monotonic() < until:
                time.sleep(END_S / 20)
            if alive:
                raise
            raise self._server.failure() from error

    def discard(self) -> None:
        """Forget the last window."""
        self._last.windows.pop()
        self._last.spans.pop()

    def times(self) -> dict[str, list[float]]:
        """Return the time of an answer in each window, of each load; empty for a load that once got none."""
        return {str(n): self._rounds_ms(n) for n in CONCURRENCY if all(len(w.answered) for w in self._seen[n].windows)}

    def _rounds_ms(self, concurrency: int) -> list[float]:
        windows = self._seen[concurrency].windows
        if concurrency == 1:
            return [float(np.median(w.latency_ms)) for w in windows]
        return [w.seconds * 1e3 / len(w.answered) for w in windows]

    def reached(self, point: str) -> Reached:
        """Return the memory of the server's processes, and what the windows of a load show."""
        seen, rounds_ms = self._seen[int(point)], self._rounds_ms(int(point))
        memory_mib = max(m.rss_mib for span in seen.spans for m in span)
        median_ms = float(np.median(np.concatenate([w.latency_ms for w in seen.windows])))
        return Reached(memory_mib, median_ms, 1e3 * items(self._fitted[0], self._served) / min(rounds_ms))

    def leave(self) -> None:
        """Look at its answers once more, and stop the server: no other session takes it."""
        with self._ended_server_told():
            self._check_after_load()
        self.close()

    def close(self) -> None:
        """Stop the server and what sends to it."""
        self._open.close()

    def raw(self) -> dict[str, np.ndarray]:
        """Return the rows of all windows (see ``Window.rows``)."""
        return {f"{n}/{i:03d}": w.rows for n, seen in self._seen.items() for i, w in enumerate(seen.windows)}

    def points(self, session: str, raw: str) -> dict[str, Measurement]:
        """Reduce each load to its figures.

        Raises:
            StageError: no request of one of its rounds was answered, so that it pairs with none of the others.
        """
        return {str(n): self._summary(n, session, raw) for n in CONCURRENCY}

    def _window(self, concurrency: int, seconds: float) -> tuple[Window, Span]:
        """Return a window, and the marks before and after it."""
        generator, model = self._generator, self._served.model
        assert self.endpoint is not None
        generator.start(Load(concurrency=concurrency))
        try:
            generator.window(SETTLE_S, least=1)
            before = mark(generator, self.endpoint, model)
            generator.window(0.0, least=0)  # what ended while the mark was read belongs to no window
            window = generator.window(seconds, least=max(3, concurrency))
            wanted = self._wanted(window)
            if wanted > len(window.rows):
                more = generator.window(0.0, least=wanted - len(window.rows))
                rows = np.concatenate([window.rows, more.rows])
                window = Window(window.begin_ns, more.end_ns, rows, window.cpu_s + more.cpu_s)
            return window, (before, mark(generator, self.endpoint, model))
        finally:
            generator.stop()

    def _wanted(self, window: Window) -> int:
        """Return how many requests a window needs for a p99 that is demanded, where it can be held at all."""
        limit = self._job.constraints.max_p99_ms
        if limit is None or not len(window.answered) or float(np.median(window.latency_ms)) > limit:
            return 0
        return stability.p99_calls(min(LEAST_ROUNDS, self._job.min_rounds, self._job.rounds))

    def _summary(self, concurrency: int, session: str, raw: str) -> Measurement:
        seen, load = self._seen[concurrency], Load(concurrency=concurrency)
        if any(len(w.answered) == 0 for w in seen.windows):
            raise StageError(
                f"{load}: no request of a whole round was answered; the first error: {seen.error}",
                fix="look at the server's log",
            )
        rounds = self._rounds_ms(concurrency)
        point = summarise(
            load,
            seen.windows,
            seen.spans,
            self._fitted,
            self._served,
            seen,
            labels=self._labels,
            raw=raw,
            session=session,
        )
        return replace(
            point,
            scenario="latency" if concurrency == 1 else "throughput",
            rounds_ms=tuple(rounds),
            stable=stability.stable(rounds),
            load_ms=self._load_ms,
        )
