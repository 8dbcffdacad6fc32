"""Serves one accel artifact in Triton's Python backend.

Beside this file lie ``artifact.json`` (what to serve), ``artifact/`` (its files) and the modules of accel it needs. The
session is the one that was measured: requests are checked against the client contract, merged along the leading axis
where the config allows batching, run once for each shape, and split again. Requests of different shapes run apart: they
are never padded to fit each other. A request that does not fit, or that fails, gets an error response of its own; the
others of the same call are answered.

Environment: ``ACCEL_SITE_PACKAGES`` names further folders with packages, since the stub process of the Python backend
does not read PYTHONPATH; of two folders with the same package the first wins. NumPy itself comes from the stub's own
environment: the server imports it before this file.
Config parameters: ``threads`` (CPU threads of each instance; without it the CPUs this process may use, divided by the
instances) and ``mode`` (``latency`` or ``throughput``).
"""

import contextlib
import importlib
import json
import os
import sys
from pathlib import Path

import numpy as np
import triton_python_backend_utils as pb_utils  # type: ignore[import-not-found]

# Bytecode beside a source is run in its place, so a repository has none. Not every stub process reads
# PYTHONDONTWRITEBYTECODE, and one that does not has written this file's own before it ran the first line.
sys.dont_write_bytecode = True
with contextlib.suppress(OSError):
    cached = Path(globals().get("__cached__") or "")
    cached.unlink()
    cached.parent.rmdir()

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
sys.path.extend(p for p in os.environ.get("ACCEL_SITE_PACKAGES", "").split(os.pathsep) if p)


