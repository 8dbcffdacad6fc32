"""Ensembles: the steps around a model, added to a repository that was emitted already.

    text ─▶ <model>_tokenizer ─▶ <model> ─▶ <model>_pool   ─▶ embedding           together: <model>_pipeline
    image ─▶ <model>_image    ─▶ <model> ─▶ <model>_labels ─▶ labels, scores

Steps run in the Python backend. The model stays as it is, and clients may still call it. Clients of the pipeline send
and get tensors with a leading batch axis, whatever batches behind it, so that every repository of a run has the same
pipeline.

Rules, with their source in triton-inference-server/core: a tensor of an ensemble is written once, and one that nothing
reads is refused (src/model_config_utils.cc, ValidateEnsembleSchedulingConfig); dtypes and full dims of the two ends of
a tensor agree, and no step that batches has a smaller ``max_batch_size`` than the ensemble (src/ensemble_scheduler/
ensemble_utils.cc, ValidateEnsembleConfig); a step may be an ensemble itself; an output's labels are taken from the step
that gives it (src/model_repository_manager/model_lifecycle.cc).
"""

import dataclasses
import json
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from accel.core.errors import InputError
from accel.core.files import load_json, stays_inside, writing
from accel.core.processing import CustomStep, File, Pipeline, Tokenize
from accel.core.values import PYTHON_BACKEND, SCHEMA, TensorSpec, file_ref, from_json, sha256_file, to_json
from accel.triton import launch, manifest as manifests
from accel.triton.config import BATCHING, allow_lengths, model_config, step, to_text
from accel.triton.manifest import Manifest
from accel.triton.releases import release
from accel.triton.step_models import StepModel, after, before

CODE = Path(__file__).parent
DECLARED = "pipeline.json"
"""What an ensemble was made of, in its version folder; the paths in it are relative to the repository."""


