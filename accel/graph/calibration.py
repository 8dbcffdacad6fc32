"""How activations are quantised, from what flows through them on real samples.

For TensorRT a symmetric range: all that was seen, all but the largest, or what keeps the distribution's information
(Kullback-Leibler). For a CPU the range and the smoothing that leave the least error in the products themselves.

onnxruntime.quantization and Model Optimizer were tried for this: see docs/decisions/0010.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx_ir as ir

from accel.core.errors import StageError
from accel.core.feeds import Feed
from accel.graph import Method, measured, qdq
from accel.graph.measured import Range
from accel.graph.qdq import Product, Recipe, Scheme

PERCENTILE = 0.9999
"""Share of an activation's magnitudes that a range must cover."""
BINS = 2048
"""Bins of a distribution of magnitudes, zero to the largest."""
CLIPS = (1.0, 0.9999, 0.999)
"""Shares of an activation's values that a CPU's range may cover; the one with the least product error is taken."""
SMOOTHING = (None, 0.5, 0.7, 0.85)
"""SmoothQuant strengths tried on each activation, none first."""
SMOOTHING_GAIN = 0.7
"""Smoothing costs one more operation, so it must take this factor off the error."""
ROWS = 512
COLUMNS = 384
"""Rows of an activation and output channels of a weight on which the product's error is computed."""


@dataclass(frozen=True, slots=True)
class QuantRange:
    """How one activation is quantised: ``real = quantised * scale``.

    Attributes:
        low / high: measured over all samples; ``cut`` the magnitude that the scale covers, larger ones saturate.
    """

    tensor: str
    low: float
    high: float
    cut: float
    scale: float


def check_finite(ranges: Mapping[str, Range]) -> None:
    """Refuse activations that have no scale.

    Raises:
        StageError: one is not finite.
    """
    for name, found in ranges.items():
        if not math.isfinite(found.largest):
            raise StageError(
                f"activation {name!r} is infinite or NaN on the calibration samples: it has no scale",
                fix="keep the products that read it in floating point (keep=...)",
            )


def symmetric(
    path: Path, ranges: Mapping[str, Range], feeds: Sequence[Feed], *, scheme: Scheme, method: Method, threads: int
) -> dict[str, QuantRange]:
    """Return how each activation of the FP32 graph at ``path`` is quantised with zero-point 0.

    Args:
        ranges: the activations, with what ``measured.measure_ranges`` found over the same feeds.
        method: ``minmax`` covers all that was seen, ``percentile`` all but the largest 0.01 %, ``entropy`` what keeps
            the distribution's information.
    """
    cuts = {name: found.largest for name, found in ranges.items()}
    if method != "minmax":
        counts = {name: np.zeros(BINS, np.int64) for name, found in ranges.items() if found.largest > 0}
        for _, name, value in measured.fetch(path, {n: ranges[n] for n in counts}, feeds, threads=threads):
            bins = np.minimum(np.abs(value).ravel() * (BINS / cuts[name]), BINS - 1).astype(np.int32)
            counts[name] += np.bincount(bins, minlength=BINS)
        choose = _percentile_cut if method == "percentile" else _entropy_cut
        cuts |= {name: choose(count) / BINS * cuts[name] for name, count in counts.items()}
    return {
        name: QuantRange(name, found.low, found.high, cuts[name], max(cuts[name], 1e-12) / scheme.largest)
        for name, found in ranges.items()
    }


def _percentile_cut(counts: np.ndarray) -> float:
    """Return the bin border below which ``PERCENTILE`` of all values lie."""
    covered = np.cumsum(counts) / counts.sum()
    return float(np.searchsorted(covered, PERCENTILE) + 1)


def _entropy_cut(counts: np.ndarray) -> float:
    """Return the bin border that, with 128 levels below it, loses the least information.

    Formula: Kullback-Leibler divergence of the distribution cut at the border, its tail moved into the last bin, from
    the same in 128 equal steps. Source: https://on-demand.gputechconf.com/gtc/2017/presentation/s7310-8-bit-inference-with-tensorrt.pdf
    """
    levels = 128
    best = (math.inf, BINS)
    for border in range(levels, BINS + 1, 8):
        truth = counts[:border].astype(np.float64)
        used = truth > 0
        level = np.arange(border) * levels // border
        share = np.bincount(level, truth, levels) / np.maximum(np.bincount(level, used, levels), 1)
        coarse = np.where(used, share[level], 0.0)
        truth[-1] += counts[border:].sum()
        if not coarse.any() or (truth[-1] > 0 and coarse[-1] == 0):
            continue
        p, q = truth / truth.sum(), coarse / coarse.sum()
        some = p > 0
        best = min(best, (float(np.sum(p[some] * np.log(p[some] / q[some]))), border))
    return float(best[1])


