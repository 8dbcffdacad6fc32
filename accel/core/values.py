"""Every value that flows between the stages: frozen, with a JSON form.

Files are named by relative path, sha256 and size, never by a live object, so that any value can cross a process
border or be read back years later. This module knows nothing of frameworks and imports only the standard library:
the worker side of accel runs it in environments that hold nothing but one runtime.
"""

import dataclasses
import functools
import hashlib
import json
import math
import re
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar, Union

from accel.core.calls import CallForm

SCHEMA = 1
"""Version of the JSON forms in this module. Readers take the two before it and refuse newer ones."""

PYTHON_BACKEND = "python"
"""Triton's Python backend: no target's own, it runs the session of any."""
VERSION_FOLDER = "<version folder>"
"""Stands in a ``TritonModel`` for the folder that the artifact's files will lie in; see there."""

T = TypeVar("T")
Dim = int | str
Precision = Literal["fp32", "tf32", "bf16", "fp16", "int8", "fp8", "none"]
Family = Literal["transformer", "vision", "other"]
Status = Literal["ok", "gate_failed", "failed", "skipped", "deferred"]


UNLESS_NONE = {"unless": None}
"""Metadata of a field that JSON has only where it says something."""
LAYERS = "layers"
"""The fact of a build of several precisions: name, precision and share of the multiplications of each product."""


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """One input or output of a model.

    Attributes:
        name: name that clients use.
        dtype: NumPy's name of the element type (``float32``, ``int64``, ``bool``).
        dims: sizes; a string names a dynamic axis, and equal names mean equal sizes (``("batch", "seq")``).
        range: lowest and highest value an integer input may take, both inclusive; None where nobody declared one.
        ends: id that ends every text of the input and stands nowhere else in it; None where nobody declared one.
        at_most: another input's name, one of its axes and a number: no value is above the size of that axis plus the
            number (-1 for what indexes its rows, 0 for a length); None where none of that is known.
        rises: value with which the last axis begins, and from which it never falls (offsets of bags); None where values
            may come in any order.
    """

    name: str
    dtype: str
    dims: tuple[Dim, ...]
    range: tuple[int, int] | None = None
    ends: int | None = dataclasses.field(default=None, metadata=UNLESS_NONE)
    at_most: tuple[str, int, int] | None = dataclasses.field(default=None, metadata=UNLESS_NONE)
    rises: int | None = dataclasses.field(default=None, metadata=UNLESS_NONE)


def axis_sizes(specs: Iterable[TensorSpec], shapes: Mapping[str, tuple[int, ...]]) -> dict[str, int]:
    """Return the size of each named axis of tensors that have these shapes, by the tensors' names."""
    pairs = ((dim, size) for s in specs for dim, size in zip(s.dims, shapes[s.name], strict=True))
    return {dim: size for dim, size in pairs if isinstance(dim, str)}


@dataclass(frozen=True, slots=True)
class ShapeRange:
    """Smallest, typical and largest shape of one input, as TensorRT's optimization profiles have them.

    Attributes:
        multiple: number that each axis must be a multiple of, 1 for an axis of any size; empty where no axis has one.
    """

    min: tuple[int, ...]
    opt: tuple[int, ...]
    max: tuple[int, ...]
    multiple: tuple[int, ...] = ()

    @property
    def multiples(self) -> tuple[int, ...]:
        """``multiple`` with an entry for every axis."""
        return self.multiple or (1,) * len(self.opt)


Profile = Mapping[str, ShapeRange]
"""Shape ranges by input name."""


@dataclass(frozen=True, slots=True)
class Detections:
    """Outputs that together hold what was found in each item, as a set: a variable number of rows, in no order.

    Attributes:
        boxes: output with the corners x0, y0, x1, y1 of each row, float (batch, rows, 4).
        scores: float (batch, rows).
        classes: integer (batch, rows).
        count: how many rows of each item, from the first on, are not padding; integer (batch,).
        iou / score: two rows may be one and the same from this overlap on, and up to this difference of scores.
    """

    boxes: str = "boxes"
    scores: str = "scores"
    classes: str = "classes"
    count: str = "count"
    iou: float = 0.5
    score: float = 0.1

    @property
    def names(self) -> tuple[str, str, str, str]:
        """The four outputs."""
        return self.boxes, self.scores, self.classes, self.count


@dataclass(frozen=True, slots=True)
class FileRef:
    """A file by its path relative to the folder of the value that names it, its sha256 (hex) and its size."""

    path: str
    sha256: str
    bytes: int


