"""The objective traffic, end to end: requests of their own lengths are proved, measured, decided on and shown."""

import json
import shutil
from collections import Counter

import numpy as np
import pytest
from tiny_run import convert

from accel.core.buckets import buckets, measured_cost
from accel.core.errors import SampleError, UsageError
from accel.core.feeds import read_feeds
from accel.core.values import Measurement, RequestTime, ShapeRange, Target, Variant, from_foreign_json, from_json
from accel.exporters import describe, traffic
from accel.exporters.samples import make_samples
from accel.run import group_check, points
from accel.run.batching import UNSHOWN, worthwhile
from accel.run.job import Job
from accel.run.stages import Stages
from accel.run.tasks import Described
from accel.triton import manifest as manifests
from accel.triton.config import parse
from accel.triton.verify import verify

FACTORY = '''
import numpy as np
import torch

class Attending(torch.nn.Module):
    """One head of attention over what the mask shows; a vector for each token and one for the text."""

    hides = True

    def __init__(self):
        super().__init__()
        self.embed = torch.nn.Embedding(50, 16)
        self.mix = torch.nn.Linear(16, 48)

    def forward(self, input_ids, attention_mask):
        query, key, value = self.mix(self.embed(input_ids)).chunk(3, dim=-1)
        mask = attention_mask.to(query.dtype)
        scores = query @ key.transpose(1, 2) / 4
        if self.hides:
            scores = scores + (1.0 - mask)[:, None, :] * -1e4
        hidden = torch.softmax(scores, dim=-1) @ value
        pooled = (hidden * mask[..., None]).sum(1) / mask.sum(1, keepdim=True).clamp(min=1)
        return {"hidden": hidden, "pooled": pooled}

class Seeing(Attending):
    hides = False

class Placed(Attending):
    """Of whose rows each may hold several texts: positions from a table, and what is pooled is of the first."""

    def __init__(self):
        super().__init__()
        self.places = torch.nn.Embedding(32, 16)

    def forward(self, input_ids, attention_mask):
        hidden = self.embed(input_ids) + self.places(torch.arange(input_ids.shape[1]))
        query, key, value = self.mix(hidden).chunk(3, dim=-1)
        hide = (1.0 - attention_mask.to(query.dtype))[:, None, :] * -1e4
        hidden = torch.softmax(query @ key.transpose(1, 2) / 4 + hide, dim=-1) @ value
        return {"hidden": hidden, "pooled": hidden[:, 0]}

class Largest(Attending):
    """Of whose rows each may hold one text: the largest of a row is that of all its texts."""

    def forward(self, input_ids, attention_mask):
        hidden = super().forward(input_ids, attention_mask)["hidden"]
        shown = hidden + (1.0 - attention_mask.to(hidden.dtype))[..., None] * -1e4
        return {"hidden": hidden, "pooled": shown.amax(1)}

def _feeds():
    rng = np.random.default_rng(0)
    for _ in range(400):
        n = int(rng.integers(2, 21))
        yield {"input_ids": rng.integers(1, 50, (1, n)), "attention_mask": np.ones((1, n), np.int64)}

def build():
    torch.manual_seed(0)
    return Attending(), list(_feeds())

def seeing():
    torch.manual_seed(0)
    return Seeing(), list(_feeds())

def largest():
    torch.manual_seed(0)
    return Largest(), list(_feeds())

def placed():
    torch.manual_seed(0)
    return Placed(), list(_feeds())
'''
PICTURES = """
import numpy as np
import torch

def build():
    torch.manual_seed(0)
    rng = np.random.default_rng(0)
    shapes = [(16, 16), (24, 16), (16, 24)]
    layers = torch.nn.Conv2d(3, 8, 3, padding=1), torch.nn.ReLU(), torch.nn.Conv2d(8, 1, 1)
    return torch.nn.Sequential(*layers), [
        {"input": rng.standard_normal((1, 3, *shapes[i % 3])).astype(np.float32)} for i in range(150)
    ]
"""
SHAPES = {
    "min_shape": ["input_ids:1x1,attention_mask:1x1"],
    "shape": ["input_ids:1x32,attention_mask:1x32"],
    "max_shape": ["input_ids:8x32,attention_mask:8x32"],
    "range": ["input_ids=0:49"],
}


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    file = tmp_path_factory.mktemp("source") / "attending.py"
    file.write_text(FACTORY)
    return file


