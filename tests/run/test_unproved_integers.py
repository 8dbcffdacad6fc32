"""Integers that are not proved hinder the targets whose runtime would change them, and no other."""

import pytest

from accel.builders import TargetInfo, targets
from accel.core.values import ModelSource, Target
from accel.run import stages

WIDE, FLOAT = "'y' (Add) may lie anywhere", "'z': Mod is computed in float"


@pytest.fixture
def source() -> ModelSource:
    return ModelSource(
        name="m",
        kind="onnx",
        reference="m.onnx",
        framework="onnx",
        weights="",
        revision=None,
        key="",
        inputs=(),
        outputs=(),
        profile={},
        unproved_int64=(WIDE,),
        inexact_int64=(("Mod", FLOAT),),
    )


@pytest.mark.parametrize(
    ("name", "hindered"),
    [("ort", ()), ("torch", ()), ("openvino-fp32", (WIDE, FLOAT)), ("ort-openvino", (WIDE, FLOAT))],
)
def test_a_runtime_is_held_by_what_its_builder_declares(source: ModelSource, name: str, hindered: object) -> None:
    assert stages._unproved(source, Target(name, "cpu")) == hindered
    assert source.unproved_integers == (WIDE, FLOAT)


@pytest.mark.parametrize(
    ("through_float", "hindered"), [((), (WIDE,)), (("Div",), (WIDE,)), (("Div", "Mod"), (WIDE, FLOAT))]
)
def test_of_a_plugin_only_its_own_operators_count(
    source: ModelSource, through_float: tuple[str, ...], hindered: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = TargetInfo(("cpu",), "fp32", "of the test", int64_as_int32=True, through_float=frozenset(through_float))
    monkeypatch.setattr(targets, "info", lambda target: own)
    assert stages._unproved(source, Target("mine", "cpu")) == hindered
