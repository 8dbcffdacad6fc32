"""OpenVINO IR, in the plugin's default precision, float32, bfloat16 or INT8 by NNCF.

The IR keeps the client's names on its ports and float32 weights; the precision is a property of the compiled model, set
when it is loaded and read back from it. On CPUs with bfloat16 the plugin's default is bf16.
"""

import functools
import math
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

import numpy as np

from accel.builders import SEARCH_S, Backend, Builder, Mode, Session, TargetInfo
from accel.builders.calibration import calibration_feeds
from accel.builders.declared import reconcile, static_specs
from accel.builders.held_back import LEAST_SHARE
from accel.builders.openvino_integers import THROUGH_FLOAT
from accel.builders.openvino_mixing import (
    RECURRENT,
    SHORT,
    Calibration,
    Mixed,
    Mixing,
    precisions,
    products,
    save,
    store_int8,
)
from accel.builders.openvino_packing import pack
from accel.builders.requirements import demand, missing, missing_bf16, missing_gpu, versions
from accel.core import hardware
from accel.core.errors import InputError, StageError, UnavailableError, UsageError
from accel.core.feeds import Feed
from accel.core.packed import PACKED
from accel.core.values import (
    Artifact,
    BuildRequest,
    Built,
    Int32Runtime,
    Runtime,
    Skipped,
    Target,
    TensorSpec,
    TritonModel,
    to_json,
)

ENTRY = "model.xml"
HINTS: Mapping[str, str] = {"openvino-fp32": "f32", "openvino-bf16": "bf16"}
"""INFERENCE_PRECISION_HINT by target; the others leave the choice to the plugin."""
STRENGTH = 0.8
"""Strength of SmoothQuant for transformers. NNCF's own, 0.95, keeps less at the same speed (docs/decisions/0027)."""
OTHER_STRENGTHS: tuple[Calibration, ...] = ({"smooth_quant_alpha": 0.65}, {"smooth_quant_alpha": 0.95})
OTHER_RANGES: tuple[Calibration, ...] = ({"activation_ranges": "mean"}, {"activation_ranges": "histogram"})
"""What is tried where the usual calibration misses the gate: for transformers, and for all other models."""
_HEAVY = ("FullyConnected", "MatMul", "Convolution", "Deconvolution", "ScaledDotProductAttention")
"""Layer types of the compiled model that hold nearly all arithmetic of a network."""


@dataclass(frozen=True, slots=True)
class OpenVinoOptions:
    """What the IR is made from, and how INT8 is calibrated.

    Attributes:
        frontend: ``onnx`` reads the exported file, ``tensorflow`` the model itself, as a SavedModel; None takes the
            second where OpenVINO refuses the first.
        smooth_quant_alpha: how much of the activations' range SmoothQuant moves into the weights; -1 turns it off,
            None takes 0.8 for the products of a transformer, or another strength where that misses the gate.
        activation_ranges: what INT8 covers: ``mean`` from the mean of the samples' minima to that of their maxima,
            ``minmax`` from the least to the greatest value of all samples, ``histogram`` what loses least of their
            distribution; None takes the first for a transformer and the second for all others, or another where that
            misses the gate.
        bias_correction: ``none`` leaves biases as they are, ``fast`` takes what INT8 shifts them by from statistics of
            the float model alone, ``thorough`` layer by layer.
        search_s: how long the search may take for layers that stay in a finer precision, where the whole model in
            bfloat16 or INT8 misses the gate on calibration samples; 0 builds the whole model whatever it misses.
    """

    frontend: Literal["onnx", "tensorflow"] | None = None
    smooth_quant_alpha: float | None = None
    activation_ranges: Literal["mean", "minmax", "histogram"] | None = None
    bias_correction: Literal["none", "fast", "thorough"] = "none"
    search_s: float = SEARCH_S


def import_openvino() -> Any:
    """Import openvino with its telemetry out of reach, and return it.

    ``import openvino`` reports itself to a web service unless the user once declined, and NNCF does so at each call.
    Both fall back to a silent stand-in where their sender cannot be imported.
    """
    sys.modules.setdefault("openvino_telemetry", None)  # type: ignore[arg-type]
    import openvino

    return openvino


