"""Model configs: typed values in, the server's own protobuf out, and its text form.

The text is printed by protobuf and parsed back by protobuf, so a field that Triton does not know cannot be emitted.
What a backend does with the values is the matter of ``repository`` and of the builders.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from accel.builders import targets
from accel.core.dtypes import DATATYPES, datatype
from accel.core.errors import InputError, UsageError
from accel.core.values import TensorSpec


@dataclass(frozen=True, slots=True)
class DynamicBatching:
    """How the server merges waiting requests.

    Attributes:
        preferred: batch sizes worth waiting for; only for a model that is clearly faster at them, such as a TensorRT
            plan with one profile for each. Empty: whatever waits is merged.
        delay_us: how long a request may wait for others, in microseconds.
        queue: how many requests may wait; one more is refused (UNAVAILABLE).
        timeout_us: how long a request may wait before it is refused, in microseconds; a client may ask for less.
            Without it those of clients that went away are all computed before those of clients that wait.

    Source: server docs/user_guide/batcher.md, "Recommended Configuration Process"; common protobuf/model_config.proto,
    ModelQueuePolicy.
    """

    preferred: tuple[int, ...] = ()
    delay_us: int = 0
    queue: int = 1024
    timeout_us: int = 10_000_000


@dataclass(frozen=True, slots=True)
class WarmupSample:
    """One warm-up call.

    Attributes:
        batch_size: requests of batch 1 that go into one execute call; 1 for a model without ``max_batch_size``.
        inputs: concrete dims, without the batch axis where ``max_batch_size`` is positive.
        files: input name → file below ``<model>/warmup/``; an input without one is fed zeros.
    """

    name: str
    batch_size: int
    inputs: tuple[TensorSpec, ...]
    files: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Step:
    """One step of an ensemble: its model, and model tensor name → ensemble tensor name for both directions."""

    model: str
    input_map: Mapping[str, str]
    output_map: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class TritonConfig:
    """One ``config.pbtxt``.

    Attributes:
        inputs / outputs: dims without the batch axis where ``max_batch_size`` is positive; a string means -1.
        filename: ``default_model_filename``; None for an ensemble.
        versions: the versions served, each by its number.
        kind / instances: the instance group; unused by an ensemble.
        accelerators: (``cpu`` or ``gpu``, name, parameters), in the order the backend tries them.
        graph_level: ``optimization.graph.level``, where the backend reads it.
        steps: makes it an ensemble; then backend, instances, batching and warmup stay out, as the server demands.
    """

    name: str
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    max_batch_size: int
    versions: tuple[int, ...]
    backend: str | None = None
    platform: str | None = None
    filename: str | None = None
    kind: Literal["KIND_CPU", "KIND_GPU"] = "KIND_CPU"
    instances: int = 1
    batching: DynamicBatching | None = None
    warmup: tuple[WarmupSample, ...] = ()
    accelerators: tuple[tuple[str, str, Mapping[str, str]], ...] = ()
    parameters: Mapping[str, str] = field(default_factory=dict)
    graph_level: int | None = None
    steps: tuple[Step, ...] = ()


def check_model_name(name: str) -> str:
    """Return the name if it is safe as a folder and on the wire.

    Raises:
        UsageError: it is empty, begins with a dot, or holds a slash, ``..`` or anything but letters, digits, ``_.-``.
    """
    if len(name) > 128 or ".." in name or not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.-]*", name):
        raise UsageError(
            f"model name {name!r} cannot name a folder of a Triton repository: expected 1 to 128 letters, digits, "
            "'_', '-' or '.', not starting with '.' or '-' and without '..'",
            fix="choose another with --model-name",
        )
    return name


def type_name(value: int) -> str:
    """Return ``TYPE_FP32`` for a data type's number."""
    from tritonclient.grpc import model_config_pb2 as pb

    return str(pb.DataType.Name(value))


def byte_size(data: Any) -> int | None:
    """Return the bytes that a warm-up input of a config has; None where its type does not say (strings)."""
    import numpy as np

    kind = type_name(data.data_type)
    dtype = next((dtype for dtype, name in DATATYPES.items() if name == kind and name != "TYPE_STRING"), None)
    if dtype is None:
        return None
    return math.prod(data.dims) * (2 if dtype == "bfloat16" else np.dtype(dtype).itemsize)


def dims(spec: TensorSpec) -> tuple[int, ...]:
    """Return the dims as a config states them: -1 for a named axis."""
    return tuple(d if isinstance(d, int) else -1 for d in spec.dims)


