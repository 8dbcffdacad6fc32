"""The wheel holds everything that accel reads, and works outside the checkout."""

import os
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

import accel

ROOT = Path(accel.__file__).parents[1]


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the wheel from a copy of the sources, and unpack it."""
    folder = tmp_path_factory.mktemp("wheel")
    sources = folder / "sources"
    sources.mkdir()
    for name in ("accel", "model_zoo"):
        shutil.copytree(ROOT / name, sources / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md"):
        shutil.copyfile(ROOT / name, sources / name)
    command = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", str(folder), "."]
    done = subprocess.run(command, cwd=sources, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder / "site")
    return folder / "site"


def test_every_file_is_inside(unpacked):
    for package in ("accel", "model_zoo"):
        wanted = {
            p.relative_to(ROOT) for p in (ROOT / package).rglob("*") if p.is_file() and "__pycache__" not in p.parts
        }
        assert wanted == {p.relative_to(unpacked) for p in (unpacked / package).rglob("*") if p.is_file()}


def test_it_works_outside_the_checkout(unpacked, tmp_path):
    script = "import accel; print(accel.__file__, accel.recognise('minilm').kind, len(accel.__all__) > 20)"
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(unpacked)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.split() == [str(unpacked / "accel" / "__init__.py"), "zoo", "True"], done.stderr


HIDDEN = """
import importlib.machinery

_found = importlib.machinery.PathFinder.find_spec


def _find_spec(cls, name, path=None, target=None):
    return None if name.partition(".")[0] in ("torch", "transformers", "tensorflow") else _found(name, path, target)


importlib.machinery.PathFinder.find_spec = classmethod(_find_spec)
"""


def without_frameworks(folder: Path, unpacked: Path) -> Path:
    """Return an interpreter that finds the wheel and all packages of this one but the frameworks, as do its workers."""
    venv.create(folder)
    site = Path(sysconfig.get_path("purelib", vars={"base": str(folder), "platbase": str(folder)}))
    (site / "hidden_frameworks.py").write_text(HIDDEN)
    (site / "all.pth").write_text(f"{unpacked}\n{sysconfig.get_path('purelib')}\nimport hidden_frameworks\n")
    return folder / "bin" / "python"


def test_an_onnx_file_needs_no_torch(unpacked, tmp_path):
    """What ``benchmarks/wheel.py`` does in an empty environment, with the frameworks of this one hidden."""
    done = subprocess.run(
        [without_frameworks(tmp_path / "env", unpacked), ROOT / "benchmarks" / "wheel_checks" / "check_base.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert "accel.Result run" in done.stdout


SAYS = """
import accel.run
from accel.core.errors import AccelError, UnavailableError
from accel.exporters import describe, load, sources

try:
    load(describe(sources.recognise("t5-encoder@small")))
except UnavailableError as error:
    print(error.fix)
try:
    describe(sources.recognise("net.py:build", opt_shapes={"input": (1, 3)}))
except AccelError as error:
    print(error.message)
"""


def test_what_needs_torch_says_so(tmp_path):
    (tmp_path / "sitecustomize.py").write_text(HIDDEN)
    (tmp_path / "net.py").write_text("import torch\n\ndef build():\n    return torch.nn.ReLU()\n")
    done = subprocess.run(
        [sys.executable, "-c", SAYS],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    fix, message = done.stdout.splitlines()
    assert fix == "pip install 'accel[torch]'"
    assert "No module named 'torch'" in message
