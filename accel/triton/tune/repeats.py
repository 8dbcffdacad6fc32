"""How often requests ask what was asked before: what a response cache can answer."""

import functools
from collections.abc import Sequence
from pathlib import Path

from accel.bench.wire import tensor_bytes
from accel.triton import manifest as manifests
from accel.triton.reading import read_points

MOST_HITS = 0.95
"""Beyond this share, 99 % of the requests can be answered in time by the cache alone, at any load."""
BESIDE_BYTES = 100
"""What is kept beside each output of an answer: its name, type, shape and size. Source: triton-inference-server/core,
src/cache_entry.cc, ``SetBufferSize``."""


def hits(keys: Sequence[str], answers: int) -> float:
    """Return the share of requests whose key is among the last so many different ones that were asked.

    Source: triton-inference-server/local_cache, README ("Replacement Policy"): what was not asked for longest goes.
    """
    look = functools.lru_cache(maxsize=answers)(lambda key: None)
    for key in keys:
        look(key)
    return look.cache_info().hits / len(keys)


def answer_bytes(root: Path) -> int:
    """Return what the cache takes for an answer of one item, by the repository's stored sample."""
    manifest = manifests.read(root)
    sample = read_points(root, manifest)["opt"]
    items = len(next(iter(sample.inputs.values()))) if manifest.max_batch_size > 0 else 1
    return sum(len(tensor_bytes(value)) // items + BESIDE_BYTES for value in sample.outputs.values())
