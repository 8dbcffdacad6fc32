"""NVML: the real binding over a driver's library that is compiled here and says what each test wants."""

import json
import os
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import pytest

from accel.bench.card import watch_card
from accel.core import document, gpu
from accel.core.values import CallSplit, GpuUse, Measurement, from_json, to_json
from accel.report.from_run import run_view

ASK = """
import json, time, dataclasses
from accel.core.values import to_json
from accel.bench.card import watch_card
from accel.core.gpu import open_card
card, watch = open_card(), watch_card(["cpu", "cuda"])
if card is None:
    print(json.dumps({"card": None, "watch": watch}))
    raise SystemExit
card.processes()
with watch.loading("a"):
    time.sleep(0.06)
with watch.timing("a", "b1"):
    time.sleep(0.5)
watch.discard("a", "b1")
for _ in range(2):
    with watch.timing("a", "b1"):
        time.sleep(0.12)
watch.closed("a")
sample, use = dataclasses.asdict(card.sample()), to_json(watch.use("a", "b1", 40))
print(json.dumps({"card": card.name, "sample": sample, "use": use}))
"""


@pytest.fixture(scope="module")
def driver(tmp_path_factory) -> Path:
    """A folder with a ``libnvidia-ml.so.1``."""
    folder = tmp_path_factory.mktemp("driver")
    source = Path(__file__).parent / "nvml_stub" / "nvml.c"
    command = ["gcc", "-shared", "-fPIC", "-o", folder / "libnvidia-ml.so.1", source]
    subprocess.run(command, check=True)
    return folder


def ask(driver: Path | None, **environment: str) -> dict:
    env = {k: v for k, v in os.environ.items() if k not in ("CUDA_VISIBLE_DEVICES", "LD_LIBRARY_PATH")}
    env |= {"LD_LIBRARY_PATH": str(driver)} if driver else {}
    done = subprocess.run(
        [sys.executable, "-c", ASK], env=env | environment, capture_output=True, text=True, check=True
    )
    return json.loads(done.stdout)


def test_a_quiet_card_tells_everything(driver):
    said = ask(driver)
    assert said["card"] == "Stub GPU 1"
    sample = gpu.GpuSample(**{**said["sample"], "throttle_reasons": tuple(said["sample"]["throttle_reasons"])})
    assert sample == gpu.GpuSample(100.0, 250.0, 41.0, 1980.0, 2619.0, 0.0, ())
    use = from_json(GpuUse, said["use"])
    assert use.power_w == pytest.approx(250.0)
    assert use.energy_j is not None
    assert 2 * 0.12 * 250 / 40 < use.energy_j < 4 * 0.12 * 250 / 40
    assert (use.sm_mhz, use.sm_mhz_min, use.memory_mhz, use.temperature_c) == (1980.0, 1980.0, 2619.0, 41.0)
    assert use.memory_peak_mib == 0.0
    assert use.others == 0
    assert use.warnings == ()


def test_whatever_disturbed_is_in_the_warnings(driver):
    use = from_json(GpuUse, ask(driver, STUB_OTHERS="2", STUB_JOINED="1", STUB_REASONS=str(0x4 | 0x40 | 0x1))["use"])
    assert use.others == 2
    assert use.held_down == ("power cap", "hardware thermal slowdown")
    assert use.warnings == (
        "2 other processes held the GPU",
        "its clocks were held down: power cap, hardware thermal slowdown",
    )
    use = from_json(GpuUse, ask(driver, STUB_BUSY="63")["use"])
    assert use.warnings == ("the GPU was 63% busy before anything was started",)


def test_a_process_that_comes_later_counts_and_the_measured_one_does_not(driver):
    assert from_json(GpuUse, ask(driver, STUB_JOINED="1")["use"]).others == 0
    assert from_json(GpuUse, ask(driver, STUB_JOINED="3")["use"]).others == 2


def test_a_process_of_an_earlier_session_that_is_still_listed_does_not_count(driver):
    """Seen on an H200: the session of throughput found the process that the one of latency had just ended."""
    assert from_json(GpuUse, ask(driver, STUB_LEFT="1", STUB_JOINED="1")["use"]).others == 0


