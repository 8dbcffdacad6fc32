"""A real Triton server on a repository: started, waited for, watched and stopped; or one that runs already.

    embedded   the tritonserver that nvidia-pytriton carries, in accel's environment ``triton``; it has only the Python
               backend, so any other repository is served by its Python-backend variant
    local      ``$TRITONSERVER`` or ``tritonserver`` on PATH
    docker     the image of the chosen release
    a URL      a server that somebody else started

A server that is started here listens on 127.0.0.1 only, writes to a log file, and ends with this process, whatever ends
that. What runs is the repository's own ``launch.sh``, so the flags are the ones that ship.
"""

import contextlib
import itertools
import os
import re
import shutil
import signal
import tempfile
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from accel.bench import machine_noise
from accel.bench.endpoint import Endpoint
from accel.core import environments, temporary
from accel.core.errors import InputError, StageError, UnavailableError, UsageError, nearest
from accel.core.values import PYTHON_BACKEND
from accel.triton import manifest as manifests, python_variant
from accel.triton.folders import link_tree
from accel.triton.lint import plans
from accel.triton.reading import read_configs
from accel.triton.servers import Via, hosts
from accel.triton.servers.asking import http_name, metadata, python_models_at, ready
from accel.triton.servers.hosts import Host
from accel.triton.servers.processes import (
    LOCALHOST,
    LOOK_S,
    STOP_S,
    Running,
    check_ports,
    choose_ports,
    launch,
    lost_port,
    reachable,
    reasons,
)
from accel.triton.verify import changes

START_S = 600.0
SPLIT_BY_SHELLS = re.compile(r"[^\w@%+=:,./-]")
"""The Python backend starts a model by a shell's command that has its path as it is: with a space the model's process
ends ("what(): stol"), and the server waits for it without an end (24.10). Source: python_backend,
src/stub_launcher.cc, Launch.
"""
"""What a server has to become ready, as ``kubernetes.yaml`` gives it: a model of many GB is read, and warmed up at
every length. One that ends before is seen at once."""
ATTEMPTS = 3
"""How often a start is tried where a chosen port was taken before the server had it."""


