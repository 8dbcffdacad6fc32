"""Serves one step of an ensemble in Triton's Python backend.

Beside this file lie ``step.py`` (the work), ``step.json`` (its options) and what it reads. Every request is answered on
its own: one that cannot be taken gets an error response, the others of the same call are answered.

Environment: ``ACCEL_SITE_PACKAGES`` names further folders with packages, since the stub process of the Python backend
does not read PYTHONPATH.
"""

import contextlib
import importlib
import json
import os
import sys
from pathlib import Path

import numpy as np
import triton_python_backend_utils as pb_utils  # type: ignore[import-not-found]

# Bytecode beside a source is run in its place, so a repository has none. Not every stub process reads
# PYTHONDONTWRITEBYTECODE, and one that does not has written this file's own before it ran the first line.
sys.dont_write_bytecode = True
with contextlib.suppress(OSError):
    cached = Path(globals().get("__cached__") or "")
    cached.unlink()
    cached.parent.rmdir()

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
sys.path.extend(p for p in os.environ.get("ACCEL_SITE_PACKAGES", "").split(os.pathsep) if p)


class TritonPythonModel:
    """The class the Python backend looks for."""

    def initialize(self, args):  # type: ignore[no-untyped-def]
        """Load the step."""
        spec = json.loads((HERE / "step.json").read_text(encoding="utf-8"))
        if spec["numpy_below_2"] and int(np.__version__.split(".")[0]) >= 2:
            raise RuntimeError(
                f"this release's Python backend gives empty outputs under NumPy 2, and this is {np.__version__}: start "
                "the server with PYTHON_ENV naming a virtual environment that has numpy<2"
            )
        self.step = importlib.import_module("step").Step(spec["options"], HERE)

    def execute(self, requests):  # type: ignore[no-untyped-def]
        """Answer every request, in order."""
        answers = {}
        responses = [None] * len(requests)
        for index, request in enumerate(requests):
            try:
                answers[index] = self.step.answer({t.name(): t.as_numpy() for t in request.inputs()})
            except ValueError as error:
                responses[index] = refuse(str(error), pb_utils.TritonError.INVALID_ARG)
            except Exception as error:  # noqa: BLE001  the fault of one request must not end the others
                responses[index] = refuse(f"{type(error).__name__}: {error}", pb_utils.TritonError.INTERNAL)
        if hasattr(self.step, "align"):
            answers = dict(zip(answers, self.step.align(list(answers.values())), strict=True))
        for index, answer in answers.items():
            wanted = requests[index].requested_output_names()
            tensors = [pb_utils.Tensor(name, value) for name, value in answer.items() if name in wanted]
            responses[index] = pb_utils.InferenceResponse(tensors)
        return responses


def refuse(message, code):  # type: ignore[no-untyped-def]
    """Return an error response."""
    return pb_utils.InferenceResponse(error=pb_utils.TritonError(message, code))
