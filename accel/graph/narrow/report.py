"""What narrowing decided about each value, and what the proof assumed about the inputs.

Values only, with a JSON form (``accel.core.values.to_json`` / ``from_json``): this is what ``accel narrow --report``
writes,
``accel convert`` stores and the manifest carries. ``NarrowReport.check`` is the check at the inputs.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np

from accel.core.errors import SampleError
from accel.graph import Level

FLOAT_MAX = 3.4028234663852886e38
"""Largest finite FLOAT."""

Cause = Literal[
    "proved",
    "rounded",
    "marker",
    "pinned",
    "unproved",
    "shape-tensor",
    "custom-operator",
    "sub-graph",
    "no-kernel",
    "level",
    "type",
]
"""Why a value was narrowed or kept.

``proved``: the interval fits. ``rounded``: DOUBLE became FLOAT, which is not exact. ``marker``: INT64_MAX or INT64_MIN
in Slice became the INT32 value of the same meaning.
``pinned``: an operator takes only int64 there. ``unproved``: the interval does not fit, or nothing bounds it.
``shape-tensor``: the target reads it as a shape. ``custom-operator``: no schema says what is allowed. ``sub-graph``:
it is defined in, or shared with, a body of If, Loop or Scan. ``no-kernel``: the runtime lacks the int32 kernel.
``level``: the level asked for leaves it alone. ``type``: another 64-bit type, under the same report.
"""


@dataclass(frozen=True, slots=True)
class ValueReport:
    """The decision on one 64-bit value.

    Attributes:
        name: the value; inside a sub-graph ``<node>/<value>``.
        role: where it stands in the graph.
        dtype: NumPy's name of its type in the source file.
        decision: ``narrowed``, or ``kept``.
        cause: the kind of reason; ``reason`` says it in a sentence, naming the operator or the interval.
        interval: lowest and highest value it can have, both inclusive; None for floating point.
    """

    name: str
    role: Literal["input", "output", "constant", "inner"]
    dtype: str
    decision: Literal["narrowed", "kept"]
    cause: Cause
    reason: str
    interval: tuple[int, int] | None

    @property
    def narrowed_to(self) -> Literal["int32", "float32"] | None:
        """NumPy's name of its type in the new file; None where it keeps the old one."""
        if self.decision == "kept":
            return None
        return "float32" if self.dtype == "float64" else "int32"


@dataclass(frozen=True, slots=True)
class InputRange:
    """What the proof assumes about the values of one integer input; whoever feeds the model must check it.

    Attributes:
        origin: ``declared`` by the user, or ``gather``: the input indexes that many rows, and the specification calls
            any
            other index an error.
        reason: a sentence for the report.
    """

    name: str
    lo: int
    hi: int
    origin: Literal["declared", "gather"]
    reason: str


@dataclass(frozen=True, slots=True)
class AxisRange:
    """What the proof assumes about the size of one axis of an input.

    Attributes:
        origin: ``declared`` (shape range), or ``assumed``: 0 to 2**31 - 1.
    """

    input: str
    axis: int
    lo: int
    hi: int
    origin: Literal["declared", "assumed"]


@dataclass(frozen=True, slots=True)
class NarrowReport:
    """What ``narrow_file`` did to one file, and under which preconditions the result equals the source.

    Attributes:
        values: every 64-bit value of the source file, inputs first.
        inputs / axes: preconditions on values and sizes; checked by ``check``.
        casts: Cast nodes that were added at the boundary.
        source_sha256 / sha256: of the ``.onnx`` files (not of external data, which is never read whole).
    """

    source: str
    source_sha256: str
    sha256: str
    level: Level
    runtime: str
    values: tuple[ValueReport, ...]
    inputs: tuple[InputRange, ...]
    axes: tuple[AxisRange, ...]
    casts: int
    schema: int = 1

    def count(self, decision: Literal["narrowed", "kept"]) -> int:
        """Count the values with that decision."""
        return sum(v.decision == decision for v in self.values)

    @property
    def narrowed_inputs(self) -> tuple[str, ...]:
        """Names of the graph inputs that became int32."""
        return tuple(v.name for v in self.values if v.role == "input" and v.narrowed_to == "int32")

    @property
    def narrowed_outputs(self) -> tuple[str, ...]:
        """Names of the graph outputs that became int32."""
        return tuple(v.name for v in self.values if v.role == "output" and v.narrowed_to == "int32")

    @property
    def rounded_inputs(self) -> tuple[str, ...]:
        """Names of the graph inputs that became float32."""
        return tuple(v.name for v in self.values if v.role == "input" and v.narrowed_to == "float32")

    def check(self, feed: Mapping[str, np.ndarray]) -> None:
        """Refuse a feed that breaks a precondition; call it before casting to int32 or float32.

        Args:
            feed: arrays by input name; integers in any integer type.

        Raises:
            SampleError: names the input, the first bad value and its index, or the axis and its size.
        """
        for axis in self.axes:
            value = feed.get(axis.input)
            if value is not None and axis.axis < value.ndim and not axis.lo <= value.shape[axis.axis] <= axis.hi:
                raise SampleError(
                    f"axis {axis.axis} of input {axis.input!r} has size {value.shape[axis.axis]}, "
                    f"expected {axis.lo} to {axis.hi}"
                )
        limits = [
            (given.name, given.lo, given.hi, f"expected values in [{given.lo}, {given.hi}]") for given in self.inputs
        ] + [(name, -FLOAT_MAX, FLOAT_MAX, "which overflows float32") for name in self.rounded_inputs]
        for name, lo, hi, why in limits:
            value = np.asarray(feed.get(name, ()))
            outside = np.argwhere(np.isfinite(value) & ((value < lo) | (value > hi)))
            if len(outside):
                index = tuple(outside[0].tolist())
                raise SampleError(
                    f"input {name!r} holds {value[index].item()!r} at index {index}, {why}",
                    fix="correct the value, or narrow the model again with a wider --range or --level keep",
                )


@dataclass(frozen=True, slots=True)
class Unproved:
    """A value that a runtime computing int64 as int32 could change.

    Attributes:
        name: the value; inside a sub-graph ``<node>/<value>``.
        op: the operator that makes it, or ``input`` or ``constant``.
        lo / hi: the interval found, both inclusive.
        reason: one sentence.
        through_float: whether the operator's integer inputs are meant, which only a runtime that computes it in float
            could change.
    """

    name: str
    op: str
    lo: int
    hi: int
    reason: str
    through_float: bool = False
