"""Drive the TensorRT builder and session over the real bindings of one version; prints what was seen as JSON.

    python drive.py FOLDER_OF_BINDINGS SCRATCH

A process of its own for each version: two versions of the bindings cannot be loaded into one.
"""

import ctypes
import dataclasses
import importlib
import json
import os
import sys
import traceback
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

warnings.simplefilter("error")
sys.path.insert(0, sys.argv[1])
SCRATCH = Path(sys.argv[2])
os.environ["ACCEL_HOME"] = str(SCRATCH / "home")

import tensorrt_bindings as real  # noqa: E402
from specified import Api, StandIn  # noqa: E402

from accel.builders import to_tensorrt  # noqa: E402
from accel.builders.tensorrt import (  # noqa: E402
    build as building_plans,
    device as cuda,
    library,
)
from accel.core.errors import AccelError  # noqa: E402
from accel.core.values import (  # noqa: E402
    Artifact,
    BuildRequest,
    Built,
    FileRef,
    ModelSource,
    SampleSet,
    ShapeRange,
    Target,
    TensorSpec,
    Variant,
)

IN = TensorSpec("x", "float32", ("batch", 3))
OUT = TensorSpec("y", "float32", ("batch", 3))
RANGE = ShapeRange((1, 3), (2, 3), (4, 3))
MATMUL = {
    "Name": "/fc/MatMul",
    "LayerType": "gemm",
    "Inputs": [{"Name": "x", "Format/Datatype": "Half"}],
    "Outputs": [{"Name": "y", "Format/Datatype": "Half"}],
    "TacticName": "sm80_xmma_gemm_f16f16_f16f32_f32_tn_n_tilesize64x64x64",
    "Metadata": "[ONNX Layer: /fc/MatMul]",
}


def layers(*entries: Any) -> str:
    return json.dumps({"Layers": list(entries), "Bindings": ["x", "y"]})


def twice_plus_one(context: StandIn, handle: int) -> bool:
    """What the plan computes: it reads the address that was set for x, and writes to y's."""
    shape = context._shapes["x"]
    count = int(np.prod(shape))
    kind = ctypes.c_float * count
    x = np.frombuffer(kind.from_address(context._addresses["x"]), np.float32)
    y = np.frombuffer(kind.from_address(context._addresses["y"]), np.float32)
    y[:] = 2 * x + 1
    context._runs.append(handle)
    return True


def remember(name: str) -> Callable[..., bool]:
    def act(context: StandIn, tensor: str, value: Any) -> bool:
        context.__dict__.setdefault(name, {})[tensor] = value
        context.__dict__.setdefault("_runs", [])
        return True

    return act


def script(**more: Any) -> dict[str, Any]:
    """The answers of a machine on which all is well: a plan with one input x and one output y of the same shape."""
    both = {"x": real.TensorIOMode.INPUT, "y": real.TensorIOMode.OUTPUT}
    found = {
        "INetworkDefinition.num_inputs": 1,
        "INetworkDefinition.get_input": lambda network, index: TENSOR(network),
        "ITensor.name": "x",
        "ITensor.is_shape_tensor": False,
        "ITensor.dtype": real.DataType.FLOAT,
        "ITensor.shape": real.Dims((-1, 3)),
        "IOptimizationProfile.get_shape": lambda *_: [real.Dims(s) for s in (RANGE.min, RANGE.opt, RANGE.max)],
        "IBuilderConfig.DLA_core": -1,
        "IBuilderConfig.default_device_type": real.DeviceType.GPU,
        "IBuilderConfig.engine_capability": real.EngineCapability.STANDARD,
        "IBuilderConfig.get_timing_cache": lambda config: API.stand_in(real.ITimingCache),
        "IBuilderConfig.int8_calibrator": None,
        "ICudaEngine.num_optimization_profiles": 1,
        "ICudaEngine.num_io_tensors": 2,
        "ICudaEngine.get_tensor_name": lambda engine, index: ["x", "y"][index],
        "ICudaEngine.get_tensor_dtype": lambda *_: real.DataType.FLOAT,
        "ICudaEngine.get_tensor_mode": lambda engine, name: both.get(name, real.TensorIOMode.OUTPUT),
        "ICudaEngine.get_tensor_shape": lambda *_: real.Dims((-1, 3)),
        "ICudaEngine.is_shape_inference_io": False,
        "ICudaEngine.get_tensor_profile_shape": lambda *_: [real.Dims(s) for s in (RANGE.min, RANGE.opt, RANGE.max)],
        "ICudaEngine.device_memory_size_v2": 4096,
        "EngineInspector.get_engine_information": lambda *_: layers(MATMUL),
        "IExecutionContext.set_input_shape": remember("_shapes"),
        "IExecutionContext.set_tensor_address": remember("_addresses"),
        "IExecutionContext.get_tensor_shape": lambda context, name: real.Dims(context._shapes["x"]),
        "IExecutionContext.execute_async_v3": twice_plus_one,
    }
    return found | more


