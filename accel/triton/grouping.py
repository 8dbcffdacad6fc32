"""Requests of many sizes in few calls of a model: trimmed by their mask, grouped by length, answered in their shape.

Without a mask nothing may be padded, and rows of one shape share a call: pictures of several sizes, sound. Where the
session takes packed rows (``core.packed``), texts share rows, too.

The model of the Python backend serves with this code (it is shipped beside it), and the proof that it may
(``run.group_check``) runs the same. Nothing here knows a runtime or a server. A manifest is read without NumPy.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from accel.core import packed
from accel.core.buckets import bucket_of, own_lengths
from accel.core.values import UNLESS_NONE, TensorSpec

CALL_TOKENS = 32
"""What a call costs beside its tokens, in tokens. BERT-base in INT8 on two cores takes 13.7 ms for one sentence of 15
tokens and 5.9 ms for each of eight: as much as some 28 tokens go with the call."""
WINDOW = 64
"""Rows that are grouped at once: the more, the more find others of their length; and none waits for later ones."""
SHORTEST = 8
"""Least length that rows are padded to."""

if TYPE_CHECKING:
    import numpy as np

Feed = Mapping[str, "np.ndarray"]


@dataclass(frozen=True, slots=True)
class Packing:
    """How several texts share a row of a call: kept where that answered more requests than groups by length did.

    Attributes:
        width: positions of a row, which texts fill by first fit, the longest first; 0: each has a row of its own.
        places: positions of a call, in as many rows as fit.
        gain: requests per second over groups by length, of the same session's requests in turn, and its 99 % interval.
        compared: texts whose answers in shared rows were held against those alone; ``gate`` and ``found`` are the
            verdict.
    """

    width: int
    places: int
    gain: tuple[float, float, float] | None = None
    compared: int = 0
    gate: Mapping[str, float] = field(default_factory=dict)
    found: Mapping[str, float | None] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Grouping:
    """How rows of different requests share calls of a variant whose answers do not depend on padding or neighbours.

    Attributes:
        mask: input (batch, ``axis``) that is 0 at padded positions. None: nothing is padded, and only rows of one shape
            share a call; then ``axis`` is None, and there are no ``lengths``.
        axis: the axis along which rows have lengths of their own.
        lengths: what rows are padded to, ascending; the last is the largest that the artifact takes.
        usual: those of ``lengths`` that were chosen for the samples' own lengths; the others hold what is unlike them.
        rows: most rows of one call.
        compared: rows whose answers in a group were held against those alone; ``gate`` and ``found`` are the verdict.
        shapes: without a mask, the sizes by axis that the samples have, most frequent first; None with one.
        packing: how texts share rows in place of that; None where they do not, or ``unpacked`` says why not.
    """

    mask: str | None
    axis: str | None
    lengths: tuple[int, ...]
    usual: tuple[int, ...]
    rows: int
    compared: int = 0
    gate: Mapping[str, float] = field(default_factory=dict)
    found: Mapping[str, float | None] = field(default_factory=dict)
    shapes: tuple[Mapping[str, int], ...] | None = field(default=None, metadata=UNLESS_NONE)
    packing: Packing | None = field(default=None, metadata=UNLESS_NONE)
    unpacked: str | None = field(default=None, metadata=UNLESS_NONE)

    def merging(self, most: int) -> "Grouping":
        """Return this for calls of at most some rows, where a config asks for fewer; then no two texts share a row."""
        if most >= self.rows:
            return self
        apart = replace(self.packing, width=0) if self.packing is not None else None
        return replace(self, rows=most, packing=apart)

    def outside(self, lengths: Sequence[int]) -> float:
        """Return which share of requests is padded to a length that was not chosen for the samples'."""
        return sum(bucket_of(self.lengths, n) not in self.usual for n in lengths) / max(1, len(lengths))


class RequestRow(NamedTuple):
    """One row of a request: what the mask shows ends at ``length``; ``padded`` is the length it is computed at.

    Without a mask both are the number of values that it has in all inputs.
    """

    request: int
    row: int
    length: int
    padded: int


def ladder(least: int, most: int) -> tuple[int, ...]:
    """Return the powers of two from ``SHORTEST`` that lie within an axis, and its ends."""
    steps = [SHORTEST << i for i in range(max(1, most).bit_length())]
    return tuple(sorted({n for n in steps if least <= n <= most} | ({least} if least > SHORTEST else set()) | {most}))


