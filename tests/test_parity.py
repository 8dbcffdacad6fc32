"""The gate: what must pass, and above all what must not."""

import numpy as np
import pytest

from accel.artifacts import TensorSpec
from accel.errors import StageError, UsageError
from accel.parity import GATES_DB, check_names, coarser, compare, gate_for

HIDDEN = TensorSpec("hidden", "float32", ("batch", "seq", 8))
LOGITS = TensorSpec("logits", "float32", ("batch", 5))
IMAGE = TensorSpec("map", "float32", ("batch", 3, 4, 4))
LABEL = TensorSpec("label", "int64", ("batch",))
rng = np.random.default_rng(0)


def write(path, feeds):
    np.savez(path, **{f"{feed}/{name}": value for feed, outputs in feeds.items() for name, value in outputs.items()})
    return path


def judge(tmp_path, truth, found, spec, precision="fp32", **options):
    files = write(tmp_path / "truth.npz", truth), write(tmp_path / "found.npz", found)
    gate = gate_for(precision, outputs=[spec], task=options.pop("task", None), overrides=options.pop("overrides", {}))
    return compare(*files, outputs=[spec], masks=options.pop("masks", {}), gate=gate, **options)


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


def test_equal_is_exact_and_passes_every_gate(tmp_path):
    verdict = judge(tmp_path, feeds(HIDDEN), feeds(HIDDEN), HIDDEN)
    assert verdict.passed
    assert verdict.outputs[0].exact
    assert verdict.outputs[0].sqnr_db is None
    assert verdict.outputs[0].max_abs == 0


@pytest.mark.parametrize(("db", "passes"), [(25, ["int8"]), (35, ["int8", "bf16"]), (47, ["int8", "bf16", "fp16"])])
def test_noise_meets_the_gate_of_its_precision_and_no_finer(tmp_path, db, passes):
    noisy = feeds(HIDDEN, noise=10 ** (-db / 20))
    for precision in ("int8", "bf16", "fp16", "tf32", "fp32"):
        verdict = judge(tmp_path, feeds(HIDDEN), noisy, HIDDEN, precision)
        assert verdict.passed == (precision in passes), (precision, verdict)
        assert verdict.outputs[0].sqnr_db == pytest.approx(db, abs=1)


@pytest.mark.parametrize("spec", [HIDDEN, LOGITS, IMAGE])
@pytest.mark.parametrize("precision", GATES_DB)
def test_a_constant_predictor_fails_every_gate(tmp_path, spec, precision):
    """A large constant plus a small signal: the best constant has 40 dB of plain SQNR, and must still fail."""
    truth = feeds(spec, offset=100.0)
    axis = tuple(i for i in range(len(spec.dims)) if i != (1 if len(spec.dims) == 4 else len(spec.dims) - 1))
    mean = np.mean([v[spec.name].mean(axis=axis, keepdims=True) for v in truth.values()], axis=0)
    constant = {f: {spec.name: np.broadcast_to(mean, v[spec.name].shape).astype(np.float32)} for f, v in truth.items()}
    verdict = judge(tmp_path, truth, constant, spec, precision)
    assert not verdict.passed
    assert verdict.outputs[0].sqnr_db == pytest.approx(0, abs=0.5)


@pytest.mark.parametrize("dims", [("batch", 84, 20), (50,), ("batch", 4, "seq", 16), ("batch", 3, 6, 6)])
def test_a_constant_of_each_fixed_position_fails(tmp_path, dims):
    """Boxes per anchor, keys per head, a fixed picture: what never moves is no signal, on however many axes it lies."""
    spec = TensorSpec("out", "float32", dims)
    own = np.random.default_rng(3)
    constant = 100 * own.standard_normal([d if isinstance(d, int) else 1 for d in dims])
    shape = [d if isinstance(d, int) else {"batch": 1, "seq": 5}[d] for d in dims]
    truth = {str(i): {"out": (constant + own.standard_normal(shape)).astype(np.float32)} for i in range(30)}
    found = {f: {"out": np.broadcast_to(constant, shape).astype(np.float32)} for f in truth}
    assert not judge(tmp_path, truth, found, spec, "int8").passed
    near = {f: {"out": v["out"] + np.float32(0.01)} for f, v in truth.items()}
    assert judge(tmp_path, truth, near, spec, "int8").passed


