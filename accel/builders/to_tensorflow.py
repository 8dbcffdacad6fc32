"""TensorFlow: a SavedModel run as it is (the baseline of TensorFlow sources), compiled by XLA, or left to Triton.

Only TensorFlow sources have these targets. ``tf-amp`` and ``tf-trt-fp16`` exist inside Triton's tensorflow backend
alone, on a GPU: accel writes their repositories and cannot run them itself. That backend ended with release 25.02.
"""

import functools
import importlib.util
import shutil
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np

from accel.builders import Backend, Builder, Mode, Session, TargetInfo, share
from accel.builders.declared import reconcile
from accel.builders.requirements import demand, missing_gpu, versions
from accel.core.errors import InputError, StageError, UnavailableError, raised_as
from accel.core.feeds import Feed
from accel.core.values import (
    Artifact,
    BuildRequest,
    Built,
    Runtime,
    Skipped,
    Target,
    TensorSpec,
    TritonModel,
)
from accel.exporters.tensorflow_runtime import INSTALL, explain, import_tensorflow

ENTRY = "model.savedmodel"
"""Folder that Triton's tensorflow backend takes for a SavedModel."""
SIGNATURE = "serving_default"
LAST_RELEASE = "25.02"
"""The last release with a tensorflow backend. Source: accel/triton/releases.py, ``backends``."""
_SHORT = {"float32": "fp32", "float64": "fp32", "half": "fp16", "float16": "fp16", "bfloat16": "bf16"}
_HEAVY = ("MatMul", "BatchMatMulV2", "BatchMatMulV3", "Conv2D", "DepthwiseConv2dNative", "Conv3D", "Einsum")
"""Operators that hold nearly all arithmetic of a network."""


@dataclass(frozen=True, slots=True)
class TensorFlowOptions:
    """No options."""


RUNTIME = Runtime("TensorFlow", ("#4a9fd1", "#86cdf5"))


def _parameters(threads: int, instances: int) -> Mapping[str, str]:
    """Return the parameters for some instances. Source: tensorflow_backend README, "Parameters"."""
    return dict.fromkeys(("TF_NUM_INTRA_THREADS", "TF_NUM_INTER_THREADS"), share(threads, instances))


_info = functools.partial(TargetInfo, runtime=RUNTIME, needs="tensorflow")


class TensorFlowBuilder(Builder):
    """Offers ``tf`` and ``tf-xla``, and two that only a server runs."""

    targets: Mapping[str, TargetInfo] = {
        "tf": _info(
            *(("cpu", "cuda"), "fp32", "the SavedModel as it is: the baseline of TensorFlow sources"),
            baseline="tensorflow",
        ),
        "tf-xla": _info(("cpu", "cuda"), "fp32", "SavedModel compiled by XLA"),
        "tf-amp": _info(("cuda",), "fp16", "SavedModel in mixed precision, by Triton up to 25.02", server_only=True),
        "tf-trt-fp16": _info(("cuda",), "fp16", "SavedModel through TF-TRT, by Triton up to 25.02", server_only=True),
    }
    options: type[Any] = TensorFlowOptions
    packages = ("tensorflow", "tensorflow-cpu", "keras")
    backends = (Backend("tensorflow", parameters=_parameters),)

    def available(self, target: Target) -> Skipped | None:
        """Ask for TensorFlow, and where it is to run on a GPU for one, and a TensorFlow that can use it."""
        if importlib.util.find_spec("tensorflow") is None:
            return Skipped("the Python package tensorflow is not installed", INSTALL)
        if target.device != "cuda" or self.targets[target.name].server_only:
            return None
        return missing_gpu(target) or _without_cuda()

    def build(self, request: BuildRequest, options: TensorFlowOptions, out_dir: Path) -> Built:
        """Copy the SavedModel where it keeps the client's contract as it is, else write one that does.

        Raises:
            UnavailableError: what ``available`` says.
            InputError: the source is not TensorFlow's.
            StageError: TensorFlow could not trace or save the model.
        """
        target = request.variant.target
        demand(self.available(target))
        tf = import_tensorflow(request.threads, gpu=target.device == "cuda")
        from accel import exporters

        source = request.source
        graph = exporters.load(source).graph
        if graph is None:
            raise InputError(
                f"{source.name} is {source.framework}'s and {target} starts from a TensorFlow model",
                fix="choose targets that start from ONNX: ort, openvino",
            )
        folder, signature, compiled = out_dir / ENTRY, SIGNATURE, target.name == "tf-xla"
        as_it_is = graph.opened.signature is not None and graph.plain and not compiled
        if graph.opened.signature is not None and as_it_is:
            shutil.copytree(source.reference, folder)
            signature = graph.opened.signature
        else:
            graph.save(folder, compiled=compiled)
        function = _load(tf, folder).signatures[signature]
        inputs = _specs(function.structured_input_signature[1], source.inputs)
        outputs = _specs(function.structured_outputs, source.outputs)
        return Built(
            ENTRY,
            reconcile(inputs, source.inputs, what="input"),
            reconcile(outputs, source.outputs, what="output"),
            self.targets[target.name].precision,
            {"signature": signature, "xla": compiled, "as_it_is": as_it_is},
            versions(["tensorflow", "tensorflow-cpu", "keras"]),
        )

    def open(self, artifact: Artifact, folder: Path, *, threads: int, mode: Mode) -> "TensorFlowSession":
        """Load the SavedModel.

        Raises:
            UnavailableError: what ``available`` says, or only a server runs the target.
            InputError: it is not a SavedModel.
        """
        target = artifact.variant.target
        demand(self.available(target))
        if self.targets[target.name].server_only:
            raise UnavailableError(f"only Triton's tensorflow backend runs {target}", fix="accel verify --serve")
        tf = import_tensorflow(threads, gpu=target.device == "cuda")
        if target.device == "cuda" and not tf.config.list_physical_devices("GPU"):
            raise UnavailableError(f"TensorFlow {tf.__version__} finds no GPU here", fix="install its CUDA libraries")
        loaded = _load(tf, folder / artifact.built.entry)
        return TensorFlowSession(artifact.built.inputs, artifact.built.outputs, tf, loaded, artifact.built.facts)

    def triton(self, artifact: Artifact, release: str) -> TritonModel | Skipped:
        """Serve it through the tensorflow backend, up to the last release that had one.

        XLA compiles what the file marks, on any device; on a GPU the graph level also turns on its clustering.

        Source: tensorflow_backend README, "Parameters"; server docs/user_guide/optimization.md, "TensorFlow JIT Graph
        Optimizations", "TensorFlow with TensorRT Optimization (TF-TRT)" and "TensorFlow Automatic FP16 Optimization".
        """
        name = artifact.variant.target.name
        if release > LAST_RELEASE:
            better = "trt" if artifact.variant.target.device == "cuda" else "openvino or ort"
            if name.endswith(("-fp16", "-amp")):
                better = "trt-fp16"
            return Skipped(
                f"Triton {release} has no tensorflow backend, {LAST_RELEASE} was the last: serve the model as ONNX "
                f"instead ({better})",
                f"add {better} to --targets, or --triton-release {LAST_RELEASE}",
            )
        signature = artifact.built.facts["signature"]
        accelerators: tuple[tuple[str, str, Mapping[str, str]], ...] = ()
        if name == "tf-trt-fp16":
            accelerators = (("gpu", "tensorrt", {"precision_mode": "FP16"}),)
        elif name == "tf-amp":
            accelerators = (("gpu", "auto_mixed_precision", {}),)
        return TritonModel(
            "tensorflow",
            artifact.built.entry,
            dynamic_batching=True,
            accelerators=accelerators,
            parameters={} if signature == SIGNATURE else {"TF_SIGNATURE_DEF": signature},
            platform="tensorflow_savedmodel",
            graph_level=1 if name == "tf-xla" else None,
        )


