"""The target grammar and discovery."""

import pytest

from accel.builders import targets
from accel.core.errors import UsageError
from accel.core.values import Target


def names(text, devices=("cpu",)):
    return [str(t) for t in targets.parse(text, devices=devices)]


def test_names_devices_aliases_and_repeats():
    assert names("ort, onnx,openvino-int8@cpu") == ["ort@cpu", "openvino-int8@cpu"]
    assert names("trt-fp16") == ["trt-fp16@cuda"]
    assert names("torch", ("cpu", "cuda")) == ["torch@cpu", "torch@cuda"]
    assert names("torch@cuda") == ["torch@cuda"]


def test_device_leaves_no_other():
    assert {t.device for t in targets.parse("all", devices=("cuda",), only=True)} == {"cuda"}
    with pytest.raises(UsageError, match="does not run on 'cuda'"):
        targets.parse("openvino", devices=("cuda",), only=True)


def test_groups():
    cpu = names("cpu")
    assert {"torch@cpu", "aoti@cpu", "ort@cpu", "ort-int8@cpu", "ort-int8-dynamic@cpu", "ort-openvino@cpu"} <= set(cpu)
    assert {"openvino@cpu", "openvino-fp32@cpu", "openvino-bf16@cpu", "openvino-int8@cpu", "torch-bf16@cpu"} <= set(cpu)
    assert "null@cpu" not in cpu
    assert all(t.endswith("@cuda") for t in names("gpu"))
    assert {"trt-fp16@cuda", "ort-cuda-fp16@cuda", "ort-trt-int8@cuda", "aoti-fp16@cuda"} <= set(names("gpu"))
    assert set(names("all")) == set(cpu) | set(names("gpu"))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("openvin", "did you mean openvino"),
        ("trt-fp61", "did you mean trt-fp16"),
        ("ort@gpu", "does not run on 'gpu'"),
        ("trt@cpu", "does not run on 'cpu'"),
        (" , ", "no target"),
        ("ORT", "unknown target"),
    ],
)
def test_what_is_wrong_is_said(text, said):
    with pytest.raises(UsageError, match=said):
        names(text)


def test_every_target_of_the_design_is_offered():
    designed = """
        torch torch-bf16 torch-fp16 aoti aoti-bf16 aoti-fp16 ort ort-int8 ort-int8-dynamic ort-openvino
        ort-cuda ort-cuda-tf32 ort-cuda-fp16 ort-trt ort-trt-fp16 ort-trt-int8
        openvino openvino-fp32 openvino-bf16 openvino-int8
        trt trt-fp32 trt-fp16 trt-bf16 trt-int8 trt-fp8 null
    """
    assert set(designed.split()) <= set(targets.discover())


def test_two_builders_for_one_target_are_refused(monkeypatch):
    class Point:
        def load(self):
            return targets.discover()["ort"]

    known = targets.discover()
    assert "ort" in known
    monkeypatch.setattr(targets, "entry_points", lambda group: [Point()])
    with pytest.raises(UsageError, match="offered by two"):
        targets.discover.__wrapped__()


def test_a_target_is_a_name_and_a_device():
    assert str(Target("ort", "cpu")) == "ort@cpu"
