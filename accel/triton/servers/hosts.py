"""Ways to run a Triton server: the embedded one, one of this machine, and the image of a release in docker."""

import os
import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from accel.builders import targets
from accel.core import environments
from accel.core.errors import InputError, UnavailableError, UsageError
from accel.core.files import link_or_copy, remove
from accel.core.values import PYTHON_BACKEND
from accel.triton import manifest as manifests
from accel.triton.folders import link_tree
from accel.triton.launch import image
from accel.triton.reading import read_configs
from accel.triton.releases import RELEASES, TritonRelease, release as find_release
from accel.triton.servers import Via
from accel.triton.servers.processes import EXIT_TIMEOUT_S, LOCALHOST

EMBEDDED_RELEASE = "24.10"
"""Release of the server in nvidia-pytriton 0.7.0, whose metadata says 2.51.0."""
ENVIRONMENT = environments.TRITON
HERE = f"{sys.version_info.major}.{sys.version_info.minor}"


@dataclass(frozen=True, slots=True)
class Host:
    """A way to run a server.

    Attributes:
        via: ``embedded``, ``local`` or ``docker``.
        program: tritonserver, or docker.
        release: what it carries, as far as known.
        backends: the backends it has; None where that cannot be told.
        environment: variables of its own.
        flags: flags of its own.
        python: version (``3.12``) of its Python backend, as far as known.
        image: docker image to run it in; None for a program of this machine.
        own_backends: folder of the backends that it has, where it is known.
    """

    via: str
    program: str
    release: str | None
    backends: frozenset[str] | None
    environment: Mapping[str, str]
    flags: tuple[str, ...] = ()
    python: str | None = None
    image: str | None = None
    own_backends: Path | None = None


def embedded(root: Path, release: str | None, scratch: Path) -> Host:
    """Prepare the server of the ``triton`` environment: a backend directory of its own, with this Python's stub.

    Raises:
        UsageError: another release was asked for.
        UnavailableError: the environment is not installed, or a library that it needs is not on this machine.

    Source: python_backend README, "Building Custom Python Backend Stub": the stub lies beside the backend, and is built
    for one Python version.
    """
    if release not in (None, EMBEDDED_RELEASE):
        raise UsageError(
            f"the embedded server is Triton {EMBEDDED_RELEASE}, not {release}", fix="--via docker runs other releases"
        )
    if not environments.installed(ENVIRONMENT):
        raise UnavailableError("the embedded Triton server is not installed", fix=environments.fix(ENVIRONMENT))
    packages = environments.site_packages(ENVIRONMENT)
    server = packages / "pytriton" / "tritonserver"
    stub = server / "python_backend_stubs" / HERE / "triton_python_backend_stub"
    if not stub.is_file():
        raise UnavailableError(f"the embedded server has no stub for Python {HERE}", fix="use Python 3.11 to 3.13")
    backend = scratch / "backends" / PYTHON_BACKEND
    backend.mkdir(parents=True)
    for file in (*(server / "backends" / PYTHON_BACKEND).iterdir(), stub):
        if file.is_file():
            link_or_copy(file, backend / file.name)  # the server follows links, and refuses what lies elsewhere
    libraries = (sysconfig.get_config_var("LIBDIR"), packages / "nvidia_pytriton.libs")
    # The embedded interpreter finds its packages through the python3 that comes first on PATH.
    environment = {
        "LD_LIBRARY_PATH": _joined(*libraries, os.environ.get("LD_LIBRARY_PATH")),
        "PATH": _joined(environments.python(ENVIRONMENT).parent, os.environ.get("PATH", os.defpath)),
        "PYTHON_ENV": str(environments.home() / ENVIRONMENT),
    }
    _check_libraries(stub, environment)
    return Host(
        via="embedded",
        program=str(server / "bin" / "tritonserver"),
        release=EMBEDDED_RELEASE,
        backends=frozenset({PYTHON_BACKEND}),
        environment=environment,
        flags=(f"--backend-directory={backend.parent}", f"--cache-directory={server / 'caches'}"),
        python=HERE,
        own_backends=backend.parent,
    )


def _joined(*folders: Path | str | None) -> str:
    return os.pathsep.join(str(folder) for folder in folders if folder)


