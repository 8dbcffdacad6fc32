"""ONNX Runtime's execution providers: which one a target asks for, its options and libraries, and what ran elsewhere.

Imports only the standard library and accel: a served model runs on it in any environment.
"""

import ctypes
import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from accel.builders import Mode
from accel.core import environments, hardware
from accel.core.values import Profile, Variant

CPU = "CPUExecutionProvider"
OPENVINO = "OpenVINOExecutionProvider"
CUDA = "CUDAExecutionProvider"
TENSORRT = "TensorrtExecutionProvider"
GPU_ENVIRONMENT = environments.declare(
    environments.Environment(
        "ort-gpu",
        (
            "onnxruntime-gpu==1.31.1",
            "nvidia-cublas==13.10.0.20",
            "nvidia-cuda-nvrtc==13.5.37",
            "nvidia-cuda-runtime==13.5.37",
            "nvidia-cudnn-cu13==9.28.0.42",
            "nvidia-cufft==12.5.0.14",
            "nvidia-curand==10.4.5.25",
            "nvidia-nvjitlink==13.5.37",
        ),
        "onnxruntime-gpu and onnxruntime are one Python module",
        over_main=True,
    )
)
OPENVINO_ENVIRONMENT = environments.declare(
    environments.Environment(
        "ort-openvino",
        ("onnxruntime-openvino==1.24.1", "numpy==2.4.6", "scipy==1.17.1"),  # what a detector finds is matched in it
        "onnxruntime-openvino and onnxruntime are one Python module",
    )
)

ENGINES = "trt"
"""Folder of an artifact that holds TensorRT's engine cache and timing cache."""
TENSORRT_LIBRARIES = ("libnvinfer.so.10", "libnvinfer_plugin.so.10", "libnvonnxparser.so.10")
"""What the TensorRT provider of onnxruntime-gpu 1.31 links, in the order of loading. Source: its dynamic section."""
GPU_SLOTS = 2
"""Requests in flight in throughput mode on a GPU: one is copied while the other computes."""

SHAPE_OPERATORS = ("Shape", "Size")
SMALL, SHAPE_ELEMENTS = 16, 8192
"""Largest tensor of any type, and of integers, that a node of shape arithmetic may take or give."""


@dataclass(frozen=True, slots=True)
class Provider:
    """The provider a session is opened on.

    Attributes:
        options: as ONNX Runtime wants them, text for text.
        behind: providers for what the first one does not take, in order; the CPU provider is always the last.
        strict: whether a node that the first provider did not take is an error; shape arithmetic never is.
    """

    name: str
    options: Mapping[str, str] = field(default_factory=dict)
    behind: tuple[tuple[str, Mapping[str, str]], ...] = ()
    strict: bool = True

    @property
    def device(self) -> str:
        """Where inputs and outputs are bound, by ONNX Runtime's name."""
        return "cuda" if self.name in (CUDA, TENSORRT) else "cpu"


def provider_for(
    variant: Variant,
    *,
    threads: int,
    mode: Mode,
    engines: Path | None = None,
    keep_timings: bool = False,
    allow_fallback: bool = False,
) -> Provider:
    """Return the provider of a variant.

    Args:
        engines: folder of the TensorRT engine cache.
        keep_timings: whether TensorRT's timing cache is read and written there; only a build needs it.
        allow_fallback: whether nodes may run on another provider.

    Source: https://onnxruntime.ai/docs/execution-providers/ , the pages of CUDA, TensorRT and OpenVINO.
    """
    name = variant.target.name
    if name == "ort-openvino":
        options = {"device_type": "CPU", "num_of_threads": str(threads)}
        if hardware.shares_cpus(threads):
            options["load_config"] = json.dumps({"CPU": {"ENABLE_CPU_PINNING": "NO"}})
        if mode == "throughput":
            options["num_streams"] = str(threads)
        return Provider(OPENVINO, options)
    if name.startswith("ort-cuda"):
        return Provider(CUDA, cuda_options(tf32=name == "ort-cuda-tf32"), strict=not allow_fallback)
    if name.startswith("ort-trt"):
        given = tensorrt_options(variant.profile, engines=str(engines), keep_timings=keep_timings)
        behind = ((CUDA, cuda_options(tf32=name == "ort-trt")),)
        return Provider(TENSORRT, {"device_id": "0", **given}, behind, strict=not allow_fallback)
    return Provider(CPU)


