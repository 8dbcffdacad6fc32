"""What a run asks of a worker process: typed values in and out, which have a JSON form.

Arrays are ``.npz`` files by path. Each task imports what it needs itself, so that a process in a foreign environment
loads only its own runtime; a source that one task loaded stays loaded for the next of the same process.
"""

import contextlib
import math
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np

from accel import exporters
from accel.builders import ConvertingBuilder, targets
from accel.core import temporary
from accel.core.accuracy.parity import FEW_ITEMS, KERNELS_ROOM_DB, NOISE_ROOM_DB, Noise, is_sample
from accel.core.errors import SampleError, StageError
from accel.core.feeds import Feed, feed_names, fit_inputs, fixed_parts, read_feeds, write_feeds
from accel.core.processing import Pipeline
from accel.core.values import (
    Artifact,
    BuildRequest,
    Built,
    ModelSource,
    OnnxModel,
    Parity,
    PrecisionConverted,
    Repository,
    SampleSet,
    Skipped,
    file_refs,
)
from accel.exporters.axes import batch_axis, cut, hidden_axes, sizes_of
from accel.exporters.check import Point, check_onnx, lost_axes, read_checked, read_onnx
from accel.exporters.request import SourceRequest
from accel.exporters.source_model import IN_FLOAT64, IN_MOVED_INPUTS, SourceModel, another_way, with_moved_inputs
from accel.exporters.streams import Run, Streams, play
from accel.graph import Level
from accel.graph.arithmetic import Arithmetic
from accel.graph.narrow import narrow_file, prove_int32_interior
from accel.run.narrowed import NarrowedModel
from accel.triton.request import ClientModel, EmitRequest


@dataclass(frozen=True, slots=True)
class Described:
    """A source and its samples."""

    source: ModelSource
    samples: SampleSet

    @property
    def accuracy(self) -> Literal["proved", "unproved"]:
        """Whether agreement with the reference says anything: real weights met enough real, distinct samples."""
        return self.source.accuracy if self.samples.gate_items >= FEW_ITEMS else "unproved"

    @property
    def notice(self) -> str | None:
        """One line the user must see, or None."""
        lines = [self.source.notice] if self.source.notice else []
        if self.source.samples != "random" and (items := self.samples.gate_items) < FEW_ITEMS:
            lines.append(
                f"only {items} distinct sample{'s' * (items != 1)} to compare on: outputs are held to a tolerance, and "
                f"accuracy is unproved; give at least {FEW_ITEMS * 3 // 2} distinct ones with --samples (every third "
                "calibrates)"
                + (f", and {self.source.gate[0]} is not asked" if self.source.metric and self.source.gate else "")
            )
        return "; ".join(lines) or None


@dataclass(frozen=True, slots=True)
class Ran:
    """On how many feeds a variant ran, of how many that it can take, and what it really computed in."""

    feeds: int
    of: int
    precision: str


@dataclass(frozen=True, slots=True)
class ReferenceCost:
    """How many feeds a source answered, and the CPU time that took."""

    feeds: int
    cpu_s: float


@dataclass(frozen=True, slots=True)
class Emitted:
    """A repository as ``triton`` emitted it, in the stage's folder, or why the release cannot serve it."""

    repository: Repository | None
    reason: str | None = None


def source_of(request: SourceRequest) -> ModelSource:
    """Load a source and say what it is, without samples."""
    return exporters.describe(request)


def describe(request: SourceRequest, out_dir: Path) -> Described:
    """Load a source, find its inputs and outputs, and write its sample files into ``out_dir``."""
    from accel.exporters import samples

    source = exporters.describe(request)
    run = _load(source).run if source.states else None
    return Described(source, samples.make_samples(source, request, out_dir, run=run))


