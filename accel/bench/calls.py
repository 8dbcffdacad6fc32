"""What the parent asks of a process that sends; arrays travel as files.

Also what is asked of the server between requests: its models, and its counters.
"""

import gc
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from typing import Any, Literal

import numpy as np

from accel.bench.checker import Checker
from accel.bench.request_pool import HttpPool, NewContents, PlainRequest, RequestPool, SequenceIds, SharedPool, request
from accel.bench.sender import MAX_IN_FLIGHT, Sender
from accel.bench.timed_session import now_ns
from accel.bench.transport import (
    CONNECTIONS,
    METHOD,
    OPTIONS,
    GrpcTransport,
    HttpTransport,
    Transport,
    check_http,
    parse_response,
)
from accel.bench.wire import WireTensor
from accel.core.dtypes import DATATYPES
from accel.core.errors import InputError, StageError, UnavailableError, UsageError
from accel.core.feeds import read_npz
from accel.core.values import TensorSpec

COUNTERS: Mapping[str, Callable[[Any], int]] = {
    "queue_ns": attrgetter("inference_stats.queue.ns"),
    "input_ns": attrgetter("inference_stats.compute_input.ns"),
    "infer_ns": attrgetter("inference_stats.compute_infer.ns"),
    "output_ns": attrgetter("inference_stats.compute_output.ns"),
    "requests": attrgetter("inference_stats.success.count"),
    "inferences": attrgetter("inference_count"),
    "executions": attrgetter("execution_count"),
    "cache_hits": attrgetter("inference_stats.cache_hit.count"),
    "cache_misses": attrgetter("inference_stats.cache_miss.count"),
}
"""Where a version's statistics have each counter."""

_open: dict[str, Any] = {}


@dataclass(frozen=True, slots=True)
class ServedModel:
    """What a server says of a model.

    Attributes:
        backend: backend or platform.
        max_batch_size: 0 where the server does not batch.
        inputs / outputs: full dims; the leading axis is ``batch`` where the server batches, and every other dynamic
            axis has a name of its own, since a config does not say which are equal.
    """

    model: str
    backend: str
    max_batch_size: int
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]


def describe(url: str, model: str) -> ServedModel:
    """Ask the server what it says of a model.

    Args:
        model: empty for the only one.

    Raises:
        UnavailableError: nothing answers at the address.
        InputError: the server does not have the model, or it has several and none is named.
    """
    client = _client(url)
    found = {m.name: m for m in _asked(client.get_model_repository_index).models if m.state in ("READY", "")}
    has = f"the server at {url} has"
    if model and model not in found:
        raise InputError(f"{has} no model {model!r} that is ready", fix=f"it has {sorted(found)}")
    if not model:
        if len(found) != 1:
            raise InputError(f"{has} {len(found)} models: {sorted(found)}", fix="name one: --model M")
        model = next(iter(found))
    config = _asked(client.get_model_config, model).config
    size = config.max_batch_size
    inputs, outputs = (tuple(_spec(t, batched=size > 0) for t in side) for side in (config.input, config.output))
    return ServedModel(model, config.backend or config.platform, size, inputs, outputs)


@dataclass(frozen=True, slots=True)
class FirstRequest:
    """How long the first request took, and the size of the largest output; with shared memory that of all feeds."""

    first_ms: float
    largest_output_bytes: int


