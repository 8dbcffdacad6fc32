"""Notes made by rule, and how well basic-pitch finds them: what its two forms share.

Source: https://arxiv.org/abs/2203.09893; sizes: basic-pitch 0.4.0, ``constants.py``.
"""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np

from accel.core.values import ShapeRange, TensorSpec
from model_zoo import Entry, Item, _weights

RATE, SAMPLES, FRAMES, KEYS = 22050, 43844, 172, 88
LOWEST = 21
"""MIDI number of the lowest key."""
BEGINS, SOUNDS, SHORTEST = 0.5, 0.3, 5
"""Least likelihood of a beginning and of a sounding key, and least frames of a note."""
NEAR_S = 0.05
MOST = 96
"""A clip is two seconds: 175 kB in, 303 kB out."""
INTERVALS = (3, 4, 7, 9, 12, 16)
FILES = ("_notes.py", *_weights.FILES)


def clips(count: int, *, name: str) -> Sequence[Item]:
    """Return two seconds of notes each, float32 (1, 43844, 1), with [beginning in s, MIDI number] of each note."""
    items: list[Item] = []
    times = np.arange(SAMPLES) / RATE
    for number in range(min(count, MOST)):
        rng = np.random.default_rng([number, 17])
        sound, notes = rng.normal(0, 10 ** rng.uniform(-4, -2.5), SAMPLES), []
        at = rng.uniform(0.05, 0.3)
        while at < 1.6:
            length, base = rng.uniform(0.25, 0.6), int(rng.integers(45, 72))
            more = rng.choice(INTERVALS, rng.integers(3), replace=False)
            for key in (base, *(base + int(interval) for interval in more)):
                sound += rng.uniform(0.5, 1) * _note(rng, times - at, key, length)
                notes.append([at, key])
            at += length + rng.uniform(0, 0.15)
        sound *= rng.uniform(0.3, 0.9) / np.abs(sound).max()
        items.append({name: sound.astype(np.float32)[None, :, None], "notes": notes})  # type: ignore[dict-item]
    return items


def _note(rng: np.random.Generator, since: np.ndarray, key: int, length: float) -> np.ndarray:
    """Strike a string: partials that fade out; ``since`` is the time from its beginning in s."""
    pitch = 440 * 2 ** ((key - 69) / 12)
    partials = np.arange(1, 1 + min(10, int(9000 / pitch)))
    shape = np.minimum(1, since / 0.008) * np.exp(-since * rng.uniform(1, 3)) * np.clip((length - since) / 0.03, 0, 1)
    waves = np.sin(2 * np.pi * pitch * partials[:, None] * since + rng.uniform(0, 2 * np.pi, (len(partials), 1)))
    return np.asarray(np.where(since >= 0, shape, 0) * (partials ** -rng.uniform(1, 2) @ waves))


def heard(onsets: np.ndarray, notes: np.ndarray) -> list[tuple[float, int]]:
    """Return (beginning in s, MIDI number) of the notes in likelihoods (frames, keys) that keys begin and sound."""
    around = np.pad(onsets, ((1, 1), (0, 0)))
    peaks = (onsets >= BEGINS) & (onsets > around[:-2]) & (onsets >= around[2:])
    found = []
    for frame, key in np.argwhere(peaks):
        silent = np.flatnonzero(notes[frame + 1 :, key] < SOUNDS)
        if (silent[0] if len(silent) else len(notes) - frame - 1) >= SHORTEST:
            found.append((float(frame * SAMPLES / RATE / FRAMES), LOWEST + int(key)))
    return found


def note_f1(
    outputs: Sequence[Item], labels: Sequence[Any], inputs: Sequence[Item], *, onsets: str, notes: str
) -> float:
    """Return the F-measure of notes: one is found where its key begins within 50 ms.

    Formula: 2 * found / (told + heard).
    Source: the usual measure without ends, J. S. Downie et al., MIREX, "Multiple Fundamental Frequency Estimation".
    """
    right = every = 0
    for output, label in zip(outputs, labels, strict=True):
        told, own = list(label), heard(*(output[n].reshape(FRAMES, KEYS) for n in (onsets, notes)))
        every += len(told) + len(own)
        for begin, key in own:
            near = [n for n in told if n[1] == key and abs(n[0] - begin) < NEAR_S]
            if near:
                told.remove(near[0])
                right += 1
    return 2 * right / max(1, every)


def entry(
    name: str, file: str, framework: Literal["onnx", "tensorflow"], sound: str, outputs: tuple[str, str, str]
) -> Entry:
    """Return the entry of a form.

    Args:
        outputs: what it calls the likelihoods that keys begin, that they sound, and of finer pitches.
    """
    sizes = dict(zip(outputs, (KEYS, KEYS, 3 * KEYS), strict=True))
    return Entry(
        name=name,
        title=f"basic-pitch notes, {file.rpartition('/')[2]}, real weights",
        licence="Apache-2.0",
        parameters=16_782,
        framework=framework,
        resolve=_weights.resolve(f"basic_pitch/saved_models/icassp_2022/{file}"),
        load=load,
        stored=True,
        inputs=(TensorSpec(sound, "float32", ("batch", SAMPLES, 1)),),
        outputs=tuple(TensorSpec(n, "float32", ("batch", FRAMES, size)) for n, size in sizes.items()),
        profile={sound: ShapeRange((1, SAMPLES, 1), (1, SAMPLES, 1), (4, SAMPLES, 1))},
        samples=partial(clips, name=sound),
        origin="struck notes in noise, made by rule",
        gate=("note_f1", 0.99),
        metric=partial(note_f1, onsets=outputs[0], notes=outputs[1]),
        labels="notes",
        extra_files=FILES,
    )


def load(path: Path | None) -> Path:
    """Return the file or folder itself."""
    return _weights.load_file(path)
