"""The run directory and ``run.json`` as the contract has them, from a real run."""

import json

import numpy as np
import pytest
from tiny_run import convert

from accel.core.values import Measurement, from_foreign_json, sha256_file
from accel.run.batching import UNSHOWN, worthwhile
from accel.triton import manifest as manifests
from accel.triton.config import parse
from accel.triton.verify import verify

IDS = ["torch@cpu", "ort@cpu", "openvino-fp32@cpu", "openvino-fp32@cpu+1x5", "null@cpu", "trt-fp16@cuda"]
MEASUREMENT = {
    "scenario", "via", "backend", "batch", "concurrency", "threads", "shapes", "p50_ms", "p90_ms", "p95_ms", "p99_ms",
    "mean_ms", "p50_ci_ms", "throughput_per_s", "throughput_ci_per_s", "stable", "samples", "raw", "peak_rss_mib",
}  # fmt: skip


def variant(document, id):
    return next(v for v in document["variants"] if v["id"] == id)


def test_every_variant_that_was_asked_for_is_there(run):
    document, _ = run
    assert [v["id"] for v in document["variants"]] == IDS
    assert {v["id"]: v["status"] for v in document["variants"]} == {
        "torch@cpu": "ok",
        "ort@cpu": "ok",
        "openvino-fp32@cpu": "ok",
        "openvino-fp32@cpu+1x5": "ok",
        "null@cpu": "gate_failed",
        "trt-fp16@cuda": "deferred",
    }, [(v["id"], v["reason"]) for v in document["variants"]]
    assert variant(document, "trt-fp16@cuda")["fix"]


def test_fields_of_the_contract(run):
    document, _ = run
    assert document["schema"] == 1
    assert document["created"].endswith("Z")
    assert {"name", "source", "weights", "revision", "inputs", "outputs", "accuracy"} <= document["model"].keys()
    assert {"id", "cpu", "gpus", "memory_bytes", "versions"} <= document["hardware"].keys()
    assert {"export", "total"} <= document["timings_s"].keys()
    for v in document["variants"]:
        assert {"id", "target", "device", "shapes", "status", "reason", "fix", "repository", "cached"} <= v.keys()
        if v["status"] in ("ok", "gate_failed"):
            assert {"files", "build_s", "effective_precision", "versions"} <= v["artifact"].keys()
            assert {"passed", "gate", "outputs"} <= v["parity"].keys()
            for row in v["parity"]["outputs"]:
                assert {"name", "max_abs", "cosine", "sqnr_db", "exact", "agreement"} <= row.keys()
            assert v["measurements"]
            for m in v["measurements"]:
                assert m.keys() >= MEASUREMENT
    for d in document["decisions"]:
        assert {"device", "objective", "constraints", "chosen", "via", "ties", "rejected"} <= d.keys()


def test_a_winner_and_a_reason_for_everyone_else(run):
    document, _ = run
    cpu = [d for d in document["decisions"] if d["device"] == "cpu"]
    assert {d["objective"] for d in cpu} == {"latency", "throughput"}
    for decision in cpu:
        assert decision["chosen"]
        others = {r["id"]: r["reason"] for r in decision["rejected"]}
        assert set(others) | {decision["chosen"]} == {i for i in IDS if "@cpu" in i}
        assert all(others.values())


def test_a_fast_wrong_variant_cannot_win(run):
    """The null target answers zeros in no time at all."""
    document, _ = run
    null = variant(document, "null@cpu")
    assert not null["parity"]["passed"]
    assert all(d["chosen"] != "null@cpu" for d in document["decisions"])
    assert "below the gate" in null["reason"]


def test_raw_samples_are_kept_and_give_the_figures(run):
    document, out = run
    for m in variant(document, "ort@cpu")["measurements"]:
        with np.load(out / m["raw"]) as raw:
            point = f"b{m['batch']}/"
            times = np.concatenate([raw[k] for k in raw.files if k.startswith(point)])
        assert len(times) == m["samples"]
        assert times.dtype == np.int64
        assert m["mean_ms"] == pytest.approx(times.mean() / 1e6)


def test_files_are_what_the_run_says(run):
    document, out = run
    for v in document["variants"]:
        if v["artifact"]:
            for file in v["artifact"]["files"]:
                assert sha256_file(out / "variants" / v["id"] / file["path"]) == file["sha256"]
            assert (out / "variants" / v["id"] / "build.log").exists()
            assert v["target"] in (out / "variants" / v["id"] / "reproduce.sh").read_text()


def test_repositories_verify_and_best_is_plain_files(run):
    document, out = run
    for v in document["variants"]:
        if v["repository"]:
            assert [f for f in verify(out / v["repository"]) if f.severity == "error"] == []
    best = out / "best" / "cpu"
    assert [f for f in verify(best) if f.severity == "error"] == []
    assert not any(p.is_symlink() or (p.is_file() and p.stat().st_nlink > 1) for p in best.rglob("*"))