class Server(contextlib.AbstractContextManager["Server"]):
    """A server that answers at ``endpoint``; use it as a context manager, which says how the server ended where it did.

    Attributes:
        log: file with everything the server printed.
        root: the repository that is served: the one asked for, or what was made of it.
        python_models: models answered by the Python-backend variant of their native backend.
        notices: what a user should know, one sentence each.

    Nothing of a server behind a URL lies here: its ``log`` and ``root`` are ``/dev/null``.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        *,
        log: Path = Path(os.devnull),
        root: Path = Path(os.devnull),
        python_models: frozenset[str] = frozenset(),
        notices: tuple[str, ...] = (),
        running: Running | None = None,
    ) -> None:
        self.endpoint = endpoint
        self.log = log
        self.root = root
        self.python_models = python_models
        self.notices = notices
        self._running = running

    def __exit__(self, _: object, error: BaseException | None, *__: object) -> None:
        try:
            if isinstance(error, StageError | UnavailableError) and not self.alive():
                raise self.failure() from error
        finally:
            self.stop()

    def alive(self) -> bool:
        """Say whether the server still runs; for a URL, whether it answers."""
        if self._running is not None:
            return self._running.group.alive()
        return metadata(self.endpoint.grpc) is not None

    def failure(self) -> StageError:
        """Return the error that says how a server ended that is no longer alive, and why by its log."""
        if self._running is not None:
            return self._running.failure()
        return StageError(f"no Triton server answers at {self.endpoint.grpc} any more", fix="start it again")

    def stop(self) -> None:
        """End a server that was started here, cleanly if it lets itself; one behind a URL goes on."""
        if self._running is not None:
            self._running.stop()


def start(
    root: Path,
    *,
    via: str | None = None,
    log: Path,
    timeout_s: float = START_S,
    release: str | None = None,
    python_backend: bool = False,
    cache_bytes: int = 0,
    flags: Sequence[str] = (),
    allow_changed: bool = False,
    backend_directory: Path | None = None,
    http_port: int | None = None,
    grpc_port: int | None = None,
    metrics_port: int | None = None,
    grace_s: float = STOP_S,
) -> Server:
    """Start a server on a repository and return when it is ready and all models are loaded.

    A model whose backend the server lacks is served by its Python-backend variant, which is made in a
    temporary folder. A repository that is for the Python backend of another release than the server's is emitted again
    for that one.

    Args:
        root: a repository that accel emitted, or any other whose backends the server has.
        via: ``embedded``, ``local``, ``docker``, or the URL of a running server, as for ``connect``; None means
            ``local`` where there is one, else ``embedded``.
        log: file for what the server prints; written anew.
        timeout_s: how long it may take to become ready.
        release: Triton release: of the image for ``docker`` (default: the one the repository is for), and of a
            ``local`` server that does not say.
        python_backend: serve the Python-backend variant even where the server has the native backend.
        cache_bytes: size of the response cache; 0 for none beyond what the repository itself asks for.
        flags: further flags for the server.
        allow_changed: run the ``launch.sh`` of a folder whose files are not those of its manifest, or that has none.
        backend_directory: backends that the server has beside its own (``hosts.with_backends``).
        http_port / grpc_port / metrics_port: None for a free one.
        grace_s: how long it may take to end by itself. 0 kills it, where nobody else asks it anything: Triton looks
            once a second whether its models are gone (core, src/server.cc, ``Stop``). A container always has the time.

    Raises:
        UsageError: an unknown ``via``, or a port that cannot be had.
        InputError: the repository cannot be read, leads outside itself, was changed since it was emitted, or lacks what
            its Python-backend variant is made of.
        UnavailableError: the server, its environment, docker or the artifact's runtime is not here.
        StageError: the server did not become ready; the message has the lines of its log that say why. Or a TensorRT
            plan that this machine's GPU or the server's TensorRT does not run.
    """
    if via is not None and ":" in via:
        return connect(via, root)
    way = _way(via)
    root = root.resolve()
    _check_root(root)
    if not allow_changed:
        _check_unchanged(root)
    fixed = {"http": http_port, "grpc": grpc_port, "metrics": metrics_port}
    check_ports(fixed)
    name = f"accel-{uuid.uuid4().hex[:12]}"
    scratch = _scratch(root, name)
    try:
        host = way(root, release, scratch)
        if backend_directory is not None:
            host = hosts.with_backends(host, backend_directory, scratch)
        plans.check(root, None if plans.BACKEND in _lacking(root, host) else host.release)
        served, python_models = _served(root, host, scratch, python_backend=python_backend)
        if served == root and SPLIT_BY_SHELLS.search(str(root)):
            served = scratch / "repository"
            link_tree(root, served)
        deadline = time.monotonic() + timeout_s
        for attempt in range(1, ATTEMPTS + 1):
            ports = choose_ports(fixed)
            line, variables = hosts.command(host, served, name=name, ports=ports, flags=flags, cache_bytes=cache_bytes)
            if host.image is not None:
                machine_noise.claim(f"--id={name}")
            ends_s = grace_s if host.image is None else STOP_S
            running = launch(line, variables, log=log, name=name, scratch=scratch, grace_s=ends_s)
            try:
                version = _wait(running, ports, deadline)
                break
            except BaseException as error:
                running.end()
                if attempt == ATTEMPTS or not isinstance(error, StageError) or not lost_port(running.printed()):
                    raise
    except BaseException:
        shutil.rmtree(scratch, ignore_errors=True)
        raise
    endpoint = Endpoint(
        grpc=f"{LOCALHOST}:{ports['grpc']}",
        http=f"{LOCALHOST}:{ports['http']}",
        metrics=f"{LOCALHOST}:{ports['metrics']}",
        pid=running.group.process.pid,
        release=hosts.release_of(version) or host.release,
        via=host.via,
    )
    notices = _notices(served, endpoint, cache_bytes=cache_bytes)
    return Server(endpoint, log=log, root=served, python_models=python_models, notices=notices, running=running)


def lacking(root: Path, *, via: str | None = None, release: str | None = None) -> tuple[str, ...]:
    """Return the backends that a repository wants and the server that ``start`` would choose does not have.

    Nothing is started. Empty where it cannot be told.

    Raises:
        UsageError: an unknown ``via``.
        InputError: the repository cannot be read.
        UnavailableError: as ``start``.
    """
    with tempfile.TemporaryDirectory(prefix="host-", dir=temporary.root()) as scratch:
        return _lacking(root, _way(via)(root, release, Path(scratch)))


def identity(via: str | None = None) -> dict[str, Any]:
    """Return what tells the server that ``start`` would choose from any other: part of the keys of what it measured.

    The image of ``docker`` follows from the release that a repository is for.

    Raises:
        UsageError: an unknown ``via``.
    """
    kind, program = _kind(via), hosts.local_program()
    if kind == "local" and program is not None:
        found = Path(program).resolve()
        status = found.stat()
        return {"via": kind, "program": str(found), "changed": [status.st_size, status.st_mtime_ns]}
    return {"via": kind, "packages": environments.requirements(hosts.ENVIRONMENT) if kind == "embedded" else []}


def connect(url: str, root: Path | None = None) -> Server:
    """Return a server that runs already; ``stop`` leaves it alone.

    Args:
        url: ``grpc://HOST:PORT`` or ``HOST:PORT`` of its gRPC service, or ``http://HOST:PORT`` of its HTTP service. The
            other services are looked for at the neighbouring ports, as Triton has them by default.
        root: the repository that it serves; tells a Python-backend variant from what it stands for.

    Raises:
        UsageError: it is no such URL.
        UnavailableError: no server answers there.
    """
    match = re.fullmatch(r"(?:(grpc|http)://)?([A-Za-z0-9_.-]+|\[[0-9A-Fa-f:]+\]):(\d{1,5})/?", url)
    if match is None or not 1 < int(match[3]) < 65535:
        raise UsageError(f"{url!r} is not an address of a server", fix="give grpc://HOST:PORT or http://HOST:PORT")
    host, port = match[2], int(match[3]) + (match[1] == "http")
    found = metadata(f"{host}:{port}")
    if found is None:
        raise UnavailableError(f"no Triton server answers at {host}:{port} (gRPC)", fix="accel serve starts one")
    http, metrics = f"{host}:{port - 1}", f"{host}:{port + 1}"
    endpoint = Endpoint(
        grpc=f"{host}:{port}",
        http=http if http_name(http) == found.name else "",
        metrics=metrics if reachable(metrics) else None,
        pid=None,
        release=hosts.release_of(found.version),
        via="url",
    )
    python_models = (
        python_models_at(endpoint.grpc, root)
        if root is not None and (root / manifests.FILENAME).exists()
        else frozenset()
    )
    return Server(endpoint, python_models=python_models)


def fresh_log() -> Path:
    """Name a log that goes with this process, unless the server fails: its error names the copy that stays."""
    return temporary.folder("log-") / "server.log"


def wait(server: Server, ready: Callable[[], None]) -> None:
    """Return when the user interrupts this process (Ctrl-C, SIGTERM).

    Args:
        ready: says that the server answers; a signal that follows at once is waited for already.

    Raises:
        StageError: the server ended by itself.
    """
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        ready()
        while server.alive():
            time.sleep(10 * LOOK_S)
    except KeyboardInterrupt:
        return
    finally:
        signal.signal(signal.SIGTERM, before)
    raise server.failure()


# ---------------------------------------------------------------------------------------------------------------------
# What is served


def _way(via: str | None) -> Callable[[Path, str | None, Path], Host]:
    """Return the way to run a server that ``via`` names, or the default one.

    Raises:
        UsageError: it names none.
    """
    return hosts.HOSTS[_kind(via)]


def _kind(via: str | None) -> Via:
    kind = via or ("local" if hosts.local_program() else "embedded")
    if kind not in hosts.HOSTS:
        known = ", ".join(hosts.HOSTS)
        raise UsageError(f"no server is called {kind!r}{nearest(kind, hosts.HOSTS)}", fix=f"{known}, grpc://HOST:PORT")
    return cast(Via, kind)


def _lacking(root: Path, host: Host) -> tuple[str, ...]:
    if host.backends is None:
        return ()
    wanted = {config.backend for config in read_configs(root).values()} - {""}
    return tuple(sorted(wanted - host.backends))


def _check_root(root: Path) -> None:
    """Refuse a folder that holds no model, or whose links lead out of it.

    Raises:
        InputError: that.
    """
    if not any(root.glob("*/config.pbtxt")):
        inside = sorted({str(file.parent.parent) for file in root.glob("best/*/*/config.pbtxt")})  # of a run directory
        fix = f"name a repository root, such as {inside[0] if inside else 'runs/bert/best/cpu'}"
        raise InputError(f"{root} holds no <model>/config.pbtxt", fix=fix)
    for path in root.rglob("*"):
        if path.is_symlink() and not path.resolve().is_relative_to(root):
            raise InputError(f"{path} leads out of the repository, to {path.resolve()}", fix="put plain files there")


def _check_unchanged(root: Path) -> None:
    """Refuse a folder whose ``launch.sh`` would be run although nothing says that it is the one that was emitted.

    Raises:
        InputError: files differ from the manifest, or there is a script and no manifest.
    """
    asked = "--allow-changed runs it all the same"
    if (root / manifests.FILENAME).exists():
        if found := list(itertools.islice(changes(root, manifests.read(root).files, {manifests.FILENAME}), 4)):
            named = "; ".join(f"{f.file}: {f.why}" for f in found[:3]) + "; …" * (len(found) > 3)
            raise InputError(
                f"{root} is not as it was emitted, and serving runs its launch.sh: {named}",
                fix=f"accel verify shows all; {asked}",
            )
    elif (root / "launch.sh").exists():
        raise InputError(
            f"{root} has a launch.sh that serving would run, and no manifest to hold it against", fix=asked
        )


def _scratch(root: Path, name: str) -> Path:
    """Make a temporary folder, if possible where the repository's files can be hard-linked."""
    usual = Path(tempfile.gettempdir())
    if usual.stat().st_dev != root.stat().st_dev and os.access(root.parent, os.W_OK):
        return Path(tempfile.mkdtemp(prefix=f".{name}-", dir=root.parent))
    return temporary.folder(f"{name}-")


