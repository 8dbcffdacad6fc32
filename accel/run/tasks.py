"""What a run asks of a worker process: typed values in and out, which have a JSON form.

Arrays are ``.npz`` files by path. Each task imports what it needs itself, so that a process in a foreign environment
loads only its own runtime; a source that one task loaded stays loaded for the next of the same process.
"""

import contextlib
import time
from collections.abc import Callable, Iterable, Mapping, Set
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np

from accel import exporters
from accel.accuracy.parity import FEW_ITEMS, Noise
from accel.builders import ConvertingBuilder, targets
from accel.core.errors import StageError
from accel.core.feeds import Feed, fit_inputs, fixed_parts, read_feeds, write_feeds
from accel.core.processing import Pipeline
from accel.core.values import (
    Artifact,
    BuildRequest,
    ModelSource,
    OnnxModel,
    Parity,
    Repository,
    SampleSet,
    Skipped,
    TensorSpec,
    Typed,
    file_refs,
)
from accel.exporters.check import Point, check_onnx, read_onnx
from accel.exporters.request import SourceRequest
from accel.exporters.source_model import SourceModel, another_way
from accel.graph.arithmetic import Arithmetic
from accel.graph.narrow import narrow_file, prove_int32_interior
from accel.run.narrowed import Narrowed


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
            )
        return "; ".join(lines) or None


@dataclass(frozen=True, slots=True)
class Ran:
    """On how many feeds a variant ran, and what it really computed in."""

    feeds: int
    precision: str


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
    return Described(source, samples.make_samples(source, request, out_dir))


def reference(described: Described, samples_folder: Path, out: Path) -> int:
    """Run the source itself, FP32 on CPU, over all feeds; write its answers to ``out`` and return how many they are.

    Coverage feeds get as long as samples and shapes took, and at least ``COVERAGE_S``; one that the source refuses is
    left out.
    """
    from accel.exporters import coverage

    model = _load(described.source)
    begin = time.monotonic()
    found = {name: model.run(feed) for name, feed in gate_feeds(described.samples, samples_folder).items()}
    deadline = time.monotonic() + max(COVERAGE_S, time.monotonic() - begin)
    for name, feed in _coverage(described.samples, samples_folder).items():
        if coverage.needed(name) or time.monotonic() < deadline:
            with contextlib.suppress(StageError):
                found[name] = model.run(feed)
    write_feeds(out, found)
    return len(found)


def noise(described: Described, samples_folder: Path, reference: Path) -> Noise | None:
    """Hold the source against itself, computed in another way: what no variant of it can be asked to undercut.

    Returns:
        None where there is no other way to compute it.
    """
    from accel.exporters import verdict

    feeds = dict(list(gate_feeds(described.samples, samples_folder).items())[-NOISE_FEEDS:])  # checked shapes come last
    way = another_way(_load(described.source), next(iter(feeds.values())))
    if way is None:
        return None
    how, answer = way
    truth, found = read_feeds(reference), {name: answer(feed) for name, feed in feeds.items()}
    deadline = time.monotonic() + COVERAGE_S
    for name, feed in _coverage(described.samples, samples_folder).items():
        if name in truth and time.monotonic() < deadline:
            feeds[name], found[name] = feed, answer(feed)
    return Noise(how, verdict.compare(described.source, feeds, truth, found, {}).outputs)


def export(source: ModelSource, out_dir: Path, opset: int) -> None:
    """Export the source to ONNX; ``check`` holds the file against it."""
    exporters.write_onnx(_load(source), out_dir, opset=opset)


def check(described: Described, samples_folder: Path, reference: Path, folder: Path) -> OnnxModel:
    """Check what ``export`` wrote into ``folder`` against what the source answered at the checked shapes.

    Args:
        reference: the answers that the task ``reference`` wrote.
    """
    feeds = read_feeds(samples_folder / described.samples.shapes.path)
    answers = read_feeds(reference, only=feeds.keys())
    points = [Point(name, feed, answers[name]) for name, feed in feeds.items()]
    return check_onnx(described.source, folder / exporters.ONNX_FILE, points)


def narrow(
    source: ModelSource, onnx: OnnxModel, folder: Path, out_dir: Path, level: Literal["keep", "io", "interior"]
) -> Narrowed:
    """Narrow the exported model's integers, and say which 64-bit values inside are not proved to fit int32.

    Args:
        folder: where the files of ``onnx`` lie.
    """
    file, out = folder / onnx.file.path, out_dir / onnx.file.path
    ranges = {s.name: s.range for s in source.inputs if s.range is not None}
    report = narrow_file(file, out, level=level, ranges=ranges, shapes=source.profile)
    unproved = prove_int32_interior(file, ranges=ranges, shapes=source.profile)
    values = tuple(u.reason for u in unproved)
    return Narrowed(read_onnx(out), report, values)


