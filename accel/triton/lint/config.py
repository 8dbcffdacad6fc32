"""Rules on one config by itself: what the server's core checks before it asks a backend.

Each rule is a function from a ``LintedModel`` to its findings. Unless a docstring says otherwise the source is
triton-inference-server/core, src/model_config_utils.cc, in the function named.
"""

import math
import re
from collections import Counter
from collections.abc import Callable, Iterator
from difflib import get_close_matches
from typing import Any

from accel.core.errors import nearest
from accel.triton.config import type_name
from accel.triton.lint.auto_complete import DISABLED, completes
from accel.triton.lint.model import LintedModel, Severity, unsafe
from accel.triton.lint.rules import (
    AUTO_COMPLETE,
    COUNTED_SINCE,
    ENSEMBLE_REFUSES,
    EXTRA_BACKENDS,
    FIELDS_SINCE,
    INPUT_COUNTED,
    KINDS,
    NO_OPTIONAL_INPUTS,
    OPTIMIZATION_READERS,
    ORT_BF16_SINCE,
    OTHER_IMAGES,
    PLATFORMS,
    SERVER_FLAGS,
    UNSUPPORTED_TYPES,
)
from accel.triton.manifest import Finding

LARGEST = 2**63 - 1
LARGEST_GPU = 31
"""The largest systems have 16 GPUs in one machine, few 20; the number of a higher one is a mistake."""
CORRELATION_TYPES = ("TYPE_UINT64", "TYPE_INT64", "TYPE_UINT32", "TYPE_INT32", "TYPE_STRING")


def names(model: LintedModel) -> Iterator[Finding]:
    """The config names its folder. Source: core model_repository_manager.cc, InitializeModelInfo."""
    if model.config.name and model.config.name != model.folder:
        yield model.error("name", f"is {model.config.name!r}, and the folder is {model.folder!r}", "make them equal")


def schema(model: LintedModel) -> Iterator[Finding]:
    """Fields that the release's protobuf does not have yet, so that the whole config fails to parse."""
    for path, since in FIELDS_SINCE.items():
        top, _, inner = path.partition(".")
        value = getattr(model.config, top)
        present = model.config.HasField(top) and (not inner or getattr(value, inner) != 0)
        if present and model.row.name < since:
            yield model.error(path, f"Triton {model.row.name} cannot parse it: it came in {since}", "leave it out")


def backend(model: LintedModel) -> Iterator[Finding]:
    """Backend and platform are known, belong together and exist in the release. Source: ValidateModelConfig."""
    config, row = model.config, model.row
    if model.ensemble:
        yield from model.errors(
            (config.backend, "backend", f"is {config.backend!r}: an ensemble has none", "leave it out"),
            (
                config.platform != "ensemble",
                "platform",
                f"is {config.platform!r} beside ensemble_scheduling",
                'set it to "ensemble"',
            ),
            (
                not config.HasField("ensemble_scheduling"),
                "ensemble_scheduling",
                "is missing from an ensemble",
                "add its steps",
            ),
        )
        return
    if not model.backend:
        field, value = ("platform", config.platform) if config.platform else ("backend", config.backend)
        hint = nearest(value, PLATFORMS) if value else ""
        yield model.error(field, f"is {value!r}, which names no backend{hint}", "set backend")
        return
    if model.backend in PLATFORMS.values() and PLATFORMS.get(model.platform) != model.backend:
        known = [p for p, b in PLATFORMS.items() if b == model.backend]
        yield model.error(
            "platform", f"is {model.platform!r} with backend {model.backend!r}", f"set it to {' or '.join(known)}"
        )
    elif model.backend == "tensorflow" and "tensorflow" not in row.backends:
        yield model.error(
            "backend", f"Triton {row.name} has no tensorflow backend: 25.02 was the last", "serve it as ONNX or IR"
        )
    elif model.platform == "torch_aoti" and not row.torch_aoti:
        yield model.error(
            "platform",
            f"Triton {row.name} does not serve AOTInductor packages under these names: 26.05 is the first",
            "use a newer release",
        )
    elif model.custom:
        yield from _unknown_backend(model)
    if reason := unsafe(config.runtime) or ("it holds a folder" if "/" in config.runtime else ""):
        # Source: core src/backend_model.cc, TritonModel::GetBackendLibraryProperties.
        yield model.error("runtime", f"is {config.runtime!r}: {reason}", "name the library alone")
    elif config.runtime and not (
        model.custom or config.runtime in _runtimes(model) or _lies_here(model, config.runtime)
    ):
        why = f"is {config.runtime!r}, which neither the {model.backend} backend nor this model's folder has"
        yield model.error("runtime", why, "leave it out, or add the library to the model's folder")


