"""Print the figures that the GPU targets are held to, from real runs on one GPU; keep them as JSON.

    .venv/bin/python benchmarks/gpu.py [--model bert] [--targets LIST] [--runs runs] [--out docs/benchmarks/gpu.json]

A cold run over every GPU target and the CPU baseline; then, for the targets of the bars, accel's session against the
same library driven by hand on the same files, in turn, in processes of their own. ``--device cpu`` runs the same lines
on a CPU over the CPU targets, to see that they work: its figures are no bars. Further options go to `accel convert`.
"""

import argparse
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from accel.bench.stability import ratio_interval
from accel.bench.timed import open_timed, time_round
from accel.builders import targets
from accel.builders.ort_providers import ENGINES, provider_for
from accel.builders.requirements import versions
from accel.core import document, environments, hardware
from accel.core.document import RunDocument
from accel.core.gpu import open_card
from accel.core.processes import Worker
from accel.core.values import Artifact, from_json, to_json

BARS = {"speedup": 3.0, "by_hand": 1.10, "added_us": 30.0}
"""Over eager FP32 torch for one of FAST; accel's time over the time by hand; what accel adds to a call."""
FAST = ("aoti-fp16", "ort-cuda-fp16")
DRIVEN = {"cuda": ("aoti-fp16", "ort-cuda-fp16", "ort-cuda", "torch"), "cpu": ("torch", "aoti", "ort")}
"""What is driven by hand: that of the bars first, since a machine with a GPU may be gone before the end."""
ROUNDS, CALLS = 15, 200

_COMMON = """
import json, sys, time
import numpy as np
given = json.loads(sys.argv[1])
with np.load(given["feeds"]) as stored:
    arrays = [np.ascontiguousarray(stored[f"b1/{name}"].astype(dtype)) for name, dtype in given["inputs"]]
def serve(call):
    call()
    print("ready", flush=True)
    for line in sys.stdin:
        times = []
        for _ in range(int(line)):
            start = time.perf_counter_ns()
            call()
            times.append(time.perf_counter_ns() - start)
        print(json.dumps(times), flush=True)
"""
_TORCH = """
import torch
gpu = given["device"] == "cuda"
torch.set_num_threads(given["threads"])
torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
if given["package"]:
    model = torch._inductor.aoti_load_package(given["file"])
else:
    model = torch.export.load(given["file"]).module()
pinned = [torch.from_numpy(a).pin_memory() if gpu else torch.from_numpy(a) for a in arrays]
inputs = [p.to(given["device"]) for p in pinned]
outputs = None
def call():
    global outputs
    with torch.inference_mode():
        for pin, tensor in zip(pinned, inputs):
            tensor.copy_(pin, non_blocking=True)
        results = model(*inputs)
        if outputs is None:
            outputs = [torch.empty(r.shape, dtype=r.dtype, pin_memory=gpu) for r in results]
        for host, result in zip(outputs, results):
            host.copy_(result, non_blocking=True)
        if gpu:
            torch.cuda.synchronize()
serve(call)
"""
_ORT = """
import onnxruntime as ort
gpu = given["device"] == "cuda"
if gpu:
    ort.preload_dlls(directory="")
options = ort.SessionOptions()
options.intra_op_num_threads = given["threads"]
session = ort.InferenceSession(given["file"], options, providers=[tuple(p) for p in given["providers"]])
names = [name for name, _ in given["inputs"]]
if gpu:
    binding = session.io_binding()
    values = [ort.OrtValue.ortvalue_from_numpy(a, "cuda", 0) for a in arrays]
    for name, value in zip(names, values):
        binding.bind_ortvalue_input(name, value)
    for output in session.get_outputs():
        binding.bind_output(output.name, "cuda", 0)
    def call():
        for value, array in zip(values, arrays):
            value.update_inplace(array)
        session.run_with_iobinding(binding)
        binding.copy_outputs_to_cpu()
else:
    feed = dict(zip(names, arrays))
    def call():
        session.run(None, feed)
serve(call)
"""