API: Api
TENSOR = lambda network: API.stand_in(real.ITensor)  # noqa: E731


def fresh(**more: Any) -> tuple[Any, library.Log]:
    """Make a new API with its script, known to Polygraphy as ``tensorrt``; returns the module and a log."""
    global API
    API = Api(real, script(**more))
    sys.modules["tensorrt"] = API.module
    for module in [m for m in sys.modules if m.startswith("polygraphy")]:
        del sys.modules[module]  # it keeps the TensorRT that it met first
    trt = library.import_tensorrt()
    assert trt is API.module
    return trt, library.Log(trt)


def request(target: str = "trt-fp16", **options: Any) -> BuildRequest:
    file = FileRef("samples.npz", "0" * 64, 0)
    source = ModelSource("tiny", "onnx", "tiny.onnx", "onnx", "local", None, "k", (IN,), (OUT,), {"x": RANGE})
    samples = SampleSet(None, file, file, 0, 1, "0" * 64, "none")
    variant = Variant(Target(target, "cuda"), {"x": RANGE}, options=options)
    return BuildRequest(variant, source, None, None, samples, str(SCRATCH), 1)


def build(
    target: str = "trt-fp16",
    report: Mapping[str, Any] | None = None,
    more: Mapping[str, Any] | None = None,
    **options: Any,
) -> Built:
    trt, log = fresh(**(more or {}))
    onnx, out = SCRATCH / "onnx" / "model.onnx", SCRATCH / "out"
    for folder in (onnx.parent, out):
        folder.mkdir(exist_ok=True)
    onnx.write_bytes(b"not read: the parser is scripted")
    asked = request(target, **options)
    given = report or {"products": ["/fc/MatMul"], "kept": []}
    return to_tensorrt.build(trt, log, asked, to_tensorrt.TensorRtOptions(**options), onnx, given, out)


class HostDevice:
    """The five methods of a device over host memory: copies are done when they are queued."""

    stream = 77

    def __init__(self) -> None:
        self.copied: list[int] = []
        self.waits = 0
        self.captured = 0

    def host(self, nbytes: int) -> tuple[Any, np.ndarray]:
        array = np.zeros(nbytes, np.uint8)
        return SimpleNamespace(address=array.ctypes.data, nbytes=nbytes, array=array), array

    def block(self, nbytes: int) -> Any:
        return self.host(nbytes)[0]

    def copy(self, target: Any, source: Any, nbytes: int) -> None:
        self.copied.append(nbytes)
        target.array[:nbytes] = source.array[:nbytes]

    def wait(self) -> None:
        self.waits += 1

    def capture(self, act: Callable[[], None]) -> Callable[[], None]:
        self.captured += 1
        return act


def opened(more: Mapping[str, Any] | None = None, device: HostDevice | None = None, **options: Any) -> Any:
    built = build(**options)
    if more:
        API.script.update(more)
    asked = request(**options)
    artifact = Artifact(asked.variant, (), "0" * 64, built, 0.0)
    trt, log = sys.modules["tensorrt"], library.Log(sys.modules["tensorrt"])
    return to_tensorrt.open_plan(trt, log, artifact, SCRATCH / "out", device or HostDevice())


