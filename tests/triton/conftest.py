"""Artifacts of the embedding model for each backend, and an ``emit`` with everything but the artifact filled in."""

from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import embedding
import numpy as np
import pytest
from embedding import AOTI_NAMES, AOTI_OUTPUTS, SERVED, write_onnx
from live import Live

from accel.core import environments
from accel.core.values import Artifact, Repository, ShapeRange
from accel.triton.repository import emit
from accel.triton.request import ClientModel, EmitRequest


@dataclass(frozen=True)
class Bench:
    """A run directory with samples, and one artifact folder for each backend."""

    run_dir: Path
    samples: Path
    reference: Path

    def artifact(self, backend: str, *, static: bool = False) -> Artifact:
        """Write the artifact's files and describe them."""
        folder = self.folder(backend)
        folder.mkdir(parents=True, exist_ok=True)
        changes: dict[str, Any] = {}
        if backend == "onnxruntime":
            write_onnx(folder / "model.onnx")
            changes = {"entry": "model.onnx", "versions": {"onnxruntime": "1.24.4", "torch": "2.13.0"}}
        elif backend == "openvino":
            (folder / "model.xml").write_text("<net/>")
            (folder / "model.bin").write_bytes(bytes(16))
            changes = {"entry": "model.xml", "versions": {"openvino": "2026.4.1"}}
        elif backend == "aoti":
            (folder / "model.pt2").write_bytes(b"PK")
            changes = {"entry": "model.pt2", "versions": {"torch": "2.12.0"}}
            for field, names in (("inputs", AOTI_NAMES), ("outputs", AOTI_OUTPUTS)):
                specs = embedding.INPUTS if field == "inputs" else embedding.OUTPUTS
                changes[field] = tuple(replace(s, name=names[s.name]) for s in specs)
        else:
            np.save(folder / "weights.npy", embedding.table())
        artifact = embedding.artifact(folder, f"{backend}@cpu", **changes)
        if static:
            fixed = {name: ShapeRange(r.opt, r.opt, r.opt) for name, r in embedding.PROFILE.items()}
            artifact = replace(artifact, variant=replace(artifact.variant, profile=fixed, static="1x6"))
        return artifact

    def folder(self, backend: str) -> Path:
        return self.run_dir / "variants" / backend

    def root(self, artifact: Artifact) -> Path:
        return self.run_dir / "repositories" / artifact.variant.id

    def emit(self, artifact: Artifact, **changes: Any) -> Repository:
        """Emit for 26.05 with the backend's own TritonModel unless ``changes`` say otherwise."""
        backend = artifact.variant.target.name
        source = changes.pop("source", embedding.source())
        given: dict[str, Any] = {
            "inputs": source.inputs,
            "outputs": source.outputs,
            "unproved_int64": source.unproved_int64,
            "model_name": "embedding",
            "release": "26.05",
            "builder": embedding.EmbeddingBuilder(SERVED[backend]),
            "root": self.root(artifact),
            "run_dir": self.run_dir,
            "samples": self.samples,
            "reference": self.reference,
        } | changes
        model, request = (
            kind(**{f.name: given.pop(f.name) for f in fields(kind) if f.name in given})
            for kind in (ClientModel, EmitRequest)
        )
        return emit(artifact, self.folder(backend), model=model, request=request, **given)


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path, *embedding.write_points(tmp_path))


@pytest.fixture(scope="session")
def live(tmp_path_factory: pytest.TempPathFactory) -> Live:
    """A tiny model whose repositories a real server can load."""
    assert environments.installed("triton"), "the embedded server is not installed: make environments"
    return Live.make(tmp_path_factory.mktemp("live"))
