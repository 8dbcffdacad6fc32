"""The timed loops, on a session whose calls take a known time."""

import time

import numpy as np
import pytest

from accel.bench.checker import VALUES, Check, Checker, checker
from accel.bench.timed_session import TimedSession
from accel.builders.to_null import NullSession
from accel.core.feeds import write_feeds
from accel.core.values import TensorSpec

SPEC = TensorSpec("x", "float32", ("batch", 2))


@pytest.fixture
def timed():
    session = NullSession((SPEC,), (TensorSpec("y", "float32", ("batch", 2)),), latency_ms=4.0, slots=2)
    return TimedSession(session, {"b1": {"x": np.zeros((1, 2), np.float32)}})


def test_the_least_number_of_calls_is_made_however_short_the_round(timed):
    assert len(timed.latency("b1", 0.0, 12)) == 12
    times, elapsed = timed.throughput("b1", 0.0, 5)
    assert len(times) == 5 * timed.session.slots
    assert elapsed >= max(times)


def test_of_calls_longer_than_the_round_each_slot_makes_one():
    """It made two: whether the round was over was asked before the first was waited for."""
    session = NullSession((SPEC,), (TensorSpec("y", "float32", ("batch", 2)),), latency_ms=200.0, slots=2)
    times, elapsed = TimedSession(session, {"b1": {"x": np.zeros((1, 2), np.float32)}}).throughput("b1", 0.05, 1)
    assert len(times) == 2
    assert elapsed >= max(times)


@pytest.mark.parametrize(("limit_ms", "most"), [(1.0, 8), (1e6, 40)])
def test_calls_over_the_limit_are_not_repeated_for_a_percentile(timed, limit_ms, most):
    assert len(timed.latency("b1", 0.0, 40, limit_ms)) <= most
    assert len(timed.throughput("b1", 0.0, 20, limit_ms)[0]) <= most
    assert len(timed.latency("b1", 0.0, 40, 1e6)) == 40


class Turning(NullSession):
    """Answers what is right until it turns."""

    def __init__(self, wrong, slots=2):
        super().__init__((SPEC,), (OUT,), latency_ms=0.05, slots=slots)
        self._wrong, self.calls = wrong, 0

    def read(self, *, slot=0):
        self.calls += 1
        found = super().read(slot=slot)
        return found if self._wrong(self.calls, slot) else {"y": found["y"] + RIGHT}


OUT = TensorSpec("y", "float32", ("batch", 2))
RIGHT = np.float32([[1.0, -2.0]])


@pytest.mark.parametrize("mode", ["latency", "throughput"])
@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("sound", lambda call, slot: False),
        ("from call 81 on", lambda call, slot: call > 80),
        ("one call in 40", lambda call, slot: call % 40 == 0),
        ("the second slot", lambda call, slot: slot == 1),
        ("this mode only", lambda call, slot: True),
    ],
)
def test_answers_are_looked_at_while_they_are_timed(tmp_path, mode, name, wrong):
    """A session that answers zeros after its proof was proved, measured and chosen."""
    feed = {"x": np.zeros((2, 2), np.float32)}
    write_feeds(tmp_path / "expected.npz", {"b2": {"y": np.float32([[1, -2], [1, -2]])}})
    check = Check(tmp_path / "expected.npz", (OUT,), {"shape_db": 59.0})
    watch = checker(check, share=None if mode == "latency" else 0.2)
    made = TimedSession(Turning(wrong), {"b2": feed}, watch.look)
    times = made.latency("b2", 0.0, 400) if mode == "latency" else made.throughput("b2", 0.5, 400)[0]
    assert len(times) >= 400
    deadline = time.monotonic() + 60
    while watch.checked < 400 and time.monotonic() < deadline:  # one in 40 is missed by as many looks in 1 of 25,000
        made.throughput("b2", 0.2, 100)
    assert watch.checked >= 400
    reasons = watch.judge(check).reasons
    right = name == "sound" or (name == "the second slot" and mode == "latency")
    assert (not reasons) == right, reasons


