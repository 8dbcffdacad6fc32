"""FP32 → FP16 or BF16, as a strongly typed ONNX file: what the file says is what a strongly typed runtime computes in.

That a half-precision graph agrees with the original on a CPU proves little: ONNX Runtime's CPU provider computes FP16
products in FP32, so a value beyond 65504 goes by unseen. So ranges decide first. Every floating-point value is measured
in FP32 on real samples, and a node that reads or writes one beyond the format's range, with a margin, stays in FP32.
The casting is autocast's (``autocast``), the result is read back, and ``emulate`` writes a file in which even a CPU
rounds, and overflows, as the types say.

Clients see what they saw: inputs and outputs stay FP32, with casts at the door.
"""

from __future__ import annotations

import math
import tempfile
import time
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np

from accel.core import environments
from accel.core.errors import InputError, StageError, UnavailableError, UsageError
from accel.core.feeds import Feed
from accel.core.processes import Worker
from accel.graph import evaluate, measured, qdq
from accel.graph.autocast import autocast
from accel.graph.measured import Range

if TYPE_CHECKING:
    import onnx

ENVIRONMENT = environments.declare(
    environments.Environment(
        "modelopt",
        (
            "nvidia-modelopt==0.47.0",
            "onnx-graphsurgeon==0.6.1",
            "onnxslim==0.1.98",
            "polygraphy==0.53.6",
            "onnxconverter-common==1.16.0",
            "omegaconf==2.4.0",
            "pulp==3.3.2",
            "nvidia-ml-py==13.615.71",
            "lief==1.0.0",
            "cppimport==26.4.17",
            "mako==1.4.3",
            "markupsafe==3.0.4",
            "pybind11==3.1.0",
            "filelock==4.2.11",
            "colorama==0.4.6",
        ),
        "its own pins ask for an older onnx and for onnxruntime-gpu, neither of which autocast needs",
        over_main=True,
    )
)
Half = Literal["fp16", "bf16"]
LIMITS: Mapping[str, float] = {"fp16": 65504.0, "bf16": float.fromhex("0x1.fep127")}
"""Largest finite value. Source: IEEE 754 binary16; bfloat16 is binary32 cut to 8 bits of significand."""
PRODUCTS = frozenset({"MatMul", "Gemm", "Conv", "ConvTranspose", "Einsum"})
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
AGREEMENT_DB = 80.0
"""A smaller mask constant must leave the answers alone; the gate of FP32."""
AGREEMENT_FEEDS = 4
CAST_S = 1800.0


@dataclass(frozen=True, slots=True)
class Kept:
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


@dataclass(frozen=True, slots=True)
class HalfReport:
    """What became half precision, what did not, and the ranges that decided.

    Attributes:
        limit / margin: largest finite value of the format; a value counts as outside from ``limit / margin`` on.
        kept: nodes in FP32 for their range.
        markers: mask constants that were brought into the range.
        widest: the value of largest magnitude that is now in half precision, and its range.
        values: how many values were measured, over ``feeds`` samples.
        products / half_products: matrix products and convolutions, all and in half precision; ``half_share`` their
            quotient.
        opset: as found in the written file.
        versions: package → version that took part.
    """

    to: Half
    limit: float
    margin: float
    kept: tuple[Kept, ...]
    markers: tuple[Marker, ...]
    widest: tuple[str, float, float] | None
    values: int
    feeds: int
    products: int
    half_products: int
    half_share: float
    opset: int
    versions: Mapping[str, str]
    convert_s: float


