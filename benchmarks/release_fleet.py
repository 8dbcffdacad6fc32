"""A release over a Ray cluster of nodes on this machine: models that are really converted, and tasks by the thousand.

    python benchmarks/release_fleet.py --models 50 -o real.json                          # two pools, two targets each
    python benchmarks/release_fleet.py --tasks 40000 --recorded real.json -o tasks.json  # nodes are lost meanwhile

The nodes are processes of this machine; those of all pools but one say that they are other hardware, which no release
of theirs could be published with. A task is a model on a machine, in two phases, ``prepare`` and ``measure``,
or its ``export`` for all machines.

``--tasks`` runs the driver of ``accel release build --ray`` as it is. What a task does is recorded: it waits as long as
such a phase took with ``--models``, times ``--scale``, and leaves the record that a conversion leaves. Ray's processes
are used again from task to task, which real conversions are not. Every few minutes a node is killed, and comes again.
A machine measures one model at a time, so of many CPUs some stand idle once all is prepared: with two, both are busy.
"""

import argparse
import contextlib
import dataclasses
import json
import os
import random
import resource
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import ray_nodes
import yaml
from release_campaign import content, records, write_model

from accel.core.hardware import Hardware
from accel.core.progress import Progress
from accel.release import fleet, planning, release_file
from accel.release.fleet import FleetTask
from accel.release.release_file import ModelPlan

SEED = 0
TARGETS = {"here": ["ort", "ort-int8"], "there": ["openvino-fp32", "openvino-int8"]}
LOSS_S, BACK_S = 150.0, 15.0
"""Every so often a node is lost, and comes again so much later."""
TRIES = 5


class Memory(threading.Thread):
    """The resident memory of a process, each second, in MiB."""

    def __init__(self, pid: int) -> None:
        super().__init__(daemon=True)
        self.process, self.done, self.mib = psutil.Process(pid), threading.Event(), list[float]()
        self.start()

    def run(self) -> None:
        with contextlib.suppress(psutil.Error):
            while not self.done.wait(1.0):
                self.mib.append(round(self.process.memory_info().rss / 2**20, 1))

    def stop(self) -> list[float]:
        """Return what was seen."""
        self.done.set()
        self.join()
        return self.mib


def write_release(folder: Path, models: dict[str, Path], pools: dict[str, list[str]]) -> Path:
    """Write a release file of CPU pools."""
    file = {
        "release": "1",
        "defaults": {"objective": "latency", "rounds": 2, "round_s": 0.02, "threads": 1, "max_shape": "x:4x256"},
        "pools": {name: {"device": "cpu", "targets": targets} for name, targets in pools.items()},
        "models": {n: {"source": str(p), "samples": str(p.with_suffix(".npz"))} for n, p in models.items()},
    }
    path = folder / "release.yaml"
    path.write_text(yaml.safe_dump(file))
    return path


# ---------------------------------------------------------------------------------------------------------------------
# Really converted


def real(count: int, folder: Path) -> dict[str, Any]:
    """Build that many models for two pools, and build again."""
    models = {f"m{n}": write_model(folder / f"m{n}.onnx", n) for n in range(count)}
    file, found = write_release(folder, models, TARGETS), dict[str, Any](models=count, targets=TARGETS, builds=[])
    with ray_nodes.cluster() as nodes:
        nodes.worker("there", "there", ACCEL_SIMULATE="there")
        for _ in range(2):
            before, begin = records(folder / "store"), time.monotonic()
            line = [sys.executable, "-m", "accel", "release", "build", file, "--store", folder / "store"]
            process = subprocess.Popen([*line, "--ray", nodes.address], stderr=subprocess.PIPE, text=True)
            memory = Memory(process.pid)
            said = process.communicate()[1].splitlines()
            after = records(folder / "store")
            found["builds"].append(
                {
                    "exit": process.returncode,
                    "seconds": round(time.monotonic() - begin, 1),
                    "converted": sum(before.get(key) != text for key, text in after.items()),
                    "driver_mib": memory.stop(),
                    "said": said[-3:],
                }
            )
            print(found["builds"][-1] | {"driver_mib": ...}, file=sys.stderr)
        import ray  # it reads the cluster's token when it is imported

        ray.init(address=nodes.address, log_to_driver=False, logging_level="error")
        events = ray.timeline()
        ray.shutdown()
    held = content(folder / "store" / "1")
    found["states"] = Counter(held["states"].values())
    found["variants"] = Counter(status for status, *_ in held["variants"].values())
    found["phase_s"] = {
        phase: [round(e["dur"] / 1e6, 2) for e in events if e["cat"].startswith("task::") and e["cat"].endswith(phase)]
        for phase in ("export", "prepare", "measure")
    }
    spans = [
        (e["cat"].split()[2], e["ts"], e["ts"] + e["dur"])
        for e in events
        if e["cat"].startswith("task::") and e["cat"].endswith(": measure")
    ]
    found["measured_at_once"] = max(sum(p == q and a <= begin < b for q, a, b in spans) for p, begin, _ in spans)
    return found


