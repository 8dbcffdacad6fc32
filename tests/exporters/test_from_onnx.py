"""ONNX files: described as they are, copied with their data, refused when broken or malicious."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from accel.core.errors import InputError, SampleError, StageError, UsageError
from accel.core.feeds import read_feeds
from accel.exporters import describe, export_onnx, load
from accel.exporters.from_onnx import copy
from accel.exporters.samples import make_samples
from accel.exporters.source_model import another_way
from accel.exporters.sources import quick_key, recognise
from accel.graph import passes
from accel.graph.opset import RaiseOpset

MakeOnnx = Callable[..., Path]


@pytest.mark.parametrize("external", [False, True])
def test_a_file_is_described_run_and_copied(make_onnx: MakeOnnx, tmp_path: Path, external: bool) -> None:
    path = make_onnx(external=external)
    source = describe(recognise(str(path)))
    assert [(s.name, s.dims) for s in (*source.inputs, *source.outputs)] == [
        ("x", ("batch", 4)),
        ("y", ("batch", 300)),
    ]
    assert load(source).run({"x": np.ones((3, 4), np.float32)})["y"].shape == (3, 300)
    model = export_onnx(source, tmp_path / "out")
    assert [f.path for f in model.data] == (["weights/w.data"] if external else [])
    assert (tmp_path / "out" / "model.onnx").read_bytes() == path.read_bytes()


def test_the_key_covers_external_data(make_onnx: MakeOnnx, tmp_path: Path) -> None:
    request = recognise(str(make_onnx(external=True)))
    before = quick_key(request)
    data = tmp_path / "weights" / "w.data"
    data.write_bytes(bytes([data.read_bytes()[0] ^ 1]) + data.read_bytes()[1:])
    assert quick_key(request) != before


def test_poolings_and_transforms_are_written_for_every_runtime(tmp_path: Path) -> None:
    helper, kind = onnx.helper, onnx.TensorProto.FLOAT
    around = onnx.numpy_helper.from_array(np.array([0, 0, 1, 0, 0, 1]), "around")
    graph = helper.make_graph(
        [
            helper.make_node("DFT", ["x"], ["spectrum"], axis=1, onesided=1),
            helper.make_node("Pad", ["spectrum", "around"], ["wide"]),
            helper.make_node("MaxPool", ["wide"], ["y"], kernel_shape=[2]),
        ],
        "g",
        [helper.make_tensor_value_info("x", kind, ["batch", 6, 1])],
        [helper.make_tensor_value_info("y", kind, ["batch", 4, 3])],
        [around],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    onnx.save(onnx.shape_inference.infer_shapes(model), tmp_path / "m.onnx")
    export_onnx(describe(recognise(str(tmp_path / "m.onnx"))), tmp_path / "out")
    nodes = onnx.load(str(tmp_path / "out" / "model.onnx")).graph.node
    assert [n.op_type for n in nodes] == ["Reshape", "MatMul", "Reshape", "Pad", "MaxPool"]
    assert len(nodes[3].input) == 4


@pytest.mark.parametrize(
    "case", ["BatchNorm2d_eval", "GLU", "Linear", "PReLU_2d_multiparam", "PReLU_3d", "AvgPool3d", "operator_addmm"]
)
def test_an_opset_that_no_runtime_runs_is_raised(tmp_path: Path, case: str) -> None:
    """Files of 2017 with the answers of their day, as onnx ships them; ONNX Runtime refuses each as it stands."""
    suite = "pytorch-operator" if case.startswith("operator") else "pytorch-converted"
    folder = Path(onnx.__file__).parent / "backend/test/data" / suite / f"test_{case}"

    def stored(what: str) -> list[np.ndarray]:
        files = sorted((folder / "test_data_set_0").glob(f"{what}_*.pb"))
        return [onnx.numpy_helper.to_array(onnx.load_tensor(file)) for file in files]

    assert onnx.load(folder / "model.onnx").opset_import[0].version < 7
    source = describe(recognise(str(folder / "model.onnx")))
    assert "its opset is raised to 7" in str(source.notice)
    feed = {s.name: value for s, value in zip(source.inputs, stored("input"), strict=True)}
    answer = load(source).run(feed)
    for spec, expected in zip(source.outputs, stored("output"), strict=True):
        np.testing.assert_allclose(answer[spec.name], expected, rtol=1e-4, atol=1e-5)
    assert export_onnx(source, tmp_path / "out").opset == 7


def test_slopes_by_channel_are_refused_where_nothing_says_which_axis_that_is(tmp_path: Path) -> None:
    helper, kind = onnx.helper, onnx.TensorProto
    graph = helper.make_graph(
        [
            helper.make_node("Reshape", ["x", "shape"], ["some"]),
            helper.make_node("PRelu", ["some", "slope"], ["y"]),
        ],
        "g",
        [
            helper.make_tensor_value_info("x", kind.FLOAT, [2, 6]),
            helper.make_tensor_value_info("shape", kind.INT64, ["rank"]),
        ],
        [helper.make_tensor_value_info("y", kind.FLOAT, None)],
        [onnx.numpy_helper.from_array(np.ones(3, np.float32), "slope")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 6)], ir_version=4)
    with pytest.raises(StageError, match=r"nothing says how many axes the input of node 'y' \(PRelu\) has"):
        passes.run(ir.from_proto(model), RaiseOpset(7))


def test_unnamed_axes_get_names(make_onnx: MakeOnnx, tmp_path: Path) -> None:
    path = make_onnx()
    model = onnx.load(str(path))
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.shape.dim[0].ClearField("value")
    onnx.save(model, str(path))
    source = describe(recognise(str(path)))
    assert source.inputs[0].dims == ("batch", 4)
    assert export_onnx(source, tmp_path / "out").inputs[0].dims == ("batch", 4)


def test_an_axis_of_unknown_size_asks_for_shapes(make_onnx: MakeOnnx) -> None:
    path = make_onnx()
    model = onnx.load(str(path))
    model.graph.input[0].type.tensor_type.shape.dim[1].dim_param = "width"
    onnx.save(model, str(path))
    with pytest.raises(UsageError, match="axis 1 \\('width'\\)"):
        describe(recognise(str(path)))


@pytest.mark.parametrize("form", ["items", "stacked", "lines", "folder"])
def test_an_axis_of_which_nothing_says_the_size_has_that_of_the_samples(tmp_path: Path, form: str) -> None:
    """A convolution over pictures of any size, and samples of two sizes; in one array all have one size."""
    helper, kind = onnx.helper, onnx.TensorProto.FLOAT
    graph = helper.make_graph(
        [helper.make_node("Conv", ["x", "w"], ["y"], pads=[1, 1, 1, 1])],
        "g",
        [helper.make_tensor_value_info("x", kind, ["batch", 1, "h", "w"])],
        [helper.make_tensor_value_info("y", kind, ["batch", 2, "h", "w"])],
        [onnx.numpy_helper.from_array(np.ones((2, 1, 3, 3), np.float32), "w")],
    )
    graph.initializer[0].name = graph.node[0].input[1] = "kernel"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8), tmp_path / "m.onnx")
    small, large = np.zeros((1, 1, 6, 9), np.float32), np.zeros((2, 1, 8, 12), np.float32)
    given = tmp_path / ("s.jsonl" if form == "lines" else "s.npz")
    if form == "lines":
        given.write_text("".join(json.dumps({"x": v[0].tolist()}) + "\n" for v in (small, large)))
    elif form == "stacked":
        np.savez(given, x=np.zeros((50, 1, 6, 9), np.float32))
    else:
        np.savez(given, **{"0/x": small, "1/x": large})
    if form == "folder":
        given.rename((tmp_path / "samples").mkdir() or tmp_path / "samples" / "s.npz")
        given = tmp_path / "samples"
    source = describe(recognise(str(tmp_path / "m.onnx"), samples=str(given)))
    found = source.profile["x"]
    high = (6, 9) if form == "stacked" else (8, 12)
    assert (found.min[2:], found.opt[2:], found.max[2:]) == ((6, 9), (6, 9), high)
    assert f"axis 'h': sizes 6 to {high[0]} as in the samples" in str(source.notice)


def test_a_static_file_stays_static_and_shapes_must_agree(make_onnx: MakeOnnx) -> None:
    path = make_onnx(batch=2)
    assert describe(recognise(str(path))).inputs[0].dims == (2, 4)
    with pytest.raises(UsageError, match="fixed at 2"):
        describe(recognise(str(path), max_shapes={"x": (4, 4)}))
    with pytest.raises(UsageError, match="no input 'z'"):
        describe(recognise(str(path), max_shapes={"z": (4, 4)}))


@pytest.mark.parametrize(
    ("feed", "says"),
    [
        ({}, "'x' is missing"),
        ({"x": np.ones((1, 4), np.float32), "z": np.ones(1)}, "no input 'z'"),
        ({"x": np.ones((1, 4), np.int64)}, "dtype int64"),
        ({"x": np.ones((1, 5), np.float32)}, "shape"),
    ],
)
def test_feeds_that_do_not_fit_are_refused(make_onnx: MakeOnnx, feed: dict[str, np.ndarray], says: str) -> None:
    with pytest.raises(SampleError, match=says):
        load(describe(recognise(str(make_onnx())))).run(feed)


def test_truncated_files_are_refused(make_onnx: MakeOnnx, tmp_path: Path) -> None:
    path = make_onnx()
    raw = path.read_bytes()
    for size in (0, 10, len(raw) // 2, len(raw) - 3):
        path.write_bytes(raw[:size])
        with pytest.raises(InputError):
            describe(recognise(str(path)))
    external = make_onnx("e.onnx", external=True)
    data = tmp_path / "weights" / "w.data"
    data.write_bytes(data.read_bytes()[:100])
    with pytest.raises(InputError, match="truncated"):
        describe(recognise(str(external)))
    data.unlink()
    with pytest.raises(InputError, match=r"weights/w.data is missing"):
        describe(recognise(str(external)))


def test_names_that_are_no_text_are_refused(make_onnx: MakeOnnx) -> None:
    path = make_onnx()
    path.write_bytes(path.read_bytes().replace(b"batch", b"b\xfftch"))  # of an axis: protobuf gives it as bytes
    with pytest.raises(InputError, match="UTF-8"):
        describe(recognise(str(path)))


@pytest.mark.parametrize("location", ["../secret", "/etc/hostname", "weights/../../secret", "", "a\0b"])
def test_data_outside_the_folder_is_refused(make_onnx: MakeOnnx, tmp_path: Path, location: str) -> None:
    inner = tmp_path / "inner"
    inner.mkdir()
    (tmp_path / "secret").write_bytes(b"\0" * 4800)
    model = onnx.load(str(make_onnx(external=True)), load_external_data=False)
    for entry in model.graph.initializer[0].external_data:
        if entry.key == "location":
            entry.value = location
    (inner / "m.onnx").write_bytes(model.SerializeToString())
    request = recognise(str(inner / "m.onnx"))
    with pytest.raises(InputError, match="outside the model's folder"):
        quick_key(request)
    with pytest.raises(InputError, match="outside the model's folder"):
        describe(request)


def test_a_link_that_leaves_the_folder_is_refused(make_onnx: MakeOnnx, tmp_path: Path) -> None:
    inner = tmp_path / "inner"
    (inner / "weights").mkdir(parents=True)
    path = make_onnx(external=True)
    (inner / "m.onnx").write_bytes(path.read_bytes())
    (inner / "weights" / "w.data").symlink_to(tmp_path / "weights" / "w.data")
    with pytest.raises(InputError, match="outside the model's folder"):
        describe(recognise(str(inner / "m.onnx")))


def test_a_cycle_is_refused(make_onnx: MakeOnnx) -> None:
    path = make_onnx()
    model = onnx.load(str(path))
    model.graph.node[0].input[0] = "y"
    model.graph.node[0].input[1] = "w"
    onnx.save(model, str(path))
    with pytest.raises(InputError, match="not a valid ONNX model"):
        describe(recognise(str(path)))


@pytest.mark.parametrize("external", [False, True])
def test_nodes_out_of_their_order_are_sorted(make_onnx: MakeOnnx, tmp_path: Path, *, external: bool) -> None:
    """Converters to half precision put their casts at the end, and ONNX Runtime takes that."""
    path = make_onnx(external=external)
    model = onnx.load(str(path), load_external_data=False)
    model.graph.node.reverse()
    path.write_bytes(model.SerializeToString())
    source = describe(recognise(str(path)))
    (made := tmp_path / "made").mkdir()
    copy(source, path, made / "m.onnx")
    onnx.checker.check_model(str(made / "m.onnx"), full_check=True)
    assert [node.op_type for node in onnx.load(str(made / "m.onnx")).graph.node] == ["MatMul", "Relu"]


def test_a_graph_that_fails_at_a_declared_shape_is_told(make_onnx: MakeOnnx) -> None:
    path = make_onnx()
    model = onnx.load(str(path))
    shape = onnx.numpy_helper.from_array(np.array([2, 4]), "shape")
    model.graph.initializer.append(shape)
    model.graph.node.insert(0, onnx.helper.make_node("Reshape", ["x", "shape"], ["fixed"]))
    model.graph.node[1].input[0] = "fixed"
    onnx.save(model, str(path))
    with pytest.raises(StageError, match="failed on x float32"):  # found out before anything is exported
        describe(recognise(str(path), opt_shapes={"x": (2, 4)}))


def test_a_data_file_whose_name_no_system_takes_is_missing(make_onnx: MakeOnnx, tmp_path: Path) -> None:
    model = onnx.load(str(make_onnx(external=True)), load_external_data=False)
    for entry in model.graph.initializer[0].external_data:
        if entry.key == "location":
            entry.value = "w" * 5000
    (tmp_path / "m.onnx").write_bytes(model.SerializeToString())
    with pytest.raises(InputError, match=r"its data file w+… is missing"):
        quick_key(recognise(str(tmp_path / "m.onnx")))


@pytest.mark.parametrize(
    ("domain", "imported", "fix"),
    [
        ("my.ops", True, "standard operators"),
        ("my.ops", False, "standard operators"),
        ("ai.onnx.contrib", True, "onnxruntime-extensions"),
    ],
)
def test_an_operator_of_a_custom_domain_is_named(make_onnx: MakeOnnx, domain: str, imported: bool, fix: str) -> None:
    path = make_onnx()
    model = onnx.load(str(path))
    node = model.graph.node[0]
    node.name, node.op_type, node.domain = "twist", "Twist", domain
    if imported:
        model.opset_import.append(onnx.helper.make_opsetid(domain, 1))
    onnx.save(model, str(path))
    with pytest.raises(InputError, match=rf"node 'twist' is {domain}:Twist.*domain '{domain}'.*custom-op") as caught:
        describe(recognise(str(path)))
    assert fix in (caught.value.fix or "")


def test_a_function_of_the_file_itself_is_no_custom_operator(make_onnx: MakeOnnx) -> None:
    path = make_onnx()
    model = onnx.load(str(path))
    node = model.graph.node[0]
    inner = onnx.helper.make_node(node.op_type, ["a", "b"], ["c"])
    opsets = [onnx.helper.make_opsetid("", 18)]
    model.functions.append(onnx.helper.make_function("mine", "Inner", ["a", "b"], ["c"], [inner], opsets))
    node.op_type, node.domain = "Inner", "mine"
    model.opset_import.append(onnx.helper.make_opsetid("mine", 1))
    onnx.save(model, str(path))
    assert describe(recognise(str(path))).inputs[0].name == "x"


@pytest.mark.parametrize("what", ["input", "output"])
def test_strings_are_refused_by_name(tmp_path: Path, what: str) -> None:
    h, t = onnx.helper, onnx.TensorProto
    types = {"input": t.FLOAT, "output": t.FLOAT} | {what: t.STRING}
    x, y = (h.make_tensor_value_info(n, types[k], ["batch"]) for n, k in (("x", "input"), ("y", "output")))
    table = (
        {"keys_floats": [0.0], "values_strings": ["a"]}
        if what == "output"
        else {"keys_strings": ["a"], "values_floats": [0.0]}
    )
    nodes = [h.make_node("LabelEncoder", ["x"], ["y"], domain="ai.onnx.ml", **table)]
    opsets = [h.make_opsetid("", 18), h.make_opsetid("ai.onnx.ml", 2)]
    onnx.save(h.make_model(h.make_graph(nodes, "g", [x], [y]), opset_imports=opsets, ir_version=9), tmp_path / "m.onnx")
    with pytest.raises(InputError, match=rf"{what} '{'x' if what == 'input' else 'y'}' holds strings"):
        describe(recognise(str(tmp_path / "m.onnx")))


def table_model(path: Path) -> Path:
    """Look ids up in a table of 50 rows, through a cast and another axis, and positions in one of 9 columns."""
    h, t = onnx.helper, onnx.TensorProto
    nodes = [
        h.make_node("Cast", ["ids"], ["narrow"], to=t.INT32),
        h.make_node("Unsqueeze", ["narrow", "axis"], ["wide"]),
        h.make_node("Gather", ["words", "wide"], ["rows"]),
        h.make_node("Gather", ["places", "at"], ["columns"], axis=1),
        h.make_node("Identity", ["rows"], ["y"]),
        h.make_node("Identity", ["columns"], ["z"]),
    ]
    stored = [
        onnx.numpy_helper.from_array(np.ones((50, 4), np.float32), "words"),
        onnx.numpy_helper.from_array(np.ones((2, 9), np.float32), "places"),
        onnx.numpy_helper.from_array(np.array([1]), "axis"),
    ]
    inputs = [h.make_tensor_value_info(n, t.INT64, ["batch"]) for n in ("ids", "at")]
    outputs = [
        h.make_tensor_value_info("y", t.FLOAT, ["batch", 1, 4]),
        h.make_tensor_value_info("z", t.FLOAT, [2, "batch"]),
    ]
    graph = h.make_graph(nodes, "g", inputs, outputs, stored)
    onnx.save(h.make_model(graph, opset_imports=[h.make_opsetid("", 18)], ir_version=9), path)
    return path


def masked_model(path: Path) -> Path:
    """Ids times a mask, and a third input of another name."""
    h, t = onnx.helper, onnx.TensorProto
    names = ("input_ids", "attention_mask", "other")
    inputs = [h.make_tensor_value_info(n, t.INT64, ["batch", "seq"]) for n in names]
    nodes = [h.make_node("Mul", names[:2], ["m"]), h.make_node("Add", ["m", "other"], ["y"])]
    outputs = [h.make_tensor_value_info("y", t.INT64, ["batch", "seq"])]
    onnx.save(
        h.make_model(h.make_graph(nodes, "g", inputs, outputs), opset_imports=[h.make_opsetid("", 18)], ir_version=9),
        path,
    )
    return path


def test_a_mask_is_0_and_1_unless_samples_or_the_user_say_otherwise(tmp_path: Path) -> None:
    """Without a range its int64 is not proved to fit int32, and OpenVINO is lost to every BERT from elsewhere."""
    path = masked_model(tmp_path / "m.onnx")

    def ranges(**more: Any) -> list[tuple[int, int] | None]:
        return [s.range for s in describe(recognise(str(path), **more)).inputs]

    assert ranges() == [None, (0, 1), None]
    assert "input 'attention_mask': values 0 to 1 assumed, as of a mask" in (
        describe(recognise(str(path))).notice or ""
    )
    assert ranges(ranges={"attention_mask": (0, 3)}) == [None, (0, 3), None]
    assert ranges(mask="other") == [None, None, (0, 1)]
    assert ranges(mask="none") == [None, None, None]
    ids = np.ones((4, 6), np.int64)
    np.savez(tmp_path / "s.npz", input_ids=ids, attention_mask=ids * 2, other=ids)
    assert ranges(samples=str(tmp_path / "s.npz")) == [None, (0, 2), None]


def test_without_samples_integers_are_bounded_by_the_tables_they_index(tmp_path: Path) -> None:
    path = table_model(tmp_path / "m.onnx")
    source = describe(recognise(str(path)))
    assert [s.range for s in source.inputs] == [(0, 49), (0, 8)]
    assert "input 'ids': values 0 to 49 assumed" in (source.notice or "")
    samples = make_samples(source, recognise(str(path)), tmp_path / "out")
    values = np.concatenate([f["ids"].ravel() for f in read_feeds(tmp_path / "out" / "gate.npz").values()])
    assert (values.min(), values.max()) == (0, 49)
    assert (source.accuracy, samples.calibration) == ("unproved", None)
    told = describe(recognise(str(path), ranges={"ids": (3, 7)}))
    assert [s.range for s in told.inputs] == [(3, 7), (0, 8)]
    np.savez(tmp_path / "s.npz", ids=np.arange(-4, 4), at=np.arange(8))
    own = describe(recognise(str(path), samples=str(tmp_path / "s.npz")))
    assert [s.range for s in own.inputs] == [None, None], "what the user has is not held against a guess"


def test_a_source_of_floats_shows_its_noise_when_its_inputs_move_slightly(tmp_path: Path) -> None:
    """Item by item gives equal values wherever a kernel sums in one order: sound variants were refused for that."""
    helper = onnx.helper
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"])],
        "product",
        [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, ["batch", 4])],
        [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, ["batch", 3])],
        [onnx.numpy_helper.from_array(np.full((4, 3), -9, np.float32), "w")],
    )
    path = tmp_path / "m.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8), path)
    model = load(describe(recognise(str(path))))
    feed = {"x": np.array([[0, 0, 0, 0], [0.1, 0.2, 0.3, 0.4]], np.float32)}
    way = another_way(model, feed)
    assert way is not None
    how, answer = way
    assert how == "with its inputs moved by 4 units in the last place"
    truth = model.run(feed)["y"]
    assert 0 < np.abs(answer(feed)["y"] - truth)[1].max() < 1e-5
    np.testing.assert_array_equal(answer(feed)["y"][0], truth[0])  # zeros stay


def test_a_file_that_is_quantised_already_says_so(make_onnx: MakeOnnx, tmp_path: Path) -> None:
    """Its kernels are INT8 in whatever runtime: as FP32 it was refused everywhere."""
    assert describe(recognise(str(make_onnx()))).computes == "fp32"
    helper = onnx.helper
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "scale"], ["q"]),
        helper.make_node("DequantizeLinear", ["q", "scale"], ["y"]),
    ]
    specs = [helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, ["batch", 4]) for n in "xy"]
    scale = onnx.numpy_helper.from_array(np.array(0.1, np.float32), "scale")
    graph = helper.make_graph(nodes, "quantised", specs[:1], specs[1:], [scale])
    path = tmp_path / "quantised.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8), path)
    assert describe(recognise(str(path))).computes == "int8"
