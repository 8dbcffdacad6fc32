"""Carry out a plan on a model, in place, and write it next to its external data.

Only what the plan names is touched: types of inputs, outputs and ``value_info``, int32 copies of small constants,
Casts at the boundary. External data is referred to, never read.
"""

from __future__ import annotations

import filecmp
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, ValueInfoProto, helper, numpy_helper

from accel.core.errors import OutputError
from accel.graph.narrow.analysis import ONNX_DOMAINS
from accel.graph.narrow.classes import captured
from accel.graph.narrow.facts import INT32
from accel.graph.narrow.inference import constant_array, node_graphs
from accel.graph.narrow.plan import Plan, retype

CAST_OPSET = 13
"""Opset of an added Cast, in a model that imports none of ONNX's own domain."""


def rewrite(model: ModelProto, plan: Plan, folder: Path) -> int:
    """Apply the plan.

    Returns:
        The number of Casts added.
    """
    graph = model.graph
    fresh = Fresh(graph)
    gone = _copy_constants(model, plan, folder, fresh)
    for index, attribute in plan.choosers.items():
        retype(graph.node[index], attribute)
    before, after = _cast_inputs(graph, plan, fresh), _cast_outputs(graph, plan, fresh)
    changed = plan.values | set(plan.inputs) | set(plan.outputs)
    declared: Iterator[ValueInfoProto] = iter((*graph.input, *graph.output, *graph.value_info))
    for value in declared:
        if value.name in changed:
            value.type.tensor_type.elem_type = TensorProto.INT32
    if before or gone:
        nodes = [*before, *(n for n in graph.node if not (n.op_type == "Constant" and n.output[0] in gone))]
        graph.ClearField("node")
        graph.node.extend(nodes)
    graph.node.extend(after)
    if (before or after) and not any(o.domain in ONNX_DOMAINS for o in model.opset_import):
        model.opset_import.append(helper.make_opsetid("", CAST_OPSET))
    return len(before) + len(after)


class Fresh:
    """Gives names that the model does not use."""

    def __init__(self, graph: GraphProto) -> None:
        self.graph = graph
        self.used: set[str] = set()

    def name(self, wanted: str) -> str:
        self.used = self.used or set(_names(self.graph))
        name, number = wanted, 1
        while name in self.used:
            number += 1
            name = f"{wanted}_{number}"
        self.used.add(name)
        return name


def type_name(dtype: int) -> str:
    """Return the name of an element type as it ends a new value's name: ``int64``."""
    return TensorProto.DataType.Name(dtype).lower()


def _names(graph: GraphProto) -> Iterator[str]:
    for value in (*graph.input, *graph.output, *graph.initializer):
        yield value.name
    for node in graph.node:
        yield node.name
        yield from node.input
        yield from node.output
        for inner in node_graphs(node):
            yield from _names(inner)


def _copy_constants(model: ModelProto, plan: Plan, folder: Path, fresh: Fresh) -> set[str]:
    """Give places their int32 copies; return the constants that nobody uses any more."""
    graph = model.graph
    if not plan.copies:
        return set()
    tensors = {t.name: t for t in graph.initializer}
    makers = {n.output[0]: n for n in graph.node if n.op_type == "Constant" and n.domain in ONNX_DOMAINS}
    names: dict[tuple[str, bool], str] = {}
    for (index, slot), saturate in plan.copies.items():
        old = graph.node[index].input[slot]
        if (old, saturate) not in names:
            names[old, saturate] = fresh.name(f"{old}__int32")
            array = _values(tensors[old], folder) if old in tensors else _constant(makers[old], folder)
            if saturate:
                array = np.clip(array, *INT32)
            graph.initializer.append(numpy_helper.from_array(array.astype(np.int32), names[old, saturate]))
        graph.node[index].input[slot] = names[old, saturate]
    return _drop_unused(graph, {old for old, _ in names})


def _values(tensor: TensorProto, folder: Path) -> np.ndarray:
    array = constant_array(tensor, folder)
    assert array is not None, "the plan copies only constants that can be read"
    return array


def _constant(node: NodeProto, folder: Path) -> np.ndarray:
    attribute = node.attribute[0]
    if attribute.name == "value":
        return _values(attribute.t, folder)
    return np.array(attribute.i if attribute.name == "value_int" else list(attribute.ints), np.int64)