def arithmetic(
    described: Described, samples_folder: Path, onnx: OnnxModel, folder: Path, scratch: Path, threads: int
) -> Arithmetic:
    """Find out what an FP32 build of the exported model takes at least on this machine, at the typical shape.

    Args:
        folder: where the files of ``onnx`` lie.
        scratch: folder for a copy of the file, which is removed.
    """
    from accel.exporters.axes import batch_axis
    from accel.graph import arithmetic

    source = described.source
    stored = read_feeds(samples_folder / described.samples.shapes.path, only={"opt"})["opt"]
    feed = fit_inputs(stored, source.inputs)
    batch = next(iter(feed.values())).shape[0] if batch_axis(source) else 1
    return arithmetic.measure(folder / onnx.file.path, feed, batch=batch, scratch=scratch, threads=threads)


def prepare(request: BuildRequest, out_dir: Path) -> Typed:
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
    return Artifact(variant, file_refs(out_dir), parent_sha256, built, time.monotonic() - start)


def typed_answers(
    target: str,
    typed: Typed,
    folder: Path,
    described: Described,
    samples_folder: Path,
    out: Path,
    threads: int,
    reference: Path | None = None,
) -> int:
    """Run the typed ONNX file of a target over all feeds on the CPU, and return how many they are.

    Args:
        folder: where the typed files lie.
        out: file for the answers.
        reference: as for ``answers``.
    """
    builder = targets.discover()[target]
    assert isinstance(builder, ConvertingBuilder)
    session = builder.open_typed(typed, folder, source=described.source, threads=threads)
    with contextlib.closing(session):
        feeds = proof_feeds(described.samples, samples_folder, reference, builder.targets[target].precision)
        write_feeds(out, {name: session.run(feed) for name, feed in feeds.items()})
        return len(feeds)


def answers(
    artifact: Artifact,
    folder: Path,
    described: Described,
    samples_folder: Path,
    out: Path,
    threads: int,
    reference: Path | None = None,
) -> Ran:
    """Run a built variant over all feeds it can take, and say in what precision it really ran.

    Args:
        folder: where the artifact's files lie.
        out: file for the answers.
        reference: the source's answers: what it did not answer is not asked for; None asks for all.
    """
    variant, source = artifact.variant, described.source
    builder = targets.discover()[variant.target.name]
    feeds = proof_feeds(described.samples, samples_folder, reference, builder.targets[variant.target.name].precision)
    session = builder.open(artifact, folder, threads=threads, mode="latency")
    with contextlib.closing(session):
        if variant.static:
            fixed = {name: shape.opt for name, shape in variant.profile.items()}
            hidden = _hidden_axes(source)
            results = {}
            grouped = source.batched and all(o.dims[:1] == ("batch",) for o in source.outputs)
            for name, feed in feeds.items():
                if all(feed[i.name].shape == fixed[i.name] for i in source.inputs):
                    results[name] = session.run(feed)
                elif grouped and all(_fits(feed[i.name].shape, fixed[i.name], i.dims, hidden) for i in source.inputs):
                    results[name] = _run_fixed(session.run, feed, source, fixed)
        else:
            results = {name: session.run(feed) for name, feed in feeds.items()}
        if variant.static and _different(feeds[name] for name in results) < min(2, described.samples.gate_items):
            fits = "one gate sample alone fits" if results else "no gate sample fits"
            raise StageError(
                f"{fits} the fixed shape of this build: that would prove nothing",
                fix="give samples of that shape with --samples, or leave --static out",
            )
        write_feeds(out, results)
        return Ran(len(results), session.precision())


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

    feeds, truth = proof_feeds(described.samples, samples_folder), read_feeds(reference)
    found = {name: answer for name, answer in read_feeds(answers).items() if name in truth}
    held = verdict.compare(described.source, feeds, truth, found, gate, noise)
    said = coverage.covered(described.source, {name: feeds[name] for name in found}, len(feeds.keys() - truth.keys()))
    return replace(held, notes=(*held.notes, said))


