"""The gate: what must pass, and above all what must not."""

import math

import numpy as np
import pytest

from accel.core.accuracy import parity
from accel.core.accuracy.detections import match, overlaps
from accel.core.accuracy.parity import (
    GATES_DB,
    TASK_FLOORS_DB,
    Noise,
    accept,
    check_names,
    coarser,
    compare,
    gate_for,
    lowered,
)
from accel.core.errors import StageError, UsageError
from accel.core.values import Detections, Parity, TensorSpec

HIDDEN = TensorSpec("hidden", "float32", ("batch", "seq", 8))
LOGITS = TensorSpec("logits", "float32", ("batch", 5))
IMAGE = TensorSpec("map", "float32", ("batch", 3, 4, 4))
LABEL = TensorSpec("label", "int64", ("batch",))
rng = np.random.default_rng(0)


def judge(truth, found, spec, precision="fp32", **options):
    gate = gate_for(precision, outputs=[spec], task=options.pop("task", None), overrides=options.pop("overrides", {}))
    return compare(truth, found, outputs=[spec], masks=options.pop("masks", {}), gate=gate, **options)


def feeds(spec, noise=0.0, count=6, offset=0.0, seed=1):
    own = np.random.default_rng(seed)
    noisy = np.random.default_rng(99)
    sizes = {"batch": 4, "seq": 7}
    result = {}
    for i in [*map(str, range(count)), "min", "max"]:
        shape = [d if isinstance(d, int) else sizes[d] for d in spec.dims]
        clean = own.standard_normal(shape).astype(np.float32) + offset
        result[i] = {spec.name: (clean + noise * noisy.standard_normal(shape)).astype(np.float32)}
    return result


def test_equal_is_exact_and_passes_every_gate():
    verdict = judge(feeds(HIDDEN), feeds(HIDDEN), HIDDEN)
    assert verdict.passed
    assert verdict.outputs[0].exact
    assert verdict.outputs[0].sqnr_db is None
    assert verdict.outputs[0].max_abs == 0


@pytest.mark.parametrize(("db", "passes"), [(25, ["int8"]), (35, ["int8", "bf16"]), (47, ["int8", "bf16", "fp16"])])
def test_noise_meets_the_gate_of_its_precision_and_no_finer(db, passes):
    noisy = feeds(HIDDEN, noise=10 ** (-db / 20))
    for precision in ("int8", "bf16", "fp16", "tf32", "fp32"):
        verdict = judge(feeds(HIDDEN), noisy, HIDDEN, precision)
        assert verdict.passed == (precision in passes), (precision, verdict)
        assert verdict.outputs[0].sqnr_db == pytest.approx(db, abs=1)


@pytest.mark.parametrize("spec", [HIDDEN, LOGITS, IMAGE])
@pytest.mark.parametrize("precision", GATES_DB)
def test_a_constant_predictor_fails_every_gate(spec, precision):
    """A large constant plus a small signal: the best constant has 40 dB of plain SQNR, and must still fail."""
    truth = feeds(spec, offset=100.0)
    axis = tuple(i for i in range(len(spec.dims)) if i != (1 if len(spec.dims) == 4 else len(spec.dims) - 1))
    mean = np.mean([v[spec.name].mean(axis=axis, keepdims=True) for v in truth.values()], axis=0)
    constant = {f: {spec.name: np.broadcast_to(mean, v[spec.name].shape).astype(np.float32)} for f, v in truth.items()}
    verdict = judge(truth, constant, spec, precision)
    assert not verdict.passed
    assert verdict.outputs[0].sqnr_db == pytest.approx(0, abs=0.5)


@pytest.mark.parametrize("dims", [("batch", 84, 20), (50,), ("batch", 4, "seq", 16), ("batch", 3, 6, 6)])
def test_a_constant_of_each_fixed_position_fails(dims):
    """Boxes per anchor, keys per head, a fixed picture: what never moves is no signal, on however many axes it lies."""
    spec = TensorSpec("out", "float32", dims)
    own = np.random.default_rng(3)
    constant = 100 * own.standard_normal([d if isinstance(d, int) else 1 for d in dims])
    shape = [d if isinstance(d, int) else {"batch": 1, "seq": 5}[d] for d in dims]
    truth = {str(i): {"out": (constant + own.standard_normal(shape)).astype(np.float32)} for i in range(30)}
    found = {f: {"out": np.broadcast_to(constant, shape).astype(np.float32)} for f in truth}
    assert not judge(truth, found, spec, "int8").passed
    near = {f: {"out": v["out"] + np.float32(0.01)} for f, v in truth.items()}
    assert judge(truth, near, spec, "int8").passed


def test_one_lost_sample_fails_though_the_set_is_fine():
    truth, found = feeds(LOGITS, count=400), feeds(LOGITS, count=400)
    found["7"]["logits"][:] = 0
    verdict = judge(truth, found, LOGITS, "int8")
    assert verdict.outputs[0].sqnr_db > 20
    assert not verdict.passed
    assert "'7'" in verdict.reasons[0]
    assert judge(truth, found, LOGITS, "int8", overrides={"sqnr_db": -20.0}).passed


