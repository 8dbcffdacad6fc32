"""Q/DQ pairs around matrix products and convolutions: the one writer of them, for TensorRT and for ONNX Runtime's CPU.

Explicit quantisation is in the graph: a pair of QuantizeLinear and DequantizeLinear before both inputs of a product
makes it an integer (or FP8) one. Products of two activations (attention) stay as they are, so do every bias and every
output: the runtime runs each product as one integer kernel with a floating-point result.

Two steps, so that a search can try dozens of choices: ``add_constants`` puts what every product needs into the file
once, and ``WritePairs`` is then a pass over the graph alone.

Source: https://docs.nvidia.com/deeplearning/tensorrt/latest/inference-library/quantized-types-explicit-quantization.html
"""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import onnx
import onnx_ir as ir

from accel.graph import passes
from accel.graph.opset import RaiseOpset

Quantised = Literal["int8", "fp8", "cpu-int8", "cpu-int7"]
FIRST_OPSET = 13
"""First opset whose Q/DQ have a scale for each channel. Source: https://onnx.ai/onnx/operators/."""
FLOATS = (ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.BFLOAT16)


@dataclass(frozen=True, slots=True)
class Scheme:
    """The types that values are quantised to.

    Attributes:
        largest: largest magnitude of a quantised weight.
        folded: whether the file holds the quantised weights, or the floating-point ones behind a pair of their own.
    """

    activation: ir.DataType
    weight: ir.DataType
    largest: float
    folded: bool


SCHEMES: Mapping[Quantised, Scheme] = {
    "int8": Scheme(ir.DataType.INT8, ir.DataType.INT8, 127.0, folded=False),
    "fp8": Scheme(ir.DataType.FLOAT8E4M3FN, ir.DataType.FLOAT8E4M3FN, 448.0, folded=False),
    "cpu-int8": Scheme(ir.DataType.UINT8, ir.DataType.INT8, 127.0, folded=True),
    "cpu-int7": Scheme(ir.DataType.UINT8, ir.DataType.INT8, 63.0, folded=True),
}
"""``int8`` and ``fp8`` are TensorRT's: symmetric, zero-point 0. A CPU's kernels take unsigned activations with a
zero-point; without VNNI they add pairs in 16 bits, and ``cpu-int7`` leaves them room. Source: symmetric int8 leaves
-128 out; E4M3 of ONNX's FLOAT8E4M3FN ends at 448."""


@dataclass(frozen=True, slots=True)
class Product:
    """A matrix product or convolution with a constant weight.

    Attributes:
        node: name of the MatMul or Conv node; ``activation`` what it reads; ``weight`` its constant.
        axis: axis of the weight's output channels.
        inner: how many products are summed for one output value.
    """

    node: str
    op: str
    activation: str
    weight: str
    axis: int
    inner: int


@dataclass(frozen=True, slots=True, eq=False)
class Recipe:
    """How one activation is quantised: ``real = (quantised - zero) * scale``.

    Attributes:
        smooth: per channel, what the activation is divided by and the weights' rows are multiplied with, so that
            outlier channels do not decide the scale of all others; None for no smoothing.
            Source: SmoothQuant, https://arxiv.org/abs/2211.10438.
    """

    scale: float
    zero: int = 0
    smooth: np.ndarray | None = None

    @staticmethod
    def unsigned(low: float, high: float, smooth: np.ndarray | None = None) -> "Recipe":
        """Return the uint8 scale that covers [low, high] and represents zero exactly."""
        low, high = min(low, 0.0), max(high, 0.0)
        scale = (high - low) / 255 or 1.0
        return Recipe(scale, int(np.clip(round(-low / scale), 0, 255)), smooth)

    def apply(self, value: np.ndarray) -> np.ndarray:
        """Return the smoothed values that survive the round trip through uint8."""
        quantised = np.clip(np.rint(value / self.scale) + self.zero, 0, 255)
        return ((quantised - self.zero) * self.scale).astype(np.float32)


def load(path: Path) -> ir.Model:
    """Load a model that pairs can be put into.

    Every node is named, constants are transposed, each ``Gemm`` on a constant is split into MatMul and Add.

    Raises:
        InputError: as ``passes.load``; StageError: its opset cannot be raised.
    """
    model = passes.load(path)
    passes.run(model, *quantisable(), SplitGemm())
    return model


def quantisable() -> tuple[passes.ContractPass, ...]:
    """Return the passes that any quantiser needs first: an opset with pairs, names, and weights behind no Transpose."""
    return RaiseOpset(FIRST_OPSET), NameNodes(), FoldTransposes()


