"""Bounds of the sizes of a node's outputs.

ONNX's own shape inference gives ranks, fixed sizes and axes that carry an input's name. These rules add what it drops:
bounds of sizes that were computed inside the graph (``Reshape`` to a shape made of ``Shape`` pieces, ``Range`` up to a
size). Operators without a rule keep what shape inference found.
"""

from collections.abc import Callable, Sequence
from functools import reduce

from accel.graph.narrow.facts import ANY_SIZE, LIMITS, Dims, Fact, Interval, product
from accel.graph.narrow.rules import Call, reduced_axes

ShapeRule = Callable[..., Dims | None]

ELEMENTWISE = frozenset([
    "Abs", "Add", "And", "BatchNormalization", "BitShift", "BitwiseAnd", "BitwiseNot", "BitwiseOr", "BitwiseXor",
    "Cast", "CastLike", "Ceil", "Clip", "Cos", "CumSum", "Div", "Dropout", "Elu", "Equal", "Erf", "Exp", "Floor",
    "Gelu", "Greater", "GreaterOrEqual", "GroupNormalization", "HardSigmoid", "HardSwish", "Identity",
    "InstanceNormalization", "IsInf", "IsNaN", "LayerNormalization", "LeakyRelu", "Less", "LessOrEqual", "Log",
    "LogSoftmax", "LRN", "Max", "Min", "Mish", "Mod", "Mul", "Neg", "Not", "Or", "Pow", "PRelu", "Reciprocal", "Relu",
    "Round", "Selu", "Sigmoid", "Sign", "Sin", "Softmax", "Softplus", "Softsign", "Sqrt", "Sub", "Sum", "Tanh",
    "ThresholdedRelu", "Trilu", "Where", "Xor",
])  # fmt: skip
"""Operators whose first output has the broadcast shape of their tensor inputs, or the shape of the first."""
_FIRST_ONLY = frozenset([
    "BatchNormalization", "CastLike", "Clip", "CumSum", "Dropout", "GroupNormalization", "InstanceNormalization",
    "LayerNormalization", "PRelu", "Trilu",
])  # fmt: skip


_RULES: dict[str, tuple[ShapeRule, Sequence[int]]] = {}


def _rule(*ops: str, needs: Sequence[int] = (0,)) -> Callable[[ShapeRule], ShapeRule]:
    """Register a rule for operators: it takes the call and the sizes of the inputs that it needs, which are known."""

    def register(function: ShapeRule) -> ShapeRule:
        _RULES.update(dict.fromkeys(ops, (function, needs)))
        return function

    return register


def sizes(call: Call, inferred: Dims | None) -> Dims | None:
    """Bound the axes of the first output (of Split and TopK: of any), cut with what shape inference found."""
    own = None
    if call.op in _FIRST_ONLY:
        own = call.dims(0)
    elif call.op in ELEMENTWISE:
        own = broadcast([f.dims for f in call.present()])
    elif call.op in _RULES:
        rule, needs = _RULES[call.op]
        given = [call.dims(slot) for slot in needs]
        own = rule(call, *given) if all(dims is not None for dims in given) else None
    return own if inferred is None else cut(own, inferred)


def cut(own: Dims | None, inferred: Dims) -> Dims:
    """Return what both bounds of a shape say; of two ranks that differ, the inferred one."""
    if own is None or len(own) != len(inferred):
        return inferred
    return tuple(_cut(a, b) for a, b in zip(own, inferred, strict=True))


def _cut(a: Interval, b: Interval) -> Interval:
    lo, hi = max(a[0], b[0]), min(a[1], b[1])
    return (lo, hi) if lo <= hi else b


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


