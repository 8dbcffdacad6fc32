"""What a zoo file must hold: every mistake is told by file and field, with what belongs there."""

import functools
import importlib
import inspect
import re
import typing
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from accel.core.errors import InputError, nearest
from accel.core.processing import Pipeline
from accel.core.values import Detections, ShapeRange, TensorSpec

if TYPE_CHECKING:
    from accel.exporters.zoo import Entry

MISSING = re.compile(r"Entry\.__init__\(\) missing \d+ required (?:positional|keyword-only) arguments?: (?P<names>.+)")
UNKNOWN = re.compile(r"Entry\.__init__\(\) got an unexpected keyword argument '(?P<name>\w+)'")
NAME = re.compile(r"[a-z0-9][a-z0-9._-]*")
HUB = re.compile(r"[\w.-]+/[\w.-]+")


def read(package: str, stem: str, cls: type["Entry"]) -> "Entry":
    """Import a file of the zoo and return its entry.

    Raises:
        InputError: the file cannot be imported, offers no ``ENTRY``, or a field is missing, unknown or wrong.
    """
    file = f"{package}/{stem}.py"
    try:
        module: Any = importlib.import_module(f"{package}.{stem}")
    except TypeError as error:
        raise _misfit(file, cls, str(error)) from error
    except Exception as error:
        raise InputError(f"zoo file {file} cannot be imported: {type(error).__name__}: {error}") from error
    if not isinstance(getattr(module, "ENTRY", None), cls):
        found = f"found {type(module.ENTRY).__name__}" if hasattr(module, "ENTRY") else "there is none"
        raise InputError(
            f"zoo file {file}: expected ENTRY, a model_zoo.Entry; {found}",
            fix="end the file with ENTRY = Entry(...), or begin its name with _ if it only helps other files",
        )
    check(module.ENTRY, f"zoo file {file}")
    entry: Entry = module.ENTRY
    return entry


def _misfit(file: str, cls: type["Entry"], message: str) -> InputError:
    """Say which field ``Entry(...)`` lacks or does not know."""
    told = about(cls)
    if match := MISSING.search(message):
        names = re.findall(r"'(\w+)'", match["names"])
        return InputError(
            f"zoo file {file}: Entry lacks {', '.join(names)}",
            fix="; ".join(f"{name}: {told.get(name, 'see model_zoo.Entry')}" for name in names),
        )
    if match := UNKNOWN.search(message):
        return InputError(
            f"zoo file {file}: Entry has no field {match['name']!r}{nearest(match['name'], told)}",
            fix=f"its fields are {', '.join(told)}",
        )
    return InputError(f"zoo file {file} cannot be imported: TypeError: {message}")


def about(cls: type["Entry"]) -> dict[str, str]:
    """Return field → what belongs there, as the class's own docstring says."""
    text = inspect.cleandoc(cls.__doc__ or "").partition("Attributes:\n")[2]
    found: dict[str, str] = {}
    for block in re.split(r"\n(?=    \w)", "\n" + text):
        names, colon, words = block.strip().partition(": ")
        if colon:
            found |= dict.fromkeys(names.split(" / "), " ".join(words.split()))
    return found


def check(entry: "Entry", where: str) -> None:
    """Hold an entry against what it must declare; ``where`` says whose it is.

    Raises:
        InputError: the first field that is wrong, what was expected and found, and what belongs there.
    """
    for field, expected, found in _mistakes(entry):
        raise InputError(
            f"{where}: {field}: expected {expected}, found {found!r}",
            fix=about(type(entry)).get(field.partition("[")[0]),
        )


Mistake = tuple[str, str, Any]
"""A field, what was expected there and what was found."""


def _mistakes(entry: Any) -> Iterator[Mistake]:
    yield from _words(entry)
    for side in ("inputs", "outputs"):
        specs = getattr(entry, side)
        if not isinstance(specs, tuple) or not specs or not all(isinstance(s, TensorSpec) for s in specs):
            yield side, "a tuple of TensorSpec, at least one", specs
            return
        if len({s.name for s in specs}) != len(specs):
            yield side, "different names", [s.name for s in specs]
        for spec in specs:
            yield from _of_spec(f"{side}[{spec.name}]", spec, is_input=side == "inputs")
    yield from _profile(entry)
    for name in ("load", "samples"):
        if not callable(getattr(entry, name)):
            yield name, "a function", getattr(entry, name)
    yield from _optional(entry)


@functools.cache
def _hints(cls: type) -> dict[str, Any]:
    return typing.get_type_hints(cls)