def add(root: Path, pipeline: Pipeline) -> tuple[str, ...]:
    """Add the steps and the ensemble ``<model>_pipeline`` to an emitted repository, and list them in its manifest.

    Returns:
        The names of the added models, the ensemble last.

    Raises:
        InputError: the repository has no readable manifest or has an ensemble already, a step does not fit its model, a
            file that a step carries is gone or changed, or a step of the user's gives something else than it declares.
        OutputError: the folder cannot be written.
    """
    manifest = manifests.read(root)
    if manifest.pipeline is not None:
        raise InputError(f"{root} has the ensemble {manifest.pipeline} already", fix="emit it again")
    pre = before(pipeline, manifest)
    post = after(pipeline, manifest, pre)
    ensemble = _ensemble(manifest, pre, post)
    steps = [m for m in (pre, post) if m is not None]
    names = (*(m.name for m in steps), ensemble.name)
    if taken := [n for n in names if (root / n).exists()]:
        raise InputError(f"{root} has a model {taken[0]!r} already: the ensemble needs that name", fix="--model-name")
    beside = root.parent  # on one file system, so that models are moved in by renaming
    with writing(root), tempfile.TemporaryDirectory(prefix=f".{root.name}.ensemble-", dir=beside) as scratch:
        fresh = Path(scratch)
        for model in steps:
            _write_step(fresh, model, manifest)
        if isinstance(pipeline.post, CustomStep) and post is not None:
            _try(fresh / post.name / str(manifest.version), post, root, manifest)
        _write_config(fresh / ensemble.name, to_text(ensemble))
        version = fresh / ensemble.name / str(manifest.version)
        version.mkdir()
        declared = to_json(_placed(pipeline, {m.name: m for m in steps}, manifest.version))
        (version / DECLARED).write_text(json.dumps(declared, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
        packages = tuple(dict.fromkeys(p for m in steps for p in m.packages))
        row = release(manifest.release)
        launch.write_launch(fresh, launch.require((root / "launch.sh").read_text(), row, packages), row)
        added = [file_ref(p, fresh) for p in sorted(fresh.rglob("*")) if p.is_file()]
        for name in names:
            (fresh / name).rename(root / name)
        for name in ("launch.sh", launch.DOCKERFILE):
            (fresh / name).replace(root / name)
        kept = [f for f in manifest.files if f.path not in ("launch.sh", launch.DOCKERFILE)]
        manifests.write(
            dataclasses.replace(
                manifest,
                models=(*manifest.models, *names),
                files=tuple(sorted([*kept, *added], key=lambda f: f.path)),
                requires={**manifest.requires, **dict(p.split("==") for p in packages)},
                pipeline=ensemble.name,
            ),
            root,
        )
    return names


def parts(manifest: Manifest, configs: Mapping[str, Any]) -> frozenset[str]:
    """Return the models that make up a repository's ensemble, its own model not among them; empty where it has none.

    Args:
        configs: model → ``ModelConfig``.
    """
    if manifest.pipeline is None:
        return frozenset()
    steps = {s.model_name for s in configs[manifest.pipeline].ensemble_scheduling.step}
    return frozenset(steps - set(manifest.models[:1]) | {manifest.pipeline})


def read(root: Path) -> Pipeline | None:
    """Return the declaration of a repository's ensemble, its files those of the repository; None where it has none.

    Raises:
        InputError: the manifest or the declaration is missing or broken.
    """
    manifest = manifests.read(root)
    if manifest.pipeline is None:
        return None
    path = root / manifest.pipeline / str(manifest.version) / DECLARED
    try:
        pipeline = from_json(Pipeline, load_json(path.read_text(encoding="utf-8")))
    except (OSError, ValueError) as error:
        raise InputError(f"{path} cannot be read: {error}", fix="emit the repository again") from error

    def inside(file: File) -> File:
        if not stays_inside(file.path):
            raise InputError(f"{path} names {file.path!r}, outside the repository", fix="emit the repository again")
        return File(str((root / file.path).resolve()), file.sha256)

    return _moved(pipeline, inside)


def _placed(pipeline: Pipeline, models: Mapping[str, StepModel], version: int) -> Pipeline:
    """Return the declaration with every file's place in the repository."""
    places = {
        content: f"{name}/{version}/{path}"
        for name, model in models.items()
        for path, content in model.files.items()
        if isinstance(content, File)
    }
    return _moved(pipeline, lambda file: File(places[file], file.sha256))


def _moved(pipeline: Pipeline, place: Callable[[File], File]) -> Pipeline:
    def step(one: Any) -> Any:
        if isinstance(one, CustomStep):
            return dataclasses.replace(one, file=place(one.file), files=tuple(place(f) for f in one.files))
        if isinstance(one, Tokenize) and one.file is not None:
            return dataclasses.replace(one, file=place(one.file))
        return one

    return Pipeline(step(pipeline.pre), step(pipeline.post))


def _try(folder: Path, model: StepModel, root: Path, manifest: Manifest) -> None:
    """Run a step of the user's on the stored reference, where it reads nothing but the model's own tensors.

    Raises:
        InputError: its file cannot be imported, or it fails or gives something else than it declares.
    """
    import numpy as np

    from accel.triton.steps.own import Step as OwnStep

    point = "opt" if "opt" in manifest.reference_points else manifest.reference_points[0]
    with np.load(root / manifests.REFERENCE, allow_pickle=False) as stored:
        keys = {
            s.name: [k for k in (f"outputs/{point}/{s.name}", f"inputs/{point}/{s.name}") if k in stored]
            for s in model.inputs
        }
        feed = {name: stored[found[0]] for name, found in keys.items() if found}
    if len(feed) < len(model.inputs):
        return
    written, sys.dont_write_bytecode = sys.dont_write_bytecode, True
    try:
        OwnStep(model.options, folder).answer(feed)
    except Exception as error:
        raise InputError(
            f"ensemble.post {model.options['function']} does not work on the model's own outputs: "
            f"{type(error).__name__}: {error}",
            fix="correct the function, or what ensemble.post declares",
        ) from error
    finally:
        sys.dont_write_bytecode = written


def _ensemble(manifest: Manifest, pre: StepModel | None, post: StepModel | None) -> Any:
    """Join the steps: a tensor is called ``pre.<name>`` or ``model.<name>`` inside, and by its name at the two ends."""
    inputs = pre.inputs if pre else manifest.inputs
    outputs = post.outputs if post else manifest.outputs
    if both := {s.name for s in inputs} & {s.name for s in outputs}:
        raise InputError(f"{sorted(both)} name both an input and an output of the pipeline: no ensemble can map them")
    given = {s.name: s.name for s in inputs}
    made = {s.name: f"pre.{s.name}" for s in pre.outputs} if pre else {}
    fed = {s.name: made.get(s.name, s.name) for s in manifest.inputs}
    gives = {s.name: f"model.{s.name}" if post else s.name for s in manifest.outputs}
    read = {s.name: {**given, **made, **gives}[s.name] for s in post.inputs} if post else {}
    used = {*fed.values(), *read.values(), *(s.name for s in outputs)}

    def kept(names: Mapping[str, str]) -> dict[str, str]:
        return {tensor: name for tensor, name in names.items() if name in used}

    if not kept(gives):
        raise InputError("the step after the model reads none of its outputs", fix="list one in ensemble.post.inputs")
    steps = [step(pre.name, given, kept(made))] if pre else []
    steps.append(step(manifest.models[0], fed, kept(gives)))
    if post:
        steps.append(step(post.name, read, {s.name: s.name for s in post.outputs}))
    return model_config(
        f"{manifest.models[0]}_pipeline",
        _configured(inputs, manifest),
        _configured(outputs, manifest),
        max_batch_size=manifest.max_batch_size,
        version=manifest.version,
        steps=steps,
    )


def _configured(specs: Iterable[TensorSpec], manifest: Manifest) -> tuple[TensorSpec, ...]:
    """Return specs as a config of this repository states them: without the batch axis where the server batches."""
    return tuple(TensorSpec(s.name, s.dtype, s.dims[1:] if manifest.max_batch_size else s.dims) for s in specs)


def _write_step(fresh: Path, model: StepModel, manifest: Manifest) -> None:
    row = release(manifest.release)
    folder = fresh / model.name / str(manifest.version)
    folder.mkdir(parents=True)
    shutil.copyfile(CODE / "backend_py" / "step.py", folder / "model.py")
    shutil.copyfile(CODE / "steps" / f"{model.code}.py", folder / "step.py")
    spec = {"schema": SCHEMA, "numpy_below_2": row.numpy_below_2, "options": to_json(model.options)}
    (folder / "step.json").write_text(json.dumps(spec, indent=2) + "\n", encoding="utf-8")
    for path, content in model.files.items():
        target = folder / path
        target.parent.mkdir(exist_ok=True)
        if isinstance(content, str):
            target.write_text(content, encoding="utf-8")
            continue
        shutil.copyfile(content.path, target)
        if sha256_file(target) != content.sha256:
            raise InputError(f"{content.path} changed while the ensemble was made", fix="run the command again")
    config = model_config(
        model.name,
        _configured(model.inputs, manifest),
        _configured(model.outputs, manifest),
        max_batch_size=manifest.max_batch_size,
        version=manifest.version,
        backend=PYTHON_BACKEND,
        default_model_filename="model.py",
        dynamic_batching=BATCHING if manifest.max_batch_size > 1 else None,
    )
    if manifest.groups:  # each request is answered on its own in any case
        allow_lengths(config)
    for output in config.output:
        output.label_filename = model.label_files.get(output.name, "")
    _write_config(fresh / model.name, to_text(config))


def _write_config(folder: Path, text: str) -> None:
    folder.mkdir(exist_ok=True)
    (folder / "config.pbtxt").write_text(text, encoding="utf-8")
