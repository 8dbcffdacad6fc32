"""The choice: right before fast, ties by precision, a reason for everyone."""

import dataclasses
import math
import types
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, strategies as st

from accel.core.values import GpuUse, MachineNoise, Measurement, Parity, Target, Variant
from accel.run import results
from accel.run.decide import Candidate, Constraints, decide, finalists
from accel.run.results import VariantState
from accel.run.stages import Proof, Stage

rng = np.random.default_rng(0)


def point(ms, *, scenario="latency", batch=1, session="s1", noise=0.005, p99=None, rss=100.0, seed=0, rounds=10):
    drift = 1 + 0.2 * np.sin(np.arange(rounds))  # hits all variants of a session alike
    jitter = 1 + noise * np.random.default_rng(seed).standard_normal(rounds)
    times = tuple(float(t) for t in ms * drift * jitter)
    return Measurement(
        scenario=scenario,
        via="inprocess",
        backend="x",
        batch=batch,
        concurrency=1,
        threads=2,
        shapes={},
        p50_ms=float(np.median(times)),
        p90_ms=None,
        p95_ms=None,
        p99_ms=p99,
        p99_ci_ms=None if p99 is None else (p99 * 0.9, p99 * 1.1),
        mean_ms=float(np.mean(times)),
        p50_ci_ms=(ms, ms),
        throughput_per_s=1e3 / ms,
        throughput_ci_per_s=(0.9e3 / ms, 1.1e3 / ms),
        stable=True,
        samples=1000,
        raw="",
        peak_rss_mib=rss,
        load_ms=1,
        first_ms=1,
        effective_precision="fp32",
        rounds_ms=times,
        session=session,
    )


def candidate(id, ms, *, status="ok", precision="fp32", size=100, choosable=True, **options):
    seed = sum(map(ord, id))
    return Candidate(
        id,
        status,
        None if status == "ok" else f"{status}!",
        precision,
        size,
        (point(ms, seed=seed, **options),),
        choosable,
    )


def choose(*candidates, objective="latency", baseline="torch", **constraints):
    return decide(
        candidates, device="cpu", objective=objective, constraints=Constraints(**constraints), baseline=baseline
    )


def test_the_fastest_that_passes_wins_and_all_others_have_a_reason():
    found = choose(
        candidate("torch", 100), candidate("ort", 50), candidate("ov", 20), candidate("trt", 1, status="skipped")
    )
    assert found.chosen == "ov"
    assert dict(found.rejected).keys() == {"torch", "ort", "trt"}
    assert "2.5" in dict(found.rejected)["ort"]
    assert dict(found.rejected)["trt"] == "skipped!"
    assert found.speedup == pytest.approx(5, rel=0.02)
    assert found.speedup_ci[0] <= found.speedup <= found.speedup_ci[1]


@pytest.mark.parametrize("status", ["gate_failed", "failed", "skipped", "deferred"])
def test_a_fast_wrong_variant_cannot_win(status):
    found = choose(candidate("torch", 100), candidate("wrong", 0.001, status=status))
    assert found.chosen == "torch"
    assert "nothing that passes beats" in found.reason


def test_a_variant_without_a_repository_cannot_win():
    assert choose(candidate("torch", 100), candidate("tf", 1, choosable=False)).chosen == "torch"


def test_a_tie_goes_to_the_higher_precision_then_the_smaller():
    rows = {"rounds": 30}
    found = choose(
        candidate("a", 10.0, precision="int8", **rows), candidate("b", 10.1, precision="bf16", **rows), baseline=None
    )
    assert (found.chosen, found.ties) == ("b", ("a",))
    assert (found.verdict, found.undecided) == ("decided", ())
    assert "bf16" in dict(found.rejected)["a"]
    found = choose(candidate("a", 10.0, size=200, **rows), candidate("b", 10.1, size=100, **rows), baseline=None)
    assert found.chosen == "b"


def test_noise_is_no_tie_and_picks_no_slower_variant():
    """The interval reaches from 0.4 to 1.1: the faster one ships, whatever the precision, and nobody says decided."""
    found = choose(
        candidate("bf16", 34.0, precision="bf16", noise=0.3), candidate("int8", 22.0, precision="int8"), baseline=None
    )
    assert (found.chosen, found.ties) == ("int8", ())
    assert (found.verdict, found.undecided) == ("undecided", ("bf16",))
    assert "undecided between it and bf16" in found.reason
    assert "--budget-s" in dict(found.rejected)["bf16"]


