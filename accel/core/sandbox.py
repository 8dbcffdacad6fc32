"""Worker processes that cannot do harm: bubblewrap gives them no network, and nothing to write to but their own output.

A model from somebody else may hold code (a factory, a file made to break a parser). In a sandbox it sees the files of
this machine, but for the secrets named below, and can write only to its temporary folder and to the folder of the run
directory that its task fills. That folder is looked through when the process has ended: a link in it would lead what
accel itself does outside. The process has no network, sees no other process, reaches no service that listens on a
socket in ``/run``, and holds no privilege, also where accel runs as root. What it wrote is still its own: artifacts of
an untrusted model are untrusted.

Source: bubblewrap's manual, bwrap(1); user_namespaces(7).
"""

import os
import re
import shutil
import stat
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from accel.core.errors import StageError, UnavailableError

HIDDEN = (".aws", ".azure", ".config/gcloud", ".docker", ".gnupg", ".kube", ".ssh")
"""Folders below the home directory that are empty inside."""
SECRET = re.compile(r"TOKEN|SECRET|PASSW|CREDENTIAL|CONNECTION_STRING|_KEY$|^SSH_|^DBUS_", re.IGNORECASE)
"""Variables that are not there inside."""
DEVICES = ("nvidia*", "dri", "kfd")
OUTPUTS = ("out", "out_dir", "root")
"""Parameters of tasks that name what they write."""
ENDED_BY_SIGNAL = 128
"""bubblewrap ends with this much more than the signal that ended what it ran."""
FIX = "apt-get install bubblewrap, on a kernel that lets this user make user namespaces; or run accel in a container"


@dataclass(frozen=True, slots=True)
class Sandbox:
    """How workers are wrapped.

    Attributes:
        program: bubblewrap.
    """

    program: str

    def wrap(self, command: Sequence[str], writable: Iterable[Path]) -> list[str]:
        """Return the command line that runs ``command`` inside.

        Args:
            writable: folders that it may write to; they exist.
        """
        home = Path.home()
        hidden = [p for p in (Path("/run"), Path("/tmp/.X11-unix"), *(home / name for name in HIDDEN)) if p.is_dir()]
        devices = [p for pattern in DEVICES for p in sorted(Path("/dev").glob(pattern))]
        # What the kernel asks of the root user is its number, not a privilege: /proc/sys would be writable to it.
        kernel = ("/proc/sys", "/proc/sysrq-trigger", "/proc/mtrr")
        return [
            *(self.program, "--die-with-parent", "--unshare-user", "--unshare-net", "--unshare-pid", "--unshare-ipc"),
            *("--unshare-uts", "--cap-drop", "ALL", "--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc"),
            *_each("--ro-bind-try", kernel),
            *_each("--dev-bind", devices),
            *(word for folder in hidden for word in ("--tmpfs", str(folder))),
            *_each("--bind", (folder.resolve() for folder in writable)),
            *(word for name in sorted(os.environ) if SECRET.search(name) for word in ("--unsetenv", name)),
            *("--", *command),
        ]


def prepare() -> Sandbox:
    """Find bubblewrap and try it.

    Raises:
        UnavailableError: it is not installed, or this machine does not let it make namespaces.
    """
    program = shutil.which("bwrap")
    if program is None:
        raise UnavailableError("--sandbox needs bubblewrap, and there is no bwrap on PATH", fix=FIX)
    sandbox = Sandbox(program)
    command = sandbox.wrap(["true"], ())
    tried = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if tried.returncode != 0:
        raise UnavailableError(f"bubblewrap cannot make a sandbox here: {tried.stderr.strip()[-500:]}", fix=FIX)
    return sandbox


def outputs(params: Mapping[str, Any]) -> tuple[Path, ...]:
    """Return the folders that a task with these parameters (as JSON) fills; they exist."""
    named = {name: Path(value) for name, value in params.items() if name in OUTPUTS}
    return tuple(path if name == "out_dir" else path.parent for name, path in named.items())


def examine(folders: Iterable[Path]) -> None:
    """Refuse what a process in a sandbox left that is more than plain files and folders.

    Raises:
        StageError: a link, a device, or a file that runs with its owner's rights.
    """
    for folder in folders:
        for path in folder.rglob("*"):
            mode = path.lstat().st_mode
            if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)) or mode & (stat.S_ISUID | stat.S_ISGID):
                raise StageError(
                    f"the process in the sandbox left {path.name}, which is not a plain file: links and devices lead "
                    "out of the run directory",
                    fix="do not use this model",
                )


def _each(option: str, paths: Iterable[str | Path]) -> list[str]:
    return [word for path in paths for word in (option, str(path), str(path))]
