"""Content-addressed results of the stages, inside the run directory: what was done once is not done again.

A result is a folder ``.store/<stage>-<key>`` with a ``value.json`` and the files it names. It is written under a
temporary name and renamed, so a folder that exists is complete; whatever an interrupted command left behind carries a
temporary name and is removed by the next one. The key holds everything the result depends on.

Files of a result are linked into the folders people look into, so they are read-only, and one that was changed in
place all the same makes the result count as absent: it is made again.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, TypeVar

from accel.artifacts import SCHEMA, from_json, sha256_json, to_json
from accel.errors import OutputError

T = TypeVar("T")
KEPT = 3
"""How many results of one stage of one variant stay, so that going back to the options before builds nothing."""

PACKAGE = Path(__file__).resolve().parent


class Store:
    """The results below one run directory.

    Args:
        run_dir: the run directory; must be locked by the caller (``lock``).
    """

    def __init__(self, run_dir: Path) -> None:
        self.root = run_dir / ".store"
        self.used: set[str] = set()
        with _writing(self.root):
            self.root.mkdir(parents=True, exist_ok=True)
            for left in self.root.glob("tmp-*"):
                shutil.rmtree(left)

    def folder(self, stage: str, key: str) -> Path:
        """Where the result lies, or would; ``stage`` may carry a variant's id (``build-ort@cpu``)."""
        return self.root / f"{stage}-{key[:24]}"

    def get(self, stage: str, key: str, cls: type[T]) -> T | None:
        """Return the stored value, or None where there is none that this version can read."""
        file = self.folder(stage, key) / "value.json"
        try:
            stored = json.loads(file.read_text())
            if stored["schema"] != SCHEMA or stored["key"] != key or stored["files"] != _stamps(file.parent):
                return None
            value = from_json(cls, stored["value"])
        except (FileNotFoundError, ValueError, KeyError, TypeError):
            return None
        self.used.add(file.parent.name)
        return value

    def all(self, stage: str, cls: type[T]) -> dict[str, T]:
        """Return every stored value of a stage that this version can read, by folder; add what serves to ``used``."""
        found = {}
        for folder in sorted(self.root.glob(f"{stage}-*")):
            with contextlib.suppress(FileNotFoundError, ValueError, KeyError, TypeError):
                stored = json.loads((folder / "value.json").read_text())
                if stored["schema"] == SCHEMA:
                    found[folder.name] = from_json(cls, stored["value"])
        return found

    @contextlib.contextmanager
    def writing(self, stage: str, key: str) -> Iterator[Path]:
        """Give a temporary folder for the files of a result; ``put`` makes it final.

        Raises:
            OutputError: the disk is full or the folder cannot be written.
        """
        with _writing(self.root):
            temporary = Path(tempfile.mkdtemp(prefix=f"tmp-{stage}-", dir=self.root))
        try:
            with _writing(self.root):
                yield temporary
        finally:
            shutil.rmtree(temporary, ignore_errors=True)

    def put(self, stage: str, key: str, value: Any, written: Path) -> Path:
        """Make what lies in ``written`` the result for ``key`` and return its final folder."""
        final = self.folder(stage, key)
        with _writing(self.root):
            for file in written.rglob("*"):
                if file.is_file():
                    file.chmod(file.stat().st_mode & ~0o222)
            stored = {"schema": SCHEMA, "key": key, "files": _stamps(written), "value": to_json(value)}
            text = json.dumps(stored, indent=1, allow_nan=False)
            (written / "value.json").write_text(text)
            if final.exists():
                shutil.rmtree(final)
            written.rename(final)
        self.used.add(final.name)
        return final

    def prune(self) -> None:
        """Of each stage and variant keep what this command used and the newest other results, ``KEPT`` in all."""
        groups: dict[str, list[Path]] = {}
        for folder in self.root.iterdir():
            groups.setdefault(folder.name.rpartition("-")[0], []).append(folder)
        for folders in groups.values():
            folders.sort(key=lambda f: (f.name in self.used, f.stat().st_mtime), reverse=True)
            for folder in folders[KEPT:]:
                if folder.name not in self.used:
                    shutil.rmtree(folder, ignore_errors=True)


def _stamps(folder: Path) -> dict[str, list[int]]:
    """Return path → size and time of change (ns) of all files of a result: cheap, and an edit in place changes them."""
    found = {}
    for file in sorted(folder.rglob("*")):
        if file.is_file() and file.name != "value.json":
            state = file.stat()
            found[file.relative_to(folder).as_posix()] = [state.st_size, state.st_mtime_ns]
    return found


@contextlib.contextmanager
def lock(run_dir: Path, command: str) -> Iterator[None]:
    """Hold the run directory for one command.

    Raises:
        OutputError: another command holds it (the message says which, and since when), or it cannot be written.
    """
    with _writing(run_dir):
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
def _writing(folder: Path) -> Iterator[None]:
    """Turn what the operating system says about a folder into an error that says how to mend it."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise OutputError(f"no space left while writing to {folder}", fix="free space, or use -o DIR") from error
        if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EEXIST):
            raise OutputError(
                f"cannot write to {folder}: {error.strerror}", fix="choose another with -o DIR"
            ) from error
        raise


def write_text(path: Path, text: str) -> None:
    """Write a text file under a temporary name and rename it: readers see the old or the new, never a half.

    Raises:
        OutputError: the disk is full or the folder cannot be written.
    """
    with _writing(path.parent):
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f".{path.name}.tmp")
        temporary.write_text(text)
        temporary.replace(path)


def replace_folder(path: Path, files: Mapping[str, Path | str], *, copy: bool = False) -> None:
    """Make ``path`` hold exactly ``files``: by relative name a source file, hard-linked or copied, or a text.

    Nothing is done where it holds them already. The new folder takes the old one's place by renaming: an interrupted
    call leaves the old one, or, killed between two renamings, leaves it aside for the next call to bring back first.

    Raises:
        OutputError: the disk is full or the folder cannot be written.
    """
    new, old = path.with_name(f".{path.name}.new"), path.with_name(f".{path.name}.old")
    with _writing(path.parent):
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


def code_hash(*parts: str) -> str:
    """Hash the source code of files and folders (``builders/to_openvino.py``, ``graph``; absolute or within accel)."""
    digest = hashlib.sha256()
    for part in sorted(parts):
        path = PACKAGE / part
        if not path.exists():
            raise FileNotFoundError(f"{path} is part of no installation of accel")
        for file in [path] if path.is_file() else sorted(path.rglob("*.py")):
            digest.update(file.name.encode() + b"\0" + file.read_bytes())
    return digest.hexdigest()


def package_versions(*packages: str) -> dict[str, str]:
    """Return distribution → installed version, leaving out what is not installed here."""
    found = {}
    for package in packages:
        with contextlib.suppress(PackageNotFoundError):
            found[package] = version(package)
    return found


def key(**parts: Any) -> str:
    """Hash named parts (values with a JSON form) into a cache key."""
    return sha256_json(parts)
