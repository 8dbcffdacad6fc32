"""A store that builds share as an object store: what runs leave goes there as content, and comes back by content.

    URL/store/content/<2 digits>/<sha256>         the content of a file, once
    URL/store/runs/<hardware id>/<model>.json     what the last conversion left: its record, and its files by sha256;
                                                  without a record what a phase of it left for the next (``fleet``)
    URL/store/releases/<version>.json             the files of a release by sha256
    URL/store/format                              what all of this is written in

Work itself (locks, links, renames, files that are mapped into memory) needs a local folder, laid out as in
``planning``. An index (``runs``, ``releases``) is written last, by one request, which object stores do atomically: who
reads sees the old or the new, each with all of its content. Of two builders that write one at once the last stands,
and both build with what stands. Only what a later build reads travels.

The hashes find damage, not forgery: whoever may write there decides what builders run, as with any shared store.
"""

import dataclasses
import fcntl
import json
import os
import re
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from accel.core import document, hardware, signing
from accel.core.errors import InputError, OutputError
from accel.core.files import link_or_copy, load_json, remove, replacing, stays_inside, write_text, writing
from accel.core.progress import Progress
from accel.core.values import SCHEMA, from_json, sha256_file, sha256_json, to_json
from accel.release import planning
from accel.release.converting import TUNED
from accel.release.document import FILENAME
from accel.release.object_store import ObjectStore
from accel.release.planning import ConversionRecord, Duties
from accel.release.release_file import ModelPlan, ReleasePlan
from accel.run.store import newest_portable

FORMAT, RUNS, RELEASES = "store/format", "store/runs", "store/releases"
FETCHING = ".fetching"
"""File that is held while a process of this machine fetches for a task: what is fetched lies where all put it."""
AT_ONCE = 8
"""Requests that wait for an answer at the same time."""


@dataclass(frozen=True, slots=True)
class StoredFile:
    """A file of a stored folder; stages are reused while ``mtime_ns`` is as they left it (``run.store``)."""

    path: str
    sha256: str
    bytes: int
    mode: int
    mtime_ns: int

    @property
    def content(self) -> str:
        """Name of its content in the store."""
        return f"store/content/{self.sha256[:2]}/{self.sha256}"


@dataclass(frozen=True, slots=True)
class StoredFolder:
    """An index: the files of a run directory or a release, and of a run its record."""

    files: tuple[StoredFile, ...]
    record: ConversionRecord | None = None
    schema: int = SCHEMA


def cache_of(url: str) -> Path:
    """Return the local folder of a store by default, one for each URL."""
    home = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser()
    return home / "accel" / "releases" / f"{re.sub(r'[^0-9A-Za-z]+', '-', url)}-{sha256_json(url)[:8]}"


