"""The stages, each as: a key over all it depends on, the stored result if there is one, else a worker process.

A stage's key holds the content it starts from, its options, the hash of its own code, the toolchain's versions and,
where the result depends on the machine, the hardware's fingerprint. What happens inside a stage is elsewhere
(exporters, builders, parity, triton, bench); the order of the stages is in ``pipeline``.
"""

import dataclasses
import functools
import math
import shutil
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, TypeVar

from accel import exporters
from accel.builders import TargetInfo, targets
from accel.builders.requirements import versions
from accel.core import environments, imports
from accel.core.accuracy import parity
from accel.core.errors import StageError, UsageError, WorkerDied
from accel.core.hardware import Hardware
from accel.core.processes import Worker
from accel.core.values import (
    PYTHON_BACKEND,
    Artifact,
    BuildRequest,
    ModelSource,
    OnnxModel,
    Parity,
    PrecisionConverted,
    RequestTime,
    Skipped,
    Target,
    Variant,
)
from accel.exporters import sources
from accel.exporters.axes import extents, with_fixed
from accel.exporters.processing_files import resolve_processing_files
from accel.exporters.request import SourceRequest
from accel.graph.arithmetic import Arithmetic
from accel.run import batching, group_check, kits, store, tasks
from accel.run.group_check import GroupCheck, check_groups
from accel.run.job import PYTHON_VARIANT, Job
from accel.run.narrowed import NarrowedModel
from accel.run.pack_check import check_packing
from accel.run.stream_check import check_streams
from accel.run.tasks import Described, Emitted, Ran
from accel.triton import manifest as manifests, overrides as changes, releases, routing, settings as schedules
from accel.triton.launch import image
from accel.triton.overrides import file_hashes
from accel.triton.request import EmitRequest
from accel.triton.rescheduled import emit, size

T = TypeVar("T")
FILES = "files"
"""Folder of the built files inside a build's result; its log lies beside."""

LOG = "build.log"
REPOSITORY = "repository"
"""Folder of the Triton model repository inside an emission's result."""


class AxesLost(StageError):
    """An export failed with axes that vary, or made numbers of their sizes, and nobody had asked that they vary.

    Args:
        request: the same source with these axes fixed.
        error: what the export failed with; None where it made numbers of the sizes.
    """

    def __init__(self, request: SourceRequest, error: StageError | None = None) -> None:
        super().__init__(
            f"the export does not let the sizes {', '.join(request.fixed)} vary",
            fix="give each of them one size: the same in --min-shape, --shape and --max-shape (min_shape, … in Python)",
        )
        self.request, self.error = request, error


class NotExported(StageError):
    """No ONNX file could be made of a source; targets that take the source itself need none.

    Args:
        error: what the export failed with.
    """

    def __init__(self, error: StageError) -> None:
        super().__init__(error.message, fix=error.fix, log=error.log)


@dataclass(frozen=True, slots=True)
class Answered:
    """The reference outputs of a source: a file in the stage's folder, and what computing them took."""

    file: str
    feeds: int
    cpu_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Proof:
    """What running a variant over all feeds showed.

    Attributes:
        precision: what it really computed in.
        asked: the precision whose gate it was held against.
        feeds: how many feeds it was compared on; a build of one fixed shape cannot take them all.
        of: how many it can take; where these are more, it was proved on what a first proof asks.
        groups: whether requests of different lengths may share its calls.
    """

    parity: Parity
    precision: str
    asked: str
    feeds: int
    groups: GroupCheck = field(default_factory=GroupCheck)
    of: int | None = None

    @property
    def whole(self) -> bool:
        """Whether it was proved on all feeds that it can take."""
        return self.of in (None, self.feeds)


@dataclass(frozen=True, slots=True)
class Stage(Generic[T]):
    """A stage's value, where its files lie, its key, and whether it was there already."""

    value: T
    folder: Path
    key: str
    cached: bool


