"""What a report shows of a run: speed-ups, order, marks and reasons; and the formats of its numbers."""

import copy
import math
import random
from typing import Any

import pytest
import report_runs
from hypothesis import given, settings, strategies as st
from report_runs import run_view

from accel.report import formats
from accel.report.view import RunView, VariantView


def row(view: RunView, identity: str) -> VariantView:
    return next(v for v in view.variants if v.id == identity)


def test_speedup_is_the_median_ratio_of_paired_rounds() -> None:
    run = report_runs.bert()
    del run["decisions"][0]["speedup"], run["decisions"][0]["speedup_ci"]
    rounds = {v["id"]: v["measurements"][0]["rounds_ms"] for v in run["variants"] if v["measurements"]}
    rounds["openvino@cpu"][3] *= 50  # one round hit by something else
    found = row(run_view(run), "openvino@cpu").latency_speedup
    assert found == pytest.approx(222 / 63, rel=1e-6)


def test_the_decision_has_the_last_word_on_its_choice() -> None:
    chosen = row(run_view(report_runs.bert()), "openvino-int8@cpu")
    assert (chosen.speedup, chosen.speedup_ci) == (6.36, (6.36 * 0.992, 6.36 * 1.009))
    assert chosen.throughput_speedup == 5.46
    assert chosen.wins == ("latency", "throughput")
    assert chosen.mark == "chosen"


def test_no_speedup_across_sessions() -> None:
    run = report_runs.bert()
    for point in next(v for v in run["variants"] if v["id"] == "ort@cpu")["measurements"]:
        point["session"] = "another day"
    ort = row(run_view(run), "ort@cpu")
    assert (ort.latency_speedup, ort.throughput_speedup) == (None, None)
    assert ort.latency is not None


def test_of_two_sessions_the_newest_counts() -> None:
    run = report_runs.bert()
    for identity, factor in (("torch@cpu", 2.0), ("ort@cpu", 1.0)):
        points = next(v for v in run["variants"] if v["id"] == identity)["measurements"]
        later = copy.deepcopy(points[0])
        later |= {"session": "s9", "p50_ms": later["p50_ms"] * factor}
        later["rounds_ms"] = [r * factor for r in later["rounds_ms"]]
        points.append(later)
    assert row(run_view(run), "ort@cpu").latency_speedup == pytest.approx(2 * 222 / 137, rel=1e-6)
    assert row(run_view(run), "openvino@cpu").latency_speedup == pytest.approx(222 / 63, rel=1e-6)


def test_order_does_not_depend_on_the_file() -> None:
    run = report_runs.bert()
    ids = [v.id for v in run_view(run).variants]
    random.Random(3).shuffle(run["variants"])
    shuffled = [v.id for v in run_view(run).variants]
    # Equal speeds and unmeasured variants keep the order of the file.
    assert shuffled[0] == ids[0] == "openvino-int8@cpu"
    assert sorted(shuffled[:11]) == sorted(ids[:11])
    speeds = [v.speedup for v in run_view(run).variants if v.status == "ok"]
    assert speeds == sorted(speeds, key=lambda s: -(s or 0.0))


def test_marks_and_reasons() -> None:
    view = run_view(report_runs.bert())
    assert row(view, "torch@cpu").mark == "baseline"
    assert row(view, "ort@cpu").note == "takes 3.93× [3.89, 3.96] the time of openvino-int8@cpu"
    assert row(view, "ort-int8-dynamic@cpu").note == "last_hidden_state: SQNR 9.6 dB is below the gate of 20.0 dB"
    assert row(view, "trt-fp16@cuda").note == report_runs.REASON_GPU
    assert row(view, "null@cpu").speedup is None
    both = run_view(report_runs.minilm())
    assert row(both, "openvino-int8@cpu").mark == "ties"
    assert row(both, "openvino-int8@cpu").note == "ties with openvino-bf16@cpu"
    assert [device for device, _ in both.by_device] == ["cpu", "cuda"]
    assert row(both, "trt-fp16@cuda").speedup == 5.83
    assert row(both, "openvino-int8@cpu").accuracy == "0.9970"


def test_objectives_that_choose_differently() -> None:
    run = report_runs.bert()
    run["decisions"][1] |= {"chosen": "ort-int8@cpu"}
    run["decisions"][1]["rejected"].append({"id": "openvino-int8@cpu", "reason": "takes 1.2× the time of ort-int8@cpu"})
    view = run_view(run)
    assert row(view, "openvino-int8@cpu").mark == "best latency"
    assert row(view, "openvino-int8@cpu").note == "throughput: takes 1.2× the time of ort-int8@cpu"
    assert row(view, "ort-int8@cpu").mark == "best throughput"


