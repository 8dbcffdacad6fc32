"""The intervals always contain what a run observes, and narrowing changes no bit: on random graphs, and by hand."""

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st
from integer_graphs import IntegerGraph, feeds, graphs
from narrowing_checks import assert_equal_models, facts_by_name, run, session

from accel.core.values import ShapeRange
from accel.graph.narrow import narrow_file
from accel.graph.narrow.analysis import analyse
from accel.graph.narrow.facts import INT32, Fact

SHAPES = {"x": ShapeRange((1, 4), (2, 4), (5, 4)), "y": ShapeRange((1, 4), (2, 4), (5, 4))}
RANDOM = settings(
    max_examples=400, derandomize=True, deadline=None, database=None, suppress_health_check=list(HealthCheck)
)


def _shapes(g: IntegerGraph) -> dict[str, ShapeRange]:
    return {name: SHAPES[name] for name in g.ranges}


def _contains(name: str, fact: Fact, value: np.ndarray) -> None:
    assert fact.dims is None or len(fact.dims) == value.ndim, f"{name}: rank {value.ndim}, {fact}"
    for size, (lo, hi) in zip(value.shape, fact.dims or (), strict=False):
        assert lo <= size <= hi, f"{name}: shape {value.shape}, {fact}"
    if fact.bounds is not None and value.size:
        low, high = value.min().item(), value.max().item()
        assert fact.bounds[0] <= low, f"{name}: {low} below {fact}"
        assert high <= fact.bounds[1], f"{name}: {high} above {fact}"
    if fact.items is not None:
        assert len(fact.items) == value.size, f"{name}: {value.size} items, {fact}"
        for (lo, hi), item in zip(fact.items, value.reshape(-1).tolist(), strict=True):
            assert lo <= item <= hi, f"{name}: {item}, {fact}"


@pytest.mark.slow
@RANDOM
@given(g=graphs(), seed=st.integers(0, 2**16))
def test_intervals_contain_what_runs_observe(
    g: IntegerGraph, seed: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    bare = g.model([g.full(g.wide[-1])])
    facts = facts_by_name(analyse(ir.from_proto(bare), ranges=g.ranges, shapes=_shapes(g)))
    model = g.model([])
    for node in g.nodes:
        model.graph.output.extend(onnx.ValueInfoProto(name=n) for n in node.output)
    path = tmp_path_factory.mktemp("observe") / "all.onnx"
    onnx.save(model, path)
    opened = session(path)
    for feed in feeds(g, seed):
        for name, value in run(opened, feed).items():
            _contains(name, facts[name], value)


@pytest.mark.slow
@RANDOM
@given(g=graphs(), seed=st.integers(0, 2**16), level=st.sampled_from(["io", "interior"]))
def test_narrowed_random_graphs_are_bitwise_equal(
    g: IntegerGraph, seed: int, level: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("narrow")
    outputs = [g.full(name) for name in dict.fromkeys([g.wide[-1], g.wide[-2], g.wide[len(g.wide) // 2]])]
    onnx.save(g.model(outputs), folder / "a.onnx")
    report = narrow_file(folder / "a.onnx", folder / "b.onnx", level=level, ranges=g.ranges, shapes=_shapes(g))
    assert_equal_models(folder / "a.onnx", folder / "b.onnx", feeds(g, seed))
    for name, (lo, hi) in g.ranges.items():
        assert (name in report.narrowed_inputs) == (INT32[0] <= lo and hi <= INT32[1])
