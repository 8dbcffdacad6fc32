"""An ONNX Runtime session on one provider; the runtime's own profile tells what it computes in, and where.

Imports only what the environments of ONNX Runtime hold: NumPy and one build of ONNX Runtime.
"""

import json
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from accel.builders import Mode, Session, timed_parts
from accel.builders.ort_providers import CUDA, GPU_SLOTS, OPENVINO, TENSORRT, Provider, fallback_nodes, load_libraries
from accel.core import gpu
from accel.core.errors import StageError, UnavailableError
from accel.core.feeds import Feed
from accel.core.values import Artifact, CallSplit, TensorSpec

_DTYPES = {
    "float": "float32",
    "float16": "float16",
    "double": "float64",
    "bool": "bool",
    **{name: name for sign in ("int", "uint") for bits in (8, 16, 32, 64) for name in [f"{sign}{bits}"]},
}
INT8_PRODUCTS = (
    *("MatMulInteger", "DynamicQuantizeMatMul", "QLinearMatMul", "QLinearConv", "QGemm", "QAttention", "ConvInteger"),
)
"""How the names of the operators begin that multiply integers."""
_FLOAT = ("MatMul", "Gemm", "FusedMatMul", "FusedGemm", "Conv", "FusedConv", "NhwcFusedConv", "Attention")
_SHORT = {"float": "fp32", "float16": "fp16", "bfloat16": "bf16"}
_FIX = {
    OPENVINO: "accel env install ort-openvino",
    CUDA: "accel env install ort-gpu; the log of the variant names a library that is missing",
    TENSORRT: "accel env install ort-gpu; the log of the variant names a library that is missing",
}


def open_session(
    path: Path,
    provider: Provider,
    *,
    threads: int,
    mode: Mode,
    profile: Path | None = None,
    as_written: bool = False,
) -> Any:
    """Open a file on one provider.

    In latency mode one request uses all threads; in throughput mode each of ``threads`` requests runs on one.

    Args:
        profile: folder for the runtime's profile; None for no profile.
        as_written: whether every node runs as the file has it.

    Raises:
        UnavailableError: this build of ONNX Runtime lacks the provider, or cannot load its libraries.
        StageError: the file cannot be loaded, device memory ran out, or a TensorRT engine was built elsewhere.
    """
    import onnxruntime as ort

    if provider.name not in ort.get_available_providers():
        raise UnavailableError(
            f"onnxruntime {ort.__version__} has no {provider.name} (found {ort.get_available_providers()})",
            fix=_FIX.get(provider.name, "pip install onnxruntime").partition(";")[0],
        )
    load_libraries(provider, ort)
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads if mode == "latency" else 1
    options.execution_mode = ort.ExecutionMode.ORT_SEQUENTIAL
    options.log_severity_level = 3
    if profile is not None:
        options.enable_profiling = True
        options.profile_file_prefix = str(profile / "ort")
    if as_written:
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
        options.add_session_config_entry("session.disable_prepacking", "1")  # a profile lacks what was packed
    if provider.name == OPENVINO:
        options.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
    chain = [(provider.name, dict(provider.options)), *((name, dict(given)) for name, given in provider.behind)]
    try:
        session = ort.InferenceSession(str(path), options, providers=chain, enable_fallback=0)
    except Exception as error:
        raise failure(f"ONNX Runtime could not load {path.name} on {provider.name}", error) from error
    if session.get_providers()[0] != provider.name:
        raise UnavailableError(
            f"asked ONNX Runtime for {provider.name}, and the session runs on {session.get_providers()}",
            fix=_FIX.get(provider.name),
        )
    return session


def failure(what: str, error: Exception) -> StageError:
    """Turn an error of the runtime into accel's, with a remedy of its own where memory ran out."""
    if gpu.ran_out_of_memory(error):
        return StageError(f"{what}: memory ran out: {error}", fix="free memory, or use smaller shapes (--max-shape)")
    return StageError(f"{what}: {error}")


def _ran(feed: Feed, run: Callable[..., Any], *given: Any) -> Any:
    """Return what the runtime gives; its error names the shapes of the inputs."""
    try:
        return run(*given)
    except Exception as error:
        raise _refused(feed, error) from error


def _refused(feed: Feed, error: Exception) -> StageError:
    shapes = {name: value.shape for name, value in feed.items()}
    return failure(f"ONNX Runtime failed on inputs of shapes {shapes}", error)


