"""Narrowing by hand: what each level changes, what must stay, what is refused, and what happens to bad input."""

import json
import os
from pathlib import Path

import numpy as np
import onnx
import pytest
from narrowing_checks import assert_equal_models, by_name, run, save, session
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

from accel.builders.narrow import narrow_file
from accel.core.errors import AccelError, InputError, OutputError, SampleError, UsageError
from accel.core.values import ShapeRange, from_json, to_json
from accel.graph.narrow import NarrowReport, prove_int32_interior

I32, I64, FLOAT, BOOL = TensorProto.INT32, TensorProto.INT64, TensorProto.FLOAT, TensorProto.BOOL
INT64_MAX, INT64_MIN = 2**63 - 1, -(2**63)
node = helper.make_node


def info(name: str, dtype: int = I64, dims: tuple[object, ...] = ("n",)) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, dtype, list(dims))


def types(path: Path) -> dict[str, int]:
    model = onnx.load(path, load_external_data=False)
    return {v.name: v.type.tensor_type.elem_type for v in (*model.graph.input, *model.graph.output)}


TABLE = np.arange(20, dtype=np.float32).reshape(10, 2)


def embedding(path: Path) -> Path:
    nodes = [node("Gather", ["table", "ids"], ["y"]), node("Cast", ["mask"], ["m"], to=BOOL)]
    outputs = [info("y", FLOAT, ("n", 2)), info("m", BOOL)]
    return save(path, nodes, [info("ids"), info("mask")], outputs, {"table": TABLE})


class TestLevels:
    def test_io_retypes_inputs_without_a_cast_where_nodes_take_int32(self, tmp_path: Path) -> None:
        source = embedding(tmp_path / "a.onnx")
        report = narrow_file(source, tmp_path / "b.onnx", ranges={"mask": (0, 1)})
        assert report.casts == 0
        assert report.narrowed_inputs == ("ids", "mask")
        assert [(i.name, i.lo, i.hi, i.origin) for i in report.inputs] == [
            ("mask", 0, 1, "declared"),
            ("ids", -10, 9, "gather"),
        ]
        feeds = [{"ids": np.array([0, 9, -10]), "mask": np.array([1, 0, 1])}]
        assert_equal_models(source, tmp_path / "b.onnx", feeds)

    def test_an_undeclared_input_stays_and_says_why(self, tmp_path: Path) -> None:
        report = narrow_file(embedding(tmp_path / "a.onnx"), tmp_path / "b.onnx")
        assert types(tmp_path / "b.onnx")["mask"] == I64
        assert by_name(report)["mask"].cause == "unproved"
        assert "no range is declared" in by_name(report)["mask"].reason

    def test_io_casts_where_a_node_needs_int64(self, tmp_path: Path) -> None:
        source = save(
            tmp_path / "a.onnx",
            [node("Reshape", ["x", "shape"], ["y"]), node("Add", ["shape", "one"], ["s"])],
            [info("x", FLOAT, ("a", "b")), info("shape", I64, (2,))],
            [info("y", FLOAT, ("c", "d")), info("s", I64, (2,))],
            {"one": [1]},
        )
        report = narrow_file(source, tmp_path / "b.onnx", ranges={"shape": (-1, 6)})
        assert types(tmp_path / "b.onnx") == {"x": FLOAT, "shape": I32, "y": FLOAT, "s": I32}
        assert report.casts == 2
        feed = {"x": np.zeros((2, 3), np.float32), "shape": np.array([3, -1])}
        assert_equal_models(source, tmp_path / "b.onnx", [feed])

    def test_interior_narrows_whole_classes_and_names_what_pins_the_others(self, tmp_path: Path) -> None:
        nodes = [
            node("Add", ["x", "one"], ["a"], name="add"),
            node("Mul", ["a", "one"], ["y"]),
            node("Shape", ["x"], ["shape"]),
            node("Add", ["shape", "one"], ["more"]),
            node("Expand", ["f", "more"], ["z"], name="expand"),
        ]
        source = save(
            tmp_path / "a.onnx", nodes, [info("x"), info("f", FLOAT, (1,))], [info("y"), info("z", FLOAT)], {"one": [1]}
        )
        report = narrow_file(source, tmp_path / "b.onnx", level="interior", ranges={"x": (0, 9)})
        values = by_name(report)
        assert {n for n, v in values.items() if v.decision == "narrowed"} == {"x", "a", "y"}
        assert values["shape"].cause == "pinned"
        assert "Shape.shape does not take int32" in values["shape"].reason
        assert values["one"].decision == "kept"
        assert report.casts == 0
        assert_equal_models(source, tmp_path / "b.onnx", [{"x": np.arange(5), "f": np.ones(1, np.float32)}])

    def test_keep_changes_nothing(self, tmp_path: Path) -> None:
        source = embedding(tmp_path / "a.onnx")
        report = narrow_file(source, tmp_path / "b.onnx", level="keep", ranges={"mask": (0, 1)})
        assert report.count("narrowed") == 0
        assert onnx.load(tmp_path / "b.onnx") == onnx.load(source)

    def test_a_schema_is_not_a_kernel(self, tmp_path: Path) -> None:
        source = save(
            tmp_path / "a.onnx",
            [node("Unique", ["x"], ["y"], name="unique"), node("OneHot", ["i", "depth", "values"], ["h"])],
            [info("x"), info("i")],
            [info("y", I64, ("m",)), info("h", I64, ("n", 3))],
            {"depth": 3, "values": [0, 1]},
        )
        report = narrow_file(source, tmp_path / "b.onnx", level="interior", ranges={"x": (0, 9), "i": (0, 2)})
        assert types(tmp_path / "b.onnx") == {"x": I32, "i": I32, "y": I32, "h": I32}
        assert report.casts >= 3
        assert by_name(report)["depth"].cause == "no-kernel"
        assert_equal_models(source, tmp_path / "b.onnx", [{"x": np.array([3, 3, 1]), "i": np.array([0, 2, 1])}])


