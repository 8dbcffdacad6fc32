"""A tiny model with a real repository for each backend, built and proved once for all tests that serve it."""

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import numpy as np
import pytest

from accel.builders import targets
from accel.core import environments
from accel.core.accuracy import parity
from accel.core.processes import Worker
from accel.core.values import (
    Artifact,
    BuildRequest,
    ModelSource,
    SampleSet,
    ShapeRange,
    Skipped,
    Target,
    Variant,
)
from accel.exporters.sources import recognise
from accel.run import tasks
from accel.run.tasks import Described
from accel.triton import manifest as manifests
from accel.triton.releases import NEWEST
from accel.triton.repository import emit
from accel.triton.request import ClientModel, EmitRequest

P, R = ParamSpec("P"), TypeVar("R")
THREADS = 2
SIZES = {"min": (1, 2), "opt": (1, 6), "max": (4, 10)}
RANGES = {"input_ids": (0, 49), "attention_mask": (0, 1)}
FACTORY = '''
import numpy as np
import torch


class Tiny(torch.nn.Module):
    """Embeds ids, mixes each position with the mean of the unmasked ones, and counts them: floats and integers out."""

    def __init__(self):
        super().__init__()
        self.embed = torch.nn.Embedding(50, 16)
        self.first = torch.nn.Linear(16, 32)
        self.second = torch.nn.Linear(32, 16)

    def forward(self, input_ids, attention_mask):
        weight = attention_mask.unsqueeze(-1).to(torch.float32)
        hidden = self.embed(input_ids) * weight
        mean = hidden.sum(1, keepdim=True) / weight.sum(1, keepdim=True)
        return {
            "hidden": self.second(torch.tanh(self.first(hidden + mean))) * weight,
            "length": attention_mask.sum(1, keepdim=True),
        }


def build():
    torch.manual_seed(0)
    rng = np.random.default_rng(0)
    return Tiny(), [
        {"input_ids": rng.integers(0, 50, (1, n)), "attention_mask": np.ones((1, n), np.int64)}
        for n in rng.integers(2, 10, 400)
    ]
'''


def answer_with(
    patch: pytest.MonkeyPatch, target: str, answer: Callable[[Callable[[Any], dict[str, np.ndarray]], Any], Any]
) -> None:
    """Let a target's sessions answer what ``answer(run, feed)`` makes of their own ``run`` and a feed."""
    kind = type(targets.discover()[target])
    opened = kind.open

    def open_(self: Any, *args: Any, **how: Any) -> Any:
        session = opened(self, *args, **how)
        session.run = functools.partial(answer, session.run)
        return session

    patch.setattr(kind, "open", open_)


