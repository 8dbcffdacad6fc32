"""Does the wheel work in an empty environment? For each extra, Python and end of the versions that are declared.

    python -m benchmarks.wheel --python 3.11=/usr/bin/python3.11 --python 3.13=... [--extra base] [--versions lowest]

Builds the wheel, makes an empty virtual environment for each case, installs ``accel[EXTRA]`` with pip (the versions of
constraints.txt, or with ``--versions lowest`` the lowest that pyproject.toml allows, found by uv on the PATH), and does
in it what the extra is for: with none, an ONNX file is converted, proved, packaged and loaded again without torch; with
``torch`` a module in memory is optimised; with ``tensorflow`` a Keras model; with ``zoo`` a model known by name; with
``serve`` and ``signing`` their modules are used.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
CHECKS = Path(__file__).parent / "wheel_checks"
WITH_TORCH = ("torch", "zoo", "cuda")
EXTRAS = ("base", "torch", "tensorflow", "zoo", "serve", "signing", "cuda", "docs")


def lowest(extra: str, python: str) -> str:
    """Return the lowest versions that the project allows and that have wheels for a Python, as constraints."""
    command = [
        "uv",
        "pip",
        "compile",
        "-q",
        "--no-annotate",
        "--no-header",
        "--no-build",
        "--resolution",
        "lowest-direct",
    ]
    command += [
        "--python-version",
        python,
        str(ROOT / "pyproject.toml"),
        *(["--extra", extra] if extra != "base" else []),
    ]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def case(python: str, interpreter: str, extra: str, versions: str, wheel: Path, scratch: Path) -> dict[str, Any]:
    """Install the wheel in an empty environment and run the extra's check; return what became of it."""
    home = scratch / f"{extra}-{python}-{versions}"
    constraints = scratch / f"{home.name}.txt"
    constraints.write_text(lowest(extra, python) if versions == "lowest" else (ROOT / "constraints.txt").read_text())
    wanted = str(wheel) if extra == "base" else f"{wheel}[{extra}]"
    bin_ = home / "bin" / "python"
    pip = [str(bin_), "-m", "pip", "install", "-q", "-c", str(constraints)]
    steps: list[tuple[str, list[str]]] = [("venv", [interpreter, "-m", "venv", str(home)])]
    if extra in WITH_TORCH:  # first and by its exact version, else an index may offer gigabytes of CUDA
        steps.append(
            ("torch", [*pip, next(line for line in constraints.read_text().splitlines() if "torch==" in line)])
        )
    steps += [("install", [*pip, wanted]), ("check", [str(bin_), str(CHECKS / f"check_{extra}.py")])]
    env = {n: v for n, v in os.environ.items() if n != "PYTHONPATH"} | {
        "OMP_WAIT_POLICY": "PASSIVE",
        "HF_HUB_OFFLINE": "1",
    }
    work = scratch / f"{home.name}-work"
    work.mkdir()
    row: dict[str, Any] = {"extra": extra, "python": python, "versions": versions}
    for name, command in steps:
        done = subprocess.run(command, cwd=work, env=env, capture_output=True, text=True, check=False)
        if done.returncode:
            said = [line for line in (done.stdout + done.stderr).splitlines() if line.strip() and "WARNING" not in line]
            return row | {"ok": False, "step": name, "said": said[-6:]}
    listed = subprocess.run(
        [str(bin_), "-m", "pip", "list", "--format=json"], capture_output=True, text=True, check=True
    )
    shutil.rmtree(home)
    shutil.rmtree(work)
    packages = {p["name"]: p["version"] for p in json.loads(listed.stdout)}
    return row | {"ok": True, "said": done.stdout.strip().splitlines()[-1:], "packages": packages}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--python", action="append", default=[], help="VERSION=INTERPRETER")
    parser.add_argument("--extra", action="append", choices=EXTRAS)
    parser.add_argument("--versions", action="append", choices=("highest", "lowest"))
    parser.add_argument("-o", "--out", type=Path)
    asked = parser.parse_args()
    pythons = dict(text.split("=", 1) for text in asked.python) or {"this": sys.executable}
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder)
        sources = scratch / "sources"  # setuptools leaves its files beside what it builds
        for name in ("accel", "model_zoo"):
            shutil.copytree(ROOT / name, sources / name, ignore=shutil.ignore_patterns("__pycache__"))
        for name in ("pyproject.toml", "README.md"):
            shutil.copyfile(ROOT / name, sources / name)
        build = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", folder, "."]
        subprocess.run(build, check=True, cwd=sources)
        (wheel,) = scratch.glob("accel-*.whl")
        for python, interpreter in pythons.items():
            for extra in asked.extra or EXTRAS:
                for versions in asked.versions or ("highest",):
                    rows.append(case(python, interpreter, extra, versions, wheel, scratch))
                    print(json.dumps({n: v for n, v in rows[-1].items() if n != "packages"}), flush=True)
                    if asked.out:
                        asked.out.write_text(json.dumps(rows, indent=1) + "\n")
    sys.exit(not all(row["ok"] for row in rows))


if __name__ == "__main__":
    main()
