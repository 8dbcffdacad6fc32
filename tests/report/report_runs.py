"""Realistic runs for the report's tests, built from the real dataclasses, as ``run.json`` holds them."""

import math
from collections.abc import Mapping
from typing import Any

from accel.core import document
from accel.core.hardware import Cpu, Gpu
from accel.core.values import Decision, Measurement, OutputParity, Parity, ServerSplit, to_json
from accel.report import from_run
from accel.report.view import RunView

VERSIONS = {"torch": "2.13.0", "onnxruntime": "1.31.1", "openvino": "2026.4.1", "nncf": "3.4.0"}
REASON_GPU = "no NVIDIA GPU on this machine: TensorRT can neither build nor parse here"


def run_view(run: Mapping[str, Any]) -> RunView:
    """What a report shows of the JSON of a run."""
    return from_run.run_view(document.parse(run))


def rounds(mean_ms: float) -> tuple[float, ...]:
    """Eight rounds that drift by the same share in every variant."""
    return tuple(round(mean_ms * (1 + 0.01 * math.sin(i)), 6) for i in range(8))


def latency(p50_ms: float, **changes: Any) -> Measurement:
    """One latency point at batch 1."""
    values: dict[str, Any] = {
        "scenario": "latency",
        "via": "inprocess",
        "backend": "inprocess",
        "batch": 1,
        "concurrency": 1,
        "threads": 2,
        "shapes": {"input_ids": (1, 128), "attention_mask": (1, 128)},
        "p50_ms": p50_ms,
        "p90_ms": p50_ms * 1.03,
        "p95_ms": p50_ms * 1.05,
        "p99_ms": p50_ms * 1.11 if p50_ms < 130 else None,
        "mean_ms": p50_ms * 1.01,
        "p50_ci_ms": (p50_ms * 0.99, p50_ms * 1.01),
        "throughput_per_s": 1000 / p50_ms,
        "throughput_ci_per_s": (990 / p50_ms, 1010 / p50_ms),
        "stable": True,
        "samples": int(16000 / p50_ms),
        "raw": "raw/latency.npy",
        "peak_rss_mib": 512.4,
        "load_ms": 840.0,
        "first_ms": p50_ms * 3,
        "effective_precision": "f32",
        "rounds_ms": rounds(p50_ms * 1.01),
        "session": "s1",
    }
    return Measurement(**(values | changes))


def throughput(batch: int, per_s: float, **changes: Any) -> Measurement:
    """One throughput point."""
    ms = 1000 * batch / per_s
    values: dict[str, Any] = {
        "scenario": "throughput",
        "batch": batch,
        "concurrency": 2,
        "throughput_per_s": per_s,
        "throughput_ci_per_s": (per_s * 0.98, per_s * 1.02),
        "rounds_ms": rounds(1000 / per_s),
        "session": "s2",
    }
    return latency(ms, **(values | changes))


def parity(sqnr_db: float | None, gate: float, *, outputs: tuple[str, ...] = ("last_hidden_state", "pooler_output")):
    """Two outputs; the second is 4 dB better. None stands for exact."""
    rows = []
    for i, name in enumerate(outputs):
        value = None if sqnr_db is None else sqnr_db + 4 * i
        error = 0.0 if value is None else 4.2 * 10 ** (-value / 20)
        cosine = 1.0 if value is None else 1 - 10 ** (-value / 10)
        shapes = {"min": value, "odd": value, "opt": value, "max": None if value is None else value - 0.4}
        rows.append(
            OutputParity(
                name, error, cosine, value, value is None, None, error, None if error == 0 else error * 7, shapes
            )
        )
    passed = sqnr_db is None or sqnr_db >= gate
    reasons = () if passed else (f"last_hidden_state: SQNR {sqnr_db:.1f} dB is below the gate of {gate:.1f} dB",)
    return Parity(passed, {"sqnr_db": gate}, {"sqnr_db": sqnr_db}, tuple(rows), reasons)


