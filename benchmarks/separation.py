"""How often a live race tells apart what is the same, and what differs by 8 %; every race is a row of one JSON file.

    python benchmarks/separation.py [--count 100] [--target ort] [--neighbour quiet|half_core|lowest_priority]
                                    [--out docs/benchmarks/separation.json]

Two models are converted: 25 layers of one size, and 27, which is 8 % more of the same work. Races of two are held as a
run measures for latency (its plan, its rounds, its budget, disturbed turns repeated): the short model entered twice
(A/A), and the short beside the long, in turn, each in processes of its own. What was done already is kept: ``--count``
is how many races of each kind there shall be in all on this machine, of the code that races as it is now. Bars: of 100
A/A races at most 5 are separated, of 100 of the other kind at least 90, within the budget. ``tests/bench/test_race.py``
asks the same of recorded noise.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from noise import NEIGHBOURS

from accel.bench.in_process import MeasurementPlan, ProcessRunner, TimedShape
from accel.bench.race import FIRST_LOOK, Contest, Race, equivalent, faster, slower
from accel.bench.rounds import interleave
from accel.bench.stability import ratio_interval
from accel.core import hardware
from accel.core.feeds import write_feeds
from accel.core.values import Artifact, from_json
from accel.run import store
from accel.run.job import Job

SHORT, LONG = 25, 27
JOB = Job(source="minilm", targets="ort")
"""Of any model: its rounds and its budget are accel convert's own."""
DECIDES = ("bench/race.py", "bench/rounds.py", "bench/stability.py")
"""What rows have in common: whoever changes it begins anew."""
FACTORY = f"""
import torch
class Net(torch.nn.Module):
    def __init__(self, layers):
        super().__init__()
        self.layers = torch.nn.Sequential(*(torch.nn.Linear(512, 512) for _ in range(layers)))
    def forward(self, x):
        return self.layers(x)
def build(layers):
    torch.manual_seed(0)
    return Net(layers), [{{"x": torch.randn(1, 64, 512).numpy()}} for _ in range(320)]
def short():
    return build({SHORT})
def long():
    return build({LONG})
"""


def converted(folder: Path, name: str, target: str) -> tuple[Artifact, Path]:
    """Convert one of the two models; return the artifact and the folder of its files."""
    (folder / "net.py").write_text(FACTORY)
    words = ["convert", f"{folder}/net.py:{name}", "--targets", f"torch,{target}", "--bench", "none", "--quiet"]
    subprocess.run([sys.executable, "-m", "accel", *words, "-o", str(folder / name)], check=True)
    built = next((folder / name / ".store").glob(f"build-{target}@cpu-*"))
    return from_json(Artifact, json.loads((built / "value.json").read_text())["value"]), built / "files"


def race(pair: dict[str, tuple[Artifact, Path]], feeds: Path, log: Path) -> dict[str, Any]:
    """Hold one race of two; return what came of it."""
    threads = hardware.cpu_threads()
    runners = [
        ProcessRunner(
            name=name,
            artifact=artifact,
            folder=files,
            python=Path(sys.executable),
            log=log,
            timed_shapes=(TimedShape("b1", 1, {"x": (1, 64, 512)}),),
            precision="fp32",
            plan=MeasurementPlan("latency", JOB.rounds, JOB.round_s, 3 * JOB.round_s),
            feeds=feeds,
            threads=threads,
            timeout_s=300,
        )
        for name, (artifact, files) in pair.items()
    ]
    entries = tuple((name, "b1") for name in pair)
    contest = Contest(entries, frozenset(pair), JOB.rounds, first=FIRST_LOOK, reloads=True)
    begin = time.monotonic()
    failed, noises = interleave(
        runners, Race([contest], JOB.budget_s), opening="loading", turn="round", progress=lambda *_: None
    )
    if failed:
        raise SystemExit(f"a race failed: {failed}")
    first, second = (runner.times()["b1"] for runner in runners)
    ratio = ratio_interval(second, first)
    apart = slower(ratio) or faster(ratio)
    return {
        "outcome": "equivalent" if equivalent(ratio) else "separated" if apart else "undecided",
        "ratio": ratio,
        "settled": contest.settled,
        "rounds_ms": [list(first), list(second)],
        "repeated_turns": sum(noise.repeated for noise in noises.values()),
        "seconds": time.monotonic() - begin,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--target", default="ort")
    parser.add_argument("--neighbour", choices=sorted(NEIGHBOURS), default="quiet")
    parser.add_argument("--out", type=Path, default=Path("docs/benchmarks/separation.json"))
    asked = parser.parse_args()
    rows: list[dict[str, Any]] = json.loads(asked.out.read_text()) if asked.out.exists() else []
    about = {
        "hardware": hardware.detect().id,
        "target": asked.target,
        "neighbour": asked.neighbour,
        "round_s": JOB.round_s,
        "code": store.code_hash(*DECIDES)[:8],
    }

    def done(kind: str) -> list[dict[str, Any]]:
        return [row for row in rows if row.items() >= {"kind": kind, **about}.items()]

    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        short, long = (converted(folder, name, asked.target) for name in ("short", "long"))
        feeds = folder / "feeds.npz"
        write_feeds(feeds, {"b1": {"x": np.random.default_rng(0).standard_normal((1, 64, 512)).astype(np.float32)}})
        kinds = {"same": {"a": short, "a again": short}, "8 % apart": {"a": short, "longer": long}}
        program = NEIGHBOURS[asked.neighbour]
        beside = subprocess.Popen([sys.executable, "-c", program]) if program else None
        try:
            for number in range(asked.count):
                for kind, pair in kinds.items():
                    if len(done(kind)) <= number:
                        found = race(pair, feeds, folder / "log")
                        rows.append({"kind": kind, **about, "date": time.strftime("%Y-%m-%d"), **found})
                        asked.out.parent.mkdir(parents=True, exist_ok=True)
                        asked.out.write_text("[\n" + ",\n".join(map(json.dumps, rows)) + "\n]\n")
        finally:
            if beside:
                beside.kill()
                beside.wait()
    for kind in kinds:
        outcomes = [row["outcome"] for row in done(kind)]
        seconds = float(np.median([row["seconds"] for row in done(kind)]))
        told = ", ".join(f"{outcomes.count(o)} {o}" for o in ("separated", "equivalent", "undecided"))
        print(f"{kind:<10} {len(outcomes):4} races: {told}; {seconds:.0f} s each (median)")


if __name__ == "__main__":
    main()