class TensorFlowSession(Session):
    """One signature of a SavedModel."""

    def __init__(
        self,
        inputs: Sequence[TensorSpec],
        outputs: Sequence[TensorSpec],
        tf: Any,
        loaded: Any,
        facts: Mapping[str, Any],
    ) -> None:
        super().__init__(inputs, outputs)
        self._tf = tf
        self._loaded = loaded  # the variables live as long as it does
        self._function = loaded.signatures[facts["signature"]]
        self._bound: dict[str, Any] = {}
        self._results: Mapping[str, Any] = {}

    def bind(self, inputs: Feed, *, slot: int = 0) -> None:
        """Make tensors of the arrays."""
        self._bound = {s.name: self._tf.constant(inputs[s.name]) for s in self.inputs}

    def submit(self, *, slot: int = 0) -> None:
        """Run.

        Raises:
            StageError: TensorFlow or XLA refused, or the session is closed.
        """
        if self._function is None:
            raise StageError("the session is closed")
        try:
            self._results = self._function(**self._bound)
        except Exception as error:
            shapes = {name: tuple(t.shape) for name, t in self._bound.items()}
            raise StageError(f"TensorFlow failed on inputs of shapes {shapes}: {explain(error)}") from error

    def read(self, *, slot: int = 0) -> dict[str, np.ndarray]:
        """Return the outputs, copied from TensorFlow's memory."""
        return {s.name: self._results[s.name].numpy() for s in self.outputs}

    def precision(self) -> str:
        """Return the type in which most matrix products and convolutions of the graph compute."""
        definition = self._function.graph.as_graph_def()
        nodes = [*definition.node, *(n for f in definition.library.function for n in f.node_def)]
        return _precision(nodes, self._tf)

    def close(self) -> None:
        """Drop the model and its variables."""
        self._function = self._loaded = None
        self._bound, self._results = {}, {}


def _precision(nodes: Iterable[Any], tf: Any) -> str:
    found = Counter(tf.dtypes.as_dtype(n.attr["T"].type).name for n in nodes if n.op in _HEAVY)
    return _SHORT.get(found.most_common(1)[0][0], "none") if found else "fp32"


def _load(tf: Any, folder: Path) -> Any:
    with raised_as(
        InputError, Exception, f"{folder.name} is not a SavedModel", fix="build the variant again", say=explain
    ):
        return tf.saved_model.load(str(folder))


def _specs(found: Mapping[str, Any], promised: Sequence[TensorSpec]) -> list[TensorSpec]:
    """Read names, dtypes and dims of a signature; an open axis is ``?``, and a tensor of open rank has the promised."""
    ranks = {s.name: len(s.dims) for s in promised}
    specs = []
    for name, tensor in found.items():
        sizes = [None] * ranks.get(name, 0) if tensor.shape.rank is None else tensor.shape.as_list()
        specs.append(TensorSpec(name, tensor.dtype.name, tuple("?" if n is None else n for n in sizes)))
    return specs


def _without_cuda() -> Skipped | None:
    """Say that the TensorFlow installed here is the one for CPUs; None where it is not."""
    try:
        return Skipped(
            f"tensorflow-cpu {version('tensorflow-cpu')} cannot use a GPU", "pip install 'tensorflow[and-cuda]'"
        )
    except PackageNotFoundError:
        return None


BUILDER = TensorFlowBuilder()
