"""The published rules of strongly typed networks: each has a graph that breaks it, and one that keeps them all."""

import json

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from accel.builders.tensorrt import network_rules
from accel.core.errors import InputError
from accel.core.values import from_json, to_json
from tests.graph.typed_graphs import FLOAT, overflowing, save

IN = {"x": (FLOAT, ["batch", 4])}
OUT = {"y": (FLOAT, ["batch", 4])}
WEIGHT = np.eye(4, dtype=np.float32)
ZERO = np.int8(0)


def pair(name, *, zero, scale=0.1, of="x", axis=None):
    """Return a Q/DQ pair, and its constants."""
    extra = {} if axis is None else {"axis": axis}
    parameters = [f"{name}_scale", f"{name}_zero"]
    nodes = [
        helper.make_node("QuantizeLinear", [of, *parameters], [f"{name}_q"], f"{name}_q", **extra),
        helper.make_node("DequantizeLinear", [f"{name}_q", *parameters], [f"{name}_dq"], f"{name}_dq", **extra),
    ]
    return nodes, {f"{name}_scale": np.asarray(scale, np.float32), f"{name}_zero": np.asarray(zero)}


def quantised(path, *, zero=ZERO, scale=0.1, weight_scale=(0.1,) * 4, **changes):
    """Write a product with both inputs quantised, the activation as asked."""
    first, one = pair("a", zero=zero, scale=scale)
    second, two = pair("w", zero=np.zeros(len(weight_scale), np.int8), scale=weight_scale, of="weight", axis=1)
    nodes = [*first, *second, helper.make_node("MatMul", ["a_dq", "w_dq"], ["y"], "product")]
    return save(path, nodes, {"weight": WEIGHT, **one, **two}, inputs=IN, outputs=OUT, **changes)


def rules(path):
    """Return the rules whose breach is an error."""
    return {f.rule for f in network_rules.check(path) if f.severity == "error"}


def one_node(path, node, constants=None, *, inputs=IN, outputs=OUT, **changes):
    return save(path, [node], constants or {}, inputs=inputs, outputs=outputs, **changes)


def test_a_clean_file_has_no_findings(tmp_path):
    assert network_rules.check(quantised(tmp_path / "m.onnx")) == ()
    assert network_rules.check(overflowing(tmp_path / "n.onnx")) == ()


def test_asymmetric_pairs_are_found(tmp_path):
    assert rules(quantised(tmp_path / "m.onnx", zero=np.int8(3))) == {"zero-point"}
    found = network_rules.check(quantised(tmp_path / "m.onnx", zero=np.uint8(128)))
    assert {f.rule for f in found} == {"zero-point", "uint8"}
    assert "zero-point 128, expected 0" in " ".join(f.message for f in found)
    assert all(f.node in ("a_q", "a_dq") and f.source.startswith("https://") and f.fix for f in found)
    assert rules(quantised(tmp_path / "m.onnx", zero=np.uint8(0))) == {"uint8"}


@pytest.mark.parametrize("scale", [0.0, -0.1, np.inf, np.nan])
def test_a_scale_that_is_no_scale_is_found(tmp_path, scale):
    assert rules(quantised(tmp_path / "m.onnx", scale=scale)) == {"scale"}


def test_scales_fit_their_channels(tmp_path):
    assert "scale" in rules(quantised(tmp_path / "m.onnx", weight_scale=(0.1,) * 3))


def test_an_activation_has_one_scale(tmp_path):
    nodes, constants = pair("a", zero=np.zeros(4, np.int8), scale=[0.1] * 4, axis=1)
    nodes.append(helper.make_node("Identity", ["a_dq"], ["y"], "end"))
    assert rules(save(tmp_path / "m.onnx", nodes, constants, inputs=IN, outputs=OUT)) == {"placement"}


def test_half_a_pair_is_found(tmp_path):
    nodes, constants = pair("a", zero=ZERO)
    nodes[1].input[1] = "other"
    constants["other"] = np.float32(0.2)
    nodes.append(helper.make_node("Identity", ["a_dq"], ["y"], "end"))
    found = network_rules.check(save(tmp_path / "m.onnx", nodes, constants, inputs=IN, outputs=OUT))
    assert [(f.rule, f.node) for f in found] == [("placement", "a_dq")]
    assert "differ in scale" in found[0].message


def test_one_quantised_input_is_a_loss(tmp_path):
    nodes, constants = pair("a", zero=ZERO)
    nodes.append(helper.make_node("MatMul", ["a_dq", "weight"], ["y"], "product"))
    path = save(tmp_path / "m.onnx", nodes, {"weight": WEIGHT, **constants}, inputs=IN, outputs=OUT)
    assert [(f.severity, f.rule, f.node) for f in network_rules.check(path)] == [("warning", "placement", "product")]


def test_a_quantised_bias_is_found(tmp_path):
    first, one = pair("a", zero=ZERO)
    second, two = pair("w", zero=ZERO, of="weight")
    third, three = pair("b", zero=ZERO, of="bias")
    nodes = [*first, *second, *third, helper.make_node("Gemm", ["a_dq", "w_dq", "b_dq"], ["y"], "gemm")]
    constants = {"weight": WEIGHT, "bias": np.ones(4, np.float32), **one, **two, **three}
    found = network_rules.check(save(tmp_path / "m.onnx", nodes, constants, inputs=IN, outputs=OUT))
    assert [(f.rule, f.node) for f in found] == [("placement", "gemm")]


def test_mixed_types_are_found(tmp_path):
    node = helper.make_node("Add", ["x", "h"], ["y"], "add")
    path = one_node(tmp_path / "m.onnx", node, {"h": np.ones(4, np.float16)})
    found = network_rules.check(path)
    assert [(f.rule, f.node) for f in found] == [("types", "add")]
    assert "'h' is FLOAT16" in found[0].message


