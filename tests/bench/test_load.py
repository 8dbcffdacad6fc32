"""The load generator against a real server: what it sends, when, and what it counts."""

import itertools
import os
import signal
import time
from pathlib import Path

import null_repository
import numpy as np
import pytest
from hypothesis import given, strategies as st
from tritonclient.grpc import service_pb2
from tritonclient.utils import triton_to_np_dtype

from accel.bench.checker import check_arrays
from accel.bench.endpoint import Endpoint
from accel.bench.load import END, FEED, INTENDED, SENT, Generator, Load, Window, fit_feeds
from accel.bench.ranges import arrivals, concurrencies, rates
from accel.bench.request_pool import HttpPool, NewContents, RequestPool, plain, request
from accel.bench.sender import due_times
from accel.bench.served import most_at_once
from accel.core.errors import InputError, SampleError, StageError, UnavailableError, UsageError
from accel.triton.servers import server


def feeds(*shapes):
    return [null_repository.feed(shape, seed=i) for i, shape in enumerate(shapes)]


def generate(generator: Generator, load: Load, seconds: float) -> Window:
    """Send one point of load for so long and return its raw samples, the first request included."""
    generator.start(load)
    try:
        return generator.window(seconds)
    finally:
        generator.stop()


def doubled(given):
    return [{"doubled": 2.0 * feed["input_ids"].astype(np.float32)} for feed in given]


def ms(window, late, early):
    return (window.rows[:, late] - window.rows[:, early]) / 1e6


# ------------------------------------------------------------------------------------------------- new contents

MIXED = {
    "pixels": np.random.default_rng(0).random((2, 3, 8, 8)).astype(np.float32),
    "mask": np.ones((2, 16), np.int64),
    "ids": np.arange(32, dtype=np.int64).reshape(2, 16),
}


def test_requests_of_new_contents_differ_in_values_of_one_input():
    new = NewContents([plain(MIXED)], hit_rate=0.25)
    pool = RequestPool([request("m", *one) for one in new.requests], new)
    sent = [pool.body(0, 0) for _ in range(2000)]
    plain_one = request("m", *new.requests[0]).SerializeToString()
    assert 400 < sum(body == plain_one for body in sent) < 600
    others = [body for body in sent if body != plain_one]
    assert len(set(others)) == len(others)
    for body in others[:50]:
        made = service_pb2.ModelInferRequest.FromString(body)
        arrays = {
            tensor.name: np.frombuffer(raw, triton_to_np_dtype(tensor.datatype)).reshape(tensor.shape)
            for tensor, raw in zip(made.inputs, made.raw_input_contents, strict=True)
        }
        assert {name for name in MIXED if not np.array_equal(arrays[name], MIXED[name])} == {"pixels"}
        assert set(arrays["pixels"].ravel()) <= set(MIXED["pixels"].ravel())


def test_when_a_request_comes_does_not_tell_whether_it_repeats():
    moments = due_times(0, rate_per_s=100.0, arrivals="poisson", seed=3, index=0, count=1)
    gaps = np.diff([0, *itertools.islice(moments, 4000)])
    new = NewContents([plain(MIXED)], hit_rate=0.5)
    message = request("m", *new.requests[0]).SerializeToString()
    repeats = [new.of(0, message) == message for _ in gaps]
    assert abs(np.corrcoef(gaps, repeats)[0, 1]) < 0.1


def test_narrow_types_and_several_items_have_new_contents():
    rng = np.random.default_rng(0)
    for values in (rng.random((3, 50)).astype(np.float16), rng.integers(0, 2, (2, 40)).astype(bool)):
        new = NewContents([plain({"x": values})], hit_rate=0.01)
        message = request("m", *new.requests[0]).SerializeToString()
        sent = {new.of(0, message) for _ in range(300)}
        assert len(sent) > 280
        for body in sent:
            (raw,) = service_pb2.ModelInferRequest.FromString(body).raw_input_contents
            assert set(np.frombuffer(raw, values.dtype)) <= set(values.ravel())


