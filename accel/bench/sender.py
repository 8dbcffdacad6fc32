"""The process that sends: one event loop, requests serialised beforehand, one row of numbers for each.

Over gRPC that is ``grpc.aio`` with raw bytes, since on two cores it reached the highest rate of four ways to send from
Python (threads, futures with callbacks, tritonclient's own ``infer``; see docs/measuring.md). The event loop waits
with ``select``, whose timeouts have microseconds: ``epoll``'s milliseconds would make each request of an open loop
late.

It is not aware of windows, percentiles or other processes of the same load.
"""

import asyncio
import itertools
import random
import selectors
import threading
from array import array
from collections.abc import Coroutine, Iterator, Sequence
from typing import Any

import numpy as np

from accel.bench.checker import Checker
from accel.bench.request_pool import SequenceIds
from accel.bench.timed_session import now_ns
from accel.bench.transport import RequestError, Transport

MAX_IN_FLIGHT = 1024
"""An open loop has at most so many requests under way; later ones wait here, and are late from when they were due."""
ORDER = 1 << 16
"""Length of the drawn order of feeds, which then begins anew."""
GONE_AFTER = 8
"""So many requests in a row that find no server, and the server is asked whether it lives."""
DRAIN_S = 2.0
"""How long requests under way may take to end after the load; then they are cancelled."""


class Sender:
    """Keeps requests of one model under way and a row of each that ended."""

    def __init__(
        self,
        transport: Transport,
        feeds: int,
        checker: Checker | None,
        *,
        seed: int,
        slots: int,
        timeout_s: float,
        sequences: SequenceIds | None = None,
    ):
        self._transport, self._checker = transport, checker
        self._seed, self._slots, self._timeout_s = seed, slots, timeout_s
        self._sequences = sequences
        self._order = np.random.default_rng(seed).integers(0, feeds, ORDER).tolist()
        self._loop = asyncio.SelectorEventLoop(selectors.SelectSelector())
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._under_way: set[asyncio.Task[None]] = set()
        self._dispatcher: asyncio.Task[None] | None = None
        self._broken: BaseException | None = None
        self._reset()
        self._wait(transport.connect())

    def start(self, **load: Any) -> None:
        """Begin to send: see the task of that name."""
        self._reset()
        self._wait(self._begin(**load))

    def take(self) -> tuple[np.ndarray, int]:
        """Return the rows of the requests that ended since the last call, int64 (requests, 5), and how many failed."""
        return self._wait(self._take())

    def stop(self) -> None:
        """Send no more, wait for what is under way up to ``DRAIN_S``, cancel the rest."""
        self._stopped = True
        self._wait(self._drain())

    def close(self) -> None:
        """Close the connection and the loop."""
        self._wait(self._transport.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _reset(self) -> None:
        self._rows = array("q")  # numbers only: nothing for the garbage collector, nothing to convert
        self._failures = 0
        self.error: str | None = None
        self.dead: str | None = None
        self._missed, self._drawn, self._stopped = 0, 0, False
        self._free = list(range(self._slots))
        if self._sequences is not None:
            self._sequences.begin()

    def _wait(self, coroutine: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()

    async def _take(self) -> tuple[np.ndarray, int]:
        if self._broken is not None:
            raise self._broken
        rows, self._rows = self._rows, array("q")
        failures, self._failures = self._failures, 0
        return np.frombuffer(rows, np.int64).reshape(-1, 5), failures

    async def _begin(self, *, concurrency: int | None, begin_ns: int, **arrivals: Any) -> None:
        if concurrency is None:
            self._dispatcher = self._launch(self._dispatch(due_times(begin_ns, seed=self._seed, **arrivals)))
        for _ in range(concurrency or 0):
            self._launch(self._client())

    def _launch(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = self._loop.create_task(work)
        self._under_way.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._under_way.discard(task)
        if not task.cancelled() and task.exception() is not None:
            self._broken = task.exception()

    async def _dispatch(self, due_times_ns: Iterator[int]) -> None:
        for due_ns in due_times_ns:
            await asyncio.sleep(max(0.0, (due_ns - now_ns()) / 1e9))
            while not self._free:
                await asyncio.sleep(0.001)
            if self.dead:
                return
            self._launch(self._send(due_ns, self._free.pop()))

    async def _client(self) -> None:
        while not (self._stopped or self.dead):
            await self._send(now_ns(), self._free.pop())

    async def _send(self, due_ns: int, slot: int) -> None:
        feed, step = self._order[self._drawn % ORDER], None
        if self._sequences is not None:
            feed = self._sequences.step(slot)
            step = self._sequences.of(feed, slot)
        self._drawn += 1
        sent_ns = now_ns()
        try:
            answer = await self._transport.infer(feed, slot, step, self._timeout_s)
            end_ns = now_ns()
            self._rows.extend((feed, due_ns, sent_ns, end_ns, 1))
            self._missed = 0
            if self._checker is not None:
                self._checker.look(str(feed), self._transport.outputs(answer, slot))
        except RequestError as error:
            self._rows.extend((feed, due_ns, sent_ns, now_ns(), 0))
            self._failures += 1
            if self._sequences is not None:
                self._sequences.begin(slot)
            self.error = self.error or error.message
            if error.unavailable:
                await self._look_for_server()
        finally:
            self._free.append(slot)

    async def _look_for_server(self) -> None:
        """Tell a server that refuses from one that is gone; a scheduler's full queue is UNAVAILABLE, too."""
        self._missed += 1
        await asyncio.sleep(0.02)  # a refused connection fails at once: do not spin
        if self._missed >= GONE_AFTER and self.dead is None:
            try:
                await self._transport.live()
                self._missed = 0
            except RequestError as error:
                self.dead = error.message

    async def _drain(self) -> None:
        if self._dispatcher is not None:
            self._dispatcher.cancel()
            self._dispatcher = None
        left = set(self._under_way)
        if left:
            _, left = await asyncio.wait(left, timeout=DRAIN_S)
        for task in left:
            task.cancel()
        if left:
            await asyncio.wait(left)
        if self._sequences is not None:
            await self._end(self._sequences)

    async def _end(self, sequences: SequenceIds) -> None:
        """End the sequences that are under way: a server that is stopped waits for them.

        A slot's id is begun anew and ended with one step.
        """
        steps = ((slot, sequences.of(0, slot, alone=True)) for slot in sequences.begun())
        calls = [self._transport.infer(0, slot, step, DRAIN_S) for slot, step in steps]
        await asyncio.gather(*calls, return_exceptions=True)


def due_times(
    begin_ns: int,
    *,
    rate_per_s: float,
    arrivals: str,
    seed: int,
    index: int,
    count: int,
    gaps_s: Sequence[float] = (),
) -> Iterator[int]:
    """Yield when each request of an open loop is to be sent (ns), for process ``index`` of ``count``.

    Together the processes send equal gaps, a Poisson process (those of the processes add up to one), or recorded gaps:
    stretched to the rate, and from the first again after the last.
    """
    if arrivals == "constant":
        number = index
        while True:
            yield begin_ns + int(number * 1e9 / rate_per_s)
            number += count
    if arrivals == "recorded":
        stretch = len(gaps_s) / sum(gaps_s) * 1e9 / rate_per_s
        moments = itertools.accumulate(gap * stretch for gap in itertools.cycle(gaps_s))
        yield from (begin_ns + int(due) for due in itertools.islice(moments, index, None, count))
    drawn = random.Random(seed * count + index)
    due_ns = float(begin_ns)
    while True:
        due_ns += drawn.expovariate(rate_per_s / count) * 1e9
        yield int(due_ns)
