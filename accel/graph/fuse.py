"""Fuse an ONNX graph for ONNX Runtime: attention, GELU and layer norm become its own operators.

The result holds operators of the ``com.microsoft`` domain, which OpenVINO and TensorRT do not read: give it to ONNX
Runtime only.
"""

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import onnx
import onnx_ir as ir

from accel.core.errors import StageError
from accel.graph import measured, passes
from accel.graph.passes import ContractPass

ATTENTION = ("attention", "mha1", "mha2", "gqa", "sdpa_via_mha")
"""Names under which the fuser counts attention layers."""


@dataclass
class Fused(ir.passes.PassResult):
    """What was fused.

    Attributes:
        counts: fusion → how many times it applied, those that did.
    """

    counts: dict[str, int]


class Fuse(ContractPass):
    """Fuse for ONNX Runtime; ``modified`` says whether a fusion applied.

    Source: onnxscript, ``onnxscript.rewriter.ort_fusions.optimize_for_ort``.
    """

    def call(self, model: ir.Model) -> Fused:
        """Fuse what is recognised."""
        from onnxscript.rewriter.ort_fusions import optimize_for_ort

        with warnings.catch_warnings(action="ignore"):  # the rewriter's own deprecations
            fused, found = optimize_for_ort(model)
        counts = {name: int(count) for name, count in found.items() if count}
        return Fused(fused, bool(counts), counts)


class LendShapes(ContractPass):
    """Declare in the typed form of a model the shapes that its source declares, and no others.

    The fuser recognises attention by shapes, which typing drops.

    Args:
        source: the model before it was typed.
        types: element type of the floating-point values of the typed form.
    """

    def __init__(self, source: ir.Model, types: Mapping[str, int]) -> None:
        super().__init__()
        self.declared = ir.convenience.create_value_mapping(source.graph, include_subgraphs=False)
        self.types = types

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Declare them, in the typed form's own types."""
        for value in (v for node in model.graph for v in node.outputs if not v.is_graph_output()):
            lender = self.declared.get(value.name)
            value.shape = lender.shape if lender is not None else None
            value.type = lender.type if lender is not None else None
            if value.type is not None and value.name in self.types:
                value.type = ir.TensorType(ir.DataType(self.types[value.name]))
        return ir.passes.PassResult(model, True)


def fuse(path: Path, out: Path) -> dict[str, int]:
    """Write the fused form of the model at ``path`` to ``out``, weights in ``<out>.data`` beside it.

    Returns:
        Fusion → how many times it applied, those that did; empty where nothing changed (then nothing is written).

    Raises:
        StageError: the fuser failed on this graph.
    """
    try:
        fused = Fuse()(passes.load(path))
    except Exception as error:
        raise StageError(f"the fusion of {path.name} failed: {type(error).__name__}: {error}") from error
    if fused.modified:
        passes.save(fused.model, out, data=f"{out.name}.data")
    return fused.counts


def lend_shapes(source: Path, typed: Path) -> None:
    """Run ``LendShapes`` on the typed form of a model, in place.

    Raises:
        InputError: the types of the typed graph cannot be inferred.
    """
    types = measured.float_tensors(onnx.load(str(typed), load_external_data=False))
    passes.rewrite(typed, typed, LendShapes(passes.load(source), types))


def attention_layers(counts: Mapping[str, int]) -> int:
    """Return how many attention layers were fused."""
    return max((counts.get(name, 0) for name in ATTENTION), default=0)
