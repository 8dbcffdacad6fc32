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
    """Return CPU seconds so far and resident MiB of the server and the stubs it started; None and 0 where unknown."""
    import psutil

    if endpoint.pid is None or endpoint.via == "docker":
        return None, 0.0
    cpu_s, rss = 0.0, 0
    with contextlib.suppress(psutil.NoSuchProcess):
        server = psutil.Process(endpoint.pid)
        for process in (server, *server.children(recursive=True)):
            with contextlib.suppress(psutil.NoSuchProcess):
                times = process.cpu_times()
                cpu_s += times.user + times.system
                rss += process.memory_info().rss
    return cpu_s, rss / 2**20


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
