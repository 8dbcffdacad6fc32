"""Every example runs as it stands, in a folder of its own."""

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import accel
from accel.core import environments

ROOT = Path(accel.__file__).parents[1]
SCRIPTS = sorted((ROOT / "examples").glob("*.py"))
SAYS = {
    "encoder_decoder": "same texts: True",
    "hugging_face": "BaseModelOutputWithPooling",
    "keras_model": "inputs_image",
    "onnx_file": "my own True",
    "pipeline_of_modules": "same answers: True",
    "serve_and_query": "127.0.0.1:",
    "torch_module": "<accel.Model ",
}
"""What each prints, among other things."""
PIPELINES = ("encoder_decoder", "pipeline_of_modules")
"""Those that time the whole before and after, in turn. Both are twice as fast and more where nobody disturbs them."""
LONG = (*PIPELINES, "hugging_face", "keras_model", "optimise_a_module")
"""Those that ``make campaign`` runs."""


@pytest.mark.parametrize(
    "script",
    [pytest.param(p, marks=pytest.mark.campaign if p.stem in LONG else (), id=p.stem) for p in SCRIPTS],
)
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
    timed = re.search(r"ms before, .* ms after: ([\d.]+) \[[\d.]+, [\d.]+\]", done.stdout)
    assert (timed is not None) == (script.stem in PIPELINES)
    assert timed is None or float(timed[1]) > 1, done.stdout


NOTEBOOKS = {
    "optimise_a_module": ("Tensor ['hidden']", "4 answers"),
    "steps_on_an_onnx_file": ("ort@cpu True", "below the gate", "passes its gate"),
}
"""What each shows, among other things."""


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.campaign if name in LONG else ()) for name in NOTEBOOKS]
)
def test_a_notebook_runs(name, tmp_path, monkeypatch):
    nbclient = pytest.importorskip("nbclient")
    import nbformat

    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    notebook = nbformat.read(ROOT / "examples" / f"{name}.ipynb", as_version=4)
    assert not [cell for cell in notebook.cells if cell.get("outputs")]
    nbclient.NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(tmp_path)}}).execute()
    shown = [output for cell in notebook.cells for output in cell.get("outputs", ())]
    text = "".join(o.get("text", "") + "".join(o.get("data", {}).values()) for o in shown)
    for expected in NOTEBOOKS[name]:
        assert expected in text, text[-2000:]
    assert ("<table" in text) == (name == "optimise_a_module")