# ---------------------------------------------------------------------------------------------------------------------
# Recorded


def recorded(phase_s: dict[str, list[float]], scale: float) -> Callable[..., bool]:
    """Return what stands in for ``fleet._work``: it waits as long as such a phase took, and leaves the record."""

    def work(
        task: FleetTask, asked: ModelPlan, targets: tuple[Any, ...], store: str, machine: Hardware, code: str, *_: Any
    ) -> bool:
        begin, here = time.monotonic(), fleet._describe(code)
        taken = random.Random(f"{task.model} {task.machine} {task.phase}").choice(phase_s[task.phase])
        if task.phase == "measure":
            folder = Path(store) / planning.RUNS / machine.id
            folder.mkdir(parents=True, exist_ok=True)
            made, name = planning.made_with(targets, here), planning.run_name(asked)
            record = planning.ConversionRecord(planning.asked_key(asked), made, name, taken)
            planning.write_record(folder, asked.name, record)
        time.sleep(max(0.0, taken * scale - (time.monotonic() - begin)))
        return False

    return work


class Losses(threading.Thread):
    """Kills a node every so often, and starts it again."""

    def __init__(self, nodes: ray_nodes.Nodes, pools: list[str]) -> None:
        super().__init__(daemon=True)
        self.nodes, self.pools, self.done = nodes, pools, threading.Event()
        self.lost: list[tuple[str, float, float]] = []
        """Pool of a node that was lost, since when and until when, in Unix time."""
        self.start()

    def run(self) -> None:
        rng = random.Random(SEED)
        while not self.done.wait(LOSS_S):
            pool = rng.choice(self.pools)
            name = f"{pool} 1"
            self.nodes.kill(name)
            lost = time.time()
            time.sleep(BACK_S)
            for _ in range(TRIES):  # on a busy machine a node may be too late to join
                with contextlib.suppress(AssertionError):
                    self.nodes.worker(name, pool, ACCEL_SIMULATE=pool)
                    break
            self.lost.append((pool, lost, time.time()))

    def stop(self) -> None:
        self.done.set()
        self.join()


class Counted(Progress):
    """Counts what the driver says, and when each task ended."""

    def __init__(self) -> None:
        super().__init__()
        self.ended: list[float] = []
        self.notices: list[str] = []

    def stage(self, text: str) -> None:
        self.ended.append(time.time())

    def notice(self, text: str) -> None:
        self.notices.append(text)


def busy_share(
    events: list[dict[str, Any]], begin: float, slots: dict[str, int], lost: list[tuple[str, float, float]], cpus: int
) -> tuple[float, list[float]]:
    """Return the share of the slots in which a task ran: while a pool has work left, and of each tenth of that time.

    A pool has work left until fewer tasks than its slots are: its machines take nothing of another's. The slots of a
    node that is lost are none until it is back.

    Args:
        events: of Ray's timeline: ``ts`` and ``dur`` in microseconds.
        begin: Unix time in seconds at which the first task had ended.
        slots: of each pool.
        lost: as ``Losses.lost``; each took ``cpus`` slots.
    """
    spans: dict[str, list[tuple[float, float]]] = {pool: [] for pool in slots}
    for event in events:
        if " on " in (name := str(event.get("cat"))):  # task::MODEL on POOL: PHASE
            spans[name.split()[2][:-1]].append((event["ts"] / 1e6, (event["ts"] + event["dur"]) / 1e6))
    taken, there = np.zeros(10), np.zeros(10)
    for pool, found in spans.items():
        edges = np.linspace(begin, sorted(end for _, end in found)[-slots[pool] - 1], 11)
        inside = [np.clip(np.minimum(b, edges[1:]) - np.maximum(a, edges[:-1]), 0, None) for a, b in found]
        gone = [np.clip(np.minimum(b, edges[1:]) - np.maximum(a, edges[:-1]), 0, None) for p, a, b in lost if p == pool]
        taken += np.sum(inside, axis=0)
        there += np.diff(edges) * slots[pool] - cpus * np.sum(gone, axis=0)
    shares = taken / there
    return round(float(taken.sum() / there.sum()), 4), [round(float(s), 4) for s in shares]


