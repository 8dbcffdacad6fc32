"""What starts a server on a repository: ``launch.sh`` for tritonserver and docker, ``kubernetes.yaml`` for a cluster.

Response cache, host policies, rate limiter and the choice among several configs are flags of the server, not fields of
a config; they follow from the configs, or from variables that the script explains.
"""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from accel.builders import targets
from accel.core.values import Artifact
from accel.triton.releases import Release

DOCKERFILE = "Dockerfile"
NEEDS = "# Its Python backend needs"
# The embedded interpreter finds its packages through the python3 that comes first on PATH.
PYTHON_ENV = 'if [[ -n "${PYTHON_ENV:-}" ]]; then export PATH="$PYTHON_ENV/bin:$PATH"; fi'
CACHE_BYTES = 64 << 20
EXIT_TIMEOUT_S = 30
"""How long requests under way may take once the server was told to end. Source: server src/main.cc, StopEndpoints."""
PRE_STOP_S, MARGIN_S = 10, 20
"""Kubernetes: how long a server that ends is still sent requests, and what its end may take beyond the exit timeout."""
SERVER_BYTES = 3 << 30
"""Memory of a server and its runtimes, its shared memory (1 GiB) included, beside four copies of the artifact."""
CONFIG_NAMES_SINCE = "24.05"
"""First release with ``--model-config-name``; every release of the table has it.

Source: triton-inference-server/server, src/command_line_parser.cc, at r24.05 and r24.04.
"""


