"""Values behind a logarithm of distances are proved where Where selects them, and nothing wrong is proved with them."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from narrowing_checks import facts_by_name, run, session
from onnx import NodeProto, TensorProto, helper, numpy_helper

from accel.core.values import ShapeRange
from accel.graph.narrow import prove_int32_interior
from accel.graph.narrow.analysis import analyse
from accel.graph.narrow.facts import INT32

node = helper.make_node
CONSTANTS = {
    "zero": np.int64(0), "one": np.int64(1), "seven": np.int64(7), "eight": np.int64(8), "last": np.int64(15),
    "minus_eight": np.int64(-8), "columns": np.array([0]), "rows": np.array([1]), "per": np.float32(8),
    "whole": np.float32(2.77), "top": np.float32(7),
}  # fmt: skip
DISTANCES = [
    node("Shape", ["x"], ["length"]),
    node("Squeeze", ["length"], ["n"]),
    node("Range", ["zero", "n", "one"], ["places"]),
    node("Unsqueeze", ["places", "columns"], ["to"]),
    node("Unsqueeze", ["places", "rows"], ["from"]),
    node("Sub", ["to", "from"], ["signed"]),
    node("Abs", ["signed"], ["d"]),
]
LOGARITHM = [
    node("Cast", ["d"], ["float"], to=TensorProto.FLOAT),
    node("Div", ["float", "per"], ["ratio"]),
    node("Log", ["ratio"], ["log"]),
    node("Div", ["log", "whole"], ["share"]),
    node("Mul", ["share", "per"], ["steps"]),
    node("Cast", ["steps"], ["far"], to=TensorProto.INT64),
    node("Add", ["far", "eight"], ["beyond"]),
    node("Min", ["beyond", "last"], ["capped"]),
]
"""T5's and MPNet's buckets of far distances; at distance 0 a logarithm of 0."""


def near(condition: str, x: str, y: str) -> list[NodeProto]:
    """Choose by a comparison ``a < b`` between x and y."""
    a, op, b = condition.split()
    names = {"<": "Less", "<=": "LessOrEqual", ">": "Greater", ">=": "GreaterOrEqual"}
    return [node(names[op], [a, b], ["is_near"]), node("Where", ["is_near", x, y], ["bucket"])]


def model(nodes: list[NodeProto], *outputs: str) -> onnx.ModelProto:
    """Return a model of a vector, whose length is all that it reads; its outputs are the last node's and these."""
    names = [nodes[-1].output[0], *outputs]
    graph = helper.make_graph(
        nodes,
        "buckets",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["seq"])],
        [helper.make_tensor_value_info(name, TensorProto.INT64, ["to", "from"]) for name in names],
        [numpy_helper.from_array(np.asarray(v), k) for k, v in CONSTANTS.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)


SHAPES = {"x": ShapeRange((1,), (8,), (512,))}


@pytest.fixture
def unproved(tmp_path: Path) -> Callable[..., set[str]]:
    """Return a function that names what of a model is not proved."""

    def names(nodes: list[NodeProto], *outputs: str) -> set[str]:
        onnx.save(model(nodes, *outputs), tmp_path / "model.onnx")
        return {u.name for u in prove_int32_interior(tmp_path / "model.onnx", shapes=SHAPES)}

    return names


BUCKETS = {
    "less": [*DISTANCES, *LOGARITHM, *near("d < eight", "d", "capped")],
    "greater": [*DISTANCES, *LOGARITHM, *near("eight > d", "d", "capped")],
    "turned": [*DISTANCES, *LOGARITHM, *near("d >= eight", "capped", "d")],
    "not": [
        *DISTANCES,
        *LOGARITHM,
        node("Less", ["d", "eight"], ["is_near"]),
        node("Not", ["is_near"], ["is_far"]),
        node("Where", ["is_far", "capped", "d"], ["bucket"]),
    ],
    "two sides": [
        # DeBERTa v2 and v3: what is near has distance 7 in the logarithm, and the buckets stay floats to the end.
        *DISTANCES,
        node("Less", ["signed", "eight"], ["below"]),
        node("Greater", ["signed", "minus_eight"], ["above"]),
        node("And", ["below", "above"], ["between"]),
        node("Where", ["between", "seven", "d"], ["least"]),
        node("Cast", ["least"], ["float"], to=TensorProto.FLOAT),
        node("Div", ["float", "per"], ["ratio"]),
        node("Log", ["ratio"], ["log"]),
        node("Div", ["log", "whole"], ["share"]),
        node("Mul", ["share", "top"], ["steps"]),
        node("Ceil", ["steps"], ["up"]),
        node("Sign", ["signed"], ["sign"]),
        node("Cast", ["sign"], ["side"], to=TensorProto.FLOAT),
        node("Mul", ["up", "side"], ["far"]),
        node("Cast", ["signed"], ["near"], to=TensorProto.FLOAT),
        node("LessOrEqual", ["least", "eight"], ["small"]),
        node("Where", ["small", "near", "far"], ["chosen"]),
        node("Cast", ["chosen"], ["bucket"], to=TensorProto.INT64),
    ],
}


