"""What a Triton server does with requests, as a model of discrete events: queue, dynamic batcher, instances.

The rules are those of the server's source (triton-inference-server/core, 2026-06; files below src/):

- Without dynamic batching each request is a payload of its own in one queue for all instances
  (dynamic_batch_scheduler.cc, ``Enqueue``; rate_limiter.cc, ``EnqueuePayload``, ``DequeuePayload``).
- With it, a batch is formed when an instance waits for work (``PayloadSlotAvailable``, ``GetDynamicBatch``): in order,
  until the next request would exceed ``max_batch_size`` or has another shape. The largest preferred size that was
  reached is sent; a batch that reaches none waits until its oldest request is as old as the delay. Once the delay has
  passed, preferred sizes no longer count. Without a delay what waits is sent.
- Without preferred sizes the only one is ``max_batch_size`` (model_config_utils.cc, ``NormalizeModelConfig``).
- ``max_queue_size`` refuses a request that arrives; a timeout refuses one when a batch is formed, or puts it behind all
  that are in time (scheduler_utils.cc, ``PolicyQueue::Enqueue``, ``ApplyPolicy``). Both are part of dynamic batching.

Where a queue has a limit, the end of a batch wakes the batcher before the instance counts as free; if the batcher looks
in between, it sleeps until the next request comes, or for ``SLEEP_S`` (dynamic_batch_scheduler.cc, ``BatcherThread``;
rate_limiter.cc, ``PayloadSlotAvailable``).

A model without any queue policy fetches payloads ahead and lets them grow; with one preferred size that makes the same
batches. What the response cache has is answered where a request would join the queue (dynamic_batch_scheduler.cc,
``Enqueue``, ``CacheLookUp``). What is not modelled: requests of several priorities, the rate limiter, sequences.

A batch proceeds at the speed of the instances that are busy beside it at the time, so that one which starts alone slows
down when a second begins (``Service``).
"""

import heapq
import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from accel.triton.settings import Settings

SLEEP_S = 0.5
WARM = 0.1
"""The first tenth of the requests fills the queue and counts nowhere."""
LEFT, TAKES, SECONDS, TAKEN, MADE = range(5)
"""Of a batch: the share left of it, what the whole takes at the speed of now, what it takes while 1, 2, … instances are
busy, its requests, its size and shape."""

Service = Callable[[int, int, int], Sequence[float]]
"""Takes a batch's items, its requests and the kind of their shape; returns the seconds that an instance is held by it
while 1, 2, … instances are busy."""


@dataclass(frozen=True, slots=True)
class QueuePolicy:
    """What a queue refuses, where requests are merged.

    Attributes:
        size: most requests that may wait; 0 for no limit.
        timeout_s: how long one may wait; 0 for no limit.
        delays: one that waited longer is not refused: it comes after all that did not.
        overrides: a request may name a timeout of its own; none that is sent here does.
    """

    size: int = 0
    timeout_s: float = 0.0
    delays: bool = False
    overrides: bool = False

    @property
    def limited(self) -> bool:
        """Whether it may refuse a request."""
        return bool(self.size or self.timeout_s or self.overrides)


