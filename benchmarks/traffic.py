"""Real sentences through the variants of a run: padded to one length, in order of arrival, sorted by length.

    accel convert minilm --targets torch,openvino-fp32,openvino-int8 --objective traffic -o runs/minilm
    python benchmarks/traffic.py runs/minilm … [--variants torch@cpu,openvino-int8@cpu] [--rounds 7] [--out FILE]

The requests are the run's gate samples, each of its own length, up to 256, in the samples' order. Each variant answers
all of them in these ways, in processes of their own, way after way in a drawn order, round after round:

    fixed     every batch padded to the typical length (``--length``; 128 in most of the zoo), as a service of one
              shape does
    alone     one request at a time, at its own length rounded up to 8
    arrival   batches in order of arrival, padded to the longest of each, rounded up to 8
    sorted    batches of one bucket of at most 8, longest first, padded to it (docs/traffic.md)

Answers of every way are held against the first variant's answers to each request alone. Run it on a quiet machine.
"""

import argparse
import json
import random
import statistics
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

from accel.bench.stability import ratio_interval
from accel.bench.timed import open_timed, time_round
from accel.builders import targets
from accel.core import document, environments, hardware
from accel.core.feeds import Feed, read_feeds, write_feeds
from accel.core.processes import Worker
from accel.core.values import Artifact, ModelSource, from_json
from accel.exporters import traffic
from accel.exporters.axes import cut, extents
from accel.run.tasks import Described

MOST = 256
"""Requests that are taken of a run, unless fewer are asked for."""
WAYS = ("fixed", "alone", "arrival", "sorted")
THREADS = hardware.cpu_threads()
Requests = Sequence[Mapping[str, np.ndarray]]


def opened(run: Path) -> tuple[ModelSource, list[dict[str, np.ndarray]]]:
    """Return a run's source, and its gate samples cut to their own lengths."""
    stage = max(run.glob(".store/source-*"), key=lambda folder: folder.stat().st_mtime)
    described = from_json(Described, json.loads((stage / "value.json").read_text())["value"])
    found = []
    for feed in read_feeds(stage / described.samples.gate.path).values():
        for row in range(len(next(iter(feed.values())))):
            found.append(traffic.trimmed(described.source, {n: v[row : row + 1] for n, v in feed.items()}))
    return described.source, found[:MOST]


def ways(
    source: ModelSource, requests: Requests, batch: int, length: int | None
) -> dict[str, list[tuple[list[int], Feed]]]:
    """Return for each way its batches: which requests are in it, and the feed; ``length`` is what `fixed` pads to."""
    axis = traffic.length_axis(source)
    if axis is None or source.mask is None:
        raise SystemExit(f"{source.name} has no mask, or no one axis of lengths")
    typical = length or extents(source.inputs, source.profile)[axis].opt

    def padded(size: int, fixed: int | None = None) -> list[tuple[list[int], Feed]]:
        made: list[tuple[list[int], Feed]] = []
        for start in range(0, len(requests), size):
            group = list(range(start, min(start + size, len(requests))))
            longest = max(traffic.held(source, traffic.length_of(source, requests[i])) for i in group)
            made.append((group, traffic.joined(source, [requests[i] for i in group], max(longest, fixed or 0))))
        return made

    made = padded(batch, typical), padded(1), padded(batch), list(traffic.grouped(source, requests, batch))
    return dict(zip(WAYS, made, strict=True))


def answered(
    source: ModelSource, requests: Requests, groups: Sequence[Sequence[int]], found: Sequence[Feed]
) -> Iterator[tuple[int, dict[str, np.ndarray]]]:
    """Yield each request's answer, cut back to its own length."""
    axis = str(traffic.length_axis(source))
    for group, outputs in zip(groups, found, strict=True):
        for row, index in enumerate(group):
            own = {axis: traffic.length_of(source, requests[index])}
            yield index, {s.name: cut(s, outputs[s.name][row : row + 1], own) for s in source.outputs}


def agreement(truth: Mapping[int, Feed], found: Mapping[int, Feed]) -> float:
    """Return the least cosine of a request's outputs with the truth."""
    least = 1.0
    for index, answer in found.items():
        for name, value in answer.items():
            a, b = (side.astype(np.float64).ravel() for side in (value, truth[index][name]))
            least = min(least, float(a @ b / max(np.linalg.norm(a) * np.linalg.norm(b), 1e-30)))
    return least