def test_nothing_compared_is_not_a_pass():
    with pytest.raises(StageError, match="no answers"):
        judge(feeds(HIDDEN), {}, HIDDEN)
    wrong = {f: {"hidden": -v["hidden"]} for f, v in feeds(HIDDEN).items()}
    hidden = dict.fromkeys(wrong, np.zeros((4, 7), np.int64))
    verdict = judge(feeds(HIDDEN), wrong, HIDDEN, masks=hidden, mask_dims=("batch", "seq"))
    assert not verdict.passed
    assert "nothing was compared" in verdict.reasons[0]
    lost = {f: {"hidden": np.full_like(v["hidden"], np.nan)} for f, v in wrong.items()}
    assert not judge(lost, lost, HIDDEN).passed
    empty = {"0": {"hidden": np.zeros((0, 7, 8), np.float32)}}
    assert judge(empty, empty, HIDDEN).passed


def test_a_name_with_slashes_and_large_integers():
    spec = TensorSpec("model/out:0", "float32", ("batch", 5))
    assert judge(feeds(spec), feeds(spec), spec).passed
    ids = {"0": {"label": np.array([2**53 + 1])}}
    assert not judge(ids, {"0": {"label": np.array([2**53])}}, LABEL).passed


@pytest.mark.parametrize("dtype", ["float16", "bool", "uint8"])
@pytest.mark.parametrize("dims", [(), ("batch",), ("batch", "n")])
def test_dtypes_and_ranks(dtype, dims):
    spec = TensorSpec("out", dtype, dims)
    shape = [{"batch": 4, "n": 3}[d] for d in dims]
    own = np.random.default_rng(5)
    truth = {str(i): {"out": (own.random(shape) * 200 > 100).astype(dtype)} for i in range(20)}
    assert judge(truth, truth, spec).passed
    found = {f: {"out": (1 - v["out"].astype(np.float32)).astype(dtype)} for f, v in truth.items()}
    assert not judge(truth, found, spec, "int8").passed


@pytest.mark.parametrize("value", [0.0, 1.0, 1e4])
def test_a_constant_reference_is_held_to_a_tolerance(value):
    """Rounding noise about a constant is no signal: an exact FP32 variant passed no gate before."""
    own = np.random.default_rng(1)
    ripple = lambda v, size: own.uniform(-1e-7, 1e-7, v["hidden"].shape) * size  # noqa: E731
    flat = {f: {"hidden": (value + ripple(v, value)).astype(np.float32)} for f, v in feeds(HIDDEN).items()}
    near = {f: {"hidden": (value + ripple(v, value or 0.01)).astype(np.float32)} for f, v in flat.items()}
    assert judge(flat, flat, HIDDEN).passed
    verdict = judge(flat, near, HIDDEN)
    assert verdict.passed, verdict.reasons
    assert judge(flat, near, HIDDEN).outputs[0].sqnr_db > 100
    off = {f: {"hidden": v["hidden"] + np.float32(0.01 * (value + 0.01))} for f, v in flat.items()}
    assert not judge(flat, off, HIDDEN).passed
    wrong = {f: {"hidden": -v["hidden"] - 1} for f, v in flat.items()}
    assert not judge(flat, wrong, HIDDEN, "int8").passed


def test_units_in_the_last_place_of_an_output_that_hardly_varies_are_no_error():
    """Boxes of a detector with random weights: 0.5, give or take 1e-5, and another order of summation."""
    own = np.random.default_rng(2)
    flat = {
        f: {"hidden": (0.5 + 1e-5 * own.standard_normal(v["hidden"].shape)).astype(np.float32)}
        for f, v in feeds(HIDDEN).items()
    }

    def off_by(units: int):
        step = np.float32(units * 2.0**-24)
        return {f: {"hidden": v["hidden"] + own.choice([-step, step], v["hidden"].shape)} for f, v in flat.items()}

    verdict = judge(flat, off_by(2), HIDDEN)
    assert verdict.outputs[0].sqnr_db < 60
    assert verdict.passed, verdict.reasons
    assert any("in place of 80" in note for note in verdict.notes)
    assert verdict.gate["sqnr_db"] <= verdict.found["sqnr_db"]
    assert not judge(flat, off_by(16), HIDDEN).passed


