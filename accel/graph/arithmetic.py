"""The least time that an FP32 build of a model can take here: what its products multiply, at this machine's best speed.

It stays a bound: products of two activations count nothing, a convolution whose kernel has neighbours a quarter of its
multiplications, and a library may be a fifth faster than the faster of two is at what suits them best, large matrices.
"""

import functools
import math
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from accel.core.feeds import Feed

WINOGRAD = 4
"""How many times fewer multiplications a convolution may take. Source: Lavin and Gray, "Fast Algorithms for
Convolutional Neural Networks", CVPR 2016: F(4x4, 3x3), the largest tile in use."""
FASTER = 1.2
"""How many times as fast as the faster of two libraries, each with code of its own, a third one's product may be: of
four, at any size, the fastest was 7 % faster (benchmarks/products.py)."""
SIZE, FEW_THREADS, LARGER = 1024, 8, 2048
"""Rows and columns of the matrices that are multiplied to find the speed; up to how many threads these are; and those
of the matrices for more, which two cores multiply no faster."""
SECONDS = 1.5
"""How long they are multiplied to find the best moment."""


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

    def at(self, flops_per_s: float) -> "Arithmetic":
        """Return the same at another speed of the machine."""
        return replace(self, flops_per_s=flops_per_s)

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
    """Return the speed of the fastest of large FP32 products; OpenVINO and ONNX Runtime make them for half of the time.

    No thread of theirs spins when it returns.
    """
    size = SIZE if threads <= FEW_THREADS else LARGER
    return 2.0 * size**3 / min(fastest_s(multiply, seconds / 2) for multiply in products(size, threads))


def fastest_s(multiply: Callable[[], object], seconds: float) -> float:
    """Return the shortest time of a call, of those that begin within so many seconds."""
    best, end = math.inf, time.perf_counter() + seconds
    while time.perf_counter() < end or best == math.inf:
        begin = time.perf_counter()
        multiply()
        best = min(best, time.perf_counter() - begin)
    return best


@functools.cache
def products(size: int, threads: int) -> tuple[Callable[[], object], Callable[[], object]]:
    """Return a product of ``size`` rows and columns with constant weights by OpenVINO, and one by ONNX Runtime."""
    import onnx
    import openvino as ov
    from onnx import helper

    from accel.graph import evaluate

    a, b = np.random.default_rng(0).standard_normal((2, size, size), np.float32)
    ends = [[helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [size, size])] for name in "ac"]
    weight = onnx.numpy_helper.from_array(b, "b")
    graph = helper.make_graph([helper.make_node("MatMul", ["a", "b"], ["c"])], "product", *ends, [weight])
    opsets = [helper.make_opsetid("", 18)]
    file = helper.make_model(graph, opset_imports=opsets, ir_version=10).SerializeToString()
    session = evaluate.open_fast(file, threads)
    settings = {"INFERENCE_NUM_THREADS": threads, "INFERENCE_PRECISION_HINT": "f32", "PERFORMANCE_HINT": "LATENCY"}
    core = ov.Core()
    request = core.compile_model(core.read_model(file), "CPU", settings).create_infer_request()
    request.set_input_tensor(ov.Tensor(a))
    return request.infer, lambda: session.run(None, {"a": a})