def test_a_detector_with_non_max_suppression(tmp_path: Path) -> None:
    nodes = [
        node("NonMaxSuppression", ["boxes", "scores", "most", "iou"], ["picked"]),
        node("Slice", ["picked", "two", "top", "one"], ["index"]),
        node("Squeeze", ["index", "one"], ["flat"]),
        node("Gather", ["boxes", "flat"], ["chosen"], axis=1),
        node("Mul", ["flat", "ten"], ["code"]),
    ]
    source = save(
        tmp_path / "a.onnx",
        nodes,
        [info("boxes", FLOAT, ("b", "k", 4)), info("scores", FLOAT, ("b", "c", "k"))],
        [info("picked", I64, ("m", 3)), info("chosen", FLOAT, ("b", "m", 4)), info("code", I64, ("m",))],
        {"most": [5], "iou": np.array([0.5], np.float32), "two": [2], "top": [INT64_MAX], "one": [1], "ten": 10},
    )
    random = np.random.default_rng(0)
    feed = {
        "boxes": random.random((1, 30, 4)).astype(np.float32),
        "scores": random.random((1, 3, 30)).astype(np.float32),
    }
    shapes = {
        "boxes": ShapeRange((1, 1, 4), (1, 30, 4), (4, 100, 4)),
        "scores": ShapeRange((1, 1, 1), (1, 3, 30), (4, 9, 100)),
    }
    for level in ("io", "interior"):
        report = narrow_file(source, tmp_path / "b.onnx", level=level, shapes=shapes)
        assert report.narrowed_outputs == ("picked", "code")
        assert by_name(report)["code"].interval == (0, 990)
        assert_equal_models(source, tmp_path / "b.onnx", [feed])
    assert prove_int32_interior(source, shapes=shapes) == ()


