"""Q/DQ pairs as TensorRT reads them: symmetric, zero-point 0, one scale for an activation and one per output channel.

TensorRT's explicit quantisation is in the graph: a pair of QuantizeLinear and DequantizeLinear before both inputs of a
matrix product or convolution makes it an integer (or FP8) one. Weights keep their floating-point values behind a pair
of their own, which every release folds at build time. Products of two activations (attention) stay as they are, so
does every bias.

Source: https://docs.nvidia.com/deeplearning/tensorrt/latest/inference-library/quantized-types-explicit-quantization.html
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np

from accel.core.errors import StageError
from accel.core.feeds import Feed
from accel.graph import measured, qdq
from accel.graph.measured import Range

if TYPE_CHECKING:
    import onnx

Quantised = Literal["int8", "fp8"]
Method = Literal["minmax", "percentile", "entropy"]

LARGEST: Mapping[str, float] = {"int8": 127.0, "fp8": 448.0}
"""Largest quantised magnitude. Source: symmetric int8 leaves -128 out; E4M3 of ONNX's FLOAT8E4M3FN ends at 448."""
PERCENTILE = 0.9999
"""Share of an activation's magnitudes that a range must cover."""
BINS = 2048
"""Bins of a distribution of magnitudes, zero to the largest."""
HALF_OPSET = 19
"""First opset whose Q/DQ take scales in half precision, and FP8. Source: https://onnx.ai/onnx/operators/."""


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


@dataclass(frozen=True, slots=True)
class QuantRange:
    """How one activation is quantised: ``real = quantised * scale``.

    Attributes:
        low / high: measured over all samples; ``cut`` the magnitude that the scale covers, larger ones saturate.
    """

    tensor: str
    low: float
    high: float
    cut: float
    scale: float


def products(model: onnx.ModelProto) -> list[Product]:
    """Return the matrix products and convolutions whose weight is a floating-point constant, in graph order."""
    import onnx

    floats = (onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16, onnx.TensorProto.BFLOAT16)
    shapes = {t.name: tuple(t.dims) for t in model.graph.initializer if t.data_type in floats}
    found = []
    for node in model.graph.node:
        if node.op_type not in ("MatMul", "Conv") or node.input[1] not in shapes or node.input[0] in shapes:
            continue
        shape = shapes[node.input[1]]
        if node.op_type == "MatMul" and len(shape) == 2:
            found.append(Product(node.name, node.op_type, node.input[0], node.input[1], 1, shape[0]))
        elif node.op_type == "Conv":
            inner = math.prod(shape[1:])
            found.append(Product(node.name, node.op_type, node.input[0], node.input[1], 0, inner))
    return found


def calibrate(
    path: Path, ranges: Mapping[str, Range], feeds: Sequence[Feed], *, to: Quantised, method: Method, threads: int
) -> dict[str, QuantRange]:
    """Return how each activation of the FP32 graph at ``path`` is quantised.

    Args:
        ranges: the activations, with what ``measured.measure_ranges`` found over the same feeds.
        method: ``minmax`` covers all that was seen, ``percentile`` all but the largest 0.01 %, ``entropy`` what keeps
            the distribution's information.

    Raises:
        StageError: an activation is not finite.
    """
    for name, found in ranges.items():
        if not math.isfinite(found.largest):
            raise StageError(
                f"activation {name!r} is infinite or NaN on the calibration samples: it has no scale",
                fix="keep the products that read it in floating point (keep=...)",
            )
    cuts = {name: found.largest for name, found in ranges.items()}
    if method != "minmax":
        choose = _percentile_cut if method == "percentile" else _entropy_cut
        wanted = {n: r for n, r in ranges.items() if r.largest > 0}
        for over in measured.fetch(path, wanted, feeds, threads=threads):
            counts: dict[str, np.ndarray] = {}
            for name, value in over():
                bins = np.minimum(np.abs(value).ravel() * (BINS / cuts[name]), BINS - 1).astype(np.int32)
                counted = np.bincount(bins, minlength=BINS)
                counts[name] = counts[name] + counted if name in counts else counted
            cuts |= {name: choose(count) / BINS * ranges[name].largest for name, count in counts.items()}
    return {
        name: QuantRange(name, found.low, found.high, cuts[name], max(cuts[name], 1e-12) / LARGEST[to])
        for name, found in ranges.items()
    }


def _percentile_cut(counts: np.ndarray) -> float:
    """Return the bin border below which ``PERCENTILE`` of all values lie."""
    covered = np.cumsum(counts) / counts.sum()
    return float(np.searchsorted(covered, PERCENTILE) + 1)


