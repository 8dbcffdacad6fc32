"""Static INT8 for networks of convolutions, by ONNX Runtime's own quantiser.

On a CPU a convolution runs in INT8 only where its input and output are both quantised, so the whole network is
quantised at once; the first and last layers, which carry most of the error, return to float first where accuracy asks
for it. What comes after the last product (boxes decoded, scores ranked) stays in float: there a place in the picture
would get 8 bits. What lies next to a layer in float (an addition, a pooling) is in float, too.
"""

import tempfile
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any

import onnx
import onnx_ir as ir

from accel.core.errors import StageError, raised_as
from accel.core.feeds import Feed
from accel.graph import fp16, passes, qdq, sensitivity

EVALUATIONS = 9
"""Each takes a quantisation of the whole network: all, none, and the halving of a hundred layers."""
_PRODUCTS = ("Conv", "MatMul", "Gemm")
_WITH_BIAS = ("Conv", "ConvTranspose", "Gemm", "InstanceNormalization", "LayerNormalization", "BatchNormalization")
"""Whose third input ONNX Runtime's quantiser takes for a bias (``QDQConv``, ``QDQGemm``, ``QDQNormalization``)."""


def dominate(path: Path) -> bool:
    """Say whether the graph has more convolutions than matrix products."""
    kinds = [n.op_type for n in onnx.load(str(path), load_external_data=False).graph.node]
    return kinds.count("Conv") > kinds.count("MatMul") + kinds.count("Gemm")


def quantize(
    path: Path,
    out: Path,
    feeds: Sequence[Feed],
    score: Callable[[Path | None], float],
    floor: float,
    *,
    reduce_range: bool,
) -> sensitivity.Search:
    """Write the model at ``path`` to ``out`` in INT8, leaving as few end layers in float as hold ``floor``.

    Args:
        feeds: calibration inputs; ``score``, which takes None for the float model, has other samples.
        reduce_range: whether weights get 7 bits, for CPUs whose kernels add pairs in 16 bits.

    Raises:
        StageError: the quantiser failed.
        UnavailableError: the model is typed already.
    """
    from onnxruntime import quantization as q

    def write(kept: Sequence[str], to: Path) -> Path:
        to.with_name(f"{to.name}.data").unlink(missing_ok=True)  # what is written goes to its end
        model = onnx.load(str(plain))
        model.graph.ClearField("value_info")  # the exporter's own shapes make the quantiser fail
        with raised_as(StageError, (RuntimeError, ValueError, KeyError), f"onnxruntime could not quantise {path.name}"):
            q.quantize_static(
                model,
                str(to),
                _Reader(feeds),
                quant_format=q.QuantFormat.QDQ,
                activation_type=q.QuantType.QUInt8,
                weight_type=q.QuantType.QInt8,
                per_channel=True,
                reduce_range=reduce_range,
                nodes_to_exclude=[*kept, *_outside(graph, kept)],
                use_external_data_format=True,
                extra_options={"DefaultTensorType": onnx.TensorProto.FLOAT},
                calibration_cache_path=ranges,
            )
        return to

    with tempfile.TemporaryDirectory(prefix=".quantise.", dir=out.parent) as name:
        ranges, plain = Path(name) / "ranges.json", Path(name) / "plain.onnx"
        fp16.check_plain(passes.load(path), path)
        passes.rewrite(path, plain, *qdq.quantisable(), OwnBiases())
        graph = onnx.load(str(plain), load_external_data=False).graph
        products = [n.name for n in graph.node if n.op_type in _PRODUCTS]
        with passes.by_library(out) as made:
            found = sensitivity.search(
                [(name,) for name in products],
                dict.fromkeys(products, 1),
                lambda kept: score(None if len(kept) == len(products) else write(kept, made)),
                floor,
                order=sensitivity.from_the_middle(len(products)),
                evaluations=EVALUATIONS,
                points=1,
            )
            write(found.chosen.kept, made)
    return found


class OwnBiases(passes.ContractPass):
    """Give each node that has a bias one of its own.

    ONNX Runtime's quantiser copies a bias that several share under its name with a number, which may be another
    tensor's (``conv1d_2`` + ``5`` in what tf2onnx writes; seen with 1.31).
    """

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Copy the biases that several nodes read."""
        graph, modified = model.graph, False
        for index, node in enumerate(graph):
            bias = node.inputs[2] if node.op_type in _WITH_BIAS and len(node.inputs) > 2 else None
            if bias is not None and bias.is_initializer() and bias.const_value is not None and len(bias.uses()) > 1:
                own = qdq.constant(graph, f"{bias.name}_of_{index}", bias.const_value.numpy())
                node.replace_input_with(2, own)
                modified = True
        return ir.passes.PassResult(model, modified)


def _outside(graph: Any, kept: Collection[str]) -> list[str]:
    """List the nodes in float beside the kept products: those next to one, and those after the last of all."""
    above: dict[str, set[str]] = {}  # value → the nearest products that it comes from
    below: dict[str, set[str]] = {}  # value → the nearest products that it reaches
    names = []
    for node in graph.node:
        before = {node.name} if node.op_type in _PRODUCTS else set().union(*(above.get(n, set()) for n in node.input))
        above |= dict.fromkeys(node.output, before)
    for node in reversed(graph.node):
        after = set().union(*(below.get(n, set()) for n in node.output))
        if node.op_type in _PRODUCTS:
            after = {node.name}
        elif node.name and (not after or not (after | above[node.output[0]]).isdisjoint(kept)):
            names.append(node.name)
        for name in node.input:
            below[name] = below.get(name, set()) | after
    return names


class _Reader:
    """What ONNX Runtime's calibration asks for its next feed."""

    def __init__(self, feeds: Sequence[Feed]) -> None:
        self._next = iter(feeds)

    def get_next(self) -> dict[str, Any] | None:
        feed = next(self._next, None)
        return None if feed is None else dict(feed)
