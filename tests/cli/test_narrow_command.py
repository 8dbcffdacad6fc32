"""``accel narrow``: what it prints, writes and refuses. What is proved, and how, is tested in tests/graph."""

import json
import subprocess
import sys

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from accel.builders.narrow import narrow_file
from accel.core.errors import InputError


def accel(*words):
    return subprocess.run(
        [sys.executable, "-m", "accel", *map(str, words)], capture_output=True, text=True, check=False
    )


@pytest.fixture
def model(tmp_path):
    """Gather rows of a table by ids, plus an int64 sum that has no bound."""
    table = numpy_helper.from_array(np.arange(40, dtype=np.float32).reshape(10, 4), "table")
    nodes = [
        helper.make_node("Gather", ["table", "ids"], ["rows"]),
        helper.make_node("Add", ["free", "free"], ["twice"]),
    ]
    inputs = [helper.make_tensor_value_info(n, TensorProto.INT64, ["batch"]) for n in ("ids", "free")]
    outputs = [
        helper.make_tensor_value_info("rows", TensorProto.FLOAT, ["batch", 4]),
        helper.make_tensor_value_info("twice", TensorProto.INT64, ["batch"]),
    ]
    graph = helper.make_graph(nodes, "g", inputs, outputs, [table])
    path = tmp_path / "in.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10), path)
    return path


def test_what_is_proved_is_narrowed_and_the_rest_stays_with_its_reason(model, tmp_path):
    before = model.read_bytes()
    out, report = tmp_path / "out.onnx", tmp_path / "r.json"
    done = accel("narrow", model, "-o", out, "--range", "ids=0:9", "--report", report)
    assert done.returncode == 0, done.stderr
    assert "ids" in done.stdout
    assert model.read_bytes() == before
    types = {i.name: i.type.tensor_type.elem_type for i in onnx.load(out).graph.input}
    assert types == {"ids": TensorProto.INT32, "free": TensorProto.INT64}
    rows = {v["name"]: v for v in json.loads(report.read_text())["values"]}
    assert rows["ids"]["decision"] == "narrowed"
    assert (rows["free"]["decision"], rows["free"]["cause"]) == ("kept", "unproved")
    assert json.loads(accel("narrow", model, "-o", out, "--json").stdout)["level"] == "io"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--range", "ids=9:0"], "ids"),
        (["--range", "nope=0:9"], "nope"),
        (["--level", "all"], "keep, io or interior"),
        (["--runtime", "cuda"], "ort, openvino or tensorrt"),
        (["--min-shape", "ids:1"], "--max-shape"),
    ],
)
def test_bad_input_is_exit_code_2(model, tmp_path, words, said):
    done = accel("narrow", model, "-o", tmp_path / "out.onnx", *words)
    assert done.returncode == 2, done.stderr
    assert said in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "out.onnx").exists()


def test_the_input_file_is_never_the_output(model):
    before = model.read_bytes()
    done = accel("narrow", model, "-o", model)
    assert done.returncode == 2
    assert model.read_bytes() == before


def test_a_broken_file(tmp_path):
    broken = tmp_path / "broken.onnx"
    broken.write_bytes(b"not onnx at all")
    done = accel("narrow", broken, "-o", tmp_path / "out.onnx")
    assert done.returncode == 2
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("kind", [TensorProto.INT64, TensorProto.DOUBLE])
def test_a_constant_of_more_axes_than_numpy_takes_is_an_error(tmp_path, kind):
    constant = onnx.TensorProto(name="w", data_type=kind, dims=[1] * 1000, raw_data=bytes(8))
    nodes = [helper.make_node("Cast", ["w"], ["c"], to=TensorProto.INT64), helper.make_node("Add", ["x", "c"], ["y"])]
    x = helper.make_tensor_value_info("x", TensorProto.INT64, ["batch"])
    y = helper.make_tensor_value_info("y", TensorProto.INT64, [1] * 999 + ["batch"])
    graph = helper.make_graph(nodes, "g", [x], [y], [constant])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10), tmp_path / "m.onnx")
    with pytest.raises(InputError, match="the data of 'w' cannot be read"):
        narrow_file(tmp_path / "m.onnx", tmp_path / "out.onnx", level="io", ranges={}, shapes={})