@dataclass(frozen=True, slots=True)
class GraphChoice:
    """Which part of a TensorFlow source is the model, and how clients see it.

    Attributes:
        signature: of a SavedModel; None for ``serving_default``, or the only one.
        inputs / outputs: tensors of a frozen graph (``x:0``); none where they are found by themselves.
        nchw: inputs that clients give with channels first, where the model takes them last.
    """

    signature: str | None = None
    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    nchw: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ModelSource:
    """Where a model comes from and what it promises; enough to load it again in another process.

    Attributes:
        name: name of the run, and of the model on the server.
        kind: which exporter loads it.
        reference: zoo name, hub id, or absolute path (``/p/file.py:factory`` for a factory).
        framework: whose eager execution is the reference.
        weights: ``pretrained``, ``local`` or ``random(seed=N)``.
        revision: revision or content hash of the weights.
        key: sha256 over everything that decides what the model computes (its files, weights, the zoo entry's code).
        task: Hugging Face task or class override, when one was given.
        mask: name of the input that is 0 at padded positions, when there is one.
        family: what kind of network it is; picks NNCF's model type and the samples' form.
        gate: name of the task metric, and the least share of the source's own score that passes, when there is one.
        metric: the user's task metric: ``accuracy``, or ``/p/file.py:function``; None where the zoo has one, or nobody.
        static: precisions in which the zoo also asks for a build fixed at the opt shape.
        part: part of a transformers model that this is; None for the whole.
        samples: what the samples are: ``zoo``, ``random`` or the path that the user gave (``--samples``).
        notice: one line the user must see (weights could not be had, inputs are random), or None.
        native: what the model itself takes or gives, by input or output, where clients see another dtype (``int64``
            behind an int32 contract).
        unproved_int64: 64-bit values inside the model that are not proved to fit int32, each with the interval found.
        inexact_int64: operators with integer inputs that are not proved to lie within 2**24, each with the interval
            found: some runtimes compute these in float.
        detections: the outputs that are compared as sets of rows, when there are any.
        graph: what was chosen of a TensorFlow source.
        call: how Python code calls it; None where its inputs and outputs are all that is known.
        pool: how the vectors of a text's tokens become one where ``--pool`` was given; None where it was not.
        computes: the coarsest precision that the source itself computes in: no variant of it is held to a finer one.
        states: of a stateful model, each input that holds what the step before left, and the output that left it.
            Clients see neither.
        initial: the ``.npy`` file (absolute) with the value that such an input has at the first step; zeros without.
        given: hash of what a factory gave beside code and weights: its samples, and the numbers and texts that parts of
            the model hold. It may differ from one call to the next, and then nothing of an earlier run is used again.
    """

    name: str
    kind: Literal["zoo", "huggingface", "factory", "exported", "torchscript", "onnx", "savedmodel", "keras", "graphdef"]
    reference: str
    framework: Literal["torch", "onnx", "tensorflow"]
    weights: str
    revision: str | None
    key: str
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    profile: Mapping[str, ShapeRange]
    task: str | None = None
    part: str | None = None
    mask: str | None = None
    family: Family = "other"
    gate: tuple[str, float] | None = None
    metric: str | None = None
    static: tuple[str, ...] = ()
    samples: str = "random"
    notice: str | None = None
    native: Mapping[str, str] = field(default_factory=dict)
    unproved_int64: tuple[str, ...] = ()
    inexact_int64: tuple[tuple[str, str], ...] = ()
    detections: Detections | None = None
    graph: GraphChoice = field(default_factory=GraphChoice)
    call: CallForm | None = None
    pool: str | None = None
    computes: Literal["fp32", "fp16", "bf16", "int8"] = "fp32"
    states: Mapping[str, str] = field(default_factory=dict)
    initial: Mapping[str, str] = field(default_factory=dict)
    given: str | None = None

    @property
    def unproved_integers(self) -> tuple[str, ...]:
        """Everything that is not proved of its integers."""
        return (*self.unproved_int64, *(reason for _, reason in self.inexact_int64))

    @property
    def client_inputs(self) -> tuple[TensorSpec, ...]:
        """The inputs that clients give: all but the states."""
        return tuple(s for s in self.inputs if s.name not in self.states)

    @property
    def client_outputs(self) -> tuple[TensorSpec, ...]:
        """The outputs that clients get."""
        return tuple(s for s in self.outputs if s.name not in self.states.values())

    @property
    def batched(self) -> bool:
        """Whether the batch leads every input, so that items can be joined and cut apart."""
        return all(spec.dims[:1] == ("batch",) for spec in self.inputs)

    @property
    def accuracy(self) -> Literal["proved", "unproved"]:
        """Whether agreement with the reference says anything: real weights met real samples."""
        real = not self.weights.startswith("random") and self.samples != "random"
        return "proved" if real else "unproved"