def cuda_options(*, tf32: bool) -> dict[str, str]:
    """Return the CUDA provider's options; ``use_tf32`` is on where nobody sets it, so it always is set."""
    return {"device_id": "0", "use_tf32": "1" if tf32 else "0"}


def tensorrt_options(profile: Profile, *, engines: str, keep_timings: bool) -> dict[str, str]:
    """Return the TensorRT provider's options for one optimization profile and an engine cache.

    No precision is asked for: the network is then strongly typed, and the ONNX file alone decides.
    Source: onnxruntime core/providers/tensorrt/tensorrt_execution_provider.cc, CreateNodeComputeInfoFromGraph.

    Args:
        engines: folder of the cache.
    """
    shapes = {
        f"trt_profile_{point}_shapes": ",".join(
            f"{name}:{'x'.join(str(n) for n in getattr(shape, point))}" for name, shape in profile.items()
        )
        for point in ("min", "opt", "max")
    }
    cache = {"trt_engine_cache_enable": "True", "trt_engine_cache_path": engines}
    if keep_timings:
        cache |= {"trt_timing_cache_enable": "True", "trt_timing_cache_path": engines}
    return cache | shapes


def tensorrt_folder() -> Path | None:
    """Return the folder of the TensorRT 10 libraries beside the GPU environment's packages, or on the library path."""
    places = [environments.site_packages(GPU_ENVIRONMENT) / "tensorrt_libs"]
    places += [Path(p) for p in os.environ.get("LD_LIBRARY_PATH", "").split(os.pathsep) if p]
    places += [Path(p) for p in ("/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/local/tensorrt/lib")]
    return next((p for p in places if (p / TENSORRT_LIBRARIES[0]).exists()), None)


def load_libraries(provider: Provider, runtime: Any) -> None:
    """Load the CUDA libraries that lie among the packages of this interpreter, and TensorRT's for its provider.

    What is not found is left to the system's own search; ONNX Runtime says in its log what it then lacks.
    """
    if provider.device != "cuda":
        return
    runtime.preload_dlls(directory="")
    if provider.name == TENSORRT and (folder := tensorrt_folder()) is not None:
        for library in TENSORRT_LIBRARIES:
            if (folder / library).exists():
                ctypes.CDLL(str(folder / library), mode=ctypes.RTLD_GLOBAL)


def fallback_nodes(nodes: Sequence[Mapping[str, Any]], provider: str) -> list[str]:
    """Name the nodes of a profile that ran elsewhere, each with its operator and provider; shape arithmetic left out.

    The GPU providers leave the arithmetic on shapes to the CPU on purpose: its result steers the launch of kernels.
    Source: onnxruntime core/framework/fallback_cpu_capability.cc, GetCpuPreferredNodes.

    Args:
        nodes: ``args`` of the profile's node events, with the event's ``name``.
    """
    found = []
    for node in nodes:
        where = str(node.get("provider") or provider)
        operator = str(node.get("op_name", ""))
        if where != provider and not operator.startswith("Memcpy") and not _is_shape_arithmetic(operator, node):
            name = str(node.get("name", "")).removesuffix("_kernel_time") or operator
            found.append(f"{name} ({operator}, {where.removesuffix('ExecutionProvider')})")
    return found


def _is_shape_arithmetic(operator: str, node: Mapping[str, Any]) -> bool:
    if operator in SHAPE_OPERATORS:
        return True
    tensors = [t for side in ("input_type_shape", "output_type_shape") for t in node.get(side, ())]
    for tensor in tensors:
        for dtype, shape in tensor.items():
            limit = SHAPE_ELEMENTS if dtype.startswith(("int", "uint", "bool")) else SMALL
            if math.prod(shape) > limit:
                return False
    return bool(tensors)
