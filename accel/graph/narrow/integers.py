"""The pass that narrows INT64 or UINT64 to INT32: analyse, plan, say why, and carry it out on the graph.

Only what the plan names is touched: declared types, int32 copies of small constants, Casts at the boundary. External
data is referred to; of it only small integer constants are read.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from accel.core.values import Int32Runtime, ShapeRange
from accel.graph import Level
from accel.graph.narrow.analysis import Analysis, analyse
from accel.graph.narrow.classes import retyped, value_of
from accel.graph.narrow.facts import INT32, Interval
from accel.graph.narrow.plan import Plan, Planner
from accel.graph.narrow.reasons import describe
from accel.graph.narrow.report import ValueReport
from accel.graph.passes import ContractPass

CAST_OPSET = 13
"""Opset of an added Cast, in a model that imports none of ONNX's own domain."""


@dataclass
class Narrowed(ir.passes.PassResult):
    """What a narrowing pass did.

    Attributes:
        values: the decision on each value of the type.
        analysis: what was known about the values, before the pass changed them.
        casts: Cast nodes that were added.
    """

    values: tuple[ValueReport, ...]
    analysis: Analysis
    casts: int = 0


@dataclass(eq=False, kw_only=True)
class NarrowIntegers(ContractPass):
    """Narrow the values of one 64-bit integer type that are proved to fit INT32.

    Args:
        source: INT64 or UINT64.
        level / ranges / shapes / runtime: as of ``narrow_file``.
    """

    retypes = True
    source: ir.DataType
    level: Level
    ranges: Mapping[str, Interval]
    shapes: Mapping[str, ShapeRange]
    runtime: Int32Runtime

    def call(self, model: ir.Model) -> Narrowed:
        """Narrow what is proved.

        Raises:
            UsageError / InputError: as ``analyse``.
            UnavailableError: as ``Kernels``.
        """
        analysis = analyse(model, ranges=self.ranges, shapes=self.shapes)
        planner = Planner(model, analysis, level=self.level, runtime=self.runtime, source=self.source)
        plan = planner.make()
        values = describe(planner, plan, analysis)
        casts = _apply(model, planner, plan)
        modified = bool(plan.values or plan.copies or plan.inputs or plan.outputs)
        return Narrowed(model, modified, values, analysis, casts)


def _apply(model: ir.Model, planner: Planner, plan: Plan) -> int:
    """Change the model as planned; return the number of Casts added."""
    graph, names = model.graph, Names(model)
    _copy_constants(graph, planner, plan, names)
    for value, attribute in plan.choosers.items():
        node = value.producer()
        node.attributes.add(retyped(node.attributes[attribute], ir.DataType.INT32))
    suffix = planner.source.name.lower()
    before = []
    for value, direct in plan.inputs.items():
        if wide := [use for use in value.uses() if use not in direct]:
            name, node_name = names.fresh(f"{value.name}__{suffix}"), names.fresh(f"{value.name}__widen")
            cast = _cast(value, name, planner.source, node_name)
            for use in wide:
                use.node.replace_input_with(use.idx, cast.outputs[0])
            before.append(cast)
    for value in (*plan.values, *plan.inputs):
        if value.type is not None:
            value.type = ir.TensorType(ir.DataType.INT32)
    if before:
        graph.insert_before(graph[0], before)
    for value in plan.outputs:
        name, value.name = value.name, names.fresh(f"{value.name}__{suffix}")
        cast = _cast(value, name, ir.DataType.INT32, names.fresh(f"{name}__narrow"))
        graph.append(cast)
        for index, output in enumerate(graph.outputs):
            if output is value:
                graph.outputs[index] = cast.outputs[0]
    if casts := len(before) + len(plan.outputs):
        model.opset_imports.setdefault("", CAST_OPSET)
    return casts


def _cast(value: ir.Value, name: str, to: ir.DataType, node_name: str) -> ir.Node:
    shape = value.shape.copy() if value.shape is not None else None
    made = ir.Value(name=name, type=ir.TensorType(to), shape=shape)
    return ir.node("Cast", [value], {"to": int(to)}, outputs=[made], name=node_name)


def _copy_constants(graph: ir.Graph, planner: Planner, plan: Plan, names: "Names") -> None:
    """Give uses their int32 copies; remove the constants that nobody uses any more."""
    copies: dict[tuple[ir.Value, bool], ir.Value] = {}
    for use, saturate in plan.copies.items():
        old = value_of(use)
        if (old, saturate) not in copies:
            array = planner.constants[old].numpy()
            array = np.clip(array, *INT32) if saturate else array
            copies[old, saturate] = add_constant(graph, names.fresh(f"{old.name}__int32"), array.astype(np.int32))
        use.node.replace_input_with(use.idx, copies[old, saturate])
    for old in dict.fromkeys(old for old, _ in copies):
        maker = old.producer()
        if old.uses() or old.is_graph_output() or old.is_graph_input():
            continue
        if maker is not None:
            graph.remove(maker)
        else:
            graph.initializers.pop(old.name)


def add_constant(graph: ir.Graph, name: str, array: np.ndarray) -> ir.Value:
    """Add an initialiser to a graph."""
    tensor = ir.tensor(array, name=name)
    value = ir.Value(name=name, type=ir.TensorType(tensor.dtype), shape=tensor.shape, const_value=tensor)
    graph.register_initializer(value)
    return value


class Names:
    """Gives names that no value and no node of the model has."""

    def __init__(self, model: ir.Model) -> None:
        self.used: set[str | None] = set()
        for graph in model.graphs():
            self.used |= {v.name for v in (*graph.inputs, *graph.initializers.values())}
            self.used |= {name for node in graph for name in (node.name, *(v.name for v in node.outputs))}

    def fresh(self, wanted: str) -> str:
        """Return ``wanted``, or the same with a number after it."""
        name, number = wanted, 1
        while name in self.used:
            number += 1
            name = f"{wanted}_{number}"
        self.used.add(name)
        return name
