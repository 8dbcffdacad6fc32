"""What a recorded sweep says of `accel tune --mode predict`: the session's own steps, on surfaces that are known."""

import importlib.util
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
sys.path.insert(0, str(ROOT))

from accel.core.values import to_json  # noqa: E402
from accel.triton.settings import Settings  # noqa: E402
from accel.triton.tune import search  # noqa: E402
from benchmarks.tune import Replay, replay  # noqa: E402

CARRY = {
    Settings(1, 2): 100.0,
    Settings(1, 2, batching=False): 80.0,
    Settings(1, 2, delay_us=500): 150.0,
    Settings(2, 1): 120.0,
    Settings(2, 1, batching=False): 90.0,
    Settings(2, 2): 110.0,
}


def probed(load, held):
    late = 0 if held else 900
    return {"load": load, "throughput_per_s": load, "requests": 1000, "late": late, "p50_ms": 5.0, "p99_ms": 9.0}


def recorded(predicted=lambda settings, carried: carried):
    """A sweep in which each configuration was probed three times, a second each."""
    rows = []
    for settings, carried in CARRY.items():
        told = predicted(settings, carried)
        rows.append(
            {
                "repository": "r",
                "settings": to_json(settings),
                "label": str(settings),
                "predicted": probed(told, held=True),
                "measured": probed(carried, held=True),
                "probes": [probed(0.9 * carried, True), probed(carried, True), probed(1.02 * carried, False)],
            }
        )
    return {
        "tried": rows,
        "goal": {"limit_ms": 100.0, "arrivals": "poisson"},
        "subjects": {"r": {"sizes": [1], "kinds": [0], "max_batch": 8}},
        "seconds_in_all": {"curves": 10.0, "predict": 1.0, "search": 18.0},
    }


def test_a_prediction_that_is_right_is_proved_and_what_confirms_lasts_longer():
    found = replay(recorded(), 3)
    assert found["predict"]["median"] == 1.0
    assert found["predict"]["searched"] == 0
    # the winner alone is asked twice again, and its least broken load once: 32 budgets each, of 100 ms
    assert found["predict"]["share_of_sweep_s"] * 18 > 11 + 3 * 3.2


def test_what_is_predicted_alike_is_stood_for_by_the_plainest_as_in_a_session():
    """A delay is predicted to gain 2 %, and gains 50 %: it is not proved, so it is not found."""
    alike = {s: 1.02 if s.delay_us else 1.0 for s in CARRY}
    sweep = Replay(recorded(lambda settings, carried: 100.0 * alike[settings] if settings.threads == 2 else carried))
    chosen, _, searched = sweep.predict(0)
    assert not searched
    assert sweep.measured[chosen] == 120.0


@pytest.mark.parametrize(("tried", "best"), [(6, 150.0), (1, 120.0)])
def test_a_prediction_that_is_wrong_is_searched_after_and_the_search_costs(monkeypatch, tried, best):
    """What is searched over is all, or what ships alone: then the first proof had the best."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(search, "quick", lambda options, carried, **how: {o: carried(o) for o in options[:tried]})
    sweep = Replay(recorded(lambda settings, carried: 300.0 if settings.batching else 30.0))
    chosen, seconds, searched = sweep.predict(0)
    assert searched
    assert sweep.measured[chosen] == best
    assert seconds > 11 + 4 * 3  # four configurations were proved, by three probes each at least
