"""The routed variant of a repository: its native model as it is, and before it one that groups requests by length.

A native backend merges requests of one shape only. Here the model that clients call runs in the Python backend: it
takes requests in, groups them by length (``grouping``) and has each group answered by the native model beside it, the
core. The core keeps what its config says of the runtime and its instances, and is warmed up at every length. What the
config says of clients (queue, response cache, labels) goes to the model in front; so does an ensemble.
"""

import dataclasses
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from accel.core.errors import InputError, OutputError
from accel.core.files import link_or_copy, replacing, write_text
from accel.core.values import PYTHON_BACKEND, Repository
from accel.triton import ensemble, manifest as manifests, overrides
from accel.triton.config import LIMITED, allow_lengths, check, copy_fields, model_config, parse, to_text
from accel.triton.contract import Contract, largest_batch
from accel.triton.folders import describe, link_tree
from accel.triton.launch import DEPLOYMENT, require, write_launch
from accel.triton.manifest import Manifest
from accel.triton.python_model import ROUTED, Core, write_model
from accel.triton.reading import CONFIG, read_configs, read_points
from accel.triton.releases import release
from accel.triton.samples import Warmup, warmup

CORE = "_core"
"""What the native model's name ends in where clients know it by the name in front."""

OF_CLIENTS = ("dynamic_batching", "response_cache")
"""Fields that say how requests of clients wait and are answered: the model in front has them, and the core has not."""


def why_not(manifest: Manifest) -> str | None:
    """Say why a repository has no routed variant; None where it has one."""
    if manifest.core is not None:
        return f"{manifest.models[0]} routes already"
    if manifest.grouping is None:
        return (
            manifest.ungrouped
            or f"{manifest.variant} has no lengths, or was not asked whether requests may share calls"
        )
    if manifest.grouping.mask is None:
        return "no mask hides padding: the native backend merges requests of one shape itself"
    if manifest.backend == PYTHON_BACKEND:
        return "its model in the Python backend groups requests by length itself"
    if any(s.dtype == "bfloat16" for s in (*manifest.inputs, *manifest.outputs)):
        return "NumPy, in which the Python backend has tensors, has no bfloat16"
    return None if _contract(manifest).batch > 1 else "its requests are not merged"


def write_routed(root: Path, out: Path) -> Repository:
    """Emit the repository at ``root`` once more, with a model before the native one that groups requests by length.

    Clients see the same model: its name, inputs and outputs. A backend that cannot batch (openvino) had
    ``max_batch_size`` 0; clients of this repository may send up to the profile's largest batch.

    Args:
        root: a repository that accel emitted for a native backend; it stays as it is.
        out: folder to write; it must not exist. Files are hard-linked where the file system allows.

    Raises:
        InputError: ``root`` has no readable manifest or config, or ``why_not`` says why it has no such variant.
        OutputError: ``out`` exists or cannot be written.
    """
    manifest = manifests.read(root)
    if (reason := why_not(manifest)) is not None:
        raise InputError(
            f"{root} cannot be routed: {reason}", fix="take a native repository with grouping in its manifest"
        )
    if out.exists():
        raise OutputError(f"{out} exists already", fix="give a folder that does not")
    configs = read_configs(root)
    holder, _ = manifests.holder(root, manifest)
    name = manifest.models[0]
    core = _core(configs[name], holder)
    around = ensemble.parts(manifest, configs)
    carried = [model for model in manifest.models if model not in (name, holder, *around)]
    contract = _contract(manifest)
    with replacing(out) as fresh:
        fresh.mkdir()
        _write_core(root / holder, fresh / core.name, manifest, core, read_points(root, manifest))
        _write_router(root / name, fresh / name, manifest, core, contract, configs[holder])
        for model in carried:
            link_tree(root / model, fresh / model)
        for file in (manifests.REFERENCE, DEPLOYMENT):
            link_or_copy(root / file, fresh / file)
        row = release(manifest.release)
        write_launch(fresh, require((root / "launch.sh").read_text(encoding="utf-8"), row, ()), row)
        moved = {f"{model}/": f"{model}/" for model in carried} | {
            f"{holder}/{manifest.version}/": f"{core.name}/{manifest.version}/"
        }
        known = {
            new: dataclasses.replace(f, path=new)
            for f in manifest.files
            for old, at in moved.items()
            if f.path.startswith(old) and (new := at + f.path.removeprefix(old))
        }
        made = dataclasses.replace(
            manifest,
            models=(name, core.name, *carried),
            files=describe(fresh, known),
            max_batch_size=contract.batch,
            requires={},
            pipeline=None,
            tuned=None,
            grouping=dataclasses.replace(manifest.grouping, packing=None) if manifest.grouping else None,
            core=core.name,
        )
        manifests.write(made, fresh)
        pipeline = ensemble.read(root)
        added = ensemble.add(fresh, pipeline) if pipeline is not None else ()
    return Repository(
        root=out.name,
        models=(*made.models, *added),
        release=made.release,
        backend=made.backend,
        unverified=made.unverified,
    )