def test_a_variant_that_left_early_is_compared_by_the_rounds_it_had():
    found = choose(candidate("torch", 100.0, rounds=6), candidate("ov", 20.0, rounds=25))
    assert found.chosen == "ov"
    assert found.speedup == pytest.approx(5, rel=0.02)


def test_a_busy_machine_is_said_beside_the_speed_up():
    busy = MachineNoise(0.9, 1.0, 0.0, 3.0, disturbed_rounds=5, repeated=6)
    slow = dataclasses.replace(point(100), noise=busy)
    found = choose(Candidate("torch", "ok", None, "fp32", 1, (slow,)), candidate("ov", 20))
    assert "100% of a core in 5 rounds" in found.warning
    assert choose(candidate("torch", 100), candidate("ov", 20)).warning is None
    assert (
        choose(Candidate("other", "ok", None, "fp32", 1, (slow,)), candidate("ov", 20), baseline=None).warning is None
    )


def test_throughput_is_demanded_of_the_point_that_is_chosen():
    points = tuple(point(ms, scenario=s, batch=b) for s, b, ms in (("latency", 1, 10), ("throughput", 8, 2)))
    both = Candidate("a", "ok", None, "fp32", 1, points)
    assert choose(both, objective="throughput", min_throughput_per_s=200, baseline=None).chosen == "a"
    assert choose(both, objective="latency", min_throughput_per_s=200, baseline=None).chosen is None


def test_no_tie_beyond_three_percent():
    found = choose(candidate("a", 10.0, precision="int8"), candidate("b", 10.6, precision="fp32"), baseline=None)
    assert (found.chosen, found.ties) == ("a", ())


def test_drift_common_to_a_session_does_not_blur_the_ratio():
    """Rounds swing by ±20 % together; the paired ratio still tells 5 % apart."""
    assert choose(candidate("a", 10.0), candidate("b", 10.5, precision="fp32"), baseline=None).chosen == "a"


def test_sessions_meet_through_the_baseline():
    base = Candidate("torch", "ok", None, "fp32", 1, (point(100), point(200, session="s2")))
    old = candidate("old", 50)
    new = candidate("new", 80, session="s2")  # slower in ms, but in a session where everything took twice as long
    found = choose(base, old, new)
    assert found.chosen == "new"
    assert found.speedup == pytest.approx(2.5, rel=0.03)


def test_sessions_without_the_baseline_are_not_compared_by_their_milliseconds():
    """The first run had no baseline; one point in ms and one in units of the baseline share no scale."""
    a = Candidate("a", "ok", None, "fp32", 1, (point(8), point(10, session="s2")))
    b = Candidate("b", "ok", None, "fp32", 1, (point(12, session="s2", seed=1),))
    base = Candidate("torch", "ok", None, "fp32", 1, (point(100, session="s2", seed=2),))
    found = choose(a, b, base)
    assert found.chosen == "a"
    assert found.speedup == pytest.approx(10, rel=0.02)
    assert finalists([a, b, base], objective="latency", baseline="torch", most=1) == ["a", "torch"]


def test_what_never_met_is_told_so():
    found = choose(candidate("a", 10), candidate("b", 5, session="s2"), baseline=None)
    assert found.chosen == "b"
    assert "never measured beside" in dict(found.rejected)["a"]
    assert (found.verdict, found.undecided) == ("undecided", ("a",)), "times of two sessions decide nothing"


def test_variants_of_two_sessions_meet_at_one_batch_of_the_baseline():
    def both(session, fast):
        return (
            point(10, scenario="throughput", batch=1, session=session),
            point(fast, scenario="throughput", batch=8, session=session),
        )

    base = Candidate("torch", "ok", None, "fp32", 1, (*both("s1", 9.0), *both("s2", 11.0)))
    old, new = (candidate(f"v-{s}", 5, scenario="throughput", session=s) for s in ("s1", "s2"))
    found = choose(base, old, new, objective="throughput")
    assert found.chosen == "v-s1", "they tie there, and it came first"
    assert found.speedup == pytest.approx(1.8, rel=0.03), "over its session's best"


