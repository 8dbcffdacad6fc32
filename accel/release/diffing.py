"""The regression gate: a release against an earlier one, row by row, and whether it may ship.

What ships of both is measured on this machine in one interleaved session: a stored time of another day is compared with
nothing. What cannot be compared blocks as what is worse does, until somebody accepts it with a reason.
"""

import dataclasses
import datetime
import shutil
import statistics
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field

from accel.bench import timed
from accel.bench.checker import Check
from accel.bench.expected import held_to
from accel.bench.in_process import MeasurementPlan, ProcessRunner, TimedShape
from accel.bench.race import Contest, Race, behind, equivalent, faster, slower
from accel.bench.rounds import measure
from accel.bench.stability import Ratio, ratio_interval
from accel.builders import targets
from accel.core import environments, hardware, signing, temporary
from accel.core.accuracy.parity import GATES_DB
from accel.core.errors import AccelError, InputError, OutputError, StageError, UsageError, nearest
from accel.core.feeds import write_feeds
from accel.core.options import Options
from accel.core.processes import Worker
from accel.core.progress import Progress
from accel.core.values import Failed, Measurement, sha256_file, to_json
from accel.release import building
from accel.release.document import FILENAME, Compared, DiffRow, Release, ReleaseEntry, Verdict, read
from accel.release.provenance import BOM, STATEMENT
from accel.report import formats
from accel.triton import manifest
from accel.triton.lint import lint
from accel.triton.manifest import Manifest
from accel.triton.reading import read_initial, read_points
from accel.triton.tune.cost import usd_per_million
from accel.triton.verify import changes

POINT = "opt"
"""The stored shape that both are timed and asked at."""
Scenario = Literal["latency", "throughput"]
SCENARIOS: tuple[Scenario, ...] = ("latency", "throughput")
PAIRS, ROUNDS_AGAIN = 6, 3
"""What differs is held against so many pairs of processes, each further one with so many rounds: two processes with one
and the same file were 15 % apart at calls of 10 us, in every round alike. Source: Kalibera and Jones, "Rigorous
Benchmarking in Reasonable Time", ISMM 2013 (repeat at the highest level that varies).
"""
LEAST_MEMORY_MIB = 32.0
TIMEOUT_S = 600.0


class DiffLimits(Options):
    """How long to measure, at most. A field is a flag of ``accel release diff``."""

    rounds: Annotated[int, Field(ge=6, description="Interleaved rounds at most, for each model and pool")] = 40
    round_s: Annotated[float, Field(ge=0.01, description="Least seconds of each round")] = 0.2
    budget_s: Annotated[float, Field(ge=0.1, description="Seconds of rounds at most")] = 60.0


@dataclass(frozen=True, slots=True)
class Side:
    """What ships of one model on one pool in one of the releases."""

    root: Path
    entry: ReleaseEntry
    manifest: Manifest
    folder: Path

    @classmethod
    def of(cls, release: Path, entry: ReleaseEntry) -> Self:
        """Read a repository of a release.

        Raises:
            InputError: it is damaged.
        """
        root = release / (entry.repository or "")
        read_back = manifest.read(root)
        return cls(root, entry, read_back, manifest.holder(root, read_back)[1])


