"""INT64 → INT32 that is proved: each value is shown to fit and narrowed, or left alone with the reason.

``narrow_file`` rewrites one ONNX file. What it promises: for every feed that keeps to the preconditions in its
report, the outputs of the new file are bitwise those of the old one, and an integer is never cut in silence. (For
TensorRT, which has no DOUBLE, ``double`` rounds that to FLOAT first; the promise then holds for the rounded graph.) The
proof is the interval analysis in ``analysis``; which values must change together is read from the operator schemas in
``classes``; ``plan`` decides, and the passes in ``integers`` and ``double`` carry it out. ``prove_int32_interior``
answers the other question: whether a runtime that computes int64 as int32 anyway (OpenVINO's CPU plugin) may be
given the model.

Nothing heavy is imported here: onnx is loaded when a function is called.
"""

import contextlib
import gc
from collections.abc import Iterator, Mapping
from pathlib import Path

from accel.core.errors import InputError, StageError, UsageError, first_line
from accel.core.values import Int32Runtime, ShapeRange, sha256_file
from accel.graph import Level, evaluate
from accel.graph.narrow.report import AxisRange, Cause, InputRange, NarrowReport, Unproved, ValueReport

__all__ = [
    "AxisRange",
    "Cause",
    "InputRange",
    "NarrowReport",
    "Unproved",
    "ValueReport",
    "narrow_file",
    "prove_int32_interior",
]


ONNX_RUNTIME = Int32Runtime("ort", "onnxruntime", evaluate.kernel_check)
"""What runs ONNX files as they are."""


def narrow_file(
    source: Path,
    out: Path,
    *,
    level: Level,
    ranges: Mapping[str, tuple[int, int]] | None = None,
    shapes: Mapping[str, ShapeRange] | None = None,
    runtime: Int32Runtime = ONNX_RUNTIME,
) -> NarrowReport:
    """Narrow the INT64 values of an ONNX file that are proved to fit INT32.

    External data is neither read nor changed: the new file refers to the same files, which are copied along if
    ``out`` lies in another folder.

    Args:
        out: file to write; it appears whole or not at all.
        level: ``io`` changes graph inputs and outputs, ``interior`` also classes of values inside, ``keep`` nothing.
        ranges: lowest and highest value of integer inputs, both inclusive.
        shapes: shape range by input; an axis without one may be 0 to 2**31 - 1 long.
        runtime: whose kernels limit ``interior``; for one without the wide types shape tensors stay, DOUBLE is rounded
            to FLOAT (not bitwise: each value is reported as ``rounded``) and UINT64 narrowed by the rules of INT64.

    Raises:
        UsageError: ``out`` is the source or its data, or a range or shape contradicts the model.
        InputError: the source is missing, cannot be read, or does not pass ONNX's checker.
        OutputError: ``out`` cannot be written.
        UnavailableError: level ``interior`` without the runtime whose kernels it asks for.
        StageError: the result does not pass the checker: a bug in accel; nothing is written.
    """
    import onnx_ir as ir

    from accel.graph import passes
    from accel.graph.narrow.double import RoundDoubles, merged
    from accel.graph.narrow.integers import NarrowIntegers

    if out.resolve() == source.resolve() or (out.exists() and source.exists() and out.samefile(source)):
        raise UsageError(f"{out} is the source itself", fix="choose another -o")
    _check_source(source)
    ranges, shapes = ranges or {}, shapes or {}
    work: list[ir.passes.PassBase] = []
    if not runtime.wide_types:
        work.append(RoundDoubles(level=level, ranges=ranges, shapes=shapes))
    kinds = (ir.DataType.INT64,) if runtime.wide_types else (ir.DataType.UINT64, ir.DataType.INT64)
    work += [NarrowIntegers(source=k, level=level, ranges=ranges, shapes=shapes, runtime=runtime) for k in kinds]
    with _no_collector():
        done = passes.rewrite(source, out, *work, check=lambda written: _check_result(written, source))
    return NarrowReport(
        source=source.name,
        source_sha256=sha256_file(source),
        sha256=sha256_file(out),
        level=level,
        runtime=runtime.name,
        values=merged(value for result in done for value in result.values),
        inputs=done[-1].analysis.inputs,
        axes=done[-1].analysis.axes,
        casts=sum(result.casts for result in done),
    )


def _check_source(source: Path) -> None:
    if not source.is_file():
        raise InputError(f"{source} is not a file", fix="give the path of an .onnx file")
    if error := _fault(source):
        raise InputError(
            f"{source} does not pass ONNX's checker: {first_line(error)}",
            fix="export it again; `python -m onnx.bin.checker FILE` shows the whole message",
        ) from error


def _check_result(result: Path, source: Path) -> None:
    """Check the new file as strictly as the source itself passes."""
    error = _fault(result, full=True)
    if error and _fault(source, full=True):
        error = _fault(result)
    if error:
        raise StageError(
            f"the narrowed model of {source.name} does not pass ONNX's checker: {error}",
            fix="this is a bug in accel; --ints keep goes round it",
        ) from error


def _fault(path: Path, *, full: bool = False) -> Exception | None:
    """Return what ONNX's checker, in full with shape inference, says against a file."""
    import onnx

    try:
        onnx.checker.check_model(str(path), full_check=full)
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError, ValueError, RuntimeError) as error:
        return error
    return None


@contextlib.contextmanager
def _no_collector() -> Iterator[None]:
    """Keep Python's cycle collector out of passes that make millions of small values and no cycles."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def prove_int32_interior(
    source: Path,
    *,
    ranges: Mapping[str, tuple[int, int]] | None = None,
    shapes: Mapping[str, ShapeRange] | None = None,
    through_float: frozenset[str] = frozenset(),
) -> tuple[Unproved, ...]:
    """List the values of a model that are not proved to fit int32; an empty result is the proof.

    All integer types wider than 32 bits or unsigned with 32 count, in the main graph, in sub-graphs and in functions
    (which are inlined for the analysis). Slice markers (INT64_MAX, INT64_MIN as start or end) keep their meaning when
    they saturate, as OpenVINO's do.

    Args:
        source / ranges / shapes: as for ``narrow_file``.
        through_float: operators that a runtime computes in float even for integers; they count with their integer
            inputs beyond 2**24.

    Raises:
        UsageError: a range or shape contradicts the model.
        InputError: the source is missing or does not pass ONNX's checker.
    """
    from onnx_ir.passes.common import InlinePass

    from accel.graph import passes
    from accel.graph.narrow.analysis import analyse
    from accel.graph.narrow.reasons import unproved

    _check_source(source)
    model = passes.load(source)
    with _no_collector():
        passes.run(model, InlinePass())
        analysis = analyse(model, ranges=ranges or {}, shapes=shapes or {}, watch=through_float)
    return tuple(unproved(model, analysis))
