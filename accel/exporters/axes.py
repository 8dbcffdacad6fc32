"""Dynamic axes: which sizes each named axis may take, and the shapes that follow from them. Standard library only."""

import dataclasses
from collections.abc import Collection, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import TYPE_CHECKING

from accel.core.errors import UsageError, nearest
from accel.core.values import ModelSource, ShapeRange, TensorSpec, axis_sizes
from accel.exporters.masks import NO_MASK, family
from accel.exporters.request import SourceRequest

if TYPE_CHECKING:
    import numpy as np

BATCH = ShapeRange((1,), (1,), (16,))
"""Sizes of a leading axis about which nobody said anything."""


@dataclass(frozen=True, slots=True)
class Extent:
    """Smallest, typical and largest size of one axis, each a multiple of ``multiple``."""

    min: int
    opt: int
    max: int
    multiple: int = 1


def extents(inputs: Iterable[TensorSpec], profile: Mapping[str, ShapeRange]) -> dict[str, Extent]:
    """Return the extent of every named axis, in order of first appearance."""
    found: dict[str, Extent] = {}
    for spec in inputs:
        shapes = profile[spec.name]
        for dim, *sizes in zip(spec.dims, shapes.min, shapes.opt, shapes.max, shapes.multiples, strict=True):
            if isinstance(dim, str):
                found.setdefault(dim, Extent(*sizes))
    return found


def shapes_at(inputs: Iterable[TensorSpec], sizes: Mapping[str, int]) -> dict[str, tuple[int, ...]]:
    """Return each input's shape with the named axes at the given sizes."""
    return {s.name: tuple(sizes[d] if isinstance(d, str) else d for d in s.dims) for s in inputs}


def profile_of(inputs: Sequence[TensorSpec], axes: Mapping[str, Extent]) -> dict[str, ShapeRange]:
    """Return the shape ranges of the inputs for these axis extents."""
    low, opt, high = (
        shapes_at(inputs, {n: getattr(e, point) for n, e in axes.items()}) for point in ("min", "opt", "max")
    )
    multiples = {n: e.multiple for n, e in axes.items()}
    every = {s.name: tuple(multiples.get(str(d), 1) for d in s.dims) for s in inputs}
    return {
        s.name: ShapeRange(*(low[s.name], opt[s.name], high[s.name]), every[s.name] if set(every[s.name]) - {1} else ())
        for s in inputs
    }


def points(inputs: Iterable[TensorSpec], profile: Mapping[str, ShapeRange]) -> dict[str, dict[str, int]]:
    """Return the size of every named axis at the smallest, an odd, the typical and the largest point of the profile."""
    axes = extents(inputs, profile)
    return {
        "min": {n: e.min for n, e in axes.items()},
        "odd": odd_sizes(axes),
        "opt": {n: e.opt for n, e in axes.items()},
        "max": {n: e.max for n, e in axes.items()},
    }


