"""Errors planted around a sound session: the fast part of ``benchmarks/planted.py``, on its encoder."""

import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest

from accel import exporters
from accel.core.accuracy import parity
from accel.core.feeds import read_feeds
from accel.exporters import coverage
from accel.run import tasks

SCRIPT = Path(__file__).parents[3] / "benchmarks" / "planted.py"


@pytest.fixture(scope="module")
def planted(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Any]:
    spec = importlib.util.spec_from_file_location("planted", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules["planted"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tasks, "COVERAGE_S", 600.0)  # also on a busy machine
        return module, module.bench("encoder", tmp_path_factory.mktemp("planted"), 1, export=False)


def test_what_differs_anywhere_in_the_contract_fails(planted):
    """Zeros at batches and sizes between the timed ones, wrong ids, masks from the left: all passed at 118 dB."""
    module, bench = planted
    run = module.remembered(exporters.load(bench.described.source).run)
    campaign = module.Campaign(print)
    campaign.add(bench, "torch", "sound", "as it is", run, None)
    for name, change in module.around(bench).items():
        campaign.add(bench, "torch", "around", name, change(run), None)
    found = campaign.summary()
    assert found["planted"] >= 40
    assert found["got_through"] == []
    assert found["false_alarms"] == []
    assert found["refused"] == found["planted"]


def test_what_samples_hold_alone_lets_much_of_it_through(planted):
    """The same errors without coverage feeds: the measure of what these are for."""
    module, bench = planted
    run = exporters.load(bench.described.source).run
    names = ("zeros at batch 5", "zeros for left padding", "types: ignored", "ids: top 2 % wrong", "zeros for holes")
    source = bench.described.source
    gate = parity.gate_for("fp32", outputs=source.outputs, task=None, overrides={})
    for name in names:
        wrong = module.around(bench)[name](run)
        answers = {n: wrong(f) for n, f in bench.feeds.items() if not parity.is_coverage(n)}
        told = module.verdict.compare(source, bench.feeds, bench.truth, answers, gate)
        assert told.passed, name


def test_a_proof_says_what_it_covered(planted, tmp_path):
    _, bench = planted
    model = exporters.load(bench.described.source)
    module = planted[0]
    module.write_feeds(tmp_path / "answers.npz", {n: model.run(f) for n, f in bench.feeds.items()})
    samples, reference = bench.folder / "samples", bench.folder / "reference.npz"
    gate = parity.gate_for("fp32", outputs=bench.described.source.outputs, task=None, overrides={})
    verdict = tasks.compare(bench.described, samples, reference, tmp_path / "answers.npz", gate)
    (said,) = verdict.notes
    assert f"compared on {len(bench.feeds)} feeds of 1 to 16 items" in said
    assert "1,000 of 1,000 ids; 2 of 2 types" in said
    assert "masks full, holed, left-padded, single" in said


@pytest.mark.parametrize(
    ("missed", "least", "shapes"),
    [
        (("b1",), 20.0, {"min", "odd", "opt", "b1"}),  # 80 dB and more above the gate: another shape changes nothing
        (("b1",), 120.0, {"min", "odd", "opt", "max", "b1"}),
        (("max",), 20.0, {"min", "odd", "opt", "max"}),
    ],
)
def test_the_sources_own_noise_is_measured_in_float64(planted, missed, least, shapes):
    """The largest shape costs more than all samples: it is asked where it was missed, or where noise is near a gate."""
    _, bench = planted
    found = tasks.noise(bench.described, bench.folder / "samples", bench.folder / "reference.npz", missed, least)
    assert found.how == "in float64"
    by_name = {row.name: row for row in found.outputs}
    assert 100 < by_name["hidden"].sqnr_db < 160
    assert set(by_name["hidden"].by_shape_db) == shapes


@pytest.mark.parametrize("short_of", ["time", "memory"])
def test_every_batch_is_answered_however_much_the_source_takes(planted, tmp_path, monkeypatch, short_of):
    """Values and masks are left out, and said, where there is no time or memory; what is timed or served never is."""
    _, bench = planted
    if short_of == "time":
        monkeypatch.setattr(tasks, "COVERAGE_S", 0.0)
        monkeypatch.setattr(tasks.time, "monotonic", lambda: 1e3)  # a clock by which samples take no time
    else:
        monkeypatch.setattr(tasks, "COVERAGE_BYTES", 0)
    tasks.reference(bench.described, bench.folder / "samples", tmp_path / "reference.npz")
    names = set(read_feeds(tmp_path / "reference.npz"))
    assert {f"b{n}" for n in (1, 2, 4, 8, 16)} <= names
    assert "left-padded mask" not in names


def test_a_first_proof_sees_most_of_it_and_alarms_at_nothing_sound(planted):
    """What it misses, the whole proof of what is chosen refuses (the first test)."""
    module, bench = planted
    run = module.remembered(exporters.load(bench.described.source).run)
    feeds = coverage.first(bench.feeds, "fp32")
    gate = parity.gate_for("fp32", outputs=bench.described.source.outputs, task=None, overrides={})

    def passes(answer):
        found = {name: answer(feed) for name, feed in feeds.items()}
        verdict = module.verdict.compare(bench.described.source, bench.feeds, bench.truth, found, gate)
        return verdict.passed and parity.settled(verdict)

    assert passes(run)
    changes = module.around(bench)
    missed = [name for name, change in changes.items() if passes(change(run))]
    assert len(missed) < 0.25 * len(changes), missed
    places = ("zeros at batch", "zeros at seq", "ids: one value")  # one of many of their kind
    assert all(name.startswith(places) for name in missed), missed
