"""The whole path on a GPU: build, prove, package, measure, decide, serve, and what goes wrong on the way."""

import contextlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from accel.builders import targets
from accel.builders.torch_device import TorchDeviceSession, use_cuda
from accel.core import environments, gpu
from accel.core.errors import StageError
from accel.core.values import Artifact, TensorSpec, from_json
from accel.triton import lint

pytestmark = pytest.mark.gpu

MODEL = os.environ.get("ACCEL_GPU_MODEL", "minilm").split()
"""What the suite converts, and options: ``bert@small --budget-s 10`` where MiniLM has no weights or time is short."""
ALWAYS = ("torch", "torch-bf16", "torch-fp16", "aoti", "aoti-bf16", "aoti-fp16")
"""Targets that need nothing beyond torch."""
ORT = ("ort-cuda", "ort-cuda-tf32", "ort-cuda-fp16")
NEEDS_TENSORRT = ("ort-trt", "trt")
HEAD = ("variant", "status", "runs in", "SQNR dB", "p50 ms", "in", "compute", "out", "GPU MiB", "W", "mJ/item", "notes")


def accel(*words: str, timeout_s: float = 3000) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"HF_HUB_OFFLINE": "1"}
    command = [sys.executable, "-m", "accel", *words]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=timeout_s, check=False)


@pytest.fixture(scope="session")
def run(tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[str, ...]]) -> tuple[Path, dict[str, Any]]:
    """One run of a small real model over every GPU target, its repositories emitted for a TensorRT 10 release."""
    folder = tmp_path_factory.mktemp("gpu") / "run"
    release = ("--triton-release", "26.05")
    done = accel("convert", *MODEL, "--targets", "gpu,torch@cpu", *release, "-o", str(folder), "--quiet")
    assert done.returncode == 0, done.stderr[-4000:]
    document = json.loads((folder / "run.json").read_text())
    rows.append(HEAD)
    rows.extend(row(v) for v in document["variants"])
    return folder, document


def row(variant: dict[str, Any]) -> tuple[str, ...]:
    points = [m for m in variant["measurements"] if m["scenario"] == "latency"]
    point = points[-1] if points else {}
    use, split = point.get("gpu") or {}, point.get("split") or {}
    dbs = [o["sqnr_db"] for o in (variant["parity"] or {}).get("outputs", []) if o["sqnr_db"] is not None]

    def number(value: float | None, digits: int = 2, factor: float = 1.0) -> str:
        return "" if value is None else f"{value * factor:.{digits}f}"

    return (
        variant["id"],
        variant["status"],
        (variant["artifact"] or {}).get("effective_precision") or "",
        number(min(dbs, default=None), 0),
        number(point.get("p50_ms"), 3),
        number(split.get("copy_in_ms"), 3),
        number(split.get("compute_ms"), 3),
        number(split.get("copy_out_ms"), 3),
        number(use.get("memory_peak_mib"), 0),
        number(use.get("power_w"), 0),
        number(use.get("energy_j"), 2, 1e3),
        (variant["reason"] or "; ".join(use.get("warnings", [])))[:60].replace("\n", " "),
    )


