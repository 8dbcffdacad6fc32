"""Prove an ONNX file right: checker, named axes, and runs at four shapes against the source."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from accel.core.accuracy.detections import match
from accel.core.accuracy.parity import GATES_MATCHED
from accel.core.errors import StageError
from accel.core.values import Detections, ModelSource, OnnxModel, TensorSpec, file_ref
from accel.exporters.axes import points, shapes_at
from accel.exporters.from_onnx import FIXED_INSIDE, check_file, graph_specs, run_session
from accel.exporters.onnx_file import external_files
from accel.exporters.probe import example_arrays
from accel.exporters.source_model import SourceModel
from accel.graph.evaluate import open_unoptimised

ATOL, RTOL = 1e-4, 1e-3
"""Allowed difference: ATOL + RTOL × largest reference value of the output."""
RTOL_HALF = 1e-2
"""The same for a source that computes in half precision itself (Keras's ``mixed_float16``), which rounds at 5e-4."""
IR_MAX, OPSETS = 10, range(18, 22)
"""What ONNX Runtime, OpenVINO and TensorRT's parser all read; onnx's own defaults are newer."""

CHANGED = "the export changed the model; report the operator named in the log to the exporter's project"
ONE_WAY = (
    "Where forward decides by a size (an `if` on x.shape, the padding of odd lengths), the export keeps the way of the "
    "sizes that it was traced at: compute one way for all sizes, or leave the others out with --min-shape, --max-shape "
    "and --multiple"
)


@dataclass(frozen=True, eq=False)
class Point:
    """What the source answered at one shape."""

    name: str
    feed: Mapping[str, np.ndarray]
    answer: Mapping[str, np.ndarray]


def reference_points(model: SourceModel) -> list[Point]:
    """Run the source at its min, opt, max and one odd shape on seeded values."""
    inputs = model.source.inputs
    found: list[Point] = []
    done: list[dict[str, int]] = []
    for name, sizes in points(inputs, model.source.profile).items():
        if sizes not in done:
            done.append(sizes)
            feed = example_arrays(inputs, shapes_at(inputs, sizes))
            found.append(Point(name, feed, model.run(feed)))
    return found


def check_onnx(source: ModelSource, model: OnnxModel, path: Path, points: Sequence[Point]) -> None:
    """Check an exported file against the source.

    Args:
        model: what the file declares.

    Raises:
        StageError: its axes or names are not the source's, or it computes something else.
    """
    if model.ir_version > IR_MAX or ("onnx" not in (source.kind, source.framework) and model.opset not in OPSETS):
        raise StageError(
            f"{path.name} has opset {model.opset} and IR {model.ir_version}: expected opset 18 to 21 and IR up to 10",
            fix="ask for --opset 18, or save the source with an older onnx",
        )
    _same_contract("input", source.inputs, model.inputs)
    _same_contract("output", source.outputs, model.outputs)
    session = open_unoptimised(path)
    rtol = RTOL_HALF if source.computes in ("fp16", "bf16") else RTOL
    failed: dict[str, StageError] = {}
    for point in points:
        try:
            expected: Mapping[str, np.ndarray] = point.answer
            found: Mapping[str, np.ndarray] = run_session(session, point.feed, [o.name for o in source.outputs])
            if source.detections is not None:
                expected, found = _in_one_order(point, found, source.detections)
            for name, value in expected.items():
                _same_values(point, name, value, found[name], rtol=rtol)
        except StageError as error:
            failed[point.name] = error
    if failed:
        first = next(iter(failed.values()))
        agreed = [point.name for point in points if point.name not in failed]
        if agreed and first.fix in (CHANGED, FIXED_INSIDE) and source.framework == "torch":
            first.fix = f"the two agree at the {' and the '.join(agreed)} shape. {ONE_WAY}"
        raise first


def lost_axes(source: ModelSource, path: Path) -> tuple[str, ...]:
    """Return the source's axes that are sizes in the exported file, because the model's code makes numbers of them."""
    import onnx

    inputs, _ = graph_specs(onnx.load(str(path), load_external_data=False))
    pairs = [zip(s.dims, f.dims, strict=False) for s, f in zip(source.inputs, inputs, strict=False)]
    return tuple(
        dict.fromkeys(d for dims in pairs for d, found in dims if isinstance(d, str) and isinstance(found, int))
    )


def read_checked(path: Path) -> OnnxModel:
    """Hold an ONNX file against onnx.checker, and read back what it declares.

    Raises:
        InputError: the checker rejects it.
    """
    check_file(path)
    return read_onnx(path)


def read_onnx(path: Path) -> OnnxModel:
    """Read back what an ONNX file declares: opset, IR, operators, inputs, outputs, and its external data files."""
    import onnx

    model = onnx.load(str(path), load_external_data=False)
    inputs, outputs = graph_specs(model)
    return OnnxModel(
        file=file_ref(path, path.parent),
        data=tuple(file_ref(path.parent / name, path.parent) for name in external_files(path)),
        opset=next((o.version for o in model.opset_import if o.domain in ("", "ai.onnx")), 0),
        ir_version=model.ir_version,
        ops=dict(sorted(Counter(n.op_type for n in model.graph.node).items())),
        inputs=inputs,
        outputs=outputs,
    )


def _same_contract(what: str, wanted: tuple[TensorSpec, ...], found: tuple[TensorSpec, ...]) -> None:
    if [s.name for s in wanted] != [s.name for s in found]:
        raise StageError(f"the ONNX model's {what}s are {[s.name for s in found]}, expected {[s.name for s in wanted]}")
    for want, got in zip(wanted, found, strict=True):
        if want.dtype != got.dtype:
            raise StageError(f"{what} {want.name!r} of the ONNX model is {got.dtype}, expected {want.dtype}")
        if len(want.dims) != len(got.dims):
            raise StageError(f"{what} {want.name!r} of the ONNX model has dims {got.dims}, expected {want.dims}")
        for axis, (dim, other) in enumerate(zip(want.dims, got.dims, strict=True)):
            if isinstance(dim, str) and isinstance(other, int):
                raise StageError(
                    f"the ONNX model lost the dynamic axis {dim!r}: {what} {want.name!r} came out as {got.dims}, "
                    f"expected {want.dims}",
                    fix="the model's code fixes that size (a Python int, a shape in a branch); change it, or fix the "
                    "axis with equal --min-shape and --max-shape",
                )
            named = what == "input" and isinstance(dim, str)
            if named and dim != other:
                raise StageError(
                    f"axis {axis} of input {want.name!r} is called {other!r} in the ONNX, expected {dim!r}"
                )


def _in_one_order(
    point: Point, found: Mapping[str, np.ndarray], declared: Detections
) -> tuple[Mapping[str, np.ndarray], Mapping[str, np.ndarray]]:
    """Return both answers with rows of sets in one order, and without classes and counts, which matching compares.

    Raises:
        StageError: another shape, or too many rows without a partner.
    """
    for name in declared.names:
        if found[name].shape != point.answer[name].shape:
            _same_values(point, name, point.answer[name], found[name], rtol=RTOL)
    done = match(point.answer, found, declared)
    if done.share < GATES_MATCHED["fp32"]:
        raise StageError(
            f"the ONNX model finds other things than the source at the {point.name} shape: {done.share:.4g} of the "
            f"rows of both have a partner, expected {GATES_MATCHED['fp32']:g}"
        )
    rest = [n for n in point.answer if n not in declared.names]
    return (
        {n: point.answer[n] for n in rest} | dict(done.truth),
        {n: found[n] for n in rest} | dict(done.found),
    )


def _same_values(point: Point, name: str, expected: np.ndarray, found: np.ndarray, *, rtol: float = RTOL) -> None:
    at = f"at the {point.name} shape ({', '.join(f'{n} {list(v.shape)}' for n, v in point.feed.items())})"
    if expected.shape != found.shape:
        rank = expected.ndim != found.ndim and any(1 in v.shape for v in point.feed.values())
        raise StageError(
            f"output {name!r} of the ONNX model is {found.shape} {at}, the source gives {expected.shape}"
            + (
                ": its rank changes where an axis has one element, as after a squeeze() without an axis" if rank else ""
            ),
            fix="name the axis, as in squeeze(-1), or give that axis a smallest size of 2 with --min-shape"
            if rank
            else None,
        )
    if not expected.size:
        return
    if expected.dtype.kind != "f":
        if (differing := np.argwhere(expected != found)).size:
            first = tuple(differing[0].tolist())
            raise StageError(
                f"output {name!r} of the ONNX model differs {at}, and integers must be equal: {len(differing)} of "
                f"{expected.size} differ, the first at {list(first)}: {found[first]}, the source gives "
                f"{expected[first]}",
                fix="where these are places of scores (topk, argmax, sort), equal scores may come in another order in "
                "ONNX: break ties in the model, or return the scores alone",
            )
        return
    if not np.array_equal(np.isfinite(expected), np.isfinite(found)):
        raise StageError(f"output {name!r} of the ONNX model has NaN or infinities elsewhere than the source, {at}")
    finite = np.isfinite(expected)
    worst = float(np.abs(np.where(finite, expected - found, 0)).max())
    allowed = ATOL + rtol * float(np.abs(np.where(finite, expected, 0)).max())
    if worst > allowed:
        raise StageError(
            f"output {name!r} of the ONNX model differs from the source by {worst:.3g} {at}: allowed {allowed:.3g}",
            fix=CHANGED,
        )
