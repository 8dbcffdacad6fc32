"""Releases and pointers signed by certificates: who an authority vouches for counts, nobody else, by any command."""

import base64
import datetime
import json
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
from tiny_release import write_signed
from typer.testing import CliRunner

from accel.cli import app
from accel.core import signing, trust
from accel.core.errors import InputError, UsageError
from accel.core.trust import NotTrusted
from accel.release import publishing, retention
from accel.release.object_store import ObjectStore
from accel.release.release_file import Margins, ReleasePlan, Retention

PEM, PLAIN = serialization.Encoding.PEM, serialization.NoEncryption()
NOW = datetime.datetime.now(datetime.UTC).replace(microsecond=0)
DAY = datetime.timedelta(days=1)


class Owner(NamedTuple):
    """Who has a certificate: the files of the private key and of the certificate, and what they hold."""

    key: Path
    file: Path
    private: object
    certificate: x509.Certificate

    @property
    def fingerprint(self):
        return trust.fingerprint_of(self.private.public_key())


def owner(
    folder, name, above=None, *, authority=False, usage=True, extended=(), since=NOW, until=NOW + 9 * DAY, kind=None
):
    """Write a private key and its certificate, made by ``above`` (itself when None)."""
    private = kind or ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    made = x509.CertificateBuilder().subject_name(subject).public_key(private.public_key())
    made = made.issuer_name(above.certificate.subject if above else subject).serial_number(x509.random_serial_number())
    made = made.not_valid_before(since).not_valid_after(until)
    made = made.add_extension(x509.BasicConstraints(authority, None), critical=True)
    others = ("content_commitment", "key_encipherment", "data_encipherment", "key_agreement", "encipher_only")
    flags = dict.fromkeys((*others, "decipher_only"), False) | {"content_commitment": not usage}
    flags |= {"crl_sign": authority, "key_cert_sign": authority}
    made = made.add_extension(x509.KeyUsage(digital_signature=usage and not authority, **flags), critical=True)
    if extended:
        made = made.add_extension(x509.ExtendedKeyUsage(extended), critical=False)
    found = made.sign(above.private if above else private, hashes.SHA256())
    key, file = folder / f"{name}.pem", folder / f"{name}.crt"
    key.write_bytes(private.private_bytes(PEM, serialization.PrivateFormat.TraditionalOpenSSL, PLAIN))
    file.write_bytes(found.public_bytes(PEM))
    return Owner(key, file, private, found)


@pytest.fixture
def root(tmp_path):
    return owner(tmp_path, "root", authority=True)


@pytest.fixture
def team(tmp_path, root):
    """An authority below the root."""
    return owner(tmp_path, "team", root, authority=True)


@pytest.fixture
def own(tmp_path, team):
    return owner(tmp_path, "own", team)


def by(*owners):
    """Return what signs with a certificate: the files of the certificates, the signer's first."""
    return [one.file for one in owners]


def run(*words, code=0):
    """Run a command in this process, and return what it prints and its error."""
    done = CliRunner().invoke(app, ["release", *map(str, words)])
    assert getattr(done.exception, "exit_code", done.exit_code) == code, (words, done.output, done.exception)
    return done.output + str(done.exception or "")


def release(tmp_path, version, signer, *above):
    """Return a release signed by a certificate."""
    folder = write_signed(tmp_path / "store", version, signer.key)
    signing.sign(folder, signer.key, certificates=by(signer, *above))
    return folder


def test_every_command_takes_certificates_alone(tmp_path, root, team, own):
    """Published, promoted, gone back, pulled, packed and checked by an authority: no public key is given anywhere."""
    to, vouched = ("--to", tmp_path / "place"), ("--authority", root.file)
    signs = ("--sign", own.key, "--certificate", own.file, "--certificate", team.file)
    for version in ("1", "2"):
        folder = write_signed(tmp_path / "store", version, own.key)
        words = ("--certificate", own.file, "--certificate", team.file)
        run("sign", folder, "--key", own.key, *words)
        assert run("publish", folder, *to, *vouched)
        assert f"production is {version}" in run("promote", version, *to, *vouched, *signs)
    assert "production is 1 (number 3" in run("rollback", *to, *vouched, *signs)
    found = json.loads(run("list", *to, *vouched, "--json"))
    assert {row["key"] for rows in found.values() for row in rows} == {own.fingerprint}
    assert not [row for rows in found.values() for row in rows if row["refused"]]
    run("pull", *to, *vouched, "-o", tmp_path / "out")
    for where in (tmp_path / "out/1", tmp_path / "store/2", f"file://{tmp_path / 'place'}"):
        run("verify", where, *vouched)
    run("publish", tmp_path / "store/2", "--to", f"bundle:{tmp_path / '2.tar'}", *vouched)
    run("import", tmp_path / "2.tar", *vouched, "-o", tmp_path / "taken")
    run("verify", tmp_path / "2.tar", *vouched)
    plan = ReleasePlan("3", {}, (), Margins(), Retention(keep_last=1, keep_days=0))
    kept = retention.prune(
        plan, tmp_path / "empty", ObjectStore(str(tmp_path / "place")), key=trust.read([], [], [root.file])
    )
    assert {f.what: f.kept for f in kept} == {
        "1": "production stands for it",
        "2": "production stood for it before",
    }
    for line in (
        ("publish", tmp_path / "store/2", *to),
        ("promote", "1", *to, *signs),
        ("rollback", *to, *signs),
        ("pull", *to, "-o", tmp_path / "other"),
        ("list", *to),
        ("import", tmp_path / "2.tar"),
    ):
        assert "nothing says whose signature counts" in run(*line, code=2)


