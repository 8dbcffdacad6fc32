"""The search for the greatest load held, against servers whose answer is known by formula."""

import math

import null_repository
import numpy as np
import pytest
from hypothesis import given, strategies as st

from accel.bench.goodput import MOST_PROBES, WITHIN, Bisection, Probe, combined, search, slow
from accel.bench.load import Load
from accel.bench.probing import Part, missing, together


def open_loop(capacity: float, asked: list[float] | None = None):
    """Return a prober of a server that holds every rate up to ``capacity``."""

    def probe(rate: float) -> Probe:
        if asked is not None:
            asked.append(rate)
        late = 0 if rate <= capacity else 50
        return Probe(rate, min(rate, capacity), 1000, late)

    return probe


@given(capacity=st.floats(0.5, 5000), start=st.floats(0.5, 5000))
def test_the_rate_found_is_within_three_percent_of_the_capacity(capacity, start):
    asked: list[float] = []
    found = search(open_loop(capacity, asked), start)
    if found.best is None:
        assert start > 60 * capacity  # began so far above that it gave up
    elif len(asked) < MOST_PROBES:
        assert capacity / (1 + WITHIN) <= found.best.load <= capacity
    assert len(asked) <= MOST_PROBES


def test_a_budget_that_nothing_holds_ends_soon_and_says_so():
    found = search(lambda rate: Probe(rate, rate, 300, 300), 100.0)
    assert found.best is None
    assert found.broken == min(p.load for p in found.probes) < 5
    assert len(found.probes) <= 8


@pytest.mark.parametrize(("clients", "expected"), [(1, 1), (5, 5), (13, 13)])
def test_a_closed_loop_is_searched_in_whole_clients(clients, expected):
    """Latency grows with the clients, and so does throughput, a little."""

    def probe(load: float) -> Probe:
        return Probe(load, 100 * load, 500, 0 if load <= clients else 400)

    found = search(probe, 1, whole=True)
    assert found.best is not None
    assert found.best.load == expected
    assert all(p.load == int(p.load) for p in found.probes)


def test_an_estimate_that_is_far_off_costs_a_few_probes():
    for start in (1.0, 5000.0):
        found = Bisection(start, growth=1.15, confirm=3)
        asked = 0
        while (load := found.next()) is not None:
            found.add(open_loop(200.0)(load))
            asked += 1
        assert found.best.load == pytest.approx(200, rel=0.04)
        assert asked <= 20


def test_a_closed_loop_ends_where_more_clients_bring_nothing():
    found = search(lambda load: Probe(load, min(100.0, 40 * load), 500, 0), 1, whole=True)
    assert found.best is not None
    assert found.best.throughput_per_s == 100
    assert len(found.probes) < 9


def test_a_load_that_held_by_chance_is_found_out():
    """The first probe of each load is lucky; the load that is found was probed three times."""
    seen: dict[float, int] = {}
    found = Bisection(60.0, confirm=3)
    while (load := found.next()) is not None:
        seen[load] = seen.get(load, 0) + 1
        found.add(Probe(load, load, 300, 0 if load <= 100 or (load <= 130 and seen[load] == 1) else 30))
    assert found.best.load <= 100
    assert found.best.load >= 100 / (1 + WITHIN) ** 2
    assert (found.best.count, found.best.requests) == (3, 900)


def test_one_stall_does_not_bound_what_is_carried():
    """The first probe of 100/s is hit by something else; the server carries 200/s."""
    found, calm = Bisection(100.0, growth=1.15, confirm=3), open_loop(200.0)
    stalled = True
    while (load := found.next()) is not None:
        found.add(Probe(load, load, 1000, 15) if stalled else calm(load))
        stalled = False
    assert found.best.load == pytest.approx(200, rel=0.04)


def test_a_stall_of_the_least_load_does_not_show_that_nothing_is_held():
    """Of one client the first probe is hit by something else, and there is no smaller load."""
    found = Bisection(1, whole=True, growth=2, confirm=3)
    found.add(Probe(1, 20.0, 100, 15))
    assert found.next() == 1
    found.add(Probe(1, 20.0, 3000, 0))
    assert found.next() == 2
    found.probes = [Probe(1, 20.0, 100, 15, count=2)]
    assert found.next() is None


def test_a_stall_of_a_median_is_made_up_for_by_the_next_probe():
    """The first probe broke the median's budget with 60 of 100; of all 400 requests 60 are slow."""
    latency = np.array([30.0] * 60 + [10.0] * 40)
    broke = Probe(100.0, 100.0, 100, 0, over={"p50": 10.0}, slow=slow(latency, 100, {"p50": 20.0}))
    calm = Probe(100.0, 100.0, 300, 0, slow={"p50": (0, 300)})
    assert not broke.held
    assert broke.with_more(calm).held
    assert calm.with_more(broke).held
    assert not broke.with_more(broke).with_more(broke).held
    both = combined(100.0, {"m": broke, "n": calm}).with_more(combined(100.0, {"m": calm, "n": calm}))
    assert both.held
    assert both.slow == {"m p50": (60, 400), "n p50": (0, 600), "m p99": (0, 400), "n p99": (0, 600)}


