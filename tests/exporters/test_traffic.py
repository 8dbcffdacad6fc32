"""Requests of their own lengths: how they are drawn, grouped and padded, and that grouping changes no answer."""

import dataclasses
import itertools

import numpy as np
import pytest

from accel.core.errors import SampleError
from accel.core.feeds import fit_inputs
from accel.core.recorded import Recorded
from accel.core.values import ModelSource, ShapeRange, TensorSpec
from accel.exporters import traffic
from accel.exporters.sources import quick_key, recognise

IDS = TensorSpec("ids", "int64", ("batch", "seq"), (0, 999))
MASK = TensorSpec("mask", "int64", ("batch", "seq"), (0, 1))
HIDDEN = TensorSpec("hidden", "float32", ("batch", "seq", 2))
POOLED = TensorSpec("pooled", "float32", ("batch", 2))


def source_of(*outputs, inputs=(IDS, MASK), most=(16, 64), least=1, multiple=()):
    shape = ShapeRange((least, 1), (least, 16), most, multiple)
    mask = "mask" if MASK in inputs else None
    profile = {spec.name: shape for spec in inputs}
    return ModelSource("m", "factory", "/m.py:m", "torch", "local", None, "0", inputs, outputs, profile, mask=mask)


MASKED = source_of(HIDDEN, POOLED)
UNMASKED = source_of(POOLED, inputs=(IDS,))


def items(lengths, *, padding=0, masked=True):
    rng = np.random.default_rng(0)
    made = []
    for n in lengths:
        item = {"ids": np.pad(rng.integers(1, 999, (1, n)), [(0, 0), (0, padding)])}
        made.append(item | ({"mask": (np.arange(n + padding) < n).astype(np.int64)[None]} if masked else {}))
    return made


LENGTHS = [5, 9, 13, 17, 33, 40, 64] * 10


@pytest.fixture(scope="module")
def feeds():
    made = traffic.feeds(MASKED, items(LENGTHS))
    for feed in made.values():
        fit_inputs(feed, MASKED.inputs)
    return made


def of(feeds, size):
    return [feed for name, feed in feeds.items() if traffic.point(name) == f"t{size}"]


def test_every_request_is_in_a_group_of_each_size_beside_others_of_its_length(feeds):
    assert traffic.sizes(MASKED) == [1, 4, 16]
    for size in (1, 4, 16):
        groups = of(feeds, size)
        assert max(group["ids"].shape[0] for group in groups) == size
        assert sum(traffic.requests(MASKED, group)[0] for group in groups) == traffic.REQUESTS
        lengths = [group["mask"].sum(axis=1) for group in groups]
        assert all(a.min() >= b.max() for a, b in itertools.pairwise(lengths))  # longest first
        counted = np.unique(np.concatenate(lengths), return_counts=True)[1]
        assert max(counted) - min(counted) <= 2  # each length of the samples as often as it is there
    assert len({tuple(sorted(map(bytes, of(feeds, n)[0]["ids"]))) for n in (1, 4, 16)}) == 3


def test_lengths_are_few_and_the_padding_is_masked(feeds):
    for size in (1, 4, 16):
        shapes = {group["ids"].shape[1] for group in of(feeds, size)}
        assert len(shapes) <= traffic.SHAPES
        assert all(n % traffic.STEP == 0 for n in shapes)
    for feed in feeds.values():
        assert not feed["ids"][feed["mask"] == 0].any()
        tokens, length = traffic.requests(MASKED, feed)[1:]
        assert (tokens, length) == (feed["mask"].sum(), feed["ids"].shape[1])
    places = {size: sum(group["ids"].size for group in of(feeds, size)) for size in (1, 4, 16)}
    assert places[1] == places[4] == places[16] < 0.5 * 64 * traffic.REQUESTS  # all padded to the longest


def test_one_long_request_makes_no_other_longer():
    made = traffic.feeds(MASKED, items([6] * 63 + [64]))
    assert sorted(feed["ids"].shape for feed in of(made, 16)) == [(1, 64), (15, 8), (16, 8), (16, 8), (16, 8)]


def test_many_lengths_are_padded_to_no_more_than_a_few():
    many = traffic.feeds(source_of(POOLED, most=(16, 512)), items(range(1, 500)))
    for size in (1, 4, 16):
        assert len({group["ids"].shape[1] for group in of(many, size)}) <= traffic.SHAPES


