"""A reader of text lines: convolutions, recurrent layers and CTC.

Source: B. Shi, X. Bai, C. Yao, "An End-to-End Trainable Neural Network for Image-based Sequence Recognition and Its
Application to Scene Text Recognition", arXiv:1507.05717, 2015: table 1. The answer is what CTC decodes: greedily by
taking the likeliest symbol of each step, joining equal neighbours and dropping blanks (symbol 0).
"""

import dataclasses
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from accel.core.processing import Picture, Pipeline
from accel.core.values import ShapeRange, TensorSpec
from model_zoo import Entry, Item, _lettering, _pictures

if TYPE_CHECKING:
    import torch

HEIGHT = 32
SYMBOLS = "-0123456789abcdefghijklmnopqrstuvwxyz"
"""Blank, digits and letters."""
INPUT = TensorSpec("images", "float32", ("batch", 1, HEIGHT, "width"))
OUTPUT = TensorSpec("log_probs", "float32", ("batch", "steps", len(SYMBOLS)))


@dataclasses.dataclass(frozen=True, slots=True)
class Size:
    """How large a reader is.

    Attributes:
        channels: of the seven convolutions.
        hidden: width of each direction of each recurrent layer.
        widths: smallest, typical and largest width of a line in pixels.
        batch: largest batch.
    """

    channels: tuple[int, int, int, int, int, int, int]
    hidden: int
    widths: tuple[int, int, int]
    batch: int

    @property
    def profile(self) -> dict[str, ShapeRange]:
        """Shape range of the lines."""
        low, opt, high = self.widths
        return {INPUT.name: ShapeRange((1, 1, HEIGHT, low), (1, 1, HEIGHT, opt), (self.batch, 1, HEIGHT, high))}


FULL = Size((64, 128, 256, 256, 512, 512, 512), hidden=256, widths=(32, 128, 256), batch=16)
SMALL = Size((8, 16, 16, 16, 32, 32, 32), hidden=16, widths=(32, 64, 96), batch=4)
FORM = (
    *((3, 1, (2, 2), False), (3, 1, (2, 2), False), (3, 1, None, False), (3, 1, (2, 1), False)),
    *((3, 1, None, True), (3, 1, (2, 1), True), (2, 0, None, False)),
)
"""Kernel, padding, pooling window and whether it is normalised, of each convolution: a line ends one pixel high."""


def build(size: Size) -> "torch.nn.Module":
    """Build the reader with weights drawn with seed 0 and settled statistics.

    ``images`` float32 (batch, 1, 32, width) → ``log_probs`` float32 (batch, width // 4 - 1, 37).
    """
    import torch
    from torch import nn

    torch.manual_seed(0)

    class Reader(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            layers: list[nn.Module] = []
            before = 1
            for channels, (kernel, padding, window, normalised) in zip(size.channels, FORM, strict=True):
                layer = nn.Conv2d(before, channels, kernel, padding=padding)
                nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
                layers.append(layer)
                if normalised:
                    layers.append(nn.BatchNorm2d(channels))
                layers.append(nn.ReLU())
                if window is not None:
                    layers.append(nn.MaxPool2d(window))
                before = channels
            self.look = nn.Sequential(*layers)
            self.read = nn.LSTM(before, size.hidden, num_layers=2, bidirectional=True)
            self.name = nn.Linear(2 * size.hidden, len(SYMBOLS))
            with torch.no_grad():
                self.name.weight.mul_(10)  # as drawn, every symbol is all but equally likely at every step

        def forward(self, images: torch.Tensor) -> dict[str, torch.Tensor]:
            columns = self.look(images).squeeze(2).permute(2, 0, 1).contiguous()
            steps, _ = self.read(columns)
            return {"log_probs": self.name(steps).log_softmax(dim=2).transpose(0, 1)}

    return _pictures.settle(Reader(), lines(_lettering.RUN, size=size))


def lines(count: int, *, size: Size, skipped: int = 0) -> Sequence[Item]:
    """Return lines of text from -1 to 1, float32 (1, 1, 32, width), in runs of one width, a multiple of 16."""
    low, _, high = size.widths
    choices = range(low, high + 1, 16)
    items = []
    for number in range(skipped, skipped + count):
        # Seven shares no divisor with the number of widths, so that neighbours differ and all take part.
        width = choices[(3 + 7 * (number // _lettering.RUN)) % len(choices)]
        values = _lettering.line(number, HEIGHT, width).astype(np.float32) / 127.5 - 1
        items.append({INPUT.name: values[None, None]})
    return items


def load(folder: Path | None) -> "torch.nn.Module":
    """Build the reader; its weights are always random."""
    return build(FULL)


def load_small(folder: Path | None) -> "torch.nn.Module":
    """Build the reduced reader."""
    return build(SMALL)


def small() -> Entry:
    """Return the entry of a sixteenth of the width and lines of 32 to 96 pixels."""
    return dataclasses.replace(
        ENTRY,
        title="CRNN text reader of a sixteenth of the width",
        parameters=38_053,
        profile=SMALL.profile,
        load=load_small,
        samples=partial(lines, size=SMALL, skipped=_lettering.RUN),
        small=None,
    )


ENTRY = Entry(
    name="text-recognition",
    title="CRNN text reader, CTC output",
    licence=_pictures.NO_WEIGHTS,
    parameters=8_723_749,
    load=load,
    inputs=(INPUT,),
    outputs=(OUTPUT,),
    profile=FULL.profile,
    samples=partial(lines, size=FULL, skipped=_lettering.RUN),
    origin="lines of the zoo's words, printed by rule",
    family="vision",
    # A line's shorter side is its height.
    pipeline=Pipeline(Picture(resize=HEIGHT, crop=None, mean=(0.5,), std=(0.5,), resample="bilinear"), None),
    small=small,
    extra_files=_lettering.FILES,
)
