"""DistilBERT, uncased, fine-tuned to tell positive from negative sentences (SST-2).

No token types; dynamic axes batch and seq. With the hub's weights the task gate is the share of the zoo's sentences
that keep their label.
"""

from pathlib import Path
from typing import TYPE_CHECKING

from accel.core.processing import Labels, Pipeline, Tokenize
from accel.core.values import TensorSpec
from model_zoo import Entry, _text

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

    from model_zoo import Item

HUB = "distilbert/distilbert-base-uncased-finetuned-sst-2-english"
REVISION = "714eb0fa89d2f80546fda750413ed43d93601a13"
CLASSES = 2
INPUTS = _text.text_inputs(30522)
SMALL_INPUTS = _text.text_inputs(_text.SMALL_VOCABULARY)
OUTPUTS = (TensorSpec("logits", "float32", ("batch", CLASSES)),)


def load(folder: Path | None) -> "torch.nn.Module":
    """Build the classifier from ``folder``, or with weights drawn with seed 0 (see ``_text.let_context_in``)."""
    return _random() if folder is None else _text.open_folder(folder, "DistilBertForSequenceClassification")


def load_small(folder: Path | None) -> "torch.nn.Module":
    """Build the reduced classifier; it has no pretrained weights."""
    return _random(
        vocab_size=_text.SMALL_VOCABULARY,
        dim=_text.SMALL_WIDTH,
        n_layers=2,
        n_heads=4,
        hidden_dim=4 * _text.SMALL_WIDTH,
        initializer_range=_text.SMALL_RANGE,
    )


def _random(**config: object) -> "torch.nn.Module":
    from transformers import DistilBertConfig, DistilBertForSequenceClassification

    model = _text.drawn(lambda: DistilBertForSequenceClassification(DistilBertConfig(num_labels=CLASSES, **config)))
    attention = model.distilbert.transformer.layer[0].attention
    _text.let_context_in(attention.q_lin, attention.k_lin, attention.v_lin, attention.out_lin)
    return model


def samples(count: int) -> "Sequence[Item]":
    """Return ``count`` sentences as ids and masks: the vocabulary is BERT's."""
    return _text.tokenised(count, inputs=INPUTS)


def small_samples(count: int) -> "Sequence[Item]":
    """Return ``count`` sentences as the reduced model's inputs."""
    return _text.stand_ins(
        count,
        SMALL_INPUTS,
        first=_text.SEP + 1,
        start=(_text.CLS,),
        end=(_text.SEP,),
        longest=_text.SMALL_LONGEST,
    )


def small() -> Entry:
    """Return the reduced model."""
    return _text.reduced(
        ENTRY,
        parameters=202_690,
        load=load_small,
        samples=small_samples,
        inputs=SMALL_INPUTS,
        outputs=OUTPUTS,
    )


ENTRY = Entry(
    name="distilbert",
    title="DistilBERT uncased, sentiment classifier (SST-2)",
    licence="Apache-2.0",
    parameters=66_955_010,
    hub=HUB,
    revision=REVISION,
    load=load,
    inputs=INPUTS,
    outputs=OUTPUTS,
    profile=_text.profile(INPUTS),
    samples=samples,
    origin=_text.ORIGIN,
    tokenizer=_text.minilm_folder,
    mask="attention_mask",
    family="transformer",
    gate=("label_agreement", 0.98),
    metric=_text.label_agreement,
    pipeline=Pipeline(Tokenize(max_length=_text.LONGEST), Labels(top_k=CLASSES)),
    small=small,
    extra_files=_text.FILES,
)
