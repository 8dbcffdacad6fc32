"""The TensorRT builder and session, driven over the real bindings of TensorRT 10 and 11 (see ``trt_stubs``).

No GPU, no TensorRT library: what is held here is that every call exists, with these arguments, in both majors, and that
what the calls answer is acted upon. That an engine really builds and runs shows on a GPU alone (``make test-gpu``).
"""

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from trt_stubs.bindings import VERSIONS, bindings

from accel.builders.tensorrt import fit, library
from accel.builders.tensorrt.engine import Layer, PlanFacts, check_precision, read_layers
from accel.builders.tensorrt.options import TensorRtOptions
from accel.builders.to_tensorrt import BUILDER
from accel.core.errors import StageError, UnavailableError, UsageError
from accel.core.values import Target

DRIVE = Path(__file__).parent / "trt_stubs" / "drive.py"


@pytest.fixture(scope="module", params=VERSIONS)
def seen(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What one version of TensorRT saw of the builder and the session."""
    scratch = tmp_path_factory.mktemp("trt")
    words = [sys.executable, str(DRIVE), str(bindings(request.param)), str(scratch)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    found: dict[str, Any] = json.loads(done.stdout)
    assert found["version"] == request.param
    return found


def called(seen: dict[str, Any], build: str, name: str) -> list[Any]:
    """The arguments of every call of ``Class.member`` in one build."""
    return [[*args, *kwargs.values()] for found, args, kwargs in seen["builds"][build]["calls"] if found == name]


def test_the_network_is_strongly_typed_and_has_one_profile(seen):
    for build in ("trt", "trt-fp32", "options", "streaming"):
        assert called(seen, build, "Builder.create_network") == [[str(seen["strongly typed"])]]
        assert called(seen, build, "IOptimizationProfile.set_shape") == [["x", "(1, 3)", "(2, 3)", "(4, 3)"]]
        assert len(called(seen, build, "IBuilderConfig.add_optimization_profile")) == 1
        flags = [flag for (flag,) in called(seen, build, "IBuilderConfig.set_flag")]
        assert not [f for f in flags if any(p in f for p in ("FP16", "BF16", "INT8", "FP8", "CONSTRAINTS"))]


def test_tf32_is_always_said(seen):
    assert ["BuilderFlag.TF32"] in called(seen, "trt", "IBuilderConfig.set_flag")
    assert ["BuilderFlag.TF32"] not in called(seen, "trt", "IBuilderConfig.clear_flag")
    for build in ("trt-fp32", "options"):
        assert ["BuilderFlag.TF32"] in called(seen, build, "IBuilderConfig.clear_flag")
        assert ["BuilderFlag.TF32"] not in called(seen, build, "IBuilderConfig.set_flag")


def test_options_reach_the_configuration(seen):
    flags = called(seen, "options", "IBuilderConfig.set_flag")
    assert ["BuilderFlag.VERSION_COMPATIBLE"] in flags
    assert ["BuilderFlag.REFIT"] in flags
    assert called(seen, "options", "IBuilderConfig.builder_optimization_level") == [["4"]]
    limit = called(seen, "options", "IBuilderConfig.set_memory_pool_limit")
    assert limit == [["MemoryPoolType.WORKSPACE", str(512 << 20)]]
    level = called(seen, "options", "IBuilderConfig.hardware_compatibility_level")
    assert level == [["HardwareCompatibilityLevel.AMPERE_PLUS"]]
    assert called(seen, "options", "IBuilderConfig.profiling_verbosity") == [["ProfilingVerbosity.DETAILED"]]
    assert ["BuilderFlag.WEIGHT_STREAMING"] in called(seen, "streaming", "IBuilderConfig.set_flag")


def test_kernel_timings_are_kept_for_this_gpu_and_version(seen):
    assert seen["builds"]["timings"] == [f"unknown-tensorrt-{seen['version']}.bin"]
    first, later = (called(seen, b, "IBuilderConfig.create_timing_cache") for b in ("trt", "options"))
    assert first[0] == ["b''"]
    assert later[0] == ["b'built'"]
    assert called(seen, "streaming", "IBuilderConfig.create_timing_cache") == [["b''"]]  # timing_cache: false


def test_the_plan_is_asked_what_it_is(seen):
    built = seen["builds"]["options"]["built"]
    first = {name: value for name, value in built["inputs"][0].items() if value is not None}
    assert first == {"name": "x", "dtype": "float32", "dims": ["batch", 3]}
    assert built["versions"]["tensorrt"] == seen["version"]
    facts = built["facts"]
    assert (facts["tensorrt"], facts["products"]) == (seen["version"], {"fp16": 1})
    assert (facts["version_compatible"], facts["hardware_compatibility"]) == (True, "ampere_plus")
    assert {"compute_capability", "driver", "gpu"} <= facts.keys()
    assert seen["builds"]["trt"]["built"]["facts"]["products"] == {"tf32": 1}


def test_a_stripped_plan_travels_with_its_weights(seen):
    assert seen["builds"]["stripped"]["files"] == ["model.plan", "weights/model.onnx"]
    assert len(called(seen, "stripped", "OnnxParserRefitter.refit_from_file")) == 1
    assert called(seen, "stripped", "Refitter.refit_cuda_engine") == [[]]


def test_the_build_tells_how_far_it_is_and_stops_on_ctrl_c(seen):
    assert seen["progress"]["said"] == ["building engine", "tactics", "building engine 1/2"]
    assert seen["progress"]["stopped"][0] == "KeyboardInterrupt"


@pytest.mark.parametrize(
    ("what", "kind", "said", "fix"),
    [
        ("operator", "StageError", "Gridlock /neck/Gridlock_3: no importer", "replace Gridlock"),
        ("unreadable", "StageError", "cannot read model.onnx", ""),
        ("memory", "StageError", "memory ran out", "workspace_mib"),
        ("no engine", "StageError", "no implementation for node /fc/MatMul", ""),
        ("driver", "UnavailableError", "driver is too old", "update the driver"),
        ("no cuda", "UnavailableError", "CUDA does not start", "nvidia-smi"),
        ("elsewhere", "StageError", "built elsewhere", "build it again"),
        ("fp32 products", "StageError", "no matrix product of the plan runs in fp16", "typing.json"),
        ("tf32 products", "StageError", "round their inputs to TF32: /fc/MatMul", "target trt"),
        ("one stray", "StageError", "run in FP32 (/kept/MatMul)", "typing.json"),
        ("profile", "StageError", "the plan serves the shapes", ""),
        ("dtype", "StageError", "has type BF16", ""),
        ("half input", "StageError", "is float16, and clients were promised float32", ""),
        ("name", "StageError", "has the outputs ['z'], expected ['y']", ""),
        ("two profiles", "StageError", "2 optimization profiles", ""),
        ("shape tensor", "StageError", "is a shape, not data", ""),
        ("real builder", "StageError", "builder cannot be made", ""),
    ],
)
def test_what_goes_wrong_is_said_with_its_fix(seen, what, kind, said, fix):
    found = seen["failures"][what]
    assert found[0] == kind, found
    assert said in found[1]
    assert fix in found[2]


def test_a_product_that_typing_kept_in_fp32_is_no_failure(seen):
    assert seen["failures"]["one kept"][0] == "nothing"


def test_the_session_gives_the_plans_answers_through_its_own_memory(seen):
    found = seen["sessions"]
    assert found["right"] == [True] * 4
    assert found["after"]
    assert found["streams"] == [77]
    assert found["shapes set"] == 3  # four requests of three shapes
    assert found["copied"] == [256, 256]  # one copy each way
    assert found["precision"] == "fp16"
    assert found["split"][2]
    assert found["graph"] == {"values": [3.0, 3.0, 5.0, 5.0, 3.0], "captured": 3}
    assert found["budget"] == [[0]]
    assert found["host code"] == [[True], [True]]  # once read back, once opened


@pytest.mark.parametrize(
    ("what", "kind", "said"),
    [
        ("outside", "SampleError", "built for (1, 3) to (4, 3)"),
        ("closed", "StageError", "closed"),
        ("run", "StageError", "memory ran out"),
        ("unbounded", "StageError", "depends on the data"),
        ("no context", "StageError", "memory ran out"),
    ],
)
def test_a_request_that_cannot_be_served_says_why(seen, what, kind, said):
    found = seen["sessions"][what]
    assert found[0] == kind, found
    assert said in found[1]


def test_accel_inspect_reads_a_plan_and_lets_no_code_of_it_run(seen):
    found = seen["inspected"]["found"]
    assert (found["kind"], found["tensorrt"]) == ("plan", seen["version"])
    assert found["inputs"] == [{"name": "x", "dtype": "float32", "dims": ["?", 3], "range": None}]
    assert found["profile"] == {"x": {"min": [1, 3], "opt": [2, 3], "max": [4, 3], "multiple": []}}
    assert found["precision"] == {"products": {"fp16": 1}}
    assert seen["inspected"]["host code"] == []


@pytest.mark.parametrize(
    ("plant", "said"),
    [
        ("arity", ", 7) fits none"),
        ("type", "Builder.create_network('STRONGLY_TYPED',) fits none"),
        ("keyword", "{'flag': "),
        ("property", "IBuilderConfig.%s that can be set"),
        ("reading a property", "has no IBuilderConfig.%s"),
        ("flag", "BuilderFlag"),
        ("call", "has no INetworkDefinition.add_gelu"),
        ("constant property", "INetworkDefinition.num_inputs that can be set"),
        ("value", "builder_optimization_level = 'high' fits none"),
        ("parser", "OnnxParser.parse_from_file(PosixPath"),
    ],
)
def test_planted_mistakes_are_seen(seen, plant, said):
    removed = "max_workspace_size" if seen["version"].startswith("10.") else "int8_calibrator"
    kind, message, _ = seen["planted"][plant]
    assert kind in ("Violation", "AttributeError"), (kind, message)
    assert (said % removed if "%s" in said else said) in message


def test_without_a_plant_the_same_build_passes(seen):
    assert seen["planted"]["nothing"][0] == "nothing"


def test_the_device_asks_of_torch_what_the_installed_torch_has(seen):
    assert seen["torch_calls"] == []


# ---------------------------------------------------------------------------------------------------------------------
# Parts that need no TensorRT


@pytest.fixture
def no_tensorrt():
    """What a test imports as TensorRT is gone after it."""
    yield
    for name in ("tensorrt", "tensorrt_bindings"):
        sys.modules.pop(name, None)


def test_a_missing_or_unknown_tensorrt_is_named(tmp_path, monkeypatch, no_tensorrt):
    def found(text: str | None) -> UnavailableError:
        for name in ("tensorrt", "tensorrt_bindings"):
            monkeypatch.delitem(sys.modules, name, raising=False)
        if text is not None:
            (tmp_path / "tensorrt.py").write_text(text)
            monkeypatch.syspath_prepend(tmp_path)
        with pytest.raises(UnavailableError) as error:
            library.import_tensorrt()
        return error.value

    assert "No module named" in found(None).message
    assert "libnvinfer.so.10" in found("raise ImportError('libnvinfer.so.10: cannot open shared object')").message
    monkeypatch.delitem(sys.modules, "tensorrt", raising=False)
    (tmp_path / "later").mkdir()
    (tmp_path / "later" / "tensorrt.py").write_text("__version__ = '12.0.1'")
    monkeypatch.syspath_prepend(tmp_path / "later")
    with pytest.raises(UnavailableError, match=r"12\.0\.1 is of a major version"):
        library.import_tensorrt()


def test_what_is_missing_on_a_gpu_machine_is_named_before_anything_runs(tmp_path, monkeypatch):
    """What ``nvidia-smi`` prints and which packages are installed decide: here each of them in turn."""

    def reason(driver: str, package: str = "", version: str = "") -> str:
        site = tmp_path / f"{driver}{package}{version}"
        tool = site / "bin" / "nvidia-smi"
        tool.parent.mkdir(parents=True)
        tool.write_text(f"#!/bin/sh\necho 'GPU-1, NVIDIA H200, 143771, {driver}, 9.0'\n")
        tool.chmod(0o755)
        if package:
            about = site / f"{package.replace('-', '_')}-{version}.dist-info"
            about.mkdir()
            (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: {version}\n")
            (site / "tensorrt.py").write_text("")
        with monkeypatch.context() as changed:
            changed.setenv("PATH", f"{tool.parent}:{os.environ['PATH']}")
            changed.delenv("CUDA_VISIBLE_DEVICES", raising=False)
            changed.syspath_prepend(str(site))
            importlib.invalidate_caches()
            skipped = BUILDER.available(Target("trt-fp16", "cuda"))
        assert skipped is not None
        assert skipped.fix
        return skipped.reason

    assert "tensorrt is not installed" in reason("580.95.05")
    assert "TensorRT 12.0.1 is of a major version" in reason("580.95.05", "tensorrt", "12.0.1")
    assert "tensorrt-cu13" in reason("535.54.03", "tensorrt-cu13", "10.16.1.11")  # a driver of CUDA 12
    assert "built without CUDA" in reason("580.95.05", "tensorrt-cu13", "10.16.1.11")  # what the tests' torch is


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"optimization_level": 6}, "expected 0 to 5"),
        ({"workspace_mib": 0}, "expected 1 or more"),
        ({"hardware_compatibility": "ampere"}, "did you mean ampere_plus?"),
        ({"weights": "light"}, "'light'"),
        ({"margin": 0.5}, "margin"),
        ({"weights": "stripped", "weight_streaming": True}, "exclude each other"),
    ],
)
def test_options_are_checked_before_the_build(given, said):
    with pytest.raises(UsageError, match=said.replace("?", r"\?")):
        TensorRtOptions(**given)


def layer(**entry: Any) -> Layer:
    return read_layers(json.dumps({"Layers": [entry]}), {"/fc/MatMul"})[0]


@pytest.mark.parametrize(
    ("entry", "precision", "product"),
    [  # shapes of published outputs: NVIDIA/TensorRT issues 4020 and 4397, TensorRT documentation "Engine Inspector"
        ({"LayerType": "gemm", "TacticName": "sm80_xmma_gemm_f16f16_f16f16_f16_nn_n"}, "fp16", True),
        ({"LayerType": "gemm", "TacticName": "sm80_xmma_gemm_bf16bf16_bf16f32_f32_nn"}, "bf16", True),
        (
            {"LayerType": "CaskConvolution", "TacticName": "sm80_xmma_fprop_implicit_gemm_i8i8_i8i32_f32_n"},
            "int8",
            True,
        ),
        ({"LayerType": "gemm", "TacticName": "sm80_xmma_gemm_i8f32_i8i32_f32_tn"}, "int8", True),
        ({"LayerType": "gemm", "TacticName": "sm80_xmma_gemm_f32f32_tf32f32_f32_tn"}, "tf32", True),
        ({"LayerType": "gemm", "TacticName": "sm89_xmma_gemm_e4m3bf16_e4m3f32_f32_tn"}, "fp8", True),
        ({"LayerType": "gemm", "Inputs": [{"Format/Datatype": "Half"}]}, "fp16", True),
        ({"LayerType": "CaskGemm", "Inputs": [{"Format/Datatype": "Row major linear FP16 format"}]}, "fp16", True),
        (
            {
                "LayerType": "Convolution",
                "Inputs": [{"Format/Datatype": "Thirty-two wide channel vectorized row major Int8 format."}],
            },
            "int8",
            True,
        ),
        ({"LayerType": "Reformat", "Inputs": [{"Format/Datatype": "Row major linear FP32"}]}, "fp32", False),
        (
            {
                "LayerType": "kgen",
                "Inputs": [{"Format/Datatype": "BFloat16"}],
                "Metadata": "[ONNX Layer: /add]\x1e[ONNX Layer: /fc/MatMul]",
            },
            "bf16",
            True,
        ),
        ({"LayerType": "gemm"}, "none", True),
    ],
)
def test_a_layer_is_read_as_the_inspector_writes_it(entry, precision, product):
    found = layer(Name="x", **entry)
    assert (found.precision, found.product) == (precision, product)


def test_an_inspector_without_details_proves_nothing():
    layers = read_layers(json.dumps({"Layers": ["Conv_1 + Relu_2", "pool"]}))
    facts = PlanFacts((), (), {}, layers, 0)
    assert facts.precision == "none"
    assert check_precision(facts, "fp16", ()) == ("Conv_1 + Relu_2",)
    with pytest.raises(StageError, match="no list of layers"):
        read_layers("engine is not built with enough detail")


def test_a_plan_fits_one_version_and_one_gpu():
    built = {"tensorrt": "10.16.1.11", "compute_capability": "9.0", "gpu": "an H200"}
    assert fit.version_mismatch(built, "10.16.1.11") is None
    assert fit.version_mismatch(built, "10") is None  # as far as it is known
    assert "10.16.1.11" in str(fit.version_mismatch(built, "11"))
    assert fit.version_mismatch(built, "10.17.0.1") is not None
    assert fit.version_mismatch(built | {"version_compatible": True}, "10.17.0.1") is None
    assert fit.version_mismatch(built | {"version_compatible": True}, "11") is None
    assert fit.version_mismatch(built | {"version_compatible": True}, "10.15.0.1") is not None
    assert fit.gpu_mismatch(built, "9.0") is None
    assert "compute capability 8.6" in str(fit.gpu_mismatch(built, "8.6"))
    assert fit.gpu_mismatch(built | {"hardware_compatibility": "ampere_plus"}, "8.6") is None
    assert fit.gpu_mismatch(built | {"hardware_compatibility": "ampere_plus"}, "7.5") is not None
