"""What a model's outputs are, found by running it."""

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from accel.core.errors import StageError
from accel.core.feeds import Feed
from accel.core.values import ShapeRange, TensorSpec
from accel.exporters.axes import extents, output_dims, shapes_at


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
    names: list[str] = []
    dtypes: list[str] = []
    for axis, sizes in points.items():
        found = run(example_arrays(inputs, shapes_at(inputs, sizes)))
        shapes = [v.shape for v in found.values()]
        if seen and (list(found) != names or [len(s) for s in shapes] != [len(s) for s in seen[None]]):
            raise StageError(f"the model returns other outputs at {sizes} than at {base}: {list(found)} and {names}")
        names, dtypes = list(found), [str(v.dtype) for v in found.values()]
        seen[axis] = shapes
    return tuple(TensorSpec(n, t, d) for n, t, d in zip(names, dtypes, output_dims(axes, base, seen), strict=True))


def example_arrays(inputs: Sequence[TensorSpec], shapes: Mapping[str, tuple[int, ...]]) -> dict[str, np.ndarray]:
    """Make seeded values that every range allows; a mask is all ones."""
    rng = np.random.default_rng(0)
    feed = {}
    for spec in inputs:
        mask = "mask" in spec.name and spec.range in (None, (0, 1)) and "float" not in spec.dtype
        shape = shapes[spec.name]
        feed[spec.name] = np.ones(shape, spec.dtype) if mask else draw(rng, spec, shape)
    return feed


def draw(rng: np.random.Generator, spec: TensorSpec, shape: tuple[int, ...]) -> np.ndarray:
    """Draw values of a tensor: integers from its range (0 and 1 without one), floats from a normal distribution."""
    if spec.dtype == "bool":
        return rng.integers(0, 2, shape).astype(bool)
    if "int" in spec.dtype:
        return ended(rng.integers(*(spec.range or (0, 1)), shape, endpoint=True).astype(spec.dtype), spec)
    return rng.standard_normal(shape).astype(spec.dtype)


def ended(ids: np.ndarray, spec: TensorSpec) -> np.ndarray:
    """Let every text end with the id that ends texts, and hold it nowhere else: some models ask for one in each."""
    if spec.ends is None:
        return ids
    other = next(end for end in spec.range or (0, 1) if end != spec.ends)
    ids = np.where(ids == spec.ends, ids.dtype.type(other), ids)
    ids[..., -1] = spec.ends
    return ids
