"""A session of real processes: what is measured, and that one runner's failure is its own."""

import sys
from pathlib import Path

import numpy as np
import pytest

from accel.bench import rounds
from accel.bench.checker import Check
from accel.bench.in_process import MeasurementPlan, ProcessRunner, TimedShape
from accel.bench.race import Contest, Race
from accel.bench.rounds import measure
from accel.core import processes
from accel.core.values import Artifact, Built, Failed, Target, TensorSpec, Variant, file_refs

SPEC = TensorSpec("x", "int64", ("batch", 4))
LATENCY = MeasurementPlan("latency", rounds=3, round_s=0.01, warm_s=0.01)


@pytest.fixture
def session(tmp_path):
    """Measure null variants (id → latency in ms, or the name of an odd file) on one input of shape (1, 4)."""
    processes.start()
    np.savez(tmp_path / "feeds.npz", **{"b1/x": np.zeros((1, 4), np.int64), "bad/x": np.zeros((1, 3), np.int64)})

    def run(plan=LATENCY, points=("b1",), check=None, at_once=1, **files):
        runners = []
        for id, content in files.items():
            folder = tmp_path / id
            folder.mkdir()
            (folder / "null.json").write_text(content)
            built = Built("null.json", (SPEC,), (TensorSpec("y", "float32", ("batch",)),), "none", {}, {})
            artifact = Artifact(Variant(Target("null", "cpu"), {}), file_refs(folder), "0", built, 0.0)
            wanted = tuple(TimedShape(p, 1, {"x": (1, 4)}) for p in ("bad",) * (id == "odd") or points)
            runners.append(
                ProcessRunner(
                    name=id,
                    artifact=artifact,
                    folder=folder,
                    python=Path(sys.executable),
                    log=tmp_path / f"{id}.log",
                    timed_shapes=wanted,
                    precision="fp32",
                    plan=plan,
                    feeds=tmp_path / "feeds.npz",
                    threads=1,
                    timeout_s=60,
                    check=check,
                )
            )
        return measure(
            runners,
            Race([Contest(tuple((r.name, p) for r in runners for p in points), frozenset(files), plan.rounds)]),
            stage="measure",
            opening="loading",
            turn="round",
            raw_dir=tmp_path / "raw",
            raw_name="raw/{}.npz",
            progress=lambda *_: None,
            at_once=at_once,
        )

    return run


def test_what_is_to_be_loaded_anew_goes_on_in_another_process(session, monkeypatch):
    opened, open_one, looked = [], ProcessRunner.open, Contest.after_round

    def watched(runner):
        open_one(runner)
        opened.append((runner.name, runner._worker._group.process.pid))

    def after_round(contest, number, times, disturbed=()):
        looked(contest, number, times, disturbed)
        contest.anew = {"a"} if number == 1 else set()

    monkeypatch.setattr(ProcessRunner, "open", watched)
    monkeypatch.setattr(Contest, "after_round", after_round)
    found = session(a='{"latency_ms": 2}', b='{"latency_ms": 2}')
    assert [name for name, _ in opened] == ["a", "b", "a"]
    assert opened[0][1] != opened[2][1]
    assert {len(point.rounds_ms) for (point,) in found.values()} == {3}


def test_all_that_are_loaded_anew_are_closed_first_and_opened_in_the_reverse_order(session, monkeypatch):
    """One that is opened beside the others would get the memory that it had, and what opens first is slower."""
    did, looked = [], Contest.after_round
    for action in ("open", "close"):
        done = getattr(ProcessRunner, action)

        def watched(runner, action=action, done=done):
            if action == "open" or runner._worker is not None:
                did.append((action, runner.name))
            done(runner)

        monkeypatch.setattr(ProcessRunner, action, watched)

    def after_round(contest, number, times, disturbed=()):
        looked(contest, number, times, disturbed)
        contest.anew = {"a", "b"} if number < 3 else set()

    monkeypatch.setattr(Contest, "after_round", after_round)
    session(a='{"latency_ms": 2}', b='{"latency_ms": 2}', c='{"latency_ms": 2}')
    order = [name for action, name in did if action == "open"]
    assert order == ["a", "b", "c", "b", "a", "a", "b"]
    assert [action for action, _ in did] == ["open"] * 3 + 2 * (["close"] * 2 + ["open"] * 2) + ["close"] * 3


@pytest.mark.parametrize("at_once", [1, 2])
def test_a_failing_runner_leaves_whatever_class_its_error_has(session, at_once):
    """The feed of ``odd`` has another shape: that is bad input, and no reason to lose the others."""
    found = session(at_once=at_once, good='{"latency_ms": 2}', odd='{"latency_ms": 2}', broken="no json")
    assert isinstance(found["odd"], Failed)
    assert "shape" in found["odd"].cause
    assert isinstance(found["broken"], Failed)
    (point,) = found["good"]
    assert point.p50_ms is None or point.p50_ms >= 2
    assert point.mean_ms >= 2
    assert point.effective_precision == "fp32"
    assert len(point.rounds_ms) == 3
    assert not processes._running


@pytest.mark.parametrize("scenario", ["latency", "throughput"])
def test_wrong_answers_while_timed_are_a_failure(session, tmp_path, scenario):
    """The null target answers zeros: it keeps its figures only where zeros are right."""
    plan = MeasurementPlan(scenario, rounds=2, round_s=0.02, warm_s=0.01)
    outputs = (TensorSpec("y", "float32", ("batch",)),)
    for name, value in (("right", 0.0), ("wrong", 1.0)):
        np.savez(tmp_path / f"{name}.npz", **{"b1/y": np.full(1, value, np.float32)})
        found = session(
            plan=plan, check=Check(tmp_path / f"{name}.npz", outputs, {"shape_db": 59.0}), **{name: '{"latency_ms": 1}'}
        )
        if name == "right":
            assert not isinstance(found["right"], Failed)
    assert isinstance(found["wrong"], Failed)
    assert f"timed for {scenario}, it answers otherwise than when it was proved: shape_db" in found["wrong"].cause


@pytest.mark.parametrize("at_once", [1, 2])
@pytest.mark.parametrize("reserve", [0.0, 2.0])
def test_resident_or_opened_anew_the_figures_are_of_the_same_kind(session, monkeypatch, reserve, at_once):
    monkeypatch.setattr(rounds, "MEMORY_RESERVE", reserve)
    plan = MeasurementPlan("throughput", rounds=2, round_s=0.05, warm_s=0.01, least=1)
    found = session(plan=plan, at_once=at_once, a='{"latency_ms": 2}', b='{"latency_ms": 8}')
    (a,), (b,) = found["a"], found["b"]
    assert a.session == b.session
    assert a.throughput_per_s > b.throughput_per_s
    assert b.concurrency == 2
    assert b.p50_ms is None or b.p50_ms >= 8
    assert len(a.rounds_ms) == len(b.rounds_ms) == 2
    assert not processes._running