def test_new_contents_go_over_http_as_well():
    new = NewContents([plain({"ids": MIXED["ids"]})], hit_rate=0.5)
    pool = HttpPool(new.requests, stateful=False, new=new)
    sent = [pool.request(0, None) for _ in range(200)]
    headers = {body[:header] for header, body in sent}
    assert len(headers) == 1
    ids = [np.frombuffer(body[header:], np.int64) for header, body in sent]
    same = sum(np.array_equal(one, MIXED["ids"].ravel()) for one in ids)
    assert 60 < same < 140
    assert len({one.tobytes() for one in ids}) == 200 - same + 1
    assert all(one.min() >= 0 and one.max() < 32 for one in ids)


@pytest.mark.parametrize(
    "given",
    [
        {"mask": np.ones((1, 64), np.int64)},
        {"ids": np.arange(3)},
        {"text": np.array(["one", "two"] * 40, dtype=object)},
        {},
    ],
)
def test_what_holds_too_few_different_numbers_has_no_new_contents(given):
    with pytest.raises(InputError, match="enough different numbers") as error:
        NewContents([plain(MIXED), plain(given)], hit_rate=0.5)
    assert "--hit-rate" in error.value.fix


# --------------------------------------------------------------------------------------------- what is asked for


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("4", [4]),
        ("1:16", [1, 2, 4, 8, 16]),
        ("3:10", [4, 8]),
        ("1:16:5", [1, 6, 11, 16]),
        ("2:2:1", [2]),
    ],
)
def test_concurrencies(text, found):
    assert [load.concurrency for load in concurrencies(text)] == found


@pytest.mark.parametrize("text", ["", "0", "1:", "4:2", "5:7", "1:2:3:4", "-1", "1.5", "1:8:0", "x"])
def test_a_concurrency_that_says_nothing_is_refused(text):
    with pytest.raises(UsageError, match="--concurrency"):
        concurrencies(text)


def test_rates():
    assert [load.rate_per_s for load in rates("10:50:10", "constant")] == [10, 20, 30, 40, 50]
    assert [load.rate_per_s for load in rates("0.1:0.3:0.1", "constant")] == pytest.approx([0.1, 0.2, 0.3])
    assert rates("7.5", "poisson") == (Load(rate_per_s=7.5, arrivals="poisson"),)
    for text in ("10:50", "0", "inf", "nan", "5:1:1"):
        with pytest.raises(UsageError, match="--request-rate"):
            rates(text, "constant")


@pytest.mark.parametrize("given", [{}, {"concurrency": 1, "rate_per_s": 1.0}, {"concurrency": 0}, {"rate_per_s": -1.0}])
def test_a_load_is_one_thing_and_positive(given):
    with pytest.raises(UsageError):
        Load(**given)


def test_feeds_are_checked_before_any_load():
    good, bad = feeds((1, 4), (1, 4))
    bad["input_ids"][0, 2] = 50
    with pytest.raises(SampleError, match=r"feed 1: .* holds 50 at index \(0, 2\), expected values in \[0, 49\]"):
        fit_feeds([good, bad], null_repository.INPUTS)
    with pytest.raises(SampleError, match="no feed"):
        fit_feeds([], null_repository.INPUTS)


@given(rate=st.floats(0.5, 5000), count=st.integers(1, 4))
def test_constant_arrivals_of_all_processes_are_one_row_of_equal_gaps(rate, count):
    shares = [
        itertools.islice(due_times(7, rate_per_s=rate, arrivals="constant", seed=0, index=i, count=count), 12)
        for i in range(count)
    ]
    moments = sorted(itertools.chain(*shares))[:12]
    np.testing.assert_allclose(np.array(moments) - 7, np.arange(12) * 1e9 / rate, atol=1)


@pytest.mark.parametrize("count", [1, 3])
def test_poisson_arrivals_have_the_rate_and_the_spread_of_a_poisson_process(count):
    def moments(seed):
        shares = [
            itertools.islice(due_times(0, rate_per_s=100, arrivals="poisson", seed=seed, index=i, count=count), 3000)
            for i in range(count)
        ]
        return np.array(sorted(itertools.chain(*shares))[:3000]) / 1e9

    gaps = np.diff(moments(1))
    assert gaps.mean() == pytest.approx(0.01, rel=0.1)
    assert gaps.std() == pytest.approx(0.01, rel=0.1)
    np.testing.assert_array_equal(moments(1), moments(1))
    assert not np.array_equal(moments(1), moments(2))