def convert(
    source: Path, out: Path, *, to: Half, feeds: Iterable[Feed], margin: float = 2.0, threads: int = 0
) -> HalfReport:
    """Write the FP32 model at ``source`` to ``out`` in FP16 or BF16, inputs and outputs unchanged.

    Args:
        out: the ``.onnx`` to write, weights in ``<out>.data`` beside it.
        feeds: real samples by input name; nodes whose values come within ``margin`` of the limit stay in FP32.
        threads: CPU threads for measuring; 0 for all.

    Raises:
        UsageError: an unknown precision, a margin below 1, or ``out`` is the source.
        UnavailableError: the ``modelopt`` environment is not installed.
        InputError: the source is not FP32, has two nodes of one name, or its types cannot be inferred.
        SampleError: there are no feeds, or one does not fit the model.
        StageError: autocast failed, or its result breaks the contract or leaves a kept node in half precision.
    """
    start = time.monotonic()
    if to not in LIMITS:
        raise UsageError(f"precision {to!r} is none that a typed graph can have", fix="choose fp16 or bf16")
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
        model = qdq.load_model(source)
        check_plain(model, source)
        limit = LIMITS[to] / margin
        weights = _weight_ranges(model)
        markers = _shrink_markers(model, weights, limit=limit)
        plain = folder / "plain.onnx"
        qdq.save_model(model, plain)
        if markers and not _agree(source, plain, samples, threads):
            model, markers = qdq.load_model(source), ()
            weights = _weight_ranges(model)
            qdq.save_model(model, plain)
        values = [n for n in measured.float_tensors(model) if n not in weights]
        ranges = measured.measure_ranges(plain, values, samples, threads=threads) | weights
        kept = _kept(model, ranges, to=to, limit=limit)
        typed = folder / "typed.onnx"
        log, python = folder / "autocast.log", environments.python(ENVIRONMENT)
        with Worker(log, threads=threads or 1, timeout_s=CAST_S, python=python) as worker:
            modelopt = worker.call(autocast, plain, typed, to, tuple(k.node for k in kept))
        written = _read_back(typed, model, to=to, kept={k.node for k in kept})
        move(typed, out)
    kept_tensors = {k.tensor for k in kept}
    inside = {n: r for n, r in ranges.items() if n not in kept_tensors and r.largest < limit}
    widest = max(inside.items(), key=lambda pair: pair[1].largest, default=None)
    return HalfReport(
        to=to,
        limit=LIMITS[to],
        margin=margin,
        kept=kept,
        markers=markers,
        widest=(widest[0], _finite(widest[1].low), _finite(widest[1].high)) if widest else None,
        values=len(ranges),
        feeds=len(samples),
        products=written.products,
        half_products=written.half_products,
        half_share=written.half_products / written.products if written.products else 0.0,
        opset=written.opset,
        versions={"nvidia-modelopt": modelopt},
        convert_s=time.monotonic() - start,
    )


def check_plain(model: onnx.ModelProto, source: Path) -> None:
    """Refuse a model that is typed already.

    Raises:
        InputError: it holds half-precision weights or Q/DQ nodes, or two nodes have one name.
    """
    import onnx

    names = [n.name for n in model.graph.node]
    if len(set(names)) < len(names):
        twice = next(n for i, n in enumerate(names) if n in names[:i])
        raise InputError(f"{source.name} has two nodes named {twice!r}", fix="give every node a name of its own")

    halves = {onnx.TensorProto.FLOAT16, onnx.TensorProto.BFLOAT16}
    if typed := [t.name for t in model.graph.initializer if t.data_type in halves]:
        raise InputError(
            f"{source.name} holds weights in half precision already ({typed[0]!r}), expected FP32",
            fix="start from the FP32 export: ranges are measured there",
        )
    quantised = [n.name for n in model.graph.node if n.op_type in ("QuantizeLinear", "DequantizeLinear")]
    if quantised:
        raise InputError(
            f"{source.name} is quantised already (node {quantised[0]!r}), expected FP32",
            fix="convert first and quantise the result: accel.graph.quantize.for_tensorrt(..., base=...)",
        )


def _weight_ranges(model: onnx.ModelProto) -> dict[str, Range]:
    """Return the range of each FP32 constant; infinities count, as those of a mask do."""
    import onnx

    found = {}
    for tensor in model.graph.initializer:
        if tensor.data_type == onnx.TensorProto.FLOAT:
            array = onnx.numpy_helper.to_array(tensor)
            if array.size:
                found[tensor.name] = Range(float(array.min()), float(array.max()), array.size)
    return found


