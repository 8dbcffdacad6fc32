"""What a queue policy costs: latency under requests that come at random, with a limit, without one, without a batcher.

    python -m benchmarks.queue_policy RUN/repositories/openvino-int8@cpu.python [--loads 20,60] [--overload 250]

Three servers have the same artifact and one instance; one at a time is under load, in an order drawn anew for each
round. The limit is what accel emitted until 2026-11-28: 1,024 requests may wait, each for ten seconds. Loads are in
requests per second; each probe lasts until 500 requests have ended, or those that were due are two seconds late.

What the limit is for comes after it: ``--overload`` requests a second for eight seconds, from clients that wait or give
up after a second, and then one client that counts until a request of its own is answered in a tenth of a second.
"""

import argparse
import json
import tempfile
import time
from collections import Counter
from contextlib import ExitStack
from itertools import product
from pathlib import Path
from random import Random
from statistics import median
from typing import Any

from tritonclient import grpc
from tritonclient.utils import InferenceServerException

from accel.bench.machine_noise import NoiseSample
from accel.core import hardware
from accel.core.dtypes import datatype
from accel.core.values import to_json
from accel.triton import settings as schedules
from accel.triton.config import LIMITED
from accel.triton.folders import link_tree
from accel.triton.overrides import from_fields
from accel.triton.servers import server as servers
from accel.triton.settings import Settings
from accel.triton.tune.lab import Goal, Subject, largest_batch, subject, trial

PATIENCE_MS, REQUESTS = 2000.0, 500
OVERLOAD_S, SOON_S, GIVES_UP_S, LONGEST_S = 8.0, 0.1, 1.0, 120.0
QUEUES = {
    "with a limit": Settings(fields=from_fields({"dynamic_batching": LIMITED}, "the limit")),
    "without a limit": Settings(),
    "no dynamic batching": Settings(batching=False),
}
LIMITS = ("with a limit", "without a limit")


def overload(one: Subject, settings: Settings, rate: float, deadline_s: float | None, folder: Path) -> dict[str, Any]:
    """Send more than the server can answer, and say what became of it."""
    link_tree(one.served, folder)
    schedules.write(folder, settings, cpu_threads=hardware.cpu_threads(), models=(one.worker,))
    with (
        servers.start(folder, log=folder.parent / "overload.log", allow_changed=True, grace_s=0) as running,
        grpc.InferenceServerClient(running.endpoint.grpc) as client,
    ):
        inputs = []
        for name, value in one.feeds[0].items():
            inputs.append(grpc.InferInput(name, value.shape, datatype(str(value.dtype)).removeprefix("TYPE_")))
            inputs[-1].set_data_from_numpy(value)
        ended: list[str] = []

        def end(result: Any, error: Exception | None) -> None:
            ended.append("answered" if error is None else str(error).partition("]")[0].strip("["))

        begin, sent = time.monotonic(), round(rate * OVERLOAD_S)
        for number in range(sent):
            time.sleep(max(0.0, begin + number / rate - time.monotonic()))
            client.async_infer(one.model, inputs, end, client_timeout=deadline_s)
        over = time.monotonic()
        while time.monotonic() < over + LONGEST_S:
            asked = time.monotonic()
            try:
                client.infer(one.model, inputs)
            except InferenceServerException:
                time.sleep(SOON_S)
                continue
            if time.monotonic() - asked < SOON_S:
                break
        found = {"sent": sent, **Counter(ended), "soon_again_s": time.monotonic() - over}
        print(f"{settings}, clients wait {deadline_s or 'on'}: {found}", flush=True)
        return found


def measure(root: Path, loads: list[float], rounds: int, rate: float | None) -> dict[str, Any]:
    """Put each queue under each load, round after round."""
    order, goal, rows = Random(0), Goal(PATIENCE_MS, "poisson"), []
    with tempfile.TemporaryDirectory() as scratch, ExitStack() as stack:
        folder = Path(scratch)
        (folder / "logs").mkdir()
        one = subject(root, name=root.name, scratch=folder / "subject", logs=folder / "logs")
        trials = {}
        for number, (name, settings) in enumerate(QUEUES.items()):
            trials[name] = stack.enter_context(trial(one, settings, folder / str(number)))
            trials[name].warm(largest_batch(one, settings), 1)
        for round_ in range(rounds):
            for name, load in order.sample([(n, load) for n in trials for load in loads], len(trials) * len(loads)):
                before = NoiseSample.now()
                seen = trials[name].probe(goal, load, least=REQUESTS, seed=round_)
                others = NoiseSample.now().since(before).others_cores
                rows.append({"queue": name, "round": round_, "others_cores": others, **to_json(seen)})
                print(f"{name:20} {load:6.1f}/s: p50 {seen.p50_ms:.1f} ms, p99 {seen.p99_ms or 0:.1f} ms", flush=True)
        stack.pop_all().close()
        overloads = []
        for number, (name, after) in enumerate(product(LIMITS, (None, GIVES_UP_S)) if rate else ()):
            found = overload(one, QUEUES[name], rate or 0.0, after, folder / f"overload-{number}")
            overloads.append({"queue": name, "gives_up_s": after, **found})
    table = {
        f"{name}, {load:g}/s": {
            key: [row[key] for row in rows if (row["queue"], row["load"]) == (name, load)]
            for key in ("p50_ms", "p99_ms", "throughput_per_s")
        }
        for name in QUEUES
        for load in loads
    }
    for name, each in table.items():
        p99 = [v for v in each["p99_ms"] if v is not None]
        print(f"{name}: p50 {median(each['p50_ms']):.1f}, p99 {median(p99):.1f} ms" if p99 else name)
    return {"repository": root.name, "model": one.model, "table": table, "overloads": overloads, "rows": rows}


def main() -> None:
    """Measure, print and keep."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("repositories", type=Path, nargs="+")
    parser.add_argument("--loads", default="20,60", help="requests per second, separated by commas")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--overload", type=float, help="requests per second beyond what it can answer")
    parser.add_argument("--out", type=Path, default=Path("docs/benchmarks/queue_policy.json"))
    given = parser.parse_args()
    kept = json.loads(given.out.read_text(encoding="utf-8")) if given.out.exists() else {"runs": []}
    for root in given.repositories:
        found = measure(root, [float(load) for load in given.loads.split(",")], given.rounds, given.overload)
        kept["runs"].append({"hardware": {"id": (here := hardware.detect()).id, **to_json(here)}, **found})
        given.out.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
