"""Hold answers against a source's reference, as the source says: its mask, its sets of rows, its task metric."""

import copy
import functools
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np

from accel.core.accuracy import parity
from accel.core.accuracy.metrics import METRICS, TaskMetric
from accel.core.accuracy.parity import Answers, Noise
from accel.core.errors import InputError, SampleError, raised_as
from accel.core.feeds import Feed
from accel.core.values import ModelSource, Parity, SampleSet
from accel.exporters import user_code
from accel.exporters.zoo import zoo

Labels = Mapping[str, Sequence[Any]]
"""Feed → the right answer to each of its items."""


def compare(
    source: ModelSource,
    feeds: Mapping[str, Feed],
    reference: Answers,
    answers: Answers,
    gate: Mapping[str, float],
    noise: Noise | None = None,
    labels: Labels | None = None,
) -> Parity:
    """Compare the answers to ``feeds`` with the reference's; ``gate`` is from ``gate_for``.

    Args:
        noise: the source's own, where it was measured.
        labels: what the task metric scores by; None for the reference's own answers.

    Raises:
        StageError: as ``parity.compare``.
        InputError / SampleError: as ``score``.
    """
    masks, mask_dims = parity.masks_of(source.inputs, source.mask, feeds)

    def metric(truth: Answers, found: Answers) -> tuple[float, float]:
        own = {name: _items(source, feeds[name], answer) for name, answer in truth.items()}
        by = own if labels is None else labels
        return score(source, feeds, found, by), score(source, feeds, truth, by)

    return parity.compare(
        reference,
        answers,
        outputs=source.outputs,
        masks=masks,
        mask_dims=mask_dims,
        gate=gate,
        metric=metric if source.gate is not None else None,
        detections=source.detections,
        noise=noise,
    )


def score(source: ModelSource, feeds: Mapping[str, Feed], answers: Answers, labels: Labels) -> float:
    """Return what the source's task metric says of answers.

    Raises:
        InputError: the metric cannot be loaded, raised, or returned no number.
        SampleError: labels and answers do not fit each other.
    """
    outputs, told, inputs = list[Feed](), list[Any](), list[Feed]()
    for name, answer in answers.items():
        rows, own = _items(source, feeds[name], answer), labels.get(name, ())
        if len(own) > len(rows) or not own:
            raise SampleError(f"feed {name!r} has {len(own)} labels for {len(rows)} answers")
        outputs += rows[: len(own)]  # rows that only fill a batch have none
        inputs += _items(source, feeds[name], feeds[name])[: len(own)]
        told += own
    metric = _metric(source.metric or source.reference, known=source.metric is None)
    if source.metric is None or source.metric in METRICS:
        return float(metric(outputs, told, inputs))
    form = "def metric(outputs, labels, inputs), each a list over the items, returns one number (docs/samples.md)"
    with user_code.running(source.metric, "metric", form):
        found = metric(*copy.deepcopy((outputs, told, inputs)))  # it may write into what it is given
    if isinstance(found, bool) or not isinstance(found, int | float | np.number):
        raise InputError(
            f"metric {Path(source.metric).name} returned {type(found).__name__}, expected a number", fix=form
        )
    return float(found)


def labels_of(samples: SampleSet, folder: Path, of: Literal["calibration", "gate", "streams"]) -> Labels | None:
    """Read the labels of calibration or gate samples, or of a stateful model's streams; None where there are none."""
    if of not in samples.labels:
        return None
    path = folder / samples.labels[of].path
    with raised_as(SampleError, (ValueError, RecursionError), f"{path.name} holds no labels"):
        found = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(found, dict) or not all(isinstance(each, list) for each in found.values()):
        raise SampleError(f"{path.name} holds no labels: expected a list for each feed")
    return found


@functools.cache
def _metric(reference: str, *, known: bool) -> TaskMetric:
    """Return a zoo entry's metric, a known one, or the function in a user's file."""
    if known:
        found = zoo().entry(reference).metric
        assert found is not None  # a task gate comes from an entry that has one
        return found
    return METRICS.get(reference) or user_code.function(reference, "metric")


def _items(source: ModelSource, feed: Feed, values: Feed) -> list[Feed]:
    """Cut inputs or outputs of a feed into items without the batch axis; where the inputs have none, it is one item."""
    if not source.batched:
        return [values]
    count = len(feed[source.inputs[0].name])
    return [
        {name: value[i] if value.shape[:1] == (count,) else value for name, value in values.items()}
        for i in range(count)
    ]
