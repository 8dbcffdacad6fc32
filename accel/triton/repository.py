"""From an artifact to a Triton model repository root, written whole or not at all.

Whatever a backend calls its tensors inside, the model that clients call shows the client contract (``contract``): a
backend that dictates names gets an ensemble in front.
"""

from __future__ import annotations

import os
import shutil
import stat
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from accel.artifacts import (
    Artifact,
    FileRef,
    Parity,
    Repository,
    Skipped,
    TensorSpec,
    TritonModel,
    file_ref,
)
from accel.errors import InputError, OutputError, UsageError
from accel.triton import manifest as manifests
from accel.triton.config import DynamicBatching, Step, TritonConfig, check_model_name, render
from accel.triton.contract import Contract, agree
from accel.triton.launch import script
from accel.triton.python_model import write_model
from accel.triton.releases import Release, runtimes, unverified
from accel.triton.releases import release as find_release
from accel.triton.samples import load_points, warmup, write_reference
from accel.triton.verify import verify

if TYPE_CHECKING:
    from accel.builders import Builder

__all__ = ["emit", "verify"]

ARTIFACT_FOLDER = "artifact"
"""Where a Python-backend version folder keeps the artifact's files; native backends want them at its top."""


def emit(
    artifact: Artifact,
    artifact_folder: Path,
    *,
    inputs: tuple[TensorSpec, ...],
    outputs: tuple[TensorSpec, ...],
    builder: Builder,
    release: str,
    root: Path,
    run_dir: Path,
    model_name: str,
    model_version: int,
    samples: Path,
    reference: Path,
    parity: Parity | None = None,
    unproved: tuple[str, ...] = (),
    python: bool = False,
) -> Repository | Skipped:
    """Write the repository of one artifact at ``root``, replacing an earlier one only by a whole new one.

    Args:
        artifact_folder: where the artifact's files lie; they are hard-linked, or copied to another file system.
        inputs / outputs: what clients are promised: names, dtypes and dims with their batch axis.
        release: Triton release to emit for.
        run_dir: the run's folder; ``Repository.root`` is relative to it.
        samples / reference: ``.npz`` files with the keys ``<point>/<input>`` and ``<point>/<output>`` for the shape
            points ``min``, ``odd``, ``opt`` and ``max``; used for warmup and stored for ``accel verify``.
        parity: what the gate found in process; a served answer is held against it.
        unproved: 64-bit values inside the model that are not proved to fit int32.
        python: serve it through the Python backend, whatever backend the builder would choose.

    Returns:
        The repository, or why that release cannot serve the artifact.

    Raises:
        UsageError: an unknown release, an unsafe model name or a version below 1.
        InputError: the artifact contradicts the contract, a file of it is missing or escapes its folder, or the
            samples lack the opt shape.
        OutputError: the folder cannot be written.
    """
    row = find_release(release)
    check_model_name(model_name)
    if model_version < 1:
        raise UsageError(f"model version {model_version} is not a version folder of Triton", fix="give 1 or more")
    served: TritonModel | Skipped
    if python:
        served = TritonModel("python", artifact.built.entry, dynamic_batching=artifact.variant.static is None)
    else:
        served = builder.triton(artifact, release)
    if isinstance(served, Skipped):
        return served
    if (reason := _unservable(served, row)) is not None:
        return reason
    fresh = root.parent / f".{root.name}.new-{uuid.uuid4().hex[:8]}"
    try:
        _clear_leftovers(root)
        fresh.mkdir(parents=True)
        plan = _Plan(
            artifact=artifact,
            folder=artifact_folder,
            served=served,
            contract=agree(artifact, inputs, outputs, served=served),
            parity=parity,
            unproved=unproved,
            builder=builder,
            row=row,
            name=model_name,
            version=model_version,
        )
        models = _fill(fresh, plan, samples=samples, reference=reference)
        _replace(root, fresh)
    except OSError as error:
        raise OutputError(
            f"cannot write the repository {root}: {error}", fix="free space, or give another -o"
        ) from error
    finally:
        shutil.rmtree(fresh, ignore_errors=True)
    return Repository(
        root=os.path.relpath(root, run_dir).replace(os.sep, "/"),
        models=models,
        release=release,
        backend=served.backend,
        unverified=_differences(artifact, served, row=row),
    )


