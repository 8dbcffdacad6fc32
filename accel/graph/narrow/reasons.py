"""Put the plan into words: one ``ValueReport`` for each 64-bit value, and the list of values nobody proved."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Literal

from onnx import ModelProto, TensorProto

from accel.graph.narrow.analysis import Analysis
from accel.graph.narrow.classes import captured
from accel.graph.narrow.facts import INT32, INT64, LIMITS, Fact
from accel.graph.narrow.inference import node_graphs, real_inputs
from accel.graph.narrow.plan import Plan, Planner
from accel.graph.narrow.report import Cause, ValueReport
from accel.graph.narrow.rewrite import type_name

Role = Literal["input", "output", "constant", "inner"]

OPENVINO_THROUGH_FLOAT = frozenset(
    [
        "Div",
        "Mod",
        "Pow",
        "ReduceSum",
        "ReduceMax",
        "ReduceMin",
        "ReduceMean",
        "ReduceProd",
        "ReduceL1",
        "ReduceL2",
        "ReduceSumSquare",
    ]
)
"""Operators that OpenVINO's CPU plugin computes in float even for integers: exact up to 2**24 only.

Source: measured by benchmarks/openvino_int64.py; tests/graph/test_openvino_int64.py fails when another one joins them.
"""
FLOAT_EXACT = (-(2**24), 2**24)


def describe(planner: Planner, plan: Plan, analysis: Analysis) -> tuple[ValueReport, ...]:
    """Report every value of the type that the planner narrows: inputs, outputs, then the rest in the graph's order."""
    order = dict.fromkeys([*planner.inputs, *planner.outputs, *planner.facts])
    uses = _constant_uses(planner)
    reports = []
    for name in order:
        fact = planner.facts.get(name)
        if fact is None or not name:
            continue
        if fact.dtype == planner.source:
            found = _value(name, fact, planner, plan, uses)
            reports.append(_unsigned(found, fact) if planner.source == TensorProto.UINT64 else found)
    for value in analysis.inner:
        path, fact = value.path, value.fact
        if fact.dtype == planner.source:
            reason, dtype = "inside a sub-graph, whose values keep their types", type_name(fact.dtype)
            reports.append(ValueReport(path, "inner", dtype, "kept", "sub-graph", reason, _interval(fact)))
    return tuple(reports)


def _role(name: str, planner: Planner) -> Role:
    if name in planner.inputs:
        return "input"
    if name in planner.outputs:
        return "output"
    return "constant" if name in planner.constants else "inner"


def _interval(fact: Fact) -> tuple[int, int] | None:
    return (int(fact.bounds[0]), int(fact.bounds[1])) if fact.bounds is not None and fact.dtype in LIMITS else None


def _constant_uses(planner: Planner) -> dict[str, list[tuple[int, int, int]]]:
    found: dict[str, list[tuple[int, int, int]]] = {}
    for (node, slot), member in planner.classes.constant_uses.items():
        found.setdefault(planner.classes.names[member], []).append((node, slot, member))
    return found


def _value(
    name: str, fact: Fact, planner: Planner, plan: Plan, uses: Mapping[str, list[tuple[int, int, int]]]
) -> ValueReport:
    role = _role(name, planner)
    decision: Literal["narrowed", "kept"] = "kept"
    cause, reason = _kept(name, planner, plan)
    low, high = _interval(fact) or LIMITS[fact.dtype]
    if name in plan.values or name in plan.inputs or name in plan.outputs:
        decision, cause = "narrowed", "proved"
        reason = f"every value lies in [{low}, {high}]"
        if name in plan.outputs:
            reason += "; a Cast narrows it at the output"
    elif role == "constant" and uses.get(name):
        places = uses[name]
        copied = [p for p in places if p[:2] in plan.copies]
        if len(copied) == len(places):
            decision, cause, reason = "narrowed", "proved", f"every value lies in [{low}, {high}]"
            if any(plan.copies[p[:2]] for p in copied):
                cause = "marker"
                reason = "the INT64 limit as start or end of Slice means 'to the end': so does the INT32 limit"
        else:
            node, slot, member = next(p for p in places if p[:2] not in plan.copies)
            cause, reason = _member_reason(member, planner, name)
            if cause == "level" and planner.copy(node, slot, name) is None:
                cause, reason = "unproved", planner.unfit(name) or reason
            if copied:
                reason += f"; {len(copied)} of its {len(places)} uses have an int32 copy"
    return ValueReport(name, role, type_name(fact.dtype), decision, cause, reason, _interval(fact))


