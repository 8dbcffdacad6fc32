"""Coverage feeds: what they hold, in which order, and what a verdict says of them."""

import numpy as np
import pytest

from accel.core.feeds import fit_inputs
from accel.core.values import ModelSource, ShapeRange, TensorSpec
from accel.exporters import coverage
from accel.exporters.axes import extents, profile_of

IDS = TensorSpec("ids", "int64", ("batch", "seq"), (0, 999))
MASK = TensorSpec("mask", "int64", ("batch", "seq"), (0, 1))
TYPES = TensorSpec("types", "int64", ("batch", "seq"), (0, 2))
SCALE = TensorSpec("scale", "float32", ("batch", 3))
LOW, TYPICAL, HIGH = {"batch": 1, "seq": 1}, {"batch": 1, "seq": 16}, {"batch": 16, "seq": 32}


def source_of(*inputs, mask=None, high=HIGH):
    def shape(spec, sizes):
        return tuple(sizes[d] if isinstance(d, str) else d for d in spec.dims)

    profile = {s.name: ShapeRange(shape(s, LOW), shape(s, TYPICAL), shape(s, high)) for s in inputs}
    profile = profile_of(inputs, extents(inputs, profile))
    output = (TensorSpec("out", "float32", ("batch", 2)),)
    return ModelSource("m", "factory", "/m.py:m", "torch", "local", None, "0", inputs, output, profile, mask=mask)


def made(source):
    rng = np.random.default_rng(0)

    def make(shapes):
        fresh = {"ids": lambda s: rng.integers(0, 50, s), "mask": lambda s: np.ones(s, np.int64)}
        fresh |= {"types": lambda s: np.zeros(s, np.int64), "scale": lambda s: rng.random(s, dtype=np.float32)}
        return {spec.name: fresh[spec.name](shapes[spec.name]) for spec in source.inputs}

    found = coverage.feeds(source, make)
    for feed in found.values():
        fit_inputs(feed, source.inputs)  # each within the contract
    return found


@pytest.fixture(scope="module")
def feeds():
    return made(source_of(IDS, MASK, TYPES, SCALE, mask="mask"))


def test_values_of_a_small_input_do_not_repeat_a_large_one_hundreds_of_times(monkeypatch):
    """A step of a decoder: one token, and a past of thousands of times its size."""
    token = TensorSpec("token", "int64", ("batch", 1), (0, 50_256))
    past = TensorSpec("past", "float32", ("batch", 12, "past", 64))
    sizes = {"batch": (1, 1, 8), "past": (1, 127, 255)}

    def shape(spec, end):
        return tuple(sizes[d][end] if isinstance(d, str) else d for d in spec.dims)

    profile = {s.name: ShapeRange(*(shape(s, end) for end in range(3))) for s in (token, past)}
    output = (TensorSpec("out", "float32", ("batch", 2)),)
    source = ModelSource("m", "factory", "/m.py:m", "torch", "local", None, "0", (token, past), output, profile)

    def make(shapes):
        return {"token": np.zeros(shapes["token"], np.int64), "past": np.zeros(shapes["past"], np.float32)}

    values = [feed for name, feed in coverage.feeds(source, make).items() if name.startswith("values")]
    assert len(values) == coverage.FEEDS
    assert {feed["past"].shape for feed in values} == {(8, 12, 1, 64)}
    monkeypatch.setattr(coverage, "VALUES_BYTES", 100_000)
    assert sum(name.startswith("values") for name in coverage.feeds(source, make)) == 4  # of 24,640 bytes each


def test_every_batch_is_proved_and_the_timed_ones_come_first(feeds):
    batches = {name: feed["ids"].shape[0] for name, feed in feeds.items() if coverage.needed(name)}
    assert list(batches)[:5] == ["b1", "b2", "b4", "b8", "b16"]
    assert all(feeds[name]["ids"].shape[1] == 16 for name in list(batches)[:5])
    shapes = {1, 3, 16}  # min, odd and opt, max hold these
    assert set(batches.values()) | shapes == set(range(1, 17))
    other = {f["ids"].shape for n, f in feeds.items() if n.startswith("n")}
    assert other <= {(n, 5) for n in range(17)}


