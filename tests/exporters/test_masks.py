"""Which input is the mask of a user's own model."""

import dataclasses

import pytest

from accel.core.errors import UsageError
from accel.core.values import TensorSpec
from accel.exporters import axes, masks, sources

IDS = TensorSpec("ids", "int64", ("batch", "seq"), (0, 9))
MASK = TensorSpec("seen", "int64", ("batch", "seq"), (0, 1))
WEIGHTS = TensorSpec("weights", "float32", ("batch", "seq"))
SCALE = TensorSpec("scale", "int64", ("batch",), (0, 1))


def specs(*names: str) -> list[TensorSpec]:
    return [dataclasses.replace(IDS, name=name) for name in names]


@pytest.mark.parametrize(
    ("names", "mask", "family"),
    [
        (("input_ids", "attention_mask"), "attention_mask", "transformer"),
        (("input_ids:0", "input_mask:0", "segment_ids:0"), "input_mask:0", "transformer"),
        (("input_word_ids", "input_mask", "input_type_ids"), "input_mask", "transformer"),
        (("x", "attention_mask"), "attention_mask", "other"),
        (("input_ids", "mask"), None, "other"),
    ],
)
def test_masks_and_families_go_by_the_names_of_inputs(names, mask, family):
    found = masks.usual(specs(*names))
    assert (found, masks.family(specs(*names), found)) == (mask, family)


def test_a_mask_of_pictures_hides_no_padding():
    picture = TensorSpec("image", "float32", ("batch", 3, "h", "w"))
    hole = TensorSpec("input_mask", "float32", ("batch", 1, "h", "w"))
    assert masks.usual([picture, hole]) is None


@pytest.mark.parametrize(
    ("spec", "may_be"),
    [
        (TensorSpec("src_mask", "bool", ("batch", "seq")), True),
        (TensorSpec("src_mask", "bool", ("batch", "other")), False),
        (TensorSpec("src_mask", "float32", ("batch", "seq")), False),
        (TensorSpec("src_mask", "int64", ("batch",)), False),
        (TensorSpec("positions", "int64", ("batch", "seq")), False),
    ],
)
def test_what_may_be_a_mask_is_asked_about(spec, may_be):
    assert masks.may_be_mask(spec, [IDS, spec]) is may_be


@pytest.fixture
def source(tmp_path):
    path = tmp_path / "model.onnx"
    path.write_bytes(b"")
    inputs = (IDS, MASK, WEIGHTS, SCALE)
    request = sources.recognise(str(path))
    return request.source("onnx", key="k", inputs=inputs, outputs=(IDS,), profile={}, samples="random")


def test_the_user_names_a_mask(source):
    assert source.mask is None
    assert axes.with_mask(source, "seen").mask == "seen"
    assert axes.with_mask(axes.with_mask(source, "seen"), None).mask == "seen"
    assert axes.with_mask(axes.with_mask(source, "seen"), "none").mask is None


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("sen", "did you mean seen"),
        ("weights", "integers or bools are expected"),
        ("scale", "expected the axes of the input whose padding it hides"),
    ],
)
def test_a_mask_that_hides_no_padding_is_refused(source, name, message):
    with pytest.raises(UsageError, match=message):
        axes.with_mask(source, name)