def test_few_samples_are_held_to_a_tolerance():
    """One sample repeated: the mean is the sample, and what centring leaves is rounding noise."""
    row = np.random.default_rng(0).standard_normal((1, 7, 8)).astype(np.float32)
    noise = np.random.default_rng(1).uniform(-1e-7, 1e-7, (4, 7, 8)).astype(np.float32)
    truth = {f: {"hidden": np.repeat(row, 4, 0)} for f in ("0", "1", "min", "opt")}
    near = {f: {"hidden": v["hidden"] + noise} for f, v in truth.items()}
    gate = gate_for("fp32", outputs=[HIDDEN], task=("rank", 0.98), overrides={}, items=1)
    assert gate == {"tolerance_db": 80.0}
    verdict = compare(truth, near, outputs=[HIDDEN], masks={}, gate=gate)
    assert verdict.passed, verdict.reasons
    assert verdict.outputs[0].sqnr_db > 100
    off = {f: {"hidden": v["hidden"].copy()} for f, v in truth.items()}
    off["1"]["hidden"][2, 3, 4] += 0.001
    verdict = compare(truth, off, outputs=[HIDDEN], masks={}, gate=gate)
    assert not verdict.passed
    assert "tolerance_db 67" in verdict.reasons[0]
    assert "output 'hidden' is off by up to 0.001" in verdict.reasons[0]
    loose = gate_for("fp32", outputs=[HIDDEN], task=None, overrides={"sqnr_db": 60.0}, items=31)
    assert compare(truth, off, outputs=[HIDDEN], masks={}, gate=loose).passed
    assert "sqnr_db" in gate_for("fp32", outputs=[HIDDEN], task=None, overrides={}, items=32)


def test_nan_of_the_reference_must_be_met_by_nan():
    truth = feeds(HIDDEN)
    truth["2"]["hidden"][0, 0, :2] = np.nan, np.inf
    assert judge(truth, truth, HIDDEN).passed
    for other in (0.0, np.inf, -np.inf):
        found = {f: {"hidden": v["hidden"].copy()} for f, v in truth.items()}
        found["2"]["hidden"][0, 0, 0] = other
        verdict = judge(truth, found, HIDDEN, "int8")
        assert not verdict.passed
        assert "'hidden' has 1 values that are NaN or infinite where the reference's are not" in verdict.reasons[0]
    moved = {f: {"hidden": v["hidden"].copy()} for f, v in truth.items()}
    moved["2"]["hidden"][0, 0, 1] = -np.inf
    assert not judge(truth, moved, HIDDEN, "int8").passed


def test_padding_is_not_compared():
    truth, found = feeds(HIDDEN), feeds(HIDDEN)
    mask = np.ones((4, 7), np.int64)
    mask[:, 5:] = 0
    for value in found.values():
        value["hidden"][:, 5:] += 1000
    masks = dict.fromkeys(truth, mask)
    assert judge(truth, found, HIDDEN, masks=masks, mask_dims=("batch", "seq")).passed
    assert not judge(truth, found, HIDDEN).passed


def test_nan_at_padded_positions_fails_for_it_poisons_what_pools():
    truth, found = feeds(HIDDEN), feeds(HIDDEN)
    mask = np.ones((4, 7), np.int64)
    mask[:, 5:] = 0
    found["2"]["hidden"][:, 5:] = np.nan
    verdict = judge(truth, found, HIDDEN, masks=dict.fromkeys(truth, mask), mask_dims=("batch", "seq"))
    assert not verdict.passed
    assert "NaN" in verdict.reasons[0]
    same = feeds(HIDDEN)
    same["2"]["hidden"][:, 5:] = np.nan  # the reference's own
    assert judge(same, found, HIDDEN, masks=dict.fromkeys(truth, mask), mask_dims=("batch", "seq")).passed


def test_another_width_of_floats_is_another_contract():
    wide = {f: {"hidden": v["hidden"].astype(np.float64)} for f, v in feeds(HIDDEN).items()}
    verdict = judge(feeds(HIDDEN), wide, HIDDEN)
    assert not verdict.passed
    assert "is float64, expected float32" in verdict.reasons[0]


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_one_nan_fails(bad):
    found = feeds(HIDDEN)
    found["3"]["hidden"][0, 0, 0] = bad
    verdict = judge(feeds(HIDDEN), found, HIDDEN, "int8")
    assert not verdict.passed
    assert verdict.outputs[0].nonfinite == 1


def test_infinities_of_the_reference_must_be_met():
    truth, found = feeds(HIDDEN), feeds(HIDDEN)
    truth["0"]["hidden"][0, 0, 0] = -np.inf
    assert not judge(truth, found, HIDDEN).passed
    found["0"]["hidden"][0, 0, 0] = -np.inf
    assert judge(truth, found, HIDDEN).passed


def test_one_broken_shape_fails_though_the_set_is_fine():
    truth, found = feeds(HIDDEN, count=400), feeds(HIDDEN, count=400)
    found["max"]["hidden"][:] += 1.0
    verdict = judge(truth, found, HIDDEN, "int8")
    assert verdict.outputs[0].sqnr_db > 20
    assert not verdict.passed
    assert "'max'" in verdict.reasons[0]


def test_a_shape_gets_the_room_of_one_sample_and_no_more():
    """At one shape 25 dB: enough for bf16 and int8, not for what claims fp16 or fp32."""
    truth, found = feeds(HIDDEN, count=2000), feeds(HIDDEN, count=2000)
    found["max"]["hidden"] += np.float32(10 ** (-25 / 20)) * rng.standard_normal((4, 7, 8)).astype(np.float32)
    passed = {p: judge(truth, found, HIDDEN, p).passed for p in ("int8", "bf16", "fp16", "fp32")}
    assert passed == {"int8": True, "bf16": True, "fp16": False, "fp32": False}


