"""The stages in order: the file to read first.

    source ─describe─▶ inputs, samples ─reference─▶ truth ─export─▶ ONNX
           for each variant, apart:    (─type─▶ ONNX) ─build─▶ artifact ─prove─▶ parity ─emit─▶ repository
           for all that were built:    ─measure─▶ points ─decide─▶ decisions ─render─▶ run.json, reports, best/

A stage gives a value or an outcome that is not success (``Skipped``, ``Deferred``, ``Failed``, a gate that did not
hold). Outcomes are values: every variant that was asked for is in the report, and one variant's failure never stops
the others. Only a source that cannot be loaded or exported ends the run.
"""

import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed, wait
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Literal, TypeVar

from accel.builders import ConvertingBuilder, targets
from accel.core import environments, hardware, processes, sandbox
from accel.core.accuracy import parity
from accel.core.errors import AccelError, StageError, UnavailableError, WorkerDied
from accel.core.files import lock
from accel.core.processes import Worker
from accel.core.progress import Progress
from accel.core.values import (
    PYTHON_BACKEND,
    Artifact,
    Decision,
    Deferred,
    Failed,
    ModelSource,
    OnnxModel,
    Parity,
    PrecisionConverted,
    Repository,
    ShapeRange,
    Skipped,
    Target,
    TaskSpan,
    Variant,
)
from accel.report import formats
from accel.run import batching, favourites, kits, run_json, tasks
from accel.run.bound import Leader, in_turn, why_not
from accel.run.decide import Objective, decide
from accel.run.job import PYTHON_VARIANT, ROUTED_VARIANT, Job
from accel.run.measuring import measure_in_process, measure_served, spare_workers
from accel.run.narrowed import applied
from accel.run.results import (
    Outcome,
    Run,
    VariantState,
    baseline,
    candidate,
    rerun_command,
    served_candidates,
    status_of,
)
from accel.run.stages import FILES, Answered, AxesLost, NotExported, Proof, Stage, Stages
from accel.run.store import Store
from accel.run.tasks import Described

T = TypeVar("T")
OWN_TASKS = frozenset(task.__name__ for task in (tasks.source_of, tasks.compare, tasks.narrow, tasks.emit))
"""Tasks in which a worker does accel's own work."""

STAGED_AFTER_S = 5.0
"""CPU time of the reference from which variants are proved on part of the feeds first."""

MORE_ROOM = 2.0
"""How many times the usual room above the gate a build leaves that expected to hold it and did not."""

BESIDE_AFTER_S = 4.0
"""How long the reference may take before the export begins beside it, in a process that loads the source once more."""
BESIDE_COPIES = 5
"""How many times what the source's process holds must be free for that."""


@dataclass(frozen=True, slots=True)
class Work:
    """What every part of a run has to do with: the job, where it runs, where its results are kept, who is told."""

    job: Job
    machine: hardware.Hardware
    kept: Store
    stages: Stages
    progress: Progress
    begin: float
    timings_s: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def timed(self, name: str) -> Iterator[None]:
        self.progress.stage(name)
        start = time.monotonic()
        try:
            yield
        finally:
            key = name.replace(" ", "_")
            self.timings_s[key] = self.timings_s.get(key, 0.0) + time.monotonic() - start


@contextmanager
def at_work(job: Job, progress: Progress | None) -> Iterator[Work]:
    """Hold the run directory for as long as the block runs."""
    run_json.check_folder(job)
    with lock(job.run_dir, job.command):
        machine, kept = hardware.detect(), Store(job.run_dir)
        work = Work(job, machine, kept, Stages(job, machine, kept), progress or Progress(), time.monotonic())
        processes.start(sandbox.prepare() if job.sandbox else None)
        yield work


def convert(job: Job, progress: Progress | None = None) -> dict[str, Any]:
    """Do the whole job and return what was written to ``run.json``.

    Where no ONNX file can be made of the source, targets that take the source itself go on, with integers as they are.

    Args:
        job: what to do.
        progress: told what happens; silent by default.

    Raises:
        AccelError: the source cannot be loaded, or be exported where all targets need that, the run directory cannot
            be written or is in use. What an earlier run left there is untouched then.
    """
    try:
        return _with_axes(_convert, job, progress)
    except NotExported as error:
        if not any(targets.info(target).needs_source for target in job.wanted):
            raise
        (progress or Progress()).notice(
            f"no ONNX file: {error.message.splitlines()[0]}; the targets that need none go on"
        )
        return _convert(job.model_copy(update={"ints": "keep"}), progress, error)


