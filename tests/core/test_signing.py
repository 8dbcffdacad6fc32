"""Signatures of folders: what was signed is accepted anywhere, and nothing else is."""

import base64
import shutil
import sys
from pathlib import Path

import pytest

from accel.core import signing
from accel.core.errors import InputError, UnavailableError


@pytest.fixture
def signed(tmp_path: Path, key_pair) -> tuple[Path, Path]:
    """A signed folder that was moved since, and the key to check it with."""
    private, public = key_pair(tmp_path, "key")
    folder = tmp_path / "made"
    (folder / "sub").mkdir(parents=True)
    (folder / "a.bin").write_bytes(bytes(100))
    (folder / "sub" / ".gitignore").write_text("*")
    assert signing.sign(folder, private) == folder / signing.SIGNATURE
    folder.rename(tmp_path / "copy")
    signing.verify(tmp_path / "copy", public)
    return tmp_path / "copy", public


def change(folder: Path) -> None:
    (folder / "a.bin").write_bytes(bytes(99) + b"\1")


def add(folder: Path) -> None:
    (folder / "sub" / "b.so").write_bytes(b"")


def remove(folder: Path) -> None:
    (folder / "a.bin").unlink()


def hide(folder: Path) -> None:
    (folder / ".git").mkdir()
    (folder / ".git" / "hook").write_text("x")


def edit_hidden(folder: Path) -> None:
    (folder / "sub" / ".gitignore").write_text("x")


def link(folder: Path) -> None:
    (folder / "passwd").symlink_to("/etc/passwd")


def forge(folder: Path) -> None:
    path = folder / signing.SIGNATURE
    text = path.read_text()
    start = text.index('"sig":') + 12
    path.write_text(text[:start] + ("A" if text[start] != "A" else "B") + text[start + 1 :])


def empty(folder: Path) -> None:
    (folder / signing.SIGNATURE).write_text("{}")


def hide_in_signature(folder: Path) -> None:
    (folder / signing.SIGNATURE).unlink()
    (folder / signing.SIGNATURE).mkdir()


@pytest.mark.parametrize("attack", [change, add, remove, hide, edit_hidden, link, forge, empty, hide_in_signature])
def test_what_was_changed_since_is_refused(signed: tuple[Path, Path], attack) -> None:
    folder, public = signed
    attack(folder)
    with pytest.raises(InputError, match=r"is not what the owner of|is not signed"):
        signing.verify(folder, public)


def test_another_key_is_refused(signed: tuple[Path, Path], tmp_path: Path, key_pair) -> None:
    folder, _ = signed
    _, other = key_pair(tmp_path, "other")
    with pytest.raises(InputError, match="is not what the owner of"):
        signing.verify(folder, other)
    with pytest.raises(InputError, match="not a public key"):
        signing.verify(folder, tmp_path / "other.pem")


def test_the_signature_may_lie_beside_the_folder(tmp_path: Path, key_pair) -> None:
    private, public = key_pair(tmp_path, "key")
    folder = tmp_path / "made"
    folder.mkdir()
    (folder / "a.bin").write_bytes(b"a")
    beside = signing.sign(folder, private, signature=tmp_path / "made.sig")
    assert [p.name for p in folder.iterdir()] == ["a.bin"]
    signing.verify(folder, public, signature=beside)


@pytest.mark.parametrize("content", ["", "no key"])
def test_what_is_no_key_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / "key.pem").write_text(content)
    with pytest.raises(InputError, match="not a private key"):
        signing.check_key(tmp_path / "key.pem")
    with pytest.raises(InputError, match="not a private key"):
        signing.check_key(tmp_path / "missing.pem")


def test_a_key_of_an_unknown_curve_is_refused(signed: tuple[Path, Path], tmp_path: Path) -> None:
    """One flipped bit in its curve's number: cryptography says so with an error that is neither value nor type."""
    folder, public = signed
    pem = public.read_text().splitlines()
    der = bytearray(base64.b64decode("".join(pem[1:-1])))
    curve = bytes.fromhex("2a8648ce3d030107")
    der[der.index(curve) + 4] ^= 1
    odd = tmp_path / "odd.pub"
    odd.write_text("\n".join((pem[0], base64.encodebytes(der).decode().strip(), pem[-1])))
    with pytest.raises(InputError, match="not a public key"):
        signing.verify(folder, odd)
    with pytest.raises(InputError, match="not a public key"):
        signing.check_text("text", b"", odd)


def test_without_the_library_it_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "model_signing", None)
    with pytest.raises(UnavailableError) as error:
        signing.check_key(tmp_path)
    assert "accel[signing]" in (error.value.fix or "")
    shutil.rmtree(tmp_path)
