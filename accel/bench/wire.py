"""Tensors as the inference protocol has them: types by its names, values as bytes."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from accel.core.dtypes import datatype
from accel.core.feeds import Feed


@dataclass(frozen=True, slots=True)
class WireTensor:
    """Name, type and shape of one tensor of a request."""

    name: str
    datatype: str
    shape: tuple[int, ...]


def tensor_bytes(value: np.ndarray) -> bytes:
    """Return a tensor as the wire has it: row-major little-endian; text and bytes with a length before each element.

    Source: KServe's open inference protocol, gRPC ``raw_input_contents``.
    """
    if value.dtype.kind not in "OSU":
        return np.ascontiguousarray(value).tobytes()
    elements = [e.encode() if isinstance(e, str) else bytes(e) for e in value.ravel().tolist()]
    return b"".join(len(e).to_bytes(4, "little") + e for e in elements)


def wire_type(dtype: np.dtype) -> str:
    """Return the inference protocol's name of a NumPy dtype (``INT64``, ``BYTES``)."""
    return "BYTES" if dtype.kind in "OSU" else datatype(str(dtype)).removeprefix("TYPE_")


def described(feed: Feed) -> tuple[WireTensor, ...]:
    """Return name, type and shape of a feed's tensors."""
    return tuple(WireTensor(name, wire_type(value.dtype), value.shape) for name, value in feed.items())


def raw_bytes(feeds: Sequence[Feed]) -> dict[str, np.ndarray]:
    """Return the bytes of all tensors as arrays for an ``.npz``, keyed ``<feed>/<input>``."""
    return {
        f"{i}/{name}": np.frombuffer(tensor_bytes(value), np.uint8)
        for i, feed in enumerate(feeds)
        for name, value in feed.items()
    }
