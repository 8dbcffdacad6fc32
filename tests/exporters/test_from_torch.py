"""Factories and exported programs: described, exported, proved equal, and refused where they must be."""

import io
import json
import re
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch

from accel.core.errors import InputError, SampleError, StageError, UnavailableError, UsageError
from accel.exporters import check, describe, export_onnx, from_torch, load, program_rules
from accel.exporters.sources import recognise


def test_a_factory_without_samples_gets_a_dynamic_batch(factory_file: Path) -> None:
    source = describe(recognise(f"{factory_file}:plain", opt_shapes={"x": (1, 8)}))
    assert [(s.name, s.dtype, s.dims) for s in source.inputs] == [("x", "float32", ("batch", 8))]
    assert [(s.name, s.dims) for s in source.outputs] == [("logits", ("batch", 3)), ("hidden", ("batch", 16))]
    assert source.profile["x"].max == (16, 8)
    assert (source.samples, source.accuracy) == ("random", "unproved")
    answer = load(source).run({"x": np.zeros((5, 8), np.float32)})
    assert answer["hidden"].shape == (5, 16)


def test_a_scalar_output_is_one_element(tmp_path: Path) -> None:
    code = """import torch

class Net(torch.nn.Module):
    def forward(self, x):
        return {"y": x * 2, "total": x.sum()}

def make():
    return Net()
"""
    (tmp_path / "scalar.py").write_text(code)
    source = describe(recognise(f"{tmp_path / 'scalar.py'}:make", opt_shapes={"x": (1, 8)}))
    assert [s.dims for s in source.outputs] == [("batch", 8), (1,)]
    model = load(source)
    assert model.run({"x": np.ones((3, 8), np.float32)})["total"].tolist() == [24.0]
    assert export_onnx(source, tmp_path / "out", model=model).outputs[1].dims == (1,)


def test_one_input_with_shapes_leaves_the_batch_to_all(tmp_path: Path) -> None:
    code = """import torch

class Net(torch.nn.Module):
    def forward(self, x, y):
        return {"z": torch.cat([x, y], 1)}

def make():
    return Net(), [{"x": torch.ones(1, 4), "y": torch.ones(1, 2)}]
"""
    (tmp_path / "two.py").write_text(code)
    source = describe(recognise(f"{tmp_path / 'two.py'}:make", max_shapes={"x": (16, 4)}))
    assert [s.dims for s in source.inputs] == [("batch", 4), ("batch", 2)]
    assert source.outputs[0].dims == ("batch", 6)


def test_a_factory_with_samples_needs_no_shapes(factory_file: Path) -> None:
    source = describe(recognise(f"{factory_file}:sampled"))
    assert source.inputs[0].dims == ("batch", 8)
    assert source.inputs[0].dtype == "float32"
    assert source.samples == f"{factory_file}:sampled"
    assert source.accuracy == "proved"


def test_tuple_samples_name_inputs_by_position(factory_file: Path) -> None:
    source = describe(recognise(f"{factory_file}:as_tuple"))
    assert [s.name for s in source.inputs] == ["x", "scale"]


def test_axes_follow_min_and_max_shapes(factory_file: Path) -> None:
    request = recognise(
        f"{factory_file}:ids",
        min_shapes={"ids": (1, 2)},
        opt_shapes={"ids": (1, 8)},
        max_shapes={"ids": (4, 20)},
        ranges={"ids": (0, 49)},
    )
    source = describe(request)
    assert source.inputs[0].dims == ("batch", "seq")
    assert source.inputs[0].range == (0, 49)
    assert source.outputs[0].dims == ("batch", 4)
    with pytest.raises(SampleError, match=r"holds 50 at index \(0, 1\)"):
        load(source).run({"ids": np.array([[1, 50]])})


def test_the_key_of_a_factory_is_its_source_and_weights(factory_file: Path) -> None:
    request = recognise(f"{factory_file}:plain", opt_shapes={"x": (1, 8)})
    first = describe(request)
    assert describe(request).key == first.key
    factory_file.write_text(factory_file.read_text() + "\n# changed\n")
    assert describe(request).key != first.key
    with pytest.raises(InputError, match="other weights or code"):
        load(first)


