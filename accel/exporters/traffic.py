"""Requests as they come, each of its own length: drawn from the samples, or of the sizes of recorded ones.

Requests of similar length share a feed, padded to one of a few lengths, as a server can do it that groups what waits.
Nothing here knows a runtime. The feeds are among those of the proof (``coverage``), so what is timed is proved; and
``check`` holds the source's answers to them against its answers to each request alone. Only NumPy is imported.
"""

import dataclasses
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from accel.core.buckets import bucket_of, buckets
from accel.core.errors import SampleError, UsageError
from accel.core.feeds import Feed, resized
from accel.core.recorded import Recorded
from accel.core.values import ModelSource, TensorSpec
from accel.exporters.axes import batch_axis, batches, cut, extents, given_sizes, hidden_axes, sizes_of

FROM_SAMPLES = "samples"
"""In place of a file of recorded requests: each request is as long as its sample."""
REQUESTS = 64
"""Requests of a pass; also how many wait at once for others of their length."""
LARGEST = 64
"""Most requests in one feed."""
SHAPES = 8
"""Most lengths that the feeds of one size are padded to: each new shape costs a runtime time and memory once."""
STEP = 8
"""Lengths are rounded up to a multiple of this. Measured with BERT-base in INT8: 8 % more than exact lengths give."""
ALONE_DB = 60.0
"""Least SQNR of the source's answers in a group against its answers alone: 1 in 1000, far above what a mask that does
not hide the padding leaves, far below the last bits of FP32."""

Items = Sequence[Mapping[str, np.ndarray]]


def length_axis(source: ModelSource) -> str | None:
    """Return the axis along which requests differ: the only named one beside the batch; None where there is none."""
    axes = [name for name in extents(source.inputs, source.profile) if name != batch_axis(source)]
    return axes[0] if len(axes) == 1 else None


def sizes(source: ModelSource) -> list[int]:
    """Return how many requests a feed joins, smallest first: one alone, and every other size that is timed."""
    if batch_axis(source) is None or any(spec.dims[:1] != ("batch",) for spec in source.outputs):
        return [1]
    own = [n for n in batches(source) if n <= LARGEST] or batches(source)[:1]
    return sorted({own[0], *own[::-2]})


def feed_name(size: int, number: int) -> str:
    """Name the feeds of a size, longest first: ``t8.0``, ``t8.1``…"""
    return f"t{size}.{number}"


def point(feed: str) -> str | None:
    """Return which point a feed belongs to (``t8``), or None for one that is none of the traffic's."""
    name, dot, number = feed.partition(".")
    return name if dot and number.isdigit() and name[:1] == "t" and name[1:].isdigit() else None


def feeds(source: ModelSource, items: Items, recorded: Sequence[Recorded] | None = None) -> dict[str, Feed]:
    """Make the feeds of a pass over the requests, for each size of ``sizes``.

    Args:
        items: samples, one each; padding at their end that the mask shows is cut off.
        recorded: a sample of about the size of each is repeated or cut to it. None: as the samples are.

    Raises:
        SampleError: a size that the model does not take, or lengths for a model without an axis of its own for them.
    """
    drawn = _requests(source, items, recorded)
    made: dict[str, Feed] = {}
    for size in sizes(source):
        groups = enumerate(grouped(source, drawn, size))
        made |= {feed_name(size, number): feed for number, (_, feed) in groups}
    return made


def check(
    source: ModelSource, feeds: Mapping[str, Feed], answers: Mapping[str, Feed], alone: Callable[[Feed], Feed]
) -> str | None:
    """Hold a source's answers to the groups against its answers to each of their requests alone, at its own length.

    Args:
        feeds / answers: of the traffic, by name; what the source did not answer is missing.
        alone: runs the source.

    Returns:
        What is wrong, where an answer depends on the padding or on the other requests of the group.
    """
    from accel.exporters import verdict

    largest = max(sizes(source))
    asked: dict[str, Feed] = {}
    truth: dict[str, Feed] = {}
    grouped: dict[str, Feed] = {}
    for name, feed in feeds.items():
        if point(name) != f"t{largest}" or name not in answers:
            continue
        for row in range(len(next(iter(feed.values()))) if source.batched else 1):
            one = {n: v[row : row + 1] if source.batched else v for n, v in feed.items()}
            one = trimmed(source, one)
            index, own = str(len(asked)), sizes_of(source.inputs, one)
            asked[index], truth[index] = one, alone(one)
            grouped[index] = {
                s.name: cut(s, answers[name][s.name][row : row + 1], own) if source.batched else answers[name][s.name]
                for s in source.outputs
            }
    if not asked:
        return None
    held = verdict.compare(source, asked, truth, grouped, {"sqnr_db": ALONE_DB})
    return None if held.passed else held.reasons[0]


def requests(source: ModelSource, feed: Feed) -> tuple[int, int | None, int | None]:
    """Count a feed's requests, and their tokens along the length axis, without padding.

    Returns:
        The requests, their tokens, and the length that each was padded to; the latter two None without such an axis.
    """
    rows = next(iter(feed.values())).shape[0] if source.batched else 1
    axis = length_axis(source)
    if axis is None:
        return rows, None, None
    length = sizes_of(source.inputs, feed)[axis]
    if axis not in hidden_axes(source):
        return rows, rows * length, length
    return rows, sum(_length(mask[None]) for mask in feed[str(source.mask)]), length


