"""What the matrix products and convolutions of a typed ONNX file compute in, by the file's own types."""

from collections import Counter
from pathlib import Path

import onnx_ir as ir

from accel.graph import measured, passes

PRODUCTS = frozenset({"MatMul", "Gemm", "Conv", "ConvTranspose", "Einsum"})


def names(path: Path) -> list[str]:
    """Return the names of all products of a file, by which the layers of a plan are recognised."""
    return [node.name for node in passes.load(path).graph if node.op_type in PRODUCTS and node.name]


def behind_pairs(path: Path) -> list[str]:
    """Return the names of the products whose operands both come from a DequantizeLinear."""
    return [
        node.name for node in passes.load(path).graph if node.op_type in PRODUCTS and node.name and _quantised(node)
    ]


def _quantised(node: ir.Node) -> bool:
    makers = [value.producer() for value in node.inputs[:2] if value is not None]
    return len(makers) > 1 and all(m is not None and m.op_type == "DequantizeLinear" for m in makers)


def products_by_type(path: Path) -> dict[str, int]:
    """Count the products of a file by precision: ``int8`` behind a DequantizeLinear, else the type of what they give.

    A strongly typed TensorRT network computes in these types.

    Raises:
        InputError: the types of the graph cannot be inferred.
    """
    kinds = {ir.DataType.FLOAT16: "fp16", ir.DataType.BFLOAT16: "bf16"}
    types = measured.file_types(path)
    found: Counter[str] = Counter()
    for node in passes.load(path).graph:
        if node.op_type in PRODUCTS:
            kind = types.get(str(node.outputs[0].name), 0)
            found["int8" if _quantised(node) else kinds.get(ir.DataType(kind), "fp32")] += 1
    return dict(found)