def test_what_a_card_does_not_tell_is_none(driver):
    use = from_json(GpuUse, ask(driver, STUB_POOR="1")["use"])
    assert (use.power_w, use.energy_j, use.sm_mhz, use.sm_mhz_min, use.memory_mhz) == (None,) * 5
    assert use.temperature_c == 41.0


@pytest.mark.parametrize(("visible", "name"), [("1", "Stub GPU 2"), ("GPU-9", "Stub GPU 9"), ("", None), ("7", None)])
def test_the_first_visible_card_is_watched(driver, visible, name):
    assert ask(driver, CUDA_VISIBLE_DEVICES=visible)["card"] == name


def test_no_driver_and_no_binding_are_no_card(tmp_path):
    assert ask(None) == {"card": None, "watch": None}
    (tmp_path / "pynvml.py").write_text("raise ImportError('not installed')\n")
    assert ask(None, PYTHONPATH=str(tmp_path)) == {"card": None, "watch": None}


def test_nobody_watches_a_card_that_no_variant_uses():
    assert watch_card(["cpu"]) is None


@pytest.mark.parametrize(
    ("driver_version", "cuda", "old"),
    [
        ("535.104.05", "13.0", True),
        ("580.65.06", "13.0", False),
        ("525.60.13", "12.8", False),
        ("525.60.11", "12.8", True),
        ("450.80.02", "11.8", False),
        ("580.65.06", "14.0", False),  # a CUDA that this version does not know: nobody can tell
        ("[N/A]", "13.0", False),
    ],
)
def test_drivers_are_held_against_the_cuda_of_a_build(driver_version, cuda, old):
    reason = gpu.too_old(driver_version, cuda)
    assert (reason is not None) == old
    assert reason is None or driver_version in reason


def test_measurements_carry_the_card_and_read_files_from_before_it():
    point = Measurement(
        scenario="latency",
        via="inprocess",
        backend="torch",
        batch=1,
        concurrency=1,
        threads=1,
        shapes={"x": (1, 4)},
        p50_ms=1.0,
        p90_ms=1.0,
        p95_ms=1.0,
        p99_ms=None,
        mean_ms=1.0,
        p50_ci_ms=(1.0, 1.0),
        throughput_per_s=1.0,
        throughput_ci_per_s=(1.0, 1.0),
        stable=True,
        samples=3,
        raw="r.npz",
        peak_rss_mib=1.0,
        load_ms=1.0,
        first_ms=1.0,
        effective_precision="fp16",
        rounds_ms=(1.0,),
        session="s",
        split=CallSplit(0.1, 0.7, 0.2, 16, 8),
        gpu=GpuUse("NVIDIA H200", power_w=300.5, held_down=("power cap",), others=0),
    )
    stored = json.loads(json.dumps(to_json(point)))
    assert from_json(Measurement, stored) == point
    del stored["split"], stored["gpu"]
    assert from_json(Measurement, stored).gpu is None
    assert asdict(point)["gpu"]["name"] == "NVIDIA H200"


def test_the_report_shows_the_card_and_that_it_was_not_quiet():
    use = GpuUse("NVIDIA H200", memory_peak_mib=812.0, power_w=301.0, energy_j=0.21, sm_mhz=1980.0, warnings=("loud",))
    point = {"scenario": "latency", "split": to_json(CallSplit(0.1, 0.7, 0.2, 16, 8)), "gpu": to_json(use)}
    run = {"schema": 1, "variants": [{"id": "torch@cuda", "measurements": [{"scenario": "throughput"}, point]}]}
    (variant,) = run_view(document.parse(run)).variants
    assert dict(variant.facts) == {
        "copy in, model, copy out": "0.100, 0.700, 0.200 ms, apart",
        "GPU memory peak": "812 MiB",
        "GPU power": "301 W, 210 mJ per item",
        "GPU clock": "1980 MHz, at least 1980 MHz",
        "the GPU was not quiet": "loud",
    }


FACTORY = """
import torch
def build():
    torch.manual_seed(0)
    return torch.nn.Linear(4, 4), [{"input": torch.randn(1, 4).numpy()} for _ in range(8)]
"""


