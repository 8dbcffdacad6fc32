"""Build a release: convert each model as ``accel convert`` does, then put what came of it into one folder.

    STORE/<version>/
      release.json                     every model, variant, machine, decision, and file by sha256
      index.html  report.md            the same for people
      repositories/<pool>/<model>/     the chosen variant's Triton model repository, ready to mount
      servers/<pool>.sh                starts one server on all of a pool's repositories (``servers``)
      kits/<pool>/<model>/<variant>/   what finishes a variant on hardware that was not here
      runs/<pool>/<model>.json         the run that all figures are from; beside it what ``accel tune`` found, if asked
      provenance.json  bom.cdx.json    what it was made of and by (``provenance``)

The driver keeps nothing in memory that it needs again: killed at any time, the same command goes on. The folder appears
whole or not at all. Until it is signed it is a draft, which a later build of the same version replaces.
"""

import contextlib
import dataclasses
import datetime
import functools
import hashlib
import json
from collections.abc import Iterator, Sequence
from importlib.metadata import version
from pathlib import Path

from accel.core import document, hardware, signing
from accel.core.document import RunDocument
from accel.core.errors import OutputError
from accel.core.files import lock, replace_folder
from accel.core.progress import Progress
from accel.core.values import SCHEMA, FileRef, sha256_file, sha256_json, to_json
from accel.release import converting, finishing, fleet, pages, planning, provenance, servers
from accel.release.document import FILENAME, ModelLine, PoolLine, Release, ReleaseEntry, line, read
from accel.release.planning import Duties
from accel.release.release_file import ModelPlan, ReleasePlan
from accel.release.shared import SharedStore

PAGE, REPORT = "index.html", "report.md"
Files = dict[str, Path | str]
"""Path in the release → the file to copy, or its text."""


def build(
    plan: ReleasePlan, store: Path, progress: Progress | None = None, *, ray: str | None = None,
    finished: Sequence[Path] = (), retry: bool = False, shared: SharedStore | None = None,
) -> Release:  # fmt: skip
    """Convert what changed, and write the release into ``STORE/<version>``.

    Args:
        shared: object store that the local folder ``store`` is for: what it lacks comes from there, and what was made
            goes there.
        ray: address of a Ray cluster whose machines convert (``fleet``); None for this machine alone.
        finished: run directories that ``accel build`` made of this release's kits on other machines.
        retry: convert again what failed, although nothing changed.

    Raises:
        InputError: one of ``finished`` is damaged, or not of kits of this release.
        UsageError: this machine is of two pools for one device.
        OutputError: the store cannot be written or is in use, or the release is signed and would change.
        UnavailableError: cyclonedx-python-lib is not installed, there is no such cluster, or no such object store.
    """
    provenance.demand()
    progress = progress or Progress()
    with contextlib.ExitStack() as held:
        if shared is not None:
            held.enter_context(lock(store / planning.RUNS, f"accel release build {plan.version}"))
        if ray is not None:
            duties = held.enter_context(fleet.convert(plan, store, ray, progress, retry=retry, shared=shared))
        else:
            duties = held.enter_context(_convert_here(plan, store, progress, retry=retry, shared=shared))
        for run_dir in finished:
            model, machine = finishing.take(plan, store, duties, run_dir)
            progress.notice(f"{model} was finished on {machine}")
            if shared is not None:
                shared.push(model, machine)
        with lock(store, f"accel release build {plan.version}"):  # another machine may be at work beside its runs
            if shared is None:
                return _assemble(plan, store, duties)
            shared.pull_release(plan.version)
            while True:
                release = _assemble(plan, store, duties)
                shared.push_release(plan.version)
                if not shared.pull(plan, duties):  # else another machine gave a run meanwhile
                    return release


@contextlib.contextmanager
def _convert_here(
    plan: ReleasePlan, store: Path, progress: Progress, *, retry: bool, shared: SharedStore | None
) -> Iterator[Duties]:
    """Convert on this machine what is its to do, and keep its runs as they are while the block runs."""
    machine = hardware.detect()
    duties = planning.duties_of(plan, machine)
    folder = store / planning.RUNS / machine.id
    if shared is not None:
        shared.pull(plan, duties)
    with lock(folder, f"accel release build {plan.version}"):
        for number, asked in enumerate(plan.models, 1):
            progress.stage(f"{asked.name} ({number} of {len(plan.models)})")
            targets = duties.targets(asked, machine.id)
            if targets:
                converting.convert(asked, targets, folder, machine, progress, retry=retry)
                if shared is not None:
                    shared.push(asked.name, machine.id)
        yield duties


