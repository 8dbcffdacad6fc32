"""What a graph's values really are: ranges and values over real samples, computed in FP32 on the CPU.

Ranges are reduced inside the graph, so one pass over the samples measures every tensor and keeps none; what needs the
tensors themselves fetches as many at a time as a fixed amount of memory holds. A file that is watched stands beside its
weights and refers to them: no weight is read or written twice.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from onnx_ir.passes.common import RemoveUnusedNodesPass

from accel.core.errors import InputError, SampleError, raised_as
from accel.core.feeds import Feed
from accel.graph import passes
from accel.graph.evaluate import open_light

_REDUCTIONS = ("ReduceMin", "ReduceMax", "Size")
FETCHED_BYTES = 512 << 20
"""Most bytes of activations that are held at a time."""


@dataclass(frozen=True, slots=True)
class Range:
    """What one tensor held over all samples.

    Attributes:
        low / high: smallest and largest value; NaN where a NaN was seen.
        size: elements in the largest sample.
    """

    low: float
    high: float
    size: int

    @property
    def largest(self) -> float:
        """Largest magnitude: infinite where a value was infinite or NaN."""
        largest = max(abs(self.low), abs(self.high))
        return largest if math.isfinite(largest) else math.inf


def run(session: Any, names: Sequence[str] | None, feed: Feed, what: str) -> list[np.ndarray]:
    """Run a session on one feed.

    Raises:
        SampleError: the feed does not fit the model.
    """
    try:
        return session.run(names, dict(feed))
    except Exception as error:
        raise SampleError(
            f"a sample does not run through {what}: {str(error)[:400]}", fix="give samples in the model's own shapes"
        ) from error


def float_tensors(model: onnx.ModelProto) -> dict[str, int]:
    """Return tensor → element type for every floating-point value of the graph, inputs and constants included.

    Raises:
        InputError: shape inference fails on the graph, or leaves a value without a type.
    """
    bare = type(model)()
    bare.CopyFrom(model)
    bare.graph.ClearField("value_info")
    with raised_as(
        InputError,
        (onnx.shape_inference.InferenceError, RuntimeError, ValueError),
        "the types of the graph cannot be inferred",
    ):
        inferred = onnx.shape_inference.infer_shapes(bare, strict_mode=False, data_prop=False)
    graph = inferred.graph
    types = {v.name: v.type.tensor_type.elem_type for v in (*graph.input, *graph.value_info, *graph.output)}
    types |= {t.name: t.data_type for t in graph.initializer}
    named = [o for n in graph.node for o in n.output if o]
    if unknown := [name for name in named if not types.get(name)]:
        raise InputError(
            f"value {unknown[0]!r} has no type that ONNX can infer",
            fix="export the model with operators of the ONNX domain",
        )
    floats = {onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16, onnx.TensorProto.BFLOAT16, onnx.TensorProto.DOUBLE}
    return {name: kind for name, kind in types.items() if kind in floats}


def file_types(path: Path) -> dict[str, int]:
    """Return ``float_tensors`` of a file, whose weights are not read."""
    return float_tensors(onnx.load(str(path), load_external_data=False))


def measure_ranges(path: Path, names: Sequence[str], feeds: Iterable[Feed], *, threads: int) -> dict[str, Range]:
    """Run the FP32 graph at ``path`` and return the range of each named value over all feeds.

    Args:
        path: opset 13 or later, weights in external data beside it; a watched copy is written there and removed.
        names: floating-point values of the graph: inputs or outputs of nodes.

    Raises:
        SampleError: there are no feeds, or one does not fit the model.
        StageError: ONNX Runtime cannot load the graph.
    """
    model = passes.load(path)
    graph = model.graph
    if (opset := graph.opset_imports.get("", 0)) < 13:
        raise InputError(f"{path.name} has opset {opset}, expected 13 or later", fix="export it again with opset 18")
    values = _values(graph)
    first = graph[0]
    graph.outputs.clear()
    for name in names:  # each value is measured where it is made, and can be given back
        producer = values[name].producer()
        made = [ir.node(kind, [values[name]], {} if kind == "Size" else {"keepdims": 0}) for kind in _REDUCTIONS]
        if producer is None:
            graph.insert_before(first, made)
        else:
            graph.insert_after(producer, made)
        for kind, node in zip((ir.DataType.FLOAT, ir.DataType.FLOAT, ir.DataType.INT64), made, strict=True):
            node.outputs[0].type, node.outputs[0].shape = ir.TensorType(kind), ir.Shape([])
            node.outputs[0].name = f"accel_measured_{len(graph.outputs)}"
            graph.outputs.append(node.outputs[0])
    session = _watch(model, path, threads)
    found = np.tile(np.array([np.inf, -np.inf, 0.0]), (len(names), 1))
    count = 0
    for feed in feeds:
        reduced = np.array(run(session, None, feed, path.name), np.float64).reshape(-1, 3)
        with np.errstate(invalid="ignore"):
            found[:, 0] = np.minimum(found[:, 0], reduced[:, 0])
            found[:, 1:] = np.maximum(found[:, 1:], reduced[:, 1:])
        count += 1
    if not count:
        raise SampleError("there are no samples: ranges cannot be measured", fix="give them with --samples FILE")
    return {name: Range(float(r[0]), float(r[1]), int(r[2])) for name, r in zip(names, found, strict=True)}


def fetch(
    path: Path, ranges: Mapping[str, Range], feeds: Sequence[Feed], *, threads: int
) -> Iterator[tuple[Feed, str, np.ndarray]]:
    """Yield (feed, tensor name, its value): every tensor of ``ranges`` in every feed, ``FETCHED_BYTES`` at a time.

    Raises:
        SampleError / StageError: as ``measure_ranges``.
    """
    groups: list[list[str]] = []
    used = 0
    for name, found in ranges.items():
        if not groups or used + found.size * 4 > FETCHED_BYTES:
            groups.append([])
            used = 0
        groups[-1].append(name)
        used += found.size * 4
    for group in groups:
        model = passes.load(path)
        values = _values(model.graph)
        model.graph.outputs.clear()
        for name in group:
            values[name].type = ir.TensorType(ir.DataType.FLOAT)
            model.graph.outputs.append(values[name])
        passes.run(model, RemoveUnusedNodesPass())
        session = _watch(model, path, threads)
        for feed in feeds:
            for name, value in zip(group, run(session, group, feed, path.name), strict=True):
                yield feed, name, value


def _values(graph: ir.Graph) -> dict[str, ir.Value]:
    return {str(v.name): v for v in (*graph.inputs, *(o for node in graph for o in node.outputs))}


def _watch(model: ir.Model, path: Path, threads: int) -> Any:
    """Open a changed graph of ``path`` from a file beside its weights."""
    watched = path.with_name(f"{path.stem}.watched.onnx")
    passes.save(model, watched)
    try:
        return open_light(watched, threads)
    finally:
        watched.unlink()
