"""Hold the scales of a quantised file against the values that really pass through them.

The rules in ``network_rules`` see that a scale is positive and has the right shape, not whether it is right. Here the
file runs on real samples, and each Q/DQ pair is asked how many values it cuts off and how much of its range stays
unused.
"""

import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from accel.builders.tensorrt.network_rules import QUANTISATION, BrokenRule
from accel.core.errors import SampleError
from accel.core.feeds import Feed
from accel.graph import fp16, measured

MOST_CUT = 0.01
"""Share of an activation's values that may be cut by more than ``CUT_BY``; a calibrated range leaves a hundredth."""
CUT_BY = 1.25
"""How far beyond the range a value lies that counts as cut off: errors upstream move values by some per cent."""
LEAST_USED = 0.1
"""Share of the range that the largest value must reach; below it, three of eight bits are idle."""
WEIGHT_CUT = 0.95
"""Share of a channel's largest weight that its scale must cover."""


def check_scales(path: Path, feeds: Sequence[Feed], *, threads: int = 0) -> tuple[BrokenRule, ...]:
    """Return one finding for each Q/DQ pair whose scale does not fit what it scales.

    Args:
        path: a file with constant scales and zero-points of 0, as ``network_rules.check`` wants them.
        feeds: real samples by input name.

    Raises:
        SampleError: there are no feeds, or one does not fit the model.
        InputError, StageError: the file cannot be typed or run.
    """
    import onnx

    if not feeds:
        raise SampleError("there are no samples: scales cannot be checked", fix="give them with --samples FILE")
    with tempfile.TemporaryDirectory(prefix="accel-scales-") as name:
        plain = Path(name) / "plain.onnx"
        fp16.emulate(path, plain)
        model = onnx.load(str(plain))
        constants = {t.name: t for t in model.graph.initializer}
        pairs = [n for n in model.graph.node if n.op_type == "QuantizeLinear"]
        found = []
        activations: dict[str, tuple[str, float]] = {}
        for node in pairs:
            scale = onnx.numpy_helper.to_array(constants[node.input[1]]).astype(np.float64)
            largest = _largest(constants[node.input[2]].data_type)
            if node.input[0] in constants:
                weight = onnx.numpy_helper.to_array(constants[node.input[0]])
                axis = next((a.i for a in node.attribute if a.name == "axis"), 1)
                found += list(_weight(node, weight, scale * largest, axis))
            else:
                activations[node.input[0]] = (node.name or node.output[0], float(scale) * largest)
        del model
        ranges = measured.measure_ranges(plain, list(activations), feeds, threads=threads)
        seen = dict.fromkeys(activations, 0)
        cut = dict.fromkeys(activations, 0)
        for _, tensor, value in measured.fetch(plain, ranges, feeds, threads=threads):
            seen[tensor] += value.size
            cut[tensor] += int((np.abs(value) > activations[tensor][1] * CUT_BY).sum())
        for tensor, (node_name, reach) in activations.items():
            found += list(_activation(node_name, tensor, ranges[tensor].largest, reach, cut[tensor] / seen[tensor]))
    return tuple(found)


def _largest(kind: int) -> float:
    import onnx

    return 448.0 if kind == onnx.TensorProto.FLOAT8E4M3FN else 127.0


def _activation(node: str, tensor: str, largest: float, reach: float, cut: float) -> Iterator[BrokenRule]:
    if cut > MOST_CUT:
        yield _finding(node, f"the scale of {tensor!r} reaches {reach:.4g} and cuts {cut:.1%} of its values off")
    elif largest < LEAST_USED * reach:
        yield _finding(node, f"the scale of {tensor!r} reaches {reach:.4g}, and its values only {largest:.4g}")


def _weight(node: object, weight: np.ndarray, reach: np.ndarray, axis: int) -> Iterator[BrokenRule]:
    name = getattr(node, "name", "")
    others = tuple(a for a in range(weight.ndim) if a != axis % weight.ndim)
    largest = np.abs(weight).max(axis=others if reach.ndim else None).astype(np.float64)
    wrong = (reach < WEIGHT_CUT * largest) | ((largest > 0) & (largest < LEAST_USED * reach) & (reach > 1e-3))
    if np.any(wrong):
        index = int(np.argmax(wrong)) if reach.ndim else 0
        one, two = (float(np.ravel(v)[index]) for v in (reach, largest))
        yield _finding(name, f"the scale of channel {index} of a weight reaches {one:.4g}, and its values {two:.4g}")


def _finding(node: str, message: str) -> BrokenRule:
    return BrokenRule(
        "scale", "error", node, message, "calibrate again on samples like those that are served", QUANTISATION
    )