def export(job: Job, progress: Progress | None = None) -> None:
    """Do the part of a job whose results serve machines of any hardware: samples, ONNX, and its typed files.

    Raises:
        AccelError: as ``convert``; or a file could not be typed.
    """
    _with_axes(_export, job, progress)


def _with_axes(do: Callable[[Job, Progress | None], T], job: Job, progress: Progress | None) -> T:
    """Do a job, and where axes came out of the export as sizes once more with these fixed."""
    try:
        return do(job, progress)
    except AxesLost as lost:
        try:
            return do(job.model_copy(update={"request": lost.request}), progress)
        except StageError as again:
            raise NotExported(lost.error) if lost.error else again from again


@dataclass(slots=True)
class Exported:
    """A job whose source was loaded, answered and exported, and what is left to be built of it."""

    described: Stage
    results: list[VariantState]
    wanted: list[VariantState]
    reference: Stage[Answered] | None = None
    onnx: Stage[OnnxModel] | None = None
    narrowed: Stage | None = None
    first_tried: str | None = None


def _exported(work: Work, failed: NotExported | None = None) -> Exported:
    job, stages = work.job, work.stages
    with stages.worker("source") as worker:
        with work.timed("load source"):
            described = stages.describe(worker)
        made = described.value
        if made.notice and not job.request.fixed:
            work.progress.notice(made.notice)
        parity.check_names(job.gates, made.source.gate)
        results = [VariantState(v) for v in plan(job, made.source)]
        for result in results:
            result.outcome = _skip_reason(result.variant, made) or _same(result.variant, job)
            if failed and result.outcome is None and targets.info(result.variant.target).needs == "onnx":
                result.outcome = Failed("export", failed.message, failed.log)
        first_tried = _leave_for_later(results, made.source, work) if job.quick else None
        found = Exported(described, results, [r for r in results if r.outcome is None], first_tried=first_tried)
        if found.wanted:
            needs = (targets.info(r.variant.target).needs for r in found.wanted)
            needs_onnx = failed is None and (job.ints != "keep" or "onnx" in needs)
            found.reference, found.onnx = _reference(described, worker, work, needs_onnx=needs_onnx)
            if made.notice and job.request.fixed:  # axes were why the first export failed only if this one succeeds
                work.progress.notice(made.notice)
            if found.onnx is not None and job.ints != "keep":
                with work.timed("narrow integers"):
                    found.narrowed = stages.narrow(described, found.onnx, worker)
                found.described, found.onnx = _contract(described, found.narrowed)
    if found.onnx is not None:
        for result in found.wanted:
            result.outcome = _not_applicable(result.variant, found.onnx.value)
        found.wanted = [r for r in found.wanted if r.outcome is None]
    return found


def _export(job: Job, progress: Progress | None) -> None:
    with at_work(job, progress) as work:
        found = _exported(work)
        if found.onnx is not None:
            for result in (r for r in found.wanted if _is_precision_converted(r.variant)):
                work.stages.prepare(result.variant, found.described, found.onnx)


def _convert(job: Job, progress: Progress | None, failed: NotExported | None = None) -> dict[str, Any]:
    with at_work(job, progress) as work:
        found = _exported(work, failed)
        described, results, wanted = found.described, found.results, found.wanted
        reference, onnx, narrowed = found.reference, found.onnx, found.narrowed
        if reference is not None:
            last = [r for r in wanted if onnx is not None and _comes_last(r.variant, job)]
            last += [r for r in wanted if last and r not in last and _waits(r.variant, job)]
            with work.timed("build and prove"):
                _build_all([r for r in wanted if r not in last], described, onnx, reference, work)
            if last and onnx is not None:
                _measure(work, results, described, reference)
                run = Run(job, work.machine, described.value, onnx, narrowed, results)
                _prove_chosen(run, described, reference, work)
                with work.timed("build and prove"):
                    possible = _that_can_win(last, run, described, onnx, reference, work)
                    _build_all(possible, described, onnx, reference, work)
        return _conclude(work, results, described, reference, onnx, narrowed, found.first_tried)