# ---------------------------------------------------------------------------------------------------------------------
# The release


def _assemble(plan: ReleasePlan, store: Path, duties: Duties) -> Release:
    """Write the release of what the runs in the store hold; one that is there and says the same stays as it is."""
    files: Files = {}
    entries, models, toolchains = [], {}, {}
    for asked in plan.models:
        models[asked.name] = ModelLine(name=asked.name, licence=asked.licence, accepted=asked.accepted)
        key = planning.asked_key(asked)
        for pool in asked.wanted:
            found, left = _run_for(plan, asked, key, pool, store, duties)
            if isinstance(found, Path):
                run = document.read(found)
                models[asked.name] = _model(models[asked.name], run)
                toolchains[run.hardware.id] = run.hardware.versions
                found = _entry(asked, pool, plan.pools[pool].device, found, run, files, left)
            price = plan.prices.get(found.hardware or "")
            entries.append(dataclasses.replace(found, usd_per_hour=price.usd_per_hour) if price else found)
    files |= dict(servers.scripts(plan.version, entries, files))
    release = Release(
        version=plan.version,
        accel=version("accel"),
        created=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds").replace("+00:00", "Z"),
        asked_sha256=sha256_json([[*asked.everything, asked.required] for asked in plan.models]),
        pools=tuple(
            PoolLine(
                name=name,
                device=pool.device,
                targets=pool.targets,
                needs=pool.model_dump(exclude_defaults=True, exclude={"device", "targets"}),
            )
            for name, pool in plan.pools.items()
        ),
        models=tuple(models.values()),
        entries=tuple(entries),
        missing=tuple(
            text for asked in plan.models for e in entries if e.model == asked.name for text in _missing(asked, e)
        ),
        toolchains=toolchains,
        files=(),
        schema=SCHEMA,
        margins=plan.margins.model_dump(),
    )
    folder = store / plan.version
    before = read(folder) if (folder / FILENAME).is_file() else None
    if before is not None:
        was, again = before.compared, before.compare_again
        same = dataclasses.replace(release, created=before.created, compared=was, compare_again=again)
        if _sealed(same, files) == before:
            return before
        release = dataclasses.replace(release, compare_again=again if was is None else was.before)
    if (folder / signing.SIGNATURE).exists():
        raise OutputError(
            f"{folder} is signed, and what would be built differs from it: a signed release does not change",
            fix="give the release file another version",
        )
    return write(release, folder, files, copy=True)


def write(release: Release, folder: Path, files: Files, *, copy: bool = False) -> Release:
    """Write a release whole or not at all, its pages with it, and return it with all files described.

    Args:
        files: all others.
        copy: whether they are copied; linked if not.

    Raises:
        OutputError: the disk is full or the folder cannot be written.
    """
    release = _sealed(release, files)
    files[FILENAME] = json.dumps(to_json(release), indent=1, allow_nan=False) + "\n"
    replace_folder(folder, files, copy=copy)
    return release


def _sealed(release: Release, files: Files) -> Release:
    """Add the pages, the bill of materials and the provenance to the files of a release, and describe them all."""
    files |= {PAGE: pages.page(release), REPORT: pages.markdown(release)}
    files[provenance.BOM] = provenance.bill(release)
    files.pop(provenance.STATEMENT, None)  # it names all others
    refs = [_described(name, given) for name, given in sorted(files.items())]
    files[provenance.STATEMENT] = provenance.statement(release, refs)
    refs.append(_described(provenance.STATEMENT, files[provenance.STATEMENT]))
    return dataclasses.replace(release, files=tuple(refs))


def _described(name: str, given: Path | str) -> FileRef:
    if isinstance(given, Path):
        return FileRef(name, sha256_file(given), given.stat().st_size)
    text = given.encode()
    return FileRef(name, hashlib.sha256(text).hexdigest(), len(text))


