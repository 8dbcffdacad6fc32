"""Write a run down: the folders a person looks into, ``run.json`` by its contract, and the reports.

The contract's fields are in the design's section on the run directory; other tools read them. Everything is written
under a temporary name and renamed, and the run before moves to ``history/``.
"""

import contextlib
import datetime
import json
import re
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

from accel.builders import targets
from accel.builders.toolchain import toolchain
from accel.core import processes, signing
from accel.core.document import (
    FILENAME,
    Baseline,
    Build,
    Integers,
    Machine,
    RunDocument,
    RunModel,
    Samples,
    Typing,
    VariantRecord,
    Verdict,
    shipping,
)
from accel.core.errors import OutputError
from accel.core.files import load_json, remove, replace_folder, write_text, writing
from accel.core.values import (
    SCHEMA,
    Artifact,
    Failed,
    ModelSource,
    OnnxModel,
    PrecisionConverted,
    Skipped,
    TaskSpan,
    extended,
    to_json,
)
from accel.exporters.sources import content_key
from accel.run.job import PYTHON_VARIANT, ROUTED_VARIANT, Job
from accel.run.results import Run, VariantState, rerun_command, status_of
from accel.run.stages import FILES, LOG, REPOSITORY, Proof
from accel.run.tasks import Emitted
from accel.triton.grouping import Grouping

OWN = {FILENAME, "report.html", "report.md", "history"} | {
    *("source", "onnx", "variants", "repositories", "best", "measurements", "logs"),
}
"""What a run directory holds."""


def check_folder(job: Job) -> None:
    """Refuse a run directory that holds another model's run, or files that are no run: it would mix the two.

    A model is the same by its reference (also with new weights) or by its content (also elsewhere).

    Raises:
        OutputError: it holds something else, or cannot be read.
    """
    folder, request = job.run_dir, job.request
    with writing(folder):
        found = sorted(p.name for p in folder.iterdir()) if folder.is_dir() else []
    models = []
    for file in (folder / FILENAME, *folder.glob(".store/source-*/value.json")):
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            held = load_json(file.read_text())
            model = held["model"] if file.name == FILENAME else held["value"]["source"]
            models.append((model["kind"], model.get("reference", model.get("source")), model.get("key")))
    others = [name for name in found if not name.startswith(".") and name not in OWN]
    if others and not models and ".store" not in found:
        raise OutputError(
            f"{folder} holds other files ({', '.join(others[:3])}{', …' * (len(others) > 3)}) and no run of accel",
            fix="give the run a folder of its own with -o DIR",
        )
    same = {model[:2] for model in models}
    if models and (request.kind, request.reference) not in same:
        key = content_key(request)
        if key is None or key not in {model[2] for model in models}:
            raise OutputError(
                f"{folder} holds the run of another model: {models[0][1]}",
                fix=f"write elsewhere with -o DIR or --model-name NAME, or remove {folder} if that run may go",
            )


def show(run: Run) -> None:
    """Lay out what a person looks into: ``onnx/``, ``variants/``, ``repositories/`` and ``best/``.

    Raises:
        OutputError: the run directory cannot be written, or the disk is full.
    """
    folder = run.job.run_dir
    if run.onnx is not None:
        model: OnnxModel = run.onnx.value
        files: dict[str, Path | str] = {f.path: run.onnx.folder / f.path for f in (model.file, *model.data)}
        if run.narrowed is not None:
            files["narrowing.json"] = json.dumps(to_json(run.narrowed.value.report), indent=1) + "\n"
        replace_folder(folder / "onnx", files)
    for result in run.results:
        _show_variant(folder, result, run)
    chosen = {device: d for device, d in shipping(run.decisions).items() if d.chosen is not None}
    earlier = folder / "best"  # what an earlier run chose is not what this one chose
    for left in [*earlier.iterdir()] if chosen and earlier.is_dir() else [earlier]:
        if left.name not in chosen:
            remove(left)
    for device, decision in chosen.items():
        root = folder / (decision.repository or f"repositories/{decision.chosen}")
        replace_folder(folder / "best" / device, _all(root), copy=True)


def write(run: Run) -> dict[str, Any]:
    """Write ``run.json`` and both reports, the run before into ``history/``; returns the document.

    Raises:
        OutputError: the run directory cannot be written, or the disk is full; the last run's files are still there.
    """
    from accel import report

    folder = run.job.run_dir
    document: dict[str, Any] = to_json(_document(run))
    _keep_history(folder)
    write_text(folder / FILENAME, json.dumps(document, indent=1, allow_nan=False) + "\n")
    report.write_reports(document, folder)
    return document


