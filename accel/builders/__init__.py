"""What a builder is, and what a session is. One file ``to_<runtime>.py`` per runtime; nothing else lists targets.

A builder runs in two places. In the parent: ``targets``, ``environment``, ``available`` and ``triton`` answer without
importing anything heavy. In a worker process: ``build`` and ``open`` do the work. So a builder module imports at its
top only the standard library, NumPy and accel, and its own runtime inside the methods.
"""

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

import numpy as np

from accel.core import environments
from accel.core.feeds import Feed, fit_inputs
from accel.core.values import (
    PYTHON_BACKEND,
    Artifact,
    BuildRequest,
    Built,
    CallSplit,
    Int32Runtime,
    ModelSource,
    Precision,
    PrecisionConverted,
    Runtime,
    Skipped,
    Target,
    TensorSpec,
    TritonModel,
)

Mode = Literal["latency", "throughput"]
SEARCH_S = 60.0
"""How long a build searches layers that must stay finer, unless ``search_s`` says otherwise."""


@dataclass(frozen=True, slots=True)
class Backend:
    """What a backend of Triton does with every model, whoever wrote its repository.

    Attributes:
        name: ``backend`` of a config.
        batches: whether it can merge requests.
        converts: whether the tensors of a config may have other dtypes than the model's.
        kind: the only kind of instance that it loads; None for the kind of the target's device.
        openmp: whether it takes its CPU threads from ``OMP_NUM_THREADS``, and from nothing in a config.
        keeps_states: whether it takes the states of a stateful model from the server (implicit state).
        parameters: (CPU threads, instances) → parameters of a config under which the instances share the threads.
    """

    name: str
    batches: bool = True
    converts: bool = False
    kind: Literal["KIND_CPU", "KIND_GPU"] | None = None
    openmp: bool = False
    keeps_states: bool = False
    parameters: Callable[[int, int], Mapping[str, str]] = lambda threads, instances: {}


