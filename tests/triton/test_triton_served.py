"""Every kind of repository is loaded by the real server and answers as it did in process; twins keep the config."""

import dataclasses
import json
import py_compile
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from live import Live

from accel.core.errors import InputError, OutputError, StageError, UsageError
from accel.triton import manifest as manifests
from accel.triton.python_variant import write_python_variant
from accel.triton.reading import read_configs, read_points
from accel.triton.servers import server
from accel.triton.servers.answers import check, client, examine, infer
from accel.triton.servers.server import Server
from accel.triton.verify import verify

KINDS = {
    "null": False,
    "torch": False,
    "openvino-fp32+static": False,
    "ort": True,
    "ort-int8-dynamic": True,
    "ort-openvino": True,
    "openvino": True,
    "aoti": True,
}
"""Target → whether a server with nothing but the Python backend answers for it by a twin."""

Fleet = Mapping[str, tuple[Server, Path]]


@pytest.fixture(scope="module")
def fleet(live: Live, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """A server for each kind of repository, all at once: loading and stopping are mostly waiting."""
    logs = tmp_path_factory.mktemp("logs")
    roots = {kind: live.root(kind.partition("+")[0], static=kind.endswith("+static")) for kind in KINDS}
    with ThreadPoolExecutor(len(roots)) as pool, ExitStack() as stack:
        started = {k: pool.submit(server.start, r, via="embedded", log=logs / k) for k, r in roots.items()}
        for future in started.values():
            stack.callback(lambda f: pool.submit(f.result().stop), future)
        yield {kind: (future.result(), roots[kind]) for kind, future in started.items()}


def errors(root: Path) -> list[str]:
    return [f"{f.file}: {f.why}" for f in verify(root) if f.severity == "error"]


@pytest.mark.parametrize("kind", KINDS)
def test_is_served_as_it_was_measured(fleet: Fleet, kind: str):
    running, root = fleet[kind]
    static = kind.endswith("+static")
    assert running.python_models == ({"tiny"} if KINDS[kind] else set())
    assert running.endpoint.release == "24.10"
    assert errors(running.root) == []
    with client(running.endpoint) as calls:
        samples = read_configs(running.root)["tiny"].model_warmup
        warm = calls.get_inference_statistics("tiny").model_stats[0].execution_count
        points = ("opt",) if static else ("min", "odd", "opt", "max")
        assert warm == len(samples) >= len(points)
        assert max(s.batch_size for s in samples) == (1 if static else 4)
        found = examine(running.endpoint, root)
        assert found.findings == ()
        assert {(a.point, a.output) for a in found.answers} == {(p, o) for p in points for o in ("hidden", "length")}
        assert executions(calls, least=warm + len(points)) == warm + len(points)


def executions(calls: Any, *, least: int) -> int:
    """Return how often the model ran, as soon as the server says ``least``: it counts a call after it answered."""
    deadline = time.monotonic() + 10
    while True:
        count = int(calls.get_inference_statistics("tiny").model_stats[0].execution_count)
        if count >= least or time.monotonic() > deadline:
            return count
        time.sleep(0.05)


@pytest.fixture
def ort(fleet: Fleet) -> tuple[Server, Path]:
    return fleet["ort"]


def changed(root: Path, to: Path, output: str, change: float) -> Path:
    """Copy a repository's manifest, configs and reference, and add to the first value of an output at ``opt``."""
    shutil.copytree(root, to, ignore=shutil.ignore_patterns("*.onnx"))
    with np.load(root / manifests.REFERENCE) as file:
        arrays = {key: file[key] for key in file.files}
    key = f"outputs/opt/{output}"
    arrays[key] = arrays[key].copy()
    arrays[key].flat[0] += np.asarray(change, arrays[key].dtype)
    with (to / manifests.REFERENCE).open("wb") as file:
        np.savez(file, **arrays)
    return to


@pytest.mark.parametrize(
    ("output", "change", "why"),
    [
        ("hidden", 0.1, "dB (in process"),
        ("length", 1, "were equal in process"),
    ],
)
def test_an_answer_that_differs_is_an_error(ort, tmp_path, output, change, why):
    running, root = ort
    findings = check(running.endpoint, changed(root, tmp_path / "changed", output, change))
    assert [(f.severity, f.field) for f in findings] == [("error", f"outputs/opt/{output}")]
    assert why in findings[0].why


def test_a_difference_below_the_gates_own_error_is_none(ort, tmp_path):
    running, root = ort
    assert check(running.endpoint, changed(root, tmp_path / "changed", "hidden", 1e-6)) == ()


def test_padded_positions_count_only_where_no_input_hides_them(ort, tmp_path):
    running, root = ort
    copy = changed(root, tmp_path / "changed", "hidden", 0.0)
    manifest = manifests.read(root)
    inputs = read_points(root, manifest)["opt"].inputs
    inputs["attention_mask"][:, -1] = 0
    with client(running.endpoint) as calls:
        answers = infer(calls, "tiny", inputs, manifest.outputs)
    answers["hidden"] = answers["hidden"].copy()
    answers["hidden"][:, -1] += 1
    with np.load(copy / manifests.REFERENCE) as file:
        arrays = {key: file[key] for key in file.files}
    arrays |= {f"inputs/opt/{n}": v for n, v in inputs.items()} | {f"outputs/opt/{n}": v for n, v in answers.items()}
    with (copy / manifests.REFERENCE).open("wb") as file:
        np.savez(file, **arrays)
    assert check(running.endpoint, copy) == ()
    manifests.write(dataclasses.replace(manifest, mask=None), copy)
    assert [f.field for f in check(running.endpoint, copy)] == ["outputs/opt/hidden"]


def test_a_variant_may_not_be_worse_than_in_process(fleet):
    """INT8's room is its own: a manifest that promises more than the server gives is not met."""
    (running, root), (coarse, coarse_root) = fleet["ort"], fleet["ort-int8-dynamic"]
    findings = check(coarse.endpoint, root)
    assert {f.field for f in findings} == {f"outputs/{p}/hidden" for p in ("min", "odd", "opt", "max")}
    assert check(running.endpoint, coarse_root) == ()


def test_what_is_not_served_or_refused_is_an_error(ort, tmp_path):
    running, root = ort
    manifest = manifests.read(root)
    copy = tmp_path / "renamed"
    shutil.copytree(root, copy, ignore=shutil.ignore_patterns("*.onnx"))
    manifests.write(dataclasses.replace(manifest, models=("other",)), copy)
    findings = check(running.endpoint, copy)
    assert "does not serve this model" in " ".join(f.why for f in findings)
    assert "unknown model" in " ".join(f.why for f in findings)


def test_a_reference_that_is_gone_is_said(ort, tmp_path):
    running, root = ort
    copy = tmp_path / "bare"
    shutil.copytree(root, copy, ignore=shutil.ignore_patterns("*.onnx", manifests.REFERENCE))
    with pytest.raises(InputError, match=r"reference\.npz cannot be read"):
        examine(running.endpoint, copy)


def test_no_server_is_no_finding(ort, live):
    running, root = ort
    gone = dataclasses.replace(running.endpoint, grpc="127.0.0.1:9")
    with pytest.raises(StageError, match="no server answers"):
        check(gone, root)
    with client(gone) as calls, pytest.raises(StageError, match="no server answers"):
        infer(calls, "tiny", read_points(root, manifests.read(root))["opt"].inputs, live.source.outputs)


# ---------------------------------------------------------------------------------------------------------------------
# Twins

OVERRIDES = """
instance_group { count: 2 kind: KIND_CPU host_policy: "cpu_0" }
dynamic_batching {
  preferred_batch_size: 2
  max_queue_delay_microseconds: 500
  priority_levels: 2
  default_priority_level: 2
}
response_cache { enable: true }
metric_tags { key: "team" value: "search" }
optimization { graph { level: 1 } }
max_batch_size: 3
"""


def test_a_twin_keeps_what_the_config_says_about_serving(live, tmp_path):
    root = live.root("ort", overrides=OVERRIDES, threads=2)
    made = write_python_variant(root, tmp_path / "twin", release="24.10")
    assert (made.backend, made.models, made.release) == ("python", ("tiny",), "24.10")
    native, twin = read_configs(root)["tiny"], read_configs(tmp_path / "twin")["tiny"]
    for field in ("name", "version_policy", "input", "output", "max_batch_size", "dynamic_batching", "instance_group"):
        assert getattr(twin, field) == getattr(native, field), field
    for field in ("response_cache", "metric_tags", "model_warmup"):
        assert getattr(twin, field) == getattr(native, field), field
    assert (twin.backend, twin.default_model_filename) == ("python", "model.py")
    assert native.HasField("optimization")
    assert not twin.HasField("optimization")
    assert native.parameters["intra_op_thread_count"].string_value == "1"
    assert not twin.parameters
    assert errors(tmp_path / "twin") == []
    assert "--cache-config=local" in (tmp_path / "twin/launch.sh").read_text()
    assert errors(root) == []


def test_a_twin_batches_where_the_backend_cannot(live, tmp_path):
    root = live.root("openvino")
    write_python_variant(root, tmp_path / "twin", release="24.10")
    native, twin = read_configs(root)["tiny"], read_configs(tmp_path / "twin")["tiny"]
    assert (native.max_batch_size, twin.max_batch_size) == (0, 4)
    assert twin.HasField("dynamic_batching")
    assert [list(t.dims) for t in twin.input] == [[-1], [-1]]
    assert manifests.read(tmp_path / "twin").max_batch_size == 4


def test_a_twin_keeps_the_batch_size_that_was_asked_for(live, tmp_path):
    root = live.root("ort", overrides="max_batch_size: 0")
    write_python_variant(root, tmp_path / "twin", release="24.10")
    twin = read_configs(tmp_path / "twin")["tiny"]
    assert (twin.max_batch_size, twin.HasField("dynamic_batching")) == (0, False)
    assert errors(tmp_path / "twin") == []


def test_a_twin_of_a_package_needs_no_ensemble(live, tmp_path):
    root = live.root("aoti")
    assert manifests.read(root).models == ("tiny", "tiny_aoti")
    assert write_python_variant(root, tmp_path / "twin", release="24.10").models == ("tiny",)
    assert sorted(read_configs(tmp_path / "twin")) == ["tiny"]
    assert errors(tmp_path / "twin") == []


def test_a_python_repository_is_emitted_for_another_release_as_it_is(live, tmp_path):
    root = live.root("null", overrides='parameters { key: "mode" value { string_value: "throughput" } }')
    write_python_variant(root, tmp_path / "twin", release="24.10")
    assert read_configs(tmp_path / "twin") == read_configs(root)
    spec = json.loads((tmp_path / "twin/tiny/1/artifact.json").read_text())
    assert spec["numpy_below_2"]
    assert not json.loads((root / "tiny/1/artifact.json").read_text())["numpy_below_2"]


def test_a_twin_is_whole_or_not_there(live, tmp_path):
    root = live.root("ort")
    (tmp_path / "there").mkdir()
    with pytest.raises(OutputError, match="exists already"):
        write_python_variant(root, tmp_path / "there", release="24.10")
    broken = tmp_path / "broken"
    shutil.copytree(root, broken)
    (broken / "tiny/1/model.onnx").unlink()
    with pytest.raises(InputError, match=r"has all files of ort@cpu"):
        write_python_variant(broken, tmp_path / "twin", release="24.10")
    with pytest.raises(UsageError, match="unknown Triton release"):
        write_python_variant(root, tmp_path / "twin", release="1.0")
    assert not (tmp_path / "twin").exists()


@pytest.mark.parametrize("name", ["../tiny", "a/b", "..", ".hidden"])
def test_a_manifest_that_names_a_model_elsewhere_is_refused(live, tmp_path, name):
    root = tmp_path / "escaping"
    shutil.copytree(live.root("ort"), root)
    manifests.write(dataclasses.replace(manifests.read(root), models=(name,)), root)
    with pytest.raises(UsageError, match="cannot name a folder"):
        write_python_variant(root, tmp_path / "twin", release="24.10")


# ---------------------------------------------------------------------------------------------------------------------
# The command


def accel(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "accel", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


def test_verify_serves_and_prints_the_figures(live):
    done = accel("verify", live.root("ort"), "--serve", "--via", "embedded")
    assert done.returncode == 0, done.stderr
    assert "tiny by the Python-backend variant of onnxruntime" in done.stdout
    assert [line.split()[:2] for line in done.stdout.splitlines() if line.startswith("opt")] == [
        ["opt", "hidden"],
        ["opt", "length"],
    ]


def test_verify_against_a_running_server_exits_1_on_errors(ort, live):
    running, root = ort
    done = accel("verify", live.root("torch"), "--serve", "--via", f"grpc://{running.endpoint.grpc}", "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["served"]["endpoint"]["via"] == "url"
    assert len(found["served"]["answers"]) == 8
    done = accel("verify", live.root("null"), "--serve", "--via", running.endpoint.grpc)
    assert done.returncode == 0, "better answers than in process are no error"
    done = accel("verify", root, "--via", "embedded")
    assert done.returncode == 2
    assert "--serve" in done.stderr


def test_serving_leaves_no_bytecode_behind(fleet):
    """What Python leaves beside a source it runs in its place the next time."""
    for running, root in fleet.values():
        for folder in {root, running.root}:
            assert list(folder.rglob("__pycache__")) == []
            assert errors(folder) == []


def changed_script(root: Path, trace: Path) -> None:
    script = root / "launch.sh"
    text = script.read_text()
    script.unlink()  # it may be a hard link
    script.write_text(f"#!/bin/bash\ntouch {trace}\n{text}")


def planted_bytecode(root: Path, trace: Path) -> None:
    folder = root / "tiny/1/__pycache__"
    folder.mkdir()
    tag = sys.implementation.cache_tag
    source = folder / "evil.py"
    source.write_text(f"open({str(trace)!r}, 'w').close()\n")
    py_compile.compile(str(source), cfile=str(folder / f"model.{tag}.pyc"))
    source.unlink()


def without_manifest(root: Path, trace: Path) -> None:
    changed_script(root, trace)
    (root / manifests.FILENAME).unlink()


@pytest.mark.parametrize("attack", [changed_script, planted_bytecode, without_manifest])
def test_a_folder_that_was_changed_is_not_run(live, tmp_path, attack):
    root, trace = tmp_path / "foreign", tmp_path / "was-run"
    shutil.copytree(live.root("null", release="24.10"), root)  # the one that the embedded server is
    attack(root, trace)
    for words in (("serve", root, "--via", "embedded"), ("bench", root, "--via", "embedded")):
        done = accel(*words)
        assert done.returncode == 2, done.stderr
        assert "--allow-changed" in done.stderr
    assert not trace.exists()


def test_a_folder_that_was_changed_runs_where_that_is_asked_for(live, tmp_path):
    root, trace = tmp_path / "own", tmp_path / "was-run"
    shutil.copytree(live.root("null", release="24.10"), root)  # the one that the embedded server is
    changed_script(root, trace)
    with server.start(root, via="embedded", log=tmp_path / "log", allow_changed=True) as running:
        assert running.alive()
    assert trace.exists()


def test_verify_does_not_serve_what_is_broken(live, tmp_path):
    root = tmp_path / "broken"
    shutil.copytree(live.root("ort"), root)
    (root / "tiny/config.pbtxt").write_text('name: "tiny"')
    done = accel("verify", root, "--serve")
    assert done.returncode == 1
    assert "Triton" not in done.stdout.splitlines()[0]
