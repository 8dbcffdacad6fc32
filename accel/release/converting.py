"""Convert one model of a release on this machine, and leave the record that says what was asked and what came of it.

A record of just this means that there is nothing to do. What is half done has no record; its stages are kept all the
same, so whoever is killed goes on from there.
"""

import json
import time
from dataclasses import dataclass
from pathlib import Path

from accel import pipeline
from accel.core import document
from accel.core.document import RunDocument
from accel.core.errors import AccelError, OutputError, StageError, WorkerDied
from accel.core.files import lock, remove, write_text
from accel.core.hardware import Hardware
from accel.core.progress import Progress
from accel.core.values import Target
from accel.release import planning
from accel.release.planning import ConversionRecord
from accel.release.release_file import ModelPlan
from accel.run.job import Job
from accel.run.store import Store
from accel.triton import manifest as manifests
from accel.triton.tune import measured, session
from accel.triton.tune.request import TuneOptions, TuneRequest

TUNED = "tuned"
"""Folder of a run directory that holds what ``accel tune`` found, by device."""
TRIES = 2
"""How often a build is begun whose process dies."""


def convert(
    asked: ModelPlan, targets: tuple[Target, ...], folder: Path, machine: Hardware, progress: Progress, *,
    retry: bool = False, tries: int = TRIES,
) -> None:  # fmt: skip
    """Convert one model and leave its record, unless there is one of just this.

    Args:
        folder: of this machine's runs in the store.
        retry: convert again what failed, although nothing changed.
        tries: how often it is begun where a process dies.

    Raises:
        OutputError: the store cannot be written, or another process converts the model.
    """
    key = planning.asked_key(asked)
    if is_done(asked, key, targets, folder, machine, retry=retry):
        return
    remove(folder / f"{asked.name}.json")  # what is half done is of no record
    job = _job(asked, targets, folder)
    _adopt(job, folder)
    begin, error = time.monotonic(), None
    for attempt in range(1, tries + 1):
        error = None
        try:
            run = document.parse(pipeline.convert(job, progress))
            dead = [v.id for v in run.variants if v.died]
            if asked.tune is not None and not dead:
                _tune(asked.tune, targets, job.run_dir, run, machine, progress)
        except OutputError:
            raise
        except AccelError as found:
            error, dead = found, [asked.name] * isinstance(found, WorkerDied)
        if not dead:
            break
        progress.notice(f"{', '.join(dead)} ended with its process, {attempt} of {tries} times")
    if error is not None:
        progress.notice(f"{asked.name}: {error}")
        if not isinstance(error, StageError):  # a file that is missing may be there next time
            key = None
    said = (error.message, error.fix) if error is not None else (None, None)
    made = planning.made_with(targets, machine)
    planning.write_record(
        folder, asked.name, ConversionRecord(key, made, job.run_dir.name, time.monotonic() - begin, *said)
    )


def prepare(
    asked: ModelPlan, targets: tuple[Target, ...], folder: Path, machine: Hardware, progress: Progress, *,
    retry: bool = False,
) -> bool:  # fmt: skip
    """Do all of a conversion that need not be alone on the machine: everything but measuring.

    What fails here fails again in ``convert``, which says so; only a process that dies is counted.

    Returns:
        Whether a process died.

    Raises:
        OutputError: as ``convert``.
    """
    job = _job(asked, targets, folder)
    if job.bench == "none" or is_done(asked, planning.asked_key(asked), targets, folder, machine, retry=retry):
        return False
    remove(folder / f"{asked.name}.json")
    _adopt(job, folder)
    try:
        run = document.parse(pipeline.convert(job.model_copy(update={"bench": "none"}), progress))
    except OutputError:
        raise
    except AccelError as error:
        return isinstance(error, WorkerDied)
    return any(v.died for v in run.variants)


def export(asked: ModelPlan, targets: tuple[Target, ...], folder: Path, progress: Progress) -> None:
    """Do the part of a conversion that serves machines of any hardware; what fails here, ``convert`` says.

    Args:
        targets: of all machines.

    Raises:
        OutputError: as ``convert``.
    """
    job = _job(asked, targets, folder)
    _adopt(job, folder)
    try:
        pipeline.export(job, progress)
    except OutputError:
        raise
    except AccelError as error:
        progress.notice(f"{asked.name}: {error}")


def _adopt(job: Job, folder: Path) -> None:
    """Let a run directory have what other machines of the store made of the model and its hardware does not change."""
    others = [other / job.run_dir.name for other in sorted(folder.parent.iterdir()) if other != folder]
    with lock(job.run_dir, job.command):
        store = Store(job.run_dir)
        for other in others:
            store.adopt(other)


@dataclass(frozen=True, slots=True)
class TunedRepository:
    """What ``accel tune`` made of a run for one device: the repository, its document, the variant, and why that one."""

    root: Path
    told: Path
    variant: str
    reason: str


def tuned(run_dir: Path, device: str) -> TunedRepository | None:
    """Return what ``accel tune`` made of a run for a device; None where it made nothing."""
    root, told = (run_dir / TUNED / device / name for name in (measured.REPOSITORY, measured.FILENAME))
    if not (root / manifests.FILENAME).is_file():
        return None
    reason = json.loads(told.read_text())["decision"]["reason"]
    return TunedRepository(root, told, manifests.read(root).variant, reason)


def _tune(
    asked: TuneOptions,
    targets: tuple[Target, ...],
    run_dir: Path,
    run: RunDocument,
    machine: Hardware,
    progress: Progress,
) -> None:
    """Write the repository that holds what was asked beside the run, for each device of this machine.

    Raises:
        CheckFailed: nothing holds it.
        UnavailableError: there is no server to measure with.
        StageError: nothing could be measured.
    """
    devices = dict.fromkeys(t.device for t in targets if t.device in machine.devices)
    for device in devices:
        if not any(v.status == "ok" and v.device == device for v in run.variants):
            remove(run_dir / TUNED / device)  # of an earlier source, which passed
            continue
        request = TuneRequest(
            **asked.model_dump(),
            targets=(run_dir if len(devices) == 1 else run_dir / "best" / device,),
            out=run_dir / TUNED / device,
        )
        session.tune(request, notice=progress.notice, progress=progress.variant, stage=progress.stage)


def give_up(asked: ModelPlan, targets: tuple[Target, ...], folder: Path, machine: Hardware, why: str) -> None:
    """Leave the record of a model whose conversion took its own process with it, so that it is not tried for ever."""
    made, run = planning.made_with(targets, machine), planning.run_name(asked)
    record = ConversionRecord(planning.asked_key(asked), made, run, 0.0, why, "accel release build --retry")
    planning.write_record(folder, asked.name, record)


def _job(asked: ModelPlan, targets: tuple[Target, ...], folder: Path) -> Job:
    config = folder / f"{asked.name}.job.json"
    write_text(config, json.dumps(asked.given, indent=1) + "\n")
    return asked.job(targets, folder / planning.run_name(asked), config=config)


def is_done(
    asked: ModelPlan, key: str | None, targets: tuple[Target, ...], folder: Path, machine: Hardware, *, retry: bool
) -> bool:
    """Say whether there is a record of just this; where that failed and is to be tried again, there is none.

    Args:
        key: ``planning.asked_key`` of the model.
    """
    record = planning.read_record(folder, asked.name)
    if record is None or not planning.current(record, key, planning.made_with(targets, machine)):
        return False
    return not (retry and (record.error is not None or _failed(document.read(folder / record.run))))


def _failed(run: RunDocument) -> bool:
    return any(v.status == "failed" for v in run.variants)
