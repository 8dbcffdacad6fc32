"""ViT-B/16, a picture classifier that is a transformer over patches."""

import dataclasses
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from accel.core.processing import Labels, Picture, Pipeline
from accel.core.values import TensorSpec
from model_zoo import Entry, _pictures

if TYPE_CHECKING:
    import torch

HUB = "google/vit-base-patch16-224"
INPUT = TensorSpec("pixel_values", "float32", ("batch", 3, 224, 224))
SMALL_INPUT = TensorSpec("pixel_values", "float32", ("batch", 3, 64, 64))
SMALL = {
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 128,
    "image_size": 64,
}


def load(folder: Path | None, *, labels: int = 1000, **sizes: Any) -> "torch.nn.Module":
    """Build the classifier from ``folder``, or with weights drawn with seed 0.

    Args:
        labels / sizes: the number of classes and transformers' settings of a model without folder.
    """
    import torch
    from transformers import ViTConfig, ViTForImageClassification

    if folder is not None:
        from accel.exporters.from_huggingface import open_model

        return open_model(folder, "ViTForImageClassification", random=False)[0]
    torch.manual_seed(0)
    return ViTForImageClassification(ViTConfig(num_labels=labels, **sizes)).eval()


def small() -> Entry:
    """Return the entry with two layers of width 64, 64 x 64 pixels and 10 classes."""
    return dataclasses.replace(
        ENTRY,
        title="ViT of two layers",
        parameters=118_090,
        inputs=(SMALL_INPUT,),
        outputs=(TensorSpec("logits", "float32", ("batch", 10)),),
        profile=_pictures.profile(SMALL_INPUT, 4),
        load=lambda folder: load(folder, labels=10, **SMALL),
        samples=partial(_samples, spec=SMALL_INPUT),
        pipeline=Pipeline(_picture(64), Labels(top_k=5)),
        small=None,
    )


def _samples(count: int, *, spec: TensorSpec) -> Any:
    """Return pictures with values from -1 to 1."""
    return _pictures.pictures(count, spec, mean=_pictures.HALF, deviation=_pictures.HALF)


def _picture(side: int) -> Picture:
    half = (0.5, 0.5, 0.5)
    return Picture(resize=(side, side), crop=None, mean=half, std=half, resample="bilinear")


ENTRY = Entry(
    name="vit",
    title="ViT-B/16 picture classifier",
    licence="Apache-2.0",
    parameters=86_567_656,
    hub=HUB,
    load=load,
    inputs=(INPUT,),
    outputs=(TensorSpec("logits", "float32", ("batch", 1000)),),
    profile=_pictures.profile(INPUT, 16),
    samples=partial(_samples, spec=INPUT),
    origin="dead-leaves pictures with natural statistics, scaled to -1…1",
    family="transformer",
    # As ViTImageProcessor does by default; beside pretrained weights their own file decides.
    pipeline=Pipeline(_picture(224), Labels(top_k=5)),
    small=small,
    extra_files=("_pictures.py",),
)
