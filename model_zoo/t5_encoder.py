"""The encoder of T5-base: attention with a bias by distance in place of positions, and root-mean-square norms.

The first layer's bias, looked up by bucketed distance, is added in every layer, and attention is not scaled. Its
pieces need a tokenizer of their own: where its folder is not here, ids stand in (see ``_text.stand_ins``).
"""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from accel.core.processing import Pipeline, Pool, Tokenize
from accel.exporters.hub import huggingface_folder
from model_zoo import Entry, _text

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

    from model_zoo import Item

HUB = "google-t5/t5-base"
REVISION = "a9723ea7f1b39c1eae772870f3b547bf6ef7e6c1"
VOCABULARY = 32128
END = 1
"""Id of </s>; <pad> is 0 and <unk> 2."""
INPUTS = _text.text_inputs(VOCABULARY)
SMALL_INPUTS = _text.text_inputs(_text.SMALL_VOCABULARY)


def resolve() -> Path | None:
    """Return the folder of the pretrained weights in the local Hugging Face cache, or None."""
    return huggingface_folder(HUB, REVISION)


def load(folder: Path | None) -> "torch.nn.Module":
    """Build the encoder from ``folder``, or with weights drawn with seed 0."""
    if folder is not None:
        return _looked_up(_text.open_folder(folder, "T5EncoderModel"))
    return _random(d_model=768, d_ff=3072, num_layers=12, num_heads=12, vocab_size=VOCABULARY)


def load_small(folder: Path | None) -> "torch.nn.Module":
    """Build the reduced encoder; it has no pretrained weights."""
    width = _text.SMALL_WIDTH
    return _random(
        d_model=width, d_kv=width // 4, d_ff=4 * width, num_layers=2, num_heads=4, vocab_size=_text.SMALL_VOCABULARY
    )


def _random(**config: object) -> "torch.nn.Module":
    from transformers import T5Config, T5EncoderModel

    return _looked_up(_text.drawn(lambda: T5EncoderModel(T5Config(**config))))


def _looked_up(model: Any) -> "torch.nn.Module":
    """Let the model look the buckets of distances up in a table, in place of computing them.

    transformers takes the logarithm of every distance and casts it to int64, that of 0 too, and drops what it does not
    need afterwards. Nothing bounds such a cast, so a runtime that computes int64 as int32 could not be proved right.
    The table holds the very values; a distance beyond its ends has the bucket of the end.
    """
    import torch

    attention = model.encoder.block[0].layer[0].SelfAttention
    farthest = attention.relative_attention_max_distance
    buckets = type(attention)._relative_position_bucket(
        torch.arange(-farthest, farthest + 1),
        bidirectional=True,
        num_buckets=attention.relative_attention_num_buckets,
        max_distance=farthest,
    )

    class LookedUp(type(attention)):  # type: ignore[misc]
        def _relative_position_bucket(self, relative_position: torch.Tensor, **_: object) -> torch.Tensor:
            return self.buckets[relative_position.clamp(-farthest, farthest) + farthest]

    attention.register_buffer("buckets", buckets, persistent=False)
    attention.__class__ = LookedUp
    return model


def samples(count: int) -> "Sequence[Item]":
    """Return ``count`` sentences as ids and masks."""
    folder = resolve()
    if folder is not None:
        return _text.tokenised(count, inputs=INPUTS, folder=folder)
    return _text.stand_ins(count, INPUTS, first=END + 2, end=(END,))


def small_samples(count: int) -> "Sequence[Item]":
    """Return ``count`` sentences as the reduced model's inputs."""
    return _text.stand_ins(count, SMALL_INPUTS, first=END + 2, end=(END,), longest=_text.SMALL_LONGEST)


def small() -> Entry:
    """Return the reduced model."""
    return _text.reduced(
        ENTRY,
        parameters=164_288,
        load=load_small,
        samples=small_samples,
        inputs=SMALL_INPUTS,
        outputs=_text.hidden(_text.SMALL_WIDTH),
    )


ENTRY = Entry(
    name="t5-encoder",
    title="T5-base encoder",
    licence="Apache-2.0",
    parameters=109_628_544,
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
