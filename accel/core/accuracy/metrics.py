"""Metrics of a model's task by ground truth: what ``--metric`` names. Higher is better, and nothing right is 0.

A metric takes the outputs, labels and inputs of the same items: outputs and inputs by name, without the batch axis and
with what padding their feed had; labels as the samples carry them.
"""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from accel.core.errors import SampleError

Item = Mapping[str, np.ndarray]
TaskMetric = Callable[[Sequence[Item], Sequence[Any], Sequence[Item]], float]
OWN = "write a metric that reads them: --metric file.py:function (docs/samples.md)"


def accuracy(outputs: Sequence[Item], labels: Sequence[Any], inputs: Sequence[Item]) -> float:
    """Return the share of right classes.

    An output of integers holds classes, one of floats a score for each. A label is a class, or a list of them, one for
    each position; negative ones do not count.

    Raises:
        SampleError: the outputs give no classes, or the labels are others than theirs.
    """
    found, truth = _classes(outputs, labels)
    return float(np.mean(found == truth))


def f1(outputs: Sequence[Item], labels: Sequence[Any], inputs: Sequence[Item]) -> float:
    """Return the mean of all classes' F1 (macro); arguments and errors as of ``accuracy``."""
    from sklearn.metrics import f1_score

    found, truth = _classes(outputs, labels)
    return float(f1_score(truth, found, average="macro", zero_division=0.0))


def mrr(outputs: Sequence[Item], labels: Sequence[Any], inputs: Sequence[Item]) -> float:
    """Return the mean reciprocal rank of the right candidate, of equal scores the worst.

    An item gives a score for each candidate, and its label is the right one's number; or an item is one candidate, and
    its label is [query, whether it is right].

    Raises:
        SampleError: the outputs or labels are others.
    """
    name = _answer(outputs, float)
    lists: dict[Any, tuple[list[float], list[bool]]] = defaultdict(lambda: ([], []))
    for number, (output, label) in enumerate(zip(outputs, labels, strict=True)):
        scores = np.ravel(output[name])
        if isinstance(label, list) and len(label) == 2 and scores.size == 1:
            query, right = str(label[0]), [bool(label[1])]
        elif isinstance(label, int) and 0 <= label < scores.size > 1:
            query, right = str(number), [i == label for i in range(scores.size)]
        else:
            raise SampleError(
                f"label {label!r} of item {number} does not fit its {scores.size} scores",
                fix="the right candidate's number; or, where each item is one candidate, [query, true or false]",
            )
        lists[query][0].extend(scores.tolist())
        lists[query][1].extend(right)
    ranks = []
    for scores_of, right_of in lists.values():
        best = max((s for s, right in zip(scores_of, right_of, strict=True) if right), default=np.inf)
        ranks.append(1 / max(1, sum(not s < best for s in scores_of)) if best < np.inf else 0.0)  # NaN ranks first
    return float(np.mean(ranks))


def character_accuracy(outputs: Sequence[Item], labels: Sequence[Any], inputs: Sequence[Item]) -> float:
    """Return 1 - CER, the character error rate: edits over characters.

    An output of floats holds a score for each character at each step, and is read as CTC is (the likeliest, repeated
    ones once, without the blank, 0); one of integers holds characters. A label is a list of their numbers.

    Formula: 1 - sum of edit distances / sum of the labels' lengths.

    Raises:
        SampleError: the outputs or labels are others.
    """
    name = _answer(outputs, None)
    edits = characters = 0
    for number, (output, label) in enumerate(zip(outputs, labels, strict=True)):
        value = output[name]
        if not isinstance(label, list) or value.ndim != (2 if value.dtype.kind == "f" else 1):
            raise SampleError(
                f"label {str(label)[:40]!r} of item {number} is not a list of characters, or the output {name!r} of "
                f"shape {list(value.shape)} does not hold them",
                fix=OWN,
            )
        edits += edit_distance(ctc(value) if value.dtype.kind == "f" else value.tolist(), label)
        characters += len(label)
    return 1 - edits / max(1, characters)


def ctc(scores: np.ndarray, blank: int = 0) -> list[int]:
    """Read (steps, characters): the likeliest of each step, repeated ones once, without the blank."""
    best = scores.argmax(axis=-1)
    new = np.concatenate([[True], best[1:] != best[:-1]])
    return [int(c) for c in best[new] if c != blank]


def edit_distance(one: Sequence[Any], other: Sequence[Any]) -> int:
    """Return how many insertions, deletions and replacements make one sequence of the other (Levenshtein)."""
    row = list(range(len(other) + 1))
    for i, a in enumerate(one, 1):
        last, row[0] = row[0], i
        for j, b in enumerate(other, 1):
            last, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, last + (a != b))
    return row[-1]


METRICS: Mapping[str, TaskMetric] = {"accuracy": accuracy, "f1": f1, "mrr": mrr, "cer": character_accuracy}
"""What ``--metric`` takes beside a file; the function's name is that of the gate."""


def _answer(outputs: Sequence[Item], kind: type | None) -> str:
    """Return the output that a metric reads: the only one, the only one of integers, or the one called a score.

    Args:
        kind: ``float`` for floats alone.
    """
    names = [n for n, v in outputs[0].items() if kind is None or v.dtype.kind == "f"]
    whole = [n for n in names if outputs[0][n].dtype.kind in "iub"]
    scores = [n for n in names if n.endswith("logits") or n in ("scores", "probabilities")]
    for found in (names, whole, scores):
        if len(found) == 1:
            return found[0]
    raise SampleError(f"the metric cannot tell which of the outputs {list(outputs[0])} to read", fix=OWN)


def _classes(outputs: Sequence[Item], labels: Sequence[Any]) -> tuple[np.ndarray, np.ndarray]:
    """Return the classes found and the right ones, one after the other."""
    name = _answer(outputs, None)
    found, truth = [], []
    for number, (output, label) in enumerate(zip(outputs, labels, strict=True)):
        value, right = output[name], np.asarray(label)
        if right.dtype.kind not in "iub":
            raise SampleError(
                f"label {str(label)[:40]!r} of item {number} is not a class", fix="classes are whole numbers"
            )
        if value.dtype.kind == "f" and value.ndim == right.ndim + 1:
            axis = 0 if right.ndim > 1 else -1  # of pictures the class comes first
            count = value.shape[axis]
            if count < 2 or right.max(initial=0) >= count:
                raise SampleError(
                    f"label {right.max(initial=0)} of item {number} is not a class of output {name!r}, which has "
                    f"{count}",
                    fix=OWN if count < 2 else "classes are numbered from 0",
                )
            value = value.argmax(axis=axis)
        value = value.reshape(()) if value.size == 1 and not right.ndim else value
        if value.dtype.kind == "f" or value.ndim != right.ndim or any(np.less(value.shape, right.shape)):
            raise SampleError(
                f"the label of item {number} has the shape {list(right.shape)}, which does not fit output {name!r} of "
                f"shape {list(output[name].shape)}",
                fix=OWN,
            )
        told = right >= 0
        found.append(value[tuple(slice(n) for n in right.shape)][told].ravel())
        truth.append(right[told].ravel())
    if not sum(map(len, truth)):
        raise SampleError("no label tells a class: all are negative")
    return np.concatenate(found), np.concatenate(truth)
