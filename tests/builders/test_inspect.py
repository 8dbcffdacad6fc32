"""``accel inspect``: what a file says about itself."""

import json

import onnx
import pytest
from small_onnx import mlp

from accel.builders.to_openvino import import_openvino
from accel.core.errors import InputError, UnavailableError
from accel.run.inspection import inspect


def test_onnx(tmp_path):
    found = inspect(mlp(tmp_path / "m.onnx", gemm=True))
    assert found["kind"] == "onnx"
    assert found["opset"] == 18
    assert found["ops"] == {"Gemm": 1, "MatMul": 3, "Tanh": 3}
    assert found["inputs"] == [{"name": "x", "dtype": "float32", "dims": ["batch", 32], "range": None}]
    assert found["precision"] == {"weights": {"float": 4 * 32 * 32 + 32}, "int8_products": 0, "products": 4}


def test_a_data_type_that_nobody_knows(tmp_path):
    path = mlp(tmp_path / "m.onnx")
    model = onnx.load(path)
    model.graph.initializer[0].data_type = 99
    path.write_bytes(model.SerializeToString())
    assert inspect(path)["precision"]["weights"]["unknown (99)"] == 32 * 32
    model.graph.input[0].type.tensor_type.elem_type = 99
    path.write_bytes(model.SerializeToString())
    with pytest.raises(InputError, match="'x' has the element type 99"):
        inspect(path)


def test_openvino(tmp_path):
    ov = import_openvino()
    model = ov.Core().read_model(mlp(tmp_path / "m.onnx"))
    ov.save_model(model, tmp_path / "m.xml", compress_to_fp16=False)
    found = inspect(tmp_path / "m.xml")
    assert found["kind"] == "openvino"
    assert found["ops"]["MatMul"] == 4
    assert found["outputs"][0]["name"] == "y"
    assert set(found["precision"]["weights"]) == {"f32"}
    json.dumps(found)


def test_an_ir_with_bytes_of_no_text(tmp_path):
    """OpenVINO puts them into its message, which then is none, or into names."""
    ov = import_openvino()
    ov.save_model(ov.Core().read_model(mlp(tmp_path / "m.onnx")), tmp_path / "m.xml")
    path = tmp_path / "m.xml"
    whole = path.read_bytes()
    for text, broken in ((b'type="MatMul"', b'type="Mat\x80"'), (b'names="y"', b'names="\xff"')):
        assert text in whole
        path.write_bytes(whole.replace(text, broken))
        with pytest.raises(InputError, match="is not an OpenVINO IR"):
            inspect(path)


def test_a_run(tmp_path):
    run = {"schema": 1, "model": {"name": "m"}, "variants": [{"id": "ort@cpu", "status": "ok"}], "decisions": []}
    (tmp_path / "run.json").write_text(json.dumps(run))
    assert inspect(tmp_path)["variants"][0]["id"] == "ort@cpu"


def test_refuses_what_it_cannot_read(tmp_path):
    for name, content in (("a.onnx", b"\x00broken"), ("a.xml", b"<net"), ("run.json", b"{}"), ("a.txt", b"")):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(InputError):
            inspect(tmp_path / name)
    with pytest.raises(InputError):
        inspect(tmp_path / "missing.onnx")
    (tmp_path / "a.plan").write_bytes(b"")
    with pytest.raises(UnavailableError):
        inspect(tmp_path / "a.plan")