def convert(model: str, folder: Path, wanted: str, further: Sequence[str]) -> tuple[RunDocument, float]:
    """Convert a zoo model from nothing over some targets; also says how long it took, in seconds."""
    shutil.rmtree(folder, ignore_errors=True)
    words = ["convert", model, "--targets", wanted, "--triton-release", "26.05", "-o", str(folder), "--quiet", *further]
    start = time.monotonic()
    done = subprocess.run([sys.executable, "-m", "accel", *words], check=False)
    if done.returncode not in (0, 1):
        raise SystemExit(f"accel {' '.join(words)} ended with {done.returncode}")
    return document.read(folder), time.monotonic() - start


def summary(run: RunDocument, device: str) -> dict[str, Any]:
    """Reduce a run to what a reader compares: every variant, at its latency point and its best throughput."""
    variants = {}
    for variant in run.variants:
        points = {s: [m for m in variant.measurements if m.scenario == s] for s in ("latency", "throughput")}
        best = max(points["throughput"], key=lambda m: m.throughput_per_s, default=None)
        keys = ("batch", "p50_ms", "p99_ms", "p50_ci_ms", "throughput_per_s", "stable", "split", "gpu", "shapes")
        variants[variant.id] = {
            "status": variant.status,
            "reason": variant.reason,
            "runs_in": variant.artifact.effective_precision if variant.artifact else None,
            "found": variant.parity.found if variant.parity else None,
            "build_s": variant.artifact.build_s if variant.artifact else None,
            "latency": to_json({k: getattr(points["latency"][-1], k) for k in keys}) if points["latency"] else None,
            "throughput": to_json({k: getattr(best, k) for k in keys}) if best else None,
        }
    decisions = to_json([d for d in run.decisions if d.device == device])
    return {"variants": variants, "decisions": decisions}


def by_hand(folder: Path, id: str, device: str) -> dict[str, Any]:
    """Time a variant through accel's session and through its library alone, in turn; ratios are accel / by hand."""
    built = next((folder / ".store").glob(f"build-{id}-*"))
    artifact = json.loads((built / "value.json").read_text())["value"]
    made = from_json(Artifact, artifact)
    feeds = max((folder / ".store").glob("measure-*/feeds.npz"), key=lambda p: p.stat().st_mtime)
    python = environments.python(targets.discover()[made.variant.target.name].environment(made.variant.target))
    threads = hardware.cpu_threads()
    given: dict[str, Any] = {
        "feeds": str(feeds),
        "file": str(built / "files" / made.built.entry),
        "inputs": [(s.name, s.dtype) for s in made.built.inputs],
        "device": device,
        "threads": threads,
    }
    if made.variant.target.name.startswith("ort"):
        provider = provider_for(made.variant, threads=threads, mode="latency", engines=built / "files" / ENGINES)
        script = _COMMON + _ORT
        given["providers"] = [(provider.name, dict(provider.options)), *((n, dict(o)) for n, o in provider.behind)]
    else:
        script = _COMMON + _TORCH
        given["package"] = made.variant.target.name.startswith("aoti")
    words = [str(python), "-c", script, json.dumps(given)]
    with (
        tempfile.TemporaryDirectory() as scratch,
        Worker(Path(scratch) / "log", threads=threads, timeout_s=600, python=python) as own,
    ):
        own.call(open_timed, made, built / "files", threads, "latency", feeds, ("b1",))
        hand = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert hand.stdin is not None
        assert hand.stdout is not None
        try:
            if "ready" not in hand.stdout.readline():
                raise SystemExit(f"{id} could not be driven by hand: its error is above")
            ours, theirs = [], []
            for number in range(ROUNDS + 1):
                times = own.call(time_round, "latency", "b1", 0, CALLS).times_ns
                hand.stdin.write(f"{CALLS}\n")
                hand.stdin.flush()
                other = json.loads(hand.stdout.readline())
                if number:  # the first round warms both
                    ours.append(statistics.median(times) / 1e6)
                    theirs.append(statistics.median(other) / 1e6)
        finally:
            hand.kill()
            hand.wait()
    ratio, low, high = ratio_interval(ours, theirs)
    added = statistics.median((a - b) * 1e3 for a, b in zip(ours, theirs, strict=True))
    return {"ratio": ratio, "ratio_ci": [low, high], "added_us": added, "accel_ms": ours, "by_hand_ms": theirs}


