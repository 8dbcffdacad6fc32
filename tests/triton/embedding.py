"""A tiny model for these tests: an embedding lookup and its mean, with a real builder that runs it in NumPy."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from accel.builders import Builder, Mode, Session, TargetInfo
from accel.core.values import (
    Artifact,
    BuildRequest,
    Built,
    ModelSource,
    ShapeRange,
    Skipped,
    Target,
    TensorSpec,
    TritonModel,
    Variant,
    file_refs,
)

VOCABULARY, WIDTH = 50, 4
INPUTS = (
    TensorSpec("input_ids", "int64", ("batch", "seq"), (0, VOCABULARY - 1)),
    TensorSpec("attention_mask", "int64", ("batch", "seq"), (0, 1)),
)
OUTPUTS = (
    TensorSpec("hidden", "float32", ("batch", "seq", WIDTH)),
    TensorSpec("pooled", "float32", ("batch", WIDTH)),
)
RANGE = ShapeRange((1, 1), (1, 6), (8, 12))
PROFILE = {s.name: RANGE for s in INPUTS}
AOTI_NAMES = {"input_ids": "ARGS[0]", "attention_mask": "ARGS[1]"}
AOTI_OUTPUTS = {"hidden": "RESULT[0]", "pooled": "RESULT[1]"}
SERVED = {
    "onnxruntime": TritonModel("onnxruntime", "model.onnx", True, parameters={"intra_op_thread_count": "2"}),
    "openvino": TritonModel("openvino", "model.xml", False, parameters={"PERFORMANCE_HINT": "LATENCY"}),
    "aoti": TritonModel(
        "pytorch", "model.pt2", False, platform="torch_aoti", input_names=AOTI_NAMES, output_names=AOTI_OUTPUTS
    ),
    "python": TritonModel("python", "weights.npy", True),
}
SHAPES = {"min": (1, 1), "odd": (3, 5), "opt": (1, 6), "max": (8, 12)}


def table() -> np.ndarray:
    """Return the embedding table: float32 (VOCABULARY, WIDTH)."""
    return np.random.default_rng(0).standard_normal((VOCABULARY, WIDTH)).astype(np.float32)


MIXING = 2 * np.eye(WIDTH, dtype=np.float32)
"""A matrix product whose result does not depend on how it is summed, so that batches may be compared exactly."""


def compute(weights: np.ndarray, ids: np.ndarray, mask: np.ndarray) -> dict[str, np.ndarray]:
    """GpuSample the ids up and average the unmasked positions."""
    hidden = weights[ids] @ MIXING * mask[..., None].astype(np.float32)
    return {
        "hidden": hidden,
        "pooled": hidden.sum(axis=1) / np.maximum(mask.sum(axis=1), 1)[:, None].astype(np.float32),
    }


def feed(shape: tuple[int, int], seed: int = 1) -> dict[str, np.ndarray]:
    """Return ids in range and a mask with the last position padded."""
    ids = np.random.default_rng(seed).integers(0, VOCABULARY, shape)
    mask = np.ones(shape, np.int64)
    mask[:, shape[1] // 2 + 1 :] = 0
    return {"input_ids": ids, "attention_mask": mask}


class EmbeddingSession(Session):
    """Runs the table."""

    def __init__(self, weights: np.ndarray) -> None:
        super().__init__(INPUTS, OUTPUTS)
        self.weights = weights
        self.calls: list[tuple[int, ...]] = []
        self._feed: Mapping[str, np.ndarray] = {}
        self._answer: dict[str, np.ndarray] = {}

    def bind(self, inputs: Mapping[str, np.ndarray], *, slot: int = 0) -> None:
        self._feed = inputs

    def submit(self, *, slot: int = 0) -> None:
        self.calls.append(self._feed["input_ids"].shape)
        self._answer = compute(self.weights, self._feed["input_ids"], self._feed["attention_mask"])

    def read(self, *, slot: int = 0) -> dict[str, np.ndarray]:
        return self._answer

    def precision(self) -> str:
        return "fp32"


@dataclass(frozen=True)
class Options:
    """None."""


class EmbeddingBuilder(Builder):
    """Builds and opens the table; says what the test wants about Triton."""

    targets: Mapping[str, TargetInfo] = {
        "embedding": TargetInfo(devices=("cpu",), precision="fp32", about="an embedding", needs="nothing")
    }
    options = Options

    def __init__(self, served: TritonModel | Skipped = SERVED["python"]) -> None:
        self.served = served

    def environment(self, target: Target) -> str:
        return "main"

    def available(self, target: Target) -> Skipped | None:
        return None

    def build(self, request: BuildRequest, options: Any, out_dir: Path) -> Built:
        np.save(out_dir / "weights.npy", table())
        return Built("weights.npy", INPUTS, OUTPUTS, "fp32", {"rows": VOCABULARY}, {"numpy": np.__version__})

    def open(self, artifact: Artifact, folder: Path, *, threads: int, mode: Mode) -> Session:
        return EmbeddingSession(np.load(folder / artifact.built.entry))

    def triton(self, artifact: Artifact, release: str) -> TritonModel | Skipped:
        return self.served


BUILDER = EmbeddingBuilder()


def source() -> ModelSource:
    """Return the source that promises the contract."""
    return ModelSource(
        name="embedding",
        kind="factory",
        reference="/embedding.py:factory",
        framework="torch",
        weights="local",
        revision=None,
        key=hashlib.sha256(b"embedding").hexdigest(),
        inputs=INPUTS,
        outputs=OUTPUTS,
        profile=PROFILE,
    )


def artifact(folder: Path, target: str = "embedding@cpu", **changes: Any) -> Artifact:
    """Describe the files below ``folder`` as an artifact; ``changes`` replace fields of its ``Built``."""
    name, _, device = target.partition("@")
    built = Built("weights.npy", INPUTS, OUTPUTS, "fp32", {"rows": VOCABULARY}, {"numpy": "2.0"})
    return Artifact(Variant(Target(name, device), PROFILE), file_refs(folder), "0" * 64, replace(built, **changes), 0.1)


def write_onnx(path: Path) -> None:
    """Write the embedding model as ONNX."""
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    nodes = [
        helper.make_node("Gather", ["table", "input_ids"], ["row"]),
        helper.make_node("MatMul", ["row", "mixing"], ["looked_up"]),
        helper.make_node("Cast", ["attention_mask"], ["weights"], to=TensorProto.FLOAT),
        helper.make_node("Unsqueeze", ["weights", "last"], ["column"]),
        helper.make_node("Mul", ["looked_up", "column"], ["hidden"]),
        helper.make_node("ReduceSum", ["hidden", "middle"], ["total"], keepdims=0),
        helper.make_node("ReduceSum", ["column", "middle"], ["count"], keepdims=0),
        helper.make_node("Div", ["total", "count"], ["pooled"]),
    ]
    info = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes,
        "embedding",
        [info(s.name, TensorProto.INT64, s.dims) for s in INPUTS],
        [info(s.name, TensorProto.FLOAT, s.dims) for s in OUTPUTS],
        [
            numpy_helper.from_array(table(), "table"),
            numpy_helper.from_array(MIXING, "mixing"),
            numpy_helper.from_array(np.array([-1]), "last"),
            numpy_helper.from_array(np.array([1]), "middle"),
        ],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    onnx.checker.check_model(model, full_check=True)
    onnx.save(model, path)


def write_points(folder: Path) -> tuple[Path, Path]:
    """Write samples and reference outputs of all shape points; return their paths."""
    samples, reference = {}, {}
    for point, shape in SHAPES.items():
        inputs = feed(shape)
        outputs = compute(table(), inputs["input_ids"], inputs["attention_mask"])
        samples.update({f"{point}/{k}": v for k, v in inputs.items()})
        reference.update({f"{point}/{k}": v for k, v in outputs.items()})
    np.savez(folder / "shapes.npz", **samples)
    np.savez(folder / "reference.npz", **reference)
    return folder / "shapes.npz", folder / "reference.npz"
