"""Answers looked at while they are timed or come under load: each against what its feed should give.

A check must not change what is measured. So it looks at evenly spaced values of an answer, at others each time; keeps
the worst answer of each feed, which is compared in full when the round is over; and takes no more than its share of the
time where it runs between timed calls. NumPy and the standard library are all it needs.
"""

import random
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter_ns as now_ns

import numpy as np

from accel.core.accuracy import parity
from accel.core.feeds import Feed, by_feed, read_feeds, read_npz
from accel.core.values import Detections, Parity, TensorSpec

VALUES = 4096
"""Values of an output that one look compares."""
SHARE = 0.02
"""Most of the time that looking may take between calls that are under way, or beside requests."""


@dataclass(frozen=True, slots=True)
class Check:
    """What the answers of a session that is timed should be.

    Attributes:
        expected: ``.npz`` with keys ``<point>/<output>``: what the source answered.
        gate: what each point is held to.
        masks: ``.npz`` with keys ``<point>/<mask_input>``; where it is 0, outputs that begin with its dims are not
            compared. None where nothing is padded.
    """

    expected: Path
    outputs: tuple[TensorSpec, ...]
    gate: Mapping[str, float]
    detections: Detections | None = None
    masks: Path | None = None
    mask_input: str = ""
    mask_dims: tuple[str, ...] = ()

    def mask_of_feeds(self, feeds: Collection[str]) -> dict[str, np.ndarray]:
        """Read the masks of these feeds, by their names."""
        if self.masks is None:
            return {}
        wanted = {f"{feed}/{self.mask_input}" for feed in feeds}
        return {key.partition("/")[0]: v for key, v in read_npz(self.masks, wanted.__contains__).items()}


class Checker:
    """Holds answers against what their feeds should give, and keeps the worst of each feed and output.

    Args:
        arrays: see ``check_arrays``.
        share: most of the time that looking may take; None looks at every answer.
    """

    def __init__(self, arrays: Mapping[str, np.ndarray], *, share: float | None = None) -> None:
        self._expected = {k.partition("/")[2]: v for k, v in arrays.items() if k.startswith("expected/")}
        self._masks = {
            k: _spread(mask.astype(bool), self._expected[k].shape)
            for key, mask in arrays.items()
            if key.startswith("mask/") and (k := key.partition("/")[2]) in self._expected
        }
        self._unordered = {k.partition("/")[2] for k in arrays if k.startswith("unordered/")}
        self._share = share
        self._quiet_until_ns = 0
        self._slots, self._passing = 1, 0
        self._cost_ns: dict[str, int] = {}
        self._drawn = random.Random(0)
        self.checked = 0
        self.noise: dict[str, float] = {}
        self.worst: dict[str, np.ndarray] = {}
        self._judged: Parity | None = None

    def look(self, feed: str, outputs: Mapping[str, np.ndarray], slot: int = 0) -> None:
        """Compare one answer, where there is time for it.

        Args:
            slot: whose answer it is, where several are collected in turn. Time alone would choose the same one again
                and again: the answer that was waited for comes late, the others lie there already.
        """
        begin = now_ns()
        self._slots = max(self._slots, slot + 1)
        if begin < self._quiet_until_ns:
            return
        if self._passing:
            self._passing -= 1
            return
        self.checked += 1
        noises = {n: self._distance(f"{feed}/{n}", v) for n, v in outputs.items() if f"{feed}/{n}" in self._expected}
        together = sum(noise for name, noise in noises.items() if name in self._unordered)
        for name, own in noises.items():
            key, noise = f"{feed}/{name}", together if name in self._unordered else own  # a set is kept as a whole
            if noise > self.noise.get(key, -1.0):
                self.noise[key], self.worst[key] = noise, np.array(outputs[name])
                self._judged = None
        if self._share is not None:
            end = now_ns()
            # The least of one feed: what was interrupted took longer for another reason. Time and slot are drawn, so
            # that what comes round in turn (slots, one call in 40) is met at every place of its turn.
            cost_ns = self._cost_ns[feed] = min(end - begin, self._cost_ns.get(feed, end - begin))
            self._quiet_until_ns = end + int(cost_ns / self._share * self._drawn.uniform(0.5, 1.5))
            self._passing = self._drawn.randrange(self._slots)

    def judge(self, check: Check) -> Parity | None:
        """Hold the worst answers against the gate, once as long as they stay the worst; None where there are none."""
        if not self.worst or self._judged is not None:
            return self._judged
        found = by_feed(self.worst, "worst answers")
        truth = by_feed(self._expected, "expected answers")
        whole = {feed: {**truth[feed], **answers} for feed, answers in found.items()}
        self._judged = parity.compare(
            truth,
            whole,
            outputs=check.outputs,
            masks=check.mask_of_feeds(whole),
            mask_dims=check.mask_dims,
            gate=check.gate,
            detections=check.detections,
        )
        return self._judged

    def _distance(self, key: str, found: np.ndarray) -> float:
        """Sum squared errors over what the mask keeps; infinite where shapes differ or one side alone is NaN."""
        expected, mask = self._expected[key], self._masks.get(key)
        if found.shape != expected.shape:
            return float("inf")
        if key.partition("/")[2] in self._unordered:
            expected, found = np.sort(expected, axis=None), np.sort(found, axis=None)
        step = -(-expected.size // VALUES) or 1
        looked = slice(self.checked % step, None, step)
        truth, value = (side.reshape(-1)[looked].astype(np.float64) for side in (expected, found))
        with np.errstate(invalid="ignore"):
            error = value - truth
        if mask is not None:
            error = error[mask[looked]]
            truth, value = truth[mask[looked]], value[mask[looked]]
        noise = float(np.vdot(error, error))
        if noise != noise:
            same = (truth == value) | (np.isnan(truth) & np.isnan(value))
            noise = float(np.square(error, where=~same, out=np.zeros_like(error)).sum())
        return noise if noise == noise else float("inf")


def checker(check: Check, *, share: float | None) -> Checker:
    """Make the checker of a session; see ``Checker``."""
    answers = read_feeds(check.expected)
    arrays = {f"expected/{feed}/{name}": v for feed, outputs in answers.items() for name, v in outputs.items()}
    masked = [s.name for s in check.outputs if check.masks and s.dims[: len(check.mask_dims)] == check.mask_dims]
    arrays |= {f"mask/{feed}/{name}": m for feed, m in check.mask_of_feeds(answers).items() for name in masked}
    return Checker(arrays | _unordered(check.detections), share=share)


def check_arrays(
    expected: Sequence[Feed], masks: Sequence[Feed], detections: Detections | None = None
) -> dict[str, np.ndarray]:
    """Return what a ``Checker`` takes.

    Args:
        expected: outputs of each feed.
        masks: for each feed, output → mask over its leading axes; what is not 1 there is not compared.
        detections: outputs whose rows have no order: their values are compared sorted.
    """
    arrays = {f"expected/{i}/{name}": v for i, feed in enumerate(expected) for name, v in feed.items()}
    arrays |= {f"mask/{i}/{name}": v for i, feed in enumerate(masks) for name, v in feed.items()}
    return arrays | _unordered(detections)


def _unordered(detections: Detections | None) -> dict[str, np.ndarray]:
    return {f"unordered/{name}": np.zeros(0) for name in detections.names} if detections else {}


def _spread(mask: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """Return a mask over leading axes as one over all values, flat."""
    return np.broadcast_to(mask.reshape(*mask.shape, *(1,) * (len(shape) - mask.ndim)), shape).reshape(-1)