@pytest.mark.parametrize(
    ("function", "error", "says"),
    [
        ("raises", StageError, "forward raised ZeroDivisionError on x float32"),
        ("nested", StageError, "a_1 of type str: expected tensors"),
        ("breaks", InputError, "weights.bin is not here"),
        ("not_a_module", InputError, "returned int"),
        ("absent", InputError, "no function 'absent'"),
    ],
)
def test_a_broken_factory_says_what_is_wrong(
    function: str, error: type[Exception], says: str, factory_file: Path
) -> None:
    with pytest.raises(error, match=says):
        describe(recognise(f"{factory_file}:{function}", opt_shapes={"x": (2, 8)}))


def test_missing_and_wrong_shapes_are_refused(factory_file: Path) -> None:
    with pytest.raises(UsageError, match="nothing says what shape input 'x'"):
        describe(recognise(f"{factory_file}:plain"))
    with pytest.raises(UsageError, match="no input 'y'"):
        describe(recognise(f"{factory_file}:plain", opt_shapes={"y": (1, 8)}))
    with pytest.raises(UsageError, match="min <= opt <= max"):
        describe(recognise(f"{factory_file}:plain", opt_shapes={"x": (4, 8)}, max_shapes={"x": (2, 8)}))


def test_an_input_without_a_shape_has_that_of_the_samples(factory_file: Path, tmp_path: Path) -> None:
    np.savez(tmp_path / "s.npz", x=np.zeros((30, 8), np.float32))
    source = describe(recognise(f"{factory_file}:plain", samples=str(tmp_path / "s.npz")))
    assert source.inputs[0].dims == ("batch", 8)
    assert source.profile["x"].opt == (1, 8)


def test_a_factory_is_exported_and_proved(factory_file: Path, tmp_path: Path) -> None:
    source = describe(recognise(f"{factory_file}:plain", opt_shapes={"x": (1, 8)}))
    model = export_onnx(source, tmp_path / "onnx", opset=19)
    assert (model.opset, model.ir_version <= 10) == (19, True)
    assert [s.dims for s in model.inputs] == [("batch", 8)]
    assert [s.name for s in model.outputs] == ["logits", "hidden"]
    assert {f.path for f in (model.file, *model.data)} == {p.name for p in (tmp_path / "onnx").iterdir()}


def test_an_export_that_fixes_the_batch_is_an_error(factory_file: Path, tmp_path: Path) -> None:
    source = describe(recognise(f"{factory_file}:frozen", opt_shapes={"x": (1, 8)}))
    with pytest.raises(StageError, match="lost the dynamic axis 'batch'"):
        export_onnx(source, tmp_path / "onnx")


@pytest.mark.filterwarnings("ignore:.isinstance.treespec, LeafSpec:FutureWarning")
def test_a_static_onnx_is_noticed(factory_file: Path, tmp_path: Path) -> None:
    model = load(describe(recognise(f"{factory_file}:plain", opt_shapes={"x": (1, 8)})))
    path = tmp_path / "model.onnx"
    assert model.module is not None
    torch.onnx.export(
        model.module,
        (torch.ones(2, 8),),
        str(path),
        dynamo=True,
        input_names=["x"],
        output_names=["logits", "hidden"],
        opset_version=18,
        verbose=False,
    )
    with pytest.raises(StageError, match="lost the dynamic axis 'batch'"):
        check.check_onnx(model.source, check.read_checked(path), path, check.reference_points(model))


def test_a_changed_weight_is_noticed(factory_file: Path, tmp_path: Path) -> None:
    source = describe(recognise(f"{factory_file}:plain", opt_shapes={"x": (1, 8)}))
    model = load(source)
    export_onnx(source, tmp_path, model=model)
    path = tmp_path / "model.onnx"
    graph = onnx.load(str(path))
    weight = max(graph.graph.initializer, key=lambda t: int(np.prod(t.dims)))
    values = onnx.numpy_helper.to_array(weight).copy()
    values.flat[0] += 0.5
    weight.CopyFrom(onnx.numpy_helper.from_array(values, weight.name))
    onnx.save(graph, str(path))
    with pytest.raises(StageError, match="differs from the source"):
        check.check_onnx(source, check.read_checked(path), path, check.reference_points(model))