class TestMarkers:
    def test_slice_markers_saturate_by_meaning(self, tmp_path: Path) -> None:
        source = save(
            tmp_path / "a.onnx",
            [
                node("Slice", ["x", "top", "bottom", "zero", "minus"], ["back"]),
                node("Slice", ["x", "two", "top"], ["y"]),
            ],
            [info("x", FLOAT)],
            [info("back", FLOAT, ("m",)), info("y", FLOAT, ("k",))],
            {"top": [INT64_MAX], "bottom": [INT64_MIN], "zero": [0], "minus": [-1], "two": [2]},
        )
        report = narrow_file(source, tmp_path / "b.onnx", level="interior")
        assert by_name(report)["top"].cause == "marker"
        assert by_name(report)["bottom"].cause == "marker"
        held = {t.name: numpy_helper.to_array(t) for t in onnx.load(tmp_path / "b.onnx").graph.initializer}
        assert {int(v[0]) for v in held.values()} == {2**31 - 1, -(2**31), 0, -1, 2}
        assert_equal_models(source, tmp_path / "b.onnx", [{"x": np.arange(7, dtype=np.float32)}])

    @pytest.mark.parametrize("last", [INT64_MAX, -INT64_MAX, 2**40])
    def test_markers_are_proved_wherever_only_slice_reads_them(self, tmp_path: Path, last: int) -> None:
        nodes = [
            node("Unsqueeze", ["last", "zero"], ["one"]),
            node("Concat", ["one", "one"], ["ends"], axis=0),
            node("Slice", ["x", "starts", "ends"], ["y"]),
        ]
        body = helper.make_graph([node("Slice", ["x", "starts", "ends"], ["z"])], "body", [], [info("z", FLOAT)])
        nodes.append(node("If", ["yes"], ["w"], then_branch=body, else_branch=body))
        constants = {"last": last, "zero": [0], "starts": [0, 0]}
        inputs = [info("x", FLOAT, (3, 4)), info("yes", BOOL, ())]
        outputs = [info("y", FLOAT, ("a", "b")), info("w", FLOAT, ("c", "d"))]
        source = save(tmp_path / "a.onnx", nodes, inputs, outputs, constants)
        assert prove_int32_interior(source) == ()
        read = [*nodes, node("Add", ["ends", "ends"], ["twice"])]
        source = save(tmp_path / "b.onnx", read, inputs, [*outputs, info("twice", I64, (2,))], constants)
        assert {"last", "one", "ends"} <= {u.name for u in prove_int32_interior(source)}

    def test_int64_max_as_an_ordinary_value_is_refused(self, tmp_path: Path) -> None:
        source = save(
            tmp_path / "a.onnx",
            [node("Slice", ["x", "two", "top"], ["y"]), node("Equal", ["x", "top"], ["e"])],
            [info("x")],
            [info("y", I64, ("k",)), info("e", BOOL)],
            {"top": [INT64_MAX], "two": [2]},
        )
        report = narrow_file(source, tmp_path / "b.onnx", level="interior", ranges={"x": (0, 9)})
        assert by_name(report)["top"].decision == "kept"
        assert_equal_models(source, tmp_path / "b.onnx", [{"x": np.arange(7)}])
        unproved = {u.name for u in prove_int32_interior(source, ranges={"x": (0, 9)})}
        assert unproved == {"top"}