def _show_variant(folder: Path, result: VariantState, run: Run) -> None:
    id = result.variant.id
    if result.built is not None:
        about = f"# Builds, proves and measures {id} again, from nothing but the source."
        files: dict[str, Path | str] = {f.path: result.built.folder / FILES / f.path for f in result.built.value.files}
        files[LOG] = result.built.folder / LOG
        files["reproduce.sh"] = f"#!/bin/sh\n{about}\nexec {rerun_command(result.variant, run.job)}\n"
        replace_folder(folder / "variants" / id, files)
    elif result.kit is not None:
        kit = {f"kit/{name}": path for name, path in _all(result.kit.folder / FILES).items()}
        replace_folder(folder / "variants" / id, kit)
        if run.job.sign_kits is not None:
            signing.sign(folder / "variants" / id / "kit", run.job.sign_kits)
    elif result.precision_converted_proof is not None:
        remove(folder / "variants" / id)  # the kit of an earlier run would build what now fails its gate
    for name, emitted in result.repositories.items():
        replace_folder(folder / "repositories" / name, _all(emitted.folder / REPOSITORY))
    routed = folder / "repositories" / f"{id}{ROUTED_VARIANT}"
    if result.routed is not None:
        replace_folder(routed, _all(result.routed.folder / REPOSITORY))
    else:
        remove(routed)  # an earlier run's is of another artifact


def _all(root: Path) -> dict[str, Path | str]:
    return {p.relative_to(root).as_posix(): p for p in root.rglob("*") if p.is_file()}


def _document(run: Run) -> RunDocument:
    source, samples, job = run.described.source, run.described.samples, run.job
    return RunDocument(
        schema=SCHEMA,
        accel=version("accel"),
        created=datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        command=job.command,
        model=RunModel(
            name=source.name,
            source=source.reference,
            kind=source.kind,
            framework=source.framework,
            baseline=_baseline(source),
            weights=source.weights,
            revision=source.revision,
            inputs=source.inputs,
            outputs=source.outputs,
            profile=source.profile,
            accuracy=run.described.accuracy,
            notice=_notice(run),
            samples=Samples(
                origin=samples.origin,
                calibration_items=samples.calibration_items,
                gate_items=samples.gate_items,
                sha256=samples.sha256,
            ),
            onnx=run.onnx.value if run.onnx else None,
            integers=_integers(run),
            call=source.call,
            family=source.family,
        ),
        hardware=extended(
            Machine,
            run.hardware,
            id=run.hardware.id,
            fingerprint=run.hardware.fingerprint,
            versions=toolchain(),
        ),
        settings={
            "threads": job.threads,
            "rounds": job.rounds,
            "round_s": job.round_s,
            "budget_s": job.budget_s,
            "triton_release": job.triton_release,
            "ints": job.ints,
            "bench": job.bench,
            "gates": dict(job.gates),
            **({"traffic": str(job.traffic or "the samples")} if "traffic" in job.objectives else {}),
        },
        variants=tuple(_variant(r) for r in run.results),
        served=run.served,
        decisions=run.decisions,
        timings_s={name: round(value, 3) for name, value in run.timings_s.items()},
        timeline=tuple(
            TaskSpan(s.worker, s.task, round(s.begin_s, 3), round(s.end_s, 3), round(s.cpu_s, 3))
            for s in processes.timeline()
        ),
    )


def _notice(run: Run) -> str | None:
    """Return the line that nobody may miss."""
    source = run.described.source
    lines = [run.described.notice] if run.described.notice else []
    if source.unproved_integers and run.job.allow_unproved_int64:
        lines.append("int64 values that are not proved to fit int32 may wrap or lose digits (--allow-unproved-int64)")
    if run.first_tried:
        left = ", ".join(r.variant.id for r in run.results if isinstance(r.outcome, Skipped) and r.outcome.left)
        lines.append(f"a first verdict: {run.first_tried}; left to try without --quick: {left or 'nothing'}")
    loud = {text: None for r in run.results for m in r.points if m.gpu is not None for text in m.gpu.warnings}
    if loud:
        lines.append(f"the GPU was not quiet while it was measured: {'; '.join(loud)}")
    return "; ".join(lines) or None


