"""INT8 by choice: what is quantised, what stays float, and that the answer says so."""

from functools import partial

import numpy as np
import onnx
import onnxruntime
import pytest
from small_onnx import convnet, mlp

from accel.core import hardware
from accel.core.errors import StageError, UnavailableError
from accel.graph import convolutions, qdq
from accel.graph.fuse import attention_layers, fuse
from accel.graph.quantize import for_cpu
from accel.run.inspection import int8_products

TO = "cpu-int8" if hardware.detect().cpu.has_vnni else "cpu-int7"
"""Without VNNI sums of int8 saturate in the sessions that judge here."""


def feeds(count=12, shape=(8, 32)):
    rng = np.random.default_rng(0)
    return [{"x": rng.standard_normal(shape).astype(np.float32)} for _ in range(count)]


def open_cpu(path):
    """Open a session with ONNX Runtime's own optimisations, as a server runs the file."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def sqnr_db(one, other, feed):
    """Compare two files; None is the first one again, as the searches call the float model."""
    truth, found = (open_cpu(p or one).run(None, feed)[0] for p in (one, other))
    signal = np.square(truth - truth.mean(axis=0)).sum()
    return 10 * np.log10(signal / max(np.square(truth - found).sum(), 1e-20))


def quantise(path, out, *, target_db=20.0, trials=64):
    """Let the smallest request and two larger ones judge."""
    held = feeds()[-1]["x"]
    judges = [{"x": held[:n]} for n in (2, 4, 8)]
    return for_cpu(
        path,
        out,
        feeds()[:9],
        lambda file: min(sqnr_db(path, file, feed) for feed in judges),
        target_db,
        to=TO,
        mask=None,
        threads=1,
        trials=trials,
    )


def test_everything_that_can_be_is_int8(tmp_path):
    plain, out = mlp(tmp_path / "plain.onnx", gemm=True), tmp_path / "int8.onnx"
    plan = quantise(plain, out)
    assert (plan.chosen.quantised, plan.chosen.share, plan.chosen.kept) == (4, 1.0, ())
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
    careful = quantise(plain, out, target_db=everything.chosen.score + 3)
    assert everything.chosen.share == 1.0
    assert 0 < careful.chosen.quantised < 6
    assert careful.chosen.score >= everything.chosen.score + 3
    assert int8_products(onnx.load(str(out)).graph) == (careful.chosen.quantised, 6)


def test_an_outlier_channel_is_smoothed_away(tmp_path):
    plain, out = mlp(tmp_path / "plain.onnx", hostile=2), tmp_path / "int8.onnx"
    plan = quantise(plain, out)
    assert plan.chosen.share == 1.0
    graph = onnx.load(str(out)).graph
    assert any(n.op_type == "Mul" and n.input[0] == "spiked" for n in graph.node)
    assert sqnr_db(plain, out, feeds(20)[-1]) > 20


def test_an_impossible_target_leaves_the_graph_float(tmp_path):
    plain, out = mlp(tmp_path / "plain.onnx"), tmp_path / "int8.onnx"
    plan = quantise(plain, out, target_db=190.0, trials=1)
    assert plan.chosen.quantised == 0
    np.testing.assert_allclose(
        open_cpu(out).run(None, feeds()[0])[0], open_cpu(plain).run(None, feeds()[0])[0], rtol=0, atol=1e-5
    )


def test_a_graph_without_products_has_no_int8(tmp_path):
    plain = onnx.load(str(mlp(tmp_path / "plain.onnx")))
    del plain.graph.node[:], plain.graph.initializer[:]
    plain.graph.node.append(onnx.helper.make_node("Tanh", ["x"], ["y"], "only"))
    onnx.save_model(plain, str(tmp_path / "none.onnx"))
    with pytest.raises(UnavailableError, match="no matrix product"):
        quantise(tmp_path / "none.onnx", tmp_path / "out.onnx")


def test_scales_represent_zero_and_cover_the_range():
    scale = qdq.Recipe.unsigned(-1.0, 3.0)
    values = np.array([-1.0, 0.0, 3.0, 7.0], np.float32)
    found = scale.apply(values)
    assert found[1] == 0.0
    np.testing.assert_allclose(found, [-1.0, 0.0, 3.0, 3.0], rtol=0, atol=scale.scale)
    assert qdq.Recipe.unsigned(2.0, 3.0).zero == 0


def test_convolutions_are_quantised_as_a_whole(tmp_path):
    plain, out = convnet(tmp_path / "plain.onnx"), tmp_path / "int8.onnx"
    assert convolutions.dominate(plain)
    assert not convolutions.dominate(mlp(tmp_path / "mlp.onnx"))
    made = feeds(8, (4, 3, 8, 8))

    def score(file):
        return sqnr_db(plain, file, made[-1])

    found = convolutions.quantize(plain, out, made[:-1], score, 15.0, reduce_range=False)
    assert found.chosen.quantised >= 2
    assert found.chosen.score > 15
    assert sqnr_db(plain, out, feeds(20, (4, 3, 8, 8))[-1]) > 15


def test_old_files_without_names_are_quantised(tmp_path):
    """The scale of each channel is opset 13's, and the quantisers know nodes by name."""
    for plain, quantised in ((convnet(tmp_path / "conv.onnx"), 2), (mlp(tmp_path / "mlp.onnx", gemm=True), 4)):
        model = onnx.load(str(plain))
        model.opset_import[0].version = 11
        model.ir_version = 6
        for node in model.graph.node:
            node.ClearField("name")
        onnx.save_model(model, str(plain))
        out = tmp_path / f"{plain.stem}-int8.onnx"
        if quantised == 4:
            assert quantise(plain, out).chosen.quantised == 4
        else:
            made = feeds(8, (4, 3, 8, 8))
            judge = partial(sqnr_db, plain, feed=made[-1])
            found = convolutions.quantize(plain, out, made[:-1], judge, 15.0, reduce_range=False)
            assert found.chosen.quantised >= quantised
        assert onnx.load(str(out)).opset_import[0].version >= 13


