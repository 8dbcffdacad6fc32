"""Load a model of the zoo, falling back to random weights aloud."""

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Any

from accel.core import environments
from accel.core.environments import WEIGHTS
from accel.core.errors import InputError, UnavailableError, UsageError
from accel.core.values import GraphChoice, ModelSource, ShapeRange, TensorSpec
from accel.exporters import from_tensorflow, tensorflow_files
from accel.exporters.axes import fix_dims, known_input, resolve
from accel.exporters.hub import download
from accel.exporters.layout import channels_first, shapes_first
from accel.exporters.request import SourceRequest
from accel.exporters.sources import content_key
from accel.exporters.tensorflow_runtime import import_tensorflow
from accel.exporters.zoo import Entry, zoo

if TYPE_CHECKING:
    import torch

    from accel.exporters.tensorflow_graph import Graph

RANDOM = "random(seed=0)"
PARTLY = "random(seed=0) in part"


def describe(request: SourceRequest) -> ModelSource:
    """Describe a zoo model; nothing is loaded, since the entry declares its inputs and outputs.

    Raises:
        UnavailableError: ``--weights pretrained`` and the weights cannot be had.
    """
    entry = zoo().entry(request.reference)
    folder = entry.weights() if request.weights != "random" else None
    if folder is None and request.weights == "pretrained":
        folder = download(entry.hub, entry.revision) if entry.hub is not None else None
    if folder is None and (request.weights == "pretrained" or entry.stored):
        if request.weights == "random":
            raise UsageError(f"{entry.name} is a file with its weights: there are no random ones", fix="--weights auto")
        raise UnavailableError(f"the weights of {entry.name} are not installed", fix=environments.fix(WEIGHTS))
    notice = None
    if folder is None:
        advice = f"--weights pretrained downloads {entry.hub}" if entry.hub else "no package carries them here"
        notice = f"{entry.name} runs with {RANDOM} weights: speed is real, accuracy is unproved"
        notice += f" ({advice})" if request.weights == "auto" else ""
    elif entry.drawn:
        notice = f"the pretrained weights of {entry.name} lack {entry.drawn}, drawn with seed 0: accuracy is unproved"
    inputs, profile, fixed = resolve(*_layout(entry, request.graph), request)
    key = content_key(request)
    if key is None:
        raise InputError(f"the weights of {entry.name} vanished while they were read", fix="run the command again")
    samples = request.samples_or("zoo")
    return ModelSource(
        name=request.name,
        kind="zoo",
        reference=entry.name,
        framework=entry.framework,
        weights=RANDOM if folder is None else PARTLY if entry.drawn else "pretrained",
        revision=folder.name if folder and folder.parent.name == "snapshots" else None,
        key=key,
        inputs=inputs,
        outputs=tuple(dataclasses.replace(o, dims=fix_dims(o, fixed)) for o in entry.outputs),
        profile=profile,
        mask=entry.mask,
        family=entry.family,
        # A task metric judges meaning: it needs real weights and the samples it was made for.
        gate=entry.gate if folder and (samples == "zoo" or (samples != "random" and not entry.labels)) else None,
        static=entry.static,
        states=entry.states,
        detections=entry.detections,
        samples=samples,
        notice=notice,
        graph=request.graph,
    )


def load(source: ModelSource) -> "torch.nn.Module":
    """Build the module with the weights that ``describe`` found.

    Raises:
        InputError: they are not there any more.
    """
    module: torch.nn.Module = _build(source).eval()
    return module


def load_graph(source: ModelSource) -> "Graph":
    """Build a Keras model with the weights that ``describe`` found, or open the SavedModel.

    Raises:
        InputError: they are not there any more, or the model's inputs are not those that the entry declares.
    """
    import_tensorflow()
    made = _build(source)
    stored = isinstance(made, Path)
    opened = tensorflow_files.open_file("savedmodel", made, source.graph) if stored else tensorflow_files.of_keras(made)
    if (found := sorted(p.name for p in opened.ports)) != sorted(s.name for s in source.inputs):
        raise InputError(f"the zoo's {source.reference} builds a model with the inputs {found}, and declares others")
    return from_tensorflow.of(opened, source)


def load_file(source: ModelSource) -> Path:
    """Return the ONNX file that ``describe`` found.

    Raises:
        InputError: it is not there any more.
    """
    file: Path = _build(source)
    return file


def _build(source: ModelSource) -> Any:
    entry = zoo().entry(source.reference)
    folder = None if source.weights == RANDOM else entry.weights()
    if folder is None and source.weights != RANDOM:
        raise InputError(f"the weights of {entry.name} are gone from this machine", fix="run accel convert again")
    return entry.load(folder)


def _layout(entry: Entry, choice: GraphChoice) -> tuple[tuple[TensorSpec, ...], dict[str, ShapeRange]]:
    """Return the entry's inputs and profile, channels first where the user wants them so.

    Raises:
        UsageError: the entry is not TensorFlow's, or an input is unknown or no picture.
    """
    if choice.nchw and entry.framework != "tensorflow":
        raise UsageError(f"--inputs-as-nchw is for TensorFlow sources, and {entry.name} is {entry.framework}'s")
    for name in choice.nchw:
        known_input(name, entry.profile, "--inputs-as-nchw")
    inputs = tuple(channels_first(s) if s.name in choice.nchw else s for s in entry.inputs)
    profile = {n: shapes_first(r, n) if n in choice.nchw else r for n, r in entry.profile.items()}
    return inputs, profile
