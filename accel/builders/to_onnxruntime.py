"""ONNX Runtime on CPU: fused FP32, static and dynamic INT8, and its OpenVINO provider.

The CPU provider gets a graph in its own fused operators where fusion applies and leaves the answers alone; the OpenVINO
provider gets the plain graph. What really ran is read from the runtime's own profile of the first request.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from accel.artifacts import Artifact, BuildRequest, Built, Precision, Skipped, Target, TritonModel
from accel.builders import Mode, TargetInfo
from accel.builders.calibration import calibration_feeds
from accel.builders.declared import reconcile
from accel.builders.ort_session import OrtSession, declared_specs, open_session
from accel.builders.requirements import demand, missing, missing_environment, missing_gpu, versions
from accel.errors import InputError, StageError

ENTRY = "model.onnx"
OPENVINO_ENVIRONMENT = "ort-openvino"
FUSED_DB = 80.0
"""Fusion must leave this much SQNR against the plain graph, the gate of FP32, or the plain graph ships."""


@dataclass(frozen=True, slots=True)
class OrtOptions:
    """How INT8 is made.

    Attributes:
        fuse: whether ``ort`` tries to fuse.
        target_db: SQNR that ``ort-int8`` keeps on held-back calibration samples; products that cost more stay float.
        trials: how many measurements of single products there may be.
    """

    fuse: bool = True
    target_db: float = 23.0
    trials: int = 64


def _cuda(precision: Precision, about: str, *, calibration: bool = False) -> TargetInfo:
    return TargetInfo(("cuda",), precision, about, calibration=calibration)


class OrtBuilder:
    """Offers ``ort`` and its relatives."""

    targets: Mapping[str, TargetInfo] = {
        "ort": TargetInfo(("cpu",), "fp32", "ONNX for ONNX Runtime, fused for it"),
        "ort-int8": TargetInfo(("cpu",), "int8", "static INT8 (Q/DQ), calibrated", calibration=True),
        "ort-int8-dynamic": TargetInfo(("cpu",), "int8", "dynamic INT8: scales found at run time"),
        "ort-openvino": TargetInfo(("cpu",), "fp32", "plain ONNX, OpenVINO execution provider", int64_as_int32=True),
        "ort-cuda": _cuda("fp32", "CUDA execution provider, TF32 off"),
        "ort-cuda-tf32": _cuda("tf32", "CUDA execution provider, TF32 on"),
        "ort-cuda-fp16": _cuda("fp16", "CUDA execution provider, FP16"),
        "ort-trt": _cuda("tf32", "TensorRT execution provider"),
        "ort-trt-fp16": _cuda("fp16", "TensorRT execution provider, FP16"),
        "ort-trt-int8": _cuda("int8", "TensorRT execution provider, INT8", calibration=True),
    }
    options: type[Any] = OrtOptions

    def environment(self, target: Target) -> str:
        """Return ``ort-openvino`` for that target: its package and onnxruntime are one Python module."""
        return OPENVINO_ENVIRONMENT if target.name == "ort-openvino" else "main"

    def available(self, target: Target) -> Skipped | None:
        """Ask for the packages of the target, or for its environment."""
        if target.name == "ort-openvino":
            return missing_environment(OPENVINO_ENVIRONMENT)
        return missing_gpu(target) or missing("onnxruntime", "onnx", *(["onnxscript"] if target.name == "ort" else []))

    def build(self, request: BuildRequest, options: OrtOptions, out_dir: Path) -> Built:
        """Turn the exported ONNX file into the target's.

        Raises:
            UnavailableError: what ``available`` says.
            InputError: no ONNX file, or no calibration samples for static INT8.
            StageError: a library failed, or the built file lost a name or a size.
        """
        target = request.variant.target
        demand(missing_gpu(target))
        if request.onnx is None or request.onnx_folder is None:
            raise InputError(f"{target} starts from ONNX and the source was not exported")
        plain = Path(request.onnx_folder) / request.onnx.file.path
        makers: Mapping[str, Callable[[BuildRequest, OrtOptions, Path, Path], dict[str, Any]]] = {
            "ort": _fused,
            "ort-int8": _static_int8,
            "ort-int8-dynamic": _dynamic_int8,
            "ort-openvino": _plain,
        }
        facts = makers[target.name](request, options, plain, out_dir)
        provider = "OpenVINOExecutionProvider" if target.name == "ort-openvino" else "CPUExecutionProvider"
        session = open_session(out_dir / ENTRY, provider, threads=request.threads, mode="latency")
        found_inputs, found_outputs = declared_specs(session)
        return Built(
            ENTRY,
            reconcile(found_inputs, request.source.inputs, what="input"),
            reconcile(found_outputs, request.source.outputs, what="output"),
            self.targets[target.name].precision,
            facts,
            versions(["onnxruntime", "onnxruntime-openvino", "onnx", "onnxscript"]),
        )

    def open(self, artifact: Artifact, folder: Path, *, threads: int, mode: Mode) -> OrtSession:
        """Open the file on the provider of the target; falling back to another provider is an error.

        Raises:
            UnavailableError: the provider is not in this installation.
            StageError: the file cannot be loaded, or another provider took it.
        """
        target = artifact.variant.target
        demand(missing_gpu(target))
        provider = "OpenVINOExecutionProvider" if target.name == "ort-openvino" else "CPUExecutionProvider"
        return OrtSession(artifact, folder, provider, threads=threads, mode=mode)

    def triton(self, artifact: Artifact, release: str) -> TritonModel | Skipped:
        """Serve it through the onnxruntime backend, with the ``openvino`` accelerator where that was measured."""
        accelerators: tuple[tuple[str, str, Mapping[str, str]], ...] = ()
        if artifact.variant.target.name == "ort-openvino":
            accelerators = (("cpu", "openvino", {}),)
        return TritonModel("onnxruntime", artifact.built.entry, dynamic_batching=True, accelerators=accelerators)


def _plain(request: BuildRequest, options: OrtOptions, plain: Path, out_dir: Path) -> dict[str, Any]:
    """Copy the exported model and its weights; its name for them stays, since the file refers to it."""
    assert request.onnx is not None
    shutil.copyfile(plain, out_dir / ENTRY)
    for data in request.onnx.data:
        target = out_dir / data.path
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(plain.parent / data.path, target)
    return {"graph": "plain"}


def _fused(request: BuildRequest, options: OrtOptions, plain: Path, out_dir: Path) -> dict[str, Any]:
    """Fuse; keep the plain graph where nothing fused, the fuser failed or the answers changed."""
    from accel.graph.fuse import attention_layers, fuse

    counts: dict[str, int] = {}
    reason = "fusion was turned off" if not options.fuse else None
    sqnr_db = None
    if options.fuse:
        try:
            counts = fuse(plain, out_dir / ENTRY)
            reason = None if counts else "no fusion applied"
            if counts:
                sqnr_db = _agreement_db(plain, out_dir / ENTRY, request)
                reason = (
                    None if sqnr_db >= FUSED_DB else f"the fused graph keeps {sqnr_db:.0f} dB, expected {FUSED_DB:.0f}"
                )
        except StageError as error:
            reason = error.message
    if reason is not None:
        for partial in out_dir.iterdir():
            partial.unlink()
        return _plain(request, options, plain, out_dir) | {"fusions": {}, "attention_layers": 0, "unfused": reason}
    layers = attention_layers(counts)
    facts: dict[str, Any] = {"graph": "fused", "fusions": counts, "attention_layers": layers, "fused_sqnr_db": sqnr_db}
    if request.source.family == "transformer" and layers == 0:
        facts["warning"] = "no attention layer was fused, although the model is a transformer"
    return facts


def _agreement_db(one: Path, other: Path, request: BuildRequest) -> float:
    """Run both files on the opt and odd shapes and return the worst SQNR; 200 where every value is equal."""
    from accel.samples import read_feeds

    stored = read_feeds(Path(request.samples_folder) / request.samples.shapes.path)
    sessions = [open_session(p, "CPUExecutionProvider", threads=request.threads, mode="latency") for p in (one, other)]
    worst = 200.0
    for point in ("odd", "opt"):
        try:
            truth, found = (s.run([o.name for o in sessions[0].get_outputs()], stored[point]) for s in sessions)
        except Exception as error:
            raise StageError(f"the fused graph does not run at the {point} shape: {error}") from error
        for t, f in zip(truth, found, strict=True):
            noise = float(np.square(t.astype(np.float64) - f.astype(np.float64)).sum())
            if noise > 0:
                worst = min(worst, 10 * float(np.log10(float(np.square(t.astype(np.float64)).sum()) / noise)))
            elif noise != noise:
                worst = -200.0
    return worst


def _static_int8(request: BuildRequest, options: OrtOptions, plain: Path, out_dir: Path) -> dict[str, Any]:
    """Quantise matrix products one by one as far as accuracy allows; a network of convolutions as a whole."""
    from accel.graph import convolutions, quantize

    feeds = calibration_feeds(request)
    facts: dict[str, Any] = {
        "calibration_items": request.samples.calibration_items,
        "calibration_feeds": len(feeds),
        "dataset_sha256": request.samples.sha256,
    }
    levels = 127 if _has_vnni() else 63
    if convolutions.dominate(plain):
        done = convolutions.quantize(plain, out_dir / ENTRY, feeds, target_db=options.target_db, levels=levels)
        return facts | done
    plan = quantize.quantize_matmuls(
        plain,
        out_dir / ENTRY,
        feeds,
        mask=request.source.mask,
        smallest={name: shapes.min for name, shapes in request.variant.profile.items()},
        target_db=options.target_db,
        levels=levels,
        threads=request.threads,
        trials=options.trials,
    )
    return facts | {
        "int8_nodes": plan.int8_nodes,
        "matmul_nodes": plan.nodes,
        "int8_share": plan.int8_share,
        "held_back_sqnr_db": plan.sqnr_db,
        "search_s": plan.search_s,
        "weight_levels": levels,
    }


def _has_vnni() -> bool:
    """Say whether products of 8 bits are summed in 32; without it pairs meet in 16 bits and saturate."""
    from accel import hardware

    return bool({"avx512_vnni", "avx_vnni", "amx_int8", "asimd"} & set(hardware.detect().cpu.flags))


def _dynamic_int8(request: BuildRequest, options: OrtOptions, plain: Path, out_dir: Path) -> dict[str, Any]:
    """Quantise weights per channel; activations get their scale from each request."""
    import onnx
    from onnxruntime.quantization import QuantType, quantize_dynamic

    model = onnx.load(str(plain))
    model.graph.ClearField("value_info")  # the exporter's own shapes make the quantiser fail
    try:
        quantize_dynamic(
            model,
            str(out_dir / ENTRY),
            op_types_to_quantize=["MatMul", "Gemm"],
            per_channel=True,
            reduce_range=not _has_vnni(),
            weight_type=QuantType.QInt8,
            use_external_data_format=True,
            extra_options={"DefaultTensorType": onnx.TensorProto.FLOAT},
        )
    except (RuntimeError, ValueError, KeyError) as error:
        raise StageError(f"onnxruntime could not quantise {plain.name}: {error}") from error
    written = onnx.load(str(out_dir / ENTRY), load_external_data=False)
    count = sum(n.op_type == "MatMulInteger" for n in written.graph.node)
    if count == 0:
        raise StageError(
            f"dynamic INT8 found no matrix product with constant weights in {plain.name}",
            fix="choose ort-int8, which also quantises convolutions",
        )
    return {"int8_nodes": count, "per_channel": True}


BUILDER = OrtBuilder()
