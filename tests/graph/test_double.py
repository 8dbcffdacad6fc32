"""The 64-bit types that TensorRT lacks: DOUBLE is rounded to FLOAT by whole classes, UINT64 proved or refused."""

import itertools
import json
import warnings
from collections import Counter
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from narrowing_checks import assert_same, by_name, save, session
from onnx import NodeProto, TensorProto, helper, numpy_helper

from accel.builders.narrow import narrow_file
from accel.core.errors import InputError, SampleError, UsageError
from accel.core.values import from_json, to_json
from accel.graph.narrow import NarrowReport
from accel.graph.narrow.double import loss

DOUBLE, FLOAT, I32, I64 = TensorProto.DOUBLE, TensorProto.FLOAT, TensorProto.INT32, TensorProto.INT64
U64, BOOL = TensorProto.UINT64, TensorProto.BOOL
LEVELS = ("io", "interior")
node = helper.make_node


def info(name: str, dtype: int = DOUBLE, dims: tuple[object, ...] = ("n",)) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, dtype, list(dims))


def narrow(source: Path, level: str = "io", **options: object) -> tuple[NarrowReport, Path]:
    out = source.with_name("out.onnx")
    return narrow_file(source, out, level=level, runtime="tensorrt", **options), out


def types(path: Path) -> dict[str, int]:
    graph = onnx.load(path, load_external_data=False).graph
    declared = {v.name: v.type.tensor_type.elem_type for v in (*graph.input, *graph.output, *graph.value_info)}
    return declared | {t.name: t.data_type for t in graph.initializer}


def assert_close(source: Path, out: Path, feed: dict[str, np.ndarray], *, atol: float = 0) -> None:
    """Require outputs within 1e-6, relative, of those of the source; the new file takes FLOAT for DOUBLE."""
    before, after = session(source), session(out)
    wide = before.run(None, feed)
    fitted = {}
    for value in after.get_inputs():
        wanted = {"tensor(float)": np.float32, "tensor(int32)": np.int32}.get(value.type)
        fitted[value.name] = feed[value.name].astype(wanted) if wanted else feed[value.name]
    for name, one, other in zip((o.name for o in before.get_outputs()), wide, after.run(None, fitted), strict=True):
        assert other.dtype == helper.tensor_dtype_to_np_dtype(types(out)[name]), name
        np.testing.assert_allclose(other, one, rtol=1e-6, atol=atol)


def scaled(path: Path, constant: object = 0.1, **options: object) -> Path:
    """Make ``y = x * scale``, all DOUBLE."""
    held = {"scale": np.array([constant], np.float64)}
    return save(path, [node("Mul", ["x", "scale"], ["y"])], [info("x")], [info("y")], held, **options)


