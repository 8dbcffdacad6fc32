"""Publishing to a folder and to real servers over HTTP: whole or not at all, one winner, no way back unseen."""

import base64
import json
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta

import pytest
import yaml
from cloud_servers import KINDS
from tiny_release import accel, write_signed
from typer.testing import CliRunner

from accel.cli import app
from accel.core import signing, trust
from accel.core.errors import CheckFailed, InputError, OutputError, UsageError
from accel.core.values import sha256_file
from accel.release import document, object_store, publishing

CLOUDS = [pytest.param(kind, marks=pytest.mark.campaign) for kind in ("gs", "abfs")]


@pytest.fixture(params=["file", "s3", *CLOUDS])
def url(request, empty_place):
    """An empty place of each kind, as a user names it."""
    return empty_place(request.param)


@pytest.fixture(scope="module")
def signed(built, tmp_path_factory, key_pair):
    """Versions 1 and 2 of a release, signed, and their key pair."""
    folder = tmp_path_factory.mktemp("signed")
    private, public = key_pair(folder, "key")
    for version in ("1", "2"):
        root = folder / version
        shutil.copytree(built[0] / "store" / "1", root)
        shutil.rmtree(root / "kits")  # fewer files, fewer requests
        release = document.read(root)
        files = [f for f in json.loads((root / "release.json").read_text())["files"] if (root / f["path"]).exists()]
        data = json.loads((root / "release.json").read_text()) | {"version": version, "files": files}
        assert release.version == "1"
        statement = root / "provenance.json"
        names = {f["path"] for f in files}
        told = json.loads(statement.read_text())
        told["subject"] = [s for s in told["subject"] if s["name"] in names]
        statement.write_text(json.dumps(told))
        for entry in data["files"]:
            if entry["path"] == "provenance.json":
                entry |= {"sha256": sha256_file(statement), "bytes": statement.stat().st_size}
        (root / "release.json").write_text(json.dumps(data))
        done = accel("release", "sign", root, "--key", private)
        assert done.returncode == 0, done.stderr
    return folder, private, public


def content(folder):
    return {p.relative_to(folder).as_posix(): sha256_file(p) for p in folder.rglob("*") if p.is_file()}


def test_a_list_tells_what_is_unfinished_and_refuses_what_is_not_there(signed, tmp_path):
    folder, _, public = signed
    with pytest.raises(UsageError, match="does not exist"):
        publishing.listed(publishing.ObjectStore(str(tmp_path / "elsewhere")), public)
    place = publishing.ObjectStore(str(tmp_path / "place"))
    digest = publishing.publish(folder / "1", place, key=public)
    for name in ("release.json", "model.sig"):
        (tmp_path / "place/releases/1" / digest / name).unlink()
    (row,) = publishing.listed(place, public)["versions"]
    assert row["refused"] == "its upload is unfinished: accel release publish goes on with it"
    publishing.publish(folder / "1", place, key=public)
    assert publishing.listed(place, public)["versions"][0]["refused"] is None


@pytest.mark.parametrize("url", KINDS, indirect=True)
def test_published_promoted_pulled_and_rolled_back(url, signed, tmp_path):
    folder, private, public = signed
    place = publishing.ObjectStore(url)
    keys = {"key": private, "public": public, "days": 90}
    for version in ("1", "2"):
        publishing.publish(folder / version, place, key=public)
        assert publishing.promote(place, "production", version, **keys).sequence == int(version)
    taken = publishing.pull(place, "production", tmp_path / "out", key=public)
    assert (taken.name, content(taken)) == ("2", content(folder / "2"))
    assert publishing.rollback(place, "production", **keys).version == "1"
    assert content(publishing.pull(place, "production", tmp_path / "out", key=public)) == content(folder / "1")
    publishing.promote(place, "canary", "2", **keys)
    owner, found = trust.fingerprint(public), publishing.listed(place, public)
    assert found["versions"] == [
        {"version": "1", "names": "production", "key": owner, "refused": None},
        {"version": "2", "names": "canary", "key": owner, "refused": None},
    ]
    assert [(n["name"], n["number"], n["key"]) for n in found["names"]] == [
        ("canary", 1, owner),
        ("production", 3, owner),
    ]
    with pytest.raises(UsageError, match="no release 3"):
        publishing.promote(place, "production", "3", **keys)


