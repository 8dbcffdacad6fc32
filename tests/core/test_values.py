"""Values survive their JSON form, and broken JSON is named."""

import json

import pytest
from hypothesis import given, strategies as st

from accel.core.values import ModelSource, ShapeRange, Target, TensorSpec, Variant, from_json, sha256_json, to_json

names = st.text(min_size=1, max_size=8)
dims = st.lists(st.integers(1, 4096) | names, max_size=4).map(tuple)
ranges = st.none() | st.tuples(st.integers(-(2**63), 0), st.integers(0, 2**63 - 1))
specs = st.builds(TensorSpec, names, st.sampled_from(["int64", "float32", "bool"]), dims, ranges)
shapes = st.lists(st.integers(1, 99), max_size=3).map(tuple)
profiles = st.dictionaries(names, st.builds(ShapeRange, shapes, shapes, shapes), max_size=3)
sources = st.builds(
    ModelSource,
    name=names,
    kind=st.sampled_from(["zoo", "onnx"]),
    reference=names,
    framework=st.just("torch"),
    weights=st.sampled_from(["pretrained", "random(seed=0)"]),
    revision=st.none() | names,
    key=names,
    inputs=st.lists(specs, max_size=3).map(tuple),
    outputs=st.lists(specs, max_size=3).map(tuple),
    profile=profiles,
    gate=st.none() | st.tuples(names, st.floats(0, 1)),
)


@given(sources)
def test_round_trip(source):
    text = json.dumps(to_json(source), allow_nan=False)
    assert from_json(ModelSource, json.loads(text)) == source


@given(profiles)
def test_variant_round_trip(profile):
    variant = Variant(Target("ort", "cpu"), profile, static="1x2", options={"a": [1, 2.5, None]})
    assert from_json(Variant, to_json(variant)) == variant


def test_ids():
    assert Variant(Target("openvino-int8", "cpu"), {}).id == "openvino-int8@cpu"
    assert Variant(Target("openvino-fp32", "cpu"), {}, static="1x128").id == "openvino-fp32@cpu+1x128"


def test_unknown_fields_are_ignored():
    assert from_json(Target, {"name": "ort", "device": "cpu", "of_a_later_version": 1}) == Target("ort", "cpu")


@pytest.mark.parametrize(
    ("data", "named"),
    [
        ({"name": "x"}, "device"),
        ({"name": 3, "device": "cpu"}, "Target.name"),
        ([], "Target"),
    ],
)
def test_what_is_wrong_is_named(data, named):
    with pytest.raises(ValueError, match=named):
        from_json(Target, data)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_no_nan_in_json(value):
    with pytest.raises(ValueError, match="JSON"):
        to_json({"x": value})


def test_accuracy_needs_real_weights_and_real_samples():
    import dataclasses

    base = ModelSource("m", "zoo", "m", "torch", "pretrained", None, "k", (), (), {}, samples="zoo")
    assert base.accuracy == "proved"
    assert dataclasses.replace(base, weights="random(seed=0)").accuracy == "unproved"
    assert dataclasses.replace(base, samples="random").accuracy == "unproved"


def test_hash_ignores_order_of_keys():
    assert sha256_json({"a": 1, "b": 2}) == sha256_json({"b": 2, "a": 1})
    assert sha256_json({"a": 1}) != sha256_json({"a": 2})


def test_an_integer_that_no_float_holds_is_an_error_and_no_crash():
    with pytest.raises(ValueError, match="not a number"):
        from_json(dict[str, float], {"sqnr_db": 10**400})


def test_an_end_of_texts_stands_in_json_only_where_there_is_one() -> None:
    plain = TensorSpec("ids", "int64", ("batch", "seq"), (0, 9))
    ended = TensorSpec("ids", "int64", ("batch", "seq"), (0, 9), 2)
    assert "ends" not in to_json(plain)
    assert to_json(ended)["ends"] == 2
    assert [from_json(TensorSpec, to_json(s)) for s in (plain, ended)] == [plain, ended]
