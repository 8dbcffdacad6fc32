"""Repositories of real sources with the ensembles that they declare."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from accel import exporters
from accel.builders import targets
from accel.core.feeds import read_feeds
from accel.core.values import Artifact, BuildRequest, OnnxModel, Skipped, Target, Variant, file_refs
from accel.exporters import samples
from accel.exporters.check import Point
from accel.exporters.ensemble_request import EnsembleRequest
from accel.exporters.processing_files import resolve_processing_files
from accel.exporters.sources import recognise
from accel.triton import ensemble
from accel.triton.repository import emit
from accel.triton.request import ClientModel, EmitRequest

Shapes = Mapping[str, Mapping[str, tuple[int, ...]]]


def repository(text: str, folder: Path, target: str, shapes: Shapes, *, release: str) -> Path:
    """Build a source for one target and emit its repository with the ensemble that it declares.

    Args:
        shapes: ``min_shapes``, ``opt_shapes`` and ``max_shapes`` by input.
    """
    asked = recognise(text, **shapes)
    folder.mkdir()
    source = exporters.describe(asked)
    drawn = samples.make_samples(source, asked, folder)
    feeds = read_feeds(folder / drawn.shapes.path)
    model = exporters.load(source)
    answers = {point: model.run(feed) for point, feed in feeds.items()}
    np.savez(folder / "reference.npz", **{f"{p}/{k}": v for p, made in answers.items() for k, v in made.items()})
    builder = targets.discover()[target]
    onnx: OnnxModel | None = None
    if builder.targets[target].needs == "onnx":
        (folder / "onnx").mkdir()
        points = [Point(name, feed, answers[name]) for name, feed in feeds.items()]
        onnx = exporters.export_onnx(source, folder / "onnx", opset=18, points=points)
    variant = Variant(Target(target, "cpu"), source.profile)
    request = BuildRequest(variant, source, onnx, str(folder / "onnx"), drawn, str(folder), 2)
    (folder / "built").mkdir()
    built = builder.build(request, builder.options(), folder / "built")
    emitted = emit(
        Artifact(variant, file_refs(folder / "built"), "0" * 64, built, 0.0),
        folder / "built",
        model=ClientModel.of(source),
        request=EmitRequest(release=release),
        builder=builder,
        root=folder / "repository",
        run_dir=folder,
        samples=folder / drawn.shapes.path,
        reference=folder / "reference.npz",
    )
    assert not isinstance(emitted, Skipped), emitted
    ensemble.add(folder / "repository", resolve_processing_files(source, EnsembleRequest()))
    return folder / "repository"
