"""Samples that the user gives: ``.npz``, ``.jsonl``, a folder of them, ``file.py:generator``, or a factory's own."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from accel.core.calls import as_array
from accel.core.errors import SampleError, raised_as
from accel.core.feeds import read_feeds, read_npz
from accel.core.values import ModelSource
from accel.exporters import factory
from accel.exporters.axes import extents
from accel.exporters.from_huggingface import tokenise
from accel.exporters.hub import huggingface_folder
from accel.exporters.request import FACTORY
from accel.exporters.sample_files import generated, sample_files
from accel.exporters.zoo import zoo

Sample = Mapping[str, Any]
"""A feed and, under a name that is not an input, labels."""


def tokenised(texts: Sequence[str], source: ModelSource) -> list[dict[str, Any]]:
    """Tokenise texts with the model's own tokenizer, cut at the longest sequence the profile allows.

    Raises:
        SampleError: the model has no tokenizer.
    """
    folder: Path | None = None
    if source.kind == "zoo":
        find = zoo().entry(source.reference).tokenizer
        folder = find() if find else None
    elif source.kind == "huggingface":
        folder = huggingface_folder(source.reference, source.revision)
    if folder is None:
        raise SampleError(f"{source.name} has no tokenizer for text samples", fix="give token ids in an .npz or .jsonl")
    axes = extents(source.inputs, source.profile)
    return tokenise(folder, texts, source.inputs, axes["seq"].max if "seq" in axes else 512)


def expected(source: ModelSource) -> str:
    """Say in which form samples of this model are given: its inputs' names, dtypes, sizes and ranges."""
    axes = extents(source.inputs, source.profile)

    def size(dim: int | str) -> str:
        return f"{dim} {axes[dim].min} to {axes[dim].max}" if isinstance(dim, str) else str(dim)

    inputs = [
        f"{s.name}: {s.dtype} ({', '.join(map(size, s.dims))})" + (f" in {list(s.range)}" if s.range else "")
        for s in source.inputs
    ]
    names = [s.name for s in source.inputs]
    line = ", ".join(f"{json.dumps(n)}: […]" for n in names)
    return (
        f"the inputs are {'; '.join(inputs)}. As .npz: numpy.savez('samples.npz', **{{'0/{names[0]}': …, …}}), keys "
        "<number>/<input>, or one array per input, its items along the first axis. As .jsonl: a line for each item, "
        f"without its first axis: {{{line}}}. Or a folder of these, or file.py:generator (docs/samples.md)"
    )


def no_label(where: str, labels: str, given: Iterable[str]) -> SampleError:
    """Return the error for a sample without its label."""
    fix = f"--labels NAME, one of the keys {sorted(given)}, or give the sample its label"
    return SampleError(f"{where}: no label {labels!r}", fix=fix)


def user_items(reference: str, source: ModelSource, labels: str | None = None) -> list[Sample]:
    """Read the user's samples: ``.npz``, ``.jsonl``, a folder of them, or what a generator or a factory gives.

    An ``.npz`` has keys ``<index>/<input>``, or one array per input whose leading axis counts the items. A line of a
    ``.jsonl`` is ``{"text": "…"}`` or one value per input, the batch axis left out.

    Args:
        labels: name of the right answers, which are no input: under it each feed has a list, one for each item.

    Raises:
        SampleError: it cannot be read, or holds something else.
    """
    if FACTORY.fullmatch(reference):
        feeds = list(_generated(reference, source, labels))
    elif Path(reference).is_dir():
        feeds = [feed for file in sample_files(Path(reference)) for feed in user_items(str(file), source, labels)]
    elif Path(reference).suffix.lower() == ".jsonl":
        feeds = _lines(Path(reference), source, labels)
    else:
        arrays = read_npz(Path(reference))
        indexed = any("/" in key for key in arrays) and not arrays.keys() <= {labels, *(s.name for s in source.inputs)}
        feeds = list(read_feeds(Path(reference)).values()) if indexed else [arrays]
    if not feeds:
        raise SampleError(f"{reference} holds no samples")
    return feeds


def _generated(reference: str, source: ModelSource, labels: str | None) -> Iterator[Sample]:
    if source.kind == "factory" and reference == source.reference:
        yield from factory.make(reference).samples
        return
    names = [s.name for s in source.inputs]
    made = generated(reference)
    for index, sample in enumerate([made] if isinstance(made, Mapping) else made):
        if isinstance(sample, str):
            yield from tokenised([sample], source)
        elif isinstance(sample, Mapping) and isinstance(sample.get("text"), str):
            [feed] = tokenised([sample["text"]], source)
            yield feed | {name: [value] for name, value in sample.items() if name == labels}
        elif isinstance(sample, Mapping):
            yield {k: as_array(v) for k, v in sample.items()}
        elif isinstance(sample, tuple) and len(sample) == len(names):
            yield {n: as_array(v) for n, v in zip(names, sample, strict=True)}
        else:
            raise SampleError(
                f"sample {index} of {Path(reference).name} is {type(sample).__name__}: expected a dict name → array, a "
                f"tuple of {len(names)} arrays, or text"
            )


def _lines(path: Path, source: ModelSource, labels: str | None) -> list[Sample]:
    feeds: list[Sample] = []
    texts: list[tuple[str, Sample]] = []
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise SampleError(
            f"{path.name} is not UTF-8 text: byte {error.start} is {error.object[error.start]:#04x}"
        ) from error
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        with raised_as(SampleError, (ValueError, RecursionError), f"{path.name}:{number} is not JSON"):
            row = json.loads(line)
        own = any(s.name == "text" for s in source.inputs)
        if not isinstance(row, dict) or ("text" in row and not own and not isinstance(row["text"], str)):
            raise SampleError(f'{path.name}:{number}: expected {{"text": "…"}} or one value per input')
        label: Sample = {}
        if labels is not None:
            if row.get(labels) is None:
                raise no_label(f"{path.name}:{number}", labels, row)
            label = {labels: [row.pop(labels)]}
        if "text" in row and len(row) == 1:
            texts.append((row["text"], label))
        else:
            feeds.append(
                {name: _row_array(path, number, name, value, source) for name, value in row.items()} | dict(label)
            )
    made = tokenised([text for text, _ in texts], source) if texts else []
    return feeds + [{**feed, **label} for feed, (_, label) in zip(made, texts, strict=True)]


def _row_array(path: Path, number: int, name: str, value: Any, source: ModelSource) -> np.ndarray:
    spec = next((s for s in source.inputs if s.name == name), None)
    with raised_as(SampleError, ValueError, f"{path.name}:{number}: input {name!r} is ragged"):
        array = np.asarray(value)
    if array.dtype.kind not in "ifub":
        raise SampleError(f"{path.name}:{number}: input {name!r} holds {array.dtype}, expected numbers")
    if spec is None:
        return array
    if array.ndim == len(spec.dims) - 1:
        array = array[None]
    # JSON knows one kind of number, so whole ones may stand for floats.
    return array.astype(spec.dtype) if "float" in spec.dtype else array
