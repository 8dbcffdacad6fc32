"""The temporary folder of this process, and what killed processes of accel left: folders and processes.

Everything that accel and what it starts write to the temporary directory lies in one folder, which goes with the
process. A killed process cannot tidy up, so the folder carries a lock, which the kernel releases whatever ends its
holder, and every process that is started carries the folder's name in its environment, also after ``setsid``. The next
process of accel ends what carries the name of a folder whose lock is free, and removes the folder.

It does not find a process that cleared its own environment: for code that hides on purpose there is ``--sandbox``.
"""

import atexit
import contextlib
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import psutil

MARK = "ACCEL_SCRATCH"
"""Variable that names the folder of the process that started this one, or a folder in it."""
PREFIX = "accel-scratch-"
TRIES = 20
"""How often processes are looked for until none is left: one may start another while it is ended."""

_own: tuple[int, Path] | None = None


def root() -> Path:
    """Return the folder of this process: made by the first call, which also clears up after killed processes."""
    global _own
    if _own is None or _own[0] != os.getpid():
        clear()
        fresh = Path(tempfile.mkdtemp(prefix=".accel-"))
        _lock(fresh)  # held until this process ends; before the name that ``clear`` looks for
        _own = os.getpid(), fresh.rename(fresh.with_name(PREFIX + fresh.name.removeprefix(".accel-")))
        atexit.register(_remove, *_own)
    return _own[1]


def folder(prefix: str) -> Path:
    """Make a folder in ``root``, which is the caller's to remove when it is done with it."""
    return Path(tempfile.mkdtemp(prefix=prefix, dir=root()))


def clear() -> None:
    """End the processes and remove the folders of this user that a killed process of accel left."""
    for left in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        with contextlib.suppress(OSError):
            if left.is_symlink() or left.stat().st_uid != os.getuid():
                continue
            held = _lock(left)
            if held is None:
                continue
            try:
                end_marked(left)
                shutil.rmtree(left, ignore_errors=True)
            finally:
                os.close(held)


def end_marked(path: Path) -> None:
    """End every process of this user that carries ``path``, or a folder in it, in its environment."""
    import psutil

    for _ in range(TRIES):
        found = list(_marked(str(path)))
        for process in found:
            with contextlib.suppress(psutil.Error):
                process.kill()
        if not found:
            return
        psutil.wait_procs(found, timeout=0.5)


def _marked(path: str) -> Iterator["psutil.Process"]:
    import psutil

    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            value = process.environ().get(MARK, "") if process.pid != os.getpid() else ""
            if (value == path or value.startswith(f"{path}/")) and process.status() != psutil.STATUS_ZOMBIE:
                yield process


def _lock(path: Path) -> int | None:
    """Return a descriptor that holds the lock of a folder; None where another process holds it."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        return None
    return descriptor


def _remove(pid: int, path: Path) -> None:
    if os.getpid() == pid:  # not a fork of it
        end_marked(path)  # what still writes there could keep the folder from going
        shutil.rmtree(path, ignore_errors=True)
