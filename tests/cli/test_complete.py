"""What a shell offers after Tab, as the shell asks for it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from accel.cli import complete


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make a folder with a run, its best repository and a model file."""
    best = tmp_path / "runs" / "bert" / "best" / "cpu"
    best.mkdir(parents=True)
    (best / "manifest.json").write_text("{}")
    (tmp_path / "runs" / "bert" / "run.json").write_text("{}")
    (tmp_path / "minimal.onnx").write_bytes(b"")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_words_are_completed(folder):
    assert complete.targets("openvino-i") == ["openvino-int8"]
    assert complete.targets("ort,openvino-i") == ["ort,openvino-int8"]
    assert "ort,ort" not in complete.targets("ort,or")
    assert complete.sources("mini") == ["minilm", "minimal.onnx"]
    assert complete.runs("") == ["runs/bert"]
    assert complete.repositories("runs/b") == ["runs/bert/best/cpu"]
    assert complete.repositories("mini") == ["minimal.onnx"]
    assert complete.sources("nowhere/at/all") == []


@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        ("accel convert mini", ["minilm", "minimal.onnx"]),
        ("accel convert bert --targets ort,openvino-i", ["ort,openvino-int8"]),
        ("accel convert bert --objective ", ["latency", "throughput", "traffic"]),
        ("accel serve ", ["runs/bert/best/cpu"]),
    ],
)
def test_the_shell_gets_them(folder, typed, expected):
    env = os.environ | {
        "_ACCEL_COMPLETE": "complete_bash",
        "COMP_WORDS": typed,
        "COMP_CWORD": str(len(typed.split(" ")) - 1),
    }
    code = "import sys; sys.argv[0] = 'accel'; from accel.cli import app; app(prog_name='accel')"
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=False)
    assert done.stdout.split() == expected, done.stderr
