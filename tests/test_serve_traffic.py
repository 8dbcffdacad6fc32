"""What benchmarks/serve_traffic.py sweeps, and which configurations it takes from that into its rounds."""

import importlib
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[1] / "benchmarks"))
    return importlib.import_module("serve_traffic")


def test_the_sweep_has_every_combination_that_the_cores_can_bear(script):
    found = script.sweep_settings(2, 16)
    every = {(s.instances, s.threads, s.preferred[0] if s.batching else 1) for s in found}
    assert every == {(i, t, b) for i in (1, 2) for t in (1, 2) for b in (1, 8, 16)}
    assert len(found) == len({str(s) for s in found}) == 12
    assert {(s.instances, s.threads) for s in script.sweep_settings(6, 4)} >= {(1, 6), (6, 1), (6, 2), (2, 6), (4, 2)}
    assert max(s.instances * s.threads for s in script.sweep_settings(6, 4)) == 12
    assert {s.preferred for s in script.sweep_settings(1, 4)} == {(), (4,)}


def test_the_best_at_each_load_go_on(script):
    per_s = {"a": (10, 99), "b": (30, 40), "c": (20, 50), "d": (5, 5)}
    swept = {name: {16: {"per_s": few}, 64: {"per_s": many}} for name, (few, many) in per_s.items()}
    assert script.finalists(swept) == ["a", "b", "c"]