def _drop_unused(graph: GraphProto, candidates: set[str]) -> set[str]:
    used = {v.name for v in graph.output} | {v.name for v in graph.input}
    for node in graph.node:
        used.update(node.input)
        for inner in node_graphs(node):
            used |= captured(inner)
    gone = candidates - used
    for field in (graph.initializer, graph.value_info):
        for i in reversed([i for i, item in enumerate(field) if item.name in gone]):
            del field[i]
    return gone


def _cast_inputs(graph: GraphProto, plan: Plan, fresh: Fresh) -> list[NodeProto]:
    wide: dict[str, str] = {}
    suffix = type_name(plan.source)
    if not plan.inputs:
        return []
    for index, node in enumerate(graph.node):
        for slot, name in enumerate(node.input):
            if name in plan.inputs and (index, slot) not in plan.inputs[name]:
                wide.setdefault(name, "")
                wide[name] = wide[name] or fresh.name(f"{name}__{suffix}")
                node.input[slot] = wide[name]
        for inner in node_graphs(node):
            for name in captured(inner) & plan.inputs.keys():
                wide.setdefault(name, "")
                wide[name] = wide[name] or fresh.name(f"{name}__{suffix}")
            _rename(inner, wide)
    return [
        helper.make_node("Cast", [name], [new], name=fresh.name(f"{name}__widen"), to=plan.source)
        for name, new in wide.items()
    ]


def _cast_outputs(graph: GraphProto, plan: Plan, fresh: Fresh) -> list[NodeProto]:
    new = {name: fresh.name(f"{name}__{type_name(plan.source)}") for name in plan.outputs}
    if not new:
        return []
    for node in graph.node:
        for names in (node.input, node.output):
            for slot, name in enumerate(names):
                if name in new:
                    names[slot] = new[name]
        for inner in node_graphs(node):
            _rename(inner, new)
    for item in (*graph.initializer, *graph.value_info):
        if item.name in new:
            item.name = new[item.name]
    return [
        helper.make_node("Cast", [old], [name], name=fresh.name(f"{name}__narrow"), to=TensorProto.INT32)
        for name, old in new.items()
    ]


def _rename(graph: GraphProto, new: dict[str, str]) -> None:
    """Rename what a sub-graph takes from outside; a name that it defines itself is its own."""
    own = {v.name for v in graph.input} | {t.name for t in graph.initializer}
    for node in graph.node:
        own.update(node.output)
    outside = {name: to for name, to in new.items() if name not in own}
    for node in graph.node:
        for slot, name in enumerate(node.input):
            if name in outside:
                node.input[slot] = outside[name]
        for inner in node_graphs(node):
            _rename(inner, outside)
    for value in graph.output:
        if value.name in outside:
            value.name = outside[value.name]


def external_files(model: ModelProto) -> list[str]:
    """Return the external data files that the model names, relative to its folder."""
    found = {
        entry.value: None
        for tensor in _tensors(model.graph)
        if tensor.data_location == TensorProto.EXTERNAL
        for entry in tensor.external_data
        if entry.key == "location"
    }
    return list(found)


def _tensors(graph: GraphProto) -> Iterator[TensorProto]:
    yield from graph.initializer
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("t"):
                yield attribute.t
        for inner in node_graphs(node):
            yield from _tensors(inner)


def write(model: ModelProto, source: Path, out: Path) -> Path:
    """Write the model under a temporary name beside ``out``, with its external data; the caller renames it.

    Raises:
        OutputError: the folder cannot be written, the disk is full, or another file stands where external data belongs.
    """
    temporary = out.with_name(f".{out.name}.{os.getpid()}.tmp")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        with temporary.open("wb") as file:
            file.write(model.SerializeToString())
        if out.parent.resolve() != source.parent.resolve():
            for name in external_files(model):
                _bring(source.parent / name, out.parent / name)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise OutputError(f"{out} cannot be written: {error}", fix="free some space, or choose another -o") from error
    except OutputError:
        temporary.unlink(missing_ok=True)
        raise
    return temporary


def _bring(data: Path, copy: Path) -> None:
    if copy.exists():
        if not filecmp.cmp(data, copy, shallow=False):
            raise OutputError(f"{copy} exists and is not the external data of the model", fix="choose another folder")
        return
    copy.parent.mkdir(parents=True, exist_ok=True)
    half = copy.with_name(f".{copy.name}.{os.getpid()}.tmp")
    try:
        shutil.copyfile(data, half)
        half.replace(copy)
    finally:
        half.unlink(missing_ok=True)