@dataclass(frozen=True, slots=True)
class SampleSet:
    """Inputs for calibration, gate and timing: ``.npz`` files whose keys read ``<index>/<input>``.

    Attributes:
        calibration: feeds for INT8 calibration; disjoint from ``gate``. None where there are only random inputs.
        ranges: feeds on which the ranges of half precision are measured where there is no calibration set: random ones,
            and none of the gate's.
        gate: feeds on which variants are compared with the reference.
        shapes: feeds keyed ``min``, ``odd``, ``opt``, ``max`` in place of an index.
        calibration_items / gate_items: batch items over all feeds of the file.
        sha256: hash over the files, and what the user scores them by: the dataset's hash.
        origin: one phrase for the report ("zoo sentences, tokenised", "random values in the declared ranges").
        coverage: feeds for what samples do not hold (``exporters.coverage``), and those that are timed.
        streams: of a stateful model, what clients send: keys ``s<stream>.<step>/<input>``, and ``initial/<input>`` for
            the states of a first step.
        labels: ``calibration``, ``gate`` and ``streams`` → feed → the right answer to each of its items, as JSON; empty
            without any.
    """

    calibration: FileRef | None
    gate: FileRef
    shapes: FileRef
    calibration_items: int
    gate_items: int
    sha256: str
    origin: str
    coverage: FileRef | None = None
    streams: FileRef | None = field(default=None, metadata=UNLESS_NONE)
    labels: Mapping[str, FileRef] = field(default_factory=dict)
    ranges: FileRef | None = field(default=None, metadata=UNLESS_NONE)

    @property
    def files(self) -> tuple[FileRef, ...]:
        """All files there are."""
        every = (self.calibration, self.ranges, self.gate, self.shapes, self.coverage, self.streams)
        return tuple(f for f in (*every, *self.labels.values()) if f is not None)


@dataclass(frozen=True, slots=True)
class OnnxModel:
    """An exported model, with what was read back from the file.

    Attributes:
        file: the ``.onnx`` itself; ``data`` its external data files, in the same folder.
        opset / ir_version: as found in the file, never as asked for.
        ops: how many nodes of each operator type.
        inputs / outputs: as the file declares them.
    """

    file: FileRef
    data: tuple[FileRef, ...]
    opset: int
    ir_version: int
    ops: Mapping[str, int]
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]


@dataclass(frozen=True, slots=True)
class PrecisionConverted:
    """An ONNX file in which the precision of a target was made, ready to be built where the target runs.

    Attributes:
        facts: which nodes were typed, which were not and why, as far as a reader should know.
    """

    onnx: OnnxModel
    facts: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Target:
    """The parts of a target name: ``openvino-int8@cpu``."""

    name: str
    device: str

    def __str__(self) -> str:
        return f"{self.name}@{self.device}"


@dataclass(frozen=True, slots=True)
class Variant:
    """A request for one build.

    Attributes:
        target: what to build, for which device.
        profile: shape ranges the build must serve; min == opt == max for a static build.
        static: shape suffix of a static build (``1x128``), else None.
        options: the builder's options as plain JSON values.
    """

    target: Target
    profile: Mapping[str, ShapeRange]
    static: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def id(self) -> str:
        """``openvino-int8@cpu``, or ``openvino-fp32@cpu+1x128`` for a static build."""
        return f"{self.target}+{self.static}" if self.static else str(self.target)


@dataclass(frozen=True, slots=True)
class BuildRequest:
    """What a builder gets: the variant and the files it may start from. Paths are absolute.

    Attributes:
        gates: the user's ``--gate NAME=VALUE`` that bear on the variant: what a search for layers must hold.
        room: how many times its usual room above the gate a search for layers leaves; 2 where 1 was not enough.
        shared: folder for what several builds of a run need alike; None where each stands alone.
    """

    variant: Variant
    source: ModelSource
    onnx: OnnxModel | None
    onnx_folder: str | None
    samples: SampleSet
    samples_folder: str
    threads: int
    gates: Mapping[str, float] = field(default_factory=dict)
    room: float = 1.0
    shared: str | None = None


@dataclass(frozen=True, slots=True)
class Built:
    """What a builder's ``build`` says about the files it left in its output folder.

    Attributes:
        entry: path of the file or folder that the runtime opens, relative to the output folder.
        inputs / outputs: as the built file declares them (native dtypes, dims in the client's names where the file
            keeps them), in the order the runtime wants them.
        precision: the precision asked for; what really runs is observed when the artifact is opened.
        facts: what a reader should know (fusion counts, quantised node counts, calibration size and hash).
        versions: package → version that took part.
        expected: whether it held its gate on calibration samples; None where the builder did not look.
    """

    entry: str
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    precision: Precision
    facts: Mapping[str, Any]
    versions: Mapping[str, str]
    expected: bool | None = None


