"""Files and folders that appear whole or not at all, and are read back; the lock of a run directory."""

import contextlib
import errno
import fcntl
import glob
import json
import os
import shutil
import time
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Any, TypeVar

from accel.core.errors import InputError, OutputError, raised_as
from accel.core.values import SCHEMA, from_json

T = TypeVar("T")


FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
FULL_FIX = "free space there and run the same command again, which keeps what is done; or write to another disk"
REFUSED = (
    *(errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EISDIR, errno.EEXIST),
    *(errno.ENAMETOOLONG, errno.ELOOP, errno.EINVAL),
)
"""What a file system says of a folder that cannot be written to."""


def out_of_space(error: BaseException | None) -> bool:
    """Say whether a full disk is behind an error, also where a library put its own words around it."""
    while error is not None:
        full = isinstance(error, OSError) and error.errno in FULL
        if full or os.strerror(errno.ENOSPC) in str(error):
            return True
        error = error.__cause__ or error.__context__
    return False


@contextlib.contextmanager
def lock(run_dir: Path, command: str) -> Iterator[None]:
    """Hold the run directory for one command.

    Raises:
        OutputError: another command holds it (the message says which, and since when), it cannot be written, or it was
            moved or removed while the command ran.
    """
    with writing(run_dir):
        try:
            run_dir.mkdir(parents=True, exist_ok=True)
            file = (run_dir / ".lock").open("a+")
        except FileNotFoundError as error:  # as /proc says of what it does not make
            raise OSError(errno.EACCES, error.strerror) from error
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
        try:
            yield
        except Exception as error:
            _check_place(run_dir, file.fileno(), error)
            raise
        _check_place(run_dir, file.fileno(), None)
    finally:
        file.close()


def _check_place(run_dir: Path, lock: int, error: Exception | None) -> None:
    """Refuse to go on where the lock file that is held no longer lies in the run directory."""
    try:
        there = os.path.samestat((run_dir / ".lock").stat(), os.fstat(lock))
    except OSError:
        there = False
    if not there:
        raise OutputError(
            f"{run_dir} was moved or removed while the command ran",
            fix="move it back and remove what lies in its place, or name its new place with -o DIR: the same command "
            "goes on from there",
        ) from error


@contextlib.contextmanager
def writing(folder: Path) -> Iterator[None]:
    """Turn what the operating system says about a folder into an error that says how to fix it."""
    try:
        yield
    except OSError as error:
        if error.errno in FULL:
            raise OutputError(f"no space left while writing to {folder}: {error.strerror}", fix=FULL_FIX) from error
        if error.errno in REFUSED:
            raise OutputError(f"cannot write to {folder}: {error.strerror}", fix="choose another folder") from error
        raise


def stays_inside(path: str) -> bool:
    """Say whether a path that a file names stays below the folder it is taken from: relative, plain, spelt one way."""
    pure = PurePosixPath(path)
    plain = pure.as_posix() == path and "\0" not in path and "\\" not in path
    return plain and path != "." and not pure.is_absolute() and ".." not in pure.parts


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Give a temporary name beside ``path``; the file or folder written there takes its place when the block ends.

    Readers see the old or the new, never a half. Where the block raises, or writes nothing, the old one stays. A folder
    takes another's place by two renamings: a process that is killed between them leaves the old one aside, and the next
    call brings it back first. What a killed process left under its temporary name goes, too.

    Raises:
        OutputError: the disk is full or the folder cannot be written.
    """
    new, old = path.with_name(f".{path.name}.{os.getpid()}.new"), path.with_name(f".{path.name}.old")
    with writing(path):
        if _there(old) and not _there(path):
            old.rename(path)
        remove(old)
        for left in path.parent.glob(f".{glob.escape(path.name)}.[0-9]*.new"):
            if (
                left.is_dir() or not Path("/proc", left.suffixes[-2][1:]).exists()
            ):  # two may write one file, not one run
                remove(left)
        try:
            yield new
            if new.is_dir():
                exchange(new, path)
            elif _there(new):
                new.replace(path)
        finally:
            with contextlib.suppress(OSError):
                remove(new)


def exchange(new: Path, path: Path) -> None:
    """Put a folder where another, a file or a link may stand; what stood there comes back if that fails."""
    old = path.with_name(f".{path.name}.old")
    if _there(path):
        path.rename(old)
    try:
        new.rename(path)
    except OSError:
        if _there(old):
            old.rename(path)
        raise
    remove(old)


def write_text(path: Path, text: str) -> None:
    """Write a text file whole or not at all, as ``replacing``, and make the folder that it lies in.

    Raises:
        OutputError: the disk is full or the folder cannot be written.
    """
    with writing(path.parent):
        path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as new:
        new.write_text(text, encoding="utf-8")


def replace_folder(path: Path, files: Mapping[str, Path | str], *, copy: bool = False) -> None:
    """Make ``path`` hold exactly ``files``: by relative name a source file, hard-linked or copied, or a text.

    Nothing is done where it holds them already; else the new folder takes its place, as ``replacing``.

    Raises:
        OutputError: the disk is full or the folder cannot be written.
    """
    with replacing(path) as new:
        if _holds(path, files, copy=copy):
            return
        new.mkdir(parents=True)
        for name, source in files.items():
            target = new / name
            if isinstance(source, str):
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_text(source)
            else:
                # onnx's checker and loader refuse external data that has several names
                link_or_copy(source, target, copy=copy or source.suffix == ".data")


def read_value(path: Path, cls: type[T], *, missing: str, fix: str) -> T:
    """Read a value of accel's that lies alone in a JSON file and carries its ``schema``.

    Args:
        missing / fix: what fixes it where the file is not there, and where it is broken.

    Raises:
        InputError: it is missing, is not JSON, lacks a field, or its schema is newer than this accel.
    """
    try:
        data = parse_json(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise InputError(f"{path.parent} has no {path.name}", fix=missing) from error
    except (OSError, ValueError) as error:
        raise InputError(f"{path} cannot be read as JSON: {error}", fix=fix) from error
    schema = data.get("schema") if isinstance(data, dict) else None
    if not isinstance(schema, int):
        raise InputError(f"{path} has schema {schema!r}, expected a number", fix=fix)
    if schema > SCHEMA:
        raise InputError(f"{path} has schema {schema}, this accel reads up to {SCHEMA}", fix="use a newer accel")
    with raised_as(InputError, ValueError, str(path), fix=fix):
        return from_json(cls, data)


def parse_json(text: str) -> Any:
    """Parse JSON without what Python's reader takes beside: NaN, infinities, and halves of a character.

    Raises:
        ValueError: as ``load_json``, or it holds a lone surrogate, which no file name and no UTF-8 file can have.
    """
    data = load_json(text, parse_constant=_no_constant)
    json.dumps(data, ensure_ascii=False).encode()
    return data


def load_json(text: str | bytes, **how: Any) -> Any:
    """Parse JSON that somebody else may have written, as ``json.loads``.

    Raises:
        ValueError: it is not JSON, or is nested more deeply than Python can follow.
    """
    try:
        return json.loads(text, **how)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


def _no_constant(text: str) -> float:
    raise ValueError(f"{text} is not JSON")


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
    """Give ``source`` a second name, or a second body where the file system or the caller wants one, in any folder.

    A copy is the user's own and may be written to; a second name keeps the mode of the first.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    if not copy:
        try:
            target.hardlink_to(source)
            return
        except OSError:
            pass  # another file system, or one without links
    shutil.copy2(source, target)
    target.chmod(target.stat().st_mode | 0o200)
