"""Keys of releases and pointers that are replaced or revoked: what counts goes on, what does not is refused by name."""

import json
import shutil

import pytest
from tiny_release import accel, write_signed
from typer.testing import CliRunner

from accel.cli import app
from accel.core import signing, trust
from accel.core.errors import InputError, UsageError
from accel.release import publishing, retention
from accel.release.object_store import ObjectStore
from accel.release.release_file import Margins, ReleasePlan, Retention


@pytest.fixture
def keys(tmp_path, key_pair):
    """The old and the new key, each as private and public file."""
    return {name: key_pair(tmp_path, name) for name in ("old", "new", "stranger")}


@pytest.fixture
def place(tmp_path, keys):
    """Releases 1 and 2, signed, published and promoted with the old key."""
    private, public = keys["old"]
    place = ObjectStore(str(tmp_path / "place"))
    for version in ("1", "2"):
        publishing.publish(write_signed(tmp_path / "store", version, private), place, key=public)
        publishing.promote(place, "production", version, key=private, public=public, days=90)
    return place


@pytest.mark.parametrize(
    ("stood_for", "before"),
    [
        ("12", "1"),
        ("123", "2"),
        ("1232", "1"),  # 3 was left by a rollback
        ("12321", None),
        ("12324", "2"),
        ("121", None),
        ("1212", "1"),  # gone forward again
        ("122", "1"),  # promoted again before it ended
        ("12132", "3"),
        ("1", None),
        ("", None),
    ],
)
def test_a_rollback_never_goes_to_what_one_left(stood_for, before):
    pointers = [publishing.Pointer("production", v, 64 * v, n, "", "") for n, v in enumerate(stood_for, 1)]
    found = publishing.before_present(publishing.Signed(one, "key") for one in reversed(pointers))
    assert (found and found.version) == before


def test_a_second_rollback_goes_further_back(place, keys, tmp_path):
    private, public = keys["old"]
    add(place, tmp_path, "3", keys["old"], public)
    back = {"key": private, "public": public, "days": 90}
    assert [publishing.rollback(place, "production", **back).version for _ in range(2)] == ["2", "1"]
    with pytest.raises(UsageError, match="no version to go back to"):
        publishing.rollback(place, "production", **back)


def add(place, tmp_path, version, pair, public):
    publishing.publish(write_signed(tmp_path / "store", version, pair[0]), place, key=public)
    return publishing.promote(place, "production", version, key=pair[0], public=public, days=90)


def test_while_a_key_is_replaced_both_count(place, keys, tmp_path):
    old, new = keys["old"], keys["new"]
    both = trust.read([old[1], new[1]])
    assert publishing.pull(place, "production", tmp_path / "a", key=both).name == "2"
    assert add(place, tmp_path, "3", new, both).sequence == 3
    assert publishing.pull(place, "production", tmp_path / "a", key=both).name == "3"
    assert publishing.pull(place, "production", tmp_path / "b", key=new[1]).name == "3"
    with pytest.raises(InputError, match=trust.fingerprint(new[1])):  # a machine that was not told of the new key
        publishing.pull(place, "production", tmp_path / "c", key=old[1])
    back = publishing.rollback(place, "production", key=new[0], public=both, days=90)
    assert (back.version, back.sequence) == ("2", 4)
    assert publishing.pull(place, "production", tmp_path / "a", key=both).name == "2"
    rows = publishing.listed(place, both)
    owners = [trust.fingerprint(keys[name][1]) for name in ("old", "old", "new")]
    assert [(row["key"], row["refused"]) for row in rows["versions"]] == [(owner, None) for owner in owners]
    assert [(row["version"], row["key"]) for row in rows["names"]] == [("2", owners[2])]


def test_with_the_old_key_gone_what_it_signed_is_refused(place, keys, tmp_path):
    old, new = keys["old"], keys["new"]
    both = trust.read([old[1], new[1]])
    add(place, tmp_path, "3", new, both)
    publishing.pull(place, "production", tmp_path / "seen", key=both)
    for act in (
        lambda: publishing.rollback(place, "production", key=new[0], public=new[1], days=90),
        lambda: publishing.promote(place, "production", "2", key=new[0], public=new[1], days=90),
    ):
        with pytest.raises(InputError, match=f"names the key {trust.fingerprint(old[1])}") as told:
            act()
        assert "another --key" in told.value.fix
    assert next(publishing.pointers(place, "production", new[1])).version == "3"
    newest = tmp_path / "place/pointers/production/0000000003.json"
    newest.rename(tmp_path / "kept")  # as who controls the store would hide it
    with pytest.raises(InputError, match="put an older pointer in its place"):
        publishing.pull(place, "production", tmp_path / "seen", key=both)
    with pytest.raises(InputError, match="names the key"):
        publishing.pull(place, "production", tmp_path / "fresh", key=new[1])
    assert not (tmp_path / "fresh").exists()