def test_integers_are_exact_or_fail():
    truth = {"0": {"label": np.arange(100)}}
    found = {"0": {"label": np.arange(100)}}
    assert judge(truth, found, LABEL).passed
    found["0"]["label"][3] += 1
    verdict = judge(truth, found, LABEL, "int8")
    assert not verdict.passed
    assert verdict.found["agreement"] == pytest.approx(0.99)


def test_another_shape_or_a_missing_output_is_an_error():
    with pytest.raises(StageError, match="shape"):
        judge({"0": {"label": np.arange(4)}}, {"0": {"label": np.arange(5)}}, LABEL)
    with pytest.raises(StageError, match="missing"):
        judge({"0": {"label": np.arange(4)}}, {"0": {"other": np.arange(4)}}, LABEL)


@pytest.mark.parametrize("precision", GATES_DB)
def test_beside_a_task_metric_a_floor_stays(precision):
    """A metric of ranks let half of the noise on a weight pass as FP32: 19 to 25 dB."""
    least = TASK_FLOORS_DB[precision]
    task = {"task": ("rank", 0.98), "metric": lambda a, b: (0.99, 1.0)}
    for room, passes in ((1.5, True), (-1.5, False)):
        noisy = feeds(HIDDEN, noise=10 ** (-(least + room) / 20))
        assert judge(feeds(HIDDEN), noisy, HIDDEN, precision, **task).passed == passes
    poor = {"task": ("rank", 0.98), "metric": lambda a, b: (0.485, 0.5)}
    assert not judge(feeds(HIDDEN), feeds(HIDDEN), HIDDEN, precision, **poor).passed
    broken = feeds(HIDDEN)
    broken["max"]["hidden"][:] = 0
    assert not judge(feeds(HIDDEN), broken, HIDDEN, precision, **task).passed


@pytest.mark.parametrize("score", [math.nan, math.inf, -math.inf])
def test_a_score_that_is_no_number_fails(score):
    task = {"task": ("rank", 0.98), "metric": lambda a, b: (score, 1.0)}
    verdict = judge(feeds(HIDDEN), feeds(HIDDEN), HIDDEN, "fp32", **task)
    assert not verdict.passed
    assert "rank nan of the source's own score" in verdict.reasons[0]


def test_a_floor_is_lowered_by_name_and_said():
    noisy = feeds(HIDDEN, noise=10 ** (-30 / 20))
    usual = gate_for("fp32", outputs=[HIDDEN], task=("rank", 0.98), overrides={})
    asked = gate_for("fp32", outputs=[HIDDEN], task=("rank", 0.98), overrides={"fp32": 25.0})
    assert compare(feeds(HIDDEN), noisy, outputs=[HIDDEN], masks={}, gate=asked, metric=lambda a, b: (1.0, 1.0)).passed
    assert any("sqnr_db is 25 in place of 80" in note for note in lowered(asked, usual))
    assert not lowered(usual, usual)


def test_a_failing_gate_says_where_how_much_and_what_would_pass():
    verdict = judge(feeds(HIDDEN), feeds(HIDDEN, noise=10 ** (-63.5 / 20)), HIDDEN)
    assert "output 'hidden'" in verdict.reasons[0]
    assert f"is off by up to {verdict.outputs[0].max_abs:.3g}" in verdict.reasons[0]
    assert accept(verdict) == "if that is accurate enough for you: --gate sqnr_db=63"
    assert judge(feeds(HIDDEN), feeds(HIDDEN, noise=10 ** (-63.5 / 20)), HIDDEN, overrides={"sqnr_db": 63.0}).passed


def test_a_failing_coverage_feed_is_told_with_its_own_error():
    truth, found = feeds(HIDDEN), feeds(HIDDEN, noise=1e-6)
    truth["left-padded mask"], wrong = truth["0"], np.array(truth["0"]["hidden"])
    wrong[0, 0, 0] += 3.0
    found["left-padded mask"] = {"hidden": wrong}
    (reason,) = judge(truth, found, HIDDEN).reasons
    assert "at feed 'left-padded mask' is off by up to 3)" in reason


def test_few_integers_that_differ_are_told_in_figures_that_say_so():
    """A picture of bytes: agreement 1 was below the gate of 1."""
    spec = TensorSpec("picture", "uint8", ("batch", 100, 100))
    truth = {str(i): {"picture": np.full((1, 100, 100), 7, np.uint8)} for i in range(40)}
    found = {name: {"picture": one["picture"].copy()} for name, one in truth.items()}
    for name in ("0", "1"):
        found[name]["picture"][0, 0, 0] += 1
    verdict = judge(truth, found, spec)
    assert verdict.reasons == ("agreement 0.999995 is below the gate of 1",)
    assert accept(verdict) == "if that is accurate enough for you: --gate agreement=0.9999"
    assert judge(truth, found, spec, overrides={"agreement": 0.9999}).passed
    for one in found.values():
        one["picture"][0, :50] = 0
    assert accept(judge(truth, found, spec)) is None, "that is another picture"


