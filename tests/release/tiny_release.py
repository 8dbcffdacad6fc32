"""Tiny ONNX models, a release file of them, and the command line that builds it."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import yaml
from onnx import TensorProto, helper, numpy_helper


def write_model(path: Path, seed: int = 0, *, shift: float = 0.0, dtype: int = TensorProto.FLOAT) -> Path:
    """Write a two-layer network: ``x`` float (batch, 8) → ``y`` (batch, 4); ``shift`` is added to one weight."""
    rng = np.random.default_rng(seed)
    first, second = rng.standard_normal((8, 16)).astype(np.float32), rng.standard_normal((16, 4)).astype(np.float32)
    first[0, 0] += shift
    nodes = [
        helper.make_node("MatMul", ["x", "first"], ["h"]),
        helper.make_node("Tanh", ["h"], ["t"]),
        helper.make_node("MatMul", ["t", "second"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "tiny",
        [helper.make_tensor_value_info("x", dtype, ["batch", 8])],
        [helper.make_tensor_value_info("y", dtype, ["batch", 4])],
        [numpy_helper.from_array(first, "first"), numpy_helper.from_array(second, "second")],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10), path)
    np.savez(path.with_suffix(".npz"), x=rng.standard_normal((400, 8)).astype(np.float32))
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
