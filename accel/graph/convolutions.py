"""Static INT8 for networks of convolutions, by ONNX Runtime's own quantiser.

A convolution runs in INT8 only where its input and output are both quantised, so the whole network is quantised at
once; the first and last layers, which carry most of the error, return to float where accuracy asks for it. What comes
after the last product (boxes decoded, scores ranked) stays in float: there a place in the picture would get 8 bits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from accel.core.errors import StageError
from accel.graph.evaluate import open_cpu

Feeds = Sequence[Mapping[str, np.ndarray]]
_PRODUCTS = ("Conv", "MatMul", "Gemm")


def dominate(path: Path) -> bool:
    """Say whether the graph has more convolutions than matrix products."""
    import onnx

    kinds = [n.op_type for n in onnx.load(str(path), load_external_data=False).graph.node]
    return kinds.count("Conv") > kinds.count("MatMul") + kinds.count("Gemm")


def quantize(path: Path, out: Path, feeds: Feeds, *, target_db: float, levels: int) -> dict[str, Any]:
    """Write the model at ``path`` to ``out`` in INT8, leaving as few end layers in float as keep ``target_db``.

    Args:
        feeds: calibration inputs; every fourth is held back from calibration and judges the choice.
        levels: 127, or 63 for weights of a reduced range.

    Returns:
        Facts: ``int8_nodes``, ``conv_nodes``, ``int8_share`` (of nodes), ``held_back_sqnr_db``, ``float_nodes``.

    Raises:
        StageError: the quantiser failed.
    """
    import onnx
    from onnxruntime import quantization as q

    held = [f for i, f in enumerate(feeds) if i % 4 == 3] or list(feeds[-1:])
    seen = [f for i, f in enumerate(feeds) if i % 4 != 3] or list(feeds)
    model = onnx.load(str(path))
    products = [n.name for n in model.graph.node if n.op_type in _PRODUCTS]
    if len(set(products)) != len(products) or "" in products:
        raise StageError(f"{path.name} has products without a name of their own: the quantiser cannot leave one out")
    truth = _answers(path, held)
    ends: tuple[list[str], ...] = ([], products[-1:], [products[0], *products[-1:]], [*products[:4], *products[-2:]])
    tail = _tail(model.graph)
    found, excluded = 0.0, products
    for excluded in ends:
        model = onnx.load(str(path))
        model.graph.ClearField("value_info")
        try:
            q.quantize_static(
                model,
                str(out),
                _Reader(seen),
                quant_format=q.QuantFormat.QDQ,
                activation_type=q.QuantType.QUInt8,
                weight_type=q.QuantType.QInt8,
                per_channel=True,
                reduce_range=levels < 127,
                nodes_to_exclude=[*excluded, *tail],
                use_external_data_format=True,
                extra_options={"DefaultTensorType": onnx.TensorProto.FLOAT},
            )
        except (RuntimeError, ValueError, KeyError) as error:
            raise StageError(f"onnxruntime could not quantise {path.name}: {error}") from error
        found = _worst_db(truth, _answers(out, held))
        if found >= target_db:
            break
    return {
        "int8_nodes": len(products) - len(set(excluded)),
        "product_nodes": len(products),
        "int8_share": 1 - len(set(excluded)) / len(products),
        "held_back_sqnr_db": found,
        "float_nodes": sorted(set(excluded)),
    }


def _tail(graph: Any) -> list[str]:
    """List the nodes from which no product can be reached any more."""
    wanted: set[str] = set()
    names = []
    for node in reversed(graph.node):
        if node.op_type in _PRODUCTS or wanted.intersection(node.output):
            wanted.update(node.input)
        elif node.name:
            names.append(node.name)
    return names


class _Reader:
    """What ONNX Runtime's calibration asks for its next feed."""

    def __init__(self, feeds: Feeds) -> None:
        self._feeds = feeds
        self.rewind()

    def rewind(self) -> None:
        self._next = iter(self._feeds)

    def get_next(self) -> dict[str, np.ndarray] | None:
        feed = next(self._next, None)
        return None if feed is None else dict(feed)


def _answers(path: Path, feeds: Feeds) -> list[np.ndarray]:
    """Return each output of all feeds as float64 (items, …); as (positions, last axis) where feeds differ in size."""
    session = open_cpu(path, 0)
    runs = [session.run(None, dict(feed)) for feed in feeds]
    joined = []
    for parts in zip(*runs, strict=True):
        alike = len({p.shape[1:] for p in parts}) == 1
        joined.append(np.concatenate([p if alike else p.reshape(-1, p.shape[-1]) for p in parts]).astype(np.float64))
    return joined


def _worst_db(truth: Sequence[np.ndarray], found: Sequence[np.ndarray]) -> float:
    values = []
    for t, f in zip(truth, found, strict=True):
        signal, noise = np.square(t - t.mean(axis=0)).sum(), np.square(f - t).sum()
        values.append(10 * float(np.log10(max(signal, 1e-30) / max(noise, 1e-30))))
    return min(values)
