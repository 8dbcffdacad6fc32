"""INT8 and FP8 as TensorRT takes them: symmetric, per channel, provable, and wrong where scales are wrong."""

import json

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from scales import check_scales
from typed_graphs import FLOAT, answers, feeds, overflowing, save, sqnr_db, unmasked_db

from accel.builders.tensorrt import network_rules
from accel.core import environments
from accel.core.errors import SampleError, StageError, UnavailableError, UsageError
from accel.core.values import to_json
from accel.graph import calibration, fp16, measured, passes, qdq, quantize


def errors(path):
    return [f for f in network_rules.check(path) if f.severity == "error"]


def scales(path):
    """Return the scales of activations and of weights, and every zero-point."""
    model = onnx.load(path)
    constants = {t.name: t for t in model.graph.initializer}
    found = ([], [], [])
    for node in model.graph.node:
        if node.op_type == "QuantizeLinear":
            value = numpy_helper.to_array(constants[node.input[1]])
            found[node.input[0] in constants].append(value)
            found[2].append(constants[node.input[2]])
    return found


@pytest.mark.parametrize("method", ["minmax", "percentile", "entropy"])
def test_every_product_of_bert_is_symmetric_int8(small_bert, tmp_path, method):
    path, made = small_bert
    out = tmp_path / "int8.onnx"
    report = quantize.for_tensorrt(path, out, to="int8", feeds=made, method=method, threads=1)
    assert (report["products"], report["quantised"], report["share"], report["others"]) == (12, 12, 1.0, 4)
    activations, weights, zeros = scales(out)
    assert all(a.ndim == 0 for a in activations)
    assert sorted(w.shape[0] for w in weights) == [32] * 10 + [64] * 2
    assert {z.data_type for z in zeros} == {TensorProto.INT8}
    assert not any(numpy_helper.to_array(z).any() for z in zeros)
    assert not errors(out)
    assert unmasked_db(path, out, made) > 30
    assert json.loads(json.dumps(to_json(report), allow_nan=False)).keys() == report.keys()
    if method == "minmax":
        assert check_scales(out, made, threads=1) == ()
        assert all(r.cut == max(abs(r.low), abs(r.high)) for r in report["ranges"])


def test_convolutions_have_a_scale_per_output_channel(tmp_path):
    random = np.random.default_rng(0)
    kernel = random.standard_normal((6, 3, 3, 3)).astype(np.float32) * np.logspace(-3, 0, 6)[:, None, None, None]
    path = save(
        tmp_path / "conv.onnx",
        [helper.make_node("Conv", ["x", "k"], ["y"], "conv", pads=[1, 1, 1, 1])],
        {"k": kernel.astype(np.float32)},
        inputs={"x": (FLOAT, ["batch", 3, 8, 8])},
        outputs={"y": (FLOAT, ["batch", 6, 8, 8])},
    )
    made = [{"x": random.standard_normal((2, 3, 8, 8)).astype(np.float32)} for _ in range(3)]
    for to, least_db in (("int8", 35), ("fp8", 20)):
        out = tmp_path / f"{to}.onnx"
        report = quantize.for_tensorrt(path, out, to=to, feeds=made, method="minmax", threads=1)
        _, (scale,), zeros = scales(out)
        kinds = {"int8": TensorProto.INT8, "fp8": TensorProto.FLOAT8E4M3FN}
        assert {z.data_type for z in zeros} == {kinds[to]}
        assert np.allclose(scale, np.abs(kernel).max(axis=(1, 2, 3)) / qdq.SCHEMES[to].largest)
        assert report["opset"] == (18 if to == "int8" else 19)
        assert not errors(out)
        truth, found = (answers(p, made[0])[0] for p in (path, out))
        for channel in range(6):  # a scale for the whole kernel would drown the small channels
            assert sqnr_db(truth[:, channel], found[:, channel]) > least_db
        assert check_scales(out, made, threads=1) == ()


def test_gemm_becomes_a_product_that_can_be_quantised(tmp_path):
    weight = np.random.default_rng(0).standard_normal((8, 16)).astype(np.float32)
    path = save(
        tmp_path / "gemm.onnx",
        [helper.make_node("Gemm", ["x", "w", "b"], ["y"], "dense", transB=1)],
        {"w": weight, "b": np.ones(8, np.float32)},
        inputs={"x": (FLOAT, ["batch", 16])},
        outputs={"y": (FLOAT, ["batch", 8])},
    )
    report = quantize.for_tensorrt(path, tmp_path / "q.onnx", to="int8", feeds=feeds(), method="minmax", threads=1)
    assert report["quantised"] == 1
    truth, found = (answers(p, feeds()[0])[0] for p in (path, tmp_path / "q.onnx"))
    assert sqnr_db(truth, found) > 30


