"""The whole list: every source by its id, and how many there are."""

import random
from collections.abc import Iterable, Sequence

from benchmarks.compatibility import sources_huggingface, sources_onnx, sources_tensorflow, sources_torch
from benchmarks.compatibility.source import KINDS, Source, checked

SOURCES = checked(
    (*sources_onnx.SOURCES, *sources_torch.SOURCES, *sources_huggingface.SOURCES, *sources_tensorflow.SOURCES)
)
BY_ID = {source.id: source for source in SOURCES}


def architectures(sources: Iterable[Source]) -> set[str]:
    """Return the distinct architectures; cases of single operators have none."""
    return {source.architecture for source in sources if not source.operator}


def counts() -> list[tuple[str, int, int, int]]:
    """Return kind, sources, distinct architectures and operator cases, the sum last."""
    rows = []
    for kind in (*KINDS, "all"):
        own = [s for s in SOURCES if kind in (s.kind, "all")]
        rows.append((kind, sum(not s.operator for s in own), len(architectures(own)), sum(s.operator for s in own)))
    return rows


def sample(count: int, seed: int = 0) -> list[Source]:
    """Draw sources, as many of each kind as there is room for; the same ones for the same seed."""
    rng = random.Random(seed)
    piles = [rng.sample(own, len(own)) for kind in KINDS if (own := [s for s in SOURCES if s.kind == kind])]
    drawn: list[Source] = []
    while len(drawn) < count and any(piles):
        drawn += [pile.pop() for pile in piles if pile]
    return drawn[:count]


def chosen(names: Sequence[str]) -> list[Source]:
    """Return the sources named by id or by the beginning of one (``onnx/silero``).

    Raises:
        SystemExit: a name that fits none.
    """
    found: dict[str, Source] = {}
    for name in names:
        fits = [BY_ID[name]] if name in BY_ID else [s for s in SOURCES if s.id.startswith(name)]
        if not fits:
            raise SystemExit(f"no source {name!r}; `list` shows them all")
        found |= {s.id: s for s in fits}
    return list(found.values())
