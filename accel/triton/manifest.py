"""The manifest of a repository: what lies there, where it came from and what clients may rely on."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from accel.core.calls import CallForm
from accel.core.errors import InputError
from accel.core.files import read_value, write_text
from accel.core.values import (
    PYTHON_BACKEND,
    SCHEMA,
    UNLESS_NONE,
    Artifact,
    Detections,
    FileRef,
    Parity,
    TensorSpec,
    to_json,
)
from accel.triton.grouping import Grouping
from accel.triton.sequences import State

FILENAME = "manifest.json"
REFERENCE = "reference.npz"
ARTIFACT_FOLDER = "artifact"
"""Where a Python-backend version folder keeps the artifact's files; native backends want them at its top."""
MASK = "attention_mask"
"""Input that hides padded positions, by the name it had in every manifest that does not state it."""


@dataclass(frozen=True, slots=True)
class Manifest:
    """What ``manifest.json`` says.

    Attributes:
        variant: id of the variant (``openvino-int8@cpu``).
        models: folders of the repository; clients call the first.
        version: the model version served.
        release: Triton release it was emitted for.
        backend: backend that does the work.
        files: every file but the manifest itself.
        inputs / outputs: the client contract: names, dtypes and full dims, batch axis included; integer ranges of
            the inputs.
        max_batch_size: as in the config of the model that clients call.
        unverified: differences between the artifact's toolchain and the release.
        requires: packages the Python backend's interpreter must have; empty for a native backend.
        artifact: the artifact that is served, with its variant, its files below the version folder, and the builder's
            own account (precision, packages that took part, facts).
        parity: what the gate found when the artifact ran in process; None where it was not held against one.
        unproved_int64: 64-bit values inside the model that are not proved to fit int32: some runtimes would wrap them.
        reference_points: shape points whose inputs and outputs lie in ``reference.npz``, under the keys
            ``inputs/<point>/<name>`` and ``outputs/<point>/<name>``; of a stateful model the steps of one stream, in
            order, and ``initial/<name>``.
        overrides: what the user changed in the config, as the text of a partial ``config.pbtxt``.
        hardware: name of the config below ``configs/`` that the emitting machine measured, if any.
        pipeline: the ensemble that takes text or pictures and gives answers, where one was added.
        mask: input that is 0 at padded positions, which no check of the outputs looks at; None where there is none.
        detections: the outputs that are compared as sets of rows, when there are any.
        call: how Python code calls the model that the artifact was built from (``accel.load``).
        tuned: why the instances and the batching are what they are, where they were measured.
        grouping: how a model in the Python backend lets requests of different sizes share calls, and the proof that it
            may; None where all requests have one shape, or ``ungrouped`` says why not.
        core: model that has the artifact, where the one that clients call forms groups of requests and has it answer
            them; None where that one has the artifact, or only renames tensors.
        states: of a stateful model, what each step of a sequence leaves for the next; clients see nothing of it.
        peak_rss_mib: memory that a process with one instance took at most when it was measured; None before that.
    """

    variant: str
    models: tuple[str, ...]
    version: int
    release: str
    backend: str
    files: tuple[FileRef, ...]
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    max_batch_size: int
    unverified: tuple[str, ...]
    requires: Mapping[str, str]
    artifact: Artifact
    reference_points: tuple[str, ...]
    parity: Parity | None = None
    unproved_int64: tuple[str, ...] = ()
    overrides: str = ""
    hardware: str | None = None
    pipeline: str | None = None
    mask: str | None = MASK
    detections: Detections | None = None
    call: CallForm | None = None
    tuned: str | None = None
    grouping: Grouping | None = field(default=None, metadata=UNLESS_NONE)
    ungrouped: str | None = field(default=None, metadata=UNLESS_NONE)
    core: str | None = field(default=None, metadata=UNLESS_NONE)
    states: tuple[State, ...] | None = field(default=None, metadata=UNLESS_NONE)
    peak_rss_mib: int | None = field(default=None, metadata=UNLESS_NONE)
    schema: int = field(default=SCHEMA)

    @property
    def model_inputs(self) -> tuple[TensorSpec, ...]:
        """The inputs of the model itself: those of the contract, and the states."""
        return (*self.inputs, *(state.input for state in self.states or ()))

    @property
    def model_outputs(self) -> tuple[TensorSpec, ...]:
        """The outputs of the model itself, the states among them."""
        return (*self.outputs, *(replace(state.input, name=state.output) for state in self.states or ()))

    @property
    def unproved(self) -> str | None:
        """Why its variant may not be chosen: it failed the gate, or all feeds were never asked of it; else None."""
        if self.parity is None or (self.parity.passed and self.parity.partly is None):
            return None
        held = f"was proved on {self.parity.partly} only" if self.parity.passed else "failed its gate"
        return f"{self.variant} {held}"

    @property
    def groups(self) -> bool:
        """Whether the model has a queue of its own, in which requests of different sizes find those like them."""
        in_python = self.backend == PYTHON_BACKEND or self.core is not None
        return self.grouping is not None and in_python and self.max_batch_size > 0

    @property
    def trims(self) -> bool:
        """Whether requests of different lengths share calls, so that no client needs to pad: a mask hides padding."""
        return self.groups and self.grouping is not None and self.grouping.mask is not None


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing a check of a repository found.

    Attributes:
        file: path relative to the repository's root.
        field: field of the config or manifest; empty where the file itself is meant.
        why: what was expected and what was found.
        fix: what fixes it.
    """

    severity: Literal["error", "warning"]
    file: str
    field: str
    why: str
    fix: str


def write(manifest: Manifest, root: Path) -> None:
    """Write ``manifest.json`` below ``root``."""
    write_text(root / FILENAME, json.dumps(to_json(manifest), indent=2, ensure_ascii=False) + "\n")


def read(root: Path) -> Manifest:
    """Read ``manifest.json`` below ``root``.

    Raises:
        InputError: it is missing, is not JSON, lacks a field, or its schema is newer than this accel.
    """
    return read_value(
        root / FILENAME,
        Manifest,
        missing="give the root of a repository that accel emitted",
        fix="emit the repository again",
    )


def holder(root: Path, manifest: Manifest) -> tuple[str, Path]:
    """Return the model that has the artifact, and the folder in which the artifact's files lie."""
    for model in manifest.models:
        version = root / model / str(manifest.version)
        for folder in (version, version / ARTIFACT_FOLDER):
            if all((folder / file.path).is_file() for file in manifest.artifact.files):
                return model, folder
    raise InputError(
        f"no model of {root} has all files of {manifest.variant}: {[f.path for f in manifest.artifact.files]}",
        fix="emit the repository again",
    )
