"""Measured points of a real server: windows, figures, the server's own account, and ``accel bench`` on top."""

import contextlib
import http.server
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import null_repository
import numpy as np
import pytest

from accel.bench import feeds as forms, perf_analyzer, served, usage
from accel.bench.calls import COUNTERS, ServedModel
from accel.bench.endpoint import Endpoint
from accel.bench.expected import Expected
from accel.bench.load import Load, Window
from accel.bench.ranges import concurrencies
from accel.bench.served import Method, Snapshot, VariantLabels, agree, summarise
from accel.builders import targets
from accel.core.errors import CheckFailed, InputError, SampleError, StageError, UnavailableError, UsageError
from accel.core.values import Measurement, TensorSpec, from_json, to_json
from accel.run import load_test
from accel.triton import settings
from accel.triton.config import parse, to_text
from accel.triton.servers import server
from accel.triton.settings import Settings

QUICK = Method(seconds=0.2)
LOADS = (Load(concurrency=1), Load(concurrency=8), Load(rate_per_s=80.0, arrivals="poisson"))


def feeds(*shapes):
    return [null_repository.feed(shape, seed=i) for i, shape in enumerate(shapes)]


def rows_of(latencies_ms, *, begin_ns=0, every_ms=10.0, ok=1, feed=0):
    """One request after another, each with its latency."""
    ends = begin_ns + (np.arange(1, len(latencies_ms) + 1) * every_ms * 1e6).astype(np.int64)
    starts = ends - (np.array(latencies_ms) * 1e6).astype(np.int64)
    columns = [np.full(len(ends), feed), starts, starts, ends, np.full(len(ends), ok)]
    return np.stack(columns, axis=1).astype(np.int64)


def window(latencies_ms, **how):
    rows = rows_of(latencies_ms, **how)
    return Window(how.get("begin_ns", 0), int(rows[-1, 3]), rows)


# --------------------------------------------------------------------------------------------- figures


def test_windows_agree_within_ten_percent_in_both_figures():
    steady = [window([5.0] * 20) for _ in range(3)]
    assert agree(steady)
    assert not agree(steady[:2])
    assert not agree([*steady[:2], window([5.6] * 20)])
    assert not agree([*steady[:2], window([5.0] * 20, every_ms=11.5)])
    assert agree([*steady[:2], window([5.4] * 20, every_ms=10.5)])
    assert not agree([*steady[:2], window([5.0] * 20, ok=0)])


class Sent:
    """What ``summarise`` reads of a generator."""

    failures, error, first_ms = 2, "INTERNAL: no", 7.0


def test_a_point_is_reduced_to_its_figures():
    windows = [window([4.0, 6.0] * 300, begin_ns=i * 10**10, every_ms=2.0, feed=i % 2) for i in range(3)]
    windows[0].rows[0, 4] = 0
    # Between the two spans the server was busy with another load, which counts nowhere.
    counted = dict.fromkeys(COUNTERS, 10)
    later = {key: value + 7 for key, value in counted.items()}
    spans = [
        (
            Snapshot(0, counted, 1.0, 100.0, {"nv_gpu_utilization": 0.5}),
            Snapshot(10**9, counted, 2.0, 110.0, {"nv_gpu_utilization": 0.7}),
        ),
        (
            Snapshot(5 * 10**9, later, 7.0, 120.0, {"nv_gpu_utilization": 0.5}),
            Snapshot(6 * 10**9, later | {k: v + 7 for k, v in SPENT.items()}, 9.0, 90.0, {"nv_gpu_utilization": 0.7}),
        ),
    ]
    found = summarise(
        Load(concurrency=3),
        windows,
        spans,
        feeds((2, 4), (6, 4)),
        ServedModel("m", "onnxruntime", 8, null_repository.INPUTS, null_repository.OUTPUTS),
        Sent(),
        labels=VariantLabels(threads=2, precision="int8", repository="repositories/x"),
        raw="raw.npz",
        session="s",
    )
    assert found.samples == 1799
    assert 4.0 <= found.p50_ms <= 6.0
    assert found.p99_ms == pytest.approx(6.0)
    assert found.mean_ms == pytest.approx(5.0, abs=0.01)
    assert found.throughput_per_s == pytest.approx((599 * 2 + 600 * 6 + 600 * 2) / 3.6)
    assert found.throughput_ci_per_s[0] < found.throughput_per_s < found.throughput_ci_per_s[1]
    assert (found.batch, found.shapes) == (6, {"input_ids": (6, 4)})
    assert (found.backend, found.effective_precision, found.threads) == ("onnxruntime", "int8", 2)
    assert (found.failures, found.error, found.first_ms) == (2, "INTERNAL: no", 7.0)
    assert found.peak_rss_mib == 120.0
    split = found.server
    assert (split.queue_ms, split.infer_ms, split.requests) == (2.0, 4.0, 10)
    assert (split.inferences, split.executions, split.cpus) == (40, 5, 1.5)
    assert split.gpu_utilization == pytest.approx(0.6)
    assert split.gpu_memory_mib is None
    assert from_json(Measurement, json.loads(json.dumps(to_json(found)))) == found


