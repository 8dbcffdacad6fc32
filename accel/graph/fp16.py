"""FP32 → FP16 or BF16, as a strongly typed ONNX file: what the file says is what a strongly typed runtime computes in.

That a half-precision graph agrees with the original on a CPU proves little: ONNX Runtime's CPU provider computes FP16
products in FP32, so a value beyond 65504 goes by unseen. So ranges decide first. Every floating-point value is measured
in FP32 on real samples, and a node that reads or writes one beyond the format's range, with a margin, stays in FP32.
The casting is autocast's (``autocast``), the result is read back, and ``emulate`` writes a file in which even a CPU
rounds, and overflows, as the types say.

Clients see what they saw: inputs and outputs stay FP32, with casts at inputs and outputs.
"""

import math
import tempfile
import time
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import onnx_ir as ir

from accel.core import environments
from accel.core.accuracy import parity
from accel.core.errors import StageError, UnavailableError, UsageError
from accel.core.feeds import Feed
from accel.core.processes import Worker
from accel.core.values import TensorSpec
from accel.graph import MARGIN, evaluate, measured, passes, qdq
from accel.graph.autocast import ENVIRONMENT, autocast
from accel.graph.measured import Range
from accel.graph.products import PRODUCTS

_HALVES = (ir.DataType.FLOAT16, ir.DataType.BFLOAT16)
Half = Literal["fp16", "bf16"]
LIMITS: Mapping[str, float] = {"fp16": 65504.0, "bf16": float.fromhex("0x1.fep127")}
"""Largest finite value. Source: IEEE 754 binary16; bfloat16 is binary32 cut to 8 bits of significand."""
SQUARING = frozenset({
    "LayerNormalization", "InstanceNormalization", "GroupNormalization", "MeanVarianceNormalization",
    "RMSNormalization", "LpNormalization", "ReduceL2", "ReduceSumSquare",
})  # fmt: skip
"""Operators that square their input inside, where no measured value shows it."""
BODIES = frozenset({"If", "Loop", "Scan"})
CARRIERS = frozenset({
    "Add", "Cast", "Concat", "Expand", "Gather", "GatherND", "Identity", "Mul", "Reshape", "Slice", "Squeeze",
    "Transpose", "Unsqueeze", "Where",
})  # fmt: skip
"""Operators between the constant of a mask and the Softmax that it switches positions off in."""
AGREEMENT_FEEDS = 4
"""Samples on which a smaller mask constant must leave the answers alone."""
CAST_S = 1800.0


@dataclass(frozen=True, slots=True)
class Fp32Node:
    """A node that stays in FP32.

    Attributes:
        tensor: the value that decided it; for an operator that squares its input, the value before squaring; empty for
            If, Loop and Scan, whose inner values are not measured.
        low / high: measured range of the tensor, cut at ±3.4e38.
        reason: one sentence.
    """

    node: str
    op: str
    tensor: str
    low: float
    high: float
    reason: str


@dataclass(frozen=True, slots=True)
class Marker:
    """A constant that only says "masked" before a Softmax, and was brought into the range.

    Attributes:
        value: what stood in the file, cut at ±3.4e38; ``replaced`` what stands there now.
    """

    tensor: str
    value: float
    replaced: float


