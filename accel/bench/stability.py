"""The statistics of a measured point: percentiles, bootstrap intervals, stability, ratios between variants.

Everything resamples whole rounds, never single calls: calls within a round share the machine's mood and are not
independent, rounds are what was interleaved. Source: Kalibera and Jones, "Rigorous Benchmarking in Reasonable Time",
ISMM 2013 (resample at the highest level that repeats).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypedDict

import numpy as np

RESAMPLES = 2000
CONFIDENCE = 0.95
BEYOND = 5
"""A percentile needs this many samples beyond it; with fewer it is the accident of single calls and reported null."""

P99_CALLS = 600
"""Calls of a point on which a p99 is demanded: six beyond the percentile, one more than it needs."""
STABLE_SPREAD = 0.10
"""A point is stable while the middle half of its rounds lies within 10 % of their median (perf_analyzer's figure)."""


class LatencyFigures(TypedDict):
    """The fields of a ``Measurement`` that come from its latencies alone."""

    p50_ms: float | None
    p90_ms: float | None
    p95_ms: float | None
    p99_ms: float | None
    mean_ms: float
    p50_ci_ms: tuple[float, float]
    p95_ci_ms: tuple[float, float] | None
    p99_ci_ms: tuple[float, float] | None
    samples: int


def latency_figures(pooled_ms: np.ndarray, parts_ms: Sequence[np.ndarray]) -> LatencyFigures:
    """Reduce the latencies of a point to their figures.

    Args:
        pooled_ms: all of them.
        parts_ms: the same in the parts that the intervals resample: rounds, or slices of windows.
    """
    p50, p90, p95, p99 = (percentile(pooled_ms, q) for q in (50, 90, 95, 99))
    low, high = _bounds(_resampled(parts_ms, lambda v: np.percentile(v, (50, 95, 99))))
    ci50, ci95, ci99 = ((float(a), float(b)) for a, b in zip(low, high, strict=True))
    return {
        "p50_ms": p50,
        "p90_ms": p90,
        "p95_ms": p95,
        "p99_ms": p99,
        "mean_ms": float(pooled_ms.mean()),
        "p50_ci_ms": ci50,
        "p95_ci_ms": ci95 if p95 is not None else None,
        "p99_ci_ms": ci99 if p99 is not None else None,
        "samples": len(pooled_ms),
    }


def percentile(samples: Sequence[float] | np.ndarray, q: float) -> float | None:
    """Return the q-th percentile (0 to 100), or None where fewer than five samples lie beyond it.

    Formula: linear interpolation between order statistics, as ``numpy.percentile`` does by default.
    """
    return float(np.percentile(samples, q)) if len(samples) * (100 - q) / 100 >= BEYOND else None


def p99_calls(rounds: int) -> int:
    """Return how many calls a round must hold for a p99 over all rounds."""
    return -(-P99_CALLS // rounds)


def interval(rounds: Sequence[np.ndarray], statistic: Callable[[np.ndarray], float]) -> tuple[float, float]:
    """Return the 95 % bootstrap interval of a statistic of all samples, resampling whole rounds.

    Args:
        rounds: samples of each round.
        statistic: takes the pooled samples of one resampling.
    """
    low, high = _bounds(_resampled(rounds, statistic))
    return float(low), float(high)


def ratio_interval(a: Sequence[float], b: Sequence[float]) -> tuple[float, float, float]:
    """Return the ratio a / b and its 95 % interval, from paired rounds of one interleaved session.

    Args:
        a / b: one figure of each round (a time per call), same length, same order.

    Formula: the median over rounds of a_r / b_r; the interval from resampling the pairs.

    Raises:
        ValueError: the lengths differ, or there is no round.
    """
    if len(a) != len(b) or not a:
        raise ValueError(f"expected as many rounds on both sides, found {len(a)} and {len(b)}")
    ratios = np.asarray(a, dtype=float) / np.asarray(b, dtype=float)
    generator = np.random.default_rng(0)
    chosen = generator.integers(0, len(ratios), (RESAMPLES, len(ratios)))
    low, high = _bounds(np.median(ratios[chosen], axis=1))
    return float(np.median(ratios)), float(low), float(high)


def stable(per_round: Sequence[float]) -> bool:
    """Say whether a point's rounds agree: the middle half lies within 10 % of the median."""
    if len(per_round) < 2:
        return False
    low, middle, high = np.percentile(per_round, [25, 50, 75])
    return bool(high - low <= STABLE_SPREAD * middle)


def _resampled(rounds: Sequence[np.ndarray], statistic: Callable[[np.ndarray], Any]) -> np.ndarray:
    generator = np.random.default_rng(0)
    found = []
    for _ in range(RESAMPLES // 4 if sum(map(len, rounds)) > 20_000 else RESAMPLES):
        chosen = generator.integers(0, len(rounds), len(rounds))
        found.append(statistic(np.concatenate([rounds[i] for i in chosen])))
    return np.array(found)


def _bounds(values: np.ndarray) -> np.ndarray:
    tail = 100 * (1 - CONFIDENCE) / 2
    return np.percentile(values, [tail, 100 - tail], axis=0)
