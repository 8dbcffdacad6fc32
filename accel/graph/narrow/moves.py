"""Operators whose result is made of elements of their inputs: moved, repeated, selected, joined.

The bounds of the result are those of the inputs the elements may come from. Short tensors of rank 0 and 1 keep their
bounds element by element, so that ``Gather(Shape(x), 1)`` is the size of that axis and no other.
"""

import itertools
from collections.abc import Sequence

from onnx_ir import DataType

from accel.graph.narrow.facts import LIMITS, MAX_ITEMS, Bounds, Fact, hull, known
from accel.graph.narrow.rules import RULES, Call, rule

__all__ = ["RULES"]

ZERO: Bounds = (0, 0)


def _moved(call: Call, slots: Sequence[int], *extra: Bounds) -> list[Fact]:
    """Bound an output that is made of elements of these inputs, and of others within ``extra``."""
    out = call.outputs[0]
    return [known(out.dtype, hull([*map(call.bounds, slots), *extra]), out.dims)]


@rule(
    "Identity", "Reshape", "Squeeze", "Unsqueeze", "Flatten", "Transpose", "Expand", "Tile", "GatherElements",
    "GatherND", "Compress", "DepthToSpace", "SpaceToDepth", "ReverseSequence",
)  # fmt: skip
def _rearrange(call: Call) -> list[Fact]:
    x, out = call.input(0), call.outputs[0]
    same = call.op in ("Identity", "Reshape", "Squeeze", "Unsqueeze", "Flatten", "Transpose")
    if same and x is not None and x.items is not None:
        return [known(out.dtype, x.bounds, out.dims, x.items)]
    return _moved(call, [0])


@rule("Concat")
def _concat(call: Call) -> list[Fact]:
    out, parts = call.outputs[0], call.present()
    if all(p.items is not None for p in parts) and sum(len(p.items or ()) for p in parts) <= MAX_ITEMS:
        items = list(itertools.chain.from_iterable(p.items or () for p in parts))
        return [known(out.dtype, hull(items), out.dims, items)]
    return _moved(call, range(len(call.inputs)))


@rule("Gather")
def _gather(call: Call) -> list[Fact]:
    x, index, out = call.input(0), call.input(1), call.outputs[0]
    if x is None or index is None:
        return []
    picks = index.constant
    if x.items is None or picks is None or len(x.dims or ()) != 1:
        return _moved(call, [0])
    size = len(x.items)
    if any(not -size <= p < size for p in picks):
        return []
    items = [x.items[p] for p in picks]
    return [known(out.dtype, hull(items) or x.bounds, out.dims, items)]


@rule("Slice")
def _slice(call: Call) -> list[Fact]:
    x, out = call.input(0), call.outputs[0]
    if x is None or x.items is None or call.version < 10 or len(x.dims or ()) != 1:
        return _moved(call, [0])
    starts, ends = call.input(1), call.input(2)
    steps = call.input(4)
    start, end = (f.constant if f is not None else None for f in (starts, ends))
    step: tuple[int, ...] | None = (1,)
    if steps is not None:
        step = steps.constant
    if not start or not end or not step or step[0] <= 0:
        return _moved(call, [0])
    items = x.items[slice(start[0], end[0], step[0])]
    return [known(out.dtype, hull(items) or x.bounds, out.dims, items)]


def _length(fact: Fact | None) -> int | None:
    """Return the exact length of a short tensor of rank 0 or 1."""
    if fact is None or fact.dims is None or len(fact.dims) > 1:
        return None
    lo, hi = fact.dims[0] if fact.dims else (1, 1)
    return lo if lo == hi <= MAX_ITEMS else None


@rule("Where")
def _where(call: Call) -> list[Fact]:
    condition, x, y = (call.input(i) for i in range(3))
    if condition is not None and condition.fits((1, 1)):
        return _moved(call, [1])
    if condition is not None and condition.fits((0, 0)):
        return _moved(call, [2])
    out = call.outputs[0]
    lengths = [n for n in (_length(f) for f in (condition, x, y)) if n is not None]
    size = max(lengths, default=0)
    if x is not None and y is not None and x.items and y.items and sum(n in (1, size) for n in lengths) == 3:
        left, right = (items * size if len(items) == 1 else items for items in (x.items, y.items))
        return [known(out.dtype, None, out.dims, [hull(pair) for pair in zip(left, right, strict=True)])]
    return _moved(call, [1, 2])


@rule("Pad")
def _pad(call: Call) -> list[Fact]:
    if call.attributes.get("mode", "constant") != "constant":
        return _moved(call, [0])
    if call.version < 11:
        value = call.attributes.get("value", 0.0)
        return _moved(call, [0], (value, value))
    return _moved(call, [0, 2]) if call.input(2) is not None else _moved(call, [0], ZERO)


@rule("ConstantOfShape")
def _filled(call: Call) -> list[Fact]:
    out, value = call.outputs[0], call.attributes.get("value")
    length = _length(out)
    if value is None:
        return [known(out.dtype, ZERO, out.dims, [ZERO] * length if length is not None else None)]
    if out.dtype not in LIMITS or out.dtype in (DataType.INT4, DataType.UINT4):
        return []
    number = int(value.numpy().reshape(-1)[0])
    same = (number, number)
    return [known(out.dtype, same, out.dims, [same] * length if length is not None else None)]


RULES |= {
    "Split": lambda call: [known(o.dtype, call.bounds(0), o.dims) for o in call.outputs],
    "OneHot": lambda call: _moved(call, [2]),
    "EyeLike": lambda call: [known(call.outputs[0].dtype, (0, 1), call.outputs[0].dims)],
    **dict.fromkeys(("Trilu", "CenterCropPad"), lambda call: _moved(call, [0], ZERO)),
    **dict.fromkeys(
        ("ScatterElements", "ScatterND", "Scatter"),
        lambda call: _moved(call, [0, 2]) if call.attributes.get("reduction", "none") in ("none", "max", "min") else [],
    ),
}
