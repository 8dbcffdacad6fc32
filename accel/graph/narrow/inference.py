"""Types and sizes of every value, from ONNX's own shape inference, without touching the weights.

Inference runs on a skeleton: all nodes, but of the initialisers only the small ones; the others become inputs of known
shape. Sizes that a file merely declares for its inner values are dropped first, so that a wrong declaration cannot turn
into a proof. Every axis of an input gets a name, and so the bounds of a size follow that name through the graph.
"""

from collections.abc import Iterator, Mapping

import numpy as np
import onnx
import onnx_ir as ir

from accel.core.errors import InputError, UsageError, nearest, raised_as
from accel.core.values import ShapeRange
from accel.graph.narrow.facts import ANY_SIZE, FLOATS, INT32, LIMITS, Bounds, Dims, Fact, Interval, known, unknown
from accel.graph.narrow.report import AxisRange

SMALL_BYTES = 1024
"""Initialisers up to this size go into the skeleton: they may hold shapes and axes."""
READ_BYTES = 16 * 2**20
"""External integer data above this size is not read; such a value counts as unknown."""
_FOLLOWED_FLOATS = 1024
Kind = tuple[int, Dims | None]
"""Element type of a value (0 where it is not a tensor) and bounds of its sizes."""


def real_inputs(model: ir.Model) -> list[ir.Value]:
    """Return the inputs a client gives. Before IR 4 every initialiser is listed as an input too, and is a constant."""
    return [v for v in model.graph.inputs if model.ir_version >= 4 or not v.is_initializer()]


def overridable(model: ir.Model) -> set[ir.Value]:
    """Return the initialisers that a client may replace: inputs with a default value."""
    return {v for v in real_inputs(model) if v.is_initializer()}


def constants(model: ir.Model) -> dict[ir.Value, ir.TensorProtocol]:
    """Return the constants of the main graph: initialisers, those that a client may replace too, and Constant nodes."""
    made = [node.outputs[0] for node in model.graph if node.op_type == "Constant" and not node.domain]
    found = {v: ir.convenience.get_const_tensor(v) for v in (*model.graph.initializers.values(), *made)}
    return {value: tensor for value, tensor in found.items() if tensor is not None}


def bodies(node: ir.Node) -> Iterator[ir.Graph]:
    """Yield the sub-graphs that a node carries."""
    for attribute in node.attributes.values():
        if attribute.type == ir.AttributeType.GRAPH:
            yield attribute.as_graph()
        elif attribute.type == ir.AttributeType.GRAPHS:
            yield from attribute.as_graphs()


