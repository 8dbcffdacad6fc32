"""What signs, describes and checks a release: nothing in one changes unseen, by us or by the stock tool."""

import dataclasses
import json
import shutil
import subprocess
import sys

import pytest
from tiny_release import accel

from accel.core import environments, signing
from accel.core.errors import OutputError
from accel.release import building, checking, document, provenance, release_file


@pytest.fixture(scope="module")
def signed(built, tmp_path_factory, key_pair):
    """A signed copy of the release, and the public key."""
    folder = tmp_path_factory.mktemp("signed")
    private, public = key_pair(folder, "key")
    shutil.copytree(built[0] / "store" / "1", folder / "1")
    done = accel("release", "sign", folder / "1", "--key", private)
    assert done.returncode == 0, done.stderr
    return folder / "1", public


def errors(folder, public):
    return [f for f in checking.verify(folder, key=public) if f.severity == "error"]


def stock(folder, public):
    """Return the exit code of the stock command line."""
    words = ["verify", "key", folder, "--signature", folder / "model.sig", "--public_key", public]
    words += ["--no-ignore-git-paths"]
    command = [sys.executable, "-m", "model_signing", *map(str, words)]
    return subprocess.run(command, capture_output=True, check=False).returncode


def flip(path, position=-10):
    path.chmod(0o644)
    data = bytearray(path.read_bytes())
    data[position] ^= 1
    path.write_bytes(data)


def flip_weights(folder, key_pair):
    flip(folder / "repositories/here/a/a/1/model.onnx")


def flip_kit(folder, key_pair):
    flip(folder / "kits/h100/b/trt-fp16@cuda/onnx/model.onnx")


def flip_release(folder, key_pair):
    file = folder / "release.json"
    file.write_text(file.read_text().replace('"version": "1"', '"version": "2"'))


def flip_page(folder, key_pair):
    flip(folder / "index.html")


def remove(folder, key_pair):
    (folder / "runs/here/a.json").unlink()


def add(folder, key_pair):
    (folder / "repositories/here/a/a/1/extra.py").write_text("x")


def hide(folder, key_pair):
    (folder / ".gitattributes").write_text("x")


def write_anew(folder, key_pair):
    """Change a file, and ``release.json`` with it, as who cannot sign would."""
    path = folder / "report.md"
    path.write_text("fine")
    release = document.read(folder)
    refs = [building._described(f.path, folder / f.path) for f in release.files]
    data = json.loads((folder / "release.json").read_text())
    data["files"] = [{"path": f.path, "sha256": f.sha256, "bytes": f.bytes} for f in refs]
    (folder / "release.json").write_text(json.dumps(data))


def swap(folder, key_pair):
    private, _ = key_pair(folder.parent, "other")
    signing.sign(folder, private)


def borrow(folder, key_pair):
    """Put the signature of another release, by the same key, in the place of its own."""
    other = folder.parent / "other"
    shutil.copytree(folder, other)
    (other / "report.md").write_text("fine")
    signing.sign(other, folder.parent / "key.pem")
    shutil.copyfile(other / "model.sig", folder / "model.sig")


def unsign(folder, key_pair):
    (folder / "model.sig").unlink()


@pytest.mark.parametrize(
    "attack", [flip_weights, flip_kit, flip_release, flip_page, remove, add, hide, write_anew, swap, borrow, unsign]
)
def test_nothing_changes_unseen(signed, attack, tmp_path, key_pair):
    original, public = signed
    folder = tmp_path / "copy"
    shutil.copytree(original, folder)
    shutil.copyfile(original.parent / "key.pem", tmp_path / "key.pem")
    attack(folder, key_pair)
    assert any(f.file == "model.sig" for f in errors(folder, public))
    assert stock(folder, public) != 0
    if attack not in (flip_release, swap, borrow, unsign):  # what hashes alone find, without a key
        assert [f for f in checking.verify(folder) if f.severity == "error"]


