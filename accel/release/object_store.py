"""An object store over fsspec, or a folder used as one: few operations, each whole or not at all.

Tested with folders, S3, Google Cloud Storage and Azure Blob Storage. Sources: fsspec, "API Reference"
(``pipe_file(mode="create")``, ``info``, ``put_file``); AWS, "Checking object integrity" (what an ETag is); Google,
"Request preconditions" (``ifGenerationMatch=0``, which gcsfs sends to create); Microsoft, "Put Blob" (``If-None-Match:
*``, which adlfs sends to create, and the MD5 that the store makes) and "Put Block List" (the MD5 that it is told).
"""

import base64
import contextlib
import filecmp
import hashlib
import logging
import os
import shutil
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from accel.core.errors import InputError, UnavailableError, UsageError
from accel.core.files import replacing, write_text, writing

PART_BYTES = 64 * 2**20
"""Size of the parts in which a large file goes to S3; of it and the file follows the checksum that S3 makes."""
EXTRAS = {"s3": "s3", "s3a": "s3", "gs": "gcs", "gcs": "gcs", "abfs": "azure", "abfss": "azure", "az": "azure"}
"""Protocol → extra of accel that brings its package."""
AZURE_PARTS_AT_ONCE = 8
"""Parts of a file, 4 MiB each, that are on their way to or from Azure at once; adlfs would hold 128 in memory."""

for _name in ("gcsfs", "azure"):  # they print what they raise as well, with its traceback
    logging.getLogger(_name).addHandler(logging.NullHandler())


