"""Prediction over curves that are known: what limits a configuration, and which configurations there are."""

import itertools
from types import SimpleNamespace

import numpy as np
import pytest

from accel.bench.goodput import WITHIN
from accel.core.errors import InputError
from accel.core.values import TensorSpec
from accel.triton import config
from accel.triton.settings import Settings
from accel.triton.tune import predict
from accel.triton.tune.lab import Curve, Goal, Held, Subject, Trial, _Counted, _missed
from accel.triton.tune.scheduler import QueuePolicy


def curve(instances=1, threads=2, *, seconds=(0.010, 0.010, 0.010, 0.010), beside=None, **more):
    how = {"request_s": 0.0, "spread": (1.0,), "overhead_s": 0.0, "rss_mib": 100.0, "start_s": 1.0}
    return Curve(instances, threads, (1, 2, 4, 8), seconds, beside or seconds, **how | more)


def subject(**more):
    feeds = tuple({"x": np.zeros((1, n), np.float32)} for n in more.pop("lengths", (4,)))
    known = {"max_batch": 8, "sizes": (1,) * len(feeds), "default": Settings(), "feeds": feeds}
    spec = (TensorSpec("x", "float32", ("batch", "n")),)
    return Subject("s", None, None, spec, "m", "m", "python", **known | more)  # type: ignore[arg-type]


def predicted(one, curve_, settings, goal):
    return predict.predict(goal, predict.asked(one, curve_, settings, goal))


def goodput(curve_, settings, limit_ms=500.0, **more):
    best = predicted(subject(**more), curve_, settings, Goal(limit_ms, "poisson")).best
    return best.throughput_per_s if best else 0.0


def test_a_curve_is_read_between_its_points_and_beyond_them():
    found = curve(2, 1, seconds=(0.010, 0.020, 0.040, 0.080), beside=(0.020, 0.040, 0.080, 0.160), request_s=0.001)
    assert found.service(3, 1, 0) == pytest.approx([0.030, 0.060])
    assert found.service(16, 1, 0) == pytest.approx([0.160, 0.320])
    assert found.service(4, 4, 0) == pytest.approx([0.043, 0.083])  # three requests more to merge
    assert curve(kinds=(1.0, 2.5)).service(1, 1, 1) == pytest.approx([0.025])


def test_offline_requests_hold_as_many_items_as_pay():
    cheaper = curve(seconds=(0.010, 0.012, 0.016, 0.0318))  # four at once are as good as eight, within 3 %
    assert predict.full(subject(), [cheaper]).sizes == (4,)
    assert [v.shape for v in predict.full(subject(), [cheaper]).feeds[0].values()] == [(4, 4)]
    two = curve(2, 1, seconds=(0.010, 0.012, 0.016, 0.020), beside=(0.020, 0.040, 0.080, 0.160))
    assert predict.full(subject(), [two]).sizes == (1,)
    assert predict.full(subject(), [two, cheaper]).sizes == (4,)


def test_offline_requests_are_not_merged_beyond_what_pays():
    found = predict.full_space(
        predict.full(subject(), [curve(seconds=(0.010, 0.012, 0.016, 0.0318))]), [(1, 2), (2, 1)]
    )
    assert found == [Settings(), Settings(1, 2, True, (4,)), Settings(2, 1, True, (4,))]
    whole = predict.full_space(predict.full(subject(), [curve()]), [(1, 2)])
    assert whole == [Settings(), Settings(1, 2)]
    assert predict.full_space(subject(max_batch=0), [(1, 2)]) == [Settings(), Settings(1, 2, batching=False)]


def test_offline_no_latency_breaks_a_load():
    best = predicted(subject(sizes=(8,)), curve(seconds=(1.0, 2.0, 4.0, 8.0)), Settings(), Goal(None, None)).best
    assert best is not None
    assert (best.late, best.throughput_per_s) == (0, pytest.approx(1.0, rel=0.05))


class Scripted(Trial):
    """A trial whose loads last 10 ms an item, and whose batches of 8 fail while two instances are busy."""

    def __init__(self, of):
        self._subject, self._disturbed, self.start_s, self.items = of, 0, 1.0, 0

    def _open(self, feeds, *, slots=64):
        self.items = len(next(iter(feeds[0].values())))

    def _latency_s(self, clients, seconds):
        if self.items == 8 and clients == 2:
            raise InputError("UNAVAILABLE: Request timeout expired")
        return np.full(9, 0.010 * self.items * clients)

    def _held(self, clients, instances, seconds, feeds):
        return Held(0.018, max(1.0, clients / 4))

    def _switch_s(self, alone_s, seconds):
        return tuple(0.1 * alone_s[1] for _ in alone_s)

    def memory_mib(self):
        return None

    def gpu_memory_mib(self):
        return None


def test_a_batch_that_fails_beside_another_is_no_point_of_the_curve():
    found = Scripted(subject()).curve(Settings(2, 1))
    assert (found.batches, list(found.failed)) == ((1, 2, 4), ["8"])
    assert found.switch_s == pytest.approx((0.001,) * 3)
    assert (found.switch(3), curve().switch(3)) == (pytest.approx(0.001), 0.0)
    assert found.overhead_s == pytest.approx(0.002)
    assert found.beside_s == pytest.approx((0.018, 0.038, 0.078))
    assert predict.fits([found]) == 4


