"""PyTorch: the source itself run eagerly (the baseline), and AOTInductor packages, on a CPU and on CUDA.

The eager artifact is a ``torch.export`` program, so that a server needs torch and nothing of the user's code; it runs
the same operators as the live module. In the bf16 and fp16 variants the whole program computes in that type and casts
at its inputs and outputs: clients give and get float32. A package is native code for the CPU or GPU it was compiled
on; TF32 is off.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from accel.builders import Backend, Builder, Mode, Session, TargetInfo
from accel.builders.declared import static_specs
from accel.builders.requirements import demand, missing, missing_cuda_torch, missing_gpu, missing_program, versions
from accel.builders.torch_device import SLOTS, Call, TorchDeviceSession, failure, first_line, use_cuda
from accel.core import gpu
from accel.core.errors import AccelError, InputError, StageError
from accel.core.feeds import Feed
from accel.core.values import (
    Artifact,
    BuildRequest,
    Built,
    Precision,
    Runtime,
    Skipped,
    Target,
    TensorSpec,
    TritonModel,
)

if TYPE_CHECKING:
    import torch

ENTRY = "model.pt2"
_SHORT = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16"}


@dataclass(frozen=True, slots=True)
class TorchOptions:
    """``max_autotune``: let AOTInductor try several kernels for each operation (minutes instead of seconds)."""

    max_autotune: bool = False


TORCH = Runtime("PyTorch", ("#6f7780", "#a3abb4"))
AOTI = Runtime("AOTInductor", ("#b25e93", "#d98bbb"))
PYTORCH = Backend("pytorch", batches=False, openmp=True)
"""AOTInductor packages. There is no batching yet, and no parameter for threads.

