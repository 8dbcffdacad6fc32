"""``accel tune`` on real servers: interrupted, resumed, impossible, and with models that misbehave."""

import contextlib
import dataclasses
import html
import itertools
import json
import math
import os
import re
import shutil
import signal
import time
from types import SimpleNamespace

import null_repository
import psutil
import pytest

from accel.bench import goodput, probing
from accel.bench.endpoint import Endpoint
from accel.core.errors import CheckFailed, InputError, StageError, UsageError
from accel.core.values import SCHEMA, from_json, sha256_file
from accel.run import load_test
from accel.triton import manifest as manifests, settings as schedules
from accel.triton.config import parse
from accel.triton.settings import Settings
from accel.triton.tune import lab, measured, predict, proof, session
from accel.triton.tune.cost import Price
from accel.triton.tune.request import TuneRequest
from accel.triton.verify import verify

pytestmark = pytest.mark.slow
MISBEHAVES = """

class Misbehaving(TritonPythonModel):
    def initialize(self, args):
        super().initialize(args)
        self.two = json.loads(args["model_config"])["instance_group"][0]["count"] == 2

    def execute(self, requests):
        if self.two:
            os.kill(os.getppid(), 9)
        return super().execute(requests)

    def fit(self, tensors):
        from accel.core.errors import SampleError

        if len(tensors["input_ids"]) == 4:
            raise SampleError("out of memory, as four items find it")
        return super().fit(tensors)


TritonPythonModel = Misbehaving
"""
DIES_IN_MID_SWEEP = """

class Dying(TritonPythonModel):
    def initialize(self, args):
        super().initialize(args)
        batching = json.loads(args["model_config"]).get("dynamic_batching", {})
        self.left = 30 if int(batching.get("max_queue_delay_microseconds", 0)) == 500 else 10**9

    def execute(self, requests):
        self.left -= 1
        if self.left < 0:
            os.kill(os.getppid(), 9)
        return super().execute(requests)


TritonPythonModel = Dying
"""


