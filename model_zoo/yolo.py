"""A one-stage object detector of the YOLO kind, with non-maximum suppression inside.

Source: Z. Ge, S. Liu, F. Wang, Z. Li, J. Sun, "YOLOX: Exceeding YOLO Series in 2021", arXiv:2107.08430: CSPDarknet with
a path-aggregation neck, and one decoupled, anchor-free head a scale, at the size "tiny". The ONNX form holds the
operator ``NonMaxSuppression``; where torch itself runs, which has no such operator, the same rule is made of others.
"""

import dataclasses
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from accel.core.processing import Picture, Pipeline
from accel.core.values import Detections, TensorSpec
from model_zoo import Entry, Item, _pictures

if TYPE_CHECKING:
    import torch

STRIDES = (8, 16, 32)
SCORE, OVERLAP = 0.25, 0.45
"""Rows below this score are dropped, and of two of one class that overlap by more, the one with the lower score."""
SETTLING = 32
"""Pictures that set the statistics of random weights: in so deep a chain of layers a few would not stand for others."""
CHAIN = 16
"""A suppressed box suppresses nothing; so many times a box may be spared by that before torch's form differs."""


@dataclasses.dataclass(frozen=True, slots=True)
class Size:
    """How large a detector is.

    Attributes:
        side: height and width of a picture.
        width: channels after the stem.
        depth: bottlenecks of the shallow stages; the deep ones have three times as many.
        classes: number of classes.
        candidates: boxes of the best scores that suppression looks at.
        rows: rows of an answer.
        prior: mean of the objectness logits of random weights.
    """

    side: int
    width: int
    depth: int
    classes: int
    candidates: int
    rows: int
    prior: float

    @property
    def input(self) -> TensorSpec:
        """The picture, RGB from 0 to 1."""
        return TensorSpec("images", "float32", ("batch", 3, self.side, self.side))

    @property
    def outputs(self) -> tuple[TensorSpec, ...]:
        """Rows in the order of their scores, zeros after the last; boxes in pixels of the input, also outside."""
        return (
            TensorSpec("boxes", "float32", ("batch", self.rows, 4)),
            TensorSpec("scores", "float32", ("batch", self.rows)),
            TensorSpec("classes", "int64", ("batch", self.rows)),
            TensorSpec("count", "int64", ("batch",)),
        )


FULL = Size(side=416, width=24, depth=1, classes=80, candidates=300, rows=100, prior=-4.0)
SMALL = Size(side=64, width=16, depth=1, classes=4, candidates=50, rows=20, prior=-1.5)