def bound_axes(
    inputs: list[onnx.ValueInfoProto], shapes: Mapping[str, ShapeRange]
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
    places: list[tuple[str, int, str]] = []
    for value in inputs:
        given = shapes.get(value.name)
        dims = value.type.tensor_type.shape.dim
        known_rank = value.type.tensor_type.HasField("shape")
        if given is not None and (not known_rank or {len(given.min), len(given.max)} != {len(dims)}):
            raise UsageError(
                f"shape of input {value.name!r} is {given.min}..{given.max}, "
                f"the model declares rank {len(dims) if known_rank else None}"
            )
        for axis, dim in enumerate(dims):
            span = (given.min[axis], given.max[axis]) if given is not None else None
            if span is not None and not 0 <= span[0] <= span[1]:
                raise UsageError(f"axis {axis} of input {value.name!r}: min {span[0]} and max {span[1]} contradict")
            if dim.HasField("dim_value") and dim.dim_value >= 0:
                if span is not None and not span[0] <= dim.dim_value <= span[1]:
                    raise UsageError(f"axis {axis} of input {value.name!r} is fixed at {dim.dim_value}, not {span}")
                continue
            dim.dim_param = dim.dim_param or f"{value.name}[{axis}]"
            places.append((value.name, axis, dim.dim_param))
            spans.setdefault(dim.dim_param, []).extend([span] if span is not None else [])
    bounds = {n: (min(s[0] for s in parts), max(s[1] for s in parts)) for n, parts in spans.items() if parts}
    report = tuple(
        AxisRange(owner, axis, *bounds.get(name, (0, INT32[1])), origin="declared" if name in bounds else "assumed")
        for owner, axis, name in places
    )
    return {name: bounds.get(name, (0, INT32[1])) for name in spans}, report


def infer(model: ir.Model, inputs: list[onnx.ValueInfoProto], axes: Mapping[str, Interval]) -> dict[ir.Value, Kind]:
    """Return the kind of every value that can be typed, sub-graphs included.

    Args:
        inputs: the real inputs, their axes named.
        axes: bounds of the sizes by name.

    Raises:
        InputError: the types of the graph contradict each other.
    """
    with raised_as(
        InputError,
        (onnx.shape_inference.InferenceError, ValueError, RuntimeError),
        "the types of the graph contradict each other",
    ):
        inferred = ir.from_proto(onnx.shape_inference.infer_shapes(_skeleton(model, inputs)))
    kinds: dict[ir.Value, Kind] = {}
    for graph, typed in zip(model.graphs(), inferred.graphs(), strict=True):
        found = ir.convenience.create_value_mapping(typed, include_subgraphs=False)
        for name, value in ir.convenience.create_value_mapping(graph, include_subgraphs=False).items():
            if name in found:
                kinds[value] = _kind(found[name], axes)
    return kinds


def _skeleton(model: ir.Model, inputs: list[onnx.ValueInfoProto]) -> onnx.ModelProto:
    skeleton = model.clone()
    for graph in skeleton.graphs():
        for value in ir.convenience.create_value_mapping(graph, include_subgraphs=False).values():
            if isinstance(value.type, ir.TensorType) and value.const_value is None:
                value.shape = None
    held, given = skeleton.graph.initializers, {v.name for v in inputs}
    large = {n: v.const_value for n, v in held.items() if n not in given and not _is_small(v.const_value)}
    for name in [n for n in held if n in given or n in large]:
        held.pop(name)
    proto = ir.to_proto(skeleton)
    proto.graph.ClearField("input")
    proto.graph.input.extend(inputs)
    proto.graph.input.extend(onnx.helper.make_tensor_value_info(n, t.dtype, t.shape) for n, t in large.items())
    return proto


def _is_small(tensor: ir.TensorProtocol) -> bool:
    return not isinstance(tensor, ir.ExternalTensor) and tensor.size * 8 <= SMALL_BYTES


def _kind(value: ir.Value, axes: Mapping[str, Interval]) -> Kind:
    if not isinstance(value.type, ir.TensorType):
        return 0, None
    if value.shape is None:
        return value.type.dtype, None
    sizes = [d if isinstance(d, int) else axes.get(str(d.value), ANY_SIZE) for d in value.shape]
    return value.type.dtype, tuple((d, d) if isinstance(d, int) else d for d in sizes)


def constant_array(tensor: ir.TensorProtocol) -> np.ndarray | None:
    """Return the values of an integer or bool constant; None for other types and for large external data.

    Raises:
        InputError: as ``_read``.
    """
    if tensor.dtype not in LIMITS or tensor.dtype in (ir.DataType.INT4, ir.DataType.UINT4):
        return None
    if isinstance(tensor, ir.ExternalTensor) and tensor.nbytes > READ_BYTES:
        return None
    return _read(tensor)


def _read(tensor: ir.TensorProtocol) -> np.ndarray:
    """Return a constant's values.

    Raises:
        InputError: external data lies outside the model's folder or is shorter than the tensor, or the constant has
            more axes than NumPy takes.
    """
    with raised_as(
        InputError, (OSError, ValueError), f"the data of {tensor.name!r} cannot be read", fix="export the model again"
    ):
        return tensor.numpy()


def constant_fact(tensor: ir.TensorProtocol) -> Fact:
    """Bound a constant by its values; short vectors element by element."""
    dims: Dims = tuple((d, d) for d in tensor.shape.numpy())
    array = constant_array(tensor)
    if array is None:
        small = not isinstance(tensor, ir.ExternalTensor) and tensor.size <= _FOLLOWED_FLOATS
        if not small or tensor.dtype not in FLOATS:
            return unknown(tensor.dtype, dims)
        array = _read(tensor)
        if not np.isfinite(array).all():
            return unknown(tensor.dtype, dims)
    if array.size == 0:
        return known(tensor.dtype, (0, 0), dims, [] if array.ndim == 1 else None)
    bounds: Bounds = (array.min().item(), array.max().item())
    items: list[Bounds | None] | None = None
    if array.ndim <= 1 and array.size <= SMALL_BYTES // 8:
        items = [(v, v) for v in array.reshape(-1).tolist()]
    return known(tensor.dtype, bounds, dims, items)
