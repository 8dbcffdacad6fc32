"""ONNX Runtime as the evaluator of ONNX files: sessions on the CPU that say what a graph computes.

The one module outside ``builders`` that opens ONNX Runtime. Nothing here is measured or shipped.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from accel.core.errors import StageError, UnavailableError, first_line, raised_as

OLDEST = 7
"""First opset that ONNX Runtime has all operators of. Source: https://onnxruntime.ai/docs/reference/compatibility.html"""


def open_light(path: Path, threads: int, *, exact: bool = True) -> Any:
    """Open a session for few runs: what it takes is given back at once, and no weight is packed into a second copy.

    Args:
        threads: CPU threads; 0 for all.
        exact: whether Q/DQ pairs are computed as written: round, then multiply in floating point. By default ONNX
            Runtime turns them into integer kernels, as it does where the file is served. Their sums saturate on CPUs
            without VNNI: an error that a GPU does not have.

    Raises:
        StageError: ONNX Runtime cannot load the file.
    """
    import onnxruntime as ort

    options = _options(threads=threads, severity=4)
    options.enable_cpu_mem_arena = False
    # Nodes run as the file has them: values live no longer than there.
    options.execution_order = ort.ExecutionOrder.PRIORITY_BASED
    options.add_session_config_entry("session.disable_quant_qdq", "1" if exact else "0")
    options.add_session_config_entry("session.disable_prepacking", "1")
    with raised_as(StageError, Exception, f"ONNX Runtime cannot load {path.name}"):
        return _session(str(path), options)


def open_fast(model: bytes, threads: int) -> Any:
    """Open a session of a serialised model for its speed; none of its threads spins after a run."""
    options = _options(threads=threads, severity=4)
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    return _session(model, options)


def open_unoptimised(path: Path, model: bytes | None = None) -> Any:
    """Open a session with every optimisation off: the file as it is written.

    Args:
        model: a serialised model that is opened in the file's place.

    Raises:
        UnavailableError: this ONNX Runtime cannot run it (an operator, opset or IR it lacks).
    """
    import onnxruntime as ort

    with raised_as(
        UnavailableError,
        Exception,
        f"ONNX Runtime {ort.__version__} cannot load {path.name}",
        fix="if it names an opset or IR version, export the model again with opset 18 to 21 and IR version 10 or "
        "older; an operator that it lacks must be replaced in the model",
        say=first_line,
    ):
        return _session(str(path) if model is None else model, _options(severity=4, optimised=False))


def kernel_check(*, optimised: bool = False) -> Callable[[bytes | str], bool]:
    """Return a function that says whether ONNX Runtime loads a model, serialised or in a file.

    It has the kernels then, and all sizes agree.

    Args:
        optimised: whether its optimisations must take it, too: they look into branches that never run.

    Raises:
        ImportError: ONNX Runtime is not installed.
    """
    from onnxruntime.capi import onnxruntime_pybind11_state as refusals

    options = _options(threads=1, severity=4, optimised=optimised)
    kinds = (refusals.NotImplemented, refusals.Fail, refusals.InvalidGraph, refusals.InvalidArgument)

    def accepts(model: bytes | str) -> bool:
        try:
            _session(model, options)
        except kinds:
            return False
        return True

    return accepts


def _options(*, threads: int = 0, severity: int = 3, optimised: bool = True) -> Any:
    """Return session options; ``severity`` is the least of what is logged (3 errors, 4 fatal errors)."""
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = severity
    if not optimised:
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    return options


def _session(model: str | bytes, options: Any) -> Any:
    import onnxruntime as ort

    return ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
