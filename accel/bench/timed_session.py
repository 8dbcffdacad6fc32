"""The clock: timed loops over one loaded session, in the worker's process.

Knows only ``Session``, so every runtime is timed by the same lines: bind, submit, wait and read are all inside, hence
copies in and out are. It is not aware of variants, rounds or other processes. Times are integer nanoseconds of
``time.perf_counter_ns``.
"""

import contextlib
import re
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np

from accel.builders import Session
from accel.core.feeds import Feed, fit_inputs
from accel.core.values import CallSplit

WARM_WINDOW = 5
WARM_TOLERANCE = 0.05


def now_ns() -> int:
    """Read the monotonic clock."""
    return time.perf_counter_ns()


def peak_rss_mib() -> float:
    """Return the largest resident size this process ever had. Source: Linux ``/proc/self/status``, VmHWM."""
    match = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    return int(match[1]) / 1024 if match else 0.0


def reset_peak_rss() -> None:
    """Let ``peak_rss_mib`` begin anew. Source: Linux ``proc_pid_clear_refs(5)``, 5."""
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


class TimedSession:
    """A session and the feeds it is timed on.

    Args:
        session: the loaded model.
        feeds: point (``b1``, ``b8``…) → inputs of that point, under the client's names.
        look: takes a point, the answer that came there and (where several slots are in use) its slot, after its time
            was taken and before the slot is used again.
    """

    def __init__(
        self, session: Session, feeds: Mapping[str, Feed], look: Callable[..., None] = lambda *_: None
    ) -> None:
        self.session = session
        self._look = look
        self._feeds = {point: fit_inputs(feed, session.inputs) for point, feed in feeds.items()}

    def call_ns(self, point: str) -> int:
        """Time one call: copy in, run, copy out."""
        session, feed = self.session, self._feeds[point]
        start = now_ns()
        session.bind(feed)
        session.submit()
        session.wait()
        outputs = session.read()
        taken = now_ns() - start
        self._look(point, outputs)
        return taken

    def warm(self, point: str, limit_s: float) -> int:
        """Run until the median of a window of calls stays within 5 % of the one before, or the limit.

        Returns:
            Nanoseconds of the last call.
        """
        deadline = now_ns() + int(limit_s * 1e9)
        times = [self.call_ns(point)]
        while now_ns() < deadline:
            times.append(self.call_ns(point))
            if len(times) >= 2 * WARM_WINDOW:
                before, last = np.median(times[-2 * WARM_WINDOW : -WARM_WINDOW]), np.median(times[-WARM_WINDOW:])
                if abs(last - before) <= WARM_TOLERANCE * before:
                    break
        return times[-1]

    def split(self, point: str, calls: int) -> CallSplit | None:
        """Take a call apart on a device, over some calls; None where nothing is copied."""
        found = [split for _ in range(calls) if (split := self.session.split(self._feeds[point])) is not None]
        if not found:
            return None
        return CallSplit(
            copy_in_ms=float(np.median([s.copy_in_ms for s in found])),
            compute_ms=float(np.median([s.compute_ms for s in found])),
            copy_out_ms=float(np.median([s.copy_out_ms for s in found])),
            bytes_in=found[-1].bytes_in,
            bytes_out=found[-1].bytes_out,
        )

    def latency(self, point: str, seconds: float, least: int, limit_ms: float | None = None) -> list[int]:
        """Call one at a time for ``seconds`` and at least ``least`` times; returns each call's ns.

        Args:
            limit_ms: what the calls must keep: when half of them are slower, ``least`` is not waited for.
        """
        deadline = now_ns() + int(seconds * 1e9)
        times: list[int] = []
        while now_ns() < deadline or not (len(times) >= least or _hopeless(times, limit_ms)):
            times.append(self.call_ns(point))
        return times

    def throughput(
        self, point: str, seconds: float, least: int, limit_ms: float | None = None
    ) -> tuple[list[int], int]:
        """Keep every slot of the session busy for ``seconds`` and at least ``least`` rounds over the slots.

        Args:
            limit_ms: as in ``latency``.

        Returns:
            Each request's ns from submit to read, and the ns from the first submit to the last read.
        """
        session, feed, slots = self.session, self._feeds[point], self.session.slots
        times: list[int] = []
        started = [0] * slots
        begin = now_ns()
        deadline = begin + int(seconds * 1e9)
        for slot in range(slots):
            started[slot] = now_ns()
            session.bind(feed, slot=slot)
            session.submit(slot=slot)
        rounds = 0
        while True:
            rounds += 1
            for slot in range(slots):
                session.wait(slot=slot)
                if slot == 0:  # not before: of calls that take longer than the round, one for each slot is enough
                    last = now_ns() >= deadline and (rounds >= least or _hopeless(times, limit_ms))
                outputs = session.read(slot=slot)
                times.append(now_ns() - started[slot])
                self._look(point, outputs, slot)
                if not last:
                    started[slot] = now_ns()
                    session.bind(feed, slot=slot)
                    session.submit(slot=slot)
            if last:
                return times, now_ns() - begin

    def traffic(
        self, point: str, seconds: float, least: int = 1, limit_ms: float | None = None
    ) -> tuple[list[int], int]:
        """Answer all feeds of a point, in order, in passes for ``seconds`` and ``least`` calls; slots are kept busy.

        Args:
            limit_ms: as in ``latency``.

        Returns:
            Each call's ns from submit to read, pass after pass in the order of the feeds, and the ns of all passes.
        """
        names = [name for name in self._feeds if name.startswith(f"{point}.")]
        session, slots = self.session, self.session.slots
        times: list[int] = []
        waiting: list[tuple[int, int, str]] = []
        begin = now_ns()
        deadline = begin + int(seconds * 1e9)

        def collect() -> None:
            slot, started, name = waiting.pop(0)
            session.wait(slot=slot)
            outputs = session.read(slot=slot)
            times.append(now_ns() - started)
            self._look(name, outputs, slot)

        while True:
            for number, name in enumerate(names):
                if len(waiting) == slots:
                    collect()
                started = now_ns()
                session.bind(self._feeds[name], slot=number % slots)
                session.submit(slot=number % slots)
                waiting.append((number % slots, started, name))
            while waiting:
                collect()
            if now_ns() >= deadline and (len(times) >= least or _hopeless(times, limit_ms)):
                return times, now_ns() - begin


def _hopeless(times_ns: list[int], limit_ms: float | None) -> bool:
    """Say whether the slower half of at least three calls is over the limit: then so is any higher percentile."""
    return limit_ms is not None and len(times_ns) >= 3 and float(np.median(times_ns)) > limit_ms * 1e6
