"""The search for INT8 layers, against an exhaustive greedy one on a network whose harmful layers are planted."""

import json
import math
import time

import numpy as np
import pytest
from onnx import helper
from typed_graphs import FLOAT, answers, save, sqnr_db

from accel.builders.tensorrt import network_rules
from accel.core.errors import UsageError
from accel.core.values import from_json, to_json
from accel.graph import quantize, sensitivity

WIDTH, LAYERS = 24, 10
HARMFUL = {2: 60.0, 5: 25.0, 8: 8.0}
"""Layer → how far one channel of what it reads sticks out: its scale then has few steps left for the others."""
FLOOR = 33.0


@pytest.fixture(scope="module")
def network(tmp_path_factory):
    """Ten residual layers; before the harmful ones one channel is blown up, and its weights are small in return."""
    random = np.random.default_rng(0)
    nodes, constants, before = [], {}, "x"
    for layer in range(LAYERS):
        weight = random.standard_normal((WIDTH, WIDTH)).astype(np.float32) / np.float32(2 * np.sqrt(WIDTH))
        spread = np.ones(WIDTH, np.float32)
        spread[layer] = HARMFUL.get(layer, 1.0)
        constants |= {f"w{layer}": weight / spread[:, None], f"s{layer}": spread}
        nodes += [
            helper.make_node("Mul", [before, f"s{layer}"], [f"spread{layer}"], f"spread{layer}"),
            helper.make_node("MatMul", [f"spread{layer}", f"w{layer}"], [f"p{layer}"], f"product{layer}"),
            helper.make_node("Tanh", [f"p{layer}"], [f"t{layer}"], f"tanh{layer}"),
            helper.make_node("Add", [before, f"t{layer}"], [f"h{layer}"], f"add{layer}"),
        ]
        before = f"h{layer}"
    nodes.append(helper.make_node("Identity", [before], ["y"], "end"))
    ends = {"inputs": {"x": (FLOAT, ["batch", WIDTH])}, "outputs": {"y": (FLOAT, ["batch", WIDTH])}}
    path = save(tmp_path_factory.mktemp("network") / "m.onnx", nodes, constants, **ends)
    made = [{"x": random.standard_normal((16, WIDTH)).astype(np.float32)} for _ in range(8)]
    return path, made[:4], made[4:]


def prepare(path, folder, calibration):
    return quantize.prepare(path, folder, to="int8", feeds=calibration, method="minmax", threads=1)


def scorer(path, held):
    """Return the SQNR of a file on held-back feeds, counting its calls."""
    feed = {"x": np.concatenate([f["x"] for f in held])}
    truth = answers(path, feed)[0]
    calls = []

    def score(file):
        calls.append(file)
        return sqnr_db(truth, answers(file or path, feed)[0])

    return score, calls


def greedy(ready, score, floor):
    """Quantise the layer that costs least, each tried at every step; return the share and how often it scored."""
    kept, evaluations = {p.node for p in ready.products}, 0
    while kept:
        tried = []
        for node in sorted(kept):
            tried.append((score(ready.write(kept - {node}, ready.path.with_name("greedy.onnx"))), node))
            evaluations += 1
        best, node = max(tried)
        if best < floor:
            break
        kept -= {node}
    return ready.share(kept), evaluations


def test_it_finds_what_an_exhaustive_greedy_search_finds(network, tmp_path):
    path, calibration, held = network
    score, calls = scorer(path, held)
    ready = prepare(path, tmp_path, calibration)
    found = ready.search(score, FLOOR)
    assert found.holds
    assert found.evaluations == len(calls)
    share, evaluations = greedy(ready, score, FLOOR)
    assert 0 < share < 1, "the floor must bind for this to prove anything"
    assert found.chosen.share >= 0.95 * share
    assert found.evaluations < evaluations / 2
    assert found.exhaustive == LAYERS * (LAYERS + 1) // 2
    assert "product2" in found.chosen.kept  # the worst of the planted layers
    assert found.units[-1].nodes == ("product2",)
    shares = [s.share for s in found.curve]
    assert shares == sorted(shares)
    assert (shares[0], shares[-1]) == (0.0, 1.0)
    assert from_json(sensitivity.Search, json.loads(json.dumps(to_json(found)))) == found


def test_what_was_chosen_is_what_is_written(network, tmp_path):
    path, calibration, held = network
    score, _ = scorer(path, held)
    found = prepare(path, tmp_path, calibration).search(score, FLOOR)
    out = tmp_path / "int8.onnx"
    report = quantize.for_tensorrt(
        path, out, to="int8", feeds=calibration, method="minmax", keep=found.chosen.kept, threads=1
    )
    assert report["share"] == found.chosen.share
    assert score(out) == found.chosen.score
    assert not [f for f in network_rules.check(out) if f.severity == "error"]
    text = sensitivity.table(found)
    assert text.count("<- chosen") == 1
    assert "below the floor" in text


def test_a_floor_that_everything_holds_takes_two_evaluations(network, tmp_path):
    path, calibration, held = network
    score, calls = scorer(path, held)
    found = prepare(path, tmp_path, calibration).search(score, 1.0)
    assert found.chosen.share == 1
    assert len(calls) == 2


