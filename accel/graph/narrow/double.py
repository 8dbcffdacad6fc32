"""DOUBLE → FLOAT, for a runtime that has no DOUBLE (TensorRT).

Whole type classes change, at the levels ``io`` and ``interior`` alike: inputs and outputs (the client's contract),
inner values, inline constants and the attributes that choose a type. No Cast is added. A class stays, with its reason,
where the schemas pin a member to double, where a constant does not survive the rounding or cannot be seen, and where
rounding could change sizes. What changes is rounded, not proved equal, and the report says so for each value.

It runs before the range analysis whose intervals decide about integers: a Cast of a rounded value may give another
integer, and the proofs must hold for the graph that is written.

Source: https://docs.nvidia.com/deeplearning/tensorrt/latest/reference/data-format-desc.html (the types it has).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import Literal

import numpy as np
from onnx import AttributeProto, ModelProto, NodeProto, TensorProto, numpy_helper

from accel.graph.narrow.analysis import ONNX_DOMAINS, Analysis
from accel.graph.narrow.classes import Group, TypeClasses, call_text, classify
from accel.graph.narrow.facts import Fact
from accel.graph.narrow.inference import real_inputs
from accel.graph.narrow.kernels import Kernels
from accel.graph.narrow.report import FLOAT_MAX, Cause, ValueReport
from accel.graph.narrow.rewrite import Fresh

SIZED_BY_VALUES = frozenset({"Range", "NonZero", "Unique"})
"""Operators whose output has a size that depends on the values of a floating-point input, to the last bit.