def reference(described: Described, samples_folder: Path, out: Path) -> ReferenceCost:
    """Run the source itself, FP32 on CPU, over all feeds; write its answers to ``out``.

    Coverage feeds get as long as samples and shapes took, and at least ``COVERAGE_S``, and what they are answered
    takes at most ``COVERAGE_BYTES``, but for those that are timed; one that the source refuses, or has no number for,
    is left out.

    Raises:
        SampleError: the source refuses a sample, an output holds nothing at every sample, requests of the traffic are
            answered otherwise in a group than alone, or the task metric finds nothing right in what the source answers.
        InputError: the metric raised, or gave no number.
    """
    from accel.exporters import coverage, samples, traffic

    model = _load(described.source)
    streams = streams_of(described.samples, samples_folder)
    played: Feeds = {name: answer for name, _, answer in steps_of(described.source, model.run, streams)}
    begin, cpu = time.monotonic(), time.process_time()
    feeds = gate_feeds(described.samples, samples_folder)
    found: Feeds = {}
    for name, feed in feeds.items():
        try:
            found[name] = model.run(feed)
        except StageError as error:
            raise samples.refused(feed, described.source, model.run, error) from error
    _check_answers(described.source, found)
    _check_metric(described, samples_folder, feeds, found)
    deadline = time.monotonic() + max(COVERAGE_S, time.monotonic() - begin)
    more, room = _coverage(described.samples, samples_folder), COVERAGE_BYTES
    for name, feed in more.items():
        if coverage.needed(name) or (time.monotonic() < deadline and room > 0):
            with contextlib.suppress(StageError):
                answer = model.run(feed)
                found |= {name: answer} if coverage.answered(name, answer) else {}
                room -= 0 if coverage.needed(name) else sum(value.nbytes for value in answer.values())
    if (wrong := traffic.check(described.source, more, found, model.run)) is not None:
        raise SampleError(
            f"{described.source.name} answers requests otherwise when they are grouped by length than alone: {wrong}",
            fix="its mask does not hide padding, or rows depend on each other: measure without the objective traffic",
        )
    write_feeds(out, found | played)
    return ReferenceCost(len(found), time.process_time() - cpu)


def _check_answers(source: ModelSource, found: "Feeds") -> None:
    """Refuse samples that show nothing of an output whose size follows from values: every variant would hold them."""
    if source.samples == "random":
        return  # nothing is called proved
    varying = [s.name for s in source.outputs if any(isinstance(dim, str) for dim in s.dims)]
    if empty := [name for name in varying if not any(answer[name].size for answer in found.values() if name in answer)]:
        raise SampleError(
            f"{source.name} answers every sample with nothing in {', '.join(map(repr, empty))}: no variant could be "
            "held against that",
            fix="give --samples in which the model finds something (values as it was trained on), or a model without "
            "that output",
        )


def _check_metric(described: Described, samples_folder: Path, feeds: "Feeds", found: "Feeds") -> None:
    """Score the source's own answers by labels, so that a metric that cannot judge ends the run before it builds."""
    from accel.exporters import verdict

    source, labels = described.source, verdict.labels_of(described.samples, samples_folder, "gate")
    if source.gate is None or (labels is None and source.metric is None):
        return
    samples = {name: answer for name, answer in found.items() if is_sample(name)}
    held = verdict.compare(source, feeds, samples, samples, {source.gate[0]: 0.0}, labels=labels)
    own = held.scores.get(source.gate[0], (math.nan, math.nan))[1]
    if not own > 0:
        raise SampleError(
            f"{source.gate[0]} of {source.name} itself is {own:g} over {described.samples.gate_items} samples: nothing "
            "that a variant could keep",
            fix="the labels are not in the model's own order or form, or the metric is one where lower is better",
        )