@pytest.mark.parametrize("count", [1, 2])
def test_recorded_arrivals_keep_their_gaps_at_any_rate(tmp_path, count):
    (tmp_path / "times.txt").write_text("100.0\n100.1\n100.1\n100.6\n")
    kind, gaps = arrivals(str(tmp_path / "times.txt"))
    assert kind == "recorded"
    assert gaps == pytest.approx((0.2, 0.1, 0.0, 0.5))
    how = {"arrivals": kind, "gaps_s": gaps, "seed": 0, "count": count}
    shares = [itertools.islice(due_times(7, rate_per_s=10, index=i, **how), 4) for i in range(count)]
    moments = (np.array(sorted(itertools.chain(*shares))) - 7) / 1e9
    # 4 gaps of 0.8 s in all, at 10/s in 0.4 s, then the same again
    expected = [0.1, 0.15, 0.15, 0.4, 0.5, 0.55, 0.55, 0.8][: 4 * count]
    np.testing.assert_allclose(moments, expected, atol=1e-8)
    assert str(Load(rate_per_s=10.0, arrivals=kind, gaps_s=gaps)) == "10/s recorded"


def test_recorded_requests_say_when_they_came(tmp_path):
    file = tmp_path / "log.jsonl"
    file.write_text('{"length": 9, "at": 5}\n{"length": 3, "at": 5.5}\n\n{"length": 3, "at": 5.75}\n')
    kind, gaps = arrivals(str(file))
    assert (kind, gaps) == ("recorded", pytest.approx((0.375, 0.5, 0.25)))
    for text, said in {
        '{"length": 9}': 'log.jsonl:1 has no "at"',
        '{"at": 2}\n{"at": 1}': '"at" of log.jsonl:2 is before',
        '{"at": 2}': "at least two times",
        '{"at": 2}\n{"at": 2}': "at least two times",
    }.items():
        file.write_text(text)
        with pytest.raises(InputError, match=said):
            arrivals(str(file))


@pytest.mark.parametrize("text", ["1.0", "2\n1", "1\n1", "a b", "1\nnan"])
def test_a_file_that_holds_no_arrival_times_is_refused(tmp_path, text):
    (tmp_path / "times.txt").write_text(text)
    with pytest.raises(InputError, match=r"arrival times|ascending"):
        arrivals(str(tmp_path / "times.txt"))
    for name in ("recorded", str(tmp_path / "no-file")):
        with pytest.raises(UsageError, match=r"--arrivals .* is unknown"):
            arrivals(name)
    with pytest.raises(UsageError, match="recorded arrivals"):
        Load(rate_per_s=1.0, arrivals="recorded")


# --------------------------------------------------------------------------------------------- a real server


@pytest.mark.slow
def test_a_recorded_trace_is_sent_as_it_was(generator):
    generator.open("nothing", feeds((1, 4)))
    load = Load(rate_per_s=50, arrivals="recorded", gaps_s=(0.3, 0.1, 0.2))
    window = generate(generator, load, 0.5)
    gaps_ms = np.diff(np.sort(window.rows[:, INTENDED])) / 1e6
    np.testing.assert_allclose(gaps_ms[:6], [10, 20, 30, 10, 20, 30], atol=0.01)


@pytest.mark.slow
def test_a_closed_loop_keeps_its_clients_busy_and_no_more(generator):
    generator.open("nothing", feeds((1, 4), (2, 4), (1, 9)))
    assert generator.first_ms > 0
    window = generate(generator, Load(concurrency=3), 0.4)
    assert most_at_once(window.rows) == 3
    assert len(window.answered) == len(window.rows) >= 5
    assert set(window.rows[:, FEED]) == {0, 1, 2}
    assert (ms(window, END, SENT) > 0).all()
    assert (window.rows[:, END] <= window.end_ns).all()
    np.testing.assert_array_equal(window.latency_ms, ms(window, END, INTENDED))