def _leave_for_later(results: Sequence[VariantState], source: ModelSource, work: Work) -> str | None:
    """Skip all but the targets that win most often; return in words which they are and why."""
    job, said = work.job, []
    fix = "the same command without --quick tries it, and keeps what is done"
    for result in results:
        target = result.variant.target
        if result.outcome is None and targets.discover()[target.name].available(target) is not None:
            result.outcome = Skipped("left for later: another machine finishes it", fix, left=True)
    for device in dict.fromkeys(r.variant.target.device for r in results):
        own = [r for r in results if r.outcome is None and r.variant.target.device == device]
        found = favourites.choose(
            {r.variant.target.name for r in own},
            hardware=work.machine.id,
            family=source.family,
            device=device,
            runs=job.run_dir.parent,
            this=job.run_dir,
        )
        if found is None:
            continue
        for result in own:
            target, static = result.variant.target, result.variant.static is not None
            if not _required(result.variant, job) and (static or target.name not in found.targets):
                result.outcome = Skipped(f"left for later: {' and '.join(found.targets)} come first", fix, left=True)
        said.append(f"{' and '.join(found.targets)} on {device}, one of which was {found.why}")
    if said:
        work.progress.notice(f"--quick: {'; '.join(said)}")
    return "; ".join(said) or None


def _reference(
    described: Stage, worker: Worker, work: Work, *, needs_onnx: bool
) -> tuple[Stage[Answered], Stage[OnnxModel] | None]:
    """Run the source over all feeds, and export it; beside that where it takes long and memory holds the source twice.

    Args:
        worker: the source's process.
    """
    stages = work.stages
    with ThreadPoolExecutor(max_workers=1) as pool:
        try:
            with work.timed("reference"):
                answering = pool.submit(stages.reference, described, worker)
                wait([answering], BESIDE_AFTER_S)
                if answering.done() or not needs_onnx or not _fits_beside(described.value.source, worker, work.job):
                    answering.result()
                if not needs_onnx:
                    return answering.result(), None
            with work.timed("export"), ExitStack() as held:
                other = worker if answering.done() else held.enter_context(stages.worker("export"))
                try:
                    onnx = stages.export(described, answering.result, other)
                except AxesLost:
                    raise
                except StageError as error:
                    answering.result()  # where the source itself failed, that is the reason
                    raise NotExported(error) from error
                return answering.result(), onnx
        except BaseException:
            worker.kill()
            raise


def _fits_beside(source: ModelSource, worker: Worker, job: Job) -> bool:
    """Say whether there are a second core, an export to be made, and memory to hold and write the source once more."""
    if job.threads == 1 or job.sandbox or "onnx" in (source.kind, source.framework):
        return False
    return hardware.available_memory_bytes() > BESIDE_COPIES * worker.resident_bytes()


def finish(found: Mapping[Path, kits.DeferredBuild], job: Job, progress: Progress | None = None) -> dict[str, Any]:
    """Finish deferred variants of one model from their kits on this machine; return what was written to ``run.json``.

    Args:
        found: absolute folder → what ``kits.read`` read from it.
        job: as ``kits.job`` makes it of them.

    Raises:
        UnavailableError: this machine cannot build one of them either.
        OutputError: the run directory cannot be written or is in use.
    """
    for kit in found.values():
        skipped = targets.discover()[kit.variant.target.name].available(kit.variant.target)
        if skipped is not None:
            raise UnavailableError(f"{kit.variant.id} cannot be built here: {skipped.reason}", fix=skipped.fix)
    folder, first = next(iter(found.items()))
    with at_work(job, progress) as work:
        work.progress.notice(f"kit of {first.source.name}, made by `{first.command}`")
        described = Stage(Described(first.source, first.samples), folder / kits.SAMPLES, first.seal, cached=True)
        reference = Stage(Answered(kits.REFERENCE, first.feeds), folder, first.seal, cached=True)
        results = [_as_precision_converted(kit, place) for place, kit in found.items()]
        onnx = results[0].precision_converted
        assert onnx is not None
        with work.timed("build and prove"):
            _build_all(results, described, onnx, reference, work)
        return _conclude(work, results, described, reference, onnx, None)


def _as_precision_converted(kit: kits.DeferredBuild, folder: Path) -> VariantState:
    """Return a kit's variant as it stands once its ONNX file was typed and proved."""
    onnx = Stage(kit.onnx, folder / kits.ONNX, kit.seal, cached=True)
    precision = targets.info(kit.variant.target).precision
    proof = Proof(kit.proof, precision, precision, kit.feeds)
    return VariantState(
        kit.variant,
        typing=Stage(PrecisionConverted(kit.onnx, kit.typing), onnx.folder, onnx.key, cached=True),
        precision_converted=onnx,
        precision_converted_proof=Stage(proof, onnx.folder, onnx.key, cached=True),
        seal=kit.seal,
    )


