"""The passes that make a graph what a contract has: axes of its inputs and outputs, no scalars, ONNX's operators."""

from collections.abc import Iterable, Mapping

import numpy as np
import onnx_ir as ir

from accel.core.values import TensorSpec
from accel.graph.passes import ContractPass


class DeclareAxes(ContractPass):
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


class ScalarsAsVectors(ContractPass):
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


class CastInputs(ContractPass):
    """Give inputs another type, with a Cast to the model's own behind them.

    Args:
        dtypes: NumPy's name of the type by input.
    """

    retypes = True

    def __init__(self, dtypes: Mapping[str, str]) -> None:
        super().__init__()
        self.dtypes = {name: ir.DataType.from_numpy(np.dtype(dtype)) for name, dtype in dtypes.items()}

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Cast those that have another type."""
        graph = model.graph
        found = [v for v in graph.inputs if v.name in self.dtypes and v.dtype not in (None, self.dtypes[v.name])]
        for value in found:
            cast = ir.node("Cast", [value], {"to": value.dtype}, name=f"{value.name}_cast")
            inner = cast.outputs[0]
            inner.name, inner.type, inner.shape = f"{value.name}_in_model", value.type, value.shape
            ir.convenience.replace_all_uses_with(value, inner)
            cast.replace_input_with(0, value)
            graph.insert_before(graph[0], cast)
            value.type = ir.TensorType(self.dtypes[str(value.name)])
        return ir.passes.PassResult(model, bool(found))


class WithoutErfc(ContractPass):
    """Write TensorFlow's Erfc, which tf2onnx leaves as it is (Keras's exact GELU), as 1 - Erf."""

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Replace each."""
        found = [node for graph in model.graphs() for node in graph if node.op_type == "Erfc" and not node.domain]
        for node in found:
            value, old = node.inputs[0], node.outputs[0]
            dtype = old.dtype or (value.dtype if value is not None else None) or ir.DataType.FLOAT
            one = ir.node("Constant", [], {"value": ir.tensor(np.array(1, dtype.numpy()))})
            erf = ir.node("Erf", [value])
            new = ir.node("Sub", [one.outputs[0], erf.outputs[0]], name=node.name)
            ir.convenience.replace_nodes_and_values(node.graph, node, [node], [one, erf, new], [old], [new.outputs[0]])
        return ir.passes.PassResult(model, bool(found))


def _reshaped(graph: ir.Graph, value: ir.Value, name: str, shape: list[int]) -> ir.Node:
    """Return a node that gives ``value`` another shape under ``name``."""
    target = ir.val(f"{name}_shape", const_value=ir.tensor(np.array(shape, np.int64), name=f"{name}_shape"))
    graph.register_initializer(target)
    node = ir.node("Reshape", [value, target], name=f"{name}_reshape")
    node.outputs[0].name, node.outputs[0].type, node.outputs[0].shape = name, value.type, ir.Shape(shape)
    return node