def _unknown_backend(model: LintedModel) -> Iterator[Finding]:
    """Source: core src/backend_model.cc, GetBackendLibrarySearchPaths: version folder, model folder, backend folder."""
    if _lies_here(model, f"libtriton_{model.backend}.so"):
        return
    if image := OTHER_IMAGES.get(model.backend):
        yield model.warning("backend", f"only the image {model.row.name}-{image} has {model.backend}", "start that one")
    elif meant := get_close_matches(model.backend, model.row.backends | EXTRA_BACKENDS, n=1, cutoff=0.8):
        yield model.error("backend", f"is {model.backend!r}, which no image has", f"did you mean {meant[0]}?")
    else:
        yield model.warning(
            "backend", f"is {model.backend!r}, which no image has", "put it into --backend-directory of the server"
        )


def _lies_here(model: LintedModel, library: str) -> bool:
    at = model.root / model.folder
    return any((folder / library).is_file() for folder in (at, *(at / str(v) for v in model.versions)))


def _runtimes(model: LintedModel) -> tuple[str, ...]:
    """Return the runtimes of a backend of the release: its library, and ``model.py`` of one that has both.

    Source: core src/backend_model.cc, TritonModel::GetBackendLibraryProperties; pytorch_backend README.
    """
    return (f"libtriton_{model.backend}.so", *(("model.py",) if model.backend == "pytorch" else ()))


def tensors(model: LintedModel) -> Iterator[Finding]:
    """Names, types, dims and reshapes of inputs and outputs. Source: ValidateIOShape, ValidateModelInput."""
    for kind, values in (("input", model.config.input), ("output", model.config.output)):
        for name, times in Counter(t.name for t in values).items():
            if name and times > 1:
                # Source: core src/model.cc, Model::Init: the map keeps the first.
                severity: Severity = "error" if kind == "input" and model.backend in INPUT_COUNTED else "warning"
                yield model.finding(severity, f"{kind}.{name}", f"is declared {times} times", "declare it once")
        for index, tensor in enumerate(values):
            if not tensor.name:
                yield model.error(f"{kind}[{index}].name", "is missing", "name it as the model does")
            yield from _tensor(model, f"{kind}.{tensor.name or index}", tensor)
    for tensor in model.config.input:
        if tensor.format and len(tensor.dims) != 3:
            yield model.error(f"input.{tensor.name}.format", f"needs 3 dims, found {len(tensor.dims)}", "drop it")
        if tensor.optional and model.backend in NO_OPTIONAL_INPUTS:
            why = f"the {model.backend} backend has no optional inputs"
            yield model.error(f"input.{tensor.name}.optional", why, "drop it")
        elif tensor.optional and model.backend == "onnxruntime" and model.batched:
            # Source: onnxruntime_backend src/onnxruntime.cc, ModelInstanceState::ValidateInputs.
            why = "the onnxruntime backend has no optional inputs where max_batch_size is positive"
            yield model.error(f"input.{tensor.name}.optional", why, "set max_batch_size to 0, or drop it")