def test_one_lost_sample_fails_though_the_set_is_fine(tmp_path):
    truth, found = feeds(LOGITS, count=400), feeds(LOGITS, count=400)
    found["7"]["logits"][:] = 0
    verdict = judge(tmp_path, truth, found, LOGITS, "int8")
    assert verdict.outputs[0].sqnr_db > 20
    assert not verdict.passed
    assert "'7'" in verdict.reasons[0]
    assert judge(tmp_path, truth, found, LOGITS, "int8", overrides={"sqnr_db": -20.0}).passed


def test_nothing_compared_is_not_a_pass(tmp_path):
    with pytest.raises(StageError, match="no answers"):
        judge(tmp_path, feeds(HIDDEN), {}, HIDDEN)
    wrong = {f: {"hidden": -v["hidden"]} for f, v in feeds(HIDDEN).items()}
    hidden = dict.fromkeys(wrong, np.zeros((4, 7), np.int64))
    verdict = judge(tmp_path, feeds(HIDDEN), wrong, HIDDEN, masks=hidden, mask_dims=("batch", "seq"))
    assert not verdict.passed
    assert "nothing was compared" in verdict.reasons[0]
    lost = {f: {"hidden": np.full_like(v["hidden"], np.nan)} for f, v in wrong.items()}
    assert not judge(tmp_path, lost, lost, HIDDEN).passed
    empty = {"0": {"hidden": np.zeros((0, 7, 8), np.float32)}}
    assert judge(tmp_path, empty, empty, HIDDEN).passed


def test_a_name_with_slashes_and_large_integers(tmp_path):
    spec = TensorSpec("model/out:0", "float32", ("batch", 5))
    assert judge(tmp_path, feeds(spec), feeds(spec), spec).passed
    ids = {"0": {"label": np.array([2**53 + 1])}}
    assert not judge(tmp_path, ids, {"0": {"label": np.array([2**53])}}, LABEL).passed


@pytest.mark.parametrize("dtype", ["float16", "bool", "uint8"])
@pytest.mark.parametrize("dims", [(), ("batch",), ("batch", "n")])
def test_dtypes_and_ranks(tmp_path, dtype, dims):
    spec = TensorSpec("out", dtype, dims)
    shape = [{"batch": 4, "n": 3}[d] for d in dims]
    own = np.random.default_rng(5)
    truth = {str(i): {"out": (own.random(shape) * 200 > 100).astype(dtype)} for i in range(20)}
    assert judge(tmp_path, truth, truth, spec).passed
    found = {f: {"out": (1 - v["out"].astype(np.float32)).astype(dtype)} for f, v in truth.items()}
    assert not judge(tmp_path, truth, found, spec, "int8").passed


def test_a_constant_reference_proves_nothing_unless_exact(tmp_path):
    flat = {f: {"hidden": np.ones_like(v["hidden"])} for f, v in feeds(HIDDEN).items()}
    near = {f: {"hidden": v["hidden"] + 1e-6} for f, v in flat.items()}
    assert judge(tmp_path, flat, flat, HIDDEN).passed
    verdict = judge(tmp_path, flat, near, HIDDEN, "int8")
    assert not verdict.passed
    assert "constant" in verdict.reasons[0]


def test_padding_is_not_compared(tmp_path):
    truth, found = feeds(HIDDEN), feeds(HIDDEN)
    mask = np.ones((4, 7), np.int64)
    mask[:, 5:] = 0
    for value in found.values():
        value["hidden"][:, 5:] += 1000
    masks = dict.fromkeys(truth, mask)
    assert judge(tmp_path, truth, found, HIDDEN, masks=masks, mask_dims=("batch", "seq")).passed
    assert not judge(tmp_path, truth, found, HIDDEN).passed


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_one_nan_fails(tmp_path, bad):
    found = feeds(HIDDEN)
    found["3"]["hidden"][0, 0, 0] = bad
    verdict = judge(tmp_path, feeds(HIDDEN), found, HIDDEN, "int8")
    assert not verdict.passed
    assert verdict.outputs[0].nonfinite == 1