def _entropy_cut(counts: np.ndarray) -> float:
    """Return the bin border that, with 128 levels below it, loses the least information.

    Formula: Kullback-Leibler divergence of the distribution cut at the border, its tail moved into the last bin, from
    the same in 128 equal steps. Source: https://on-demand.gputechconf.com/gtc/2017/presentation/s7310-8-bit-inference-with-tensorrt.pdf
    """
    levels = 128
    best = (math.inf, BINS)
    for border in range(levels, BINS + 1, 8):
        truth = counts[:border].astype(np.float64)
        used = truth > 0
        level = np.arange(border) * levels // border
        share = np.bincount(level, truth, levels) / np.maximum(np.bincount(level, used, levels), 1)
        coarse = np.where(used, share[level], 0.0)
        truth[-1] += counts[border:].sum()
        if not coarse.any() or (truth[-1] > 0 and coarse[-1] == 0):
            continue
        p, q = truth / truth.sum(), coarse / coarse.sum()
        some = p > 0
        best = min(best, (float(np.sum(p[some] * np.log(p[some] / q[some]))), border))
    return float(best[1])


def weight_scales(model: onnx.ModelProto, wanted: Sequence[Product], *, to: Quantised) -> dict[str, np.ndarray]:
    """Return weight → one scale per output channel (float32), from its largest magnitude."""
    import onnx

    axes = {p.weight: p.axis for p in wanted}
    found = {}
    for tensor in model.graph.initializer:
        if tensor.name in axes:
            value = np.abs(onnx.numpy_helper.to_array(tensor).astype(np.float32))
            others = tuple(a for a in range(value.ndim) if a != axes[tensor.name])
            found[tensor.name] = (np.maximum(value.max(axis=others), 1e-12) / LARGEST[to]).astype(np.float32)
    return found


def write_pairs(
    model: onnx.ModelProto,
    wanted: Sequence[Product],
    activations: Mapping[str, QuantRange],
    weights: Mapping[str, np.ndarray],
    types: Mapping[str, int],
    *,
    to: Quantised,
) -> None:
    """Quantise both inputs of the ``wanted`` products, in place; needs no weight in memory.

    Args:
        activations: by node name, the range of what it reads.
        types: element type of every floating-point value: a scale has the type of what it scales.
    """
    by_node = {p.node: p for p in wanted}
    nodes: list[onnx.NodeProto] = []
    made: set[str] = set()
    for node in model.graph.node:
        product = by_node.get(node.name)
        if product is not None:
            sides = (
                (product.activation, np.array(activations[product.node].scale, np.float32), None),
                (product.weight, weights[product.weight], product.axis),
            )
            for index, (name, scale, axis) in enumerate(sides):
                if name not in made:
                    made.add(name)
                    nodes += _pair(model, name, scale, axis, types[name], to=to)
                node.input[index] = f"{name}_dq"
        nodes.append(node)
    qdq.replace_nodes(model, nodes)


def _pair(
    model: onnx.ModelProto, name: str, scale: np.ndarray, axis: int | None, kind: int, *, to: Quantised
) -> Iterator[onnx.NodeProto]:
    import onnx

    helper = onnx.helper
    dtype = helper.tensor_dtype_to_np_dtype(kind)
    smallest = {onnx.TensorProto.FLOAT16: 2.0**-14}.get(kind, 2.0**-126)  # no subnormal scale: it has few bits
    rounded = np.maximum(scale, smallest).astype(dtype)
    model.graph.initializer.append(onnx.numpy_helper.from_array(rounded, f"{name}_scale"))
    quantised = onnx.TensorProto.INT8 if to == "int8" else onnx.TensorProto.FLOAT8E4M3FN
    zeros = helper.make_tensor(f"{name}_zero", quantised, scale.shape, bytes(scale.size), raw=True)
    model.graph.initializer.append(zeros)
    parameters = [f"{name}_scale", f"{name}_zero"]
    extra = {} if axis is None else {"axis": axis}
    yield helper.make_node("QuantizeLinear", [name, *parameters], [f"{name}_q"], f"{name}_q", **extra)
    yield helper.make_node("DequantizeLinear", [f"{name}_q", *parameters], [f"{name}_dq"], f"{name}_dq", **extra)


def raise_opset(path: Path, least: int) -> None:
    """Bring the file to opset ``least`` where it is below; weights beside it stay as they are.

    Raises:
        StageError: ONNX's converter cannot.
    """
    import onnx

    model = onnx.load(str(path), load_external_data=False)
    if next(o.version for o in model.opset_import if o.domain in ("", "ai.onnx")) >= least:
        return
    before = {t.name: t.SerializeToString() for t in model.graph.initializer if t.external_data}
    try:
        raised = onnx.version_converter.convert_version(model, least)
    except (RuntimeError, ValueError) as error:
        raise StageError(
            f"{path.name} cannot be brought to opset {least}: {error}", fix=f"export it with opset {least} or later"
        ) from error
    for tensor in raised.graph.initializer:
        if tensor.name in before:  # the converter forgets where external data lies
            tensor.ParseFromString(before[tensor.name])
    raised.ir_version = max(raised.ir_version, 9)
    path.write_bytes(raised.SerializeToString())


def other_products(model: onnx.ModelProto, known: Collection[str]) -> int:
    """Return how many products and convolutions there are beside ``known``: of two activations, or transposed."""
    kinds = ("MatMul", "Gemm", "Conv", "ConvTranspose", "Einsum")
    return sum(n.op_type in kinds and n.name not in known for n in model.graph.node)