def test_the_rest_is_half_where_asked(small_bert, tmp_path):
    assert environments.installed("modelopt"), "autocast is not installed: make environments"
    path, made = small_bert
    out = tmp_path / "int8.onnx"
    report = quantize.for_tensorrt(path, out, to="int8", feeds=made, base="fp16", method="minmax", threads=1)
    assert report["half"] is not None
    assert report["half"]["half_share"] == 1
    assert report["opset"] == quantize.HALF_OPSET
    activations, weights, _ = scales(out)
    assert {s.dtype for s in (*activations, *weights)} == {np.dtype(np.float16)}
    assert min(float(s.min()) for s in weights) >= 2**-14  # a subnormal scale has few bits
    assert not errors(out)
    fp16.emulate(out, tmp_path / "emulated.onnx")
    assert unmasked_db(path, tmp_path / "emulated.onnx", made) > 30


def test_a_product_behind_a_node_left_in_fp32_keeps_the_scale_of_what_it_reads(tmp_path):
    """Half precision writes a cast between the two: MiniLM's second normalisation sums squares beyond FP16."""
    random = np.random.default_rng(0)
    weights = {n: random.standard_normal((16, 16)).astype(np.float32) / 4 for n in ("w", "w2")}
    path = save(
        tmp_path / "m.onnx",
        [
            helper.make_node("MatMul", ["x", "w"], ["first"], "first_product"),
            helper.make_node("Mul", ["first", "hundred"], ["wide"], "widen"),
            helper.make_node("LayerNormalization", ["wide", "ones", "zeros"], ["even"], "norm"),
            helper.make_node("MatMul", ["even", "w2"], ["y"], "second_product"),
        ],
        {
            **weights,
            "hundred": np.array(100.0, np.float32),
            "ones": np.ones(16, np.float32),
            "zeros": np.zeros(16, np.float32),
        },
        inputs={"x": (FLOAT, ["batch", 16])},
        outputs={"y": (FLOAT, ["batch", 16])},
    )
    out = tmp_path / "int8.onnx"
    report = quantize.for_tensorrt(path, out, to="int8", feeds=feeds(), base="fp16", method="minmax", threads=1)
    assert "norm" in {kept.node for kept in report["half"]["kept"]}
    assert report["quantised"] == 2
    read = {n.input[0] for n in onnx.load(out).graph.node if n.op_type == "QuantizeLinear"}
    assert {r.tensor for r in report["ranges"]} <= read
    assert "even" not in {r.tensor for r in report["ranges"]}
    assert not errors(out)
    fp16.emulate(out, tmp_path / "emulated.onnx")
    assert sqnr_db(answers(path, feeds()[0])[0], answers(tmp_path / "emulated.onnx", feeds()[0])[0]) > 30


def test_kept_products_stay_as_they_are(small_bert, tmp_path):
    path, made = small_bert
    names = [p.node for p in qdq.products(qdq.load(path))]
    report = quantize.for_tensorrt(path, tmp_path / "q.onnx", to="int8", feeds=made, keep=names[:3], threads=1)
    assert report["kept"] == tuple(names[:3])
    assert report["quantised"] == 9
    assert 0.5 < report["share"] < 1
    by_name = {n.name: n for n in onnx.load(tmp_path / "q.onnx").graph.node}
    assert [by_name[n].input[1].endswith("_dq") for n in names] == [False] * 3 + [True] * 9


def test_what_cpu_runtimes_quantise_to_is_refused(small_bert, tmp_path):
    """``ort-int8`` writes asymmetric uint8 activations: right on a CPU, and not for TensorRT."""
    path, _ = small_bert
    model = qdq.load(path)
    units = qdq.products(model)
    recipes = {u.activation: qdq.Recipe.unsigned(-1.0, 3.0) for u in units}
    qdq.add_constants(model, units, recipes, measured.file_types(path), qdq.SCHEMES["cpu-int8"])
    passes.run(model, qdq.WritePairs(units))
    passes.save(model, tmp_path / "cpu.onnx", data="cpu.onnx.data")
    found = errors(tmp_path / "cpu.onnx")
    assert {f.rule for f in found} == {"zero-point", "uint8"}
    assert {f.node for f in found} >= {f"{units[0].activation}_q", f"{units[0].activation}_dq"}


