"""How benchmarks/packing.py packs sentences into rows, and that a packed graph answers each as if it were alone."""

import importlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from hypothesis import given, strategies as st
from onnx import TensorProto, helper, numpy_helper

from accel.core.errors import InputError
from accel.graph import passes

WIDTH = 4


@pytest.fixture(scope="module")
def rows() -> Iterator[Any]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(Path(__file__).parents[1] / "benchmarks"))
        yield importlib.import_module("packed_rows")


@pytest.fixture(scope="module")
def graphs() -> Iterator[Any]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(Path(__file__).parents[1] / "benchmarks"))
        yield importlib.import_module("packed_graphs")


def sentences(lengths: list[int]) -> list[dict[str, np.ndarray]]:
    ids = np.random.default_rng(0)
    return [{"ids": ids.integers(1, 9, (1, n), np.int32), "mask": np.ones((1, n), np.int32)} for n in lengths]


@given(st.lists(st.integers(1, 40), min_size=1, max_size=60), st.sampled_from([16, 32]))
def test_every_sentence_is_in_one_row_and_only_one_that_is_too_long_leaves_it(rows, lengths, width):
    made = rows.packed_rows(lengths, width)
    assert sorted(i for row in made for i in row) == list(range(len(lengths)))
    filled = [sum(lengths[i] for i in row) for row in made]
    assert all(used <= width or len(row) == 1 for used, row in zip(filled, made, strict=True))
    assert sum(used <= width / 2 for used in filled) <= 1  # two such rows would have been one


@given(st.lists(st.integers(1, 20), min_size=1, max_size=30))
def test_what_was_packed_is_found_again(rows, lengths):
    requests = sentences(lengths)
    for members, feed in rows.packed_calls(requests, "mask", 16, 64, 8):
        outputs = {"hidden": feed["ids"][..., None], "first": feed["ids"].ravel()[feed["starts"]][:, None]}
        for index, found in zip(members, rows.unpacked(feed, outputs), strict=True):
            assert np.array_equal(found["hidden"][..., 0], requests[index]["ids"])
            assert np.array_equal(found["first"], requests[index]["ids"][:, :1])


def encoder() -> onnx.ModelProto:
    """One layer of attention as exporters write it: a mask made once, positions cut from a table, the first token."""
    draw = np.random.default_rng(1)

    def table(name: str, *shape: int) -> onnx.TensorProto:
        return numpy_helper.from_array(draw.normal(size=shape).astype(np.float32), name)

    def ints(name: str, *values: int) -> onnx.TensorProto:
        return numpy_helper.from_array(np.array(values, np.int64), name)

    node = helper.make_node
    nodes = [
        node("Shape", ["ids"], ["size"], start=1, end=2),
        node("Slice", ["numbers", "zero", "size", "one"], ["places"]),
        node("Gather", ["words", "ids"], ["word"]),
        node("Gather", ["table", "places"], ["place"]),
        node("Add", ["word", "place"], ["x"]),
        node("Cast", ["mask"], ["shown"], to=TensorProto.BOOL),
        node("Unsqueeze", ["shown", "heads"], ["keys"]),
        node("Where", ["keys", "nothing", "far"], ["added"]),
        node("Unsqueeze", ["x", "one"], ["q"]),
        node("Transpose", ["q"], ["k"], perm=[0, 1, 3, 2]),
        node("MatMul", ["q", "k"], ["scores"]),
        node("Add", ["scores", "added"], ["masked"]),
        node("Softmax", ["masked"], ["weights"], axis=-1),
        node("MatMul", ["weights", "q"], ["attended"]),
        node("Squeeze", ["attended", "one"], ["hidden"]),
        node("Gather", ["hidden", "at"], ["first"], axis=1),
    ]
    given = [helper.make_tensor_value_info(n, TensorProto.INT32, ["batch", "seq"]) for n in ("ids", "mask")]
    made = [
        helper.make_tensor_value_info("hidden", TensorProto.FLOAT, ["batch", "seq", WIDTH]),
        helper.make_tensor_value_info("first", TensorProto.FLOAT, ["batch", WIDTH]),
    ]
    constants = [
        table("words", 9, WIDTH),
        table("table", 32, WIDTH),
        numpy_helper.from_array(np.arange(32)[None], "numbers"),
        *(ints("zero", 0), ints("one", 1), ints("heads", 1, 2), numpy_helper.from_array(np.array(0), "at")),
        numpy_helper.from_array(np.float32(0), "nothing"),
        numpy_helper.from_array(np.finfo(np.float32).min, "far"),
    ]
    graph = helper.make_graph(nodes, "encoder", given, made, constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


def test_a_packed_graph_answers_each_sentence_as_if_it_were_alone(rows, graphs, tmp_path):
    onnx.save(encoder(), tmp_path / "model.onnx")
    passes.rewrite(tmp_path / "model.onnx", tmp_path / "packed.onnx", graphs.Pack("mask"))
    alone, packed = (onnxruntime.InferenceSession(tmp_path / f"{name}.onnx") for name in ("model", "packed"))
    requests = sentences([5, 3, 7, 2, 1, 6])
    ((members, feed),) = rows.packed_calls(requests, "mask", 16, 64, 8)
    assert len(feed["segments"]) < len(requests)
    outputs = dict(zip(("hidden", "first"), packed.run(None, feed), strict=True))
    for index, found in zip(members, rows.unpacked(feed, outputs), strict=True):
        for name, truth in zip(("hidden", "first"), alone.run(None, requests[index]), strict=True):
            np.testing.assert_allclose(found[name], truth, rtol=1e-4, atol=1e-5)
    one_segment = feed | {"segments": np.minimum(feed["segments"], 1)}  # the mask is what keeps sentences apart
    assert np.abs(packed.run(None, one_segment)[0] - outputs["hidden"]).max() > 0.01


def test_a_graph_without_positions_of_its_own_is_refused(graphs, tmp_path):
    model = encoder()
    for node in model.graph.node:
        node.input[:] = ["mask" if name == "places" else name for name in node.input]
    onnx.save(model, tmp_path / "model.onnx")
    with pytest.raises(InputError, match="1 places take the mask 'mask' and 0 the positions"):
        passes.run(passes.load(tmp_path / "model.onnx"), graphs.Pack("mask"))
