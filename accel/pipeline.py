"""The stages in order: the file to read first.

    source ─describe─▶ inputs, samples ─reference─▶ truth ─export─▶ ONNX
           for each variant, apart:    ─build─▶ artifact ─prove─▶ parity ─emit─▶ repository
           for all that were built:    ─measure─▶ points ─decide─▶ decisions ─render─▶ run.json, reports, best/

A stage gives a value or an outcome that is not success (``Skipped``, ``Deferred``, ``Failed``, a gate that did not
hold). Outcomes are values: every variant that was asked for is in the report, and one variant's failure never stops
the others. Only a source that cannot be loaded or exported ends the run.
"""

from __future__ import annotations

import dataclasses
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, Literal

from accel import contract, hardware, measuring, parity, runfile, store, targets, worker
from accel.artifacts import (
    Artifact,
    Decision,
    Deferred,
    Failed,
    Measurement,
    ModelSource,
    Repository,
    ShapeRange,
    Skipped,
    Variant,
)
from accel.decide import Objective, decide, finalists
from accel.errors import AccelError, StageError
from accel.job import Job
from accel.measuring import Measured, measure_all
from accel.progress import Progress
from accel.results import Outcome, Result, Run, alone, baseline, candidate, served_candidates, standing
from accel.serving import Entrant, serve_all
from accel.stages import TWIN, Described, Proof, Stage, Stages
from accel.store import Store


def convert(job: Job, progress: Progress | None = None) -> dict[str, Any]:
    """Do the whole job and return what was written to ``run.json``.

    Args:
        job: what to do.
        progress: told what happens; silent by default.

    Raises:
        AccelError: the source cannot be loaded or exported, the run directory cannot be written or is in use. What an
            earlier run left there is untouched then.
    """
    progress = progress or Progress()
    with store.lock(job.run_dir, job.command):
        machine = hardware.detect()
        kept = Store(job.run_dir)
        stages = Stages(job, machine, kept)
        timings: dict[str, float] = {}
        begin = time.monotonic()
        worker.start()
        with _timed(timings, progress, "load source"):
            described = stages.describe()
        made: Described = described.value
        if made.source.notice:
            progress.notice(made.source.notice)
        parity.check_names(job.gates, made.source.gate)
        results = [Result(v) for v in plan(job, made.source)]
        for result in results:
            result.outcome = _hindrance(result.variant, made)
        wanted = [r for r in results if r.outcome is None]
        onnx = narrowed = None
        if wanted:
            with _timed(timings, progress, "reference"):
                reference = stages.reference(described)
            if job.ints != "keep" or any(targets.info(r.variant.target).needs == "onnx" for r in wanted):
                with _timed(timings, progress, "export"):
                    onnx = stages.export(described, reference)
            if onnx is not None and job.ints != "keep":
                with _timed(timings, progress, "narrow integers"):
                    narrowed = stages.narrow(described, onnx)
                described, onnx = _contract(described, narrowed)
            with _timed(timings, progress, "build and prove"):
                _build_all(wanted, stages, described, onnx, reference, job, progress)
        if job.bench != "triton":
            with _timed(timings, progress, "measure"):
                for objective in ("latency", "throughput"):
                    _measure(
                        results,
                        described,
                        objective,
                        job=job,
                        stages=stages,
                        kept=kept,
                        machine=machine,
                        progress=progress,
                    )
        if job.bench != "inprocess":
            with _timed(timings, progress, "serve"):
                _serve(results, described, job=job, kept=kept, machine=machine, progress=progress)
        run = Run(job, machine, described.value, onnx, narrowed, results, timings_s=timings)
        run.decisions = decide_all(run)
        with _timed(timings, progress, "write"):
            runfile.show(run)
        timings["total"] = time.monotonic() - begin
        timings["outside_tasks"] = timings["total"] - worker.busy_s()
        document = runfile.write(run)
        kept.prune()
        return document


def _contract(described: Stage, narrowed: Stage) -> tuple[Stage, Stage]:
    """Return source and ONNX as every variant of the run takes them, with the narrowed dtypes."""
    made: Described = described.value
    source = contract.apply(made.source, narrowed.value)
    onnx = Stage(narrowed.value.onnx, narrowed.folder, narrowed.key, narrowed.cached)
    return Stage(Described(source, made.samples), described.folder, described.key, described.cached), onnx


