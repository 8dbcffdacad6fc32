"""Write Q/DQ nodes around matrix products, for ONNX Runtime's INT8 kernels on CPU.

Activations become asymmetric uint8 with one scale for the tensor, weights symmetric int8 with one scale for each
output channel; outputs stay float, so ONNX Runtime runs each product as one integer kernel with a float result.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import onnx

SWITCH = "accel_switch"


@dataclass(frozen=True, slots=True)
class Unit:
    """All matrix products that read one activation; they are quantised together or not at all.

    Attributes:
        activation: name of the tensor.
        nodes: names of the MatMul nodes.
        weights: name of each node's constant weight, shape (in, out).
        size: elements of all weights: proportional to the arithmetic.
    """

    activation: str
    nodes: tuple[str, ...]
    weights: tuple[str, ...]
    size: int


@dataclass(frozen=True, slots=True)
class Scale:
    """How an activation becomes uint8: ``real = (quantised - zero_point) * scale``."""

    scale: float
    zero_point: int

    @staticmethod
    def of(low: float, high: float) -> Scale:
        """Return the scale that covers [low, high] and represents zero exactly."""
        low, high = min(low, 0.0), max(high, 0.0)
        scale = (high - low) / 255 or 1.0
        return Scale(scale, int(np.clip(round(-low / scale), 0, 255)))

    def apply(self, value: np.ndarray) -> np.ndarray:
        """Return the float values that survive the round trip."""
        quantised = np.clip(np.rint(value / self.scale) + self.zero_point, 0, 255)
        return ((quantised - self.zero_point) * self.scale).astype(np.float32)


@dataclass(frozen=True, slots=True, eq=False)
class Recipe:
    """How one unit is quantised.

    Attributes:
        scale: scale of the activation, after smoothing.
        smooth: per channel of the activation, what it is divided by and the weights' rows are multiplied with, so that
            outlier channels do not decide the scale of all others; None for no smoothing.
            Source: SmoothQuant, https://arxiv.org/abs/2211.10438.
    """

    scale: Scale
    smooth: np.ndarray | None = None


def load_model(path: Path) -> onnx.ModelProto:
    """Load a model with its weights, every node named, each ``Gemm`` on a constant split into MatMul and Add."""
    import onnx

    model = onnx.load(str(path))
    graph = model.graph
    constants = {t.name: t for t in graph.initializer}
    taken = {n.name for n in graph.node}
    nodes: list[onnx.NodeProto] = []
    for index, node in enumerate(graph.node):
        if not node.name:
            node.name = next(n for n in (f"{node.op_type}_{index}", f"accel_{node.op_type}_{index}") if n not in taken)
        attributes = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
        plain = attributes.get("alpha", 1.0) == attributes.get("beta", 1.0) == 1.0 and not attributes.get("transA", 0)
        if node.op_type != "Gemm" or node.input[1] not in constants or not plain:
            nodes.append(node)
            continue
        weight = node.input[1]
        if attributes.get("transB", 0):
            turned = onnx.numpy_helper.to_array(constants[weight]).T
            weight = f"{node.name}_turned"
            graph.initializer.append(onnx.numpy_helper.from_array(np.ascontiguousarray(turned), weight))
        biased = len(node.input) > 2 and node.input[2] != ""
        product = f"{node.name}_product" if biased else node.output[0]
        nodes.append(onnx.helper.make_node("MatMul", [node.input[0], weight], [product], node.name))
        if biased:
            nodes.append(onnx.helper.make_node("Add", [product, node.input[2]], node.output, f"{node.name}_bias"))
    replace_nodes(model, nodes)
    return model


def find_units(model: onnx.ModelProto) -> list[Unit]:
    """Return the matrix products with a constant float32 matrix on the right, grouped by activation."""
    import onnx

    shapes = {
        t.name: tuple(t.dims)
        for t in model.graph.initializer
        if t.data_type == onnx.TensorProto.FLOAT and len(t.dims) == 2
    }
    groups: dict[str, list[onnx.NodeProto]] = {}
    for node in model.graph.node:
        if node.op_type == "MatMul" and node.input[1] in shapes and node.input[0] not in shapes:
            groups.setdefault(node.input[0], []).append(node)
    return [
        Unit(
            activation,
            tuple(n.name for n in nodes),
            tuple(n.input[1] for n in nodes),
            sum(int(np.prod(shapes[n.input[1]])) for n in nodes),
        )
        for activation, nodes in groups.items()
    ]


def weight_scales(weight: np.ndarray, *, levels: int) -> np.ndarray:
    """Return one scale for each output channel of a weight (in, out); ``levels`` is 127, or 63 for a reduced range."""
    return (np.maximum(np.abs(weight).max(axis=0), 1e-12) / levels).astype(np.float32)


def quantize_weight(weight: np.ndarray, scales: np.ndarray, *, levels: int) -> np.ndarray:
    """Return the weight as int8."""
    return np.clip(np.rint(weight / scales), -levels, levels).astype(np.int8)


def write_qdq(model: onnx.ModelProto, units: Iterable[Unit], recipes: Mapping[str, Recipe], *, levels: int) -> None:
    """Quantise ``units`` in place. Float weights that nothing reads any more are dropped."""
    nodes: list[onnx.NodeProto] = []
    chosen = {unit.activation: unit for unit in units}
    wanted = {name for unit in chosen.values() for name in unit.nodes}
    weights = _weights(model, chosen.values())
    started: set[str] = set()
    for node in model.graph.node:
        if node.name in wanted:
            activation, weight = node.input
            if activation not in started:
                started.add(activation)
                nodes += _activation_qdq(model, activation, recipes[activation])
            nodes.append(_weight_dq(model, node, weights[weight], recipes[activation], levels=levels))
            node.input[0], node.input[1] = f"{activation}_dq", nodes[-1].output[0]
        nodes.append(node)
    replace_nodes(model, nodes)
    drop_unused(model)


def write_switches(
    model: onnx.ModelProto, units: Sequence[Unit], recipes: Mapping[str, Recipe], *, levels: int
) -> None:
    """Compute every product of ``units`` both ways, and let the input ``accel_switch`` (float, one per unit) choose.

    One session then shows what any choice of units does to the outputs.
    """
    import onnx

    helper = onnx.helper
    index = {name: i for i, unit in enumerate(units) for name in unit.nodes}
    weights = _weights(model, units)
    model.graph.input.append(helper.make_tensor_value_info(SWITCH, onnx.TensorProto.FLOAT, [len(units)]))
    nodes: list[onnx.NodeProto] = []
    started: set[str] = set()
    for node in model.graph.node:
        if node.name not in index:
            nodes.append(node)
            continue
        activation, weight = node.input
        result, name = node.output[0], node.name
        if activation not in started:
            started.add(activation)
            nodes += _activation_qdq(model, activation, recipes[activation])
            _constant(model, f"{activation}_unit", np.array(index[name], np.int64))
            nodes.append(helper.make_node("Gather", [SWITCH, f"{activation}_unit"], [f"{activation}_on"]))
        nodes.append(_weight_dq(model, node, weights[weight], recipes[activation], levels=levels))
        rounded = nodes[-1].output[0]
        node.output[0] = f"{name}_float"
        nodes += [
            node,
            helper.make_node("MatMul", [f"{activation}_dq", rounded], [f"{name}_int8"], f"{name}_int8"),
            helper.make_node("Sub", [f"{name}_int8", f"{name}_float"], [f"{name}_error"]),
            helper.make_node("Mul", [f"{name}_error", f"{activation}_on"], [f"{name}_part"]),
            helper.make_node("Add", [f"{name}_float", f"{name}_part"], [result], f"{name}_chosen"),
        ]
    replace_nodes(model, nodes)


def save_model(model: onnx.ModelProto, path: Path) -> None:
    """Write the model, weights in ``<path>.data`` beside it; the model in memory has no weights afterwards."""
    import onnx

    path.with_name(f"{path.name}.data").unlink(missing_ok=True)
    model.graph.ClearField("value_info")  # written for the graph before: ONNX Runtime infers what it needs
    onnx.save_model(
        model, str(path), save_as_external_data=True, all_tensors_to_one_file=True, location=f"{path.name}.data"
    )


def replace_nodes(model: onnx.ModelProto, nodes: Sequence[onnx.NodeProto]) -> None:
    """Make ``nodes`` the graph's nodes."""
    copies = [type(n).FromString(n.SerializeToString()) for n in nodes]
    del model.graph.node[:]
    model.graph.node.extend(copies)


