"""A deep autoencoder for rows of a table: rebuilds a row through a narrow middle, and says how badly that went.

Source: G. Hinton, R. Salakhutdinov, "Reducing the Dimensionality of Data with Neural Networks", Science 313 (2006).
"""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from accel.core.values import ShapeRange, TensorSpec
from model_zoo import Entry, Item

if TYPE_CHECKING:
    import torch

FACTORS = 12
"""Hidden causes behind the columns of a row."""


@dataclass(frozen=True, slots=True)
class Size:
    """How large a model is: columns of a row, widths of the encoder's layers down to the code, largest batch."""

    columns: int
    widths: tuple[int, ...]
    parameters: int
    batch: int


FULL = Size(128, (1024, 512, 256, 32), parameters=1_592_992, batch=64)
SMALL = Size(24, (32, 16, 8), parameters=2_944, batch=4)


def build(size: Size) -> "torch.nn.Module":
    """Build the model with weights drawn with seed 0."""
    import torch
    from torch import nn

    torch.manual_seed(0)

    class Autoencoder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            down = (size.columns, *size.widths)
            self.encoder = _stack(down)
            self.decoder = _stack(down[::-1])

        def forward(self, features: torch.Tensor) -> dict[str, torch.Tensor]:
            rebuilt = self.decoder(self.encoder(features))
            error = (rebuilt - features).square().mean(dim=1, keepdim=True)
            return {"reconstruction": rebuilt, "error": error}

    return Autoencoder().eval()


def _stack(widths: Sequence[int]) -> "torch.nn.Sequential":
    import torch
    from torch import nn

    layers: list[nn.Module] = []
    for inside, out in itertools.pairwise(widths):
        linear = nn.Linear(inside, out)
        with torch.no_grad():
            # Keeps the variance through ReLU, so that the code still knows its row.
            linear.weight.normal_(0, (2 / inside) ** 0.5)
        layers += [linear, nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def load(folder: Path | None) -> "torch.nn.Module":
    """Build the model with weights drawn with seed 0; there are no others."""
    return build(FULL)


def load_small(folder: Path | None) -> "torch.nn.Module":
    """Build the reduced model."""
    return build(SMALL)


def rows(size: Size) -> Callable[[int], Sequence[Item]]:
    """Return what makes rows of a table, float32 (1, columns), standardised.

    A few hidden factors move the columns together, a third of them bent (squared or cut at zero, as amounts are), with
    noise of their own on top.
    """

    def samples(count: int) -> Sequence[Item]:
        rng = np.random.default_rng(0)
        loadings = rng.normal(0, 1 / FACTORS**0.5, (FACTORS, size.columns))
        bent = rng.integers(0, 6, size.columns)
        plain = rng.normal(size=(count, FACTORS)) @ loadings
        values = np.where(bent == 0, plain**2 - 1, np.where(bent == 1, np.maximum(plain, 0), plain))
        values = values + rng.normal(0, 0.2, values.shape)
        return [{"features": row[None]} for row in values.astype(np.float32)]

    return samples


def entry(size: Size, load: Callable[[Path | None], "torch.nn.Module"]) -> Entry:
    """Return the entry of a model of this size."""
    return Entry(
        name="autoencoder",
        title="Deep autoencoder for rows of a table",
        licence="random weights only",
        parameters=size.parameters,
        load=load,
        inputs=(TensorSpec("features", "float32", ("batch", size.columns)),),
        outputs=(
            TensorSpec("reconstruction", "float32", ("batch", size.columns)),
            TensorSpec("error", "float32", ("batch", 1)),
        ),
        profile={
            "features": ShapeRange((1, size.columns), (1, size.columns), (size.batch, size.columns)),
        },
        samples=rows(size),
        origin="rows of a table drawn from hidden factors",
        small=lambda: entry(SMALL, load_small),
    )


ENTRY = entry(FULL, load)