def _kept(name: str, planner: Planner, plan: Plan) -> tuple[Cause, str]:
    if planner.level == "keep":
        return "level", "level keep changes nothing"
    if name in plan.reasons:
        return plan.reasons[name]
    member = planner.classes.values.get(name)
    if member is not None:
        return _member_reason(member, planner, name)
    if name in planner.fixed:
        return "pinned", "an initialiser that a client may replace"
    return "level", "no node uses it"


def _member_reason(member: int, planner: Planner, name: str) -> tuple[Cause, str]:
    if planner.level == "keep":
        return "level", "level keep changes nothing"
    pin = planner.classes.pins.get(planner.classes.root(member))
    why = planner.unfit(name)
    if why is not None and (pin is None or pin[0] == "unproved"):
        return "unproved", why
    return pin if pin is not None else ("level", "level io changes inputs and outputs only")


def _unsigned(found: ValueReport, fact: Fact) -> ValueReport:
    """Add to the report on a UINT64 value what stays of the type once TensorRT has it."""
    if found.decision == "narrowed":
        return found
    low, high = _interval(fact) or LIMITS[TensorProto.UINT64]
    if fact.fits(INT32):
        reason = f"{found.reason}; TensorRT has no UINT64, but every value lies in [{low}, {high}] and fits INT32"
        return replace(found, reason=reason)
    if fact.fits(INT64):
        reason = f"TensorRT has no UINT64; every value lies in [{low}, {high}], which fits INT64 but not INT32"
        return replace(found, cause="level" if found.cause == "level" else "type", reason=reason)
    reason = f"TensorRT has no UINT64, and the interval [{low}, {high}] fits no type that it has"
    return replace(found, cause="level" if found.cause == "level" else "unproved", reason=reason)


def unproved(model: ModelProto, analysis: Analysis) -> Iterator[tuple[str, str, int, int, str]]:
    """Yield name, operator, interval and reason of each integer value that is not proved to fit int32."""
    markers = _markers_only(model, analysis)
    inputs = {v.name for v in real_inputs(model)}
    rows = [
        (name, "input" if name in inputs else analysis.makers.get(name, "constant"), fact)
        for name, fact in analysis.facts.items()
    ]
    rows += [(v.path, v.op, v.fact) for v in analysis.inner]
    for name, op, fact in rows:
        if not name or fact.dtype not in LIMITS or fact.fits(INT32) or name in markers or fact.bounds is None:
            continue
        lo, hi = int(fact.bounds[0]), int(fact.bounds[1])
        if op == "input":
            reason = f"input {name!r} has no declared range, and no Gather that it indexes directly bounds it"
        else:
            reason = f"{name!r} ({op}) may lie anywhere in [{lo}, {hi}], which does not fit int32"
        yield name, op, lo, hi, reason
    for path, op, lo, hi in analysis.watched:
        if lo < FLOAT_EXACT[0] or hi > FLOAT_EXACT[1]:
            yield path, op, lo, hi, f"OpenVINO computes {op} in float, which is exact only up to 2**24: [{lo}, {hi}]"


def _markers_only(model: ModelProto, analysis: Analysis) -> set[str]:
    """Return constants whose values outside int32 are INT64 limits that only Slice reads, as starts or ends."""
    candidates = {
        name
        for name, fact in analysis.facts.items()
        if fact.dtype == TensorProto.INT64
        and not fact.fits(INT32)
        and fact.constant is not None
        and all(v in INT64 or INT32[0] <= v <= INT32[1] for v in fact.constant)
    }
    for node in model.graph.node:
        for slot, name in enumerate(node.input):
            if name in candidates and not (node.op_type == "Slice" and slot in (1, 2)):
                candidates.discard(name)
        for inner in node_graphs(node):
            candidates -= captured(inner)
    return candidates - {v.name for v in model.graph.output}
