"""The steps of a run one by one, each usable alone: bring your own ONNX file, artifact, answers or measurement.

    source = accel.describe("model.onnx", samples=feeds, out="runs/mine")
    artifact = accel.build("openvino-int8", source)
    proof = accel.compare(artifact, source)
    repository = accel.emit(artifact, source)
    points = accel.measure([artifact], source)
    decision = accel.decide(points)

They are the stages of the pipeline, with its store: what was done once for the same inputs is not done again, and a
step does what it needs of those before it.
"""

import contextlib
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

import numpy as np

from accel import pipeline
from accel.api.keywords import told_in_python
from accel.api.optimize import job_for
from accel.builders import ConvertingBuilder, targets
from accel.core.accuracy.parity import GATES_DB
from accel.core.errors import CheckFailed, UnavailableError, UsageError, nearest
from accel.core.feeds import write_feeds
from accel.core.processes import Worker
from accel.core.values import Artifact, Decision, Measurement, OnnxModel, Parity, Variant
from accel.run import decide as decisions, tasks
from accel.run.decide import Candidate, Constraints, Objective
from accel.run.job import Job
from accel.run.measuring import measure_in_process, spare_workers
from accel.run.results import VariantState
from accel.run.stages import FILES, REPOSITORY, Proof, Stage
from accel.run.tasks import Described

T = TypeVar("T")
Answer = Callable[[Mapping[str, np.ndarray]], Mapping[str, np.ndarray]]
"""Anything that answers a feed: arrays by input name in, arrays by output name out."""


@dataclass(frozen=True)
class Step(Generic[T]):
    """What a step gave.

    Attributes:
        value: the pipeline's own value.
        folder: where its files lie.
        job: what was asked.
        stage: as the pipeline has it.
    """

    value: T
    folder: Path
    job: Job
    stage: Stage


@told_in_python()
def describe(model: Any, samples: Any = None, **options: Any) -> Step[Described]:
    """Load a source and say what it is: inputs, outputs, axes, weights; and write its samples.

    Args:
        model / samples / options: as for ``accel.optimize``.
    """
    job = job_for(model, samples, **options)
    with pipeline.at_work(job, None) as work, work.stages.worker("source") as worker:
        stage = work.stages.describe(worker)
    return Step(stage.value, stage.folder, job, stage)


@told_in_python()
def export(source: Step[Described]) -> Step[OnnxModel]:
    """Write a source as ONNX and check the file against what the source answers.

    Raises:
        StageError: it cannot be exported, or the file answers differently.
    """
    with _begun(source) as done:
        stage = done.onnx()
        return Step(stage.value, stage.folder, source.job, stage)


@told_in_python()
def build(target: str, source: Step[Described]) -> Step[Artifact]:
    """Build one target (``openvino-int8``, ``ort@cpu``).

    Raises:
        UsageError: an unknown target.
        UnavailableError: it cannot be built here; the message says what is missing.
        StageError: the build failed.
    """
    with _begun(source) as done:
        variant = done.variant(target)
        builder = targets.discover()[variant.target.name]
        if (missing := builder.available(variant.target)) is not None:
            raise UnavailableError(f"{variant.id} cannot be built here: {missing.reason}", fix=missing.fix)
        onnx = done.onnx() if targets.info(variant.target).needs == "onnx" else None
        if onnx is not None and isinstance(builder, ConvertingBuilder):
            converted = done.work.stages.prepare(variant, done.described, onnx)
            onnx = Stage(converted.value.onnx, converted.folder / FILES, converted.key, converted.cached)
        with done.worker(variant) as worker:
            stage = done.work.stages.build(variant, done.described, onnx, worker)
        return Step(stage.value, stage.folder / FILES, source.job, stage)


def compare(answer: Step[Artifact] | Answer, source: Step[Described], *, precision: str = "fp32") -> Parity:
    """Hold an artifact, or anything that answers feeds, against what the source answers.

    Args:
        answer: an artifact, or a function: your own session, server or model.
        precision: whose gate such a function is held against, and on the same feeds as its variants.

    Raises:
        UsageError: an unknown precision.
    """
    if precision not in GATES_DB:
        raise UsageError(f"precision {precision!r} has no gate{nearest(precision, GATES_DB)}", fix=", ".join(GATES_DB))
    with _begun(source) as done:
        if isinstance(answer, Step):
            return done.proof(answer).value.parity
        made, truth = done.described, done.reference()
        feeds = tasks.proof_feeds(made.value.samples, made.folder, truth.folder / truth.value.file, precision)
        found = {name: {n: np.asarray(v) for n, v in answer(feed).items()} for name, feed in feeds.items()}
        with done.work.stages.worker("prove") as worker, tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "answers.npz"
            write_feeds(file, found)
            return done.work.stages.judge(worker, precision, file, made, truth)