def least_error(
    path: Path,
    model: ir.Model,
    products: Sequence[Product],
    ranges: Mapping[str, Range],
    feeds: Sequence[Feed],
    *,
    scheme: Scheme,
    mask: str | None,
    threads: int,
) -> dict[str, Recipe]:
    """Return for each activation the recipe whose quantised products come closest to the float ones.

    Args:
        model: the graph at ``path``, for its weights.
        ranges: for the sizes of the activations.
        mask: input that is 0 at padded positions, whose activations are then left out.

    Raises:
        StageError: an activation is not finite.
    """
    weights: dict[str, list[np.ndarray]] = {}
    for product in products:
        tensor = model.graph.initializers[product.weight].const_value
        assert tensor is not None
        weights.setdefault(product.activation, []).append(tensor.numpy())
    rows = _sample_rows(path, ranges, feeds, mask=mask, threads=threads)
    return {name: _best_recipe(rows[name], np.concatenate(weights[name], axis=1), scheme) for name in weights}


def _sample_rows(
    path: Path, ranges: Mapping[str, Range], feeds: Sequence[Feed], *, mask: str | None, threads: int
) -> dict[str, np.ndarray]:
    """Return a sample of each activation's unmasked rows (rows, channels), its extreme values included."""
    rng = np.random.default_rng(0)
    per_feed = max(16, ROWS // max(len(feeds), 1))
    kept: dict[str, list[np.ndarray]] = {}
    for feed, name, value in measured.fetch(path, ranges, feeds, threads=threads):
        hidden = mask is not None and value.shape[:-1] == feed[mask].shape
        rows = value[feed[mask].astype(bool)] if mask is not None and hidden else value.reshape(-1, value.shape[-1])
        extreme = np.unique(np.concatenate([rows.argmax(axis=0), rows.argmin(axis=0)]))
        check_finite({name: Range(float(rows[extreme].min()), float(rows[extreme].max()), value.size)})
        strongest = extreme[np.argsort(-np.abs(rows[extreme]).max(axis=1))[: per_feed // 4]]
        drawn = rng.choice(len(rows), min(per_feed, len(rows)), replace=False)
        kept.setdefault(name, []).append(rows[np.unique(np.concatenate([drawn, strongest]))])
    return {name: np.concatenate(parts) for name, parts in kept.items()}


def _best_recipe(rows: np.ndarray, weight: np.ndarray, scheme: Scheme) -> Recipe:
    some = weight[:, :: max(1, weight.shape[1] // COLUMNS)]
    exact = rows @ some
    best: tuple[float, Recipe] | None = None
    for alpha in SMOOTHING:
        smooth = None if alpha is None else _smoothing(rows, weight, alpha)
        turned = rows if smooth is None else rows / smooth
        scaled = some if smooth is None else some * smooth[:, None]
        channel = qdq.weight_scales(scaled, 1, scheme.largest)
        rounded = qdq.quantize_weight(scaled, channel, 1, scheme.largest) * channel
        last = turned.size - 1
        cuts = [(round((1 - clip) * last), round(clip * last)) for clip in CLIPS]
        ordered = np.partition(turned, sorted({place for cut in cuts for place in cut}), axis=None)
        for low, high in cuts:
            recipe = Recipe.unsigned(float(ordered[low]), float(ordered[high]), smooth)
            error = float(np.square(recipe.apply(turned) @ rounded - exact).sum())
            plain = best is None or best[1].smooth is smooth
            if best is None or error < best[0] * (1.0 if plain else SMOOTHING_GAIN):
                best = error, recipe
    assert best is not None
    return best[1]


def _smoothing(rows: np.ndarray, weight: np.ndarray, alpha: float) -> np.ndarray:
    """Return the divisor of each channel. Formula: max|x| ** alpha / max|w| ** (1 - alpha), median 1."""
    activation = np.maximum(np.abs(rows).max(axis=0), 1e-5)
    constant = np.maximum(np.abs(weight).max(axis=1), 1e-5)
    divisor = activation**alpha / constant ** (1 - alpha)
    return np.asarray(divisor / np.median(divisor), np.float32)
