"""What the user's samples show before anything is known of the model."""

import textwrap

import pytest

from accel.core.errors import InputError
from accel.exporters.sample_files import sample_bounds, sample_dtype, sample_shapes

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
    lazy = f"{feeds}:lazy"
    assert sample_shapes(lazy, "ids") == [(1, n) for n in range(3, 200)]
    assert (sample_dtype(lazy, "ids"), sample_dtype(lazy, "scale")) == ("int64", "float64")
    assert (sample_bounds(lazy, "ids"), sample_bounds(lazy, "scale")) == ((0, 4), None)
    assert sample_shapes(f"{feeds}:stacked", "ids") == [(1, 12)]
    assert sample_shapes(lazy, "other") == sample_shapes(f"{feeds}:texts", "ids") == []
    with pytest.raises(InputError, match="no data here"):
        sample_shapes(f"{feeds}:broken", "ids")
