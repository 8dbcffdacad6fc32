"""DOUBLE → FLOAT, for a runtime that has no DOUBLE (TensorRT).

Whole type classes change, at the levels ``io`` and ``interior`` alike: inputs and outputs (the client's contract),
inner values, inline constants and the attributes that choose a type. No Cast is added. A class stays, with its reason,
where the schemas pin a member to double, where a constant does not survive the rounding or cannot be seen, and where
rounding could change sizes. What changes is rounded, not proved equal, and the report says so for each value.

It runs before the range analysis whose intervals decide about integers: a Cast of a rounded value may give another
integer, and the proofs must hold for the graph that is written.

Source: https://docs.nvidia.com/deeplearning/tensorrt/latest/reference/data-format-desc.html (the types it has).
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
import onnx_ir as ir

from accel.core.values import ShapeRange
from accel.graph import Level
from accel.graph.narrow.analysis import Analysis, analyse
from accel.graph.narrow.classes import Group, Member, call_text, classify, converted, retyped, value_of
from accel.graph.narrow.facts import Fact, Interval
from accel.graph.narrow.inference import constants, real_inputs
from accel.graph.narrow.integers import Names, Narrowed, add_constant
from accel.graph.narrow.kernels import UNASKED, Kernels
from accel.graph.narrow.report import FLOAT_MAX, Cause, ValueReport
from accel.graph.passes import ContractPass

SIZED_BY_VALUES = frozenset({"Range", "NonZero", "Unique"})
"""Operators whose output has a size that depends on the values of a floating-point input, to the last bit.

