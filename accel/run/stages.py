"""The stages, each as: a key over all it depends on, the stored result if there is one, else a worker process.

A stage's key holds the content it starts from, its options, the hash of its own code, the toolchain's versions and,
where the result depends on the machine, the hardware's fingerprint. What happens inside a stage is elsewhere
(exporters, builders, parity, triton, bench); the order of the stages is in ``pipeline``.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from accel import exporters
from accel.accuracy import parity
from accel.builders import TargetInfo, targets
from accel.builders.requirements import versions
from accel.core import environments, imports
from accel.core.hardware import Hardware
from accel.core.processes import run_task
from accel.core.values import (
    Artifact,
    BuildRequest,
    Built,
    ModelSource,
    OnnxModel,
    Parity,
    Repository,
    SampleSet,
    Skipped,
    Typed,
    Variant,
    file_refs,
    from_json,
    to_json,
)
from accel.exporters import sources
from accel.exporters.processing_files import find
from accel.run import kits, store
from accel.run.job import Job
from accel.run.narrowed import Narrowed
from accel.run.store import Store
from accel.triton import releases
from accel.triton.launch import image
from accel.triton.overrides import file_hashes

FILES = "files"
"""Folder of the built files inside a build's result; its log lies beside."""

LOG = "build.log"
REPOSITORY = "repository"
"""Folder of the Triton model repository inside an emission's result."""

TWIN = ".python"
"""What a repository's name ends in where the Python backend serves the same artifact as a native backend beside it."""


@dataclass(frozen=True, slots=True)
class Described:
    """A source and its samples."""

    source: ModelSource
    samples: SampleSet


@dataclass(frozen=True, slots=True)
class Answered:
    """The reference outputs of a source: a file in the stage's folder."""

    file: str
    feeds: int


@dataclass(frozen=True, slots=True)
class Proof:
    """What running a variant over all feeds showed.

    Attributes:
        precision: what it really computed in.
        asked: the precision whose gate it was held against.
        feeds: how many feeds it was compared on; a build of one fixed shape cannot take them all.
    """

    parity: Parity
    precision: str
    asked: str
    feeds: int


@dataclass(frozen=True, slots=True)
class Emitted:
    """A repository as ``triton`` emitted it, in the stage's folder, or why the release cannot serve it."""

    repository: Repository | None
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class Stage:
    """A stage's value, where its files lie, its key, and whether it was there already."""

    value: Any
    folder: Path
    key: str
    cached: bool


