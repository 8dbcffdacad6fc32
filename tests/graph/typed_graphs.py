"""Small graphs with planted faults, and what runs them."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from accel.graph import evaluate

FLOAT = TensorProto.FLOAT


def save(
    path: Path,
    nodes: Sequence[onnx.NodeProto],
    constants: Mapping[str, np.ndarray],
    *,
    inputs: Mapping[str, tuple[int, list[object]]],
    outputs: Mapping[str, tuple[int, list[object]]],
    opset: int = 18,
    ir_version: int = 9,
) -> Path:
    """Write a graph; inputs and outputs as name → (element type, dims)."""
    graph = helper.make_graph(
        list(nodes),
        "g",
        [helper.make_tensor_value_info(n, *v) for n, v in inputs.items()],
        [helper.make_tensor_value_info(n, *v) for n, v in outputs.items()],
        [numpy_helper.from_array(v, n) for n, v in constants.items()],
    )
    domains = sorted({n.domain for n in nodes if n.domain} | {""})
    imports = [helper.make_opsetid(d, opset if not d else 1) for d in domains]
    onnx.save(helper.make_model(graph, opset_imports=imports, ir_version=ir_version), path)
    return path


def answers(path: Path, feed: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    """Run a file on the CPU, Q/DQ pairs as written."""
    return evaluate.open_light(path, 1).run(None, dict(feed))


def sqnr_db(truth: np.ndarray, found: np.ndarray) -> float:
    """Return the centred SQNR in dB; minus infinity where a value is not finite."""
    truth, found = truth.astype(np.float64), found.astype(np.float64)
    if not np.isfinite(found).all():
        return -np.inf
    signal, noise = np.square(truth - truth.mean(axis=0)).sum(), np.square(found - truth).sum()
    return float(10 * np.log10(signal / max(noise, 1e-30)))


def unmasked_db(source: Path, other: Path, feeds: Sequence[Mapping[str, np.ndarray]]) -> float:
    """Return the SQNR of the first output over the unmasked positions of all feeds, each file opened once."""
    rows: tuple[list[np.ndarray], list[np.ndarray]] = ([], [])
    for path, kept in zip((source, other), rows, strict=True):
        session = evaluate.open_light(path, 1)
        for feed in feeds:
            kept.append(session.run(None, dict(feed))[0][feed["attention_mask"].astype(bool)])
    return sqnr_db(np.concatenate(rows[0]), np.concatenate(rows[1]))


def overflowing(path: Path) -> Path:
    """Write four branches over ``x`` (batch, 16): only the first stays inside FP16's range.

    ``clean``: a product. ``loud``: its inner values reach some 1e6 and come back. ``heavy``: a weight of 1e5 meets an
    input that is 0 but for noise. ``squares``: values near 400, whose squares a LayerNormalization sums.
    """
    random = np.random.default_rng(0)
    weight = random.standard_normal((16, 16)).astype(np.float32) / 4
    heavy = weight.copy()
    heavy[0, 0] = 1e5
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["clean"], "clean_product"),
        helper.make_node("Mul", ["clean", "up"], ["louder"], "louder"),
        helper.make_node("Mul", ["louder", "up"], ["loud_up"], "loud_up"),
        helper.make_node("MatMul", ["loud_up", "w2"], ["loud_product"], "loud_product"),
        helper.make_node("Mul", ["loud_product", "down"], ["softer"], "loud_down"),
        helper.make_node("Mul", ["softer", "down"], ["loud"], "softer"),
        helper.make_node("Mul", ["x", "tiny"], ["small"], "small"),
        helper.make_node("MatMul", ["small", "heavy_w"], ["heavy"], "heavy_product"),
        helper.make_node("Mul", ["x", "hundred"], ["wide"], "widen"),
        helper.make_node("LayerNormalization", ["wide", "ones", "zeros"], ["squares"], "norm"),
    ]
    constants = {
        "w": weight,
        "w2": random.standard_normal((16, 16)).astype(np.float32) / 4,
        "heavy_w": heavy,
        "up": np.array(600.0, np.float32),
        "down": np.array(1 / 600, np.float32),
        "tiny": np.array(1e-3, np.float32),
        "hundred": np.array(100.0, np.float32),
        "ones": np.ones(16, np.float32),
        "zeros": np.zeros(16, np.float32),
    }
    outputs = {n: (FLOAT, ["batch", 16]) for n in ("clean", "loud", "heavy", "squares")}
    return save(path, nodes, constants, inputs={"x": (FLOAT, ["batch", 16])}, outputs=outputs)


def feeds(count: int = 4, width: int = 16) -> list[dict[str, np.ndarray]]:
    """Return batches of three rows for ``x``."""
    random = np.random.default_rng(1)
    return [{"x": random.standard_normal((3, width)).astype(np.float32)} for _ in range(count)]
