"""Pictures with natural statistics, made by rule: no photograph has to be shipped or licensed."""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from accel.core.processing import Picture
from accel.core.values import ShapeRange, TensorSpec

if TYPE_CHECKING:
    import torch

MEAN = np.array([0.485, 0.456, 0.406], np.float32)
DEVIATION = np.array([0.229, 0.224, 0.225], np.float32)
"""Per-channel statistics that ImageNet models normalise with."""
HALF = np.full(3, 0.5, np.float32)
"""Mean and deviation that bring 0…1 to -1…1."""
NO_WEIGHTS = "random weights only"
"""Licence of a model whose pretrained weights nobody offers in a form that accel opens."""
DISCS = 700
ORIGIN = "dead-leaves pictures with natural statistics, normalised as ImageNet"
SETTLING = 8
"""Items that set the normalisation statistics of random weights."""


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


def lit(picture: np.ndarray, seed: int) -> np.ndarray:
    """Take a picture under another light: contrast, exposure and colour of the light differ, as photographs do.

    Without it all pictures have one brightness and no cast, and what a network pools over the picture is all but
    constant: a comparison would measure rounding alone.
    """
    rng = np.random.default_rng([seed, 1])
    contrast, exposure = np.exp(rng.normal(0, 0.2)), np.exp(rng.normal(0, 0.25))
    cast = np.exp(rng.normal(0, 0.1, 3))
    return np.clip(255 * (picture / 255) ** contrast * exposure * cast, 0, 255).astype(np.uint8)


def pictures(
    count: int,
    spec: TensorSpec,
    *,
    mean: np.ndarray = MEAN,
    deviation: np.ndarray = DEVIATION,
    draw: Callable[[int, int, int], np.ndarray] | None = None,
) -> Sequence[dict[str, np.ndarray]]:
    """Return ``count`` normalised pictures as items of ``spec``.

    float32 (1, channels, height, width), or (1, height, width, channels) where the spec has them last.

    Args:
        mean / deviation: what the values, scaled to 0…1, are normalised with, by channel.
        draw: gives uint8 (height, width, 3) of seed, height and width; None for ``lit`` dead leaves.

    Raises:
        ValueError: the input's height or width is not fixed.
    """
    channels, height, width = planes_of(spec)
    items = []
    for seed in range(count):
        picture = draw(seed, height, width) if draw else lit(dead_leaves(seed, height, width), seed)
        values = (picture.astype(np.float32) / 255 - mean) / deviation
        values = values if channels == 3 else np.repeat(values.mean(2, keepdims=True), channels, axis=2)
        ordered = values if channels_last(spec) else values.transpose(2, 0, 1)
        items.append({spec.name: np.ascontiguousarray(ordered[None], np.float32)})
    return items


def unsettled(spec: TensorSpec, count: int) -> Sequence[dict[str, np.ndarray]]:
    """Return ``count`` pictures, none of them among the first, which settle BatchNorm."""
    return pictures(SETTLING + count, spec)[SETTLING:]


def imagenet(resize: int, crop: int) -> Picture:
    """Return the step that ImageNet classifiers have before them: the shorter side resized, the middle cut out."""
    mean, deviation = (tuple(round(float(v), 3) for v in values) for values in (MEAN, DEVIATION))
    return Picture(resize=resize, crop=(crop, crop), mean=mean, std=deviation)


def channels_last(spec: TensorSpec) -> bool:
    """Say whether a picture input is (batch, height, width, channels), as TensorFlow has it."""
    return spec.dims[3] in (1, 3) and spec.dims[1] not in (1, 3)


def planes_of(spec: TensorSpec) -> tuple[int, int, int]:
    """Return channels, height and width of a picture input.

    Raises:
        ValueError: one of them is not fixed.
    """
    _, *sizes = spec.dims
    if not all(isinstance(size, int) for size in sizes):
        raise ValueError(f"pictures need a fixed size, and {spec.name} is {spec.dims}")
    one, two, three = (int(size) for size in sizes)
    return (three, one, two) if channels_last(spec) else (one, two, three)