def emit(
    artifact: Artifact,
    folder: Path,
    source: ModelSource,
    *,
    release: str,
    root: Path,
    model_version: int,
    samples: Path,
    reference: Path,
    parity: Parity | None,
    python: bool,
    overrides: str,
    pipeline: Pipeline | None,
    threads: int,
    hardware: str,
) -> Emitted:
    """Write the Triton repository of a built variant.

    Args:
        folder: where the artifact's files lie.
        samples / reference: inputs and outputs at the checked shapes.
        parity: None for a variant that only a server can run.
        python: serve it through the Python backend.
        overrides: what the user changes in the config, as the text of a partial ``config.pbtxt``.
        pipeline: the steps of an ensemble around the model, or None.
        hardware: id of the machine.
    """
    from accel.triton import ensemble, repository

    emitted = repository.emit(
        artifact,
        folder,
        inputs=source.inputs,
        outputs=source.outputs,
        unproved=source.unproved_int64,
        mask=source.mask,
        detections=source.detections,
        call=source.call,
        parity=parity,
        python=python,
        builder=targets.discover()[artifact.variant.target.name],
        release=release,
        root=root,
        run_dir=root.parent,
        model_name=source.name,
        model_version=model_version,
        samples=samples,
        reference=reference,
        overrides=overrides,
        threads=threads,
        hardware=hardware,
    )
    if isinstance(emitted, Skipped):
        return Emitted(None, emitted.reason)
    if pipeline is not None:
        added = ensemble.add(root, pipeline)
        emitted = replace(emitted, models=(*emitted.models, *added))
    return Emitted(emitted)


COVERAGE_S = 10.0
"""Least time that the source gets for coverage feeds."""
NOISE_FEEDS = 20
"""Feeds on which the source is held against itself: some samples, and the checked shapes."""
CALIBRATED = ("int8", "fp8")
"""Precisions whose ranges come from samples."""

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


def _coverage(samples: SampleSet, folder: Path) -> Feeds:
    return read_feeds(folder / samples.coverage.path) if samples.coverage else {}


def proof_feeds(samples: SampleSet, folder: Path, reference: Path | None = None, precision: str = "") -> Feeds:
    """Return all feeds on which variants are compared.

    Args:
        reference: leaves out what the source did not answer.
        precision: leaves out what is not asked of it.
    """
    from accel.exporters.coverage import BEYOND_FEED

    feeds = gate_feeds(samples, folder) | _coverage(samples, folder)
    if reference is not None:
        with np.load(reference, allow_pickle=False) as stored:
            answered = {key.partition("/")[0] for key in stored.files}
        feeds = {name: feed for name, feed in feeds.items() if name in answered}
    if precision in CALIBRATED:
        feeds.pop(BEYOND_FEED, None)
    return feeds


def _different(feeds: Iterable[Feed]) -> int:
    """Count the different items of feeds, by their leading axis."""
    rows = (tuple(value[i : i + 1].tobytes() for value in feed.values()) for feed in feeds for i in _rows(feed))
    return len(set(rows))


def _rows(feed: Feed) -> range:
    return range(min((value.shape[0] for value in feed.values() if value.ndim), default=1))


def _hidden_axes(source: ModelSource) -> Set[int | str]:
    """Return the axes that may be padded: the mask hides what is added, and every output can be cut back by its axes.

    An output may have an axis of its own, as the keys of a decoder's past and the new position have: where padding
    ends in it nothing says.
    """
    given = {d for spec in source.inputs for d in spec.dims}
    if any(isinstance(d, str) and d not in given for spec in source.outputs for d in spec.dims):
        return set()
    return {d for spec in source.inputs if spec.name == source.mask for d in spec.dims[1:]}


def _fits(shape: tuple[int, ...], fixed: tuple[int, ...], dims: tuple[int | str, ...], hidden: Set[int | str]) -> bool:
    """Say whether a feed can be brought to a fixed shape: items in groups, axes that the mask hides padded."""
    axes = zip(dims[1:], shape[1:], fixed[1:], strict=True)
    return all(size <= limit if dim in hidden else size == limit for dim, size, limit in axes)


def _run_fixed(
    run: Callable[[Feed], dict[str, np.ndarray]], feed: Feed, source: ModelSource, fixed: Mapping[str, tuple[int, ...]]
) -> dict[str, np.ndarray]:
    """Run a feed through a build of one fixed shape: items in groups of its batch, other axes padded with zeros.

    Padding is what a client of a static build does; the mask of the feed, padded alike, hides it. Outputs are cut
    back to the feed's own sizes, axis by axis name.
    """
    sizes: dict[str, int] = {}
    for spec in source.inputs:
        sizes |= {d: n for d, n in zip(spec.dims, feed[spec.name].shape, strict=True) if isinstance(d, str)}
    parts = [run(part) for part in fixed_parts(feed, fixed)]
    return {spec.name: _cut(spec, np.concatenate([p[spec.name] for p in parts]), sizes) for spec in source.outputs}


def _cut(spec: TensorSpec, value: np.ndarray, sizes: Mapping[str, int]) -> np.ndarray:
    return value[tuple(slice(sizes.get(d)) if isinstance(d, str) else slice(None) for d in spec.dims)]
