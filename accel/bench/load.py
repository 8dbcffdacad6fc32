"""Load on a Triton server: what is asked for (``Load``), and the processes that generate it (``Generator``).

The parent decides when a window begins and ends; the requests are sent by worker processes (``calls``, ``sender``), so
that it stays small and its own work delays no request. Every time is an integer nanosecond of the monotonic clock,
which all processes of a machine share. A latency counts from the moment a request was *meant* to be sent: in an open
loop a request that waits behind a stalled server has been late since then. Source: Gil Tene, "How NOT to Measure
Latency" (coordinated omission).
"""

import contextlib
import math
import tempfile
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from accel.bench import calls
from accel.bench.timed_session import now_ns
from accel.bench.wire import described, raw_bytes
from accel.core import temporary
from accel.core.errors import SampleError, StageError, UnavailableError, UsageError
from accel.core.feeds import Feed, fit_inputs
from accel.core.processes import Worker
from accel.core.values import TensorSpec

Arrivals = Literal["constant", "poisson", "recorded"]
ARRIVALS: Arrivals = "constant"
"""Those of an open loop of which nothing else is said."""
FEED, INTENDED, SENT, END, OK = range(5)
"""Columns of a window's rows."""

LEAST = 5
"""A window lasts until this many requests have ended, however slow the model."""


@dataclass(frozen=True, slots=True)
class Load:
    """One point of load.

    Attributes:
        concurrency: closed loop: so many clients, each of which sends its next request when it has its answer.
        rate_per_s: open loop: requests per second, sent whether or not earlier ones were answered.
        arrivals: open loop: equal gaps, those of a Poisson process, or recorded ones.
        gaps_s: the recorded gaps, from the one before the first request on; they are stretched to the rate, and begin
            anew at their end (``ranges.recorded``).
        seconds: how long it is measured; None until figures agree.

    Raises:
        UsageError: not exactly one of the two is given, it is not positive, or ``recorded`` has no gaps.
    """

    concurrency: int | None = None
    rate_per_s: float | None = None
    arrivals: Arrivals = ARRIVALS
    gaps_s: tuple[float, ...] = ()
    seconds: float | None = None

    def __post_init__(self) -> None:
        if (self.concurrency is None) == (self.rate_per_s is None):
            raise UsageError("a load is either a concurrency or a request rate", fix="give one of the two")
        if (self.concurrency or self.rate_per_s or 0) <= 0:
            raise UsageError(f"a load of {self} sends nothing", fix="give a number above 0")
        if (self.arrivals == "recorded") != bool(self.gaps_s):
            raise UsageError("recorded arrivals are those of a file", fix="give the file's path as --arrivals")

    def due(self, seconds: float) -> int | None:
        """Return how many requests are due that long after the beginning; None where chance decides, or clients do."""
        if self.rate_per_s is None or self.arrivals == "poisson":
            return None
        if seconds < 0:
            return 0
        if self.arrivals == "constant":
            return math.floor(seconds * self.rate_per_s) + 1
        moments = np.cumsum(self.gaps_s) * len(self.gaps_s) / sum(self.gaps_s) / self.rate_per_s
        rounds, rest = divmod(seconds + 1e-6, float(moments[-1]))  # a sum of gaps is not exact
        return int(rounds) * len(moments) + int(np.searchsorted(moments, rest, side="right"))

    def __str__(self) -> str:
        if self.concurrency is not None:
            return f"concurrency {self.concurrency}"
        return f"{self.rate_per_s:g}/s {self.arrivals}"


def fit_feeds(feeds: Sequence[Feed], inputs: Sequence[TensorSpec]) -> list[dict[str, np.ndarray]]:
    """Check every feed against the contract, once, before any load: names, dtypes, dims and ranges.

    Raises:
        SampleError: one does not fit; the message has its index.
    """
    if not feeds:
        raise SampleError("there is no feed to send", fix="give --data FILE.json or FILE.npz")
    fitted = []
    for index, feed in enumerate(feeds):
        try:
            fitted.append(fit_inputs(feed, inputs))
        except SampleError as error:
            raise SampleError(f"feed {index}: {error.message}", fix=error.fix) from error
    return fitted


