"""Builds that share an object store: real servers over HTTP, most of it S3, and a local folder for each machine."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from test_building import states
from tiny_release import accel, write_release

from accel.core import hardware
from accel.core.errors import InputError, OutputError, UnavailableError
from accel.core.values import sha256_file
from accel.release import building, document, object_store, release_file, shared


@pytest.fixture
def place(request, empty_place):
    """An empty place, in S3 unless a test says otherwise; a test uses one client: making it takes half a second."""
    return object_store.ObjectStore(empty_place(getattr(request, "param", "s3")))


def build(place, cache, folder, *, names="a", notices=None, **change):
    """Build as one machine of the store; return the release and the models that were converted."""
    (folder / "files").mkdir(exist_ok=True)
    file = write_release(folder / "files", {name: folder / f"{name}.onnx" for name in names}, **change)
    told = []

    class Heard(building.Progress):
        def stage(self, name):
            told.append(name)

        def notice(self, text):
            (notices if notices is not None else []).append(text)

    store = shared.SharedStore(place, cache, Heard())
    release = building.build(release_file.read(file), cache, Heard(), shared=store)
    converted, current = set(), ""
    for name in told:
        current = name.partition(" ")[0] if " of " in name else current
        converted |= {current} if name == "load source" else set()
    return release, converted


@pytest.fixture
def cache(built, tmp_path):
    """The local folder of a machine that converted the models and was not yet told of the object store."""
    return Path(shutil.copytree(built[0] / "store" / "runs", tmp_path / "first" / "runs", symlinks=True)).parent


@pytest.fixture
def first(place, cache, built):
    """The same, and its run of ``a`` and release 1 are in the object store."""
    assert build(place, cache, built[0])[1] == set()
    return cache


def content(folder):
    return {p.relative_to(folder).as_posix(): sha256_file(p) for p in folder.rglob("*") if p.is_file()}


@pytest.mark.parametrize("place", ["s3", "gs", "abfs"], indirect=True)
def test_a_machine_with_an_empty_folder_converts_nothing_and_has_the_same_release(s3, place, cache, built, tmp_path):
    build(place, cache, built[0], names="ab")
    second = tmp_path / "second"
    release, converted = build(place, second, built[0], names="ab")
    assert converted == set()
    assert content(second / "1") == content(cache / "1")
    assert states(release) == {("a", "here"): "ready", ("b", "here"): "ready", ("b", "h100"): "kits"}
    modes = {p.name: p.stat().st_mode & 0o777 for p in (second / "1").rglob("*.sh")}
    assert modes["launch.sh"] == modes["build.sh"] == 0o755
    assert not [p for p in (second / "runs").rglob("*") if p.name in ("report.html", "logs", "measurements")]
    s3.forget()
    assert build(place, second, built[0], names="ab")[1] == set()
    assert [r for r in s3.requests if r[0] == "PUT" or "/content/" in r[1]] == []


def test_stages_come_back_where_an_option_changed(place, first, built, tmp_path):
    """The folder is empty and the options differ, so the model is converted; what did not change is not built again."""
    defaults = {"objective": "latency", "rounds": 3, "round_s": 0.02, "threads": 1, "max_shape": "x:4x8"}
    assert build(place, tmp_path / "second", built[0], defaults=defaults)[1] == {"a"}
    (kept,), (old,) = ((c / "runs").glob("*/a-*/.store/build-*/value.json") for c in (tmp_path / "second", first))
    assert kept.stat().st_mtime_ns == old.stat().st_mtime_ns


def test_what_is_asked_is_the_same_where_the_files_lie_elsewhere(place, cache, built, tmp_path, monkeypatch):
    """A checkout lies in another folder on each machine; the release file names its files from there."""
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
        for file in ("a.onnx", "a.npz"):
            shutil.copy(built[0] / file, tmp_path / name)
    only = {"models": {"a": {"source": "a.onnx", "samples": "a.npz", "pools": ["here"]}}}
    monkeypatch.chdir(tmp_path / "one")
    assert build(place, cache, tmp_path / "one", **only)[1] == {"a"}
    monkeypatch.chdir(tmp_path / "other")
    assert build(place, tmp_path / "second", tmp_path / "other", **only)[1] == set()
    (tmp_path / "other" / "a.npz").write_bytes((built[0] / "b.npz").read_bytes())
    assert build(place, tmp_path / "third", tmp_path / "other", **only)[1] == {"a"}


def damage(place, name, change):
    place.write(name, change(place.read(name)))


def model_content(place):
    """Name of the object that is the model file of ``a``."""
    index = json.loads(place.read(f"store/runs/{hardware.detect().id}/a.json"))
    (sha,) = {f["sha256"] for f in index["files"] if f["path"] == "best/cpu/a/1/model.onnx"}
    return f"store/content/{sha[:2]}/{sha}"


def test_a_damaged_object_is_caught_and_named_and_made_anew_once_it_is_removed(place, first, built, tmp_path):
    name, second, notices = model_content(place), tmp_path / "second", []
    for change, said in (
        (lambda old: old[:-1] + bytes([old[-1] ^ 1]), "other bytes than its name says"),
        (lambda old: old[:-7], "930 bytes, expected 937"),
    ):
        damage(place, name, change)
        with pytest.raises(InputError, match=said) as caught:
            build(place, second, built[0])
        assert f"{place.url}/{name}" in caught.value.message
        assert not list(second.glob("runs/*/a*"))
    place.remove(name)
    assert build(place, second, built[0], notices=notices)[1] == {"a"}
    assert any("are gone" in text for text in notices)
    assert build(place, tmp_path / "third", built[0])[1] == set()


def test_a_damaged_index_is_named(place, first, built, tmp_path):
    outside = {"path": "../x", "sha256": "0" * 64, "bytes": 0, "mode": 0, "mtime_ns": 0}
    no_hash = {**outside, "path": "x", "sha256": "../../x"}
    texts = [json.dumps({"files": [wrong], "schema": 1}) for wrong in (outside, no_hash, {})]
    for text in ("{", "[" * 100_000, '{"schema": 1}', "\xff", *texts):
        damage(place, f"store/runs/{hardware.detect().id}/a.json", lambda _, text=text: text.encode("latin-1"))
        with pytest.raises(InputError, match=r"store/runs/.*/a\.json cannot be read as an index"):
            build(place, tmp_path / "second", built[0])
    damage(place, "store/format", lambda _: b"999")
    with pytest.raises(InputError, match="this accel reads up to"):
        build(place, tmp_path / "second", built[0])


def test_uploads_that_fail_and_downloads_that_break_off_are_tried_again(s3, place, cache, built, tmp_path):
    s3.broken = 2
    build(place, cache, built[0])
    s3.cut = 2
    assert build(place, tmp_path / "second", built[0])[1] == set()
    assert (s3.broken, s3.cut) == (0, 0)
    assert content(tmp_path / "second" / "1") == content(cache / "1")


def test_a_build_that_is_cut_off_goes_on_and_nothing_half_is_seen(s3, place, cache, built, tmp_path, monkeypatch):
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    place = object_store.ObjectStore(place.url)  # a client that gives up at once: five tries of each file take long
    monkeypatch.setattr(place.files, "retries", 1)
    s3.broken = 1000
    with pytest.raises(UnavailableError, match="cannot be used"):
        build(place, cache, built[0])
    assert place.names("store/runs") == []
    s3.broken = 0
    assert build(place, cache, built[0])[1] == set()
    s3.cut = 1000
    with pytest.raises(UnavailableError, match="cannot be used"):
        build(place, tmp_path / "second", built[0])
    s3.cut = 0
    assert build(place, tmp_path / "second", built[0])[1] == set()


def test_a_release_that_was_signed_elsewhere_does_not_change(place, first, built, tmp_path, key_pair):
    second, (private, _) = tmp_path / "second", key_pair(tmp_path, "key")
    build(place, second, built[0])
    assert accel("release", "sign", first / "1", "--key", private).returncode == 0
    build(place, first, built[0])
    build(place, second, built[0])
    assert content(second / "1") == content(first / "1")
    assert (second / "1" / "model.sig").is_file()
    with pytest.raises(OutputError, match="is signed"):
        build(place, tmp_path / "third", built[0], margins={"size": 0.5})


def test_a_run_of_another_machine_that_comes_meanwhile_is_in_the_release(place, first, built, tmp_path, monkeypatch):
    """The other machine stores its run after this one looked, and before its release is there."""
    machine, other = hardware.detect(), tmp_path / "other"
    here = machine.id
    id = replace(machine, cpu=replace(machine.cpu, model="Other CPU")).id
    shutil.copytree(first / "runs" / here, other / "runs" / id)
    (made,) = (other / "runs" / id).glob("a-*/run.json")
    run = json.loads(made.read_text())
    run["hardware"] |= {"id": id, "cpu": run["hardware"]["cpu"] | {"model": "Other CPU"}}
    made.unlink()
    made.write_text(json.dumps(run))
    pools = {
        "here": {"device": "cpu", "targets": ["ort"], "hardware": here},
        "there": {"device": "cpu", "targets": ["ort"], "hardware": id},
    }
    source = {"source": str(built[0] / "a.onnx"), "samples": str(built[0] / "a.npz")}
    change = {"pools": pools, "models": {"a": source}}
    release, _ = build(place, first, built[0], **change)
    assert states(release) == {("a", "here"): "ready", ("a", "there"): "waiting"}
    push = shared.SharedStore.push_release

    def pushed(self, version):
        shared.SharedStore(place, other).push("a", id)
        push(self, version)

    monkeypatch.setattr(shared.SharedStore, "push_release", pushed)
    release, converted = build(place, first, built[0], **change)
    assert (states(release), converted) == ({("a", "here"): "ready", ("a", "there"): "ready"}, set())
    assert document.read(first / "1") == release


def test_what_cannot_be_reached_is_told_before_anything_is_built(s3, built, tmp_path, monkeypatch):
    file = built[0] / "release.yaml"
    words = ["release", "build", file, "--cache", tmp_path / "cache", "--store"]
    done = accel(*words, "s3://no-such-bucket/x")
    assert (done.returncode, "cannot be written to" in done.stderr) == (3, True), done.stderr
    for name in ("ACCESS_KEY_ID", "SECRET_ACCESS_KEY"):
        monkeypatch.delenv(f"AWS_{name}")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    done = accel(*words, "s3://no-such-bucket/x")
    assert (done.returncode, "credentials" in done.stderr) == (3, True), done.stderr
    assert not (tmp_path / "cache").exists()


def test_what_needs_a_folder_says_so(place, built):
    for words in (
        ["prune", built[0] / "release.yaml", "--store", place.url],
        ["plan", built[0] / "release.yaml", "--cache", "x"],
    ):
        done = accel("release", *words)
        assert (done.returncode, "Traceback" in done.stderr) == (2, False), done.stderr


def test_plan_and_build_take_file_urls_as_folders(built):
    done = accel("release", "plan", built[0] / "release.yaml", "--store", f"file://{built[0] / 'store'}", "--json")
    assert {s["doing"] for s in json.loads(done.stdout)["steps"]} == {"reuse"}
