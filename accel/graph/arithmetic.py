"""The least time that an FP32 build of a model can take here: what its products multiply, at this machine's best speed.

It stays a bound: products of two activations count nothing, a convolution whose kernel has neighbours a quarter of its
multiplications, and a library may be a fifth faster than the faster of two at what suits them best, large matrices.
"""

import functools
import math
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from accel.core.feeds import Feed

WINOGRAD = 4
"""How many times fewer multiplications a convolution may take. Source: Lavin and Gray, "Fast Algorithms for
Convolutional Neural Networks", CVPR 2016: F(4x4, 3x3), the largest tile in use."""
FASTER = 1.2
"""How many times as fast as the faster of two libraries, each with code of its own, a third one's product may be: of
four, at any size, the fastest was 7 % faster (benchmarks/products.py)."""
SIZES, SECONDS = (1024, 2048), 1.5
"""Rows and columns of the matrices that are multiplied to find the speed, for few cores and for many; and for how long
they are."""
IDLE_S = 0.15
"""How long the threads of OpenBLAS, which NumPy's wheels hold, spin after a product: 0.12 s of CPU time were seen."""


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
            f"ms here, at {FASTER:g} times the {self.flops_per_s / 1e9:.3g} GFLOP/s of large products"
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
    return Arithmetic(sum(work) / batch, flops_per_s(SECONDS, threads))


def flops_per_s(seconds: float, threads: int) -> float:
    """Return the speed of the fastest of large FP32 products that OpenVINO and NumPy make in so long together.

    Their threads rest when it returns. NumPy's are as many as the process's environment says.
    """
    products = _products(threads)
    best = max(2.0 * size**3 / _fastest_s(multiply, seconds / len(products)) for size, multiply in products)
    time.sleep(IDLE_S)
    return best


def _fastest_s(multiply: Callable[[], object], seconds: float) -> float:
    best, end = math.inf, time.perf_counter() + seconds
    while time.perf_counter() < end or best == math.inf:
        begin = time.perf_counter()
        multiply()
        best = min(best, time.perf_counter() - begin)
    return best


@functools.cache
def _products(threads: int) -> list[tuple[int, Callable[[], object]]]:
    """Return the sizes and products of each library; NumPy's, whose threads spin, come last."""
    import openvino as ov
    from openvino import opset13 as ops

    settings = {"INFERENCE_NUM_THREADS": threads, "INFERENCE_PRECISION_HINT": "f32", "PERFORMANCE_HINT": "LATENCY"}
    made: tuple[list[tuple[int, Callable[[], object]]], ...] = ([], [])
    for size in SIZES:
        a, b = np.random.default_rng(0).standard_normal((2, size, size), np.float32)
        given = ops.parameter([size, size], np.float32)
        model = ov.Model([ops.matmul(given, ops.constant(b), False, False)], [given])
        request = ov.Core().compile_model(model, "CPU", settings).create_infer_request()
        request.set_input_tensor(ov.Tensor(a))
        made[0].append((size, request.infer))
        made[1].append((size, functools.partial(np.matmul, a, b)))
    return [*made[0], *made[1]]
