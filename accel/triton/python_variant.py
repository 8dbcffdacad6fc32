"""The Python-backend variant of a repository: the same artifact and client contract, answered by the Python backend.

For a server that lacks the native backend, and for batching where the native backend cannot batch. It keeps what
the native config says about serving (versions, instances, batching and its priorities, response cache, warm-up, labels,
metric tags) and drops what only the native backend reads (accelerators, graph optimisation, its parameters). An
ensemble is made anew around it, since it may batch where the native model cannot; further models go along unchanged.
"""

import dataclasses
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from accel.builders import targets
from accel.core import temporary
from accel.core.errors import OutputError, UnavailableError
from accel.core.feeds import write_feeds
from accel.core.files import replacing
from accel.core.model_names import check_model_name
from accel.core.values import PYTHON_BACKEND, Repository, Skipped
from accel.triton import ensemble, manifest as manifests, overrides
from accel.triton.config import check, copy_fields, parse, to_text
from accel.triton.folders import describe, link_tree
from accel.triton.launch import script, write_launch
from accel.triton.manifest import Manifest
from accel.triton.reading import CONFIG, read_configs, read_initial, read_points
from accel.triton.releases import TritonRelease, release as find_release
from accel.triton.repository import emit
from accel.triton.request import ClientModel, EmitRequest
from accel.triton.routing import OF_CLIENTS


def write_python_variant(root: Path, out: Path, *, release: str) -> Repository:
    """Emit the repository at ``root`` once more, for the Python backend of ``release``.

    A backend that cannot batch (openvino, torch_aoti) has ``max_batch_size`` 0; this variant batches up to the
    profile's largest batch. A repository that is for the Python backend already keeps its config as it is.

    Args:
        root: a repository that accel emitted; it stays as it is.
        out: folder to write; it must not exist. Files are hard-linked where the file system allows.

    Raises:
        InputError: ``root`` has no readable manifest or config, or the artifact's files are not all there.
        UnavailableError: no builder here offers the artifact's target, or the release cannot serve it.
        OutputError: ``out`` exists or cannot be written.
    """
    manifest = manifests.read(root)
    row = find_release(release)
    target = manifest.artifact.variant.target.name
    builder = targets.discover().get(target)
    if builder is None:
        raise UnavailableError(f"{root} holds a {target!r}, and no builder here offers that target")
    if out.exists():
        raise OutputError(f"{out} exists already", fix="give a folder that does not")
    for model in manifest.models:
        check_model_name(model)
    configs = read_configs(root)
    holder, files = manifests.holder(root, manifest)
    name = manifest.models[0]
    with (
        replacing(out) as fresh,
        tempfile.TemporaryDirectory(prefix="variant-", dir=temporary.root()) as scratch,
    ):
        samples, reference = _points(root, manifest, Path(scratch))
        made = emit(
            manifest.artifact,
            files,
            model=ClientModel(
                model_name=name,
                inputs=manifest.model_inputs,
                outputs=manifest.model_outputs,
                states={s.input.name: s.output for s in manifest.states or ()},
                unproved_int64=manifest.unproved_int64,
                mask=manifest.mask,
                detections=manifest.detections,
                call=manifest.call,
            ),
            request=EmitRequest(
                release=release,
                model_version=manifest.version,
                parity=manifest.parity,
                grouping=manifest.grouping,
                ungrouped=manifest.ungrouped,
                python=True,
                overrides=_batch_asked(manifest),
            ),
            builder=builder,
            root=fresh,
            run_dir=out.parent,
            samples=samples,
            reference=reference,
            initial=read_initial(root, manifest),
        )
        if isinstance(made, Skipped):
            raise UnavailableError(made.reason, fix=made.fix)
        if manifest.core is not None:  # one model again, of what two of them say
            copy_fields(configs[name], configs[holder], *OF_CLIENTS)
        _keep(configs[holder], root / holder, fresh / name)
        around = ensemble.parts(manifest, configs)
        carried = [model for model in manifest.models if model not in (name, holder, *around)]
        for model in carried:
            link_tree(root / model, fresh / model)
        _describe(fresh, manifest, row, name=name, carried=carried)
        pipeline = ensemble.read(root)
        added = ensemble.add(fresh, pipeline) if pipeline is not None else ()
    return dataclasses.replace(made, root=out.name, models=(name, *carried, *added))