def diff(
    before: Path, after: Path, *, accept: Mapping[str, str] | None = None, asked: DiffLimits | None = None,
    progress: Progress | None = None,
) -> Compared:  # fmt: skip
    """Compare two releases and write what was found into the later one, if it is not signed yet.

    Args:
        accept: ``MODEL:ROW`` → why that row may ship although it blocks.

    Raises:
        InputError: a folder is not a release, or was changed since it was built.
        UsageError: ``accept`` names no row that blocks.
        OutputError: the later release is signed, and something is to be accepted in it; or it became another one
            meanwhile.
    """
    accept, progress, asked = accept or {}, progress or Progress(), asked or DiffLimits()
    old, new, as_read = _whole(before), _whole(after), sha256_file(after / FILENAME)
    signed = (after / signing.SIGNATURE).exists()
    if signed and accept:
        raise OutputError(f"{after} is signed: nothing can be accepted in it any more", fix="accept first, then sign")
    rows: list[DiffRow] = []
    olds = {(e.model, e.pool): e for e in old.entries if e.repository}
    news = {(e.model, e.pool): e for e in new.entries}
    for key, entry in news.items():
        if key not in olds and entry.repository:
            rows.append(_row(entry, "release", ("—", entry.chosen or ""), "new"))
    for key, entry in olds.items():
        progress.stage(f"{entry.model} on {entry.pool}")
        rows += _compare(before, after, entry, news.get(key), new.margins, asked, progress)
    names = {f"{row.model}:{row.what}" for row in rows if row.blocks}
    for name in accept:
        if name not in names:
            known = ", ".join(sorted(names)) or "nothing blocks"
            raise UsageError(f"--accept {name!r}: no such row blocks{nearest(name, names)}", fix=known)
    rows = [dataclasses.replace(r, accepted=accept.get(f"{r.model}:{r.what}")) if r.blocks else r for r in rows]
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
    compared = Compared(before=old.version, hardware=hardware.detect().id, created=now, rows=tuple(rows))
    if not signed:
        if sha256_file(after / FILENAME) != as_read or (after / signing.SIGNATURE).exists():
            raise OutputError(f"{after} was built or signed anew while it was compared", fix="compare it again")
        _record(after, dataclasses.replace(new, compared=compared, compare_again=None))
    return compared


def blocking(compared: Compared) -> list[DiffRow]:
    """Return the rows for which the release may not ship."""
    return [row for row in compared.rows if row.blocks and row.accepted is None]


def _whole(folder: Path) -> Release:
    release = read(folder)
    wrong = next(changes(folder, release.files, {FILENAME, signing.SIGNATURE}), None)
    if wrong is not None:
        why = f"{folder} is not as it was built: {wrong.file}: {wrong.why}"
        raise InputError(why, fix="build it again; accel release verify shows all")
    return release


def _record(folder: Path, release: Release) -> None:
    made = {building.PAGE, building.REPORT, BOM, STATEMENT, FILENAME}
    files: building.Files = {f.path: folder / f.path for f in release.files if f.path not in made}
    building.write(release, folder, files)


def _row(entry: ReleaseEntry, what: str, sides: tuple[str, str], verdict: Verdict, reason: str = "") -> DiffRow:
    blocks = verdict in ("worse", "changed", "not comparable")
    return DiffRow(
        model=entry.model,
        pool=entry.pool,
        what=what,
        before=sides[0],
        after=sides[1],
        verdict=verdict,
        blocks=blocks,
        reason=reason,
    )


def _compare(
    before: Path,
    after: Path,
    entry: ReleaseEntry,
    other: ReleaseEntry | None,
    margins: Mapping[str, float],
    asked: DiffLimits,
    progress: Progress,
) -> Iterator[DiffRow]:
    """Yield the rows of one model on one pool that was ready in the earlier release."""
    if other is None or other.repository is None:
        why = f"{other.held}: {other.reason}" if other else "it is in no pool of the later release"
        yield _row(entry, "release", (entry.chosen or "", "—"), "worse", why)
        return
    try:
        old, new = Side.of(before, entry), Side.of(after, other)
    except AccelError as error:
        yield _row(entry, "release", (entry.chosen or "", other.chosen or ""), "not comparable", error.message)
        return
    named = [f"version {side.manifest.version}, {contract(side.manifest)}" for side in (old, new)]
    yield _row(entry, "contract", (named[0], named[1]), "same" if named[0] == named[1] else "changed")
    yield from _accuracy(old, new, margins)
    was, now = old.manifest.artifact.bytes, new.manifest.artifact.bytes
    larger: Verdict = "worse" if now > was * (1 + margins["size"]) else "better" if now < was else "same"
    yield _row(entry, "size", (formats.size(was), formats.size(now)), larger)
    yield _lint(old, new)
    if named[0] != named[1]:
        return  # what one takes the other does not
    if _executed(old.manifest) == _executed(new.manifest):
        yield from (_row(entry, what, ("", ""), "same", "the same bytes") for what in ("answers", *_timed(new)))
        if "throughput" in _timed(new):
            yield from _cost(old, new, None, (1.0, 1.0, 1.0), margins)
        return
    here = hardware.detect().id
    if elsewhere := {entry.hardware, other.hardware} - {here}:
        why = f"it was built for {' and '.join(sorted(map(str, elsewhere)))}, and this is {here}"
        yield from (
            _row(entry, what, ("", ""), "not comparable", why) for what in ("answers", *_timed(new), *_priced(old, new))
        )
        return
    yield from _measured(old, new, margins, asked, progress)


