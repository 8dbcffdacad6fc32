"""The model of the server against queueing theory, and against the batcher's rules one by one."""

import math
import time
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings as hypothesis_settings, strategies as st

from accel.triton.settings import Settings
from accel.triton.tune.scheduler import QueuePolicy, SimulatedServer, poisson, simulate

ALONE = Settings(batching=False)


def server(settings, seconds=lambda items, requests, kind: 0.010, *, max_batch=8, **more):
    """Return a server whose instances do not slow each other down."""
    return SimulatedServer(settings, max_batch, lambda *batch: [seconds(*batch)] * settings.instances, **more)


# --------------------------------------------------------------------------------------------- queueing theory


@pytest.mark.parametrize("load", [0.3, 0.6, 0.8])
def test_one_server_of_fixed_service_waits_as_m_d_1_says(load):
    """Mean wait of M/D/1: load / (2 (1 - load)) service times (Pollaczek, Khinchine)."""
    found = simulate(server(ALONE), poisson(load / 0.010, 120_000))
    expected = load / (2 * (1 - load)) * 0.010
    assert (found.latency_s - 0.010).mean() == pytest.approx(expected, rel=0.06)
    assert found.throughput_per_s == pytest.approx(load / 0.010, rel=0.02)


@pytest.mark.parametrize(("servers", "load"), [(1, 0.5), (2, 0.7), (4, 0.8)])
def test_several_servers_of_exponential_service_wait_as_m_m_c_says(servers, load):
    """Mean wait of M/M/c: Erlang's C over c µ - λ."""
    offered = load * servers
    below = sum(offered**k / math.factorial(k) for k in range(servers))
    last = offered**servers / math.factorial(servers) / (1 - load)
    expected = last / (below + last) / (servers / 0.010 - offered / 0.010)
    spread = np.random.default_rng(1).exponential(1.0, 50_000)
    found = simulate(
        server(Settings(servers, batching=False), spread=spread / spread.mean()), poisson(offered / 0.010, 150_000)
    )
    assert found.latency_s.mean() - 0.010 == pytest.approx(expected, rel=0.08)


def test_a_closed_loop_obeys_littles_law():
    """Clients = throughput × latency; and more clients than instances leave none idle."""
    found = simulate(server(Settings(2, batching=False), overhead_s=0.001), clients=5, requests=20_000)
    assert found.throughput_per_s == pytest.approx(200, rel=0.01)
    assert found.throughput_per_s * found.latency_s.mean() == pytest.approx(5, rel=0.01)


def test_requests_come_in_one_after_another():
    """The way in is a queue of its own: M/D/1 before instances that never wait."""
    wide = server(Settings(50, batching=False), lambda *batch: 0.0001, overhead_s=0.002, front_s=0.001)
    assert simulate(wide, clients=200, requests=20_000).throughput_per_s == pytest.approx(1000, rel=0.02)
    found = simulate(wide, poisson(600, 120_000))
    expected = 0.6 / (2 * (1 - 0.6)) * 0.001
    assert found.latency_s.mean() - 0.0031 == pytest.approx(expected, rel=0.06)


def test_a_batch_of_another_size_takes_longer():
    """Pairs and single requests in turn on one instance, which prepares itself 5 ms for each."""
    due = [at for i in range(50) for at in ((0.1 * i,) if i % 2 else (0.1 * i, 0.1 * i))]
    pairs = server(Settings(delay_us=1), max_batch=2, switch=lambda items: 0.005)
    found = simulate(pairs, due)
    assert found.latency_s == pytest.approx(np.full(len(found.latency_s), 0.015), abs=1e-5)
    same = simulate(pairs, [0.1 * i for i in range(50)])
    assert same.latency_s == pytest.approx(np.full(len(same.latency_s), 0.010), abs=1e-5)


def test_a_batcher_that_was_not_woken_sleeps_until_the_next_request_or_half_a_second():
    """Two requests on one instance: the second waits when the first ends, and nothing wakes the batcher."""
    limited = QueuePolicy(size=100)
    deaf = server(Settings(preferred=(1,)), queue=limited, missed=1.0)
    one_by_one = [10.0 * i + part for i in range(20) for part in (0.0, 0.001)]
    found = simulate(deaf, one_by_one)
    assert sorted({round(float(v), 4) for v in found.latency_s}) == [0.010, 0.519]
    woken = simulate(deaf, [10.0 * i + part for i in range(20) for part in (0.0, 0.001, 0.050)])
    assert sorted({round(float(v), 4) for v in woken.latency_s}) == [0.010, 0.059, 0.520]
    for hears in (server(Settings(preferred=(1,)), queue=limited), server(Settings(preferred=(1,)), missed=1.0)):
        assert max(simulate(hears, one_by_one).latency_s) == pytest.approx(0.019)


def test_what_the_cache_has_is_answered_without_an_instance():
    found = simulate(server(ALONE, overhead_s=0.001), poisson(150, 20_000), hit_rate=0.5)
    assert found.throughput_per_s == pytest.approx(150, rel=0.05)  # an instance computes 100 a second
    assert np.mean(found.latency_s < 0.0011) == pytest.approx(0.5, abs=0.02)
    closed = simulate(server(ALONE), clients=1, requests=20_000, hit_rate=0.5)
    assert closed.throughput_per_s == pytest.approx(200, rel=0.05)


# --------------------------------------------------------------------------------------------- the batcher's rules


def sizes_of_batches(settings, waiting, *, max_batch=8, items=(1,), kinds=(0,)):
    """Return the batches that are formed while one instance is busy for long with a first request of one item."""
    made = []

    def service(total, requests, kind):
        made.append(total)
        return 10.0 if len(made) == 1 else 0.010

    due = [0.0] + [1.0 + i * 1e-4 for i in range(waiting)]
    simulate(server(settings, service, max_batch=max_batch), due, items=items, kinds=kinds)
    return made[1:]


