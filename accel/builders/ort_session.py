"""An ONNX Runtime session on one provider; the runtime's own profile tells what it computes in.

Imports only what the OpenVINO environment holds: NumPy and one build of ONNX Runtime.
"""

from __future__ import annotations

import json
import tempfile
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from accel.artifacts import Artifact, TensorSpec
from accel.builders import Feed, Mode, Session
from accel.errors import StageError, UnavailableError

_DTYPES = {
    "float": "float32",
    "float16": "float16",
    "double": "float64",
    "int64": "int64",
    "int32": "int32",
    "uint8": "uint8",
    "int8": "int8",
    "bool": "bool",
}
_INT8 = ("MatMulInteger", "DynamicQuantizeMatMul", "QLinear", "QGemm", "QAttention", "ConvInteger")
_FLOAT = ("MatMul", "Gemm", "FusedMatMul", "FusedGemm", "Conv", "FusedConv", "NhwcFusedConv", "Attention")


def open_session(path: Path, provider: str, *, threads: int, mode: Mode, profile: Path | None = None) -> Any:
    """Open a file on one provider.

    In latency mode one request uses all threads; in throughput mode each of ``threads`` requests runs on one.

    Args:
        profile: folder for the runtime's profile; None for no profile.

    Raises:
        UnavailableError: this build of ONNX Runtime lacks the provider.
        StageError: the file cannot be loaded, or the session fell back to another provider.
    """
    import onnxruntime as ort

    if provider not in ort.get_available_providers():
        raise UnavailableError(
            f"onnxruntime {ort.__version__} has no {provider} (found {ort.get_available_providers()})",
            fix="accel env install ort-openvino" if "OpenVINO" in provider else "pip install onnxruntime",
        )
    each = threads if mode == "latency" else 1
    options = ort.SessionOptions()
    options.intra_op_num_threads = each
    options.execution_mode = ort.ExecutionMode.ORT_SEQUENTIAL
    options.log_severity_level = 3
    if profile is not None:
        options.enable_profiling = True
        options.profile_file_prefix = str(profile / "ort")
    settings: dict[str, str] = {}
    if provider == "OpenVINOExecutionProvider":
        options.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
        settings = {"device_type": "CPU", "num_of_threads": str(threads)}
        if mode == "throughput":
            settings["num_streams"] = str(threads)
    try:
        session = ort.InferenceSession(str(path), options, providers=[(provider, settings)])
    except Exception as error:
        raise StageError(f"ONNX Runtime could not load {path.name} on {provider}: {error}") from error
    if session.get_providers()[0] != provider:
        raise StageError(f"asked ONNX Runtime for {provider}, and the session runs on {session.get_providers()}")
    return session


def declared_specs(session: Any) -> tuple[list[TensorSpec], list[TensorSpec]]:
    """Return the inputs and outputs as the runtime read them from the file; a dynamic axis is a string."""

    def specs(nodes: Sequence[Any]) -> list[TensorSpec]:
        return [
            TensorSpec(
                node.name,
                _DTYPES[node.type.removeprefix("tensor(").removesuffix(")")],
                tuple(d if isinstance(d, int) else str(d or "?") for d in node.shape),
            )
            for node in nodes
        ]

    return specs(session.get_inputs()), specs(session.get_outputs())


class OrtSession(Session):
    """One loaded file; in throughput mode one slot for each thread."""

    def __init__(self, artifact: Artifact, folder: Path, provider: str, *, threads: int, mode: Mode) -> None:
        built = artifact.built
        super().__init__(built.inputs, built.outputs)
        self.slots = threads if mode == "throughput" else 1
        self._provider = provider
        self._file = folder / built.entry
        self._shapes = {name: shape.opt for name, shape in artifact.variant.profile.items()}
        self._names = [s.name for s in built.outputs]
        self._session = open_session(self._file, provider, threads=threads, mode=mode)
        self._pool = ThreadPoolExecutor(self.slots) if mode == "throughput" else None
        self._feeds: list[Feed] = [{} for _ in range(self.slots)]
        self._results: list[Sequence[np.ndarray]] = [() for _ in range(self.slots)]
        self._pending: list[Future[Sequence[np.ndarray]] | None] = [None] * self.slots

    def bind(self, inputs: Feed, *, slot: int = 0) -> None:
        """Keep the arrays: ONNX Runtime reads CPU inputs from their own memory."""
        self._feeds[slot] = inputs

    def submit(self, *, slot: int = 0) -> None:
        """Run here, or on a thread of the pool in throughput mode."""
        if self._pool is None:
            self._results[slot] = self._run(slot)
        else:
            self._pending[slot] = self._pool.submit(self._run, slot)

    def wait(self, *, slot: int = 0) -> None:
        """Wait for the pool's thread, where there is one."""
        pending, self._pending[slot] = self._pending[slot], None
        if pending is not None:
            self._results[slot] = pending.result()

    def read(self, *, slot: int = 0) -> dict[str, np.ndarray]:
        """Return the arrays that the runtime made for this request."""
        return dict(zip(self._names, self._results[slot], strict=True))

    def precision(self) -> str:
        """Name the precision in which most matrix products and convolutions of a request at the opt shape ran.

        The runtime's own profile tells, of a session that is opened for it and closed again: one that has ever been
        profiled keeps some 600 bytes of every later call (ONNX Runtime 1.31). The OpenVINO provider runs a whole graph
        as one node; it computes in FP32 unless its options ask for less.
        Source: https://onnxruntime.ai/docs/execution-providers/OpenVINO-ExecutionProvider.html (``precision``).

        Raises:
            StageError: a node ran on another provider than the one asked for.
        """
        nodes = self._profiled()
        others = {n["provider"] for n in nodes if n.get("provider") not in (None, "", self._provider)}
        if others:
            raise StageError(f"asked ONNX Runtime for {self._provider}, and nodes ran on {sorted(others)}")
        if self._provider == "OpenVINOExecutionProvider":
            return "fp32"
        found: Counter[str] = Counter()
        for node in nodes:
            operator = str(node.get("op_name", ""))
            if operator.startswith(_INT8):
                found["int8"] += 1
            elif operator in _FLOAT:
                found["fp32"] += 1
        return found.most_common(1)[0][0] if found else "fp32"

    def close(self) -> None:
        """End the threads and drop the session."""
        if self._pool is not None:
            self._pool.shutdown()
        self._session = None

    def _run(self, slot: int) -> Sequence[np.ndarray]:
        if self._session is None:
            raise StageError("the session is closed")
        try:
            results: Sequence[np.ndarray] = self._session.run(self._names, self._feeds[slot])
        except Exception as error:
            shapes = {name: value.shape for name, value in self._feeds[slot].items()}
            raise StageError(f"ONNX Runtime failed on inputs of shapes {shapes}: {error}") from error
        return results

    def _profiled(self) -> list[dict[str, Any]]:
        """Run the last request of slot 0, or zeros at the opt shape, in a profiled session; return what its nodes did."""
        zeros = {s.name: np.zeros(self._shapes[s.name], s.dtype) for s in self.inputs}
        with tempfile.TemporaryDirectory(prefix="accel-ort-") as scratch:
            session = open_session(self._file, self._provider, threads=1, mode="latency", profile=Path(scratch))
            session.run(self._names, self._feeds[0] or zeros)
            events = json.loads(Path(session.end_profiling()).read_text())
        return [e["args"] for e in events if e.get("cat") == "Node"]
