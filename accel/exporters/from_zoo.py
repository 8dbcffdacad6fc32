"""Load a model of the zoo, falling back to random weights aloud."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING

import model_zoo
from accel.artifacts import ModelSource
from accel.errors import InputError, UnavailableError
from accel.exporters.axes import fix_dims, resolve
from accel.exporters.hub import download
from accel.sources import SourceRequest, content_key

if TYPE_CHECKING:
    from accel.exporters.positional import Positional

RANDOM = "random(seed=0)"


def describe(request: SourceRequest) -> ModelSource:
    """Describe a zoo model; nothing is loaded, since the entry declares its inputs and outputs.

    Raises:
        UnavailableError: ``--weights pretrained`` and the weights cannot be had.
    """
    entry = model_zoo.entry(request.reference)
    folder = entry.find() if request.weights != "random" else None
    if folder is None and request.weights == "pretrained":
        folder = _fetch(entry)
    notice = None
    if folder is None:
        mend = f"--weights pretrained downloads {entry.hub}" if entry.hub else "no package carries them here"
        notice = f"{entry.name} runs with {RANDOM} weights: speed is real, accuracy is unproved"
        notice += f" ({mend})" if request.weights == "auto" else ""
    inputs, profile, fixed = resolve(entry.inputs, entry.profile, request)
    key = content_key(request)
    if key is None:
        raise InputError(f"the weights of {entry.name} vanished while they were read", fix="run the command again")
    samples = request.samples or ("random" if request.random_samples else "zoo")
    return ModelSource(
        name=request.name,
        kind="zoo",
        reference=entry.name,
        framework="torch",
        weights="pretrained" if folder else RANDOM,
        revision=folder.name if folder and folder.parent.name == "snapshots" else None,
        key=key,
        inputs=inputs,
        outputs=tuple(dataclasses.replace(o, dims=fix_dims(o, fixed)) for o in entry.outputs),
        profile=profile,
        mask=entry.mask,
        family=entry.family,
        # A task metric judges meaning: it needs real weights and the samples it was made for.
        gate=entry.gate if folder and samples != "random" else None,
        static=entry.static,
        samples=samples,
        notice=notice,
    )


def _fetch(entry: model_zoo.Entry) -> Path:
    if entry.hub is None:
        raise UnavailableError(f"the weights of {entry.name} are not installed", fix="reinstall accel's requirements")
    return download(entry.hub)


def load(source: ModelSource) -> Positional:
    """Build the module with the weights that ``describe`` found.

    Raises:
        InputError: they are not there any more.
    """
    from accel.exporters.positional import Positional

    entry = model_zoo.entry(source.reference)
    folder = None if source.weights.startswith("random") else entry.find()
    if folder is None and not source.weights.startswith("random"):
        raise InputError(f"the weights of {entry.name} are gone from this machine", fix="run accel convert again")
    return Positional(
        entry.load(folder).eval(),
        [s.name for s in source.inputs],
        outputs=[o.name for o in source.outputs],
        by_name=True,
    )
