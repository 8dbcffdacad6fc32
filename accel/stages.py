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

from accel import environments, parity, sources, store, targets
from accel.artifacts import (
    Artifact,
    BuildRequest,
    Built,
    ModelSource,
    OnnxModel,
    Parity,
    Repository,
    SampleSet,
    Skipped,
    Variant,
    file_refs,
    from_json,
    to_json,
)
from accel.contract import Narrowed
from accel.exporters.processing import find
from accel.hardware import Hardware
from accel.job import Job
from accel.store import Store
from accel.triton.overrides import file_hashes
from accel.worker import run_task

FILES = "files"
"""Folder of the built files inside a build's result; its log lies beside."""

LOG = "build.log"
REPOSITORY = "repository"
"""Folder of the Triton model repository inside an emission's result."""

TWIN = ".python"
"""What a repository's name ends in where the Python backend serves the same artifact as a native backend beside it."""

TOOLCHAIN = ("torch", "transformers", "onnx", "onnxscript", "onnxruntime", "openvino", "nncf", "numpy", "tritonclient")


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
        self._versions = store.package_versions(*TOOLCHAIN) | {"python": sys.version.split()[0]}
        self.logs = job.run_dir / "logs"

    def describe(self) -> Stage:
        """Load the source once, and make its samples."""
        request = to_json(self._job.source)
        quick = sources.quick_key(self._job.source) or self._run("source_key", {"request": request}, "source")
        code = store.code_hash("sources.py", "samples.py", "exporters")
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
            code=store.code_hash("exporters", "tasks.py"),
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
            code=store.code_hash("exporters"),
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
        key = store.key(params=params, code=store.code_hash("graph", "contract.py"), versions=self._versions)

        def make(folder: Path) -> Narrowed:
            answer = self._run("narrow", {**params, "folder": str(onnx.folder), "out_dir": str(folder)}, "narrow")
            return from_json(Narrowed, answer)

        return self._stage("narrow", key, Narrowed, make)

    def build(self, variant: Variant, described: Stage, onnx: Stage | None) -> Stage:
        """Build one variant."""
        made: Described = described.value
        info = targets.info(variant.target)
        parent = made.source.key if onnx is None or info.needs != "onnx" else onnx.value.file.sha256
        key = store.key(
            variant=variant,
            parent=parent,
            contract=(made.source.inputs, made.source.outputs),
            data=[f.sha256 for f in onnx.value.data] if onnx and info.needs == "onnx" else [],
            calibration=made.samples.sha256 if info.calibration else None,
            code=self._builder_code(variant),
            versions=self._versions,
            environment=environments.requirements(targets.discover()[variant.target.name].environment(variant.target)),
            kind=(made.source.mask, made.source.family),
            hardware=self._hardware.fingerprint,
        )

        def make(folder: Path) -> Artifact:
            request = BuildRequest(
                variant=variant,
                source=made.source,
                onnx=onnx.value if onnx else None,
                onnx_folder=str(onnx.folder) if onnx else None,
                samples=made.samples,
                samples_folder=str(described.folder),
                threads=self._job.threads,
            )
            files = folder / FILES
            files.mkdir()
            log = self.logs / f"{variant.id}.log"
            log.unlink(missing_ok=True)
            params = {"request": to_json(request), "out_dir": str(files)}
            answer = self._run("build", params, variant.id, python=self.python(variant))
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
            code=store.code_hash("parity.py", "tasks.py", "builders/__init__.py"),
            hardware=self._hardware.fingerprint,
        )

        def make(folder: Path) -> Proof:
            shared = {
                "source": to_json(made.source),
                "samples": to_json(made.samples),
                "samples_folder": str(described.folder),
            }
            found = folder / "answers.npz"
            params = {"artifact": to_json(artifact), "folder": str(built.folder / FILES), "out": str(found)}
            ran = self._run(
                "answers",
                {**shared, **params, "threads": self._job.threads},
                artifact.variant.id,
                python=self.python(artifact.variant),
            )
            held = ran["precision"] if asked == "none" else asked
            gate = parity.gate_for(held, outputs=made.source.outputs, task=made.source.gate, overrides=gates)
            truth = reference.folder / reference.value.file
            params = {"reference": str(truth), "answers": str(found), "gate": gate}
            verdict = from_json(Parity, self._run("compare", {**shared, **params}, artifact.variant.id))
            found.unlink()
            if made.source.unproved_int64 and int32_inside and not self._job.allow_unproved_int64:
                values = "; ".join(made.source.unproved_int64[:3])
                more = len(made.source.unproved_int64) - 3
                reason = f"computes int64 as int32, and these values are not proved to fit: {values}"
                reason += f"; and {more} more" if more > 0 else ""
                verdict = Parity(False, verdict.gate, verdict.found, verdict.outputs, (reason, *verdict.reasons))
            if parity.coarser(ran["precision"], held):
                reason = f"computes in {ran['precision']}, and {held} was asked for"
                verdict = Parity(False, verdict.gate, verdict.found, verdict.outputs, (reason, *verdict.reasons))
            return Proof(verdict, ran["precision"], held, ran["feeds"])

        return self._stage(f"proof-{artifact.variant.id}", key, Proof, make)

    def emit(self, built: Stage, proof: Stage, described: Stage, reference: Stage, *, twin: bool = False) -> Stage:
        """Write the Triton model repository of a built variant, or its twin that the Python backend serves."""
        artifact: Artifact = built.value
        made: Described = described.value
        builder = targets.discover()[artifact.variant.target.name]
        answer = builder.triton(artifact, self._job.triton_release)
        pipeline = self._job.ensemble and find(made.source, self._job.ensemble)
        overrides = self._job.triton.get(artifact.variant.target.name + (TWIN if twin else ""), "")
        key = store.key(
            build=built.key,
            proof=proof.key,
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
            code=store.code_hash("triton", "artifacts.py", "builders"),
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
                "parity": to_json(proof.value.parity),
                "python": twin,
                "overrides": overrides,
                "pipeline": to_json(pipeline),
                "threads": self._job.threads,
                "hardware": self._hardware.id,
            }
            return from_json(Emitted, self._run("emit", params, artifact.variant.id))

        return self._stage(f"emit-{artifact.variant.id}{TWIN if twin else ''}", key, Emitted, make)

    def python(self, variant: Variant) -> Path:
        """Return the interpreter that builds and runs a variant."""
        return environments.python(targets.discover()[variant.target.name].environment(variant.target))

    def _builder_code(self, variant: Variant) -> str:
        module = sys.modules[type(targets.discover()[variant.target.name]).__module__]
        shared = [
            f"builders/{p.name}" for p in (store.PACKAGE / "builders").glob("*.py") if not p.stem.startswith("to_")
        ]
        loader = ["exporters"] if targets.info(variant.target).needs == "torch" else []
        return store.code_hash(str(module.__file__), "graph", *shared, *loader)

    def _stage(self, name: str, key: str, cls: type[Any], make: Callable[[Path], Any]) -> Stage:
        if (value := self._store.get(name, key, cls)) is not None:
            return Stage(value, self._store.folder(name, key), key, cached=True)
        with self._store.writing(name, key) as folder:
            value = make(folder)
            return Stage(value, self._store.put(name, key, value, folder), key, cached=False)

    def _run(self, task: str, params: Any, log: str, *, python: Path | None = None) -> Any:
        return run_task(
            task,
            params,
            log=self.logs / f"{log}.log",
            threads=self._job.threads,
            timeout_s=self._job.timeout_s,
            python=python,
        )