def _integers(run: Run) -> Integers:
    """Say what narrowing changed in inputs and outputs and kept, and what is not proved inside."""
    report = run.narrowed.value.report if run.narrowed else None
    return Integers(
        level=run.job.ints,
        narrowed_inputs=tuple(report.narrowed_inputs) if report else (),
        narrowed_outputs=tuple(report.narrowed_outputs) if report else (),
        narrowed=report.count("narrowed") if report else 0,
        kept=report.count("kept") if report else 0,
        preconditions=tuple(report.inputs) if report else (),
        unproved_int64=run.described.source.unproved_integers,
        allow_unproved_int64=run.job.allow_unproved_int64,
    )


def _baseline(source: ModelSource) -> Baseline:
    """Return the target that runs the source as it is, and what a report calls it."""
    target = targets.baseline(source.framework)
    name = targets.runtime(target).name
    return Baseline(target=target, name=f"{name} (exported)" if source.kind == "exported" else name)


def _variant(result: VariantState) -> VariantRecord:
    status, reason, fix = status_of(result)
    artifact: Artifact | None = result.built.value if result.built else None
    proof: Proof | None = result.proof.value if result.proof else None
    emitted: Emitted | None = result.emitted.value if result.emitted else None
    repository = emitted.repository if emitted else None
    folder = f"repositories/{result.variant.id}"
    return VariantRecord(
        id=result.variant.id,
        target=result.variant.target.name,
        device=result.variant.target.device,
        runtime=targets.runtime(result.variant.target.name),
        shapes=result.variant.profile,
        static=result.variant.static,
        status=status,
        reason=reason,
        fix=fix,
        artifact=_build(artifact, proof) if artifact else None,
        typing=_typing(result),
        parity=_verdict(proof) if proof else None,
        repository=folder if repository else None,
        twin=f"{folder}{PYTHON_VARIANT}" if result.python_variant else None,
        routed=f"{folder}{ROUTED_VARIANT}" if result.routed else None,
        shares=_shares(proof.groups.grouping) if proof and proof.groups.grouping else None,
        unserved={name: failed.cause for name, failed in result.unserved.items()},
        unverified_for_release=repository.unverified if repository else (),
        cached=bool(result.built and result.built.cached and not result.freshly_measured),
        measurements=result.points,
        options=result.variant.options,
        died=any(isinstance(o, Failed) and o.died for o in (result.outcome, *result.unserved.values())),
    )


def _shares(how: Grouping) -> str | None:
    if (rows := how.packing) is not None and rows.gain is not None:
        gain, low, high = rows.gain
        found = f"{gain:.2f}× [{low:.2f}, {high:.2f}] of the requests that groups by length answer"
        return f"texts share rows of {rows.width} positions: {found}"
    return f"in groups by length: {how.unpacked}" if how.unpacked is not None else None


def _build(artifact: Artifact, proof: Proof | None) -> Build:
    return Build(
        files=artifact.files,
        bytes=artifact.bytes,
        build_s=artifact.build_s,
        precision=artifact.built.precision,
        effective_precision=proof.precision if proof else None,
        versions=artifact.built.versions,
        facts=artifact.built.facts,
        parent_sha256=artifact.parent_sha256,
        entry=artifact.built.entry,
        inputs=artifact.built.inputs,
        outputs=artifact.built.outputs,
    )


def _typing(result: VariantState) -> Typing | None:
    """Say how the ONNX file was typed and what that cost, where the precision is made there."""
    if result.typing is None or result.precision_converted_proof is None:
        return None
    converted: PrecisionConverted = result.typing.value
    return Typing(
        onnx=converted.onnx.file,
        facts=converted.facts,
        parity=_verdict(result.precision_converted_proof.value),
        kit=f"variants/{result.variant.id}/kit" if result.kit is not None else None,
        seal=result.kit.value.seal if result.kit is not None else result.seal,
    )


def _verdict(proof: Proof) -> Verdict:
    return extended(Verdict, proof.parity, held_as=proof.asked, feeds=proof.feeds, of=proof.of)


def _keep_history(folder: Path) -> None:
    """Move the last run to ``history/<its time>.json``."""
    last = folder / FILENAME
    if not last.exists():
        return
    try:
        created: Mapping[str, Any] = load_json(last.read_text())
        stamp = re.sub(r"[^0-9A-Za-z.-]", "", str(created["created"]))
    except (ValueError, KeyError, TypeError):
        stamp = f"unreadable-{int(last.stat().st_mtime)}"
    write_text(folder / "history" / f"{stamp}.json", last.read_text())
