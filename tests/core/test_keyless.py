"""Signatures by Sigstore: one that was really made there is held against its identity without a network.

``keyless`` is a folder that a maintainer of model-signing signed by Sigstore (github.com/sigstore/model-transparency,
scripts/tests/v1.1.0-sigstore, Apache-2.0). Signing itself needs the network, so only how it ends without one is shown.
"""

import base64
import json
import shutil
import time
import webbrowser
from pathlib import Path

import pytest
from typer.testing import CliRunner

from accel.cli import app
from accel.core import signing, trust
from accel.core.errors import InputError, UnavailableError, UsageError
from accel.core.trust import NotTrusted, Trust

WHO, PROVIDER = "stefanb@us.ibm.com", "https://sigstore.verify.ibm.com/oauth2"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The signed folder; nothing reaches a network, and no browser is opened."""
    for name in ("HTTPS_PROXY", "https_proxy", "HTTP_PROXY", "http_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    for name in ("GITHUB_ACTIONS", "GITLAB_CI", "BUILDKITE", "SIGSTORE_IDENTITY_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setattr(webbrowser, "open", lambda *_: pytest.fail("a browser was opened"))
    return shutil.copytree(Path(__file__).parent / "keyless", tmp_path / "signed")


def test_what_an_identity_signed_is_accepted_without_a_network(folder):
    assert signing.verify(folder, Trust(identities={"other@example.com": PROVIDER, WHO: PROVIDER})) == WHO
    by, files = signing.signed_files((folder / "model.sig").read_bytes(), Trust(identities={WHO: PROVIDER}), "it")
    assert (by, set(files)) == (WHO, {"signme-1", "signme-2"})


@pytest.mark.parametrize(
    "identities", [{"other@example.com": PROVIDER}, {WHO: "https://accounts.google.com"}, {WHO.upper(): PROVIDER}]
)
def test_another_identity_or_provider_is_refused(folder, identities):
    with pytest.raises(NotTrusted, match="is not what the owner of"):
        signing.verify(folder, Trust(identities=identities))


def test_it_is_no_signature_of_a_key_or_an_authority_nor_the_other_way_round(folder, tmp_path, key_pair):
    private, public = key_pair(tmp_path, "key")
    with pytest.raises(NotTrusted, match="it is by Sigstore, and no --identity is given"):
        signing.verify(folder, public)
    (folder / "model.sig").unlink()
    signing.sign(folder, private)
    with pytest.raises(NotTrusted, match="is not what the owner of"):
        signing.verify(folder, Trust(identities={WHO: PROVIDER}))
    assert signing.verify(folder, Trust({trust.fingerprint(public): public}, identities={WHO: PROVIDER}))


def change(folder):
    (folder / "signme-1").write_text("x")


def add(folder):
    (folder / ".gitattributes").write_text("x")


def remove(folder):
    (folder / "signme-2").unlink()


def edit(folder, act):
    data = json.loads((folder / "model.sig").read_text())
    act(data["verificationMaterial"], data["dsseEnvelope"])
    (folder / "model.sig").write_text(json.dumps(data))


def flipped(text, position):
    raw = bytearray(base64.b64decode(text))
    raw[position] ^= 1
    return base64.b64encode(raw).decode()


def payload(folder):
    edit(folder, lambda _, envelope: envelope.update(payload=flipped(envelope["payload"], 700)))


def signature(folder):
    edit(
        folder, lambda _, envelope: envelope["signatures"][0].update(sig=flipped(envelope["signatures"][0]["sig"], 20))
    )


def certificate(folder):
    edit(folder, lambda m, _: m["certificate"].update(rawBytes=flipped(m["certificate"]["rawBytes"], -9)))


def curve(folder):
    edit(folder, lambda m, _: m["certificate"].update(rawBytes=odd(m["certificate"]["rawBytes"])))


def odd(text):
    raw = base64.b64decode(text)
    return base64.b64encode(raw.replace(bytes.fromhex("2a8648ce3d030107"), bytes.fromhex("2a8648cf3d030107"))).decode()


def log(folder):
    edit(folder, lambda m, _: m["tlogEntries"][0].update(integratedTime="1760062341"))


def no_log(folder):
    edit(folder, lambda m, _: m.update(tlogEntries=[]))


def made_up(folder):
    (folder / "model.sig").write_text('{"verificationMaterial": {"certificate": {}}}')


@pytest.mark.parametrize("attack", [change, add, remove, payload, signature, certificate, curve, log, no_log, made_up])
def test_what_was_changed_since_is_refused(folder, attack):
    attack(folder)
    with pytest.raises(InputError, match="is not what the owner of"):
        signing.verify(folder, Trust(identities={WHO: PROVIDER}))


def run(*words):
    return CliRunner().invoke(app, ["release", *map(str, words)]).exception


def test_the_command_takes_an_identity(folder):
    """The folder is not a release, which is the only thing wrong with it."""
    for who, wrong in ((WHO, ["release.json"]), ("other@example.com", ["model.sig", "release.json"])):
        words = ["release", "verify", str(folder), "--identity", who, "--identity-provider", PROVIDER, "--json"]
        found = json.loads(CliRunner().invoke(app, words).stdout)["findings"]
        assert [f["file"] for f in found if f["severity"] == "error"] == wrong


def test_options_that_contradict_are_refused_before_anything_is_done(tmp_path):
    missing = tmp_path / "missing"
    for line in (
        ("sign", missing),
        ("sign", missing, "--key", "key.pem", "--sigstore"),
        ("sign", missing, "--sigstore", "--certificate", "own.pem"),
        ("sign", missing, "--key", "key.pem", "--identity-token", "x"),
        ("sign", missing, "--key", "key.pem", "--interactive"),
        ("sign", missing, "--sigstore", "--identity-token", "x", "--interactive"),
        ("verify", missing, "--identity", WHO),
        ("pull", "--to", missing, "--identity-provider", PROVIDER),
    ):
        assert isinstance(run(*line), UsageError), line


def token(**claims):
    now = int(time.time())
    told = {"aud": "sigstore", "iss": PROVIDER, "sub": WHO, "email": WHO, "iat": now, "nbf": now, "exp": now + 60}
    parts = ({"alg": "RS256", "typ": "JWT"}, told | claims)
    return ".".join(base64.urlsafe_b64encode(json.dumps(p).encode()).decode().rstrip("=") for p in parts) + ".c2ln"


def test_without_a_network_a_token_or_a_sound_one_it_says_so(folder):
    before = (folder / "model.sig").read_bytes()
    with pytest.raises(UsageError, match="nothing says who signs"):
        signing.sign_keyless(folder)
    for wrong in ("x", token(exp=1, iat=1, nbf=1), token(aud="other")):
        with pytest.raises(InputError, match="identity token"):
            signing.sign_keyless(folder, wrong)
    for asked in ({"token": token()}, {"interactive": True}):
        with pytest.raises(UnavailableError, match="Sigstore did not sign"):
            signing.sign_keyless(folder, **asked)
    assert (folder / "model.sig").read_bytes() == before
