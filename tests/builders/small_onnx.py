"""Small ONNX files with a known weakness, made by hand."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from accel import exporters
from accel.exporters import samples
from accel.exporters.sources import recognise


def prepared(path: Path, folder: Path, feeds: Mapping[str, np.ndarray], shape: tuple[int, ...]) -> tuple[Any, Any, Any]:
    """Describe a file with the input ``x (1 to 8, *shape)``, make its samples of ``feeds`` and export it."""
    np.savez(folder / "feeds.npz", **feeds)  # type: ignore[arg-type]
    sizes = {f"{point}_shapes": {"x": (batch, *shape)} for point, batch in (("min", 1), ("opt", 4), ("max", 8))}
    asked = recognise(str(path), samples=str(folder / "feeds.npz"), **sizes)
    described = exporters.describe(asked)
    made = samples.make_samples(described, asked, folder)
    return described, made, exporters.export_onnx(described, folder / "onnx")


def mlp(path: Path, *, layers: int = 4, width: int = 32, hostile: int | None = None, gemm: bool = False) -> Path:
    """Write ``x (batch, width) -> y``: matrix products with Tanh between them, each scaled to keep the signal.

    Args:
        hostile: layer whose input gets one channel a thousand times larger than the others, which carries nothing.
        gemm: whether the last product is a Gemm with a transposed weight and a bias.
    """
    rng = np.random.default_rng(3)
    nodes, constants, value = [], [], "x"
    for layer in range(layers):
        weight = (rng.standard_normal((width, width)) / np.sqrt(width)).astype(np.float32)
        if layer == hostile:
            spike = np.zeros(width, np.float32)
            spike[0] = 1000.0
            weight[0] = 0.0
            constants.append(numpy_helper.from_array(spike, "spike"))
            nodes.append(helper.make_node("Add", [value, "spike"], ["spiked"], name="spike_add"))
            value = "spiked"
        last = layer == layers - 1
        out = "y" if last else f"h{layer}"
        if last and gemm:
            constants.append(numpy_helper.from_array(np.ascontiguousarray(weight.T), f"w{layer}"))
            constants.append(numpy_helper.from_array(rng.standard_normal(width).astype(np.float32), "bias"))
            nodes.append(helper.make_node("Gemm", [value, f"w{layer}", "bias"], [out], name=f"fc{layer}", transB=1))
            break
        constants.append(numpy_helper.from_array(weight, f"w{layer}"))
        product = out if last else f"p{layer}"
        nodes.append(helper.make_node("MatMul", [value, f"w{layer}"], [product], name=f"fc{layer}"))
        if not last:
            nodes.append(helper.make_node("Tanh", [product], [out], name=f"tanh{layer}"))
        value = out
    return _write(path, nodes, constants, ["batch", width], ["batch", width])


def convnet(path: Path, *, normalised: bool = False) -> Path:
    """Write ``x (batch, 3, 8, 8) -> y (batch, 4)``: three convolutions with ReLU, a mean and a product.

    Args:
        normalised: whether each channel is normalised before its ReLU.
    """
    rng = np.random.default_rng(5)
    nodes, constants, value, channels = [], [], "x", 3
    for layer in range(3):
        weight = (rng.standard_normal((8, channels, 3, 3)) / np.sqrt(9 * channels)).astype(np.float32)
        constants.append(numpy_helper.from_array(weight, f"k{layer}"))
        nodes.append(helper.make_node("Conv", [value, f"k{layer}"], [f"c{layer}"], f"conv{layer}", pads=[1, 1, 1, 1]))
        before = f"c{layer}"
        if normalised:
            constants += [
                numpy_helper.from_array(np.ones(8, np.float32), f"{name}{layer}") for name in ("scale", "shift")
            ]
            given = [before, f"scale{layer}", f"shift{layer}"]
            before = f"n{layer}"
            nodes.append(helper.make_node("InstanceNormalization", given, [before], f"norm{layer}"))
        nodes.append(helper.make_node("Relu", [before], [f"r{layer}"], f"relu{layer}"))
        value, channels = f"r{layer}", 8
    constants.append(numpy_helper.from_array(rng.standard_normal((8, 4)).astype(np.float32), "head"))
    nodes.append(helper.make_node("GlobalAveragePool", [value], ["mean"], "mean"))
    nodes.append(helper.make_node("Flatten", ["mean"], ["flat"], "flat"))
    nodes.append(helper.make_node("MatMul", ["flat", "head"], ["y"], "head_product"))
    return _write(path, nodes, constants, ["batch", 3, 8, 8], ["batch", 4])


def _write(path: Path, nodes: list, constants: list, given: list, wanted: list) -> Path:
    graph = helper.make_graph(
        nodes,
        "small",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, given)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, wanted)],
        constants,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    onnx.checker.check_model(model, full_check=True)
    onnx.save_model(model, str(path))
    return path