def odd_sizes(axes: Mapping[str, Extent]) -> dict[str, int]:
    """Choose one size per axis strictly between its ends where there is room: odd, and never the typical one.

    The geometric middle keeps the point cheap on axes that span powers of two.
    """
    chosen = {}
    for name, e in axes.items():
        middle = round((e.min * e.max) ** 0.5)
        room = range(e.min + e.multiple, e.max, e.multiple)
        inside = sorted(room, key=lambda n: (n == e.opt, n // e.multiple % 2 == 0, abs(n - middle)))
        chosen[name] = inside[0] if inside else e.min
    return chosen


def batch_axis(source: ModelSource) -> str | None:
    """Return ``batch`` where that axis leads every input, or None: another one in front counts no items."""
    return "batch" if source.batched else None


def batches(source: ModelSource) -> list[int]:
    """Return the batch sizes of the throughput scenario: powers of two from the least to the largest of the profile."""
    axis = batch_axis(source)
    if axis is None:
        return [1]
    first = source.profile[source.inputs[0].name]
    low, high = first.min[0], first.max[0]
    return [n for n in (1 << i for i in range(high.bit_length())) if low <= n <= high] or [low]


def hidden_axes(source: ModelSource) -> Set[int | str]:
    """Return the axes that may be padded: the mask hides what is added, and every output can be cut back by its axes.

    An output may have an axis of its own, as the keys of a decoder's past and the new position have: where padding
    ends in it nothing says.
    """
    given = {d for spec in source.inputs for d in spec.dims}
    if any(isinstance(d, str) and d not in given for spec in source.outputs for d in spec.dims):
        return set()
    return {d for spec in source.inputs if spec.name == source.mask for d in spec.dims[1:]}


def with_mask(source: ModelSource, name: str | None) -> ModelSource:
    """Return the source with the mask that the user named; None keeps what was found, ``none`` says that it has none.

    Raises:
        UsageError: no such input, one of floats (0 may be what they show), or one whose axes (batch, positions, …) are
            not the first ones of another input.
    """
    if name is None:
        return source
    if name == NO_MASK:
        return dataclasses.replace(source, mask=None)
    known_input(name, [spec.name for spec in source.inputs], "--mask")
    found = next(spec for spec in source.inputs if spec.name == name)
    if "float" in found.dtype:
        raise UsageError(
            f"--mask {name}: it is {found.dtype}, and integers or bools are expected: 0 at padding, 1 elsewhere",
            fix=f"name another input, or --mask {NO_MASK}",
        )
    dims = found.dims
    beside = [spec for spec in source.inputs if spec.name != name]
    if len(dims) < 2 or not any(spec.dims[: len(dims)] == dims for spec in beside):
        shapes = ", ".join(f"{spec.name} {list(spec.dims)}" for spec in source.inputs)
        raise UsageError(
            f"--mask {name}: expected the axes of the input whose padding it hides, and the inputs are {shapes}",
            fix=f"name another input, or --mask {NO_MASK}",
        )
    kind = family(source.inputs, name) if source.family == "other" else source.family
    return dataclasses.replace(source, mask=name, family=kind)


def sizes_of(specs: Iterable[TensorSpec], feed: "Mapping[str, np.ndarray]") -> dict[str, int]:
    """Return the size of every named axis in a feed."""
    return axis_sizes(specs, {name: value.shape for name, value in feed.items()})


def cut(spec: TensorSpec, value: "np.ndarray", sizes: Mapping[str, int]) -> "np.ndarray":
    """Cut the named axes of a tensor back to ``sizes``; those without one stay."""
    return value[tuple(slice(sizes.get(d)) if isinstance(d, str) else slice(None) for d in spec.dims)]


def trace_sizes(axes: Mapping[str, Extent], *, taken: Iterable[int] = ()) -> dict[str, int]:
    """Choose small sizes to trace at: two or more (1 is specialised), no two axes alike and none like a fixed size.

    Source: https://docs.pytorch.org/docs/stable/export.html (0/1 specialisation).
    """
    used = set(taken)
    chosen = {}
    for index, (name, e) in enumerate(axes.items()):
        low = -(-max(e.min, 2 if index == 0 else 5) // e.multiple) * e.multiple
        room = [n for n in range(low, min(e.max, low + 64 * e.multiple) + 1, e.multiple) if n not in used] or [e.max]
        chosen[name] = room[0]
        used.add(room[0])
    return chosen


def resolve(
    inputs: Sequence[TensorSpec], profile: Mapping[str, ShapeRange], request: SourceRequest
) -> tuple[tuple[TensorSpec, ...], dict[str, ShapeRange], dict[str, int]]:
    """Apply the user's shapes and ranges to a model whose inputs are known.

    A size given for one input holds for every input that shares the axis. An axis whose smallest and largest size are
    equal becomes fixed.

    Returns:
        The inputs, their profile, and the axes that became fixed with their size.

    Raises:
        UsageError: an unknown input, a wrong rank or fixed size, two sizes for one axis, min > opt or opt > max, or a
            size that is not a multiple of what its axis takes.
    """
    axes = extents(inputs, profile)
    given = {
        "min": given_sizes(inputs, request.min_shapes, "--min-shape"),
        "opt": given_sizes(inputs, request.opt_shapes, "--shape"),
        "max": given_sizes(inputs, request.max_shapes, "--max-shape"),
    }
    multiples = given_sizes(inputs, request.multiples, "--multiple", fixed=False)
    for name, e in axes.items():
        step = multiples.get(name, e.multiple)
        for point, sizes in given.items():
            if sizes.get(name, step) % step:
                raise UsageError(f"axis {name!r} is {sizes[name]} at its {point} size: expected a multiple of {step}")
        low, high = given["min"].get(name, -(-e.min // step) * step), given["max"].get(name, e.max // step * step)
        opt = given["opt"].get(name, min(max(-(-e.opt // step) * step, low), high))
        if not low <= opt <= high:
            raise UsageError(
                f"axis {name!r} would run from {low} over {opt} to {high}: expected min <= opt <= max",
                fix="give --min-shape, --shape and --max-shape that fit together",
            )
        axes[name] = Extent(low, opt, high, step)
    fixed = {n: e.opt for n, e in axes.items() if e.min == e.max}
    ranges = checked_ranges(inputs, request)
    resolved = tuple(dataclasses.replace(s, dims=fix_dims(s, fixed), range=ranges.get(s.name, s.range)) for s in inputs)
    return resolved, profile_of(resolved, axes), fixed


def with_fixed(request: SourceRequest, source: ModelSource, names: Iterable[str]) -> SourceRequest | None:
    """Return the request with these axes fixed at their typical sizes; None where the user or samples chose them."""
    chosen = {*request.min_shapes, *request.max_shapes}
    lost = set(names)
    if source.samples not in ("random", "zoo") or any(s.name in chosen and lost & set(s.dims) for s in source.inputs):
        return None
    axes = {
        n: dataclasses.replace(e, min=e.opt, max=e.opt) if n in lost else e
        for n, e in extents(source.inputs, source.profile).items()
    }
    profile = profile_of(source.inputs, axes)
    return dataclasses.replace(
        request,
        min_shapes={n: p.min for n, p in profile.items()},
        opt_shapes={n: p.opt for n, p in profile.items()},
        max_shapes={n: p.max for n, p in profile.items()},
        fixed=tuple(f"{n} ({axes[n].opt})" for n in axes if n in lost),
    )


def fix_dims(spec: TensorSpec, fixed: Mapping[str, int]) -> tuple[int | str, ...]:
    """Return the spec's dims with the axes in ``fixed`` replaced by their sizes."""
    return tuple(fixed.get(d, d) if isinstance(d, str) else d for d in spec.dims)


def checked_ranges(inputs: Sequence[TensorSpec], request: SourceRequest) -> dict[str, tuple[int, int]]:
    """Return the user's ranges.

    Raises:
        UsageError: a range for an input that does not exist or holds no integers.
    """
    by_name = {s.name: s for s in inputs}
    for name in request.ranges:
        known_input(name, by_name, "--range")
        if "int" not in by_name[name].dtype:
            raise UsageError(f"--range is for integer inputs, and {name!r} is {by_name[name].dtype}")
    return dict(request.ranges)


def known_input(name: str, known: Iterable[str], option: str) -> None:
    """Raise UsageError where the model has no input of that name."""
    names = list(known)
    if name not in names:
        raise UsageError(
            f"{option}: the model has no input {name!r}{nearest(name, names)}", fix=f"its inputs are {names}"
        )


def given_sizes(
    inputs: Sequence[TensorSpec], shapes: Mapping[str, tuple[int, ...]], option: str, *, fixed: bool = True
) -> dict[str, int]:
    """Return axis → the number given for it; for an axis of one size it must be that size where ``fixed``.

    Raises:
        UsageError: an unknown input, a wrong rank or fixed size, or two sizes for one axis; begins with ``option``.
    """
    by_name = {s.name: s for s in inputs}
    sizes: dict[str, int] = {}
    for name, shape in shapes.items():
        known_input(name, by_name, option)
        dims = by_name[name].dims
        if len(dims) != len(shape):
            raise UsageError(f"{option} {name}: {len(shape)} sizes given, expected {len(dims)}: {dims}")
        for dim, size in zip(dims, shape, strict=True):
            if isinstance(dim, int) and size != dim and fixed:
                raise UsageError(f"{option} {name}: an axis is fixed at {dim}, found {size} (dims {dims})")
            if isinstance(dim, str) and sizes.setdefault(dim, size) != size:
                raise UsageError(f"{option}: axis {dim!r} is given both {sizes[dim]} and {size}")
    return sizes


def name_axes(
    shapes: Mapping[str, ShapeRange], dtypes: Mapping[str, str], states: Collection[str] = ()
) -> tuple[tuple[TensorSpec, ...], dict[str, ShapeRange]]:
    """Name the axes that vary, for a model that has no names for them.

    The leading axis is ``batch``. Axes that vary alike at one position of several inputs are taken to be one axis; the
    second one of integers of rank 2 is called ``seq``. In a state (``states``) the batch may stand behind the layers.
    """
    batch = {(s.min[0], s.opt[0], s.max[0]) for n, s in shapes.items() if n not in states and s.opt}
    names: dict[tuple[int, int, int, int], str] = {}
    specs = []
    for name, shape in shapes.items():
        dims: list[int | str] = []
        for axis, (lo, opt, hi) in enumerate(zip(shape.min, shape.opt, shape.max, strict=True)):
            if lo == hi:
                dims.append(lo)
                continue
            text = axis == 1 and "int" in dtypes[name] and len(shape.min) == 2
            label = "batch" if axis == 0 else "seq" if text else f"{name}_{axis}"
            if axis > 0 and name in states and {(lo, opt, hi)} == batch:
                label = "batch"
            elif axis > 0 and label in names.values():
                label = names.get((axis, lo, opt, hi), f"{name}_{axis}")
            dims.append(names.setdefault((axis, lo, opt, hi), label))
        specs.append(TensorSpec(name, dtypes[name], tuple(dims)))
    return tuple(specs), dict(shapes)


def output_dims(
    points: Mapping[str | None, Mapping[str, int]],
    seen: Mapping[str | None, Sequence[tuple[int, ...]]],
    other: Sequence[Sequence[tuple[int, ...]]] = (),
) -> list[tuple[int | str, ...]]:
    """Work out which output axes follow which input axes.

    Args:
        points: sizes of the inputs' axes in a base run (None), and in one run per axis with only that axis at another.
        seen: output shapes of these runs.
        other: output shapes of further runs at the base sizes, on other values.

    Returns:
        Dims of each output. An axis that follows an input axis unchanged takes its name; one that changes otherwise,
        or with the values, gets a name of its own (``out0_axis2``).
    """
    base = points[None]
    dims: list[tuple[int | str, ...]] = []
    for index, shape in enumerate(seen[None]):
        out: list[int | str] = []
        for axis, size in enumerate(shape):
            moved = [n for n in points if n is not None and seen[n][index][axis] != size]
            by_value = any(found[index][axis] != size for found in other)
            follows = len(moved) == 1 and (size, seen[moved[0]][index][axis]) == (
                base[moved[0]],
                points[moved[0]][moved[0]],
            )
            if not moved and not by_value:
                out.append(size)
            elif follows and not by_value:
                out.append(moved[0])
            else:
                out.append(f"out{index}_axis{axis}")
        dims.append(tuple(out))
    return dims