def bars(found: dict[str, Any]) -> list[tuple[str, str, bool | None]]:
    """Hold the figures against the bars: what is asked, what was found, and whether it holds (None: not measured)."""
    variants, driven = found["variants"], found["by_hand"]

    def p50(name: str) -> float | None:
        latency = (variants.get(f"{name}@cuda") or {}).get("latency")
        return latency["p50_ms"] if latency else None

    base = p50("torch")
    times = {name: value for name in FAST if (value := p50(name)) is not None}
    speedups = {name: base / value for name, value in times.items()} if base else {}
    best = max(speedups, key=lambda n: speedups[n], default=None)
    rows: list[tuple[str, str, bool | None]] = []
    text = f"{best} {speedups[best]:.2f}×" if best else "not measured"
    rows.append((f"≥ {BARS['speedup']}× torch FP32 eager", text, speedups[best] >= BARS["speedup"] if best else None))
    for name in FAST:
        one = driven.get(f"{name}@cuda")
        rows.append(
            (
                f"{name} within {BARS['by_hand'] - 1:.0%} of the library by hand",
                f"{one['ratio']:.3f}" if one else "not measured",
                one["ratio"] <= BARS["by_hand"] if one else None,
            )
        )
    added = {id: one["added_us"] for id, one in driven.items()}
    worst = max(added, key=lambda id: added[id], default=None)
    text = f"{worst} {added[worst]:+.1f} µs" if worst else "not measured"
    rows.append(
        (f"a session adds ≤ {BARS['added_us']:.0f} µs", text, added[worst] <= BARS["added_us"] if worst else None)
    )
    return rows


def machine(run: RunDocument) -> dict[str, Any]:
    """Return what the figures belong to."""
    card = open_card()
    packages = ("torch", "triton", "nvidia-ml-py", "onnx", "numpy")
    return {
        "hardware": to_json(run.hardware),
        "card": card.name if card else None,
        "accel": run.accel,
        "created": run.created,
        "versions": versions(packages),
        "environments": {name: environments.requirements(name) for name in ("ort-gpu", "modelopt")},
    }


def write(path: Path, found: dict[str, Any]) -> None:
    """Keep what is known so far: a machine with a GPU may be gone before the end."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(found, indent=1, allow_nan=False) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", default="bert")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--targets", help="by default every target of the GPU and the CPU baseline")
    parser.add_argument("--runs", type=Path, default=Path("runs"))
    parser.add_argument("--out", type=Path, default=Path("docs/benchmarks/gpu.json"))
    given, further = parser.parse_known_args()
    if given.device == "cuda" and (trouble := hardware.gpu_trouble()):
        print(trouble, file=sys.stderr)
        raise SystemExit(3)
    folder = given.runs / f"{given.model}-{given.device}-benchmark"
    every = "gpu,torch@cpu" if given.device == "cuda" else ",".join(f"{name}@cpu" for name in DRIVEN["cpu"])
    run, wall_s = convert(given.model, folder, given.targets or every, further)
    found = {**machine(run), "model": given.model, "device": given.device, **summary(run, given.device)}
    found |= {"options": further, "wall_s": wall_s, "timeline": to_json(run.timeline), "by_hand": {}}
    write(given.out, found)
    for name in DRIVEN[given.device]:
        id = f"{name}@{given.device}"
        if found["variants"].get(id, {}).get("latency") is not None:
            found["by_hand"][id] = by_hand(folder, id, given.device)
            write(given.out, found)
    rows = bars(found) if given.device == "cuda" else []
    found["bars"] = [{"bar": bar, "found": value, "holds": holds} for bar, value, holds in rows]
    write(given.out, found)
    for id, variant in found["variants"].items():
        latency = variant["latency"]
        print(f"{id:24} {variant['status']:12} {latency['p50_ms'] if latency else '':>10}  {variant['reason'] or ''}")
    for id, one in found["by_hand"].items():
        print(f"{id:24} accel / by hand {one['ratio']:.3f}, {one['added_us']:+.1f} µs a call")
    for bar, value, holds in rows:
        print(f"{bar:48} {value:28} {'holds' if holds else 'not measured' if holds is None else 'MISSED'}")
    raise SystemExit(0 if all(holds for _, _, holds in rows) else 1)


if __name__ == "__main__":
    main()
