"""DenseNet-121, a picture classifier whose layers read everything before them.

Source: G. Huang, Z. Liu, L. van der Maaten, K. Weinberger, "Densely Connected Convolutional Networks", CVPR 2017:
table 1 for the sizes (growth 32, bottlenecks of 4 growths, compression 0.5), section 3 for the order of operations.
"""

import dataclasses
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from accel.core.processing import Labels, Pipeline
from accel.core.values import TensorSpec
from model_zoo import Entry, _pictures

if TYPE_CHECKING:
    import torch

INPUT = TensorSpec("pixel_values", "float32", ("batch", 3, 224, 224))
SMALL_INPUT = TensorSpec("pixel_values", "float32", ("batch", 3, 64, 64))


@dataclasses.dataclass(frozen=True, slots=True)
class Size:
    """How large a network is.

    Attributes:
        layers: dense layers of each block.
        growth: channels that each layer adds.
        stem: channels before the first block.
        labels: number of classes.
    """

    layers: Sequence[int]
    growth: int
    stem: int
    labels: int


FULL = Size((6, 12, 24, 16), growth=32, stem=64, labels=1000)
SMALL = Size((2, 2), growth=8, stem=16, labels=10)


def build(size: Size, spec: TensorSpec) -> "torch.nn.Module":
    """Build the classifier with weights drawn with seed 0 and settled statistics.

    ``pixel_values`` float32 (batch, 3, height, width) → ``logits`` float32 (batch, labels).
    """
    import torch
    from torch import nn

    torch.manual_seed(0)

    def normalised(channels: int, convolution: nn.Conv2d) -> list[nn.Module]:
        nn.init.kaiming_normal_(convolution.weight)
        return [nn.BatchNorm2d(channels), nn.ReLU(), convolution]

    class Dense(nn.Module):
        def __init__(self, channels: int) -> None:
            super().__init__()
            inner = 4 * size.growth
            self.layer = nn.Sequential(
                *normalised(channels, nn.Conv2d(channels, inner, 1, bias=False)),
                *normalised(inner, nn.Conv2d(inner, size.growth, 3, padding=1, bias=False)),
            )

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.cat([x, self.layer(x)], dim=1)

    class DenseNet(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            channels = size.stem
            stem = nn.Conv2d(3, channels, 7, stride=2, padding=3, bias=False)
            nn.init.kaiming_normal_(stem.weight)
            steps = [stem, nn.BatchNorm2d(channels), nn.ReLU(), nn.MaxPool2d(3, stride=2, padding=1)]
            for number, layers in enumerate(size.layers):
                if number:
                    halved = channels // 2
                    steps += [*normalised(channels, nn.Conv2d(channels, halved, 1, bias=False)), nn.AvgPool2d(2)]
                    channels = halved
                for _ in range(layers):
                    steps.append(Dense(channels))
                    channels += size.growth
            self.features = nn.Sequential(*steps, nn.BatchNorm2d(channels), nn.ReLU())
            self.classifier = nn.Linear(channels, size.labels)

        def forward(self, pixel_values: torch.Tensor) -> dict[str, torch.Tensor]:
            return {"logits": self.classifier(self.features(pixel_values).mean(dim=(2, 3)))}

    return _pictures.settle(DenseNet(), _pictures.pictures(_pictures.SETTLING, spec))


def load(folder: Path | None) -> "torch.nn.Module":
    """Build the classifier; its weights are always random."""
    return build(FULL, INPUT)


def load_small(folder: Path | None) -> "torch.nn.Module":
    """Build the reduced classifier."""
    return build(SMALL, SMALL_INPUT)


def small() -> Entry:
    """Return the entry with two blocks of two layers, 64 x 64 pixels and 10 classes."""
    return dataclasses.replace(
        ENTRY,
        title="DenseNet of two blocks",
        parameters=15_546,
        inputs=(SMALL_INPUT,),
        outputs=(TensorSpec("logits", "float32", ("batch", 10)),),
        profile=_pictures.profile(SMALL_INPUT, 4),
        load=load_small,
        samples=partial(_pictures.unsettled, SMALL_INPUT),
        pipeline=Pipeline(_pictures.imagenet(72, 64), Labels(top_k=5)),
        small=None,
    )


ENTRY = Entry(
    name="densenet121",
    title="DenseNet-121 picture classifier",
    licence=_pictures.NO_WEIGHTS,
    parameters=7_978_856,
    load=load,
    inputs=(INPUT,),
    outputs=(TensorSpec("logits", "float32", ("batch", 1000)),),
    profile=_pictures.profile(INPUT, 16),
    samples=partial(_pictures.unsettled, INPUT),
    origin=_pictures.ORIGIN,
    family="vision",
    pipeline=Pipeline(_pictures.imagenet(256, 224), Labels(top_k=5)),
    small=small,
    extra_files=("_pictures.py",),
)
