"""What stored sessions say of a variant, which decision ships, and how a variant is repeated alone."""

import types
from pathlib import Path

import pytest

from accel.core.document import shipping
from accel.core.values import Decision, Failed, Target, Variant
from accel.run import results
from accel.run.measuring import MeasuredVariant, MeasuringSession, _known


def session(number: int, *entries: MeasuredVariant) -> MeasuringSession:
    return MeasuringSession("same", "latency", number, entries)


def known(*sessions: MeasuringSession):
    kept = types.SimpleNamespace(used=set())
    named = {f"m{s.number}": s for s in sessions}
    return _known(named, kept, "same", {"a": "key", "b": "key"}, {"a": 1, "b": 1})


GOOD = MeasuredVariant("a", "key", ("point",), asked=1)  # type: ignore[arg-type]
WRONG = MeasuredVariant("a", "key", (), Failed("measure", "answers wrongly", wrong=True), asked=1)


def test_what_failed_in_the_newest_session_has_failed():
    """Else the same command again would choose what a session before the failure says."""
    found, failed = known(session(1, GOOD), session(2, WRONG))
    assert (found, [how.cause for how in failed.values()]) == ({}, ["answers wrongly"])
    found, failed = known(session(1, WRONG), session(2, GOOD))
    assert (found, failed) == ({"a": ("point",)}, {})
    found, failed = known(session(1, GOOD), session(2, GOOD))
    assert (found, failed) == ({"a": ("point", "point")}, {})


def test_what_died_is_measured_again():
    died = MeasuredVariant("a", "key", (), Failed("measure", "ended by SIGSEGV", died=True), asked=1)
    assert known(session(1, GOOD), session(2, died)) == ({}, {})
    short = MeasuredVariant("a", "key", (), Failed("measure", "memory ran out"), asked=1)
    assert known(session(1, GOOD), session(2, short)) == ({}, {})


def decision(device: str, objective: str, via: str, chosen: str | None) -> Decision:
    return Decision(device, objective, {}, chosen, via, (), (), "because")  # type: ignore[arg-type]


def test_the_first_objective_ships_as_served_where_it_was_served():
    traffic, latency = decision("cpu", "traffic", "inprocess", "a"), decision("cpu", "latency", "inprocess", "b")
    served = decision("cpu", "latency", "triton", "c")
    assert shipping([traffic, latency, served]) == {"cpu": traffic}
    assert shipping([latency, traffic, served]) == {"cpu": served}
    card = decision("cuda", "latency", "inprocess", "d")
    assert shipping([latency, card, served]) == {"cpu": served, "cuda": card}
    assert shipping([]) == {}


@pytest.mark.parametrize(
    ("command", "required", "alone"),
    [
        ("accel convert bert --require openvino -t cpu", ("openvino",), "accel convert bert --targets ort@cpu"),
        ("accel convert bert --require=openvino", ("openvino",), "accel convert bert --targets ort@cpu"),
        ("accel convert --config job.yaml", ("openvino",), "accel convert --config job.yaml --targets ort@cpu"),
        ("accel convert bert --targets cpu", (), "accel convert bert --targets ort@cpu"),
        ("accel convert -t cpu -- -d.onnx", (), "accel convert --targets ort@cpu -o runs/bert-ort -- -d.onnx"),
    ],
)
def test_a_variant_is_repeated_without_what_others_must_do(command, required, alone):
    job = types.SimpleNamespace(command=command, required=required, run_dir=Path("runs/bert"))
    found = results.rerun_command(Variant(Target("ort", "cpu"), {}), job)
    own = (" --require ort@cpu" if required else "") + " -o runs/bert-ort"
    assert found == alone + ("" if " -- " in alone else own)