def convert(
    source: Path, out: Path, *, to: Half, feeds: Iterable[Feed], margin: float = MARGIN, threads: int = 0
) -> dict[str, Any]:
    """Write the FP32 model at ``source`` to ``out`` in FP16 or BF16, inputs and outputs unchanged.

    Args:
        out: the ``.onnx`` to write, weights in ``<out>.data`` beside it.
        feeds: real samples by input name; nodes whose values come within ``margin`` of the limit stay in FP32.
        threads: CPU threads for measuring; 0 for all.

    Returns:
        Facts on what became half precision, what did not, and the ranges that decided: ``limit``, the largest finite
        value of the format, and ``margin``: a value counts as outside from ``limit / margin`` on; ``kept``, the nodes
        in FP32 for their range; ``markers``, the mask constants that were brought into the range; ``widest``, the value
        of largest magnitude that is now in half precision, and its range; ``values``, how many were measured, over
        ``feeds`` samples; ``products`` and ``half_products``, the matrix products and convolutions, all and in half
        precision, and their quotient ``half_share``; ``opset``, as found in the written file; ``versions`` of the
        packages that took part.

    Raises:
        UsageError: an unknown precision, a margin below 1, or ``out`` is the source.
        UnavailableError: the ``modelopt`` environment is not installed, or the source is not FP32.
        InputError: its types cannot be inferred.
        SampleError: there are no feeds, or one does not fit the model.
        StageError: autocast failed, or its result breaks the contract or leaves a kept node in half precision.
    """
    start = time.monotonic()
    if to not in LIMITS:
        raise UsageError(f"a typed graph cannot have precision {to!r}", fix="choose fp16 or bf16")
    if not margin >= 1:
        raise UsageError(f"the margin is {margin}, expected 1 or more", fix="2 leaves one bit of room")
    if out.resolve() == source.resolve():
        raise UsageError(f"{out} is the source itself", fix="choose another file to write")
    if not environments.installed(ENVIRONMENT):
        raise UnavailableError(
            f"environment {ENVIRONMENT!r} is not installed, which makes {to} files", fix=environments.fix(ENVIRONMENT)
        )
    out.parent.mkdir(parents=True, exist_ok=True)
    samples = list(feeds)
    with tempfile.TemporaryDirectory(prefix=".half.", dir=out.parent) as name:
        folder = Path(name)
        model = qdq.load(source)
        check_plain(model, source)
        limit = LIMITS[to] / margin
        weights = _weight_ranges(model)
        markers = _shrink_markers(model, weights, limit=limit)
        plain = folder / "plain.onnx"
        passes.save(model, plain, data=f"{plain.name}.data")
        if markers and not _agree(source, plain, samples, threads):
            model, markers = qdq.load(source), ()
            weights = _weight_ranges(model)
            passes.save(model, plain, data=f"{plain.name}.data")
        values = [n for n in measured.file_types(plain) if n not in weights]
        ranges = measured.measure_ranges(plain, values, samples, threads=threads) | weights
        kept = _kept(model, ranges, to=to, limit=limit)
        typed = folder / "typed.onnx"
        log, python = folder / "autocast.log", environments.python(ENVIRONMENT)
        with Worker(log, threads=threads or 1, timeout_s=CAST_S, python=python) as worker:
            modelopt = worker.call(autocast, plain, typed, to, tuple(k.node for k in kept))
        products, half, opset = _read_back(typed, model, to=to, kept={k.node for k in kept})
        passes.save(passes.load(typed), out, data=f"{out.name}.data")
    kept_tensors = {k.tensor for k in kept}
    inside = {n: r for n, r in ranges.items() if n not in kept_tensors and r.largest < limit}
    widest = max(inside.items(), key=lambda pair: pair[1].largest, default=None)
    return {
        "to": to,
        "limit": LIMITS[to],
        "margin": margin,
        "kept": kept,
        "markers": markers,
        "widest": (widest[0], _finite(widest[1].low), _finite(widest[1].high)) if widest else None,
        "values": len(ranges),
        "feeds": len(samples),
        "products": products,
        "half_products": half,
        "half_share": half / products if products else 0.0,
        "opset": opset,
        "versions": {"nvidia-modelopt": modelopt},
        "convert_s": time.monotonic() - start,
    }


def check_plain(model: ir.Model, source: Path) -> None:
    """Refuse a model that is typed already.

    Raises:
        UnavailableError: it holds half-precision weights or Q/DQ nodes; what was to be made of it is skipped.
    """
    if typed := [n for n, v in model.graph.initializers.items() if v.dtype in _HALVES]:
        raise UnavailableError(
            f"{source.name} holds weights in half precision already ({typed[0]!r}), expected FP32",
            fix="start from the FP32 export: ranges are measured there",
        )
    quantised = [n.name for n in model.graph if n.op_type in ("QuantizeLinear", "DequantizeLinear")]
    if quantised:
        raise UnavailableError(
            f"{source.name} is quantised already (node {quantised[0]!r}), expected FP32",
            fix="convert first and quantise the result: accel.graph.quantize.for_tensorrt(..., base=...)",
        )


