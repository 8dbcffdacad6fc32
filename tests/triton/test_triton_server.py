"""The real embedded server: started, asked, overloaded, insulted, killed; and the other ways to run one."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import psutil
import pytest
from live import Live

from accel.bench import usage
from accel.core import environments, temporary
from accel.core.errors import InputError, StageError, UnavailableError, UsageError
from accel.core.values import TensorSpec
from accel.triton.config import LIMITED, model_config
from accel.triton.manifest import read
from accel.triton.python_variant import write_python_variant
from accel.triton.servers import hosts, processes, server
from accel.triton.servers.answers import check, client, infer
from accel.triton.servers.server import Server

CACHED = "response_cache { enable: true }"
MODEL = """
import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        {first}

    def execute(self, requests):
        return [pb_utils.InferenceResponse([pb_utils.Tensor("b", np.zeros(1, np.float32))]) for _ in requests]
"""
CONFIG = """
backend: "{backend}"
max_batch_size: 0
input {{ name: "a" data_type: TYPE_FP32 dims: 1 }}
output {{ name: "b" data_type: TYPE_FP32 dims: 1 }}
"""


def bare(root: Path, *, first: str = "pass", backend: str = "python", name: str = "bare") -> Path:
    """Write a repository that is not of accel's making."""
    (root / name / "1").mkdir(parents=True)
    (root / name / "config.pbtxt").write_text(CONFIG.format(backend=backend))
    (root / name / "1/model.py").write_text(MODEL.format(first=first))
    return root


def feed(shape: tuple[int, int], seed: int = 0) -> dict[str, np.ndarray]:
    ids = np.random.default_rng(seed).integers(0, 50, shape)
    return {"input_ids": ids, "attention_mask": np.ones(shape, np.int64)}


def gone(pid: int, within_s: float = 20) -> bool:
    limit = time.monotonic() + within_s
    while psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
        if time.monotonic() > limit:
            return False
        time.sleep(0.1)
    return True


