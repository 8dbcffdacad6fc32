"""What a hostile worker process tries, in a real sandbox: it reaches no network and changes nothing but its output."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from pathlib import Path

import pytest

from accel.core import processes, sandbox
from accel.core.errors import StageError, UnavailableError, WorkerDied
from accel.core.processes import PACKAGE, Worker, run_task

TASKS = """
import os, pathlib, signal, socket, subprocess, sys, time

def write(path):
    try:
        with open(path, "a") as file:
            file.write("x")
    except OSError as error:
        return type(error).__name__
    return "written"

def connect(port=0, path=""):
    try:
        if path:
            with socket.socket(socket.AF_UNIX) as plug:
                plug.connect(path)
        else:
            socket.create_connection(("127.0.0.1", port), timeout=2).close()
    except OSError as error:
        return type(error).__name__
    return "connected"

def send(pid):
    try:
        os.kill(pid, 0)
    except OSError as error:
        return type(error).__name__
    return "sent"

def listing(path): return sorted(os.listdir(path))
def variable(name): return os.environ.get(name)
def rights(): return next(l for l in open("/proc/self/status") if l.startswith("CapEff"))
def put(out_dir, kind, target):
    place = pathlib.Path(out_dir) / "value.json"
    if kind == "link": place.symlink_to(target)
    if kind == "pipe": os.mkfifo(place)
    if kind == "suid":
        place.write_text("")
        place.chmod(0o4755)
    if kind == "file": place.write_text("fine")
def die(how): os.kill(os.getpid(), how)
def leave(): os._exit(3)
def stay(path):
    subprocess.Popen(["sh", "-c", f"echo $$ > {path}; sleep 600"], start_new_session=True)
    while not os.path.exists(path): time.sleep(0.01)
def threads(): return os.environ["OMP_NUM_THREADS"]
TASKS = {k: v for k, v in globals().items() if callable(v)}
"""


@pytest.fixture(scope="module")
def boxed() -> sandbox.Sandbox:
    try:
        return sandbox.prepare()
    except UnavailableError as error:
        pytest.skip(str(error))


@pytest.fixture
def log(boxed: sandbox.Sandbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of accel with hostile tasks, whose processes run in a sandbox; gives their log."""
    copy = tmp_path / "accel"
    (copy / "run").mkdir(parents=True)
    for part in [*PACKAGE.iterdir(), *(PACKAGE / "run").glob("*.py")]:
        if part.name not in ("run", "tasks.py"):
            (copy / part.relative_to(PACKAGE)).symlink_to(part)
    (tmp_path / "model_zoo").symlink_to(PACKAGE.parent / "model_zoo")
    (copy / "run" / "tasks.py").write_text(TASKS)
    monkeypatch.setattr(processes, "PACKAGE", copy)
    monkeypatch.setenv("HF_TOKEN", "secret")
    processes.start(boxed)
    yield tmp_path / "child.log"
    processes.start()


def run(task: str, log: Path, **params: object) -> object:
    return run_task(task, params, log=log, threads=3, timeout_s=60)


def test_it_writes_to_its_output_alone(log: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    run("put", log, out_dir=str(out), kind="file", target="")
    assert (out / "value.json").read_text() == "fine"
    for path in (tmp_path / "x", Path.home() / ".accel-was-here", Path("/etc/accel-was-here"), log, PACKAGE / "x.py"):
        assert run("write", log, path=str(path)) == "OSError", path
        assert path == log or not path.exists()


@pytest.mark.skipif(os.getuid() != 0, reason="only root may write there without a sandbox")
def test_it_cannot_set_the_kernel(log: Path) -> None:
    path = Path("/proc/sys/kernel/core_pattern")
    before = path.read_text()
    assert run("write", log, path=str(path)) == "OSError"
    assert path.read_text() == before


def test_it_has_no_network_and_no_services(log: Path, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        assert run("connect", log, port=server.getsockname()[1]) == "ConnectionRefusedError"
    assert run("listing", log, path="/run") == []


def test_it_sees_no_process_and_no_secret(log: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert run("send", log, pid=os.getpid()) == "ProcessLookupError"
    assert run("variable", log, name="HF_TOKEN") is None
    assert run("rights", log).split()[1].strip("0") == ""
    home = tmp_path / "home"
    (home / ".ssh").mkdir(parents=True)
    (home / ".ssh" / "id").write_text("key")
    monkeypatch.setenv("HOME", str(home))
    assert run("listing", log, path=str(home / ".ssh")) == []


@pytest.mark.parametrize("kind", ["link", "pipe", "suid"])
def test_it_leaves_plain_files_only(log: Path, tmp_path: Path, kind: str) -> None:
    """accel itself would write to where a link leads, and put what it points at into a repository."""
    out = tmp_path / "out"
    out.mkdir()
    with pytest.raises(StageError, match=r"left value\.json, which is no plain file"):
        run("put", log, out_dir=str(out), kind=kind, target=str(tmp_path / "outside"))


def test_how_it_ended_is_told_as_without(log: Path) -> None:
    with pytest.raises(WorkerDied, match="SIGKILL"):
        run("die", log, how=signal.SIGKILL)
    with pytest.raises(WorkerDied, match="SIGSEGV"):
        run("die", log, how=signal.SIGSEGV)
    with pytest.raises(WorkerDied, match="exit code 3"):
        run("leave", log)
    assert run("threads", log) == "3"


def test_nothing_that_it_started_outlives_it(log: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    with Worker(log, threads=1, writable=[out]) as worker:
        worker.call("stay", {"path": str(out / "pid")}, timeout_s=60)
        assert asleep()
    limit = time.monotonic() + 10
    while asleep() and time.monotonic() < limit:
        time.sleep(0.05)
    assert not asleep()


def asleep() -> bool:
    """Say whether the process that ``stay`` leaves is there: in a session of its own, it is in nobody's group."""
    return subprocess.run(["pgrep", "-f", "^sleep 600$"], stdout=subprocess.DEVNULL, check=False).returncode == 0


def test_without_bubblewrap_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UnavailableError) as error:
        sandbox.prepare()
    assert "apt-get install bubblewrap" in (error.value.fix or "")
    broken = tmp_path / "bwrap"
    broken.write_text("#!/bin/sh\necho 'No permissions to create new namespace' >&2\nexit 1\n")
    broken.chmod(0o755)
    with pytest.raises(UnavailableError, match="No permissions to create new namespace"):
        sandbox.prepare()