class TestPlantedFailures:
    """Each would be wrong if anything were cut: all stay INT64, and results are equal for the values that prove it."""

    @pytest.mark.parametrize("level", ["io", "interior"])
    def test_vocabulary_above_2_31(self, tmp_path: Path, level: str) -> None:
        table = TensorProto(name="table", data_type=FLOAT, dims=[2**31 + 10, 1], data_location=TensorProto.EXTERNAL)
        for key, value in (("location", "w.bin"), ("offset", "0"), ("length", str((2**31 + 10) * 4))):
            table.external_data.add(key=key, value=value)
        with (tmp_path / "w.bin").open("wb") as file:
            file.truncate((2**31 + 10) * 4)
        source = save(
            tmp_path / "a.onnx", [node("Gather", ["table", "ids"], ["y"])], [info("ids")], [info("y", FLOAT, ("n", 1))]
        )
        model = onnx.load(source)
        model.graph.initializer.append(table)
        onnx.save(model, source)
        report = narrow_file(source, tmp_path / "b.onnx", level=level)
        assert report.narrowed_inputs == ()
        assert {u.name for u in prove_int32_interior(source)} >= {"ids"}

    @pytest.mark.parametrize("level", ["io", "interior"])
    @pytest.mark.parametrize(
        ("nodes", "ranges", "constants", "feed", "kept"),
        [
            ([node("CumSum", ["x", "axis"], ["y"])], {"x": (0, 2**30)}, {"axis": 0}, [2**30] * 4, {"y"}),
            ([node("Sub", ["x", "then"], ["y"])], {"x": (1_700_000_000_000, 1_800_000_000_000)},
             {"then": 1_600_000_000_000}, [1_700_000_000_001] * 2, {"x", "y"}),
            ([node("Add", ["x", "big"], ["y"])], {"x": (0, 5)}, {"big": 2**40}, [1, 5], {"y"}),
            ([node("Add", ["x", "big"], ["y"])], {"x": (-5, 0)}, {"big": INT64_MAX}, [-1, -5], {"y"}),
            ([node("Mul", ["x", "x"], ["y"])], {"x": (0, 2**20)}, {}, [2**20, 3], {"y"}),
            ([node("Mul", ["x", "prime"], ["m"]), node("Add", ["m", "prime"], ["y"])], {"x": (0, 1000)},
             {"prime": 2654435761}, [1000, 7], {"y", "m"}),
            ([node("ReduceSum", ["x"], ["y"], keepdims=1)], {"x": (0, 2**30)}, {}, [2**30] * 3, {"y"}),
            ([node("Neg", ["x"], ["y"])], {"x": (-(2**31), 0)}, {}, [-(2**31), 0], {"y"}),
        ],
        ids=["cumulative-sum", "timestamps", "constant-2-40", "int64-max", "square", "hash", "sum", "negated-minimum"],
    )  # fmt: skip
    def test_nothing_is_cut(
        self,
        tmp_path: Path,
        nodes: list[NodeProto],
        ranges: dict[str, tuple[int, int]],
        constants: dict[str, object],
        feed: list[int],
        kept: set[str],
        level: str,
    ) -> None:
        source = save(tmp_path / "a.onnx", nodes, [info("x")], [info("y", I64, ("m",))], constants)
        report = narrow_file(source, tmp_path / "b.onnx", level=level, ranges=ranges)
        assert {v.name for v in report.values if v.decision == "kept"} >= kept
        assert types(tmp_path / "b.onnx")["y"] == I64
        assert_equal_models(source, tmp_path / "b.onnx", [{"x": np.array(feed, np.int64)}])
        assert prove_int32_interior(source, ranges=ranges)

    def test_a_cast_to_int32_does_not_carry_a_gather_precondition(self, tmp_path: Path) -> None:
        # 2**32 + 5 is a valid id here: the model itself casts it to 5.
        nodes = [node("Cast", ["ids"], ["i"], to=I32), node("Gather", ["table", "i"], ["y"])]
        source = save(tmp_path / "a.onnx", nodes, [info("ids")], [info("y", FLOAT, ("n", 2))], {"table": TABLE})
        report = narrow_file(source, tmp_path / "b.onnx")
        assert report.inputs == ()
        assert_equal_models(source, tmp_path / "b.onnx", [{"ids": np.array([2**32 + 5])}])