def _unservable(served: TritonModel, row: Release) -> Skipped | None:
    if served.backend not in row.backends:
        return Skipped(f"Triton {row.name} has no {served.backend} backend", "choose another --triton-release")
    if served.platform == "torch_aoti" and not row.torch_aoti:
        return Skipped(
            f"Triton {row.name} does not serve AOTInductor packages", "choose --triton-release 26.05 or newer"
        )
    return None


def _differences(artifact: Artifact, served: TritonModel, *, row: Release) -> tuple[str, ...]:
    wanted = runtimes(served.backend, tuple(name for _, name, _ in served.accelerators))
    versions = {
        name: version
        for name, version in artifact.built.versions.items()
        if any(name.lower().replace("_", "-").startswith(package) for package in wanted)
    }
    return unverified(versions, row)


@dataclass(frozen=True, slots=True)
class _Plan:
    """What is emitted: the artifact and where it lies, how it is served, and under which name."""

    artifact: Artifact
    folder: Path
    served: TritonModel
    contract: Contract
    parity: Parity | None
    unproved: tuple[str, ...]
    builder: Builder
    row: Release
    name: str
    version: int


def _fill(root: Path, plan: _Plan, *, samples: Path, reference: Path) -> tuple[str, ...]:
    """Write everything below the empty folder ``root``; return the model folders, the one clients call first."""
    artifact, served, contract, row = plan.artifact, plan.served, plan.contract, plan.row
    name, version = plan.name, plan.version
    is_python = served.backend == "python"
    renamed = not is_python and any(a != b for a, b in (*served.input_names.items(), *served.output_names.items()))
    inner = f"{name}_{'aoti' if served.platform == 'torch_aoti' else served.backend}" if renamed else name
    models = (name, inner) if renamed else (name,)

    version_folder = root / inner / str(version)
    files_folder = version_folder / ARTIFACT_FOLDER if is_python else version_folder
    known = _link(artifact.files, plan.folder, target=files_folder, root=root)
    if is_python:
        write_model(
            version_folder,
            artifact,
            builder=plan.builder,
            inputs=contract.inputs,
            outputs=contract.outputs,
            batched=contract.batch > 0,
            numpy_below_2=row.numpy_below_2,
        )
    elif not (version_folder / served.filename).exists():
        raise InputError(f"{artifact.variant.id} has no file {served.filename!r}, which Triton is to load")

    points = load_points(samples, reference, inputs=contract.inputs, outputs=contract.outputs)
    warm = warmup(points["opt"].inputs, contract.inputs, batch=contract.batch, profile=artifact.variant.profile)
    for file, content in warm.files.items():
        target = root / inner / "warmup" / file
        target.parent.mkdir(exist_ok=True)
        target.write_bytes(content)
    front = TritonConfig(
        name=name,
        inputs=contract.without_batch(contract.inputs),
        outputs=contract.without_batch(contract.outputs),
        max_batch_size=contract.batch,
        versions=(version,),
    )
    inside = TritonConfig(
        name=inner,
        inputs=_rename(front.inputs, served.input_names if renamed else {}),
        outputs=_rename(front.outputs, served.output_names if renamed else {}),
        max_batch_size=contract.batch,
        versions=(version,),
        backend=served.backend,
        platform=served.platform,
        filename="model.py" if is_python else served.filename,
        kind="KIND_GPU" if artifact.variant.target.device == "cuda" and served.backend != "openvino" else "KIND_CPU",
        batching=DynamicBatching() if contract.batch > 1 else None,
        warmup=warm.renamed(served.input_names if renamed else {}),
        accelerators=served.accelerators,
        parameters=served.parameters,
    )
    (root / inner / "config.pbtxt").write_text(render(inside), encoding="utf-8")
    if renamed:
        _write_front(root, front, inside=inside, served=served)
    (root / "launch.sh").write_text(
        script(row, artifact, requires=artifact.built.versions if is_python else None), encoding="utf-8"
    )
    (root / "launch.sh").chmod(0o755)
    write_reference(root / manifests.REFERENCE, points)
    manifests.write(
        manifests.Manifest(
            variant=artifact.variant.id,
            models=models,
            version=version,
            release=row.name,
            backend=served.backend,
            files=_describe(root, known),
            inputs=contract.inputs,
            outputs=contract.outputs,
            max_batch_size=contract.batch,
            unverified=_differences(artifact, served, row=row),
            requires=dict(artifact.built.versions) if is_python else {},
            artifact=artifact,
            parity=plan.parity,
            unproved_int64=plan.unproved,
            reference_points=tuple(points),
        ),
        root,
    )
    return models


