"""Voices made by rule, near enough to speech that models trained on people hear people.

A vowel is what a throat's pulses become in three resonances; a syllable glides from one vowel to the next, and begins
with a hiss, a burst or a stop. A voice has a pitch, a length of the vocal tract, which scales the resonances, and a
loudness of its high partials.

Source: the source-filter model, G. Fant, "Acoustic Theory of Speech Production", 1960; resonances of vowels: G. E.
Peterson and H. L. Barney, "Control Methods Used in a Study of the Vowels", 1952, table II (men).
"""

from dataclasses import dataclass

import numpy as np

FILES = ("_voices.py",)
RATE = 16000
VOWELS = np.array(
    [
        *((270, 2290, 3010), (390, 1990, 2550), (530, 1840, 2480), (660, 1720, 2410), (730, 1090, 2440)),
        *((570, 840, 2410), (440, 1020, 2240), (300, 870, 2240), (640, 1190, 2390), (490, 1350, 1690)),
    ],
    np.float64,
)
"""Resonances in Hz."""
WIDTHS = np.array([60.0, 90.0, 120.0])
HEARD_HZ = 7000.0
STEP = 64


@dataclass(frozen=True, slots=True)
class Voice:
    """What one speaker keeps: pitch in Hz, scale of the resonances, fall of the partials, share of breath."""

    pitch: float
    tract: float
    fall: float
    breath: float

    @classmethod
    def drawn(cls, rng: np.random.Generator) -> "Voice":
        """Draw a speaker."""
        pitch, tract = 80 * 2 ** rng.uniform(0, 1.7), rng.uniform(0.78, 1.25)
        return cls(pitch, tract, rng.uniform(0.8, 1.9), 10 ** rng.uniform(-2.5, -1.3))


def speak(rng: np.random.Generator, voice: Voice, seconds: float) -> np.ndarray:
    """Say random syllables: float64 (samples,) at 16 kHz, of deviation 1."""
    clip = np.zeros(round(seconds * RATE))
    pitch = voice.pitch * rng.uniform(1.0, 1.2)
    vowel, at = VOWELS[rng.integers(len(VOWELS))], 0
    while at < len(clip):
        kind = rng.integers(4)
        if kind < 2:  # a hiss, or a shorter burst behind a stop
            noise = rng.normal(0, 1, int((rng.uniform(0.05, 0.11) if kind == 0 else rng.uniform(0.01, 0.03)) * RATE))
            at += int(0.03 * RATE) if kind == 1 else 0
            at = _add(clip, at, 0.35 * np.diff(noise, append=0.0) * np.hanning(len(noise)))
        after = VOWELS[rng.integers(len(VOWELS))]
        falling = pitch * rng.uniform(0.85, 1.0)
        sound = _syllable(rng, voice, (pitch, falling), (vowel, after), int(rng.uniform(0.14, 0.28) * RATE))
        at = _add(clip, at, sound) - int(0.015 * RATE)
        pitch, vowel = max(falling, 0.8 * voice.pitch) * rng.uniform(0.95, 1.15), after
    return clip / clip.std()


def _syllable(
    rng: np.random.Generator, voice: Voice, pitch: tuple[float, float], vowels: tuple[np.ndarray, ...], length: int
) -> np.ndarray:
    """Glide from one pitch and one vowel to another: float64 (length,)."""
    along = np.linspace(0, 1, length)
    shaken = 1 + 0.01 * np.interp(along, np.linspace(0, 1, 12), rng.normal(0, 1, 12))
    hertz = (pitch[0] + (pitch[1] - pitch[0]) * along) * shaken
    partials = np.arange(1, 1 + int(HEARD_HZ / hertz.max()))[:, None]
    at = np.linspace(0, 1, 2 + length // STEP)  # resonances move slowly
    turned = 1 / (1 + np.exp(-10 * (at - 0.5)))
    heard = np.zeros((len(partials), len(at)))
    for number, width in enumerate(WIDTHS):
        centre = voice.tract * (vowels[0][number] + (vowels[1][number] - vowels[0][number]) * turned)
        heard += 0.6**number / (1 + ((partials * np.interp(at, along, hertz) - centre) / width) ** 2) ** 0.5
    heard *= partials**-voice.fall
    turn = np.exp(2j * np.pi * np.cumsum(hertz) / RATE)
    voiced, wave = np.zeros(length), np.ones(length, complex)
    left = np.minimum((along * (len(at) - 1)).astype(int), len(at) - 2)
    for loudness in heard[:, left] + (along * (len(at) - 1) - left) * np.diff(heard, axis=1)[:, left]:
        wave *= turn
        voiced += loudness * wave.imag
    breath = voice.breath * rng.normal(0, 1, length)
    loud = np.minimum(1, 8 * np.minimum(along, 1 - along))
    return np.asarray(rng.uniform(0.6, 1) * loud * (voiced + breath))


def _add(clip: np.ndarray, at: int, sound: np.ndarray) -> int:
    """Add a sound to the clip at a sample, as far as it fits; returns the sample after it."""
    room = clip[at : at + len(sound)]
    room += sound[: len(room)]
    return at + len(sound)
