"""What a user may set for TensorRT variants (job file, ``options:``)."""

import typing
from dataclasses import dataclass
from typing import Literal

from accel.core.errors import UsageError, nearest
from accel.graph import MARGIN, METHOD, Method


@dataclass(frozen=True, slots=True)
class TensorRtOptions:
    """How the ONNX file is typed, and how the plan is built and run.

    Attributes:
        margin: FP16 keeps a node in FP32 where an FP32 value times this leaves the format's range.
        calibration: how INT8 and FP8 scales are found.
        base: precision of what INT8 and FP8 leave alone.
        search: whether products that cost most accuracy stay in ``base`` until the gate holds on held-back samples.
        keep: nodes that INT8 and FP8 leave alone, in place of a search.
        optimization_level: how long TensorRT looks for faster kernels, 0 to 5.
        workspace_mib: limit of scratch memory during the build; None for all of the GPU's.
        timing_cache: whether kernel timings are kept for the next build, per GPU and TensorRT version.
        hardware_compatibility: GPUs that may run the plan: the one it was built on alone, ``ampere_plus``, or
            ``same_compute_capability``.
        version_compatible: whether later TensorRT versions may run the plan, too.
        weights: ``full``, ``refittable``, or ``stripped`` (none in the plan; they are put in when it is opened).
        weight_streaming: keep weights in host memory where the GPU's does not suffice.
        cuda_graph: replay each shape as one CUDA graph.
    """

    margin: float = MARGIN
    calibration: Method = METHOD
    base: Literal["fp16", "fp32"] = "fp16"
    search: bool = True
    keep: tuple[str, ...] = ()
    optimization_level: int = 3
    workspace_mib: int | None = None
    timing_cache: bool = True
    hardware_compatibility: Literal["none", "ampere_plus", "same_compute_capability"] = "none"
    version_compatible: bool = False
    weights: Literal["full", "refittable", "stripped"] = "full"
    weight_streaming: bool = False
    cuda_graph: bool = False

    def __post_init__(self) -> None:
        """Refuse values that TensorRT would refuse in the middle of a build.

        Raises:
            UsageError: a value outside its choices or range.
        """
        hints = typing.get_type_hints(type(self))
        for name, hint in hints.items():
            if typing.get_origin(hint) is Literal:
                _one_of(name, getattr(self, name), typing.get_args(hint))
        object.__setattr__(self, "keep", tuple(self.keep))
        if not 0 <= self.optimization_level <= 5:
            raise UsageError(f"optimization_level is {self.optimization_level}: expected 0 to 5")
        if self.workspace_mib is not None and self.workspace_mib < 1:
            raise UsageError(f"workspace_mib is {self.workspace_mib}: expected 1 or more")
        if self.margin < 1:
            raise UsageError(f"margin is {self.margin}: expected 1 or more")
        if self.weights == "stripped" and self.weight_streaming:
            raise UsageError("weights: stripped and weight_streaming exclude each other", fix="leave one of them out")


def _one_of(name: str, value: str, known: tuple[str, ...]) -> None:
    if value not in known:
        raise UsageError(f"{name} is {value!r}{nearest(str(value), known)}", fix=f"one of {', '.join(known)}")
