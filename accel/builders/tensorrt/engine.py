"""What a plan says about itself once it is deserialised again: tensors, shape ranges, and each layer's precision.

Nothing here echoes what was asked for. The format of the inspector's text is not specified; what is read from it was
seen in published outputs of TensorRT 8.2 to 10 (NVIDIA/TensorRT issues 4020 and 4397; TensorRT documentation, "Engine
Inspector"), and a layer that cannot be read counts as unknown.
"""

import json
import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from accel.core.errors import StageError
from accel.core.values import ShapeRange, TensorSpec

DTYPES: Mapping[str, str] = {
    "FLOAT": "float32",
    "HALF": "float16",
    "INT8": "int8",
    "UINT8": "uint8",
    "INT32": "int32",
    "INT64": "int64",
    "BOOL": "bool",
}
"""TensorRT's names of the element types that a client can send or get, to NumPy's."""

_TACTIC = re.compile(
    r"_(?:tf32|bf16|f16|f32|f64|i8|e4m3|e5m2){2}_(?P<compute>tf32|bf16|f16|f32|i8|e4m3|e5m2)", re.IGNORECASE
)
"""The types in a tactic's name: ``sm80_xmma_gemm_f16f16_f16f32_f32_…``: in and out, then what is multiplied."""
_SHORT = {"tf32": "tf32", "bf16": "bf16", "f16": "fp16", "f32": "fp32", "i8": "int8", "e4m3": "fp8", "e5m2": "fp8"}
_FORMATS = (
    ("bf16", re.compile(r"bf16|bfloat16", re.IGNORECASE)),
    ("fp8", re.compile(r"\bfp8\b|e4m3", re.IGNORECASE)),
    ("fp16", re.compile(r"\bfp16\b|\bhalf\b", re.IGNORECASE)),
    ("int8", re.compile(r"\bint8\b", re.IGNORECASE)),
    ("fp32", re.compile(r"\bfp32\b|\bfloat\b|\bfloat32\b", re.IGNORECASE)),
)
_PRODUCT_LAYER = re.compile(r"gemm|matmul|matrixmultiply|conv|mha|attention|fullyconnected|einsum", re.IGNORECASE)
_ONNX_LAYER = re.compile(r"\[ONNX Layer: ([^\]]+)\]")


@dataclass(frozen=True, slots=True)
class Layer:
    """One layer of a plan.

    Attributes:
        precision: what its products are computed in, or its inputs' format; ``none`` where that cannot be read.
        product: whether it holds a matrix product or convolution.
        nodes: ONNX nodes that went into it, as far as the plan names them.
    """

    name: str
    precision: str
    product: bool
    nodes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class PlanFacts:
    """What was read from a plan.

    Attributes:
        profile: shape ranges by input, of its one optimization profile.
        device_memory_bytes: what an execution context takes of the GPU's memory, without the weights.
    """

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    profile: Mapping[str, ShapeRange]
    layers: tuple[Layer, ...]
    device_memory_bytes: int

    @property
    def products(self) -> Counter[str]:
        """How many layers with matrix products run in each precision."""
        return Counter(layer.precision for layer in self.layers if layer.product)

    @property
    def precision(self) -> str:
        """The precision of most layers with products, ``none`` where no layer tells."""
        known = Counter({p: n for p, n in self.products.items() if p != "none"})
        return known.most_common(1)[0][0] if known else "none"


def read_plan(trt: Any, engine: Any, *, products: Collection[str] = ()) -> PlanFacts:
    """Read a deserialised engine.

    Args:
        products: ONNX nodes that are matrix products or convolutions; a layer they went into is a product.

    Raises:
        StageError: a tensor has a type that no client can send, or is read as a shape; or there is not exactly one
            optimization profile.
    """
    if engine.num_optimization_profiles != 1:
        raise StageError(f"the plan has {engine.num_optimization_profiles} optimization profiles, expected 1")
    inputs, outputs, profile = [], [], {}
    for index in range(engine.num_io_tensors):
        name = engine.get_tensor_name(index)
        dtype = engine.get_tensor_dtype(name).name
        if dtype not in DTYPES:
            raise StageError(f"tensor {name!r} of the plan has type {dtype}, which no client can send or get")
        if engine.is_shape_inference_io(name):
            raise StageError(
                f"tensor {name!r} of the plan is a shape, not data: accel's session and repository take data only",
                fix="make the model work its shapes out from its inputs' sizes",
            )
        dims = tuple(int(d) if d >= 0 else "?" for d in engine.get_tensor_shape(name))
        spec = TensorSpec(name, DTYPES[dtype], dims)
        if engine.get_tensor_mode(name) == trt.TensorIOMode.INPUT:
            inputs.append(spec)
            shapes = (tuple(int(d) for d in shape) for shape in engine.get_tensor_profile_shape(name, 0))
            profile[name] = ShapeRange(*shapes)
        else:
            outputs.append(spec)
    inspector = engine.create_engine_inspector()
    text = inspector.get_engine_information(trt.LayerInformationFormat.JSON)
    return PlanFacts(
        tuple(inputs), tuple(outputs), profile, read_layers(text, products), int(engine.device_memory_size_v2)
    )