class SharedStore:
    """The object store of builds, and the local folder that they work in.

    Args:
        place: object store.
        local: folder of this machine for that store; what is in it is not fetched again.

    Raises:
        UnavailableError: the store cannot be reached, or not be written to.
        InputError: it was made by a newer accel.
    """

    def __init__(self, place: ObjectStore, local: Path, progress: Progress | None = None) -> None:
        self.place, self.local, self.progress = place, local, progress or Progress()
        self.seen: dict[str, StoredFolder] = {}
        if "format" not in place.names("store"):
            place.create(FORMAT, str(SCHEMA).encode())  # a wrong bucket is told before anything is built
        elif not (found := place.read(FORMAT)).isdigit() or int(found) > SCHEMA:
            why = f"{place.url}/{FORMAT} is {found[:80]!r}, this accel reads up to {SCHEMA}"
            raise InputError(why, fix="use a newer accel, or another prefix")

    def pull(self, plan: ReleasePlan, duties: Duties | None = None) -> bool:
        """Fetch the runs that a build of this release would use and the local folder lacks; say whether any came.

        Of the machine's own runs the store's stands where it is of just what is asked; any is fetched where there is
        none here, for its stages. Of other machines' those that are of what is asked are.

        Args:
            duties: who converts what; None for this machine alone.

        Raises:
            UnavailableError: the store cannot be reached.
            InputError: an index or content in it is damaged.
            OutputError: the local folder cannot be written.
            UsageError: this machine is of two pools for one device.
        """
        machine, came = hardware.detect(), False
        models = {f"{asked.name}.json": (asked, planning.asked_key(asked)) for asked in plan.models}
        duties = duties or planning.duties_of(plan, machine)
        there = [f"{RUNS}/{id}/{name}" for id in self.place.names(RUNS) for name in self.place.names(f"{RUNS}/{id}")]
        indices = [index for index in there if index.rpartition("/")[2] in models]
        with ThreadPoolExecutor(AT_ONCE) as pool:
            found = dict(zip(indices, pool.map(self._index, indices), strict=True))
        for index, stored in found.items():
            id, name = index.split("/")[-2:]
            (asked, key), folder = models[name], self.local / planning.RUNS / id
            here = planning.read_record(folder, asked.name)
            if stored is None or (record := stored.record) is None or record == here:
                continue
            if id == machine.id:
                made = planning.made_with(duties.targets(asked, id), machine)
                wanted = here is None or planning.current(record, key, made)
            else:
                wanted = record.asked == planning.known_as(asked, key, self.local / planning.RUNS / machine.id)
            if wanted and self._fetched(stored, index):
                self._place_run(stored, folder, asked)
                came = True
        remove(self._contents)
        return came

    def push(self, model: str, machine: str) -> None:
        """Store what the last conversion of a model on a machine left, unless that is what the store has.

        Raises:
            UnavailableError: the store cannot be reached.
        """
        folder, index = self.local / planning.RUNS / machine, f"{RUNS}/{machine}/{model}.json"
        record, before = planning.read_record(folder, model), self.seen.get(index)
        if record is not None and (before is None or before.record != record):
            self._store_run(index, folder / record.run, record)

    def take(self, asked: ModelPlan, machine: str, *, exports: bool = False) -> None:
        """Let the local folder have what the store has of one model on one machine, be it finished or half done.

        Waits while another process of this folder does so.

        Args:
            exports: also what other machines made of it that no hardware changes (``run.store``).

        Raises:
            UnavailableError, InputError, OutputError: as ``pull``.
        """
        index, folder = f"{RUNS}/{machine}/{asked.name}.json", self.local / planning.RUNS / machine
        stored = self._index(index)
        if stored is not None and self._was_here(asked, machine, stored):
            stored = None
        others = list(self._exports(asked, machine)) if exports else []
        if stored is None and not others:
            return
        with writing(self.local):
            self.local.mkdir(parents=True, exist_ok=True)
            file = (self.local / FETCHING).open("a")
        with file:
            fcntl.flock(file, fcntl.LOCK_EX)
            if stored is not None and self._fetched(stored, index):
                self._place_run(stored, folder, asked)
                write_text(self._mark(asked, machine), sha256_json(to_json(stored)))
            for result, of, place in others:
                if not place.exists() and self._fetched(result, of):
                    self._place(result, place)
            remove(self._contents)

    def _exports(self, asked: ModelPlan, machine: str) -> Iterator[tuple[StoredFolder, str, Path]]:
        """Yield the newest results of each stage that other machines' indices have, no hardware changes, and are not
        here, each with the index and its place in the local folder."""
        for id in self.place.names(RUNS):
            index = f"{RUNS}/{id}/{asked.name}.json"
            if id == machine or (stored := self._index(index)) is None:
                continue
            results: dict[str, list[StoredFile]] = {}
            for file in stored.files:
                root, name, *_ = (*file.path.split("/"), "")
                if root == ".store":
                    results.setdefault(name, []).append(file)
            changed = {name: max(f.mtime_ns for f in files) for name, files in results.items()}
            for name in newest_portable(changed):
                places = [self.local / planning.RUNS / of / planning.run_name(asked) / ".store" for of in (machine, id)]
                if not any((place / name).exists() for place in places):
                    below = f".store/{name}/"
                    inside = (dataclasses.replace(f, path=f.path.removeprefix(below)) for f in results[name])
                    yield StoredFolder(tuple(inside)), index, places[1] / name

    def give(self, asked: ModelPlan, machine: str) -> None:
        """Store what the local folder has of one model on one machine, be it finished or half done.

        Raises:
            UnavailableError: the store cannot be reached.
        """
        index, folder = f"{RUNS}/{machine}/{asked.name}.json", self.local / planning.RUNS / machine
        record = planning.read_record(folder, asked.name)
        self._store_run(index, folder / (record.run if record else planning.run_name(asked)), record)
        write_text(self._mark(asked, machine), sha256_json(to_json(self.seen[index])))

    def _mark(self, asked: ModelPlan, machine: str) -> Path:
        """File that says which of the store's states of a model this folder last had."""
        return self.local / planning.RUNS / machine / f".{asked.name}.shared"

    def _was_here(self, asked: ModelPlan, machine: str, stored: StoredFolder) -> bool:
        mark = self._mark(asked, machine)
        return mark.is_file() and mark.read_text() == sha256_json(to_json(stored))

    def pull_release(self, version: str) -> None:
        """Fetch a release that is not here, or that was signed elsewhere.

        Raises:
            UnavailableError, InputError, OutputError: as ``pull``.
        """
        index, folder = f"{RELEASES}/{version}.json", self.local / version
        found = self._index(index)
        if found is not None and (
            not (folder / FILENAME).is_file() or (_signed(found) and not (folder / signing.SIGNATURE).exists())
        ):
            if self._fetched(found, index):
                self._place(found, folder)
            remove(self._contents)

    def push_release(self, version: str) -> None:
        """Store a release, unless that is what the store has.

        Raises:
            OutputError: the store has one of that version that is signed and differs.
            UnavailableError: the store cannot be reached.
        """
        index, folder = f"{RELEASES}/{version}.json", self.local / version
        there = self._index(index)
        files = [p for p in folder.rglob("*") if p.is_file()]
        if there is not None and _hashes(there.files) == {
            p.relative_to(folder).as_posix(): sha256_file(p) for p in files if p.name != signing.SIGNATURE
        }:
            if _signed(there) or not (folder / signing.SIGNATURE).exists():
                return
        elif there is not None and _signed(there):
            raise OutputError(
                f"{self.place.url} has release {version} signed, and what is here differs: it does not change",
                fix="give the release file another version",
            )
        self._store(index, folder, files, None)

    @property
    def _contents(self) -> Path:
        """Folder of content that was fetched and not yet used: a fetch that broke off goes on from there."""
        return self.local / ".content"

    def _index(self, name: str) -> StoredFolder | None:
        """Read an index, and remember it; None where there is none.

        Raises:
            InputError: it is damaged.
        """
        try:
            text = self.place.read(name)
        except InputError:
            return None
        try:
            found = from_json(StoredFolder, load_json(text))
            told = [f.path for f in found.files] + ([found.record.run] if found.record else [])
            if not all(map(stays_inside, told)) or not all(re.fullmatch("[0-9a-f]{64}", f.sha256) for f in found.files):
                raise ValueError("it names what is outside of its folder, or no sha256")
        except (ValueError, KeyError, TypeError) as error:
            why = f"{self.place.url}/{name} cannot be read as an index: {error}"
            raise InputError(why, fix="remove that object, and build again: what it stood for is made anew") from error
        self.seen[name] = found
        return found

    def _fetched(self, found: StoredFolder, index: str) -> bool:
        """Fetch the contents of an index; False, with a notice, where the store has one of them no longer.

        Raises:
            InputError: a content is not what its name says.
        """
        files = {f.sha256: f for f in found.files}.values()
        with ThreadPoolExecutor(AT_ONCE) as pool:
            there = list(pool.map(lambda file: self._content(file, index), files))
        if not all(there):
            self.progress.notice(f"{self.place.url}/{index}: {there.count(False)} contents are gone, so it is not used")
            self.seen.pop(index, None)
        return all(there)

    def _content(self, file: StoredFile, index: str) -> bool:
        target = self._contents / file.sha256
        if target.exists():
            return True
        target.parent.mkdir(parents=True, exist_ok=True)
        with replacing(target) as new:
            try:
                self.place.download(file.content, new)
            except InputError:
                remove(new)
                return False
            if (size := new.stat().st_size) != file.bytes or sha256_file(new) != file.sha256:
                why = f"{size} bytes, expected {file.bytes}" if size != file.bytes else "other bytes than its name says"
                raise InputError(
                    f"{self.place.url}/{file.content} ({file.path} of {index}) is damaged: it has {why}",
                    fix="remove that object, and build again: what it was part of is made anew",
                )
        return True

    def _place(self, found: StoredFolder, target: Path) -> None:
        """Make a folder of an index's files, whose contents are here; what was linked there is linked here."""
        with replacing(target) as new:
            bodies: dict[tuple[str, int, int], Path] = {}
            for file in found.files:
                path = new / file.path
                body = bodies.setdefault((file.sha256, file.mode, file.mtime_ns), path)
                own = body is path or path.suffix == ".data"  # onnx refuses external data that has several names
                link_or_copy(self._contents / file.sha256 if own else body, path, copy=own)
                path.chmod(file.mode & 0o777)
                os.utime(path, ns=(file.mtime_ns, file.mtime_ns))

    def _place_run(self, found: StoredFolder, folder: Path, asked: ModelPlan) -> None:
        """Place a run whose contents are here, below a machine's folder, and last its record, if it has one."""
        remove(folder / f"{asked.name}.json")
        self._place(found, folder / (found.record.run if found.record else planning.run_name(asked)))
        if found.record is not None:
            planning.write_record(folder, asked.name, found.record)

    def _store_run(self, index: str, run: Path, record: ConversionRecord | None) -> None:
        """Store what a later build reads of a run; of one that failed its record alone."""
        files = [p for p in run.rglob("*") if _is_read_again(p.relative_to(run))]
        self._store(index, run, files if record is None or record.error is None else [], record)

    def _store(self, index: str, folder: Path, files: Iterable[Path], record: ConversionRecord | None) -> None:
        """Upload the contents that the index before did not have, then write the index."""
        paths = sorted(p for p in files if p.is_file())
        stored = tuple(_described(p, p.relative_to(folder)) for p in paths)
        known = {f.sha256 for f in self.seen[index].files} if index in self.seen else set()
        todo = {f.sha256: (path, f) for path, f in zip(paths, stored, strict=True) if f.sha256 not in known}
        with ThreadPoolExecutor(AT_ONCE) as pool:
            list(pool.map(lambda one: self.place.upload(one[0], one[1].content), todo.values()))
        self.seen[index] = StoredFolder(stored, record)
        self.place.write(index, json.dumps(to_json(self.seen[index])).encode())


def _is_read_again(path: Path) -> bool:
    """Say of a path in a run directory whether a later build reads it: results of stages, what is shipped, kits."""
    return path.parts[0] in (document.FILENAME, "best", ".store", TUNED) or (
        path.parts[0] == "variants" and path.parts[2:3] == ("kit",)
    )


def _described(path: Path, inside: Path) -> StoredFile:
    state = path.stat()
    return StoredFile(inside.as_posix(), sha256_file(path), state.st_size, state.st_mode & 0o777, state.st_mtime_ns)


def _hashes(files: Iterable[StoredFile]) -> dict[str, str]:
    return {f.path: f.sha256 for f in files if f.path != signing.SIGNATURE}


def _signed(found: StoredFolder) -> bool:
    return any(f.path == signing.SIGNATURE for f in found.files)
