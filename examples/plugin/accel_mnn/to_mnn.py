"""MNN in float32, converted from the ONNX file.

An MNN file keeps the names of inputs and outputs and the element types of inputs, and nothing of its outputs' shapes;
those are read from a run. Integers of every width are int32 inside it, and so are booleans.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from accel.builders import Builder, Mode, Session, TargetInfo
from accel.builders.declared import reconcile
from accel.builders.requirements import demand, missing, versions
from accel.core.errors import InputError, SampleError, StageError, UsageError
from accel.core.feeds import Feed, read_feeds
from accel.core.values import Artifact, BuildRequest, Built, Runtime, Skipped, Target, TensorSpec, TritonModel

ENTRY = "model.mnn"


@dataclass(frozen=True, slots=True)
class MnnOptions:
    """``optimize``: the converter's level; 1 is right for every input, 2 for most, and the gate decides."""

    optimize: int = 1


class MnnBuilder(Builder):
    """Offers ``mnn``."""

    targets: Mapping[str, TargetInfo] = {
        "mnn": TargetInfo(("cpu",), "fp32", "MNN, float32", Runtime("MNN", ("#7a5195", "#b794d6")), int64_as_int32=True)
    }
    options: type[Any] = MnnOptions
    packages = ("MNN",)

    def available(self, target: Target) -> Skipped | None:
        """Ask for MNN."""
        return missing("MNN")

    def build(self, request: BuildRequest, options: MnnOptions, out_dir: Path) -> Built:
        """Convert the ONNX file and run the result once, at the opt shape, to see what its outputs are.

        Raises:
            UnavailableError: MNN is not installed.
            UsageError: an unknown level.
            InputError: there is no ONNX file.
            StageError: MNN could not convert the file or run the result, or lost a name or a size.
        """
        demand(self.available(request.variant.target))
        if options.optimize not in (1, 2):
            raise UsageError(f"optimize is {options.optimize}, expected 1 or 2")
        if request.onnx is None or request.onnx_folder is None:
            raise InputError(f"{request.variant.target} starts from ONNX and the source was not exported")
        import _tools  # the converter itself: its front end MNN.tools.mnnconvert runs pip and reports to a web service

        onnx = Path(request.onnx_folder) / request.onnx.file.path
        said = f"mnnconvert -f ONNX --bizCode accel --optimizeLevel {options.optimize}".split()
        _tools.mnnconvert([*said, "--modelFile", str(onnx), "--MNNModel", str(out_dir / ENTRY)])
        if not (out_dir / ENTRY).exists():  # it returns True either way
            raise StageError(f"MNN could not convert {onnx.name}: the log says why")
        inputs, outputs = request.source.inputs, request.source.outputs
        found = _load(out_dir / ENTRY, [], [], threads=request.threads).get_info()  # asked for names, it echoes them
        if sorted(found["outputNames"]) != sorted(s.name for s in outputs):
            raise StageError(f"the built file has the outputs {found['outputNames']}")
        session = MnnSession(inputs, outputs, out_dir / ENTRY, threads=request.threads)
        feed = read_feeds(Path(request.samples_folder) / request.samples.shapes.path)["opt"]
        return Built(
            ENTRY,
            reconcile(_declared_inputs(found, inputs), inputs, what="input"),
            reconcile(session.declared_outputs(feed), outputs, what="output"),
            "fp32",
            {"optimize": options.optimize},
            versions(["MNN"]),
        )

    def open(self, artifact: Artifact, folder: Path, *, threads: int, mode: Mode) -> "MnnSession":
        """Load the file; MNN runs one request at a time, on all threads, in either mode.

        Raises:
            UnavailableError: MNN is not installed.
            StageError: the file cannot be read.
        """
        demand(missing("MNN"))
        built = artifact.built
        return MnnSession(built.inputs, built.outputs, folder / built.entry, threads=threads)

    def triton(self, artifact: Artifact, release: str) -> TritonModel | Skipped:
        """Serve it through the Python backend, in every release: Triton has none for MNN."""
        return TritonModel("python", artifact.built.entry, dynamic_batching=True)


