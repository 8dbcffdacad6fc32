"""What a graph's values really are: ranges and distributions over real samples, computed in FP32 on the CPU.

Ranges are reduced inside the graph, so one pass over the samples measures every tensor and keeps none; distributions
need the tensors themselves, which are fetched as many at a time as a fixed amount of memory holds. A file that is
watched stands beside its weights and refers to them: no weight is read or written twice.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from accel.core.errors import InputError, SampleError
from accel.graph.evaluate import open_exact
from accel.graph.qdq import replace_nodes

if TYPE_CHECKING:
    import onnx

Feed = Mapping[str, np.ndarray]

_REDUCTIONS = ("ReduceMin", "ReduceMax", "Size")
FETCHED_BYTES = 256 << 20
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
    import onnx

    bare = type(model)()
    bare.CopyFrom(model)
    bare.graph.ClearField("value_info")
    try:
        inferred = onnx.shape_inference.infer_shapes(bare, strict_mode=False, data_prop=False)
    except (onnx.shape_inference.InferenceError, RuntimeError, ValueError) as error:
        raise InputError(f"the types of the graph cannot be inferred: {error}") from error
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


def measure_ranges(path: Path, names: Sequence[str], feeds: Iterable[Feed], *, threads: int) -> dict[str, Range]:
    """Run the FP32 graph at ``path`` and return the range of each named value over all feeds.

    Args:
        path: opset 13 or later, weights in external data beside it; a watched copy is written there and removed.
        names: floating-point values of the graph: inputs or outputs of nodes.

    Raises:
        SampleError: there are no feeds, or one does not fit the model.
        StageError: ONNX Runtime cannot load the graph.
    """
    import onnx

    helper = onnx.helper
    model = onnx.load(str(path), load_external_data=False)
    opset = next(o.version for o in model.opset_import if o.domain in ("", "ai.onnx"))
    if opset < 13:
        raise InputError(f"{path.name} has opset {opset}, expected 13 or later", fix="export it again with opset 18")
    del model.graph.output[:]
    asked = [f"accel_{kind}_{index}" for index in range(len(names)) for kind in _REDUCTIONS]
    for out in asked:
        kind = onnx.TensorProto.INT64 if "Size" in out else onnx.TensorProto.FLOAT
        model.graph.output.append(helper.make_tensor_value_info(out, kind, []))
    places = {name: index for index, name in enumerate(names)}
    nodes: list[onnx.NodeProto] = []
    for node in (None, *model.graph.node):  # each value is measured where it is made, and can be given back
        made = [node] if node is not None else []
        values = node.output if node is not None else [v.name for v in model.graph.input]
        for name in values:
            if name in places:
                for kind in _REDUCTIONS:
                    extra = {} if kind == "Size" else {"keepdims": 0}
                    made.append(helper.make_node(kind, [name], [f"accel_{kind}_{places[name]}"], **extra))
        nodes += made
    replace_nodes(model, nodes)
    watched = path.with_name(f"{path.stem}.ranges.onnx")
    watched.write_bytes(model.SerializeToString())
    try:
        session = open_exact(watched, threads, once=True)
    finally:
        watched.unlink(missing_ok=True)
    found = np.tile(np.array([np.inf, -np.inf, 0.0]), (len(names), 1))
    count = 0
    for feed in feeds:
        values = np.array(run(session, asked, feed, path.name), np.float64).reshape(-1, 3)
        with np.errstate(invalid="ignore"):
            found[:, 0] = np.minimum(found[:, 0], values[:, 0])
            found[:, 1:] = np.maximum(found[:, 1:], values[:, 1:])
        count += 1
    if not count:
        raise SampleError("there are no samples: ranges cannot be measured", fix="give them with --samples FILE")
    return {name: Range(float(r[0]), float(r[1]), int(r[2])) for name, r in zip(names, found, strict=True)}


def fetch(
    path: Path, ranges: Mapping[str, Range], feeds: Sequence[Feed], *, threads: int
) -> Iterator[Callable[[], Iterator[tuple[str, np.ndarray]]]]:
    """Yield, for each group of tensors that fits ``FETCHED_BYTES``, a function that goes over the feeds once.

    That function yields (tensor name, its value in one feed, any shape) and may be called again for another pass.

    Raises:
        SampleError / StageError: as ``measure_ranges``.
    """
    import onnx

    groups: list[list[str]] = [[]]
    used = 0
    for name, found in ranges.items():
        if groups[-1] and used + found.size * 4 > FETCHED_BYTES:
            groups.append([])
            used = 0
        groups[-1].append(name)
        used += found.size * 4
    for group in groups:
        if not group:
            continue
        model = onnx.load(str(path), load_external_data=False)
        del model.graph.output[:]
        model.graph.output.extend(onnx.helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, None) for n in group)
        watched = path.with_name(f"{path.stem}.fetch.onnx")
        watched.write_bytes(model.SerializeToString())
        try:
            session = open_exact(watched, threads)
        finally:
            watched.unlink(missing_ok=True)

        def over(session: Any = session, group: list[str] = group) -> Iterator[tuple[str, np.ndarray]]:
            for feed in feeds:
                yield from zip(group, run(session, group, feed, path.name), strict=True)

        yield over
