"""Put the plan into words: one ``ValueReport`` for each 64-bit value, and the list of values nobody proved."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Literal

import onnx_ir as ir

from accel.graph.narrow.analysis import Analysis
from accel.graph.narrow.classes import Member
from accel.graph.narrow.facts import INT32, INT64, LIMITS, Fact
from accel.graph.narrow.inference import real_inputs
from accel.graph.narrow.plan import Plan, Planner
from accel.graph.narrow.report import Cause, Unproved, ValueReport
from accel.graph.narrow.selection import harmless

Role = Literal["input", "output", "constant", "inner"]

FLOAT_EXACT = (-(2**24), 2**24)


def describe(planner: Planner, plan: Plan, analysis: Analysis) -> tuple[ValueReport, ...]:
    """Report every value of the type that the planner narrows: inputs, outputs, then the rest in the graph's order."""
    reports = []
    for value in dict.fromkeys([*planner.inputs, *planner.outputs, *planner.facts]):
        fact = planner.facts.get(value)
        if fact is not None and fact.dtype == planner.source:
            found = _value(value, fact, planner, plan)
            reports.append(_unsigned(found, fact) if planner.source == ir.DataType.UINT64 else found)
    for inner in analysis.inner:
        if inner.fact.dtype == planner.source:
            reason, dtype = "inside a sub-graph, whose values keep their types", planner.source.name.lower()
            reports.append(ValueReport(inner.path, "inner", dtype, "kept", "sub-graph", reason, _interval(inner.fact)))
    return tuple(reports)


def _interval(fact: Fact) -> tuple[int, int] | None:
    return (int(fact.bounds[0]), int(fact.bounds[1])) if fact.bounds is not None and fact.dtype in LIMITS else None


def _value(value: ir.Value, fact: Fact, planner: Planner, plan: Plan) -> ValueReport:
    role: Role = "constant" if value in planner.constants else "inner"
    if value in planner.inputs or value in planner.outputs:
        role = "input" if value in planner.inputs else "output"
    decision: Literal["narrowed", "kept"] = "kept"
    cause, reason = _kept(value, planner, plan)
    low, high = _interval(fact) or LIMITS[fact.dtype]
    uses = planner.classes.uses(value)
    if value in plan.values or value in plan.inputs or value in plan.outputs:
        decision, cause = "narrowed", "proved"
        reason = f"every value lies in [{low}, {high}]"
        if value in plan.outputs:
            reason += "; a Cast narrows it at the output"
    elif role == "constant" and uses:
        copied = [use for use in uses if use in plan.copies]
        if len(copied) == len(uses):
            decision, cause, reason = "narrowed", "proved", f"every value lies in [{low}, {high}]"
            if any(plan.copies[use] for use in copied):
                cause = "marker"
                reason = "the INT64 limit as start or end of Slice means 'to the end': so does the INT32 limit"
        else:
            left = next(use for use in uses if use not in plan.copies)
            cause, reason = _member_reason(left, value, planner)
            if cause == "level" and planner.copy(left) is None:
                cause, reason = "unproved", planner.unfit(value) or reason
            if copied:
                reason += f"; {len(copied)} of its {len(uses)} uses have an int32 copy"
    dtype = planner.source.name.lower()
    return ValueReport(value.name, role, dtype, decision, cause, reason, _interval(fact))


def _kept(value: ir.Value, planner: Planner, plan: Plan) -> tuple[Cause, str]:
    if value in plan.reasons:
        return plan.reasons[value]
    if planner.level == "keep" or value in planner.classes.parents:
        return _member_reason(value, value, planner)
    if value in planner.fixed:
        return "pinned", "an initialiser that a client may replace"
    return "level", "no node uses it"


def _member_reason(member: Member, value: ir.Value, planner: Planner) -> tuple[Cause, str]:
    if planner.level == "keep":
        return "level", "level keep changes nothing"
    pin = planner.classes.pins.get(planner.classes.root(member))
    why = planner.unfit(value)
    if why is not None and (pin is None or pin[0] == "unproved"):
        return "unproved", why
    return pin if pin is not None else ("level", "level io changes inputs and outputs only")


def _unsigned(found: ValueReport, fact: Fact) -> ValueReport:
    """Add to the report on a UINT64 value what stays of the type once TensorRT has it."""
    if found.decision == "narrowed":
        return found
    low, high = _interval(fact) or LIMITS[ir.DataType.UINT64]
    if fact.fits(INT32):
        reason = f"{found.reason}; TensorRT has no UINT64, but every value lies in [{low}, {high}] and fits INT32"
        return replace(found, reason=reason)
    if fact.fits(INT64):
        reason = f"TensorRT has no UINT64; every value lies in [{low}, {high}], which fits INT64 but not INT32"
        return replace(found, cause="level" if found.cause == "level" else "type", reason=reason)
    reason = f"TensorRT has no UINT64, and the interval [{low}, {high}] fits no type that it has"
    return replace(found, cause="level" if found.cause == "level" else "unproved", reason=reason)


def unproved(model: ir.Model, analysis: Analysis) -> Iterator[Unproved]:
    """Yield each integer value that is not proved to fit int32."""
    inputs = set(real_inputs(model))
    facts = {**analysis.facts, **{inner.value: inner.fact for inner in analysis.inner}}
    rows = []
    for value, fact in analysis.facts.items():
        maker = value.producer()
        op = "input" if value in inputs else maker.op_type if maker is not None else "constant"
        rows.append((value, str(value.name), op, fact))
    rows += [(inner.value, inner.path, inner.op, inner.fact) for inner in analysis.inner]
    for value, name, op, fact in rows:
        if not name or fact.dtype not in LIMITS or fact.fits(INT32) or fact.bounds is None:
            continue
        if _is_marker(value, facts) or (op != "input" and harmless(value, facts, analysis.selections)):
            continue
        lo, hi = int(fact.bounds[0]), int(fact.bounds[1])
        reason = f"{name!r} ({op}) may lie anywhere in [{lo}, {hi}], which does not fit int32"
        if op == "input":
            reason = f"input {name!r} has the range [{lo}, {hi}], which does not fit int32"
            if (lo, hi) == LIMITS[fact.dtype]:
                reason = f"input {name!r} has no declared range, and no Gather that it indexes directly bounds it"
        yield Unproved(name, op, lo, hi, reason)
    for path, op, lo, hi in analysis.watched:
        if lo < FLOAT_EXACT[0] or hi > FLOAT_EXACT[1]:
            reason = f"{path!r}: {op} is computed in float, which is exact only up to 2**24: [{lo}, {hi}]"
            yield Unproved(path, op, lo, hi, reason, through_float=True)


_MOVES = frozenset({"Identity", "Cast", "Unsqueeze", "Squeeze", "Reshape", "Flatten", "Concat"})


def _is_marker(value: ir.Value, facts: Mapping[ir.Value, Fact]) -> bool:
    """Say whether only starts and ends of Slice come of a value, and what is beyond int32 of it is constant.

    An end beyond every axis means "to the end", and means it still where a runtime cuts the constant to int32. Between
    the two the value may be moved, never computed with.
    """
    fact = facts.get(value)
    if fact is None or fact.dtype != ir.DataType.INT64 or fact.items is None or value.is_graph_output():
        return False
    if any(lo != hi and not (INT32[0] <= lo and hi <= INT32[1]) for lo, hi in fact.items):
        return False
    return all(
        (use.node.op_type == "Slice" and use.idx in (1, 2))
        or (use.node.op_type in _MOVES and _is_marker(use.node.outputs[0], facts))
        for use in value.uses()
    )
