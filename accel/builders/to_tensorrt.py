"""TensorRT plans, in FP32, FP16, BF16, INT8 and FP8, for TensorRT 10 and 11.

The precision is made in the ONNX file (``tensorrt.typing``), where it needs no GPU; the plan is built from that file
as a strongly typed network (``tensorrt.build``), deserialised again and asked what it is (``tensorrt.engine``), and run
through ``tensorrt.session``. On a machine that cannot build plans, accel types and proves the file and leaves a kit.
"""

import functools
import re
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from accel.builders import Backend, ConvertingBuilder, Mode, TargetInfo
from accel.builders.declared import reconcile
from accel.builders.requirements import demand, missing, missing_cuda_torch, missing_gpu, old_driver, versions
from accel.builders.tensorrt import fit
from accel.builders.tensorrt.device import Device
from accel.builders.tensorrt.library import INSTALL, PACKAGES, Log, import_tensorrt, unknown_major
from accel.builders.tensorrt.options import TensorRtOptions
from accel.builders.tensorrt.session import TensorRtSession
from accel.builders.tensorrt.typing import PrecisionConvertedSession, read_report, type_onnx
from accel.core import hardware, progress
from accel.core.errors import StageError, UnavailableError
from accel.core.values import (
    Artifact,
    BuildRequest,
    Built,
    Int32Runtime,
    ModelSource,
    PrecisionConverted,
    Runtime,
    ShapeRange,
    Skipped,
    Target,
    TensorSpec,
    TritonModel,
    to_json,
)
from accel.graph import autocast

ENTRY = "model.plan"
WEIGHTS = "weights"
"""Folder of the ONNX file that a stripped plan takes its weights from."""


RUNTIME = Runtime("TensorRT", ("#008f68", "#3fc79c"))


_info = functools.partial(
    TargetInfo,
    ("cuda",),
    runtime=RUNTIME,
    prefers_int32=True,
    helpers=(autocast.ENVIRONMENT,),
)


