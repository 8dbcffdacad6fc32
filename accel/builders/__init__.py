"""What a builder is, and what a session is. One file ``to_<runtime>.py`` per runtime; nothing else lists targets.

A builder runs in two places. In the parent: ``targets``, ``environment``, ``available`` and ``triton`` answer without
importing anything heavy. In a worker process: ``build`` and ``open`` do the work. So a builder module imports at its
top only the standard library, NumPy and accel, and its own runtime inside the methods.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol, runtime_checkable

import numpy as np

from accel.core.feeds import Feed, fit_inputs
from accel.core.values import (
    Artifact,
    BuildRequest,
    Built,
    CallSplit,
    ModelSource,
    Precision,
    Skipped,
    Target,
    TensorSpec,
    TritonModel,
    Typed,
)

Mode = Literal["latency", "throughput"]


@dataclass(frozen=True, slots=True)
class TargetInfo:
    """One target that a builder offers.

    Attributes:
        devices: where it can run (``cpu``, ``cuda``); the first is meant when none is named.
        precision: the precision it asks for.
        needs: ``torch`` or ``tensorflow`` (the source itself), ``onnx`` (the exported file) or ``nothing``.
        calibration: whether it must have calibration samples.
        int64_as_int32: whether the runtime computes int64 as int32 and wraps: the interior must be proved to fit.
        static: whether it can be built for one fixed shape (``variant.static``) and may gain by it.
        server_only: only a Triton server runs it: it is built and packaged, and neither proved nor measured in process.
        ungrouped: devices on which the groups ``cpu``, ``gpu`` and ``all`` leave it out; it is built when named.
        operators: operators that it works on; a model whose ONNX has none of them is skipped.
        about: one line for ``accel targets``.
    """

    devices: tuple[str, ...]
    precision: Precision
    about: str
    needs: Literal["torch", "tensorflow", "onnx", "nothing"] = "onnx"
    calibration: bool = False
    int64_as_int32: bool = False
    static: bool = False
    server_only: bool = False
    ungrouped: tuple[str, ...] = ()
    operators: tuple[str, ...] = ()


class Builder(Protocol):
    """What every ``to_*.py`` offers as its module-level ``BUILDER``."""

    targets: Mapping[str, TargetInfo]
    options: type[Any]
    """Frozen dataclass of the options a user may set; every field has a default."""

    def environment(self, target: Target) -> str:
        """Name the environment whose interpreter builds and runs the target: ``main`` or one of ``environments``."""

    def available(self, target: Target) -> Skipped | None:
        """Say why the target cannot be built or run here, or None where it can. Imports nothing heavy."""

    def build(self, request: BuildRequest, options: Any, out_dir: Path) -> Built:
        """Build into the empty folder ``out_dir`` and describe what lies there.

        Raises:
            AccelError: the request cannot be met, with the remedy.
        """

    def open(self, artifact: Artifact, folder: Path, *, threads: int, mode: Mode) -> Session:
        """Load the artifact's files from ``folder`` for running.

        Args:
            threads: CPU threads the runtime may use in all.
            mode: ``latency`` for one request at a time, ``throughput`` for the runtime's own parallelism.
        """

    def triton(self, artifact: Artifact, release: str) -> TritonModel | Skipped:
        """Say how that Triton release serves the artifact."""


@runtime_checkable
class TypedBuilder(Builder, Protocol):
    """A builder whose precision is made in the ONNX file, before the build and on any machine.

    Where such a target cannot be built, the typed file is proved all the same, and a kit finishes it elsewhere.
    """

    def prepare(self, request: BuildRequest, options: Any, out_dir: Path) -> Typed:
        """Write the typed ONNX file into the empty folder ``out_dir`` and describe it; a CPU does.

        Raises:
            AccelError: the file cannot be typed, with the remedy.
        """

    def open_typed(self, typed: Typed, folder: Path, *, source: ModelSource, threads: int) -> Session:
        """Load the typed file on the CPU, every value rounded as its type says, to hold it against the gate."""


class Session(ABC):
    """A loaded model that takes and gives arrays under the client's names.

    Each of ``slots`` requests may be in flight at once: ``bind`` puts inputs into a slot, ``submit`` starts it,
    ``wait`` returns when its outputs are complete (the device is synchronised), ``read`` gives them. ``read`` may
    return views into the runtime's buffers: they are valid until the slot is submitted again.
    """

    slots: int = 1

    def __init__(self, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]) -> None:
        self.inputs = tuple(inputs)
        self.outputs = tuple(outputs)

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
        """Bind, submit, wait and read in slot 0; the arrays are copies and stay valid."""
        self.bind(fit_inputs(inputs, self.inputs))
        self.submit()
        self.wait()
        return {name: np.array(value) for name, value in self.read().items()}

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