def open_pool(
    url: str,
    model: str,
    tensors: tuple[tuple[WireTensor, ...], ...],
    bodies: Path,
    check: Path | None,
    shared_memory: str | None,
    slots: int,
    seed: int,
    timeout_s: float,
    share: float | None = None,
    http: str | None = None,
    hit_rate: float | None = None,
) -> FirstRequest:
    """Serialise all requests, send the first one, and connect.

    Args:
        tensors: each feed's inputs.
        bodies: ``.npz`` with the bytes of ``<feed>/<input>``.
        check: ``.npz`` for ``Checker``; ``share`` is its share of the time.
        shared_memory: what the regions' names begin with, or None to send everything inline; not over HTTP.
        slots: most requests under way in a closed loop, and with shared memory in an open one.
        http: ``host:port`` of the HTTP endpoint, where the load goes there; the first request goes over gRPC.
        hit_rate: share of the requests that repeat what was sent before, for which each is sent once now; None lets
            all. Not with shared memory.

    Raises:
        UnavailableError: nothing answers at the address, shared memory cannot be used, or HTTP's client is missing.
        UsageError: more clients than one process can have connections, or repeated requests to a stateful model.
        InputError: the server refuses the first request, or no new contents can be made.
    """
    close_pool()
    if http is not None:
        check_http(slots)
    client = _client(url)
    with np.load(bodies, allow_pickle=False) as file:
        feeds: Sequence[PlainRequest] = [
            (feed, [file[f"{i}/{t.name}"].tobytes() for t in feed]) for i, feed in enumerate(tensors)
        ]
    new = None if hit_rate is None else NewContents(feeds, hit_rate=hit_rate)
    feeds = feeds if new is None else new.requests
    requests = [request(model, *feed) for feed in feeds]
    stateful = _asked(client.get_model_config, model).config.HasField("sequence_batching")
    if stateful and hit_rate is not None:
        raise UsageError(f"no answer of {model!r}, a stateful model, is kept for others", fix="leave --hit-rate out")
    sequences = SequenceIds(len(requests)) if stateful else None
    alone = sequences.of(0, 0, alone=True).message() if sequences else b""
    begin_ns = now_ns()
    first = _answered(url, requests[0], timeout_s, alone)
    first_ms = (now_ns() - begin_ns) / 1e6
    if new is not None:
        for made in requests[1:]:
            _answered(url, made, timeout_s, alone)
    pool: RequestPool | HttpPool
    transport: Transport
    sizes = [_sizes(first)]
    if http is not None:
        pool = HttpPool(feeds, stateful=stateful, new=new)
        transport = HttpTransport(http, model, pool)
    else:
        if shared_memory:
            sizes += [_sizes(_answered(url, r, timeout_s, alone)) for r in requests[1:]]
            pool = SharedPool(shared_memory, client, requests, sizes, slots)
        else:
            pool = RequestPool(requests, new)
        transport = GrpcTransport(url, pool)
    checker = Checker(read_npz(check), share=share) if check is not None else None
    room = slots if shared_memory else max(slots, MAX_IN_FLIGHT if http is None else CONNECTIONS)
    sender = Sender(transport, len(pool), checker, seed=seed, slots=room, timeout_s=timeout_s, sequences=sequences)
    _open.update(client=client, pool=pool, checker=checker, sender=sender, cpu_s=time.process_time())
    return FirstRequest(first_ms, max(size for feed in sizes for size in feed.values()))


def start(
    concurrency: int | None,
    begin_ns: int,
    rate_per_s: float | None,
    arrivals: Literal["constant", "poisson", "recorded"],
    gaps: Path | None,
    index: int,
    count: int,
) -> None:
    """Begin to send.

    Args:
        concurrency: of a closed loop, or None.
        begin_ns: the moment of the first request.
        rate_per_s / arrivals / index / count: of an open loop: see ``due_times``.
        gaps: ``.npy`` with the recorded gaps.
    """
    gc.collect()
    gc.freeze()  # a collection would stop every request while it looks at what was there before
    _open["cpu_s"] = time.process_time()
    gaps_s = () if gaps is None else np.load(gaps).tolist()
    loop = {"rate_per_s": rate_per_s, "arrivals": arrivals, "gaps_s": gaps_s, "index": index, "count": count}
    _open["sender"].start(concurrency=concurrency, begin_ns=begin_ns, **loop)


@dataclass(frozen=True, slots=True)
class SenderReport:
    """What happened since the last call.

    Attributes:
        failures: requests that ended in an error; ``error`` is what the first one said.
        dead: why the server is thought gone.
        cpu_s: CPU time that this process spent.
    """

    failures: int
    error: str | None
    dead: str | None
    cpu_s: float


def take(out: Path) -> SenderReport:
    """Write the rows since the last call to ``out``."""
    sender: Sender = _open["sender"]
    rows, failures = sender.take()
    np.save(out, rows)
    before, _open["cpu_s"] = _open["cpu_s"], time.process_time()
    return SenderReport(failures, sender.error, sender.dead, _open["cpu_s"] - before)


