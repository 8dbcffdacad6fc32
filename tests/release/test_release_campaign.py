"""The fast parts of benchmarks/release_campaign.py and release_fleet.py: two kills, and tasks of recorded length."""

import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


def test_a_release_after_a_kill_is_as_the_undisturbed_one(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import release_campaign

    found = release_campaign.kills(1, tmp_path, models=1, targets=("ort",))
    *_, run = found["runs"]  # one that ended before its kill is not a run with a kill
    assert found["kills"] == 1, found
    assert run["same"], run
    assert (run["not_whole"], run["alive"], run["half"]) == ([], [], [])
    assert run["looks"] > 10
    assert run["states"] == {"m0 here": "ready", "m0 h100": "kits"}
    del sys.modules["release_campaign"]


@pytest.mark.parametrize("kind", ["file", pytest.param("s3", marks=pytest.mark.campaign)])
def test_a_reader_of_the_pointer_sees_whole_releases_while_who_publishes_is_killed(
    tmp_path, monkeypatch, request, kind
):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import release_campaign

    from accel.release.object_store import ObjectStore

    url = f"file://{tmp_path}/place"
    if kind == "s3":
        request.getfixturevalue("s3")
        ObjectStore("s3://publishes").files.mkdir("publishes")
        url = "s3://publishes/prefix"
    found = release_campaign.publishes(1, tmp_path, url, files=3)
    assert found["what"] == []
    assert (found["kills"], found["newest_seen"]) == (1, found["releases"])
    assert found["looks"] > 2
    del sys.modules["release_campaign"]


@pytest.mark.campaign
def test_more_tasks_than_are_handed_out_at_once_are_done_and_then_given_to_nobody(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import release_fleet

    phase_s = {"prepare": [4.0, 6.0], "measure": [1.0]}
    found = release_fleet.tasks(80, phase_s, tmp_path, pools=2, each=1, cpus=2, scale=0.1)
    assert (found["build"]["ended"], found["build"]["records"]) == (80, 40)
    assert found["build"]["busy"] > 0.5
    assert (found["again"]["ended"], found["again"]["records"]) == (1, 40)  # told once that all are done
    del sys.modules["release_fleet"], sys.modules["release_campaign"]
