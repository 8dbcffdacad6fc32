"""ONNX for operators of torch that torch.onnx has no function for.

Functions of the exporter's registry: they are traced, their operators come from onnxscript's opset 18.
Source: torch.onnx.export, ``custom_translation_table``.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from onnxscript import INT64, opset18 as op
from onnxscript.onnx_types import TensorType


def cdist(x1: TensorType, x2: TensorType, p: float, compute_mode: int | None = None) -> TensorType:
    """Distances of all pairs of rows: x1 (…, rows, width), x2 (…, others, width) → (…, rows, others)."""
    apart = op.Sub(op.Unsqueeze(x1, [-2]), op.Unsqueeze(x2, [-3]))
    if p == 2:
        return op.ReduceL2(apart, [-1], keepdims=0)
    size = op.Abs(apart)
    if p == float("inf"):
        return op.ReduceMax(size, [-1], keepdims=0)
    if p == 0:
        return op.ReduceSum(op.CastLike(op.Greater(size, op.CastLike(0, size)), size), [-1], keepdims=0)
    total = op.ReduceSum(op.Pow(size, op.CastLike(p, size)), [-1], keepdims=0)
    return op.Pow(total, op.CastLike(1 / p, total))


def adaptive_max_pool2d(self: TensorType, output_size: Sequence[int]) -> tuple[TensorType, INT64]:
    """The largest value of each window: windows lie as torch lays them. Indices are of no use to a client.

    Source: aten/src/ATen/native/AdaptivePooling.h, ``start_index`` and ``end_index``.
    """
    found = self
    for axis, wanted in zip((-2, -1), output_size, strict=True):
        size = self.shape[axis]
        if not isinstance(size, int):
            raise ValueError(f"adaptive max pooling over an axis that varies ({size}): fix it")
        ends = [(i * size // wanted, -(-(i + 1) * size // wanted)) for i in range(wanted)]
        parts = [op.ReduceMax(op.Slice(found, [a], [b], [axis]), [axis], keepdims=1) for a, b in ends]
        found = op.Concat(*parts, axis=axis) if len(parts) > 1 else parts[0]
    return found, op.Cast(op.Shape(found), to=7)


def rsub(self: TensorType, other: float, alpha: float = 1) -> TensorType:
    """``other - alpha * self``, in floats where either is one: ``1.0 - mask`` of an integer mask is not a rare line.

    torch takes it apart into a subtraction whose first operand is a number, for which it finds no operator.
    """
    if isinstance(other, float) and not self.dtype.is_floating_point():
        self = op.Cast(self, to=1)
    scaled = self if alpha == 1 else op.Mul(op.CastLike(alpha, self), self)
    return op.Sub(op.CastLike(other, self), scaled)


def log_sigmoid(self: TensorType) -> TensorType:
    """``-softplus(-x)``: the logarithm of a sigmoid, as torch.onnx writes it, is that of 0 from -17 on in FP32."""
    return op.Neg(op.Softplus(op.Neg(self)))


def sort_stable(
    self: TensorType, *, stable: bool | None = None, dim: int = -1, descending: bool = False
) -> tuple[TensorType, INT64]:
    """Values in order, and their places; equal ones stay in theirs.

    Source: ONNX TopK, which puts the lower index first.
    """
    return op.TopK(self, op.Gather(op.Shape(self), [dim]), axis=dim, largest=int(descending), sorted=1)


TABLE: dict[Callable[..., Any], Callable[..., Any]] = {
    torch.ops.aten._cdist_forward.default: cdist,
    torch.ops.aten.adaptive_max_pool2d.default: adaptive_max_pool2d,
    torch.ops.aten.rsub.Scalar: rsub,
    torch.ops.aten.log_sigmoid.default: log_sigmoid,
    torch.ops.aten.sort.stable: sort_stable,
}