def noise(
    described: Described, samples_folder: Path, reference: Path, missed: tuple[str, ...], least: float
) -> Noise | None:
    """Hold the source against itself, computed in another way: what no variant of it can be asked to undercut.

    At coverage feeds the farther of float64 and moved inputs counts: where all values are alike, a norm makes of the
    last bits of its input what it makes of values elsewhere. The largest shape takes longer than all samples: it is
    asked where it was missed, or where the others leave a gate within reach of the noise.

    Args:
        missed: checked shapes and coverage feeds at which that has to be known, beside the samples.
        least: the highest gate in dB that is asked of a variant.

    Returns:
        None where there is no other way to compute it.
    """
    from accel.exporters import verdict
    from accel.exporters.from_torch import exportable_layers

    feeds = dict(list(gate_feeds(described.samples, samples_folder).items())[-NOISE_FEEDS:])  # checked shapes come last
    model = _load(described.source)
    way = another_way(model, next(iter(feeds.values())), lend=exportable_layers)
    if way is None:
        return None
    how, answer = way
    coverage = {name: feed for name, feed in _coverage(described.samples, samples_folder).items() if name in missed}
    every = feeds | coverage
    found = {name: answer(feed) for name, feed in every.items() if name != LARGEST or name in missed}
    truth = read_feeds(reference)
    room_db = NOISE_ROOM_DB if how == IN_FLOAT64 else KERNELS_ROOM_DB
    if how == IN_FLOAT64 and coverage and (moved := with_moved_inputs(model)) is not None:
        how = f"{how} or {IN_MOVED_INPUTS}"
        for name, feed in coverage.items():
            other = moved(feed)
            found[name] = other if _error(truth[name], other) > _error(truth[name], found[name]) else found[name]

    def measured() -> Noise:
        return Noise(how, verdict.compare(described.source, every, truth, found, {}).outputs, room_db)

    noise = measured()
    if LARGEST in every and LARGEST not in found and not noise.far_above(least):
        found[LARGEST] = answer(every[LARGEST])
        noise = measured()
    return noise


def _error(truth: Feed, found: Feed) -> float:
    return sum(float(np.square(found[n] - v.astype(np.float64)).sum()) for n, v in truth.items() if v.dtype.kind == "f")


def export(source: ModelSource, out_dir: Path, opset: int) -> tuple[str, ...]:
    """Export the source to ONNX and return the axes that came out as sizes; ``check`` holds the file against it."""
    return lost_axes(source, exporters.write_onnx(_load(source), out_dir, opset=opset))


def read_exported(folder: Path) -> OnnxModel:
    """Describe what ``export`` wrote into ``folder``."""
    return read_checked(folder / exporters.ONNX_FILE)


def check(described: Described, samples_folder: Path, reference: Path, onnx: OnnxModel, folder: Path) -> OnnxModel:
    """Check what ``export`` wrote into ``folder`` against what the source answered at the checked shapes.

    Args:
        reference: the answers that the task ``reference`` wrote.
        onnx: what the file declares.
    """
    feeds = read_feeds(samples_folder / described.samples.shapes.path)
    answers = read_feeds(reference, only=feeds.keys())
    points = [Point(name, feed, answers[name]) for name, feed in feeds.items()]
    check_onnx(described.source, onnx, folder / exporters.ONNX_FILE, points)
    return onnx


def narrow(
    source: ModelSource,
    onnx: OnnxModel,
    folder: Path,
    out_dir: Path,
    level: Level,
    through_float: tuple[str, ...],
) -> NarrowedModel:
    """Narrow the exported model's integers, and say which 64-bit values inside are not proved to fit int32.

    Args:
        folder: where the files of ``onnx`` lie.
        through_float: operators that some runtime computes in float even for integers.
    """
    file, out = folder / onnx.file.path, out_dir / onnx.file.path
    ranges = {s.name: s.range for s in source.inputs if s.range is not None}
    report = narrow_file(file, out, level=level, ranges=ranges, shapes=source.profile)
    unproved = prove_int32_interior(file, ranges=ranges, shapes=source.profile, through_float=frozenset(through_float))
    values = tuple(u.reason for u in unproved if not u.through_float)
    inexact = tuple((u.op, u.reason) for u in unproved if u.through_float)
    return NarrowedModel(read_onnx(out), report, values, inexact)


