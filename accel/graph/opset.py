"""Graphs of an older opset, brought to the one that is needed.

Source: https://onnx.ai/onnx/operators/ (what each opset changed).
"""

import onnx_ir as ir
from onnx_ir.passes.common import ShapeInferencePass
from onnxscript import version_converter

from accel.core.errors import StageError, first_line
from accel.graph.evaluate import OLDEST
from accel.graph.passes import ContractPass


class RaiseOpset(ContractPass):
    """Bring a graph of an older opset to ``least``.

    Source: onnx.version_converter, which onnxscript's turns to below opset 18.
    """

    def __init__(self, least: int) -> None:
        super().__init__()
        self.least = least

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Convert it.

        Raises:
            StageError: no converter can.
        """
        before = model.graph.opset_imports.get("", 0)
        if before >= self.least:
            return ir.passes.PassResult(model, False)
        if before < OLDEST:
            _spread_slopes(model)
        reason = ""
        try:
            version_converter.convert_version(model, self.least, fallback=True)
        except (RuntimeError, ValueError) as error:
            reason = f": {first_line(error)}"
        if model.graph.opset_imports.get("", 0) < self.least:
            raise StageError(
                f"the model has opset {before} and cannot be brought to {self.least}{reason}",
                fix=f"export it with opset {self.least} or later",
            )
        return ir.passes.PassResult(model, True)


def _spread_slopes(model: ir.Model) -> None:
    """Give a slope of ``PRelu`` the axes behind its channels: before opset 7 it is of axis 1, since then of the last.

    onnx.version_converter leaves it as it is, which is refused when it runs, or where the sizes agree wrong.

    Raises:
        StageError: nothing says how many axes the input has.
    """
    if not any(node.op_type == "PRelu" for node in model.graph):
        return
    ShapeInferencePass()(model)
    for node in list(model.graph):
        if node.op_type != "PRelu":
            continue
        value, slope = node.inputs
        if value is None or value.shape is None or slope is None:
            raise StageError(
                f"the model has an opset before {OLDEST}, and nothing says how many axes the input of node "
                f"{node.name or node.outputs[0].name!r} (PRelu) has, whose slopes are one for each channel",
                fix=f"export it with opset {OLDEST} or later",
            )
        if (axes := list(range(1, len(value.shape) - 1))) and (slope.shape is None or len(slope.shape) == 1):
            spread = ir.node("Unsqueeze", [slope], attributes={"axes": axes})
            model.graph.insert_before(node, spread)
            node.replace_input_with(1, spread.outputs[0])