@pytest.fixture(scope="module")
def out(tmp_path_factory):
    return tmp_path_factory.mktemp("runs") / "attending"


@pytest.fixture(scope="module")
def run(source, out):
    return convert(source, out, "openvino-fp32,ort,null", **SHAPES, objective=["traffic"], static=True)


def rows(run):
    return {row["id"]: row for row in run["variants"]}


def test_every_variant_answers_the_same_requests_in_groups_of_each_size(run):
    dynamic = {id: row["measurements"] for id, row in rows(run).items() if not row["static"]}
    assert set(dynamic) == {"openvino-fp32@cpu", "ort@cpu", "null@cpu"}
    for timed in dynamic.values():
        assert [(p["scenario"], p["batch"]) for p in timed] == [("traffic", 1), ("traffic", 2), ("traffic", 8)]
        assert {p["traffic"]["requests"] for p in timed} == {traffic.REQUESTS}
        assert len({p["traffic"]["tokens"] for p in timed}) == 1  # the same requests, however grouped
        assert all(p["traffic"]["places"] >= p["traffic"]["tokens"] for p in timed)
        assert all(p["shapes"]["input_ids"][1] % traffic.STEP == 0 for p in timed)
    alone, *_, grouped = dynamic["ort@cpu"]
    assert grouped["throughput_per_s"] > alone["throughput_per_s"]
    counted = [part["requests"] for part in grouped["traffic"]["by_length"]]
    assert sum(counted) == traffic.REQUESTS
    assert sorted(p["length"] for p in grouped["traffic"]["by_length"]) == [
        p["length"] for p in grouped["traffic"]["by_length"]
    ]


