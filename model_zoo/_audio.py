"""Sounds with the make-up of speech, made by rule: no recording has to be shipped or licensed."""

import numpy as np

RATE = 16_000
"""Samples per second that speech models take."""
HARMONICS = 16
HEARD_HZ = 7000.0


def speech(seed: int, seconds: float) -> np.ndarray:
    """Make one clip of syllables and pauses over faint noise: float32 (samples,) within -1 and 1, 16 kHz.

    A syllable is a gliding pitch whose harmonics are weighted by three resonances (a vowel), at times led by a burst of
    noise (a consonant); a clip keeps one voice. Two seeds give two voices that say different things.

    Source: the source-filter model of speech, G. Fant, "Acoustic Theory of Speech Production", 1960.
    """
    rng = np.random.default_rng([seed, int(seconds * RATE)])
    clip = rng.normal(0, 10 ** rng.uniform(-4, -2.5), round(seconds * RATE))
    pitch, loudness = rng.uniform(85, 260), rng.uniform(0.2, 0.8)
    at = int(rng.uniform(0, 0.3) * RATE)
    while at < len(clip):
        if rng.random() < 0.4:
            noise = rng.normal(0, 1, int(rng.uniform(0.03, 0.09) * RATE))
            # A difference rings high and a running mean low: two kinds of consonants.
            burst = np.diff(noise, append=0.0) if rng.random() < 0.5 else np.convolve(noise, np.full(8, 0.3), "same")
            at = _add(clip, at, 0.15 * loudness * burst * np.hanning(len(noise)))
        length = int(rng.uniform(0.12, 0.4) * RATE)
        at = _add(clip, at, loudness * _vowel(rng, pitch, length))
        at += int((rng.uniform(0.2, 1.2) if rng.random() < 0.15 else rng.uniform(0, 0.08)) * RATE)
    return (clip / max(1.0, float(np.abs(clip).max()))).astype(np.float32)


def _add(clip: np.ndarray, at: int, sound: np.ndarray) -> int:
    """Add a sound to the clip at a sample, as far as it fits; returns the sample after it."""
    room = clip[at : at + len(sound)]
    room += sound[: len(room)]
    return at + len(sound)


def _vowel(rng: np.random.Generator, pitch: float, length: int) -> np.ndarray:
    time = np.arange(length) / RATE
    glide = pitch * (1 + rng.uniform(-0.25, 0.25) * np.linspace(0, 1, length) + 0.02 * np.sin(2 * np.pi * 5 * time))
    phase = 2 * np.pi * np.cumsum(glide) / RATE
    resonances = np.array([rng.uniform(250, 850), rng.uniform(850, 2400), rng.uniform(2400, 3400)])
    orders = np.arange(1, HARMONICS + 1)
    orders = orders[orders * pitch < HEARD_HZ]
    distance = (orders[:, None] * pitch - resonances) / np.array([80.0, 120.0, 180.0])
    weights = (1 / (1 + distance**2)).sum(axis=1) / orders**0.5
    return (weights[:, None] * np.sin(orders[:, None] * phase)).sum(axis=0) * np.hanning(length) / weights.sum()
