"""Rules on what a backend reads: ``parameters`` and execution accelerators, against the tables of ``rules``.

The sources stand in the rows of the tables.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from accel.core.errors import InputError, nearest
from accel.triton.lint.model import LintedModel, read_text, unsafe
from accel.triton.lint.rules import (
    ACCELERATORS,
    CORE_PARAMETERS,
    PARAMETERS,
    PRECISION_MODES,
    TENSORRT_10_ONLY,
    TENSORRT_11,
    TENSORRT_11_SINCE,
    Accelerator,
    Key,
)
from accel.triton.manifest import Finding

BOOLS: Mapping[str, tuple[str, ...]] = {
    "bool": ("true", "on", "1", "false", "off", "0"),
    "ort bool": ("true", "True", "1", "false", "False", "0"),
}
PROFILE_SHAPES = ("trt_profile_min_shapes", "trt_profile_opt_shapes", "trt_profile_max_shapes")
LARGEST_INT, LARGEST_UINT = 2**31 - 1, 2**64 - 1
ARENAS = re.compile(r"(cpu|gpu):\d+(;(cpu|gpu):\d+)*")
NUMPY_2 = re.compile(r"(?mi)^[^#\n]*\bnumpy\s*(?:==|>=|~=|>)\s*[2-9]")


def parameters(model: LintedModel) -> Iterator[Finding]:
    """Keys the backend does not read, values it refuses, and keys without effect."""
    known = PARAMETERS.get(model.platform) or PARAMETERS.get(model.backend)
    if known is None or model.ensemble:
        return
    lower = model.backend == "openvino"
    own_strategy = "TRITON_BATCH_STRATEGY_PATH" in model.config.parameters  # it may read keys of its own
    for key, value in model.config.parameters.items():
        field = f"parameters.{key}"
        if key in CORE_PARAMETERS:
            continue
        if key in known:
            yield from _value(model, field, known[key], value.string_value, lower=lower)
        elif not own_strategy:
            why = f"the {model.backend} backend does not read it{nearest(key, known)}"
            yield model.warning(field, why, "correct the key, or drop it")


def batch_strategy(model: LintedModel) -> Iterator[Finding]:
    """The library of a custom batching strategy lies in the model's folder.

    Source: core src/backend_model.cc, TritonModel::Create.
    """
    path = model.parameter("TRITON_BATCH_STRATEGY_PATH")
    if not path or model.config.HasField("sequence_batching"):
        return
    folder = model.root / model.folder
    if not path.startswith("/"):
        # It is looked up from where the server runs, which cannot be known here.
        yield model.warning("parameters.TRITON_BATCH_STRATEGY_PATH", f"{path!r} is not absolute", "give a full path")
    elif unsafe(path[1:]) or not path.startswith(f"{folder}/"):
        why = f"{path!r} is outside the model's folder, where this repository lies now"
        yield model.warning("parameters.TRITON_BATCH_STRATEGY_PATH", why, "mount the repository where it points")


def _value(model: LintedModel, field: str, key: Key, value: str, *, lower: bool) -> Iterator[Finding]:
    """Judge one value; ``lower`` where the backend ignores case. OpenVINO's backend takes an empty one for absent."""
    if model.row.name < key.since:
        yield model.warning(field, f"Triton {model.row.name} does not read it: it came in {key.since}", "drop it")
    elif key.ignored:
        yield model.warning(field, f"has no effect: {key.ignored}", "drop it")
    elif lower and not value:
        yield model.warning(field, "is empty, which counts as absent", "give it a string_value")
    elif reason := _wrong(key, value.lower() if lower else value):
        yield model.error(field, f"is {value!r}, expected {reason}", "correct it")
    elif field.endswith("_thread_count") and value.lstrip().startswith("-"):
        yield model.warning(field, f"is {value!r}: below 1 the runtime chooses", "set 1 or more, or drop it")
    elif key.kind == "yes" and value.lower() not in ("yes", "no"):
        yield model.warning(field, f"is {value!r}: anything but YES counts as no", "set YES or NO")


def _wrong(key: Key, value: str) -> str:
    """Say what was expected of a value that is refused; empty where it is accepted."""
    if value in key.words:
        return ""
    if key.kind == "arenas":
        return "" if ARENAS.fullmatch(value) else "devices such as cpu:0;gpu:0"
    if key.kind in ("int", "threads", "uint", "digits"):
        number = re.fullmatch(r"\d+", value) if key.kind == "digits" else re.match(r"\s*[+-]?\d+", value)
        most = LARGEST_UINT if key.kind == "uint" else LARGEST_INT
        if number is None or abs(int(number[0])) > most:
            return " or ".join([f"a number up to {most}", *key.words])
        if key.kind == "threads" and int(number[0]) < 1:
            return "a number from 1"
        value = str(int(number[0]))
    elif key.kind in BOOLS:
        allowed = BOOLS[key.kind]
        return "" if value in allowed or (key.kind == "bool" and value.lower() in allowed) else f"one of {allowed}"
    return f"one of {key.values}" if key.values and value not in key.values else ""


