"""Content-addressed results of the stages, inside the run directory: what was done once is not done again.

A result is a folder ``.store/<stage>-<key>`` with a ``value.json`` and the files it names. It is written under a
temporary name and renamed, so a folder that exists is complete; whatever an interrupted command left behind carries a
temporary name and is removed by the next one. The key holds everything the result depends on.

Files of a result are linked into the folders people look into, so they are read-only, and one that was changed in
place all the same makes the result count as absent: it is made again.
"""

import contextlib
import hashlib
import json
import re
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

from accel.core.files import exchange, link_or_copy, load_json, writing
from accel.core.values import SCHEMA, from_json, sha256_json, to_json

T = TypeVar("T")
PORTABLE = re.compile(r"(source|onnx|narrow|typed-(?!proof-).*)-[0-9a-f]+")
"""Folders of results that no machine's hardware changes: one machine makes them for all."""
KEPT = 3
"""How many results of one stage of one variant stay, so that going back to the options before builds nothing."""

PACKAGE = Path(__file__).resolve().parents[1]


class Store:
    """The results below one run directory.

    Args:
        run_dir: the run directory; must be locked by the caller (``lock``).
    """

    def __init__(self, run_dir: Path) -> None:
        self.root = run_dir / ".store"
        self.used: set[str] = set()
        with writing(self.root):
            self.root.mkdir(parents=True, exist_ok=True)
            for left in (*self.root.glob("tmp-*"), *self.root.glob(".*.old")):
                shutil.rmtree(left)

    def folder(self, stage: str, key: str) -> Path:
        """Where the result lies, or would; ``stage`` may carry a variant's id (``build-ort@cpu``)."""
        return self.root / f"{stage}-{key[:24]}"

    def get(self, stage: str, key: str, cls: type[T]) -> T | None:
        """Return the stored value, or None where there is none that this version can read."""
        file = self.folder(stage, key) / "value.json"
        try:
            stored = load_json(file.read_text())
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
                stored = load_json((folder / "value.json").read_text())
                if stored["schema"] == SCHEMA:
                    found[folder.name] = from_json(cls, stored["value"])
        return found

    @contextlib.contextmanager
    def writing(self, stage: str) -> Iterator[Path]:
        """Give a temporary folder for the files of a result; ``put`` makes it final.

        Raises:
            OutputError: the disk is full or the folder cannot be written.
        """
        with writing(self.root):
            temporary = Path(tempfile.mkdtemp(prefix=f"tmp-{stage}-", dir=self.root))
        try:
            with writing(self.root):
                yield temporary
        finally:
            shutil.rmtree(temporary, ignore_errors=True)

    def put(self, stage: str, key: str, value: Any, written: Path) -> Path:
        """Make what lies in ``written`` the result for ``key`` and return its final folder."""
        final = self.folder(stage, key)
        with writing(self.root):
            for file in written.rglob("*"):
                if file.is_file():
                    file.chmod(file.stat().st_mode & ~0o222)
            stored = {"schema": SCHEMA, "key": key, "files": _stamps(written), "value": to_json(value)}
            text = json.dumps(stored, indent=1, allow_nan=False)
            (written / "value.json").write_text(text)
            exchange(written, final)
        self.used.add(final.name)
        return final

    def adopt(self, run_dir: Path) -> None:
        """Take from another machine's run directory of the same model what no hardware changes and is not here.

        Of each stage and variant the newest result is taken. What the other machine removes meanwhile is not.
        """
        changed = {}
        for folder in (run_dir / ".store").glob("*"):
            with contextlib.suppress(FileNotFoundError):
                changed[folder.name] = folder.stat().st_mtime_ns
        for name in newest_portable(changed):
            folder = run_dir / ".store" / name
            if not (self.root / folder.name).exists():
                with contextlib.suppress(FileNotFoundError), self.writing(folder.name) as new:
                    for file in sorted(p for p in folder.rglob("*") if p.is_file()):
                        own = file.suffix == ".data"  # onnx refuses external data that has several names
                        link_or_copy(file, new / file.relative_to(folder), copy=own)
                    new.rename(self.root / folder.name)

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


def newest_portable(changed: Mapping[str, int]) -> list[str]:
    """Return of each stage and variant the newest result that no hardware changes.

    Args:
        changed: folder of a result → when it was last changed, ns.
    """
    newest: dict[str, tuple[int, str]] = {}
    for name, when in changed.items():
        if PORTABLE.fullmatch(name):
            stage = name.rpartition("-")[0]
            newest[stage] = max(newest.get(stage, (when, name)), (when, name))
    return [name for _, name in newest.values()]


def _stamps(folder: Path) -> dict[str, list[int]]:
    """Return path → size and time of change (ns) of all files of a result: cheap, and an edit in place changes them."""
    found = {}
    for file in sorted(folder.rglob("*")):
        if file.is_file() and file.name != "value.json":
            state = file.stat()
            found[file.relative_to(folder).as_posix()] = [state.st_size, state.st_mtime_ns]
    return found


def code_hash(*parts: str) -> str:
    """Hash the source code and templates of files and folders (``builders/to_null.py``, ``graph``; or absolute)."""
    digest = hashlib.sha256()
    for part in sorted(parts):
        path = PACKAGE / part
        if not path.exists():
            raise FileNotFoundError(f"{path} is part of no installation of accel")
        for file in [path] if path.is_file() else sorted(p for p in path.rglob("*") if p.suffix in (".py", ".j2")):
            digest.update(file.name.encode() + b"\0" + file.read_bytes())
    return digest.hexdigest()


def key(**parts: Any) -> str:
    """Hash named parts (values with a JSON form) into a cache key."""
    return sha256_json(parts)