def _cpu_s(nodes: ray_nodes.Nodes, words: str) -> float:
    """Return the CPU seconds of the living processes of all nodes whose command has these words."""
    total = 0.0
    for process in {p for found in nodes.nodes.values() for p in found}:
        with contextlib.suppress(psutil.Error):
            if words in " ".join(process.cmdline()):
                total += sum(process.cpu_times()[:2])
    return total


def tasks(count: int, phase_s: dict[str, list[float]], folder: Path, *, pools: int, each: int, cpus: int, scale: float,
          models: int | None = None) -> dict[str, Any]:  # fmt: skip
    """Run that many tasks over ``pools`` times ``each`` nodes of ``cpus`` CPUs, and then ask for the same again."""
    names = [f"p{n}" for n in range(pools)]
    first = write_model(folder / "m.onnx", 0)
    file = write_release(folder, {"m": first}, {name: ["ort"] for name in names})
    plan, store = release_file.read(file), folder / "store"
    (one,) = plan.models
    each_takes = 2 * pools + (pools > 1)  # of several machines one exports for all
    models = models or count // each_takes
    plan = dataclasses.replace(plan, models=tuple(dataclasses.replace(one, name=f"m{n}") for n in range(models)))
    slots, found = pools * each * cpus, dict[str, Any](tasks=each_takes * models, models=models, pools=pools)
    found |= {
        "nodes": pools * each,
        "slots": slots,
        "scale": scale,
        "mean_s": {k: float(np.mean(v)) for k, v in phase_s.items()},
    }
    fleet._work, fleet.CALLS = recorded(phase_s, scale), 0
    with ray_nodes.cluster(cpus) as nodes:
        for number in range(each):
            for name in names:
                nodes.worker(f"{name} {number}", name, ACCEL_SIMULATE=name)
        for what in ("build", "again"):
            progress, begin, used = Counted(), time.time(), resource.getrusage(resource.RUSAGE_SELF)
            memory = Memory(os.getpid())
            losses = Losses(nodes, names) if what == "build" else None
            with fleet.convert(plan, store, nodes.address, progress, retry=False):
                import ray

                end = time.time()
                now = resource.getrusage(resource.RUSAGE_SELF)
                mib = memory.stop()
                if losses:
                    losses.stop()
                found[what] = {
                    "seconds": round(end - begin, 1),
                    "ended": len(progress.ended),
                    "records": len(records(store)),
                    "driver_cpu_s": round(now.ru_utime + now.ru_stime - used.ru_utime - used.ru_stime, 1),
                    "driver_mib": mib[:: max(1, len(mib) // 100)],
                    "lost": losses.lost if losses else [],
                    "notices": dict(Counter(n.split(": ", 1)[1] for n in progress.notices)),
                }
                if what == "build":
                    started = progress.ended[0]
                    time.sleep(5)  # the nodes report what they did every second
                    of_pools = dict.fromkeys(names, each * cpus)
                    share, tenths = busy_share(ray.timeline(), started, of_pools, found[what]["lost"], cpus)
                    found[what] |= {"busy": share, "busy_by_tenth": tenths, "busy_from_s": round(started - begin, 1)}
                    found[what]["ray_cpu_s"] = {w: round(_cpu_s(nodes, w), 1) for w in ("gcs_server", "raylet/raylet")}
            print(json.dumps(found[what]), file=sys.stderr)  # a run takes half an hour: kept if the rest fails
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", type=int, default=0, help="really converted")
    parser.add_argument("--tasks", type=int, default=0)
    parser.add_argument("--recorded", type=Path, help="what --models gave")
    parser.add_argument("--scale", type=float, default=0.2)
    parser.add_argument("--pools", type=int, default=5)
    parser.add_argument("--each", type=int, default=4, help="nodes of a pool")
    parser.add_argument("--cpus", type=int, default=2, help="of a node, as it says")
    parser.add_argument("-o", "--out", type=Path, required=True)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="release-fleet-") as scratch:
        if args.tasks:
            phase_s = json.loads(args.recorded.read_text())["phase_s"]
            shape = {"pools": args.pools, "each": args.each, "cpus": args.cpus, "scale": args.scale}
            found = tasks(args.tasks, phase_s, Path(scratch), **shape)
        else:
            found = real(args.models, Path(scratch))
    args.out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
