"""A release whose models are tuned: what ``accel tune`` found ships, and only what is asked anew is done again."""

import json
import shutil
from dataclasses import replace

import pytest
import yaml
from tiny_release import accel, write_model, write_release

from accel.core import document as run_document, environments, hardware
from accel.core.errors import InputError
from accel.core.progress import Progress
from accel.release import checking, converting, document, release_file
from accel.triton import manifest as manifests

served = pytest.mark.skipif(not environments.installed("triton"), reason="the embedded server is not installed")
TUNE = {"max_p99_ms": 500, "budget_s": 60}  # in 20 a busy machine found no load that is held


@pytest.fixture(scope="module")
def tuned(tmp_path_factory):
    """The folder of a release whose model ``a`` is tuned, and ``b`` is not."""
    folder = tmp_path_factory.mktemp("tuned")
    file = write_release(folder, {name: write_model(folder / f"{name}.onnx", seed) for seed, name in enumerate("ab")})
    change(file, "a", TUNE)
    done = accel("release", "build", file, "--store", folder / "store")
    assert done.returncode == 0, done.stderr
    return folder


def change(file, model, tune):
    found = yaml.safe_load(file.read_text())
    found["models"][model]["tune"] = tune
    file.write_text(yaml.safe_dump(found))


@served
def test_the_repository_is_the_tuned_one_and_is_as_it_was_written(tuned):
    root = tuned / "store" / "1"
    release = document.read(root)
    entries = {(e.model, e.pool): e for e in release.entries}
    entry = entries["a", "here"]
    found = json.loads((root / "runs/here/a.tune.json").read_text())
    assert (entry.held, entry.chosen) == ("ready", manifests.read(root / entry.repository).variant)
    assert entry.reason == found["decision"]["reason"]
    assert "p99 within 500 ms" in entry.reason
    assert [f for f in checking.verify(root) if f.severity == "error"] == []
    assert not (root / "runs/here/b.tune.json").exists()


@pytest.mark.campaign
@served
def test_it_is_tuned_again_only_where_what_is_asked_of_tuning_changes(tuned):
    file, store = tuned / "release.yaml", tuned / "store"

    def records():
        return {p.stem: p.read_text() for p in store.glob("runs/*/*.json") if not p.name.endswith(".job.json")}

    before = records()
    assert accel("release", "build", file, "--store", store).returncode == 0
    assert records() == before
    change(file, "a", TUNE | {"max_p99_ms": 0.001})
    done = accel("release", "build", file, "--store", store)
    assert done.returncode == 1, done.stderr
    entries = {e.model: e for e in document.read(store / "1").entries if e.pool == "here"}
    assert (entries["a"].held, entries["b"].held) == ("failed", "ready")
    assert "0.001 ms" in entries["a"].reason
    assert records()["b"] == before["b"]


@served
def test_what_was_tuned_of_an_earlier_source_does_not_ship_for_one_of_which_nothing_passes(tuned, tmp_path):
    (kept,) = (tuned / "store").glob("runs/*/a-*/")
    run_dir = shutil.copytree(kept, tmp_path / "run", symlinks=True)
    run = run_document.read(run_dir)
    failed = replace(run, variants=tuple(replace(v, status="gate_failed") for v in run.variants))
    (asked,) = (m for m in release_file.read(tuned / "release.yaml").models if m.name == "a")
    assert converting.tuned(run_dir, "cpu") is not None
    converting._tune(asked.tune, asked.wanted["here"], run_dir, failed, hardware.detect(), Progress())
    assert converting.tuned(run_dir, "cpu") is None


@pytest.mark.parametrize(
    ("tune", "said"),
    [
        ({"max_p99": 5}, r"unknown key 'max_p99' \(did you mean max_p99_ms\?\)"),
        ({"budget_s": 5}, "max_p99_ms is missing"),
        ({"max_p99_ms": 5, "protocol": "quic"}, "grpc"),
        (
            {"max_p99_ms": 5, "offline": True},
            "line .*max_p99_ms: offline there is neither a rate nor a budget of latency",
        ),
    ],
)
def test_what_is_wrong_is_told_with_its_line(tmp_path, tune, said):
    file = write_release(tmp_path, {"a": write_model(tmp_path / "a.onnx")})
    change(file, "a", tune)
    with pytest.raises(InputError, match=said):
        release_file.read(file)


def test_a_model_may_be_without_the_tuning_that_is_the_default(tmp_path):
    file = write_release(tmp_path, {name: write_model(tmp_path / f"{name}.onnx") for name in "ab"})
    found = yaml.safe_load(file.read_text())
    found["defaults"]["tune"] = TUNE
    found["models"]["b"]["tune"] = None
    file.write_text(yaml.safe_dump(found))
    plan = release_file.read(file)
    assert {asked.name: asked.tune is not None for asked in plan.models} == {"a": True, "b": False}