def stop() -> None:
    """Send no more."""
    _open["sender"].stop()


@dataclass(frozen=True, slots=True)
class ResponseErrors:
    """How many responses were checked, and the error of the worst one of each feed and output."""

    checked: int
    noise: Mapping[str, float]


def worst(out: Path) -> ResponseErrors:
    """Write the worst answer of each feed and output to ``out``."""
    checker: Checker = _open["checker"]
    np.savez(out, **checker.worst)  # type: ignore[arg-type]
    return ResponseErrors(checker.checked, {k: min(v, 1e300) for k, v in checker.noise.items()})


def close_pool() -> None:
    """Disconnect, and give shared memory back."""
    if _open:
        _open["sender"].close()
        _open["pool"].close(_open["client"])
        _open["client"].close()
        _open.clear()


def statistics(url: str, model: str) -> dict[str, int]:
    """Read the server's counters of a model since it was loaded, in ns and counts.

    An ensemble has only the number of its requests; its times are the sums over its steps, its inferences and
    executions those of the step that computed longest, and cached answers its own and those of its steps.

    Source: server docs/protocol/extension_statistics.md.
    """
    client = _client(url)
    config = _asked(client.get_model_config, model).config
    found = _counters(_asked(client.get_inference_statistics, model).model_stats)
    steps = {step.model_name for step in config.ensemble_scheduling.step}
    if steps:
        parts = [_counters(_asked(client.get_inference_statistics, step).model_stats) for step in sorted(steps)]
        longest = max(parts, key=lambda part: part["infer_ns"])
        sums = ("queue_ns", "input_ns", "infer_ns", "output_ns")
        found |= {key: sum(part[key] for part in parts) for key in sums}
        found |= {key: sum(part[key] for part in (found, *parts)) for key in ("cache_hits", "cache_misses")}
        found |= {key: longest[key] for key in ("inferences", "executions")}
    return found


def _client(url: str) -> Any:
    from tritonclient import grpc

    return grpc.InferenceServerClient(url)


def _asked(call: Callable[..., Any], *words: Any) -> Any:
    from tritonclient.utils import InferenceServerException

    try:
        return call(*words)
    except InferenceServerException as error:
        if error.status() == "StatusCode.UNAVAILABLE":
            raise UnavailableError(
                f"no Triton server answers: {error.message()}", fix="start one: accel serve"
            ) from error
        raise InputError(f"the server says: {error.message()}") from error


def _answered(url: str, made: Any, timeout_s: float, more: bytes) -> Any:
    """Send one request, with ``more`` of its message, and return the parsed response."""
    import grpc

    with grpc.insecure_channel(url, OPTIONS) as channel:
        try:
            return parse_response(channel.unary_unary(METHOD)(made.SerializeToString() + more, timeout=timeout_s))
        except grpc.RpcError as error:
            if error.code() is grpc.StatusCode.UNAVAILABLE:
                raise StageError(f"the server at {url} does not answer: {error.details()}") from error
            raise InputError(
                f"the server refuses the first request of {made.model_name!r}: {error.details()}",
                fix="give data that fit the model: --data FILE",
            ) from error


def _sizes(response: Any) -> dict[str, int]:
    return {t.name: len(b) for t, b in zip(response.outputs, response.raw_output_contents, strict=True)}


def _spec(tensor: Any, *, batched: bool) -> TensorSpec:
    """Return the spec of a tensor of a config; every dynamic axis gets a name of its own."""
    from tritonclient.grpc import model_config_pb2

    kinds = {name: dtype for dtype, name in DATATYPES.items() if dtype != "str"}
    dims = tuple(size if size >= 0 else f"{tensor.name}.{axis}" for axis, size in enumerate(tensor.dims))
    dtype = kinds[model_config_pb2.DataType.Name(tensor.data_type)]
    return TensorSpec(tensor.name, dtype, ("batch", *dims) if batched else dims)


def _counters(stats: Any) -> dict[str, int]:
    """Add up the counters over all served versions of a model."""
    return {name: sum(map(count, stats)) for name, count in COUNTERS.items()}
