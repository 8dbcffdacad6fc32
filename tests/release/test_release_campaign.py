"""The fast part of benchmarks/release_campaign.py: one kill, after which the release is as the undisturbed one."""

import sys
from pathlib import Path

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


def test_a_release_after_a_kill_is_as_the_undisturbed_one(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import release_campaign

    found = release_campaign.kills(1, tmp_path, models=1, targets=("ort",))
    *_, run = found["runs"]  # one that ended before its kill is no run with a kill
    assert found["kills"] == 1, found
    assert run["same"], run
    assert (run["not_whole"], run["alive"], run["half"]) == ([], [], [])
    assert run["looks"] > 10
    assert run["states"] == {"m0 here": "ready", "m0 h100": "kits"}
    del sys.modules["release_campaign"]