class ObjectStore:
    """An object store, or a folder that is used as one.

    Args:
        url: as fsspec takes it: ``s3://bucket/prefix``, ``gs://bucket/prefix``, ``abfs://container/prefix``,
            ``file:///path``, or a path.

    Raises:
        UnavailableError: the package for that kind of store is not installed, or it finds no credentials.
        UsageError: there is no such kind.
    """

    def __init__(self, url: str) -> None:
        import fsspec

        kind = fsspec.core.split_protocol(url)[0] or "file"
        extra = EXTRAS.get(kind)
        if extra == "gcs":
            # else it asks by gRPC what kind a bucket is, and where that fails again before each request
            os.environ.setdefault("GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT", "false")
        options = {"max_concurrency": AZURE_PARTS_AT_ONCE} if extra == "azure" else {}
        try:
            fsspec.get_filesystem_class(kind)
        except ImportError as error:
            fix = f"pip install 'accel[{extra}]'" if extra else "install the package that it names"
            raise UnavailableError(f"{url} cannot be reached: {error}", fix=fix) from error
        except ValueError as error:
            fix = "s3://BUCKET/PREFIX, gs://BUCKET/PREFIX, abfs://CONTAINER/PREFIX or file:///PATH"
            raise UsageError(f"{url}: {error}", fix=fix) from error
        self.url = url.rstrip("/")
        with self._reached():
            self.files, root = fsspec.core.url_to_fs(url, use_listings_cache=False, skip_instance_cache=True, **options)
        if extra == "azure":
            _retry_soon(self.files)
        self.root, self.local = root.rstrip("/"), "file" in self.files.protocol

    @property
    def address(self) -> str:
        """The URL by which other tools know the same place: that of a container in Azure is its address by HTTPS."""
        if EXTRAS.get(self.url.partition("://")[0]) == "azure":
            return f"https://{self.files.service_client.primary_hostname}/{self.root}"
        return self.url

    def names(self, folder: str) -> list[str]:
        """Return the names in a folder, sorted; none where it is not there."""
        try:
            with self._reached():
                found = self.files.ls(self._at(folder), detail=False)
        except FileNotFoundError:
            return []
        names = (path.rstrip("/").rpartition("/")[2] for path in found)
        return sorted(name for name in names if not name.startswith("."))  # what is being written has such a name

    def files_below(self, folder: str) -> list[str]:
        """Return the paths of all files in a folder and those below it, from there; none where it is not there."""
        try:
            with self._reached():
                found = self.files.find(self._at(folder))
        except FileNotFoundError:
            return []
        names = (path.removeprefix(f"{self._at(folder)}/") for path in found)
        return sorted(name for name in names if name and not name.endswith("/"))  # S3's console makes folders so

    def read(self, name: str) -> bytes:
        """Return the content of a file.

        Raises:
            InputError: it is not there.
        """
        try:
            with self._reached():
                found: bytes = self.files.cat_file(self._at(name))
        except FileNotFoundError as error:
            raise InputError(f"{self.url} has no {name}", fix="accel release list shows what is there") from error
        return found

    def create(self, name: str, content: bytes) -> bool:
        """Write a file that must not be there yet, whole or not at all; return False where it is."""
        if not self.local:
            try:
                with self._writing():
                    self.files.pipe_file(self._at(name), content, mode="create")
            except FileExistsError:
                return False
            return True
        path = Path(self._at(name))
        with writing(path.parent):
            path.parent.mkdir(parents=True, exist_ok=True)
            new = path.with_name(f".{uuid.uuid4().hex}")  # of tempfile it would be its owner's alone
            try:
                new.write_bytes(content)
                path.hardlink_to(new)
            except FileExistsError:
                return False
            finally:
                new.unlink(missing_ok=True)
        return True

    def write(self, name: str, content: bytes) -> None:
        """Write a file, or put it in the place of the one that is there: who reads sees the old or the new."""
        if self.local:
            write_text(Path(self._at(name)), content.decode())
            return
        with self._writing():
            self.files.pipe_file(self._at(name), content)

    def upload(self, source: Path, name: str) -> None:
        """Copy a file there, unless it is there: what appears is whole, and its name says what is in it.

        It is there where the bytes are the same, or in a bucket the checksum that the store itself made. Where that
        cannot be compared (another tool's parts, a store's own encryption) it is uploaded again.
        """
        place = self._at(name)
        with self._writing():
            with contextlib.suppress(FileNotFoundError):
                found = self.files.info(place)
                if found["size"] == source.stat().st_size and self._same(source, place, found):
                    return
            if not self.local:
                self.files.put_file(str(source), place, **self._how(source))
                return
        with writing(Path(place).parent):
            Path(place).parent.mkdir(parents=True, exist_ok=True)
            with replacing(Path(place)) as new:
                shutil.copyfile(source, new)

    def _same(self, source: Path, place: str, found: Mapping[str, Any]) -> bool:
        if self.local:
            return filecmp.cmp(source, place, shallow=False)
        if "ETag" in found:
            return str(found["ETag"]).strip('"') == _etag(source)
        if "md5Hash" in found:
            return base64.b64decode(found["md5Hash"]) == _md5_of(source)
        told = found.get("content_settings", {}).get("content_md5")  # of Azure
        return told is not None and bytes(told) == _md5_of(source)

    def _how(self, source: Path) -> dict[str, Any]:
        """Return what the store is told with a file, so that the checksum by which it is compared can be known."""
        if "s3" in self.files.protocol:
            return {"chunksize": _part_bytes(source.stat().st_size)}
        if "abfs" in self.files.protocol:  # of a file in parts it keeps the MD5 that it is told, and checks each part's
            settings = {"content_type": "application/octet-stream", "content_md5": bytearray(_md5_of(source))}
            return {"content_settings": settings, "validate_content": True}
        return {}

    def download(self, name: str, target: Path) -> None:
        """Copy a file from there.

        Raises:
            InputError: it is not there.
        """
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            with self._reached():
                self.files.get_file(self._at(name), str(target))
        except FileNotFoundError as error:
            raise InputError(f"{self.url} has no {name}", fix="it was published in part, or damaged") from error

    def remove(self, name: str) -> None:
        """Delete a file, or a folder with all that is in it, if it is there."""
        try:
            with self._reached():
                self.files.rm(self._at(name), recursive=True)
        except FileNotFoundError:
            pass

    def _at(self, name: str) -> str:
        return f"{self.root}/{name}"

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        """As ``_reached``; where there is nothing to write to, that is an error, too."""
        try:
            with self._reached():
                yield
        except FileNotFoundError as error:
            why = f"{self.url} cannot be written to: {error}"
            raise UnavailableError(why, fix="make the bucket, or name another") from error

    @contextlib.contextmanager
    def _reached(self) -> Iterator[None]:
        """Turn what a store's own library says into an error that says how to fix it."""
        try:
            yield
        except (FileNotFoundError, FileExistsError):
            raise
        except Exception as error:
            said = str(error).partition("\nRequestId:")[0]  # Azure goes on with XML
            if getattr(error, "status_code", None) == 404:  # as adlfs leaves it where there is no container
                raise FileNotFoundError(said) from error
            why = f"{self.url} cannot be used: {type(error).__name__}: {said}"
            fix = "check its name, your credentials and the network; the same command goes on"
            raise UnavailableError(why, fix=fix) from error


def _retry_soon(files: Any) -> None:
    """Have Azure's client pause for less than a minute between all tries of a request; by itself it takes longer."""
    from azure.storage.blob import aio

    client = files.service_client
    policy = aio.ExponentialRetry(initial_backoff=1, increment_base=2, retry_total=4, random_jitter_range=1)
    files.service_client = aio.BlobServiceClient(client.url, client.credential, retry_policy=policy)


def _part_bytes(size: int) -> int:
    """Return how large the parts are that a file is uploaded to S3 in, which takes 10,000 of them at most."""
    return PART_BYTES * max(1, -(-size // (PART_BYTES * 10_000)))


def _etag(path: Path) -> str:
    """Return what S3 names a file's content by: its MD5; where it came in parts, that of their MD5s and how many."""
    size = path.stat().st_size
    part = _part_bytes(size)
    whole = size < min(5 * 2**30, 2 * part)  # as s3fs decides
    if whole:
        return _md5_of(path).hex()
    with path.open("rb") as file:
        parts = [_md5(chunk).digest() for chunk in iter(lambda: file.read(part), b"")]
    return f"{_md5(b''.join(parts)).hexdigest()}-{len(parts)}"


def _md5_of(path: Path) -> bytes:
    with path.open("rb") as file:
        return hashlib.file_digest(file, _md5).digest()


def _md5(content: bytes = b"") -> Any:
    return hashlib.md5(content, usedforsecurity=False)
