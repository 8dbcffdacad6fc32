"""``verify`` finds every kind of damage, and nothing on a whole repository."""

import contextlib
import io
import json
import os
import zipfile
from pathlib import Path

import numpy as np
import pytest

from accel.core.errors import InputError, SampleError
from accel.core.feeds import read_npz
from accel.triton.verify import accept_configs, verify


@pytest.fixture
def root(bench) -> Path:
    artifact = bench.artifact("python")
    bench.emit(artifact)
    assert verify(bench.root(artifact)) == ()
    return bench.root(artifact)


def errors(root: Path) -> list[tuple[str, str]]:
    return [(f.file, f.field) for f in verify(root) if f.severity == "error"]


def edit_manifest(root: Path, **changes: object) -> None:
    path = root / "manifest.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def replace_file(path: Path, content: bytes) -> None:
    """Write a new file, so that a hard link elsewhere keeps its content."""
    path.unlink()
    path.write_bytes(content)


def test_one_changed_byte_is_found(root):
    path = root / "embedding/1/artifact/weights.npy"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    replace_file(path, bytes(content))
    assert errors(root) == [("embedding/1/artifact/weights.npy", "sha256")]


def test_a_truncated_file_is_found(root):
    path = root / "embedding/1/artifact/weights.npy"
    replace_file(path, path.read_bytes()[:-1])
    assert errors(root) == [("embedding/1/artifact/weights.npy", "bytes")]


def test_missing_and_extra_files_are_found(root):
    (root / "launch.sh").unlink()
    (root / "embedding/1/extra.bin").write_bytes(b"")
    assert errors(root) == [("embedding/1/extra.bin", ""), ("launch.sh", "")]


def test_links_are_found_wherever_they_point(root, tmp_path):
    weights = root / "embedding/1/artifact/weights.npy"
    outside = tmp_path / "outside.npy"
    outside.write_bytes(weights.read_bytes())
    weights.unlink()
    weights.symlink_to(outside)
    (root / "up").symlink_to(os.pardir)
    assert errors(root) == [("embedding/1/artifact/weights.npy", ""), ("up", "")]


@pytest.mark.parametrize("path", ["../shapes.npz", "/etc/passwd", "embedding/../../shapes.npz"])
def test_a_listed_path_outside_the_root_is_found(root, path):
    files = json.loads((root / "manifest.json").read_text())["files"]
    edit_manifest(root, files=[*files, {"path": path, "sha256": "0" * 64, "bytes": 1}])
    assert (path, "files") in errors(root)


def test_a_model_name_that_leaves_the_root_is_found(root):
    edit_manifest(root, models=["../embedding"])
    assert errors(root) == [("manifest.json", "models")]


@pytest.mark.parametrize(
    ("old", "new", "field"),
    [
        ("max_batch_size: 8", "max_batch_size: 4", "max_batch_size"),
        ('name: "pooled"', 'name: "pool"', "output"),
        ("TYPE_INT64", "TYPE_INT32", "input"),
        ('name: "embedding"', 'name: "other"', "name"),
        ("versions: 1", "versions: 2", "version_policy"),
        ('"model.py"', '"other.py"', "default_model_filename"),
        ('"model.py"', '"../1/model.py"', "default_model_filename"),
        ('"opt_rows1_0.bin"', '"../config.pbtxt"', "model_warmup.input_ids"),
        ("backend:", "backened:", ""),
    ],
)
def test_a_config_that_contradicts_the_manifest_is_found(root, old, new, field):
    path = root / "embedding/config.pbtxt"
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))
    found = errors(root)
    assert ("embedding/config.pbtxt", field) in found
    assert any(file == "embedding/config.pbtxt" and f in ("bytes", "sha256") for file, f in found)


def test_warmup_data_of_the_wrong_size_is_found(root):
    path = root / "embedding/warmup/opt_rows1_0.bin"
    replace_file(path, bytes(8))
    assert ("embedding/warmup/opt_rows1_0.bin", "model_warmup.input_ids") in errors(root)


def test_a_reference_without_a_point_is_found(root):
    edit_manifest(root, reference_points=["min", "odd", "opt", "max", "huge"])
    assert ("reference.npz", "inputs/huge/input_ids") in errors(root)
    replace_file(root / "reference.npz", b"PK")
    assert ("reference.npz", "") in errors(root)