def variant(
    name: str, device: str, precision: str, p50_ms: float, per_s: tuple[float, ...], verdict: Parity, **changes: Any
) -> dict[str, Any]:
    """A variant that was built and measured; ``changes`` overwrite fields of its JSON."""
    identity = f"{name}@{device}"
    effective = {"fp32": "f32", "bf16": "bf16", "int8": "int8 (72 of 98 MatMul)"}.get(precision, precision)
    size = {"fp32": 438_012_345, "bf16": 438_100_000, "int8": 110_345_678}.get(precision, 1234)
    points = [latency(p50_ms)]
    points += [throughput(2**i, v) for i, v in enumerate(per_s)]
    data = {
        "id": identity,
        "target": name,
        "device": device,
        "shapes": {"input_ids": {"min": [1, 1], "opt": [1, 128], "max": [16, 512]}},
        "status": "ok" if verdict.passed else "gate_failed",
        "reason": None,
        "fix": None,
        "artifact": {
            "files": [{"path": "model.onnx", "sha256": "9f" * 32, "bytes": size}],
            "bytes": size,
            "build_s": 12.4,
            "effective_precision": effective,
            "precision": precision,
            "facts": {"fused": {"Attention": 12, "SkipLayerNormalization": 24}, "opset": 18},
            "versions": {"openvino": "2026.4.1"},
        },
        "parity": verdict,
        "repository": f"repositories/{identity}",
        "unverified_for_release": ["openvino 2026.4.1 built it, 26.06 carries 2026.1.0"] if "openvino" in name else [],
        "cached": False,
        "measurements": points,
    }
    return to_json(data | changes)


def missing(identity: str, status: str, reason: str, fix: str | None = None) -> dict[str, Any]:
    """A variant that was asked for and did not come to be measured."""
    target, _, device = identity.partition("@")
    return {
        "id": identity,
        "target": target,
        "device": device,
        "shapes": {},
        "status": status,
        "reason": reason,
        "fix": fix,
        "artifact": None,
        "parity": None,
        "repository": None,
        "cached": False,
        "measurements": [],
    }


def bert(*, factor: float = 1.0, hardware: str = "xeon-2c-avx512vnni-8f3a", **model: Any) -> dict[str, Any]:
    """BERT-base on two cores, with random weights; ``factor`` slows the whole machine down."""

    def cpu(
        name: str, precision: str, p50: float, per_s: tuple[float, ...], sqnr: float | None, gate: float, **more: Any
    ):
        speeds = tuple(round(v / factor, 3) for v in per_s)
        return variant(name, "cpu", precision, p50 * factor, speeds, parity(sqnr, gate), **more)

    variants = [
        cpu("torch", "fp32", 222.0, (4.6, 5.1, 5.3, 5.4), None, 80),
        cpu("torch-bf16", "bf16", 102.0, (9.9, 11.2, 12.0, 12.2), 46.2, 30),
        cpu("aoti", "fp32", 171.0, (5.9, 6.4, 6.7, 6.9), 121.4, 80, cached=True),
        cpu("ort", "fp32", 137.0, (7.3, 7.6, 7.7, 7.8), 118.9, 80),
        cpu("ort-int8", "int8", 52.1, (19.2, 21.0, 22.8, 23.4), 21.4, 20),
        cpu("ort-int8-dynamic", "int8", 46.0, (21.4, 23.6, 24.0, 24.1), 9.6, 20),
        cpu("ort-openvino", "fp32", 166.0, (6.0, 6.5, 6.9, 7.1), 119.2, 80),
        cpu("openvino", "bf16", 63.0, (15.9, 17.0, 17.6, 17.8), 46.0, 30),
        cpu("openvino-fp32", "fp32", 175.0, (5.7, 6.6, 7.4, 7.8), 119.0, 80),
        cpu("openvino-bf16", "bf16", 62.4, (16.0, 17.1, 17.7, 17.9), 46.0, 30),
        cpu("openvino-int8", "int8", 34.9, (28.6, 29.0, 29.4, 29.5), 32.1, 20),
        cpu("null", "none", 0.05, (19800.0, 31200.0), 0.0, 80),
        missing("trt-fp16@cuda", "skipped", REASON_GPU, "run `accel convert bert --targets trt-fp16` on a GPU machine"),
        missing("trt-int8@cuda", "deferred", "finished on the target machine", "accel build kits/trt-int8@cuda"),
        missing(
            "tf@cpu",
            "failed",
            "build: SavedModel export stopped: signal 11 after 3 s",
            "less variants/tf@cpu/build.log",
        ),
    ]
    static = cpu("openvino-fp32", "fp32", 137.4, (7.2,), 119.0, 80)
    static["id"] += "+1x128"
    variants.insert(9, static)
    for row in variants[:-3]:
        if "bf16" in row["id"]:
            row["measurements"][1]["stable"] = False
    decisions = [_decision(variants, "latency", 6.36), _decision(variants, "throughput", 5.46)]
    notice = "bert: pretrained weights could not be had; random(seed=0) instead: only speed is compared"
    return to_json(
        {
            "schema": 1,
            "accel": "0.1.0",
            "created": "2026-11-20T13:50:07Z",
            "command": "accel convert bert --targets cpu,trt-fp16 --max-p99-ms 50",
            "model": {
                "name": "bert",
                "source": "bert",
                "framework": "torch",
                "baseline": {"target": "torch", "name": "PyTorch"},
                "weights": "random(seed=0)",
                "revision": "sha256:5b1e9c",
                "accuracy": "unproved",
                "notice": notice,
                "inputs": [{"name": "input_ids", "dtype": "int64", "dims": ["batch", "seq"], "range": [0, 30521]}],
                "outputs": [{"name": "last_hidden_state", "dtype": "float32", "dims": ["batch", "seq", 768]}],
                "samples": {
                    "origin": "zoo sentences, tokenised, 4 to 128 tokens",
                    "calibration_items": 128,
                    "gate_items": 256,
                    "sha256": "c0ffee" * 10 + "abcd",
                },
                **model,
            },
            "hardware": {
                "id": hardware,
                "cpu": Cpu("Intel(R) Xeon(R) Platinum 8481C", 2, ("avx512_vnni", "amx_bf16")),
                "gpus": [],
                "memory_bytes": 25_769_803_776,
                "system": "Linux 6.1.0 x86_64",
                "versions": {"python": "3.11.2", "kernel": "6.1.0", **VERSIONS},
            },
            "settings": {"rounds": 8, "round_s": 2.0, "threads": 2, "triton_release": "26.06", "ints": "io"},
            "variants": variants,
            "decisions": decisions,
            "timings_s": {"export": 41.2, "build": 220.5, "measure": 301.0, "total": 577.3},
        }
    )


