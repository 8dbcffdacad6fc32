"""The models accel knows by name: one file each, found by listing this folder.

A file offers ``ENTRY``, an ``Entry``. Its module level imports the standard library, NumPy and this package only, so
that listing the zoo costs nothing; frameworks are imported inside ``load`` and ``samples``. ``bert@small`` names the
reduced model of an entry: fewer layers or smaller pictures, the same structure, random weights.
"""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import pkgutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np

from accel.artifacts import ShapeRange, TensorSpec
from accel.processing import Pipeline

SMALL = "@small"
"""What the name of a reduced model ends in."""

Item = Mapping[str, np.ndarray]
"""One sample without padding: a leading batch axis of 1, arrays by input name."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One model of the zoo.

    Attributes:
        name / title / licence: as `accel zoo` shows them; the licence is that of the pretrained weights.
        parameters: number of weights.
        hub: hub id that the pretrained weights have, or None.
        find: returns the local folder with the pretrained weights, or None where they are not on this machine.
        framework: what ``load`` builds with.
        load: builds the FP32 model from that folder, or with random weights (None). For torch a module in eval mode
            that takes the inputs by name and returns a mapping or an object with the outputs as items; for TensorFlow
            a Keras model whose inputs and outputs have the declared names.
        samples: yields ``count`` distinct items in a fixed order, real ones, without padding.
        origin: what the samples are, for the report.
        tokenizer: returns the folder of the tokenizer, for text models.
        mask: name of the input that is 0 at padded positions.
        family: what kind of network it is.
        static: targets for which a build fixed at the opt shape is worth making.
        gate: name of the task metric and the least value that passes; it replaces SQNR.
        metric: (reference outputs, outputs, feeds), each a sequence over the gate's feeds → the gate's value.
        pipeline: the steps of an ensemble around the model; ``tokenizer`` and the weights' folder complete them.
        small: returns the entry of the reduced model, whose random weights alone exist.
    """

    name: str
    title: str
    licence: str
    parameters: int
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    profile: Mapping[str, ShapeRange]
    find: Callable[[], Path | None]
    load: Callable[[Path | None], Any]
    samples: Callable[[int], Sequence[Item]]
    origin: str
    hub: str | None = None
    tokenizer: Callable[[], Path | None] | None = None
    mask: str | None = None
    family: Literal["transformer", "vision", "other"] = "other"
    static: tuple[str, ...] = ()
    gate: tuple[str, float] | None = None
    metric: Callable[[Sequence[Item], Sequence[Item], Sequence[Item]], float] | None = None
    pipeline: Pipeline | None = None
    framework: Literal["torch", "tensorflow"] = "torch"
    small: Callable[[], Entry] | None = None
    extra_files: tuple[str, ...] = field(default=())

    def code_files(self) -> dict[str, Path]:
        """Return the files of this package that decide what the entry computes and samples, by name."""
        folder = Path(__file__).parent
        own = Path(inspect.getfile(self.load)).name
        return {name: folder / name for name in ("__init__.py", own, *self.extra_files)}


def entries() -> dict[str, Entry]:
    """Return name → entry for every file of the folder, sorted by name."""
    names = sorted(m.name for m in pkgutil.iter_modules(__path__) if not m.name.startswith("_"))
    modules: list[Any] = [importlib.import_module(f"{__name__}.{n}") for n in names]
    return {m.ENTRY.name: m.ENTRY for m in modules if hasattr(m, "ENTRY")}


def entry(name: str) -> Entry:
    """Return one entry, or the reduced one of ``NAME@small``.

    Raises:
        KeyError: no such name, or the entry has no reduced model.
    """
    name, at, _ = name.partition(SMALL)
    found = entries()[name]
    if not at:
        return found
    if found.small is None:
        raise KeyError(f"{name} has no reduced model")
    return dataclasses.replace(found.small(), name=name + SMALL, hub=None, find=_nowhere, gate=None, metric=None)


def _nowhere() -> None:
    """Return None: a reduced model has no pretrained weights."""