def _weight_ranges(model: ir.Model) -> dict[str, Range]:
    """Return the range of each FP32 constant; infinities count, as those of a mask do."""
    found = {}
    for name, value in model.graph.initializers.items():
        if value.const_value is not None and value.dtype == ir.DataType.FLOAT and value.const_value.size:
            array = value.const_value.numpy()
            found[name] = Range(float(array.min()), float(array.max()), array.size)
    return found


def _shrink_markers(model: ir.Model, ranges: dict[str, Range], *, limit: float) -> tuple[Marker, ...]:
    """Bring hugely negative scalars that only reach a Softmax into the range; ``ranges`` follows.

    A quarter of the limit leaves room for the scores that are added, and its exponential is 0 all the same.
    """
    found = []
    for name, value in model.graph.initializers.items():
        scalar = name in ranges and ranges[name].size == 1
        if not scalar or not ranges[name].low <= -limit or not _only_masks(value):
            continue
        replaced = np.float32(-limit / 4)
        found.append(Marker(name, _finite(ranges[name].low), float(replaced)))
        assert value.const_value is not None
        value.const_value = ir.tensor(np.full(value.const_value.shape.numpy(), replaced), name=name)
        ranges[name] = Range(float(replaced), float(replaced), 1)
    return tuple(found)


def _only_masks(start: ir.Value) -> bool:
    """Say whether all that a value reaches lies between it and a Softmax."""
    waiting, seen, ends = [start], {start}, 0
    while waiting:
        value = waiting.pop()
        if value.is_graph_output() or not value.uses():
            return False
        for node in value.consumers():
            if node.op_type == "Softmax":
                ends += 1
            elif node.op_type in CARRIERS and node.domain in ("", "ai.onnx"):
                new = set(node.outputs) - seen
                seen |= new
                waiting += new
            else:
                return False
    return ends > 0


