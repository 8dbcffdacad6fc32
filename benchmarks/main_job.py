"""Print the figures that the main job is held to, from real runs; keep them as JSON.

    .venv/bin/python benchmarks/main_job.py [--runs runs] [--out docs/benchmarks/main_job.json]
    .venv/bin/python benchmarks/main_job.py --against COMMIT [--models bert,minilm,resnet50] [--times 1]
                                            [--old-home FOLDER]

Cold runs of minilm and bert (removed first), the same again, a factory, `--help`, the parent's memory, the chosen one
against the same file driven by hand through OpenVINO's own Python API, in turn, in one minute. Takes about 20 minutes.

``--against`` converts each model with the version of COMMIT, in a worktree of its own, and with this one, cold and in
turn, and compares the time and the winners; every run adds a row to ``--out`` (docs/benchmarks/old_new.json), and a
comparison that was stopped goes on. ``--old-home`` is an ACCEL_HOME with the environments of that version, where its
pins are others than this version's; nothing else may run meanwhile.
"""

import argparse
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from accel.bench.stability import ratio_interval
from accel.bench.timed import open_timed, time_round
from accel.core import document, hardware
from accel.core.processes import Worker
from accel.core.values import Artifact, from_json

FACTORY = """
import torch
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(*(torch.nn.Linear(1024, 1024) for _ in range(20)))
    def forward(self, x):
        return self.layers(x)
def build():
    torch.manual_seed(0)
    return Net(), [{"x": torch.randn(1, 1024).numpy()} for _ in range(400)]
"""
ROUNDS, CALLS = 15, 20

BY_HAND = """
import json, sys, time
import numpy as np, openvino as ov
model, feeds, threads = sys.argv[1], sys.argv[2], int(sys.argv[3])
compiled = ov.Core().compile_model(model, "CPU", {"PERFORMANCE_HINT": "LATENCY", "INFERENCE_NUM_THREADS": threads})
request = compiled.create_infer_request()
with np.load(feeds) as f:
    inputs = {k.split("/")[1]: f[k] for k in f.files if k.startswith("b1/")}
print("ready", flush=True)
for line in sys.stdin:
    times = []
    for _ in range(int(line)):
        start = time.perf_counter_ns()
        request.infer(inputs)
        times.append(time.perf_counter_ns() - start)
    print(json.dumps(times), flush=True)
"""


def run(words: list[str]) -> dict[str, float]:
    """Run an accel command; returns wall seconds and the parent's own peak memory (VmHWM, sampled) in MiB."""
    start = time.monotonic()
    process = subprocess.Popen([sys.executable, "-m", "accel", *words], stdout=subprocess.DEVNULL)
    peak = 0.0
    while process.poll() is None:
        status = Path(f"/proc/{process.pid}/status")
        try:
            found = re.search(r"VmHWM:\s+(\d+)", status.read_text())
        except (FileNotFoundError, ProcessLookupError):
            found = None
        peak = max(peak, int(found[1]) / 1024 if found else 0.0)
        time.sleep(0.02)
    if process.returncode != 0:
        raise SystemExit(f"accel {' '.join(words)} ended with {process.returncode}")
    return {"wall_s": time.monotonic() - start, "parent_peak_mib": peak}


def summary(folder: Path) -> dict[str, Any]:
    """Reduce a run.json to what the bars are about."""
    found = document.read(folder)
    states = [v.status for v in found.variants if v.device == "cpu"]
    decisions = {d.objective: d for d in found.decisions if d.device == "cpu"}
    return {
        "accuracy": found.model.accuracy,
        "built_proved_measured": sum(bool(v.measurements) for v in found.variants),
        "ok": states.count("ok"),
        "gate_failed": states.count("gate_failed"),
        "failed": states.count("failed"),
        "decisions": {
            name: {k: getattr(d, k) for k in ("chosen", "speedup", "speedup_ci", "reason", "ties")}
            for name, d in decisions.items()
        },
        "timings_s": dict(found.timings_s),
    }