def calls() -> list[Any]:
    """Return what was called and set, as text that JSON can hold."""
    return [[name, [str(a) for a in args], {k: str(v) for k, v in kw.items()}] for name, args, kw in API.calls]


def failing(act: Callable[[], Any]) -> list[str]:
    """Return class, message and fix of the error that ``act`` ends in."""
    try:
        act()
    except AccelError as error:
        return [type(error).__name__, error.message, error.fix or ""]
    except BaseException as error:  # noqa: BLE001
        return [type(error).__name__, "".join(traceback.format_exception_only(error)).strip(), ""]
    return ["nothing", "", ""]


def says(text: str, result: Any = None) -> Callable[..., Any]:
    """A scripted call that fails as TensorRT does: a word to the logger, and no result."""

    def act(owner: Any, *args: Any) -> Any:
        for log in LOGS:
            log.logger.log(real.ILogger.ERROR, text)
        return result

    return act


LOGS: list[library.Log] = []
_plain_init = library.Log.__init__


def _noted(self: library.Log, trt: Any) -> None:
    _plain_init(self, trt)
    LOGS[:] = [self]


library.Log.__init__ = _noted  # type: ignore[method-assign]


# ---------------------------------------------------------------------------------------------------------------------
# What is seen


def builds() -> dict[str, Any]:
    seen = {}
    for target, types in (("trt", "tf32f32"), ("trt-fp32", "f32f32")):
        plain = {**MATMUL, "Inputs": [{"Format/Datatype": "Float"}], "TacticName": f"sm80_xmma_gemm_f32f32_{types}_f32"}
        built = build(target, more={"EngineInspector.get_engine_information": lambda *_, plain=plain: layers(plain)})
        seen[target] = {"calls": calls(), "built": dataclasses.asdict(built)}
    built = build(
        optimization_level=4,
        workspace_mib=512,
        hardware_compatibility="ampere_plus",
        version_compatible=True,
        weights="refittable",
    )
    seen["options"] = {"calls": calls(), "built": dataclasses.asdict(built)}
    seen["timings"] = sorted(p.name for p in (SCRATCH / "home").rglob("*.bin"))
    built = build(weight_streaming=True, timing_cache=False)
    seen["streaming"] = {"calls": calls(), "built": dataclasses.asdict(built)}
    built = build(weights="stripped")
    seen["stripped"] = {
        "calls": calls(),
        "files": sorted(p.relative_to(SCRATCH / "out").as_posix() for p in (SCRATCH / "out").rglob("*") if p.is_file()),
    }
    return seen


def progress() -> dict[str, Any]:
    from accel.core import progress as told

    said: list[str] = []
    told.listen(said.append)

    def building(builder: Any, network: Any, config: Any) -> Any:
        monitor = config.progress_monitor
        monitor.phase_start("Building Engine", None, 2)
        monitor.phase_start("Tactics", "Building Engine", 9)
        going = [monitor.step_complete("Building Engine", 0), monitor.step_complete("Tactics", 3)]
        monitor.phase_finish("Tactics")
        monitor.phase_finish("Building Engine")
        return API.stand_in(real.IHostMemory) if all(going) else None

    build(more={"Builder.build_serialized_network": building})

    def interrupted(text: str) -> None:
        raise KeyboardInterrupt

    heard = list(said)
    told.listen(interrupted)
    stopped = failing(lambda: build(more={"Builder.build_serialized_network": building}))
    told._sinks.clear()
    return {"said": heard, "stopped": stopped}


