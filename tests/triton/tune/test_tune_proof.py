"""Which configuration is chosen of what was proved."""

import contextlib
import math
import types

import numpy as np
import pytest

from accel.bench import machine_noise
from accel.bench.goodput import Probe, over
from accel.cli import tuning
from accel.core.errors import StageError
from accel.triton.settings import Settings
from accel.triton.tune import measured, proof, session
from accel.triton.tune.constraints import TuneLimits, judge, keeps_memory, within
from accel.triton.tune.cost import Price
from accel.triton.tune.lab import Goal, Subject
from accel.triton.tune.limits import Deadline
from accel.triton.tune.measured import Measuring, contradicts
from accel.triton.tune.proof import ConfigurationRunner, choose

ONE = Subject("s", None, None, None, "m", "m", "python", feeds=(), sizes=(1,), max_batch=1, default=Settings())  # type: ignore[arg-type]


def runner(instances: int, held: float, broken: float = math.inf) -> ConfigurationRunner:
    """One that held a load, and broke at another."""
    known = [Probe(held, held, 1000, 0, count=3)] if held else []
    if broken < math.inf:
        known.append(Probe(broken, held, 1000, 900, count=2))
    return ConfigurationRunner(ONE, Settings(instances), Goal(100.0, "poisson"), held or 100.0, 1.0, 1, known=known)


@pytest.mark.parametrize(
    ("ships", "other", "chosen", "verdict"),
    [
        ((100, 103), (150, 155), 2, "decided"),
        ((100, 102), (101, 103), 1, "equivalent"),  # nothing is better than what ships
        ((100, 105), (104, 107), 2, "equivalent"),
        ((100, 101), (101, 102), 1, "equivalent"),
        ((100, 120), (101, 130), 1, "undecided"),
        ((100, 120), (104, 107), 2, "undecided"),
        ((100, 102), (0, 1), 1, "decided"),
        ((0, 1), (0, 1), None, "impossible"),
        ((0, 50), (0, 1), None, "undecided"),  # the search was stopped before it came to loads that may hold
        ((0, 1), (10, 11), 2, "decided"),
    ],
)
def test_the_choice_and_what_it_is_worth(ships, other, chosen, verdict):
    alive = [runner(1, *ships), runner(2, *other)]
    best, said = choose(alive, alive[0])
    assert (best and best.settings.instances, said) == (chosen, verdict)


@pytest.mark.parametrize(
    ("limits", "name", "found", "lacks"),
    [
        (TuneLimits(min_throughput_per_s=50), "throughput per s", 100.0, 0.0),
        (TuneLimits(min_throughput_per_s=125), "throughput per s", 100.0, 0.2),
        (TuneLimits(max_memory_mib=600), "memory in MiB", 500.0, 0.0),
        (TuneLimits(max_memory_mib=400), "memory in MiB", 500.0, 0.25),
        (TuneLimits(max_gpu_memory_mib=400), "GPU memory in MiB", None, 1.0),
        (TuneLimits(max_cost=10), "cost in USD per million", 1 / 0.36, 0.0),
        (TuneLimits(max_cost=1 / 0.72), "cost in USD per million", 1 / 0.36, 1.0),
    ],
)
def test_each_limit_is_judged_at_the_load_that_was_held(limits, name, found, lacks):
    one = runner(1, 100.0, 102.0)
    one.memory_mib = 500.0
    (judged,) = judge(one, limits, {"here": Price(1.0)}, "here")
    assert judged.name == name
    assert judged.found == pytest.approx(found)
    assert judged.lacks == pytest.approx(lacks)
    assert within([judged]) == (lacks == 0)
    assert judge(one, TuneLimits(), {}, "here") == ()


def test_a_percentile_counts_what_was_not_answered():
    latency = np.arange(1.0, 91.0)  # of 100 requests ten were not answered
    limits = {"p50": 49.0, "p90": 90.0, "p95": 1000.0}
    assert over(latency, 100, limits) == {"p50": 1.0, "p95": None}
    assert over(latency, 100, {"p50": 50.0}) == {}
    held = Probe(1, 1, 1000, 0, over=over(latency, 100, limits))
    assert not held.held
    assert not Probe(1, 1, 1000, 0).with_more(held).held