def share(path, operator, name, activation):
    """Let all nodes of an operator have one bias: ONNX Runtime's copy is called ``name`` and the node's number."""
    model = onnx.load(str(path))
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.ones(8, np.float32), name))
    for node in model.graph.node:
        if node.op_type == operator:
            node.input[2:] = [name]
        node.op_type = node.op_type.replace("Relu", activation)  # a Relu takes the pair of what is before it
    onnx.save_model(model, str(path))


@pytest.mark.parametrize(
    ("operator", "name", "activation"), [("Conv", "c", "Neg"), ("InstanceNormalization", "n", "Sigmoid")]
)
def test_a_shared_bias_takes_nobodys_name(tmp_path, operator, name, activation):
    """ONNX Runtime's quantiser copies it under its name with a number: here that of another node's output."""
    plain, out = convnet(tmp_path / "plain.onnx", normalised=operator != "Conv"), tmp_path / "int8.onnx"
    share(plain, operator, name, activation)
    made = feeds(8, (4, 3, 8, 8))
    judge = partial(sqnr_db, plain, feed=made[-1])
    found = convolutions.quantize(plain, out, made[:-1], judge, 15.0, reduce_range=False)
    assert found.chosen.quantised >= 2


def test_files_of_the_working_directory_do_not_matter(tmp_path, monkeypatch):
    """Exporters leave their weights there, by the name that ONNX Runtime's quantiser wants for its own."""
    plain, out = convnet(tmp_path / "plain.onnx"), tmp_path / "int8.onnx"
    (there := tmp_path / "there").mkdir()
    for name in ("int8.onnx.data", "trial.onnx.data", "model.onnx.data"):
        (there / name).write_bytes(b"mine")
    monkeypatch.chdir(there)
    made = feeds(8, (4, 3, 8, 8))
    convolutions.quantize(plain, out, made[:-1], partial(sqnr_db, plain, feed=made[-1]), 10.0, reduce_range=False)
    assert open_cpu(out).run(None, made[0])
    assert {file.read_bytes() for file in there.iterdir()} == {b"mine"}


def test_a_pooled_activation_is_not_taken_for_the_mask(tmp_path):
    """It has the mask's shape where the hidden size is the length of the sequence."""
    info, make, rng = onnx.helper.make_tensor_value_info, onnx.helper.make_node, np.random.default_rng(0)
    weights = {n: rng.standard_normal((6, 6)).astype(np.float32) for n in ("w", "v")}
    nodes = [
        make("MatMul", ["x", "w"], ["h"], "first"),
        make("ReduceMax", ["h", "one"], ["pooled"], "pool", keepdims=0),
        make("MatMul", ["pooled", "v"], ["raw"], "second"),
        make("ReduceSum", ["mask", "one"], ["length"], "sum", keepdims=1),
        make("Mul", ["raw", "length"], ["y"], "scale"),
    ]
    inputs = [info("x", 1, ["batch", "seq", 6]), info("mask", 1, ["batch", "seq"])]
    constants = [onnx.numpy_helper.from_array(v, n) for n, v in {**weights, "one": np.array([1])}.items()]
    graph = onnx.helper.make_graph(nodes, "g", inputs, [info("y", 1, ["batch", 6])], constants)
    opset = [onnx.helper.make_opsetid("", 18)]
    onnx.save_model(onnx.helper.make_model(graph, opset_imports=opset, ir_version=10), str(tmp_path / "p.onnx"))
    mask = np.tril(np.ones((6, 6), np.float32))
    made = [{"x": rng.standard_normal((6, 6, 6)).astype(np.float32), "mask": mask} for _ in range(4)]
    given = {"to": TO, "mask": "mask", "threads": 1, "trials": 8}
    found = for_cpu(tmp_path / "p.onnx", tmp_path / "q.onnx", made, lambda _: 99.0, 20.0, **given)
    assert found.chosen.quantised == 2


def test_fusing_a_graph_without_patterns_changes_nothing(tmp_path):
    assert fuse(mlp(tmp_path / "plain.onnx"), tmp_path / "fused.onnx") == {}
    assert not (tmp_path / "fused.onnx").exists()
    assert attention_layers({}) == 0
    assert attention_layers({"attention": 2, "mha2": 2, "bias_gelu": 4}) == 2


def test_fusing_a_broken_file_is_an_error(tmp_path):
    (tmp_path / "bad.onnx").write_bytes(b"\x08\x0a broken")
    with pytest.raises(StageError, match=r"bad\.onnx"):
        fuse(tmp_path / "bad.onnx", tmp_path / "out.onnx")
