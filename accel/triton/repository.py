"""From an artifact to a Triton model repository root, written whole or not at all.

Whatever a backend calls its tensors inside, the model that clients call shows the client contract (``contract``): a
backend that dictates names gets an ensemble in front.
"""

import copy
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from accel.builders import Builder, targets
from accel.core.dtypes import datatype
from accel.core.errors import InputError, UsageError
from accel.core.feeds import Feed
from accel.core.files import replacing
from accel.core.model_names import check_model_name
from accel.core.values import (
    PYTHON_BACKEND,
    VERSION_FOLDER,
    Artifact,
    FileRef,
    Repository,
    Skipped,
    TensorSpec,
    TritonModel,
)
from accel.triton import manifest as manifests, overrides as changes
from accel.triton.config import (
    BATCHING,
    LIMITED,
    allow_lengths,
    byte_size,
    check,
    model_config,
    step,
    to_text,
)
from accel.triton.contract import Contract, agree, merges
from accel.triton.folders import describe, link
from accel.triton.launch import DEPLOYMENT, kubernetes, script, write_launch
from accel.triton.lint.rules import UNSUPPORTED_TYPES
from accel.triton.python_model import GROUPED, PLAIN, STATEFUL, write_model
from accel.triton.releases import differences, release as find_release, unservable
from accel.triton.request import ClientModel, EmitRequest
from accel.triton.samples import FIRST_STEP, Warmup, load_points, warmup, write_reference
from accel.triton.sequences import State, initial_file, scheduling
from accel.triton.verify import verify

__all__ = ["emit", "verify"]

CONFIGS_FOLDER = "configs"
"""Where a server started with ``--model-config-name`` looks for ``<name>.pbtxt`` before it takes ``config.pbtxt``.

Source: server docs/user_guide/model_configuration.md, "Custom Model Configuration".
"""