def _points(root: Path, manifest: Manifest, folder: Path) -> tuple[Path, Path]:
    """Write the stored points as the two files that ``emit`` reads."""
    stored = read_points(root, manifest)
    samples, reference = folder / "samples.npz", folder / "reference.npz"
    write_feeds(samples, {name: point.inputs for name, point in stored.items()})
    write_feeds(reference, {name: point.outputs for name, point in stored.items()})
    return samples, reference


def _batch_asked(manifest: Manifest) -> str:
    """Return the override of the batch size, where the user gave one to a backend that can batch."""
    asked = overrides.max_batch_size(manifest.overrides)
    return "" if asked is None or not targets.backend(manifest.backend).batches else f"max_batch_size: {asked}"


def _keep(native: Any, origin: Path, folder: Path) -> None:
    """Rewrite the emitted config of ``folder`` so that it keeps what ``native``, whose folder is ``origin``, says."""
    file = folder / CONFIG
    emitted = parse(file.read_text(encoding="utf-8"))
    kept = type(native)()
    kept.CopyFrom(native)
    if native.backend != PYTHON_BACKEND:
        for name in ("platform", "optimization", "cc_model_filenames", "parameters", "input", "output"):
            kept.ClearField(name)
        kept.name, kept.backend = emitted.name, emitted.backend
        kept.default_model_filename = emitted.default_model_filename
        kept.input.extend(emitted.input)
        kept.output.extend(emitted.output)
        labels = {tensor.name: tensor.label_filename for tensor in native.output}
        for tensor in kept.output:
            tensor.label_filename = labels.get(tensor.name, "")
        for group in kept.instance_group:
            group.kind = emitted.instance_group[0].kind
            if group.kind == group.KIND_CPU:
                group.ClearField("gpus")
                group.ClearField("profile")
    batches = native.max_batch_size == 0 < emitted.max_batch_size
    if batches:
        kept.max_batch_size = emitted.max_batch_size
        if not kept.HasField("sequence_batching"):  # the two are one choice
            kept.dynamic_batching.CopyFrom(emitted.dynamic_batching)
    implicit = len(kept.sequence_batching.state) > 0
    if implicit:  # accel's model keeps the states; it is warmed up, which a model with implicit state cannot be
        del kept.sequence_batching.state[:]
    renamed = [t.name for t in native.input] != [t.name for t in emitted.input]
    # Samples that are ours are among those of the variant, which meets the lengths of its groups as well.
    ours = len(native.model_warmup) > 0 and all(sample in emitted.model_warmup for sample in native.model_warmup)
    if ours or batches or implicit or renamed:
        kept.ClearField("model_warmup")
        kept.model_warmup.extend(emitted.model_warmup)
    else:
        shutil.rmtree(folder / "warmup", ignore_errors=True)
        if (origin / "warmup").is_dir():
            link_tree(origin / "warmup", folder / "warmup")
    for extra in origin.iterdir():
        if extra.is_file() and extra.name != CONFIG:  # labels
            shutil.copyfile(extra, folder / extra.name)
    check(kept)
    file.write_text(to_text(kept), encoding="utf-8")


def _describe(out: Path, native: Manifest, row: TritonRelease, *, name: str, carried: Sequence[str]) -> None:
    """Write ``launch.sh`` and the manifest of the finished variant.

    The artifact and the carried models were hashed before, and are not hashed again.
    """
    emitted = manifests.read(out)
    configs = read_configs(out)
    write_launch(out, script(row, emitted.artifact, list(configs.values()), requires=emitted.requires), row)
    (out / manifests.FILENAME).unlink()
    unchanged = tuple(f"{model}/" for model in carried)
    known = {f.path: f for f in native.files if f.path.startswith(unchanged)}
    known |= {
        f.path: f for f in emitted.files if f.path.startswith(f"{name}/{emitted.version}/{manifests.ARTIFACT_FOLDER}/")
    }
    manifests.write(
        dataclasses.replace(
            emitted,
            models=(name, *carried),
            files=describe(out, known),
            max_batch_size=configs[name].max_batch_size,
            overrides=native.overrides,
        ),
        out,
    )
