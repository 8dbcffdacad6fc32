"""Whether a runtime really has the kernel that a schema allows: ask it.

A one-node model with the types in question is given to the runtime. That is what decides, so no list of kernels can go
stale: ONNX Runtime answers NOT_IMPLEMENTED while it makes the session, OpenVINO while it compiles. TensorRT cannot be
asked without a GPU; its parser takes INT32 wherever it takes INT64, and the plan's build is the check.

Source: https://onnxruntime.ai/docs/reference/operators/OperatorKernels.html (what it would answer, for one release).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Literal

from onnx import ModelProto, NodeProto, TensorProto, TypeProto, ValueInfoProto, helper, shape_inference

from accel.core.errors import UnavailableError
from accel.graph.narrow.facts import INT32, Fact

Runtime = Literal["ort", "openvino", "tensorrt"]
Types = tuple[int, ...]


class Kernels:
    """Answers of one runtime, each asked once.

    Args:
        model: gives opsets and IR version of the one-node models.
        needed: without it, a runtime that is not installed has no kernel, and inputs get a Cast everywhere.

    Raises:
        UnavailableError: the runtime is not installed here.
    """

    def __init__(self, model: ModelProto, runtime: Runtime, *, needed: bool) -> None:
        self._header = ModelProto(ir_version=model.ir_version)
        self._header.opset_import.extend(model.opset_import)
        self._accepts = _ask(runtime, needed=needed)
        self._answers: dict[tuple[str, str, Types, Types, bytes], bool] = {}
        self._inferred: dict[bytes, bool] = {}

    def run(self, node: NodeProto, inputs: Sequence[int], outputs: Sequence[int]) -> bool:
        """Say whether the runtime runs the node with these element types; 0 stands for an input that is left out."""
        if self._accepts is None:
            return True
        probe = _probe(node, inputs, outputs)
        key = (node.op_type, node.domain, tuple(inputs), tuple(outputs), probe.SerializeToString())
        if key not in self._answers:
            model = self._model(probe, outputs)
            model.graph.input.extend(_value(f"i{n}", t) for n, t in enumerate(inputs) if t)
            self._answers[key] = self._accepts(model.SerializeToString())
        return self._answers[key]

    def infers(
        self, node: NodeProto, inputs: Sequence[Fact | None], outputs: Sequence[int], constants: Mapping[int, Fact]
    ) -> bool:
        """Say whether ONNX's own shape inference takes int32 constants there; for some operators it reads only int64.

        Args:
            inputs: facts of the node's inputs; ``constants`` those that become int32 constants, by slot.
        """
        types = [TensorProto.INT32 if n in constants else (f.dtype if f else 0) for n, f in enumerate(inputs)]
        model = self._model(_probe(node, types, outputs), outputs)
        for slot, fact in enumerate(inputs):
            values = constants[slot].constant if slot in constants else None
            if values is not None and fact is not None and fact.dims is not None:
                clipped = [min(max(v, INT32[0]), INT32[1]) for v in values]
                dims = [lo for lo, _ in fact.dims]
                model.graph.initializer.append(helper.make_tensor(f"i{slot}", TensorProto.INT32, dims, clipped))
            elif fact is not None:
                value = _value(f"i{slot}", types[slot])
                for lo, hi in fact.dims or ():
                    value.type.tensor_type.shape.dim.add(dim_value=lo if lo == hi else None)
                model.graph.input.append(value)
        key = model.SerializeToString(deterministic=True)
        if key not in self._inferred:
            try:
                shape_inference.infer_shapes(model, check_type=True, strict_mode=True)
                self._inferred[key] = True
            except (shape_inference.InferenceError, RuntimeError):
                self._inferred[key] = False
        return self._inferred[key]

    def _model(self, probe: NodeProto, outputs: Sequence[int]) -> ModelProto:
        model = ModelProto()
        model.CopyFrom(self._header)
        model.graph.name = "probe"
        model.graph.node.append(probe)
        model.graph.output.extend(_value(f"o{n}", t) for n, t in enumerate(outputs) if t)
        return model


def _probe(node: NodeProto, inputs: Sequence[int], outputs: Sequence[int]) -> NodeProto:
    probe = NodeProto(op_type=node.op_type, domain=node.domain)
    probe.input.extend(f"i{n}" if t else "" for n, t in enumerate(inputs))
    probe.output.extend(f"o{n}" if t else "" for n, t in enumerate(outputs))
    probe.attribute.extend(a for a in node.attribute if a.ByteSize() < 2**16)
    return probe


def _value(name: str, dtype: int) -> ValueInfoProto:
    return ValueInfoProto(name=name, type=TypeProto(tensor_type=TypeProto.Tensor(elem_type=dtype)))


def _ask(runtime: Runtime, *, needed: bool) -> Callable[[bytes], bool] | None:
    if runtime == "tensorrt":
        return None
    try:
        return _ask_onnxruntime() if runtime == "ort" else _ask_openvino()
    except ImportError as error:
        if not needed:
            return lambda _: False
        package = "onnxruntime" if runtime == "ort" else "openvino"
        raise UnavailableError(
            f"level interior asks {package} which int32 kernels it has, and it is not installed here",
            fix=f"pip install {package}, or use level io",
        ) from error


def _ask_onnxruntime() -> Callable[[bytes], bool]:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    refusals = onnxruntime.capi.onnxruntime_pybind11_state
    kinds = (refusals.NotImplemented, refusals.Fail, refusals.InvalidGraph, refusals.InvalidArgument)

    def accepts(model: bytes) -> bool:
        try:
            onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        except kinds:
            return False
        return True

    return accepts


def _ask_openvino() -> Callable[[bytes], bool]:
    import openvino

    core = openvino.Core()

    def accepts(model: bytes) -> bool:
        try:
            core.compile_model(core.read_model(model), "CPU", {"INFERENCE_NUM_THREADS": 1})
        except RuntimeError:
            return False
        return True

    return accepts
