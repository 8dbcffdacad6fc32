"""How texts are packed into rows, and found again."""

import numpy as np
import pytest
from hypothesis import given, strategies as st

from accel.core.packed import POSITION, SHOWN, START, TEXT, filled, joined, separated


def texts(lengths: list[int]) -> list[dict[str, np.ndarray]]:
    draw = np.random.default_rng(0)
    return [{"ids": draw.integers(1, 9, n, np.int32), "mask": np.ones(n, np.int32)} for n in lengths]


@given(st.lists(st.integers(1, 40), min_size=1, max_size=60), st.sampled_from([16, 32]))
def test_every_text_is_in_one_row_and_only_one_that_is_too_long_leaves_it(lengths, width):
    rows = filled(lengths, width)
    assert sorted(i for row in rows for i in row) == list(range(len(lengths)))
    sums = [sum(lengths[i] for i in row) for row in rows]
    assert all(used <= width or len(row) == 1 for used, row in zip(sums, rows, strict=True))
    assert sum(used <= width / 2 for used in sums) <= 1  # two such rows would have been one


@given(st.lists(st.integers(1, 40), min_size=1, max_size=60), st.integers(0, 5), st.integers(1, 5))
def test_rows_that_follow_each_other_are_filled_alike_by_their_own_texts(lengths, first, count):
    rows = filled(lengths, 32)[first : first + count]
    own = [i for row in rows for i in row]
    assert [[own[i] for i in row] for row in filled([lengths[i] for i in own], 32)] == rows


@given(st.lists(st.integers(1, 20), min_size=1, max_size=30), st.sampled_from([0, 16, 64]))
def test_what_was_packed_is_found_again(lengths, width):
    asked = texts(lengths)
    feed = joined(asked, "mask", width, 64)
    assert feed["ids"].shape == feed[TEXT].shape == feed[SHOWN].shape == feed[POSITION].shape
    assert feed["ids"].shape[1] % 8 == 0
    assert (feed[TEXT] == 0).sum() == feed[TEXT].size - sum(lengths)
    outputs = {"hidden": feed["ids"][..., None], "first": feed["ids"].ravel()[feed[START]][:, None]}
    found = separated(feed, outputs, lengths, {"hidden"})
    for number, text in enumerate(asked):
        assert np.array_equal(found["hidden"][number][:, 0], text["ids"])
        assert np.array_equal(found["first"][number], text["ids"][:1])


def test_no_position_sees_what_the_mask_hides():
    [text] = texts([5])
    text["mask"][[1, 3]] = 0
    feed = joined([text, *texts([3])], "mask", 8, 64)
    assert feed[TEXT].tolist() == [[1, 1, 1, 1, 1, 2, 2, 2]]
    assert feed[SHOWN].tolist() == [[1, -1, 1, -1, 1, 2, 2, 2]]
    assert feed[POSITION].tolist() == [[0, 1, 2, 3, 4, 0, 1, 2]]
    hidden = {**text, "mask": np.zeros(5, np.int32)}
    assert joined([hidden], "mask", 8, 64)["ids"].shape == (1, 5), "its answer may follow from its width"


def test_no_row_is_wider_than_the_model_takes():
    assert joined(texts([13]), "mask", 13, 13)["ids"].shape == (1, 13)
    assert joined(texts([11, 2]), "mask", 13, 13)["ids"].shape == (1, 13)


def test_an_output_of_another_shape_is_no_answer():
    feed = joined(texts([3, 4]), "mask", 8, 64)
    with pytest.raises(ValueError, match=r"output 'pooled' is \(1, 6\) for 2 texts"):
        separated(feed, {"pooled": np.zeros((1, 6))}, [3, 4], {"hidden"})
    with pytest.raises(ValueError, match=r"output 'hidden' is \(2, 4, 6\)"):
        separated(feed, {"hidden": np.zeros((2, 4, 6))}, [3, 4], {"hidden"})
