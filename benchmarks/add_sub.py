"""The model of Model Analyzer's quick start, in our own words: sum and difference of two inputs of 16 numbers.

accel convert benchmarks/add_sub.py:build --targets cpu -o runs/add_sub
accel tune runs/add_sub --max-p99-ms 20 --arrivals closed
"""

import numpy as np
import torch


class AddSub(torch.nn.Module):
    """INPUT__0, INPUT__1: float32 (batch, 16) → their sum and difference, alike."""

    def forward(self, INPUT__0: torch.Tensor, INPUT__1: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return OUTPUT__0 and OUTPUT__1."""
        return {"OUTPUT__0": INPUT__0 + INPUT__1, "OUTPUT__1": INPUT__0 - INPUT__1}


def build() -> tuple[torch.nn.Module, list[dict[str, np.ndarray]]]:
    """Return the module and samples of up to eight items."""
    rng = np.random.default_rng(0)
    sizes = [1 + i % 8 for i in range(200)]
    names = ("INPUT__0", "INPUT__1")
    return AddSub(), [{n: rng.standard_normal((size, 16)).astype(np.float32) for n in names} for size in sizes]
