"""Compare a variant's outputs with the reference, and the gate that follows.

Knows arrays and axes, nothing of runtimes: answers come by feed and output, where a feed is a gate sample (a number) or
a checked shape (``min``, ``odd``, ``opt``, ``max``). SQNR is ``accuracy.sqnr``'s, over all unmasked samples.

Outputs that are declared a set of rows (``values.Detections``) are matched first (``accel.core.accuracy.detections``):
order and padding mean nothing, a row that was missed or made up lowers ``matched``, and the boxes and scores of matched
rows are compared as any other values, each coordinate being a channel. Their classes are equal by construction.
"""

import math
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from accel.core.accuracy import sqnr
from accel.core.accuracy.detections import Matched, match
from accel.core.errors import StageError, UsageError, nearest
from accel.core.values import Detections, OutputParity, Parity, TensorSpec

GATES_DB: Mapping[str, float] = {
    "fp32": 80.0,  # another order of summation leaves 110 dB and more; 80 dB still means no step was computed in less
    "tf32": 50.0,  # rounding inputs and weights of Linear to TF32's 10 bits of mantissa leaves 64 dB
    "fp16": 45.0,  # the same mantissa, with accumulation that may be FP16
    "bf16": 30.0,  # 7 bits of mantissa leave 46 dB on BERT-base
    "int8": 20.0,  # error below a hundredth of the signal's power; a well calibrated BERT reaches 21 to 32 dB
    "fp8": 20.0,
}
"""Least SQNR in dB that passes, by precision. Figures: measured with accel's own samples, see docs/measuring.md."""

CERTAIN = 1.96
"""Standard errors that the SQNR of FP32 lies above its gate: the samples are a draw, and others must hold it, too."""

SHAPE_FLOORS_DB: Mapping[str, float] = {
    "fp32": 60.0,
    "tf32": 35.0,
    "fp16": 30.0,
    "bf16": 20.0,
    "int8": 3.0,
    "fp8": 3.0,
}
"""Least SQNR of each checked shape. A shape is one sample, which may lie at the edge of the set: floats get room of 10
to 20 dB; INT8 and FP8 are calibrated on the set, and a shape must keep half of its signal, as a broken one does not."""

TASK_FLOORS_DB: Mapping[str, float] = {**GATES_DB, "int8": 12.0, "fp8": 12.0}
"""Least SQNR beside a task metric, which alone lets errors of values pass: half of the noise on a weight, say."""

NOISE_ROOM_DB = 6.0
"""How far below the source's own noise a gate may lie: two computations with that noise each differ by 3 dB more."""

KERNELS_ROOM_DB = 12.0
"""The same where the noise is that of the source's own kernels: another runtime's round up to four times as coarsely (a
Winograd convolution does), which float64 would show."""

FAR_DB = 20.0
"""How far the source must keep above what could lower a gate for one more feed to change nothing."""

NOISE_LEAST_DB = 12.0
"""No noise of a source lowers a gate further than to this."""

SAMPLE_FLOOR_DB = 3.0
"""Over hundreds of samples a mean hides one that is lost: under an SQNR gate each keeps half of the signal, too."""

GATES_MATCHED: Mapping[str, float] = {
    "fp32": 0.99,
    "tf32": 0.95,
    "fp16": 0.95,
    "bf16": 0.85,
    "int8": 0.7,
    "fp8": 0.7,
}
"""Least share of detected rows with a partner, by precision: where scores lie close together or boxes overlap by about
the limit, a difference in the last bit suppresses another box, and each such choice costs a row or two."""

FEED_MATCHED = 0.5
"""The same for each feed alone: half of its rows."""

MATCHED_ROWS = 8
"""Coverage feeds with fewer rows than this, of both answers, are too few to take a share of."""
NEAR_DB = 3.0
"""How near to its gate a mean over part of the samples says nothing of all of them. A share is near where less than
half is left of what its gate lets be lost."""
FEW_ITEMS = 32
"""Of fewer distinct gate samples the mean says little: ``tolerance_db`` stands for SQNR, and accuracy is unproved."""

FEW_INTEGERS = 0.99
"""From this agreement on integers that differ are few, and the user is told which gate lets them pass."""
FLAT_DB = 100.0
"""A reference that varies over the samples by less than this below its level does not vary: FP32 rounds at 110 dB."""

LAST_PLACES = 2.0**-21
"""Relative error of at most four units in the last place of FP32: no gate asks for more of any value, though an output
that hardly varies has few dB then."""