def test_repositories_pad_to_the_lengths_that_cost_least_as_measured(run, out):
    for id in ("openvino-fp32@cpu", "ort@cpu"):
        best = max(rows(run)[id]["measurements"], key=lambda p: p["throughput_per_s"])
        times = best["traffic"]["request_times"]
        assert sum(time["requests"] for time in times) == traffic.REQUESTS
        assert [time["length"] for time in times] == sorted({time["length"] for time in times})
        assert all(time["ms"] > 0 for time in times)
        (inputs,) = out.glob(".store/source-*/coverage.npz")
        alone = [f for n, f in read_feeds(inputs).items() if traffic.point(n) == "t1"]
        seen = Counter(-(-int(feed["attention_mask"].sum()) // traffic.STEP) * traffic.STEP for feed in alone)
        cost = measured_cost([(time["length"], time["requests"], time["ms"]) for time in times])
        grouping = manifests.read(out / "repositories" / id).grouping
        assert grouping.usual == buckets(seen, cost, traffic.SHAPES)
        assert grouping.compared > 0


def test_before_a_native_model_stands_one_that_groups_by_these_lengths(run, out):
    """Of what the Python backend serves in any case there is none: that groups itself."""
    assert {id: row["routed"] for id, row in rows(run).items() if "routed" in row} == {
        "ort@cpu": "repositories/ort@cpu.routed"
    }
    native, made = (manifests.read(out / "repositories" / name) for name in ("ort@cpu", "ort@cpu.routed"))
    assert made.grouping == native.grouping
    assert made.models == (native.models[0], made.core)
    assert made.backend == native.backend
    assert [f for f in verify(out / "repositories" / "ort@cpu.routed") if f.severity == "error"] == []


@pytest.mark.parametrize("model", ["placed", "largest"])
def test_texts_share_rows_of_what_is_chosen_where_that_is_proved_and_faster(source, tmp_path, model):
    """Which of both is faster is a matter of the machine; a model that cannot says why."""
    document = convert(source, tmp_path / "run", "openvino-fp32", **SHAPES, objective=["traffic"], function=model)
    (row,) = document["variants"]
    root = tmp_path / "run" / row["repository"]
    grouping = manifests.read(root).grouping
    assert grouping.compared > 0
    page, text = ((tmp_path / "run" / name).read_text() for name in ("report.html", "report.md"))
    assert f"As served by the Python backend, {row['id']}: " in page
    assert "As served by the Python backend" in text
    if model == "largest":
        assert grouping.unpacked.startswith("no row of it can hold several texts")
        assert row["shares"] == f"in groups by length: {grouping.unpacked}"
    elif grouping.packing is None:
        assert "of the requests that groups by length do" in grouping.unpacked
    else:
        assert grouping.packing.compared > 0
        assert grouping.packing.gain[1] > 1.03
        assert row["shares"].startswith(f"texts share rows of {grouping.packing.width} positions: ")
    assert [f for f in verify(root) if f.severity == "error"] == []


def test_other_costs_choose_other_lengths(run, out):
    """Where calls take as long whatever their length, all are padded to the longest."""
    (described,) = out.glob(".store/source-*")
    value = from_json(Described, json.loads((described / "value.json").read_text())["value"])
    lengths = group_check.lengths(value, described, "seq", "attention_mask").usual
    assert lengths == (8, 16, 24)
    flat = [RequestTime(n, 1, 2.0) for n in lengths]
    found = group_check.lengths(value, described, "seq", "attention_mask", flat)
    assert found.usual == (24,)
    assert set(found.lengths) == {8, 16, 24, 32}  # the powers of two, and what was chosen


def test_lengths_chosen_anew_are_proved_and_emitted(source, out, run, tmp_path, monkeypatch):
    again = shutil.copytree(out, tmp_path / "attending", symlinks=True)
    regrouped = Stages.regrouped

    def at_one_cost(self, built, proof, described, times, **how):
        return regrouped(self, built, proof, described, tuple(RequestTime(t.length, 1, 2.0) for t in times), **how)

    monkeypatch.setattr(Stages, "regrouped", at_one_cost)
    found = convert(source, again, "openvino-fp32,ort,null", **SHAPES, objective=["traffic"], static=True)
    assert found["decisions"][0]["chosen"] is not None
    for id in ("openvino-fp32@cpu", "ort@cpu"):
        grouping = manifests.read(again / "repositories" / id).grouping
        assert grouping.usual == (24,)
        assert grouping.compared > 0
        assert grouping.gate == manifests.read(out / "repositories" / id).grouping.gate


def test_a_static_build_competes_padded_to_its_shape(run):
    static = rows(run)["openvino-fp32@cpu+1x32"]
    assert static["status"] == "ok"
    (point,) = static["measurements"]
    grouped = rows(run)["ort@cpu"]["measurements"][0]["traffic"]
    assert point["shapes"]["input_ids"] == [1, 32]
    assert point["traffic"]["shapes"] == 1
    assert point["traffic"]["places"] == 32 * traffic.REQUESTS
    assert point["traffic"]["tokens"] == grouped["tokens"]
    assert {m["session"] for r in rows(run).values() for m in r["measurements"]} == {point["session"]}


def test_what_is_timed_was_proved(run, out):
    assert [row["status"] for row in run["variants"]] == ["ok", "ok", "ok", "gate_failed"]
    (reference,) = out.glob(".store/reference-*/reference.npz")
    answered = {key.partition("/")[0] for key in np.load(reference).files}
    timed = {name for name in answered if traffic.point(name)}
    assert {traffic.point(name) for name in timed} == {"t1", "t2", "t8"}
    groups = len([name for name in timed if traffic.point(name) == "t8"])
    assert groups < 20
    with np.load(out / rows(run)["ort@cpu"]["measurements"][0]["raw"]) as raw:
        rounds = [key for key in raw.files if key.startswith("t8/")]
        assert all(len(raw[key]) % groups == 0 for key in rounds)  # whole passes


def test_it_is_decided_on_and_shown(run, out):
    (decision,) = run["decisions"]
    assert (decision["objective"], decision["verdict"] in ("decided", "undecided")) == ("traffic", True)
    assert "requests/s of their own lengths" in decision["reason"]
    assert "tokens/s" in decision["reason"]
    assert decision["chosen"] in ("ort@cpu", "openvino-fp32@cpu+1x32", "openvino-fp32@cpu")
    report = (out / "report.md").read_text()
    assert "## Requests of their own lengths" in report
    assert report.count("| `ort@cpu` | ") >= 3
    assert "Requests of their own lengths" in (out / "report.html").read_text()
    assert run["settings"]["traffic"] == "the samples"
    assert "64 requests of the traffic" in run["model"]["samples"]["origin"]


def test_recorded_lengths_are_part_of_the_samples(source, tmp_path):
    file = tmp_path / "log.jsonl"
    file.write_text("".join(json.dumps({"length": n}) + "\n" for n in [4] * 30 + [30]))
    job = Job.model_validate({"source": f"{source}:build", "targets": "ort", "traffic": file, **SHAPES})
    assert job.objectives == ("latency", "throughput", "traffic")
    described = describe(job.request)
    made = make_samples(described, job.request, tmp_path / "samples")
    assert "64 requests of the traffic, of sizes as recorded in log.jsonl" in made.origin
    groups = read_feeds(tmp_path / "samples" / made.coverage.path)
    alone = [feed for name, feed in groups.items() if traffic.point(name) == "t1"]
    assert sum(int(feed["attention_mask"].sum()) for feed in alone) == 62 * 4 + 2 * 30
    file.write_text("7")
    again = Job.model_validate({"source": f"{source}:build", "targets": "ort", "traffic": file, **SHAPES}).request
    assert make_samples(described, again, tmp_path / "again").sha256 != made.sha256


def test_a_model_that_sees_its_padding_is_refused(source, tmp_path):
    with pytest.raises(SampleError, match="answers requests otherwise when they are grouped by length than alone"):
        convert(source, tmp_path / "run", "ort", function="seeing", **SHAPES, objective=["traffic"])


def test_pictures_of_several_sizes_are_grouped_by_shape_as_far_as_that_was_measured_to_pay(tmp_path):
    (tmp_path / "seeing.py").write_text(PICTURES)
    shapes = {
        "min_shape": ["input:1x3x8x8"],
        "shape": ["input:1x3x16x16"],
        "max_shape": ["input:4x3x24x24"],
        "range": [],
    }
    out = tmp_path / "run"
    run = convert(tmp_path / "seeing.py", out, "openvino-fp32", **shapes, objective=["traffic"])
    (row,) = run["variants"]
    manifest = manifests.read(out / row["repository"])
    sizes = {(16, 16), (24, 16), (16, 24)}
    assert (manifest.groups, manifest.trims) == (True, False)
    assert {tuple(shape.values()) for shape in manifest.grouping.shapes} == sizes
    assert manifest.grouping.found["sqnr_db"] is None or manifest.grouping.found["sqnr_db"] >= 80
    timed = [from_foreign_json(Measurement, point) for point in row["measurements"]]
    assert {point.batch for point in timed} == {1, 4}
    found = worthwhile(timed, scenario="traffic") or UNSHOWN
    assert manifest.tuned == found[1]
    config = parse((out / row["repository"] / manifest.models[0] / "config.pbtxt").read_text())
    assert config.default_model_filename == "grouped.py"
    limit = [found[0]] if 0 < found[0] < 4 else []
    assert list(config.dynamic_batching.preferred_batch_size) == limit
    assert {(n, 3, *shape) for n in (1, 4) for shape in sizes} <= {
        (sample.batch_size, *sample.inputs["input"].dims) for sample in config.model_warmup
    }


def test_flags_that_contradict_each_other_are_refused(tmp_path):
    given = {"source": "minilm", "targets": "ort"}
    with pytest.raises(UsageError, match="measured in process"):
        Job.model_validate(given | {"objective": "latency,traffic", "bench": "triton"})
    with pytest.raises(UsageError, match="--traffic is for the objective traffic"):
        Job.model_validate(given | {"objective": "latency", "traffic": tmp_path / "log.jsonl"})
    assert Job.model_validate(given | {"quick": True, "traffic": tmp_path / "l"}).objectives == ("latency", "traffic")


def test_a_static_build_that_does_not_hold_every_request_is_not_timed(source, out, run):
    """Its points are looked up in the stored feeds of the run: a shape of 16 tokens, and requests of up to 20."""
    stored = [json.loads(file.read_text())["value"] for file in out.glob(".store/source-*/value.json")]
    described = from_json(Described, stored[0]).source
    (reference,) = out.glob(".store/reference-*/reference.npz")
    (inputs,) = out.glob(".store/source-*/coverage.npz")
    answers = read_feeds(reference)
    pairs = {n: points.Pair(f, answers[n]) for n, f in read_feeds(inputs).items() if traffic.point(n)}

    def timed(tokens):
        profile = {n: ShapeRange(*((2, tokens),) * 3) for n in described.profile}
        return points.points(Variant(Target("ort", "cpu"), profile, static=f"2x{tokens}"), described, "traffic", pairs)

    assert timed(16) == {}
    ((point, feeds),) = timed(24).items()
    assert point.batch == 2
    assert {value.inputs["input_ids"].shape for value in feeds.values()} == {(2, 24)}
    assert {value.outputs["hidden"].shape for value in feeds.values()} == {(2, 24, 16)}
    assert sum(len(value.outputs["pooled"]) for value in feeds.values()) == traffic.REQUESTS