def _shrink_markers(model: onnx.ModelProto, ranges: dict[str, Range], *, limit: float) -> tuple[Marker, ...]:
    """Bring hugely negative scalars that only reach a Softmax into the range; ``ranges`` follows.

    A quarter of the limit leaves room for the scores that are added, and its exponential is 0 all the same.
    """
    import onnx

    readers: dict[str, list[onnx.NodeProto]] = {}
    for node in model.graph.node:
        for name in node.input:
            readers.setdefault(name, []).append(node)
    outputs = {o.name for o in model.graph.output}
    found = []
    for tensor in model.graph.initializer:
        scalar = tensor.name in ranges and ranges[tensor.name].size == 1
        if not scalar or not ranges[tensor.name].low <= -limit or not _only_masks(tensor.name, readers, outputs):
            continue
        replaced = np.float32(-limit / 4)
        found.append(Marker(tensor.name, _finite(ranges[tensor.name].low), float(replaced)))
        array = np.full(tuple(tensor.dims), replaced)
        tensor.CopyFrom(onnx.numpy_helper.from_array(array, tensor.name))
        ranges[tensor.name] = Range(float(replaced), float(replaced), 1)
    return tuple(found)


def _only_masks(name: str, readers: Mapping[str, list[onnx.NodeProto]], outputs: Collection[str]) -> bool:
    """Say whether all that a value reaches lies between it and a Softmax."""
    waiting, seen, ends = [name], {name}, 0
    while waiting:
        value = waiting.pop()
        if value in outputs or not readers.get(value):
            return False
        for node in readers[value]:
            if node.op_type == "Softmax":
                ends += 1
            elif node.op_type in CARRIERS and node.domain in ("", "ai.onnx"):
                new = set(node.output) - seen
                seen |= new
                waiting += new
            else:
                return False
    return ends > 0