SMALL = 0.01
"""What a tolerance adds to the size of the reference, so that an output of zeros has one (1e-6 at the gate of FP32)."""

SHAPE_POINTS = ("min", "odd", "opt", "max")
"""Checked shapes. Feeds named by a number are samples; all others cover values and shapes that samples do not have."""

BLOCK = 1 << 15
"""Values that are compared at a time."""

_ORDER = ("int8", "fp8", "bf16", "fp16", "tf32", "fp32")  # from the coarsest

IN_DB = ("sqnr_db", "tolerance_db", "shape_db")
"""Metrics of a gate whose values are decibels."""
_ASKED = {"tolerance_db": "sqnr_db"}

Answers = Mapping[str, Mapping[str, np.ndarray]]
"""Outputs by feed and name."""
Metric = Callable[[Answers, Answers], tuple[float, float]]
"""Takes the gate samples' answers of reference and variant, and returns the score of the variant and the reference."""

TASK_SHARE = 0.99
"""Share of the reference's own score that a task metric asks for unless told otherwise: a relative drop of 1 %."""

NAMES = (*GATES_DB, "sqnr_db", "tolerance_db", "shape_db", "agreement", "matched")
"""Gates that have a meaning without a task metric."""


@dataclass(frozen=True, slots=True)
class _Compared:
    """One output's figures, and what only the verdict needs: the worst feed, the standard error of the SQNR over the
    samples, and whether any value was compared."""

    row: OutputParity
    tolerance_db: float | None
    worst_db: float
    worst_feed: str
    blank: bool
    max_abs: Mapping[str, float] = field(default_factory=dict)
    """Largest error by feed."""
    max_rel: Mapping[str, float] = field(default_factory=dict)
    """The same, of each value in relation to it."""
    error_db: float = 0.0


@dataclass(frozen=True, slots=True)
class Noise:
    """How far the source differs from itself: in float64, in another order, or from inputs moved slightly.

    Attributes:
        how: what was run (``in float64``).
        outputs: its answers against the reference's.
        room_db: how far below it a gate may lie.
    """

    how: str
    outputs: tuple[OutputParity, ...]
    room_db: float = NOISE_ROOM_DB

    def far_above(self, least: float) -> bool:
        """Say whether a gate of ``least`` dB lies so far below it that one more feed would not lower the gate."""
        figures = [db for row in self.outputs if not row.exact for db in (row.sqnr_db, *row.by_shape_db.values())]
        return all(_number(db) >= least + KERNELS_ROOM_DB + FAR_DB for db in figures)


@dataclass(frozen=True, slots=True)
class _Figure:
    """A figure in dB: of an output, over the samples or at one place (a checked shape, or a coverage feed).

    Attributes:
        max_abs / max_rel: the largest error there, and the largest in relation to its value.
        low_db: what it is at least, for samples like these.
    """

    db: float
    row: OutputParity
    place: str | None
    max_abs: float
    max_rel: float = math.inf
    low_db: float = math.inf

    @property
    def shown(self) -> str:
        none = "cannot be computed (there is no signal, and the output differs) and"
        return f"{self.db:.4g}" if math.isfinite(self.db) else none

    def __str__(self) -> str:
        at = f" at {'shape' if self.place in SHAPE_POINTS else 'feed'} {self.place!r}" if self.place else ""
        return f"output {self.row.name!r}{at} is off by up to {self.max_abs:.3g}"


@dataclass(slots=True)
class _Sums:
    """Running sums of one output over unmasked, finite values: level (not centred), signal and noise are of squares."""

    count: int = 0
    level: float = 0.0
    signal: float = 0.0
    noise: float = 0.0
    dot: float = 0.0
    other: float = 0.0
    largest: float = 0.0
    max_abs: float = 0.0
    max_rel: float = 0.0
    equal: int = 0
    seen: int = 0
    nonfinite: int = 0
    agreed: int = 0
    ranked: int = 0


