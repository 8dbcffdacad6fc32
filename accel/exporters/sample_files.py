"""The user's samples before anything is known of the model: which files there are, and what they show of its inputs."""

import dataclasses
import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from accel.core.calls import as_array, is_tensor
from accel.core.errors import InputError, SampleError, nearest
from accel.core.feeds import Feed, read_npz
from accel.core.values import TensorSpec
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


class Shown(NamedTuple):
    """What one call of the samples shows of an input.

    Attributes:
        shape: in which the call takes it.
        dtype: NumPy's name; None where a line of text has it.
        ends: the least and the largest integer; None of other values, of none, and of a line of text.
        rises: the integer with which each row begins, and from which none ever falls; None for others.
    """

    shape: tuple[int, ...]
    dtype: str | None = None
    ends: tuple[int, int] | None = None
    rises: int | None = None


Call = Mapping[str, Shown]
"""What one call of the samples shows, by input name."""


def shown(feeds: Sequence[Feed]) -> tuple[Call, ...]:
    """Return what feeds show, each being one call."""
    return tuple({name: _shown(array, array.shape) for name, array in feed.items()} for feed in feeds)


def _shown(array: np.ndarray, shape: tuple[int, ...]) -> Shown:
    if not array.size or array.dtype.kind not in "biu":
        return Shown(shape, str(array.dtype))
    first = {int(n) for n in np.unique(array[..., 0])} if array.ndim and array.dtype.kind != "b" else set()
    rises = first.pop() if len(first) == 1 and (array[..., 1:] >= array[..., :-1]).all() else None
    return Shown(shape, str(array.dtype), (int(array.min()), int(array.max())), rises)


def sample_calls(reference: str | None, names: Collection[str]) -> tuple[Call, ...]:
    """Return what the user's samples show of the inputs ``names``, before anything is known of the model.

    Arrays that hold all items along their first axis, and a line of a ``.jsonl``, are calls of one item. What texts
    become depends on the model: they show nothing, and neither do tuples of a generator.

    Args:
        reference: the user's samples, as of ``SourceRequest``; None for none.

    Raises:
        SampleError: as ``read_npz``, or an array holds no numbers.
        InputError: a folder without samples, or a generator that raised.
    """
    if reference is None:
        return ()
    if FACTORY.fullmatch(reference):
        return tuple(call for call in _of_generator(reference, names) if call)
    path = Path(reference)
    files = sample_files(path) if path.is_dir() else [path]
    of = {".jsonl": _of_lines}
    return tuple(call for file in files for call in of.get(file.suffix.lower(), _of_arrays)(file, names) if call)


def _of_generator(reference: str, names: Collection[str]) -> Iterator[Call]:
    made = generated(reference)
    stacked = isinstance(made, Mapping)
    for sample in [made] if stacked else made:
        held = sample.items() if isinstance(sample, Mapping) else ()
        arrays = {name: as_array(value) for name, value in held if name in names and is_tensor(value)}
        _check_numbers(arrays, Path(reference).name)
        yield {n: _shown(a, (1, *a.shape[1:]) if stacked else a.shape) for n, a in arrays.items()}


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


def _of_arrays(file: Path, names: Collection[str]) -> Iterator[Call]:
    """Yield what an ``.npz`` shows: all items of each input in one array, or a call for each number before the name."""
    numbered: dict[str, dict[str, Shown]] = {}
    stacked: dict[str, Shown] = {}
    arrays = read_npz(file, lambda key: key in names or key.partition("/")[2] in names)
    _check_numbers(arrays, file.name)
    for key, array in arrays.items():
        number, _, name = key.partition("/")
        if key in names:
            stacked[key] = _shown(array, (1, *array.shape[1:]))
        else:
            numbered.setdefault(number, {})[name] = _shown(array, array.shape)
    yield stacked
    yield from numbered.values()


