"""What ``accel release prune`` removes, and what it never does: what a pointer, a rollback or another release needs."""

import json
import shutil
from datetime import UTC, datetime, timedelta

import pytest
from tiny_release import accel, write_signed

from accel.core import hardware
from accel.core.errors import OutputError, UsageError
from accel.core.values import sha256_file
from accel.release import building, planning, publishing, release_file, retention
from accel.release.release_file import ReleasePlan, Retention

AGES = {"1": 100, "2": 90, "3": 80, "4": 70, "5": 60, "6": 1}
"""Version → days since it was built."""


@pytest.fixture
def place(request, empty_place, tmp_path, key_pair):
    """Six published releases, in a folder if nothing else is said.

    Production stands for 2 and stood for 1 and 3 before, canary for 4.
    """
    private, public = key_pair(tmp_path, "key")
    keys = {"key": private, "public": public, "days": 90}
    place = publishing.ObjectStore(empty_place(getattr(request, "param", "file")))
    for version, days in AGES.items():
        created = (datetime.now(UTC) - timedelta(days=days)).isoformat()
        publishing.publish(write_signed(tmp_path / "store", version, private, created=created), place, key=public)
    for name, version in (("production", "3"), ("production", "1"), ("production", "2"), ("canary", "4")):
        publishing.promote(place, name, version, **keys)
    return place, tmp_path / "store", keys


def plan(**rules):
    return ReleasePlan("7", {}, (), release_file.Margins(), Retention(**rules))


def content(folder):
    return {p.relative_to(folder).as_posix(): sha256_file(p) for p in folder.rglob("*") if p.is_file()}


def kept(found, where):
    return {f.what: f.kept for f in found if f.where == str(where)}


@pytest.mark.parametrize(
    "place", ["file", "s3", *(pytest.param(k, marks=pytest.mark.campaign) for k in ("gs", "abfs"))], indirect=True
)
def test_the_mark_of_a_release_that_a_pointer_stands_for_is_taken_back(place, tmp_path):
    """A prune marked it, somebody promoted it, and the prune was killed before it looked again."""
    place, store, keys = place
    place.create("releases/4/removed", b"2026-01-01")
    assert "4" not in publishing.present(place)
    retention.prune(plan(keep_last=1, keep_days=30), store, place, key=keys["public"])
    assert "4" in publishing.present(place)
    assert content(publishing.pull(place, "canary", tmp_path / "out", key=keys["public"])) == content(store / "4")


def test_what_a_pointer_or_a_rollback_needs_stays(place, tmp_path):
    place, store, keys = place
    before = content(tmp_path), place.files_below("releases")
    rules = {"plan": plan(keep_last=1, keep_days=30), "store": store, "place": place, "key": keys["public"]}
    found = retention.prune(**rules, dry_run=True)
    assert (content(tmp_path), place.files_below("releases")) == before
    reasons = {
        "1": "a rollback of production goes to it",
        "2": "production stands for it",
        "3": None,
        "4": "canary stands for it",
        "5": None,
        "6": "it is among the newest 1",
    }
    assert kept(found, store) == kept(found, place.url) == reasons
    assert retention.prune(**rules) == found
    assert sorted(p.name for p in store.iterdir() if p.is_dir()) == ["1", "2", "4", "6"]
    assert [row["version"] for row in publishing.listed(place, keys["public"])["versions"]] == ["1", "2", "4", "6"]
    assert place.files_below("releases/3") == ["digest", "removed"]
    assert set(kept(retention.prune(**rules), place.url)) == {"1", "2", "4", "6"}
    taken = publishing.pull(place, "production", tmp_path / "out", key=keys["public"])
    assert content(taken) == content(store / "2")
    publishing.rollback(place, "production", **keys)
    taken = publishing.pull(place, "production", tmp_path / "out", key=keys["public"])
    assert content(taken) == content(store / "1")
    with pytest.raises(UsageError, match="no release 3"):
        publishing.promote(place, "production", "3", **keys)
    again = write_signed(tmp_path / "again", "3", keys["key"])
    with pytest.raises(OutputError, match="had a release 3, which was removed"):
        publishing.publish(again, place, key=keys["public"])


def test_at_a_place_where_nothing_is_published_nothing_is_removed(place, tmp_path):
    """A name that was mistyped: no pointer there keeps what production stands for."""
    _, store, keys = place
    before = content(store)
    elsewhere = publishing.ObjectStore(str(tmp_path / "elsewhere"))
    with pytest.raises(UsageError, match=f"nothing is published at {elsewhere.url}"):
        retention.prune(plan(keep_last=1, keep_days=30), store, elsewhere, key=keys["public"])
    assert content(store) == before