@pytest.mark.parametrize("form", BUCKETS)
def test_buckets_of_distances_are_proved(form: str, unproved: Callable[..., set[str]]) -> None:
    assert unproved(BUCKETS[form]) == set()


@pytest.mark.parametrize("form", BUCKETS)
def test_their_bounds_hold_in_runs_and_openvino_gives_the_same_integers(form: str, tmp_path: Path) -> None:
    openvino = pytest.importorskip("openvino")
    made = model(BUCKETS[form])
    onnx.save(made, tmp_path / "model.onnx")
    low, high = facts_by_name(analyse(ir.from_proto(made), ranges={}, shapes=SHAPES))["bucket"].bounds or INT32
    assert -100 < low <= high < 100 or form == "two sides"
    opened = session(tmp_path / "model.onnx")
    compiled = openvino.Core().compile_model(tmp_path / "model.onnx", "CPU")
    for length in (1, 7, 8, 9, 100, 512):
        feed = {"x": np.zeros(length, np.float32)}
        expected = run(opened, feed)["bucket"]
        assert low <= expected.min()
        assert expected.max() <= high
        assert np.array_equal(compiled(feed)["bucket"], expected), length


WRONG = {
    "selected where it is bad": [*DISTANCES, *LOGARITHM, *near("d < eight", "capped", "d")],
    "a bound that leaves 0 in": [*DISTANCES, *LOGARITHM, *near("d < zero", "d", "capped")],
    "another value is compared": [*DISTANCES, *LOGARITHM, *near("to < eight", "d", "capped")],
    "its elements are moved": [
        *DISTANCES,
        *LOGARITHM,
        node("Transpose", ["capped"], ["moved"]),
        *near("d < eight", "d", "moved"),
    ],
    "one of two conditions": [
        *DISTANCES,
        *LOGARITHM,
        node("Less", ["d", "eight"], ["is_near"]),
        node("Less", ["to", "from"], ["is_before"]),
        node("And", ["is_near", "is_before"], ["both"]),
        node("Where", ["both", "d", "capped"], ["bucket"]),
    ],
}


@pytest.mark.parametrize("form", WRONG)
def test_nothing_is_proved_of_a_bad_element_that_is_selected(form: str, unproved: Callable[..., set[str]]) -> None:
    assert {"far", "beyond", "capped", "bucket"} <= unproved(WRONG[form])


def test_a_value_that_goes_elsewhere_too_is_not_proved(unproved: Callable[..., set[str]]) -> None:
    choice = near("d < eight", "d", "capped")
    divided = node("Div", ["last", "far"], ["divided"])  # where a wrong element ends the run
    rows = node("Gather", ["places", "far"], ["row"])
    plain = {
        "an output": unproved([*DISTANCES, *LOGARITHM, *choice], "far"),
        "a divisor": unproved([*DISTANCES, *LOGARITHM[:-1], divided, *near("d < eight", "d", "divided")]),
        "an index": unproved([*DISTANCES, *LOGARITHM, rows, *choice], "row"),
    }
    assert all("far" in names for names in plain.values()), plain
    assert "bucket" not in plain["an output"]


def test_a_branch_that_no_element_takes_says_nothing(unproved: Callable[..., set[str]]) -> None:
    assert unproved([*DISTANCES, *LOGARITHM, *near("d >= zero", "d", "capped")]) == set()
