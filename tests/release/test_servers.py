"""One server for all models of a pool, by the script that the release has for it."""

import os
import re
import shutil
import subprocess

import numpy as np
import pytest
from tiny_release import ask, wait_ready

from accel.core import environments
from accel.release import document
from accel.triton import manifest, python_variant
from accel.triton.reading import read_points
from accel.triton.servers import hosts, processes


@pytest.fixture
def script(built):
    return (built[0] / "store" / "1" / "servers" / "here.sh").read_text()


def test_a_pool_with_several_repositories_has_a_script_and_others_have_none(built, script):
    root = built[0] / "store" / "1"
    assert [p.name for p in (root / "servers").iterdir()] == ["here.sh"]
    assert "servers/here.sh" in {f.path for f in document.read(root).files}
    assert subprocess.run(["bash", "-n"], input=script, text=True, check=False).returncode == 0
    assert '--model-repository="$root/repositories/here/a"' in script
    assert "--disable-auto-complete-config" in script


def test_memory_is_what_was_measured_added_up(built, script):
    release = document.read(built[0] / "store" / "1")
    chosen = [next(v for v in e.variants if v.id == e.chosen) for e in release.entries if e.repository]
    (total,) = re.findall(r": ([\d.]+) (MiB|GiB) in all", script)
    mib = float(total[0]) * (1024 if total[1] == "GiB" else 1)
    assert mib == pytest.approx(sum(v.peak_rss_mib for v in chosen), rel=0.02)


@pytest.mark.skipif(not environments.installed("triton"), reason="the embedded server is not installed")
def test_the_embedded_server_serves_all_and_explicit_mode_loads_by_name(built, tmp_path):
    """It has the Python backend alone, so each repository is emitted for that one: names, configs and answers stay."""
    root, points = built[0] / "store" / "1", {}
    shutil.copytree(root / "servers", tmp_path / "1" / "servers")
    for name in "ab":
        own = root / "repositories" / "here" / name
        python_variant.write_python_variant(
            own, tmp_path / "1" / "repositories" / "here" / name, release=hosts.EMBEDDED_RELEASE
        )
        points[name] = next(iter(read_points(own, manifest.read(own)).values()))
    (tmp_path / "server").mkdir()
    host = hosts.embedded(tmp_path / "1" / "repositories" / "here" / "a", None, tmp_path / "server")
    ports = processes.choose_ports({"http": None, "grpc": None, "metrics": None})
    name = f"accel-{os.getpid()}-all"
    _, variables = hosts.command(host, tmp_path, name=name, ports={}, flags=(), cache_bytes=0)
    told = variables | {f"{kind.upper()}_PORT": str(port) for kind, port in ports.items()}
    told |= {"MODEL_CONTROL_MODE": "explicit", "MODELS": "a"}
    command = ["bash", str(tmp_path / "1" / "servers" / "here.sh"), *host.flags]
    command += [f"--backend-config=python,shm-region-prefix-name={name}"]
    running = processes.launch(command, told, log=tmp_path / "log", name=name, scratch=tmp_path / "server")
    url = f"http://127.0.0.1:{ports['http']}"
    try:
        wait_ready(f"{url}/v2/health/ready", running)
        states = {m["name"]: m.get("state") for m in ask(f"{url}/v2/repository/index", {})}
        assert states["a"] == "READY"
        assert states.get("b") != "READY"
        ask(f"{url}/v2/repository/models/b/load", {})
        for model, point in points.items():
            (inputs,) = point.inputs.items()
            given = {"name": inputs[0], "shape": list(inputs[1].shape), "datatype": "FP32"}
            body = {"inputs": [given | {"data": inputs[1].ravel().tolist()}]}
            (answer,) = ask(f"{url}/v2/models/{model}/infer", body)["outputs"]
            (expected,) = point.outputs.values()
            np.testing.assert_allclose(np.reshape(answer["data"], answer["shape"]), expected, rtol=1e-4, atol=1e-5)
        ask(f"{url}/v2/repository/models/a/unload", {})
    finally:
        running.end()
