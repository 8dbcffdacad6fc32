"""TensorRT plans: offered by name, so that they can be asked for and are reported as skipped with their reason.

A plan can be neither built nor parsed without an NVIDIA GPU.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from accel.artifacts import Artifact, BuildRequest, Built, Skipped, Target, TritonModel
from accel.builders import Mode, Session, TargetInfo
from accel.builders.requirements import demand, missing_gpu
from accel.errors import UnavailableError


@dataclass(frozen=True, slots=True)
class TensorRtOptions:
    """No options."""


class TensorRtBuilder:
    """Offers ``trt`` and its precisions on ``cuda``."""

    targets: Mapping[str, TargetInfo] = {
        "trt": TargetInfo(("cuda",), "tf32", "TensorRT plan, FP32 with TF32 allowed"),
        "trt-fp32": TargetInfo(("cuda",), "fp32", "TensorRT plan, FP32 with TF32 off"),
        "trt-fp16": TargetInfo(("cuda",), "fp16", "TensorRT plan, FP16"),
        "trt-bf16": TargetInfo(("cuda",), "bf16", "TensorRT plan, BF16"),
        "trt-int8": TargetInfo(("cuda",), "int8", "TensorRT plan, INT8 from Q/DQ nodes", calibration=True),
        "trt-fp8": TargetInfo(("cuda",), "fp8", "TensorRT plan, FP8 from Q/DQ nodes", calibration=True),
    }
    options: type[Any] = TensorRtOptions

    def environment(self, target: Target) -> str:
        """Return the main environment."""
        return "main"

    def available(self, target: Target) -> Skipped | None:
        """Say that it takes a GPU, or that this version does not build it."""
        return missing_gpu(target)

    def build(self, request: BuildRequest, options: TensorRtOptions, out_dir: Path) -> Built:
        """Refuse with what ``available`` says.

        Raises:
            UnavailableError: always.
        """
        return self._refuse(request.variant.target)

    def open(self, artifact: Artifact, folder: Path, *, threads: int, mode: Mode) -> Session:
        """Refuse with what ``available`` says.

        Raises:
            UnavailableError: always.
        """
        return self._refuse(artifact.variant.target)

    def triton(self, artifact: Artifact, release: str) -> TritonModel | Skipped:
        """Give the reason why there is no plan to serve."""
        return missing_gpu(artifact.variant.target) or Skipped("there is no plan")

    def _refuse(self, target: Target) -> Any:
        demand(missing_gpu(target))
        raise UnavailableError(f"{target} is not built by this version of accel")


BUILDER = TensorRtBuilder()
