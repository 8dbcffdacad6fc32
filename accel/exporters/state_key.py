"""The key of a torch module's weights."""

from __future__ import annotations

from typing import TYPE_CHECKING

from accel.core.values import sha256_json

if TYPE_CHECKING:
    import torch


def state_key(module: torch.nn.Module) -> str:
    """Hash a state dict's content: names, dtypes, shapes and bytes, in sorted order."""
    import hashlib

    import torch

    digest = hashlib.sha256()
    for name, value in sorted(module.state_dict().items()):
        if not isinstance(value, torch.Tensor):
            digest.update(f"{name}={value!r};".encode())
            continue
        flat = value.detach().cpu().contiguous().flatten()
        digest.update(f"{name}:{value.dtype}:{tuple(value.shape)};".encode())
        digest.update(flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b"")
    return sha256_json(digest.hexdigest())
