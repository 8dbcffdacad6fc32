"""What the matrix products and convolutions of a typed ONNX file compute in, by the file's own types."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from accel.graph import measured

PRODUCTS = frozenset({"MatMul", "Gemm", "Conv", "ConvTranspose", "Einsum"})


def products_by_type(path: Path) -> dict[str, int]:
    """Count the products of a file by precision: ``int8`` behind a DequantizeLinear, else the type of what they give.

    A strongly typed TensorRT network computes in these types.

    Raises:
        InputError: the types of the graph cannot be inferred.
    """
    import onnx

    names = {onnx.TensorProto.FLOAT: "fp32", onnx.TensorProto.FLOAT16: "fp16", onnx.TensorProto.BFLOAT16: "bf16"}
    model = onnx.load(str(path), load_external_data=False)
    types = measured.float_tensors(model)
    dequantized = {o for n in model.graph.node if n.op_type == "DequantizeLinear" for o in n.output}
    found: Counter[str] = Counter()
    for node in model.graph.node:
        if node.op_type in PRODUCTS:
            quantized = len(node.input) > 1 and {node.input[0], node.input[1]} <= dequantized
            found["int8" if quantized else names.get(types.get(node.output[0], 0), "fp32")] += 1
    return dict(found)