def failures() -> dict[str, Any]:
    unknown = {
        "OnnxParser.parse_from_file": False,
        "OnnxParser.num_errors": 1,
        "OnnxParser.get_error": lambda *_: API.stand_in(real.ParserError),
        "ParserError.node_operator": "Gridlock",
        "ParserError.node_name": "/neck/Gridlock_3",
        "ParserError.desc": "no importer registered for op: Gridlock",
        "ParserError.node": 3,
    }
    wide = {**MATMUL, "Inputs": [{"Format/Datatype": "Float"}], "TacticName": "sm80_xmma_gemm_f32f32_f32f32_f32"}
    rounded = {**wide, "TacticName": "sm80_xmma_gemm_f32f32_tf32f32_f32"}
    other = {**wide, "Name": "/kept/MatMul", "Metadata": "[ONNX Layer: /kept/MatMul]"}
    info = "EngineInspector.get_engine_information"
    no_engine = "Builder.build_serialized_network"
    load = "Runtime.deserialize_cuda_engine"
    return {
        "operator": failing(lambda: build(more=unknown)),
        "unreadable": failing(lambda: build(more={"OnnxParser.parse_from_file": False})),
        "memory": failing(lambda: build(more={no_engine: says("Out of memory: requested 1 TiB")})),
        "no engine": failing(lambda: build(more={no_engine: says("no implementation for node /fc/MatMul")})),
        "driver": failing(lambda: build(more={"Builder.__init__": says("CUDA initialization failure with error: 35")})),
        "no cuda": failing(
            lambda: build(more={"Builder.__init__": says("CUDA initialization failure with error: 100")})
        ),
        "elsewhere": failing(
            lambda: build(more={load: says("The engine plan file is not compatible with this version")})
        ),
        "fp32 products": failing(lambda: build(more={info: lambda *_: layers(wide)})),
        "tf32 products": failing(lambda: build("trt-fp32", more={info: lambda *_: layers(rounded)})),
        "one stray": failing(lambda: build(more={info: lambda *_: layers(MATMUL, other)})),
        "one kept": failing(
            lambda: build(report={"kept": ["/kept/MatMul"]}, more={info: lambda *_: layers(MATMUL, other)})
        ),
        "profile": failing(
            lambda: build(more={"ICudaEngine.get_tensor_profile_shape": lambda *_: [real.Dims((1, 3))] * 3})
        ),
        "dtype": failing(lambda: build(more={"ICudaEngine.get_tensor_dtype": lambda *_: real.DataType.BF16})),
        "half input": failing(lambda: build(more={"ICudaEngine.get_tensor_dtype": lambda *_: real.DataType.HALF})),
        "name": failing(lambda: build(more={"ICudaEngine.get_tensor_name": lambda e, i: ["x", "z"][i]})),
        "two profiles": failing(lambda: build(more={"ICudaEngine.num_optimization_profiles": 2})),
        "shape tensor": failing(lambda: build(more={"ICudaEngine.is_shape_inference_io": True})),
        "real builder": failing(_real_builder),
    }


def _real_builder() -> None:
    """The bindings' own builder over the stub libraries, which make none."""
    log = library.Log(real)
    building_plans.create(lambda: real.Builder(log.logger), log, "TensorRT's builder cannot be made")


def sessions() -> dict[str, Any]:
    device = HostDevice()
    session = opened(device=device)
    rng = np.random.default_rng(0)
    right = []
    for batch in (2, 1, 4, 4):
        x = rng.standard_normal((batch, 3), np.float32)
        right.append(bool((session.run({"x": x})["y"] == 2 * x + 1).all()))
    context = session._context
    split = session.split({"x": np.ones((4, 3), np.float32)})
    seen = {
        "right": right,
        "streams": sorted(set(context._runs)),
        "shapes set": len(API.named("IExecutionContext.set_input_shape")),
        "copied": device.copied[:2],
        "precision": session.precision(),
        "split": [split.bytes_in, split.bytes_out, split.compute_ms >= 0],
        "outside": failing(lambda: session.run({"x": np.ones((5, 3), np.float32)})),
    }
    again = session.run({"x": np.ones((1, 3), np.float32)})["y"]
    seen["after"] = bool((again == 3).all())
    session.close()
    seen["closed"] = failing(lambda: session.run({"x": np.ones((1, 3), np.float32)}))
    graph = HostDevice()
    with_graph = opened(device=graph, cuda_graph=True)
    values = [with_graph.run({"x": np.full((n, 3), n, np.float32)})["y"][0, 0] for n in (1, 1, 2, 2, 1)]
    seen["graph"] = {"values": [float(v) for v in values], "captured": graph.captured}
    refused = opened(more={"IExecutionContext.execute_async_v3": says("out of memory", False)})
    seen["run"] = failing(lambda: refused.run({"x": np.ones((1, 3), np.float32)}))
    unbounded = opened(more={"IExecutionContext.get_tensor_shape": lambda *_: real.Dims((-1, 3))})
    seen["unbounded"] = failing(lambda: unbounded.run({"x": np.ones((1, 3), np.float32)}))
    seen["no context"] = failing(lambda: opened(more={"ICudaEngine.create_execution_context": says("out of memory")}))
    streamed = opened(weight_streaming=True)
    streamed.close()
    seen["budget"] = API.named("ICudaEngine.weight_streaming_budget_v2")
    lean = opened(version_compatible=True)
    lean.close()
    seen["host code"] = API.named("Runtime.engine_host_code_allowed")
    return seen


