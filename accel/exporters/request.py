"""What the user asked to convert, before anything is loaded."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from accel.core.calls import CallForm
from accel.core.values import GraphChoice, ModelSource, ShapeRange, TensorSpec
from accel.exporters import masks

Kind = Literal["zoo", "huggingface", "factory", "exported", "torchscript", "onnx", "savedmodel", "keras", "graphdef"]


Weights = Literal["auto", "pretrained", "random"]
Pooling = Literal["mean", "cls", "max", "lasttoken", "none"]


TENSORFLOW_FILES = ("savedmodel", "keras", "graphdef")
"""Kinds that TensorFlow reads from a file or folder."""


SAVED_MODEL = "saved_model.pb"


FACTORY = re.compile(r"(?P<file>.+\.py):(?P<function>[A-Za-z_]\w*)")

LONGEST_NAME = 100
"""Letters of a model's name: those of the models behind it (``<name>_tokenizer``) may have 128 on the server."""


@dataclass(frozen=True, slots=True)
class SourceRequest:
    """What the user asked to convert, before anything is loaded.

    Attributes:
        text: SOURCE as typed.
        kind: which exporter loads it.
        reference: zoo name, hub id, or absolute path (``/p/file.py:factory`` for a factory).
        task: Hugging Face task or class that overrides the one in the folder's config.
        part: part of a transformers model, or None for the whole.
        weights: ``auto`` takes pretrained weights that are on this machine (a hub id that the user typed may be
            downloaded) and falls back to random ones; ``pretrained`` may download and is an error without them.
        revision: revision of a hub id.
        samples: the user's sample file as an absolute path, or ``/p/file.py:generator``.
        random_samples: whether the user accepts random values as samples and calibration data.
        metric: the user's task metric: a known name, or ``/p/file.py:function``.
        labels: name under which the user's samples carry the right answers.
        ranges: lowest and highest value by integer input.
        min_shapes / opt_shapes / max_shapes: shapes by input.
        multiples: by input, what each axis must be a multiple of; 1 for any size.
        axis_names: names of axes over those of the source, by ``<input>:<position>``.
        model_name: name of the model on the server, when the user chose it.
        graph: what to take of a TensorFlow source.
        call: how Python code calls the model that the file was made of.
        traffic: what requests of the traffic are like: ``samples``, or a file of recorded requests as an absolute path;
            None where it is not measured.
        pool: how the vectors of a text's tokens become one, or None for what the source says itself.
        states: of a stateful model, by input that holds a state: the output of the step before that gives it.
        initial: by such an input, the ``.npy`` file (absolute) with its value at the first step.
        io: by float input, what clients send in its place (``uint8``, ``fp16``).
        mask: input that is 0 at padding, ``none`` for no such input, or None for the one that has a mask's name.
        fixed: axes that were fixed since the export does not let them vary, with their sizes, as text.
    """

    text: str
    kind: Kind
    reference: str
    task: str | None = None
    part: str | None = None
    weights: Weights = "auto"
    revision: str | None = None
    samples: str | None = None
    random_samples: bool = False
    metric: str | None = None
    labels: str | None = None
    ranges: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    min_shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    opt_shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    max_shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    multiples: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    axis_names: Mapping[str, str] = field(default_factory=dict)
    model_name: str | None = None
    graph: GraphChoice = field(default_factory=GraphChoice)
    call: CallForm | None = None
    traffic: str | None = None
    pool: Pooling | None = None
    states: Mapping[str, str] = field(default_factory=dict)
    initial: Mapping[str, str] = field(default_factory=dict)
    io: Mapping[str, str] = field(default_factory=dict)
    mask: str | None = None
    fixed: tuple[str, ...] = ()

    def samples_or(self, own: str) -> str:
        """Return what the samples are: the user's file, random values where the user asked for them, or ``own``."""
        return self.samples or ("random" if self.random_samples else own)

    def source(
        self,
        framework: Literal["torch", "onnx", "tensorflow"],
        *,
        key: str,
        inputs: tuple[TensorSpec, ...],
        outputs: tuple[TensorSpec, ...],
        profile: Mapping[str, ShapeRange],
        samples: str,
        notices: Sequence[str] = (),
    ) -> ModelSource:
        """Return the description of a source that is a user's own file; mask and family go by the inputs' names.

        Where samples are random values, 8-bit integers about which nobody said anything take all values of their dtype.
        """
        mask = masks.usual(inputs)
        if samples == "random":
            ends = {"int8": (-128, 127), "uint8": (0, 255)}
            bare = {
                s.name: ends[s.dtype] for s in inputs if s.range is None and s.dtype in ends and "mask" not in s.name
            }
            inputs = tuple(replace(s, range=bare.get(s.name, s.range)) for s in inputs)
            said = "input {!r}: values {} to {} assumed, all of its dtype (--range sets them)"
            notices = [*notices, *(said.format(name, *found) for name, found in bare.items())]
            notices += ["inputs are random values: accuracy is unproved; --samples gives real ones"]
        return ModelSource(
            name=self.name,
            kind=self.kind,
            reference=self.reference,
            framework=framework,
            weights="local",
            revision=None,
            key=key,
            inputs=inputs,
            outputs=outputs,
            profile=profile,
            mask=mask,
            family=masks.family(inputs, mask),
            samples=samples,
            notice="; ".join(notices) or None,
            graph=self.graph if framework == "tensorflow" else GraphChoice(),
            call=self.call,
        )

    @property
    def name(self) -> str:
        """Name of the run and of the model on the server: the user's, or one made from the reference."""
        if self.model_name:
            return self.model_name
        if self.kind == "factory":
            stem = Path(self.reference.rpartition(":")[0]).stem
        elif self.kind in ("exported", "torchscript", "onnx", "keras", "graphdef"):
            stem = Path(self.reference).stem
        else:
            stem = self.reference.rstrip("/").rpartition("/")[2]
        name = re.sub(r"[^A-Za-z0-9_.-]|\.\.|^[.-]", "_", f"{stem}-{self.part}" if self.part else stem)
        return name[:LONGEST_NAME] or "model"