@pytest.fixture(scope="module")
def running(live: Live, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    root, log = live.root("ort", overrides=CACHED), tmp_path_factory.mktemp("server") / "server.log"
    with server.start(root, via="embedded", log=log, cache_bytes=1 << 20) as started:
        yield started


def statistics(running: Server) -> Mapping[str, int]:
    with client(running.endpoint) as calls:
        stats = calls.get_inference_statistics("tiny").model_stats[0]
    return {
        "inferences": stats.inference_count,
        "executions": stats.execution_count,
        "hits": stats.inference_stats.cache_hit.count,
        "misses": stats.inference_stats.cache_miss.count,
    }


def test_listens_on_this_machine_only(running):
    listening = [c.laddr for c in psutil.Process(running.endpoint.pid).net_connections() if c.status == "LISTEN"]
    assert {ip.removeprefix("::ffff:") for ip, _ in listening} == {"127.0.0.1"}
    ports = {int(address.rpartition(":")[2]) for address in (running.endpoint.grpc, running.endpoint.http)}
    assert ports <= {port for _, port in listening}
    assert running.alive()
    assert "Started GRPCInferenceService" in running.log.read_text()


def test_concurrent_requests_are_batched(running, live):
    before = statistics(running)

    def send(seed: int) -> dict[str, np.ndarray]:
        with client(running.endpoint) as calls:
            return infer(calls, "tiny", feed((1, 6), seed), live.source.outputs)

    with ThreadPoolExecutor(16) as pool:
        answers = list(pool.map(send, range(100, 260)))
    limit = time.monotonic() + 5  # the server counts a request after it was answered
    while (after := statistics(running))["inferences"] - before["inferences"] < 160 and time.monotonic() < limit:
        time.sleep(0.05)
    inferences, executions = (after[k] - before[k] for k in ("inferences", "executions"))
    assert inferences == 160
    assert executions < inferences
    for seed in (100, 259):  # whichever neighbours a request had
        with client(running.endpoint) as calls:
            alone = infer(calls, "tiny", feed((1, 6), seed), live.source.outputs)
        np.testing.assert_allclose(answers[seed - 100]["hidden"], alone["hidden"], atol=1e-6, rtol=0)


def test_equal_requests_are_answered_from_the_cache(running, live):
    before = statistics(running)
    with client(running.endpoint) as calls:
        first, second = (infer(calls, "tiny", feed((2, 7), 9), live.source.outputs) for _ in range(2))
    after = statistics(running)
    assert (after["hits"] - before["hits"], after["misses"] - before["misses"]) == (1, 1)
    assert after["executions"] - before["executions"] == 1
    np.testing.assert_array_equal(first["hidden"], second["hidden"])
    assert running.notices == ()


def test_metrics_answer(running):
    with urllib.request.urlopen(f"http://{running.endpoint.metrics}/metrics", timeout=5) as answer:
        text = answer.read().decode()
    assert 'nv_inference_request_success{model="tiny",version="1"}' in text
    assert "nv_cpu_utilization" in text


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda f: f | {"input_ids": f["input_ids"].astype(np.float32)}, "data-type"),
        (lambda f: f | {"input_ids": f["input_ids"] + 50}, r"expected values in \[0, 49\]"),
        (lambda f: f | {"input_ids": f["input_ids"] - 50}, r"expected values in \[0, 49\]"),
        (lambda f: f | {"input_ids": f["input_ids"][:, :4]}, "axis 'seq' is"),
        (lambda f: {k: np.concatenate([v, v], axis=1) for k, v in f.items()}, r"served are \(1, 2\) to \(4, 10\)"),
        (lambda f: {k: np.repeat(v, 5, axis=0) for k, v in f.items()}, "batch-size must be <= 4"),
        (lambda f: {k: v[:0] for k, v in f.items()}, "byte size mismatch"),
        (lambda f: {k: v[0, :3] for k, v in f.items()}, "unexpected shape"),
        (lambda f: {"input_ids": f["input_ids"]}, "expected 2 inputs but got 1"),
        (lambda f: f | {"other": f["input_ids"]}, "expected 2 inputs but got 3"),
    ],
)
def test_what_does_not_fit_is_refused_and_the_server_lives(running, live, change, why):
    with client(running.endpoint) as calls:
        with pytest.raises(InputError, match=why):
            infer(calls, "tiny", change(feed((1, 6))), live.source.outputs)
        assert infer(calls, "tiny", feed((1, 6)), live.source.outputs)["hidden"].shape == (1, 6, 16)
    assert running.alive()


def test_its_memory_is_seen(running):
    cpu_s, memory_mib = usage.use(running.endpoint)
    assert cpu_s > 0
    assert psutil.Process(running.endpoint.pid).memory_info().rss / 2**20 < memory_mib < 4096


def test_a_running_server_is_found_by_its_url(running, live):
    port = int(running.endpoint.grpc.rpartition(":")[2])
    for url in (f"grpc://127.0.0.1:{port}", f"127.0.0.1:{port}", f"http://127.0.0.1:{port - 1}"):
        with server.start(live.root("ort"), via=url, log=Path(os.devnull)) as found:
            endpoint = found.endpoint
            assert (endpoint.grpc, endpoint.via, endpoint.release, endpoint.pid) == (
                running.endpoint.grpc,
                "url",
                "24.10",
                None,
            )
            assert found.alive()
            assert found.python_models == {"tiny"}
            assert usage.use(found.endpoint) == (None, 0.0)
    assert running.alive(), "leaving a server behind a URL must not end it"
    assert server.connect(running.endpoint.grpc, live.root("null")).python_models == set()
    with pytest.raises(UnavailableError, match="no Triton server answers"):
        server.connect("127.0.0.1:9")
    for url in ("ftp://here:8001", "here:port", "a b:1", "here:99999"):
        with pytest.raises(UsageError, match="not an address of a server"):
            server.connect(url)


# ---------------------------------------------------------------------------------------------------------------------
# Starts that fail


