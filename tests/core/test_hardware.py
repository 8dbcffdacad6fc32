"""What this machine is."""

import os
import subprocess
import sys

import pytest

from accel.builders import targets
from accel.core import environments, hardware
from accel.core.hardware import Cpu, Gpu, Hardware


def test_this_machine_is_found():
    found = hardware.detect()
    assert 1 <= found.cpu.threads <= (os.cpu_count() or 1)
    assert found.memory_bytes > 1 << 28
    assert found.devices[0] == "cpu"
    assert hardware.detect().fingerprint == found.fingerprint


def test_the_id_is_a_slug_and_names_the_gpus():
    cpu = Cpu("Intel(R) Xeon(R) Platinum 8480+ CPU @ 2.00GHz", 8, ("avx512f",))
    alone = Hardware(cpu, (), 1 << 30, "Linux")
    assert alone.id == "intel-xeon-platinum-8480-avx512-8cpu"
    gpu = Gpu("NVIDIA H200", 141 << 30, "580", "9.0")
    assert Hardware(cpu, (gpu,), 1, "Linux").id.endswith("-nvidia-h200")
    assert Hardware(cpu, (gpu, gpu), 1, "Linux").id.endswith("-2x-nvidia-h200")
    assert Hardware(cpu, (gpu,), 1, "Linux").fingerprint != alone.fingerprint


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ((), "amd-epyc-2cpu"),
        (("avx2",), "amd-epyc-avx2-2cpu"),
        (("avx2", "avx512f", "avx512_vnni"), "amd-epyc-vnni-2cpu"),
        (("avx2", "avx_vnni"), "amd-epyc-vnni-2cpu"),
        (("avx2", "avx512f", "avx512_vnni", "avx512_bf16"), "amd-epyc-bf16-2cpu"),
        (("avx2", "avx512f", "avx512_vnni", "avx512_bf16", "amx_bf16", "amx_int8"), "amd-epyc-amx-2cpu"),
        (("asimd", "bf16", "i8mm"), "amd-epyc-bf16-2cpu"),
        (("asimd", "i8mm"), "amd-epyc-i8mm-2cpu"),
    ],
)
def test_cpus_of_one_name_and_other_instructions_are_other_machines(flags, expected):
    """Hypervisors show one name for all: what was built and measured with AVX2 says nothing of one with BF16."""
    assert Hardware(Cpu("AMD EPYC", 2, flags), (), 1, "Linux").id == expected


def test_a_cgroup_quota_counts(monkeypatch):
    files = {"/sys/fs/cgroup/cpu.max": "150000 100000", "/sys/fs/cgroup/memory.max": "1048576"}
    monkeypatch.setattr(hardware, "_read", lambda path: files.get(path, ""))
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    assert hardware.cpu_threads() == 1
    assert [hardware.shares_cpus(n) for n in (1, 7, 8)] == [True, True, False], "a quota names no CPUs of its own"
    assert hardware.memory_limit_bytes() == 1 << 20


def test_an_unfinished_environment_does_not_count(tmp_path, monkeypatch):
    targets.discover()  # builders declare their environments
    monkeypatch.setenv("ACCEL_HOME", str(tmp_path))
    assert environments.installed("main")
    assert not environments.installed("ort-openvino")
    (tmp_path / "ort-openvino" / "bin").mkdir(parents=True)
    (tmp_path / "ort-openvino" / "bin" / "python").touch()
    assert not environments.installed("ort-openvino")
    (tmp_path / "ort-openvino" / "complete").write_text("onnxruntime-openvino==0.1")
    assert not environments.installed("ort-openvino")
    pins = environments.get("ort-openvino").requirements
    (tmp_path / "ort-openvino" / "complete").write_text("\n".join(pins))
    assert environments.installed("ort-openvino")
    assert environments.remove("ort-openvino")
    assert not environments.remove("ort-openvino")