def plan(job: Job, source: ModelSource) -> list[Variant]:
    """List the variants a job asks for: one per target, and static twins where asked or where the zoo gains by them."""
    variants = []
    for target in job.targets:
        options = dict(job.options.get(target.name, {}))
        variants.append(Variant(target, dict(source.profile), options=options))
        if targets.info(target).static and (job.static or target.name in source.static):
            fixed = {name: ShapeRange(s.opt, s.opt, s.opt) for name, s in source.profile.items()}
            shape = "x".join(str(n) for n in fixed[source.inputs[0].name].opt)
            variants.append(Variant(target, fixed, static=shape, options=options))
    return variants


def decide_all(run: Run) -> tuple[Decision, ...]:
    """Decide for each device on which a variant was tried, by each objective; what a server answered comes last."""
    tried = (r for r in run.results if not isinstance(r.outcome, Skipped | Deferred))
    devices = dict.fromkeys(r.variant.target.device for r in tried)
    bench = run.job.bench
    ways: list[Literal["inprocess", "triton"]] = ["inprocess", "triton"] if bench == "both" else [bench]
    return tuple(
        _decide(run, device, objective, way) for way in ways for device in devices for objective in run.job.objectives
    )


def _decide(run: Run, device: str, objective: Objective, via: Literal["inprocess", "triton"]) -> Decision:
    own = [r for r in run.results if r.variant.target.device == device]
    served = [c for r in own for c in served_candidates(r)]
    decision = decide(
        [candidate(r) for r in own] if via == "inprocess" else served,
        device=device,
        objective=objective,
        constraints=run.job.constraints,
        baseline=baseline(run.results, run.described.source, device),
        via=via,
    )
    if decision.chosen is None or not decision.chosen.endswith(TWIN):
        return decision
    chosen = decision.chosen.removesuffix(TWIN)  # a decision names the variant, and which of its repositories
    rest = tuple((id, why) for id, why in decision.rejected if id != chosen)
    beside = "".join(f"; repositories/{id}: {why}" for id, why in decision.rejected if id == chosen)
    ties = tuple(id for id in decision.ties if id != chosen)
    return dataclasses.replace(decision, chosen=chosen, rejected=rest, ties=ties, reason=decision.reason + beside)


def _hindrance(variant: Variant, described: Described) -> Outcome | None:
    """Say why a variant cannot even be tried here."""
    info = targets.info(variant.target)
    builder = targets.discover()[variant.target.name]
    if (skipped := builder.available(variant.target)) is not None:
        return skipped
    if info.needs == "torch" and described.source.framework != "torch":
        return Skipped(f"the source is {described.source.framework}: there is no PyTorch module to build from")
    if info.calibration and described.samples.calibration is None:
        fix = "give real inputs with --samples FILE, or accept random ones with --random-samples"
        return Skipped("INT8 needs calibration samples, and there are none", fix)
    return None


def _build_all(
    results: Sequence[Result],
    stages: Stages,
    described: Stage,
    onnx: Stage | None,
    reference: Stage,
    job: Job,
    progress: Progress,
) -> None:
    """Build, prove and emit every variant; each in processes of its own, two at a time where memory allows."""

    def one(result: Result) -> None:
        id = result.variant.id
        stage, again = "build", alone(result.variant, job)
        try:
            progress.variant(id, "building")
            result.built = stages.build(result.variant, described, onnx)
            stage = "prove"
            progress.variant(id, "proving")
            result.proof = stages.prove(result.built, described, reference)
            stage = "emit"
            result.emitted = stages.emit(result.built, result.proof, described, reference)
            if result.variant.static is None and _cannot_batch(result.emitted):
                result.twin = stages.emit(result.built, result.proof, described, reference, twin=True)
        except StageError as error:
            result.outcome = Failed(stage, error.message, error.log, again)
        except AccelError as error:
            result.outcome = Failed(stage, str(error), None, again)
        except Exception as error:  # noqa: BLE001  a builder's fault in the parent is this variant's, not the run's
            log = stages.logs / f"{id}-{stage}.traceback"
            log.parent.mkdir(parents=True, exist_ok=True)
            log.write_text(traceback.format_exc())
            result.outcome = Failed(stage, f"{type(error).__name__}: {error}", str(log), again)
        status, reason, _ = standing(result)
        progress.done(id, reason.splitlines()[0] if reason else _figures(result), ok=status == "ok")

    with ThreadPoolExecutor(max_workers=_parallel(onnx)) as pool:
        futures = [pool.submit(one, result) for result in sorted(results, key=_last)]
        try:
            for future in futures:
                future.result()
        except BaseException:
            for future in futures:
                future.cancel()
            worker.stop_all()
            raise


