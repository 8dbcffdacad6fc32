"""A release built over a real Ray cluster on this machine: as without it, and through lost processes and nodes."""

import contextlib
import shutil
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
import yaml
from tiny_release import accel, write_model

from accel.core import document as run_document, hardware
from accel.core.errors import CheckFailed, UnavailableError
from accel.release import document, fleet, object_store, planning, publishing

sys.path.insert(0, str(Path(__file__).parents[2]))

from benchmarks import ray_nodes

ray = pytest.importorskip("ray", reason="Ray is not installed: pip install -e '.[fleet]'")
DEADLY = """
import os, pathlib, signal
import torch

class Deadly(torch.nn.Module):
    def forward(self, x):
        with open({count!r}, "a") as file:
            file.write("x")
        os.kill(os.getppid(), signal.SIGKILL)  # the worker of Ray that this process works for
        os.kill(os.getpid(), signal.SIGSTOP)

def build():
    return Deadly(), [{{"x": torch.ones(1, 3)}} for _ in range(3)]
"""


@pytest.fixture(scope="module")
def caches(tmp_path_factory):
    """Where the first node and the driver, and where the second node keep what they have from an object store."""
    return tmp_path_factory.mktemp("own"), tmp_path_factory.mktemp("other")


@pytest.fixture(scope="module")
def cluster(caches, s3_server):
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {"ENDPOINT_URL": s3_server.url, "ACCESS_KEY_ID": "a", "SECRET_ACCESS_KEY": "b"}.items():
            patch.setenv(f"AWS_{name}", value)
        patch.setenv("XDG_CACHE_HOME", str(caches[0]))
        with ray_nodes.cluster() as made:
            made.worker("other", "there", ACCEL_SIMULATE="other", XDG_CACHE_HOME=str(caches[1]))
            yield made


def write_release(folder, models, **more):
    """Write a release for this machine, one that is made up, and a GPU that no node has."""
    file = {
        "release": "1",
        "defaults": {"objective": "latency", "rounds": 2, "round_s": 0.02, "threads": 1},
        "pools": {
            "here": {"device": "cpu", "targets": ["ort"]},
            "there": {"device": "cpu", "targets": ["openvino-fp32"]},
            "h100": {"device": "cuda", "targets": ["trt-fp32"], "gpu": "H100"},
        },
        "models": models,
        **more,
    }
    (folder / "release.yaml").write_text(yaml.safe_dump(file))
    return folder / "release.yaml"


def given(path, **more):
    return {"source": str(path), "samples": str(path.with_suffix(".npz")), "max_shape": "x:4x8", **more}


def content(release):
    """Return what does not depend on what was measured."""
    return {
        (e.model, e.pool, v.id): (v.status, bool(v.kit), tuple(f.sha256 for f in v.files))
        for e in release.entries
        for v in e.variants
    }


def exported(store, model="a"):
    """Return how often a model was exported, by the time at which that was."""
    found = list(store.glob(f"{planning.RUNS}/*/{model}-*/.store/onnx-*/value.json"))
    assert len(found) == 2
    return len({path.stat().st_mtime_ns for path in found})


@pytest.fixture(scope="module")
def built(cluster, tmp_path_factory):
    """The folder of a release that the cluster built, and what the command said."""
    folder = tmp_path_factory.mktemp("fleet")
    models = {name: given(write_model(folder / f"{name}.onnx", seed)) for seed, name in enumerate("ab")}
    models["b"]["pools"] = ["here"]
    file = write_release(folder, models)
    done = accel("release", "build", file, "--store", folder / "store", "--ray", cluster.address)
    assert done.returncode == 0, done.stderr
    return folder, done


def test_every_pool_is_built_by_a_node_that_offers_it(built):
    folder, done = built
    release = document.read(folder / "store" / "1")
    here = hardware.detect().id
    assert {(e.model, e.pool): e.held for e in release.entries} == {
        ("a", "here"): "ready", ("a", "there"): "ready", ("a", "h100"): "kits", ("b", "here"): "ready",
    }  # fmt: skip
    machines = {e.pool: e.hardware for e in release.entries}
    assert machines["here"] == machines["h100"] == here
    assert "simulated-other" in machines["there"]
    assert "a on there: measure done" in done.stderr
    assert done.stderr.count("a on here: export done") == 1  # for both machines
    assert exported(folder / "store") == 1
    with pytest.raises(CheckFailed, match=r"simulated-other-\S+ is not hardware"):
        publishing.fit(folder / "store" / "1", folder / "nobody.pub")


