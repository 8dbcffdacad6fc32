"""What a builder needs on this machine, asked without importing anything heavy."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version

from accel import environments, hardware
from accel.artifacts import Skipped, Target
from accel.errors import UnavailableError


def missing(*modules: str) -> Skipped | None:
    """Name the first of these modules that is not installed here, with the command that brings it; None if all are."""
    for module in modules:
        if importlib.util.find_spec(module) is None:
            return Skipped(f"the Python package {module} is not installed", f"pip install {module}")
    return None


def missing_environment(name: str) -> Skipped | None:
    """Say that an environment of accel's own is not installed; None where it is."""
    if environments.installed(name):
        return None
    why = environments.get(name).why
    return Skipped(f"environment {name!r} is not installed ({why})", environments.fix(name))


def missing_gpu(target: Target) -> Skipped | None:
    """Say why a ``cuda`` target cannot be built here; None for every other device."""
    if target.device != "cuda":
        return None
    if not hardware.detect().gpus:
        return Skipped(
            "there is no NVIDIA GPU on this machine",
            "run the same command on a machine where `nvidia-smi` lists a GPU",
        )
    return Skipped(f"this version of accel does not build {target}", "choose a target of the group `cpu`")


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
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found