SPENT = {"queue_ns": 20_000_010, "infer_ns": 40_000_010, "requests": 20, "inferences": 50, "executions": 15}


def test_a_point_without_an_answer_is_an_error():
    with pytest.raises(StageError, match="none of 2 requests was answered; the first error: INTERNAL: no"):
        summarise(
            Load(concurrency=1),
            [window([1.0], ok=0)],
            [(Snapshot(0, dict.fromkeys(COUNTERS, 0), None, 0.0, {}),) * 2],
            feeds((1, 4)),
            ServedModel("m", "python", 8, null_repository.INPUTS, null_repository.OUTPUTS),
            Sent(),
            labels=VariantLabels(),
            raw="",
            session="",
        )


def test_a_server_in_a_container_is_found_by_its_id():
    """Docker's engine starts it, so it is not a child of the command that asked for it, which names its id, too."""
    holds = "x = b'x' * (64 << 20); print('ready', flush=True); input()"
    words = ["--id=accel-0123456789ab", "--name=accel-0123456789ab"]
    with contextlib.ExitStack() as open_:

        def start(code, *more):
            process = open_.enter_context(subprocess.Popen([sys.executable, "-c", code, *more], stdin=-1, stdout=-1))
            open_.callback(process.kill)
            assert process.stdout.readline() == b"ready\n"
            return process

        client = start("print('ready', flush=True); input()", *words)
        endpoint = Endpoint("127.0.0.1:1", None, None, client.pid, "24.10", "docker")
        assert usage.use(endpoint) == (None, 0.0)  # the engine is on another machine
        start(holds, words[0])
        cpu_s, rss_mib = usage.use(endpoint)
        assert cpu_s > 0
        assert 64 < rss_mib < 200


@contextlib.contextmanager
def metrics(text: str) -> Iterator[str]:
    """Serve ``/metrics`` as Triton does."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200)
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, *_):
            pass

    with http.server.HTTPServer(("127.0.0.1", 0), Handler) as serving:
        thread = threading.Thread(target=serving.serve_forever)
        thread.start()
        yield f"127.0.0.1:{serving.server_port}"
        serving.shutdown()
        thread.join()


def test_gpu_metrics_are_read(running):
    assert usage.gauges(running.endpoint) == {}  # there is no GPU behind the embedded server
    assert usage.gauges(replace(running.endpoint, metrics=None)) == {}
    assert usage.gauges(replace(running.endpoint, metrics="127.0.0.1:1")) == {}
    text = """# HELP nv_gpu_utilization GPU utilization rate [0.0 - 1.0)
