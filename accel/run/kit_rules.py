"""What a kit may be. It comes from another machine, and anybody can seal one: no field is taken on trust.

A kit runs no code of its own: its target is one of accel's own that start from a typed ONNX file, its source is that
file or an entry of the zoo, its files lie inside it, and its numbers are those of a run that somebody could want.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import fields, replace
from pathlib import Path, PurePosixPath
from typing import Any, get_args

from accel.builders import ConvertingBuilder, targets
from accel.core.accuracy.metrics import METRICS
from accel.core.accuracy.parity import TASK_SHARE, check_names
from accel.core.dtypes import DATATYPES
from accel.core.errors import InputError, UsageError, raised_as
from accel.core.files import stays_inside
from accel.core.model_names import check_model_name
from accel.core.values import Dim, FileRef, ModelSource, OnnxModel, ShapeRange, TensorSpec, Variant, from_json, to_json
from accel.exporters.onnx_file import external_files
from accel.exporters.zoo import zoo
from accel.run.decide import Constraints, Objective

FIX = "make the kit again on the machine that it comes from; do not build one from somebody you do not trust"
LONGEST_TEXT = 1 << 16
LEAST_DB, LEAST_SHARE = 3.0, 0.5
"""Gates below these let through what has lost half of the signal, or half of the rows: nobody asks for that."""
SHARES = ("agreement", "matched")
NUMBERS = (
    ("rounds", 2, 10_000),
    ("round_s", 1e-3, 3600),
    ("timeout_s", 1e-3, 7 * 86400),
    ("model_version", 1, 2**31 - 1),
)
"""Settings that are numbers, with the least and the most of each."""
TUNING = {
    *("dynamic_batching", "input", "instance_group", "max_batch_size", "metric_tags", "model_metrics"),
    *("model_transaction_policy", "model_warmup", "optimization", "output", "parameters", "response_cache"),
    "sequence_batching",
}
"""Fields of ModelConfig that a kit may override: how a model is served. Others name libraries, agents or files."""


def refuse(what: str) -> InputError:
    """Return the error for a field that no kit has."""
    return InputError(f"kit.json: {what}", fix=FIX)


def check_texts(value: Any, depth: int = 0) -> None:
    """Hold every text of the JSON document: no control characters that a terminal would obey, and no endless ones.

    Raises:
        InputError: there is one, or the document is nested deeper than any kit.
    """
    if depth > 40:
        raise refuse("it is nested more than 40 levels deep")
    if isinstance(value, Mapping):
        value = [*value.keys(), *value.values()]
    if isinstance(value, list):
        for item in value:
            check_texts(item, depth + 1)
    elif isinstance(value, str) and (len(value) > LONGEST_TEXT or not value.replace("\n", "").isprintable()):
        raise refuse(f"a text is longer than {LONGEST_TEXT} characters or not printable: {value[:40]!r}")


def portable(source: ModelSource, onnx: str) -> ModelSource:
    """Return a source as a kit has it: an entry of the zoo, or the ONNX file that the kit brings, and no path.

    Args:
        onnx: that file, relative to the kit.
    """
    samples = source.samples if source.samples in ("zoo", "random") else "given"
    if source.metric is not None and source.metric not in METRICS:  # a kit brings no code: the floors in dB judge
        source = replace(source, metric=None, gate=None)
    if source.kind == "zoo":
        return replace(source, samples=samples)
    return replace(source, kind="onnx", reference=onnx, task=None, part=None, samples=samples)


def check_source(source: ModelSource, onnx: str) -> None:
    """Hold the source, which is what ``portable`` makes.

    Raises:
        InputError: it is not.
    """
    try:
        check_model_name(source.name)
    except UsageError as error:
        raise refuse(error.message) from error
    if source.kind == "zoo":
        if source.reference not in zoo().entries() and source.reference.rpartition("@")[0] not in zoo().entries():
            raise refuse(f"the zoo of this accel has no {source.reference!r}")
        metric = zoo().entry(source.reference).gate
    elif (source.kind, source.reference, source.task, source.part) == ("onnx", onnx, None, None):
        metric = None
    else:
        raise refuse(f"source is {source.kind} {source.reference!r}: expected an entry of the zoo, or onnx {onnx!r}")
    if source.metric is not None:
        if source.metric not in METRICS:
            raise refuse(f"metric is {source.metric!r}: expected one of {', '.join(METRICS)}")
        metric = METRICS[source.metric].__name__, TASK_SHARE
    if source.gate not in (None, metric):
        raise refuse(f"the gate of {source.reference} is {source.gate}: expected {metric}")
    if source.samples not in ("zoo", "random", "given"):
        raise refuse(f"samples are {source.samples!r}: expected zoo, random or given")
    _check_tensors("input", source.inputs)
    _check_tensors("output", source.outputs)
    inputs, outputs = {s.name for s in source.inputs}, {s.name for s in source.outputs}
    if not {source.mask or source.inputs[0].name, *source.graph.nchw} <= inputs:
        raise refuse(f"mask {source.mask!r} is not an input")
    if not source.native.keys() <= inputs | outputs or not {*source.native.values()} <= DATATYPES.keys():
        raise refuse("native names a tensor or dtype that is not there")
    if source.detections is not None and not {*source.detections.names} <= outputs:
        raise refuse("detections name an output that is not there")
    _check_profile(source.profile, source.inputs)


def check_variant(variant: Variant, source: ModelSource) -> None:
    """Hold the variant: a target of accel's own that starts from a typed ONNX file, and options that it has.

    Raises:
        InputError: it is another.
    """
    name, device = variant.target.name, variant.target.device
    if name not in precision_converted_targets():
        raise refuse(f"no kit finishes target {name!r}: expected one of {', '.join(precision_converted_targets())}")
    builder = targets.discover()[name]
    info = builder.targets[name]
    if device not in info.devices:
        raise refuse(f"target {name!r} does not run on {device!r}")
    if variant.static is not None and not (info.static and re.fullmatch(r"\d{1,9}(x\d{1,9})*", variant.static)):
        raise refuse(f"static is {variant.static!r}, which {name!r} is not built for")
    with raised_as(InputError, ValueError, "kit.json: options", fix=FIX):
        from_json(builder.options, dict(variant.options))
    if unknown := variant.options.keys() - {f.name for f in fields(builder.options)}:
        raise refuse(f"target {name!r} has no option {min(unknown)!r}")
    _check_profile(variant.profile, source.inputs)


def precision_converted_targets() -> tuple[str, ...]:
    """Return the targets of accel's own whose precision is made in the ONNX file."""
    found = targets.discover().items()
    return tuple(
        n for n, b in found if isinstance(b, ConvertingBuilder) and type(b).__module__.startswith("accel.builders.")
    )