class TensorRtBuilder(ConvertingBuilder):
    """Offers ``trt`` and its precisions on ``cuda``."""

    targets: Mapping[str, TargetInfo] = {
        "trt": _info("tf32", "TensorRT plan, FP32 with TF32 allowed"),
        "trt-fp32": _info("fp32", "TensorRT plan, FP32 with TF32 off"),
        "trt-fp16": _info("fp16", "TensorRT plan, FP16"),
        "trt-bf16": _info("bf16", "TensorRT plan, BF16"),
        "trt-int8": _info("int8", "TensorRT plan, INT8 from Q/DQ nodes", calibration=True),
        "trt-fp8": _info("fp8", "TensorRT plan, FP8 from Q/DQ nodes", calibration=True),
    }
    options: type[Any] = TensorRtOptions
    whole = MappingProxyType({"search": False})
    packages = (*PACKAGES, "polygraphy", "torch", "onnx", "onnx-ir", "onnxruntime")
    backends = (Backend("tensorrt", keeps_states=True),)
    narrows = Int32Runtime("tensorrt", wide_types=False)  # asked without a GPU it says nothing; the build is the check
    inspects = (".plan", ".engine")

    def available(self, target: Target) -> Skipped | None:
        """Ask for a GPU, TensorRT's bindings, a torch with CUDA and Polygraphy."""
        if (skipped := missing_gpu(target)) is not None:
            return skipped
        if missing("tensorrt") is not None and missing("tensorrt_bindings") is not None:
            return Skipped("the Python package tensorrt is not installed", INSTALL)
        for found, version in versions(PACKAGES).items():
            if (unknown := unknown_major(version)) is not None:
                return unknown
            cuda = re.search(r"-cu(\d+)", found)  # the name says for which CUDA it is built
            if cuda is not None and (skipped := old_driver(f"{found} {version}", f"{cuda[1]}.0")) is not None:
                return skipped
        return missing_cuda_torch() or missing("polygraphy")

    def prepare(self, request: BuildRequest, options: TensorRtOptions, out_dir: Path) -> PrecisionConverted:
        """Type the ONNX file for the target; needs no GPU.

        Raises:
            InputError: no ONNX file, or no calibration samples for INT8 and FP8.
            StageError: a library failed, or the file breaks a rule of strongly typed networks.
        """
        return type_onnx(request, self.targets[request.variant.target.name].precision, options, out_dir)

    def open_precision_converted(
        self, converted: PrecisionConverted, folder: Path, *, source: ModelSource, threads: int
    ) -> PrecisionConvertedSession:
        """Load the typed file in ONNX Runtime on the CPU.

        Raises:
            StageError: it cannot be loaded.
        """
        return PrecisionConvertedSession(folder / converted.onnx.file.path, source, threads=threads)

    def build(self, request: BuildRequest, options: TensorRtOptions, out_dir: Path) -> Built:
        """Build the plan from the typed ONNX file, or type it first where that was not done.

        Raises:
            UnavailableError: what ``available`` says, or CUDA or the driver is not fit for this TensorRT.
            InputError: as ``prepare``.
            StageError: TensorRT could not parse or build it, or the plan is not what was asked for.
        """
        demand(self.available(request.variant.target))
        trt = import_tensorrt()
        with tempfile.TemporaryDirectory(prefix="accel-typed-") as scratch:
            folder = Path(request.onnx_folder or scratch)
            report = read_report(folder)
            if report is None:
                folder = Path(scratch)
                converted = self.prepare(request, options, folder)
                report, file = converted.facts, converted.onnx.file.path
            else:
                assert request.onnx is not None
                file = request.onnx.file.path
            return build(trt, Log(trt), request, options, folder / file, report, out_dir)

    def open(self, artifact: Artifact, folder: Path, *, threads: int, mode: Mode) -> TensorRtSession:
        """Deserialise the plan on the first GPU.

        Raises:
            UnavailableError: what ``available`` says.
            StageError: the plan was built elsewhere, memory ran out, or it cannot be read.
        """
        demand(self.available(artifact.variant.target))
        trt = import_tensorrt()
        return open_plan(trt, Log(trt), artifact, folder, Device())

    def triton(self, artifact: Artifact, release: str) -> TritonModel | Skipped:
        """Serve it through the tensorrt backend, which takes a plan as it is.

        Source: tensorrt_backend README, "Command-line Options": version-compatible engines are refused without it.
        """
        if artifact.built.facts.get("weights") == "stripped":
            return Skipped(
                "Triton's tensorrt backend puts no weights into a stripped plan",
                "build it with the option weights: full",
            )
        compatible = artifact.built.facts.get("version_compatible")
        flags = ("--backend-config=tensorrt,version-compatible=true",) if compatible else ()
        return TritonModel("tensorrt", artifact.built.entry, dynamic_batching=True, server_flags=flags)

    def inspect(self, path: Path) -> dict[str, Any]:
        """Say what a plan holds; code that it may carry is not allowed to run.

        Raises:
            UnavailableError: TensorRT or a GPU is missing.
            StageError: it is not a plan of this TensorRT and GPU.
        """
        from accel.builders.tensorrt.engine import read_plan

        try:
            trt = import_tensorrt()
            facts = read_plan(trt, deserialise(trt, Log(trt), path, lean=False))
        except UnavailableError as error:
            raise UnavailableError(
                f"{path.name} is a TensorRT plan, which only TensorRT on a GPU can read: {error.message}", fix=error.fix
            ) from error
        return {
            "kind": "plan",
            "tensorrt": str(trt.__version__),
            "inputs": to_json(facts.inputs),
            "outputs": to_json(facts.outputs),
            "profile": to_json(facts.profile),
            "layers": len(facts.layers),
            "precision": {"products": dict(facts.products)},
            "device_memory_bytes": facts.device_memory_bytes,
        }


def build(
    trt: Any,
    log: Any,
    request: BuildRequest,
    options: TensorRtOptions,
    onnx: Path,
    report: Mapping[str, Any],
    out_dir: Path,
) -> Built:
    """Build the plan, read it back, and hold what it says against what was asked for.

    Args:
        trt / log: the imported package and its logger.
        onnx: the typed file; ``report`` its ``typing.json``.

    Raises:
        StageError: a tensor, a shape range or a precision of the plan is not the one asked for.
    """
    from accel.builders.tensorrt.build import build_plan, timing_file
    from accel.builders.tensorrt.engine import check_precision, read_plan

    precision = TensorRtBuilder.targets[request.variant.target.name].precision
    gpu = _gpu()
    plan = out_dir / ENTRY
    build_plan(
        trt,
        log,
        onnx,
        plan,
        profile=request.variant.profile,
        options=options,
        tf32=precision == "tf32",
        timings=timing_file(gpu["gpu"], trt.__version__) if options.timing_cache else None,
        report_progress=progress.report_progress,
    )
    if options.weights == "stripped":
        shutil.copytree(onnx.parent, out_dir / WEIGHTS, ignore=shutil.ignore_patterns("value.json"))
    engine = deserialise(trt, log, plan, lean=options.version_compatible)
    if options.weights == "stripped":
        _refit(trt, log, engine, out_dir / WEIGHTS / onnx.name)
    facts = read_plan(trt, engine, products=report.get("products", ()))
    wanted = {name: ShapeRange(*map(tuple, (s.min, s.opt, s.max))) for name, s in request.variant.profile.items()}
    if facts.profile != wanted:
        raise StageError(f"the plan serves the shapes {dict(facts.profile)}, expected {wanted}")
    unknown = check_precision(facts, precision, report.get("kept", ()))
    return Built(
        ENTRY,
        _contract(facts.inputs, request.source.inputs, what="input"),
        _contract(facts.outputs, request.source.outputs, what="output"),
        precision,
        {
            "tensorrt": trt.__version__,
            **gpu,
            "hardware_compatibility": options.hardware_compatibility,
            "version_compatible": options.version_compatible,
            "weights": options.weights,
            "weight_streaming": options.weight_streaming,
            "cuda_graph": options.cuda_graph,
            "layers": len(facts.layers),
            "products": dict(facts.products),
            "unread_products": list(unknown),
            "kept": report.get("kept"),
            "device_memory_bytes": facts.device_memory_bytes,
        },
        {"tensorrt": trt.__version__} | versions(["polygraphy", "torch"]),
    )