def share(threads: int, instances: int) -> str:
    """Return the CPU threads of one of several instances, at least one, as a config's parameter says it."""
    return str(max(1, threads // instances))


PYTHON = Backend(
    PYTHON_BACKEND, converts=True, parameters=lambda threads, instances: {"threads": share(threads, instances)}
)
"""Triton's Python backend: runs any builder's session, casts where values fit (``triton/backend_py/model.py``)."""


@dataclass(frozen=True, slots=True)
class TargetInfo:
    """One target that a builder offers.

    Attributes:
        devices: where it can run (``cpu``, ``cuda``); the first is meant when none is named.
        precision: the precision it asks for.
        about: one line for ``accel targets``.
        runtime: what a report calls it; None for the first word of its name.
        needs: ``onnx`` (the exported file), ``nothing``, or the framework of which it needs the source itself.
        baseline: the framework whose sources it runs as they are: what speed-ups of such a source are relative to.
        calibration: whether it must have calibration samples.
        int64_as_int32: whether the runtime computes int64 as int32 and wraps: the interior must be proved to fit.
        through_float: ONNX operators that the runtime computes in float even for integers, so that these must be proved
            to lie within 2**24.
        prefers_int32: whether it gains by int32 inputs and outputs: they are narrowed unless the user says otherwise.
        static: whether it can be built for one fixed shape (``variant.static``) and may gain by it.
        server_only: only a Triton server runs it: it is built and packaged, and neither proved nor measured in process.
        ungrouped: devices on which the groups ``cpu``, ``gpu`` and ``all`` leave it out; it is built when named.
        operators: operators that it works on; a model whose ONNX has none of them is skipped.
        environment: the environment whose interpreter builds and runs it.
        helpers: further environments in which a build starts processes.
        programs: programs on the PATH that a build starts; each also the name of the Debian package that has it.
        comes_last: devices on which its build, in FP32, takes so long that where only a group asks for it, it is built
            last, and only while the model's arithmetic leaves it a chance to win.
        waits: devices on which it, in FP32, is built with what comes last, where something does and a group alone asks
            for it: the same arithmetic excludes both.
    """

    devices: tuple[str, ...]
    precision: Precision
    about: str
    runtime: Runtime | None = None
    needs: str = "onnx"
    baseline: str | None = None
    calibration: bool = False
    int64_as_int32: bool = False
    through_float: frozenset[str] = frozenset()
    prefers_int32: bool = False
    static: bool = False
    server_only: bool = False
    ungrouped: tuple[str, ...] = ()
    operators: tuple[str, ...] = ()
    environment: str = environments.MAIN
    helpers: tuple[str, ...] = ()
    programs: tuple[str, ...] = ()
    comes_last: tuple[str, ...] = ()
    waits: tuple[str, ...] = ()

    @property
    def needs_source(self) -> bool:
        """Whether it starts from the source itself, in its framework."""
        return self.needs not in ("onnx", "nothing")


class Builder(ABC):
    """What every ``to_*.py`` offers as its module-level ``BUILDER``."""

    targets: Mapping[str, TargetInfo]
    options: type[Any]
    """Frozen dataclass of the options a user may set; every field has a default."""

    packages: Sequence[str] = ()
    """Distributions that its results depend on, in the main environment: a cached build holds for their versions."""

    build_only: Sequence[str] = ()
    """Distributions among an artifact's versions that building takes and running does not."""

    backends: Sequence[Backend] = ()
    """Triton's native backends that ``triton`` names."""

    narrows: Int32Runtime | None = None
    """The runtime of ``accel narrow --runtime``, where integers can be narrowed for it."""

    whole: Mapping[str, Any] = MappingProxyType({})
    """Options with which INT8 covers all that can be quantised, whatever that costs in accuracy."""

    inspects: Sequence[str] = ()
    """Suffixes of the files that ``inspect`` describes."""

    packs: bool = False
    """Whether ``open_packed`` can load some artifacts."""

    def environment(self, target: Target) -> str:
        """Name the environment whose interpreter builds and runs the target."""
        return self.targets[target.name].environment

    @abstractmethod
    def available(self, target: Target) -> Skipped | None:
        """Say why the target cannot be built or run here, or None where it can. Imports nothing heavy."""

    def same_as(self, target: Target) -> str | None:
        """Name another target of this builder that computes exactly the same on this machine; None where none does."""
        return None

    @abstractmethod
    def build(self, request: BuildRequest, options: Any, out_dir: Path) -> Built:
        """Build into the empty folder ``out_dir`` and describe what lies there.

        Raises:
            AccelError: the request cannot be met, with the remedy.
        """

    @abstractmethod
    def open(self, artifact: Artifact, folder: Path, *, threads: int, mode: Mode) -> "Session":
        """Load the artifact's files from ``folder`` for running.

        Args:
            threads: CPU threads the runtime may use in all.
            mode: ``latency`` for one request at a time, ``throughput`` for the runtime's own parallelism.
        """

    def open_packed(self, artifact: Artifact, folder: Path, *, mask: str, threads: int, mode: Mode) -> "Session":
        """Load the artifact so that a row may hold several texts: its inputs are those of ``core.packed`` (see there).

        Args:
            mask: input (batch, length) that is 0 at padding.

        Raises:
            InputError: this one cannot be loaded so; why not.
            AccelError: as ``open``.
        """
        raise NotImplementedError

    @abstractmethod
    def triton(self, artifact: Artifact, release: str) -> TritonModel | Skipped:
        """Say how that Triton release serves the artifact."""

    def inspect(self, path: Path) -> dict[str, Any]:
        """Describe a file that ends in one of ``inspects``, as plain JSON values.

        Raises:
            InputError: the file is broken.
            UnavailableError: what reads such files is not here.
        """
        raise NotImplementedError


class ConvertingBuilder(Builder):
    """A builder whose precision is made in the ONNX file, before the build and on any machine.

    Where such a target cannot be built, the converted file is proved all the same, and a kit finishes it elsewhere.
    """

    @abstractmethod
    def prepare(self, request: BuildRequest, options: Any, out_dir: Path) -> PrecisionConverted:
        """Write the precision-converted ONNX file into the empty folder ``out_dir`` and describe it; a CPU does.

        Raises:
            AccelError: the file cannot be converted, with the remedy.
        """

    @abstractmethod
    def open_precision_converted(
        self, converted: PrecisionConverted, folder: Path, *, source: ModelSource, threads: int
    ) -> "Session":
        """Load the converted file on the CPU, every value rounded as its type says, to hold it against the gate."""


class Session(ABC):
    """A loaded model that takes and gives arrays under the client's names.

    Each of ``slots`` requests may be in flight at once: ``bind`` puts inputs into a slot, ``submit`` starts it,
    ``wait`` returns when its outputs are complete (the device is synchronised), ``read`` gives them. ``read`` may
    return views into the runtime's buffers: they are valid until the slot is submitted again.
    """

    any_mode: bool = False
    """Whether the mode it was opened for makes no difference."""
    fresh: bool = False
    """Whether ``read`` gives arrays of the request's own, which stay valid."""

    def __init__(self, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec], slots: int = 1) -> None:
        self.inputs, self.outputs, self.slots = tuple(inputs), tuple(outputs), slots

    @abstractmethod
    def bind(self, inputs: Feed, *, slot: int = 0) -> None:
        """Take ``inputs`` (native dtypes, see ``fit_inputs``) for the next submit of ``slot``."""

    @abstractmethod
    def submit(self, *, slot: int = 0) -> None:
        """Start the request. A runtime without asynchronous calls runs it here."""

    def wait(self, *, slot: int = 0) -> None:
        """Return once the request is complete. Nothing to do where ``submit`` already ran it."""

    @abstractmethod
    def read(self, *, slot: int = 0) -> dict[str, np.ndarray]:
        """Return the outputs of the completed request."""

    def run(self, inputs: Feed) -> dict[str, np.ndarray]:
        """Check the inputs, and call slot 0 with them."""
        return self.call(fit_inputs(inputs, self.inputs))

    def call(self, inputs: Feed, *, slot: int = 0) -> dict[str, np.ndarray]:
        """Bind ``inputs`` (native dtypes), submit, wait and read; the arrays stay valid."""
        self.bind(inputs, slot=slot)
        self.submit(slot=slot)
        self.wait(slot=slot)
        found = self.read(slot=slot)
        return found if self.fresh else {name: np.array(value) for name, value in found.items()}

    @abstractmethod
    def precision(self) -> str:
        """Name the precision the runtime really computes in, as the runtime itself reports it (``fp32``, ``bf16``…)."""

    def split(self, inputs: Feed) -> CallSplit | None:
        """Run one request (native dtypes) part by part, synchronised between; None where nothing is copied."""
        return None

    def close(self) -> None:
        """Give back what the garbage collector would not."""


def timed_parts(
    inputs: Feed, *, copy_in: Callable[[], None], compute: Callable[[], None], copy_out: Callable[[], Feed]
) -> CallSplit:
    """Time the three parts of one call in ms, each of which must leave the device idle, and count what is copied.

    Args:
        inputs: what ``copy_in`` copies.
        copy_out: returns the outputs.
    """
    begin = time.perf_counter_ns()
    copy_in()
    copied = time.perf_counter_ns()
    compute()
    computed = time.perf_counter_ns()
    outputs = copy_out()
    done = time.perf_counter_ns()
    return CallSplit(
        (copied - begin) / 1e6,
        (computed - copied) / 1e6,
        (done - computed) / 1e6,
        sum(a.nbytes for a in inputs.values()),
        sum(a.nbytes for a in outputs.values()),
    )
