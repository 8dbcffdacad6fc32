"""Decide, for each 64-bit value, whether it becomes int32, and say why.

Two things can happen to a value. A whole class (``classes``) changes its type, if no member is pinned, each
member is proved to fit and the runtime has the kernels: only at level ``interior``. Or a graph input or output
changes alone, with a Cast on the inside where a node needs int64. Everything else stays, with its reason. Nothing is
written here.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from onnx import ModelProto, NodeProto, TensorProto

from accel.graph.narrow.analysis import ONNX_DOMAINS, Analysis
from accel.graph.narrow.classes import Group, classify, only_int64
from accel.graph.narrow.facts import INT32, INT64, LIMITS, Fact
from accel.graph.narrow.inference import constant_array, overridable, real_inputs
from accel.graph.narrow.kernels import Kernels, Runtime
from accel.graph.narrow.report import Cause

Level = Literal["keep", "io", "interior"]
Reason = tuple[Cause, str]


@dataclass(slots=True)
class Plan:
    """What changes.

    Attributes:
        source: element type that is narrowed: INT64 or UINT64.
        values: values that become int32 with their whole class.
        copies: places (node, input slot) that get an int32 copy of their constant → whether a marker saturates.
        choosers: node → attribute that chooses the type of its output.
        inputs: graph inputs that become int32 alone → places that take int32 directly; the others get a Cast.
        outputs: graph outputs that become int32 through a Cast.
        reasons: why each value changes or stays; the key of a constant is its name.
    """

    source: int = TensorProto.INT64
    values: set[str] = field(default_factory=set)
    copies: dict[tuple[int, int], bool] = field(default_factory=dict)
    choosers: dict[int, str] = field(default_factory=dict)
    inputs: dict[str, set[tuple[int, int]]] = field(default_factory=dict)
    outputs: list[str] = field(default_factory=list)
    reasons: dict[str, Reason] = field(default_factory=dict)


class Planner:
    """Makes the plan for one model; the methods run in the order they stand in.

    Args:
        model: checked, without external data.
        analysis: what is known about its values.
        folder: where its external data lies.
        source: element type to narrow: INT64 or UINT64.
    """

    def __init__(
        self,
        model: ModelProto,
        analysis: Analysis,
        folder: Path,
        *,
        level: Level,
        runtime: Runtime,
        source: int = TensorProto.INT64,
    ) -> None:
        self.model = model
        self.source = source
        self.facts = analysis.facts
        self.level = level
        self.runtime = runtime
        self.nodes: list[NodeProto] = list(model.graph.node)
        self.inputs = [v.name for v in real_inputs(model)]
        self.outputs = list(dict.fromkeys(v.name for v in model.graph.output))
        self.types = {name: fact.dtype for name, fact in self.facts.items()}
        replaced = overridable(model)
        self.tensors = {t.name: t for t in model.graph.initializer if t.name not in replaced}
        self.constants = set(self.tensors)
        for node in self.nodes:
            if node.op_type == "Constant" and node.domain in ONNX_DOMAINS:
                self.constants.add(node.output[0])
        self.readable = {
            name
            for name in self.constants
            if self.types.get(name) == source
            and (name not in self.tensors or constant_array(self.tensors[name], folder) is not None)
        }
        self.classes = classify(model, self.types, self.constants, source=source, target=TensorProto.INT32)
        for name in replaced | {t.values.name for t in model.graph.sparse_initializer}:
            if name in self.classes.values:
                self.classes.pin(self.classes.values[name], "pinned", "an initialiser that cannot be converted")
        self.shape_tensors = _shape_tensors(model, self.facts, self.constants) if runtime == "tensorrt" else set()
        for name in (n for n in (*self.inputs, *self.outputs) if n in self.shape_tensors):
            if name in self.classes.values:
                self.classes.pin(self.classes.values[name], "shape-tensor", f"{runtime} reads it as a shape")
        self.kernels: Kernels | None = None
        self.plan = Plan(source)
        self.fixed = replaced

    def make(self) -> Plan:
        """Decide everything."""
        if self.level == "keep":
            return self.plan
        self.kernels = Kernels(self.model, self.runtime, needed=self.level == "interior")
        if self.level == "interior":
            self._whole_classes()
        self._boundary_inputs()
        self._boundary_outputs()
        return self.plan

    def unfit(self, name: str) -> str | None:
        """Say why a value is not proved to fit int32, or None where it is."""
        fact = self.facts[name]
        if fact.fits(INT32):
            return None
        whole = LIMITS[self.source]
        lo, hi = fact.bounds if fact.bounds is not None else whole
        if name in self.inputs and (lo, hi) == whole:
            return "no range is declared, and no Gather that it indexes directly bounds it"
        if name in self.constants and name not in self.readable:
            return "large external data, which is not read"
        return f"its interval [{lo}, {hi}] does not fit int32"

    def copy(self, node: int, slot: int, name: str) -> bool | None:
        """Say whether a place can have an int32 copy of its constant: None if not, True if a marker saturates."""
        fact = self.facts[name]
        if name not in self.readable:
            return None
        if fact.fits(INT32):
            return False
        values = fact.constant
        if self.nodes[node].op_type != "Slice" or slot not in (1, 2) or values is None:
            return None
        dims = self.facts[self.nodes[node].input[0]].dims if self.nodes[node].input[0] in self.facts else None
        if dims is None or any(hi > INT32[1] for _, hi in dims):
            return None
        return True if all(INT32[0] <= v <= INT32[1] or v in INT64 for v in values) else None

    def _whole_classes(self) -> None:
        classes = self.classes
        bad: dict[int, Reason] = {}
        members: dict[int, list[int]] = defaultdict(list)
        for name, member in classes.values.items():
            members[classes.root(member)].append(member)
            why = self.unfit(name)
            if why is not None:
                bad.setdefault(classes.root(member), ("unproved", f"shares its type with {name!r}: {why}"))
        for (node, slot), member in classes.constant_uses.items():
            name = classes.names[member]
            members[classes.root(member)].append(member)
            if self.copy(node, slot, name) is None:
                why = self.unfit(name) or "cannot be read"
                bad.setdefault(classes.root(member), ("unproved", f"shares its type with constant {name!r}: {why}"))
        free = {root for root in members if root not in classes.pins and root not in bad}
        self._drop_without_kernel(free)
        for root, why_bad in bad.items():
            classes.pins.setdefault(root, why_bad)
        for name, member in classes.values.items():
            if classes.root(member) in free:
                self.plan.values.add(name)
        for (node, slot), member in classes.constant_uses.items():
            if classes.root(member) in free:
                self.plan.copies[node, slot] = bool(self.copy(node, slot, classes.names[member]))
        for member, (node, attribute) in classes.choosers.items():
            if classes.root(member) in free:
                self.plan.choosers[node] = attribute

    def _drop_without_kernel(self, free: set[int]) -> None:
        """Take classes out of ``free`` until the runtime has a kernel for every node that they touch."""
        touching: dict[int, set[int]] = defaultdict(set)
        for index, groups in self.classes.groups.items():
            for group in groups:
                root = self.classes.root(group.members[0][0])
                if root in free:
                    touching[root].add(index)
        waiting = sorted({index for nodes in touching.values() for index in nodes})
        while waiting:
            index = waiting.pop()
            groups = [g for g in self.classes.groups[index] if self.classes.root(g.members[0][0]) in free]
            if not groups or self._has_kernel(index, groups):
                continue
            node = self.nodes[index]
            for root in {self.classes.root(g.members[0][0]) for g in groups}:
                free.discard(root)
                where = f"{node.op_type} {node.name or node.output[0]!r}"
                reason = f"{self.runtime}, or ONNX's own shape inference, does not take int32 in {where}"
                self.classes.pins.setdefault(root, ("no-kernel", reason))
                waiting += sorted(touching[root] - {index})

    def _has_kernel(self, index: int, narrowed: list[Group]) -> bool:
        assert self.kernels is not None
        node = NodeProto()
        node.CopyFrom(self.nodes[index])
        inputs = [self.types.get(n, 0) if n else 0 for n in node.input]
        outputs = [self.types.get(n, 0) if n else 0 for n in node.output]
        if any(
            n and not t for n, t in (*zip(node.input, inputs, strict=True), *zip(node.output, outputs, strict=True))
        ):
            return False
        constants: dict[int, Fact] = {}
        for group in narrowed:
            for member, use in group.members:
                if not use.output and self.classes.names[member] in self.constants:
                    constants[use.slot] = self.facts[self.classes.names[member]]
                (outputs if use.output else inputs)[use.slot] = TensorProto.INT32
                if use.output and member in self.classes.choosers:
                    retype(node, self.classes.choosers[member][1])
        if constants or self.runtime == "tensorrt":  # whose kernels cannot be asked
            facts = [self.facts[n] if n else None for n in node.input]
            for slot, dtype in enumerate(inputs):
                fact = facts[slot]
                facts[slot] = Fact(dtype, fact.bounds, fact.dims, fact.items) if fact is not None else None
            if not self.kernels.infers(node, facts, outputs, constants):
                return False
        return self.kernels.run(node, inputs, outputs)

    def _boundary_inputs(self) -> None:
        """Change inputs whose class stays: directly where a node allows it, behind a Cast elsewhere."""
        for name in self.inputs:
            if self.types[name] != self.source or name in self.plan.values or name in self.fixed:
                continue
            why = self.unfit(name)
            if why is not None:
                self.plan.reasons[name] = ("unproved", why)
            elif name in self.shape_tensors:
                self.plan.reasons[name] = ("shape-tensor", f"{self.runtime} reads it as a shape")
            else:
                self.plan.inputs[name] = set()
        for index, groups in self.classes.groups.items():
            for group in groups:
                self._take_directly(index, group)

    def _take_directly(self, index: int, group: Group) -> None:
        names = {self.classes.names[m] for m, _ in group.members}
        entering = names & self.plan.inputs.keys()
        if not entering or not group.free or any(use.output for _, use in group.members):
            return
        copies = {}
        for member, use in group.members:
            name = self.classes.names[member]
            if name in entering or name in self.plan.values:
                continue
            fit = self.copy(index, use.slot, name) if name in self.constants else None
            if fit is None:
                return
            copies[index, use.slot] = fit
        others = [g for g in self.classes.groups[index] if self._changed(index, g)]
        if not self._has_kernel(index, [*others, group]):
            return
        self.plan.copies.update(copies)
        for member, use in group.members:
            if self.classes.names[member] in entering:
                self.plan.inputs[self.classes.names[member]].add((index, use.slot))

    def _changed(self, index: int, group: Group) -> bool:
        member, use = group.members[0]
        name = self.classes.names[member]
        return (
            name in self.plan.values
            or (not use.output and (index, use.slot) in self.plan.copies)
            or (not use.output and (index, use.slot) in self.plan.inputs.get(name, set()))
        )

    def _boundary_outputs(self) -> None:
        for name in self.outputs:
            taken = name in self.plan.values or name in self.plan.inputs
            if self.types.get(name) != self.source or taken or name in self.inputs:
                continue
            why = self.unfit(name)
            if why is not None:
                self.plan.reasons[name] = ("unproved", why)
            elif name in self.shape_tensors:
                self.plan.reasons[name] = ("shape-tensor", f"{self.runtime} reads it as a shape")
            else:
                self.plan.outputs.append(name)


def retype(node: NodeProto, attribute: str) -> None:
    """Make a node's type attribute say int32, in place; a tensor attribute is converted."""
    from onnx import AttributeProto, numpy_helper

    for a in node.attribute:
        if a.name == attribute and a.type == AttributeProto.INT:
            a.i = TensorProto.INT32
        elif a.name == attribute:
            a.t.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(a.t).astype("int32"), a.t.name))


def _shape_tensors(model: ModelProto, facts: Mapping[str, Fact], constants: set[str]) -> set[str]:
    """Return values that TensorRT holds on the host as shapes: made of sizes, or read where only int64 can stand."""

    def small(name: str) -> bool:
        fact = facts.get(name)
        whole = fact is not None and fact.dtype == TensorProto.INT64 and fact.dims is not None
        return whole and fact is not None and len(fact.dims or ()) <= 1 and name not in constants

    sized: set[str] = set()
    for node in model.graph.node:
        made = [name for name in node.input if small(name)]
        if node.op_type in ("Shape", "Size") or (made and all(name in sized for name in made)):
            sized |= {name for name in node.output if small(name)}
    opsets = {("" if o.domain == "ai.onnx" else o.domain): o.version for o in model.opset_import}
    read: set[str] = set()
    for node in reversed(model.graph.node):
        domain = "" if node.domain == "ai.onnx" else node.domain
        passed = any(name in read for name in node.output)
        for slot, name in enumerate(node.input):
            if small(name) and (passed or only_int64(node.op_type, domain, opsets.get(domain, 1), slot)):
                read.add(name)
    return sized | read
