"""What a configuration would do: the model of the server over the measured curves, in a fraction of a second."""

import contextlib
import functools
import itertools
import math
import sys
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from accel.bench.feeds import rebatch
from accel.bench.goodput import WITHIN, Bisection, Probe, over, search
from accel.core.processes import Worker
from accel.triton import overrides
from accel.triton.overrides import without_schedule
from accel.triton.settings import Settings
from accel.triton.tune.lab import Curve, Goal, Subject, largest_batch
from accel.triton.tune.scheduler import Outcome, QueuePolicy, SimulatedServer, poisson, simulate

REQUESTS, RECORDED = 2500, 10_000
LEAST_PART = 8
"""Configurations that are worth a process of their own: it starts in the time that four take."""
PREDICTING_S = 3600.0
"""Limit of a process: thousands of configurations take it minutes."""


@dataclass(frozen=True, slots=True)
class Asked:
    """A configuration whose greatest load is to be predicted.

    Attributes:
        curve: that of its instances and threads.
        start: where its search begins: requests per second, or clients.
        max_batch / sizes / kinds / queue: as of ``probe``.
    """

    curve: Curve
    settings: Settings
    start: float
    max_batch: int
    sizes: tuple[int, ...]
    kinds: tuple[int, ...]
    queue: QueuePolicy


def asked(subject: Subject, curve: Curve, settings: Settings, goal: Goal) -> Asked:
    """Return what is asked of a configuration of a repository."""
    start = 1 if goal.arrivals is None else capacity(subject, curve, settings) / (1 - answered(settings, goal))
    return Asked(curve, settings, start, **shape(subject, settings))


def predict(goal: Goal, one: Asked) -> Bisection:
    """Search the greatest load that a configuration holds, by simulation alone."""

    def at(level: float) -> Probe:
        sent = {"sizes": one.sizes, "kinds": one.kinds}
        found = probe(one.curve, one.settings, goal, level, max_batch=one.max_batch, queue=one.queue, **sent)
        return found if goal.arrivals is None else sustained(found, one.start)

    return search(at, one.start, whole=goal.arrivals is None)


def sustained(probe: Probe, most: float) -> Probe:
    """Return a probe as broken where its load is more than can be computed, busy all the time.

    A simulation of some thousand requests may end before their queue is as long as a budget of half a second.
    """
    return probe if probe.load <= most else replace(probe, late=probe.requests)


def predict_each(goal: Goal, those: tuple[Asked, ...]) -> tuple[Probe | None, ...]:
    """Return the greatest load that each configuration holds, or None where it holds none."""
    return tuple(predict(goal, one).best for one in those)


