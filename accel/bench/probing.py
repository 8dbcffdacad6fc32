"""One load on a real server, held against a latency budget: as short as the answer allows.

Its rows are those of ``bench.load``: a latency counts from the moment a request was meant to be sent. What is due and
not answered in time counts as late, or a server that falls behind would look punctual for as long as it is watched.
"""

import math
from collections.abc import Mapping, Sequence

import numpy as np

from accel.bench import stability
from accel.bench.goodput import SHARE_LATE, Probe, over
from accel.bench.load import FEED, Generator, Load

LEAST_REQUESTS = 300
"""Requests of a probe that may hold: three of them may be late."""
SECONDS, SETTLE_S, LOOKS, LONGEST_LOOK_S = 1.5, 0.3, 6, 2.0
NO_LIMITS: Mapping[str, float] = {}
LIMITS = 8
"""A probe lasts at least so many times the budget: a server that falls behind must have the time to show it."""


def probe(
    generator: Generator,
    load: Load,
    *,
    limit_ms: float,
    limits_ms: Mapping[str, float] = NO_LIMITS,
    sizes: Sequence[int],
    seconds: float = SECONDS,
    least: int = LEAST_REQUESTS,
) -> Probe:
    """Put one load on the server that ``generator`` has opened, until it has held the budget or must have broken it.

    Args:
        limit_ms: the budget of 99 % of the requests; ``limits_ms``: those of other percentiles (``p50``).
        sizes: batch items of each feed.
        seconds: how long it lasts at least; ``LIMITS`` budgets and ``least`` requests may take longer.

    Raises:
        StageError: the server went away.
    """
    rate = load.rate_per_s
    wanted_s = max(seconds, LIMITS * limit_ms / 1e3, least / rate if rate else 0.0)
    generator.start(load)
    rows, begin_ns = [], 0
    try:
        generator.window(SETTLE_S, least=1)
        while True:
            window = generator.window(min(LONGEST_LOOK_S, wanted_s / LOOKS), least=0)
            begin_ns = begin_ns or window.begin_ns
            rows.append(window)
            elapsed_s = (window.end_ns - begin_ns) / 1e9
            requests = sum(len(w.rows) for w in rows)
            latency = np.concatenate([w.latency_ms for w in rows])
            late = int(np.count_nonzero(latency > limit_ms)) + requests - len(latency)
            if rate:
                late += (unanswered := missing(rate, elapsed_s, limit_ms, requests))
                requests += unanswered
            at_end = max(least, requests, requests * wanted_s / elapsed_s)
            if late > SHARE_LATE * at_end or (elapsed_s >= wanted_s * 0.99 and requests >= least):
                break
    finally:
        generator.stop()
    failures, error = generator.failures, generator.error
    settle(generator)
    answered = sum(np.asarray(sizes)[w.answered[:, FEED]].sum() for w in rows)
    return Probe(
        float(rate or load.concurrency or 0),
        float(answered) / elapsed_s,
        requests,
        late,
        stability.percentile(latency, 50),
        stability.percentile(latency, 99),
        failures,
        error,
        over=over(latency, requests, limits_ms),
    )


def missing(rate_per_s: float, elapsed_s: float, limit_ms: float, ended: int) -> int:
    """Return how many requests of an open loop were due longer than the budget ago and have not ended, for certain.

    Of ``rate × time`` three standard deviations of a Poisson process may not have come.
    """
    due = rate_per_s * max(0.0, elapsed_s - limit_ms / 1e3)
    return max(0, math.floor(due - 3 * math.sqrt(due) - ended))


def settle(generator: Generator) -> None:
    """Wait until the server has worked off what an overload left: a request behind it all is answered."""
    generator.start(Load(concurrency=1))
    try:
        generator.window(0.0, least=1)
    finally:
        generator.stop()
