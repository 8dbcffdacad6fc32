"""What a hostile worker process tries, in a real sandbox: it reaches no network and changes nothing but its output."""

import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from accel.core import processes, sandbox
from accel.core.errors import StageError, UnavailableError, WorkerDied
from accel.core.processes import PACKAGE, Worker

SECRETS = ("HF_TOKEN", "AWS_SECRET_ACCESS_KEY", "AZURE_STORAGE_CONNECTION_STRING", "AZURE_STORAGE_ACCOUNT_KEY")

TASKS = """
import os, pathlib, socket, subprocess, time

def write(path: str) -> str:
    try:
        with open(path, "a") as file:
            file.write("x")
    except OSError as error:
        return type(error).__name__
    return "written"

def connect(port: int) -> str:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=2).close()
    except OSError as error:
        return type(error).__name__
    return "connected"

def send(pid: int) -> str:
    try:
        os.kill(pid, 0)
    except OSError as error:
        return type(error).__name__
    return "sent"

def listing(path: str) -> tuple[str, ...]: return tuple(sorted(os.listdir(path)))
def variable(name: str) -> str | None: return os.environ.get(name)
def rights() -> str: return next(l for l in open("/proc/self/status") if l.startswith("CapEff"))
def put(out_dir: str, kind: str, target: str) -> None:
    place = pathlib.Path(out_dir) / "value.json"
    if kind == "link": place.symlink_to(target)
    if kind == "pipe": os.mkfifo(place)
    if kind == "suid":
        place.write_text("")
        place.chmod(0o4755)
    if kind == "file": place.write_text("fine")
def die(how: int) -> None: os.kill(os.getpid(), how)
def leave() -> None: os._exit(3)
def stay() -> None:
    subprocess.Popen(["sleep", "654321"], start_new_session=True)
def pid() -> int: return os.getpid()
def threads() -> str: return os.environ["OMP_NUM_THREADS"]
"""
known: dict[str, Any] = {"__name__": "accel.run.tasks"}
exec(TASKS, known)  # as the parent knows them; the child imports them from its copy of accel


@pytest.fixture(scope="module")
def boxed() -> sandbox.Sandbox:
    try:
        return sandbox.prepare()
    except UnavailableError as error:
        pytest.skip(str(error))


@pytest.fixture
def log(boxed: sandbox.Sandbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A copy of accel with hostile tasks, whose processes run in a sandbox; gives their log."""
    copy = tmp_path / "accel"
    (copy / "run").mkdir(parents=True)
    for part in [*PACKAGE.iterdir(), *(PACKAGE / "run").glob("*.py")]:
        if part.name not in ("run", "tasks.py"):
            (copy / part.relative_to(PACKAGE)).symlink_to(part)
    (tmp_path / "model_zoo").symlink_to(PACKAGE.parent / "model_zoo")
    (copy / "run" / "tasks.py").write_text(TASKS)
    monkeypatch.setattr(processes, "PACKAGE", copy)
    for name in SECRETS:
        monkeypatch.setenv(name, "secret")
    processes.start(boxed)
    yield tmp_path / "child.log"
    processes.start()


def run(task: str, log: Path, **params: object) -> Any:
    with Worker(log, threads=3, timeout_s=60) as worker:
        return worker.call(known[task], **params)


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
    assert run("listing", log, path="/run") == ()


def test_names_of_secrets_are_known() -> None:
    assert [name for name in SECRETS if not sandbox.SECRET.search(name)] == []


def test_it_sees_no_process_and_no_secret(log: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert run("send", log, pid=os.getpid()) == "ProcessLookupError"
    assert [run("variable", log, name=name) for name in SECRETS] == [None] * len(SECRETS)
    assert run("rights", log).split()[1].strip("0") == ""
    home = tmp_path / "home"
    (home / ".ssh").mkdir(parents=True)
    (home / ".ssh" / "id").write_text("key")
    monkeypatch.setenv("HOME", str(home))
    assert run("listing", log, path=str(home / ".ssh")) == ()


@pytest.mark.parametrize("kind", ["link", "pipe", "suid"])
def test_it_leaves_plain_files_only(log: Path, tmp_path: Path, kind: str) -> None:
    """accel itself would write to where a link leads, and put what it points at into a repository."""
    out = tmp_path / "out"
    out.mkdir()
    with pytest.raises(StageError, match=r"left value\.json, which is not a plain file"):
        run("put", log, out_dir=str(out), kind=kind, target=str(tmp_path / "outside"))


def test_how_it_ended_is_told_as_without(log: Path) -> None:
    with pytest.raises(WorkerDied, match="SIGKILL"):
        run("die", log, how=signal.SIGKILL)
    with pytest.raises(WorkerDied, match="SIGSEGV"):
        run("die", log, how=signal.SIGSEGV)
    with pytest.raises(WorkerDied, match="exit code 3"):
        run("leave", log)
    assert run("threads", log) == "3"


def test_nothing_that_it_started_outlives_it(log: Path) -> None:
    with Worker(log, threads=1, timeout_s=60) as worker:
        worker.call(known["stay"])
        assert asleep()
    limit = time.monotonic() + 10
    while asleep() and time.monotonic() < limit:
        time.sleep(0.05)
    assert not asleep()


def asleep() -> bool:
    """Say whether the process that ``stay`` leaves is there: in a session of its own, it is in nobody's group."""
    return subprocess.run(["pgrep", "-f", "^sleep 654321$"], stdout=subprocess.DEVNULL, check=False).returncode == 0


def test_a_task_that_writes_has_a_process_of_its_own_and_others_share_one(log: Path, tmp_path: Path) -> None:
    """What was looked through cannot be changed any more; timed calls need the session that they opened."""
    out = tmp_path / "out"
    out.mkdir()
    with Worker(log, threads=1, timeout_s=60) as worker:
        worker.call(known["write"], path="/dev/shm/mark")
        assert worker.call(known["listing"], path="/dev/shm") == ("mark",)
        worker.call(known["put"], out_dir=str(out), kind="file", target="")
        assert worker.call(known["listing"], path="/dev/shm") == (), "a new process"
        assert worker.call(known["write"], path=str(out / "value.json")) == "OSError", "and it cannot write there"


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