def test_what_another_authority_vouches_for_is_refused_by_every_command(tmp_path, root, team, own):
    place, vouched = ObjectStore(str(tmp_path / "place")), trust.read([], [], [root.file])
    folder = release(tmp_path, "1", own, team)
    publishing.publish(folder, place, key=vouched)
    publishing.promote(place, "production", "1", key=own.key, public=vouched, certificates=by(own, team), days=90)
    other = owner(tmp_path, "other", authority=True)
    to, theirs = ("--to", tmp_path / "place"), ("--authority", other.file)
    refused = "is not what the owner of"
    run("publish", folder, "--to", tmp_path / "theirs", *theirs, code=1)
    assert not (tmp_path / "theirs").exists()
    assert refused in run("pull", *to, *theirs, "-o", tmp_path / "out", code=2)
    assert not (tmp_path / "out").exists()
    assert refused in run("promote", "1", *to, *theirs, "--sign", own.key, "--certificate", own.file, code=2)
    assert refused in run("list", *to, *theirs, code=1)
    assert refused in run("verify", folder, *theirs, "--json", code=1)
    assert refused in run("verify", place.url, "--version", "1", *theirs, "--json", code=1)


@pytest.mark.parametrize("named", ["root", "elsewhere"])
def test_a_leaf_of_an_unknown_root_is_refused_also_where_it_brings_the_root_or_has_its_name(tmp_path, root, named):
    (tmp_path / "their").mkdir()
    theirs = owner(tmp_path / "their", named, authority=True)
    leaf = owner(tmp_path / "their", "own", theirs)
    folder = release(tmp_path, "1", leaf, theirs)
    with pytest.raises(NotTrusted, match="is not what the owner of"):
        signing.signed_files((folder / "model.sig").read_bytes(), trust.read([], [], [root.file]), "it")
    assert signing.signed_files((folder / "model.sig").read_bytes(), trust.read([], [], [theirs.file]), "it")


def test_an_authority_vouches_only_through_authorities(tmp_path, root, team, own):
    """A certificate that is not an authority's makes no other; one in the middle alone is not a root."""
    below = owner(tmp_path, "below", own)
    for chain, given in (((below, own, team), root), ((own,), root), ((own, team), team)):
        folder = release(tmp_path, "1", *chain)
        with pytest.raises(NotTrusted, match="is not what the owner of"):
            signing.verify(folder, trust.read([], [], [given.file]))
    folder = release(tmp_path, "1", own)  # the middle may come from who checks
    assert signing.verify(folder, trust.read([], [], [team.file, root.file])) == own.fingerprint


def edited(folder, change):
    """Change ``model.sig`` and return what it is then."""
    data = json.loads((folder / "model.sig").read_text())
    change(data)
    (folder / "model.sig").write_text(json.dumps(data))
    return json.dumps(data).encode()


def flip(data):
    envelope = data["dsseEnvelope"]
    payload = bytearray(base64.b64decode(envelope["payload"]))
    payload[payload.rindex(b'"digest"') + 12] ^= 1
    envelope["payload"] = base64.b64encode(payload).decode()


def root_first(data):
    data["verificationMaterial"]["x509CertificateChain"]["certificates"].reverse()


def own_last(data):
    found = data["verificationMaterial"]["x509CertificateChain"]["certificates"]
    found.append(found.pop(0))


def no_signer(data):
    data["verificationMaterial"]["x509CertificateChain"]["certificates"].pop(0)