def test_a_load_that_was_probed_once_decides_nothing():
    once = [Probe(150, 150, 1000, 0), Probe(155, 150, 1000, 900, count=2)]
    lucky = ConfigurationRunner(ONE, Settings(2), Goal(100.0, "poisson"), 150.0, 1.0, 1, known=once)
    default = runner(1, 100, 102)
    assert choose([default, lucky], default) == (lucky, "undecided")
    lucky.search.add(Probe(150, 150, 2000, 0, count=2))
    assert choose([default, lucky], default) == (lucky, "decided")
    stalled = ConfigurationRunner(
        *(ONE, Settings(3), Goal(100.0, "poisson"), 100.0, 1.0, 1),
        known=[Probe(100, 100, 1000, 0, count=3), Probe(103, 100, 1000, 900)],
    )
    assert choose([default, lucky, stalled], default) == (lucky, "undecided"), "one stall may bound what it carries"


def test_an_open_loop_holds_its_load_and_not_what_chance_sent():
    known = [Probe(100, 104.0, 300, 0, count=3), Probe(103, 99.0, 300, 90, count=2)]
    one = ConfigurationRunner(ONE, Settings(2), Goal(100.0, "poisson"), 100.0, 1.0, 1, known=known)
    assert (one.held, one.most) == (100, 103)
    closed = ConfigurationRunner(ONE, Settings(2), Goal(100.0, None), 2, 1.0, 1, known=[Probe(2, 96.0, 300, 0)])
    assert closed.held == 96.0


def test_one_that_left_comes_back_where_what_beat_it_did_not_hold(monkeypatch):
    class Lucky(Answering):
        """The first two probes hold whatever is sent."""

        left = 2

        def probe(self, goal: Goal, level: float, **how: object) -> Probe:
            self.left -= 1
            return Probe(level, level, 1000, 0 if self.left >= 0 or level <= 80 else 500)

    opened: list[int] = []

    @contextlib.contextmanager
    def served(subject, settings, scratch):
        opened.append(settings.instances)
        yield (Lucky if settings.instances == 1 else Answering)(120.0, 500.0, stalls=False)

    monkeypatch.setattr(proof, "trial", served)
    monkeypatch.setattr(machine_noise, "disturbed", lambda turn, threads: False)
    made = [
        ConfigurationRunner(ONE, Settings(n), Goal(100.0, "poisson"), start, 1.0, 1)
        for n, start in ((1, 200.0), (2, 130.0))
    ]
    failed, _ = proof.prove(made, progress=lambda name, doing: None)
    assert not failed
    assert made[1].held == pytest.approx(120, rel=0.04)
    assert opened.count(2) == 2


def test_what_ships_is_not_chosen_where_its_server_failed():
    default, *alive = runner(1, 100, 102), runner(2, 100, 102), runner(3, 101, 103)
    best, said = choose(alive, default)
    assert (best and best.settings.instances, said) == (3, "equivalent")


def test_of_clients_more_than_which_were_tried_no_more_is_claimed():
    """At two clients the budget breaks and 90/s are answered: that bounds nobody's goodput at one client."""
    made = []
    for instances, held, late in ((1, 50.0, 90.0), (2, 45.0, 85.0)):
        known = [Probe(1, held, 1000, 0, count=3), Probe(2, late, 1000, 900, count=2)]
        made.append(ConfigurationRunner(ONE, Settings(instances), Goal(100.0, None), 1, 1.0, 1, known=known))
    assert all(one.search.next() is None for one in made)
    best, said = choose(made, made[0])
    assert (best and best.settings.instances, said) == (1, "decided")


class Answering:
    """A server that carries so many requests per second; its first probe may be hit by something else."""

    def __init__(self, carries: float, memory_mib: float, *, stalls: bool) -> None:
        self._carries, self._memory_mib, self._stalls = carries, memory_mib, stalls

    def warm(self, largest: int, instances: int) -> None:
        """Meet each batch size once: there is none."""

    def probe(self, goal: Goal, level: float, **how: object) -> Probe:
        stalled, self._stalls = self._stalls, False
        return Probe(level, level, 1000, 15 if stalled or level > self._carries else 0)

    def memory_mib(self) -> float:
        return self._memory_mib

    def gpu_memory_mib(self) -> None:
        return None


def proved(monkeypatch, *carries, stalls=False, memory_mib=(500.0, 500.0), limits=None, **how):
    """Prove what ships and another configuration; the other may stall once."""
    made = [
        ConfigurationRunner(ONE, Settings(n), Goal(100.0, "poisson"), 100.0, 1.0, 1) for n in range(1, 1 + len(carries))
    ]

    @contextlib.contextmanager
    def served(subject, settings, scratch):
        n = settings.instances - 1
        yield Answering(carries[n], memory_mib[n], stalls=stalls and n == 1)

    monkeypatch.setattr(proof, "trial", served)
    monkeypatch.setattr(machine_noise, "disturbed", lambda turn, threads: False)  # other tests run beside this one
    fits = (lambda one: keeps_memory(one, limits)) if limits else lambda one: True
    failed, _ = proof.prove(made, progress=lambda name, doing: None, fits=fits, **how)
    assert not failed
    return made