def test_the_baseline_stands_where_it_was_timed_in_most_rounds():
    """At its larger batch it left after three rounds, a little faster; what it is compared by stayed for ten."""
    full = point(100, scenario="throughput", batch=8, rounds=10)
    left = point(99, scenario="throughput", batch=16, rounds=3, noise=0.2, seed=3)
    base = Candidate("torch", "ok", None, "fp32", 1, (left, full))
    found = choose(base, candidate("fast", 12, scenario="throughput", batch=8), objective="throughput")
    assert found.chosen == "fast"
    assert found.speedup == pytest.approx(100 / 12, rel=0.03)
    assert found.speedup_ci[1] / found.speedup_ci[0] < 1.1


def test_finalists_are_those_that_may_be_chosen():
    heavy = [candidate(f"heavy{n}", 10 + n, rss=900) for n in range(3)]
    field = [*heavy, candidate("light", 30), candidate("torch", 100)]
    limits = Constraints(max_memory_mib=300)
    assert finalists(field, objective="latency", baseline="torch", constraints=limits) == ["light", "torch"]


def test_an_older_session_does_not_excuse_a_broken_constraint():
    swings = Candidate("a", "ok", None, "fp32", 1, (point(10, p99=20), point(10, p99=40, session="s2")))
    found = choose(swings, max_p99_ms=25, baseline=None)
    assert found.chosen is None
    assert "upper bound" in dict(found.rejected)["a"]


def test_a_point_whose_median_breaks_the_p99_limit_needs_no_p99():
    slow = Candidate("a", "ok", None, "fp32", 1, (point(10, batch=1, p99=12), point(400, batch=8)))
    found = choose(slow, max_p99_ms=25, baseline=None)
    assert found.chosen == "a"
    found = choose(Candidate("a", "ok", None, "fp32", 1, (point(400, batch=8),)), max_p99_ms=25, baseline=None)
    assert "p50 is at least" in found.rejected[0][1]


def test_p99_is_held_by_its_upper_bound():
    assert choose(candidate("a", 10, p99=12), candidate("b", 20, p99=22), max_p99_ms=25, baseline=None).chosen == "a"
    found = choose(candidate("a", 10, p99=24), candidate("b", 20, p99=22), max_p99_ms=25, baseline=None)
    assert found.chosen == "b"
    assert "upper bound" in dict(found.rejected)["a"]
    assert choose(candidate("a", 10), max_p99_ms=25, baseline=None).chosen is None


def test_memory_and_throughput_constraints():
    assert (
        choose(candidate("a", 10, rss=500), candidate("b", 20, rss=100), max_memory_mib=200, baseline=None).chosen
        == "b"
    )
    found = choose(candidate("a", 10), min_throughput_per_s=100, baseline=None)
    assert found.chosen is None
    assert "lower bound" in dict(found.rejected)["a"]


def test_memory_that_could_not_be_read_holds_no_constraint():
    """A server in a container of another machine, or perf_analyzer's points: 0 MiB would pass every limit."""
    found = choose(candidate("a", 10, rss=0.0), max_memory_mib=200, baseline=None)
    assert found.chosen is None
    assert "peak memory could not be read" in dict(found.rejected)["a"]


def test_gpu_memory_is_limited_on_gpus_alone():
    def one(used, device):
        gpu = None if used is None else GpuUse("card", memory_peak_mib=used)
        found = Candidate("a", "ok", None, "fp32", 1, (dataclasses.replace(point(10), gpu=gpu),))
        limits = Constraints(max_gpu_memory_mib=1000)
        return decide([found], device=device, objective="latency", constraints=limits, baseline=None)

    assert one(900.0, "cuda").chosen == "a"
    assert "GPU memory 1100 MiB is over" in one(1100.0, "cuda").rejected[0].reason
    assert "GPU memory could not be read" in one(None, "cuda").rejected[0].reason
    assert one(None, "cpu").chosen == "a"


def test_throughput_takes_the_best_batch():
    many = Candidate(
        "a",
        "ok",
        None,
        "fp32",
        1,
        tuple(point(ms, scenario="throughput", batch=b) for b, ms in ((1, 10), (8, 4), (16, 5))),
    )
    found = choose(many, candidate("b", 5, scenario="throughput"), objective="throughput", baseline=None)
    assert found.chosen == "a"
    assert "batch 8" in found.reason


def test_nothing_measured_is_said():
    found = choose(Candidate("a", "ok", None, "fp32", 1, ()), baseline=None)
    assert found.chosen is None
    assert "no latency measurement" in dict(found.rejected)["a"]


def test_finalists_are_the_fastest_that_pass_and_the_baseline():
    field = [
        candidate("torch", 100),
        *(candidate(f"v{i}", 10 + i) for i in range(5)),
        candidate("bad", 1, status="gate_failed"),
    ]
    assert finalists(field, objective="latency", baseline="torch") == ["v0", "v1", "v2", "torch"]


