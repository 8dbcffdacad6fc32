"""The passes that make a graph's inputs and outputs what a contract has: their axes, and no scalars among them."""

from collections.abc import Iterable

import numpy as np
import onnx_ir as ir

from accel.core.values import TensorSpec


class DeclareAxes(ir.passes.InPlacePass):
    """Give axes without a size the name or the size that a spec has for them; a size that the graph declares stays.

    Args:
        specs: inputs and outputs by name; those of the graph without one stay as they are.
    """

    def __init__(self, specs: Iterable[TensorSpec]) -> None:
        super().__init__()
        self.specs = {spec.name: spec for spec in specs}

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Declare them."""
        modified = False
        for value in (*model.graph.inputs, *model.graph.outputs):
            if value.name not in self.specs:
                continue
            wanted = self.specs[value.name].dims
            sizes = list(value.shape) if value.shape is not None and len(value.shape) == len(wanted) else wanted
            shape = ir.Shape(d if isinstance(d, int) and d > 0 else w for d, w in zip(sizes, wanted, strict=True))
            if value.shape != shape:
                value.shape, modified = shape, True
        return ir.passes.PassResult(model, modified)


class ScalarsAsVectors(ir.passes.InPlacePass):
    """Give every scalar input and output the shape [1]: Triton has no tensors without dims.

    Source: triton-inference-server/core, src/model_config_utils.cc, ValidateIOShape.
    """

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Put a Reshape behind each scalar input and before each scalar output."""
        graph = model.graph
        scalars = [v for v in graph.inputs if v.shape is not None and not v.shape.dims and not v.is_initializer()]
        for value in scalars:
            inner = _reshaped(graph, value, f"{value.name}_scalar", [])
            graph.insert_before(graph[0], inner)
            ir.convenience.replace_all_uses_with(value, inner.outputs[0])
            inner.replace_input_with(0, value)
            value.shape = ir.Shape([1])
        outputs = [i for i, v in enumerate(graph.outputs) if v.shape is not None and not v.shape.dims]
        for index in outputs:
            value = graph.outputs[index]
            name = value.name
            value.name = f"{name}_scalar"
            outer = _reshaped(graph, value, str(name), [1])
            graph.append(outer)
            graph.outputs[index] = outer.outputs[0]
        return ir.passes.PassResult(model, bool(scalars or outputs))


def _reshaped(graph: ir.Graph, value: ir.Value, name: str, shape: list[int]) -> ir.Node:
    """Return a node that gives ``value`` another shape under ``name``."""
    target = ir.val(f"{name}_shape", const_value=ir.tensor(np.array(shape, np.int64), name=f"{name}_shape"))
    graph.register_initializer(target)
    node = ir.node("Reshape", [value, target], name=f"{name}_reshape")
    node.outputs[0].name, node.outputs[0].type, node.outputs[0].shape = name, value.type, ir.Shape(shape)
    return node