def test_a_pointer_is_not_moved_by_a_key_that_does_not_count(place, keys):
    with pytest.raises(UsageError, match="not the private half of a key that counts"):
        publishing.promote(place, "production", "1", key=keys["new"][0], public=keys["old"][1], days=90)
    with pytest.raises(InputError, match="is not what the owner of"):  # of a name that somebody else moves
        publishing.promote(place, "production", "1", key=keys["new"][0], public=keys["new"][1], days=90)
    assert len(place.names("pointers/production")) == 2


@pytest.mark.parametrize("form", ["key", "list", "pasted"])
def test_what_a_revoked_key_signed_is_refused_until_it_is_signed_again(place, keys, tmp_path, form):
    old, new = keys["old"], keys["new"]
    gone = {
        "key": old[1].read_text(),
        "list": f"# keys of ours\n\n{trust.fingerprint(old[1])}  laptop stolen\n",
        "pasted": f"{'0' * 64}\n{old[1].read_text()}# the end\n",
    }[form]
    (tmp_path / "revoked").write_text(gone)
    both = trust.read([old[1], new[1]], [tmp_path / "revoked"])
    revoked = f"key {trust.fingerprint(old[1])}, which was revoked" + (r" \(laptop stolen\)" if form == "list" else "")
    publishing.pull(place, "production", tmp_path / "out", key=old[1])  # before that was known
    with pytest.raises(InputError, match=revoked):
        publishing.pull(place, "production", tmp_path / "out", key=both)
    with pytest.raises(InputError, match=revoked):
        signing.verify(tmp_path / "store/2", both)
    with pytest.raises(InputError, match=revoked) as told:
        publishing.promote(place, "production", "2", key=new[0], public=both, days=90)
    assert "sign it again" in told.value.fix
    signed_again(place, tmp_path, "1", new, both)
    with pytest.raises(UsageError, match="not the private half of a key that counts"):
        publishing.promote(place, "production", "1", key=old[0], public=both, days=90)
    digest = signed_again(place, tmp_path, "2", new, both)
    assert publishing.promote(place, "production", "2", key=new[0], public=both, days=90).sequence == 3
    taken = publishing.pull(place, "production", tmp_path / "out", key=both)  # not what lay there by the old signature
    assert signing.verify(taken, both) == trust.fingerprint(new[1])
    assert place.read(f"releases/2/{digest}/model.sig") == (tmp_path / "store/2/model.sig").read_bytes()
    with pytest.raises(UsageError, match="pointers of revoked keys do not count"):
        publishing.rollback(place, "production", key=new[0], public=both, days=90)


def signed_again(place, tmp_path, version, pair, public):
    signing.sign(tmp_path / "store" / version, pair[0])
    return publishing.publish(tmp_path / "store" / version, place, key=public)


def test_who_still_has_a_revoked_key_moves_no_pointer(place, keys, tmp_path):
    old, new = keys["old"], keys["new"]
    both = trust.read([old[1], new[1]], [old[1]])
    add(place, tmp_path, "3", new, both)
    publishing.promote(
        place, "production", "2", key=old[0], public=trust.read([old[1], new[1]]), days=90
    )  # its thief does
    with pytest.raises(InputError, match="which was revoked"):
        publishing.pull(place, "production", tmp_path / "out", key=both)
    with pytest.raises(InputError, match="which was revoked") as told:
        publishing.rollback(place, "production", key=new[0], public=both, days=90)
    assert "promote" in told.value.fix
    assert publishing.promote(place, "production", "3", key=new[0], public=both, days=90).sequence == 5
    assert publishing.pull(place, "production", tmp_path / "out", key=both).name == "3"


def test_a_signature_that_counts_stays_when_the_same_is_published_again(place, keys, tmp_path):
    old, new = keys["old"], keys["new"]
    digest = publishing.digest_of(place, "releases/2")
    before = place.read(f"releases/2/{digest}/model.sig")
    signed_again(place, tmp_path, "2", new, trust.read([old[1], new[1]]))
    assert place.read(f"releases/2/{digest}/model.sig") == before
    signed_again(place, tmp_path, "2", new, new[1])
    assert place.read(f"releases/2/{digest}/model.sig") != before