def _served(root: Path, host: Host, scratch: Path, *, python_backend: bool) -> tuple[Path, frozenset[str]]:
    """Return the repository to serve, and the models in it that stand in for a native backend.

    Raises:
        InputError: the server lacks a backend, and the repository has no manifest of which a variant could be made.
    """
    missing = _lacking(root, host)
    if not (root / manifests.FILENAME).exists():
        if missing or python_backend:
            why = f", and the {host.via} server has no backend {missing[0]!r}" if missing else ""
            raise InputError(f"{root} is not of accel's making, so it has no Python-backend variant{why}")
        return root, frozenset()
    manifest = manifests.read(root)
    native = manifest.backend != PYTHON_BACKEND
    foreign = host.release not in (None, manifest.release)
    if not (missing or (python_backend and native) or (foreign and not native)):
        return root, frozenset()
    made = python_variant.write_python_variant(root, scratch / "repository", release=host.release or manifest.release)
    return scratch / "repository", frozenset(made.models[:1] if native else ())


def _notices(root: Path, endpoint: Endpoint, *, cache_bytes: int) -> tuple[str, ...]:
    """Say what does not fit without being an error."""
    found = []
    if cache_bytes and not any(config.response_cache.enable for config in read_configs(root).values()):
        found.append("no config enables response_cache, so the cache stays empty")
    if (root / manifests.FILENAME).exists() and (wanted := manifests.read(root).release) != endpoint.release:
        found.append(
            f"the repository is for Triton {wanted}, the server is {endpoint.release or 'of no known release'}"
        )
    return tuple(found)


def _wait(running: Running, ports: Mapping[str, int], deadline: float) -> str:
    """Wait until this very server is ready and all its services answer; return its version.

    Raises:
        StageError: it ended, or is not ready at the deadline; the message says why.
    """
    while running.group.alive():
        version = ready(running.name, *(f"{LOCALHOST}:{ports[service]}" for service in ("grpc", "http", "metrics")))
        time.sleep(LOOK_S)
        # The metrics service comes last, and a server that could not have its port ends at once.
        if version is not None and running.group.alive():
            return version
        if time.monotonic() > deadline:
            why = f"the server was not ready in time: {reasons(running.printed())}"
            raise running.error(why)
    raise running.failure()
