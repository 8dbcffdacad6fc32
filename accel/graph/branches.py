"""The pass that takes an ``If`` away whose condition can have one value only.

Exporters write ``If`` where the model asks for a rank or a size (``squeeze``, an LSTM with or without batch): for the
inputs that clients may send one branch never runs. What follows such an ``If`` has no rank that can be inferred, and
OpenVINO refuses it.
"""

from collections.abc import Mapping

import onnx_ir as ir
from onnx_ir.passes.common import NameFixPass, RemoveUnusedNodesPass

from accel.core.errors import AccelError
from accel.core.values import ShapeRange
from accel.graph.narrow.analysis import analyse
from accel.graph.narrow.facts import Interval
from accel.graph.passes import ContractPass

CONDITIONS: tuple[tuple[Interval, str], ...] = (((1, 1), "then_branch"), ((0, 0), "else_branch"))


class TakeBranches(ContractPass):
    """Put the branch that always runs in the place of its ``If``, from the outside in, as far as it is certain.

    Args:
        ranges: declared range by integer input.
        shapes: shape range by input.
    """

    def __init__(self, *, ranges: Mapping[str, Interval], shapes: Mapping[str, ShapeRange]) -> None:
        super().__init__()
        self.ranges, self.shapes = ranges, shapes

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Take them until nothing more is certain: what one of them hid may decide the next."""
        modified = False
        while (certain := self._certain(model)) is not None:
            _inline(model.graph, *certain)
            RemoveUnusedNodesPass()(model)
            modified = True
        if modified:
            NameFixPass()(model)  # branches of different nodes may use a name twice
        return ir.passes.PassResult(model, modified)

    def _certain(self, model: ir.Model) -> tuple[ir.Node, ir.Graph] | None:
        nodes = [node for node in model.graph if node.op_type == "If" and not node.domain]
        if not nodes:
            return None
        try:
            facts = analyse(model, ranges=self.ranges, shapes=self.shapes).facts
        except AccelError:  # ranges that the graph contradicts are told by whoever needs them
            return None
        for node in nodes:
            fact = facts.get(node.inputs[0]) if node.inputs[0] is not None else None
            for value, name in CONDITIONS:
                if fact is not None and fact.fits(value):
                    return node, node.attributes[name].as_graph()
        return None


def _inline(graph: ir.Graph, node: ir.Node, branch: ir.Graph) -> None:
    for value in list(branch.initializers.values()):
        branch.initializers.pop(str(value.name))
        value.name = f"{node.name or 'If'}/{value.name}"
        graph.register_initializer(value)
    given = list(branch.outputs)
    branch.outputs.clear()
    inner = list(branch)
    branch.remove(inner)
    graph.insert_before(node, inner)
    for old, new in zip(list(node.outputs), given, strict=True):
        if old.is_graph_output() or new.producer() is None:  # the name that clients know stays
            same = ir.node("Identity", [new])
            same.outputs[0].name, same.outputs[0].type, same.outputs[0].shape = old.name, old.type, old.shape
            graph.insert_before(node, same)
            new = same.outputs[0]
        ir.convenience.replace_all_uses_with(old, new, replace_graph_outputs=True)
    graph.remove(node, safe=True)