@pytest.mark.slow
def test_the_seed_decides_the_order_of_the_feeds(generator):
    orders = []
    for seed in (5, 5, 6):
        generator.open("nothing", feeds((1, 4), (2, 4), (1, 9)), seed=seed)
        orders.append(generate(generator, Load(concurrency=1), 0.2).rows[:20, FEED].tolist())
    shortest = min(map(len, orders))
    assert shortest >= 5
    assert orders[0][:shortest] == orders[1][:shortest]
    generator.open("nothing", feeds((1, 4), (2, 4), (1, 9)), seed=5)
    again = [generate(generator, Load(concurrency=1), 0.1).rows[0, FEED] for _ in range(2)]
    assert again == orders[0][:1] * 2  # each point begins the order anew


@pytest.mark.slow
def test_an_open_loop_sends_when_it_should(generator):
    generator.open("nothing", feeds((1, 4)))
    window = generate(generator, Load(rate_per_s=100), 0.6)
    assert 40 <= len(window.rows) <= 62
    gaps_ms = np.diff(np.sort(window.rows[:, INTENDED])) / 1e6
    np.testing.assert_allclose(gaps_ms, 10, atol=0.01)
    assert (ms(window, SENT, INTENDED) >= 0).all()


@pytest.mark.slow
def test_latency_counts_from_the_intended_moment(generator):
    """At 40 ms a call and 100 requests/s of 8 items each a queue grows: only an open loop sees what that means."""
    generator.open("slow", feeds((8, 4)))
    closed = generate(generator, Load(concurrency=1), 1.0).latency_ms
    assert np.median(closed[-5:]) < 4 * np.median(closed[:5])
    opened = generate(generator, Load(rate_per_s=100), 1.2)
    by_intention = opened.rows[np.argsort(opened.rows[:, INTENDED])]
    latency = (by_intention[:, END] - by_intention[:, INTENDED]) / 1e6
    assert np.median(latency[-5:]) > 4 * np.median(latency[:5])
    assert np.median(latency[-5:]) > 300


@pytest.mark.slow
def test_a_stall_is_late_for_all_that_should_have_been_sent(generator):
    """With one place for requests under way the sender itself waits; the wait still counts."""
    stalling, other = feeds((1, 4), (1, 4))
    stalling["input_ids"][0, 0] = 48
    generator.open("echo", [other, stalling], slots=1, shared_memory=True)
    window = generate(generator, Load(rate_per_s=20), 1.5)
    waited = ms(window, SENT, INTENDED)
    assert waited.max() > 300
    assert (window.latency_ms >= waited[window.rows[:, 4] == 1]).all()


@pytest.mark.slow
@pytest.mark.parametrize("way", ["inline", "shared memory", "http"])
def test_every_response_can_be_held_against_what_is_expected(generator, over_http, way):
    generator, shared_memory = over_http if way == "http" else generator, way == "shared memory"
    sent = feeds((1, 4), (3, 5), (2, 16))
    expected = doubled(sent)
    expected[1]["doubled"][2, 3] += 1.0
    expected[2]["doubled"][0, :8] += 1.0
    masks = [{"doubled": np.ones(f["input_ids"].shape)} for f in sent]
    masks[2]["doubled"][0, :8] = 0
    generator.open("echo", sent, shared_memory=shared_memory, check=check_arrays(expected, masks))
    window = generate(generator, Load(concurrency=4), 0.4)
    checked, worst = generator.worst()
    assert checked >= len(window.rows)
    assert set(worst) == {"0/doubled", "1/doubled", "2/doubled"}
    for index, answer in enumerate(doubled(sent)):
        np.testing.assert_array_equal(worst[f"{index}/doubled"], answer["doubled"])
    assert generator.failures == 0


