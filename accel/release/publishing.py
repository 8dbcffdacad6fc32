"""Releases in an object store: uploaded once, named by pointers that only ever move on, taken back whole or not at all.

    URL/releases/<version>/digest           which content is that version: written once, by whoever comes first
    URL/releases/<version>/<digest>/…       the files of the release, release.json last
    URL/releases/<version>/removed          when ``accel release prune`` removed those: the version is not used again
    URL/pointers/<name>/<sequence>.json     what ``name`` (production, canary…) stands for, signed; the highest counts

Nothing that exists is ever written again, and ``prune`` alone deletes, what no pointer needs: of two publishers one
creates a file and the other is told, and whoever reads meanwhile sees the old or the new. The digest is the sha256 of
release.json, which has that of every file.

A pointer is signed with its name, a sequence that rises and a time at which it ends, so an older one that somebody
puts in its place is refused: by its sequence where a client has seen a later one, else when it has ended.

Several keys may count at once (``core.trust``), so that one is replaced by another without a break. What a revoked key
signed is refused by who pulls, and passed over by who moves a pointer on: the next number then is a new key's.
"""

import base64
import datetime
import json
import re
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from accel.core import signing, temporary
from accel.core.errors import CheckFailed, InputError, OutputError, UsageError, nearest
from accel.core.files import load_json, lock, read_value, replacing, stays_inside, write_text
from accel.core.hardware import SIMULATE, SIMULATED
from accel.core.trust import NotTrusted, Trusted, trusting
from accel.core.values import SCHEMA, from_json, sha256_file, to_json
from accel.release import checking
from accel.release.diffing import blocking
from accel.release.document import FILENAME, Release, read
from accel.release.object_store import ObjectStore
from accel.triton.manifest import Finding
from accel.triton.verify import changes

DIGEST, REMOVED = "digest", "removed"


NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
"""Names of pointers: a folder below ``pointers``, and a file beside what is pulled."""


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


@dataclass(frozen=True, slots=True)
class Signed:
    """A pointer as it was found.

    Attributes:
        key: fingerprint of the key that signed it; what it claims to be where it is refused.
        refused: why it does not count, or None.
    """

    pointer: Pointer
    key: str
    refused: NotTrusted | None = None


def publish(folder: Path, place: ObjectStore, *, key: Trusted) -> str:
    """Upload a signed release, and return its digest. One that was begun goes on; one that is there stays.

    Args:
        key: whose signature it must have.

    Raises:
        CheckFailed: it is not what was signed, is not complete, or a row of its comparison blocks.
        OutputError: that version is there with other content, or was there and was removed.
    """
    return upload(folder, fit(folder, key), place, key=key)


def upload(folder: Path, release: Release, place: ObjectStore, *, key: Trusted) -> str:
    """Upload a release that is fit to be, and return its digest.

    The signature that is there stays while it counts; else the new one takes its place, so that a release is signed
    again when a key was revoked.

    Raises:
        OutputError: as ``publish``.
    """
    base = claim(place, f"releases/{release.version}", digest := sha256_file(folder / FILENAME))
    for file in release.files:
        place.upload(folder / file.path, f"{base}/{file.path}")
    if not _counts(place, base, digest, key):
        place.write(f"{base}/{signing.SIGNATURE}", (folder / signing.SIGNATURE).read_bytes())
    place.upload(folder / FILENAME, f"{base}/{FILENAME}")
    return digest


def _counts(place: ObjectStore, base: str, digest: str, key: Trusted) -> bool:
    try:
        signer(place, base, digest, key)
    except InputError:
        return False
    return True


def signer(place: ObjectStore, base: str, digest: str, key: Trusted) -> str:
    """Return the fingerprint of the key that signed a published release; its files are not looked at.

    Args:
        base: folder of the release's files.

    Raises:
        InputError: it has no signature, or none of it by a key that counts.
    """
    what = f"{place.url}/{base}"
    by, files = signing.signed_files(place.read(f"{base}/{signing.SIGNATURE}"), key, what)
    if files.get(FILENAME) != digest:
        raise InputError(f"{what} has the signature of another release", fix="publish it again")
    return by


