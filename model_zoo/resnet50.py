"""ResNet-50, the v1.5 picture classifier."""

import dataclasses
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from accel.core.processing import Labels, Pipeline
from accel.core.values import TensorSpec
from model_zoo import Entry, _pictures

if TYPE_CHECKING:
    import torch

HUB = "microsoft/resnet-50"
INPUT = TensorSpec("pixel_values", "float32", ("batch", 3, 224, 224))
SMALL_INPUT = TensorSpec("pixel_values", "float32", ("batch", 3, 64, 64))
SMALL = {"embedding_size": 32, "hidden_sizes": [64, 128], "depths": [2, 2]}
"""Two of the four stages, two blocks each, at a quarter of the width."""


def load(folder: Path | None, *, spec: TensorSpec = INPUT, labels: int = 1000, **sizes: Any) -> "torch.nn.Module":
    """Build the classifier from ``folder``, or with weights drawn with seed 0 and settled statistics.

    Args:
        spec / labels / sizes: the input, the number of classes and transformers' settings of a model without folder.
    """
    import torch
    from transformers import ResNetConfig, ResNetForImageClassification

    if folder is not None:
        from accel.exporters.from_huggingface import open_model

        return open_model(folder, "ResNetForImageClassification", random=False)[0]
    torch.manual_seed(0)
    model = ResNetForImageClassification(ResNetConfig(num_labels=labels, **sizes))
    blocks = [b.layer for b in model.modules() if hasattr(b, "shortcut")]
    ends = [block[-1].normalization for block in blocks]
    return _pictures.settle(model, _pictures.pictures(_pictures.SETTLING, spec), ends=ends)


def small() -> Entry:
    """Return the entry with two stages, 64 x 64 pixels and 10 classes."""
    return dataclasses.replace(
        ENTRY,
        title="ResNet of two stages",
        parameters=58_794,
        inputs=(SMALL_INPUT,),
        outputs=(TensorSpec("logits", "float32", ("batch", 10)),),
        profile=_pictures.profile(SMALL_INPUT, 4),
        load=lambda folder: load(folder, spec=SMALL_INPUT, labels=10, **SMALL),
        samples=partial(_pictures.unsettled, SMALL_INPUT),
        pipeline=Pipeline(_pictures.imagenet(72, 64), Labels(top_k=5)),
    )


ENTRY = Entry(
    name="resnet50",
    title="ResNet-50 v1.5 picture classifier",
    licence="Apache-2.0",
    parameters=25_557_032,
    hub=HUB,
    load=load,
    inputs=(INPUT,),
    outputs=(TensorSpec("logits", "float32", ("batch", 1000)),),
    profile=_pictures.profile(INPUT, 16),
    samples=partial(_pictures.unsettled, INPUT),
    origin=_pictures.ORIGIN,
    family="vision",
    # A ConvNeXT processor with size 224 and crop_pct 0.875; beside pretrained weights their own file decides.
    pipeline=Pipeline(_pictures.imagenet(256, 224), Labels(top_k=5)),
    small=small,
    extra_files=("_pictures.py",),
)
