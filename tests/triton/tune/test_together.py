"""Models that share a server: their queues on shared cores, and a real server on two of them."""

import json
import os
import subprocess
import time
from dataclasses import replace

import null_repository
import numpy as np
import pytest
from test_tuning import Told, asked, quick  # noqa: F401  the fixture
from typer.testing import CliRunner

from accel.bench import goodput
from accel.bench.goodput import Probe, combined
from accel.cli import app, tuning
from accel.core.errors import CheckFailed, UsageError
from accel.triton.servers.asking import metadata
from accel.triton.servers.processes import choose_ports
from accel.triton.settings import Settings
from accel.triton.tune import predict, proof, together
from accel.triton.tune.scheduler import Requests, SimulatedServer, poisson, simulate, simulate_together
from accel.triton.verify import verify

ALONE = Settings(batching=False)


def lane(rate, seconds=0.010, requests=20_000, **more):
    server = SimulatedServer(ALONE, 8, lambda items, count, kind: [seconds], **more)
    return server, Requests(poisson(rate, requests))


def test_models_on_cores_enough_do_as_they_would_alone():
    both = simulate_together([lane(50), lane(20, 0.020)], cores=2)
    for number, (found, (server, sent)) in enumerate(zip(both, (lane(50), lane(20, 0.020)), strict=True)):
        alone = simulate(server, sent.due_s, seed=number)
        np.testing.assert_allclose(found.latency_s, alone.latency_s)


def test_models_that_want_more_threads_than_there_are_cores_slow_each_other_down():
    light = simulate_together([lane(20), lane(20)], cores=1)
    heavy = simulate_together([lane(45), lane(45)], cores=1)
    over = simulate_together([lane(60, requests=5000), lane(60, requests=5000)], cores=1)
    alone = simulate(*lane(45)[:1], lane(45)[1].due_s)
    assert light[0].latency_s.mean() < heavy[0].latency_s.mean()
    assert heavy[0].latency_s.mean() > 2 * alone.latency_s.mean()  # M/D/1 at 0.9 in place of 0.45
    assert over[0].throughput_per_s + over[1].throughput_per_s == pytest.approx(100, rel=0.05)


def test_a_load_on_several_is_held_where_each_of_them_held():
    held, late = Probe(100, 100.0, 1000, 2, 5.0, 9.0), Probe(10, 9.0, 100, 50, 80.0, 200.0, over={"p50": 3.0})
    assert combined(110, {"a": held, "b": replace(held, load=10.0)}).held
    found = combined(110, {"a": held, "b": late})
    assert not found.held
    assert (found.load, found.throughput_per_s, found.late, found.over) == (110, 109.0, 50, {"b p50": 3.0})
    twice = found.with_more(found)
    assert twice.by_model["b"] == {"throughput_per_s": 9.0, "p50_ms": 80.0, "p99_ms": 200.0}
    assert twice.count == 2


def test_a_mix_names_every_model():
    assert together.mix({}, ["a", "b"]) == {"a": 0.5, "b": 0.5}
    assert together.mix({"a": 30.0, "b": 10.0}, ["a", "b"]) == {"a": 0.75, "b": 0.25}
    with pytest.raises(UsageError, match="differ in b"):
        together.mix({"a": 30.0}, ["a", "b"])


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    folder = tmp_path_factory.mktemp("two")
    names = {"first": 5.0, "second": 20.0}
    return {name: null_repository.write(folder / name, name=name, latency_ms=ms) for name, ms in names.items()}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--max-p99-ms", "first=50"], "has no budget of second"),
        (["--max-p99-ms", "first=50,third=20"], "there is no model 'third'"),
        (["--max-p99-ms", "never"], "expected a number"),
        (["--max-p99-ms", "50", "--rate", "100"], "--rate of several models is their mix"),
        (["--max-p99-ms", "50", "--rate", "first=10"], "differ in second"),
        (["--max-p99-ms", "50", "--arrivals", "closed"], "under an open loop"),
        (["--offline"], "under an open loop"),
        (["--max-p99-ms", "50", "--mode", "brute"], "tuned by prediction"),
    ],
)
def test_what_two_models_cannot_be_asked_is_said(two, words, said):
    found = CliRunner().invoke(app, ["tune", *map(str, two.values()), *words])
    assert isinstance(found.exception, UsageError)
    assert said in found.exception.message


def test_zeros_on_the_command_line_are_taken(two):
    given = {"targets": [two["first"]], "max_p99_ms": "50", "rate": "7", "headroom": 0.0, "seed": 0}
    asked, mix = tuning._requests(given)
    (one,) = asked.values()
    assert (one.headroom, one.seed, one.rate, one.max_p99_ms, mix) == (0.0, 0, 7.0, 50.0, {})


