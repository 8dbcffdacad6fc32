"""PyTorch: the source itself run eagerly (the baseline), and AOTInductor packages, on a CPU and on CUDA.

The eager artifact is a ``torch.export`` program, so that a server needs torch and nothing of the user's code; it runs
the same operators as the live module. In the bf16 and fp16 variants the whole program computes in that type and casts
at its inputs and outputs: clients give and get float32. A package is native code for the CPU or GPU it was compiled
on; TF32 is off.
"""

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from accel.builders import Backend, Builder, Mode, Session, TargetInfo
from accel.builders.declared import static_specs
from accel.builders.requirements import (
    demand,
    missing,
    missing_bf16,
    missing_cuda_torch,
    missing_gpu,
    missing_program,
    versions,
)
from accel.core.values import (
    Artifact,
    BuildRequest,
    Built,
    Runtime,
    Skipped,
    Target,
    TritonModel,
)

ENTRY = "model.pt2"


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


_eager = functools.partial(TargetInfo, runtime=TORCH, needs="torch")
_compiled = functools.partial(TargetInfo, runtime=AOTI, needs="torch", programs=("g++",))


class TorchBuilder(Builder):
    """Offers ``torch`` and ``aoti`` in three precisions."""

    targets: Mapping[str, TargetInfo] = {
        "torch": _eager(("cpu", "cuda"), "fp32", "the source itself, eager: the baseline", baseline="torch"),
        "torch-bf16": _eager(("cpu", "cuda"), "bf16", "the source, eager, in bfloat16"),
        "torch-fp16": _eager(("cuda",), "fp16", "the source, eager, in float16"),
        "aoti": _compiled(("cpu", "cuda"), "fp32", "AOTInductor package", comes_last=("cpu",)),
        "aoti-bf16": _compiled(("cpu", "cuda"), "bf16", "AOTInductor package in bfloat16", ungrouped=("cpu",)),
        "aoti-fp16": _compiled(("cuda",), "fp16", "AOTInductor package in float16"),
    }
    options: type[Any] = TorchOptions
    packages = ("torch",)
    backends = (PYTORCH,)

    def available(self, target: Target) -> Skipped | None:
        """Ask for torch, a GPU and a build that can use it for ``cuda``, and for what AOTInductor compiles with."""
        skipped = missing_gpu(target) or missing("torch") or missing_bf16(target, self.targets[target.name].precision)
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
        from accel.builders import torch_program

        precision = self.targets[target.name].precision
        facts = torch_program.write(request, precision, out_dir / ENTRY, max_autotune=options.max_autotune)
        return Built(ENTRY, *static_specs(request), precision, facts, versions(["torch"]))

    def open(self, artifact: Artifact, folder: Path, *, threads: int, mode: Mode) -> Session:
        """Load the program or the package; on CUDA in throughput mode two requests may be in flight.

        Raises:
            UnavailableError: what ``available`` says.
            InputError: the program's file holds pickled objects, or is none.
        """
        target = artifact.variant.target
        demand(missing_gpu(target) or missing("torch"))
        from accel.builders import torch_program

        return torch_program.open_session(artifact, folder, threads=threads, mode=mode)

    def triton(self, artifact: Artifact, release: str) -> TritonModel | Skipped:
        """Serve a program through the Python backend, and a package through the pytorch backend.

        Source: pytorch_backend README, "AOT Inductor Support (Beta)": tensors are addressed by the call specification,
        and there is no batching yet (the warning there, at r26.05).
        """
        built = artifact.built
        if not artifact.variant.target.name.startswith("aoti"):
            return TritonModel.in_python(artifact)
        return TritonModel(
            "pytorch",
            built.entry,
            dynamic_batching=False,
            input_names={s.name: f"ARGS[{i}]" for i, s in enumerate(built.inputs)},
            output_names={s.name: f"RESULT[{i}]" for i, s in enumerate(built.outputs)},
            platform="torch_aoti",
        )


BUILDER = TorchBuilder()
