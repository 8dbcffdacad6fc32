"""Hold a typed ONNX file against the published rules of a strongly typed TensorRT network, versions 10 and 11.

TensorRT's own parser needs a GPU; this needs none and proves less: a file without findings keeps every rule below, and
may still be refused for one that is not written down. Each finding names the node, the rule's source and the mend.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from accel.core.errors import InputError

if TYPE_CHECKING:
    import onnx

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


@dataclass(frozen=True, slots=True)
class Finding:
    """One broken rule.

    Attributes:
        severity: ``error``: TensorRT refuses the file, or computes something else; ``warning``: it takes the file, and
            something is lost.
        node: name of the node or value, empty for the file.
        message: what was found and expected; ``fix`` how to mend it; ``source`` where the rule is published.
    """

    rule: Rule
    severity: Literal["error", "warning"]
    node: str
    message: str
    fix: str
    source: str

    def __str__(self) -> str:
        return f"{self.severity}: {self.message}\n  fix: {self.fix}\n  source: {self.source}"


def check(path: Path) -> tuple[Finding, ...]:
    """Return every broken rule, errors first; weights are not read, scales and zero-points are.

    Raises:
        InputError: the file is no ONNX model.
    """
    import onnx

    try:
        model = onnx.load(str(path), load_external_data=False)
        if not model.graph.node:
            raise InputError(f"{path} holds no graph", fix="give an ONNX file")
    except (OSError, ValueError, RuntimeError) as error:
        raise InputError(f"{path} cannot be read as ONNX: {error}", fix="give an ONNX file") from error
    except Exception as error:
        if type(error).__name__ != "DecodeError":
            raise
        raise InputError(f"{path} cannot be read as ONNX: {error}", fix="give an ONNX file") from error
    seen = _Graph(model, path.parent)
    rules: tuple[Callable[[_Graph], Iterator[Finding]], ...] = (
        _versions,
        _operators,
        _dtypes,
        _one_type,
        _pairs,
        _placement,
    )
    found = [finding for rule in rules for finding in rule(seen)]
    return tuple(sorted(found, key=lambda f: f.severity))


class _Graph:
    """The graph, its bodies' nodes, the type of each value, its producers and readers."""

    def __init__(self, model: onnx.ModelProto, folder: Path) -> None:
        import onnx

        self.model = model
        self.folder = folder
        self.constants = {t.name: t for t in model.graph.initializer}
        self.nodes = list(_all_nodes(model.graph))
        self.producers = {o: n for n in self.nodes for o in n.output}
        self.readers: dict[str, list[onnx.NodeProto]] = {}
        for node in self.nodes:
            for name in node.input:
                self.readers.setdefault(name, []).append(node)
        bare = type(model)()
        bare.CopyFrom(model)
        bare.graph.ClearField("value_info")
        try:
            graph = onnx.shape_inference.infer_shapes(bare).graph
        except (onnx.shape_inference.InferenceError, RuntimeError, ValueError):
            graph = model.graph  # what is declared is all there is
        values = (*graph.input, *graph.value_info, *graph.output)
        self.types = {v.name: v.type.tensor_type.elem_type for v in values if v.type.tensor_type.elem_type}
        self.types |= {name: tensor.data_type for name, tensor in self.constants.items()}

    def constant(self, name: str) -> np.ndarray | None:
        """Return the value of a small constant: an initialiser or a Constant node; None for anything else."""
        import onnx

        tensor = self.constants.get(name)
        if tensor is None and name in self.producers and self.producers[name].op_type == "Constant":
            tensor = next((a.t for a in self.producers[name].attribute if a.name == "value"), None)
        if tensor is None:
            return None
        try:
            return onnx.numpy_helper.to_array(tensor, base_dir=str(self.folder))
        except (OSError, ValueError, onnx.checker.ValidationError):
            return None

    def is_constant(self, name: str) -> bool:
        """Say whether a value is known when the engine is built."""
        return name in self.constants or (name in self.producers and self.producers[name].op_type == "Constant")


def _all_nodes(graph: onnx.GraphProto) -> Iterator[onnx.NodeProto]:
    for node in graph.node:
        yield node
        for attribute in node.attribute:
            for inner in (attribute.g, *attribute.graphs):
                yield from _all_nodes(inner)


def _label(node: onnx.NodeProto) -> str:
    return f"{node.op_type} {node.name or node.output[0]!r}"


def _name(node: onnx.NodeProto) -> str:
    return node.name or node.output[0]


