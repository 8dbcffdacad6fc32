"""Bounds of the sizes of a node's outputs.

ONNX's own shape inference gives ranks, fixed sizes and axes that carry an input's name. These rules add what it drops:
bounds of sizes that were computed inside the graph (``Reshape`` to a shape made of ``Shape`` pieces, ``Range`` up to a
size). Operators without a rule keep what shape inference found.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce

from accel.graph.narrow.facts import ANY_SIZE, LIMITS, Dims, Fact, Interval, product
from accel.graph.narrow.rules import Call, reduced_axes

ShapeRule = Callable[[Call], Dims | None]

ELEMENTWISE = frozenset(
    [
        "Abs",
        "Add",
        "And",
        "BitShift",
        "BitwiseAnd",
        "BitwiseNot",
        "BitwiseOr",
        "BitwiseXor",
        "Cast",
        "CastLike",
        "Ceil",
        "Clip",
        "CumSum",
        "Div",
        "Dropout",
        "Equal",
        "Erf",
        "Exp",
        "Floor",
        "Gelu",
        "Greater",
        "GreaterOrEqual",
        "Identity",
        "IsInf",
        "IsNaN",
        "LayerNormalization",
        "Less",
        "LessOrEqual",
        "Log",
        "Max",
        "Min",
        "Mod",
        "Mul",
        "Neg",
        "Not",
        "Or",
        "Pow",
        "Reciprocal",
        "Relu",
        "Round",
        "Sigmoid",
        "Sign",
        "Softmax",
        "Sqrt",
        "Sub",
        "Sum",
        "Tanh",
        "Trilu",
        "Where",
        "Xor",
    ]
)
"""Operators whose first output has the broadcast shape of their tensor inputs, or the shape of the first."""
_FIRST_ONLY = frozenset(["Clip", "CumSum", "Dropout", "LayerNormalization", "Trilu", "CastLike"])


def sizes(call: Call, inferred: Dims | None) -> Dims | None:
    """Bound the axes of the first output (of Split and TopK: of any), cut with what shape inference found."""
    own = None
    if call.op in ELEMENTWISE:
        own = _elementwise(call)
    elif call.op in _RULES:
        own = _RULES[call.op](call)
    if own is None or inferred is None:
        return own if inferred is None else inferred
    if len(own) != len(inferred):
        return inferred
    return tuple(_cut(a, b) for a, b in zip(own, inferred, strict=True))


def _cut(a: Interval, b: Interval) -> Interval:
    lo, hi = max(a[0], b[0]), min(a[1], b[1])
    return (lo, hi) if lo <= hi else b


def _dims(call: Call, index: int) -> Dims | None:
    fact = call.input(index)
    return fact.dims if fact is not None else None


def _elementwise(call: Call) -> Dims | None:
    if call.op in _FIRST_ONLY:
        return _dims(call, 0)
    return broadcast([f.dims for f in call.present()])


def broadcast(shapes: Sequence[Dims | None]) -> Dims | None:
    """Bound the broadcast shape; None where one rank is unknown."""
    result: list[Interval] = []
    for dims in shapes:
        if dims is None:
            return None
        width = max(len(result), len(dims))
        left = [(1, 1)] * (width - len(result)) + result
        right = [(1, 1)] * (width - len(dims)) + list(dims)
        result = [_broadcast_axis(a, b) for a, b in zip(left, right, strict=True)]
    return tuple(result)


def _broadcast_axis(a: Interval, b: Interval) -> Interval:
    if a == (1, 1) or b[0] > 1:
        return b
    if b == (1, 1) or a[0] > 1:
        return a
    return min(a[0], b[0]), max(a[1], b[1])


def as_size(bounds: tuple[float, float]) -> Interval:
    """Turn the bounds of a number into bounds of an axis of that size."""
    return max(int(bounds[0]), 0), max(int(bounds[1]), 0)


def _reshape(call: Call) -> Dims | None:
    x, target = call.input(0), call.input(1)
    if target is None or target.items is None:
        return None
    source = x.dims if x is not None else None
    result: list[Interval | None] = []
    for axis, (lo, hi) in enumerate(target.items):
        if lo <= 0 <= hi and not call.attributes.get("allowzero", 0):
            # A 0 copies the size of the same axis of the input.
            if lo < 0 or source is None or axis >= len(source):
                return None
            result.append((min(int(lo), source[axis][0]), max(int(hi), source[axis][1])) if hi else source[axis])
        elif lo < 0:
            result.append(None)
        else:
            result.append((int(lo), int(hi)))
    free = [i for i, dim in enumerate(result) if dim is None]
    whole = product(source) if source is not None else ANY_SIZE
    rest = product(dim for dim in result if dim is not None)
    for axis in free:
        # Beside an axis of size 0 a -1 has no meaning, so that the other axes have at least one element together.
        exact = len(free) == 1 and target.items[axis] == (-1, -1)
        result[axis] = (whole[0] // max(rest[1], 1), whole[1] // max(rest[0], 1)) if exact else ANY_SIZE
    return tuple(dim if dim is not None else ANY_SIZE for dim in result)


def _expand(call: Call) -> Dims | None:
    target, source = call.input(1), _dims(call, 0)
    if target is None or target.items is None or source is None:
        return None
    return broadcast([source, tuple(as_size(item) for item in target.items)])


def _of_shape(call: Call) -> Dims | None:
    target = call.input(0)
    return tuple(as_size(item) for item in target.items) if target is not None and target.items is not None else None


def _range(call: Call) -> Dims | None:
    start, limit, delta = (call.input(i) for i in range(3))
    if start is None or limit is None or delta is None or start.dtype not in LIMITS:
        return None
    if start.bounds is None or limit.bounds is None or delta.bounds is None or delta.bounds[0] <= 0:
        return (ANY_SIZE,)
    least, most = int(limit.bounds[0] - start.bounds[1]), int(limit.bounds[1] - start.bounds[0])
    slow, fast = int(delta.bounds[0]), int(delta.bounds[1])
    return ((max(-(-least // fast), 0), max(-(-most // slow), 0)),)


def _gather(call: Call) -> Dims | None:
    x, index = _dims(call, 0), _dims(call, 1)
    if not x or index is None:
        return None
    axis = call.attributes.get("axis", 0) % len(x)
    return (*x[:axis], *index, *x[axis + 1 :])


def _concat(call: Call) -> Dims | None:
    shapes = [f.dims for f in call.present()]
    certain = [s for s in shapes if s]
    if len({len(s) for s in certain}) != 1:
        return None
    axis = call.attributes.get("axis", 0) % len(certain[0])
    total = (sum(s[axis][0] for s in certain), sum(s[axis][1] for s in certain))
    if len(certain) < len(call.inputs):
        total = (total[0], ANY_SIZE[1])
    # Along every other axis all inputs have one size, so each bounds it for all.
    same = (reduce(_cut, sizes) for sizes in zip(*certain, strict=True))
    return tuple(total if i == axis else dim for i, dim in enumerate(same))


def _transpose(call: Call) -> Dims | None:
    x = _dims(call, 0)
    order = call.attributes.get("perm") or (list(reversed(range(len(x)))) if x is not None else None)
    return tuple(x[i] for i in order) if x is not None and order is not None and len(order) == len(x) else None


def _axes(call: Call, fact: Fact | None) -> Sequence[int] | None:
    return fact.constant if fact is not None else call.attributes.get("axes")


def _unsqueeze(call: Call) -> Dims | None:
    x, axes = _dims(call, 0), _axes(call, call.input(1))
    if x is None or axes is None:
        return None
    rank = len(x) + len(axes)
    new = {a % rank for a in axes}
    rest = iter(x)
    return tuple((1, 1) if i in new else next(rest) for i in range(rank)) if len(new) == len(axes) else None


def _squeeze(call: Call) -> Dims | None:
    x, axes = _dims(call, 0), _axes(call, call.input(1))
    if x is None or axes is None or not x:
        return None
    gone = {a % len(x) for a in axes}
    return tuple(dim for i, dim in enumerate(x) if i not in gone)


def _slice(call: Call) -> Dims | None:
    x = _dims(call, 0)
    if x is None:
        return None
    axes: Sequence[int] | None
    if call.version < 10:
        axes = call.attributes.get("axes") or list(range(len(call.attributes["starts"])))
    else:
        starts, given = call.input(1), call.input(3)
        count = len(starts.items) if starts is not None and starts.items is not None else None
        axes = given.constant if given is not None else (list(range(count)) if count is not None else None)
    cut = {a % len(x) for a in axes} if axes is not None and x else set(range(len(x)))
    return tuple((0, dim[1]) if i in cut else dim for i, dim in enumerate(x))


def _matmul(call: Call) -> Dims | None:
    a, b = _dims(call, 0), _dims(call, 1)
    if a is None or b is None or len(a) < 2 or len(b) < 2:
        return None
    batch = broadcast([a[:-2], b[:-2]])
    return (*batch, a[-2], b[-1]) if batch is not None else None


def _reduce(call: Call) -> Dims | None:
    x = _dims(call, 0)
    axes = reduced_axes(call, len(x)) if x is not None else None
    if x is None or axes is None:
        return None
    if call.attributes.get("keepdims", 1):
        return tuple((1, 1) if i in axes else dim for i, dim in enumerate(x))
    return tuple(dim for i, dim in enumerate(x) if i not in axes)


def _nonzero(call: Call) -> Dims | None:
    x = _dims(call, 0)
    return ((max(len(x), 1), max(len(x), 1)), (0, product(x)[1])) if x is not None else None


def _gemm(call: Call) -> Dims | None:
    a, b = _dims(call, 0), _dims(call, 1)
    if a is None or b is None or len(a) != 2 or len(b) != 2:
        return None
    return a[1 if call.attributes.get("transA", 0) else 0], b[0 if call.attributes.get("transB", 0) else 1]


def _flatten(call: Call) -> Dims | None:
    x = _dims(call, 0)
    axis = call.attributes.get("axis", 1)
    if x is None or not -len(x) <= axis <= len(x):
        return None
    axis = axis + len(x) if axis < 0 else axis
    return product(x[:axis]), product(x[axis:])


def _split(call: Call) -> Dims | None:
    x = _dims(call, 0)
    axis = call.attributes.get("axis", 0)
    return tuple((0, d[1]) if i == axis % len(x) else d for i, d in enumerate(x)) if x else None


def _tile(call: Call) -> Dims | None:
    x, repeats = _dims(call, 0), call.input(1)
    if x is None or repeats is None or repeats.items is None or len(repeats.items) != len(x):
        return None
    times = [as_size(item) for item in repeats.items]
    return tuple((d[0] * t[0], d[1] * t[1]) for d, t in zip(x, times, strict=True))


def _like_indices(call: Call) -> Dims | None:
    return _dims(call, 1)


def _conv(call: Call) -> Dims | None:
    """Bound a convolution by its kernel's shape: channels are the kernel's, places follow from its size."""
    kernel = _dims(call, 1)
    if kernel is None or any(lo != hi for lo, hi in kernel):
        return None
    return _windowed(call, kernel[0], [hi for _, hi in kernel[2:]])


def _pool(call: Call) -> Dims | None:
    x, kernel = _dims(call, 0), call.attributes.get("kernel_shape")
    return _windowed(call, x[1], kernel) if x is not None and len(x) > 2 and kernel else None


def _windowed(call: Call, channels: Interval, kernel: Sequence[int]) -> Dims | None:
    """Formula: (size + pads - dilation · (kernel - 1) - 1) // stride + 1, one more where sizes round up.

    Source: the ONNX operators Conv and MaxPool. None where padding is chosen by rule.
    """
    x, given = _dims(call, 0), call.attributes
    if x is None or len(x) != len(kernel) + 2 or given.get("auto_pad", "NOTSET") != "NOTSET":
        return None
    spatial = len(kernel)
    pads = given.get("pads") or [0] * 2 * spatial
    strides, dilations = (given.get(n) or [1] * spatial for n in ("strides", "dilations"))
    places = []
    for axis, ((lo, hi), size) in enumerate(zip(x[2:], kernel, strict=True)):
        over = pads[axis] + pads[axis + spatial] - dilations[axis] * (size - 1) - 1
        up = 1 if given.get("ceil_mode") else 0
        places.append((max((lo + over) // strides[axis] + 1, 0), max((hi + over) // strides[axis] + 1 + up, 0)))
    return (x[0], channels, *places)


def _topk(call: Call) -> Dims | None:
    """Bound both outputs: along its axis TopK gives K items."""
    x, k = _dims(call, 0), call.input(1)
    if not x or k is None or not k.items:
        return None
    axis = call.attributes.get("axis", -1) % len(x)
    return tuple(as_size(k.items[0]) if i == axis else d for i, d in enumerate(x))


def _arg(call: Call) -> Dims | None:
    x = _dims(call, 0)
    if not x:
        return None
    axis = call.attributes.get("axis", 0) % len(x)
    kept = ((1, 1),) if call.attributes.get("keepdims", 1) else ()
    return (*x[:axis], *kept, *x[axis + 1 :])


def _recurrent(call: Call) -> Dims | None:
    """Bound the first output of LSTM and its like, (steps, directions, batch, hidden), by its recurrent weights."""
    x, weights = _dims(call, 0), _dims(call, 2)
    if x is None or weights is None or len(x) != 3 or len(weights) != 3 or call.attributes.get("layout"):
        return None
    return x[0], weights[0], x[1], weights[2]


def _like_first(call: Call) -> Dims | None:
    return _dims(call, 0)


_RULES: dict[str, ShapeRule] = {
    "Conv": _conv,
    **dict.fromkeys(("MaxPool", "AveragePool"), _pool),
    "ScatterND": _like_first,
    "TopK": _topk,
    **dict.fromkeys(("LSTM", "GRU", "RNN"), _recurrent),
    **dict.fromkeys(("ArgMax", "ArgMin"), _arg),
    "Gemm": _gemm,
    "Flatten": _flatten,
    "Split": _split,
    "Tile": _tile,
    "GatherElements": _like_indices,
    "Reshape": _reshape,
    "Expand": _expand,
    "ConstantOfShape": _of_shape,
    "Range": _range,
    "Gather": _gather,
    "Concat": _concat,
    "Transpose": _transpose,
    "Unsqueeze": _unsqueeze,
    "Squeeze": _squeeze,
    "Slice": _slice,
    "MatMul": _matmul,
    "NonZero": _nonzero,
    **dict.fromkeys(("ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd"), _reduce),
}
