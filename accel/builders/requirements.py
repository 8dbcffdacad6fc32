"""What a builder needs on this machine, asked without importing anything heavy."""

import contextlib
import importlib.util
import re
import shutil
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from accel.core import environments, gpu, hardware
from accel.core.errors import UnavailableError
from accel.core.values import Skipped, Target


def missing(*modules: str) -> Skipped | None:
    """Name the first of these modules that is not installed here, with the command that brings it; None if all are."""
    for module in modules:
        if importlib.util.find_spec(module) is None:
            wanted = "'accel[torch]'" if module == "torch" else module
            return Skipped(f"the Python package {module} is not installed", f"pip install {wanted}")
    return None


def missing_program(*programs: str) -> Skipped | None:
    """Name the first of these programs that is not on the PATH, with the command that brings it; None if all are."""
    absent = [p for p in programs if shutil.which(p) is None]
    if not absent:
        return None
    return Skipped(f"{absent[0]} is not on the PATH, which a build starts", f"apt-get install {absent[0]}")


def missing_environment(name: str) -> Skipped | None:
    """Say that an environment of accel's own is not installed; None where it is."""
    if environments.installed(name):
        return None
    why = environments.get(name).why
    return Skipped(f"environment {name!r} is not installed ({why})", environments.fix(name))


def missing_gpu(target: Target) -> Skipped | None:
    """Say why a ``cuda`` target cannot run here; None where there is a GPU, and for every other device."""
    if target.device != "cuda" or (trouble := hardware.gpu_trouble()) is None:
        return None
    return Skipped(trouble, "run the same command on a machine where `nvidia-smi` lists a GPU")


def missing_bf16(target: Target, precision: str) -> Skipped | None:
    """Say that this CPU cannot compute a target's BF16; None where it can, and for other devices and precisions.

    PyTorch emulates it then, 4 to 8 times slower than FP32 (AMD EPYC with AVX2: products with 16 to 1,024 rows), and
    OpenVINO computes in FP32.
    """
    if target.device != "cpu" or precision != "bf16" or not hardware.emulates_bf16():
        return None
    reason = "this CPU has no instructions for BF16: it would be slower than FP32, or FP32 under another name"
    return Skipped(reason, "run the same command on a CPU with avx512_bf16, amx_bf16, or on Arm bf16")


def old_driver(what: str, cuda: str) -> Skipped | None:
    """Say that the driver is too old for ``what``, which is built with that CUDA version; None where it is not."""
    driver = next((found.driver for found in hardware.detect().gpus), None)
    if driver is None or (reason := gpu.too_old(driver, cuda)) is None:
        return None
    return Skipped(f"{reason}, with which {what} is built", "update the NVIDIA driver")


def missing_cuda_torch() -> Skipped | None:
    """Say that the installed torch cannot use the GPU: it is built without CUDA, or for a newer driver; None if it can.

    Read from torch's own ``version.py``: importing torch takes seconds.
    """
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        return missing("torch")
    text = Path(spec.origin).with_name("version.py").read_text(encoding="utf-8")
    cuda = re.search(r"^cuda\b[^=]*= '([\d.]+)'", text, re.MULTILINE)
    installed = version("torch")
    if cuda is None:
        plain = installed.partition("+")[0]
        return Skipped(
            f"torch {installed} is built without CUDA",
            f"pip install --force-reinstall torch=={plain} from an index whose build has CUDA (PyPI's has)",
        )
    return old_driver(f"torch {installed}", cuda[1])


def demand(skipped: Skipped | None) -> None:
    """Raise what ``available`` would have said.

    Raises:
        UnavailableError: ``skipped`` is not None.
    """
    if skipped is not None:
        raise UnavailableError(skipped.reason, fix=skipped.fix)


def versions(packages: Sequence[str]) -> dict[str, str]:
    """Return package → installed version, leaving out those that are not installed."""
    found = {}
    for package in packages:
        with contextlib.suppress(PackageNotFoundError):
            found[package] = version(package)
    return found