def _versions(seen: _Graph) -> Iterator[Finding]:
    opset = next((o.version for o in seen.model.opset_import if o.domain in ("", "ai.onnx")), 0)
    if not FIRST_OPSET <= opset <= LAST_OPSET:
        yield Finding(
            "opset",
            "error",
            "",
            f"the file has opset {opset}, expected {FIRST_OPSET} to {LAST_OPSET}",
            "export it again with --opset 18, or use onnx.version_converter",
            OPSETS,
        )
    elif opset > 20:
        yield Finding(
            "opset",
            "warning",
            "",
            f"the file has opset {opset}; TensorRT 10.0 reads up to 20, 10.15 up to 24, 11 up to {LAST_OPSET}",
            "build it with a TensorRT that reads this opset",
            OPERATORS,
        )
    if seen.model.ir_version > LAST_IR:
        yield Finding(
            "ir",
            "error",
            "",
            f"the file has IR version {seen.model.ir_version}, expected at most {LAST_IR}",
            "save it with an earlier ir_version",
            SCHEMAS,
        )


def _operators(seen: _Graph) -> Iterator[Finding]:
    local = {(f.domain, f.name) for f in seen.model.functions}
    for node in seen.nodes:
        standard = node.domain in ("", "ai.onnx")
        if standard and node.op_type in NOT_KNOWN:
            yield Finding(
                "operator",
                "error",
                _name(node),
                f"TensorRT's parser does not know {_label(node)}",
                f"rewrite the model without {node.op_type}, or run it through a target that has it (ort-cuda, aoti)",
                OPERATORS,
            )
        elif not standard and (node.domain, node.op_type) not in local:
            fused = node.domain == "com.microsoft"
            mend = "give TensorRT the unfused file" if fused else "register a plugin of that name"
            yield Finding(
                "operator",
                "error",
                _name(node),
                f"TensorRT's parser does not know {_label(node)} of domain {node.domain!r}",
                mend,
                OPERATORS,
            )
        else:
            yield from _restrictions(seen, node)


def _restrictions(seen: _Graph, node: onnx.NodeProto) -> Iterator[Finding]:
    """Check what the operator list says in its column of restrictions, as far as the file shows it."""
    import onnx

    values: dict[str, Any] = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
    complaint = None
    if node.op_type == "MaxPool" and len(node.output) > 1 and node.output[1]:
        complaint = "its output Indices is not supported"
    elif node.op_type in ("MaxPool", "AveragePool", "LpPool") and any(d != 1 for d in values.get("dilations", ())):
        complaint = "its dilations must all be 1"
    elif node.op_type in ("MaxPool", "AveragePool") and len(values.get("kernel_shape", (1, 1))) not in (2, 3):
        complaint = "only pooling in two or three dimensions is supported"
    elif node.op_type == "LayerNormalization" and any(node.output[1:]):
        complaint = "only its first output is supported"
    elif node.op_type == "TopK" and values.get("sorted", 1) != 1:
        complaint = "sorted must be 1"
    elif node.op_type == "ScatterND" and values.get("reduction", b"none") != b"none":
        complaint = "a reduction is not supported"
    elif node.op_type.startswith("Reduce") and len(node.input) > 1 and node.input[1]:
        complaint = None if seen.is_constant(node.input[1]) else "its axes must be a constant"
    elif node.op_type in ("CumSum", "OneHot") and not seen.is_constant(node.input[1]):
        complaint = f"its {'axis' if node.op_type == 'CumSum' else 'depth'} must be a constant"
    elif node.op_type in ("Squeeze", "Unsqueeze") and len(node.input) > 1 and not seen.is_constant(node.input[1]):
        complaint = "its axes must be a constant"
    elif node.op_type == "Resize" and values.get("antialias", 0):
        complaint = "antialiasing is not supported"
    elif node.op_type == "Resize" and values.get("mode", b"nearest") == b"cubic":
        complaint = "the mode cubic is not supported"
    elif node.op_type == "LSTM" and (values.get("input_forget", 0) or values.get("layout", 0)):
        complaint = "input_forget and layout must be 0"
    if complaint is not None:
        yield Finding(
            "restriction",
            "error",
            _name(node),
            f"{_label(node)}: {complaint}",
            "change the model, or fold constants before exporting",
            OPERATORS,
        )