def test_of_two_that_move_a_pointer_at_once_one_wins(url, signed):
    folder, private, public = signed
    publishing.publish(folder / "1", publishing.ObjectStore(url), key=public)

    def move(_):
        try:
            return publishing.promote(
                publishing.ObjectStore(url), "production", "1", key=private, public=public, days=90
            ).sequence
        except OutputError as error:
            return error.message

    with ThreadPoolExecutor(6) as pool:
        found = list(pool.map(move, range(6)))
    won = sorted(n for n in found if isinstance(n, int))
    assert won == list(range(1, len(won) + 1))
    assert all("somebody else" in text for text in found if isinstance(text, str))
    history = list(publishing.pointers(publishing.ObjectStore(url), "production", public))
    assert [p.sequence for p in history] == won[::-1]


def test_a_version_is_published_once(url, signed, tmp_path, key_pair):
    folder, private, public = signed
    place = publishing.ObjectStore(url)
    digest = publishing.publish(folder / "1", place, key=public)
    assert publishing.publish(folder / "1", place, key=public) == digest
    other = tmp_path / "other"
    shutil.copytree(folder / "1", other)
    data = json.loads((other / "release.json").read_text())
    (other / "release.json").write_text(json.dumps(data | {"created": "2020-01-01T00:00:00Z"}))
    (other / "model.sig").unlink()
    accel("release", "sign", other, "--key", private)
    with pytest.raises(OutputError, match="with other content"):
        publishing.publish(other, place, key=public)


PUBLISHER = """
import sys
from pathlib import Path
from accel.core.errors import OutputError
from accel.release import object_store, publishing
place = object_store.ObjectStore(sys.argv[1])
place.names("releases")
print("ready", flush=True)
for folder in map(str.strip, sys.stdin):
    try:
        print(publishing.publish(Path(folder), place, key=Path(sys.argv[2])), flush=True)
    except OutputError as error:
        print(error.message, flush=True)
"""


