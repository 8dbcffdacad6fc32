"""A conversion that measures what a real Triton server answers."""

import json

import numpy as np
import psutil
import pytest
from tiny_run import convert

from accel.core.errors import UsageError
from accel.core.progress import Progress
from accel.run import serving
from accel.triton import settings
from accel.triton.reading import read_configs


@pytest.fixture(scope="module")
def short():
    with pytest.MonkeyPatch.context() as patch:
        for name, value in (("ROUNDS", 2), ("ROUND_S", 0.2), ("WARM_S", 0.1)):
            patch.setattr(serving, name, value)
        yield


@pytest.fixture(scope="module")
def served(factory, tmp_path_factory, short):
    out = tmp_path_factory.mktemp("served") / "tiny"
    return convert(factory, out, "torch,openvino", bench="both", via="embedded"), out


def points(document, name):
    every = [m for v in document["variants"] for m in v["measurements"] if m["via"] == "triton"]
    return {m["concurrency"]: m for m in every if m["repository"] == f"repositories/{name}"}


def test_every_repository_is_measured_behind_a_server(served):
    document, out = served
    assert document["served"] == {"via": "embedded", "release": "24.10"}
    for name in ("torch@cpu", "openvino@cpu.python"):
        found = points(document, name)
        assert sorted(found) == [1, 4, 16]
        for concurrency, m in found.items():
            assert m["scenario"] == ("latency" if concurrency == 1 else "throughput")
            assert (m["backend"], m["failures"], m["error"]) == ("python", 0, None)
            assert m["peak_rss_mib"] > 10
            with np.load(out / m["raw"]) as raw:
                windows = [raw[k] for k in raw.files if k.startswith(f"{concurrency}/")]
            assert sum(map(len, windows)) == m["samples"] > 0
            # Answers on their way while a window's first mark is read: the server's before it, the client's after it.
            assert m["server"]["requests"] >= m["samples"] - concurrency * len(windows)
        many = found[16]["server"]
        merges = settings.read(read_configs(out / "repositories" / name)["tiny"]).preferred != (1,)
        if merges:
            assert many["executions"] < many["requests"], "nothing was batched"
        for alone in [found[1], *([] if merges else [found[16]])]:
            counts = alone["server"]
            assert abs(counts["executions"] - counts["requests"]) <= 4  # a call may end between the two reads of a mark


def test_a_backend_that_the_server_lacks_is_named(served):
    document, _ = served
    variant = next(v for v in document["variants"] if v["id"] == "openvino@cpu")
    assert variant["twin"] == "repositories/openvino@cpu.python"
    assert "no such backend" in variant["unserved"]["openvino@cpu"]
    assert points(document, "openvino@cpu") == {}


def test_one_decision_for_each_way_of_measuring(served):
    document, out = served
    found = [(d["via"], d["objective"]) for d in document["decisions"]]
    assert found == [(via, o) for via in ("inprocess", "triton") for o in ("latency", "throughput")]
    ids = {v["id"] for v in document["variants"]}
    for decision in document["decisions"]:
        assert decision["chosen"] in ids
        assert (out / decision["repository"] / "manifest.json").is_file()
    last = document["decisions"][-2]
    best, chosen = out / "best" / "cpu", out / last["repository"]
    assert (best / "manifest.json").read_bytes() == (chosen / "manifest.json").read_bytes()
    assert "As served" in (out / "report.html").read_text()


def test_again_serves_nothing_anew(served, factory):
    document, out = served
    logs = {f.name: f.stat().st_mtime_ns for f in (out / "logs").glob("*.server.log")}
    assert logs
    again = convert(factory, out, "torch,openvino", bench="both", via="embedded")
    assert {f.name: f.stat().st_mtime_ns for f in (out / "logs").glob("*.server.log")} == logs
    assert json.dumps(again["decisions"]) == json.dumps(document["decisions"])


@pytest.mark.campaign
def test_the_server_alone_can_decide(served, factory):
    document, out = served
    only = convert(factory, out, "torch,openvino", bench="triton", via="embedded")
    assert [d["via"] for d in only["decisions"]] == ["triton", "triton"]
    # Its figures are its own: what in-process timing says of merging requests is in the repositories of the first run.
    before = [d for d in document["decisions"] if d["via"] == "triton"]
    assert [(d["device"], d["objective"], d["baseline"]) for d in only["decisions"]] == [
        (d["device"], d["objective"], d["baseline"]) for d in before
    ]
    assert {d["chosen"] for d in only["decisions"]} <= {"torch@cpu", "openvino@cpu"}
    assert all("passes its gate" in d["reason"] or "nothing" in d["reason"] for d in only["decisions"])
    assert all(m["via"] == "triton" for v in only["variants"] for m in v["measurements"])
    assert "as served by Triton" in (out / "report.md").read_text()


@pytest.mark.campaign
def test_a_server_that_was_killed_is_measured_by_the_next_run(factory, tmp_path, short):
    others = psutil.Process().children(recursive=True)

    class Deadly(Progress):
        killed = ""

        def variant(self, id, doing):
            if doing == "served, round 2":
                new = {*psutil.Process().children(recursive=True)}.difference(others)
                next(p for p in new if p.name() == "tritonserver").kill()
                self.killed = id

    deadly = Deadly()
    document = convert(factory, tmp_path / "out", "torch", progress=deadly, bench="triton", via="embedded")
    assert deadly.killed == "torch@cpu"
    (variant,) = document["variants"]
    assert (variant["status"], variant["died"]) == ("ok", True)
    assert "the server was ended by SIGKILL" in variant["unserved"]["torch@cpu"]
    (variant,) = convert(factory, tmp_path / "out", "torch", bench="triton", via="embedded")["variants"]
    assert (variant["unserved"], variant["died"]) == ({}, False)
    assert sorted(points({"variants": [variant]}, "torch@cpu")) == [1, 4, 16]


def test_an_unknown_way_of_measuring_is_refused(factory, tmp_path):
    with pytest.raises(UsageError, match="triton"):
        convert(factory, tmp_path, "torch", bench="tritn")
