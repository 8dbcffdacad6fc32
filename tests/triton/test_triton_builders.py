"""What the real builders build from the embedding model is emitted and verifies, for the newest release."""

from dataclasses import replace

import embedding
import pytest

from accel.builders.targets import discover
from accel.core.values import (
    Artifact,
    BuildRequest,
    OnnxModel,
    Repository,
    SampleSet,
    ShapeRange,
    Skipped,
    Target,
    Variant,
    file_ref,
    file_refs,
)
from accel.triton.releases import NEWEST
from accel.triton.repository import emit, verify
from accel.triton.request import ClientModel, EmitRequest

TARGETS = [
    name
    for name, builder in discover().items()
    if "cpu" in builder.targets[name].devices
    and builder.targets[name].needs in ("onnx", "nothing")
    and not builder.targets[name].calibration
    and builder.environment(Target(name, "cpu")) == "main"
]


@pytest.mark.parametrize("static", [None, "1x6"])
@pytest.mark.parametrize("name", TARGETS)
def test_a_built_artifact_becomes_a_repository(bench, name, static):
    builder = discover()[name]
    if (skipped := builder.available(Target(name, "cpu"))) is not None:
        pytest.skip(skipped.reason)
    run_dir = bench.run_dir
    embedding.write_onnx(run_dir / "model.onnx")
    file = file_ref(run_dir / "model.onnx", run_dir)
    profile = embedding.PROFILE
    if static:
        profile = {k: ShapeRange(r.opt, r.opt, r.opt) for k, r in profile.items()}
    variant = Variant(Target(name, "cpu"), profile, static)
    shapes = file_ref(bench.samples, run_dir)
    request = BuildRequest(
        variant,
        replace(embedding.source(), profile=profile),
        OnnxModel(file, (), 18, 10, {}, embedding.INPUTS, embedding.OUTPUTS),
        str(run_dir),
        SampleSet(None, shapes, shapes, 0, 1, shapes.sha256, "random"),
        str(run_dir),
        threads=1,
    )
    folder = run_dir / "variants" / variant.id
    folder.mkdir(parents=True)
    built = builder.build(request, builder.options(), folder)
    artifact = Artifact(variant, file_refs(folder), file.sha256, built, 0.1)
    root = run_dir / "repositories" / variant.id
    repository = emit(
        artifact,
        folder,
        model=ClientModel(model_name="embedding", inputs=embedding.INPUTS, outputs=embedding.OUTPUTS),
        request=EmitRequest(release=NEWEST),
        builder=builder,
        root=root,
        run_dir=run_dir,
        samples=bench.samples,
        reference=bench.reference,
    )
    assert not isinstance(repository, Skipped)
    assert isinstance(repository, Repository)
    assert [f for f in verify(root) if f.severity == "error"] == []