def compile_settings(target: str, threads: int, mode: Mode) -> dict[str, Any]:
    """Return what an IR of a target is compiled with for this CPU."""
    hint = HINTS.get(target)
    precision = {} if hint is None else {"INFERENCE_PRECISION_HINT": hint}
    return {**thread_settings(threads), "PERFORMANCE_HINT": mode.upper(), **precision}


def thread_settings(threads: int) -> dict[str, Any]:
    """Return the settings of a process's threads, which go where there is room if they leave CPUs to others."""
    free = {"ENABLE_CPU_PINNING": False} if hardware.shares_cpus(threads) else {}
    return {"INFERENCE_NUM_THREADS": threads, **free}


RUNTIME = Runtime("OpenVINO", ("#0072b2", "#4ba8e0"))


def _int32_kernels() -> Callable[[bytes], bool]:
    """Return a function that says whether OpenVINO compiles a serialised model for the CPU."""
    core = import_openvino().Core()

    def accepts(model: bytes) -> bool:
        try:
            core.compile_model(core.read_model(model), "CPU", {"INFERENCE_NUM_THREADS": 1})
        except RuntimeError:
            return False
        return True

    return accepts


def _parameters(threads: int, instances: int) -> Mapping[str, str]:
    """Return the parameters for some instances, each of which is one request of the model, compiled once.

    Source: openvino_backend README, "Parameters", and src/openvino.cc, ModelInstanceState.
    """
    if instances == 1:
        return {"PERFORMANCE_HINT": "LATENCY", "INFERENCE_NUM_THREADS": str(threads)}
    streams = {"NUM_STREAMS": str(instances), "INFERENCE_NUM_THREADS": str(threads)}
    return {"PERFORMANCE_HINT": "THROUGHPUT", **streams}


BACKEND = Backend("openvino", batches=False, converts=True, kind="KIND_CPU", parameters=_parameters)
"""It reshapes the model to ``max_batch_size`` and refuses or pads smaller batches, and sets the config's element types
on the model. Source: openvino_backend#115; src/openvino.cc, ValidateInputs, ValidateOutputs, ModelInstanceState.
"""


_info = functools.partial(
    TargetInfo,
    ("cpu",),
    runtime=RUNTIME,
    static=True,
    int64_as_int32=True,
    through_float=THROUGH_FLOAT,
    prefers_int32=True,
)


