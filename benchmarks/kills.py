"""Kill `accel convert` at random moments, go on, and see whether anything is lost, left behind or different.

    python benchmarks/kills.py --kills 100 -o kills.json               # convert
    python benchmarks/kills.py --kills 30 --served -o served.json      # with every repository behind a server

Each run begins in a fresh folder, is killed (SIGKILL to the command alone) up to ``PER_RUN`` times at random moments of
the time that an undisturbed one takes, and is then left to end. After each kill: no worker or server is alive a few
seconds later, whatever it was doing. After each run: every variant is as in the undisturbed run (status, files,
parity), the choice is the same or one of its equivalents (ties, or what either run left undecided: the machine need
not be quiet), `accel verify` finds the chosen repository whole, no file has a temporary name, and the temporary folder
and shared memory hold nothing. Everything is written to the JSON, also what went wrong.
"""

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import psutil

from accel.core import document
from accel.core.values import to_json

SHAPES = ("--min-shape", "ids:1x1", "--shape", "ids:1x5", "--max-shape", "ids:4x9", "--range", "ids=0:49")
PER_RUN = 5
WIDE = 32768
"""Size of the inner layer where INT8 wins for certain."""
LATENCY = ["--objective", "latency", "--rounds", "10", "--round-s", "0.02"]
"""Throughput of three runtimes on a core that others use, too, stays undecided."""
SETTLE_S = 8.0
"""How long processes may take to notice that their parent was killed; a server has longer (its guard waits for it)."""
SERVER_SETTLE_S = 25.0


def write_model(path: Path, inner: int = 256) -> None:
    """Write a small ONNX model: no framework need be imported, so that much of a run's time is accel's own.

    Args:
        inner: size of its inner layer. Where that is large, INT8 takes a fraction of the time of FP32, and what is
            chosen is certain, on a busy machine, too.
    """
    import numpy as np
    from onnx import TensorProto, helper, numpy_helper, save

    rng = np.random.default_rng(0)
    weights = {"table": (50, 64), "first": (64, inner), "second": (inner, 64)}
    nodes = [
        helper.make_node("Gather", ["table", "ids"], ["embedded"]),
        helper.make_node("MatMul", ["embedded", "first"], ["inner"]),
        helper.make_node("Tanh" if inner < WIDE else "Relu", ["inner"], ["active"]),
        helper.make_node("MatMul", ["active", "second"], ["hidden"]),
    ]
    ports = [
        helper.make_tensor_value_info("ids", TensorProto.INT64, ["batch", "seq"]),
        helper.make_tensor_value_info("hidden", TensorProto.FLOAT, ["batch", "seq", 64]),
    ]
    given = [numpy_helper.from_array(rng.normal(size=s).astype(np.float32) / 8, n) for n, s in weights.items()]
    graph = helper.make_graph(nodes, "small", ports[:1], ports[1:], given)
    save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10), path)


def command(model: Path, out: Path, *, served: bool, targets: str | None = None) -> list[str]:
    """Return the command that is killed."""
    targets = targets or ("ort,null" if served else "ort,openvino-fp32,ort-int8-dynamic")
    line = [sys.executable, "-m", "accel", "convert", str(model), "--targets", targets, "-o", str(out), "--quiet"]
    line += [*SHAPES, "--random-samples", "--threads", "1"]
    line += ["--rounds", "3", "--round-s", "0.05", "--bench", "triton"] if served else LATENCY
    return line


def alive(scratch: Path) -> list[str]:
    """Return what still runs of the processes whose temporary files lie below ``scratch``."""
    found = []
    for process in psutil.process_iter():
        try:
            if str(scratch) in process.environ().get("TMPDIR", "") and process.status() != psutil.STATUS_ZOMBIE:
                found.append(f"{process.pid} {' '.join(process.cmdline())[:160]}")
        except psutil.Error:
            continue
    return found


def settle(scratch: Path, limit_s: float) -> list[str]:
    """Wait until nothing runs any more, and return what does at the limit."""
    limit = time.monotonic() + limit_s
    while (left := alive(scratch)) and time.monotonic() < limit:
        time.sleep(0.2)
    return left


def leftovers(out: Path, scratch: Path) -> list[str]:
    """Return files with temporary names, and what lies in the temporary folder and in shared memory."""
    half = [str(p) for p in out.rglob("*") if p.name.startswith("tmp-") or p.name.endswith((".new", ".old"))]
    kept = [
        f"{p}: {[q.relative_to(p).as_posix() for q in p.rglob('*')][:5]}"
        for p in scratch.iterdir()
        if not p.name.startswith("torchinductor_")
    ]
    lines = " ".join(" ".join(p.info["cmdline"] or ()) for p in psutil.process_iter(["cmdline"]))
    shared = [p for p in Path("/dev/shm").glob("accel-*") if p.name[:18] not in lines]  # not of a server that runs
    return half + kept + [str(p) for p in shared if p not in SHARED]


def choices(out: Path) -> dict[str, Any]:
    """Return for each device and objective what was chosen, its ties, and what the measurements left undecided."""
    return {
        f"{d.device}/{d.objective}": {"chosen": d.chosen, "ties": [*d.ties], "undecided": [*d.undecided]}
        for d in document.read(out).decisions
    }


