"""Which configuration is chosen of what was proved."""

import math

import numpy as np
import pytest

from accel.bench.goodput import Probe, over
from accel.triton.settings import Settings
from accel.triton.tune.constraints import TuneLimits, judge, within
from accel.triton.tune.cost import Price
from accel.triton.tune.lab import Goal, Subject
from accel.triton.tune.proof import ConfigurationRunner, choose

ONE = Subject("s", None, None, None, "m", "m", "python", feeds=(), sizes=(1,), max_batch=1, default=Settings())  # type: ignore[arg-type]


def runner(instances: int, held: float, broken: float = math.inf) -> ConfigurationRunner:
    """One that held a load, and broke at another."""
    known = [Probe(held, held, 1000, 0, count=3)] if held else []
    if broken < math.inf:
        known.append(Probe(broken, held, 1000, 900))
    return ConfigurationRunner(ONE, Settings(instances), Goal(100.0, "poisson"), held or 100.0, 1.0, 1, known=known)


@pytest.mark.parametrize(
    ("ships", "other", "chosen", "verdict"),
    [
        ((100, 103), (150, 155), 2, "decided"),
        ((100, 102), (101, 103), 1, "equivalent"),  # nothing is better than what ships
        ((100, 105), (104, 107), 2, "equivalent"),
        ((100, 120), (104, 107), 2, "undecided"),
        ((100, 102), (0, 1), 1, "decided"),
        ((0, 1), (0, 1), None, "impossible"),
        ((0, 50), (0, 1), None, "undecided"),  # the search was stopped before it came to loads that may hold
        ((0, 1), (10, 11), 2, "decided"),
    ],
)
def test_the_choice_and_what_it_is_worth(ships, other, chosen, verdict):
    alive = [runner(1, *ships), runner(2, *other)]
    best, said = choose(alive, alive[0])
    assert (best and best.settings.instances, said) == (chosen, verdict)


@pytest.mark.parametrize(
    ("limits", "name", "found", "lacks"),
    [
        (TuneLimits(min_throughput_per_s=50), "throughput per s", 100.0, 0.0),
        (TuneLimits(min_throughput_per_s=125), "throughput per s", 100.0, 0.2),
        (TuneLimits(max_memory_mib=600), "memory in MiB", 500.0, 0.0),
        (TuneLimits(max_memory_mib=400), "memory in MiB", 500.0, 0.25),
        (TuneLimits(max_gpu_memory_mib=400), "GPU memory in MiB", None, 1.0),
        (TuneLimits(max_cost=10), "cost in USD per million", 1 / 0.36, 0.0),
        (TuneLimits(max_cost=1 / 0.72), "cost in USD per million", 1 / 0.36, 1.0),
    ],
)
def test_each_limit_is_judged_at_the_load_that_was_held(limits, name, found, lacks):
    one = runner(1, 100.0, 102.0)
    one.memory_mib = 500.0
    (judged,) = judge(one, limits, {"here": Price(1.0)}, "here")
    assert judged.name == name
    assert judged.found == pytest.approx(found)
    assert judged.lacks == pytest.approx(lacks)
    assert within([judged]) == (lacks == 0)
    assert judge(one, TuneLimits(), {}, "here") == ()


def test_a_percentile_counts_what_was_not_answered():
    latency = np.arange(1.0, 91.0)  # of 100 requests ten were not answered
    limits = {"p50": 49.0, "p90": 90.0, "p95": 1000.0}
    assert over(latency, 100, limits) == {"p50": 1.0, "p95": None}
    assert over(latency, 100, {"p50": 50.0}) == {}
    held = Probe(1, 1, 1000, 0, over=over(latency, 100, limits))
    assert not held.held
    assert not Probe(1, 1, 1000, 0).with_more(held).held


def test_what_ships_is_not_chosen_where_its_server_failed():
    default, *alive = runner(1, 100, 102), runner(2, 100, 102), runner(3, 101, 103)
    best, said = choose(alive, default)
    assert (best and best.settings.instances, said) == (3, "equivalent")


def test_of_clients_more_than_which_were_tried_no_more_is_claimed():
    """At two clients the budget breaks and 90/s are answered: that bounds nobody's goodput at one client."""
    made = []
    for instances, held, late in ((1, 50.0, 90.0), (2, 45.0, 85.0)):
        known = [Probe(1, held, 1000, 0, count=3), Probe(2, late, 1000, 900, count=2)]
        made.append(ConfigurationRunner(ONE, Settings(instances), Goal(100.0, None), 1, 1.0, 1, known=known))
    assert all(one.search.next() is None for one in made)
    best, said = choose(made, made[0])
    assert (best and best.settings.instances, said) == (1, "decided")