def _run_for(
    plan: ReleasePlan, asked: ModelPlan, key: str | None, pool: str, store: Path, duties: Duties
) -> tuple[Path | ReleaseEntry, Path | None]:
    """Return the run directory that a model on a pool is taken from, or the entry that says why there is none.

    Beside a run that finished kits comes the one that left them.
    """
    maker, lack, own = duties.makers.get((asked.name, pool)), duties.lacking[pool], None
    folder = store / planning.RUNS / (maker or duties.driver)
    record = planning.read_record(folder, asked.name)
    if maker is not None and record is not None and record.error is None:
        if key is not None and record.asked != key:  # the source changed meanwhile, or somebody else wrote there
            why = "its conversion in the store is of another source or of other options"
            return ReleaseEntry(model=asked.name, pool=pool, held="failed", reason=why, fix="build again"), None
        own = folder / record.run
    if lack is None and own is not None:
        return own, None
    others = planning.elsewhere(store, asked.name, planning.known_as(asked, key, folder), plan.pools[pool], folder.name)
    if lack is not None and others:
        return next(iter(others.values())), own
    if own is not None:
        return own, None
    entry = functools.partial(ReleaseEntry, model=asked.name, pool=pool)
    if maker is not None and record is not None:
        return entry(held="failed", reason=record.error, fix=record.fix), None
    return entry(held="waiting", reason=lack, fix="accel release build on one that is, with the same --store"), None


def _entry(
    asked: ModelPlan, pool: str, device: str, folder: Path, run: RunDocument, files: Files, left: Path | None
) -> ReleaseEntry:
    """Describe one model on one pool, and add what the release has of it to ``files``.

    Args:
        left: the run directory that left the kits of which ``run`` may have finished some; None where it left none.
    """
    names = {str(target) for target in asked.wanted[pool]}
    place = f"{pool}/{asked.name}"
    files[f"runs/{place}.json"] = folder / document.FILENAME
    lines = []
    made_of = [(folder, variant) for variant in run.variants]
    if left is not None:
        finished = {variant.id for variant in run.variants}
        made_of += [(left, v) for v in planning.left_kits(document.read(left)).values() if v.id not in finished]
    for folder_of, variant in made_of:
        if f"{variant.target}@{variant.device}" not in names:
            continue
        kit = f"kits/{place}/{variant.id}" if variant.typing and variant.typing.kit else None
        if kit is not None:
            _take(folder_of / "variants" / variant.id / "kit", kit, files)
        lines.append(line(variant, kit))
    made = functools.partial(
        ReleaseEntry,
        model=asked.name,
        pool=pool,
        hardware=run.hardware.id,
        run=f"runs/{place}.json",
        variants=tuple(lines),
        decisions=tuple(d for d in run.decisions if d.device == device),
    )
    shown = [d for d in document.shipping(run.decisions).values() if d.device == device]
    if asked.tune is not None and (tuned := converting.tuned(folder, device)) is not None:
        _take(tuned.root, f"repositories/{place}", files)
        files[f"runs/{place}.tune.json"] = tuned.told
        return made(held="ready", chosen=tuned.variant, repository=f"repositories/{place}", reason=tuned.reason)
    if shown and shown[0].chosen is not None:
        _take(folder / "best" / device, f"repositories/{place}", files)
        return made(held="ready", chosen=shown[0].chosen, repository=f"repositories/{place}", reason=shown[0].reason)
    if kits := [v for v in lines if v.kit]:
        return made(held="kits", reason=kits[0].reason, fix=f"accel build {kits[0].kit}")
    if lines and all(v.status == "skipped" for v in lines):
        return made(held="waiting", reason=lines[0].reason, fix=lines[0].fix)
    if any(v.status == "ok" for v in lines):
        return made(held="unchosen", reason=shown[0].reason if shown else "nothing was measured (bench: none)")
    return made(held="failed", reason="; ".join(f"{v.id}: {v.reason}" for v in lines))


def _take(source: Path, place: str, files: Files) -> None:
    files |= {f"{place}/{p.relative_to(source).as_posix()}": p for p in source.rglob("*") if p.is_file()}


def _model(line: ModelLine, run: RunDocument) -> ModelLine:
    model = run.model
    return dataclasses.replace(
        line,
        source=model.source,
        framework=model.framework,
        weights=model.weights,
        revision=model.revision,
        accuracy=model.accuracy,
        samples=model.samples.sha256 if model.samples else None,
        onnx=model.onnx.file if model.onnx else None,
    )


def _missing(asked: ModelPlan, entry: ReleaseEntry) -> Iterator[str]:
    """Yield the required variants of an entry that are not ``ok``."""
    for text in asked.required:
        if not any(text.partition("+")[0] in (t.name, str(t)) for t in asked.wanted[entry.pool]):
            continue
        found = [v for v in entry.variants if text in (v.id, v.id.partition("@")[0], v.id.partition("+")[0])]
        wrong = [f"{v.id} is {v.status}: {v.reason}" for v in found if v.status != "ok"]
        why = wrong if found else [f"{text}: {entry.reason}"]
        yield from (f"{entry.model} on {entry.pool}: {reason}" for reason in why)