class NameNodes(passes.ContractPass):
    """Give every node of the main graph a name of its own."""

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Name those that have none, or that of another one."""
        taken: set[str] = set()
        known = {node.name for node in model.graph}
        modified = False
        for index, node in enumerate(model.graph):
            if not node.name or node.name in taken:
                names = (f"{node.op_type}_{index}", f"accel_{node.op_type}_{index}")
                node.name = next(n for n in names if n not in known)
                modified = True
            taken.add(node.name)
        return ir.passes.PassResult(model, modified)


class FoldTransposes(passes.ContractPass):
    """Transpose constants here: behind a Transpose no product has a constant weight.

    Exporters leave it before weights that layers share (ALBERT, copies of one layer), and without constant folding
    before every one.
    """

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Write the transposed constants of the main graph."""
        graph, modified = model.graph, False
        for node in list(graph):
            given, made = node.inputs[0] if node.inputs else None, node.outputs[0]
            if node.op_type != "Transpose" or node.domain or given is None or made.is_graph_output():
                continue
            if graph.initializers.get(str(given.name)) is given and given.const_value is not None:
                turned = np.transpose(given.const_value.numpy(), node.attributes.get_ints("perm", None))
                own = constant(graph, f"{made.name}_folded", np.ascontiguousarray(turned))
                made.replace_all_uses_with(own)
                graph.remove(node, safe=True)
                modified = True
        return ir.passes.PassResult(model, modified)


class SplitGemm(passes.ContractPass):
    """Write each ``Gemm`` on a constant as MatMul and Add, which can be quantised."""

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        graph, modified = model.graph, False
        held = set(graph.initializers.values())
        for node in list(graph):
            given = node.attributes
            scaled = {given.get_float("alpha", 1.0), given.get_float("beta", 1.0)} != {1.0} or given.get_int(
                "transA", 0
            )
            if node.op_type == "Gemm" and not scaled and node.inputs[1] in held:
                _split(graph, node)
                modified = True
        return ir.passes.PassResult(model, modified)


def _split(graph: ir.Graph, node: ir.Node) -> None:
    activation, weight, *bias = node.inputs
    assert weight is not None
    assert node.name is not None
    if node.attributes.get_int("transB", 0):
        assert weight.const_value is not None
        weight = constant(graph, f"{node.name}_turned", np.ascontiguousarray(weight.const_value.numpy().T))
    made = [ir.node("MatMul", [activation, weight], name=node.name)]
    if bias and bias[0] is not None:
        made[0].outputs[0].name = f"{node.name}_product"
        made.append(ir.node("Add", [made[0].outputs[0], bias[0]], name=f"{node.name}_bias"))
    ir.convenience.replace_nodes_and_values(graph, node, [node], made, node.outputs, made[-1].outputs)


def constant(graph: ir.Graph, name: str, value: np.ndarray) -> ir.Value:
    """Add an initialiser to the graph and return it."""
    made = ir.val(name, const_value=ir.tensor(value, name=name))
    graph.register_initializer(made)
    return made


def products(model: ir.Model) -> list[Product]:
    """Return the matrix products and convolutions whose weight is a floating-point constant, in graph order."""
    found = []
    for node in model.graph:
        if node.op_type not in ("MatMul", "Conv"):
            continue
        activation, weight = (str(value.name) for value in node.inputs[:2] if value is not None)
        held = model.graph.initializers
        tensor = held[weight].const_value if weight in held and activation not in held else None
        if tensor is None or tensor.dtype not in FLOATS:
            continue
        shape = tensor.shape.numpy()
        if node.op_type == "MatMul" and len(shape) == 2:
            found.append(Product(str(node.name), "MatMul", activation, weight, 1, shape[0]))
        elif node.op_type == "Conv":
            found.append(Product(str(node.name), "Conv", activation, weight, 0, math.prod(shape[1:])))
    return found


def weight_scales(weight: np.ndarray, axis: int, largest: float) -> np.ndarray:
    """Return one scale per output channel (float32), from its largest magnitude."""
    others = tuple(a for a in range(weight.ndim) if a != axis)
    return np.asarray(np.maximum(np.abs(weight).max(axis=others), 1e-12) / largest, np.float32)


def quantize_weight(weight: np.ndarray, scales: np.ndarray, axis: int, largest: float) -> np.ndarray:
    """Return the weight as int8."""
    spread = np.expand_dims(scales, tuple(a for a in range(weight.ndim) if a != axis))
    return np.clip(np.rint(weight / spread), -largest, largest).astype(np.int8)