def _decision(variants: list[dict[str, Any]], objective: str, speedup: float) -> dict[str, Any]:
    """Choose openvino-int8 and give each other variant its reason, in the form of ``run.json``."""
    chosen = "openvino-int8@cpu"
    p50 = {v["id"]: v["measurements"][0]["p50_ms"] for v in variants if v["status"] == "ok"}
    rejected = []
    for row in (v for v in variants if v["device"] == "cpu" and v["id"] != chosen):
        ratio = p50.get(row["id"], 0.0) / p50[chosen]
        figure = f"{ratio:.2f}× [{ratio * 0.99:.2f}, {ratio * 1.01:.2f}]"
        reason = f"takes {figure} the time of {chosen}" if row["status"] == "ok" else row["reason"]
        rejected.append({"id": row["id"], "reason": reason})
    decision = Decision(
        device="cpu",
        objective=objective,
        constraints={"max_p99_ms": 50.0},
        chosen=chosen,
        via="inprocess",
        ties=(),
        rejected=(),
        reason=f"{chosen} passes its gate with p50 34.9 ms, {speedup}× the speed of torch@cpu",
        baseline="torch@cpu",
        speedup=speedup,
        speedup_ci=(speedup * 0.992, speedup * 1.009),
    )
    return to_json(decision) | {"rejected": rejected}


