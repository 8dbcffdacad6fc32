"""An If that the declared inputs decide gives way to its branch; any other stays as it is."""

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from accel.core.values import ShapeRange
from accel.graph import passes
from accel.graph.branches import TakeBranches
from accel.graph.narrow import prove_int32_interior

make = helper.make_node
SHAPES = {"x": ShapeRange((1, 6), (1, 6), (4, 6))}


def body(
    name: str, *nodes: onnx.NodeProto, result: str, constants: dict[str, np.ndarray] | None = None
) -> onnx.GraphProto:
    held = [numpy_helper.from_array(v, n) for n, v in (constants or {}).items()]
    out = helper.make_tensor_value_info(result, TensorProto.FLOAT, None)
    return helper.make_graph(list(nodes), name, [], [out], held)


def model(path: Path) -> Path:
    """What torch's TorchScript exporter writes of F.pad, squeeze and an LSTM: sizes and ranks decide."""
    constants = {
        "rate": np.array(16000),
        "pads": np.array([0, 2, 0, 0]),
        "eight": np.array([8]),
        "matrix": np.array([-1, 2]),
        "minus": np.array([-1]),
        "far": np.array([np.iinfo(np.int64).min + 1]),
        "zero": np.array([0]),
        "one": np.array([1]),
        "rank": np.array(2),
        "weights": np.ones((8, 3), np.float32),
    }
    grown = body("grown", make("Unsqueeze", ["wide", "one"], ["small"]), result="small")
    whole = body("whole", make("Identity", ["wide"], ["small"]), result="small")  # a name of the other branch, too
    deep = body(
        "deep",
        make("Shape", ["chosen"], ["shape"]),
        make("Size", ["shape"], ["size"]),
        make("Equal", ["size", "rank"], ["is"]),
        make("Not", ["is"], ["other"]),
        make("If", ["other"], ["inner"], name="inner", then_branch=grown, else_branch=whole),
        make("Add", ["inner", "more"], ["result"]),
        result="result",
        constants={"more": np.array([1], np.float32)},
    )
    nodes = [
        make("Reshape", ["pads", "matrix"], ["rows"]),
        make("Slice", ["rows", "minus", "far", "zero", "minus"], ["turned"]),
        make("Transpose", ["turned"], ["columns"], perm=[1, 0]),
        make("Reshape", ["columns", "minus"], ["sizes"]),
        make("Pad", ["x", "sizes"], ["padded"]),
        make("Shape", ["padded"], ["lengths"]),
        make("Gather", ["lengths", "one"], ["length"]),
        make("MatMul", ["padded", "weights"], ["wide"]),
        make("Equal", ["length", "eight"], ["long"]),
        make("If", ["long"], ["chosen"], name="first", then_branch=whole, else_branch=grown),
        make("Equal", ["sr", "rate"], ["fast"]),
        make("If", ["fast"], ["y"], name="second", then_branch=deep, else_branch=whole),
    ]
    inputs = [
        helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 6]),
        helper.make_tensor_value_info("sr", TensorProto.INT64, []),
    ]
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", 3])]
    held = [numpy_helper.from_array(v, n) for n, v in constants.items()]
    graph = helper.make_graph(nodes, "branches", inputs, outputs, held)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10), path)
    return path


def taken(path: Path, ranges: dict[str, tuple[int, int]]) -> tuple[Path, list[str]]:
    out = path.with_name("taken.onnx")
    passes.rewrite(path, out, TakeBranches(ranges=ranges, shapes=SHAPES))
    return out, [node.name for node in onnx.load(out).graph.node if node.op_type == "If"]


def test_what_sizes_ranks_and_ranges_decide_is_taken_from_the_outside_in(tmp_path: Path) -> None:
    path = model(tmp_path / "m.onnx")
    out, left = taken(path, {"sr": (16000, 16000)})
    assert left == []
    onnx.checker.check_model(str(out), full_check=True)
    assert [o.name for o in onnx.load(out).graph.output] == ["y"]
    feed = {"x": np.arange(18, dtype=np.float32).reshape(3, 6), "sr": np.array(16000)}
    want, found = (onnxruntime.InferenceSession(str(file)).run(None, feed)[0] for file in (path, out))
    np.testing.assert_array_equal(found, want)


def test_openvino_takes_it_and_its_int64_values_are_proved(tmp_path: Path) -> None:
    openvino = pytest.importorskip("openvino")
    path = model(tmp_path / "m.onnx")
    out, _ = taken(path, {"sr": (16000, 16000)})
    openvino.Core().compile_model(openvino.Core().read_model(out), "CPU")
    assert list(prove_int32_interior(out, ranges={"sr": (16000, 16000)}, shapes=SHAPES)) == []


def test_what_a_client_decides_stays(tmp_path: Path) -> None:
    path = model(tmp_path / "m.onnx")
    out, left = taken(path, {"sr": (8000, 16000)})
    assert left == ["second"]
    for rate in (8000, 16000):
        feed = {"x": np.ones((2, 6), np.float32), "sr": np.array(rate)}
        want, found = (onnxruntime.InferenceSession(str(file)).run(None, feed)[0] for file in (path, out))
        np.testing.assert_array_equal(found, want)
