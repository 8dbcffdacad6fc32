"""Releases in an object store: uploaded once, named by pointers that only ever move on, taken back whole or not at all.

    URL/releases/<version>/digest           which content is that version: written once, by whoever comes first
    URL/releases/<version>/<digest>/…       the files of the release, release.json last
    URL/pointers/<name>/<sequence>.json     what ``name`` (production, canary…) stands for, signed; the highest counts

Nothing that exists is ever written again or deleted: of two publishers one creates a file and the other is told, and
whoever reads meanwhile sees the old or the new. The digest is the sha256 of release.json, which has that of every file.

A pointer is signed with its name, a sequence that rises and a time at which it ends, so an older one that somebody
puts in its place is refused: by its sequence where a client has seen a later one, else when it has ended.
"""

import base64
import contextlib
import datetime
import json
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from accel.core import signing
from accel.core.errors import CheckFailed, InputError, OutputError, UnavailableError, UsageError, nearest
from accel.core.files import read_value, replacing, write_text, writing
from accel.core.values import SCHEMA, from_json, sha256_file, to_json
from accel.release import checking
from accel.release.diffing import blocking
from accel.release.document import FILENAME, read

DIGEST = "digest"


@dataclass(frozen=True, slots=True)
class Pointer:
    """What a name stands for.

    Attributes:
        sequence: one more than the pointer's before.
        expires: ISO 8601 time from which it counts no more.
    """

    name: str
    version: str
    digest: str
    sequence: int
    created: str
    expires: str
    schema: int = SCHEMA


class Place:
    """An object store, or a folder that is used as one.

    Args:
        url: as fsspec takes it: ``s3://bucket/prefix``, ``file:///path``, or a path.

    Raises:
        UnavailableError: the package for that kind of store is not installed.
        UsageError: there is no such kind.
    """

    def __init__(self, url: str) -> None:
        import fsspec

        try:
            self.files, root = fsspec.core.url_to_fs(url, use_listings_cache=False, skip_instance_cache=True)
        except ImportError as error:
            raise UnavailableError(f"{url} cannot be reached: {error}", fix="pip install 'accel[s3]'") from error
        except ValueError as error:
            raise UsageError(f"{url}: {error}", fix="s3://BUCKET/PREFIX or file:///PATH") from error
        self.url, self.root, self.local = url.rstrip("/"), root.rstrip("/"), "file" in self.files.protocol

    def names(self, folder: str) -> list[str]:
        """Return the names in a folder, sorted; none where it is not there."""
        try:
            with self._reached():
                found = self.files.ls(self._at(folder), detail=False)
        except FileNotFoundError:
            return []
        names = (path.rstrip("/").rpartition("/")[2] for path in found)
        return sorted(name for name in names if not name.startswith("."))  # what is being written has such a name

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
                with self._reached():
                    self.files.pipe_file(self._at(name), content, mode="create")
            except FileExistsError:
                return False
            return True
        path = Path(self._at(name))
        with writing(path.parent):
            path.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile(dir=path.parent, prefix=".") as file:
                file.write(content)
                file.flush()
                try:
                    path.hardlink_to(file.name)
                except FileExistsError:
                    return False
        return True

    def upload(self, source: Path, name: str) -> None:
        """Copy a file there, unless one of its size is: what appears is whole, and its folder is its content's own."""
        place = self._at(name)
        with self._reached():
            if self.files.exists(place) and self.files.size(place) == source.stat().st_size:
                return
            if not self.local:
                self.files.put_file(str(source), place)
                return
        with writing(Path(place).parent):
            Path(place).parent.mkdir(parents=True, exist_ok=True)
            with replacing(Path(place)) as new:
                shutil.copyfile(source, new)

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

    def _at(self, name: str) -> str:
        return f"{self.root}/{name}"

    @contextlib.contextmanager
    def _reached(self) -> Iterator[None]:
        """Turn what a store's own library says into an error that says how to fix it."""
        try:
            yield
        except (FileNotFoundError, FileExistsError):
            raise
        except Exception as error:
            why = f"{self.url} cannot be used: {type(error).__name__}: {error}"
            fix = "check its name, your credentials and the network; the same command goes on"
            raise UnavailableError(why, fix=fix) from error


def publish(folder: Path, place: Place, *, key: Path) -> str:
    """Upload a signed release, and return its digest. One that was begun goes on; one that is there stays.

    Args:
        key: public key that it must be signed with.

    Raises:
        CheckFailed: it is not what was signed, is not complete, or a row of its comparison blocks.
        OutputError: that version is there with other content.
    """
    wrong = [f"{f.file}: {f.why}" for f in checking.verify(folder, key=key) if f.severity == "error"]
    release = read(folder)
    wrong += release.missing
    if release.compared is not None:
        wrong += [f"{r.model}:{r.what} on {r.pool} is {r.verdict}" for r in blocking(release.compared)]
    if wrong:
        said = "\n  ".join(wrong[:10])
        raise CheckFailed(f"{folder} is not published:\n  {said}", fix="accel release verify, diff and build say more")
    digest, base = sha256_file(folder / FILENAME), f"releases/{release.version}"
    if not place.create(f"{base}/{DIGEST}", digest.encode()) and place.read(f"{base}/{DIGEST}").decode() != digest:
        raise OutputError(
            f"{place.url} has a release {release.version} with other content, which stays",
            fix="give the release file another version",
        )
    for name in (*(f.path for f in release.files), signing.SIGNATURE, FILENAME):
        place.upload(folder / name, f"{base}/{digest}/{name}")
    return digest