@given(
    st.lists(
        st.tuples(
            st.floats(0.1, 1000), st.sampled_from(["ok", "gate_failed", "failed"]), st.sampled_from(["fp32", "int8"])
        ),
        min_size=1,
        max_size=8,
    )
)
def test_whatever_is_chosen_passed_and_nothing_that_passed_is_clearly_faster(rows):
    field = [candidate(f"v{i}", ms, status=status, precision=p) for i, (ms, status, p) in enumerate(rows)]
    found = choose(*field, baseline=None)
    good = {f"v{i}": ms for i, (ms, status, _) in enumerate(rows) if status == "ok"}
    assert (found.chosen is None) == (not good)
    assert {id for id, _ in found.rejected} | {found.chosen} - {None} == {c.id for c in field}
    assert all(reason for _, reason in found.rejected)
    if found.chosen:
        assert good[found.chosen] <= 1.06 * min(good.values())
        assert math.isfinite(point(1).mean_ms)


def test_a_file_that_computes_mostly_in_fp32_ties_as_what_it_is_held_to():
    variant = Variant(Target("ort-int8-dynamic", "cpu"), {})
    proof = Proof(Parity(True, {}, {}, ()), "fp32", "int8", 3)
    built = types.SimpleNamespace(bytes=7)
    result = VariantState(variant, built=Stage(built, Path(), "", False), proof=Stage(proof, Path(), "", False))
    assert results.candidate(result).precision == "int8"


def busy(point, rounds=8):
    return dataclasses.replace(point, noise=MachineNoise(0.9, 1.0, 0.0, 2.0, disturbed_rounds=rounds, repeated=1))


def test_a_baseline_that_breaks_a_limit_still_carries_its_warning():
    """Speed-ups are relative to it all the same."""
    torch = dataclasses.replace(candidate("torch", 100, p99=120), measurements=(busy(point(100, p99=120)),))
    found = choose(torch, candidate("ov", 20, p99=25), max_p99_ms=50)
    assert found.chosen == "ov"
    assert found.speedup == pytest.approx(5, rel=0.05)
    assert found.warning is not None


def test_one_that_lost_in_disturbed_rounds_is_said():
    lost = dataclasses.replace(candidate("a", 30), measurements=(busy(point(30)),))
    now_and_then = dataclasses.replace(candidate("a", 30), measurements=(busy(point(30), rounds=2),))
    assert choose(candidate("torch", 100), candidate("ov", 20), lost).warning is not None
    assert choose(candidate("torch", 100), candidate("ov", 20), now_and_then).warning is None


def test_what_left_early_since_it_was_far_behind_is_no_open_question():
    """Its three rounds differ so much that their interval leaves everything possible, and each took far longer."""
    far = dataclasses.replace(point(40), rounds_ms=(24.0, 40.0, 70.0))
    near = dataclasses.replace(point(40), rounds_ms=(20.0, 40.0, 70.0, 21.0, 60.0))
    for seen, verdict, why in (
        (far, "decided", "takes 2.14× the time of ov, at least 1.41× in each of 3 rounds"),
        (near, "undecided", "undecided: takes 2."),
    ):
        lost = dataclasses.replace(candidate("lost", 40), measurements=(seen,))
        found = choose(candidate("torch", 100), candidate("ov", 17), lost)
        assert (found.chosen, found.verdict) == ("ov", verdict)
        assert dict(found.rejected)["lost"].startswith(why)


def test_what_lost_to_another_point_than_the_best_one_is_no_open_question():
    """A neighbour slowed the winner's best batch in the first rounds; the loser left behind another of its batches."""

    def at(batch, *rounds_ms):
        return dataclasses.replace(point(1, scenario="throughput", batch=batch), rounds_ms=rounds_ms)

    best, other = at(4, 9.0, 9.2, 5.2, 5.1, 5.2, 5.1, 5.2, 5.2, 5.1), at(2, 5.5, 5.4, 5.3)
    rows = {"ov": (best, other), "lost": (at(1, 8.3, 13.4, 8.2),), "torch": (at(1, *[30.0] * 9),)}
    field = [dataclasses.replace(candidate(id, 1), measurements=found) for id, found in rows.items()]
    found = choose(*field, objective="throughput")
    assert (found.chosen, found.batch, found.verdict) == ("ov", 4, "decided")
    assert dict(found.rejected)["lost"].startswith("takes 1.80× the time of ov at batch 2, at least 1.51× in each of 3")
    field[0] = dataclasses.replace(field[0], measurements=(best,))
    assert choose(*field, objective="throughput").undecided == ("lost",)


