"""``accel.load`` in a process that has NumPy, accel's core and one runtime, and nothing else."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import tiny_module
import torch

import accel
from accel.core.errors import InputError, UnavailableError

HERE = Path(accel.__file__).parent
SCRIPT = """
import sys
sys.path[:] = [p for p in sys.path if "site-packages" not in p and "dist-packages" not in p] + [{site!r}]
import numpy as np
import accel
with accel.load({path!r}, threads=1) as model:
    bias = np.zeros((1, 3, 16), np.float32)
    found = model(np.array([[1, 2, 3]]), mask=np.ones((1, 3), np.float32), extra={{"bias": bias}})
import json
others = {{"torch", "transformers", "onnx", "pydantic", "typer", "rich"}}
foreign = sorted({{m.partition(".")[0] for m in sys.modules}} & others)
print(json.dumps([found["logits"].tolist(), len(found["rest"]), foreign]))
"""


def alone(folder: Path, *packages: str) -> Path:
    """Make a folder of packages with links to these alone."""
    site = folder / "site"
    site.mkdir()
    (site / "accel").symlink_to(HERE)
    for package in packages:
        home = Path(importlib.util.find_spec(package).origin).parent
        for found in (home, *home.parent.glob(f"{package}.libs"), *home.parent.glob(f"{package}-*.dist-info")):
            (site / found.name).symlink_to(found)
    return site


@pytest.mark.parametrize(("id", "runtime"), [("ort@cpu", "onnxruntime"), ("openvino-fp32@cpu", "openvino")])
def test_it_needs_the_runtime_alone(result, tmp_path, id, runtime):
    site = alone(tmp_path, "numpy", runtime)
    script = SCRIPT.format(site=str(site), path=str(result.variants[id].repository))
    done = subprocess.run([sys.executable, "-I", "-S", "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    logits, rest, foreign = json.loads(done.stdout)
    assert foreign == []
    assert rest == 3
    sample = {"ids": torch.tensor([[1, 2, 3]]), "mask": torch.ones(1, 3), "extra": {"bias": torch.zeros(1, 3, 16)}}
    np.testing.assert_allclose(logits, result.best(**sample)["logits"].numpy(), atol=1e-5)


def test_without_its_runtime_it_says_what_to_install(result, tmp_path):
    site = alone(tmp_path, "numpy")
    script = SCRIPT.format(site=str(site), path=str(result.variants["ort@cpu"].repository))
    done = subprocess.run([sys.executable, "-I", "-S", "-c", script], capture_output=True, text=True, check=False)
    assert "UnavailableError" in done.stderr
    assert "pip install onnx" in done.stderr


def test_a_run_directory_means_its_best_variant(result):
    with accel.load(result.path) as model:
        assert model.id == result.decision.chosen


def test_what_a_run_built_loads_without_a_repository(result):
    sample = tiny_module.samples(1)[0]
    with accel.load(result.variants["ort@cpu"].folder) as model:
        torch.testing.assert_close(model(**sample)["logits"], result.best(**sample)["logits"], atol=1e-5, rtol=1e-4)
    with pytest.raises(InputError, match="has no variant"):
        accel.load(result.path / "variants" / "trt@cuda")


def test_a_folder_that_is_no_repository_is_named(tmp_path):
    with pytest.raises(InputError, match=r"manifest\.json"):
        accel.load(tmp_path)


def test_another_environments_variant_says_which_interpreter_runs_it(result, tmp_path):
    """An artifact that says it belongs to ONNX Runtime's OpenVINO build, which the main environment lacks."""
    import shutil

    root = tmp_path / "repository"
    shutil.copytree(result.variants["ort@cpu"].repository, root)
    manifest = json.loads((root / "manifest.json").read_text())
    manifest["artifact"]["variant"]["target"]["name"] = "ort-openvino"
    (root / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(UnavailableError, match="ort-openvino") as raised:
        accel.load(root)
    assert "bin/python" in str(raised.value)
