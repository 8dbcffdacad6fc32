"""Percentiles, intervals and stability."""

import numpy as np
import pytest
from hypothesis import given, strategies as st

from accel.bench.stability import interval, percentile, ratio_interval, stable


@given(st.integers(1, 2000), st.sampled_from([50, 90, 95, 99]))
def test_a_percentile_needs_five_samples_beyond_it(count, q):
    value = percentile(np.arange(count, dtype=float), q)
    if value is None:
        assert count * (100 - q) / 100 < 5
    else:
        assert value == pytest.approx(np.percentile(np.arange(count), q))


def test_p99_needs_five_hundred():
    assert percentile(np.ones(499), 99) is None
    assert percentile(np.ones(500), 99) == 1.0


def test_the_interval_holds_the_median_and_narrows_with_rounds():
    rng = np.random.default_rng(3)
    few = [rng.normal(10, 1, 20) for _ in range(4)]
    many = [rng.normal(10, 1, 20) for _ in range(40)]
    width = lambda pair: pair[1] - pair[0]  # noqa: E731
    low, high = interval(many, lambda v: float(np.median(v)))
    assert low < 10 < high
    assert width((low, high)) < width(interval(few, lambda v: float(np.median(v))))


@given(st.lists(st.floats(0.5, 50), min_size=3, max_size=20), st.floats(0.1, 10))
def test_a_common_drift_cancels(drift, factor):
    a = [d * factor for d in drift]
    middle, low, high = ratio_interval(a, drift)
    assert (low, middle, high) == pytest.approx((factor, factor, factor))


def test_ratio_needs_pairs():
    with pytest.raises(ValueError, match="rounds"):
        ratio_interval([1.0], [1.0, 2.0])


def test_stable():
    assert stable([10, 10.2, 9.9, 10.1])
    assert not stable([10, 14, 7, 12])
    assert stable([10, 10, 10, 30, 10, 10, 10, 10])
    assert not stable([10])


@pytest.mark.parametrize(("count", "q"), [(50, 90), (100, 95), (500, 99)])
def test_five_samples_beyond_are_enough_and_four_are_not(count, q):
    assert percentile(range(count), q) is not None
    assert percentile(range(count - 1), q) is None