def add_constants(
    model: ir.Model,
    wanted: Sequence[Product],
    recipes: Mapping[str, Recipe],
    types: Mapping[str, int],
    scheme: Scheme,
) -> None:
    """Add what the pairs of all ``wanted`` products need; nothing reads it yet.

    Args:
        recipes: by activation.
        types: element type of every floating-point value: a scale has the type of what it scales.
    """
    graph = model.graph

    def add(prefix: str, scale: np.ndarray, zero: int, kind: ir.DataType, value: str) -> None:
        of = ir.DataType(types[value])
        smallest = 2.0**-14 if of == ir.DataType.FLOAT16 else 2.0**-126  # no subnormal scale: it has few bits
        constant(graph, f"{prefix}_scale", np.maximum(scale, smallest).astype(of.numpy()))
        constant(graph, f"{prefix}_zero", np.full(scale.shape, zero).astype(kind.numpy()))

    for product in wanted:
        recipe, prefix = recipes[product.activation], f"{product.node}_weight"
        if f"{product.activation}_scale" not in graph.initializers:
            add(product.activation, np.array(recipe.scale), recipe.zero, scheme.activation, product.activation)
            if recipe.smooth is not None:
                constant(graph, f"{product.activation}_divisor", (1 / recipe.smooth).astype(np.float32))
        tensor = graph.initializers[product.weight].const_value
        assert tensor is not None
        weight = tensor.numpy().astype(np.float32)
        if recipe.smooth is not None:
            weight = weight * recipe.smooth[:, None]
        scales = weight_scales(weight, product.axis, scheme.largest)
        add(prefix, scales, 0, scheme.weight, product.weight)
        if scheme.folded:
            constant(graph, f"{prefix}_q", quantize_weight(weight, scales, product.axis, scheme.largest))


class WritePairs(passes.ContractPass):
    """Quantise both inputs of the ``wanted`` products, whose constants ``add_constants`` added."""

    def __init__(self, wanted: Collection[Product]) -> None:
        self._wanted = wanted

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        nodes = {node.name: node for node in model.graph}
        made: dict[str, ir.Value] = {}
        for product in self._wanted:
            node = nodes[product.node]
            sides: tuple[tuple[str, dict[str, int]], ...] = (
                (product.activation, {}),
                (f"{product.node}_weight", {"axis": product.axis}),
            )
            for index, (prefix, axis) in enumerate(sides):
                if prefix not in made:
                    made[prefix] = _pair(model.graph, node, index, prefix, axis)
                node.replace_input_with(index, made[prefix])
        return ir.passes.PassResult(model, bool(made))


def without_pairs(model: onnx.ModelProto, kept: Collection[Product]) -> bytes:
    """Return a model, serialised, in which ``WritePairs`` quantised every product, with some left in floating point.

    A search writes dozens of them: reading and writing a graph by onnx-ir takes ten times as long. Weights that nothing
    reads any more stay named in the file.
    """
    found = type(model)()
    found.CopyFrom(model)
    nodes = {node.name: node for node in found.graph.node}
    for product in kept:
        nodes[product.node].input[:2] = [product.activation, product.weight]
    prefixes = [prefix for product in kept for prefix in (product.activation, f"{product.node}_weight")]
    pairs = {f"{prefix}_{suffix}" for prefix in prefixes for suffix in ("smooth", "q", "dq")}
    used: set[str] = set()
    left = []
    for node in reversed(found.graph.node):
        if node.name not in pairs or not used.isdisjoint(node.output):
            used.update(node.input)
            left.append(node)
    graph = type(model.graph)(node=left[::-1])
    found.graph.ClearField("node")
    found.graph.MergeFrom(graph)
    return bytes(found.SerializeToString())


def _pair(graph: ir.Graph, node: ir.Node, index: int, prefix: str, axis: Mapping[str, int]) -> ir.Value:
    """Put a pair for an input before the node; return what DequantizeLinear gives."""
    constants = graph.initializers
    value: ir.Value | None = node.inputs[index]
    parameters = [constants[f"{prefix}_scale"], constants[f"{prefix}_zero"]]

    def put(op: str, inputs: list[ir.Value | None], suffix: str, attributes: Mapping[str, int]) -> ir.Value:
        new = ir.node(op, inputs, attributes, name=f"{prefix}_{suffix}")
        new.outputs[0].name = f"{prefix}_{suffix}"
        graph.insert_before(node, new)
        return new.outputs[0]

    if f"{prefix}_divisor" in constants:
        value = put("Mul", [value, constants[f"{prefix}_divisor"]], "smooth", {})
    quantised = constants.get(f"{prefix}_q") or put("QuantizeLinear", [value, *parameters], "q", axis)
    return put("DequantizeLinear", [quantised, *parameters], "dq", axis)