def against_by_hand(folder: Path) -> dict[str, Any]:
    """Time the chosen OpenVINO variant through accel's session and by hand, in turn; the ratio is accel / by hand."""
    decisions = document.read(folder).decisions
    chosen = next(d.chosen for d in decisions if (d.objective, d.device) == ("latency", "cpu")) or "none"
    if not chosen.startswith("openvino"):
        raise SystemExit(f"the chosen variant is {chosen}: compared by hand is OpenVINO only")
    built = next((folder / ".store").glob(f"build-{chosen}-*"))
    artifact = json.loads((built / "value.json").read_text())["value"]
    made = from_json(Artifact, artifact)
    feeds = max((folder / ".store").glob("measure-*/feeds.npz"), key=lambda p: p.stat().st_mtime)
    threads = hardware.cpu_threads()
    words = [sys.executable, "-c", BY_HAND, str(built / "files" / made.built.entry), str(feeds), str(threads)]
    with (
        tempfile.TemporaryDirectory() as scratch,
        Worker(Path(scratch) / "log", threads=threads, timeout_s=300) as worker,
    ):
        point = "b1"
        worker.call(open_timed, made, built / "files", threads, "latency", feeds, (point,))
        hand = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert hand.stdin is not None
        assert hand.stdout is not None
        hand.stdout.readline()
        ours, theirs = [], []
        for number in range(ROUNDS + 1):
            times = worker.call(time_round, "latency", point, 0, CALLS).times_ns
            hand.stdin.write(f"{CALLS}\n")
            hand.stdin.flush()
            other = json.loads(hand.stdout.readline())
            if number:  # the first round warms both
                ours.append(float(np.median(times)) / 1e6)
                theirs.append(float(np.median(other)) / 1e6)
        hand.kill()
    ratio, low, high = ratio_interval(ours, theirs)
    return {"variant": chosen, "ratio": ratio, "ratio_ci": [low, high], "accel_ms": ours, "by_hand_ms": theirs}


def model(name: str, runs: Path) -> dict[str, Any]:
    """Convert a zoo model from nothing, then once more, and print what was found."""
    folder = runs / name
    shutil.rmtree(folder, ignore_errors=True)
    words = ["convert", name, "--targets", "cpu,trt-fp16", "-o", str(folder), "--quiet"]
    found = {"cold": run(words), **summary(folder), "warm": run(words)}
    print(json.dumps({name: found}, indent=1), flush=True)
    return found


def head(checkout: Path) -> str:
    """Return the commit of a checkout."""
    words = ["git", "-C", str(checkout), "rev-parse", "--short", "HEAD"]
    return subprocess.run(words, check=True, capture_output=True, text=True).stdout.strip()


def convert_cold(model: str, targets: str, checkout: Path, folder: Path, home: Path | None) -> dict[str, Any]:
    """Convert a model from nothing with the accel of a checkout; nothing that a compiler kept is there either."""
    shutil.rmtree(folder, ignore_errors=True)
    words = [sys.executable, "-m", "accel", "convert", model, "--targets", targets, "-o", str(folder), "--quiet"]
    with tempfile.TemporaryDirectory() as compiled:
        own = {"PYTHONPATH": str(checkout), "TORCHINDUCTOR_CACHE_DIR": compiled}
        own |= {"ACCEL_HOME": str(home.resolve())} if home else {}
        before, begin = os.times(), time.monotonic()
        done = subprocess.run(words, cwd=checkout, env=os.environ | own, stdout=subprocess.DEVNULL, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(words)} in {checkout} ended with {done.returncode}")
    after = os.times()
    cpu_s = after.children_user + after.children_system - before.children_user - before.children_system
    return {"model": model, "wall_s": time.monotonic() - begin, "cpu_s": cpu_s, **summary(folder)}