def arithmetic(
    described: Described, samples_folder: Path, onnx: OnnxModel, folder: Path, out_dir: Path, threads: int
) -> Arithmetic:
    """Find out what an FP32 build of the exported model takes at least on this machine, at the typical shape.

    Args:
        folder: where the files of ``onnx`` lie.
        out_dir: folder for a copy of the file, which is removed.
    """
    from accel.graph import arithmetic

    source = described.source
    stored = read_feeds(samples_folder / described.samples.shapes.path, only={"opt"})["opt"]
    feed = fit_inputs(stored, source.inputs)
    batch = next(iter(feed.values())).shape[0] if batch_axis(source) else 1
    return arithmetic.measure(folder / onnx.file.path, feed, batch=batch, scratch=out_dir, threads=threads)


def prepare(request: BuildRequest, out_dir: Path) -> PrecisionConverted:
    """Type the ONNX file of one variant."""
    variant = request.variant
    builder = targets.discover()[variant.target.name]
    assert isinstance(builder, ConvertingBuilder)
    return builder.prepare(request, builder.options(**variant.options), out_dir)


def build(request: BuildRequest, out_dir: Path, parent_sha256: str) -> Artifact:
    """Build one variant into an empty folder.

    Args:
        parent_sha256: hash of what it is built from.
    """
    variant = request.variant
    builder = targets.discover()[variant.target.name]
    options = builder.options(**variant.options)
    start = time.monotonic()
    built = builder.build(request, options, out_dir)
    if not isinstance(built, Built):
        raise StageError(
            f"{type(builder).__qualname__}.build returned {built!r} for {variant.target}: expected a Built"
        )
    return Artifact(variant, file_refs(out_dir), parent_sha256, built, time.monotonic() - start)


def precision_converted_answers(
    target: str,
    converted: PrecisionConverted,
    folder: Path,
    described: Described,
    samples_folder: Path,
    out: Path,
    threads: int,
    reference: Path | None = None,
    first: bool = False,
) -> Ran:
    """Run the precision-converted ONNX file of a target over the feeds on the CPU.

    Args:
        folder: where the converted files lie.
        out: file for the answers.
        reference / first: as for ``answers``.
    """
    from accel.exporters import coverage

    builder = targets.discover()[target]
    assert isinstance(builder, ConvertingBuilder)
    session = builder.open_precision_converted(converted, folder, source=described.source, threads=threads)
    with contextlib.closing(session):
        precision = builder.targets[target].precision
        feeds = proof_feeds(described.samples, samples_folder, reference, precision)
        asked = coverage.first(feeds, precision, batched=batch_axis(described.source) is not None) if first else feeds
        write_feeds(out, {name: session.run(feed) for name, feed in asked.items()})
        return Ran(len(asked), len(feeds), precision)


def answers(
    artifact: Artifact,
    folder: Path,
    described: Described,
    samples_folder: Path,
    out: Path,
    threads: int,
    reference: Path | None = None,
    first: bool = False,
) -> Ran:
    """Run a built variant over all feeds it can take, and say in what precision it really ran.

    Args:
        folder: where the artifact's files lie.
        out: file for the answers.
        reference: the source's answers: what it did not answer is not asked for; None asks for all.
        first: ask only what a first proof does (``coverage.first``).
    """
    from accel.exporters import coverage

    variant, source = artifact.variant, described.source
    builder = targets.discover()[variant.target.name]
    precision = builder.targets[variant.target.name].precision
    feeds = proof_feeds(described.samples, samples_folder, reference, precision)
    session = builder.open(artifact, folder, threads=threads, mode="latency")
    with contextlib.closing(session):
        batch, batched = None, batch_axis(source) is not None
        if variant.static:
            fixed = {name: shape.opt for name, shape in variant.profile.items()}
            feeds = {name: feed for name, feed in feeds.items() if holds(source, fixed, feed)}
            batch = fixed[source.inputs[0].name][0] if batched else None
        asked = coverage.first(feeds, precision, batched=batched, batch=batch) if first else feeds
        if variant.static:
            results = {name: _run_fixed(session.run, feed, source, fixed) for name, feed in asked.items()}
        else:
            results = {name: session.run(feed) for name, feed in asked.items()}
        if variant.static and _different(feeds[name] for name in results) < min(2, described.samples.gate_items):
            fits = "one gate sample alone fits" if results else "no gate sample fits"
            raise StageError(
                f"{fits} the fixed shape of this build: that would prove nothing",
                fix="give samples of that shape with --samples, or leave --static out",
            )
        write_feeds(out, results)
        return Ran(len(results), len(feeds), session.precision())