class Light(Scripted):
    """A trial of a model that computes for 0.1 ms of the 0.5 of a request; 4,000 a second pass at most."""

    def _latency_s(self, clients, seconds):
        return np.full(9, 0.0005)

    def _counted(self):
        self.asked = getattr(self, "asked", 0) + 1
        n = 4000 * self.asked
        return _Counted(n, n, n, n * 100_000)

    def _held(self, clients, *given):
        found = Trial._held(self, clients, *given)
        return found._replace(requests_per_s=2000) if clients == 1 else found


def test_a_model_that_computes_less_than_its_way_there_is_held_by_what_it_computes(monkeypatch):
    monkeypatch.setattr("accel.triton.tune.lab.time", SimpleNamespace(monotonic=itertools.count().__next__))
    light = Light(subject(max_batch=1))
    window = SimpleNamespace(start=print, window=lambda *given, **more: None, stop=lambda: None)
    light._generator = window
    found = light.curve(Settings(1, 1, batching=False))
    assert found.alone_s == pytest.approx((0.0001,))
    assert (found.overhead_s, found.front_s) == pytest.approx((0.0004, 1 / 4000))
    carried = predicted(subject(max_batch=1), found, Settings(batching=False), Goal(50.0, None)).best
    assert carried.throughput_per_s == pytest.approx(4000, rel=0.05)
    one = predict.probe(found, Settings(batching=False), Goal(50.0, None), 1, max_batch=1, queue=QueuePolicy())
    assert one.throughput_per_s == pytest.approx(1 / 0.0005, rel=0.05)


@pytest.mark.parametrize(("items", "share"), [(1.0, 0.0), (1.25, 1 / 3), (1.5, 1.0), (2.0, 1.0), (0.9, 0.0)])
def test_pairs_under_two_clients_tell_how_often_the_batcher_was_not_woken(items, share):
    assert _missed(items) == pytest.approx(share)


def test_batches_that_no_budget_allows_are_left_out_of_the_curve_and_have_not_failed():
    found = Scripted(subject()).curve(Settings(1, 1), 15.0)
    assert (found.batches, found.failed, found.cut_ms) == ((1, 2), {}, 15.0)
    assert (found.serves(10.0), found.serves(15.0), found.serves(16.0)) == (True, True, False)
    assert predict.fits([found]) >= 8
    assert found.service(4, 4, 0)[0] >= 2 * found.service(2, 1, 0)[0]  # what is left out is not taken for free
    whole = Scripted(subject()).curve(Settings(1, 1), 1000.0)
    assert (whole.batches, whole.cut_ms, whole.serves(1e9)) == ((1, 2, 4, 8), None, True)


def test_a_curve_whose_time_is_over_has_at_least_single_requests():
    found = Scripted(subject()).curve(Settings(1, 1), 1000.0, longest_s=-1.0)
    assert found.batches == (1,)
    assert not found.serves(1000.0), "it was not the budget that ended it: another call measures on"


def test_batching_pays_where_a_batch_costs_no_more_than_one():
    alone = goodput(curve(), Settings(batching=False))
    merged = goodput(curve(), Settings())
    assert 80 < alone <= 101
    assert 7 * alone < merged <= 808
    # where a batch takes as long as its items one after another, nothing is gained
    linear = curve(seconds=(0.010, 0.020, 0.040, 0.080))
    assert goodput(linear, Settings()) == pytest.approx(goodput(linear, Settings(batching=False)), rel=0.15)


@pytest.mark.parametrize("arrivals", ["poisson", None])
def test_with_a_cache_only_what_does_not_repeat_is_computed(arrivals):
    goal = Goal(500.0, arrivals, hit_rate=0.8)
    without, with_it = (
        predicted(subject(), curve(overhead_s=0.001), Settings(batching=False, cached=cached), goal).best
        for cached in (False, True)
    )
    assert with_it.throughput_per_s == pytest.approx(5 * without.throughput_per_s, rel=0.2)


def test_a_second_instance_pays_only_where_it_does_not_slow_the_first():
    one = goodput(curve(), Settings(batching=False))
    free = goodput(curve(2), Settings(2, batching=False))
    shared = goodput(curve(2, beside=(0.020,) * 4), Settings(2, batching=False))
    assert free > 1.8 * one
    assert shared == pytest.approx(one, rel=0.1)


def test_a_tight_budget_holds_less_and_one_below_the_service_time_nothing():
    wide, tight, none = (goodput(curve(), Settings(batching=False), limit) for limit in (500.0, 25.0, 9.0))
    assert wide > 1.3 * tight > 0
    assert none == 0.0