def emit(
    artifact: Artifact,
    artifact_folder: Path,
    *,
    model: ClientModel,
    request: EmitRequest,
    builder: Builder,
    root: Path,
    run_dir: Path,
    samples: Path,
    reference: Path,
    initial: Feed | None = None,
) -> Repository | Skipped:
    """Write the repository of one artifact at ``root``, replacing an earlier one only by a whole new one.

    Args:
        artifact_folder: where the artifact's files lie; they are hard-linked, or copied to another file system.
        run_dir: the run's folder; ``Repository.root`` is relative to it.
        samples / reference: ``.npz`` files with the keys ``<point>/<input>`` and ``<point>/<output>`` for the shape
            points ``min``, ``odd``, ``opt`` and ``max``; used for warmup and stored for ``accel verify``. Of a stateful
            model the points are the steps of a stream, ``0``, ``1``, ….
        initial: of a stateful model, the states of a first step by input.

    Returns:
        The repository, or why that release cannot serve the artifact.

    Raises:
        UsageError: an unknown release, an unsafe model name or a version below 1.
        InputError: the artifact contradicts the contract, a file of it is missing or escapes its folder, the samples
            lack the opt shape, or an override contradicts the layout, the contract or what the backend can do.
        OutputError: the folder cannot be written.
    """
    row, model_name, model_version = find_release(request.release), model.model_name, request.model_version
    overrides, threads, hardware = request.overrides, request.threads, request.hardware
    check_model_name(model_name)
    if model_version < 1:
        raise UsageError(f"model version {model_version} is not a version folder of Triton", fix="give 1 or more")
    served = TritonModel.in_python(artifact) if request.python else builder.triton(artifact, request.release)
    if isinstance(served, Skipped):
        return served
    kept, begin = _states(model.inputs, model.states), initial or {}
    shown = (
        tuple(s for s in model.inputs if s.name not in {state.input.name for state in kept}),
        tuple(s for s in model.outputs if s.name not in {state.output for state in kept}),
    )
    implicit = bool(kept) and _keeps(served, artifact, kept)
    refused, _ = UNSUPPORTED_TYPES.get(served.backend, (frozenset(), ""))
    if (kept and not implicit) or refused & {datatype(s.dtype) for tensors in shown for s in tensors}:
        served, implicit = TritonModel.in_python(artifact), False
    if (reason := unservable(served, row)) is not None:
        return reason
    is_python = served.backend == PYTHON_BACKEND
    contract = agree(artifact, *shown, served=served)
    if kept:
        contract = _of_steps(contract, kept, implicit=implicit)
    contract = _batched(contract, overrides, artifact.variant.id)
    groups = request.grouping.merging(contract.batch) if request.grouping and is_python and contract.batch else None
    own_file = STATEFUL if kept else GROUPED if groups else PLAIN
    with replacing(root) as fresh:
        renamed = not is_python and any(a != b for a, b in (*served.input_names.items(), *served.output_names.items()))
        inner = f"{model_name}_{targets.family(artifact.variant.target.name)}" if renamed else model_name
        models = (model_name, inner) if renamed else (model_name,)
        points = load_points(samples, reference, inputs=contract.inputs, outputs=contract.outputs)
        shapes = {"opt": points[FIRST_STEP]} if kept else points
        warm = warmup(shapes, contract.inputs, batch=contract.batch, profile=artifact.variant.profile, grouping=groups)
        if implicit:
            warm = Warmup((), {})
        inside = model_config(
            inner,
            _rename(contract.without_batch(contract.inputs), served.input_names if renamed else {}),
            _rename(contract.without_batch(contract.outputs), served.output_names if renamed else {}),
            max_batch_size=contract.batch,
            version=model_version,
            kind="KIND_GPU" if artifact.variant.target.device == "cuda" else "KIND_CPU",
            accelerators=_placed(served.accelerators, f"{inner}/{model_version}"),
            parameters=served.parameters,
            graph_level=served.graph_level,
            backend=served.backend,
            platform=served.platform,
            default_model_filename=own_file if is_python else served.filename,
            dynamic_batching=(LIMITED if groups else BATCHING) if contract.batch > 1 and not kept else None,
            sequence_batching=scheduling(kept, begin, implicit=implicit, batch=contract.batch) if kept else None,
            model_warmup=warm.renamed(served.input_names if renamed else {}),
        )
        if groups:
            allow_lengths(inside)
        edits, given_files = changes.take_files(overrides)
        # The Python backend's model finds its threads itself, on any machine.
        worker = _overridden(inside, served, edits, threads=None if is_python else threads)
        if kept:
            _check_sequences(worker)
        built = artifact.built.versions.items()
        requires = {n: v for n, v in built if n not in builder.build_only} if is_python else None
        emitted = Repository(
            root=os.path.relpath(root, run_dir).replace(os.sep, "/"),
            models=models,
            release=request.release,
            backend=served.backend,
            unverified=differences(
                *(artifact.built.versions, row),
                backend=served.backend,
                accelerators=tuple(name for _, name, _ in served.accelerators),
            ),
            batches=merges(served),
        )
        version_folder = fresh / inner / str(model_version)
        files_folder = version_folder / manifests.ARTIFACT_FOLDER if is_python else version_folder
        known = link(artifact.files, artifact_folder, target=files_folder, root=fresh)
        if is_python:
            write_model(
                version_folder,
                artifact,
                runs=builder,
                inputs=contract.inputs,
                outputs=contract.outputs,
                batched=contract.batch > 0,
                numpy_below_2=row.numpy_below_2,
                grouping=groups,
                states=kept,
                initial=begin,
            )
        elif not (version_folder / served.filename).exists():
            raise InputError(f"{artifact.variant.id} has no file {served.filename!r}, which Triton is to load")
        written = [worker]
        if renamed:
            written.insert(0, _write_front(fresh, model_name, contract, inside=inside, served=served, overrides=edits))
        (fresh / inner / "config.pbtxt").write_text(to_text(worker), encoding="utf-8")
        _write_data(fresh / inner, worker, warm.files, given_files, files=artifact.files)
        for state in kept if implicit else ():
            if (value := begin[state.input.name]).any():
                place = fresh / inner / "initial_state" / initial_file(state.input.name)
                place.parent.mkdir(exist_ok=True)
                place.write_bytes(value.tobytes())
        if renamed:  # labels are looked for beside the config that names them
            _write_data(fresh / model_name, written[0], {}, given_files, files=())
        if hardware is not None:
            named = fresh / inner / CONFIGS_FOLDER / f"{hardware}.pbtxt"
            named.parent.mkdir()
            named.write_text(to_text(_overridden(inside, served, edits, threads=threads)), encoding="utf-8")
        launch = script(
            *(row, artifact, written),
            requires=requires,
            flags=served.server_flags,
            threads=threads,
            hardware=hardware,
        )
        write_launch(fresh, launch, row)
        deployment = kubernetes(row, artifact, model=model_name, threads=threads)
        (fresh / DEPLOYMENT).write_text(deployment, encoding="utf-8")
        write_reference(fresh / manifests.REFERENCE, points, begin)
        manifests.write(
            manifests.Manifest(
                variant=artifact.variant.id,
                models=models,
                version=model_version,
                release=row.name,
                backend=served.backend,
                files=describe(fresh, known),
                inputs=contract.inputs,
                outputs=contract.outputs,
                max_batch_size=contract.batch,
                unverified=emitted.unverified,
                requires=requires or {},
                artifact=artifact,
                parity=request.parity,
                unproved_int64=model.unproved_int64,
                reference_points=tuple(points),
                overrides=edits,
                hardware=hardware,
                mask=model.mask,
                detections=model.detections,
                call=model.call,
                grouping=groups or request.grouping,
                ungrouped=request.ungrouped,
                states=kept or None,
            ),
            fresh,
        )
    return emitted


