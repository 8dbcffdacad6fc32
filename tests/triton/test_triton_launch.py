"""``launch.sh`` gives the server the flags that the configs need, and ``kubernetes.yaml`` runs it."""

import math
import os
import shlex
import subprocess
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
import yaml
from tritonclient.grpc import model_config_pb2 as pb

from accel.builders.targets import discover
from accel.core.values import Target
from accel.triton.launch import NEEDS, kubernetes, memory_of, require, script, with_memory
from accel.triton.releases import RELEASES, release
from accel.triton.servers import processes
from accel.triton.verify import verify

ADDRESSES = [
    *("--http-address=127.0.0.1", "--http-port=8000", "--grpc-address=127.0.0.1", "--grpc-port=8001"),
    *("--metrics-address=127.0.0.1", "--metrics-port=8002"),
]


def run(launch: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run the script with ``echo`` in place of the server and of docker."""
    kept = {"PATH": os.environ["PATH"], "TRITONSERVER": "echo", "DOCKER": "echo"}
    return subprocess.run([launch, *arguments], capture_output=True, text=True, env=kept | variables, timeout=30)


def flags(launch: Path, *arguments: str, **variables: str) -> list[str]:
    done = run(launch, *arguments, **variables)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.split()


@pytest.fixture
def emitted(bench):
    """Emit a backend's repository with overrides; return its ``launch.sh``."""

    def emit(backend: str, overrides: str = "", **changes) -> Path:
        artifact = bench.artifact(backend)
        bench.emit(artifact, overrides=overrides, threads=2, hardware="amd-epyc-2cpu", **changes)
        return bench.root(artifact) / "launch.sh"

    return emit


@pytest.mark.parametrize("backend", ["onnxruntime", "openvino", "aoti", "python"])
def test_the_plain_script_is_valid_and_binds_to_this_machine(emitted, backend):
    launch = emitted(backend)
    assert subprocess.run(["bash", "-n", launch]).returncode == 0
    assert os.access(launch, os.X_OK)
    assert flags(launch, "--log-verbose=1") == [
        f"--model-repository={launch.parent}",
        "--disable-auto-complete-config",
        *ADDRESSES,
        "--exit-timeout-secs=30",
        "--model-control-mode=none",
        "--log-verbose=1",
    ]
    assert "--grpc-address=0.0.0.0" in flags(launch, ADDRESS="0.0.0.0")
    assert "--http-port=9000" in flags(launch, HTTP_PORT="9000")


def test_every_variable_that_the_script_reads_is_explained(emitted):
    text = emitted(
        "aoti", 'response_cache { enable: true } instance_group [{host_policy: "a.1"}, {count: 2}]'
    ).read_text()
    head = text[: text.index("set -euo")]
    for name in ("ADDRESS", "HTTP_PORT", "GRPC_PORT", "METRICS_PORT", "MODEL_CONTROL_MODE", "MODEL_CONFIG_NAME"):
        assert f"{name}=" in head
    for name in ("CPU_CORES_a_1=", "NUMA_NODE_a_1=", "CPU_CORES_cpu=", "CACHE_BYTES=67108864", "OMP_NUM_THREADS=2"):
        assert name in head
    assert "here: amd-epyc-2cpu" in head


def test_a_response_cache_needs_a_size(emitted):
    launch = emitted("onnxruntime", "response_cache { enable: true }")
    assert "--cache-config=local,size=67108864" in flags(launch)
    assert "--cache-config=local,size=1048576" in flags(launch, CACHE_BYTES="1048576")
    assert not [f for f in flags(emitted("openvino", "response_cache { enable: false }")) if f.startswith("--cache")]


def test_host_policies_follow_the_instance_groups(emitted):
    launch = emitted("onnxruntime")
    assert not [f for f in flags(launch) if "host-policy" in f]
    found = flags(launch, CPU_CORES="0-3", NUMA_NODE="0")
    assert [f for f in found if "host-policy" in f] == [
        "--host-policy=cpu,cpu-cores=0-3",
        "--host-policy=cpu,numa-node=0",
    ]
    launch = emitted("onnxruntime", 'instance_group [{ host_policy: "near" }, { host_policy: "far-1" }]')
    found = flags(launch, CPU_CORES_near="0-3", CPU_CORES_far_1="4-7", CPU_CORES="9-9")
    assert [f for f in found if "host-policy" in f] == [
        "--host-policy=near,cpu-cores=0-3",
        "--host-policy=far-1,cpu-cores=4-7",
    ]


def test_host_policies_have_the_servers_own_names_where_none_is_given(bench):
    artifact = bench.artifact("onnxruntime")
    group = pb.ModelConfig(instance_group=[{"kind": "KIND_GPU", "gpus": [0, 2]}, {"kind": "KIND_MODEL"}])
    text = script(release("26.05"), artifact, [group], requires=None)
    assert [f for f in ("gpu_0,", "gpu_2,", "model,", "cpu,") if f"--host-policy={f}" in text] == [
        "gpu_0,",
        "gpu_2,",
        "model,",
    ]


def test_a_rate_limiter_is_off_unless_the_server_is_told(emitted):
    resources = 'instance_group { count: 2 rate_limiter { resources { name: "R" count: 1 } } }'
    assert "--rate-limit=execution_count" in flags(emitted("onnxruntime", resources))
    assert "--rate-limit=execution_count" in flags(
        emitted("onnxruntime", "instance_group { rate_limiter { priority: 2 } }")
    )
    assert not [f for f in flags(emitted("onnxruntime", "instance_group { count: 2 }")) if "rate-limit" in f]


def test_model_control(emitted):
    launch = emitted("onnxruntime")
    assert "--model-control-mode=poll" in flags(launch, MODEL_CONTROL_MODE="poll")
    assert {"--model-control-mode=explicit", "--load-model=*"} <= set(flags(launch, MODEL_CONTROL_MODE="explicit"))


def test_a_config_is_chosen_by_name_and_must_be_there(emitted):
    launch = emitted("aoti")
    assert "--model-config-name=amd-epyc-2cpu" in flags(launch, MODEL_CONFIG_NAME="amd-epyc-2cpu")
    assert not [f for f in flags(launch) if "config-name" in f]
    done = run(launch, MODEL_CONFIG_NAME="intel")
    assert (done.returncode, done.stdout) == (2, "")
    assert "no configs/intel.pbtxt" in done.stderr


def test_every_release_knows_named_configs():
    """``--model-config-name`` came with 24.05: server, src/command_line_parser.cc, at r24.05 and r24.04."""
    assert min(RELEASES) >= "24.05"


def test_docker_runs_the_same_script_in_the_image(emitted, bench):
    launch = emitted("onnxruntime")
    found = flags(launch, "--docker", "--log-verbose=1", NUMA_NODE="0")
    assert found[:7] == ["run", "--rm", "--init", "--network", "host", "--shm-size", "1g"]
    assert found[7:9] == ["-v", f"{launch.parent}:/models:ro"]
    assert " ".join(found).count("--cap-add SYS_NICE") == 1
    assert found[-4:] == ["nvcr.io/nvidia/tritonserver:26.05-py3", "bash", "/models/launch.sh", "--log-verbose=1"]
    passed = [b for a, b in pairwise(found) if a == "-e"]
    assert {"ADDRESS", "HTTP_PORT", "MODEL_CONFIG_NAME", "CPU_CORES", "NUMA_NODE"} <= set(passed)
    assert not {"--cap-add", "--gpus"} & set(flags(launch, "--docker"))
    assert "mine:1" in flags(launch, "--docker", IMAGE="mine:1")
    artifact = bench.artifact("onnxruntime")
    on_gpu = replace(artifact, variant=replace(artifact.variant, target=Target("ort-cuda", "cuda")))
    assert "--gpus all" in script(release("26.05"), on_gpu, requires=None)


def test_paths_with_spaces_survive(bench):
    artifact = bench.artifact("onnxruntime")
    root = bench.run_dir / "a folder" / "of mine"
    root.parent.mkdir()
    bench.emit(artifact, root=root, hardware="here")
    done = run(root / "launch.sh", MODEL_CONFIG_NAME="here")
    assert f"--model-repository={root} " in done.stdout
    assert f"-v {root}:/models:ro" in run(root / "launch.sh", "--docker").stdout


def test_a_version_compatible_plan_needs_its_flag(bench):
    artifact = bench.artifact("onnxruntime")
    plan = replace(artifact, built=replace(artifact.built, facts={"version_compatible": True}))
    flag = "--backend-config=tensorrt,version-compatible=true"

    def launched(artifact, target):
        served = discover()[target].triton(artifact, "26.05")
        return script(release("26.05"), artifact, requires=None, flags=served.server_flags)

    assert flag in launched(plan, "trt")
    assert flag not in launched(artifact, "trt")
    assert flag not in launched(plan, "ort")


def test_torch_takes_the_threads_of_the_measurement_from_openmp(emitted):
    launch = emitted("aoti")
    show = {"TRITONSERVER": "bash", "LC_ALL": "C"}
    line = next(line for line in launch.read_text().splitlines() if line.startswith("export OMP_NUM_THREADS"))
    for given, expected in (({}, "2"), ({"OMP_NUM_THREADS": "7"}, "7")):
        done = subprocess.run(
            ["bash", "-c", f"{line}; echo $OMP_NUM_THREADS"],
            capture_output=True,
            text=True,
            env={"PATH": os.environ["PATH"]} | show | given,
        )
        assert done.stdout.strip() == expected
    assert "OMP_NUM_THREADS" not in emitted("onnxruntime").read_text()


def test_packages_of_the_python_backend_are_named(bench):
    artifact = bench.artifact("python")
    text = script(release("24.10"), artifact, requires={"torch": "2.13.0+cpu", "numpy": "2.0"})
    (line,) = [line for line in text.splitlines() if line.startswith("# Its Python backend needs")]
    assert shlex.split(line.partition(": ")[2]) == ["numpy<2", "torch==2.13.0"]
    assert "accel needs Python 3.11" in text
    assert "accel needs Python 3.11" not in script(release("26.05"), artifact, requires={"torch": "2.13.0"})


@pytest.mark.parametrize("backend", ["onnxruntime", "python"])
def test_further_packages_can_be_asked_for_later(emitted, tmp_path, backend):
    launch = emitted(backend)
    text = require(launch.read_text(), release("26.05"), ["tokenizers==0.22.1"])
    assert text.count("tokenizers==0.22.1") == 1
    assert text.count("# Its Python backend needs") == 1
    launch.write_text(text)
    python = tmp_path / "env" / "bin"
    python.mkdir(parents=True)
    (python / "server").write_text('#!/bin/sh\necho "$PATH"\n')
    (python / "server").chmod(0o755)
    done = run(launch, TRITONSERVER="server", PYTHON_ENV=str(tmp_path / "env"))
    assert done.stdout.startswith(f"{python}:")


def test_kubernetes_runs_the_script_from_a_volume(emitted):
    launch = emitted("onnxruntime", 'metric_tags { key: "a" value: "b" }', model_name="My_model.v2")
    deployment, service = yaml.safe_load_all((launch.parent / "kubernetes.yaml").read_text())
    assert (deployment["kind"], service["kind"]) == ("Deployment", "Service")
    pod = deployment["spec"]["template"]
    (container,) = pod["spec"]["containers"]
    assert container["image"] == "nvcr.io/nvidia/tritonserver:26.05-py3"
    assert container["command"] == ["bash", "/models/launch.sh"]
    assert {"name": "ADDRESS", "value": "0.0.0.0"} in container["env"]
    assert container["resources"] == {"limits": {"cpu": "2", "memory": "4Gi"}, "requests": {"memory": "4Gi"}}
    paths = {
        probe: container[probe]["httpGet"]["path"] for probe in ("livenessProbe", "readinessProbe", "startupProbe")
    }
    assert paths == {
        "livenessProbe": "/v2/health/live",
        "readinessProbe": "/v2/health/ready",
        "startupProbe": "/v2/health/ready",
    }
    mounts = {m["name"]: m["mountPath"] for m in container["volumeMounts"]}
    assert mounts == {"repository": "/models", "shared-memory": "/dev/shm", "temporary": "/tmp"}
    assert [m.get("subPath") for m in container["volumeMounts"]] == ["my-model-v2", None, None]  # not lost+found
    assert {v["name"] for v in pod["spec"]["volumes"]} == set(mounts)
    labels = pod["metadata"]["labels"]
    assert (
        deployment["spec"]["selector"]["matchLabels"] == service["spec"]["selector"] == labels == {"app": "my-model-v2"}
    )
    assert {p["name"]: p["port"] for p in service["spec"]["ports"]} == {"http": 8000, "grpc": 8001, "metrics": 8002}
    assert {p["name"] for p in container["ports"]} == {p["targetPort"] for p in service["spec"]["ports"]}


@pytest.mark.parametrize(
    ("model", "name"), [("9lives", "model-9lives"), ("_x_", "x"), ("a" * 128, "a" * 50), ("_", "model")]
)
def test_kubernetes_names_are_dns_labels(bench, model, name):
    text = kubernetes(release("26.05"), bench.artifact("onnxruntime"), model=model, threads=None)
    deployment, _ = yaml.safe_load_all(text)
    assert deployment["metadata"]["name"] == name
    assert deployment["spec"]["template"]["spec"]["containers"][0]["resources"]["limits"].keys() == {"memory"}


def test_kubernetes_asks_for_a_gpu_where_the_model_needs_one(bench):
    artifact = bench.artifact("onnxruntime")
    artifact = replace(artifact, variant=replace(artifact.variant, target=Target("ort-cuda", "cuda")))
    deployment, _ = yaml.safe_load_all(kubernetes(release("26.05"), artifact, model="m", threads=4))
    limits = deployment["spec"]["template"]["spec"]["containers"][0]["resources"]["limits"]
    assert limits == {"cpu": "4", "memory": "4Gi", "nvidia.com/gpu": 1}


def test_kubernetes_gives_the_memory_that_was_measured_and_says_so(bench):
    artifact = bench.artifact("onnxruntime")
    text = kubernetes(release("26.05"), artifact, model="m", threads=4)
    assert "# memory not measured: four copies of the artifact, and 3 GiB for the server" in text
    for peak, instances, gib in ((100.2, 1, 4), (1024.0, 1, 4), (1024.1, 1, 5), (1500.0, 4, 9)):
        sized = with_memory(text, artifact, peak, instances)
        deployment, service = yaml.safe_load_all(sized)
        (container,) = deployment["spec"]["template"]["spec"]["containers"]
        assert container["resources"] == {
            "limits": {"cpu": "4", "memory": f"{gib}Gi"},
            "requests": {"memory": f"{gib}Gi"},
        }
        assert service == list(yaml.safe_load_all(text))[1]
        times = " for each of 4 instances" if instances == 4 else ""
        known = f"memory measured: a peak of {math.ceil(peak)} MiB{times}; and 3 GiB for the server, its shared memory"
        assert memory_of(sized).startswith(known)
        assert sized.count("# memory") == 1
    assert memory_of("apiVersion: v1") == ""


def test_kubernetes_ends_a_server_in_order_and_gives_it_no_more_than_it_needs(emitted):
    """A pod that ends is still sent requests for a while, and then has those that are under way."""
    launch = emitted("python")
    deployment, _ = yaml.safe_load_all((launch.parent / "kubernetes.yaml").read_text())
    template = deployment["spec"]["template"]
    pod, (container,) = template["spec"], template["spec"]["containers"]
    variables = {v["name"]: v["value"] for v in container["env"]}
    waits = int(container["lifecycle"]["preStop"]["exec"]["command"][1])
    assert waits + int(variables["EXIT_TIMEOUT_S"]) < pod["terminationGracePeriodSeconds"]
    assert "--exit-timeout-secs=7" in flags(launch, EXIT_TIMEOUT_S="7")
    assert processes.EXIT_TIMEOUT_S < processes.STOP_S
    assert pod["securityContext"]["runAsNonRoot"]
    assert not pod["automountServiceAccountToken"]
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert template["metadata"]["annotations"]["prometheus.io/port"] == "8002"


def test_without_a_server_the_script_says_how_to_get_one(emitted, tmp_path):
    launch = emitted("onnxruntime")
    shell = {"PATH": "/usr/bin:/bin", "TRITONSERVER": "no-such-server", "DOCKER": "no-such-docker"}
    done = subprocess.run([launch], capture_output=True, text=True, env=shell)
    assert done.returncode == 127
    assert "there is no tritonserver; set TRITONSERVER=/path/to/it, or use --docker" in done.stderr
    assert "exec" not in done.stderr
    done = subprocess.run([launch, "--docker"], capture_output=True, text=True, env=shell)
    assert (done.returncode, "there is no docker; install it" in done.stderr) == (127, True)


@pytest.mark.parametrize(
    ("cores", "ranges"), [("0", "0-0"), ("0,1,2", "0-0,1-1,2-2"), ("0-3,6,8-9", "0-3,6-6,8-9"), ("0-3", "0-3")]
)
def test_a_single_core_is_a_range_for_the_server(emitted, cores, ranges):
    assert f"--host-policy=cpu,cpu-cores={ranges}" in flags(emitted("onnxruntime"), CPU_CORES=cores)


def test_an_image_of_the_python_backend_is_made_from_the_repository(bench, emitted):
    root = emitted("python").parent
    line = next(line for line in (root / "launch.sh").read_text().splitlines() if line.startswith(NEEDS))
    text = (root / "Dockerfile").read_text()
    assert f"RUN pip install --no-cache-dir {line.partition(': ')[2]}\n" in text
    assert "FROM nvcr.io/nvidia/tritonserver:26.05-py3\n" in text
    assert not [f for f in verify(root) if f.severity == "error"]
    assert not (emitted("onnxruntime").parent / "Dockerfile").exists()


def test_what_only_building_takes_is_not_asked_for_at_serving():
    assert "nncf" in discover()["openvino-int8"].build_only
    assert "onnxruntime" not in discover()["ort"].build_only