def odd_archives():
    """Yield archives that NumPy opens and chokes on: headers that lie, members that are no arrays, other formats."""
    whole = io.BytesIO()
    np.save(whole, np.ones(3))
    yield whole.getvalue()  # one array, no archive
    huge = b"{'descr': '<f8', 'fortran_order': False, 'shape': (%s,)}"
    header = b"\x93NUMPY\x01\x00"
    texts = (b"{", b"[1]", b"{'descr': 1}", b"\xff" * 20, huge % b"1e9")
    members = [header + len(t).to_bytes(2, "little") + t for t in (*texts, b"(" * 300, b"'" * 3 + b"\n")]
    for size in (10**15, 10**30):
        text = huge % str(size).encode()
        members.append(header + len(text).to_bytes(2, "little") + text)
    for member in (b"", b"plain text", b"\x93NUMPY", b"\x93NUMPY\x09\x09", *members):
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w") as archive:
            archive.writestr("inputs/min/input_ids.npy", member)
        yield buffer.getvalue()
        for method in (9, 97, 0xFFFF):  # a compression that Python lacks
            raw = bytearray(buffer.getvalue())
            for at in (8, raw.index(b"PK\x01\x02") + 10):
                raw[at : at + 2] = method.to_bytes(2, "little")
            yield bytes(raw)
        raw = bytearray(buffer.getvalue())
        raw[6] |= 1  # encrypted
        raw[raw.index(b"PK\x01\x02") + 8] |= 1
        yield bytes(raw)


def test_an_odd_reference_is_a_finding(root):
    stored = (root / "reference.npz").read_bytes()
    cut = [stored[:n] for n in range(0, len(stored), max(1, len(stored) // 40))]
    own = np.random.default_rng(0)
    flipped = []
    for _ in range(200):
        raw = bytearray(stored)
        for place in own.integers(0, len(raw), 4):
            raw[place] = own.integers(256)
        flipped.append(bytes(raw))
    for content in odd_archives():
        replace_file(root / "reference.npz", content)
        assert ("reference.npz", "") in errors(root) or ("reference.npz", "inputs/odd/input_ids") in errors(root)
    for content in (*cut, *flipped):
        replace_file(root / "reference.npz", content)
        with contextlib.suppress(SampleError):
            read_npz(root / "reference.npz")


@pytest.mark.parametrize(
    ("content", "why"),
    [("", "JSON"), ("[]", "schema"), ('{"schema": 99}', "schema 99"), ('{"schema": 1}', "missing")],
)
def test_a_broken_manifest_is_one_finding(root, content, why):
    (root / "manifest.json").write_text(content)
    (finding,) = verify(root)
    assert finding.file == "manifest.json"
    assert why in finding.why


def test_a_folder_without_manifest_is_one_finding(tmp_path):
    (finding,) = verify(tmp_path)
    assert (finding.severity, finding.file) == ("error", "manifest.json")


def test_a_toolchain_difference_is_a_warning(bench):
    artifact = bench.artifact("openvino")
    bench.emit(artifact)
    (finding,) = verify(bench.root(artifact))
    assert (finding.severity, finding.field) == ("warning", "unverified")
    assert "2026.4.1" in finding.why


@pytest.mark.parametrize(
    "name",
    [
        "embedding/1/__pycache__/model.cpython-311.pyc",
        "embedding/1/accel/core/__pycache__/values.cpython-311.pyc",
        "embedding/1/__pycache__/evil.so",
        "__pycache__/launch.sh",
        "embedding/configs/evil.sh",
        "embedding/1/configs/a.pbtxt",
        "embedding/1/.hidden",
    ],
)
def test_a_planted_file_is_an_error_wherever_it_lies(root, name):
    (root / name).parent.mkdir(parents=True, exist_ok=True)
    (root / name).write_bytes(b"")
    assert errors(root) == [(name, "")]


def test_what_is_no_file_at_all_is_an_error(root):
    os.mkfifo(root / "embedding/1/pipe")
    assert errors(root) == [("embedding/1/pipe", "")]


def test_a_config_of_another_machine_is_listed_before_it_counts(root):
    named = root / "embedding/configs/other.pbtxt"
    named.parent.mkdir(exist_ok=True)
    named.write_text((root / "embedding/config.pbtxt").read_text().replace("max_batch_size: 8", "max_batch_size: 4"))
    assert ("embedding/configs/other.pbtxt", "") in errors(root)
    with pytest.raises(InputError, match="contradicts the contract: max_batch_size"):
        accept_configs(root)
    named.write_text((root / "embedding/config.pbtxt").read_text())
    (finding,) = verify(root)
    assert "--accept-configs" in finding.fix
    assert accept_configs(root) == ("embedding/configs/other.pbtxt",)
    assert verify(root) == ()
    assert accept_configs(root) == ()
    named.write_text(named.read_text() + "\n")
    assert errors(root) == [("embedding/configs/other.pbtxt", "bytes")]


def test_a_listed_config_is_no_link(root, tmp_path):
    (tmp_path / "a.pbtxt").write_text((root / "embedding/config.pbtxt").read_text())
    (root / "embedding/configs").mkdir(exist_ok=True)
    (root / "embedding/configs/a.pbtxt").symlink_to(tmp_path / "a.pbtxt")
    with pytest.raises(InputError, match="link"):
        accept_configs(root)


def test_a_listed_path_that_breaks_the_file_system_is_found(root):
    files = json.loads((root / "manifest.json").read_text())["files"]
    edit_manifest(root, files=[*files, {"path": "a\0b", "sha256": "0" * 64, "bytes": 1}])
    assert ("a\0b", "files") in errors(root)
