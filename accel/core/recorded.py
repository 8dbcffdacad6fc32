"""Requests as a service recorded them: how long or of which shape each was, when it came, and what it asked.

Standard library only.
"""

import datetime
import itertools
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from accel.core.errors import InputError, SampleError, raised_as

FORM = (
    'a line for each request, in the order of arrival: {"length": 17}, 17, or '
    '{"shape": {"pixel_values": [3, 480, 640]}} without the batch axis; "at" is when it came, in seconds or RFC 3339'
)
KEYS = (
    'a line for each request, in the order of arrival, with "key": any text or whole number, the same for requests '
    'of the same content, such as a hash of what was asked: {"key": "9f3a"}'
)


@dataclass(frozen=True, slots=True)
class Recorded:
    """One request.

    Attributes:
        line: where it stands, as in ``log.jsonl:3``.
        length: its size along the one axis that varies; None where shapes say it.
        shapes: by input, without the batch axis; empty where ``length`` says it.
        at_s: when it came, in seconds; only the distances between requests mean something.
    """

    line: str
    length: int | None = None
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    at_s: float | None = None


def read(path: Path) -> list[Recorded]:
    """Read recorded requests: JSON lines, each a length, or an object with ``length`` or ``shape``, and with ``at``.

    Other fields are passed over.

    Raises:
        SampleError: the file cannot be read or holds no requests; or a line says not how large its request is, or a
            field of it is none.
    """
    rows = _rows(path, FORM)
    return [_request(line, row if isinstance(row, dict) else {"length": row}) for line, row in rows]


def read_times(path: Path) -> list[float]:
    """Read when each request came, in seconds; of its size nothing need be said.

    Raises:
        InputError: as ``read``, or a request has no time, or one before that of the line before.
    """
    times = []
    for line, row in _rows(path, FORM):
        at_s = _time(line, row["at"]) if isinstance(row, dict) and "at" in row else None
        if at_s is None:
            raise InputError(f'{line} has no "at": when its request came is not known', fix=FORM)
        times.append((line, at_s))
    for (_, before), (line, at_s) in itertools.pairwise(times):
        if at_s < before:
            raise InputError(f'"at" of {line} is before that of the line before', fix="order the lines by time")
    return [at_s for _, at_s in times]


def read_keys(path: Path) -> list[str]:
    """Read what each request asked: its ``key``, the same for requests of the same content; nothing else is looked at.

    Raises:
        InputError: as ``read``, or a request has no key.
    """
    keys = []
    for line, row in _rows(path, KEYS):
        key = row.get("key") if isinstance(row, dict) else None
        if not isinstance(key, str | int) or isinstance(key, bool):
            raise InputError(
                f'{line} has no "key": which requests ask the same is not known',
                fix=KEYS,
            )
        keys.append(str(key))
    return keys


def _rows(path: Path, form: str) -> Sequence[tuple[str, Any]]:
    with raised_as(SampleError, (OSError, UnicodeDecodeError), f"the traffic {path} cannot be read", fix=form):
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    found = []
    for number, text in enumerate(lines, 1):
        if text.strip():
            line = f"{path.name}:{number}"
            with raised_as(SampleError, (ValueError, RecursionError), f"{line} is not JSON", fix=form):
                found.append((line, json.loads(text)))
    if not found:
        raise SampleError(f"the traffic {path} holds no requests", fix=form)
    return found


def _request(line: str, row: Mapping[str, Any]) -> Recorded:
    if ("length" in row) == ("shape" in row):
        what = 'both "length" and "shape"' if "length" in row else 'no "length" and no "shape"'
        raise SampleError(f"{line} has {what}: expected one of them", fix=FORM)
    at_s = _time(line, row["at"]) if "at" in row else None
    if "length" in row:
        if not _is_size(row["length"]):
            raise SampleError(f'"length" of {line} is {row["length"]!r}: expected a whole number above 0', fix=FORM)
        return Recorded(line, row["length"], at_s=at_s)
    shapes = row["shape"]
    if not isinstance(shapes, dict) or not shapes:
        raise SampleError(f'"shape" of {line} is {shapes!r}: expected the sizes of each input by its name', fix=FORM)
    for name, shape in shapes.items():
        if not isinstance(shape, list) or not all(map(_is_size, shape)):
            raise SampleError(
                f'"shape" of {line} has {shape!r} for {name!r}: expected a list of whole numbers above 0', fix=FORM
            )
    return Recorded(line, shapes={name: tuple(shape) for name, shape in shapes.items()}, at_s=at_s)


def _is_size(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def _time(line: str, value: Any) -> float:
    try:
        if isinstance(value, str):
            moment = datetime.datetime.fromisoformat(value)
            return (moment if moment.tzinfo else moment.replace(tzinfo=datetime.UTC)).timestamp()
        if not isinstance(value, bool) and isinstance(value, int | float) and math.isfinite(value):
            return float(value)
    except (ValueError, OverflowError):
        pass
    raise SampleError(
        f'"at" of {line} is {value!r}: expected seconds, or a time such as 2026-11-22T10:00:00Z', fix=FORM
    )