def build(size: Size) -> "torch.nn.Module":
    """Build the detector with weights drawn with seed 0 and settled statistics.

    ``images`` float32 (batch, 3, side, side) → ``boxes`` float32 (batch, rows, 4) as x0, y0, x1, y1, ``scores`` float32
    (batch, rows), ``classes`` int64 (batch, rows), ``count`` int64 (batch,).
    """
    import torch
    from torch import nn

    torch.manual_seed(0)

    def conv(channels: int, out: int, kernel: int, stride: int = 1) -> nn.Sequential:
        layer = nn.Conv2d(channels, out, kernel, stride, padding=(kernel - 1) // 2, bias=False)
        return nn.Sequential(layer, nn.BatchNorm2d(out, eps=1e-3), nn.SiLU())

    class Bottleneck(nn.Module):
        def __init__(self, channels: int, shortcut: bool) -> None:
            super().__init__()
            self.layers = nn.Sequential(conv(channels, channels, 1), conv(channels, channels, 3))
            self.shortcut = shortcut

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + self.layers(x) if self.shortcut else self.layers(x)

    class CrossStage(nn.Module):
        def __init__(self, channels: int, out: int, depth: int, shortcut: bool) -> None:
            super().__init__()
            half = out // 2
            self.through = nn.Sequential(conv(channels, half, 1), *(Bottleneck(half, shortcut) for _ in range(depth)))
            self.past = conv(channels, half, 1)
            self.joined = conv(out, out, 1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.joined(torch.cat([self.through(x), self.past(x)], dim=1))

    class Pyramid(nn.Module):
        def __init__(self, channels: int) -> None:
            super().__init__()
            self.before = conv(channels, channels // 2, 1)
            self.pools = nn.ModuleList(nn.MaxPool2d(k, stride=1, padding=k // 2) for k in (5, 9, 13))
            self.after = conv(2 * channels, channels, 1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = self.before(x)
            return self.after(torch.cat([x, *(pool(x) for pool in self.pools)], dim=1))

    class Head(nn.Module):
        def __init__(self, channels: int, inner: int) -> None:
            super().__init__()
            self.stem = conv(channels, inner, 1)
            self.about_class = nn.Sequential(conv(inner, inner, 3), conv(inner, inner, 3))
            self.about_box = nn.Sequential(conv(inner, inner, 3), conv(inner, inner, 3))
            self.classes = nn.Conv2d(inner, size.classes, 1)
            self.box = nn.Conv2d(inner, 4, 1)
            self.objectness = nn.Conv2d(inner, 1, 1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = self.stem(x)
            box = self.about_box(x)
            return torch.cat([self.box(box), self.objectness(box), self.classes(self.about_class(x))], dim=1)

    class Detector(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            w, d = size.width, size.depth
            self.stem = conv(3, w, 6, 2)  # what the paper does by slicing the picture before a kernel of 3
            self.stage8 = nn.Sequential(
                conv(w, 2 * w, 3, 2),
                CrossStage(2 * w, 2 * w, d, True),
                conv(2 * w, 4 * w, 3, 2),
                CrossStage(4 * w, 4 * w, 3 * d, True),
            )
            self.stage16 = nn.Sequential(conv(4 * w, 8 * w, 3, 2), CrossStage(8 * w, 8 * w, 3 * d, True))
            self.stage32 = nn.Sequential(
                conv(8 * w, 16 * w, 3, 2), Pyramid(16 * w), CrossStage(16 * w, 16 * w, d, False)
            )
            self.narrow32 = conv(16 * w, 8 * w, 1)
            self.down16 = CrossStage(16 * w, 8 * w, d, False)
            self.narrow16 = conv(8 * w, 4 * w, 1)
            self.down8 = CrossStage(8 * w, 4 * w, d, False)
            self.shrink8 = conv(4 * w, 4 * w, 3, 2)
            self.up16 = CrossStage(8 * w, 8 * w, d, False)
            self.shrink16 = conv(8 * w, 8 * w, 3, 2)
            self.up32 = CrossStage(16 * w, 16 * w, d, False)
            self.heads = nn.ModuleList(Head(c * w, 4 * w) for c in (4, 8, 16))

        def forward(self, images: torch.Tensor) -> dict[str, torch.Tensor]:
            grow = partial(nn.functional.interpolate, scale_factor=2.0, mode="nearest")
            c8 = self.stage8(self.stem(images))
            c16 = self.stage16(c8)
            p32 = self.narrow32(self.stage32(c16))
            p16 = self.narrow16(self.down16(torch.cat([grow(p32), c16], dim=1)))
            n8 = self.down8(torch.cat([grow(p16), c8], dim=1))
            n16 = self.up16(torch.cat([self.shrink8(n8), p16], dim=1))
            n32 = self.up32(torch.cat([self.shrink16(n16), p32], dim=1))
            # Places in a picture need more bits than bfloat16 has, whatever the layers compute in.
            maps = [head(n).float() for head, n in zip(self.heads, (n8, n16, n32), strict=True)]
            places = torch.cat([places_of(m, s) for m, s in zip(maps, STRIDES, strict=True)], dim=1)
            likely, classes = torch.cat([rows_of(m[:, 5:].sigmoid()) for m in maps], dim=1).max(dim=2)
            objects = torch.cat([rows_of(m[:, 4:5].sigmoid()) for m in maps], dim=1).squeeze(2)
            scores, order = (objects * likely).topk(size.candidates, dim=1)
            boxes, classes = places.gather(1, order[:, :, None].expand(-1, -1, 4)), classes.gather(1, order)
            scores, order = torch.where(survive(boxes, scores, classes), scores, 0.0).topk(size.rows, dim=1)
            found = scores > 0
            boxes = boxes.gather(1, order[:, :, None].expand(-1, -1, 4))
            return {
                "boxes": torch.where(found[:, :, None], boxes, 0.0),
                "scores": scores,
                "classes": torch.where(found, classes.gather(1, order), 0),
                "count": found.sum(dim=1),
            }

    def rows_of(values: torch.Tensor) -> torch.Tensor:
        """Turn (batch, channels, height, width) into (batch, places, channels)."""
        return values.flatten(2).transpose(1, 2)

    def places_of(values: torch.Tensor, stride: int) -> torch.Tensor:
        """Return the corners that a scale predicts, in pixels: (batch, places, 4)."""
        cells = size.side // stride
        y, x = torch.meshgrid(torch.arange(cells), torch.arange(cells), indexing="ij")
        middle = (values[:, :2] + torch.stack([x, y]).float()[None]) * stride
        half = values[:, 2:4].exp() * (stride / 2)
        return rows_of(torch.cat([middle - half, middle + half], dim=1))

    def survive(boxes: torch.Tensor, scores: torch.Tensor, classes: torch.Tensor) -> torch.Tensor:
        """Say which candidates are left, bool (batch, candidates), by ONNX's rule of NonMaxSuppression."""
        if torch.onnx.is_in_onnx_export():
            by_class = classes[:, None] == torch.arange(size.classes)[None, :, None]
            return suppressed_by_onnx(boxes, torch.where(by_class, scores[:, None], 0.0)).sum(dim=1) > 0
        low = torch.maximum(boxes[:, :, None, :2], boxes[:, None, :, :2])
        high = torch.minimum(boxes[:, :, None, 2:], boxes[:, None, :, 2:])
        shared = (high - low).clamp(min=0).prod(dim=3)
        area = (boxes[:, :, 2:] - boxes[:, :, :2]).prod(dim=2)
        union = area[:, :, None] + area[:, None] - shared
        place = torch.arange(size.candidates)
        rival = (shared > OVERLAP * union) & (classes[:, :, None] == classes[:, None]) & (place[:, None] < place)
        above = scores > SCORE
        left = above
        for _ in range(CHAIN):
            left = above & ~(rival & left[:, :, None]).any(dim=1)
        return left

    def suppressed_by_onnx(boxes: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """Return the scores (batch, classes, candidates) with 0 at what is suppressed, through ONNX operators.

        How many triples of item, class and box are selected is known only at run time; the size given is the largest.
        """
        limits = torch.tensor([size.candidates]), torch.tensor([OVERLAP]), torch.tensor([SCORE])
        most = boxes.shape[0] * size.candidates
        operator = partial(torch.onnx.ops.symbolic, version=18)
        chosen = operator("NonMaxSuppression", (boxes, scores, *limits), dtype=torch.int64, shape=(most, 3))
        values = operator("GatherND", (scores, chosen), dtype=torch.float32, shape=(most,))
        nothing = torch.zeros_like(scores)
        return operator("ScatterND", (nothing, chosen, values), dtype=torch.float32, shape=scores.shape)

    model = Detector()
    items = samples(SETTLING, size=size)
    _pictures.settle(model, items, ends=[b.layers[1][1] for b in model.modules() if getattr(b, "shortcut", False)])
    wanted = [
        wish
        for head in model.heads
        for wish in (
            (head.box, [0.5, 0.5, 1.0, 1.0], 0.2),
            (head.objectness, [size.prior], 1.5),
            (head.classes, [-1.0] * size.classes, 1.5),
        )
    ]
    _pictures.spread(model, items, wanted)
    return model


def samples(count: int, *, size: Size, skipped: int = 0) -> Sequence[Item]:
    """Return pictures with values from 0 to 1, all under one light: what differs is what lies where."""
    plain = {"mean": np.zeros(3, np.float32), "deviation": np.ones(3, np.float32)}
    return _pictures.pictures(skipped + count, size.input, draw=_pictures.dead_leaves, **plain)[skipped:]


def load(folder: Path | None) -> "torch.nn.Module":
    """Build the detector; its weights are always random."""
    return build(FULL)


def load_small(folder: Path | None) -> "torch.nn.Module":
    """Build the reduced detector."""
    return build(SMALL)


def small() -> Entry:
    """Return the entry of two thirds of the width, 64 x 64 pixels and 4 classes."""
    return dataclasses.replace(
        ENTRY,
        title="YOLO detector of two thirds of the width",
        parameters=2_242_235,
        inputs=(SMALL.input,),
        outputs=SMALL.outputs,
        profile=_pictures.profile(SMALL.input, 4),
        load=load_small,
        samples=partial(samples, size=SMALL, skipped=SETTLING),
        pipeline=_pipeline(SMALL),
        small=None,
    )


def _pipeline(size: Size) -> Pipeline:
    return Pipeline(Picture(resize=(size.side, size.side), crop=None, mean=(), std=(), resample="bilinear"), None)


ENTRY = Entry(
    name="yolo",
    title="YOLO detector (YOLOX-tiny) with NonMaxSuppression",
    licence=_pictures.NO_WEIGHTS,
    parameters=5_055_855,
    load=load,
    inputs=(FULL.input,),
    outputs=FULL.outputs,
    profile=_pictures.profile(FULL.input, 16),
    samples=partial(samples, size=FULL, skipped=SETTLING),
    origin="dead-leaves pictures with natural statistics, from 0 to 1",
    family="vision",
    detections=Detections(),
    pipeline=_pipeline(FULL),
    small=small,
    extra_files=("_pictures.py",),
)
