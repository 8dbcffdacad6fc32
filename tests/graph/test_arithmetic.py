"""The bound on FP32 builds: what a file's products multiply, and that this machine really does not multiply faster."""

import numpy as np
import onnx
from onnx import TensorProto, helper

from accel.graph import arithmetic


def model(path):
    """Write a convolution of 4 channels into 8 by 3x3, one of 8 into 8 by 1x1, a product of 8 columns by 5."""
    rng = np.random.default_rng(0)
    held = [
        onnx.numpy_helper.from_array(rng.standard_normal((8, 4, 3, 3), np.float32), "k"),
        onnx.numpy_helper.from_array(rng.standard_normal((8, 8, 1, 1), np.float32), "p"),
        onnx.numpy_helper.from_array(rng.standard_normal((8, 5), np.float32), "w"),
    ]
    nodes = [
        helper.make_node("Conv", ["x", "k"], ["c"], name="conv"),
        helper.make_node("Conv", ["c", "p"], ["d"], name="point"),
        helper.make_node("Transpose", ["d"], ["t"], name="turn", perm=[0, 2, 3, 1]),
        helper.make_node("MatMul", ["t", "w"], ["y"], name="product"),
        helper.make_node("MatMul", ["y", "y"], ["z"], name="square"),
    ]
    first = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 4, 7, 7])
    last = helper.make_tensor_value_info("z", TensorProto.FLOAT, ["batch", 5, 5, 5])
    graph = helper.make_graph(nodes, "small", [first], [last], held)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10), path)


def test_products_with_weights_are_counted_by_item_and_convolutions_over_neighbours_at_a_quarter(tmp_path):
    model(tmp_path / "m.onnx")
    feed = {"x": np.ones((3, 4, 7, 7), np.float32)}
    found = arithmetic.measure(tmp_path / "m.onnx", feed, batch=3, scratch=tmp_path, threads=1)
    convolution = 2 * (8 * 5 * 5) * (4 * 3 * 3) / 4
    product = 2 * (5 * 5 * 5) * 8  # the product of two activations is not counted
    assert found.item_flops == convolution + 2 * (8 * 5 * 5) * 8 + product
    assert found.least_ms == 1e3 * found.item_flops / (1.2 * found.flops_per_s)
    assert 1e8 < found.flops_per_s < 1e14
    assert list(tmp_path.iterdir()) == [tmp_path / "m.onnx"]