@pytest.mark.parametrize(("factor", "says"), [(0.1, "values off"), (50.0, "and its values only")])
def test_a_wrong_scale_is_caught_by_what_flows_through(small_bert, tmp_path, factor, says):
    path, made = small_bert
    out = tmp_path / "q.onnx"
    quantize.for_tensorrt(path, out, to="int8", feeds=made, method="minmax", threads=1)
    right_db = unmasked_db(path, out, made)
    model = onnx.load(out)
    scale = next(t for t in model.graph.initializer if t.name == "layer_norm_scale")
    scale.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(scale) * np.float32(factor), scale.name))
    wrong = tmp_path / "wrong.onnx"
    onnx.save(model, wrong)
    assert not errors(wrong), "the rules alone cannot see it"
    (found,) = check_scales(wrong, made, threads=1)
    assert found.node == "layer_norm_q"
    assert says in found.message
    assert unmasked_db(path, wrong, made) < right_db - 6


def test_a_wrong_weight_scale_is_caught(small_bert, tmp_path):
    path, made = small_bert
    out = tmp_path / "q.onnx"
    report = quantize.for_tensorrt(path, out, to="int8", feeds=made, method="minmax", threads=1)
    assert report["quantised"]
    model = onnx.load(out)
    scale = next(t for t in model.graph.initializer if t.name.endswith("_scale") and len(t.dims) == 1)
    values = numpy_helper.to_array(scale).copy()
    values[5] *= 0.2
    scale.CopyFrom(numpy_helper.from_array(values, scale.name))
    onnx.save(model, tmp_path / "wrong.onnx")
    (found,) = check_scales(tmp_path / "wrong.onnx", made, threads=1)
    assert "channel 5" in found.message


def test_entropy_cuts_a_lonely_outlier_and_minmax_does_not():
    counts = np.zeros(calibration.BINS, np.int64)
    counts[:400] = np.exp(-np.arange(400) / 80) * 1e5
    counts[-1] = 1
    assert calibration._entropy_cut(counts) < calibration.BINS / 2
    assert calibration._percentile_cut(counts) < calibration.BINS / 2
    flat = np.full(calibration.BINS, 1000, np.int64)
    assert calibration._entropy_cut(flat) > calibration.BINS * 0.9


def test_bad_input_is_refused_with_its_fix(tmp_path):
    path = overflowing(tmp_path / "m.onnx")
    out = tmp_path / "out.onnx"
    with pytest.raises(SampleError, match="no samples"):
        quantize.for_tensorrt(path, out, to="int8", feeds=[])
    with pytest.raises(UsageError, match=r"'int4'.*int8"):
        quantize.for_tensorrt(path, out, to="int4", feeds=feeds())
    with pytest.raises(UsageError, match="did you mean entropy"):
        quantize.for_tensorrt(path, out, to="int8", feeds=feeds(), method="entropie")
    with pytest.raises(UsageError, match="did you mean clean_product"):
        quantize.for_tensorrt(path, out, to="int8", feeds=feeds(), keep=["clean_produkt"])
    with pytest.raises(UsageError, match="the source itself"):
        quantize.for_tensorrt(path, path, to="int8", feeds=feeds())
    with pytest.raises(StageError, match="infinite or NaN"):
        quantize.for_tensorrt(path, out, to="int8", feeds=[{"x": np.full((3, 16), np.nan, np.float32)}])
    none = save(
        tmp_path / "none.onnx",
        [helper.make_node("Relu", ["x"], ["y"], "relu")],
        {},
        inputs={"x": (FLOAT, ["batch", 16])},
        outputs={"y": (FLOAT, ["batch", 16])},
    )
    with pytest.raises(UnavailableError, match="nothing to quantise"):
        quantize.for_tensorrt(none, out, to="int8", feeds=feeds())
    quantize.for_tensorrt(path, tmp_path / "q.onnx", to="int8", feeds=feeds(), threads=1)
    with pytest.raises(UnavailableError, match="quantised already"):
        quantize.for_tensorrt(tmp_path / "q.onnx", out, to="int8", feeds=feeds())
    assert not out.exists()
    assert not list(tmp_path.glob(".quantise*"))