def test_a_server_that_grew_slower_is_followed_down_when_all_probes_were_made():
    """What held in a search breaks when it is confirmed: that nothing is held would not have been shown."""
    found = Bisection(100.0)
    while (load := found.next()) is not None:
        found.add(open_loop(140.0)(load))
    while sum(p.count for p in found.probes) < MOST_PROBES:
        found.add(Probe(found.best.load, found.best.load, 1000, 0))
    slower = open_loop(20.0)
    for known in [p.load for p in found.probes if p.held]:
        for _ in range(MOST_PROBES):
            found.add(slower(known))
    assert found.best is None
    asked = 0
    while (load := found.next()) is not None:
        found.add(slower(load))
        asked += 1
    assert 5 <= found.best.load <= 20
    assert asked <= 8


def test_late_counts_against_the_share_that_p99_allows():
    assert Probe(1, 1, 300, 3).held
    assert not Probe(1, 1, 300, 4).held
    assert Bisection(4.0).best is None
    assert math.isinf(Bisection(4.0).broken)


@pytest.mark.campaign
@pytest.mark.slow
def test_a_real_server_holds_what_it_can_and_breaks_above_it(generator):
    """40 ms a call of up to 8 items: a rate of 5/s is held at a budget of seconds, none at a budget below a call."""
    sent = [null_repository.feed((1, 4))]
    generator.open("slow", sent)
    (easy,) = together([Part(generator, Load(rate_per_s=5), 2000, [1], least=10)], seconds=0.5)
    assert easy.held
    assert easy.late == easy.failures == 0
    assert easy.p50_ms > 40
    (hard,) = together([Part(generator, Load(rate_per_s=5), 39, [1], least=10)], seconds=0.5)
    assert not hard.held
    assert hard.late == hard.requests  # none can be answered in less than the call takes
    generator.open("slow", [null_repository.feed((8, 4))])
    (flood,) = together([Part(generator, Load(rate_per_s=200), 150, [8], least=100)], seconds=2.0)
    assert not flood.held
    assert flood.throughput_per_s < 8 * 25 * 1.1  # 25 calls of 8 items in a second are what it can do
    (after,) = together([Part(generator, Load(rate_per_s=5), 2000, [8], least=10)], seconds=0.5)
    assert after.held  # the flood's backlog is gone


def test_what_is_due_and_unanswered_is_late():
    drawn = Load(rate_per_s=100, arrivals="poisson")
    assert missing(drawn, 0.0, 10.0, 100.0, ended=990) == 0
    assert missing(drawn, 0.0, 10.0, 100.0, ended=900) == 0  # chance may explain so many
    assert missing(drawn, 0.0, 10.0, 100.0, ended=400) == 495
    assert missing(drawn, 0.0, 0.05, 100.0, ended=0) == 0


def test_of_a_recording_it_is_known_what_is_due():
    """5/s for 10 s, then 50/s for 20 s: at its beginning a server that answers all of 35/s is not behind."""
    gaps = (0.2,) * 50 + (0.02,) * 1000
    own = Load(rate_per_s=35.0, arrivals="recorded", gaps_s=gaps)
    assert [own.due(seconds) for seconds in (-1.0, 0.0, 1.0, 10.0, 12.0, 30.0, 31.0)] == [0, 0, 5, 50, 150, 1050, 1055]
    assert missing(own, 0.0, 8.1, 100.0, ended=40) == 0
    assert missing(own, 0.0, 8.1, 100.0, ended=30) == 10
    assert missing(own, 10.0, 2.1, 100.0, ended=60) == 40
    twice = Load(rate_per_s=70.0, arrivals="recorded", gaps_s=gaps)
    assert twice.due(5.0) == own.due(10.0)
    even = Load(rate_per_s=10.0, arrivals="constant")
    assert [even.due(seconds) for seconds in (0.0, 0.05, 0.1, 1.0)] == [1, 1, 2, 11]
    assert missing(even, 0.3, 1.0, 100.0, ended=9) == 0
    assert Load(concurrency=2).due(1.0) is None


def test_models_that_share_a_server_are_judged_each_by_all_of_its_probes():
    def seen(bert: int, minilm: int) -> Probe:
        return combined(100.0, {"bert": Probe(10, 10, 300, bert), "minilm": Probe(90, 90, 2400, minilm)})

    probes = [seen(2, 1), seen(9, 1), seen(1, 10)]
    whole = probes[0].with_more(probes[1]).with_more(probes[2])
    assert (whole.late, whole.requests) == (12, 900), "bert, in all three; not the worst of each"
    assert not whole.held
    assert seen(2, 1).with_more(seen(4, 10)).held
    assert not seen(4, 1).held


def test_of_clients_the_fewest_that_carry_the_most_count():
    """Of 1, 2, 4, … the search ends soon after more of them bring nothing, and their noise does not lead it on."""
    carried = {1: 50.0, 2: 98.0, 4: 100.0, 8: 101.0}
    found = search(lambda n: Probe(n, carried.get(int(n), 100.5), 300, 0), 1, whole=True)
    assert found.best is not None
    assert found.best.load == 2
    assert max(p.load for p in found.probes) <= 16
