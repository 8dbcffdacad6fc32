"""Run a model and its narrowed copy side by side, and compare every bit."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
from onnx import NodeProto, helper, numpy_helper

from accel.graph.narrow import NarrowReport, ValueReport
from accel.graph.narrow.analysis import Analysis
from accel.graph.narrow.facts import Fact

Feed = Mapping[str, np.ndarray]
_DTYPES = {"tensor(int64)": np.int64, "tensor(int32)": np.int32}


def session(path: Path) -> onnxruntime.InferenceSession:
    """Open a model in ONNX Runtime with every optimisation off."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def run(opened: onnxruntime.InferenceSession, feed: Feed) -> dict[str, np.ndarray]:
    """Run a session, casting integers to the type it takes; every value must survive the cast."""
    fitted = {}
    for value in opened.get_inputs():
        array = feed[value.name]
        wanted = _DTYPES.get(value.type)
        if wanted is not None and array.dtype != wanted:
            assert np.array_equal(array.astype(wanted).astype(array.dtype), array), f"{value.name} does not fit"
            array = array.astype(wanted)
        fitted[value.name] = array
    names = [o.name for o in opened.get_outputs()]
    return dict(zip(names, opened.run(names, fitted), strict=True))


def assert_same(name: str, before: object, after: object) -> None:
    """Require equal shapes and equal bits; int32 may stand where int64 stood."""
    if isinstance(before, list):
        assert isinstance(after, list)
        assert len(before) == len(after)
        for i, (a, b) in enumerate(zip(before, after, strict=True)):
            assert_same(f"{name}[{i}]", a, b)
        return
    if not isinstance(before, np.ndarray) or not isinstance(after, np.ndarray):
        assert before == after, name
        return
    assert before.shape == after.shape, f"{name}: {before.shape} became {after.shape}"
    if before.dtype == np.int64 and after.dtype == np.int32:
        after = after.astype(np.int64)
    assert before.dtype == after.dtype, f"{name}: {before.dtype} became {after.dtype}"
    if before.dtype.kind == "O":
        assert before.tolist() == after.tolist(), name
    else:
        assert before.tobytes() == after.tobytes(), f"{name} differs"


def assert_equal_models(source: Path, narrowed: Path, feeds: list[Feed]) -> None:
    """Require bitwise equal outputs of both files for every feed."""
    one, other = session(source), session(narrowed)
    for feed in feeds:
        before, after = run(one, feed), run(other, feed)
        assert before.keys() == after.keys()
        for name in before:
            assert_same(name, before[name], after[name])


def save(
    path: Path,
    nodes: list[NodeProto],
    inputs: list[onnx.ValueInfoProto],
    outputs: list[onnx.ValueInfoProto],
    constants: dict[str, object] | None = None,
    *,
    domains: tuple[str, ...] = (),
    value_info: list[onnx.ValueInfoProto] | None = None,
    external: bool = False,
    opset: int = 18,
) -> Path:
    """Write a model of these nodes; constants become initialisers, Python integers int64."""
    held = [numpy_helper.from_array(np.asarray(v), n) for n, v in (constants or {}).items()]
    graph = helper.make_graph(nodes, "g", inputs, outputs, held, value_info=value_info or [])
    imports = [helper.make_opsetid("", opset), *(helper.make_opsetid(d, 1) for d in domains)]
    model = helper.make_model(graph, opset_imports=imports, ir_version=10)
    onnx.save(model, path, save_as_external_data=external, location="weights", size_threshold=0)
    return path


def facts_by_name(analysis: Analysis) -> dict[str, Fact]:
    """Return what the analysis knows of each value of the main graph."""
    return {str(value.name): fact for value, fact in analysis.facts.items()}


def by_name(report: NarrowReport) -> dict[str, ValueReport]:
    """Return what the report says of each value."""
    return {v.name: v for v in report.values}