@pytest.mark.parametrize("level", LEVELS)
class TestRounded:
    def test_a_whole_graph_becomes_float(self, tmp_path: Path, level: str) -> None:
        third = numpy_helper.from_array(np.array(1 / 3))
        nodes = [
            node("Cast", ["n"], ["wide"], to=DOUBLE),
            node("Constant", [], ["third"], value=third),
            node("Mul", ["wide", "third"], ["part"]),
            node("Add", ["part", "x"], ["sum"]),
            node("Shape", ["sum"], ["size"]),
            node("ConstantOfShape", ["size"], ["fill"], value=numpy_helper.from_array(np.array([0.1]))),
            node("Add", ["sum", "fill"], ["filled"]),
            node("Mul", ["filled", "scale"], ["y"]),
        ]
        source = save(
            tmp_path / "a.onnx",
            nodes,
            [info("n", FLOAT), info("x")],
            [info("y")],
            {"scale": np.array([2.5, -0.7, 1e10])},
            value_info=[info("part")],
        )
        before = source.read_bytes()
        report, out = narrow(source, level)
        assert source.read_bytes() == before
        doubles = [v for v in report.values if v.dtype == "float64"]
        assert {v.name for v in doubles} == {"x", "y", "wide", "third", "part", "sum", "fill", "filled", "scale"}
        assert {(v.decision, v.cause, v.interval) for v in doubles} == {("narrowed", "rounded", None)}
        assert [v.role for v in doubles[:2]] == ["input", "output"]
        assert set(types(out).values()) == {FLOAT}
        assert report.rounded_inputs == ("x",)
        assert report.narrowed_inputs == report.narrowed_outputs == ()
        assert report.casts == 0
        assert_close(
            source, out, {"n": np.array([1.5, 2, 7], np.float32), "x": np.array([0.1, 1e-3, 12345.678], np.float64)}
        )

    def test_the_reason_gives_the_error_of_a_constant(self, tmp_path: Path, level: str) -> None:
        report, _ = narrow(scaled(tmp_path / "a.onnx", 0.1), level)
        assert "largest relative error 1.5e-08" in by_name(report)["scale"].reason
        assert "range is not proved" in by_name(report)["x"].reason
        report, _ = narrow(scaled(tmp_path / "a.onnx", 0.5), level)
        assert "exact" in by_name(report)["scale"].reason

    def test_infinity_and_nan_are_themselves_in_float(self, tmp_path: Path, level: str) -> None:
        held = {"edge": np.array([np.inf, -np.inf, np.nan, 0.0])}
        source = save(tmp_path / "a.onnx", [node("Add", ["x", "edge"], ["y"])], [info("x")], [info("y")], held)
        report, out = narrow(source, level)
        assert by_name(report)["edge"].decision == "narrowed"
        assert_close(source, out, {"x": np.arange(4, dtype=np.float64)})

    def test_constants_that_are_outputs_or_defaults_of_inputs_change_in_place(self, tmp_path: Path, level: str) -> None:
        held = {"default": np.array([0.5]), "shown": np.array([0.25])}
        inputs, outputs = [info("x"), info("default")], [info("y"), info("shown", dims=(1,))]
        source = save(tmp_path / "a.onnx", [node("Add", ["x", "default"], ["y"])], inputs, outputs, held)
        report, out = narrow(source, level)
        assert report.count("kept") == 0
        assert types(out) == dict.fromkeys(("x", "default", "y", "shown"), FLOAT)
        (y, shown) = session(out).run(None, {"x": np.ones(2, np.float32)})
        assert (y.tolist(), shown.tolist()) == ([1.5, 1.5], [0.25])