def _conclude(
    work: Work,
    results: list[VariantState],
    described: Stage,
    reference: Stage | None,
    onnx: Stage | None,
    narrowed: Stage | None,
    first_tried: str | None = None,
) -> dict[str, Any]:
    """Measure what was built, decide, and write everything down."""
    job, timings = work.job, work.timings_s
    run = Run(job, work.machine, described.value, onnx, narrowed, results, timings_s=timings, first_tried=first_tried)
    if job.bench in ("inprocess", "both"):
        _measure(work, results, described, reference)
        if reference is not None:
            _prove_chosen(run, described, reference, work)
            if "traffic" in job.objectives:
                with work.timed("measure"):
                    _apply_costs(run, described, reference, work)
        _apply_measured(results, work.stages, job.constraints.max_p99_ms)
    if job.bench in ("triton", "both"):
        with work.timed("serve"):
            run.served = measure_served(
                results,
                described,
                reference,
                job=job,
                kept=work.kept,
                hardware=work.machine,
                progress=work.progress.variant,
            )
    if "traffic" in job.objectives:
        _route(results, work)
    run.decisions = decide_all(run)
    with work.timed("write"):
        run_json.show(run)
    timings["total"] = time.monotonic() - work.begin
    timings["accel"] = timings["total"] - _libraries_s(processes.timeline())
    document = run_json.write(run)
    work.kept.prune()
    return document


def _measure(work: Work, results: Sequence[VariantState], described: Stage, reference: Stage | None) -> None:
    """Measure in process whatever was not measured yet; a variant keeps its process from objective to objective."""
    with work.timed("measure"), spare_workers() as spare:
        for objective in work.job.objectives:
            measure_in_process(
                results,
                described,
                reference,
                objective,
                job=work.job,
                stages=work.stages,
                kept=work.kept,
                hardware=work.machine,
                progress=work.progress.variant,
                spare=spare,
            )


def _in_stages(job: Job, reference: Stage[Answered]) -> bool:
    """Say whether all feeds are asked only of what is chosen: where they take long and a choice follows in process."""
    return not job.exhaustive and job.bench == "inprocess" and reference.value.cpu_s > STAGED_AFTER_S


def _prove_chosen(run: Run, described: Stage, reference: Stage[Answered], work: Work) -> None:
    """Ask all feeds of what is chosen and of what ties with it, and decide again, until each choice holds on them."""
    while True:
        named = _chosen(run)
        open_ = [r for r in run.results if r.variant.id in named and r.proof is not None and not r.proof.value.whole]
        if not open_:
            return
        with work.timed("build and prove"):
            _build_all(open_, described, run.onnx, reference, work)


def _chosen(run: Run) -> set[str | None]:
    """Return the variants that would be chosen by what is known so far, and those that tie with them."""
    return {id for found in decide_all(run) for id in (found.chosen, *found.ties)}


def _apply_costs(run: Run, described: Stage, reference: Stage[Answered], work: Work) -> None:
    """Let each repository pad requests to the lengths that cost least by what was measured of its variant's traffic.

    Of what is chosen, and of what ties with it, texts share rows where that is faster: it takes some seconds to know.
    """
    stages, named = work.stages, _chosen(run)
    for result in run.results:
        points = [p for p in result.points if p.traffic is not None and p.via == "inprocess"]
        if status_of(result)[0] != "ok" or result.built is None or result.proof is None or not points:
            continue
        best = max(points, key=lambda point: point.throughput_per_s)
        assert best.traffic is not None
        try:
            times, pack = best.traffic.request_times, work.job.exhaustive or result.variant.id in named
            proof = stages.regrouped(result.built, result.proof, described, times, pack=pack)
            if proof is result.proof:
                continue
            result.proof = proof
            with stages.worker(result.variant.id) as worker:
                given = result.built, proof, described, reference, worker
                result.emitted = stages.emit(*given)
                if result.python_variant is not None:
                    result.python_variant = stages.emit(*given, python_variant=True)
        except StageError as error:
            work.progress.notice(f"{result.variant.id} pads to the lengths chosen before measuring: {error.message}")


