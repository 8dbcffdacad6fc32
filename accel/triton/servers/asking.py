"""What a running server says about itself: who it is, whether it is ready, what answers for a model."""

import http.client
import urllib.request
from pathlib import Path
from typing import Any

from tritonclient import grpc
from tritonclient.utils import InferenceServerException

from accel.core.files import load_json
from accel.core.values import PYTHON_BACKEND
from accel.triton import manifest as manifests
from accel.triton.python_model import ROUTED
from accel.triton.servers.processes import reachable


def ready(name: str, calls: str, http: str, metrics: str) -> str | None:
    """Return the version of the server called ``name`` once all its services answer, else None.

    A port may have gone to another server after it was chosen, so an answer alone proves nothing.
    """
    found = metadata(calls, when_ready=True) if reachable(calls) else None
    if found is None or found.name != name or http_name(http) != name or not reachable(metrics):
        return None
    return str(found.version)


def metadata(address: str, *, when_ready: bool = False) -> Any:
    """Ask a gRPC service who it is; None where none answers, or where it is not ready and should be."""
    try:
        with grpc.InferenceServerClient(address) as client:
            if when_ready and not client.is_server_ready(client_timeout=5):
                return None
            return client.get_server_metadata(client_timeout=5)
    except InferenceServerException:
        return None


def python_models_at(address: str, root: Path) -> frozenset[str]:
    """Return the model of ``root`` that a server answers with the Python backend in place of its native one."""
    manifest = manifests.read(root)
    model = manifest.models[0]
    try:
        with grpc.InferenceServerClient(address) as client:
            config = client.get_model_config(model, client_timeout=5).config
    except InferenceServerException:
        return frozenset()
    in_python = config.backend == PYTHON_BACKEND and config.default_model_filename != ROUTED
    return frozenset({model} if in_python and manifest.backend != PYTHON_BACKEND else ())


def http_name(address: str) -> str | None:
    """Ask an HTTP service for the server's id; None where none answers.

    Source: Open Inference Protocol, version 2, "Server Metadata".
    """
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(f"http://{address}/v2", timeout=5) as answer:
            return str(load_json(answer.read(1 << 20))["name"])
    except (OSError, ValueError, KeyError, http.client.HTTPException):  # or a gRPC service answers
        return None
