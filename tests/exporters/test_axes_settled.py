"""Axes of torch modules that do not take every size, found by trial: beginnings, ends, multiples and ties."""

from collections.abc import Callable

import numpy as np
import pytest

from accel.core.errors import StageError, UsageError
from accel.core.feeds import Feed
from accel.core.values import ShapeRange, TensorSpec
from accel.exporters import describe
from accel.exporters.axes import with_fixed
from accel.exporters.axis_trial import settle
from accel.exporters.sources import recognise

IDS = (TensorSpec("ids", "int64", ("batch", "seq"), (0, 9)),)
LONG = {"ids": ShapeRange((1, 1), (1, 128), (16, 510))}


def takes(fits: Callable[[int], bool]) -> Callable[[Feed], dict[str, np.ndarray]]:
    """Return a model that runs at the lengths that fit, and fails at others as torch does."""

    def run(feed: Feed) -> dict[str, np.ndarray]:
        if not fits(feed["ids"].shape[1]):
            raise StageError(f"the model's forward raised on {feed['ids'].shape}")
        return {"y": feed["ids"] * 2.0}

    return run


@pytest.mark.parametrize(
    ("fits", "expected", "told"),
    [
        (lambda n: True, (1, 128, 510, 1), ()),
        (lambda n: n >= 4, (4, 128, 510, 1), ("begins at 4",)),
        (lambda n: n <= 64, (1, 64, 64, 1), ("ends at 64",)),
        (lambda n: 3 <= n <= 300, (3, 128, 300, 1), ("begins at 3", "ends at 300")),
        (lambda n: n % 32 == 0, (32, 128, 480, 32), ("multiples of 32",)),
    ],
)
def test_an_axis_begins_and_ends_where_the_model_does(
    fits: Callable[[int], bool], expected: tuple[int, ...], told: tuple[str, ...]
) -> None:
    """CANINE pools four characters into one, a table of positions ends, a local attention takes whole windows."""
    inputs, profile, notices = settle(takes(fits), IDS, LONG, given=())
    found = profile["ids"]
    assert inputs == IDS
    assert (found.min[1], found.opt[1], found.max[1], found.multiples[1]) == expected
    assert all(any(words in notice for notice in notices) for words in told)
    assert bool(notices) == bool(told)


def test_sizes_that_the_user_gave_are_not_changed() -> None:
    with pytest.raises(StageError, match="at its typical shapes, and not at its smallest"):
        settle(takes(lambda n: n >= 4), IDS, LONG, given={"seq"})
    with pytest.raises(UsageError, match=r"takes multiples of 4 only.*510 is not one"):
        settle(takes(lambda n: n % 4 == 0), IDS, {"ids": ShapeRange((1, 4), (1, 128), (16, 510))}, given={"seq"})


def test_what_never_runs_says_what_the_model_said() -> None:
    with pytest.raises(StageError, match=r"forward raised on \(1, 128\)"):
        settle(takes(lambda n: False), IDS, LONG, given=())


@pytest.mark.parametrize(("by", "more", "relation"), [(2, 0, "2*short_1"), (1, 1, "short_1+1")])
def test_a_tie_between_two_axes_is_named(by: int, more: int, relation: str) -> None:
    names = {"short": 3, "long": 3 * by + more}
    inputs = tuple(TensorSpec(n, "float32", (1, f"{n}_1")) for n in names)
    profile = {n: ShapeRange((1, size), (1, size * 2), (1, size * 4)) for n, size in names.items()}
    profile["long"] = ShapeRange((1, 3 * by + more), (1, 6 * by + more), (1, 12 * by + more))

    def run(feed: Feed) -> dict[str, np.ndarray]:
        if feed["long"].shape[1] != by * feed["short"].shape[1] + more:
            raise StageError("sizes do not fit")
        return {"y": feed["long"]}

    with pytest.raises(StageError, match="found by trial: each axis was to vary alone") as caught:
        settle(run, inputs, profile, given={"short_1", "long_1"})
    assert f"('long_1') of input 'long' must be {relation}," in caught.value.message


MODULES = """import torch
class Pyramid(torch.nn.Module):
    def forward(self, x):
        half = torch.nn.functional.max_pool2d(x, 2, ceil_mode=True)
        quarter = torch.nn.functional.max_pool2d(half, 2, ceil_mode=True)
        return torch.nn.functional.interpolate(quarter, scale_factor=2) + half
class Tied(torch.nn.Module):
    def forward(self, short, long):
        return short.repeat(1, 2) + long
def pyramid(): return Pyramid()
def tied(): return Tied(), [{"short": torch.ones(1, n), "long": torch.ones(1, 2 * n)} for n in (3, 5, 8)]
"""


def test_a_factory_with_multiples_and_one_with_a_tie(tmp_path) -> None:
    file = tmp_path / "net.py"
    file.write_text(MODULES)
    shapes = {"min_shapes": {"x": (1, 1, 32, 32)}, "max_shapes": {"x": (4, 1, 96, 96)}}
    source = describe(recognise(f"{file}:pyramid", opt_shapes={"x": (1, 1, 64, 64)}, **shapes))
    assert source.profile["x"].multiple == (1, 1, 4, 4)
    assert "takes multiples of 4 only" in str(source.notice)
    with pytest.raises(StageError, match=r"'long' must be 2\*short_1"):
        describe(recognise(f"{file}:tied"))


def test_axes_that_an_export_lost_are_fixed_unless_somebody_chose_them(factory_file) -> None:
    text = f"{factory_file}:frozen"
    request = recognise(text, opt_shapes={"x": (1, 8)})
    found = with_fixed(request, describe(request), ["batch"])
    assert found is not None
    source = describe(found)
    assert [s.dims for s in source.inputs] == [(1, 8)]
    assert "fixed, since the export does not let these sizes vary: batch (1)" in str(source.notice)
    asked = recognise(text, opt_shapes={"x": (1, 8)}, max_shapes={"x": (4, 8)})
    assert with_fixed(asked, describe(asked), ["batch"]) is None
