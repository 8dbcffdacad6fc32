"""Real sentences through real servers: padded to one length, joined in order of arrival, grouped by length.

    accel convert minilm --targets torch,openvino-fp32 --bench none -o runs/minilm
    python benchmarks/serve_traffic.py runs/minilm --variant openvino-fp32@cpu [--rounds 7] [--seconds 2.5] [--out FILE]

The requests are the run's gate samples (up to 256), one sentence each, drawn at random by closed-loop clients. One
artifact of the run is served by the embedded server in these ways, each by a server of its own; one at a time is under
load, in an order drawn anew for each round:

    fixed     clients pad to the typical length (128 in the zoo); requests of one shape are merged: one instance without
              merging, in batches of 8 and of the profile's largest, and two instances that share the cores
    arrival   clients do not pad; the server joins up to the profile's largest batch in order of arrival, padded to the
              longest of each
    grouped   clients do not pad; the repository as accel emits it (docs/traffic.md)
    trimmed   as ``grouped``, by clients that pad to the typical length: the server trims by the mask

Answers are held against those of the artifact in process to each sentence alone, at its own length: a share of them
while they come. Run it on a quiet machine: a round takes 14 windows; 7 rounds of 2.5 s some 6 minutes with the starts.
"""

import argparse
import json
import random
import shutil
import statistics
import tempfile
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from traffic import opened

from accel.bench import stability
from accel.bench.expected import Expected
from accel.bench.load import Generator, Load, Window
from accel.bench.served import by_length
from accel.builders import targets
from accel.core import document, hardware
from accel.core.feeds import fit_inputs
from accel.core.values import Artifact, ModelSource
from accel.exporters import traffic
from accel.exporters.axes import extents
from accel.triton import config as configs, manifest as manifests, settings
from accel.triton.python_variant import write_python_variant
from accel.triton.servers import server
from accel.triton.servers.hosts import EMBEDDED_RELEASE
from accel.triton.settings import Settings

SETTLE_S, WARM_S = 0.4, 1.5
SHARE = 0.02
ARRIVAL = '''

def groups(feeds, grouping):
    """Join rows in order of arrival, each call padded to its longest."""
    rows = [
        RequestRow(number, row, length, bucket_of(grouping.lengths, length))
        for number, feed in feeds.items()
        for row, length in enumerate(own_lengths(feed[grouping.mask]).tolist())
    ]
    return [rows[i : i + grouping.rows] for i in range(0, len(rows), grouping.rows)]
'''
"""What the rival of the same repository does in place of grouping; ``joined`` pads to the longest of a group."""


@dataclass
class Way:
    """One way to serve: its repository, and whether clients pad."""

    name: str
    root: Path
    padded: bool


def ways(grouped: Path, scratch: Path) -> list[Way]:
    """Make the repositories of all ways from the one that accel emits."""
    manifest = manifests.read(grouped)
    assert manifest.grouping is not None
    model = manifest.models[0]
    made = [Way("grouped", grouped, False), Way("trimmed", grouped, True)]
    arrival = scratch / "arrival"
    shutil.copytree(grouped, arrival)
    shipped = arrival / model / str(manifest.version) / "accel/triton/grouping.py"
    text = shipped.read_text()
    shipped.unlink()
    shipped.write_text(text + ARRIVAL)
    made.insert(0, Way("arrival", arrival, False))
    for name, how in {
        "fixed, no merging": Settings(batching=False),
        "fixed, batches of 8": Settings(preferred=(8,)),
        "fixed, largest batches": Settings(),
        "fixed, two instances, batches of 8": Settings(2, preferred=(8,)),
    }.items():
        root = scratch / name.replace(" ", "_").replace(",", "")
        shutil.copytree(grouped, root)
        file = root / model / "config.pbtxt"
        config = configs.parse(file.read_text())
        config.default_model_filename = "model.py"
        config.max_batch_size = manifest.grouping.rows
        for spec in config.input:
            spec.ClearField("allow_ragged_batch")
        kept = [s for s in config.model_warmup if s.name.startswith("opt") and s.batch_size <= manifest.grouping.rows]
        del config.model_warmup[:]
        config.model_warmup.extend(kept)
        settings.apply(config, how, cpu_threads=hardware.cpu_threads())
        file.unlink()
        file.write_text(configs.to_text(config))
        made.append(Way(name, root, True))
    return made


def answers(artifact: Artifact, folder: Path, requests: list[dict[str, np.ndarray]]) -> list[dict[str, np.ndarray]]:
    """Return the artifact's answers to each request alone, at its own length."""
    builder = targets.discover()[artifact.variant.target.name]
    session = builder.open(artifact, folder, threads=hardware.cpu_threads(), mode="latency")
    found = [session.run(request) for request in requests]
    session.close()
    return found


def widened(source: ModelSource, feed: Mapping[str, np.ndarray], specs: Any, size: int) -> dict[str, np.ndarray]:
    """Pad a feed, or the answer to it, with zeros to a size of the length axis."""
    axis = str(traffic.length_axis(source))
    return {s.name: traffic._pad(feed[s.name], s, axis, size) if axis in s.dims else feed[s.name] for s in specs}


