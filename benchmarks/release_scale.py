"""What grows with the number of models of a release: files, bytes, requests, and CPU time of everything but converting.

    python benchmarks/release_scale.py -o docs/benchmarks/release_scale.json --models 10 100 1000 3000

One small model is converted for real, to two targets. The others of each release are that one under other names: their
records are written, their run directories are links to its run. Each size is a process of its own. The object store
is fsspec's in memory, so that requests are counted and no network is timed. Seconds are CPU seconds of that process.
Releases are put together up to 1,000 models and stored up to 100; larger ones are read and planned. A release file
is refused above 20,000 values, which is some 3,300 models with a source and samples.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import yaml

from accel.core import hardware
from accel.core.errors import AccelError
from accel.release import building, document, planning, release_file
from accel.release.object_store import ObjectStore
from accel.release.shared import SharedStore

ASSEMBLED, STORED = 1000, 100
NAMES = ("release.json", "index.html", "report.md", "provenance.json", "bom.cdx.json")


class Counted(ObjectStore):
    """An object store that counts what is asked of it; a listing takes a request for each thousand names."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.asked: Counter[str] = Counter()

    def names(self, folder: str) -> list[str]:
        found = super().names(folder)
        self.asked["list"] += 1 + len(found) // 1000
        return found

    def read(self, name: str) -> bytes:
        found = super().read(name)
        self.asked["read"] += 1
        self.asked["read_bytes"] += len(found)
        return found

    def write(self, name: str, content: bytes) -> None:
        self.asked["written"] += 1
        self.asked["written_bytes"] += len(content)
        super().write(name, content)

    def upload(self, source: Path, name: str) -> None:
        self.asked["content"] += 1
        self.asked["content_bytes"] += source.stat().st_size
        super().upload(source, name)


MODEL = '<ir_version: 10, opset_import: ["" : 18]> m (float[batch, 8] x) => (float[batch, 8] y) { y = Tanh(x) }'


def write_release(folder: Path, model: Path, count: int) -> Path:
    """Write a release file of one pool, two targets and that many models."""
    source = {"source": str(model), "samples": str(model.with_suffix(".npz"))}
    file = {
        "release": "1",
        "defaults": {"objective": "latency", "rounds": 2, "round_s": 0.02, "threads": 1, "max_shape": "x:4x8"},
        "pools": {"here": {"device": "cpu", "targets": ["ort", "openvino-fp32"]}},
        "models": {f"m{number}": source for number in range(count)},
    }
    path = folder / f"{count}.yaml"
    path.write_text(yaml.safe_dump(file))
    return path


def timed(found: dict[str, Any], name: str, work: Callable[[], Any]) -> Any:
    """Call ``work``, and note its CPU seconds."""
    begin = time.process_time()
    result = work()
    found[name] = round(time.process_time() - begin, 3)
    return result


def measure(folder: Path, count: int) -> dict[str, Any]:
    """Measure one size, in a store whose first model was converted."""
    found: dict[str, Any] = {"models": count}
    file, store, machine = write_release(folder, folder / "m.onnx", count), folder / "store", hardware.detect()
    found["release_yaml_bytes"] = file.stat().st_size
    plan = timed(found, "read_release_yaml_s", lambda: release_file.read(file))
    runs = store / planning.RUNS / machine.id
    first = planning.read_record(runs, "m0")
    assert first is not None
    for asked in plan.models[1:]:
        run = runs / planning.run_name(asked)
        if not run.exists():
            run.symlink_to(runs / first.run)
        record = planning.ConversionRecord(planning.asked_key(asked), first.made_with, run.name, first.wall_s)
        planning.write_record(runs, asked.name, record)
    steps = timed(found, "plan_s", lambda: list(planning.steps(plan, store, machine)))
    assert {s.doing for s in steps} == {"reuse"}, steps[:2]
    if count > ASSEMBLED:
        return found
    timed(found, "assemble_s", lambda: building.build(plan, store))
    root = store / "1"
    release = timed(found, "read_release_json_s", lambda: document.read(root))
    found["release_files"] = len(release.files) + 1
    found["release_bytes"] = sum(f.bytes for f in release.files)
    found |= {f"{name}_bytes": (root / name).stat().st_size for name in NAMES}
    timed(found, "build_again_s", lambda: building.build(plan, store))
    found["peak_rss_mib"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    if count > STORED:
        return found
    place = Counted(f"memory://{count}")
    shared = SharedStore(place, store)
    timed(found, "push_runs_s", lambda: [shared.push(asked.name, machine.id) for asked in plan.models])
    found["push"] = dict(place.asked)
    place.asked.clear()
    timed(found, "pull_nothing_new_s", lambda: shared.pull(plan))
    found["pull"] = dict(place.asked)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", type=int, nargs="+", default=[10, 100, 1000, 3000])
    parser.add_argument("--in-folder", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("-o", "--out", type=Path)
    args = parser.parse_args()
    if args.in_folder:
        print(json.dumps(measure(args.in_folder, *args.models)))
        return
    with tempfile.TemporaryDirectory(prefix="release-scale-") as scratch:
        folder = Path(scratch)
        onnx.save(onnx.parser.parse_model(MODEL), folder / "m.onnx")
        np.savez(folder / "m.npz", x=np.random.default_rng(0).standard_normal((400, 8)).astype(np.float32))
        try:
            building.build(release_file.read(write_release(folder, folder / "m.onnx", 1)), folder / "store")
        except AccelError as error:
            raise SystemExit(str(error)) from error
        (run,) = (folder / "store" / planning.RUNS).glob("*/m0-*")
        found = {"run_files": sum(len(names) for _, _, names in os.walk(run)), "sizes": []}
        for count in args.models:
            line = [sys.executable, __file__, "--in-folder", scratch, "--models", str(count)]
            done = subprocess.run(line, check=True, stdout=subprocess.PIPE, text=True)
            found["sizes"].append(json.loads(done.stdout))
            print(done.stdout.strip(), file=sys.stderr)
    text = json.dumps(found, indent=1) + "\n"
    args.out.write_text(text) if args.out else print(text)


if __name__ == "__main__":
    main()