@pytest.mark.slow
@pytest.mark.parametrize("protocol", ["grpc", "http"])
def test_failures_are_counted_and_the_first_error_is_kept(generator, over_http, protocol):
    generator = over_http if protocol == "http" else generator
    good, bad = feeds((1, 4), (1, 4))
    bad["input_ids"][0, 1] = 60
    generator.open("nothing", [good, bad])
    window = generate(generator, Load(concurrency=2), 0.4)
    assert 0 < len(window.answered) < len(window.rows)
    assert generator.failures >= len(window.rows) - len(window.answered) > 0
    assert "expected values in [0, 49]" in generator.error
    assert generator.error.startswith("HTTP 400" if protocol == "http" else "INVALID_ARGUMENT")
    assert set(window.answered[:, FEED]) == {0}
    generator.open("nothing", [good])
    generate(generator, Load(concurrency=2), 0.1)
    assert (generator.failures, generator.error) == (0, None)


@pytest.mark.slow
def test_what_the_server_refuses_at_the_door_is_its_own_message(generator):
    with pytest.raises(InputError, match="batch-size must be <= 8"):
        generator.open("nothing", feeds((9, 4)))
    with pytest.raises(InputError, match="expected values in"):
        generator.open("nothing", [{"input_ids": np.full((1, 4), 60)}])
    with pytest.raises(InputError, match="no model 'nix'") as error:
        generator.describe("nix")
    assert "echo" in error.value.fix
    with pytest.raises(InputError, match="has 3 models"):
        generator.describe("")


@pytest.mark.slow
def test_more_clients_than_http_has_connections_are_refused(over_http):
    with pytest.raises(UsageError, match="600 clients over HTTP, and 512 are the most"):
        over_http.open("nothing", feeds((1, 4)), slots=600)


def test_a_server_that_has_no_http_is_not_asked_over_it():
    with pytest.raises(UnavailableError, match="does not answer over HTTP"):
        Endpoint("127.0.0.1:1", "", None, None, None, "url").http_only()


@pytest.mark.slow
def test_a_description_is_the_contract_without_ranges(generator):
    found = generator.describe("echo")
    assert (found.model, found.max_batch_size, found.backend) == ("echo", 8, "python")
    assert [(s.name, s.dtype, s.dims) for s in found.inputs] == [("input_ids", "int64", ("batch", "input_ids.0"))]
    assert [(s.name, s.dtype) for s in found.outputs] == [("doubled", "float32")]


def test_nothing_at_the_address(tmp_path):
    with (
        Generator("127.0.0.1:1", log=tmp_path / "log") as generator,
        pytest.raises(UnavailableError, match="no Triton server answers"),
    ):
        generator.describe("nothing")


@pytest.mark.slow
def test_several_processes_share_one_load(running, tmp_path):
    with Generator(running.endpoint.grpc, log=tmp_path / "log", processes=2) as generator:
        generator.open("echo", feeds((1, 4)), shared_memory=True)
        assert list(Path("/dev/shm").glob(f"{generator._regions}*"))
        # On a busy machine the third of the clients may not get a turn beside the other two in one window.
        assert max(most_at_once(generate(generator, Load(concurrency=3), 0.3).rows) for _ in range(5)) == 3
        window = generate(generator, Load(rate_per_s=100), 0.5)
        np.testing.assert_allclose(np.diff(np.sort(window.rows[:, INTENDED])) / 1e6, 10, atol=0.01)
    assert not list(Path("/dev/shm").glob(f"{generator._regions}*"))


@pytest.mark.slow
@pytest.mark.parametrize("protocol", ["grpc", "http"])
def test_a_server_that_is_killed_is_a_clear_error(null_root, tmp_path, protocol):
    with (
        server.start(null_root, via="embedded", log=tmp_path / "server.log") as running,
        Generator(
            running.endpoint.grpc, http=running.endpoint.http if protocol == "http" else None, log=tmp_path / "log"
        ) as generator,
    ):
        generator.open("nothing", feeds((1, 4)))
        generator.start(Load(concurrency=2))
        assert len(generator.window(0.2).answered) > 0
        os.kill(running.endpoint.pid, signal.SIGKILL)
        begin = time.monotonic()
        with pytest.raises(StageError, match="stopped answering in the middle of the load"):
            generator.window(0.2, least=10_000)
        assert time.monotonic() - begin < 20
        generator.stop()
        assert not running.alive()
