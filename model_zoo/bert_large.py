"""BERT-large, uncased, as a classifier of two classes at 512 tokens: the classic serving benchmark.

The hub's weights are the encoder's; they have no classification head, so one is drawn with seed 0 and stands for
its cost, not for any meaning. Hence there is no task metric, and accuracy is unproved even with those weights.
"""

from pathlib import Path
from typing import TYPE_CHECKING

from accel.core.processing import Labels, Pipeline, Tokenize
from accel.core.values import TensorSpec
from model_zoo import Entry, _text

if TYPE_CHECKING:
    import torch

HUB = "google-bert/bert-large-uncased"
REVISION = "6da4b6a26a1877e173fca3225479512db81a5e5b"
CLASSES = 2
OUTPUTS = (TensorSpec("logits", "float32", ("batch", CLASSES)),)


def load(folder: Path | None) -> "torch.nn.Module":
    """Build the classifier, the encoder from ``folder`` or, as the head always is, drawn with seed 0."""
    if folder is not None:
        return _text.open_folder(folder, "BertForSequenceClassification")
    return _random(hidden_size=1024, num_hidden_layers=24, num_attention_heads=16, intermediate_size=4096)


def load_small(folder: Path | None) -> "torch.nn.Module":
    """Build the reduced classifier; it has no pretrained weights."""
    return _random(**_text.small_bert_config())


def _random(**config: object) -> "torch.nn.Module":
    from transformers import BertConfig, BertForSequenceClassification

    model = _text.drawn(lambda: BertForSequenceClassification(BertConfig(num_labels=CLASSES, **config)))
    _text.let_context_into_bert(model.bert)
    return model


def small() -> Entry:
    """Return the reduced model."""
    return _text.reduced(
        ENTRY,
        parameters=202_818,
        load=load_small,
        samples=_text.small_bert_samples,
        inputs=_text.SMALL_INPUTS,
        outputs=OUTPUTS,
    )


ENTRY = Entry(
    name="bert-large",
    title="BERT-large uncased, classifier of two classes",
    licence="Apache-2.0",
    parameters=335_143_938,
    hub=HUB,
    revision=REVISION,
    drawn="a classification head",
    load=load,
    inputs=_text.INPUTS,
    outputs=OUTPUTS,
    profile=_text.profile(_text.INPUTS, opt=_text.LONGEST),
    samples=_text.tokenised,
    origin=_text.ORIGIN,
    tokenizer=_text.minilm_folder,
    mask="attention_mask",
    family="transformer",
    pipeline=Pipeline(Tokenize(max_length=_text.LONGEST), Labels(top_k=CLASSES)),
    small=small,
    extra_files=_text.FILES,
)
