"""TensorRT's Python package: imported once its major version is known, and its log kept for the error messages.

Everything that TensorRT has to say about a failure goes to its logger; its calls only return None or False. So every
call that can fail runs between ``Log.clear`` and ``Log.failure``.
"""

import importlib
import re
import sys
from types import ModuleType
from typing import Any

from accel.builders.requirements import demand
from accel.core.errors import AccelError, StageError, UnavailableError, raised_as
from accel.core.values import Skipped

MAJORS = (10, 11)
"""Majors whose API the builder was checked against; both know strongly typed networks."""

PACKAGES = (
    "tensorrt",
    "tensorrt-cu13",
    "tensorrt-cu13-bindings",
    "tensorrt-cu12",
    "tensorrt-cu12-bindings",
)
"""Distributions that carry the bindings, or ask for them."""

INSTALL = (
    "pip install 'accel[tensorrt]' from an index that has TensorRT's libraries, or use the image of Dockerfile.gpu"
)


CAUSES: tuple[tuple[str, type[AccelError], str, str], ...] = (
    (
        r"insufficient.*driver|driver.*insufficient|error: 35|error code 35",
        UnavailableError,
        "the NVIDIA driver is too old for this TensorRT's CUDA",
        "update the driver, or install the TensorRT of an older CUDA (the -cu12 packages)",
    ),
    (
        r"no cuda-capable device|error: 100|cuda initialization failure",
        UnavailableError,
        "CUDA does not start",
        "`nvidia-smi` must list a GPU; see accel doctor",
    ),
    (
        r"out of memory|outofmemory|memory allocation|insufficient memory",
        StageError,
        "the GPU's memory ran out",
        "lower --max-shape or the option workspace_mib, set weight_streaming, or free the GPU",
    ),
    (
        r"not compatible|incompatible|serialization assertion|version tag",
        StageError,
        "the plan was built elsewhere",
        "a plan fits one TensorRT version and one kind of GPU: build it again here",
    ),
)
"""What TensorRT says, what kind of failure that is, its cause, and its fix; the first that fits counts."""


def import_tensorrt() -> ModuleType:
    """Import TensorRT under the name ``tensorrt``, also where only its bindings are installed.

    Raises:
        UnavailableError: it is not installed, its libraries are not found, or its major version is not known here.
    """
    try:
        trt = importlib.import_module("tensorrt")
    except ModuleNotFoundError:
        with raised_as(UnavailableError, ImportError, "TensorRT cannot be imported", fix=INSTALL):
            trt = importlib.import_module("tensorrt_bindings")
    except ImportError as error:
        raise UnavailableError(
            f"TensorRT is installed, and its libraries are not found: {error}", fix=INSTALL
        ) from error
    demand(unknown_major(str(trt.__version__)))
    sys.modules.setdefault("tensorrt", trt)  # the bindings alone carry another name, and Polygraphy asks for this one
    return trt


def unknown_major(version: str) -> Skipped | None:
    """Say that a TensorRT version is of a major that this accel does not know; None where it knows it."""
    if version.partition(".")[0] in map(str, MAJORS):
        return None
    return Skipped(
        f"TensorRT {version} is of a major version that accel does not know (it knows {MAJORS[0]} and {MAJORS[1]})",
        "install TensorRT 10 or 11, or a newer accel",
    )


class Log:
    """Makes loggers for TensorRT and keeps what they are told.

    Args:
        trt: the imported package.
    """

    def __init__(self, trt: Any) -> None:
        self.errors: list[str] = []
        log = self

        class Logger(trt.ILogger):
            """Prints warnings and errors, which end up in the build's log."""

            def __init__(self) -> None:
                trt.ILogger.__init__(self)

            def log(self, severity: Any, msg: str) -> None:
                if severity in (trt.ILogger.INTERNAL_ERROR, trt.ILogger.ERROR):
                    log.errors.append(str(msg))
                if severity != trt.ILogger.VERBOSE:
                    sys.stderr.write(f"[TensorRT {str(severity).rpartition('.')[2]}] {msg}\n")

        self.logger = Logger()

    def clear(self) -> None:
        """Forget what was said before the next call."""
        self.errors.clear()

    def failure(self, what: str) -> AccelError:
        """Make the error for a call that failed, from what TensorRT said about it.

        Args:
            what: what failed, on what.
        """
        return explain(what, self.errors)


def explain(what: str, said: list[str]) -> AccelError:
    """Tell the causes apart that a user can fix.

    Args:
        what: what failed, on what.
        said: TensorRT's error messages, oldest first.

    Source: NVIDIA TensorRT documentation, "Troubleshooting", and CUDA runtime API, ``cudaError_t``:
    cudaErrorMemoryAllocation (2), cudaErrorInsufficientDriver (35), cudaErrorNoDevice (100).
    """
    text = "; ".join(dict.fromkeys(said)) or "TensorRT gave no reason"
    message = f"{what}: {text[:900]}"
    for pattern, kind, cause, fix in CAUSES:
        if re.search(pattern, text, re.IGNORECASE | re.DOTALL):
            return kind(f"{cause}; {message}", fix=fix)
    return StageError(message)
