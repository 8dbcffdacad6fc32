"""The graph of an encoder changed so that a row may hold several sentences: exported ONNX, and OpenVINO's IR.

A packed graph takes, in the place of the mask, ``segments`` (rows, width): which sentence of its row a position
belongs to, from 1, and 0 for padding; ``positions`` (rows, width), which begin at 0 with each sentence; and ``starts``
(sentences,): where in the flattened rows each begins, for what is made of the first token (a pooler). A position sees
those of its own segment alone. All are int32.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir
from onnx_ir.passes.common import RemoveUnusedNodesPass

from accel.core.errors import InputError

PACKED: Mapping[str, tuple[str, ...]] = {
    "segments": ("batch", "seq"),
    "positions": ("batch", "seq"),
    "starts": ("sentences",),
}


class Pack(ir.passes.InPlacePass):
    """Let an encoder's exported graph take packed rows.

    Args:
        mask: the input (batch, length) that ``segments`` replaces.
    """

    def __init__(self, mask: str) -> None:
        super().__init__()
        self.mask = mask

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Replace mask and positions, and take the first token of each sentence in place of each row's.

        Raises:
            InputError: the graph has not one place where the mask, or where positions come in.
        """
        graph = model.graph
        masked, placed, first = _places(list(graph), graph.inputs, self.mask)
        given = {name: _input(name, dims) for name, dims in PACKED.items()}
        graph.inputs.extend(given.values())
        made: list[ir.Node] = []

        def add(op: str, value: ir.Value, constant: list[int]) -> ir.Value:
            shape = ir.val(f"packed_{len(made)}", const_value=ir.tensor(np.array(constant), name=f"packed_{len(made)}"))
            graph.register_initializer(shape)
            made.append(ir.node(op, [value, shape], name=f"packed_{op}_{len(made)}"))
            return made[-1].outputs[0]

        same = ir.node(
            "Equal", [add("Unsqueeze", given["segments"], [1, 3]), add("Unsqueeze", given["segments"], [1, 2])]
        )
        graph.insert_before(masked, [*made, same])
        masked.replace_input_with(0, same.outputs[0])
        placed.replace_input_with(1, given["positions"])
        for node in first:
            hidden = node.inputs[0]
            flat = add("Reshape", hidden, [-1, int(hidden.shape[-1])])
            graph.insert_before(node, made[-1:])
            node.replace_input_with(0, flat)
            node.replace_input_with(1, given["starts"])
            node.attributes["axis"] = ir.AttrInt64("axis", 0)
        RemoveUnusedNodesPass()(model)
        for value in [v for v in graph.inputs if v.name == self.mask or not v.uses()]:
            graph.inputs.remove(value)
        for value in graph.outputs:
            if first and value.shape is not None and len(value.shape) == 2:
                value.shape = ir.Shape(["sentences", *value.shape.dims[1:]])
        return ir.passes.PassResult(model, True)


def _input(name: str, dims: Sequence[str]) -> ir.Value:
    return ir.val(name, ir.DataType.INT32, ir.Shape(dims))


def _places(nodes: Sequence[ir.Node], inputs: Sequence[ir.Value], mask: str) -> tuple[ir.Node, ir.Node, list[ir.Node]]:
    """Return where a graph takes the mask, where positions, and where each row's first token."""
    shaped, valued = set(inputs), set(inputs)
    masks = {value for value in inputs if value.name == mask}
    masked, placed, first = [], [], []
    for node in nodes:
        used = [value for value in node.inputs if value is not None]
        if node.op_type == "Where" and node.inputs[0] in masks:
            masked.append(node)
        if node.op_type == "Gather":
            data, index = used
            if data not in shaped and index in shaped - valued:
                placed.append(node)
            elif data in valued and index not in shaped and node.attributes["axis"].as_int() == 1:
                first.append(node)
        for held in (shaped, valued, *([masks] if not masked else [])):
            if not held.isdisjoint(used) and (held is shaped or node.op_type != "Shape"):
                held.update(node.outputs)
    if len(masked) != 1 or len(placed) != 1:
        raise InputError(
            f"the graph cannot be packed: {len(masked)} places take the mask {mask!r} and {len(placed)} the positions, "
            "expected one of each",
            fix="pack encoders with a mask that is made once, and learned absolute positions",
        )
    return masked[0], placed[0], first


def pack_ir(model: Any, mask: str) -> None:
    """Let an OpenVINO model, quantised or not, take packed rows, as ``Pack`` does.

    Raises:
        InputError: the graph has not one place where the mask, or where positions come in.
    """
    from openvino import opset13 as ops

    shaped = {p.get_name() for p in model.get_parameters()}
    valued, masks = set(shaped), {model.input(mask).get_node().get_name()}
    masked, placed, first = [], [], []
    for op in model.get_ordered_ops():
        used = [value.get_node().get_name() for value in op.input_values()]
        kind, name = op.get_type_name(), op.get_name()
        if kind == "Select" and used[0] in masks:
            masked.append(op)
        if kind == "Gather":
            data, index, _ = used
            if data not in shaped and index in shaped - valued:
                placed.append(op)
            elif data in valued and index not in shaped and int(op.input_value(2).get_node().get_vector()[0]) == 1:
                first.append(op)
        for held in (shaped, valued, *([masks] if not masked else [])):
            if not held.isdisjoint(used) and (held is shaped or kind != "ShapeOf"):
                held.add(name)
    if len(masked) != 1 or len(placed) != 1:
        raise InputError(
            f"the IR cannot be packed: {len(masked)} places take the mask {mask!r} and {len(placed)} the positions, "
            "expected one of each",
            fix="pack encoders with a mask that is made once, and learned absolute positions",
        )
    given = {name: ops.parameter([-1] * len(dims), np.int32, name=name) for name, dims in PACKED.items()}
    for name, parameter in given.items():
        parameter.output(0).set_names({name})
    segments = given["segments"]
    same = ops.equal(ops.unsqueeze(segments, [1, 3]), ops.unsqueeze(segments, [1, 2]))
    masked[0].input(0).replace_source_output(same.output(0))
    placed[0].input(1).replace_source_output(given["positions"].output(0))
    for op in first:
        hidden = op.input_value(0)
        flat = ops.reshape(hidden, [-1, hidden.get_partial_shape()[2].get_length()], special_zero=False)
        new = ops.gather(flat, given["starts"], 0)
        for target in list(op.output(0).get_target_inputs()):
            target.replace_source_output(new.output(0))
    model.remove_parameter(model.input(mask).get_node())
    model.add_parameters([p for name, p in given.items() if name != "starts" or first])
    model.validate_nodes_and_infer_types()
