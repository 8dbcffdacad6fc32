"""The user's samples before anything is known of the model: which files there are, and the sizes that they show."""

import functools
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from accel.core.calls import as_array, is_tensor
from accel.core.errors import InputError, SampleError
from accel.core.feeds import read_npz
from accel.exporters import user_code
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

    A stacked array and a line of a ``.jsonl`` are calls of one item. A generator shows what its dicts have: what texts
    become depends on the model.

    Args:
        reference: the user's samples, as of ``SourceRequest``.
        name: the input.

    Raises:
        SampleError: as ``read_npz``; InputError: a folder without samples, or a generator that raised.
    """
    if reference is None:
        return []
    if FACTORY.fullmatch(reference):
        return list(dict.fromkeys(shown.shape for shown in _generated(reference) if shown.name == name))
    path = Path(reference)
    files = sample_files(path) if path.is_dir() else [path]
    return list(dict.fromkeys(shape for file in files for shape in _shapes(file, name)))


def sample_dtype(reference: str | None, name: str) -> str | None:
    """Return the dtype of an input as the first ``.npz`` or sample of a generator with it says; None where none does.

    Args:
        reference / name: as of ``sample_shapes``.
    """
    if reference is not None and FACTORY.fullmatch(reference):
        return next((shown.dtype for shown in _generated(reference) if shown.name == name), None)
    return next((str(array.dtype) for array in _held(reference, name)), None)


def sample_bounds(reference: str | None, name: str) -> tuple[int, int] | None:
    """Return the least and the largest value of an integer input in all samples that are arrays; None without any.

    Args:
        reference / name: as of ``sample_shapes``.
    """
    if reference is not None and FACTORY.fullmatch(reference):
        ends = [shown.ends for shown in _generated(reference) if shown.name == name and shown.ends is not None]
    else:
        ends = [(int(array.min()), int(array.max())) for array in _held(reference, name) if array.size]
    return (min(low for low, _ in ends), max(high for _, high in ends)) if ends else None


def _held(reference: str | None, name: str) -> Iterator[np.ndarray]:
    """Yield what each ``.npz`` has of an input."""
    if reference is None:
        return
    path = Path(reference)
    for file in sample_files(path) if path.is_dir() else [path]:
        if file.suffix.lower() == ".npz":
            yield from _arrays(file, name).values()


class _Shown(NamedTuple):
    """What one sample of a generator shows of an input; ``ends``: the least and the largest integer."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    ends: tuple[int, int] | None


@functools.cache
def _generated(reference: str) -> tuple[_Shown, ...]:
    """Return what the dicts of a generator show; one alone has an item in each row, as an ``.npz`` has."""
    made = generated(reference)
    stacked = isinstance(made, Mapping)
    found: list[_Shown] = []
    for sample in [made] if stacked else made:
        for name, value in sample.items() if isinstance(sample, Mapping) else ():
            if is_tensor(value):
                array = as_array(value)
                shape = (1, *array.shape[1:]) if stacked else array.shape
                whole = array.size and array.dtype.kind in "biu"
                ends = (int(array.min()), int(array.max())) if whole else None
                found.append(_Shown(name, shape, str(array.dtype), ends))
    return tuple(found)


def generated(reference: str) -> Mapping[str, Any] | list[Any]:
    """Return what the user's generator gives: one dict of arrays, or a list of samples.

    Raises:
        SampleError: it gave nothing; InputError: it is not there, or raised.
    """
    made = user_code.call(reference, "sample generator")
    if made is None:
        raise SampleError(f"sample generator {Path(reference).name} returned nothing: expected samples")
    with user_code.running(reference, "sample generator"):  # its code runs as it is asked for samples
        return made if isinstance(made, Mapping) else list(made)


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