def test_a_scale_has_the_type_of_its_value(tmp_path):
    nodes, constants = pair("a", zero=ZERO)
    constants["a_scale"] = np.asarray(0.1, np.float16)
    nodes.append(helper.make_node("Identity", ["a_dq"], ["y"], "end"))
    path = save(tmp_path / "m.onnx", nodes, constants, inputs=IN, outputs=OUT, opset=19)
    assert "types" in rules(path)


@pytest.mark.parametrize(("opset", "ir", "rule"), [(8, 9, "opset"), (26, 9, "opset"), (18, 11, "ir")])
def test_versions_outside_the_parsers_are_found(tmp_path, opset, ir, rule):
    node = helper.make_node("Relu", ["x"], ["y"], "relu")
    assert rules(one_node(tmp_path / "m.onnx", node, opset=opset, ir_version=ir)) == {rule}


def test_types_that_tensorrt_lacks_are_found(tmp_path):
    node = helper.make_node("Relu", ["x"], ["y"], "relu")
    ends = {"inputs": {"x": (TensorProto.DOUBLE, [4])}, "outputs": {"y": (TensorProto.DOUBLE, [4])}}
    found = network_rules.check(one_node(tmp_path / "m.onnx", node, **ends))
    assert {f.rule for f in found} == {"double"}
    assert "accel narrow" in found[0].fix
    node = helper.make_node("Cast", ["x"], ["y"], "cast", to=TensorProto.UINT32)
    path = one_node(tmp_path / "m.onnx", node, outputs={"y": (TensorProto.UINT32, ["batch", 4])})
    assert rules(path) == {"dtype"}
    nodes = [
        helper.make_node("Cast", ["x"], ["u"], "down", to=TensorProto.UINT8),
        helper.make_node("Cast", ["u"], ["y"], "up", to=FLOAT),
    ]
    assert rules(save(tmp_path / "m.onnx", nodes, {}, inputs=IN, outputs=OUT)) == {"uint8"}


def test_wide_integers_at_the_border_are_named(tmp_path):
    node = helper.make_node("Gather", ["weight", "ids"], ["y"], "lookup")
    path = one_node(tmp_path / "m.onnx", node, {"weight": WEIGHT}, inputs={"ids": (TensorProto.INT64, ["batch"])})
    assert [(f.severity, f.rule, f.node) for f in network_rules.check(path)] == [("warning", "int64", "ids")]


def test_operators_that_the_parser_does_not_know_are_named_with_a_fix(tmp_path):
    node = helper.make_node("Det", ["x"], ["y"], "determinant")
    path = one_node(tmp_path / "m.onnx", node, inputs={"x": (FLOAT, [4, 4])}, outputs={"y": (FLOAT, [])})
    (found,) = network_rules.check(path)
    assert (found.rule, found.node) == ("operator", "determinant")
    assert "Det 'determinant'" in found.message
    assert "without Det" in found.fix
    node = helper.make_node("FusedMatMul", ["x", "w"], ["y"], "fused", domain="com.microsoft")
    (found,) = network_rules.check(one_node(tmp_path / "m.onnx", node, {"w": WEIGHT}))
    assert found.fix == "give TensorRT the unfused file"
    assert from_json(network_rules.BrokenRule, json.loads(json.dumps(to_json(found)))) == found


def test_an_unknown_operator_inside_a_body_is_found(tmp_path):
    body = helper.make_graph(
        [helper.make_node("Det", ["x"], ["d"], "inner")], "b", [], [helper.make_tensor_value_info("d", FLOAT, [])]
    )
    node = helper.make_node("If", ["on"], ["y"], "choice", then_branch=body, else_branch=body)
    path = one_node(
        tmp_path / "m.onnx",
        node,
        inputs={"x": (FLOAT, [4, 4]), "on": (TensorProto.BOOL, [])},
        outputs={"y": (FLOAT, [])},
    )
    assert {f.node for f in network_rules.check(path)} == {"inner"}


@pytest.mark.parametrize(
    ("node", "part"),
    [
        (helper.make_node("TopK", ["x", "k"], ["y", "i"], "top", sorted=0), "sorted must be 1"),
        (helper.make_node("CumSum", ["x", "axis"], ["y"], "sum"), "axis must be a constant"),
        (helper.make_node("ReduceSum", ["x", "axis"], ["y"], "sum"), "axes must be a constant"),
    ],
)
def test_restrictions_of_known_operators_are_found(tmp_path, node, part):
    inputs = {**IN, "axis": (TensorProto.INT64, [1])}
    path = one_node(tmp_path / "m.onnx", node, {"k": np.array([2], np.int64)}, inputs=inputs)
    assert part in " ".join(f.message for f in network_rules.check(path) if f.rule == "restriction")


def test_constants_in_nodes_and_external_files_are_read(tmp_path):
    nodes, constants = pair("a", zero=np.uint8(7))
    zero = helper.make_node("Constant", [], ["a_zero"], "zero", value=numpy_helper.from_array(constants.pop("a_zero")))
    nodes = [zero, *nodes, helper.make_node("Identity", ["a_dq"], ["y"], "end")]
    assert "zero-point" in rules(save(tmp_path / "m.onnx", nodes, constants, inputs=IN, outputs=OUT))


def test_what_is_no_onnx_file_is_refused(tmp_path):
    (tmp_path / "m.onnx").write_bytes(b"not a model at all")
    with pytest.raises(InputError, match=r"m\.onnx"):
        network_rules.check(tmp_path / "m.onnx")
    with pytest.raises(InputError, match=r"cannot be read|that can be read"):
        network_rules.check(tmp_path / "missing.onnx")
