"""MobileNetV2, a picture classifier of depthwise convolutions: little arithmetic, much memory traffic."""

import dataclasses
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from accel.core.processing import Labels, Picture, Pipeline
from accel.core.values import TensorSpec
from model_zoo import Entry, _pictures

if TYPE_CHECKING:
    import torch

HUB = "google/mobilenet_v2_1.0_224"
LABELS = 1001
"""ImageNet's thousand classes, and one before them for what is none of them."""
INPUT = TensorSpec("pixel_values", "float32", ("batch", 3, 224, 224))
SMALL_INPUT = TensorSpec("pixel_values", "float32", ("batch", 3, 96, 96))
"""At 64 x 64 the INT8 build of this width ends OpenVINO 2026.4.1's process (SIGSEGV) as soon as the batch changes."""


def load(folder: Path | None, *, spec: TensorSpec = INPUT, labels: int = LABELS, **sizes: Any) -> "torch.nn.Module":
    """Build the classifier from ``folder``, or with weights drawn with seed 0 and settled statistics.

    transformers draws weights with a deviation of 0.02 whatever a layer's width, which the statistics undo.

    Args:
        spec / labels / sizes: the input, the number of classes and transformers' settings of a model without folder.
    """
    import torch
    from transformers import MobileNetV2Config, MobileNetV2ForImageClassification

    if folder is not None:
        from accel.exporters.from_huggingface import open_model

        return open_model(folder, "MobileNetV2ForImageClassification", random=False)[0]
    torch.manual_seed(0)
    model = MobileNetV2ForImageClassification(MobileNetV2Config(num_labels=labels, **sizes))
    ends = [b.reduce_1x1.normalization for b in model.modules() if getattr(b, "use_residual", False)]
    return _pictures.settle(model, _samples(_pictures.SETTLING, spec=spec), ends=ends)


def _samples(count: int, *, spec: TensorSpec, skipped: int = 0) -> Any:
    """Return pictures with values from -1 to 1."""
    return _pictures.pictures(skipped + count, spec, mean=_pictures.HALF, deviation=_pictures.HALF)[skipped:]


def small() -> Entry:
    """Return the entry of about a third of the width, 96 x 96 pixels and 10 classes."""
    return dataclasses.replace(
        ENTRY,
        title="MobileNetV2 of width 0.35",
        parameters=305_770,
        inputs=(SMALL_INPUT,),
        outputs=(TensorSpec("logits", "float32", ("batch", 10)),),
        profile=_pictures.profile(SMALL_INPUT, 4),
        load=lambda folder: load(folder, spec=SMALL_INPUT, labels=10, depth_multiplier=0.35, finegrained_output=False),
        samples=partial(_samples, spec=SMALL_INPUT, skipped=_pictures.SETTLING),
        pipeline=Pipeline(_picture(108, 96), Labels(top_k=5)),
        small=None,
    )


def _picture(resize: int, crop: int) -> Picture:
    half = (0.5, 0.5, 0.5)
    return Picture(resize=resize, crop=(crop, crop), mean=half, std=half, resample="bilinear")


ENTRY = Entry(
    name="mobilenet-v2",
    title="MobileNetV2 1.0 picture classifier",
    licence="Apache-2.0",
    parameters=3_506_153,
    hub=HUB,
    load=load,
    inputs=(INPUT,),
    outputs=(TensorSpec("logits", "float32", ("batch", LABELS)),),
    profile=_pictures.profile(INPUT, 16),
    samples=partial(_samples, spec=INPUT, skipped=_pictures.SETTLING),
    origin="dead-leaves pictures with natural statistics, scaled to -1…1",
    family="vision",
    # As MobileNetV2ImageProcessor does by default; beside pretrained weights their own file decides.
    pipeline=Pipeline(_picture(256, 224), Labels(top_k=5)),
    small=small,
    extra_files=("_pictures.py",),
)