class TestKept:
    @pytest.mark.parametrize(
        ("value", "said"),
        [(1e300, "holds 1e+300, which overflows FLOAT"), (-1e39, "-1e+39"), (1e-300, "holds 1e-300, which becomes 0")],
    )
    def test_a_constant_that_does_not_survive_refuses_its_class(self, tmp_path: Path, value: float, said: str) -> None:
        source = scaled(tmp_path / "a.onnx", value)
        report, out = narrow(source)
        values = by_name(report)
        assert {(v.decision, v.cause) for v in values.values()} == {("kept", "unproved")}
        assert all("'scale'" in v.reason and said in v.reason for v in values.values())
        assert set(types(out).values()) == {DOUBLE}
        feed = {"x": np.array([0.1, 3.0])}
        assert_same("y", session(source).run(None, feed)[0], session(out).run(None, feed)[0])

    def test_the_attribute_of_a_node_is_a_constant_too(self, tmp_path: Path) -> None:
        huge = numpy_helper.from_array(np.array([1e200]))
        nodes = [node("ConstantOfShape", ["size"], ["y"], value=huge)]
        source = save(tmp_path / "a.onnx", nodes, [info("size", I64, (1,))], [info("y")])
        report, out = narrow(source)
        assert by_name(report)["y"].cause == "unproved"
        assert "1e+200" in by_name(report)["y"].reason
        assert types(out)["y"] == DOUBLE

    def test_external_constants_are_not_read(self, tmp_path: Path) -> None:
        source = scaled(tmp_path / "a.onnx", 0.5, external=True)
        (tmp_path / "weights").write_bytes(b"\xff" * (tmp_path / "weights").stat().st_size)
        report, out = narrow(source)
        assert {v.decision for v in report.values} == {"kept"}
        assert "external data, which is not read" in by_name(report)["scale"].reason
        assert types(out)["x"] == DOUBLE

    def test_a_shared_constant_is_copied_for_the_class_that_changes(self, tmp_path: Path) -> None:
        nodes = [
            node("Mul", ["x", "c"], ["y"]),
            node("Mul", ["z", "c"], ["big"]),
            node("Mul", ["big", "huge"], ["w"]),
        ]
        held = {"c": np.array([0.1]), "huge": np.array([1e300])}
        source = save(tmp_path / "a.onnx", nodes, [info("x"), info("z")], [info("y"), info("w")], held)
        report, out = narrow(source)
        values = by_name(report)
        assert {n for n, v in values.items() if v.decision == "narrowed"} == {"x", "y"}
        assert "'huge'" in values["c"].reason
        assert "1 of its 2 uses have a float copy" in values["c"].reason
        assert (types(out)["c"], types(out)["c__float"]) == (DOUBLE, FLOAT)
        assert_close(source, out, {"x": np.array([1.5]), "z": np.array([1e-5])})

    def test_an_operator_without_a_schema_pins(self, tmp_path: Path) -> None:
        nodes = [node("Mystery", ["a"], ["b"], domain="x.y", name="m"), node("Neg", ["x"], ["y"])]
        source = save(tmp_path / "a.onnx", nodes, [info("a"), info("x")], [info("b"), info("y")], domains=("x.y",))
        report, out = narrow(source)
        values = by_name(report)
        assert values["a"].cause == values["b"].cause == "custom-operator"
        assert "Mystery 'm'" in values["a"].reason
        assert [types(out)[n] for n in "abxy"] == [DOUBLE, DOUBLE, FLOAT, FLOAT]

    @pytest.mark.parametrize(
        ("made", "inputs", "output"),
        [
            (node("Range", ["a", "b", "c"], ["y"], name="r"), ("a", "b", "c"), info("y")),
            (node("NonZero", ["a"], ["y"], name="r"), ("a",), info("y", I64, (None, None))),
            (node("Unique", ["a"], ["y"], name="r"), ("a",), info("y")),
        ],
    )
    def test_sizes_do_not_change_by_rounding(
        self, tmp_path: Path, made: NodeProto, inputs: tuple[str, ...], output: onnx.ValueInfoProto
    ) -> None:
        dims: tuple[object, ...] = () if made.op_type == "Range" else ("n",)
        report, out = narrow(save(tmp_path / "a.onnx", [made], [info(n, dims=dims) for n in inputs], [output]))
        assert by_name(report)["a"].cause == "pinned"
        assert f"{made.op_type} 'r'" in by_name(report)["a"].reason
        assert types(out)["a"] == DOUBLE

    @pytest.mark.parametrize("level", LEVELS)
    @pytest.mark.parametrize(("one", "other"), [(DOUBLE, I64), (I64, DOUBLE), (I64, U64), (DOUBLE, U64)])
    def test_bits_are_not_reinterpreted_in_another_width(
        self, tmp_path: Path, one: int, other: int, level: str
    ) -> None:
        """The schema of BitCast allows float and int32; its inference compares the widths of both sides."""
        nodes = [node("BitCast", ["x"], ["mid"], to=other, name="b"), node("Identity", ["mid"], ["y"])]
        source = save(tmp_path / "a.onnx", nodes, [info("x", one)], [info("y", other)], opset=26)
        report, out = narrow(source, level, ranges={"x": (0, 9)} if one == I64 else {})
        made = {v.name: v for v in report.values}["mid"]
        assert made.decision == "kept"
        if other == DOUBLE:
            assert "BitCast 'b'" in made.reason
        assert onnx.load(out).graph.output[0].type.tensor_type.elem_type == other

    def test_sub_graphs_keep_their_types(self, tmp_path: Path) -> None:
        branches = {
            f"{name}_branch": helper.make_graph([node(op, ["x"], [f"{name}_y"])], name, [], [info(f"{name}_y")])
            for name, op in (("then", "Neg"), ("else", "Abs"))
        }
        source = save(
            tmp_path / "a.onnx", [node("If", ["c"], ["y"], name="if", **branches)], [info("c", BOOL, ()), info("x")],
            [info("y")],
        )  # fmt: skip
        report, out = narrow(source)
        assert {v.cause for v in report.values} == {"sub-graph"}
        assert {"x", "y", "if/then_y", "if/else_y"} <= set(by_name(report))
        assert types(out)["x"] == DOUBLE

    def test_a_sequence_of_doubles_pins(self, tmp_path: Path) -> None:
        nodes = [
            node("SequenceConstruct", ["a", "b"], ["s"], name="s"),
            node("ConcatFromSequence", ["s"], ["y"], axis=0),
        ]
        source = save(tmp_path / "a.onnx", nodes, [info("a"), info("b")], [info("y")])
        report, out = narrow(source)
        assert {v.decision for v in report.values} == {"kept"}
        assert set(types(out).values()) == {DOUBLE}

    @pytest.mark.parametrize("options", [{"runtime": "tensorrt", "level": "keep"}, {"runtime": "ort"}])
    def test_elsewhere_nothing_changes(self, tmp_path: Path, options: dict[str, str]) -> None:
        source = scaled(tmp_path / "a.onnx")
        report = narrow_file(source, tmp_path / "out.onnx", **options)
        assert [v.cause for v in report.values] == (["level"] * 3 if "level" in options else [])
        assert onnx.load(tmp_path / "out.onnx") == onnx.load(source)


