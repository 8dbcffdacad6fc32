"""Whose signatures count: the owners of public keys, and of certificates below an authority, less what was revoked.

A key is replaced by trusting the old and the new one for a while. One that may be known to others is revoked: it counts
no more, whatever it signed and whenever, since a signature does not prove its time. What is revoked stands above what
is trusted, so that a list of revoked keys applies to every place where the old key still lies.

A key's fingerprint is the SHA-256 of its public half in PEM, as openssl writes it (``sha256sum KEY.pub``): OpenSSF
model signatures name their key by the same.
"""

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from accel.core.errors import InputError, UnavailableError, raised_as

INSTALL = "pip install 'accel[signing]'"
NO_KEY = (OSError, ValueError, TypeError, AttributeError)  # what reading something else as a key raises
PUBLIC_FIX = "openssl ec -in KEY.pem -pubout"
BLOCK = re.compile(r"-----BEGIN PUBLIC KEY-----\n.*?-----END PUBLIC KEY-----\n?", re.DOTALL)
CURVES = ("secp256r1", "secp384r1", "secp521r1")


class NotTrusted(InputError):
    """Something was signed, and not by a key that counts.

    Attributes:
        key: fingerprint of the key that it names; empty where it names none.
        revoked: that key was revoked.
    """

    def __init__(self, message: str, *, fix: str, key: str = "", revoked: bool = False) -> None:
        super().__init__(message, fix=fix)
        self.key, self.revoked = key, revoked


@dataclass(frozen=True, slots=True)
class Trust:
    """Whose signatures count.

    Attributes:
        keys: fingerprint → file of the public key.
        revoked: fingerprint → what the list says of it; such a key does not count, also where it is among ``keys`` or
            in a certificate.
        authorities: PEM files of certificates, a root among them: who holds one that they vouch for counts.
        identities: who signs without a key, by Sigstore (you@example.com) → URL of the provider that says so.
    """

    keys: Mapping[str, Path] = field(default_factory=dict)
    revoked: Mapping[str, str] = field(default_factory=dict)
    authorities: tuple[Path, ...] = ()
    identities: Mapping[str, str] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.keys or self.authorities or self.identities)

    @property
    def owners(self) -> str:
        """The files of the keys and authorities, and the identities, for messages."""
        return ", ".join(map(str, (*self.keys.values(), *self.authorities, *self.identities)))

    def name(self, key: str) -> str:
        """Return what to call a key in a table: the file that it is in, else how its fingerprint begins."""
        return str(self.keys[key]) if key in self.keys else key if key in self.identities else key[:16]

    def check_revoked(self, key: str, what: str) -> None:
        """Refuse what a revoked key signed.

        Raises:
            NotTrusted: it did.
        """
        if key in self.revoked:
            note = f" ({self.revoked[key]})" if self.revoked[key] else ""
            raise NotTrusted(
                f"{what} was signed by the key {key}, which was revoked{note}",
                fix="do not use it; ask its maker for one that the new key signed", key=key, revoked=True,
            )  # fmt: skip

    def candidates(self, key: str, what: str) -> dict[str, Path]:
        """Return the keys that may have signed something: the one that it names, or all where it names none.

        Args:
            key: fingerprint that it names, or nothing; anybody can write one there.

        Raises:
            NotTrusted: that key was revoked or is none of these, or all of these were revoked.
        """
        self.check_revoked(key, what)
        if not self.keys:
            why = f"{what} is not what the owner of {self.owners} signed: it is by a key, and none is given"
            raise NotTrusted(why, fix="if that key counts, give its public half: --key KEY.pub", key=key)
        held = {k: path for k, path in self.keys.items() if k not in self.revoked}
        if not held:
            raise NotTrusted(f"{self.owners}: revoked, and no other key is given", fix="--key NEW.pub", key=key)
        if key and key not in held:
            raise NotTrusted(
                f"{what} is not what the owner of {self.owners} signed: it names the key {key}",
                fix="do not use it; ask its maker. If that key counts, too, give its public half as another --key",
                key=key,
            )  # fmt: skip
        return {key: held[key]} if key else held


Trusted = Path | Trust
"""A public key, or several and what was revoked."""


def trusting(key: Trusted) -> Trust:
    """Return a public key as ``Trust``.

    Raises:
        UnavailableError / InputError: as ``fingerprint``.
    """
    return key if isinstance(key, Trust) else Trust({fingerprint(key): key})


