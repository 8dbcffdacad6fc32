"""Who made a folder: an OpenSSF model signature over every file in it, by a key pair or by certificates.

    openssl ecparam -name prime256v1 -genkey -noout -out KEY.pem        the private key: keep it
    openssl ec -in KEY.pem -pubout -out KEY.pub                         the public key: give it to who builds

With certificates the private key's owner is named by the first, and who checks trusts the authority at the end.
The signature is a file of its own, by default ``model.sig`` in the folder. Nothing is asked of or sent to a network,
but to sign by Sigstore: without a key of one's own, by an identity (``you@example.com``) that a provider vouches for.

Source: https://github.com/sigstore/model-transparency, "Model Signing" (signing with keys).
"""

import base64
import contextlib
import logging
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from accel.core import trust
from accel.core.errors import AccelError, InputError, UnavailableError, UsageError, raised_as
from accel.core.files import load_json
from accel.core.trust import CURVES, NO_KEY, NotTrusted, Trust, Trusted, demand, fingerprint_of, public_key, trusting

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
    return _sign(folder, _signer(private_key, certificates), signature)


def sign_keyless(folder: Path, token: str | None = None, *, interactive: bool = False) -> Path:
    """Sign every file of a folder by Sigstore, over the network: the identity stands in a public log from then on.

    Args:
        token: OpenID Connect token of the identity; None for that of the machine (a CI job's).
        interactive: where there is none, log in with a browser.

    Raises:
        UnavailableError: model-signing is not installed, or Sigstore cannot be reached or did not sign.
        UsageError: there is no token, and it is not interactive.
        InputError: the token is none or has ended, or a link lies in the folder.
    """
    demand()
    from model_signing import signing
    from sigstore import oidc

    fix = "get a new one from the provider; it lives for minutes"
    with raised_as(InputError, (oidc.IdentityError, oidc.ExpiredIdentity, ValueError), "no identity token", fix=fix):
        token = token or (None if interactive else oidc.detect_credential())
        if token is not None:
            oidc.IdentityToken(token)
    if token is None and not interactive:
        fix = "--identity-token TOKEN, $SIGSTORE_IDENTITY_TOKEN, a CI job that may ask for one, or --interactive"
        raise UsageError("nothing says who signs: there is no identity token", fix=fix)
    fix = "it needs the network (tuf-repo-cdn, fulcio, rekor.sigstore.dev); without one sign with --key KEY.pem"
    try:
        return _sign(folder, signing.Config().use_sigstore_signer(identity_token=token), None)
    except AccelError:
        raise
    except Exception as error:  # of five libraries, each with its own
        said = f"{type(error).__name__}: {error}" + (f" ({error.__cause__})" if error.__cause__ else "")
        raise UnavailableError(f"Sigstore did not sign {folder}: {said}", fix=fix) from error


def _sign(folder: Path, signer: Any, signature: Path | None) -> Path:
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


def verify(folder: Path, key: Trusted, *, signature: Path | None = None) -> str:
    """Hold every file of a folder against its signature, and return the fingerprint of the key that signed it.

    Args:
        key: whose signature counts, and which keys were revoked.

    Raises:
        UnavailableError: model-signing is not installed.
        UsageError: neither a key nor an authority counts.
        InputError: there is no signature, it is another key's or a revoked one's, or a file was changed, added or
            removed since.
    """
    demand()
    from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
    from model_signing import verifying
    from OpenSSL.crypto import X509StoreContextError

    held = trusting(key)
    found = signature or folder / SIGNATURE
    if not held:
        raise UsageError("nothing says whose signature counts", fix="--key KEY.pub, or --authority ROOT.pem")
    if not found.is_file():
        raise InputError(f"{folder} is not signed: it has no {found.name}", fix="ask its maker for a signed one")
    by, files = signed_files(content := found.read_bytes(), held, str(folder))
    wrong = (OSError, ValueError, KeyError, TypeError, AttributeError, InvalidSignature, UnsupportedAlgorithm)
    why = f"{folder} is not what the owner of {held.owners} signed"
    with raised_as(InputError, (*wrong, X509StoreContextError), why, fix="do not use it; ask its maker"):
        config = verifying.Config().set_hashing_config(_hashing())
        if by in held.identities:  # its own check asks Sigstore, over the network
            hashed = {d.identifier: d.digest.digest_hex for d in _hashing().hash(folder).resource_descriptors()}
            if wrong_names := [n for n in sorted(files | hashed) if files.get(n) != hashed.get(n)]:
                raise ValueError(f"Hash mismatch of {', '.join(wrong_names[:5])}")
            return by
        _, chain = _signers(load_json(content))
        if chain:
            config.use_certificate_verifier(certificate_chain=held.authorities)
        else:
            config.use_elliptic_key_verifier(public_key=held.keys[by])
        with contextlib.redirect_stdout(sys.stderr):  # it prints a warning of signatures that name no key
            config.verify(folder, found)
    return by


