"""The statistics of a measured point: percentiles, bootstrap intervals, stability, ratios between variants.

Rounds are what is resampled and compared, never single calls: calls within a round share the machine's mood and are
not independent, rounds are what was interleaved. Source: Kalibera and Jones, "Rigorous Benchmarking in Reasonable
Time", ISMM 2013 (resample at the highest level that repeats).
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

RESAMPLES = 2000
CONFIDENCE = 0.95
BEYOND = 5
"""A percentile needs this many samples beyond it; with fewer it is the accident of single calls and reported null."""
TAIL_CALLS = 100 * BEYOND
"""Calls that a p99 takes."""

P99_CALLS = 600
"""Calls of a point on which a p99 is demanded: six beyond the percentile, one more than it needs."""
STABLE_SPREAD = 0.10
"""A point is stable while the middle half of its rounds lies within 10 % of their median (perf_analyzer's figure)."""


Ratio = tuple[float, float, float]
"""A ratio, and the lower and upper end of its interval."""
LOOK_RISK = 0.01
TRIM = 0.2
MOST_ALIKE = 0.8
WIDEST = math.log(1e6)
"""Half the widest interval of a logarithm: two rounds say next to nothing, and JSON knows no infinity."""


def latency_figures(pooled_ms: np.ndarray, parts_ms: Sequence[np.ndarray]) -> dict[str, Any]:
    """Reduce the latencies of a point to the fields of its ``Measurement`` that come from them alone.

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


def ratio_interval(a: Sequence[float], b: Sequence[float]) -> Ratio:
    """Return the ratio a / b and its 99 % interval, from paired rounds of one interleaved session.

    A session looks at its ratios again and again, and ends by what it sees: at 99 % each, a dozen looks together miss
    in 5 of 100 sessions. Source: Pocock, "Group sequential methods in the design and analysis of clinical trials",
    Biometrika 64, 1977, table 1.

    Args:
        a / b: one figure of each round (a time per call) in the order of the rounds. What left the session early has
            fewer; the first rounds of both are pairs.

    Formula: the trimmed mean of log(a_r / b_r), a fifth of the rounds left out at either end, with Student's interval
    from the winsorized variance (Yuen, "The two-sample trimmed t for unequal population variances", Biometrika 61,
    1974). Where rounds resemble the one before, the variance of their mean is larger by (1 + r) / (1 - r), r the
    lag-1 autocorrelation of the winsorized series; taken one standard error, 1 / √n, above its estimate, which is
    1 / n too low.

    Raises:
        ValueError: there are fewer than two pairs.
    """
    from scipy.special import stdtrit  # Student's quantile; scipy.stats takes five times as long to import

    n = min(len(a), len(b))
    if n < 2:
        raise ValueError(f"expected at least two rounds on both sides, found {len(a)} and {len(b)}")
    logs = np.log(np.asarray(a[:n], dtype=float) / np.asarray(b[:n], dtype=float))
    cut = int(TRIM * n)
    ordered = np.sort(logs)
    middle = float(np.mean(ordered[cut : n - cut]))
    kept = np.clip(logs, ordered[cut], ordered[n - 1 - cut])
    rest = kept - kept.mean()
    power = float(rest @ rest)
    if power <= 1e-24 * n:  # the rounds agree to the last bit
        return math.exp(middle), math.exp(middle), math.exp(middle)
    like_before = max(0.0, float(rest[1:] @ rest[:-1]) / power + 1 / n + 1 / math.sqrt(n))
    alike = min(like_before, MOST_ALIKE)
    count = n - 2 * cut
    error = math.sqrt(power / (n - 1) * n * (1 + alike) / (1 - alike)) / count
    half = min(WIDEST, float(stdtrit(count - 1, 1 - LOOK_RISK / 2)) * error)
    return math.exp(middle), math.exp(middle - half), math.exp(middle + half)


def stable(per_round: Sequence[float]) -> bool:
    """Say whether a point's rounds agree: the middle half lies within 10 % of the median."""
    if len(per_round) < 2:
        return False
    low, middle, high = np.percentile(per_round, [25, 50, 75])
    return bool(high - low <= STABLE_SPREAD * middle)


def _resampled(rounds: Sequence[np.ndarray], statistic: Callable[[np.ndarray], Any]) -> np.ndarray:
    count = RESAMPLES // 4 if sum(map(len, rounds)) > 20_000 else RESAMPLES
    drawn = np.sort(np.random.default_rng(0).integers(0, len(rounds), (count, len(rounds))))
    # Few rounds are drawn alike again and again: of six there are 462 choices.
    choices, which = np.unique(drawn, axis=0, return_inverse=True)
    found = np.array([statistic(np.concatenate([rounds[i] for i in chosen])) for chosen in choices])
    return found[which.ravel()]


def _bounds(values: np.ndarray) -> np.ndarray:
    tail = 100 * (1 - CONFIDENCE) / 2
    return np.percentile(values, [tail, 100 - tail], axis=0)
