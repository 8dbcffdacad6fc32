"""The sizes that requests are padded to cost no more than any others that an exhaustive search finds."""

import itertools

import numpy as np
import pytest

from accel.core.buckets import bucket_of, buckets


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
@pytest.mark.parametrize("cost", [lambda n: n, lambda n: 40 + n + n * n / 50], ids=["tokens", "with attention"])
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


@pytest.mark.parametrize(("histogram", "most"), [({}, 3), ({4: 0}, 3), ({4: 1}, 0)])
def test_nothing_to_choose_from_is_an_error(histogram, most):
    with pytest.raises(ValueError, match="no lengths"):
        buckets(histogram, lambda n: n, most)
