"""The pass that declares the axes of a graph's inputs and outputs as a contract has them."""

from __future__ import annotations

from collections.abc import Iterable

import onnx_ir as ir

from accel.core.values import TensorSpec


class DeclareAxes(ir.passes.InPlacePass):
    """Give axes without a size the name or the size that a spec has for them; a size that the graph declares stays.

    Args:
        specs: inputs and outputs by name; those of the graph without one stay as they are.
    """

    def __init__(self, specs: Iterable[TensorSpec]) -> None:
        super().__init__()
        self.specs = {spec.name: spec for spec in specs}

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Declare them."""
        modified = False
        for value in (*model.graph.inputs, *model.graph.outputs):
            if value.name not in self.specs:
                continue
            wanted = self.specs[value.name].dims
            sizes = list(value.shape) if value.shape is not None and len(value.shape) == len(wanted) else wanted
            shape = ir.Shape(d if isinstance(d, int) and d > 0 else w for d, w in zip(sizes, wanted, strict=True))
            if value.shape != shape:
                value.shape, modified = shape, True
        return ir.passes.PassResult(model, modified)
