"""How much of the time of accel's INT8 of MiniLM is the pooling that the other tools leave to their caller.

    python -m benchmarks.peers.pooling WORK/minilm -o docs/benchmarks/peers_pooling.json

WORK is that of ``benchmarks.peers``, which leaves there what each tool made. The static INT8 files for OpenVINO, and
accel's once more up to its last hidden state, are compiled with the same settings and timed in turns, a round each, in
one process, without copies of outputs. Run it on a quiet machine.
"""

import argparse
import json
from functools import partial
from pathlib import Path
from typing import Any

import openvino as ov

from accel.bench.stability import ratio_interval
from accel.core import hardware
from accel.core.feeds import read_feeds
from benchmarks.other_kernels import built, in_turns, timer
from benchmarks.peers.tools import OURS, TOOLS

POINTS = ("batch 1", "batch 8")
CUT = f"{OURS.name}, without its pooling"


def files(work: Path) -> dict[str, Path]:
    """Return the static INT8 file of each tool that made one for OpenVINO, and accel's."""
    found = {
        tool.name: path
        for tool in TOOLS
        for number, make in enumerate(tool.makes.get("minilm", ()))
        if "static" in make.label
        for _, role, path in make.found(work / tool.name / str(number))
        if role == "openvino"
    }
    if (own := built(work / OURS.name / "0" / "run", "openvino-int8")) is None:
        raise SystemExit(f"{work} has no openvino-int8 of accel: python -m benchmarks.peers makes it")
    artifact, folder = own
    return {**found, OURS.name: folder / artifact.built.entry}


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
    core, made = ov.Core(), files(asked.work)
    models = {name: core.read_model(path) for name, path in made.items()}
    models[CUT] = without_pooling(core.read_model(made[OURS.name]))
    settings = {"PERFORMANCE_HINT": "LATENCY", "INFERENCE_NUM_THREADS": hardware.cpu_threads()}
    requests = {name: core.compile_model(m, "CPU", settings).create_infer_request() for name, m in models.items()}
    calls = {name: partial(request.infer, share_outputs=True) for name, request in requests.items()}
    feeds = read_feeds(asked.work / "feeds.npz")
    told: dict[str, Any] = {"hardware": hardware.detect().id, "openvino": ov.get_version(), "rounds_ms": {}}
    told["over_accel_without_pooling"] = {}
    for point in POINTS:
        rounds = in_turns({name: timer(call, feeds[point]) for name, call in calls.items()})
        told["rounds_ms"][point] = rounds
        told["over_accel_without_pooling"][point] = {
            name: list(ratio_interval(taken, rounds[CUT])) for name, taken in rounds.items() if name != CUT
        }
    asked.out.write_text(json.dumps(told, indent=1) + "\n")
    print(json.dumps(told["over_accel_without_pooling"], indent=1))


if __name__ == "__main__":
    main()
