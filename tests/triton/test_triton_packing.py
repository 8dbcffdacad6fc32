"""Texts that share rows: which models and runtimes take them, that each is answered as alone, and what is refused."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from lengths import BERT, SENT, SIZES, checked, counters, hold, hold_mixed_load, hold_one_refusal
from live import THREADS, Live

import accel
from accel.core import environments, packed
from accel.core.values import Target, Variant, from_json, to_json
from accel.run import pack_check
from accel.run.pack_check import check_packing
from accel.run.tasks import Described
from accel.triton import manifest as manifests, routing
from accel.triton.grouping import Grouping, Packing, groups, places
from accel.triton.servers import server

TARGET = "openvino-fp32"
GAIN = (1.3, 1.2, 1.4)


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> Live:
    return Live.make(tmp_path_factory.mktemp("bert"), BERT, SIZES)


def tried(
    live: Live,
    target: str = TARGET,
    gain: tuple[float, float, float] = GAIN,
    gate: dict[str, float] | None = None,
) -> Grouping:
    """Ask a variant; what is faster is a matter of the machine, and given.

    Args:
        gate: in place of the variant's own.
    """
    found, _ = checked(live, target)
    assert found.grouping is not None
    grouping = found.grouping if gate is None else replace(found.grouping, gate=gate)
    artifact = live._build(Variant(Target(target, "cpu"), live.source.profile))
    described = Described(live.source, live.samples)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pack_check, "_gain", lambda *_: gain)
        files = live._files(artifact.variant)
        return check_packing(artifact, files, described, live.folder / "samples", grouping, THREADS)


@pytest.fixture(scope="module")
def grouping(bert: Live) -> Grouping:
    found = tried(bert)
    assert found.packing is not None, found.unpacked
    return found


def test_each_text_is_held_against_itself_alone(grouping: Grouping):
    how = grouping.packing
    assert how is not None
    assert how.width == 64
    assert how.gain == GAIN
    assert how.compared >= 20
    assert how.gate == grouping.gate
    assert how.found["sqnr_db"] is None or how.found["sqnr_db"] > 100, "None: every value is equal"
    assert from_json(Grouping, to_json(grouping)) == grouping


@pytest.mark.parametrize("target", [pytest.param("openvino-bf16", marks=pytest.mark.bf16), "openvino-int8"])
def test_a_variant_of_less_precision_is_held_by_its_own_gate(bert: Live, target: str):
    found = tried(bert, target)
    assert found.packing is not None, found.unpacked
    assert found.packing.gate == found.gate


def test_what_is_not_faster_beyond_doubt_stays_in_groups(bert: Live):
    found = tried(bert, gain=(1.2, 0.9, 1.6))
    assert found.packing is None
    assert found.unpacked == "shared rows answer 1.20× [0.90, 1.60] of the requests that groups by length do"


def test_a_runtime_that_has_no_such_rows_is_not_asked(bert: Live):
    found = tried(bert, "ort")
    assert (found.packing, found.unpacked) == (None, None)


def test_answers_that_depend_on_the_other_texts_of_a_row_are_found(bert: Live, monkeypatch: pytest.MonkeyPatch):
    joined = packed.joined

    def blind(*given: Any) -> dict[str, np.ndarray]:
        feed = joined(*given)
        one = np.minimum(feed[packed.TEXT], 1)
        return feed | {packed.TEXT: one, packed.SHOWN: one}

    monkeypatch.setattr(packed, "joined", blind)
    found = tried(bert)
    assert found.packing is None
    assert "answers depend on the texts of a row" in str(found.unpacked)


def test_a_text_that_sees_a_little_of_another_is_found_where_the_gate_has_room_for_it(
    bert: Live, monkeypatch: pytest.MonkeyPatch
):
    """One position is seen by the second text of its row in place of its own."""
    joined = packed.joined

    def leaking(*given: Any) -> dict[str, np.ndarray]:
        feed = joined(*given)
        shown = feed[packed.SHOWN].copy()
        several = feed[packed.TEXT].max(axis=1) > 1
        shown[several, 0] = 2
        return feed | {packed.SHOWN: shown}

    monkeypatch.setattr(packed, "joined", leaking)
    found = tried(bert, gate={"sqnr_db": 3.0})
    assert found.packing is None
    assert "where groups by length keep" in str(found.unpacked)


POOLED = '"pooled": torch.tanh(self.pool(hidden[:, 0]))'
REFUSED = {
    "the largest of a row": (
        POOLED,
        '"pooled": (hidden * attention_mask[..., None]).amax(1)',
        "takes ReduceMax of a row",
    ),
    "no mask in attention": ("+ hide, -1)", ", -1)", "comes to scores in 0 places"),
    "two tables": (
        "self.places(torch.arange(input_ids.shape[1]))",
        "self.places(torch.arange(input_ids.shape[1])) + self.words(torch.arange(input_ids.shape[1]).clamp(max=49))",
        "positions come in at 2",
    ),
    "backwards": (
        "self.places(torch.arange(input_ids.shape[1]))",
        "self.places(input_ids.shape[1] - 1 - torch.arange(input_ids.shape[1]))",
        "reads a table",
    ),
    "the second position": ("hidden[:, 0]", "hidden[:, 1]", "reads a position"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_model_whose_rows_hold_one_text_says_why(tmp_path: Path, name: str):
    old, new, why = REFUSED[name]
    assert old in BERT
    sizes = SIZES | {"min": (1, 2)}
    live = Live.make(tmp_path, BERT.replace(old, new), sizes)
    builder = pack_check.targets.discover()[TARGET]
    artifact = live._build(Variant(Target(TARGET, "cpu"), live.source.profile))
    with pytest.raises(accel.core.errors.InputError, match="no row of it can hold several texts") as told:
        builder.open_packed(artifact, live._files(artifact.variant), mask="attention_mask", threads=2, mode="latency")
    assert why in told.value.message


COUNTED = {
    "from one": "torch.arange(1, 1 + input_ids.shape[1])",
    "along the row": "torch.cumsum((input_ids != 7).long(), 1) * (input_ids != 7)",
}


def hold_packed(folder: Path, code: str) -> None:
    """Hold that texts of a changed model may share rows, to the last bits of FP32."""
    found = tried(Live.make(folder, code, SIZES))
    assert found.packing is not None, found.unpacked
    assert found.packing.found["sqnr_db"] is None or found.packing.found["sqnr_db"] > 100


@pytest.mark.parametrize("name", COUNTED)
def test_positions_may_be_counted_in_other_ways(tmp_path: Path, name: str):
    hold_packed(
        tmp_path,
        BERT.replace("torch.arange(input_ids.shape[1])", COUNTED[name]).replace("Embedding(64", "Embedding(65"),
    )


TURNED = """\
        at = torch.arange(hidden.shape[1])[:, None] * 10.0 ** -torch.arange(8)
        cos, sin = at.cos(), at.sin()
        halves = (x.chunk(2, -1) for x in (q, k))
        q, k = (torch.cat((a * cos - b * sin, a * sin + b * cos), -1) for a, b in halves)