class TestSubgraphs:
    def branches(self, path: Path) -> Path:
        then = helper.make_graph([node("Add", ["x", "x"], ["t"])], "then", [], [info("t")])
        other = helper.make_graph([node("Identity", ["x"], ["e"])], "else", [], [info("e")])
        nodes = [node("If", ["c"], ["y"], name="if", then_branch=then, else_branch=other)]
        return save(path, nodes, [info("x"), info("c", BOOL, ())], [info("y")])

    def test_if_takes_both_branches(self, tmp_path: Path) -> None:
        source = self.branches(tmp_path / "a.onnx")
        report = narrow_file(source, tmp_path / "b.onnx", level="interior", ranges={"x": (1, 9)})
        assert by_name(report)["y"].interval == (1, 18)
        assert types(tmp_path / "b.onnx") == {"x": I32, "c": BOOL, "y": I32}
        feeds = [{"x": np.array([1, 9]), "c": np.array(c)} for c in (True, False)]
        assert_equal_models(source, tmp_path / "b.onnx", feeds)

    @pytest.mark.parametrize(("step", "proved"), [(0, True), (1, False)])
    def test_what_a_loop_carries_keeps_its_range_only_if_the_body_keeps_it(
        self, tmp_path: Path, step: int, proved: bool
    ) -> None:
        body = helper.make_graph(
            [node("Add", ["v", "step"], ["w"]), node("Identity", ["c"], ["d"])],
            "body",
            [info("i", I64, ()), info("c", BOOL, ()), info("v")],
            [info("d", BOOL, ()), info("w")],
        )
        source = save(
            tmp_path / "a.onnx", [node("Loop", ["m", "", "x"], ["y"], body=body)], [info("x")], [info("y")],
            {"m": 5, "step": [step]},
        )  # fmt: skip
        report = narrow_file(source, tmp_path / "b.onnx", ranges={"x": (0, 9)})
        assert (types(tmp_path / "b.onnx")["y"] == I32) == proved
        assert (by_name(report)["y"].interval == (0, 9)) == proved
        assert_equal_models(source, tmp_path / "b.onnx", [{"x": np.array([0, 9])}])

    def test_custom_operators_and_functions_pin_what_they_touch(self, tmp_path: Path) -> None:
        function = helper.make_function(
            "local", "Twice", ["a"], ["b"], [node("Add", ["a", "a"], ["b"])], [helper.make_opsetid("", 18)]
        )
        nodes = [node("Twice", ["x"], ["t"], domain="local", name="twice"), node("Add", ["t", "x"], ["y"])]
        source = save(tmp_path / "a.onnx", nodes, [info("x")], [info("y")], domains=("local",))
        model = onnx.load(source)
        model.functions.append(function)
        onnx.save(model, source)
        report = narrow_file(source, tmp_path / "b.onnx", level="interior", ranges={"x": (0, 9)})
        assert by_name(report)["t"].cause in ("custom-operator", "unproved")
        assert types(tmp_path / "b.onnx") == {"x": I32, "y": I64}
        assert_equal_models(source, tmp_path / "b.onnx", [{"x": np.array([0, 9])}])
        assert prove_int32_interior(source, ranges={"x": (0, 9)}) == ()


class TestExternalData:
    def build(self, folder: Path) -> Path:
        source = embedding(folder / "a.onnx")
        onnx.save(onnx.load(source), source, save_as_external_data=True, location="a.data", size_threshold=0)
        return source

    def test_references_stay_and_the_data_comes_along_to_another_folder(self, tmp_path: Path) -> None:
        source = self.build(tmp_path)
        before = (tmp_path / "a.data").read_bytes()
        out = tmp_path / "other" / "b.onnx"
        narrow_file(source, out, level="interior", ranges={"mask": (0, 1)})
        assert (tmp_path / "other" / "a.data").read_bytes() == before
        assert sorted(p.name for p in out.parent.iterdir()) == ["a.data", "b.onnx"]
        assert_equal_models(source, out, [{"ids": np.array([0, 9]), "mask": np.array([0, 1])}])

    def test_foreign_data_in_the_way_is_not_overwritten(self, tmp_path: Path) -> None:
        source = self.build(tmp_path)
        (tmp_path / "other").mkdir()
        (tmp_path / "other" / "a.data").write_bytes(b"mine")
        with pytest.raises(OutputError, match="not the external data"):
            narrow_file(source, tmp_path / "other" / "b.onnx")
        assert [p.name for p in (tmp_path / "other").iterdir()] == ["a.data"]

    def test_the_data_file_is_not_a_place_for_the_output(self, tmp_path: Path) -> None:
        source = self.build(tmp_path)
        with pytest.raises(UsageError, match="holds the weights"):
            narrow_file(source, tmp_path / "a.data")