@pytest.mark.parametrize(
    ("settings", "waiting", "expected"),
    [
        (Settings(), 20, [8, 8, 4]),  # no preferred size: max_batch_size is the only one
        (Settings(preferred=(4,)), 10, [4, 4, 2]),  # without a delay a preferred size is the largest
        (Settings(preferred=(2, 4)), 7, [4, 2, 1]),  # the largest that is reached
        (Settings(preferred=(4,), delay_us=100), 10, [8, 2]),  # once the delay has passed they do not count
        (ALONE, 3, [1, 1, 1]),
    ],
)
def test_waiting_requests_are_merged_as_the_source_says(settings, waiting, expected):
    assert sizes_of_batches(settings, waiting) == expected


def test_requests_of_several_items_are_not_cut():
    assert sizes_of_batches(Settings(), 4, items=(3,)) == [6, 6]
    assert sizes_of_batches(Settings(preferred=(4,)), 4, items=(3,)) == [3, 3, 3, 3]
    waits = simulate(server(Settings(preferred=(5,), delay_us=50_000)), [0.0, 0.0], items=(3,))
    np.testing.assert_allclose(waits.latency_s, [0.010, 0.060])  # two would be 6: the first goes at once, alone


def test_a_batch_waits_for_others_until_its_oldest_is_as_old_as_the_delay():
    found = simulate(server(Settings(delay_us=5_000)), [0.0, 0.001, 0.004, 0.1], seed=0)
    # the first three run together 5 ms after the first came; the last one waits its 5 ms alone
    np.testing.assert_allclose(found.latency_s, [0.015, 0.014, 0.011, 0.015], atol=1e-6)
    full = simulate(server(Settings(preferred=(2,), delay_us=5_000)), [0.0, 0.001, 0.1], seed=0)
    np.testing.assert_allclose(full.latency_s, [0.011, 0.010, 0.015], atol=1e-6)


def test_requests_of_other_shapes_are_not_merged():
    made = []

    def service(total, requests, kind):
        made.append((total, kind))
        return 0.010

    rng = np.random.default_rng(3)
    how = {"items": (1, 1), "kinds": (0, 1)}
    simulate(server(Settings(), service), np.sort(rng.uniform(0, 0.2, 400)), **how)
    assert {kind for _, kind in made} == {0, 1}
    mixed = len(made)
    made.clear()
    simulate(
        server(Settings(), service, same_shape=False), np.sort(np.random.default_rng(3).uniform(0, 0.2, 400)), **how
    )
    assert mixed > 2 * len(made)


def test_a_full_queue_and_a_timeout_refuse():
    many = [0.0] * 100
    found = simulate(server(Settings(preferred=(1,)), queue=QueuePolicy(20)), many)
    assert found.refused == 79  # one is computed and 20 wait
    late = simulate(server(Settings(preferred=(1,)), queue=QueuePolicy(timeout_s=0.055)), many)
    assert len(late.latency_s) + late.refused == 90
    assert late.latency_s.max(initial=0) <= 0.055 + 0.010 + 1e-9
    unmerged = simulate(server(Settings(batching=False), queue=QueuePolicy(20, 0.055)), many)
    assert unmerged.refused == 0  # the policy is a part of dynamic batching


def test_what_waited_too_long_may_come_after_all_that_did_not():
    """20 requests at once, 10 ms each, then one that comes when 7 are answered and the last 14 have waited too long."""
    queue = QueuePolicy(timeout_s=0.055, delays=True)
    found = simulate(server(Settings(preferred=(1,)), queue=queue), [0.0] * 20 + [0.062])
    assert found.refused == 0
    assert found.latency_s[-1] == pytest.approx(0.070 + 0.010 - 0.062)
    assert found.latency_s.max() == pytest.approx(0.210)
    refused = simulate(server(Settings(preferred=(1,)), queue=QueuePolicy(timeout_s=0.055)), [0.0] * 20 + [0.062])
    assert refused.refused == 14


def test_a_batch_that_begins_alone_slows_down_when_another_begins():
    shared = SimulatedServer(Settings(2, batching=False), 8, lambda *batch: [0.010, 0.020])
    found = simulate(shared, [0.0, 0.005])
    # the first does half alone and half shared: 5 + 10 ms; the second half of its work shared, the rest alone
    np.testing.assert_allclose(found.latency_s, [0.015, 0.015], atol=1e-9)


@hypothesis_settings(deadline=None, max_examples=30)
@given(
    preferred=st.sets(st.integers(1, 8), max_size=3),
    delay_us=st.sampled_from([0, 500, 20_000]),
    instances=st.integers(1, 3),
    rate=st.floats(20, 3000),
)
def test_no_request_is_lost_and_none_is_answered_before_its_service(preferred, delay_us, instances, rate):
    settings = Settings(instances, preferred=tuple(sorted(preferred)), delay_us=delay_us)
    batches = []

    def service(total, requests, kind):
        batches.append(total)
        return 0.002 * total + 0.001

    found = simulate(server(settings, service), poisson(rate, 400), items=(1, 2))
    assert len(found.latency_s) == 360
    assert found.refused == 0
    assert found.latency_s.min() >= 0.003 - 1e-9
    assert max(batches) <= 8


def test_prediction_of_one_load_takes_well_under_a_second():
    begin = time.process_time()
    simulate(server(Settings(2, delay_us=500)), poisson(400, 3000))
    assert time.process_time() - begin < 0.5


def test_arrivals_are_ascending():
    assert all(a < b for a, b in pairwise(poisson(100, 1000, seed=2)))