@dataclass(frozen=True, slots=True)
class Artifact:
    """A built variant on disk.

    Attributes:
        files: every file below the artifact's folder.
        parent_sha256: hash of what it was built from.
        built: the builder's own account.
        build_s: wall time of the build.
    """

    variant: Variant
    files: tuple[FileRef, ...]
    parent_sha256: str
    built: Built
    build_s: float

    @property
    def bytes(self) -> int:
        """Size of all files."""
        return sum(f.bytes for f in self.files)


@dataclass(frozen=True, slots=True)
class Int32Runtime:
    """What the narrowing of integers must know of the runtime that is to run the file.

    Attributes:
        name: as ``accel narrow --runtime`` and its report call it.
        package: what must be installed so that the runtime can be asked for its kernels.
        kernels: returns a function that says whether the runtime runs a serialised model, and raises ImportError
            where it is not installed; None for a runtime that cannot be asked.
        wide_types: whether it has DOUBLE and UINT64, and reads no INT64 tensor as a shape.
    """

    name: str
    package: str = ""
    kernels: Callable[[], Callable[[bytes], bool]] | None = None
    wide_types: bool = True


@dataclass(frozen=True, slots=True)
class TritonModel:
    """How one artifact is served by a Triton release: what a builder's ``triton`` returns.

    Attributes:
        backend: ``onnxruntime``, ``openvino``, ``pytorch``, ``python``, ``tensorrt``, ``tensorflow``.
        filename: ``default_model_filename``: the artifact's entry inside the version folder.
        dynamic_batching: whether the backend can merge requests of this artifact.
        accelerators: (device ``cpu``/``gpu``, name, parameters) of ``optimization.execution_accelerators``;
            ``VERSION_FOLDER`` in a parameter becomes the artifact's folder, relative to the repository's root.
        parameters: backend parameters of the config.
        input_names / output_names: client name → name that the backend wants, where they differ.
        platform: ``platform`` of the config, for backends that select by it (``torch_aoti``).
        graph_level: ``optimization.graph.level``.
        server_flags: flags of tritonserver without which it does not load the artifact.
    """

    backend: str
    filename: str
    dynamic_batching: bool
    accelerators: tuple[tuple[str, str, Mapping[str, str]], ...] = ()
    parameters: Mapping[str, str] = field(default_factory=dict)
    input_names: Mapping[str, str] = field(default_factory=dict)
    output_names: Mapping[str, str] = field(default_factory=dict)
    platform: str | None = None
    graph_level: int | None = None
    server_flags: tuple[str, ...] = ()

    @classmethod
    def in_python(cls, artifact: "Artifact") -> "TritonModel":
        """Serve an artifact through the Python backend, which merges requests where the artifact has a free batch."""
        return cls(PYTHON_BACKEND, artifact.built.entry, dynamic_batching=artifact.variant.static is None)


@dataclass(frozen=True, slots=True)
class OutputParity:
    """How one output of a variant compares with the reference, over all gate samples and checked shapes.

    Attributes:
        max_abs: largest absolute difference.
        cosine: cosine similarity of all unmasked values after centring, or None where a norm is zero.
        sqnr_db: centred signal power over error power; None where it is exact or the signal is constant.
        exact: every value equal.
        agreement: share of equal top-1 positions, where the output is a score per class.
        atol_needed / rtol_needed: the tolerance that would pass with the other one at zero.
        by_shape_db: SQNR of each checked shape, and of the worst coverage feed, against its own signal power or the
            whole set's, whichever is more.
        by_shape_mse: mean squared error of each, which later answers of the same build can be held against alone.
        nonfinite: how many values are NaN or infinite where the reference is not; any one fails every gate.
    """

    name: str
    max_abs: float
    cosine: float | None
    sqnr_db: float | None
    exact: bool
    agreement: float | None
    atol_needed: float
    rtol_needed: float | None
    by_shape_db: Mapping[str, float | None] = field(default_factory=dict)
    nonfinite: int = 0
    by_shape_mse: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Parity:
    """The verdict on one variant.

    Attributes:
        gate: name → least value that passes (``{"sqnr_db": 20.0}``); of a task metric the share of the source's score.
        found: the same names → the value found (worst over outputs and shapes).
        passed: whether every found value reaches its gate.
        reasons: one sentence for each gate that failed, worst first.
        notes: what a reader must know of a verdict: each gate that was lowered, by whom and why, and what was covered.
        scores: task metric → its value, and that of the source.
        partly: on how many of its feeds it was found, where all are asked only of what is chosen; None for all.
    """

    passed: bool
    gate: Mapping[str, float]
    found: Mapping[str, float | None]
    outputs: tuple[OutputParity, ...]
    reasons: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    scores: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    partly: str | None = field(default=None, metadata=UNLESS_NONE)


@dataclass(frozen=True, slots=True)
class Skipped:
    """This machine or this install cannot make the variant, or it was not tried; ``left`` where it may be next time."""

    reason: str
    fix: str | None = None
    status: Literal["skipped"] = "skipped"
    left: bool = False


