"""``--io``: clients send bytes or halves in place of floats, and the model casts, whatever framework it is of."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest

from accel.core.errors import SampleError, UsageError
from accel.core.feeds import read_feeds
from accel.core.values import ModelSource
from accel.exporters import describe, export_onnx, load
from accel.exporters.samples import make_samples
from accel.exporters.source_model import IN_FLOAT64, another_way
from accel.exporters.sources import recognise
from accel.graph.evaluate import open_unoptimised

PICTURES = """
import numpy as np, torch

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = torch.nn.Conv2d(3, 4, 3)

    def forward(self, pixels, gain):
        return {"scores": (self.conv(pixels / 255) * gain).mean((2, 3))}

def build(whole=True):
    torch.manual_seed(0)
    rng = np.random.default_rng(0)
    scale = 1 if whole else 1 / 255
    pixels = [rng.integers(0, 256, (1, 3, 8, 8)) * scale for _ in range(60)]
    return Net(), [{"pixels": p.astype(np.float32), "gain": np.ones((1, 1), np.float32)} for p in pixels]

def scaled():
    return build(whole=False)

def keras():
    import tensorflow as tf
    tf.keras.utils.set_random_seed(0)
    pixels = tf.keras.Input((4,), name="pixels")
    rng = np.random.default_rng(0)
    samples = [{"pixels": rng.integers(0, 256, (1, 4)).astype(np.float32)} for _ in range(60)]
    return tf.keras.Model(pixels, {"scores": tf.keras.layers.Dense(3)(pixels / 255.0)}), samples
"""


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    file = tmp_path / "pictures.py"
    file.write_text(PICTURES)
    return file


def described(source: str, **asked: str) -> ModelSource:
    return describe(recognise(source, io=asked))


def test_bytes_are_the_contract_and_the_reference_answers_them_as_the_floats(pictures: Path, tmp_path: Path) -> None:
    plain, bytes_ = described(f"{pictures}:build"), described(f"{pictures}:build", pixels="uint8")
    spec = next(s for s in bytes_.inputs if s.name == "pixels")
    assert (spec.dtype, spec.range, bytes_.native) == ("uint8", (0, 255), {"pixels": "float32"})
    assert [s.dtype for s in bytes_.inputs if s.name == "gain"] == ["float32"]
    model = load(bytes_)
    found = make_samples(bytes_, recognise(f"{pictures}:build", io={"pixels": "uint8"}), tmp_path / "samples")
    feed = read_feeds(tmp_path / "samples" / found.gate.path)["0"]
    assert feed["pixels"].dtype == np.uint8
    wide = feed | {"pixels": feed["pixels"].astype(np.float32)}
    np.testing.assert_array_equal(model.run(feed)["scores"], load(plain).run(wide)["scores"])
    how, exact = another_way(model, feed) or ("", None)
    assert how == IN_FLOAT64
    assert exact is not None
    np.testing.assert_allclose(exact(feed)["scores"], model.run(feed)["scores"], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("word", "kind"), [("uint8", onnx.TensorProto.UINT8), ("fp16", onnx.TensorProto.FLOAT16)])
@pytest.mark.parametrize("function", ["build", "keras"])
def test_the_exported_file_takes_what_clients_send(
    pictures: Path, tmp_path: Path, function: str, word: str, kind: int
) -> None:
    source = described(f"{pictures}:{function}", pixels=word)
    made = export_onnx(source, tmp_path / "onnx")  # held against the source at four shapes
    graph = onnx.load(tmp_path / "onnx" / made.file.path, load_external_data=False).graph
    assert {v.name: v.type.tensor_type.elem_type for v in graph.input}["pixels"] == kind


def test_a_file_that_is_onnx_gets_the_cast_and_keeps_all_else(make_onnx: Callable[..., Path], tmp_path: Path) -> None:
    origin = make_onnx(external=True)
    source = described(str(origin), x="fp16")
    made = export_onnx(source, tmp_path / "onnx")
    before, after = onnx.load(origin), onnx.load(tmp_path / "onnx" / made.file.path)
    assert [n.op_type for n in after.graph.node] == ["Cast", *(n.op_type for n in before.graph.node)]
    x = np.random.default_rng(0).standard_normal((3, 4)).astype(np.float16)
    (found,) = open_unoptimised(tmp_path / "onnx" / made.file.path).run(None, {"x": x})
    (wanted,) = open_unoptimised(origin).run(None, {"x": x.astype(np.float32)})
    np.testing.assert_array_equal(found, wanted)


def test_samples_that_bytes_cannot_hold_are_refused_with_the_way_out(pictures: Path, tmp_path: Path) -> None:
    request = recognise(f"{pictures}:scaled", io={"pixels": "uint8"})
    with pytest.raises(SampleError, match=r"sample 0: input 'pixels' holds 0\.\d+ at index \[0, 0, 0, 0\].*0 to 255"):
        make_samples(describe(request), request, tmp_path)
    halves = recognise(f"{pictures}:scaled", io={"pixels": "fp16"})
    made = make_samples(describe(halves), halves, tmp_path)
    assert read_feeds(tmp_path / made.gate.path)["0"]["pixels"].dtype == np.float16


@pytest.mark.parametrize(
    ("name", "word", "said"),
    [
        ("pixel", "uint8", "no input 'pixel'.*pixels"),
        ("pixels", "int4", "unknown type"),
        ("scores", "fp16", "no input 'scores'"),
    ],
)
def test_what_cannot_be_sent_smaller_is_said(pictures: Path, name: str, word: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        described(f"{pictures}:build", **{name: word})


def test_integers_stay_what_they_are(factory_file: Path) -> None:
    request = recognise(f"{factory_file}:ids", ranges={"ids": (0, 49)}, opt_shapes={"ids": (1, 5)}, io={"ids": "uint8"})
    with pytest.raises(UsageError, match="it is int64, and float32 is what is sent smaller"):
        describe(request)
