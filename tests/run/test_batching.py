"""Which batches are worth forming, by what was measured of them."""

import dataclasses

import pytest

from accel.core.values import Measurement
from accel.run.batching import worthwhile


def point(batch, per_s, *, spread=0.01, **fields):
    values = dict.fromkeys((f.name for f in dataclasses.fields(Measurement)), 0) | {
        "scenario": "throughput",
        "via": "inprocess",
        "rounds_ms": (),
        "batch": batch,
        "throughput_per_s": per_s,
        "throughput_ci_per_s": (per_s * (1 - spread), per_s * (1 + spread)),
    }
    return Measurement(**values | fields)


def points(*per_s, **fields):
    return [point(1 << i, value, **fields) for i, value in enumerate(per_s)]


@pytest.mark.parametrize(
    ("per_s", "limit"),
    [
        ((100, 103, 104, 105, 106), 1),  # MiniLM in INT8 on two cores: batches of 16 gain 6 %
        ((100, 98, 90, 70), 1),
        ((100, 160, 165, 163), 2),
        ((100, 150, 200, 300), 0),
        ((100, 150, 200, 190, 205), 4),
    ],
)
def test_the_smallest_batch_that_no_larger_one_beats_by_a_tenth(per_s, limit):
    found, why = worthwhile(points(*per_s))
    assert found == limit
    assert f"{per_s[0]:.4g} in batches of 1" in why
    assert f"in batches of {1 << len(per_s) - 1} " in why


def test_what_no_interval_shows_is_left_as_it_is():
    assert worthwhile(points(100, 103, 106, spread=0.2)) is None
    assert worthwhile(points(100)) is None
    assert worthwhile([]) is None
    assert worthwhile(points(100, 103, scenario="latency")) is None
    assert worthwhile(points(100, 103, via="triton")) is None


def test_groups_of_requests_are_judged_by_the_traffic():
    measured = [*points(100, 300), *points(50, 52, 53, scenario="traffic")]
    found = worthwhile(measured, scenario="traffic")
    assert found is not None
    assert found[0] == 1
    assert "requests of their own shapes per second" in found[1]
    assert worthwhile(points(100, 300), scenario="traffic") is None


def test_a_batch_that_may_break_the_limit_is_not_formed():
    rows = [point(b, 100 * b, p99_ci_ms=(b, 1.2 * b)) for b in (1, 2, 4, 8)]
    found = worthwhile(rows, 5.0)
    assert found is not None
    assert found[0] == 4
    assert found[1].startswith("at most 4 items are merged: larger ones may take longer than 5 ms (p99)")
    assert worthwhile(rows, 20.0) == worthwhile(rows)
    assert worthwhile(rows, 1.3)[0] == 1
    assert worthwhile(rows, 0.5) is None
    assert worthwhile([point(b, 100 * b, p99_ci_ms=None) for b in (1, 2)], 5.0) is None