def groups(feeds: Mapping[int, Feed], grouping: Grouping) -> list[list[RequestRow]]:
    """Distribute all rows of some requests over calls, so that they cost least in all; the cheapest call comes first.

    Every row of every request is in one group, so that none waits longer than the calls of those it came with.

    Args:
        feeds: requests by number, fitted to the contract.
    """
    shown, alike = list[RequestRow](), dict[Any, list[RequestRow]]()  # the latter by shape: nothing of it is padded
    for number, feed in feeds.items():
        if grouping.mask is None:
            shapes = tuple((name, feed[name].shape[1:]) for name in sorted(feed))
            size = sum(math.prod(shape) for _, shape in shapes)
            rows = len(next(iter(feed.values())))
            alike.setdefault(shapes, []).extend(RequestRow(number, row, size, size) for row in range(rows))
            continue
        mask = feed[grouping.mask]
        for row, length in enumerate(own_lengths(mask).tolist()):
            if length:
                shown.append(RequestRow(number, row, length, bucket_of(grouping.lengths, length)))
            else:  # of what a model answers where the mask shows nothing, padding may be a part
                width = mask.shape[1]
                alike.setdefault(width, []).append(RequestRow(number, row, width, width))
    shown.sort(key=lambda row: row.length)
    how = grouping.packing
    made = _packed(shown, how, grouping.rows) if how is not None and how.width else _cut(shown, grouping.rows)
    most = 1 if how is not None else grouping.rows  # what is alone in a packed call has exactly its own width
    made += [same[i : i + most] for same in alike.values() for i in range(0, len(same), most)]
    return sorted(made, key=lambda group: places(group, grouping))


def places(group: Sequence[RequestRow], grouping: Grouping) -> int:
    """Return the positions of a group's call, padding among them."""
    if grouping.packing is None:
        return len(group) * max(row.padded for row in group)
    lengths = [row.length for row in group]
    rows = packed.filled(lengths, grouping.packing.width)
    return len(rows) * packed.extent(lengths, rows, grouping.lengths[-1])