@pytest.mark.parametrize("arrivals", ["poisson", "constant"])
def test_a_budget_longer_than_the_simulation_holds_no_more_than_can_be_computed(arrivals):
    """2,500 requests of 0.2 ms are answered within 500 ms at whatever rate they come."""
    fast = curve(seconds=(0.0002,) * 4)
    best = predicted(subject(max_batch=1), fast, Settings(batching=False), Goal(500.0, arrivals)).best
    assert 4500 < best.load <= 5000


def test_a_closed_loop_is_predicted_in_clients():
    found = predicted(subject(), curve(overhead_s=0.002), Settings(batching=False), Goal(45.0, None))
    assert found.broken == 5  # four clients wait 10 ms each; five would wait 50
    assert found.best.throughput_per_s == pytest.approx(100, rel=0.02)


def test_recorded_arrivals_that_come_at_once_hold_less_than_spread_ones():
    even = predicted(subject(), curve(), Settings(batching=False), Goal(35.0, "constant")).best
    gaps = (0.0,) * 9 + (1.0,)
    burst = predicted(subject(), curve(), Settings(batching=False), Goal(35.0, "recorded", gaps)).best
    assert even.throughput_per_s > 90
    assert burst is None  # ten at once: the last waits 90 ms at any rate


def test_the_space_begins_with_what_ships_and_keeps_the_contract():
    setups = predict.setups(True, 4)
    assert setups == [(1, 4), (2, 2), (2, 4), (4, 1), (4, 2)]
    assert predict.setups(False, 2) == [(1, None), (2, None)]
    options = predict.space(subject(), setups, fits=8)
    assert options[0] == Settings()
    assert len(options) == len(set(options)) == 1 + 5 * (1 + 3 * 4)
    assert {s.preferred for s in options} == {(), (2,), (4,)}
    small = predict.space(subject(), [(1, 2)], fits=2)
    assert {(s.batching, s.preferred, s.delay_us) for s in small[1:]} == {(False, (), 0), (True, (2,), 0)}
    assert len(predict.space(subject(max_batch=0), setups, fits=1)) == 6


def test_what_is_held_lies_below_what_the_instances_can_compute():
    found = curve(2, 1, seconds=(0.010, 0.012, 0.016, 0.024), beside=(0.015, 0.018, 0.024, 0.036), request_s=0.0005)
    for settings in (Settings(2), Settings(2, preferred=(4,)), Settings(2, batching=False)):
        assert goodput(found, settings) <= predict.capacity(subject(), found, settings) * (1 + WITHIN)


BATCHING = """max_batch_size: 8 dynamic_batching {
  default_queue_policy { timeout_action: DELAY default_timeout_microseconds: 50000 max_queue_size: 4 } %s }"""
PRIORITIES = """priority_levels: 2 default_priority_level: 2
  priority_queue_policy { key: 1 value { max_queue_size: 9 } }
  priority_queue_policy { key: 2 value { max_queue_size: 7 } }"""


@pytest.mark.parametrize(
    ("more", "settings", "expected"),
    [
        ("", Settings(), QueuePolicy(4, 0.05, delays=True)),
        ("", Settings(batching=False), QueuePolicy()),
        (PRIORITIES, Settings(), QueuePolicy(7)),
        (PRIORITIES.replace("level: 2", "level: 1"), Settings(), QueuePolicy(9)),
        (
            "",
            Settings(fields="dynamic_batching { default_queue_policy { timeout_action: REJECT max_queue_size: 0 } }"),
            QueuePolicy(0, 0.05),
        ),
    ],
    ids=["own", "off", "priority", "another priority", "fields"],
)
def test_the_queue_is_the_one_that_the_config_has(more, settings, expected):
    assert predict.policy(config.parse(BATCHING % more), settings) == expected


def test_a_queue_whose_requests_may_name_a_timeout_has_a_limit():
    batching = "max_batch_size: 8 dynamic_batching { default_queue_policy { allow_timeout_override: true } }"
    assert predict.policy(config.parse(batching), Settings()).limited
    assert not predict.policy(config.parse("max_batch_size: 8 dynamic_batching {}"), Settings()).limited


def test_a_queue_that_holds_few_refuses_what_a_long_one_would_answer_in_time():
    """Batches of 8 take 10 ms: within 500 ms hundreds may wait, and this config lets 4."""
    short = goodput(curve(), Settings(), config=config.parse(BATCHING % ""))
    assert short < 0.8 * goodput(curve(), Settings())


def test_of_several_processes_each_predicts_its_part(tmp_path):
    goal = Goal(50.0, "poisson")
    those = tuple(
        predict.asked(subject(), curve(n), Settings(n, preferred=(size,), delay_us=delay), goal)
        for n in (1, 2)
        for size in (2, 4)
        for delay in (0, 500, 1000, 2000, 5000)
    )
    found = predict.predict_all(goal, those, log=tmp_path / "log", processes=2)
    assert tuple(found) == predict.predict_each(goal, those)
    assert len({p.load for p in found}) > 2
    assert (tmp_path / "log").exists(), "processes of their own"
    alone = predict.predict_all(goal, those[:3], log=tmp_path / "none", processes=2)
    assert alone == found[:3]
    assert not (tmp_path / "none").exists(), "so few are not worth one"