def _tensor(model: LintedModel, field: str, tensor: Any) -> Iterator[Finding]:
    name = type_name(tensor.data_type)
    no_bf16 = model.backend == "onnxruntime" and model.row.name < ORT_BF16_SINCE
    refused, _ = UNSUPPORTED_TYPES.get(model.backend, (frozenset(), ""))
    # Others complete tensors as a whole or not at all. Source: tensorrt_backend src/model_state.cc, FixIO.
    filled = model.backend == "tensorrt" or model.custom or (model.backend == "python" and completes(model))
    left: Severity = "warning" if filled and DISABLED not in (model.launch or "") else "error"
    by = f": only the auto-complete of the {model.backend} backend fills it in" if left == "warning" else ""
    if not tensor.data_type:
        yield model.finding(left, f"{field}.data_type", f"is missing{by}", "set it to the model's own")
    elif name in refused or (no_bf16 and name == "TYPE_BF16"):
        why = f"the {model.backend} backend of Triton {model.row.name} has no {name}"
        yield model.error(f"{field}.data_type", why, "cast at the model's boundary, or serve it through python")
    if not tensor.dims:
        fix = "add dims: [1] and an empty reshape for a scalar" if model.batched else "add dims, [1] for a scalar"
        yield model.finding(left, f"{field}.dims", f"is empty{by}", fix)
    if bad := [d for d in tensor.dims if d < 1 and d != -1]:
        yield model.error(f"{field}.dims", f"holds {bad[0]}: a dim is at least 1, or -1 for a free one", "correct it")
    elif math.prod(d for d in tensor.dims if d > 0) > LARGEST:
        severity: Severity = "error" if model.row.name >= COUNTED_SINCE else "warning"
        why = "multiply to more elements than an int64 counts"
        yield model.finding(severity, f"{field}.dims", why, "correct them")
    if tensor.HasField("reshape") and not bad:
        yield from _reshape(model, f"{field}.reshape", list(tensor.dims), list(tensor.reshape.shape))
    if model.platform != "tensorrt_plan" and (tensor.is_shape_tensor or tensor.is_non_linear_format_io):
        flag = "is_shape_tensor" if tensor.is_shape_tensor else "is_non_linear_format_io"
        yield model.error(f"{field}.{flag}", "is for TensorRT plans only", "drop it")
    elif tensor.is_shape_tensor and tensor.data_type and name not in ("TYPE_INT32", "TYPE_INT64"):
        # Source: tensorrt_backend src/instance_state.cc: INT32 or INT64 in, INT64 out.
        yield model.error(f"{field}.is_shape_tensor", f"is for whole numbers, and this is {name}", "drop it")
    elif tensor.is_non_linear_format_io and len(tensor.dims) != 3:
        yield model.error(f"{field}.is_non_linear_format_io", f"needs 3 dims, found {len(tensor.dims)}", "drop it")


def _reshape(model: LintedModel, field: str, dims: list[int], shape: list[int]) -> Iterator[Finding]:
    """Source: ValidateIOShape: as many elements, and as many between each two free dims."""
    if not shape and not model.config.max_batch_size:
        yield model.error(field, "is empty without a batch axis: a tensor needs a dim", "give it a shape")
    elif bad := [d for d in shape if d < 1 and d != -1]:
        yield model.error(field, f"holds {bad[0]}: a dim is at least 1, or -1 for a free one", "correct it")
    elif _runs(dims) != _runs(shape) and dims:
        yield model.error(field, f"{shape} holds other elements than dims {dims}", "keep each run between free dims")


def _runs(dims: list[int]) -> list[int]:
    """Return the number of elements before, between and after the free dims."""
    found = [1]
    for dim in dims:
        if dim == -1:
            found.append(1)
        else:
            found[-1] *= dim
    return found


def completeness(model: LintedModel) -> Iterator[Finding]:
    """Inputs or outputs that are left out: the server asks the backend for them, unless that is turned off."""
    for kind in ("input", "output"):
        if getattr(model.config, kind) or (kind == "input" and model.config.batch_input):
            continue
        if model.ensemble or model.backend == "pytorch":
            # Source: pytorch_backend src/pt/model_instance_state.cc, ValidateInputs and ValidateOutputs.
            yield model.error(kind, "is missing, and nothing completes it", f"declare every {kind}")
        elif model.backend in AUTO_COMPLETE:
            why = f"is missing: the {model.backend} backend completes it, but not under --disable-auto-complete-config"
            yield model.warning(kind, why, f"declare every {kind}")


