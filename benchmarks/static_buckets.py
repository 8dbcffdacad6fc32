"""Is a build of its own for each length faster than one with dynamic axes? An OpenVINO IR of a run, each in turn.

    accel convert minilm --targets torch,openvino-int8 --objective traffic -o runs/minilm
    python -m benchmarks.static_buckets runs/minilm … [--variant openvino-int8@cpu] [--rounds 9] [--out FILE]

The groups are those of the run's samples as the served model pads them: each length that was chosen for them, alone and
in eights. For each, three are compiled with the settings that the variant ships with, answer the same feed, and are
timed in turns in one process: the IR as it ships, with its length fixed, and with its batch fixed as well. Memory is
what compiling took.
"""

import argparse
import json
import random
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
import psutil
from traffic import opened

from accel.bench.stability import ratio_interval
from accel.builders.to_openvino import compile_settings
from accel.core import document, hardware
from accel.core.feeds import Feed
from accel.core.values import ModelSource
from accel.exporters import traffic
from accel.triton import manifest as manifests

ROUND_S, BATCHES = 0.3, (1, 8)
Shapes = dict[str, list[int]]


def compiled(path: Path, target: str, shapes: Shapes | None = None) -> tuple[ov.CompiledModel, float, float]:
    """Compile an IR, of these shapes where they are given; seconds and MiB that it took come with it."""
    core, process = ov.Core(), psutil.Process()
    model = core.read_model(path)
    if shapes is not None:
        model.reshape(shapes)
    settings = compile_settings(target, hardware.cpu_threads(), "latency")
    before, start = process.memory_info().rss, time.perf_counter()
    made = core.compile_model(model, "CPU", settings)
    return made, time.perf_counter() - start, (process.memory_info().rss - before) / 2**20


def per_call(run: Callable[[], Any]) -> float:
    """Return the seconds of a call, over one round."""
    calls, start = 0, time.perf_counter()
    while time.perf_counter() - start < ROUND_S:
        run()
        calls += 1
    return (time.perf_counter() - start) / calls


def feeds_of(source: ModelSource, requests: list[dict[str, np.ndarray]], lengths: tuple[int, ...]) -> dict[str, Feed]:
    """Return for each length, alone and in eights, a feed of requests that are padded to it."""
    found: dict[str, Feed] = {}
    for least, length in zip((0, *lengths), lengths, strict=False):
        own = [r for r in requests if least < traffic.length_of(source, r) <= length]
        for batch in BATCHES:
            if own:
                rows = [own[i % len(own)] for i in range(batch)]
                found[f"{batch}x{length}"] = traffic.joined(source, rows, length)
    return found


def of_run(run: Path, variant: str, rounds: int) -> dict[str, Any]:
    """Time both ways at each shape; returns all rounds' seconds per call."""
    source, requests = opened(run)
    repositories = run / "repositories"
    emitted = next(p for p in (repositories / f"{variant}.python", repositories / variant) if p.is_dir())
    grouping = manifests.read(emitted).grouping
    if grouping is None:
        raise SystemExit(f"{variant} of {run} is not grouped by length")
    record = next(v for v in document.read(run).variants if v.id == variant)
    path = (run / "variants" / variant / str(record.to_artifact().built.entry)).resolve()
    feeds = feeds_of(source, requests, grouping.usual or grouping.lengths)
    shared, _, shared_mib = compiled(path, record.target)
    of_length: dict[int, tuple[ov.CompiledModel, float, float]] = {}
    runs: dict[str, dict[str, Callable[[], Any]]] = {}
    rows: dict[str, Any] = {}
    for name, feed in feeds.items():
        length = int(name.partition("x")[2])
        if length not in of_length:
            of_length[length] = compiled(path, record.target, {n: [-1, *value.shape[1:]] for n, value in feed.items()})
        own, seconds, mib = compiled(path, record.target, {n: list(value.shape) for n, value in feed.items()})
        made = {"dynamic": shared, "length": of_length[length][0], "static": own}
        ways = {way: model.create_infer_request() for way, model in made.items()}
        runs[name] = {way: lambda request=request, feed=feed: request.infer(feed) for way, request in ways.items()}
        answers = [list(run().values()) for run in runs[name].values()]
        for way in runs[name].values():
            per_call(way)
        rows[name] = {
            "compile_s": seconds,
            "compile_mib": mib,
            "length_compile_s": of_length[length][1],
            "length_compile_mib": of_length[length][2],
            "largest_difference": max(
                float(np.abs(a - b).max()) for other in answers for a, b in zip(answers[0], other, strict=True)
            ),
            "seconds": {way: [] for way in runs[name]},
        }
    turns = [(name, way) for name, by_way in runs.items() for way in by_way]
    for number in range(rounds):
        random.Random(number).shuffle(turns)
        for name, way in turns:
            rows[name]["seconds"][way].append(per_call(runs[name][way]))
    return {"run": run.name, "model": source.name, "variant": variant, "dynamic_mib": shared_mib, "shapes": rows}


def show(found: dict[str, Any]) -> None:
    """Print how much faster a build for one shape is."""
    print(f"\n{found['model']} {found['variant']}")
    for name, row in found["shapes"].items():
        both = row["seconds"]
        told = ""
        for way, mib in (("length", "length_compile_mib"), ("static", "compile_mib")):
            ratio, low, high = ratio_interval(both["dynamic"], both[way])
            told += f"   {way} {ratio:.3f} [{low:.3f}, {high:.3f}] times as fast, {row[mib]:.0f} MiB more"
        print(f"  {name:>6} {statistics.median(both['dynamic']) * 1e3:8.2f} ms{told}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path, nargs="+")
    parser.add_argument("--variant", default="openvino-int8@cpu", help="an OpenVINO variant of each run")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--out", type=Path, default=Path("docs/benchmarks/static_buckets.json"))
    asked = parser.parse_args()
    rows = [of_run(run, asked.variant, asked.rounds) for run in asked.runs]
    for row in rows:
        show(row)
    asked.out.write_text(
        json.dumps({"hardware": hardware.detect().id, "threads": hardware.cpu_threads(), "rows": rows}, indent=1) + "\n"
    )


if __name__ == "__main__":
    main()
