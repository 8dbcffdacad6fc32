"""Interval analysis of the integer part of an ONNX graph.

``analyse`` walks the graph once, in order, and gives every value a ``Fact``: bounds that hold in each run whose
inputs keep to the declared ranges and shapes. Whatever it does not know gets the whole range of its type, never a
guess: operators without a rule, other domains, functions of the model, undeclared inputs. Bodies of If, Loop and Scan
are followed; what a loop carries keeps its bounds only if one pass through the body cannot leave them.

An input that nobody declared but that indexes an N-row Gather gets [-N, N-1] as a precondition: the specification calls
any other index an error, so no valid run is lost.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, TensorProto, ValueInfoProto

from accel.core.errors import UsageError, nearest
from accel.core.values import ShapeRange
from accel.graph.narrow.facts import INT64, LIMITS, Dims, Fact, Interval, join, known, unknown
from accel.graph.narrow.inference import bound_axes, constant_fact, infer, node_graphs, overridable, real_inputs, typed
from accel.graph.narrow.moves import RULES
from accel.graph.narrow.report import AxisRange, InputRange
from accel.graph.narrow.rules import Call
from accel.graph.narrow.sizes import sizes

ONNX_DOMAINS = ("", "ai.onnx")
_KEEP_ELEMENTS = frozenset({"Identity", "Reshape", "Squeeze", "Unsqueeze", "Flatten", "Transpose"})
_MAX_FIXPOINT_DEPTH = 2
"""Loops nested deeper get no second try at bounds for what they carry, so that time stays linear."""


@dataclass(frozen=True, slots=True)
class InnerValue:
    """A value inside a sub-graph: the node that carries it, and what holds for it."""

    path: str
    op: str
    fact: Fact


@dataclass(frozen=True, slots=True)
class Analysis:
    """What is known about a model.

    Attributes:
        facts: every value of the main graph by name.
        inner: values of the sub-graphs.
        makers: value → operator that makes it, for messages.
        inputs / axes: the preconditions under which all of this holds.
        watched: node, operator and bounds over all integer inputs, of each node whose operator was asked for.
    """

    facts: Mapping[str, Fact]
    inner: tuple[InnerValue, ...]
    makers: Mapping[str, str]
    inputs: tuple[InputRange, ...]
    axes: tuple[AxisRange, ...]
    watched: tuple[tuple[str, str, int, int], ...] = ()


def analyse(
    model: ModelProto,
    folder: Path,
    *,
    ranges: Mapping[str, Interval],
    shapes: Mapping[str, ShapeRange],
    watch: frozenset[str] = frozenset(),
) -> Analysis:
    """Bound every value of the model.

    Args:
        model: a checked model, loaded without its external data.
        folder: where its external data lies; only small integer tensors of it are read.
        ranges: declared range by input, both ends inclusive.
        shapes: shape range by input; axes without one may be 0 to 2**31 - 1 long.
        watch: operators whose integer inputs are wanted.

    Raises:
        UsageError: a range or shape that contradicts the model or itself.
        InputError: types that contradict each other, or broken external data.
    """
    inputs = [_copy(v) for v in real_inputs(model)]
    axes, axis_ranges = bound_axes(inputs, shapes)
    _check_ranges(inputs, ranges)
    inferred = infer(model, inputs)
    walk = _Walk(inferred, axes, folder, watch)
    replaced = overridable(model)
    facts: dict[str, Fact] = {}
    for tensor in model.graph.initializer:
        if tensor.name not in replaced:
            facts[tensor.name] = constant_fact(tensor, folder)
    kinds = typed(inferred.graph, axes)
    taken = {name: kinds[name] for name in (v.name for v in inferred.graph.input)}
    found = [InputRange(n, lo, hi, "declared", "declared by the user") for n, (lo, hi) in ranges.items()]
    found += _gather_preconditions(inferred, {v.name for v in inputs} - set(ranges) - replaced, facts, kinds)
    bounds = {r.name: (r.lo, r.hi) for r in found}
    for name, (dtype, dims) in taken.items():
        facts.setdefault(name, known(dtype, bounds.get(name, LIMITS.get(dtype)), dims))
    walk.run(inferred.graph, facts, depth=0, path="", kinds=kinds)
    return Analysis(facts, tuple(walk.inner), walk.makers, tuple(found), axis_ranges, tuple(walk.watched))


def _copy(value: ValueInfoProto) -> ValueInfoProto:
    copy = ValueInfoProto()
    copy.CopyFrom(value)
    return copy


def _check_ranges(inputs: Sequence[ValueInfoProto], ranges: Mapping[str, Interval]) -> None:
    types = {v.name: v.type.tensor_type.elem_type for v in inputs}
    for name, (lo, hi) in ranges.items():
        if name not in types:
            raise UsageError(f"range for unknown input {name!r}{nearest(name, types)}", fix=f"inputs: {list(types)}")
        if types[name] not in LIMITS or types[name] == TensorProto.BOOL:
            kind = TensorProto.DataType.Name(types[name]).lower()
            raise UsageError(f"range for input {name!r}, which holds {kind}, not integers", fix="leave it out")
        if lo > hi:
            raise UsageError(f"range of input {name!r} contradicts itself: {lo} is above {hi}", fix=f"{name}={hi}:{lo}")
        low, high = LIMITS[types[name]]
        if lo < low or hi > high:
            raise UsageError(f"range [{lo}, {hi}] of input {name!r} exceeds its type: [{low}, {high}]")


def _gather_preconditions(
    model: ModelProto,
    undeclared: set[str],
    facts: Mapping[str, Fact],
    kinds: Mapping[str, tuple[int, Dims | None]],
) -> list[InputRange]:
    origin = {name: name for name in undeclared if kinds[name][0] in (TensorProto.INT64, TensorProto.INT32)}
    rows: dict[str, tuple[int, str]] = {}
    for node in model.graph.node:
        if node.domain not in ONNX_DOMAINS or not node.input:
            continue
        source = origin.get(node.input[0])
        widened = node.op_type == "Cast" and kinds.get(node.output[0], (0, None))[0] == TensorProto.INT64
        if source and (node.op_type in _KEEP_ELEMENTS or widened):
            origin[node.output[0]] = source
        if node.op_type != "Gather" or node.input[1] not in origin:
            continue
        table = facts[node.input[0]].dims if node.input[0] in facts else kinds.get(node.input[0], (0, None))[1]
        axis = next((a.i for a in node.attribute if a.name == "axis"), 0)
        if not table or not -len(table) <= axis < len(table) or not 0 < table[axis][1] <= 2**31:
            continue
        name, size = origin[node.input[1]], table[axis][1]
        if name not in rows or size < rows[name][0]:
            rows[name] = (
                size,
                f"indexes the {size} rows of {node.input[0]!r} in Gather {node.name or node.output[0]!r}",
            )
    return [InputRange(name, -size, size - 1, "gather", reason) for name, (size, reason) in rows.items()]


class _Walk:
    """One pass over a graph and its bodies. ``inner`` and ``makers`` collect what the report needs."""

    def __init__(
        self, model: ModelProto, axes: Mapping[str, Interval], folder: Path, watch: frozenset[str] = frozenset()
    ) -> None:
        self.opset = max((o.version for o in model.opset_import if o.domain in ONNX_DOMAINS), default=1)
        self.functions = {(f.domain, f.name) for f in model.functions}
        self.axes = axes
        self.folder = folder
        self.inner: list[InnerValue] = []
        self.watched_ops = watch
        self.watched: list[tuple[str, str, int, int]] = []
        self.makers: dict[str, str] = {}

    def run(
        self,
        graph: GraphProto,
        facts: Any,
        *,
        depth: int,
        path: str,
        kinds: Mapping[str, tuple[int, Dims | None]] | None = None,
        record: bool = True,
    ) -> None:
        """Add a fact for every value of ``graph`` to the mapping ``facts``, which already holds its inputs."""
        kinds = typed(graph, self.axes) if kinds is None else kinds
        for node in graph.node:
            outputs = [unknown(*kinds.get(name, (0, None))) for name in node.output]
            results = self.node(node, facts, outputs, depth=depth, path=path, record=record)
            for name, before, after in zip(node.output, outputs, results, strict=True):
                # A rule may not change the type that inference found.
                facts[name] = after if before.dtype in (0, after.dtype) else before
                if record and depth:
                    self.inner.append(InnerValue(f"{path}{name}", node.op_type, facts[name]))
                elif record:
                    self.makers[name] = node.op_type

    def node(
        self, node: NodeProto, facts: Mapping[str, Fact], outputs: list[Fact], *, depth: int, path: str, record: bool
    ) -> list[Fact]:
        """Return one fact for each output of a node."""
        standard = node.domain in ONNX_DOMAINS and (node.domain, node.op_type) not in self.functions
        inputs = [facts.get(name, Fact(0, None, None)) if name else None for name in node.input]
        bodies = node_graphs(node)
        if bodies:
            below = f"{path}{node.name or node.op_type}/"
            return self.bodies(
                node, inputs, facts, outputs, standard, bodies, depth=depth + 1, path=below, record=record
            )
        if not standard:
            return outputs
        if node.op_type == "Constant":
            tensors = [a.t for a in node.attribute if a.name == "value"]
            return [constant_fact(tensors[0], self.folder)] if tensors else [_listed(node, outputs[0])]
        call = Call(node.op_type, self.opset, inputs, _attributes(node), outputs)
        for i in range(len(outputs) if node.op_type in ("Split", "TopK") else min(len(outputs), 1)):
            out = outputs[i]
            outputs[i] = Fact(out.dtype, out.bounds, sizes(call, out.dims))
        if node.op_type in self.watched_ops and record:
            self._watch(node, f"{path}{node.name or node.output[0]}", inputs)
        rule = RULES.get(node.op_type)
        if rule is None:
            return outputs
        results = list(rule(call))[: len(outputs)]
        return results + outputs[len(results) :]

    def _watch(self, node: NodeProto, path: str, inputs: Sequence[Fact | None]) -> None:
        wide = [f.bounds for f in inputs if f is not None and f.dtype in LIMITS and f.bounds is not None]
        if wide:
            self.watched.append((path, node.op_type, int(min(b[0] for b in wide)), int(max(b[1] for b in wide))))

    def bodies(
        self,
        node: NodeProto,
        inputs: Sequence[Fact | None],
        facts: Mapping[str, Fact],
        outputs: list[Fact],
        standard: bool,
        bodies: Sequence[GraphProto],
        *,
        depth: int,
        path: str,
        record: bool,
    ) -> list[Fact]:
        """Follow If, Loop and Scan; walk the bodies of anything else knowing nothing of their inputs."""

        def through(body: GraphProto, given: Sequence[Fact | None], keep: bool) -> list[Fact]:
            local: ChainMap[str, Fact] = ChainMap({}, facts)  # type: ignore[arg-type]
            kinds = typed(body, self.axes)
            for tensor in body.initializer:
                local[tensor.name] = constant_fact(tensor, self.folder)
            for i, value in enumerate(body.input):
                fact = given[i] if i < len(given) else None
                dtype, dims = kinds[value.name]
                same = fact is not None and fact.dtype == dtype
                local[value.name] = known(dtype, fact.bounds, dims) if same and fact else unknown(dtype, dims)
                if keep and record:
                    self.inner.append(InnerValue(f"{path}{value.name}", "input", local[value.name]))
            self.run(body, local, depth=depth, path=path, kinds=kinds, record=keep and record)
            return [local.get(value.name, Fact(0, None, None)) for value in body.output]

        if standard and node.op_type == "If":
            branches = [through(body, [], True) for body in bodies]
            if {len(b) for b in branches} != {len(outputs)} or len(branches) != 2:
                return outputs
            joined = [join(a, b) for a, b in zip(*branches, strict=True)]
            return [_meet(o, j) for o, j in zip(outputs, joined, strict=True)]
        if standard and node.op_type == "Loop":
            count = inputs[0].bounds if inputs and inputs[0] is not None else None
            turn = Fact(TensorProto.INT64, (0, max(int(count[1]) - 1, 0) if count else INT64[1]), ())
            lead: list[Fact | None] = [turn, None]
            return self.loop(bodies[0], inputs[2:], lead, 1, [], outputs, through, depth)
        if standard and node.op_type == "Scan" and self.opset >= 9:
            streams = next((a.i for a in node.attribute if a.name == "num_scan_inputs"), 0)
            state = len(inputs) - streams
            return self.loop(bodies[0], inputs[:state], [], 0, list(inputs[state:]), outputs, through, depth)
        for body in bodies:
            through(body, [], True)
        return outputs

    def loop(
        self,
        body: GraphProto,
        initial: Sequence[Fact | None],
        lead: list[Fact | None],
        skip: int,
        streams: list[Fact | None],
        outputs: list[Fact],
        through: Any,
        depth: int,
    ) -> list[Fact]:
        """Find bounds of what a loop carries that one pass cannot leave, and the bounds of all its outputs.

        Args:
            initial: what is carried into the first turn.
            lead: body inputs before the carried ones; ``skip`` is the number of body outputs before them.
            streams: body inputs after the carried ones (elements of Scan inputs).
        """
        carried: list[Fact | None] = list(initial)
        if depth > _MAX_FIXPOINT_DEPTH:
            carried = [None] * len(carried)
        for attempt in range(2):
            if all(c is None for c in carried):
                break
            after = through(body, [*lead, *carried, *streams], False)[skip:]
            after += [Fact(0, None, None)] * (len(carried) - len(after))
            stable = [_inside(a, c) for a, c in zip(after, carried, strict=False)]
            if all(s or c is None for s, c in zip(stable, carried, strict=True)):
                break
            keep = attempt == 0
            carried = [c if s and keep else None for s, c in zip(stable, carried, strict=True)]
        results = through(body, [*lead, *carried, *streams], True)[skip:]
        settled = []
        for i, (out, result) in enumerate(zip(outputs, results, strict=False)):
            first = initial[i] if i < len(initial) else None
            whole = (
                join(replace(first, dims=None, items=None), replace(result, dims=None, items=None)) if first else result
            )
            certain = i >= len(initial) or (carried[i] is not None and first is not None)
            settled.append(_meet(out, whole) if certain else out)
        return settled + outputs[len(settled) :]


def _meet(out: Fact, result: Fact) -> Fact:
    return known(out.dtype, result.bounds, out.dims) if out.dtype == result.dtype else out


def _inside(after: Fact, before: Fact | None) -> bool:
    if before is None or before.bounds is None or after.bounds is None or after.dtype != before.dtype:
        return False
    return before.bounds[0] <= after.bounds[0] and after.bounds[1] <= before.bounds[1]


def _listed(node: NodeProto, out: Fact) -> Fact:
    attribute = node.attribute[0] if node.attribute else AttributeProto()
    if attribute.name == "value_int":
        return known(TensorProto.INT64, (attribute.i, attribute.i), (), [(attribute.i, attribute.i)])
    if attribute.name == "value_ints" and attribute.ints:
        values = list(attribute.ints)
        dims = ((len(values), len(values)),)
        return known(TensorProto.INT64, (min(values), max(values)), dims, [(v, v) for v in values])
    return out


def _attributes(node: NodeProto) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for a in node.attribute:
        if a.type == AttributeProto.INT:
            found[a.name] = a.i
        elif a.type == AttributeProto.INTS:
            found[a.name] = list(a.ints)
        elif a.type == AttributeProto.FLOAT:
            found[a.name] = a.f
        elif a.type == AttributeProto.STRING:
            found[a.name] = a.s
        elif a.type == AttributeProto.TENSOR:
            found[a.name] = a.t
    return found
