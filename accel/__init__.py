"""accel: the fastest variant of a trained model that can be proved right here, packaged for Triton.

    import accel

    result = accel.optimize(module, samples=batches)     # a model in memory, a path, a zoo or hub name
    y = result.best(**inputs)                            # the chosen variant: same arguments, same structure
    model = accel.load("runs/bert/best/cpu")             # later, without the model's framework

What ``__all__`` names is the public API; each is imported when first used, so that ``import accel`` is free.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from accel.api.live import Event
    from accel.api.model import Model, load
    from accel.api.optimize import optimize
    from accel.api.parts import PartsResult, optimize_parts, replace
    from accel.api.result import Result, VariantResult
    from accel.api.serving import serve
    from accel.api.steps import Step, build, compare, decide, describe, emit, export, measure
    from accel.builders.narrow import narrow_file
    from accel.builders.targets import parse as parse_targets
    from accel.core.calls import Outputs
    from accel.core.errors import AccelError, UnprovedWarning
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
    "Event",
    "Job",
    "Model",
    "Outputs",
    "PartsResult",
    "Progress",
    "Result",
    "Step",
    "UnprovedWarning",
    "VariantResult",
    "build",
    "compare",
    "convert",
    "decide",
    "describe",
    "emit",
    "export",
    "load",
    "measure",
    "narrow_file",
    "optimize",
    "optimize_parts",
    "parse_targets",
    "recognise",
    "replace",
    "serve",
    "verify",
    "write_comparison",
]

_HOMES = {
    "accel.api.live": ("Event",),
    "accel.api.model": ("Model", "load"),
    "accel.api.optimize": ("optimize",),
    "accel.api.parts": ("PartsResult", "optimize_parts", "replace"),
    "accel.api.result": ("Result", "VariantResult"),
    "accel.api.serving": ("serve",),
    "accel.api.steps": ("Step", "build", "compare", "decide", "describe", "emit", "export", "measure"),
    "accel.builders.narrow": ("narrow_file",),
    "accel.builders.targets": ("parse_targets",),
    "accel.core.calls": ("Outputs",),
    "accel.core.errors": ("AccelError", "UnprovedWarning"),
    "accel.core.progress": ("Progress",),
    "accel.exporters.sources": ("recognise",),
    "accel.pipeline": ("convert",),
    "accel.report": ("write_comparison",),
    "accel.run.decide": ("Constraints",),
    "accel.run.job": ("Job",),
    "accel.triton.releases": ("NEWEST",),
    "accel.triton.verify": ("verify",),
}
_LIGHT = ("accel.api.model", "accel.api.live", "accel.api.result", "accel.core")
"""Modules that need no zoo, and must be imported where there is only NumPy and one runtime."""


def __getattr__(name: str) -> Any:
    home = next((module for module, names in _HOMES.items() if name in names), None)
    if home is None:
        raise AttributeError(f"module 'accel' has no attribute {name!r}")
    if not home.startswith(_LIGHT):
        importlib.import_module("accel.run")  # hands the zoo to the rooms below
    return getattr(importlib.import_module(home), "parse" if name == "parse_targets" else name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
