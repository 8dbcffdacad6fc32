"""Tiny ONNX models, a release file of them, and the command line that builds it."""

import contextlib
import json
import os
import shlex
import subprocess
import sys
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import yaml
from onnx import TensorProto, helper, numpy_helper

from accel.core import signing
from accel.core.values import SCHEMA
from accel.release import building
from accel.release.document import Release
from accel.triton.servers import hosts, processes


def write_model(
    path: Path,
    seed: int = 0,
    *,
    shift: float = 0.0,
    dims: tuple[int, int] = (8, 4),
    dtypes: tuple[int, int] = (TensorProto.FLOAT, TensorProto.FLOAT),
) -> Path:
    """Write a two-layer network: ``x`` (batch, 8) → ``y`` (batch, 4); ``shift`` is added to one weight.

    Args:
        dims / dtypes: of ``x`` and of ``y``; the network itself computes in FP32.
    """
    rng = np.random.default_rng(seed)
    first = rng.standard_normal((dims[0], 16)).astype(np.float32)
    second = rng.standard_normal((16, dims[1])).astype(np.float32)
    first[0, 0] += shift
    plain = TensorProto.FLOAT
    x, y = ("x" if dtypes[0] == plain else "x32", "y" if dtypes[1] == plain else "y32")
    nodes = [
        *([helper.make_node("Cast", ["x"], [x], to=plain)] if x != "x" else []),
        helper.make_node("MatMul", [x, "first"], ["h"]),
        helper.make_node("Tanh", ["h"], ["t"]),
        helper.make_node("MatMul", ["t", "second"], [y]),
        *([helper.make_node("Cast", [y], ["y"], to=dtypes[1])] if y != "y" else []),
    ]
    graph = helper.make_graph(
        nodes,
        "tiny",
        [helper.make_tensor_value_info("x", dtypes[0], ["batch", dims[0]])],
        [helper.make_tensor_value_info("y", dtypes[1], ["batch", dims[1]])],
        [numpy_helper.from_array(first, "first"), numpy_helper.from_array(second, "second")],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10), path)
    samples = rng.standard_normal((400, dims[0])).astype(helper.tensor_dtype_to_np_dtype(dtypes[0]))
    np.savez(path.with_suffix(".npz"), x=samples)
    return path


def write_release(folder: Path, paths: dict[str, Path], *, version: str = "1", **more: object) -> Path:
    """Write a release file: this CPU, and a GPU that is not here, for the model ``b`` alone."""
    sources: dict[str, dict[str, object]] = {}
    for name, path in paths.items():
        sources[name] = {"source": str(path), "samples": str(path.with_suffix(".npz"))}
    if "a" in sources:
        sources["a"]["pools"] = ["here"]
    file = {
        "release": version,
        "defaults": {"objective": "latency", "rounds": 2, "round_s": 0.02, "threads": 1, "max_shape": "x:4x8"},
        "pools": {
            "here": {"device": "cpu", "targets": ["ort"]},
            "h100": {"device": "cuda", "targets": ["trt-fp16"], "gpu": "H100"},
        },
        "models": sources,
        **more,
    }
    path = folder / "release.yaml"
    path.write_text(yaml.safe_dump(file))
    return path


def accel(*words: object, cwd: Path | None = None, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "accel", *map(str, words)],
        capture_output=True,
        text=True,
        check=False,
        cwd=cwd,
        env={**os.environ, **env},
    )


def write_signed(folder: Path, version: str, private: Path, *, created: str = "2026-11-22T00:00:00Z") -> Path:
    """Write a signed release that holds no model, as fast as it can be had: ``folder/<version>``."""
    release = Release(
        version=version, accel="0", created=created, asked_sha256="", pools=(), models=(), entries=(), missing=(),
        toolchains={}, files=(), schema=SCHEMA,
    )  # fmt: skip
    building.write(release, folder / version, {})
    signing.sign(folder / version, private)
    return folder / version


@contextlib.contextmanager
def tritonserver(root: Path, arguments: str, scratch: Path, **env: str) -> Iterator[tuple[str, Path]]:
    """Run the embedded server with arguments as a shell splits them, and give ``http://HOST:PORT`` and its log.

    Args:
        root: a repository that it serves, for the packages that its Python models need.
        arguments: may name ``$ROOT`` and ``$PORT``, and the variables of ``env``.
    """
    scratch.mkdir()
    host = hosts.embedded(root, None, scratch)
    port = processes.choose_ports({"http": None})["http"]
    name = f"accel-{uuid.uuid4().hex[:12]}"
    _, variables = hosts.command(host, root, name=name, ports={}, flags=(), cache_bytes=0)
    flags = shlex.join([f"--backend-config=python,shm-region-prefix-name={name}", *host.flags])
    line = f'exec "$TRITONSERVER" {arguments} {flags}'
    told = variables | env | {"ROOT": str(root), "PORT": str(port)}
    running = processes.launch(["bash", "-c", line], told, log=scratch / "log", name=name, scratch=scratch)
    try:
        yield f"http://127.0.0.1:{port}", scratch / "log"
    finally:
        running.end()


def wait_ready(url: str, running: processes.Running) -> None:
    """Ask until there is an answer: a server that listens and is not ready says 400."""
    until = time.monotonic() + 60
    while True:
        try:
            ask(url)
            return
        except AssertionError:
            assert running.group.alive(), running.printed()
            if time.monotonic() > until:
                raise
            time.sleep(0.2)


def ask(url: str, body: object = None, **headers: str) -> Any:
    """Return what an HTTP server answers, as JSON where it is any; wait a minute for one that is starting."""
    data = None if body is None else json.dumps(body).encode()
    told = {"Content-Type": "application/json"} | {k.replace("_", "-"): v for k, v in headers.items()}
    until = time.monotonic() + 60
    while True:
        try:
            with urllib.request.urlopen(urllib.request.Request(url, data, told), timeout=60) as answer:
                text = answer.read()
            return json.loads(text) if text else None
        except urllib.error.HTTPError as error:
            if error.code != 503 or time.monotonic() > until:
                raise AssertionError(f"{url}: {error.code} {error.read().decode()}") from error
        except (urllib.error.URLError, ConnectionError):
            if time.monotonic() > until:
                raise
        time.sleep(0.2)


def unpack(archive, folder):
    """Unpack an archive as people do; Python's own warns without a filter, or before 3.11.4 knows none."""
    folder.mkdir(parents=True)
    subprocess.run(["tar", "-xf", archive, "-C", folder], check=True)
    return folder
