"""Each shell command of README runs as it stands, in one folder, in README's order.

Its files are made here, real and small; a known model stands in its reduced form (``STANDS_FOR``), and measuring ends
early (``SHORTER``). What builds every target, or a dozen configurations, belongs to ``make campaign`` (``MINUTES``).
That each command, of ``MINUTES`` too, is one that the command line takes is tested in test_docs.py.
"""

import importlib.util
import os
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from accel.core import environments
from tests.test_docs import NOT_PARSED, ROOT, readme_commands

STANDS_FOR = {"bert": ["bert@small", "-o", "runs/bert"], "minilm": ["minilm@small", "-o", "runs/minilm"]}
SHORTER = {
    "convert": ["--rounds", "2", "--round-s", "0.02"],
    "bench": ["--seconds", "0.1"],
    "tune": ["--budget-s", "10", "--seconds", "0.5", "--requests", "50"],
}
MINUTES = ("--targets cpu", "openvino,aoti", "accel tune", "accel release build")
"""Parts of commands that take long; the tutorials run shorter ones of ``tune`` and ``release``."""
SERVED = ("accel env", "accel serve", "accel bench", "accel tune", "--bench both", "--ensemble")
"""Commands that need the embedded server."""
NO_GPU = 3
"""The documented exit code of what this machine cannot do: finish a kit of TensorRT."""
NET = """
import torch

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = torch.nn.Conv2d(3, 4, 3, stride=2)

    def forward(self, x):
        return self.conv(x).relu().mean((2, 3))

def build():
    torch.manual_seed(0)
    return Net()
"""
RELEASE = """
release: "1"
defaults: {objective: latency, budget_s: 2}
pools:
  small: {device: cpu, targets: [ort]}
models:
  mine: {source: model.onnx, samples: real.npz}
"""


def cases() -> list[Any]:
    found = [line for line in readme_commands() if line not in NOT_PARSED]
    slow = [any(part in line for part in MINUTES) for line in found]
    return [pytest.param(f, marks=[pytest.mark.campaign] if s else [], id=f) for f, s in zip(found, slow, strict=True)]


class Place:
    """A folder with all files that README names, and the command."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "net.py").write_text(NET)
        (folder / "job.yaml").write_text("source: model.onnx\ntargets: ort\nsamples: real.npz\nobjective: latency\n")
        (folder / "release.yaml").write_text(RELEASE)
        rng = np.random.default_rng(0)
        np.savez(folder / "real.npz", x=rng.standard_normal((300, 16)).astype(np.float32))
        _onnx(folder / "model.onnx", rng)

    def run(self, line: str) -> "subprocess.Popen[str]":
        """Begin a command; its stand-in and the shorter measuring are all that is changed."""
        words = shlex.split(line)
        command, rest = words[1], words[2:]
        if command == "convert" and rest[0] in STANDS_FOR and "--ensemble" not in rest:  # small ones have no tokenizer
            rest[:1] = STANDS_FOR[rest[0]]
        if "--max-p99-ms" not in rest or command == "tune":  # a percentile wants samples
            rest += SHORTER.get(command, [])
        python = [sys.executable, "-m", "accel", command, *rest]
        env = os.environ | {"PYTHONPATH": str(ROOT), "TF_CPP_MIN_LOG_LEVEL": "3"}
        pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        return subprocess.Popen(python, cwd=self.folder, env=env, preexec_fn=_hear_ctrl_c, **pipes)

    def bert(self) -> None:
        """Have a run of bert, here and of another machine: the campaign's own, else one of the ONNX file."""
        runs = self.folder / "runs"
        if not (runs / "bert").exists():
            if not (runs / "model").exists():
                done = self.run("accel convert model.onnx --targets ort --samples real.npz")
                said = done.communicate()
                assert done.returncode == 0, said
            shutil.copytree(runs / "model", runs / "bert")
        shutil.copytree(runs / "bert", self.folder / "other-machine" / "runs" / "bert", dirs_exist_ok=True)

    def files_of(self, line: str) -> None:
        """Make what takes a framework to make."""
        if "my-bert-folder" in line:
            from transformers import BertConfig, BertModel

            sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
            BertModel(BertConfig(vocab_size=100, **sizes)).save_pretrained(self.folder / "my-bert-folder")
        if "program.pt2" in line:
            import torch

            module = torch.nn.Sequential(torch.nn.Linear(16, 8), torch.nn.Tanh())
            torch.export.save(torch.export.export(module, (torch.ones(1, 16),)), self.folder / "program.pt2")
        if "saved_model" in line:
            if importlib.util.find_spec("tensorflow") is None:
                pytest.skip("TensorFlow is not installed")
            code = "import keras; keras.Sequential([keras.Input((16,)), keras.layers.Dense(8)]).export('saved_model')"
            subprocess.run([sys.executable, "-c", code], cwd=self.folder, check=True, capture_output=True)
        if "accel build kit" in line:
            made = self.run("accel convert model.onnx --targets trt-fp16 --samples real.npz --bench none -o runs/typed")
            made.communicate()
            shutil.copytree(self.folder / "runs" / "typed" / "variants" / "trt-fp16@cuda" / "kit", self.folder / "kit")


def _hear_ctrl_c() -> None:
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # a job in the background inherits "ignore"


def _onnx(path: Path, rng: np.random.Generator) -> None:
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    weight = numpy_helper.from_array(rng.standard_normal((16, 8)).astype(np.float32), "w")
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 16])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", 8])
    nodes = [helper.make_node("MatMul", ["x", "w"], ["h"]), helper.make_node("Tanh", ["h"], ["y"])]
    graph = helper.make_graph(nodes, "g", [x], [y], [weight])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9), path)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    return Place(tmp_path_factory.mktemp("readme"))


@pytest.mark.parametrize("line", cases())
def test_a_command_of_the_readme_runs(place, line):
    if any(part in line for part in SERVED) and not environments.installed("triton"):
        pytest.skip("the embedded server is not installed")
    if "convert" not in line and "runs/bert" in line:
        place.bert()
    place.files_of(line)
    running = place.run(line)
    if line.startswith("accel serve"):
        assert running.stdout is not None
        assert running.stdout.readline().startswith("gRPC")
        running.send_signal(signal.SIGINT)
    out, err = running.communicate(timeout=600)
    expected = NO_GPU if line.startswith("accel build kit") else 0
    assert running.returncode == expected, f"{out}\n{err}"
    assert "Traceback" not in err
