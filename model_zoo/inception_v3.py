"""Inception-v3, a picture classifier in Keras: channels last, and many branches side by side.

Keras publishes ImageNet weights for it on a server of its own; accel downloads nothing that was not asked for by name,
so the weights here are random.
"""

import dataclasses
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from accel.core.values import TensorSpec
from model_zoo import Entry, Item, _pictures

INPUT = TensorSpec("images", "float32", ("batch", 299, 299, 3))
SMALL_INPUT = TensorSpec("images", "float32", ("batch", 75, 75, 3))
SMALL_END = "mixed3"
"""The last of the eleven blocks that the reduced model keeps: one of each of the first two kinds."""


def load(folder: Path | None) -> Any:
    """Build the Keras classifier; its weights are always random."""
    return build(INPUT, 1000)


def load_small(folder: Path | None) -> Any:
    """Build the reduced classifier."""
    return build(SMALL_INPUT, 10, end=SMALL_END)


def build(spec: TensorSpec, labels: int, *, end: str | None = None) -> Any:
    """Build ``images`` float32 (batch, height, width, 3) → ``logits`` float32 (batch, labels), seed 0, settled.

    Args:
        end: name of the block after which the classifier stands; None for the last.
    """
    from accel.exporters.tensorflow_runtime import import_tensorflow

    keras = import_tensorflow().keras
    keras.utils.set_random_seed(0)
    images = keras.Input(spec.dims[1:], name=spec.name)
    trunk = keras.applications.InceptionV3(include_top=False, weights=None, input_tensor=images)
    last = trunk.output if end is None else trunk.get_layer(end).output
    pooled = keras.layers.GlobalAveragePooling2D(name="avg_pool")(last)
    model = keras.Model(images, keras.layers.Dense(labels, name="logits")(pooled))
    return _pictures.settle_keras(model, samples(_pictures.SETTLING, spec=spec))


def samples(count: int, *, spec: TensorSpec, skipped: int = 0) -> Sequence[Item]:
    """Return pictures with values from -1 to 1, channels last."""
    return _pictures.pictures(skipped + count, spec, mean=_pictures.HALF, deviation=_pictures.HALF)[skipped:]


def small() -> Entry:
    """Return the entry with the first four blocks, 75 x 75 pixels (Keras takes no fewer) and 10 classes."""
    return dataclasses.replace(
        ENTRY,
        title="Inception of four blocks",
        parameters=2_154_666,
        inputs=(SMALL_INPUT,),
        outputs=(TensorSpec("logits", "float32", ("batch", 10)),),
        profile=_pictures.profile(SMALL_INPUT, 4),
        load=load_small,
        samples=partial(samples, spec=SMALL_INPUT, skipped=_pictures.SETTLING),
        small=None,
    )


ENTRY = Entry(
    name="inception-v3",
    title="Inception-v3 picture classifier, Keras",
    licence=_pictures.NO_WEIGHTS,
    parameters=23_851_784,
    framework="tensorflow",
    load=load,
    inputs=(INPUT,),
    outputs=(TensorSpec("logits", "float32", ("batch", 1000)),),
    profile=_pictures.profile(INPUT, 16),
    samples=partial(samples, spec=INPUT, skipped=_pictures.SETTLING),
    origin="dead-leaves pictures with natural statistics, scaled to -1…1",
    family="vision",
    small=small,
    extra_files=("_pictures.py",),
)