def script(
    release: Release,
    artifact: Artifact,
    models: Sequence[Any] = (),
    *,
    requires: Mapping[str, str] | None,
    flags: Sequence[str] = (),
    threads: int | None = None,
    hardware: str | None = None,
) -> str:
    """Return ``launch.sh``: the exact command for tritonserver, and the same in docker.

    Auto-complete is off: configs are complete, and it would turn ``max_batch_size: 0`` into a batch size of its own
    choice wherever all tensors have a batch axis.
    Source: openvino_backend and onnxruntime_backend README, "Auto-Complete" and "Default Max Batch Size"; server
    src/command_line_parser.cc and docs/user_guide: response_cache.md, rate_limiter.md, optimization.md ("Host Policy").

    Args:
        models: every ``ModelConfig`` of the repository.
        requires: packages that the Python backend's interpreter must have; None for a native backend.
        flags: flags without which the server does not load the artifact.
        threads: CPU threads of the measurement, for a backend whose config cannot say them.
        hardware: name of the config that was emitted for this machine.
    """
    policies = _policies(models)
    numa = "".join(f"${{{_variable('NUMA_NODE', p, policies)}:-}}" for p in policies)
    cached = any(m.response_cache.enable for m in models)
    fixed = [*_flags(models), *flags]
    # At the threads of the measurement: torch takes them from OpenMP, and the package's parameters are not read.
    openmp = threads if any(targets.backend(m.backend).openmp for m in models) else None
    settings = [
        ("ADDRESS=127.0.0.1", "this machine only; 0.0.0.0 serves the network"),
        ("HTTP_PORT=8000 GRPC_PORT=8001 METRICS_PORT=8002", ""),
        ("MODEL_CONTROL_MODE=none", "poll, or explicit, which also loads every model at the start"),
        (
            "MODEL_CONFIG_NAME=",
            f"configs/<name>.pbtxt in place of config.pbtxt{f'; here: {hardware}' * bool(hardware)}",
        ),
        (f"EXIT_TIMEOUT_S={EXIT_TIMEOUT_S}", "how long requests under way may take after SIGTERM"),
        *((f"{_variable('CPU_CORES', p, policies)}=", f"cores of host policy {p}: 0-3,6") for p in policies),
        *((f"{_variable('NUMA_NODE', p, policies)}=", f"NUMA node of host policy {p}: 0") for p in policies),
        *([(f"CACHE_BYTES={CACHE_BYTES}", "size of the response cache")] if cached else []),
        *([(f"OMP_NUM_THREADS={openmp}", "CPU threads of the model")] if openmp else []),
    ]
    passed = " ".join(word.partition("=")[0] for text, _ in settings for word in text.split())
    lines = [
        "#!/usr/bin/env bash",
        f"# Serves {artifact.variant.id} with Triton {release.name}; `accel verify` checks this folder.",
        "#   ./launch.sh             tritonserver on PATH, or TRITONSERVER=/path/to/it",
        f"#   ./launch.sh --docker    {image(release)}, or IMAGE=another",
        "# Further arguments go to the server. In Kubernetes: kubernetes.yaml. Variables and their defaults:",
        *(f"#   {text:23} {about}".rstrip() for text, about in settings),
    ]
    if requires is not None:
        lines += _needs(release, [f"{n}=={v.partition('+')[0]}" for n, v in sorted(requires.items()) if n != "numpy"])
        if release.python is not None and tuple(map(int, release.python.split(".")[:2])) < (3, 11):
            lines.append("# accel needs Python 3.11: use a server whose Python backend embeds it.")
    lines += [
        "set -euo pipefail",
        'here="$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd)"',
        # Bytecode that Python leaves beside a source is run in its place: none is written, so none need be trusted.
        "export PYTHONDONTWRITEBYTECODE=1",
        'missing() { echo "launch.sh: there is no $1; $2" >&2; exit 127; }',
        'if [[ "${1:-}" == --docker ]]; then',
        "  shift",
        '  command -v "${DOCKER:-docker}" >/dev/null || missing docker "install it, or start tritonserver itself"',
        '  docker=(run --rm --init --network host --shm-size 1g -v "$here:/models:ro")',
        *(["  docker+=(--gpus all)"] if artifact.variant.target.device == "cuda" else []),
        # Binding memory to a node is a privilege. Source: Docker documentation, "Seccomp security profiles".
        *([f'  if [[ -n "{numa}" ]]; then docker+=(--cap-add SYS_NICE); fi'] if numa else []),
        f'  for name in {passed}; do docker+=(-e "$name"); done',
        f'  exec "${{DOCKER:-docker}}" "${{docker[@]}}" "${{IMAGE:-{image(release)}}}" bash /models/launch.sh "$@"',
        "fi",
        'address="${ADDRESS:-127.0.0.1}"',
        'flags=(--model-control-mode="${MODEL_CONTROL_MODE:-none}")',
        'if [[ "${MODEL_CONTROL_MODE:-none}" == explicit ]]; then flags+=("--load-model=*"); fi',
        # The server takes config.pbtxt without a word where there is no config of that name.
        'if [[ -n "${MODEL_CONFIG_NAME:-}" ]]; then',
        '  named=("$here"/*/configs/"$MODEL_CONFIG_NAME".pbtxt)',
        '  if [[ ! -e "${named[0]}" ]]; then',
        '    echo "there is no configs/$MODEL_CONFIG_NAME.pbtxt below $here" >&2',
        "    exit 2",
        "  fi",
        '  flags+=("--model-config-name=$MODEL_CONFIG_NAME")',
        "fi",
    ]
    if policies:
        lines.append("""ranges() { tr , '\\n' <<<"$1" | sed -E 's/^[0-9]+$/&-&/' | paste -sd,; }""")
    for policy in policies:
        for setting in ("cpu-cores", "numa-node"):
            name = _variable(setting.upper().replace("-", "_"), policy, policies)
            # The server takes ranges alone. Source: core src/numa_utils.cc, SetNumaConfigOnThread.
            value = f'$(ranges "${name}")' if setting == "cpu-cores" else f"${name}"
            flag = f'"--host-policy={policy},{setting}={value}"'
            lines.append(f'if [[ -n "${{{name}:-}}" ]]; then flags+=({flag}); fi')
    if openmp:
        lines.append(f'export OMP_NUM_THREADS="${{OMP_NUM_THREADS:-{openmp}}}"')
    if requires is not None:
        lines.append(PYTHON_ENV)
    if _caches(models):
        lines.append('cd -- "$here"  # the TensorRT engine cache is named relative to this folder')
    how = f"set TRITONSERVER=/path/to/it, or use --docker ({image(release)}), or accel serve"
    lines.append(f'command -v "${{TRITONSERVER:-tritonserver}}" >/dev/null || missing tritonserver "{how}"')
    command = [
        'exec "${TRITONSERVER:-tritonserver}"',
        '--model-repository="$here"',
        "--disable-auto-complete-config",
        '--http-address="$address" --http-port="${HTTP_PORT:-8000}"',
        '--grpc-address="$address" --grpc-port="${GRPC_PORT:-8001}"',
        '--metrics-address="$address" --metrics-port="${METRICS_PORT:-8002}"',
        f'--exit-timeout-secs="${{EXIT_TIMEOUT_S:-{EXIT_TIMEOUT_S}}}"',
        *([f'--cache-config=local,size="${{CACHE_BYTES:-{CACHE_BYTES}}}"'] if cached else []),
        *fixed,
        '"${flags[@]}" "$@"',
    ]
    return "\n".join(lines) + "\n" + " \\\n  ".join(command) + "\n"


