"""Build a release: convert each model as ``accel convert`` does, then put what came of it into one folder.

    STORE/<version>/
      release.json                     every model, variant, machine, decision, and file by sha256
      index.html  report.md            the same for people
      repositories/<pool>/<model>/     the chosen variant's Triton model repository, ready to mount
      kits/<pool>/<model>/<variant>/   what finishes a variant on hardware that was not here
      runs/<pool>/<model>.json         the run that all figures are from
      provenance.json  bom.cdx.json    what it was made of and by (``provenance``)

The driver keeps nothing in memory that it needs again: killed at any time, the same command goes on. The folder appears
whole or not at all. Until it is signed it is a draft, which a later build of the same version replaces.
"""

import dataclasses
import datetime
import functools
import hashlib
import json
import time
from collections.abc import Iterator, Mapping
from importlib.metadata import version
from pathlib import Path

from accel import pipeline
from accel.core import document, hardware, signing
from accel.core.document import RunDocument
from accel.core.errors import AccelError, OutputError, StageError, WorkerDied
from accel.core.files import lock, remove, replace_folder, write_text
from accel.core.hardware import Hardware
from accel.core.progress import Progress
from accel.core.values import SCHEMA, FileRef, Target, sha256_file, sha256_json, to_json
from accel.exporters.zoo import zoo
from accel.release import pages, planning, provenance
from accel.release.document import FILENAME, Entry, ModelLine, PoolLine, Release, line, read
from accel.release.planning import Record
from accel.release.release_file import Asked, Plan

TRIES = 2
"""How often a build is begun whose process dies."""
PAGE, REPORT = "index.html", "report.md"
Files = dict[str, Path | str]
"""Path in the release → the file to copy, or its text."""


def build(plan: Plan, store: Path, progress: Progress | None = None, *, retry: bool = False) -> Release:
    """Convert what changed, and write the release into ``STORE/<version>``.

    Args:
        retry: convert again what failed, although nothing changed.

    Raises:
        UsageError: this machine is of two pools for one device.
        OutputError: the store cannot be written or is in use, or the release is signed and would change.
        UnavailableError: cyclonedx-python-lib is not installed.
    """
    provenance.demand()
    progress, machine = progress or Progress(), hardware.detect()
    lacking = planning.roles(plan.pools, machine)
    here = planning.made_here(plan, lacking, machine)
    folder = store / planning.RUNS / machine.id
    with lock(folder, f"accel release build {plan.version}"):
        for number, asked in enumerate(plan.models, 1):
            progress.stage(f"{asked.name} ({number} of {len(plan.models)})")
            targets = planning.wanted_here(asked, here)
            if targets:
                _convert(asked, targets, folder, machine, progress, retry=retry)
        return _assemble(plan, store, machine, lacking)


def _convert(
    asked: Asked, targets: tuple[Target, ...], folder: Path, machine: Hardware, progress: Progress, *, retry: bool
) -> None:
    """Convert one model and leave its record, unless there is one of just this."""
    key, made = planning.asked_key(asked), planning.made_with(targets, machine)
    record = planning.read_record(folder, asked.name)
    again = retry and record is not None and (record.error is not None or _failed(document.read(folder / record.run)))
    if planning.current(record, key, made) and not again:
        return
    if record is not None:  # what is half done is of no record
        remove(folder / f"{asked.name}.json")
    config = folder / f"{asked.name}.job.json"
    write_text(config, json.dumps(asked.given, indent=1) + "\n")
    run_dir = folder / planning.run_name(asked)
    job = asked.job(targets, run_dir, config=config)
    begin, error = time.monotonic(), None
    for attempt in range(1, TRIES + 1):
        error = None
        try:
            run = document.parse(pipeline.convert(job, progress))
            dead = [v.id for v in run.variants if v.died]
        except OutputError:
            raise
        except AccelError as found:
            error, dead = found, [asked.name] * isinstance(found, WorkerDied)
        if not dead:
            break
        progress.notice(f"{', '.join(dead)} ended with its process, {attempt} of {TRIES} times")
    if error is not None:
        progress.notice(f"{asked.name}: {error}")
        if not isinstance(error, StageError):  # a file that is missing may be there next time
            key = None
    said = (error.message, error.fix) if error is not None else (None, None)
    planning.write_record(folder, asked.name, Record(key, made, run_dir.name, time.monotonic() - begin, *said))


def _failed(run: RunDocument) -> bool:
    return any(v.status == "failed" for v in run.variants)