def compare(
    reference: Answers,
    answers: Answers,
    *,
    outputs: Sequence[TensorSpec],
    masks: Mapping[str, np.ndarray],
    mask_dims: tuple[str, ...] = (),
    gate: Mapping[str, float],
    metric: Metric | None = None,
    detections: Detections | None = None,
    noise: Noise | None = None,
) -> Parity:
    """Compare all outputs of all feeds, and hold the result against the gate; an empty one asks for every figure.

    Coverage feeds count for ``shape_db``, each alone, and for integers; SQNR is taken over samples and checked shapes.

    Args:
        reference / answers: feeds missing from ``answers`` are not compared (a static build cannot take every shape).
        outputs: what the client sees; outputs whose leading dims equal ``mask_dims`` are compared where the mask is 1.
        masks: feed → mask, int or bool of the shape of ``mask_dims``.
        gate: from ``gate_for``. With ``tolerance_db`` in it signals are not centred.
        metric: task metric, named in ``gate``; sees no checked shapes.
        detections: outputs that are compared as sets of rows.
        noise: the source's own; a gate in dB that lies above it is lowered for that output, and the verdict says so.

    Raises:
        StageError: there are no answers, an output is missing or has another shape than the reference's, or a count is
            larger than the rows there are.
    """
    feeds = sorted(answers)
    if not feeds:
        raise StageError("the variant gave no answers: there is nothing to compare")
    for spec in outputs:
        for feed in feeds:
            if spec.name not in answers[feed] or spec.name not in reference.get(feed, {}):
                raise StageError(
                    f"output '{feed}/{spec.name}' is missing: the variant or the reference did not give it"
                )
    matched = _matched(feeds, reference, answers, detections) if detections else {}
    compared = []
    for spec in outputs:
        if detections and spec.name in detections.names:
            compared.append(_compare_rows(spec, matched, detections))
            continue
        masked = bool(mask_dims) and spec.dims[: len(mask_dims)] == mask_dims
        select = {feed: mask.astype(bool) for feed, mask in masks.items()} if masked else {}
        rows_of = ((f, reference[f][spec.name], answers[f][spec.name], select.get(f)) for f in feeds)
        least = gate.get("shape_db", -math.inf) if gate else math.inf
        compared.append(_compare_output(spec, rows_of, few="tolerance_db" in gate, least=least))
    rows = [c.row for c in compared]
    values: dict[str, float | None] = {}
    scores: dict[str, tuple[float, float]] = {}
    if exact := _exact(outputs, detections):
        values["agreement"] = min(r.agreement or 0.0 for r, s in zip(rows, outputs, strict=True) if s in exact)
    if detections:
        values["matched"] = _share(m for feed, m in matched.items() if not is_coverage(feed))
    for name in gate:
        if name not in values and name not in IN_DB:
            if metric is None:
                raise StageError(f"gate {name!r} needs a task metric, and the model has none")
            kept = [feed for feed in feeds if is_sample(feed)]
            score, own = metric(*({f: side[f] for f in kept} for side in (reference, answers)))
            share = score / own if own > 0 else float(score >= own)
            values[name], scores[name] = share if math.isfinite(score) else math.nan, (score, own)
    floor = min(FEED_MATCHED, gate.get("matched", FEED_MATCHED))
    told = {f: m for f, m in matched.items() if not is_coverage(f) or m.rows >= MATCHED_ROWS}
    share, feed = min(((m.share, feed) for feed, m in told.items()), default=(1.0, ""))
    lost = (
        [f"feed {feed!r} alone has partners for {share:.4g} of its rows, less than {floor:g}"] if share < floor else []
    )
    lost += _wrong_dtypes(answers, outputs)
    return _verdict(gate, values, compared, outputs, lost, noise, scores)


def masks_of(
    inputs: Sequence[TensorSpec], mask: str | None, feeds: Mapping[str, Mapping[str, np.ndarray]]
) -> tuple[dict[str, np.ndarray], tuple[str, ...]]:
    """Return what ``compare`` takes of the input that hides padded positions: its value in each feed, and its dims."""
    spec = next((spec for spec in inputs if spec.name == mask), None)
    if spec is None:
        return {}, ()
    return {name: feed[spec.name] for name, feed in feeds.items()}, tuple(map(str, spec.dims))


def is_sample(feed: str) -> bool:
    """Say whether a feed is one of the samples, by its name: a number."""
    return feed.isdigit()


def is_coverage(feed: str) -> bool:
    """Say whether a feed covers values and shapes that no sample has, and no checked shape."""
    return not is_sample(feed) and feed not in SHAPE_POINTS


