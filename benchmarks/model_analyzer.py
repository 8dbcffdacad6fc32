"""Model Analyzer and `accel tune` asked the same question about one repository, and what each answer carries.

    python -m venv ma && ma/bin/pip install triton-model-analyzer==1.58.0
    accel env install triton && accel env install perf-analyzer
    accel convert benchmarks/add_sub.py:build --targets cpu -o runs/add_sub
    python benchmarks/model_analyzer.py runs/add_sub --analyzer ma/bin/model-analyzer [--max-p99-ms 20] [--rounds 7]

The question: most requests per second of one item each, by closed-loop clients, with a p99 within the budget. Both
start the same embedded tritonserver on the same model: the Python-backend repository of what the run chose. Model
Analyzer is asked twice, each time in a folder of its own (`triton_launch_mode: local`, `cpu_only`):

    limited   the limits of its quick start: concurrency, instances and batch up to 2
    quick     its hill climbing, with nothing else set
    brute     its default, the whole sweep: an hour or more (`--ways`)

Its perf_analyzer gets windows of a second: of a model this fast 50 requests, its default, last 0.05 s. Where these do
not agree within 10 %, its default, Model Analyzer measures again with longer ones: on two shared cores that took more
than a minute for each point (`--stability-percentage`).

`accel tune` is asked about the repository, and about the whole run, of which it may choose another variant. Then each
answer's server, and one of the repository as it is, is put under load in turns: `--rounds` windows at each number of
clients, by accel's own generator, and one measurement each of perf_analyzer at the number at which it answered most
within the budget. Nothing else may run meanwhile.
"""

import argparse
import csv
import json
import random
import shlex
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import ExitStack
from importlib.metadata import version
from pathlib import Path
from typing import Any

import yaml
from serve_traffic import looked, written

from accel.bench import perf_analyzer, stability
from accel.bench.load import Generator, Load
from accel.core import hardware
from accel.core.feeds import Feed
from accel.triton import config as configs, manifest as manifests
from accel.triton.reading import read_points
from accel.triton.servers import hosts, server
from accel.triton.servers.processes import LOCALHOST

LEVELS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
"""Numbers of clients that each answer is judged at."""
LIMITED = ("concurrency", "instance-count", "model-batch-size")


def wrapper(file: Path, program: str, environment: Mapping[str, str], flags: tuple[str, ...] = ()) -> Path:
    """Write a script that starts a program with variables and flags of its own before those it is given."""
    lines = ["#!/bin/sh", *(f"export {name}={shlex.quote(value)}" for name, value in environment.items())]
    file.write_text("\n".join([*lines, f'exec {shlex.join([program, *flags])} "$@"', ""]))
    file.chmod(0o755)
    return file


def programs(root: Path, scratch: Path) -> tuple[Path, Path]:
    """Return scripts that start the embedded server and perf_analyzer as accel starts them."""
    host = hosts.embedded(root, None, scratch)
    _, variables = hosts.command(host, root, name="analyzed", ports={}, flags=(), cache_bytes=0)
    own = {name: variables[name] for name in (*host.environment, "ACCEL_SITE_PACKAGES", "PYTHONDONTWRITEBYTECODE")}
    here = tuple(f"--{service}-address={LOCALHOST}" for service in ("http", "grpc", "metrics"))
    load = perf_analyzer.resolve()
    return (
        wrapper(scratch / "tritonserver", host.program, own, (*host.flags, *here)),
        wrapper(scratch / "perf_analyzer", str(load.path), load.environment),
    )


