"""What a variant's process timed, as the figures of its points."""

import numpy as np
import pytest

from accel.bench.in_process import TrafficGroup, request_times


def test_a_request_costs_its_share_of_the_calls_of_its_length():
    groups = [TrafficGroup("t8.0", 8, 200, 32), TrafficGroup("t8.1", 2, 40, 32), TrafficGroup("t8.2", 4, 30, 8)]
    passes_ms = np.array([[16.0, 6.0, 4.0], [14.0, 6.0, 4.4], [90.0, 7.0, 4.0]])  # one call was disturbed
    found = request_times(groups, passes_ms)
    assert [(time.length, time.requests) for time in found] == [(8, 4), (32, 10)]
    assert [time.ms for time in found] == pytest.approx([1.0, 2.2])
    assert request_times([TrafficGroup("t1.0", 4, None, None)], np.ones((2, 1))) == ()