def signed_files(signature: bytes, key: Trusted, what: str) -> tuple[str, dict[str, str]]:
    """Return who signed a folder, and its files as they were: path → sha256. The files themselves are not looked at.

    Args:
        signature: content of ``model.sig``.
        what: what it lies in, for messages.

    Raises:
        UnavailableError: model-signing is not installed.
        InputError: it is not a signature, or not by a key that counts.
    """
    held = trusting(key)
    wrong = (ValueError, KeyError, TypeError, IndexError, AttributeError)
    why = f"{what} is not what the owner of {held.owners} signed: {SIGNATURE} is not a signature"
    with raised_as(InputError, wrong, why, fix="do not use it; ask its maker"):
        data = load_json(signature)
        if "certificate" in data["verificationMaterial"]:
            by, payload = _keyless(signature, held, what)
            return by, _resources(payload)
        envelope = data["dsseEnvelope"]
        payload = base64.b64decode(envelope["payload"], validate=True)
        text = b"DSSEv1 %d %s %d %s" % (len(PAYLOAD), PAYLOAD.encode(), len(payload), payload)
        sign = base64.b64decode(envelope["signatures"][0]["sig"], validate=True)
        named, chain = _signers(data)
        return _check(text, sign, held, named, chain, what), _resources(payload)


def _resources(payload: bytes) -> dict[str, str]:
    found = load_json(payload)["predicate"]["resources"]
    return {str(r["name"]): str(r["digest"]) for r in found if r["algorithm"] == "sha256"}


def _keyless(signature: bytes, held: Trust, what: str) -> tuple[str, bytes]:
    """Return which identity made a signature by Sigstore, and what it signed.

    No network: it is held against Sigstore's keys as the installed package (or the cache of its last refresh) has them.

    Raises:
        NotTrusted: it is not an identity's that counts.
    """
    demand()
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.x509 import InvalidVersion
    from sigstore.errors import Error
    from sigstore.models import Bundle
    from sigstore.verify import Verifier, policy

    why, said = (
        f"{what} is not what the owner of {held.owners} signed",
        ["it is by Sigstore, and no --identity is given"],
    )
    logging.getLogger("sigstore").setLevel(logging.ERROR)  # it warns that it asks no network
    damaged = (UnsupportedAlgorithm, InvalidVersion)
    wrong = (Error, OSError, ValueError, KeyError, TypeError, AttributeError, IndexError, *damaged)
    with raised_as(NotTrusted, wrong, why, fix="do not use it; ask its maker"):
        bundle = Bundle.from_json(signature)
        verifier = Verifier.production(offline=True)
        held.check_revoked(fingerprint_of(bundle.signing_certificate.public_key()), what)
    for identity, provider in held.identities.items():
        try:
            kind, payload = verifier.verify_dsse(bundle, policy.Identity(identity=identity, issuer=provider))
            if kind == PAYLOAD:
                return identity, payload
            said.append(f"it signs {kind}")
        except wrong as error:
            said.append(str(error))
    fix = "do not use it; ask its maker. If its identity counts, too: --identity, --identity-provider"
    raise NotTrusted(f"{why}: {said[-1]}", fix=fix)


def _signers(signature: Any) -> tuple[str, list[bytes]]:
    """Return the fingerprint of the key that a signature names, and its certificates (DER), the signer's first.

    Raises:
        ValueError / KeyError / TypeError / AttributeError: it is not a signature.
    """
    material = signature["verificationMaterial"]
    chain = material.get("x509CertificateChain", {}).get("certificates", ())
    named = str(material.get("publicKey", {}).get("hint") or "")
    return named, [base64.b64decode(one["rawBytes"], validate=True) for one in chain]


def chain_of(certificates: Sequence[Path]) -> list[bytes]:
    """Return the certificates of PEM files in DER, in their order.

    Raises:
        UnavailableError / InputError: as ``trust.certificates``.
    """
    from cryptography.hazmat.primitives.serialization import Encoding

    return [one.public_bytes(Encoding.DER) for path in certificates for one in trust.certificates(path)]


def sign_text(text: str, private_key: Path) -> bytes:
    """Return the ECDSA signature (DER) of a text, by the same kind of key.

    Raises:
        UnavailableError / InputError: as ``sign``.
    """
    check_key(private_key)
    from cryptography.hazmat.primitives import serialization

    key: Any = serialization.load_pem_private_key(private_key.read_bytes(), None)
    return key.sign(text.encode(), _ecdsa(key))


def check_text(
    text: str, signature: bytes, key: Trusted, *, by: str = "", chain: Sequence[bytes] = (), what: str = "a text"
) -> str:
    """Hold a text against its signature, and return the fingerprint of the key that signed it.

    Args:
        by: fingerprint that it comes with, if any.
        chain: certificates that it comes with (DER), the signer's first; they then say who signed.
        what: what it is, for messages.

    Raises:
        UnavailableError: model-signing is not installed.
        InputError: a key cannot be read.
        NotTrusted: it is not what the owner of a key signed that counts.
    """
    return _check(text.encode(), signature, trusting(key), by, chain, what)