@dataclass(frozen=True, slots=True)
class Deferred:
    """The variant is finished on the target hardware; ``kit`` holds what that takes, ``fix`` says how if not by it."""

    reason: str
    kit: str
    fix: str | None = None
    status: Literal["deferred"] = "deferred"


@dataclass(frozen=True, slots=True)
class Failed:
    """A stage failed: which, why, and where to look.

    Attributes:
        died: its process crashed, hung or was killed.
        wrong: it did what it should, and its answers were others than they must be.
    """

    stage: str
    cause: str
    log: str | None = None
    reproduce: str | None = None
    died: bool = False
    wrong: bool = False
    status: Literal["failed"] = "failed"


@dataclass(frozen=True, slots=True)
class Repository:
    """A Triton model repository root on disk.

    Attributes:
        root: path relative to the run directory.
        models: names of the model folders in it; the first is the one clients call.
        release: Triton release it was emitted for.
        backend: the backend that does the work.
        unverified: toolchain differences between the artifact and that release (``unverified-for-release``).
        batches: whether that backend can merge requests.
    """

    root: str
    models: tuple[str, ...]
    release: str
    backend: str
    unverified: tuple[str, ...] = ()
    batches: bool = True


@dataclass(frozen=True, slots=True)
class ServerSplit:
    """Where a Triton server spent the time of a point, from the differences of its own statistics.

    Attributes:
        queue_ms / input_ms / infer_ms / output_ms: mean per request: waiting in the scheduler, copying inputs, the
            model, copying outputs.
        requests: requests that succeeded, as the server counts them.
        inferences / executions: batch items, and calls of the backend; fewer calls than requests is dynamic batching.
        cache_hits / cache_misses: lookups in the response cache.
        cpus: how many CPUs the server's processes kept busy; None where they run on another machine.
        gpu_utilization / gpu_memory_mib / gpu_power_w: from ``/metrics``, the mean over GPUs (0 to 1) and the sums;
            None without a GPU.
    """

    queue_ms: float
    input_ms: float
    infer_ms: float
    output_ms: float
    requests: int
    inferences: int
    executions: int
    cache_hits: int = 0
    cache_misses: int = 0
    cpus: float | None = None
    gpu_utilization: float | None = None
    gpu_memory_mib: float | None = None
    gpu_power_w: float | None = None

    @property
    def merged(self) -> float | None:
        """Requests in each call of the backend, on average: more than one is dynamic batching."""
        return (self.requests - self.cache_hits) / self.executions if self.executions else None


@dataclass(frozen=True, slots=True)
class CallSplit:
    """The parts of one call on a device, each measured with the device synchronised before and after it.

    Apart they take longer than the timed calls, in which they overlap. Medians over some calls.

    Attributes:
        copy_in_ms / copy_out_ms: from the caller's arrays to the device, and back.
        compute_ms: the model itself, inputs and outputs on the device.
        bytes_in / bytes_out: what is copied.
    """

    copy_in_ms: float
    compute_ms: float
    copy_out_ms: float
    bytes_in: int
    bytes_out: int


@dataclass(frozen=True, slots=True)
class GpuUse:
    """What a variant did to the GPU while it was timed, as NVML showed it; None where the card does not tell.

    Attributes:
        memory_peak_mib: how much more memory of the card was taken at most than before the variant was loaded.
        power_w: mean over the timed rounds.
        energy_j: per batch item, of the whole card.
        sm_mhz / memory_mhz: median clocks; ``sm_mhz_min`` is the lowest clock seen.
        held_down: reasons for which the clocks were held down.
        others: processes on the card that were not accel's.
        warnings: one sentence for each thing that disturbed; empty where the card was quiet.
    """

    name: str
    memory_peak_mib: float | None = None
    power_w: float | None = None
    energy_j: float | None = None
    sm_mhz: float | None = None
    sm_mhz_min: float | None = None
    memory_mhz: float | None = None
    temperature_c: float | None = None
    held_down: tuple[str, ...] = ()
    others: int | None = None
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class MachineNoise:
    """What else the machine did while a point was timed, over the rounds that were kept.

    Attributes:
        others_cores: CPU time of other processes over time, in cores: the median of the rounds; ``_most`` the worst.
        stolen_cores: CPU time that the hypervisor gave to other machines, likewise.
        throttled_cores: time for which the quota of accel's cgroup held its threads back, likewise; ``_most`` of these
            two are None in documents of before 2026-11-28.
        own_cores: CPU time that accel's processes got, over time: the median of the rounds, ``_least`` the lowest; None
            in documents of before 2026-11-25.
        load1: the highest load average over a minute.
        disturbed_rounds: rounds that stayed disturbed, although they were repeated as far as the budget allowed.
        repeated: turns that were thrown away for their disturbance and timed again.
    """

    others_cores: float
    others_cores_most: float
    stolen_cores: float
    load1: float
    disturbed_rounds: int
    repeated: int
    throttled_cores: float = 0.0
    own_cores: float | None = None
    own_cores_least: float | None = None
    stolen_cores_most: float | None = None
    throttled_cores_most: float | None = None


