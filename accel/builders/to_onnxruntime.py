"""ONNX Runtime on CPU (fused FP32, static and dynamic INT8, its OpenVINO provider) and on CUDA and TensorRT.

The CPU and CUDA providers get a graph in the runtime's own fused operators where fusion applies and leaves the answers
alone; the OpenVINO and TensorRT providers get the plain graph. On a GPU precision is a property of the ONNX file: FP16
and INT8 are typed into it. What really ran, and where, is read from the runtime's own profile of a request.
"""

import shutil
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from accel.builders import Backend, Builder, Mode, TargetInfo, held_back, ort_layers, share
from accel.builders.calibration import calibration_feeds, range_feeds
from accel.builders.declared import copy_onnx, reconcile
from accel.builders.openvino_integers import THROUGH_FLOAT
from accel.builders.ort_providers import (
    CUDA,
    ENGINES,
    GPU_ENVIRONMENT,
    OPENVINO_ENVIRONMENT,
    TENSORRT,
    TENSORRT_LIBRARIES,
    Provider,
    fallback_nodes,
    provider_for,
    tensorrt_folder,
    tensorrt_options,
)
from accel.builders.ort_session import OrtDeviceSession, OrtSession, declared_specs, fallback, open_session, profiled
from accel.builders.requirements import demand, missing, missing_environment, missing_gpu, old_driver, versions
from accel.builders.tensorrt.options import TensorRtOptions
from accel.core import environments, hardware
from accel.core.accuracy import parity
from accel.core.accuracy.sqnr import EXACT_DB
from accel.core.errors import InputError, StageError, UnavailableError, raised_as
from accel.core.feeds import fit_inputs, read_feeds
from accel.core.values import (
    VERSION_FOLDER,
    Artifact,
    BuildRequest,
    Built,
    Parity,
    Precision,
    Runtime,
    Skipped,
    Target,
    TritonModel,
    to_json,
)
from accel.exporters import verdict
from accel.graph import MARGIN, METHOD, Method, autocast, narrow
from accel.graph.sensitivity import Search

ENTRY = "model.onnx"
_AUTOCAST = (autocast.ENVIRONMENT,)
_PACKAGES = {OPENVINO_ENVIRONMENT: "onnxruntime-openvino", GPU_ENVIRONMENT: "onnxruntime-gpu"}
_NOT_INT8 = {
    "ort-int8": "--gate int8=DB asks less of it; --int8 all quantises everything, whatever it misses",
    "ort-int8-dynamic": "choose ort-int8, which also quantises convolutions",
}
"""INT8 target of the CPU → what to do where too little becomes INT8."""
GPU_CUDA = "13.0"
"""CUDA of the GPU environment's onnxruntime-gpu. Source: the libraries that its CUDA provider links."""


@dataclass(frozen=True, slots=True)
class OrtOptions:
    """How INT8 and FP16 are made, and what may run elsewhere.

    Attributes:
        fuse: whether ``ort`` and ``ort-cuda`` try to fuse.
        target_db: SQNR that ``ort-int8`` keeps on held-back calibration samples; products that cost more stay float.
            None for 3 dB above the gate of INT8; 0 or less quantises all of them.
        trials: how many measurements of single products there may be.
        method: how ``ort-trt-int8`` finds its scales: ``minmax``, ``percentile`` or ``entropy``.
        keep: matrix products and convolutions that ``ort-trt-int8`` leaves in float, by node name.
        margin: how far below FP16's largest value a measured range must stay, as a factor.
        allow_fallback: whether nodes may run on another provider than the target's; they are listed either way.
    """

    fuse: bool = True
    target_db: float | None = None
    trials: int = 64
    method: Method = METHOD
    keep: tuple[str, ...] = ()
    margin: float = MARGIN
    allow_fallback: bool = False


RUNTIME = Runtime("ONNX Runtime", ("#d18a00", "#f0b03c"))