def test_a_stall_does_not_drive_the_better_one_out(monkeypatch):
    """The other one carries twice as much, but its first probe, at what the default holds, breaks."""
    ships, other = proved(monkeypatch, 120.0, 240.0, stalls=True)
    assert ships.held == pytest.approx(120, rel=0.04)
    assert other.held == pytest.approx(240, rel=0.04)


def test_one_that_really_breaks_leaves_after_a_second_look(monkeypatch):
    _, other = proved(monkeypatch, 240.0, 50.0)
    assert max(p.count for p in other.search.probes) == 2
    assert other.held < 50


def test_what_may_not_be_chosen_drives_nobody_out(monkeypatch):
    """What ships carries more, with more memory than it may take."""
    limits = TuneLimits(max_memory_mib=600.0)
    ships, other = proved(monkeypatch, 240.0, 80.0, memory_mib=(900.0, 500.0), limits=limits)
    assert ships.held == pytest.approx(240, rel=0.04)
    assert other.held == pytest.approx(80, rel=0.04)
    assert other.search.next() is None


class Session(Measuring):
    """A session whose runners are known, after a first proof that has chosen one."""

    def __init__(self, known: dict[int, ConfigurationRunner], chosen: int) -> None:
        self._asked = types.SimpleNamespace(mode="predict", limits=TuneLimits(), prices={})  # type: ignore[assignment]
        self._known, self.chosen = known, known[chosen]
        self._seconds, self._in_all, self._unfit, self._noise, self._cut = {}, {}, {}, [], False
        self._deadline, self._stage = Deadline(None), lambda name: None
        self._kept = types.SimpleNamespace(put=lambda name, value: None)  # type: ignore[assignment]

    def _runner(self, option, confirm=None):
        return self._known[option[1].instances]


def test_what_the_first_proof_chose_is_chosen_where_the_search_did_not_try_it(monkeypatch):
    monkeypatch.setattr(measured, "prove", lambda runners, **how: ({}, []))
    session = Session({1: runner(1, 100, 102), 2: runner(2, 150, 153), 3: runner(3, 110, 112)}, chosen=2)
    session._prove(("s", Settings(1)), [("s", Settings(3))])
    assert session.chosen is not None
    assert session.chosen.settings.instances == 2


@pytest.mark.parametrize(("over", "stops"), [(0.5, False), (0.7, True), (0.9, False)])
def test_a_proof_ends_for_a_search_only_while_one_can_begin(monkeypatch, over, stops):
    """What broke twice below its prediction, as shares of the time go by: no search, no reason to end the proof."""
    wrong = ConfigurationRunner(
        *(ONE, Settings(1), Goal(100.0, "poisson"), 100.0, 1.0, 1, Probe(100, 100.0, 1000, 0)),
        known=[Probe(80, 80.0, 1000, 500), Probe(60, 60.0, 1000, 500)],
    )
    asked: list[bool] = []
    monkeypatch.setattr(measured, "prove", lambda runners, *, stop, **how: (asked.append(stop()) or {}, []))
    session = Session({1: wrong}, chosen=1)
    session._deadline = types.SimpleNamespace(left=lambda share=1.0: share - over)  # type: ignore[assignment]
    session._prove(("s", Settings(1)), [])
    assert asked == [stops]


@pytest.mark.parametrize(
    ("carries", "probed", "held"),
    [((10.0, 5.0), (6, 1), True), ((0.1, 0.1), (6, 1), False), ((10.0, 240.0), (1, 1), True)],
)
def test_time_that_is_over_ends_no_proof_without_a_figure_for_what_ships(monkeypatch, carries, probed, held):
    """Both begin at 100/s; another one that holds that is a figure, too."""
    made = proved(monkeypatch, *carries, budget_s=0.0)
    assert tuple(sum(p.count for p in one.search.probes) for one in made) == probed
    assert (max(one.held for one in made) > 0) == held
    assert choose(made, made[0])[1] == "undecided"


def test_a_search_that_follows_is_not_held_up_for_a_figure(monkeypatch):
    made = proved(monkeypatch, 10.0, 5.0, stop=lambda: True)
    assert [len(one.search.probes) for one in made] == [1, 1]


def test_one_stall_contradicts_no_prediction():
    """What was predicted to hold 100/s broke at 80, once; then at 60 as well."""
    predicted = Probe(100, 100.0, 1000, 0)
    one = ConfigurationRunner(
        *(ONE, Settings(2), Goal(100.0, "poisson"), 100.0, 1.0, 1, predicted), known=[Probe(80, 80.0, 1000, 500)]
    )
    assert not contradicts(one)
    one.search.add(Probe(60, 60.0, 1000, 500))
    assert contradicts(one)


