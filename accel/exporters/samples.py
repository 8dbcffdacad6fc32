"""Samples: what variants are calibrated on, compared on and timed on, as ``.npz`` files of feeds.

A feed is a batch: arrays by input name. A file holds many feeds under keys ``<index>/<input>``. An item is one sample
with a leading axis of 1 and no padding; feeds are made of items, padded to the longest of the feed, so that the padding
is as real as the sentences. Everything is deterministic. Only NumPy is imported at the top.
"""

import hashlib
import json
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from accel.core import recorded
from accel.core.errors import SampleError, StageError, raised_as
from accel.core.feeds import Feed, fit_inputs, write_feeds
from accel.core.files import write_text
from accel.core.values import FileRef, ModelSource, SampleSet, TensorSpec, file_ref, sha256_json
from accel.exporters import coverage, traffic, wire
from accel.exporters.axes import Extent, extents, points, shapes_at
from accel.exporters.items import random_items, zoo_items
from accel.exporters.probe import ended, kept_within
from accel.exporters.request import SourceRequest
from accel.exporters.sample_files import sample_files
from accel.exporters.sources import metric_files
from accel.exporters.streams import Run, Streams, cut, play, without_states
from accel.exporters.user_samples import Sample, expected, no_label, user_items
from accel.exporters.zoo import zoo

CALIBRATION_ITEMS = 128
GATE_ITEMS = 256
FEED_ITEMS = 8
POINTS = ("min", "odd", "opt", "max")


def shape_points(source: ModelSource) -> dict[str, dict[str, tuple[int, ...]]]:
    """Return each input's shape at the smallest, an odd, the typical and the largest point of the profile."""
    sizes = points(source.inputs, source.profile)
    return {point: shapes_at(source.inputs, at) for point, at in sizes.items()}


