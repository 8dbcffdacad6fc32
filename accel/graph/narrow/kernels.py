"""Whether a runtime really has the kernel that a schema allows: ask it.

A one-node model with the types in question is given to the runtime. That is what decides, so no list of kernels can go
stale: ONNX Runtime answers NOT_IMPLEMENTED while it makes the session, OpenVINO while it compiles. How a runtime is
asked, its builder says.

Source: https://onnxruntime.ai/docs/reference/operators/OperatorKernels.html (what it would answer, for one release).
"""

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import onnx
import onnx_ir as ir

from accel.core.errors import UnavailableError
from accel.core.values import Int32Runtime
from accel.graph.narrow.classes import retyped
from accel.graph.narrow.facts import INT32, Fact

UNASKED = Int32Runtime("", wide_types=False)
"""No runtime: ONNX's own shape inference alone decides."""


class Kernels:
    """Answers of one runtime, each asked once.

    Args:
        model: gives opsets and IR version of the one-node models.
        to: type that the nodes in question shall take.
        needed: without it, a runtime that is not installed has no kernel, and inputs get a Cast everywhere.

    Raises:
        UnavailableError: the runtime is not installed here.
    """

    def __init__(self, model: ir.Model, runtime: Int32Runtime, *, to: ir.DataType, needed: bool) -> None:
        self._model = model
        self._to = to
        self._accepts = _ask(runtime, needed=needed)
        self._answers: dict[tuple[Callable[[bytes], bool], bytes], bool] = {}

    def run(
        self, node: ir.Node, inputs: Sequence[Fact | None], outputs: Sequence[int], *, chosen: Sequence[str] = ()
    ) -> bool:
        """Say whether the runtime runs the node with these element types; None and 0 stand for what is left out.

        Args:
            chosen: attributes that choose a type; they choose the new one.
        """
        if self._accepts is None:
            return True
        typed = [Fact(f.dtype, None, None) if f is not None else None for f in inputs]
        return self._answer(self._probe(node, typed, outputs, {}, chosen), self._accepts)

    def infers(
        self,
        node: ir.Node,
        inputs: Sequence[Fact | None],
        outputs: Sequence[int],
        *,
        constants: Mapping[int, Fact],
        chosen: Sequence[str] = (),
    ) -> bool:
        """Say whether ONNX's own shape inference takes these types; of some constants it reads only int64.

        Args:
            constants: those of the inputs that become int32 constants, by slot.
        """
        return self._answer(self._probe(node, inputs, outputs, constants, chosen), _is_inferred)

    def _answer(self, probe: onnx.ModelProto, ask: Callable[[bytes], bool]) -> bool:
        model = probe.SerializeToString(deterministic=True)
        if (ask, model) not in self._answers:
            self._answers[ask, model] = ask(model)
        return self._answers[ask, model]

    def _probe(
        self,
        node: ir.Node,
        inputs: Sequence[Fact | None],
        outputs: Sequence[int],
        constants: Mapping[int, Fact],
        chosen: Sequence[str],
    ) -> onnx.ModelProto:
        given = [_value(f"i{n}", fact) if fact is not None else None for n, fact in enumerate(inputs)]
        held = []
        for slot, fact in constants.items():
            value = given[slot]
            if value is not None and fact.constant is not None and fact.dims is not None:
                array = np.clip(fact.constant, *INT32).astype(np.int32).reshape([lo for lo, _ in fact.dims])
                value.const_value = ir.tensor(array, name=value.name)
                held.append(value)
        made = [_value(f"o{n}" if dtype else "", Fact(dtype, None, None)) for n, dtype in enumerate(outputs)]
        attributes = [retyped(a, self._to) if a.name in chosen else a for a in node.attributes.values()]
        probe = ir.Node(node.domain, node.op_type, given, attributes, outputs=made)
        free = [value for value in given if value is not None and value not in held]
        shown = [value for value in made if value.name]
        opsets = self._model.opset_imports
        graph = ir.Graph(free, shown, nodes=[probe], initializers=held, opset_imports=opsets, name="probe")
        return ir.to_proto(ir.Model(graph, ir_version=self._model.ir_version))


def _value(name: str, fact: Fact) -> ir.Value:
    shape = ir.Shape([lo if lo == hi else None for lo, hi in fact.dims]) if fact.dims is not None else None
    return ir.Value(name=name, type=ir.TensorType(ir.DataType(fact.dtype)), shape=shape)


def _is_inferred(model: bytes) -> bool:
    try:
        onnx.shape_inference.infer_shapes(model, check_type=True, strict_mode=True)
    except (onnx.shape_inference.InferenceError, RuntimeError):
        return False
    return True


def _ask(runtime: Int32Runtime, *, needed: bool) -> Callable[[bytes], bool] | None:
    if runtime.kernels is None:
        return None
    try:
        return runtime.kernels()
    except ImportError as error:
        if not needed:
            return lambda _: False
        raise UnavailableError(
            f"level interior asks {runtime.package} which int32 kernels it has, and it is not installed here",
            fix=f"pip install {runtime.package}, or use level io",
        ) from error
