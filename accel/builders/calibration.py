"""The calibration feeds of a build request, in the shapes that the variant takes."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from accel.core.errors import InputError
from accel.core.feeds import fit_inputs, read_feeds
from accel.core.values import BuildRequest


def calibration_feeds(request: BuildRequest) -> list[dict[str, np.ndarray]]:
    """Read the calibration set in the client's dtypes; a static build gets each feed cut to its batch and shape.

    What is shorter is padded with zeros, and what is longer cut off, as a client of a static build does; the mask,
    padded alike, hides the padding.

    Raises:
        InputError: there is no calibration set.
    """
    reference = request.samples.calibration
    if reference is None:
        raise InputError(
            f"{request.variant.id} must be calibrated and there are no real samples ({request.samples.origin})",
            fix="give them with --samples FILE",
        )
    stored = read_feeds(Path(request.samples_folder) / reference.path).values()
    feeds = [fit_inputs(feed, request.source.inputs) for feed in stored]
    if request.variant.static is None:
        return feeds
    shapes = {name: r.opt for name, r in request.variant.profile.items()}
    return [part for feed in feeds for part in _fixed(feed, shapes, batched=request.source.batched)]


def range_feeds(request: BuildRequest) -> list[dict[str, np.ndarray]]:
    """Return the samples on which ranges are measured: the calibration set, or the gate's own where there is none."""
    if request.samples.calibration is not None:
        return calibration_feeds(request)
    stored = read_feeds(Path(request.samples_folder) / request.samples.gate.path)
    return [fit_inputs(feed, request.source.inputs) for feed in stored.values()]


def _fixed(
    feed: dict[str, np.ndarray], shapes: dict[str, tuple[int, ...]], *, batched: bool
) -> list[dict[str, np.ndarray]]:
    batch = next(iter(shapes.values()))[0]
    items = next(iter(feed.values())).shape[0]
    parts = []
    for start in range(0, items, batch) if batched else (0,):
        part = {}
        for name, value in feed.items():
            chunk = value[start : start + batch] if batched else value
            chunk = chunk[tuple(slice(n) for n in shapes[name])]
            short = [wanted - size for wanted, size in zip(shapes[name], chunk.shape, strict=True)]
            part[name] = np.pad(chunk, [(0, n) for n in short])
        parts.append(part)
    return parts
