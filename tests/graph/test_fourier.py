"""Fourier transforms of real signals as products give what ONNX Runtime's own operators give; in OpenVINO, too."""

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import NodeProto, TensorProto, helper, numpy_helper

from accel.graph import passes
from accel.graph.fourier import FourierAsProducts

node = helper.make_node
CONSTANTS = {
    "sixteen": np.int64(16), "nine": np.int64(9), "twenty": np.int64(20), "five": np.int64(5),
    "hann": np.hanning(16).astype(np.float32),
}  # fmt: skip
CASES = {
    "windowed": ([node("STFT", ["x", "five", "hann", "sixteen"], ["y"], onesided=1)], ["STFT"]),
    "window alone": ([node("STFT", ["x", "five", "hann"], ["y"], onesided=1)], ["STFT"]),
    "length alone": ([node("STFT", ["x", "five", "", "nine"], ["y"], onesided=1)], ["STFT"]),
    "forward": ([node("DFT", ["x"], ["y"], axis=1, onesided=1)], ["DFT"]),
    "padded": ([node("DFT", ["x", "twenty"], ["y"], axis=1, onesided=1)], ["DFT"]),
    "cut": ([node("DFT", ["x", "nine"], ["y"], axis=1, onesided=1)], ["DFT"]),
    "back": (
        [node("DFT", ["x"], ["f"], axis=1, onesided=1), node("DFT", ["f"], ["y"], axis=1, onesided=1, inverse=1)],
        ["DFT"],
    ),
    "back to odd": (
        [
            node("DFT", ["x", "nine"], ["f"], axis=1, onesided=1),
            node("DFT", ["f", "nine"], ["y"], axis=1, onesided=1, inverse=1),
        ],
        ["DFT"],
    ),
}


def model(nodes: list[NodeProto], dims: list[object], opset: int = 18) -> onnx.ModelProto:
    used = {k for n in nodes for k in n.input} & CONSTANTS.keys()
    graph = helper.make_graph(
        nodes,
        "waves",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, dims)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [None] * (4 if nodes[-1].op_type == "STFT" else 3))],
        [numpy_helper.from_array(np.asarray(CONSTANTS[k]), k) for k in used],
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)
    return onnx.shape_inference.infer_shapes(made)


def rewritten(made: onnx.ModelProto, folder: Path) -> tuple[Path, Path, set[str]]:
    plain, out = folder / "plain.onnx", folder / "out.onnx"
    onnx.save(made, plain)
    passes.rewrite(plain, out, FourierAsProducts())
    onnx.checker.check_model(str(out), full_check=True)
    return plain, out, {n.op_type for n in onnx.load(out).graph.node}


@pytest.mark.parametrize("name", CASES)
def test_products_give_what_the_operators_give(name: str, tmp_path: Path) -> None:
    openvino = pytest.importorskip("openvino")
    nodes, gone = CASES[name]
    plain, out, ops = rewritten(model(nodes, ["batch", 48 if "DFT" not in gone else 12, 1]), tmp_path)
    assert not ops & {"STFT", "DFT"}
    feed = np.random.default_rng(0).standard_normal((3, 48 if "DFT" not in gone else 12, 1)).astype(np.float32)
    wanted, found = (
        onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"]).run(None, {"x": feed})[0]
        for path in (plain, out)
    )
    assert found.shape == wanted.shape
    np.testing.assert_allclose(found, wanted, atol=2e-5)
    compiled = openvino.Core().compile_model(out, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    np.testing.assert_allclose(compiled({"x": feed})["y"], wanted, atol=2e-5)


@pytest.mark.parametrize(
    ("made", "why"),
    [
        (model([node("DFT", ["x"], ["y"], axis=1, onesided=1)], ["batch", "samples", 1]), "a length that varies"),
        (model([node("DFT", ["x"], ["y"], axis=1)], ["batch", 12, 1]), "both sides, which runtimes take"),
        (model([node("DFT", ["x"], ["y"], axis=1, onesided=1)], ["batch", 5000, 1]), "a table too large"),
        (model([node("DFT", ["x"], ["y"], axis=0, onesided=1)], [4, 12, 1]), "another axis"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_others_stay(made: onnx.ModelProto, why: str, tmp_path: Path) -> None:
    plain, out, _ = rewritten(made, tmp_path)
    assert plain.read_bytes() == out.read_bytes(), why