def batch_size(model: LintedModel) -> Iterator[Finding]:
    """``max_batch_size`` by itself and under the openvino backend.

    Source: ValidateModelConfig; openvino_backend src/openvino.cc, ModelState::ValidateInputs (the model is fixed to it)
    and ModelInstanceState::ProcessRequests (any other size is refused); openvino_backend#115 for padding.
    """
    size = model.config.max_batch_size
    if size < 0:
        yield model.error("max_batch_size", f"is {size}", "set 0 for a model without a batch axis of the server's")
    if model.backend != "openvino" or size < 2:
        return
    if model.parameter("ENABLE_BATCH_PADDING").lower() == "yes":
        yield model.warning(
            "parameters.ENABLE_BATCH_PADDING",
            f"smaller batches are padded to {size} and may be answered wrongly (openvino_backend#115)",
            "set max_batch_size: 0 and put the batch axis into the dims, or serve it through python",
        )
    else:
        yield model.warning(
            "max_batch_size",
            f"the openvino backend fixes the batch to {size} and refuses every request that is smaller",
            "set max_batch_size: 0 and put the batch axis into the dims, or serve it through python",
        )
        if any(sample.batch_size for sample in model.config.model_warmup):
            yield model.error(
                "model_warmup", f"requests of batch 1 are refused by a batch fixed to {size}", "set max_batch_size: 0"
            )


def batch_tensors(model: LintedModel) -> Iterator[Finding]:
    """``batch_input`` and ``batch_output``. Source: ValidateBatchIO."""
    inputs, outputs = {t.name for t in model.config.input}, {t.name for t in model.config.output}
    for kind, values in (("batch_input", model.config.batch_input), ("batch_output", model.config.batch_output)):
        for index, value in enumerate(values):
            field = f"{kind}[{index}]"
            batch_input, given = kind == "batch_input", len(value.source_input)
            known = not batch_input or type_name(value.data_type) in ("TYPE_INT32", "TYPE_FP32")
            yield from model.errors(
                (given != 1, f"{field}.source_input", f"needs 1, found {given}", "name one"),
                *(
                    (source not in inputs, f"{field}.source_input", f"{source!r} is not an input", "name an input")
                    for source in value.source_input
                ),
                (not known, f"{field}.data_type", "is neither TYPE_INT32 nor TYPE_FP32", "use one of them"),
            )
            for name, times in Counter(() if batch_input else value.target_name).items():
                yield from model.errors(
                    (name not in outputs, f"{field}.target_name", f"{name!r} is not an output", "name an output"),
                    (times > 1, f"{field}.target_name", f"{name!r} is named {times} times", "name it once"),
                )


