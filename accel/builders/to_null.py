"""A model that waits a fixed time and answers zeros: tests the whole flow and shows the harness's own overhead.

Knows only the declared inputs and outputs. Its answers are wrong by design: every gate must refuse it.
"""

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from accel.builders import Builder, Mode, Session, TargetInfo
from accel.builders.declared import static_specs
from accel.core.errors import UsageError
from accel.core.feeds import Feed
from accel.core.values import (
    Artifact,
    BuildRequest,
    Built,
    Runtime,
    Skipped,
    Target,
    TensorSpec,
    TritonModel,
)

ENTRY = "null.json"


@dataclass(frozen=True, slots=True)
class NullOptions:
    """``latency_ms``: time between submit and the answer."""

    latency_ms: float = 1.0


class NullBuilder(Builder):
    """Offers ``null``."""

    targets: Mapping[str, TargetInfo] = {
        "null": TargetInfo(
            ("cpu",),
            "none",
            "waits a fixed time and answers zeros: shows accel's overhead",
            Runtime("null", ("#a9afb6", "#6b737b")),
            needs="nothing",
            ungrouped=("cpu",),
        )
    }
    options: type[Any] = NullOptions

    def available(self, target: Target) -> Skipped | None:
        """Return None: nothing is needed."""
        return None

    def build(self, request: BuildRequest, options: NullOptions, out_dir: Path) -> Built:
        """Write the latency down.

        Raises:
            UsageError: a negative latency.
        """
        if not options.latency_ms >= 0:
            raise UsageError(f"latency_ms is {options.latency_ms}, expected 0 or more")
        inputs, outputs = static_specs(request)
        (out_dir / ENTRY).write_text(json.dumps({"latency_ms": options.latency_ms}))
        return Built(ENTRY, inputs, outputs, "none", {"latency_ms": options.latency_ms}, {})

    def open(self, artifact: Artifact, folder: Path, *, threads: int, mode: Mode) -> "NullSession":
        """Read the latency; in throughput mode two requests may wait side by side."""
        latency_ms = json.loads((folder / artifact.built.entry).read_text())["latency_ms"]
        built = artifact.built
        return NullSession(built.inputs, built.outputs, latency_ms=latency_ms, slots=2 if mode == "throughput" else 1)

    def triton(self, artifact: Artifact, release: str) -> TritonModel | Skipped:
        """Serve it through the Python backend, in every release."""
        return TritonModel.in_python(artifact)


class NullSession(Session):
    """Requests that end a fixed time after they were submitted."""

    def __init__(
        self, inputs: tuple[TensorSpec, ...], outputs: tuple[TensorSpec, ...], *, latency_ms: float, slots: int
    ) -> None:
        super().__init__(inputs, outputs, slots)
        self._latency_ns = int(latency_ms * 1e6)
        self._due_ns = [0] * slots
        self._zeros: list[dict[str, np.ndarray]] = [{} for _ in range(slots)]

    def bind(self, inputs: Feed, *, slot: int = 0) -> None:
        """Make zeros of the shape that the declared dims and these inputs' axes give."""
        sizes = {
            dim: size
            for spec in self.inputs
            for dim, size in zip(spec.dims, inputs[spec.name].shape, strict=True)
            if isinstance(dim, str)
        }
        self._zeros[slot] = {
            spec.name: np.zeros([sizes[d] if isinstance(d, str) else d for d in spec.dims], spec.dtype)
            for spec in self.outputs
        }

    def submit(self, *, slot: int = 0) -> None:
        """Start the clock."""
        self._due_ns[slot] = time.perf_counter_ns() + self._latency_ns

    def wait(self, *, slot: int = 0) -> None:
        """Sleep until the request is due."""
        left_ns = self._due_ns[slot] - time.perf_counter_ns()
        if left_ns > 0:
            time.sleep(left_ns / 1e9)

    def read(self, *, slot: int = 0) -> dict[str, np.ndarray]:
        """Return the zeros."""
        return self._zeros[slot]

    def precision(self) -> str:
        """Return ``none``: nothing is computed."""
        return "none"


BUILDER = NullBuilder()
