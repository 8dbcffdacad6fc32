"""Time and memory of typing BERT-base, and the search for INT8 layers on MiniLM against an exhaustive greedy search.

    python benchmarks/precision.py [--json FILE] [--folder DIR] [--small] [--only typing|search]

Each typing runs in a process of its own; its peak is the resident memory of that process and all it starts, sampled
every 20 ms. Bars: 3 minutes and 4 GiB each on 2 cores. Both searches use one score: real weights, the zoo's task metric
on samples that were not calibrated on. Bar: a share of INT8 within 5 % of the exhaustive search's, in a quarter of its
evaluations. ``--small`` takes reduced models and few samples: it shows that the script works, its figures mean nothing.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import psutil

import model_zoo
from accel import exporters
from accel.core import hardware
from accel.core.feeds import read_feeds
from accel.core.values import ModelSource, to_json
from accel.exporters import samples, sources
from accel.graph import evaluate, fp16, quantize, sensitivity

THREADS = len(os.sched_getaffinity(0))
KINDS = ("fp16", "bf16", "int8", "fp8")
FLOOR = 0.98


def export(name: str, folder: Path) -> tuple[ModelSource, Path]:
    """Write the zoo model's ONNX file and its sample files into ``folder``."""
    folder.mkdir(parents=True, exist_ok=True)
    request = sources.recognise(name)
    source = exporters.describe(request)
    samples.make_samples(source, request, folder)
    exporters.export_onnx(source, folder)
    return source, folder / "model.onnx"


# ---------------------------------------------------------------------------------------------------------------------
# Typing: time and memory


def one(kind: str, path: Path) -> dict[str, object]:
    """Type one file here, and say what that took."""
    feeds = list(read_feeds(path.with_name("calibration.npz")).values())
    peak = _Peak()
    start, out = time.perf_counter_ns(), path.with_name(f"{kind}.onnx")
    if kind in ("fp16", "bf16"):
        half = fp16.convert(path, out, to=kind, feeds=feeds, threads=THREADS)
        facts = {"kept": len(half.kept), "half_share": half.half_share, "measured_values": half.values}
    else:
        done = quantize.for_tensorrt(path, out, to=kind, feeds=feeds, base="fp16", threads=THREADS)
        facts = {"products": done.products, "quantised": done.quantised}
    wall_s = (time.perf_counter_ns() - start) / 1e9
    return {"kind": kind, "wall_s": round(wall_s, 1), "peak_mib": peak.stop(), "feeds": len(feeds), **facts}


class _Peak:
    """The largest resident memory of this process and all below it."""

    def __init__(self) -> None:
        self._most = 0
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def _watch(self) -> None:
        me = psutil.Process()
        while not self._done.wait(0.02):
            total = 0
            for process in (me, *me.children(recursive=True)):
                try:
                    total += process.memory_info().rss
                except psutil.NoSuchProcess:
                    continue
            self._most = max(self._most, total)

    def stop(self) -> int:
        """End the watch and return the peak in MiB."""
        self._done.set()
        self._thread.join()
        return self._most >> 20


def typing(folder: Path, *, small: bool) -> dict[str, object]:
    """Type BERT-base four ways, each in a fresh interpreter."""
    _, path = export("bert@small" if small else "bert", folder / "bert")
    rows = []
    for kind in KINDS:
        done = subprocess.run(
            [sys.executable, __file__, "--one", kind, str(path)], check=True, capture_output=True, text=True
        )
        rows.append(json.loads(done.stdout.splitlines()[-1]))
        row = rows[-1]
        print(f"{kind:5} {row['wall_s']:7} s   peak {row['peak_mib']:6} MiB   {row}")
    return {"model": "bert@small" if small else "bert", "rows": rows, "bars": {"wall_s": 180, "peak_mib": 4096}}


# ---------------------------------------------------------------------------------------------------------------------
# The search for INT8 layers