def test_a_taken_port_is_said_before_anything_starts(live, tmp_path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(UsageError, match=f"--grpc-port {port} of 127.0.0.1 cannot be had"):
            server.start(live.root("null"), via="embedded", log=tmp_path / "log", grpc_port=port)
    for ports in ({"http_port": 0}, {"http_port": 70000}, {"http_port": 18765, "metrics_port": 18765}):
        with pytest.raises(UsageError, match="expected 1 to 65535"):
            server.start(live.root("null"), via="embedded", log=tmp_path / "log", **ports)
    assert not (tmp_path / "log").exists()


def test_a_port_that_is_lost_in_between_is_chosen_anew(running, live, tmp_path, monkeypatch):
    """The server that has the port is a Triton, too: its answers must not be taken for those of the new one."""
    chosen = []
    choose = processes.choose_ports

    def unlucky(fixed: Mapping[str, int | None]) -> dict[str, int]:
        ports = choose(fixed)
        chosen.append(ports)
        return ports if len(chosen) > 1 else {**ports, "grpc": int(running.endpoint.grpc.rpartition(":")[2])}

    monkeypatch.setattr(server, "choose_ports", unlucky)
    with server.start(live.root("null"), via="embedded", log=tmp_path / "log") as second:
        assert len(chosen) == 2
        assert second.endpoint.grpc == f"127.0.0.1:{chosen[1]['grpc']}"
        assert check(second.endpoint, live.root("null")) == ()


def test_a_model_that_does_not_load_says_why(tmp_path):
    root = bare(bare(tmp_path / "root"), first="import nothing_like_that", name="broken")
    # how the server ends differs: now and then it aborts while it unloads what had loaded
    ended = r"the server (ended with exit code 1|was ended by SIGABRT)"
    with pytest.raises(StageError, match=f"{ended}: model 'broken' failed to load: ModuleNotFoundError") as error:
        server.start(root, via="embedded", log=tmp_path / "log")
    assert "No module named 'nothing_like_that'" in error.value.message
    assert "At:" not in error.value.message
    assert error.value.log == str(tmp_path / "log")
    assert "successfully loaded 'bare'" in (tmp_path / "log").read_text()


def test_a_runtime_that_is_missing_says_where_to_put_it(live, tmp_path, monkeypatch):
    """With the main environment's ONNX Runtime first, that artifact's provider is not there."""
    monkeypatch.setenv("ACCEL_SITE_PACKAGES", str(environments.site_packages(environments.MAIN)))
    with pytest.raises(StageError, match="has no OpenVINOExecutionProvider") as error:
        server.start(live.root("ort-openvino"), via="embedded", log=tmp_path / "log")
    assert "ACCEL_SITE_PACKAGES naming the site-packages of accel's environment 'ort-openvino' first" in str(
        error.value
    )
    monkeypatch.setattr(environments, "installed", lambda name: name == "triton")
    with pytest.raises(UnavailableError, match="runs in environment 'ort-openvino'") as missing:
        server.start(live.root("ort-openvino"), via="embedded", log=tmp_path / "log")
    assert missing.value.fix == "accel env install ort-openvino"


def test_a_server_that_is_never_ready_is_ended(tmp_path):
    root = bare(tmp_path / "root", first="import time; time.sleep(60)")
    with pytest.raises(StageError, match="not ready in time") as error:
        server.start(root, via="embedded", log=tmp_path / "log", timeout_s=2)
    assert "loading: bare" in error.value.message
    left = [p for p in psutil.process_iter(["cmdline"]) if str(root) in " ".join(p.info["cmdline"] or [])]
    assert left == []


def test_a_repository_that_leads_outside_is_refused(tmp_path):
    root = bare(tmp_path / "root")
    (root / "bare/1/weights").symlink_to("/etc/passwd")
    with pytest.raises(InputError, match="leads out of the repository, to /etc/passwd"):
        server.start(root, via="embedded", log=tmp_path / "log")
    with pytest.raises(InputError, match=r"holds no <model>/config\.pbtxt"):
        server.start(tmp_path / "root/bare/1", via="embedded", log=tmp_path / "log")
    own = bare(tmp_path / "run/best/cpu")
    with pytest.raises(InputError) as told:
        server.start(tmp_path / "run", via="embedded", log=tmp_path / "log")
    assert told.value.fix == f"name a repository root, such as {own}"


def test_the_twin_lies_where_files_can_be_linked(live, tmp_path, monkeypatch):
    root = live.root("ort")
    if Path("/dev/shm").stat().st_dev == root.stat().st_dev:
        pytest.skip("there is no second file system here")
    monkeypatch.setattr(tempfile, "tempdir", "/dev/shm")
    scratch = server._scratch(root, "accel-test")
    try:
        assert scratch.parent == root.parent
        write_python_variant(root, scratch / "repository", release="24.10")
        assert (scratch / "repository/tiny/1/artifact/model.onnx").samefile(root / "tiny/1/model.onnx")
    finally:
        shutil.rmtree(scratch)


def test_a_foreign_repository_without_the_backend_has_no_twin(tmp_path):
    root = bare(tmp_path / "root", backend="onnxruntime")
    with pytest.raises(
        InputError, match="no Python-backend variant, and the embedded server has no backend 'onnxruntime'"
    ):
        server.start(root, via="embedded", log=tmp_path / "log")


def test_without_its_environment_the_server_names_the_command(live, tmp_path, monkeypatch):
    monkeypatch.setenv("ACCEL_HOME", str(tmp_path))
    with pytest.raises(UnavailableError) as error:
        server.start(live.root("null"), via="embedded", log=tmp_path / "log")
    assert error.value.fix == "accel env install triton"
    with pytest.raises(UsageError, match=r"embedded server is Triton 24\.10, not 26\.05"):
        server.start(live.root("null"), via="embedded", log=tmp_path / "log", release="26.05")
    with pytest.raises(UsageError, match="did you mean embedded"):
        server.start(live.root("null"), via="embeded", log=tmp_path / "log")


def test_reasons_are_the_lines_that_say_why():
    noise = 'E1121 19:42:17.642800 1 server.cc:241] "CudaDriverHelper has not been initialized."\n'
    lines = {
        "Poll failed for model directory 'ok': failed to read text proto from m/ok/config.pbtxt": "E1121 1 1 m.cc:1] ",
        "failed to start GRPC service: Unavailable - Socket '127.0.0.1:1' already in use": "E1121 1 1 main.cc:245] ",
        "unable to find backend library for backend 'x'": "E1121 1 1 other.cc:245] ",
    }
    for text, prefix in lines.items():
        assert processes.reasons(f'{noise}I1121 1 1 a.cc:1] "fine"\n{prefix}"{text}"\n+---+\n') == text
    assert processes.reasons("a: error while loading shared libraries: libx.so.1: cannot open\n").endswith(
        "cannot open"
    )
    assert processes.reasons("one\n\ntwo\n") == "one; two"
    assert processes.reasons("") == "it printed nothing"


# ---------------------------------------------------------------------------------------------------------------------
# Ends

HOLDER = """
import sys, time
from pathlib import Path
from accel.triton.servers import server
running = server.start(Path(sys.argv[1]), via="embedded", log=Path(sys.argv[2]))
print(running.endpoint.pid, running.endpoint.grpc, running.root, flush=True)
time.sleep(100)
"""


def test_the_server_ends_with_the_process_that_started_it(live, tmp_path):
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER, live.root("ort"), tmp_path / "log"], stdout=subprocess.PIPE, text=True
    )
    assert holder.stdout is not None
    with holder:
        pid, _, served = holder.stdout.readline().split()
        processes = [psutil.Process(int(pid)), *psutil.Process(int(pid)).children(recursive=True)]
        assert len(processes) == 2, "the server and the stub of its one instance"
        holder.kill()
    assert all(gone(p.pid) for p in processes)
    limit = time.monotonic() + 10
    while Path(served).exists() and time.monotonic() < limit:
        time.sleep(0.1)
    assert not Path(served).parent.exists()
    assert "All models are stopped" in (tmp_path / "log").read_text(), "it was asked to end before it was made to"