def measure(run: Path, variant: str, concurrency: list[int], rounds: int, seconds: float) -> dict[str, Any]:
    """Put every way under every load, round after round, and return all windows' figures."""
    source, requests = opened(run)
    record = next(v for v in document.read(run).variants if v.id == variant)
    artifact = record.to_artifact()
    name = variant + (".python" if (run / "repositories" / f"{variant}.python").is_dir() else "")
    axis = traffic.length_axis(source)
    typical = extents(source.inputs, source.profile)[str(axis)].opt
    lengths = [traffic.length_of(source, request) for request in requests]
    alone = answers(artifact, (run / "variants" / variant).resolve(), requests)
    mask_dims = next(tuple(map(str, s.dims)) for s in source.inputs if s.name == source.mask)
    rows: dict[str, dict[int, list[dict[str, Any]]]] = {}
    windows: dict[str, dict[int, list[Window]]] = {}
    worst: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as held, ExitStack() as stack:
        scratch = Path(held)
        write_python_variant((run / "repositories" / name).resolve(), scratch / "grouped", release=EMBEDDED_RELEASE)
        promised = manifests.read(scratch / "grouped")
        grouping = promised.grouping
        if grouping is None:
            raise SystemExit(f"{variant} is not grouped: {promised.ungrouped}")
        made = ways(scratch / "grouped", scratch)
        running: dict[Path, Any] = {}
        generators: dict[str, Generator] = {}
        checks: dict[str, tuple[Expected, list[dict[str, np.ndarray]]]] = {}
        for way in made:
            if way.root not in running:
                log = scratch / f"{way.root.name}.log"
                running[way.root] = stack.enter_context(
                    server.start(way.root, via="embedded", log=log, allow_changed=True)
                )
            size = max(typical, *lengths) if way.padded else 0
            feeds = [widened(source, r, source.inputs, max(size, n)) for r, n in zip(requests, lengths, strict=True)]
            truth = [widened(source, a, source.outputs, max(size, n)) for a, n in zip(alone, lengths, strict=True)]
            expected = Expected(truth, source.outputs, {}, source.mask, mask_dims)
            generator = stack.enter_context(
                Generator(running[way.root].endpoint.grpc, log=scratch / "load.log", timeout_s=60)
            )
            feeds = [fit_inputs(feed, promised.inputs) for feed in feeds]
            generator.open(source.name, feeds, slots=max(concurrency), check=expected.for_load(feeds), share=SHARE)
            generators[way.name], checks[way.name] = generator, (expected, feeds)
            rows[way.name] = {n: [] for n in concurrency}
            windows[way.name] = {n: [] for n in concurrency}
        turns = [(way, n) for way in made for n in concurrency]
        for number in range(-1, rounds):  # the first is not counted: every shape is met
            random.Random(number).shuffle(turns)
            for way, n in turns:
                generator = generators[way.name]
                generator.start(Load(concurrency=n))
                generator.window(WARM_S if number < 0 else SETTLE_S, least=1)
                window = generator.window(seconds)
                generator.stop()
                if number >= 0:
                    windows[way.name][n].append(window)
                    p50, p99 = (stability.percentile(window.latency_ms, q) for q in (50, 99))
                    per_s = len(window.answered) / window.seconds
                    rows[way.name][n].append(
                        {"per_s": per_s, "p50_ms": p50, "p99_ms": p99, "client_cpu_s": window.cpu_s / window.seconds}
                        | {"failures": generator.failures}
                    )
        for way in made:
            expected, feeds = checks[way.name]
            verdict = expected.judge(feeds, generators[way.name].worst()[1])
            worst[way.name] = {row.name: row.sqnr_db for row in verdict.outputs}
    return {
        "run": run.name,
        "model": source.name,
        "weights": source.weights,
        "variant": variant,
        "requests": len(requests),
        "tokens": {"mean": statistics.mean(lengths), "median": statistics.median(lengths), "longest": max(lengths)},
        "lengths": grouping.lengths,
        "rounds": rows,
        "by_length": {
            way: {n: by_length(found, lengths) for n, found in loads.items()} for way, loads in windows.items()
        },
        "worst_sqnr_db_against_alone": worst,
    }


def show(found: Mapping[str, Any]) -> None:
    """Print requests per second and p99 of each way, and what grouping gains over the others."""
    for n in next(iter(found["rounds"].values())):
        print(f"\n{found['model']} {found['variant']}, {n} at a time, {found['tokens']['mean']:.1f} tokens on average")
        own = [1 / r["per_s"] for r in found["rounds"]["grouped"][n]]
        for way, loads in found["rounds"].items():
            per_s = statistics.median(r["per_s"] for r in loads[n])
            tails = [r["p99_ms"] for r in loads[n] if r["p99_ms"] is not None]
            ratio = stability.ratio_interval([1 / r["per_s"] for r in loads[n]], own) if len(own) > 1 else None
            gain = f"grouped is {ratio[0]:.2f} [{ratio[1]:.2f}, {ratio[2]:.2f}] times" if ratio else ""
            p99 = f"{statistics.median(tails):8.1f}" if tails else "       —"
            print(f"  {way:<36} {per_s:8.1f} /s   p99 {p99} ms   {gain}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("--variant", required=True, help="id, such as openvino-fp32@cpu")
    parser.add_argument("--concurrency", default="16,64", help="clients at a time, separated by commas")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=2.5)
    parser.add_argument("--out", type=Path, default=Path("docs/benchmarks/serve_traffic.json"))
    asked = parser.parse_args()
    levels = [int(n) for n in asked.concurrency.split(",")]
    found = measure(asked.run, asked.variant, levels, asked.rounds, asked.seconds)
    show(found)
    asked.out.write_text(
        json.dumps({"hardware": hardware.detect().id, "threads": hardware.cpu_threads(), **found}, indent=1) + "\n"
    )


if __name__ == "__main__":
    main()
