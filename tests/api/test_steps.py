"""The steps one by one, on what a user brings: an ONNX file, a function that answers, measurements."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import accel
from accel.core.errors import SampleError, StageError, UnavailableError, UsageError
from accel.core.feeds import read_feeds
from accel.run.decide import Constraints

WEIGHT = np.random.default_rng(0).standard_normal((8, 4)).astype(np.float32)


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write an ONNX file: one product and a tanh."""
    nodes = [helper.make_node("MatMul", ["x", "w"], ["h"]), helper.make_node("Tanh", ["h"], ["y"])]
    graph = helper.make_graph(
        nodes,
        "small",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 8])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", 4])],
        [numpy_helper.from_array(WEIGHT, "w")],
    )
    path = tmp_path_factory.mktemp("onnx") / "small.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9), path)
    return path


@pytest.fixture(scope="module")
def source(file: Path, tmp_path_factory: pytest.TempPathFactory) -> accel.Step:
    rng = np.random.default_rng(1)
    feeds = [{"x": rng.standard_normal((1, 8)).astype(np.float32)} for _ in range(24)]
    return accel.describe(file, feeds, out=tmp_path_factory.mktemp("steps") / "run", threads=1, rounds=2, round_s=0.02)


@pytest.fixture(scope="module")
def artifact(source: accel.Step) -> accel.Step:
    return accel.build("ort", source)


def test_describe_says_what_the_source_is(source):
    made = source.value.source
    assert [s.name for s in made.inputs] == ["x"]
    assert made.accuracy == "proved"
    assert (source.folder / "gate.npz").is_file()


def test_export_gives_the_checked_file(source):
    exported = accel.export(source)
    assert (exported.folder / exported.value.file.path).is_file()
    assert exported.value.ops["MatMul"] == 1


def test_build_compare_emit_and_load(source, artifact):
    assert accel.compare(artifact, source).passed
    root = accel.emit(artifact, source)
    x = np.ones((2, 8), np.float32)
    with accel.load(root) as model:
        np.testing.assert_allclose(model(x).y, np.tanh(x @ WEIGHT), atol=1e-5)
        np.testing.assert_allclose(model(x=x)[0], np.tanh(x @ WEIGHT), atol=1e-5)


def test_anything_that_answers_is_held_against_the_source(source):
    assert accel.compare(lambda feed: {"y": np.tanh(feed["x"] @ WEIGHT)}, source).passed
    changed = WEIGHT.copy()
    changed[0, 0] += 0.5
    wrong = accel.compare(lambda feed: {"y": np.tanh(feed["x"] @ changed)}, source)
    assert not wrong.passed
    assert wrong.reasons


def test_a_function_is_judged_as_a_variant_is(source, artifact):
    own = accel.compare(lambda feed: {"y": np.tanh(feed["x"] @ WEIGHT)}, source)
    built = accel.compare(artifact, source)
    assert dict(own.gate) == dict(built.gate)
    assert own.notes == built.notes
    largest = max(np.abs(feed["x"]).max() for feed in read_feeds(source.folder / "gate.npz").values())

    def right_where_samples_lie(feed: Any) -> Any:
        known = np.abs(feed["x"]).max() <= largest * 1.01
        return {"y": np.tanh(feed["x"] @ WEIGHT) if known else np.zeros((len(feed["x"]), 4), np.float32)}

    assert not accel.compare(right_where_samples_lie, source).passed
    with pytest.raises(UsageError, match="did you mean int8"):
        accel.compare(right_where_samples_lie, source, precision="int9")


def test_a_file_is_optimised_by_its_path(source, file):
    feeds = list(read_feeds(source.folder / "gate.npz").values())
    with accel.optimize(
        str(file), feeds, targets="ort", objective="latency", threads=1, rounds=2, round_s=0.02, out=source.job.out
    ) as result:
        x = feeds[0]["x"]
        np.testing.assert_allclose(result.best(x).y, np.tanh(x @ WEIGHT), atol=1e-5)
        np.testing.assert_allclose(result.best(x=x)["y"], np.tanh(x @ WEIGHT), atol=1e-5)
        # as it was measured, whatever the machine has
        assert result.best._session._session.get_session_options().intra_op_num_threads == 1


def test_measurements_decide_wherever_they_come_from(source, artifact):
    points = accel.measure([artifact, accel.build("openvino-fp32", source)], source)
    assert set(points) == {"ort@cpu", "openvino-fp32@cpu"}
    assert len({m.session for own in points.values() for m in own}) == 1
    decision = accel.decide(points, baseline="ort@cpu")
    assert decision.chosen in points
    never = accel.decide(points, constraints=Constraints(max_p99_ms=1e-9))
    assert never.chosen is None
    assert {lost.id for lost in never.rejected} == set(points)


def test_a_step_that_cannot_be_says_why(source):
    with pytest.raises(UsageError, match="did you mean openvino"):
        accel.build("openvno", source)
    with pytest.raises(UsageError, match="name one"):
        accel.build("cpu", source)
    with pytest.raises(UnavailableError, match="cannot be built here"):
        accel.build("trt-fp16", source)


def test_a_module_in_memory_is_no_name(file):
    import torch

    with pytest.raises(UsageError, match=r"this is Linear") as raised:
        accel.recognise(torch.nn.Linear(2, 2))
    assert "accel.optimize" in str(raised.value)
    assert accel.recognise(file).kind == "onnx"


def test_samples_of_a_file_must_name_its_inputs(file, tmp_path):
    with pytest.raises(SampleError, match=r"the model takes \['x'\]") as raised:
        accel.describe(file, [{"z": np.ones((1, 8), np.float32)}], out=tmp_path / "run")
    assert "{'x': array}" in str(raised.value)


def test_the_job_of_python_is_that_of_the_command(file):
    from accel.core import hardware

    assert accel.Job(source=str(file), targets="ort").threads == hardware.cpu_threads()


def test_dir_shows_every_public_name():
    assert set(accel.__all__) <= set(dir(accel))


def test_a_source_that_cannot_run_is_accels_error(tmp_path):
    import torch

    class Bad(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            raise ValueError("this forward raises")

    with pytest.raises(StageError, match="this forward raises"):
        accel.describe(Bad(), [torch.ones(1, 3)], out=tmp_path / "run")
