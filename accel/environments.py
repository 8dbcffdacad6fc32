"""Interpreters for packages that cannot share one environment with the rest.

Each is a virtual environment of its own below this installation (``$ACCEL_HOME``, by default ``<prefix>/accel-envs``),
made only when the user asks: ``accel env install NAME``. Workers run in it by its interpreter.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from accel.errors import OutputError, UnavailableError, UsageError, nearest

MAIN = "main"


@dataclass(frozen=True, slots=True)
class Environment:
    """What an environment holds and why it stands alone."""

    name: str
    requirements: tuple[str, ...]
    why: str


ENVIRONMENTS = {
    e.name: e
    for e in (
        Environment(
            "ort-openvino",
            ("onnxruntime-openvino==1.24.1", "numpy==2.4.6"),
            "onnxruntime-openvino and onnxruntime are one Python module",
        ),
        Environment(
            "triton",
            ("nvidia-pytriton==0.7.0", "numpy==1.26.4"),
            "carries the embedded tritonserver 24.10, whose Python backend cannot work with NumPy 2",
        ),
        Environment(
            "perf-analyzer",
            ("tritonclient==2.50.0", "nvidia-cuda-runtime-cu12==12.9.79"),
            "carries Triton's perf_analyzer, whose older tritonclient would replace accel's own",
        ),
    )
}


def home() -> Path:
    """Return the folder that holds the environments: ``$ACCEL_HOME``, or ``accel-envs`` below this installation."""
    return Path(os.environ.get("ACCEL_HOME") or Path(sys.prefix) / "accel-envs")


def python(name: str) -> Path:
    """Return the interpreter of an environment, whether or not it is installed."""
    return Path(sys.executable) if name == MAIN else home() / name / "bin" / "python"


def site_packages(name: str) -> Path:
    """Return the folder of an environment's packages, whether or not it is installed."""
    if name == MAIN:
        return Path(sysconfig.get_path("purelib"))
    return home() / name / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"


def requirements(name: str) -> tuple[str, ...]:
    """Return what an environment pins; nothing for the one accel itself runs in."""
    return ENVIRONMENTS[name].requirements if name in ENVIRONMENTS else ()


def installed(name: str) -> bool:
    """Say whether an environment is complete: its install ended, with the packages that are wanted today."""
    if name == MAIN:
        return True
    mark = home() / name / "complete"
    return python(name).exists() and mark.exists() and mark.read_text().split() == list(get(name).requirements)


def fix(name: str) -> str:
    """Return the command that brings an environment."""
    return f"accel env install {name}"


def get(name: str) -> Environment:
    """Look an environment up.

    Raises:
        UsageError: no such environment; the nearest name is suggested.
    """
    if name not in ENVIRONMENTS:
        raise UsageError(
            f"unknown environment {name!r}{nearest(name, ENVIRONMENTS)}", fix="`accel env list` lists them"
        )
    return ENVIRONMENTS[name]


def install(name: str, *, report: Callable[[str], None]) -> Path:
    """Make an environment and return its interpreter; an interrupted install leaves nothing that counts.

    Args:
        report: takes one line per step.

    Raises:
        UsageError: no such environment.
        OutputError: the folder cannot be written.
        UnavailableError: pip could not install the packages; the end of its output is in the message.
    """
    environment = get(name)
    if installed(name):
        report(f"{name} is installed already: {home() / name}")
        return python(name)
    final = home() / name
    try:
        shutil.rmtree(final, ignore_errors=True)
        final.mkdir(parents=True)
    except OSError as error:
        raise OutputError(
            f"cannot write to {home()}: {error}", fix="set ACCEL_HOME to a folder you can write"
        ) from error
    try:
        report(f"{name}: creating {final}")
        venv.create(final, with_pip=True)  # an environment cannot be moved: it is made in place, and counts when marked
        report(f"{name}: pip install {' '.join(environment.requirements)}")
        command = [str(python(name)), "-m", "pip", "install", "--quiet", *environment.requirements]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise UnavailableError(
                f"pip could not install environment {name!r}:\n{done.stderr.strip()[-1500:]}",
                fix=f"check the package index, then run `{fix(name)}` again",
            )
        (final / "complete").write_text("\n".join(environment.requirements))
    except BaseException:
        shutil.rmtree(final, ignore_errors=True)
        raise
    report(f"{name}: ready")
    return python(name)


def remove(name: str) -> bool:
    """Delete an environment; returns whether there was one."""
    get(name)
    folder = home() / name
    if not folder.exists():
        return False
    shutil.rmtree(folder)
    return True