def _last(result: Result) -> bool:
    """Sort what compiles or calibrates for long on one core to the front: the others fill the second core meanwhile."""
    info = targets.info(result.variant.target)
    return not (info.calibration or info.needs == "torch")


def _parallel(onnx: Stage | None) -> int:
    """Return how many variants are built at once: two, where memory holds eight copies of the model for each."""
    weights = sum(f.bytes for f in onnx.value.data) + onnx.value.file.bytes if onnx else 0
    return 2 if 2 * 8 * weights <= hardware.available_memory_bytes() else 1


def _cannot_batch(emitted: Stage) -> bool:
    """Say whether a native backend serves the artifact without merging requests, which the Python backend could."""
    repository: Repository | None = emitted.value.repository
    return repository is not None and repository.backend == "openvino"


def _figures(result: Result) -> str:
    artifact: Artifact | None = result.built.value if result.built else None
    proof: Proof | None = result.proof.value if result.proof else None
    if artifact is None or proof is None:
        return ""
    found = ", ".join(f"{n} {v:.3g}" if v is not None else f"{n} exact" for n, v in proof.parity.found.items())
    return f"{proof.precision}, {found}, {artifact.bytes / 2**20:.0f} MiB"


def _measure(
    results: Sequence[Result],
    described: Stage,
    scenario: Objective,
    *,
    job: Job,
    stages: Stages,
    kept: Store,
    machine: hardware.Hardware,
    progress: Progress,
) -> None:
    """Time everything that was built, also what failed its gate: a reader sees what the error would have bought."""
    entrants = [
        measuring.Entrant(r.variant, r.built)
        for r in results
        if r.outcome is None and r.built is not None and r.proof is not None
    ]
    if not entrants:
        return
    source: ModelSource = described.value.source

    def best(known: Mapping[str, tuple[Measurement, ...]]) -> list[str]:
        found = []
        for device in dict.fromkeys(r.variant.target.device for r in results):
            pool = [r for r in results if r.variant.target.device == device]
            seen = [dataclasses.replace(candidate(r), measurements=known.get(r.variant.id, ())) for r in pool]
            found += finalists(seen, objective=scenario, baseline=baseline(pool, source, device))
        return found

    measured: Measured = measure_all(
        entrants,
        described,
        scenario=scenario,
        job=job,
        stages=stages,
        kept=kept,
        hardware=machine,
        finalists=best,
        progress=lambda id, doing: progress.variant(id, f"{scenario}, {doing}"),
    )
    for result in results:
        id = result.variant.id
        result.points = (*result.points, *measured.points.get(id, ()))
        result.freshly_measured |= id in measured.fresh
        if id in measured.failed:
            result.outcome = measured.failed[id]


def _serve(
    results: Sequence[Result],
    described: Stage,
    *,
    job: Job,
    kept: Store,
    machine: hardware.Hardware,
    progress: Progress,
) -> None:
    """Measure every repository of every variant that passed, behind a real server."""
    entrants, owners = [], {}
    for result in results:
        if standing(result)[0] == "ok" and result.proof is not None:
            for name, emitted in result.repositories.items():
                repository: Repository = emitted.value.repository
                rival = result.twin is not None and repository.backend != "python"
                entrants.append(Entrant(name, emitted, repository.backend, result.proof.value.precision, rival))
                owners[name] = result
    if not entrants:
        return
    session = serve_all(
        entrants,
        described,
        job=job,
        kept=kept,
        hardware=machine,
        progress=lambda name, doing: progress.variant(name, doing),
    )
    for entry in session.entries:
        owner = owners[entry.name]
        owner.points = (*owner.points, *entry.points)
        if entry.failed is not None:
            owner.unserved[entry.name] = entry.failed.cause


@contextmanager
def _timed(timings: dict[str, float], progress: Progress, name: str) -> Iterator[None]:
    progress.stage(name)
    start = time.monotonic()
    try:
        yield
    finally:
        timings[name.replace(" ", "_")] = time.monotonic() - start