def of_run(
    run: Path, wanted: Sequence[str], timed: Sequence[str], batch: int, length: int | None, rounds: int, most: int
) -> dict[str, Any]:
    """Time the ``timed`` ways of every variant of a run, in turn; returns the raw seconds of all passes."""
    source, every_request = opened(run)
    requests = every_request[:: max(1, len(every_request) // most)][:most]
    records = [
        v for v in document.read(run).variants if v.status == "ok" and not v.static and (not wanted or v.id in wanted)
    ]
    made = ways(source, requests, batch, length)
    grouped = {way: [group for group, _ in batches] for way, batches in made.items()}
    feeds = {f"{way}.{n}": feed for way, batches in made.items() for n, (_, feed) in enumerate(batches)}
    seconds: dict[str, dict[str, list[float]]] = {v.id: {way: [] for way in timed} for v in records}
    cosines: dict[str, dict[str, float]] = {v.id: {} for v in records}
    truth: dict[int, Feed] = {}
    with tempfile.TemporaryDirectory() as scratch, ExitStack() as held:
        file = Path(scratch, "feeds.npz")
        write_feeds(file, feeds)
        workers = {}
        for record in records:
            artifact: Artifact = record.to_artifact()
            builder, folder = targets.discover()[record.target], (run / "variants" / record.id).resolve()
            session = builder.open(artifact, folder, threads=THREADS, mode="latency")
            for way in ("alone", *(w for w in grouped if w != "alone")):
                outputs = [session.run(feed) for _, feed in made[way]]
                found = dict(answered(source, requests, grouped[way], outputs))
                truth = truth or found
                cosines[record.id][way] = agreement(truth, found)
            session.close()
            python = environments.python(builder.environment(artifact.variant.target))
            log = Path(scratch, f"{record.id}.log")
            worker = held.enter_context(Worker(log, threads=THREADS, timeout_s=1800, python=python))
            worker.call(open_timed, artifact, folder, THREADS, "throughput", file, tuple(feeds))
            for way in timed:
                worker.call(time_round, "traffic", way, 0.0, 1)  # meets every shape
            workers[record.id] = worker
        turns = [(id, way) for id in workers for way in timed]
        for number in range(rounds):
            random.Random(number).shuffle(turns)
            for id, way in turns:
                round_ = workers[id].call(time_round, "traffic", way, 0.0, 1)
                seconds[id][way].append(round_.elapsed_ns / 1e9)
    tokens = [traffic.length_of(source, request) for request in requests]
    masks = {way: [feed[str(source.mask)].shape for _, feed in batches] for way, batches in made.items()}
    places = {way: sum(rows * length for rows, length in shapes) for way, shapes in masks.items()}
    shapes = {way: len(set(every)) for way, every in masks.items()}
    return {
        "run": run.name,
        "model": source.name,
        "weights": source.weights,
        "requests": len(requests),
        "batch": batch,
        "length": length,
        "tokens": {"sum": sum(tokens), "mean": statistics.mean(tokens), "median": statistics.median(tokens)},
        "places": places,
        "shapes": shapes,
        "seconds": seconds,
        "least_cosine": cosines,
    }


def show(found: Mapping[str, Any]) -> None:
    """Print requests per second, and every way against the baseline's padded to one length."""
    every = found["seconds"]
    print(f"\n{found['model']}: {found['requests']} requests, {found['tokens']['mean']:.1f} tokens on average")
    base = next(iter(every))
    for id, by_way in every.items():
        for way, taken in by_way.items():
            ratio, low, high = ratio_interval(every[base]["fixed"], taken) if len(taken) > 1 else (float("nan"),) * 3
            print(
                f"  {id:<22} {way:<8} {found['requests'] / statistics.median(taken):8.1f} /s   "
                f"{ratio:6.2f} [{low:.2f}, {high:.2f}] times {base} fixed   cosine {found['least_cosine'][id][way]:.5f}"
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path, nargs="+")
    parser.add_argument("--variants", default="", help="ids, separated by commas  [default: all that passed]")
    parser.add_argument("--ways", default=",".join(WAYS), help="those that are timed; fixed is always one of them")
    parser.add_argument("--length", type=int, help="what is padded to  [default: the model's typical length]")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--requests", type=int, default=MOST, help="fewer, taken at even distances")
    parser.add_argument("--out", type=Path, default=Path("docs/benchmarks/traffic.json"))
    asked = parser.parse_args()
    wanted = [id for id in asked.variants.split(",") if id]
    if unknown := set(asked.ways.split(",")) - set(WAYS):
        parser.error(f"unknown way {min(unknown)!r}; choose of {', '.join(WAYS)}")
    timed = [way for way in WAYS if way == "fixed" or way in asked.ways.split(",")]
    rows = []
    for run in asked.runs:
        rows.append(of_run(run, wanted, timed, asked.batch, asked.length, asked.rounds, asked.requests))
        show(rows[-1])
        asked.out.write_text(
            json.dumps({"hardware": hardware.detect().id, "threads": THREADS, "rows": rows}, indent=1) + "\n"
        )


if __name__ == "__main__":
    main()