def _executed(made: Manifest) -> Any:
    """Return all that decides what an artifact computes: targets may write the same files and open them otherwise."""
    artifact = made.artifact
    files = [(f.path, f.sha256) for f in artifact.files]
    return to_json([artifact.variant, artifact.built.precision, artifact.built.entry, files])


def contract(made: Manifest) -> str:
    """Return what clients rely on beside the version, as text."""
    tensors = [" ".join((s.name, s.dtype, "×".join(map(str, s.dims)))) for s in (*made.inputs, *made.outputs)]
    return f"{made.models[0]}, batch {made.max_batch_size}: {'; '.join(tensors)}"


def _accuracy(old: Side, new: Side, margins: Mapping[str, float]) -> Iterator[DiffRow]:
    """Yield a row: the figures that both gates have."""
    was, now = old.manifest.parity, new.manifest.parity
    if was is None or now is None:
        yield _row(new.entry, "accuracy", ("", ""), "not comparable", "it was not held against a gate")
        return
    names = sorted(was.found.keys() & now.found.keys())
    lost = sorted(n for n in was.found.keys() - now.found.keys() if not n.endswith("_db") or not names)
    if lost:
        why = f"the later release was not held against {', '.join(map(formats.metric_name, lost))}"
        yield _row(new.entry, "accuracy", ("", ""), "not comparable", why)
        return
    worse = [] if now.passed else ["gate"]
    better = []
    for name in names:
        gain = _figure(name, now.found[name]) - _figure(name, was.found[name])
        margin = margins["accuracy_db" if name.endswith("_db") else "accuracy"]
        worse += [name] * (gain < -margin)
        better += [name] * (gain > margin)
    told = [", ".join(f"{formats.metric_name(n)} {formats.metric(n, p.found[n])}" for n in names) for p in (was, now)]
    verdict: Verdict = "worse" if worse else "better" if better else "same"
    yield _row(new.entry, "accuracy", (told[0], told[1]), verdict, ", ".join(worse))


def _figure(name: str, found: float | None) -> float:
    """Return a figure as it is compared: beyond the gate of FP32 only the order of summation differs; None is exact."""
    if not name.endswith("_db"):
        return 1.0 if found is None else found
    return GATES_DB["fp32"] if found is None else min(found, GATES_DB["fp32"])


def _lint(old: Side, new: Side) -> DiffRow:
    """Return a row: errors that the earlier repository did not have, each held against its own Triton release."""
    found = [
        {(f.field, f.why): f for f in lint(side.root, side.manifest.release) if f.severity == "error"}
        for side in (old, new)
    ]
    fresh = [f"{f.file}: {f.why}" for key, f in found[1].items() if key not in found[0]]
    counts = f"{len(found[0])} errors", f"{len(found[1])} errors"
    return _row(new.entry, "lint", counts, "worse" if fresh else "same", "; ".join(fresh))


