"""What starts a server on a repository: ``launch.sh`` for tritonserver and docker, ``kubernetes.yaml`` for a cluster.

Response cache, host policies, rate limiter and the choice among several configs are flags of the server, not fields of
a config; they follow from the configs, or from variables that the script explains.
"""

import functools
import math
import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from accel.builders import targets
from accel.core.values import Artifact
from accel.triton.releases import TritonRelease

if TYPE_CHECKING:
    from jinja2 import Template

DOCKERFILE = "Dockerfile"
NEEDS = "# Its Python backend needs"
# The embedded interpreter finds its packages through the python3 that comes first on PATH.
PYTHON_ENV = 'if [[ -n "${PYTHON_ENV:-}" ]]; then export PATH="$PYTHON_ENV/bin:$PATH"; fi'
CACHE_BYTES = 64 << 20
CACHE_FLAG = f'--cache-config=local,size="${{CACHE_BYTES:-{CACHE_BYTES}}}"'
CACHE_SETTING = f"CACHE_BYTES={CACHE_BYTES}", "size of the response cache"
EXIT_TIMEOUT_S = 30
"""How long requests under way may take once the server was told to end. Source: server src/main.cc, StopEndpoints."""
PRE_STOP_S, MARGIN_S = 10, 20
"""Kubernetes: how long a server that ends is still sent requests, and what its end may take beyond the exit timeout."""
DEPLOYMENT = "kubernetes.yaml"
SERVER_BYTES = 3 << 30
"""Memory of a server and its runtimes, its shared memory (1 GiB) and what larger requests take than were measured."""


def script(
    release: TritonRelease,
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
    # A single policy needs no suffix.
    suffixes = [f"_{re.sub('[^A-Za-z0-9]', '_', policy)}" if len(policies) > 1 else "" for policy in policies]
    cores, nodes = ([f"{what}{suffix}" for suffix in suffixes] for what in ("CPU_CORES", "NUMA_NODE"))
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
        *((f"{name}=", f"cores of host policy {p}: 0-3,6") for name, p in zip(cores, policies, strict=True)),
        *((f"{name}=", f"NUMA node of host policy {p}: 0") for name, p in zip(nodes, policies, strict=True)),
        *([CACHE_SETTING] if _cached(models) else []),
        *([(f"OMP_NUM_THREADS={openmp}", "CPU threads of the model")] if openmp else []),
    ]
    return _template("launch.sh.j2").render(
        release=release,
        variant=artifact.variant,
        image=image(release),
        settings=[_setting(*one) for one in settings],
        passed=" ".join(word.partition("=")[0] for text, _ in settings for word in text.split()),
        needs=_needs_of(release, requires) if requires is not None else (),
        nodes=nodes,
        policies=list(zip(policies, cores, nodes, strict=True)),
        openmp=openmp,
        python=PYTHON_ENV if requires is not None else "",
        inside=any(map(_names_own_files, models)),
        exit_s=EXIT_TIMEOUT_S,
        flags=[*_flags(models), *flags],
    )


@functools.cache
def _template(name: str) -> "Template":
    from jinja2 import Environment, PackageLoader, StrictUndefined

    loader = PackageLoader("accel.triton", ".")
    environment = Environment(
        loader=loader, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True
    )
    return environment.get_template(name)


def image(release: TritonRelease) -> str:
    """Return the name of the release's image."""
    return f"nvcr.io/nvidia/tritonserver:{release.name}-py3"


def _flags(models: Sequence[Any]) -> list[str]:
    """Return the flags without which a config has no effect.

    Source: server docs/user_guide: response_cache.md; rate_limiter.md, "Using Rate Limiter" (off by default).
    """
    cache = [CACHE_FLAG] if _cached(models) else []
    limiters = [g.rate_limiter for m in models for g in m.instance_group if g.HasField("rate_limiter")]
    limited = any(r.resources or r.priority for r in limiters)
    return [*cache, *["--rate-limit=execution_count"] * limited]


def _cached(models: Sequence[Any]) -> bool:
    return any(model.response_cache.enable for model in models)


def _setting(text: str, about: str) -> str:
    """Return the line of ``launch.sh`` that explains a variable."""
    return f"#   {text:<23} {about}".rstrip()


def _names_own_files(model: Any) -> bool:
    """Say whether an accelerator's parameter names a file or folder of the model's own, relative to the repository."""
    accelerators = model.optimization.execution_accelerators.gpu_execution_accelerator
    return any(value.startswith(f"{model.name}/") for a in accelerators for value in a.parameters.values())


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


def with_more(text: str, models: Sequence[Any], variables: Sequence[str]) -> str:
    """Return the text of a ``launch.sh`` with the flags that its configs need now, and further variables.

    Args:
        variables: ``NAME=VALUE``; a value that is set where the script runs comes first.
    """
    head, tail = 'command -v "${TRITONSERVER', '  "${flags[@]}" "$@"'
    exports = []
    for variable in variables:
        name, _, value = variable.partition("=")
        exports.append(f'if [[ -z "${{{name}+set}}" ]]; then export {name}={shlex.quote(value)}; fi\n')
    text = text.replace(head, "".join(exports) + head, 1)
    if _cached(models) and CACHE_FLAG not in text:
        about = _setting(*CACHE_SETTING)
        text = re.sub("^(#   EXIT_TIMEOUT_S.*\n)", rf"\1{about}\n", text, count=1, flags=re.M)
        text = text.replace("  for name in ", "  for name in CACHE_BYTES ", 1)
    flags = [f"  {flag} \\\n" for flag in _flags(models) if flag not in text]
    return text.replace(tail, "".join(flags) + tail, 1)


