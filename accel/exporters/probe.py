"""What a model's outputs are, found by running it."""

from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np

from accel.core.errors import InputError, StageError
from accel.core.feeds import Feed
from accel.core.values import ShapeRange, TensorSpec
from accel.exporters.axes import extents, output_dims, shapes_at

RTOL, ATOL = 1e-4, 1e-5
"""Difference between two runs that the order of sums may make; ``ATOL`` is relative to the largest value."""


def probe_outputs(
    run: Callable[[Feed], Mapping[str, np.ndarray]], inputs: Sequence[TensorSpec], profile: Mapping[str, ShapeRange]
) -> tuple[TensorSpec, ...]:
    """Run the model to read its outputs' names and dtypes, and which of their axes follow which input axes.

    Args:
        run: gives the outputs for arrays by input name.

    Raises:
        StageError: the outputs' names or ranks change with the inputs' sizes.
    """
    axes = extents(inputs, profile)
    base = {n: e.min for n, e in axes.items()}
    points: dict[str | None, dict[str, int]] = {
        None: base,
        **{name: base | {name: e.opt if e.opt != e.min else e.max} for name, e in axes.items()},
    }
    seen: dict[str | None, list[tuple[int, ...]]] = {}
    other: list[list[tuple[int, ...]]] = []
    names: list[str] = []
    dtypes: list[str] = []
    for axis, sizes, seed in [*((axis, sizes, 0) for axis, sizes in points.items()), (None, base, 1), (None, base, 2)]:
        found = run(example_arrays(inputs, shapes_at(inputs, sizes), seed=seed))
        shapes = [v.shape for v in found.values()]
        if seen and (list(found) != names or [len(s) for s in shapes] != [len(s) for s in seen[None]]):
            raise StageError(f"the model returns other outputs at {sizes} than at {base}: {list(found)} and {names}")
        names, dtypes = list(found), [str(v.dtype) for v in found.values()]
        if seed:
            other.append(shapes)
        else:
            seen[axis] = shapes
    dims = output_dims(points, seen, other)
    return tuple(TensorSpec(n, t, d) for n, t, d in zip(names, dtypes, dims, strict=True))


def check_repeats(
    run: Callable[[Feed], Mapping[str, np.ndarray]],
    inputs: Sequence[TensorSpec],
    profile: Mapping[str, ShapeRange],
    changing: Sequence[str],
) -> None:
    """Run a model twice on the same values.

    Args:
        changing: its operators that draw random numbers or write a state, as far as they are known.

    Raises:
        InputError: it answers the same inputs differently.
    """
    feed = example_arrays(inputs, {name: shape.min for name, shape in profile.items()})
    first, second = run(feed), run(feed)
    for name, value in first.items():
        if not alike(value, second[name]):
            raise InputError(
                f"the source is not deterministic: output {name!r} differs between two runs on the same inputs; "
                + (
                    f"random numbers are drawn, or a state is written, by {', '.join(changing)}"
                    if changing
                    else "nothing in it says why"
                ),
                fix="take noise and state as inputs, and export in inference mode: nothing can be held against a model "
                "that answers otherwise each time",
            )


def alike(one: np.ndarray, other: np.ndarray, *, factor: int = 1) -> bool:
    """Say whether two answers to one feed are the same, as far as the order of sums allows.

    Args:
        factor: of what they may differ by: another program for the same model adds in another order.
    """
    if one.shape != other.shape:
        return False
    if one.dtype.kind != "f":
        return bool(np.array_equal(one, other))
    largest = float(np.abs(one[np.isfinite(one)]).max(initial=0.0))
    return bool(np.allclose(one, other, rtol=factor * RTOL, atol=factor * ATOL * largest, equal_nan=True))


def example_arrays(
    inputs: Sequence[TensorSpec], shapes: Mapping[str, tuple[int, ...]], *, seed: int = 0
) -> dict[str, np.ndarray]:
    """Make seeded values that every range and the sizes of other inputs allow; a mask is all ones."""
    rng = np.random.default_rng(seed)
    feed = {}
    for spec in inputs:
        mask = "mask" in spec.name and spec.range in (None, (0, 1)) and "float" not in spec.dtype
        shape = shapes[spec.name]
        feed[spec.name] = np.ones(shape, spec.dtype) if mask else draw(rng, spec, shape)
    return kept_within(feed, inputs)


def draw(rng: np.random.Generator, spec: TensorSpec, shape: tuple[int, ...]) -> np.ndarray:
    """Draw values of a tensor: integers from its range (0 and 1 without one), floats from a normal distribution."""
    if spec.dtype == "bool":
        return rng.integers(0, 2, shape).astype(bool)
    if "int" in spec.dtype:
        return ended(rng.integers(*(spec.range or (0, 1)), shape, endpoint=True).astype(spec.dtype), spec)
    return rng.standard_normal(shape).astype(spec.dtype)


def kept_within(feed: Feed, inputs: Iterable[TensorSpec]) -> dict[str, np.ndarray]:
    """Return a feed in which values keep to sizes of other inputs and to their order (``at_most`` and ``rises``)."""
    kept = dict(feed)
    for spec in inputs:
        if spec.at_most is not None:
            other, axis, more = spec.at_most
            most = max(feed[other].shape[axis] + more, spec.range[0] if spec.range else 0)
            kept[spec.name] = np.minimum(feed[spec.name], feed[spec.name].dtype.type(most))
        if spec.rises is not None and kept[spec.name].size:
            kept[spec.name] = np.sort(kept[spec.name], axis=-1)
            kept[spec.name][..., 0] = spec.rises
    return kept


def ended(ids: np.ndarray, spec: TensorSpec) -> np.ndarray:
    """Let every text end with the id that ends texts, and hold it nowhere else: some models ask for one in each."""
    if spec.ends is None:
        return ids
    other = next(end for end in spec.range or (0, 1) if end != spec.ends)
    ids = np.where(ids == spec.ends, ids.dtype.type(other), ids)
    ids[..., -1] = spec.ends
    return ids