def test_fp32_holds_its_gate_for_other_samples_too():
    """80.1 dB over samples that differ was proved, and gave 79.1 dB on a hundred other sets of them."""
    rng, size = np.random.default_rng(5), (1, 4, 3)
    truth = {str(i): {"hidden": rng.standard_normal(size)} for i in range(200)}

    def answers(spread: float, db: float):
        wrong = {n: rng.standard_normal(size) * np.exp(spread * rng.standard_normal()) for n in truth}
        power = sum((v["hidden"] ** 2).sum() for v in truth.values()) / sum((e**2).sum() for e in wrong.values())
        scale = np.sqrt(power / 10 ** (db / 10))
        return {n: {"hidden": truth[n]["hidden"] + scale * wrong[n]} for n in truth}

    def held(found, precision="fp32", **overrides: float):
        spec = TensorSpec("hidden", "float64", ("batch", "seq", 3))
        gate = gate_for(precision, outputs=[spec], task=None, overrides=overrides)
        return compare(truth, found, outputs=[spec], masks={}, gate=gate)

    at_the_edge = answers(1.0, 80.2)
    verdict = held(at_the_edge)
    assert verdict.found["sqnr_db"] == pytest.approx(80.2, abs=0.01)
    assert "holds the gate of 80 by chance" in verdict.reasons[0]
    assert accept(verdict) == "if that is accurate enough for you: --gate sqnr_db=79"
    assert held(at_the_edge, sqnr_db=79.0).passed
    assert held(answers(0.0, 80.6)).passed, "samples that do not differ say it for others"
    assert held(answers(1.0, 84.0)).passed
    assert held(answers(1.0, 45.2), "fp16").passed, "what error is accepted below FP32 is a choice"


def test_a_gate_above_the_sources_own_noise_is_lowered_to_what_it_can_have():
    truth = feeds(HIDDEN)

    def at(db):
        return feeds(HIDDEN, noise=10 ** (-db / 20))

    def held(db, noise_db):
        own = Noise("in float64", judge(truth, at(noise_db), HIDDEN).outputs)
        return judge(truth, at(db), HIDDEN, noise=own)

    noisy = held(63, 66)
    assert noisy.passed
    assert noisy.gate["sqnr_db"] == pytest.approx(60, abs=1.5)
    assert "in place of 80 (output 'hidden' is off by up to" in noisy.notes[0]
    assert "; the source itself, in float64, gives 6" in noisy.notes[0]
    assert not held(50, 66).passed
    wrong = held(63, 115)
    assert not wrong.passed
    assert "in float64, gives 11" in wrong.reasons[0]
    assert not held(3, 5).passed  # no noise of a source lets everything pass
    assert held(110, 66).gate["sqnr_db"] == 80


def test_a_coverage_feed_is_held_alone_and_counts_in_no_mean():
    truth, found = feeds(HIDDEN), feeds(HIDDEN)
    for side in (truth, found):
        side["values-3"] = {"hidden": 50 * side["1"]["hidden"]}
    assert judge(truth, found, HIDDEN).passed
    found["values-3"]["hidden"][0, 0] += 1
    verdict = judge(truth, found, HIDDEN)
    assert verdict.found["sqnr_db"] is None
    assert not verdict.passed
    assert "feed 'values-3'" in verdict.reasons[0]
    truth["values-3"] = found["values-3"] = {"hidden": 1e4 + truth["1"]["hidden"]}  # far off, and answered rightly
    for name in [*map(str, range(6)), "min", "max"]:
        found[name] = {"hidden": np.zeros_like(found[name]["hidden"])}
    assert judge(truth, found, HIDDEN).found["sqnr_db"] <= 0.1  # samples that are all answered with their mean
    ids = {"0": {"label": np.arange(4)}, "values-0": {"label": np.arange(4)}}
    other = {"0": {"label": np.arange(4)}, "values-0": {"label": np.arange(4) + 1}}
    assert not judge(ids, other, LABEL).passed


def test_top1_agreement():
    truth = {"0": {"logits": np.eye(5, dtype=np.float32)}}
    found = {"0": {"logits": np.eye(5, dtype=np.float32)[[0, 1, 2, 3, 3]]}}
    assert judge(truth, found, LOGITS, "int8").outputs[0].agreement == pytest.approx(0.8)


def test_overrides():
    gate = gate_for("int8", outputs=[HIDDEN], task=None, overrides={"int8": 25.0, "bf16": 35.0})
    assert gate == {"sqnr_db": 25.0, "shape_db": 3.0}
    loose = gate_for("bf16", outputs=[HIDDEN], task=None, overrides={"sqnr_db": 12.0})
    assert loose == {"sqnr_db": 12.0, "shape_db": 12.0}
    assert gate_for("int8", outputs=[LABEL], task=("rank", 0.98), overrides={"rank": 0.9})["rank"] == 0.9


