"""Programs and packages of torch: how they are made of a source, and opened.

Imported inside functions, as everything that imports torch at its top.
"""

import contextlib
import re
import threading
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from accel.builders import Mode, Session
from accel.builders.torch_device import SLOTS, TorchDeviceSession, failure, use_cuda
from accel.core import gpu
from accel.core.errors import AccelError, InputError, StageError, first_line
from accel.core.feeds import Feed
from accel.core.values import Artifact, BuildRequest, Precision, TensorSpec

if TYPE_CHECKING:
    from accel.exporters.positional import Positional

_PACKED = re.compile(rb"aoti_torch_cpu_\w*(?:linear|convolution)_pointwise\w*\(")
_SHARED_RUNTIME = {"aot_inductor.custom_op_libs": [":libstdc++.so.6"]}
"""Links libstdc++ by its file name: some compilers link it statically, and the second copy in one process ends it by
SIGSEGV, in the regular expression by which torch's own code reads the device's name."""
_SHORT = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16"}


def write(request: BuildRequest, precision: Precision, path: Path, *, max_autotune: bool) -> dict[str, Any]:
    """Export the source at the variant's precision and shapes; for ``aoti`` compile it.

    Returns:
        What a reader should know.

    Raises:
        InputError: the source has no torch module (an ONNX file).
        StageError: torch could not export or compile it.
    """
    target = request.variant.target
    torch.set_num_threads(request.threads)
    device = use_cuda() if target.device == "cuda" else torch.device("cpu")
    program = _export(request, precision, device)
    facts: dict[str, Any] = {"parameters": _parameter_dtypes(program)}
    try:
        if target.name.startswith("aoti"):
            # The thread count is read when the package runs: it must suit the server, not this machine.
            # Frozen weights are laid out for oneDNN's products, which takes longer to build and less to run.
            # Where gradients are on, Inductor leaves them as they are and says nothing.
            frozen = device.type == "cpu"
            configs = {"cpp.dynamic_threads": True, "max_autotune": max_autotune, "freezing": frozen, **_SHARED_RUNTIME}
            with torch.no_grad():
                torch._inductor.aoti_compile_and_package(program, package_path=str(path), inductor_configs=configs)
            facts |= {"compiled_for": _compiled_for(device), "max_autotune": max_autotune, "frozen": frozen}
            facts["packed_products"] = _packed_products(path)
        else:
            torch.export.save(program, str(path))
    except AccelError:
        raise
    except Exception as error:
        if gpu.ran_out_of_memory(error):
            raise StageError(
                f"memory ran out while {target} was built: {first_line(error)}",
                fix="free the GPU, or use smaller shapes (--max-shape)",
            ) from error
        raise StageError(
            f"torch could not write {target}: {first_line(error)}", fix="the log has the operator that failed"
        ) from error
    return facts


def open_session(artifact: Artifact, folder: Path, *, threads: int, mode: Mode) -> Session:
    """Load the program or the package; on CUDA in throughput mode two requests may be in flight.

    Raises:
        InputError: the program's file holds pickled objects, or is none.
    """
    target, built, path = artifact.variant.target, artifact.built, folder / artifact.built.entry
    slots = SLOTS if target.device == "cuda" and mode == "throughput" else 1
    device = use_cuda() if target.device == "cuda" else torch.device("cpu")
    call: Callable[..., Any]
    if target.name.startswith("aoti"):
        from torch.export.pt2_archive._package import AOTICompiledModel

        # `torch._inductor.aoti_load_package` does the same after it has compiled a program for each instruction set and
        # loaded ten of them, each in a process with torch's libraries, to warn where the package is another machine's:
        # 14 s at first, and on a machine with CUDA 45 s in every process.
        call = AOTICompiledModel(torch._C._aoti.AOTIModelPackageLoader(str(path), "model", False, slots, -1))
        dtypes = built.facts["parameters"]
    else:
        from accel.exporters.exported import read_program

        program = read_program(path)
        call, dtypes = program.module(check_guards=not _recurrent(program)), _parameter_dtypes(program)
    # What most parameters have; a model without parameters computes in float32.
    precision = _SHORT.get(max(dtypes, key=lambda d: dtypes[d], default="float32"), "fp32")
    if target.device == "cuda":
        return TorchDeviceSession(built.inputs, built.outputs, call, precision, device=device, slots=slots)
    return TorchSession(built.inputs, built.outputs, call, precision, threads)


_SETTING = threading.Lock()


@contextlib.contextmanager
def _threads(count: int) -> Iterator[None]:
    """Compute with so many threads, and leave the process its own number: others use torch in it, too."""
    if torch.get_num_threads() == count:
        yield
        return
    with _SETTING:
        others = torch.get_num_threads()
        torch.set_num_threads(count)
        try:
            yield
        finally:
            torch.set_num_threads(others)