def _apply_measured(results: Sequence[VariantState], stages: Stages, max_p99_ms: float | None) -> None:
    """Let each repository have the memory that was measured, and merge no more requests than was measured to pay."""
    for result in results:
        if status_of(result)[0] != "ok":
            continue
        found = batching.worthwhile(result.points, max_p99_ms)
        by_shape = batching.worthwhile(result.points, max_p99_ms, scenario="traffic") or found
        peak = max((p.peak_rss_mib for p in result.points if p.via == "inprocess"), default=0.0)
        for name in ("emitted", "python_variant"):
            stage = getattr(result, name)
            if stage is not None and peak > 0:
                stage = stages.sized(stage, peak)
            if stage is not None:
                stage = stages.rescheduled(stage, found, by_shape=by_shape)
            setattr(result, name, stage)


def _route(results: Sequence[VariantState], work: Work) -> None:
    """Emit, for real traffic, what lets native backends answer requests of different lengths together."""
    for result in results:
        if status_of(result)[0] == "ok" and result.emitted is not None:
            result.routed = work.stages.routed(result.emitted)
    if made := [f"{r.variant.id}{ROUTED_VARIANT}" for r in results if r.routed is not None]:
        work.progress.notice(f"{', '.join(made)}: a model before the native one groups requests by length")


def _comes_last(variant: Variant, job: Job) -> bool:
    """Say whether a variant is built only while it can win: it takes long, and a group alone asked for it."""
    target = variant.target
    last = target.device in targets.info(target).comes_last and job.bench in ("inprocess", "both")
    return last and not _asked_for(variant, job)


def _waits(variant: Variant, job: Job) -> bool:
    """Say whether a variant is built with those that come last, where there are any: what excludes them excludes it.

    Its target says so, and a group alone asked for it; or it is an FP32 build of one shape, and the zoo alone did.
    """
    info, device = targets.info(variant.target), variant.target.device
    if variant.static is not None and not job.static and (device, info.precision) == ("cpu", "fp32"):
        return not (job.exhaustive or _required(variant, job))
    return device in info.waits and not _asked_for(variant, job)


def _asked_for(variant: Variant, job: Job) -> bool:
    """Say whether a variant is wanted for itself, and not just because a group holds it."""
    return job.exhaustive or variant.target.name not in job.grouped or _required(variant, job)


def _required(variant: Variant, job: Job) -> bool:
    return not {variant.target.name, str(variant.target), variant.id}.isdisjoint(job.required)


def _that_can_win(
    last: Sequence[VariantState], run: Run, described: Stage, onnx: Stage, reference: Stage[Answered], work: Work
) -> list[VariantState]:
    """Skip those of the variants that come last that cannot win any more, and return the others."""
    for device in dict.fromkeys(r.variant.target.device for r in last):
        own = [r for r in last if r.variant.target.device == device]
        if (why := _not_pursued(device, run, described, onnx, reference, work)) is not None:
            work.progress.notice(f"{', '.join(r.variant.id for r in own)}: {why.reason}")
            for result in own:
                result.outcome = why
    return [r for r in last if r.outcome is None]


def _not_pursued(
    device: str, run: Run, described: Stage, onnx: Stage, reference: Stage[Answered], work: Work
) -> Skipped | None:
    """Say why an FP32 build cannot win by any objective against what was measured, or None where it can.

    Figures that other processes disturbed exclude nothing; the arithmetic of the typical shape says nothing of traffic.
    """
    if "traffic" in run.job.objectives:
        return None
    leaders = []
    for objective in run.job.objectives:
        found = _decide(run, device, objective, "inprocess")
        own = [r for r in run.results if r.variant.id == found.chosen]
        points = [Leader(r, objective, p) for r in own for p in r.points if p.scenario == objective]
        if found.warning is not None or not points:
            return None
        leaders.append(min(points, key=lambda leader: leader.most_ms))
    with work.stages.worker("arithmetic") as worker:
        least = work.stages.arithmetic(described, onnx, worker).value
        reason = why_not(
            leaders,
            least,
            lambda leader: in_turn(
                leader,
                least,
                described,
                reference,
                job=work.job,
                stages=work.stages,
                kept=work.kept,
                hardware=work.machine,
                progress=work.progress.variant,
                worker=worker,
            ),
        )
    if reason is None:
        return None
    fix = "--exhaustive builds it all the same, and so does its own name in --targets"
    return Skipped(f"not pursued: {reason}", fix)