def fit(folder: Path, key: Trusted) -> Release:
    """Return a release that may be published: signed, whole, complete, and let through by its comparison.

    Raises:
        CheckFailed: it is not.
    """
    wrong = [f"{f.file}: {f.why}" for f in checking.verify(folder, key=key) if f.severity == "error"]
    release = read(folder)
    wrong += release.missing
    wrong += [f"{e.model} on {e.pool} failed: {e.reason}" for e in release.entries if e.held == "failed"]
    made_up = sorted({e.hardware for e in release.entries if e.hardware and SIMULATED in e.hardware.split("-")})
    wrong += [f"{id} is not hardware: it was made up by {SIMULATE}" for id in made_up]
    if release.compared is not None:
        wrong += [f"{r.model}:{r.what} on {r.pool} is {r.verdict}" for r in blocking(release.compared)]
    if release.compare_again is not None:
        wrong.append(f"what stood here was compared with {release.compare_again}, and this was built since")
    if wrong:
        said = "\n  ".join(wrong[:10])
        raise CheckFailed(f"{folder} is not published:\n  {said}", fix="accel release verify, diff and build say more")
    return release


def claim(place: ObjectStore, folder: str, digest: str) -> str:
    """Say once for all which content a version is, and return where its files go: ``<folder>/<digest>``.

    Args:
        folder: of the version; its last part is the version.

    Raises:
        OutputError: it is there with other content, or was there and was removed.
        InputError: what is there does not say which.
    """
    version, fix = folder.rpartition("/")[2], "give the release file another version"
    if REMOVED in place.names(folder):
        raise OutputError(
            f"{place.url} had a release {version}, which was removed: the name is not used again", fix=fix
        )
    if not place.create(f"{folder}/{DIGEST}", digest.encode()) and digest_of(place, folder) != digest:
        raise OutputError(f"{place.url} has a release {version} with other content, which stays", fix=fix)
    return f"{folder}/{digest}"


def digest_of(place: ObjectStore, folder: str) -> str:
    """Return which content the version of a folder is.

    Raises:
        InputError: the file does not say it.
    """
    found = place.read(f"{folder}/{DIGEST}")
    if not re.fullmatch(rb"[0-9a-f]{64}", found):
        why = f"{place.url}: {folder}/{DIGEST} is {found[:80]!r}, expected the sha256 of a {FILENAME}"
        raise InputError(why, fix="do not use that version; publish the release under another")
    return found.decode()


def history(place: ObjectStore, name: str, key: Trusted) -> Iterator[Signed]:
    """Yield what a name has stood for, newest first, with who signed it and whether that counts.

    Raises:
        InputError: a pointer is damaged, or none can have that name.
    """
    if NAME.fullmatch(name) is None:
        why = f"{name!r} is no name of a pointer: expected letters, digits, '.', '_' and '-', the first no mark"
        raise InputError(why, fix="--as production, --as production-eu")
    held = trusting(key)
    for file in sorted(place.names(f"pointers/{name}"), key=_number, reverse=True):
        if not re.fullmatch(r"[0-9]{10,18}\.json", file):
            raise InputError(f"{place.url}: pointers/{name}/{file} is not a pointer", fix="remove it by hand")
        refused = None
        try:
            whole = load_json(place.read(f"pointers/{name}/{file}"))
            text, by = whole["pointer"], str(whole.get("key", ""))
            signature = base64.b64decode(whole["signature"], validate=True)
            chain = [base64.b64decode(one, validate=True) for one in whole.get("certificates", ())]
            what = f"{place.url}: pointers/{name}/{file}"
            try:
                by = signing.check_text(text, signature, held, by=by, chain=chain, what=what)
            except NotTrusted as error:
                refused = error
            found = from_json(Pointer, load_json(text))
            ends = datetime.datetime.fromisoformat(found.expires)
            if not (stays_inside(found.version) and re.fullmatch(r"[0-9a-f]{64}", found.digest) and ends.tzinfo):
                raise ValueError(text)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise InputError(
                f"{place.url}: pointers/{name}/{file} is not a pointer: {error!r}", fix="do not use it"
            ) from error
        if (f"{found.sequence:010d}.json", found.name) != (file, name):
            raise InputError(f"{place.url}: pointers/{name}/{file} says it is another: {found}", fix="do not use it")
        yield Signed(found, by, refused)


