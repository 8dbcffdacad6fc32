"""What makes a run short takes nothing away: work side by side, builds that cannot win, a first verdict."""

import dataclasses
import threading
import time

import pytest
from tiny_run import convert

from accel import pipeline
from accel.bench import machine_noise
from accel.builders import targets
from accel.core import document
from accel.core.progress import Progress
from accel.graph import arithmetic
from accel.run import bound, decide
from accel.run.job import Job
from accel.run.stages import Stages

TARGETS = "openvino-fp32,ort"


@pytest.fixture(scope="module")
def out(tmp_path_factory):
    return tmp_path_factory.mktemp("fast") / "tiny"


@pytest.fixture
def ort_comes_last(monkeypatch):
    """Let ``ort`` be what takes long to build, as if a group had asked for it."""
    known = targets.discover()["ort"].targets
    monkeypatch.setitem(known, "ort", dataclasses.replace(known["ort"], comes_last=("cpu",)))
    monkeypatch.setattr(Job, "grouped", property(lambda job: frozenset({"ort"})))


def rows(run):
    return {v["id"]: v for v in run["variants"]}


def test_a_long_reference_has_the_export_beside_it_and_the_noise_is_measured_once(factory, out, monkeypatch):
    monkeypatch.setattr(pipeline, "BESIDE_AFTER_S", 0.0)
    run = convert(factory, out, TARGETS, threads=2, bench="none", gate=["sqnr_db=190"])
    spans = {(span["worker"], span["task"]): span for span in run["timeline"]}
    reference, export = spans["source", "reference"], spans["export", "export"]  # each in a process of its own
    assert spans["export", "check"]["begin_s"] >= reference["end_s"]
    assert all(span["cpu_s"] > 0 for span in (reference, export))
    assert all("in float64" in note for v in run["variants"] for note in v["parity"]["notes"][:1])  # both asked for it
    assert [span["task"] for span in run["timeline"]].count("noise") == 1


def test_threads_are_shared_while_two_are_built_and_the_last_one_has_them_all(factory, tmp_path, monkeypatch):
    both, prove, seen, end = threading.Barrier(2), Stages.prove, [], time.monotonic() + 120

    def watched(stages, built, *given, **named):
        both.wait(120)
        seen.append(stages.threads)
        if built.value.variant.target.name == "ort":
            while stages.threads == 1 and time.monotonic() < end:  # until the other one is done
                time.sleep(0.01)
        seen.append(stages.threads)
        return prove(stages, built, *given, **named)

    monkeypatch.setattr(Stages, "prove", watched)
    convert(factory, tmp_path / "run", TARGETS, threads=2, bench="none")
    assert sorted(seen) == [1, 1, 1, 2]


def test_what_cannot_win_by_its_arithmetic_is_not_built_and_says_so(factory, out, ort_comes_last, monkeypatch):
    monkeypatch.setattr(arithmetic, "FASTER", 1e-9)  # as if the model were a billion times as large
    monkeypatch.setattr(decide, "_disturbed", lambda points: None)  # whatever else this machine does
    run = convert(factory, out, TARGETS)
    row = rows(run)["ort@cpu"]
    assert row["status"] == "skipped"
    assert row["reason"].startswith("not pursued: cannot beat openvino-fp32@cpu: in FP32 the ")
    assert "GFLOP/s" in row["reason"]
    assert "--exhaustive" in row["fix"]
    assert not row["measurements"]
    assert {d["chosen"] for d in run["decisions"]} == {"openvino-fp32@cpu"}


@pytest.mark.parametrize(("faster", "status"), [(1e-9, "skipped"), (1e9, "ok")])
def test_where_the_best_moment_says_nothing_the_leader_and_products_take_turns(
    factory, tmp_path, ort_comes_last, monkeypatch, faster, status
):
    measured = Stages.arithmetic

    def at_best(*given):
        found = measured(*given)
        return dataclasses.replace(found, value=dataclasses.replace(found.value, flops_per_s=1e40))

    monkeypatch.setattr(Stages, "arithmetic", at_best)
    monkeypatch.setattr(bound, "SWING", float("inf"))
    monkeypatch.setattr(arithmetic, "FASTER", faster)
    monkeypatch.setattr(decide, "_disturbed", lambda points: None)
    monkeypatch.setattr(machine_noise, "disturbed", lambda turn, threads: False)
    run = convert(factory, tmp_path / "run", TARGETS)
    row = rows(run)["ort@cpu"]
    assert row["status"] == status
    workers = [span["worker"] for span in run["timeline"] if span["task"] in ("time_round", "flops_per_s")]
    assert workers.count("arithmetic") >= 6
    if status == "skipped":
        assert (
            "GFLOP/s of large products while they take turns with it, and openvino-fp32@cpu takes 0.00" in row["reason"]
        )
        again = convert(factory, tmp_path / "run", TARGETS)  # known, and not timed again
        assert rows(again)["ort@cpu"]["reason"] == row["reason"]
        assert not [span for span in again["timeline"] if span["task"] == "flops_per_s"]


