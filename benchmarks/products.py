"""How fast each library multiplies large FP32 matrices here: what a third one may gain on the faster of two.

    .venv/bin/python benchmarks/products.py [--rounds 10] -o docs/benchmarks/products.json

``accel/graph/arithmetic.py`` bounds FP32 builds by the faster of OpenVINO's and ONNX Runtime's (MLAS) products;
PyTorch's (MKL) and NumPy's (OpenBLAS) stand beside them. All take turns, in a new order each round; the figure of a
turn is its fastest product. Nothing else may run meanwhile.
"""

import argparse
import json
import math
import os
import random
import statistics
import time
from collections.abc import Callable
from pathlib import Path

THREADS = 2
os.environ |= {"OMP_NUM_THREADS": str(THREADS), "MKL_NUM_THREADS": str(THREADS), "OMP_WAIT_POLICY": "PASSIVE"}

import numpy as np  # noqa: E402
import onnx  # noqa: E402
import onnxruntime as ort  # noqa: E402
import openvino as ov  # noqa: E402
import torch  # noqa: E402
from onnx import helper  # noqa: E402

from accel.core import hardware  # noqa: E402

SIZES, TURN_S = (512, 1024, 2048), 0.3
IDLE_S = 0.15
"""How long the threads of OpenBLAS spin after a product, at most: 0.12 s of CPU time were seen."""


def libraries(size: int) -> dict[str, Callable[[], object]]:
    """Return a product of ``size`` rows and columns by each library, with its right side constant where it can be."""
    a, b = np.random.default_rng(0).standard_normal((2, size, size), np.float32)
    node = helper.make_node("MatMul", ["a", "b"], ["c"])
    ends = [[helper.make_tensor_value_info(name, 1, [size, size])] for name in "ac"]
    graph = helper.make_graph([node], "product", *ends, [onnx.numpy_helper.from_array(b, "b")])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10).SerializeToString()
    options = ort.SessionOptions()
    options.intra_op_num_threads = THREADS
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    session = ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    settings = {"INFERENCE_NUM_THREADS": THREADS, "INFERENCE_PRECISION_HINT": "f32", "PERFORMANCE_HINT": "LATENCY"}
    request = ov.Core().compile_model(ov.Core().read_model(model), "CPU", settings).create_infer_request()
    request.set_input_tensor(ov.Tensor(a))
    left, right, out = torch.from_numpy(a), torch.from_numpy(b), torch.empty(size, size)
    return {
        "numpy": lambda: np.matmul(a, b),
        "openvino": request.infer,
        "onnxruntime": lambda: session.run(None, {"a": a}),
        "torch": lambda: torch.mm(left, right, out=out),
    }


def fastest_s(multiply: Callable[[], object]) -> float:
    """Return the shortest time of a product made for a turn."""
    best, end = math.inf, time.perf_counter() + TURN_S
    while time.perf_counter() < end:
        begin = time.perf_counter()
        multiply()
        best = min(best, time.perf_counter() - begin)
    return best


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("-o", "--out", type=Path, required=True)
    asked = parser.parse_args()
    torch.set_num_threads(THREADS)
    made = {(name, size): multiply for size in SIZES for name, multiply in libraries(size).items()}
    found: dict[tuple[str, int], list[float]] = {one: [] for one in made}
    for number in range(asked.rounds):
        for name, size in random.Random(number).sample(list(made), len(made)):
            made[name, size]()
            found[name, size].append(2.0 * size**3 / fastest_s(made[name, size]) / 1e9)
            time.sleep(IDLE_S)
    rows = [{"library": name, "size": size, "gflops_per_s": speeds} for (name, size), speeds in found.items()]
    for row in rows:
        speeds = row["gflops_per_s"]
        print(f"{row['library']:<12} {row['size']:>5} best {max(speeds):5.0f}, median {statistics.median(speeds):5.0f}")
    machine = hardware.detect()
    asked.out.write_text(json.dumps({"machine": machine.id, "threads": THREADS, "rows": rows}) + "\n")


if __name__ == "__main__":
    main()
