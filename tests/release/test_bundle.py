"""A release as one file: the same bytes again, checked where it is, and taken whole or not at all."""

import io
import json
import shutil
import tarfile

import pytest
from tiny_release import accel, write_signed

from accel.core.errors import InputError, OutputError
from accel.core.values import sha256_file
from accel.release import bundle, forms
from accel.triton.verify import verify


def content(folder):
    return {
        p.relative_to(folder).as_posix(): (sha256_file(p), bool(p.stat().st_mode & 0o100))
        for p in folder.rglob("*")
        if p.is_file()
    }


@pytest.fixture(scope="module")
def bundled(built, tmp_path_factory, key_pair):
    """A signed release, its public key, and its bundle, written by the command."""
    folder = tmp_path_factory.mktemp("bundle")
    private, public = key_pair(folder, "key")
    shutil.copytree(built[0] / "store" / "1", folder / "1")
    assert accel("release", "sign", folder / "1", "--key", private).returncode == 0
    done = accel("release", "publish", folder / "1", "--to", f"bundle:{folder / 'out' / '1.tar'}", "--key", public)
    assert done.returncode == 0, done.stderr
    return folder / "1", public, folder / "out" / "1.tar"


def test_it_is_taken_as_it_was_signed_and_checked_where_it_is(bundled, tmp_path):
    root, public, file = bundled
    done = accel("release", "verify", file, "--key", public, "--json")
    assert done.returncode == 0, done.stderr
    assert "error" not in {f["severity"] for f in json.loads(done.stdout)["findings"]}
    done = accel("release", "import", file, "--key", public, "-o", tmp_path / "there")
    assert done.returncode == 0, done.stderr
    assert content(tmp_path / "there" / "1") == content(root)
    assert not [f for f in verify(tmp_path / "there/1/repositories/here/a") if f.severity == "error"]
    assert bundle.take(file, tmp_path / "there", key=public) == tmp_path / "there" / "1"  # it is there
    assert [p.name for p in (tmp_path / "there").iterdir()] == ["1"]
    assert accel("release", "import", file, "-o", tmp_path / "no").returncode == 2


def test_the_same_release_gives_the_same_bytes_and_another_is_refused(bundled, tmp_path, key_pair):
    root, public, file = bundled
    forms.publish(root, [f"bundle:{tmp_path / '1.tar'}"], key=public)
    assert (tmp_path / "1.tar").read_bytes() == file.read_bytes()
    private, other = key_pair(tmp_path, "other")
    with pytest.raises(OutputError, match="with other content"):
        forms.publish(write_signed(tmp_path, "1", private), [f"bundle:{tmp_path / '1.tar'}"], key=other)
    assert (tmp_path / "1.tar").read_bytes() == file.read_bytes()
    (tmp_path / "there").mkdir()
    shutil.copytree(tmp_path / "1", tmp_path / "there" / "1")
    with pytest.raises(OutputError, match="with other content"):
        bundle.take(file, tmp_path / "there", key=public)


@pytest.mark.parametrize("at", [0.2, 0.6, 0.95])
def test_a_flipped_byte_is_found(bundled, tmp_path, at):
    _, public, file = bundled
    data = bytearray(file.read_bytes())
    place = int(len(data) * at)
    while data[place] == 0:  # the padding between files is nobody's content
        place -= 1
    data[place] ^= 1
    bad = tmp_path / "bad.tar"
    bad.write_bytes(data)
    with pytest.raises(InputError):
        bundle.take(bad, tmp_path / "out", key=public)
    assert list((tmp_path / "out").iterdir()) == []


def evil(name, **facts):
    info = tarfile.TarInfo(name)
    for key, value in facts.items():
        setattr(info, key, value)
    return info


@pytest.mark.parametrize(
    "added",
    [
        evil("../outside", size=3),
        evil("/tmp/outside", size=3),
        evil("1/link", type=tarfile.SYMTYPE, linkname="/etc/passwd"),
        evil("1/hard", type=tarfile.LNKTYPE, linkname="1/release.json"),
        evil("1/pipe", type=tarfile.FIFOTYPE),
        evil("1/release.json", size=3),  # twice
        evil("2/more", size=3),
        evil("1/added", size=3),
    ],
    ids=lambda info: f"{info.name}-{info.type.decode()}",
)
def test_what_no_bundle_holds_is_refused(bundled, tmp_path, added):
    _, public, file = bundled
    shutil.copyfile(file, tmp_path / "1.tar")
    with tarfile.open(tmp_path / "1.tar", "a") as tar:
        tar.addfile(added, io.BytesIO(b"abc"))
    with pytest.raises(InputError):
        bundle.take(tmp_path / "1.tar", tmp_path / "out", key=public)
    assert not (tmp_path / "outside").exists()
    assert list((tmp_path / "out").iterdir()) == []


@pytest.mark.parametrize("text", [b"", b"no archive", b"\x1f\x8b" + b"0" * 100])
def test_what_is_no_archive_is_one_message(tmp_path, text, key_pair):
    (tmp_path / "bad").write_bytes(text)
    _, public = key_pair(tmp_path, "key")
    done = accel("release", "import", tmp_path / "bad", "--key", public, "-o", tmp_path / "out")
    assert done.returncode == 2
    assert "is not a bundle of a release" in done.stderr
    assert "Traceback" not in done.stderr
