"""Does the wheel work in an empty environment? For each extra, Python and end of the versions that are declared.

    python -m benchmarks.wheel --python /usr/bin/python3.11 [--extra base] [--versions lowest] [--keep torch] [-o FILE]

Builds the wheel, makes an empty virtual environment for each case, installs ``accel[EXTRA]`` with pip (the versions of
constraints.txt, or with ``--versions lowest`` the lowest that pyproject.toml allows, found by uv, which installs them,
too, where it is on the PATH), and does in it what the extra is for: with none, an ONNX file is converted, proved,
packaged and loaded again without torch; with ``torch`` a module in memory is optimised; with ``tensorflow`` a Keras
model; with ``zoo`` a model known by name; with ``docs`` the site is built; with ``release`` a release goes to a folder
and back, with ``s3``, ``gcs``, ``azure`` and ``fleet`` to a server for such buckets; with ``tune``, ``serve``, ``oci``
and ``signing`` their modules are used. ``-o docs/benchmarks/wheel.json`` keeps what became of each case, in place of an
earlier one of the same.

A Python that this system lacks is had in another: ``SUITE=trixie benchmarks/clean_system.sh FOLDER COMMAND`` has 3.13.
"""

import argparse
import contextlib
import json
import operator
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
import urllib.request
from pathlib import Path
from typing import Any

from accel.release.object_store import ObjectStore

ROOT = Path(__file__).parents[1]
CHECKS = Path(__file__).parent / "wheel_checks"
WITH_TORCH = ("torch", "zoo", "cuda")
EXTRAS = (
    *("base", "torch", "tensorflow", "zoo", "serve", "signing", "cuda", "docs"),
    *("release", "tune", "s3", "gcs", "azure", "oci", "fleet"),
)
BUCKETS = {"s3": "s3://releases", "fleet": "s3://releases", "gcs": "gs://releases", "azure": "abfs://releases"}
CHECKED_AS = {"cuda": "torch", **dict.fromkeys(BUCKETS, "bucket")}
"""Extras whose packages do on this machine what another one's do."""


def lowest(extra: str, python: str, keep: list[str], scratch: Path) -> str:
    """Return the lowest versions that the project allows and that have wheels for a Python, as constraints.

    Args:
        keep: packages that stay at the version of constraints.txt: an index may hold a CPU build of that one alone.
    """
    kept = scratch / "kept.txt"
    pinned = (ROOT / "constraints.txt").read_text().splitlines()
    kept.write_text("\n".join(line for line in pinned if line.partition("==")[0] in keep))
    command = ["uv", "pip", "compile", "-q", "--no-annotate", "--no-header", "--no-build", "-c", str(kept)]
    command += ["--resolution", "lowest-direct", "--python-version", python, str(ROOT / "pyproject.toml")]
    command += ["--extra", extra] if extra != "base" else []
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def servers(extras: set[str], held: contextlib.ExitStack) -> dict[str, str]:
    """Start the servers that the extras' buckets are on, and return the variables by which they are reached."""
    sys.path.append(str(ROOT / "tests" / "release"))
    import cloud_servers

    found = s3_server() if extras & {"s3", "fleet"} else {}
    if "gcs" in extras:
        found |= {"STORAGE_EMULATOR_HOST": held.enter_context(cloud_servers.google()), "NO_GCE_CHECK": "true"}
    if "azure" in extras:
        found["AZURE_STORAGE_CONNECTION_STRING"] = held.enter_context(cloud_servers.azure())
    os.environ |= found
    for url in {BUCKETS[extra] for extra in extras & {"gcs", "azure"}}:
        ObjectStore(url).files.mkdir("releases")
    return found