def deserialise(trt: Any, log: Any, plan: Path, *, lean: bool) -> Any:
    """Load a plan.

    Args:
        lean: whether it carries the runtime of its own TensorRT version, which is code that must be allowed to run.

    Raises:
        UnavailableError: CUDA does not start, or the driver is too old.
        StageError: it is not a plan of this TensorRT and GPU.
    """
    from accel.builders.tensorrt.build import create

    runtime = create(lambda: trt.Runtime(log.logger), log, "TensorRT's runtime cannot be made")
    if lean:
        runtime.engine_host_code_allowed = True
    return create(lambda: runtime.deserialize_cuda_engine(plan.read_bytes()), log, f"{plan.name} cannot be loaded")


def open_plan(trt: Any, log: Any, artifact: Artifact, folder: Path, device: Any) -> TensorRtSession:
    """Load an artifact's plan as a session on ``device``.

    Raises:
        StageError: it was built elsewhere, memory ran out, or it cannot be read.
    """
    from accel.builders.tensorrt.engine import read_plan

    facts = artifact.built.facts
    _fits_here(trt, facts)
    engine = deserialise(trt, log, folder / artifact.built.entry, lean=bool(facts.get("version_compatible")))
    if facts.get("weights") == "stripped":
        onnx = next((folder / WEIGHTS).glob("*.onnx"), folder / WEIGHTS)
        _refit(trt, log, engine, onnx)
    if facts.get("weight_streaming"):
        engine.weight_streaming_budget_v2 = engine.get_weight_streaming_automatic_budget()
    return TensorRtSession(
        artifact.built.inputs,
        artifact.built.outputs,
        profile=artifact.variant.profile,
        log=log,
        engine=engine,
        precision=read_plan(trt, engine).precision,
        device=device,
        graph=bool(facts.get("cuda_graph")),
    )


def _refit(trt: Any, log: Any, engine: Any, onnx: Path) -> None:
    """Put the weights of the ONNX file into a stripped plan.

    Raises:
        StageError: they do not fit the plan.
    """
    from accel.builders.tensorrt.build import create

    refitter = create(lambda: trt.Refitter(engine, log.logger), log, "the stripped plan cannot be refitted")
    parser = create(lambda: trt.OnnxParserRefitter(refitter, log.logger), log, "the weights cannot be read")
    if not parser.refit_from_file(str(onnx)) or not refitter.refit_cuda_engine():
        raise log.failure(f"the weights of {onnx.name} do not fit the stripped plan")


def _fits_here(trt: Any, facts: Mapping[str, Any]) -> None:
    gpu = _gpu()
    why = fit.version_mismatch(facts, trt.__version__) or fit.gpu_mismatch(facts, gpu["compute_capability"])
    if why is not None:
        raise StageError(f"the plan was built elsewhere: {why}", fix=fit.FIX)


def _gpu() -> dict[str, str]:
    """Return what a plan is tied to, besides TensorRT: the GPU's model and compute capability, and the driver."""
    found = hardware.detect().gpus
    if not found:
        return {"gpu": "unknown", "compute_capability": "", "driver": ""}
    return {"gpu": found[0].name, "compute_capability": found[0].compute_capability, "driver": found[0].driver}


def _contract(found: tuple[TensorSpec, ...], promised: tuple[TensorSpec, ...], *, what: str) -> tuple[TensorSpec, ...]:
    """Return what the plan declares, under the client's axis names; dtypes must be the client's already.

    Raises:
        StageError: a name, a size or a dtype differs.
    """
    specs = reconcile(found, promised, what=what)
    dtypes = {spec.name: spec.dtype for spec in promised}
    for spec in specs:
        if spec.dtype != dtypes[spec.name]:
            raise StageError(
                f"{what} {spec.name!r} of the plan is {spec.dtype}, and clients were promised {dtypes[spec.name]}"
            )
    return specs


BUILDER = TensorRtBuilder()