class TritonPythonModel:
    """The class the Python backend looks for."""

    def initialize(self, args):  # type: ignore[no-untyped-def]
        """Read what is served, and open its session."""
        artifacts = importlib.import_module("accel.core.values")
        spec = json.loads((HERE / "artifact.json").read_text(encoding="utf-8"))
        if spec["numpy_below_2"] and int(np.__version__.split(".")[0]) >= 2:
            raise RuntimeError(
                f"this release's Python backend gives empty outputs under NumPy 2, and this is {np.__version__}: start "
                "the server with PYTHON_ENV naming a virtual environment that has numpy<2"
            )
        read = artifacts.from_json
        self.inputs = [read(artifacts.TensorSpec, s) for s in spec["inputs"]]
        self.outputs = [read(artifacts.TensorSpec, s) for s in spec["outputs"]]
        self.batched, self.axes = spec["batched"], {}
        artifact = read(artifacts.Artifact, spec["artifact"])
        self.profile = artifact.variant.profile
        self.session = self.open(spec, artifact, json.loads(args["model_config"]))

    def open(self, spec, artifact, config):  # type: ignore[no-untyped-def]
        """Return the artifact's session."""
        errors = importlib.import_module("accel.core.errors")
        hardware = importlib.import_module("accel.core.hardware")
        parameters = {k: v["string_value"] for k, v in config.get("parameters", {}).items()}
        instances = sum(int(group.get("count", 1)) for group in config.get("instance_group", [])) or 1
        builder = importlib.import_module(spec["builder"]).BUILDER
        try:
            return self.opened(
                builder,
                spec,
                artifact,
                threads=int(parameters.get("threads") or max(1, hardware.cpu_threads() // instances)),
                mode=parameters.get("mode", "latency"),
            )
        except (errors.UnavailableError, ImportError) as error:
            where = "" if spec["environment"] == "main" else f" of accel's environment {spec['environment']!r} first,"
            wanted = ", ".join(f"{name} {version}" for name, version in sorted(artifact.built.versions.items()))
            raise RuntimeError(
                f"{getattr(error, 'message', error)}; the artifact was built with {wanted}: start the server with "
                f"ACCEL_SITE_PACKAGES naming the site-packages{where} that hold its runtime"
            ) from error

    def opened(self, builder, spec, artifact, **how):  # type: ignore[no-untyped-def]
        """Return the session that the builder opens."""
        return builder.open(artifact, HERE / "artifact", **how)

    def execute(self, requests):  # type: ignore[no-untyped-def]
        """Answer every request, in order."""
        from accel.core.errors import AccelError

        responses = [None] * len(requests)
        groups: dict = {}
        for index, request in enumerate(requests):
            try:
                feed = self.feed(request)
            except AccelError as error:
                responses[index] = refuse(Wrong(error.message))
                continue
            shape = tuple(a.shape[1:] for a in feed.values()) if self.batched else index
            groups.setdefault(shape, []).append((index, feed))
        for members in groups.values():
            for (index, _), found in zip(members, self.answers([feed for _, feed in members]), strict=True):
                responses[index] = refuse(found) if isinstance(found, str) else self.answer(requests[index], found)
        return responses

    def feed(self, request):  # type: ignore[no-untyped-def]
        """Return a request's inputs, held against the contract."""
        return self.fit({t.name(): t.as_numpy() for t in request.inputs()})

    def answer(self, request, outputs):  # type: ignore[no-untyped-def]
        """Return the response with the outputs that the request asked for."""
        wanted = request.requested_output_names()
        return pb_utils.InferenceResponse([pb_utils.Tensor(n, a) for n, a in outputs.items() if n in wanted])

    def fit(self, tensors):  # type: ignore[no-untyped-def]
        """Check a request against the contract: names, ranks, sizes, dtypes and integer ranges.

        A size beyond the profile was never proved, and some runtimes answer it without a word.
        """
        from accel.core.errors import SampleError
        from accel.core.feeds import fit_inputs

        feed = fit_inputs(tensors, self.inputs)
        for name, value in feed.items():
            shapes = self.profile[name]
            if any(not low <= n <= high for n, low, high in zip(value.shape, shapes.min, shapes.max, strict=True)):
                raise SampleError(f"input {name!r} has shape {value.shape}, served are {shapes.min} to {shapes.max}")
            if any(n % step for n, step in zip(value.shape, shapes.multiples, strict=True)):
                raise SampleError(f"input {name!r} has shape {value.shape}, expected multiples of {shapes.multiples}")
        return feed

    def answers(self, feeds):  # type: ignore[no-untyped-def]
        """Return the outputs of each feed, or the message of its failure; one that fails does not take others along."""
        try:
            return self.run(feeds)
        except Exception as error:  # noqa: BLE001  whatever a runtime raises is the answer to this request
            if len(feeds) > 1:
                return [self.answers([feed])[0] for feed in feeds]
            reason = getattr(error, "message", f"{type(error).__name__}: {error}")
            wrong = isinstance(error, importlib.import_module("accel.core.errors").SampleError)
            return [(Wrong if wrong else str)(f"the model failed on this request: {reason}")]

    def run(self, feeds):  # type: ignore[no-untyped-def]
        """Run feeds of one shape in one call and return each one's outputs, in the contract's dtypes."""
        many = len(feeds) > 1
        axes = {name: self.axes.get(name, 0) for name in (*feeds[0], *(s.name for s in self.outputs))}
        merged = {name: np.concatenate([f[name] for f in feeds], axes[name]) for name in feeds[0]} if many else feeds[0]
        outputs = self.session.run(merged)
        arrays = {s.name: np.ascontiguousarray(outputs[s.name], dtype=s.dtype) for s in self.outputs}
        if not many:
            return [arrays]
        ends = np.cumsum([next(iter(f.values())).shape[0] for f in feeds])
        for name, array in arrays.items():
            if array.shape[axes[name]] != ends[-1]:
                raise ValueError(f"output {name!r} has {array.shape[axes[name]]} rows for a batch of {ends[-1]}")
        parts = {name: np.split(array, ends[:-1], axes[name]) for name, array in arrays.items()}
        return [{name: parts[name][i] for name in parts} for i in range(len(feeds))]

    def finalize(self):  # type: ignore[no-untyped-def]
        """Close the session."""
        self.session.close()


class Wrong(str):
    """Why a request is wrong: the fault is the client's, and the same request would be refused again."""


def refuse(message):  # type: ignore[no-untyped-def]
    """Return an error response: HTTP 400 for what is ``Wrong``, else 500."""
    code = pb_utils.TritonError.INVALID_ARG if isinstance(message, Wrong) else pb_utils.TritonError.INTERNAL
    return pb_utils.InferenceResponse(error=pb_utils.TritonError(str(message), code))