def _packed(shown: Sequence[RequestRow], how: Packing, most: int) -> list[list[RequestRow]]:
    """Cut packed rows into calls, each with the texts of its rows in their order; longer texts share calls alone.

    Args:
        shown: ordered by length.
        most: rows of a call.
    """
    usual = [row for row in shown if row.length <= how.width]
    rows = packed.filled([row.length for row in usual], how.width)
    size = max(1, min(most, how.places // how.width))
    calls = (rows[i : i + size] for i in range(0, len(rows), size))
    return [*_cut(shown[len(usual) :], most), *([usual[i] for row in call for i in row] for call in calls)]


def _cut(rows: Sequence[RequestRow], most: int) -> list[list[RequestRow]]:
    """Cut rows, ordered by length, into groups of at most ``most``, at the least cost.

    Formula: the minimum over all cuts of the sum of ``CALL_TOKENS + rows * padded length`` of each group.
    """
    best: list[tuple[int, int]] = [(0, 0)]  # cost of the first j rows, and where their last group begins
    for end, row in enumerate(rows, 1):
        begins = range(max(0, end - most), end)
        best.append(min((best[i][0] + CALL_TOKENS + (end - i) * row.padded, i) for i in begins))
    made: list[list[RequestRow]] = []
    end = len(rows)
    while end:
        begin = best[end][1]
        made.append(list(rows[begin:end]))
        end = begin
    return made


def answered(
    feeds: Mapping[int, Feed],
    inputs: Sequence[TensorSpec],
    outputs: Sequence[TensorSpec],
    grouping: Grouping,
    run: Callable[[Feed], Feed],
) -> dict[int, dict[str, "np.ndarray"]]:
    """Have requests answered together by as few calls of ``run`` as that takes; return their answers by number.

    Args:
        feeds: requests by number, fitted to the contract.
        inputs / outputs: the contract, batch axis included.
    """
    answers = Answers(feeds, inputs, outputs, grouping.axis)
    found: dict[int, dict[str, np.ndarray]] = {}
    for group in groups(feeds, grouping):
        found |= answers.take(group, call(group, feeds, inputs, outputs, grouping, run))
    return found


def call(
    group: Sequence[RequestRow],
    feeds: Mapping[int, Feed],
    inputs: Sequence[TensorSpec],
    outputs: Sequence[TensorSpec],
    grouping: Grouping,
    run: Callable[[Feed], Feed],
) -> "Mapping[str, np.ndarray | list[np.ndarray]]":
    """Have a group answered by one call; return each output row by row, as ``Answers`` takes them.

    Args:
        run: of a session that takes packed rows where ``grouping`` packs.

    Raises:
        ValueError: an output has neither a row for each text nor for each position.
    """
    if grouping.packing is None:
        return run(joined(group, feeds, inputs, grouping.axis))
    assert grouping.mask is not None
    texts = [{s.name: feeds[row.request][s.name][row.row][: row.length] for s in inputs} for row in group]
    feed = packed.joined(texts, grouping.mask, grouping.packing.width, grouping.lengths[-1])
    along = {s.name for s in outputs if grouping.axis in s.dims}
    return packed.separated(feed, run(feed), [row.length for row in group], along)


def joined(
    group: Sequence[RequestRow], feeds: Mapping[int, Feed], inputs: Sequence[TensorSpec], axis: str | None
) -> dict[str, "np.ndarray"]:
    """Join the rows of a group to one feed, each padded to the longest's ``padded``; the mask hides what is added.

    What is added is 0, or the number nearest to it that an input's range has. Without an axis all have one shape.
    """
    import numpy as np

    if axis is None:
        return {s.name: np.stack([feeds[row.request][s.name][row.row] for row in group]) for s in inputs}
    width = max(row.padded for row in group)
    made = {}
    for spec in inputs:
        first = feeds[group[0].request][spec.name]
        shape = [width if dim == axis else n for dim, n in zip(spec.dims[1:], first.shape[1:], strict=True)]
        low, high = spec.range or (0, 0)
        whole = np.full((len(group), *shape), min(max(0, low), high), first.dtype)
        for place, row in enumerate(group):
            kept = _within(spec, axis, row.length)
            whole[place][kept] = feeds[row.request][spec.name][row.row][kept]
        made[spec.name] = whole
    return made


class Answers:
    """The answers of some requests, put together row by row, in the shapes that the requests have.

    Positions after the last one that the mask of a row shows are 0: they are not computed.

    Args:
        feeds: the requests, by number.
        inputs / outputs: the contract, batch axis included.
        axis: that of the lengths; None where no row is padded.
    """

    def __init__(
        self, feeds: Mapping[int, Feed], inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec], axis: str | None
    ) -> None:
        self._feeds, self._inputs, self._outputs, self._axis = feeds, inputs, outputs, axis
        self._open: dict[int, dict[str, np.ndarray]] = {}
        self._left = {number: len(next(iter(feed.values()))) for number, feed in feeds.items()}

    def take(
        self, group: Sequence[RequestRow], found: "Mapping[str, np.ndarray | list[np.ndarray]]"
    ) -> Iterator[tuple[int, dict[str, "np.ndarray"]]]:
        """Add the outputs of a group; yield the requests that are complete with it, and their answers.

        Raises:
            ValueError: an output has another number of rows than the group.
        """
        import numpy as np

        for spec in self._outputs:
            if len(found[spec.name]) != len(group):
                raise ValueError(f"output {spec.name!r} has {len(found[spec.name])} rows for a batch of {len(group)}")
        for place, row in enumerate(group):
            answer = self._open.setdefault(row.request, {})
            for spec in self._outputs:
                value = found[spec.name][place]
                if spec.name not in answer:
                    answer[spec.name] = np.zeros(self._shape(spec, row.request, value), spec.dtype)
                kept = _within(spec, self._axis, row.length)
                answer[spec.name][row.row][kept] = value[kept]
            self._left[row.request] -= 1
            if not self._left[row.request]:
                yield row.request, self._open.pop(row.request)

    def _shape(self, spec: TensorSpec, request: int, value: "np.ndarray") -> tuple[int, ...]:
        feed = self._feeds[request]
        if self._axis is None:
            return (len(next(iter(feed.values()))), *value.shape)
        width = next(feed[s.name].shape[s.dims.index(self._axis)] for s in self._inputs if self._axis in s.dims)
        own = (width if dim == self._axis else n for dim, n in zip(spec.dims[1:], value.shape, strict=True))
        return (len(next(iter(feed.values()))), *own)


def _within(spec: TensorSpec, axis: str | None, length: int) -> tuple[slice, ...]:
    """Return the part of one row of a tensor that lies within a length."""
    return tuple(slice(length if dim == axis else None) for dim in spec.dims[1:])