class OpenVinoBuilder(Builder):
    """Offers ``openvino`` in four precisions."""

    targets: Mapping[str, TargetInfo] = {
        "openvino": _info("none", "OpenVINO IR in the plugin's default precision"),
        "openvino-fp32": _info("fp32", "OpenVINO IR, float32", waits=("cpu",)),
        "openvino-bf16": _info("bf16", "OpenVINO IR, bfloat16"),
        "openvino-int8": _info("int8", "OpenVINO IR, INT8 by NNCF", calibration=True),
    }
    options: type[Any] = OpenVinoOptions
    packages = ("openvino", "nncf", "onnx", "tensorflow", "tensorflow-cpu", "keras")
    build_only = ("nncf",)
    backends = (BACKEND,)
    whole = MappingProxyType({"search_s": 0.0})
    packs = True
    narrows = Int32Runtime("openvino", "openvino", _int32_kernels)
    inspects = (".xml",)

    def available(self, target: Target) -> Skipped | None:
        """Ask for openvino, and for nncf where it quantises."""
        packages = ["openvino", "nncf"] if target.name == "openvino-int8" else ["openvino"]
        return missing_gpu(target) or missing(*packages) or missing_bf16(target, self.targets[target.name].precision)

    def same_as(self, target: Target) -> str | None:
        """Name what the plugin chooses by itself on an x86 CPU: BF16 where there are instructions for it, else FP32."""
        if target.name != "openvino" or target.device != "cpu":
            return None
        if hardware.computes_bf16():
            return "openvino-bf16"
        return "openvino-fp32" if hardware.emulates_bf16() and "avx2" in hardware.detect().cpu.flags else None

    def build(self, request: BuildRequest, options: OpenVinoOptions, out_dir: Path) -> Built:
        """Convert the ONNX file or the SavedModel to an IR with float32 weights, fixed to one shape for a static build.

        Raises:
            UnavailableError: what ``available`` says; or so little became INT8 that it is not.
            UsageError: an unknown frontend.
            InputError: no ONNX file, no TensorFlow model for that frontend, or no calibration samples for INT8.
            StageError: OpenVINO or NNCF failed, or the IR lost a name or a size.
        """
        target = request.variant.target
        demand(self.available(target))
        ov = import_openvino()
        core = ov.Core()
        core.set_property("CPU", thread_settings(request.threads))
        inputs, outputs = static_specs(request)
        facts: dict[str, Any] = {}
        with tempfile.TemporaryDirectory(prefix="accel-openvino-") as scratch:
            model, frontend = _read(core, request, options, Path(scratch))
            try:
                if request.variant.static is not None:
                    model.reshape({s.name: list(s.dims) for s in inputs})
                mixing = Mixing(core, request, Path(scratch), options.search_s)
                mixed = None
                if target.name == "openvino-int8":
                    model, facts, mixed = _quantize(model, options, mixing)
                elif HINTS.get(target.name, "bf16") == "bf16" and mixing.possible and mixing.computes_bf16():
                    _fuse(model, request)
                    mixed = mixing.bf16(model, HINTS.get(target.name))
                if mixed is not None:
                    facts |= mixed.facts
                save(model, out_dir / ENTRY, mixed.marked if mixed is not None else ())
                saved = core.read_model(out_dir / ENTRY)
            except RuntimeError as error:
                raise StageError(f"OpenVINO could not convert {request.source.name}: {error}") from error
        return Built(
            ENTRY,
            reconcile(port_specs(saved.inputs), inputs, what="input"),
            reconcile(port_specs(saved.outputs), outputs, what="output"),
            self.targets[target.name].precision,
            {"frontend": frontend, **facts},
            versions(["openvino", "nncf"] if target.name == "openvino-int8" else ["openvino"]),
            mixed.expected if mixed is not None else None,
        )

    def open(self, artifact: Artifact, folder: Path, *, threads: int, mode: Mode) -> "OpenVinoSession":
        """Compile the IR for this CPU.

        Raises:
            UnavailableError: openvino is not installed.
            StageError: the IR cannot be read or compiled, or the precision that was asked for is not the one in effect.
        """
        file = folder / artifact.built.entry
        return self._opened(artifact, artifact.built.inputs, lambda core: file, threads=threads, mode=mode)

    def open_packed(
        self, artifact: Artifact, folder: Path, *, mask: str, threads: int, mode: Mode
    ) -> "OpenVinoSession":
        """Compile the IR, changed so that a row may hold several texts: its weights and precisions stay as proved."""

        def read(core: Any) -> Any:
            model = core.read_model(folder / artifact.built.entry)
            pack(model, mask)
            return model

        kept = (spec for spec in artifact.built.inputs if spec.name != mask)
        inputs = (*kept, *(TensorSpec(name, "int32", dims) for name, dims in PACKED.items()))
        return self._opened(artifact, inputs, read, threads=threads, mode=mode)

    def _opened(
        self,
        artifact: Artifact,
        inputs: tuple[TensorSpec, ...],
        what: Callable[[Any], Any],
        *,
        threads: int,
        mode: Mode,
    ) -> "OpenVinoSession":
        """Compile the model or the file that ``what`` returns for a core of OpenVINO."""
        demand(missing_gpu(artifact.variant.target) or missing("openvino"))
        ov = import_openvino()
        target, core = artifact.variant.target.name, ov.Core()
        settings = compile_settings(target, threads, mode)
        try:
            compiled = core.compile_model(what(core), "CPU", settings)
        except RuntimeError as error:
            raise StageError(f"OpenVINO could not load {artifact.built.entry}: {error}") from error
        slots = int(compiled.get_property("OPTIMAL_NUMBER_OF_INFER_REQUESTS")) if mode == "throughput" else 1
        session = OpenVinoSession(inputs, artifact.built.outputs, compiled, slots=slots)
        hint = HINTS.get(target)
        if hint is not None and session.float_precision() != SHORT[hint]:
            raise StageError(f"asked OpenVINO for {hint} and it computes in {session.float_precision()} on this CPU")
        return session

    def triton(self, artifact: Artifact, release: str) -> TritonModel | Skipped:
        """Serve an IR natively where the backend can run it at the precision that was measured.

        The backend can ask for bf16 (``HINT_BF16``) and has no key that forces f32; the CPU plugin ignores a precision
        written into the IR. So float32 goes through the Python backend, which sets the property.

        Source: openvino_backend, src/openvino.cc, ``ModelState::ParseParameters``.
        """
        name = artifact.variant.target.name
        if name == "openvino-fp32":
            return TritonModel.in_python(artifact)
        parameters = {"HINT_BF16": "YES"} if name == "openvino-bf16" else {}
        return TritonModel("openvino", artifact.built.entry, dynamic_batching=False, parameters=parameters)

    def inspect(self, path: Path) -> dict[str, Any]:
        """Say what an IR holds.

        Raises:
            InputError: it is not an IR, or its weights are missing.
        """
        ov = import_openvino()
        try:
            model = ov.Core().read_model(path)
            inputs, outputs = port_specs(model.inputs), port_specs(model.outputs)
        except (RuntimeError, UnicodeDecodeError) as error:  # the second where a name or its message is not UTF-8
            raise InputError(
                f"{path} is not an OpenVINO IR: {error}", fix="its .bin file must lie beside it"
            ) from error
        ops = Counter(op.get_type_name() for op in model.get_ops())
        dtypes: Counter[str] = Counter()
        for op in model.get_ops():
            if op.get_type_name() == "Constant":
                dtypes[op.get_output_element_type(0).to_string()] += math.prod(op.get_output_shape(0))
        return {
            "kind": "openvino",
            "inputs": to_json(tuple(inputs)),
            "outputs": to_json(tuple(outputs)),
            "ops": dict(sorted(ops.items())),
            "precision": {"weights": dict(dtypes), "fake_quantize": ops["FakeQuantize"]},
        }