def test_a_server_that_has_no_time_to_end_leaves_nothing(live, tmp_path):
    with server.start(live.root("ort"), via="embedded", log=tmp_path / "log", grace_s=0) as started:
        processes = [
            psutil.Process(started.endpoint.pid),
            *psutil.Process(started.endpoint.pid).children(recursive=True),
        ]
        assert len(processes) == 2
    assert all(gone(p.pid) for p in processes)
    assert not started.root.parent.exists()
    assert not [p for p in Path("/dev/shm").iterdir() if p.name.startswith(started.root.parent.name[:18])]
    assert "All models are stopped" not in (tmp_path / "log").read_text()


def test_a_killed_server_is_noticed_and_explained(live, tmp_path):
    root = live.root("null")
    with server.start(root, via="embedded", log=tmp_path / "log") as started:
        stubs = psutil.Process(started.endpoint.pid).children(recursive=True)
        with client(started.endpoint) as calls:
            infer(calls, "tiny", feed((1, 6)), live.source.outputs)
            os.kill(started.endpoint.pid, signal.SIGKILL)
            limit = time.monotonic() + 20
            while started.alive() and time.monotonic() < limit:
                time.sleep(0.05)
            assert not started.alive()
            with pytest.raises(StageError, match="no server answers"):
                infer(calls, "tiny", feed((1, 6)), live.source.outputs)
        with pytest.raises(StageError, match="no server answers"):
            check(started.endpoint, root)
        why = "the server was ended by SIGKILL (as the kernel does when memory runs out)"
        assert started.failure().message == why
    assert all(gone(stub.pid) for stub in stubs)
    assert not [p for p in Path("/dev/shm").iterdir() if p.name.startswith(started.root.parent.name[:18])]


