"""A release of tiny models, built for real: what is reused, what is built again, what a kill leaves, what is failed."""

import dataclasses
import json
import os
import shutil
import signal
import subprocess
import sys
import time

import psutil
import pytest
from tiny_release import accel, write_model, write_release

from accel.core import hardware
from accel.core.files import lock
from accel.core.values import sha256_file
from accel.release import building, document, planning, release_file
from accel.triton.verify import verify


def states(release: document.Release) -> dict[tuple[str, str], str]:
    return {(e.model, e.pool): e.held for e in release.entries}


def built_again(folder, *, version="1", **change):
    """Build in this process; return the release and the models that were converted."""
    models = {name: folder / f"{name}.onnx" for name in "ab"}
    file = write_release(folder, models, version=version, **change)
    told = []

    class Heard(building.Progress):
        def stage(self, name):
            told.append(name)

    release = building.build(release_file.read(file), folder / "store", Heard())
    converted, current = set(), ""
    for name in told:
        current = name.partition(" ")[0] if " of " in name else current
        converted |= {current} if name == "load source" else set()
    return release, converted


def test_a_release_holds_a_repository_or_a_kit_for_every_model_and_pool(built):
    folder, printed = built
    root = folder / "store" / "1"
    release = document.read(root)
    assert json.loads((root / "release.json").read_text()) == printed
    assert states(release) == {("a", "here"): "ready", ("b", "here"): "ready", ("b", "h100"): "kits"}
    for entry in release.entries:
        assert (root / entry.run).is_file()
        if entry.held == "ready":
            assert entry.chosen == "ort@cpu"
            assert entry.hardware == hardware.detect().id
            assert not [f for f in verify(root / entry.repository) if f.severity == "error"]
            (variant,) = entry.variants
            assert variant.status == "ok"
            assert variant.p50_ms > 0
            assert variant.gate["sqnr_db"] == 80
        else:
            (variant,) = entry.variants
            assert (root / variant.kit / "kit.json").is_file()
            assert os.access(root / variant.kit / "build.sh", os.X_OK)


def test_every_file_is_described_by_its_hash(built):
    folder, _ = built
    root = folder / "store" / "1"
    found = {p.relative_to(root).as_posix(): p for p in root.rglob("*") if p.is_file()}
    described = {f.path: f.sha256 for f in document.read(root).files}
    assert described == {name: sha256_file(path) for name, path in found.items() if name != "release.json"}


def test_a_second_build_converts_nothing_and_changes_no_byte(built):
    folder, _ = built
    root = folder / "store" / "1"
    before = {p: (sha256_file(p), p.stat().st_mtime_ns) for p in root.rglob("*") if p.is_file()}
    release, converted = built_again(folder)
    assert converted == set()
    assert release == document.read(root)
    assert before == {p: (sha256_file(p), p.stat().st_mtime_ns) for p in root.rglob("*") if p.is_file()}
    steps = list(planning.steps(release_file.read(folder / "release.yaml"), folder / "store", hardware.detect()))
    assert {s.doing for s in steps} == {"reuse"}


def test_one_changed_model_is_all_that_is_converted(lent):
    folder = lent
    write_model(folder / "a.onnx", 0, shift=0.25)
    plan = release_file.read(folder / "release.yaml")
    doing = {(s.model, s.pool): s for s in planning.steps(plan, folder / "store", hardware.detect())}
    assert {k: s.doing for k, s in doing.items() if k[0] == "b"} == {("b", "here"): "reuse", ("b", "h100"): "reuse"}
    assert doing["a", "here"].doing == "build"
    assert doing["a", "here"].seconds > 0
    old = document.read(folder / "store" / "1")
    new, converted = built_again(folder, version="2")
    assert converted == {"a"}
    hashes = [{f.path: f.sha256 for f in r.files if "/b/" in f.path or f.path.endswith("b.json")} for r in (old, new)]
    assert hashes[0] == hashes[1]
    models = ["repositories/here/a/a/1/model.onnx" in {f.path for f in r.files} for r in (old, new)]
    assert models == [True, True]
    assert document.read(folder / "store" / "1") == old  # a later version leaves the earlier one alone


def test_a_required_variant_that_is_not_there_is_exit_code_1(lent):
    folder = lent
    sources = {n: {"source": str(folder / f"{n}.onnx"), "samples": str(folder / f"{n}.npz")} for n in "ab"}
    sources["a"]["pools"] = ["here"]
    sources["b"]["require"] = ["ort", "trt-fp16"]
    file = write_release(folder, {}, version="3", models=sources)
    done = accel("release", "build", file, "--store", folder / "store")
    assert done.returncode == 1
    assert "b on h100: trt-fp16@cuda is deferred" in done.stderr
    assert "ort" not in done.stderr.partition("not complete")[2]
    assert len(document.read(folder / "store" / "3").missing) == 1


def test_a_model_that_cannot_be_loaded_fails_alone(tmp_path):
    good, bad = write_model(tmp_path / "a.onnx"), write_model(tmp_path / "b.onnx")
    bad.write_bytes(good.read_bytes()[:200])
    only = {"pools": {"here": {"device": "cpu", "targets": ["ort"]}}}
    file = write_release(tmp_path, {"b": bad, "a": good}, **only)
    done = accel("release", "build", file, "--store", tmp_path / "store")
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert "b on here" in done.stderr
    assert states(document.read(tmp_path / "store" / "1")) == {("b", "here"): "failed", ("a", "here"): "ready"}


