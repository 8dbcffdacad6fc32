"""INT8 by choice: what is quantised, what stays float, and that the answer says so."""

import numpy as np
import onnx
import pytest
from small_onnx import convnet, mlp

from accel.core.errors import StageError
from accel.graph import convolutions, qdq
from accel.graph.evaluate import open_cpu
from accel.graph.fuse import attention_layers, fuse
from accel.graph.quantize import quantize_matmuls
from accel.run.inspection import int8_products


def feeds(count=12, shape=(8, 32)):
    rng = np.random.default_rng(0)
    return [{"x": rng.standard_normal(shape).astype(np.float32)} for _ in range(count)]


def quantise(path, out, *, target_db=20.0, trials=64):
    return quantize_matmuls(
        path,
        out,
        feeds(),
        mask=None,
        smallest={"x": (1, 32)},
        target_db=target_db,
        levels=127,
        threads=1,
        trials=trials,
    )


def sqnr_db(one, other, feed):
    truth, found = (open_cpu(p, 1).run(None, feed)[0] for p in (one, other))
    signal = np.square(truth - truth.mean(axis=0)).sum()
    return 10 * np.log10(signal / np.square(truth - found).sum())


def test_everything_that_can_be_is_int8(tmp_path):
    plain, out = mlp(tmp_path / "plain.onnx", gemm=True), tmp_path / "int8.onnx"
    plan = quantise(plain, out)
    assert (plan.int8_nodes, plan.nodes, plan.int8_share) == (4, 4, 1.0)
    assert int8_products(onnx.load(str(out)).graph) == (4, 4)
    assert sqnr_db(plain, out, feeds(20)[-1]) > 20
    assert sorted(p.name for p in tmp_path.iterdir()) == ["int8.onnx", "int8.onnx.data", "plain.onnx"]


def test_weights_and_activations_have_the_promised_types(tmp_path):
    plain, out = mlp(tmp_path / "plain.onnx"), tmp_path / "int8.onnx"
    quantise(plain, out)
    graph = onnx.load(str(out)).graph
    constants = {t.name: onnx.numpy_helper.to_array(t) for t in graph.initializer}
    for node in graph.node:
        if node.op_type == "QuantizeLinear":
            assert constants[node.input[2]].dtype == np.uint8
        if node.op_type == "DequantizeLinear" and node.input[0] in constants:
            weight, scales, zeros = (constants[n] for n in node.input)
            assert weight.dtype == np.int8
            assert scales.shape == (weight.shape[1],)
            assert not zeros.any()
    assert not any(t.dtype == np.float32 and t.ndim == 2 for t in constants.values())


def test_a_harmful_product_stays_float(tmp_path):
    plain, out = mlp(tmp_path / "plain.onnx", layers=6), tmp_path / "int8.onnx"
    everything = quantise(plain, out, target_db=0.0)
    careful = quantise(plain, out, target_db=everything.sqnr_db + 3)
    assert everything.int8_share == 1.0
    assert 0 < careful.int8_nodes < careful.nodes
    assert careful.sqnr_db >= everything.sqnr_db + 3
    assert int8_products(onnx.load(str(out)).graph) == (careful.int8_nodes, careful.nodes)


def test_an_outlier_channel_is_smoothed_away(tmp_path):
    plain, out = mlp(tmp_path / "plain.onnx", hostile=2), tmp_path / "int8.onnx"
    plan = quantise(plain, out)
    assert plan.int8_share == 1.0
    graph = onnx.load(str(out)).graph
    assert any(n.op_type == "Mul" and n.input[0] == "spiked" for n in graph.node)
    assert sqnr_db(plain, out, feeds(20)[-1]) > 20


def test_an_impossible_target_leaves_the_graph_float(tmp_path):
    plain, out = mlp(tmp_path / "plain.onnx"), tmp_path / "int8.onnx"
    plan = quantise(plain, out, target_db=190.0, trials=1)
    assert plan.int8_nodes == 0
    np.testing.assert_allclose(
        open_cpu(out, 1).run(None, feeds()[0])[0], open_cpu(plain, 1).run(None, feeds()[0])[0], rtol=0, atol=1e-5
    )


def test_a_graph_without_products_is_an_error(tmp_path):
    plain = onnx.load(str(mlp(tmp_path / "plain.onnx")))
    qdq.replace_nodes(plain, [onnx.helper.make_node("Tanh", ["x"], ["y"], "only")])
    qdq.drop_unused(plain)
    onnx.save_model(plain, str(tmp_path / "none.onnx"))
    with pytest.raises(StageError, match="no matrix product"):
        quantise(tmp_path / "none.onnx", tmp_path / "out.onnx")


def test_scales_represent_zero_and_cover_the_range():
    scale = qdq.Scale.of(-1.0, 3.0)
    values = np.array([-1.0, 0.0, 3.0, 7.0], np.float32)
    found = scale.apply(values)
    assert found[1] == 0.0
    np.testing.assert_allclose(found, [-1.0, 0.0, 3.0, 3.0], rtol=0, atol=scale.scale)
    assert qdq.Scale.of(2.0, 3.0).zero_point == 0


def test_convolutions_are_quantised_as_a_whole(tmp_path):
    plain, out = convnet(tmp_path / "plain.onnx"), tmp_path / "int8.onnx"
    assert convolutions.dominate(plain)
    assert not convolutions.dominate(mlp(tmp_path / "mlp.onnx"))
    facts = convolutions.quantize(plain, out, feeds(8, (4, 3, 8, 8)), target_db=15.0, levels=127)
    assert facts["int8_nodes"] >= 2
    assert facts["held_back_sqnr_db"] > 15
    assert sqnr_db(plain, out, feeds(20, (4, 3, 8, 8))[-1]) > 15


def test_fusing_a_graph_without_patterns_changes_nothing(tmp_path):
    assert fuse(mlp(tmp_path / "plain.onnx"), tmp_path / "fused.onnx") == {}
    assert not (tmp_path / "fused.onnx").exists()
    assert attention_layers({}) == 0
    assert attention_layers({"attention": 2, "mha2": 2, "bias_gelu": 4}) == 2


def test_fusing_a_broken_file_is_an_error(tmp_path):
    (tmp_path / "bad.onnx").write_bytes(b"\x08\x0a broken")
    with pytest.raises(StageError, match=r"bad\.onnx"):
        fuse(tmp_path / "bad.onnx", tmp_path / "out.onnx")
