"""``--gate int8=40`` reaches what chooses the layers: a stricter gate leaves more of them in float, and holds."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from small_onnx import convnet

from accel import exporters
from accel.accuracy import parity
from accel.builders import held_back, targets
from accel.core.feeds import read_feeds
from accel.core.values import BuildRequest, Target, Variant
from accel.exporters import samples
from accel.exporters.sources import recognise

WIDTH, LAYERS = 32, 6


def residual(path: Path) -> Path:
    """Write ``x (batch, width) -> y``: residual layers, of which each adds an error of its own when it is rounded."""
    random = np.random.default_rng(0)
    nodes, constants, before = [], [], "x"
    for layer in range(LAYERS):
        weight = (random.standard_normal((WIDTH, WIDTH)) * 2.0**layer / 4 / np.sqrt(WIDTH)).astype(np.float32)
        constants.append(onnx.numpy_helper.from_array(weight, f"w{layer}"))
        nodes.append(onnx.helper.make_node("MatMul", [before, f"w{layer}"], [f"p{layer}"], f"product{layer}"))
        nodes.append(onnx.helper.make_node("Tanh", [f"p{layer}"], [f"t{layer}"], f"tanh{layer}"))
        after = "y" if layer == LAYERS - 1 else f"h{layer}"
        nodes.append(onnx.helper.make_node("Add", [before, f"t{layer}"], [after], f"add{layer}"))
        before = after
    ends = [onnx.helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, ["batch", WIDTH]) for n in ("x", "y")]
    graph = onnx.helper.make_graph(nodes, "residual", ends[:1], ends[1:], constants)
    onnx.save(onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 18)], ir_version=10), path)
    return path


@pytest.fixture(scope="module", params=["products", "convolutions"])
def source(request, tmp_path_factory):
    """A network of each kind, exported, with its samples."""
    folder = tmp_path_factory.mktemp(request.param)
    path = residual(folder / "m.onnx") if request.param == "products" else convnet(folder / "m.onnx")
    random = np.random.default_rng(1)
    shape = (WIDTH,) if request.param == "products" else (3, 8, 8)
    feeds = {f"{i}/x": random.standard_normal((4, *shape)).astype(np.float32) for i in range(96)}
    np.savez(folder / "feeds.npz", **feeds)
    asked = recognise(
        str(path),
        samples=str(folder / "feeds.npz"),
        min_shapes={"x": (1, *shape)},
        opt_shapes={"x": (4, *shape)},
        max_shapes={"x": (8, *shape)},
    )
    described = exporters.describe(asked)
    made = samples.make_samples(described, asked, folder)
    return request.param, folder, described, made, exporters.export_onnx(described, folder / "onnx")


def build(source: Any, target: Target, out: Path, gates: Mapping[str, float], **options: Any) -> tuple[Any, Path]:
    """Build or prepare a variant; returns its facts and its folder."""
    _, folder, described, made, found = source
    out.mkdir()
    request = BuildRequest(
        Variant(target, described.profile), described, found, str(folder / "onnx"), made, str(folder), 1, gates
    )
    builder = targets.discover()[target.name]
    given = builder.options(**options)
    return (builder.prepare if target.device == "cuda" else builder.build)(request, given, out).facts, out


def answers_db(source: Any, folder: Path) -> float:
    """Return the SQNR of the file in ``folder`` on the gate's own samples."""
    _, home, described, made, found = source
    request = BuildRequest(Variant(Target("ort", "cpu"), described.profile), described, found, "", made, "", 1)
    feeds = read_feeds(home / made.gate.path)
    judge = held_back.HeldBack(
        request, home / "onnx" / found.file.path, feeds, {"sqnr_db": 0.0}, held_back.onnx_runner(request)
    )
    return judge.score(folder / "model.onnx")


def test_a_stricter_gate_keeps_more_products_in_float(source, tmp_path):
    loose, first = build(source, Target("ort-int8", "cpu"), tmp_path / "loose", {})
    assert loose["int8_share"] == 1.0
    asked = round(answers_db(source, first)) + 3.0
    strict, second = build(source, Target("ort-int8", "cpu"), tmp_path / "strict", {"int8": asked})
    assert 0 < strict["int8_share"] < 1.0
    assert strict["held_back_sqnr_db"] >= asked + held_back.ROOM_DB
    assert answers_db(source, first) < answers_db(source, second)


def test_tensorrt_and_openvino_search_by_it_too(source, tmp_path):
    kind, *_ = source
    loose, first = build(source, Target("trt-int8", "cuda"), tmp_path / "loose", {}, base="fp32")
    assert loose["quantized"]["share"] == 1.0
    asked = round(answers_db(source, first)) + 3.0
    strict, second = build(source, Target("trt-int8", "cuda"), tmp_path / "strict", {"int8": asked}, base="fp32")
    assert 0 < strict["quantized"]["share"] < 1.0
    assert answers_db(source, second) >= asked
    if kind == "products":
        plain, _ = build(source, Target("openvino-int8", "cpu"), tmp_path / "ov", {})
        held, _ = build(source, Target("openvino-int8", "cpu"), tmp_path / "ov-held", {"int8": 10.0})
        exact, _ = build(source, Target("openvino-int8", "cpu"), tmp_path / "ov-strict", {"int8": 45.0})
        assert exact["fake_quantize_nodes"] < held["fake_quantize_nodes"] == plain["fake_quantize_nodes"]


def test_gates_of_other_precisions_do_not_bear():
    given = {"int8": 25.0, "fp16": 50.0, "sqnr_db": 30.0, "rank_correlation": 0.99}
    assert parity.bearing(given, "int8") == {"int8": 25.0, "sqnr_db": 30.0, "rank_correlation": 0.99}
    assert parity.bearing(given, "none") == {"sqnr_db": 30.0, "rank_correlation": 0.99}