def test_torch_export_takes_the_module_with_shared_dims(hf_folder: Path) -> None:
    source = describe(recognise(str(hf_folder)))
    model = load(source)
    assert model.module is not None
    shapes = from_torch.trace_shapes(source, source.profile)
    assert min(shapes["input_ids"]) >= 2
    program = torch.export.export(
        model.module,
        from_torch.example_inputs(source, shapes),
        dynamic_shapes=from_torch.dynamic_shapes(source, source.profile),
    )
    for point in check.reference_points(model):
        args = [torch.from_numpy(point.feed[s.name]) for s in source.inputs]
        found = program.module()(*args)
        for value, name in zip(found, point.answer, strict=True):
            np.testing.assert_allclose(value.detach().numpy(), point.answer[name], rtol=0, atol=1e-5)
    static = {n: type(r)(r.opt, r.opt, r.opt) for n, r in source.profile.items()}
    assert from_torch.trace_shapes(source, static)["input_ids"] == source.profile["input_ids"].opt
    assert from_torch.dynamic_shapes(source, static) == (({}, {}, {}),)


class Embedder(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = torch.nn.Embedding(9, 4)

    def forward(self, ids: torch.Tensor, extra: dict[str, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
        y = self.table(ids)
        return y, y.sum((1, 2)) + extra["bias"]


@pytest.fixture
def program_file(tmp_path: Path) -> Path:
    torch.manual_seed(0)
    batch, seq = torch.export.Dim("b", min=1, max=8), torch.export.Dim("s", min=2, max=32)
    program = torch.export.export(
        Embedder().eval(),
        (torch.ones(2, 5, dtype=torch.int64), {"bias": torch.ones(2)}),
        dynamic_shapes=({0: batch, 1: seq}, {"bias": {0: batch}}),
    )
    path = tmp_path / "embedder.pt2"
    torch.export.save(program, path)
    return path


def test_an_exported_program_is_described_and_exported(program_file: Path, tmp_path: Path) -> None:
    request = recognise(str(program_file), ranges={"ids": (0, 8)})
    source = describe(request)
    assert [(s.name, s.dims) for s in source.inputs] == [("ids", ("batch", "seq")), ("extra_bias", ("batch",))]
    assert (source.profile["ids"].min, source.profile["ids"].max) == ((1, 2), (8, 32))
    assert [(s.name, s.dims) for s in source.outputs] == [("output_0", ("batch", "seq", 4)), ("output_1", ("batch",))]
    model = export_onnx(source, tmp_path / "onnx")
    assert [s.dims for s in model.inputs] == [("batch", "seq"), ("batch",)]


class Evil:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, tuple[str, str]]:
        return open, (str(self.path), "w")


def rewritten(program_file: Path, change: dict[str, bytes]) -> Path:
    target = program_file.with_name("changed.pt2")
    with zipfile.ZipFile(program_file) as old, zipfile.ZipFile(target, "w", zipfile.ZIP_STORED) as new:
        for name in old.namelist():
            key = next((k for k in change if name.endswith(k)), None)
            new.writestr(name, change[key] if key else old.read(name))
    return target


def test_a_program_with_a_pickle_inside_is_refused_unopened(program_file: Path, tmp_path: Path) -> None:
    trace = tmp_path / "was-run"
    raw = io.BytesIO()
    torch.save(((Evil(trace),), {}), raw)
    changed = rewritten(program_file, {"sample_inputs/model.pt": raw.getvalue()})
    with pytest.raises(InputError, match="pickle of more than plain tensors"):
        describe(recognise(str(changed)))
    assert not trace.exists()


def test_a_pickle_under_another_spelling_is_refused_unopened(program_file: Path, tmp_path: Path) -> None:
    """torch's reader ignores the case of names, so ``model.PT`` is read where ``model.pt`` was asked for."""
    trace = tmp_path / "was-run"
    raw = io.BytesIO()
    torch.save(((Evil(trace),), {}), raw)
    target = program_file.with_name("spelled.pt2")
    with zipfile.ZipFile(program_file) as old, zipfile.ZipFile(target, "w", zipfile.ZIP_STORED) as new:
        for name in old.namelist():
            sample = name.endswith("sample_inputs/model.pt")
            new.writestr(name[:-2] + "PT" if sample else name, raw.getvalue() if sample else old.read(name))
    with pytest.raises(InputError, match="pickle of more than plain tensors"):
        describe(recognise(str(target)))
    assert not trace.exists()


@pytest.mark.parametrize("version", [b"9" * 40, b"x", b""])
def test_a_version_that_is_no_number_is_refused(program_file: Path, version: bytes) -> None:
    """C++ reads it, and what it raises becomes an IndexError or a ValueError of Python's."""
    changed = rewritten(program_file, {"/version": version})
    with pytest.raises(InputError, match="is not an exported program"):
        describe(recognise(str(changed)))


def test_foreign_constants_are_refused(program_file: Path) -> None:
    target = program_file.with_name("foreign.pt2")
    with zipfile.ZipFile(program_file) as old, zipfile.ZipFile(target, "w", zipfile.ZIP_STORED) as new:
        for name in old.namelist():
            new.writestr(name, old.read(name))
        new.writestr(f"{old.namelist()[0].split('/')[0]}/data/constants/opaque_obj_0", b"")
    with pytest.raises(InputError, match="pickled object"):
        describe(recognise(str(target)))


def test_a_program_with_marked_pickles_or_code_as_sizes_is_refused(program_file: Path) -> None:
    with zipfile.ZipFile(program_file) as archive:
        names = archive.namelist()
        weights = archive.read(next(n for n in names if n.endswith("model_weights_config.json")))
        graph = archive.read(next(n for n in names if n.endswith("models/model.json")))
    pickled = weights.replace(b'"use_pickle": false', b'"use_pickle": true')
    assert pickled != weights
    with pytest.raises(InputError, match=r"marks .* as a pickle"):
        describe(recognise(str(rewritten(program_file, {"model_weights_config.json": pickled}))))
    coded = graph.replace(b"Symbol(", b"__import__('os').getcwd() or Symbol(", 1)
    assert coded != graph
    with pytest.raises(InputError, match="not arithmetic"):
        describe(recognise(str(rewritten(program_file, {"models/model.json": coded}))))


def test_a_size_that_no_computer_holds_does_not_hang(program_file: Path) -> None:
    def change(text: str) -> str:
        return re.sub(r"Symbol\([^)]*\)", "9**9**9**9", text, count=1)

    with pytest.raises(InputError, match="not arithmetic"):
        describe(recognise(str(edited(program_file, change))))


def edited(program_file: Path, change: Callable[[str], str]) -> Path:
    """Write the program anew with the text of its graph changed."""
    with zipfile.ZipFile(program_file) as archive:
        graph = archive.read(next(n for n in archive.namelist() if n.endswith("models/model.json"))).decode()
    changed = change(graph)
    assert changed != graph
    return rewritten(program_file, {"models/model.json": changed.encode()})


CODE = "__import__('pathlib').Path({trace!r}).touch()"


@pytest.mark.parametrize(
    ("field", "match"),
    [("guard", "more than a comparison"), ("operator", "no operator"), ("argument", "an invalid name")],
)
def test_code_of_a_program_is_never_run(program_file: Path, tmp_path: Path, field: str, match: str) -> None:
    """Opening or calling a program runs its guards, looks operators up by path, and pastes names into source."""
    trace = tmp_path / "was-run"
    code = CODE.format(trace=str(trace))

    def change(text: str) -> str:
        data = json.loads(text)
        if field == "guard":
            data["guards_code"].append(f"{code} is None")
        elif field == "operator":
            node = data["graph_module"]["graph"]["nodes"][0]
            node["target"] = "torch.serialization.os.system"
            node["inputs"] = [{"name": "command", "arg": {"as_string": f"touch {trace}"}, "kind": 1}]
        else:
            signatures = [c["signature"] for c in data["graph_module"]["module_call_graph"] if c["signature"]]
            signatures[0]["forward_arg_names"] = [f"ids={code}", f"extra={code}"]
        return json.dumps(data)

    with pytest.raises(InputError, match=match):
        load(describe(recognise(str(edited(program_file, change))))).run({})
    assert not trace.exists()


@pytest.mark.parametrize(
    ("text", "fine"),
    [
        ("L['y'].size()[0] == L['x'].size()[0]", True),
        ("L['x'].size()[1] >= 2 and not math.isnan(L['x'].size()[0])", True),
        ("L['x'].__class__", False),
        ("__import__('os').getcwd()", False),
        ("L['x'].size()[0] == 9**9**9**9", False),
        ("L['x'].size()[0] == 1 # )", False),
    ],
)
def test_a_guard_is_a_comparison(text: str, fine: bool) -> None:
    assert program_rules.is_guard(text) == fine


@pytest.mark.parametrize(
    ("target", "fine"),
    [
        ("torch.ops.aten.linear.default", True),
        ("torch.ops.aten.__and__.Tensor", True),
        ("torch.ops.higher_order.cond", True),
        ("_operator.getitem", True),
        ("math.ceil", True),
        ("torch.sym_max", True),
        ("torch.os.system", False),
        ("torch.load", False),
        ("torch.ops.load_library", False),
        ("torch.ops.aten.from_file.default", False),
        ("torch.ops.aten.save.default", False),
        ("torch.ops.aten.__class__.mro", False),
        ("torch.ops.aten.linear.op", False),
        ("_operator.attrgetter", False),
        ("#custom", False),
    ],
)
def test_operators_are_those_of_torch(target: str, fine: bool) -> None:
    assert program_rules.is_operator(target) == fine


def test_a_program_nested_too_deep_is_refused(program_file: Path) -> None:
    deep = "[" * 5000 + "]" * 5000
    with pytest.raises(InputError, match=r"not JSON|levels deep"):
        describe(recognise(str(rewritten(program_file, {"models/model.json": deep.encode()}))))
    huge = '{"a": ' + "9" * 5000 + "}"
    with pytest.raises(InputError, match="not JSON"):
        describe(recognise(str(rewritten(program_file, {"models/model.json": huge.encode()}))))


def test_what_is_no_program_is_refused(tmp_path: Path, program_file: Path) -> None:
    garbage = tmp_path / "g.pt2"
    garbage.write_bytes(b"nothing")
    with pytest.raises(InputError, match="not an exported program"):
        describe(recognise(str(garbage)))
    with pytest.raises(InputError, match="not an exported program"):  # torch's message holds the bytes
        describe(recognise(str(rewritten(program_file, {"/.data/version": b"\x86", "program/version": b"\x86"}))))
    short = tmp_path / "s.pt2"
    short.write_bytes(program_file.read_bytes()[:2000])
    with pytest.raises((InputError, UnavailableError)):
        describe(recognise(str(short)))


@pytest.mark.parametrize(
    ("text", "fine"),
    [
        ("Symbol('s11', positive=True, integer=True)", True),
        ("FloorDiv(Symbol('s0', integer=True), 2) + 1", True),
        ("2*s0 - 1", True),
        ("GreaterThan(Symbol('u0', integer=True), Integer(0))", True),
        ("open('x', 'w')", False),
        ("s0.__class__", False),
        ("Symbol('a b')", False),
        ("[s0 for s0 in (1,)]", False),
        ("Symbol(", False),
        ("s0**2 + 2**63 - 1", True),
        ("*".join(["Max(1, FloorDiv(s0 - 1, 2) + 1)"] * 60), True),
        ("Mul(Integer(12), Pow(Symbol('s50', positive=True, integer=True), Integer(2)))", True),
        ("Pow(Symbol('s50'), Pow(Integer(9), Integer(99)))", False),
        ("Pow(Integer(9), Integer(9999999))", False),
        ("9**9**9**9", False),
        ("(((9**9)**9)**9)**9**9", False),
        ("((((((2**99)**99)**99)))**99)", False),
        ("Pow(9, 10**10, True)", False),
        ("Pow(base=9, exp=10**10)", False),
        ("LShift(1, 10**10)", False),
        ("Integer('9'*10**10)", False),
        ("9" * 5000, False),
        ("(" * 2000 + "s0" + ")" * 2000, False),
        ("+".join(["s0"] * 100_000), False),
    ],
)
def test_sizes_are_arithmetic_only(text: str, fine: bool) -> None:
    assert program_rules.is_arithmetic(text) == fine