def test_a_server_that_hangs_is_made_to_end(live, tmp_path):
    with server.start(live.root("null"), via="embedded", log=tmp_path / "log", grace_s=0.5) as started:
        os.kill(started.endpoint.pid, signal.SIGSTOP)
        begin = time.monotonic()
    assert 0.5 < time.monotonic() - begin < 5
    assert gone(started.endpoint.pid)


def test_serve_answers_until_it_is_stopped(live, tmp_path):
    """Ctrl-C and SIGTERM are how one stops it: exit code 0. Its server's own end is an error."""
    command = [sys.executable, "-m", "accel", "serve", str(live.root("ort")), "--via", "embedded"]
    started = [
        subprocess.Popen(
            [*command, *more],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # the background's "ignore" is inherited
        )
        for more in (["--json"], ["--cache-mib", "1"], ["--log", str(tmp_path / "log")])
    ]
    first, second, third = started
    with first, second, third:
        try:
            endpoint = json.loads(first.stdout.readline())
            assert (endpoint["models"], endpoint["twins"]) == (["tiny"], ["tiny"])
            with urllib.request.urlopen(f"http://{endpoint['http']}/v2/models/tiny/ready", timeout=5) as answer:
                assert answer.status == 200
            lines = [second.stdout.readline() for _ in range(5)]
            assert [line.split()[0] for line in lines[:3]] == ["gRPC", "HTTP", "metrics"]
            assert lines[3:] == ["models   tiny\n", "tiny: served by the Python-backend variant of onnxruntime\n"]
            third.stdout.readline()
            pids = [child.pid for child in psutil.Process(third.pid).children() if child.name() == "tritonserver"]
            first.send_signal(signal.SIGTERM)
            second.send_signal(signal.SIGINT)
            os.kill(pids[0], signal.SIGKILL)
            said = [process.communicate(timeout=30)[1] for process in started]
        finally:
            for process in started:
                process.kill()
    assert [process.returncode for process in started] == [0, 0, 1]
    assert "no config enables response_cache" in said[1]
    assert "the server was ended by SIGKILL" in said[2]
    assert gone(endpoint["pid"])
    assert not Path(endpoint["log"]).exists()


def test_serve_refuses_what_it_cannot_do(live):
    for arguments, why in (
        (["--backend", "onnxruntime"], "expected python"),
        (["--via", "grpc://127.0.0.1:1"], "a server that runs already"),
    ):
        command = [sys.executable, "-m", "accel", "serve", str(live.root("null")), *arguments]
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 2
        assert why in done.stderr


# ---------------------------------------------------------------------------------------------------------------------
# Other ways to run a server


@pytest.fixture
def install(tmp_path: Path) -> Path:
    """Lay the embedded server out as an image has it, and return its program."""
    home = tmp_path / "opt"
    host = hosts.embedded(tmp_path, None, tmp_path / "scratch")
    (home / "bin").mkdir(parents=True)
    shutil.copytree(tmp_path / "scratch/backends", home / "backends", symlinks=True)
    program = home / "bin/tritonserver"
    variables = "".join(f"export {k}='{v}'\n" for k, v in host.environment.items())
    program.write_text(f'#!/bin/sh\n{variables}exec "{host.program}" --backend-directory={home}/backends "$@"\n')
    program.chmod(0o755)
    return program


