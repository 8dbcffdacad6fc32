"""The pass that writes products with a stack of constant matrices so that OpenVINO computes them."""

import math

import numpy as np
import onnx_ir as ir

from accel.graph.narrow.integers import Names, add_constant
from accel.graph.passes import ContractPass


class SpreadRows(ContractPass):
    """Expand the left side of a MatMul with a stack of constant matrices (an ensemble's, experts') to the stack.

    ONNX broadcasts it. OpenVINO 2026.4.1's CPU plugin cannot load such a product where the number of rows varies.
    """

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Expand those of the main graph."""
        modified = False
        for node in list(model.graph):
            if node.op_type != "MatMul" or node.domain:
                continue
            stack, rows = _stack(node), node.inputs[0]
            if rows is None or rows.shape is None or len(rows.shape) < 2 or isinstance(rows.shape[-2], int):
                continue
            given = tuple(rows.shape)[:-2]
            if math.prod(stack) <= 1 or len(given) > len(stack) or any(size != 1 for size in given):
                continue
            names = Names(model)
            name = names.fresh(f"{node.outputs[0].name}__rows")
            shape = add_constant(model.graph, names.fresh(f"{name}__shape"), np.array([*stack, 1, 1]))
            spread = ir.node("Expand", [rows, shape], name=name)
            spread.outputs[0].name, spread.outputs[0].dtype = name, rows.dtype
            spread.outputs[0].shape = ir.Shape([*stack, rows.shape[-2], rows.shape[-1]])
            model.graph.insert_before(node, spread)
            node.replace_input_with(0, spread.outputs[0])
            modified = True
        return ir.passes.PassResult(model, modified)


def _stack(product: ir.Node) -> tuple[int, ...]:
    """Return the batch axes of a product's constant right side; none where it is computed."""
    right = product.inputs[1]
    tensor = ir.convenience.get_const_tensor(right) if right is not None else None
    return tuple(tensor.shape.numpy())[:-2] if tensor is not None else ()