def variants(out: Path) -> list[Any]:
    """Return what a run says of its variants that does not depend on time: status, files and parity."""
    return [
        [v.id, v.status, v.artifact and [f.sha256 for f in v.artifact.files], to_json(v.parity)]
        for v in document.read(out).variants
    ]


def same(one: dict[str, Any], two: dict[str, Any]) -> bool:
    """Say whether two runs chose the same or equivalents, by what either of them found to be so."""
    return one.keys() == two.keys() and all(
        a["chosen"] == b["chosen"]
        or a["chosen"] in [*b["ties"], *b["undecided"]]
        or b["chosen"] in [*a["ties"], *a["undecided"]]
        for a, b in zip(one.values(), two.values(), strict=True)
    )


def campaign(
    kills: int, *, served: bool, seed: int, folder: Path, minutes: float, out: Path, targets: str | None = None
) -> dict[str, Any]:
    """Kill until that many kills were made, or time is up; after each run, write to ``out`` what was found so far."""
    rng, scratch = random.Random(seed), folder / "tmp"
    scratch.mkdir()
    environment = {**os.environ, "TMPDIR": str(scratch), "HF_HUB_OFFLINE": "1"}
    model = folder / "small.onnx"
    write_model(model, inner=256 if served or targets else WIDE)

    def run(out: Path, after_s: float | None) -> tuple[int | None, float]:
        begin = time.monotonic()
        log = (folder / "log").open("ab")
        process = subprocess.Popen(
            command(model, out, served=served, targets=targets), env=environment, stdout=log, stderr=log
        )
        try:
            return process.wait(after_s), time.monotonic() - begin
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
            process.wait()
            return None, time.monotonic() - begin
        finally:
            log.close()

    code, whole_s = run(folder / "undisturbed", None)
    assert code == 0, (folder / "log").read_text()[-3000:]
    expected, expected_variants = choices(folder / "undisturbed"), variants(folder / "undisturbed")
    found: dict[str, Any] = {
        "served": served,
        "seed": seed,
        "undisturbed_s": whole_s,
        "undisturbed": expected,
        "rows": [],
    }
    rows: list[dict[str, Any]] = []
    made, limit = 0, time.monotonic() + 60 * minutes
    while made < kills and time.monotonic() < limit:
        root = folder / f"run{len(rows):03d}"
        row: dict[str, Any] = {"kills_s": [], "alive": []}
        for _ in range(min(PER_RUN, kills - made)):
            code, took_s = run(root, rng.uniform(0.2, whole_s))
            if code is not None:
                break  # it ended before: what was done before is not done again
            made += 1
            row["kills_s"].append(round(took_s, 2))
            row["alive"] += settle(scratch, SERVER_SETTLE_S if served else SETTLE_S)
        row["code"], row["last_s"] = run(root, None)
        row["choices"] = choices(root) if row["code"] == 0 else None
        row["same"] = row["choices"] is not None and same(row["choices"], expected)
        row["same_variants"] = row["code"] == 0 and variants(root) == expected_variants
        verify = [sys.executable, "-m", "accel", "verify", str(root / "best/cpu")]
        row["verified"] = subprocess.run(verify, env=environment, capture_output=True, check=False).returncode == 0
        row["alive_at_the_end"] = settle(scratch, SETTLE_S)
        row["left"] = leftovers(root, scratch)
        rows.append(row)
        write(out, found := found | summary(made, rows))
        right = row["same"] and row["same_variants"] and row["verified"]
        good = right and not (row["alive"] or row["alive_at_the_end"] or row["left"])
        print(f"{made} kills, run {len(rows)}: {'good' if good else row}", flush=True)
    return found


def summary(kills: int, rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Count what the bars are about."""
    decided = [r for r in rows if r["choices"] and not any(c["undecided"] for c in r["choices"].values())]
    return {
        "kills": kills,
        "runs": len(rows),
        "decided": len(decided),
        "same_choice": sum(r["same"] for r in rows),
        "same_variants": sum(r["same_variants"] for r in rows),
        "verified": sum(r["verified"] for r in rows),
        "with_a_process_left": sum(bool(r["alive"] or r["alive_at_the_end"]) for r in rows),
        "with_a_file_left": sum(bool(r["left"]) for r in rows),
        "rows": rows,
    }


def write(path: Path, found: dict[str, Any]) -> None:
    """Write what was found, a row a line."""
    rows = ",\n  ".join(json.dumps(row) for row in found["rows"])
    path.write_text(json.dumps(found | {"rows": "@"}, indent=1).replace('"@"', f"[\n  {rows}\n ]") + "\n")


SHARED = frozenset(Path("/dev/shm").glob("accel-*"))
"""What lay there before."""


def main() -> None:
    """Run the campaign and print its figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--served", action="store_true")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--minutes", type=float, default=120)
    parser.add_argument("-o", "--out", type=Path, required=True)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="kills-") as folder:
        given = {"served": asked.served, "seed": asked.seed, "minutes": asked.minutes, "out": asked.out}
        found = campaign(asked.kills, folder=Path(folder), **given)
    print(json.dumps({k: v for k, v in found.items() if k != "rows"}, indent=1))


if __name__ == "__main__":
    main()