def profile(spec: TensorSpec, most: int) -> dict[str, ShapeRange]:
    """Return the shape range of a picture input of fixed size, for batches of 1 to ``most``."""
    size = planes_of(spec)
    size = (*size[1:], size[0]) if channels_last(spec) else size
    return {spec.name: ShapeRange((1, *size), (1, *size), (most, *size))}


def settle(
    model: "torch.nn.Module", items: Sequence[Mapping[str, np.ndarray]], *, ends: Sequence["torch.nn.Module"] = ()
) -> "torch.nn.Module":
    """Measure BatchNorm's statistics on ``items`` of one size, and return the model in eval mode.

    Random weights keep BatchNorm at mean 0 and variance 1, which lets activations grow from block to block until
    nothing of the picture is left. So the statistics are measured, layer after layer, as training would leave them. A
    variance is drawn half-way to its layer's mean: over a few items some channels hardly vary, and would be blown up
    wherever another item makes them.

    Args:
        ends: the last BatchNorm of each residual branch, which gets a weight of 0.1: at 1 every block doubles what
            rounding changed, and little is left of the signal in bfloat16. Training starts near 0.
            Source: P. Goyal et al., "Accurate, Large Minibatch SGD", 2017, section 5.1.
    """
    import torch

    def measure(norm: torch.nn.BatchNorm2d, given: tuple[torch.Tensor]) -> None:
        variance, mean = torch.var_mean(given[0], dim=(0, 2, 3))
        norm.running_mean.copy_(mean)
        norm.running_var.copy_((variance + variance.mean()) / 2)

    for end in ends:
        torch.nn.init.constant_(end.weight, 0.1)
    hooks = [
        module.register_forward_pre_hook(measure)
        for module in model.eval().modules()
        if isinstance(module, torch.nn.BatchNorm2d)
    ]
    with torch.inference_mode():
        model(**{name: torch.from_numpy(np.concatenate([item[name] for item in items])) for name in items[0]})
    for hook in hooks:
        hook.remove()
    return model


def settle_keras(model: Any, items: Sequence[Mapping[str, np.ndarray]]) -> Any:
    """Give BatchNorm the statistics of ``items``, all of one size, and return the Keras model; see ``settle``.

    Args:
        model: of one input, pictures channels last.
    """
    norms = [layer for layer in model.layers if hasattr(layer, "moving_variance")]
    momenta = [norm.momentum for norm in norms]
    for norm in norms:
        norm.momentum = 0.0  # the statistics of the one batch that follows
    model(np.concatenate([value for item in items for value in item.values()]), training=True)
    for norm, momentum in zip(norms, momenta, strict=True):
        norm.momentum = momentum
    return model


def spread(
    model: "torch.nn.Module",
    items: Sequence[Mapping[str, np.ndarray]],
    wanted: Sequence[tuple["torch.nn.Module", Sequence[float], float]],
) -> None:
    """Scale last convolutions so that over ``items`` each channel has the mean and deviation wanted.

    Random weights answer much the same everywhere; what training gives a last layer is answers that differ.

    Args:
        wanted: convolution, mean of each of its channels, deviation of all of them. None feeds another.
    """
    import torch

    seen: dict[torch.nn.Module, torch.Tensor] = {}
    hooks = [layer.register_forward_hook(lambda own, _, found: seen.update({own: found})) for layer, _, _ in wanted]
    with torch.inference_mode():
        model(**{name: torch.from_numpy(np.concatenate([item[name] for item in items])) for name in items[0]})
    for hook in hooks:
        hook.remove()
    for layer, means, deviation in wanted:
        found = seen[layer].double()
        scale = deviation / found.std(dim=(0, 2, 3))
        shift = torch.tensor(means, dtype=torch.float64) - scale * found.mean(dim=(0, 2, 3))
        with torch.no_grad():
            layer.weight.mul_(scale[:, None, None, None])
            layer.bias.mul_(scale).add_(shift)