class LengthTime(NamedTuple):
    """How long requests of about one length waited for their answer, from the call of the group that they were in.

    Attributes:
        length: what the longest of them were padded to; None for a model without an axis of that meaning.
        requests: how many there are in a pass.
    """

    length: int | None
    requests: int
    p50_ms: float
    p90_ms: float | None


class RequestTime(NamedTuple):
    """What requests that are padded to one length cost: the time of their calls, divided among them."""

    length: int
    requests: int
    ms: float


@dataclass(frozen=True, slots=True)
class Traffic:
    """What requests of their own lengths were timed: all that wait are grouped by length, group after group.

    Attributes:
        requests: of a pass.
        tokens: what they are made of along the length axis (tokens of text, samples of sound); None without one.
        places: the same with the padding.
        shapes: how many different shapes the groups have.
        first_pass_ms: the first pass after loading, in which a runtime meets each shape for the first time.
        by_length: times of short and long requests apart, shortest first.
        request_times: cost of a request by the length it is padded to, shortest first; empty without such an axis.
    """

    requests: int
    tokens: int | None
    places: int | None
    shapes: int
    first_pass_ms: float
    by_length: tuple[LengthTime, ...]
    request_times: tuple[RequestTime, ...] = ()

    @property
    def padding(self) -> float | None:
        """Share of the places that no request asked for; None where there is no length."""
        return 1 - self.tokens / self.places if self.tokens is not None and self.places else None


@dataclass(frozen=True, slots=True)
class Measurement:
    """One timed point. Times in ms, memory in MiB, throughput in batch items per second.

    Attributes:
        backend: the target's name in process; on a server the backend that answered (``python`` also for a repository's
            Python-backend variant).
        rate_per_s: requests per second that an open loop meant to send; None for a closed loop.
        failures: requests that ended in an error, which count in no percentile; ``error`` is what the first one said.
        server: the server's own account; None in process.
        repository: which repository was served, relative to the run directory; None in process.
        rounds_ms: what each interleaved round is compared by, in the order of the rounds: the time of a call for
            latency, else of a batch item; pairs with the other variants of the same ``session`` for ratio intervals.
        session: id of the interleaved session; only points of one session may be compared directly.
        raw: path of the raw samples (ns), relative to the run directory.
        load_ms / first_ms: loading and the first call, on a CPU while another variant loads; of a server, its start.
        split: the parts of a call on a device; None on a CPU, which copies nothing, and on a server.
        gpu: the card while the point was timed; None without a GPU or without NVML.
        noise: what else the machine did; None in files of older versions.
        traffic: what was timed in the scenario ``traffic``, whose ``batch`` is the number of requests in a group and
            whose ``shapes`` are those of the longest one.
    """

    scenario: Literal["latency", "throughput", "traffic", "sweep"]
    via: Literal["inprocess", "triton"]
    backend: str
    batch: int
    concurrency: int
    threads: int
    shapes: Mapping[str, tuple[int, ...]]
    p50_ms: float | None
    p90_ms: float | None
    p95_ms: float | None
    p99_ms: float | None
    mean_ms: float
    p50_ci_ms: tuple[float, float]
    throughput_per_s: float
    throughput_ci_per_s: tuple[float, float]
    stable: bool
    samples: int
    raw: str
    peak_rss_mib: float
    load_ms: float
    first_ms: float
    effective_precision: str
    rounds_ms: tuple[float, ...]
    session: str
    p95_ci_ms: tuple[float, float] | None = None
    p99_ci_ms: tuple[float, float] | None = None
    rate_per_s: float | None = None
    failures: int = 0
    error: str | None = None
    server: ServerSplit | None = None
    repository: str | None = None
    split: CallSplit | None = None
    gpu: GpuUse | None = None
    noise: MachineNoise | None = None
    traffic: Traffic | None = None

    @property
    def tokens_per_s(self) -> float | None:
        """What requests are made of, without padding, per second; None outside the traffic."""
        made = self.traffic
        return self.throughput_per_s * made.tokens / made.requests if made and made.tokens is not None else None

    @property
    def load(self) -> str:
        """What was asked of a server: ``4 at a time``, ``20 / s``."""
        return f"{self.rate_per_s:g} / s" if self.rate_per_s else f"{self.concurrency or 1} at a time"