# TYPE nv_gpu_utilization gauge
nv_gpu_utilization{gpu_uuid="GPU-a"} 0.5
nv_gpu_utilization{gpu_uuid="GPU-b"} 0.9
# HELP nv_gpu_memory_used_bytes GPU used memory, in bytes
# TYPE nv_gpu_memory_used_bytes gauge
nv_gpu_memory_used_bytes{gpu_uuid="GPU-a"} 1048576.000000
nv_gpu_memory_used_bytes{gpu_uuid="GPU-b"} 2097152.000000
# HELP nv_inference_count Number of inferences performed (does not include cached requests)
# TYPE nv_inference_count counter
nv_inference_count{model="a",version="1"} 3.000000
"""
    with metrics(text) as address:
        found = usage.gauges(replace(running.endpoint, metrics=address))
    assert found == {"nv_gpu_utilization": pytest.approx(0.7), "nv_gpu_memory_used_bytes": 3 * 2**20}


# --------------------------------------------------------------------------------------------- sweeps


@pytest.mark.slow
def test_a_sweep_measures_every_load(running, tmp_path):
    seen = []
    raw = tmp_path / "deep" / "raw.npz"
    points = served.sweep(
        running.endpoint,
        "slow",
        feeds((1, 4), (1, 4)),
        LOADS,
        log=tmp_path / "load.log",
        inputs=null_repository.INPUTS,
        method=QUICK,
        raw=raw,
        raw_name="raw.npz",
        on_point=lambda load, point: seen.append(load),
    )
    assert seen == list(LOADS)
    one, eight, opened = points
    for point in points:
        assert (point.scenario, point.via, point.backend, point.batch) == ("sweep", "triton", "python", 1)
        assert point.failures == 0
        assert 40 < point.p50_ms < 400
        assert point.p50_ci_ms[0] <= point.p50_ms <= point.p50_ci_ms[1]
        assert point.p99_ms is None
        assert point.server.infer_ms > 40
        assert point.server.cpus is not None
        assert point.peak_rss_mib > 20
    assert (one.concurrency, eight.concurrency, opened.rate_per_s) == (1, 8, 80.0)
    assert 1 < opened.concurrency <= 64
    assert one.server.executions == one.server.inferences == one.server.requests > 0
    assert eight.server.executions < eight.server.inferences  # dynamic batching
    # Each waits for the batch before. A lone request does not, but where a wake-up is lost the batcher sleeps
    # its 500 ms out (Triton core src/dynamic_batch_scheduler.cc, default_wait_microseconds).
    assert eight.server.queue_ms > 20
    assert eight.throughput_per_s > one.throughput_per_s
    assert len({p.session for p in points}) == 1
    with np.load(raw) as kept:
        assert len(kept["0/windows"]) == len(one.rounds_ms)
        answered = kept["0/rows"][kept["0/rows"][:, 4] == 1]
        latency_ms = (answered[:, 3] - answered[:, 1]) / 1e6
        assert len(latency_ms) == one.samples
        assert float(np.median(latency_ms)) == pytest.approx(one.p50_ms)
        assert kept["2/rows"].shape[1] == 5


@pytest.mark.slow
def test_a_point_that_never_settles_is_reported_as_unstable(running, tmp_path):
    (point,) = served.sweep(
        running.endpoint,
        "slow",
        feeds((8, 4)),
        [Load(rate_per_s=200.0)],  # more than it can do: its queue grows all the time
        log=tmp_path / "load.log",
        method=Method(seconds=0.1, timeout_s=20),
    )
    assert not point.stable
    assert len(point.rounds_ms) == 10
    assert point.rounds_ms[-1] > point.rounds_ms[0]


@pytest.mark.slow
def test_responses_are_held_against_a_reference(running, tmp_path):
    sent = feeds((1, 4), (3, 5))
    right = [{"doubled": 2.0 * f["input_ids"].astype(np.float32)} for f in sent]
    check = Expected(right, (TensorSpec("doubled", "float32", ("batch", "seq")),), {"sqnr_db": 80.0})
    how = {"log": tmp_path / "load.log", "method": QUICK}
    (point,) = served.sweep(running.endpoint, "echo", sent, [Load(concurrency=2)], check=check, **how)
    assert point.failures == 0
    wrong = [{"doubled": np.array(a["doubled"])} for a in right]
    wrong[1]["doubled"][2, 1] += 30.0
    points = []
    with pytest.raises(CheckFailed, match="concurrency 2: a response is not what it should be: sqnr_db"):
        served.sweep(
            running.endpoint,
            "echo",
            sent,
            [Load(concurrency=2)],
            check=replace(check, answers=wrong),
            on_point=lambda load, point: points.append(point),
            **how,
        )
    assert len(points) == 1


@pytest.mark.slow
def test_a_server_that_is_killed_loses_no_earlier_point(null_root, tmp_path):
    points = []
    with server.start(null_root, via="embedded", log=tmp_path / "server.log") as running:

        def kill(load, point):
            points.append(point)
            os.kill(running.endpoint.pid, signal.SIGKILL)

        with pytest.raises(StageError, match="stopped answering"):
            served.sweep(
                running.endpoint,
                "nothing",
                feeds((1, 4)),
                concurrencies("1:4"),
                log=tmp_path / "load.log",
                method=QUICK,
                raw=tmp_path / "raw.npz",
                on_point=kill,
            )
    assert len(points) == 1
    with np.load(tmp_path / "raw.npz") as kept:
        assert sorted(kept.files) == ["0/rows", "0/windows"]


# --------------------------------------------------------------------------------------------- data

SPECS = (
    TensorSpec("ids", "int64", ("batch", "seq"), (0, 99)),
    TensorSpec("scale", "float32", ("batch", 2)),
    TensorSpec("text", "object", ("batch", 1)),
)


def entry(**changes):
    return {"ids": [1, 2, 3], "scale": [0.5, 1.0], "text": ["ab"], **changes}


def read(tmp_path, *entries):
    (tmp_path / "data.json").write_text(json.dumps({"data": list(entries)}))
    return forms.read(tmp_path / "data.json", SPECS, batched=True)


def test_json_data_in_all_its_forms(tmp_path):
    first, second, third = read(
        tmp_path,
        entry(),
        entry(ids={"content": [4, 5, 6, 7], "shape": [4]}),
        entry(
            ids={"b64": "AQAAAAAAAAACAAAAAAAAAA=="},
            scale={"content": {"b64": "AAAAPwAAgD8="}, "shape": [2]},
            text={"b64": "AgAAAGFi"},
        ),
    )
    assert first["ids"].tolist() == [[1, 2, 3]]
    assert first["ids"].dtype == np.int64
    assert first["scale"].tolist() == third["scale"].tolist() == [[0.5, 1.0]]
    assert first["text"].tolist() == third["text"].tolist() == [[b"ab"]]
    assert second["ids"].tolist() == [[4, 5, 6, 7]]
    assert third["ids"].tolist() == [[1, 2]]


def test_feeds_survive_being_written_for_perf_analyzer(tmp_path):
    given = read(tmp_path, entry(), entry(ids={"content": [4, 5, 6, 7], "shape": [4]}, text=["ünï"]))
    forms.write(tmp_path / "again.json", given, batched=True)
    for before, after in zip(given, forms.read(tmp_path / "again.json", SPECS, batched=True), strict=True):
        for name in before:
            np.testing.assert_array_equal(before[name], after[name])


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"ids": [1, 2.5]}, "a value does not fit"),
        ({"ids": 3}, "expected a list"),
        ({"ids": {"b64": "AQ"}}, "cannot be read as int64"),
        ({"ids": {"content": [1, 2, 3], "shape": [2]}}, "has 3 values, expected"),
        ({"scale": [1.0]}, "has 1 values"),
        ({"text": {"b64": "CQAAAGFi"}}, "ends before"),
        ({"more": [1]}, "expected"),
        ({"ids": {"content": [1, 2, 3], "shape": {"a": 1}}}, "has 3 values, expected"),
        ({"ids": {"content": [1, 2, 3], "shape": 3}}, "has 3 values, expected"),
        ({"ids": {"content": [1, 2, 3], "shape": [1e400]}}, "has 3 values, expected"),
        ({"ids": {"content": [1, 2, 3], "shape": [-1, -3]}}, "has 3 values, expected"),
    ],
)
def test_json_data_that_do_not_fit_say_where(tmp_path, changed, said):
    with pytest.raises(SampleError, match=said) as error:
        read(tmp_path, entry(), entry(**changed))
    assert "entry 1" in error.value.message


def test_files_that_are_no_feeds(tmp_path):
    for text, said in (("{", "cannot be read"), ("[]", "no list"), ('{"data": [[{}]]}', "sequence model")):
        (tmp_path / "x.json").write_text(text)
        with pytest.raises(InputError, match=said):
            forms.read(tmp_path / "x.json", SPECS, batched=True)
    for name in ("x.txt", "gone.json", "gone.npz"):
        with pytest.raises(InputError):
            forms.read(tmp_path / name, SPECS, batched=True)
    for one in (None, True, 1.5, "ids", []):  # the last two have an order, but no names of inputs
        (tmp_path / "x.json").write_text(json.dumps({"data": [entry(), one]}))
        with pytest.raises(InputError, match=r"has inputs|sequence model"):
            forms.read(tmp_path / "x.json", SPECS, batched=True)


def test_npz_feeds_and_batches(tmp_path):
    np.savez(tmp_path / "one.npz", ids=np.arange(6).reshape(2, 3))
    np.savez(tmp_path / "two.npz", **{"0/ids": np.arange(6).reshape(2, 3), "1/ids": np.zeros((3, 5), int)})
    (one,) = forms.read(tmp_path / "one.npz", SPECS, batched=True)
    assert one["ids"].shape == (2, 3)
    given = forms.read(tmp_path / "two.npz", SPECS, batched=True)
    batches = forms.rebatch(given, 4)
    assert [b["ids"].shape for b in batches] == [(4, 3), (4, 5)]
    np.testing.assert_array_equal(batches[0]["ids"][:, 0], [0, 3, 0, 3])


def test_random_values_only_where_none_can_be_wrong():
    bounded = (TensorSpec("x", "float32", ("batch", 3)), TensorSpec("n", "int32", ("batch", 2), (5, 9)))
    made = forms.random_feeds(bounded, batch=4)
    assert all(f["x"].shape == (4, 3) and f["n"].min() >= 5 and f["n"].max() <= 9 for f in made)
    assert not np.array_equal(made[0]["x"], made[1]["x"])
    for spec in (
        TensorSpec("ids", "int64", ("batch", 8)),
        TensorSpec("x", "float32", ("batch", "seq")),
        TensorSpec("text", "object", ("batch", 1)),
    ):
        with pytest.raises(InputError, match=f"input '{spec.name}'") as error:
            forms.random_feeds((spec,), batch=1)
        assert "--data" in error.value.fix


# --------------------------------------------------------------------------------------------- perf_analyzer

SAID = """Request concurrency: 4
  Pass [1] throughput: 522.518 infer/sec. p50 latency: 5888 usec
  Pass [2] throughput: 718.694 infer/sec. p50 latency: 5394 usec
  Pass [3] throughput: 743.788 infer/sec. p50 latency: 5202 usec
  Pass [4] throughput: 715.034 infer/sec. p50 latency: 5161 usec
  Client:
    Request count: 1310
    Throughput: 725.849 infer/sec
  Server:
    Inference count: 1310
    Execution count: 685
    Successful request count: 1312
