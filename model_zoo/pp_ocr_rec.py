"""PP-OCRv6 text recognition with its real weights, read against what was printed."""

from collections.abc import Sequence

import numpy as np

from accel.core.accuracy.metrics import character_accuracy
from accel.core.values import ShapeRange, TensorSpec
from model_zoo import Entry, Item, _lettering, _weights

HEIGHT = 48
MOST = 120
"""Every answer has a score for 18,710 characters at each step: a line is a megabyte or two."""
resolve = _weights.resolve("rapidocr/models/PP-OCRv6_rec_small.onnx")


def lines(count: int) -> Sequence[Item]:
    """Return printed words, dark on light or light on dark: float32 (1, 3, 48, width) from -1 to 1, with their text."""
    file = resolve()
    numbers = {c: i + 1 for i, c in enumerate(_weights.characters(file))} if file is not None else {}
    items: list[Item] = []
    for number in range(min(count, MOST)):
        width = (96, 128, 160, 192)[number // _lettering.RUN % 4]
        picture, text = _lettering.words_of_a_line(number, HEIGHT, width)
        values = np.broadcast_to(picture.astype(np.float32) / 127.5 - 1, (1, 3, HEIGHT, width))
        items.append({"x": values, "text": [numbers[c] for c in text] if numbers else []})  # type: ignore[dict-item]
    return items


ENTRY = Entry(
    name="pp-ocr-rec",
    title="PP-OCRv6 small text recognition, real weights",
    licence="Apache-2.0",
    parameters=5_267_734,
    framework="onnx",
    resolve=resolve,
    load=_weights.load_file,
    stored=True,
    inputs=(TensorSpec("x", "float32", ("batch", 3, HEIGHT, "width")),),
    outputs=(TensorSpec("fetch_name_0", "float32", ("batch", "steps", 18710)),),
    profile={"x": ShapeRange((1, 3, HEIGHT, 96), (1, 3, HEIGHT, 160), (8, 3, HEIGHT, 320), multiple=(1, 1, 1, 8))},
    samples=lines,
    origin="words of the zoo, printed by rule",
    family="vision",
    gate=("character_accuracy", 0.99),
    metric=character_accuracy,
    labels="text",
    extra_files=(*_weights.FILES, *_lettering.FILES),
)
