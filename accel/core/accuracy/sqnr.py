"""Signal-to-quantisation-noise ratio: the one definition of it, which every comparison and every search uses.

It is taken after subtracting the per-channel mean of the reference. A model whose output is a large constant plus a
small signal would otherwise let the constant alone pass: a random ResNet-50 replaced by a constant scores 17 dB without
centring, and at most 0 dB with it. A channel is every position of the fixed axes, so that a constant box per anchor, or
a constant key per head, scores 0 dB too.
"""

import math
from collections.abc import Sequence

import numpy as np

EXACT_DB = 200.0
"""What stands for equality where a number is needed: more than two FP32 computations can agree by."""


def decibels(signal: float, noise: float) -> float | None:
    """Return signal power over noise power in dB; None where either is 0.

    Formula: 10 · log10(Σ(ref − mean)² / Σ(out − ref)²).
    """
    return ratio_db(signal / noise) if signal > 0 and noise > 0 else None


def ratio_db(ratio: float) -> float:
    """Return a ratio of powers in dB; minus infinity for 0."""
    return 10.0 * math.log10(ratio) if ratio > 0 else -math.inf


def channels(value: np.ndarray, mask: np.ndarray | None, fixed: Sequence[int]) -> np.ndarray:
    """Return the unmasked values as (samples, channels), where each position of the ``fixed`` axes is a channel."""
    if mask is not None:
        value = value[mask]  # the masked axes become one
        fixed = [axis - mask.ndim + 1 for axis in fixed if axis >= mask.ndim]
    value = np.moveaxis(value, fixed, range(-len(fixed), 0)) if fixed else value
    return value.reshape(-1, max(1, math.prod(value.shape[value.ndim - len(fixed) :])))


def mean(feeds: Sequence[np.ndarray]) -> np.ndarray:
    """Return the mean of each channel over the finite values of all feeds, float64 (channels,).

    Args:
        feeds: arrays (samples, channels).
    """
    finite = [np.isfinite(feed) for feed in feeds]
    total = sum(np.where(ok, feed, 0.0).sum(axis=0, dtype=np.float64) for ok, feed in zip(finite, feeds, strict=True))
    return np.asarray(total / np.maximum(sum(ok.sum(axis=0) for ok in finite), 1))
