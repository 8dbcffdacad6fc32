"""The steps around a model as Triton models: tensors, options and files, fitted to the model's client contract."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from accel.core.errors import InputError
from accel.core.processing import TOKENS, CustomStep, File, Labels, Picture, Pipeline, Pool, Tokenize
from accel.core.values import TensorSpec, to_json
from accel.triton.manifest import Manifest

MASK = TOKENS[1]
LABEL_FILE = "labels.txt"


@dataclass(frozen=True, slots=True)
class StepModel:
    """A step as a model of the repository.

    Attributes:
        inputs / outputs: with their batch axis.
        code: module of ``triton.steps``.
        options: what ``step.json`` tells it.
        files: content or source file by path relative to the version folder; ``../`` is the model folder.
        packages: requirements of its interpreter.
        label_files: output → file in the model folder with one label a line.
    """

    name: str
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    code: str
    options: Mapping[str, Any]
    files: Mapping[str, File | str] = field(default_factory=dict)
    packages: tuple[str, ...] = ()
    label_files: Mapping[str, str] = field(default_factory=dict)


# ---------------------------------------------------------------------------------------------------------------------
# The step before the model


def before(pipeline: Pipeline, manifest: Manifest) -> StepModel | None:
    """Return the model that turns what clients send into the inputs of the repository's model; None where none does.

    Raises:
        InputError: the step does not give what the model takes.
    """
    step, post = pipeline.pre, pipeline.post
    if isinstance(step, Tokenize):
        read = (MASK,) if isinstance(post, Pool) else post.inputs if isinstance(post, CustomStep) else ()
        shown = manifest.outputs if post is None else () if isinstance(post, Pool | Labels) else None
        whole = shown is None or any(manifest.inputs[0].dims[1] in spec.dims for spec in shown)
        return _tokenizer(step, manifest, read=tuple(n for n in TOKENS if n in read), whole=whole)
    if isinstance(step, Picture):
        return _picture(step, manifest)
    return None if step is None else _own_before(step, manifest)


def _tokenizer(step: Tokenize, manifest: Manifest, *, read: tuple[str, ...], whole: bool) -> StepModel:
    """Make the tokenizer. A model that groups requests by length gets each at its own, whatever ``padding`` says.

    Args:
        read: those of its tensors that the step after the model needs.
        whole: whether clients may see how long the padded texts are.
    """
    outputs = {s.name: s for s in manifest.inputs}
    if unknown := [n for n in outputs if n not in TOKENS]:
        raise InputError(f"a tokenizer does not give the input {unknown[0]!r}", fix="give a step of your own")
    for spec in outputs.values():
        if len(spec.dims) != 2 or spec.dtype not in ("int32", "int64"):
            raise InputError(
                f"{spec.name!r} is {spec.dtype} {spec.dims}, a tokenizer gives int32 or int64 (batch, seq)"
            )
    first = manifest.inputs[0]
    for name in read:
        outputs.setdefault(name, TensorSpec(name, first.dtype, first.dims))
    if step.file is None:
        raise InputError("the tokenizer step names no tokenizer.json")
    # The profile bounds every sequence: beyond it the artifact was never proved. A static build has one length.
    shapes = manifest.artifact.variant.profile[first.name]
    multiple = shapes.multiples[1]
    longest = min(step.max_length, shapes.max[1])
    return StepModel(
        f"{manifest.models[0]}_tokenizer",
        (TensorSpec("text", "str", (first.dims[0], 1)),),
        tuple(outputs.values()),
        "tokenizer",
        {
            "max_length": longest,
            "min_length": max(
                shapes.min[1], longest if step.padding == "max_length" and (whole or not manifest.trims) else 1
            ),
            "multiple": multiple,
            "together": step.padding == "call" and not manifest.trims,
            "pad_token": step.pad_token,
            "padding_side": step.padding_side,
            "truncation_side": step.truncation_side,
            "outputs": {s.name: s.dtype for s in outputs.values()},
        },
        {"tokenizer.json": step.file},
        (_pinned("tokenizers"),),
    )


def _picture(step: Picture, manifest: Manifest) -> StepModel:
    spec = manifest.inputs[0]
    if len(manifest.inputs) != 1 or len(spec.dims) != 4 or spec.dtype not in ("float16", "float32", "float64"):
        found = [(s.name, s.dtype, s.dims) for s in manifest.inputs]
        raise InputError(f"the model takes {found}: a picture gives one float tensor (batch, channels, height, width)")
    channels, sides = spec.dims[1], spec.dims[2:]
    if channels not in (1, 3) or (step.mean and len(step.mean) != channels):
        raise InputError(f"{spec.name!r} has {channels} channels, the picture step has {len(step.mean) or '1 or 3'}")
    size = step.crop if step.crop else step.resize
    if isinstance(size, tuple) and any(isinstance(d, int) and d != n for d, n in zip(sides, size, strict=True)):
        raise InputError(f"{spec.name!r} takes pictures of {sides}, the picture step makes {size}")
    options = {k: v for k, v in to_json(step).items() if k != "kind"}
    return StepModel(
        f"{manifest.models[0]}_image",
        (TensorSpec("image", "str", (spec.dims[0], 1)),),
        (spec,),
        "image",
        {**options, "output": spec.name, "dtype": spec.dtype, "channels": channels},
        packages=(_pinned("pillow"),),
    )


def _own_before(step: CustomStep, manifest: Manifest) -> StepModel:
    taken = {s.name: s for s in manifest.inputs}
    leading = manifest.inputs[0].dims[0]
    extra = []
    for spec in step.outputs:
        if spec.name not in taken:
            extra.append(_led(spec, leading))
        elif (spec.dtype, _sizes(spec)) != (taken[spec.name].dtype, _sizes(taken[spec.name])):
            model = taken[spec.name]
            raise InputError(
                f"ensemble.pre declares {spec.name!r} as {spec.dtype} {list(spec.dims)}, and the model takes "
                f"{model.dtype} {list(model.dims)}",
                fix="leave it out of outputs: the model's inputs are known",
            )
    inputs = tuple(_led(s, leading) for s in step.inputs if isinstance(s, TensorSpec))
    return _own(f"{manifest.models[0]}_pre", step, inputs, (*taken.values(), *extra))


# ---------------------------------------------------------------------------------------------------------------------
# The step after the model


def after(pipeline: Pipeline, manifest: Manifest, pre: StepModel | None) -> StepModel | None:
    """Return the model that makes the answer of the outputs of the repository's model; None where none does.

    Args:
        pre: the model before it, whose tensors it may read as well.

    Raises:
        InputError: the step reads what nothing gives, or an output of another shape.
    """
    step = pipeline.post
    if step is None:
        return None
    known = {
        s.name: s for s in (*(pre.inputs if pre else ()), *(pre.outputs if pre else manifest.inputs), *manifest.outputs)
    }
    name = manifest.models[0]
    if isinstance(step, CustomStep):
        wanted = [str(n) for n in step.inputs] or [s.name for s in manifest.outputs]
        if missing := [n for n in wanted if n not in known]:
            raise InputError(f"ensemble.post reads {missing[0]!r}, which nothing gives: there are {sorted(known)}")
        leading = manifest.outputs[0].dims[0]
        return _own(
            f"{name}_post", step, tuple(known[n] for n in wanted), tuple(_led(s, leading) for s in step.outputs)
        )
    outputs = {s.name: s for s in manifest.outputs}
    found = outputs.get(step.output)
    rank = 3 if isinstance(step, Pool) else 2
    if found is None or len(found.dims) != rank or not isinstance(found.dims[-1], int):
        shape = found and list(found.dims)
        raise InputError(
            f"a step of kind {step.kind} takes {step.output!r} with {rank} axes and a fixed last one, found {shape}",
            fix="name another output of the model with ensemble: {post: {output: NAME}}",
        )
    batch, width = found.dims[0], found.dims[-1]
    if isinstance(step, Pool):
        if MASK not in known:
            raise InputError(f"pooling needs {MASK!r}, and neither the model nor the step before it has it")
        options: dict[str, Any] = {"mode": step.mode, "normalise": step.normalise}
        options |= {"input": found.name, "mask": MASK}
        vector = TensorSpec("embedding", "float32", (batch, width))
        return StepModel(f"{name}_pool", (found, known[MASK]), (vector,), "pool", options)
    return _labels(step, found, f"{name}_labels")


def _labels(step: Labels, scores: TensorSpec, name: str) -> StepModel:
    batch, classes = scores.dims[0], int(scores.dims[-1])
    names = step.names or tuple(f"LABEL_{i}" for i in range(classes))
    if len(names) != classes:
        raise InputError(f"{scores.name!r} has {classes} classes, and there are {len(names)} labels")
    best = min(step.top_k, classes)
    return StepModel(
        name,
        (scores,),
        (
            TensorSpec("labels", "str", (batch, best)),
            TensorSpec("scores", "float32", (batch, best)),
            TensorSpec("class_ids", "int32", (batch, best)),
            TensorSpec("probabilities", "float32", (batch, classes)),
        ),
        "labels",
        {"input": scores.name, "top_k": best, "function": step.function, "labels": f"../{LABEL_FILE}"},
        # One label a line: a line break within a label would shift all that follow.
        {f"../{LABEL_FILE}": "".join(f"{' '.join(n.split())}\n" for n in names)},
        label_files={"probabilities": LABEL_FILE},
    )


# ---------------------------------------------------------------------------------------------------------------------
# Steps of the user's


def _own(name: str, step: CustomStep, inputs: tuple[TensorSpec, ...], outputs: tuple[TensorSpec, ...]) -> StepModel:
    files = {}
    for file in (step.file, *step.files):
        path = f"own/{Path(file.path).name}"
        if path in files:
            raise InputError(f"{name} carries two files called {Path(file.path).name!r}")
        files[path] = file
    options = {
        "file": Path(step.file.path).name,
        "function": step.function,
        "outputs": [[s.name, s.dtype, list(s.dims)] for s in outputs],
    }
    return StepModel(name, inputs, outputs, "own", options, files, step.packages)


def _led(spec: TensorSpec, leading: int | str) -> TensorSpec:
    """Return a declared tensor with the model's own batch axis, which a static build fixes."""
    return TensorSpec(spec.name, spec.dtype, (leading, *spec.dims[1:]))


def _sizes(spec: TensorSpec) -> list[int]:
    return [d if isinstance(d, int) else -1 for d in spec.dims[1:]]


def _pinned(package: str) -> str:
    """Return the requirement of the version that is installed here, with which the results were compared."""
    from importlib.metadata import version

    return f"{package}=={version(package)}"
