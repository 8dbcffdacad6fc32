"""The table of releases, and what is unverified."""

import pytest

from accel.core.errors import UsageError
from accel.triton.releases import NEWEST, RELEASES, release, runtimes, unverified


def test_the_table_is_in_order_and_every_row_has_sources():
    assert list(RELEASES) == sorted(RELEASES)
    assert list(RELEASES)[-1] == NEWEST
    assert {"24.10", "25.02", "26.05", "26.06"} <= set(RELEASES)
    for row in RELEASES.values():
        assert len(row.sources) == 2 + sum(v is not None for v in (row.tensorrt, row.torch, row.python))
        assert all("https://github.com/triton-inference-server/" in source for source in row.sources)


def test_what_changed_between_releases():
    assert [r for r in RELEASES if "tensorflow" in release(r).backends][-1] == "25.02"
    assert next(r for r in RELEASES if release(r).torch_aoti) == "26.05"
    assert (release("26.05").tensorrt, release("26.06").tensorrt) == ("10", "11")
    assert [r for r in RELEASES if release(r).numpy_below_2] == ["24.10"]


def test_an_unknown_release_suggests_the_nearest():
    with pytest.raises(UsageError, match=r"did you mean 26\.0"):
        release("26.00")


@pytest.mark.parametrize(
    ("versions", "name", "found"),
    [
        ({"openvino": "2026.2.0"}, "26.06", ()),
        ({"openvino": "2026.2.0-21000-abc"}, "26.06", ()),
        ({"onnxruntime-gpu": "1.24.4"}, "26.06", ()),
        ({"tensorrt": "11.4.0.106"}, "26.06", ()),
        ({"torch": "2.12.0+cpu"}, "26.05", ()),
        ({"onnx": "1.23", "numpy": "2.4"}, "26.06", ()),
        ({"openvino": "2026.4.1"}, "26.06", ("built with openvino 2026.4.1, Triton 26.06 carries 2026.2.0",)),
        ({"onnxruntime": "1.31.1"}, "25.02", ("built with onnxruntime 1.31.1, Triton 25.02 carries 1.20.1",)),
        ({"tensorrt": "10.16.1"}, "26.06", ("built with tensorrt 10.16.1, Triton 26.06 carries 11",)),
        ({"torch": "2.13.0"}, "26.06", ("built with torch 2.13.0; what Triton 26.06 carries is not known",)),
    ],
)
def test_unverified_names_each_difference(versions, name, found):
    assert unverified(versions, release(name)) == found


def test_only_what_serves_must_match():
    assert runtimes("onnxruntime") == ("onnxruntime",)
    assert runtimes("onnxruntime", ("tensorrt",)) == ("onnxruntime", "tensorrt")
    assert runtimes("python") == ()
