"""Folders as tar archives whose bytes follow from the files alone: no times, owners or order of a file system."""

import gzip
import tarfile
from pathlib import Path
from typing import IO, cast

EXECUTABLE, PLAIN = 0o755, 0o644


def write_tar(folder: Path, target: Path, *, below: str = "", compressed: bool = False) -> None:
    """Write a folder's files as a tar archive.

    Args:
        below: folder in the archive that they lie in, such as ``models``; its top when empty.
        compressed: by gzip, fast rather than small: weights hardly shrink.

    Raises:
        OSError: a file cannot be read or written.
    """
    with target.open("wb") as file:
        # gzip writes the time and the file's name unless told not to
        packed = gzip.GzipFile("", "wb", compresslevel=1, fileobj=file, mtime=0) if compressed else None
        body = cast("IO[bytes]", packed or file)
        with tarfile.open(fileobj=body, mode="w", format=tarfile.PAX_FORMAT) as tar:
            parents = [Path(below), *Path(below).parents][:-1] if below else []
            found = {Path(below) / path.relative_to(folder): path for path in folder.rglob("*")}
            for name in sorted([*parents, *found], key=lambda name: name.parts):
                _add(tar, name.as_posix(), found.get(name))
        if packed is not None:
            packed.close()


def _add(tar: tarfile.TarFile, name: str, path: Path | None) -> None:
    info = tarfile.TarInfo(name)
    if path is None or path.is_dir():
        info.type, info.mode = tarfile.DIRTYPE, EXECUTABLE
        tar.addfile(info)
        return
    status = path.stat()
    info.size, info.mode = status.st_size, EXECUTABLE if status.st_mode & 0o100 else PLAIN
    with path.open("rb") as content:
        tar.addfile(info, content)
