"""Choose what becomes INT8: ranges from real activations, and which matrix products can bear it.

Naive INT8 ruins transformers: on a sentence encoder with real weights, MinMax ranges on every product leave 3 dB. So
outlier channels are smoothed and ranges clipped where that lowers the error of the product itself, the effect of each
product on the outputs is measured, and products are quantised from the least harmful on, as long as the outputs keep
the SQNR asked for.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from accel.core.errors import StageError, UsageError
from accel.graph import qdq
from accel.graph.evaluate import open_cpu
from accel.graph.qdq import SWITCH, Recipe, Scale, Unit

if TYPE_CHECKING:
    import onnx

    from accel.graph.prepared import Base, QuantReport
    from accel.graph.symmetric import Method, Quantised

Feeds = Sequence[Mapping[str, np.ndarray]]

CLIPS = (1.0, 0.9999, 0.999)
"""Shares of an activation's values that a range may cover; the one with the least product error is taken."""
SMOOTHING = (None, 0.5, 0.7, 0.85)
"""SmoothQuant strengths tried on each activation, none first."""
SMOOTHING_GAIN = 0.7
"""Smoothing costs one more operation, so it must take this factor off the error."""
ROWS = 512
COLUMNS = 384
"""Rows of an activation and output channels of a weight on which the product's error is computed."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What was quantised and what that did.

    Attributes:
        units: the activations whose products run in INT8.
        int8_nodes / nodes: matrix products with constant weights in INT8, and all.
        int8_share: share of their arithmetic in INT8.
        sqnr_db: worst output's SQNR on the held-back calibration feeds.
        search_s: wall time of calibration and search.
    """

    units: tuple[Unit, ...]
    int8_nodes: int
    nodes: int
    int8_share: float
    sqnr_db: float
    search_s: float


def quantize_matmuls(
    path: Path,
    out: Path,
    feeds: Feeds,
    *,
    mask: str | None,
    smallest: Mapping[str, tuple[int, ...]],
    target_db: float,
    levels: int,
    threads: int,
    trials: int,
) -> Plan:
    """Write the model at ``path`` to ``out`` with as many matrix products in INT8 as keep ``target_db``.

    Args:
        feeds: calibration inputs; every fourth is held back from the ranges and judges the choice.
        mask: input that is 0 at padded positions, whose activations are then left out of the ranges.
        smallest: shapes of the smallest request, which has the fewest values to hide an error among; judges too.
        levels: largest int8 weight: 127, or 63 where the CPU's kernels add pairs in 16 bits.
        trials: how many single measurements there may be; with more products, neighbours are measured together. A
            count, not a time: the result must not depend on how busy the machine is.

    Raises:
        StageError: the graph has no matrix product with constant weights.
    """
    start = time.monotonic()
    model = qdq.load_model(path)
    units = qdq.find_units(model)
    if not units:
        raise StageError(f"{path.name} has no matrix product with constant weights: nothing to quantise")
    held = [f for i, f in enumerate(feeds) if i % 4 == 3] or list(feeds[-1:])
    seen = [f for i, f in enumerate(feeds) if i % 4 != 3] or list(feeds)
    scratch = out.with_name(out.name + ".scratch")
    try:
        activations = _collect(model, units, seen, scratch, mask=mask, threads=threads)
        recipes = _choose_recipes(model, units, activations, levels=levels)
        del activations
        trial = qdq.load_model(path)
        qdq.write_switches(trial, units, recipes, levels=levels)
        qdq.save_model(trial, scratch)
        del trial
        judges = [_cut(held[0], dict.fromkeys(held[0], (4,))), _cut(held[-1], dict.fromkeys(held[-1], (4,)))]
        judges.append(_cut(held[0], smallest))
        with_switches = _Switched(scratch, len(units), judges, mask=mask, threads=threads)
        chosen, sqnr_db = _search(with_switches, units, target_db=target_db, trials=trials)
    finally:
        scratch.unlink(missing_ok=True)
        scratch.with_name(scratch.name + ".data").unlink(missing_ok=True)
    qdq.write_qdq(model, chosen, recipes, levels=levels)
    qdq.save_model(model, out)
    return Plan(
        tuple(chosen),
        sum(len(u.nodes) for u in chosen),
        sum(len(u.nodes) for u in units),
        sum(u.size for u in chosen) / sum(u.size for u in units),
        sqnr_db,
        time.monotonic() - start,
    )