def test_every_id_and_every_small_value_is_touched(feeds):
    seen = np.unique(np.concatenate([f["ids"].ravel() for n, f in feeds.items() if n.startswith("values")]))
    assert seen.tolist() == list(range(1000))
    assert {int(f["types"].min()) for n, f in feeds.items() if n.startswith("value ")} == {0, 1, 2}
    assert feeds["lowest"]["ids"].max() == 0
    assert feeds["highest"]["ids"].min() == 999
    assert feeds["highest"]["types"].min() == 2


def test_masks_are_shaped_as_clients_send_them(feeds):
    masks = {name.removesuffix(" mask"): feed["mask"] for name, feed in feeds.items() if name.endswith(" mask")}
    assert set(masks) == {"full", "left-padded", "holed", "single"}
    assert masks["left-padded"][0].tolist() == [0] * 8 + [1] * 8
    assert 0 in masks["holed"][0, 1:-1]
    assert masks["single"].sum(axis=1).tolist() == [1] * len(masks["single"])
    assert all(mask.any(axis=1).all() for mask in masks.values())  # an empty row means nothing
    assert all((feed["mask"] == 1).all() for name, feed in feeds.items() if not name.endswith(" mask"))


def test_a_mask_that_no_sample_has_is_not_asked():
    """The mask of a decoder's memory: what attends to nothing no two runtimes answer alike."""
    hides = TensorSpec("memory_mask", "bool", ("batch", "seq"))
    source = source_of(SCALE, hides)
    base = {"scale": np.ones((2, 3), np.float32), "memory_mask": np.array([[True, False], [True, True]])}
    found = coverage.variations(source, base)
    assert all(feed["memory_mask"].any(-1).all() for feed in found.values())
    blank = base | {"memory_mask": np.array([[False, False], [True, True]])}
    assert not coverage.variations(source, blank)["lowest"]["memory_mask"].any(), "samples have such rows"


def test_floats_go_beyond_what_samples_hold(feeds):
    assert feeds["beyond"]["scale"].max() == pytest.approx(2 * feeds["flat high"]["scale"].max())
    assert np.ptp(feeds["flat low"]["scale"]) == 0


def test_every_size_of_another_axis_is_tried_or_evenly_spaced_ones(feeds):
    assert {f["ids"].shape[1] for n, f in feeds.items() if n.startswith("seq ")} == set(range(1, 33))
    long = made(source_of(IDS, high={"batch": 2, "seq": 4096}))
    sizes = sorted(f["ids"].shape[1] for n, f in long.items() if n.startswith("seq "))
    assert (len(sizes), sizes[0], sizes[-1]) == (coverage.SIZES, 1, 4096)


def test_a_large_range_is_taken_at_even_distances():
    wide = TensorSpec("ids", "int64", ("batch", "seq"), (-5, 2**62))
    feeds = made(source_of(wide))
    assert sum(n.startswith("values") for n in feeds) <= coverage.FEEDS
    found = np.concatenate([f["ids"].ravel() for n, f in feeds.items() if n.startswith("values")])
    counts, _ = np.histogram(found, bins=8, range=(-5, 2.0**62))
    assert counts.min() > len(found) / 16


def test_a_verdict_says_what_was_covered():
    source = source_of(IDS, MASK, TYPES, SCALE, mask="mask")
    feeds = made(source)
    half = {n: f for n, f in feeds.items() if not n.startswith("values")}
    said = coverage.covered(source, feeds, 0)
    assert "of 1 to 16 items" in said.replace("1 to 2, 4 to", "1 to")
    assert "1,000 of 1,000 ids" in said
    assert "3 of 3 types" in said
    assert "32 of 32 sizes of seq" in said
    assert "masks full, holed, left-padded, single" in said
    assert "2 times the samples'" in said
    part = coverage.covered(source, half, len(feeds) - len(half))
    assert f"{len(feeds) - len(half)} coverage feeds left out" in part
    assert "1,000 of 1,000 ids" not in part


