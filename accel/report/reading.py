"""``run.json`` as it lies on disk: found, parsed, checked for its schema, and read field by field without trust.

Runs come from other machines and other versions of accel, so that any field beyond the schema number may be missing.
``Node`` reads such an object: a field that is absent or has another type than asked for reads as None or as empty.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from accel.core.errors import InputError
from accel.core.values import SCHEMA

OLDEST = max(1, SCHEMA - 2)
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]+")


def clean(value: object) -> str:
    """Return text on one line, without control characters: names come from users and end on a terminal."""
    return _CONTROL.sub(" ", str(value)).strip()


class Node:
    """One JSON object, read field by field.

    Args:
        data: anything; what is not an object reads as an empty one.
    """

    __slots__ = ("data",)

    def __init__(self, data: object) -> None:
        self.data: Mapping[str, Any] = data if isinstance(data, Mapping) else {}

    def __bool__(self) -> bool:
        return bool(self.data)

    def text(self, key: str) -> str | None:
        """Return a string on one line, or None."""
        value = self.data.get(key)
        return clean(value) or None if isinstance(value, str) else None

    def number(self, key: str) -> float | None:
        """Return a finite number, or None."""
        return _finite(self.data.get(key))

    def amount(self, key: str) -> float | None:
        """Return a finite number that is not negative, or None: times, sizes, counts."""
        value = self.number(key)
        return value if value is not None and value >= 0 else None

    def whole(self, key: str) -> int | None:
        """Return a count, or None."""
        value = self.amount(key)
        return None if value is None else int(value)

    def flag(self, key: str) -> bool | None:
        """Return a boolean, or None."""
        value = self.data.get(key)
        return value if isinstance(value, bool) else None

    def interval(self, key: str) -> tuple[float, float] | None:
        """Return a pair of finite numbers, or None."""
        pair = self.numbers(key)
        return (pair[0], pair[1]) if len(pair) == 2 else None

    def numbers(self, key: str) -> tuple[float, ...]:
        """Return a list of finite numbers; empty when one of them is none."""
        values = [_finite(v) for v in self.list(key)]
        return () if None in values else tuple(v for v in values if v is not None)

    def node(self, key: str) -> Node:
        """Return the object under ``key``."""
        return Node(self.data.get(key))

    def list(self, key: str) -> tuple[Any, ...]:
        """Return the list under ``key``, empty where there is none."""
        value = self.data.get(key)
        return tuple(value) if isinstance(value, list | tuple) else ()

    def nodes(self, key: str) -> Iterator[Node]:
        """Return the objects of the list under ``key``."""
        return (Node(v) for v in self.list(key))

    def words(self, key: str) -> tuple[str, ...]:
        """Return the strings of the list under ``key``."""
        return tuple(clean(v) for v in self.list(key) if isinstance(v, str))

    def pairs(self) -> tuple[tuple[str, str], ...]:
        """Return every field that says something as (name, text), in the order of the file."""
        return tuple((clean(k), text) for k, v in self.data.items() if v is not None and (text := plain(v)))


def _finite(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        number = float(value)
    except OverflowError:  # JSON integers have no limit
        return None
    return number if math.isfinite(number) else None


def plain(value: object) -> str:
    """Write any JSON value as one short line of text."""
    if isinstance(value, Mapping):
        return ", ".join(f"{clean(k)} {plain(v)}" for k, v in value.items())
    if isinstance(value, list | tuple):
        # Lists of numbers are shapes; everything else reads as an enumeration.
        numbers = bool(value) and all(isinstance(v, int) and not isinstance(v, bool) for v in value)
        return ("×" if numbers else ", ").join(plain(v) for v in value)
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.4g}" if math.isfinite(value) else "—"
    return "—" if value is None else clean(value)


def check_schema(run: Mapping[str, Any], origin: str) -> None:
    """Refuse a run whose schema this version cannot read.

    Raises:
        InputError: no schema number, an older one than the two before this version's, or a newer one.
    """
    schema = run.get("schema")
    if isinstance(schema, bool) or not isinstance(schema, int):
        raise InputError(
            f"{origin} is not a run of accel: expected a field 'schema' with a number, found {schema!r}",
            fix="name a run directory (runs/<model>) or its run.json",
        )
    if schema > SCHEMA:
        written = clean(run.get("accel", "a later version"))
        raise InputError(
            f"{origin} has schema {schema}, written by accel {written}; this version reads up to {SCHEMA}",
            fix="update accel, or render the report with the version that wrote the run",
        )
    if schema < OLDEST:
        raise InputError(
            f"{origin} has schema {schema}; this version reads {OLDEST} to {SCHEMA}", fix="run the conversion again"
        )


def read_run(path: Path) -> Mapping[str, Any]:
    """Read a run directory's ``run.json``, or the file itself.

    Raises:
        InputError: nothing there, not valid JSON (NaN included), or a schema that this version cannot read.
    """
    file = path / "run.json" if path.is_dir() else path
    try:
        text = file.read_text(encoding="utf-8")
    except OSError as cause:
        raise InputError(
            f"cannot read the run {file}: {cause.strerror or cause}",
            fix="name a run directory (runs/<model>) or its run.json",
        ) from cause
    except UnicodeDecodeError as cause:
        raise InputError(f"{file} is not a JSON file: it is not UTF-8 text") from cause
    try:
        run = json.loads(text, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as cause:
        raise InputError(f"{file} is not valid JSON: {cause}", fix="run the conversion again; it resumes") from cause
    if not isinstance(run, dict):
        raise InputError(f"{file} is not a run of accel: expected an object, found {type(run).__name__}")
    check_schema(run, str(file))
    return run


def _refuse_constant(name: str) -> float:
    raise ValueError(f"{name} is not JSON")