@pytest.fixture(scope="module", autouse=True)
def quick():
    """Two setups on any machine, and measurements too short to mean anything: tests look at what becomes of them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(predict, "setups", lambda sayable, cores: [(1, 1), (2, 1)])
        patch.setattr(predict, "REQUESTS", 1500)  # more than are answered within the budget, however fast they come
        patch.setattr(lab, "WINDOW_S", 0.1)
        patch.setattr(proof, "MOST_CONFIRMING_S", 0.5)
        patch.setattr(measured, "FINALISTS", 1)
        patch.setattr(measured, "CURVES", 0.9)
        patch.setattr(probing, "LIMITS", 2)
        patch.setattr(goodput, "MOST_PROBES", 6)
        patch.setattr(measured, "DIFFERS", float("inf"))  # what so short curves predict contradicts every measurement
        yield


def asked(root, **more):
    how = {"probe_s": 0.2, "least": 20, "via": "embedded", "prices": {"elsewhere": Price(1.0)}, "budget_s": 600.0}
    return TuneRequest(**{"targets": (root,), "max_p99_ms": 400.0, "rate": 1000.0} | how | more)


class Told:
    """What a user was told."""

    def __init__(self, stop_at: str = "never") -> None:
        self.notices: list[str] = []
        self.doings: list[str] = []
        self.left: list[str] = []
        self.stop_at = stop_at

    def progress(self, name: str, doing: str) -> None:
        self.doings.append(doing.partition(" (")[0])  # what follows says how long it may take
        self.left.append(doing.partition(" (")[2])
        if doing.startswith(self.stop_at):
            raise KeyboardInterrupt

    def tune(self, what: TuneRequest):
        return session.tune(what, notice=self.notices.append, progress=self.progress)


@pytest.fixture(scope="module")
def tuned(tmp_path_factory, quick):
    """A repository whose tuning was interrupted before its second curve, and went on."""
    root = null_repository.write(tmp_path_factory.mktemp("tuned"), latency_ms=5.0)
    before = {p: sha256_file(p) for p in sorted(root.rglob("*")) if p.is_file()}
    broken, whole = Told("measuring 2"), Told()
    with pytest.raises(KeyboardInterrupt):
        broken.tune(asked(root))
    found, folder = whole.tune(asked(root))
    return root, before, broken, whole, found, folder


def test_what_was_measured_before_an_interruption_is_kept(tuned):
    _, _, broken, whole, _, _ = tuned
    assert [d for d in broken.doings if d.startswith("measuring")] == [
        "measuring 1 × 1 threads",
        "measuring 2 × 1 threads",
    ]
    assert [d for d in whole.doings if d.startswith("measuring")] == ["measuring 2 × 1 threads"]
    assert "goes on from here" in broken.notices[0]


def test_the_chosen_configuration_is_a_repository_of_its_own(tuned):
    root, before, _, _, found, folder = tuned
    assert {p: sha256_file(p) for p in sorted(root.rglob("*")) if p.is_file()} == before
    chosen = next(row for row in found["tried"] if row["chosen"])
    made = folder / "repository"
    assert not [f for f in verify(made) if f.severity == "error"]
    config = parse((made / "nothing" / "config.pbtxt").read_text())
    wanted = from_json(Settings, chosen["settings"])
    assert schedules.read(config) == wanted
    shipped = parse((root / "nothing" / "config.pbtxt").read_text())
    assert (config.max_batch_size, config.input, config.output) == (8, shipped.input, shipped.output)
    assert config.dynamic_batching.default_queue_policy == shipped.dynamic_batching.default_queue_policy
    assert manifests.read(made).tuned == found["decision"]["reason"]
    assert manifests.read(root).tuned is None


def test_the_document_says_what_was_predicted_proved_and_what_it_costs(tuned):
    _, _, _, whole, found, folder = tuned
    assert json.loads((folder / "tune.json").read_text()) == found
    assert found["tried"][0]["default"]
    assert any(row["predicted"] for row in found["tried"])  # on a busy machine a curve may hold nothing
    proved = [row for row in found["tried"] if row["probes"]]
    assert found["tried"][0] in proved
    assert sum(row["chosen"] for row in found["tried"]) == 1
    assert found["decision"]["verdict"] in ("decided", "equivalent", "undecided")
    best = next(row for row in found["tried"] if row["chosen"])["measured"]
    (here,) = found["costs"]
    fewest = (1 - 3 / math.sqrt(best["requests"])) * best["load"]  # what chance explains
    held = best["load"] if best["throughput_per_s"] >= fewest else best["throughput_per_s"]
    assert here["per_minute"] == pytest.approx(60 * held)
    assert here["machines"] * held >= 1200 > (here["machines"] - 1) * held
    assert here["usd_per_million"] is None
    assert any("the price list has no " in text and "elsewhere" in text for text in whole.notices)
    assert "the price list has no " in found["cheapest"]
    assert all("left" in text for text in whole.left)
    assert all(c["rss_mib"] > 10 for curves in found["curves"].values() for c in curves)
    page = (folder / "report.html").read_text()
    assert found["decision"]["chosen"] in page
    assert page.count('class="plot"') == 3


def test_the_response_cache_is_tried_at_the_hit_rate_of_recorded_requests(tmp_path):
    root = null_repository.write(tmp_path, latency_ms=20.0)
    log, space, told = tmp_path / "log.jsonl", tmp_path / "space.yaml", []
    log.write_text("".join(f'{{"key": {n // 5}}}\n' for n in range(50)))
    space.write_text("model_config_parameters: {dynamic_batching: [off]}\n")
    what = asked(root, hit_rate_of=log, max_p99_ms=300.0, space=space)
    made = measured.Measuring(
        what, tmp_path / "out", tmp_path, told.append, lambda name, doing: None, lambda name: None
    )
    options = made.prepare()
    assert any("80.0% of the requests repeat what a response cache of 64 MiB" in text for text in told)
    pairs = [(o, (o[0], dataclasses.replace(o[1], cached=None))) for o in options if o[1].cached]
    assert len(pairs) == len(options) / 2
    assert {without for _, without in pairs} | dict(pairs).keys() == set(options)
    first, second = made.shortlist(options)[:2]
    assert {bool(first[1].cached), bool(second[1].cached)} == {False, True}


def test_the_repository_with_a_cache_starts_a_server_that_has_one(tuned, tmp_path):
    one = lab.subject(tuned[0], name="one", scratch=tmp_path / "one", logs=tmp_path, via="embedded")
    made = tmp_path / "repository"
    session.write_repository(one, Settings(1, 1, cached=True), made, reason="tried")
    assert lab.subject(made, name="two", scratch=tmp_path / "two", logs=tmp_path, via="embedded").default.cached
    assert parse((made / "nothing" / "config.pbtxt").read_text()).response_cache.enable
    script = (made / "launch.sh").read_text()
    assert script.count("--cache-config=local,size=") == 1
    assert "#   CACHE_BYTES=67108864    size of the response cache\n" in script
    assert "for name in CACHE_BYTES ADDRESS " in script
    assert not [f for f in verify(made) if f.severity == "error"]
    with pytest.raises(InputError, match="has a response cache, which would answer every request"):
        Told().tune(asked(made))
    space = tmp_path / "space.yaml"
    space.write_text("model_config_parameters: {dynamic_batching: [off]}\n")
    what = asked(made, hit_rate=0.5, space=space)
    again = measured.Measuring(what, tmp_path / "out", tmp_path, print, lambda name, doing: None, lambda name: None)
    options = again.prepare()
    assert (options[0][1].batching, options[0][1].cached) == (True, True)
    assert {(o[1].batching, bool(o[1].cached)) for o in options} == set(itertools.product((True, False), repeat=2))
    assert min(again.curve(options[0]).alone_s) > 0.004  # it answers after 5 ms, a cache at once
    figures = made.parent / "figures.json"
    told: list[str] = []
    asked_for = load_test.LoadTestRequest(
        target=str(made), concurrency="2", via="embedded", seconds=0.3, hit_rate=0.5, out=figures
    )
    load_test.bench(asked_for, lambda found: figures.write_text(json.dumps(found)), told.append)
    (point,) = json.loads(figures.read_text())["measurements"]
    served = point["server"]
    assert 0.3 < served["cache_hits"] / (served["cache_hits"] + served["cache_misses"]) < 0.7
    assert json.loads(figures.read_text())["hit_rate"] == 0.5
    load_test.bench(asked_for.model_copy(update={"hit_rate": None}), lambda found: None, told.append)
    assert any("--hit-rate says how many of yours repeat" in text for text in told)


def test_where_nothing_is_better_what_ships_is_chosen_in_every_row(tuned, tmp_path):
    """Two are proved that carry the same within 3 %: the flags of the rows say what the decision says."""
    root, *_, before, folder = tuned
    kept = json.loads((folder / "measured.json").read_text())
    key = next(name for name in kept["found"] if name.startswith("curve") and name.endswith(" 1x1"))
    known = key.split()[1:3]
    for name, instances, seconds in (("1x1", 1, 0.012), ("2x1", 2, 0.006)):  # so that it is not what ships that is best
        curve = kept["found"][key] | {"instances": instances, "failed": {}, "cut_ms": None}
        kept["found"][" ".join(["curve", *known, name])] = curve | {
            "alone_s": [seconds] * 4,
            "beside_s": [seconds] * 4,
            "batches": [1, 2, 4, 8],
            "request_s": 0.0,
            "overhead_s": 0.0,
            "spread": [1.0],
        }
    ships = before["tried"][0]["label"]
    others = predict.space(SimpleNamespace(default=Settings(), max_batch=8), [(1, 1), (2, 1)], fits=8)
    for label in {ships, *map(str, others)}:  # also those that a curve of a busy machine may have left out
        held = 100.0 if label == ships else 101.0
        probes = [
            {"load": held, "throughput_per_s": held, "requests": 1000, "late": 0, "count": 3},
            {"load": held + 2, "throughput_per_s": held, "requests": 1000, "late": 900, "count": 2},
        ]
        kept["found"][" ".join(["probes", *known, f"{label} 400.0 poisson {hash(())}"])] = {"probes": probes}
    (tmp_path / "measured.json").write_text(json.dumps(kept))
    found, _ = Told().tune(asked(root, out=tmp_path))
    assert found["decision"]["verdict"] == "equivalent"
    assert found["decision"]["runner_up"] != found["decision"]["chosen"] == found["decision"]["default"]
    assert [row["default"] for row in found["tried"] if row["chosen"]] == [True]


def test_a_saturated_server_is_told_soon_and_what_it_left_undone_hits_no_later_load(tuned, tmp_path):
    """Five times what it can carry: broken before the probe's time is over; the next load finds it idle."""
    root = tuned[0]
    one = lab.subject(root, name="one", scratch=tmp_path, logs=tmp_path, via="embedded")
    goal = lab.Goal(500.0, "poisson")
    with lab.trial(one, Settings(1, 1, batching=False), tmp_path / "trial") as server:
        begin = time.monotonic()
        over = server.probe(goal, 1_000.0, seconds=60.0, least=20)
        assert time.monotonic() - begin < 50.0
        assert not over.held
        assert over.late > 0.01 * over.requests
        after = server.probe(goal, 4.0, seconds=1.0, least=4)
    assert after.late <= after.requests / 2  # a busy machine may answer some of them late


