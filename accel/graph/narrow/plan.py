"""Decide, for each 64-bit value, whether it becomes int32, and say why.

Two things can happen to a value. A whole class (``classes``) changes its type, if no member is pinned, each
member is proved to fit and the runtime has the kernels: only at level ``interior``. Or a graph input or output
changes alone, with a Cast on the inside where a node needs int64. Everything else stays, with its reason. Nothing is
written here.
"""

from collections import defaultdict
from collections.abc import Mapping, Set
from dataclasses import dataclass, field, replace

import onnx_ir as ir

from accel.core.values import Int32Runtime
from accel.graph import Level
from accel.graph.narrow.analysis import Analysis
from accel.graph.narrow.classes import Group, Member, Use, classify, only_int64, value_of
from accel.graph.narrow.facts import INT32, INT64, LIMITS, Fact
from accel.graph.narrow.inference import constant_array, constants, overridable, real_inputs
from accel.graph.narrow.kernels import Kernels
from accel.graph.narrow.report import Cause

Reason = tuple[Cause, str]


@dataclass(slots=True)
class Plan:
    """What changes.

    Attributes:
        values: values that become int32 with their whole class.
        copies: uses that get an int32 copy of their constant → whether a marker saturates.
        choosers: values whose type changes with an attribute of their node → its name.
        inputs: graph inputs that become int32 alone → uses that take int32 directly; the others get a Cast.
        outputs: graph outputs that become int32 through a Cast.
        reasons: why inputs and outputs stay.
    """

    values: set[ir.Value] = field(default_factory=set)
    copies: dict[Use, bool] = field(default_factory=dict)
    choosers: dict[ir.Value, str] = field(default_factory=dict)
    inputs: dict[ir.Value, set[Use]] = field(default_factory=dict)
    outputs: list[ir.Value] = field(default_factory=list)
    reasons: dict[ir.Value, Reason] = field(default_factory=dict)