class TaskSpan(NamedTuple):
    """When a process ran a task: seconds since the run began.

    Attributes:
        worker: id of the variant, or ``source``.
        task: name of the function (``export``, ``build``, ``time_round``).
        cpu_s: CPU time of the process and what it started, with its own start and imports before its first task.
    """

    worker: str
    task: str
    begin_s: float
    end_s: float
    cpu_s: float = 0.0


class Rejected(NamedTuple):
    """A variant that was not chosen, and why."""

    id: str
    reason: str


@dataclass(frozen=True, slots=True)
class Runtime:
    """A runtime as reports show it.

    Attributes:
        name: what its makers call it.
        colours: CSS colours (``#rrggbb``) on a light page and on a dark one; None lets the report choose.
    """

    name: str
    colours: tuple[str, str] | None = None


@dataclass(frozen=True, slots=True)
class Decision:
    """Which variant serves best on one device, and why each other one does not.

    Attributes:
        chosen: id of the variant, or None where nothing qualified.
        speedup: baseline time over chosen time (throughput ratio for that objective), with its interval.
        via: how the variants were measured: ``inprocess`` or ``triton``.
        repository: the one that was served, or that of what ran in process; relative to the run directory.
        rejected: every other variant, and why.
        verdict: ``decided`` where the winner is known up to its ``ties``, ``undecided`` where others may be as fast or
            faster; None where nothing was chosen, and in files of older versions.
        undecided: ids of those others.
        batch / concurrency: the operating point at which the chosen one was compared and keeps the constraints; None
            where nothing was chosen, and in files of older versions.
        warning: why the figures may be off, such as a busy machine.
    """

    device: str
    objective: Literal["latency", "throughput", "traffic"]
    constraints: Mapping[str, float]
    chosen: str | None
    via: str
    ties: tuple[str, ...]
    rejected: tuple[Rejected, ...]
    reason: str
    baseline: str | None = None
    speedup: float | None = None
    speedup_ci: tuple[float, float] | None = None
    repository: str | None = None
    verdict: Literal["decided", "undecided"] | None = None
    undecided: tuple[str, ...] = ()
    batch: int | None = None
    concurrency: int | None = None
    warning: str | None = None


# ---------------------------------------------------------------------------------------------------------------------
# JSON


def to_json(value: Any) -> Any:
    """Turn a value of this module into plain JSON types; tuples become lists, NaN and infinities are refused.

    Raises:
        ValueError: on NaN or an infinity: run files are valid JSON.
    """
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {f.name: (getattr(value, f.name), f.metadata) for f in dataclasses.fields(value)}
        return {name: to_json(v) for name, (v, metadata) in fields.items() if v is not None or metadata != UNLESS_NONE}
    if isinstance(value, Mapping):
        return {str(k): to_json(v) for k, v in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        return to_json(value._asdict())
    if isinstance(value, list | tuple):
        return [to_json(v) for v in value]
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"{value} cannot stand in a JSON file")
    if value is None or isinstance(value, str | int | float | bool):
        return value
    if isinstance(value, Path):
        return str(value)
    raise TypeError(f"{type(value).__name__} has no JSON form")


def from_json(cls: type[T], data: Any) -> T:
    """Read a value back from what ``to_json`` gave; fields that this version does not know are ignored.

    Raises:
        ValueError: a field is missing or has the wrong type; the message names it.
    """
    return typing.cast(T, _decode(cls, data, getattr(cls, "__name__", str(cls)), foreign=False))


def from_foreign_json(cls: type[T], data: Any) -> T:
    """Read a value from JSON that another version wrote, or that was damaged: nothing in it is an error.

    A field that is absent or does not fit its type reads as its default; where it has none, as None, empty, 0, or NaN
    for a float. Items of lists and objects that do not fit are left out. Text comes on one line (``clean``), and a
    word that a ``Literal`` does not list stays.

    Raises:
        ValueError: ``data`` is not an object.
    """
    return typing.cast(T, _decode(cls, data, cls.__name__, foreign=True))


_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]+")


def clean(value: object) -> str:
    """Return text on one line, without control characters: names come from users and end on a terminal."""
    return _CONTROL.sub(" ", str(value)).strip()


def extended(cls: type[T], value: Any, **more: Any) -> T:
    """Return a value of a dataclass that extends the value's own: its fields, and ``more`` beside or in place of them.

    The fields keep their values, nested ones too.
    """
    return cls(**{f.name: getattr(value, f.name) for f in dataclasses.fields(value)} | more)


@functools.cache
def _hints(cls: type) -> dict[str, Any]:
    return typing.get_type_hints(cls)