def scorer(source: ModelSource, path: Path, *, count: int) -> Callable[[Path], float]:
    """Return the zoo's task metric of a file against ``path``, over the first ``count`` feeds of the gate."""
    metric = model_zoo.entry(source.name).metric
    assert metric is not None
    feeds = list(read_feeds(path.with_name("gate.npz")).values())[:count]

    def answers(file: Path) -> list[dict[str, np.ndarray]]:
        session = evaluate.open_light(file, THREADS)
        names = [o.name for o in session.get_outputs()]
        return [dict(zip(names, session.run(names, dict(feed)), strict=True)) for feed in feeds]

    truth = answers(path)
    return lambda file: metric(truth, answers(file), feeds)


def exhaustive(ready: quantize.Prepared, score: Callable[[Path], float]) -> dict[str, object]:
    """Quantise one group of products at a time, always the one that costs least per work, while any holds the floor.

    At every step every remaining group is tried: that is what makes it exhaustive.
    """
    by_activation: dict[str, list[str]] = {}
    for product in ready.products:
        by_activation.setdefault(product.activation, []).append(product.node)
    left = [frozenset(nodes) for nodes in by_activation.values()]
    kept, last, evaluations, curve = frozenset().union(*left), 1.0, 0, []
    while left:
        tried = []
        for group in left:
            file = ready.write(kept - group, ready.path.with_name("greedy.onnx"))
            value = score(file)
            evaluations += 1
            gain = ready.share(kept - group) - ready.share(kept)
            tried.append((max(last - value, 0.0) / gain, -gain, value, group))
        holding = [t for t in tried if t[2] >= FLOOR]
        if not holding:
            break
        _, _, last, group = min(holding, key=lambda t: t[:2])
        kept, left = kept - group, [g for g in left if g != group]
        curve.append({"share": ready.share(kept), "score": last})
        print(f"  greedy: share {ready.share(kept):.1%}, score {last:.5f} after {evaluations} evaluations", flush=True)
    return {"share": ready.share(kept), "score": last, "evaluations": evaluations, "curve": curve}


def search(folder: Path, *, small: bool) -> dict[str, object]:
    """Search MiniLM's layers both ways, with the same calibration and the same score."""
    source, path = export("minilm", folder / "minilm")
    calibration = list(read_feeds(path.with_name("calibration.npz")).values())[: 2 if small else None]
    score = scorer(source, path, count=2 if small else 16)
    with tempfile.TemporaryDirectory() as name:
        ready = quantize.prepare(path, Path(name), to="int8", feeds=calibration, threads=THREADS)
        found = ready.search(score, FLOOR)
        print(sensitivity.table(found))
        print(f"{found.evaluations} evaluations in {found.search_s:.0f} s")
        result: dict[str, object] = {"accel": to_json(found), "floor": FLOOR}
        if small:
            return result
        best = exhaustive(ready, score)
    share = found.chosen.share / float(str(best["share"])) if best["share"] else None
    print(f"exhaustive greedy: share {best['share']}, {best['evaluations']} evaluations; accel reaches {share} of it")
    return result | {"greedy": best, "share_of_greedy": share}


def main() -> None:
    """Run what was asked for and write the raw results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, default=Path("docs/benchmarks/precision.json"))
    parser.add_argument("--folder", type=Path, help="where models and files go; a temporary one by default")
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--only", choices=("typing", "search"))
    parser.add_argument("--one", nargs=2, metavar=("KIND", "FILE"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(one(options.one[0], Path(options.one[1]))))
        return
    head = {
        "onnx": onnx.__version__,
        "onnxruntime": onnxruntime.__version__,
        "date": time.strftime("%Y-%m-%d"),
        "hardware": hardware.detect().id,
        "threads": THREADS,
        "small": options.small,
    }
    results = json.loads(options.json.read_text()) if options.json.is_file() else {}
    with tempfile.TemporaryDirectory() as name:
        folder = options.folder or Path(name)
        if options.only in (None, "typing"):
            results["typing"] = head | typing(folder, small=options.small)
        if options.only in (None, "search"):
            results["search"] = head | search(folder, small=options.small)
    options.json.parent.mkdir(parents=True, exist_ok=True)
    options.json.write_text(json.dumps(results, indent=1, allow_nan=False) + "\n")


if __name__ == "__main__":
    main()