"""
ROW = """Concurrency,Inferences/Second,Client Send,Network+Server Send/Recv,Server Queue,Server Compute Input,\
Server Compute Infer,Server Compute Output,Client Recv,p50 latency,p90 latency,p95 latency,p99 latency
4,725.849,3,438,2473,22,2423,141,1,5210,7102,7715,9791
"""
FACTS = perf_analyzer.Facts(1, {"input_ids": (1, 4)}, 3.0, "s", "raw.csv", VariantLabels("python", 2, "fp32"))


def test_a_row_of_perf_analyzer_is_a_measurement():
    point = perf_analyzer.read(ROW, SAID, Load(concurrency=4), FACTS)
    assert (point.throughput_per_s, point.throughput_ci_per_s) == (725.849, (715.034, 743.788))
    assert (point.p50_ms, point.p90_ms, point.p95_ms, point.p99_ms) == (5.21, 7.102, 7.715, 9.791)
    assert point.p50_ci_ms == (5.161, 5.394)
    assert point.mean_ms == pytest.approx(5.501)
    assert point.rounds_ms == (5.394, 5.202, 5.161)
    assert (point.stable, point.samples, point.concurrency) == (True, 1310, 4)
    split = point.server
    assert (split.queue_ms, split.input_ms, split.infer_ms, split.output_ms) == (2.473, 0.022, 2.423, 0.141)
    assert (split.requests, split.inferences, split.executions) == (1312, 1310, 685)
    assert from_json(Measurement, to_json(point)) == point


def test_an_unstable_point_has_the_figures_of_its_passes():
    point = perf_analyzer.read("", SAID, Load(concurrency=4), FACTS)
    assert not point.stable
    assert point.throughput_per_s == pytest.approx(675.0085)
    assert point.p50_ms == pytest.approx((5.202 + 5.394) / 2)
    assert (point.p90_ms, point.p99_ms, point.server) == (None, None, None)
    with pytest.raises(StageError, match="Thread had error"):
        perf_analyzer.read("", "Request concurrency: 4\nThread had error: no", Load(concurrency=4), FACTS)


@pytest.mark.slow
def test_the_real_perf_analyzer_and_ours_measure_the_same_thing(running, tmp_path):
    how = {"log": tmp_path / "load.log", "inputs": null_repository.INPUTS, "method": Method(seconds=0.5)}
    raw = tmp_path / "rows.csv"
    loads = [Load(concurrency=2)]
    theirs = perf_analyzer.sweep(running.endpoint, "slow", feeds((2, 4), (2, 4)), loads, raw=raw, raw_name="r", **how)
    ours = served.sweep(running.endpoint, "slow", feeds((2, 4), (2, 4)), loads, **how)
    for their, our in zip(theirs, ours, strict=True):
        assert (their.batch, their.shapes, their.rate_per_s) == (our.batch, our.shapes, our.rate_per_s)
        # How close they come is for a benchmark on a quiet machine: on a busy one theirs was off by ten either way.
        assert min(their.throughput_per_s, our.throughput_per_s, their.p50_ms, our.p50_ms) > 0
    assert raw.read_text().startswith("Concurrency,Inferences/Second") or not theirs[0].stable
    (opened,) = perf_analyzer.sweep(
        running.endpoint,
        "slow",
        feeds((1, 4)),
        [Load(rate_per_s=20.0, arrivals="poisson")],
        log=tmp_path / "load.log",
        method=Method(seconds=0.5, shared_memory=True),
    )
    assert opened.rate_per_s == 20.0
    assert 40 < opened.p50_ms < 400


@pytest.mark.slow
def test_perf_analyzer_takes_one_batch_size(running, tmp_path):
    with pytest.raises(InputError, match=r"the feeds have \[1, 2\]"):
        perf_analyzer.sweep(running.endpoint, "echo", feeds((1, 4), (2, 4)), LOADS, log=tmp_path / "log")


def test_perf_analyzer_that_is_not_here(monkeypatch, tmp_path):
    monkeypatch.setenv("PERF_ANALYZER", str(tmp_path / "gone"))
    with pytest.raises(UnavailableError, match="not a program"):
        perf_analyzer.resolve()
    monkeypatch.delenv("PERF_ANALYZER")
    monkeypatch.setenv("ACCEL_HOME", str(tmp_path))
    path = tmp_path / "bin"
    path.mkdir()
    monkeypatch.setenv("PATH", str(path))
    with pytest.raises(UnavailableError) as error:
        perf_analyzer.resolve()
    assert error.value.fix == "accel env install perf-analyzer"


# --------------------------------------------------------------------------------------------- accel bench


def accel(*words, cwd=None):
    return subprocess.run(
        [sys.executable, "-m", "accel", "bench", *map(str, words)], capture_output=True, text=True, check=False, cwd=cwd
    )


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["gone"], "gone is not a folder"),
        (["gone", "--concurrency", "x"], "--concurrency"),
        (["gone", "--concurrency", "1", "--request-rate", "5"], "give one of the two"),
        (["gone", "--load", "wrk"], "accel or perf_analyzer"),
        (["gone", "--protocol", "quic"], "grpc or http"),
        (["gone", "--protocol", "http", "--shared-memory"], "goes over gRPC"),
        (["gone", "--phases", "1:60"], "cannot be read"),
        (["gone", "--phases", "1:60:9", "--concurrency", "4"], "a load of its own"),
        (["gone", "--phases", "1:60:9", "--load", "perf_analyzer"], "knows no phases"),
        (["gone", "--max-p95-ms", "50"], "give --phases"),
        (["gone", "--arrivals", "often"], "constant, poisson or a file"),
        (["127.0.0.1:8001", "--table"], "not a repository"),
    ],
)
def test_wrong_usage_is_one_message(words, said, tmp_path):
    done = accel(*words, cwd=tmp_path)
    assert done.returncode == 2, done.stderr
    assert said in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.slow
def test_a_running_server_is_measured_on_real_data_only(running, tmp_path):
    address = running.endpoint.grpc
    refused = accel(address, "--model", "echo", "--concurrency", 1, "--seconds", 0.1)
    assert refused.returncode == 2
    assert "--data" in refused.stderr
    data = tmp_path / "data.json"
    data.write_text(json.dumps({"data": [{"input_ids": [1, 2, 3]}, {"input_ids": [7, 8, 9]}, {"input_ids": [5]}]}))
    words = [address, "--model", "echo", "--data", data, "--batch", 2, "--concurrency", 2, "--seconds", 0.1]
    done = accel(*words, "--json")
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    (point,) = document["measurements"]
    assert (document["model"], document["via"], document["twin"]) == ("echo", "url", False)
    assert (point["load"], point["batch"], point["failures"]) == ("concurrency 2", 2, 0)
    # the server counts a request and its inferences one after the other: those two in flight may be between the two
    off = point["server"]["inferences"] - 2 * point["server"]["requests"]
    assert point["server"]["requests"] > 4
    assert abs(off) <= 2 * 2
    assert off % 2 == 0


@pytest.mark.slow
def test_users_come_one_by_one_until_a_limit(null_root, tmp_path):
    out = tmp_path / "figures.json"
    done = accel(null_root, "--via", "embedded", "--phases", "1:60:6", "--flat", "continue", "-o", out)
    assert done.returncode == 0, done.stderr
    document = json.loads(out.read_text())
    assert [point["load"] for point in document["measurements"]] == ["concurrency 1", "concurrency 4"]
    assert all(point["failures"] == 0 and point["throughput_per_s"] > 0 for point in document["measurements"])
    assert document["phases"].endswith("users; the phases are over")
    assert document["phases"] in done.stderr
    ended = accel(null_root, "--via", "embedded", "--phases", "1:0:5,2:0:5", "--max-p95-ms", "0.001", "--json")
    assert ended.returncode == 0, ended.stderr
    (point,) = json.loads(ended.stdout)["measurements"]
    assert point["load"] == "concurrency 1"
    said = json.loads(ended.stdout)["phases"]  # on a busy machine there may be too few answers for a p95
    assert said.startswith("no number of users keeps the limits: ")
    assert " ms is above 0.001 ms" in said


@pytest.mark.slow
def test_a_repository_is_served_and_measured(null_root, tmp_path):
    out = tmp_path / "figures.json"
    words = [null_root, "--via", "embedded", "--concurrency", "1:2", "--mixed-lengths", "--seconds", 0.1, "-o", out]
    done = accel(*words)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split()[:2] == ["load", "items/s"]
    document = json.loads(out.read_text())
    points = [from_json(Measurement, point) for point in document["measurements"]]
    assert [p.concurrency for p in points] == [1, 2]
    assert (document["via"], document["release"], points[0].raw) == ("embedded", "24.10", "figures.npz")
    with np.load(tmp_path / "figures.npz") as kept:
        assert set(kept["0/rows"][:, 0]) <= {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}


def state(root):
    """Return every file with its time; of a folder its name alone, since a stub's bytecode comes there and goes."""
    return {p: p.stat().st_mtime_ns if p.is_file() else 0 for p in root.rglob("*")}


