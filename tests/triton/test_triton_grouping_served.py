"""A tiny BERT behind the real server, under a mixed load of many lengths: each answer is the single request's."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from lengths import BERT, SENT, SIZES, checked, hold, hold_mixed_load, hold_one_refusal
from live import THREADS, Live, answer_with

import accel
from accel.core import environments
from accel.core.errors import StageError
from accel.core.values import Target, Variant
from accel.run import group_check, load_test
from accel.run.group_check import GroupCheck, check_groups
from accel.run.tasks import Described
from accel.triton.grouping import Grouping
from accel.triton.servers import server


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> Live:
    return Live.make(tmp_path_factory.mktemp("bert"), BERT, SIZES)


def test_a_variant_whose_rows_are_independent_may_be_grouped(bert: Live):
    found, _ = checked(bert, "ort")
    assert found.why_not is None
    how = found.grouping
    assert how is not None
    assert (how.mask, how.axis, how.rows) == ("attention_mask", "seq", 8)
    assert {8, 16, 32, 64} <= set(how.lengths)
    assert max(how.usual) == 40
    assert how.found["sqnr_db"] is None or how.found["sqnr_db"] > 100, "None: every value is equal"
    assert how.compared >= 20


def test_one_whose_scale_is_taken_over_all_rows_may_not(bert: Live):
    """Dynamic quantisation: a neighbour's values move the answer, and the check sees it at a gate of 40 dB."""
    artifact = bert._build(Variant(Target("ort-int8-dynamic", "cpu"), bert.source.profile))
    described, files = Described(bert.source, bert.samples), bert._files(artifact.variant)
    found = check_groups(artifact, files, described, bert.folder / "samples", {"sqnr_db": 40.0}, THREADS)
    assert found.grouping is None
    assert "depend on padding or on the other rows" in str(found.why_not)


def test_a_mask_that_hides_nothing_is_found(bert: Live, monkeypatch: pytest.MonkeyPatch):
    def blind(run: Any, feed: Any) -> Any:
        return run(feed | {"attention_mask": np.ones_like(feed["attention_mask"])})

    answer_with(monkeypatch, "ort", blind)
    found, _ = checked(bert, "ort")
    assert found.grouping is None
    assert "depend on padding" in str(found.why_not)


def test_rows_that_the_check_makes_and_the_model_refuses_cost_the_groups_alone(
    bert: Live, monkeypatch: pytest.MonkeyPatch
):
    """A classifier that reads the state of the last token of each text runs no text that was cut in front of it."""

    def strict(run: Any, feed: Any) -> Any:
        if feed["input_ids"].shape[1] == 16:
            raise StageError("indices element out of data bounds")
        return run(feed)

    answer_with(monkeypatch, "ort", strict)
    found, _ = checked(bert, "ort")
    assert found.grouping is None
    assert "does not run each row of the samples alone and in groups: indices element" in str(found.why_not)


def test_a_text_that_the_check_cuts_ends_as_texts_do(bert: Live):
    ids, *others = bert.source.inputs
    ending = replace(bert.source, inputs=(replace(ids, ends=2), *others))
    item = {"input_ids": np.full((1, 9), 7), "attention_mask": np.ones((1, 9), np.int64)}
    made = group_check._cut(ending, item, 4, Grouping("attention_mask", "seq", (4,), (), 1))
    assert made["input_ids"].tolist() == [[7, 7, 7, 2]]


def test_without_a_mask_only_requests_of_one_shape_share_calls(bert: Live):
    plain = replace(bert.source, mask=None)
    artifact = bert._build(Variant(Target("ort", "cpu"), bert.source.profile))
    given = artifact, bert._files(artifact.variant), Described(plain, bert.samples), bert.folder / "samples"
    how = check_groups(*given, {"sqnr_db": 80.0}, THREADS).grouping
    assert how is not None
    assert (how.mask, how.axis, how.lengths, how.rows) == (None, None, (), 8)
    one_length = replace(plain, inputs=tuple(replace(s, dims=("batch", 32)) for s in plain.inputs))
    assert check_groups(*given[:2], Described(one_length, bert.samples), given[3], {}, THREADS) == GroupCheck()


@pytest.fixture(scope="module")
def root(bert: Live) -> Path:
    if not environments.installed("triton"):
        pytest.skip(f"no embedded server here: {environments.fix('triton')}")
    found, _ = checked(bert, "ort")
    return bert.root("ort", grouping=found.grouping, mask="attention_mask")


@pytest.fixture(scope="module")
def served(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with server.start(root, via="embedded", log=tmp_path_factory.mktemp("log") / "server.log") as running:
        yield running


@pytest.fixture(scope="module")
def single(bert: Live) -> dict[str, dict[str, np.ndarray]]:
    """What the artifact answers to each row alone."""
    return bert.alone("ort", SENT)


def test_many_requests_in_process_are_answered_as_the_single_ones(
    bert: Live, root: Path, single: dict[str, dict[str, np.ndarray]], monkeypatch: pytest.MonkeyPatch
):
    calls = list[int]()
    with accel.load(root) as model:
        run = model.run
        monkeypatch.setattr(model, "run", lambda feed: (calls.append(len(feed["input_ids"])), run(feed))[1])
        found = dict(zip(SENT, model.run_all(list(SENT.values())), strict=True))
        assert model.run_all([]) == []
        assert sum(calls) == sum(len(feed["input_ids"]) for feed in SENT.values())
        assert len(calls) < sum(calls) / 4
        [listed] = model.run_all([{name: value.tolist() for name, value in SENT["1"].items()}])
        assert all(np.allclose(listed[name], value, atol=1e-5) for name, value in found["1"].items())
    hold(bert, single, found)


def test_where_the_proof_forbids_it_each_request_is_a_call(bert: Live):
    root = bert.root("ort-int8-dynamic")
    with accel.load(root) as model:
        feeds = [SENT["1"], SENT["2"]]
        for feed, found in zip(feeds, model.run_all(feeds), strict=True):
            alone = model.run(feed)
            assert all(np.array_equal(found[name], value) for name, value in alone.items())
            assert found["hidden"].shape[:2] == feed["input_ids"].shape


def test_every_answer_under_a_mixed_load_is_that_of_the_single_request(
    bert: Live, served: Any, single: dict[str, dict[str, np.ndarray]]
):
    hold_mixed_load(bert, served, single)


def test_a_wrong_request_of_a_call_is_refused_alone(bert: Live, served: Any):
    hold_one_refusal(bert, served)


def test_bench_says_p99_by_length_and_that_the_traffic_shifted(root: Path, tmp_path: Path):
    data, told, seen = tmp_path / "sent.npz", list[str](), list[dict[str, Any]]()
    feeds = [dict.fromkeys(("input_ids", "attention_mask"), np.ones((1, n), np.int64)) for n in (4, 12, 38, 50, 60)]
    np.savez(data, **{f"{i}/{n}": v for i, feed in enumerate(feeds) for n, v in feed.items()})
    asked = load_test.LoadTestRequest(target=str(root), concurrency="8", data=data, via="embedded", seconds=0.3)
    load_test.bench(asked, seen.append, told.append)
    assert [said for said in told if said.startswith("40% of the requests fall outside the lengths")]
    point = seen[0]["measurements"][0]
    assert [part["length"] for part in point["by_length"]] == [12, 38, 50, 60]
    assert sum(part["requests"] for part in point["by_length"]) == point["samples"]
    assert load_test.row(point)["p99 by length"].startswith("≤12: ")
