"""Tensors as the inference protocol has them: types by its names, values as bytes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from accel.core.dtypes import DATATYPES, datatype
from accel.core.feeds import Feed
from accel.core.values import TensorSpec


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


def spec_of(tensor: Mapping[str, Any], *, batched: bool) -> TensorSpec:
    """Return the spec of a tensor as ``calls.describe`` gives it; every dynamic axis gets a name of its own."""
    kinds = {name: dtype for dtype, name in DATATYPES.items() if dtype != "str"}
    dims = [size if size >= 0 else f"{tensor['name']}.{axis}" for axis, size in enumerate(tensor["dims"])]
    return TensorSpec(tensor["name"], kinds[tensor["datatype"]], ("batch", *dims) if batched else tuple(dims))


def described(feed: Feed) -> list[dict[str, Any]]:
    """Return name, type and shape of a feed's tensors."""
    return [{"name": name, "datatype": wire_type(v.dtype), "shape": list(v.shape)} for name, v in feed.items()]


def raw_bytes(feeds: Sequence[Feed]) -> dict[str, np.ndarray]:
    """Return the bytes of all tensors as arrays for an ``.npz``, keyed ``<feed>/<input>``."""
    return {
        f"{i}/{name}": np.frombuffer(tensor_bytes(value), np.uint8)
        for i, feed in enumerate(feeds)
        for name, value in feed.items()
    }