# ---------------------------------------------------------------------------------------------------------------------
# The release


def _assemble(plan: Plan, store: Path, machine: Hardware, lacking: Mapping[str, str | None]) -> Release:
    """Write the release of what the runs in the store hold; one that is there and says the same stays as it is."""
    files: Files = {}
    entries, models, toolchains = [], {}, {}
    for asked in plan.models:
        models[asked.name] = ModelLine(name=asked.name)
        for pool in asked.wanted:
            found = _run_for(plan, asked, pool, store, machine, lacking)
            if isinstance(found, Path):
                run = document.read(found)
                models[asked.name] = _model(asked.name, run)
                toolchains[run.hardware.id] = run.hardware.versions
                found = _entry(asked, pool, plan.pools[pool].device, found, run, files)
            entries.append(found)
    release = Release(
        version=plan.version,
        accel=version("accel"),
        created=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds").replace("+00:00", "Z"),
        asked_sha256=sha256_json([[asked.options, asked.required] for asked in plan.models]),
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
        same = dataclasses.replace(release, created=before.created, compared=before.compared)
        if _sealed(same, files) == before:
            return before
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
    plan: Plan, asked: Asked, pool: str, store: Path, machine: Hardware, lacking: Mapping[str, str | None]
) -> Path | Entry:
    """Return the run directory that a model on a pool is taken from, or the entry that says why there is none."""
    others = planning.elsewhere(store, asked.name, planning.asked_key(asked), plan.pools[pool], machine)
    if lacking[pool] is not None and others:
        return next(iter(others.values()))
    if pool in planning.made_here(plan, lacking, machine):
        folder = store / planning.RUNS / machine.id
        record = planning.read_record(folder, asked.name)
        assert record is not None  # it was written before
        if record.error is None:
            return folder / record.run
        return Entry(model=asked.name, pool=pool, held="failed", reason=record.error, fix=record.fix)
    return Entry(
        model=asked.name,
        pool=pool,
        held="waiting",
        reason=f"this machine is not of the pool: {lacking[pool]}",
        fix="accel release build on one that is, with the same --store",
    )


def _entry(asked: Asked, pool: str, device: str, folder: Path, run: RunDocument, files: Files) -> Entry:
    """Describe one model on one pool, and add what the release has of it to ``files``."""
    names = {str(target) for target in asked.wanted[pool]}
    place = f"{pool}/{asked.name}"
    files[f"runs/{place}.json"] = folder / document.FILENAME
    lines = []
    for variant in run.variants:
        if f"{variant.target}@{variant.device}" not in names:
            continue
        kit = f"kits/{place}/{variant.id}" if variant.typing and variant.typing.kit else None
        if kit is not None:
            _take(folder / "variants" / variant.id / "kit", kit, files)
        lines.append(line(variant, kit))
    made = functools.partial(
        Entry,
        model=asked.name,
        pool=pool,
        hardware=run.hardware.id,
        run=f"runs/{place}.json",
        variants=tuple(lines),
        decisions=tuple(d for d in run.decisions if d.device == device),
    )
    # of several decisions the run shows the one by the first objective, as served where that was asked for
    shown = [
        d
        for d in run.decisions
        if (d.device, d.objective, d.via) == (device, run.decisions[0].objective, run.decisions[-1].via)
    ]
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


def _model(name: str, run: RunDocument) -> ModelLine:
    model = run.model
    return ModelLine(
        name=name,
        source=model.source,
        framework=model.framework,
        weights=model.weights,
        revision=model.revision,
        accuracy=model.accuracy,
        licence=zoo().entry(model.source).licence if model.kind == "zoo" and model.source else None,
        samples=model.samples.sha256 if model.samples else None,
        onnx=model.onnx.file if model.onnx else None,
    )


def _missing(asked: Asked, entry: Entry) -> Iterator[str]:
    """Yield the required variants of an entry that are not ``ok``."""
    for text in asked.required:
        if not any(text.partition("+")[0] in (t.name, str(t)) for t in asked.wanted[entry.pool]):
            continue
        found = [v for v in entry.variants if text in (v.id, v.id.partition("@")[0], v.id.partition("+")[0])]
        wrong = [f"{v.id} is {v.status}: {v.reason}" for v in found if v.status != "ok"]
        why = wrong if found else [f"{text}: {entry.reason}"]
        yield from (f"{entry.model} on {entry.pool}: {reason}" for reason in why)
