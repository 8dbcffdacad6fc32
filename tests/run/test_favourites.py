"""What a quick run tries first: what was fastest in earlier runs on such hardware and models, said with its source."""

import json

import pytest

from accel.core.values import to_json
from accel.run import favourites
from accel.run.job import Job

TARGETS = {"torch", "ort", "ort-int8", "openvino", "openvino-int8", "aoti"}


def choose(runs, family="transformer", hardware="intel-xeon-2cpu", candidates=TARGETS):
    return favourites.choose(
        candidates, hardware=hardware, family=family, device="cpu", runs=runs, this=runs / "this-one"
    )


def kept_run(folder, ms, *, hardware="machine", family="vision"):
    """Write a run directory as far as it matters here."""
    variants = [
        {
            "id": f"{name}@cpu",
            "target": name,
            "device": "cpu",
            "status": "ok",
            "measurements": [
                {"scenario": "latency", "via": "inprocess", "batch": 1, "p50_ms": p50, "mean_ms": p50, "samples": 60}
            ],
        }
        for name, p50 in ms.items()
    ]
    folder.mkdir(parents=True)
    run = {"schema": 1, "model": {"family": family}, "hardware": {"id": hardware}, "variants": variants}
    (folder / "run.json").write_text(json.dumps(run))


def test_what_is_shipped_is_what_the_zoo_showed(tmp_path):
    found = choose(tmp_path)
    assert set(found.targets) == {"openvino", "openvino-int8"}
    assert "of 7 earlier runs of this kind on intel-xeon-2cpu (0 beside this run, 7 shipped" in found.why
    assert "on other hardware" in choose(tmp_path, hardware="an-abacus").why


def test_runs_beside_this_one_on_the_same_machine_come_before_what_is_shipped(tmp_path):
    kept_run(tmp_path / "one", {"torch": 9.0, "aoti": 1.0, "ort": 3.0})
    kept_run(tmp_path / "two", {"torch": 9.0, "aoti": 5.0, "ort-int8": 1.0})
    kept_run(tmp_path / "this-one", {"torch": 0.1})
    kept_run(tmp_path / "elsewhere", {"torch": 0.1}, hardware="another")
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "run.json").write_text("{")
    found = choose(tmp_path, family="vision", hardware="machine")
    assert set(found.targets) == {"aoti", "ort-int8"}
    assert "in 2 of 2 earlier runs of this kind on machine (2 beside this run, 0 shipped" in found.why


def test_targets_complement_each_other_rather_than_win_alike(tmp_path):
    for name in ("a", "b", "c"):
        kept_run(tmp_path / name, {"openvino": 1.0, "openvino-int8": 1.01, "ort": 3.0})
    kept_run(tmp_path / "d", {"openvino": 9.0, "openvino-int8": 9.1, "ort": 1.0})
    assert set(choose(tmp_path, family="vision", hardware="machine").targets) == {"openvino", "ort"}


def test_what_no_run_knows_is_not_tried_first(tmp_path):
    assert choose(tmp_path, family="other", candidates={"null", "ort", "openvino"}).targets == ("ort", "openvino")


def test_nothing_known_of_the_candidates_is_said_as_nothing(tmp_path):
    assert choose(tmp_path, candidates={"null"}) is None


def test_shipped_records_are_read_as_they_are_written():
    text = json.loads(favourites.SHIPPED.read_text())
    assert to_json(favourites._shipped()) == text


@pytest.mark.parametrize(
    ("given", "objectives"), [({}, ("latency",)), ({"objective": ["throughput"]}, ("throughput",))]
)
def test_a_quick_job_asks_for_latency_unless_told_otherwise(given, objectives):
    job = Job.model_validate({"source": "minilm", "targets": "cpu", "quick": True} | given)
    assert job.objectives == objectives
    assert Job(source="minilm", targets="cpu").objectives == ("latency", "throughput")
