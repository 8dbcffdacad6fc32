"""The process of a server: its ports, its start, its end, and what its log says about why it ended."""

import contextlib
import re
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from accel.core import temporary
from accel.core.errors import StageError, UsageError, WorkerDied
from accel.core.processes import ProcessGroup, how_it_ended

LOCALHOST = "127.0.0.1"
EXIT_TIMEOUT_S = 10
"""How long it waits for requests under way, and for idle HTTP connections, after SIGTERM."""
STOP_S = EXIT_TIMEOUT_S + 5.0
"""How long a server may take to end after SIGTERM."""
LOOK_S = 0.05

_GUARD = """
cat >/dev/null
kill -TERM "$1"
n=0
while [ $n -lt 30 ] && kill -0 -- "-$1"; do sleep 0.5; n=$((n + 1)); done
kill -KILL -- "-$1"
rm -rf -- "$2" "/dev/shm/$3"*
"""
"""Waits until its stdin closes, as it does when the process that started the server ends, then ends the server."""


@dataclass(frozen=True, slots=True)
class Running:
    """A started server.

    Attributes:
        group: the server, or the client of its container, and all it starts.
        guard: ends that group when this process ends, whatever ends it.
        name: id of the server, and the beginning of the names of its shared memory.
        scratch: folder that goes when the server has ended.
        log: file with everything it printed.
        begun_s: when it was started (Unix time, s).
        grace_s: how long it may take to end after SIGTERM; 0 kills it.
    """

    group: ProcessGroup
    guard: subprocess.Popen[bytes]
    name: str
    scratch: Path
    log: Path
    begun_s: float
    grace_s: float = STOP_S

    def failure(self) -> StageError:
        """Return the error of a server that ended, with the lines of its log that say why.

        A ``WorkerDied`` where a signal ended it.
        """
        code = self.end()
        why = "; ".join(errors(self.printed())) if code < 0 else reasons(self.printed())
        message = f"the server {how_it_ended(code)}"
        return self.error(f"{message}: {why}" if why else message, WorkerDied if code < 0 else StageError)

    def error(self, message: str, kind: type[StageError] = StageError) -> StageError:
        """Return an error that names the log, which is kept where it would go with this process."""
        log = self.log
        if log.is_relative_to(temporary.root()) and log.exists():
            log = Path(shutil.copy(log, Path(tempfile.gettempdir()) / f"{self.name}.log"))
        return kind(message, fix=f"read {log}", log=str(log))

    def printed(self) -> str:
        """Return the log."""
        return self.log.read_text(encoding="utf-8", errors="replace") if self.log.exists() else ""

    def end(self) -> int:
        """End the server, after ``grace_s`` with SIGKILL, and all it started; return its exit code."""
        code = self.group.end(grace_s=self.grace_s)
        temporary.end_marked(self.scratch)
        if code < 0:  # it removes its own otherwise
            _remove_empty_environment(self.begun_s)
        self.guard.kill()  # before its stdin closes: by then the id of the group may be another's
        self.guard.wait()
        if self.guard.stdin is not None:
            self.guard.stdin.close()
        for region in Path("/dev/shm").glob(f"{self.name}*"):
            region.unlink(missing_ok=True)
        return code

    def stop(self) -> None:
        """End the server, and remove its temporary folder."""
        self.end()
        shutil.rmtree(self.scratch, ignore_errors=True)


def _remove_empty_environment(begun_s: float) -> None:
    """Remove the folder that a Python backend makes at its start, in /tmp whatever TMPDIR says, and a kill leaves.

    Source: python_backend src/pb_env.cc, EnvironmentManager.
    """
    for folder in Path("/tmp").glob("python_env_*"):
        with contextlib.suppress(OSError):  # another's, or not empty
            if folder.stat().st_ctime >= begun_s:
                folder.rmdir()


def launch(
    command: Sequence[str],
    variables: Mapping[str, str],
    *,
    log: Path,
    name: str,
    scratch: Path,
    grace_s: float = STOP_S,
) -> Running:
    """Start a server and its guard.

    Args:
        variables: its whole environment, but for where its temporary files lie.
    """
    # TensorFlow and others leave files there when they are ended.
    variables = {**variables, "TMPDIR": str(scratch), temporary.MARK: str(scratch)}
    begun_s = time.time()
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("wb") as sink:
        group = ProcessGroup(command, stdin=subprocess.DEVNULL, stdout=sink, stderr=sink, env=variables)
    guard = subprocess.Popen(
        ["/bin/sh", "-c", _GUARD, "sh", str(group.process.pid), str(scratch), name],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    return Running(group, guard, name, scratch, log, begun_s, grace_s)


def check_ports(fixed: Mapping[str, int | None]) -> None:
    """Refuse ports that were asked for and cannot be had.

    Raises:
        UsageError: a port is taken, asked for twice or out of range.
    """
    asked = [port for port in fixed.values() if port is not None]
    for service, port in fixed.items():
        if port is None:
            continue
        if not 0 < port < 65536 or asked.count(port) > 1:
            raise UsageError(f"--{service}-port {port}: expected 1 to 65535, and each port once")
        try:
            socket.create_server((LOCALHOST, port)).close()  # it can have one whose last connections still linger
        except OSError as error:
            raise UsageError(
                f"--{service}-port {port} of {LOCALHOST} cannot be had: {error.strerror}",
                fix="give another, or leave it out for a free one",
            ) from error


def choose_ports(fixed: Mapping[str, int | None]) -> dict[str, int]:
    """Choose a free port for each service that has none; all are held until all are chosen, so that they differ."""
    with contextlib.ExitStack() as held:
        return {
            service: port or held.enter_context(socket.create_server((LOCALHOST, 0))).getsockname()[1]
            for service, port in fixed.items()
        }


def reachable(address: str) -> bool:
    """Say whether somebody listens at ``host:port``."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=1).close()
    except OSError:
        return False
    return True


def lost_port(log: str) -> bool:
    """Say whether a server ended because a port was taken."""
    return "already in use" in log


def reasons(log: str) -> str:
    """Return the lines of a server's log that say why it ended, joined; its last lines where none does."""
    last = dict.fromkeys([line.strip() for line in log.splitlines() if line.strip()][-5:])
    return "; ".join(errors(log) or last) or "it printed nothing"


def errors(log: str) -> tuple[str, ...]:
    """Return the errors in a server's log: those that keep it from starting, or else all others.

    Source: server src/main.cc; core src/model_repository_manager/model_lifecycle.cc and model_repository_manager.cc.
    """
    fatal: dict[str, None] = {}
    others: dict[str, None] = {}
    for line in log.splitlines():
        text = line.partition("] ")[2].strip().strip('"').replace("\\n", "\n").strip()
        if match := re.match(r"failed to load '(.+?)' version \d+: (?:[\w ]+: )?(.*)", text, re.DOTALL):
            cause = match[2].partition("\n\nAt:")[0].strip()
            fatal[f"model {match[1]!r} failed to load: {cause}"] = None
        elif text.startswith(("Poll failed for model", "failed to start ")):
            fatal[text] = None
        elif "error while loading shared libraries" in line:
            fatal[line.strip()] = None
        elif re.match(r"E\d{4} ", line) and "CudaDriverHelper" not in line:  # it says so wherever there is no GPU
            others[text] = None
        elif line.startswith("error: "):
            others[line.strip()] = None
    return tuple(fatal or others)