def by_target(document: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {v["target"]: v for v in document["variants"] if v["device"] == "cuda"}


@pytest.mark.parametrize("name", ALWAYS + ORT)
def test_what_needs_no_tensorrt_is_built_proved_and_measured(run, name):
    variant = by_target(run[1])[name]
    assert variant["status"] == "ok", variant["reason"]
    assert variant["artifact"]["effective_precision"] == variant["artifact"]["precision"]
    assert {m["scenario"] for m in variant["measurements"]} == {"latency", "throughput"}
    for point in variant["measurements"]:
        assert point["split"]["bytes_in"] > 0
        assert point["split"]["compute_ms"] > 0


@pytest.mark.parametrize("name", [n for n in targets.discover() if n.startswith(NEEDS_TENSORRT)])
def test_tensorrt_is_built_or_says_what_it_lacks(run, name):
    variant = by_target(run[1])[name]
    if variant["status"] in ("skipped", "deferred"):
        assert "TensorRT" in variant["reason"] or "libnvinfer" in variant["reason"]
        return
    assert variant["status"] in ("ok", "gate_failed"), variant["reason"]
    if name.startswith("ort-trt"):
        assert variant["artifact"]["facts"]["fell_back"] == []
        assert any(f["path"].endswith(".engine") for f in variant["artifact"]["files"])


@pytest.mark.parametrize("name", ORT)
def test_nothing_but_arithmetic_on_shapes_ran_on_the_cpu(run, name):
    facts = by_target(run[1])[name]["artifact"]["facts"]
    assert facts["fell_back"] == []


def test_the_card_is_in_every_measurement(run):
    if gpu.open_card() is None:
        pytest.fail("NVML cannot be asked: install the extra `cuda`")
    for variant in by_target(run[1]).values():
        for point in variant["measurements"]:
            assert point["gpu"]["name"]
            assert point["gpu"]["memory_peak_mib"] > 50, "a CUDA context alone takes more"
            assert point["gpu"]["others"] is not None


def test_the_device_has_a_decision_with_a_reason_for_each_loser(run):
    for decision in (d for d in run[1]["decisions"] if d["device"] == "cuda"):
        assert decision["chosen"]
        ok = {v["id"] for v in by_target(run[1]).values()}
        assert ok == {decision["chosen"], *(r["id"] for r in decision["rejected"])}


def test_repositories_pass_the_linter(run):
    folder, document = run
    for variant in by_target(document).values():
        if variant["repository"]:
            wrong = [f for f in lint.lint(folder / variant["repository"], release="26.05") if f.severity == "error"]
            assert not wrong, variant["id"]


@pytest.mark.parametrize("name", ["torch", "aoti-fp16"])
def test_two_requests_in_flight_answer_as_one(run, name):
    folder, _ = run
    artifact, files = built(folder, f"{name}@cuda")
    builder = targets.discover()[name]
    feeds = [feed(artifact, n) for n in (1, 2)]
    with contextlib.closing(builder.open(artifact, files, threads=2, mode="latency")) as alone:
        truth = [alone.run(f) for f in feeds]
    with contextlib.closing(builder.open(artifact, files, threads=2, mode="throughput")) as many:
        assert many.slots == 2
        for _ in range(20):
            for slot in range(2):
                many.bind(feeds[slot], slot=slot)
                many.submit(slot=slot)
            for slot in range(2):
                many.wait(slot=slot)
                for output, value in many.read(slot=slot).items():
                    np.testing.assert_allclose(value, truth[slot][output], rtol=0, atol=2e-2)


def test_running_out_of_memory_is_an_error_of_its_own_and_ends_nothing_else():
    import torch

    specs = (TensorSpec("x", "float32", ("batch",)),), (TensorSpec("y", "float32", ("batch",)),)
    device = use_cuda()
    free, _ = torch.cuda.mem_get_info()

    def call(x: torch.Tensor) -> tuple[torch.Tensor]:
        extra = torch.zeros(int(free * x.shape[0] / 4), dtype=torch.uint8, device=x.device)
        return (x + extra[0],)

    with contextlib.closing(TorchDeviceSession(*specs, call, "fp32", device=device)) as session:
        session.run({"x": np.ones(1, np.float32)})
        with pytest.raises(StageError, match="memory ran out") as error:
            session.run({"x": np.ones(64, np.float32)})
        assert "--max-shape" in str(error.value.fix)
        np.testing.assert_array_equal(session.run({"x": np.ones(1, np.float32)})["y"], [1.0])


def test_the_python_backend_of_a_real_server_answers_from_the_gpu(tmp_path):
    """The embedded server needs no TensorRT; the variant runs in its Python backend."""
    if not environments.installed("triton"):
        pytest.fail("accel env install triton")
    folder = tmp_path / "served"
    words = ("convert", *MODEL, "--targets", "torch-fp16", "--bench", "triton", "-o", str(folder), "--quiet")
    done = accel(*words)
    assert done.returncode == 0, done.stderr[-4000:]
    variant = by_target(json.loads((folder / "run.json").read_text()))["torch-fp16"]
    points = [m for m in variant["measurements"] if m["via"] == "triton"]
    assert points
    assert all(m["failures"] == 0 for m in points)


def test_no_gpu_that_is_hidden_is_used(tmp_path):
    environment = os.environ | {"CUDA_VISIBLE_DEVICES": "", "HF_HUB_OFFLINE": "1"}
    words = ["convert", *MODEL, "--targets", "torch-fp16", "-o", str(tmp_path / "r")]
    command = [sys.executable, "-m", "accel", *words]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 3
    assert "hides every NVIDIA GPU" in done.stdout + done.stderr


def built(folder: Path, id: str) -> tuple[Artifact, Path]:
    store = next((folder / ".store").glob(f"build-{id}-*"))
    return from_json(Artifact, json.loads((store / "value.json").read_text())["value"]), store / "files"


def feed(artifact: Artifact, batch: int, *, length: int = 32) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(batch)
    made = {}
    for spec in artifact.built.inputs:
        low, high = spec.range or (0, 1)
        shape = tuple(d if isinstance(d, int) else batch if d == "batch" else length for d in spec.dims)
        made[spec.name] = rng.integers(low, high, shape, dtype=np.int64, endpoint=True).astype(spec.dtype)
        if spec.name == "attention_mask":
            made[spec.name][:] = 1
    return made
