"""What each ONNX operator does to the bounds of its elements.

A rule takes one ``Call`` and returns one fact for each output, or fewer: outputs without a fact get the whole range of
their type, and so does every operator that has no rule here. A rule is only right if it holds for every runtime that
follows the specification, including what ONNX leaves open (division by zero, empty reductions): then it says nothing.
It also has to hold for the ONNX Runtime that people have: where its int64 kernels are known to be wrong for large
values (measured with 1.31: Max, Min, Clip, Sign, ReduceSum, fmod), the bounds include what it really returns.
Operators that only move elements are in ``moves``, sizes of axes in ``sizes``.

Source: https://onnx.ai/onnx/operators/ for the semantics of each operator.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from onnx_ir import DataType

from accel.graph.narrow.facts import (
    FLOATS,
    INT32,
    INT64,
    LIMITS,
    Bounds,
    Dims,
    Fact,
    Interval,
    add,
    bits,
    bitwise_and,
    divide,
    hull,
    known,
    modulo,
    multiply,
    pointwise,
    power,
    product,
    remainder,
    round_to,
    subtract,
    unknown,
)


@dataclass(frozen=True, slots=True)
class Call:
    """One node with the facts of its inputs.

    Attributes:
        version: opset of the operator's domain that the model imports.
        inputs: one fact for each input; None where an optional input is left out.
        attributes: values of the attributes, tensors as ``onnx_ir`` has them.
        outputs: facts of the outputs before the rule: type and sizes are right, bounds are the type's.
    """

    op: str
    version: int
    inputs: Sequence[Fact | None]
    attributes: Mapping[str, Any]
    outputs: Sequence[Fact]

    def input(self, index: int) -> Fact | None:
        """Return the fact of an input, or None where the node does not have it."""
        return self.inputs[index] if index < len(self.inputs) else None

    def dims(self, index: int) -> Dims | None:
        """Return the sizes of an input, or None where they are not known."""
        fact = self.input(index)
        return fact.dims if fact is not None else None

    def bounds(self, index: int) -> Bounds | None:
        """Return the bounds of an input, or None where there are none."""
        fact = self.input(index)
        return fact.bounds if fact is not None else None

    def present(self) -> list[Fact]:
        """Return the facts of all inputs that are there."""
        return [f for f in self.inputs if f is not None]


Rule = Callable[[Call], Sequence[Fact]]
RULES: dict[str, Rule] = {}


def rule(*ops: str) -> Callable[[Rule], Rule]:
    """Register a rule for operators of ONNX's own domain."""

    def register(function: Rule) -> Rule:
        for op in ops:
            RULES[op] = function
        return function

    return register


def _bounded(call: Call, *bounds: Bounds | None) -> list[Fact]:
    pairs = zip(call.outputs, bounds, strict=False)
    return [known(out.dtype, b, out.dims) if b is not None else unknown(out.dtype, out.dims) for out, b in pairs]


def _pointwise(call: Call, rule: Callable[..., Bounds | None]) -> list[Fact]:
    out = call.outputs[0]
    return [pointwise(out.dtype, out.dims, call.present(), rule)]


def _elements(call: Call) -> Interval:
    """Bound the number of elements of the first input."""
    dims = call.dims(0)
    return product(dims) if dims is not None else (0, INT64[1])


def _index(size: Interval | None) -> Interval:
    """Bound an index into an axis of that size."""
    return (0, max(size[1] - 1, 0)) if size is not None else (0, INT64[1])


def _fits(*parts: Bounds) -> bool:
    """Say whether all fit int32; ONNX Runtime 1.31 compares larger int64 by their low halves: Sign(2**31) is -1."""
    return all(INT32[0] <= lo and hi <= INT32[1] for lo, hi in parts)


def _exact(least: int, most: int) -> bool:
    """Say whether sums in this range are exact in double, which ONNX Runtime adds int64 in."""
    return least >= -(2**53) and most <= 2**53


def _sign(a: Bounds) -> Bounds:
    if not _fits(a):
        return -1, 1
    return (a[0] > 0) - (a[0] < 0), (a[1] > 0) - (a[1] < 0)


_POINTWISE: dict[str, Callable[..., Bounds | None]] = {
    "Add": add,
    "Sub": subtract,
    "Mul": multiply,
    "Div": divide,
    "BitwiseAnd": bitwise_and,
    "BitwiseOr": bits,
    "BitwiseXor": bits,
    "Sum": lambda *parts: (sum(p[0] for p in parts), sum(p[1] for p in parts)),
    "Neg": lambda a: (-a[1], -a[0]),
    "Abs": lambda a: (0 if a[0] <= 0 <= a[1] else min(abs(a[0]), abs(a[1])), max(abs(a[0]), abs(a[1]))),
    "Sign": _sign,
    "Relu": lambda a: (max(a[0], 0), max(a[1], 0)),
    "Floor": lambda a: (math.floor(a[0]), math.floor(a[1])),
    "Ceil": lambda a: (math.ceil(a[0]), math.ceil(a[1])),
    "Round": lambda a: (math.floor(a[0]), math.ceil(a[1])),
    "Log": lambda a: (math.log(a[0]), math.log(a[1])) if a[0] > 0 else None,
}
"""What an operator does to the bounds of elements that it takes one from each input."""


