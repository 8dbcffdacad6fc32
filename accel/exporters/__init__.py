"""Load a source in a worker process: describe it, run it as the reference, write it as ONNX.

``from_torch`` (factories, exported programs, and the way from any torch module to ONNX), ``from_huggingface`` and
``from_onnx`` each know one kind of source; ``from_zoo`` knows the zoo. Frameworks are imported inside functions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from accel.artifacts import ModelSource, OnnxModel
from accel.builders import Feed, fit_inputs
from accel.sources import SourceRequest

if TYPE_CHECKING:
    import torch

    from accel.exporters.check import Point
    from accel.exporters.positional import Positional, Recast


@dataclass(frozen=True, eq=False)
class SourceModel:
    """A loaded source: the truth that every variant is compared with, and what torch builders start from.

    Attributes:
        source: what it is.
        module: takes tensors by position in the order of ``source.inputs`` and returns a tuple in the order of
            ``source.outputs``; FP32 on CPU, eval mode, the framework's default attention. None for an ONNX source.
        session: an ``onnxruntime.InferenceSession`` with every optimisation off, for an ONNX source.
    """

    source: ModelSource
    module: Positional | Recast | None
    session: Any = None

    def run(self, feed: Feed) -> dict[str, np.ndarray]:
        """Run the source on arrays under the client's names.

        Raises:
            SampleError: the feed does not fit the inputs.
            StageError: the model's forward raised.
        """
        fitted = fit_inputs(feed, self.source.inputs)
        names = [o.name for o in self.source.outputs]
        if self.module is None:
            from accel.exporters.from_onnx import run_session

            native = {n: v.astype(self.source.native.get(n, v.dtype)) for n, v in fitted.items()}
            found = run_session(self.session, native, names)
            return {s.name: found[s.name].astype(s.dtype, copy=False) for s in self.source.outputs}
        from accel.exporters.positional import call

        results = call(self.module, self.module.inputs, fitted)
        return {n: _client_array(r) for n, r in zip(names, results, strict=True)}


def _client_array(tensor: torch.Tensor) -> np.ndarray:
    """Return what a client gets; narrow floats, which NumPy or clients lack, as float32."""
    return (tensor.float() if str(tensor.dtype) in ("torch.bfloat16", "torch.float16") else tensor).numpy()


def describe(request: SourceRequest) -> ModelSource:
    """Load what must be loaded and say what the source is: inputs, outputs, dynamic axes, weights, key.

    Outputs' names, dtypes and dims are read from running the forward, unless the zoo declares them.

    Raises:
        AccelError: the source is missing, broken or refused, or its forward raises.
    """
    if request.kind == "zoo":
        from accel.exporters import from_zoo

        return from_zoo.describe(request)
    if request.kind == "huggingface":
        from accel.exporters import from_huggingface

        return from_huggingface.describe(request)
    if request.kind == "onnx":
        from accel.exporters import from_onnx

        return from_onnx.describe(request)
    from accel.exporters import from_torch

    return from_torch.describe(request)


def load(source: ModelSource) -> SourceModel:
    """Load the source for running and building, with a cast at its door where clients see a narrowed dtype.

    Raises:
        AccelError: the source is gone, or is no longer what ``describe`` saw.
    """
    if source.kind == "onnx":
        from accel.exporters import from_onnx

        return SourceModel(source, None, from_onnx.open_session(Path(source.reference)))
    if source.kind == "zoo":
        from accel.exporters import from_zoo

        module = from_zoo.load(source)
    elif source.kind == "huggingface":
        from accel.exporters import from_huggingface

        module = from_huggingface.load(source)
    else:
        from accel.exporters import from_torch

        module = from_torch.load(source)
    if not source.native:
        return SourceModel(source, module)
    from accel.exporters.positional import Recast

    takes = [source.native.get(s.name) for s in source.inputs]
    gives = [s.dtype if s.name in source.native else None for s in source.outputs]
    return SourceModel(source, Recast(module, takes, gives))


def export_onnx(
    source: ModelSource,
    out_dir: Path,
    *,
    opset: int = 18,
    model: SourceModel | None = None,
    points: Sequence[Point] | None = None,
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
    from accel.exporters import check, from_onnx, from_torch

    model = model or load(source)
    points = points or check.reference_points(model)
    path = Path(out_dir) / "model.onnx"
    if source.kind == "onnx":
        from_onnx.copy(source, path)
    else:
        from_torch.write_onnx(model, path, opset=opset)
    return check.check_onnx(source, path, points)