def gate_for(
    precision: str,
    *,
    outputs: Sequence[TensorSpec],
    task: tuple[str, float] | None,
    overrides: Mapping[str, float],
    detections: Detections | None = None,
    items: int | None = None,
) -> dict[str, float]:
    """Return the gate of a variant: metric → least value that passes.

    Below ``FEW_ITEMS`` samples it is a tolerance, by the precision's SQNR: ``tolerance_db`` of 80 means that no value
    is off by more than 1e-4 of the largest of its output (plus ``SMALL``).

    Args:
        precision: the precision whose error is acceptable (``int8``), ``none`` counting as ``fp32``.
        task: the task metric and the least share of the reference's score, beside which a floor in dB stays.
        overrides: ``--gate NAME=VALUE``: a precision's name sets its SQNR for variants of that precision; a metric's
            name sets its least share.
        detections: outputs that are compared as sets of rows.
        items: how many distinct samples there are, where that is known.
    """
    held = precision if precision in GATES_DB else "fp32"
    least = overrides.get("sqnr_db", overrides.get(held, (TASK_FLOORS_DB if task else GATES_DB)[held]))
    if items is not None and items < FEW_ITEMS:
        gate = {"tolerance_db": overrides.get("sqnr_db", overrides.get(held, GATES_DB[held]))}
    else:
        gate = {} if task is None else {task[0]: task[1]}
        gate |= {"sqnr_db": least, "shape_db": min(SHAPE_FLOORS_DB[held], least)}
    if _exact(outputs, detections):
        gate["agreement"] = 1.0
    if detections:
        gate["matched"] = GATES_MATCHED[held]
    return gate | {name: value for name, value in overrides.items() if name in gate}


def lowered(gate: Mapping[str, float], usual: Mapping[str, float]) -> tuple[str, ...]:
    """Say, a sentence each, which values of a gate lie below the usual ones."""
    return tuple(
        f"the gate {name} is {gate[name]:g} in place of {least:g}, as --gate asked"
        for name, least in usual.items()
        if gate.get(name, least) < least
    )


def bearing(overrides: Mapping[str, float], precision: str) -> dict[str, float]:
    """Return the ``--gate`` values that bear on variants of a precision: those of other precisions do not.

    All bear on one whose runtime chooses (``none``).
    """
    return {n: value for n, value in overrides.items() if precision in (n, "none") or n not in GATES_DB}


def check_names(overrides: Mapping[str, float], task: tuple[str, float] | None) -> None:
    """Refuse ``--gate`` names that no gate has.

    Raises:
        UsageError: an unknown name; the nearest known one is suggested.
    """
    known = [*NAMES, *([task[0]] if task else [])]
    for name in overrides:
        if name not in known:
            raise UsageError(f"--gate {name}: this model has no such gate{nearest(name, known)}", fix=", ".join(known))


def coarser(observed: str, asked: str) -> bool:
    """Say whether the precision that runs is coarser than the one asked for; unknown names never are."""
    return observed in _ORDER and asked in _ORDER and _ORDER.index(observed) < _ORDER.index(asked)


def refused(verdict: Parity, reason: str) -> Parity:
    """Return the verdict as a failure for a reason that no comparison shows, which is told first."""
    return replace(verdict, passed=False, reasons=(reason, *verdict.reasons))


def _is_integer(spec: TensorSpec) -> bool:
    return np.dtype(spec.dtype).kind in "iub"


def _exact(outputs: Sequence[TensorSpec], detections: Detections | None) -> list[TensorSpec]:
    """List the outputs that must be equal value for value: integers, except those of a set of rows."""
    sets = detections.names if detections else ()
    return [spec for spec in outputs if _is_integer(spec) and spec.name not in sets]


def _is_scores(spec: TensorSpec) -> bool:
    return spec.name.endswith("logits") or spec.name in ("scores", "probabilities")


def _class_axis(spec: TensorSpec) -> int | None:
    """Axis of the classes of a score: 1 for images (batch, class, y, x), else the last; None where it varies."""
    axis = 1 if len(spec.dims) == 4 and isinstance(spec.dims[1], int) else len(spec.dims) - 1
    return axis if axis > 0 and isinstance(spec.dims[axis], int) else None


Rows = Iterable[tuple[str, np.ndarray, np.ndarray, np.ndarray | None]]


