"""The interface of graph passes: what is kept, what is refused, and that files appear whole or not at all."""

import importlib
import pkgutil
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
from narrowing_checks import save
from onnx import TensorProto, helper, numpy_helper

from accel import graph
from accel.core.errors import InputError, OutputError, StageError, UsageError
from accel.graph import passes


class Rename(ir.passes.InPlacePass):
    """Rename the graph."""

    def __init__(self, name: str) -> None:
        self.name = name

    def requires(self, model: ir.Model) -> None:
        if self.name == "refuse":
            raise UsageError("not this one", fix="choose another")
        if self.name == "broken":
            raise ValueError("broken")

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        modified = model.graph.name != self.name
        model.graph.name = self.name
        return ir.passes.PassResult(model, modified)


class Misbehave(passes.ContractPass):
    """Change what clients get."""

    def __init__(self, how: str) -> None:
        self.how = how

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        (output,) = model.graph.outputs
        if self.how == "name":
            output.name = "z"
        elif self.how == "type":
            output.dtype = ir.DataType.FLOAT16
        else:
            model.graph.outputs.append(model.graph.inputs[0])
        return ir.passes.PassResult(model, True)


def model(path: Path, *, external: bool = True) -> Path:
    given = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 300])
    made = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 300])
    path.parent.mkdir(exist_ok=True)
    constants = {"w": np.arange(300, dtype=np.float32)}
    return save(path, [helper.make_node("Add", ["x", "w"], ["y"])], [given], [made], constants, external=external)


def test_references_opset_and_ir_version_stay(tmp_path):
    source, out = model(tmp_path / "in" / "a.onnx"), tmp_path / "out" / "b.onnx"
    (result,) = passes.rewrite(source, out, Rename("other"))
    assert result.modified
    before, after = (onnx.load(str(p), load_external_data=False) for p in (source, out))
    assert after.graph.name == "other"
    before.graph.name = "other"
    after.graph.ClearField("value_info")  # onnx-ir declares the types of constants, too
    assert before == after
    assert (out.parent / "weights").read_bytes() == (source.parent / "weights").read_bytes()
    assert sorted(p.name for p in out.parent.iterdir()) == ["b.onnx", "weights"]


def test_an_unchanged_model_is_copied_byte_for_byte(tmp_path):
    source, out = model(tmp_path / "in" / "a.onnx"), tmp_path / "out" / "b.onnx"
    (result,) = passes.rewrite(source, out, Rename("g"))
    assert not result.modified
    assert out.read_bytes() == source.read_bytes()
    assert (out.parent / "weights").exists()


def test_weights_move_to_one_file(tmp_path):
    source, out = model(tmp_path / "a.onnx", external=False), tmp_path / "b.onnx"
    passes.rewrite(source, out, data="b.onnx.data")
    (tensor,) = passes.external_tensors(passes.load(out))
    assert tensor.location == "b.onnx.data"
    np.testing.assert_array_equal(tensor.numpy(), np.arange(300, dtype=np.float32))


def test_what_a_pass_refuses_reaches_the_caller_as_it_is(tmp_path):
    source, out = model(tmp_path / "a.onnx"), tmp_path / "b.onnx"
    with pytest.raises(UsageError, match="not this one"):
        passes.rewrite(source, out, Rename("refuse"))
    with pytest.raises(StageError, match="Rename failed: broken"):
        passes.rewrite(source, out, Rename("broken"))
    assert not out.exists()


def test_a_failed_check_leaves_nothing_and_foreign_data_is_not_overwritten(tmp_path):
    def check(path: Path) -> None:
        raise StageError(f"{path.suffix} is wrong")

    source, out = model(tmp_path / "in" / "a.onnx"), tmp_path / "b.onnx"
    with pytest.raises(StageError, match="is wrong"):
        passes.rewrite(source, tmp_path / "in" / "b.onnx", Rename("other"), check=check)
    assert sorted(p.name for p in source.parent.iterdir()) == ["a.onnx", "weights"]
    (tmp_path / "weights").write_bytes(b"mine")
    with pytest.raises(OutputError, match="not the external data"):
        passes.rewrite(source, out, Rename("other"))
    assert (tmp_path / "weights").read_bytes() == b"mine"
    assert not out.exists()


def test_what_cannot_be_read_is_refused(tmp_path):
    (tmp_path / "text.onnx").write_text("not a model")
    sparse = onnx.load(str(model(tmp_path / "a.onnx", external=False)))
    values = helper.make_tensor("s", TensorProto.FLOAT, [1], [2.0])
    indices = helper.make_tensor("i", TensorProto.INT64, [1], [0])
    sparse.graph.sparse_initializer.append(helper.make_sparse_tensor(values, indices, [300]))
    onnx.save(sparse, tmp_path / "sparse.onnx")
    for name in ("text", "missing", "sparse"):
        with pytest.raises(InputError):
            passes.load(tmp_path / f"{name}.onnx")


@pytest.mark.parametrize("how", ["name", "type", "another"])
def test_a_pass_that_changes_the_contract_writes_nothing(tmp_path, how):
    source, out = model(tmp_path / "a.onnx"), tmp_path / "b.onnx"
    with pytest.raises(StageError, match="Misbehave changed the model's inputs and outputs from"):
        passes.rewrite(source, out, Misbehave(how))
    assert not out.exists()


def test_every_pass_of_accel_holds_the_contract():
    for module in pkgutil.walk_packages(graph.__path__, f"{graph.__name__}."):
        importlib.import_module(module.name)
    own = [c for c in everything_below(ir.passes.PassBase) if c.__module__.startswith("accel.")]
    assert len(own) > 10
    assert [c.__name__ for c in own if not issubclass(c, passes.ContractPass)] == []


def everything_below(kind: type) -> list[type]:
    return [c for below in kind.__subclasses__() for c in (below, *everything_below(below))]


def test_constants_of_a_branch_that_a_library_left_outside_come_along(tmp_path: Path) -> None:
    """A library writes what nodes hold as attributes, those of branches too, beside its file, which is not kept."""
    weight = np.arange(300, dtype=np.float32)
    branches = {}
    for name, factor in (("then_branch", 1), ("else_branch", -1)):
        constant = helper.make_node("Constant", [], ["w"], value=numpy_helper.from_array(factor * weight, "w"))
        made = helper.make_tensor_value_info("out", TensorProto.FLOAT, ["n", 300])
        branches[name] = helper.make_graph([constant, helper.make_node("Add", ["x", "w"], ["out"])], name, [], [made])
    given = [
        helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 300]),
        helper.make_tensor_value_info("first", TensorProto.BOOL, []),
    ]
    results = [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 300])]
    source = save(tmp_path / "a.onnx", [helper.make_node("If", ["first"], ["y"], **branches)], given, results, {})
    out = tmp_path / "b.onnx"
    with passes.by_library(out) as path:
        onnx.save(
            onnx.load(str(source)),
            str(path),
            save_as_external_data=True,
            location=f"{path.name}.data",
            convert_attribute=True,
        )
        assert Path(f"{path}.data").stat().st_size >= 2 * weight.nbytes
    session = ort.InferenceSession(out, providers=["CPUExecutionProvider"])
    x = np.ones((2, 300), np.float32)
    for first, factor in ((True, 1), (False, -1)):
        (y,) = session.run(None, {"x": x, "first": np.array(first)})
        np.testing.assert_array_equal(y, x + factor * weight)