def inspected() -> dict[str, Any]:
    from accel.run.inspection import inspect

    build()
    found = inspect(SCRATCH / "out" / "model.plan")
    return {"found": found, "host code": API.named("Runtime.engine_host_code_allowed")}


def planted() -> dict[str, Any]:
    """Build with mistakes planted in the builder's source: the stand-ins must refuse each."""
    source = Path(building_plans.__file__).read_text()
    strong = "builder.create_network(1 << int(trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED))"
    after = "    shapes = Profile()\n"
    gone = {"10": ("max_workspace_size", "STRICT_TYPES"), "11": ("int8_calibrator", "FP16")}[
        real.__version__.partition(".")[0]
    ]
    plants = {
        "arity": (strong, strong[:-1] + ", 7)"),
        "type": (strong, 'builder.create_network("STRONGLY_TYPED")'),
        "keyword": (strong, strong.replace("create_network(", "create_network(flag=")),
        "property": (after, f"    builder.create_builder_config().{gone[0]} = None\n{after}"),
        "reading a property": (after, f"    builder.create_builder_config().{gone[0]}\n{after}"),
        "flag": (after, f"    builder.create_builder_config().set_flag(trt.BuilderFlag.{gone[1]})\n{after}"),
        "call": (after, f"    network.add_gelu(network.get_input(0))\n{after}"),
        "constant property": (after, f"    network.num_inputs = 3\n{after}"),
        "value": (after, f"    builder.create_builder_config().builder_optimization_level = 'high'\n{after}"),
        "parser": ("parser.parse_from_file(str(onnx))", "parser.parse_from_file(onnx)"),
        "nothing": (strong, strong),
    }
    seen = {}
    for name, (old, new) in plants.items():
        assert source.count(old) == 1, (name, old)
        try:
            exec(compile(source.replace(old, new), "planted", "exec"), building_plans.__dict__)
            seen[name] = failing(build)
        finally:
            importlib.reload(building_plans)
    return seen


def torch_calls() -> list[str]:
    """Return what the device asks of PyTorch and the installed PyTorch does not have."""
    import ast

    import torch

    missing = []
    for node in ast.walk(ast.parse(Path(cuda.__file__).read_text())):
        words = []
        while isinstance(node, ast.Attribute):
            words.insert(0, node.attr)
            node = node.value
        if isinstance(node, ast.Name):
            words.insert(0, node.id)
        if words[:2] == ["self", "_torch"] or words[:1] == ["torch"]:
            found: Any = torch
            for word in words[2:] if words[0] == "self" else words[1:]:
                found = getattr(found, word, None)
            if found is None:
                missing.append(".".join(words))
    return missing


if __name__ == "__main__":
    answers = sys.stdout
    sys.stdout = sys.stderr  # Polygraphy prints
    seen = {act.__name__: act() for act in (builds, progress, failures, sessions, inspected, planted, torch_calls)}
    seen["version"] = real.__version__
    seen["strongly typed"] = 1 << int(real.NetworkDefinitionCreationFlag.STRONGLY_TYPED)
    json.dump(seen, answers, default=str)