@pytest.mark.parametrize("answer", [0.5, float("nan")])
def test_a_floor_that_nothing_holds_leaves_everything_in_float(network, answer, tmp_path):
    path, calibration, _ = network
    found = prepare(path, tmp_path, calibration).search(lambda _: answer, 0.9)
    assert not found.holds
    assert (found.chosen.share, found.chosen.quantised) == (0.0, 0)
    json.dumps(to_json(found), allow_nan=False)


def test_too_few_evaluations_are_refused(network, tmp_path):
    path, calibration, _ = network
    with pytest.raises(UsageError, match="cannot try 10 groups") as refused:
        prepare(path, tmp_path, calibration).search(lambda _: 1.0, 0.9, evaluations=5)
    assert refused.value.fix == "allow 12 or more"


def test_the_allowance_is_kept(network, tmp_path):
    path, calibration, held = network
    score, calls = scorer(path, held)
    found = prepare(path, tmp_path, calibration).search(score, FLOOR, evaluations=13)
    assert len(calls) == found.evaluations <= 13
    assert found.holds


def noises(powers, seconds=0.0):
    """Return units, their work, and a score: the power of the noise of every unit that is quantised, in dB."""
    calls = []

    def score(kept):
        calls.append(kept)
        time.sleep(seconds)
        return -10.0 * math.log10(sum(p for name, p in powers.items() if name not in kept) + 1e-20)

    return [(name,) for name in powers], dict.fromkeys(powers, 1), score, calls


def test_noise_ranks_by_its_power_where_the_score_is_in_db():
    """Ten times the work for five hundred times the noise is a bad bargain; in dB it looks like a good one."""
    units, work, score, _ = noises({"large": 5e-2, "small": 1e-4, "worst": 1.0})
    work["large"] = 10
    found = sensitivity.search(units, work, score, 20.0, evaluations=99, loss=lambda db: 10 ** (-db / 10))
    assert [unit.nodes for unit in found.units] == [("small",), ("large",), ("worst",)]
    assert found.chosen.kept == ("large", "worst")


def test_what_is_best_so_far_stands_when_the_time_is_over():
    """Sixty units of 10 ms each: half of the time takes groups of neighbours, and the result holds the floor."""
    powers = {f"unit{i}": 1.0 if i == 17 else 1e-6 for i in range(60)}
    units, work, score, calls = noises(powers, seconds=0.01)
    found = sensitivity.search(units, work, score, 30.0, evaluations=999, seconds=0.5, loss=lambda db: 10 ** (-db / 10))
    assert found.holds
    assert found.search_s < 1.0
    assert len(calls) < 60
    assert 0.5 < found.chosen.share < 1.0
    assert "unit17" in found.chosen.kept
    assert len(found.units[0].nodes) > 1


@pytest.mark.parametrize("slower", [1, 2, 3, 10])
def test_trials_that_become_slower_take_no_more_time_and_lose_nothing_that_holds(monkeypatch, slower):
    """A second build that starts beside the search is the usual case."""
    now, calls = 0.0, 0
    units, work, score, _ = noises({f"unit{i}": 1.0 if i == 17 else 1e-6 for i in range(60)})

    def timed(kept):
        nonlocal now, calls
        now, calls = now + (1.0 if calls < 2 else slower), calls + 1
        return score(kept)

    monkeypatch.setattr(sensitivity.time, "monotonic", lambda: now)
    given = {"evaluations": 999, "seconds": 60.0, "loss": lambda db: 10 ** (-db / 10)}
    found = sensitivity.search(units, work, timed, 30.0, **given)
    assert found.search_s == now <= 60 + slower
    assert found.holds
    assert found.chosen.share > 0
    assert "unit17" in found.chosen.kept


def test_with_little_time_the_middle_is_quantised_first():
    powers = {f"unit{i}": 1.0 if i == 2 else 1e-6 for i in range(16)}
    units, work, score, calls = noises(powers, seconds=0.01)
    found = sensitivity.search(units, work, score, 30.0, evaluations=99, seconds=0.12, points=1)
    assert found.holds
    assert found.units == ()
    assert len(calls) <= 13
    assert "unit2" in found.chosen.kept
    assert found.chosen.share >= 9 / 16
    assert sensitivity.from_the_middle(6) == [3, 2, 1, 4, 0, 5]


@pytest.mark.parametrize("enough", [False, True])
def test_where_there_is_no_time_to_score_each_unit_an_estimate_ranks_them(monkeypatch, enough):
    """Two units of sixty harm: neighbours that were tried together with them would stay in float, too."""
    now, estimates = 0.0, 0
    powers = {f"unit{i}": 1.0 if i in (17, 40) else 1e-6 for i in range(60)}
    units, work, score, calls = noises(powers)

    def scored(kept):
        nonlocal now
        now += 1.0
        return score(kept)

    def estimate(kept):
        nonlocal now, estimates
        now, estimates = now + 0.1, estimates + 1
        return sum(p for name, p in powers.items() if name not in kept)

    monkeypatch.setattr(sensitivity.time, "monotonic", lambda: now)
    given = {"evaluations": 999, "seconds": 120.0 if enough else 30.0, "loss": lambda db: 10 ** (-db / 10)}
    found = sensitivity.search(units, work, scored, 30.0, points=1, estimate=estimate, **given)
    assert set(found.chosen.kept) == {"unit17", "unit40"}
    assert estimates == (0 if enough else 62)  # all, none and each alone
    assert len(calls) == found.evaluations
    assert bool(found.units) == enough  # what was estimated has no score
