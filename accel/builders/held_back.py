"""How accurate a quantised file is on calibration samples that were held back: what every search for layers asks.

The same comparison as the gate's, but never on the gate's samples: a choice that was made on them would prove nothing.
"""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from accel.core import progress
from accel.core.accuracy import parity
from accel.core.accuracy.sqnr import EXACT_DB
from accel.core.feeds import Feed
from accel.core.values import BuildRequest, Parity, Precision
from accel.exporters import coverage, verdict

HELD_BACK = 8
"""Samples for an SQNR, which averages over every value."""
HELD_BACK_TASK = 32
"""Samples for a task metric, which averages over samples."""
ROOM_DB = 3.0
"""How far above the gate's SQNR a search stays, since the gate has other samples."""
FEW = 4
"""Items for an estimate."""
LEAST_SHARE = 0.05
"""The least share of a model's multiplications in INT8 that lets it be called INT8.

An INT8 product takes a quarter of the time at best: of 5 % that saves less than 4 % in all, hardly more than the 3 %
within which two variants count as equivalent.
"""

Open = Callable[[Any], Callable[[Feed], Feed]]
"""Takes a model in the builder's own form, the float one or a choice, and returns what runs it."""


class HeldBack:
    """Feeds that judge, what the float model answers to them, and the least score that will do.

    Args:
        request: the variant and its source.
        reference: the float model.
        open_model: runs it, and the choices.
        feeds: by name; those with the name of a checked shape count for ``shape_db`` alone.
        gate: metric → least value. The first is the score; where another one is missed, the score is the lowest.
        seconds: after which the float model gets no further feed: the others do not judge.
        labels: of the feeds, for a task metric.
    """

    def __init__(
        self,
        request: BuildRequest,
        reference: Any,
        feeds: Mapping[str, Feed],
        gate: Mapping[str, float],
        open_model: Open,
        *,
        seconds: float = math.inf,
        labels: verdict.Labels | None = None,
    ) -> None:
        self._labels = labels
        self._source, self.gate, self._open = request.source, dict(gate), open_model
        self._metric, self.floor = next(iter(gate.items()))
        self._truth: dict[str, Feed] = {}
        self._count = 0
        self._reference = reference
        self._few: tuple[str, Feed, Feed] | None = None
        may = request.source.batched and request.variant.static is None
        self._sizes = {s.name: (FEW,) if may and s.dims[:1] == ("batch",) else () for s in request.source.inputs}
        run, start = open_model(reference), time.monotonic()
        for name, feed in feeds.items():
            if not self._truth or time.monotonic() - start < seconds:
                answer = run(feed)
                if coverage.answered(name, answer):
                    self._truth[name] = answer
        self.feeds = {name: feeds[name] for name in self._truth}

    def score(self, model: Any) -> float:
        """Return the figure of a choice, None for the float model: dB, or the task metric; 200 where all is equal."""
        found = self.compare(model, self.gate)
        value = found.found[self._metric]
        others = [(found.found[name], least) for name, least in self.gate.items() if name != self._metric]
        if any(row.nonfinite for row in found.outputs) or any(v is not None and v < least for v, least in others):
            value = -math.inf
        elif value is None:  # equal everywhere, or a constant signal met an error
            value = EXACT_DB if found.passed else -math.inf
        self._count += 1
        progress.report_progress(f"choice {self._count}: {self._metric} {value:.4g}")
        return value

    def estimate(self, model: Any) -> float:
        """Return the noise of a choice on a few items of one feed: its power over that of the float model's answers.

        Of several outputs it is the largest. It takes a fraction of the time of ``score`` and is no verdict: it ranks
        layers that are tried alone.
        """
        if self._few is None:
            name, feed = next(iter(self.feeds.items()))
            feed = _cut(feed, self._sizes)
            self._few = name, feed, self._open(self._reference)(feed)
        name, feed, truth = self._few
        masks, mask_dims = parity.masks_of(self._source.inputs, self._source.mask, {name: feed})
        found = parity.compare(
            *({name: truth}, {name: self._open(model)(feed)}),
            outputs=self._source.outputs,
            masks=masks,
            mask_dims=mask_dims,
            gate={"sqnr_db": 0.0},
        )
        value = found.found["sqnr_db"]
        if any(row.nonfinite for row in found.outputs):
            return math.inf
        return 0.0 if value is None else 10.0 ** (-value / 10.0)

    def compare(self, model: Any, gate: Mapping[str, float]) -> Parity:
        """Hold a choice, None for the float model, against a gate."""
        answers = self._truth
        if model is not None:
            run = self._open(model)
            answers = {name: run(feed) for name, feed in self.feeds.items()}
        return verdict.compare(self._source, self.feeds, self._truth, answers, gate, labels=self._labels)

    def loss(self, score: float) -> float:
        """Return what adds up over layers that were rounded: the noise's power, or how far the task metric fell."""
        return 10.0 ** min(-score / 10.0, 30.0) if self._metric in parity.IN_DB else -score

    def ask_more(self, found: Parity, more_db: float) -> None:
        """Raise the least SQNR that will do above that of a choice, if it is SQNR that decides."""
        had = found.found.get(self._metric)
        if self._metric == "sqnr_db" and had is not None:
            self.floor = self.gate["sqnr_db"] = max(self.floor, had + more_db)


