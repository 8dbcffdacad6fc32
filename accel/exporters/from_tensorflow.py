"""TensorFlow and Keras sources: described, run as the reference, written as ONNX by tf2onnx.

Inputs and outputs keep the names of the signature, and pictures their layout (channels last) unless the user asks for
channels first. The leading axis is ``batch`` where the model leaves it open; the others follow the user's shapes.
"""

import dataclasses
import hashlib
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from accel.core.errors import InputError, StageError, UsageError, raised_as
from accel.core.values import GraphChoice, ModelSource, ShapeRange, TensorSpec, sha256_json
from accel.exporters import factory, tensorflow_files, user_code
from accel.exporters.axes import BATCH, Extent, checked_ranges, known_input, name_axes, resolve
from accel.exporters.axis_trial import count_items
from accel.exporters.factory import seen_range, shape_range
from accel.exporters.layout import first
from accel.exporters.probe import check_repeats, probe_outputs
from accel.exporters.request import SourceRequest
from accel.exporters.sample_files import sample_calls, shapes_of, shown
from accel.exporters.sources import content_key
from accel.exporters.tensorflow_graph import NARROW, Graph, Opened, Port, quiet
from accel.exporters.tensorflow_runtime import explain, import_tensorflow

if TYPE_CHECKING:
    import onnx
    import onnx_ir as ir

    from accel.exporters.factory_result import FactoryResult

SEQUENCE = Extent(1, 128, 512)
"""Sizes of the second axis of integers about which nobody said anything: most likely a sequence."""
OPSET_MAX = 18
"""The newest opset that tf2onnx 1.17 writes. Source: tf2onnx/constants.py, OPSET_TO_IR_VERSION."""


def describe(request: SourceRequest, made: "FactoryResult | None" = None) -> ModelSource:
    """Describe a TensorFlow source: inputs from its signature, outputs from running it.

    Args:
        made: what the factory returned, for a factory.

    Raises:
        InputError: the file is broken, or takes or gives what no tensor of numbers can hold.
        UsageError: an unknown signature or tensor, or nothing says which sizes an axis takes.
    """
    given = list(dict.fromkeys([*request.min_shapes, *request.opt_shapes, *request.max_shapes]))
    if made is None:
        opened = tensorflow_files.open_file(request.kind, Path(request.reference), request.graph)
        key = content_key(request)
    else:
        opened = tensorflow_files.open_made(made, given)
        key = None
    names = [p.name for p in opened.ports]
    for name in given:
        known_input(name, names, "--shape")
    ports = as_clients_see(opened.ports, request.graph)
    inputs, profile, guessed = _inputs(ports, opened, request)
    inputs, profile, _ = resolve(inputs, profile, request)
    graph = Graph(opened, inputs, nchw=request.graph.nchw)
    inputs, profile, found = count_items(graph.run, inputs, profile, coarse=graph.computes != "fp32")
    if found:
        graph = Graph(opened, inputs, nchw=request.graph.nchw)
    outputs = probe_outputs(graph.run, inputs, profile)
    if both := {s.name for s in inputs} & {s.name for s in outputs}:
        raise InputError(
            f"{sorted(both)} name both an input and an output: clients and ONNX could not tell them apart",
            fix="write a `file.py:factory` that returns a tf.function whose outputs have names of their own",
        )
    samples = request.samples_or(request.reference if made is not None and made.samples else "random")
    notices = [f"axis {n!r}: sizes {SEQUENCE.min} to {SEQUENCE.max} assumed (--max-shape sets them)" for n in guessed]
    inputs, told = factory.told_ranges(inputs, opened.samples, request)
    notices += [*found, *told]
    check_repeats(graph.run, inputs, profile, graph.changing)
    source = request.source(
        "tensorflow",
        key=key or made_key(request.reference, graph),
        inputs=inputs,
        outputs=outputs,
        profile=profile,
        samples=samples,
        notices=notices,
    )
    return dataclasses.replace(source, computes=graph.computes)


