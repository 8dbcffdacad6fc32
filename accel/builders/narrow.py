"""Narrow the integers of an ONNX file for a runtime by name."""

from collections.abc import Mapping
from pathlib import Path

from accel.builders import targets
from accel.core.errors import UsageError, nearest
from accel.core.values import ShapeRange
from accel.graph import LEVEL, Level, narrow
from accel.graph.narrow.report import NarrowReport


def narrow_file(
    source: Path,
    out: Path,
    *,
    level: Level = LEVEL,
    ranges: Mapping[str, tuple[int, int]] | None = None,
    shapes: Mapping[str, ShapeRange] | None = None,
    runtime: str | None = None,
) -> NarrowReport:
    """Narrow the INT64 values of an ONNX file that are proved to fit INT32.

    Args:
        source / out / level / ranges / shapes: as ``accel.graph.narrow.narrow_file``.
        runtime: whose kernels limit ``interior``: ``ort`` (for None), ``openvino``, ``tensorrt``, or a plug-in's.

    Raises:
        UsageError: nobody narrows for that runtime.
        AccelError: as ``accel.graph.narrow.narrow_file``.
    """
    known = targets.int32_runtimes()
    runtime = runtime or narrow.ONNX_RUNTIME.name
    if runtime not in known:
        *others, last = known
        expected = f"{', '.join(others)} or {last}{nearest(runtime, known)}"
        raise UsageError(f"--runtime is {runtime!r}: expected {expected}")
    return narrow.narrow_file(source, out, level=level, ranges=ranges, shapes=shapes, runtime=known[runtime])