class Planner:
    """Makes the plan for one model; the methods run in the order they stand in.

    Args:
        model: checked.
        analysis: what is known about its values.
        source: element type to narrow: INT64 or UINT64.
    """

    def __init__(
        self, model: ir.Model, analysis: Analysis, *, level: Level, runtime: Int32Runtime, source: ir.DataType
    ) -> None:
        self.model = model
        self.source = source
        self.facts = analysis.facts
        self.level = level
        self.runtime = runtime
        self.inputs = real_inputs(model)
        self.outputs = list(dict.fromkeys(model.graph.outputs))
        self.types = {value: fact.dtype for value, fact in self.facts.items()}
        self.fixed = overridable(model)
        self.constants = {v: t for v, t in constants(model).items() if v not in self.fixed}
        self.readable = {
            v for v, t in self.constants.items() if self.types.get(v) == source and constant_array(t) is not None
        }
        self.classes = classify(model, self.types, self.constants.keys(), source=source, target=ir.DataType.INT32)
        for value in self.fixed & self.classes.parents.keys():
            self.classes.pin(value, "pinned", "an initialiser that cannot be converted")
        self.shape_tensors = (
            _shape_tensors(model, self.facts, self.constants.keys()) if not runtime.wide_types else set()
        )
        for value in (v for v in (*self.inputs, *self.outputs) if v in self.shape_tensors):
            if value in self.classes.parents:
                self.classes.pin(value, "shape-tensor", f"{runtime.name} reads it as a shape")
        self.kernels: Kernels | None = None
        self.plan = Plan()

    def make(self) -> Plan:
        """Decide everything."""
        if self.level == "keep":
            return self.plan
        self.kernels = Kernels(self.model, self.runtime, to=ir.DataType.INT32, needed=self.level == "interior")
        if self.level == "interior":
            self._whole_classes()
        self._boundary_inputs()
        self._boundary_outputs()
        return self.plan

    def unfit(self, value: ir.Value) -> str | None:
        """Say why a value is not proved to fit int32, or None where it is."""
        fact = self.facts[value]
        if fact.fits(INT32):
            return None
        whole = LIMITS[self.source]
        lo, hi = fact.bounds if fact.bounds is not None else whole
        if value in self.inputs and (lo, hi) == whole:
            return "no range is declared, and no Gather that it indexes directly bounds it"
        if value in self.constants and value not in self.readable:
            return "large external data, which is not read"
        return f"its interval [{lo}, {hi}] does not fit int32"

    def copy(self, use: Use) -> bool | None:
        """Say whether a use can have an int32 copy of its constant: None if not, True if a marker saturates."""
        value = value_of(use)
        fact = self.facts[value]
        if value not in self.readable:
            return None
        if fact.fits(INT32):
            return False
        if use.node.op_type != "Slice" or use.idx not in (1, 2) or fact.constant is None:
            return None
        sliced = use.node.inputs[0]
        dims = self.facts[sliced].dims if sliced in self.facts else None
        if dims is None or any(hi > INT32[1] for _, hi in dims):
            return None
        return True if all(INT32[0] <= v <= INT32[1] or v in INT64 for v in fact.constant) else None

    def _whole_classes(self) -> None:
        classes = self.classes
        bad: dict[Member, Reason] = {}
        for member in list(classes.parents):
            value, constant = value_of(member), isinstance(member, Use)
            unproved = self.copy(member) is None if constant else self.unfit(value) is not None
            if unproved:
                what = f"constant {value.name!r}" if constant else repr(value.name)
                why = self.unfit(value) or "cannot be read"
                bad.setdefault(classes.root(member), ("unproved", f"shares its type with {what}: {why}"))
        free = {r: None for r in map(classes.root, classes.parents) if r not in classes.pins and r not in bad}
        self._drop_without_kernel(free)
        for root, why_bad in bad.items():
            classes.pins.setdefault(root, why_bad)
        for member in classes.parents:
            if classes.root(member) not in free:
                continue
            if isinstance(member, Use):
                self.plan.copies[member] = bool(self.copy(member))
            else:
                self.plan.values.add(member)
                if member in classes.choosers:
                    self.plan.choosers[member] = classes.choosers[member]

    def _drop_without_kernel(self, free: dict[Member, None]) -> None:
        """Take classes out of ``free`` until the runtime has a kernel for every node that they touch."""
        touching: dict[Member, list[ir.Node]] = defaultdict(list)
        for node, groups in self.classes.groups.items():
            for root in dict.fromkeys(self.classes.root(g.members[0][0]) for g in groups):
                touching[root].append(node)
        waiting = list(self.classes.groups)
        while waiting:
            node = waiting.pop()
            groups = [g for g in self.classes.groups[node] if self.classes.root(g.members[0][0]) in free]
            if not groups or self._has_kernel(node, groups):
                continue
            for root in dict.fromkeys(self.classes.root(g.members[0][0]) for g in groups):
                del free[root]
                where = f"{node.op_type} {node.name or node.outputs[0].name!r}"
                reason = f"{self.runtime.name}, or ONNX's own shape inference, does not take int32 in {where}"
                self.classes.pins.setdefault(root, ("no-kernel", reason))
                waiting += [other for other in touching[root] if other is not node]

    def _has_kernel(self, node: ir.Node, narrowed: list[Group]) -> bool:
        assert self.kernels is not None
        if any(v is not None and v.name and not self.types.get(v) for v in (*node.inputs, *node.outputs)):
            return False
        inputs = [self.facts[v] if v is not None else None for v in node.inputs]
        outputs = [self.types.get(v, 0) for v in node.outputs]
        copied: dict[int, Fact] = {}
        chosen = []
        for member, place in (pair for group in narrowed for pair in group.members):
            if place.output:
                outputs[place.slot] = ir.DataType.INT32
                if value_of(member) in self.classes.choosers:
                    chosen.append(self.classes.choosers[value_of(member)])
                continue
            fact = replace(self.facts[value_of(member)], dtype=ir.DataType.INT32)
            inputs[place.slot] = fact
            if value_of(member) in self.constants:
                copied[place.slot] = fact
        # The kernels of TensorRT cannot be asked.
        if (copied or self.runtime.kernels is None) and not self.kernels.infers(
            node, inputs, outputs, constants=copied, chosen=chosen
        ):
            return False
        return self.kernels.run(node, inputs, outputs, chosen=chosen)

    def _boundary_inputs(self) -> None:
        """Change inputs whose class stays: directly where a node allows it, behind a Cast elsewhere."""
        for value in self.inputs:
            if value not in self.fixed and self._changes_alone(value):
                self.plan.inputs[value] = set()
        for node, groups in self.classes.groups.items():
            for group in groups:
                self._take_directly(node, group)

    def _changes_alone(self, value: ir.Value) -> bool:
        if self.types.get(value) != self.source or value in self.plan.values:
            return False
        why = self.unfit(value)
        if why is not None:
            self.plan.reasons[value] = ("unproved", why)
        elif value in self.shape_tensors:
            self.plan.reasons[value] = ("shape-tensor", f"{self.runtime.name} reads it as a shape")
        return value not in self.plan.reasons

    def _take_directly(self, node: ir.Node, group: Group) -> None:
        entering = {value_of(m) for m, _ in group.members} & self.plan.inputs.keys()
        if not entering or not group.free or any(place.output for _, place in group.members):
            return
        copies = {}
        for member, place in group.members:
            value, use = value_of(member), Use(node, place.slot)
            if value in entering or value in self.plan.values:
                continue
            fit = self.copy(use) if value in self.constants else None
            if fit is None:
                return
            copies[use] = fit
        others = [g for g in self.classes.groups[node] if self._changed(node, g)]
        if not self._has_kernel(node, [*others, group]):
            return
        self.plan.copies.update(copies)
        for member, place in group.members:
            if value_of(member) in entering:
                self.plan.inputs[value_of(member)].add(Use(node, place.slot))

    def _changed(self, node: ir.Node, group: Group) -> bool:
        member, place = group.members[0]
        value, use = value_of(member), Use(node, place.slot)
        entered = use in self.plan.copies or use in self.plan.inputs.get(value, set())
        return value in self.plan.values or (not place.output and entered)

    def _boundary_outputs(self) -> None:
        for value in self.outputs:
            if value not in self.plan.inputs and value not in self.inputs and self._changes_alone(value):
                self.plan.outputs.append(value)


def _shape_tensors(model: ir.Model, facts: Mapping[ir.Value, Fact], constants: Set[ir.Value]) -> set[ir.Value]:
    """Return values that TensorRT holds on the host as shapes: made of sizes, or read where only int64 can stand."""

    def small(value: ir.Value) -> bool:
        fact = facts.get(value)
        whole = fact is not None and fact.dtype == ir.DataType.INT64 and fact.dims is not None
        return whole and fact is not None and len(fact.dims or ()) <= 1 and value not in constants

    sized: set[ir.Value] = set()
    for node in model.graph:
        made = [value for value in node.inputs if small(value)]
        if node.op_type in ("Shape", "Size") or (made and all(value in sized for value in made)):
            sized |= {value for value in node.outputs if small(value)}
    read: set[ir.Value] = set()
    for node in reversed(model.graph):
        passed = any(value in read for value in node.outputs)
        version = model.opset_imports.get(node.domain, 1)
        read |= {
            value
            for slot, value in enumerate(node.inputs)
            if small(value) and (passed or only_int64(node.op_type, node.domain, version, slot))
        }
    return sized | read
