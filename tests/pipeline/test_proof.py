"""What a proof says of a model whose own answers are noisy, of a lowered gate, and of a build of one fixed shape."""

import dataclasses

import numpy as np
import pytest
from tiny_run import convert

from accel.builders import targets
from accel.core.errors import StageError
from accel.core.feeds import write_feeds
from accel.core.values import (
    Artifact,
    BuildRequest,
    ModelSource as Source,
    SampleSet,
    ShapeRange,
    Target,
    TensorSpec,
    Variant,
    file_ref,
)
from accel.run import tasks

CANCELLING = """
import numpy as np
import torch

class Cancelling(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.mix, self.second = torch.nn.Linear(512, 64), torch.nn.Linear(64, 16)
        with torch.no_grad():  # large terms cancel: what is left lies in the last bits of the sums
            large = 50 * torch.randn(64, 256)
            self.mix.weight += torch.cat([large, -large], 1)

    def forward(self, x):
        wide = x.repeat(1, 16)
        return {"y": self.second(self.mix(torch.cat([wide, wide], 1)))}

def build():
    torch.manual_seed(0)
    rng = np.random.default_rng(0)
    return Cancelling(), [{"x": rng.standard_normal((1, 16), dtype=np.float32)} for _ in range(60)]
"""


def test_a_gate_above_the_sources_own_noise_is_lowered_and_said(tmp_path):
    factory = tmp_path / "cancelling.py"
    factory.write_text(CANCELLING)
    free = {"min_shape": [], "shape": [], "max_shape": [], "range": [], "objective": "latency", "rounds": 2}
    document = convert(factory, tmp_path / "run", "ort", **free)
    (variant,) = document["variants"]
    parity = variant["parity"]
    assert parity["found"]["sqnr_db"] < 80
    assert variant["status"] == "ok", variant["reason"]
    assert parity["gate"]["sqnr_db"] < 80
    lowered, *_ = parity["notes"]
    assert "output 'y'" in lowered
    assert "; the source itself, in float64, gives" in lowered  # no coverage feed was missed: no inputs are moved
    assert any("compared on" in note for note in parity["notes"])
    assert "the source itself, in float64, gives" in (tmp_path / "run" / "report.md").read_text()
    asked = convert(factory, tmp_path / "run", "ort", **free, gate=["fp32=20"])
    notes = asked["variants"][0]["parity"]["notes"]
    assert "the gate sqnr_db is 20 in place of 80, as --gate asked" in notes


@pytest.mark.parametrize(("different", "fits"), [(1, False), (2, True)])
def test_a_build_of_one_shape_is_not_proved_on_one_sample(tmp_path, different, fits):
    inputs, outputs = (TensorSpec("x", "float32", ("batch", "n")),), (TensorSpec("y", "float32", ("batch", "n")),)
    profile = {"x": ShapeRange((1, 1), (1, 8), (4, 9))}
    source = Source("m", "factory", "/m.py:m", "torch", "local", None, "0", inputs, outputs, profile)
    rng = np.random.default_rng(0)
    write_feeds(tmp_path / "gate.npz", {str(n): {"x": rng.random((1, n), dtype=np.float32)} for n in range(1, 8)})
    one = rng.random((1, 8), dtype=np.float32)
    shapes = {"opt": one, "max": np.concatenate([one, one + (different - 1)])}
    write_feeds(tmp_path / "shapes.npz", {name: {"x": value} for name, value in shapes.items()})
    gate, points = (file_ref(tmp_path / name, tmp_path) for name in ("gate.npz", "shapes.npz"))
    described = tasks.Described(source, SampleSet(None, gate, points, 0, 7, "0", "drawn"))
    fixed = Variant(Target("null", "cpu"), {"x": ShapeRange((1, 8), (1, 8), (1, 8))}, static="1x8")
    builder, out = targets.discover()["null"], tmp_path / "built"
    out.mkdir()
    request = BuildRequest(fixed, source, None, None, described.samples, str(tmp_path), 1)
    built = builder.build(request, dataclasses.replace(builder.options(), latency_ms=0.0), out)
    artifact = Artifact(fixed, (), "0", built, 0.0)
    if fits:
        assert tasks.answers(artifact, out, described, tmp_path, tmp_path / "answers.npz", 1).feeds == 2
    else:
        with pytest.raises(StageError, match="one gate sample alone fits the fixed shape"):
            tasks.answers(artifact, out, described, tmp_path, tmp_path / "answers.npz", 1)