def test_a_probe_goes_over_http_where_clients_do(tuned, tmp_path, monkeypatch):
    one = lab.subject(tuned[0], name="one", scratch=tmp_path, logs=tmp_path, via="embedded", protocol="http")
    goal = lab.Goal(2000.0, "poisson")
    with lab.trial(one, None, tmp_path / "trial") as server:
        assert server.probe(goal, 4.0, seconds=1.0, least=4).late == 0
    monkeypatch.setattr(Endpoint, "http_only", lambda _: "127.0.0.1:9")
    with (
        lab.trial(one, None, tmp_path / "nowhere") as server,
        pytest.raises(StageError, match="stopped answering"),
    ):
        server.probe(goal, 50.0, seconds=1.0, least=4)


@pytest.mark.campaign
def test_a_budget_that_nothing_holds_names_the_nearest_miss(tuned):
    root, _, _, _, _, folder = tuned
    told = Told()
    with pytest.raises(CheckFailed, match=r"nothing holds p99 within 1 ms: nearest is .* take longer; .* idle server"):
        told.tune(asked(root, max_p99_ms=1.0, rate=None))
    assert json.loads((folder / "tune.json").read_text())["decision"]["verdict"] == "impossible"


@pytest.mark.campaign
def test_a_prediction_that_real_load_contradicts_is_followed_by_a_search_under_load(tuned, tmp_path, monkeypatch):
    """Curves that a hundred times slower machine might have: kept, so that nothing but the proof can show it."""
    root, *_, folder = tuned
    kept = json.loads((folder / "measured.json").read_text())
    found = {name: value for name, value in kept["found"].items() if name.startswith("curve")}
    for curve in found.values():
        curve |= {"alone_s": [0.05] * 4, "beside_s": [0.05] * 4, "batches": [1, 2, 4, 8], "failed": {}, "cut_ms": None}
    (tmp_path / "measured.json").write_text(json.dumps(kept | {"found": found}))
    monkeypatch.setattr(measured, "DIFFERS", 0.15)
    monkeypatch.setattr(measured, "PROOF", 0.0)  # as soon as it is seen
    told = Told()
    made, _ = told.tune(asked(root, out=tmp_path, trials=2, budget_s=80.0, max_p99_ms=200.0, rate=None))
    (warning,) = [w for w in made["decision"]["warnings"] if "prediction and measurement differ" in w]
    assert "predicted" in warning
    assert "has searched under real load" in warning
    assert any("searching under real load" in text for text in told.notices)
    assert made["seconds"]["search"] > 0
    assert len([row for row in made["tried"] if row["probes"]]) >= 2