def _libraries_s(timeline: Sequence[TaskSpan]) -> float:
    """Return for how long at least one process worked for a library: loaded, exported, built, ran or timed a model."""
    total, reached = 0.0, 0.0
    for span in timeline:
        if span.task not in OWN_TASKS:
            total += max(0.0, span.end_s - max(span.begin_s, reached))
            reached = max(reached, span.end_s)
    return total


def _contract(described: Stage, narrowed: Stage) -> tuple[Stage, Stage]:
    """Return source and ONNX as every variant of the run takes them, with the narrowed dtypes."""
    made: Described = described.value
    source = applied(made.source, narrowed.value)
    onnx = Stage(narrowed.value.onnx, narrowed.folder, narrowed.key, narrowed.cached)
    return Stage(Described(source, made.samples), described.folder, described.key, described.cached), onnx


def plan(job: Job, source: ModelSource) -> list[Variant]:
    """List the variants a job asks for: one per target, and static builds where asked or where the zoo gains by them.

    A group stands for what the source can become: it brings in no target that starts from another framework.
    """
    variants = []
    for target in job.wanted:
        if target.name in job.grouped and targets.info(target).needs not in (source.framework, "onnx", "nothing"):
            continue
        options = {**_of_all(job, target), **job.options.get(target.name, {})}
        variants.append(Variant(target, dict(source.profile), options=options))
        info = targets.info(target)
        if info.static and (job.static or info.precision in source.static):
            fixed = {name: ShapeRange(s.opt, s.opt, s.opt) for name, s in source.profile.items()}
            shape = "x".join(str(n) for n in fixed[source.inputs[0].name].opt)
            variants.append(Variant(target, fixed, static=shape, options=options))
    return variants


def _of_all(job: Job, target: Target) -> dict[str, Any]:
    """Return the builder options that the job sets for all targets that have them."""
    builder = targets.discover()[target.name]
    given = {"search_s": job.search_s} if job.search_s is not None else {}
    if job.int8 == "all" and targets.info(target).precision == "int8":
        given |= builder.whole
    return {name: value for name, value in given.items() if name in {f.name for f in fields(builder.options)}}