def _check_libraries(stub: Path, environment: Mapping[str, str]) -> None:
    """Refuse a stub that the loader could not load: the server would only say that it is not healthy."""
    if missing := environments.missing_libraries(stub, environment):
        package = re.sub(r"^(libpython[0-9.]+)\.so.*", r"\1", missing[0])
        raise UnavailableError(
            f"the embedded server needs {', '.join(missing)}, which is not on this machine",
            fix=f"apt-get install {package}, or use a Python that was built with --enable-shared",
        )


def local(root: Path, release: str | None, scratch: Path) -> Host:
    """Take ``$TRITONSERVER`` or the ``tritonserver`` on PATH, with the backends that lie beside it.

    Raises:
        UnavailableError: there is none.

    Source: an image sets TRITON_SERVER_VERSION, and has ``bin`` and ``backends`` in one folder (server build.py).
    """
    program = local_program()
    if program is None:
        raise UnavailableError(
            "there is no tritonserver on PATH or in TRITONSERVER", fix="--via embedded or --via docker"
        )
    folder = Path(program).resolve().parent.parent / "backends"
    carried = release or release_of(os.environ.get("TRITON_SERVER_VERSION", ""))
    return Host(
        via="local",
        program=program,
        release=carried,
        backends=frozenset(p.name for p in folder.iterdir()) if folder.is_dir() else None,
        environment={},
        python=_python(find_release(carried)) if carried else None,
        own_backends=folder if folder.is_dir() else None,
    )


def local_program() -> str | None:
    """Return the tritonserver of this machine, if there is one."""
    return shutil.which(os.environ.get("TRITONSERVER") or "tritonserver")


def docker(root: Path, release: str | None, scratch: Path) -> Host:
    """Take the image of a release; without one, of the release that the repository is for.

    Raises:
        UnavailableError: docker or its engine is not here.
    """
    row = find_release(release or manifests.read(root).release)
    program = shutil.which("docker")
    if program is None:
        raise UnavailableError("there is no docker on PATH", fix="install docker, or use --via embedded")
    command = [program, "version", "--format", "{{.Server.Version}}"]
    asked = subprocess.run(command, capture_output=True, text=True, check=False)
    if asked.returncode != 0:
        said = " ".join((asked.stderr or asked.stdout).split())
        raise UnavailableError(f"docker's engine does not answer: {said}", fix="start it, or use --via embedded")
    return Host(
        via="docker",
        program=program,
        release=row.name,
        backends=row.backends,
        environment={},
        python=_python(row),
        image=image(row),
    )


def with_backends(host: Host, directory: Path, scratch: Path) -> Host:
    """Return a host that also has the backends of a folder, such as an onnxruntime backend that the user compiled.

    Args:
        directory: a folder of backends (``DIR/onnxruntime/libtriton_onnxruntime.so``), or that of one.

    Raises:
        InputError: there is no backend in it.
        UsageError: the server runs in a container, or the backends that it has are not known.

    Source: core src/backend_model.cc, GetBackendLibrarySearchPaths: one folder holds all of them.
    """
    if host.image is not None or host.own_backends is None:
        why = "runs in a container" if host.image is not None else "does not lie beside its backends"
        raise UsageError(
            f"--backend-directory adds to a server of this machine, and this one {why}", fix="--via embedded"
        )
    given: dict[Path, str] = {}
    for folder in (directory, *sorted(directory.glob("*/"))):
        libraries = sorted(folder.glob("libtriton_*.so"))
        if libraries:
            given[folder] = libraries[0].name.removeprefix("libtriton_").removesuffix(".so")
        elif (folder / "model.py").is_file():  # a backend in Python
            given[folder] = folder.resolve().name
    if not given:
        raise InputError(
            f"{directory} holds no backend: expected <name>/libtriton_<name>.so",
            fix="docs/triton.md says how the onnxruntime backend is compiled",
        )
    together = scratch / "backends"
    together.mkdir(exist_ok=True)
    own = {folder: folder.name for folder in host.own_backends.iterdir() if folder.is_dir()}
    for folder, name in {**own, **given}.items():
        if folder.parent != together:
            remove(together / name)  # the given one wins
            link_tree(folder, together / name)
    flags = tuple(f for f in host.flags if not f.startswith("--backend-directory="))
    known = None if host.backends is None else host.backends | frozenset(given.values())
    return replace(host, backends=known, flags=(*flags, f"--backend-directory={together}"))


