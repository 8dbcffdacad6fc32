"""The code of docs/python.md, word for word, on MiniLM with its real weights.

Two things stand outside it: which targets take part and for how long, which a user leaves to the defaults; with those
the same code runs for minutes.
"""

import functools
import re
from pathlib import Path

import pytest
import torch

import accel
from model_zoo import _text

ROOT = Path(accel.__file__).parents[1]
QUICK = {"targets": "torch,openvino-int8", "objective": "latency", "gate": {"int8": 10.0}, "rounds": 2, "round_s": 0.05}
LENGTHS = (8, 12)


def first_block() -> str:
    found = re.search(r"^```python\n(import accel\n.*?)^```$", (ROOT / "docs" / "python.md").read_text(), re.M | re.S)
    assert found
    return found[1]


def lines(code: str) -> list[str]:
    return [line.partition("  #")[0].strip() for line in code.splitlines()]


def test_the_front_page_shows_lines_of_it():
    readme = (ROOT / "README.md").read_text()
    shown = re.search(r"## From Python\n\n((?:    .+\n)+)", readme)
    assert shown
    assert len(lines(shown[1])) >= 2
    assert set(lines(shown[1])) <= set(lines(first_block()))


@pytest.mark.campaign
def test_the_code_runs_word_for_word(tmp_path, monkeypatch):
    transformers = pytest.importorskip("transformers")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(accel, "optimize", functools.partial(accel.optimize, out="runs/bert", **QUICK), raising=False)
    module = transformers.AutoModel.from_pretrained(_text.minilm_folder()).eval()
    items = [item for item in _text.tokenised(200) if item["input_ids"].shape[1] in LENGTHS][:16]
    batches = [{name: torch.from_numpy(value) for name, value in item.items()} for item in items]
    scope = {"module": module, "batches": batches, "inputs": batches[0]}
    exec(compile(first_block(), "python.md", "exec"), scope)
    result, y = scope["result"], scope["y"]
    with torch.inference_mode():
        expected = module(**batches[0])
    assert type(y) is type(expected)
    cosine = torch.nn.functional.cosine_similarity(y.last_hidden_state, expected.last_hidden_state, dim=-1)
    assert cosine.mean() > 0.9
    chosen = result.variants[result.decision.chosen]
    assert chosen.status == "ok"
    assert chosen.speedup > 0
    assert (chosen.repository / "manifest.json").is_file()
    int8 = result.variants["openvino-int8@cpu"]
    assert int8.speedup > 0
    assert int8.parity.outputs
    assert (tmp_path / "r.html").read_text().lower().startswith("<!doctype html")
    assert scope["model"](**batches[0]).keys() == y.keys()
    scope["model"].close()
    result.close()
