"""The target grammar and discovery."""

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from accel.builders import Builder, targets
from accel.core.errors import UsageError
from accel.core.values import Target
from accel.run import doctor


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
    ort = targets.discover()["ort"]
    plug_in(monkeypatch, lambda: ort)
    with pytest.raises(UsageError, match="offered by two"):
        targets.discover.__wrapped__()


class NotReady(Builder):
    targets: Mapping[str, Any] = {"mine": None}

    def available(self, target): ...
    def build(self, request, options, out_dir): ...
    def open(self, artifact, folder, *, threads, mode): ...
    def triton(self, artifact, release): ...


def broken():
    raise ImportError("no libmine.so")


@pytest.mark.parametrize(
    ("load", "why"),
    [
        (broken, "mine:BUILDER cannot be imported: ImportError: no libmine.so"),
        (lambda: NotReady, "expected an instance of a subclass of Builder"),
        (NotReady, "mine:BUILDER declares no options"),
    ],
)
def test_a_plugin_that_cannot_be_used_hinders_no_other_target(monkeypatch, load, why):
    plug_in(monkeypatch, load)
    assert "ort" in targets.discover.__wrapped__()
    (row,) = [row for row in doctor.targets_here() if row["target"] == "my-plugin"]
    assert not row["available"]
    assert why in row["reason"]
    with pytest.raises(UsageError, match=f"unknown target 'mine'.*'my-plugin' cannot be used: .*{why}"):
        targets.parse("mine", devices=("cpu",))
    (check,) = [row for row in doctor.examine() if row["what"] == "plug-in my-plugin"]
    assert (check["ok"], check["needed"], check["fix"]) == (False, False, row["fix"])
    assert why in check["found"]


def plug_in(monkeypatch, load):
    point = SimpleNamespace(name="my-plugin", value="mine:BUILDER", load=load)
    monkeypatch.setattr(targets, "entry_points", lambda group: [point])
    monkeypatch.setattr(targets, "plugins", targets.plugins.__wrapped__)


def test_a_target_is_a_name_and_a_device():
    assert str(Target("ort", "cpu")) == "ort@cpu"