def test_tolerance_needed_would_pass():
    truth, found = feeds(HIDDEN), feeds(HIDDEN, noise=0.01)
    row = judge(truth, found, HIDDEN, "int8").outputs[0]
    for feed in truth:
        np.testing.assert_allclose(found[feed]["hidden"], truth[feed]["hidden"], atol=row.atol_needed * 1.0001, rtol=0)
        np.testing.assert_allclose(found[feed]["hidden"], truth[feed]["hidden"], atol=0, rtol=row.rtol_needed * 1.0001)


def test_coarser():
    assert coarser("bf16", "fp32")
    assert not coarser("fp32", "bf16")
    assert not coarser("none", "fp32")


def test_an_unknown_gate_is_refused_with_the_nearest():
    check_names({"int8": 25.0, "sqnr_db": 30.0, "rank_correlation": 0.99}, ("rank_correlation", 0.98))
    with pytest.raises(UsageError, match="did you mean rank_correlation"):
        check_names({"rank_corelation": 0.99}, ("rank_correlation", 0.98))
    with pytest.raises(UsageError, match="no such gate"):
        check_names({"rank_correlation": 0.99}, None)


DETECTED = (
    TensorSpec("boxes", "float32", ("batch", 10, 4)),
    TensorSpec("scores", "float32", ("batch", 10)),
    TensorSpec("classes", "int64", ("batch", 10)),
    TensorSpec("count", "int64", ("batch",)),
)
SETS = Detections()


def found_things(rows=6, count=12, seed=1):
    """Feeds of four items with ``rows`` boxes each, best first, and padding of zeros."""
    own = np.random.default_rng(seed)
    answers = {}
    for feed in [*map(str, range(count)), "opt", "max"]:
        low = own.uniform(0, 300, (4, 10, 2))
        boxes = np.concatenate([low, low + own.uniform(20, 100, (4, 10, 2))], axis=2)
        scores = -np.sort(-own.uniform(0.3, 1, (4, 10)), axis=1)
        classes = own.integers(0, 5, (4, 10))
        real = np.arange(10) < rows
        answers[feed] = {
            "boxes": np.where(real[:, None], boxes, 0).astype(np.float32),
            "scores": np.where(real, scores, 0).astype(np.float32),
            "classes": np.where(real, classes, 0),
            "count": np.full(4, rows),
        }
    return answers


def changed(answers, change, feeds=None):
    """Copy answers, and let ``change`` work on those of some feeds in place."""
    copy = {f: {n: v.copy() for n, v in a.items()} for f, a in answers.items()}
    for feed in feeds or copy:
        change(copy[feed])
    return copy


def judge_sets(truth, found, precision="fp32", outputs=DETECTED, **overrides):
    gate = gate_for(precision, outputs=outputs, task=None, overrides=overrides, detections=SETS)
    return compare(truth, found, outputs=outputs, masks={}, gate=gate, detections=SETS)


def turn(answer):
    """Put the rows of each item in another order, and leave rubbish in the padding."""
    for item, count in enumerate(answer["count"]):
        for name in ("boxes", "scores", "classes"):
            answer[name][item, :count] = answer[name][item, :count][::-1].copy()
            answer[name][item, count:] = 7


def drop(answer):
    """Lose the last row of each item."""
    answer["count"] -= 1


def invent(answer):
    """Find one thing more in each item."""
    for item, count in enumerate(answer["count"]):
        answer["boxes"][item, count] = [400, 400, 440, 440]
        answer["scores"][item, count] = 0.9
    answer["count"] += 1


def test_a_set_knows_no_order_and_no_padding():
    truth = found_things()
    verdict = judge_sets(truth, changed(truth, turn))
    assert verdict.passed
    assert verdict.found["matched"] == 1
    assert all(row.exact for row in verdict.outputs)
    assert "agreement" not in verdict.gate
    plain = gate_for("fp32", outputs=DETECTED, task=None, overrides={})
    assert not compare(truth, changed(truth, turn), outputs=DETECTED, masks={}, gate=plain).passed


@pytest.mark.parametrize(("change", "share"), [(drop, 10 / 11), (invent, 12 / 13)])
def test_rows_missed_and_made_up_are_counted(change, share):
    truth = found_things()
    verdict = judge_sets(truth, changed(truth, change))
    assert not verdict.passed
    assert verdict.found["matched"] == pytest.approx(share)
    by_name = {row.name: row for row in verdict.outputs}
    assert by_name["count"].agreement == 0
    assert by_name["count"].max_abs == 1
    assert not by_name["boxes"].exact
    assert "matched" in verdict.reasons[0]
    assert judge_sets(truth, changed(truth, change), "int8").passed
    assert judge_sets(truth, changed(truth, change), matched=0.9).passed


def test_one_row_in_hundreds_may_be_another():
    truth = found_things(count=60)
    verdict = judge_sets(truth, changed(truth, drop, ["3"]))
    assert verdict.passed
    assert 0.99 < verdict.found["matched"] < 1


