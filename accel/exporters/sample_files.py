"""The user's sample files: which there are, and the sizes that they show."""

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from accel.core.errors import InputError
from accel.core.feeds import read_npz
from accel.exporters.request import FACTORY

SAMPLES = (".npz", ".jsonl")


def sample_files(folder: Path) -> list[Path]:
    """List the sample files of a folder, by name.

    Raises:
        InputError: it holds none.
    """
    files = [p for p in sorted(folder.iterdir()) if p.suffix.lower() in SAMPLES and p.is_file()]
    if not files:
        raise InputError(f"{folder} holds no .npz and no .jsonl file", fix="docs/samples.md shows both forms")
    return files


def sample_shapes(reference: str | None, name: str) -> list[tuple[int, ...]]:
    """Return the shapes in which one call takes an input, each once, as the samples have them.

    A stacked array and a line of a ``.jsonl`` are calls of one item. A generator shows nothing: it may ask the model.

    Args:
        reference: the user's samples, as of ``SourceRequest``.
        name: the input.

    Raises:
        SampleError: as ``read_npz``; InputError: a folder without samples.
    """
    if reference is None or FACTORY.fullmatch(reference):
        return []
    path = Path(reference)
    files = sample_files(path) if path.is_dir() else [path]
    return list(dict.fromkeys(shape for file in files for shape in _shapes(file, name)))


def sample_dtype(reference: str | None, name: str) -> str | None:
    """Return the dtype of an input as the first ``.npz`` with it says; None where none does.

    Args:
        reference / name: as of ``sample_shapes``.
    """
    return next((str(array.dtype) for array in _held(reference, name)), None)


def sample_bounds(reference: str | None, name: str) -> tuple[int, int] | None:
    """Return the least and the largest value of an integer input in all ``.npz``; None where none has it.

    Args:
        reference / name: as of ``sample_shapes``.
    """
    ends = [(int(array.min()), int(array.max())) for array in _held(reference, name) if array.size]
    return (min(low for low, _ in ends), max(high for _, high in ends)) if ends else None


def _held(reference: str | None, name: str) -> Iterator[np.ndarray]:
    """Yield what each ``.npz`` has of an input."""
    if reference is None or FACTORY.fullmatch(reference):
        return
    path = Path(reference)
    for file in sample_files(path) if path.is_dir() else [path]:
        if file.suffix.lower() == ".npz":
            yield from _arrays(file, name).values()


def _arrays(file: Path, name: str) -> dict[str, np.ndarray]:
    return read_npz(file, lambda key: key == name or key.partition("/")[2] == name)


def _shapes(file: Path, name: str) -> Iterator[tuple[int, ...]]:
    if file.suffix.lower() != ".jsonl":
        for key, value in _arrays(file, name).items():
            yield (1, *value.shape[1:]) if key == name else value.shape
        return
    for line in file.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            value = json.loads(line)[name]
            yield (1, *np.shape(value))
        except (ValueError, KeyError, TypeError, RecursionError):
            continue  # who reads the samples says what is wrong with them
