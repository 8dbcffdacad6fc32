"""Load a source in a worker process: describe it, run it as the reference, write it as ONNX.

``from_torch`` (factories, exported programs, and the way from any torch module to ONNX), ``from_huggingface``,
``from_tensorflow`` and ``from_onnx`` each know one kind of source; ``from_zoo`` knows the zoo. Frameworks are imported
inside functions.
"""

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from accel.core.accuracy.metrics import METRICS
from accel.core.accuracy.parity import TASK_SHARE
from accel.core.errors import InputError, StageError, UnavailableError, UsageError
from accel.core.values import ModelSource, OnnxModel
from accel.exporters import (
    axes,
    check,
    factory,
    from_huggingface,
    from_onnx,
    from_tensorflow,
    from_torch,
    from_zoo,
    pooling,
    streams,
    wire,
)
from accel.exporters.request import TENSORFLOW_FILES, SourceRequest
from accel.exporters.source_model import SourceModel, of_graph, of_onnx, of_torch
from accel.exporters.sources import content_key

DESCRIBE: Mapping[str, Callable[[SourceRequest], ModelSource]] = {
    "zoo": from_zoo.describe,
    "huggingface": from_huggingface.describe,
    "exported": from_torch.describe,
    "torchscript": from_torch.describe,
    "onnx": from_onnx.describe,
    **dict.fromkeys(TENSORFLOW_FILES, from_tensorflow.describe),
}
"""Kind of source → what describes it; a factory's framework is known once it was called."""

ONNX_FILE = "model.onnx"
OPSET = 18
"""Opset of the ONNX operators that is asked for."""
PACKAGES = (
    *("torch", "transformers", "onnx", "onnx-ir", "onnxscript", "onnxruntime"),
    *("tensorflow", "tensorflow-cpu", "keras", "tf2onnx"),
)
"""Distributions that decide what a source answers, what its ONNX file is and what is proved of it."""


def describe(request: SourceRequest) -> ModelSource:
    """Load what must be loaded and say what the source is: inputs, outputs, dynamic axes, weights, key.

    Outputs' names, dtypes and dims are read from running the forward, unless the zoo declares them.

    Raises:
        AccelError: the source is missing, broken or refused, or its forward raises.
        UnavailableError: PyTorch is not installed, and the source needs it.
    """
    with _needed_by(request.reference):
        if request.kind == "factory":
            made = factory.make(request.reference)
            if made.framework == "torch" and request.graph.nchw:
                raise UsageError(
                    f"--inputs-as-nchw is for TensorFlow sources, and {request.text!r} returns a module of PyTorch",
                    fix="leave --inputs-as-nchw out: PyTorch has this layout",
                )
            exporter = from_tensorflow if made.framework == "tensorflow" else from_torch
            try:
                source = dataclasses.replace(exporter.describe(request, made), given=factory.given_key(made))
            except StageError as error:
                if request.samples is None or made.samples:
                    raise
                told = (
                    f"the inputs' dtypes and ranks are those of {Path(request.samples).name}: give what forward takes"
                )
                raise StageError(error.message, fix=f"{told}; {error.fix}", log=error.log) from error
        else:
            source = DESCRIBE[request.kind](request)
    source = axes.with_mask(source, request.mask)
    source = streams.declared(pooling.pooled(source, request.pool), request)
    source = wire.smaller(source, request.io)
    if request.metric is not None:
        name = METRICS[request.metric].__name__ if request.metric in METRICS else request.metric.rpartition(":")[2]
        source = dataclasses.replace(source, gate=(name, TASK_SHARE), metric=request.metric)
    if not request.fixed:
        return source
    told = f"fixed, since the export does not let these sizes vary: {', '.join(request.fixed)}"
    return dataclasses.replace(source, notice="; ".join(filter(None, (told, source.notice))))


@contextlib.contextmanager
def _needed_by(reference: str) -> Iterator[None]:
    """Say how to install PyTorch where a source turns out to need it."""
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name not in ("torch", "transformers"):
            raise
        raise UnavailableError(
            f"{reference} needs {error.name}, which is not installed", fix="pip install 'accel[torch]'"
        ) from error


def _onnx_file(source: ModelSource) -> Path | None:
    """Return the file of a source that is ONNX."""
    if source.kind == "zoo" and source.framework == "onnx":
        return from_zoo.load_file(source)
    return Path(source.reference) if source.kind == "onnx" else None


def load(source: ModelSource) -> SourceModel:
    """Load the source for running and building.

    Raises:
        AccelError: the source is gone, or is no longer what ``describe`` saw.
    """
    if source.kind in ("exported", "torchscript", *TENSORFLOW_FILES):
        asked = SourceRequest(source.reference, source.kind, source.reference, graph=source.graph)
        if (found := content_key(asked)) is None or pooling.key(found, source.pool) != source.key:
            raise InputError(
                f"{source.reference} is no longer the file that it was a moment ago",
                fix="do not write it during a run: save the next one under another name",
            )
    if (file := _onnx_file(source)) is not None:
        return of_onnx(source, file)
    if source.framework == "tensorflow":
        return of_graph(source, (from_zoo.load_graph if source.kind == "zoo" else from_tensorflow.load)(source))
    loaders = {"zoo": from_zoo.load, "huggingface": from_huggingface.load}
    with _needed_by(source.reference):
        return of_torch(source, pooling.fuse(source, loaders.get(source.kind, from_torch.load)(source)))


def export_onnx(
    source: ModelSource,
    out_dir: Path,
    *,
    opset: int = OPSET,
    model: SourceModel | None = None,
    points: Sequence[check.Point] | None = None,
) -> OnnxModel:
    """Write ``model.onnx`` and ``model.onnx.data`` into ``out_dir`` and prove them right.

    The file is checked (onnx.checker, full), its named axes are compared with the source's, and it is run in ONNX
    Runtime at the min, opt, max and one odd shape against the source; tolerance: largest absolute difference at most
    1e-4 + 1e-3 × the largest reference value of the output, integers equal.

    Args:
        opset: opset asked for; what the file really has is read back into the result.
        model: the loaded source, where the caller has it already.
        points: what the source answered at those shapes, where the caller has it already.

    Raises:
        StageError: the export failed, came out static, lost an axis or differs from the source.
        InputError: an ONNX source that is broken or reaches outside its folder.
    """
    model = model or load(source)
    points = points or check.reference_points(model)
    path = write_onnx(model, out_dir, opset=opset)
    found = check.read_checked(path)
    check.check_onnx(source, found, path, points)
    return found


def write_onnx(model: SourceModel, out_dir: Path, *, opset: int) -> Path:
    """Write ``model.onnx`` and ``model.onnx.data`` into ``out_dir``, unchecked; raises as ``export_onnx``."""
    from accel.graph import passes
    from accel.graph.fourier import FourierAsProducts
    from accel.graph.pools import PlainPools
    from accel.graph.stacks import SpreadRows

    source, path = model.source, Path(out_dir) / ONNX_FILE
    if (file := _onnx_file(source)) is not None:
        from_onnx.copy(source, file, path)
    elif model.graph is not None:
        from_tensorflow.write_onnx(model.graph, source, path, opset=opset)
    else:
        from_torch.write_onnx(model, path, opset=opset)
    results = passes.run(passes.load(path), PlainPools(source.profile), FourierAsProducts(), SpreadRows())
    if any(result.modified for result in results):
        passes.save(results[-1].model, path)
    return path
