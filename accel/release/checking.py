"""The check of a release: who made it, whether it is whole and unchanged, and whether its repositories are sound.

A hash in ``release.json`` finds damage; only the signature finds what somebody wrote anew, ``release.json`` with it.
"""

import dataclasses
from collections.abc import Iterator
from pathlib import Path

from accel.core import hardware, signing
from accel.core.errors import AccelError, InputError
from accel.core.files import load_json
from accel.core.trust import Trusted
from accel.release.document import FILENAME, Release, read
from accel.release.provenance import STATEMENT
from accel.triton import manifest
from accel.triton.lint import lint
from accel.triton.manifest import Finding
from accel.triton.servers import answers
from accel.triton.verify import changes, verify as verify_repository

AGAIN = "take the release again from where it was published, or build it again"


def verify(
    folder: Path,
    *,
    key: Trusted | None = None,
    serve: bool = False,
    via: str | None = None,
) -> tuple[Finding, ...]:
    """Check signature, hashes, provenance, and every repository; return what was found, errors first.

    Args:
        key: whose signature counts; None does not look at it.
        serve: also start a server for each repository that this machine measured, and check its answers.
        via: as ``answers.verify_served``.

    Raises:
        UnavailableError: model-signing is not installed, or there is no server to be had.
    """
    found = list(_signature(folder, key))
    try:
        release = read(folder)
    except InputError as error:
        return (*found, Finding("error", FILENAME, "", error.message, error.fix or AGAIN))
    apart = {FILENAME, signing.SIGNATURE}
    found += [dataclasses.replace(f, fix=AGAIN) for f in changes(folder, release.files, apart)]
    found += _provenance(folder, release)
    here = hardware.detect().id
    for entry in release.entries:
        if entry.repository is None:
            continue
        root = folder / entry.repository
        own = [*verify_repository(root)]
        if not any(f.severity == "error" for f in own):
            held = manifest.read(root)
            if held.variant != entry.chosen:
                why = f"is of {held.variant}, and {entry.chosen} was chosen"
                own.append(Finding("error", manifest.FILENAME, "variant", why, AGAIN))
            if held.unproved is not None:
                own.append(Finding("error", manifest.FILENAME, "parity", held.unproved, AGAIN))
            own += lint(root, held.release)
            if serve and entry.hardware == here:
                own += _served(root, via)
            elif serve:
                why = f"not served: it was built for {entry.hardware}, and this is {here}"
                own.append(Finding("warning", "", "", why, "accel release verify --serve on such a machine"))
        found += [dataclasses.replace(f, file=f"{entry.repository}/{f.file}".rstrip("/")) for f in own]
    return tuple(sorted(found, key=lambda f: (f.severity, f.file, f.field)))


def _signature(folder: Path, key: Trusted | None) -> Iterator[Finding]:
    if key is None:
        signed = (folder / signing.SIGNATURE).exists()
        why = "its signature was not checked" if signed else "it is not signed"
        yield Finding("warning", signing.SIGNATURE, "", why, "give --key KEY.pub" if signed else "accel release sign")
        return
    try:
        signing.verify(folder, key)
    except InputError as error:
        yield Finding("error", signing.SIGNATURE, "", error.message, error.fix or AGAIN)


def _provenance(folder: Path, release: Release) -> Iterator[Finding]:
    """Hold the statement's subjects against the release: both name the same content."""
    try:
        listed = load_json((folder / STATEMENT).read_text(encoding="utf-8"))["subject"]
        subjects = {str(s["name"]): s["digest"]["sha256"] for s in listed}
    except (OSError, ValueError, KeyError, TypeError) as error:
        yield Finding("error", STATEMENT, "", f"it is not a statement of provenance: {error!r}", AGAIN)
        return
    described = {f.path: f.sha256 for f in release.files if f.path != STATEMENT}
    for name in sorted(described.keys() | subjects.keys()):
        if described.get(name) != subjects.get(name):
            yield Finding("error", STATEMENT, name, f"it and {FILENAME} do not name the same content", AGAIN)


def _served(root: Path, via: str | None) -> tuple[Finding, ...]:
    try:
        return answers.verify_served(root, via=via).findings
    except AccelError as error:
        return (Finding("error", "", "", f"it cannot be served: {error.message}", error.fix or "see the server's log"),)