def test_fp32_of_the_runtimes_waits_for_what_comes_last_and_the_same_bound_excludes_it(factory, tmp_path, monkeypatch):
    """One notice and one reason for all; the framework, which is not left out, is the FP32 row."""
    heard = []

    class Heard(Progress):
        def notice(self, text):
            heard.append(text)

    known = targets.discover()["ort"].targets
    monkeypatch.setitem(known, "ort", dataclasses.replace(known["ort"], comes_last=("cpu",)))
    monkeypatch.setattr(Job, "grouped", property(lambda job: frozenset({"ort", "openvino-fp32"})))
    monkeypatch.setattr(arithmetic, "FASTER", 1e-9)
    monkeypatch.setattr(decide, "_disturbed", lambda points: None)
    run = convert(factory, tmp_path / "run", f"torch,{TARGETS}", progress=Heard())
    found = rows(run)
    assert {id: row["status"] for id, row in found.items()} == {
        "torch@cpu": "ok",
        "ort@cpu": "skipped",
        "openvino-fp32@cpu": "skipped",
    }
    assert found["ort@cpu"]["reason"] == found["openvino-fp32@cpu"]["reason"]
    said = [notice for notice in heard if "not pursued" in notice]
    assert len(said) == 1
    assert said[0].partition(": ")[0].split(", ") == ["ort@cpu", "openvino-fp32@cpu"]


def test_a_group_alone_lets_fp32_wait():
    def waiting(**given):
        job = Job.model_validate({"source": "minilm"} | given)
        return {v.id for v in variants(job) if pipeline._waits(v, job)}

    assert {"ort@cpu", "openvino-fp32@cpu", "ort-openvino@cpu"} <= waiting(targets="cpu")
    assert "ort@cpu" not in waiting(targets="cpu,ort")
    assert "openvino-fp32@cpu" not in waiting(targets="cpu", require=["openvino-fp32"])
    assert not waiting(targets="cpu", exhaustive=True)


@pytest.mark.parametrize(
    "more",
    [{}, {"exhaustive": True}, {"require": ["openvino"]}, {"options": {"openvino": {"frontend": "onnx"}}}],
    ids=["", "exhaustive", "required", "options of its own"],
)
def test_what_computes_the_same_is_built_once_where_a_group_asked_for_it(factory, tmp_path, monkeypatch, more):
    monkeypatch.setattr(Job, "grouped", property(lambda job: frozenset({"openvino", "openvino-fp32"})))
    builder = type(targets.discover()["openvino"])
    monkeypatch.setattr(builder, "same_as", lambda self, target: "openvino-fp32" if target.name == "openvino" else None)
    run = convert(factory, tmp_path / "run", "openvino,openvino-fp32", bench="none", **more)
    row = rows(run)["openvino@cpu"]
    assert rows(run)["openvino-fp32@cpu"]["status"] == "ok"
    assert row["status"] == ("ok" if more else "skipped")
    if not more:
        assert row["reason"] == "computes on this machine what openvino-fp32 does"
        assert "--targets openvino " in row["fix"]


def test_what_can_win_is_built_last_and_measured_beside_the_finalists(factory, out, ort_comes_last, monkeypatch):
    monkeypatch.setattr(arithmetic, "FASTER", 1e-9)
    monkeypatch.setattr(decide, "_disturbed", lambda points: "busy")  # figures that exclude nothing
    run = convert(factory, out, TARGETS)
    both = rows(run)
    assert both["ort@cpu"]["status"] == "ok"
    sessions = [{m["session"] for m in both[id]["measurements"]} for id in ("ort@cpu", "openvino-fp32@cpu")]
    assert sessions[0] <= sessions[1]
    points = [(m["scenario"], m["batch"], m["session"]) for m in both["openvino-fp32@cpu"]["measurements"]]
    assert len(points) == len(set(points))


@pytest.mark.parametrize("given", [{"exhaustive": True}, {"require": "ort"}, {"bench": "none"}])
def test_on_request_everything_is_built_at_once(given, ort_comes_last):
    job = Job.model_validate({"source": "minilm", "targets": TARGETS} | given)
    assert not any(pipeline._comes_last(v, job) for v in variants(job))
    assert any(pipeline._comes_last(v, Job(source="minilm", targets=TARGETS)) for v in variants(job))


def test_what_hardly_ever_wins_waits_for_what_comes_last(ort_comes_last, monkeypatch):
    """OpenVINO inside ONNX Runtime, and an FP32 build of one shape that only the zoo asked for; not where it was."""
    job = Job.model_validate({"source": "minilm", "targets": f"{TARGETS},ort-openvino"})
    monkeypatch.setattr(Job, "grouped", property(lambda job: frozenset({"ort-openvino"})))
    waiting = {v.id for v in variants(job) if pipeline._waits(v, job)}
    assert waiting == {"ort-openvino@cpu"}
    [fp32] = [v for v in variants(job) if v.target.name == "openvino-fp32"]
    fixed = dataclasses.replace(fp32, static="1x128")
    assert pipeline._waits(fixed, job)
    for given in ({"exhaustive": True}, {"static": True}, {"require": fixed.id}):
        assert not pipeline._waits(fixed, Job.model_validate({"source": "minilm", "targets": TARGETS} | given)), given
    named = {"source": "minilm", "targets": f"{TARGETS},ort-openvino", "exhaustive": True}
    assert not any(pipeline._waits(v, Job.model_validate(named)) for v in variants(job))


def variants(job):
    return [pipeline.Variant(target, {}) for target in job.wanted]


def test_a_quick_run_tries_what_wins_most_often_and_names_what_is_left(factory, out):
    run = convert(factory, out, f"null,{TARGETS}", quick=True)
    row = rows(run)["null@cpu"]
    assert (row["status"], "left for later" in row["reason"]) == ("skipped", True)
    assert "without --quick" in row["fix"]
    notice = run["model"]["notice"]
    assert "earlier runs" in notice
    assert "left to try without --quick: null@cpu" in notice
    assert [d["objective"] for d in run["decisions"]] == ["latency"]
    assert document.read(out).model.family == "other"
