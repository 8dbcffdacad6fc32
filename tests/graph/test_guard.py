"""One row outside the declared ranges answers for itself alone, and no value inside them changes a bit."""

from pathlib import Path

import numpy as np
import onnxruntime as ort
import pytest
from narrowing_checks import save
from onnx import TensorProto, helper

from accel.core.values import TensorSpec
from accel.graph import passes
from accel.graph.guard import Guard, guarded

IDS = TensorSpec("ids", "int64", ("batch", "seq"), range=(0, 49))
MASK = TensorSpec("mask", "int64", ("batch", "seq"), range=(0, 1))
HIDDEN = TensorSpec("hidden", "float32", ("batch", "seq", 8))
BEST = TensorSpec("best", "int64", ("batch",))


def embedding(path: Path, *, opset: int) -> Path:
    """Write ids and mask (batch, seq) → hidden (batch, seq, 8) and the best position (batch)."""
    rng = np.random.default_rng(0)
    value = helper.make_tensor_value_info
    nodes = [
        helper.make_node("Gather", ["table", "ids"], ["embedded"]),
        helper.make_node("Cast", ["mask"], ["float_mask"], to=TensorProto.FLOAT),
        helper.make_node("Unsqueeze", ["float_mask", "last"], ["wide"]),
        helper.make_node("Mul", ["embedded", "wide"], ["hidden"]),
        helper.make_node("Slice", ["hidden", "zero", "one", "two"], ["firsts"]),
        helper.make_node("Squeeze", ["firsts", "two"], ["scores"]),
        helper.make_node("ArgMax", ["scores"], ["best"], axis=1, keepdims=0),
    ]
    constants = {
        "table": rng.standard_normal((50, 8)).astype(np.float32),
        "last": np.array([2]),
        "zero": np.array([0]),
        "one": np.array([1]),
        "two": np.array([2]),
    }
    inputs = [value(s.name, TensorProto.INT64, list(s.dims)) for s in (IDS, MASK)]
    outputs = [value("hidden", TensorProto.FLOAT, list(HIDDEN.dims)), value("best", TensorProto.INT64, ["batch"])]
    return save(path, nodes, inputs, outputs, constants, opset=opset)


@pytest.fixture(params=[13, 18])
def sessions(request, tmp_path):
    """The model as it was exported, and guarded."""
    plain = embedding(tmp_path / "plain.onnx", opset=request.param)
    (result,) = passes.rewrite(plain, tmp_path / "guarded.onnx", Guard((IDS, MASK), (HIDDEN, BEST)))
    assert result.modified
    return [
        ort.InferenceSession(str(p), providers=["CPUExecutionProvider"]) for p in (plain, tmp_path / "guarded.onnx")
    ]


def test_inside_the_ranges_nothing_changes(sessions):
    rng = np.random.default_rng(1)
    feed = {"ids": rng.integers(0, 50, (6, 7)), "mask": rng.integers(0, 2, (6, 7))}
    feed["ids"][0, :2] = 0, 49
    for one, two in zip(*(s.run(None, feed) for s in sessions), strict=True):
        np.testing.assert_array_equal(one, two)
    ports = [[(p.name, p.type, p.shape) for p in (*s.get_inputs(), *s.get_outputs())] for s in sessions]
    assert ports[0] == ports[1]


@pytest.mark.parametrize(("name", "value"), [("ids", 50), ("ids", -1), ("ids", -60), ("ids", 2**40), ("mask", 2)])
def test_a_row_outside_is_marked_and_its_neighbours_are_answered(sessions, name, value):
    plain, made = sessions
    rng = np.random.default_rng(2)
    feed = {"ids": rng.integers(0, 50, (6, 7)), "mask": np.ones((6, 7), np.int64)}
    expected = plain.run(None, feed)
    feed[name][2, 3] = value
    hidden, best = made.run(None, feed)
    assert np.isnan(hidden[2]).all()
    assert best[2] == np.iinfo(np.int64).min
    others = np.arange(6) != 2
    np.testing.assert_array_equal(hidden[others], expected[0][others])
    np.testing.assert_array_equal(best[others], expected[1][others])


def test_the_model_alone_fails_the_call_or_answers_minus_one_as_the_last_row(sessions):
    """What the guard is for; where a release of ONNX Runtime fixes it, the guard can go."""
    plain, _ = sessions
    feed = {"ids": np.zeros((2, 3), np.int64), "mask": np.ones((2, 3), np.int64)}
    feed["ids"][0, 0] = -1
    assert np.isfinite(plain.run(None, feed)[0]).all()
    feed["ids"][0, 0] = 50
    with pytest.raises(Exception, match="out of data bounds"):
        plain.run(None, feed)


def test_what_cannot_mark_its_rows_stays_as_it_is(tmp_path):
    assert guarded((IDS, MASK), (HIDDEN, BEST)) == ("ids", "mask")
    assert guarded((IDS,), (TensorSpec("total", "float32", ("rows", 8)),)) == ()
    assert guarded((IDS,), (TensorSpec("fixed", "float32", (1, 8)),)) == ()
    assert guarded((IDS,), (TensorSpec("flags", "bool", ("batch",)),)) == ()
    assert guarded((TensorSpec("ids", "int64", ("batch", "seq")),), (HIDDEN,)) == ()
    plain = embedding(tmp_path / "plain.onnx", opset=18)
    (result,) = passes.rewrite(plain, tmp_path / "same.onnx", Guard((IDS,), (TensorSpec("total", "float32", ()),)))
    assert not result.modified


def test_hashes_beyond_int32_are_told_apart(tmp_path):
    """ONNX Runtime's Clip took values between 2**31 and 2**32 for less than 97: sound rows were answered with NaN."""
    ids = TensorSpec("ids", "int64", ("batch", "seq"), range=(97, 2**40))
    scaled = TensorSpec("scaled", "float32", ("batch", "seq"))
    value = helper.make_tensor_value_info
    nodes = [
        helper.make_node("Mod", ["ids", "many"], ["small"]),
        helper.make_node("Cast", ["small"], ["scaled"], to=TensorProto.FLOAT),
    ]
    inputs, outputs = [value("ids", TensorProto.INT64, [*ids.dims])], [value("scaled", TensorProto.FLOAT, [*ids.dims])]
    plain = save(tmp_path / "plain.onnx", nodes, inputs, outputs, {"many": np.array(97)}, opset=18)
    (result,) = passes.rewrite(plain, tmp_path / "guarded.onnx", Guard((ids,), (scaled,)))
    assert result.modified
    session = ort.InferenceSession(str(tmp_path / "guarded.onnx"), providers=["CPUExecutionProvider"])
    rows = np.random.default_rng(0).integers(97, 2**33, (500, 4), endpoint=True)
    rows[0] = 97, 2**40, 2**31, 2**32
    np.testing.assert_array_equal(session.run(None, {"ids": rows})[0], rows % 97)
    rows[1, 2], rows[2, 0], rows[3, 3] = 96, 2**40 + 1, -5
    found = session.run(None, {"ids": rows})[0]
    assert np.isnan(found[1:4]).all()
    np.testing.assert_array_equal(found[4:], rows[4:] % 97)
