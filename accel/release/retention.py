"""``accel release prune``: remove what release.yaml's retention does not cover.

A release stays while it is among the newest, is young, or a pointer needs it: the one that stands, and the one that a
rollback goes to. A run directory in the store stays while this release file asks for its model, or a release that stays
was made of it. Where a version was removed from a published place its name is not used again.
"""

import contextlib
import datetime
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from accel.core import document
from accel.core.errors import InputError, UsageError
from accel.core.files import load_json, lock, remove
from accel.core.trust import Trusted
from accel.core.values import from_json, sha256_file
from accel.release import planning
from accel.release.document import FILENAME, Release, read
from accel.release.object_store import ObjectStore
from accel.release.publishing import REMOVED, before_present, digest_of, history, present
from accel.release.release_file import ReleasePlan, Retention

GOING = ".removed"
"""What the name of a folder ends in that is being removed."""


@dataclass(frozen=True, slots=True)
class Found:
    """A release or a run directory.

    Attributes:
        where: the store, or the URL of the published place.
        what: the release's version, or the run directory's path in the store.
        kept: why it stays; None for what goes.
    """

    where: str
    what: str
    bytes: int
    kept: str | None


def prune(
    plan: ReleasePlan,
    store: Path,
    place: ObjectStore | None = None,
    *,
    key: Trusted | None = None,
    dry_run: bool = False,
) -> tuple[Found, ...]:
    """Remove what the retention of a release file does not cover, and return all that was found.

    Args:
        place: where releases are published; what its pointers need stays in the store, too.
        key: whose pointers count; what others point at stays.
        dry_run: remove nothing.

    Raises:
        UsageError: the release file has no retention, or nothing is published at ``place``.
        OutputError: a build is at work in the store.
        InputError: a pointer, or a release in the store, is damaged.
    """
    rules = plan.retention
    if rules is None:
        raise UsageError("the release file says nothing of retention", fix="retention: {keep_last: 5, keep_days: 30}")
    if place is not None and not (place.names("releases") or place.names("pointers")):
        raise UsageError(
            f"nothing is published at {place.url}: no pointer there could say what is needed, and nothing was removed",
            fix="give the place that you publish to, or leave it out where you publish nowhere",
        )
    needed = _needed(place, key) if place is not None and key is not None else {}
    found = []
    with contextlib.ExitStack() as held:
        machines = sorted((store / planning.RUNS).glob("*/"))
        for folder in (*machines, *([store] if store.is_dir() else [])) if not dry_run else ():
            held.enter_context(lock(folder, "accel release prune"))
        for left in store.glob(f".*{GOING}") if not dry_run else ():
            remove(left)
        here = {p.parent.name: read(p.parent) for p in sorted(store.glob(f"*/{FILENAME}"))}
        kept = _kept(here, rules, needed)
        for version, release in here.items():
            found.append(Found(str(store), version, _bytes(release), kept.get(version)))
            if version not in kept and not dry_run:
                _remove(store / version)
        made_of = {f.sha256 for v in kept for f in here[v].files if f.path.startswith(f"{planning.RUNS}/")}
        for machine in machines:
            for run in sorted(path for path in machine.glob("*/") if not path.name.startswith(".")):
                why = _run_kept(run, plan, rules, made_of)
                size = sum(p.stat().st_size for p in run.rglob("*") if p.is_file())
                found.append(Found(str(store), run.relative_to(store).as_posix(), size, why))
                if why is None and not dry_run:
                    _remove_run(run)
    if place is not None and key is not None:
        found += _prune_place(place, rules, needed, key, dry_run=dry_run)
    return tuple(found)