def against(
    commit: str, models: list[str], targets: str, times: int, runs: Path, out: Path, old_home: Path | None
) -> None:
    """Convert models with an old version and this one in turn, and print how they compare."""
    here = Path(__file__).resolve().parents[1]
    rows: list[dict[str, Any]] = json.loads(out.read_text()) if out.exists() else []
    with tempfile.TemporaryDirectory() as scratch:
        old = Path(scratch) / "old"
        subprocess.run(["git", "-C", str(here), "worktree", "add", "--detach", str(old), commit], check=True)
        try:
            for number in range(times):
                for model in models:
                    for version, checkout in (("old", old), ("new", here)):
                        done = [(r["model"], r["version"], r["number"]) for r in rows]
                        if (model, version, number) not in done:
                            home = old_home if version == "old" else None
                            row = convert_cold(model, targets, checkout, runs.resolve() / f"{version}-{model}", home)
                            about = {"version": version, "number": number, "commit": head(checkout)}
                            rows.append(about | {"hardware": hardware.detect().id} | row)
                            out.parent.mkdir(parents=True, exist_ok=True)
                            out.write_text(json.dumps(rows, indent=1) + "\n")
        finally:
            subprocess.run(["git", "-C", str(here), "worktree", "remove", "--force", str(old)], check=True)
    print(
        f"{'model':<10} {'old s':>7} {'new s':>7} {'ratio':>6}   winners, old and new (bar: 0.45, the same or better)"
    )
    for model in models:
        both = {v: [r for r in rows if (r["model"], r["version"]) == (model, v)] for v in ("old", "new")}
        wall = {v: statistics.median(r["wall_s"] for r in own) for v, own in both.items()}
        winners = {v: {o: d["chosen"] for o, d in own[-1]["decisions"].items()} for v, own in both.items()}
        print(f"{model:<10} {wall['old']:7.0f} {wall['new']:7.0f} {wall['new'] / wall['old']:6.2f}   {winners}")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--runs", type=Path, default=Path("runs"))
    parser.add_argument("--out", type=Path)
    parser.add_argument("--against", metavar="COMMIT")
    parser.add_argument("--models", default="bert,minilm,resnet50")
    parser.add_argument("--targets", default="cpu,trt-fp16")
    parser.add_argument("--times", type=int, default=1)
    parser.add_argument("--old-home", type=Path)
    asked = parser.parse_args()
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    asked.out = asked.out or Path("docs/benchmarks") / ("old_new.json" if asked.against else "main_job.json")
    if asked.against:
        models = asked.models.split(",")
        against(asked.against, models, asked.targets, asked.times, asked.runs, asked.out, asked.old_home)
        return
    found: dict[str, Any] = {"hardware": hardware.detect().id, "date": time.strftime("%Y-%m-%d")}
    found["bert"] = model("bert", asked.runs)
    found["by_hand"] = against_by_hand(asked.runs / "bert")
    print(json.dumps({"by_hand": found["by_hand"]}, indent=1), flush=True)
    with tempfile.TemporaryDirectory() as scratch:
        (Path(scratch) / "net.py").write_text(FACTORY)
        words = ["convert", f"{scratch}/net.py:build", "--targets", "torch,ort", "-o", f"{scratch}/run", "--quiet"]
        found["factory"] = {"cold": run(words), "warm": run(words)}
    helps = [run(["--help"])["wall_s"] for _ in range(7)]
    found["help_s"] = {"median": statistics.median(helps), "all": helps}
    found["minilm"] = model("minilm", asked.runs)
    asked.out.parent.mkdir(parents=True, exist_ok=True)
    asked.out.write_text(json.dumps(found, indent=1) + "\n")
    bert, minilm = found["bert"], found["minilm"]
    latency = bert["decisions"]["latency"]
    rows = [
        ("bert variants built, proved, measured", bert["built_proved_measured"], ">= 9"),
        ("bert variants failed", bert["failed"], "0"),
        ("bert: chosen", latency["chosen"], ""),
        ("bert: speed-up over torch", f"{latency['speedup']:.2f} {latency['speedup_ci']}", ">= 5"),
        ("minilm: chosen", minilm["decisions"]["latency"]["chosen"], ""),
        ("minilm: speed-up over torch", f"{minilm['decisions']['latency']['speedup']:.2f}", ""),
        ("accel / by hand", f"{found['by_hand']['ratio']:.3f} {found['by_hand']['ratio_ci']}", "<= 1.05"),
        ("accel's own work, bert cold", f"{bert['timings_s']['accel']:.1f} s", "<= 60 s"),
        ("bert cold", f"{bert['cold']['wall_s']:.0f} s", ""),
        ("minilm cold", f"{minilm['cold']['wall_s']:.0f} s", ""),
        ("bert warm", f"{bert['warm']['wall_s']:.1f} s", "<= 5 s"),
        ("factory warm", f"{found['factory']['warm']['wall_s']:.1f} s", "<= 15 s"),
        ("accel --help", f"{found['help_s']['median']:.2f} s", "<= 0.4 s"),
        ("parent's peak memory", f"{bert['cold']['parent_peak_mib']:.0f} MiB", "<= 300 MiB"),
    ]
    for what, value, bar in rows:
        print(f"{what:<42} {value!s:<44} {bar}")


if __name__ == "__main__":
    main()
