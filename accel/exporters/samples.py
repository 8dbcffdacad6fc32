"""Samples: what variants are calibrated on, compared on and timed on, as ``.npz`` files of feeds.

A feed is a batch: arrays by input name. A file holds many feeds under keys ``<index>/<input>``. An item is one sample
with a leading axis of 1 and no padding; feeds are made of items, padded to the longest of the feed, so that the padding
is as real as the sentences. Everything is deterministic. Only NumPy is imported at the top.
"""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np

from accel.core.errors import SampleError
from accel.core.feeds import Feed, fit_inputs, write_feeds
from accel.core.values import ModelSource, SampleSet, TensorSpec, file_ref, sha256_json
from accel.exporters import coverage
from accel.exporters.axes import Extent, extents, points, shapes_at
from accel.exporters.items import random_items, zoo_items
from accel.exporters.request import SourceRequest
from accel.exporters.user_samples import expected, user_items

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
        fitted[spec.name] = np.asarray(tiled, spec.dtype, order="C")
    return fitted


def make_samples(source: ModelSource, request: SourceRequest, out_dir: Path, *, seed: int = 0) -> SampleSet:
    """Write ``calibration.npz``, ``gate.npz``, ``shapes.npz`` and ``coverage.npz`` into ``out_dir``.

    The user's samples come before the zoo's, and random values stand only where there is nothing else; those are no
    calibration data unless the user asked for them. Fewer items than wanted are split 1 : 2, and ``origin`` says so.

    Raises:
        SampleError: the samples cannot be read, or do not fit the model; the remedy shows the form they have for it.
    """
    out_dir.mkdir(parents=True, exist_ok=True)
    try:
        items, origin = _items(source, seed=seed)
    except SampleError as error:
        raise SampleError(error.message, fix="; ".join(filter(None, (error.fix, expected(source))))) from error
    calibration: list[dict[str, np.ndarray]] = []
    if source.samples == "random" and not request.random_samples:
        gate, note = items[:GATE_ITEMS], ""
    else:
        calibration, gate, note = _split(items)
    if source.samples == "random" and calibration:
        note += ", for calibration too, as asked"
    write_feeds(out_dir / "gate.npz", batched(gate, source))
    write_feeds(out_dir / "shapes.npz", {point: _at(at, gate, source) for point, at in shape_points(source).items()})
    write_feeds(out_dir / "coverage.npz", coverage.feeds(source, lambda shapes: _at(shapes, gate, source)))
    gate_ref, shapes_ref, coverage_ref = (
        file_ref(out_dir / f"{name}.npz", out_dir) for name in ("gate", "shapes", "coverage")
    )
    calibration_ref = None
    if calibration:
        write_feeds(out_dir / "calibration.npz", batched(calibration, source))
        calibration_ref = file_ref(out_dir / "calibration.npz", out_dir)
    return SampleSet(
        calibration=calibration_ref,
        gate=gate_ref,
        shapes=shapes_ref,
        calibration_items=_count(calibration, source),
        gate_items=_count(gate, source),
        sha256=sha256_json([f.sha256 if f else None for f in (calibration_ref, gate_ref, shapes_ref, coverage_ref)]),
        origin=origin + note,
        coverage=coverage_ref,
    )


def _items(source: ModelSource, *, seed: int) -> tuple[list[dict[str, np.ndarray]], str]:
    """Return the distinct items of a source's samples, and what they are."""
    wanted = CALIBRATION_ITEMS + GATE_ITEMS
    if source.samples == "random":
        items, origin = random_items(source, wanted, seed=seed), "random values in the declared ranges"
    elif source.samples == "zoo":
        items, origin = zoo_items(source, wanted)
    else:
        items = _check(user_items(source.samples, source), source)
        origin = f"the user's samples ({Path(source.samples).name})"
    return _distinct(items), origin


