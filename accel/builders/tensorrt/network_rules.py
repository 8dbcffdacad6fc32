"""Hold a typed ONNX file against the published rules of a strongly typed TensorRT network, versions 10 and 11.

TensorRT's own parser needs a GPU; this needs none and proves less: a file without findings keeps every rule below, and
may still be refused for one that is not written down. Each finding names the node, the rule's source and the fix.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import onnx_ir as ir
from onnx_ir.passes.common import ShapeInferencePass

from accel.core.errors import InputError
from accel.graph import passes

DOCS = "https://docs.nvidia.com/deeplearning/tensorrt/latest/"
QUANTISATION = f"{DOCS}inference-library/quantized-types-explicit-quantization.html"
TYPES = f"{DOCS}reference/data-format-desc.html"
OPSETS = f"{DOCS}reference/onnx-opset-guide.html"
STRONG = f"{DOCS}inference-library/precision-control.html"
OPERATORS = "https://github.com/onnx/onnx-tensorrt/blob/main/docs/operators.md"
SCHEMAS = "https://onnx.ai/onnx/operators/"
LAYERS = f"{DOCS}_static/operators/Quantize.html"

FIRST_OPSET, LAST_OPSET = 9, 25
LAST_IR = 10
"""Newest IR version that ONNX Runtime 1.31, which proves the file, reads."""

NOT_KNOWN = frozenset({
    "AffineGrid", "Bernoulli", "BitShift", "BitwiseAnd", "BitwiseNot", "BitwiseOr", "BitwiseXor", "CenterCropPad",
    "Col2Im", "Compress", "ConcatFromSequence", "ConvInteger", "DFT", "Det", "DynamicQuantizeLinear",
    "ImageDecoder", "MatMulInteger", "MaxRoiPool", "MaxUnpool", "MelWeightMatrix", "Multinomial",
    "NegativeLogLikelihoodLoss", "Optional", "OptionalGetElement", "OptionalHasElement", "QLinearConv",
    "QLinearMatMul", "RegexFullMatch", "SequenceAt", "SequenceConstruct", "SequenceEmpty", "SequenceErase",
    "SequenceInsert", "SequenceLength", "SequenceMap", "SoftmaxCrossEntropyLoss", "SplitToSequence", "StringConcat",
    "StringNormalizer", "StringSplit", "TfIdfVectorizer", "Unique",
})  # fmt: skip
"""ONNX operators that the parser of 10.15 lists as unsupported. Source: its docs/operators.md."""
ONE_TYPE = frozenset({
    "Add", "Sub", "Mul", "Div", "Pow", "Min", "Max", "Sum", "Mean", "And", "Or", "Xor", "Equal", "Greater",
    "GreaterOrEqual", "Less", "LessOrEqual", "Where", "Concat", "MatMul", "Gemm", "Conv", "ConvTranspose", "PRelu",
    "Einsum", "LayerNormalization", "BatchNormalization", "InstanceNormalization", "GroupNormalization",
})  # fmt: skip
"""Operators whose floating-point inputs must share one type: TensorRT inserts no cast. Source: precision control."""

Rule = Literal[
    "opset",
    "ir",
    "operator",
    "restriction",
    "dtype",
    "double",
    "int64",
    "types",
    "zero-point",
    "uint8",
    "scale",
    "placement",
]
Severity = Literal["error", "warning"]


@dataclass(frozen=True, slots=True)
class BrokenRule:
    """One broken rule.

    Attributes:
        severity: ``error``: TensorRT refuses the file, or computes something else; ``warning``: it takes the file, and
            something is lost.
        node: name of the node or value, empty for the file.
        message: what was found and expected; ``fix`` how to fix it; ``source`` where the rule is published.
    """

    rule: Rule
    severity: Severity
    node: str
    message: str
    fix: str
    source: str

    def __str__(self) -> str:
        return f"{self.severity}: {self.message}\n  fix: {self.fix}\n  source: {self.source}"


FLOATS = frozenset({ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.BFLOAT16, ir.DataType.DOUBLE})
QUANTISED = frozenset({ir.DataType.INT8, ir.DataType.FLOAT8E4M3FN, ir.DataType.INT4, ir.DataType.FLOAT4E2M1})
KNOWN = FLOATS | QUANTISED | {ir.DataType.INT64, ir.DataType.INT32, ir.DataType.UINT8, ir.DataType.BOOL}


def check(path: Path) -> tuple[BrokenRule, ...]:
    """Return every broken rule, errors first; weights are not read, scales and zero-points are.

    Raises:
        InputError: the file is not an ONNX model.
    """
    model = passes.load(path)
    if not len(model.graph):
        raise InputError(f"{path} cannot be read as ONNX: it holds no graph", fix="give an ONNX file")
    ends = {*model.graph.inputs, *model.graph.outputs}
    for value in (v for node in model.graph.all_nodes() for v in node.outputs if v not in ends):
        value.type = None  # what was written for an earlier form of the graph is inferred again
    ShapeInferencePass()(model)
    rules: tuple[Callable[[ir.Model], Iterator[BrokenRule]], ...] = (
        _versions,
        _operators,
        _dtypes,
        _one_type,
        _pairs,
        _placement,
    )
    found = [finding for rule in rules for finding in rule(model)]
    return tuple(sorted(found, key=lambda f: f.severity))


def _constant(value: ir.Value | None) -> np.ndarray | None:
    """Return the value of a constant: an initialiser or a Constant node; None for anything else."""
    tensor = ir.convenience.get_const_tensor(value) if value is not None else None
    try:
        return tensor.numpy() if tensor is not None else None
    except (OSError, ValueError):
        return None


def _is_constant(value: ir.Value) -> bool:
    """Say whether a value is known when the engine is built."""
    producer = value.producer()
    return value.is_initializer() or (producer is not None and producer.op_type == "Constant")


def _given(node: ir.Node) -> list[ir.Value]:
    return [value for value in node.inputs if value is not None]


def _input(node: ir.Node, index: int) -> ir.Value | None:
    return node.inputs[index] if len(node.inputs) > index else None


def _name(node: ir.Node) -> str:
    return node.name or str(node.outputs[0].name)


def _label(node: ir.Node) -> str:
    return f"{node.op_type} {_name(node)!r}"


def _versions(model: ir.Model) -> Iterator[BrokenRule]:
    opset = model.graph.opset_imports.get("", 0)
    yield from _first(
        "",
        (
            not FIRST_OPSET <= opset <= LAST_OPSET,
            "opset",
            "error",
            f"the file has opset {opset}, expected {FIRST_OPSET} to {LAST_OPSET}",
            "export it again with --opset 18, or use onnx.version_converter",
            OPSETS,
        ),
        (
            opset > 20,
            "opset",
            "warning",
            f"the file has opset {opset}; TensorRT 10.0 reads up to 20, 10.15 up to 24, 11 up to {LAST_OPSET}",
            "build it with a TensorRT that reads this opset",
            OPERATORS,
        ),
    )
    if model.ir_version > LAST_IR:
        yield BrokenRule(
            "ir",
            "error",
            "",
            f"the file has IR version {model.ir_version}, expected at most {LAST_IR}",
            "save it with an earlier ir_version",
            SCHEMAS,
        )


def _first(node: str, *rows: tuple[bool, Rule, Severity, str, str, str]) -> list[BrokenRule]:
    """Return the finding of the first row that is broken: whether it is, rule, severity, message, fix and source."""
    broken = [BrokenRule(rule, severity, node, *texts) for wrong, rule, severity, *texts in rows if wrong]
    return broken[:1]


def _operators(model: ir.Model) -> Iterator[BrokenRule]:
    local = {(domain, name) for domain, name, _ in model.functions}
    for node in model.graph.all_nodes():
        standard = node.domain in ("", "ai.onnx")
        fused = node.domain == "com.microsoft"
        unknown = _first(
            _name(node),
            (
                standard and node.op_type in NOT_KNOWN,
                "operator",
                "error",
                f"TensorRT's parser does not know {_label(node)}",
                f"rewrite the model without {node.op_type}, or run it through a target that has it (ort-cuda, aoti)",
                OPERATORS,
            ),
            (
                not standard and (node.domain, node.op_type) not in local,
                "operator",
                "error",
                f"TensorRT's parser does not know {_label(node)} of domain {node.domain!r}",
                "give TensorRT the unfused file" if fused else "register a plugin of that name",
                OPERATORS,
            ),
        )
        yield from unknown or _restrictions(node)


def _restrictions(node: ir.Node) -> Iterator[BrokenRule]:
    """Check what the operator list says in its column of restrictions, as far as the file shows it."""
    op, given, dynamic = node.op_type, node.attributes, [not _is_constant(v) for v in _given(node)]
    late = len(dynamic) > 1 and dynamic[1]  # the second input is not known when the engine is built
    pooling = op in ("MaxPool", "AveragePool")
    used = [bool(v.name) and (v.is_graph_output() or bool(v.uses())) for v in node.outputs]
    broken = {
        "its output Indices is not supported": op == "MaxPool" and any(used[1:]),
        "its dilations must all be 1": (pooling or op == "LpPool") and {*given.get_ints("dilations", [1])} != {1},
        "only pooling in two or three dimensions is supported": pooling
        and len(given.get_ints("kernel_shape", [1, 1])) not in (2, 3),
        "only its first output is supported": op == "LayerNormalization" and any(used[1:]),
        "sorted must be 1": op == "TopK" and given.get_int("sorted", 1) != 1,
        "a reduction is not supported": op == "ScatterND" and given.get_string("reduction", "none") != "none",
        "its axes must be a constant": (op.startswith("Reduce") or op in ("Squeeze", "Unsqueeze")) and late,
        "its axis must be a constant": op == "CumSum" and late,
        "its depth must be a constant": op == "OneHot" and late,
        "antialiasing is not supported": op == "Resize" and given.get_int("antialias", 0) != 0,
        "the mode cubic is not supported": op == "Resize" and given.get_string("mode", "nearest") == "cubic",
        "input_forget and layout must be 0": op == "LSTM"
        and (given.get_int("input_forget", 0), given.get_int("layout", 0)) != (0, 0),
    }
    for complaint in [text for text, is_broken in broken.items() if is_broken][:1]:
        yield BrokenRule(
            "restriction",
            "error",
            _name(node),
            f"{_label(node)}: {complaint}",
            "change the model, or fold constants before exporting",
            OPERATORS,
        )


def _dtypes(model: ir.Model) -> Iterator[BrokenRule]:
    graph, narrow = model.graph, "run `accel narrow --runtime tensorrt` first (accel convert does)"
    ends = [*graph.inputs, *graph.outputs]
    made = [v for node in graph for v in node.outputs if not v.is_graph_output()]
    held = [v for v in graph.initializers.values() if not v.is_graph_input()]
    for value in (*ends, *made, *held):
        name, kind = str(value.name), value.dtype
        if kind is None:
            continue
        around = [*value.consumers(), *([] if (producer := value.producer()) is None else [producer])]
        paired = any(n.op_type in ("QuantizeLinear", "DequantizeLinear") for n in around)
        yield from _first(
            name,
            (
                kind == ir.DataType.DOUBLE,
                "double",
                "error",
                f"value {name!r} is DOUBLE, which TensorRT casts down and clamps",
                narrow,
                OPERATORS,
            ),
            (
                kind not in KNOWN,
                "dtype",
                "error",
                f"value {name!r} is {kind.name}, a type that TensorRT does not have",
                narrow,
                TYPES,
            ),
            (
                kind == ir.DataType.UINT8 and value not in ends and not paired,  # a pair has its own rule about UINT8
                "uint8",
                "error",
                f"value {name!r} inside the graph is UINT8, which only inputs and outputs may be",
                "cast it to INT32 or FLOAT",
                OPERATORS,
            ),
            (
                kind == ir.DataType.INT64 and value in ends and not value.is_initializer(),
                "int64",
                "warning",
                f"{name!r} is INT64 at the border: twice the bytes of a request, where its values fit INT32",
                "give its range (--range NAME=LO:HI) so that it can be narrowed",
                TYPES,
            ),
        )


def _one_type(model: ir.Model) -> Iterator[BrokenRule]:
    for node in model.graph.all_nodes():
        if node.op_type not in ONE_TYPE or node.domain not in ("", "ai.onnx"):
            continue
        found = {v.name: v.dtype for v in _given(node) if v.dtype in FLOATS}
        if len(set(found.values())) > 1:
            listed = ", ".join(f"{n!r} is {k.name}" for n, k in found.items() if k is not None)
            yield BrokenRule(
                "types",
                "error",
                _name(node),
                f"the inputs of {_label(node)} differ in type: {listed}; a strongly typed network inserts no cast",
                "put a Cast before it",
                STRONG,
            )


def _pairs(model: ir.Model) -> Iterator[BrokenRule]:
    """Check zero-points, quantised types and scales."""
    for node in model.graph.all_nodes():
        if node.op_type not in ("QuantizeLinear", "DequantizeLinear"):
            continue
        name, label = _name(node), _label(node)
        point = _input(node, 2)
        zero = _constant(point)
        side = node.outputs[0] if node.op_type == "QuantizeLinear" else node.inputs[0]
        typed = side if zero is None else point
        kind = (typed.dtype if typed is not None else None) or ir.DataType.UINT8
        yield from _first(
            name,
            (
                kind == ir.DataType.UINT8,
                "uint8",
                "error",
                f"{label} quantises to UINT8, expected INT8 or FLOAT8E4M3FN",
                "quantise with a symmetric signed type (accel.graph.quantize.for_tensorrt)",
                QUANTISATION,
            ),
            (
                kind not in QUANTISED,
                "dtype",
                "error",
                f"{label} quantises to {kind.name}, expected INT8 or FLOAT8E4M3FN",
                "quantise with a type that TensorRT has",
                QUANTISATION,
            ),
        )
        if point is not None and zero is None:
            yield BrokenRule(
                "zero-point",
                "error",
                name,
                f"the zero-point of {label} is not a constant",
                "make it a constant of zeros",
                OPERATORS,
            )
        elif zero is not None and np.any(values := zero.astype(np.float32)):
            yield BrokenRule(
                "zero-point",
                "error",
                name,
                f"{label} is asymmetric: zero-point {values[values != 0].min():g}, expected 0",
                "calibrate symmetrically (accel.graph.quantize.for_tensorrt)",
                OPERATORS,
            )
        yield from _scale(node)


def _scale(node: ir.Node) -> Iterator[BrokenRule]:
    name, label = _name(node), _label(node)
    value, held = (_input(node, index) for index in (0, 1))
    scale = _constant(held)
    if scale is None or held is None or value is None:
        yield BrokenRule(
            "scale",
            "error",
            name,
            f"the scale of {label} is not known when the engine is built",
            "make it a constant",
            QUANTISATION,
        )
        return
    values = scale.astype(np.float64)
    if not (np.isfinite(values).all() and (values > 0).all()):
        bad = values[~(np.isfinite(values) & (values > 0))].ravel()[0]
        yield BrokenRule(
            "scale",
            "error",
            name,
            f"{label} has a scale of {bad:g}, expected positive, finite values",
            "calibrate again on samples that reach this value",
            LAYERS,
        )
    if values.ndim > 1:
        yield BrokenRule(
            "scale",
            "error",
            name,
            f"the scale of {label} has shape {values.shape}; INT8 takes a scalar or one value per channel",
            "use one axis",
            QUANTISATION,
        )
    real = value.dtype if node.op_type == "QuantizeLinear" else node.outputs[0].dtype
    if real is not None and held.dtype is not None and real != held.dtype:
        yield BrokenRule(
            "types",
            "error",
            name,
            f"{label} scales {real.name} with a scale of {held.dtype.name}",
            "give the scale the type of the value",
            STRONG,
        )
    axis, dims = node.attributes.get_int("axis", 1), value.shape.dims if value.is_initializer() and value.shape else ()
    if values.size > 1 and -len(dims) <= axis < len(dims) and values.size != dims[axis]:
        yield BrokenRule(
            "scale",
            "error",
            name,
            f"{label} has {values.size} scales for {dims[axis]} channels",
            "give one scale per channel of its axis",
            LAYERS,
        )


def _placement(model: ir.Model) -> Iterator[BrokenRule]:
    """Check that pairs stand together, before both inputs of what they quantise, per tensor before activations."""
    for node in model.graph.all_nodes():
        name, label = _name(node), _label(node)
        source = _input(node, 0)
        if node.op_type == "QuantizeLinear":
            readers = node.outputs[0].consumers()
            if others := [r for r in readers if r.op_type != "DequantizeLinear"]:
                yield _misplaced(name, f"{label} feeds {_label(others[0])}, expected DequantizeLinear alone")
            elif not readers:
                yield _misplaced(name, f"nothing dequantises what {label} gives")
            scale = _constant(_input(node, 1))
            if scale is not None and scale.size > 1 and source is not None and not _is_constant(source):
                yield _misplaced(name, f"{label} quantises an activation per channel, expected one scale")
        elif node.op_type == "DequantizeLinear":
            maker = source.producer() if source is not None else None
            if maker is not None and maker.op_type == "QuantizeLinear" and _differ(maker, node):
                yield _misplaced(name, f"{label} and {_label(maker)} differ in scale")
            elif maker is not None and maker.op_type not in ("QuantizeLinear", "Constant"):
                yield _misplaced(name, f"{label} reads {_label(maker)}, expected QuantizeLinear or a constant")
        elif node.op_type in ("MatMul", "Gemm", "Conv", "ConvTranspose"):
            quantised = [_dequantised(value) for value in node.inputs]
            if quantised[0] != quantised[1]:
                side = "weight" if quantised[0] else "activation"
                yield BrokenRule(
                    "placement",
                    "warning",
                    name,
                    f"only one input of {label} is quantised (its {side} is not): it runs in floating point",
                    "quantise both inputs, or neither",
                    QUANTISATION,
                )
            if any(quantised[2:]):
                yield _misplaced(name, f"the bias of {label} is quantised, expected floating point")


def _misplaced(name: str, what: str) -> BrokenRule:
    return BrokenRule(
        "placement", "error", name, what, "write Q/DQ pairs with accel.graph.quantize.for_tensorrt", QUANTISATION
    )


def _dequantised(value: ir.Value | None) -> bool:
    """Say whether a value comes from DequantizeLinear, with at most layout operators in between."""
    maker = value.producer() if value is not None else None
    while maker is not None and maker.op_type in ("Transpose", "Reshape", "Squeeze", "Unsqueeze", "Identity"):
        maker = maker.inputs[0].producer() if maker.inputs[0] is not None else None
    return maker is not None and maker.op_type == "DequantizeLinear"


def _differ(one: ir.Node, two: ir.Node) -> bool:
    first, second = (_constant(_input(node, 1)) for node in (one, two))
    if first is None or second is None:
        return _input(one, 1) is not _input(two, 1)
    return not np.array_equal(first.astype(np.float64), second.astype(np.float64), equal_nan=True)