@rule(*_POINTWISE)
def _elementwise(call: Call) -> list[Fact]:
    return _pointwise(call, _POINTWISE[call.op])


@rule("BitwiseNot")
def _inverted(call: Call) -> list[Fact]:
    signed = LIMITS.get(call.outputs[0].dtype, (0, 0))[0] < 0
    return _pointwise(call, lambda a: (-a[1] - 1, -a[0] - 1)) if signed else []


@rule("Max", "Min")
def _extreme(call: Call) -> list[Fact]:
    out, pick = call.outputs[0], max if call.op == "Max" else min

    def extreme(*parts: Bounds) -> Bounds | None:
        if out.dtype in LIMITS and not _fits(*parts):
            return hull(parts)
        return pick(lo for lo, _ in parts), pick(hi for _, hi in parts)

    return _pointwise(call, extreme)


@rule("Equal")
def _equal(call: Call) -> list[Fact]:
    def same(a: Bounds, b: Bounds) -> Bounds:
        if a[1] < b[0] or b[1] < a[0]:
            return 0, 0
        return (1, 1) if a == b and a[0] == a[1] else (0, 1)

    return _pointwise(call, same) if call.present()[0].dtype in LIMITS else []


@rule("Clip")
def _clip(call: Call) -> list[Fact]:
    x, low, high = call.bounds(0), call.bounds(1), call.bounds(2)
    if x is None or any(f is not None and f.bounds is None for f in call.inputs[1:]):
        return []
    if call.version < 11:
        low_at, high_at = call.attributes.get("min", -math.inf), call.attributes.get("max", math.inf)
        low, high = (low_at, low_at), (high_at, high_at)
    elif call.outputs[0].dtype in LIMITS and not _fits(*(b for b in (x, low, high) if b is not None)):
        return _bounded(call, hull(b for b in (x, low, high) if b is not None))
    if low is not None:
        x = max(x[0], low[0]), max(x[1], low[1])
    if high is not None:
        x = min(x[0], high[0]), min(x[1], high[1])
    return _bounded(call, x)


@rule("BitShift")
def _shift(call: Call) -> list[Fact]:
    out, left = call.outputs[0], call.attributes["direction"] == "LEFT"
    width = LIMITS[out.dtype][1].bit_length() if out.dtype in LIMITS else 0

    def shifted(a: Bounds, by: Bounds) -> Bounds | None:
        if by[1] >= width:
            return None
        few, many = int(by[0]), int(by[1])
        if left:
            return int(a[0]) << few, int(a[1]) << many
        return int(a[0]) >> many, int(a[1]) >> few

    return _pointwise(call, shifted)


@rule("Cast", "CastLike")
def _cast(call: Call) -> list[Fact]:
    out, x = call.outputs[0], call.input(0)
    if x is None or x.bounds is None or x.dtype == 0:
        return []

    def converted(bounds: Bounds) -> Bounds | None:
        if out.dtype == DataType.BOOL:
            return (1, 1) if bounds[0] >= 1 or bounds[1] <= -1 else (0, int(bounds != (0, 0)))
        if out.dtype in LIMITS:
            return math.trunc(bounds[0]), math.trunc(bounds[1])
        if out.dtype not in FLOATS:
            return None
        return round_to(out.dtype, bounds[0]), round_to(out.dtype, bounds[1])

    return [pointwise(out.dtype, out.dims, [x], converted)]


@rule("Shape")
def _shape(call: Call) -> list[Fact]:
    out, dims = call.outputs[0], call.dims(0)
    if dims is None:
        return _bounded(call, (0, INT64[1]))
    dims = dims[slice(call.attributes.get("start", 0), call.attributes.get("end", len(dims)))]
    return [known(out.dtype, hull(dims) or (0, 0), ((len(dims), len(dims)),), list(dims))]


def _axis(dims: Dims | None, axis: int) -> Interval | None:
    return dims[axis] if dims and -len(dims) <= axis < len(dims) else None


def _whole(call: Call, rule: Callable[..., Bounds | None]) -> list[Fact]:
    """Apply a rule that holds for integers alone."""
    return _pointwise(call, rule) if call.outputs[0].dtype in LIMITS else []


# Rules of one expression; the longer ones follow.
RULES |= {
    "Mod": lambda call: _whole(call, remainder if call.attributes.get("fmod", 0) else modulo),
    "Pow": lambda call: _whole(call, power),
    "Size": lambda call: [known(call.outputs[0].dtype, _elements(call), (), [_elements(call)])],
    **dict.fromkeys(
        ("ArgMax", "ArgMin"),
        lambda call: _bounded(call, _index(_axis(call.dims(0), call.attributes.get("axis", 0)))),
    ),
    "TopK": lambda call: _bounded(call, call.bounds(0), _index(_axis(call.dims(0), call.attributes.get("axis", -1)))),
    "MaxPool": lambda call: _bounded(call, call.bounds(0), (-1, _index(_elements(call))[1])),
}


