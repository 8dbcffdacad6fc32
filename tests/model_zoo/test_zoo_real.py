"""Models with real weights and ground truth: each does its task, and INT8 calibrated on one sample fails its gate."""

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import model_zoo
from accel.core import environments
from accel.core.errors import UnavailableError
from accel.exporters import describe
from accel.exporters.sources import recognise

LEAST = {
    "pp-ocr-rec": 0.9,
    "pp-ocr-det": 0.7,
    "magika": 0.95,
    "crepe-tiny": 0.98,
    "crepe-full": 0.98,
    "basic-pitch": 0.9,
    "basic-pitch-tf": 0.9,
    "silero-vad": 0.8,
    "resemblyzer": 0.8,
}
"""What each scores at least on what was made by rule."""
LONG = ("pp-ocr-rec", "pp-ocr-det", "crepe-full", "basic-pitch", "basic-pitch-tf", "resemblyzer")
RECURRENT = "resemblyzer"
"""LSTMs and one small product: OpenVINO has no INT8 of it."""
EACH = [pytest.param(name, marks=pytest.mark.campaign) if name in LONG else name for name in LEAST]


@pytest.fixture
def judged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Any]:
    """Return what makes a model ready to be judged, as benchmarks/real_weights.py does."""
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks"))
    return lambda name: importlib.import_module("real_weights").Judged(name, tmp_path)


@pytest.mark.parametrize("name", EACH)
def test_int8_calibrated_on_one_sample_fails_and_the_model_itself_does_its_task(
    name: str, judged: Callable[[str], Any]
) -> None:
    if not environments.installed(environments.WEIGHTS):
        pytest.skip(f"no trained weights here: {environments.fix(environments.WEIGHTS)}")
    model = judged(name)
    [(score, own)] = model.own.scores.values()
    assert score == own >= LEAST[name]
    assert model.own.passed
    if name == RECURRENT:
        with pytest.raises(UnavailableError, match="recurrent layers stay float"):
            model.int8()
    else:
        assert not (found := model.int8()).passed, found.found


@pytest.mark.campaign  # tests/pipeline/test_minilm_int8.py holds the sound one in every run
def test_int8_of_real_minilm_holds_its_gate_and_one_calibrated_on_a_sentence_does_not(
    judged: Callable[[str], Any],
) -> None:
    if (entry := model_zoo.entry("minilm")).weights() is None:
        pytest.skip(f"the weights of {entry.hub} are not here")
    model = judged("minilm")
    held = model.int8(2)
    assert held.passed, held.reasons
    assert held.gate["rank_correlation"] == 0.98
    assert held.found["rank_correlation"] < 1
    assert not (found := model.int8()).passed, found.found


@pytest.mark.parametrize("name", ["magika", "basic-pitch-tf"])
def test_without_the_weights_an_entry_that_is_a_file_says_how_to_get_them(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ACCEL_HOME", str(tmp_path))
    with pytest.raises(UnavailableError, match=f"the weights of {name} are not installed") as raised:
        describe(recognise(name))
    assert raised.value.fix == "accel env install weights"
    assert describe(recognise("crepe-tiny")).weights == "random(seed=0)"


def test_silero_vad_declares_its_state_itself() -> None:
    if not environments.installed(environments.WEIGHTS):
        pytest.skip(f"no trained weights here: {environments.fix(environments.WEIGHTS)}")
    source = describe(recognise("silero-vad"))
    assert source.states == {"state": "stateN"}
    assert source.notice == "stateful: stateN is the next step's state"
    assert [s.name for s in source.client_inputs] == ["input", "sr"]


def test_files_made_by_rule_are_distinct_and_the_same_each_time() -> None:
    first, again = (model_zoo.entry("magika").samples(56) for _ in range(2))
    assert len({item["bytes"].tobytes() for item in first}) == 56
    assert all(a["bytes"].tobytes() == b["bytes"].tobytes() for a, b in zip(first, again, strict=True))