def load(source: ModelSource) -> Graph:
    """Load a described source again, under the client's contract.

    Raises:
        InputError: it is no longer what ``describe`` saw.
    """
    if source.kind == "factory":
        opened = tensorflow_files.open_made(factory.make(source.reference), [s.name for s in source.inputs])
    else:
        opened = tensorflow_files.open_file(source.kind, Path(source.reference), source.graph)
    graph = of(opened, source)
    if source.kind == "factory" and made_key(source.reference, graph) != source.key:
        raise InputError(
            f"{source.reference} gave other weights or code than a moment ago",
            fix="do not edit the file during a run; load weights from a file, or seed their generator",
        )
    return graph


def of(opened: Opened, source: ModelSource) -> Graph:
    """Put an opened model under the client's contract of its description."""
    return Graph(opened, source.inputs, outputs=source.outputs, nchw=source.graph.nchw)


def made_key(reference: str, graph: Graph) -> str:
    """Hash a factory: its code, and the variables and captured tensors of what it returned."""
    tf = import_tensorflow()
    concrete = graph.concrete()
    captured = [c for c in concrete.captured_inputs if c.dtype != tf.resource]
    # Their order follows their names, which Keras counts up from one model to the next.
    digests = sorted(_digest(v.numpy()) for v in [*concrete.variables, *captured])
    return sha256_json(["factory", user_code.code_of(reference), digests])


def _digest(array: np.ndarray) -> str:
    head = f"{array.dtype}:{array.shape};".encode()
    return hashlib.sha256(head + np.ascontiguousarray(array).tobytes()).hexdigest()


def as_clients_see(ports: Sequence[Port], choice: GraphChoice) -> tuple[Port, ...]:
    """Return the inputs in the clients' layout, with a dtype that clients have.

    Raises:
        UsageError: ``--inputs-as-nchw`` names no input, or one that is not of rank 4.
    """
    for name in choice.nchw:
        known_input(name, [p.name for p in ports], "--inputs-as-nchw")
    seen = []
    for port in ports:
        shape = port.shape
        if port.name in choice.nchw:
            shape = first(shape or (), port.name)
        shape = (1,) if shape == () else shape  # Triton has no tensors without dims
        seen.append(Port(port.name, "float32" if port.dtype in NARROW else port.dtype, shape))
    return tuple(seen)


def _inputs(
    ports: Sequence[Port], opened: Opened, request: SourceRequest
) -> tuple[tuple[TensorSpec, ...], dict[str, ShapeRange], list[str]]:
    """Return the inputs, their shape ranges, and the names of axes whose sizes were guessed."""
    shapes, guesses = {}, []
    own = shown(opened.samples)
    calls = own or sample_calls(request.samples, [port.name for port in ports])
    for port in ports:
        seen = shapes_of(calls, port.name)
        if port.shape is None:
            shapes[port.name] = shape_range(port.name, seen, request, assumed=not own)
            continue
        extents = [_extent(port, axis, seen, request, ports, assumed=not own) for axis in range(len(port.shape))]
        guesses += [(port.name, axis) for axis, e in enumerate(extents) if e is SEQUENCE]
        shapes[port.name] = ShapeRange(
            tuple(e.min for e in extents), tuple(e.opt for e in extents), tuple(e.max for e in extents)
        )
    specs, profile = name_axes(shapes, {p.name: p.dtype for p in ports})
    ranges = checked_ranges(specs, request)
    specs = tuple(dataclasses.replace(s, range=ranges.get(s.name, seen_range(s, own, request.mask))) for s in specs)
    by_name = {s.name: s for s in specs}
    return specs, profile, list(dict.fromkeys(str(by_name[name].dims[axis]) for name, axis in guesses))