def _check(text: bytes, signature: bytes, held: Trust, named: str, chain: Sequence[bytes], what: str) -> str:
    if chain:
        key = _certified(chain, held, what)
        candidates = {fingerprint_of(key): key}
    else:
        candidates = {by: public_key(path) for by, path in held.candidates(named, what).items()}
    from cryptography.exceptions import InvalidSignature

    for by, key in candidates.items():
        try:
            key.verify(signature, text, _ecdsa(key))
        except InvalidSignature:
            continue
        return by
    why = f"{what} is not what the owner of {held.owners} signed: the signature is another key’s, or of another content"
    raise NotTrusted(why, fix="do not use it; ask its maker", key=named or next(iter(candidates)))


def _certified(chain: Sequence[bytes], held: Trust, what: str) -> Any:
    """Return the key of the first of a chain of certificates, which leads to an authority and may sign.

    The rules are those of model-signing's own check, which needs the files: OpenSSL's of a chain to a root that is
    trusted, at the time from which the signer's certificate holds; and digital signatures or signing of code among
    what its key is for. No key on the way may be revoked.

    Args:
        chain: certificates (DER), the signer's first; the root may be left out.

    Raises:
        UnavailableError: model-signing is not installed.
        NotTrusted: it does not lead there.
        InputError: the file of an authority is not a certificate.
    """
    demand()
    from cryptography import x509
    from cryptography.exceptions import UnsupportedAlgorithm
    from OpenSSL import crypto

    by = ""
    roots = [one for path in held.authorities for one in trust.certificates(path)]
    wrong = (ValueError, TypeError, UnsupportedAlgorithm, x509.DuplicateExtension, x509.InvalidVersion, crypto.Error)
    try:
        own, *above = (x509.load_der_x509_certificate(one) for one in chain)
        by = fingerprint_of(own.public_key())
        for one in (own, *above):
            held.check_revoked(fingerprint_of(one.public_key()), what)
        if not roots:
            raise ValueError("its signature is by a certificate, and no --authority is given")
        store = crypto.X509Store()
        for one in roots:
            store.add_cert(crypto.X509.from_cryptography(one))
        store.set_time(own.not_valid_before_utc)
        untrusted = [crypto.X509.from_cryptography(one) for one in above]
        context = crypto.X509StoreContext(store, crypto.X509.from_cryptography(own), untrusted)
        for found in context.get_verified_chain():
            held.check_revoked(fingerprint_of(found.to_cryptography().public_key()), what)
        if not _may_sign(own):
            raise ValueError("its certificate is not for signing")
        key: Any = own.public_key()
        if getattr(getattr(key, "curve", None), "name", None) not in CURVES:
            raise ValueError(f"the key of its certificate is of none of the curves {', '.join(CURVES)}")
    except (*wrong, crypto.X509StoreContextError) as error:
        why = f"{what} is not what the owner of {held.owners} signed: {error}"
        raise NotTrusted(
            why, fix="do not use it; ask its maker which --authority ROOT.pem vouches for it", key=by
        ) from error
    return key


def _may_sign(certificate: Any) -> bool:
    from cryptography import x509
    from cryptography.x509.oid import ExtendedKeyUsageOID

    def of(kind: Any) -> Any:
        try:
            return certificate.extensions.get_extension_for_class(kind).value
        except x509.ExtensionNotFound:
            return None

    usage, extended = of(x509.KeyUsage), of(x509.ExtendedKeyUsage)
    return bool(usage and usage.digital_signature) or ExtendedKeyUsageOID.CODE_SIGNING in (extended or ())


def _ecdsa(key: Any) -> Any:
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec

    return ec.ECDSA({256: hashes.SHA256(), 384: hashes.SHA384()}.get(key.curve.key_size, hashes.SHA512()))


def _signer(private_key: Path, certificates: Sequence[Path] = ()) -> Any:
    demand()
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.serialization import load_pem_private_key
    from model_signing import signing

    with raised_as(
        InputError,
        (*NO_KEY, UnsupportedAlgorithm),
        f"{private_key} is not a private key to sign with",
        fix="openssl ecparam -name prime256v1 -genkey -noout -out KEY.pem",
    ):
        made = load_pem_private_key(private_key.read_bytes(), None)
        if getattr(getattr(made, "curve", None), "name", None) not in CURVES:
            raise ValueError(f"it is of none of the curves {', '.join(CURVES)}")
        if certificates:
            own, above = certificates[0], certificates[1:] or certificates[:1]  # it reads none as a damaged file
            return signing.Config().use_certificate_signer(
                private_key=private_key, signing_certificate=own, certificate_chain=above
            )
        return signing.Config().use_elliptic_key_signer(private_key=private_key)


def _hashing() -> Any:
    """Return how files are hashed: all of them but the signature itself, and no links."""
    from model_signing import hashing

    return hashing.Config().set_ignored_paths(paths=[SIGNATURE], ignore_git_paths=False)
