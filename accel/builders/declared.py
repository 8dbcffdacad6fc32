"""Bring what a built file declares and what the client was promised together.

Names, dtypes and fixed sizes come from the file; names of dynamic axes and integer ranges, which many formats lose,
come from the source. And an exported file that ships as it is keeps the names that it declares.
"""

import shutil
from collections.abc import Sequence
from pathlib import Path

from accel.core.errors import StageError
from accel.core.values import BuildRequest, ModelSource, TensorSpec, axis_sizes


def reconcile(found: Sequence[TensorSpec], promised: Sequence[TensorSpec], *, what: str) -> tuple[TensorSpec, ...]:
    """Return ``found``, in its own order, with axis names and ranges of ``promised``.

    Args:
        found: what the file declares; a dynamic axis is any string.
        promised: what clients were told.
        what: ``input`` or ``output``, for the message.

    Raises:
        StageError: a name is missing or new, a rank differs, or a size contradicts the promise.
    """
    by_name = {s.name: s for s in promised}
    names = [s.name for s in found]
    if sorted(names) != sorted(by_name):
        raise StageError(f"the built file has the {what}s {names}, expected {sorted(by_name)}")
    specs = []
    for spec in found:
        wanted = by_name[spec.name]
        if len(spec.dims) != len(wanted.dims):
            raise StageError(f"{what} {spec.name!r} has dims {spec.dims} in the built file, expected {wanted.dims}")
        dims: list[int | str] = []
        for have, want in zip(spec.dims, wanted.dims, strict=True):
            if isinstance(have, int) and isinstance(want, int) and have != want:
                raise StageError(f"{what} {spec.name!r} has dims {spec.dims} in the built file, expected {wanted.dims}")
            dims.append(have if isinstance(have, int) else want)
        specs.append(TensorSpec(spec.name, spec.dtype, tuple(dims), wanted.range))
    return tuple(specs)


def static_specs(request: BuildRequest) -> tuple[tuple[TensorSpec, ...], tuple[TensorSpec, ...]]:
    """Return the source's inputs and outputs with the axes that the variant fixes replaced by their sizes."""
    fixed = fixed_axes(request)
    source: ModelSource = request.source

    def fix(specs: Sequence[TensorSpec]) -> tuple[TensorSpec, ...]:
        return tuple(
            TensorSpec(s.name, s.dtype, tuple(fixed.get(d, d) if isinstance(d, str) else d for d in s.dims), s.range)
            for s in specs
        )

    return fix(source.inputs), fix(source.outputs)


def fixed_axes(request: BuildRequest) -> dict[str, int]:
    """Return axis name → size for a static build, and nothing for any other."""
    if request.variant.static is None:
        return {}
    return axis_sizes(request.source.inputs, {name: s.opt for name, s in request.variant.profile.items()})


def copy_onnx(request: BuildRequest, out: Path) -> None:
    """Copy the exported model to ``out``, and its weights under their own names, since the file refers to them."""
    assert request.onnx is not None
    assert request.onnx_folder is not None
    folder = Path(request.onnx_folder)
    shutil.copyfile(folder / request.onnx.file.path, out)
    for data in request.onnx.data:
        target = out.parent / data.path
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(folder / data.path, target)
