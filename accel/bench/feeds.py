"""What a load sends: the stored samples of a repository, a user's file, or random values where none could be wrong.

User files are perf_analyzer's JSON (its docs/input_data.md) or ``.npz``: arrays ``<input>`` for one feed, or
``<index>/<input>`` for several.
"""

import base64
import binascii
import json
import math
import struct
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from tritonclient.utils import deserialize_bytes_tensor

from accel.bench.wire import tensor_bytes
from accel.core.errors import InputError, SampleError, raised_as
from accel.core.feeds import Feed, read_npz
from accel.core.files import load_json
from accel.core.values import TensorSpec


def read(path: Path, inputs: Sequence[TensorSpec], *, batched: bool) -> list[dict[str, np.ndarray]]:
    """Read the feeds of a user's file.

    Args:
        inputs: the contract, batch axis included.
        batched: whether the model has a batch axis that JSON entries leave out, as perf_analyzer has it.

    Raises:
        InputError: the file is missing or of another form.
        SampleError: an entry lacks an input, has an unknown one, or one whose shape cannot be known.
    """
    if path.suffix == ".npz":
        return _read_npz(path)
    if path.suffix != ".json":
        raise InputError(f"{path} is not a file of feeds", fix="give a .json in perf_analyzer's format, or an .npz")
    with raised_as(
        InputError, (OSError, ValueError), f"{path} cannot be read as JSON", fix="see docs/measuring.md for the form"
    ):
        document = load_json(path.read_text(encoding="utf-8"))
    entries = document.get("data") if isinstance(document, dict) else None
    if not isinstance(entries, list) or not entries:
        raise InputError(f'{path} has no list "data" of feeds', fix='write {"data": [{"INPUT": [...]}, ...]}')
    if any(isinstance(entry, list) for entry in entries):
        raise InputError(f"{path} has data streams of a sequence model, which is not measured here", fix="list feeds")
    specs = {spec.name: spec for spec in inputs}
    feeds = []
    for index, entry in enumerate(entries):
        given = sorted(entry) if isinstance(entry, dict) else entry
        if given != sorted(specs):
            raise SampleError(f"{path}: entry {index} has inputs {given!r:.200}, expected {sorted(specs)}")
        feeds.append({name: _tensor(entry[name], specs[name], batched, f"{path}: entry {index}") for name in specs})
    return feeds


def write(path: Path, feeds: Sequence[Feed], *, batched: bool) -> None:
    """Write feeds in perf_analyzer's JSON form; with a batch axis every row is an entry of its own."""
    rows = [row for feed in feeds for row in (_rows(feed) if batched else [feed])]
    entries = []
    for row in rows:
        entry = {}
        for name, value in row.items():
            shape = list(value.shape[1:] if batched else value.shape)
            body = base64.b64encode(tensor_bytes(value)).decode()
            entry[name] = {"content": {"b64": body}, "shape": shape or [1]}
        entries.append(entry)
    path.write_text(json.dumps({"data": entries}), encoding="utf-8")


def rebatch(feeds: Sequence[Feed], batch: int) -> list[dict[str, np.ndarray]]:
    """Make feeds of exactly ``batch`` items from the rows of feeds of one shape, which are repeated where they end.

    Feeds of several shapes stay several: rows are joined only with rows of their own shape.
    """
    groups: dict[Any, list[dict[str, np.ndarray]]] = {}
    for feed in feeds:
        for row in _rows(feed):
            groups.setdefault(tuple(v.shape for v in row.values()), []).append(row)
    made = []
    for rows in groups.values():
        for first in range(0, len(rows), batch):
            chosen = [rows[(first + i) % len(rows)] for i in range(batch)]
            made.append({name: np.concatenate([row[name] for row in chosen]) for name in chosen[0]})
    return made