def test_it_is_what_this_machine_builds_alone(built, tmp_path):
    folder, _ = built
    file = yaml.safe_load((folder / "release.yaml").read_text())
    del file["pools"]["there"]
    (tmp_path / "release.yaml").write_text(yaml.safe_dump(file))
    done = accel("release", "build", tmp_path / "release.yaml", "--store", tmp_path / "store")
    assert done.returncode == 0, done.stderr
    alone, fleet = document.read(tmp_path / "store" / "1"), document.read(folder / "store" / "1")
    assert content(alone) == {k: v for k, v in content(fleet).items() if k[1] != "there"}


def test_again_nothing_is_converted(built, cluster):
    folder, _ = built
    kept = {p: p.read_bytes() for p in (folder / "store" / planning.RUNS).glob("*/*.json")}
    before = document.read(folder / "store" / "1")
    done = accel("release", "build", folder / "release.yaml", "--store", folder / "store", "--ray", cluster.address)
    assert done.returncode == 0, done.stderr
    assert "3 of 3 are done" in done.stderr  # no task was handed out
    assert "prepare" not in done.stderr
    assert kept == {p: p.read_bytes() for p in (folder / "store" / planning.RUNS).glob("*/*.json")}
    assert document.read(folder / "store" / "1") == before


def test_one_machine_exports_for_all_and_where_it_is_lost_the_others_go_on():
    cluster = fleet.Cluster(SimpleNamespace(models=()), Path("store"), {}, None, retry=False)
    for model in ("a", "b", "c"):
        cluster.begin(model, ["x", "y"])
    cluster.begin("d", ["y"])

    def waiting():
        return {(t.model, t.machine, t.phase) for tasks in cluster.waiting.values() for t in tasks}

    first = {("a", "x", "export"), ("b", "y", "export"), ("c", "x", "export"), ("d", "y", "prepare")}
    assert waiting() == first
    cluster.drop("x")
    assert waiting() == {("a", "y", "prepare"), ("b", "y", "export"), ("c", "y", "prepare"), ("d", "y", "prepare")}
    cluster.exported("b")
    assert ("b", "y", "prepare") in waiting()
    assert "x" not in {machine for _, machine, _ in waiting()}


def test_a_worker_shows_its_hardware_before_it_does_anything(tmp_path):
    here = hardware.detect()
    other = replace(here, cpu=replace(here.cpu, flags=()))
    task = fleet.FleetTask("a", here.id, "measure")
    with pytest.raises(UnavailableError, match=rf"{here.id} \(.+\), and was to be {other.id} \(no flags\)"):
        fleet._work(task, None, (), str(tmp_path), other, planning.code(), str(tmp_path), False)
    assert not list(tmp_path.iterdir())


@pytest.mark.campaign
def test_a_model_that_kills_its_worker_twice_has_failed_and_a_lost_node_has_not(cluster, tmp_path):
    """The second node of the pool is lost while it works; the first does what is left."""
    count = tmp_path / "count"
    (tmp_path / "deadly.py").write_text(DEADLY.format(count=str(count)))
    models = {"deadly": {"source": f"{tmp_path / 'deadly.py'}:build"}, "good": given(write_model(tmp_path / "g.onnx"))}
    pools = {"here": {"device": "cpu", "targets": ["ort"]}}
    file = write_release(tmp_path, models, pools=pools)
    cluster.worker("second", "here")
    second = {p.pid for p in cluster.nodes["second"]}

    def lose():
        until = time.monotonic() + 60
        while time.monotonic() < until:
            busy = [
                c for pid in second for c in _children(pid) if any("prepare" in w or "measure" in w for w in _line(c))
            ]
            if busy:
                break
            time.sleep(0.1)
        cluster.kill("second")

    losing = threading.Thread(target=lose)
    losing.start()
    done = accel("release", "build", file, "--store", tmp_path / "store", "--ray", cluster.address)
    losing.join()
    assert "Traceback" not in done.stderr
    release = document.read(tmp_path / "store" / "1")
    assert {e.model: e.held for e in release.entries} == {"deadly": "failed", "good": "ready"}, done.stderr
    assert "its process died" in next(e.reason for e in release.entries if e.model == "deadly")
    assert 2 <= len(count.read_text()) <= 4


