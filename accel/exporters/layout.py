"""Pictures with channels first for clients of a model that takes them last. Standard library and NumPy only."""

import dataclasses
from collections.abc import Sequence
from typing import TypeVar

import numpy as np

from accel.core.errors import UsageError
from accel.core.values import ShapeRange, TensorSpec

T = TypeVar("T")
TO_LAST, TO_FIRST = (0, 2, 3, 1), (0, 3, 1, 2)
"""Orders of the four axes of pictures that move their channels last or first."""


def first(shape: Sequence[T], name: str) -> tuple[T, ...]:
    """Return a shape with channels last as one with channels first.

    Raises:
        UsageError: the input ``name`` is not of four axes.
    """
    if len(shape) != len(TO_FIRST):
        raise UsageError(f"--inputs-as-nchw: input {name!r} has shape {list(shape)}, expected four axes")
    return tuple(shape[axis] for axis in TO_FIRST)


def channels_first(spec: TensorSpec) -> TensorSpec:
    """Return the spec of the same input with channels first."""
    return dataclasses.replace(spec, dims=first(spec.dims, spec.name))


def shapes_first(shapes: ShapeRange, name: str) -> ShapeRange:
    """Return the shape range of the same input with channels first."""
    return ShapeRange(first(shapes.min, name), first(shapes.opt, name), first(shapes.max, name))


def array_first(value: np.ndarray) -> np.ndarray:
    """Return the same pictures with channels first, contiguous."""
    return np.ascontiguousarray(value.transpose(TO_FIRST))