def test_a_flipped_byte_of_any_file_is_found_here_and_by_the_stock_tool(signed, tmp_path):
    """In the middle of each file; of the signature in all of its parts. The stock command line runs in this process."""
    from click.testing import CliRunner
    from model_signing._cli import main

    original, public = signed
    folder = tmp_path / "copy"
    shutil.copytree(original, folder)
    words = ["verify", "key", folder, "--signature", folder / "model.sig", "--public_key", public]
    files = {p: [p.stat().st_size // 2] for p in folder.rglob("*") if p.is_file()}
    signature = (folder / "model.sig").read_bytes()
    files[folder / "model.sig"] = [signature.index(b'"%s":' % part) + 20 for part in (b"hint", b"payload", b"sig")]
    kinds = {"release.json", "model.sig", "provenance.json", "bom.cdx.json", "index.html", "report.md", "kit.json"}
    assert kinds | {"model.onnx", "config.pbtxt", "manifest.json", "launch.sh", "here.sh"} <= {p.name for p in files}
    unseen = []
    for path, positions in files.items():
        content, mode = path.read_bytes(), path.stat().st_mode
        for position in positions:
            flip(path, position)
            if "model.sig" not in {f.file for f in errors(folder, public)}:
                unseen.append(("accel", path, position))
            if CliRunner().invoke(main, [*map(str, words), "--no-ignore-git-paths"]).exit_code == 0:
                unseen.append(("model_signing", path, position))
            path.write_bytes(content)
        path.chmod(mode)
    assert not unseen
    assert CliRunner().invoke(main, [*map(str, words), "--no-ignore-git-paths"]).exit_code == 0
    assert not errors(folder, public)


def test_what_was_signed_is_accepted_here_and_by_the_stock_tool(signed):
    folder, public = signed
    assert not errors(folder, public)
    assert stock(folder, public) == 0
    done = accel("release", "verify", folder, "--key", public)
    assert done.returncode == 0, done.stderr
    assert [f.why for f in checking.verify(folder) if f.file == "model.sig"] == ["its signature was not checked"]


def test_a_changed_release_is_exit_code_1_and_is_not_signed(signed, tmp_path, key_pair):
    folder = tmp_path / "copy"
    shutil.copytree(signed[0], folder)
    flip_weights(folder, key_pair)
    done = accel("release", "verify", folder, "--key", signed[1], "--json")
    assert done.returncode == 1
    assert "repositories/here/a/a/1/model.onnx" in {f["file"] for f in json.loads(done.stdout)["findings"]}
    done = accel("release", "sign", folder, "--key", key_pair(tmp_path, "key")[0])
    assert done.returncode == 1
    assert "is not signed" in done.stderr


def test_a_signed_release_does_not_change(built, signed, tmp_path):
    folder, _ = built
    shutil.copytree(folder / "store", tmp_path / "store")
    shutil.rmtree(tmp_path / "store" / "1")
    shutil.copytree(signed[0], tmp_path / "store" / "1")
    plan = release_file.read(folder / "release.yaml")
    plan = dataclasses.replace(plan, version="1", models=plan.models[:1])
    with pytest.raises(OutputError, match="a signed release does not change"):
        building.build(plan, tmp_path / "store")
    assert not errors(tmp_path / "store" / "1", signed[1])


def test_the_statement_and_the_bill_keep_their_formats(built):
    from cyclonedx.schema import SchemaVersion
    from cyclonedx.validation.json import JsonStrictValidator
    from google.protobuf import json_format
    from in_toto_attestation.v1.statement_pb2 import Statement

    root = built[0] / "store" / "1"
    release = document.read(root)
    text = (root / provenance.STATEMENT).read_text()
    parsed = json_format.Parse(text, Statement())
    described = {f.path: f.sha256 for f in release.files if f.path != provenance.STATEMENT}
    assert {s.name: s.digest["sha256"] for s in parsed.subject} == described
    dependencies = json.loads(text)["predicate"]["buildDefinition"]["resolvedDependencies"]
    assert {d["name"] for d in dependencies if "name" in d} == {"a", "b"}
    assert any(d["uri"].startswith("pkg:pypi/onnxruntime@") for d in dependencies)
    bill = (root / provenance.BOM).read_text()
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(bill) is None
    models = {c["name"]: c for c in json.loads(bill)["components"] if c["type"] == "machine-learning-model"}
    assert models["a"]["hashes"][0]["content"] == next(m.onnx.sha256 for m in release.models if m.name == "a")
    assert {"name": "accel:chosen:here", "value": "ort@cpu"} in models["a"]["properties"]


def test_a_statement_of_something_else_is_found(built, tmp_path):
    folder = tmp_path / "1"
    shutil.copytree(built[0] / "store" / "1", folder)
    file = folder / provenance.STATEMENT
    data = json.loads(file.read_text())
    data["subject"][0]["digest"]["sha256"] = "0" * 64
    file.write_text(json.dumps(data))
    found = [f for f in checking.verify(folder) if f.file == provenance.STATEMENT]
    assert {f.field for f in found} == {"bytes", data["subject"][0]["name"]} or len(found) == 2


@pytest.mark.parametrize("name", [None, 3, [], {"a": 1}])
def test_a_statement_whose_names_are_none_is_found(built, tmp_path, name):
    folder = tmp_path / "1"
    shutil.copytree(built[0] / "store" / "1", folder)
    file = folder / provenance.STATEMENT
    data = json.loads(file.read_text())
    data["subject"][0]["name"] = name
    file.write_text(json.dumps(data))
    found = [f for f in checking.verify(folder) if f.file == provenance.STATEMENT]
    assert str(name) in {f.field for f in found}


@pytest.mark.skipif(not environments.installed("triton"), reason="the embedded server is not installed")
def test_every_repository_is_served_and_its_answers_checked(built):
    done = accel("release", "verify", built[0] / "store" / "1", "--serve", "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    assert not [f for f in json.loads(done.stdout)["findings"] if f["severity"] == "error"]


@pytest.mark.parametrize("path", ["../../elsewhere", "/etc", "a/../../b"])
def test_a_release_that_names_what_lies_outside_is_refused(built, tmp_path, path):
    folder = tmp_path / "1"
    shutil.copytree(built[0] / "store" / "1", folder)
    data = json.loads((folder / "release.json").read_text())
    data["entries"][0]["repository"] = path
    (folder / "release.json").write_text(json.dumps(data))
    (found,) = [f for f in checking.verify(folder) if f.severity == "error"]
    assert "outside of the release" in found.why


def test_the_repository_of_a_release_is_what_was_chosen_and_proved(built, tmp_path):
    """Both are sound by themselves: a best/ folder of another variant, and one that lost after its first proof."""
    folder = tmp_path / "1"
    shutil.copytree(built[0] / "store" / "1", folder)
    path, manifest = folder / "release.json", folder / "repositories/here/a/manifest.json"
    release = json.loads(path.read_text())
    entry = next(e for e in release["entries"] if e["repository"] == "repositories/here/a")
    chosen, entry["chosen"] = entry["chosen"], "openvino-int8@cpu"
    path.chmod(0o644)
    path.write_text(json.dumps(release))
    held = json.loads(manifest.read_text())
    held["parity"]["partly"] = "27 of 99 feeds"
    manifest.chmod(0o644)
    manifest.write_text(json.dumps(held))
    found = {f.field: f.why for f in checking.verify(folder) if f.severity == "error"}
    assert found["variant"] == f"is of {chosen}, and openvino-int8@cpu was chosen"
    assert found["parity"] == f"{chosen} was proved on 27 of 99 feeds only"