def image(release: Release) -> str:
    """Return the name of the release's image."""
    return f"nvcr.io/nvidia/tritonserver:{release.name}-py3"


def _flags(models: Sequence[Any]) -> list[str]:
    """Return the flags without which a config has no effect.

    Source: server docs/user_guide/rate_limiter.md, "Using Rate Limiter" (off by default).
    """
    limiters = [g.rate_limiter for m in models for g in m.instance_group if g.HasField("rate_limiter")]
    return ["--rate-limit=execution_count"] if any(r.resources or r.priority for r in limiters) else []


def _caches(models: Sequence[Any]) -> bool:
    """Say whether a model has a TensorRT engine cache in the repository itself."""
    accelerators = [a for m in models for a in m.optimization.execution_accelerators.gpu_execution_accelerator]
    paths = [a.parameters.get("trt_engine_cache_path", "") for a in accelerators]
    return any(path and not path.startswith("/") for path in paths)


def _policies(models: Sequence[Any]) -> list[str]:
    """Return the host policies of all instances, an instance without one under the name that the server gives it.

    Source: core, src/backend_model.cc (``cpu``, ``gpu_<id>``, ``model``).
    """
    found: dict[str, None] = {}
    for group in (g for m in models for g in m.instance_group):
        if group.host_policy:
            found[group.host_policy] = None
        elif group.kind == type(group).KIND_GPU:
            found |= {f"gpu_{gpu}": None for gpu in group.gpus or (0,)}
        else:
            found["model" if group.kind == type(group).KIND_MODEL else "cpu"] = None
    return list(found)


def _variable(name: str, policy: str, policies: Sequence[str]) -> str:
    """Name the variable of one policy; a single policy needs no suffix."""
    return name if len(policies) == 1 else f"{name}_{re.sub('[^A-Za-z0-9]', '_', policy)}"


def require(text: str, release: Release, packages: Sequence[str]) -> str:
    """Return the text of a ``launch.sh`` whose server's Python backend also needs ``packages``."""
    lines = text.splitlines()
    for index, line in enumerate(lines):
        if line.startswith(NEEDS):
            lines[index] = " ".join([line, *(p for p in map(shlex.quote, packages) if p not in line.split())])
            return "\n".join(lines) + "\n"
    start = next(i for i, line in enumerate(lines) if line.startswith(('command -v "${TRITONSERVER', "exec ")))
    lines.insert(start, PYTHON_ENV)
    head = next(i for i, line in enumerate(lines) if not line.startswith("#"))
    lines[head:head] = _needs(release, packages)
    return "\n".join(lines) + "\n"


def _needs(release: Release, packages: Sequence[str]) -> list[str]:
    """Return the comment that names the packages of the Python backend's interpreter."""
    numpy = "numpy<2" if release.numpy_below_2 else "numpy"
    wanted = " ".join(shlex.quote(p) for p in (numpy, *packages))
    return [
        f"{NEEDS}, for Python {release.python or 'of the image'}: {wanted}",
        "# PYTHON_ENV names a virtual environment that has them, ACCEL_SITE_PACKAGES further folders to search.",
        "# In docker and Kubernetes the image must have them: Dockerfile makes one.",
    ]


def write_launch(root: Path, text: str, release: Release) -> None:
    """Write ``launch.sh``, and the Dockerfile of the image that it needs where it needs one of its own."""
    (root / "launch.sh").write_text(text, encoding="utf-8")
    (root / "launch.sh").chmod(0o755)
    if image_text := dockerfile(text, release):
        (root / DOCKERFILE).write_text(image_text, encoding="utf-8")


def dockerfile(text: str, release: Release) -> str | None:
    """Return the Dockerfile of the image that a ``launch.sh`` needs beyond Triton's own; None where it needs none."""
    line = next((line for line in text.splitlines() if line.startswith(NEEDS)), None)
    if line is None:
        return None
    return (
        f"# docker build -t IMAGE . && IMAGE=IMAGE ./launch.sh --docker\n"
        f"FROM {image(release)}\nRUN pip install --no-cache-dir {line.partition(': ')[2]}\n"
    )


