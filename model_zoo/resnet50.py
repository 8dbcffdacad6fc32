"""ResNet-50, the v1.5 picture classifier."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from accel.artifacts import ShapeRange, TensorSpec
from accel.exporters.hub import huggingface_folder
from accel.processing import Labels, Picture, Pipeline
from model_zoo import Entry, Item, _pictures

if TYPE_CHECKING:
    import torch

HUB = "microsoft/resnet-50"
INPUT = TensorSpec("pixel_values", "float32", ("batch", 3, 224, 224))
SETTLING = 8
"""Pictures that set the normalisation statistics of random weights."""


def find() -> Path | None:
    """Return the folder of the pretrained weights in the local Hugging Face cache, or None."""
    return huggingface_folder(HUB)


def load(folder: Path | None) -> torch.nn.Module:
    """Build the classifier from ``folder``, or with weights drawn with seed 0.

    Random weights keep BatchNorm at mean 0 and variance 1, which lets activations grow from block to block until
    nothing of the picture is left. So the statistics are measured on a few pictures, as training would leave them.
    """
    import torch
    from transformers import ResNetConfig, ResNetForImageClassification

    if folder is not None:
        from accel.exporters.from_huggingface import open_model

        return open_model(folder, "ResNetForImageClassification", random=False)[0]
    torch.manual_seed(0)
    model = ResNetForImageClassification(ResNetConfig(num_labels=1000))
    norms = [m for m in model.modules() if isinstance(m, torch.nn.BatchNorm2d)]
    for norm in norms:
        # No momentum means a plain average over the pictures seen.
        norm.reset_running_stats()
        norm.momentum = None
    batch = torch.cat([torch.from_numpy(item[INPUT.name]) for item in settling()])
    with torch.inference_mode():
        model.train()(pixel_values=batch)
    for norm in norms:
        norm.momentum = 0.1
    return model.eval()


def settling() -> Sequence[Item]:
    """Return the pictures that settle BatchNorm: the first of the zoo's."""
    return _pictures.pictures(SETTLING, INPUT)


def samples(count: int) -> Sequence[Item]:
    """Return ``count`` pictures, none of them used for settling."""
    return _pictures.pictures(SETTLING + count, INPUT)[SETTLING:]


ENTRY = Entry(
    name="resnet50",
    title="ResNet-50 v1.5 picture classifier",
    licence="Apache-2.0",
    parameters=25_557_032,
    hub=HUB,
    find=find,
    load=load,
    inputs=(INPUT,),
    outputs=(TensorSpec("logits", "float32", ("batch", 1000)),),
    profile={INPUT.name: ShapeRange((1, 3, 224, 224), (1, 3, 224, 224), (16, 3, 224, 224))},
    samples=samples,
    origin="dead-leaves pictures with natural statistics, normalised as ImageNet",
    family="vision",
    # A ConvNeXT processor with size 224 and crop_pct 0.875; beside pretrained weights their own file decides.
    pipeline=Pipeline(
        Picture(resize=256, crop=(224, 224), mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225)), Labels(top_k=5)
    ),
    extra_files=("_pictures.py",),
)