def read_layers(text: str, products: Collection[str] = ()) -> tuple[Layer, ...]:
    """Read the inspector's JSON text; layers that it only names are of unknown precision.

    Raises:
        StageError: it is not JSON, or has no list of layers.
    """
    try:
        found = json.loads(text)["Layers"]
    except (ValueError, KeyError, TypeError) as error:
        raise StageError(f"TensorRT's inspector gave no list of layers: {text[:200]!r}") from error
    return tuple(_layer(entry, frozenset(products)) for entry in found)


def _layer(entry: Any, products: frozenset[str]) -> Layer:
    if isinstance(entry, str):  # the plan was built without details
        return Layer(entry, "none", bool(_PRODUCT_LAYER.search(entry)), ())
    nodes = tuple(dict.fromkeys(_ONNX_LAYER.findall(str(entry.get("Metadata", "")))))
    tactic = str(entry.get("TacticName", ""))
    kinds = " ".join(str(entry.get(key, "")) for key in ("LayerType", "ParameterType"))
    compute = _TACTIC.search(tactic)
    # A kernel that was generated for point-wise work carries the nodes it serves, not the products' precision.
    product = bool(compute or _PRODUCT_LAYER.search(kinds) or products.intersection(nodes))
    precision = _SHORT[compute["compute"].lower()] if compute else _format(entry.get("Inputs", ()))
    return Layer(str(entry.get("Name", "")), precision, product, nodes)


def _format(tensors: Sequence[Any]) -> str:
    """Return the coarsest type among a layer's inputs: INT8 and FP8 products take wider scales and biases beside."""
    texts = [str(t.get("Format/Datatype", "")) for t in tensors if isinstance(t, Mapping)]
    found = {next((p for p, pattern in _FORMATS if pattern.search(text)), None) for text in texts}
    return next((p for p in ("int8", "fp8", "bf16", "fp16", "fp32") if p in found), "none")


def check_precision(facts: PlanFacts, asked: str, kept: Collection[str] | None) -> tuple[str, ...]:
    """Hold each product's precision against the one asked for; returns the layers whose precision cannot be read.

    Args:
        asked: precision of the target.
        kept: ONNX nodes that typing left in FP32 on purpose; None where everything but Q/DQ pairs is FP32.

    Raises:
        StageError: no product runs in the precision asked for, or one runs in FP32 that was not left there on purpose;
            or one of an FP32 plan runs in TF32.
    """
    products = [layer for layer in facts.layers if layer.product]
    unknown = tuple(layer.name for layer in products if layer.precision == "none")
    if asked == "fp32" and (rounding := [layer.name for layer in products if layer.precision == "tf32"]):
        raise StageError(
            f"{len(rounding)} matrix products of the fp32 plan round their inputs to TF32: {', '.join(rounding[:5])}",
            fix="ask for the target trt, which allows it",
        )
    if asked in ("fp32", "tf32") or not products or len(unknown) == len(products):
        return unknown
    found = ", ".join(f"{n} in {p}" for p, n in facts.products.most_common())
    if not any(layer.precision == asked for layer in products):
        raise StageError(
            f"no matrix product of the plan runs in {asked} ({found})",
            fix="look at typing.json: which nodes were typed, and why the others were not",
        )
    if kept is None:
        return unknown
    wide = [layer for layer in products if layer.precision in ("fp32", "tf32")]
    stray = [layer for layer in wide if not (layer.nodes and set(layer.nodes) & set(kept))]
    # Without the nodes' names only their number can be held against what was kept.
    if stray and (any(layer.nodes for layer in stray) or len(wide) > len(kept)):
        names = ", ".join(layer.name for layer in stray[:5])
        raise StageError(
            f"{len(stray)} matrix products of the {asked} plan run in FP32 ({names}); found {found}",
            fix="the ONNX file must type them: see typing.json, and raise it with the log",
        )
    return unknown
