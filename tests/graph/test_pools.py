"""Poolings that ONNX Runtime's optimiser or OpenVINO get wrong are written so that both compute what the file says."""

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import NodeProto, TensorProto, helper, numpy_helper

from accel.core.values import ShapeRange
from accel.graph import passes
from accel.graph.pools import PlainPools

node = helper.make_node
FLOAT32 = {"INFERENCE_PRECISION_HINT": "f32"}


def written(folder: Path, nodes: list[NodeProto], high: int = 6, *, opset: int = 18) -> tuple[Path, Path, list[str]]:
    """Write a model of pictures (batch, 2, size, size) and its rewritten form; return both, and its operators."""
    constants = {"around": np.array([0, 0, 1, 1, 0, 0, 1, 1]), "zero": np.float32(0)}
    graph = helper.make_graph(
        nodes,
        "pools",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 2, "size", "size"])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", 2, None, None])],
        [numpy_helper.from_array(np.asarray(v), k) for k, v in constants.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)
    plain, out = folder / "plain.onnx", folder / "out.onnx"
    onnx.save(model, plain)
    shapes = {"x": ShapeRange((1, 2, 3, 3), (2, 2, 4, 4), (4, 2, high, high))}
    passes.rewrite(plain, out, PlainPools(shapes))
    onnx.checker.check_model(str(out), full_check=True)
    return plain, out, [n.op_type for n in onnx.load(out).graph.node]


def answers(path: Path, feed: np.ndarray, *, optimised: bool) -> np.ndarray:
    options = onnxruntime.SessionOptions()
    if not optimised:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    return session.run(None, {"x": feed})[0]


def below_zero(size: int) -> np.ndarray:
    """Return pictures of negative numbers: what is padded with 0 wins every maximum."""
    return -1 - np.random.default_rng(0).random((2, 2, size, size), np.float32)


PADDED = [node("Pad", ["x", "around", "zero"], ["wide"]), node("MaxPool", ["wide"], ["y"], kernel_shape=[3, 3])]


def test_zeros_around_a_maximum_stay_zeros(tmp_path: Path) -> None:
    openvino = pytest.importorskip("openvino")
    plain, out, _ = written(tmp_path, PADDED)
    feed = below_zero(5)
    expected = answers(plain, feed, optimised=False)
    assert not np.array_equal(answers(plain, feed, optimised=True), expected)  # why the pass is there
    assert np.array_equal(answers(out, feed, optimised=True), expected)
    assert np.array_equal(openvino.Core().compile_model(out, "CPU", FLOAT32)({"x": feed})["y"], expected)


def test_what_the_optimiser_moves_rightly_is_left_to_it(tmp_path: Path) -> None:
    relu = [node("Relu", ["x"], ["r"]), node("Pad", ["r", "around", "zero"], ["wide"]), PADDED[1]]
    mean = [PADDED[0], node("AveragePool", ["wide"], ["y"], kernel_shape=[3, 3])]
    for nodes, opset in ((relu, 18), (mean, 18), (PADDED, 17)):
        plain, out, _ = written(tmp_path, nodes, opset=opset)
        assert plain.read_bytes() == out.read_bytes()


@pytest.mark.parametrize("op", ["AveragePool", "MaxPool"])
def test_one_window_over_everything_is_a_global_pooling(op: str, tmp_path: Path) -> None:
    openvino = pytest.importorskip("openvino")
    more = {"count_include_pad": 1} if op == "AveragePool" else {}
    pool = node(op, ["x"], ["y"], kernel_shape=[32, 32], strides=[32, 32], ceil_mode=1, **more)
    plain, out, ops = written(tmp_path, [pool])
    assert ops == [f"Global{op}"]
    compiled = openvino.Core().compile_model(out, "CPU", FLOAT32)
    for size in (3, 6):
        feed = below_zero(size)
        expected = answers(plain, feed, optimised=False)
        np.testing.assert_allclose(answers(out, feed, optimised=True), expected, rtol=1e-6)
        np.testing.assert_allclose(compiled({"x": feed})["y"], expected, rtol=1e-6)


@pytest.mark.parametrize(
    "attributes",
    [
        {"kernel_shape": [5, 5], "strides": [5, 5], "ceil_mode": 1},  # two windows at size 6
        {"kernel_shape": [32, 32], "strides": [32, 32], "ceil_mode": 1, "pads": [1, 1, 1, 1]},
    ],
)
def test_other_windows_stay(attributes: dict[str, object], tmp_path: Path) -> None:
    plain, out, _ = written(tmp_path, [node("AveragePool", ["x"], ["y"], **attributes)])
    assert plain.read_bytes() == out.read_bytes()