def test_what_left_early_says_to_whom_it_lost():
    """The machine was slow in three of the first four rounds: the choice was not beside it, and ties with what was."""
    after = (4.2, 4.26, 4.29, 4.22, 4.24, 4.2, 4.2, 4.2, 4.13, 4.28, 4.21, 4.16, 4.17, 4.3, 4.27, 4.25, 4.25)
    beside = (4.26, 4.12, 4.23, 4.15, 4.3, 4.17, 4.24, 4.22, 4.1, 4.28, 4.24, 4.18, 4.16, 4.21, 4.41, 4.44, 4.4)
    fp32 = dataclasses.replace(point(4.24), rounds_ms=(4.28, 6.33, 6.2, 6.12, 4.18, *after))
    faster = dataclasses.replace(point(4.2), rounds_ms=(5.59, 5.49, 5.39, 5.61, 4.24, *beside))
    left = dataclasses.replace(point(6.1), rounds_ms=(6.5, 6.42, 6.25))
    rows = {"ov": (faster, "fp32", 200), "ort": (fp32, "fp32", 100), "dynamic": (left, "int8", 50)}
    found = choose(
        *(
            dataclasses.replace(candidate(id, 1), measurements=(row,), precision=precision, bytes=size)
            for id, (row, precision, size) in rows.items()
        )
    )
    assert (found.chosen, found.verdict) == ("ort", "decided")
    why = dict(found.rejected)["dynamic"]
    assert why.startswith("takes 1.16× [1.12")
    assert why.endswith("the time of ov, with which ort ties")


def test_a_quota_that_held_it_back_is_named():
    noise = MachineNoise(0.0, 0.0, 0.0, 2.0, disturbed_rounds=8, repeated=1, throttled_cores=0.4)
    held = dataclasses.replace(candidate("a", 30), measurements=(dataclasses.replace(point(30), noise=noise),))
    assert "the CPU quota of this cgroup held accel back in 8 rounds" in choose(candidate("torch", 100), held).warning


def test_latency_is_of_a_call_whatever_the_batch():
    """A static build of eight answers one request at a time no faster than it answers eight."""
    static = candidate("static", 40, batch=8)
    found = choose(candidate("torch", 100), static, candidate("dynamic", 8))
    assert (found.chosen, found.batch, found.concurrency) == ("dynamic", 1, 1)
    assert "5.0" in dict(found.rejected)["static"]


def test_one_slow_round_does_not_hand_a_variants_best_to_a_batch_of_few_rounds():
    def measured(batch, *ms):
        return dataclasses.replace(
            point(10, scenario="throughput", batch=batch),
            rounds_ms=ms,
            throughput_per_s=1e3 / np.mean(ms),
        )

    w = Candidate("w", "ok", None, "fp32", 1, (measured(4, 10, 10, 10, 10, 10, 30), measured(8, 11, 11, 11)))
    v = Candidate("v", "ok", None, "fp32", 1, (measured(4, 12, 12, 12, 12, 12, 12),))
    found = choose(w, v, objective="throughput", baseline=None)
    assert (found.chosen, found.batch) == ("w", 4)


def test_a_batch_that_left_early_is_not_the_best_since_a_newer_session_timed_the_others_again():
    """Of the older session's points only the one of three rounds is its batch's newest: it left behind ten rounds."""

    def at(batch, session, rounds, ms):
        return point(ms, scenario="throughput", batch=batch, session=session, rounds=rounds, seed=batch)

    older, newer = (at(8, "s1", 10, 10.2), at(4, "s1", 3, 8.0)), (at(8, "s2", 12, 10.1),)
    base = (at(16, "s1", 10, 50), at(16, "s2", 12, 50))
    rows = {"torch": base, "fast": older + newer, "late": (at(8, "s2", 12, 20),)}
    field = [dataclasses.replace(candidate(id, 1), measurements=found) for id, found in rows.items()]
    found = choose(*field, objective="throughput")
    assert (found.chosen, found.batch) == ("fast", 8)
    assert found.speedup_ci[1] / found.speedup_ci[0] < 1.1
    assert finalists(field, objective="throughput", baseline="torch") == ["fast", "late", "torch"]