@dataclass(slots=True)
class Window:
    """What ended between two moments.

    Attributes:
        begin_ns / end_ns: the two moments.
        rows: int64 (requests, 5): feed, intended, sent and end in ns, 1 where it was answered.
        cpu_s: CPU time that the generating processes spent.
    """

    begin_ns: int
    end_ns: int
    rows: np.ndarray
    cpu_s: float = 0.0

    @property
    def seconds(self) -> float:
        """Its length."""
        return (self.end_ns - self.begin_ns) / 1e9

    @property
    def answered(self) -> np.ndarray:
        """The rows that were answered."""
        return self.rows[self.rows[:, OK] == 1]

    @property
    def latency_ms(self) -> np.ndarray:
        """Latencies of the answered requests, from the moment each was meant to be sent."""
        rows = self.answered
        return (rows[:, END] - rows[:, INTENDED]) / 1e6


class Generator(contextlib.AbstractContextManager["Generator"]):
    """Processes that send requests to one server; a context manager.

    Args:
        url: ``host:port`` of the server's gRPC endpoint.
        http: that of its HTTP endpoint, where requests are sent there; None sends them over gRPC.
        processes: how many send; one is enough until it is busy all the time (``Window.cpu_s``).
        timeout_s: a request that takes longer counts as failed.
        log: takes what the processes print.

    Attributes:
        failures: requests of this point that ended in an error, and ``error``: what the first one said.
        first_ms: how long the first request of ``open`` took.
        largest_output_bytes: size of the largest output of that request, with shared memory of all feeds.
    """

    def __init__(
        self, url: str, *, log: Path, http: str | None = None, processes: int = 1, timeout_s: float = 120.0
    ) -> None:
        self.url, self._http = url, http
        self.processes = processes
        self.failures = 0
        self.error: str | None = None
        self.first_ms = 0.0
        self.largest_output_bytes = 0
        self._hit_rate: float | None = None
        self._rows: list[np.ndarray] = []  # taken from the processes, of no window yet
        self.begun_ns = self._begin_ns = 0
        self._timeout_s = timeout_s
        self._regions = f"accel-load-{uuid.uuid4().hex[:12]}"
        self._scratch = tempfile.TemporaryDirectory(prefix="load-", dir=temporary.root())
        self._workers: list[Worker] = []
        try:
            for _ in range(processes):
                self._workers.append(Worker(log, threads=1, timeout_s=timeout_s + 60))
                self._workers[-1].start()
        except BaseException:
            self.close()
            raise

    def __exit__(self, *_: object) -> None:
        self.close()

    def describe(self, model: str) -> calls.ServedModel:
        """Return what the server says of a model; an empty name stands for its only one.

        Raises:
            UnavailableError: nothing answers at the address.
            InputError: the server does not have the model, or it has several and none is named.
        """
        return self._workers[0].call(calls.describe, self.url, model)

    def open(
        self,
        model: str,
        feeds: Sequence[Feed],
        *,
        slots: int = 64,
        shared_memory: bool = False,
        check: Mapping[str, np.ndarray] | None = None,
        share: float | None = None,
        seed: int = 0,
        hit_rate: float | None = None,
    ) -> None:
        """Serialise the feeds and send the first one.

        Args:
            feeds: what is sent, fitted to the contract; drawn in an order that ``seed`` decides.
            slots: largest concurrency of a closed loop; with shared memory also the most an open loop has under way.
            shared_memory: pass inputs and outputs through system shared memory; the server must be on this machine.
            check: what responses are held against, as ``checker.check_arrays`` gives it: every one, or as many as
                can be looked at in a ``share`` of the time.
            hit_rate: share of the requests that ask what was asked before; the others get contents of their own. None
                sends the feeds as they are. Not with shared memory.

        Raises:
            InputError: the server does not know the model, or refuses the first request; or of what is sent no new
                contents can be made.
            UnavailableError: nothing answers at the address, or the server cannot map the shared memory.
        """
        self._hit_rate = hit_rate
        bodies = self._write("feeds.npz", raw_bytes(feeds))
        checks = self._write("check.npz", check) if check else None
        opened = [
            worker.call(
                calls.open_pool,
                self.url,
                model,
                tuple(described(feed) for feed in feeds),
                bodies,
                check=checks,
                shared_memory=self._regions if shared_memory else None,
                slots=slots,
                seed=seed,
                timeout_s=self._timeout_s,
                share=share,
                http=self._http,
                hit_rate=hit_rate,
            )
            for worker in self._workers
        ]
        self.first_ms = opened[0].first_ms
        self.largest_output_bytes = opened[0].largest_output_bytes

    @property
    def one_computed(self) -> int:
        """So many requests of which at least one is none that a response cache answers, but for once in a thousand."""
        return max(1, math.ceil(math.log(1e-3) / math.log(self._hit_rate))) if self._hit_rate else 1

    def start(self, load: Load) -> None:
        """Begin to send; the first window begins now."""
        self.failures, self.error = 0, None
        self._rows = []
        gaps = None
        if load.gaps_s:
            gaps = Path(self._scratch.name) / "gaps.npy"
            np.save(gaps, np.array(load.gaps_s))
        self.begun_ns = self._begin_ns = now_ns()
        for index, worker in enumerate(self._workers):
            share = None
            if load.concurrency is not None:
                share = load.concurrency // self.processes + (index < load.concurrency % self.processes)
            rate, count = load.rate_per_s, self.processes
            begin_ns, arrivals = self._begin_ns, load.arrivals
            worker.call(calls.start, share, begin_ns, rate, arrivals, gaps=gaps, index=index, count=count)

    def window(self, seconds: float, *, least: int = LEAST) -> Window:
        """Wait until ``seconds`` have passed and ``least`` requests have ended; return what ended since the last call.

        Raises:
            StageError: the server is gone.
        """
        begin_ns, cpu_s = self._begin_ns, 0.0
        deadline_ns = begin_ns + int(seconds * 1e9)
        while True:
            time.sleep(max(0.0, (deadline_ns - now_ns()) / 1e9))
            boundary_ns = now_ns()
            for index, worker in enumerate(self._workers):
                path = Path(self._scratch.name) / f"rows{index}.npy"
                taken = worker.call(calls.take, path)
                self._rows.append(np.load(path))
                cpu_s += taken.cpu_s
                self.failures += taken.failures
                self.error = self.error or taken.error
                if taken.dead:
                    raise self._gone(taken.dead, self._http or self.url)
            every = np.concatenate(self._rows)
            later = every[:, END] > boundary_ns
            if np.count_nonzero(~later) >= least:
                self._rows = [every[later]]
                self._begin_ns = boundary_ns
                return Window(begin_ns, boundary_ns, every[~later], cpu_s)
            self._rows = [every]
            deadline_ns = boundary_ns + int(max(0.05, seconds / 10) * 1e9)

    def stop(self) -> None:
        """Send no more and wait for what is under way; an overloaded server's backlog is cancelled."""
        for worker in self._workers:
            worker.call(calls.stop)

    def statistics(self, model: str) -> dict[str, int]:
        """Return the server's own counters of a model so far: see ``calls.statistics``.

        Raises:
            StageError: the server is gone.
        """
        try:
            return self._workers[0].call(calls.statistics, self.url, model)
        except UnavailableError as error:
            raise self._gone(error.message, self.url) from error

    def worst(self) -> tuple[int, dict[str, np.ndarray]]:
        """Return how many responses were checked, and of each feed and output the one furthest from what was expected.

        The arrays are keyed ``<feed>/<output>``: if these pass a gate, every response does.
        """
        path = Path(self._scratch.name) / "worst.npz"
        checked, found = 0, dict[str, tuple[float, np.ndarray]]()
        for worker in self._workers:
            answer = worker.call(calls.worst, path)
            checked += answer.checked
            with np.load(path, allow_pickle=False) as file:
                for key, noise in answer.noise.items():
                    if key not in found or noise > found[key][0]:
                        found[key] = (noise, file[key])
        return checked, {key: array for key, (_, array) in found.items()}

    def close(self) -> None:
        """Give shared memory back and end the processes."""
        for worker in self._workers:
            with contextlib.suppress(StageError):  # one that died holds nothing any more
                worker.call(calls.close_pool)
            worker.close()
        self._workers = []
        for region in Path("/dev/shm").glob(f"{self._regions}*"):  # of a process that was killed
            region.unlink(missing_ok=True)
        self._scratch.cleanup()

    def _gone(self, why: str, url: str) -> StageError:
        return StageError(
            f"the server at {url} stopped answering in the middle of the load: {why}",
            fix="look at the end of the server's log; the points measured before are kept",
        )

    def _write(self, name: str, arrays: Mapping[str, np.ndarray]) -> Path:
        path = Path(self._scratch.name) / name
        np.savez(path, **arrays)  # type: ignore[arg-type]
        return path