HOSTS: Mapping[Via, Callable[[Path, str | None, Path], Host]] = {
    "embedded": embedded,
    "local": local,
    "docker": docker,
}


def release_of(version: str) -> str | None:
    """Return the release that carries a version of the server (``2.51.0``), or None where none is known to."""
    return next((row.name for row in RELEASES.values() if row.server == version), None)


def _python(row: TritonRelease) -> str | None:
    return ".".join(row.python.split(".")[:2]) if row.python else None


def command(
    host: Host, root: Path, *, name: str, ports: Mapping[str, int], flags: Sequence[str], cache_bytes: int
) -> tuple[list[str], dict[str, str]]:
    """Return the command line that serves ``root``, and its whole environment.

    A repository of accel's is served by its own ``launch.sh``; any other with Triton's defaults.

    Args:
        name: id of the server, and of its container.
    """
    variables = {f"{service.upper()}_PORT": str(port) for service, port in ports.items()} | {"ADDRESS": LOCALHOST}
    variables["EXIT_TIMEOUT_S"] = str(EXIT_TIMEOUT_S)
    variables["PYTHONDONTWRITEBYTECODE"] = "1"  # also where an earlier accel wrote launch.sh, or nobody did
    seen = Path("/models") if host.image else root
    script = root / "launch.sh"
    cached = f"--cache-config=local,size={cache_bytes}"
    if script.is_file():
        line = ["bash", str(seen / script.name)]
        if cache_bytes and "--cache-config=" in script.read_text(encoding="utf-8"):
            variables["CACHE_BYTES"], cached = str(cache_bytes), ""
    else:
        line = ["tritonserver" if host.image else host.program, f"--model-repository={seen}"]
        line.append(f"--exit-timeout-secs={EXIT_TIMEOUT_S}")
        for service, port in ports.items():
            line += [f"--{service}-address={LOCALHOST}", f"--{service}-port={port}"]
    line += [f"--id={name}", f"--backend-config=python,shm-region-prefix-name={name}", *host.flags]
    line += [cached] if cache_bytes and cached else []
    line += flags
    folders = _packages(host, root)
    variables["ACCEL_SITE_PACKAGES"] = os.pathsep.join(folders)
    if host.image is None:
        # What this interpreter was told is not for the server's.
        kept = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "PYTHONHOME")}
        return line, {**kept, **host.environment, **variables, "TRITONSERVER": host.program}
    container = [host.program, "run", "--rm", "--init", f"--name={name}", "--network=host", "--shm-size=1g"]
    groups = (group for config in read_configs(root).values() for group in config.instance_group)
    container += ["--gpus=all"] if any(group.kind == group.KIND_GPU for group in groups) else []
    container += [f"--volume={root}:/models:ro", *(f"--volume={folder}:{folder}:ro" for folder in folders)]
    container += [f"--env={key}={value}" for key, value in variables.items()]
    return [*container, host.image, *line], dict(os.environ)


def _packages(host: Host, root: Path) -> list[str]:
    """Return the folders in which models of the Python backend find their runtimes, after the server's own packages.

    They are this installation's, if the server's Python is of the same version; an artifact of another environment
    finds that one first. What the user set comes before all.

    Raises:
        UnavailableError: the artifact's environment is not installed.
    """
    folders = [folder for folder in os.environ.get("ACCEL_SITE_PACKAGES", "").split(os.pathsep) if folder]
    if host.image is not None or host.python not in (None, HERE):
        return folders
    if (root / manifests.FILENAME).exists():
        target = manifests.read(root).artifact.variant.target
        builder = targets.discover().get(target.name)
        own = builder.environment(target) if builder is not None else environments.MAIN
        if own != environments.MAIN:
            if not environments.installed(own):
                raise UnavailableError(f"{target} runs in environment {own!r}", fix=environments.fix(own))
            folders.append(str(environments.site_packages(own)))
    return [*folders, str(environments.site_packages(environments.MAIN))]
