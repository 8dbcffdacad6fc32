"""Variants are proved on part of the feeds first; what is chosen, ties or is required holds on all of them."""

import json

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from tiny_run import convert

from accel import pipeline
from accel.core import document
from accel.core.errors import InputError
from accel.exporters import coverage
from accel.run.job import Job
from accel.run.stages import FILES, Answered, Stage, Stages
from accel.run.tasks import proof_feeds
from accel.triton.tune.measured import repositories
from accel.triton.verify import verify

SHAPES = {"min_shape": ["ids:1x1"], "shape": ["ids:1x5"], "max_shape": ["ids:4x9"], "range": ["ids=0:1999"]}
TARGETS = "ort,openvino-fp32"  # for a model of this size ONNX Runtime takes a fraction of the time


@pytest.fixture(scope="module")
def wide(tmp_path_factory):
    """A model of 2,000 tokens, of which a first proof asks some."""
    rng = np.random.default_rng(0)
    table, mix = rng.random((2000, 16), dtype=np.float32), rng.random((16, 16), dtype=np.float32)
    nodes = [helper.make_node("Gather", ["table", "ids"], ["rows"]), helper.make_node("MatMul", ["rows", "mix"], ["y"])]
    ids = helper.make_tensor_value_info("ids", TensorProto.INT64, ["batch", "seq"])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", "seq", 16])
    weights = [numpy_helper.from_array(table, "table"), numpy_helper.from_array(mix, "mix")]
    graph = helper.make_graph(nodes, "wide", [ids], [y], weights)
    file = tmp_path_factory.mktemp("wide") / "wide.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10), file)
    return file


@pytest.fixture(scope="module")
def out(tmp_path_factory):
    return tmp_path_factory.mktemp("first") / "wide"


@pytest.fixture(autouse=True)
def staged(monkeypatch):
    """Let no reference be too short for it."""
    monkeypatch.setattr(pipeline, "STAGED_AFTER_S", 0.0)


def converted(wide, out, **given):
    run = convert(wide, out, TARGETS, **{**SHAPES, "source": str(wide), "objective": "latency", **given})
    return run, {v["id"]: v for v in run["variants"]}


def feeds(row):
    return row["parity"]["feeds"], row["parity"]["of"]


def asked_first(described):
    """Return the tokens that a first proof of this model asks."""
    chosen = coverage.first(proof_feeds(described.value.samples, described.folder), "fp32")
    return set(np.concatenate([feed["ids"].ravel() for feed in chosen.values()]).tolist())


def plant(monkeypatch, *, seen):
    """Let ONNX Runtime's build be wrong in one token of 2,000 that a first proof asks, or not."""
    build = Stages.build

    def planted(self, variant, described, *args, **given):
        stage = build(self, variant, described, *args, **given)
        if variant.target.name == "ort":
            first = asked_first(described)
            change(stage.folder / FILES, next(t for t in range(2000) if (t in first) == seen))
        return stage

    monkeypatch.setattr(Stages, "build", planted)


def change(folder, token):
    """Add to a token's row of the table, wherever the build keeps it."""
    (file,) = folder.glob("*.onnx")
    row = numpy_helper.to_array(next(i for i in onnx.load(file).graph.initializer if list(i.dims) == [2000, 16]))[token]
    (holds,) = (f for f in folder.iterdir() if row.tobytes() in f.read_bytes())
    changed = holds.read_bytes().replace(row.tobytes(), (row + 0.5).tobytes())
    holds.unlink()
    holds.write_bytes(changed)


def test_losers_say_what_they_were_proved_on_and_exhaustive_proves_all(wide, out):
    run, rows = converted(wide, out)
    (decision,) = run["decisions"]
    assert (decision["chosen"], [r["id"] for r in decision["rejected"]]) == ("ort@cpu", ["openvino-fp32@cpu"])
    asked, of = feeds(rows["openvino-fp32@cpu"])
    assert asked < of / 2
    assert feeds(rows["ort@cpu"]) == (of, of)
    said = f"proved on {asked} of {of} feeds"
    held = {id: json.loads((out / "repositories" / id / "manifest.json").read_text())["parity"] for id in rows}
    assert [any(said in note for note in held[id]["notes"]) for id in ("openvino-fp32@cpu", "ort@cpu")] == [True, False]
    assert said in (out / "report.md").read_text()
    assert document.read(out).variants[1].parity.of == of
    root = out / "repositories/openvino-fp32@cpu"  # taken by name, it could win elsewhere
    with pytest.raises(InputError, match=f"openvino-fp32@cpu was proved on {asked} of {of} feeds only"):
        list(repositories(root, None))
    assert [f.why for f in verify(root) if f.field == "parity"] == [f"openvino-fp32@cpu was {said} only"]
    assert [f for f in verify(out / "repositories/ort@cpu") if f.field == "parity"] == []

    run, rows = converted(wide, out, exhaustive=True)
    assert {feeds(row) for row in rows.values()} == {(of, of)}
    assert [s["worker"] for s in run["timeline"] if s["task"] == "answers"] == [
        "openvino-fp32@cpu"
    ]  # the other one is kept

    _, rows = converted(wide, out)  # what is proved on all feeds stays so
    assert {feeds(row) for row in rows.values()} == {(of, of)}


def test_an_error_outside_the_first_feeds_is_not_chosen(wide, out, monkeypatch):
    plant(monkeypatch, seen=False)
    run, rows = converted(wide, out, gate=["fp32=79"])  # a proof that nothing is stored for
    lost = rows["ort@cpu"]
    assert lost["status"] == "gate_failed", lost["reason"]
    assert "at feed 'values " in lost["reason"]
    assert lost["measurements"]  # it had passed, was timed, and led
    assert feeds(lost)[0] == feeds(lost)[1]
    (decision,) = run["decisions"]
    assert decision["chosen"] == "openvino-fp32@cpu"
    assert feeds(rows["openvino-fp32@cpu"])[0] == feeds(rows["openvino-fp32@cpu"])[1]
    assert json.loads((out / "best" / "cpu" / "manifest.json").read_text())["variant"] == "openvino-fp32@cpu"


def test_an_error_at_the_first_feeds_ends_the_proof(wide, out, monkeypatch):
    plant(monkeypatch, seen=True)
    run, rows = converted(wide, out, gate=["fp32=78"])
    lost = rows["ort@cpu"]
    assert lost["status"] == "gate_failed"
    assert feeds(lost)[0] < feeds(lost)[1]
    assert [s["worker"] for s in run["timeline"] if s["task"] == "answers"].count("ort@cpu") == 1
    assert [d["chosen"] for d in run["decisions"]] == ["openvino-fp32@cpu"]


def test_what_is_required_is_proved_on_all_feeds(wide, out):
    _, rows = converted(wide, out, require="openvino-fp32", gate=["fp32=70"])
    assert feeds(rows["openvino-fp32@cpu"])[0] == feeds(rows["openvino-fp32@cpu"])[1]


@pytest.mark.parametrize(
    ("given", "cpu_s"), [({"exhaustive": True}, 9), ({"bench": "none"}, 9), ({"bench": "triton"}, 9), ({}, 0)]
)
def test_what_no_choice_follows_or_is_served_is_proved_on_all_feeds(given, cpu_s, tmp_path):
    def staged(given, cpu_s):
        answered = Stage(Answered("reference.npz", 9, cpu_s), tmp_path, "", cached=False)
        return pipeline._in_stages(Job.model_validate({"source": "minilm", "targets": "ort"} | given), answered)

    assert staged({}, 9)
    assert not staged(given, cpu_s)
