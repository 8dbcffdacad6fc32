"""A build of one fixed shape, of a model whose batch does not lead every input."""

from pathlib import Path

import numpy as np
import onnx

from accel.core.feeds import read_feeds
from accel.core.values import BuildRequest, ShapeRange, Target, Variant
from accel.exporters import export_onnx, load
from accel.exporters.sources import recognise
from accel.run import tasks


def test_a_state_beside_the_batch_is_not_cut_into_groups(tmp_path: Path) -> None:
    text = """<ir_version: 8, opset_import: ["" : 17]> g (float[batch, 4] x, float[2, batch, 4] s) =>
        (float[batch, 4] y, float[2, batch, 4] t) { t = Add(s, x) y = ReduceMean<axes=[0], keepdims=0>(t) }"""
    onnx.save(onnx.parser.parse_model(text), tmp_path / "m.onnx")
    described = tasks.describe(recognise(str(tmp_path / "m.onnx")), tmp_path / "samples")
    source = described.source
    model = load(source)
    exported = export_onnx(source, tmp_path / "onnx", model=model)
    profile = {name: ShapeRange(s.opt, s.opt, s.opt) for name, s in source.profile.items()}
    variant = Variant(Target("openvino-fp32", "cpu"), profile, static="1x4")
    samples = str(tmp_path / "samples")
    request = BuildRequest(variant, source, exported, str(tmp_path / "onnx"), described.samples, samples, threads=1)
    (tmp_path / "built").mkdir()
    artifact = tasks.build(request, tmp_path / "built", "")
    ran = tasks.answers(artifact, tmp_path / "built", described, Path(samples), tmp_path / "answers.npz", 1)
    found = read_feeds(tmp_path / "answers.npz")
    feeds = read_feeds(Path(samples) / described.samples.gate.path)
    assert ran.feeds == len(found) > 1
    for name in found.keys() & feeds.keys():
        for output, value in model.run(feeds[name]).items():
            np.testing.assert_allclose(found[name][output], value, rtol=1e-6, atol=1e-6)
