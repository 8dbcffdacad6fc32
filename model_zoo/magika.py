"""Magika, which tells the type of a file from its ends, with its real weights and files of many types made by rule."""

import json
from collections.abc import Callable, Sequence

import numpy as np

from accel.core.accuracy.metrics import accuracy
from accel.core.values import ShapeRange, TensorSpec
from model_zoo import Entry, Item, _files, _weights

SIDE, PADDING, READ = 1024, 256, 4096
resolve = _weights.resolve("magika/models/standard_v3_3/model.onnx")


def ends(content: bytes) -> np.ndarray:
    """Return the beginning and the end of a file as the model takes them: int32 (2048,).

    Each is cut from 4,096 bytes without their white space; what a short file lacks is 256, behind the beginning and
    before the end.
    Source: magika, ``config.min.json`` beside the model, and its ``Magika._extract_features_from_seekable``.
    """
    first, last = content[:READ].lstrip()[:SIDE], content[-READ:].rstrip()[-SIDE:]
    values = np.full(2 * SIDE, PADDING, np.int32)
    values[: len(first)] = np.frombuffer(first, np.uint8)
    values[2 * SIDE - len(last) :] = np.frombuffer(last, np.uint8)
    return values


def files(count: int) -> Sequence[Item]:
    """Return the ends of distinct files, of one type after the other: int32 (1, 2048), with the number of the type."""
    file = resolve()
    told = json.loads(file.with_name("config.min.json").read_text())["target_labels_space"] if file is not None else []
    makers: list[tuple[str, Callable[[int], bytes]]] = sorted(_files.MAKERS.items())
    items: list[Item] = []
    for number in range(count):
        kind, make = makers[number % len(makers)]
        label = told.index(kind) if told else -1
        items.append({"bytes": ends(make(number))[None], "kind": label})  # type: ignore[dict-item]
    return items


ENTRY = Entry(
    name="magika",
    title="Magika file types, real weights",
    licence="Apache-2.0",
    parameters=784_519,
    framework="onnx",
    resolve=resolve,
    load=_weights.load_file,
    stored=True,
    inputs=(TensorSpec("bytes", "int32", ("batch", 2 * SIDE), (0, PADDING)),),
    outputs=(TensorSpec("target_label", "float32", ("batch", 214)),),
    profile={"bytes": ShapeRange((1, 2 * SIDE), (1, 2 * SIDE), (32, 2 * SIDE))},
    samples=files,
    origin="files of many types, made by rule",
    gate=("accuracy", 0.99),
    metric=accuracy,
    labels="kind",
    extra_files=(*_weights.FILES, "_files.py", "sentences.txt"),
)