def _collect(
    model: onnx.ModelProto, units: Sequence[Unit], feeds: Feeds, scratch: Path, *, mask: str | None, threads: int
) -> dict[str, np.ndarray]:
    """Return a sample of each activation's unmasked rows (rows, channels), its extreme values included."""
    import onnx

    watched = type(model)()
    watched.CopyFrom(model)
    known = {o.name for o in watched.graph.output}
    names = [u.activation for u in units]
    watched.graph.output.extend(
        onnx.helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, None) for n in names if n not in known
    )
    qdq.save_model(watched, scratch)
    del watched
    session = open_cpu(scratch, threads)
    rng = np.random.default_rng(0)
    per_feed = max(16, ROWS // max(len(feeds), 1))
    kept: dict[str, list[np.ndarray]] = {n: [] for n in names}
    for feed in feeds:
        for name, value in zip(names, session.run(names, dict(feed)), strict=True):
            rows = _unmasked(value, feed[mask] if mask else None)
            extreme = np.unique(np.concatenate([rows.argmax(axis=0), rows.argmin(axis=0)]))
            strongest = extreme[np.argsort(-np.abs(rows[extreme]).max(axis=1))[: per_feed // 4]]
            drawn = rng.choice(len(rows), min(per_feed, len(rows)), replace=False)
            kept[name].append(rows[np.unique(np.concatenate([drawn, strongest]))])
    return {name: np.concatenate(parts) for name, parts in kept.items()}


def _cut(feed: Mapping[str, np.ndarray], sizes: Mapping[str, tuple[int, ...]]) -> dict[str, np.ndarray]:
    """Return the feed with its leading axes cut to at most these sizes."""
    return {name: value[tuple(slice(n) for n in sizes[name])] for name, value in feed.items()}


def _unmasked(value: np.ndarray, mask: np.ndarray | None) -> np.ndarray:
    if mask is not None and value.shape[:-1] == mask.shape:
        return value[mask.astype(bool)]
    if mask is not None and value.shape == mask.shape:
        return value[mask.astype(bool)][:, None]
    return value.reshape(-1, value.shape[-1])


def _choose_recipes(
    model: onnx.ModelProto, units: Sequence[Unit], activations: Mapping[str, np.ndarray], *, levels: int
) -> dict[str, Recipe]:
    """Return for each activation the recipe whose quantised products come closest to the float ones."""
    import onnx

    constants = {t.name: t for t in model.graph.initializer}
    chosen: dict[str, Recipe] = {}
    for unit in units:
        rows = activations[unit.activation]
        weight = np.concatenate([onnx.numpy_helper.to_array(constants[w]) for w in unit.weights], axis=1)
        columns = slice(None, None, max(1, weight.shape[1] // COLUMNS))
        exact = rows @ weight[:, columns]
        best: tuple[float, Recipe] | None = None
        for alpha in SMOOTHING:
            smooth = None if alpha is None else _smoothing(rows, weight, alpha)
            turned = rows if smooth is None else rows / smooth
            scaled = weight if smooth is None else weight * smooth[:, None]
            channel = qdq.weight_scales(scaled, levels=levels)
            rounded = (qdq.quantize_weight(scaled, channel, levels=levels) * channel)[:, columns]
            error, scale = min(
                ((float(np.square(s.apply(turned) @ rounded - exact).sum()), s) for s in _scales(turned)),
                key=lambda pair: pair[0],
            )
            if best is None or error < SMOOTHING_GAIN * best[0]:
                best = error, Recipe(scale, smooth)
        assert best is not None
        chosen[unit.activation] = best[1]
    return chosen


def _smoothing(rows: np.ndarray, weight: np.ndarray, alpha: float) -> np.ndarray:
    """Return the divisor of each channel. Formula: max|x| ** alpha / max|w| ** (1 - alpha), median 1."""
    activation = np.maximum(np.abs(rows).max(axis=0), 1e-5)
    constant = np.maximum(np.abs(weight).max(axis=1), 1e-5)
    divisor = activation**alpha / constant ** (1 - alpha)
    return (divisor / np.median(divisor)).astype(np.float32)


def _scales(rows: np.ndarray) -> set[Scale]:
    """Return the scales of the ranges that ``CLIPS`` leave."""
    ordered = np.sort(rows, axis=None)
    last = len(ordered) - 1
    return {Scale.of(float(ordered[round((1 - c) * last)]), float(ordered[round(c * last)])) for c in CLIPS}


class _Switched:
    """The model with a switch for each unit, and the SQNR that a setting of the switches leaves."""

    def __init__(self, path: Path, count: int, feeds: Feeds, *, mask: str | None, threads: int) -> None:
        self._session = open_cpu(path, threads)
        self._outputs = [o.name for o in self._session.get_outputs()]
        self._count = count
        self._feeds = feeds
        self._masks = [feed[mask] if mask else None for feed in feeds]
        self._truth = self._run(())
        self._signal = [_power(np.concatenate(parts)) for parts in self._truth]

    def _run(self, on: Sequence[int]) -> list[list[np.ndarray]]:
        """Return for each float output its unmasked values (rows, channels), feed by feed."""
        switch = np.zeros(self._count, np.float32)
        switch[list(on)] = 1.0
        parts: list[list[np.ndarray]] = [[] for _ in self._outputs]
        for feed, mask in zip(self._feeds, self._masks, strict=True):
            for i, value in enumerate(self._session.run(self._outputs, {**feed, SWITCH: switch})):
                if value.dtype == np.float32:
                    parts[i].append(_unmasked(value, mask).astype(np.float64))
        return [p for p in parts if p]

    def noise(self, on: Sequence[int]) -> float:
        """Return the worst error power, over outputs and feeds, relative to the output's signal power in all feeds."""
        found = self._run(on)
        return max(
            (
                float(np.square(f - t).mean()) / signal
                for output, truth, signal in zip(found, self._truth, self._signal, strict=True)
                for f, t in zip(output, truth, strict=True)
            ),
            default=0.0,
        )


def _power(rows: np.ndarray) -> float:
    return max(float(np.square(rows - rows.mean(axis=0)).mean()), 1e-30)


def _search(switched: _Switched, units: Sequence[Unit], *, target_db: float, trials: int) -> tuple[list[Unit], float]:
    """Return the largest prefix of the units, by harm per arithmetic, that keeps ``target_db``, and its SQNR."""
    everything = range(len(units))
    best = switched.noise(everything)
    if _db(best) >= target_db:
        return list(units), _db(best)
    together = -(-len(units) // trials)
    groups = [list(everything[i : i + together]) for i in range(0, len(units), together)]
    harm = {i: switched.noise(g) / sum(units[j].size for j in g) for i, g in enumerate(groups)}
    order = [j for i in sorted(harm, key=lambda i: harm[i]) for j in groups[i]]
    low, high = 0, len(order)  # low units pass (none is exact), high do not
    found = 0.0
    while high - low > 1:
        middle = (low + high) // 2
        noise = switched.noise(order[:middle])
        if _db(noise) >= target_db:
            low, found = middle, noise
        else:
            high = middle
    return [units[i] for i in sorted(order[:low])], _db(found)


def _db(noise: float) -> float:
    return float(-10 * np.log10(max(noise, 1e-20)))


def for_tensorrt(
    source: Path,
    out: Path,
    *,
    to: Quantised,
    feeds: Feeds,
    method: Method = "percentile",
    keep: Collection[str] = (),
    base: Base = "fp32",
    margin: float = 2.0,
    threads: int = 0,
) -> QuantReport:
    """Write the FP32 model at ``source`` to ``out`` with Q/DQ pairs as TensorRT takes them.

    Every matrix product and convolution with a constant weight is quantised: int8 or E4M3, symmetric, zero-point 0, one
    scale per activation and one per output channel of a weight. Which of them to keep out is what
    ``sensitivity.search`` finds.

    Args:
        out: the ``.onnx`` to write, weights in ``<out>.data`` beside it.
        feeds: the calibration set, real samples by input name.
        method: how an activation's range is cut; see ``symmetric.calibrate``.
        keep: names of the products that stay in ``base``.
        base: precision of everything else; ``fp16`` and ``bf16`` as ``fp16.convert`` makes them, with ``margin``.
        threads: CPU threads for measuring; 0 for all.

    Raises:
        UsageError: an unknown precision or method, an unknown name in ``keep``, or ``out`` is the source.
        InputError, SampleError, StageError, UnavailableError: as ``prepared.prepare``.
    """
    from accel.graph import fp16, prepared

    start = time.monotonic()
    if out.resolve() == source.resolve():
        raise UsageError(f"{out} is the source itself", fix="choose another file to write")
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".quantise.", dir=out.parent) as name:
        ready = prepared.prepare(
            source, Path(name), to=to, feeds=feeds, method=method, base=base, margin=margin, threads=threads
        )
        fp16.move(ready.write(keep, "chosen.onnx"), out, data=ready.path)
    return ready.report(keep, start=start)
