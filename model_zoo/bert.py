"""BERT-base, uncased: the plain encoder with its pooler."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from accel.artifacts import TensorSpec
from accel.exporters.hub import huggingface_folder
from accel.processing import Pipeline, Pool, Tokenize
from model_zoo import Entry, _text

if TYPE_CHECKING:
    import torch

HUB = "google-bert/bert-base-uncased"


def find() -> Path | None:
    """Return the folder of the pretrained weights in the local Hugging Face cache, or None."""
    return huggingface_folder(HUB)


def load(folder: Path | None) -> torch.nn.Module:
    """Build the encoder from ``folder``, or with weights drawn with seed 0 (see ``_let_context_in``)."""
    import torch
    from transformers import BertConfig, BertModel

    torch.manual_seed(0)
    if folder is None:
        return _let_context_in(BertModel(BertConfig())).eval()
    from accel.exporters.from_huggingface import open_model

    return open_model(folder, "BertModel", random=False)[0]


def _let_context_in(model: torch.nn.Module) -> torch.nn.Module:
    """Sharpen and strengthen the first layer's attention, as training does.

    As BERT is initialised, attention is all but uniform and weak beside the residual: [CLS] hardly knows its
    sentence, the pooled output is a constant plus 3 % of signal power, and comparing it measures rounding alone.
    With the first layer's queries and keys times 4 and values and output times 3, the signal is a quarter of the power.
    """
    import torch

    attention = model.encoder.layer[0].attention
    with torch.no_grad():
        for linear, factor in (
            (attention.self.query, 4.0),
            (attention.self.key, 4.0),
            (attention.self.value, 3.0),
            (attention.output.dense, 3.0),
        ):
            linear.weight *= factor
    return model


ENTRY = Entry(
    name="bert",
    title="BERT-base uncased, encoder and pooler",
    licence="Apache-2.0",
    parameters=109_482_240,
    hub=HUB,
    find=find,
    load=load,
    inputs=_text.INPUTS,
    outputs=(
        TensorSpec("last_hidden_state", "float32", ("batch", "seq", 768)),
        TensorSpec("pooler_output", "float32", ("batch", 768)),
    ),
    profile=_text.PROFILE,
    samples=_text.tokenised,
    origin="zoo sentences, tokenised (uncased WordPiece)",
    tokenizer=_text.minilm_folder,
    mask="attention_mask",
    family="transformer",
    static=("openvino-fp32",),
    # As sentence-transformers wraps an encoder that says nothing of pooling: mean, not normalised.
    pipeline=Pipeline(Tokenize(max_length=512), Pool("mean")),
    extra_files=_text.FILES,
)
