"""Hold answers against a source's reference, as the source says: its mask, its sets of rows, its task metric."""

from collections.abc import Mapping

import numpy as np

from accel.accuracy import parity
from accel.accuracy.parity import Answers, Noise
from accel.core.feeds import Feed
from accel.core.values import ModelSource, Parity
from accel.exporters.zoo import zoo


def compare(
    source: ModelSource,
    feeds: Mapping[str, Feed],
    reference: Answers,
    answers: Answers,
    gate: Mapping[str, float],
    noise: Noise | None = None,
) -> Parity:
    """Compare the answers to ``feeds`` with the reference's; ``gate`` is from ``gate_for``.

    Args:
        noise: the source's own, where it was measured.

    Raises:
        StageError: as ``parity.compare``.
    """
    masks: dict[str, np.ndarray] = {}
    mask_dims: tuple[str, ...] = ()
    if source.mask is not None:
        masks = {name: feed[source.mask] for name, feed in feeds.items()}
        mask_dims = next(tuple(map(str, s.dims)) for s in source.inputs if s.name == source.mask)

    def metric(truth: Answers, found: Answers) -> float:
        entry = zoo().entry(source.reference)
        assert entry.metric is not None  # a task gate comes from an entry that has one
        return float(entry.metric(list(truth.values()), list(found.values()), [feeds[name] for name in truth]))

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