def test_padding_that_samples_bring_is_cut_off_and_holes_are_not():
    made = traffic.feeds(MASKED, items([5] * 3, padding=30))
    assert {feed["ids"].shape[1] for feed in made.values()} == {8}
    left = [{"ids": np.ones((1, 20), np.int64), "mask": (np.arange(20) >= 12).astype(np.int64)[None]}]
    made = traffic.feeds(MASKED, left)
    assert {feed["ids"].shape[1] for feed in made.values()} == {24}
    assert {traffic.requests(MASKED, feed)[1] // feed["ids"].shape[0] for feed in made.values()} == {20}


def test_without_a_mask_only_requests_of_one_length_share_a_feed():
    made = traffic.feeds(UNMASKED, items(LENGTHS, masked=False))
    assert {feed["ids"].shape[1] for feed in made.values()} == set(LENGTHS)
    assert sum(feed["ids"].shape[0] for feed in of(made, 16)) == traffic.REQUESTS
    assert max(feed["ids"].shape[0] for feed in of(made, 16)) > 1
    hidden_length = source_of(TensorSpec("y", "float32", ("batch", "out0_axis1")))  # nothing says where padding ends
    assert {f["ids"].shape[1] for f in traffic.feeds(hidden_length, items(LENGTHS)).values()} == set(LENGTHS)


def test_what_an_axis_takes_is_kept():
    least = source_of(POOLED, most=(8, 60), least=2, multiple=(1, 12))
    made = traffic.feeds(least, items([12, 24, 36, 60]))
    assert {feed["ids"].shape[1] for feed in made.values()} <= {24, 48, 60}  # multiples of 8 and 12, and the largest
    assert min(feed["ids"].shape[0] for feed in made.values()) == 2
    alone = source_of(TensorSpec("all", "float32", (2,)))  # no batch in an output: items cannot be cut apart
    assert traffic.sizes(alone) == [1]


def recorded(*lengths):
    return [Recorded(f"log.jsonl:{number}", length) for number, length in enumerate(lengths, 1)]


def test_recorded_lengths_take_the_place_of_the_samples_own():
    made = traffic.feeds(MASKED, items([20]), recorded(50, 3, 3, 3))
    lengths = [int(n) for feed in of(made, 1) for n in feed["mask"].sum(axis=1)]
    assert {n: lengths.count(n) for n in lengths} == {50: 16, 3: 48}
    assert (of(made, 1)[0]["ids"] != 0).sum() == 50  # of real values


PICTURE = TensorSpec("pixels", "float32", ("batch", 3, "height", "width"))
DETECTING = dataclasses.replace(
    source_of(POOLED),
    inputs=(PICTURE,),
    mask=None,
    profile={"pixels": ShapeRange((1, 3, 32, 32), (1, 3, 96, 96), (4, 3, 160, 160), (1, 1, 32, 32))},
)


def pictures(*sizes):
    return [{"pixels": np.random.default_rng(h).random((1, 3, h, w), np.float32)} for h, w in sizes]


def shaped(*sizes):
    return [Recorded(f"log.jsonl:{n}", shapes={"pixels": (3, *size)}) for n, size in enumerate(sizes, 1)]


def test_recorded_shapes_give_requests_of_their_own_sizes():
    given = pictures((32, 64), (128, 96))
    made = traffic.feeds(DETECTING, given, shaped((160, 96), (60, 64), (160, 96), (32, 160)))
    for size in traffic.sizes(DETECTING):
        rows = [(feed["pixels"].shape[2:], len(feed["pixels"])) for feed in of(made, size)]
        counted = {shape: sum(n for own, n in rows if own == shape) for shape, _ in rows}
        assert counted == {(64, 64): 16, (32, 160): 16, (160, 96): 32}  # 60 is no multiple of 32
        assert max(n for _, n in rows) == size
    tall = next(feed["pixels"] for feed in of(made, 1) if feed["pixels"].shape[2] == 160)
    np.testing.assert_array_equal(tall[:, :, :128], given[1]["pixels"])  # of the sample that is most like it
    np.testing.assert_array_equal(tall[:, :, 128:], given[1]["pixels"][:, :, :32])


def test_one_input_says_the_size_of_the_axes_it_shares():
    made = traffic.feeds(MASKED, items([20]), [Recorded("log.jsonl:1", shapes={"ids": (7,)})])
    assert {int(n) for feed in made.values() for n in feed["mask"].sum(axis=1)} == {7}


@pytest.mark.parametrize(
    ("shapes", "said"),
    [
        ({"pixel": (3, 64, 64)}, r'"shape" of log.jsonl:2: the model has no input \'pixel\' \(did you mean pixels'),
        ({"pixels": (64, 64)}, r'"shape" of log.jsonl:2 pixels: 2 sizes given, expected 3'),
        ({"pixels": (1, 64, 64)}, r'"shape" of log.jsonl:2 pixels: an axis is fixed at 3, found 1'),
        ({"pixels": (3, 64, 200)}, r"log.jsonl:2 asks for 200 of axis 'width', which goes from 32 to 160"),
    ],
)
def test_shapes_that_the_model_does_not_take_are_refused(shapes, said):
    asked = [*shaped((64, 64)), Recorded("log.jsonl:2", shapes=shapes)]
    with pytest.raises(SampleError, match=said):
        traffic.feeds(DETECTING, pictures((64, 64)), asked)


def test_a_shape_says_the_sizes_of_all_axes():
    more = TensorSpec("boxes", "float32", ("batch", "count"))
    profile = {**DETECTING.profile, "boxes": ShapeRange((1, 1), (1, 2), (4, 9))}
    source = dataclasses.replace(DETECTING, inputs=(PICTURE, more), profile=profile)
    given = [{**pictures((64, 64))[0], "boxes": np.ones((1, 2), np.float32)}]
    with pytest.raises(SampleError, match=r"\"shape\" of log.jsonl:1 says nothing of axis 'count'"):
        traffic.feeds(source, given, shaped((64, 64)))


def test_lengths_that_the_model_does_not_take_are_refused():
    with pytest.raises(SampleError, match=r"log.jsonl:2 asks for 65 of axis 'seq', which goes from 1 to 64"):
        traffic.feeds(MASKED, items([5]), recorded(5, 65))
    fixed = TensorSpec("x", "float32", ("batch", 3))
    picture = dataclasses.replace(
        source_of(POOLED), inputs=(fixed,), mask=None, profile={"x": ShapeRange((1, 3), (1, 3), (4, 3))}
    )
    with pytest.raises(SampleError, match=r"log.jsonl:1 has a length, .* one axis of the inputs to be the length"):
        traffic.feeds(picture, [{"x": np.ones((1, 3), np.float32)}], recorded(5))
    with pytest.raises(SampleError, match=r"one axis .* has \['height', 'width'\]"):
        traffic.feeds(DETECTING, pictures((64, 64)), recorded(5))
    assert traffic.requests(picture, {"x": np.ones((4, 3), np.float32)}) == (4, None, None)


def hiding(feed):
    """A sum over what the mask shows."""
    shown = feed["ids"] * feed["mask"]
    return {
        "hidden": np.stack([shown, shown % 7], -1).astype(np.float32),
        "pooled": np.stack([shown.sum(1), shown.max(1)], -1).astype(np.float32),
    }


def counting_padding(feed):
    """A mean over all positions, padding among them."""
    return hiding(feed) | {"pooled": np.stack([feed["ids"].mean(1)] * 2, -1).astype(np.float32)}


def mixing_rows(feed):
    """Scales by the largest value of the batch, as dynamic quantisation does."""
    found = hiding(feed)
    return found | {"pooled": found["pooled"] / found["pooled"].max()}


@pytest.mark.parametrize(("model", "sound"), [(hiding, True), (counting_padding, False), (mixing_rows, False)])
def test_a_source_whose_answers_change_in_a_group_is_found(feeds, model, sound):
    wrong = traffic.check(MASKED, feeds, {name: model(feed) for name, feed in feeds.items()}, model)
    assert (wrong is None) == sound, wrong
    assert wrong is None or "'pooled'" in wrong


def test_the_key_of_the_samples_covers_the_recorded_file(tmp_path):
    file = tmp_path / "log.jsonl"
    keys = set()
    for content in ("3\n", "4\n"):
        file.write_text(content)
        keys.add(quick_key(recognise("minilm@small", traffic=str(file))))
    keys |= {quick_key(recognise("minilm@small", traffic=traffic.FROM_SAMPLES)), quick_key(recognise("minilm@small"))}
    assert len(keys) == 4