def _dtypes(seen: _Graph) -> Iterator[Finding]:
    import onnx

    kinds = onnx.TensorProto
    narrow = "run `accel narrow --runtime tensorrt` first (accel convert does)"
    ends = {v.name for v in (*seen.model.graph.input, *seen.model.graph.output)}
    known = {
        kinds.FLOAT,
        kinds.FLOAT16,
        kinds.BFLOAT16,
        kinds.INT64,
        kinds.INT32,
        kinds.INT8,
        kinds.UINT8,
        kinds.BOOL,
        kinds.FLOAT8E4M3FN,
        kinds.INT4,
        kinds.FLOAT4E2M1,
        kinds.DOUBLE,
    }
    for name, kind in seen.types.items():
        text = kinds.DataType.Name(kind)
        if kind == kinds.DOUBLE:
            what = f"value {name!r} is DOUBLE, which TensorRT casts down and clamps"
            yield Finding("double", "error", name, what, narrow, OPERATORS)
        elif kind not in known:
            what = f"value {name!r} is {text}, a type that TensorRT does not have"
            yield Finding("dtype", "error", name, what, narrow, TYPES)
        elif kind == kinds.UINT8 and name not in ends and not _reads_quantised(seen, name):
            yield Finding(
                "uint8",
                "error",
                name,
                f"value {name!r} inside the graph is UINT8, which only inputs and outputs may be",
                "cast it to INT32 or FLOAT",
                OPERATORS,
            )
    for value in (*seen.model.graph.input, *seen.model.graph.output):
        if seen.types.get(value.name) == kinds.INT64 and value.name not in seen.constants:
            yield Finding(
                "int64",
                "warning",
                value.name,
                f"{value.name!r} is INT64 at the border: twice the bytes of a request, where its values fit INT32",
                "give its range (--range NAME=LO:HI) so that it can be narrowed",
                f"{DOCS}reference/data-format-desc.html",
            )


def _reads_quantised(seen: _Graph, name: str) -> bool:
    """Say whether a value belongs to a Q/DQ pair, which has its own rule about UINT8."""
    nodes = [*seen.readers.get(name, []), *([seen.producers[name]] if name in seen.producers else [])]
    return any(n.op_type in ("QuantizeLinear", "DequantizeLinear") for n in nodes)


def _one_type(seen: _Graph) -> Iterator[Finding]:
    import onnx

    kinds = onnx.TensorProto
    floats = {kinds.FLOAT, kinds.FLOAT16, kinds.BFLOAT16, kinds.DOUBLE}
    for node in seen.nodes:
        if node.op_type not in ONE_TYPE or node.domain not in ("", "ai.onnx"):
            continue
        found = {n: seen.types[n] for n in node.input if seen.types.get(n) in floats}
        if len(set(found.values())) > 1:
            listed = ", ".join(f"{n!r} is {kinds.DataType.Name(k)}" for n, k in found.items())
            yield Finding(
                "types",
                "error",
                _name(node),
                f"the inputs of {_label(node)} differ in type: {listed}; a strongly typed network inserts no cast",
                "put a Cast before it",
                STRONG,
            )


def _pairs(seen: _Graph) -> Iterator[Finding]:
    """Check zero-points, quantised types and scales."""
    import onnx

    kinds = onnx.TensorProto
    for node in seen.nodes:
        if node.op_type not in ("QuantizeLinear", "DequantizeLinear"):
            continue
        name, label = _name(node), _label(node)
        zero = seen.constant(node.input[2]) if len(node.input) > 2 and node.input[2] else None
        side = node.output[0] if node.op_type == "QuantizeLinear" else node.input[0]
        kind = seen.types.get(node.input[2] if zero is not None else side, kinds.UINT8)
        if kind == kinds.UINT8:
            yield Finding(
                "uint8",
                "error",
                name,
                f"{label} quantises to UINT8, expected INT8 or FLOAT8E4M3FN",
                "quantise with a symmetric signed type (accel.graph.quantize.for_tensorrt)",
                QUANTISATION,
            )
        elif kind not in (kinds.INT8, kinds.FLOAT8E4M3FN, kinds.INT4, kinds.FLOAT4E2M1):
            yield Finding(
                "dtype",
                "error",
                name,
                f"{label} quantises to {kinds.DataType.Name(kind)}, expected INT8 or FLOAT8E4M3FN",
                "quantise with a type that TensorRT has",
                QUANTISATION,
            )
        if len(node.input) > 2 and node.input[2]:
            if zero is None:
                what = f"the zero-point of {label} is no constant"
                yield Finding("zero-point", "error", name, what, "make it a constant of zeros", OPERATORS)
            elif np.any(zero.astype(np.float32) != 0):
                values = np.unique(zero.astype(np.float32))
                yield Finding(
                    "zero-point",
                    "error",
                    name,
                    f"{label} is asymmetric: zero-point {values[values != 0][0]:g}, expected 0",
                    "calibrate symmetrically (accel.graph.quantize.for_tensorrt)",
                    OPERATORS,
                )
        yield from _scale(seen, node)


