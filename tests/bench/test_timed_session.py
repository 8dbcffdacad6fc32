"""The timed loops, on a session whose calls take a known time."""

import numpy as np
import pytest

from accel.bench.timed_session import TimedSession
from accel.builders.to_null import NullSession
from accel.core.values import TensorSpec

SPEC = TensorSpec("x", "float32", ("batch", 2))


@pytest.fixture
def timed():
    session = NullSession((SPEC,), (TensorSpec("y", "float32", ("batch", 2)),), latency_ms=4.0, slots=2)
    return TimedSession(session, {"b1": {"x": np.zeros((1, 2), np.float32)}})


def test_the_least_number_of_calls_is_made_however_short_the_round(timed):
    assert len(timed.latency("b1", 0.0, 12)) == 12
    times, elapsed = timed.throughput("b1", 0.0, 5)
    assert len(times) == 5 * timed.session.slots
    assert elapsed >= max(times)


@pytest.mark.parametrize(("limit_ms", "most"), [(1.0, 8), (1e6, 40)])
def test_calls_over_the_limit_are_not_repeated_for_a_percentile(timed, limit_ms, most):
    assert len(timed.latency("b1", 0.0, 40, limit_ms)) <= most
    assert len(timed.throughput("b1", 0.0, 20, limit_ms)[0]) <= most
    assert len(timed.latency("b1", 0.0, 40, 1e6)) == 40
