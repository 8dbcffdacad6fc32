"""The zoo as the exporters see it: what an entry says, and a zoo that is handed in.

No room below ``run`` imports the zoo. ``accel.run`` hands it in (``hand_in``), before anything is asked of it.
"""

import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np

from accel.core.accuracy.metrics import TaskMetric
from accel.core.processing import Pipeline
from accel.core.values import Detections, Family, ShapeRange, TensorSpec
from accel.exporters.hub import huggingface_folder

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
        inputs / outputs: a tuple of TensorSpec each: name, dtype, dims (a string names an axis that varies), and for
            integer inputs the range of values.
        profile: input name → ShapeRange: smallest, typical and largest shape.
        hub: hub id that the pretrained weights have, or None.
        revision: commit of the hub's repository that the entry stands for; None takes its newest ("main").
        stored: whether ``load`` returns the file or folder that was found, as it is.
        drawn: what the pretrained weights lack and is drawn with seed 0, so that accuracy stays unproved, or None.
        resolve: returns the local folder or file with the pretrained weights, or None where they are not on this
            machine; without it they are where the local Hugging Face cache holds ``hub`` at ``revision``.
        framework: what ``load`` builds with.
        load: builds the FP32 model from that folder, or with random weights (None). For torch a module in eval mode
            that takes the inputs by name and returns a mapping or an object with the outputs as items; for TensorFlow
            a Keras model whose inputs and outputs have the declared names, or the folder of a SavedModel; for ONNX the
            file. A file or folder (``stored``) has no random weights.
        samples: yields ``count`` distinct items in a fixed order, real ones, without padding; of a stateful model the
            steps of one stream, without its states.
        states: of a stateful model, each input that holds what the step before left, and the output that left it.
        origin: what the samples are, for the report.
        tokenizer: returns the folder of the tokenizer, for text models.
        mask: name of the input that is 0 at padded positions.
        family: what kind of network it is.
        detections: the outputs that are compared as sets of rows: order and padding mean nothing in them.
        static: precisions in which a build fixed at the opt shape is worth making.
        gate: name of the task metric and the least share of the source's own score that passes; a floor in dB stays
            beside it.
        metric: scores outputs of the gate's feeds by labels (``accel.core.accuracy.metrics``). Without ``labels`` the
            source's own outputs stand for them.
        labels: name under which the samples carry the right answer, which is not an input; its values may be of any
            kind that JSON knows.
        pipeline: the steps of an ensemble around the model; ``tokenizer`` and the weights' folder complete them.
        small: returns the entry of the reduced model, whose random weights alone exist.
        extra_files: names of other files of the folder that decide what the entry computes or samples.
    """

    name: str
    title: str
    licence: str
    parameters: int
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    profile: Mapping[str, ShapeRange]
    load: Callable[[Path | None], Any]
    samples: Callable[[int], Sequence[Item]]
    origin: str
    resolve: Callable[[], Path | None] | None = None
    hub: str | None = None
    revision: str | None = None
    drawn: str | None = None
    tokenizer: Callable[[], Path | None] | None = None
    mask: str | None = None
    family: Family = "other"
    detections: Detections | None = None
    static: tuple[str, ...] = ()
    gate: tuple[str, float] | None = None
    metric: TaskMetric | None = None
    labels: str | None = None
    states: Mapping[str, str] = field(default_factory=dict)
    stored: bool = False
    pipeline: Pipeline | None = None
    framework: Literal["torch", "tensorflow", "onnx"] = "torch"
    small: "Callable[[], Entry] | None" = None
    extra_files: tuple[str, ...] = field(default=())

    def weights(self) -> Path | None:
        """Return the local folder with the pretrained weights, or None where they are not on this machine."""
        if self.resolve is not None:
            return self.resolve()
        return huggingface_folder(self.hub, self.revision) if self.hub is not None else None

    def code_files(self) -> dict[str, Path]:
        """Return the files of the zoo that decide what the entry computes and samples, by name."""
        parts = (getattr(part, "func", part) for part in (self.load, self.samples, self.metric) if part is not None)
        own = {path.name: path for path in map(Path, map(inspect.getfile, parts))}
        folder = Path(str(sys.modules[self.load.__module__.partition(".")[0]].__file__)).parent
        return own | {name: folder / name for name in ("__init__.py", *self.extra_files)}


class Zoo(Protocol):
    """The models that are known by name, and items for models of others."""

    def entries(self) -> Mapping[str, Entry]:
        """Return name → entry, reduced models left out."""

    def entry(self, name: str) -> Entry:
        """Return one entry, or the reduced one of ``NAME@small``; KeyError where there is none."""

    def sentences(self, count: int) -> Sequence[str]:
        """Return ``count`` sentences in a fixed order."""

    def pictures(self, count: int, spec: TensorSpec) -> Sequence[Item]:
        """Return ``count`` pictures for one input."""


_handed_in: list[Callable[[], Zoo]] = []


def hand_in(load: Callable[[], Zoo]) -> None:
    """Take the zoo of this process; ``load`` is called whenever it is needed."""
    _handed_in[:] = [load]


def zoo() -> Zoo:
    """Return the zoo that was handed in."""
    return _handed_in[0]()
