"""Rows with values outside the declared ranges are answered with NaN, and the rows beside them as ever.

A server merges requests into one call. Where one of them holds a token id that the model has no row for, ONNX Runtime
fails the whole call, or takes -1 for the last row. So every integer input with a declared range is clipped to it, and
the outputs of a row that had to be are set to what no model answers: NaN, or the lowest value of a signed integer type.
"""

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from accel.core.values import TensorSpec
from accel.graph.passes import ContractPass

OLDEST_OPSET, AXES_ARE_INPUTS = 13, 18
"""From the first ``Unsqueeze`` takes its axes, and from the second ``ReduceMax``, as an input (ONNX, Operators)."""

CLIP_IS_WRONG = 2**31
"""ONNX Runtime takes some int64 values above this for small ones in Clip and Max (1.31.1: 2956629123 for less than 97).

Source: https://github.com/microsoft/onnxruntime/pull/25280
"""


def guarded(inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]) -> tuple[str, ...]:
    """Return the inputs that ``Guard`` can check; none where an output cannot say that its row is not answered.

    Rows are told by the leading axis, so every checked input and every output must have it under one name.
    """
    checked = [s for s in inputs if s.range is not None and s.dtype in ("int32", "int64")]
    batch = {s.dims[0] if s.dims else 0 for s in (*checked, *outputs)}
    told = all(np.dtype(s.dtype).kind in "fi" if s.dtype != "bfloat16" else False for s in outputs)
    return tuple(s.name for s in checked) if told and len(batch) == 1 and isinstance(next(iter(batch)), str) else ()


class Guard(ContractPass):
    """Clip inputs to their ranges, and mark the outputs of rows that were outside.

    Args:
        inputs / outputs: of the model, with the ranges and the name of the leading axis.
    """

    def __init__(self, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]) -> None:
        self._ranges = {s.name: s.range for s in inputs if s.name in guarded(inputs, outputs)}
        super().__init__()

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        graph, opset = model.graph, model.opset_imports.get("", 0)
        checked = [v for v in graph.inputs if v.name in self._ranges and v.shape is not None]
        known = all(v.shape is not None and v.dtype is not None for v in graph.outputs)
        if not checked or not known or opset < OLDEST_OPSET:
            return ir.passes.PassResult(model, modified=False)
        flags = [self._clip(graph, value, opset) for value in checked]
        flag = flags[0]
        for other in flags[1:]:
            flag = _node(graph, "Or", [flag, other])
        for index, value in enumerate(list(graph.outputs)):
            graph.outputs[index] = _marked(graph, value, flag)
        graph.sort()
        return ir.passes.PassResult(model, modified=True)

    def _clip(self, graph: ir.Graph, value: ir.Value, opset: int) -> ir.Value:
        """Put the clipped value where ``value`` was used; return bool (batch,): where a row was outside."""
        bounds = self._ranges[str(value.name)]
        assert bounds is not None
        assert value.dtype is not None
        readers = list(value.uses())
        low, high = (_constant(graph, np.array(b, value.dtype.numpy())) for b in bounds)
        if max(map(abs, bounds)) < CLIP_IS_WRONG:
            clipped = _node(graph, "Clip", [value, low, high])
        else:
            raised = _node(graph, "Where", [_node(graph, "Less", [value, low]), low, value])
            clipped = _node(graph, "Where", [_node(graph, "Greater", [value, high]), high, raised])
        clipped.shape, clipped.dtype = value.shape, value.dtype
        for reader, index in readers:
            reader.replace_input_with(index, clipped)
        outside = _node(graph, "Not", [_node(graph, "Equal", [value, clipped])])
        if value.shape is None or len(value.shape) == 1:
            return outside
        axes = np.arange(1, len(value.shape), dtype=np.int64)
        number = _node(graph, "Cast", [outside], to=int(ir.DataType.INT32))
        if opset >= AXES_ARE_INPUTS:
            largest = _node(graph, "ReduceMax", [number, _constant(graph, axes)], keepdims=0)
        else:
            largest = _node(graph, "ReduceMax", [number], axes=axes.tolist(), keepdims=0)
        return _node(graph, "Cast", [largest], to=int(ir.DataType.BOOL))


def _marked(graph: ir.Graph, value: ir.Value, flag: ir.Value) -> ir.Value:
    """Return the output under its name, with the rows of ``flag`` set to what no model answers."""
    assert value.shape is not None
    assert value.dtype is not None
    kind, name = value.dtype.numpy(), value.name
    nothing = np.array(np.nan if kind.kind == "f" else np.iinfo(kind).min, kind)
    if len(value.shape) > 1:
        axes = _constant(graph, np.arange(1, len(value.shape), dtype=np.int64))
        flag = _node(graph, "Unsqueeze", [flag, axes])
    value.name = f"{name}_unguarded"
    marked = _node(graph, "Where", [flag, _constant(graph, nothing), value])
    marked.name, marked.shape, marked.dtype = name, value.shape, value.dtype
    return marked


def _node(graph: ir.Graph, kind: str, inputs: Sequence[ir.Value], **attributes: object) -> ir.Value:
    node = ir.node(kind, inputs, attributes)
    graph.append(node)
    node.name = f"guard_{kind}_{len(graph)}"
    node.outputs[0].name = node.name
    return node.outputs[0]


def _constant(graph: ir.Graph, array: np.ndarray) -> ir.Value:
    return _node(graph, "Constant", [], value=ir.tensor(array))
