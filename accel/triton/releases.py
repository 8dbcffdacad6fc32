"""What the image of each Triton release carries, every row with its source.

A value that could not be sourced is None and treated as unknown, never guessed. The rows describe the ``<release>-py3``
image. A version may be given only as far as its source states it: ``"11"`` says the major version and no more.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from accel.core.errors import UsageError, nearest
from accel.core.values import Skipped, TritonModel

_SERVER = "https://github.com/triton-inference-server/server"
_MATRIX = f"{_SERVER}/blob/main/docs/introduction/compatibility.md"
_ORT_TRT11 = "https://github.com/triton-inference-server/onnxruntime_backend/pull/344"
_BACKENDS_DOC = "https://github.com/triton-inference-server/backend/blob/{}/README.md"
_TORCH_DOC = "https://github.com/triton-inference-server/pytorch_backend/blob/{}/README.md"

BACKENDS = frozenset({"tensorrt", "onnxruntime", "pytorch", "openvino", "python", "ensemble"})
"""Backends accel emits for that every release of the table has."""


@dataclass(frozen=True, slots=True)
class TritonRelease:
    """One release of Triton Inference Server.

    Attributes:
        name: container release, ``YY.MM``.
        server: version of the server itself.
        onnxruntime / openvino: versions its backends are built with; ONNX Runtime's OpenVINO provider uses the same
            OpenVINO.
        tensorrt: TensorRT of the image, as far as known.
        torch: LibTorch of the pytorch backend, as far as known.
        python: interpreter of the Python backend.
        backends: the backends of ``BACKENDS``, and ``tensorflow`` where it still exists.
        sources: where each value comes from.
    """

    name: str
    server: str
    onnxruntime: str
    openvino: str
    tensorrt: str | None
    torch: str | None
    python: str | None
    backends: frozenset[str]
    sources: tuple[str, ...]

    @property
    def torch_aoti(self) -> bool:
        """Whether the pytorch backend serves AOTInductor packages under documented tensor names.

        Packages load since 26.03; naming tensors by the call specification (``ARGS[0]``, ``RESULT[0]``) came in 26.05.
        Source: pytorch_backend README at r26.05, "AOT Inductor Support (Beta)" and "Model Configuration".
        """
        return self.name >= "26.05"

    @property
    def numpy_below_2(self) -> bool:
        """Whether the Python backend answers with empty outputs, and no error, under NumPy 2.

        Source: python_backend CMakeLists.txt: pybind11 2.10 until 24.10, 2.12 (the first that knows NumPy 2) from
        24.11; seen with server 2.51.0 and NumPy 2.4.
        """
        return self.name < "24.11"


def _row(
    name: str, server: str, ort: str, openvino: str, *, python: str | None, torch: str | None = None
) -> TritonRelease:
    build = f"{_SERVER}/blob/r{name}/build.py: ONNX Runtime, OpenVINO"
    # The exact TensorRT of the py3 image stands only in a support matrix that could not be read. Its major version
    # follows from the ONNX Runtime backend's move to 11 in the 26.06 cycle, and from the TensorRT-LLM images of the
    # releases before, all of them on 10.x. The move was carried to 26.07; for later ones nothing was found.
    tensorrt = "10" if name < "26.06" else "11" if name <= "26.07" else None
    known = [build]
    if tensorrt:
        known.append(f"{_ORT_TRT11} and {_MATRIX}: TensorRT, major version only")
    if torch:
        known.append(f"{_TORCH_DOC.format('r26.05')}: torch of the upstream container that build.py names")
    if python:
        known.append(f"{_MATRIX}: Python, of the vLLM image of this release")
    known.append(f"{_BACKENDS_DOC.format('r25.02')}: supported backends; TensorFlow until 25.02")
    backends = BACKENDS | {"tensorflow"} if name <= "25.02" else BACKENDS
    return TritonRelease(name, server, ort, openvino, tensorrt, torch, python, backends, tuple(known))


RELEASES: Mapping[str, TritonRelease] = {
    row.name: row
    for row in (
        _row("24.10", "2.51.0", "1.19.2", "2024.4.0", python="3.10.12"),
        _row("24.11", "2.52.0", "1.19.2", "2024.4.0", python="3.12.3"),
        _row("24.12", "2.53.0", "1.20.1", "2024.5.0", python="3.12.3"),
        _row("25.01", "2.54.0", "1.20.1", "2024.5.0", python="3.12.3"),
        _row("25.02", "2.55.0", "1.20.1", "2025.0.0", python="3.12.3"),
        _row("25.03", "2.56.0", "1.21.0", "2025.0.0", python="3.12.3"),
        _row("25.04", "2.57.0", "1.21.0", "2025.0.0", python="3.12.3"),
        _row("25.05", "2.58.0", "1.22.0", "2025.1.0", python="3.12.3"),
        _row("25.06", "2.59.0", "1.22.0", "2025.1.0", python="3.12.3"),
        _row("25.07", "2.59.1", "1.22.0", "2025.1.0", python="3.12.3"),
        _row("25.08", "2.60.0", "1.23.0", "2025.2.0", python="3.12.3"),
        _row("25.09", "2.61.0", "1.23.0", "2025.3.0", python="3.12.3"),
        _row("25.10", "2.62.0", "1.23.1", "2025.3.0", python="3.12.3"),
        _row("25.11", "2.63.0", "1.23.2", "2025.3.0", python="3.12.3"),
        _row("25.12", "2.64.0", "1.23.2", "2025.4.0", python="3.12.3"),
        _row("26.01", "2.65.0", "1.23.2", "2025.4.1", python="3.12.3"),
        _row("26.02", "2.66.0", "1.24.1", "2025.4.1", python="3.12.3"),
        _row("26.03", "2.67.0", "1.24.2", "2026.0.0", python="3.12.3"),
        _row("26.04", "2.68.0", "1.24.4", "2026.1.0", python="3.12.3", torch="2.12.0a0"),
        _row("26.05", "2.69.0", "1.24.4", "2026.1.0", python="3.12.3", torch="2.12.0a0"),
        _row("26.06", "2.70.0", "1.24.4", "2026.2.0", python="3.12.3"),
        _row("26.07", "2.71.0", "1.27.0", "2026.2.0", python="3.12.3"),
        _row("26.08", "2.72.0", "1.28.0", "2026.3.0", python=None),
    )
}
NEWEST = max(RELEASES)
"""The newest release this table knows; what ``--triton-release`` defaults to."""


def release(name: str) -> TritonRelease:
    """Return the release of that name.

    Raises:
        UsageError: the table does not know it; the nearest known one is suggested.
    """
    if name not in RELEASES:
        raise UsageError(
            f"unknown Triton release {name!r}{nearest(name, RELEASES)}", fix=f"known releases: {', '.join(RELEASES)}"
        )
    return RELEASES[name]


def unservable(served: TritonModel, release: TritonRelease) -> Skipped | None:
    """Say that a release cannot serve a model as its builder says; None where it can."""
    if served.backend not in release.backends:
        return Skipped(f"Triton {release.name} has no {served.backend} backend", "choose another --triton-release")
    if served.platform == "torch_aoti" and not release.torch_aoti:
        return Skipped(
            f"Triton {release.name} does not serve AOTInductor packages", "choose --triton-release 26.05 or newer"
        )
    return None


def runtimes(backend: str, accelerators: tuple[str, ...] = ()) -> tuple[str, ...]:
    """Name the packages of a toolchain that the image must match for one backend.

    The Python backend needs none of the image's own: its runtime is installed into the image at the artifact's version.
    """
    native = {
        "onnxruntime": ("onnxruntime",),
        "openvino": ("openvino",),
        "pytorch": ("torch",),
        "tensorrt": ("tensorrt",),
        "tensorflow": ("tensorflow",),
    }
    return native.get(backend, ()) + tuple(a for a in accelerators if a in ("tensorrt", "openvino"))


def carried(release: TritonRelease, backend: str) -> dict[str, str | None]:
    """Return package → version that the release carries of what one backend runs on; None where it is not known."""
    return {package: _carried(release)[package] for package in runtimes(backend)}


def _carried(release: TritonRelease) -> dict[str, str | None]:
    return {
        "onnxruntime": release.onnxruntime,
        "openvino": release.openvino,
        "torch": release.torch,
        "tensorrt": release.tensorrt,
        "tensorflow": None,  # no source that could be read says which one the last images with that backend have
    }


def differences(
    versions: Mapping[str, str], release: TritonRelease, *, backend: str, accelerators: tuple[str, ...]
) -> tuple[str, ...]:
    """Compare as ``unverified`` does, leaving out what took part in a build and does not serve under that backend."""
    wanted = runtimes(backend, accelerators)
    return unverified({n: v for n, v in versions.items() if _normal(n).startswith(wanted)}, release)


def _normal(package: str) -> str:
    return package.lower().replace("_", "-")


def unverified(versions: Mapping[str, str], release: TritonRelease) -> tuple[str, ...]:
    """Compare an artifact's toolchain with what the release carries; one sentence for each difference.

    Args:
        versions: package → version. Only ``onnxruntime`` and ``tensorflow`` (any of their distributions), ``openvino``,
            ``torch`` and ``tensorrt`` are compared; leave out what took part in the build but does not serve.
        release: a row of the table.
    """
    carried = _carried(release)
    found: list[str] = []
    for package, version in sorted(versions.items()):
        name = _normal(package)
        name = next((n for n in ("onnxruntime", "tensorflow") if name.startswith(n)), name)
        if name not in carried:
            continue
        theirs = carried[name]
        if theirs is None:
            found.append(f"built with {package} {version}; what Triton {release.name} carries is not known")
        elif not _agree(version, theirs):
            found.append(f"built with {package} {version}, Triton {release.name} carries {theirs}")
    return tuple(found)


def _agree(one: str, other: str) -> bool:
    """Compare as many numeric components as both versions state (``11.4.0.106`` agrees with ``11``)."""
    a, b = (re.match(r"\d+(\.\d+)*", text) for text in (one, other))
    if a is None or b is None:
        return one == other
    return all(int(x) == int(y) for x, y in zip(a[0].split("."), b[0].split("."), strict=False))
