"""Sizes of what a vision model computes stay bounded where shape inference of the ONNX library loses the batch."""

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
from narrowing_checks import facts_by_name
from onnx import TensorProto, helper, numpy_helper

from accel.core.values import ShapeRange
from accel.graph.narrow.analysis import analyse


def branch(name: str) -> onnx.GraphProto:
    """A body that gives an outer value."""
    out = helper.make_tensor_value_info(f"{name}_taken", TensorProto.FLOAT, None)
    return helper.make_graph([helper.make_node("Identity", [name], [out.name])], name, [], [out])


def model() -> onnx.ModelProto:
    """Every operator whose sizes accel bounds by itself, behind a Reshape that hides the batch."""
    rng = np.random.default_rng(0)
    constants = {
        "kernel": rng.standard_normal((5, 3, 3, 3)).astype(np.float32),
        "scales": np.array([1, 1, 2, 2], np.float32),
        "zero": np.array([0]),
        "three": np.array([3]),
        "w": rng.standard_normal((2, 8, 5)).astype(np.float32),
        "r": rng.standard_normal((2, 8, 2)).astype(np.float32),
        "where": np.array([[0, 1]]),
        "values": np.array([7], np.float32),
        "axis": np.array([2]),
        "around": np.array([0, 1, 0, 0, 2, -1]),
        "true": np.array(True),
        "pairs": np.array([[0, 1], [0, 2]]),
    }
    make = helper.make_node
    nodes = [
        make("Shape", ["x"], ["rows"]),
        make("Reshape", ["x", "rows"], ["lost"]),
        make("Conv", ["lost", "kernel"], ["strided"], strides=[2, 1], pads=[1, 2, 0, 1], dilations=[1, 2]),
        make("MaxPool", ["strided"], ["pooled"], kernel_shape=[3, 2], strides=[2, 2], ceil_mode=1),
        make("AveragePool", ["strided"], ["mean"], kernel_shape=[2, 2]),
        make("Resize", ["pooled", "", "scales"], ["grown"]),
        make("Concat", ["grown", "grown"], ["twice"], axis=0),
        make("Concat", ["lost", "lost"], ["joined"], axis=1),
        make("Flatten", ["pooled"], ["flat"], axis=1),
        make("TopK", ["flat", "three"], ["best", "places"], axis=1),
        make("ArgMax", ["pooled"], ["first"], axis=1, keepdims=0),
        make("ArgMax", ["pooled"], ["second"], axis=2),
        make("ReduceMean", ["strided", "axis"], ["columns"], keepdims=0),
        make("ReduceL2", ["strided", "axis"], ["lengths"]),
        make("ReduceLogSumExp", ["strided", "axis"], ["summed"]),
        make("Slice", ["lost", "zero", "axis", "three"], ["grid"]),
        make("GridSample", ["lost", "grid"], ["sampled"]),
        make("Transpose", ["columns"], ["steps"], perm=[2, 0, 1]),
        make("LSTM", ["steps", "w", "r"], ["read"], hidden_size=2, direction="bidirectional"),
        make("ScatterND", ["flat", "where", "values"], ["marked"]),
        make("Conv", ["lost", "kernel"], ["same"], strides=[2, 2], auto_pad="SAME_UPPER"),
        make("MaxPool", ["lost"], ["valid"], kernel_shape=[2, 2], auto_pad="VALID"),
        make("HardSigmoid", ["same"], ["gate"]),
        make("GlobalAveragePool", ["gate"], ["whole"]),
        make("Pad", ["steps", "around"], ["padded"]),
        make("GatherND", ["lost", "pairs"], ["picked"]),
        make("Unsqueeze", ["columns", "three"], ["real"]),
        make("DFT", ["real"], ["spectrum"], axis=2),
        make("DFT", ["spectrum"], ["again"], axis=1),
        make("DFT", ["real"], ["half"], axis=2, onesided=1),
        make("If", ["true"], ["branch"], then_branch=branch("same"), else_branch=branch("flat")),
    ]
    outputs = [o for n in nodes for o in n.output]
    kinds = dict.fromkeys(("rows", "places", "first", "second"), TensorProto.INT64)
    graph = helper.make_graph(
        nodes,
        "sizes",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 3, "high", 9])],
        [helper.make_tensor_value_info(o, kinds.get(o, TensorProto.FLOAT), None) for o in outputs],
        [numpy_helper.from_array(v, n) for n, v in constants.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)


def test_sizes_contain_what_runs_observe_and_are_finite(tmp_path: Path) -> None:
    made = model()
    onnx.save(made, tmp_path / "sizes.onnx")
    shapes = {"x": ShapeRange((1, 3, 8, 9), (2, 3, 9, 9), (4, 3, 21, 9))}
    facts = facts_by_name(analyse(ir.from_proto(made), ranges={}, shapes=shapes))
    session = onnxruntime.InferenceSession(tmp_path / "sizes.onnx", providers=["CPUExecutionProvider"])
    names = [o.name for o in session.get_outputs()]
    for batch, high in ((1, 8), (2, 9), (4, 20), (4, 21), (3, 15)):
        found = session.run(names, {"x": np.zeros((batch, 3, high, 9), np.float32)})
        for name, value in zip(names, found, strict=True):
            dims = facts[name].dims
            if name in ("grown", "twice") and dims is None:
                continue  # nothing is known of Resize beyond what shape inference says
            assert dims is not None, name
            assert len(dims) == value.ndim, name
            for size, (low, most) in zip(value.shape, dims, strict=True):
                assert low <= size <= most, (name, value.shape, dims)
    bounded = "strided pooled mean joined best places first second read marked same valid gate whole padded branch"
    for name in [*bounded.split(), "lengths", "summed", "sampled", "picked", "spectrum", "again", "half"]:
        dims = facts[name].dims
        assert dims is not None
        assert name in ("read", "padded", "picked") or dims[0] == (1, 4)
        assert all(high < 1000 for _, high in dims), (name, dims)


def test_a_slice_is_as_long_as_numpy_makes_it() -> None:
    """Constant ends give exact sizes, and bounds that hold where the axis varies."""
    cuts = [slice(1, 4), slice(0, 99, 2), slice(-3, 99), slice(99, -99, -2), slice(2, -1), slice(-3, 3)]
    x = np.zeros(9)
    for low, high in ((9, 9), (0, 9)):
        for cut in cuts:
            ends = {k: np.array([v]) for k, v in (("start", cut.start), ("end", cut.stop), ("step", cut.step or 1))}
            graph = helper.make_graph(
                [helper.make_node("Slice", ["x", "start", "end", "axis", "step"], ["y"])],
                "cut",
                [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["size"])],
                [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
                [numpy_helper.from_array(v, n) for n, v in (ends | {"axis": np.array([0])}).items()],
            )
            made = ir.from_proto(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)]))
            shapes = {"x": ShapeRange((low,), (high,), (high,))}
            dims = facts_by_name(analyse(made, ranges={}, shapes=shapes))["y"].dims
            assert dims is not None
            lengths = [len(x[:n][cut]) for n in range(low, high + 1)]
            assert dims[0][0] <= min(lengths)
            assert max(lengths) <= dims[0][1]
            if low == high:
                assert dims[0] == (lengths[0], lengths[0])
