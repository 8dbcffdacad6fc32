"""Record what noise does to rounds of one and the same artifact: the material of tests/bench/test_race.py.

    python benchmarks/noise.py OUT.npz [--rounds N] [--columns K]

K processes hold the same workload, products of matrices as large as a small model's in ONNX Runtime, and take turns in
rounds as variants do. Settings: ``quiet``; ``half_core``, a neighbour that works and sleeps for 0.2 to 2 s at random;
``lowest_priority``, one that always works at nice 19. Each becomes an array (rounds, K) of ms. Nothing else may run.
"""

import argparse
import random
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper

CALLS_S = 0.25
HALF_CORE = """
import os, random, time
parent = os.getppid()
while os.getppid() == parent:
    end = time.time() + random.uniform(.2, 2)
    while time.time() < end: pass
    time.sleep(random.uniform(.2, 2))
"""
LOWEST_PRIORITY = """
import os
os.nice(19)
parent = os.getppid()
while os.getppid() == parent:
    for _ in range(1_000_000): pass
"""
"""Each ends with the process that started it."""
NEIGHBOURS = {"quiet": None, "half_core": HALF_CORE, "lowest_priority": LOWEST_PRIORITY}
TIMED = f"""
import sys, time, numpy as np, onnxruntime as ort
options = ort.SessionOptions(); options.intra_op_num_threads = 2
session = ort.InferenceSession(sys.argv[1], options)
feed = {{"x": np.random.default_rng(0).standard_normal((64, 384), np.float32)}}
session.run(None, feed)
for _ in sys.stdin:
    times, end = [], time.perf_counter() + {CALLS_S}
    while time.perf_counter() < end or len(times) < 3:
        start = time.perf_counter(); session.run(None, feed); times.append(time.perf_counter() - start)
    print(np.median(times) * 1e3, flush=True)
"""


def model(path: Path) -> None:
    """Write sixteen products of (64, 384) by (384, 384)."""
    weights = np.random.default_rng(0).standard_normal((16, 384, 384), np.float32) / 20
    nodes, held = [], []
    for i, w in enumerate(weights):
        held.append(onnx.numpy_helper.from_array(w, f"w{i}"))
        nodes.append(helper.make_node("MatMul", ["x" if i == 0 else f"h{i - 1}", f"w{i}"], [f"h{i}"]))
    ends = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [64, 384]) for n in ("x", "h15")]
    graph = helper.make_graph(nodes, "products", [ends[0]], [ends[1]], held)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10), path)


def record(rounds: int, columns: int, neighbour: str | None) -> np.ndarray:
    """Return the ms of a call: (rounds, columns)."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "products.onnx")
        model(file)
        beside = subprocess.Popen([sys.executable, "-c", neighbour]) if neighbour else None
        command = [sys.executable, "-c", TIMED, str(file)]
        pipe = subprocess.PIPE
        processes = [subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) for _ in range(columns)]
        found = np.zeros((rounds, columns))
        try:
            for number in range(rounds):
                for i in random.Random(number).sample(range(columns), columns):
                    asked, answer = processes[i].stdin, processes[i].stdout
                    assert asked is not None
                    assert answer is not None
                    print("go", file=asked, flush=True)
                    found[number, i] = float(answer.readline())
        finally:
            for process in (*processes, *([beside] if beside else [])):
                process.kill()
                process.wait()
        return found


def main() -> None:
    """Record every setting."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--rounds", type=int, default=120)
    parser.add_argument("--columns", type=int, default=4)
    given = parser.parse_args()
    found = {name: record(given.rounds, given.columns, neighbour) for name, neighbour in NEIGHBOURS.items()}
    np.savez_compressed(given.out, **{name: rows.astype(np.float32) for name, rows in found.items()})  # type: ignore[arg-type]
    for name, rows in found.items():
        ratios = np.log(rows[:, 1] / rows[:, 0])
        print(f"{name}: median {np.median(rows):.2f} ms, spread of the log ratio of two {ratios.std():.3f}")


if __name__ == "__main__":
    main()
