"""Why FP32 builds are left out: what is known says it, or turns of the leader and products do, or nothing does."""

from types import SimpleNamespace

import numpy as np
import pytest

from accel.graph.arithmetic import FASTER, Arithmetic
from accel.run.bound import SWING, InTurn, Leader, why_not

LEAST = Arithmetic(item_flops=FASTER * 1e9, flops_per_s=2e11)
"""5 ms where products reach 200 GFLOP/s."""


def leader(objective, at_most_ms, id="int8@cpu", batch=4):
    """Return what takes so long for an item at most by an objective."""
    point = SimpleNamespace(
        batch=batch, p50_ci_ms=(0.0, at_most_ms * batch), throughput_ci_per_s=(1e3 / at_most_ms, 1e9)
    )
    return Leader(SimpleNamespace(variant=SimpleNamespace(id=id)), objective, point)


def turns(ratio, rounds=6, *, spread=0.02, disturbed=False, speeds=(3e11, 2e11)):
    """Return rounds on a machine that changes its speed, with a leader that takes so much of the bound in each."""
    noise = np.random.default_rng(0).normal(0, spread, rounds)
    now = np.resize(speeds, rounds)
    return InTurn(tuple(ratio * 1e12 / now * np.exp(noise)), tuple(now), disturbed)  # the bound is 1e12 / speed, in ms


def never(_):
    raise AssertionError("it was to be known without turns")


def test_turns_are_taken_for_the_objective_alone_that_needs_them():
    asked = []
    found = why_not(
        [leader("latency", 6.0), leader("throughput", 4.0)],
        LEAST,
        lambda one: asked.append(one.objective) or turns(0.85),
    )
    assert asked == ["latency"]
    assert found.endswith("of that in 6 rounds")


def test_what_is_faster_by_every_objective_than_products_at_their_best_excludes_them():
    found = why_not([leader("latency", 4.0, "a@cpu"), leader("throughput", 4.9)], LEAST, never)
    assert found.startswith(
        "cannot beat int8@cpu: in FP32 the 1.2 GFLOP of products in an item take at least 5 ms here"
    )
    assert found.endswith("and int8@cpu takes at most 4.9 ms")


@pytest.mark.parametrize("slow", ["latency", "throughput"])
def test_no_turns_are_taken_by_what_no_change_of_the_speed_would_bring_there(slow):
    both = [leader(name, SWING * 5.0 if name == slow else 4.0) for name in ("latency", "throughput")]
    assert why_not(both, LEAST, never) is None


def test_turns_in_the_same_moments_exclude_what_other_moments_could_not():
    asked = []

    def take_turns(one):
        asked.append(one.objective)
        return turns({"latency": 0.6, "throughput": 0.8}[one.objective])

    found = why_not([leader("latency", 6.0, "a@cpu"), leader("throughput", 6.0)], LEAST, take_turns)
    assert asked == ["latency", "throughput"]
    # the closer one is told, with the bound at the speed of its turns
    assert "cannot beat int8@cpu" in found
    assert "take at least 4 ms here, at 1.2 times the 250 GFLOP/s of large products while they take turns" in found
    assert "takes 0.80 [0.7" in found
    assert found.endswith("of that in 6 rounds")


@pytest.mark.parametrize("second", [turns(0.97, spread=0.1), turns(1.2), None], ids=["unsure", "slower", "failed"])
def test_one_objective_that_an_fp32_build_may_win_by_is_enough(second):
    both = [leader("latency", 6.0), leader("throughput", 6.0)]
    assert why_not(both, LEAST, lambda one: turns(0.6) if one.objective == "latency" else second) is None


def test_disturbed_turns_say_nothing():
    assert turns(0.5).excludes(LEAST)
    assert not turns(0.5, disturbed=True).excludes(LEAST)


def test_each_round_has_the_bound_of_its_own_speed():
    """Held against the best moment of all the same rounds exclude nothing."""
    found = turns(0.8, rounds=12)
    at_best = InTurn(found.item_ms, (max(found.flops_per_s),) * 12, disturbed=False)
    assert found.excludes(LEAST)
    assert not at_best.excludes(LEAST)
    assert found.ratio(LEAST)[0] == pytest.approx(0.8, rel=0.03)
