"""Silero VAD, which tells moment by moment whether somebody speaks, with its real weights: a stateful model.

Source: silero-vad 6.2.3, ``utils_vad.py``: 512 new samples a step, behind the last 64 of the step before.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from accel.core.values import ShapeRange, TensorSpec
from model_zoo import Entry, Item, _voices, _weights

STEP, BEFORE = 512, 64
TAKEN = BEFORE + STEP
LIKELY = 0.5


def talk(count: int) -> Sequence[Item]:
    """Return one stream: steps float32 (1, 576) of somebody who speaks and pauses, with and without noise.

    The label of a step says whether more than half of its new samples lie in speech.
    """
    rng = np.random.default_rng(23)
    sound = rng.normal(0, 10**-3.5, (count + 1) * STEP)
    spoken = np.zeros(len(sound), bool)
    at = _voices.RATE // 2
    while at < len(sound):
        pitch, tract = 95 * 2 ** rng.uniform(0, 0.75), rng.uniform(0.92, 1.08)
        voice = _voices.Voice(pitch, tract, rng.uniform(1.3, 1.6), 10 ** rng.uniform(-3, -2.5))
        said = rng.uniform(0.03, 0.1) * _voices.speak(rng, voice, rng.uniform(1, 2.5))
        room = sound[at : at + len(said)]
        room += said[: len(room)]
        spoken[at : at + len(said)] = True
        at += len(said)
        pause = rng.normal(0, 10 ** rng.uniform(-3.5, -1.8), int(rng.uniform(0.6, 1.4) * _voices.RATE))
        room = sound[at : at + len(pause)]
        room += pause[: len(room)]
        at += len(pause)
    sound = np.clip(sound, -1, 1).astype(np.float32)
    items: list[Item] = []
    for begin in range(STEP, STEP * (count + 1), STEP):
        new = sound[begin - BEFORE : begin + STEP][None]
        label = int(spoken[begin : begin + STEP].mean() > 0.5)
        items.append({"input": new, "sr": np.array([_voices.RATE]), "speech": label})  # type: ignore[dict-item]
    return items


def speech_f1(outputs: Sequence[Item], labels: Sequence[Any], inputs: Sequence[Item]) -> float:
    """Return the F-measure of moments with speech.

    Formula: 2 * found / (told + heard).
    """
    heard = np.array([output["output"].item() > LIKELY for output in outputs])
    told = np.asarray(labels, bool)
    return float(2 * (heard & told).sum() / max(1, heard.sum() + told.sum()))


ENTRY = Entry(
    name="silero-vad",
    title="Silero voice activity at 16 kHz, stateful, real weights",
    licence="MIT",
    parameters=309_633,
    framework="onnx",
    resolve=_weights.resolve("silero_vad/data/silero_vad.onnx"),
    load=_weights.load_file,
    stored=True,
    inputs=(
        TensorSpec("input", "float32", ("batch", TAKEN)),
        TensorSpec("state", "float32", (2, "batch", 128)),
        TensorSpec("sr", "int64", (1,), (_voices.RATE, _voices.RATE)),
    ),
    outputs=(TensorSpec("output", "float32", ("batch", 1)), TensorSpec("stateN", "float32", (2, "batch", 128))),
    profile={
        "input": ShapeRange((1, TAKEN), (1, TAKEN), (16, TAKEN)),
        "state": ShapeRange((2, 1, 128), (2, 1, 128), (2, 16, 128)),
        "sr": ShapeRange((1,), (1,), (1,)),
    },
    states={"state": "stateN"},
    samples=talk,
    origin="a stream of voices, noise and silence, made by rule",
    gate=("speech_f1", 0.99),
    metric=speech_f1,
    labels="speech",
    extra_files=(*_voices.FILES, *_weights.FILES),
)
