"""The client contract: what clients see of a model, whatever runtime answers them.

It is the source's names, dtypes and dims, with the fixed sizes of a static build. The artifact, as it was read back
after the build, must keep it; a contradiction is an error here, not at the server.
"""

from dataclasses import dataclass

from accel.builders import targets
from accel.core.dtypes import datatype
from accel.core.errors import InputError
from accel.core.values import Artifact, Profile, TensorSpec, TritonModel, axis_sizes


@dataclass(frozen=True, slots=True)
class Contract:
    """What clients see. ``batch`` is the largest leading size where the server may merge requests, else 0."""

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    batch: int

    def without_batch(self, specs: tuple[TensorSpec, ...]) -> tuple[TensorSpec, ...]:
        """Return specs as a config states them: without the leading axis where ``batch`` is positive."""
        if not self.batch:
            return specs
        return tuple(TensorSpec(s.name, s.dtype, s.dims[1:], s.range) for s in specs)


def merges(served: TritonModel) -> bool:
    """Say whether requests of the artifact can be merged, by the backend as well as by its builder."""
    return served.dynamic_batching and targets.backend(served.backend).batches


def agree(
    artifact: Artifact, inputs: tuple[TensorSpec, ...], outputs: tuple[TensorSpec, ...], *, served: TritonModel
) -> Contract:
    """Return the client contract after checking the artifact's own tensors against it.

    Args:
        inputs / outputs: the source's, batch axis included.

    Raises:
        InputError: a tensor is missing, or its rank, a fixed size or (where the backend does not convert) its dtype
            differs from what clients were promised.
    """
    profile = artifact.variant.profile
    fixed = artifact.variant.static is not None
    sizes = axis_sizes(inputs, {name: shape.opt for name, shape in profile.items()}) if fixed else {}
    built = {s.name: s for s in (*artifact.built.inputs, *artifact.built.outputs)}
    converts = targets.backend(served.backend).converts

    def promised(spec: TensorSpec, backend_name: str) -> TensorSpec:
        found = built.get(backend_name) or built.get(spec.name)
        if found is None:
            raise InputError(f"{artifact.variant.id} has no tensor {backend_name!r}: it has {sorted(built)}")
        if len(found.dims) != len(spec.dims):
            raise InputError(f"{artifact.variant.id}: {spec.name!r} has dims {found.dims}, expected {spec.dims}")
        if found.dtype != spec.dtype and not converts:
            raise InputError(
                f"{artifact.variant.id}: {spec.name!r} is {found.dtype} in the artifact and {spec.dtype} for clients, "
                f"and the {served.backend} backend does not convert",
                fix="build it with a Cast at its boundary, or serve it through the Python backend",
            )
        dims = tuple(sizes.get(d, d) if isinstance(d, str) else d for d in spec.dims)
        if fixed:
            dims = tuple(
                f if isinstance(d, str) and isinstance(f, int) else d for d, f in zip(dims, found.dims, strict=True)
            )
        if any(isinstance(f, int) and f >= 0 and f != d for f, d in zip(found.dims, dims, strict=True)):
            raise InputError(f"{artifact.variant.id}: {spec.name!r} is fixed to {found.dims}, clients expect {dims}")
        return TensorSpec(spec.name, spec.dtype, dims, spec.range)

    inputs = tuple(promised(s, served.input_names.get(s.name, s.name)) for s in inputs)
    outputs = tuple(promised(s, served.output_names.get(s.name, s.name)) for s in outputs)
    for spec in (*inputs, *outputs):
        datatype(spec.dtype)
        if not spec.dims:
            raise InputError(f"{spec.name!r} is a scalar, and Triton has only tensors with dims", fix="give it an axis")
    return Contract(inputs, outputs, largest_batch(inputs, outputs, profile) if merges(served) else 0)


def largest_batch(inputs: tuple[TensorSpec, ...], outputs: tuple[TensorSpec, ...], profile: Profile) -> int:
    """Return the largest leading size of a model whose requests can be merged; 0 where they cannot.

    A tensor of the batch axis alone would be left with no dims, which the server refuses; unbatched it keeps one.

    Source: core, src/model_config_utils.cc, ValidateIOShape.
    """
    leading = {s.dims[0] for s in (*inputs, *outputs)}  # another axis in front holds what one request says, not items
    deep = all(len(s.dims) > 1 for s in (*inputs, *outputs))
    return min(profile[s.name].max[0] for s in inputs) if deep and leading == {"batch"} else 0