def _needed(place: ObjectStore, key: Trusted) -> dict[str, str]:
    """Return the versions that a pointer or its rollback needs, each with the reason.

    What a key names that is neither given nor revoked is needed, too: it may be somebody else's, or the one before.
    """
    needed = {}
    for name in place.names("pointers"):
        found = list(history(place, name, key))
        for one in found:
            if one.refused is not None and not one.refused.revoked:
                needed[one.pointer.version] = f"a pointer {name} of the key {one.key[:16]} names it, which is not given"
        counted = [one for one in found if one.refused is None]
        if counted:
            present = counted[0].pointer
            left = next((one.pointer for one in counted if one.pointer.digest != present.digest), present)
            needed[left.version] = f"{name} stood for it before"  # after a rollback, too: it may be promoted again
            before = before_present(counted) or present
            needed |= {p.version: f"a rollback of {name} goes to it" for p in (before, present)}
        if found:
            needed[found[0].pointer.version] = f"{name} stands for it"
    return needed


def _kept(releases: Mapping[str, Release], rules: Retention, needed: Mapping[str, str]) -> dict[str, str]:
    """Return the versions that stay, each with the reason."""
    newest = sorted(releases, key=lambda v: datetime.datetime.fromisoformat(releases[v].created), reverse=True)
    since = _now() - datetime.timedelta(days=rules.keep_days)
    young = [v for v in newest if datetime.datetime.fromisoformat(releases[v].created) > since]
    return (
        dict.fromkeys(young, f"it is younger than {rules.keep_days:g} days")
        | dict.fromkeys(newest[: rules.keep_last], f"it is among the newest {rules.keep_last}")
        | {version: why for version, why in needed.items() if version in releases}
    )


def _now() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC)


def _bytes(release: Release) -> int:
    return sum(f.bytes for f in release.files)


def _remove(folder: Path) -> None:
    """Remove a folder so that a half of it is never seen under its name."""
    going = folder.with_name(f".{folder.name}{GOING}")
    remove(going)
    folder.rename(going)
    remove(going)


def _run_kept(run: Path, plan: ReleasePlan, rules: Retention, made_of: Collection[str]) -> str | None:
    if run.name.removesuffix(planning.FINISHED) in {planning.run_name(asked) for asked in plan.models}:
        return "the release file asks for its model"
    result = run / document.FILENAME
    if result.is_file() and sha256_file(result) in made_of:
        return "a release that stays was made of it"
    changed = (result if result.is_file() else run).stat().st_mtime
    if changed > _now().timestamp() - rules.keep_days * 86400:
        return f"it is younger than {rules.keep_days:g} days"
    return None


def _remove_run(run: Path) -> None:
    """Remove a run directory, and first the record that says it need not be made again."""
    for path in run.parent.glob("*.json"):
        record = planning.read_record(run.parent, path.stem)
        if record is not None and record.run == run.name:
            remove(path)
            remove(path.with_suffix(".job.json"))
    _remove(run)


def _prune_place(
    place: ObjectStore, rules: Retention, needed: Mapping[str, str], key: Trusted, *, dry_run: bool
) -> Iterator[Found]:
    """Remove releases of a published place: what is removed is marked first, and a marked one is not promoted."""
    digests = {version: digest_of(place, f"releases/{version}") for version in place.names("releases")}
    there = present(place)
    for version in digests.keys() - set(there) if not dry_run else ():  # marked, then killed
        files = f"releases/{version}/{digests[version]}"
        promoted = version in needed and place.names(files)  # before the mark was seen
        place.remove(f"releases/{version}/{REMOVED}" if promoted else files)
    releases = {}
    for version in there:
        try:
            releases[version] = _published(place, version, digests[version])
        except InputError as error:  # it is being published
            yield Found(place.url, version, 0, f"it is not whole: {error.message}")
    kept = _kept(releases, rules, needed)
    for version, release in releases.items():
        why = kept.get(version)
        if why is None and not dry_run:
            place.create(f"releases/{version}/{REMOVED}", _now().isoformat().encode())
            why = _needed(place, key).get(version)  # promoted meanwhile
            place.remove(f"releases/{version}/{REMOVED if why else digests[version]}")
        yield Found(place.url, version, _bytes(release), why)


def _published(place: ObjectStore, version: str, digest: str) -> Release:
    try:
        return from_json(Release, load_json(place.read(f"releases/{version}/{digest}/{FILENAME}")))
    except ValueError as error:
        raise InputError(f"{FILENAME} cannot be read: {error}", fix="publish it again") from error