def no_certificates(data):
    data["verificationMaterial"]["x509CertificateChain"]["certificates"] = []


def flip_certificate(data):
    found = data["verificationMaterial"]["x509CertificateChain"]["certificates"][0]
    der = bytearray(base64.b64decode(found["rawBytes"]))
    der[-9] ^= 1
    found["rawBytes"] = base64.b64encode(der).decode()


def odd_version(data):
    found = data["verificationMaterial"]["x509CertificateChain"]["certificates"][0]
    der = base64.b64decode(found["rawBytes"])
    found["rawBytes"] = base64.b64encode(der.replace(b"\xa0\x03\x02\x01\x02", b"\xa0\x03\x02\x01\x12", 1)).decode()


def no_certificate(data):
    data["verificationMaterial"]["x509CertificateChain"]["certificates"][0]["rawBytes"] = "AAAA"


def odd(data):
    data["verificationMaterial"]["x509CertificateChain"] = [3]


@pytest.mark.parametrize(
    "attack",
    [flip, root_first, own_last, no_signer, no_certificates, flip_certificate, odd_version, no_certificate, odd],
)
def test_a_changed_signature_is_refused_without_the_files_as_with_them(tmp_path, root, team, own, attack):
    folder, vouched = release(tmp_path, "1", own, team, root), trust.read([], [], [root.file])
    signing.signed_files((folder / "model.sig").read_bytes(), vouched, "it")
    content = edited(folder, attack)
    with pytest.raises(InputError, match="is not what the owner of"):
        signing.signed_files(content, vouched, "it")
    with pytest.raises(InputError, match="is not what the owner of"):
        signing.verify(folder, vouched)


def test_those_above_the_signer_may_come_in_any_order(tmp_path, root, team, own):
    folder, vouched = release(tmp_path, "1", own, root, team), trust.read([], [], [root.file])
    assert signing.verify(folder, vouched) == own.fingerprint
    (folder / "added").write_text("x")
    with pytest.raises(InputError, match="is not what the owner of"):
        signing.verify(folder, vouched)


def stock(folder, root):
    """Return the exit code of the stock command line."""
    words = ["verify", "certificate", folder, "--signature", folder / "model.sig", "--certificate_chain", root.file]
    command = [sys.executable, "-m", "model_signing", *map(str, words), "--no-ignore-git-paths"]
    return subprocess.run(command, capture_output=True, check=False).returncode


@pytest.mark.parametrize(
    ("given", "counts"),
    [
        ({}, True),
        ({"usage": False}, False),  # its key is not for signatures
        ({"usage": False, "extended": [ExtendedKeyUsageOID.CODE_SIGNING]}, True),
        ({"usage": False, "extended": [ExtendedKeyUsageOID.SERVER_AUTH]}, False),
        ({"since": NOW - 300 * DAY, "until": NOW - DAY}, False),  # before the root held
        ({"since": NOW + DAY}, True),  # the time of signing is not proved
        ({"since": NOW + 20 * DAY, "until": NOW + 30 * DAY}, False),  # after the root ends
        ({"kind": ec.generate_private_key(ec.SECP521R1())}, True),
    ],
)
def test_the_same_certificates_count_here_and_for_the_stock_tool(tmp_path, root, given, counts):
    leaf = owner(tmp_path, "leaf", root, **given)
    folder = release(tmp_path, "1", leaf)
    assert (stock(folder, root) == 0) == counts
    content = (folder / "model.sig").read_bytes()
    try:
        signing.signed_files(content, trust.read([], [], [root.file]), "it")
    except NotTrusted:
        assert not counts
    else:
        assert counts


def test_a_certificate_of_a_key_that_nobody_signs_with_is_refused(tmp_path, root):
    leaf = owner(tmp_path, "leaf", root, kind=rsa.generate_private_key(65537, 2048))
    chain = signing.chain_of([leaf.file])
    with pytest.raises(NotTrusted, match="none of the curves"):
        signing.check_text("text", b"", trust.read([], [], [root.file]), chain=chain)


