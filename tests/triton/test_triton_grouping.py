"""Requests of different lengths share calls: how they are grouped, answered and refused, and what must not be."""

import json
from dataclasses import replace
from itertools import combinations, pairwise
from pathlib import Path
from typing import Any

import embedding
import numpy as np
import pytest
from google.protobuf import text_format
from hypothesis import given, strategies
from test_triton_python_model import drive, expected

from accel.core.buckets import own_lengths
from accel.core.values import from_json, to_json
from accel.triton import manifest as manifests, rescheduled
from accel.triton.config import parse
from accel.triton.grouping import CALL_TOKENS, Grouping, RequestRow, _cut, groups, ladder
from accel.triton.lint import lint
from accel.triton.python_variant import write_python_variant
from accel.triton.reading import read_configs
from accel.triton.settings import limit_batches
from accel.triton.verify import verify

HOW = Grouping("attention_mask", "seq", (1, 4, 8, 12), (4, 8), rows=8, compared=16, gate={"sqnr_db": 80.0})
EMBEDDING = {"mask": "attention_mask", "grouping": HOW}
BY_SHAPE = Grouping(None, None, (), (), rows=8, compared=16, gate={"sqnr_db": 80.0}, shapes=({"seq": 4}, {"seq": 12}))


def request(lengths: list[int], width: int, seed: int = 1) -> dict[str, np.ndarray]:
    """Return a request of some rows, each as long as said and padded at its end."""
    feed = embedding.feed((len(lengths), width), seed)
    feed["attention_mask"] = (np.arange(width) < np.array(lengths)[:, None]).astype(np.int64)
    return feed


def grouped(bench: Any, **changes: Any) -> Path:
    artifact = bench.artifact("python")
    bench.emit(artifact, **(EMBEDDING | changes))
    return Path(bench.root(artifact))


def test_no_call_has_more_rows_than_the_config_lets_requests_have(bench, tmp_path):
    root = grouped(bench, overrides="max_batch_size: 3")
    assert manifests.read(root).grouping.rows == 3
    result, _ = drive(root, tmp_path, [request([4], 4, seed=n) for n in range(7)])
    assert result["errors"] == [None] * 7
    assert max(rows for rows, _ in result["calls"]) == 3


def test_requests_of_different_lengths_share_calls_and_keep_their_shapes(bench, tmp_path):
    sent = [
        request([5], 5),
        request([3], 3, seed=2),
        request([12, 2, 7], 12, seed=3),  # padded by its client: each row finds others of its own length
        request([3], 12, seed=4),  # padded to a fixed length
        request([8], 8, seed=5),
        request([4], 4, seed=6),
    ]
    result, answers = drive(grouped(bench), tmp_path, sent)
    assert result["errors"] == [None] * 6
    assert result["calls"] == [[8, 12]], "a call costs as much as 32 tokens: here one is cheaper than two"
    assert result["counted"] == {"accel_calls": 1, "accel_rows": 8, "accel_tokens": 44, "accel_places": 96}
    for i, feed in enumerate(sent[:-1]):
        for name, value in expected(feed).items():
            np.testing.assert_array_equal(answers[f"{i}/{name}"], value, err_msg=f"{i}/{name}")


def test_the_shortest_are_answered_first_and_none_waits_for_another_call(bench, tmp_path):
    sent = [request([12], 12), *(request([3], 3, seed=i) for i in range(9)), request([11], 11), request([3], 3)]
    result, _ = drive(grouped(bench), tmp_path, sent)
    assert result["calls"] == [[8, 4], [4, 12]]
    assert result["order"][:8] == list(range(1, 9)), "those of the cheaper call"
    assert {0, 10} < set(result["order"][8:])
    assert sorted(result["order"]) == list(range(12))


def test_without_a_mask_rows_of_one_shape_share_calls_and_none_is_padded_or_trimmed(bench, tmp_path):
    sent = [
        request([2] * 3, 4),
        request([12], 12, seed=2),
        *(request([3], 4, seed=i) for i in range(3, 9)),
        request([5], 5, seed=9),
        request([1], 12, seed=10),
        request([4], 4, seed=11),
    ]
    result, answers = drive(grouped(bench, mask=None, grouping=BY_SHAPE), tmp_path, sent)
    assert result["errors"] == [None] * len(sent)
    assert result["calls"] == [[1, 5], [2, 4], [2, 12], [8, 4]], (
        "nine rows of four, in calls of eight; small calls first"
    )
    values = 2 * (10 * 4 + 5 + 2 * 12)
    assert result["counted"] == {"accel_calls": 4, "accel_rows": 13, "accel_tokens": values, "accel_places": values}
    for i, feed in enumerate(sent[:-1]):
        for name, value in expected(feed).items():
            np.testing.assert_array_equal(answers[f"{i}/{name}"], value, err_msg=f"{i}/{name}")


