"""How accurate a quantised file is on calibration samples that were held back: what the search for INT8 layers asks.

The same comparison as the gate's, but never on the gate's samples: a choice that was made on them would prove nothing.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from accel.accuracy import parity
from accel.core import progress
from accel.core.feeds import Feed
from accel.core.values import BuildRequest
from accel.exporters.zoo import zoo

HELD_BACK = 8
"""Samples for an SQNR, which averages over every value."""
HELD_BACK_TASK = 32
"""Samples for a task metric, which averages over samples."""
ROOM_DB = 3.0
"""How far above the gate's SQNR the search stays, since the gate has other samples."""


class HeldBack:
    """The samples that were held back, what the FP32 file answers on them, and the least score that will do.

    Args:
        request: the variant and its source.
        onnx: the FP32 file.
        precision: whose gate is to hold.
        feeds: the calibration set.
    """

    def __init__(self, request: BuildRequest, onnx: Path, precision: str, feeds: Sequence[Feed]) -> None:
        source = request.source
        count = min(HELD_BACK_TASK if source.gate else HELD_BACK, max(1, len(feeds) // 4))
        self.rest = list(feeds[: len(feeds) - count]) or list(feeds)
        self._request = request
        self._count = 0
        self._feeds = {str(number): feed for number, feed in enumerate(feeds[-count:])}
        gate = parity.gate_for(
            precision, outputs=source.outputs, task=source.gate, overrides={}, detections=source.detections
        )
        self._metric, least = next(iter(gate.items()))
        self.floor = least + ROOM_DB if self._metric == "sqnr_db" else least
        self._scratch = tempfile.TemporaryDirectory(prefix="accel-held-back-")
        self._truth = Path(self._scratch.name) / "truth.npz"
        self._answer(onnx, self._truth)

    def close(self) -> None:
        """Remove what was written."""
        self._scratch.cleanup()

    def score(self, onnx: Path) -> float:
        """Return the gate's figure for a file: SQNR in dB, or the task metric; 200 where every value is equal."""
        source = self._request.source
        found = self._truth.with_name("found.npz")
        self._answer(onnx, found)
        masks: dict[str, np.ndarray] = {}
        dims: tuple[str, ...] = ()
        if source.mask is not None:
            masks = {name: feed[source.mask] for name, feed in self._feeds.items()}
            dims = tuple(str(d) for d in next(s.dims for s in source.inputs if s.name == source.mask))
        verdict = parity.compare(
            self._truth,
            found,
            outputs=source.outputs,
            masks=masks,
            mask_dims=dims,
            gate={self._metric: self.floor},
            metric=self._task if source.gate else None,
            detections=source.detections,
        )
        value = verdict.found[self._metric]
        self._count += 1
        progress.tell(f"choice {self._count}: {self._metric} {200.0 if value is None else value:.4g}")
        return 200.0 if value is None else value

    def _task(self, truth: Path, found: Path) -> float:
        metric = zoo().entry(self._request.source.reference).metric
        assert metric is not None  # a task gate comes from an entry that has one
        expected, answered = ([_one(path, name) for name in self._feeds] for path in (truth, found))
        return float(metric(expected, answered, list(self._feeds.values())))

    def _answer(self, onnx: Path, out: Path) -> None:
        from accel.graph import evaluate

        session = evaluate.open_exact(onnx, self._request.threads)
        names = [spec.name for spec in self._request.source.outputs]
        answers = {}
        for number, feed in self._feeds.items():
            for name, value in zip(names, session.run(names, dict(feed)), strict=True):
                answers[f"{number}/{name}"] = value
        with out.open("wb") as file:
            np.savez(file, **answers)


def _one(path: Path, feed: str) -> Mapping[str, np.ndarray]:
    with np.load(path, allow_pickle=False) as file:
        return {key.partition("/")[2]: file[key] for key in file.files if key.partition("/")[0] == feed}
