"""A build that is finished elsewhere: the kit a run leaves, what is refused, and the run that comes of it.

Nothing here can build a plan. So that the way from a kit to a run is walked for real all the same, one kit is made to
ask for ONNX Runtime on this CPU; all else in it is what the TensorRT target left.
"""

import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace

import numpy as np
import onnx
import pytest
from tiny_run import convert

from accel import report
from accel.builders.tensorrt import network_rules
from accel.core.errors import InputError, UnavailableError, UsageError
from accel.core.progress import Progress
from accel.core.values import sha256_json
from accel.run import kit_rules, kits
from accel.triton.manifest import read as read_manifest
from accel.triton.overrides import take_files
from accel.triton.releases import NEWEST, RELEASES
from accel.triton.verify import verify

PATCHED = """#!{python}
# accel, where a kit may also finish what this CPU can build.
import sys
from accel.run import kit_rules
kit_rules.precision_converted_targets = lambda: ("ort",)
from accel.cli import main
sys.argv[0] = "accel"
main()
"""


@pytest.fixture(scope="module")
def kit(run, tmp_path_factory):
    """The kit of trt-fp16, as it would be copied to another machine."""
    _, out = run
    there = tmp_path_factory.mktemp("usb stick") / "kit"
    shutil.copytree(out / "variants" / "trt-fp16@cuda" / "kit", there)
    return there


@pytest.fixture(scope="module")
def patched(tmp_path_factory):
    """The command line of an accel to which ``ort`` is a target that kits finish."""
    script = tmp_path_factory.mktemp("bin") / "accel"
    script.write_text(PATCHED.format(python=sys.executable))
    script.chmod(0o755)
    return script


@pytest.fixture(scope="module")
def cpu_kit(kit, tmp_path_factory):
    """The same, for a target that can be built here."""
    there = tmp_path_factory.mktemp("cpu") / "kit"
    shutil.copytree(kit, there)

    def change(data):
        data["variant"]["target"] = {"name": "ort", "device": "cpu"}
        data["settings"]["gates"] = {"fp32": 45.0}  # an FP16 file is held as one

    rewrite(there, change)
    return there


@pytest.fixture(scope="module")
def finished(cpu_kit, patched, tmp_path_factory):
    """The run that ``build.sh`` writes."""
    out = tmp_path_factory.mktemp("finished") / "run"
    done = accel_sh(cpu_kit, "-o", str(out), "--threads", "1", accel=patched)
    assert done.returncode == 0, done.stderr
    return json.loads((out / "run.json").read_text()), out


def accel_sh(kit, *words, accel):
    env = {**os.environ, "ACCEL": str(accel)}
    return subprocess.run([str(kit / kits.SCRIPT), *words], capture_output=True, text=True, env=env, cwd=kit.parent)


def accel(*words, **env):
    return command_line([sys.executable, "-m", "accel"], *words, **env)


def command_line(program, *words, **env):
    return subprocess.run(
        [*program, *map(str, words)], capture_output=True, text=True, env={**os.environ, **env}, check=False
    )


def rewrite(folder, change, *, seal=True):
    """Change what kit.json says, and seal it again."""
    path = folder / kits.MANIFEST
    path.chmod(0o644)
    data = json.loads(path.read_text())
    change(data)
    if seal:
        data["seal"] = sha256_json({**data, "seal": ""})
    path.write_text(json.dumps(data))


def variant(document, id):
    return next(v for v in document["variants"] if v["id"] == id)


def test_the_run_says_how_to_finish_it(run):
    document, out = run
    found = variant(document, "trt-fp16@cuda")
    assert found["status"] == "deferred"
    assert "GPU" in found["reason"]
    assert found["fix"] == f"accel build {out / 'variants' / 'trt-fp16@cuda' / 'kit'}"
    assert found["artifact"] is None
    assert found["typing"]["kit"] == "variants/trt-fp16@cuda/kit"
    assert found["typing"]["parity"]["passed"]
    assert found["typing"]["parity"]["held_as"] == "fp16"
    assert found["typing"]["parity"]["gate"]["sqnr_db"] == 45.0
    text = (out / "report.md").read_text()
    assert "deferred" in text
    assert "accel build" in text


def test_the_kit_holds_all_that_it_takes(kit):
    found = kits.read(kit)
    assert found.variant.id == "trt-fp16@cuda"
    assert found.proof.passed
    assert found.settings["triton_release"] == NEWEST
    expected = RELEASES[NEWEST].tensorrt
    assert found.toolchain.packages == {"tensorrt": expected or kits.UNKNOWN}
    assert NEWEST in found.toolchain.image
    names = {f.path for f in found.files}
    assert {kits.SCRIPT, kits.REFERENCE, "onnx/model.onnx", "onnx/typing.json", "samples/gate.npz"} <= names
    assert {p.relative_to(kit).as_posix() for p in kit.rglob("*") if p.is_file()} == names | {kits.MANIFEST}
    with np.load(kit / kits.REFERENCE) as truth, np.load(kit / "samples" / "gate.npz") as gate:
        answered = {key.partition("/")[0] for key in truth.files}
        assert {key.partition("/")[0] for key in gate.files} < answered
        assert len(answered) == found.feeds


