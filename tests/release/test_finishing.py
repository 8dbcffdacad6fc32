"""Kits of a release, finished on another machine, and back in the release.

No GPU is here, so the other machine is this one with a driver's list of GPUs on its PATH, and the target is a plug-in
that leaves kits as TensorRT's does and builds them with ONNX Runtime; all between the two is what runs on a real one.
"""

import json
import os
import subprocess
import sysconfig
import venv
from pathlib import Path

import pytest
import yaml
from tiny_release import write_model

from accel.core import hardware
from accel.core.values import sha256_file
from accel.release import document

ROOT = Path(__file__).parents[2]
PLUGIN = '''
"""Two targets whose precision is made in the ONNX file, and which only the other machine can build."""
import os, shutil
from dataclasses import replace
from accel.builders import ConvertingBuilder, TargetInfo
from accel.builders.tensorrt.typing import PrecisionConvertedSession
from accel.builders.to_onnxruntime import BUILDER as ORT
from accel.core.values import Skipped, Target, PrecisionConverted

class LaterBuilder(ConvertingBuilder):
    options, packages, backends = ORT.options, ORT.packages, ORT.backends
    targets = {name: TargetInfo(("cuda",), "fp32", "later") for name in ("later", "later-too")}

    def available(self, target):
        return None if os.environ.get("LATER_HERE") else Skipped("it has no H100", "use one that has")

    def prepare(self, request, options, out_dir):
        shutil.copytree(request.onnx_folder, out_dir, dirs_exist_ok=True)
        return PrecisionConverted(request.onnx, {"typed": "as it was"})

    def build(self, request, options, out_dir):
        return ORT.build(replace(request, variant=as_ort(request.variant)), options, out_dir)

    def open(self, artifact, folder, *, threads, mode):
        return ORT.open(replace(artifact, variant=as_ort(artifact.variant)), folder, threads=threads, mode=mode)

    def triton(self, artifact, release):
        return ORT.triton(replace(artifact, variant=as_ort(artifact.variant)), release)

    def open_precision_converted(self, converted, folder, *, source, threads):
        return PrecisionConvertedSession(folder / converted.onnx.file.path, source, threads=threads)

def as_ort(variant):
    return replace(variant, target=Target("ort", "cpu"))

LaterBuilder.__module__ = "accel.builders.to_later"  # kits are for accel's own targets alone
BUILDER = LaterBuilder()
'''


class Machines:
    """The command line of two machines that have the plug-in, the second of which also has a GPU."""

    def __init__(self, folder: Path) -> None:
        venv.create(folder / "venv", with_pip=False)
        self.python = folder / "venv" / "bin" / "python"
        packages = next((folder / "venv" / "lib").glob("python*/site-packages"))
        (packages / "here.pth").write_text(f"import site; site.addsitedir({sysconfig.get_path('purelib')!r})\n")
        (packages / "later.py").write_text(PLUGIN)
        (packages / "later-0.dist-info").mkdir()
        (packages / "later-0.dist-info" / "METADATA").write_text("Name: later\nVersion: 0\n")
        (packages / "later-0.dist-info" / "entry_points.txt").write_text("[accel.builders]\nlater = later:BUILDER\n")
        self.tools = folder / "tools"
        self.tools.mkdir()
        (self.tools / "nvidia-smi").write_text("#!/bin/sh\necho 'GPU-1, NVIDIA H100, 81559, 580.65.06, 9.0'\n")
        (self.tools / "nvidia-smi").chmod(0o755)

    def accel(self, *words: object, gpu: bool = False) -> subprocess.CompletedProcess[str]:
        env = os.environ | {"PYTHONPATH": str(ROOT)}
        if gpu:
            env |= {"PATH": f"{self.tools}{os.pathsep}{os.environ['PATH']}", "LATER_HERE": "1"}
        line = [str(self.python), "-m", "accel", *map(str, words)]
        return subprocess.run(line, capture_output=True, text=True, check=False, env=env)


@pytest.fixture(scope="module")
def machines(tmp_path_factory):
    return Machines(tmp_path_factory.mktemp("machines"))


