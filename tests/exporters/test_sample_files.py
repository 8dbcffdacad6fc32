"""What the user's samples show before anything is known of the model."""

import textwrap

import numpy as np
import pytest

from accel.core.errors import InputError
from accel.core.values import TensorSpec
from accel.exporters.sample_files import dtype_of, ends_of, limit_of, rise_of, sample_calls, shapes_of, shown

FEEDS = """
    import numpy as np
    def lazy():
        for n in range(3, 200):
            yield {"ids": np.full((1, n), n % 5), "scale": np.full((1, 1), np.nan)}
    def stacked():
        return {"ids": np.zeros((300, 12), np.int32)}
    def texts():
        return ["a cat", "a mat"]
    def broken():
        raise ValueError("no data here")
        yield
"""


@pytest.fixture
def feeds(tmp_path):
    path = tmp_path / "feeds.py"
    path.write_text(textwrap.dedent(FEEDS))
    return path


def test_a_generator_shows_what_its_samples_have(feeds):
    lazy = sample_calls(f"{feeds}:lazy", ["ids", "scale"])
    assert shapes_of(lazy, "ids") == [(1, n) for n in range(3, 200)]
    assert (dtype_of(lazy, "ids"), dtype_of(lazy, "scale")) == ("int64", "float64")
    assert (ends_of(lazy, "ids"), ends_of(lazy, "scale")) == ((0, 4), None)
    stacked = sample_calls(f"{feeds}:stacked", ["ids", "scale"])
    assert (shapes_of(stacked, "ids"), shapes_of(stacked, "scale")) == ([(1, 12)], [])
    assert sample_calls(f"{feeds}:texts", ["ids"]) == sample_calls(None, ["ids"]) == ()
    with pytest.raises(InputError, match="no data here"):
        sample_calls(f"{feeds}:broken", ["ids"])


def test_a_folder_shows_the_calls_of_every_file(tmp_path):
    numbered = {f"{i}/{name}": np.full((i + 2, i + 3), i) for i in range(3) for name in ("a", "b/c", "label")}
    np.savez(tmp_path / "0.npz", **numbered)
    np.savez(tmp_path / "1.npz", a=np.arange(8).reshape(4, 2), label=np.array(["x"] * 4))
    (tmp_path / "2.jsonl").write_text('{"a": [1, 2, 3]}\n{"text": "a cat"}\nno json\n')
    calls = sample_calls(str(tmp_path), ["a", "b/c"])
    assert [sorted(call) for call in calls] == [["a", "b/c"]] * 3 + [["a"]] * 2
    assert shapes_of(calls, "a") == [(2, 3), (3, 4), (4, 5), (1, 2), (1, 3)]
    assert (dtype_of(calls, "a"), ends_of(calls, "a"), ends_of(calls, "b/c")) == ("int64", (0, 7), (0, 2))


def test_values_that_follow_a_size_or_their_order_are_seen():
    ids, ends, ptr = (TensorSpec(name, "int64", ("n",)) for name in ("ids", "ends", "ptr"))
    sizes = (5, 9, 12)
    feeds = [
        {"x": np.zeros((n, 4)), "ids": np.array([[n - 1, 0]]), "ends": np.array([3, n]), "ptr": np.array([0, 2, n - 1])}
        for n in sizes
    ]
    calls = shown(feeds)
    assert limit_of(calls, ids) == ("x", 0, -1)
    assert limit_of(calls, ends) == ("x", 0, 0)
    assert [rise_of(calls, spec) for spec in (ids, ends, ptr)] == [None, 3, 0]
    falling = shown([*feeds, feeds[0] | {"ptr": np.array([0, 2, 1])}])
    assert rise_of(falling, ptr) is None
    assert limit_of(shown(feeds[:1]), ids) is None, "one size shows nothing"
    assert limit_of(calls, TensorSpec("x", "float32", ("n", 4))) is None


@pytest.mark.parametrize("value", [2, 900])
def test_values_that_every_size_allows_follow_none(value):
    feeds = [{"ids": np.full((1, n), value)} for n in (3, 5, 8)]
    assert limit_of(shown(feeds), TensorSpec("ids", "int64", ("batch", "seq"))) is None