def _decode(hint: Any, data: Any, where: str, *, foreign: bool) -> Any:
    origin = typing.get_origin(hint)
    args = typing.get_args(hint)
    if hint is Any:
        return data
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        return _decode_fields(hint, data, where, foreign=foreign)
    if origin in (Union, types.UnionType):
        errors = []
        for arm in args:
            try:
                return _decode(arm, data, where, foreign=foreign)
            except ValueError as error:
                errors.append(str(error))
        raise ValueError(errors[0])
    if origin is Literal:
        if data in args:
            return data
        if foreign:
            return _decode(str, data, where, foreign=True)
        raise ValueError(f"{where}: expected one of {args}, found {data!r}")
    if isinstance(hint, type) and hasattr(hint, "_fields"):
        row = [data.get(name) for name in hint._fields] if isinstance(data, Mapping) else data
        return hint(*_decode(tuple[tuple(_hints(hint).values())], row, where, foreign=foreign))  # type: ignore[misc]
    if origin is tuple:
        if not isinstance(data, list | tuple):
            raise ValueError(f"{where}: expected a list, found {type(data).__name__}")
        if len(args) == 2 and args[1] is Ellipsis:
            return tuple(v for _, v in _decode_items(args[0], enumerate(data), where, foreign=foreign))
        if len(args) != len(data):
            raise ValueError(f"{where}: expected {len(args)} items, found {len(data)}")
        pairs = enumerate(zip(args, data, strict=True))
        return tuple(_decode(a, v, f"{where}[{i}]", foreign=foreign) for i, (a, v) in pairs)
    if origin is not None and issubclass(origin, Mapping):
        if not isinstance(data, Mapping):
            raise ValueError(f"{where}: expected an object, found {type(data).__name__}")
        found = _decode_items(args[1], data.items(), where, foreign=foreign)
        return {clean(k) if foreign else k: v for k, v in found}
    if hint is None or hint is type(None):
        if data is not None:
            raise ValueError(f"{where}: expected null, found {data!r}")
        return None
    if hint is Path and isinstance(data, str):
        return Path(data)
    fits = isinstance(data, hint) or (hint is float and isinstance(data, int))
    if not fits or (isinstance(data, bool) and hint is not bool):
        raise ValueError(f"{where}: expected {hint.__name__}, found {data!r}")
    if foreign and not (clean(data) if hint is str else _is_finite(data)):
        raise ValueError(f"{where}: {data!r} says nothing")
    if hint is float and not foreign and isinstance(data, int) and not _is_finite(data):
        raise ValueError(f"{where}: an integer of {data.bit_length()} bits is not a number")
    return clean(data) if foreign and hint is str else float(data) if hint is float else data


def _decode_fields(cls: type, data: Any, where: str, *, foreign: bool) -> Any:
    if not isinstance(data, Mapping):
        raise ValueError(f"{where}: expected an object, found {type(data).__name__}")
    known = {}
    for f in dataclasses.fields(cls):
        required = f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING
        hint = _hints(cls)[f.name]
        try:
            if f.name in data:
                known[f.name] = _decode(hint, data[f.name], f"{where}.{f.name}", foreign=foreign)
            elif required:
                raise ValueError(f"{where}: field {f.name} is missing")
        except ValueError:
            if not foreign:
                raise
            if required:
                known[f.name] = _unknown(hint)
    return cls(**known)


def _decode_items(hint: Any, items: Iterable[tuple[Any, Any]], where: str, *, foreign: bool) -> Iterator[Any]:
    """Yield every item with its key or number; of a foreign file those that fit."""
    for key, value in items:
        try:
            yield key, _decode(hint, value, f"{where}[{key}]", foreign=foreign)
        except ValueError:
            if not foreign:
                raise


def _is_finite(number: float) -> bool:
    try:
        return math.isfinite(number)
    except OverflowError:  # JSON integers have no limit
        return False


def _unknown(hint: Any) -> Any:
    """Return what stands for a value of a type that a foreign file does not say."""
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if type(None) in args or hint is Any:
        return None
    if origin is Literal:
        return args[0]
    if origin is tuple:
        return () if Ellipsis in args else tuple(map(_unknown, args))
    if dataclasses.is_dataclass(hint):
        return _decode(hint, {}, "", foreign=True)
    return math.nan if hint is float else {} if origin is not None else hint()


# ---------------------------------------------------------------------------------------------------------------------
# Files


def sha256_file(path: Path) -> str:
    """Return the sha256 of a file's content, in hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def sha256_json(value: Any) -> str:
    """Return the sha256 of a value's canonical JSON text, in hex."""
    text = json.dumps(to_json(value), sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def file_ref(path: Path, folder: Path) -> FileRef:
    """Describe a file below ``folder``."""
    return FileRef(path.relative_to(folder).as_posix(), sha256_file(path), path.stat().st_size)


def file_refs(folder: Path) -> tuple[FileRef, ...]:
    """Describe every file below ``folder``, sorted by path."""
    return tuple(file_ref(p, folder) for p in sorted(folder.rglob("*")) if p.is_file())
