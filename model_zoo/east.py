"""EAST, a text detector: where text is, and the rotated box that each place of it belongs to.

Source: X. Zhou et al., "EAST: An Efficient and Accurate Scene Text Detector", arXiv:1704.03155, CVPR 2017: figure 3 for
the merging branch and the RBOX output. The trunk is a ResNet-50, as in the weights that circulate, where the paper has
PVANet or VGG-16. Boxes are made of both maps by locality-aware non-maximum suppression (section 3.6), after the model.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from accel.core.processing import Pipeline
from accel.core.values import TensorSpec
from model_zoo import Entry, Item, _lettering, _pictures

if TYPE_CHECKING:
    import torch


@dataclasses.dataclass(frozen=True, slots=True)
class Size:
    """How large a detector is.

    Attributes:
        side: height and width of a picture, a multiple of 32.
        trunk: transformers' settings of the ResNet.
        merged: channels of the merging branch, from the deepest map on; the last is that of the final layer.
    """

    side: int
    trunk: Mapping[str, Any]
    merged: tuple[int, int, int, int]

    @property
    def input(self) -> TensorSpec:
        """The picture, normalised as ImageNet."""
        return TensorSpec("images", "float32", ("batch", 3, self.side, self.side))

    @property
    def outputs(self) -> tuple[TensorSpec, ...]:
        """At a quarter of the picture's size: how likely text is; distances to a box's four sides, and its angle."""
        cells = self.side // 4
        return (
            TensorSpec("score", "float32", ("batch", 1, cells, cells)),
            TensorSpec("geometry", "float32", ("batch", 5, cells, cells)),
        )


FULL = Size(320, {}, (128, 64, 32, 32))
SMALL = Size(64, {"embedding_size": 16, "hidden_sizes": [16, 32, 32, 64], "depths": [1, 1, 1, 1]}, (16, 16, 8, 8))
REACH = 512.0
"""Largest distance to a side in pixels: the size of the pictures that the paper trains on."""


def build(size: Size) -> "torch.nn.Module":
    """Build the detector with weights drawn with seed 0 and settled statistics.

    ``images`` float32 (batch, 3, side, side) → ``score`` float32 (batch, 1, side / 4, side / 4) from 0 to 1 and
    ``geometry`` float32 (batch, 5, side / 4, side / 4): top, right, bottom, left in pixels, angle in radians from -π/4
    to π/4.
    """
    import torch
    from torch import nn
    from transformers import ResNetConfig, ResNetModel

    torch.manual_seed(0)

    def conv(channels: int, out: int, kernel: int) -> nn.Sequential:
        return nn.Sequential(
            nn.Conv2d(channels, out, kernel, padding=kernel // 2, bias=False), nn.BatchNorm2d(out), nn.ReLU()
        )

    class Detector(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            config = ResNetConfig(**size.trunk)
            self.trunk = ResNetModel(config)
            *shallow, before = config.hidden_sizes
            *widths, last = size.merged
            self.merge = nn.ModuleList()
            for width, channels in zip(widths, reversed(shallow), strict=True):
                self.merge.append(nn.Sequential(conv(before + channels, width, 1), conv(width, width, 3)))
                before = width
            self.last = conv(before, last, 3)
            self.score = nn.Conv2d(last, 1, 1)
            self.distances = nn.Conv2d(last, 4, 1)
            self.angle = nn.Conv2d(last, 1, 1)

        def forward(self, images: torch.Tensor) -> dict[str, torch.Tensor]:
            _, *maps = self.trunk(pixel_values=images, output_hidden_states=True).hidden_states
            *shallow, merged = maps
            for step, beside in zip(self.merge, reversed(shallow), strict=True):
                grown = nn.functional.interpolate(merged, scale_factor=2.0, mode="bilinear", align_corners=False)
                merged = step(torch.cat([grown, beside], dim=1))
            merged = self.last(merged)
            distances = self.distances(merged).sigmoid() * REACH
            angle = (self.angle(merged).sigmoid() - 0.5) * (torch.pi / 2)
            return {"score": self.score(merged).sigmoid(), "geometry": torch.cat([distances, angle], dim=1)}

    model = Detector()
    items = samples(_pictures.SETTLING, size=size)
    blocks = [b.layer for b in model.trunk.modules() if hasattr(b, "shortcut")]
    _pictures.settle(model, items, ends=[block[-1].normalization for block in blocks])
    wanted = [(model.score, [-2.0], 2.0), (model.distances, [-2.0] * 4, 1.0), (model.angle, [0.0], 0.5)]
    _pictures.spread(model, items, wanted)
    return model


def samples(count: int, *, size: Size, skipped: int = 0) -> Sequence[Item]:
    """Return pictures with words in them, normalised as ImageNet."""
    return _pictures.pictures(skipped + count, size.input, draw=_lettering.scene)[skipped:]


def load(folder: Path | None) -> "torch.nn.Module":
    """Build the detector; its weights are always random."""
    return build(FULL)


def load_small(folder: Path | None) -> "torch.nn.Module":
    """Build the reduced detector."""
    return build(SMALL)


def small() -> Entry:
    """Return the entry with one block a stage and 64 x 64 pixels."""
    return dataclasses.replace(
        ENTRY,
        title="EAST text detector on a ResNet of four blocks",
        parameters=21_366,
        inputs=(SMALL.input,),
        outputs=SMALL.outputs,
        profile=_pictures.profile(SMALL.input, 4),
        load=load_small,
        samples=partial(samples, size=SMALL, skipped=_pictures.SETTLING),
        pipeline=_pipeline(SMALL),
        small=None,
    )


def _pipeline(size: Size) -> Pipeline:
    normalised = _pictures.imagenet(size.side, size.side)
    return Pipeline(dataclasses.replace(normalised, resize=(size.side, size.side), crop=None), None)


ENTRY = Entry(
    name="east",
    title="EAST text detector on ResNet-50",
    licence=_pictures.NO_WEIGHTS,
    parameters=24_156_358,
    load=load,
    inputs=(FULL.input,),
    outputs=FULL.outputs,
    profile=_pictures.profile(FULL.input, 16),
    samples=partial(samples, size=FULL, skipped=_pictures.SETTLING),
    origin="dead-leaves pictures with words of the zoo printed at several angles, normalised as ImageNet",
    family="vision",
    pipeline=_pipeline(FULL),
    small=small,
    extra_files=_lettering.FILES,
)