def emit(artifact: Step[Artifact], source: Step[Described]) -> Path:
    """Write the Triton model repository of an artifact, with its manifest and reference answers; return its root.

    Raises:
        UnavailableError: the release has no backend for it.
    """
    with _begun(source) as done:
        proof, truth = done.proof(artifact), done.reference()
        with done.work.stages.worker("emit") as worker:
            stage = done.work.stages.emit(artifact.stage, proof, done.described, truth, worker)
        if stage.value.repository is None:
            raise UnavailableError(f"{artifact.value.variant.id} cannot be served: {stage.value.reason}")
        return stage.folder / REPOSITORY


def measure(
    artifacts: Sequence[Step[Artifact]], source: Step[Described], *, objective: Objective = "latency"
) -> dict[str, tuple[Measurement, ...]]:
    """Time artifacts together, in interleaved rounds of one session; return the points by variant.

    Raises:
        CheckFailed: one of them could not be timed.
    """
    with _begun(source) as done, spare_workers() as spare:
        rows = [VariantState(a.value.variant, built=a.stage, proof=done.proof(a)) for a in artifacts]
        measure_in_process(
            rows,
            done.described,
            done.reference(),
            objective,
            job=source.job,
            stages=done.work.stages,
            kept=done.work.kept,
            hardware=done.work.machine,
            progress=done.work.progress.variant,
            spare=spare,
        )
    for row in rows:
        if row.outcome is not None:
            raise CheckFailed(f"{row.variant.id} could not be timed: {getattr(row.outcome, 'cause', row.outcome)}")
    return {row.variant.id: row.points for row in rows}


def decide(
    points: Mapping[str, Sequence[Measurement]] | Sequence[Candidate],
    *,
    objective: Objective = "latency",
    constraints: Constraints | None = None,
    baseline: str | None = None,
    device: str = "cpu",
) -> Decision:
    """Choose the fastest by measurements, wherever they come from.

    Args:
        points: measurements by name, all of which passed; or candidates, which say more.
        baseline: whose time is the unit of speed-ups.
    """
    candidates = (
        [Candidate(name, "ok", None, own[0].effective_precision, 0, tuple(own)) for name, own in points.items() if own]
        if isinstance(points, Mapping)
        else list(points)
    )
    return decisions.decide(
        candidates, device=device, objective=objective, constraints=constraints or Constraints(), baseline=baseline
    )


class _Begun:
    """A run directory at work on one source; each stage is taken from its store where it lies there."""

    def __init__(self, work: pipeline.Work, described: Stage[Described]) -> None:
        self.work, self.described = work, described

    def reference(self) -> Stage:
        with self.work.stages.worker("source") as worker:
            return self.work.stages.reference(self.described, worker)

    def onnx(self) -> Stage[OnnxModel]:
        with self.work.stages.worker("source") as worker:
            return self.work.stages.export(
                self.described, lambda: self.work.stages.reference(self.described, worker), worker
            )

    def proof(self, artifact: Step[Artifact]) -> Stage[Proof]:
        truth = self.reference()
        with self.worker(artifact.value.variant) as own, self.work.stages.worker("prove") as worker:
            return self.work.stages.prove(artifact.stage, self.described, truth, own, worker)

    def worker(self, variant: Variant) -> Worker:
        return self.work.stages.worker(variant.id, python=self.work.stages.python(variant))

    def variant(self, text: str) -> Variant:
        devices = self.work.machine.devices
        found = targets.parse(text, devices=devices)
        if len(found) != 1:
            raise UsageError(f"{text!r} names {len(found)} variants: {[str(t) for t in found]}", fix="name one")
        options = dict(self.work.job.options.get(found[0].name, {}))
        return Variant(found[0], dict(self.described.value.source.profile), options=options)


@contextlib.contextmanager
def _begun(source: Step[Described]) -> Iterator[_Begun]:
    with pipeline.at_work(source.job, None) as work:
        yield _Begun(work, source.stage)