def _measured(
    old: Side, new: Side, margins: Mapping[str, float], asked: DiffLimits, progress: Progress
) -> Iterator[DiffRow]:
    """Yield the rows that take both artifacts in processes of their own."""
    work = temporary.folder("diff-")
    try:
        stored = read_points(old.root, old.manifest)
        point = stored.get(POINT) or next(iter(stored.values()))  # of a stateful model the first step
        inputs = {**point.inputs, **read_initial(old.root, old.manifest)}
        feeds, expected = work / "feeds.npz", work / "expected.npz"
        write_feeds(feeds, {POINT: inputs})
        write_feeds(expected, {POINT: point.outputs})
        shape = TimedShape(POINT, 1, {name: value.shape for name, value in inputs.items()})
        yield _answers(old, new, feeds, expected, work)

        def side_by_side(scenario: Scenario, rounds: int) -> tuple[Measurement, Measurement]:
            """Measure both in fresh processes; raise StageError where one does not run here."""
            plan = MeasurementPlan(scenario, rounds, asked.round_s, warm_s=min(1.0, 3 * asked.round_s))
            sides = {"old": old, "new": new}
            runners = [_runner(name, side, shape, plan, feeds, work) for name, side in sides.items()]
            contest = Contest(tuple((name, POINT) for name in sides), frozenset(sides), rounds)
            found = measure(
                runners, Race([contest], asked.budget_s), stage="measure", opening="loading", turn="round",
                raw_dir=work / "raw", raw_name="{}.npz", progress=progress.variant,
            )  # fmt: skip
            was, now = found["old"], found["new"]
            if isinstance(was, Failed) or isinstance(now, Failed):
                failed = {name: result.cause for name, result in found.items() if isinstance(result, Failed)}
                why = "; ".join(f"the {name} artifact does not run here: {cause}" for name, cause in failed.items())
                raise StageError(why)
            return was[0], now[0]

        for scenario in SCENARIOS:
            if scenario in _timed(new):
                yield from _raced(scenario, side_by_side, old, new, margins, asked.rounds)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _raced(
    scenario: Scenario,
    side_by_side: Callable[[Scenario, int], tuple[Measurement, Measurement]],
    old: Side,
    new: Side,
    margins: Mapping[str, float],
    rounds: int,
) -> Iterator[DiffRow]:
    """Yield the rows of one scenario: time and memory, or throughput and what it costs."""
    whats = [scenario, *_priced(old, new)] if scenario == "throughput" else [scenario, "memory"]
    try:
        was, now = side_by_side(scenario, rounds)
        ratio = ratio_interval(now.rounds_ms, was.rounds_ms)
        counted = f"{len(now.rounds_ms)} interleaved rounds"
        sides = now.rounds_ms, was.rounds_ms
        apart = slower(ratio) or faster(ratio) or behind(*sides) or behind(*reversed(sides))
        if apart and not equivalent(ratio):
            again = [side_by_side(scenario, ROUNDS_AGAIN) for _ in range(PAIRS - 1)]
            ratios = [ratio[0], *(ratio_interval(b.rounds_ms, a.rounds_ms)[0] for a, b in again)]
            ratio, counted = (statistics.median(ratios), min(ratios), max(ratios)), f"{PAIRS} pairs of processes"
    except StageError as error:
        yield from (_row(new.entry, what, ("", ""), "not comparable", error.message) for what in whats)
        return
    yield _faster(new.entry, (was, now), ratio, counted, margins)
    if "memory" in whats:
        yield _memory(new.entry, was, now, margins)
    else:
        yield from _cost(old, new, (was, now), ratio, margins)


def _timed(new: Side) -> tuple[str, ...]:
    """Return the rows that are measured: throughput where the later release chose by it."""
    more = any(decision.objective == "throughput" for decision in new.entry.decisions)
    return ("latency", "memory", *(["throughput"] if more else []))


def _priced(old: Side, new: Side) -> tuple[str, ...]:
    """Return the row of what is computed with a price: none where there is none, or throughput is not measured."""
    known = old.entry.usd_per_hour is not None or new.entry.usd_per_hour is not None
    return ("cost",) if known and "throughput" in _timed(new) else ()


def _runner(name: str, side: Side, shape: TimedShape, plan: MeasurementPlan, feeds: Path, work: Path) -> ProcessRunner:
    artifact = side.manifest.artifact
    return ProcessRunner(
        name=name,
        artifact=artifact,
        folder=side.folder,
        python=_python(side),
        log=work / f"{name}.log",
        timed_shapes=(shape,),
        precision=artifact.built.precision,
        plan=plan,
        feeds=feeds,
        threads=hardware.cpu_threads(),
        timeout_s=TIMEOUT_S,
    )


def _answers(old: Side, new: Side, feeds: Path, expected: Path, work: Path) -> DiffRow:
    """Return a row: what the new artifact answers to the old inputs, held to its own gate around the old reference."""
    proof, artifact = new.manifest.parity, new.manifest.artifact
    if proof is None:
        return _row(new.entry, "answers", ("", ""), "not comparable", "it was not held against a gate")
    check = Check(expected, old.manifest.outputs, held_to(proof), old.manifest.detections)
    threads = hardware.cpu_threads()
    try:
        with Worker(work / "answers.log", threads=threads, timeout_s=TIMEOUT_S, python=_python(new)) as worker:
            worker.call(timed.open_timed, artifact, new.folder, threads, "latency", feeds, (POINT,), check)
            reasons = worker.call(timed.wrong)
    except AccelError as error:
        return _row(new.entry, "answers", ("", ""), "not comparable", error.message)
    told = "the reference's", "others" if reasons else "the reference's"
    return _row(new.entry, "answers", told, "changed" if reasons else "same", "; ".join(reasons))


