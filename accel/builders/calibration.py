"""The calibration feeds of a build request, in the shapes that the variant takes."""

from pathlib import Path

import numpy as np

from accel.core.errors import InputError
from accel.core.feeds import fit_inputs, fixed_parts, read_feeds
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
    return [part for feed in feeds for part in fixed_parts(feed, shapes, grouped=request.source.batched)]


def range_feeds(request: BuildRequest) -> list[dict[str, np.ndarray]]:
    """Return the samples on which ranges are measured: the calibration set, or random ones that are not the gate's.

    Where there is but one sample in all, it is the gate's.
    """
    if request.samples.calibration is not None:
        return calibration_feeds(request)
    reference = request.samples.ranges or request.samples.gate
    stored = read_feeds(Path(request.samples_folder) / reference.path)
    return [fit_inputs(feed, request.source.inputs) for feed in stored.values()]