def test_young_ones_stay_and_without_rules_nothing_goes(place):
    place, store, _ = place
    found = retention.prune(plan(keep_last=1, keep_days=75), store)
    assert [what for what, why in kept(found, store).items() if why is None] == ["1", "2", "3"]
    with pytest.raises(UsageError, match="says nothing of retention"):
        retention.prune(ReleasePlan("7", {}, (), release_file.Margins(), None), store)


def test_of_prune_and_promote_at_once_one_gives_way(place, tmp_path, monkeypatch):
    place, store, keys = place
    rules = {"plan": plan(keep_last=1, keep_days=30), "store": store, "key": keys["public"]}
    other, create = publishing.ObjectStore(place.url), place.create

    def late(name, text):
        if name == "releases/5/removed":  # another has just found the release whole
            publishing.promote(other, "canary", "5", **keys)
        return create(name, text)

    monkeypatch.setattr(place, "create", late)
    found = retention.prune(place=place, **rules)
    assert kept(found, place.url)["5"] == "canary stands for it"
    assert publishing.pull(place, "canary", tmp_path / "out", key=keys["public"]).name == "5"

    def later(name, text):
        if name.startswith("pointers/"):
            retention.prune(place=other, **rules)
        return create(name, text)

    shutil.rmtree(tmp_path / "place/pointers")
    monkeypatch.setattr(place, "create", later)
    with pytest.raises(OutputError, match="release 5 was removed at the same time"):
        publishing.promote(place, "canary", "5", **keys)


def test_a_prune_that_was_killed_goes_on(place, tmp_path, monkeypatch):
    place, store, keys = place
    rules = {"plan": plan(keep_last=1, keep_days=30), "store": store, "place": place, "key": keys["public"]}

    def kill(name):
        raise KeyboardInterrupt

    monkeypatch.setattr(place, "remove", kill)
    with pytest.raises(KeyboardInterrupt):
        retention.prune(**rules)
    (store / ".3.removed").mkdir()
    assert (tmp_path / "place/releases/3/removed").exists()
    assert "3" not in publishing.present(place)
    monkeypatch.undo()
    retention.prune(**rules)
    assert sorted(p.name for p in (tmp_path / "place/releases/3").iterdir()) == ["digest", "removed"]
    assert not (store / ".3.removed").exists()


def test_runs_that_a_release_was_made_of_stay(built, tmp_path, key_pair):
    store, folder, file = tmp_path / "store", built[0], tmp_path / "release.yaml"
    shutil.copytree(folder / "store" / planning.RUNS, store / planning.RUNS)
    text = (folder / "release.yaml").read_text().replace("release: '1'", "release: '9'")
    file.write_text(text + "retention: {keep_last: 1, keep_days: 0}\n")
    both = release_file.read(file)
    building.build(both, store)  # of what the runs hold: nothing is converted
    only = ReleasePlan(both.version, both.pools, both.models[1:], both.margins, both.retention)
    runs = store / planning.RUNS / hardware.detect().id
    names = {model.name: planning.run_name(model) for model in both.models}
    assert names.keys() == {"a", "b"}
    reasons = kept(retention.prune(only, store), store)
    assert reasons["9"] == "it is among the newest 1"
    assert {reasons[f"runs/{runs.name}/{name}"] for name in names.values()} == {
        "the release file asks for its model",
        "a release that stays was made of it",
    }
    newer = (datetime.now(UTC) + timedelta(days=1)).isoformat()
    write_signed(store, "10", key_pair(tmp_path, "key")[0], created=newer)
    done = accel("release", "prune", write_only_b(file), "--store", store, "--json")
    assert done.returncode == 0, done.stderr
    gone = {row["what"]: row["bytes"] > 0 for row in json.loads(done.stdout)["found"] if row["removed"]}
    assert gone == {"9": True, f"runs/{runs.name}/{names['a']}": True}
    assert {p.name for p in runs.iterdir()} >= {names["b"], "b.json"}
    assert not {p.name for p in runs.iterdir()} & {names["a"], "a.json", "a.job.json"}
    steps = {s.model: s for s in planning.steps(both, store, hardware.detect()) if s.pool == "here"}
    assert (steps["a"].reason, steps["b"].doing) == ("never built here", "reuse")


def write_only_b(file):
    data = release_file.read_yaml(file, "release file")
    file.write_text(json.dumps({**data, "models": {"b": data["models"]["b"]}}))
    return file