def minilm() -> dict[str, Any]:
    """Pretrained weights and a task gate that replaces SQNR; two devices, the GPU chosen for throughput."""

    def task(found: float, sqnr: float) -> Parity:
        base = parity(sqnr, 0.0)
        reasons = () if found >= 0.98 else (f"rank_correlation {found} is below the gate of 0.98",)
        return Parity(found >= 0.98, {"rank_correlation": 0.98}, {"rank_correlation": found}, base.outputs, reasons)

    names = {
        "torch": (
            "fp32",
            41.0,
            (24.0, 26.0, 27.0),
            Parity(True, {"rank_correlation": 0.98}, {"rank_correlation": 1.0}, parity(None, 0).outputs),
        ),
        "openvino-int8": ("int8", 6.3, (160.0, 171.0, 174.0), task(0.997, 21.4)),
        "openvino-bf16": ("bf16", 6.4, (158.0, 168.0, 170.0), task(0.9996, 45.9)),
        "ort-int8-dynamic": ("int8", 7.9, (121.0, 130.0, 133.0), task(0.949, 9.6)),
    }
    variants = [variant(n, "cpu", p, ms, per_s, verdict) for n, (p, ms, per_s, verdict) in names.items()]
    gpu = variant("trt-fp16", "cuda", "fp16", 0.61, (1650.0, 3100.0, 5480.0), task(0.9999, 61.0))
    eager = variant("torch", "cuda", "fp32", 3.9, (256.0, 500.0, 940.0), task(1.0, 118.0))
    slower = (("torch@cpu", "6.4× the time of openvino-bf16@cpu"),)
    reason = "ties with openvino-int8@cpu within ±3 %; the higher precision is preferred"
    best, second = "openvino-bf16@cpu", ("openvino-int8@cpu",)
    cpu = Decision("cpu", "latency", {}, best, "inprocess", second, slower, reason, "torch@cpu", 6.41, (6.3, 6.5))
    cuda = Decision(
        device="cuda",
        objective="throughput",
        constraints={"min_throughput": 1000.0},
        chosen="trt-fp16@cuda",
        via="inprocess",
        ties=(),
        rejected=(("torch@cuda", "0.17× the throughput of trt-fp16@cuda"),),
        reason="highest throughput of 2 that passed",
        baseline="torch@cuda",
        speedup=5.83,
        speedup_ci=(5.7, 5.95),
    )
    run = bert(hardware="epyc-h100-77aa")
    run["hardware"]["gpus"] = to_json([Gpu("NVIDIA H100 PCIe", 85_520_809_984, "590.48", "9.0")])
    run["model"] |= {
        "name": "minilm",
        "source": "minilm",
        "weights": "pretrained",
        "accuracy": "proved",
        "notice": None,
    }
    return run | {"variants": [*variants, eager, gpu], "decisions": to_json([cpu, cuda])}


def sweep(row: dict[str, Any], backend: str, infer_ms: float) -> list[Measurement]:
    """Three loads on a server that merges up to four requests into one call."""
    points = []
    for n in (1, 4, 16):
        merged = min(n, 4)
        wait = infer_ms * (n / merged - 1)
        split = ServerSplit(wait, 0.1, infer_ms, 0.1, 400, 400, 400 // merged)
        served = {"via": "triton", "backend": backend, "session": "t1", "concurrency": n, "server": split}
        served["repository"] = row["repository"] + (".python" if backend == "python" else "")
        if n == 1:
            points.append(latency(infer_ms + 0.4, **served))
        else:
            points.append(throughput(1, 1000 * merged / infer_ms, failures=2 if n == 16 else 0, **served))
    return points


def served() -> dict[str, Any]:
    """MiniLM behind a server: a native repository, a twin that batches, and a decision of their own."""
    run = minilm()
    for row in run["variants"][:2]:
        row["measurements"] += to_json(sweep(row, "python", 8.0 if "int8" in row["id"] else 50.0))
    best = run["variants"][1]["id"]
    won = Decision("cpu", "latency", {}, best, "triton", (), (), f"{best} answers first", "torch@cpu", 6.0, (5.9, 6.1))
    run["decisions"].append(to_json(won) | {"repository": f"repositories/{best}.python"})
    return run


def hostile() -> dict[str, Any]:
    """A run whose every free text tries to leave its place."""
    text = (
        "<script>alert(1)</script> | **x** `y` [z](javascript:alert(2))\n\x1b[31mred @octocat {{ 7*7 }} ']]> --> & \""
    )
    run = bert(name=text, notice=text, weights=text, source=text)
    run["command"] = f"accel convert '{text}'"
    run["hardware"]["id"] = text
    run["variants"][0]["artifact"]["facts"] = {text: [text, {"deep": text}]}
    for row in run["variants"]:
        row["id"] = row["target"] = f"{row['id']}{text}"
        row["reason"] = row["fix"] = text
        if row["parity"]:
            row["parity"]["outputs"][0]["name"] = text
    run["decisions"][0] |= {"chosen": run["variants"][10]["id"], "reason": text, "rejected": []}
    del run["decisions"][1]
    return run


def bare() -> Mapping[str, Any]:
    """The least that a run of this schema can hold."""
    return {"schema": 1, "variants": [{"id": "ort@cpu", "status": "failed", "reason": "build: no memory"}]}
