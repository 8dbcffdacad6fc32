"""An ONNX file step by step: describe, build, compare, measure, decide; and an answer of one's own held against it."""

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

import accel

WEIGHT = np.random.default_rng(0).standard_normal((16, 4)).astype(np.float32)


def write(path: Path) -> None:
    """Write a file to start from; yours comes from elsewhere."""
    nodes = [helper.make_node("MatMul", ["x", "w"], ["h"]), helper.make_node("Tanh", ["h"], ["y"])]
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 16])]
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", 4])]
    graph = helper.make_graph(nodes, "small", inputs, outputs, [numpy_helper.from_array(WEIGHT, "w")])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9), path)


def main() -> None:
    write(Path("small.onnx"))
    rng = np.random.default_rng(1)
    feeds = [{"x": rng.standard_normal((1, 16)).astype(np.float32)} for _ in range(64)]
    source = accel.describe("small.onnx", samples=feeds, out="runs/small", budget_s=5)
    built = [accel.build(target, source) for target in ("ort", "openvino-fp32")]
    for artifact in built:
        print(artifact.value.variant.id, accel.compare(artifact, source).passed)
    print("my own", accel.compare(lambda feed: {"y": np.tanh(feed["x"] @ WEIGHT)}, source).passed)
    decision = accel.decide(accel.measure(built, source), baseline="ort@cpu")
    print(decision.reason)
    print(accel.emit(next(a for a in built if a.value.variant.id == decision.chosen), source))


if __name__ == "__main__":
    main()