def declared_specs(session: Any) -> tuple[list[TensorSpec], list[TensorSpec]]:
    """Return the inputs and outputs as the runtime read them from the file; a dynamic axis is a string."""

    def dtype(node: Any) -> str:
        kind = node.type.removeprefix("tensor(").removesuffix(")")
        if kind not in _DTYPES:
            raise StageError(f"{node.name!r} is a {node.type}: expected a tensor of one of {', '.join(_DTYPES)}")
        return _DTYPES[kind]

    def specs(nodes: Sequence[Any]) -> list[TensorSpec]:
        return [
            TensorSpec(
                node.name,
                dtype(node),
                tuple(d if isinstance(d, int) else str(d or "?") for d in node.shape),
            )
            for node in nodes
        ]

    return specs(session.get_inputs()), specs(session.get_outputs())


class OrtSession(Session):
    """One loaded file; in throughput mode one slot for each thread, and two on a GPU."""

    fresh = True

    def __init__(self, artifact: Artifact, folder: Path, provider: Provider, *, threads: int, mode: Mode) -> None:
        built = artifact.built
        many = GPU_SLOTS if provider.device == "cuda" else threads
        super().__init__(built.inputs, built.outputs, many if mode == "throughput" else 1)
        self._provider = provider
        self._products: Mapping[str, int] = built.facts.get("products", {})
        self._file = folder / built.entry
        self._shapes = {name: shape.opt for name, shape in artifact.variant.profile.items()}
        self._names = [s.name for s in built.outputs]
        self._session = open_session(self._file, provider, threads=threads, mode=mode)
        self._pool = ThreadPoolExecutor(self.slots) if mode == "throughput" else None
        self._feeds: list[Feed] = [{} for _ in range(self.slots)]
        self._results: list[Sequence[np.ndarray]] = [() for _ in range(self.slots)]
        self._pending: list[Future[Sequence[np.ndarray]] | None] = [None] * self.slots

    def call(self, inputs: Feed, *, slot: int = 0) -> dict[str, np.ndarray]:
        """As for every session; where this thread runs the request, in one step."""
        if self._pool is not None or self._session is None:
            return super().call(inputs, slot=slot)
        self._feeds[slot] = inputs
        try:
            return dict(zip(self._names, self._session.run(self._names, inputs)))  # noqa: B905  # as many as were named
        except Exception as error:
            raise _refused(inputs, error) from error

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
        as one node; it computes in FP32 unless its options ask for less. The TensorRT provider does so too: a strongly
        typed network computes in the types of the file, whose matrix products were counted when it was built.
        Source: https://onnxruntime.ai/docs/execution-providers/OpenVINO-ExecutionProvider.html (``precision``);
        TensorRT documentation, "Strongly Typed Networks".

        Raises:
            StageError: a node ran on another provider than the one asked for, and none may.
        """
        nodes = self._profiled()
        if self._provider.strict and (elsewhere := fallback_nodes(nodes, self._provider.name)):
            raise fallback(self._provider.name, elsewhere)
        if self._provider.name == OPENVINO:
            return "fp32"
        found = Counter(self._products) if self._provider.name == TENSORRT else _products(nodes)
        precision = found.most_common(1)[0][0] if found else "fp32"
        return "tf32" if precision == "fp32" and self._uses_tf32() else precision

    def close(self) -> None:
        """End the threads and drop the session."""
        if self._pool is not None:
            self._pool.shutdown()
        self._session = None

    def _uses_tf32(self) -> bool:
        """Read the setting back; TensorRT's own default allows TF32, and its provider has no option for it."""
        if self._provider.name == TENSORRT:
            return True
        given = self._session.get_provider_options() if self._session is not None else {}
        return str(given.get(CUDA, {}).get("use_tf32", "0")) == "1"

    def _run(self, slot: int) -> Sequence[np.ndarray]:
        if self._session is None:
            raise StageError("the session is closed")
        feed = self._feeds[slot]
        results: Sequence[np.ndarray] = _ran(feed, self._session.run, self._names, feed)
        return results

    def _profiled(self) -> list[dict[str, Any]]:
        """Run the last request of slot 0, or zeros at the opt shape, in a profiled session; see ``profiled``."""
        zeros = {s.name: np.zeros(self._shapes[s.name], s.dtype) for s in self.inputs}
        return profiled(self._file, self._provider, self._feeds[0] or zeros)