def test_a_request_that_fails_does_not_take_those_of_its_group_along(bench, tmp_path):
    source = replace(embedding.source(), inputs=tuple(replace(s, range=None) for s in embedding.INPUTS))
    sent = [request([3], 3), request([4, 2], 4, seed=2), request([3], 3, seed=3)]
    sent[1]["input_ids"][1, 0] = 50
    result, answers = drive(grouped(bench, source=source), tmp_path, sent)
    assert [e is None for e in result["errors"]] == [True, False, True]
    assert "the model failed on this request: input 'input_ids' holds 50" in result["errors"][1]
    np.testing.assert_array_equal(answers["0/hidden"], expected(sent[0])["hidden"])


@pytest.mark.parametrize(
    ("batching", "calls"),
    [
        ("", [[1, 4]] * 4),
        ("dynamic_batching { preferred_batch_size: 2 }", [[2, 4]] * 2),
        ("dynamic_batching { preferred_batch_size: 2 max_queue_delay_microseconds: 9 }", [[4, 4]]),
        ("dynamic_batching { }", [[4, 4]]),
    ],
    ids=["off", "preferred", "delay", "on"],
)
def test_the_config_says_how_many_are_merged(bench, tmp_path, batching, calls):
    root = grouped(bench)
    config = parse((root / "embedding/config.pbtxt").read_text())
    config.ClearField("dynamic_batching")
    text = f"{text_format.MessageToString(config)}\n{batching}\n"
    (root / "embedding/config.pbtxt").chmod(0o644)
    (root / "embedding/config.pbtxt").write_text(text)
    result, _ = drive(root, tmp_path, [request([3], 3, seed=i) for i in range(4)])
    assert result["errors"] == [None] * 4
    assert result["calls"] == calls


def test_a_batch_of_one_client_stays_one_call_where_nothing_is_merged(bench, tmp_path):
    root = grouped(bench)
    config = parse((root / "embedding/config.pbtxt").read_text())
    config.ClearField("dynamic_batching")
    (root / "embedding/config.pbtxt").chmod(0o644)
    (root / "embedding/config.pbtxt").write_text(text_format.MessageToString(config))
    result, answers = drive(root, tmp_path, [sent := request([3] * 4, 3)])
    assert result["calls"] == [[4, 4]]
    np.testing.assert_array_equal(answers["0/pooled"], expected(sent)["pooled"])


def test_an_answer_that_finds_no_room_is_refused_and_the_others_come(bench, tmp_path):
    sent = [request([3], 3), request([4], 4, seed=2), request([12], 12, seed=3)]
    result, answers = drive(grouped(bench), tmp_path, sent, refused=1)
    (lost,) = [i for i, error in enumerate(result["errors"]) if error]
    assert result["errors"][lost] == "the answer could not be sent: no space left in shared memory"
    for i in {0, 1} - {lost}:
        np.testing.assert_array_equal(answers[f"{i}/hidden"], expected(sent[i])["hidden"])


def test_what_does_not_fit_is_refused(bench, tmp_path):
    sent = [request([13], 13), request([2] * 9, 2), request([1], 1)]
    result, _ = drive(grouped(bench), tmp_path, sent)
    assert result["errors"] == [
        "input 'input_ids' has shape (1, 13), served are (1, 1) to (8, 12)",
        "input 'input_ids' has shape (9, 2), served are (1, 1) to (8, 12)",
        None,
    ]


def test_what_came_first_is_answered_before_what_came_later(bench, tmp_path):
    sent = [request([12] * 8, 12, seed=i) for i in range(8)] + [request([1], 1, seed=i) for i in range(5)]
    result, answers = drive(grouped(bench), tmp_path, sent)
    assert result["errors"] == [None] * 13
    assert sorted(result["order"][:8]) == list(range(8)), "64 rows are a window, however long they are"
    np.testing.assert_array_equal(answers["7/hidden"], expected(sent[7])["hidden"])


@pytest.mark.parametrize("shown", [[0, 0, 1, 1, 1], [1, 0, 1, 0, 0], [0, 0, 0, 0, 0]], ids=["left", "holes", "nothing"])
def test_masks_as_clients_send_them(bench, tmp_path, shown):
    odd = request([5], 5)
    odd["attention_mask"][:] = shown
    sent = [odd, request([7], 7, seed=2), request([2], 2, seed=3)]
    result, answers = drive(grouped(bench), tmp_path, sent)
    np.testing.assert_array_equal(answers["0/hidden"], expected(odd)["hidden"])
    np.testing.assert_array_equal(answers["0/pooled"], expected(odd)["pooled"])
    assert ([1, 5] in result["calls"]) is (not any(shown)), "what the mask hides wholly is neither cut nor padded"


