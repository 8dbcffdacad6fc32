"""Who made a folder: an OpenSSF model signature over every file in it, by a key pair or by certificates.

    openssl ecparam -name prime256v1 -genkey -noout -out KEY.pem        the private key: keep it
    openssl ec -in KEY.pem -pubout -out KEY.pub                         the public key: give it to who builds

With certificates the private key's owner is named by the first, and who checks trusts the authority at the end.
The signature is a file of its own, by default ``model.sig`` in the folder. Nothing is asked of or sent to a network.

Source: https://github.com/sigstore/model-transparency, "Model Signing" (signing with keys).
"""

import base64
import contextlib
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from accel.core.errors import InputError, UsageError, raised_as
from accel.core.files import load_json
from accel.core.trust import NO_KEY, NotTrusted, Trust, Trusted, demand, fingerprint_of, public_key, trusting

SIGNATURE = "model.sig"
PAYLOAD = "application/vnd.in-toto+json"


def sign(folder: Path, private_key: Path, *, signature: Path | None = None, certificates: Sequence[Path] = ()) -> Path:
    """Sign every file of a folder, and return the signature's path.

    Args:
        private_key: PEM file with an elliptic-curve key (P-256, P-384 or P-521) without a password.
        signature: file to write; ``model.sig`` in the folder when None.
        certificates: PEM files: the signer's own, then those of the authorities above it; none for a bare key.

    Raises:
        UnavailableError: model-signing is not installed.
        InputError: the key or a certificate cannot be read, or a link lies in the folder.
    """
    signer = _signer(private_key, certificates)
    written = signature or folder / SIGNATURE
    with raised_as(
        InputError, (OSError, ValueError), f"{folder} cannot be signed", fix="it must hold plain files only"
    ):
        signer.set_hashing_config(_hashing()).sign(folder, written)
    return written


def check_key(private_key: Path) -> None:
    """Refuse a key before hours of work, rather than after.

    Raises:
        UnavailableError / InputError: as ``sign``.
    """
    _signer(private_key)


def verify(
    folder: Path, key: Trusted | None, *, signature: Path | None = None, authorities: Sequence[Path] = ()
) -> str:
    """Hold every file of a folder against its signature, and return the fingerprint of the key that signed it.

    Args:
        key: whose signature counts, and which keys were revoked.
        authorities: PEM files of the certificates above the signer's, its root among them: in place of a key, or
            beside it.

    Raises:
        UnavailableError: model-signing is not installed.
        UsageError: neither a key nor a certificate is given.
        InputError: there is no signature, it is another key's or a revoked one's, or a file was changed, added or
            removed since.
    """
    demand()
    from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
    from model_signing import verifying
    from OpenSSL.crypto import X509StoreContextError

    held = trusting(key) if key is not None else Trust()
    found = signature or folder / SIGNATURE
    owner = ", ".join(map(str, (*held.keys.values(), *authorities)))
    if not held.keys or authorities:
        if not authorities:
            raise UsageError("nothing says whose signature counts", fix="--key KEY.pub, or --authority ROOT.pem")
        with raised_as(
            InputError, NO_KEY, f"{', '.join(map(str, authorities))} is no certificate", fix="give the root's PEM file"
        ):
            verifying.Config().use_certificate_verifier(certificate_chain=authorities)
            authority_keys = {fingerprint_of(c.public_key()): p for p in authorities for c in _certificates(p)}
        if gone := next((p for k, p in authority_keys.items() if k in held.revoked), None):
            raise NotTrusted(f"{gone} is the certificate of a revoked key", fix="give another authority", revoked=True)
    if not found.is_file():
        raise InputError(f"{folder} is not signed: it has no {found.name}", fix="ask its maker for a signed one")
    wrong = (OSError, ValueError, KeyError, TypeError, AttributeError, InvalidSignature, UnsupportedAlgorithm)
    with raised_as(
        InputError,
        (*wrong, X509StoreContextError),
        f"{folder} is not what the owner of {owner} signed",
        fix="do not use it; ask its maker",
        say=lambda error: (
            # model-signing looks for certificates in a signature by a key alone
            ("the signature holds no certificate" if isinstance(error, AttributeError) else str(error))
            or "the signature is another key’s"
        ),
    ):
        config = verifying.Config().set_hashing_config(_hashing())
        _, chain = _signers(load_json(found.read_bytes()))
        if held.keys and not (chain and authorities):
            by, _ = signed_files(found.read_bytes(), held, str(folder))
            config.use_elliptic_key_verifier(public_key=held.keys[by])
        else:
            for one in chain:
                held.check_revoked(one, str(folder))
            by = chain[0] if chain else ""
            config.use_certificate_verifier(certificate_chain=authorities)
        with contextlib.redirect_stdout(sys.stderr):  # it prints a warning of signatures that name no key
            config.verify(folder, found)
    return by