def _python(side: Side) -> Path:
    target = side.manifest.artifact.variant.target
    return environments.python(targets.discover()[target.name].environment(target))


def _faster(
    entry: ReleaseEntry,
    sides: tuple[Measurement, Measurement],
    ratio: Ratio,
    counted: str,
    margins: Mapping[str, float],
) -> DiffRow:
    """Return the row of a call's time, or of the calls at full load: worse where longer for certain and by a margin.

    Args:
        ratio: the new one's time over the old one's.
        counted: of what the ratio is made.
    """
    old, new = sides
    told = f"{ratio[0]:.3f}× [{ratio[1]:.3f}, {ratio[2]:.3f}] the time, in {counted}"
    if new.scenario == "throughput":
        shown = f"{formats.figures(old.throughput_per_s)} per s", f"{formats.figures(new.throughput_per_s)} per s"
    else:
        shown = f"{formats.figures(old.mean_ms)} ms", f"{formats.figures(new.mean_ms)} ms"
    return _row(entry, new.scenario, shown, _less_is_better(ratio, margins["latency"]), told)


def _less_is_better(ratio: Ratio, margin: float) -> Verdict:
    """Return the verdict on new over old with its interval: worse where more for certain, and by the margin."""
    if slower(ratio) and ratio[0] > 1 + margin:
        return "worse"
    return "better" if faster(ratio) and not equivalent(ratio) else "same"


def _cost(
    old: Side,
    new: Side,
    measured: tuple[Measurement, Measurement] | None,
    time: Ratio,
    margins: Mapping[str, float],
) -> Iterator[DiffRow]:
    """Yield the row of what inferences cost at full load: worse where dearer for certain, and by a margin.

    Args:
        measured: both at full load; None for the same bytes, which cost as their machine does.
        time: the new one's over the old one's.
    """
    was, now = old.entry.usd_per_hour, new.entry.usd_per_hour
    rates = (measured[0].throughput_per_s, measured[1].throughput_per_s) if measured else (None, None)
    told = _usd(was, rates[0]), _usd(now, rates[1])
    if was is None and now is None:
        return
    if now is None:
        why = f"the release has no price of {new.entry.hardware}: prices, in its release.yaml"
        yield _row(new.entry, "cost", told, "not comparable", why)
    elif was is None:
        yield _row(new.entry, "cost", told, "new", f"the release before has no price of {old.entry.hardware}")
    elif old.entry.hardware != new.entry.hardware:  # what it carried there cannot be measured here
        yield _row(new.entry, "cost", ("", told[1]), "new", f"the release before was made for {old.entry.hardware}")
    else:
        ratio = (time[0] * now / was, time[1] * now / was, time[2] * now / was)
        why = f"{ratio[0]:.3f}× [{ratio[1]:.3f}, {ratio[2]:.3f}] the cost, the hour {now / was:.3f}×"
        why = why if measured else f"the same bytes, the hour {now / was:.3f}×"
        yield _row(new.entry, "cost", told, _less_is_better(ratio, margins["cost"]), why)


def _usd(usd_per_hour: float | None, per_s: float | None) -> str:
    if usd_per_hour is None:
        return "—"
    if per_s is None:
        return f"{formats.figures(usd_per_hour)} USD an hour"
    return f"{formats.figures(usd_per_million(usd_per_hour, per_s))} USD per million"


def _memory(entry: ReleaseEntry, old: Measurement, new: Measurement, margins: Mapping[str, float]) -> DiffRow:
    limit = old.peak_rss_mib * (1 + margins["memory"])
    more = new.peak_rss_mib > max(limit, old.peak_rss_mib + LEAST_MEMORY_MIB)
    peaks = formats.mebibytes(old.peak_rss_mib), formats.mebibytes(new.peak_rss_mib)
    return _row(entry, "memory", peaks, "worse" if more else "same")
