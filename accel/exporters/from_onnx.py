"""ONNX files as sources: checked, run unoptimised as the reference, copied with their external data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from accel.core.errors import InputError, StageError, UsageError
from accel.core.values import ModelSource, TensorSpec
from accel.exporters.axes import Extent, fix_dims, profile_of, resolve
from accel.exporters.onnx_file import external_files, parse, refuse_foreign
from accel.exporters.request import SourceRequest
from accel.exporters.sources import content_key
from accel.graph.evaluate import open_unoptimised

if TYPE_CHECKING:
    import onnx

SEQUENCE = Extent(1, 128, 512)
LEADING = Extent(1, 1, 16)


def check_file(path: Path) -> None:
    """Run onnx.checker in full, after making sure that the file points inside its folder and holds nothing foreign.

    Raises:
        InputError: the checker rejects it (a cycle, a bad type, an unknown operator…).
    """
    import onnx

    external_files(path)
    refuse_foreign(path)
    try:
        onnx.checker.check_model(str(path), full_check=True)
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError, RuntimeError, ValueError) as error:
        first = next((line for line in str(error).splitlines() if line.strip()), repr(error))
        raise InputError(f"{path.name} is not a valid ONNX model: {first}", fix="export it again") from error


def graph_specs(model: onnx.ModelProto) -> tuple[tuple[TensorSpec, ...], tuple[TensorSpec, ...]]:
    """Return the inputs (initialisers left out) and outputs as the graph declares them.

    An axis without a name or size gets one: ``batch`` in front, else ``<tensor>_<axis>``.

    Raises:
        InputError: an input or output that is no tensor, or has no shape.
    """
    constants = {t.name for t in model.graph.initializer}
    inputs = [v for v in model.graph.input if v.name not in constants]
    return tuple(_spec(v) for v in inputs), tuple(_spec(v) for v in model.graph.output)


def _spec(value: onnx.ValueInfoProto) -> TensorSpec:
    import onnx

    kind = value.type.tensor_type
    if not value.type.HasField("tensor_type") or not kind.HasField("shape"):
        raise InputError(f"{value.name!r} is not a tensor with a shape: clients could not know what to send")
    try:
        dtype = str(np.dtype(onnx.helper.tensor_dtype_to_np_dtype(kind.elem_type)))
    except (KeyError, TypeError) as error:
        raise InputError(f"{value.name!r} has the element type {kind.elem_type}, which NumPy lacks") from error
    dims: list[int | str] = []
    for axis, dim in enumerate(kind.shape.dim):
        if dim.HasField("dim_value") and dim.dim_value > 0:
            dims.append(int(dim.dim_value))
        else:
            dims.append(dim.dim_param or ("batch" if axis == 0 else f"{value.name}_{axis}"))
    return TensorSpec(value.name, dtype, tuple(dims))


def describe(request: SourceRequest) -> ModelSource:
    """Describe an ONNX file: inputs, outputs and axis names as it has them.

    Raises:
        InputError: broken, or reaching outside its folder.
        UsageError: nothing says which sizes a dynamic axis takes.
    """
    path = Path(request.reference)
    key = content_key(request)
    check_file(path)
    inputs, outputs = graph_specs(parse(path))
    axes: dict[str, Extent] = {}
    guessed: list[str] = []
    for spec in inputs:
        for axis, dim in enumerate(spec.dims):
            if isinstance(dim, str) and dim not in axes:
                axes[dim], known = _extent(request, spec, axis)
                guessed += [] if known else [dim]
    inputs, profile, fixed = resolve(inputs, profile_of(inputs, axes), request)
    open_unoptimised(path)
    if key is None:
        raise InputError(f"{path} vanished while it was read")
    return request.source(
        "onnx",
        key=key,
        inputs=inputs,
        outputs=tuple(TensorSpec(o.name, o.dtype, fix_dims(o, fixed)) for o in outputs),
        profile=profile,
        samples=request.samples or "random",
        notices=[f"axis {n!r}: sizes {axes[n].min} to {axes[n].max} assumed (--max-shape sets them)" for n in guessed],
    )


def _extent(request: SourceRequest, spec: TensorSpec, axis: int) -> tuple[Extent, bool]:
    """Find the sizes of an axis in the user's shapes; assume some for a batch and a sequence, and say so."""
    every = (request.min_shapes, request.opt_shapes, request.max_shapes)
    given = [s[spec.name][axis] for s in every if spec.name in s and axis < len(s[spec.name])]
    name = str(spec.dims[axis])
    if axis == 0:
        return Extent(1, LEADING.opt, max([LEADING.max, *given])), True
    if given:
        return Extent(min(given), given[-1], max(given)), True
    if "seq" in name.lower():
        return SEQUENCE, False
    raise UsageError(
        f"nothing says which sizes axis {axis} ({name!r}) of input {spec.name!r} takes",
        fix=f"give --min-shape, --shape and --max-shape for {spec.name}",
    )


def run_session(session: Any, feed: Mapping[str, np.ndarray], outputs: Sequence[str]) -> dict[str, np.ndarray]:
    """Run an unoptimised session.

    Raises:
        StageError: ONNX Runtime raised; the message names the shapes.
    """
    try:
        return dict(zip(outputs, session.run(list(outputs), dict(feed)), strict=True))
    except Exception as error:
        shapes = ", ".join(f"{n} {v.dtype}{list(v.shape)}" for n, v in feed.items())
        raise StageError(
            f"the ONNX model failed on {shapes}: {str(error).splitlines()[0]}",
            fix="a fixed size inside the graph is the usual cause: change the export, or fix the axis with --min-shape "
            "and --max-shape",
        ) from error


def copy(source: ModelSource, path: Path) -> None:
    """Copy an ONNX source and its external data to ``path``'s folder, under the names the file uses.

    Axes without a name get the source's, and axes the user fixed get their size; all else stays byte for byte.

    Raises:
        InputError: external data outside the source's folder, missing or truncated.
        OutputError: the folder cannot be written.
    """
    from accel.graph import passes
    from accel.graph.interface import DeclareAxes

    origin = Path(source.reference)
    external_files(origin)
    passes.rewrite(origin, path, DeclareAxes((*source.inputs, *source.outputs)))