def _requests(source: ModelSource, items: Items, recorded: Sequence[Recorded] | None) -> list[dict[str, np.ndarray]]:
    """Draw ``REQUESTS`` of them at even distances of their sizes, so that few show what many are like."""
    own = sorted((trimmed(source, item) for item in items), key=lambda item: length_of(source, item))
    if recorded is None:
        return [own[i] for i in _even(len(own))]
    every = [_asked(source, request) for request in recorded]
    every.sort(key=lambda sizes: (math.prod(sizes.values()), *sizes.values()))
    have = [sizes_of(source.inputs, item) for item in own]
    drawn = []
    for sizes in (every[i] for i in _even(len(every))):
        nearest = min(range(len(own)), key=lambda i: sum(abs(have[i][name] - n) for name, n in sizes.items()))
        drawn.append(resized(own[nearest], source.inputs, sizes, source.mask))
    return drawn


def _asked(source: ModelSource, request: Recorded) -> dict[str, int]:
    """Return the size of each axis that varies, but for the batch, that a recorded request stands for."""
    axes = {n: e for n, e in extents(source.inputs, source.profile).items() if n != batch_axis(source)}
    if request.length is not None:
        if len(axes) != 1:
            raise SampleError(
                f"{request.line} has a length, which needs one axis of the inputs to be the length, and {source.name} "
                f"has {list(axes) or 'none that varies'}",
                fix='give the "shape" of its inputs; or leave --traffic out: --objective traffic takes the samples',
            )
        found = dict.fromkeys(axes, request.length)
    else:
        own = [dataclasses.replace(s, dims=s.dims[1:]) if source.batched else s for s in source.inputs]
        try:
            found = given_sizes(own, request.shapes, f'"shape" of {request.line}')
        except UsageError as error:
            raise SampleError(error.message, fix=error.fix) from None
    sizes = {}
    for name, extent in axes.items():
        if name not in found:
            raise SampleError(f'"shape" of {request.line} says nothing of axis {name!r}', fix="give all inputs' shapes")
        if not extent.min <= found[name] <= extent.max:
            raise SampleError(
                f"{request.line} asks for {found[name]} of axis {name!r}, which goes from {extent.min} to {extent.max}",
                fix="leave out or cut what the model's server refuses or cuts, or widen --min-shape / --max-shape",
            )
        sizes[name] = -(-found[name] // extent.multiple) * extent.multiple
    return sizes


def _even(count: int) -> list[int]:
    return [int(i) for i in (np.arange(REQUESTS) + 0.5) * count / REQUESTS]


def trimmed(source: ModelSource, item: Feed) -> dict[str, np.ndarray]:
    """Cut off what the mask hides at the end of one request, down to the smallest size."""
    axis = length_axis(source)
    if axis is None or axis not in hidden_axes(source):
        return dict(item)
    own = held(source, _length(item[str(source.mask)]), step=1)
    return {s.name: cut(s, item[s.name], {axis: own}) for s in source.inputs}


def _length(mask: np.ndarray) -> int:
    """Return how much of a mask's last axis is needed for all that it shows."""
    shown = np.flatnonzero(mask.reshape(-1, mask.shape[-1]).any(axis=0))
    return int(shown[-1]) + 1 if shown.size else 0


def held(source: ModelSource, length: int, *, step: int = STEP) -> int:
    """Return the next size that the length axis may have: a multiple of ``step``, below its largest."""
    extent = extents(source.inputs, source.profile)[str(length_axis(source))]
    step = math.lcm(step, extent.multiple)
    return min(extent.max, max(extent.min, -(-length // step) * step))


def length_of(source: ModelSource, item: Feed) -> int:
    """Return a request's length; of one without a length axis how many values it has."""
    axis = length_axis(source)
    return sizes_of(source.inputs, item)[axis] if axis else sum(value.size for value in item.values())


def grouped(source: ModelSource, items: Items, size: int) -> Iterator[tuple[list[int], dict[str, np.ndarray]]]:
    """Yield requests that share a feed, by their places in ``items``, and the feed: the longest first.

    Where a mask hides padding they are of one bucket, and padded to it: one long request does not make others long, at
    the price of groups that are not full. Else they are of one shape.
    """
    padded = length_axis(source) in hidden_axes(source)
    lengths = [held(source, length_of(source, item)) if padded else 0 for item in items]
    few = buckets(Counter(lengths), float, SHAPES)
    alike: dict[Any, list[int]] = {}
    for index in sorted(range(len(items)), key=lambda i: length_of(source, items[i]), reverse=True):
        shapes = bucket_of(few, lengths[index]) if padded else tuple(v.shape for v in items[index].values())
        alike.setdefault(shapes, []).append(index)
    least = source.profile[source.inputs[0].name].min[0] if source.batched else 1
    for shape, members in alike.items():
        for start in range(0, len(members), size):
            chosen = members[start : start + size]
            group = [items[i] for i in chosen + chosen[:1] * (least - len(chosen))]
            if padded:
                yield chosen, joined(source, group, shape)
            else:
                feed = (
                    {n: np.concatenate([item[n] for item in group]) for n in group[0]} if len(group) > 1 else group[0]
                )
                yield chosen, dict(feed)


def joined(source: ModelSource, group: Items, length: int) -> dict[str, np.ndarray]:
    """Join requests to one feed, each padded with zeros to ``length``."""
    axis = length_axis(source)
    return {s.name: np.concatenate([_pad(item[s.name], s, str(axis), length) for item in group]) for s in source.inputs}


def _pad(value: np.ndarray, spec: TensorSpec, axis: str, size: int) -> np.ndarray:
    more = (size - n if dim == axis else 0 for dim, n in zip(spec.dims, value.shape, strict=True))
    return np.pad(value, [(0, n) for n in more])
