"""DLRM, the recommendation model: dense features and many bags of ids in, one click score out.

Source: M. Naumov et al., "Deep Learning Recommendation Model for Personalization and Recommendation Systems",
arXiv:1906.00091 (2019): a bottom MLP for the dense features, an embedding bag for each categorical one, dot products
of all pairs, and a top MLP. Nobody publishes weights for these sizes; what is real is the work: 26 gathers of rows that
lie far apart beside small matrix products.
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

DENSE = 13
CRITEO = (
    1460, 583, 10131227, 2202608, 305, 24, 12517, 633, 3, 93145, 5683, 8351593, 3194,
    27, 14992, 5461306, 10, 5652, 2173, 4, 7046547, 18, 15, 286181, 105, 142572,
)  # fmt: skip
"""Distinct values of the 26 categorical features of Criteo's Display Advertising Challenge, as DLRM's authors count."""
BAGS = (1, 1, 4, 2, 1, 1, 1, 1, 1, 3, 1, 8, 1, 1, 2, 6, 1, 1, 1, 1, 8, 1, 1, 2, 1, 2)
"""Ids a bag may hold for each feature; id 0 fills up and counts for nothing."""
ZIPF = 1.3
"""Exponent of the ids' popularity: a few are in most bags."""


@dataclass(frozen=True, slots=True)
class Size:
    """How large a model is.

    Attributes:
        width: length of every embedding, and of the bottom MLP's answer.
        most_rows: rows of a table at most; what has more distinct values is hashed into so many, as is usual.
        features: how many of the categorical features take part.
        bottom / top: widths of the hidden layers.
        batch: largest batch.
    """

    width: int
    most_rows: int
    features: int
    bottom: tuple[int, ...]
    top: tuple[int, ...]
    parameters: int
    batch: int

    @property
    def rows(self) -> tuple[int, ...]:
        """Rows of every table."""
        return tuple(min(n, self.most_rows) for n in CRITEO[: self.features])


FULL = Size(64, 100_000, 26, (512, 256), (512, 256), parameters=54_294_273, batch=256)
SMALL = Size(8, 50, 6, (16,), (16,), parameters=3_049, batch=4)


def build(size: Size) -> "torch.nn.Module":
    """Build the model with weights drawn with seed 0.

    MLPs are drawn as in the authors' code (normal, deviation sqrt(2 / (inputs + outputs))). Embeddings are drawn with
    the deviation of the bottom MLP's answers, whatever the table's size, so that ids count as much as dense features.
    """
    import torch
    from torch import nn

    torch.manual_seed(0)

    class Dlrm(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.tables = nn.ModuleList(nn.Embedding(n, size.width, padding_idx=0) for n in size.rows)
            self.bottom = _mlp((DENSE, *size.bottom, size.width), last=nn.ReLU())
            pairs = (size.features + 1) * size.features // 2
            self.top = _mlp((size.width + pairs, *size.top, 1), last=nn.Identity())
            below = torch.tril_indices(size.features + 1, size.features + 1, offset=-1)
            self.register_buffer("pairs", below[0] * (size.features + 1) + below[1], persistent=False)

        def forward(self, dense: torch.Tensor, **ids: torch.Tensor) -> dict[str, torch.Tensor]:
            hidden = self.bottom(dense)
            bags = [table(ids[name]).sum(dim=1) for table, name in zip(self.tables, _names(size), strict=True)]
            vectors = torch.stack([hidden, *bags], dim=1)
            products = torch.bmm(vectors, vectors.transpose(1, 2)).flatten(1)
            return {"click_logit": self.top(torch.cat([hidden, products[:, self.pairs]], dim=1))}

    model = Dlrm()
    with torch.no_grad():
        for table in model.tables:
            table.weight.normal_(0, 0.3)
            table.weight[0] = 0
    return model.eval()


def _mlp(widths: Sequence[int], *, last: "torch.nn.Module") -> "torch.nn.Sequential":
    import torch
    from torch import nn

    layers: list[nn.Module] = []
    for inside, out in itertools.pairwise(widths):
        linear = nn.Linear(inside, out)
        with torch.no_grad():
            linear.weight.normal_(0, (2 / (inside + out)) ** 0.5)
            linear.bias.normal_(0, (1 / out) ** 0.5)
        layers += [linear, nn.ReLU()]
    return nn.Sequential(*layers[:-1], last)


def load(folder: Path | None) -> "torch.nn.Module":
    """Build the model with weights drawn with seed 0; there are no others."""
    return build(FULL)


def load_small(folder: Path | None) -> "torch.nn.Module":
    """Build the reduced model."""
    return build(SMALL)


def clicks(size: Size) -> Callable[[int], Sequence[Item]]:
    """Return what makes visits: counts as log(1 + n), ids by a power law, bags filled in part.

    ``dense``: float32 (1, 13); ``ids_00`` …: int64 (1, bag).
    """

    def samples(count: int) -> Sequence[Item]:
        rng = np.random.default_rng(0)
        return [_visit(rng, size) for _ in range(count)]

    return samples


def _visit(rng: np.random.Generator, size: Size) -> Item:
    counts = rng.lognormal(rng.normal(1.0, 0.7), 1.2, (1, DENSE))
    item: dict[str, np.ndarray] = {"dense": np.log1p(counts).astype(np.float32)}
    for name, rows, bag in zip(_names(size), size.rows, BAGS, strict=False):
        ids = 1 + (rng.zipf(ZIPF, bag) - 1) % (rows - 1)
        ids[rng.integers(1, bag, endpoint=True) :] = 0
        item[name] = ids.astype(np.int64)[None]
    return item


def _names(size: Size) -> list[str]:
    return [f"ids_{i:02d}" for i in range(size.features)]


def entry(size: Size, load: Callable[[Path | None], "torch.nn.Module"]) -> Entry:
    """Return the entry of a model of this size."""
    ids = [
        TensorSpec(name, "int64", ("batch", bag), (0, rows - 1))
        for name, rows, bag in zip(_names(size), size.rows, BAGS, strict=False)
    ]
    inputs = (TensorSpec("dense", "float32", ("batch", DENSE)), *ids)
    fixed = {s.name: s.dims[1] for s in inputs}
    return Entry(
        name="dlrm",
        title="DLRM recommendation model, 26 embedding bags",
        licence="random weights only",
        parameters=size.parameters,
        load=load,
        inputs=inputs,
        outputs=(TensorSpec("click_logit", "float32", ("batch", 1)),),
        profile={n: ShapeRange((1, w), (1, w), (size.batch, w)) for n, w in fixed.items() if isinstance(w, int)},
        samples=clicks(size),
        origin="visits drawn by a power law",
        small=lambda: entry(SMALL, load_small),
    )


ENTRY = entry(FULL, load)
