"""The parts of a transformers model that are models of their own: encoder, decoder, towers, one step with a cache.

Each is a module that takes and gives plain tensors by name, and has the whole model's config.
"""

import inspect
from collections.abc import Mapping
from typing import Any

import torch

from accel.core.errors import UsageError


def parts_of(model: Any) -> list[str]:
    """Return the names that ``part`` takes for this model, beside None for the whole."""
    found = []
    if _is_encoder_decoder(model):
        found += ["encoder", "decoder"]
    if hasattr(model, "get_text_features") and hasattr(model, "get_image_features"):
        found += ["text", "image"]
    cached = "past_key_values" in inspect.signature(model.forward).parameters and hasattr(model, "lm_head")
    if cached and not _is_encoder_decoder(model) and getattr(model.config, "num_attention_heads", None):
        found += ["step"]
    return found


def part(model: Any, name: str | None) -> Any:
    """Return one part of a model, or the model itself for None.

    Raises:
        UsageError: the model has no such part.
    """
    if name is None:
        return model
    known = parts_of(model)
    if name not in known:
        raise UsageError(
            f"{type(model).__name__} has no part {name!r}",
            fix=f"its parts are {known}" if known else "leave --part out: it is one model",
        )
    made: torch.nn.Module = {"encoder": _Encoder, "decoder": _Decoder, "text": _Text, "image": _Image, "step": _Step}[
        name
    ](model)
    return made.eval()


def _is_encoder_decoder(model: Any) -> bool:
    return "decoder_input_ids" in inspect.signature(model.forward).parameters and hasattr(model, "get_encoder")


class _Part(torch.nn.Module):
    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model
        self.config = model.config


class _Encoder(_Part):
    """The encoder: ``input_ids`` and ``attention_mask``, ``input_features`` or ``pixel_values`` → ``hidden_states``."""

    def forward(self, **given: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"encoder_hidden_states": self.model.get_encoder()(**given)[0]}


class _Decoder(_Part):
    """The decoder over what the encoder gave: all positions at once, no cache → ``logits`` or hidden states."""

    def forward(self, encoder_hidden_states: torch.Tensor, **given: torch.Tensor) -> Mapping[str, torch.Tensor]:
        found = self.model(encoder_outputs=(encoder_hidden_states,), use_cache=False, **given)
        name = "logits" if "logits" in found else "last_hidden_state"
        return {name: found[name]}


class _Text(_Part):
    def forward(self, **given: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"text_features": _features(self.model.get_text_features(**given))}


class _Image(_Part):
    def forward(self, **given: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"image_features": _features(self.model.get_image_features(**given))}


def _features(found: Any) -> torch.Tensor:
    features: torch.Tensor = found if isinstance(found, torch.Tensor) else found.pooler_output
    return features


class _Step(_Part):
    """One step of generation: a token and the cache of the earlier ones → ``logits`` and the new cache.

    Keys and values are ``past_<layer>_key`` and ``past_<layer>_value`` (batch, heads, past, size per head), each
    ``present_…`` is one position longer. Every position of the past is seen: items of one batch have pasts of one
    length.
    """

    def forward(
        self, input_ids: torch.Tensor, position_ids: torch.Tensor, **past: torch.Tensor
    ) -> dict[str, torch.Tensor]:
        from transformers import DynamicCache

        kept = list(past.values())
        found = self.model(
            input_ids=input_ids,
            position_ids=position_ids,
            past_key_values=DynamicCache(list(zip(kept[::2], kept[1::2], strict=True))),
            use_cache=True,
        )
        present = [tensor for layer in found.past_key_values.layers for tensor in (layer.keys, layer.values)]
        names = (name.replace("past", "present") for name in past)
        return {"logits": found.logits, **dict(zip(names, present, strict=True))}