def pointers(place: Place, name: str, key: Path) -> Iterator[Pointer]:
    """Yield what a name has stood for, newest first.

    Raises:
        InputError: a pointer is damaged, or was not signed by the key's owner.
    """
    for file in reversed(place.names(f"pointers/{name}")):
        try:
            whole = json.loads(place.read(f"pointers/{name}/{file}"))
            text = whole["pointer"]
            signing.check_text(text, base64.b64decode(whole["signature"], validate=True), key)
            found = from_json(Pointer, json.loads(text))
        except (ValueError, KeyError, TypeError) as error:
            raise InputError(
                f"{place.url}: pointers/{name}/{file} is no pointer: {error!r}", fix="do not use it"
            ) from error
        if (f"{found.sequence:010d}.json", found.name) != (file, name):
            raise InputError(f"{place.url}: pointers/{name}/{file} says it is another: {found}", fix="do not use it")
        yield found


def promote(place: Place, name: str, version: str, *, key: Path, public: Path, days: float = 90.0) -> Pointer:
    """Let a name stand for a published version from now on.

    Args:
        key / public: the pair that signs pointers.
        days: after which the pointer counts no more; promote the same version again before that.

    Raises:
        UsageError: the version is not there, or only partly.
        OutputError: somebody else moved the pointer at the same time; theirs stands.
    """
    known = place.names("releases")
    if version not in known:
        raise UsageError(f"{place.url} has no release {version}{nearest(version, known)}", fix="accel release publish")
    digest = place.read(f"releases/{version}/{DIGEST}").decode()
    if FILENAME not in place.names(f"releases/{version}/{digest}"):
        raise UsageError(f"{place.url} has release {version} in part only", fix="accel release publish it again")
    last = next(pointers(place, name, public), None)
    now = datetime.datetime.now(datetime.UTC).replace(microsecond=0)
    pointer = Pointer(
        name=name,
        version=version,
        digest=digest,
        sequence=last.sequence + 1 if last else 1,
        created=now.isoformat(),
        expires=(now + datetime.timedelta(days=days)).isoformat(),
    )
    text = json.dumps(to_json(pointer))
    signed = {"pointer": text, "signature": base64.b64encode(signing.sign_text(text, key)).decode()}
    if not place.create(f"pointers/{name}/{pointer.sequence:010d}.json", json.dumps(signed).encode()):
        raise OutputError(f"{name} was moved by somebody else at the same time", fix="accel release list, then decide")
    return pointer


def rollback(place: Place, name: str, *, key: Path, public: Path, days: float = 90.0) -> Pointer:
    """Let a name stand for the version that it stood for before its present one.

    Raises:
        UsageError: there was none.
        OutputError: as ``promote``.
    """
    found = list(pointers(place, name, public))
    before = next((p for p in found if p.digest != found[0].digest), None)
    if before is None:
        raise UsageError(f"{name} has stood for one version at most", fix="accel release promote VERSION")
    return promote(place, name, before.version, key=key, public=public, days=days)


def pull(place: Place, name: str, out: Path, *, key: Path) -> Path:
    """Take the release that a name stands for into ``out/<version>``, checked, and return that folder.

    The pointer that was taken is kept in ``out/<name>.pointer.json``: an older one is refused from then on.

    Raises:
        InputError: there is no such pointer, it has ended or is older than one seen before, or a file is not what the
            owner of the key signed.
    """
    pointer = next(pointers(place, name, key), None)
    if pointer is None:
        raise InputError(f"{place.url} has no pointer {name}", fix="accel release promote VERSION")
    if datetime.datetime.fromisoformat(pointer.expires) <= datetime.datetime.now(datetime.UTC):
        raise InputError(
            f"{name} ended at {pointer.expires}", fix="its owner promotes the version again, or another one"
        )
    kept = out / f"{name}.pointer.json"
    seen = read_value(kept, Pointer, missing="", fix=f"remove {kept}") if kept.exists() else pointer
    if (pointer.sequence, pointer.digest) != (seen.sequence, seen.digest) and pointer.sequence <= seen.sequence:
        raise InputError(
            f"{place.url} offers {name} number {pointer.sequence} ({pointer.version}), and number {seen.sequence} "
            f"({seen.version}) was there before: somebody put an older pointer in its place",
            fix="ask its owner; nothing was taken",
        )
    base, folder = f"releases/{pointer.version}/{pointer.digest}", out / pointer.version
    if not (folder / FILENAME).is_file() or sha256_file(folder / FILENAME) != pointer.digest:
        out.mkdir(parents=True, exist_ok=True)
        with replacing(folder) as new:
            place.download(f"{base}/{FILENAME}", new / FILENAME)
            if sha256_file(new / FILENAME) != pointer.digest:
                raise InputError(f"{place.url}: {base}/{FILENAME} is not what {name} names", fix="do not use it")
            for file in read(new).files:
                place.download(f"{base}/{file.path}", new / file.path)
            place.download(f"{base}/{signing.SIGNATURE}", new / signing.SIGNATURE)
            signing.verify(new, key)
    write_text(kept, json.dumps(to_json(pointer)) + "\n")
    return folder


def listed(place: Place, key: Path) -> list[dict[str, Any]]:
    """Return a row for each version: what it is called, and which names stand for it.

    Raises:
        InputError: a pointer was not signed by the key's owner.
    """
    newest = {name: next(pointers(place, name, key), None) for name in place.names("pointers")}
    return [
        {"version": version, "names": ", ".join(n for n, p in newest.items() if p and p.version == version)}
        for version in place.names("releases")
    ]