def _states(inputs: tuple[TensorSpec, ...], states: Mapping[str, str]) -> tuple[State, ...]:
    return tuple(State(spec, states[spec.name]) for spec in inputs if spec.name in states)


def _keeps(served: TritonModel, artifact: Artifact, states: tuple[State, ...]) -> bool:
    """Say whether the backend takes the states from the server: it must know how, and find them by their names."""
    built = {s.name: s for s in (*artifact.built.inputs, *artifact.built.outputs)}
    named = not served.input_names and not served.output_names
    return (
        targets.backend(served.backend).keeps_states
        and named
        and all(built[name].dtype == s.input.dtype for s in states for name in (s.input.name, s.output))
    )


def _of_steps(contract: Contract, states: tuple[State, ...], *, implicit: bool) -> Contract:
    """Return the contract of a stateful model, each request of which is one step of one sequence.

    Requests are merged where every state has the batch, too; the server joins implicit states along their first axis.
    """
    merge = all(s.axis == 0 if implicit else s.axis is not None for s in states)
    return contract if merge else replace(contract, batch=0)


def _check_sequences(model: Any) -> None:
    """Refuse overrides under which a stateful model would be asked as if it had no states.

    Raises:
        InputError: another scheduler, or a strategy that sends accel's model slots without a request (core, direct).
    """
    if not model.HasField("sequence_batching"):
        raise InputError(
            f"{model.name!r} is stateful, and the overrides give it dynamic_batching",
            fix="change sequence_batching.oldest",
        )
    if model.backend == PYTHON_BACKEND and model.sequence_batching.HasField("direct"):
        raise InputError(
            f"{model.name!r} keeps its states by sequence, and the overrides ask for the strategy direct",
            fix="keep sequence_batching.oldest",
        )


def _batched(contract: Contract, overrides: str, variant: str) -> Contract:
    """Return the contract with the batch size that was asked for.

    Raises:
        InputError: it is more than the artifact and its backend can take.
    """
    asked = changes.max_batch_size(overrides)
    if asked is None:
        return contract
    if not 0 <= asked <= contract.batch:
        why = "the profile's largest batch" if contract.batch else "that backend cannot batch this model's requests"
        raise InputError(
            f"max_batch_size {asked} of {variant} cannot be overridden: expected 0 to {contract.batch} ({why})",
            fix="raise the largest shape with --max-shape" if contract.batch else "leave it out for this target",
        )
    return replace(contract, batch=asked)