class MnnSession(Session):
    """A loaded module. It plans its memory anew when a shape changes."""

    def __init__(
        self, inputs: tuple[TensorSpec, ...], outputs: tuple[TensorSpec, ...], file: Path, *, threads: int
    ) -> None:
        super().__init__(inputs, outputs)
        import MNN.expr

        self._mnn = MNN.expr
        names = [s.name for s in inputs], [s.name for s in outputs]
        self._module = _load(file, *names, threads=threads)
        self._ports = [(p.dtype, _held(p)) for p in self._module.get_info()["inputs"]]
        self._feed: list[Any] = []
        self._answer: list[Any] = []

    def bind(self, inputs: Feed, *, slot: int = 0) -> None:
        """Copy the arrays into variables of MNN, integers as int32.

        Raises:
            SampleError: an integer does not fit.
        """
        self._feed = []
        for spec, (kind, dtype) in zip(self.inputs, self._ports, strict=True):
            value = inputs[spec.name]
            fitted = np.ascontiguousarray(value, dtype)
            if value.dtype.itemsize > dtype.itemsize and value.dtype.kind in "iu" and not np.array_equal(fitted, value):
                raise SampleError(f"input {spec.name!r} holds a value beyond {dtype}, in which MNN computes")
            self._feed.append(self._mnn.const(fitted, list(fitted.shape), self._mnn.NCHW, kind))

    def submit(self, *, slot: int = 0) -> None:
        """Run the request.

        Raises:
            StageError: the session is closed, or MNN failed.
        """
        if self._module is None:
            raise StageError("the session is closed")
        self._answer = self._module.forward(self._feed)
        if len(self._answer) != len(self.outputs):  # MNN raises nothing: it prints, and answers an empty list
            raise StageError("MNN failed on the request: the log says why")

    def read(self, *, slot: int = 0) -> dict[str, np.ndarray]:
        """Return views of the outputs, or copies in the client's dtype where MNN's is another."""
        found = zip(self.outputs, self._answer, strict=True)
        return {s.name: np.asarray(value.read()).astype(s.dtype, copy=False) for s, value in found}

    def declared_outputs(self, feed: Feed) -> list[TensorSpec]:
        """Run a feed and return the outputs as they came; an axis that the client knows by name is open.

        Raises:
            StageError: MNN failed, or an element type is not the one in which MNN holds the client's.
        """
        self.run(feed)
        found = [np.asarray(value.read()) for value in self._answer]
        return [
            _spec(s, a.dtype, tuple("?" if isinstance(d, str) else n for d, n in zip(s.dims, a.shape, strict=True)))
            for s, a in zip(self.outputs, found, strict=True)
        ]

    def precision(self) -> str:
        """Return fp32: the file's weights, and what ``precision: high`` allows; MNN reports no precision itself."""
        return "fp32"

    def close(self) -> None:
        """Drop the module and its variables."""
        self._feed, self._answer, self._module = [], [], None


def _load(file: Path, inputs: Sequence[str], outputs: Sequence[str], *, threads: int) -> Any:
    """Load a module that takes and gives these names in this order, or the file's own where none are named.

    Raises:
        StageError: the file cannot be read or lacks an output.
    """
    import MNN.nn

    runtime = MNN.nn.create_runtime_manager(({"backend": "CPU", "precision": "high", "numThread": threads},))
    try:
        return MNN.nn.load_module_from_file(str(file), list(inputs), list(outputs), runtime_manager=runtime)
    except (SystemError, RuntimeError) as error:
        raise StageError(f"MNN could not load {file.name}: the log says why") from error


def _held(port: Any) -> np.dtype:
    """Return the element type of an input of the file."""
    from MNN import expr

    return np.dtype({expr.float: "float32", expr.int: "int32", expr.uint8: "uint8"}[port.dtype])


def _declared_inputs(info: Mapping[str, Any], promised: Sequence[TensorSpec]) -> list[TensorSpec]:
    """Return the inputs of the file. Sizes are open: the converter writes 1 for a dynamic axis that leads.

    Raises:
        StageError: a name is missing or new, or an element type is not the one in which MNN holds the client's.
    """
    ports = dict(zip(info["inputNames"], info["inputs"], strict=True))
    if sorted(ports) != sorted(s.name for s in promised):
        raise StageError(f"the built file has the inputs {sorted(ports)}")
    return [_spec(s, _held(ports[s.name]), ("?",) * len(ports[s.name].shape)) for s in promised]


def _spec(promised: TensorSpec, found: np.dtype, dims: tuple[int | str, ...]) -> TensorSpec:
    """Return what the client sees of a tensor that MNN holds as ``found``."""
    held = "int32" if promised.dtype in ("int64", "bool") else promised.dtype
    if found != held:
        raise StageError(f"{promised.name!r} is {found} in the built file, expected {held}")
    return TensorSpec(promised.name, promised.dtype, dims)


BUILDER = MnnBuilder()
