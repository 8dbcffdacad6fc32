"""Feeds for what samples do not hold: every batch that is timed or near one, declared values, masks, extremes.

Samples are real, and so they are alike: a thousand of thirty thousand ids, one token type, padding at the right end
alone. A variant that is wrong elsewhere would pass. These feeds are made from the declared ranges; the source answers
them, too, and each is held against the floor of one feed. Their names are no numbers. Only NumPy is imported.
"""

import itertools
from collections.abc import Callable, Iterator, Mapping

import numpy as np

from accel.core.accuracy import parity
from accel.core.feeds import Feed
from accel.core.values import ModelSource, TensorSpec
from accel.exporters import traffic
from accel.exporters.axes import batch_axis, batches, extents, points, shapes_at
from accel.exporters.probe import kept_within

BEYOND = 2.0
"""How far beyond the samples' values floats are taken."""
BEYOND_FEED = "beyond"
LOW_FEED, HIGH_FEED = "flat low", "flat high"
LOWEST_FEED, HIGHEST_FEED = "lowest", "highest"
UNCALIBRATED = frozenset({BEYOND_FEED, LOWEST_FEED, HIGHEST_FEED})
"""What is not asked of INT8 and FP8, whose ranges are those of the calibration samples: no sample is one id throughout.

Each id is asked of them among others.
"""
CALIBRATED = ("int8", "fp8")
"""The precisions of which that is so."""
SMALL = 16
"""Integer inputs with at most so many values are held at each of them."""
ITEMS = 8
"""Items of a feed that goes through the values of a large range."""
FEEDS = 512
"""Most feeds for the values of large ranges; a range with more values is taken at even distances."""
SIZES = 32
"""Most sizes of an axis that is not the batch."""
MOST_VALUES = 1 << 20
EVERY_BATCH = 16
"""Up to here every number of items is tried, beyond it the neighbours of powers of two."""
FIRST_FEEDS, FIRST_ITEMS = 8, {"fp32": 16, "tf32": 32, "fp16": 32, "bf16": 32, "int8": 64, "fp8": 64}
"""Of the samples a first proof takes at least so many feeds, where they differ in size, and so many items by precision:
the finer it is, the less the error differs from item to item."""
ROOM_BYTES = 128 << 20
"""Batches that are not timed, and sizes of an axis, are tried as long as their inputs take less than this together."""
VALUES_BYTES = 512 << 20
"""So much feeds for the values of large ranges may take together."""

Shapes = Mapping[str, tuple[int, ...]]
Make = Callable[[Shapes], dict[str, np.ndarray]]
"""Gives real samples at exact shapes; a mask is all ones."""


