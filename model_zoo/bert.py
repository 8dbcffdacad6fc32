"""BERT-base, uncased: the plain encoder with its pooler."""

from pathlib import Path
from typing import TYPE_CHECKING

from accel.core.processing import Pipeline, Pool, Tokenize
from model_zoo import Entry, _text

if TYPE_CHECKING:
    import torch

HUB = "google-bert/bert-base-uncased"
REVISION = "86b5e0934494bd15c9632b12f734a8a67f723594"


def load(folder: Path | None) -> "torch.nn.Module":
    """Build the encoder from ``folder``, or with weights drawn with seed 0 (see ``_text.let_context_in``)."""
    return _random() if folder is None else _text.open_folder(folder, "BertModel")


def load_small(folder: Path | None) -> "torch.nn.Module":
    """Build the reduced encoder; it has no pretrained weights."""
    return _random(**_text.small_bert_config())


def _random(**config: object) -> "torch.nn.Module":
    from transformers import BertConfig, BertModel

    model = _text.drawn(lambda: BertModel(BertConfig(**config)))
    _text.let_context_into_bert(model)
    return model


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
    name="bert",
    title="BERT-base uncased, encoder and pooler",
    licence="Apache-2.0",
    parameters=109_482_240,
    hub=HUB,
    revision=REVISION,
    load=load,
    inputs=_text.INPUTS,
    outputs=_text.hidden(768, pooled=True),
    profile=_text.PROFILE,
    samples=_text.tokenised,
    origin=_text.ORIGIN,
    tokenizer=_text.minilm_folder,
    mask="attention_mask",
    family="transformer",
    static=("fp32",),
    # As sentence-transformers wraps an encoder that says nothing of pooling: mean, not normalised.
    pipeline=Pipeline(Tokenize(max_length=512), Pool("mean")),
    small=small,
    extra_files=_text.FILES,
)