def test_of_two_processes_that_publish_one_version_at_once_one_wins_and_nothing_mixes(url, tmp_path, key_pair):
    private, public = key_pair(tmp_path, "key")
    versions, stores = ("1", "2", "3", "4"), (tmp_path / "a", tmp_path / "b")
    versions = versions[:1] if url.startswith(("gs:", "abfs:")) else versions  # each takes seconds
    for version in versions:
        for store, day in zip(stores, ("01", "02"), strict=True):
            write_signed(store, version, private, created=f"2026-11-{day}T00:00:00Z")
    line = [sys.executable, "-c", PUBLISHER, url, str(public)]
    with (
        subprocess.Popen(line, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as one,
        subprocess.Popen(line, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other,
    ):
        both = (one, other)
        assert [process.stdout.readline() for process in both] == ["ready\n"] * 2
        place = publishing.ObjectStore(url)
        for version in versions:
            for process, store in zip(both, stores, strict=True):
                process.stdin.write(f"{store / version}\n")
                process.stdin.flush()
            said = [process.stdout.readline().strip() for process in both]
            digests = [sha256_file(store / version / "release.json") for store in stores]
            (won,) = [n for n in (0, 1) if said[n] == digests[n]]
            assert f"has a release {version} with other content, which stays" in said[1 - won]
            assert place.names(f"releases/{version}") == sorted(["digest", digests[won]])
            publishing.promote(place, "production", version, key=private, public=public, days=90)
            taken = publishing.pull(place, "production", tmp_path / "out", key=public)
            assert content(taken) == content(stores[won] / version)
            there = place.files.find(place.files._strip_protocol(f"{url}/releases/{version}/{digests[won]}"))
            assert len(there) == len(content(taken))
        for process in both:
            process.stdin.close()


def test_what_was_taken_is_checked_again_file_by_file(signed, tmp_path):
    """A machine that lost power may have the names of all files, and the content of some."""
    folder, private, public = signed
    place = publishing.ObjectStore(str(tmp_path / "place"))
    publishing.publish(folder / "1", place, key=public)
    publishing.promote(place, "production", "1", key=private, public=public, days=90)
    taken = publishing.pull(place, "production", tmp_path / "out", key=public)
    largest = max((p for p in taken.rglob("*") if p.is_file()), key=lambda p: p.stat().st_size)
    largest.chmod(0o644)
    largest.write_bytes(largest.read_bytes()[:-1])
    assert content(publishing.pull(place, "production", tmp_path / "out", key=public)) == content(folder / "1")
    pointer = tmp_path / "place/pointers/production/0000000001.json"
    plain = tmp_path / "plain"
    plain.touch()
    assert pointer.stat().st_mode == plain.stat().st_mode, "machines read it as another user"


def test_what_is_not_signed_whole_and_let_through_is_not_published(signed, tmp_path):
    folder, private, public = signed
    place = publishing.ObjectStore(str(tmp_path / "place"))
    other = tmp_path / "other"
    shutil.copytree(folder / "1", other)
    (other / "report.md").write_text("changed")
    with pytest.raises(CheckFailed, match=r"report\.md"):
        publishing.publish(other, place, key=public)
    shutil.copyfile(folder / "1" / "report.md", other / "report.md")
    data = json.loads((other / "release.json").read_text())
    row = {
        "model": "b",
        "pool": "here",
        "what": "latency",
        "before": "",
        "after": "",
        "verdict": "worse",
        "blocks": True,
    }
    compared = {"before": "0", "hardware": "x", "created": "x", "rows": [row]}
    entries = [e | {"held": "failed", "reason": "its gate"} if e["model"] == "a" else e for e in data["entries"]]
    changed = {"compared": compared, "compare_again": "0", "missing": ["c is gone"], "entries": entries}
    (other / "release.json").write_text(json.dumps(data | changed))
    (other / "model.sig").unlink()
    accel("release", "sign", other, "--key", private)
    with pytest.raises(
        CheckFailed,
        match=r"c is gone\n  a on here failed: its gate\n  b:latency on here is worse\n.*compared with 0, and",
    ):
        publishing.publish(other, place, key=public)
    assert place.names("releases") == []


@pytest.mark.parametrize("content", [b"\xff" * 64, b"", b"../" * 20, b"a" * 70_000])
def test_a_digest_that_is_none_is_refused(signed, tmp_path, content):
    """It names a folder, so what is not a sha256 could lead anywhere; bytes of no text were a traceback."""
    folder, private, public = signed
    place = publishing.ObjectStore(str(tmp_path / "place"))
    publishing.publish(folder / "1", place, key=public)
    digest = tmp_path / "place/releases/1/digest"
    digest.chmod(0o644)
    digest.write_bytes(content)
    with pytest.raises(InputError, match="expected the sha256"):
        publishing.promote(place, "production", "1", key=private, public=public, days=90)
    with pytest.raises(InputError, match="expected the sha256"):
        publishing.publish(folder / "1", place, key=public)


def test_an_older_pointer_and_one_that_ended_are_refused(signed, tmp_path):
    folder, private, public = signed
    place, out = publishing.ObjectStore(str(tmp_path / "place")), tmp_path / "out"
    for version in ("1", "2"):
        publishing.publish(folder / version, place, key=public)
        publishing.promote(place, "production", version, key=private, public=public, days=90)
    publishing.pull(place, "production", out, key=public)
    newest = tmp_path / "place/pointers/production/0000000002.json"
    kept = newest.read_text()
    newest.unlink()  # as who controls the store would hide it
    with pytest.raises(InputError, match="put an older pointer in its place"):
        publishing.pull(place, "production", out, key=public)
    newest.write_text(kept.replace('\\"version\\": \\"2\\"', '\\"version\\": \\"1\\"'))
    with pytest.raises(InputError, match="is not what the owner of"):
        publishing.pull(place, "production", out, key=public)
    newest.write_text(newest.with_name("0000000001.json").read_text())
    with pytest.raises(InputError, match="says it is another"):
        publishing.pull(place, "production", out, key=public)
    newest.unlink()
    publishing.promote(place, "short", "1", key=private, public=public, days=-1)
    with pytest.raises(InputError, match="ended at"):
        publishing.pull(place, "short", out, key=public)
    ended = next(publishing.pointers(place, "short", public)).expires
    assert datetime.fromisoformat(ended) < datetime.now(UTC) - timedelta(hours=23)


@pytest.mark.parametrize("name", ["../eu", "prod/eu", "/eu", "", ".", "a b"])
def test_a_name_that_is_no_file_is_refused_and_nothing_is_written(name, signed, tmp_path):
    """Beside ``pointers`` no list shows it, and ``prune`` removes what it stands for."""
    folder, private, public = signed
    place = publishing.ObjectStore(str(tmp_path / "place"))
    publishing.publish(folder / "1", place, key=public)
    before = content(tmp_path)
    done = run("promote", "1", "--to", place.url, "--key", public, "--sign", private, "--as", name)
    assert isinstance(done.exception, InputError)
    assert "is no name of a pointer" in str(done.exception)
    assert content(tmp_path) == before
    with pytest.raises(InputError, match="is no name of a pointer"):
        publishing.pull(place, name, tmp_path / "out", key=public)


def test_an_odd_folder_among_pointers_is_a_row_and_the_others_are_read(signed, tmp_path):
    folder, private, public = signed
    place = publishing.ObjectStore(str(tmp_path / "place"))
    publishing.publish(folder / "1", place, key=public)
    for name in ("canary", "production"):
        publishing.promote(place, name, "1", key=private, public=public, days=90)
    (tmp_path / "place/pointers/production/eu").mkdir()
    rows = {row["name"]: row["refused"] for row in publishing.listed(place, public)["names"]}
    assert rows["canary"] is None
    assert "pointers/production/eu is not a pointer" in rows["production"]


def test_a_place_that_is_a_folder_is_verified_as_one_and_what_is_not_there_is_named(signed, tmp_path):
    folder, private, public = signed
    place = publishing.ObjectStore(str(tmp_path / "place"))
    publishing.publish(folder / "1", place, key=public)
    publishing.promote(place, "production", "1", key=private, public=public, days=90)
    assert run("verify", tmp_path / "place", "--key", public).exit_code == 0
    done = run("verify", tmp_path / "nowhere.tar", "--key", public)
    assert "does not exist" in str(done.exception)
    done = run("list", "--to", tmp_path / "nowhere", "--key", public)
    assert "does not exist" in str(done.exception)
    (tmp_path / "empty").mkdir()
    done = run("list", "--to", tmp_path / "empty", "--key", public)
    assert (done.exit_code, "nothing is published" in done.output) == (0, True)


def test_a_changed_file_of_the_store_is_never_taken(signed, tmp_path):
    folder, private, public = signed
    place, out = publishing.ObjectStore(str(tmp_path / "place")), tmp_path / "out"
    digest = publishing.publish(folder / "1", place, key=public)
    publishing.promote(place, "production", "1", key=private, public=public, days=90)
    file = tmp_path / f"place/releases/1/{digest}/repositories/here/a/a/1/model.onnx"
    file.chmod(0o644)
    file.write_bytes(file.read_bytes()[:-1] + b"\0")
    with pytest.raises(InputError, match="is not what the owner of"):
        publishing.pull(place, "production", out, key=public)
    assert not (out / "1").exists()
    assert not (out / "production.pointer.json").exists()


def test_a_release_is_verified_where_it_is_published(url, signed, tmp_path):
    folder, private, public = signed
    place = publishing.ObjectStore(url)
    digest = publishing.publish(folder / "1", place, key=public)
    publishing.promote(place, "production", "1", key=private, public=public, days=90)
    done, own = run("verify", url, "--key", public, "--json"), run("verify", folder / "1", "--key", public, "--json")
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["findings"] == json.loads(own.stdout)["findings"]
    assert not errors(publishing.verify(place, name="production", version="1", key=public))
    with pytest.raises(UsageError, match="has no release 2"):
        publishing.verify(place, name="production", version="2", key=public)
    with pytest.raises(UsageError, match="--key"):
        publishing.verify(place, name="production")
    with pytest.raises(InputError, match="has no pointer canary"):
        publishing.verify(place, name="canary", key=public)
    base = f"releases/1/{digest}"
    whole = {path: place.read(f"{base}/{path}") for path in ("report.md", "release.json", "model.sig")}
    changed = {"report.md": b"changed", "release.json": whole["release.json"].replace(b'"1"', b'"3"'), "added": b"x"}
    for path, content in changed.items():
        place.write(f"{base}/{path}", content)
        found = errors(publishing.verify(place, name="production", key=public))
        assert {"model.sig", path} <= {f.file for f in found}
        place.write(f"{base}/{path}", whole[path]) if path in whole else place.remove(f"{base}/{path}")
    place.remove(f"{base}/report.md")
    done = run("verify", url, "--version", "1", "--key", public, "--json")
    assert isinstance(done.exception, CheckFailed)
    assert "report.md" in {f["file"] for f in json.loads(done.stdout)["findings"] if f["severity"] == "error"}


def run(*words):
    """Run a command in this process; what it prints, and its error, are attributes."""
    return CliRunner().invoke(app, ["release", *map(str, words)])


def errors(found):
    return [f for f in found if f.severity == "error"]


def test_an_upload_that_breaks_off_goes_on_and_is_not_seen_before(s3, signed, tmp_path, monkeypatch):
    folder, private, public = signed
    place = publishing.ObjectStore("s3://broken/x")
    place.files.mkdir("broken")
    release = document.read(folder / "1")
    uploads = place.upload
    done = []

    def upload(source, name):
        if len(done) == 5 and not any("stopped" in d for d in done):
            done.append("stopped")
            raise KeyboardInterrupt
        done.append(name)
        uploads(source, name)

    monkeypatch.setattr(place, "upload", upload)
    with pytest.raises(KeyboardInterrupt):
        publishing.publish(folder / "1", place, key=public)
    with pytest.raises(UsageError, match="in part only"):
        publishing.promote(place, "production", "1", key=private, public=public, days=90)
    s3.broken = 2  # the client tries again by itself
    publishing.publish(folder / "1", place, key=public)
    assert s3.broken == 0
    publishing.promote(place, "production", "1", key=private, public=public, days=90)
    taken = publishing.pull(place, "production", tmp_path / "out", key=public)
    assert content(taken) == content(folder / "1")
    assert len(release.files) == len(content(folder / "1")) - 2


@pytest.mark.filterwarnings(
    "ignore:Sending a large body directly:ResourceWarning"
)  # of aiohttp, as Azure's client uses it
@pytest.mark.parametrize("size", [3000, 11 * 2**20])
def test_a_file_of_the_same_size_and_other_content_is_uploaded_again(url, s3, tmp_path, monkeypatch, size):
    monkeypatch.setattr(object_store, "PART_BYTES", 5 * 2**20)  # the least that S3 takes
    place, name = publishing.ObjectStore(url), f"releases/1/x/{tmp_path.name}"
    file, other = tmp_path / "file", tmp_path / "other"
    file.write_bytes(b"a" * size)
    other.write_bytes(b"b" + b"a" * (size - 1))
    place.upload(other, name)
    place.upload(file, name)
    assert place.read(name) == file.read_bytes()
    written = place.files.info(place._at(name))
    before = len(s3.requests)
    place.upload(file, name)  # it is there: nothing goes out
    assert [method for method, _ in s3.requests[before:] if method in ("PUT", "POST")] == []
    assert place.files.info(place._at(name)) == written


@pytest.mark.parametrize("kind", ["s3", "gs", "abfs"])
def test_kserve_is_told_where_the_files_lie_in_the_bucket(kind, empty_place, signed, tmp_path):
    folder, _, public = signed
    place = publishing.ObjectStore(empty_place(kind))
    done = accel(
        "release", "publish", folder / "1", "--to", f"kserve:{tmp_path},{place.url}", "--key", public, "--json"
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["published"] == [place.url, f"{tmp_path}/1"]
    for model in "ab":
        _, service = yaml.safe_load_all((tmp_path / f"1/here/{model}.yaml").read_text())
        uri = service["spec"]["predictor"]["model"]["storageUri"]
        assert uri.startswith("https://" if kind == "abfs" else f"{kind}://")
        there = set(place.files_below(uri.removeprefix(f"{place.address}/")))
        own = folder / "1/repositories/here" / model
        assert there == {p.relative_to(own).as_posix() for p in own.rglob("*") if p.is_file()}


@pytest.mark.parametrize(
    "wrong",
    [
        {"version": "../x"}, {"version": "/x"}, {"version": "1\0"}, {"digest": "../../x"}, {"expires": "tomorrow"},
        {"expires": "2050-01-01"}, None,
    ],
)  # fmt: skip
def test_an_odd_pointer_is_refused_even_if_its_owner_signed_it(tmp_path, key_pair, wrong):
    private, public = key_pair(tmp_path, "key")
    sound = {"name": "production", "version": "1", "digest": "0" * 64, "sequence": 1, "created": "", "schema": 1}
    text = json.dumps(sound | {"expires": "2050-01-01T00:00:00+00:00"} | (wrong or {}))
    signed = {"pointer": text, "signature": base64.b64encode(signing.sign_text(text, private)).decode()}
    file = tmp_path / "place/pointers/production/0000000001.json"
    file.parent.mkdir(parents=True)
    file.write_text(json.dumps(signed) if wrong else "[" * 100_000)
    with pytest.raises(InputError, match="is not a pointer"):
        next(publishing.pointers(publishing.ObjectStore(str(tmp_path / "place")), "production", public))