class TorchSession(Session):
    """A callable that takes tensors in the order of the inputs and returns a tuple in the order of the outputs."""

    fresh = any_mode = True

    def __init__(
        self,
        inputs: Sequence[TensorSpec],
        outputs: Sequence[TensorSpec],
        call: Callable[..., Sequence[torch.Tensor]],
        precision: str,
        threads: int,
    ) -> None:
        super().__init__(inputs, outputs)
        self._threads = threads
        self._call: Callable[..., Sequence[torch.Tensor]] | None = call
        self._precision = precision
        self._bound: list[torch.Tensor] = []
        self._results: Sequence[torch.Tensor] = ()

    def bind(self, inputs: Feed, *, slot: int = 0) -> None:
        """Wrap the arrays; only a read-only one is copied, since torch has no read-only tensors."""
        arrays = (inputs[s.name] for s in self.inputs)
        self._bound = [torch.from_numpy(a if a.flags.writeable else a.copy()) for a in arrays]

    def submit(self, *, slot: int = 0) -> None:
        """Run.

        Raises:
            StageError: torch refused the inputs (a shape outside the profile the program was exported for).
        """
        if self._call is None:
            raise StageError("the session is closed")
        try:
            with torch.inference_mode(), _threads(self._threads):
                self._results = self._call(*self._bound)
        except (AssertionError, RuntimeError) as error:
            shapes = {s.name: tuple(t.shape) for s, t in zip(self.inputs, self._bound, strict=True)}
            raise failure(error, shapes) from error

    def read(self, *, slot: int = 0) -> dict[str, np.ndarray]:
        """Return the outputs as arrays over torch's memory."""
        return {s.name: r.numpy() for s, r in zip(self.outputs, self._results, strict=True)}

    def precision(self) -> str:
        """Return the dtype of the parameters; eager torch and AOTInductor compute in it."""
        return self._precision

    def close(self) -> None:
        """Drop the program and its weights."""
        self._call, self._bound, self._results = None, [], ()


def _packed_products(package: Path) -> int:
    """Count the calls of products and convolutions whose weights are laid out for oneDNN, in what was compiled."""
    with zipfile.ZipFile(package) as archive:
        wrappers = [archive.read(name) for name in archive.namelist() if name.endswith(".wrapper.cpp")]
    return sum(len(_PACKED.findall(wrapper)) for wrapper in wrappers)


def _compiled_for(device: torch.device) -> str:
    if device.type != "cuda":
        return "this machine's CPU (-march=native)"
    major, minor = torch.cuda.get_device_capability(device)
    return f"{torch.cuda.get_device_name(device)}, compute capability {major}.{minor}"


def _export(request: BuildRequest, precision: Precision, device: torch.device) -> torch.export.ExportedProgram:
    from torch.export.passes import move_to_device_pass

    from accel import exporters
    from accel.exporters import from_torch

    source = request.source
    module = exporters.load(source).module
    if module is None:
        raise InputError(
            f"{source.name} is an ONNX file and {request.variant.target} starts from a torch module",
            fix="choose targets that start from ONNX: ort, openvino",
        )
    inner = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(precision)
    traced: torch.nn.Module = module if inner is None else _narrowed(module, inner)
    shapes = from_torch.trace_shapes(source, request.variant.profile)
    try:
        with torch.no_grad(), from_torch.whole_recurrent_layers():
            # Traced on the CPU for any device: a kernel's own needs would become limits of the shapes. On CUDA the
            # padding of an attention mask ties the sequence's length to multiples of 8.
            program = torch.export.export(
                traced,
                tuple(from_torch.example_inputs(source, shapes)),
                dynamic_shapes=from_torch.dynamic_shapes(source, request.variant.profile),
            )
    except AccelError:
        raise
    except Exception as error:
        raise from_torch.unexportable(f"torch.export could not trace {source.name}", error) from error
    return program if device.type == "cpu" else move_to_device_pass(program, str(device))


def _narrowed(module: "Positional", inner: torch.dtype) -> torch.nn.Module:
    """Make a module that computes in another float type and takes and gives float32."""

    class InnerPrecision(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.module = module.in_precision(inner)

        def forward(self, *args: torch.Tensor) -> tuple[torch.Tensor, ...]:
            cast = (a.to(inner) if a.is_floating_point() else a for a in args)
            return tuple(r.float() if r.is_floating_point() else r for r in self.module(*cast))

    return InnerPrecision().eval()


def _recurrent(program: torch.export.ExportedProgram) -> bool:
    """Say whether the program holds an LSTM or GRU layer.

    Tracing one leaves a guard that refuses a batch of one, which the layer itself, kept whole, takes. The ranges of
    the sizes are checked all the same. Source: torch/_refs, ``_reshape_view_helper`` (2.13).
    """
    return any(str(node.target).startswith(("aten.lstm", "aten.gru")) for node in program.graph.nodes)


def _parameter_dtypes(program: torch.export.ExportedProgram) -> dict[str, int]:
    """Count the parameters' elements by dtype, floating point only."""
    counts: Counter[str] = Counter()
    for value in program.state_dict.values():
        if value.is_floating_point():
            counts[str(value.dtype).removeprefix("torch.")] += value.numel()
    return dict(counts)