def onnx_runner(request: BuildRequest, *, exact: bool = True) -> Open:
    """Return what opens ONNX files.

    Args:
        exact: whether Q/DQ pairs are computed as written, and not by this CPU's integer kernels.
    """
    from accel.graph import evaluate, measured

    names = [spec.name for spec in request.source.outputs]

    def open_model(path: Path) -> Callable[[Feed], Feed]:
        session = evaluate.open_light(path, request.threads, exact=exact)
        return lambda feed: dict(zip(names, measured.run(session, names, feed, path.name), strict=True))

    return open_model


def gate_of(request: BuildRequest, precision: Precision) -> dict[str, float]:
    """Return the variant's own gate, whose task metric those calibration feeds cannot show that lost their labels."""
    source = request.source
    return parity.gate_for(
        precision,
        outputs=source.outputs,
        task=source.gate if _scored(request) else None,
        overrides=request.gates,
        detections=source.detections,
    )


def second_build(request: BuildRequest) -> dict[str, str]:
    """Return the fact of a build that leaves more room than usual; none where it does not."""
    if request.room == 1:
        return {}
    return {"room": f"{request.room:g} times the usual one: what had held the gate here missed it there"}


def _scored(request: BuildRequest) -> bool:
    """Say whether calibration feeds show the task metric: those of a static build are cut apart from their labels."""
    return request.source.gate is not None and not (request.samples.labels and request.variant.static)


def _labels(request: BuildRequest) -> verdict.Labels | None:
    return verdict.labels_of(request.samples, Path(request.samples_folder), "calibration") if _scored(request) else None


def for_gate(
    request: BuildRequest,
    reference: Any,
    precision: Precision,
    feeds: Sequence[Feed],
    open_model: Open,
    *,
    room_db: float = ROOM_DB,
    seconds: float = math.inf,
    share: int = 4,
) -> tuple[list[Feed], HeldBack]:
    """Hold some calibration feeds back, to judge by the variant's own gate; returns the others, too.

    Like the gate's, the first one judges in other forms, too: with other masks, at the ends of declared ranges and of
    its own values, and beyond them.

    Args:
        room_db: the room that is left above its SQNR, ``BuildRequest.room`` times.
        seconds: as of ``HeldBack``.
        share: one feed of so many judges, at most.
    """
    count = min(HELD_BACK_TASK if _scored(request) else HELD_BACK, max(1, len(feeds) // share))
    room = request.room * room_db
    floors = {name: least + room * (name in parity.IN_DB) for name, least in gate_of(request, precision).items()}
    judges = {str(number): feeds[number] for number in range(len(feeds) - count, len(feeds))}
    made = coverage.first(coverage.variations(request.source, feeds[len(feeds) - count]), precision)
    judges |= {name: feed for name, feed in made.items() if coverage.asked(name, precision)}
    held = HeldBack(request, reference, judges, floors, open_model, seconds=seconds, labels=_labels(request))
    return list(feeds[: len(feeds) - count]) or list(feeds), held


def for_sqnr(
    request: BuildRequest, onnx: Path, feeds: Sequence[Feed], *, target_db: float | None, each: bool
) -> tuple[list[Feed], HeldBack]:
    """Hold every fourth calibration feed back, to judge by SQNR; returns the others, too.

    A task metric that the user set is held, too, on all feeds that were held back.

    Args:
        target_db: least SQNR; None for what the gate of INT8 asks for, and ``BuildRequest.room`` times some room; 0 or
            less for none at all.
        each: whether requests of few items, the smallest one among them, must reach it each, and not all feeds
            together.
    """
    source = request.source
    chosen = list(range(3, len(feeds), 4)) or [len(feeds) - 1]
    held = [feeds[i] for i in chosen]
    rest = [f for i, f in enumerate(feeds) if i % 4 != 3] or list(feeds)
    if target_db is None:
        gate = parity.gate_for("int8", outputs=source.outputs, task=None, overrides=request.gates)
        target_db = gate["sqnr_db"] + request.room * ROOM_DB
    whole = target_db <= 0
    each &= not whole
    floors = {"shape_db" if each else "sqnr_db": -math.inf if whole else target_db}
    judges: dict[str, Feed] = {}
    if each:
        smallest = {name: shapes.min for name, shapes in request.variant.profile.items()}
        few = dict.fromkeys(held[0], (4,))
        judges = {"odd": _cut(held[0], few), "max": _cut(held[-1], few), "min": _cut(held[0], smallest)}
        if not source.batched:
            judges = {"odd": held[0], "max": held[-1]}
    task = source.gate if _scored(request) and not whole else None
    if task is not None and source.metric is None and task[0] not in request.gates:
        task = None
    if task is not None:
        floors[task[0]] = request.gates.get(*task)
    if task is not None or not each:
        judges |= {str(number): feeds[number] for number in chosen}
    return rest, HeldBack(request, onnx, judges, floors, onnx_runner(request, exact=False), labels=_labels(request))


def _cut(feed: Feed, sizes: Mapping[str, tuple[int, ...]]) -> Feed:
    """Return the feed with its leading axes cut to at most these sizes."""
    return {name: value[tuple(slice(n) for n in sizes[name])] for name, value in feed.items()}