def check_settings(settings: Mapping[str, Any], carried: Iterable[str], source: ModelSource) -> None:
    """Hold what the kit's job asked for: the options that it carries, and no others.

    Args:
        carried: names of these options.

    Raises:
        InputError: another option, or a value that no job has.
    """
    from accel.triton.releases import RELEASES

    expected = {*carried, "constraints", "overrides"}
    if settings.keys() != expected:
        raise refuse(f"settings are {sorted(settings)}: expected {sorted(expected)}")
    if settings["triton_release"] not in RELEASES:
        raise refuse(f"this accel knows no Triton {settings['triton_release']!r}")
    asked = settings["objectives"]
    if not isinstance(asked, list | tuple) or not asked or not set(asked) <= set(get_args(Objective)):
        raise refuse(f"objectives are {asked!r}")
    if not isinstance(settings["overrides"], str) or not isinstance(settings["gates"], Mapping):
        raise refuse("overrides are not text, or gates are not numbers by name")
    check_gates(settings["gates"], source)
    for name, least, most in NUMBERS:
        check_number(name, settings[name], least, most)
    said = to_json(settings["constraints"])
    with raised_as(InputError, ValueError, "kit.json: constraints", fix=FIX):
        constraints = from_json(Constraints, said)
    if to_json(constraints) != said:
        raise refuse(f"constraints are {said!r}")
    for name, value in constraints.named().items():
        check_number(name, value, 0, 1e12)


def check_gates(gates: Mapping[str, Any], source: ModelSource) -> None:
    """Hold the gates that the kit's job set.

    Raises:
        InputError: a gate that this model does not have, or one that everything passes.
    """
    try:
        check_names(gates, source.gate)
    except UsageError as error:
        raise refuse(error.message) from error
    for name, value in gates.items():
        if source.gate is not None and name == source.gate[0]:
            least = source.gate[1] / 2
        else:
            least = LEAST_SHARE if name in SHARES else LEAST_DB
        check_number(f"gate {name}", value, least, 400.0)


def check_number(name: str, value: Any, least: float, most: float) -> None:
    """Hold a number.

    Raises:
        InputError: it is none, or lies outside.
    """
    if not isinstance(value, int | float) or isinstance(value, bool) or not least <= value <= most:  # NaN, too
        raise refuse(f"{name} is {value!r}: expected {least:g} to {most:g}")