def test_offline_requests_are_as_full_as_pays_and_may_take_as_long_as_they_do(tuned, tmp_path, monkeypatch):
    """On the curves that are known: a call of this model takes 5 ms, whatever it holds."""
    monkeypatch.setattr(goodput, "MOST_PROBES", 3)
    monkeypatch.setattr(proof, "CONFIRM", 1)
    root, *_, folder = tuned
    shutil.copy(folder / "measured.json", tmp_path)
    told = Told()
    found, out = told.tune(asked(root, out=tmp_path, offline=True, max_p99_ms=None, rate=None))
    assert not [d for d in told.doings if d.startswith("measuring")]
    (one,) = found["subjects"].values()
    assert (one["sizes"], one["max_batch"]) == ([8], 8)
    assert (found["goal"]["limit_ms"], found["goal"]["arrivals"]) == (None, None)
    chosen = next(row for row in found["tried"] if row["chosen"])
    best = chosen["measured"]
    assert f"items/s in requests of 8 from {best['load']:g} client" in found["decision"]["reason"]
    assert best["throughput_per_s"] > 2 * best["load"] / (best["p50_ms"] / 1e3)  # items, not requests
    assert {row["settings"]["instances"] for row in found["tried"]} == {1, 2}
    assert not [f for f in verify(out / "repository") if f.severity == "error"]