"""


def test_rotations_by_position_stay(tmp_path: Path):
    """What is turned by its place in the row meets what is turned alike: the distance alone remains (RoPE)."""
    scores = "        scores = torch.softmax"
    code = BERT.replace(" + self.places(torch.arange(input_ids.shape[1]))", "").replace(scores, TURNED + scores)
    hold_packed(tmp_path, code)


def test_positions_that_are_computed_are_found_by_the_answers(tmp_path: Path):
    """Waves along the row are no table: nothing begins them anew, and no text but the first is answered as alone."""
    waves = "torch.sin(torch.arange(input_ids.shape[1])[:, None] * 10.0 ** -torch.arange(16))"
    found = tried(Live.make(tmp_path, BERT.replace("self.places(torch.arange(input_ids.shape[1]))", waves), SIZES))
    assert found.packing is None
    assert "answers depend on the texts of a row" in str(found.unpacked)


def test_a_table_by_distance_stays(tmp_path: Path):
    """Relative positions beside absolute ones: the distance of two positions of a text is what it is alone."""
    code = BERT.replace(
        "        for layer in self.layers:\n",
        "        at = torch.arange(input_ids.shape[1])\n"
        "        hide = hide + self.places((at[None] - at[:, None]).clamp(-20, 20) + 20)[..., 0]\n"
        "        for layer in self.layers:\n",
    )
    hold_packed(tmp_path, code)


def test_a_mean_by_the_mask_is_taken_of_each_text(tmp_path: Path):
    """As embeddings are made: the mask hides positions beside attention, and counts them."""
    mean = (
        '"pooled": (hidden * attention_mask[..., None].float()).sum(1)'
        " / attention_mask.sum(1, keepdim=True).clamp(min=1)"
    )
    hold_packed(tmp_path, BERT.replace(POOLED, mean))


def requests(lengths: list[int]) -> dict[int, dict[str, np.ndarray]]:
    return {i: {"ids": np.ones((1, n), np.int64), "mask": np.ones((1, n), np.int64)} for i, n in enumerate(lengths)}


def test_calls_hold_as_many_rows_as_they_may_and_long_texts_share_calls_alone():
    how = Grouping("mask", "seq", (8, 64, 128), (8,), rows=4, packing=Packing(32, 96))
    feeds = requests([30, 31, 32, 12, 12, 8, 100, 90])
    made = groups(feeds, how)
    assert sorted(row.request for group in made for row in group) == list(range(8))
    [longer] = [group for group in made if any(row.length > 32 for row in group)]
    assert {row.request for row in longer} == {6, 7}
    assert [places(group, how) for group in made] == sorted(places(group, how) for group in made)
    usual = [group for group in made if group is not longer]
    assert [len(packed.filled([row.length for row in group], 32)) for group in usual] == [1, 3]
    one_each = groups(feeds, how.merging(1))
    assert [len(group) for group in one_each] == [1] * 8
    assert how.merging(4) is how


def test_a_text_whose_mask_shows_nothing_is_a_call_of_its_own_width():
    how = Grouping("mask", "seq", (8, 64), (8,), rows=4, packing=Packing(32, 96))
    feeds = requests([5, 6, 7])
    for number in (1, 2):
        feeds[number]["mask"][:] = 0
    assert sorted([row.request for row in group] for group in groups(feeds, how)) == [[0], [1], [2]]


@pytest.fixture(scope="module")
def root(bert: Live, grouping: Grouping) -> Path:
    return bert.root(TARGET, grouping=grouping, mask="attention_mask")


@pytest.fixture(scope="module")
def served(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    if not environments.installed("triton"):
        pytest.skip(f"no embedded server here: {environments.fix('triton')}")
    with server.start(root, via="embedded", log=tmp_path_factory.mktemp("log") / "server.log") as running:
        yield running


@pytest.fixture(scope="module")
def single(bert: Live) -> dict[str, dict[str, np.ndarray]]:
    """What the artifact answers to each row alone."""
    return bert.alone(TARGET, SENT)


def test_in_process_each_is_answered_as_alone(bert: Live, root: Path, single: dict[str, dict[str, np.ndarray]]):
    with accel.load(root) as model:
        found = dict(zip(SENT, model.run_all(list(SENT.values())), strict=True))
        nothing = {name: np.zeros((1, 5), np.int64) for name in ("input_ids", "attention_mask")}
        [hidden] = model.run_all([nothing])
        np.testing.assert_allclose(hidden["pooled"], model.run(nothing)["pooled"], atol=1e-4)
    hold(bert, single, found)
    with pytest.raises(accel.core.errors.StageError, match="is closed"):
        model.run_all([SENT["1"]])


def test_every_answer_under_a_mixed_load_is_that_of_the_single_request(
    bert: Live, served: Any, single: dict[str, dict[str, np.ndarray]]
):
    before = counters(served)
    hold_mixed_load(bert, served, single)
    after = counters(served)
    tokens, spent = (after[name] - before[name] for name in ("accel_tokens", "accel_places"))
    assert tokens > 0.6 * spent, "texts share rows"


def test_a_wrong_request_of_a_call_is_refused_alone(bert: Live, served: Any):
    hold_one_refusal(bert, served)


def test_a_model_before_a_native_one_groups_by_length(bert: Live, tmp_path: Path):
    """Its core is the artifact as it is."""
    how = tried(bert, "openvino-int8")
    root = bert.root("openvino-int8", grouping=how, mask="attention_mask")
    routing.write_routed(root, tmp_path / "routed")
    assert manifests.read(root).grouping == how
    assert manifests.read(tmp_path / "routed").grouping == replace(how, packing=None)