def fit_shape(
    feed: Feed, specs: Sequence[TensorSpec], shapes: Mapping[str, tuple[int, ...]], *, mask: str | None = None
) -> dict[str, np.ndarray]:
    """Tile and crop a feed to exact shapes, so that real values fill them; the mask becomes all ones."""
    fitted = {}
    for spec in specs:
        value, shape = np.asarray(feed[spec.name]), shapes[spec.name]
        if value.ndim != len(shape) or 0 in value.shape:
            raise SampleError(f"input {spec.name!r} has shape {value.shape}, which cannot be made {shape}")
        if spec.name == mask:
            fitted[spec.name] = np.ones(shape, spec.dtype)
            continue
        repeats = [-(-want // have) for want, have in zip(shape, value.shape, strict=True)]
        tiled = np.tile(value, repeats)[tuple(slice(n) for n in shape)]
        tiled = np.asarray(tiled, spec.dtype, order="C")
        fitted[spec.name] = tiled if value.shape == shape else ended(tiled, spec)
    return fitted


def make_samples(
    source: ModelSource, request: SourceRequest, out_dir: Path, *, seed: int = 0, run: Run | None = None
) -> SampleSet:
    """Write ``calibration.npz``, ``gate.npz``, ``shapes.npz`` and ``coverage.npz`` into ``out_dir``.

    The user's samples come before the zoo's, and random values stand only where there is nothing else; those are no
    calibration data unless the user asked for them: what the gate leaves of them goes to ``ranges.npz``. Fewer items
    than wanted are split 1 : 2, and ``origin`` says so. Of a stateful model the samples are streams, which go to
    ``streams.npz``; its items are their steps, with the states that the model itself was in.

    Args:
        run: the source, where it is stateful.

    Raises:
        SampleError: the samples cannot be read, or do not fit the model; the remedy shows the form they have for it.
    """
    out_dir.mkdir(parents=True, exist_ok=True)
    streams = streams_ref = None
    try:
        if source.states:
            assert run is not None
            streams, origin = _streams(source, request.labels, seed=seed)
            items = [dict(feed) for stream in streams.steps for feed, _ in play(source, run, stream, streams.initial)]
            kept, every = _distinct(items), [label for stream in streams.labels for label in stream]
            items, labels = [items[i] for i in kept], [every[i] for i in kept] if every else None
            write_feeds(out_dir / "streams.npz", streams.feeds())
            streams_ref = file_ref(out_dir / "streams.npz", out_dir)
        else:
            items, labels, origin = _items(source, request.labels, seed=seed)
    except SampleError as error:
        raise SampleError(error.message, fix="; ".join(filter(None, (error.fix, expected(source))))) from error
    calibration: list[int] = []
    ranges: list[int] = []
    if source.samples == "random" and not request.random_samples:
        every_item = list(range(len(items)))
        judged, ranges, note = every_item[:GATE_ITEMS], every_item[GATE_ITEMS:], ""
    else:
        calibration, judged, note = _split(len(items))
    if source.samples == "random" and calibration:
        note += ", for calibration too, as asked"
    found = {"gate": judged, "calibration": calibration, "ranges": ranges}
    of = {name: [items[i] for i in some] for name, some in found.items()}
    gate = of["gate"]
    groups = {name: _groups(some, source) for name, some in of.items() if some}
    write_feeds(out_dir / "gate.npz", _feeds(gate, groups["gate"], source))
    write_feeds(out_dir / "shapes.npz", {point: _at(at, gate, source) for point, at in shape_points(source).items()})
    requests: Mapping[str, Feed] = {}
    if request.traffic is not None:
        log = Path(request.traffic) if request.traffic != traffic.FROM_SAMPLES else None
        requests = traffic.feeds(source, gate, recorded.read(log) if log else None)
        said = f"of sizes as recorded in {log.name}" if log else "each of its sample's own length"
        note += f"; {traffic.REQUESTS} requests of the traffic, {said}"
    made = coverage.feeds(source, lambda shapes: _at(shapes, gate, source))
    write_feeds(out_dir / "coverage.npz", {**requests, **made})
    gate_ref, shapes_ref, coverage_ref = (
        file_ref(out_dir / f"{name}.npz", out_dir) for name in ("gate", "shapes", "coverage")
    )
    optional: dict[str, FileRef] = {}
    for name in ("calibration", "ranges"):
        if of[name]:
            write_feeds(out_dir / f"{name}.npz", _feeds(of[name], groups[name], source))
            optional[name] = file_ref(out_dir / f"{name}.npz", out_dir)
    answers: dict[str, dict[str, list[Any]]] = {}
    if labels is not None:
        for name, each in groups.items():
            answers[name] = {str(n): [labels[found[name][i]] for i in group] for n, group in enumerate(each)}
        if streams is not None:
            answers["streams"] = streams.right()
    label_refs = {}
    for name, told in answers.items():
        with raised_as(SampleError, (TypeError, ValueError), f"labels under {request.labels!r} are no JSON"):
            write_text(out_dir / f"{name}-labels.json", json.dumps(told, allow_nan=False))
        label_refs[name] = file_ref(out_dir / f"{name}-labels.json", out_dir)
    first = [optional.get("calibration"), *filter(None, [optional.get("ranges")])]
    refs = [*first, gate_ref, shapes_ref, coverage_ref, *label_refs.values(), *filter(None, [streams_ref])]
    scored = [request.metric, *metric_files(request.metric)] if request.metric is not None else []
    return SampleSet(
        calibration=optional.get("calibration"),
        gate=gate_ref,
        shapes=shapes_ref,
        calibration_items=_count(of["calibration"], source),
        gate_items=_count(gate, source),
        sha256=sha256_json([*(f.sha256 if f else None for f in refs), *scored]),
        origin=origin + note,
        coverage=coverage_ref,
        streams=streams_ref,
        labels=label_refs,
        ranges=optional.get("ranges"),
    )


def _streams(source: ModelSource, labels: str | None, *, seed: int) -> tuple[Streams, str]:
    """Return the streams of a stateful model's samples, and what they are: each file of a folder is one."""
    plain, given = without_states(source), source.samples
    if given in ("random", "zoo"):
        items, own, origin = _items(plain, labels, seed=seed)
        played = [(items, own or [])]
    else:
        files = [str(f) for f in sample_files(Path(given))] if Path(given).is_dir() else [given]
        read = (user_items(file, source, labels) for file in files)
        shown = [[{n: v for n, v in feed.items() if n not in source.states} for feed in feeds] for feeds in read]
        played = [_check(feeds, plain, labels) for feeds in shown]
        origin = f"the user's streams ({Path(given).name})"
    told = [own for _, own in played]
    streams = cut(source, [steps for steps, _ in played], told if any(told) else ())
    lengths = " and ".join(str(len(s)) for s in streams.steps)
    return streams, f"{origin}: {lengths} steps"


def _items(
    source: ModelSource, labels: str | None, *, seed: int
) -> tuple[list[dict[str, np.ndarray]], list[Any] | None, str]:
    """Return the distinct items of a source's samples, the label of each, where they have any, and what they are."""
    wanted = CALIBRATION_ITEMS + GATE_ITEMS
    told: list[Any] = []
    if source.samples == "random":
        items, origin = random_items(source, wanted, seed=seed), "random values in the declared ranges"
    elif source.samples == "zoo":
        items, origin = zoo_items(source, wanted)
        labels = zoo().entry(source.reference).labels if source.kind == "zoo" else None
        told = [item.pop(labels) for item in items] if labels is not None else []
        if source.native:
            items = [fit_inputs(wire.sent(item, source), source.inputs) for item in items]
    else:
        items, told = _check(user_items(source.samples, source, labels), source, labels)
        origin = f"the user's samples ({Path(source.samples).name})"
    kept = _distinct(items)
    if source.samples not in ("random", "zoo"):
        kept = shuffled(kept)
    return [items[i] for i in kept], None if labels is None else [_plain(told[i]) for i in kept], origin


def _plain(label: Any) -> Any:
    """Return a label as JSON has it."""
    return label.tolist() if isinstance(label, np.ndarray | np.generic) else label


def _check(
    feeds: Sequence[Sample], source: ModelSource, labels: str | None
) -> tuple[list[dict[str, np.ndarray]], list[Any]]:
    """Check every feed against the inputs and cut it, and its labels, into items along the batch axis."""
    told: list[Any] = []
    axes = extents(source.inputs, source.profile)
    items: list[dict[str, np.ndarray]] = []
    parts = ((index, part) for index, given in enumerate(feeds) for part in _unstacked(given, source, labels))
    for index, feed in parts:
        if labels is not None:
            if labels not in feed:
                raise no_label(f"sample {index}", labels, feed)
            value = _plain(feed[labels])
            own = value if isinstance(value, list) else [value]
            told += own
            feed = {name: value for name, value in feed.items() if name != labels}
        try:
            fitted = fit_inputs(wire.sent(feed, source), source.inputs)
        except SampleError as error:
            raise SampleError(f"sample {index}{_item(feed, source)}: {error.message}", fix=error.fix) from error
        for spec in source.inputs:
            for size, dim in zip(fitted[spec.name].shape, spec.dims, strict=True):
                if dim == "batch" and size == 0:
                    raise SampleError(f"sample {index}: input {spec.name!r} holds no item: it has no rows")
                if isinstance(dim, str) and dim != "batch" and not axes[dim].min <= size <= axes[dim].max:
                    raise SampleError(
                        f"sample {index}: axis {dim!r} of input {spec.name!r} is {size}, expected {axes[dim].min} to "
                        f"{axes[dim].max}",
                        fix="crop the samples, or widen the shapes with --min-shape / --max-shape",
                    )
                if isinstance(dim, str) and size % axes[dim].multiple:
                    raise SampleError(
                        f"sample {index}: axis {dim!r} of input {spec.name!r} is {size}, expected a multiple of "
                        f"{axes[dim].multiple}",
                        fix="pad, crop or resize the samples",
                    )
        rows = _rows(fitted, source)
        if labels is not None and len(own) != len(rows):
            raise SampleError(
                f"sample {index}: {len(own)} labels under {labels!r} for {len(rows)} items",
                fix="one label for each item, along the first axis",
            )
        items += rows
    return items, told


def _item(feed: Sample, source: ModelSource) -> str:
    """Say which of the items that a feed holds is the first that does not fit; nothing where the first one is."""
    arrays = {name: np.asarray(value) for name, value in feed.items()}
    counted = _batch(source) is not None and all(array.ndim for array in arrays.values())
    for row in range(min(map(len, arrays.values()), default=0) if counted else 0):
        try:
            fit_inputs(wire.sent({n: array[row : row + 1] for n, array in arrays.items()}, source), source.inputs)
        except SampleError:
            return f", item {row}" if row else ""
    return ""


def refused(
    feed: Feed, source: ModelSource, run: Callable[[Feed], object], error: StageError
) -> StageError | SampleError:
    """Return the error that the source raises for one item of a feed alone, with the item's number in the samples.

    Args:
        error: what it raised for the feed; returned where no item is refused alone, or the samples are not the user's.
    """
    if source.samples in ("random", "zoo"):
        return error
    try:
        given = [{s.name: np.asarray(f[s.name]) for s in source.inputs} for f in user_items(source.samples, source)]
    except (SampleError, KeyError):  # with labels or streams, an item has other names
        return error
    parts = [dict(wire.sent(part, source)) for each in given for part in _unstacked(each, source, None)]
    items = [item for part in parts for item in _rows(part, source)]
    for row in _rows(dict(feed), source):
        try:
            run(row)
        except StageError as alone:
            for number, item in enumerate(items):
                if all(np.array_equal(row[n][tuple(map(slice, v.shape))], v) for n, v in item.items()):
                    where = Path(source.samples).name
                    return SampleError(f"item {number} of {where}: {alone.message}", fix=alone.fix)
    return error


def _unstacked(feed: Sample, source: ModelSource, labels: str | None) -> list[Sample]:
    """Cut what holds many calls of a model whose first axis is fixed, one after another, and its labels alike."""
    leading = {s.dims[0] if s.dims else None for s in source.inputs}
    size = next(iter(leading)) if len(leading) == 1 else None
    if not isinstance(size, int) or feed.keys() - {labels} != {s.name for s in source.inputs}:
        return [feed]
    arrays = {s.name: np.asarray(feed[s.name]) for s in source.inputs}
    counts = {a.shape[0] if a.ndim == len(s.dims) else 0 for s, a in zip(source.inputs, arrays.values(), strict=True)}
    count = counts.pop() // size if len(counts) == 1 else 0
    if count < 2 or any(len(a) != count * size for a in arrays.values()):
        return [feed]
    parts = [{name: array[i : i + size] for name, array in arrays.items()} for i in range(0, count * size, size)]
    if labels is None:
        return list(parts)
    told = _plain(feed.get(labels))
    if not isinstance(told, list) or len(told) != count:
        return [feed]
    return [part | {labels: [label]} for part, label in zip(parts, told, strict=True)]


def _batch(source: ModelSource) -> Extent | None:
    """Return how many items a feed may join, or None where the inputs have no batch axis in front."""
    leading = {s.dims[0] if s.dims else None for s in source.inputs}
    if source.batched:
        return extents(source.inputs, source.profile)["batch"]
    fixed = next(iter(leading)) if len(leading) == 1 else None
    # The zoo's items are single; a model that was fixed at more takes that many of them.
    return Extent(fixed, fixed, fixed) if isinstance(fixed, int) and source.samples == "zoo" else None


def _rows(feed: dict[str, np.ndarray], source: ModelSource) -> list[dict[str, np.ndarray]]:
    if _batch(source) is None:
        return [feed]
    count = next(iter(feed.values())).shape[0]
    return [{n: v[i : i + 1] for n, v in feed.items()} for i in range(count)]


def _distinct(items: Iterable[dict[str, np.ndarray]]) -> list[int]:
    """Return the places of items that are no repeated ones, so that none can be in both calibration and gate."""
    seen: dict[bytes, int] = {}
    for index, item in enumerate(items):
        digest = hashlib.sha256()
        for name, value in sorted(item.items()):
            digest.update(f"{name}{value.shape}".encode() + value.tobytes())
        seen.setdefault(digest.digest(), index)
    return list(seen.values())


def shuffled(places: Sequence[int], most: int | None = None) -> list[int]:
    """Return the places, or so many of them at most, in an order that is always the same for so many.

    A file in the order of its classes, or with every third item of one kind, would be calibrated on some kinds and
    judged on others.
    """
    return random.Random(0).sample(places, min(len(places), most or len(places)))


def _split(count: int) -> tuple[list[int], list[int], str]:
    """Split items in mixed order into calibration and gate: every third calibrates."""
    if count < 2:
        return [], list(range(count)), "; only one item: none left for calibration"
    calibration = list(range(0, count, 3))[:CALIBRATION_ITEMS]
    gate = [i for i in range(count) if i % 3][:GATE_ITEMS]
    short = len(calibration) < CALIBRATION_ITEMS or len(gate) < GATE_ITEMS
    note = f"; only {len(calibration)} items to calibrate and {len(gate)} to compare" if short else ""
    return calibration, gate, note


def _count(items: Sequence[Mapping[str, np.ndarray]], source: ModelSource) -> int:
    return sum(next(iter(i.values())).shape[0] if _batch(source) else 1 for i in items)


def batched(items: Sequence[dict[str, np.ndarray]], source: ModelSource) -> dict[str, dict[str, np.ndarray]]:
    """Join items to feeds of ``FEED_ITEMS``, padded with zeros to the longest of the feed, within the profile.

    Items of different sizes are joined only where the model has a mask to tell padding from content.
    """
    return _feeds(items, _groups(items, source), source)


def _groups(items: Sequence[Mapping[str, np.ndarray]], source: ModelSource) -> list[list[int]]:
    """Return the places of the items that each feed joins."""
    batch = _batch(source)
    if batch is None:
        return [[i] for i in range(len(items))]
    room = max(batch.min, min(FEED_ITEMS, batch.max))
    groups: list[list[int]] = []
    for index, item in enumerate(items):
        alike = source.mask is not None or not groups or _shapes(items[groups[-1][0]]) == _shapes(item)
        if groups and len(groups[-1]) < room and alike:
            groups[-1].append(index)
        else:
            groups.append([index])
    for group in groups:
        while len(group) < batch.min:
            group.append(group[0])
    return groups


def _feeds(
    items: Sequence[dict[str, np.ndarray]], groups: Sequence[Sequence[int]], source: ModelSource
) -> dict[str, dict[str, np.ndarray]]:
    if _batch(source) is None:
        return {str(i): item for i, item in enumerate(items)}
    feeds = {str(number): _joined([items[i] for i in group]) for number, group in enumerate(groups)}
    return {number: fit_inputs(feed, source.inputs) for number, feed in feeds.items()}


def _shapes(item: Mapping[str, np.ndarray]) -> list[tuple[int, ...]]:
    return [v.shape for v in item.values()]


def _joined(group: Sequence[Mapping[str, np.ndarray]]) -> dict[str, np.ndarray]:
    feed = {}
    for name in group[0]:
        values = [item[name] for item in group]
        longest = np.max([v.shape for v in values], axis=0)
        padded = [
            np.pad(v, [(0, int(w) - h) if a else (0, 0) for a, (w, h) in enumerate(zip(longest, v.shape, strict=True))])
            for v in values
        ]
        feed[name] = np.concatenate(padded)
    return feed


def _at(
    shapes: Mapping[str, tuple[int, ...]], items: Sequence[dict[str, np.ndarray]], source: ModelSource
) -> dict[str, np.ndarray]:
    """Make one feed of exact shapes, every row from another item."""
    if _batch(source) is None:
        return kept_within(fit_shape(items[0], source.inputs, shapes, mask=source.mask), source.inputs)
    count = next(iter(shapes.values()))[0]
    one = {n: (1, *s[1:]) for n, s in shapes.items()}
    rows = [fit_shape(items[r % len(items)], source.inputs, one, mask=source.mask) for r in range(count)]
    return kept_within({n: np.concatenate([r[n] for r in rows]) for n in shapes}, source.inputs)