def analyze(
    name: str,
    given: list[str],
    analyzer: Path,
    served: Path,
    budget_ms: float,
    stability_percent: int,
    scratch: Path,
) -> tuple[dict[str, Any], Path]:
    """Let Model Analyzer search; return what it took and found, and its best configuration's folder."""
    place = scratch / f"analyzer-{name}"
    models = place / "models"
    models.mkdir(parents=True)
    model = manifests.read(served).models[0]
    shutil.copytree(served / model, models / model)
    config = configs.parse((models / model / "config.pbtxt").read_text())
    del config.model_warmup[:]  # each names a batch, which its search may be below
    (models / model / "config.pbtxt").write_text(configs.to_text(config))
    tritonserver, load = programs(served, place)
    asked = {
        "model_repository": str(models),
        "output_model_repository_path": str(place / "configurations"),
        "checkpoint_directory": str(place / "checkpoints"),
        "export_path": str(place / "results"),
        "triton_launch_mode": "local",
        "triton_server_path": str(tritonserver),
        "perf_analyzer_path": str(load),
        "triton_output_path": str(place / "triton.log"),
        "perf_analyzer_flags": {
            "measurement-mode": "time_windows",
            "measurement-interval": 1000,
            "stability-percentage": stability_percent,
        },
        "skip_summary_reports": True,
        "skip_detailed_reports": True,
        "profile_models": {
            model: {
                "cpu_only": True,
                "objectives": ["perf_throughput"],
                "constraints": {"perf_latency_p99": {"max": budget_ms}},
            }
        },
    }
    (place / "profile.yaml").write_text(yaml.safe_dump(asked, sort_keys=False))
    words = [str(analyzer), "profile", "-f", str(place / "profile.yaml"), *given]
    begin = time.monotonic()
    with (place / "said.log").open("w") as log:
        code = subprocess.run(words, cwd=place, stdout=log, stderr=subprocess.STDOUT, check=False).returncode
    took_s = time.monotonic() - begin
    if code:
        raise SystemExit(f"model-analyzer ended with {code}: {(place / 'said.log').read_text()[-2000:]}")
    with (place / "results" / "results" / "metrics-model-inference.csv").open() as file:
        rows = list(csv.DictReader(file))
    rows = [row for row in rows if row["Satisfies Constraints"] == "Yes"] or rows
    best = max(rows, key=lambda row: float(row["Throughput (infer/sec)"]))
    found = {"took_s": took_s, "flags": given, "measured": len(rows), "best": best}
    return found, place / "configurations" / best["Model Config Path"]


def with_config(served: Path, chosen: Path, out: Path) -> Path:
    """Write the repository with the scheduling of a configuration that Model Analyzer made of it."""
    shutil.copytree(served, out)
    file = out / manifests.read(served).models[0] / "config.pbtxt"
    config, made = configs.parse(file.read_text()), configs.parse((chosen / "config.pbtxt").read_text())
    made.name = config.name
    file.unlink()
    file.write_text(configs.to_text(made))
    return out


def tuned(target: Path, budget_ms: float, budget_s: float, out: Path) -> tuple[dict[str, Any], Path]:
    """Let ``accel tune`` search; return what it took and found, and the repository that it wrote."""
    words = [sys.executable, "-m", "accel", "tune", str(target), "--arrivals", "closed"]
    begin = time.monotonic()
    words += ["--max-p99-ms", str(budget_ms), "--budget-s", str(budget_s), "--out", str(out), "--quiet"]
    subprocess.run(words, check=True, stdout=subprocess.DEVNULL)
    told = json.loads((out / "tune.json").read_text())
    tried = sum(bool(row["probes"]) for row in told["tried"])
    found = {"took_s": time.monotonic() - begin, "measured": tried, "decision": told["decision"]}
    return found, out / told["repository"]


def single(root: Path) -> Feed:
    """Return a stored sample of one item."""
    points = read_points(root, manifests.read(root)).values()
    return next(p.inputs for p in points if all(len(value) == 1 for value in p.inputs.values()))


def judged(roots: Mapping[str, Path], rounds: int, seconds: float, budget_ms: float, scratch: Path) -> dict[str, Any]:
    """Put every answer's server under every load in turns, and each once more under perf_analyzer's."""
    found: dict[str, dict[int, list[dict[str, Any]]]] = {name: {n: [] for n in LEVELS} for name in roots}
    with ExitStack() as stack:
        generators, running = {}, {}
        for name, root in roots.items():
            log = scratch / f"judged-{root.name}.log"
            running[name] = stack.enter_context(server.start(root, via="embedded", log=log, allow_changed=True))
            address = running[name].endpoint.grpc
            generators[name] = stack.enter_context(Generator(address, log=scratch / "load.log", timeout_s=60))
            generators[name].open(manifests.read(root).models[0], [single(root)], slots=max(LEVELS))
        turns = [(name, n) for name in roots for n in LEVELS]
        for number in range(-1, rounds):  # the first is not counted
            random.Random(number).shuffle(turns)
            for name, n in turns:
                _, figures = looked(generators[name], n, 0.2, seconds)
                if number >= 0:
                    found[name][n].append(figures)
        at = {name: level(rows, budget_ms) for name, rows in found.items()}
        theirs = {}
        for name, root in roots.items():
            load = [Load(concurrency=at[name])] if at[name] else []
            log, model = scratch / "perf.log", manifests.read(root).models[0]
            theirs[name] = [
                {"clients": at[name], "per_s": point.throughput_per_s, "p99_ms": point.p99_ms, "stable": point.stable}
                for point in perf_analyzer.sweep(running[name].endpoint, model, [single(root)], load, log=log)
            ]
    return {"rounds": found, "clients": at, "perf_analyzer": theirs}


