"""A repository as files: the artifact's own are linked, all are described."""

import shutil
import stat
from collections.abc import Mapping
from pathlib import Path

from accel.core.errors import InputError
from accel.core.files import link_or_copy, stays_inside
from accel.core.values import FileRef, file_ref


def link(files: tuple[FileRef, ...], source: Path, *, target: Path, root: Path) -> dict[str, FileRef]:
    """Hard-link the artifact's files below ``target``; return them by their path below ``root``."""
    known: dict[str, FileRef] = {}
    for file in files:
        if not stays_inside(file.path):
            raise InputError(f"artifact file {file.path!r} lies outside the artifact's folder")
        origin, copy = source / file.path, target / file.path
        try:
            status = origin.lstat()
        except FileNotFoundError as error:
            raise InputError(f"artifact file {origin} is missing", fix="build the variant again") from error
        if not stat.S_ISREG(status.st_mode) or status.st_size != file.bytes:
            raise InputError(
                f"artifact file {origin} has {status.st_size} bytes or is not a plain file: expected "
                f"{file.bytes} bytes",
                fix="build the variant again",
            )
        link_or_copy(origin, copy)
        path = copy.relative_to(root).as_posix()
        known[path] = FileRef(path, file.sha256, file.bytes)
    return known


def link_tree(origin: Path, target: Path) -> None:
    """Copy a folder by hard links, or by content to another file system; caches of Python stay behind."""
    shutil.copytree(
        origin,
        target,
        copy_function=lambda source, copy: link_or_copy(Path(source), Path(copy)),
        ignore=shutil.ignore_patterns("__pycache__"),
    )


def describe(root: Path, known: Mapping[str, FileRef]) -> tuple[FileRef, ...]:
    """Describe every file below ``root``; the artifact's own are already hashed."""
    paths = sorted(p for p in root.rglob("*") if p.is_file())
    return tuple(known.get(p.relative_to(root).as_posix()) or file_ref(p, root) for p in paths)