def _scale(seen: _Graph, node: onnx.NodeProto) -> Iterator[Finding]:
    import onnx

    name, label = _name(node), _label(node)
    scale = seen.constant(node.input[1])
    if scale is None:
        what = f"the scale of {label} is not known when the engine is built"
        yield Finding("scale", "error", name, what, "make it a constant", QUANTISATION)
        return
    values = scale.astype(np.float64)
    if not (np.isfinite(values).all() and (values > 0).all()):
        bad = values[~(np.isfinite(values) & (values > 0))].ravel()[0]
        what = f"{label} has a scale of {bad:g}, expected positive, finite values"
        yield Finding("scale", "error", name, what, "calibrate again on samples that reach this value", LAYERS)
    if values.ndim > 1:
        what = f"the scale of {label} has shape {values.shape}; INT8 takes a scalar or one value per channel"
        yield Finding("scale", "error", name, what, "use one axis", QUANTISATION)
    source = seen.types.get(node.input[0] if node.op_type == "QuantizeLinear" else node.output[0])
    if source is not None and source != seen.types.get(node.input[1]):
        kinds = onnx.TensorProto.DataType
        what = f"{label} scales {kinds.Name(source)} with a scale of {kinds.Name(seen.types[node.input[1]])}"
        yield Finding("types", "error", name, what, "give the scale the type of the value", STRONG)
    size = _channels(seen, node)
    if values.size > 1 and size is not None and values.size != size:
        what = f"{label} has {values.size} scales for {size} channels"
        yield Finding("scale", "error", name, what, "give one scale per channel of its axis", LAYERS)


def _channels(seen: _Graph, node: onnx.NodeProto) -> int | None:
    tensor = seen.constants.get(node.input[0])
    if tensor is None:
        return None
    axis = next((a.i for a in node.attribute if a.name == "axis"), 1)
    return tensor.dims[axis] if -len(tensor.dims) <= axis < len(tensor.dims) else None


def _placement(seen: _Graph) -> Iterator[Finding]:
    """Check that pairs stand together, before both inputs of what they quantise, per tensor before activations."""
    for node in seen.nodes:
        name, label = _name(node), _label(node)
        if node.op_type == "QuantizeLinear":
            readers = seen.readers.get(node.output[0], [])
            if others := [r for r in readers if r.op_type != "DequantizeLinear"]:
                yield _misplaced(name, f"{label} feeds {_label(others[0])}, expected DequantizeLinear alone")
            elif not readers:
                yield _misplaced(name, f"nothing dequantises what {label} gives")
            scale = seen.constant(node.input[1])
            if scale is not None and scale.size > 1 and not seen.is_constant(node.input[0]):
                yield _misplaced(name, f"{label} quantises an activation per channel, expected one scale")
        elif node.op_type == "DequantizeLinear":
            maker = seen.producers.get(node.input[0])
            if maker is not None and maker.op_type == "QuantizeLinear" and _differ(seen, maker, node):
                yield _misplaced(name, f"{label} and {_label(maker)} differ in scale")
            elif maker is not None and maker.op_type not in ("QuantizeLinear", "Constant"):
                yield _misplaced(name, f"{label} reads {_label(maker)}, expected QuantizeLinear or a constant")
        elif node.op_type in ("MatMul", "Gemm", "Conv", "ConvTranspose"):
            quantised = [_dequantised(seen, n) for n in node.input[:2]]
            if quantised[0] != quantised[1]:
                side = "weight" if quantised[0] else "activation"
                yield Finding(
                    "placement",
                    "warning",
                    name,
                    f"only one input of {label} is quantised (its {side} is not): it runs in floating point",
                    "quantise both inputs, or neither",
                    QUANTISATION,
                )
            if len(node.input) > 2 and _dequantised(seen, node.input[2]):
                yield _misplaced(name, f"the bias of {label} is quantised, expected floating point")


def _misplaced(name: str, what: str) -> Finding:
    mend = "write Q/DQ pairs with accel.graph.quantize.for_tensorrt"
    return Finding("placement", "error", name, what, mend, QUANTISATION)


def _dequantised(seen: _Graph, name: str) -> bool:
    """Say whether a value comes from DequantizeLinear, with at most layout operators in between."""
    maker = seen.producers.get(name)
    while maker is not None and maker.op_type in ("Transpose", "Reshape", "Squeeze", "Unsqueeze", "Identity"):
        maker = seen.producers.get(maker.input[0])
    return maker is not None and maker.op_type == "DequantizeLinear"


def _differ(seen: _Graph, one: onnx.NodeProto, two: onnx.NodeProto) -> bool:
    first, second = seen.constant(one.input[1]), seen.constant(two.input[1])
    if first is None or second is None:
        return one.input[1] != two.input[1]
    return not np.array_equal(first.astype(np.float64), second.astype(np.float64), equal_nan=True)
