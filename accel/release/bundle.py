"""A release as one file, for a place without a network: all of it and its signature, in a plain tar archive.

    <version>/release.json, <version>/model.sig, <version>/repositories/…      as the folder of the release

The same release gives the same bytes. What is unpacked is what was signed, or nothing.
"""

import contextlib
import shutil
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path

from accel.core import signing, temporary
from accel.core.errors import InputError, OutputError, raised_as
from accel.core.files import replacing, stays_inside, writing
from accel.core.trust import Trusted
from accel.core.values import sha256_file
from accel.release.archives import write_tar
from accel.release.document import FILENAME, Release, read

FIX = "take the bundle again from where it comes"


def write(folder: Path, release: Release, file: Path) -> Path:
    """Write a release that is fit to be published as one file; what is there already with other content stays.

    Raises:
        OutputError: the file is there with other content, the disk is full, or the folder cannot be written.
    """
    with writing(file.parent):
        file.parent.mkdir(parents=True, exist_ok=True)
    with replacing(file) as new:
        write_tar(folder, new, below=release.version)
        if file.exists():
            if sha256_file(file) != sha256_file(new):
                raise OutputError(f"{file} is there with other content, which stays", fix="give another name")
            new.unlink()
    return file


@contextlib.contextmanager
def unpacked(file: Path) -> Iterator[Path]:
    """Give the folder of a bundle's release for as long as the block runs; nothing of it is checked but its form.

    Raises:
        InputError: it is not a bundle, or holds what would lie outside of its folder.
    """
    with tempfile.TemporaryDirectory(prefix="bundle-", dir=temporary.root()) as scratch:
        yield _unpack(file, Path(scratch))


def take(file: Path, out: Path, *, key: Trusted) -> Path:
    """Unpack a bundle into ``out/<version>``, whole and as it was signed, and return that folder.

    Args:
        key: whose signature it must have.

    Raises:
        InputError: it is not a bundle, or not what the owner of the key signed.
        OutputError: the version is there with other content, or ``out`` cannot be written.
    """
    if not file.is_file():
        raise InputError(f"there is no file {file}", fix="name what accel release publish --to bundle:FILE wrote")
    with writing(out):
        out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".bundle-", dir=out) as scratch:
        made = _unpack(file, Path(scratch))
        signing.verify(made, key)
        target = out / read(made).version
        if target.name != made.name:
            raise InputError(f"{file} holds release {target.name} in a folder {made.name}", fix=FIX)
        if (target / FILENAME).is_file():
            if sha256_file(target / FILENAME) != sha256_file(made / FILENAME):
                raise OutputError(f"{target} is there with other content, which stays", fix="give another -o DIR")
            signing.verify(target, key)
            return target
        with replacing(target) as new:
            made.rename(new)
    return target


def _unpack(file: Path, into: Path) -> Path:
    """Unpack plain files below one folder, and return it. Python's own way of extracting differs between versions."""
    # a header may ask for a name of 2^62 bytes, or for another header, thousands of times
    wrong = (OSError, tarfile.TarError, EOFError, ValueError, UnicodeError, MemoryError, RecursionError)
    with raised_as(InputError, wrong, f"{file} is not a bundle of a release", fix=FIX):
        with tarfile.open(file, "r:") as tar:
            for member in tar:
                target = into / member.name
                if not stays_inside(member.name) or member.issparse() or not (member.isreg() or member.isdir()):
                    raise InputError(f"{file} holds {member.name!r}, which no bundle does", fix=FIX)
                (target if member.isdir() else target.parent).mkdir(parents=True, exist_ok=True)
                if member.isreg() and (content := tar.extractfile(member)) is not None:
                    with target.open("xb") as to:
                        shutil.copyfileobj(content, to)
                    target.chmod(0o755 if member.mode & 0o100 else 0o644)
        (folder,) = into.iterdir()
    return folder
