"""What responses under load should be, and the verdict on those that came."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from accel.bench.checker import check_arrays
from accel.core.accuracy import parity
from accel.core.feeds import Feed, by_feed
from accel.core.values import Detections, Parity, TensorSpec

ROOM_DB = 1.0
"""How far an answer may lie below the floor of the proof: another number of threads or requests adds as much."""


@dataclass(frozen=True, slots=True)
class Expected:
    """What the responses to the feeds should be.

    Attributes:
        answers: reference outputs of each feed.
        outputs: the contract's outputs; text is not compared.
        gate: as ``parity.gate_for`` gives it, without a task metric.
        mask: input that is 0 at padded positions, and its dims; outputs that begin with these dims are compared where
            it is not.
    """

    answers: Sequence[Feed]
    outputs: Sequence[TensorSpec]
    gate: Mapping[str, float]
    mask: str | None = None
    mask_dims: tuple[str, ...] = ()
    detections: Detections | None = None

    def for_load(self, feeds: Sequence[Feed]) -> dict[str, np.ndarray]:
        """Return what the sending processes need to find the worst responses."""
        masked = [s.name for s in self.outputs if self.mask and s.dims[: len(self.mask_dims)] == self.mask_dims]
        masks = [dict.fromkeys(masked, feed[self.mask]) if self.mask else {} for feed in feeds]
        return check_arrays(
            [{s.name: answer[s.name] for s in self.outputs} for answer in self.answers], masks, self.detections
        )

    def judge(self, feeds: Sequence[Feed], worst: Mapping[str, np.ndarray]) -> Parity:
        """Hold the worst responses (``Generator.worst``) against the gate: if they pass, all do."""
        truth = {str(i): answer for i, answer in enumerate(self.answers)}
        masks = {str(i): feed[self.mask] for i, feed in enumerate(feeds)} if self.mask else {}
        found = by_feed(worst, "worst responses")
        return parity.compare(
            truth,
            found,
            outputs=self.outputs,
            masks=masks,
            mask_dims=self.mask_dims,
            gate=self.gate,
            detections=self.detections,
        )


def held_to(proof: Parity) -> dict[str, float]:
    """Return what later answers of a variant that passed are held to: the floor of one feed, with some room."""
    if "tolerance_db" in proof.gate:  # few samples
        gate = {"tolerance_db": proof.gate["tolerance_db"] - ROOM_DB}
    else:
        gate = dict.fromkeys(("sqnr_db", "shape_db"), proof.gate["shape_db"] - ROOM_DB)
    return gate | {name: share for name, share in proof.gate.items() if name == "agreement"}
