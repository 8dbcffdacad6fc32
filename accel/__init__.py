"""accel: the fastest variant of a trained model that can be proved right here, packaged for Triton.

The public Python API is what ``__all__`` names; each is imported when first used, so that ``import accel`` is free.

    from pathlib import Path
    import accel

    job = accel.Job(source="model.onnx", targets="ort,openvino-int8", samples="real.npz", out=Path("runs/model"))
    run = accel.convert(job)
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from accel.builders.narrow import narrow_file
    from accel.builders.targets import parse as parse_targets
    from accel.core.errors import AccelError
    from accel.core.progress import Progress
    from accel.exporters.sources import recognise
    from accel.pipeline import convert
    from accel.report import write_comparison
    from accel.run.decide import Constraints
    from accel.run.job import Job
    from accel.triton.releases import NEWEST
    from accel.triton.verify import verify

__all__ = [
    "NEWEST",
    "AccelError",
    "Constraints",
    "Job",
    "Progress",
    "convert",
    "narrow_file",
    "parse_targets",
    "recognise",
    "verify",
    "write_comparison",
]

_HOMES = {
    "NEWEST": ("accel.triton.releases", "NEWEST"),
    "AccelError": ("accel.core.errors", "AccelError"),
    "Constraints": ("accel.run.decide", "Constraints"),
    "Job": ("accel.run.job", "Job"),
    "Progress": ("accel.core.progress", "Progress"),
    "convert": ("accel.pipeline", "convert"),
    "narrow_file": ("accel.builders.narrow", "narrow_file"),
    "parse_targets": ("accel.builders.targets", "parse"),
    "recognise": ("accel.exporters.sources", "recognise"),
    "verify": ("accel.triton.verify", "verify"),
    "write_comparison": ("accel.report", "write_comparison"),
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'accel' has no attribute {name!r}")
    importlib.import_module("accel.run")  # hands the zoo to the rooms below
    module, attribute = _HOMES[name]
    return getattr(importlib.import_module(module), attribute)
