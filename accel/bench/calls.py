"""What the parent can ask of a process that sends: by name, with JSON in and out, arrays as files.

Also what is asked of the server between requests: its models, and its counters.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Mapping
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np

from accel.bench.pool import Pool, SharedPool, request
from accel.bench.sender import MAX_IN_FLIGHT, METHOD, OPTIONS, Checker, Sender, parse_response
from accel.bench.session import now_ns
from accel.core.errors import InputError, StageError, UnavailableError

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


def describe(url: str, model: str) -> Any:
    """Return what the server says of a model: its name, inputs, outputs, batch size, and the steps of an ensemble.

    Args:
        model: empty for the only one.

    Raises:
        UnavailableError: nothing answers at the address.
        InputError: the server does not have the model, or it has several and none is named.
    """
    client = _client(url)
    found = {m.name: m for m in _asked(client.get_model_repository_index).models if m.state in ("READY", "")}
    if model and model not in found:
        raise InputError(f"the server at {url} has no model {model!r} that is ready", fix=f"it has {sorted(found)}")
    if not model:
        if len(found) != 1:
            raise InputError(f"the server at {url} has {len(found)} models: {sorted(found)}", fix="name one: --model M")
        model = next(iter(found))
    config = _asked(client.get_model_config, model).config
    return {
        "model": model,
        "max_batch_size": config.max_batch_size,
        "backend": config.backend or config.platform,
        "inputs": [_tensor(t) for t in config.input],
        "outputs": [_tensor(t) for t in config.output],
    }


def open_pool(
    url: str,
    model: str,
    tensors: list[list[dict[str, Any]]],
    bodies: str,
    check: str | None,
    shared_memory: str | None,
    slots: int,
    seed: int,
    timeout_s: float,
) -> Any:
    """Serialise all requests, send the first one, and connect; returns how long the first one took.

    Args:
        tensors: name, datatype and shape of each feed's inputs.
        bodies: ``.npz`` with the bytes of ``<feed>/<input>``.
        check: ``.npz`` for ``Checker``.
        shared_memory: what the regions' names begin with, or None to send everything inline.
        slots: most requests under way in a closed loop, and with shared memory in an open one.

    Raises:
        UnavailableError: nothing answers at the address, or shared memory cannot be used.
        InputError: the server refuses the first request.
    """
    close()
    client = _client(url)
    with np.load(bodies, allow_pickle=False) as file:
        requests = [
            request(model, feed, [file[f"{i}/{tensor['name']}"].tobytes() for tensor in feed])
            for i, feed in enumerate(tensors)
        ]
    begin_ns = now_ns()
    first = _answered(url, requests[0], timeout_s)
    first_ms = (now_ns() - begin_ns) / 1e6
    pool: Pool
    sizes = [_sizes(first)]
    if shared_memory:
        sizes += [_sizes(_answered(url, r, timeout_s)) for r in requests[1:]]
        pool = SharedPool(shared_memory, client, requests, sizes, slots)
    else:
        pool = Pool(requests)
    checker = None
    if check is not None:
        with np.load(check, allow_pickle=False) as file:
            checker = Checker({key: file[key] for key in file.files})
    room = slots if shared_memory else max(slots, MAX_IN_FLIGHT)
    sender = Sender(url, pool, checker, seed=seed, slots=room, timeout_s=timeout_s)
    _open.update(client=client, pool=pool, checker=checker, sender=sender, cpu_s=time.process_time())
    return {"first_ms": first_ms, "largest_output_bytes": max(size for feed in sizes for size in feed.values())}


def start(**load: Any) -> None:
    """Begin to send.

    Args:
        load: ``concurrency`` of a closed loop, or None; ``begin_ns``, the moment of the first request; ``rate_per_s``,
            ``arrivals``, ``index`` and ``count`` of an open one: see ``due_times``.
    """
    gc.collect()
    gc.freeze()  # a collection would stop every request while it looks at what was there before
    _open["cpu_s"] = time.process_time()
    _open["sender"].start(**load)


def take(out: str) -> Any:
    """Write the rows since the last call; returns failures, the first error, and why the server is thought gone."""
    sender: Sender = _open["sender"]
    rows, failures = sender.take()
    np.save(Path(out), rows)
    before, _open["cpu_s"] = _open["cpu_s"], time.process_time()
    return {"failures": failures, "error": sender.error, "dead": sender.dead, "cpu_s": _open["cpu_s"] - before}


def stop() -> None:
    """Send no more."""
    _open["sender"].stop()


def worst(out: str) -> Any:
    """Write the worst answer of each feed and output; returns how many responses were checked and each one's error."""
    checker: Checker = _open["checker"]
    with Path(out).open("wb") as file:
        np.savez(file, **checker.worst)  # type: ignore[arg-type]
    return {"checked": checker.checked, "noise": {k: min(v, 1e300) for k, v in checker.noise.items()}}


def close() -> None:
    """Disconnect, and give shared memory back."""
    if _open:
        _open["sender"].close()
        _open["pool"].close(_open["client"])
        _open["client"].close()
        _open.clear()


def statistics(url: str, model: str) -> Any:
    """Return the server's counters of a model since it was loaded, in ns and counts.

    An ensemble has only the number of its requests; its times are the sums over its steps, and its inferences and
    executions those of the step that computed longest.

    Source: server docs/protocol/extension_statistics.md.
    """
    client = _client(url)
    config = _asked(client.get_model_config, model).config
    found = _counters(_asked(client.get_inference_statistics, model).model_stats)
    steps = {step.model_name for step in config.ensemble_scheduling.step}
    if steps:
        parts = [_counters(_asked(client.get_inference_statistics, step).model_stats) for step in sorted(steps)]
        longest = max(parts, key=lambda part: part["infer_ns"])
        found |= {key: sum(part[key] for part in parts) for key in ("queue_ns", "input_ns", "infer_ns", "output_ns")}
        found |= {key: longest[key] for key in ("inferences", "executions")}
    return found


CALLS: Mapping[str, Callable[..., Any]] = {
    "describe": describe,
    "open": open_pool,
    "start": start,
    "take": take,
    "stop": stop,
    "worst": worst,
    "close": close,
    "statistics": statistics,
}


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


def _answered(url: str, made: Any, timeout_s: float) -> Any:
    """Send one request and return the parsed response."""
    import grpc

    with grpc.insecure_channel(url, OPTIONS) as channel:
        try:
            return parse_response(channel.unary_unary(METHOD)(made.SerializeToString(), timeout=timeout_s))
        except grpc.RpcError as error:
            if error.code() is grpc.StatusCode.UNAVAILABLE:
                raise StageError(f"the server at {url} does not answer: {error.details()}") from error
            raise InputError(
                f"the server refuses the first request of {made.model_name!r}: {error.details()}",
                fix="give data that fit the model: --data FILE",
            ) from error


def _sizes(response: Any) -> dict[str, int]:
    return {t.name: len(b) for t, b in zip(response.outputs, response.raw_output_contents, strict=True)}


def _tensor(tensor: Any) -> dict[str, Any]:
    from tritonclient.grpc import model_config_pb2

    return {
        "name": tensor.name,
        "datatype": model_config_pb2.DataType.Name(tensor.data_type),
        "dims": list(tensor.dims),
    }


def _counters(stats: Any) -> dict[str, int]:
    """Add up the counters over all served versions of a model."""
    return {name: sum(map(count, stats)) for name, count in COUNTERS.items()}