def dynamic_batching(model: LintedModel) -> Iterator[Finding]:
    """Preferred sizes, priorities and queue policies.

    Source: ValidateModelConfig; core src/dynamic_batch_scheduler.cc (without ``max_batch_size`` it merges nothing;
    ``WaitForPayloadSlotAvailable`` sleeps); src/scheduler_utils.cc, PriorityQueue (``support_prefetching_``).
    """
    if not model.config.HasField("dynamic_batching"):
        return
    batching, most = model.config.dynamic_batching, model.config.max_batch_size
    yield from _preferred(model, "dynamic_batching.preferred_batch_size", batching.preferred_batch_size)
    if most == 0 and not batching.preferred_batch_size:
        yield model.warning("dynamic_batching", "merges nothing while max_batch_size is 0", "leave it out")
    levels, default = batching.priority_levels, batching.default_priority_level
    beyond = next((level for level in batching.priority_queue_policy if not 1 <= level <= levels), None)
    if not levels and (default or batching.priority_queue_policy):
        why = "is 0, so that levels and their policies are ignored"
        yield model.warning("dynamic_batching.priority_levels", why, "set it")
    policies = [batching.default_queue_policy, *batching.priority_queue_policy.values()]
    limit = batching.default_queue_policy
    limits = limit.max_queue_size or limit.default_timeout_microseconds or limit.allow_timeout_override
    # What accel groups itself returns at once: an instance is always free.
    if most and not levels and limits and (model.manifest is None or model.manifest.grouping is None):
        yield model.warning(
            "dynamic_batching.default_queue_policy",
            "lets requests wait for up to 0.5 s beside a free instance: where a queue has a limit, the end of a batch "
            "does not always wake the batcher (24.03 to 26.06 at least)",
            "leave it out and give clients deadlines, or measure it at small loads",
        )
    delays = any(p.default_timeout_microseconds and p.timeout_action for p in policies)
    ordered, field = batching.preserve_ordering, "dynamic_batching.preserve_ordering"
    yield from model.errors(
        (
            levels and not 1 <= default <= levels,
            "dynamic_batching.default_priority_level",
            f"is {default}, not in 1..{levels}",
            "set one of them",
        ),
        (
            levels and beyond is not None,
            "dynamic_batching.priority_queue_policy",
            f"is for level {beyond}, not in 1..{levels}",
            "correct it",
        ),
        (ordered and levels > 1, field, f"allows 1 priority, found {levels}", "choose one"),
        (ordered and delays, field, "forbids DELAY as the action of a timeout", "use REJECT"),
    )


def _states(model: LintedModel) -> Iterator[Finding]:
    """Implicit states: who takes them, and what they begin with.

    Source: server docs/user_guide/implicit_state_management.md; core
    src/sequence_batch_scheduler/sequence_batch_scheduler.cc, GenerateInitialStateData.
    """
    states = model.config.sequence_batching.state
    if states and model.backend in ("python", "openvino"):
        why = f"the {model.backend} backend takes no state from the server"
        yield model.warning("sequence_batching.state", why, "keep it in the model, or serve it with onnxruntime")
    if states and model.config.model_warmup:
        why = "is sent without a sequence, so that no state is there: onnxruntime ends the server at load (24.10, run)"
        yield model.error("model_warmup", why, "leave it out")
    for state in states:
        field = f"sequence_batching.state.{state.input_name}.initial_state"
        for begin in state.initial_state:
            dims = list(begin.dims)
            alike = len(dims) == len(state.dims) and all(s in (-1, d) for s, d in zip(state.dims, dims, strict=True))
            yield from model.errors(
                (len(state.initial_state) > 1, field, "is given more than once", "keep one"),
                (not begin.name, field, "has no name", "name it"),
                (begin.data_type != state.data_type, field, "has another data_type than the state", "let them agree"),
                (
                    -1 in dims or not alike,
                    field,
                    f"has dims {dims}, and the state {list(state.dims)}",
                    "give the state's, none of them -1",
                ),
            )


def _preferred(model: LintedModel, field: str, sizes: Any) -> Iterator[Finding]:
    most = model.config.max_batch_size
    if bad := [s for s in sizes if s < 1 or s > most]:
        yield model.error(field, f"holds {bad[0]}, outside 1..{most} (max_batch_size)", "correct it")