def _compare_output(spec: TensorSpec, rows: Rows, *, few: bool = False, least: float = -math.inf) -> _Compared:
    """Compare one output of all feeds.

    Args:
        few: whether there are too few samples for a mean.
        least: show every coverage feed below this, not the worst alone.
    """
    fixed = [axis for axis, dim in enumerate(spec.dims) if isinstance(dim, int)]
    classes = _class_axis(spec) if _is_scores(spec) else None
    pairs = []
    sums: dict[str, _Sums] = {}
    given = 0
    for feed, truth, found, mask in rows:
        if truth.shape != found.shape:
            raise StageError(f"output {spec.name!r} of feed {feed!r} has shape {found.shape}, expected {truth.shape}")
        given += truth.size
        sums[feed] = _Sums()
        if mask is not None:  # what is not compared must not be NaN either: 0 · NaN poisons a mean over positions
            sums[feed].nonfinite = int((np.isfinite(truth) & ~np.isfinite(found))[~mask].sum())
        if classes is not None:
            first, second = (sqnr.channels(v, mask, [classes]).argmax(axis=1) for v in (truth, found))
            sums[feed].agreed, sums[feed].ranked = int((first == second).sum()), len(first)
        pairs.append((feed, sqnr.channels(truth, mask, fixed), sqnr.channels(found, mask, fixed)))
    finite = [np.isfinite(t) for _, t, _ in pairs]
    # Signal is what varies over the samples: an extreme among the coverage feeds would move the mean, and lift it.
    mean = sqnr.mean([t for f, t, _ in pairs if not is_coverage(f)] or [t for _, t, _ in pairs])
    for ok, (feed, truth, found) in zip(finite, pairs, strict=True):
        _add(sums[feed], truth, found, ok, mean)
    told = [s for feed, s in sums.items() if not is_coverage(feed)] or list(sums.values())
    total, whole = _total(told), _total(sums.values())
    if flat := few or total.signal <= total.level * 10 ** (-FLAT_DB / 10):
        for part in (total, *sums.values()):
            part.signal = part.level + part.count * SMALL**2
    power = total.signal / total.count if total.count else 0.0
    by_feed = {f: sqnr.decibels(max(power * s.count, s.signal), s.noise) for f, s in sums.items() if s.seen != s.equal}
    shown = {f for f in SHAPE_POINTS if f in by_feed}
    covered = sorted((f for f in by_feed if is_coverage(f)), key=lambda f: _number(by_feed[f]))
    shown |= {f for f in covered if _number(by_feed[f]) < least} | set(covered[:1])
    worst = min(((db, f) for f, db in by_feed.items() if db is not None and is_sample(f)), default=(math.inf, ""))
    agreement = total.agreed / total.ranked if total.ranked else None
    if _is_integer(spec):
        agreement = whole.equal / whole.seen if whole.seen else 1.0
    norms = math.sqrt(total.signal) * math.sqrt(total.other)
    row = OutputParity(
        name=spec.name,
        max_abs=total.max_abs,
        cosine=total.dot / norms if norms > 0 and not flat else None,
        sqnr_db=sqnr.decibels(total.signal, total.noise),
        exact=whole.equal == whole.seen,
        agreement=agreement,
        atol_needed=total.max_abs,
        rtol_needed=total.max_rel if math.isfinite(total.max_rel) else None,
        by_shape_db={f: by_feed[f] for f in by_feed if f in shown},
        nonfinite=whole.nonfinite,
        by_shape_mse={f: sums[f].noise / sums[f].count for f in SHAPE_POINTS if f in by_feed and sums[f].count},
    )
    each = [total, *(s for feed, s in sums.items() if is_coverage(feed))]
    tolerances = [sqnr.decibels((max(total.largest, s.largest) + SMALL) ** 2, s.max_abs**2) for s in each]
    tolerance = min((db for db in tolerances if db is not None), default=None)
    off, share = {f: s.max_abs for f, s in sums.items()}, {f: s.max_rel for f, s in sums.items()}
    blank = given > 0 and not any(f.any() for f in finite)
    return _Compared(row, tolerance, *worst, blank=blank, max_abs=off, max_rel=share, error_db=_error_db(told))


def _error_db(feeds: Sequence[_Sums]) -> float:
    """Return the standard error of an SQNR over feeds that were drawn.

    Formula: 10 / ln 10 · sqrt(n / (n - 1) · Σ(sᵢ / Σs - eᵢ / Σe)²), of each feed's signal s and noise e.
    Source: the delta method for the logarithm of a ratio of sums.
    """
    signal, noise = sum(s.signal for s in feeds), sum(s.noise for s in feeds)
    if len(feeds) < 2 or not (signal > 0 and noise > 0):
        return 0.0
    squares = sum((s.signal / signal - s.noise / noise) ** 2 for s in feeds)
    return 10.0 / math.log(10.0) * math.sqrt(squares * len(feeds) / (len(feeds) - 1))


