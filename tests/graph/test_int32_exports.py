"""Narrowing on real exports: bitwise equal at both levels, at the ends of every range and shape."""

import json
from pathlib import Path

import onnx
import pytest
from exported_models import MODELS
from narrowing_checks import assert_equal_models
from onnx import TensorProto

from accel.core.values import from_json, to_json
from accel.graph.narrow import NarrowReport, narrow_file, prove_int32_interior

pytestmark = [
    pytest.mark.slow,
    # torch and transformers warn about their own exporters.
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]
PROVED = {"bert", "minilm", "gpt2", "vit", "detector", "t5", "deberta"}
"""Models whose whole interior is proved to fit int32 in the dynamo export, and so may go to OpenVINO."""


@pytest.mark.parametrize("exporter", ["dynamo", "torchscript"])
@pytest.mark.parametrize("name", list(MODELS))
def test_exported_models_stay_bitwise_equal(name: str, exporter: str, tmp_path: Path) -> None:
    case, source = MODELS[name], tmp_path / "model.onnx"
    case.export(source, dynamo=exporter == "dynamo")
    before = source.read_bytes()
    integers = [n for n, array in case.inputs.items() if array.dtype.kind == "i"]
    for level in ("io", "interior"):
        out = tmp_path / f"{level}.onnx"
        report = narrow_file(source, out, level=level, ranges=case.ranges, shapes=case.shapes())
        onnx.checker.check_model(str(out), full_check=True)
        assert_equal_models(source, out, case.feeds())
        assert report.narrowed_inputs == tuple(n for n in integers if n not in case.must_stay)
        types = {v.name: v.type.tensor_type.elem_type for v in onnx.load(out, load_external_data=False).graph.input}
        for given in integers:
            assert types[given] == (TensorProto.INT64 if given in case.must_stay else TensorProto.INT32)
        assert from_json(NarrowReport, json.loads(json.dumps(to_json(report)))) == report
        for feed in case.feeds():
            report.check(feed)
    assert source.read_bytes() == before
    if exporter == "dynamo":
        unproved = prove_int32_interior(source, ranges=case.ranges, shapes=case.shapes())
        assert (not unproved) == (name in PROVED), unproved
