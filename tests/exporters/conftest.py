"""Tiny sources of every kind, made once."""

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch

FACTORY = """
import numpy as np, torch

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first = torch.nn.Linear(8, 16)
        self.second = torch.nn.Linear(16, 3)

    def forward(self, x, scale=None):
        y = torch.relu(self.first(x))
        y = y if scale is None else y * scale
        return {"logits": self.second(y), "hidden": y}

def plain():
    return Net()

def sampled():
    rng = np.random.default_rng(1)
    return Net(), [{"x": rng.standard_normal((4, 8))} for _ in range(3)]

def as_tuple():
    return Net(), (np.ones((2, 8), np.float32), np.ones((2, 1), np.float32))

class Raises(Net):
    def forward(self, x):
        raise ZeroDivisionError("no such thing")

def raises():
    return Raises()

class Static(Net):
    def forward(self, x):
        return self.first(x).expand(int(x.shape[0]), 16) + torch.ones(tuple(int(s) for s in (2, 16)))[: 1]

class Frozen(Net):
    def forward(self, x):
        # The size becomes a number while tracing, as in code that loops over rows.
        rows = [self.second(torch.relu(self.first(x[i]))) for i in range(x.shape[0])]
        return torch.stack(rows)

def frozen():
    return Frozen()

class Nested(Net):
    def forward(self, x):
        return {"a": (x, "text")}

def nested():
    return Nested()

class Ids(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.table = torch.nn.Embedding(50, 4)

    def forward(self, ids):
        return self.table(ids).mean(1)

def ids():
    return Ids()

def breaks():
    raise RuntimeError("weights.bin is not here")

def not_a_module():
    return 3
"""


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture
def factory_file(tmp_path: Path) -> Path:
    path = tmp_path / "net.py"
    path.write_text(FACTORY)
    return path


@pytest.fixture(scope="session")
def hf_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from transformers import BertConfig, BertModel

    from model_zoo._text import minilm_folder

    torch.manual_seed(0)
    config = BertConfig(
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=64,
    )
    folder = tmp_path_factory.mktemp("hf") / "tiny-bert"
    BertModel(config).save_pretrained(folder)
    tokenizer = minilm_folder()
    assert tokenizer is not None
    shutil.copy(tokenizer / "tokenizer.json", folder)
    return folder


@pytest.fixture
def make_onnx(tmp_path: Path) -> Callable[..., Path]:
    """Write y = relu(x @ w) with x (batch, 4), its weights inside or beside the file."""

    def write(name: str = "m.onnx", *, external: bool = False, batch: str | int = "batch") -> Path:
        helper = onnx.helper
        weights = np.random.default_rng(0).standard_normal((4, 300)).astype(np.float32)
        graph = helper.make_graph(
            [helper.make_node("MatMul", ["x", "w"], ["h"]), helper.make_node("Relu", ["h"], ["y"])],
            "g",
            [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [batch, 4])],
            [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [batch, 300])],
            [onnx.numpy_helper.from_array(weights, "w")],
        )
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
        path = tmp_path / name
        onnx.save(model, str(path), save_as_external_data=external, location="weights/w.data" if external else None)
        return path

    (tmp_path / "weights").mkdir()
    return write
