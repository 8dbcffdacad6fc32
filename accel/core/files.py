"""Files and folders that appear whole or not at all; the lock of a run directory."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from accel.core.errors import OutputError


@contextlib.contextmanager
def lock(run_dir: Path, command: str) -> Iterator[None]:
    """Hold the run directory for one command.

    Raises:
        OutputError: another command holds it (the message says which, and since when), or it cannot be written.
    """
    with writing(run_dir):
        run_dir.mkdir(parents=True, exist_ok=True)
        file = (run_dir / ".lock").open("a+")
    try:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            holder = file.read().strip() or "another accel command"
            raise OutputError(
                f"{run_dir} is in use by {holder}", fix="wait until it ends, or write elsewhere with -o DIR"
            ) from None
        file.truncate(0)
        file.write(f"`{command}` (process {os.getpid()}, since {time.strftime('%Y-%m-%d %H:%M:%S')})")
        file.flush()
        yield
    finally:
        file.close()


@contextlib.contextmanager
def writing(folder: Path) -> Iterator[None]:
    """Turn what the operating system says about a folder into an error that says how to mend it."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise OutputError(f"no space left while writing to {folder}", fix="free space, or use -o DIR") from error
        if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EISDIR, errno.EEXIST):
            raise OutputError(
                f"cannot write to {folder}: {error.strerror}", fix="choose another with -o DIR"
            ) from error
        raise


def write_text(path: Path, text: str) -> None:
    """Write a text file under a temporary name and rename it: readers see the old or the new, never a half.

    Raises:
        OutputError: the disk is full or the folder cannot be written.
    """
    with writing(path.parent):
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f".{path.name}.tmp")
        temporary.write_text(text, encoding="utf-8")
        temporary.replace(path)


def replace_folder(path: Path, files: Mapping[str, Path | str], *, copy: bool = False) -> None:
    """Make ``path`` hold exactly ``files``: by relative name a source file, hard-linked or copied, or a text.

    Nothing is done where it holds them already. The new folder takes the old one's place by renaming: an interrupted
    call leaves the old one, or, killed between two renamings, leaves it aside for the next call to bring back first.

    Raises:
        OutputError: the disk is full or the folder cannot be written.
    """
    new, old = path.with_name(f".{path.name}.new"), path.with_name(f".{path.name}.old")
    with writing(path.parent):
        if _there(old) and not _there(path):
            old.rename(path)
        remove(old)
        remove(new)
        if _holds(path, files, copy=copy):
            return
        new.mkdir(parents=True)
        try:
            for name, source in files.items():
                target = new / name
                target.parent.mkdir(parents=True, exist_ok=True)
                if isinstance(source, str):
                    target.write_text(source)
                else:
                    # onnx's checker and loader refuse external data that has several names
                    link_or_copy(source, target, copy=copy or source.suffix == ".data")
            if _there(path):
                path.rename(old)
            new.rename(path)
            remove(old)
        finally:
            shutil.rmtree(new, ignore_errors=True)


def _there(path: Path) -> bool:
    return os.path.lexists(path)  # a link that leads nowhere is in the way, too


def remove(path: Path) -> None:
    """Delete a file, a link (not what it leads to) or a folder, if it is there."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _holds(path: Path, files: Mapping[str, Path | str], *, copy: bool) -> bool:
    """Say whether a folder is as ``replace_folder`` leaves it: a link is one file, a copy has its size and time."""
    found = (
        {p.relative_to(path).as_posix(): p for p in path.rglob("*") if p.is_file()}
        if path.is_dir() and not path.is_symlink()
        else {}
    )
    if found.keys() != files.keys():
        return False
    for name, file in found.items():
        source = files[name]
        if isinstance(source, str):
            if file.read_text(errors="replace") != source:
                return False
            continue
        have, want = file.lstat(), source.stat()
        if copy and have.st_nlink > 1:
            return False
        if have.st_ino != want.st_ino and (have.st_size, have.st_mtime_ns) != (want.st_size, want.st_mtime_ns):
            return False
    return True


def link_or_copy(source: Path, target: Path, *, copy: bool = False) -> None:
    """Give ``source`` a second name, or a second body where the file system or the caller wants one.

    A copy is the user's own and may be written to; a second name keeps the mode of the first.
    """
    if not copy:
        try:
            target.hardlink_to(source)
            return
        except OSError:
            pass  # another file system, or one without links
    shutil.copy2(source, target)
    target.chmod(target.stat().st_mode | 0o200)
