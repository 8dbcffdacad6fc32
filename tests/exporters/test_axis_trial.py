"""What the axes of an ONNX file do: batch, multiples, ties, outputs, scalars, all found by running it."""

from pathlib import Path

import numpy as np
import onnx
import pytest

from accel.core.errors import StageError, UsageError
from accel.core.values import TensorSpec
from accel.exporters import describe, export_onnx, load
from accel.exporters.samples import make_samples
from accel.exporters.sources import recognise


def given(tmp_path: Path, inputs: str, outputs: str, body: str, opset: int = 18) -> Path:
    """Write a graph in ONNX's text form."""
    text = f'<ir_version: 8, opset_import: ["" : {opset}]> g ({inputs}) => ({outputs}) {{ {body} }}'
    onnx.save(onnx.parser.parse_model(text), tmp_path / "m.onnx")
    return tmp_path / "m.onnx"


def dims(specs: tuple[TensorSpec, ...]) -> list[tuple[int | str, ...]]:
    return [s.dims for s in specs]


def pyramid(tmp_path: Path) -> Path:
    """A network that halves a picture twice, and adds it to itself doubled twice: it takes multiples of four."""
    pool, up = "MaxPool<kernel_shape=[2,2], strides=[2,2]>", 'Resize<mode="nearest">'
    body = f"""a = {pool}(x) b = {pool}(a) none = Constant<value = float[0] {{}}>()
        twice = Constant<value = float[4] {{1.0, 1.0, 4.0, 4.0}}>() up = {up}(b, none, twice) y = Add(up, x)"""
    return given(tmp_path, "float[N, 1, h, w] x", "float[n, c, oh, ow] y, float[p, q, r, s] b", body)


SHAPES = {
    "min_shapes": {"x": (1, 1, 8, 8)},
    "opt_shapes": {"x": (1, 1, 16, 16)},
    "max_shapes": {"x": (4, 1, 32, 64)},
}


def test_multiples_are_found_and_outputs_follow_their_inputs(tmp_path: Path) -> None:
    request = recognise(str(pyramid(tmp_path)), **SHAPES)
    source = describe(request)
    assert source.profile["x"].multiple == (1, 1, 4, 4)
    assert "takes multiples of 4 only: it runs at 8 and 12, not at 10" in str(source.notice)
    assert dims(source.inputs) == [("batch", 1, "h", "w")]
    assert dims(source.outputs) == [("batch", 1, "h", "w"), ("batch", 1, "h/4", "w/4")]
    made = make_samples(source, request, tmp_path / "samples")
    feeds = np.load(tmp_path / "samples" / made.shapes.path)
    assert all(size % 4 == 0 for key in feeds for size in feeds[key].shape[2:])
    assert {feeds["odd/x"].shape[2:]} == {(12, 20)}
    export_onnx(source, tmp_path / "out")


def test_a_fixed_axis_fixes_the_outputs_that_follow_it(tmp_path: Path) -> None:
    shape = {"x": (1, 1, 16, 16)}
    source = describe(
        recognise(str(pyramid(tmp_path)), min_shapes=shape, opt_shapes=shape, max_shapes={"x": (4, 1, 16, 16)})
    )
    assert dims(source.outputs) == [("batch", 1, 16, 16), ("batch", 1, 4, 4)]
    assert dims(export_onnx(source, tmp_path / "out").outputs) == [("batch", 1, 16, 16), ("batch", 1, 4, 4)]


def test_multiples_may_be_given_and_must_fit(tmp_path: Path) -> None:
    path = str(pyramid(tmp_path))
    assert describe(recognise(path, **SHAPES, multiples={"x": (1, 1, 8, 8)})).profile["x"].multiple == (1, 1, 8, 8)
    with pytest.raises(UsageError, match="axis 'h' is 8 at its min size: expected a multiple of 16"):
        describe(recognise(path, **SHAPES, multiples={"x": (1, 1, 16, 16)}))
    odd = SHAPES | {"opt_shapes": {"x": (1, 1, 18, 16)}}
    with pytest.raises(UsageError, match=r"takes multiples of 4 only.*18 is not one") as caught:
        describe(recognise(path, **odd))
    assert caught.value.fix == "take 16 or 20"


def test_the_batch_is_what_holds_items_apart(tmp_path: Path) -> None:
    path = given(tmp_path, "float[unk__1, 4] x, float[N, 4] z", "float[unk__2, 4] y", "y = Add(x, z)")
    source = describe(recognise(str(path)))
    assert dims((*source.inputs, *source.outputs)) == [("batch", 4)] * 3


def test_stacked_samples_are_cut_along_a_batch_of_any_name(tmp_path: Path) -> None:
    path = given(tmp_path, "float[unk__214, 4] x", "float[unk__215, 4] y", "y = Relu(x)")
    np.savez(tmp_path / "stacked.npz", x=np.random.default_rng(0).standard_normal((30, 4)).astype(np.float32))
    request = recognise(str(path), samples=str(tmp_path / "stacked.npz"))
    made = make_samples(describe(request), request, tmp_path / "samples")
    assert (made.calibration_items, made.gate_items) == (10, 20)


@pytest.mark.parametrize(
    "body", ["y = Softmax<axis=0>(x)", "one = Constant<value_ints=[0]>() s = CumSum(x, zero) y = Identity(s)"]
)
def test_an_axis_whose_items_see_each_other_is_no_batch(tmp_path: Path, body: str) -> None:
    body = f"zero = Constant<value_int=0>() {body}"
    source = describe(recognise(str(given(tmp_path, "float[batch, 4] x", "float[batch, 4] y", body))))
    assert dims((*source.inputs, *source.outputs)) == [("x_0", 4)] * 2
    assert "is not a batch" in str(source.notice)