def _agree(source: Path, other: Path, feeds: list[Feed], threads: int) -> bool:
    """Say whether two files give the same answers, as FP32's gate has it, on feeds from all over the samples."""
    outputs = [
        TensorSpec(str(v.name), v.dtype.numpy().name, tuple(v.shape or ())) for v in passes.load(source).graph.outputs
    ]
    names = [spec.name for spec in outputs]
    answers = []
    for path in (source, other):
        session = evaluate.open_light(path, threads)
        kept = feeds[:: max(1, len(feeds) // AGREEMENT_FEEDS)]
        runs = [measured.run(session, names, feed, path.name) for feed in kept]
        answers.append({str(i): dict(zip(names, found, strict=True)) for i, found in enumerate(runs)})
    gate = parity.gate_for("fp32", outputs=outputs, task=None, overrides={})
    return parity.compare(*answers, outputs=outputs, masks={}, gate=gate).passed


def _kept(model: ir.Model, ranges: Mapping[str, Range], *, to: Half, limit: float) -> tuple[Fp32Node, ...]:
    """List the nodes that read or write a value outside the range, or square one that would be."""
    kept = []
    for node in model.graph:
        name, read = str(node.name), [v.name for v in node.inputs if v is not None]
        if node.op_type in BODIES:
            reason = "values inside its bodies are not measured"
            kept.append(Fp32Node(name, node.op_type, "", 0.0, 0.0, reason))
            continue
        touched = [n for n in (*read, *(v.name for v in node.outputs)) if n in ranges]
        worst = max(touched, key=lambda n: ranges[n].largest, default=None)
        if worst is None:
            continue
        found = ranges[worst]
        low, high = _finite(found.low), _finite(found.high)
        if found.largest >= limit:
            room = f"{to} holds {LIMITS[to]:.5g}, with the margin {limit:.5g}"
            reason = f"{worst!r} reaches {_finite(found.largest):.4g}; {room}"
            kept.append(Fp32Node(name, node.op_type, worst, low, high, reason))
        elif node.op_type in SQUARING and read[0] in ranges:
            source = ranges[read[0]]
            spread = max(source.high - source.low, source.largest)
            if spread**2 >= limit:
                reason = f"squares of {read[0]!r} reach {spread**2:.4g}; {to} holds {LIMITS[to]:.5g}"
                low, high = _finite(source.low), _finite(source.high)
                kept.append(Fp32Node(name, node.op_type, read[0], low, high, reason))
    return tuple(kept)


def _finite(value: float) -> float:
    """Return the value cut at FP32's limits, NaN as the upper one: what a JSON file can hold."""
    largest = float(np.finfo(np.float32).max)
    return largest if math.isnan(value) else min(max(value, -largest), largest)


def _read_back(path: Path, before: ir.Model, *, to: Half, kept: Collection[str]) -> tuple[int, int, int]:
    """Check what was written: the contract, the kept nodes, the weights.

    Returns:
        How many products there are and how many of them are in half precision, and the opset.

    Raises:
        StageError: something differs from what was asked for.
    """
    graph = passes.load(path).graph
    wanted = ir.DataType.FLOAT16 if to == "fp16" else ir.DataType.BFLOAT16
    for was, now in ((before.graph.inputs, graph.inputs), (before.graph.outputs, graph.outputs)):
        one, two = ([(v.name, v.dtype) for v in side] for side in (was, now))
        if one != two:
            raise StageError(f"autocast changed the model's inputs or outputs: expected {one}, found {two}")
    types = measured.file_types(path)
    counted = half = 0
    for node in graph:
        halves = [v for v in (*node.inputs, *node.outputs) if v is not None and types.get(str(v.name)) == wanted]
        if node.name in kept and halves and node.op_type != "Cast":
            raise StageError(f"autocast left {node.op_type} {node.name!r} in {to}, which its range forbids")
        if node.op_type in PRODUCTS:
            counted += 1
            half += types.get(str(node.outputs[0].name)) == wanted
    for name, value in graph.initializers.items():
        if value.const_value is not None and value.dtype == wanted:
            largest = float(np.abs(value.const_value.numpy().astype(np.float32)).max(initial=0.0))
            if not largest < LIMITS[to]:  # autocast cuts larger ones at the limit without an error
                raise StageError(f"weight {name!r} does not fit half precision and was cut at {largest:.5g}")
    return counted, half, graph.opset_imports[""]


class Emulate(passes.ContractPass):
    """Replace half values by FP32 ones that are rounded to the half format.

    Args:
        types: element type of the floating-point values of the model.
    """

    retypes = True

    def __init__(self, types: Mapping[str, int]) -> None:
        super().__init__()
        self.types = types

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Round after each node; weights, constants and types that nodes name become FP32."""
        graph, modified = model.graph, False
        full = ir.TensorType(ir.DataType.FLOAT)
        for name, value in graph.initializers.items():
            if value.dtype in _HALVES and value.const_value is not None:
                value.const_value = ir.tensor(value.const_value.numpy().astype(np.float32), name=name)
                value.type = full
                modified = True
        for node in list(graph):
            for key, attribute in list(node.attributes.items()):
                if key in ("to", "dtype", "output_dtype") and attribute.value in _HALVES:
                    node.attributes[key] = ir.AttrInt64(key, ir.DataType.FLOAT)
                    modified = True
                elif key == "value" and attribute.value.dtype in _HALVES:
                    node.attributes[key] = ir.AttrTensor(key, ir.tensor(attribute.value.numpy().astype(np.float32)))
                    modified = True
            for value in node.outputs:
                if (kind := self.types.get(str(value.name))) not in _HALVES:
                    continue
                name = str(value.name)
                half = ir.node("Cast", [value], {"to": kind}, name=f"{name}.half")
                back = ir.node("Cast", [half.outputs[0]], {"to": ir.DataType.FLOAT}, name=f"{name}.back")
                ir.convenience.replace_all_uses_with(value, back.outputs[0], replace_graph_outputs=True)
                half.replace_input_with(0, value)
                graph.insert_after(node, [half, back])
                value.name, half.outputs[0].name, back.outputs[0].name = f"{name}.exact", f"{name}.half", name
                value.type, back.outputs[0].type = full, full
                modified = True
        return ir.passes.PassResult(model, modified)


def emulate(source: Path, out: Path) -> None:
    """Write a half-precision file as FP32 with every half value rounded to its format, for a CPU to run.

    ONNX Runtime's CPU provider has few BF16 kernels and computes FP16 ones in FP32, so that an overflow inside goes by
    unseen. Here each value that the types call half goes through that format and back, and overflows to infinity there.
    Sums inside one operator are still those of FP32, as tensor cores have them.

    Raises:
        InputError: the types of the graph cannot be inferred.
    """
    types = measured.file_types(source)
    passes.rewrite(source, out, Emulate(types), data=f"{out.name}.data")