def _parameters(threads: int, instances: int) -> Mapping[str, str]:
    """Return the parameters for some instances; nothing in a config limits the threads of the openvino accelerator.

    Source: onnxruntime_backend README, "Model Config Options", and src/onnxruntime.cc, LoadModel.
    """
    return {"intra_op_thread_count": share(threads, instances)}


def _cpu(precision: Precision, about: str, **more: Any) -> TargetInfo:
    return TargetInfo(("cpu",), precision, about, RUNTIME, **more)


def _cuda(precision: Precision, about: str, *, calibration: bool = False, **more: Any) -> TargetInfo:
    return TargetInfo(
        ("cuda",), precision, about, RUNTIME, calibration=calibration, environment=GPU_ENVIRONMENT, **more
    )


class OrtBuilder(Builder):
    """Offers ``ort`` and its relatives."""

    targets: Mapping[str, TargetInfo] = {
        "ort": _cpu("fp32", "ONNX for ONNX Runtime, fused for it", baseline="onnx", waits=("cpu",)),
        "ort-int8": _cpu(
            *("int8", "static INT8 (Q/DQ), calibrated"),
            calibration=True,
            operators=("MatMul", "Gemm", "Conv"),
        ),
        "ort-int8-dynamic": _cpu("int8", "dynamic INT8: scales found at run time", operators=("MatMul", "Gemm")),
        "ort-openvino": _cpu(
            *("fp32", "plain ONNX, OpenVINO execution provider"),
            int64_as_int32=True,
            through_float=THROUGH_FLOAT,
            environment=OPENVINO_ENVIRONMENT,
            waits=("cpu",),
        ),
        "ort-cuda": _cuda("fp32", "CUDA execution provider, TF32 off"),
        "ort-cuda-tf32": _cuda("tf32", "CUDA execution provider, TF32 on"),
        "ort-cuda-fp16": _cuda("fp16", "CUDA execution provider, FP16", helpers=_AUTOCAST),
        "ort-trt": _cuda("tf32", "TensorRT execution provider", prefers_int32=True),
        "ort-trt-fp16": _cuda("fp16", "TensorRT execution provider, FP16", prefers_int32=True, helpers=_AUTOCAST),
        "ort-trt-int8": _cuda(
            *("int8", "TensorRT execution provider, INT8"), calibration=True, prefers_int32=True, helpers=_AUTOCAST
        ),
    }
    options: type[Any] = OrtOptions
    narrows = narrow.ONNX_RUNTIME
    packages = ("onnxruntime", "onnx", "onnxscript", "onnx-ir")
    build_only = ("onnx", "onnxscript")
    whole = MappingProxyType({"target_db": 0.0})
    backends = (Backend("onnxruntime", keeps_states=True, parameters=_parameters),)

    def available(self, target: Target) -> Skipped | None:
        """Ask for the packages of the target or its environment; on a GPU for its driver, and TensorRT's libraries."""
        if target.device == "cuda":
            return (
                missing_gpu(target)
                or old_driver(f"environment {GPU_ENVIRONMENT!r}", GPU_CUDA)
                or missing_environment(GPU_ENVIRONMENT)
                or next(filter(None, map(missing_environment, self.targets[target.name].helpers)), None)
                or (_missing_tensorrt() if target.name.startswith("ort-trt") else None)
            )
        if target.name == "ort-openvino":
            return missing_environment(OPENVINO_ENVIRONMENT)
        return missing("onnxruntime", "onnx", *(["onnxscript"] if target.name == "ort" else []))

    def build(self, request: BuildRequest, options: OrtOptions, out_dir: Path) -> Built:
        """Turn the exported ONNX file into the target's; for TensorRT build its engines, too.

        Raises:
            UnavailableError: what ``available`` says; or so little became INT8 that it is not.
            InputError: no ONNX file, or no calibration samples for static INT8.
            StageError: a library failed, the built file lost a name or a size, or nodes ran on another provider.
        """
        target = request.variant.target
        if target.device == "cuda":
            demand(self.available(target))
        if request.onnx is None or request.onnx_folder is None:
            raise InputError(f"{target} starts from ONNX and the source was not exported")
        plain = Path(request.onnx_folder) / request.onnx.file.path
        makers: Mapping[str, Callable[[BuildRequest, OrtOptions, Path, Path], dict[str, Any]]] = {
            "ort": _fused,
            "ort-int8": _static_int8,
            "ort-int8-dynamic": _dynamic_int8,
            "ort-openvino": _plain,
            "ort-cuda": _fused,
            "ort-cuda-tf32": _fused,
            "ort-cuda-fp16": _fused_half,
            "ort-trt": _typed,
            "ort-trt-fp16": _typed,
            "ort-trt-int8": _typed,
        }
        facts = makers[target.name](request, options, plain, out_dir)
        if target.device == "cpu" and target.name != "ort-openvino":
            facts |= _guarded(request, out_dir / ENTRY)
        if target.name in _NOT_INT8:
            facts |= ort_layers.facts(request, plain, out_dir / ENTRY, fix=_NOT_INT8[target.name])
        provider = provider_for(
            request.variant,
            threads=request.threads,
            mode="latency",
            engines=out_dir / ENGINES,
            keep_timings=True,
            allow_fallback=options.allow_fallback,
        )
        if target.device == "cuda":
            facts |= _placed(request, provider, out_dir)
        session = open_session(out_dir / ENTRY, provider, threads=request.threads, mode="latency")
        found_inputs, found_outputs = declared_specs(session)
        return Built(
            ENTRY,
            reconcile(found_inputs, request.source.inputs, what="input"),
            reconcile(found_outputs, request.source.outputs, what="output"),
            self.targets[target.name].precision,
            facts,
            versions([_PACKAGES.get(self.environment(target), "onnxruntime"), "onnx", "onnxscript"])
            | (_tensorrt_version() if target.name.startswith("ort-trt") else {}),
            True if target.name == "ort-int8" and options.target_db is None else None,
        )

    def open(self, artifact: Artifact, folder: Path, *, threads: int, mode: Mode) -> OrtSession:
        """Open the file on the provider of the target; falling back to another provider is an error.

        Raises:
            UnavailableError: the provider is not in this installation, or its libraries cannot be loaded.
            StageError: the file cannot be loaded, or TensorRT built its engines anew.
        """
        variant = artifact.variant
        demand(missing_gpu(variant.target))
        provider = provider_for(
            variant,
            threads=threads,
            mode=mode,
            engines=folder / ENGINES,
            allow_fallback=bool(variant.options.get("allow_fallback", False)),
        )
        if provider.name == TENSORRT:
            before = _contents(folder / ENGINES)
            session = OrtDeviceSession(artifact, folder, provider, threads=threads, mode=mode)
            if _contents(folder / ENGINES) != before:
                session.close()
                raise StageError(
                    f"the TensorRT engine of {variant.id} fits another GPU, TensorRT or ONNX Runtime: it was rebuilt",
                    fix="build the variant on this machine",
                )
            return session
        kind = OrtDeviceSession if provider.device == "cuda" else OrtSession
        return kind(artifact, folder, provider, threads=threads, mode=mode)

    def triton(self, artifact: Artifact, release: str) -> TritonModel | Skipped:
        """Serve it through the onnxruntime backend, with the accelerator of the provider that was measured.

        The engine cache is named relative to the repository's root, where ``launch.sh`` starts the server.
        Source: onnxruntime_backend README, "Model Config Options" and "TensorRT"; its ``cuda`` accelerator.
        """
        variant = artifact.variant
        accelerators: tuple[tuple[str, str, Mapping[str, str]], ...] = ()
        if variant.target.name == "ort-openvino":
            accelerators = (("cpu", "openvino", {}),)
        elif variant.target.device == "cuda":
            provider = provider_for(variant, threads=1, mode="latency")
            name, settings = provider.behind[0] if provider.behind else (provider.name, provider.options)
            assert name == CUDA
            accelerators = (("gpu", "cuda", {"use_tf32": settings["use_tf32"]}),)
            if provider.name == TENSORRT:
                given = tensorrt_options(variant.profile, engines=f"{VERSION_FOLDER}/{ENGINES}", keep_timings=False)
                accelerators = (("gpu", "tensorrt", given), *accelerators)
        return TritonModel("onnxruntime", artifact.built.entry, dynamic_batching=True, accelerators=accelerators)