def test_what_the_time_did_not_suffice_for_is_said(tuned, tmp_path):
    """No second curve, one load for each configuration: a verdict that says so, or none."""
    root = tuned[0]
    told = Told()
    with contextlib.suppress(CheckFailed):  # the one load that was tried may hold or not
        told.tune(asked(root, out=tmp_path, budget_s=1.0))
    found = json.loads((tmp_path / "tune.json").read_text())
    assert found["decision"]["verdict"] == "undecided"
    assert found["decision"]["chosen"] is not None or "in the time there was" in found["decision"]["reason"]
    assert [d for d in told.doings if d.startswith("measuring")] == ["measuring 1 × 1 threads"]
    assert any("2 instances" in w and "no time was left" in w for w in found["decision"]["warnings"])
    assert any("not ended is the search of" in w for w in found["decision"]["warnings"])


def test_figures_of_two_calls_are_not_divided(tuned, tmp_path):
    """What ships held little in another call, and there is no time to measure it again."""
    root, *_, found, folder = tuned
    kept = json.loads((folder / "measured.json").read_text())
    best = next(row for row in found["tried"] if row["measured"])["measured"]
    names = [name for name in kept["found"] if name.startswith("probes")]
    ships = next(name for name in names if found["tried"][0]["label"] in name)
    for name in names:
        call, load = ("yesterday", 10.0) if name == ships else ("today", 900.0)
        held = best | {"load": load, "throughput_per_s": load, "late": 0, "count": 3, "calls": [call]}
        broke = held | {"load": 1.02 * load, "late": best["requests"], "count": 2}
        kept["found"][name]["probes"] = [held, broke]
    (tmp_path / "measured.json").write_text(json.dumps(kept))
    found, _ = Told().tune(asked(root, out=tmp_path, budget_s=0.001))
    decision = found["decision"]
    assert not found["tried"][0]["chosen"]
    assert (decision["gain"], decision["verdict"]) == (None, "undecided")
    assert re.search("carried 10[.0]*/s in another call", decision["reason"])
    assert "times what ships" not in (tmp_path / "report.html").read_text()


class Killing(Told):
    """Ends the server of what ships before the next one is started to be proved."""

    def progress(self, name: str, doing: str) -> None:
        super().progress(name, doing)
        if doing.startswith("starting a server"):
            for child in psutil.Process().children(recursive=True):
                if child.name().startswith("tritonserver"):
                    child.kill()


def test_a_server_that_dies_while_it_is_proved_is_told(tuned, tmp_path):
    with contextlib.suppress(StageError):
        Killing().tune(asked(tuned[0], out=tmp_path))
    found = json.loads((tmp_path / "tune.json").read_text())
    (told,) = (w for w in found["decision"]["warnings"] if "SIGKILL" in w)
    assert told.startswith(found["decision"]["default"])
    assert html.escape(told) in (tmp_path / "report.html").read_text()


def test_a_server_that_dies_before_it_is_asked_is_told(tuned, tmp_path, monkeypatch):
    before = lab._generator

    def dying(running, *more):
        os.kill(running.endpoint.pid, signal.SIGKILL)
        return before(running, *more)

    one = lab.subject(tuned[0], name="one", scratch=tmp_path, logs=tmp_path, via="embedded")
    monkeypatch.setattr(lab, "_generator", dying)
    with pytest.raises(StageError, match="SIGKILL"), lab.trial(one, None, tmp_path):
        pass


