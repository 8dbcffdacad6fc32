"""Bounds that hold only in the elements that ``Where`` selects.

Relative positions are put into buckets by ``Where(d < 8, d, 8 + cast(log(d / 8)))`` (T5, MPNet, DeBERTa): at d = 0 the
logarithm is -inf and its cast undefined, but no such element is selected. A branch of a ``Where`` is therefore bounded
a second time, under what its condition says where it selects that branch. This holds element by element as long as
all between the compared values and the ``Where`` are operators that take one element of each input: broadcasting aligns
their elements in one way, whatever the order.

The values on such a path keep their bounds over all elements as facts; what holds of them where they are selected is
a ``Selection``, for those who ask only whether a wrong element can reach a result (``reasons``).
"""

from collections.abc import Callable, Mapping, Sequence

import onnx_ir as ir

from accel.graph.narrow.facts import INT32, LIMITS, Bounds, Fact

ALIGNED = frozenset(
    {"Abs", "Add", "Cast", "Ceil", "Clip", "Div", "Floor", "Identity", "Log", "Max", "Min", "Mul", "Neg", "Relu"}
    | {"Round", "Sign", "Sub", "Where"}
)
"""Operators on a path that is bounded again. None fails on a wrong element, but for Div of integers."""
_LONGEST = 40
"""Nodes of a path that are followed."""
_MOST_CASES = 8
_NOTHING = Fact(0, None, None)

Selection = Mapping[ir.Value, Fact]
"""What holds of values where a condition selects them."""
Branch = tuple[ir.Node, int]
"""A ``Where`` and the slot of one of its branches."""
Rule = Callable[[ir.Node, Sequence[Fact | None], Fact], Fact]
"""Bounds the output of a node from the facts of its inputs; the last argument is what is known of it already."""


def cases(condition: ir.Value | None, truth: bool, facts: Mapping[ir.Value, Fact]) -> list[dict[ir.Value, Fact]]:
    """Return what holds of the integers that a condition compares where it is ``truth``.

    Returns:
        Cases of which at least one holds in each such element: no case where there is no such element, one that says
        nothing where the condition is not followed.
    """
    node = condition.producer() if condition is not None else None
    if node is None or node.domain:
        return [{}]
    if node.op_type == "Not":
        return cases(node.inputs[0], not truth, facts)
    if node.op_type in ("And", "Or"):
        left, right = (cases(value, truth, facts) for value in node.inputs)
        if truth == (node.op_type == "Or"):
            found = left + right
        else:
            found = [both for a in left for b in right if (both := _both(a, b)) is not None]
        return found if len(found) <= _MOST_CASES else [{}]
    if node.op_type not in ("Less", "LessOrEqual", "Greater", "GreaterOrEqual"):
        return [{}]
    # Each comparison says a < b (apart by 1) or a <= b (by 0), for one order of its inputs.
    a, b = node.inputs if (node.op_type in ("Less", "LessOrEqual")) == truth else reversed(node.inputs)
    apart = int((node.op_type in ("Less", "Greater")) == truth)
    of_a, of_b = facts.get(a), facts.get(b)
    if of_a is None or of_b is None or a is b or not (of_a.fits(INT32) and of_b.fits(INT32)):
        return [{}]
    if of_a.dtype not in LIMITS or of_a.bounds is None or of_b.bounds is None:
        return [{}]
    held = {
        a: _meet(of_a, (of_a.bounds[0], of_b.bounds[1] - apart)),
        b: _meet(of_b, (of_a.bounds[0] + apart, of_b.bounds[1])),
    }
    return [{value: fact for value, fact in held.items() if fact}] if all(held.values()) else []


def _both(a: Mapping[ir.Value, Fact], b: Mapping[ir.Value, Fact]) -> dict[ir.Value, Fact] | None:
    """Return what holds where two cases hold at once; None where they cannot."""
    held = dict(a)
    for value, fact in b.items():
        met = _meet(held[value], fact.bounds) if value in held else fact
        if met is None:
            return None
        held[value] = met
    return held


def _meet(fact: Fact, bounds: Bounds | None) -> Fact | None:
    """Return a fact within further bounds, or None where nothing is left."""
    if fact.bounds is None or bounds is None:
        return Fact(fact.dtype, bounds if fact.bounds is None else fact.bounds, fact.dims)
    lo, hi = max(fact.bounds[0], bounds[0]), min(fact.bounds[1], bounds[1])
    return Fact(fact.dtype, (lo, hi), fact.dims) if lo <= hi else None


def bound(
    value: ir.Value, held: dict[ir.Value, Fact], facts: Mapping[ir.Value, Fact], rule: Rule, *, left: int = _LONGEST
) -> Fact:
    """Bound a value where ``held`` holds, and add to ``held`` what that says of the values it is made of.

    Args:
        left: nodes of a path that may still be followed.
    """
    if value in held:
        return held[value]
    before, node = facts.get(value, _NOTHING), value.producer()
    if node is None or node.domain or node.op_type not in ALIGNED or not left:
        return before
    inputs = [bound(v, held, facts, rule, left=left - 1) if v is not None else None for v in node.inputs]
    after = before
    if any(v is not None and new is not facts.get(v, _NOTHING) for v, new in zip(node.inputs, inputs, strict=True)):
        after = _meet(before, rule(node, inputs, before).bounds) or before
    held[value] = after
    return after


def harmless(value: ir.Value, facts: Mapping[ir.Value, Fact], selections: Mapping[Branch, Sequence[Selection]]) -> bool:
    """Say whether a value fits int32 wherever a ``Where`` selects it, and nothing else comes of its other elements."""
    ends: set[Branch] = set()
    seen, waiting = {value}, [value]
    while waiting:
        passed = waiting.pop()
        if passed.is_graph_output():
            return False
        for node, slot in passed.uses():
            if (node, slot) in selections:
                ends.add((node, slot))
            elif node.op_type not in ALIGNED | {"Shape"} or node.domain or _may_fail(node, facts):
                return False
            elif node.op_type != "Shape" and node.outputs[0] not in seen:
                seen.add(node.outputs[0])
                waiting.append(node.outputs[0])
    return all(value in case and case[value].fits(INT32) for end in ends for case in selections[end])


def _may_fail(node: ir.Node, facts: Mapping[ir.Value, Fact]) -> bool:
    """Say whether a wrong element can end a run: a division of integers by zero does."""
    return node.op_type == "Div" and (node.outputs[0] not in facts or facts[node.outputs[0]].dtype in LIMITS)
