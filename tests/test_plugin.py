"""The plug-in of ``examples/plugin``, installed: one module adds a target to every place that knows targets."""

import json
import os
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PLUGIN = ROOT / "examples" / "plugin"
MODEL = """
import numpy as np
import torch

def build():
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.Linear(16, 4))
    rng = np.random.default_rng(0)
    return model, [{"input": rng.standard_normal((1, 8), dtype=np.float32)} for _ in range(40)]
"""

pytestmark = pytest.mark.slow


class Installed:
    """An environment that has the plug-in, and behind it all packages of this one."""

    def __init__(self, folder: Path) -> None:
        venv.create(folder, with_pip=False)
        self.python = folder / "bin" / "python"
        packages = folder / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"
        here = sysconfig.get_path("purelib")
        (packages / "here.pth").write_text(f"import site; site.addsitedir({here!r})\n")  # with its own .pth files
        pip = [sys.executable, "-m", "pip", "--python", str(self.python), "install", "--quiet"]
        source = folder / "source"  # setuptools writes beside what it builds
        subprocess.run(["cp", "-r", PLUGIN, source], check=True)
        done = subprocess.run(
            [*pip, "--no-build-isolation", "--constraint", str(ROOT / "constraints.txt"), str(source)],
            capture_output=True,
            text=True,
        )
        if "No matching distribution found for MNN" in done.stderr:
            pytest.skip("MNN is not installed, and no package index is reached: make plugin")
        assert done.returncode == 0, done.stderr

    def run(self, *words: str | Path) -> str:
        """Run a Python command line and return what it printed."""
        variables = os.environ | {"PYTHONPATH": str(ROOT)}
        done = subprocess.run([self.python, *words], capture_output=True, text=True, cwd=ROOT, env=variables)
        assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
        return done.stdout


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    return Installed(tmp_path_factory.mktemp("plugin"))


def test_accel_targets_lists_it(installed):
    rows = json.loads(installed.run("-m", "accel", "targets", "--json"))["targets"]
    (row,) = [r for r in rows if r["target"] == "mnn"]
    assert row == {
        "target": "mnn", "device": "cpu", "available": True, "reason": None, "fix": None, "about": "MNN, float32",
    }  # fmt: skip


def test_it_passes_the_contract(installed):
    said = installed.run("-m", "pytest", "tests/contract", "-k", "mnn", "-q", "-rs", "--junitxml=/dev/stderr")
    assert "failed" not in said
    skips = [line for line in said.splitlines() if line.startswith("SKIPPED")]
    assert len(skips) == 2, skips  # it can be built here, and it runs in process


def test_a_run_reports_and_packages_it(installed, tmp_path):
    (tmp_path / "tiny.py").write_text(MODEL)
    out = tmp_path / "run"
    words = ["--targets", "mnn", "--shape", "input:4x8", "--max-shape", "input:8x8", "--threads", "1"]
    words += ["--rounds", "2", "--round-s", "0.05"]
    installed.run("-m", "accel", "convert", f"{tmp_path / 'tiny.py'}:build", *words, "-o", out)
    run = json.loads((out / "run.json").read_text())
    variant = next(v for v in run["variants"] if v["id"] == "mnn@cpu")
    assert variant["status"] == "ok", variant["reason"]
    assert variant["runtime"] == {"name": "MNN", "colours": ["#7a5195", "#b794d6"]}
    assert variant["measurements"]
    assert run["hardware"]["versions"]["MNN"] == variant["artifact"]["versions"]["MNN"]
    page = (out / "report.html").read_text()
    assert "mnn@cpu" in page
    assert "--c-mnn: #7a5195;" in page
    assert "mnn@cpu" in (out / "report.md").read_text()
    root = out / variant["repository"]
    (model,) = root.glob("*/1/model.py")
    assert (model.parent / "accel_mnn" / "to_mnn.py").is_file()
    assert (model.parent / "artifact" / "model.mnn").is_file()
    assert "MNN==" in (root / "launch.sh").read_text()
    installed.run("-m", "accel", "verify", root)