def _missing_tensorrt() -> Skipped | None:
    """Say that TensorRT 10, which onnxruntime-gpu links, is not here; its libraries come from NVIDIA's own index."""
    if tensorrt_folder() is not None:
        return None
    interpreter = environments.python(GPU_ENVIRONMENT)
    return Skipped(
        f"{TENSORRT_LIBRARIES[0]} was not found: ONNX Runtime's TensorRT provider needs TensorRT 10",
        f"{interpreter} -m pip install --extra-index-url https://pypi.nvidia.com 'tensorrt-cu13>=10.13,<11'",
    )


def _tensorrt_version() -> dict[str, str]:
    found = versions(["tensorrt-cu13", "tensorrt-cu13-libs", "tensorrt"])
    return {"tensorrt": next(iter(found.values()))} if found else {}


def _contents(folder: Path) -> dict[str, tuple[int, int]]:
    """Return file → size and time of the last change."""
    stats = {p.name: p.stat() for p in folder.iterdir()} if folder.is_dir() else {}
    return {name: (s.st_size, s.st_mtime_ns) for name, s in stats.items()}


def _placed(request: BuildRequest, provider: Provider, out_dir: Path) -> dict[str, Any]:
    """Run one request on the device; say what it computes in and which nodes ran elsewhere.

    Raises:
        StageError: nodes ran elsewhere, and they may not.
    """
    if provider.name == TENSORRT:
        (out_dir / ENGINES).mkdir()
    feed = {s.name: np.zeros(request.variant.profile[s.name].opt, s.dtype) for s in request.source.inputs}
    nodes = profiled(out_dir / ENTRY, provider, feed)
    elsewhere = fallback_nodes(nodes, provider.name)
    if elsewhere and provider.strict:
        raise fallback(provider.name, elsewhere)
    shapes = sum(n.get("provider") not in (None, "", provider.name) for n in nodes) - len(elsewhere)
    facts: dict[str, Any] = {"fell_back": elsewhere, "shape_nodes_elsewhere": shapes}
    if provider.name == TENSORRT:
        from accel.graph.products import products_by_type

        facts["products"] = products_by_type(out_dir / ENTRY)
    return facts


