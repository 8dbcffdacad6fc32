"""Types and sizes of every value, from ONNX's own shape inference, without touching the weights.

Inference runs on a skeleton: all nodes, but of the initialisers only the small ones; the others become inputs of known
shape. Sizes that a file merely declares for its inner values are dropped first, so that a wrong declaration cannot turn
into a proof. Every axis of an input gets a name, and so the bounds of a size follow that name through the graph.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnx
from onnx import AttributeProto, GraphProto, ModelProto, TensorProto, ValueInfoProto, numpy_helper

from accel.core.errors import InputError, UsageError, nearest
from accel.core.values import ShapeRange
from accel.graph.narrow.facts import ANY_SIZE, INT32, LIMITS, Bounds, Dims, Fact, Interval, known, unknown
from accel.graph.narrow.report import AxisRange

SMALL_BYTES = 1024
"""Initialisers up to this size go into the skeleton: they may hold shapes and axes."""
READ_BYTES = 16 * 2**20
"""External integer data above this size is not read; such a value counts as unknown."""
_FOLLOWED_FLOATS = 1024


def real_inputs(model: ModelProto) -> list[ValueInfoProto]:
    """Return the inputs a client gives. Before IR 4 every initialiser is listed as an input too, and is a constant."""
    if model.ir_version >= 4:
        return list(model.graph.input)
    constants = {t.name for t in model.graph.initializer}
    return [v for v in model.graph.input if v.name not in constants]


def overridable(model: ModelProto) -> set[str]:
    """Return the initialisers that a client may replace: inputs with a default value."""
    names = {v.name for v in real_inputs(model)}
    return {t.name for t in model.graph.initializer if t.name in names}


def bound_axes(
    inputs: list[ValueInfoProto], shapes: Mapping[str, ShapeRange]
) -> tuple[dict[str, Interval], tuple[AxisRange, ...]]:
    """Name every free axis of the inputs, in place, and bound it by the declared shapes.

    An axis nobody declared may have any size up to 2**31 - 1: no request carries more.

    Returns:
        The bounds of each axis name, and the same by input and axis, for the report.

    Raises:
        UsageError: a shape for an unknown input, of another rank, against a fixed size, or with min > max.
    """
    names = [v.name for v in inputs]
    for name in shapes:
        if name not in names:
            raise UsageError(f"shape for unknown input {name!r}{nearest(name, names)}", fix=f"the inputs are {names}")
    spans: dict[str, list[Interval]] = {}
    places: list[tuple[str, int, str, bool]] = []
    for value in inputs:
        given = shapes.get(value.name)
        rank = len(value.type.tensor_type.shape.dim) if value.type.tensor_type.HasField("shape") else None
        if given is not None and (rank is None or {len(given.min), len(given.max)} != {rank}):
            raise UsageError(
                f"shape of input {value.name!r} is {given.min}..{given.max}, the model declares rank {rank}"
            )
        for axis, dim in enumerate(value.type.tensor_type.shape.dim):
            span = (given.min[axis], given.max[axis]) if given is not None else None
            if span is not None and not 0 <= span[0] <= span[1]:
                raise UsageError(f"axis {axis} of input {value.name!r}: min {span[0]} and max {span[1]} contradict")
            if dim.HasField("dim_value") and dim.dim_value >= 0:
                if span is not None and not span[0] <= dim.dim_value <= span[1]:
                    raise UsageError(f"axis {axis} of input {value.name!r} is fixed at {dim.dim_value}, not {span}")
                continue
            name = dim.dim_param or f"{value.name}[{axis}]"
            dim.dim_param = name
            places.append((value.name, axis, name, span is not None))
            spans.setdefault(name, [])
            if span is not None:
                spans[name].append(span)
    undeclared = {name for _, _, name, declared in places if not spans[name] and not declared}
    bounds = {
        name: (min(s[0] for s in parts), max(s[1] for s in parts)) if parts else (0, INT32[1])
        for name, parts in spans.items()
    }
    report = tuple(
        AxisRange(owner, axis, *bounds[name], origin="assumed" if name in undeclared else "declared")
        for owner, axis, name, _ in places
    )
    return bounds, report


def infer(model: ModelProto, inputs: list[ValueInfoProto]) -> ModelProto:
    """Return a copy of the graph, without large initialisers, in which every value that can be typed is.

    Args:
        inputs: the real inputs, their axes named.

    Raises:
        InputError: the types of the graph contradict each other.
    """
    skeleton = ModelProto(ir_version=model.ir_version)
    skeleton.opset_import.extend(model.opset_import)
    skeleton.functions.extend(model.functions)
    graph = skeleton.graph
    graph.name = model.graph.name
    graph.node.extend(model.graph.node)
    graph.input.extend(inputs)
    replaced = overridable(model)
    for tensor in model.graph.initializer:
        if tensor.name in replaced:
            continue
        if tensor.data_location != TensorProto.EXTERNAL and int(np.prod(tensor.dims)) * 8 <= SMALL_BYTES:
            graph.initializer.append(tensor)
        else:
            graph.input.append(onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims))
    for tensor in model.graph.sparse_initializer:
        values = tensor.values
        graph.input.append(onnx.helper.make_tensor_value_info(values.name, values.data_type, tensor.dims))
    graph.value_info.extend(model.graph.value_info)
    graph.output.extend(model.graph.output)
    _forget_sizes(graph, keep_inputs=True)
    try:
        return onnx.shape_inference.infer_shapes(skeleton)
    except (onnx.shape_inference.InferenceError, ValueError, RuntimeError) as error:
        raise InputError(f"the types of the graph contradict each other: {error}") from error


def _forget_sizes(graph: GraphProto, *, keep_inputs: bool = False) -> None:
    declared = [*graph.value_info, *graph.output, *([] if keep_inputs else graph.input)]
    for value in declared:
        if value.type.HasField("tensor_type"):
            value.type.tensor_type.ClearField("shape")
    for node in graph.node:
        for inner in node_graphs(node):
            _forget_sizes(inner)


def node_graphs(node: onnx.NodeProto) -> list[GraphProto]:
    """Return the sub-graphs that a node carries."""
    found: list[GraphProto] = []
    for attribute in node.attribute:
        if attribute.type == AttributeProto.GRAPH:
            found.append(attribute.g)
        elif attribute.type == AttributeProto.GRAPHS:
            found.extend(attribute.graphs)
    return found


def typed(graph: GraphProto, axes: Mapping[str, Interval]) -> dict[str, tuple[int, Dims | None]]:
    """Return element type (0 where the value is no tensor) and bounds of the sizes of every typed value of a graph."""
    found: dict[str, tuple[int, Dims | None]] = {}
    for value in (*graph.value_info, *graph.input, *graph.output):
        if not value.type.HasField("tensor_type"):
            found[value.name] = (0, None)
            continue
        tensor = value.type.tensor_type
        dims = tuple(_size(dim, axes) for dim in tensor.shape.dim) if tensor.HasField("shape") else None
        found[value.name] = (tensor.elem_type, dims)
    return found


def _size(dim: onnx.TensorShapeProto.Dimension, axes: Mapping[str, Interval]) -> Interval:
    if dim.HasField("dim_value") and dim.dim_value >= 0:
        return dim.dim_value, dim.dim_value
    return axes.get(dim.dim_param, ANY_SIZE)


def constant_array(tensor: TensorProto, folder: Path) -> np.ndarray | None:
    """Return the values of an integer or bool constant; None for other types and for large external data.

    Raises:
        InputError: external data that lies outside the model's folder, or is shorter than the tensor.
    """
    if tensor.data_type not in LIMITS or tensor.data_type in (TensorProto.INT4, TensorProto.UINT4):
        return None
    if tensor.data_location != TensorProto.EXTERNAL:
        return numpy_helper.to_array(tensor)
    dtype = np.dtype(onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type)).newbyteorder("<")
    count = int(np.prod(tensor.dims, dtype=np.int64))
    if count * dtype.itemsize > READ_BYTES:
        return None
    entries = {entry.key: entry.value for entry in tensor.external_data}
    path = (folder / entries.get("location", "")).resolve()
    if not path.is_relative_to(folder.resolve()):
        raise InputError(f"external data of {tensor.name!r} lies outside the model's folder: {entries.get('location')}")
    try:
        with path.open("rb") as file:
            file.seek(int(entries.get("offset", 0)))
            raw = file.read(count * dtype.itemsize)
    except (OSError, ValueError) as error:
        raise InputError(f"external data of {tensor.name!r} cannot be read: {error}") from error
    if len(raw) != count * dtype.itemsize:
        raise InputError(f"external data of {tensor.name!r} is cut short: {len(raw)} of {count * dtype.itemsize} bytes")
    return np.frombuffer(raw, dtype).reshape(tuple(tensor.dims))


def constant_fact(tensor: TensorProto, folder: Path) -> Fact:
    """Bound a constant by its values; short vectors element by element."""
    dims: Dims = tuple((d, d) for d in tensor.dims)
    array = constant_array(tensor, folder)
    if array is None:
        small = tensor.data_location != TensorProto.EXTERNAL and int(np.prod(tensor.dims)) <= _FOLLOWED_FLOATS
        if not small or tensor.data_type not in (TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.FLOAT16):
            return unknown(tensor.data_type, dims)
        array = numpy_helper.to_array(tensor)
        if not np.isfinite(array).all():
            return unknown(tensor.data_type, dims)
    if array.size == 0:
        return known(tensor.data_type, (0, 0), dims, [] if array.ndim == 1 else None)
    bounds: Bounds = (array.min().item(), array.max().item())
    items: list[Bounds | None] | None = None
    if array.ndim <= 1 and array.size <= SMALL_BYTES // 8:
        items = [(v, v) for v in array.reshape(-1).tolist()]
    return known(tensor.data_type, bounds, dims, items)