Source: https://onnx.ai/onnx/operators/; OneHot.depth may be double as well, but whole numbers of that size are exact.
"""
Role = Literal["input", "output", "constant", "inner"]


def narrow_doubles(
    model: ModelProto, analysis: Analysis, *, level: Literal["keep", "io", "interior"]
) -> tuple[ValueReport, ...]:
    """Make DOUBLE values FLOAT, in place, and report each of them.

    Args:
        model: checked, without external data.
        analysis: what is known about its values; stale afterwards if anything was narrowed.
        level: ``keep`` changes nothing and reports all the same.
    """
    doubles = [name for name, fact in analysis.facts.items() if name and fact.dtype == TensorProto.DOUBLE]
    inner = [v for v in analysis.inner if v.fact.dtype == TensorProto.DOUBLE]
    if not doubles and not inner:
        return ()
    work = _Doubles(model, analysis, doubles)
    if level != "keep":
        work.pin()
    reports = work.report(level)
    if level != "keep":
        work.rewrite()
    why = "inside a sub-graph, whose values keep their types"
    return (*reports, *(ValueReport(v.path, "inner", "float64", "kept", "sub-graph", why, None) for v in inner))


def loss(tensor: TensorProto) -> tuple[str, float]:
    """Say what FLOAT does to a DOUBLE constant.

    Returns:
        Why it cannot be rounded, or an empty string; and the largest relative error, 0 where it is exact.
    """
    if tensor.data_location == TensorProto.EXTERNAL:
        return "is external data, which is not read", 0.0
    values = numpy_helper.to_array(tensor).reshape(-1)
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

    def __init__(self, model: ModelProto, analysis: Analysis, doubles: list[str]) -> None:
        self.model = model
        self.facts = analysis.facts
        self.doubles = doubles
        self.inputs = [v.name for v in real_inputs(model)]
        self.outputs = [v.name for v in model.graph.output]
        self.tensors = {t.name: t for t in model.graph.initializer}
        self.held = set(self.tensors) | {t.values.name for t in model.graph.sparse_initializer}
        for node in model.graph.node:
            if node.op_type == "Constant" and node.domain in ONNX_DOMAINS:
                self.held.add(node.output[0])
                self.tensors.update((node.output[0], a.t) for a in node.attribute if a.name == "value")
        # A constant that a client sees or replaces changes with its class; of any other, each use may have a copy.
        self.copied = self.held - {v.name for v in model.graph.input} - set(self.outputs)
        self.types = {name: fact.dtype for name, fact in self.facts.items()}
        self.classes: TypeClasses = classify(
            model, self.types, self.copied, source=TensorProto.DOUBLE, target=TensorProto.FLOAT
        )
        for name in doubles:
            if name not in self.copied and name not in self.classes.values:
                self.classes.values[name] = self.classes.add(name)
        self.uses: dict[str, list[tuple[tuple[int, int], int]]] = defaultdict(list)
        for place, member in self.classes.constant_uses.items():
            self.uses[self.classes.names[member]].append((place, member))
        self.losses = {name: self._loss(name) for name in doubles if name in self.held}

    def _loss(self, name: str) -> tuple[str, float]:
        return loss(self.tensors[name]) if name in self.tensors else ("is sparse", 0.0)

    def pin(self) -> None:
        """Pin the classes that the schemas leave free and that must stay all the same."""
        classes = self.classes
        for member, name in enumerate(classes.names):
            refused = self.losses.get(name, ("", 0.0))[0]
            if refused:
                classes.pin(member, "unproved", f"constant {name!r} {refused}")
        for member, tensor in self._chosen():
            refused, error = loss(tensor)
            self.losses[classes.names[member]] = refused, error
            if refused:
                classes.pin(member, "unproved", f"the value of {classes.names[member]!r} {refused}")
        for index, groups in classes.groups.items():
            node = self.model.graph.node[index]
            why: tuple[Cause, str] | None = None
            if any(name and not self.types.get(name) for name in (*node.input, *node.output)):
                why = "custom-operator", f"{call_text(node)}: the type of another of its values is not known"
            elif node.op_type in SIZED_BY_VALUES and node.domain in ONNX_DOMAINS:
                why = "pinned", f"{call_text(node)}: rounding could change how many elements it gives"
            for group in groups if why is not None else ():
                for member, _ in group.members:
                    classes.pin(member, *(why or ("pinned", "")))
        self._pin_refused()

    def _pin_refused(self) -> None:
        """Pin what ONNX's own inference refuses: BitCast compares widths, TreeEnsemble the types of attributes."""
        kernels = Kernels(self.model, "tensorrt", needed=False)
        waiting = True
        while waiting:
            waiting = False
            for index, groups in self.classes.groups.items():
                free = [group for group in groups if self.free(group.members[0][0])]
                if free and not self._infers(kernels, index, free):
                    waiting = True
                    why = f"{call_text(self.model.graph.node[index])}: ONNX's own inference does not take FLOAT there"
                    for group in free:
                        self.classes.pin(group.members[0][0], "pinned", why)

    def _infers(self, kernels: Kernels, index: int, free: list[Group]) -> bool:
        node = NodeProto()
        node.CopyFrom(self.model.graph.node[index])
        facts = [self.facts[name] if name else None for name in node.input]
        outputs = [self.types[name] if name else 0 for name in node.output]
        for member, use in (place for group in free for place in group.members):
            fact = None if use.output else facts[use.slot]
            if fact is not None:
                facts[use.slot] = Fact(TensorProto.FLOAT, fact.bounds, fact.dims)
            elif use.output:
                outputs[use.slot] = TensorProto.FLOAT
                if member in self.classes.choosers:
                    _retype(node, self.classes.choosers[member][1])
        return kernels.infers(node, facts, outputs, {})

    def _chosen(self) -> Iterator[tuple[int, TensorProto]]:
        """Yield the members whose type a tensor attribute of their node chooses, with that tensor."""
        for member, (index, wanted) in self.classes.choosers.items():
            for a in self.model.graph.node[index].attribute:
                if a.name == wanted and a.type == AttributeProto.TENSOR:
                    yield member, a.t

    def free(self, member: int) -> bool:
        """Say whether the class of a member becomes FLOAT."""
        return self.classes.root(member) not in self.classes.pins

    def whole(self, name: str) -> bool:
        """Say whether a value changes its type under its own name."""
        if name in self.classes.values and not self.free(self.classes.values[name]):
            return False
        return not self.losses.get(name, ("", 0.0))[0] and all(self.free(m) for _, m in self.uses.get(name, ()))

    def report(self, level: str) -> tuple[ValueReport, ...]:
        """Put every value of the main graph into words, inputs first, then outputs."""
        wanted = set(self.doubles)
        order = [n for n in dict.fromkeys((*self.inputs, *self.outputs, *self.doubles)) if n in wanted]
        found = []
        for name in order:
            if level == "keep":
                found.append(self._value(name, "kept", "level", "level keep changes nothing"))
            elif self.whole(name):
                found.append(self._value(name, "narrowed", "rounded", self._rounded(name)))
            else:
                found.append(self._value(name, "kept", *self._kept(name)))
        return tuple(found)

    def _value(self, name: str, decision: Literal["narrowed", "kept"], cause: Cause, reason: str) -> ValueReport:
        role: Role = "constant" if name in self.held else "inner"
        if name in self.inputs or name in self.outputs:
            role = "input" if name in self.inputs else "output"
        return ValueReport(name, role, "float64", decision, cause, reason, None)

    def _rounded(self, name: str) -> str:
        text = "rounded to the 24 bits of FLOAT"
        if name in self.losses:
            error = self.losses[name][1]
            return f"{text}: largest relative error {error:.2g}" if error else f"{text}, in which it is exact"
        bounds = self.facts[name].bounds
        if bounds is not None and max(abs(b) for b in bounds) <= FLOAT_MAX:
            return f"{text}; its values lie in [{bounds[0]:g}, {bounds[1]:g}]"
        return f"{text}; its range is not proved, and beyond 3.4e38 it becomes infinite"

    def _kept(self, name: str) -> tuple[Cause, str]:
        members = [self.classes.values[name]] if name in self.classes.values else []
        members += [m for _, m in self.uses.get(name, ())]
        pins: Iterable[tuple[Cause, str]] = (
            self.classes.pins[self.classes.root(m)] for m in members if not self.free(m)
        )
        cause, reason = next(iter(pins), ("unproved", f"constant {name!r} {self.losses.get(name, ('', 0.0))[0]}"))
        copies = sum(self.free(m) for _, m in self.uses.get(name, ()))
        return cause, f"{reason}; {copies} of its {len(self.uses[name])} uses have a float copy" if copies else reason

    def rewrite(self) -> None:
        """Change types, constants and attributes of all that is free."""
        graph = self.model.graph
        fresh = Fresh(graph)
        changed = {name for name in self.doubles if self.whole(name)}
        for name in changed & self.tensors.keys():
            _round(self.tensors[name])
        for name, uses in self.uses.items():
            places = [place for place, member in uses if self.free(member) and name not in changed]
            if places:
                copy = TensorProto()
                copy.CopyFrom(self.tensors[name])
                copy.name = fresh.name(f"{name}__float")
                _round(copy)
                graph.initializer.append(copy)
                for index, slot in places:
                    graph.node[index].input[slot] = copy.name
        for member, (index, attribute) in self.classes.choosers.items():
            if self.free(member):
                _retype(graph.node[index], attribute)
        for value in (*graph.input, *graph.output, *graph.value_info):
            if value.name in changed:
                value.type.tensor_type.elem_type = TensorProto.FLOAT


def _round(tensor: TensorProto) -> None:
    with np.errstate(under="ignore"):
        values = numpy_helper.to_array(tensor).astype(np.float32)
    tensor.CopyFrom(numpy_helper.from_array(values, tensor.name))


def _retype(node: NodeProto, attribute: str) -> None:
    for a in node.attribute:
        if a.name == attribute and a.type == AttributeProto.INT:
            a.i = TensorProto.FLOAT
        elif a.name == attribute:
            _round(a.t)


def merged(reports: Iterable[ValueReport]) -> tuple[ValueReport, ...]:
    """Put the reports of several types in one order: inputs, outputs, then the rest as they came."""
    rank: Mapping[str, int] = {"input": 0, "output": 1}
    return tuple(sorted(reports, key=lambda value: rank.get(value.role, 2)))
