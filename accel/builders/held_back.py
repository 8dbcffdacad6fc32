"""How accurate a quantised file is on calibration samples that were held back: what every search for layers asks.

The same comparison as the gate's, but never on the gate's samples: a choice that was made on them would prove nothing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

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


class HeldBack:
    """Feeds that judge, what the FP32 file answers to them, and the least score that will do.

    Args:
        request: the variant and its source.
        onnx: the FP32 file.
        feeds: by name; those with the name of a checked shape count for ``shape_db`` alone.
        gate: metric → least value. The first is the score; where another one is missed, the score is the lowest.
    """

    def __init__(self, request: BuildRequest, onnx: Path, feeds: Mapping[str, Feed], gate: Mapping[str, float]) -> None:
        self._request, self._feeds, self._gate = request, feeds, dict(gate)
        self._metric, self.floor = next(iter(gate.items()))
        self._truth = self._answers(onnx)
        self._count = 0

    def score(self, onnx: Path) -> float:
        """Return the figure of a file: dB, or the task metric; 200 where every value is equal."""
        found = verdict.compare(self._request.source, self._feeds, self._truth, self._answers(onnx), self._gate)
        value = found.found[self._metric]
        others = [(found.found[name], least) for name, least in self._gate.items() if name != self._metric]
        if any(row.nonfinite for row in found.outputs) or any(v is not None and v < least for v, least in others):
            value = -math.inf
        elif value is None:  # equal everywhere, or a constant signal met an error
            value = EXACT_DB if found.passed else -math.inf
        self._count += 1
        progress.tell(f"choice {self._count}: {self._metric} {value:.4g}")
        return value

    def _answers(self, onnx: Path) -> parity.Answers:
        from accel.graph import evaluate, measured

        session = evaluate.open_exact(onnx, self._request.threads)
        names = [spec.name for spec in self._request.source.outputs]
        return {
            name: dict(zip(names, measured.run(session, names, feed, onnx.name), strict=True))
            for name, feed in self._feeds.items()
        }


def for_gate(
    request: BuildRequest, onnx: Path, precision: Precision, feeds: Sequence[Feed]
) -> tuple[list[Feed], HeldBack]:
    """Hold some calibration feeds back, to be judged by the variant's own gate; returns the others, too."""
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
    floors = {name: least for name, least in gate.items() if name == first or name in request.gates}
    floors.pop("shape_db", None)  # no feed here has a checked shape
    if "sqnr_db" in floors:
        floors["sqnr_db"] += ROOM_DB
    judges = {str(number): feed for number, feed in enumerate(feeds[-count:])}
    return list(feeds[: len(feeds) - count]) or list(feeds), HeldBack(request, onnx, judges, floors)


def for_sqnr(
    request: BuildRequest, onnx: Path, feeds: Sequence[Feed], *, target_db: float | None
) -> tuple[list[Feed], HeldBack]:
    """Hold every fourth calibration feed back; requests of few items, the smallest one among them, judge by SQNR.

    A task metric that the user set is held, too, on all feeds that were held back.

    Args:
        target_db: least SQNR of each; None for what the gate of INT8 asks for, and some room.
    """
    source = request.source
    held = [f for i, f in enumerate(feeds) if i % 4 == 3] or list(feeds[-1:])
    rest = [f for i, f in enumerate(feeds) if i % 4 != 3] or list(feeds)
    if target_db is None:
        gate = parity.gate_for("int8", outputs=source.outputs, task=None, overrides=request.gates)
        target_db = gate["sqnr_db"] + ROOM_DB
    smallest = {name: shapes.min for name, shapes in request.variant.profile.items()}
    few = dict.fromkeys(held[0], (4,))
    judges: dict[str, Feed] = {"odd": _cut(held[0], few), "max": _cut(held[-1], few), "min": _cut(held[0], smallest)}
    floors = {"shape_db": target_db}
    if source.gate and source.gate[0] in request.gates:
        floors[source.gate[0]] = request.gates[source.gate[0]]
        judges |= {str(number): feed for number, feed in enumerate(held)}
    return rest, HeldBack(request, onnx, judges, floors)


def _cut(feed: Feed, sizes: Mapping[str, tuple[int, ...]]) -> Feed:
    """Return the feed with its leading axes cut to at most these sizes."""
    return {name: value[tuple(slice(n) for n in sizes[name])] for name, value in feed.items()}