def _number(file: str) -> int:
    """Return the number of a pointer by its name; what has none comes first, and is refused."""
    digits = file.removesuffix(".json")
    return int(digits) if re.fullmatch(r"[0-9]{10,18}", digits) else 10**18


def pointers(place: ObjectStore, name: str, key: Trusted) -> Iterator[Pointer]:
    """Yield what a name has stood for, newest first.

    Raises:
        InputError: a pointer is damaged, or not signed by a key that counts.
    """
    for found in history(place, name, key):
        if found.refused is not None:
            raise found.refused
        yield found.pointer


def promote(
    place: ObjectStore,
    name: str,
    version: str,
    *,
    key: Path,
    public: Trusted,
    days: float,
    certificates: Sequence[Path] = (),
    seen: int | None = None,
) -> Pointer:
    """Let a name stand for a published version from now on.

    Args:
        seen: number of the pointer that this one was decided by; None for whichever is the newest.
        key: private key that signs the pointer.
        public: whose signatures count; that key's among them.
        days: after which the pointer counts no more; promote the same version again before that.
        certificates: PEM files of the key's owner's certificate, then of those above it; none for a bare key.

    Raises:
        UsageError: the version is not there, or only partly, or the key does not count.
        InputError: the release, or the pointer that stands, is not signed by a key that counts. One of a revoked key
            is passed over.
        OutputError: somebody else moved the pointer at the same time (theirs stands), or removed the version.
    """
    known = present(place)
    if version not in known:
        raise UsageError(f"{place.url} has no release {version}{nearest(version, known)}", fix="accel release publish")
    digest = digest_of(place, f"releases/{version}")
    if FILENAME not in place.names(f"releases/{version}/{digest}"):
        raise UsageError(f"{place.url} has release {version} in part only", fix="accel release publish it again")
    try:
        signer(place, f"releases/{version}/{digest}", digest, public)
    except NotTrusted as error:
        fix = "accel release sign it again, publish and promote it; or, if that key counts, give it as another --key"
        raise InputError(error.message, fix=fix) from error
    last = next(history(place, name, public), None)
    if last is not None and last.refused is not None and not last.refused.revoked:
        raise last.refused
    if seen is not None and (last is None or last.pointer.sequence != seen):
        raise OutputError(f"{name} was moved by somebody else at the same time", fix="accel release list, then decide")
    now = datetime.datetime.now(datetime.UTC).replace(microsecond=0)
    pointer = Pointer(
        name=name,
        version=version,
        digest=digest,
        sequence=last.pointer.sequence + 1 if last else 1,
        created=now.isoformat(),
        expires=(now + datetime.timedelta(days=days)).isoformat(),
    )
    text, chain = json.dumps(to_json(pointer)), signing.chain_of(certificates)
    signature = signing.sign_text(text, key)
    try:
        by = signing.check_text(text, signature, public, chain=chain)
    except NotTrusted as error:
        why = f"{key} is not the private half of a key that counts here: {trusting(public).owners}"
        fix = "--key with its public half, too, or --certificate OWN.pem below --authority; a revoked key signs nothing"
        raise UsageError(why, fix=fix) from error
    signed: dict[str, Any] = {"pointer": text, "signature": base64.b64encode(signature).decode(), "key": by}
    if chain:
        signed["certificates"] = [base64.b64encode(one).decode() for one in chain]
    file, content = f"pointers/{name}/{pointer.sequence:010d}.json", json.dumps(signed).encode()
    # An answer may be lost, and the client's second try then finds what the first one wrote.
    if not place.create(file, content) and place.read(file) != content:
        raise OutputError(f"{name} was moved by somebody else at the same time", fix="accel release list, then decide")
    if REMOVED in place.names(f"releases/{version}"):
        raise OutputError(f"release {version} was removed at the same time", fix=f"promote another as {name} at once")
    return pointer


def present(place: ObjectStore) -> list[str]:
    """Return the versions that were published, in whole or in part, and not removed since."""
    return [v for v in place.names("releases") if REMOVED not in place.names(f"releases/{v}")]


