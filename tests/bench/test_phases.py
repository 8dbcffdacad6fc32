"""Phases give a load for each number of users, and end where the server carries no more or answers too late."""

from dataclasses import dataclass

import pytest

from accel.bench.phases import PhaseLimits, carried_at_most, parse_phases
from accel.core.errors import UsageError


@dataclass
class Point:
    """What the limits look at, of a measurement."""

    concurrency: int
    throughput_per_s: float
    p95_ms: float | None = 10.0
    p99_ms: float | None = None
    failures: int = 0
    p90_ms: float | None = 9.0
    p50_ms: float | None = 5.0
    mean_ms: float = 6.0
    samples: int = 100


def carried(*rates: float) -> list[Point]:
    return [Point(users, rate) for users, rate in enumerate(rates, 1)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2:0:30", [(2, 30)]),
        ("1:10:24", [(1, 6), (2, 6), (3, 6), (4, 6)]),
        ("1:10:26", [(1, 6), (2, 6), (3, 6), (4, 8)]),  # what is left is the last one's
        ("1:60:9", [(1, 3), (4, 3), (7, 3)]),  # three users come within the three seconds that figures need
        ("3:1:20,8:0:5", [(3, 20), (8, 5)]),
    ],
)
def test_each_number_of_users_is_a_load(text, expected):
    loads = parse_phases(text)
    assert [load.concurrency for load in loads] == [users for users, _ in expected]
    assert [load.seconds for load in loads] == pytest.approx([seconds for _, seconds in expected])


@pytest.mark.parametrize("text", ["", "1", "1:2", "0:1:60", "1.5:1:60", "1:-1:60", "1:1:0", "1:1:inf", "1:1:60,x"])
def test_what_is_no_phase_is_refused(text):
    with pytest.raises(UsageError, match="--phases") as error:
        parse_phases(text)
    assert "1:10:120" in error.value.fix


def test_it_ends_where_more_users_carry_no_more():
    limits = PhaseLimits()
    assert limits.ends(carried(100, 180, 200, 202, 199)) is None
    assert limits.ends(carried(100, 180, 200, 202, 199, 203)) == "3 steps with more users than 3 carried no more"
    assert limits.ends(carried(100, 180, 200, 202, 199, 230)) is None
    assert PhaseLimits(flat=False).ends(carried(100, 180, 200, 202, 199, 203)) is None


def test_a_phase_with_fewer_users_is_not_flat():
    points = [*carried(100, 180, 200), Point(1, 100), Point(2, 180), Point(3, 200)]
    assert PhaseLimits().ends(points) is None


def test_it_ends_at_a_limit_of_latency_and_at_a_failure():
    limits = PhaseLimits(most_ms={"p95": 50, "p99": 80})
    assert limits.ends([Point(1, 100, 50.0, None)]) is None
    assert limits.ends([Point(1, 100, 51.0, None)]) == "p95 51 ms is above 50 ms"
    assert limits.ends([Point(1, 100, 10.0, 81.0)]) == "p99 81 ms is above 80 ms"
    assert limits.ends([Point(1, 100, failures=2)]) == "2 requests failed"


def test_what_answers_too_slowly_to_have_a_percentile_ends_it():
    limits = PhaseLimits(most_ms={"p95": 50})
    few = Point(1, 2, None, p90_ms=None, p50_ms=900.0, samples=40)
    assert limits.ends([few]) == "p50 900 ms is above 50 ms, with too few answers (40) for p95"
    fewer = Point(1, 2, None, p90_ms=None, p50_ms=None, mean_ms=1000.0, samples=5)
    assert limits.ends([fewer]) == "mean 1000 ms is above 50 ms, with too few answers (5) for p95"
    assert limits.ends([Point(1, 2, None, p90_ms=45.0)]) is None
    assert PhaseLimits(most_ms={"p99": 50}).ends([Point(1, 2, 60.0)]) == (
        "p95 60 ms is above 50 ms, with too few answers (100) for p99"
    )


def test_what_was_carried_is_that_within_the_limits():
    limits = PhaseLimits(most_ms={"p95": 50})
    points = [Point(1, 100), Point(2, 180), Point(3, 200, 60.0)]
    assert carried_at_most(points, limits) == "at most 10,800 items a minute, with 2 users; p95 60 ms is above 50 ms"
    assert carried_at_most(points[:2], limits).endswith("with 2 users; the phases are over")
    assert carried_at_most(points[2:], limits).startswith("no number of users keeps the limits")
