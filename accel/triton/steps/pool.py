"""Token vectors → one vector for each text."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np


class Step:
    """Pools the token vectors over unmasked positions.

    Args:
        options: ``mode`` (``mean``, ``max``, ``cls``, ``lasttoken``), ``normalise``, ``input`` and ``mask`` (tensor
            names).
        folder: unused.
    """

    def __init__(self, options: Mapping[str, Any], folder: Path) -> None:
        self.options = options

    def answer(self, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Pool float (texts, tokens, width) under a mask (texts, tokens) into ``embedding``, float32 (texts, width).

        A text without unmasked positions gets zeros.

        Formula: mean = sum of v * m / max(sum of m, 1e-9); normalised, v / max(norm of v, 1e-12).
        Source: sentence-transformers, sentence_transformer/modules/pooling.py; torch.nn.functional.normalize.
        """
        vectors = inputs[self.options["input"]].astype(np.float64)
        mask = inputs[self.options["mask"]] != 0
        mode, rows = self.options["mode"], np.arange(len(vectors))
        if mode == "mean":
            weight = mask[:, :, None]
            pooled = (vectors * weight).sum(axis=1) / np.maximum(weight.sum(axis=1), 1e-9)
        elif mode == "max":
            pooled = np.where(mask[:, :, None], vectors, -np.inf).max(axis=1)
        else:
            last = mask.shape[1] - 1 - mask[:, ::-1].argmax(axis=1)
            pooled = vectors[rows, mask.argmax(axis=1) if mode == "cls" else last]
        pooled = np.where(mask.any(axis=1)[:, None], pooled, 0.0)
        if self.options["normalise"]:
            pooled = pooled / np.maximum(np.linalg.norm(pooled, axis=1, keepdims=True), 1e-12)
        return {"embedding": pooled.astype(np.float32)}