@pytest.mark.slow
def test_the_batching_sweep(null_root, tmp_path):
    before = state(null_root)
    asked = load_test.LoadTestRequest(
        target=str(null_root), table=True, via="embedded", seconds=0.15, out=tmp_path / "table.json"
    )
    shown = []
    load_test.batching_sweep(asked, shown.append, lambda text: None)
    points = shown[0]["measurements"]
    assert [(p["dynamic_batching"], p["instances"]) for p in points] == [(False, 1), (False, 2), (True, 1), (True, 2)]
    plain, more, batching, _ = points
    off = plain["server"]["inferences"] - plain["server"]["executions"]  # counted one after the other, too
    assert abs(off) <= 16 < plain["server"]["executions"]
    assert batching["server"]["inferences"] > 2 * batching["server"]["executions"]
    assert more["throughput_per_s"] > 1.2 * plain["throughput_per_s"]
    assert [load_test.row(p)["batching"] for p in points] == ["without", "without", "with", "with"]
    assert before == state(null_root)
    assert (tmp_path / "table-True-2.npz").exists()


def test_a_config_is_changed_and_its_twin_by_hard_link_is_not(null_root, tmp_path):
    root = tmp_path / "copy"
    shutil.copytree(null_root, root, copy_function=os.link)
    file = root / "nothing" / "config.pbtxt"
    model = parse(file.read_text())
    model.backend = "onnxruntime"
    for key, value in targets.backend("onnxruntime").parameters(4, 1).items():
        model.parameters[key].string_value = value
    file.unlink()
    file.write_text(to_text(model))
    assert settings.write(root, Settings(2), cpu_threads=4)
    changed = parse(file.read_text())
    assert changed.HasField("dynamic_batching")
    assert changed.dynamic_batching.default_queue_policy == model.dynamic_batching.default_queue_policy
    assert [group.count for group in changed.instance_group] == [2]
    assert set(changed.parameters) == set(targets.backend("onnxruntime").parameters(4, 2))
    assert settings.write(root, Settings(1, batching=False), cpu_threads=4)
    assert not parse(file.read_text()).HasField("dynamic_batching")
    assert parse((null_root / "nothing" / "config.pbtxt").read_text()).backend == "python"
    unbatched = parse(file.read_text())
    unbatched.max_batch_size = 0
    file.write_text(to_text(unbatched))
    assert not settings.write(root, Settings(1), cpu_threads=4)
    assert settings.write(root, Settings(2, batching=False), cpu_threads=4)