class TestIntegersAfterRounding:
    def test_an_integer_that_passes_through_a_rounded_value_is_proved_anew(self, tmp_path: Path) -> None:
        """2**31 - 1 is exact in DOUBLE; in FLOAT it becomes 2**31, which INT32 cannot hold."""
        nodes = [node("Cast", ["x"], ["wide"], to=DOUBLE), node("Cast", ["wide"], ["y"], to=I64)]
        source = save(tmp_path / "a.onnx", nodes, [info("x", I64)], [info("y", I64)])
        ranges = {"x": (0, 2**31 - 1)}
        exact = by_name(narrow_file(source, tmp_path / "b.onnx", ranges=ranges, runtime="ort"))
        rounded, out = narrow(source, ranges=ranges)
        values = by_name(rounded)
        assert values["wide"].decision == "narrowed"
        assert (values["y"].decision, values["y"].cause) == ("kept", "unproved")
        assert session(out).run(None, {"x": np.array([2**31 - 1], np.int32)})[0].tolist() == [2**31]
        assert exact["x"].decision == "narrowed"


class TestUnsigned:
    def test_a_proved_class_becomes_int32(self, tmp_path: Path) -> None:
        nodes = [node("Concat", ["u", "c"], ["v"], axis=0), node("Cast", ["v"], ["y"], to=FLOAT)]
        source = save(
            tmp_path / "a.onnx", nodes, [info("u", U64)], [info("y", FLOAT, ("m",))], {"c": np.array([7], np.uint64)}
        )
        report, out = narrow(source, "interior", ranges={"u": (0, 1000)})
        assert {(v.decision, v.cause, v.dtype) for v in report.values} == {("narrowed", "proved", "uint64")}
        assert by_name(report)["v"].interval == (0, 1000)
        assert U64 not in types(out).values()
        assert report.casts == 0
        before = session(source).run(None, {"u": np.array([0, 1000], np.uint64)})
        assert_same("y", before[0], session(out).run(None, {"u": np.array([0, 1000], np.int32)})[0])

    def test_io_adds_casts_at_the_door(self, tmp_path: Path) -> None:
        nodes = [node("Concat", ["u", "u"], ["v"], axis=0)]
        source = save(tmp_path / "a.onnx", nodes, [info("u", U64)], [info("v", U64, ("m",))])
        report, out = narrow(source, ranges={"u": (5, 6)})
        assert report.narrowed_inputs == ("u",)
        assert report.narrowed_outputs == ("v",)
        assert (types(out)["u"], types(out)["v"]) == (I32, I32)
        assert session(out).run(None, {"u": np.array([5, 6], np.int32)})[0].tolist() == [5, 6, 5, 6]

    @pytest.mark.parametrize(
        ("ranges", "cause", "said"),
        [
            ({}, "unproved", "[0, 18446744073709551615] fits no type"),
            ({"u": (0, 2**40)}, "type", "[0, 1099511627776], which fits INT64 but not INT32"),
        ],
    )
    def test_the_rest_is_refused_with_the_interval(
        self, tmp_path: Path, ranges: dict[str, tuple[int, int]], cause: str, said: str
    ) -> None:
        source = save(tmp_path / "a.onnx", [node("Identity", ["u"], ["v"])], [info("u", U64)], [info("v", U64)])
        report, out = narrow(source, "interior", ranges=ranges)
        assert {(v.decision, v.cause) for v in report.values} == {("kept", cause)}
        assert all(said in v.reason for v in report.values)
        assert types(out)["u"] == U64

    def test_a_kept_value_says_that_it_would_fit(self, tmp_path: Path) -> None:
        nodes = [node("BitShift", ["u", "u"], ["v"], direction="RIGHT", name="s")]
        source = save(tmp_path / "a.onnx", nodes, [info("u", U64)], [info("v", U64)])
        kept = by_name(narrow(source, "keep", ranges={"u": (0, 3)})[0])["u"]
        assert (kept.decision, kept.cause) == ("kept", "level")
        assert kept.reason.endswith("[0, 3] and fits INT32")
        report, out = narrow(source, "interior", ranges={"u": (0, 3)})
        assert report.narrowed_inputs == ("u",)
        assert [n.op_type for n in onnx.load(out).graph.node][:2] == ["Cast", "BitShift"]