class OrtDeviceSession(OrtSession):
    """A session whose inputs and outputs are bound to device memory, so that copies are apart from the run.

    Inputs are copied into buffers that stay as long as their shape does; outputs lie where the runtime puts them until
    they are read.

    Source: https://onnxruntime.ai/docs/performance/device-tensor.html.
    """

    call = Session.call

    def __init__(self, artifact: Artifact, folder: Path, provider: Provider, *, threads: int, mode: Mode) -> None:
        super().__init__(artifact, folder, provider, threads=threads, mode=mode)
        self._bindings = [self._session.io_binding() for _ in range(self.slots)]
        self._buffers: list[dict[str, tuple[tuple[int, ...], Any]]] = [{} for _ in range(self.slots)]

    def bind(self, inputs: Feed, *, slot: int = 0) -> None:
        """Copy the arrays to the device.

        Raises:
            StageError: the session is closed, or device memory ran out.
        """
        import onnxruntime as ort

        self._feeds[slot] = inputs
        binding, buffers = self._binding(slot), self._buffers[slot]
        try:
            for name, array in inputs.items():
                shape, buffer = buffers.get(name, ((), None))
                if buffer is None or shape != array.shape:
                    device = self._provider.device
                    buffer = ort.OrtValue.ortvalue_from_shape_and_type(array.shape, array.dtype.type, device, 0)
                    buffers[name] = array.shape, buffer
                    binding.bind_ortvalue_input(name, buffer)
                buffer.update_inplace(array)
            for name in self._names:  # a run leaves its own outputs bound, in its own shapes
                binding.bind_output(name, self._provider.device, 0)
        except Exception as error:
            raise failure("the inputs could not be copied to the device", error) from error

    def read(self, *, slot: int = 0) -> dict[str, np.ndarray]:
        """Copy the outputs from the device."""
        return dict(zip(self._names, self._binding(slot).copy_outputs_to_cpu(), strict=True))

    def split(self, inputs: Feed) -> CallSplit | None:
        """Copy in, run and copy out, with the host waiting for the device after each."""

        def copy_in() -> None:
            self.bind(inputs)
            self._binding(0).synchronize_inputs()

        def compute() -> None:
            self._run(0)
            self._binding(0).synchronize_outputs()

        return timed_parts(inputs, copy_in=copy_in, compute=compute, copy_out=self.read)

    def close(self) -> None:
        """Give the device's memory back."""
        self._bindings, self._buffers = [], []
        super().close()

    def _binding(self, slot: int) -> Any:
        if not self._bindings:
            raise StageError("the session is closed")
        return self._bindings[slot]

    def _run(self, slot: int) -> Sequence[np.ndarray]:
        binding = self._binding(slot)
        _ran(self._feeds[slot], self._session.run_with_iobinding, binding)
        return ()


def profiled(file: Path, provider: Provider, feed: Feed, *, as_written: bool = False) -> list[dict[str, Any]]:
    """Run one request in a profiled session of its own; return its nodes' events: ``args``, with the event's name.

    Args:
        as_written: as of ``open_session``.
    """
    with tempfile.TemporaryDirectory(prefix="accel-ort-") as scratch:
        session = open_session(file, provider, threads=1, mode="latency", profile=Path(scratch), as_written=as_written)
        _ran(feed, session.run, None, dict(feed))
        events = json.loads(Path(session.end_profiling()).read_text())
    return [{**e["args"], "name": e.get("name", "")} for e in events if e.get("cat") == "Node"]


def fallback(provider: str, elsewhere: Sequence[str]) -> StageError:
    """Return the error for nodes that ran elsewhere: it names them."""
    more = f" and {len(elsewhere) - 10} more" if len(elsewhere) > 10 else ""
    return StageError(
        f"asked ONNX Runtime for {provider}, and {len(elsewhere)} nodes ran elsewhere: "
        f"{', '.join(elsewhere[:10])}{more}",
        fix="choose another target, or accept it with the option allow_fallback of the target",
    )


def _products(nodes: Sequence[Mapping[str, Any]]) -> Counter[str]:
    """Count matrix products and convolutions by what they compute in."""
    found: Counter[str] = Counter()
    for node in nodes:
        operator = str(node.get("op_name", ""))
        if operator.startswith(INT8_PRODUCTS):
            found["int8"] += 1
        elif operator in _FLOAT:
            first = next(iter(node.get("input_type_shape", ())), {"float": ()})
            found[_SHORT.get(next(iter(first), "float"), "fp32")] += 1
    return found