def test_what_a_cgroup_has_left_counts(monkeypatch):
    """In a container the machine's free memory is not ours to take."""
    files = {
        "/proc/meminfo": "MemTotal: 9 kB\nMemAvailable:   1000000 kB\n",
        "/sys/fs/cgroup/memory.max": str(100 << 20),
        "/sys/fs/cgroup/memory.current": str(80 << 20),
        "/sys/fs/cgroup/memory.stat": f"anon 1\ninactive_file {30 << 20}\n",
    }
    monkeypatch.setattr(hardware, "_read", lambda path: files.get(path, ""))
    assert hardware.available_memory_bytes() == 50 << 20
    files["/sys/fs/cgroup/memory.max"] = "max"
    assert hardware.available_memory_bytes() == 1000000 * 1024


@pytest.mark.parametrize(
    ("script", "found"),
    [
        ("echo 'GPU-1, NVIDIA H200, 143771, 580.1, 9.0'", (Gpu("NVIDIA H200", 143771 << 20, "580.1", "9.0"),)),
        ("echo 'GPU-1, NVIDIA GB10, [N/A], 580.1, 12.1'", (Gpu("NVIDIA GB10", 0, "580.1", "12.1"),)),
        ("echo 'No devices were found'", ()),
        ("echo 'it cannot reach the driver' >&2; exit 9", ()),
    ],
)
def test_whatever_the_driver_says_is_no_crash(tmp_path, monkeypatch, script, found):
    driver(tmp_path, script, monkeypatch)
    assert hardware._gpus() == found
    trouble = hardware.gpu_trouble()
    assert (trouble is None) == bool(found)
    if not found:
        assert trouble in (
            "nvidia-smi lists no GPU: No devices were found",
            "nvidia-smi lists no GPU: it cannot reach the driver",
        )


@pytest.mark.parametrize(
    ("listed", "names"),
    [
        ("1", ["B"]),
        ("1,0", ["B", "A"]),
        ("GPU-2", ["B"]),
        ("0,-1,1", ["A"]),  # the list ends at the first entry that is not a device
        ("", []),
        ("MIG-x", ["A", "B"]),
        (None, ["A", "B"]),
    ],
)
def test_hidden_gpus_do_not_count(tmp_path, monkeypatch, listed, names):
    driver(tmp_path, "echo 'GPU-1, A, 8, 580.1, 9.0'; echo 'GPU-2, B, 8, 580.1, 9.0'", monkeypatch)
    if listed is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", listed)
    assert [found.name for found in hardware._gpus()] == names
    trouble = hardware.gpu_trouble()
    assert trouble is None if names else "CUDA_VISIBLE_DEVICES='' hides" in trouble


def driver(folder, script, monkeypatch):
    """Put an ``nvidia-smi`` on the PATH that says what the script says."""
    tool = folder / "nvidia-smi"
    tool.write_text(f"#!/bin/sh\n{script}\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


def test_variables_that_runtimes_read_are_part_of_what_figures_hold_for(monkeypatch):
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "AVX2")
    monkeypatch.setenv("HOME", "/elsewhere")
    found = hardware.runtime_variables()
    assert found["ONEDNN_MAX_CPU_ISA"] == "AVX2"
    assert "HOME" not in found
    monkeypatch.delenv("ONEDNN_MAX_CPU_ISA")
    assert hardware.runtime_variables() != found


@pytest.mark.parametrize(
    "imported",
    ["import sklearn", "from accel.exporters.tensorflow_runtime import import_tensorflow; import_tensorflow()"],
    ids=["scikit-learn", "TensorFlow"],
)
def test_what_a_library_sets_when_it_is_imported_changes_no_figures(imported):
    if "tensorflow" in imported:
        pytest.importorskip("tensorflow")
    lines = (
        "import os; from accel.core.hardware import runtime_variables",
        "names, found = set(os.environ), runtime_variables()",
        imported,
        "assert set(os.environ) > names and runtime_variables() == found",
    )
    bare = {name: value for name, value in os.environ.items() if not name.startswith(hardware.SET_ON_IMPORT)}
    subprocess.run([sys.executable, "-c", "\n".join(lines)], env=bare, check=True)