Source: https://onnx.ai/onnx/operators/; OneHot.depth may be double as well, but whole numbers of that size are exact.
"""
Role = Literal["input", "output", "constant", "inner"]


@dataclass(eq=False, kw_only=True)
class RoundDoubles(ContractPass):
    """Make DOUBLE values FLOAT, and report each of them.

    Args:
        level: ``keep`` changes nothing and reports all the same.
        ranges / shapes: as of ``narrow_file``.
    """

    retypes = True
    level: Level
    ranges: Mapping[str, Interval]
    shapes: Mapping[str, ShapeRange]

    def call(self, model: ir.Model) -> Narrowed:
        """Round what survives it.

        Raises:
            UsageError / InputError: as ``analyse``.
        """
        analysis = analyse(model, ranges=self.ranges, shapes=self.shapes)
        work = _Doubles(model, analysis)
        if self.level != "keep":
            work.pin()
        why = "inside a sub-graph, whose values keep their types"
        inner = [v for v in analysis.inner if v.fact.dtype == ir.DataType.DOUBLE]
        values = [*work.report(self.level)]
        values += [ValueReport(v.path, "inner", "float64", "kept", "sub-graph", why, None) for v in inner]
        modified = self.level != "keep" and work.rewrite()
        return Narrowed(model, modified, tuple(values), analysis)


def loss(tensor: ir.TensorProtocol) -> tuple[str, float]:
    """Say what FLOAT does to a DOUBLE constant.

    Returns:
        Why it cannot be rounded, or an empty string; and the largest relative error, 0 where it is exact.
    """
    if isinstance(tensor, ir.ExternalTensor):
        return "is external data, which is not read", 0.0
    values = tensor.numpy().reshape(-1)
    with np.errstate(over="ignore", under="ignore"):
        rounded = values.astype(np.float32).astype(np.float64)
    finite = np.isfinite(values)
    for broken, what in (
        (finite & ~np.isfinite(rounded), "overflows FLOAT"),
        ((values != 0) & (rounded == 0), "becomes 0 in FLOAT"),
    ):
        if broken.any():
            return f"holds {float(values[int(np.argmax(broken))])!r}, which {what}", 0.0
    counted = finite & (values != 0)
    values, rounded = values[counted], rounded[counted]
    return "", float(np.max(np.abs(rounded / values - 1), initial=0.0))


class _Doubles:
    """The DOUBLE values of one model; ``pin``, ``report`` and ``rewrite`` run in this order."""

    def __init__(self, model: ir.Model, analysis: Analysis) -> None:
        self.model = model
        self.facts = analysis.facts
        self.doubles = [value for value, fact in self.facts.items() if fact.dtype == ir.DataType.DOUBLE]
        self.inputs = real_inputs(model)
        self.tensors = constants(model)
        # A constant that a client sees or replaces changes with its class; of any other, each use may have a copy.
        shared = {v for v in self.tensors if not v.is_graph_input() and not v.is_graph_output()}
        self.types = {value: fact.dtype for value, fact in self.facts.items()}
        self.classes = classify(model, self.types, shared, source=ir.DataType.DOUBLE, target=ir.DataType.FLOAT)
        for value in self.doubles:
            if value not in shared:
                self.classes.root(value)
        self.losses: dict[Member, tuple[str, float]] = {
            value: loss(self.tensors[value]) for value in self.doubles if value in self.tensors
        }

    def pin(self) -> None:
        """Pin the classes that the schemas leave free and that must stay all the same."""
        classes = self.classes
        for member in list(classes.parents):
            value = value_of(member)
            if refused := self.losses.get(value, ("", 0.0))[0]:
                classes.pin(member, "unproved", f"constant {value.name!r} {refused}")
        for value, attribute in classes.choosers.items():
            chosen = value.producer().attributes[attribute]
            if chosen.type == ir.AttributeType.TENSOR:
                self.losses[value] = loss(chosen.as_tensor())
                if refused := self.losses[value][0]:
                    classes.pin(value, "unproved", f"the value of {value.name!r} {refused}")
        for node, groups in classes.groups.items():
            why: tuple[Cause, str] | None = None
            if any(v is not None and v.name and not self.types.get(v) for v in (*node.inputs, *node.outputs)):
                why = "custom-operator", f"{call_text(node)}: the type of another of its values is not known"
            elif node.op_type in SIZED_BY_VALUES and not node.domain:
                why = "pinned", f"{call_text(node)}: rounding could change how many elements it gives"
            if why is not None:
                for member in (m for group in groups for m, _ in group.members):
                    classes.pin(member, *why)
        self._pin_refused()

    def _pin_refused(self) -> None:
        """Pin what ONNX's own inference refuses: BitCast compares widths, TreeEnsemble the types of attributes."""
        kernels = Kernels(self.model, UNASKED, to=ir.DataType.FLOAT, needed=False)
        waiting = True
        while waiting:
            waiting = False
            for node, groups in self.classes.groups.items():
                free = [group for group in groups if self.free(group.members[0][0])]
                if free and not self._infers(kernels, node, free):
                    waiting = True
                    why = f"{call_text(node)}: ONNX's own inference does not take FLOAT there"
                    for group in free:
                        self.classes.pin(group.members[0][0], "pinned", why)

    def _infers(self, kernels: Kernels, node: ir.Node, free: list[Group]) -> bool:
        facts = [self.facts[value] if value is not None else None for value in node.inputs]
        outputs = [self.types.get(value, 0) for value in node.outputs]
        chosen = []
        for member, place in (pair for group in free for pair in group.members):
            value = value_of(member)
            if place.output:
                outputs[place.slot] = ir.DataType.FLOAT
                chosen += [self.classes.choosers[value]] if value in self.classes.choosers else []
            else:
                facts[place.slot] = Fact(ir.DataType.FLOAT, self.facts[value].bounds, self.facts[value].dims)
        return kernels.infers(node, facts, outputs, constants={}, chosen=chosen)

    def free(self, member: Member) -> bool:
        """Say whether the class of a member becomes FLOAT."""
        return self.classes.root(member) not in self.classes.pins

    def whole(self, value: ir.Value) -> bool:
        """Say whether a value changes its type under its own name."""
        members = [m for m in (value, *self.classes.uses(value)) if m in self.classes.parents]
        return not self.losses.get(value, ("", 0.0))[0] and all(map(self.free, members))

    def report(self, level: Level) -> Iterator[ValueReport]:
        """Put every value of the main graph into words, inputs first, then outputs."""
        wanted = set(self.doubles)
        for value in dict.fromkeys((*self.inputs, *self.model.graph.outputs, *self.doubles)):
            if value not in wanted:
                continue
            if level == "keep":
                yield self._value(value, "kept", "level", "level keep changes nothing")
            elif self.whole(value):
                yield self._value(value, "narrowed", "rounded", self._rounded(value))
            else:
                yield self._value(value, "kept", *self._kept(value))

    def _value(self, value: ir.Value, decision: Literal["narrowed", "kept"], cause: Cause, reason: str) -> ValueReport:
        role: Role = "constant" if value in self.tensors else "inner"
        if value in self.inputs or value.is_graph_output():
            role = "input" if value in self.inputs else "output"
        return ValueReport(value.name, role, "float64", decision, cause, reason, None)

    def _rounded(self, value: ir.Value) -> str:
        text = "rounded to the 24 bits of FLOAT"
        if value in self.losses:
            error = self.losses[value][1]
            return f"{text}: largest relative error {error:.2g}" if error else f"{text}, in which it is exact"
        bounds = self.facts[value].bounds
        if bounds is not None and max(abs(b) for b in bounds) <= FLOAT_MAX:
            return f"{text}; its values lie in [{bounds[0]:g}, {bounds[1]:g}]"
        return f"{text}; its range is not proved, and beyond 3.4e38 it becomes infinite"

    def _kept(self, value: ir.Value) -> tuple[Cause, str]:
        uses = self.classes.uses(value)
        members = [m for m in (value, *uses) if m in self.classes.parents]
        pins = (self.classes.pins[self.classes.root(m)] for m in members if not self.free(m))
        unread = self.losses.get(value, ("", 0.0))[0]
        cause, reason = next(pins, ("unproved", f"constant {value.name!r} {unread}"))
        copies = sum(map(self.free, uses))
        return cause, f"{reason}; {copies} of its {len(uses)} uses have a float copy" if copies else reason

    def rewrite(self) -> bool:
        """Change types, constants and attributes of all that is free; say whether anything is."""
        names, to = Names(self.model), ir.DataType.FLOAT
        changed = [value for value in self.doubles if self.whole(value)]
        for value in changed:
            if value.const_value is not None:
                value.const_value = converted(value.const_value, to)
            elif value in self.tensors:
                node = value.producer()
                node.attributes.add(retyped(node.attributes["value"], to))
            if value.type is not None:
                value.type = ir.TensorType(to)
        for value in self.tensors:
            uses = [use for use in self.classes.uses(value) if self.free(use)]
            if uses and value not in changed:
                array = converted(self.tensors[value], to).numpy()
                copy = add_constant(self.model.graph, names.fresh(f"{value.name}__float"), array)
                for use in uses:
                    use.node.replace_input_with(use.idx, copy)
        for value, attribute in self.classes.choosers.items():
            if self.free(value):
                node = value.producer()
                node.attributes.add(retyped(node.attributes[attribute], to))
        return any(map(self.free, list(self.classes.parents)))


def merged(reports: Iterable[ValueReport]) -> tuple[ValueReport, ...]:
    """Put the reports of several types in one order: inputs, outputs, then the rest as they came."""
    rank: Mapping[str, int] = {"input": 0, "output": 1}
    return tuple(sorted(reports, key=lambda value: rank.get(value.role, 2)))
