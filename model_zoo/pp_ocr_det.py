"""PP-OCRv6 text detection with its real weights: the boxes that it finds against those of the printed words."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from accel.core.values import ShapeRange, TensorSpec
from model_zoo import Entry, Item, _lettering, _weights

MEAN, STD = np.array([0.485, 0.456, 0.406], np.float32), np.array([0.229, 0.224, 0.225], np.float32)
LIKELY = 0.3
GROWN = 0.4
"""What is found is the core of a text: it grows by this share of its area over its perimeter on each side. PaddleOCR
takes 1.6 for loose boxes; this is nearer to the printed ink.

Source: PaddleOCR, ``DBPostProcess`` (``thresh``, ``unclip_ratio``); https://arxiv.org/abs/1911.08947, section 3.4."""
resolve = _weights.resolve("rapidocr/models/PP-OCRv6_det_small.onnx")


def pages(count: int) -> Sequence[Item]:
    """Return pictures with a few printed words, float32 (1, 3, height, width), and the box of each word."""
    items: list[Item] = []
    for number in range(count):
        height, width = ((160, 160), (160, 224), (224, 160), (192, 192))[number // _lettering.RUN % 4]
        picture, boxes = _lettering.page(number, height, width)
        values = ((picture.astype(np.float32) / 255 - MEAN) / STD).transpose(2, 0, 1)[None]
        items.append({"x": np.ascontiguousarray(values), "boxes": boxes})  # type: ignore[dict-item]
    return items


def found_boxes(likely: np.ndarray) -> np.ndarray:
    """Return [left, top, right, bottom] of what is likely text in a map (height, width): float64 (boxes, 4)."""
    from scipy import ndimage

    parts, _ = ndimage.label(likely > LIKELY)
    boxes = []
    for rows, columns in ndimage.find_objects(parts):
        high, wide = rows.stop - rows.start, columns.stop - columns.start
        if min(high, wide) >= 3:
            more = GROWN * high * wide / (2 * (high + wide))
            boxes.append([columns.start - more, rows.start - more, columns.stop + more, rows.stop + more])
    return np.array(boxes, np.float64).reshape(-1, 4)


def overlap(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Return the area that two sets of boxes share over the area that they cover together: (ones, others)."""
    low, high = np.maximum(one[:, None, :2], other[None, :, :2]), np.minimum(one[:, None, 2:], other[None, :, 2:])
    both = np.prod(np.clip(high - low, 0, None), axis=2)
    areas = [np.prod(boxes[:, 2:] - boxes[:, :2], axis=1) for boxes in (one, other)]
    return both / (areas[0][:, None] + areas[1][None] - both)


def box_iou(outputs: Sequence[Item], labels: Sequence[Any], inputs: Sequence[Item]) -> float:
    """Return the mean overlap of each printed and each found box with the best of the other side; 0 without one."""
    best: list[float] = []
    for output, label in zip(outputs, labels, strict=True):
        [likely] = output.values()
        found, right = found_boxes(likely[0]), np.array(label, np.float64).reshape(-1, 4)
        shared = overlap(found, right)
        for axis in (0, 1):
            best += shared.max(axis=axis, initial=0.0).tolist()
    return float(np.mean(best)) if best else 0.0


ENTRY = Entry(
    name="pp-ocr-det",
    title="PP-OCRv6 small text detection, real weights",
    licence="Apache-2.0",
    parameters=2_453_416,
    framework="onnx",
    resolve=resolve,
    load=_weights.load_file,
    stored=True,
    inputs=(TensorSpec("x", "float32", ("batch", 3, "height", "width")),),
    outputs=(TensorSpec("fetch_name_0", "float32", ("batch", 1, "height", "width")),),
    profile={"x": ShapeRange((1, 3, 96, 96), (1, 3, 160, 160), (4, 3, 320, 320), multiple=(1, 1, 32, 32))},
    samples=pages,
    origin="words of the zoo, printed by rule on pages",
    family="vision",
    gate=("box_iou", 0.99),
    metric=box_iou,
    labels="boxes",
    extra_files=(*_weights.FILES, *_lettering.FILES),
)