def _agree(source: Path, other: Path, feeds: list[Feed], threads: int) -> bool:
    """Say whether two files give the same answers, down to rounding, on feeds from all over the samples."""
    sessions = [evaluate.open_exact(p, threads, once=True) for p in (source, other)]
    for feed in feeds[:: max(1, len(feeds) // AGREEMENT_FEEDS)]:
        for truth, found in zip(*(measured.run(s, None, feed, source.name) for s in sessions), strict=True):
            if truth.dtype.kind != "f":
                if not np.array_equal(truth, found):
                    return False
                continue
            noise = float(np.square(found.astype(np.float64) - truth).sum())
            signal = float(np.square(truth.astype(np.float64)).sum())
            if not (math.isfinite(noise) and noise <= signal * 10 ** (-AGREEMENT_DB / 10)):
                return False
    return True


def _kept(model: onnx.ModelProto, ranges: Mapping[str, Range], *, to: Half, limit: float) -> tuple[Kept, ...]:
    """List the nodes that read or write a value outside the range, or square one that would be."""
    kept = []
    for node in model.graph.node:
        if node.op_type in BODIES:
            reason = "values inside its bodies are not measured"
            kept.append(Kept(node.name, node.op_type, "", 0.0, 0.0, reason))
            continue
        touched = [n for n in (*node.input, *node.output) if n in ranges]
        worst = max(touched, key=lambda n: ranges[n].largest, default=None)
        if worst is None:
            continue
        found = ranges[worst]
        low, high = _finite(found.low), _finite(found.high)
        if found.largest >= limit:
            room = f"{to} holds {LIMITS[to]:.5g}, with the margin {limit:.5g}"
            reason = f"{worst!r} reaches {_finite(found.largest):.4g}; {room}"
            kept.append(Kept(node.name, node.op_type, worst, low, high, reason))
        elif node.op_type in SQUARING and node.input[0] in ranges:
            source = ranges[node.input[0]]
            spread = max(source.high - source.low, source.largest)
            if spread**2 >= limit:
                reason = f"squares of {node.input[0]!r} reach {spread**2:.4g}; {to} holds {LIMITS[to]:.5g}"
                low, high = _finite(source.low), _finite(source.high)
                kept.append(Kept(node.name, node.op_type, node.input[0], low, high, reason))
    return tuple(kept)


def _finite(value: float) -> float:
    """Return the value cut at FP32's limits, NaN as the upper one: what a JSON file can hold."""
    largest = float(np.finfo(np.float32).max)
    return largest if math.isnan(value) else min(max(value, -largest), largest)


@dataclass(frozen=True, slots=True)
class _Written:
    products: int
    half_products: int
    opset: int


def _read_back(path: Path, before: onnx.ModelProto, *, to: Half, kept: Collection[str]) -> _Written:
    """Check what was written: the contract, the kept nodes, the weights.

    Raises:
        StageError: something differs from what was asked for.
    """
    import onnx

    model = onnx.load(str(path), load_external_data=False)
    wanted = onnx.TensorProto.FLOAT16 if to == "fp16" else onnx.TensorProto.BFLOAT16
    for was, now in ((before.graph.input, model.graph.input), (before.graph.output, model.graph.output)):
        one = [(v.name, v.type.tensor_type.elem_type) for v in was]
        two = [(v.name, v.type.tensor_type.elem_type) for v in now]
        if one != two:
            raise StageError(f"autocast changed the model's inputs or outputs: expected {one}, found {two}")
    types = measured.float_tensors(model)
    counted = half = 0
    for node in model.graph.node:
        halves = [n for n in (*node.input, *node.output) if types.get(n) == wanted]
        if node.name in kept and halves and node.op_type != "Cast":
            raise StageError(f"autocast left {node.op_type} {node.name!r} in {to}, which its range forbids")
        if node.op_type in PRODUCTS:
            counted += 1
            half += types.get(node.output[0]) == wanted
    _check_weights(path, wanted, limit=LIMITS[to])
    opset = next(o.version for o in model.opset_import if o.domain in ("", "ai.onnx"))
    return _Written(counted, half, opset)


def _check_weights(path: Path, kind: int, *, limit: float) -> None:
    """Refuse a half-precision weight at the format's limit: autocast cuts larger ones there without an error."""
    import onnx

    model = onnx.load(str(path))
    for tensor in model.graph.initializer:
        if tensor.data_type == kind:
            largest = float(np.abs(onnx.numpy_helper.to_array(tensor).astype(np.float32)).max(initial=0.0))
            if not largest < limit:
                raise StageError(f"weight {tensor.name!r} does not fit half precision and was cut at {largest:.5g}")


def move(source: Path, out: Path, *, data: Path | None = None) -> None:
    """Move a file to ``out``, and the weights beside it, or beside ``data`` where it shares them, to ``<out>.data``."""
    import onnx

    model = onnx.load(str(source), load_external_data=False)
    for tensor in model.graph.initializer:
        for entry in tensor.external_data:
            if entry.key == "location":
                entry.value = f"{out.name}.data"
    owner = data or source
    weights = owner.with_name(f"{owner.name}.data")
    if weights.exists():
        weights.replace(out.with_name(f"{out.name}.data"))
    out.write_bytes(model.SerializeToString())


def emulate(source: Path, out: Path) -> None:
    """Write a half-precision file as FP32 with every half value rounded to its format, for a CPU to run.

    ONNX Runtime's CPU provider has few BF16 kernels and computes FP16 ones in FP32, so that an overflow inside goes by
    unseen. Here each value that the types call half goes through that format and back, and overflows to infinity there.
    Sums inside one operator are still those of FP32, as tensor cores have them.

    Raises:
        InputError: the types of the graph cannot be inferred.
    """
    import onnx

    helper, kinds = onnx.helper, onnx.TensorProto
    model = onnx.load(str(source))
    types = measured.float_tensors(model)
    half = {n: k for n, k in types.items() if k in (kinds.FLOAT16, kinds.BFLOAT16)}
    for tensor in model.graph.initializer:
        if tensor.name in half:
            value = onnx.numpy_helper.to_array(tensor).astype(np.float32)
            tensor.CopyFrom(onnx.numpy_helper.from_array(value, tensor.name))
    nodes: list[onnx.NodeProto] = []
    for node in model.graph.node:
        for attribute in node.attribute:
            if attribute.name in ("to", "dtype", "output_dtype") and attribute.i in (kinds.FLOAT16, kinds.BFLOAT16):
                attribute.i = kinds.FLOAT
            elif attribute.name == "value" and attribute.t.data_type in (kinds.FLOAT16, kinds.BFLOAT16):
                value = onnx.numpy_helper.to_array(attribute.t).astype(np.float32)
                attribute.t.CopyFrom(onnx.numpy_helper.from_array(value, attribute.t.name))
        rounded = [o for o in node.output if o in half]
        for index, name in enumerate(node.output):
            if name in half:
                node.output[index] = f"{name}.exact"
        nodes.append(node)
        for name in rounded:
            nodes.append(helper.make_node("Cast", [f"{name}.exact"], [f"{name}.half"], f"{name}.half", to=half[name]))
            nodes.append(helper.make_node("Cast", [f"{name}.half"], [name], f"{name}.back", to=kinds.FLOAT))
    qdq.replace_nodes(model, nodes)
    qdq.save_model(model, out)