def accelerators(model: LintedModel) -> Iterator[Finding]:
    """Names and keys of execution accelerators.

    Source: onnxruntime_backend src/onnxruntime.cc, ModelState::LoadModel: those for GPUs are read for instances on GPUs
    alone; tensorflow_backend src/tensorflow.cc, CreateModel: any for CPUs fails the load.
    """
    group = model.config.optimization.execution_accelerators
    on_gpu = {g.Kind.Name(g.kind) for g in model.config.instance_group} - {"KIND_CPU", "KIND_MODEL"}
    for place, values in (("gpu", group.gpu_execution_accelerator), ("cpu", group.cpu_execution_accelerator)):
        known = ACCELERATORS.get((model.backend, place))
        if known is None:  # config.optimization says that the backend ignores all of them
            continue
        for value in values:
            field = f"optimization.execution_accelerators.{value.name}"
            if value.name not in known:
                where = " for GPUs" if value.name in ACCELERATORS.get((model.backend, "gpu"), {}) else ""
                hint = ", ".join(known) or "none"
                yield model.error(
                    field,
                    f"the {model.backend} backend has no such {place}_execution_accelerator{where}",
                    f"use {hint}",
                )
            elif place == "gpu" and model.config.instance_group and not on_gpu:
                yield model.warning(field, "is ignored: no instance runs on a GPU", "set KIND_GPU, or drop it")
            else:
                yield from _accelerator(model, field, known[value.name], value)


def _accelerator(model: LintedModel, field: str, known: Accelerator, value: Any) -> Iterator[Finding]:
    for key, text in value.parameters.items():
        if key in known.keys:
            yield from _value(model, f"{field}.{key}", known.keys[key], text, lower=False)
        elif known.unknown == "rejected":
            yield model.error(
                f"{field}.{key}", f"is unknown and fails the load{nearest(key, known.keys)}", "correct it"
            )
        else:
            yield model.warning(f"{field}.{key}", f"is ignored: {value.name} takes no parameters here", "drop it")


def tensorrt(model: LintedModel) -> Iterator[Finding]:
    """What the TensorRT accelerator of a release makes of precision, calibration and profile shapes.

    Source: ``rules.TENSORRT_11`` and ``rules.PRECISION_MODES``; onnxruntime core/providers/tensorrt,
    ParseProfileShapes and ValidateProfileShapes: profiles that do not fit each other are all dropped.
    """
    if model.backend != "onnxruntime":
        return
    for value in model.config.optimization.execution_accelerators.gpu_execution_accelerator:
        if value.name != "tensorrt":
            continue
        field = "optimization.execution_accelerators.tensorrt"
        mode = value.parameters.get("precision_mode", "")
        if mode in PRECISION_MODES and model.row.name < PRECISION_MODES[mode]:
            why = f"is {mode}, which came in {PRECISION_MODES[mode]}"
            yield model.error(f"{field}.precision_mode", why, "use FP16, or a newer release")
        if model.row.name >= TENSORRT_11_SINCE and mode != "FP32":
            for key in TENSORRT_10_ONLY:
                if key in value.parameters:
                    fix = "drop it, and give an FP16 or Q/DQ model"
                    yield model.warning(f"{field}.{key}", f"{value.parameters[key]!r}: {TENSORRT_11}", fix)
        given = [k for k in PROFILE_SHAPES if value.parameters.get(k)]
        if given and len(given) < len(PROFILE_SHAPES):
            missing = next(k for k in PROFILE_SHAPES if k not in given)
            why = f"is missing beside {given[0]}, so that all profiles are dropped"
            yield model.warning(f"{field}.{missing}", why, "give min, opt and max together")
        yield from _profile_names(model, field, {k: value.parameters[k] for k in given})


def _profile_names(model: LintedModel, field: str, profiles: Mapping[str, str]) -> Iterator[Finding]:
    inputs = {t.name for t in model.config.input}
    for key, text in profiles.items():
        # An input may have a colon in its name, so the shape is what follows the last one.
        entries = [entry.rpartition(":") for entry in text.split(",")]
        for name, _, shape in entries:
            if not re.fullmatch(r"\d+(x\d+)*", shape.strip()):
                why = f"{shape!r} is not a shape such as 1x128, so that all profiles are dropped"
                yield model.warning(f"{field}.{key}", why, "write name:1x128,…")
            elif inputs and name.strip() not in inputs:
                yield model.warning(
                    f"{field}.{key}", f"{name.strip()!r} is not an input of the config", "name an input"
                )


def numpy_below_2(model: LintedModel) -> Iterator[Finding]:
    """NumPy 2 under a Python backend that answers with empty outputs then, where the repository asks for it.

    Source: ``releases.TritonRelease.numpy_below_2``.
    """
    if model.backend != "python" or not model.row.numpy_below_2:
        return
    at = model.root / model.folder
    files = [model.root / "launch.sh", at / "requirements.txt", model.root / "requirements.txt"]
    files += [at / str(v) / "requirements.txt" for v in model.versions]
    for path in files:
        try:
            text = read_text(model.root, path)
        except InputError:
            continue
        if found := NUMPY_2.search(text):
            why = f"asks for {found[0].strip()!r}: this release's Python backend gives empty outputs under NumPy 2"
            yield model.warning("", why, "ask for numpy<2", file=path.relative_to(model.root).as_posix())


RULES: tuple[Callable[[LintedModel], Iterator[Finding]], ...] = (
    parameters,
    batch_strategy,
    accelerators,
    tensorrt,
    numpy_below_2,
)
