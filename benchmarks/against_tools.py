"""accel's own p50 beside benchmark_app's and a plain loop's, in turn in one session; the bar is 3 %.

    python benchmarks/against_tools.py runs/bert runs/minilm … [--out docs/benchmarks/against_tools.json]

Of each run directory (``accel convert … --targets ort,openvino-fp32``) ``openvino-fp32@cpu`` is timed beside OpenVINO's
benchmark_app, and ``ort@cpu`` beside a loop of ONNX Runtime's Python API, each in processes of their own, with as many
threads, at batch 1 and the typical shape. Rows of other runs in ``--out`` stay. Run it on a quiet machine: a model
takes two to three minutes.
"""

import argparse
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from accel.bench.stability import ratio_interval
from accel.bench.timed import open_timed, time_round, warm
from accel.core import document, hardware
from accel.core.feeds import fit_inputs, read_feeds, write_feeds
from accel.core.processes import Worker
from accel.core.values import Artifact

ROUNDS, ROUND_S = 12, 2.0
THREADS = hardware.cpu_threads()
TYPES = {"int64": "i64", "int32": "i32", "float32": "f32", "uint8": "u8"}
BENCHMARK_APP = """
import sys
sys.modules["openvino_telemetry"] = None  # it would report itself to a web service
from openvino.tools.benchmark.main import main
main()
"""
LOOP = f"""
import sys, time, numpy as np, onnxruntime as ort
options = ort.SessionOptions(); options.intra_op_num_threads = {THREADS}
session = ort.InferenceSession(sys.argv[1], options, providers=["CPUExecutionProvider"])
with np.load(sys.argv[2]) as stored:
    feed = {{key.partition("/")[2]: stored[key] for key in stored.files if key.startswith(sys.argv[3] + "/")}}
times, end = [], time.perf_counter() + 1 + {ROUND_S}
while time.perf_counter() < end or len(times) < 8:
    start = time.perf_counter_ns(); session.run(None, feed); times.append((start, time.perf_counter_ns() - start))
print(np.median([taken for start, taken in times if start > times[0][0] + 1e9]) / 1e6)
"""


def loop(file: Path, feeds: Path, point: str) -> float:
    """Return the median of a plain loop (ms), after a second of warm-up."""
    words = [sys.executable, "-c", LOOP, str(file), str(feeds), point]
    return float(subprocess.run(words, capture_output=True, text=True, check=True).stdout)


def benchmark_app(file: Path, feeds: Path, point: str) -> float:
    """Return the median that benchmark_app prints (ms)."""
    with tempfile.TemporaryDirectory() as scratch:
        given = []
        for name, value in read_feeds(feeds, only={point})[point].items():
            np.save(Path(scratch, f"{name}.npy"), value)
            given.append(f"{name}:{scratch}/{name}.npy")
        shapes = ",".join(f"{n}{list(v.shape)}" for n, v in read_feeds(feeds, only={point})[point].items())
        types = ",".join(f"{n}:{TYPES[v.dtype.name]}" for n, v in read_feeds(feeds, only={point})[point].items())
        words = [
            "-m",
            str(file),
            "-d",
            "CPU",
            "-hint",
            "none",
            "-nstreams",
            "1",
            "-api",
            "sync",
            "-nthreads",
            str(THREADS),
        ]
        words += [
            "-infer_precision",
            "f32",
            "-t",
            f"{ROUND_S:.0f}",
            "-i",
            *given,
            "-iop",  # or it takes pictures as bytes
            types,
            "-data_shape",
            shapes.replace(" ", ""),
        ]
        done = subprocess.run(
            [sys.executable, "-c", BENCHMARK_APP, *words], capture_output=True, text=True, check=False
        )
    found = re.search(r"Median:\s+([\d.]+) ms", done.stdout)
    if not found:
        raise SystemExit(
            f"benchmark_app {' '.join(words)} printed no median:\n{done.stdout[-2000:]}{done.stderr[-2000:]}"
        )
    return float(found[1])


def beside(run: Path, id: str, other: Callable[[Path, Path, str], float]) -> dict[str, Any]:
    """Time a variant through accel and another way in turn; the ratio is accel / the other."""
    record = next(v for v in document.read(run).variants if v.id == id)
    artifact: Artifact = record.to_artifact()
    folder = (run / "variants" / id).resolve()
    sessions = list((run / ".store").glob("measure-*/feeds.npz"))
    if not sessions:
        raise SystemExit(f"{run} was not measured: convert it again, with --bench inprocess")
    feeds = min(sessions, key=lambda path: len(read_feeds(path)))  # the one that timed latency
    point = min(read_feeds(feeds), key=lambda name: int(re.sub(r"\D", "", name) or 0))
    ours, theirs = [], []
    with (
        tempfile.TemporaryDirectory() as scratch,
        Worker(Path(scratch, "log"), threads=THREADS, timeout_s=600) as worker,
    ):
        fitted = Path(scratch, "fitted.npz")  # in the file's own types: the tools convert nothing
        write_feeds(fitted, {point: fit_inputs(read_feeds(feeds, only={point})[point], artifact.built.inputs)})
        worker.call(open_timed, artifact, folder, THREADS, "latency", fitted, (point,))
        worker.call(warm, point, 2.0)
        for _ in range(ROUNDS):
            times = worker.call(time_round, "latency", point, ROUND_S, 4).times_ns
            ours.append(float(np.median(times)) / 1e6)
            theirs.append(other(folder / artifact.built.entry, fitted, point))
    ratio, low, high = ratio_interval(ours, theirs)
    return {"run": run.name, "id": id, "ratio": ratio, "ratio_ci": [low, high], "accel_ms": ours, "other_ms": theirs}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path, nargs="+")
    parser.add_argument("--out", type=Path, default=Path("docs/benchmarks/against_tools.json"))
    asked = parser.parse_args()
    before = json.loads(asked.out.read_text()) if asked.out.exists() else {"hardware": hardware.detect().id, "rows": []}
    if before["hardware"] != hardware.detect().id:
        raise SystemExit(f"{asked.out} is of {before['hardware']}: name another file with --out")
    rows = [row for row in before["rows"] if row["run"] not in {run.name for run in asked.runs}]
    for run in asked.runs:
        for id, name, other in (
            ("openvino-fp32@cpu", "benchmark_app", benchmark_app),
            ("ort@cpu", "a plain loop", loop),
        ):
            rows.append({"other": name} | beside(run, id, other))
            ends = "{:.3f} [{:.3f}, {:.3f}]".format(rows[-1]["ratio"], *rows[-1]["ratio_ci"])
            print(f"{run.name:<14} {id:<18} accel / {name}: {ends}", flush=True)
            asked.out.write_text(json.dumps({"hardware": hardware.detect().id, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
