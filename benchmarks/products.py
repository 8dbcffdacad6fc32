"""How fast each library multiplies large FP32 matrices here: what a third one may gain on the faster of two.

    .venv/bin/python benchmarks/products.py [--rounds 10] -o docs/benchmarks/products.json

``accel/graph/arithmetic.py`` bounds FP32 builds by the faster of OpenVINO's and ONNX Runtime's (MLAS) products;
PyTorch's (MKL) and NumPy's (OpenBLAS) stand beside them. All take turns, in a new order each round; the figure of a
turn is its fastest product. Nothing else may run meanwhile.
"""

import argparse
import json
import os
import random
import statistics
import time
from collections.abc import Callable
from pathlib import Path

THREADS = 2
os.environ |= {"OMP_NUM_THREADS": str(THREADS), "MKL_NUM_THREADS": str(THREADS), "OMP_WAIT_POLICY": "PASSIVE"}

import numpy as np  # noqa: E402
import torch  # noqa: E402

from accel.core import hardware  # noqa: E402
from accel.graph import arithmetic  # noqa: E402

SIZES, TURN_S = (512, 1024, 2048), 0.3
IDLE_S = 0.15
"""How long the threads of OpenBLAS spin after a product, at most: 0.12 s of CPU time were seen."""


def libraries(size: int) -> dict[str, Callable[[], object]]:
    """Return a product of ``size`` rows and columns by each library, with its right side constant where it can be."""
    a, b = np.random.default_rng(0).standard_normal((2, size, size), np.float32)
    openvino, onnxruntime = arithmetic.products(size, THREADS)
    left, right, out = torch.from_numpy(a), torch.from_numpy(b), torch.empty(size, size)
    return {
        "numpy": lambda: np.matmul(a, b),
        "openvino": openvino,
        "onnxruntime": onnxruntime,
        "torch": lambda: torch.mm(left, right, out=out),
    }


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
            found[name, size].append(2.0 * size**3 / arithmetic.fastest_s(made[name, size], TURN_S) / 1e9)
            time.sleep(IDLE_S)
    rows = [{"library": name, "size": size, "gflops_per_s": speeds} for (name, size), speeds in found.items()]
    for row in rows:
        speeds = row["gflops_per_s"]
        print(f"{row['library']:<12} {row['size']:>5} best {max(speeds):5.0f}, median {statistics.median(speeds):5.0f}")
    machine = hardware.detect()
    asked.out.write_text(json.dumps({"machine": machine.id, "threads": THREADS, "rows": rows}) + "\n")


if __name__ == "__main__":
    main()