def random_feeds(inputs: Sequence[TensorSpec], *, batch: int, count: int = 8) -> list[dict[str, np.ndarray]]:
    """Make random feeds, where the contract says enough that no value can be wrong.

    Args:
        batch: size of the axis named ``batch``.

    Raises:
        InputError: an input is text, has another dynamic axis, or holds integers without a range: a token id beyond
            the vocabulary would measure error messages.
    """
    generator = np.random.default_rng(0)
    give = "give real data: --data FILE.json or FILE.npz"
    feeds: list[dict[str, np.ndarray]] = [{} for _ in range(count)]
    for spec in inputs:
        unknown = [dim for dim in spec.dims if isinstance(dim, str) and dim != "batch"]
        if unknown:
            raise InputError(
                f"input {spec.name!r} has dims {spec.dims}: nothing says how long {unknown[0]!r} is", fix=give
            )
        shape = tuple(batch if isinstance(dim, str) else dim for dim in spec.dims)
        kind = "O" if spec.dtype in ("object", "str") else np.dtype(spec.dtype).kind
        if kind not in "iubf" or (kind in "iu" and spec.range is None):
            what = "holds text" if kind == "O" else f"is {spec.dtype} without a declared range"
            raise InputError(f"input {spec.name!r} {what}: random values could be wrong", fix=give)
        for feed in feeds:
            if kind == "f":
                feed[spec.name] = generator.standard_normal(shape).astype(spec.dtype)
            else:
                low, high = spec.range or (0, 1)
                feed[spec.name] = generator.integers(low, high + 1, shape).astype(spec.dtype)
    return feeds


def _rows(feed: Feed) -> Iterator[dict[str, np.ndarray]]:
    count = next(iter(feed.values())).shape[0]
    for i in range(count):
        yield {name: value[i : i + 1] for name, value in feed.items()}


def _read_npz(path: Path) -> list[dict[str, np.ndarray]]:
    feeds: dict[str, dict[str, np.ndarray]] = {}
    for key, value in read_npz(path).items():
        index, _, name = key.partition("/") if key.partition("/")[0].isdigit() else ("", "", key)
        feeds.setdefault(index, {})[name] = value
    return list(feeds.values())


def _tensor(given: Any, spec: TensorSpec, batched: bool, where: str) -> np.ndarray:
    """Read one tensor: ``[1, 2]``, ``{"b64": "…"}``, or either as ``content`` beside a ``shape``."""
    dims = spec.dims[1:] if batched else spec.dims
    shape = None
    if isinstance(given, Mapping) and "content" in given:
        shape, given = given.get("shape"), given["content"]
    with raised_as(
        SampleError,
        (KeyError, TypeError, ValueError, OverflowError, binascii.Error),
        f"{where}: input {spec.name!r} cannot be read as {spec.dtype}",
    ):
        flat = _b64(given["b64"], spec) if isinstance(given, Mapping) else _listed(given, spec)
    if shape is None:
        unknown = [i for i, dim in enumerate(dims) if isinstance(dim, str)]
        known = math.prod(dim for dim in dims if isinstance(dim, int))
        if len(unknown) > 1 or (unknown and (known == 0 or len(flat) % known)):
            raise SampleError(
                f"{where}: input {spec.name!r} has {len(flat)} values for dims {dims}",
                fix='give {"content": [...], "shape": [...]}',
            )
        shape = [len(flat) // known if isinstance(dim, str) else dim for dim in dims]
    sizes = isinstance(shape, list) and all(type(size) is int and size >= 0 for size in shape)
    if not sizes or math.prod(shape) != len(flat):
        raise SampleError(f"{where}: input {spec.name!r} has {len(flat)} values, expected {shape}")
    return flat.reshape([1, *shape] if batched else shape)


def _listed(values: Any, spec: TensorSpec) -> np.ndarray:
    if not isinstance(values, list):
        raise TypeError(f"expected a list, found {type(values).__name__}")
    if spec.dtype in ("object", "str"):
        return np.array([str(v).encode() for v in values], object)
    flat = np.array(values).ravel()
    exact = flat.astype(spec.dtype)
    if flat.size and np.dtype(spec.dtype).kind in "iu" and not np.array_equal(exact, flat):
        raise ValueError("a value does not fit")
    return exact


def _b64(text: str, spec: TensorSpec) -> np.ndarray:
    body = base64.b64decode(text, validate=True)
    if spec.dtype not in ("object", "str"):
        return np.frombuffer(body, spec.dtype)
    try:
        return deserialize_bytes_tensor(body)
    except struct.error as error:
        raise ValueError("its text ends before its length says") from error
