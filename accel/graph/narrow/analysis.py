"""Interval analysis of the integer part of an ONNX graph.

``analyse`` walks the graph once, in order, and gives every value a ``Fact``: bounds that hold in each run whose
inputs keep to the declared ranges and shapes. Whatever it does not know gets the whole range of its type, never a
guess: operators without a rule, other domains, functions of the model, undeclared inputs. Bodies of If, Loop and Scan
are followed; what a loop carries keeps its bounds only if one pass through the body cannot leave them.

An input that nobody declared but that indexes an N-row Gather gets [-N, N-1] as a precondition: the specification calls
any other index an error, so no valid run is lost.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import onnx
import onnx_ir as ir
from onnx.reference import ReferenceEvaluator

from accel.core.errors import UsageError, nearest
from accel.core.values import ShapeRange
from accel.graph.narrow.facts import INT64, LIMITS, MAX_ITEMS, Bounds, Fact, Interval, hull, join, known, unknown
from accel.graph.narrow.inference import (
    Kind,
    bodies,
    bound_axes,
    constant_array,
    constant_fact,
    constants,
    infer,
    overridable,
    real_inputs,
)
from accel.graph.narrow.moves import RULES
from accel.graph.narrow.report import AxisRange, InputRange
from accel.graph.narrow.rules import Call
from accel.graph.narrow.selection import Branch, Selection, bound, cases
from accel.graph.narrow.sizes import cut, sizes

_KEEP_ELEMENTS = frozenset({"Identity", "Reshape", "Squeeze", "Unsqueeze", "Flatten", "Transpose"})
FOLDED = frozenset(
    {"Cast", "Concat", "ConstantOfShape", "Not", "Reshape", "Slice", "Squeeze", "Transpose", "Unsqueeze"}
)
"""Operators that are computed where all that they take are few constant integers."""
_MAX_FIXPOINT_DEPTH = 2
"""Loops nested deeper get no second try at bounds for what they carry, so that time stays linear."""
_NOTHING = Fact(0, None, None)


@dataclass(frozen=True, slots=True)
class InnerValue:
    """A value inside a sub-graph: the node that carries it, and what holds for it."""

    path: str
    op: str
    fact: Fact
    value: ir.Value


@dataclass(frozen=True, slots=True)
class Analysis:
    """What is known about a model.

    Attributes:
        facts: every named value of the main graph.
        inner: values of the sub-graphs.
        inputs / axes: the preconditions under which all of this holds.
        watched: node, operator and bounds over all integer inputs, of each node whose operator was asked for.
        selections: what holds where a branch of a Where is selected, in each case that its condition leaves.
    """

    facts: Mapping[ir.Value, Fact]
    inner: tuple[InnerValue, ...]
    inputs: tuple[InputRange, ...]
    axes: tuple[AxisRange, ...]
    watched: tuple[tuple[str, str, int, int], ...] = ()
    selections: Mapping[Branch, Sequence[Selection]] = field(default_factory=dict)


def analyse(
    model: ir.Model,
    *,
    ranges: Mapping[str, Interval],
    shapes: Mapping[str, ShapeRange],
    watch: frozenset[str] = frozenset(),
) -> Analysis:
    """Bound every value of the model.

    Args:
        model: a checked model; of its external data only small integer tensors are read.
        ranges: declared range by input, both ends inclusive.
        shapes: shape range by input; axes without one may be 0 to 2**31 - 1 long.
        watch: operators whose integer inputs are wanted.

    Raises:
        UsageError: a range or shape that contradicts the model or itself.
        InputError: types that contradict each other, or broken external data.
    """
    given = [ir.to_proto(v) for v in real_inputs(model)]
    axes, axis_ranges = bound_axes(given, shapes)
    _check_ranges(given, ranges)
    walk = _Walk(model, infer(model, given, axes), watch)
    replaced = overridable(model)
    for value, tensor in constants(model).items():
        if value.is_initializer() and value not in replaced:
            walk.facts[value] = walk.constant(value, tensor)
    found = [InputRange(n, lo, hi, "declared", "declared by the user") for n, (lo, hi) in ranges.items()]
    undeclared = [v for v in real_inputs(model) if v.name not in ranges and v not in replaced]
    found += _gather_preconditions(model, undeclared, walk)
    bounds = {r.name: (r.lo, r.hi) for r in found}
    for value in real_inputs(model):
        dtype, dims = walk.kinds[value]
        walk.facts[value] = known(dtype, bounds.get(value.name, LIMITS.get(dtype)), dims)
    walk.run(model.graph, depth=0, path="")
    facts = {v: fact for v, fact in walk.facts.items() if v.graph is model.graph and v.name}
    return Analysis(facts, tuple(walk.inner), tuple(found), axis_ranges, tuple(walk.watched), walk.selections)


def _check_ranges(inputs: Sequence[onnx.ValueInfoProto], ranges: Mapping[str, Interval]) -> None:
    types = {v.name: ir.DataType(v.type.tensor_type.elem_type) for v in inputs}
    for name, (lo, hi) in ranges.items():
        if name not in types:
            raise UsageError(f"range for unknown input {name!r}{nearest(name, types)}", fix=f"inputs: {list(types)}")
        if types[name] not in LIMITS or types[name] == ir.DataType.BOOL:
            kind = types[name].name.lower()
            raise UsageError(f"range for input {name!r}, which holds {kind}, not integers", fix="leave it out")
        if lo > hi:
            raise UsageError(f"range of input {name!r} contradicts itself: {lo} is above {hi}", fix=f"{name}={hi}:{lo}")
        low, high = LIMITS[types[name]]
        if lo < low or hi > high:
            raise UsageError(f"range [{lo}, {hi}] of input {name!r} exceeds its type: [{low}, {high}]")


def _gather_preconditions(model: ir.Model, undeclared: Sequence[ir.Value], walk: "_Walk") -> list[InputRange]:
    kinds = walk.kinds
    origin = {v: v.name for v in undeclared if kinds[v][0] in (ir.DataType.INT64, ir.DataType.INT32)}
    rows: dict[str, tuple[int, str]] = {}
    for node in model.graph:
        if node.domain or not node.inputs:
            continue
        source = origin.get(node.inputs[0])
        widened = node.op_type == "Cast" and kinds.get(node.outputs[0], (0, None))[0] == ir.DataType.INT64
        if source and (node.op_type in _KEEP_ELEMENTS or widened):
            origin[node.outputs[0]] = source
        if node.op_type != "Gather" or node.inputs[1] not in origin:
            continue
        rows_of = node.inputs[0]
        table = walk.facts[rows_of].dims if rows_of in walk.facts else kinds.get(rows_of, (0, None))[1]
        axis = node.attributes.get_int("axis", 0)
        if not table or not -len(table) <= axis < len(table) or not 0 < table[axis][1] <= 2**31:
            continue
        name, size = origin[node.inputs[1]], table[axis][1]
        if name not in rows or size < rows[name][0]:
            rows[name] = (
                size,
                f"indexes the {size} rows of {rows_of.name!r} in Gather {node.name or node.outputs[0].name!r}",
            )
    return [InputRange(name, -size, size - 1, "gather", reason) for name, (size, reason) in rows.items()]


class _Walk:
    """One pass over a graph and its bodies. ``inner`` and ``watched`` collect what the report needs."""

    def __init__(self, model: ir.Model, kinds: Mapping[ir.Value, Kind], watch: frozenset[str]) -> None:
        self.opset = model.opset_imports.get("", 1)
        self.functions = model.functions
        self.kinds = kinds
        self.facts: dict[ir.Value, Fact] = {}
        self.inner: list[InnerValue] = []
        self.watched_ops = watch
        self.watched: list[tuple[str, str, int, int]] = []
        self.tensors: dict[ir.Value, np.ndarray] = {}
        self.selections: dict[Branch, list[dict[ir.Value, Fact]]] = {}

    def run(self, graph: ir.Graph, *, depth: int, path: str, record: bool = True) -> None:
        """Find a fact for every value that the nodes of a graph make; those of its inputs are there already."""
        for node in graph:
            outputs = [unknown(*self.kinds.get(value, (0, None))) for value in node.outputs]
            results = self.node(node, outputs, depth=depth, path=path, record=record)
            for value, before, after in zip(node.outputs, outputs, results, strict=True):
                # A rule may not change the type that inference found.
                self.facts[value] = after if before.dtype in (0, after.dtype) else before
                if record and depth:
                    self.inner.append(InnerValue(f"{path}{value.name}", node.op_type, self.facts[value], value))

    def node(self, node: ir.Node, outputs: list[Fact], *, depth: int, path: str, record: bool) -> list[Fact]:
        """Return one fact for each output of a node."""
        standard = not node.domain and node.op_identifier() not in self.functions
        if standard and node.op_type in FOLDED and (folded := self.fold(node)) is not None:
            return [self.constant(node.outputs[0], folded)]
        inputs = [self.facts.get(value, _NOTHING) if value is not None else None for value in node.inputs]
        if carried := list(bodies(node)):
            return self.bodies(
                node,
                inputs,
                outputs,
                standard,
                carried,
                depth=depth + 1,
                path=f"{path}{node.name or node.op_type}/",
                record=record,
            )
        if not standard:
            return outputs
        if node.op_type == "Constant":
            tensor = ir.convenience.get_const_tensor(node.outputs[0])
            return [self.constant(node.outputs[0], tensor)] if tensor is not None else outputs
        if node.op_type in self.watched_ops and record:
            self._watch(node, f"{path}{node.name or node.outputs[0].name}", inputs)
        outputs = self.computed(node, inputs, outputs)
        return [self.selected(node, outputs[0])] if node.op_type == "Where" else outputs

    def computed(self, node: ir.Node, inputs: Sequence[Fact | None], outputs: list[Fact]) -> list[Fact]:
        """Apply the rules of sizes and of bounds to a node of ONNX's own operators."""
        attributes = {name: a.value for name, a in node.attributes.items()}
        call = Call(node.op_type, self.opset, inputs, attributes, outputs)
        for i in range(len(outputs) if node.op_type in ("Split", "TopK") else min(len(outputs), 1)):
            out = outputs[i]
            outputs[i] = Fact(out.dtype, out.bounds, sizes(call, out.dims))
        rule = RULES.get(node.op_type)
        if rule is None:
            return outputs
        results = list(rule(call))[: len(outputs)]
        return results + outputs[len(results) :]

    def selected(self, node: ir.Node, out: Fact) -> Fact:
        """Bound a Where by what its branches hold where its condition selects them."""

        def again(of: ir.Node, inputs: Sequence[Fact | None], before: Fact) -> Fact:
            return self.computed(of, inputs, [unknown(before.dtype, before.dims)])[0]

        parts: list[Bounds | None] = []
        for slot, truth in ((1, True), (2, False)):
            held = cases(node.inputs[0], truth, self.facts)
            parts += [bound(node.inputs[slot], case, self.facts, again).bounds for case in held]
            self.selections[node, slot] = held
        both = hull(parts)
        return out if both is None or out.items is not None else known(out.dtype, both, out.dims)

    def constant(self, value: ir.Value, tensor: ir.TensorProtocol) -> Fact:
        """Return the fact of a constant, whose values are kept where they are few integers."""
        if tensor.size <= MAX_ITEMS and (array := constant_array(tensor)) is not None:
            self.tensors[value] = array
        return constant_fact(tensor)

    def array(self, value: ir.Value) -> np.ndarray | None:
        """Return the values of a constant that is followed, or that its fact pins down."""
        fact = self.facts.get(value, _NOTHING)
        if value in self.tensors or fact.constant is None or fact.dims is None or fact.dtype not in LIMITS:
            return self.tensors.get(value)
        return np.array(fact.constant, ir.DataType(fact.dtype).numpy()).reshape([-1] * len(fact.dims))

    def fold(self, node: ir.Node) -> ir.TensorProtocol | None:
        """Compute a node of few constant integers, of any rank; None where it is another one.

        ``F.pad`` gives Pad its sizes through a matrix, which facts do not follow element by element.
        """
        given = [self.array(value) for value in node.inputs if value is not None]
        if len(given) != len(node.inputs) or len(node.outputs) != 1 or any(array is None for array in given):
            return None
        try:
            (result,) = ReferenceEvaluator(ir.to_proto(node), opsets={"": self.opset}).run(
                None, {str(value.name): array for value, array in zip(node.inputs, given, strict=True)}
            )
        except Exception:  # noqa: BLE001  the walk goes on without: the reference evaluator raises what NumPy raises
            return None
        return ir.tensor(result)

    def _watch(self, node: ir.Node, path: str, inputs: Sequence[Fact | None]) -> None:
        wide = [f.bounds for f in inputs if f is not None and f.dtype in LIMITS and f.bounds is not None]
        if wide:
            self.watched.append((path, node.op_type, int(min(b[0] for b in wide)), int(max(b[1] for b in wide))))

    def bodies(
        self,
        node: ir.Node,
        inputs: Sequence[Fact | None],
        outputs: list[Fact],
        standard: bool,
        bodies: Sequence[ir.Graph],
        *,
        depth: int,
        path: str,
        record: bool,
    ) -> list[Fact]:
        """Follow If, Loop and Scan; walk the bodies of anything else knowing nothing of their inputs."""

        def through(body: ir.Graph, given: Sequence[Fact | None], keep: bool) -> list[Fact]:
            for value in body.initializers.values():
                self.facts[value] = self.constant(value, value.const_value)
            for i, value in enumerate(body.inputs):
                fact = given[i] if i < len(given) else None
                dtype, dims = self.kinds[value]
                same = fact is not None and fact.dtype == dtype
                self.facts[value] = known(dtype, fact.bounds, dims) if same and fact else unknown(dtype, dims)
                if keep and record:
                    self.inner.append(InnerValue(f"{path}{value.name}", "input", self.facts[value], value))
            self.run(body, depth=depth, path=path, record=keep and record)
            return [self.facts.get(value, _NOTHING) for value in body.outputs]

        if standard and node.op_type == "If":
            branches = [through(body, [], True) for body in bodies]
            if {len(b) for b in branches} != {len(outputs)} or len(branches) != 2:
                return outputs
            for always, name in (((1, 1), "then_branch"), ((0, 0), "else_branch")):
                if inputs[0] is not None and inputs[0].fits(always):  # the other one never runs
                    taken = node.attributes[name].as_graph()
                    branches = [branch for branch, body in zip(branches, bodies, strict=True) if body is taken] * 2
            joined = [join(a, b) for a, b in zip(*branches, strict=True)]
            return [
                known(o.dtype, j.bounds, j.dims if o.dims is None else cut(j.dims, o.dims), j.items)
                if o.dtype == j.dtype
                else o
                for o, j in zip(outputs, joined, strict=True)
            ]
        if standard and node.op_type == "Loop":
            count = inputs[0].bounds if inputs and inputs[0] is not None else None
            turn = Fact(ir.DataType.INT64, (0, max(int(count[1]) - 1, 0) if count else INT64[1]), ())
            lead: list[Fact | None] = [turn, None]
            return self.loop(bodies[0], inputs[2:], lead, 1, [], outputs, through, depth)
        if standard and node.op_type == "Scan" and self.opset >= 9:
            streams = node.attributes.get_int("num_scan_inputs", 0)
            state = len(inputs) - streams
            return self.loop(bodies[0], inputs[:state], [], 0, list(inputs[state:]), outputs, through, depth)
        for body in bodies:
            through(body, [], True)
        return outputs

    def loop(
        self,
        body: ir.Graph,
        initial: Sequence[Fact | None],
        lead: list[Fact | None],
        skip: int,
        streams: list[Fact | None],
        outputs: list[Fact],
        through: Callable[[ir.Graph, Sequence[Fact | None], bool], list[Fact]],
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
            after += [_NOTHING] * (len(carried) - len(after))
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
            certain = certain and out.dtype == whole.dtype
            settled.append(known(out.dtype, whole.bounds, out.dims) if certain else out)
        return settled + outputs[len(settled) :]


def _inside(after: Fact, before: Fact | None) -> bool:
    if before is None or before.bounds is None or after.bounds is None or after.dtype != before.dtype:
        return False
    return before.bounds[0] <= after.bounds[0] and after.bounds[1] <= before.bounds[1]