def drop_unused(model: onnx.ModelProto) -> None:
    """Remove initialisers that nothing reads."""
    used = _names_read(model.graph) | {o.name for o in model.graph.output}
    kept = [t for t in model.graph.initializer if t.name in used]
    if len(kept) < len(model.graph.initializer):
        copies = [type(t).FromString(t.SerializeToString()) for t in kept]
        del model.graph.initializer[:]
        model.graph.initializer.extend(copies)


def _names_read(graph: onnx.GraphProto) -> set[str]:
    names: set[str] = set()
    for node in graph.node:
        names |= set(node.input)
        for attribute in node.attribute:
            for inner in [attribute.g, *attribute.graphs]:
                names |= _names_read(inner)
    return names


def _weights(model: onnx.ModelProto, units: Collection[Unit]) -> dict[str, np.ndarray]:
    import onnx

    wanted = {w for unit in units for w in unit.weights}
    return {t.name: onnx.numpy_helper.to_array(t) for t in model.graph.initializer if t.name in wanted}


def _activation_qdq(model: onnx.ModelProto, name: str, recipe: Recipe) -> list[onnx.NodeProto]:
    import onnx

    helper = onnx.helper
    nodes = []
    read = name
    if recipe.smooth is not None:
        read = f"{name}_smooth"
        _constant(model, f"{name}_divisor", (1 / recipe.smooth).astype(np.float32))
        nodes.append(helper.make_node("Mul", [name, f"{name}_divisor"], [read], read))
    _constant(model, f"{name}_scale", np.array(recipe.scale.scale, np.float32))
    _constant(model, f"{name}_zero", np.array(recipe.scale.zero_point, np.uint8))
    parameters = [f"{name}_scale", f"{name}_zero"]
    nodes.append(helper.make_node("QuantizeLinear", [read, *parameters], [f"{name}_q"], f"{name}_q"))
    nodes.append(helper.make_node("DequantizeLinear", [f"{name}_q", *parameters], [f"{name}_dq"], f"{name}_dq"))
    return nodes


def _weight_dq(
    model: onnx.ModelProto, product: onnx.NodeProto, weight: np.ndarray, recipe: Recipe, *, levels: int
) -> onnx.NodeProto:
    import onnx

    if recipe.smooth is not None:
        weight = weight * recipe.smooth[:, None]
    scales = weight_scales(weight, levels=levels)
    name = f"{product.name}_weight"
    _constant(model, f"{name}_q", quantize_weight(weight, scales, levels=levels))
    _constant(model, f"{name}_scale", scales)
    _constant(model, f"{name}_zero", np.zeros(len(scales), np.int8))
    inputs = [f"{name}_q", f"{name}_scale", f"{name}_zero"]
    return onnx.helper.make_node("DequantizeLinear", inputs, [f"{name}_dq"], f"{name}_dq", axis=1)


def _constant(model: onnx.ModelProto, name: str, value: np.ndarray) -> None:
    import onnx

    model.graph.initializer.append(onnx.numpy_helper.from_array(value, name))