class Stages:
    """The stages of one run, over one store.

    Args:
        job: what was asked.
        hardware: this machine.
        kept: where results are kept.

    Attributes:
        threads: CPU threads of each task; fewer than the job's while several work side by side (``share_threads``).
    """

    def __init__(self, job: Job, hardware: Hardware, kept: store.Store) -> None:
        self._job = job
        self._hardware = hardware
        self._store = kept
        self._versions = _versions(*exporters.PACKAGES)
        self._measuring_noise = threading.Lock()
        self._shared = kept.root / "shared"
        shutil.rmtree(self._shared, ignore_errors=True)  # what an earlier command left may be another version's
        self.threads = job.threads
        self.run_dir = job.run_dir
        self.logs = job.run_dir / "logs"

    def share_threads(self, processes: int) -> None:
        """Give each task that begins from now on its part of the job's threads: so many work side by side.

        Threads that wait for a core at barriers cost CPU time.
        """
        self.threads = max(1, self._job.threads // max(1, processes))

    def worker(
        self, name: str, *, python: Path | None = None, report_progress: Callable[[str], None] | None = None
    ) -> Worker:
        """Return a process for tasks, also of several stages, started by the first one that has to run.

        Args:
            name: of its log.
            python: interpreter; accel's own when None.
            report_progress: takes short phrases on how far a long task is.
        """
        log, job = self.logs / f"{name}.log", self._job
        return Worker(
            log, threads=self.threads, timeout_s=job.timeout_s, python=python, report_progress=report_progress
        )

    def describe(self, worker: Worker) -> Stage[Described]:
        """Load the source once, and make its samples."""
        request = self._job.request
        quick = sources.quick_key(request)
        if quick is None:
            seen = worker.call(tasks.source_of, request)
            quick = sources.quick_key(request, store.key(model=seen.key, given=seen.given))
        code = store.code_hash("exporters", "core/buckets.py", "core/feeds.py", "core/recorded.py")
        key = store.key(quick=quick, code=code, versions=self._versions)

        stage = self._stage("source", key, Described, lambda folder: worker.call(tasks.describe, request, folder))
        if self._job.ensemble is not None:
            if stage.value.source.states:
                raise UsageError("an ensemble around a stateful model is not made", fix="leave --ensemble out")
            # a step that cannot be ends the run before anything is built
            resolve_processing_files(stage.value.source, self._job.ensemble)
        return stage

    def reference(self, described: Stage[Described], worker: Worker) -> Stage[Answered]:
        """Run the source itself over all feeds."""
        made = described.value

        def make(folder: Path) -> Answered:
            out = folder / "reference.npz"
            asked = worker.call(tasks.reference, made, described.folder, out)
            return Answered(out.name, asked.feeds, asked.cpu_s)

        return self._stage("reference", self._reference_key(made), Answered, make)

    def _reference_key(self, made: Described) -> str:
        return store.key(
            source=made.source,
            samples=made.samples.sha256,
            code=store.code_hash("exporters", "run/tasks.py"),
            versions=self._versions,
            hardware=self._hardware.fingerprint,
        )

    def export(
        self, described: Stage[Described], reference: Callable[[], Stage[Answered]], worker: Worker
    ) -> Stage[OnnxModel]:
        """Export the source to ONNX and check the file against the reference.

        Args:
            reference: gives the reference once it is there; called when the file is written.

        Raises:
            AxesLost: axes came out as sizes, and nobody asked that they vary.
        """
        made = described.value
        key = store.key(
            source=made.source,
            opset=self._job.opset,
            code=store.code_hash("exporters", "graph", "core/feeds.py", "run/tasks.py"),
            versions=self._versions,
        )

        def make(folder: Path) -> OnnxModel:
            error, lost = None, tuple(extents(made.source.inputs, made.source.profile))
            try:
                lost = worker.call(tasks.export, made.source, folder, self._job.opset)
            except StageError as failed:
                if isinstance(failed, WorkerDied):
                    raise
                error = failed
            if lost and (request := with_fixed(self._job.request, made.source, lost)):
                raise AxesLost(request, error)
            if error is not None:
                raise error
            return worker.call(tasks.read_exported, folder)

        exported = self._stage("onnx", key, OnnxModel, make)

        def check(_: Path) -> OnnxModel:
            truth = reference()
            found = exported.value, exported.folder
            return worker.call(tasks.check, made, described.folder, truth.folder / truth.value.file, *found)

        held = store.key(onnx=key, reference=self._reference_key(made), code=store.code_hash("core/accuracy"))
        self._stage("checked", held, OnnxModel, check)
        return exported

    def narrow(self, described: Stage[Described], onnx: Stage[OnnxModel], worker: Worker) -> Stage[NarrowedModel]:
        """Narrow the exported model's integers at the job's level, as far as that is proved."""
        source, in_float = described.value.source, tuple(sorted(targets.through_float()))
        key = store.key(
            params={"source": source, "onnx": onnx.value, "level": self._job.ints, "through_float": in_float},
            code=store.code_hash("graph", "run/narrowed.py"),
            versions=self._versions,
        )

        def make(folder: Path) -> NarrowedModel:
            return worker.call(tasks.narrow, source, onnx.value, onnx.folder, folder, self._job.ints, in_float)

        return self._stage("narrow", key, NarrowedModel, make)

    def prepare(
        self,
        variant: Variant,
        described: Stage[Described],
        onnx: Stage[OnnxModel],
        *,
        report_progress: Callable[[str], None] | None = None,
    ) -> Stage[PrecisionConverted]:
        """Type the exported ONNX file for a variant whose precision is made there; arguments as of ``build``."""
        made = described.value
        key = store.key(
            variant=variant,
            onnx=(onnx.value.file.sha256, [f.sha256 for f in onnx.value.data]),
            samples=made.samples.sha256,
            gates=self._gates(variant),
            contract=(made.source.inputs, made.source.outputs),
            **_builder(variant),
        )

        def make(folder: Path) -> PrecisionConverted:
            files = folder / FILES
            files.mkdir()
            with self.worker(variant.id, report_progress=report_progress) as worker:
                return worker.call(tasks.prepare, self._request(variant, described, onnx), files)

        return self._stage(f"typed-{variant.id}", key, PrecisionConverted, make)

    def prove_precision_converted(
        self,
        variant: Variant,
        converted: Stage[PrecisionConverted],
        described: Stage[Described],
        reference: Stage[Answered],
        *,
        first: bool = False,
    ) -> Stage[Proof]:
        """Run a precision-converted ONNX file over the feeds on the CPU and hold it against the variant's gate.

        Args:
            first: as of ``prove``.
        """
        asked = targets.info(variant.target).precision
        parts = {
            "typed": converted.key,
            "reference": reference.key,
            "gates": dict(self._job.gates),
            "code": store.code_hash("core/accuracy", "run/tasks.py"),
            "hardware": self._hardware.fingerprint,
        }

        def make(folder: Path, *, first: bool) -> Proof:
            found = folder / "answers.npz"
            with self.worker(variant.id) as worker:
                ran = worker.call(
                    tasks.precision_converted_answers,
                    variant.target.name,
                    converted.value,
                    converted.folder / FILES,
                    described.value,
                    described.folder,
                    found,
                    self.threads,
                    reference.folder / reference.value.file,
                    first,
                )
                verdict = self.judge(worker, asked, found, described, reference, first=first)
            found.unlink()
            return Proof(_on(ran, verdict), asked, asked, ran.feeds, of=ran.of)

        return self._proof(f"typed-proof-{variant.id}", parts, make, first=first)

    def kit(
        self,
        variant: Variant,
        converted: Stage[PrecisionConverted],
        proof: Stage[Proof],
        described: Stage[Described],
        reference: Stage[Answered],
        *,
        reason: str,
    ) -> Stage[kits.DeferredBuild]:
        """Put together what finishes a variant on a machine that can build it."""
        made = described.value
        job = self._job
        overrides = job.overrides.get(variant.target.name, "")
        row = releases.release(job.triton_release)
        builder = targets.discover()[variant.target.name]
        kit = kits.DeferredBuild(
            variant=variant,
            source=made.source,
            samples=made.samples,
            onnx=converted.value.onnx,
            typing=converted.value.facts,
            proof=proof.value.parity,
            feeds=reference.value.feeds,
            settings={**job.carried, "constraints": job.constraints, "overrides": overrides},
            toolchain=kits.Toolchain(
                {p: v or kits.UNKNOWN for b in builder.backends for p, v in releases.carried(row, b.name).items()},
                image(row),
                _versions(*builder.packages),
            ),
            reason=reason,
            command=job.command,
        )
        key = store.key(
            kit=kit,
            typed=converted.key,
            proof=proof.key,
            reference=reference.key,
            override_files=file_hashes(overrides),
            code=store.code_hash("run/kits.py"),
        )

        def make(folder: Path) -> kits.DeferredBuild:
            files = folder / FILES
            files.mkdir()
            return kits.write(
                kit,
                files,
                onnx=converted.folder / FILES,
                samples=described.folder,
                reference=reference.folder / reference.value.file,
            )

        return self._stage(f"kit-{variant.id}", key, kits.DeferredBuild, make)

    def build(
        self,
        variant: Variant,
        described: Stage[Described],
        onnx: Stage[OnnxModel] | None,
        worker: Worker,
        *,
        room: float = 1.0,
    ) -> Stage[Artifact]:
        """Build one variant, from the typed ONNX file where it has one.

        Args:
            worker: a process of the variant's environment that did nothing yet.
            room: as of ``BuildRequest``.
        """
        made = described.value
        info = targets.info(variant.target)
        parent = made.source.key if onnx is None or info.needs != "onnx" else onnx.value.file.sha256
        key = store.key(
            variant=variant,
            parent=parent,
            given=made.source.given if parent == made.source.key else None,
            contract=(made.source.inputs, made.source.outputs),
            data=[f.sha256 for f in onnx.value.data] if onnx and info.needs == "onnx" else [],
            calibration=made.samples.sha256 if info.calibration or _measures_ranges(info) else None,
            gates=self._gates(variant),
            room=room,
            **_builder(variant),
            kind=(made.source.mask, made.source.family),
            hardware=self._hardware.fingerprint,
        )

        def make(folder: Path) -> Artifact:
            files = folder / FILES
            files.mkdir()
            log = self.logs / f"{variant.id}.log"
            log.unlink(missing_ok=True)
            request = dataclasses.replace(self._request(variant, described, onnx), room=room)
            artifact = worker.call(tasks.build, request, files, parent)
            shutil.copyfile(log, folder / LOG)
            for file in files.rglob("*"):
                if file.is_file():
                    file.chmod(0o444)  # linked into variants/ and repositories/: one body, never edited in place
            return artifact

        return self._stage(f"build-{variant.id}", key, Artifact, make)

    def prove(
        self,
        built: Stage[Artifact],
        described: Stage[Described],
        reference: Stage[Answered],
        own: Worker,
        worker: Worker,
        *,
        first: bool = False,
    ) -> Stage[Proof]:
        """Run a built variant over all feeds and hold it against its gate.

        Args:
            own: a process of the variant's environment.
            worker: a process of accel's own environment; may be the same.
            first: ask only what a first proof does, unless that leaves open what all samples would say. A proof on all
                feeds that is stored serves as well.
        """
        artifact, made = built.value, described.value
        asked = targets.info(artifact.variant.target).precision
        unproved = () if self._job.allow_unproved_int64 else _unproved(made.source, artifact.variant.target)
        gates = dict(self._job.gates)
        parts = {
            "build": built.key,
            "reference": reference.key,
            "gates": gates,
            "unproved": unproved,
            "code": store.code_hash(
                *("core/accuracy", "run/tasks.py", "run/group_check.py", "run/stream_check.py", "triton/grouping.py"),
                "core/buckets.py",
                *("builders/__init__.py", *(("exporters/streams.py",) if made.source.states else ())),
            ),
            "hardware": self._hardware.fingerprint,
        }

        def make(folder: Path, *, first: bool) -> Proof:
            found = folder / "answers.npz"
            ran = own.call(
                tasks.answers,
                artifact,
                built.folder / FILES,
                made,
                described.folder,
                found,
                self.threads,
                reference.folder / reference.value.file,
                first,
            )
            held = ran.precision if asked == "none" else asked
            if parity.coarser(made.source.computes, held):
                held = made.source.computes
            verdict = _on(ran, self.judge(worker, held, found, described, reference, first=first))
            found.unlink()
            if unproved:
                values = "; ".join(unproved[:3])
                more = len(unproved) - 3
                reason = f"computes int64 in int32 or in float, and these values are not proved to fit: {values}"
                reason += f"; and {more} more" if more > 0 else ""
                reason += " (bound the inputs with --range and --max-shape, or accept it with --allow-unproved-int64)"
                verdict = parity.refused(verdict, reason)
            if parity.coarser(ran.precision, held):
                reason = f"computes in {ran.precision}, and {held} was asked for"
                verdict = parity.refused(verdict, reason)
            whole, asks = ran.feeds == ran.of, group_check.grouped_by(made.source) is not None
            groups = GroupCheck(why_not=None if whole or not asks else "asked only after a whole proof")
            if verdict.passed and whole:
                files = built.folder / FILES
                task = made.source.gate[:1] if made.source.gate else ()
                gate = {name: least for name, least in verdict.gate.items() if name not in task}
                if "sqnr_db" in gate:  # what a task metric lets a variant lose, its neighbours may not take
                    gate["sqnr_db"] = max(gate["sqnr_db"], parity.GATES_DB.get(held, parity.GATES_DB["fp32"]))
                if not made.source.states:
                    groups = own.call(check_groups, artifact, files, made, described.folder, gate, self.threads)
            if verdict.passed and made.source.states:
                truth = reference.folder / reference.value.file
                given = artifact, built.folder / FILES, made, described.folder, truth, verdict, self.threads
                verdict = own.call(check_streams, *given)
            return Proof(verdict, ran.precision, held, ran.feeds, groups, ran.of)

        rebuilt = artifact.built.expected is True
        return self._proof(f"proof-{artifact.variant.id}", parts, make, first=first, rebuilt=rebuilt)

    def _proof(
        self, name: str, parts: dict[str, Any], make: Callable[..., Proof], *, first: bool, rebuilt: bool = True
    ) -> Stage[Proof]:
        """Return the stored proof on all feeds, a first one where that is wanted and settles it, or a new one."""
        key = store.key(**parts)
        if first and self._store.get(name, key, Proof) is None:
            key_of_first = store.key(**parts, first=True)
            stage = self._stage(f"first-{name}", key_of_first, Proof, functools.partial(make, first=True))
            if parity.settled(stage.value.parity, rebuilt=rebuilt):
                return stage
        return self._stage(name, key, Proof, functools.partial(make, first=False))

    def regrouped(
        self,
        built: Stage[Artifact],
        proof: Stage[Proof],
        described: Stage[Described],
        times: tuple[RequestTime, ...],
        *,
        pack: bool,
    ) -> Stage[Proof]:
        """Choose the lengths that requests are padded to by what they were measured to cost, and prove these.

        Args:
            pack: whether texts may share rows where that is proved, and faster.

        Returns:
            The proof with them; as it was where they stay the same, or are not held.

        Raises:
            StageError: the variant's process ended.
        """
        made, artifact, groups = described.value, built.value, proof.value.groups
        if (old := groups.grouping) is None or old.mask is None or old.axis is None or not times:
            return proof
        same = group_check.lengths(made, described.folder, old.axis, old.mask, times).usual == old.usual
        pack = pack and targets.discover()[artifact.variant.target.name].packs
        if same and not pack:
            return proof
        code = store.code_hash("run/pack_check.py", "core/packed.py") if pack else None

        def make(_: Path) -> Proof:
            given = artifact, built.folder / FILES, made, described.folder
            with self.worker(artifact.variant.id, python=self.python(artifact.variant)) as own:
                new = groups if same else own.call(check_groups, *given, old.gate, self.threads, times)
                found = new.grouping or old
                if pack:
                    found = own.call(check_packing, *given, found, self.threads)
            return dataclasses.replace(proof.value, groups=GroupCheck(found))

        key = store.key(proof=proof.key, times=times, code=code)
        return self._stage(f"groups-{artifact.variant.id}", key, Proof, make)

    def emit(
        self,
        built: Stage[Artifact],
        proof: Stage[Proof] | None,
        described: Stage[Described],
        reference: Stage[Answered],
        worker: Worker,
        *,
        python_variant: bool = False,
    ) -> Stage[Emitted]:
        """Write the Triton model repository of a built variant, or the variant of it that the Python backend serves.

        Args:
            proof: None for a variant that only a server can run.
            worker: a process of accel's own environment.
        """
        artifact, made = built.value, described.value
        builder = targets.discover()[artifact.variant.target.name]
        answer = builder.triton(artifact, self._job.triton_release)
        pipeline = resolve_processing_files(made.source, self._job.ensemble) if self._job.ensemble is not None else None
        overrides = self._job.overrides.get(
            artifact.variant.target.name + (PYTHON_VARIANT if python_variant else ""), ""
        )
        key = store.key(
            build=built.key,
            proof=proof.key if proof else None,
            samples=made.samples.sha256,
            reference=reference.key,
            python_variant=python_variant,
            name=made.source.name,
            call=made.source.call,
            version=self._job.model_version,
            release=self._job.triton_release,
            overrides=overrides,
            override_files=file_hashes(overrides),
            pipeline=pipeline,
            threads=self._job.threads,
            machine=self._hardware.id,
            code=store.code_hash("triton", "core/values.py"),
        )

        def make(folder: Path) -> Emitted:
            if isinstance(answer, Skipped):
                return Emitted(None, answer.reason)
            return worker.call(
                tasks.emit,
                artifact,
                built.folder / FILES,
                made.source,
                EmitRequest(
                    release=self._job.triton_release,
                    model_version=self._job.model_version,
                    parity=proof.value.parity if proof else None,
                    grouping=proof.value.groups.grouping if proof else None,
                    ungrouped=proof.value.groups.why_not if proof else None,
                    python=python_variant,
                    overrides=overrides,
                    threads=self._job.threads,
                    hardware=self._hardware.id,
                ),
                root=folder / REPOSITORY,
                samples=described.folder / made.samples.shapes.path,
                reference=reference.folder / reference.value.file,
                streams=described.folder / made.samples.streams.path if made.samples.streams else None,
                pipeline=pipeline,
            )

        return self._stage(f"emit-{artifact.variant.id}{PYTHON_VARIANT if python_variant else ''}", key, Emitted, make)

    def sized(self, emitted: Stage[Emitted], peak_rss_mib: float) -> Stage[Emitted]:
        """Give an emitted repository's ``kubernetes.yaml`` the memory that was measured of its variant."""
        repository, peak = emitted.value.repository, math.ceil(peak_rss_mib)
        if repository is None:
            return emitted

        def make(folder: Path) -> Emitted:
            size(emitted.folder / REPOSITORY, peak, folder / REPOSITORY)
            return emitted.value

        name = manifests.read(emitted.folder / REPOSITORY).variant
        name += PYTHON_VARIANT if repository.backend == PYTHON_BACKEND else ""
        return self._stage(f"memory-{name}", store.key(emitted=emitted.key, memory=peak), Emitted, make)

    def routed(self, emitted: Stage[Emitted]) -> Stage[Emitted] | None:
        """Put a model that groups requests by length before an emitted native one; None where that may not be.

        Raises:
            InputError: the repository is not as it was emitted.
        """
        root = emitted.folder / REPOSITORY
        if emitted.value.repository is None or routing.why_not(manifest := manifests.read(root)) is not None:
            return None

        def make(folder: Path) -> Emitted:
            return Emitted(routing.write_routed(root, folder / REPOSITORY))

        return self._stage(f"route-{manifest.variant}", store.key(routed=emitted.key), Emitted, make)

    def rescheduled(
        self, emitted: Stage[Emitted], found: tuple[int, str] | None, *, by_shape: tuple[int, str] | None
    ) -> Stage[Emitted]:
        """Limit what an emitted repository merges, by what was measured; its manifest says why.

        What the user said of batching stays, and so does a repository that merges nothing.

        Args:
            found: items of the largest batch that is formed (0 leaves the limit that clients have), and the reason;
                None where nothing was found.
            by_shape: the same for a repository that groups requests of one shape; None: each is a call of its own.
        """
        repository, root = emitted.value.repository, emitted.folder / REPOSITORY
        if repository is None or not repository.batches:
            return emitted
        manifest = manifests.read(root)
        if manifest.trims:
            return emitted  # its calls are cut by what the lengths of the requests cost, not by one shape's figures
        if (chosen := by_shape or batching.UNSHOWN if manifest.groups else found) is None:
            return emitted
        largest, reason = chosen
        asked = changes.parse(manifest.overrides)
        if manifest.max_batch_size < 2 or asked.HasField("dynamic_batching") or asked.HasField("sequence_batching"):
            return emitted

        def change(model: Any) -> None:
            if 0 < largest < model.max_batch_size:
                schedules.limit_batches(model, largest)

        def make(folder: Path) -> Emitted:
            emit(root, change, folder / REPOSITORY, reason=reason)
            return emitted.value

        name = manifest.variant + (PYTHON_VARIANT if repository.backend == PYTHON_BACKEND else "")
        key = store.key(emitted=emitted.key, largest=largest, reason=reason)
        return self._stage(f"schedule-{name}", key, Emitted, make)

    def _request(self, variant: Variant, described: Stage[Described], onnx: Stage[OnnxModel] | None) -> BuildRequest:
        return BuildRequest(
            variant=variant,
            source=described.value.source,
            onnx=onnx.value if onnx else None,
            onnx_folder=str(onnx.folder) if onnx else None,
            samples=described.value.samples,
            samples_folder=str(described.folder),
            threads=self.threads,
            gates=self._gates(variant),
            shared=str(self._shared),
        )

    def _gates(self, variant: Variant) -> dict[str, float]:
        return parity.bearing(self._job.gates, targets.info(variant.target).precision)

    def judge(
        self,
        worker: Worker,
        held: str,
        found: Path,
        described: Stage[Described],
        reference: Stage[Answered],
        *,
        first: bool = False,
    ) -> Parity:
        """Hold answers against the gate of a precision; where dB are missed, against the source's own noise, too.

        Args:
            first: these are the answers of a first proof. Where it settles nothing, all feeds are asked next, and the
                noise is theirs to ask for.
        """
        source = described.value.source
        usual, gate = (
            parity.gate_for(
                held,
                outputs=source.outputs,
                task=source.gate,
                overrides=overrides,
                detections=source.detections,
                items=described.value.samples.gate_items,
            )
            for overrides in ({}, dict(self._job.gates))
        )
        truth = reference.folder / reference.value.file
        verdict = worker.call(tasks.compare, described.value, described.folder, truth, found, gate)
        if parity.may_be_noise(verdict) and (not first or parity.settled(verdict)):
            noise = self._noise(
                described, reference, parity.missed(verdict), max(*parity.GATES_DB.values(), *gate.values())
            )
            if noise is not None:
                verdict = worker.call(tasks.compare, described.value, described.folder, truth, found, gate, noise)
        return dataclasses.replace(verdict, notes=(*parity.lowered(gate, usual), *verdict.notes))

    def _noise(
        self, described: Stage[Described], reference: Stage[Answered], missed: tuple[str, ...], least: float
    ) -> parity.Noise | None:
        """Measure how far the source differs from itself when it is computed otherwise; once, and only where asked.

        Args:
            missed / least: as for ``tasks.noise``.
        """
        key = store.key(
            reference=reference.key,
            missed=missed,
            least=least,
            code=store.code_hash("exporters", "core/accuracy", "run/tasks.py"),
            versions=self._versions,
        )

        def make(folder: Path) -> parity.Noise:
            truth = reference.folder / reference.value.file
            with self.worker("noise") as worker:
                found = worker.call(tasks.noise, described.value, described.folder, truth, missed, least)
            return found or parity.Noise("", ())

        with self._measuring_noise:  # variants side by side ask for it at the same time
            noise = self._stage("noise", key, parity.Noise, make).value
        return noise if noise.how else None

    def arithmetic(self, described: Stage[Described], onnx: Stage[OnnxModel], worker: Worker) -> Stage[Arithmetic]:
        """Find out what an FP32 build of the model takes at least on this machine."""
        made = described.value
        key = store.key(
            onnx=onnx.value,
            samples=made.samples.sha256,
            threads=self.threads,
            code=store.code_hash("graph"),
            versions=self._versions,
            hardware=self._hardware.fingerprint,
        )

        def make(folder: Path) -> Arithmetic:
            return worker.call(tasks.arithmetic, made, described.folder, onnx.value, onnx.folder, folder, self.threads)

        return self._stage("arithmetic", key, Arithmetic, make)

    def python(self, variant: Variant) -> Path:
        """Return the interpreter that builds and runs a variant."""
        return environments.python(targets.discover()[variant.target.name].environment(variant.target))

    def _stage(self, name: str, key: str, cls: type[T], make: Callable[[Path], T]) -> Stage[T]:
        if (value := self._store.get(name, key, cls)) is not None:
            return Stage(value, self._store.folder(name, key), key, cached=True)
        with self._store.writing(name) as folder:
            value = make(folder)
            return Stage(value, self._store.put(name, key, value, folder), key, cached=False)


def _on(ran: Ran, verdict: Parity) -> Parity:
    """Say of a verdict that it was found on part of the feeds, where it was."""
    if ran.feeds == ran.of:
        return verdict
    partly = f"{ran.feeds} of {ran.of} feeds"
    note = (
        f"proved on {partly}: part of the samples, every batch that is timed, and one or two of each other kind; all "
        "are asked of what is chosen, and with --exhaustive of every variant"
    )
    return dataclasses.replace(verdict, notes=(note, *verdict.notes), partly=partly)


def _unproved(source: ModelSource, target: Target) -> tuple[str, ...]:
    """Return the integers of a model that a target's runtime could change, for all that is proved."""
    info = targets.info(target)
    wrapped = source.unproved_int64 if info.int64_as_int32 else ()
    return (*wrapped, *(reason for operator, reason in source.inexact_int64 if operator in info.through_float))


def _versions(*packages: str) -> dict[str, str]:
    """Return package → installed version, with Python's and NumPy's, which every stage runs on."""
    return versions([*packages, "numpy"]) | {"Python": sys.version.split()[0]}


def _builder(variant: Variant) -> dict[str, Any]:
    """Return the parts of a key that say what builds a variant: the code, its packages and its environments' pins."""
    builder, info = targets.discover()[variant.target.name], targets.info(variant.target)
    loads = exporters.PACKAGES if info.needs_source else ()
    return {
        "code": imports.code_hash(type(builder).__module__),
        "versions": _versions(*builder.packages, *loads),
        "environments": [environments.requirements(name) for name in (info.environment, *info.helpers)],
    }


def _measures_ranges(info: TargetInfo) -> bool:
    """Say whether a build looks at samples to find what half precision, maybe the runtime's choice, cannot hold."""
    return info.needs == "onnx" and info.precision in ("fp16", "bf16", "none")
