"""What the range analysis knows about one value, and arithmetic on intervals.

A ``Fact`` bounds every element a tensor can ever hold. Integer bounds are exact Python integers, so no bound can
overflow; where a result could leave its type, the type wraps and the bound becomes the whole type. Float bounds exist
only where NaN and infinities are excluded; they are widened by more than a rounding error at each step.

This module knows types and numbers. It knows neither operators (``rules``) nor graphs (``analysis``).
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from onnx_ir import DataType

Interval = tuple[int, int]
"""Lowest and highest value, both inclusive."""
Bounds = tuple[float, float]
"""An ``Interval``, or finite floats for floating-point tensors."""
Dims = tuple[Interval, ...]

INT32 = (-(2**31), 2**31 - 1)
INT64 = (-(2**63), 2**63 - 1)
ANY_SIZE: Interval = (0, 2**63 - 1)
"""An axis about which nothing is known."""
MAX_ITEMS = 64
"""Tensors of rank 0 or 1 up to this length are followed element by element: shapes, axes, slice ends."""

LIMITS: dict[int, Interval] = {
    DataType.BOOL: (0, 1),
    DataType.INT8: (-(2**7), 2**7 - 1),
    DataType.INT16: (-(2**15), 2**15 - 1),
    DataType.INT32: INT32,
    DataType.INT64: INT64,
    DataType.UINT8: (0, 2**8 - 1),
    DataType.UINT16: (0, 2**16 - 1),
    DataType.UINT32: (0, 2**32 - 1),
    DataType.UINT64: (0, 2**64 - 1),
    DataType.INT4: (-8, 7),
    DataType.UINT4: (0, 15),
}
"""Bounds of every integer type (and bool) that the analysis follows."""

FLOATS: dict[int, tuple[float, float]] = {
    DataType.FLOAT: (float(np.finfo(np.float32).max), 2.0**-21),
    DataType.DOUBLE: (float(np.finfo(np.float64).max), 2.0**-50),
    DataType.FLOAT16: (65504.0, 2.0**-8),
}
"""Largest finite value of every float type that is followed, and slack per operation: more than two rounding errors."""


@dataclass(frozen=True, slots=True)
class Fact:
    """What holds for one value in every run that keeps to the declared ranges.

    Attributes:
        dtype: element type; 0 where it is unknown or the value is not a tensor.
        bounds: bounds of every element; None where nothing is known (floats that may be NaN, strings).
        dims: bounds of each axis, or None where even the rank is unknown.
        items: bounds element by element, for short tensors of rank 0 or 1; its length is the exact length.
    """

    dtype: int
    bounds: Bounds | None
    dims: Dims | None
    items: tuple[Bounds, ...] | None = None

    @property
    def constant(self) -> tuple[int, ...] | None:
        """The exact elements of a short integer tensor, or None where one of them is not certain."""
        if self.items is None or any(lo != hi for lo, hi in self.items):
            return None
        return tuple(int(lo) for lo, _ in self.items)

    def fits(self, limits: Interval) -> bool:
        """Say whether every element lies inside ``limits``."""
        return self.bounds is not None and limits[0] <= self.bounds[0] and self.bounds[1] <= limits[1]


def known(dtype: int, bounds: Bounds | None, dims: Dims | None, items: Sequence[Bounds | None] | None = None) -> Fact:
    """Make a fact, replacing bounds that the type cannot hold: integers wrap, floats become unknown."""
    if items is None or len(items) > MAX_ITEMS or dims is None or len(dims) > 1:
        return Fact(dtype, settle(dtype, bounds), dims)
    settled = [settle(dtype, item) for item in items]
    if any(item is None for item in settled):
        return Fact(dtype, settle(dtype, bounds), dims)
    certain = tuple(item for item in settled if item is not None)
    return Fact(dtype, hull(certain) if certain else settle(dtype, bounds), dims, certain)


def unknown(dtype: int, dims: Dims | None) -> Fact:
    """Make the fact that says nothing beyond the type."""
    return Fact(dtype, LIMITS.get(dtype), dims)


def settle(dtype: int, bounds: Bounds | None) -> Bounds | None:
    """Turn the bounds of an exact result into bounds of what the type holds."""
    whole = LIMITS.get(dtype)
    if whole is not None:
        if bounds is None or bounds[0] < whole[0] or bounds[1] > whole[1]:
            return whole
        return int(bounds[0]), int(bounds[1])
    finite = FLOATS.get(dtype)
    if finite is None or bounds is None:
        return None
    inside = -finite[0] <= bounds[0] and bounds[1] <= finite[0]
    return (float(bounds[0]), float(bounds[1])) if inside else None


def widen(dtype: int, bounds: Bounds | None) -> Bounds | None:
    """Add the rounding error of one float operation; integer bounds stay as they are."""
    if bounds is None or dtype not in FLOATS:
        return bounds
    slack = FLOATS[dtype][1] * max(abs(bounds[0]), abs(bounds[1])) + 2.0**-14
    return bounds[0] - slack, bounds[1] + slack


def hull(parts: Iterable[Bounds | None]) -> Bounds | None:
    """Return the smallest bounds that hold for all parts; None as soon as one part is unknown, or without parts."""
    lo, hi = math.inf, -math.inf
    for part in parts:
        if part is None:
            return None
        lo, hi = min(lo, part[0]), max(hi, part[1])
    return (lo, hi) if lo <= hi else None


def join(a: Fact, b: Fact) -> Fact:
    """Return what holds for a value that is either ``a`` or ``b``."""
    if a.dtype != b.dtype:
        return Fact(0, None, None)
    dims = None
    if a.dims is not None and b.dims is not None and len(a.dims) == len(b.dims):
        dims = tuple((min(x[0], y[0]), max(x[1], y[1])) for x, y in zip(a.dims, b.dims, strict=True))
    items = None
    if a.items is not None and b.items is not None and len(a.items) == len(b.items):
        items = [hull(pair) for pair in zip(a.items, b.items, strict=True)]
    return known(a.dtype, hull((a.bounds, b.bounds)), dims, items)


def pointwise(dtype: int, dims: Dims | None, inputs: Sequence[Fact], rule: Callable[..., Bounds | None]) -> Fact:
    """Apply a rule on bounds to broadcast inputs, element by element where all of them are followed that way."""
    items: list[Bounds | None] | None = None
    if all(f.items is not None for f in inputs):
        rows = [f.items or () for f in inputs]
        sizes = {len(r) for r in rows if len(r) != 1}
        if len(sizes) <= 1:
            size = sizes.pop() if sizes else 1
            items = [widen(dtype, rule(*(r[0] if len(r) == 1 else r[i] for r in rows))) for i in range(size)]
    if any(f.bounds is None for f in inputs):
        return known(dtype, None, dims)
    return known(dtype, widen(dtype, rule(*(f.bounds for f in inputs))), dims, items)


def add(a: Bounds, b: Bounds) -> Bounds:
    """Bound ``a + b``."""
    return a[0] + b[0], a[1] + b[1]


def subtract(a: Bounds, b: Bounds) -> Bounds:
    """Bound ``a - b``."""
    return a[0] - b[1], a[1] - b[0]


def multiply(a: Bounds, b: Bounds) -> Bounds:
    """Bound ``a * b``."""
    corners = [x * y for x in a for y in b]
    return min(corners), max(corners)


def divide(a: Bounds, b: Bounds) -> Bounds | None:
    """Bound ``a / b``, for integers whether the runtime truncates or floors; None where ``b`` may be 0."""
    if b[0] <= 0 <= b[1]:
        return None
    if all(isinstance(v, int) for v in (*a, *b)):
        floors = [int(x) // int(y) for x in a for y in b]
        ceilings = [-(-int(x) // int(y)) for x in a for y in b]
        truncated = [f if f >= 0 else c for f, c in zip(floors, ceilings, strict=True)]
        return min(floors), max(truncated)
    corners = [x / y for x in a for y in b]
    return min(corners), max(corners)


def modulo(a: Bounds, b: Bounds) -> Bounds | None:
    """Bound the remainder with the divisor's sign (Python's ``%``); None where ``b`` may be 0."""
    if b[0] > 0:
        return a if a[0] >= 0 and a[1] < b[0] else (0, min(a[1], b[1] - 1) if a[0] >= 0 else b[1] - 1)
    return (b[0] + 1, 0) if b[1] < 0 else None


def remainder(a: Bounds, b: Bounds) -> Bounds | None:
    """Bound the remainder with the dividend's sign (C's ``%``); None where ``b`` may be 0."""
    if b[0] <= 0 <= b[1]:
        return None
    most = max(abs(b[0]), abs(b[1])) - 1
    return max(-most, min(a[0], 0)), min(most, max(a[1], 0))


def power(base: Bounds, exponent: Bounds) -> Bounds | None:
    """Bound an integer power; None beyond 2**53, where runtimes that go through double are no longer exact."""
    if exponent[0] != int(exponent[0]) or exponent[1] != int(exponent[1]) or exponent[0] < 0 or exponent[1] > 53:
        return None
    most = max(1, abs(int(base[0])), abs(int(base[1]))) ** int(exponent[1])
    if most > 2**53:
        return None
    return (0 if base[0] >= 0 else -most), most


def bits(a: Bounds, b: Bounds) -> Bounds:
    """Bound any bitwise combination of two integers by the bits they use."""
    width = max(max(int(v) if v >= 0 else ~int(v), 0).bit_length() for v in (*a, *b))
    return (0 if a[0] >= 0 and b[0] >= 0 else -(2**width)), 2**width - 1


def bitwise_and(a: Bounds, b: Bounds) -> Bounds:
    """Bound ``a & b``: a side that is never negative also bounds the result."""
    tops = [x[1] for x in (a, b) if x[0] >= 0]
    return (0, min(tops)) if tops else bits(a, b)


def product(dims: Iterable[Interval]) -> Interval:
    """Bound the number of elements of a shape."""
    lo = hi = 1
    for low, high in dims:
        lo, hi = lo * low, hi * high
    return lo, hi


def round_to(dtype: int, value: float) -> float:
    """Round as a cast from an integer to the float type does; infinity where it overflows."""
    if dtype == DataType.DOUBLE:
        return float(value)
    kind = np.float32 if dtype == DataType.FLOAT else np.float16
    with np.errstate(over="ignore"):
        return float(kind(float(value)))