def test_a_driver_that_is_too_old_is_said_for_each_variant_it_stops(tmp_path):
    tool = tmp_path / "nvidia-smi"
    tool.write_text("#!/bin/sh\necho 'GPU-1, NVIDIA A100, 40960, 470.57.02, 8.0'\n")
    tool.chmod(0o755)
    (tmp_path / "net.py").write_text(FACTORY)
    command = [sys.executable, "-m", "accel", "convert", f"{tmp_path / 'net.py'}:build", "-o", str(tmp_path / "run")]
    command += ["--targets", "ort-cuda,torch@cuda", "--quiet"]
    env = {k: v for k, v in os.environ.items() if k != "CUDA_VISIBLE_DEVICES"}
    env |= {"PATH": f"{tmp_path}:{env['PATH']}"}
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 3, done.stderr
    variants = {v["id"]: v for v in json.loads((tmp_path / "run" / "run.json").read_text())["variants"]}
    assert variants["ort-cuda@cuda"]["status"] == "skipped"
    assert "470.57.02 is too old for CUDA 13.0: it needs 580" in variants["ort-cuda@cuda"]["reason"]
    assert variants["ort-cuda@cuda"]["fix"] == "update the NVIDIA driver"
    assert variants["torch@cuda"]["status"] == "skipped"


MEASURE = """
import json, sys
from pathlib import Path
import numpy as np
from accel.core.values import Artifact, Built, Target, TensorSpec, Variant, file_refs, to_json
from accel.bench.card import watch_card
from accel.bench.in_process import MeasurementPlan, TimedShape, ProcessRunner
from accel.bench.race import Contest, Race
from accel.bench.rounds import measure
folder = Path(sys.argv[1])
np.savez(folder / "feeds.npz", **{"b2/x": np.zeros((2, 4), np.int64)})
built = Built("null.json", (TensorSpec("x", "int64", ("n", 4)),), (TensorSpec("y", "float32", ("n",)),), "none", {}, {})
plan = MeasurementPlan("latency", rounds=2, round_s=0.2, warm_s=0.05)
watch = watch_card(("cuda", "cpu"))
runners = []
for device in ("cuda", "cpu"):
    files = folder / device
    files.mkdir()
    (files / "null.json").write_text(json.dumps({"latency_ms": 5}))
    artifact = Artifact(Variant(Target("null", device), {}), file_refs(files), "0", built, 0.0)
    point = TimedShape("b2", 2, {"x": (2, 4)})
    runners.append(
        ProcessRunner(
            name=device,
            artifact=artifact,
            folder=files,
            python=Path(sys.executable),
            log=folder / f"{device}.log",
            timed_shapes=(point,),
            precision="fp32",
            plan=plan,
            feeds=folder / "feeds.npz",
            threads=1,
            timeout_s=60,
            watch=watch,
        )
    )
found = measure(
    runners,
    Race([Contest((("cuda", "b2"), ("cpu", "b2")), frozenset(("cuda", "cpu")), plan.rounds)]),
    stage="measure",
    opening="loading",
    turn="round",
    raw_dir=folder / "raw",
    raw_name="raw/{}.npz",
    progress=lambda *_: None,
)
print(json.dumps({id: to_json(points) for id, points in found.items()}))
"""


def test_a_session_measures_the_card_for_what_runs_on_it_alone(driver, tmp_path):
    """The stand-in draws 250 W; the null variant sleeps, so time and items give its energy."""
    env = os.environ | {"LD_LIBRARY_PATH": str(driver), "STUB_REASONS": "4"}
    env.pop("CUDA_VISIBLE_DEVICES", None)
    command = [sys.executable, "-c", MEASURE, str(tmp_path)]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=True)
    found = json.loads(done.stdout)
    (point,) = (from_json(Measurement, p) for p in found["cuda"])
    assert point.gpu is not None
    assert point.gpu.power_w == pytest.approx(250.0)
    assert point.gpu.memory_peak_mib == 0.0
    assert point.gpu.energy_j is not None
    least = 250.0 * point.mean_ms / 1e3 / point.batch
    assert least * 0.9 < point.gpu.energy_j < least * 3
    assert point.gpu.warnings == ("its clocks were held down: power cap",)
    assert point.split is None, "null copies nothing"
    assert found["cpu"][0]["gpu"] is None
