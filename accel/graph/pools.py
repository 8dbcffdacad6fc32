"""The pass that writes poolings in the way that every runtime computes alike."""

from collections.abc import Mapping

import numpy as np
import onnx_ir as ir

from accel.core.errors import AccelError
from accel.core.values import ShapeRange
from accel.graph.narrow.analysis import analyse
from accel.graph.narrow.facts import Dims
from accel.graph.narrow.integers import Names, add_constant
from accel.graph.passes import ContractPass

GLOBAL = {"AveragePool": "GlobalAveragePool", "MaxPool": "GlobalMaxPool"}
PAD_AXES_OPSET = 18


class PlainPools(ContractPass):
    """Write poolings so that no runtime refuses them or takes them for others.

    - A window that covers all of its input in every shape (EfficientNet's last one) becomes a global pooling: OpenVINO
      refuses a kernel that is larger than the data, though the size is rounded up.
    - A Pad before a MaxPool names its axes: without them ONNX Runtime 1.31 moves it into the pooling, where what is
      added counts as -inf, not as the value given. After a Relu that changes nothing, and the Pad stays as it is.

    Args:
        shapes: shape range by input.
    """

    def __init__(self, shapes: Mapping[str, ShapeRange]) -> None:
        super().__init__()
        self.shapes = shapes

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Rewrite those of the main graph."""
        pools = [node for node in model.graph if node.op_type in GLOBAL and not node.domain and len(node.outputs) == 1]
        named = [_name_axes(model, pool) for pool in pools]
        rounded = [pool for pool in pools if pool.attributes.get_int("ceil_mode", 0)]
        whole: list[ir.Node] = []
        if rounded:
            try:
                facts = analyse(model, ranges={}, shapes=self.shapes).facts
            except AccelError:  # what contradicts itself is told by whoever needs it
                facts = {}
            known = [(pool, facts[pool.inputs[0]].dims) for pool in rounded if pool.inputs[0] in facts]
            whole = [pool for pool, dims in known if dims and _covers(pool, dims)]
        for pool in whole:
            pool.op_type = GLOBAL[pool.op_type]
            pool.attributes.clear()
        return ir.passes.PassResult(model, any(named) or bool(whole))


def _covers(pool: ir.Node, dims: Dims) -> bool:
    """Say whether there is one window, which holds all of the data, whatever size the axes have."""
    kernel = pool.attributes.get_ints("kernel_shape", ())
    given = [pool.attributes.get_ints(name, ()) for name in ("pads", "dilations")]
    plain = not any(given[0]) and set(given[1]) <= {1} and pool.attributes.get_string("auto_pad", "NOTSET") == "NOTSET"
    strides = pool.attributes.get_ints("strides", (1,) * len(kernel))
    return (
        plain
        and len(dims) == len(kernel) + 2
        and all(0 < lo <= hi <= k < lo + s for (lo, hi), k, s in zip(dims[2:], kernel, strides, strict=True))
    )


def _name_axes(model: ir.Model, pool: ir.Node) -> bool:
    """Name the axes of the Pad before a MaxPool; say whether that was to be done."""
    pad = pool.inputs[0].producer() if pool.op_type == "MaxPool" and pool.inputs[0] is not None else None
    if pad is None or pad.op_type != "Pad" or pad.domain or model.opset_imports.get("", 1) < PAD_AXES_OPSET:
        return False
    data, sizes = pad.inputs[0], pad.inputs[1]
    before = data.producer() if data is not None else None
    listed = ir.convenience.get_const_tensor(sizes) if sizes is not None else None
    if len(pad.inputs) > 3 or listed is None or (before is not None and before.op_type == "Relu"):
        return False
    rank = listed.size // 2
    pad.resize_inputs(4)
    pad.replace_input_with(3, add_constant(model.graph, Names(model).fresh(f"{pad.name}__axes"), np.arange(rank)))
    return True
