"""The sizes that requests are padded to cost no more than any others that an exhaustive search finds."""

import itertools

import numpy as np
import pytest

from accel.core.buckets import bucket_of, buckets, measured_cost


def expected(histogram, cost, sizes):
    return sum(count * cost(bucket_of(sizes, n)) for n, count in histogram.items())


def searched(histogram, cost, most):
    """Try every set of sizes, between all lengths that could be a size, not only those that occur."""
    top = max(histogram)
    others = list(range(min(histogram), top))
    return min(
        expected(histogram, cost, (*chosen, top))
        for count in range(most)
        for chosen in itertools.combinations(others, count)
    )


def drawn(kind):
    rng = np.random.default_rng(0)
    lengths = {
        "sentences": np.clip(rng.lognormal(2.5, 0.6, 400), 3, 28),
        "two kinds": np.concatenate([rng.normal(7, 2, 300), rng.normal(24, 2, 60)]).clip(2, 28),
        "uniform": rng.integers(4, 28, 500),
    }[kind]
    values, counts = np.unique(lengths.astype(int), return_counts=True)
    return dict(zip(values.tolist(), counts.tolist(), strict=True))


@pytest.mark.parametrize("kind", ["sentences", "two kinds", "uniform"])
@pytest.mark.parametrize(
    "cost",
    [
        lambda n: n,
        lambda n: 40 + n + n * n / 50,
        measured_cost([(8, 90, 2.0), (16, 40, 2.1), (24, 3, 1.9), (32, 9, 6.0)]),
    ],
    ids=["tokens", "with attention", "measured"],
)
def test_no_other_sizes_cost_less(kind, cost):
    histogram = drawn(kind)
    for most in (1, 2, 4):
        found = buckets(histogram, cost, most)
        assert list(found) == sorted(set(found))
        assert len(found) <= most
        assert expected(histogram, cost, found) == pytest.approx(searched(histogram, cost, most), rel=1e-12)


def test_one_size_holds_all_and_enough_sizes_waste_nothing():
    histogram = {5: 10, 9: 1, 12: 3, 40: 0}
    assert buckets(histogram, lambda n: n, 1) == (12,)
    assert buckets(histogram, lambda n: n, 9) == (5, 9, 12)
    assert buckets(histogram, lambda n: 1, 9) == (12,)  # where length costs nothing, one is enough
    assert [bucket_of((5, 9, 12), n) for n in (1, 5, 6, 12)] == [5, 5, 9, 12]


def test_a_measured_cost_follows_the_times_and_never_falls():
    cost = measured_cost([(32, 1, 9.0), (8, 3, 1.0), (16, 1, 5.0), (24, 3, 3.0)])
    assert [cost(n) for n in (8, 32)] == [1.0, 9.0]
    assert cost(16) == cost(24) == cost(20) == 3.5  # 24 was faster than 16: the mean of both, by requests
    assert cost(12) == 2.25
    assert (cost(3), cost(99)) == (1.0, 9.0)  # what was not measured is like what is nearest
    assert measured_cost([(8, 1, 2.0)])(50) == 2.0


def test_measured_costs_choose_other_sizes_than_lengths_do():
    histogram = {8: 40, 16: 40, 24: 40, 32: 40}
    flat_up_to_24 = measured_cost([(8, 40, 2.0), (16, 40, 2.0), (24, 40, 2.0), (32, 40, 8.0)])
    assert buckets(histogram, lambda n: n, 2) == (16, 32)
    assert buckets(histogram, flat_up_to_24, 2) == buckets(histogram, flat_up_to_24, 4) == (24, 32)


@pytest.mark.parametrize(("histogram", "most"), [({}, 3), ({4: 0}, 3), ({4: 1}, 0)])
def test_nothing_to_choose_from_is_an_error(histogram, most):
    with pytest.raises(ValueError, match="no lengths"):
        buckets(histogram, lambda n: n, most)