def test_the_signature_of_another_release_is_not_promoted_and_is_mended(place, keys, tmp_path):
    private, public = keys["old"]
    theirs, digest = (publishing.digest_of(place, f"releases/{version}") for version in ("1", "2"))
    shutil.copyfile(
        tmp_path / f"place/releases/1/{theirs}/model.sig", tmp_path / f"place/releases/2/{digest}/model.sig"
    )
    with pytest.raises(InputError, match="has the signature of another release"):
        publishing.promote(place, "production", "2", key=private, public=public, days=90)
    with pytest.raises(InputError, match="Hash mismatch"):
        publishing.pull(place, "production", tmp_path / "out", key=public)
    assert publishing.publish(tmp_path / "store/2", place, key=public) == digest
    assert publishing.promote(place, "production", "2", key=private, public=public, days=90).sequence == 3
    assert publishing.pull(place, "production", tmp_path / "out", key=public).name == "2"


def test_list_goes_on_and_prune_keeps_what_others_point_at(place, keys, tmp_path):
    old, stranger = keys["old"], keys["stranger"]
    for version in ("1", "2"):
        publishing.promote(place, "theirs", version, key=stranger[0], public=trust.read([old[1], stranger[1]]), days=90)
    broken = tmp_path / "place/pointers/broken/0000000001.json"
    broken.parent.mkdir()
    broken.write_text("{}")
    done = accel("release", "list", "--to", place.url, "--key", old[1], "--json")
    assert done.returncode == 1, done.stderr
    found = json.loads(done.stdout)
    assert [(row["version"], row["names"]) for row in found["versions"]] == [("1", ""), ("2", "production")]
    refused = {row["name"]: row["refused"] for row in found["names"]}
    assert refused["production"] is None
    assert trust.fingerprint(stranger[1]) in refused["theirs"]
    assert "is not a pointer" in refused["broken"]
    assert "theirs: " in done.stderr
    assert "broken: " in done.stderr
    assert "Traceback" not in done.stderr
    shutil.rmtree(broken.parent)
    done = accel("release", "list", "--to", place.url, "--key", old[1], "--key", stranger[1])
    assert done.returncode == 0, done.stderr
    add(place, tmp_path, "3", old, old[1])
    add(place, tmp_path, "4", old, old[1])
    plan = ReleasePlan("5", {}, (), Margins(), Retention(keep_last=1, keep_days=0))
    found = retention.prune(plan, tmp_path / "empty", place, key=old[1])
    kept = {f.what: f.kept for f in found}
    assert (
        kept["1"] == f"a pointer theirs of the key {trust.fingerprint(stranger[1])[:16]} names it, which is not given"
    )
    assert (kept["2"], kept["3"]) == ("theirs stands for it", "a rollback of production goes to it")
    assert set(place.names("releases/1")) == {"digest", publishing.digest_of(place, "releases/1")}


def test_every_command_takes_several_keys_a_folder_of_them_and_revoked_ones(place, keys, tmp_path):
    old, new = keys["old"], keys["new"]
    folder = tmp_path / "trusted"
    folder.mkdir()
    for name in ("old", "new"):
        shutil.copyfile(keys[name][1], folder / f"{name}.pub")
    release = write_signed(tmp_path / "store", "3", new[0])
    to, one_by_one = ("--to", place.url), ("--key", old[1], "--key", new[1])
    for line in (
        ("publish", release, *to, "--key", folder),
        ("verify", release, "--key", folder),
        ("promote", "3", *to, *one_by_one, "--sign", new[0]),
        ("pull", *to, "--key", folder, "-o", tmp_path / "out"),
        ("rollback", *to, *one_by_one, "--sign", new[0]),
        ("list", *to, *one_by_one),
    ):
        done = run(*line)
        assert done.exit_code == 0, (line, done.output, done.exception)
        if line[0] in ("publish", "rollback"):  # as verify and promote
            continue
        done = run(*line, "--revoked", old[1], "--revoked", new[1])
        assert getattr(done.exception, "exit_code", 0) in (1, 2), (line, done.exception)
        assert "revoked" in done.output + str(done.exception)
    done = run("verify", release, "--revoked", old[1])
    assert isinstance(done.exception, UsageError)


def run(*words):
    """Run a command in this process; what it prints, and its error, are attributes."""
    return CliRunner().invoke(app, ["release", *map(str, words)])


@pytest.mark.parametrize("text", ["abc", "0" * 63, "A" * 64, "-----BEGIN PUBLIC KEY-----\nMFkw\n", "\xff"])
def test_a_list_of_revoked_keys_is_read_whole_or_refused(keys, tmp_path, text):
    """A line that was passed over would be a key that goes on to count."""
    (tmp_path / "revoked").write_bytes(b"0" * 64 + b"\n" + text.encode("latin-1"))
    with pytest.raises(InputError, match="revoked"):
        trust.read([keys["old"][1]], [tmp_path / "revoked"])
    with pytest.raises(InputError, match="revoked"):
        trust.read([keys["old"][1]], [tmp_path / "revoked-not-there"])
    (tmp_path / "folder").mkdir()
    with pytest.raises(InputError, match="holds no public key"):
        trust.read([tmp_path / "folder"])
