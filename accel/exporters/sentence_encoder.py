"""Sentence-transformers folders: pooling, projection and normalisation are part of the model that is converted.

Imports torch at its top; it is imported inside functions. Sources of what the files say and what is computed:
sentence-transformers, ``modules.json`` and ``sentence_transformer/modules/{pooling,dense,normalize}.py``.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from accel.core.errors import InputError, raised_as
from accel.exporters.positional import named_tensors
from accel.exporters.processing_files import PLAIN_ENCODER, pooling_modes, read_json

ACTIVATIONS = ("Tanh", "Identity", "ReLU", "GELU", "Sigmoid")
POOLINGS = ("cls", "max", "mean", "mean_sqrt_len_tokens", "weightedmean", "lasttoken")


class SentenceEncoder(torch.nn.Module):
    """Wrap an encoder so that it gives ``sentence_embedding``, float (batch, width), in place of its token vectors.

    Args:
        encoder: the first of its results with three axes are the token vectors (batch, tokens, hidden).
        modes: of ``POOLINGS``; their results stand side by side.
        after: what follows: projections and normalisation.
        mask: input that is 0 at padding.
    """

    def __init__(
        self,
        encoder: torch.nn.Module,
        modes: Sequence[str],
        after: Sequence[torch.nn.Module],
        mask: str = "attention_mask",
    ) -> None:
        super().__init__()
        self.encoder, self.mask = encoder, mask
        self.modes = tuple(modes)
        self.after = torch.nn.Sequential(*after)

    def forward(self, **inputs: torch.Tensor) -> dict[str, torch.Tensor]:
        """Encode tokens and make one vector of each text."""
        vectors = next(v for v in named_tensors(self.encoder(**inputs)).values() if v.ndim == 3)
        mask = inputs[self.mask].to(vectors.dtype)
        pooled = torch.cat([_pooled(vectors, mask, mode) for mode in self.modes], dim=-1)
        return {"sentence_embedding": self.after(pooled)}


class Normalize(torch.nn.Module):
    """Bring vectors to length 1."""

    def forward(self, vectors: torch.Tensor) -> torch.Tensor:
        """Divide float (batch, width) by its length."""
        return torch.nn.functional.normalize(vectors, dim=-1)


def _pooled(vectors: torch.Tensor, mask: torch.Tensor, mode: str) -> torch.Tensor:
    """Pool (batch, tokens, hidden) under a mask (batch, tokens) of zeros and ones, in the vectors' dtype.

    The first and the last token are found by counting: what ArgMax gives among equals is each runtime's own affair.
    """
    if mode == "max":
        return vectors.masked_fill(mask.unsqueeze(-1) == 0, torch.finfo(vectors.dtype).min).amax(dim=1)
    count = mask.cumsum(dim=1)
    length = mask.sum(dim=1, keepdim=True)
    weight = mask
    if mode == "weightedmean":
        before = (count == 0).to(mask.dtype).sum(dim=1, keepdim=True)  # padding on the left
        weight = mask * (torch.ones_like(mask).cumsum(dim=1) - before)
    elif mode in ("cls", "lasttoken"):
        weight = mask * (count == (1 if mode == "cls" else length)).to(mask.dtype)
    total = (vectors * weight.unsqueeze(-1)).sum(dim=1)
    share = {"mean": length, "mean_sqrt_len_tokens": length.sqrt(), "weightedmean": weight.sum(dim=1, keepdim=True)}
    return total / share[mode].clamp(min=1e-9) if mode in share else total


def wrap(
    encoder: torch.nn.Module, folder: Path, modules: Sequence[Mapping[str, Any]], pool: str | None = None
) -> SentenceEncoder:
    """Build what ``modules.json`` puts after an encoder.

    Args:
        modules: as ``processing_files.sentence_modules`` gives them.
        pool: the mode, in place of the folder's own.

    Raises:
        InputError: a module or an option that accel does not build, or weights that are missing or pickled.
    """
    _, pooling, *rest = modules
    config = read_json(folder / str(pooling.get("path", "")) / "config.json")
    modes = [pool] if pool else pooling_modes(config)
    if unknown := [mode for mode in modes if mode not in POOLINGS]:
        raise InputError(f"{folder} pools by {unknown[0]!r}, accel by {', '.join(POOLINGS)}", fix=PLAIN_ENCODER)
    after = [
        Normalize() if module["kind"] == "Normalize" else _dense(folder / str(module.get("path", "")))
        for module in rest
    ]
    return SentenceEncoder(encoder, modes, after).eval()


def _dense(folder: Path) -> torch.nn.Module:
    from safetensors.torch import load_file

    config = read_json(folder / "config.json")
    name = str(config.get("activation_function") or "Identity")
    kind = name.rpartition(".")[2]
    names = (config.get(key) or "sentence_embedding" for key in ("module_input_name", "module_output_name"))
    if kind not in ACTIVATIONS or config.get("use_residual") or set(names) != {"sentence_embedding"}:
        raise InputError(f"{folder}/config.json asks for a projection that accel does not build", fix=PLAIN_ENCODER)
    linear = torch.nn.Linear(config["in_features"], config["out_features"], bias=config.get("bias", True))
    with raised_as(
        InputError,
        (OSError, RuntimeError, ValueError),
        f"{folder}: no safetensors weights of its projection can be read (a pickle is never opened)",
        fix="load the model with sentence-transformers where you trust it, and save_pretrained it",
    ):
        weights = load_file(folder / "model.safetensors")
        linear.load_state_dict({key.removeprefix("linear."): value.float() for key, value in weights.items()})
    return torch.nn.Sequential(linear, getattr(torch.nn, kind)())