class TestBadInput:
    @pytest.mark.parametrize(
        ("options", "words"),
        [
            ({"ranges": {"mask": (1, 0)}}, "1 is above 0"),
            ({"ranges": {"maks": (0, 1)}}, "did you mean mask"),
            ({"ranges": {"mask": (0, 2**70)}}, "exceeds its type"),
            ({"shapes": {"ids": ShapeRange((4,), (4,), (2,))}}, "contradict"),
            ({"shapes": {"ids": ShapeRange((1, 1), (1, 1), (2, 2))}}, "rank 1"),
            ({"shapes": {"nope": ShapeRange((1,), (1,), (2,))}}, "unknown input"),
        ],
    )
    def test_contradictions(self, tmp_path: Path, options: dict[str, object], words: str) -> None:
        source = embedding(tmp_path / "a.onnx")
        before = source.read_bytes()
        with pytest.raises(UsageError, match=words):
            narrow_file(source, tmp_path / "b.onnx", **options)
        assert source.read_bytes() == before
        assert not (tmp_path / "b.onnx").exists()

    def test_a_range_for_floats(self, tmp_path: Path) -> None:
        source = save(tmp_path / "a.onnx", [node("Neg", ["x"], ["y"])], [info("x", FLOAT)], [info("y", FLOAT)])
        with pytest.raises(UsageError, match="not integers"):
            narrow_file(source, tmp_path / "b.onnx", ranges={"x": (0, 1)})

    def test_the_output_is_not_the_input(self, tmp_path: Path) -> None:
        source = embedding(tmp_path / "a.onnx")
        (tmp_path / "link.onnx").hardlink_to(source)
        for out in (source, tmp_path / "link.onnx", tmp_path / "x" / ".." / "a.onnx"):
            with pytest.raises(UsageError, match="is the source itself"):
                narrow_file(source, out)

    def test_broken_models(self, tmp_path: Path) -> None:
        whole = embedding(tmp_path / "a.onnx").read_bytes()
        (tmp_path / "cut.onnx").write_bytes(whole[: len(whole) // 2])
        (tmp_path / "text.onnx").write_text("not a model")
        (tmp_path / "empty.onnx").write_bytes(b"")
        cyclic = ModelProto()
        cyclic.ParseFromString(whole)
        cyclic.graph.node.extend([node("Add", ["p", "mask"], ["q"]), node("Add", ["q", "mask"], ["p"])])
        (tmp_path / "cyclic.onnx").write_bytes(cyclic.SerializeToString())
        for name in ("cut", "text", "empty", "cyclic", "missing"):
            with pytest.raises(InputError) as caught:
                narrow_file(tmp_path / f"{name}.onnx", tmp_path / "b.onnx")
            assert caught.value.exit_code == 2
            assert not (tmp_path / "b.onnx").exists()

    @pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
    def test_a_full_disk_leaves_nothing_behind(self, tmp_path: Path) -> None:
        source = embedding(tmp_path / "a.onnx")
        (tmp_path / f".b.onnx.{os.getpid()}.new").symlink_to("/dev/full")
        with pytest.raises(OutputError, match="no space left"):
            narrow_file(source, tmp_path / "b.onnx")
        assert sorted(p.name for p in tmp_path.iterdir()) == ["a.onnx"]

    def test_external_data_outside_the_folder(self, tmp_path: Path) -> None:
        (tmp_path / "in").mkdir()
        (tmp_path / "secret").write_bytes(bytes(80))
        source = embedding(tmp_path / "in" / "a.onnx")
        model = onnx.load(source)
        tensor = TensorProto(name="steal", data_type=I64, dims=[10], data_location=TensorProto.EXTERNAL)
        tensor.external_data.add(key="location", value="../secret")
        model.graph.initializer.append(tensor)
        onnx.save(model, source)
        with pytest.raises(AccelError):
            narrow_file(source, tmp_path / "in" / "b.onnx")


class TestReport:
    def test_json_round_trip(self, tmp_path: Path) -> None:
        report = narrow_file(embedding(tmp_path / "a.onnx"), tmp_path / "b.onnx", ranges={"mask": (0, 1)})
        assert from_json(NarrowReport, json.loads(json.dumps(to_json(report)))) == report

    def test_the_guard_names_the_first_bad_value(self, tmp_path: Path) -> None:
        shapes = {"ids": ShapeRange((1,), (2,), (4,)), "mask": ShapeRange((1,), (2,), (4,))}
        report = narrow_file(
            embedding(tmp_path / "a.onnx"), tmp_path / "b.onnx", ranges={"mask": (0, 1)}, shapes=shapes
        )
        report.check({"ids": np.array([0, 9]), "mask": np.array([0, 1])})
        with pytest.raises(SampleError, match=r"'ids' holds 10 at index \(1,\)"):
            report.check({"ids": np.array([0, 10, 11]), "mask": np.array([0, 1, 1])})
        with pytest.raises(SampleError, match=r"'mask' holds 4294967296 at index \(0,\)"):
            report.check({"ids": np.array([0]), "mask": np.array([2**32])})
        with pytest.raises(SampleError, match="axis 0 of input 'ids' has size 5"):
            report.check({"ids": np.arange(5), "mask": np.ones(5, np.int64)})

    def test_tensorrt_reports_other_64_bit_types_and_keeps_shape_tensors(self, tmp_path: Path) -> None:
        source = save(
            tmp_path / "a.onnx",
            [node("Reshape", ["d", "shape"], ["y"]), node("Shape", ["d"], ["size"]), node("Add", ["u", "u"], ["v"])],
            [info("d", TensorProto.DOUBLE, ("a",)), info("shape", I64, (1,)), info("u", TensorProto.UINT64)],
            [info("y", TensorProto.DOUBLE, ("b",)), info("size", I64, (1,)), info("v", TensorProto.UINT64)],
        )
        ranges = {"shape": (-1, 8)}
        report = narrow_file(source, tmp_path / "b.onnx", ranges=ranges, runtime="tensorrt")
        values = by_name(report)
        assert values["shape"].cause == values["size"].cause == "shape-tensor"
        assert values["d"].dtype == "float64"
        assert values["u"].cause == "unproved"
        assert types(tmp_path / "b.onnx")["shape"] == I64
        assert types(narrow_out(source, tmp_path / "c.onnx", ranges))["shape"] == I32

    def test_operators_that_a_runtime_computes_in_float_count_beyond_2_24(self, tmp_path: Path) -> None:
        source = save(tmp_path / "a.onnx", [node("Mod", ["x", "seven"], ["y"])], [info("x")], [info("y")], {"seven": 7})
        through_float = frozenset({"Mod"})
        assert prove_int32_interior(source, ranges={"x": (0, 2**24)}, through_float=through_float) == ()
        assert prove_int32_interior(source, ranges={"x": (0, 2**24 + 1)}) == ()
        (found,) = prove_int32_interior(source, ranges={"x": (0, 2**24 + 1)}, through_float=through_float)
        assert (found.op, found.through_float) == ("Mod", True)
        assert "float" in found.reason


def narrow_out(source: Path, out: Path, ranges: dict[str, tuple[int, int]]) -> Path:
    narrow_file(source, out, ranges=ranges)
    return out


def test_perturbing_a_narrowed_model_is_noticed(tmp_path: Path) -> None:
    """The comparison itself can fail: a model that is off by one does not pass for equal."""
    source = save(tmp_path / "a.onnx", [node("Add", ["x", "one"], ["y"])], [info("x")], [info("y")], {"one": [1]})
    wrong = save(tmp_path / "b.onnx", [node("Add", ["x", "one"], ["y"])], [info("x")], [info("y")], {"one": [2]})
    assert run(session(source), {"x": np.array([1])})["y"].tolist() == [2]
    with pytest.raises(AssertionError, match="y differs"):
        assert_equal_models(source, wrong, [{"x": np.array([1])}])
