"""What a Triton server does with requests, as a model of discrete events: queue, dynamic batcher, instances.

The rules are those of the server's source (triton-inference-server/core, 2026-06; files below src/):

- Without dynamic batching each request is a payload of its own in one queue for all instances
  (dynamic_batch_scheduler.cc, ``Enqueue``; rate_limiter.cc, ``EnqueuePayload``, ``DequeuePayload``).
- With it, a batch is formed when an instance waits for work (``PayloadSlotAvailable``, ``GetDynamicBatch``): in order,
  until the next request would exceed ``max_batch_size`` or has another shape. The largest preferred size that was
  reached is sent; a batch that reaches none waits until its oldest request is as old as the delay. Once the delay has
  passed, preferred sizes no longer count. Without a delay what waits is sent.
- Without preferred sizes the only one is ``max_batch_size`` (model_config_utils.cc, ``NormalizeModelConfig``).
- ``max_queue_size`` refuses a request that arrives; a timeout refuses one when a batch is formed
  (scheduler_utils.cc, ``PolicyQueue::Enqueue``, ``ApplyPolicy``).

A model without any queue policy fetches payloads ahead and lets them grow; with one preferred size that makes the same
batches. What is not modelled: priorities, the rate limiter, the response cache, sequences.

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

WARM = 0.1
"""The first tenth of the requests fills the queue and counts nowhere."""

Service = Callable[[int, int, int], Sequence[float]]
"""Takes a batch's items, its requests and the kind of their shape; returns the seconds that an instance is held by it
while 1, 2, … instances are busy."""


@dataclass(frozen=True, slots=True)
class SimulatedServer:
    """One model on one server.

    Attributes:
        settings: how it is scheduled.
        max_batch: ``max_batch_size``; 0 where it cannot batch.
        service: how long batches take.
        spread: durations of equal batches by ``service``, evenly spaced among all: each batch draws one.
        overhead_s: what a client sees beyond queue and computation.
        queue: most requests that may wait; 0 for no limit.
        timeout_s: how long one may wait.
        same_shape: only requests of one shape are merged.
    """

    settings: Settings
    max_batch: int
    service: Service
    spread: Sequence[float] = (1.0,)
    overhead_s: float = 0.0
    queue: int = 0
    timeout_s: float = math.inf
    same_shape: bool = True


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


def simulate(
    server: SimulatedServer,
    due_s: Sequence[float] | np.ndarray = (),
    *,
    clients: int = 0,
    requests: int = 0,
    items: Sequence[int] = (1,),
    kinds: Sequence[int] = (0,),
    seed: int = 0,
) -> Outcome:
    """Run requests through the server.

    Args:
        due_s: open loop: when each request is due, ascending.
        clients / requests: closed loop: so many clients, each of which sends when it has its answer, so many requests.
        items / kinds: batch items of each feed and the kind of its shape; each request draws a feed.

    Raises:
        ValueError: neither loop is given.
    """
    total = len(due_s) or requests
    if not total:
        raise ValueError("expected due times or a number of requests")
    generator = np.random.default_rng(seed)
    drawn = generator.integers(0, len(items), total)
    size, kind = np.asarray(items)[drawn].tolist(), np.resize(kinds, len(items))[drawn].tolist()
    share = np.linspace(0.0, 1.0, len(server.spread))
    noise = np.interp(generator.random(total), share, np.sort(server.spread)).tolist()
    form = _batcher(server, size, kind)
    arriving = [(due, n) for n, due in enumerate(due_s)] or [(i * 1e-6, i) for i in range(min(clients, total))]
    sent, batches, merged = len(arriving), 0, 0
    due = [at for at, _ in arriving] + [0.0] * (total - sent)
    ended = [math.nan] * total
    waiting: deque[int] = deque()
    busy: list[list] = []  # [share left, seconds by busy instances, its requests]
    now, limit = 0.0, server.settings.instances

    def again(at: float) -> None:
        """Let the client that has its answer send its next request."""
        nonlocal sent
        if clients and sent < total:
            due[sent] = at
            heapq.heappush(arriving, (at, sent))
            sent += 1

    while arriving or busy or waiting:
        wake = math.inf
        while waiting and len(busy) < limit:
            while waiting and now - due[waiting[0]] > server.timeout_s:
                waiting.popleft()
                again(now)
            if not waiting:
                break
            count, wake = form(waiting, now - due[waiting[0]])
            if not count:
                wake += now
                break
            taken = [waiting.popleft() for _ in range(count)]
            total_items = sum(size[n] for n in taken)
            batches, merged = batches + 1, merged + total_items
            factor = noise[taken[0]]
            busy.append([1.0, [factor * s for s in server.service(total_items, count, kind[taken[0]])], taken])
        level = len(busy) - 1
        soonest = min(((b[0] * b[1][level], i) for i, b in enumerate(busy)), default=(math.inf, -1))
        then = min(now + soonest[0], wake, arriving[0][0] if arriving else math.inf)
        for batch in busy:
            batch[0] -= (then - now) / batch[1][level]
        if then == now + soonest[0] and soonest[1] >= 0:
            for n in busy.pop(soonest[1])[2]:
                ended[n] = then + server.overhead_s
                again(ended[n])
        elif then < wake:
            _, n = heapq.heappop(arriving)
            if server.queue and server.settings.batching and len(waiting) >= server.queue:
                again(then + server.overhead_s)
            else:
                waiting.append(n)
        now = then
    first = int(WARM * total)
    begins, ends = np.array(due[first:]), np.array(ended[first:])
    answered = ~np.isnan(ends)
    span = float(np.nanmax(ends) - begins[0]) if answered.any() else 1.0
    done = float(np.asarray(size[first:])[answered].sum())
    latency = (ends - begins)[answered]
    return Outcome(latency, int((~answered).sum()), done / max(span, 1e-9), merged / max(1, batches))


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
