"""A run whose clients send bytes: every variant takes them, and the repository that is served says so."""

import json

import numpy as np
import pytest
from tiny_run import convert

import accel
from accel.core import hardware
from accel.triton.config import parse
from accel.triton.servers import server

BF16 = () if hardware.emulates_bf16() else ("torch-bf16",)
PICTURES = """
import numpy as np, torch

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = torch.nn.Conv2d(3, 8, 3)
        self.head = torch.nn.Linear(8, 4)

    def forward(self, pixels):
        return {"scores": self.head(torch.relu(self.conv(pixels / 255)).mean((2, 3)))}

def build():
    torch.manual_seed(0)
    rng = np.random.default_rng(0)
    samples = rng.integers(0, 256, (120, 1, 3, 16, 16)) * rng.random((120, 1, 3, 1, 1))
    return Net(), [{"pixels": np.floor(s).astype(np.float32)} for s in samples]
"""


@pytest.mark.slow
def test_every_variant_takes_bytes_and_so_does_what_is_served(tmp_path):
    file = tmp_path / "pictures.py"
    file.write_text(PICTURES)
    shapes = {name: ["pixels:1x3x16x16"] for name in ("min_shape", "shape")} | {"max_shape": ["pixels:4x3x16x16"]}
    targets = ",".join(["torch", *BF16, "ort", "openvino-int8"])
    out = tmp_path / "run"
    found = convert(file, out, targets, io="pixels=uint8", bench="none", **shapes | {"range": []})
    assert {v["target"]: v["status"] for v in found["variants"]} == dict.fromkeys(targets.split(","), "ok")
    assert found["model"]["inputs"][0]["dtype"] == "uint8"
    for name in (*(f"{target}@cpu" for target in BF16), "ort@cpu", "openvino-int8@cpu"):
        (model,) = (out / "repositories" / name).glob("*/config.pbtxt")
        assert parse(model.read_text()).input[0].data_type == 2  # TYPE_UINT8
    pixels = np.random.default_rng(1).integers(0, 256, (2, 3, 16, 16), np.uint8)
    wanted = accel.load(out / "repositories" / "torch@cpu")(pixels=pixels)["scores"]
    with server.start(out / "repositories" / "torch@cpu", via="embedded", log=tmp_path / "log") as running:
        import tritonclient.grpc as grpc

        client = grpc.InferenceServerClient(running.endpoint.grpc)
        given = grpc.InferInput("pixels", pixels.shape, "UINT8")
        given.set_data_from_numpy(pixels)
        name = json.loads((out / "repositories" / "torch@cpu" / "manifest.json").read_text())["models"][0]
        answer = client.infer(name, [given]).as_numpy("scores")
    np.testing.assert_allclose(answer, wanted, rtol=1e-5, atol=1e-6)
