"""A tiny module with everything a call can have: keywords, optional and nested inputs, constants, a nested result."""

from typing import Any

import torch


class Nested(torch.nn.Module):
    """Embeds ids; may mask them, scale them by a constant, and add what a nested input holds."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = torch.nn.Embedding(50, 16)
        self.out = torch.nn.Linear(16, 4)

    def forward(
        self,
        ids: torch.Tensor,
        mask: torch.Tensor | None = None,
        scale: float = 2.0,
        *,
        extra: dict[str, Any] | None = None,
    ) -> dict[str, Any]:
        hidden = self.embed(ids) * scale
        if mask is not None:
            hidden = hidden * mask[..., None]
        if extra is not None:
            hidden = hidden + extra["bias"]
        return {"logits": self.out(hidden), "rest": (hidden.mean(1), hidden.argmax(-1), None)}


def module() -> Nested:
    torch.manual_seed(0)
    return Nested()


def samples(count: int = 24) -> list[dict[str, Any]]:
    made = torch.Generator().manual_seed(1)
    sizes = [3 + i % 6 for i in range(count)]
    return [
        {
            "ids": torch.randint(0, 50, (1, n), generator=made),
            "mask": torch.ones(1, n),
            "extra": {"bias": torch.rand(1, n, 16, generator=made)},
        }
        for n in sizes
    ]
