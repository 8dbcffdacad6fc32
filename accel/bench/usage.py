"""What a server uses: CPU and memory of its processes, and the GPU metrics it publishes."""

import contextlib
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from accel.bench.endpoint import Endpoint

GAUGES: Mapping[str, Callable[[list[float]], Any]] = {
    "nv_gpu_utilization": np.mean,
    "nv_gpu_memory_used_bytes": np.sum,
    "nv_gpu_power_usage": np.sum,
}
"""Metrics that are read, and how those of several GPUs are one. Source: server docs/user_guide/metrics.md."""


def use(endpoint: Endpoint) -> tuple[float | None, float]:
    """Return CPU seconds so far and resident MiB of the server and the stubs it started; None and 0 where unknown.

    A server in a container is no child of the docker command that started it: it is found by the id that the command
    gave it (``--id``), where docker's engine runs on this machine.
    """
    import psutil

    if endpoint.pid is None:
        return None, 0.0
    cpu_s, rss = 0.0, 0
    with contextlib.suppress(psutil.NoSuchProcess):
        started = psutil.Process(endpoint.pid)
        servers = [started]
        if endpoint.via == "docker":
            ids = {word for word in started.cmdline() if word.startswith("--id=")}
            servers = [p for p in psutil.process_iter() if p != started and ids & set(_words(p))]
        for process in {p for server in servers for p in (server, *_children(server))}:
            with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):
                times = process.cpu_times()
                cpu_s += times.user + times.system
                rss += process.memory_info().rss
    return (cpu_s, rss / 2**20) if rss else (None, 0.0)


def _words(process: Any) -> list[str]:
    import psutil

    with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):
        return list(process.cmdline())
    return []


def _children(process: Any) -> list[Any]:
    import psutil

    with contextlib.suppress(psutil.NoSuchProcess):
        return list(process.children(recursive=True))
    return []


def gauges(endpoint: Endpoint) -> dict[str, float]:
    """Read the GPU metrics of a server; empty where it has no GPU or no ``/metrics``."""
    import urllib.request

    from prometheus_client.parser import text_string_to_metric_families

    if endpoint.metrics is None:
        return {}
    try:
        with urllib.request.urlopen(f"http://{endpoint.metrics}/metrics", timeout=5) as answer:
            text = answer.read().decode()
    except OSError:
        return {}
    values = {f.name: [s.value for s in f.samples] for f in text_string_to_metric_families(text)}
    return {name: float(merge(values[name])) for name, merge in GAUGES.items() if values.get(name)}
