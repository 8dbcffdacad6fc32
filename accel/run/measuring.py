"""Which variants are measured together, in process and as served; what was measured before is kept.

A measuring session is a stored result like any other. In process, a run whose variants were all measured measures
nothing; a variant that is new is measured in a session of its own together with the finalists and the baseline, so
that ratios stay ratios of one session. As served, one session holds every repository of the run, all under the same
loads.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from accel.bench.card import watch_card
from accel.bench.checker import Check
from accel.bench.expected import Expected, held_to
from accel.bench.in_process import MeasurementPlan, ProcessRunner
from accel.bench.race import FIRST_LOOK, LEAST_ROUNDS, Contest, Entry, Race
from accel.bench.rounds import MeasuredRunner, measure
from accel.bench.stability import TAIL_CALLS, p99_calls
from accel.core.document import ServerRecord
from accel.core.feeds import write_feeds
from accel.core.files import replace_folder
from accel.core.hardware import Hardware, available_memory_bytes, fit_together, runtime_variables
from accel.core.processes import Worker
from accel.core.values import PYTHON_BACKEND, Failed, Measurement, ModelSource
from accel.run import points as timed, serving, store
from accel.run.decide import FREE, Candidate, Constraints, Objective, finalists
from accel.run.job import Job
from accel.run.results import VariantState, baseline, candidate, status_of
from accel.run.serving import ServerRunner
from accel.run.stages import FILES, REPOSITORY, Answered, Stage, Stages
from accel.run.tasks import Described
from accel.triton.servers import server as servers

THROUGHPUT_ROUND_S, THROUGHPUT_WARM_S = 0.3, 0.2
WARM_S = 0.5
"""The same for latency: what is slow after that shows in the first of the rounds, and hits all alike."""
MOST_TAIL_S = 15.0
"""What has won is timed for at most so much longer where that gives it a p99."""
LEAST_CALLS = 4
"""Calls of a round that give what leaves at the first look a median."""
Progress = Callable[[str, str], None]
"""Called with (id of a variant or name of a repository, what is being done)."""


@dataclass(frozen=True, slots=True)
class MeasuredVariant:
    """What one variant or repository did in a session: the key of what was measured, its points or its failure.

    Attributes:
        asked: at how many points it was to be timed; what is far behind may have left before all of them.
    """

    id: str
    key: str
    points: tuple[Measurement, ...]
    failed: Failed | None = None
    asked: int | None = None


@dataclass(frozen=True, slots=True)
class MeasuringSession:
    """One interleaved session.

    Attributes:
        settings: hash of everything but what was measured.
        via / release: how servers were run (``embedded``, ``local`` or ``docker``) and their Triton release; None in
            process, and where nothing was served or the release is not known.
    """

    settings: str
    scenario: str
    number: int
    entries: tuple[MeasuredVariant, ...]
    via: str | None = None
    release: str | None = None


@contextmanager
def spare_workers() -> Iterator[dict[str, Worker]]:
    """Keep processes with loaded variants from one objective to the next, and end them in the end."""
    spare: dict[str, Worker] = {}
    try:
        yield spare
    finally:
        for worker in spare.values():
            worker.close()


def measure_in_process(
    results: Sequence[VariantState],
    described: Stage[Described],
    reference: Stage[Answered] | None,
    scenario: Objective,
    *,
    job: Job,
    stages: Stages,
    kept: store.Store,
    hardware: Hardware,
    progress: Progress,
    spare: dict[str, Worker],
) -> None:
    """Time everything that was built, also what failed its gate: a reader sees what the error would have bought.

    What no stored session holds is measured; each result gets its points of all sessions, oldest first. The inputs are
    among the feeds of the proof; while it is timed a variant that passed is held against the same answers.

    Args:
        spare: processes with loaded variants, by id: taken from there, and left there for the next objective.
    """
    built = {r.variant.id: r for r in results if r.outcome is None and r.built is not None and r.proof is not None}
    if not built or reference is None:
        return
    made = described.value
    plan = _plan(scenario, job)
    pairs = timed.proved(described, reference)
    points = {id: timed.points(r.variant, made.source, scenario, pairs) for id, r in built.items()}
    settings = store.key(
        plan=plan,
        min_rounds=job.min_rounds,
        budget_s=job.budget_s,
        samples=made.samples.sha256,
        threads=job.threads,
        environment=runtime_variables(),
        # what could not be chosen leaves the race early
        choosable=(job.constraints, job.allow_unproved_int64, job.triton_release),
        hardware=hardware.fingerprint,
        code=store.code_hash("bench", "run/tasks.py", "run/points.py", "builders/__init__.py"),
    )
    keys = {id: r.built.key for id, r in built.items() if r.built is not None}
    sessions = kept.all("measure", MeasuringSession)
    serving = {name: s for name, s in sessions.items() if not job.remeasure or name in kept.used}
    known, failed = _known(serving, kept, settings, keys, {id: len(wanted) for id, wanted in points.items()})
    for id, how in failed.items():
        built[id].outcome = how
    for name, session in sessions.items():
        if name in kept.used:
            _show_raw(kept.root / name, f"{session.scenario}-{session.number}", job)
    missing = [id for id in built if id not in known and id not in failed and points[id]]
    if missing:
        beside = _finalists(results, known, scenario, made.source, job.constraints) if known else []
        chosen = [id for id in built if id in {*missing, *beside}]
        number = 1 + max((s.number for s in sessions.values()), default=0)
        key = store.key(settings=settings, number=number, entries=[(id, keys[id]) for id in chosen])
        with kept.writing("measure") as folder:
            feeds, expected = folder / "feeds.npz", folder / "expected.npz"
            taken = {key: pair for id in chosen for found in points[id].values() for key, pair in found.items()}
            mask = next((s for s in made.source.inputs if s.name == made.source.mask), None)
            write_feeds(feeds, {key: pair.inputs for key, pair in taken.items()})
            write_feeds(expected, {key: pair.outputs for key, pair in taken.items()})
            devices = dict.fromkeys(r.variant.target.device for r in built.values())
            compared = frozenset(filter(None, (baseline(results, made.source, device) for device in devices)))
            watch = watch_card(built[id].variant.target.device for id in chosen)
            runners = [
                ProcessRunner(
                    name=id,
                    artifact=stage.value,
                    folder=stage.folder / FILES,
                    python=stages.python(built[id].variant),
                    log=job.run_dir / "logs" / f"{id}.log",
                    timed_shapes=tuple(points[id]),
                    precision=proof.value.precision,
                    plan=plan,
                    feeds=feeds,
                    check=Check(
                        expected,
                        made.source.outputs,
                        held_to(proof.value.parity),
                        made.source.detections,
                        masks=feeds if mask else None,
                        mask_input=mask.name if mask else "",
                        mask_dims=tuple(map(str, mask.dims)) if mask else (),
                    )
                    if proof.value.parity.passed
                    else None,
                    threads=job.threads,
                    timeout_s=job.timeout_s,
                    watch=watch,
                    spare=spare,
                )
                for id in sorted(chosen, key=lambda id: _latency_ms(built[id].points))  # who leads is known soon
                if (stage := built[id].built) and (proof := built[id].proof)
            ]
            largest = max(stage.value.bytes for id in chosen if (stage := built[id].built))
            found = measure(
                runners,
                _race(runners, {id: candidate(built[id]) for id in chosen}, compared, job),
                stage="measure",
                opening="loading",
                turn="round",
                raw_dir=folder / "raw",
                raw_name=f"measurements/{scenario}-{number}/{scenario}-{{}}.npz",
                progress=lambda id, doing: progress(id, f"{scenario}, {doing}"),
                free_memory=(available_memory_bytes, *((watch.free_memory_mib,) if watch else ())),
                at_once=1 if watch or scenario == "traffic" else fit_together(largest, job.threads),
            )
            entries = tuple(
                MeasuredVariant(id, keys[id], (), new, asked=len(points[id]))
                if isinstance(new, Failed)
                else MeasuredVariant(id, keys[id], new, asked=len(points[id]))
                for id, new in found.items()
            )
            final = kept.put("measure", key, MeasuringSession(settings, scenario, number, entries), folder)
        _show_raw(final, f"{scenario}-{number}", job)
        for id, new in found.items():
            if isinstance(new, Failed):
                built[id].outcome = new
                known.pop(id, None)
            else:
                known[id] = (*known.get(id, ()), *new)
                built[id].freshly_measured = True
    for id, every in known.items():
        others = (p for p in built[id].points if p.scenario != scenario)
        built[id].points = (*others, *every)


def measure_served(
    results: Sequence[VariantState],
    described: Stage[Described],
    reference: Stage[Answered] | None,
    *,
    job: Job,
    kept: store.Store,
    hardware: Hardware,
    progress: Progress,
) -> ServerRecord | None:
    """Measure every repository of every variant that passed, each behind a server of its own.

    A session in which a process was killed is held again by the next run.

    Returns:
        How the servers were had; None where there is nothing to serve.

    Raises:
        UnavailableError: there is no server to be had.
    """
    passed = [r for r in results if status_of(r)[0] == "ok" and r.proof is not None]
    owners = {name: r for r in passed for name in r.repositories}
    if not owners or reference is None:
        return None
    made = described.value
    emitted = {name: r.repositories[name] for name, r in owners.items()}
    key = store.key(
        repositories=[(name, stage.key) for name, stage in emitted.items()],
        samples=made.samples.sha256,
        server=servers.identity(job.via),
        rounds=(job.min_rounds, job.rounds),
        budget_s=job.budget_s,
        limits=job.constraints,
        environment=runtime_variables(),
        hardware=hardware.fingerprint,
        code=store.code_hash("run/measuring.py", "run/serving.py", "bench", "triton", "run/tasks.py"),
    )
    session = None if job.remeasure else kept.get("served", key, MeasuringSession)
    if session is None or any(entry.failed is not None and entry.failed.died for entry in session.entries):
        with kept.writing("served") as folder:
            samples = (
                timed.steps(described, reference)
                if made.source.states
                else timed.samples(made.source, timed.proved(described, reference))
            )
            runners = [
                ServerRunner(
                    name,
                    stage.folder / REPOSITORY,
                    backend=stage.value.repository.backend,
                    precision=proof.value.precision,
                    has_python_variant=owners[name].python_variant is not None
                    and stage.value.repository.backend != PYTHON_BACKEND,
                    job=job,
                    feeds=[sample.inputs for sample in samples],
                    expected=Expected(
                        [sample.outputs for sample in samples],
                        made.source.client_outputs,
                        held_to(proof.value.parity),
                        detections=made.source.detections,
                    ),
                )
                for name, stage in emitted.items()
                if (proof := owners[name].proof)
            ]
            session = serve(
                runners,
                {name: stage.key for name, stage in emitted.items()},
                folder,
                progress,
                least=job.min_rounds,
                rounds=job.rounds,
                budget_s=job.budget_s,
                limits=job.constraints,
            )
            kept.put("served", key, session, folder)
    _show_raw(kept.folder("served", key), "served", job)
    for entry in session.entries:
        owner = owners[entry.id]
        owner.points = (*owner.points, *entry.points)
        if entry.failed is not None:
            owner.unserved[entry.id] = entry.failed
    return ServerRecord(via=session.via, release=session.release)


def serve(
    runners: Sequence[ServerRunner],
    keys: Mapping[str, str],
    folder: Path,
    progress: Progress,
    *,
    least: int = LEAST_ROUNDS,
    rounds: int = serving.ROUNDS,
    budget_s: float | None = None,
    limits: Constraints = FREE,
) -> MeasuringSession:
    """Measure repositories in one session.

    Args:
        keys: of the emitted repositories, by name.
        folder: takes the raw samples, in ``raw``.
        least / rounds / budget_s / limits: as the job has them.
    """
    named = {r.name: r for r in runners}
    loads = [
        [(r.name, str(n)) for r in runners for n in serving.CONCURRENCY if (n == 1) == alone] for alone in (True, False)
    ]
    names = frozenset(r.name for r in runners)
    most = min(rounds, max(serving.ROUNDS, least))

    def fits(entry: Entry) -> bool:
        return _may_fit(named[entry[0]], entry[1], limits)

    race = Race([Contest(tuple(entries), names, most, least, fits=fits) for entries in loads], budget_s)
    found = measure(
        runners,
        race,
        stage="serve",
        opening="starting a server",
        turn="served, round",
        raw_dir=folder / "raw",
        raw_name="measurements/served/{}.npz",
        progress=progress,
    )
    entries = tuple(
        MeasuredVariant(name, keys[name], (), new)
        if isinstance(new, Failed)
        else MeasuredVariant(name, keys[name], new)
        for name, new in found.items()
    )
    answered = [r.endpoint for r in runners if r.endpoint is not None and not isinstance(found[r.name], Failed)]
    via, release = (answered[0].via, answered[0].release) if answered else (None, None)
    return MeasuringSession("", "served", 1, entries, via, release)


def _show_raw(result: Path, name: str, job: Job) -> None:
    """Let the run directory hold the raw samples of a session, also where a kill or a user took them away."""
    raw = {file.name: file for file in (result / "raw").iterdir()}
    replace_folder(job.run_dir / "measurements" / name, raw)


def _race(runners: Sequence[ProcessRunner], known: Mapping[str, Candidate], compared: frozenset[str], job: Job) -> Race:
    """Let the variants of each device race each other at all their points.

    What failed its gate, cannot be served or breaks a constraint cannot win.
    """
    named = {runner.name: runner for runner in runners}
    # A p99 takes all rounds.
    first = None if job.constraints.max_p99_ms or job.min_rounds > LEAST_ROUNDS else FIRST_LOOK
    devices = dict.fromkeys(r.artifact.variant.target.device for r in runners)
    contests = []
    for device in devices:
        own = [r for r in runners if r.artifact.variant.target.device == device]
        entries = tuple((r.name, point.key) for r in own for point in r.timed_shapes)
        choosable = frozenset(r.name for r in own if known[r.name].status == "ok" and known[r.name].choosable)
        contests.append(
            Contest(
                entries,
                choosable,
                job.rounds,
                job.min_rounds,
                first=first,
                compared=compared & {r.name for r in own},
                fits=lambda entry: _may_fit(named[entry[0]], entry[1], job.constraints),
                doubling=all(r.plan.scenario == "throughput" for r in own),
                enough=lambda entry: _has_tail(named[entry[0]], entry[1]),
                reloads=device == "cpu" and all(r.plan.scenario != "traffic" for r in own),
            )
        )
    return Race(contests, job.budget_s)


def _latency_ms(points: Sequence[Measurement]) -> float:
    """Return the shortest latency among the points; 0 where none is known."""
    return min((p.p50_ms or p.mean_ms for p in points if p.scenario == "latency"), default=0.0)


def _has_tail(runner: ProcessRunner, key: str) -> bool:
    """Say whether a point of latency has the calls that its p99 takes, or would take too long for them."""
    if runner.plan.scenario != "latency":
        return True
    missing = TAIL_CALLS - sum(map(len, runner.calls_ns[key]))
    return missing <= 0 or missing * runner.reached(key).median_ms > MOST_TAIL_S * 1e3


def _may_fit(runner: MeasuredRunner, key: str, limits: Constraints) -> bool:
    """Say whether a point may still keep the constraints, as far as its rounds so far can tell.

    A p99 is not below the median; a throughput is not above that of the fastest round.
    """
    reached = runner.reached(key)
    return (
        (limits.max_memory_mib is None or reached.memory_mib <= limits.max_memory_mib)
        and (limits.max_p99_ms is None or reached.median_ms <= limits.max_p99_ms)
        and (limits.min_throughput_per_s is None or reached.most_per_s >= limits.min_throughput_per_s)
    )


def _plan(scenario: Objective, job: Job) -> MeasurementPlan:
    plan = MeasurementPlan("throughput", job.rounds, min(job.round_s, THROUGHPUT_ROUND_S), THROUGHPUT_WARM_S, least=1)
    if scenario == "traffic":
        plan = replace(plan, scenario="traffic")
    if scenario == "latency":
        plan = MeasurementPlan("latency", job.rounds, job.round_s, min(WARM_S, job.round_s), least=LEAST_CALLS)
    if (limit := job.constraints.max_p99_ms) is None:
        return plan
    return replace(plan, least=p99_calls(min(LEAST_ROUNDS, job.min_rounds, plan.rounds)), limit_ms=limit)


def _known(
    sessions: Mapping[str, MeasuringSession],
    kept: store.Store,
    settings: str,
    keys: Mapping[str, str],
    counts: Mapping[str, int],
) -> tuple[dict[str, tuple[Measurement, ...]], dict[str, Failed]]:
    """Return the points of each id from the sessions that serve, and the failure of each whose newest one failed.

    What an older session found of it then counts no more. One that did not answer wrongly is to be measured again: its
    process died, or memory was short.

    Args:
        counts: at how many points each is to be timed.
    """
    found: dict[str, tuple[Measurement, ...]] = {}
    failed: dict[str, Failed] = {}
    for folder, session in sorted(sessions.items(), key=lambda item: item[1].number):
        if session.settings == settings:
            for entry in session.entries:
                if keys.get(entry.id) != entry.key or entry.asked != counts[entry.id]:
                    continue
                kept.used.add(folder)
                failed.pop(entry.id, None)
                if entry.failed is None:
                    found[entry.id] = (*found.get(entry.id, ()), *entry.points)
                else:
                    found.pop(entry.id, None)
                    failed |= {entry.id: entry.failed} if entry.failed.wrong else {}
    return found, failed


def _finalists(
    results: Sequence[VariantState],
    known: Mapping[str, tuple[Measurement, ...]],
    scenario: Objective,
    source: ModelSource,
    limits: Constraints,
) -> list[str]:
    """Return the ids that a newcomer is measured beside: of each device the best so far, and the baseline."""
    found = []
    for device in dict.fromkeys(r.variant.target.device for r in results):
        pool = [r for r in results if r.variant.target.device == device]
        seen = [replace(candidate(r), measurements=known.get(r.variant.id, ())) for r in pool]
        base = baseline(pool, source, device)
        own = replace(limits, max_gpu_memory_mib=None) if device == "cpu" else limits
        found += finalists(seen, objective=scenario, baseline=base, constraints=own)
    return found