def _placed(
    accelerators: tuple[tuple[str, str, Mapping[str, str]], ...], folder: str
) -> tuple[tuple[str, str, Mapping[str, str]], ...]:
    """Put the version folder, relative to the root, where an accelerator's parameter asks for it."""
    return tuple(
        (place, name, {key: value.replace(VERSION_FOLDER, folder) for key, value in parameters.items()})
        for place, name, parameters in accelerators
    )


def _overridden(inside: Any, served: TritonModel, overrides: str, *, threads: int | None) -> Any:
    """Return the ``ModelConfig`` of the model that does the work, with what the user changes in it.

    Args:
        threads: of the measurement, which the config then states; None leaves them out.
    """
    model = copy.deepcopy(inside)
    if threads is not None:
        for key, value in targets.backend(served.backend).parameters(threads, changes.instances(overrides)).items():
            model.parameters[key].string_value = served.parameters.get(key, value)
    changes.apply(overrides, model, inputs=served.input_names, outputs=served.output_names)
    check(model)
    return model


def _write_data(
    folder: Path, model: Any, warm: Mapping[str, bytes], given: Mapping[str, Path], *, files: tuple[FileRef, ...]
) -> None:
    """Write the files that a config names: accel's warm-up data and what the user's overrides bring along.

    Raises:
        InputError: warm-up data of another size than its dims say, a name that is taken, or a file for a compute
            capability that is not a file of the artifact.
    """
    data = [d for sample in model.model_warmup for d in sample.inputs.values() if d.input_data_file]
    content = {f"warmup/{d.input_data_file}": warm[d.input_data_file] for d in data if d.input_data_file in warm}
    labels = {output.label_filename for output in model.output}
    kept = {p: f for p, f in given.items() if model.backend or p in labels}
    content |= {place: source.read_bytes() for place, source in kept.items()}
    for entry in data:
        expected, found = byte_size(entry), len(content[f"warmup/{entry.input_data_file}"])
        if expected is not None and found != expected:
            raise InputError(
                f"warm-up data {entry.input_data_file} of {model.name!r} has {found} bytes, its dims say {expected}"
            )
    for place, value in content.items():
        target = folder / place
        target.parent.mkdir(exist_ok=True)
        if target.exists():
            raise InputError(f"{place} of {model.name!r} has that name already", fix="rename the file")
        target.write_bytes(value)
    for name in model.cc_model_filenames.values():
        if name not in {f.path for f in files}:
            raise InputError(
                f"cc_model_filenames of {model.name!r} names {name!r}, which is not a file of the artifact"
            )


def _rename(specs: tuple[TensorSpec, ...], names: Mapping[str, str]) -> tuple[TensorSpec, ...]:
    return tuple(TensorSpec(names.get(s.name, s.name), s.dtype, s.dims) for s in specs)


def _write_front(root: Path, name: str, contract: Contract, *, inside: Any, served: TritonModel, overrides: str) -> Any:
    """Put an ensemble before a backend that dictates tensor names, so that clients keep theirs; return its config.

    Source: an ensemble tensor is written once (core, src/model_config_utils.cc, BuildEnsembleGraph), so one name cannot
    be both an input and an output.
    """
    if both := {s.name for s in contract.inputs} & {s.name for s in contract.outputs}:
        raise InputError(f"{sorted(both)} name both an input and an output: no ensemble can map them")
    version = inside.version_policy.specific.versions[0]
    work = step(
        inside.name,
        {served.input_names.get(s.name, s.name): s.name for s in contract.inputs},
        {served.output_names.get(s.name, s.name): s.name for s in contract.outputs},
    )
    model = model_config(
        name,
        contract.without_batch(contract.inputs),
        contract.without_batch(contract.outputs),
        max_batch_size=contract.batch,
        version=version,
        steps=[work],
    )
    # Every model of a repository needs its version folder, and an ensemble has nothing to put there.
    version_folder = root / name / str(version)
    version_folder.mkdir(parents=True)
    (version_folder / "README").write_text(f"Maps names only; the work is done by {inside.name}.\n", encoding="utf-8")
    changes.tensors(overrides, model)
    (root / name / "config.pbtxt").write_text(to_text(model), encoding="utf-8")
    return model
