"""What a response cache would answer, by recorded requests."""

import null_repository
import pytest
from hypothesis import given, strategies as st

from accel.core.errors import InputError, UsageError
from accel.triton.tune.repeats import BESIDE_BYTES, answer_bytes, hits
from accel.triton.tune.request import TuneRequest


@given(st.lists(st.sampled_from("abcdef"), min_size=1, max_size=60), st.integers(1, 8))
def test_what_was_not_asked_for_longest_is_forgotten(keys, answers):
    """An answer is there while fewer others than the cache holds were asked since."""
    found = 0
    for place, key in enumerate(keys):
        before = [p for p in range(place) if keys[p] == key]
        found += bool(before) and len(set(keys[before[-1] + 1 : place])) < answers
    assert hits(tuple(keys), answers) == pytest.approx(found / len(keys))


def test_a_cache_too_small_for_one_answer_answers_nothing():
    assert hits("aaaaaaaaa", 0) == 0.0
    assert hits("aaaaaaaa", 1) == 7 / 8
    assert hits([str(n) for n in range(50)], 8) == 0.0


def asked(**given):
    return TuneRequest(targets=(".",), max_p99_ms=10.0, **given)


def test_keys_are_read_from_recorded_requests(tmp_path):
    log = tmp_path / "log.jsonl"
    log.write_text('{"key": "a1", "length": 7}\n\n{"key": 2}\n{"key": "a1", "at": 3}\n')
    found = asked(hit_rate_of=log)
    assert found.hit_rate_of == ("a1", "2", "a1")
    assert hits(found.hit_rate_of, 100) == pytest.approx(1 / 3)
    with pytest.raises(UsageError, match="says a share"):
        asked(hit_rate_of=log, hit_rate=0.5)


@pytest.mark.parametrize(
    ("share", "expected"),
    [(0, "a number above 0"), (1, "0.95 or less"), (-0.1, "above 0"), (0.96, "or less"), (float("nan"), "")],
)
def test_a_share_that_is_none_is_refused(share, expected):
    with pytest.raises(UsageError, match=f"^hit_rate is {share}: expected .*{expected}$"):
        asked(hit_rate=share)


def test_a_file_of_requests_that_is_missing_is_explained_by_its_keys(tmp_path):
    with pytest.raises(InputError, match=r"no\.jsonl") as error:
        asked(hit_rate_of=tmp_path / "no.jsonl")
    assert '"key"' in error.value.fix
    assert "length" not in error.value.fix


@pytest.mark.parametrize("line", ["{}", "17", '{"key": null}', '{"key": 1.5}', '{"key": true}', '{"key": ["a"]}'])
def test_a_request_without_a_key_is_named(tmp_path, line):
    log = tmp_path / "log.jsonl"
    log.write_text('{"key": "a"}\n' + line + "\n")
    with pytest.raises(InputError, match=r'log\.jsonl:2 has no "key"') as error:
        asked(hit_rate_of=log)
    assert "hash" in error.value.fix


def test_nothing_repeats_as_a_whole_where_requests_are_filled():
    with pytest.raises(UsageError, match="--offline"):
        TuneRequest(targets=(".",), offline=True, hit_rate=0.3)


def test_an_answer_is_as_large_as_the_stored_one(tmp_path):
    assert answer_bytes(null_repository.write(tmp_path)) == 4 * 4 + BESIDE_BYTES