def test_what_a_mask_shows_ends_at_its_last_one():
    mask = np.array([[1, 1, 0, 0], [0, 1, 0, 1], [0, 0, 0, 0], [0, 0, 1, 0]])
    assert own_lengths(mask).tolist() == [2, 4, 0, 3]


@given(strategies.lists(strategies.integers(1, 60), min_size=1, max_size=9), strategies.integers(1, 5))
def test_no_other_cut_costs_less(lengths, most):
    rows = [RequestRow(i, 0, n, -(-n // 8) * 8) for i, n in enumerate(sorted(lengths))]

    def cost(made: list[list[RequestRow]]) -> int:
        return sum(CALL_TOKENS + len(g) * g[-1].padded for g in made)

    every = []
    for count in range(len(rows)):
        for cuts in combinations(range(1, len(rows)), count):
            ends = (0, *cuts, len(rows))
            made = [rows[a:b] for a, b in pairwise(ends)]
            every += [cost(made)] if max(map(len, made)) <= most else []
    found = _cut(rows, most)
    assert cost(found) == min(every)
    assert sorted(row for group in found for row in group) == rows
    assert max(map(len, found)) <= most


def test_every_row_is_in_one_group():
    sent = {i: request([1 + (i * 7 + r) % 12 for r in range(1 + i % 3)], 12, seed=i) for i in range(20)}
    made = groups(sent, HOW)
    assert sorted((r.request, r.row) for g in made for r in g) == [
        (i, r) for i, feed in sent.items() for r in range(len(feed["input_ids"]))
    ]
    assert all(len(g) <= HOW.rows and len({r.padded for r in g if r.padded > g[-1].padded}) == 0 for g in made)


def test_without_a_mask_every_row_is_in_one_group_of_its_shape():
    sent = {i: request([1] * (1 + i % 3), 4 + i % 2 * 8, seed=i) for i in range(20)}
    sent[20] = dict(reversed(sent[0].items()))  # inputs in another order
    made = groups(sent, BY_SHAPE)
    assert sorted((r.request, r.row) for g in made for r in g) == [
        (i, r) for i, feed in sent.items() for r in range(len(feed["input_ids"]))
    ]
    assert all(len({sent[r.request]["input_ids"].shape[1] for r in g}) == 1 for g in made)
    rows = [
        sum(1 for i, feed in sent.items() for _ in feed["input_ids"] if feed["input_ids"].shape[1] == n)
        for n in (4, 12)
    ]
    assert len(made) == sum(-(-n // BY_SHAPE.rows) for n in rows)


def test_a_manifest_of_either_form_is_read_as_it_was_written(bench):
    lengths = {
        "mask": "m",
        "axis": "seq",
        "lengths": [8],
        "usual": [8],
        "rows": 4,
        "compared": 1,
        "gate": {},
        "found": {},
    }
    assert to_json(from_json(Grouping, lengths)) == lengths, "that of a model with a mask has no field for shapes"
    assert from_json(Grouping, to_json(BY_SHAPE)) == BY_SHAPE
    root = grouped(bench, mask=None, grouping=BY_SHAPE)
    manifest = manifests.read(root)
    assert (manifest.grouping, manifest.groups, manifest.trims) == (BY_SHAPE, True, False)
    config = parse((root / "embedding/config.pbtxt").read_text())
    assert {(1, 4), (8, 4), (1, 12), (8, 12)} <= {
        (s.batch_size, s.inputs["input_ids"].dims[0]) for s in config.model_warmup
    }
    assert [f for f in (*verify(root), *lint(root, "26.05")) if f.severity == "error"] == []


def test_where_groups_gain_nothing_each_row_is_a_call_and_the_smallest_come_first(bench, tmp_path):
    root, out = grouped(bench, mask=None, grouping=BY_SHAPE), tmp_path / "limited"
    rescheduled.emit(root, lambda config: limit_batches(config, 1), out, reason="as measured")
    assert manifests.read(out).groups
    sent = [request([12], 12), request([4], 4), request([4], 4, seed=2), request([4, 4], 4, seed=3)]
    result, answers = drive(out, tmp_path, sent[:3])
    assert result["calls"] == [[1, 4], [1, 4], [1, 12]]
    np.testing.assert_array_equal(answers["0/hidden"], expected(sent[0])["hidden"])
    result, _ = drive(out, tmp_path, [sent[3]])
    assert result["calls"] == [[2, 4]], "a client's batch stays one"


def test_the_ladder_has_the_ends_of_the_axis():
    assert ladder(1, 512) == (8, 16, 32, 64, 128, 256, 512)
    assert ladder(1, 100) == (8, 16, 32, 64, 100)
    assert ladder(20, 60) == (20, 32, 60)
    assert ladder(1, 6) == (6,)


def test_requests_outside_the_samples_lengths_are_counted():
    assert HOW.outside([3, 4, 7, 8]) == 0
    assert HOW.outside([1, 3, 9, 12]) == 0.75


def test_the_config_lets_any_lengths_through_and_warms_every_one_up(bench):
    root = grouped(bench)
    config = parse((root / "embedding/config.pbtxt").read_text())
    assert config.max_batch_size == 8
    assert config.default_model_filename == "grouped.py"
    assert [spec.allow_ragged_batch for spec in config.input] == [True, True]
    met = {(s.batch_size, s.inputs["input_ids"].dims[0]) for s in config.model_warmup}
    assert {(1, 1), (1, 4), (8, 4), (1, 8), (8, 8), (1, 12), (1, 6), (8, 6)} <= met
    assert manifests.read(root).grouping == HOW
    assert [f for f in verify(root) if f.severity == "error"] == []
    assert [f for f in lint(root, "26.05") if f.severity == "error"] == []


def test_without_a_proof_a_repository_is_as_it_was(bench):
    """Nothing of the feature shows where it does not apply: neither a file, nor a key, nor a field of the config."""
    root = grouped(bench, grouping=None)
    config = parse((root / "embedding/config.pbtxt").read_text())
    assert (config.max_batch_size, config.default_model_filename) == (8, "model.py")
    assert not any(spec.allow_ragged_batch for spec in config.input)
    assert not [p for p in root.rglob("*") if "group" in p.name]
    assert not {"grouping", "ungrouped"} & json.loads((root / "manifest.json").read_text()).keys()
    assert "grouping" not in json.loads((root / "embedding/1/artifact.json").read_text())


def test_why_a_variant_is_not_grouped_is_in_the_manifest(bench):
    root = grouped(bench, grouping=None, ungrouped="its answers depend on neighbours")
    assert manifests.read(root).ungrouped == "its answers depend on neighbours"
    assert "grouping" not in to_json(manifests.read(root))


@pytest.mark.parametrize(("asked", "file"), [("max_batch_size: 4", "grouped.py"), ("max_batch_size: 0", "model.py")])
def test_a_batch_size_of_the_users_is_kept(bench, asked, file):
    config = parse((grouped(bench, overrides=asked) / "embedding/config.pbtxt").read_text())
    assert f"max_batch_size: {config.max_batch_size}" == asked
    assert config.default_model_filename == file


@pytest.mark.parametrize("backend", ["onnxruntime", "openvino"])
def test_a_native_repository_stays_and_its_python_variant_groups(bench, tmp_path, backend, monkeypatch):
    artifact = bench.artifact(backend)
    bench.emit(artifact, **EMBEDDING)
    native = read_configs(bench.root(artifact))["embedding"]
    assert not any(spec.allow_ragged_batch for spec in native.input)
    assert not list(bench.root(artifact).rglob("grouped.py"))
    assert manifests.read(bench.root(artifact)).grouping == HOW
    known = {artifact.variant.target.name: embedding.BUILDER}
    monkeypatch.setattr("accel.builders.targets.discover", lambda: known)
    write_python_variant(bench.root(artifact), tmp_path / "python", release="24.10")
    made = read_configs(tmp_path / "python")["embedding"]
    assert (made.max_batch_size, made.default_model_filename) == (8, "grouped.py")
    assert all(spec.allow_ragged_batch for spec in made.input)
    met = {(s.batch_size, s.inputs["input_ids"].dims[0]) for s in made.model_warmup}
    assert {(1, 4), (8, 4), (1, 8), (8, 8), (1, 12)} <= met, "every length that it pads to"
    assert len(native.model_warmup) < len(made.model_warmup)
    assert [
        f for f in (*verify(tmp_path / "python"), *lint(tmp_path / "python", "24.10")) if f.severity == "error"
    ] == []


def test_a_warm_up_of_the_users_own_is_kept_by_the_python_variant(bench, tmp_path, monkeypatch):
    artifact = bench.artifact("onnxruntime")
    data = "{ data_type: TYPE_INT64 dims: 6 zero_data: true }"
    mine = f'{{ name: "mine" batch_size: 2 inputs {{ key: "input_ids" value {data} }} '
    mine += f'inputs {{ key: "attention_mask" value {data} }} }}'
    bench.emit(artifact, **EMBEDDING | {"overrides": f"model_warmup {mine}"})
    native = read_configs(bench.root(artifact))["embedding"]
    monkeypatch.setattr("accel.builders.targets.discover", lambda: {artifact.variant.target.name: embedding.BUILDER})
    write_python_variant(bench.root(artifact), tmp_path / "python", release="24.10")
    assert read_configs(tmp_path / "python")["embedding"].model_warmup == native.model_warmup