def _contract(manifest: Manifest) -> Contract:
    """Return what clients see: as of the Python backend, at no larger batch than was asked for."""
    inputs, outputs = manifest.inputs, manifest.outputs
    batch = largest_batch(inputs, outputs, manifest.artifact.variant.profile)
    asked = overrides.max_batch_size(manifest.overrides)
    return Contract(inputs, outputs, batch if asked is None else min(asked, batch))


def _core(front: Any, holder: str) -> Core:
    """Return the core's name and those of its tensors, from the config of the model that clients call."""
    if front.name == holder:
        return Core(f"{holder}{CORE}")
    [step] = front.ensemble_scheduling.step
    return Core(
        holder,
        {client: own for own, client in step.input_map.items()},
        {client: own for own, client in step.output_map.items()},
    )


def _write_core(origin: Path, folder: Path, manifest: Manifest, core: Core, points: Mapping[str, Any]) -> None:
    """Write the native model: under its new name, answering one group at a time, warmed up for all of them."""
    link_tree(origin, folder)
    own_warmup = bool(overrides.parse(manifest.overrides).model_warmup)
    for file in (folder / CONFIG, *folder.glob("configs/*.pbtxt")):
        model = parse(file.read_text(encoding="utf-8"))
        for field in OF_CLIENTS:
            model.ClearField(field)
        for accelerator in model.optimization.execution_accelerators.gpu_execution_accelerator:
            for key, value in accelerator.parameters.items():
                if value.startswith(f"{model.name}/"):  # a place of its own, relative to the repository
                    accelerator.parameters[key] = f"{core.name}/{value.partition('/')[2]}"
        model.name = core.name
        if not own_warmup:
            warm = warmup(
                points,
                manifest.inputs,
                batch=model.max_batch_size,
                profile=manifest.artifact.variant.profile,
                grouping=manifest.grouping,
            )
            _warm(model, warm, core, folder)
        check(model)
        write_text(file, to_text(model))


def _warm(model: Any, warm: Warmup, core: Core, folder: Path) -> None:
    """Put warm-up samples in a config, and their files in its folder in place of those that are there."""
    model.ClearField("model_warmup")
    model.MergeFrom(type(model)(model_warmup=warm.renamed(core.input_names)))
    shutil.rmtree(folder / "warmup", ignore_errors=True)
    (folder / "warmup").mkdir()
    for name, data in warm.files.items():
        (folder / "warmup" / name).write_bytes(data)


def _write_router(origin: Path, folder: Path, manifest: Manifest, core: Core, contract: Contract, native: Any) -> None:
    """Write the model that clients call; ``native`` is the config of the model that has the artifact."""
    grouping = manifest.grouping
    assert grouping is not None
    model = model_config(
        manifest.models[0],
        contract.without_batch(contract.inputs),
        contract.without_batch(contract.outputs),
        max_batch_size=contract.batch,
        version=manifest.version,
        backend=PYTHON_BACKEND,
        default_model_filename=ROUTED,
        dynamic_batching=LIMITED,
    )
    allow_lengths(model)
    asked = overrides.parse(manifest.overrides).HasField("dynamic_batching")  # else its sizes are one shape's
    copy_fields(native, model, "response_cache", "metric_tags", *(["dynamic_batching"] if asked else []))
    overrides.tensors(manifest.overrides, model)
    check(model)
    write_model(
        folder / str(manifest.version),
        manifest.artifact,
        runs=core,
        inputs=contract.inputs,
        outputs=contract.outputs,
        batched=True,
        numpy_below_2=release(manifest.release).numpy_below_2,
        grouping=dataclasses.replace(grouping, rows=min(grouping.rows, contract.batch), packing=None),
    )
    for file in origin.iterdir():
        if file.is_file() and file.name != CONFIG:  # labels
            link_or_copy(file, folder / file.name)
    write_text(folder / CONFIG, to_text(model))