def test_what_breaks_just_below_its_prediction_contradicts_nothing():
    predicted = Probe(100, 100.0, 1000, 0)
    known = [Probe(88, 88.0, 1000, 0, count=3), Probe(90, 90.0, 1000, 500, count=2)]
    one = ConfigurationRunner(*(ONE, Settings(2), Goal(100.0, "poisson"), 100.0, 1.0, 1, predicted), known=known)
    assert not contradicts(one)


def earlier(instances: int, *, call: str) -> ConfigurationRunner:
    """One whose search an earlier call has ended: it held 200/s."""
    known = [
        Probe(200, 200.0, 1000, 0, count=3, calls=("yesterday",)),
        Probe(205, 200.0, 1000, 900, count=2, calls=("yesterday",)),
    ]
    goal = Goal(100.0, "poisson")
    return ConfigurationRunner(ONE, Settings(instances), goal, 150.0, 1.0, 1, known=known, call=call)


@pytest.mark.parametrize("also", [True, False])
def test_what_another_call_measured_is_measured_again_beside_what_goes_on(monkeypatch, also):
    """The machine carries half of what it did; where nothing goes on, one call has measured all of it."""
    levels: list[float] = []

    class Slower(Answering):
        def probe(self, goal: Goal, level: float, **how: object) -> Probe:
            levels.append(level)
            return super().probe(goal, level, **how)

    @contextlib.contextmanager
    def served(subject, settings, scratch):
        yield Slower(100.0, 500.0, stalls=False)

    monkeypatch.setattr(proof, "trial", served)
    monkeypatch.setattr(machine_noise, "disturbed", lambda turn, threads: False)
    made = [earlier(1, call="today"), earlier(2, call="today")]
    if also:
        made.append(ConfigurationRunner(ONE, Settings(3), Goal(100.0, "poisson"), 90.0, 1.0, 1, call="today"))
    proof.prove(made, progress=lambda name, doing: None)
    assert proof.calls(made) == ({"today"} if also else {"yesterday"})
    assert [one.held for one in made] == pytest.approx([100.0] * 3 if also else [200.0] * 2, rel=0.04)
    assert levels[:1] == ([200] if also else [])  # where it had ended


def test_time_that_is_over_keeps_what_another_call_measured(monkeypatch):
    made = [earlier(1, call="today"), runner(2, 100, 102)]
    made[1].search.probes[0] = Probe(100, 100, 1000, 0, count=3, calls=("today",))
    failed, _ = proof.prove(made, progress=lambda name, doing: None, budget_s=0.0)
    assert not failed
    assert (made[0].held, proof.calls(made)) == (200, {"yesterday", "today"})


def test_a_proof_ends_where_what_ships_has_died_and_nothing_holds(monkeypatch):
    class Dead(Answering):
        def probe(self, goal: Goal, level: float, **how: object) -> Probe:
            raise StageError("the server was ended by SIGKILL")

    @contextlib.contextmanager
    def served(subject, settings, scratch):
        yield (Dead if settings.instances == 1 else Answering)(0.0, 500.0, stalls=False)

    monkeypatch.setattr(proof, "trial", served)
    monkeypatch.setattr(machine_noise, "disturbed", lambda turn, threads: False)
    made = [ConfigurationRunner(ONE, Settings(n), Goal(100.0, "poisson"), 100.0, 1.0, 1) for n in (1, 2)]
    failed, _ = proof.prove(made, progress=lambda name, doing: None)
    assert list(failed) == [made[0].name]
    assert made[1].search.next() is None


def test_what_is_said_of_one_without_a_figure_and_of_a_prediction():
    words = [session.so_far(one) for one in (runner(1, 100, 102), runner(1, 0, 50), runner(1, 0))]
    assert words == ["100/s so far", "no load held so far", "not measured"]
    predicted = Probe(1533, 1529.0, 1000, 0)
    known = [Probe(1000, 1000.0, 1000, 0, count=3)]
    one = ConfigurationRunner(ONE, Settings(2), Goal(100.0, "poisson"), 100.0, 1.0, 1, predicted, known=known)
    assert "predicted 1,529/s, measured 1,000/s" in measured.difference(one)
    row = {"predicted": None, "measured": None, "carries_per_s": None, "memory_mib": None, "chosen": False}
    shown = tuning._row(row | {"default": True, "repository": "s", "label": "1 instance"})
    assert (shown[""], shown["carries/s"], shown["p50 ms"]) == ("as it ships", "—", "—")
