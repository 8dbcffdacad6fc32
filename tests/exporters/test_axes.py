"""Axis arithmetic: names, odd points, points to trace at, output axes."""

from hypothesis import given, strategies as st

from accel.core.values import ShapeRange
from accel.exporters.axes import Extent, name_axes, odd_sizes, output_dims, trace_sizes


@st.composite
def axes(draw: st.DrawFn) -> dict[str, Extent]:
    found = {}
    for name in draw(st.lists(st.sampled_from(["batch", "seq", "x_2", "x_3"]), unique=True, max_size=4)):
        low, opt, high = sorted(draw(st.lists(st.integers(1, 600), min_size=3, max_size=3)))
        found[name] = Extent(low, opt, high)
    return found


@given(axes())
def test_odd_points_lie_strictly_inside_where_there_is_room(given_axes: dict[str, Extent]) -> None:
    for name, size in odd_sizes(given_axes).items():
        e = given_axes[name]
        assert e.min <= size <= e.max
        assert e.max - e.min < 2 or e.min < size < e.max
        assert e.max - e.min < 6 or (size % 2 == 1 and size != e.opt)


@given(axes())
def test_trace_points_avoid_one_and_lie_inside(given_axes: dict[str, Extent]) -> None:
    for name, size in trace_sizes(given_axes, taken=[2, 6]).items():
        e = given_axes[name]
        assert e.min <= size <= e.max
        assert e.max < 2 or size >= 2


def test_axes_that_vary_alike_share_a_name() -> None:
    text = ShapeRange((1, 1), (1, 8), (4, 20))
    shapes = {"a": text, "b": text, "c": ShapeRange((1, 3, 8), (1, 3, 9), (4, 3, 10))}
    specs, _ = name_axes(shapes, {"a": "int64", "b": "int64", "c": "float32"})
    assert [s.dims for s in specs] == [("batch", "seq"), ("batch", "seq"), ("batch", 3, "c_2")]


def test_output_axes_follow_inputs() -> None:
    found = output_dims(
        {None: {"batch": 1, "seq": 2}, "batch": {"batch": 4, "seq": 2}, "seq": {"batch": 1, "seq": 4}},
        {None: [(1, 2, 7), (1, 1)], "batch": [(4, 2, 7), (4, 1)], "seq": [(1, 4, 7), (1, 2)]},
    )
    assert found == [("batch", "seq", 7), ("batch", "out1_axis1")]


def test_an_output_axis_is_called_after_an_input_axis_only_where_it_follows_it() -> None:
    points = {None: {"batch": 1}, "batch": {"batch": 4}}
    seen = {None: [(1, 5)], "batch": [(16, 5)]}  # batch * batch
    assert output_dims(points, seen) == [("out0_axis0", 5)]


def test_an_output_axis_that_moves_with_the_values_has_no_size() -> None:
    points = {None: {"batch": 1}, "batch": {"batch": 4}}
    seen = {None: [(1, 5)], "batch": [(4, 5)]}
    assert output_dims(points, seen, [[(1, 5)], [(1, 3)]]) == [("batch", "out0_axis1")]