def to_protobuf(config: TritonConfig) -> Any:
    """Build the ``tritonclient.grpc.model_config_pb2.ModelConfig`` of a config.

    Raises:
        UsageError: an unsafe name.
        InputError: a dtype Triton does not have, an ensemble with fields that belong to its steps, or what ``check``
            finds.
    """
    from tritonclient.grpc import model_config_pb2 as pb

    _check_ensemble(config)
    model = pb.ModelConfig(
        name=check_model_name(config.name),
        backend=config.backend,
        platform=config.platform,
        default_model_filename=config.filename,
        max_batch_size=config.max_batch_size,
        input=[{"name": s.name, **_typed(s)} for s in config.inputs],
        output=[{"name": s.name, **_typed(s)} for s in config.outputs],
        version_policy={"specific": {"versions": config.versions}},
        parameters={key: {"string_value": value} for key, value in config.parameters.items()},
        model_warmup=[
            {
                "name": sample.name,
                "batch_size": sample.batch_size,
                "count": 1,
                "inputs": {s.name: _typed(s) | _data(sample.files.get(s.name)) for s in sample.inputs},
            }
            for sample in config.warmup
        ],
    )
    for step in config.steps:
        model.ensemble_scheduling.step.add(
            model_name=step.model, model_version=-1, input_map=step.input_map, output_map=step.output_map
        )
    if not config.steps:
        model.instance_group.add(count=config.instances, kind=config.kind)
    if config.batching is not None:
        model.dynamic_batching.SetInParent()
        model.dynamic_batching.preferred_batch_size.extend(config.batching.preferred)
        model.dynamic_batching.max_queue_delay_microseconds = config.batching.delay_us
        policy = model.dynamic_batching.default_queue_policy
        policy.timeout_action = policy.REJECT
        policy.default_timeout_microseconds, policy.allow_timeout_override = config.batching.timeout_us, True
        policy.max_queue_size = config.batching.queue
    for place, name, parameters in config.accelerators:
        group = model.optimization.execution_accelerators
        getattr(group, f"{place}_execution_accelerator").add(name=name, parameters=parameters)
    if config.graph_level is not None:
        model.optimization.graph.level = config.graph_level
    check(model)
    return model


def _typed(spec: TensorSpec) -> dict[str, Any]:
    return {"data_type": datatype(spec.dtype), "dims": dims(spec)}


def _data(file: str | None) -> dict[str, Any]:
    return {"zero_data": True} if file is None else {"input_data_file": file}


def _check_ensemble(config: TritonConfig) -> None:
    """Refuse fields that an ensemble must not have.

    Source: triton-inference-server/core, src/model_config_utils.cc, ValidateEnsembleSchedulingConfig.
    """
    if config.steps and (config.backend or config.batching or config.warmup or config.accelerators):
        raise InputError(
            f"ensemble {config.name!r} has a backend, batching, warmup or accelerators: they belong to its steps"
        )
    if config.steps and config.platform != "ensemble":
        raise InputError(f"ensemble {config.name!r} has platform {config.platform!r}, expected 'ensemble'")


def check(model: Any) -> None:
    """Refuse in a ``ModelConfig`` what every release refuses at load, whatever the backend is asked to do.

    Raises:
        InputError: batching without a batch size or beyond it, a response cache where the server has none, decoupled
            answers of the Python backend, an instance group the openvino backend refuses, a host policy that is no
            plain name, or warm-up without concrete dims.

    Source: triton-inference-server/core, src/model_config_utils.cc, ValidateModelConfig, and
    src/backend_model_instance.cc, GenerateWarmupData; openvino_backend, src/openvino.cc, ModelInstanceState.
    """
    name, largest = model.name, model.max_batch_size
    batching, sequences = model.HasField("dynamic_batching"), model.HasField("sequence_batching")
    if batching and largest < 1:
        raise InputError(
            f"{name!r} has dynamic_batching with max_batch_size {largest}: it cannot batch requests",
            fix="leave dynamic_batching out for this target",
        )
    preferred = model.dynamic_batching if batching else model.sequence_batching.oldest
    for size in preferred.preferred_batch_size:
        if not 1 <= size <= largest:
            raise InputError(f"{name!r} has preferred_batch_size {size}, expected 1 to its max_batch_size {largest}")
    if model.response_cache.enable and (sequences or model.model_transaction_policy.decoupled):
        other = "sequence_batching" if sequences else "a decoupled model_transaction_policy"
        raise InputError(f"{name!r} has response_cache with {other}: no release caches that", fix="leave one out")
    if model.backend == "python" and model.model_transaction_policy.decoupled:
        raise InputError(
            f"{name!r} has a decoupled model_transaction_policy: accel's model.py answers each request once",
            fix="leave it out",
        )
    for group in model.instance_group:
        kind = group.Kind.Name(group.kind)
        if group.count < 1:
            raise InputError(f"{name!r} has an instance_group with count {group.count}, expected 1 or more")
        wanted = targets.backend(model.backend).kind
        if wanted is not None and kind not in (wanted, "KIND_AUTO"):
            raise InputError(f"{name!r}: the {model.backend} backend loads only instances of {wanted}, found {kind}")
        if not re.fullmatch(r"[A-Za-z0-9_.-]*", group.host_policy):
            raise InputError(
                f"{name!r}: host_policy {group.host_policy!r} becomes a server flag, expected letters, digits and '_.-'"
            )
    for sample in model.model_warmup:
        if any(d < 1 for data in sample.inputs.values() for d in data.dims):
            raise InputError(f"warmup {sample.name!r} of {name!r} has a dimension that is not concrete")


def render(config: TritonConfig) -> str:
    """Return the text of ``config.pbtxt``; equal configs give equal text."""
    return to_text(to_protobuf(config))


def to_text(model: Any) -> str:
    """Return a message's text form, as ``config.pbtxt`` has it."""
    from google.protobuf import text_format

    return text_format.MessageToString(model)


def parse(text: str) -> Any:
    """Read a ``config.pbtxt`` with the real protobuf.

    Raises:
        InputError: it is not a ModelConfig in text form; the message has protobuf's line and column.
    """
    from google.protobuf import text_format
    from tritonclient.grpc import model_config_pb2 as pb

    try:
        return text_format.Parse(text, pb.ModelConfig())
    except text_format.ParseError as error:
        raise InputError(f"config.pbtxt does not parse: {error}", fix="emit the repository again") from error