def _rename(specs: tuple[TensorSpec, ...], names: Mapping[str, str]) -> tuple[TensorSpec, ...]:
    return tuple(TensorSpec(names.get(s.name, s.name), s.dtype, s.dims) for s in specs)


def _write_front(root: Path, front: TritonConfig, *, inside: TritonConfig, served: TritonModel) -> None:
    """Put an ensemble before a backend that dictates tensor names, so that clients keep theirs.

    Source: an ensemble tensor is written once (core, src/model_config_utils.cc, BuildEnsembleGraph), so one name cannot
    be both an input and an output.
    """
    if both := {s.name for s in front.inputs} & {s.name for s in front.outputs}:
        raise InputError(f"{sorted(both)} name both an input and an output: no ensemble can map them")
    step = Step(
        inside.name,
        {served.input_names.get(s.name, s.name): s.name for s in front.inputs},
        {served.output_names.get(s.name, s.name): s.name for s in front.outputs},
    )
    ensemble = TritonConfig(
        name=front.name,
        inputs=front.inputs,
        outputs=front.outputs,
        max_batch_size=front.max_batch_size,
        versions=front.versions,
        platform="ensemble",
        steps=(step,),
    )
    # Every model of a repository needs its version folder, and an ensemble has nothing to put there.
    version_folder = root / front.name / str(front.versions[0])
    version_folder.mkdir(parents=True)
    (version_folder / "README").write_text(f"Maps names only; the work is done by {inside.name}.\n", encoding="utf-8")
    (root / front.name / "config.pbtxt").write_text(render(ensemble), encoding="utf-8")


def _link(files: tuple[FileRef, ...], source: Path, *, target: Path, root: Path) -> dict[str, FileRef]:
    """Hard-link the artifact's files below ``target``; return them by their path below ``root``."""
    known: dict[str, FileRef] = {}
    for file in files:
        relative = PurePosixPath(file.path)
        if relative.is_absolute() or ".." in relative.parts:
            raise InputError(f"artifact file {file.path!r} lies outside the artifact's folder")
        origin, copy = source / relative, target / relative
        try:
            status = origin.lstat()
        except FileNotFoundError as error:
            raise InputError(f"artifact file {origin} is missing", fix="build the variant again") from error
        if not stat.S_ISREG(status.st_mode) or status.st_size != file.bytes:
            raise InputError(
                f"artifact file {origin} has {status.st_size} bytes or is no plain file, expected {file.bytes} bytes",
                fix="build the variant again",
            )
        copy.parent.mkdir(parents=True, exist_ok=True)
        try:
            os.link(origin, copy)
        except OSError:
            shutil.copy2(origin, copy)
        path = copy.relative_to(root).as_posix()
        known[path] = FileRef(path, file.sha256, file.bytes)
    return known


def _describe(root: Path, known: Mapping[str, FileRef]) -> tuple[FileRef, ...]:
    """Describe every file below ``root``; the artifact's own are already hashed."""
    paths = sorted(p for p in root.rglob("*") if p.is_file())
    return tuple(known.get(p.relative_to(root).as_posix()) or file_ref(p, root) for p in paths)


def _clear_leftovers(root: Path) -> None:
    """Remove what a killed emit left beside ``root``, after putting back a root that it had moved away."""
    for old in sorted(root.parent.glob(f".{root.name}.old-*")):
        if not root.exists():
            old.rename(root)
    for stale in [*root.parent.glob(f".{root.name}.old-*"), *root.parent.glob(f".{root.name}.new-*")]:
        shutil.rmtree(stale)


def _replace(root: Path, fresh: Path) -> None:
    """Rename ``fresh`` to ``root``; an earlier root comes back if that fails."""
    if not root.exists():
        fresh.rename(root)
        return
    old = fresh.with_name(fresh.name.replace(".new-", ".old-"))
    root.rename(old)
    try:
        fresh.rename(root)
    except OSError:
        old.rename(root)
        raise
    shutil.rmtree(old)
