"""The encoder of Whisper tiny: half a minute of sound in, a vector for every 20 ms out."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from accel.core.values import ShapeRange, TensorSpec
from model_zoo import Entry, Item, _audio

if TYPE_CHECKING:
    import torch

HUB = "openai/whisper-tiny"
REVISION = "169d4a4341b33bc18d8881c4b69c2e104e1cc0af"
MELS = 80
FRAMES_PER_S = 100
CLIPS = 96
"""Clips that samples are made of at most: one is 30 s long, and its answer has 1500 vectors."""


@dataclass(frozen=True, slots=True)
class Size:
    """How large an encoder is; ``seconds`` is the length of every clip, shorter ones being padded with silence."""

    seconds: int
    width: int
    layers: int
    heads: int
    parameters: int

    @property
    def frames(self) -> int:
        """Number of mel frames of a clip; the encoder halves it."""
        return self.seconds * FRAMES_PER_S


TINY = Size(seconds=30, width=384, layers=4, heads=6, parameters=8_208_384)
SMALL = Size(seconds=2, width=64, layers=2, heads=2, parameters=134_144)


def build(size: Size) -> "torch.nn.Module":
    """Build an encoder with weights drawn with seed 0, some of them stronger, as training makes them.

    As drawn, the answer is the position's vector plus a thousandth of signal power, and comparing it measures rounding
    alone. Five times the convolutions' weights make sound a sixth of the power or more; four times the queries and keys
    and three times the values and outputs make attention choose, so that a frame's surroundings count.
    """
    import torch
    from transformers import WhisperConfig
    from transformers.models.whisper.modeling_whisper import WhisperEncoder

    torch.manual_seed(0)
    config = WhisperConfig(
        num_mel_bins=MELS,
        d_model=size.width,
        encoder_layers=size.layers,
        encoder_attention_heads=size.heads,
        encoder_ffn_dim=4 * size.width,
        max_source_positions=size.frames // 2,
    )
    model = WhisperEncoder(config)
    with torch.no_grad():
        model.conv1.weight *= 5
        model.conv2.weight *= 5
        for layer in model.layers:
            attention = layer.self_attn
            for linear, factor in (
                (attention.q_proj, 4.0),
                (attention.k_proj, 4.0),
                (attention.v_proj, 3.0),
                (attention.out_proj, 3.0),
            ):
                linear.weight *= factor
    return model.eval()


def load(folder: Path | None) -> "torch.nn.Module":
    """Build the encoder of ``folder``'s checkpoint, or with weights drawn with seed 0."""
    if folder is None:
        return build(TINY)
    from accel.exporters.from_huggingface import open_model

    return open_model(folder, "WhisperModel", random=False)[0].get_encoder()


def load_small(folder: Path | None) -> "torch.nn.Module":
    """Build the reduced encoder; there are no weights for it."""
    return build(SMALL)


def sounds(size: Size) -> Callable[[int], Sequence[Item]]:
    """Return what makes log-mel features of clips of mixed length: float32 (1, 80, frames), padded with silence."""

    def samples(count: int) -> Sequence[Item]:
        from transformers import WhisperFeatureExtractor

        extract = WhisperFeatureExtractor(feature_size=MELS, chunk_length=size.seconds)
        lengths = np.random.default_rng(0).uniform(0.3, 1.0, CLIPS) * size.seconds
        clips = (_audio.speech(seed, seconds) for seed, seconds in enumerate(lengths[:count]))
        return [
            {"input_features": extract(c, sampling_rate=_audio.RATE, return_tensors="np").input_features} for c in clips
        ]

    return samples


def entry(size: Size, load: Callable[[Path | None], "torch.nn.Module"]) -> Entry:
    """Return the entry of an encoder of this size."""
    shape = (MELS, size.frames)
    return Entry(
        name="whisper-encoder",
        title="Whisper tiny, the encoder",
        licence="Apache-2.0",
        parameters=size.parameters,
        hub=HUB,
        revision=REVISION,
        load=load,
        inputs=(TensorSpec("input_features", "float32", ("batch", *shape)),),
        outputs=(TensorSpec("last_hidden_state", "float32", ("batch", size.frames // 2, size.width)),),
        profile={"input_features": ShapeRange((1, *shape), (1, *shape), (4, *shape))},
        samples=sounds(size),
        origin="log-mel features of synthetic speech",
        family="transformer",
        small=lambda: entry(SMALL, load_small),
        extra_files=("_audio.py",),
    )


ENTRY = entry(TINY, load)
