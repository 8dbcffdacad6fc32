"""The least time that an FP32 build of a model can take here: what its products multiply, at this machine's best speed.

It stays a bound: products of two activations count nothing, a convolution whose kernel has neighbours a quarter of its
multiplications, and a library may be half more as fast as NumPy.
"""

import math
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from accel.core.feeds import Feed

WINOGRAD = 4
"""How many times fewer multiplications a convolution may take. Source: Lavin and Gray, "Fast Algorithms for
Convolutional Neural Networks", CVPR 2016: F(4x4, 3x3), the largest tile in use."""
FASTER = 1.5
"""How many times as fast as NumPy's a library's product may be."""
SIZE, SECONDS = 2048, 1.5
"""Rows and columns of the matrices that are multiplied to find the speed, and for how long they are."""


@dataclass(frozen=True, slots=True)
class Arithmetic:
    """What a model multiplies, and how fast this machine does it.

    Attributes:
        item_flops: floating-point operations of the products with weights, for a batch item, at least.
        flops_per_s: of the fastest of many large FP32 products.
    """

    item_flops: float
    flops_per_s: float

    @property
    def least_ms(self) -> float:
        """What no FP32 build undercuts, for a batch item."""
        return 1e3 * self.item_flops / (FASTER * self.flops_per_s)

    def __str__(self) -> str:
        return (
            f"in FP32 the {self.item_flops / 1e9:.3g} GFLOP of products in an item take at least {self.least_ms:.3g} "
            f"ms here, at {FASTER:g} times the {self.flops_per_s / 1e9:.3g} GFLOP/s that NumPy reaches"
        )


def measure(path: Path, feed: Feed, *, batch: int, scratch: Path, threads: int) -> Arithmetic:
    """Count what a file multiplies on a feed of ``batch`` items, and time this machine.

    Args:
        scratch: folder for a copy of the file.

    Raises:
        InputError, SampleError, StageError: as ``measured.measure_ranges``.
    """
    from accel.graph import measured, passes, qdq  # what names this module need not have onnx

    with tempfile.TemporaryDirectory(dir=scratch) as folder:
        copy = Path(folder) / "plain.onnx"
        model = qdq.load(path)
        made = {str(node.name): str(node.outputs[0].name) for node in model.graph}
        found = {made[p.node]: p for p in qdq.products(model)}
        passes.save(model, copy, data=f"{copy.name}.data")
        sizes = measured.measure_ranges(copy, list(found), [feed], threads=threads) if found else {}
        kernels = {name: model.graph.initializers[p.weight].shape for name, p in found.items() if p.op == "Conv"}
    spread = {name for name, shape in kernels.items() if shape is None or set(shape.numpy()[2:]) != {1}}
    work = (2.0 * sizes[name].size * p.inner / (WINOGRAD if name in spread else 1) for name, p in found.items())
    return Arithmetic(sum(work) / batch, _flops_per_s())


def _flops_per_s() -> float:
    a, b = np.random.default_rng(0).standard_normal((2, SIZE, SIZE), np.float32)
    best, end = math.inf, time.perf_counter() + SECONDS
    while time.perf_counter() < end or best == math.inf:
        begin = time.perf_counter()
        np.matmul(a, b)
        best = min(best, time.perf_counter() - begin)
    return 2.0 * SIZE**3 / best