@_rule("Reshape", needs=())
def _reshape(call: Call) -> Dims | None:
    target, source = call.input(1), call.dims(0)
    if target is None or target.items is None:
        return None
    result: list[Interval | None] = []
    for axis, (lo, hi) in enumerate(target.items):
        if lo <= 0 <= hi and not call.attributes.get("allowzero", 0):
            # A 0 copies the size of the same axis of the input.
            if lo < 0 or source is None or axis >= len(source):
                return None
            result.append((min(int(lo), source[axis][0]), max(int(hi), source[axis][1])) if hi else source[axis])
        else:
            result.append(None if lo < 0 else (int(lo), int(hi)))
    free = [i for i, dim in enumerate(result) if dim is None]
    whole = product(source) if source is not None else ANY_SIZE
    rest = product(dim for dim in result if dim is not None)
    for axis in free:
        # Beside an axis of size 0 a -1 has no meaning, so that the other axes have at least one element together.
        exact = len(free) == 1 and target.items[axis] == (-1, -1)
        result[axis] = (whole[0] // max(rest[1], 1), whole[1] // max(rest[0], 1)) if exact else ANY_SIZE
    return tuple(dim if dim is not None else ANY_SIZE for dim in result)


@_rule("Expand")
def _expand(call: Call, source: Dims) -> Dims | None:
    target = _listed(call.input(1))
    return broadcast([source, target]) if target is not None else None


def _listed(shape: Fact | None) -> Dims | None:
    """Bound the sizes that a tensor lists."""
    return tuple(as_size(item) for item in shape.items) if shape is not None and shape.items is not None else None


_RULES |= {
    "ConstantOfShape": (lambda call: _listed(call.input(0)), ()),
    "NonZero": (lambda call, x: ((max(len(x), 1), max(len(x), 1)), (0, product(x)[1])), (0,)),
    "GatherElements": (lambda call, index: index, (1,)),
    "GridSample": (lambda call, x, grid: (*x[:2], *grid[1:-1]), (0, 1)),
    "ScatterND": (lambda call, x: x, (0,)),
}


@_rule("Range", needs=())
def _range(call: Call) -> Dims | None:
    start, limit, delta = (call.input(i) for i in range(3))
    if start is None or limit is None or delta is None or start.dtype not in LIMITS:
        return None
    if start.bounds is None or limit.bounds is None or delta.bounds is None or delta.bounds[0] <= 0:
        return (ANY_SIZE,)
    least, most = int(limit.bounds[0] - start.bounds[1]), int(limit.bounds[1] - start.bounds[0])
    slow, fast = int(delta.bounds[0]), int(delta.bounds[1])
    return ((max(-(-least // fast), 0), max(-(-most // slow), 0)),)


@_rule("Gather", needs=(0, 1))
def _gather(call: Call, x: Dims, index: Dims) -> Dims | None:
    axis = call.attributes.get("axis", 0) % max(len(x), 1)
    return (*x[:axis], *index, *x[axis + 1 :]) if x else None


@_rule("GatherND", needs=(0, 1))
def _gather_nd(call: Call, x: Dims, index: Dims) -> Dims | None:
    """Bound what is gathered: an entry of the index's last axis names so many axes of the data after the batch's."""
    least, most = index[-1] if index else (0, 1)
    return (*index[:-1], *x[call.attributes.get("batch_dims", 0) + least :]) if least == most else None


@_rule("DFT")
def _dft(call: Call, x: Dims) -> Dims | None:
    """Bound a Fourier transform of the input's own length: one-sided, it has half of it and one."""
    if call.input(1) is not None or (call.attributes.get("onesided", 0) and call.attributes.get("inverse", 0)):
        return None
    given = call.input(2)
    axis = given.constant if given is not None else [call.attributes.get("axis", 1 if call.version < 20 else -2)]
    if not axis or not x:
        return None
    if not call.attributes.get("onesided", 0):
        return (*x[:-1], (2, 2))
    half = axis[0] % len(x)
    return (*((lo // 2 + 1, hi // 2 + 1) if i == half else (lo, hi) for i, (lo, hi) in enumerate(x[:-1])), (2, 2))


@_rule("Concat", needs=())
def _concat(call: Call) -> Dims | None:
    certain = [f.dims for f in call.present() if f.dims]
    if len({len(s) for s in certain}) != 1:
        return None
    axis = call.attributes.get("axis", 0) % len(certain[0])
    # An input of unknown size may be of any.
    most = sum(s[axis][1] for s in certain) if len(certain) == len(call.inputs) else ANY_SIZE[1]
    total = (sum(s[axis][0] for s in certain), most)
    # Along every other axis all inputs have one size, so each bounds it for all.
    same = (reduce(_cut, sizes) for sizes in zip(*certain, strict=True))
    return tuple(total if i == axis else dim for i, dim in enumerate(same))


@_rule("Transpose")
def _transpose(call: Call, x: Dims) -> Dims | None:
    order = call.attributes.get("perm") or list(reversed(range(len(x))))
    return tuple(x[i] for i in order) if len(order) == len(x) else None


def _axes(call: Call) -> Sequence[int] | None:
    fact = call.input(1)
    return fact.constant if fact is not None else call.attributes.get("axes")


@_rule("Unsqueeze")
def _unsqueeze(call: Call, x: Dims) -> Dims | None:
    axes = _axes(call)
    if axes is None:
        return None
    rank = len(x) + len(axes)
    new = {a % rank for a in axes}
    rest = iter(x)
    return tuple((1, 1) if i in new else next(rest) for i in range(rank)) if len(new) == len(axes) else None


@_rule("Squeeze")
def _squeeze(call: Call, x: Dims) -> Dims | None:
    axes = _axes(call)
    if axes is None or not x:
        return None
    gone = {a % len(x) for a in axes}
    return tuple(dim for i, dim in enumerate(x) if i not in gone)


@_rule("Slice")
def _slice(call: Call, x: Dims) -> Dims | None:
    axes: Sequence[int] | None
    starts: Sequence[int] | None
    ends: Sequence[int] | None
    steps: Sequence[int] | None
    if call.version < 10:
        starts, ends = call.attributes["starts"], call.attributes["ends"]
        axes, steps = call.attributes.get("axes") or list(range(len(starts))), [1] * len(starts)
    else:
        first, given = call.input(1), call.input(3)
        count = len(first.items) if first is not None and first.items is not None else None
        axes = given.constant if given is not None else (list(range(count)) if count is not None else None)
        starts, ends, steps = (None if f is None else f.constant for f in (first, call.input(2), call.input(4)))
        steps = steps if call.input(4) is not None else [1] * len(axes or ())
    if axes is None or not x:
        return tuple((0, high) for _, high in x)
    dims = list(x)
    for i, axis in enumerate(axes):
        low, high = x[axis % len(x)]
        fewest, most = 0, high
        if starts is not None and ends is not None and steps is not None:
            cut = slice(starts[i], ends[i], steps[i])
            if low == high or (cut.start >= 0 and cut.step > 0):  # then a longer axis never gives fewer items
                fewest, most = (len(range(*cut.indices(size))) for size in (low, high))
        dims[axis % len(x)] = fewest, most
    return tuple(dims)


@_rule("MatMul", needs=(0, 1))
def _matmul(call: Call, a: Dims, b: Dims) -> Dims | None:
    batch = broadcast([a[:-2], b[:-2]]) if len(a) >= 2 and len(b) >= 2 else None
    return (*batch, a[-2], b[-1]) if batch is not None else None


_REDUCTIONS = ("L1", "L2", "LogSum", "LogSumExp", "Max", "Mean", "Min", "Prod", "Sum", "SumSquare")


@_rule(*(f"Reduce{what}" for what in _REDUCTIONS))
def _reduce(call: Call, x: Dims) -> Dims | None:
    axes = reduced_axes(call, len(x))
    if axes is None:
        return None
    if call.attributes.get("keepdims", 1):
        return tuple((1, 1) if i in axes else dim for i, dim in enumerate(x))
    return tuple(dim for i, dim in enumerate(x) if i not in axes)


@_rule("Gemm", needs=(0, 1))
def _gemm(call: Call, a: Dims, b: Dims) -> Dims | None:
    if len(a) != 2 or len(b) != 2:
        return None
    return a[1 if call.attributes.get("transA", 0) else 0], b[0 if call.attributes.get("transB", 0) else 1]


@_rule("Flatten")
def _flatten(call: Call, x: Dims) -> Dims | None:
    axis = call.attributes.get("axis", 1)
    if not -len(x) <= axis <= len(x):
        return None
    axis = axis + len(x) if axis < 0 else axis
    return product(x[:axis]), product(x[axis:])


@_rule("Split")
def _split(call: Call, x: Dims) -> Dims | None:
    axis = call.attributes.get("axis", 0)
    return tuple((0, d[1]) if i == axis % len(x) else d for i, d in enumerate(x)) if x else None


@_rule("Tile")
def _tile(call: Call, x: Dims) -> Dims | None:
    times = _listed(call.input(1))
    if times is None or len(times) != len(x):
        return None
    return tuple((d[0] * t[0], d[1] * t[1]) for d, t in zip(x, times, strict=True))


@_rule("Conv", needs=(0, 1))
def _conv(call: Call, x: Dims, kernel: Dims) -> Dims | None:
    """Bound a convolution by its kernel's shape: channels are the kernel's, places follow from its size."""
    if any(lo != hi for lo, hi in kernel):
        return None
    return _windowed(call, x, kernel[0], [hi for _, hi in kernel[2:]])


@_rule("MaxPool", "AveragePool")
def _pool(call: Call, x: Dims) -> Dims | None:
    kernel = call.attributes.get("kernel_shape")
    return _windowed(call, x, x[1], kernel) if len(x) > 2 and kernel else None


def _windowed(call: Call, x: Dims, channels: Interval, kernel: Sequence[int]) -> Dims | None:
    """Formula: (size + pads - dilation · (kernel - 1) - 1) // stride + 1, one more where sizes round up.

    Padded by the rule SAME, it is ceil(size / stride). Source: the ONNX operators Conv and MaxPool.
    """
    given, spatial = call.attributes, len(kernel)
    if len(x) != spatial + 2:
        return None
    strides, dilations = (given.get(n) or [1] * spatial for n in ("strides", "dilations"))
    if given.get("auto_pad", "NOTSET").startswith("SAME"):
        return (x[0], channels, *((-(-lo // s), -(-hi // s)) for (lo, hi), s in zip(x[2:], strides, strict=True)))
    pads = given.get("pads") or [0] * 2 * spatial
    places = []
    for axis, ((lo, hi), size) in enumerate(zip(x[2:], kernel, strict=True)):
        over = pads[axis] + pads[axis + spatial] - dilations[axis] * (size - 1) - 1
        up = 1 if given.get("ceil_mode") else 0
        places.append((max((lo + over) // strides[axis] + 1, 0), max((hi + over) // strides[axis] + 1 + up, 0)))
    return (x[0], channels, *places)


@_rule("GlobalAveragePool", "GlobalMaxPool")
def _global_pool(call: Call, x: Dims) -> Dims | None:
    return (*x[:2], *[(1, 1)] * (len(x) - 2))


@_rule("Pad")
def _pad(call: Call, x: Dims) -> Dims | None:
    given, chosen = call.input(1), call.input(3)
    pads = given.constant if given is not None else call.attributes.get("pads")
    axes = range(len(x)) if chosen is None else chosen.constant
    if pads is None or axes is None or len(pads) != 2 * len(axes):
        return None
    more = {axis % len(x): pads[i] + pads[i + len(axes)] for i, axis in enumerate(axes)}
    return tuple((max(lo + more.get(i, 0), 0), max(hi + more.get(i, 0), 0)) for i, (lo, hi) in enumerate(x))


@_rule("TopK")
def _topk(call: Call, x: Dims) -> Dims | None:
    """Bound both outputs: along its axis TopK gives K items."""
    k = _listed(call.input(1))
    if not x or not k:
        return None
    axis = call.attributes.get("axis", -1) % len(x)
    return tuple(k[0] if i == axis else d for i, d in enumerate(x))


@_rule("ArgMax", "ArgMin")
def _arg(call: Call, x: Dims) -> Dims | None:
    if not x:
        return None
    axis = call.attributes.get("axis", 0) % len(x)
    kept = ((1, 1),) if call.attributes.get("keepdims", 1) else ()
    return (*x[:axis], *kept, *x[axis + 1 :])


@_rule("LSTM", "GRU", "RNN", needs=(0, 2))
def _recurrent(call: Call, x: Dims, weights: Dims) -> Dims | None:
    """Bound the first output of LSTM and its like, (steps, directions, batch, hidden), by its recurrent weights."""
    if len(x) != 3 or len(weights) != 3 or call.attributes.get("layout"):
        return None
    return x[0], weights[0], x[1], weights[2]
