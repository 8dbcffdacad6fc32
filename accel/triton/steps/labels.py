"""Scores per class → the best labels with their probability."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np


class Step:
    """Ranks the classes.

    Args:
        options: ``input`` (tensor name), ``top_k``, ``function`` (``softmax``, ``sigmoid`` or ``none``) and ``labels``:
            the file with one label a line, relative to the folder.
        folder: the version folder.
    """

    def __init__(self, options: Mapping[str, Any], folder: Path) -> None:
        self.options = options
        text = (folder / options["labels"]).read_text(encoding="utf-8")
        self.names = np.array([line.encode() for line in text.splitlines()], dtype=np.object_)

    def answer(self, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Rank float (items, classes).

        Returns:
            ``labels`` str (items, k), ``scores`` float32 (items, k), ``class_ids`` int32 (items, k), best first and
            equal ones by class; ``probabilities`` float32 (items, classes).

        Raises:
            ValueError: a score is not finite.
        """
        scores = inputs[self.options["input"]].astype(np.float64)
        if not np.isfinite(scores).all():
            raise ValueError("the model's scores are not finite")
        if self.options["function"] == "softmax":
            powers = np.exp(scores - scores.max(axis=1, keepdims=True))
            scores = powers / powers.sum(axis=1, keepdims=True)
        elif self.options["function"] == "sigmoid":
            scores = 1 / (1 + np.exp(-np.clip(scores, -700, None)))
        probabilities = scores.astype(np.float32)
        best = np.argsort(-probabilities, axis=1, kind="stable")[:, : self.options["top_k"]]
        return {
            "labels": self.names[best],
            "scores": np.ascontiguousarray(np.take_along_axis(probabilities, best, axis=1)),
            "class_ids": best.astype(np.int32),
            "probabilities": probabilities,
        }