def check_files(listed: Iterable[FileRef], needed: Mapping[str, FileRef | None], folder: Path, own: set[str]) -> None:
    """Hold the list of files against what the kit needs and what lies in its folder.

    Args:
        needed: path → what the rest of the kit says of that file, if it does.
        own: files that the list does not hold.

    Raises:
        InputError: a path leaves the kit, a needed file is not listed or is another one, a file is not listed, or a
            link or something else that is not a plain file lies there.
    """
    found: dict[str, FileRef] = {}
    for file in listed:
        if not stays_inside(file.path) or file.path in found:
            raise refuse(f"files: {file.path!r} leaves the kit or is listed twice")
        found[file.path] = file
    for path, said in needed.items():
        if path not in found:
            raise refuse(f"files: {path!r}, which the kit needs, is not listed")
        if said is not None and (said.sha256, said.bytes) != (found[path].sha256, found[path].bytes):
            raise refuse(f"files: {path!r} is another file than the one that the kit describes")
    for place in sorted(folder.rglob("*")):
        name = place.relative_to(folder).as_posix()
        if place.is_symlink() or not (place.is_file() or place.is_dir()):
            raise refuse(f"{name} is a link or a device: a kit holds plain files")
        if place.is_file() and name not in found and name not in own:
            raise refuse(f"{name} is not listed")


def check_onnx(onnx: OnnxModel, folder: Path) -> None:
    """Hold the ONNX file: where its weights lie is what it says itself.

    Raises:
        InputError: it is not an ONNX file, or its weights lie elsewhere than in the files that the kit lists.
    """
    told = {file.path for file in onnx.data}
    if unknown := sorted(set(external_files(folder / onnx.file.path)) - told):
        raise refuse(f"{onnx.file.path} takes weights from {unknown[0]!r}, which the kit does not list")


def check_overrides(text: str, listed: Iterable[str], given: str) -> None:
    """Hold the overrides: fields that say how a model is served, and files that the kit brings.

    Args:
        given: folder of the kit in which such files lie.

    Raises:
        InputError: another field, or a file from elsewhere.
    """
    from accel.triton.overrides import moved, parse

    if not text:
        return
    config = parse(text, "kit.json: overrides")
    known = set(listed)
    for field, _ in config.ListFields():
        if field.name not in TUNING:
            raise refuse(f"overrides: a kit cannot set {field.name}")
    if config.HasField("optimization") and config.optimization.HasField("execution_accelerators"):
        raise refuse("overrides: a kit cannot set optimization.execution_accelerators")
    for name, value in config.parameters.items():
        if name == "EXECUTION_ENV_PATH" or not re.fullmatch(r"[\w.-]*", value.string_value):
            raise refuse(f"overrides: a kit cannot set the parameter {name!r} to {value.string_value[:80]!r}")

    def confine(path: Path) -> Path:
        if not stays_inside(str(path)) or PurePosixPath(path).parts[0] != given or str(path) not in known:
            raise refuse(f"overrides: {str(path)!r} is not a file of the kit below {given}/")
        return path

    moved(text, confine)


def _check_tensors(what: str, specs: tuple[TensorSpec, ...]) -> None:
    if not specs or len({s.name for s in specs}) != len(specs):
        raise refuse(f"it has no {what}, or two of one name")
    for spec in specs:
        if spec.dtype not in DATATYPES or not spec.name or not all(map(_is_dim, spec.dims)):
            raise refuse(f"{what} {spec.name!r} is {spec.dtype} {spec.dims}, which no tensor is")
        if spec.range is not None and not -(2**63) <= spec.range[0] <= spec.range[1] < 2**63:
            raise refuse(f"{what} {spec.name!r} has the range {spec.range}")
        if spec.ends is not None and not (spec.range and spec.range[0] <= spec.ends <= spec.range[1]):
            raise refuse(f"{what} {spec.name!r} ends with {spec.ends}, which its range does not hold")
        if spec.at_most is not None:
            other, axis, _ = spec.at_most
            if not any(s.name == other and 0 <= axis < len(s.dims) for s in specs):
                raise refuse(f"{what} {spec.name!r} is limited by axis {axis} of {other!r}, which is not there")


def _is_dim(dim: Dim) -> bool:
    return 0 < dim < 2**31 if isinstance(dim, int) else re.fullmatch(r"[\w.*/+()-]{1,128}", dim) is not None


def _check_profile(profile: Mapping[str, ShapeRange], inputs: tuple[TensorSpec, ...]) -> None:
    for spec in inputs:
        shape = profile.get(spec.name)
        if shape is None or not len(shape.min) == len(shape.opt) == len(shape.max) == len(spec.dims):
            raise refuse(f"the profile has no shapes of {spec.name!r}, or of another rank")
        if not all(0 < a <= b <= c < 2**31 for a, b, c in zip(shape.min, shape.opt, shape.max, strict=True)):
            raise refuse(f"the profile of {spec.name!r} is {shape}: expected sizes from 1, min ≤ opt ≤ max")
        steps, sizes = shape.multiples, (shape.min, shape.opt, shape.max)
        if (
            len(steps) != len(spec.dims)
            or min(steps, default=1) < 1
            or any(n % step for shape_at in sizes for n, step in zip(shape_at, steps, strict=True))
        ):
            raise refuse(f"the profile of {spec.name!r} is {shape}: its sizes are not multiples of {steps}")
    if len(profile) != len(inputs):
        raise refuse("the profile names an input that is not there")
