"""The run document reads what other versions wrote, and what is damaged, as unknown."""

import math

from accel.core import document
from accel.core.values import Rejected, Target, from_foreign_json, to_json


def test_the_least_document() -> None:
    run = document.parse({"schema": 1})
    assert (run.model.name, run.hardware.cpu.threads, run.variants, run.served) == ("", 0, (), None)


def test_what_does_not_fit_is_unknown() -> None:
    point = {"p50_ms": math.nan, "throughput_per_s": "fast", "batch": True, "rounds_ms": [1.0, None, 10**400], "x": 1}
    found = {"id": "a\n@cpu", "measurements": [point, 3], "parity": [], "timings": 1}
    run = document.parse({"schema": 1, "variants": [None, found], "timings_s": {"build": 1, "export": None}})
    (variant,) = run.variants
    assert (variant.id, variant.status, variant.parity) == ("a @cpu", "failed", None)
    (measured,) = variant.measurements
    assert (measured.p50_ms, measured.batch, measured.rounds_ms, measured.split) == (None, 0, (1.0,), None)
    assert math.isnan(measured.throughput_per_s)
    assert run.timings_s == {"build": 1.0}


def test_words_of_a_later_version_stay() -> None:
    point = {"scenario": "traffic", "via": "triton"}
    run = document.parse({"schema": 1, "variants": [{"id": "a", "status": "paused", "measurements": [point]}]})
    assert (run.variants[0].status, run.variants[0].measurements[0].scenario) == ("paused", "traffic")


def test_a_rejected_variant_is_an_object_and_may_be_a_pair() -> None:
    assert to_json(Rejected("a", "slow")) == {"id": "a", "reason": "slow"}
    decision = {"rejected": [["a", "slow"], {"id": "b", "reason": "slower"}, ["c"], None]}
    assert document.parse({"schema": 1, "decisions": [decision]}).decisions[0].rejected == (
        ("a", "slow"),
        ("b", "slower"),
    )


def test_text_is_on_one_line() -> None:
    assert from_foreign_json(Target, {"name": "\x1b[31mort\n", "device": " \n"}) == Target("[31mort", "")
