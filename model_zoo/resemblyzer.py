"""Resemblyzer, which tells who speaks by a vector, with its real weights and voices made by rule.

Source: https://arxiv.org/abs/1710.10467; the layers are those that the package's weights belong to.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from accel.core.values import ShapeRange, TensorSpec
from model_zoo import Entry, Item, _voices, _weights

if TYPE_CHECKING:
    import torch

MELS, FRAMES, WIDTH, LAYERS = 40, 160, 256, 3
SPEAKERS = 16
MOST = 192
LOUDNESS = 10 ** (-30 / 20)
"""What the package brings quiet sounds to: -30 dB of full scale."""


def load(file: Path | None) -> "torch.nn.Module":
    """Build the encoder with the weights of a file, or with random ones.

    ``mels`` float32 (batch, 160, 40), powers of 1.6 s → ``embedding`` float32 (batch, 256) of length 1.
    """
    import torch
    from torch import nn

    torch.manual_seed(0)

    class Encoder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lstm = nn.LSTM(MELS, WIDTH, LAYERS, batch_first=True)
            self.linear = nn.Linear(WIDTH, WIDTH)

        def forward(self, mels: torch.Tensor) -> dict[str, torch.Tensor]:
            last = self.lstm(mels)[0][:, -1]
            return {"embedding": nn.functional.normalize(torch.relu(self.linear(last)), dim=1)}

    model = Encoder()
    if file is not None:
        stored = torch.load(file, weights_only=True, map_location="cpu")["model_state"]
        model.load_state_dict({name: stored[name] for name in model.state_dict()})
    return model


def utterances(count: int, lengths: Sequence[int] = (FRAMES,)) -> Sequence[Item]:
    """Return the mel powers of random syllables, float32 (1, frames, 40), and the number of the speaker.

    Args:
        lengths: frames of 10 ms that the utterances have, by turns.
    """
    from transformers.audio_utils import mel_filter_bank

    filters = mel_filter_bank(201, MELS, 0, _voices.RATE / 2, _voices.RATE, norm="slaney", mel_scale="slaney")
    window = np.hanning(401)[:400]
    speakers = [_voices.Voice.drawn(np.random.default_rng([number, 3])) for number in range(SPEAKERS)]
    items: list[Item] = []
    for number in range(min(count, MOST)):
        rng, frames = np.random.default_rng([number, 4]), lengths[number % len(lengths)]
        said = LOUDNESS * _voices.speak(rng, speakers[number % SPEAKERS], frames / 100)
        noisy = said + rng.normal(0, 10 ** rng.uniform(-5, -3.5), len(said))
        moments = np.lib.stride_tricks.sliding_window_view(np.pad(noisy, 200), 400)[::160][:frames]
        mels = np.abs(np.fft.rfft(moments * window)) ** 2 @ filters
        items.append({"mels": mels[None].astype(np.float32), "speaker": number % SPEAKERS})  # type: ignore[dict-item]
    return items


def speaker_mrr(outputs: Sequence[Item], labels: Sequence[Any], inputs: Sequence[Item]) -> float:
    """Return the mean reciprocal rank of the next utterance of the same speaker, by cosine among all others.

    Formula: mean of 1 / rank over the utterances whose speaker has another one.
    """
    vectors = np.concatenate([output["embedding"].reshape(1, -1) for output in outputs]).astype(np.float64)
    likeness, speaker = vectors @ vectors.T, np.asarray(labels)
    same = speaker[:, None] == speaker
    np.fill_diagonal(same, False)
    others = ~np.eye(len(labels), dtype=bool)
    ranks = [
        1 / max(1, np.sum(~(row[other] < row[own].max())))  # NaN ranks first
        for row, own, other in zip(likeness, same, others & ~same, strict=True)
        if own.any()
    ]
    return float(np.mean(ranks)) if ranks else 0.0


ENTRY = Entry(
    name="resemblyzer",
    title="Resemblyzer voice encoder, real weights",
    licence="Apache-2.0",
    parameters=1_423_616,
    resolve=_weights.resolve("resemblyzer/pretrained.pt"),
    load=load,
    inputs=(TensorSpec("mels", "float32", ("batch", FRAMES, MELS)),),
    outputs=(TensorSpec("embedding", "float32", ("batch", WIDTH)),),
    profile={"mels": ShapeRange((1, FRAMES, MELS), (1, FRAMES, MELS), (16, FRAMES, MELS))},
    samples=utterances,
    origin="syllables of 16 voices, made by rule",
    gate=("speaker_mrr", 0.99),
    metric=speaker_mrr,
    labels="speaker",
    extra_files=(*_voices.FILES, *_weights.FILES),
)