def _extent(
    port: Port, axis: int, seen: Sequence[tuple[int, ...]], request: SourceRequest, ports: Sequence[Port],
    *, assumed: bool,
) -> Extent:  # fmt: skip
    """Find the sizes of an axis in the file, the user's shapes and the samples; integers of rank 2 share a sequence.

    Args:
        seen: the shapes that samples have.
        assumed: the samples count only where nothing else says a size.
    """
    assert port.shape is not None
    size = port.shape[axis]
    if size is not None:
        return Extent(size, size, size)
    asked = (request.opt_shapes, request.max_shapes, request.min_shapes)
    every = [s[port.name] for s in asked if port.name in s] + ([] if assumed else list(seen))
    if wrong := next((s for s in every if len(s) != len(port.shape)), None):
        raise UsageError(f"input {port.name!r} has {len(port.shape)} axes, and a shape or sample has {len(wrong)}")
    given = [s[axis] for s in every]
    if axis == 0:
        low, high = min([BATCH.min[0], *given]), max([BATCH.max[0], *given])
        return Extent(low, min(max(BATCH.opt[0], low), high), high)
    if given:
        return Extent(min(given), given[0], max(given))
    if axis == 1 and "int" in port.dtype:
        alike = [p.name for p in ports if "int" in p.dtype and p.shape and p.shape[1:] == port.shape[1:]]
        sizes = [s[name][1] for s in asked for name in alike if len(s.get(name, ())) == len(port.shape)]
        return Extent(min(sizes), sizes[0], max(sizes)) if sizes else SEQUENCE
    if found := [s[axis] for s in seen if len(s) == len(port.shape)]:
        return Extent(min(found), found[0], max(found))
    raise UsageError(
        f"nothing says which sizes axis {axis} of input {port.name!r} takes: it is {list(port.shape)}",
        fix=f"give --min-shape, --shape and --max-shape for {port.name}, or --samples FILE.npz with real ones",
    )


def write_onnx(graph: Graph, source: ModelSource, path: Path, *, opset: int) -> None:
    """Convert the model with tf2onnx and write it, with weights in ``model.onnx.data`` beside the file.

    Raises:
        StageError: tf2onnx failed, or has no ONNX operator for some nodes; the message names them.
    """
    import onnx_ir as ir

    from accel.graph import passes
    from accel.graph.interface import DeclareAxes, WithoutErfc

    import_tensorflow()
    logging.getLogger("tf2onnx").setLevel(logging.CRITICAL)
    with (
        raised_as(
            StageError,
            Exception,
            f"tf2onnx could not convert {source.name}",
            fix="choose targets that start from TensorFlow itself (tf, tf-xla), or give the ONNX file",
            say=explain,
        ),
        quiet(),
    ):
        import tf2onnx

        model, _ = tf2onnx.convert.from_function(
            graph.function(), input_signature=graph.signature(), opset=min(opset, OPSET_MAX)
        )
    graph_model = ir.from_proto(model)
    _hold_captured(graph_model.graph, graph)
    passes.run(graph_model, WithoutErfc())
    _refuse_unknown(ir.to_proto(graph_model), source)
    _put_in_order(graph_model.graph.inputs, source.inputs)
    _put_in_order(graph_model.graph.outputs, source.outputs)
    # Sizes that differ from the source's stay for the check.
    passes.run(graph_model, DeclareAxes((*source.inputs, *source.outputs)))
    passes.save(graph_model, path, data=f"{path.name}.data")


def _refuse_unknown(model: "onnx.ModelProto", source: ModelSource) -> None:
    import onnx

    versions = {o.domain: o.version for o in model.opset_import}
    unknown = [n for n in model.graph.node if not onnx.defs.has(n.op_type, versions.get(n.domain, 1), n.domain)]
    if unknown:
        named = ", ".join(f"{n.op_type} (node {n.name!r})" for n in unknown[:5])
        more = f" and {len(unknown) - 5} more" if len(unknown) > 5 else ""
        raise StageError(
            f"{source.name} has operators that tf2onnx cannot write as ONNX: {named}{more}",
            fix="leave them out of the model (another --signature, or a `file.py:factory`), or choose targets that "
            "start from TensorFlow itself: tf, tf-xla",
        )


def _hold_captured(converted: "ir.Graph", graph: Graph) -> None:
    """Make constants of the tensors that a function captured, which tf2onnx makes inputs of the model."""
    import onnx_ir as ir

    tf = import_tensorflow()
    held = {inner.name: outer for outer, inner in graph.concrete().graph.captures if outer.dtype != tf.resource}
    for value in [v for v in converted.inputs if v.name in held]:
        converted.inputs.remove(value)
        value.const_value = ir.tensor(held[value.name].numpy(), name=value.name)
        converted.register_initializer(value)


def _put_in_order(values: Any, specs: Sequence[TensorSpec]) -> None:
    """Put a graph's inputs or outputs in the source's order."""
    by_name = {v.name: v for v in values}
    if missing := [s.name for s in specs if s.name not in by_name]:
        raise StageError(f"tf2onnx left {missing[0]!r} out of the model: it has {sorted(by_name)}")
    values.clear()
    values.extend(by_name[s.name] for s in specs)