def feeds(source: ModelSource, make: Make) -> dict[str, Feed]:
    """Make all coverage feeds, those first whose absence would leave most unseen."""
    sizes = points(source.inputs, source.profile)
    axis = batch_axis(source)
    opt = shapes_at(source.inputs, sizes["opt"])
    few = _sized(opt, min(4, _most(source)) if axis else None)
    made: dict[str, Feed] = {timed(n): make(_sized(opt, n if axis else None)) for n in batches(source)}
    made |= _other_batches(source, make)
    base = make(few)
    made |= variations(source, base)
    made |= _sizes(source, make, axis)
    large = {s.name: s for s in _declared(source) if _count(s) > SMALL}
    if large:
        # Axes of other inputs alone are as small as may be: a decoder's past is thousands of times its token.
        own = {dim for spec in large.values() for dim in spec.dims}
        fewest = {name: e.min for name, e in extents(source.inputs, source.profile).items() if name not in own}
        full = make(
            _sized(shapes_at(source.inputs, sizes["opt"] | fewest), min(ITEMS, _most(source)) if axis else None)
        )
        each = sum(value.nbytes for value in full.values())
        every = itertools.islice(_all_values(full, large), max(1, VALUES_BYTES // each))
        made |= {name: kept_within(feed, source.inputs) for name, feed in every}
    return made


def variations(source: ModelSource, base: Feed) -> dict[str, Feed]:
    """Make the coverage feeds that have a feed's own shapes: other masks, ends of ranges, small values, extremes."""
    base = dict(base)
    made: dict[str, Feed] = {f"{name} mask": base | {str(source.mask): mask} for name, mask in _masks(source, base)}
    ints = {s.name: s for s in _declared(source)}
    for name, end in ((LOWEST_FEED, 0), (HIGHEST_FEED, 1)):
        if ints:
            made[name] = base | {n: _filled(base[n], s, _ends(s)[end]) for n, s in ints.items()}
    small = {n: s for n, s in ints.items() if _count(s) <= SMALL}
    for k in range(max(map(_count, small.values()), default=0)):
        made[f"value {k}"] = base | {n: _filled(base[n], s, _ends(s)[0] + k % _count(s)) for n, s in small.items()}
    floats = [s.name for s in source.inputs if np.dtype(s.dtype).kind == "f"]
    if floats:
        made[LOW_FEED] = base | {n: np.full_like(base[n], _finite(base[n]).min(initial=0)) for n in floats}
        made[HIGH_FEED] = base | {n: np.full_like(base[n], _finite(base[n]).max(initial=0)) for n in floats}
    if floats and not source.detections:  # which rows a detector finds in no picture at all, FP32's last bit decides
        made[BEYOND_FEED] = base | {n: (base[n] * BEYOND).astype(base[n].dtype) for n in floats}
    return {name: kept_within(feed, source.inputs) for name, feed in made.items()}


def _filled(value: np.ndarray, spec: TensorSpec, number: int) -> np.ndarray:
    """Return a tensor of one number; a mask that hides nothing whole in the samples is left as it is where that is 0.

    What attends to nothing is answered by no two runtimes alike: zeros, the mean, NaN.
    """
    mask = number == 0 and "mask" in spec.name and value.ndim > 1 and bool(value.any(-1).all())
    return value if mask else np.full_like(value, number)


def asked(name: str, precision: str) -> bool:
    """Say whether a feed is asked of a precision."""
    return precision not in CALIBRATED or name not in UNCALIBRATED


def timed(batch: int) -> str:
    """Name the feed on which a batch is timed."""
    return f"b{batch}"


def needed(name: str) -> bool:
    """Say whether a feed must be answered whatever that costs: a batch that is, or may be, timed or served."""
    return (name[0] in "bn" and name[1:].isdigit()) or traffic.point(name) is not None


def first(
    feeds: Mapping[str, Feed], precision: str, *, batched: bool = False, batch: int | None = None
) -> dict[str, Feed]:
    """Choose what a first proof asks: some samples, requests of the traffic, and one or two of each other kind.

    Of a kind (batches that may be timed, batches that are not, sizes of an axis, values of a range) that is its first
    and its largest feed: what is timed is held against the source's answers under the clock, too (``bench.checker``).
    The largest checked shape is left out: the largest batch and the largest size are there, each at less cost.

    Args:
        batched: whether the first axis counts items, so that feeds of one size beside it are alike.
        batch: of a build for one batch, which answers larger ones in parts: they are left out.
    """
    samples = [name for name in feeds if parity.is_sample(name)]
    items = sum(next((v.shape[0] for v in feeds[name].values() if v.ndim), 1) for name in samples)
    least = FIRST_ITEMS.get(precision, max(FIRST_ITEMS.values()))
    alike = batched and len({tuple(v.shape[1:] for v in feeds[name].values()) for name in samples}) == 1
    few = len(samples) if alike else len(samples) // FIRST_FEEDS
    chosen = set(samples[:: max(1, min(few, items // least))])
    kinds: dict[str, list[str]] = {}
    for name in feeds:
        sized = int(name[1:]) if name[0] in "bn" and name[1:].isdigit() else None
        if not parity.is_sample(name) and name != "max" and (batch is None or sized is None or sized <= batch):
            kinds.setdefault(name if traffic.point(name) else name.rstrip("0123456789"), []).append(name)
    for names in kinds.values():
        chosen |= {names[0], max(names, key=lambda name: sum(value.size for value in feeds[name].values()))}
    return {name: feed for name, feed in feeds.items() if name in chosen}


def answered(name: str, answer: Feed) -> bool:
    """Say whether a source takes a feed: NaN at floats that no sample holds (a divisor of 0) is not an answer."""
    made_up = name in (LOW_FEED, HIGH_FEED, BEYOND_FEED)
    return not (made_up and any(v.dtype.kind == "f" and np.isnan(v).any() for v in answer.values()))


def covered(source: ModelSource, compared: Mapping[str, Feed], left_out: int) -> str:
    """Say in one sentence on what a variant was compared.

    Args:
        left_out: how many coverage feeds it was not: the source has no answer, or they would have taken too long.
    """
    every = list(compared.values())
    said = [f"{len(every)} feeds"]
    if batch_axis(source) is not None:
        sizes = sorted({next(iter(feed.values())).shape[0] for feed in every})
        said[0] += f" of {_spans(sizes)} items"
    for spec in source.inputs:
        if (ends := _range(spec)) is None or spec.name == source.mask:
            continue
        seen = np.unique(np.concatenate([np.unique(feed[spec.name]) for feed in every]))
        said.append(f"{np.count_nonzero((seen >= ends[0]) & (seen <= ends[1])):,} of {_count(spec):,} {spec.name}")
    for axis, e in extents(source.inputs, source.profile).items():
        if axis != batch_axis(source):
            have = {feed[s.name].shape[s.dims.index(axis)] for feed in every for s in source.inputs if axis in s.dims}
            said.append(f"{len(have)} of {e.max - e.min + 1} sizes of {axis}")
    if masks := sorted(name.removesuffix(" mask") for name in compared if name.endswith(" mask")):
        said.append(f"masks {', '.join(masks)}")
    if BEYOND_FEED in compared:
        said.append(f"floats up to {BEYOND:g} times the samples'")
    if left_out:
        said.append(f"{left_out} coverage feeds left out")
    return f"compared on {'; '.join(said)}"


def _sized(shapes: Shapes, batch: int | None) -> dict[str, tuple[int, ...]]:
    return {name: shape if batch is None else (batch, *shape[1:]) for name, shape in shapes.items()}


def _most(source: ModelSource) -> int:
    return source.profile[source.inputs[0].name].max[0]


def _other_batches(source: ModelSource, make: Make) -> Iterator[tuple[str, Feed]]:
    """Yield the batches that no measurement and no checked shape has, at the odd size of every other axis."""
    axis = batch_axis(source)
    if axis is None:
        return
    first = source.profile[source.inputs[0].name]
    sizes = points(source.inputs, source.profile)
    wanted = {*range(first.min[0], EVERY_BATCH + 1)}
    wanted |= {(1 << i) + by for i in range(5, first.max[0].bit_length()) for by in (-1, 1)}
    wanted -= {*batches(source), *(at[axis] for at in sizes.values())}
    odd, room = shapes_at(source.inputs, sizes["odd"]), ROOM_BYTES
    for n in sorted(n for n in wanted if first.min[0] <= n <= first.max[0]):
        feed = make(_sized(odd, n))
        room -= sum(value.nbytes for value in feed.values())
        if room < 0:
            return
        yield f"n{n}", feed


def _sizes(source: ModelSource, make: Make, batch: str | None) -> Iterator[tuple[str, Feed]]:
    """Yield feeds at the sizes of every other axis, one axis at a time: all where they are few, else evenly spaced."""
    axes = extents(source.inputs, source.profile)
    usual = {name: e.min if name == batch else e.opt for name, e in axes.items()}
    for name, e in axes.items():
        if name != batch:
            room = ROOM_BYTES
            sizes = np.unique(np.linspace(e.min, e.max, min(SIZES, e.max - e.min + 1)).astype(int))
            for size in np.random.default_rng(0).permutation(sizes).tolist():
                feed = make(shapes_at(source.inputs, usual | {name: size}))
                room -= sum(value.nbytes for value in feed.values())
                if room < 0:
                    break
                yield f"{name} {size}", feed


def _masks(source: ModelSource, base: Feed) -> Iterator[tuple[str, np.ndarray]]:
    """Yield masks as clients send them, beside padding at the end: at the front, in between, and of one position."""
    if source.mask is None:
        return
    ones = np.ones_like(base[source.mask])
    length = ones.shape[-1]
    if ones.ndim < 2 or length < 3:
        return
    at = np.arange(length)
    kept = {"full": at >= 0, "left-padded": at >= length // 2, "holed": at % 3 != 1, "single": at == 0}
    for name, positions in kept.items():
        yield name, (ones * positions).astype(ones.dtype)


def _all_values(full: Feed, large: Mapping[str, TensorSpec]) -> Iterator[tuple[str, Feed]]:
    """Yield feeds that go through the values of large ranges, in a drawn order: any number of them is a fair draw."""
    rng = np.random.default_rng(0)
    orders = {}
    for name, spec in large.items():
        count, low = _count(spec), _ends(spec)[0]
        most = min(count, FEEDS * full[name].size, MOST_VALUES)
        if count < 1 << 40:
            orders[name] = low + rng.permutation(np.arange(most) * count // most)
        else:
            orders[name] = rng.integers(low, low + count - 1, most, endpoint=True)
    feeds = max(-(-len(order) // full[name].size) for name, order in orders.items())
    for number in range(feeds):
        feed = dict(full)
        for name, order in orders.items():
            chosen = np.take(order, np.arange(number * full[name].size, (number + 1) * full[name].size), mode="wrap")
            feed[name] = chosen.reshape(full[name].shape).astype(full[name].dtype)
        yield f"values {number}", feed


def _declared(source: ModelSource) -> list[TensorSpec]:
    """Return the integer inputs whose values were declared, but for the mask."""
    return [s for s in source.inputs if s.name != source.mask and _range(s) is not None]


def _range(spec: TensorSpec) -> tuple[int, int] | None:
    kind = np.dtype(spec.dtype).kind
    return (0, 1) if kind == "b" else spec.range if kind in "iu" else None


def _ends(spec: TensorSpec) -> tuple[int, int]:
    ends = _range(spec)
    assert ends is not None
    return ends


def _count(spec: TensorSpec) -> int:
    low, high = _ends(spec)
    return high - low + 1


def _finite(value: np.ndarray) -> np.ndarray:
    return value[np.isfinite(value)]


def _spans(numbers: list[int]) -> str:
    """``1, 2, 3, 8`` → ``1 to 3, 8``."""
    groups = itertools.groupby(enumerate(numbers), lambda pair: pair[1] - pair[0])
    spans = [[n for _, n in group] for _, group in groups]
    return ", ".join(str(s[0]) if len(s) == 1 else f"{s[0]} to {s[-1]}" for s in spans)
