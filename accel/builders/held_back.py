"""How accurate a quantised file is on calibration samples that were held back: what every search for layers asks.

The same comparison as the gate's, but never on the gate's samples: a choice that was made on them would prove nothing.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from accel.accuracy import parity
from accel.accuracy.sqnr import EXACT_DB
from accel.core import progress
from accel.core.feeds import Feed
from accel.core.values import BuildRequest, Precision
from accel.exporters import verdict

HELD_BACK = 8
"""Samples for an SQNR, which averages over every value."""
HELD_BACK_TASK = 32
"""Samples for a task metric, which averages over samples."""
ROOM_DB = 3.0
"""How far above the gate's SQNR a search stays, since the gate has other samples."""

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
    """

    def __init__(
        self,
        request: BuildRequest,
        reference: Any,
        feeds: Mapping[str, Feed],
        gate: Mapping[str, float],
        open_model: Open,
    ) -> None:
        self._source, self._gate, self._open = request.source, dict(gate), open_model
        self.feeds = feeds
        self._metric, self.floor = next(iter(gate.items()))
        self._truth = self._answers(reference)
        self._count = 0

    def score(self, model: Any) -> float:
        """Return the figure of a choice: dB, or the task metric; 200 where every value is equal."""
        found = verdict.compare(self._source, self.feeds, self._truth, self._answers(model), self._gate)
        value = found.found[self._metric]
        others = [(found.found[name], least) for name, least in self._gate.items() if name != self._metric]
        if any(row.nonfinite for row in found.outputs) or any(v is not None and v < least for v, least in others):
            value = -math.inf
        elif value is None:  # equal everywhere, or a constant signal met an error
            value = EXACT_DB if found.passed else -math.inf
        self._count += 1
        progress.report_progress(f"choice {self._count}: {self._metric} {value:.4g}")
        return value

    def _answers(self, model: Any) -> parity.Answers:
        run = self._open(model)
        return {name: run(feed) for name, feed in self.feeds.items()}


def onnx_runner(request: BuildRequest) -> Open:
    """Return what opens ONNX files, Q/DQ pairs computed as written."""
    from accel.graph import evaluate, measured

    names = [spec.name for spec in request.source.outputs]

    def open_model(path: Path) -> Callable[[Feed], Feed]:
        session = evaluate.open_exact(path, request.threads)
        return lambda feed: dict(zip(names, measured.run(session, names, feed, path.name), strict=True))

    return open_model


def for_gate(
    request: BuildRequest, reference: Any, precision: Precision, feeds: Sequence[Feed], open_model: Open
) -> tuple[list[Feed], HeldBack]:
    """Hold some calibration feeds back, to judge by the variant's own gate; returns the others, too."""
    source = request.source
    count = min(HELD_BACK_TASK if source.gate else HELD_BACK, max(1, len(feeds) // 4))
    gate = parity.gate_for(
        precision,
        outputs=source.outputs,
        task=source.gate,
        overrides=request.gates,
        detections=source.detections,
    )
    first = next(iter(gate))
    wanted = {first, "sqnr_db", *request.gates} - {"shape_db"}  # no feed here has a checked shape
    floors = {name: least for name, least in gate.items() if name in wanted}
    if "sqnr_db" in floors:
        floors["sqnr_db"] += ROOM_DB
    judges = {str(number): feed for number, feed in enumerate(feeds[-count:])}
    return list(feeds[: len(feeds) - count]) or list(feeds), HeldBack(request, reference, judges, floors, open_model)


def for_sqnr(
    request: BuildRequest, onnx: Path, feeds: Sequence[Feed], *, target_db: float | None, each: bool
) -> tuple[list[Feed], HeldBack]:
    """Hold every fourth calibration feed back, to judge by SQNR; returns the others, too.

    A task metric that the user set is held, too, on all feeds that were held back.

    Args:
        target_db: least SQNR; None for what the gate of INT8 asks for, and some room.
        each: whether requests of few items, the smallest one among them, must reach it each, and not all feeds
            together.
    """
    source = request.source
    held = [f for i, f in enumerate(feeds) if i % 4 == 3] or list(feeds[-1:])
    rest = [f for i, f in enumerate(feeds) if i % 4 != 3] or list(feeds)
    if target_db is None:
        gate = parity.gate_for("int8", outputs=source.outputs, task=None, overrides=request.gates)
        target_db = gate["sqnr_db"] + ROOM_DB
    floors = {"shape_db" if each else "sqnr_db": target_db}
    judges: dict[str, Feed] = {}
    if each:
        smallest = {name: shapes.min for name, shapes in request.variant.profile.items()}
        few = dict.fromkeys(held[0], (4,))
        judges = {"odd": _cut(held[0], few), "max": _cut(held[-1], few), "min": _cut(held[0], smallest)}
        if not source.batched:
            judges = {"odd": held[0], "max": held[-1]}
    task = source.gate[0] if source.gate and source.gate[0] in request.gates else None
    if task is not None:
        floors[task] = request.gates[task]
    if task is not None or not each:
        judges |= {str(number): feed for number, feed in enumerate(held)}
    return rest, HeldBack(request, onnx, judges, floors, onnx_runner(request))


def _cut(feed: Feed, sizes: Mapping[str, tuple[int, ...]]) -> Feed:
    """Return the feed with its leading axes cut to at most these sizes."""
    return {name: value[tuple(slice(n) for n in sizes[name])] for name, value in feed.items()}
