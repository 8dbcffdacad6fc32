"""Items that accel brings itself: the zoo's sentences and pictures, and random values where there is nothing else."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from accel.core.errors import SampleError
from accel.core.feeds import Feed
from accel.core.values import ModelSource, TensorSpec
from accel.exporters.axes import extents, shapes_at
from accel.exporters.layout import array_first
from accel.exporters.probe import draw, kept_within
from accel.exporters.user_samples import tokenised
from accel.exporters.zoo import SMALL, zoo

REDUCED = 4
"""A reduced model takes a quarter of the items: it shows that every step works, and its accuracy means nothing."""


def zoo_items(source: ModelSource, count: int) -> tuple[list[dict[str, np.ndarray]], str]:
    """Return the zoo's own items, or its sentences and pictures made into this model's inputs, and what they are."""
    items: Sequence[Feed]
    if source.kind == "zoo":
        entry = zoo().entry(source.reference)
        if entry.name.endswith(SMALL):
            count //= REDUCED
        made, origin = entry.samples(count), entry.origin
        items = [{n: array_first(v) if n in source.graph.nchw else v for n, v in item.items()} for item in made]
        return [_within(item, source) | kept(item, entry.labels) for item in items], origin
    elif source.family == "vision":
        items, origin = zoo().pictures(count, source.inputs[0]), "dead-leaves pictures with natural statistics"
    else:
        items, origin = (
            tokenised(zoo().sentences(count), source),
            "zoo sentences, tokenised by the model's own tokenizer",
        )
    return [_within(item, source) for item in items], origin


def kept(item: Feed, labels: str | None) -> dict[str, Any]:
    """Return what an item has under the name of its label, if it has a name."""
    return {labels: item[labels]} if labels is not None and labels in item else {}


def _within(item: Feed, source: ModelSource) -> dict[str, np.ndarray]:
    """Cut an item of the zoo to the profile's largest size, its last element kept, and pad it to the smallest."""
    fitted = {}
    for name, shapes in source.profile.items():
        value = item[name]
        for axis in range(1, value.ndim):
            low, high, size = shapes.min[axis], shapes.max[axis], value.shape[axis]
            high = min(high, max(low, size // shapes.multiples[axis] * shapes.multiples[axis]))
            if size > high:
                value = np.take(value, [*range(high - 1), size - 1], axis=axis)
            elif size < low:
                value = np.pad(value, [(0, low - size if a == axis else 0) for a in range(value.ndim)])
        fitted[name] = value
    return fitted


def random_items(source: ModelSource, count: int, *, seed: int = 0) -> list[dict[str, np.ndarray]]:
    """Draw items from the declared ranges, with sizes between the smallest and the typical; masks are all ones.

    Raises:
        SampleError: an integer input without a range.
    """
    rng = np.random.default_rng(seed)
    axes = extents(source.inputs, source.profile)
    items = []
    for _ in range(count):
        steps = {
            n: rng.integers(e.min // e.multiple, max(e.min, e.opt) // e.multiple, endpoint=True)
            for n, e in axes.items()
        }
        sizes = {n: int(step) * axes[n].multiple for n, step in steps.items()}
        if "batch" in axes:
            sizes["batch"] = axes["batch"].min
        shapes = shapes_at(source.inputs, sizes)
        drawn = {s.name: _random(rng, s, shapes[s.name], source.mask) for s in source.inputs}
        items.append(kept_within(drawn, source.inputs))
    return items


def _random(rng: np.random.Generator, spec: TensorSpec, shape: tuple[int, ...], mask: str | None) -> np.ndarray:
    if spec.name == mask:
        return np.ones(shape, spec.dtype)
    if "int" in spec.dtype and spec.range is None:
        raise SampleError(
            f"input {spec.name!r} holds integers, and nothing says which values it may take",
            fix=f"give --range {spec.name}=LO:HI, or real samples with --samples",
        )
    return draw(rng, spec, shape)