def _guarded(request: BuildRequest, file: Path) -> dict[str, Any]:
    """Let rows outside the declared ranges answer for themselves alone."""
    from accel.graph import guard, passes

    inputs, outputs = request.source.inputs, request.source.outputs
    (result,) = passes.rewrite(file, file, guard.Guard(inputs, outputs))
    return {"guarded": list(guard.guarded(inputs, outputs)) if result.modified else []}


def _plain(request: BuildRequest, options: OrtOptions, plain: Path, out_dir: Path) -> dict[str, Any]:
    """Give the runtime the exported model as it is."""
    copy_onnx(request, out_dir / ENTRY)
    return {"graph": "plain"}


def _fused(request: BuildRequest, options: OrtOptions, plain: Path, out_dir: Path) -> dict[str, Any]:
    """Fuse; keep the plain graph where nothing fused, the fuser failed or the answers changed."""
    facts = _fuse(request, options, plain, out_dir)
    return _plain(request, options, plain, out_dir) | facts if facts["graph"] == "plain" else facts


def _fused_half(request: BuildRequest, options: OrtOptions, plain: Path, out_dir: Path) -> dict[str, Any]:
    """Type the graph in FP16, then fuse; keep the typed graph where fusion fails."""
    from accel.graph import fp16
    from accel.graph.fuse import lend_shapes

    with tempfile.TemporaryDirectory(prefix="accel-half-", dir=out_dir.parent) as scratch:
        typed = Path(scratch) / ENTRY
        feeds = range_feeds(request)  # what leaves the range of FP16 on real samples stays in FP32
        report = fp16.convert(plain, typed, to="fp16", feeds=feeds, margin=options.margin, threads=request.threads)
        lend_shapes(plain, typed)
        facts = {"half": to_json(report), **_fuse(request, options, typed, out_dir)}
        if facts["graph"] == "plain":
            for file in Path(scratch).iterdir():
                shutil.copyfile(file, out_dir / file.name)
        return facts


