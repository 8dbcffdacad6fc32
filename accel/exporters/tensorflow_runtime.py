"""TensorFlow as the exporters and the builder need it: imported without its chatter, held to a number of threads."""

import contextlib
import functools
import os
import re
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from accel.core.errors import UnavailableError, raised_as

INSTALL = "make tensorflow, or pip install 'accel[tensorflow]'"


@functools.cache
def import_tensorflow(threads: int | None = None, *, gpu: bool = False) -> Any:
    """Import TensorFlow, start its runtime and return the module; the first call in a process decides how it runs.

    Its C++ side writes to the process's stderr whatever its log level says, so that is turned away meanwhile. Both
    thread pools get ``threads``, as TensorFlow itself does on a machine with so many cores. Keras runs on TensorFlow,
    and float32 stays float32 on GPUs.

    Args:
        threads: CPU threads; None takes OMP_NUM_THREADS, which a worker's environment holds, or all cores.
        gpu: whether it may see GPUs.

    Raises:
        UnavailableError: it is not installed.
    """
    wanted = int(os.environ.get("OMP_NUM_THREADS") or 0) if threads is None else threads
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    os.environ["KERAS_BACKEND"] = "tensorflow"
    with _silent():
        with raised_as(UnavailableError, ImportError, "TensorFlow cannot be imported", fix=INSTALL):
            import tensorflow as tf
        with contextlib.suppress(RuntimeError):  # it runs already, and its pools are what they are
            tf.config.threading.set_intra_op_parallelism_threads(wanted)
            tf.config.threading.set_inter_op_parallelism_threads(wanted)
            if not gpu:
                tf.config.set_visible_devices([], "GPU")
        tf.config.experimental.enable_tensor_float_32_execution(False)
        tf.config.list_logical_devices()
    return tf


@contextlib.contextmanager
def _silent() -> Iterator[None]:
    sys.stderr.flush()
    kept = os.dup(2)
    try:
        with Path(os.devnull).open("wb") as nothing, warnings.catch_warnings(action="ignore"):
            os.dup2(nothing.fileno(), 2)
            yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)


def explain(error: Exception) -> str:
    """Return one line of an error of TensorFlow's: its kind, the node where it names one, and what was wrong there."""
    text = str(error)
    node = re.search(r"\{\{node ([^}]+)\}\}", text)
    # What is wrong stands in the line before the one that names the node, below a trace of the graph's making.
    lines = [line.strip() for line in (text[: node.start()] if node else text).splitlines()]
    told = [line for line in lines if line and line.strip("[")]
    said = (told[-1] if node else told[0]) if told else "no message"
    return f"{type(error).__name__}{f' at node {node[1]!r}' if node else ''}: {said[:400]}"