Source: pytorch_backend README at r26.05, warning below "AOT Inductor Support"; src/pt2/model_state.cc, ParseParameters.
"""


def _info(devices: tuple[str, ...], precision: Precision, about: str, runtime: Runtime, **more: Any) -> TargetInfo:
    return TargetInfo(devices, precision, about, runtime, needs="torch", **more)


def _compiled(devices: tuple[str, ...], precision: Precision, about: str, **more: Any) -> TargetInfo:
    return _info(devices, precision, about, AOTI, programs=("g++",), **more)


class TorchBuilder(Builder):
    """Offers ``torch`` and ``aoti`` in three precisions."""

    targets: Mapping[str, TargetInfo] = {
        "torch": _info(("cpu", "cuda"), "fp32", "the source itself, eager: the baseline", TORCH, baseline="torch"),
        "torch-bf16": _info(("cpu", "cuda"), "bf16", "the source, eager, in bfloat16", TORCH),
        "torch-fp16": _info(("cuda",), "fp16", "the source, eager, in float16", TORCH),
        "aoti": _compiled(("cpu", "cuda"), "fp32", "AOTInductor package"),
        "aoti-bf16": _compiled(("cpu", "cuda"), "bf16", "AOTInductor package in bfloat16", ungrouped=("cpu",)),
        "aoti-fp16": _compiled(("cuda",), "fp16", "AOTInductor package in float16"),
    }
    options: type[Any] = TorchOptions
    packages = ("torch",)
    backends = (PYTORCH,)

    def available(self, target: Target) -> Skipped | None:
        """Ask for torch, a GPU and a build that can use it for ``cuda``, and for what AOTInductor compiles with."""
        skipped = missing_gpu(target) or missing("torch")
        if skipped is None and target.device == "cuda":
            skipped = missing_cuda_torch() or (missing("triton") if target.name.startswith("aoti") else None)
        return skipped or missing_program(*self.targets[target.name].programs)

    def build(self, request: BuildRequest, options: TorchOptions, out_dir: Path) -> Built:
        """Export the source at the variant's precision and shapes; for ``aoti`` compile it.

        Raises:
            UnavailableError: what ``available`` says.
            InputError: the source has no torch module (an ONNX file).
            StageError: torch could not export or compile it.
        """
        target = request.variant.target
        demand(self.available(target))
        import torch

        torch.set_num_threads(request.threads)
        precision = self.targets[target.name].precision
        inputs, outputs = static_specs(request)
        device = use_cuda() if target.device == "cuda" else torch.device("cpu")
        program = _export(request, precision, device)
        path = out_dir / ENTRY
        facts: dict[str, Any] = {"parameters": _parameter_dtypes(program)}
        try:
            if target.name.startswith("aoti"):
                # The thread count is read when the package runs: it must suit the server, not this machine.
                configs = {"cpp.dynamic_threads": True, "max_autotune": options.max_autotune}
                torch._inductor.aoti_compile_and_package(program, package_path=str(path), inductor_configs=configs)
                facts |= {"compiled_for": _compiled_for(device), "max_autotune": options.max_autotune}
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
        return Built(ENTRY, inputs, outputs, precision, facts, versions(["torch"]))

    def open(self, artifact: Artifact, folder: Path, *, threads: int, mode: Mode) -> Session:
        """Load the program or the package; on CUDA in throughput mode two requests may be in flight.

        Raises:
            UnavailableError: what ``available`` says.
            InputError: the program's file holds pickled objects, or is none.
        """
        target = artifact.variant.target
        demand(missing_gpu(target) or missing("torch"))
        import torch

        torch.set_num_threads(threads)
        path = folder / artifact.built.entry
        slots = SLOTS if target.device == "cuda" and mode == "throughput" else 1
        device = use_cuda() if target.device == "cuda" else torch.device("cpu")
        if target.name.startswith("aoti"):
            call = _load_package(path, runners=slots) if slots > 1 else torch._inductor.aoti_load_package(str(path))
            dtypes = artifact.built.facts["parameters"]
        else:
            from accel.exporters.exported import read_program

            program = read_program(path)
            call, dtypes = program.module(check_guards=not _recurrent(program)), _parameter_dtypes(program)
        built, precision = artifact.built, _narrowest(dtypes)
        if target.device == "cuda":
            return TorchDeviceSession(built.inputs, built.outputs, call, precision, device=device, slots=slots)
        return TorchSession(built.inputs, built.outputs, call, precision)

    def triton(self, artifact: Artifact, release: str) -> TritonModel | Skipped:
        """Serve a program through the Python backend, and a package through the pytorch backend.

        Source: pytorch_backend README, "AOT Inductor Support (Beta)": tensors are addressed by the call specification,
        and there is no batching yet (the warning there, at r26.05).
        """
        built = artifact.built
        if not artifact.variant.target.name.startswith("aoti"):
            return TritonModel("python", built.entry, dynamic_batching=True)
        return TritonModel(
            "pytorch",
            built.entry,
            dynamic_batching=False,
            input_names={s.name: f"ARGS[{i}]" for i, s in enumerate(built.inputs)},
            output_names={s.name: f"RESULT[{i}]" for i, s in enumerate(built.outputs)},
            platform="torch_aoti",
        )


class TorchSession(Session):
    """A callable that takes tensors in the order of the inputs and returns a tuple in the order of the outputs."""

    fresh = True

    def __init__(
        self,
        inputs: Sequence[TensorSpec],
        outputs: Sequence[TensorSpec],
        call: Callable[..., Sequence["torch.Tensor"]],
        precision: str,
    ) -> None:
        super().__init__(inputs, outputs)
        self._call: Callable[..., Sequence[torch.Tensor]] | None = call
        self._precision = precision
        self._bound: list[torch.Tensor] = []
        self._results: Sequence[torch.Tensor] = ()

    def bind(self, inputs: Feed, *, slot: int = 0) -> None:
        """Wrap the arrays; only a read-only one is copied, since torch has no read-only tensors."""
        import torch

        arrays = (inputs[s.name] for s in self.inputs)
        self._bound = [torch.from_numpy(a if a.flags.writeable else a.copy()) for a in arrays]

    def submit(self, *, slot: int = 0) -> None:
        """Run.

        Raises:
            StageError: torch refused the inputs (a shape outside the profile the program was exported for).
        """
        import torch

        if self._call is None:
            raise StageError("the session is closed")
        try:
            with torch.inference_mode():
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


def _load_package(path: Path, *, runners: int) -> Call:
    """Load a package of which several requests may run at once."""
    from torch._inductor.package import load_package

    call: Call = load_package(str(path), num_runners=runners)
    return call


def _compiled_for(device: "torch.device") -> str:
    import torch

    if device.type != "cuda":
        return "this machine's CPU (-march=native)"
    major, minor = torch.cuda.get_device_capability(device)
    return f"{torch.cuda.get_device_name(device)}, compute capability {major}.{minor}"


def _export(request: BuildRequest, precision: Precision, device: "torch.device") -> "torch.export.ExportedProgram":
    import torch

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
    traced: torch.nn.Module = (module if inner is None else _narrowed(module, inner)).to(device)
    shapes = from_torch.trace_shapes(source, request.variant.profile)
    try:
        with torch.no_grad(), from_torch.whole_recurrent_layers():
            return torch.export.export(
                traced,
                tuple(t.to(device) for t in from_torch.example_inputs(source, shapes)),
                dynamic_shapes=from_torch.dynamic_shapes(source, request.variant.profile),
            )
    except AccelError:
        raise
    except Exception as error:
        raise from_torch.unexportable(f"torch.export could not trace {source.name}", error) from error


def _narrowed(module: "torch.nn.Module", inner: "torch.dtype") -> "torch.nn.Module":
    """Make a module that computes in another float type and takes and gives float32."""
    import torch

    class Narrowed(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.module = module.to(inner)

        def forward(self, *args: torch.Tensor) -> tuple[torch.Tensor, ...]:
            cast = (a.to(inner) if a.is_floating_point() else a for a in args)
            return tuple(r.float() if r.is_floating_point() else r for r in self.module(*cast))

    return Narrowed().eval()


def _recurrent(program: "torch.export.ExportedProgram") -> bool:
    """Say whether the program holds an LSTM or GRU layer.

    Tracing one leaves a guard that refuses a batch of one, which the layer itself, kept whole, takes. The ranges of
    the sizes are checked all the same. Source: torch/_refs, ``_reshape_view_helper`` (2.13).
    """
    return any(str(node.target).startswith(("aten.lstm", "aten.gru")) for node in program.graph.nodes)


def _parameter_dtypes(program: "torch.export.ExportedProgram") -> dict[str, int]:
    """Count the parameters' elements by dtype, floating point only."""
    counts: Counter[str] = Counter()
    for value in program.state_dict.values():
        if value.is_floating_point():
            counts[str(value.dtype).removeprefix("torch.")] += value.numel()
    return dict(counts)


def _narrowest(dtypes: dict[str, int]) -> str:
    """Name the precision that most parameters have; a model without parameters computes in float32."""
    return _SHORT.get(max(dtypes, key=lambda d: dtypes[d], default="float32"), "fp32")


BUILDER = TorchBuilder()
