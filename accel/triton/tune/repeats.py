"""How often requests ask what was asked before: what a response cache can answer.

The server keeps answers until their size is that of the cache, and then forgets what was not asked for longest. Source:
triton-inference-server/local_cache, README ("Replacement Policy").
"""

import functools
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from accel.core import recorded
from accel.core.errors import UsageError
from accel.triton import manifest as manifests
from accel.triton.launch import CACHE_BYTES
from accel.triton.reading import read_points


@dataclass(frozen=True, slots=True)
class Repeats:
    """What is known of repeated requests.

    Attributes:
        hit_rate: share of the requests that a cache answers.
        keys: what each recorded request asked, in their order; it then says the share.
    """

    hit_rate: float = 0.0
    keys: tuple[str, ...] = ()

    def hits(self, answer_bytes: int) -> float:
        """Return the share of the requests that the cache of a ``launch.sh`` answers.

        Args:
            answer_bytes: size of an answer.
        """
        return hits(self.keys, CACHE_BYTES // max(1, answer_bytes)) if self.keys else self.hit_rate


def hits(keys: tuple[str, ...], answers: int) -> float:
    """Return the share of requests whose key is among the last so many different ones that were asked."""
    look = functools.lru_cache(maxsize=answers)(lambda key: None)
    for key in keys:
        look(key)
    return look.cache_info().hits / len(keys)


def parse_repeats(text: str) -> Repeats:
    """Read a share of requests, or the path of recorded ones with a ``key``.

    Raises:
        UsageError: it is neither, or the share is not between 0 and 1.
        InputError: the file cannot be read, or a request of it has no key.
    """
    try:
        share = float(text)
    except ValueError:
        if Path(text).is_file():
            return Repeats(keys=tuple(recorded.read_keys(Path(text))))
        raise UsageError(
            f"--hit-rate {text}: there is no such file", fix="give a share such as 0.3, or a file"
        ) from None
    if not 0 < share < 1:
        raise UsageError(f"--hit-rate {text} is no share of the requests", fix="give a number between 0 and 1")
    return Repeats(share)


def answer_bytes(root: Path) -> int:
    """Return the size of an answer to a request of one item, as the repository's stored sample has it."""
    manifest = manifests.read(root)
    outputs = read_points(root, manifest)["opt"].outputs
    batched = [spec.dims for spec in manifest.outputs if spec.dims and isinstance(spec.dims[0], str)]
    items = max((len(value) for value in outputs.values()), default=1) if batched else 1
    return sum(map(_bytes, outputs.values())) // max(1, items)


def _bytes(value: np.ndarray) -> int:
    return sum(len(str(one).encode()) for one in value.flat) if value.dtype == object else value.nbytes
