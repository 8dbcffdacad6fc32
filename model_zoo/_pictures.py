"""Pictures with natural statistics, made by rule: no photograph has to be shipped or licensed."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from accel.artifacts import TensorSpec

MEAN = np.array([0.485, 0.456, 0.406], np.float32)
DEVIATION = np.array([0.229, 0.224, 0.225], np.float32)
"""Per-channel statistics that ImageNet models normalise with."""
DISCS = 700


def dead_leaves(seed: int, height: int, width: int) -> np.ndarray:
    """Draw one picture of opaque discs that cover each other: uint8 (height, width, 3).

    Radii follow the density r^-3 between 1.5 % and half of the picture's side, which gives the power spectrum, the
    sharp edges and the scale invariance of photographs; a disc is shaded across, as lit things are.

    Source: A. Lee, D. Mumford, J. Huang, "Occlusion Models for Natural Images: A Statistical Study of a
    Scale-Invariant Dead Leaves Model", IJCV 41 (2001).
    """
    from PIL import Image, ImageDraw

    rng = np.random.default_rng([seed, height, width])
    side = max(height, width)
    low, high = 0.015 * side, 0.5 * side
    # Inverse of the distribution function of r^-3 cut at both ends.
    radii = (low**-2 - rng.random(DISCS) * (low**-2 - high**-2)) ** -0.5
    centres = rng.random((DISCS, 2)) * (width, height)
    light = rng.beta(1.2, 1.6, DISCS) * 255
    colours = np.clip(light[:, None] + rng.normal(0, 22, (DISCS, 3)), 0, 255).astype(int)
    ground = tuple(int(c) for c in colours[0])
    picture = Image.new("RGB", (width, height), ground)
    draw = ImageDraw.Draw(picture)
    for (x, y), r, colour in zip(centres, radii, colours, strict=True):
        draw.ellipse((x - r, y - r, x + r, y + r), fill=tuple(int(c) for c in colour))
    slope = np.add.outer(np.linspace(-1, 1, height), np.linspace(-1, 1, width) * rng.normal()) * rng.normal(0, 18)
    shaded = np.asarray(picture, np.float32) + slope[:, :, None] + rng.normal(0, 4, (height, width, 1))
    return np.clip(shaded, 0, 255).astype(np.uint8)


def pictures(count: int, spec: TensorSpec) -> Sequence[dict[str, np.ndarray]]:
    """Return ``count`` normalised pictures as items of ``spec``: float32 (1, channels, height, width).

    Raises:
        ValueError: the input's height or width is not fixed.
    """
    _, channels, height, width = spec.dims
    if not (isinstance(channels, int) and isinstance(height, int) and isinstance(width, int)):
        raise ValueError(f"pictures need a fixed size, and {spec.name} is {spec.dims}")
    items = []
    for seed in range(count):
        values = (dead_leaves(seed, height, width).astype(np.float32) / 255 - MEAN) / DEVIATION
        planes = values.transpose(2, 0, 1) if channels == 3 else np.repeat(values.mean(2)[None], channels, axis=0)
        items.append({spec.name: np.ascontiguousarray(planes[None], np.float32)})
    return items
