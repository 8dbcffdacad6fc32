"""The run document, ``run.json``: its types, and the one reader of it.

The writer (``run.run_json``) fills these values and ``to_json`` writes them; whoever wants to know something of a run
reads them. Runs come from other machines and other versions of accel: beyond the schema number nothing in a file is
an error (``values.from_foreign_json``), so that what is damaged or missing reads as unknown.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from accel.core.calls import CallForm
from accel.core.errors import InputError
from accel.core.files import parse_json
from accel.core.hardware import Cpu, Gpu
from accel.core.values import (
    SCHEMA,
    UNLESS_NONE,
    Artifact,
    Built,
    Decision,
    FileRef,
    Measurement,
    OnnxModel,
    Parity,
    Profile,
    Runtime,
    Target,
    TaskSpan,
    TensorSpec,
    Variant,
    clean,
    from_foreign_json,
)

FILENAME = "run.json"
OLDEST = max(1, SCHEMA - 2)
"""The oldest schema that is read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Samples:
    """What calibration and gate ran on: a phrase, batch items, and the hash of all of them."""

    origin: str | None
    calibration_items: int | None
    gate_items: int | None
    sha256: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Integers:
    """What became of 64-bit integers.

    Attributes:
        level: ``keep``, ``io`` or ``interior``.
        narrowed_inputs / narrowed_outputs: names that clients now see as int32.
        narrowed / kept: how many values inside.
        preconditions: ranges of the inputs on which the proof rests, as the narrowing report has them.
        unproved_int64: values inside that are not proved to fit; ``allow_unproved_int64`` lets them wrap.
    """

    level: str | None
    narrowed_inputs: tuple[str, ...]
    narrowed_outputs: tuple[str, ...]
    narrowed: int
    kept: int
    preconditions: tuple[Any, ...]
    unproved_int64: tuple[str, ...]
    allow_unproved_int64: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Baseline:
    """The target that runs the source as it is, and what a report calls it."""

    target: str
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RunModel:
    """The model of a run, as ``ModelSource`` has it; ``notice`` is what nobody may miss."""

    name: str
    source: str | None
    kind: str | None
    framework: str
    baseline: Baseline | None
    weights: str | None
    revision: str | None
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    profile: Profile
    accuracy: str
    notice: str | None
    samples: Samples | None
    onnx: OnnxModel | None
    integers: Integers | None
    call: CallForm | None = None
    family: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """Where a run took place: ``Hardware``, and the versions of the toolchain."""

    id: str
    fingerprint: str | None
    cpu: Cpu
    gpus: tuple[Gpu, ...]
    memory_bytes: int | None
    system: str | None
    versions: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Build:
    """What was built of a variant. ``precision`` was asked for, ``effective_precision`` was observed.

    Attributes:
        entry: what the runtime opens; None in a run of an earlier version, as ``inputs`` and ``outputs`` are empty.
        inputs / outputs: as the built file declares them.
    """

    files: tuple[FileRef, ...]
    bytes: int | None
    build_s: float | None
    precision: str | None
    effective_precision: str | None
    versions: Mapping[str, str]
    facts: Mapping[str, Any]
    parent_sha256: str | None
    entry: str | None = None
    inputs: tuple[TensorSpec, ...] = ()
    outputs: tuple[TensorSpec, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict(Parity):
    """How a variant compared with the reference: held as which precision, on how many feeds, of how many."""

    held_as: str | None
    feeds: int | None
    of: int | None = None

    @property
    def whole(self) -> bool:
        """Whether it holds on every feed that the variant takes; else it was found on a part (docs/measuring.md)."""
        return self.of in (None, self.feeds)


@dataclass(frozen=True, slots=True, kw_only=True)
class Typing:
    """The ONNX file in which a variant's precision was made, and the kit that builds it elsewhere.

    Attributes:
        kit: folder of the kit that was left, relative to the run directory.
        seal: of that kit, or of the one that the variant was finished from.
    """

    onnx: FileRef
    facts: Mapping[str, Any]
    parity: Verdict
    kit: str | None
    seal: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class VariantRecord:
    """One variant that was asked for, and all that became of it.

    Attributes:
        static: shape suffix of a static build.
        repository / twin / routed: folders relative to the run directory; ``twin`` is the one for the Python backend,
            in ``routed`` a model before the native one groups requests by length.
        shares: how requests share calls in the Python backend, where the traffic was measured: in groups by length, or
            texts in shared rows, and why.
        unserved: name of a repository → why a server did not serve it.
        died: whether it failed because its process crashed, hung past its limit or was killed, or a server's that
            served it.
        unverified_for_release: how its toolchain differs from that of the Triton release it was emitted for.
    """

    id: str
    target: str
    device: str
    runtime: Runtime | None
    shapes: Profile
    static: str | None
    status: str = "failed"
    reason: str | None
    fix: str | None
    artifact: Build | None
    typing: Typing | None
    parity: Verdict | None
    repository: str | None
    twin: str | None
    unserved: Mapping[str, str]
    unverified_for_release: tuple[str, ...]
    cached: bool
    measurements: tuple[Measurement, ...]
    options: Mapping[str, Any] = field(default_factory=dict)
    died: bool = False
    routed: str | None = field(default=None, metadata=UNLESS_NONE)
    shares: str | None = field(default=None, metadata=UNLESS_NONE)

    def to_artifact(self) -> Artifact:
        """Return the artifact, whose files lie in ``variants/<id>`` of the run directory.

        Raises:
            InputError: nothing was built of the variant, or the run is of a version that does not say what.
        """
        made = self.artifact
        if made is None or made.entry is None:
            why = self.reason or "the run was written by an earlier version of accel"
            raise InputError(
                f"nothing that can be opened was built of {self.id}: {why}", fix=self.fix or "convert it again"
            )
        target = Target(self.target, self.device)
        return Artifact(
            Variant(target, self.shapes, static=self.static, options=self.options),
            made.files,
            made.parent_sha256 or "",
            Built(made.entry, made.inputs, made.outputs, made.precision or "none", made.facts, made.versions),  # type: ignore[arg-type]
            made.build_s or 0.0,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerRecord:
    """How the servers of a run were had, and of which Triton release they were."""

    via: str | None
    release: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunDocument:
    """A whole run.

    Attributes:
        settings: the options that decide a figure.
        timings_s: how long each stage took. ``accel`` is what was left when no process worked for a library: the parent
            itself, starting processes, and accel's own tasks (comparing, narrowing, emitting).
        timeline: what each process did when; results that were kept from before have no part in it.
    """

    schema: int
    accel: str | None
    created: str | None
    command: str | None
    model: RunModel
    hardware: Machine
    settings: Mapping[str, Any]
    variants: tuple[VariantRecord, ...]
    served: ServerRecord | None
    decisions: tuple[Decision, ...]
    timings_s: Mapping[str, float]
    timeline: tuple[TaskSpan, ...] = ()


def shipping(decisions: Sequence[Decision]) -> dict[str, Decision]:
    """Return of each device the decision that ships: by the first objective, as served where that was measured."""
    return {d.device: d for d in decisions if d.objective == decisions[0].objective}


def read(path: Path) -> RunDocument:
    """Read a run directory's ``run.json``, or the file itself.

    Raises:
        InputError: nothing there, not valid JSON (NaN included), or a schema that this version cannot read.
    """
    file = path / FILENAME if path.is_dir() else path
    return parse(read_json(file), origin=str(file))


def read_json(path: Path) -> Any:
    """Read the same as it is written, to be passed on.

    Raises:
        InputError: nothing there, or not valid JSON (NaN included).
    """
    file = path / FILENAME if path.is_dir() else path
    try:
        return parse_json(file.read_text(encoding="utf-8"))
    except OSError as cause:
        raise InputError(
            f"cannot read the run {file}: {cause.strerror or cause}",
            fix="name a run directory (runs/<model>) or its run.json",
        ) from cause
    except UnicodeDecodeError as cause:
        raise InputError(f"{file} is not a JSON file: it is not UTF-8 text") from cause
    except (ValueError, RecursionError) as cause:
        raise InputError(f"{file} is not valid JSON: {cause}", fix="run the conversion again; it resumes") from cause


def parse(run: Any, *, origin: str = "this run") -> RunDocument:
    """Read the JSON of a run.

    Args:
        run: the parsed JSON; unknown fields are ignored, all but ``schema`` may be missing.
        origin: what an error calls it.

    Raises:
        InputError: not an object, no schema number, an older one than the two before this version's, or a newer one.
    """
    if not isinstance(run, Mapping):
        raise InputError(f"{origin} is not a run of accel: expected an object, found {type(run).__name__}")
    schema = run.get("schema")
    if isinstance(schema, bool) or not isinstance(schema, int):
        raise InputError(
            f"{origin} is not a run of accel: expected a field 'schema' with a number, found {schema!r}",
            fix="name a run directory (runs/<model>) or its run.json",
        )
    if schema > SCHEMA:
        written = f"accel {clean(run['accel'])}" if "accel" in run else "a later version of accel"
        raise InputError(
            f"{origin} has schema {schema}, written by {written}; this version reads up to {SCHEMA}",
            fix="update accel, or render the report with the version that wrote the run",
        )
    if schema < OLDEST:
        raise InputError(
            f"{origin} has schema {schema}; this version reads {OLDEST} to {SCHEMA}", fix="run the conversion again"
        )
    return from_foreign_json(RunDocument, run)