def read(
    keys: Sequence[Path],
    revoked: Sequence[Path] = (),
    authorities: Sequence[Path] = (),
    identities: Mapping[str, str] | None = None,
) -> Trust:
    """Read whose signatures count.

    Args:
        keys: public keys (PEM), or folders with one in each ``.pub`` file.
        revoked: public keys (PEM) that count no more, or lists of them: each line a fingerprint and what is to be said
            of it, or a whole public key; empty lines and those that begin with # aside.
        authorities: PEM files of certificates above those of the signers, the root among them.
        identities: of signatures by Sigstore, each with its provider.

    Raises:
        UnavailableError: model-signing is not installed.
        InputError: a file is not there, or is neither.
    """
    files = []
    for path in keys:
        found = sorted(path.glob("*.pub")) if path.is_dir() else [path]
        if not found:
            raise InputError(f"{path} holds no public key: no file in it ends in .pub", fix=f"put KEY.pub into {path}")
        files += found
    gone: dict[str, str] = {}
    for path in revoked:
        gone |= _revoked(path)
    for path in authorities:
        certificates(path)
    return Trust({fingerprint(path): path for path in reversed(files)}, gone, tuple(authorities), identities or {})


def certificates(path: Path) -> Any:
    """Read the certificates of a PEM file, as ``cryptography`` has them.

    Raises:
        UnavailableError: model-signing is not installed.
        InputError: it holds none.
    """
    demand()
    from cryptography import x509

    with raised_as(
        InputError, NO_KEY, f"{path} is not a certificate", fix="give a PEM file: -----BEGIN CERTIFICATE-----"
    ):
        return x509.load_pem_x509_certificates(path.read_bytes())


def _revoked(path: Path) -> dict[str, str]:
    with raised_as(
        InputError, (OSError, ValueError), f"{path} is not a list of revoked keys", fix="give a file of them"
    ):
        text = path.read_text(encoding="utf-8").replace("\r\n", "\n")
    found = {_fingerprint(block.encode(), path): str(path) for block in BLOCK.findall(text)}
    for line in BLOCK.sub("", text).splitlines():
        key, _, note = line.strip().partition(" ")
        if re.fullmatch(r"[0-9a-f]{64}", key):
            found[key] = note.strip()
        elif key and not key.startswith("#"):  # a key that is not read would go on to count
            raise InputError(
                f"{path}: {line.strip()[:80]!r} is neither a public key nor the fingerprint of one",
                fix="a line is 64 hexadecimal digits in lower case and a remark, or part of a PEM file",
            )
    return found


def public_key(path: Path) -> Any:
    """Read a public key of an elliptic curve.

    Raises:
        UnavailableError: model-signing is not installed.
        InputError: the file is none, or is of a curve that nobody signs with.
    """
    demand()
    with raised_as(InputError, NO_KEY, f"{path} is not a public key", fix=PUBLIC_FIX):
        content = path.read_bytes()
    return _load(content, path)


def fingerprint(path: Path) -> str:
    """Return the fingerprint of a public key.

    Raises:
        UnavailableError / InputError: as ``public_key``.
    """
    return fingerprint_of(public_key(path))


def fingerprint_of(key: Any) -> str:
    """Return the fingerprint of a public key of ``cryptography``'s."""
    from cryptography.hazmat.primitives import serialization

    form = serialization.PublicFormat.SubjectPublicKeyInfo
    return hashlib.sha256(key.public_bytes(serialization.Encoding.PEM, form)).hexdigest()


def _fingerprint(content: bytes, path: Path) -> str:
    demand()
    return fingerprint_of(_load(content, path))


def _load(content: bytes, path: Path) -> Any:
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives import serialization

    with raised_as(InputError, (*NO_KEY, UnsupportedAlgorithm), f"{path} is not a public key", fix=PUBLIC_FIX):
        key: Any = serialization.load_pem_public_key(content)
        if key.curve.name not in CURVES:
            raise ValueError(f"it is of the curve {key.curve.name}, expected one of {', '.join(CURVES)}")
    return key


def demand() -> None:
    """Say how to install what signatures need, where it is not there.

    Raises:
        UnavailableError: it is not.
    """
    with raised_as(UnavailableError, ImportError, "signatures need the Python package model-signing", fix=INSTALL):
        import model_signing  # noqa: F401