def compare(
    described: Described,
    samples_folder: Path,
    reference: Path,
    answers: Path,
    gate: Mapping[str, float],
    noise: Noise | None = None,
) -> Parity:
    """Compare answers with the reference and hold them against the gate; the verdict says what was covered.

    Args:
        reference / answers: files of the two.
        gate: metric → least value that passes.
        noise: the source's own, where it was measured.
    """
    from accel.exporters import coverage, verdict

    feeds, known = proof_feeds(described.samples, samples_folder), set(feed_names(reference))
    found = {name: answer for name, answer in read_feeds(answers).items() if name in known}
    labels = verdict.labels_of(described.samples, samples_folder, "gate")
    held = verdict.compare(described.source, feeds, read_feeds(reference, only=found), found, gate, noise, labels)
    said = coverage.covered(described.source, {name: feeds[name] for name in found}, len(feeds.keys() - known))
    return replace(held, notes=(*held.notes, said))


def emit(
    artifact: Artifact,
    folder: Path,
    source: ModelSource,
    request: EmitRequest,
    *,
    root: Path,
    samples: Path,
    reference: Path,
    streams: Path | None,
    pipeline: Pipeline | None,
) -> Emitted:
    """Write the Triton repository of a built variant.

    Args:
        folder: where the artifact's files lie.
        samples / reference: inputs and outputs at the checked shapes.
        streams: what clients of a stateful model send; answers to it are in ``reference``, too.
        pipeline: the steps of an ensemble around the model, or None.
    """
    from accel.triton import ensemble, repository

    with contextlib.ExitStack() as held:
        initial: Feed = {}
        if streams is not None:
            scratch = Path(held.enter_context(tempfile.TemporaryDirectory(prefix="steps-", dir=temporary.root())))
            given = Streams.of(read_feeds(streams))
            steps = {str(k): step for k, step in enumerate(given.steps[0][:STORED_STEPS])}
            truth = read_feeds(reference, only=[f"s0.{k}" for k in steps])
            initial, samples, reference = given.initial, scratch / "samples.npz", scratch / "reference.npz"
            write_feeds(samples, steps)
            write_feeds(reference, {k: truth[f"s0.{k}"] for k in steps})
        emitted = repository.emit(
            artifact,
            folder,
            model=ClientModel.of(source),
            request=request,
            builder=targets.discover()[artifact.variant.target.name],
            root=root,
            run_dir=root.parent,
            samples=samples,
            reference=reference,
            initial=initial,
        )
    if isinstance(emitted, Skipped):
        return Emitted(None, emitted.reason)
    if pipeline is not None:
        added = ensemble.add(root, pipeline)
        emitted = replace(emitted, models=(*emitted.models, *added))
    return Emitted(emitted)


COVERAGE_S = 10.0
"""Least time that the source gets for coverage feeds."""
COVERAGE_BYTES = 2 << 30
"""Memory for answers to coverage feeds: a language model answers one of them with hundreds of MiB."""
NOISE_FEEDS = 20
"""Feeds on which the source is held against itself: some samples, and the checked shapes."""
LARGEST = "max"
"""The checked shape that the source computes in another way last."""
STORED_STEPS = 64
"""Steps of a stream that a repository keeps, to be held against a server's answers."""