def _line(process):
    try:
        return process.cmdline()
    except psutil.Error:
        return []


def _children(pid):
    with contextlib.suppress(psutil.Error):
        return psutil.Process(pid).children(recursive=True)
    return []


@pytest.mark.campaign
def test_machines_without_a_common_folder_build_over_an_object_store(built, cluster, caches, tmp_path):
    """Runs go from node to node, and to the driver, by the bucket alone; with an empty folder nothing is done again."""
    folder, _ = built
    place = object_store.ObjectStore("s3://fleet/prefix")
    place.files.mkdir("fleet")
    words = ["release", "build", folder / "release.yaml", "--store", place.url, "--ray", cluster.address]
    done = accel(*words, "--cache", tmp_path / "driver")
    assert done.returncode == 0, done.stderr
    found = document.read(tmp_path / "driver" / "1")
    assert content(found) == content(document.read(folder / "store" / "1"))
    assert exported(tmp_path / "driver") == 1
    ran = {cache: {p.parent.name for p in cache.glob("accel/releases/*/runs/*/a.json")} for cache in caches}
    assert ran[caches[0]] == {hardware.detect().id}
    assert len(ran[caches[1]] - ran[caches[0]]) == len(ran[caches[1]]) == 1
    for cache in caches:
        shutil.rmtree(cache / "accel")
    done = accel(*words, "--cache", tmp_path / "empty")
    assert done.returncode == 0, done.stderr
    assert "3 of 3 are done" in done.stderr
    assert content(document.read(tmp_path / "empty" / "1")) == content(found)


@pytest.mark.campaign
def test_a_node_takes_the_stages_of_a_model_from_the_bucket(built, cluster, caches, tmp_path):
    folder, _ = built
    place = object_store.ObjectStore("s3://fleet/stages")
    place.files.makedirs("fleet", exist_ok=True)
    words = ["release", "build", folder / "release.yaml", "--store", place.url, "--ray", cluster.address]
    done = accel(*words, "--cache", tmp_path / "cache")
    assert done.returncode == 0, done.stderr
    shutil.rmtree(caches[1] / "accel")
    file = yaml.safe_load((folder / "release.yaml").read_text())
    file["models"]["a"]["rounds"] = 3  # it is measured again
    (tmp_path / "more.yaml").write_text(yaml.safe_dump(file | {"release": "2"}))
    words[2] = tmp_path / "more.yaml"
    done = accel(*words, "--cache", tmp_path / "cache")
    assert done.returncode == 0, done.stderr
    assert "1 of 3 are done" in done.stderr
    assert content(document.read(tmp_path / "cache" / "2")) == content(document.read(tmp_path / "cache" / "1"))
    (again,) = caches[1].glob("accel/releases/*/runs/*/a-*/run.json")
    tasks = {span.task for span in run_document.read(again).timeline}
    assert "time_round" in tasks
    assert not tasks & {"describe", "export", "build", "answers"}  # what it had made is kept


@pytest.mark.campaign
def test_what_a_cluster_lacks_is_one_message(cluster, tmp_path):
    models = {"a": given(write_model(tmp_path / "a.onnx"))}
    pools = {"nowhere": {"device": "cpu", "targets": ["ort"]}}
    file = write_release(tmp_path, models, pools=pools)
    done = accel("release", "build", file, "--store", tmp_path / "store", "--ray", cluster.address)
    assert done.returncode == 3
    assert "no node of the cluster offers a pool as a resource: nowhere" in done.stderr
    pools = {"there": {"device": "cpu", "targets": ["ort"], "memory_gib": 1e6}}
    file = write_release(tmp_path, models, pools=pools)
    done = accel("release", "build", file, "--store", tmp_path / "store", "--ray", cluster.address)
    assert done.returncode == 2
    assert "offers the resource 'there' and is not of that pool" in done.stderr
