"""Model configs: typed values in, the server's own protobuf out, and its text form.

The text is printed by protobuf and parsed back by protobuf, so a field that Triton does not know cannot be emitted.
What a backend does with the values is the matter of ``repository`` and of the builders.
"""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

from google.protobuf import text_format

from accel.builders import targets
from accel.core.dtypes import DATATYPES, datatype
from accel.core.errors import InputError
from accel.core.model_names import check_model_name
from accel.core.values import PYTHON_BACKEND, TensorSpec

BATCHING: Mapping[str, Any] = {}
"""``dynamic_batching``: whatever waits is merged, no request waits for others, and the queue has no limit: with one the
batcher sleeps while requests wait (decision 28).

Source: server docs/user_guide/batcher.md, "Recommended Configuration Process".
"""
LIMITED: Mapping[str, Any] = {
    "default_queue_policy": {
        "timeout_action": "REJECT",
        "default_timeout_microseconds": 10_000_000,
        "allow_timeout_override": True,
        "max_queue_size": 1024,
    }
}
"""The same with a limit, for models that return at once and compute in threads of their own: a full queue refuses
(UNAVAILABLE), a request waits ten seconds at most, and a client may ask for less.

Source: common protobuf/model_config.proto, ModelQueuePolicy.
"""


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


def tensor(spec: TensorSpec) -> dict[str, Any]:
    """Return a tensor's type and dims as a message of the config has them."""
    return {"data_type": datatype(spec.dtype), "dims": dims(spec)}


def allow_lengths(model: Any) -> None:
    """Let the server hand over requests of a ``ModelConfig`` together whose inputs differ along axes that vary.

    Source: server docs/user_guide/ragged_batching.md. For the Python backend requests stay apart all the same.
    """
    for spec in model.input:
        if -1 in spec.dims:
            spec.allow_ragged_batch = True


def copy_fields(origin: Any, target: Any, *names: str) -> None:
    """Set fields of a ``ModelConfig`` to what another has; what that lacks is cleared."""
    part = type(origin)()
    part.CopyFrom(origin)
    for field in type(origin).DESCRIPTOR.fields:
        (target if field.name in names else part).ClearField(field.name)
    target.MergeFrom(part)


def step(model: str, input_map: Mapping[str, str], output_map: Mapping[str, str]) -> dict[str, Any]:
    """Return one step of an ensemble: its model, and model tensor name → ensemble tensor name for both directions."""
    return {"model_name": model, "model_version": -1, "input_map": input_map, "output_map": output_map}


def model_config(
    name: str,
    inputs: Iterable[TensorSpec],
    outputs: Iterable[TensorSpec],
    *,
    max_batch_size: int,
    version: int,
    kind: Literal["KIND_CPU", "KIND_GPU"] = "KIND_CPU",
    accelerators: Iterable[tuple[str, str, Mapping[str, str]]] = (),
    parameters: Mapping[str, str] | None = None,
    graph_level: int | None = None,
    steps: Sequence[Mapping[str, Any]] = (),
    **fields: Any,
) -> Any:
    """Build a ``tritonclient.grpc.model_config_pb2.ModelConfig``.

    Args:
        inputs / outputs: dims without the batch axis where ``max_batch_size`` is positive; a string means -1.
        version: the one version served.
        kind: of the one instance; an ensemble has none.
        accelerators: (``cpu`` or ``gpu``, name, parameters), in the order the backend tries them.
        graph_level: ``optimization.graph.level``, where the backend reads it.
        steps: makes it an ensemble (``step``); then backend, batching and warmup stay out, as the server demands.
        fields: further fields of the message, as its constructor takes them; None leaves one out.

    Raises:
        UsageError: an unsafe name.
        InputError: a dtype Triton does not have, an ensemble with fields that belong to its steps, or what ``check``
            finds.
    """
    from tritonclient.grpc import model_config_pb2 as pb

    # Source: triton-inference-server/core, src/model_config_utils.cc, ValidateEnsembleSchedulingConfig.
    if steps and (
        accelerators or any(fields.get(f) is not None for f in ("backend", "dynamic_batching", "model_warmup"))
    ):
        raise InputError(f"ensemble {name!r} has a backend, batching, warmup or accelerators: they belong to its steps")
    model = pb.ModelConfig(
        name=check_model_name(name),
        max_batch_size=max_batch_size,
        input=[{"name": s.name, **tensor(s)} for s in inputs],
        output=[{"name": s.name, **tensor(s)} for s in outputs],
        version_policy={"specific": {"versions": [version]}},
        parameters={key: {"string_value": value} for key, value in (parameters or {}).items()},
        **({"platform": "ensemble", "ensemble_scheduling": {"step": steps}} if steps else {}),
        **({} if steps else {"instance_group": [{"count": 1, "kind": kind}]}),
        **fields,
    )
    for place, accelerator, options in accelerators:
        group = model.optimization.execution_accelerators
        getattr(group, f"{place}_execution_accelerator").add(name=accelerator, parameters=options)
    if graph_level is not None:
        model.optimization.graph.level = graph_level
    check(model)
    return model


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
    if model.backend == PYTHON_BACKEND and model.model_transaction_policy.decoupled:
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


def to_text(model: Any) -> str:
    """Return a message's text form, as ``config.pbtxt`` has it; equal messages give equal text."""
    return text_format.MessageToString(model)


def parse(text: str) -> Any:
    """Read a ``config.pbtxt`` with the real protobuf.

    Raises:
        InputError: it is not a ModelConfig in text form; the message has protobuf's line and column.
    """
    from tritonclient.grpc import model_config_pb2 as pb

    try:
        return text_format.Parse(text, pb.ModelConfig())
    except text_format.ParseError as error:
        raise InputError(f"config.pbtxt does not parse: {error}", fix="emit the repository again") from error