@dataclass
class Live:
    """The source, its samples and reference, and the repositories emitted so far."""

    folder: Path
    source: ModelSource
    samples: SampleSet
    onnx: Any
    roots: dict[str, Path] = field(default_factory=dict)
    artifacts: dict[str, Artifact] = field(default_factory=dict)

    @classmethod
    def make(
        cls,
        folder: Path,
        text: str = FACTORY,
        sizes: Mapping[str, tuple[int, ...]] = SIZES,
        inputs: Sequence[str] = tuple(RANGES),
    ) -> "Live":
        """Describe, run and export a source in this process; ``text`` is its factory's file, ``sizes`` its shapes."""
        factory = folder / "tiny.py"
        factory.write_text(text)
        shapes = {name: dict.fromkeys(inputs, shape) for name, shape in sizes.items()}
        asked = recognise(
            f"{factory}:build",
            min_shapes=shapes["min"],
            opt_shapes=shapes["opt"],
            max_shapes=shapes["max"],
            ranges={name: RANGES[name] for name in inputs if name in RANGES},
        )
        samples, truth = folder / "samples", folder / "reference.npz"
        described = tasks.describe(asked, samples)
        tasks.reference(described, samples, truth)
        (folder / "onnx").mkdir()
        tasks.export(described.source, folder / "onnx", 18)
        onnx = tasks.read_exported(folder / "onnx")
        tasks.check(described, samples, truth, onnx, folder / "onnx")
        return cls(folder, described.source, described.samples, onnx)

    def root(self, target: str, *, static: bool = False, release: str = NEWEST, **changes: Any) -> Path:
        """Return the repository of a target, built, proved and emitted; ``changes`` go to ``EmitRequest``."""
        profile, suffix = self.source.profile, None
        if static:
            profile, suffix = {n: ShapeRange(r.opt, r.opt, r.opt) for n, r in profile.items()}, "1x6"
        variant = Variant(Target(target, "cpu"), profile, suffix)
        key = "-".join([variant.id, release, str(len(self.roots))]) if changes else f"{variant.id}-{release}"
        if key not in self.roots:
            artifact = self._build(variant)
            root = self.folder / "repositories" / key
            emitted = emit(
                artifact,
                self._files(variant),
                model=ClientModel(
                    model_name="tiny",
                    inputs=self.source.inputs,
                    outputs=self.source.outputs,
                    mask=changes.pop("mask", manifests.MASK),
                ),
                request=EmitRequest(release=release, parity=self._prove(artifact), **changes),
                builder=targets.discover()[target],
                root=root,
                run_dir=self.folder,
                samples=self.folder / "samples" / self.samples.shapes.path,
                reference=self.folder / "reference.npz",
            )
            assert not isinstance(emitted, Skipped), emitted
            self.roots[key] = root
        return self.roots[key]

    def alone(self, target: str, sent: Mapping[str, Mapping[str, np.ndarray]]) -> dict[str, dict[str, np.ndarray]]:
        """Return what a target answers to each row of some requests by itself, joined again by request."""
        artifact = self._build(Variant(Target(target, "cpu"), self.source.profile))
        session = targets.discover()[target].open(artifact, self._files(artifact.variant), threads=1, mode="latency")
        found = {}
        for name, feed in sent.items():
            count = len(next(iter(feed.values())))
            rows = [session.run({n: v[i : i + 1] for n, v in feed.items()}) for i in range(count)]
            found[name] = {s.name: np.concatenate([row[s.name] for row in rows]) for s in self.source.outputs}
        session.close()
        return found

    def _files(self, variant: Variant) -> Path:
        return self.folder / "variants" / variant.id

    def _run(self, variant: Variant, task: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Run a task here where that is quick and quiet, else in a process of the variant's environment."""
        environment = targets.discover()[variant.target.name].environment(variant.target)
        if environment == environments.MAIN and not variant.target.name.startswith("aoti"):
            return task(*args, **kwargs)
        python = environments.python(environment)
        with Worker(self.folder / "task.log", threads=THREADS, timeout_s=300, python=python) as worker:
            return worker.call(task, *args, **kwargs)

    def _build(self, variant: Variant) -> Artifact:
        if variant.id in self.artifacts:
            return self.artifacts[variant.id]
        files = self._files(variant)
        files.mkdir(parents=True)
        request = BuildRequest(
            variant,
            self.source,
            self.onnx,
            str(self.folder / "onnx"),
            self.samples,
            str(self.folder / "samples"),
            THREADS,
        )
        self.artifacts[variant.id] = self._run(variant, tasks.build, request, files, "0" * 64)
        return self.artifacts[variant.id]

    def _prove(self, artifact: Artifact) -> Any:
        answers = self.folder / f"{artifact.variant.id}.npz"
        described, samples = Described(self.source, self.samples), self.folder / "samples"
        files = self._files(artifact.variant)
        ran = self._run(artifact.variant, tasks.answers, artifact, files, described, samples, answers, THREADS)
        gate = parity.gate_for(ran.precision, outputs=self.source.outputs, task=None, overrides={})
        return tasks.compare(described, samples, self.folder / "reference.npz", answers, gate)