def test_both_decisions_show_the_points_they_were_made_at() -> None:
    run = report_runs.bert()
    chosen = next(v for v in run["variants"] if v["id"] == "openvino-int8@cpu")
    point = next(m for m in chosen["measurements"] if m["scenario"] == "throughput")
    faster = point | {"batch": point["batch"] * 2, "throughput_per_s": point["throughput_per_s"] * 1.001}
    chosen["measurements"].append(faster)
    run["decisions"][1] |= {"batch": point["batch"], "concurrency": point["concurrency"]}
    view = run_view(run)
    shown = [row(view, "openvino-int8@cpu").best, *(decision.best for decision in view.decisions)]
    assert [found.batch if found else None for found in shown] == [point["batch"]] * 3


def test_a_decision_on_another_repository_hides_no_point_of_this_one() -> None:
    run = report_runs.served()
    latency = run["decisions"][-1]
    other = {"objective": "throughput", "repository": f"repositories/{latency['chosen']}", "batch": 1, "concurrency": 7}
    run["decisions"].append(latency | other)
    best = run_view(run).decisions[-2].best
    assert best is not None
    assert (best.scenario, best.repository) == ("throughput", latency["repository"])


def test_rejected_may_be_pairs() -> None:
    run = report_runs.bert()
    run["decisions"][0]["rejected"] = [["ort@cpu", "a pair"]]
    assert row(run_view(run), "ort@cpu").note == "a pair"


def test_the_least_run() -> None:
    view = run_view(report_runs.bare())
    assert (view.name, view.proved, view.decisions, view.hardware_id) == ("model", False, (), "unknown hardware")
    assert row(view, "ort@cpu").reason == "build: no memory"


def _without_one_leaf(data: Any, chooser: random.Random) -> None:
    """Remove or spoil one value somewhere inside."""
    keys = [k for k in (data if isinstance(data, dict) else range(len(data))) if k not in ("schema",)]
    if not keys:
        return
    key = chooser.choice(list(keys))
    if isinstance(data[key], dict | list) and data[key] and chooser.random() < 0.8:
        _without_one_leaf(data[key], chooser)
    else:
        data[key] = chooser.choice([None, "x", -1, 0, [], {}, [None], {"a": []}, math.nan, True, -2.5, 10**400, 1e300])


@settings(deadline=None, max_examples=60)
@given(st.integers(0, 2**32))
def test_spoiled_runs_still_make_a_report(seed: int) -> None:
    from accel.report.layout import run_markdown, run_page

    chooser = random.Random(seed)
    run = report_runs.minilm()
    for _ in range(6):
        _without_one_leaf(run, chooser)
    view = run_view(run)
    assert run_page(view).endswith("</html>")
    assert run_markdown(view)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, "—"), (0, "0"), (0.05, "0.0500"), (0.6094, "0.609"), (3.456, "3.46"), (34.94, "34.9"),
        (222.4, "222"), (31200.0, "31,200"), (-3.456, "-3.46"), (9.996, "10.0"), (99.96, "100"), (0.9996, "1.00"),
    ],
)  # fmt: skip
def test_three_figures(value: float | None, expected: str) -> None:
    assert formats.figures(value) == expected


@settings(deadline=None)
@given(st.floats(1e-4, 1e7))
def test_figures_keep_the_value(value: float) -> None:
    text = formats.figures(value)
    assert float(text.replace(",", "")) == pytest.approx(value, rel=0.006)
    assert "e" not in text


@pytest.mark.parametrize(
    ("value", "expected"),
    [(None, "—"), (0, "0 B"), (999, "999 B"), (1234, "1.21 KiB"), (438_012_345, "418 MiB"), (5 * 2**30, "5.00 GiB")],
)
def test_sizes(value: float | None, expected: str) -> None:
    assert formats.size(value) == expected


def test_other_formats() -> None:
    assert formats.decibels(-0.01) == "0.0 dB"
    assert formats.metric("rank_correlation", 1.0) == "1.0000"
    assert formats.metric("sqnr_db", 32.06) == "32.1 dB"
    assert formats.seconds(185.2) == "3 min 05 s"
    assert formats.seconds(12.44) == "12.4 s"
    assert [formats.error(v) for v in (0.0, 2e-5, 0.1, 29.4)] == ["0", "2.0e-05", "0.10", "29"]
    assert formats.between(None) == ""
    assert formats.moment("2026-11-20T13:50:07.123Z") == "2026-11-20 13:50 UTC"
    assert formats.moment("yesterday") == "yesterday"
