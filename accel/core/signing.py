"""Who made a folder: an OpenSSF model signature over every file in it, by a key pair or by certificates.

    openssl ecparam -name prime256v1 -genkey -noout -out KEY.pem        the private key: keep it
    openssl ec -in KEY.pem -pubout -out KEY.pub                         the public key: give it to who builds

With certificates the private key's owner is named by the first, and who checks trusts the authority at the end.
The signature is a file of its own, by default ``model.sig`` in the folder. Nothing is asked of or sent to a network.

Source: https://github.com/sigstore/model-transparency, "Model Signing" (signing with keys).
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from accel.core.errors import InputError, UnavailableError, raised_as

SIGNATURE = "model.sig"
INSTALL = "pip install 'accel[signing]'"
NO_KEY = (OSError, ValueError, TypeError, AttributeError)  # what reading something else as a key raises


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
    folder: Path, public_key: Path | None, *, signature: Path | None = None, authorities: Sequence[Path] = ()
) -> None:
    """Hold every file of a folder against its signature.

    Args:
        authorities: in place of a key, PEM files of the certificates above the signer's, its root among them.

    Raises:
        UnavailableError: model-signing is not installed.
        InputError: there is no signature, it is another key's, or a file was changed, added or removed since.
    """
    _demand()
    from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
    from model_signing import verifying
    from OpenSSL.crypto import X509StoreContextError

    owner = public_key or ", ".join(map(str, authorities))
    what = f"{owner} is {'no public key' if public_key else 'no certificate'}"
    with raised_as(InputError, (*NO_KEY, UnsupportedAlgorithm), what, fix="openssl ec -in KEY.pem -pubout"):
        if public_key is None:
            verifier = verifying.Config().use_certificate_verifier(certificate_chain=authorities)
        else:
            verifier = verifying.Config().use_elliptic_key_verifier(public_key=public_key)
    found = signature or folder / SIGNATURE
    if not found.is_file():
        raise InputError(f"{folder} is not signed: it has no {found.name}", fix="ask its maker for a signed one")
    with raised_as(
        InputError,
        # model-signing looks for certificates in a signature by a key alone
        (
            OSError,
            ValueError,
            KeyError,
            TypeError,
            AttributeError,
            InvalidSignature,
            UnsupportedAlgorithm,
            X509StoreContextError,
        ),
        f"{folder} is not what the owner of {owner} signed",
        fix="do not use it; ask its maker",
        say=lambda error: (
            ("the signature holds no certificate" if isinstance(error, AttributeError) else str(error))
            or "the signature is another key’s"
        ),
    ):
        verifier.set_hashing_config(_hashing()).verify(folder, found)


def sign_text(text: str, private_key: Path) -> bytes:
    """Return the ECDSA signature (DER) of a text, by the same kind of key.

    Raises:
        UnavailableError / InputError: as ``sign``.
    """
    check_key(private_key)
    from cryptography.hazmat.primitives import serialization

    key: Any = serialization.load_pem_private_key(private_key.read_bytes(), None)
    return key.sign(text.encode(), _ecdsa(key))


def check_text(text: str, signature: bytes, public_key: Path) -> None:
    """Hold a text against its signature.

    Raises:
        UnavailableError: model-signing is not installed.
        InputError: the key cannot be read, or it is not what its owner signed.
    """
    _demand()
    from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
    from cryptography.hazmat.primitives import serialization

    try:
        key: Any = serialization.load_pem_public_key(public_key.read_bytes())
        key.verify(signature, text.encode(), _ecdsa(key))
    except InvalidSignature as error:
        raise InputError(f"a text is not what the owner of {public_key} signed", fix="do not use it") from error
    except (*NO_KEY, UnsupportedAlgorithm) as error:
        raise InputError(f"{public_key} is no public key: {error}", fix="openssl ec -in KEY.pem -pubout") from error


def _ecdsa(key: Any) -> Any:
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec

    return ec.ECDSA({256: hashes.SHA256(), 384: hashes.SHA384()}.get(key.curve.key_size, hashes.SHA512()))


def _signer(private_key: Path, certificates: Sequence[Path] = ()) -> Any:
    _demand()
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


def _demand() -> None:
    with raised_as(UnavailableError, ImportError, "signatures need the Python package model-signing", fix=INSTALL):
        import model_signing  # noqa: F401