def decide_all(run: Run) -> tuple[Decision, ...]:
    """Decide for each device on which a variant was tried, by each objective; what a server answered comes last.

    Where nothing was to be measured there is nothing to decide.
    """
    tried = (r for r in run.results if not isinstance(r.outcome, Skipped | Deferred))
    devices = dict.fromkeys(r.variant.target.device for r in tried)
    bench = run.job.bench
    if bench == "none":
        return ()
    ways: list[Literal["inprocess", "triton"]] = ["inprocess", "triton"] if bench == "both" else [bench]
    return tuple(
        _decide(run, device, objective, way)
        for way in ways
        for device in devices
        for objective in run.job.objectives
        if way == "inprocess" or objective != "traffic"  # no server is put under it yet
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
    if decision.chosen is None or not decision.chosen.endswith(PYTHON_VARIANT):
        emitted = any(decision.chosen in r.repositories for r in own)
        if not emitted or decision.repository:
            return decision
        return replace(decision, repository=f"repositories/{decision.chosen}")
    chosen = decision.chosen.removesuffix(PYTHON_VARIANT)  # a decision names the variant, and which of its repositories
    rest = tuple(lost for lost in decision.rejected if lost.id != chosen)
    beside = "".join(f"; repositories/{id}: {why}" for id, why in decision.rejected if id == chosen)
    ties = tuple(id for id in decision.ties if id != chosen)
    return replace(decision, chosen=chosen, rejected=rest, ties=ties, reason=decision.reason + beside)


def _skip_reason(variant: Variant, described: Described) -> Outcome | None:
    """Say why a variant cannot even be tried here."""
    info = targets.info(variant.target)
    builder = targets.discover()[variant.target.name]
    if (skipped := builder.available(variant.target)) is not None and not _is_precision_converted(variant):
        return skipped
    framework = described.source.framework
    if info.needs_source and info.needs != framework:
        wanted = targets.runtime(targets.baseline(info.needs)).name
        return Skipped(f"the source is {framework}: there is no {wanted} model to build from")
    if info.calibration and described.samples.calibration is None:
        return Skipped(
            "INT8 needs calibration samples, and there are none",
            "give real inputs with --samples FILE, or accept random ones with --random-samples",
        )
    return None


def _same(variant: Variant, job: Job) -> Outcome | None:
    """Say which other variant of the job is the same on this machine, for one that a group alone asked for."""
    target = variant.target
    twin = targets.discover()[target.name].same_as(target)
    if twin is None or replace(target, name=twin) not in job.wanted or _asked_for(variant, job):
        return None
    if job.options.get(target.name, {}) != job.options.get(twin, {}):
        return None
    return Skipped(f"computes on this machine what {twin} does", f"--targets {target.name} builds it all the same")


def _not_applicable(variant: Variant, onnx: OnnxModel) -> Outcome | None:
    """Say that a target would find nothing to work on in the exported model."""
    wanted = targets.info(variant.target).operators
    if not wanted or any(name in onnx.ops for name in wanted):
        return None
    return Skipped(f"it works on {', '.join(wanted[:-1])} and {wanted[-1]}, and the model has none")


def _build_all(
    results: Sequence[VariantState], described: Stage, onnx: Stage | None, reference: Stage, work: Work
) -> None:
    """Build, prove and emit every variant; each in processes of its own, side by side where memory allows.

    What was built and proved on part of the feeds is proved on all of them, and emitted with that proof.
    """
    job, stages, progress = work.job, work.stages, work.progress
    in_stages = _in_stages(job, reference)

    def one(result: VariantState) -> None:
        id = result.variant.id
        stage, again = "build", rerun_command(result.variant, job)

        def report(stage: str) -> Callable[[str], None]:
            return lambda doing: progress.variant(id, f"{stage}: {doing}")

        def fresh(python: Path) -> Worker:
            return stages.worker(id, python=python, report_progress=report("building"))

        try:
            if onnx is not None and result.precision_converted is None and _is_precision_converted(result.variant):
                stage = "type"
                progress.variant(id, "typing")
                _type(result, stages, described, onnx, reference, report("typing"), first=in_stages)
            if result.outcome is None and status_of(result)[0] == "ok":
                new = result.built is None
                first = in_stages and new and not _required(result.variant, job)
                with ExitStack() as held:
                    builder = held.enter_context(fresh(stages.python(result.variant)))
                    if result.built is None:
                        stage = "build"
                        progress.variant(id, "building")
                        result.built = stages.build(
                            result.variant, described, result.precision_converted or onnx, builder
                        )
                        if targets.info(result.variant.target).needs_source:  # its code would hide what the file lacks
                            builder.close()
                            builder = held.enter_context(fresh(stages.python(result.variant)))
                    worker = builder
                    if stages.python(result.variant) != environments.python(environments.MAIN):
                        worker = held.enter_context(fresh(environments.python(environments.MAIN)))
                    if not targets.info(result.variant.target).server_only:
                        stage = "prove"
                        progress.variant(id, "proving")
                        result.proof = stages.prove(result.built, described, reference, builder, worker, first=first)
                        if new and _surprising(result.built.value, result.proof.value.parity):
                            # The first one stands, with what its gate says.
                            with suppress(StageError, UnavailableError):
                                builder = held.enter_context(fresh(stages.python(result.variant)))
                                given = result.variant, described, result.precision_converted or onnx, builder
                                built = stages.build(*given, room=MORE_ROOM)
                                proof = stages.prove(built, described, reference, builder, worker, first=first)
                                result.built, result.proof = built, proof
                    stage = "emit"
                    result.emitted = stages.emit(result.built, result.proof, described, reference, worker)
                    if result.proof is None:
                        result.outcome = _left_to_server(result, stages, job)
                    elif result.variant.static is None and _cannot_batch(result.emitted):
                        result.python_variant = stages.emit(
                            result.built, result.proof, described, reference, worker, python_variant=True
                        )
        except UnavailableError as error:
            result.outcome = Skipped(error.message, error.fix)
        except StageError as error:
            result.outcome = Failed(stage, error.message, error.log, again, isinstance(error, WorkerDied))
        except AccelError as error:
            result.outcome = Failed(stage, str(error), None, again)
        except Exception as error:  # noqa: BLE001  a builder's fault in the parent is this variant's, not the run's
            log = stages.logs / f"{id}-{stage}.traceback"
            with suppress(OSError):  # the disk may be full
                log.parent.mkdir(parents=True, exist_ok=True)
                log.write_text(traceback.format_exc())
            result.outcome = Failed(stage, f"{type(error).__name__}: {error}", str(log), again)
        status, reason, _ = status_of(result)
        progress.done(id, reason.splitlines()[0] if reason else _figures(result), ok=status in ("ok", "deferred"))

    side_by_side = min(_parallel(onnx, job.threads), max(1, len(results)))
    stages.share_threads(side_by_side)
    with ThreadPoolExecutor(max_workers=side_by_side) as pool:
        futures = [pool.submit(one, result) for result in sorted(results, key=_last)]
        try:
            for number, future in enumerate(as_completed(futures), 1):
                future.result()
                stages.share_threads(min(side_by_side, len(futures) - number))  # the last one's next task has them all
        except BaseException:
            for future in futures:
                future.cancel()
            processes.stop_all()
            raise
        finally:
            stages.share_threads(1)


def _surprising(artifact: Artifact, found: Parity) -> bool:
    """Say whether a variant misses a figure of the gate that its build expected it to hold."""
    missed = (name for name, value in found.found.items() if value is not None and value < found.gate[name])
    return artifact.built.expected is True and any(missed)


def _is_precision_converted(variant: Variant) -> bool:
    """Say whether the variant's precision is made in the ONNX file, before the build and on any machine."""
    return isinstance(targets.discover()[variant.target.name], ConvertingBuilder)


def _type(
    result: VariantState,
    stages: Stages,
    described: Stage,
    onnx: Stage,
    reference: Stage,
    report_progress: Callable[[str], None],
    *,
    first: bool,
) -> None:
    """Type the ONNX file and prove it on the CPU; where the rest cannot be done here, leave a kit."""
    variant = result.variant
    result.typing = stages.prepare(variant, described, onnx, report_progress=report_progress)
    converted: PrecisionConverted = result.typing.value
    result.precision_converted = Stage(
        converted.onnx, result.typing.folder / FILES, result.typing.key, result.typing.cached
    )
    result.precision_converted_proof = stages.prove_precision_converted(
        variant, result.typing, described, reference, first=first
    )
    missing = targets.discover()[variant.target.name].available(variant.target)
    if missing is not None and result.precision_converted_proof.value.parity.passed:
        result.kit = stages.kit(
            variant, result.typing, result.precision_converted_proof, described, reference, reason=missing.reason
        )
        kit = str(stages.run_dir / "variants" / variant.id / "kit")
        device_here = variant.target.device in hardware.detect().devices
        here = f"{missing.fix}; or finish it on another machine: accel build {kit}" if device_here else None
        result.outcome = Deferred(missing.reason, kit, here)


def _left_to_server(result: VariantState, stages: Stages, job: Job) -> Outcome:
    """Say of a variant that no process of accel can run what a server is to prove, or why the release has none."""
    variant, built = result.variant, result.built
    assert built is not None
    served = targets.discover()[variant.target.name].triton(built.value, job.triton_release)
    if isinstance(served, Skipped):
        return served
    repository = str(stages.run_dir / "repositories" / variant.id)
    return Deferred(
        f"only Triton's {served.backend} backend runs it: packaged for {job.triton_release}, neither proved nor timed",
        repository,
        f"accel verify {repository} --serve on a machine with a GPU and that release",
    )


def _last(result: VariantState) -> bool:
    """Sort what types, compiles or calibrates for long on one core to the front: others fill the second meanwhile."""
    info = targets.info(result.variant.target)
    return not (info.calibration or info.needs_source or _is_precision_converted(result.variant))


def _parallel(onnx: Stage | None, threads: int) -> int:
    """Return how many are built at once."""
    weights = sum(f.bytes for f in onnx.value.data) + onnx.value.file.bytes if onnx else 0
    return hardware.fit_together(weights, threads)


def _cannot_batch(emitted: Stage) -> bool:
    """Say whether a native backend serves the artifact without merging requests, which the Python backend could."""
    repository: Repository | None = emitted.value.repository
    return repository is not None and repository.backend != PYTHON_BACKEND and not repository.batches


def _figures(result: VariantState) -> str:
    artifact: Artifact | None = result.built.value if result.built else None
    proof: Proof | None = result.proof.value if result.proof else None
    if artifact is None or proof is None:
        return ""
    found = ", ".join(f"{n} {v:.3g}" if v is not None else f"{n} exact" for n, v in proof.parity.found.items())
    parts = artifact.built.facts.get("share_of_products", {})
    precision = formats.shares(parts) if len(parts) > 1 else proof.precision
    return f"{precision}, {found}, {artifact.bytes / 2**20:.0f} MiB"
