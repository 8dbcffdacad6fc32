"""The script that starts a server on a repository."""

from __future__ import annotations

import shlex
from collections.abc import Mapping

from accel.artifacts import Artifact
from accel.triton.releases import Release


def script(release: Release, artifact: Artifact, *, requires: Mapping[str, str] | None) -> str:
    """Return ``launch.sh``: the exact tritonserver command, and the docker line as a comment.

    Auto-complete is off: configs are complete, and it would turn ``max_batch_size: 0`` into a batch size of its own
    choice wherever all tensors have a batch axis.
    Source: openvino_backend and onnxruntime_backend README, "Auto-Complete" and "Default Max Batch Size".

    Args:
        requires: packages that the Python backend's interpreter must have; None for a native backend.
    """
    gpus = "--gpus all " if artifact.variant.target.device == "cuda" else ""
    lines = [
        "#!/usr/bin/env bash",
        f"# Serves {artifact.variant.id} with Triton {release.name}; `accel verify` checks this folder.",
        "# In docker, from this folder:",
        f'#   docker run --rm --init --network host --shm-size 1g {gpus}-v "$PWD":/models:ro \\',
        f"#     nvcr.io/nvidia/tritonserver:{release.name}-py3 /models/launch.sh",
    ]
    if requires is not None:
        numpy = "numpy<2" if release.numpy_below_2 else "numpy"
        packages = " ".join([shlex.quote(numpy), *(f"{n}=={v}" for n, v in sorted(requires.items()) if n != "numpy")])
        old = release.python is not None and tuple(map(int, release.python.split(".")[:2])) < (3, 11)
        lines += [
            f"# Its Python backend needs, for Python {release.python or 'of the image'}: {packages}",
            *(["# accel needs Python 3.11: use a server whose Python backend embeds it."] if old else []),
            "# PYTHON_ENV names a virtual environment that has them, ACCEL_SITE_PACKAGES further folders to search.",
        ]
    lines += [
        "# Listens on this machine only; ADDRESS=0.0.0.0 ./launch.sh serves the network.",
        "set -euo pipefail",
        'here="$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd)"',
        'address="${ADDRESS:-127.0.0.1}"',
    ]
    if requires is not None:
        # The embedded interpreter finds its packages through the python3 that comes first on PATH.
        lines.append('if [[ -n "${PYTHON_ENV:-}" ]]; then export PATH="$PYTHON_ENV/bin:$PATH"; fi')
    command = [
        'exec "${TRITONSERVER:-tritonserver}"',
        '--model-repository="$here"',
        "--disable-auto-complete-config",
        '--http-address="$address" --http-port="${HTTP_PORT:-8000}"',
        '--grpc-address="$address" --grpc-port="${GRPC_PORT:-8001}"',
        '--metrics-address="$address" --metrics-port="${METRICS_PORT:-8002}"',
        '"$@"',
    ]
    return "\n".join(lines) + "\n" + " \\\n  ".join(command) + "\n"
