"""How much of the time of accel's INT8 of MiniLM is the pooling that the other tools leave to their caller.

    python -m benchmarks.peers.pooling WORK/minilm -o docs/benchmarks/peers_pooling.json

WORK is that of ``benchmarks.peers``, which leaves there what each tool made. The three INT8 files for OpenVINO, and
accel's once more up to its last hidden state, are compiled with the same settings and timed in turns, a round each, in
one process, without copies of outputs. Run it on a quiet machine.
"""

import argparse
import json
import random
import statistics
import time
from pathlib import Path
from typing import Any

import openvino as ov

from accel.bench.stability import ratio_interval
from accel.core import document, hardware
from accel.core.feeds import read_feeds

ROUNDS, ROUND_S = 24, 0.4
POINTS = ("batch 1", "batch 8")
OURS, CUT = "accel", "accel, without its pooling"
THEIRS = {
    "optimum-intel": "optimum-intel/2/openvino_model.xml",
    "sentence-transformers": "sentence-transformers/4/openvino/openvino_model_qint8_quantized.xml",
}


def without_pooling(model: ov.Model) -> ov.Model:
    """Return the model up to its last layer norm, whose output is the last hidden state."""
    hidden = [
        op for op in model.get_ordered_ops() if op.get_type_name() == "Add" and op.output(0).partial_shape.rank == 3
    ]
    return ov.Model([hidden[-1].output(0)], model.get_parameters(), "hidden")


def main() -> None:
    """Time all, and write JSON."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("work", type=Path)
    parser.add_argument("-o", "--out", type=Path, required=True)
    asked = parser.parse_args()
    core, run = ov.Core(), asked.work / "accel" / "0" / "run"
    built = next(v for v in document.read(run).variants if v.id == "openvino-int8@cpu").to_artifact()
    file = run / "variants" / "openvino-int8@cpu" / built.built.entry
    models = {name: core.read_model(asked.work / path) for name, path in THEIRS.items()}
    models |= {OURS: core.read_model(file), CUT: without_pooling(core.read_model(file))}
    settings = {"PERFORMANCE_HINT": "LATENCY", "INFERENCE_NUM_THREADS": hardware.cpu_threads()}
    requests = {name: core.compile_model(m, "CPU", settings).create_infer_request() for name, m in models.items()}
    feeds = read_feeds(asked.work / "feeds.npz")
    rounds: dict[str, dict[str, list[float]]] = {point: {name: [] for name in requests} for point in POINTS}
    for number in range(ROUNDS + 1):
        turns = [(point, name) for point in POINTS for name in requests]
        random.Random(number).shuffle(turns)
        for point, name in turns:
            feed, taken, end = feeds[point], [], time.perf_counter() + ROUND_S
            while time.perf_counter() < end:
                begin = time.perf_counter()
                requests[name].infer(feed, share_outputs=True)
                taken.append((time.perf_counter() - begin) * 1e3)
            if number:
                rounds[point][name].append(statistics.median(taken))
    told: dict[str, Any] = {"hardware": hardware.detect().id, "openvino": ov.get_version(), "rounds_ms": rounds}
    told["over_accel_without_pooling"] = {
        point: {name: list(ratio_interval(taken, found[CUT])) for name, taken in found.items() if name != CUT}
        for point, found in rounds.items()
    }
    asked.out.write_text(json.dumps(told, indent=1) + "\n")
    print(json.dumps(told["over_accel_without_pooling"], indent=1))


if __name__ == "__main__":
    main()