@pytest.mark.parametrize(("pixels", "passes"), [(0.001, ["int8", "bf16", "fp32"]), (1.0, ["int8", "bf16"]), (60, [])])
def test_a_shift_is_an_error_of_values_or_another_row(pixels, passes):
    truth = found_things()

    def shift(answer):
        answer["boxes"] += np.float32(pixels)

    verdicts = {p: judge_sets(truth, changed(truth, shift), p) for p in ("int8", "bf16", "fp32")}
    assert [p for p, v in verdicts.items() if v.passed] == passes
    assert (verdicts["fp32"].found["matched"] == 1) == (pixels < 60)


@pytest.mark.parametrize("name", ["classes", "scores"])
def test_another_class_or_score_is_another_row(name):
    truth = found_things()

    def swap(answer):
        answer[name] = (answer[name] + 1).astype(answer[name].dtype)

    verdict = judge_sets(truth, changed(truth, swap), "int8")
    assert verdict.found["matched"] == 0
    assert not verdict.passed


def test_a_feed_that_lost_its_rows_fails_though_the_set_is_fine():
    truth = found_things(count=200)

    def lose(answer):
        answer["count"][:] = 0

    verdict = judge_sets(truth, changed(truth, lose, ["max"]), "int8")
    assert verdict.found["matched"] > 0.99
    assert not verdict.passed
    assert "'max'" in verdict.reasons[0]


def test_sets_hold_other_outputs_to_their_own_rules():
    outputs = (*DETECTED, LABEL)
    truth = {f: {**a, "label": np.arange(4)} for f, a in found_things().items()}

    def relabel(answer):
        answer["label"] += 1

    assert judge_sets(truth, changed(truth, turn), outputs=outputs).passed
    assert not judge_sets(truth, changed(truth, relabel), outputs=outputs).passed


def test_bad_rows_are_never_partners():
    truth = found_things()

    def spoil(answer):
        answer["boxes"][0, 0, 0] = np.nan
        answer["scores"][1, 0] = np.inf

    verdict = judge_sets(truth, changed(truth, spoil, ["3"]), matched=0.9)
    assert not verdict.passed
    assert {r.name: r.nonfinite for r in verdict.outputs}["boxes"] == 2

    def overflow(answer):
        answer["count"][:] = 11

    with pytest.raises(StageError, match="expected 0 to 10 rows"):
        judge_sets(truth, changed(truth, overflow))


def test_a_box_without_area_is_still_itself():
    truth = found_things()

    def flatten(answer):
        answer["boxes"][:, 0, 2] = answer["boxes"][:, 0, 0]

    flat = changed(truth, flatten)
    assert judge_sets(flat, changed(flat, turn)).passed
    assert not judge_sets(truth, flat).passed


def test_empty_sets_are_equal_and_prove_nothing():
    empty = found_things(rows=0)
    verdict = judge_sets(empty, changed(empty, turn))
    assert verdict.found["matched"] == 1
    assert not verdict.passed
    assert "nothing was compared" in verdict.reasons[0]


def test_partners_are_as_many_as_can_be():
    """Two boxes that each overlap both others: choosing the best pair first would leave one of them alone."""
    boxes = [[[0, 0, 100, 10], [40, 0, 140, 10]]], [[[20, 0, 120, 10], [-20, 0, 80, 10]]]
    sides = [
        {
            "boxes": np.array(b, np.float32),
            "scores": np.full((1, 2), 0.5, np.float32),
            "classes": np.zeros((1, 2), np.int64),
            "count": np.array([2]),
        }
        for b in boxes
    ]
    assert match(*sides, Detections()).share == 1
    np.testing.assert_allclose(
        overlaps(np.array(boxes[0][0], float), np.array(boxes[1][0], float)), [[2 / 3, 2 / 3], [2 / 3, 0.25]]
    )


def test_noise_at_one_coverage_feed_lowers_the_gate_of_that_feed_alone():
    """A flat picture may cancel to nothing: what its noise allows there, a batch of seven is not allowed."""
    truth = feeds(IMAGE) | {"flat low": feeds(IMAGE, seed=3)["0"], "n7": feeds(IMAGE, seed=4)["0"]}
    own = truth | {"flat low": feeds(IMAGE, seed=3, noise=1e-3)["0"]}
    rows = compare(truth, own, outputs=[IMAGE], masks={}, gate={}).outputs
    noise = Noise("with its inputs moved by their last bit", rows)
    bad = feeds(IMAGE, seed=3, noise=1.2e-3)["0"]
    assert judge(truth, truth | {"flat low": bad}, IMAGE, noise=noise).passed
    assert not judge(truth, truth | {"flat low": bad}, IMAGE).passed
    for other in ({}, {"flat low": feeds(IMAGE, seed=3, noise=1.5e-3)["0"]}):  # nor behind one that is worse
        worse = judge(truth, truth | other | {"n7": feeds(IMAGE, seed=4, noise=1.2e-3)["0"]}, IMAGE, noise=noise)
    assert not worse.passed
    assert "'n7'" in worse.reasons[0]