class Stages:
    """The stages of one run, over one store.

    Args:
        job: what was asked.
        hardware: this machine.
        kept: where results are kept.
    """

    def __init__(self, job: Job, hardware: Hardware, kept: Store) -> None:
        self._job = job
        self._hardware = hardware
        self._store = kept
        self._versions = _versions(*exporters.PACKAGES)
        self.run_dir = job.run_dir
        self.logs = job.run_dir / "logs"

    def describe(self) -> Stage:
        """Load the source once, and make its samples."""
        request = to_json(self._job.source)
        quick = sources.quick_key(self._job.source) or self._run("source_key", {"request": request}, "source")
        code = store.code_hash("exporters", "core/feeds.py")
        key = store.key(quick=quick, code=code, versions=self._versions)

        def make(folder: Path) -> Described:
            made = self._run("describe", {"request": request, "out_dir": str(folder)}, "source")
            return from_json(Described, made)

        stage = self._stage("source", key, Described, make)
        if self._job.ensemble is not None:
            find(stage.value.source, self._job.ensemble)  # a step that cannot be ends the run before anything is built
        return stage

    def reference(self, described: Stage) -> Stage:
        """Run the source itself over all feeds."""
        made: Described = described.value
        key = store.key(
            source=made.source,
            samples=made.samples.sha256,
            code=store.code_hash("exporters", "run/tasks.py"),
            versions=self._versions,
            hardware=self._hardware.fingerprint,
        )

        def make(folder: Path) -> Answered:
            params = {
                "source": to_json(made.source),
                "samples": to_json(made.samples),
                "samples_folder": str(described.folder),
                "out": str(folder / "reference.npz"),
            }
            return Answered("reference.npz", self._run("reference", params, "reference")["feeds"])

        return self._stage("reference", key, Answered, make)

    def export(self, described: Stage, reference: Stage) -> Stage:
        """Export the source to ONNX and check the file against the reference."""
        made: Described = described.value
        source = to_json(made.source)
        key = store.key(
            source=source,
            opset=self._job.opset,
            reference=reference.key,
            code=store.code_hash("exporters", "accuracy"),
            versions=self._versions,
        )

        def make(folder: Path) -> OnnxModel:
            params = {
                "source": source,
                "samples": to_json(made.samples),
                "samples_folder": str(described.folder),
                "reference": str(reference.folder / reference.value.file),
                "opset": self._job.opset,
                "out_dir": str(folder),
            }
            return from_json(OnnxModel, self._run("export", params, "export"))

        return self._stage("onnx", key, OnnxModel, make)

    def narrow(self, described: Stage, onnx: Stage) -> Stage:
        """Narrow the exported model's integers at the job's level, as far as that is proved."""
        made: Described = described.value
        params = {"source": to_json(made.source), "onnx": to_json(onnx.value), "level": self._job.ints}
        key = store.key(params=params, code=store.code_hash("graph", "run/narrowed.py"), versions=self._versions)

        def make(folder: Path) -> Narrowed:
            answer = self._run("narrow", {**params, "folder": str(onnx.folder), "out_dir": str(folder)}, "narrow")
            return from_json(Narrowed, answer)

        return self._stage("narrow", key, Narrowed, make)

    def prepare(
        self, variant: Variant, described: Stage, onnx: Stage, *, tell: Callable[[str], None] | None = None
    ) -> Stage:
        """Type the exported ONNX file for a variant whose precision is made there; ``tell`` as for ``build``."""
        made: Described = described.value
        key = store.key(
            variant=variant,
            onnx=(onnx.value.file.sha256, [f.sha256 for f in onnx.value.data]),
            samples=made.samples.sha256,
            gates=self._gates(variant),
            contract=(made.source.inputs, made.source.outputs),
            **_builder(variant),
        )

        def make(folder: Path) -> Typed:
            files = folder / FILES
            files.mkdir()
            params = {"request": self._request(variant, described, onnx), "out_dir": str(files)}
            return from_json(Typed, self._run("prepare", params, variant.id, tell=tell))

        return self._stage(f"typed-{variant.id}", key, Typed, make)

    def prove_typed(self, variant: Variant, typed: Stage, described: Stage, reference: Stage) -> Stage:
        """Run a typed ONNX file over all feeds on the CPU and hold it against the variant's gate."""
        asked = targets.info(variant.target).precision
        key = store.key(
            typed=typed.key,
            reference=reference.key,
            gates=dict(self._job.gates),
            code=store.code_hash("accuracy", "run/tasks.py"),
            hardware=self._hardware.fingerprint,
        )

        def make(folder: Path) -> Proof:
            found = folder / "answers.npz"
            params = {
                "of": variant.target.name,
                "typed": to_json(typed.value),
                "folder": str(typed.folder / FILES),
                "out": str(found),
                "threads": self._job.threads,
            }
            ran = self._run("typed_answers", {**_shared(described), **params}, variant.id)
            verdict = self._compare(asked, found, described, reference, variant.id)
            found.unlink()
            return Proof(verdict, asked, asked, ran["feeds"])

        return self._stage(f"typed-proof-{variant.id}", key, Proof, make)

    def kit(
        self, variant: Variant, typed: Stage, proof: Stage, described: Stage, reference: Stage, *, reason: str
    ) -> Stage:
        """Put together what finishes a variant on a machine that can build it."""
        made: Described = described.value
        job = self._job
        overrides = job.triton.get(variant.target.name, "")
        row = releases.release(job.triton_release)
        builder = targets.discover()[variant.target.name]
        kit = kits.Kit(
            variant=variant,
            source=made.source,
            samples=made.samples,
            onnx=typed.value.onnx,
            typing=typed.value.facts,
            proof=proof.value.parity,
            feeds=reference.value.feeds,
            settings=kits.Settings(
                gates=dict(job.gates),
                objectives=job.objectives,
                constraints=job.constraints,
                rounds=job.rounds,
                round_s=job.round_s,
                timeout_s=job.timeout_s,
                triton_release=job.triton_release,
                model_version=job.model_version,
                overrides=overrides,
            ),
            toolchain=kits.Toolchain(
                {p: v for b in builder.backends for p, v in releases.carried(row, b.name).items() if v is not None},
                image(row),
                _versions(*builder.packages),
            ),
            reason=reason,
            command=job.command,
        )
        key = store.key(
            kit=kit,
            typed=typed.key,
            proof=proof.key,
            reference=reference.key,
            override_files=file_hashes(overrides),
            code=store.code_hash("run/kits.py"),
        )

        def make(folder: Path) -> kits.Kit:
            files = folder / FILES
            files.mkdir()
            return kits.write(
                kit,
                files,
                onnx=typed.folder / FILES,
                samples=described.folder,
                reference=reference.folder / reference.value.file,
            )

        return self._stage(f"kit-{variant.id}", key, kits.Kit, make)

    def build(
        self, variant: Variant, described: Stage, onnx: Stage | None, *, tell: Callable[[str], None] | None = None
    ) -> Stage:
        """Build one variant, from the typed ONNX file where it has one.

        Args:
            tell: takes short phrases on how far a long build is.
        """
        made: Described = described.value
        info = targets.info(variant.target)
        parent = made.source.key if onnx is None or info.needs != "onnx" else onnx.value.file.sha256
        key = store.key(
            variant=variant,
            parent=parent,
            contract=(made.source.inputs, made.source.outputs),
            data=[f.sha256 for f in onnx.value.data] if onnx and info.needs == "onnx" else [],
            calibration=made.samples.sha256 if info.calibration or _measures_ranges(info) else None,
            gates=self._gates(variant),
            **_builder(variant),
            kind=(made.source.mask, made.source.family),
            hardware=self._hardware.fingerprint,
        )

        def make(folder: Path) -> Artifact:
            files = folder / FILES
            files.mkdir()
            log = self.logs / f"{variant.id}.log"
            log.unlink(missing_ok=True)
            params = {"request": self._request(variant, described, onnx), "out_dir": str(files)}
            answer = self._run("build", params, variant.id, python=self.python(variant), tell=tell)
            shutil.copyfile(log, folder / LOG)
            for file in files.rglob("*"):
                if file.is_file():
                    file.chmod(0o444)  # linked into variants/ and repositories/: one body, never edited in place
            built = from_json(Built, answer["built"])
            return Artifact(variant, file_refs(files), parent, built, answer["build_s"])

        return self._stage(f"build-{variant.id}", key, Artifact, make)

    def prove(self, built: Stage, described: Stage, reference: Stage) -> Stage:
        """Run a built variant over all feeds and hold it against its gate."""
        artifact: Artifact = built.value
        made: Described = described.value
        asked = targets.info(artifact.variant.target).precision
        int32_inside = targets.info(artifact.variant.target).int64_as_int32
        gates = dict(self._job.gates)
        key = store.key(
            build=built.key,
            reference=reference.key,
            gates=gates,
            unproved=made.source.unproved_int64 if int32_inside and not self._job.allow_unproved_int64 else (),
            code=store.code_hash("accuracy", "run/tasks.py", "builders/__init__.py"),
            hardware=self._hardware.fingerprint,
        )

        def make(folder: Path) -> Proof:
            found = folder / "answers.npz"
            params = {"artifact": to_json(artifact), "folder": str(built.folder / FILES), "out": str(found)}
            ran = self._run(
                "answers",
                {**_shared(described), **params, "threads": self._job.threads},
                artifact.variant.id,
                python=self.python(artifact.variant),
            )
            held = ran["precision"] if asked == "none" else asked
            verdict = self._compare(held, found, described, reference, artifact.variant.id)
            found.unlink()
            if made.source.unproved_int64 and int32_inside and not self._job.allow_unproved_int64:
                values = "; ".join(made.source.unproved_int64[:3])
                more = len(made.source.unproved_int64) - 3
                reason = f"computes int64 as int32, and these values are not proved to fit: {values}"
                reason += f"; and {more} more" if more > 0 else ""
                verdict = parity.refused(verdict, reason)
            if parity.coarser(ran["precision"], held):
                reason = f"computes in {ran['precision']}, and {held} was asked for"
                verdict = parity.refused(verdict, reason)
            return Proof(verdict, ran["precision"], held, ran["feeds"])

        return self._stage(f"proof-{artifact.variant.id}", key, Proof, make)

    def emit(
        self, built: Stage, proof: Stage | None, described: Stage, reference: Stage, *, twin: bool = False
    ) -> Stage:
        """Write the Triton model repository of a built variant, or its twin that the Python backend serves.

        Args:
            proof: None for a variant that only a server can run.
        """
        artifact: Artifact = built.value
        made: Described = described.value
        builder = targets.discover()[artifact.variant.target.name]
        answer = builder.triton(artifact, self._job.triton_release)
        pipeline = self._job.ensemble and find(made.source, self._job.ensemble)
        overrides = self._job.triton.get(artifact.variant.target.name + (TWIN if twin else ""), "")
        key = store.key(
            build=built.key,
            proof=proof.key if proof else None,
            samples=made.samples.sha256,
            reference=reference.key,
            twin=twin,
            name=made.source.name,
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
            params = {
                "artifact": to_json(artifact),
                "folder": str(built.folder / FILES),
                "source": to_json(made.source),
                "release": self._job.triton_release,
                "root": str(folder / REPOSITORY),
                "model_version": self._job.model_version,
                "samples": str(described.folder / made.samples.shapes.path),
                "reference": str(reference.folder / reference.value.file),
                "parity": to_json(proof.value.parity) if proof else None,
                "python": twin,
                "overrides": overrides,
                "pipeline": to_json(pipeline),
                "threads": self._job.threads,
                "hardware": self._hardware.id,
            }
            return from_json(Emitted, self._run("emit", params, artifact.variant.id))

        return self._stage(f"emit-{artifact.variant.id}{TWIN if twin else ''}", key, Emitted, make)

    def _request(self, variant: Variant, described: Stage, onnx: Stage | None) -> Any:
        request = BuildRequest(
            variant=variant,
            source=described.value.source,
            onnx=onnx.value if onnx else None,
            onnx_folder=str(onnx.folder) if onnx else None,
            samples=described.value.samples,
            samples_folder=str(described.folder),
            threads=self._job.threads,
            gates=self._gates(variant),
        )
        return to_json(request)

    def _gates(self, variant: Variant) -> dict[str, float]:
        return parity.bearing(self._job.gates, targets.info(variant.target).precision)

    def _compare(self, held: str, found: Path, described: Stage, reference: Stage, id: str) -> Parity:
        """Hold answers against the gate of a precision."""
        source: ModelSource = described.value.source
        gate = parity.gate_for(
            held,
            outputs=source.outputs,
            task=source.gate,
            overrides=dict(self._job.gates),
            detections=source.detections,
        )
        truth = reference.folder / reference.value.file
        params = {"reference": str(truth), "answers": str(found), "gate": gate}
        return from_json(Parity, self._run("compare", {**_shared(described), **params}, id))

    def python(self, variant: Variant) -> Path:
        """Return the interpreter that builds and runs a variant."""
        return environments.python(targets.discover()[variant.target.name].environment(variant.target))

    def _stage(self, name: str, key: str, cls: type[Any], make: Callable[[Path], Any]) -> Stage:
        if (value := self._store.get(name, key, cls)) is not None:
            return Stage(value, self._store.folder(name, key), key, cached=True)
        with self._store.writing(name, key) as folder:
            value = make(folder)
            return Stage(value, self._store.put(name, key, value, folder), key, cached=False)

    def _run(
        self,
        task: str,
        params: Any,
        log: str,
        *,
        python: Path | None = None,
        tell: Callable[[str], None] | None = None,
    ) -> Any:
        return run_task(
            task,
            params,
            log=self.logs / f"{log}.log",
            threads=self._job.threads,
            timeout_s=self._job.timeout_s,
            python=python,
            tell=tell,
        )


def _versions(*packages: str) -> dict[str, str]:
    """Return package → installed version, with Python's and NumPy's, which every stage runs on."""
    return versions([*packages, "numpy"]) | {"python": sys.version.split()[0]}


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
    """Say whether a build looks at samples to find what half precision cannot hold."""
    return info.needs == "onnx" and info.precision in ("fp16", "bf16")


def _shared(described: Stage) -> dict[str, Any]:
    """Return the parameters of every task that runs over the samples."""
    made: Described = described.value
    return {
        "source": to_json(made.source),
        "samples": to_json(made.samples),
        "samples_folder": str(described.folder),
    }