@pytest.fixture(scope="module")
def finished(machines, tmp_path_factory):
    """A folder with a release file, a store with version 1, and the runs that its kits were finished in."""
    folder = tmp_path_factory.mktemp("finished")
    model = write_model(folder / "m.onnx")
    file = {
        "release": "1",
        "defaults": {"objective": "latency", "rounds": 2, "round_s": 0.02, "threads": 1, "max_shape": "x:4x8"},
        "pools": {"h100": {"device": "cuda", "targets": ["later", "later-too"], "gpu": "H100"}},
        "models": {"m": {"source": str(model), "samples": str(model.with_suffix(".npz"))}},
    }
    (folder / "release.yaml").write_text(yaml.safe_dump(file))
    done = machines.accel("release", "build", folder / "release.yaml", "--store", folder / "store")
    assert done.returncode == 0, done.stderr
    kits = folder / "store" / "1" / "kits" / "h100" / "m"
    for out, names in (("both", ("later", "later-too")), ("one", ("later",))):
        words = [*(kits / f"{name}@cuda" for name in names), "-o", folder / out, "--threads", 1]
        done = machines.accel("build", *words, gpu=True)
        assert done.returncode == 0, done.stderr
    return folder


def again(machines, folder, *words, code=0):
    done = machines.accel("release", "build", folder / "release.yaml", "--store", folder / "store", *words)
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr
    return done, document.read(folder / "store" / "1")


def test_kits_of_one_model_are_measured_side_by_side(finished):
    run = json.loads((finished / "both" / "run.json").read_text())
    assert [v["id"] for v in run["variants"]] == ["later@cuda", "later-too@cuda"]
    assert all(v["status"] == "ok" and v["measurements"] for v in run["variants"])
    (decision,) = run["decisions"]
    assert decision["chosen"]
    assert run["hardware"]["id"].endswith("nvidia-h100")


def test_what_was_finished_is_in_the_next_build(machines, finished):
    folder = finished
    (entry,) = document.read(folder / "store" / "1").entries
    assert entry.held == "kits"
    _, release = again(machines, folder, "--finished", folder / "one")
    (entry,) = release.entries
    assert (entry.held, entry.chosen) == ("ready", "later@cuda")
    assert entry.hardware.endswith("nvidia-h100")
    assert entry.hardware != hardware.detect().id
    assert {v.id: (v.status, bool(v.kit)) for v in entry.variants} == {
        "later@cuda": ("ok", False), "later-too@cuda": ("deferred", True),
    }  # fmt: skip
    _, release = again(machines, folder, "--finished", folder / "both")
    (entry,) = release.entries
    assert {v.id: v.status for v in entry.variants} == {"later@cuda": "ok", "later-too@cuda": "ok"}
    root = folder / "store" / "1"
    assert sha256_file(root / entry.run) == sha256_file(folder / "both" / "run.json")
    assert sha256_file(root / entry.repository / "m/1/model.onnx") == sha256_file(
        folder / "both" / "best" / "cuda" / "m/1/model.onnx"
    )
    _, same = again(machines, folder)  # the store has it from now on
    assert same == release
    plan = machines.accel("release", "plan", folder / "release.yaml", "--store", folder / "store", "--json")
    (step,) = json.loads(plan.stdout)["steps"]
    assert (step["doing"], step["reason"]) == ("reuse", f"finished on {entry.hardware}")
    done, same = again(machines, folder, "--finished", folder / "one", code=2)  # it has less than what is there
    assert "has no later-too@cuda" in done.stderr
    assert same == release


def test_what_is_damaged_or_of_other_kits_is_refused(machines, finished, tmp_path):
    folder = finished
    for name in ("damaged", "other"):
        subprocess.run(["cp", "-r", folder / "both", tmp_path / name], check=True)
    model = tmp_path / "damaged" / "repositories" / "later@cuda" / "m" / "1" / "model.onnx"
    content = bytearray(model.read_bytes())
    content[-9] ^= 1
    model.chmod(0o644)
    model.write_bytes(content)
    done, _ = again(machines, folder, "--finished", tmp_path / "damaged", code=2)
    assert "repositories/later@cuda: m/1/model.onnx" in done.stderr
    run = json.loads((tmp_path / "other" / "run.json").read_text())
    for variant in run["variants"]:
        variant["typing"]["seal"] = "0" * 64
    (tmp_path / "other" / "run.json").write_text(json.dumps(run))
    done, _ = again(machines, folder, "--finished", tmp_path / "other", code=2)
    assert "was not finished from kits of release 1" in done.stderr
    (tmp_path / "other" / "best" / "notes").symlink_to("/etc/passwd")
    done, _ = again(machines, folder, "--finished", tmp_path / "other", code=2)
    assert "best/notes is a link" in done.stderr