def _check_numbers(arrays: Feed, where: str) -> None:
    """Refuse texts and dates, which no framework makes a tensor of."""
    if (odd := next((name for name, array in arrays.items() if array.dtype.kind not in "biuf"), None)) is not None:
        raise SampleError(
            f"{where}: {odd!r} holds {arrays[odd].dtype}, expected integers, floats or bools",
            fix="give the numbers that the model takes, such as token ids",
        )


def unlike(reference: str | None, name: str) -> str:
    """Say of an input that a sample file lacks which arrays it holds; an empty string where it is no ``.npz``."""
    if reference is None or Path(reference).suffix.lower() != ".npz":
        return ""
    held = list(dict.fromkeys(key.partition("/")[2] or key for key in read_npz(Path(reference))))
    return f", and {Path(reference).name} holds {', '.join(held)}{nearest(name, held)}"


def _of_lines(file: Path, names: Collection[str]) -> Iterator[Call]:
    for line in file.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            held = json.loads(line)
            yield {name: Shown((1, *np.shape(held[name]))) for name in names if name in held}
        except (ValueError, TypeError, RecursionError):
            continue  # who reads the samples says what is wrong with them


def shapes_of(calls: Sequence[Call], name: str) -> list[tuple[int, ...]]:
    """Return the shapes in which the calls take an input, each once."""
    return list(dict.fromkeys(call[name].shape for call in calls if name in call))


def dtype_of(calls: Sequence[Call], name: str) -> str | None:
    """Return the dtype of an input in the first call that says one; None where none does."""
    return next((call[name].dtype for call in calls if name in call and call[name].dtype), None)


def ends_of(calls: Sequence[Call], name: str) -> tuple[int, int] | None:
    """Return the least and the largest integer of an input in all calls; None where it has none."""
    ends = [found for call in calls if name in call and (found := call[name].ends) is not None]
    return (min(low for low, _ in ends), max(high for _, high in ends)) if ends else None


def whole_calls(calls: Sequence[Call], names: Collection[str]) -> tuple[Call, ...]:
    """Return the calls that have all inputs: what inputs show of each other is seen in these alone."""
    return tuple(call for call in calls if all(name in call for name in names))


def limited(inputs: Sequence[TensorSpec], calls: Sequence[Call]) -> tuple[TensorSpec, ...]:
    """Return the inputs with the limits that whole calls show (``limit_of``)."""
    return tuple(dataclasses.replace(spec, at_most=limit_of(calls, spec)) for spec in inputs)


def limit_of(calls: Sequence[Call], spec: TensorSpec) -> tuple[str, int, int] | None:
    """Find the axis that an integer input's values follow: they index it, or say how much of it counts.

    In every sample the largest value is below the size of that axis, or at most as large, and it is not in all of them
    below the smallest size: then some sizes do not allow every value. Of several axes it is the closest one.

    Args:
        calls: what samples show of all inputs.

    Returns:
        ``TensorSpec.at_most``.
    """
    largest = {number: ends[1] for number, call in enumerate(calls) if (ends := call[spec.name].ends) is not None}
    held = [calls[number] for number in largest]
    if not held or "int" not in spec.dtype:
        return None
    found: list[tuple[int, int, str, int]] = []
    for other in held[0]:
        for axis in range(len(held[0][other].shape)):
            sizes = [call[other].shape[axis] for call in held]
            more = max(value - size for value, size in zip(largest.values(), sizes, strict=True))
            more = -1 if more < 0 else more
            if len(set(sizes)) > 1 and more <= 0 and max(largest.values()) > min(sizes) + more:
                found.append((sum(sizes) - sum(largest.values()), -more, other, axis))
    if not found:
        return None
    _, less, other, axis = min(found)
    return other, axis, -less


def rise_of(calls: Sequence[Call], spec: TensorSpec) -> int | None:
    """Return the value with which an integer input begins in every sample, and from which it never falls; else None."""
    rises = {call[spec.name].rises for call in calls if call[spec.name].ends is not None}
    return rises.pop() if "int" in spec.dtype and len(rises) == 1 else None