def sequence_batching(model: LintedModel) -> Iterator[Finding]:
    """Controls, strategy and what cannot go with sequences.

    Source: ValidateModelConfig, GetBooleanSequenceControlProperties, GetTypedSequenceControlProperties; core
    src/backend_model.cc, TritonModel::Create; pytorch_backend src/pt2/model_instance_state.cc, ValidateInputs.
    """
    if not model.config.HasField("sequence_batching"):
        return
    batching = model.config.sequence_batching
    controls = [c for tensor in batching.control_input for c in tensor.control]
    names = Counter(c.name for c in batching.control_input)
    kinds = Counter(c.Kind.Name(c.kind) for c in controls)
    field, strategy = "sequence_batching.control_input", "TRITON_BATCH_STRATEGY_PATH"
    utilization = batching.direct.minimum_slot_utilization
    yield from _preferred(model, "sequence_batching.oldest.preferred_batch_size", batching.oldest.preferred_batch_size)
    yield from _states(model)
    yield from model.errors(
        (
            model.config.response_cache.enable,
            "response_cache",
            "cannot go with sequence batching",
            "turn one of them off",
        ),
        (
            strategy in model.config.parameters,
            f"parameters.{strategy}",
            "cannot go with sequence batching",
            "drop it",
        ),
        (model.platform == "torch_aoti", "sequence_batching", "torch_aoti does not support it", "drop it"),
        (
            not 0 <= utilization <= 1,
            "sequence_batching.direct.minimum_slot_utilization",
            "is not in 0..1",
            "correct it",
        ),
        (names[""], field, "has no name", "name each control tensor once"),
        *(
            (name and times > 1, field, f"{name!r} is declared {times} times", "name each control tensor once")
            for name, times in names.items()
        ),
        *((times > 1, field, f"{kind} is there {times} times", "keep one") for kind, times in kinds.items()),
    )
    for control in controls:
        yield from _control(model, control)


def _control(model: LintedModel, control: Any) -> Iterator[Finding]:
    field, name = "sequence_batching.control_input", control.Kind.Name(control.kind)
    given = [v for v in (control.int32_false_true, control.fp32_false_true, control.bool_false_true) if v]
    correlation, type_ = name == "CONTROL_SEQUENCE_CORRID", type_name(control.data_type)
    pair = len(given) == 1 and len(given[0]) == 2
    yield from model.errors(
        (
            correlation and type_ not in CORRELATION_TYPES,
            field,
            f"{name} has {type_}",
            f"use one of {CORRELATION_TYPES}",
        ),
        (correlation and given, field, f"{name} has false and true values", "drop them"),
        (
            not correlation and not pair,
            field,
            f"{name} needs one pair of values for false and true",
            "give exactly one pair",
        ),
    )


def caching(model: LintedModel) -> Iterator[Finding]:
    """The response cache and answers that come in parts. Source: ValidateModelConfig."""
    if model.config.response_cache.enable and model.config.model_transaction_policy.decoupled:
        yield model.error("response_cache", "cannot go with decoupled responses", "turn one of them off")


def instances(model: LintedModel) -> Iterator[Finding]:
    """Instance groups. Source: ValidateInstanceGroup, NormalizeInstanceGroup; the backends in ``rules.KINDS``."""
    if model.ensemble:
        return
    wanted, _ = KINDS.get(model.backend, ("", ""))
    if model.config.instance_group and all(group.passive for group in model.config.instance_group):
        # Source: core src/backend_model.cc, RegisterBackgroundInstance: the scheduler gets the others only.
        why = "is passive in every group: the model becomes ready, and the first request ends the server"
        yield model.error("instance_group", why, "leave passive out of one group")
    for index, group in enumerate(model.config.instance_group):
        field, kind = f"instance_group[{index}]", group.Kind.Name(group.kind)
        multi_device = kind == "KIND_MODEL" and model.parameter("enable_multi_device").lower() in ("true", "1")
        if wanted == "KIND_CPU" and kind == "KIND_AUTO":
            why = f"is KIND_AUTO, which a machine with a GPU makes KIND_GPU, and {model.backend} refuses that"
            yield model.warning(f"{field}.kind", why, f"set {wanted}")
        if group.count < 0:
            yield model.warning(f"{field}.count", f"is {group.count}, and the default is used", "set 1 or more")
        unplaced, plan = kind in ("KIND_CPU", "KIND_MODEL"), model.platform == "tensorrt_plan"
        gpu = next((g for g in group.gpus if g < 0), None)
        profile = next((p for p in group.profile if not re.match(r"\s*\+?\d", p)), None)
        yield from model.errors(
            (
                wanted and kind not in (wanted, "KIND_AUTO") and not (model.backend == "tensorrt" and multi_device),
                f"{field}.kind",
                f"is {kind}: the {model.backend} backend loads only {wanted}",
                "set it",
            ),
            (
                unplaced and group.gpus,
                f"{field}.gpus",
                f"is {list(group.gpus)} with {kind}",
                "drop it, or set KIND_GPU",
            ),
            (
                not unplaced and gpu is not None,
                f"{field}.gpus",
                f"holds {gpu}",
                "name GPUs by their number from 0",
            ),
            (
                not unplaced and max(group.gpus, default=0) > LARGEST_GPU,
                f"{field}.gpus",
                f"holds {max(group.gpus, default=0)}, and no machine has so many",
                "name GPUs by their number from 0",
            ),
            (group.profile and not plan, f"{field}.profile", "is for TensorRT plans only", "drop it"),
            (
                plan and profile is not None,
                f"{field}.profile",
                f"{profile!r} is not a profile number",
                "number it from 0",
            ),
        )


