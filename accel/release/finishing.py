"""Bring variants that ``accel build`` finished from a release's kits into the store, for the next build of the release.

A finished run is a run of another machine, as if that machine had built the release itself: it goes where such a run
lies (``planning``), with a record of what was asked. It is known by the seals of the kits that it was finished from.
"""

from collections.abc import Iterator
from pathlib import Path

from accel.core import document
from accel.core.document import VariantRecord
from accel.core.errors import InputError, UsageError
from accel.core.files import lock, replace_folder
from accel.release import planning
from accel.release.planning import ConversionRecord, Duties
from accel.release.release_file import ModelPlan, ReleasePlan
from accel.triton.verify import verify

LEFT_OUT = {".store", ".lock", "history", "logs"}
"""Parts of a run directory that nothing but another conversion there would need."""


def take(plan: ReleasePlan, store: Path, duties: Duties, run_dir: Path) -> tuple[str, str]:
    """Copy a finished run into the store, and return the model and the machine that it is of.

    Args:
        duties: which machines' conversions left the kits.
        run_dir: what ``accel build KIT... -o`` wrote.

    Raises:
        InputError: it is no such run, it is damaged, or its kits are not those of this release as it stands.
        UsageError: another finished run of that model and machine has variants that this one lacks.
        OutputError: the store cannot be written, or is in use.
    """
    run = document.read(run_dir)
    own = (p for p in sorted(run_dir.rglob("*")) if p.relative_to(run_dir).parts[0] not in LEFT_OUT)
    if link := next((p for p in own if p.is_symlink()), None):
        raise InputError(f"{link} is a link: a run directory holds plain files", fix="copy the run with what it has")
    seals = {v.typing.seal: v for v in run.variants if v.typing is not None and v.typing.seal and not v.typing.kit}
    of_them = (m for m in _left(plan, store, duties) if seals and seals.keys() <= m[2].keys())
    asked, key, left = next(of_them, (None, None, {}))
    if asked is None:
        raise InputError(
            f"{run_dir} was not finished from kits of release {plan.version} as it stands here",
            fix="finish those that its folder kits/ holds: accel build KIT... -o RUN",
        )
    if run.hardware.id in duties.makers.values():
        raise UsageError(
            f"{run_dir} was made on {run.hardware.id}, which left the kits itself", fix="accel release build alone"
        )
    for seal, variant in seals.items():
        _check(run_dir, variant, left[seal])
    folder = store / planning.RUNS / run.hardware.id
    target = folder / f"{planning.run_name(asked)}{planning.FINISHED}"
    with lock(folder, f"accel release build {plan.version}"):
        before = planning.read_record(folder, asked.name)
        if before is not None and (before.asked, before.made_with) == (key, planning.FINISHED):
            lost = {v.id for v in document.read(folder / before.run).variants} - {v.id for v in run.variants}
            if lost:
                raise UsageError(
                    f"{run_dir} has no {', '.join(sorted(lost))}, which an earlier one from {run.hardware.id} has",
                    fix="measure them side by side: accel build takes several kits of one model",
                )
        inside = ((p, p.relative_to(run_dir)) for p in run_dir.rglob("*") if p.is_file())
        files: dict[str, Path | str] = {r.as_posix(): p for p, r in inside if r.parts[0] not in LEFT_OUT}
        replace_folder(target, files, copy=True)
        made = ConversionRecord(key, planning.FINISHED, target.name, run.timings_s.get("total", 0.0))
        planning.write_record(folder, asked.name, made)
    return asked.name, run.hardware.id


def _left(
    plan: ReleasePlan, store: Path, duties: Duties
) -> Iterator[tuple[ModelPlan, str | None, dict[str, VariantRecord]]]:
    """Yield each model that was converted, what its runs elsewhere are known by, and the kits that it left by seal."""
    for asked in plan.models:
        key = planning.asked_key(asked)
        for maker in dict.fromkeys(m for (name, _), m in duties.makers.items() if name == asked.name):
            folder = store / planning.RUNS / maker
            record = planning.read_record(folder, asked.name)
            if record is not None and record.error is None:
                run = document.read(folder / record.run)
                yield asked, planning.known_as(asked, key, folder), planning.left_kits(run)


def _check(run_dir: Path, found: VariantRecord, left: VariantRecord) -> None:
    """Hold a finished variant against the kit that it says it is from: same variant, same typed file, sound repository.

    Raises:
        InputError: it is something else.
    """
    files = found.typing and found.typing.onnx, left.typing and left.typing.onnx
    again = "take the run directory again from the machine that finished it"
    if found.id != left.id or files[0] != files[1]:
        raise InputError(f"{run_dir}: {found.id} is of another typed ONNX file than its kit", fix=again)
    for name in (found.repository, found.twin, found.routed):
        if name is not None and (wrong := [f for f in verify(run_dir / name) if f.severity == "error"]):
            raise InputError(f"{run_dir}/{name}: {wrong[0].file}: {wrong[0].why}", fix=again)