def test_the_onnx_file_of_the_kit_is_typed_and_breaks_no_rule(kit):
    model = onnx.load(str(kit / "onnx" / "model.onnx"))
    products = {i for n in model.graph.node if n.op_type in ("MatMul", "Gemm") for i in n.input}
    weights = [t for t in model.graph.initializer if t.name in products]
    assert weights
    assert {t.data_type for t in weights} == {onnx.TensorProto.FLOAT16}
    assert [i.type.tensor_type.elem_type for i in model.graph.output] == [onnx.TensorProto.FLOAT]  # the client's dtypes
    assert [f for f in network_rules.check(kit / "onnx" / "model.onnx") if f.severity == "error"] == []
    report = json.loads((kit / "onnx" / "typing.json").read_text())
    assert report["half"]["half_products"] == report["half"]["products"] > 0


def test_here_it_cannot_be_finished_either(kit, tmp_path):
    done = accel("build", kit, "-o", tmp_path / "run")
    assert done.returncode == 3, done.stderr
    assert "trt-fp16@cuda cannot be built here: " in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    "name", ["onnx/model.onnx", "samples/gate.npz", "reference.npz", "build.sh", "onnx/typing.json"]
)
@pytest.mark.parametrize("how", ["changed", "missing"])
def test_a_changed_file_is_named(kit, tmp_path, name, how):
    there = tmp_path / "kit"
    shutil.copytree(kit, there)
    file = there / name
    file.chmod(0o644)
    if how == "missing":
        file.unlink()
    else:
        content = bytearray(file.read_bytes())
        content[len(content) // 2] ^= 1
        file.write_bytes(content)
    with pytest.raises(InputError, match=name.replace(".", r"\.")) as error:
        kits.read(there)
    assert ("missing" if how == "missing" else "was changed") in error.value.message


def test_what_is_no_kit_is_refused(kit, tmp_path):
    def found(change, *, seal=True):
        there = tmp_path / "kit"
        shutil.rmtree(there, ignore_errors=True)
        shutil.copytree(kit, there)
        rewrite(there, change, seal=seal)
        with pytest.raises(InputError) as error:
            kits.read(there)
        return error.value.message

    assert "was changed since" in found(lambda data: data["settings"]["gates"].update(fp16=1.0), seal=False)
    assert "schema 2" in found(lambda data: data.update(schema=2))
    assert "variant is missing" in found(lambda data: data.pop("variant"))
    (tmp_path / "kit" / kits.MANIFEST).write_text("{")
    with pytest.raises(InputError, match="cannot be read"):
        kits.read(tmp_path / "kit")
    done = accel("build", tmp_path)
    assert done.returncode == 2
    assert "has no kit.json" in done.stderr


def test_files_that_the_users_overrides_name_travel_along(kit, tmp_path):
    labels = tmp_path / "labels.txt"
    labels.write_text("yes\nno\n")
    found = kits.read(kit)
    text = f'output [{{ name: "hidden" label_filename: "{labels}" }}]'
    asked = replace(found, settings={**found.settings, "overrides": text})
    there = tmp_path / "kit"
    there.mkdir()
    kits.write(asked, there, onnx=kit / "onnx", samples=kit / "samples", reference=kit / "reference.npz")
    labels.unlink()
    (path,) = take_files(kits.overrides(kits.read(there), there))[1].values()
    assert path.is_relative_to(there)
    assert path.read_text() == "yes\nno\n"


def test_build_sh_finishes_it(finished):
    document, out = finished
    assert [v["id"] for v in document["variants"]] == ["ort@cpu"]
    found = document["variants"][0]
    assert found["status"] == "ok", found["reason"]
    assert found["parity"]["passed"]
    assert found["typing"]["parity"]["passed"]
    assert {m["scenario"] for m in found["measurements"]} == {"latency", "throughput"}
    assert document["command"].startswith("accel build ")
    assert document["model"]["name"] == "tiny"
    repository = out / found["repository"]
    assert [f for f in verify(repository) if f.severity == "error"] == []
    assert read_manifest(repository).variant == "ort@cpu"
    assert (out / "variants" / "ort@cpu" / "reproduce.sh").read_text().rstrip().endswith(document["command"])


def test_the_file_that_is_built_is_the_typed_one(cpu_kit, finished, monkeypatch):
    monkeypatch.setattr(kit_rules, "precision_converted_targets", lambda: ("ort",))
    document, _ = finished
    parent = document["variants"][0]["artifact"]["parent_sha256"]
    assert parent == kits.read(cpu_kit).onnx.file.sha256
    assert document["variants"][0]["parity"]["found"]["sqnr_db"] < 80  # FP16 inside, and no FP32 file


def test_the_report_merges_both_runs(run, finished, tmp_path):
    text = report.write_comparison([run[1], finished[1]], tmp_path / "both.md").read_text()
    rows = [line for line in text.splitlines() if line.startswith("| `")]
    assert any("`trt-fp16@cuda`" in row and "deferred" in row for row in rows)
    assert sum("`ort@cpu`" in row for row in rows) >= 1


@pytest.fixture(scope="module")
def strict(factory, tmp_path_factory):
    """A run with a gate that FP16 cannot hold where an earlier run left a kit; INT8 beside; and what it said."""
    said = []

    class Noted(Progress):
        def variant(self, id, doing):
            said.append((id, doing))

    out = tmp_path_factory.mktemp("strict") / "run"
    left = out / "variants" / "trt-fp16@cuda" / "kit" / "kit.json"
    left.parent.mkdir(parents=True)
    left.write_text("{}")
    return convert(factory, out, "trt-fp16,trt-int8", progress=Noted(), gate=["fp16=190"]), out, said


def test_a_typed_file_that_fails_its_gate_is_no_kit(strict):
    document, out, _ = strict
    found = variant(document, "trt-fp16@cuda")
    assert found["status"] == "gate_failed"
    assert "the typed ONNX file, on the CPU: sqnr_db" in found["reason"]
    assert not (out / "variants" / "trt-fp16@cuda").exists()
    assert "gate failed" in (out / "report.md").read_text()


def test_int8_is_searched_on_held_back_samples_and_the_file_says_so(strict):
    document, _, said = strict
    found = variant(document, "trt-int8@cuda")
    assert found["status"] == "deferred", found["reason"]
    facts = found["typing"]["facts"]
    assert facts["search"]["holds"]
    assert facts["quantized"]["base"] == "fp16"
    assert facts["quantized"]["quantised"] == 2
    assert any(id == "trt-int8@cuda" and doing.startswith("typing: choice 1: sqnr_db") for id, doing in said)


def test_only_what_a_changed_gate_bears_on_is_typed_again(strict, factory):
    _, out, said = strict
    before = len(said)

    class Noted(Progress):
        def variant(self, id, doing):
            said.append((id, doing))

    document = convert(factory, out, "trt-fp16,trt-int8", progress=Noted(), gate=["fp16=190", "int8=30"])
    assert variant(document, "trt-int8@cuda")["typing"]["facts"]["search"]["floor"] == 33.0
    searched = {id for id, doing in said[before:] if "choice 1" in doing}
    assert searched == {"trt-int8@cuda"}
    again = len(said)
    convert(factory, out, "trt-fp16,trt-int8", progress=Noted(), gate=["fp16=180", "int8=30"])
    assert not [doing for _, doing in said[again:] if "choice" in doing]


def test_without_the_environment_that_types_it_is_skipped_with_the_fix(strict, factory, tmp_path, monkeypatch):
    monkeypatch.setenv("ACCEL_HOME", str(tmp_path / "home"))
    found = variant(convert(factory, strict[1], "trt-bf16"), "trt-bf16@cuda")
    assert found["status"] == "skipped"
    assert found["fix"] == "accel env install modelopt"


def test_a_kit_can_be_finished_inside_an_image(cpu_kit, patched, tmp_path, monkeypatch):
    docker = tmp_path / "docker"
    docker.write_text(DOCKER.format(accel=patched, log=tmp_path / "words", home=os.environ.get("ACCEL_HOME", "")))
    docker.chmod(0o755)
    out = tmp_path / "run"
    done = command_line(
        [str(patched)],
        "build",
        cpu_kit,
        "-o",
        out,
        "--toolchain",
        "docker:accel-gpu:26.06",
        "--threads",
        1,
        DOCKER=str(docker),
    )
    assert done.returncode == 0, done.stderr
    assert json.loads((out / "run.json").read_text())["variants"][0]["status"] == "ok"
    words = (tmp_path / "words").read_text()
    assert f"--user {os.getuid()}:{os.getgid()}" in words
    assert "--gpus all" in words
    assert "accel-gpu:26.06 build /kit" in words
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("DOCKER", raising=False)
    with pytest.raises(UnavailableError, match="no docker"):
        kits.in_docker("image", [cpu_kit], out, ())
    with pytest.raises(UsageError, match="expected docker:IMAGE"):
        kits.image_of("podman:x")


DOCKER = """#!/bin/sh
# Stands for docker: notes its words, and runs the image's entry point over the folders that were mounted.
echo "$@" > {log}
while [ "$1" != build ]; do
  case "$1" in
    *:/kit:ro) kit="${{1%:/kit:ro}}";;
    *:/run-directory) out="${{1%:/run-directory}}";;
  esac
  shift
done
shift 4
exec {accel} build "$kit" --out "$out" "$@"
"""