def _check(feeds: Sequence[Feed], source: ModelSource) -> list[dict[str, np.ndarray]]:
    """Check every feed against the inputs and cut it into items along the batch axis."""
    axes = extents(source.inputs, source.profile)
    items: list[dict[str, np.ndarray]] = []
    for index, feed in enumerate(feeds):
        try:
            fitted = fit_inputs(feed, source.inputs)
        except SampleError as error:
            raise SampleError(f"sample {index}: {error.message}", fix=error.fix) from error
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
        items += _rows(fitted, source)
    return items


def _batch(source: ModelSource) -> Extent | None:
    """Return how many items a feed may join, or None where the inputs have no batch axis in front."""
    leading = {s.dims[0] if s.dims else None for s in source.inputs}
    if source.batched:
        return extents(source.inputs, source.profile)["batch"]
    fixed = next(iter(leading)) if len(leading) == 1 else None
    # The zoo's items are single; a model that was fixed at more takes that many of them.
    if isinstance(fixed, int) and source.samples == "zoo":
        return Extent(fixed, fixed, fixed)
    return None


def _rows(feed: dict[str, np.ndarray], source: ModelSource) -> list[dict[str, np.ndarray]]:
    if _batch(source) is None:
        return [feed]
    count = next(iter(feed.values())).shape[0]
    return [{n: v[i : i + 1] for n, v in feed.items()} for i in range(count)]


def _distinct(items: Iterable[dict[str, np.ndarray]]) -> list[dict[str, np.ndarray]]:
    """Drop repeated items, so that none can be in both calibration and gate."""
    seen: dict[bytes, dict[str, np.ndarray]] = {}
    for item in items:
        digest = hashlib.sha256()
        for name, value in sorted(item.items()):
            digest.update(f"{name}{value.shape}".encode() + value.tobytes())
        seen.setdefault(digest.digest(), item)
    return list(seen.values())


def _split(
    items: list[dict[str, np.ndarray]],
) -> tuple[list[dict[str, np.ndarray]], list[dict[str, np.ndarray]], str]:
    """Split items into calibration and gate, every third to calibration, so that both see the whole file."""
    if len(items) < 2:
        return [], items, "; only one item: none left for calibration"
    calibration = items[::3][:CALIBRATION_ITEMS]
    gate = [item for i, item in enumerate(items) if i % 3][:GATE_ITEMS]
    short = len(calibration) < CALIBRATION_ITEMS or len(gate) < GATE_ITEMS
    note = f"; only {len(calibration)} items to calibrate and {len(gate)} to compare" if short else ""
    return calibration, gate, note


def _count(items: Sequence[Mapping[str, np.ndarray]], source: ModelSource) -> int:
    return sum(next(iter(i.values())).shape[0] if _batch(source) else 1 for i in items)


def batched(items: Sequence[dict[str, np.ndarray]], source: ModelSource) -> dict[str, dict[str, np.ndarray]]:
    """Join items to feeds of ``FEED_ITEMS``, padded with zeros to the longest of the feed, within the profile.

    Items of different sizes are joined only where the model has a mask to tell padding from content.
    """
    batch = _batch(source)
    if batch is None:
        return {str(i): item for i, item in enumerate(items)}
    room = max(batch.min, min(FEED_ITEMS, batch.max))
    groups: list[list[dict[str, np.ndarray]]] = []
    for item in items:
        alike = source.mask is not None or not groups or _shapes(groups[-1][0]) == _shapes(item)
        if groups and len(groups[-1]) < room and alike:
            groups[-1].append(item)
        else:
            groups.append([item])
    for group in groups:
        while len(group) < batch.min:
            group.append(group[0])
    feeds = {str(i): _joined(group) for i, group in enumerate(groups)}
    return {i: fit_inputs(feed, source.inputs) for i, feed in feeds.items()}


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
        return fit_shape(items[0], source.inputs, shapes, mask=source.mask)
    count = next(iter(shapes.values()))[0]
    one = {n: (1, *s[1:]) for n, s in shapes.items()}
    rows = [fit_shape(items[r % len(items)], source.inputs, one, mask=source.mask) for r in range(count)]
    return {n: np.concatenate([r[n] for r in rows]) for n in shapes}