class OpenVinoSession(Session):
    """A compiled model with one infer request for each slot."""

    def __init__(
        self, inputs: tuple[TensorSpec, ...], outputs: tuple[TensorSpec, ...], compiled: Any, *, slots: int
    ) -> None:
        super().__init__(inputs, outputs, slots)
        self._compiled = compiled
        self._requests = [compiled.create_infer_request() for _ in range(slots)]
        self._feeds: list[Feed] = [{} for _ in range(slots)]

    def bind(self, inputs: Feed, *, slot: int = 0) -> None:
        """Let the request read from the arrays themselves: they stay alive with the slot."""
        import openvino as ov

        self._feeds[slot] = inputs
        for spec in self.inputs:
            value = inputs[spec.name]  # OpenVINO can share only memory that may be written
            self._requests[slot].set_tensor(spec.name, ov.Tensor(value, shared_memory=value.flags.writeable))

    def submit(self, *, slot: int = 0) -> None:
        """Start the request.

        Raises:
            StageError: OpenVINO refused it.
        """
        try:
            self._requests[slot].start_async()
        except RuntimeError as error:
            raise StageError(f"OpenVINO refused the request: {error}") from error

    def wait(self, *, slot: int = 0) -> None:
        """Wait for the request.

        Raises:
            StageError: it failed.
        """
        try:
            self._requests[slot].wait()
        except RuntimeError as error:
            raise StageError(f"OpenVINO failed on the request: {error}") from error

    def read(self, *, slot: int = 0) -> dict[str, np.ndarray]:
        """Return views of the request's output tensors."""
        return {s.name: self._requests[slot].get_tensor(s.name).data for s in self.outputs}

    def float_precision(self) -> str:
        """Return what the plugin says its float operations run in."""
        return SHORT[self._compiled.get_property("INFERENCE_PRECISION_HINT").to_string()]

    def precision(self) -> str:
        """Return the precision in which most of the compiled model's matrix products and convolutions run.

        With float32 most often, but bfloat16 beside it, it is bfloat16.
        """
        found: Counter[str] = Counter()
        for layer in self._compiled.get_runtime_model().get_ops():
            facts = layer.get_rt_info()
            if facts["layerType"].astype(str) in _HEAVY:
                found[SHORT.get(facts["runtimePrecision"].astype(str), "none")] += 1
        most = found.most_common(1)[0][0] if found else self.float_precision()
        return "bf16" if most == "fp32" and found["bf16"] else most

    def close(self) -> None:
        """Drop the requests and the compiled model."""
        self._requests, self._feeds, self._compiled = [], [], None


