"""Rows that meet a stack of matrices are expanded to it, which OpenVINO's CPU plugin needs."""

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from accel.graph import passes
from accel.graph.stacks import SpreadRows

WEIGHTS = np.random.default_rng(0).standard_normal((5, 16, 32)).astype(np.float32)


def rewritten(folder: Path, dims: list[object], weights: np.ndarray = WEIGHTS) -> tuple[Path, Path]:
    graph = helper.make_graph(
        [
            helper.make_node("Constant", [], ["zero"], value=numpy_helper.from_array(np.float32(0))),
            helper.make_node("MatMul", ["x", "w"], ["m"]),
            helper.make_node("Max", ["m", "zero"], ["y"]),
        ],
        "stack",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, dims)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [None] * max(len(dims), weights.ndim))],
        [numpy_helper.from_array(weights, "w")],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10), folder / "a.onnx")
    passes.rewrite(folder / "a.onnx", folder / "b.onnx", SpreadRows())
    onnx.checker.check_model(str(folder / "b.onnx"), full_check=True)
    return folder / "a.onnx", folder / "b.onnx"


@pytest.mark.parametrize("dims", [["batch", 16], [1, "batch", 16]])
def test_both_runtimes_compute_an_ensemble(dims: list[object], tmp_path: Path) -> None:
    openvino = pytest.importorskip("openvino")
    plain, out = rewritten(tmp_path, dims)
    compiled = openvino.Core().compile_model(out, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    session = onnxruntime.InferenceSession(out, providers=["CPUExecutionProvider"])
    before = onnxruntime.InferenceSession(plain, providers=["CPUExecutionProvider"])
    for rows in (1, 3):
        feed = {"x": np.random.default_rng(rows).standard_normal((rows, 16)).astype(np.float32)}
        feed["x"] = feed["x"].reshape([1] * (len(dims) - 2) + [rows, 16])
        expected = before.run(None, feed)[0]
        np.testing.assert_allclose(session.run(None, feed)[0], expected, atol=1e-5)
        np.testing.assert_allclose(compiled(feed)["y"], expected, atol=1e-5)


@pytest.mark.parametrize(
    ("dims", "weights"),
    [([3, 16], WEIGHTS), ([5, "batch", 16], WEIGHTS), (["batch", 16], WEIGHTS[0]), (["batch", 16], WEIGHTS[:1])],
)
def test_other_products_stay(dims: list[object], weights: np.ndarray, tmp_path: Path) -> None:
    plain, out = rewritten(tmp_path, dims, weights)
    assert plain.read_bytes() == out.read_bytes()