def test_a_coverage_feed_at_which_the_source_knows_no_digit_shows_nothing():
    """A flat input over its own deviation: rounding noise over 1e-8. Samples and shapes are no such feeds."""
    for name, passes in (("flat high", True), ("max", False)):
        truth = feeds(IMAGE) | {name: feeds(IMAGE, seed=3)["0"]}
        other = {name: feeds(IMAGE, seed=5)["0"]}
        rows = compare(truth, truth | other, outputs=[IMAGE], masks={}, gate={}).outputs
        found = truth | {name: feeds(IMAGE, seed=6)["0"]}
        verdict = judge(truth, found, IMAGE, noise=Noise("in float64", rows))
        assert verdict.passed == passes, verdict
        there = f"the source itself, in float64, gives {rows[0].by_shape_db[name]:.4g} dB there"
        assert passes == any("says nothing" in note and there in note for note in verdict.notes)
        assert all(np.isfinite(value) for value in verdict.gate.values())


@pytest.mark.parametrize(
    ("gate", "found", "reason", "stands"),
    [
        ({"sqnr_db": 20.0, "shape_db": 3.0}, {"sqnr_db": 25.0, "shape_db": 4.0}, None, True),
        ({"sqnr_db": 20.0, "shape_db": 3.0}, {"sqnr_db": 21.0, "shape_db": 9.0}, None, False),
        ({"sqnr_db": 20.0, "shape_db": 3.0}, {"sqnr_db": None, "shape_db": None}, None, True),
        ({"rank": 0.98, "sqnr_db": 10.0}, {"rank": 0.985, "sqnr_db": 30.0}, None, False),
        ({"rank": 0.98, "sqnr_db": 10.0}, {"rank": 0.995, "sqnr_db": 30.0}, None, True),
        ({"rank": 0.98, "sqnr_db": 10.0}, {"rank": 0.5, "sqnr_db": 30.0}, "rank 0.5 is below", False),
        ({"sqnr_db": 20.0}, {"sqnr_db": 18.0}, "sqnr_db 18 is below the gate", False),
        ({"sqnr_db": 20.0}, {"sqnr_db": 8.0}, "sqnr_db 8 is below the gate", True),
        ({"sqnr_db": 20.0}, {"sqnr_db": None}, "sqnr_db cannot be computed", False),
        ({"sqnr_db": 80.0}, {"sqnr_db": 80.1}, "sqnr_db 80.1 holds the gate of 80 by chance", False),
        ({"sqnr_db": 20.0, "shape_db": 3.0}, {"sqnr_db": 21.0, "shape_db": 1.0}, "shape_db 1 is below", True),
        ({"agreement": 1.0}, {"agreement": 0.99}, "agreement 0.99 is below", True),
        ({"sqnr_db": 80.0}, {"sqnr_db": 81.0}, "computes in bf16, and fp32 was asked for", True),
    ],
)
def test_a_mean_near_its_gate_settles_nothing(gate, found, reason, stands):
    verdict = Parity(reason is None, gate, found, (), (reason,) if reason else ())
    assert parity.settled(verdict) is stands
    assert parity.settled(verdict, rebuilt=False) is (stands or verdict.passed)


def test_noise_is_asked_for_only_where_it_could_lower_a_gate():
    """A tolerance and integers have no room for noise; what failed for another reason stays failed."""
    truth = feeds(HIDDEN) | {name: feeds(HIDDEN, seed=7)["0"] for name in ("b1", "n3")}

    def judged(sample_db=90.0, shape_db=90.0, **options):
        found = feeds(HIDDEN, noise=10 ** (-sample_db / 20))
        apart = feeds(HIDDEN, seed=7, noise=10 ** (-shape_db / 20))["0"]
        return judge(truth, found | {"b1": apart, "n3": truth["n3"]}, HIDDEN, **options)

    both = judged(sample_db=50.0, shape_db=50.0)
    assert parity.may_be_noise(both)
    assert parity.missed(both) == ("b1", "max", "min")
    mean = judged(sample_db=70.0)
    assert parity.may_be_noise(mean)
    assert parity.missed(mean) == ()  # the same noise serves all variants that miss their mean alone
    one = judged(shape_db=50.0)
    assert parity.may_be_noise(one)
    assert parity.missed(one) == ("b1",)
    assert not parity.may_be_noise(judged())
    assert not parity.may_be_noise(parity.refused(both, "computes in bf16, and fp32 was asked for"))
    few = compare(truth, feeds(HIDDEN, noise=0.1), outputs=[HIDDEN], masks={}, gate={"tolerance_db": 80.0})
    assert not few.passed
    assert not parity.may_be_noise(few)


def test_noise_far_above_a_gate_needs_no_more_feeds():
    for noise_db, least, far in ((125, 80.0, True), (105, 80.0, False), (105, 20.0, True)):
        rows = judge(feeds(HIDDEN), feeds(HIDDEN, noise=10 ** (-noise_db / 20)), HIDDEN, overrides={"fp32": 0}).outputs
        assert Noise("in float64", rows).far_above(least) is far, (noise_db, least)
    exact = judge(feeds(HIDDEN), feeds(HIDDEN), HIDDEN).outputs
    assert Noise("in float64", exact).far_above(80.0)