def test_a_local_server_is_taken_where_there_is_one(live, tmp_path, install, monkeypatch):
    monkeypatch.setenv("TRITONSERVER", str(install))
    with server.start(live.root("ort"), log=tmp_path / "log") as started:
        assert started.endpoint.via == "local"
        assert started.endpoint.release == "24.10"
        assert started.python_models == {"tiny"}, "beside the program lies only the Python backend"
        assert check(started.endpoint, live.root("ort")) == ()
        assert started.notices == ("the repository is for Triton 26.08, the server is 24.10",)


def test_the_twin_is_served_where_it_is_asked_for(live, tmp_path, install, monkeypatch):
    monkeypatch.setenv("TRITONSERVER", str(install))
    (install.parent.parent / "backends/onnxruntime").mkdir()
    host = hosts.local(live.root("ort"), None, tmp_path)
    assert host.backends == {"python", "onnxruntime"}
    assert server._served(live.root("ort"), host, tmp_path / "a", python_backend=False) == (live.root("ort"), set())
    root, twins = server._served(live.root("ort"), host, tmp_path / "b", python_backend=True)
    assert (read(root).backend, twins) == ("python", {"tiny"})


def test_no_local_server_and_no_docker_are_said(live, tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("TRITONSERVER", raising=False)
    for via, why in (("local", "no tritonserver on PATH"), ("docker", "no docker on PATH")):
        with pytest.raises(UnavailableError, match=why):
            server.start(live.root("null"), via=via, log=tmp_path / "log")


def test_a_docker_engine_that_does_not_answer_is_said(live, tmp_path, monkeypatch):
    if shutil.which("docker") is None:
        pytest.skip("there is no docker on PATH")
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/none.sock")
    with pytest.raises(UnavailableError, match=r"docker's engine does not answer: .*none\.sock"):
        server.start(live.root("null"), via="docker", log=tmp_path / "log")


def test_the_docker_command_serves_the_folder_on_this_machine_only(live, monkeypatch):
    monkeypatch.setenv("ACCEL_SITE_PACKAGES", "/opt/runtimes")
    host = hosts.Host("docker", "docker", "26.05", frozenset(), {}, image="nvcr.io/nvidia/tritonserver:26.05-py3")
    root = live.root("ort", overrides=CACHED)
    ports = {"http": 1, "grpc": 2, "metrics": 3}
    line, variables = hosts.command(
        host, root, name="accel-x", ports=ports, flags=["--log-verbose=1"], cache_bytes=4096
    )
    image = line.index("nvcr.io/nvidia/tritonserver:26.05-py3")
    assert line[:2] == ["docker", "run"]
    assert {"--rm", "--name=accel-x", f"--volume={root}:/models:ro"} <= set(line[:image])
    assert "--volume=/opt/runtimes:/opt/runtimes:ro" in line[:image]
    assert {"--env=ADDRESS=127.0.0.1", "--env=GRPC_PORT=2", "--env=CACHE_BYTES=4096"} <= set(line[:image])
    assert "--gpus=all" not in line
    assert line[image + 1 :] == [
        "bash",
        "/models/launch.sh",
        "--id=accel-x",
        "--backend-config=python,shm-region-prefix-name=accel-x",
        "--log-verbose=1",
    ]
    assert variables == dict(os.environ)


ECHO = """
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        tensors = [pb_utils.get_input_tensor_by_name(request, "a").as_numpy() for request in requests]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("b", tensor + 1)]) for tensor in tensors]
"""


@pytest.mark.parametrize("single", [False, True])
def test_a_backend_of_the_user_serves_natively(tmp_path, single):
    """A backend in Python stands for one that was compiled: the server finds both in one way."""
    backends = tmp_path / "backends"
    (backends / "echo").mkdir(parents=True)
    (backends / "echo/model.py").write_text(ECHO)
    root = bare(tmp_path / "root", backend="echo")
    folder = backends / "echo" if single else backends
    with server.start(root, via="embedded", log=tmp_path / "log", backend_directory=folder) as running:
        assert running.python_models == frozenset()
        with client(running.endpoint) as calls:
            found = infer(calls, "bare", {"a": np.array([2], np.float32)}, (TensorSpec("b", "float32", (1,)),))
    assert found["b"] == [3]


def test_a_folder_without_a_backend_says_what_was_expected(tmp_path):
    root = bare(tmp_path / "root", backend="onnxruntime")
    with pytest.raises(InputError, match=r"holds no backend: expected <name>/libtriton_<name>\.so"):
        server.start(root, via="embedded", log=tmp_path / "log", backend_directory=tmp_path / "root")


def test_what_a_server_and_its_models_leave_goes_with_it(tmp_path):
    """Temporary files of a model, a process that called setsid, and the empty folder of the Python backend."""
    first = (
        "import os, subprocess, tempfile; "
        f"open({str(tmp_path / 'left')!r}, 'w').write(tempfile.mkstemp()[1]); "
        f"open({str(tmp_path / 'pid')!r}, 'w').write("
        "str(subprocess.Popen(['sleep', '600'], start_new_session=True).pid))"
    )
    root = bare(tmp_path / "root", first=first)
    running = server.start(root, via="embedded", log=tmp_path / "log")
    before = set(Path("/tmp").glob("python_env_*"))
    left, pid = Path((tmp_path / "left").read_text()), int((tmp_path / "pid").read_text())
    assert left.exists()
    assert left.is_relative_to(temporary.root())
    os.kill(running.endpoint.pid, signal.SIGKILL)
    running.stop()
    assert not left.exists()
    assert gone(pid)
    own = {p for p in before if p.exists() and p.stat().st_ctime >= running._running.begun_s}
    assert own == set()


def test_a_failed_server_leaves_its_log(tmp_path):
    root = bare(tmp_path / "root", first="import nothing_like_that")
    with pytest.raises(StageError) as error:
        server.start(root, via="embedded", log=server.fresh_log())
    kept = Path(error.value.log)
    assert not kept.is_relative_to(temporary.root())
    assert "nothing_like_that" in kept.read_text()
    kept.unlink()


def test_a_repository_in_a_folder_with_a_space_is_served(tmp_path):
    """The Python backend gives its path to a shell, whose model then ends, and the server waited ten minutes for it."""
    root = bare(tmp_path / "my models", first="pass")
    with server.start(root, via="embedded", log=tmp_path / "log", timeout_s=60) as running:
        assert " " not in str(running.root)


def test_the_queue_refuses_what_waits_too_long(tmp_path):
    """Requests of clients that went away must not be computed for ever before those of clients that wait."""
    config = model_config("slow", (), (), max_batch_size=4, version=1, backend="python", dynamic_batching=LIMITED)
    batching = config.dynamic_batching
    batching.default_queue_policy.max_queue_size = 8
    batching.default_queue_policy.default_timeout_microseconds = 400_000
    root = bare(tmp_path / "root", first="pass")
    config = root / "bare/config.pbtxt"
    text = config.read_text().replace("max_batch_size: 0", "max_batch_size: 4")
    config.write_text(f"{text}\ndynamic_batching {{ {batching} }}\n")
    file = root / "bare/1/model.py"
    file.write_text(
        file.read_text().replace("        return [pb", "        import time; time.sleep(1)\n        return [pb")
    )
    with server.start(root, via="embedded", log=tmp_path / "log") as running, ThreadPoolExecutor(40) as pool:

        def ask(_: int) -> str:
            from tritonclient import grpc
            from tritonclient.utils import InferenceServerException

            given = grpc.InferInput("a", [1, 1], "FP32")
            given.set_data_from_numpy(np.zeros((1, 1), np.float32))
            with grpc.InferenceServerClient(running.endpoint.grpc) as calls:
                try:
                    calls.infer("bare", [given])
                except InferenceServerException as error:
                    return str(error)
            return ""

        said = list(pool.map(ask, range(40)))
    assert any("queue" in text.lower() for text in said), said
    assert "" in said