def _typed(request: BuildRequest, options: OrtOptions, plain: Path, out_dir: Path) -> dict[str, Any]:
    """Type the graph as a TensorRT plan of the same precision is typed, and hold it against the same rules."""
    from accel.builders.tensorrt.typing import type_onnx

    precision = OrtBuilder.targets[request.variant.target.name].precision
    given = TensorRtOptions(margin=options.margin, calibration=options.method, keep=options.keep)
    return {"graph": "plain", "typing": to_json(type_onnx(request, precision, given, out_dir).facts)}


def _fuse(request: BuildRequest, options: OrtOptions, plain: Path, out_dir: Path) -> dict[str, Any]:
    """Write the fused graph; where it cannot ship leave nothing, and say ``plain`` and why."""
    from accel.graph.fuse import attention_layers, fuse

    counts: dict[str, int] = {}
    reason = "fusion was turned off" if not options.fuse else None
    sqnr_db = None
    if options.fuse:
        try:
            counts = fuse(plain, out_dir / ENTRY)
            reason = None if counts else "no fusion applied"
            if counts:
                found = _agreement(plain, out_dir / ENTRY, request)
                sqnr_db = found.found["sqnr_db"] or EXACT_DB
                reason = None if found.passed else f"the fused graph has other answers: {found.reasons[0]}"
        except StageError as error:
            reason = error.message
    if reason is not None:
        for partial in out_dir.iterdir():
            partial.unlink()
        return {"graph": "plain", "fusions": {}, "attention_layers": 0, "unfused": reason}
    layers = attention_layers(counts)
    facts: dict[str, Any] = {"graph": "fused", "fusions": counts, "attention_layers": layers, "fused_sqnr_db": sqnr_db}
    if request.source.family == "transformer" and layers == 0:
        facts["warning"] = "no attention layer was fused, although the model is a transformer"
    return facts


def _agreement(one: Path, other: Path, request: BuildRequest) -> Parity:
    """Run both files on the opt and odd shapes, and hold the second against the SQNR gate of the precision.

    Raises:
        StageError: one of them cannot be opened or run, or a node of the fused graph has no kernel on the GPU.
    """
    source = request.source
    stored = read_feeds(Path(request.samples_folder) / request.samples.shapes.path)
    feeds = {point: fit_inputs(stored[point], source.inputs) for point in ("odd", "opt")}
    provider = provider_for(request.variant, threads=request.threads, mode="latency")
    if provider.name == CUDA and (elsewhere := fallback_nodes(profiled(other, provider, feeds["opt"]), CUDA)):
        raise fallback(CUDA, elsewhere)
    names = [spec.name for spec in source.outputs]
    answers = []
    for path in (one, other):
        session = open_session(path, provider, threads=request.threads, mode="latency")
        with raised_as(StageError, Exception, f"{path.name} does not run at the odd and opt shapes"):
            answers.append({p: dict(zip(names, session.run(names, f), strict=True)) for p, f in feeds.items()})
    gate = parity.gate_for(
        OrtBuilder.targets[request.variant.target.name].precision,
        outputs=source.outputs,
        task=None,
        overrides=request.gates,
        detections=source.detections,
    )
    return verdict.compare(source, feeds, answers[0], answers[1], gate)


