"""What a server uses: CPU and memory of its processes, and the GPU metrics it publishes."""

import contextlib
import urllib.request
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
import psutil

from accel.bench.endpoint import Endpoint

GAUGES: Mapping[str, Callable[[list[float]], Any]] = {
    "nv_gpu_utilization": np.mean,
    "nv_gpu_memory_used_bytes": np.sum,
    "nv_gpu_power_usage": np.sum,
}
"""Metrics that are read, and how those of several GPUs are one. Source: server docs/user_guide/metrics.md."""


def use(endpoint: Endpoint) -> tuple[float | None, float]:
    """Return CPU seconds so far and resident MiB of the server and the stubs it started; None and 0 where unknown.

    A server in a container is not a child of the docker command that started it: it is found by the id that the command
    gave it (``--id``), where docker's engine runs on this machine.
    """
    if endpoint.pid is None:
        return None, 0.0
    cpu_s, rss = 0.0, 0
    with contextlib.suppress(psutil.NoSuchProcess):
        started = psutil.Process(endpoint.pid)
        servers = [started]
        if endpoint.via == "docker":
            ids = {word for word in started.cmdline() if word.startswith("--id=")}
            servers = [p for p in psutil.process_iter() if p != started and ids & set(_known(p.cmdline))]
        for process in {p for server in servers for p in (server, *_known(partial(server.children, recursive=True)))}:
            with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):
                times = process.cpu_times()
                cpu_s += times.user + times.system
                rss += process.memory_info().rss
    return (cpu_s, rss / 2**20) if rss else (None, 0.0)


def _known(ask: Callable[[], list[Any]]) -> list[Any]:
    """Return what a process answers; nothing where it has ended or is another user's."""
    try:
        return ask()
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return []


def gauges(endpoint: Endpoint) -> dict[str, float]:
    """Read the GPU metrics of a server; empty where it has no GPU or no ``/metrics``."""
    values = _metrics(endpoint)
    return {name: float(merge(values[name])) for name, merge in GAUGES.items() if values.get(name)}


def model_calls(endpoint: Endpoint) -> tuple[int, int] | None:
    """Return how often models that group requests were called so far, and the rows of these calls; None without such.

    The server's own statistics say how often requests were handed over (``triton/backend_py/grouped.py``).
    """
    values = _metrics(endpoint)
    calls, rows = (values.get(name) for name in ("accel_calls", "accel_rows"))
    return (round(sum(calls)), round(sum(rows))) if calls and rows else None


def _metrics(endpoint: Endpoint) -> dict[str, list[float]]:
    """Return the values of each metric of a server's ``/metrics``, over all its labels."""
    if endpoint.metrics is None:
        return {}
    from prometheus_client.parser import text_string_to_metric_families  # a server, which every run would import

    try:
        with urllib.request.urlopen(f"http://{endpoint.metrics}/metrics", timeout=5) as answer:
            text = answer.read().decode()
    except OSError:
        return {}
    return {f.name: [s.value for s in f.samples] for f in text_string_to_metric_families(text)}