def _read(core: Any, request: BuildRequest, options: OpenVinoOptions, scratch: Path) -> tuple[Any, str]:
    """Read the model with the frontend that was asked for, else with the first that takes it; return which it was.

    Raises:
        UsageError, InputError: as ``_origin``.
        StageError: OpenVINO refused it; of two refusals the first.
    """
    usual = ["onnx", "tensorflow"] if request.source.framework == "tensorflow" else ["onnx"]
    refusal = None
    for frontend in usual if options.frontend is None else [options.frontend]:
        origin = _origin(request, frontend, scratch)
        try:
            return core.read_model(origin), frontend
        except RuntimeError as error:
            refusal = refusal or StageError(f"OpenVINO could not convert {origin.name}: {error}")
    assert refusal is not None
    raise refusal


def _origin(request: BuildRequest, frontend: str, scratch: Path) -> Path:
    """Return what OpenVINO is to read: the exported ONNX file, or a SavedModel with the client's names and dtypes.

    Raises:
        UsageError: an unknown frontend.
        InputError: the source was not exported, or is not TensorFlow's.
    """
    if frontend not in ("onnx", "tensorflow"):
        raise UsageError(f"frontend is {frontend!r}: expected onnx or tensorflow")
    if frontend == "onnx":
        if request.onnx is None or request.onnx_folder is None:
            raise InputError(f"{request.variant.target} starts from ONNX and the source was not exported")
        return Path(request.onnx_folder) / request.onnx.file.path
    if request.source.framework != "tensorflow":
        raise InputError(
            f"frontend tensorflow reads TensorFlow models, and {request.source.name} is {request.source.framework}'s",
            fix="leave the option out",
        )
    from accel import exporters
    from accel.exporters.tensorflow_runtime import import_tensorflow

    import_tensorflow(request.threads)
    graph = exporters.load(request.source).graph
    assert graph is not None
    graph.save(scratch / "saved_model")
    return scratch / "saved_model"


def port_specs(ports: Sequence[Any]) -> list[TensorSpec]:
    """Read names, dtypes and dims of a model's ports; a dynamic axis is ``?``."""
    return [
        TensorSpec(
            port.get_any_name(),
            np.dtype(port.get_element_type().to_dtype()).name,
            tuple(d.get_length() if d.is_static else "?" for d in port.get_partial_shape()),
        )
        for port in ports
    ]


def _fuse(model: Any, request: BuildRequest) -> None:
    """Make one operation of a norm in single ones, as the plugin would: NNCF would quantise inside of it.

    A transformer's patterns NNCF knows as they are read. Builds that share a search need one form.
    """
    from openvino._offline_transformations import apply_moc_transformations

    if request.source.family != "transformer":
        apply_moc_transformations(model, cf=False, smart_reshape=False)