def require(text: str, release: TritonRelease, packages: Sequence[str]) -> str:
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


def _needs_of(release: TritonRelease, requires: Mapping[str, str]) -> list[str]:
    """Return the comments on the Python backend's interpreter: what it must have, and which Python accel needs."""
    lines = _needs(release, [f"{n}=={v.partition('+')[0]}" for n, v in sorted(requires.items()) if n != "numpy"])
    old = release.python is not None and tuple(map(int, release.python.split(".")[:2])) < (3, 11)
    return [*lines, "# accel needs Python 3.11: use a server whose Python backend embeds it."] if old else lines


def _needs(release: TritonRelease, packages: Sequence[str]) -> list[str]:
    """Return the comment that names the packages of the Python backend's interpreter."""
    numpy = "numpy<2" if release.numpy_below_2 else "numpy"
    wanted = " ".join(shlex.quote(p) for p in (numpy, *packages))
    return [
        f"{NEEDS}, for Python {release.python or 'of the image'}: {wanted}",
        "# PYTHON_ENV names a virtual environment that has them, ACCEL_SITE_PACKAGES further folders to search.",
        "# In docker and Kubernetes the image must have them: Dockerfile makes one.",
    ]


def flags_of(text: str) -> list[str]:
    """Return the flags of a ``launch.sh`` that decide how models are served, for who starts a server without it.

    Variables have their defaults; addresses, ports and what a variable switches on are left out.
    """
    found = re.findall(r"^  (--(?!model-repository|http|grpc|metrics|exit-timeout)\S+) \\$", text, re.M)
    return [re.sub(r'"\$\{\w+:-(\w+)\}"', r"\1", flag) for flag in found]


def exports_of(text: str) -> list[tuple[str, str]]:
    """Return the variables that a ``launch.sh`` exports, each with the value that it has unless it is set."""
    return re.findall(r'^export (\w+)="\$\{\1:-(\w+)\}"', text, re.M)


def write_launch(root: Path, text: str, release: TritonRelease) -> None:
    """Write ``launch.sh``, and the Dockerfile of the image that it needs where it needs one of its own."""
    (root / "launch.sh").write_text(text, encoding="utf-8")
    (root / "launch.sh").chmod(0o755)
    needs = next((line for line in text.splitlines() if line.startswith(NEEDS)), None)
    if needs is not None:
        (root / DOCKERFILE).write_text(
            "# docker build -t IMAGE . && IMAGE=IMAGE ./launch.sh --docker\n"
            f"FROM {image(release)}\nRUN pip install --no-cache-dir {needs.partition(': ')[2]}\n",
            encoding="utf-8",
        )


def kubernetes(release: TritonRelease, artifact: Artifact, *, model: str, threads: int | None) -> str:
    """Return ``kubernetes.yaml``: a Deployment and a Service that run ``launch.sh`` from a volume.

    Source: KServe, "Open Inference Protocol" (health endpoints); Kubernetes documentation, "Object Names and IDs"
    (a name is a DNS label).

    Args:
        model: the model that clients call.
        threads: CPU threads of the measurement; they become the limit of the container.

    The memory limit is an estimate; ``with_memory`` makes it what was measured.
    """
    limits = [f'cpu: "{threads}"'] if threads else []
    limits.append("memory: 0Gi")
    limits += ["nvidia.com/gpu: 1"] if artifact.variant.target.device == "cuda" else []
    name = re.sub("[^a-z0-9]+", "-", model.lower())[:50].strip("-") or "model"
    text = _template("kubernetes.yaml.j2").render(
        variant=artifact.variant.id,
        release=release.name,
        # A Service's name must begin with a letter.
        name=name if name[0].isalpha() else f"model-{name}",
        image=image(release),
        limits=", ".join(limits),
        exit_s=EXIT_TIMEOUT_S,
        pre_stop_s=PRE_STOP_S,
        grace_s=PRE_STOP_S + EXIT_TIMEOUT_S + MARGIN_S,
    )
    return with_memory(text, artifact, None)


def with_memory(text: str, artifact: Artifact, peak_rss_mib: float | None, instances: int = 1) -> str:
    """Return the text of a ``kubernetes.yaml`` with the memory that the container is given, and how that is known.

    Args:
        peak_rss_mib: what a process with one instance took at most; None where none was measured.
        instances: of the model, each of which is taken to need as much.
    """
    beside = f"{SERVER_BYTES >> 30} GiB for the server, its shared memory and larger requests"
    if peak_rss_mib is None:
        needed, why = 4 * artifact.bytes, f"not measured: four copies of the artifact, and {beside}"
    else:
        needed = instances * math.ceil(peak_rss_mib) << 20
        times = f" for each of {instances} instances" if instances > 1 else ""
        why = f"measured: a peak of {math.ceil(peak_rss_mib)} MiB{times}; and {beside}"
    limit = f"memory: {math.ceil((SERVER_BYTES + needed) / 2**30)}Gi"
    return re.sub(r"(?m)# memory.*$", f"# memory {why}", re.sub(r"\bmemory: \d+Gi", limit, text))


def memory_of(text: str) -> str:
    """Return what a ``kubernetes.yaml`` says of how its memory is known; empty for one of an earlier accel."""
    found = re.search(r"(?m)# (memory .*)$", text)
    return found[1] if found else ""
