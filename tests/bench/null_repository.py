"""Repositories of the null model, as small as they can be: for load on a real server."""

from pathlib import Path

import numpy as np

from accel.builders.to_null import BUILDER, NullOptions
from accel.core.values import (
    Artifact,
    BuildRequest,
    ModelSource,
    OutputParity,
    Parity,
    Repository,
    SampleSet,
    ShapeRange,
    Target,
    TensorSpec,
    Variant,
    file_ref,
    file_refs,
)
from accel.triton.repository import emit
from accel.triton.request import ClientModel, EmitRequest

INPUTS = (TensorSpec("input_ids", "int64", ("batch", "seq"), (0, 49)),)
OUTPUTS = (TensorSpec("pooled", "float32", ("batch", 4)),)
SHAPES = {"min": (1, 1), "odd": (3, 5), "opt": (1, 16), "max": (8, 32)}
PROFILE = {"input_ids": ShapeRange(SHAPES["min"], SHAPES["opt"], SHAPES["max"])}
RELEASE = "24.10"
"""What the embedded server is."""


def feed(shape: tuple[int, int], seed: int = 0) -> dict[str, np.ndarray]:
    """Return ids in range."""
    return {"input_ids": np.random.default_rng(seed).integers(0, 50, shape)}


def write(run_dir: Path, *, name: str = "nothing", latency_ms: float = 0.0) -> Path:
    """Emit a repository below ``run_dir`` and return its root."""
    folder = run_dir / f"variant-{name}"
    folder.mkdir(parents=True)
    source = ModelSource(name, "factory", "/null.py:build", "torch", "local", None, "0" * 64, INPUTS, OUTPUTS, PROFILE)
    variant = Variant(Target("null", "cpu"), PROFILE)
    np.savez(run_dir / "samples.npz", **{f"{p}/input_ids": feed(s)["input_ids"] for p, s in SHAPES.items()})
    np.savez(run_dir / "reference.npz", **{f"{p}/pooled": np.zeros((s[0], 4), np.float32) for p, s in SHAPES.items()})
    sample = file_ref(run_dir / "samples.npz", run_dir)
    samples = SampleSet(None, sample, sample, 0, 4, "0" * 64, "random")
    request = BuildRequest(variant, source, None, None, samples, str(run_dir), threads=1)
    built = BUILDER.build(request, NullOptions(latency_ms), folder)
    artifact = Artifact(variant, file_refs(folder), "0" * 64, built, 0.0)
    root = run_dir / f"repository-{name}"
    proved = Parity(True, {"sqnr_db": 80.0}, {}, (OutputParity("pooled", 0.0, None, None, True, None, 0.0, 0.0),))
    made = emit(
        artifact,
        folder,
        model=ClientModel(model_name=name, inputs=INPUTS, outputs=OUTPUTS),
        request=EmitRequest(release=RELEASE, parity=proved),
        builder=BUILDER,
        root=root,
        run_dir=run_dir,
        samples=run_dir / "samples.npz",
        reference=run_dir / "reference.npz",
    )
    assert isinstance(made, Repository)
    return root