def test_each_of_two_models_is_asked_its_own_budget(two):
    given = {"targets": [*two.values()], "max_p99_ms": "first=50,second=20", "rate": "first=3,second=1"}
    asked, mix = tuning._requests(given)
    assert {name: (one.max_p99_ms, one.rate, one.targets) for name, one in asked.items()} == {
        "first": (50.0, None, (two["first"],)),
        "second": (20.0, None, (two["second"],)),
    }
    assert mix == {"first": 0.75, "second": 0.25}


def models(two, limit_ms, **more):
    share = {"first": 0.8, "second": 0.2}
    return {
        name: together.SharedModel(asked(root, prices={}, max_p99_ms=limit_ms, rate=None, **more), share[name])
        for name, root in two.items()
    }


@pytest.mark.campaign
def test_two_models_on_one_server_get_a_configuration_each(two, tmp_path, quick, monkeypatch):  # noqa: F811
    monkeypatch.setattr(together, "FINALISTS", 1)
    monkeypatch.setattr(predict, "setups", lambda sayable, cores: [(1, 1)])
    monkeypatch.setattr(goodput, "MOST_PROBES", 3)
    monkeypatch.setattr(proof, "CONFIRM", 1)
    told = Told()
    found, folder = together.tune_together(
        models(two, 400.0), tmp_path / "out", notice=told.notices.append, progress=told.progress
    )
    assert found["model"] == "first + second"
    assert {name: one["share"] for name, one in found["models"].items()} == {"first": 0.8, "second": 0.2}
    assert found["tried"][0]["default"]
    proved = [row for row in found["tried"] if row["probes"]]
    assert found["tried"][0] in proved
    best = next(row for row in found["tried"] if row["chosen"])["measured"]
    first, second = (best["by_model"][name]["throughput_per_s"] for name in ("first", "second"))
    assert first + second == pytest.approx(best["throughput_per_s"])
    assert 1.5 < first / second < 10  # four to one, of few requests
    page = (folder / "report.html").read_text()
    assert "first p99 within 400 ms; second p99 within 400 ms" in page
    for name in two:
        assert not [f for f in verify(folder / name / "repository") if f.severity == "error"]
    ports = choose_ports({"http": None, "grpc": None, "metrics": None})
    variables = {f"{name.upper()}_PORT": str(port) for name, port in ports.items()}
    assert json.loads((folder / "tune.json").read_text()) == found
    serve_both(folder / "launch.sh", variables, ports["grpc"], tmp_path)
    again = Told()
    repeated, _ = together.tune_together(
        models(two, 400.0), tmp_path / "out", notice=again.notices.append, progress=again.progress
    )
    assert not [d for d in again.doings if d.startswith("measuring")]
    assert repeated["decision"]["chosen"] is not None


def serve_both(script, variables, port, scratch):
    """Start the script with the embedded server, and ask it for both models."""
    from tritonclient import grpc

    from accel.triton.servers import hosts

    host = hosts.embedded(script.parent / "first" / "repository", None, scratch)
    from accel.core import environments

    more = {"TRITONSERVER": host.program, "ACCEL_SITE_PACKAGES": str(environments.site_packages(environments.MAIN))}
    with (scratch / "server.log").open("w") as log:
        line = ["bash", str(script), *host.flags]
        process = subprocess.Popen(
            line, env={**os.environ, **host.environment, **variables, **more}, stdout=log, stderr=log
        )
    try:
        deadline = time.monotonic() + 60
        while metadata(f"127.0.0.1:{port}") is None and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.2)
        client = grpc.InferenceServerClient(f"127.0.0.1:{port}")
        while not all(map(client.is_model_ready, ("first", "second"))) and time.monotonic() < deadline:
            time.sleep(0.2)
        assert all(map(client.is_model_ready, ("first", "second"))), (scratch / "server.log").read_text()[-2000:]
    finally:
        process.terminate()
        process.wait(60)


@pytest.mark.campaign
def test_budgets_that_nothing_keeps_leave_a_document_and_no_repository(two, tmp_path, quick, monkeypatch):  # noqa: F811
    monkeypatch.setattr(together, "FINALISTS", 1)
    monkeypatch.setattr(predict, "setups", lambda sayable, cores: [(1, 1)])
    told = Told()
    with pytest.raises(CheckFailed, match="nothing holds first p99 within 1 ms; second p99 within 1 ms: nearest is"):
        together.tune_together(models(two, 1.0), tmp_path / "out", notice=told.notices.append, progress=told.progress)
    found = json.loads((tmp_path / "out" / "tune.json").read_text())
    assert found["decision"]["chosen"] is None
    assert not (tmp_path / "out" / "launch.sh").exists()
