"""Utterances of several lengths, and the encoder of voices for them with its real weights: a source for ``convert``.

    accel convert benchmarks/utterances.py:build --targets openvino-fp32 --objective traffic -o runs/voices \\
        --min-shape mels:1x80x40 --shape mels:1x160x40 --max-shape mels:16x320x40

The zoo's entry has one length, that of the windows in which its package cuts what it hears. The network reads any.
"""

from typing import TYPE_CHECKING, Any

from model_zoo import resemblyzer

if TYPE_CHECKING:
    import torch

FRAMES = (80, 120, 160, 240, 320)
"""0.8 to 3.2 seconds."""


def build() -> "tuple[torch.nn.Module, list[dict[str, Any]]]":
    """Return the encoder, ``mels`` float32 (batch, frames, 40) → ``embedding`` float32 (batch, 256), and samples.

    Raises:
        SystemExit: the weights are not here.
    """
    if (weights := resemblyzer.ENTRY.resolve()) is None:
        raise SystemExit("the weights are not here: accel env install weights")
    said = resemblyzer.utterances(resemblyzer.MOST, FRAMES)
    return resemblyzer.load(weights), [{"mels": item["mels"]} for item in said]