def test_a_repository_merges_what_was_measured_to_pay_and_its_manifest_says_why(run):
    document, out = run
    for v in document["variants"]:
        if v["status"] != "ok":
            continue
        root = out / v["repository"]
        manifest = manifests.read(root)
        by_shape = UNSHOWN if manifest.groups and not manifest.trims else None
        found = worthwhile([from_foreign_json(Measurement, m) for m in v["measurements"]]) or by_shape
        merges = manifest.max_batch_size > 1
        assert manifest.tuned == (found[1] if found and merges else None)
        config = parse((root / manifests.holder(root, manifest)[0] / "config.pbtxt").read_text())
        limit = found[0] if found and merges and found[0] < config.max_batch_size else 0
        assert list(config.dynamic_batching.preferred_batch_size) == [limit] * bool(limit)


def test_one_client_contract(run):
    """Same names and dtypes on every server, whatever the runtime calls them inside."""
    from tritonclient.grpc import model_config_pb2

    from accel.triton.config import parse

    document, out = run
    name = document["model"]["name"]
    seen = set()
    for v in document["variants"]:
        if v["repository"] and not v["static"]:
            config = parse((out / v["repository"] / name / "config.pbtxt").read_text())
            lead = (-1,) if config.max_batch_size else ()
            sides = (config.input, config.output)
            seen.add(tuple(tuple((t.name, t.data_type, lead + tuple(t.dims)) for t in side) for side in sides))
    assert len(seen) == 1
    assert {t[0] for t in next(iter(seen))[0]} == {"ids", "scale"}
    assert next(iter(seen))[0][0][1] == model_config_pb2.TYPE_INT32


def test_integers_are_narrowed_for_everyone(run):
    document, out = run
    integers = document["model"]["integers"]
    assert integers["level"] == "io"
    assert integers["narrowed_inputs"] == ["ids"]
    assert integers["unproved_int64"] == []
    ids = next(s for s in document["model"]["inputs"] if s["name"] == "ids")
    assert (ids["dtype"], ids["range"]) == ("int32", [0, 49])
    assert json.loads((out / "onnx" / "narrowing.json").read_text())["casts"] >= 0


def test_what_is_not_proved_to_fit_int32_cannot_pass_where_int64_wraps(factory, tmp_path):
    given = {"function": "hashing", "objective": "latency", "range": ["ids=0:2147483647"]}
    given |= {"min_shape": ["ids:1x4"], "shape": ["ids:1x4"], "max_shape": ["ids:4x4"]}
    document = convert(factory, tmp_path / "run", "torch,ort,openvino-fp32", **given)
    status = {v["id"]: v["status"] for v in document["variants"]}
    assert status == {"torch@cpu": "ok", "ort@cpu": "ok", "openvino-fp32@cpu": "gate_failed"}
    reason = variant(document, "openvino-fp32@cpu")["reason"]
    assert "not proved to fit" in reason
    assert "--allow-unproved-int64" in reason
    assert document["model"]["integers"]["unproved_int64"]


def test_the_reports_are_there(run):
    _, out = run
    assert "<html" in (out / "report.html").read_text()
    assert "ort@cpu" in (out / "report.md").read_text()


def test_again_is_the_same_without_building_or_measuring(run, factory):
    document, out = run
    again = convert(factory, out, "torch,ort,openvino-fp32,null,trt-fp16", static=True)
    assert all(v["cached"] for v in again["variants"] if v["artifact"])
    assert [d["chosen"] for d in again["decisions"]] == [d["chosen"] for d in document["decisions"]]
    assert [v["measurements"] for v in again["variants"]] == [v["measurements"] for v in document["variants"]]
    assert [json.loads(p.read_text())["created"] for p in (out / "history").iterdir()] == [document["created"]]


def test_a_target_added_later_is_measured_beside_the_finalists(factory, tmp_path):
    out = tmp_path / "run"
    convert(factory, out, "torch,openvino-fp32", objective="latency")
    later = convert(factory, out, "torch,openvino-fp32,ort", objective="latency")
    assert variant(later, "torch@cpu")["cached"] is False  # measured again, in the newcomer's session
    new = [m for m in variant(later, "ort@cpu")["measurements"] if m["scenario"] == "latency"]
    base = [m for m in variant(later, "torch@cpu")["measurements"] if m["scenario"] == "latency"]
    assert len(new) == 1
    assert len(base) == 2
    assert new[0]["session"] == base[-1]["session"] != base[0]["session"]
    anew = convert(factory, out, "torch,openvino-fp32,ort", objective="latency", remeasure=True)
    (session,) = {m["session"] for v in anew["variants"] for m in v["measurements"]}
    assert session not in {m["session"] for v in later["variants"] for m in v["measurements"]}
    built = [[v["artifact"] for v in document["variants"]] for document in (later, anew)]
    assert built[0] == built[1]
