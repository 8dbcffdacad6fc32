"""Serves one accel artifact in Triton's Python backend.

Beside this file lie ``artifact.json`` (what to serve), ``artifact/`` (its files) and the modules of accel it needs. The
session is the one that was measured: requests are checked against the client contract, merged along the leading axis
where the config allows batching, run once for each shape, and split again. A request that does not fit gets an error
response; the others of the same call are answered.

Environment: ``ACCEL_SITE_PACKAGES`` names further folders with packages, since the stub process of the Python backend
does not read PYTHONPATH. NumPy itself comes from the stub's own environment: the server imports it before this file.
Config parameters: ``threads`` (CPU threads of each instance; without it the CPUs this process may use, divided by the
instances) and ``mode`` (``latency`` or ``throughput``).
"""

import importlib
import json
import os
import sys
from pathlib import Path

import numpy as np
import triton_python_backend_utils as pb_utils  # type: ignore[import-not-found]

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
sys.path.extend(p for p in os.environ.get("ACCEL_SITE_PACKAGES", "").split(os.pathsep) if p)


def usable_cpus() -> int:
    """Return how many CPUs this process may use: its affinity, and the quota of its cgroup (version 2)."""
    cpus = len(os.sched_getaffinity(0))
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
    except (OSError, ValueError):
        return cpus
    return cpus if quota == "max" else max(1, min(cpus, int(quota) // int(period)))


class TritonPythonModel:
    """The class the Python backend looks for."""

    def initialize(self, args):  # type: ignore[no-untyped-def]
        """Open the artifact's session."""
        artifacts = importlib.import_module("accel.artifacts")
        config = json.loads(args["model_config"])
        spec = json.loads((HERE / "artifact.json").read_text(encoding="utf-8"))
        if spec["numpy_below_2"] and int(np.__version__.split(".")[0]) >= 2:
            raise RuntimeError(
                f"this release's Python backend gives empty outputs under NumPy 2, and this is {np.__version__}: start "
                "the server with PYTHON_ENV naming a virtual environment that has numpy<2"
            )
        read = artifacts.from_json
        self.inputs = [read(artifacts.TensorSpec, s) for s in spec["inputs"]]
        self.outputs = [read(artifacts.TensorSpec, s) for s in spec["outputs"]]
        self.batched = spec["batched"]
        parameters = {k: v["string_value"] for k, v in config.get("parameters", {}).items()}
        instances = sum(int(group.get("count", 1)) for group in config.get("instance_group", [])) or 1
        builder = importlib.import_module(spec["builder"]).BUILDER
        self.session = builder.open(
            read(artifacts.Artifact, spec["artifact"]),
            HERE / "artifact",
            threads=int(parameters.get("threads") or max(1, usable_cpus() // instances)),
            mode=parameters.get("mode", "latency"),
        )

    def execute(self, requests):  # type: ignore[no-untyped-def]
        """Answer every request, in order."""
        from accel.builders import fit_inputs
        from accel.errors import AccelError

        responses = [None] * len(requests)
        groups: dict = {}
        for index, request in enumerate(requests):
            tensors = {t.name(): t.as_numpy() for t in request.inputs()}
            try:
                feed = fit_inputs(tensors, self.inputs)
            except AccelError as error:
                responses[index] = refuse(error.message)
                continue
            shape = tuple(a.shape[1:] for a in feed.values()) if self.batched else index
            groups.setdefault(shape, []).append((index, feed))
        for members in groups.values():
            try:
                answers = self.run([feed for _, feed in members])
            except (AccelError, ValueError, RuntimeError) as error:
                answers = None
                failure = f"the model failed on this request: {error}"
            for position, (index, _) in enumerate(members):
                if answers is None:
                    responses[index] = refuse(failure)
                else:
                    responses[index] = self.answer(requests[index], answers[position])
        return responses

    def run(self, feeds):  # type: ignore[no-untyped-def]
        """Run feeds of one shape in one call and return each one's outputs, in the contract's dtypes."""
        many = len(feeds) > 1
        merged = {name: np.concatenate([f[name] for f in feeds]) for name in feeds[0]} if many else feeds[0]
        outputs = self.session.run(merged)
        arrays = {s.name: np.ascontiguousarray(outputs[s.name], dtype=s.dtype) for s in self.outputs}
        if not many:
            return [arrays]
        ends = np.cumsum([next(iter(f.values())).shape[0] for f in feeds])[:-1]
        parts = {name: np.split(array, ends) for name, array in arrays.items()}
        return [{name: parts[name][i] for name in parts} for i in range(len(feeds))]

    def answer(self, request, outputs):  # type: ignore[no-untyped-def]
        """Return the response with the outputs that the request asked for."""
        wanted = request.requested_output_names()
        return pb_utils.InferenceResponse([pb_utils.Tensor(n, a) for n, a in outputs.items() if n in wanted])

    def finalize(self):  # type: ignore[no-untyped-def]
        """Close the session."""
        self.session.close()


def refuse(message):  # type: ignore[no-untyped-def]
    """Return an error response."""
    return pb_utils.InferenceResponse(error=pb_utils.TritonError(message, pb_utils.TritonError.INVALID_ARG))
