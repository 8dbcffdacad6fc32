"""GPT-2: one forward step of generation, with past key values as inputs and outputs.

A client sends one token with what earlier steps left, and gets the scores of the next token and the keys and values
to send along with it. The axes are independent: the mask covers the past alone, and the token itself is always seen.
``present`` is ``past`` + 1, the new position last. A past that is padded behind its end stays right as long as the
mask is 0 there: positions are counted from the mask.

The hub's byte pairs need a tokenizer of their own: where its folder is not here, ids stand in. The past of a sample is
what the model itself computed on the beginning of a sentence.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from accel.core.values import ShapeRange, TensorSpec
from accel.exporters.hub import huggingface_folder
from model_zoo import Entry, Item, _text

if TYPE_CHECKING:
    import torch

HUB = "openai-community/gpt2"
REVISION = "607a30d783dfa663caf39e06633721c8d4cfcd7e"
LAYERS, HEADS, WIDTH, VOCABULARY = 12, 12, 768, 50257
SMALL_LAYERS, SMALL_HEADS = 2, 4
SAMPLE_TOKENS = 25
"""Longest beginning of a sentence in a sample: each token of the past is 72 KiB of keys and values."""


def names(layers: int) -> list[tuple[str, str]]:
    """Return past and present name of each layer's keys and values, as Hugging Face's ONNX exports call them."""
    parts = [(layer, part) for layer in range(layers) for part in ("key", "value")]
    return [(f"past_key_values.{layer}.{part}", f"present.{layer}.{part}") for layer, part in parts]


def inputs(layers: int, heads: int, width: int, vocabulary: int) -> tuple[TensorSpec, ...]:
    """Return the token, the mask over the past, and keys and values of each layer."""
    past = ("batch", heads, "past", width // heads)
    return (
        TensorSpec("input_ids", "int64", ("batch", 1), (0, vocabulary - 1)),
        TensorSpec("attention_mask", "int64", ("batch", "past"), (0, 1)),
        *(TensorSpec(name, "float32", past) for name, _ in names(layers)),
    )


def outputs(layers: int, heads: int, width: int, vocabulary: int) -> tuple[TensorSpec, ...]:
    """Return the scores of the next token, and keys and values with the new position."""
    present = ("batch", heads, "present", width // heads)
    return (
        TensorSpec("logits", "float32", ("batch", vocabulary)),
        *(TensorSpec(name, "float32", present) for _, name in names(layers)),
    )


def profile(specs: Sequence[TensorSpec], *, opt: int, batch: int, longest: int) -> dict[str, ShapeRange]:
    """Return the shape ranges: one to ``batch`` texts with one to ``longest`` tokens of past."""

    def at(spec: TensorSpec, rows: int, past: int) -> tuple[int, ...]:
        sizes = {"batch": rows, "past": past}
        return tuple(sizes[d] if isinstance(d, str) else d for d in spec.dims)

    return {s.name: ShapeRange(at(s, 1, 1), at(s, 1, opt), at(s, batch, longest)) for s in specs}


def resolve() -> Path | None:
    """Return the folder of the pretrained weights in the local Hugging Face cache, or None."""
    return huggingface_folder(HUB, REVISION)


def load(folder: Path | None) -> "torch.nn.Module":
    """Build the step from ``folder``, or with weights drawn with seed 0 ."""
    return _step(_random() if folder is None else _text.open_folder(folder, "GPT2LMHeadModel"))


def load_small(folder: Path | None) -> "torch.nn.Module":
    """Build the reduced step; it has no pretrained weights."""
    return _step(
        _random(
            vocab_size=_text.SMALL_VOCABULARY,
            n_positions=_text.SMALL_LONGEST + 1,
            n_embd=_text.SMALL_WIDTH,
            n_layer=SMALL_LAYERS,
            n_head=SMALL_HEADS,
            initializer_range=_text.SMALL_RANGE,
            bos_token_id=_text.SMALL_VOCABULARY - 1,
            eos_token_id=_text.SMALL_VOCABULARY - 1,
        )
    )


def _random(**config: object) -> Any:
    from transformers import GPT2Config, GPT2LMHeadModel

    return _text.drawn(lambda: GPT2LMHeadModel(GPT2Config(**config)))


def _step(model: Any) -> "torch.nn.Module":
    """Wrap a GPT-2 so that a flat past goes in and a flat present comes out."""
    import torch
    from transformers import DynamicCache

    class Step(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model
            self.names = names(model.config.n_layer)

        def forward(
            self, input_ids: torch.Tensor, attention_mask: torch.Tensor, **past: torch.Tensor
        ) -> dict[str, torch.Tensor]:
            kept = [past[name] for name, _ in self.names]
            seen = torch.cat([attention_mask, torch.ones_like(input_ids)], dim=1)
            hidden = (1 - seen)[:, None, None, :].to(kept[0].dtype) * torch.finfo(kept[0].dtype).min
            found = self.model(
                input_ids=input_ids,
                attention_mask=hidden,
                position_ids=attention_mask.sum(dim=1, keepdim=True),
                past_key_values=DynamicCache(list(zip(kept[::2], kept[1::2], strict=True))),
                use_cache=True,
            )
            present = [part for layer in found.past_key_values.layers for part in (layer.keys, layer.values)]
            return {"logits": found.logits[:, 0]} | {
                name: value for (_, name), value in zip(self.names, present, strict=True)
            }

    return Step().eval()


def steps(step: Any, texts: Sequence[np.ndarray]) -> Sequence[Item]:
    """Run the model on each text, ids (1, tokens), and return what a client holds before the last token."""
    import torch

    items = []
    for ids in texts:
        with torch.inference_mode():
            found = step.model(input_ids=torch.from_numpy(ids[:, :-1]), use_cache=True)
        kept = [part for layer in found.past_key_values.layers for part in (layer.keys, layer.values)]
        item = {"input_ids": ids[:, -1:], "attention_mask": np.ones((1, ids.shape[1] - 1), np.int64)}
        items.append(item | {name: value.numpy() for (name, _), value in zip(step.names, kept, strict=True)})
    return items


def _begun(items: Sequence[Item], start: int) -> list[np.ndarray]:
    """Return each text up to a token drawn with seed 0, behind ``start``: the last token is seldom the full stop."""
    rng = np.random.default_rng(0)
    texts = [np.insert(item["input_ids"], 0, start, axis=1) for item in items]
    return [ids[:, : rng.integers(2, ids.shape[1], endpoint=True)] for ids in texts]


def samples(count: int) -> Sequence[Item]:
    """Return ``count`` sentences as a token and the past before it; a text starts with <|endoftext|>."""
    folder = resolve()
    specs = _text.text_inputs(VOCABULARY - 1)
    if folder is not None:
        items = _text.tokenised(count, inputs=specs, folder=folder, longest=SAMPLE_TOKENS - 1)
    else:
        items = _text.stand_ins(count, specs, first=0, longest=SAMPLE_TOKENS - 1)
    return steps(load(folder), _begun(items, VOCABULARY - 1))


def small_samples(count: int) -> Sequence[Item]:
    """Return ``count`` sentences as the reduced model's inputs."""
    last = _text.SMALL_VOCABULARY - 1
    items = _text.stand_ins(count, _text.text_inputs(last), first=0, longest=SAMPLE_TOKENS - 1)
    return steps(load_small(None), _begun(items, last))