KUBERNETES = """\
# Serves {variant} with Triton {release}: kubectl apply -f kubernetes.yaml
# The volume claim {name}-repository must hold the content of this folder. launch.sh says what it starts, which
# variables it takes (env below), and what the image must hold beyond Triton (where there is a Dockerfile, build that).
# A pod that ends is taken out of the service first (preStop), then has EXIT_TIMEOUT_S for the requests under way.
apiVersion: apps/v1
kind: Deployment
metadata:
  name: {name}
  labels: {{app: {name}}}
spec:
  replicas: 1
  selector:
    matchLabels: {{app: {name}}}
  template:
    metadata:
      labels: {{app: {name}}}
      annotations:
        prometheus.io/scrape: "true"
        prometheus.io/port: "8002"
        prometheus.io/path: /metrics
    spec:
      terminationGracePeriodSeconds: {grace_s}
      automountServiceAccountToken: false
      securityContext:
        runAsNonRoot: true
        runAsUser: 1000  # triton-server of the image
        runAsGroup: 1000
        seccompProfile: {{type: RuntimeDefault}}
      containers:
        - name: tritonserver
          image: {image}
          command: [bash, /models/launch.sh]
          env:
            - {{name: ADDRESS, value: 0.0.0.0}}
            - {{name: MODEL_CONFIG_NAME, value: ""}}
            - {{name: EXIT_TIMEOUT_S, value: "{exit_s}"}}
            - {{name: HOME, value: /tmp}}
          securityContext:
            allowPrivilegeEscalation: false
            readOnlyRootFilesystem: true
            capabilities: {{drop: [ALL]}}
          lifecycle:
            preStop:
              exec: {{command: [sleep, "{pre_stop_s}"]}}
          ports:
            - {{name: http, containerPort: 8000}}
            - {{name: grpc, containerPort: 8001}}
            - {{name: metrics, containerPort: 8002}}
          startupProbe:  # loading and warm-up may take minutes
            httpGet: {{path: /v2/health/ready, port: http}}
            periodSeconds: 5
            failureThreshold: 120
          livenessProbe:
            httpGet: {{path: /v2/health/live, port: http}}
          readinessProbe:
            httpGet: {{path: /v2/health/ready, port: http}}
          resources:
            requests: {{memory: {memory}}}
            limits: {{{limits}}}
          volumeMounts:
            - {{name: repository, mountPath: /models, readOnly: true}}
            - {{name: shared-memory, mountPath: /dev/shm}}
            - {{name: temporary, mountPath: /tmp}}
      volumes:
        - name: repository
          persistentVolumeClaim: {{claimName: {name}-repository, readOnly: true}}
        - name: shared-memory
          emptyDir: {{medium: Memory, sizeLimit: 1Gi}}
        - name: temporary
          emptyDir: {{}}
---
apiVersion: v1
kind: Service
metadata:
  name: {name}
  labels: {{app: {name}}}
spec:
  selector: {{app: {name}}}
  ports:
    - {{name: http, port: 8000, targetPort: http}}
    - {{name: grpc, port: 8001, targetPort: grpc}}
    - {{name: metrics, port: 8002, targetPort: metrics}}
"""


def kubernetes(release: Release, artifact: Artifact, *, model: str, threads: int | None) -> str:
    """Return ``kubernetes.yaml``: a Deployment and a Service that run ``launch.sh`` from a volume.

    Source: KServe, "Open Inference Protocol" (health endpoints); Kubernetes documentation, "Object Names and IDs"
    (a name is a DNS label).

    Args:
        model: the model that clients call.
        threads: CPU threads of the measurement; they become the limit of the container.

    The memory limit is ``SERVER_BYTES`` and four copies of the artifact: what was measured is ``peak_rss_mib``.
    """
    memory = f"{math.ceil((SERVER_BYTES + 4 * artifact.bytes) / 2**30)}Gi"
    limits = [f'cpu: "{threads}"'] if threads else []
    limits.append(f"memory: {memory}")
    limits += ["nvidia.com/gpu: 1"] if artifact.variant.target.device == "cuda" else []
    name = re.sub("[^a-z0-9]+", "-", model.lower())[:50].strip("-") or "model"
    return KUBERNETES.format(
        variant=artifact.variant.id,
        release=release.name,
        # A Service's name must begin with a letter.
        name=name if name[0].isalpha() else f"model-{name}",
        image=image(release),
        limits=", ".join(limits),
        memory=memory,
        exit_s=EXIT_TIMEOUT_S,
        pre_stop_s=PRE_STOP_S,
        grace_s=PRE_STOP_S + EXIT_TIMEOUT_S + MARGIN_S,
    )