_loaded: list[SourceModel] = []


def _load(source: ModelSource) -> SourceModel:
    """Load a source, or return it where an earlier task of this process loaded it."""
    if not _loaded or _loaded[0].source != source:
        _loaded[:] = [exporters.load(source)]
    return _loaded[0]


Feeds = dict[str, dict[str, np.ndarray]]


def gate_feeds(samples: SampleSet, folder: Path) -> Feeds:
    """Return the gate's samples and the checked shapes."""
    return read_feeds(folder / samples.gate.path) | read_feeds(folder / samples.shapes.path)


def streams_of(samples: SampleSet, folder: Path) -> Streams:
    """Return the streams of a stateful model; of any other there are none."""
    return Streams.of(read_feeds(folder / samples.streams.path)) if samples.streams else Streams((), {})


def steps_of(source: ModelSource, run: Run, streams: Streams) -> Iterator[tuple[str, Feed, dict[str, np.ndarray]]]:
    """Run a stateful model over its streams; yield each step's name (``s0.12``), feed and outputs."""
    for number, stream in enumerate(streams.steps):
        for step, (feed, outputs) in enumerate(play(source, run, stream, streams.initial)):
            yield f"s{number}.{step}", feed, dict(outputs)


def _coverage(samples: SampleSet, folder: Path) -> Feeds:
    return read_feeds(folder / samples.coverage.path) if samples.coverage else {}


def proof_feeds(samples: SampleSet, folder: Path, reference: Path | None = None, precision: str = "") -> Feeds:
    """Return all feeds on which variants are compared.

    Args:
        reference: leaves out what the source did not answer.
        precision: leaves out what is not asked of it.
    """
    from accel.exporters import coverage

    feeds = gate_feeds(samples, folder) | _coverage(samples, folder)
    if reference is not None:
        answered = set(feed_names(reference))
        feeds = {name: feed for name, feed in feeds.items() if name in answered}
    return {name: feed for name, feed in feeds.items() if coverage.asked(name, precision)}


def _different(feeds: Iterable[Feed]) -> int:
    """Count the different items of feeds, by their leading axis."""
    rows = (tuple(value[i : i + 1].tobytes() for value in feed.values()) for feed in feeds for i in _rows(feed))
    return len(set(rows))


def _rows(feed: Feed) -> range:
    return range(min((value.shape[0] for value in feed.values() if value.ndim), default=1))


def holds(source: ModelSource, fixed: Mapping[str, tuple[int, ...]], feed: Feed) -> bool:
    """Say whether a feed can be brought to a fixed shape: items in groups, axes that the mask hides padded."""
    if all(feed[spec.name].shape == fixed[spec.name] for spec in source.inputs):
        return True
    if not source.batched or any(spec.dims[:1] != ("batch",) for spec in source.outputs):
        return False
    hidden = hidden_axes(source)
    return all(
        size <= limit if dim in hidden else size == limit
        for spec in source.inputs
        for dim, size, limit in zip(spec.dims[1:], feed[spec.name].shape[1:], fixed[spec.name][1:], strict=True)
    )


def _run_fixed(
    run: Callable[[Feed], dict[str, np.ndarray]], feed: Feed, source: ModelSource, fixed: Mapping[str, tuple[int, ...]]
) -> dict[str, np.ndarray]:
    """Run a feed through a build of one fixed shape: items in groups of its batch, other axes padded with zeros.

    Padding is what a client of a static build does; the mask of the feed, padded alike, hides it. Outputs are cut
    back to the feed's own sizes, axis by axis name.
    """
    if all(feed[name].shape == shape for name, shape in fixed.items()):
        return run(feed)
    sizes = sizes_of(source.inputs, feed)
    parts = [run(part) for part in fixed_parts(feed, fixed)]
    return {spec.name: cut(spec, np.concatenate([p[spec.name] for p in parts]), sizes) for spec in source.outputs}
