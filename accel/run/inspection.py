"""What a source, a model file or a run holds, as plain JSON values for ``accel inspect``."""

import math
import shlex
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from accel.builders import targets
from accel.core import document, hardware, temporary
from accel.core.errors import InputError
from accel.core.processes import Worker
from accel.core.values import to_json
from accel.exporters.axes import extents
from accel.exporters.check import read_onnx
from accel.exporters.masks import may_be_mask
from accel.exporters.onnx_file import parse
from accel.exporters.request import SourceRequest
from accel.run import tasks

TIMEOUT_S = 600.0

_INT8_PRODUCTS = ("MatMulInteger", "ConvInteger", "QLinearMatMul", "QLinearConv", "QGemm", "QAttention")
_PRODUCTS = ("MatMul", "Gemm", "Conv", "Attention", "MultiHeadAttention", "FusedMatMul")


def inspect(path: Path) -> dict[str, Any]:
    """Describe an ONNX file, a file that a builder can read (an OpenVINO IR, a TensorRT plan) or a run directory.

    Returns:
        ``kind``, ``inputs``, ``outputs``, ``ops`` (type → count) and ``precision`` (what the file says, dtype of
        weights → elements, and the share of INT8 products) for a model; ``kind``, ``model``, ``variants`` and
        ``decisions`` for a run.

    Raises:
        InputError: missing, broken, or a file of another kind.
        UnavailableError: a TensorRT plan, which only TensorRT on a GPU can read, where either is missing.
        StageError: a TensorRT plan that was built elsewhere.
    """
    if (path / document.FILENAME).is_file():
        path = path / document.FILENAME
    if not path.is_file():
        raise InputError(f"{path} is not a file", fix="give an .onnx file, an IR's .xml, or a run directory")
    if path.name == document.FILENAME:
        return _run(path)
    if path.suffix == ".onnx":
        return _onnx(path)
    readers = {suffix: builder for builder in targets.discover().values() for suffix in builder.inspects}
    if path.suffix in readers:
        return readers[path.suffix].inspect(path)
    raise InputError(
        f"{path.name}: {path.suffix or 'no'} suffix is not one that accel inspects",
        fix=f"give .onnx, {', '.join(readers)} or a run",
    )


def is_artifact(path: Path) -> bool:
    """Say whether a path is a run or what a builder made, and no source."""
    made = {suffix for builder in targets.discover().values() for suffix in builder.inspects}
    return (path / document.FILENAME).is_file() or path.name == document.FILENAME or path.suffix in made


def inspect_source(request: SourceRequest, options: Sequence[str] = ()) -> dict[str, Any]:
    """Load a source in a worker process and say what it is, what will be hard, and the command that converts it.

    Args:
        options: what the user gave beside the source, for the command.

    Returns:
        ``kind``, ``framework``, ``weights``, ``batch`` (whether requests can be merged), ``axes`` (smallest, typical
        and largest size of each), ``inputs``, ``outputs``, ``hard`` (sentences) and ``command``.

    Raises:
        AccelError: the source is missing, broken or refused, or nothing says what it takes; the fix names the option.
    """
    with tempfile.TemporaryDirectory(prefix="inspect-", dir=temporary.root()) as folder:
        log = Path(folder) / "source.log"
        with Worker(log, threads=hardware.cpu_threads(), timeout_s=TIMEOUT_S) as worker:
            source = worker.call(tasks.source_of, request)
    unbounded = [s.name for s in source.inputs if "int" in s.dtype and s.range is None]
    batch = all(s.dims[:1] == ("batch",) for s in source.inputs)
    hard = source.notice.split("; ") if source.notice else []
    hard += [f"input {name!r} holds integers, and nothing says which: --range {name}=LO:HI" for name in unbounded]
    if not batch:
        hard.append("not every input has a batch axis in front: a server cannot merge requests")
    if source.mask is None and (masks := [s.name for s in source.inputs if may_be_mask(s, source.inputs)]):
        hard.append(f"is {masks[0]!r} 0 at padding? --mask {masks[0]} lets requests of different lengths share calls")
    if source.samples == "random":
        hard.append("INT8 targets need real inputs: --samples FILE (.npz, .jsonl or file.py:generator)")
    if any(s.dtype == "int64" for s in source.inputs):
        hard.append("64-bit integers: --ints io lets clients send 32-bit ones, which some runtimes compute in")
    open_axes = {str(d) for s in source.outputs for d in s.dims if isinstance(d, str)} - extents(
        source.inputs, source.profile
    ).keys()
    if open_axes:
        hard.append(f"sizes of outputs that no input axis has: {', '.join(sorted(open_axes))}")
    words = ["accel", "convert", request.text, "--targets", "cpu", *options]
    words += [word for name in unbounded for word in ("--range", f"{name}=LO:HI")]
    words += ["--samples", "FILE"] if source.samples == "random" else []
    return {
        "kind": source.kind,
        "framework": source.framework,
        "weights": source.weights,
        "batch": batch,
        "axes": {n: [e.min, e.opt, e.max] for n, e in extents(source.inputs, source.profile).items()},
        "inputs": to_json(source.inputs),
        "outputs": to_json(source.outputs),
        "hard": hard,
        "command": shlex.join(words),
    }


def _run(path: Path) -> dict[str, Any]:
    run = document.read(path)
    variants = [
        {
            "id": v.id,
            "status": v.status,
            "effective_precision": v.artifact.effective_precision if v.artifact else None,
            "reason": v.reason,
        }
        for v in run.variants
    ]
    return {"kind": "run", "model": to_json(run.model), "variants": variants, "decisions": to_json(run.decisions)}


def _onnx(path: Path) -> dict[str, Any]:
    import onnx

    graph = parse(path).graph
    found = read_onnx(path)
    dtypes: Counter[str] = Counter()
    for tensor in graph.initializer:
        known = tensor.data_type in onnx.TensorProto.DataType.values()
        name = onnx.TensorProto.DataType.Name(tensor.data_type).lower() if known else f"unknown ({tensor.data_type})"
        dtypes[name] += math.prod(tensor.dims)
    int8, products = int8_products(graph)
    return {
        "kind": "onnx",
        "opset": found.opset,
        "ir_version": found.ir_version,
        "inputs": to_json(found.inputs),
        "outputs": to_json(found.outputs),
        "ops": dict(found.ops),
        "precision": {"weights": dict(dtypes), "int8_products": int8, "products": products},
        "data": [f.path for f in found.data],
    }


def int8_products(graph: Any) -> tuple[int, int]:
    """Count the matrix products and convolutions of a graph that are INT8 (integer operators or Q/DQ), and all."""
    dequantised = {out for n in graph.node if n.op_type == "DequantizeLinear" for out in n.output}
    int8 = products = 0
    for node in graph.node:
        if node.op_type in _INT8_PRODUCTS:
            int8, products = int8 + 1, products + 1
        elif node.op_type in _PRODUCTS:
            products += 1
            int8 += set(node.input[:2]) <= dequantised
    return int8, products