def _static_int8(request: BuildRequest, options: OrtOptions, plain: Path, out_dir: Path) -> dict[str, Any]:
    """Quantise matrix products one by one as far as accuracy allows; a network of convolutions as a whole.

    Raises:
        UnavailableError: accuracy allows it nowhere: the file would be FP32 under another name.
    """
    from accel.graph import convolutions, quantize

    feeds = calibration_feeds(request)
    whole = convolutions.dominate(plain)
    vnni = hardware.detect().cpu.has_vnni
    rest, held = held_back.for_sqnr(request, plain, feeds, target_db=options.target_db, each=not whole)
    facts: dict[str, Any] = {
        "calibration_items": request.samples.calibration_items,
        "calibration_feeds": len(feeds),
        "dataset_sha256": request.samples.sha256,
        "weight_levels": 127 if vnni else 63,
    }
    facts |= held_back.second_build(request) if options.target_db is None else {}
    out = out_dir / ENTRY

    def quantised(floor: float) -> Search:
        if whole:
            return convolutions.quantize(plain, out, rest, held.score, floor, reduce_range=not vnni)
        return quantize.for_cpu(
            plain,
            out,
            rest,
            held.score,
            floor,
            to="cpu-int8" if vnni else "cpu-int7",
            mask=request.source.mask,
            threads=request.threads,
            trials=options.trials,
        )

    found = quantised(held.floor)
    if "room" in facts and not found.chosen.kept:  # it is the first build again, which missed the gate
        for partial in out_dir.iterdir():
            partial.unlink()
        found = quantised(found.chosen.score + request.room * held_back.ROOM_DB)
    if whole:
        facts["float_nodes"] = sorted(found.chosen.kept)
    if not found.chosen.quantised:
        raise UnavailableError(
            "nothing in the model bears INT8: to hold the gate on calibration samples every product stays in float",
            fix=_NOT_INT8["ort-int8"],
        )
    count = "product_nodes" if whole else "matmul_nodes"
    return facts | {
        "int8_nodes": found.chosen.quantised,
        count: found.chosen.quantised + len(found.chosen.kept),
        "int8_share": found.chosen.share,
        "held_back_sqnr_db": found.chosen.score,
        "search_s": found.search_s,
    }


def _dynamic_int8(request: BuildRequest, options: OrtOptions, plain: Path, out_dir: Path) -> dict[str, Any]:
    """Quantise weights per channel; activations get their scale from each request."""
    import onnx
    from onnxruntime.quantization import QuantType, quantize_dynamic

    from accel.graph import passes, qdq

    with tempfile.TemporaryDirectory(prefix="accel-dynamic-", dir=out_dir.parent) as scratch:
        ready = Path(scratch) / ENTRY
        passes.rewrite(plain, ready, *qdq.quantisable())
        model = onnx.load(str(ready))
    model.graph.ClearField("value_info")  # the exporter's own shapes make the quantiser fail
    fp32 = {w.name for w in model.graph.initializer if w.data_type == onnx.TensorProto.FLOAT}
    with (
        raised_as(StageError, (RuntimeError, ValueError, KeyError), f"onnxruntime could not quantise {plain.name}"),
        passes.by_library(out_dir / ENTRY) as made,
    ):
        quantize_dynamic(
            model,
            str(made),
            op_types_to_quantize=["MatMul", "Gemm"],
            nodes_to_exclude=[n.name for n in model.graph.node if fp32.isdisjoint(n.input)],  # no kernel takes FP16
            per_channel=True,
            reduce_range=not hardware.detect().cpu.has_vnni,
            weight_type=QuantType.QInt8,
            use_external_data_format=True,
            extra_options={"DefaultTensorType": onnx.TensorProto.FLOAT},
        )
    written = onnx.load(str(out_dir / ENTRY), load_external_data=False)
    count = sum(n.op_type == "MatMulInteger" for n in written.graph.node)
    if count == 0:
        raise UnavailableError(
            f"dynamic INT8 works on matrix products with constant weights in FP32, and {plain.name} has none",
            fix=_NOT_INT8["ort-int8-dynamic"],
        )
    return {"int8_nodes": count, "per_channel": True}


BUILDER = OrtBuilder()