def test_a_url_is_told_from_a_folder(tmp_path):
    asked = load_test.LoadTestRequest(target=str(tmp_path / "no-such"))
    with pytest.raises(InputError, match="is not a folder"):
        load_test.bench(asked, print, print)
    with pytest.raises(UnavailableError):
        load_test.bench(load_test.LoadTestRequest(target="127.0.0.1:9"), print, print)
    with pytest.raises(UsageError):
        load_test.LoadTestRequest(target="x", concurrency="1", request_rate="1")


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"arrivals": "poisson"}, "--arrivals says when"),
        ({"arrivals": "poisson", "concurrency": "4"}, "--arrivals says when"),
        ({"table": True, "concurrency": "4"}, "--table has a load of its own"),
        ({"table": True, "request_rate": "50"}, "--table has a load of its own"),
        ({"phases": "1:2:10", "seconds": 3.0}, "--phases says how long"),
        ({"mixed_lengths": True, "data": Path("x.npz")}, "--mixed-lengths sends all stored"),
        ({"load": "perf_analyzer", "seed": 3}, "perf_analyzer has processes"),
        ({"load": "perf_analyzer", "processes": 2}, "perf_analyzer has processes"),
    ],
)
def test_what_would_change_nothing_is_refused(given, says):
    with pytest.raises(UsageError, match=says):
        load_test.LoadTestRequest(target="somewhere", **given)


def test_a_file_of_arrivals_is_told_its_own_form(tmp_path):
    for name, form in (("empty.jsonl", "a line for each request"), ("empty.txt", "write seconds")):
        (tmp_path / name).write_text("")
        with pytest.raises(InputError, match="at least two times") as told:
            load_test.LoadTestRequest(target="somewhere", arrivals=str(tmp_path / name)).loads  # noqa: B018
        assert told.value.fix.startswith(form)


def test_recorded_arrivals_are_a_load_by_themselves(tmp_path):
    (tmp_path / "log.jsonl").write_text('{"at": 0}\n{"at": 1}\n{"at": 3}\n')
    asked = load_test.LoadTestRequest(target="somewhere", arrivals=str(tmp_path / "log.jsonl"))
    assert asked.loads[0].arrivals == "recorded"
    with pytest.raises(UsageError, match="--arrivals says when"):
        load_test.LoadTestRequest(target="somewhere", arrivals=str(tmp_path / "log.jsonl"), concurrency="4")