def test_every_slot_is_looked_at_alike(tmp_path):
    """The first slot's answer is waited for, the others lie there: chosen by time alone some were hardly looked at."""
    write_feeds(tmp_path / "expected.npz", {"b2": {"y": np.float32([[1, -2], [1, -2]])}})
    watch, looks = checker(Check(tmp_path / "expected.npz", (OUT,), {"shape_db": 59.0}), share=0.2), [0] * 4

    def look(point, outputs, slot):
        before = watch.checked
        watch.look(point, outputs, slot)
        looks[slot] += watch.checked - before

    feed = {"x": np.zeros((2, 2), np.float32)}
    TimedSession(Turning(lambda call, slot: False, slots=4), {"b2": feed}, look).throughput("b2", 0.5, 1000)
    assert min(looks) > sum(looks) / 8, looks


def test_looking_takes_no_more_than_its_share():
    """Between calls under way a look costs what it takes: few are made where calls are short."""
    watch = Checker({"expected/b1/y": np.zeros((512, 512), np.float32)}, share=0.02)
    answer = {"y": np.zeros((512, 512), np.float32)}
    begin = time.perf_counter()
    for _ in range(20_000):
        watch.look("b1", answer)
    each = time.perf_counter() - begin
    assert 0 < watch.checked < 2_000
    assert each < 20


def test_a_look_reaches_every_value_in_turn():
    truth = np.zeros((1, 3 * VALUES), np.float32)
    found = truth.copy()
    found[0, 7] = 1.0
    watch = Checker({"expected/b1/y": truth})
    for _ in range(3):
        watch.look("b1", {"y": found})
    assert watch.noise["b1/y"] == 1.0


class Recording(NullSession):
    """Answers ones where the input is not 0, and rubbish elsewhere, as a kernel may that skips padding."""

    def __init__(self, *, wrong=None):
        super().__init__((SPEC_SEQ,), (OUT_SEQ,), latency_ms=0.0, slots=2)
        self.seen, self._wrong = [], wrong

    def bind(self, inputs, *, slot=0):
        self.seen.append((slot, inputs["x"].shape))
        super().bind(inputs, slot=slot)
        self._given = {**getattr(self, "_given", {}), slot: inputs["x"]}

    def read(self, *, slot=0):
        given = self._given[slot]
        answer = np.where(given != 0, 1.0 if given.shape[1] != self._wrong else 3.0, len(self.seen))
        return {"y": answer.astype(np.float32)}


SPEC_SEQ = TensorSpec("x", "float32", ("batch", "seq"))
OUT_SEQ = TensorSpec("y", "float32", ("batch", "seq"))


def passes(tmp_path, **wrong):
    """Time three groups of two lengths; returns the session, the times of two passes and what is wrong."""
    feeds = {f"t2.{i}": np.pad(np.float32([[1, 1], [1, 2]]), [(0, 0), (0, n)]) for i, n in enumerate((6, 2, 2))}
    write_feeds(tmp_path / "feeds.npz", {name: {"x": feed} for name, feed in feeds.items()})
    write_feeds(
        tmp_path / "expected.npz", {name: {"y": (feed != 0).astype(np.float32)} for name, feed in feeds.items()}
    )
    check = Check(
        tmp_path / "expected.npz",
        (OUT_SEQ,),
        {"tolerance_db": 59.0},
        masks=tmp_path / "feeds.npz",
        mask_input="x",
        mask_dims=("batch", "seq"),
    )
    watch, session = checker(check, share=None), Recording(**wrong)
    made = TimedSession(
        session, {"b1": {"x": np.ones((1, 2), np.float32)}} | {n: {"x": f} for n, f in feeds.items()}, watch.look
    )
    first, elapsed = made.traffic("t2", 0.0)
    second, _ = made.traffic("t2", 0.0)
    assert elapsed >= max(first)
    return session, first + second, watch.judge(check).reasons


def test_the_traffic_is_answered_in_whole_passes_over_all_slots(tmp_path):
    session, times, reasons = passes(tmp_path)
    assert len(times) == 6
    assert session.seen == [(0, (2, 8)), (1, (2, 4)), (0, (2, 4))] * 2  # each shape on the same slot in every pass
    assert not reasons  # what stands where the mask is 0 is nobody's answer


def test_a_wrong_answer_at_one_length_of_the_traffic_is_found(tmp_path):
    _, _, reasons = passes(tmp_path, wrong=4)
    assert "off by up to 2" in reasons[0]
