"""FP16 and BF16 by range: what overflows stays in FP32, also where a CPU does not show it."""

import json

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from typed_graphs import FLOAT, answers, feeds, overflowing, save, sqnr_db, unmasked_db

from accel.builders.tensorrt import network_rules
from accel.core import environments, processes
from accel.core.errors import SampleError, UnavailableError, UsageError
from accel.core.values import to_json
from accel.graph import fp16, measured
from accel.graph.autocast import autocast

BATCH = {"x": (FLOAT, ["batch", 16])}


@pytest.fixture(scope="module", autouse=True)
def _installed():
    assert environments.installed("modelopt"), "autocast is not installed: make environments"


@pytest.fixture(scope="module")
def planted(tmp_path_factory):
    """The planted graph, its FP16 form and the report."""
    folder = tmp_path_factory.mktemp("planted")
    source, out = overflowing(folder / "source.onnx"), folder / "half.onnx"
    return source, out, fp16.convert(source, out, to="fp16", feeds=feeds(), threads=1)


def test_an_overflow_that_the_cpu_hides_is_caught(planted, tmp_path, monkeypatch):
    source, out, report = planted
    naive = tmp_path / "naive.onnx"
    (there := tmp_path / "there").mkdir()
    (there / "naive.onnx.data").touch()
    monkeypatch.chdir(there)  # onnx takes a file there for one beside the model
    python = environments.python("modelopt")
    with processes.Worker(tmp_path / "log", threads=1, timeout_s=300, python=python) as worker:
        worker.call(autocast, source, naive, "fp16", ())
    feed = feeds()[0]
    truth = dict(zip(("clean", "loud", "heavy", "squares"), answers(source, feed), strict=True))
    hidden = answers(naive, feed)[1]
    assert sqnr_db(truth["loud"], hidden) > 20, "the CPU shows the overflow by itself: nothing is hidden"
    fp16.emulate(naive, tmp_path / "naive32.onnx")
    assert not np.isfinite(answers(tmp_path / "naive32.onnx", feed)[1]).all()
    assert {k.node for k in report["kept"]} >= {"loud_up", "loud_product", "loud_down"}
    fp16.emulate(out, tmp_path / "half32.onnx")
    for name, found in zip(truth, answers(tmp_path / "half32.onnx", feed), strict=True):
        assert sqnr_db(truth[name], found) > 45, name


def test_each_kept_node_says_what_was_measured(planted):
    _, _, report = planted
    kept = {k.node: k for k in report["kept"]}
    assert set(kept) == {"loud_up", "loud_product", "loud_down", "heavy_product", "norm"}
    assert kept["heavy_product"].tensor == "heavy_w"
    assert kept["heavy_product"].high == pytest.approx(1e5)
    assert kept["loud_up"].high > 65504 / 2
    assert "squares of 'wide'" in kept["norm"].reason
    assert report["products"] == 3
    assert report["half_products"] == 1
    assert report["widest"] is not None
    assert max(map(abs, report["widest"][1:])) < 65504 / 2
    assert json.loads(json.dumps(to_json(report), allow_nan=False)).keys() == report.keys()


def test_the_file_is_typed_as_the_report_says(planted):
    _, out, report = planted
    model = onnx.load(out)
    types = measured.float_tensors(model)
    kept = {k.node for k in report["kept"]}
    kinds = {n.name: types[n.output[0]] for n in model.graph.node if n.op_type == "MatMul"}
    assert {n for n, kind in kinds.items() if kind == FLOAT} == {n for n in kinds if n in kept}
    assert {v.type.tensor_type.elem_type for v in (*model.graph.input, *model.graph.output)} == {FLOAT}
    assert not [f for f in network_rules.check(out) if f.severity == "error"]


@pytest.mark.parametrize(("to", "least_db"), [("fp16", 45.0), ("bf16", 30.0)])
def test_bert_keeps_its_gate_with_every_product_in_half(small_bert, tmp_path, to, least_db):
    path, made = small_bert
    out = tmp_path / "half.onnx"
    report = fp16.convert(path, out, to=to, feeds=made, threads=1)
    assert report["half_share"] == 1
    assert [m.value for m in report["markers"]] == [pytest.approx(-3.4e38, rel=0.01)]  # the mask's constant alone
    assert not report["kept"]
    assert not [f for f in network_rules.check(out) if f.severity == "error"]
    fp16.emulate(out, tmp_path / "emulated.onnx")
    assert unmasked_db(path, tmp_path / "emulated.onnx", made) > least_db


