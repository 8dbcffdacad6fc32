"""Every example runs as it stands, in a folder of its own."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

import accel
from accel.core import environments

ROOT = Path(accel.__file__).parents[1]
SCRIPTS = sorted((ROOT / "examples").glob("*.py"))
SAYS = {
    "hugging_face": "BaseModelOutputWithPooling",
    "keras_model": "inputs_image",
    "onnx_file": "my own True",
    "pipeline_of_modules": "same answers: True",
    "serve_and_query": "127.0.0.1:",
    "torch_module": "<accel.Model ",
}
"""What each prints, among other things."""


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_an_example_runs(script, tmp_path):
    if script.stem == "keras_model" and importlib.util.find_spec("tensorflow") is None:
        pytest.skip("TensorFlow is not installed")
    if script.stem == "serve_and_query" and not environments.installed("triton"):
        pytest.skip("the embedded server is not installed")
    env = os.environ | {"PYTHONPATH": str(ROOT), "TF_CPP_MIN_LOG_LEVEL": "3"}
    done = subprocess.run(
        [sys.executable, str(script)], cwd=tmp_path, env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert SAYS[script.stem] in done.stdout