@pytest.mark.campaign
def test_a_server_that_dies_in_mid_sweep_costs_what_it_served_and_nothing_else(tmp_path, quick, monkeypatch):
    """The curves and what ships are fine; with a delay it ends under load."""
    root = misbehaving(tmp_path, DIES_IN_MID_SWEEP)
    fine, dying = Settings(1, 1, batching=False), Settings(1, 1, delay_us=500)
    monkeypatch.setattr(predict, "space", lambda one, setups, *, fits: [one.default, dying, fine])
    monkeypatch.setattr(predict, "setups", lambda sayable, cores: [(1, 1)])
    whole = asked(root, mode="brute", budget_s=None, rate=None)
    found, folder = Told().tune(whole)
    rows = {row["label"]: row for row in found["tried"]}
    (name,) = found["unfit"]
    assert "500 µs" in name
    assert "signal 9" in found["unfit"][name] or "ended" in found["unfit"][name]
    assert rows[str(fine)]["measured"]  # what came after it
    assert found["decision"]["chosen"] is not None
    assert "500 µs" not in found["decision"]["chosen"]
    kept = json.loads((folder / "measured.json").read_text())["found"]
    assert len([n for n in kept if n.startswith("probes") and "500 µs" not in n]) == 2


def test_runs_of_other_machines_share_the_table_of_costs(tuned, tmp_path, monkeypatch):
    """One was tuned where it was made, one was not; both are copies of this machine's that say they are of others."""
    root, *_, found, folder = tuned
    for name, per_s in (("quick", 4000.0), ("untuned", None)):
        run = tmp_path / name
        (run / "tuned").mkdir(parents=True)
        machine = {"id": f"{name}-machine", "cpu": {}, "gpus": []}
        (run / "run.json").write_text(json.dumps({"schema": SCHEMA, "hardware": machine}))
        if per_s is not None:
            probe = {"load": per_s, "throughput_per_s": per_s, "requests": 500, "late": 0, "count": 3}
            row = found["tried"][0] | {"probes": [probe], "measured": probe, "chosen": True}
            there = found | {"hardware": machine, "tried": [row]}
            (run / "tuned" / "tune.json").write_text(json.dumps(there))
    monkeypatch.setattr(measured, "FINALISTS", 0)
    (tmp_path / "out").mkdir()
    kept = json.loads((folder / "measured.json").read_text())
    probes = [
        {"load": 500.0, "throughput_per_s": 500.0, "requests": 1000, "late": 0, "count": 3},
        {"load": 510.0, "throughput_per_s": 500.0, "requests": 1000, "late": 900, "count": 2},
    ]
    label = f" {found['tried'][0]['label']} 400.0 poisson {hash(())}"
    kept["found"][next(name for name in kept["found"] if name.endswith(label))] = {"probes": probes}
    (tmp_path / "out" / "measured.json").write_text(json.dumps(kept))
    here = found["hardware"]["id"]
    prices = {here: Price(1.0), "quick-machine": Price(1.0)}
    targets = (root, tmp_path / "quick", tmp_path / "untuned")
    made, _ = Told().tune(asked(root, out=tmp_path / "out", prices=prices, targets=targets))
    assert [c["hardware"] for c in made["costs"]] == [here, "quick-machine"]
    assert [(c["per_s"], c["machines"]) for c in made["costs"]] == [(500.0, 3), (4000.0, 1)]
    assert made["cheapest"].startswith("cheapest for 1000/s with 20% headroom: 1 × quick-machine, 1 USD an hour")
    assert any("untuned was made on untuned-machine and was not tuned there" in w for w in made["decision"]["warnings"])


def test_memory_that_no_server_keeps_within(tuned):
    root = tuned[0]
    with pytest.raises(CheckFailed, match="no configuration keeps within 1 MiB: the smallest server takes"):
        Told().tune(asked(root, max_memory_mib=1.0))