def _matched(feeds: Sequence[str], truth: Answers, found: Answers, declared: Detections) -> dict[str, Matched]:
    matched = {}
    for feed in feeds:
        mine, theirs = truth[feed], found[feed]
        for name in declared.names:
            have, got = mine[name].shape, theirs[name].shape
            if have != got:
                raise StageError(f"output {name!r} of feed {feed!r} has shape {got}, expected {have}")
        matched[feed] = match(mine, theirs, declared)
    return matched


def _share(matched: Iterable[Matched]) -> float:
    """Return the share of all rows, of both sides and all feeds, that have a partner."""
    both = list(matched)
    rows = sum(m.rows for m in both)
    return sum(m.paired for m in both) / rows if rows else 1.0


def _compare_rows(spec: TensorSpec, matched: Mapping[str, Matched], declared: Detections) -> _Compared:
    """Compare one output of a set of rows: values of matched rows, classes by their share, counts by their items."""
    share = _share(matched.values())
    if spec.name in (declared.boxes, declared.scores):
        # A row's place says nothing: only the coordinates of a box are channels.
        free = replace(spec, dims=("batch", "rows", *spec.dims[2:]))
        done = _compare_output(free, ((f, m.truth[spec.name], m.found[spec.name], None) for f, m in matched.items()))
        nonfinite = sum(m.nonfinite for m in matched.values())
        exact = done.row.exact and share == 1.0
        return replace(done, row=replace(done.row, exact=exact, nonfinite=done.row.nonfinite + nonfinite))
    off, equal, items = 0, 0, 0
    for m in matched.values():
        off, equal, items = max(off, m.count_off), equal + m.counts[0], items + m.counts[1]
    counts = spec.name == declared.count
    agreement = (equal / items if items else 1.0) if counts else share
    row = OutputParity(
        name=spec.name,
        max_abs=float(off) if counts else 0.0,
        cosine=None,
        sqnr_db=None,
        exact=agreement == 1.0,
        agreement=agreement,
        atol_needed=float(off) if counts else 0.0,
        rtol_needed=None,
    )
    return _Compared(row, None, math.inf, "", blank=False)