FACTORY = """
import os, pathlib, signal
import torch

class Deadly(torch.nn.Module):
    def forward(self, x):
        with open({count!r}, "a") as file:
            file.write("x")
        os.kill(os.getpid(), signal.SIGKILL)

def build():
    return Deadly(), [{{"x": torch.ones(1, 3)}} for _ in range(3)]
"""


def test_a_build_that_kills_its_process_twice_is_failed(tmp_path):
    count = tmp_path / "count"
    (tmp_path / "deadly.py").write_text(FACTORY.format(count=str(count)))
    pools = {"here": {"device": "cpu", "targets": ["ort"]}}
    models = {"m": {"source": f"{tmp_path / 'deadly.py'}:build"}}
    plan = release_file.read(write_release(tmp_path, {}, pools=pools, models=models))
    release = building.build(plan, tmp_path / "store")
    assert states(release) == {("m", "here"): "failed"}
    assert "SIGKILL" in release.entries[0].reason
    assert count.read_text() == "xx"


def test_what_is_killed_while_it_is_timed_is_timed_again(tmp_path):
    killed, others = [], psutil.Process().children(recursive=True)  # the servers that other tests share

    class Deadly(building.Progress):
        def variant(self, id, doing):
            if "round" in doing and not killed:
                for process in {*psutil.Process().children(recursive=True)}.difference(others):
                    process.send_signal(signal.SIGKILL)
                    killed.append(process.pid)

    file = write_release(
        tmp_path, {"a": write_model(tmp_path / "a.onnx")}, pools={"here": {"device": "cpu", "targets": ["ort"]}}
    )
    release = building.build(release_file.read(file), tmp_path / "store", Deadly())
    assert killed
    assert states(release) == {("a", "here"): "ready"}
    (variant,) = release.entries[0].variants
    assert variant.status == "ok"
    assert variant.p50_ms > 0


def test_a_driver_that_is_killed_goes_on_where_it_was(tmp_path):
    models = {name: write_model(tmp_path / f"{name}.onnx", seed) for seed, name in enumerate("ab")}
    file = write_release(tmp_path, models, pools={"here": {"device": "cpu", "targets": ["ort"]}})
    words = [sys.executable, "-m", "accel", "release", "build", str(file), "--store", str(tmp_path / "store")]
    record = tmp_path / "store" / planning.RUNS / hardware.detect().id / "a.json"
    driver = subprocess.Popen(words, stderr=subprocess.DEVNULL)
    until = time.monotonic() + 120
    while not record.exists() and driver.poll() is None and time.monotonic() < until:
        time.sleep(0.02)
    assert record.exists()
    time.sleep(0.5)
    driver.send_signal(signal.SIGKILL)
    driver.wait()
    assert not (tmp_path / "store" / "1").exists()
    kept = record.read_bytes()
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert record.read_bytes() == kept
    assert set(states(document.read(tmp_path / "store" / "1")).values()) == {"ready"}


def test_two_builds_of_one_machine_do_not_mix(tmp_path):
    file = write_release(tmp_path, {"a": write_model(tmp_path / "a.onnx")})
    with lock(tmp_path / "store" / planning.RUNS / hardware.detect().id, "another build"):
        done = accel("release", "build", file, "--store", tmp_path / "store")
    assert done.returncode == 2
    assert "in use by `another build`" in done.stderr


@pytest.mark.skipif(hardware.cpu_threads() < 2, reason="needs two CPUs, to be two machines by its affinity")
def test_two_machines_that_share_a_store_build_one_release(tmp_path):
    """With one CPU taken away the same machine has another hardware id, and is of another pool."""
    small = subprocess.run(
        [sys.executable, "-c", "import os; os.sched_setaffinity(0, [min(os.sched_getaffinity(0))]);"
         "from accel.core import hardware; print(hardware.detect().id)"],
        capture_output=True, text=True, check=True,
    ).stdout.strip()  # fmt: skip
    large = hardware.detect().id
    pools = {n: {"device": "cpu", "targets": ["ort"], "hardware": h} for n, h in (("large", large), ("small", small))}
    file = write_release(tmp_path, {"m": write_model(tmp_path / "m.onnx")}, pools=pools)
    release = building.build(release_file.read(file), tmp_path / "store")
    assert states(release) == {("m", "large"): "ready", ("m", "small"): "waiting"}
    code = "import os, sys; os.sched_setaffinity(0, [min(os.sched_getaffinity(0))]); from accel.cli import main; main()"
    words = ["release", "build", str(file), "--store", str(tmp_path / "store")]
    done = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    release = document.read(tmp_path / "store" / "1")
    assert states(release) == {("m", "large"): "ready", ("m", "small"): "ready"}
    assert {e.pool: e.hardware for e in release.entries} == {"large": large, "small": small}


def test_a_conversion_of_something_else_is_not_taken(built, tmp_path):
    """As when the source changes while it is built, or a worker of a cluster leaves what nobody asked for."""
    store = shutil.copytree(built[0] / "store", tmp_path / "store", symlinks=True)
    plan, machine = release_file.read(built[0] / "release.yaml"), hardware.detect()
    file = store / "runs" / machine.id / "a.json"
    record = json.loads(file.read_text())
    file.unlink()
    file.write_text(json.dumps(record | {"asked": "0" * 64}))
    plan = dataclasses.replace(plan, version="of-others")
    release = building._assemble(plan, store, planning.duties_of(plan, machine))
    assert states(release)["a", "here"] == "failed"
    (entry,) = (e for e in release.entries if e.model == "a")
    assert "is of another source or of other options" in entry.reason
    assert entry.repository is None