def predict_all(goal: Goal, those: tuple[Asked, ...], *, log: Path, processes: int) -> list[Probe | None]:
    """Return the same as ``predict_each``, of so many processes, each of which takes its part; ``log`` is theirs.

    Raises:
        WorkerDied: one of them ended.
    """
    processes = min(processes, len(those) // LEAST_PART)
    if processes < 2:
        return list(predict_each(goal, those))
    found: list[Probe | None] = [None] * len(those)
    with contextlib.ExitStack() as opened:
        workers = [opened.enter_context(Worker(log, threads=1, timeout_s=PREDICTING_S)) for _ in range(processes)]
        with ThreadPoolExecutor(processes) as pool:
            parts = [
                pool.submit(worker.call, predict_each, goal, those[number::processes])
                for number, worker in enumerate(workers)
            ]
            try:
                for number, part in enumerate(parts):
                    found[number::processes] = part.result()
            except BaseException:
                for worker in workers:
                    worker.kill()
                raise
    return found


def shape(subject: Subject, settings: Settings) -> dict[str, Any]:
    """Return what ``probe`` asks of a repository with these settings."""
    queue = policy(subject.config, settings)
    return {"max_batch": subject.max_batch, "sizes": subject.sizes, "kinds": subject.kinds, "queue": queue}


def policy(config: Any, settings: Settings) -> QueuePolicy:
    """Return what the queue of a ``ModelConfig`` refuses with these settings; None is one that says nothing of it.

    All requests that are sent here have the default priority, which may have a policy of its own.

    Source: triton-inference-server/core, src/infer_request.cc, SetPriority; src/scheduler_utils.cc, PriorityQueue.
    """
    if config is None or not settings.batching:
        return QueuePolicy()
    model = type(config)()
    model.CopyFrom(config)
    if settings.fields:
        overrides.apply(settings.fields, model)
    batching = model.dynamic_batching
    found, level = batching.default_queue_policy, batching.default_priority_level
    if batching.priority_levels and level in batching.priority_queue_policy:
        found = batching.priority_queue_policy[level]
    timeout_s = found.default_timeout_microseconds / 1e6
    delays = found.timeout_action == found.DELAY
    return QueuePolicy(found.max_queue_size, timeout_s, delays, found.allow_timeout_override)


def probe(
    curve: Curve,
    settings: Settings,
    goal: Goal,
    level: float,
    *,
    max_batch: int,
    sizes: Sequence[int] = (1,),
    kinds: Sequence[int] = (0,),
    queue: QueuePolicy,
) -> Probe:
    """Simulate one load and hold it against the budget.

    Args:
        level: requests per second, or the clients of a closed loop.
        max_batch / sizes / kinds: as of the ``Subject``.
        queue: what its queue refuses.
    """
    server, hits = simulated(curve, settings, max_batch, queue), answered(settings, goal)
    if goal.arrivals is None:
        found = simulate(server, clients=int(level), requests=REQUESTS, items=sizes, kinds=kinds, hit_rate=hits)
    else:
        requests = max(REQUESTS, min(len(goal.gaps_s), RECORDED))
        found = simulate(server, due(goal, level, requests), items=sizes, kinds=kinds, hit_rate=hits)
    return held_against(found, goal, level)


def answered(settings: Settings, goal: Goal) -> float:
    """Return the share of the requests that the response cache of a configuration answers."""
    return goal.hit_rate or 0.0 if settings.cached else 0.0


def simulated(
    curve: Curve, settings: Settings, max_batch: int, queue: QueuePolicy, *, threads: float = 1.0
) -> SimulatedServer:
    """Return the model of a server over a curve; ``queue`` and ``threads`` as of ``SimulatedServer``."""
    return SimulatedServer(
        settings,
        max_batch,
        functools.cache(curve.service),
        curve.spread,
        max(0.0, curve.overhead_s - curve.front_s),
        queue,
        threads=threads,
        front_s=curve.front_s,
        missed=curve.missed,
        switch=functools.cache(curve.switch),
    )


def held_against(found: Outcome, goal: Goal, level: float) -> Probe:
    """Hold what a simulation found against the budgets."""
    late = int(np.count_nonzero(found.latency_s * 1e3 > goal.budget_ms)) + found.refused
    p50 = p99 = None
    if len(found.latency_s):
        p50, p99 = (float(v) for v in np.percentile(found.latency_s, (50, 99)) * 1e3)
    requests = len(found.latency_s) + found.refused
    beyond = over(found.latency_s * 1e3, requests, goal.limits_ms)
    return Probe(level, found.throughput_per_s, requests, late, p50, p99, over=beyond)


def due(goal: Goal, rate_per_s: float, requests: int) -> np.ndarray:
    """Return when the requests of an open loop are due (s)."""
    if goal.arrivals == "poisson":
        return poisson(rate_per_s, requests)
    gaps = np.asarray(goal.gaps_s or (1.0,))
    return np.cumsum(np.resize(gaps, requests) / gaps.mean() / rate_per_s)  # the rate is that of the whole recording


def capacity(subject: Subject, curve: Curve, settings: Settings) -> float:
    """Return the requests per second that all instances together can compute at most, busy all the time."""
    mean = float(np.mean(subject.sizes))
    most = largest_batch(subject, settings)
    loads = [b for b in curve.batches if b <= most] or [1]
    rates = []
    for items in loads:
        requests = max(1, round(items / mean))
        rates.append(settings.instances * requests / curve.service(items, requests, 0)[-1])
    return max(rates)


class Setup(NamedTuple):
    """What a curve is measured on: all but how batches are formed.

    Attributes:
        fields / variables: as of ``Settings``, without preferred sizes and the delay.
    """

    instances: int
    threads: int | None
    fields: str = ""
    variables: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """Its name in a list of setups."""
        return " ".join([f"{self.instances}x{self.threads}", *self.variables, *self.fields.split()])


def setup(settings: Settings) -> Setup:
    """Return what a configuration's curve is measured on."""
    return Setup(settings.instances, settings.threads, without_schedule(settings.fields), settings.variables)


def setups(backend_threads: bool, cores: int) -> list[tuple[int, int | None]]:
    """Return instances and threads of each that are worth a curve: together the cores, or twice as many.

    Args:
        backend_threads: whether a config can say the threads.
    """
    counts = [1 << i for i in range(cores.bit_length()) if 1 << i <= cores]
    if not backend_threads:
        return [(n, None) for n in counts]
    found = {(n, max(1, cores * over // n)) for n in counts for over in (1, 2)}
    return sorted((n, t) for n, t in found if t <= cores)


def space(subject: Subject, setups: Iterable[tuple[int, int | None]], *, fits: int) -> list[Settings]:
    """Return the configurations of a repository: the one that ships first.

    Args:
        fits: the largest batch up to which every size could be measured.
    """
    found = [subject.default]
    for instances, threads in setups:
        found.append(Settings(instances, threads, batching=False))
        if subject.max_batch > 1:
            sizes = [1 << i for i in range(1, subject.max_batch.bit_length()) if 1 << i < subject.max_batch]
            choices: list[tuple[int, ...]] = [(size,) for size in sizes if size <= fits]
            if fits >= subject.max_batch:
                choices.insert(0, ())
            # a delay lets batches grow to max_batch_size, whatever is preferred
            delays = (0, 500, 2_000, 10_000) if fits >= subject.max_batch else (0,)
            found += [Settings(instances, threads, True, p, d) for p, d in itertools.product(choices, delays)]
    return list(dict.fromkeys(found))


def full(subject: Subject, curves: Sequence[Curve]) -> Subject:
    """Return a repository that is sent requests of so many items that most are computed in a second.

    That is the smallest number within 3 % of the best, over all curves with all instances busy.
    """
    rates: dict[int, float] = {}
    for curve in curves:
        for items, seconds in zip(curve.batches, curve.beside_s, strict=True):
            rates[items] = max(rates.get(items, 0.0), curve.instances * items / seconds)
    size = min(items for items, rate in rates.items() if rate * (1 + WITHIN) >= max(rates.values()))
    if size == 1:
        return subject
    return replace(subject, feeds=tuple(rebatch(subject.feeds[:1], size)), sizes=(size,))


def full_space(subject: Subject, setups: Iterable[tuple[int, int | None]]) -> list[Settings]:
    """Return the configurations for full requests, the one that ships first: there is nothing to merge them with."""
    size, batching = max(subject.sizes), subject.max_batch > 1
    whole = (size,) if size < subject.max_batch else ()
    found = [subject.default, *(Settings(n, threads, batching, whole) for n, threads in setups)]
    return list(dict.fromkeys(found))


def fits(curves: Sequence[Curve]) -> int:
    """Return the largest batch up to which no size failed; a size that was left out has not failed."""
    failed = min((int(b) for curve in curves for b in curve.failed), default=math.inf)
    if math.isinf(failed) and any(curve.cut_ms is not None for curve in curves):
        return sys.maxsize
    return max((b for curve in curves for b in curve.batches if b < failed), default=1)