def test_infinities_of_the_reference_must_be_met(tmp_path):
    truth, found = feeds(HIDDEN), feeds(HIDDEN)
    truth["0"]["hidden"][0, 0, 0] = -np.inf
    assert not judge(tmp_path, truth, found, HIDDEN).passed
    found["0"]["hidden"][0, 0, 0] = -np.inf
    assert judge(tmp_path, truth, found, HIDDEN).passed


def test_one_broken_shape_fails_though_the_set_is_fine(tmp_path):
    truth, found = feeds(HIDDEN, count=400), feeds(HIDDEN, count=400)
    found["max"]["hidden"][:] += 1.0
    verdict = judge(tmp_path, truth, found, HIDDEN, "int8")
    assert verdict.outputs[0].sqnr_db > 20
    assert not verdict.passed
    assert "'max'" in verdict.reasons[0]


def test_a_shape_gets_the_room_of_one_sample_and_no_more(tmp_path):
    """At one shape 25 dB: enough for bf16 and int8, not for what claims fp16 or fp32."""
    truth, found = feeds(HIDDEN, count=2000), feeds(HIDDEN, count=2000)
    found["max"]["hidden"] += np.float32(10 ** (-25 / 20)) * rng.standard_normal((4, 7, 8)).astype(np.float32)
    passed = {p: judge(tmp_path, truth, found, HIDDEN, p).passed for p in ("int8", "bf16", "fp16", "fp32")}
    assert passed == {"int8": True, "bf16": True, "fp16": False, "fp32": False}


def test_integers_are_exact_or_fail(tmp_path):
    truth = {"0": {"label": np.arange(100)}}
    found = {"0": {"label": np.arange(100)}}
    assert judge(tmp_path, truth, found, LABEL).passed
    found["0"]["label"][3] += 1
    verdict = judge(tmp_path, truth, found, LABEL, "int8")
    assert not verdict.passed
    assert verdict.found["agreement"] == pytest.approx(0.99)


def test_another_shape_or_a_missing_output_is_an_error(tmp_path):
    with pytest.raises(StageError, match="shape"):
        judge(tmp_path, {"0": {"label": np.arange(4)}}, {"0": {"label": np.arange(5)}}, LABEL)
    with pytest.raises(StageError, match="missing"):
        judge(tmp_path, {"0": {"label": np.arange(4)}}, {"0": {"other": np.arange(4)}}, LABEL)


def test_a_task_metric_replaces_sqnr_but_not_a_broken_shape(tmp_path):
    truth, found = feeds(HIDDEN), feeds(HIDDEN, noise=0.5)
    verdict = judge(tmp_path, truth, found, HIDDEN, "fp32", task=("rank", 0.98), metric=lambda a, b: 0.99)
    assert verdict.passed
    assert not judge(tmp_path, truth, found, HIDDEN, "int8", task=("rank", 0.98), metric=lambda a, b: 0.97).passed
    found["max"]["hidden"][:] = 0
    assert not judge(tmp_path, truth, found, HIDDEN, "int8", task=("rank", 0.98), metric=lambda a, b: 0.99).passed


def test_top1_agreement(tmp_path):
    truth = {"0": {"logits": np.eye(5, dtype=np.float32)}}
    found = {"0": {"logits": np.eye(5, dtype=np.float32)[[0, 1, 2, 3, 3]]}}
    assert judge(tmp_path, truth, found, LOGITS, "int8").outputs[0].agreement == pytest.approx(0.8)


def test_overrides():
    gate = gate_for("int8", outputs=[HIDDEN], task=None, overrides={"int8": 25.0, "bf16": 35.0})
    assert gate == {"sqnr_db": 25.0, "shape_db": 3.0}
    loose = gate_for("bf16", outputs=[HIDDEN], task=None, overrides={"sqnr_db": 12.0})
    assert loose == {"sqnr_db": 12.0, "shape_db": 12.0}
    assert gate_for("int8", outputs=[LABEL], task=("rank", 0.98), overrides={"rank": 0.9})["rank"] == 0.9


def test_tolerance_needed_would_pass(tmp_path):
    truth, found = feeds(HIDDEN), feeds(HIDDEN, noise=0.01)
    row = judge(tmp_path, truth, found, HIDDEN, "int8").outputs[0]
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
