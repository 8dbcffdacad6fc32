"""What a response cache would answer, by recorded requests."""

import itertools

import null_repository
import pytest
from hypothesis import given, strategies as st

from accel.core.errors import InputError, UsageError
from accel.triton.launch import CACHE_BYTES
from accel.triton.tune.repeats import Repeats, answer_bytes, hits, parse_repeats


@given(st.lists(st.sampled_from("abcdef"), min_size=1, max_size=60), st.integers(1, 8))
def test_what_was_not_asked_for_longest_is_forgotten(keys, answers):
    """An answer is there while fewer others than the cache holds were asked since."""
    found = 0
    for place, key in enumerate(keys):
        before = [p for p in range(place) if keys[p] == key]
        found += bool(before) and len(set(keys[before[-1] + 1 : place])) < answers
    assert hits(tuple(keys), answers) == pytest.approx(found / len(keys))


def test_a_cache_too_small_for_one_answer_answers_nothing():
    assert Repeats(keys=("a",) * 9).hits(CACHE_BYTES + 1) == 0.0
    assert Repeats(keys=("a",) * 8).hits(CACHE_BYTES) == 7 / 8


def test_a_share_or_a_file_is_read(tmp_path):
    assert parse_repeats("0.3") == Repeats(0.3)
    log = tmp_path / "log.jsonl"
    log.write_text('{"key": "a1", "length": 7}\n\n{"key": 2}\n{"key": "a1", "at": 3}\n')
    found = parse_repeats(str(log))
    assert found.keys == ("a1", "2", "a1")
    assert found.hits(100) == pytest.approx(1 / 3)


@pytest.mark.parametrize("text", ["0", "1", "-0.1", "1.5", "nan", "inf", "nowhere.jsonl", ""])
def test_what_is_neither_is_refused(text):
    with pytest.raises(UsageError, match="--hit-rate"):
        parse_repeats(text)


@pytest.mark.parametrize("line", ["{}", "17", '{"key": null}', '{"key": 1.5}', '{"key": true}', '{"key": ["a"]}'])
def test_a_request_without_a_key_is_named(tmp_path, line):
    log = tmp_path / "log.jsonl"
    log.write_text('{"key": "a"}\n' + line + "\n")
    with pytest.raises(InputError, match=r'log\.jsonl:2 has no "key"') as error:
        parse_repeats(str(log))
    assert "hash" in error.value.fix


def test_an_answer_is_as_large_as_the_stored_one(tmp_path):
    assert answer_bytes(null_repository.write(tmp_path)) == 4 * 4


def test_a_trace_that_never_repeats_has_nothing_to_cache():
    assert Repeats(keys=tuple(map(str, itertools.chain(range(50))))).hits(8) == 0.0