def s3_server() -> dict[str, str]:
    """Start a real S3 server, moto's, in this process, and return the variables by which it is reached."""
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    url = "http://{}:{}".format(*server.get_host_and_port())
    urllib.request.urlopen(urllib.request.Request(f"{url}/releases", method="PUT")).close()
    keys = {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b", "AWS_DEFAULT_REGION": "us-east-1"}
    return {"AWS_ENDPOINT_URL": url, **keys}


def declared(extra: str) -> set[str]:
    """Return the names of the packages that the project and an extra declare, normalised."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras: dict[str, list[str]] = project["optional-dependencies"]
    found, todo = set(), [*project["dependencies"], *extras.get(extra, [])]
    for text in todo:
        name, inner = re.match(r"([\w.-]+)(?:\[([\w,]+)\])?", text).groups()  # type: ignore[union-attr]
        if name == "accel":
            todo += [wanted for part in inner.split(",") for wanted in extras[part]]
        else:
            found.add(normalised(name))
    return found


def normalised(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def case(
    interpreter: str,
    extra: str,
    versions: str,
    wheel: Path,
    scratch: Path,
    variables: dict[str, str],
    keep: list[str],
) -> dict[str, Any]:
    """Install the wheel in an empty environment and run the extra's check; return what became of it."""
    asked = [interpreter, "-c", "import platform; print(platform.python_version())"]
    python = subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip()
    minor = python.rpartition(".")[0]
    home = scratch / f"{extra}-{minor}-{versions}"
    row: dict[str, Any] = {"extra": extra, "python": minor, "versions": versions}
    row |= {"interpreter": python, "commit": commit()}
    constraints = scratch / f"{home.name}.txt"
    try:
        text = (ROOT / "constraints.txt").read_text() if versions == "highest" else lowest(extra, minor, keep, scratch)
    except subprocess.CalledProcessError as error:
        return row | {"ok": False, "step": "lowest", "said": error.stderr.strip().splitlines()[-6:]}
    constraints.write_text(text)
    wanted = str(wheel) if extra == "base" else f"{wheel}[{extra}]"
    bin_ = home / "bin" / "python"
    pip = [str(bin_), "-m", "pip"]
    install = [*pip, "install", "-q", "-c", str(constraints)]
    if shutil.which("uv"):  # the same packages in a fifth of the time; its own settings, as UV_FIND_LINKS, count
        pip = ["uv", "pip"]
        install = [*pip, "install", "-q", "--python", str(bin_), "-c", str(constraints)]
    steps: list[tuple[str, list[str]]] = [("venv", [interpreter, "-m", "venv", str(home)])]
    if extra in WITH_TORCH:  # first and by its exact version, else an index may offer gigabytes of CUDA
        steps.append(
            ("torch", [*install, next(line for line in constraints.read_text().splitlines() if "torch==" in line)])
        )
    check = CHECKS / f"check_{CHECKED_AS.get(extra, extra)}.py"
    steps += [("install", [*install, wanted]), ("check", [str(bin_), str(check)])]
    env = {n: v for n, v in os.environ.items() if n != "PYTHONPATH"} | {
        "OMP_WAIT_POLICY": "PASSIVE",
        "HF_HUB_OFFLINE": "1",
        "PREFIX": home.name,
        "BUCKET": BUCKETS.get(extra, ""),
        **variables,
    }
    work = scratch / f"{home.name}-work"
    work.mkdir()
    seconds: dict[str, float] = {}
    for name, command in steps:
        begin = time.monotonic()
        done = subprocess.run(command, cwd=work, env=env, capture_output=True, text=True, check=False)
        if done.returncode:
            said = [line for line in (done.stdout + done.stderr).splitlines() if line.strip() and "WARNING" not in line]
            shutil.rmtree(home, ignore_errors=True)
            return row | {"ok": False, "step": name, "said": said[-6:]}
        seconds[f"{name}_s"] = round(time.monotonic() - begin, 1)
    where = ["--python", str(bin_)] if pip[0] == "uv" else []
    listed = subprocess.run([*pip, "list", *where, "--format=json"], capture_output=True, text=True, check=True)
    shutil.rmtree(home)
    shutil.rmtree(work)
    own = declared(extra)
    packages = {p["name"]: p["version"] for p in json.loads(listed.stdout) if normalised(p["name"]) in own}
    return row | {"ok": True, "said": done.stdout.strip().splitlines()[-1:], **seconds, "packages": packages}


def commit() -> str:
    """Return the version of the sources, with ``-dirty`` where files differ from it."""
    command = ["git", "describe", "--always", "--dirty", "--exclude=*"]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()


def keep_rows(path: Path, rows: list[dict[str, Any]]) -> None:
    """Write rows beside those of a file that are of other cases."""
    key = operator.itemgetter("python", "extra", "versions")
    held = json.loads(path.read_text())["rows"] if path.exists() else []
    found = {key(row): row for row in (*held, *rows)}
    path.write_text(json.dumps({"rows": [found[name] for name in sorted(found)]}, indent=1) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--python", action="append", help="an interpreter")
    parser.add_argument("--extra", action="append", choices=EXTRAS)
    parser.add_argument("--versions", action="append", choices=("highest", "lowest"))
    parser.add_argument("--keep", action="append", default=[], help="a package that stays as in constraints.txt")
    parser.add_argument("-o", "--out", type=Path)
    asked = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as held:
        variables = servers(set(asked.extra or EXTRAS), held)
        scratch = Path(folder)
        sources = scratch / "sources"  # setuptools leaves its files beside what it builds
        for name in ("accel", "model_zoo"):
            shutil.copytree(ROOT / name, sources / name, ignore=shutil.ignore_patterns("__pycache__"))
        for name in ("pyproject.toml", "README.md"):
            shutil.copyfile(ROOT / name, sources / name)
        build = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", folder, "."]
        subprocess.run(build, check=True, cwd=sources)
        (wheel,) = scratch.glob("accel-*.whl")
        for interpreter in asked.python or [sys.executable]:
            for extra in asked.extra or EXTRAS:
                for versions in asked.versions or ("highest",):
                    rows.append(case(interpreter, extra, versions, wheel, scratch, variables, asked.keep))
                    print(json.dumps({n: v for n, v in rows[-1].items() if n != "packages"}), flush=True)
                    if asked.out:
                        keep_rows(asked.out, rows)
    sys.exit(not all(row["ok"] for row in rows))


if __name__ == "__main__":
    main()