def rollback(
    place: ObjectStore,
    name: str,
    *,
    key: Path,
    public: Trusted,
    days: float,
    certificates: Sequence[Path] = (),
) -> Pointer:
    """Let a name stand for what ``before_present`` says, unless it is moved meanwhile.

    Raises:
        UsageError: there was none.
        InputError: the present one is not by a key that counts; a revoked one's does not say what to go back from.
        InputError / OutputError: as ``promote``.
    """
    newest = next(history(place, name, public), None)
    if newest is not None and newest.refused is not None:  # what it says of the present is nobody's that counts
        fix = "accel release promote VERSION" if newest.refused.revoked else newest.refused.fix
        raise InputError(newest.refused.message, fix=fix)
    before = before_present(history(place, name, public))
    if before is None:
        why = f"{name} has no version to go back to; what a rollback left and pointers of revoked keys do not count"
        raise UsageError(why, fix="accel release promote VERSION")
    how: dict[str, Any] = {"key": key, "public": public, "days": days, "certificates": certificates}
    return promote(place, name, before.version, seen=newest.pointer.sequence if newest else None, **how)


def before_present(found: Iterable[Signed]) -> Pointer | None:
    """Return where a rollback goes, from a name's pointers, newest first: one step back on the way to the present one.

    Where a name came back to a release, by a rollback or not, what lay between is no longer on the way: a second
    rollback goes further back, not to what the first one left.

    Raises:
        NotTrusted: one on the way was not signed by a key that counts. Those of a revoked key are passed over.
    """
    counted, stop = list[Pointer](), None
    for one in found:
        if one.refused is None:
            counted.append(one.pointer)
        elif not one.refused.revoked:
            stop = one.refused
            break
    way = list[Pointer]()
    for pointer in reversed(counted):
        place = next((n for n, there in enumerate(way) if there.digest == pointer.digest), len(way))
        way[place:] = [pointer]
    if len(way) < 2 and stop is not None:
        raise stop
    return way[-2] if len(way) > 1 else None


def current_pointer(place: ObjectStore, name: str, key: Trusted) -> Pointer:
    """Return what a name stands for now.

    Raises:
        InputError: there is no such pointer, it is not signed by a key that counts, or it has ended.
    """
    pointer = next(pointers(place, name, key), None)
    if pointer is None:
        raise InputError(f"{place.url} has no pointer {name}", fix="accel release promote VERSION")
    if datetime.datetime.fromisoformat(pointer.expires) <= datetime.datetime.now(datetime.UTC):
        raise InputError(
            f"{name} ended at {pointer.expires}", fix="its owner promotes the version again, or another one"
        )
    return pointer


def pull(place: ObjectStore, name: str, out: Path, *, key: Trusted) -> Path:
    """Take the release that a name stands for into ``out/<version>``, checked, and return that folder.

    The pointer that was taken is kept in ``out/<name>.pointer.json``: an older one is refused from then on.

    Raises:
        InputError: there is no such pointer, it has ended or is older than one seen before, or a file is not what the
            owner of the key signed.
        OutputError: another one pulls into that folder.
    """
    pointer = current_pointer(place, name, key)  # where there is none, nothing is made here
    with lock(out, f"accel release pull {name}"):  # of two into one folder the later one would undo the other
        kept = out / f"{name}.pointer.json"
        seen = read_value(kept, Pointer, missing="", fix=f"remove {kept}") if kept.exists() else pointer
        if seen.sequence > pointer.sequence:  # another one may have pulled since
            pointer = current_pointer(place, name, key)
        if (pointer.sequence, pointer.digest) != (seen.sequence, seen.digest) and pointer.sequence <= seen.sequence:
            raise InputError(
                f"{place.url} offers {name} number {pointer.sequence} ({pointer.version}), and number {seen.sequence} "
                f"({seen.version}) was there before: somebody put an older pointer in its place",
                fix="ask its owner; nothing was taken",
            )
        base, folder = f"releases/{pointer.version}/{pointer.digest}", out / pointer.version
        if not _taken(folder, pointer.digest, key):
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