SMALL = (SMALL_LAYERS, SMALL_HEADS, _text.SMALL_WIDTH, _text.SMALL_VOCABULARY)


def small() -> Entry:
    """Return the reduced model."""
    specs = inputs(*SMALL)
    return _text.reduced(
        ENTRY,
        parameters=167_744,
        load=load_small,
        samples=small_samples,
        inputs=specs,
        outputs=outputs(*SMALL),
        shapes=profile(specs, opt=15, batch=4, longest=_text.SMALL_LONGEST),
    )


INPUTS = inputs(LAYERS, HEADS, WIDTH, VOCABULARY)

ENTRY = Entry(
    name="gpt2",
    title="GPT-2, one step of generation with past key values",
    licence="MIT",
    parameters=124_439_808,
    hub=HUB,
    revision=REVISION,
    resolve=resolve,
    load=load,
    inputs=INPUTS,
    outputs=outputs(LAYERS, HEADS, WIDTH, VOCABULARY),
    profile=profile(INPUTS, opt=127, batch=8, longest=255),
    samples=samples,
    origin=f"tokens of {_text.OWN}, with the past that the model itself computed",
    mask="attention_mask",
    family="transformer",
    gate=("next_token_agreement", 0.95),
    metric=_text.label_agreement,
    small=small,
    extra_files=_text.FILES,
)
