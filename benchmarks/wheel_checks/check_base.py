"""An ONNX file is converted, proved, packaged, chosen and loaded where there is no torch."""

import contextlib
import importlib.util
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

import accel


def main() -> None:
    assert all(importlib.util.find_spec(name) is None for name in ("torch", "transformers", "tensorflow"))
    rng = np.random.default_rng(0)
    weight = rng.standard_normal((16, 4)).astype(np.float32)
    nodes = [helper.make_node("MatMul", ["x", "w"], ["h"]), helper.make_node("Tanh", ["h"], ["y"])]
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 16])]
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", 4])]
    graph = helper.make_graph(nodes, "small", inputs, outputs, [numpy_helper.from_array(weight, "w")])
    file = Path("small.onnx")
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9), file)
    feeds = [{"x": rng.standard_normal((1, 16)).astype(np.float32)} for _ in range(64)]
    result = accel.optimize(file, feeds, targets="ort,openvino-fp32", objective="latency", budget_s=5, out="run")
    assert {v.status for v in result.variants.values()} == {"ok"}, result
    with accel.load("run/best/cpu") as model:
        assert np.abs(model(feeds[0]["x"]).y - np.tanh(feeds[0]["x"] @ weight)).max() < 1e-4
    with contextlib.suppress(accel.AccelError):
        accel.optimize("minilm", targets="ort", out="zoo")
        raise SystemExit("a model of torch was converted without torch")
    print(result)


if __name__ == "__main__":
    main()