def test_axes_that_must_be_of_one_size_become_one(tmp_path: Path) -> None:
    path = given(tmp_path, "float[a, 4] x, float[2, b, 4] s", "float[c, d, 4] y", "y = Add(x, s)")
    sizes = [{"x": (n, 4), "s": (2, n, 4)} for n in (2, 3, 5)]
    request = recognise(str(path), min_shapes=sizes[0], opt_shapes=sizes[1], max_shapes=sizes[2])
    source = describe(request)
    assert dims((*source.inputs, *source.outputs)) == [("batch", 4), (2, "batch", 4), (2, "batch", 4)]
    assert "must be as long as axis" in str(source.notice)


def test_a_name_shared_by_accident_is_two_axes(tmp_path: Path) -> None:
    path = given(tmp_path, "float[batch, d, d] x", "float[batch, d, d] y", "y = Relu(x)")
    shapes = {"min_shapes": {"x": (1, 4, 6)}, "opt_shapes": {"x": (1, 4, 9)}, "max_shapes": {"x": (4, 4, 12)}}
    source = describe(recognise(str(path), **shapes))
    assert dims((*source.inputs, *source.outputs)) == [("batch", 4, "x_2")] * 2
    assert "have sizes of their own" in str(source.notice)
    named = describe(recognise(str(path), **shapes, axis_names={"x:2": "width", "x:1": "height"}))
    assert dims(named.inputs) == [("batch", 4, "width")]
    with pytest.raises(UsageError, match="no input 'x:7'"):
        describe(recognise(str(path), **shapes, axis_names={"x:7": "width"}))
    tied = given(tmp_path, "float[batch, d] x, float[batch, d] z", "float[batch, d] y", "y = Add(x, z)")
    with pytest.raises(UsageError, match="axis 'd' is given both 6 and 5"):
        describe(recognise(str(tied), min_shapes={"x": (1, 6), "z": (1, 5)}, max_shapes={"x": (1, 6), "z": (1, 5)}))


def test_an_axis_that_takes_one_size_only_is_fixed(tmp_path: Path) -> None:
    body = "to = Constant<value_ints=[1, 4]>() y = Reshape(x, to)"
    path = given(tmp_path, "float[batch, 4] x", "float[batch, 4] y", body)
    source = describe(recognise(str(path)))
    assert dims((*source.inputs, *source.outputs)) == [(1, 4)] * 2
    assert "takes 1 only, found by trial: it is fixed" in str(source.notice)
    with pytest.raises(StageError, match="takes 1, and not 2"):
        describe(recognise(str(path), max_shapes={"x": (8, 4)}))


@pytest.mark.parametrize(
    ("condition", "declared"),
    [
        # Sums of values are not bounded: the branch stays in the file, and optimisations look into it.
        ("huge = Constant<value_float=1e30>() total = ReduceSum<keepdims=0>(x) slow = Greater(total, huge)", None),
        # The declared range of k says that it never runs: it is taken out of the file.
        ("eight = Constant<value_int=8>() scalar = Squeeze(k) slow = Equal(scalar, eight)", (2, 4)),
    ],
)
def test_a_fixed_size_that_a_dead_branch_refuses_is_not_declared(
    tmp_path: Path, condition: str, declared: tuple[int, int] | None
) -> None:
    """As in silero-vad: the branch of another sampling rate takes another length."""
    branch = "{b} = g () => (float[batch, m] {o}) {{ {n} }}"
    body = f"""one = Constant<value_ints=[1]>() {condition} y = If(slow) <
        {branch.format(b="then_branch", o="a", n="a = Squeeze(x, one)")},
        {branch.format(b="else_branch", o="b", n="b = Identity(x)")}>"""
    path = given(tmp_path, "float[batch, n] x, int64[1] k", "float[batch, m] y", body)
    shape = {"x": (2, 4), "k": (1,)}
    request = recognise(str(path), min_shapes=shape, opt_shapes=shape, max_shapes=shape, ranges={"k": (16, 16)})
    source = describe(request)
    assert dims((*source.inputs, *source.outputs)) == [(2, 4), (1,), (2, 4)]
    assert export_onnx(source, tmp_path / "out").inputs[0].dims == (declared or ("x_0", "x_1"))


def test_sizes_that_follow_from_values_stay_free(tmp_path: Path) -> None:
    path = given(tmp_path, "float[4] x", "int64[1, found] y", "y = NonZero(x)")
    assert dims(describe(recognise(str(path))).outputs) == [(1, "found")]


def test_scalars_are_tensors_of_one_element(tmp_path: Path) -> None:
    path = given(
        tmp_path,
        "float[N, 4] x, int64 k",
        "float[N, 4] y, float t",
        "f = Cast<to=1>(k) y = Mul(x, f) t = ReduceSum<keepdims=0>(y)",
    )
    source = describe(recognise(str(path), ranges={"k": (2, 2)}))
    assert [s.dims for s in (source.inputs[1], source.outputs[1])] == [(1,), (1,)]
    feed = {"x": np.ones((3, 4), np.float32), "k": np.array([2])}
    answer = load(source).run(feed)
    assert answer["t"].tolist() == [24.0]
    assert answer["y"].tolist() == (2 * feed["x"]).tolist()
    exported = export_onnx(source, tmp_path / "out")
    assert [s.dims for s in (exported.inputs[1], exported.outputs[1])] == [(1,), (1,)]


def test_a_source_that_is_no_onnx_has_no_axes_to_rename(tmp_path: Path) -> None:
    (tmp_path / "m.py").write_text("def make(): ...\n")
    with pytest.raises(UsageError, match="--rename-axes is for ONNX files"):
        recognise(f"{tmp_path / 'm.py'}:make", axis_names={"x:1": "height"})
