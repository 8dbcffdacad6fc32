"""Dynamic batching, two instances, and both, against one instance that answers one request at a time.

    accel convert east --targets openvino-fp32,openvino-int8 --bench none -o runs/east
    accel convert text-recognition --targets openvino-fp32,openvino-int8 --bench none -o runs/text-recognition
    python benchmarks/batching.py runs/east runs/text-recognition [--variant openvino-int8@cpu] [--rounds 7]

Requests are the run's gate samples, those of the shape that most of them have, one item each, from closed-loop clients.
Each way to schedule the model is an embedded server of its own, with the same artifact and queue; one at a time is
under load, in an order drawn anew for each round, which no other round counts with. Beside each rate stand the requests
of a call, the CPUs that the server used, and the time of a call: what a second instance can gain is what one leaves
idle, and what batching can gain is what a request costs less in company. Run it on a quiet machine.
"""

import argparse
import json
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
from serve_traffic import WARM_S, Clients, Way, fixed, keep, looked, written

from accel.bench import usage
from accel.bench.endpoint import Endpoint
from accel.bench.load import Generator
from accel.bench.stability import ratio_interval
from accel.core import hardware
from accel.triton import manifest as manifests
from accel.triton.servers import server
from accel.triton.settings import Settings

COUNTERS = ("executions", "inferences", "infer_ns")
"""Of the server's statistics of the model: calls, items in them, and the time that calls took, summed by requests."""


def settings(cores: int) -> dict[str, Settings]:
    """Return the ways: instances share the cores, or have as many threads each as there are cores."""
    return {
        f"{name}, {'batching' if batching else 'no batching'}": Settings(instances, threads, batching=batching)
        for name, instances, threads in (
            ("one instance", 1, cores),
            ("two instances that share the CPUs", 2, max(1, cores // 2)),
            ("two instances of all CPUs", 2, cores),
        )
        for batching in (False, True)
    }


def of_one_shape(clients: Clients) -> str:
    """Leave the requests of the commonest shape, and return that."""
    shapes = [tuple(value.shape for value in request.values()) for request in clients.requests]
    [(common, _)] = Counter(shapes).most_common(1)
    chosen = [i for i, shape in enumerate(shapes) if shape == common]
    clients.requests = [clients.requests[i] for i in chosen]
    clients.lengths = [clients.lengths[i] for i in chosen]
    return ", ".join("x".join(map(str, shape)) for shape in common)


def watched(
    generator: Generator, endpoint: Endpoint, model: str, clients: int, settle_s: float, seconds: float
) -> dict[str, Any]:
    """Put a server under load, and return its figures, with what its calls were and what it used meanwhile."""
    before, cpu, begin = generator.statistics(model), usage.use(endpoint)[0], time.perf_counter()
    _, figures = looked(generator, clients, settle_s, seconds)
    after, used, taken = generator.statistics(model), usage.use(endpoint)[0], time.perf_counter() - begin
    spent = {name: after[name] - before[name] for name in COUNTERS}
    figures["requests_of_a_call"] = spent["inferences"] / max(1, spent["executions"])
    figures["server_cpus"] = None if cpu is None or used is None else (used - cpu) / taken
    return figures | {"counters": spent}


def measure(run: Path, variant: str, loads: list[int], rounds: int, seconds: float) -> dict[str, Any]:
    """Put every way under every load, round after round."""
    clients = Clients(run, max(loads), None)
    shape = of_one_shape(clients)
    model = clients.source.name
    with tempfile.TemporaryDirectory() as held, ExitStack() as stack:
        scratch = Path(held)
        emitted = written(run, variant, scratch / "emitted")
        most = max(s.max[0] for s in clients.source.profile.values())
        found: dict[str, dict[int, list[dict[str, Any]]]] = {}
        serving: dict[str, tuple[Generator, Endpoint]] = {}
        for number, (name, how) in enumerate(settings(hardware.cpu_threads()).items()):
            way = Way(name, fixed(emitted, scratch / f"way{number}", how, most), False, variant)
            log = scratch / f"way{number}.log"
            running = stack.enter_context(server.start(way.root, via="embedded", log=log, allow_changed=True))
            generator = stack.enter_context(clients.of(way, running.endpoint.grpc, scratch / "load.log"))
            serving[name], found[name] = (generator, running.endpoint), {n: [] for n in loads}
        turns = [(name, n) for name in serving for n in loads]
        for number in range(-1, rounds):  # the first is not counted: every batch size is met
            Random(number).shuffle(turns)
            for name, n in turns:
                figures = watched(*serving[name], model, n, WARM_S if number < 0 else 0.5, seconds)
                if number >= 0:
                    found[name][n].append(figures)
        return {
            "run": run.name,
            "model": model,
            "weights": clients.source.weights,
            "variant": variant,
            "backend": manifests.read(emitted).backend,
            "requests": shape,
            "largest_batch": most,
            "rounds": found,
        }


def table(found: Mapping[str, Mapping[int, list[dict[str, Any]]]]) -> list[dict[str, Any]]:
    """Return a row for each way and load: medians, and requests a second over the first way's, paired by rounds."""
    first = next(iter(found.values()))
    rows = []
    for name, loads in found.items():
        for n, windows in loads.items():
            rates, base = ([w["per_s"] for w in those] for those in (windows, first[n]))
            rows.append(
                {"way": name, "clients": n}
                | {
                    key: statistics.median(values) if all(v is not None for v in values) else None
                    for key in ("per_s", "p50_ms", "p99_ms", "requests_of_a_call", "server_cpus", "longest_pause_s")
                    for values in [[w[key] for w in windows]]
                }
                | {"over_first": [float(v) for v in np.round(ratio_interval(rates, base), 3)]}
            )
    return rows


def main() -> None:
    """Measure, print and keep."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path, nargs="+")
    parser.add_argument("--variant", default="openvino-int8@cpu", help="id of what is served")
    parser.add_argument("--concurrency", default="8,10", help="clients at a time, separated by commas")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=2.5)
    parser.add_argument("--out", type=Path, default=Path("docs/benchmarks/batching.json"))
    given = parser.parse_args()
    loads = [int(n) for n in given.concurrency.split(",")]
    for run in given.runs:
        found = measure(run.resolve(), given.variant, loads, given.rounds, given.seconds)
        found["table"] = table(found["rounds"])
        print(json.dumps(found["table"], indent=1))
        keep(given.out, found)


if __name__ == "__main__":
    main()
