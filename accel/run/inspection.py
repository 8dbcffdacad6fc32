"""What a model file or a run holds, as plain JSON values for ``accel inspect``."""

from __future__ import annotations

import math
from collections import Counter
from pathlib import Path
from typing import Any

from accel.builders import targets
from accel.core import document
from accel.core.errors import InputError
from accel.core.values import to_json

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
        raise InputError(f"{path} is no file", fix="give an .onnx file, an IR's .xml, or a run directory")
    if path.name == document.FILENAME:
        return _run(path)
    if path.suffix == ".onnx":
        return _onnx(path)
    readers = {suffix: builder for builder in targets.discover().values() for suffix in builder.inspects}
    if path.suffix in readers:
        return readers[path.suffix].inspect(path)
    raise InputError(
        f"{path.name}: {path.suffix or 'no'} suffix is none that accel inspects",
        fix=f"give .onnx, {', '.join(readers)} or a run",
    )


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

    from accel.exporters.check import read_onnx
    from accel.exporters.onnx_file import parse

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