def test_a_model_without_a_batch_axis_has_feeds_too():
    fixed = TensorSpec("scale", "float32", (4, 3))
    source = source_of(fixed)
    assert coverage.feeds(source, lambda shapes: {"scale": np.ones(shapes["scale"], np.float32)}).keys() == {
        "b1", "flat low", "flat high", "beyond",
    }  # fmt: skip


def test_a_made_up_feed_that_has_no_answer_proves_nothing():
    """A temperature of 0, which no sample holds, gives 0/0; at a sample itself, or at infinity, there is an answer."""
    answer, nothing = {"out": np.array([1, np.inf], np.float32)}, {"out": np.array([1, np.nan], np.float32)}
    assert not any(coverage.answered(name, nothing) for name in ("flat low", "flat high", "beyond"))
    assert coverage.answered("b4", nothing)
    assert coverage.answered("value 1", nothing)
    assert coverage.answered("flat low", answer)
    names = made(source_of(SCALE))
    assert {"flat low", "flat high", "beyond"} <= names.keys()


def test_a_first_proof_asks_requests_of_traffic_and_one_or_two_of_each_kind(feeds):
    rng = np.random.default_rng(1)
    samples = {str(i): {"ids": rng.integers(0, 50, (8, 9))} for i in range(32)}
    shapes = {name: {"ids": rng.integers(0, 50, size)} for name, size in [("min", (1, 1)), ("max", (16, 32))]}
    every = {**samples, **shapes, "t8.0": samples["0"], "t8.1": samples["1"], **feeds}
    chosen = coverage.first(every, "int8")
    assert list(chosen) == [name for name in every if name in chosen]
    assert sum(name.isdigit() for name in chosen) == coverage.FIRST_FEEDS
    assert {"min", "t8.0", "t8.1", "b1", "b16"} <= chosen.keys()
    assert not {"max", "b2", "b4", "b8"} & chosen.keys()  # what is timed is held against the source's answers then

    def kinds(names):
        return {name.rstrip("0123456789") for name in names} - {"max"}

    assert kinds(chosen) == kinds(every)
    sizes = {f["ids"].shape[1] for name, f in chosen.items() if name.startswith("seq")}
    assert max(sizes) == 32
    assert sum(name.startswith(("values", "seq", "n")) for name in chosen) <= 5


def test_of_a_build_for_one_batch_a_first_proof_asks_no_larger_ones(feeds):
    chosen = coverage.first({"0": {"ids": np.zeros((2, 9), np.int64)}, **feeds}, "fp32", batch=2)
    assert {"0", "b1", "b2"} <= chosen.keys()
    assert not {name for name in chosen if name[0] in "bn" and name[1:].isdigit() and int(name[1:]) > 2}


@pytest.mark.parametrize(
    ("count", "items", "int8", "bf16", "fp32"),
    [(4, 8, 4, 4, 2), (31, 1, 31, 31, 31), (256, 1, 64, 32, 16), (40, 8, 8, 4, 2)],
)
def test_as_many_samples_are_asked_at_first_as_a_precision_needs(count, items, int8, bf16, fp32):
    samples = {str(i): {"x": np.zeros((items, 3), np.float32)} for i in range(count)}
    asked = {precision: len(coverage.first(samples, precision, batched=True)) for precision in ("int8", "bf16", "fp32")}
    assert asked == {"int8": int8, "bf16": bf16, "fp32": fp32}
    if items > 1:  # what counts no items may be sequences of any length
        assert len(coverage.first(samples, "fp32")) == min(count, coverage.FIRST_FEEDS)


def test_samples_of_many_sizes_are_asked_in_many_feeds():
    samples = {str(i): {"x": np.zeros((8, 3 + i), np.float32)} for i in range(40)}
    for precision in ("fp32", "int8"):
        assert len(coverage.first(samples, precision, batched=True)) == coverage.FIRST_FEEDS