def _add(sums: _Sums, truth: np.ndarray, found: np.ndarray, ok: np.ndarray, mean: np.ndarray) -> None:
    """Add the figures of a feed (samples, channels), in blocks whose intermediate values a cache holds."""
    rows = max(1, BLOCK // max(1, truth.shape[1]))
    for start in range(0, len(truth), rows):
        block = slice(start, start + rows)
        _add_block(sums, truth[block], found[block], ok[block], mean)


def _add_block(sums: _Sums, truth: np.ndarray, found: np.ndarray, ok: np.ndarray, mean: np.ndarray) -> None:
    same = (truth == found) | (np.isnan(truth) & np.isnan(found))  # before the cast: float64 merges large integers
    truth, found = truth.astype(np.float64), found.astype(np.float64)
    bad = ~np.isfinite(found) & ok
    use = ok & ~bad
    with np.errstate(invalid="ignore"):  # infinities of the reference are not in ``use``
        parts = found - truth, truth, truth - mean, found - mean
        error, level, signal, other = parts if use.all() else (np.where(use, part, 0.0) for part in parts)
    absolute = np.abs(error)
    with np.errstate(divide="ignore", invalid="ignore"):
        relative = np.where(absolute > 0, absolute / np.abs(truth), 0.0)
    sums.count += int(use.sum())
    sums.largest = max(sums.largest, float(np.abs(level).max(initial=0.0)))
    sums.level += float(np.vdot(level, level))
    sums.signal += float(np.vdot(signal, signal))
    sums.noise += float(np.vdot(error, error))
    sums.dot += float(np.vdot(signal, other))
    sums.other += float(np.vdot(other, other))
    sums.max_abs = max(sums.max_abs, float(absolute.max(initial=0.0)))
    sums.max_rel = max(sums.max_rel, float(relative.max(initial=0.0)))
    sums.equal += int(same.sum())
    sums.seen += truth.size
    sums.nonfinite += int((bad | (~ok & ~same)).sum())


def _total(parts: Iterable[_Sums]) -> _Sums:
    total = _Sums()
    for part in parts:
        for name in _Sums.__slots__:
            join = max if name in ("largest", "max_abs", "max_rel") else operator.add
            setattr(total, name, join(getattr(total, name), getattr(part, name)))
    return total


def _figures(name: str, compared: Sequence[_Compared], outputs: Sequence[TensorSpec]) -> list[_Figure]:
    """List what a gate in dB speaks about, worst first: float outputs that differ, at each place or over all."""
    floats = [c for c, spec in zip(compared, outputs, strict=True) if not _is_integer(spec) and not c.row.exact]
    if name == "sqnr_db":
        told = [(_number(c.row.sqnr_db), c) for c in floats if c.row.max_abs > 0]
        found = [
            _Figure(db, c.row, None, c.row.max_abs, _or_infinite(c.row.rtol_needed), db - CERTAIN * c.error_db)
            for db, c in told
        ]
    elif name == "tolerance_db":
        found = [_Figure(c.tolerance_db, c.row, None, c.row.max_abs) for c in floats if c.tolerance_db is not None]
    else:
        found = [
            _Figure(_number(db), c.row, place, c.max_abs[place], c.max_rel[place])
            for c in floats
            for place, db in c.row.by_shape_db.items()
        ]
    return sorted(found, key=lambda f: f.db)


def _or_infinite(value: float | None) -> float:
    return math.inf if value is None else value


def _number(db: float | None) -> float:
    """Return a figure to sort by: None means that nothing could be held against the error, and is the worst of all."""
    return -math.inf if db is None else db


def _least(least: float, noise: Noise | None, figure: _Figure) -> tuple[float, OutputParity | None]:
    """Return a gate in dB as low as the source's own noise makes it, and the noise of the output, where it has any.

    At a coverage feed another runtime's kernels have room, too; one at which they leave nothing above
    ``NOISE_LEAST_DB`` shows nothing: there is no gate.
    """
    row = next((r for r in noise.outputs if r.name == figure.row.name and not r.exact), None) if noise else None
    if row is None:
        return least, None
    usual = [row.sqnr_db, *(row.by_shape_db.get(shape) for shape in SHAPE_POINTS)]
    other = min((db for db in usual if db is not None), default=None)
    own = row.sqnr_db if figure.place is None else row.by_shape_db.get(figure.place, other)
    covers = figure.place is not None and is_coverage(figure.place) and figure.place in row.by_shape_db
    room = KERNELS_ROOM_DB if covers else noise.room_db if noise else NOISE_ROOM_DB
    if covers and _number(own) - room < NOISE_LEAST_DB:
        return -math.inf, row
    return (least if own is None else min(least, max(own - room, NOISE_LEAST_DB))), row


def _verdict(
    gate: Mapping[str, float],
    values: Mapping[str, float | None],
    compared: Sequence[_Compared],
    outputs: Sequence[TensorSpec],
    lost: Sequence[str],
    noise: Noise | None,
    scores: Mapping[str, tuple[float, float]],
) -> Parity:
    rows = [c.row for c in compared]
    reasons = [
        f"output {r.name!r} has {r.nonfinite} values that are NaN or infinite where the reference's are not, or the "
        "other way round"
        for r in rows
        if r.nonfinite
    ]
    reasons += [
        f"output {c.row.name!r} has no finite, unmasked value in the reference: nothing was compared"
        for c in compared
        if c.blank
    ]
    found: dict[str, float | None] = {}
    held, notes = dict(gate), []
    for name, least in gate.items():
        if name in IN_DB:
            figures = _figures(name, compared, outputs)
            value: float | None = figures[0].db if figures else None
            for figure in figures:
                own, row = (least, None) if name == "tolerance_db" else _least(least, noise, figure)
                told = _told(noise, row, figure.place)
                if figure.max_rel <= LAST_PLACES:
                    own = min(own, figure.db)
                if figure.db < own:
                    reasons.append(f"{name} {figure.shown} is below the gate of {own:.4g} ({figure}){told}")
                    break
                if name == "sqnr_db" and figure.low_db < own == least >= GATES_DB["fp32"]:
                    reasons.append(
                        f"{name} {figure.shown} holds the gate of {own:.4g} by chance: other samples may give "
                        f"{figure.low_db:.4g} ({figure}){told}"
                    )
                    break
                if figure.db < least and own == -math.inf:
                    notes.append(f"{name} {figure.shown} says nothing ({figure}){told}: as little there")
                elif figure.db < least:
                    held[name] = min(held[name], own)
                    place = f"in place of {least:g} ({figure}){told}"
                    notes.append(f"{name} {figure.shown} is held to {own:.4g} {place}")
        else:
            value = values.get(name)
            if value is not None and not value >= least:
                of = " of the source's own score ({:.4g} of {:.4g})".format(*scores[name]) if name in scores else ""
                reasons.append(f"{name} {_below(value, least)}{of} is below the gate of {least:g}")
        found[name] = value if value is None or math.isfinite(value) else None
    reasons += lost
    floor = min(SAMPLE_FLOOR_DB, gate.get("sqnr_db", -math.inf))
    reasons += [
        f"sample {c.worst_feed!r} alone keeps {c.worst_db:.4g} dB of output {c.row.name!r}, less than {floor:g}"
        for c, spec in zip(compared, outputs, strict=True)
        if c.worst_db < floor and not _is_integer(spec)
    ]
    known = {name: both for name, both in scores.items() if all(map(math.isfinite, both))}
    return Parity(not reasons, held, found, tuple(rows), tuple(reasons), tuple(notes), known)


def settled(verdict: Parity, *, rebuilt: bool = True) -> bool:
    """Say whether a verdict on part of the feeds stands without the others, as far as samples go.

    What one feed fails by itself no other feed repairs. A mean over the samples settles nothing near its gate; what is
    asked of each feed alone (coverage) may of course still fail at one that was not asked.

    Args:
        rebuilt: whether what misses its gate on all feeds would be built again: then that has to be known at once. Else
            what passes near its gate stands until it is chosen.
    """
    means = {name: verdict.found[name] for name in verdict.gate if name not in ("shape_db", "agreement")}
    if any(not reason.startswith(tuple(f"{name} " for name in means)) for reason in verdict.reasons):
        return True
    if not verdict.passed:
        told = [(verdict.gate[name] - NEAR_DB, value) for name, value in means.items() if name in IN_DB]
        return any(value is not None and value < far for far, value in told)
    if not rebuilt:
        return True
    room = {name: NEAR_DB if name in IN_DB else (1 - least) / 2 for name, least in verdict.gate.items()}
    return all(value is None or value >= verdict.gate[name] + room[name] for name, value in means.items())


def _below(value: float, least: float) -> str:
    """Write a value with so many digits that it is seen to be below another one."""
    return next((text for digits in (4, 6, 9) if float(text := f"{value:.{digits}g}") < least), f"{value!r}")


def accept(verdict: Parity) -> str | None:
    """Say which ``--gate`` would let a variant pass that fails by its dB or few integers; None where that is not all.

    Integers of a picture were floats, of which the last bit may fall on either side.
    """
    told = [n for n in (*IN_DB, "agreement") if any(reason.startswith(f"{n} ") for reason in verdict.reasons)]
    missed: dict[str, float] = {}
    for name in told:
        if (value := verdict.found[name]) is not None and name in IN_DB:
            missed[name] = min(math.floor(value), math.ceil(verdict.gate[name]) - 1)
        elif value is not None and value >= FEW_INTEGERS:
            missed[name] = math.floor(value * 1e4) / 1e4
    if not missed or len(missed) < len(verdict.reasons):
        return None
    asked = " ".join(f"--gate {_ASKED.get(name, name)}={least}" for name, least in missed.items())
    return f"if that is accurate enough for you: {asked}"


def missed(verdict: Parity) -> tuple[str, ...]:
    """Return the checked shapes and coverage feeds at which some output lies below its gate."""
    least = verdict.gate.get("shape_db", -math.inf)
    return tuple(sorted({f for row in verdict.outputs for f, db in row.by_shape_db.items() if _number(db) < least}))


def may_be_noise(verdict: Parity) -> bool:
    """Say whether the source's own noise may be why a variant fails: a tolerance and integers have no room for it."""
    missed_db = any(reason.startswith(("sqnr_db ", "shape_db ")) for reason in verdict.reasons)
    return missed_db and accept(verdict) is not None


def _told(noise: Noise | None, row: OutputParity | None, place: str | None) -> str:
    """Say how the error compares with the source's own noise, at the same place where it is known there."""
    if noise is None:
        return ""
    if row is None:
        return f"; the source itself, {noise.how}, gives equal values"
    if place is not None and (there := row.by_shape_db.get(place)) is not None:
        return f"; the source itself, {noise.how}, gives {there:.4g} dB there"
    own = "no figure" if row.sqnr_db is None else f"{row.sqnr_db:.4g} dB"
    return f"; the source itself, {noise.how}, gives {own} (largest error {row.max_abs:.2g})"


def _wrong_dtypes(answers: Answers, outputs: Sequence[TensorSpec]) -> list[str]:
    """Find float outputs of another width than the contract's."""
    first = next(iter(answers.values()))
    return [
        f"output {spec.name!r} is {first[spec.name].dtype}, expected {spec.dtype}"
        for spec in outputs
        if first[spec.name].dtype.kind == "f" and first[spec.name].dtype != np.dtype(spec.dtype)
    ]
