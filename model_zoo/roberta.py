"""RoBERTa-base: the plain encoder. The hub's checkpoint has no pooler, so there is none here.

Positions are counted from the ids themselves (a running sum over what is not padding), which no BERT does. Its byte
pairs need a tokenizer of their own: where its folder is not here, ids stand in (see ``_text.stand_ins``).
"""

from pathlib import Path
from typing import TYPE_CHECKING

from accel.core.processing import Pipeline, Pool, Tokenize
from accel.exporters.hub import huggingface_folder
from model_zoo import Entry, _text

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

    from model_zoo import Item

HUB = "FacebookAI/roberta-base"
REVISION = "e2da8e2f811d1448a5b465c236feacd80ffbac7b"
VOCABULARY = 50265
START, PAD, END = 0, 1, 2
"""Ids of <s>, <pad> and </s>; <unk> is 3."""
INPUTS = _text.text_inputs(VOCABULARY)
SMALL_INPUTS = _text.text_inputs(_text.SMALL_VOCABULARY)


def resolve() -> Path | None:
    """Return the folder of the pretrained weights in the local Hugging Face cache, or None."""
    return huggingface_folder(HUB, REVISION)


def load(folder: Path | None) -> "torch.nn.Module":
    """Build the encoder from ``folder``, or with weights drawn with seed 0 (see ``_text.let_context_in``)."""
    if folder is None:
        # Positions begin after the padding id, so 514 of them carry 512 tokens.
        return _random(vocab_size=VOCABULARY, max_position_embeddings=_text.LONGEST + PAD + 1)
    model = _text.open_folder(folder, "RobertaModel")
    model.pooler = None
    return model


def load_small(folder: Path | None) -> "torch.nn.Module":
    """Build the reduced encoder; it has no pretrained weights."""
    return _random(**_text.small_bert_config(max_position_embeddings=_text.SMALL_LONGEST + PAD + 1))


def _random(**config: object) -> "torch.nn.Module":
    from transformers import RobertaConfig, RobertaModel

    # As the hub's config.json has it: one token type, and a layer norm of its own.
    chosen = RobertaConfig(type_vocab_size=1, layer_norm_eps=1e-5, **config)
    model = _text.drawn(lambda: RobertaModel(chosen, add_pooling_layer=False))
    _text.let_context_into_bert(model)
    return model


def samples(count: int) -> "Sequence[Item]":
    """Return ``count`` sentences as ids and masks."""
    folder = resolve()
    if folder is not None:
        return _text.tokenised(count, inputs=INPUTS, folder=folder)
    return _text.stand_ins(count, INPUTS, first=END + 2, start=(START,), end=(END,))


def small_samples(count: int) -> "Sequence[Item]":
    """Return ``count`` sentences as the reduced model's inputs."""
    longest = _text.SMALL_LONGEST
    return _text.stand_ins(count, SMALL_INPUTS, first=END + 2, start=(START,), end=(END,), longest=longest)


def small() -> Entry:
    """Return the reduced model."""
    return _text.reduced(
        ENTRY,
        parameters=167_872,
        load=load_small,
        samples=small_samples,
        inputs=SMALL_INPUTS,
        outputs=_text.hidden(_text.SMALL_WIDTH),
    )


ENTRY = Entry(
    name="roberta",
    title="RoBERTa-base encoder",
    licence="MIT",
    parameters=124_055_040,
    hub=HUB,
    revision=REVISION,
    resolve=resolve,
    load=load,
    inputs=INPUTS,
    outputs=_text.hidden(768),
    profile=_text.profile(INPUTS),
    samples=samples,
    origin=_text.OWN,
    tokenizer=resolve,
    mask="attention_mask",
    family="transformer",
    pipeline=Pipeline(Tokenize(max_length=_text.LONGEST, pad_token="<pad>"), Pool("mean")),
    small=small,
    extra_files=_text.FILES,
)