def test_gpu_memory_that_cannot_be_known_is_no_limit_kept(tuned):
    root = tuned[0]
    with pytest.raises(CheckFailed, match=r"GPU memory of this server cannot be known.* can keep 100 MiB"):
        Told().tune(asked(root, max_gpu_memory_mib=100.0))


def test_a_limited_cost_needs_this_machines_price(tuned):
    with pytest.raises(UsageError, match=r"--max-cost needs the price of this machine .*: it has elsewhere"):
        Told().tune(asked(tuned[0], max_cost=1.0))


@pytest.mark.parametrize(
    ("limits", "said"),
    [
        ({"min_throughput": 1e9}, r"its throughput per s is .* less than 1e\+09"),
        ({"max_cost": 1e-9}, "its cost in USD per million is .* more than 1e-09"),
        ({"min_throughput": 1e9, "max_cost": 1e-9}, "its throughput per s .*; its cost in USD"),
    ],
)
def test_limits_that_nothing_keeps_give_the_nearest_miss(tuned, tmp_path, limits, said):
    root, *_, found, folder = tuned
    shutil.copy(folder / "measured.json", tmp_path)
    prices = {found["hardware"]["id"]: Price(1.0)}
    with pytest.raises(CheckFailed, match=r"nothing keeps every limit: nearest is .*: its ") as told:
        Told().tune(asked(root, **limits, prices=prices, out=tmp_path))
    assert re.search(said, told.value.message)
    document = json.loads((tmp_path / "tune.json").read_text())
    assert document["decision"]["chosen"] is None
    assert document["decision"]["verdict"] in ("impossible", "undecided")
    assert not (tmp_path / "repository").exists()


@pytest.mark.campaign
def test_a_median_that_nothing_keeps_is_named(tuned, tmp_path, monkeypatch):
    monkeypatch.setattr(measured, "FINALISTS", 0)
    root, *_, folder = tuned
    shutil.copy(folder / "measured.json", tmp_path)
    with pytest.raises(CheckFailed, match=r"holds p99 within 400 ms, p50 within 0\.01 ms: .*p50 is .* ms beyond its"):
        Told().tune(asked(root, out=tmp_path, max_p50_ms=0.01))


def test_limits_that_are_kept_stand_beside_the_choice(tuned, tmp_path):
    root, *_, found, folder = tuned
    shutil.copy(folder / "measured.json", tmp_path)
    prices = {found["hardware"]["id"]: Price(1.0)}
    limits = {"min_throughput": 1.0, "max_memory_mib": 1e6, "max_cost": 1e6}
    made, _ = Told().tune(asked(root, **limits, prices=prices, out=tmp_path))
    assert [(j["name"], j["lacks"]) for j in made["limits"]] == [
        ("throughput per s", 0.0),
        ("memory in MiB", 0.0),
        ("cost in USD per million", 0.0),
    ]
    assert made["limits"][1]["found"] > 10
    assert made["decision"]["chosen"] == found["decision"]["chosen"]


def misbehaving(folder, code):
    """Return a repository of the null model with more code in its model.py."""
    root = null_repository.write(folder, latency_ms=5.0)
    file = root / "nothing" / "1" / "model.py"
    file.write_text(file.read_text() + code)
    manifest = json.loads((root / "manifest.json").read_text())
    entry = next(f for f in manifest["files"] if f["path"] == "nothing/1/model.py")
    entry |= {"sha256": sha256_file(file), "bytes": file.stat().st_size}
    (root / "manifest.json").write_text(json.dumps(manifest))
    return root


@pytest.mark.campaign
def test_one_batch_size_fails_and_two_instances_end_the_server(tmp_path, quick):
    """Both are findings: what is left is tuned, and nothing chosen may merge four requests."""
    found, _ = Told().tune(asked(misbehaving(tmp_path, MISBEHAVES)))
    unfit = found["unfit"]
    assert "out of memory, as four items find it" in next(why for name, why in unfit.items() if "above 2" in name)
    assert any("2 instances" in name for name in unfit)
    options = [row["settings"] for row in found["tried"][1:]]
    assert options
    assert {s["instances"] for s in options} == {1}
    assert all(not s["batching"] or (s["preferred"] == [2] and s["delay_us"] == 0) for s in options)