def verify(
    place: ObjectStore,
    *,
    name: str,
    version: str | None = None,
    key: Trusted | None = None,
    serve: bool = False,
    via: str | None = None,
) -> tuple[Finding, ...]:
    """Check a release where it is published: all files that lie there are taken, and checked as ``checking.verify``.

    Args:
        version: of the release; None for the one that ``name`` stands for, whose pointer is checked, too.

    Raises:
        UsageError: a pointer is to be followed, and there is no key; or the version is not there.
        InputError: the pointer does not count, or a file there has a name that leads elsewhere.
    """
    if version is None:
        if key is None:
            raise UsageError(
                f"{name} is followed by its signature",
                fix="--key KEY.pub or --authority ROOT.pem, or --version VERSION",
            )
        pointer = current_pointer(place, name, key)
        version, digest = pointer.version, pointer.digest
    else:
        if version not in (known := present(place)):
            raise UsageError(f"{place.url} has no release {version}{nearest(version, known)}", fix="accel release list")
        digest = digest_of(place, f"releases/{version}")
    base = f"releases/{version}/{digest}"
    with tempfile.TemporaryDirectory(prefix="verify-", dir=temporary.root()) as scratch:
        folder = Path(scratch) / version
        folder.mkdir()
        for path in place.files_below(base):
            if not stays_inside(path):
                raise InputError(f"{place.url}: {base} holds {path!r}, which no release does", fix="do not use it")
            place.download(f"{base}/{path}", folder / path)
        found = checking.verify(folder, key=key, serve=serve, via=via)
        if (folder / FILENAME).is_file() and sha256_file(folder / FILENAME) != digest:
            why = f"it is not what {version} was published as: {digest}"
            found = (Finding("error", FILENAME, "sha256", why, checking.AGAIN), *found)
    return found


def _taken(folder: Path, digest: str, key: Trusted) -> bool:
    """Say whether a release lies whole in a folder, and whether the key that signed it still counts."""
    if not (folder / FILENAME).is_file() or sha256_file(folder / FILENAME) != digest:
        return False
    try:
        _, files = signing.signed_files((folder / signing.SIGNATURE).read_bytes(), key, str(folder))
        apart = {FILENAME, signing.SIGNATURE}
        whole = next(changes(folder, read(folder).files, apart), None) is None
    except (OSError, InputError):
        return False
    return whole and files.get(FILENAME) == digest


def listed(place: ObjectStore, key: Trusted) -> dict[str, list[dict[str, Any]]]:
    """Return what is published: ``versions`` with the names that stand for each, and ``names`` with what they say.

    Both say which key signed (its fingerprint), and why that does not count where it does not; a name without a sound
    pointer is a row, too, and the others are read all the same.

    Raises:
        UsageError: the place is a folder of this machine that does not exist.
    """
    if place.local and not Path(place.root).is_dir():
        raise UsageError(f"{place.url} does not exist", fix="give the place that you publish to")
    names = [_name_row(place, name, key) for name in place.names("pointers")]
    versions: list[dict[str, Any]] = []
    for version in present(place):
        current = [str(n["name"]) for n in names if n["refused"] is None and n["version"] == version]
        row: dict[str, Any] = {"version": version, "names": ", ".join(current), "key": "", "refused": None}
        try:
            digest = digest_of(place, f"releases/{version}")
            if FILENAME not in place.names(f"releases/{version}/{digest}"):  # it goes up last
                row["refused"] = "its upload is unfinished: accel release publish goes on with it"
            else:
                row["key"] = signer(place, f"releases/{version}/{digest}", digest, key)
        except InputError as error:
            row |= {"key": getattr(error, "key", ""), "refused": error.message}
        versions.append(row)
    return {"versions": versions, "names": names}


def _name_row(place: ObjectStore, name: str, key: Trusted) -> dict[str, Any]:
    row = {"name": name, "version": None, "number": None, "until": None, "key": "", "refused": None}
    try:
        found = next(history(place, name, key), None)
    except InputError as error:
        return row | {"refused": error.message}
    if found is None:
        return row | {"refused": "there is no pointer"}
    stands, refused = found.pointer, found.refused.message if found.refused else None
    facts = {"version": stands.version, "number": stands.sequence, "until": stands.expires, "key": found.key}
    if refused is None and datetime.datetime.fromisoformat(stands.expires) <= datetime.datetime.now(datetime.UTC):
        refused = f"it has ended at {stands.expires}: nobody takes it any more"
    return row | facts | {"refused": refused}