def level(rows: Mapping[int, list[dict[str, Any]]], budget_ms: float) -> int:
    """Return the number of clients with most answers per second whose p99 is within the budget; 0 for none.

    A window of too few requests has no p99, and says nothing.
    """
    tails = {n: [w["p99_ms"] for w in windows if w["p99_ms"] is not None] for n, windows in rows.items()}
    kept = [n for n, found in tails.items() if found and statistics.median(found) <= budget_ms]
    return max(kept, key=lambda n: statistics.median(w["per_s"] for w in rows[n]), default=0)


def show(found: Mapping[str, Any]) -> None:
    """Print what each answer took, and what it carries within the budget."""
    rows, at = found["judged"]["rounds"], found["judged"]["clients"]
    ours = at["accel, the repository"]
    own = [1 / w["per_s"] for w in rows["accel, the repository"][ours]] if ours else []
    for name, n in at.items():
        took = found["searches"].get(name, {}).get("took_s")
        said = f"{name:<28} {f'{took:6.0f} s' if took is not None else '       —'}   "
        if not n:
            print(f"{said}nothing within the budget")
            continue
        windows = rows[name][n]
        ratio = stability.ratio_interval(own, [1 / w["per_s"] for w in windows]) if own else None
        times = f", {ratio[0]:.2f} [{ratio[1]:.2f}, {ratio[2]:.2f}] times accel's" if ratio else ""
        theirs = found["judged"]["perf_analyzer"][name]
        beside = f"; perf_analyzer {theirs[0]['per_s']:.0f}/s" if theirs else ""
        print(
            f"{said}{statistics.median(w['per_s'] for w in windows):7.0f} /s at {n} clients, p99 "
            f"{statistics.median(w['p99_ms'] or 0 for w in windows):.1f} ms{times}{beside}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("--analyzer", type=Path, required=True, help="model-analyzer of an environment of its own")
    parser.add_argument("--ways", default="limited,quick", help="its searches: limited, quick, brute; empty for none")
    parser.add_argument("--stability-percentage", type=int, default=10, help="of its perf_analyzer")
    parser.add_argument("--max-p99-ms", type=float, default=20.0)
    parser.add_argument("--budget-s", type=float, default=900.0, help="how long accel tune measures at most")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=1.5)
    parser.add_argument("--out", type=Path, default=Path("docs/benchmarks/model_analyzer.json"))
    asked = parser.parse_args()
    limits = [f"--run-config-search-max-{what}=2" for what in LIMITED]
    ways = {"limited": limits, "quick": ["--run-config-search-mode=quick"], "brute": []}
    chosen = manifests.read(asked.run / "best" / "cpu").variant
    with tempfile.TemporaryDirectory() as held:
        scratch = Path(held)
        served = written(asked.run, chosen, scratch / "emitted")
        searches, roots = {}, {"as emitted": served}
        for name in filter(None, asked.ways.split(",")):
            title = f"Model Analyzer, {name}"
            told = analyze(
                *(name, ways[name], asked.analyzer.absolute(), served),
                *(asked.max_p99_ms, asked.stability_percentage, scratch),
            )
            searches[title], best = told
            roots[title] = with_config(served, best, scratch / f"of-{name}")
            print(title, json.dumps(searches[title]), flush=True)
        for name, target in {"the repository": served, "the run": asked.run}.items():
            title = f"accel, {name}"
            out = scratch / name.replace(" ", "_")
            searches[title], roots[title] = tuned(target, asked.max_p99_ms, asked.budget_s, out)
            print(title, json.dumps(searches[title]), flush=True)
        found = {
            "hardware": hardware.detect().id,
            "threads": hardware.cpu_threads(),
            "accel": version("accel"),
            "model": manifests.read(served).models[0],
            "variant": chosen,
            "max_p99_ms": asked.max_p99_ms,
            "searches": searches,
            "configs": {
                name: (root / manifests.read(root).models[0] / "config.pbtxt").read_text()
                for name, root in roots.items()
            },
            "judged": judged(roots, asked.rounds, asked.seconds, asked.max_p99_ms, scratch),
        }
    asked.out.write_text(json.dumps(found, indent=1) + "\n")
    show(found)


if __name__ == "__main__":
    main()
