"""One load on a real server, held against a latency budget: as short as the answer allows.

Its rows are those of ``bench.load``: a latency counts from the moment a request was meant to be sent. What is due and
not answered in time counts as late, or a server that falls behind would look punctual for as long as it is watched.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from accel.bench import stability
from accel.bench.goodput import SHARE_LATE, Probe, over, slow
from accel.bench.load import FEED, Generator, Load, Window

LEAST_REQUESTS = 300
"""Requests of a probe that may hold: three of them may be late."""
SECONDS, SETTLE_S, LOOKS, LONGEST_LOOK_S = 1.5, 0.3, 6, 2.0
LIMITS = 8
"""A probe lasts at least so many times the budget: a server that falls behind must have the time to show it."""


@dataclass(frozen=True, slots=True)
class Part:
    """One model's part of a load.

    Attributes:
        generator: which has opened the model.
        limit_ms: the budget of 99 % of its requests, infinite where there is none; ``limits_ms``: those of other
            percentiles (``p50``).
        sizes: batch items of each feed.
        least: so many requests must have ended.
    """

    generator: Generator
    load: Load
    limit_ms: float
    sizes: Sequence[int]
    limits_ms: Mapping[str, float] = field(default_factory=dict)
    least: int = LEAST_REQUESTS

    @property
    def longest_s(self) -> float:
        """How long it lasts at least to show what it does."""
        rate = self.load.rate_per_s
        budgets_s = LIMITS * self.limit_ms / 1e3 if math.isfinite(self.limit_ms) else 0.0
        return max(budgets_s, self.least / rate if rate else 0.0)


def together(parts: Sequence[Part], *, seconds: float = SECONDS) -> list[Probe]:
    """Put loads on a server at once, one for each model, until all have held their budget or one must have broken it.

    Args:
        seconds: how long they last at least; ``LIMITS`` budgets and ``least`` requests of a part may take longer.

    Raises:
        StageError: the server went away.
    """
    wanted_s = max(seconds, *(part.longest_s for part in parts))
    seen = [_LoadSoFar(part, wanted_s) for part in parts]
    try:
        for one in seen:
            one.part.generator.start(one.part.load)
        first = max(seen, key=lambda one: one.part.load.rate_per_s or 0.0)  # of a rare one the first may be far off
        for one in seen:
            one.part.generator.window(SETTLE_S, least=int(one is first))
        while not (any(one.broken for one in seen) or all(one.enough for one in seen)):
            for one in seen:
                one.look(min(LONGEST_LOOK_S, wanted_s / LOOKS))
    finally:
        for part in parts:
            part.generator.stop()
    ended = [(part.generator.failures, part.generator.error) for part in parts]
    for part in parts:
        settle(part.generator)
    return [one.probe(*how) for one, how in zip(seen, ended, strict=True)]


class _LoadSoFar:
    """What a load has done so far.

    Attributes:
        broken: whether it must miss its budget.
        enough: whether it lasted long enough to say that it held.
    """

    def __init__(self, part: Part, wanted_s: float) -> None:
        self.part, self._wanted_s = part, wanted_s
        self._rows: list[Window] = []
        self._latency = np.empty(0)
        self._elapsed_s, self._requests, self._late = 0.0, 0, 0
        self.broken = self.enough = False

    def look(self, seconds: float) -> None:
        """Look at what ended in the next seconds."""
        part, rate = self.part, self.part.load.rate_per_s
        self._rows.append(window := part.generator.window(seconds, least=0))
        self._elapsed_s = elapsed_s = (window.end_ns - self._rows[0].begin_ns) / 1e9
        requests = sum(len(w.rows) for w in self._rows)
        self._latency = np.concatenate([w.latency_ms for w in self._rows])
        late = int(np.count_nonzero(self._latency > part.limit_ms)) + requests - len(self._latency)
        if rate:
            began_s = (self._rows[0].begin_ns - part.generator.begun_ns) / 1e9
            late += (unanswered := missing(part.load, began_s, elapsed_s, part.limit_ms, requests))
            requests += unanswered
        self._requests, self._late = requests, late
        at_end = max(part.least, requests, requests * self._wanted_s / elapsed_s)
        self.broken = late > SHARE_LATE * at_end
        self.enough = elapsed_s >= self._wanted_s * 0.99 and requests >= part.least

    def probe(self, failures: int, error: str | None) -> Probe:
        """Return what it did."""
        part, load = self.part, self.part.load
        answered = sum(np.asarray(part.sizes)[w.answered[:, FEED]].sum() for w in self._rows)
        return Probe(
            float(load.rate_per_s or load.concurrency or 0),
            float(answered) / self._elapsed_s,
            self._requests,
            self._late,
            stability.percentile(self._latency, 50),
            stability.percentile(self._latency, 99),
            failures,
            error,
            over=over(self._latency, self._requests, part.limits_ms),
            slow=slow(self._latency, self._requests, part.limits_ms),
        )


def missing(load: Load, began_s: float, elapsed_s: float, limit_ms: float, ended: int) -> int:
    """Return how many requests of an open loop were due longer than the budget ago and have not ended, for certain.

    Of ``rate × time`` three standard deviations of a Poisson process may not have come. What a recording or equal gaps
    send is known.

    Args:
        began_s: from the first moment of the load until it was watched.
    """
    watched_s = max(0.0, elapsed_s - limit_ms / 1e3)
    if (by_end := load.due(began_s + watched_s)) is not None:
        return max(0, by_end - (load.due(began_s) or 0) - ended)
    due = (load.rate_per_s or 0.0) * watched_s
    return max(0, math.floor(due - 3 * math.sqrt(due) - ended))


def settle(generator: Generator) -> None:
    """Wait until the server has worked off what an overload left: a request behind it all is computed."""
    generator.start(Load(concurrency=1))
    try:
        generator.window(0.0, least=generator.one_computed)
    finally:
        generator.stop()