def test_a_constant_that_is_more_than_a_mask_stays(tmp_path):
    """The same number, but the answer reads it: nothing may touch it, and what holds it stays in FP32."""
    path = save(
        tmp_path / "m.onnx",
        [
            helper.make_node("Greater", ["x", "zero"], ["on"], "compare"),
            helper.make_node("Where", ["on", "x", "low"], ["y"], "pick"),
        ],
        {"zero": np.array(0, np.float32), "low": np.array(-3e38, np.float32)},
        inputs=BATCH,
        outputs={"y": (FLOAT, ["batch", 16])},
    )
    report = fp16.convert(path, tmp_path / "half.onnx", to="fp16", feeds=feeds(), threads=1)
    assert not report["markers"]
    assert [k.node for k in report["kept"]] == ["pick"]
    assert np.array_equal(answers(path, feeds()[0])[0], answers(tmp_path / "half.onnx", feeds()[0])[0])


def test_what_is_inside_a_body_was_not_measured_and_stays(tmp_path):
    def body(name, factor):
        node = helper.make_node("Mul", ["x", factor], [name], f"{name}_mul")
        return helper.make_graph([node], f"{name}_body", [], [helper.make_tensor_value_info(name, *BATCH["x"])])

    path = save(
        tmp_path / "m.onnx",
        [
            helper.make_node("If", ["on"], ["z"], "choice", then_branch=body("a", "big"), else_branch=body("b", "one")),
            helper.make_node("MatMul", ["z", "w"], ["y"], "product"),
        ],
        {"big": np.float32(3e3), "one": np.float32(1), "w": np.eye(16, dtype=np.float32)},
        inputs={**BATCH, "on": (TensorProto.BOOL, [])},
        outputs={"y": BATCH["x"]},
    )
    made = [{**feed, "on": np.array(False)} for feed in feeds()]  # the loud branch is never taken
    report = fp16.convert(path, tmp_path / "half.onnx", to="fp16", feeds=made, threads=1)
    assert [(k.node, k.op) for k in report["kept"]] == [("choice", "If")]
    bodies = [a.g for n in onnx.load(tmp_path / "half.onnx").graph.node for a in n.attribute if a.HasField("g")]
    assert {n.op_type for g in bodies for n in g.node} == {"Mul"}
    assert report["half_products"] == 1


def test_ranges_are_those_of_numpy(tmp_path):
    path = overflowing(tmp_path / "m.onnx")
    model = onnx.load(path)
    onnx.save_model(model, path, save_as_external_data=True, location="m.onnx.data", size_threshold=0)
    found = measured.measure_ranges(path, ["x", "wide", "loud_up"], feeds(), threads=1)
    values = np.concatenate([f["x"] for f in feeds()])
    assert (found["x"].low, found["x"].high) == (values.min(), values.max())
    assert found["wide"].largest == pytest.approx(100 * np.abs(values).max())
    assert found["x"].size == 48
    fetched: dict[str, list[np.ndarray]] = {}
    for _, name, value in measured.fetch(path, {"wide": found["wide"]}, feeds(), threads=1):
        fetched.setdefault(name, []).append(value)
    assert np.allclose(np.concatenate(fetched["wide"]), 100 * values)


def test_nodes_of_one_name_get_names_of_their_own(tmp_path):
    nodes = [helper.make_node("Relu", [a], [b], "twice") for a, b in (("x", "h"), ("h", "y"))]
    twice = save(tmp_path / "twice.onnx", nodes, {}, inputs=BATCH, outputs={"y": BATCH["x"]})
    fp16.convert(twice, tmp_path / "out.onnx", to="fp16", feeds=feeds())
    names = [node.name for node in onnx.load(tmp_path / "out.onnx").graph.node]
    assert len(names) >= 2
    assert len(set(names)) == len(names)


def test_bad_input_is_refused_with_its_fix(tmp_path, monkeypatch):
    path = overflowing(tmp_path / "m.onnx")
    out = tmp_path / "out.onnx"
    with pytest.raises(SampleError, match="no samples"):
        fp16.convert(path, out, to="fp16", feeds=[])
    with pytest.raises(SampleError, match="does not run"):
        fp16.convert(path, out, to="fp16", feeds=[{"x": np.zeros((3, 7), np.float32)}])
    with pytest.raises(UsageError, match="margin"):
        fp16.convert(path, out, to="fp16", feeds=feeds(), margin=0.5)
    with pytest.raises(UsageError, match="'fp4'"):
        fp16.convert(path, out, to="fp4", feeds=feeds())  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="the source itself"):
        fp16.convert(path, path, to="fp16", feeds=feeds())
    half = save(
        tmp_path / "half.onnx",
        [helper.make_node("MatMul", ["x", "w"], ["y"], "p")],
        {"w": np.zeros((16, 16), np.float16)},
        inputs={"x": (TensorProto.FLOAT16, ["batch", 16])},
        outputs={"y": (TensorProto.FLOAT16, ["batch", 16])},
    )
    with pytest.raises(UnavailableError, match="half precision already"):
        fp16.convert(half, out, to="fp16", feeds=feeds())
    monkeypatch.setenv("ACCEL_HOME", str(tmp_path / "nowhere"))
    with pytest.raises(UnavailableError) as missing:
        fp16.convert(path, out, to="fp16", feeds=feeds())
    assert missing.value.fix == "accel env install modelopt"
    assert not out.exists()