@pytest.mark.parametrize("gone", ["own", "team", "root"])
def test_a_revoked_key_anywhere_in_the_chain_is_refused_until_it_is_signed_again(tmp_path, root, team, own, gone):
    keys = {"own": own, "team": team, "root": root}
    (tmp_path / "revoked").write_text(f"{keys[gone].fingerprint} laptop stolen\n")
    other = owner(tmp_path, "other", authority=True)
    new = owner(tmp_path, "new", other)
    place, given = ObjectStore(str(tmp_path / "place")), [root.file, other.file]
    before, after = trust.read([], [], given), trust.read([], [tmp_path / "revoked"], given)
    folder = release(tmp_path, "1", own, team)  # the root is not in it
    publishing.publish(folder, place, key=before)
    publishing.promote(place, "production", "1", key=own.key, public=before, certificates=by(own, team), days=90)
    refused = rf"key {keys[gone].fingerprint}, which was revoked \(laptop stolen\)"
    for act in (
        lambda: signing.verify(folder, after),
        lambda: publishing.pull(place, "production", tmp_path / "out", key=after),
        lambda: publishing.promote(place, "production", "1", key=new.key, public=after, certificates=by(new), days=90),
    ):
        with pytest.raises(InputError, match=refused):
            act()
    if gone != "root":  # its certificate is there, whether or not anybody vouches for it any more
        with pytest.raises(NotTrusted, match=refused) as told:
            signing.verify(folder, trust.read([], [tmp_path / "revoked"], [other.file]))
        assert told.value.revoked
    signing.sign(folder, new.key, certificates=by(new))
    publishing.publish(folder, place, key=after)
    with pytest.raises(UsageError, match="not the private half"):
        publishing.promote(place, "production", "1", key=own.key, public=after, certificates=by(own, team), days=90)
    publishing.promote(place, "production", "1", key=new.key, public=after, certificates=by(new), days=90)
    assert publishing.pull(place, "production", tmp_path / "out", key=after).name == "1"


def test_a_key_and_an_authority_may_both_count(tmp_path, root, team, own, key_pair):
    """As while keys are replaced by certificates: each kind of signature counts where its owner is given."""
    place, (private, public) = ObjectStore(str(tmp_path / "place")), key_pair(tmp_path, "key")
    both, alone, keyed = trust.read([public], [], [root.file]), trust.read([], [], [root.file]), trust.read([public])
    for version, folder in (
        ("1", write_signed(tmp_path / "store", "1", private)),
        ("2", release(tmp_path, "2", own, team)),
    ):
        publishing.publish(folder, place, key=both)
        signs = {"key": private} if version == "1" else {"key": own.key, "certificates": by(own, team)}
        publishing.promote(place, "production", version, public=both, **signs, days=90)
        assert publishing.pull(place, "production", tmp_path / "out", key=both).name == version
    assert publishing.rollback(place, "production", key=private, public=both, days=90).version == "1"
    with pytest.raises(NotTrusted, match="it is by a key, and none is given"):
        publishing.pull(place, "production", tmp_path / "other", key=alone)
    with pytest.raises(NotTrusted, match="by a certificate, and no --authority"):
        signing.verify(tmp_path / "store/2", keyed)
    with pytest.raises(UsageError, match="not the private half"):  # with the certificate of another
        publishing.promote(place, "production", "1", key=private, public=both, certificates=by(own, team), days=90)


def test_a_pointer_is_by_the_certificate_that_it_brings(tmp_path, root, team, own):
    """Nobody writes another pointer under a certificate that counts, or takes the certificates from one."""
    place, vouched = ObjectStore(str(tmp_path / "place")), trust.read([], [], [root.file])
    publishing.publish(release(tmp_path, "1", own, team), place, key=vouched)
    publishing.promote(place, "production", "1", key=own.key, public=vouched, certificates=by(own, team), days=90)
    file = tmp_path / "place/pointers/production/0000000001.json"
    sound = json.loads(file.read_text())
    for change in (
        {"pointer": sound["pointer"].replace('"version": "1"', '"version": "0"')},
        {"certificates": []},
        {"certificates": sound["certificates"][1:]},
        {"certificates": sound["certificates"][::-1]},
        {"certificates": [base64.b64encode(b"x").decode()]},
        {"certificates": 3},
        {"certificates": ["!"]},
    ):
        file.chmod(0o644)
        file.write_text(json.dumps(sound | change))
        with pytest.raises(InputError, match=r"is not what the owner of|is not a pointer"):
            publishing.pull(place, "production", tmp_path / "out", key=vouched)
    file.write_text(json.dumps(sound))
    assert publishing.pull(place, "production", tmp_path / "out", key=vouched).name == "1"


def test_what_is_no_certificate_is_told_before_anything_is_done(tmp_path, root, own):
    folder = release(tmp_path, "1", own)
    assert "is not a certificate" in run("publish", folder, "--to", tmp_path / "place", "--authority", own.key, code=2)
    assert "is not a certificate" in run("verify", folder, "--authority", tmp_path / "missing", code=2)
    assert not (tmp_path / "place").exists()