@rule("NonZero")
def _nonzero(call: Call) -> list[Fact]:
    dims = call.dims(0)
    top = max((hi for _, hi in dims), default=1) if dims is not None else INT64[1]
    return _bounded(call, _index((0, top)))


@rule("NonMaxSuppression")
def _nms(call: Call) -> list[Fact]:
    scores = call.dims(1)
    return _bounded(call, _index((0, max(hi for _, hi in scores)))) if scores is not None else []


@rule("Unique")
def _unique(call: Call) -> list[Fact]:
    size = _elements(call)
    return _bounded(call, call.bounds(0), _index(size), _index(size), (0, size[1]))


@rule("Multinomial")
def _multinomial(call: Call) -> list[Fact]:
    classes = _axis(call.dims(0), 1)
    return _bounded(call, _index(classes) if classes else None)


@rule("Range")
def _range(call: Call) -> list[Fact]:
    out = call.outputs[0]
    start, limit, delta = (call.bounds(i) for i in range(3))
    if start is None or limit is None or delta is None or out.dtype not in LIMITS:
        return []
    span = subtract(limit, start)
    if out.dtype == DataType.INT64 and not (INT32[0] <= span[0] and span[1] <= INT32[1]):
        # A kernel takes limit - start in the type itself: narrowed, that difference would wrap.
        return []
    up = (start[0], max(limit[1] - 1, start[0])) if delta[1] > 0 else None
    down = (min(limit[0] + 1, start[1]), start[1]) if delta[0] < 0 else None
    return _bounded(call, hull([b for b in (up, down) if b is not None]) or start)


@rule("CumSum")
def _cumsum(call: Call) -> list[Fact]:
    x, axis = call.input(0), call.input(1)
    if x is None or x.bounds is None or x.dtype not in LIMITS or axis is None or axis.constant is None:
        return []
    size = _axis(x.dims, axis.constant[0])
    if size is None:
        return []
    lo, hi = x.bounds
    zero = [0] if call.attributes.get("exclusive", 0) else []
    if not _exact(size[1] * min(int(lo), 0), size[1] * max(int(hi), 0)):
        return []
    return _bounded(call, (min(lo, size[1] * lo, *zero), max(hi, size[1] * hi, *zero)))


@rule("MatMul")
def _matmul(call: Call) -> list[Fact]:
    a, b, depth = call.bounds(0), call.bounds(1), _axis(call.dims(0), -1)
    if a is None or b is None or depth is None or call.present()[0].dtype not in LIMITS:
        return []
    lo, hi = multiply(a, b)
    least, most = min(0, depth[1] * int(lo)), max(0, depth[1] * int(hi))
    return _bounded(call, (least, most)) if _exact(least, most) else []


def reduced_axes(call: Call, rank: int) -> list[int] | None:
    """Return the axes that a reduction takes away, or None where they are not certain."""
    axes: Sequence[int] | None = call.attributes.get("axes")
    given = call.input(1)
    if given is not None:
        axes = given.constant
        if axes is None:
            return None
    if not axes:
        return [] if call.attributes.get("noop_with_empty_axes", 0) else list(range(rank))
    return [a % rank for a in axes] if rank else []


@rule("ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceL1", "ReduceSumSquare")
def _reduce(call: Call) -> list[Fact]:
    x = call.input(0)
    if x is None or x.bounds is None or x.dtype not in LIMITS or x.dims is None:
        return []
    axes = reduced_axes(call, len(x.dims))
    few, many = product(x.dims[a] for a in axes) if axes is not None else (0, product(x.dims)[1])
    lo, hi = int(x.bounds[0]), int(x.bounds[1])
    if call.op in ("ReduceL1", "ReduceSumSquare"):
        both = (abs(lo), abs(hi)) if call.op == "ReduceL1" else (lo * lo, hi * hi)
        return _bounded(call, (0, many * max(both))) if _exact(0, many * max(both)) else []
    if call.op == "ReduceSum":
        if not _exact(many * min(lo, 0), many * max(hi, 0)):
            return []
        return _bounded(call, (min(few * lo, many * lo), max(few * hi, many * hi)))
    if few == 0 and call.op != "ReduceProd":
        # The result of an empty maximum, minimum or mean depends on the type.
        return []
    if call.op == "ReduceMean":
        # Kernels sum in the type itself before they divide.
        return _bounded(call, (lo, hi)) if many * max(abs(lo), abs(hi)) <= INT32[1] else []
    if call.op == "ReduceProd":
        if many > 64:
            return _bounded(call, (lo, hi) if (lo, hi) in ((0, 1), (1, 1), (0, 0)) and few else None)
        most = max(1, abs(lo), abs(hi)) ** many
        if not _exact(0, most):
            return []
        return _bounded(call, (0 if lo >= 0 else -most, most))
    return _bounded(call, (lo, hi))