@dataclass(frozen=True, slots=True)
class SimulatedServer:
    """One model on one server.

    Attributes:
        settings: how it is scheduled.
        max_batch: ``max_batch_size``; 0 where it cannot batch.
        service: how long batches take.
        spread: durations of equal batches by ``service``, evenly spaced among all: each batch draws one.
        overhead_s: what a client sees beyond queue and computation.
        queue: what the queue refuses.
        same_shape: only requests of one shape are merged.
        threads: CPU threads of an instance; of models that share a server.
        front_s: what each request takes of the one way in, before it joins the queue.
        missed: share of the batches whose end does not wake the batcher, where the queue has a limit.
        switch: takes a batch's items; seconds more where the one before it on its instance had another size or shape.
    """

    settings: Settings
    max_batch: int
    service: Service
    spread: Sequence[float] = (1.0,)
    overhead_s: float = 0.0
    queue: QueuePolicy = QueuePolicy()
    same_shape: bool = True
    threads: float = 1.0
    front_s: float = 0.0
    missed: float = 0.0
    switch: Callable[[int], float] = lambda items: 0.0


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of the requests.

    Attributes:
        latency_s: of each answered request that counts, from the moment it was due.
        refused: how many that count were refused.
        throughput_per_s: batch items answered per second.
        batch: mean items of a batch.
    """

    latency_s: np.ndarray
    refused: int
    throughput_per_s: float
    batch: float


@dataclass(frozen=True, slots=True)
class Requests:
    """What is sent to one model.

    Attributes:
        due_s: open loop: when each request is due, ascending.
        clients / requests: closed loop: so many clients, each of which sends when it has its answer, so many requests.
        items / kinds: batch items of each feed and the kind of its shape; each request draws a feed.
        hit_rate: share of the requests that the server has an answer to.
    """

    due_s: Sequence[float] | np.ndarray = ()
    clients: int = 0
    requests: int = 0
    items: Sequence[int] = (1,)
    kinds: Sequence[int] = (0,)
    hit_rate: float = 0.0


def simulate(
    server: SimulatedServer,
    due_s: Sequence[float] | np.ndarray = (),
    *,
    clients: int = 0,
    requests: int = 0,
    items: Sequence[int] = (1,),
    kinds: Sequence[int] = (0,),
    hit_rate: float = 0.0,
    seed: int = 0,
) -> Outcome:
    """Run requests through the server; ``due_s`` to ``hit_rate`` as of ``Requests``.

    Raises:
        ValueError: neither loop is given.
    """
    (found,) = simulate_together([(server, Requests(due_s, clients, requests, items, kinds, hit_rate))], seed=seed)
    return found


def simulate_together(
    models: Sequence[tuple[SimulatedServer, Requests]], *, cores: float = math.inf, seed: int = 0
) -> list[Outcome]:
    """Run the requests of models that share a server through their queues; each has instances of its own.

    Instances of one model slow each other down as its curve says. Those of all models together slow each other down by
    the threads that they want beyond the cores there are, as far as that is not in the curve.

    Args:
        cores: of the machine.

    Raises:
        ValueError: a model has neither loop.
    """
    lanes = [_Lane(server, sent, seed + number) for number, (server, sent) in enumerate(models)]
    shared = len(lanes) > 1
    now, slower = 0.0, 1.0
    while True:
        wake = comes = soonest = math.inf
        first = coming = lanes[0]
        index, working = -1, False
        for lane in lanes:
            working = working or bool(lane.arriving or lane.busy or lane.waiting or lane.delayed)
            wake = min(wake, lane.begin(now))
        if not working:
            break
        wanted = sum([lane.threads for lane in lanes]) if shared else 0.0
        for lane in lanes:
            if shared:
                slower = max(1.0, wanted / cores) / max(1.0, lane.threads / cores)
            level = len(lane.busy) - 1
            for place, batch in enumerate(lane.busy):
                batch[TAKES] = batch[SECONDS][level] * slower
                if (left := batch[LEFT] * batch[TAKES]) < soonest:
                    soonest, first, index = left, lane, place
            if lane.arriving and lane.arriving[0][0] < comes:
                comes, coming = lane.arriving[0][0], lane
        then = min(now + soonest, wake, comes)
        for lane in lanes:
            for batch in lane.busy:
                batch[LEFT] -= (then - now) / batch[TAKES]
        if then == now + soonest and index >= 0:
            first.end(index, then)
        elif then < wake and comes < math.inf:
            coming.arrive(then)
        now = then
    return [lane.outcome() for lane in lanes]


class _Lane:
    """One model: what is still to come, what waits, and what its instances are busy with."""

    def __init__(self, server: SimulatedServer, sent: Requests, seed: int) -> None:
        total = len(sent.due_s) or sent.requests
        if not total:
            raise ValueError("expected due times or a number of requests")
        generator = np.random.default_rng(seed)
        drawn = generator.integers(0, len(sent.items), total)
        self._size = np.asarray(sent.items)[drawn].tolist()
        self._kind = np.resize(sent.kinds, len(sent.items))[drawn].tolist()
        share = np.linspace(0.0, 1.0, len(server.spread))
        self._noise = np.interp(generator.random(total), share, np.sort(server.spread)).tolist()
        missed = server.missed if server.queue.limited and server.settings.batching else 0.0
        self._misses = (generator.random(total) < missed).tolist()
        self._asleep_until = -math.inf
        self._known = (generator.random(total) < sent.hit_rate).tolist()
        self._form = _batcher(server, self._size, self._kind)
        self._server, self._clients, self._total = server, sent.clients, total
        begin = list(sent.due_s) or [i * 1e-6 for i in range(min(sent.clients, total))]
        self._front_s, self._front_free = server.front_s, -math.inf
        self.arriving = [(self._in(due), n) for n, due in enumerate(begin)]
        self._sent, self._batches, self._merged = len(begin), 0, 0
        self._due = [*begin, *[0.0] * (total - self._sent)]
        self._ended = [math.nan] * total
        self._queue = server.queue if server.settings.batching else QueuePolicy()
        self.waiting: deque[int] = deque()
        self.delayed: deque[int] = deque()  # they waited too long, and come after those
        self.busy: list[list] = []  # LEFT to MADE of each batch
        self._idle: list[tuple[int, int] | None] = [None] * server.settings.instances  # what each had last
        self._each = server.threads

    @property
    def threads(self) -> float:
        """CPU threads that its busy instances want."""
        return len(self.busy) * self._each

    def _again(self, at: float) -> None:
        """Let the client that has its answer send its next request."""
        if self._clients and self._sent < self._total:
            self._due[self._sent] = at
            heapq.heappush(self.arriving, (self._in(at), self._sent))
            self._sent += 1

    def _in(self, at: float) -> float:
        """Return when a request that is sent at a time reaches the queue: one after another they come in."""
        self._front_free = max(self._front_free, at) + self._front_s
        return self._front_free

    def begin(self, now: float) -> float:
        """Give waiting requests to free instances; return when a batch that waits for more is to be looked at again."""
        server, waiting, delayed, due = self._server, self.waiting, self.delayed, self._due
        if now < self._asleep_until:
            return self._asleep_until
        while (waiting or delayed) and len(self.busy) < server.settings.instances:
            self._expire(now)
            line = deque([*waiting, *delayed]) if delayed else waiting
            if not line:
                break
            count, wait = self._form(line, now - due[line[0]])
            if not count:
                return now + wait
            taken = [(waiting or delayed).popleft() for _ in range(count)]
            items = sum(self._size[n] for n in taken)
            self._batches, self._merged = self._batches + 1, self._merged + items
            factor, made = self._noise[taken[0]], (items, self._kind[taken[0]])
            more_s = server.switch(items) if self._idle.pop() not in (None, made) else 0.0
            seconds = [factor * s + more_s for s in server.service(items, count, made[1])]
            self.busy.append([1.0, math.inf, seconds, taken, made])
        return math.inf

    def _expire(self, now: float) -> None:
        """Refuse what has waited too long, or put it behind all else."""
        queue, waiting = self._queue, self.waiting
        while waiting and queue.timeout_s and now - self._due[waiting[0]] > queue.timeout_s:
            late = waiting.popleft()
            if queue.delays:
                self.delayed.append(late)
            else:
                self._again(now)

    def end(self, place: int, now: float) -> None:
        """Answer the requests of a batch."""
        batch = self.busy.pop(place)
        self._asleep_until = now + SLEEP_S if self._misses[batch[TAKEN][0]] else -math.inf
        self._idle.append(batch[MADE])
        for n in batch[TAKEN]:
            self._ended[n] = now + self._server.overhead_s
            self._again(self._ended[n])

    def arrive(self, now: float) -> None:
        """Take the next request in, or refuse it."""
        _, n = heapq.heappop(self.arriving)
        self._asleep_until = -math.inf
        if self._known[n]:
            self._ended[n] = now + self._server.overhead_s
            self._again(self._ended[n])
        elif self._queue.size and len(self.waiting) + len(self.delayed) >= self._queue.size:
            self._again(now + self._server.overhead_s)
        else:
            self.waiting.append(n)

    def outcome(self) -> Outcome:
        """Say what became of its requests."""
        first = int(WARM * self._total)
        begins, ends = np.array(self._due[first:]), np.array(self._ended[first:])
        answered = ~np.isnan(ends)
        span = float(np.nanmax(ends) - begins[0]) if answered.any() else 1.0
        done = float(np.asarray(self._size[first:])[answered].sum())
        latency = (ends - begins)[answered]
        refused = int((~answered).sum())
        return Outcome(latency, refused, done / max(span, 1e-9), self._merged / max(1, self._batches))


def _batcher(
    server: SimulatedServer, size: Sequence[int], kind: Sequence[int]
) -> Callable[[deque[int], float], tuple[int, float]]:
    """Return what forms a batch from the waiting requests: how many of them, or 0 and the seconds to wait for more."""
    settings, most = server.settings, server.max_batch
    if not settings.batching or most < 1:
        return lambda waiting, age: (1, 0.0)
    preferred = frozenset(settings.preferred) or frozenset((most,))
    largest, delay_s = max(preferred), settings.delay_us / 1e6

    def form(waiting: deque[int], age: float) -> tuple[int, float]:
        pending = count = best = 0
        send = False
        for n in waiting:
            if count:
                if pending + size[n] > largest and not best:
                    best = count
                if pending + size[n] > most or (server.same_shape and kind[n] != kind[waiting[0]]):
                    send = True
                    break
            pending, count = pending + size[n], count + 1
            if pending in preferred:
                best = count
        over = delay_s > 0 and age >= delay_s - 1e-9
        if best and not over:
            return best, 0.0
        if send or over or delay_s == 0 or pending >= largest:
            return count, 0.0
        return 0, delay_s - age

    return form


def poisson(rate_per_s: float, requests: int, *, seed: int = 0) -> np.ndarray:
    """Return when the requests of a Poisson process are due (s)."""
    return np.cumsum(np.random.default_rng(seed).exponential(1 / rate_per_s, requests))