class TestReport:
    def test_json_round_trip(self, tmp_path: Path) -> None:
        report, _ = narrow(scaled(tmp_path / "a.onnx"))
        assert from_json(NarrowReport, json.loads(json.dumps(to_json(report)))) == report

    def test_the_guard_refuses_a_double_beyond_float(self, tmp_path: Path) -> None:
        report, _ = narrow(scaled(tmp_path / "a.onnx"))
        report.check({"x": np.array([1.0, np.inf, np.nan, -3.4e38])})
        with pytest.raises(SampleError, match=r"'x' holds -1e\+39 at index \(1,\)"):
            report.check({"x": np.array([1.0, -1e39])})

    def test_loss_of_an_empty_constant_is_nothing(self) -> None:
        assert loss(ir.tensor(np.zeros((0, 3)))) == ("", 0.0)

    def test_perturbing_a_constant_is_noticed(self, tmp_path: Path) -> None:
        """The comparison itself can fail: a scale that is off by 1e-5 does not pass."""
        _, out = narrow(scaled(tmp_path / "a.onnx", 0.1))
        other = scaled(tmp_path / "b.onnx", 0.1 * (1 + 1e-5))
        with pytest.raises(AssertionError, match="Not equal to tolerance"):
            assert_close(other, out, {"x": np.array([1.0, 2.0])})


class TestBadInput:
    def test_a_range_of_a_double_input(self, tmp_path: Path) -> None:
        source = scaled(tmp_path / "a.onnx")
        with pytest.raises(UsageError, match="holds double, not integers"):
            narrow(source, ranges={"x": (0, 1)})
        assert not (tmp_path / "out.onnx").exists()

    def test_half_a_file(self, tmp_path: Path) -> None:
        source = scaled(tmp_path / "a.onnx")
        source.write_bytes(source.read_bytes()[:-9])
        with pytest.raises(InputError, match="does not pass"):
            narrow(source)
        assert not (tmp_path / "out.onnx").exists()

    def test_the_source_as_output(self, tmp_path: Path) -> None:
        source = scaled(tmp_path / "out.onnx")
        before = source.read_bytes()
        with pytest.raises(UsageError, match="is the source itself"):
            narrow(source)
        assert source.read_bytes() == before


@pytest.mark.slow
def test_operator_cases_of_onnx(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """ONNX's own cases with DOUBLE or UINT64: each comes out valid, and close where ONNX Runtime runs the source."""
    from onnx.backend.test.case.node import collect_testcases

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        cases = [case for case in collect_testcases(None) if {DOUBLE, U64} & _boundary(case.model)]
    source, count = tmp_path / "a.onnx", Counter[str]()
    for case, level in itertools.product(cases, LEVELS):
        onnx.save(case.model, source)
        report, out = narrow(source, level)
        count["cases"] += 1
        count["rounded"] += any(v.cause == "rounded" for v in report.values)
        feed = {v.name: _array(x) for v, x in zip(case.model.graph.input, case.data_sets[0][0], strict=False)}
        try:
            session(source).run(None, feed)
        except Exception:  # noqa: BLE001 - ONNX Runtime raises a class of its own per status
            count["ONNX Runtime does not run the source"] += 1
            continue
        assert_close(source, out, feed, atol=1e-6)
        count["close"] += 1
    with capsys.disabled():
        print(f"\n{len(cases)} operator cases with double or uint64, at two levels: {dict(count)}")
    assert count["close"] > 80
    assert count["rounded"] > 80


def _boundary(model: onnx.ModelProto) -> set[int]:
    return {v.type.tensor_type.elem_type for v in (*model.graph.input, *model.graph.output)}


def _array(value: object) -> np.ndarray:
    return numpy_helper.to_array(value) if isinstance(value, TensorProto) else np.asarray(value)