def _words(entry: Any) -> Iterator[Mistake]:
    if not isinstance(entry.name, str) or not NAME.fullmatch(entry.name):
        yield "name", "lower-case letters, digits, '-', '_' and '.'", entry.name
    for name in ("title", "licence", "origin"):
        text = getattr(entry, name)
        if not isinstance(text, str) or not text.strip():
            yield name, "a few words", text
    if type(entry.parameters) is not int or entry.parameters < 0:
        yield "parameters", "a whole number", entry.parameters
    cls: type = type(entry)
    hints = _hints(cls)
    for name in ("family", "framework"):
        allowed = typing.get_args(hints[name])
        if getattr(entry, name) not in allowed:
            yield name, f"one of {', '.join(allowed)}", getattr(entry, name)


def _of_spec(where: str, spec: Any, *, is_input: bool) -> Iterator[Mistake]:
    try:
        kind: str = np.dtype(spec.dtype).kind
    except TypeError:
        kind = ""
    if kind not in ("b", "i", "u", "f"):
        yield where, "NumPy's name of a number type, such as float32", spec.dtype
    if not spec.dims or any(not isinstance(d, int | str) or d == "" or d == 0 for d in spec.dims):
        yield where, "dims: sizes, or names of the axes that vary", spec.dims
    if is_input and kind in ("i", "u") and spec.range is None:
        yield where, "a range (lowest, highest), since it holds integers", spec.range
    if spec.range is not None and (len(spec.range) != 2 or spec.range[0] > spec.range[1]):
        yield where, "a range (lowest, highest)", spec.range


def _profile(entry: Any) -> Iterator[Mistake]:
    if set(entry.profile) != {s.name for s in entry.inputs}:
        yield "profile", f"a ShapeRange for each of {[s.name for s in entry.inputs]}", list(entry.profile)
        return
    axes: dict[str, tuple[int, int, int]] = {}
    for spec in entry.inputs:
        shapes, where = entry.profile[spec.name], f"profile[{spec.name}]"
        if not isinstance(shapes, ShapeRange):
            yield where, "a ShapeRange", shapes
            return
        if {len(shapes.min), len(shapes.opt), len(shapes.max)} != {len(spec.dims)}:
            yield where, f"{len(spec.dims)} sizes each, for dims {spec.dims}", shapes
            return
        for dim, low, opt, high in zip(spec.dims, shapes.min, shapes.opt, shapes.max, strict=True):
            if not 0 <= low <= opt <= high:
                yield where, "min <= opt <= max", shapes
            if isinstance(dim, int) and not low == high == dim:
                yield where, f"the fixed size {dim} of dims {spec.dims}", shapes
            if isinstance(dim, str) and axes.setdefault(dim, (low, opt, high)) != (low, opt, high):
                yield where, f"axis {dim!r} as of the other inputs, {axes[dim]}", (low, opt, high)


def _optional(entry: Any) -> Iterator[Mistake]:
    kinds: dict[str, tuple[type, ...]] = {
        "hub": (str,),
        "revision": (str,),
        "drawn": (str,),
        "mask": (str,),
        "pipeline": (Pipeline,),
        "detections": (Detections,),
    }
    for name, kind in kinds.items():
        value = getattr(entry, name)
        if value is not None and not isinstance(value, kind):
            yield name, f"{kind[0].__name__} or None", value
    if entry.hub is not None and not HUB.fullmatch(entry.hub):
        yield "hub", "org/name", entry.hub
    if entry.mask is not None and entry.mask not in {s.name for s in entry.inputs}:
        yield "mask", f"one of the inputs {[s.name for s in entry.inputs]}", entry.mask
    for name in ("resolve", "tokenizer", "metric", "small"):
        if getattr(entry, name) is not None and not callable(getattr(entry, name)):
            yield name, "a function or None", getattr(entry, name)
    if (entry.gate is None) != (entry.metric is None):
        lacking = "metric" if entry.metric is None else "gate"
        yield lacking, "a value: gate and metric go together", None
    if entry.labels is not None and (entry.metric is None or entry.labels in entry.profile):
        yield "labels", "a name that is not an input's, beside a metric", entry.labels
    if entry.gate is not None and (len(entry.gate) != 2 or not isinstance(entry.gate[0], str)):
        yield "gate", "(name, least share of the source's own score)", entry.gate
    pairs = entry.states.items() if isinstance(entry.states, Mapping) else [("", "")]
    if any(i not in entry.profile or o not in {s.name for s in entry.outputs} for i, o in pairs):
        yield "states", "input -> output, by their names", entry.states
    for name in entry.extra_files:
        if not (Path(__file__).parent / name).is_file():
            yield "extra_files", "files of model_zoo/", name
