"""Answers that are sets: rows of two answers brought together, whatever their order and padding.

Two rows are one and the same where their classes are equal, their boxes overlap enough and their scores are near
(``artifacts.Detections`` says how much). Partners are chosen one to one, as many as can be and among those the ones
that overlap most. What is left over on either side was missed or made up. How exactly partners agree is then for the
caller to measure: boxes and scores are put in one order, with NaN wherever there is no partner.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from accel.core.errors import StageError
from accel.core.values import Detections

Arrays = Mapping[str, np.ndarray]


@dataclass(frozen=True, eq=False)
class Matched:
    """What two answers to one feed have in common.

    Attributes:
        truth / found: boxes float (batch, rows, 4) and scores float (batch, rows) by output, in the order of the first
            answer; NaN in both for padding and for rows without a partner.
        rows: how many rows both answers have, added.
        paired: how many of them have a partner: twice the pairs.
        nonfinite: rows of the second answer whose box or score is NaN or infinite; they never have a partner.
        counts: how many items have equal counts, and how many there are.
        count_off: largest difference of counts.
    """

    truth: Mapping[str, np.ndarray]
    found: Mapping[str, np.ndarray]
    rows: int
    paired: int
    nonfinite: int
    counts: tuple[int, int]
    count_off: int

    @property
    def share(self) -> float:
        """Rows with a partner among all rows of both answers (Dice's coefficient); 1 where neither has any."""
        return self.paired / self.rows if self.rows else 1.0


def match(truth: Arrays, found: Arrays, declared: Detections) -> Matched:
    """Bring the rows of two answers together.

    Args:
        truth / found: the four declared outputs of each answer, of equal shapes.

    Raises:
        StageError: a count is negative or larger than the rows there are.
    """
    counts = [_counts(side, declared) for side in (truth, found)]
    names = (declared.boxes, declared.scores)
    kept = [{n: np.full(truth[n].shape, np.nan, np.result_type(truth[n], np.float32)) for n in names} for _ in range(2)]
    paired = nonfinite = 0
    for item, (have, got) in enumerate(zip(*counts, strict=True)):
        mine, theirs = (
            [side[name][item, :n].astype(np.float64) for name in names] + [side[declared.classes][item, :n]]
            for side, n in ((truth, have), (found, got))
        )
        nonfinite += int((~np.isfinite(theirs[0]).all(axis=1) | ~np.isfinite(theirs[1])).sum())
        rows, partners = _partners(mine, theirs, declared)
        paired += 2 * len(rows)
        for name in names:
            kept[0][name][item, rows] = truth[name][item, rows]
            kept[1][name][item, rows] = found[name][item, partners]
    off = np.abs(counts[0] - counts[1])
    return Matched(
        truth=kept[0],
        found=kept[1],
        rows=int(counts[0].sum() + counts[1].sum()),
        paired=paired,
        nonfinite=nonfinite,
        counts=(int((off == 0).sum()), len(off)),
        count_off=int(off.max(initial=0)),
    )


def overlaps(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Return the intersection over union of boxes (n, 4) and (m, 4) as (n, m); one without area overlaps its equals."""
    with np.errstate(invalid="ignore"):  # a box that is not finite overlaps nothing
        low = np.maximum(one[:, None, :2], other[None, :, :2])
        high = np.minimum(one[:, None, 2:], other[None, :, 2:])
        shared = np.clip(high - low, 0, None).prod(axis=2)
        areas = [np.clip(b[:, 2:] - b[:, :2], 0, None).prod(axis=1) for b in (one, other)]
        union = areas[0][:, None] + areas[1][None, :] - shared
        equal = (one[:, None] == other[None, :]).all(axis=2).astype(shared.dtype)
        return np.divide(shared, union, out=equal, where=union > 0)


def _counts(side: Arrays, declared: Detections) -> np.ndarray:
    counts, rows = side[declared.count].astype(np.int64), side[declared.scores].shape[1]
    if ((counts < 0) | (counts > rows)).any():
        wrong = counts[(counts < 0) | (counts > rows)][0]
        raise StageError(f"output {declared.count!r} says {wrong}, expected 0 to {rows} rows")
    return counts


def _partners(truth: list[np.ndarray], found: list[np.ndarray], declared: Detections) -> tuple[np.ndarray, np.ndarray]:
    """Choose pairs of row numbers, one to one."""
    from scipy.optimize import linear_sum_assignment

    iou = overlaps(truth[0], found[0])
    with np.errstate(invalid="ignore"):
        near = np.abs(truth[1][:, None] - found[1][None, :]) <= declared.score
    same = truth[2][:, None] == found[2][None, :]
    may = same & near & (iou >= declared.iou)
    # A pair is worth more than any gain of overlap: all overlaps together sum up to less than one.
    worth = np.where(may, 1 + iou / (1 + min(iou.shape, default=0)), 0.0)
    rows, partners = linear_sum_assignment(worth, maximize=True)
    chosen = may[rows, partners]
    return rows[chosen], partners[chosen]
