"""A stateful model made ready to serve, by the stages' own tasks: described, run over its streams, built, proved."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from accel.builders import targets
from accel.core.accuracy import parity
from accel.core.feeds import Feed
from accel.core.values import Artifact, BuildRequest, Parity, Target, Variant
from accel.exporters.sources import recognise
from accel.run import tasks
from accel.run.stream_check import check_streams
from accel.run.tasks import Described
from accel.triton.releases import NEWEST
from accel.triton.request import EmitRequest

THREADS = 2
GRU = '''
import numpy as np
import torch


class Recurrent(torch.nn.Module):
    """Two states: one has the batch in front, the other behind its layers."""

    def __init__(self):
        super().__init__()
        self.cell, self.layers = torch.nn.GRUCell(6, 16), torch.nn.GRU(16, 16, 2, batch_first=True)
        self.head = torch.nn.Linear(16, 3)

    def forward(self, x, h, deep):
        h = self.cell(x, h)
        out, deep = self.layers(h[:, None], deep)
        return {"y": self.head(out[:, 0]), "hn": h, "deep_out": deep}


def build():
    torch.manual_seed(0)
    rng = np.random.default_rng(0)
    zeros = {"h": np.zeros((1, 16), np.float32), "deep": np.zeros((2, 1, 16), np.float32)}
    return Recurrent(), [{"x": rng.standard_normal((1, 6)).astype(np.float32), **zeros} for _ in range(300)]
'''
STATES = {"h": "hn", "deep": "deep_out"}


@dataclass
class Stateful:
    """A source with its samples and reference in a folder."""

    folder: Path
    described: Described
    onnx: Any

    @classmethod
    def make(cls, folder: Path, source: str, states: Mapping[str, str], **options: Any) -> "Stateful":
        """Describe a source, run it over its streams and export it."""
        described = tasks.describe(recognise(source, states=states, **options), folder / "samples")
        truth = folder / "reference.npz"
        tasks.reference(described, folder / "samples", truth)
        (folder / "onnx").mkdir()
        tasks.export(described.source, folder / "onnx", 18)
        onnx = tasks.read_exported(folder / "onnx")
        return cls(folder, described, tasks.check(described, folder / "samples", truth, onnx, folder / "onnx"))

    def build(self, target: str, onnx: Path | None = None) -> tuple[Artifact, Path]:
        """Build a target, from another ONNX file where one is given."""
        source = self.described.source
        variant = Variant(Target(target, "cpu"), source.profile)
        files = self.folder / f"{target}{'-other' if onnx else ''}"
        files.mkdir()
        folders = str(onnx or self.folder / "onnx"), self.described.samples, str(self.folder / "samples")
        request = BuildRequest(variant, source, self.onnx, *folders, THREADS)
        return tasks.build(request, files, "0" * 64), files

    def prove(self, artifact: Artifact, files: Path, gate: Mapping[str, float] | None = None) -> tuple[Parity, Parity]:
        """Return the verdict on single steps, and that with the streams."""
        samples, truth, found = self.folder / "samples", self.folder / "reference.npz", files.with_suffix(".npz")
        ran = tasks.answers(artifact, files, self.described, samples, found, THREADS, truth)
        outputs = self.described.source.outputs
        gate = gate or parity.gate_for(ran.precision, outputs=outputs, task=None, overrides={})
        single = tasks.compare(self.described, samples, truth, found, gate)
        return single, check_streams(artifact, files, self.described, samples, truth, single, THREADS)

    def emit(self, artifact: Artifact, files: Path, verdict: Parity, name: str = "recurrent", **changes: Any) -> Path:
        """Emit the repository."""
        root = self.folder / f"repositories-{len(list(self.folder.iterdir()))}" / files.name
        root.parent.mkdir()
        asked: dict[str, Any] = {"release": NEWEST, "parity": verdict, "threads": THREADS, "hardware": "here"}
        emitted = tasks.emit(
            artifact,
            files,
            replace(self.described.source, name=name),
            EmitRequest(**asked | changes),
            root=root,
            samples=self.folder / "samples" / self.described.samples.shapes.path,
            reference=self.folder / "reference.npz",
            streams=self.folder / "samples" / "streams.npz",
            pipeline=None,
        )
        assert emitted.repository is not None, emitted.reason
        assert targets.backend(emitted.repository.backend).name == emitted.repository.backend
        return root


class Framework:
    """The source itself as its user runs it: the module in eager PyTorch, its states handed on by hand."""

    def __init__(self, folder: Path) -> None:
        names: dict[str, Any] = {}
        exec(compile(GRU, str(folder), "exec"), names)
        self.model = names["build"]()[0].eval()

    def answers(self, stream: list[Feed]) -> Iterator[np.ndarray]:
        """Yield the answer to each step of a stream."""
        import torch

        h, deep = torch.zeros(1, 16), torch.zeros(2, 1, 16)
        for step in stream:
            with torch.no_grad():
                found = self.model(torch.from_numpy(step["x"]), h, deep)
            h, deep = found["hn"], found["deep_out"]
            yield found["y"].numpy()


def streams(count: int, steps: int, seed: int) -> list[list[Feed]]:
    """Draw streams of the recurrent model's inputs."""
    rng = np.random.default_rng(seed)
    return [[{"x": rng.standard_normal((1, 6)).astype(np.float32)} for _ in range(steps)] for _ in range(count)]