def _quantize(model: Any, options: OpenVinoOptions, mixing: Mixing) -> tuple[Any, dict[str, Any], Mixed | None]:
    """Quantise with NNCF on every calibration feed; a static build pads each feed to its shape.

    Products of two activations (attention) stay float. With INT8 scores the CPU plugin's fused attention answers
    wrongly in bf16, its default, wherever the sequence is as long as a head is wide (seen with OpenVINO 2026.4.1; right
    with float32, with the fusion off, and at every other length). In the IR this holds for whoever serves it.

    Recurrent layers stay float: the plugin's INT8 kernel gives the hidden state the scale of the layer's input, and
    answers wrongly (seen with OpenVINO 2026.4.1 and NNCF 3.4; docs/decisions/0027).

    Where the whole model misses the gate on feeds that judge, layers return to float until it holds.
    """
    import nncf
    from nncf.quantization.range_estimator import RangeEstimatorParametersSet

    request, feeds = mixing.request, calibration_feeds(mixing.request)
    more: dict[str, Any] = {}
    transformer = request.source.family == "transformer"
    _fuse(model, request)
    convolves = any(op.get_type_name().endswith("Convolution") for op in model.get_ops())
    attention = _activation_products(model)
    recurrent = [op.get_friendly_name() for op in model.get_ops() if op.get_type_name() in RECURRENT]
    if attention or recurrent:
        more["ignored_scope"] = nncf.IgnoredScope(names=attention + recurrent)
    if transformer:
        more["model_type"] = nncf.ModelType.TRANSFORMER

    def quantise(chosen: Sequence[Feed], way: Calibration) -> Any:
        advanced = nncf.AdvancedQuantizationParameters(backend_params={"compress_weights": False})
        if hardware.detect().cpu.has_vnni:
            advanced.overflow_fix = nncf.OverflowFix.DISABLE
        elif convolves:  # two products are summed in 16 bits, and NNCF halves the range of the first layer alone
            advanced.overflow_fix = nncf.OverflowFix.ENABLE
        own = options.smooth_quant_alpha
        if own is not None:
            advanced.smooth_quant_alphas = nncf.AdvancedSmoothQuantParameters(convolution=own, matmul=own)
        elif transformer:
            alpha = way.get("smooth_quant_alpha", STRENGTH)
            advanced.smooth_quant_alphas = nncf.AdvancedSmoothQuantParameters(matmul=alpha)
        # What is clipped is lost where a few strong samples hold most of the signal (docs/decisions/0027).
        ranges = options.activation_ranges or way.get("activation_ranges", "mean" if transformer else "minmax")
        if ranges != "mean":
            estimator = getattr(RangeEstimatorParametersSet, str(ranges).upper())
            advanced.activations_range_estimator_params = estimator
        advanced.disable_bias_correction = options.bias_correction == "none"
        return nncf.quantize(
            model,
            nncf.Dataset(chosen),
            subset_size=len(chosen),
            preset=nncf.QuantizationPreset.MIXED,
            fast_bias_correction=options.bias_correction != "thorough",
            advanced_parameters=advanced,
            **more,
        )

    mixed = None
    if mixing.possible:
        others = OTHER_STRENGTHS if transformer else OTHER_RANGES
        free = [way for way in others if all(getattr(options, name) is None for name in way)]
        quantized, mixed = mixing.int8(model, quantise, free)
    else:
        quantized = quantise(feeds, {})
    store_int8(quantized)
    if mixed is None or (mixed.expected and "share_of_products" not in mixed.facts):
        _demand_int8(mixing.core.compile_model(quantized, "CPU"), products(model, request), recurrent)
    types = Counter(op.get_type_name() for op in quantized.get_ops())
    facts = {
        "calibration_items": request.samples.calibration_items,
        "calibration_feeds": len(feeds),
        "dataset_sha256": request.samples.sha256,
        "model_type": "transformer" if transformer else "none",
        "fake_quantize_nodes": types["FakeQuantize"],
        "float_activation_products": len(attention),
        "float_recurrent_layers": len(recurrent),
    }
    if transformer and options.smooth_quant_alpha is None:
        facts["smooth_quant_alpha"] = STRENGTH
    return quantized, facts, mixed


def _demand_int8(compiled: Any, work: Mapping[str, int], recurrent: Collection[str]) -> None:
    """Look at what runs in INT8, or may: of a product whose name the compiled model lost nobody knows.

    Raises:
        UnavailableError: so few multiplications that it is none.
    """
    rows = precisions(compiled, work)
    found = [share for name, precision, share in rows if precision in ("int8", "none") and name not in recurrent]
    if sum(found) < LEAST_SHARE:
        floats = "; recurrent layers stay float, since OpenVINO's INT8 kernel for them answers wrongly" * bool(
            recurrent
        )
        raise UnavailableError(
            f"{100 * sum(found):.2g} % of the multiplications ({len(found)} of {len(rows)} products) would run in INT8"
            f"{floats}: less than {100 * LEAST_SHARE:g} % is not INT8",
            fix="choose openvino-bf16 or openvino-fp32",
        )


def _activation_products(model: Any) -> list[str]:
    """Return the names of matrix products whose factors are both computed, none a weight, and of fused attention."""
    constant: set[str] = set()
    products = []
    for op in model.get_ordered_ops():
        factors = [value.get_node().get_name() in constant for value in op.input_values()]
        if op.get_type_name() == "Constant" or (factors and all(factors)):
            constant.add(op.get_name())
        elif op.get_type_name() == "ScaledDotProductAttention" or (op.get_type_name() == "MatMul" and not any(factors)):
            products.append(op.get_friendly_name())
    return products


BUILDER = OpenVinoBuilder()