def signed_files(signature: bytes, key: Trusted, what: str) -> tuple[str, dict[str, str]]:
    """Return who signed a folder, and its files as they were: path → sha256. The files themselves are not looked at.

    Args:
        signature: content of ``model.sig``, by a key pair.
        what: what it lies in, for messages.

    Raises:
        UnavailableError: model-signing is not installed.
        InputError: it is no signature, or not by a key that counts.
    """
    held = trusting(key)
    wrong = (ValueError, KeyError, TypeError, IndexError, AttributeError)
    why = f"{what} is not what the owner of {held.owners} signed: {SIGNATURE} is no signature by a key"
    with raised_as(InputError, wrong, why, fix="do not use it; ask its maker"):
        data = load_json(signature)
        envelope = data["dsseEnvelope"]
        payload = base64.b64decode(envelope["payload"], validate=True)
        text = b"DSSEv1 %d %s %d %s" % (len(PAYLOAD), PAYLOAD.encode(), len(payload), payload)
        sign = base64.b64decode(envelope["signatures"][0]["sig"], validate=True)
        named, chain = _signers(data)
        if chain:
            why = f"{what} is not what the owner of {held.owners} signed: its signature is by a certificate"
            raise InputError(why, fix="verify it with --authority; for a published place sign it with a key alone")
        by = _check(text, sign, held, named, what)
        resources = load_json(payload)["predicate"]["resources"]
        return by, {str(r["name"]): str(r["digest"]) for r in resources if r["algorithm"] == "sha256"}


def _signers(signature: Any) -> tuple[str, list[str]]:
    """Return the fingerprints that a signature names: the key's, else those of the chain of certificates.

    Raises:
        ValueError / KeyError / TypeError / AttributeError: it is no signature.
    """
    from cryptography import x509

    material = signature["verificationMaterial"]
    chain = [c["rawBytes"] for c in material.get("x509CertificateChain", {}).get("certificates", ())]
    found = (x509.load_der_x509_certificate(base64.b64decode(c)).public_key() for c in chain)
    return str(material.get("publicKey", {}).get("hint") or ""), [fingerprint_of(key) for key in found]


def _certificates(path: Path) -> Any:
    from cryptography import x509

    return x509.load_pem_x509_certificates(path.read_bytes())


def sign_text(text: str, private_key: Path) -> bytes:
    """Return the ECDSA signature (DER) of a text, by the same kind of key.

    Raises:
        UnavailableError / InputError: as ``sign``.
    """
    check_key(private_key)
    from cryptography.hazmat.primitives import serialization

    key: Any = serialization.load_pem_private_key(private_key.read_bytes(), None)
    return key.sign(text.encode(), _ecdsa(key))


def check_text(text: str, signature: bytes, key: Trusted, *, by: str = "", what: str = "a text") -> str:
    """Hold a text against its signature, and return the fingerprint of the key that signed it.

    Args:
        by: fingerprint that it comes with, if any.
        what: what it is, for messages.

    Raises:
        UnavailableError: model-signing is not installed.
        InputError: a key cannot be read.
        NotTrusted: it is not what the owner of a key signed that counts.
    """
    return _check(text.encode(), signature, trusting(key), by, what)


def _check(text: bytes, signature: bytes, held: Trust, named: str, what: str) -> str:
    candidates = held.candidates(named, what)
    from cryptography.exceptions import InvalidSignature

    for by, path in candidates.items():
        key = public_key(path)
        try:
            key.verify(signature, text, _ecdsa(key))
        except InvalidSignature:
            continue
        return by
    raise NotTrusted(
        f"{what} is not what the owner of {held.owners} signed", fix="do not use it; ask its maker", key=named
    )


def _ecdsa(key: Any) -> Any:
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec

    return ec.ECDSA({256: hashes.SHA256(), 384: hashes.SHA384()}.get(key.curve.key_size, hashes.SHA512()))


def _signer(private_key: Path, certificates: Sequence[Path] = ()) -> Any:
    demand()
    from cryptography.exceptions import UnsupportedAlgorithm
    from model_signing import signing

    with raised_as(
        InputError,
        (*NO_KEY, UnsupportedAlgorithm),
        f"{private_key} is no private key to sign with",
        fix="openssl ecparam -name prime256v1 -genkey -noout -out KEY.pem",
    ):
        if certificates:
            return signing.Config().use_certificate_signer(
                private_key=private_key, signing_certificate=certificates[0], certificate_chain=certificates[1:]
            )
        return signing.Config().use_elliptic_key_signer(private_key=private_key)


def _hashing() -> Any:
    """Return how files are hashed: all of them but the signature itself, and no links."""
    from model_signing import hashing

    return hashing.Config().set_ignored_paths(paths=[SIGNATURE], ignore_git_paths=False)