def ensemble_fields(model: LintedModel) -> Iterator[Finding]:
    """What belongs to the steps of an ensemble, not to itself."""
    if not model.ensemble:
        return
    for name, why in ENSEMBLE_REFUSES.items():
        value = getattr(model.config, name)
        if model.config.HasField(name) if name == "optimization" else len(value):
            yield model.error(name, f"cannot be in an ensemble: {why}", "move it to the steps")


def optimization(model: LintedModel) -> Iterator[Finding]:
    """Settings of ``optimization`` that the backend does not read."""
    if model.ensemble or model.backend not in model.row.backends | EXTRA_BACKENDS:
        return
    for descriptor, _ in model.config.optimization.ListFields():
        readers = OPTIMIZATION_READERS.get(descriptor.name)
        if readers is not None and model.backend not in readers:
            why = f"the {model.backend} backend ignores it: only {' and '.join(sorted(readers))} reads it"
            yield model.warning(f"optimization.{descriptor.name}", why, "drop it")
    level = model.config.optimization.graph.level
    if model.backend == "onnxruntime" and level not in (-1, 0, 1, 2):
        # Source: onnxruntime_backend src/onnxruntime.cc, ModelState::ModelState.
        yield model.warning("optimization.graph.level", f"is {level}, which counts as 0 (all)", "use -1, 0, 1 or 2")
    if model.config.model_operations.op_library_filename and model.backend not in ("onnxruntime", "tensorflow"):
        yield model.warning("model_operations", f"the {model.backend} backend ignores it", "drop it")


def server_flags(model: LintedModel) -> Iterator[Finding]:
    """Settings that do nothing unless the server was started for them; ``launch.sh`` is where lint can look."""
    groups = model.config.instance_group
    wanted = {
        "response_cache": model.config.response_cache.enable,
        "rate_limiter": any(g.HasField("rate_limiter") for g in groups),
        "host_policy": any(g.host_policy for g in groups),
    }
    for name, (flags, _) in SERVER_FLAGS.items():
        if wanted[name] and not any(flag in (model.launch or "") for flag in flags):
            field = name if name == "response_cache" else f"instance_group.{name}"
            seen = "launch.sh does not have it" if model.launch else "there is no launch.sh to tell"
            yield model.warning(field, f"is ignored by a server without {flags[0]}, and {seen}", f"add {flags[0]}")


def metrics(model: LintedModel) -> Iterator[Finding]:
    """Histogram buckets. Source: ValidateModelMetrics."""
    for index, control in enumerate(model.config.model_metrics.metric_control):
        field = f"model_metrics.metric_control[{index}]"
        yield from model.errors(
            (not control.metric_identifier.family, f"{field}.metric_identifier", "names no family", "name one"),
            (not control.histogram_options.buckets, f"{field}.histogram_options", "has no buckets", "list them"),
        )


RULES: tuple[Callable[[LintedModel], Iterator[Finding]], ...] = (
    names,
    schema,
    backend,
    tensors,
    completeness,
    batch_size,
    batch_tensors,
    dynamic_batching,
    sequence_batching,
    caching,
    instances,
    ensemble_fields,
    optimization,
    server_flags,
    metrics,
)
