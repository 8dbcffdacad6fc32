"""What each release and backend rejects, ignores or overwrites, as tables; every row with its source.

Read at these commits, the newest known on 2026-11-21: core 73aad7c, common 83adf7c, server e1db8a6, backend 3f57fb9,
onnxruntime_backend 00fd3e8, openvino_backend db19304, pytorch_backend 266fd38, tensorrt_backend e2ef6d7 and
tensorflow_backend c13c2d1; ``since`` from their branches ``r24.10`` … ``r26.08``, as far as these exist. A source names
the file and the function. What is only inferred says so.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

_ORT = "onnxruntime_backend src/onnxruntime.cc"
_OPENVINO = "openvino_backend src/openvino.cc"
_TORCH = "pytorch_backend src/pt/model_state.cc, ModelState::ParseParameters"
_AOTI = "pytorch_backend src/pt2/model_state.cc, ModelState::ParseParameters"
_AOTI_NEVER = "the backend reads its parameters only where the config has none, so that none has an effect"
_TRT = "tensorrt_backend src/model_state.cc, ModelState::ParseParameters"
_TF = "tensorflow_backend src/tensorflow.cc"
_ORT_CUDA = "onnxruntime core/providers/cuda/cuda_execution_provider_info.cc, FromProviderOptions"

Kind = Literal["text", "int", "threads", "uint", "digits", "bool", "ort bool", "yes", "arenas"]
"""How a value is read.

``int`` and ``uint`` as std::stoi and std::stoull do (text behind the number is ignored); ``digits``: an int of nothing
but digits (openvino_backend src/openvino_utils.h, IsNumber); ``bool`` as ParseBoolValue does (backend
src/backend_common.cc); ``ort bool`` passes that and then ONNX Runtime's own parser, which knows neither on nor off
(core/common/parse_string.h); ``yes`` is on for YES in any case and off, without a word, for all else; ``arenas`` is
``cpu:0;gpu:0``; ``threads`` is an int that PyTorch refuses below 1 (torch.set_num_threads).
"""


@dataclass(frozen=True, slots=True)
class Key:
    """One key of ``parameters`` or of an accelerator.

    Attributes:
        values: the only values accepted; empty for any of its kind. A backend that ignores case has them in lower case.
        words: values accepted beside those of its kind.
        since: first release whose backend reads it.
        ignored: why the key has no effect there although it is accepted; empty where it has one.
    """

    kind: Kind = "text"
    values: tuple[str, ...] = ()
    source: str = ""
    since: str = "24.10"
    ignored: str = ""
    words: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Accelerator:
    """One execution accelerator a backend knows.

    Attributes:
        unknown: what an unknown key leads to: ``rejected`` fails the load.
    """

    source: str
    keys: Mapping[str, Key] = field(default_factory=dict)
    unknown: Literal["rejected", "ignored"] = "rejected"


def _keys(kind: Kind, names: str, source: str, *, since: str = "24.10", ignored: str = "") -> dict[str, Key]:
    return {name: Key(kind, source=source, since=since, ignored=ignored) for name in names.split()}


OPENVINO_PARAMETERS: Mapping[str, str] = {
    "INFERENCE_NUM_THREADS": "a number",
    "COMPILATION_NUM_THREADS": "a number",
    "NUM_STREAMS": "AUTO, NUMA or a number",
    "PERFORMANCE_HINT": "LATENCY, THROUGHPUT or CUMULATIVE_THROUGHPUT",
    "HINT_BF16": "YES: sets INFERENCE_PRECISION_HINT to bf16; any other value fails the load",
    "TARGET_DEVICE": "OpenVINO's device string, in upper case; CPU where absent",
    "CPU_EXTENSION_PATH": "shared library with kernels",
    "SKIP_OV_DYNAMIC_BATCHSIZE": "YES",
    "ENABLE_BATCH_PADDING": "YES",
    "RESHAPE_IO_LAYERS": "YES",
}
"""Keys the openvino backend reads; any other is ignored without a word.

So bf16 can be forced, and f32 cannot: neither INFERENCE_PRECISION_HINT nor EXECUTION_MODE_HINT is read, and
``runtime_options`` stored in an IR do not change the CPU plugin's precision either (tried with OpenVINO 2026.4). On a
CPU with bf16 an ``openvino-fp32`` artifact served by this backend would run in bf16; the Python backend serves it.
The backend does convert between the config's and the model's element types.

Source: triton-inference-server/openvino_backend, src/openvino.cc: ParseParameters, ParseParameterHelper,
ValidateInputs, ValidateOutputs (read at commit db19304).
"""


# --- backends --------------------------------------------------------------------------------------------------------

EXTRA_BACKENDS = frozenset({"identity", "repeat", "square", "dali", "fil"})
"""Backends of the ``py3`` image beside those of ``releases.BACKENDS``. Source: server build.py, ``enable_all``."""

OTHER_IMAGES: Mapping[str, str] = {"vllm": "vllm-python-py3", "tensorrtllm": "trtllm-python-py3"}
"""Backends that only another image of the release carries. Source: server docs/introduction/compatibility.md."""

PLATFORMS: Mapping[str, str] = {
    "tensorflow_graphdef": "tensorflow",
    "tensorflow_savedmodel": "tensorflow",
    "tensorrt_plan": "tensorrt",
    "onnxruntime_onnx": "onnxruntime",
    "pytorch_libtorch": "pytorch",
    "torch_aoti": "pytorch",
}
"""Platform → backend; a backend named here refuses every other platform.

``libtorch`` is taken for pytorch at first and refused as a pair then.
Source: core src/model_config_utils.cc, GetBackendTypeFromPlatform and ValidateModelConfig.
"""

FILENAMES: Mapping[str, str] = {
    "tensorflow_graphdef": "model.graphdef",
    "tensorflow_savedmodel": "model.savedmodel",
    "tensorrt_plan": "model.plan",
    "onnxruntime_onnx": "model.onnx",
    "openvino": "model.xml",
    "pytorch_libtorch": "model.pt",
    "torch_aoti": "model.pt2",
    "python": "model.py",
}
"""Platform, or backend without one → file that is loaded unless ``default_model_filename`` says otherwise.

In the order in which the server looks for them where the config names neither.

Source: core src/constants.h and src/model_config_utils.cc, AutoCompleteBackendFields.
"""

AUTO_COMPLETE = frozenset({"onnxruntime", "openvino", "tensorrt", "tensorflow", "python"})
"""Backends that can fill in missing inputs and outputs, unless the server runs with --disable-auto-complete-config.

Source: ``AutoCompleteConfig`` of each backend; in pytorch_backend's src/pt and src/pt2 it does nothing.
"""

NO_OPTIONAL_INPUTS = frozenset({"openvino", "pytorch", "tensorflow", "tensorrt"})
"""Backends that refuse ``optional`` inputs. Source: backend src/backend_model.cc, ParseModelConfig (allow_optional)."""

KINDS: Mapping[str, tuple[str, str]] = {
    "openvino": ("KIND_CPU", f"{_OPENVINO}, ModelInstanceState::ModelInstanceState"),
    "tensorrt": ("KIND_GPU", "tensorrt_backend src/instance_state.cc, ModelInstanceState::ModelInstanceState"),
}
"""Backend → the one kind of instance group it loads, and the source."""

UNSUPPORTED_TYPES: Mapping[str, tuple[frozenset[str], str]] = {
    "openvino": (
        frozenset({"TYPE_STRING", "TYPE_BF16", "TYPE_FP64"}),
        "openvino_backend src/openvino_utils.cc, ModelConfigDataTypeToOpenVINOElement",
    ),
    "pytorch": (
        frozenset({"TYPE_UINT16", "TYPE_UINT32", "TYPE_UINT64", "TYPE_BF16"}),
        "pytorch_backend src/libtorch_utils.cc, ModelConfigDataTypeToTorchType",
    ),
    "tensorrt": (
        frozenset({"TYPE_UINT16", "TYPE_UINT32", "TYPE_UINT64", "TYPE_INT16", "TYPE_FP64", "TYPE_STRING"}),
        "tensorrt_backend src/tensorrt_utils.cc, ConvertDataTypeToTrtType",
    ),
}
"""Backend → data types of inputs and outputs that fail the load, and the source."""

ORT_BF16_SINCE = "26.03"
"""First release whose onnxruntime backend takes TYPE_BF16. Source: onnxruntime_backend #335; r26.02 against r26.03."""

COUNTED_SINCE = "26.03"
"""First release that refuses dims with more elements than an int64 counts. Source: core #475, GetElementCount."""
INPUT_COUNTED = frozenset({"onnxruntime", "openvino", "pytorch", "tensorflow", "tensorrt"})
"""Backends that compare the number of inputs with the model's. Source: ValidateInputs of each."""

FIELDS_SINCE: Mapping[str, str] = {"model_metrics": "24.11", "ensemble_scheduling.max_inflight_requests": "25.11"}
"""Config field → first release that can parse it. Source: common protobuf/model_config.proto, r24.10 … r26.07."""

OPTIMIZATION_READERS: Mapping[str, frozenset[str]] = {
    "graph": frozenset({"onnxruntime", "tensorflow"}),
    "priority": frozenset({"tensorrt"}),
    "cuda": frozenset({"tensorrt"}),
    "gather_kernel_buffer_threshold": frozenset({"tensorrt"}),
    "eager_batching": frozenset({"tensorrt"}),
    "execution_accelerators": frozenset({"onnxruntime", "tensorflow"}),
}
"""Field of ``optimization`` → backends that read it; the others ignore it.

Source: onnxruntime_backend src/onnxruntime.cc, ModelState; tensorflow_backend src/tensorflow.cc, CreateModel;
tensorrt_backend src/tensorrt_model.cc, ParseModelConfig. Pinned memory is read by all (backend src/backend_model.cc).
"""

SERVER_FLAGS: Mapping[str, tuple[tuple[str, ...], str]] = {
    "response_cache": (
        ("--cache-config", "--response-cache-byte-size"),
        "core src/dynamic_batch_scheduler.cc: the cache is used where the server has one",
    ),
    "rate_limiter": (("--rate-limit",), "server docs/user_guide/rate_limiter.md, 'Using Rate Limiter'"),
    "host_policy": (("--host-policy",), "server docs/user_guide/optimization.md, 'NUMA Optimization'"),
}
"""Setting → server flags without which it has no effect, and the source."""

ENSEMBLE_REFUSES: Mapping[str, str] = {
    "instance_group": "each step has its own",
    "optimization": "it belongs to the steps",
    "model_warmup": "warm the steps up",
}
"""Fields an ensemble may not have. Source: core src/model_config_utils.cc, ValidateEnsembleSchedulingConfig."""

# --- parameters ------------------------------------------------------------------------------------------------------

_CUDA_LATER = (
    "cudnn_conv_algo_search",
    "gpu_mem_limit",
    "arena_extend_strategy",
    "do_copy_in_default_stream",
)
"""Set from the top-level ``parameters`` after the ``cuda`` accelerator was read, by their defaults where absent there.

Source: onnxruntime_backend src/onnxruntime.cc, ModelState::LoadModel.
"""

_OPENVINO_VALUES: Mapping[str, Key] = {
    "INFERENCE_NUM_THREADS": Key("digits"),
    "COMPILATION_NUM_THREADS": Key("digits"),
    "NUM_STREAMS": Key("digits", words=("auto", "numa")),
    "PERFORMANCE_HINT": Key(values=("latency", "throughput", "cumulative_throughput")),
    "HINT_BF16": Key(values=("yes",)),
    "SKIP_OV_DYNAMIC_BATCHSIZE": Key("yes"),
    "ENABLE_BATCH_PADDING": Key("yes"),
    "RESHAPE_IO_LAYERS": Key("yes"),
    "TARGET_DEVICE": Key(since="25.10"),
}
_OPENVINO_SOURCE = f"{_OPENVINO}, ModelState::ParseParameters and ParseParameterHelper"

PARAMETERS: Mapping[str, Mapping[str, Key]] = {
    "onnxruntime": {
        "execution_mode": Key("int", ("0", "1"), f"{_ORT}, ModelState::ModelState"),
        **_keys("int", "intra_op_thread_count inter_op_thread_count", f"{_ORT}, ModelState::ModelState"),
        **_keys("bool", "enable_mem_arena enable_mem_pattern", f"{_ORT}, ModelState::ModelState"),
        "session.use_device_allocator_for_initializers": Key(
            values=("0", "1"), source=f"{_ORT}, ModelState::ModelState", since="25.02"
        ),
        "memory.enable_memory_arena_shrinkage": Key(
            "arenas",
            source=f"{_ORT}, ModelInstanceState::ModelInstanceState; onnxruntime core/session/"
            "inference_session.cc, ValidateAndParseShrinkArenaString",
        ),
        "cudnn_conv_algo_search": Key("int", ("0", "1", "2"), f"{_ORT}, ModelState::LoadModel"),
        "arena_extend_strategy": Key("int", ("0", "1"), f"{_ORT}, ModelState::LoadModel"),
        "gpu_mem_limit": Key("uint", source=f"{_ORT}, ModelState::LoadModel"),
        "do_copy_in_default_stream": Key("ort bool", source=f"{_ORT}, ModelState::LoadModel"),
    },
    "openvino": {
        name: replace(row, source=_OPENVINO_SOURCE)
        for name, row in {**dict.fromkeys(OPENVINO_PARAMETERS, Key()), **_OPENVINO_VALUES}.items()
    },
    "pytorch_libtorch": {
        **_keys(
            "bool",
            "DISABLE_OPTIMIZED_EXECUTION ENABLE_CACHE_CLEANING INFERENCE_MODE DISABLE_CUDNN ENABLE_TENSOR_FUSER "
            "ENABLE_WEIGHT_SHARING ENABLE_JIT_PROFILING ENABLE_JIT_EXECUTOR",
            _TORCH,
        ),
        **_keys("int", "INTRA_OP_THREAD_COUNT INTER_OP_THREAD_COUNT", _TORCH),
        **_keys("threads", "NUM_THREADS NUM_INTEROP_THREADS", "pytorch_backend src/model.py, TritonPythonModel"),
        "TORCH_COMPILE_OPTIONAL_PARAMETERS": Key(source="pytorch_backend src/model.py, TritonPythonModel"),
    },
    "torch_aoti": {
        **_keys(
            "bool",
            "DISABLE_OPTIMIZED_EXECUTION CACHE_CLEANING_ENABLED INFERENCE_MODE DISABLE_CUDNN ENABLE_WEIGHT_SHARING",
            _AOTI,
            ignored=_AOTI_NEVER,
        ),
        **_keys("int", "INTRA_OP_THREAD_COUNT INTER_OP_THREAD_COUNT", _AOTI, ignored=_AOTI_NEVER),
    },
    "tensorrt": {
        "execution_context_allocation_strategy": Key(values=("STATIC", "ON_PROFILE_CHANGE"), source=_TRT),
        **_keys(
            "text",
            "enable_multi_device multi_device_gpus multi_device_per_rank_engines",
            "tensorrt_backend src/model_state.cc, ModelState::ParseMultiDeviceParameters (#121)",
            since="26.06",
        ),
    },
    "tensorflow": {
        **_keys("int", "TF_NUM_INTRA_THREADS TF_NUM_INTER_THREADS MAX_SESSION_SHARE_COUNT", f"{_TF}, ParseParameters"),
        **_keys("bool", "TF_USE_PER_SESSION_THREADS", f"{_TF}, ParseParameters"),
        **_keys("text", "TF_GRAPH_TAG TF_SIGNATURE_DEF TF_INIT_OPS_FILE", f"{_TF}, ParseParameters"),
    },
}
"""Platform, or backend where that has none → keys of ``parameters`` it reads; it ignores others without a word.

The Python backend hands every parameter to the model, so it has no row.
"""

CORE_PARAMETERS = frozenset({"TRITON_BATCH_STRATEGY_PATH"})
"""Keys the server itself reads, whatever the backend. Source: core src/backend_model.cc, TritonModel::Create."""

# --- accelerators ----------------------------------------------------------------------------------------------------

TENSORRT_11 = (
    "TensorRT 11 builds strongly typed networks only: the model's own types decide, and this key selects nothing"
)
"""Source: TensorRT 11 migration guide, 'Strongly Typed Networks'; that the key still parses there is inferred from
onnxruntime_backend src/onnxruntime.cc, which reads it alike in every release."""
TENSORRT_11_SINCE = "26.06"
"""First release on TensorRT 11. Source: ``releases.py``, rows 26.06 and 26.07; no later release went back."""
TENSORRT_10_ONLY = ("precision_mode", "int8_calibration_table_name", "int8_use_native_calibration_table")

PRECISION_MODES: Mapping[str, str] = {"FP32": "24.10", "FP16": "24.10", "INT8": "24.10", "BF16": "26.02"}
"""Value of the onnxruntime backend's ``precision_mode`` → first release. Source: onnxruntime_backend #328."""

_ORT_TRT = f"{_ORT}, ModelState::LoadModel (TensorRT accelerator)"
_ORT_TRT_KEYS: Mapping[str, Key] = {
    "precision_mode": Key(values=tuple(PRECISION_MODES), source=_ORT_TRT),
    "max_workspace_size_bytes": Key("uint", source=_ORT_TRT),
    **_keys(
        "int",
        "trt_max_partition_iterations trt_min_subgraph_size trt_dla_core trt_builder_optimization_level "
        "trt_auxiliary_streams trt_ep_context_embed_mode",
        _ORT_TRT,
    ),
    **_keys(
        "ort bool",
        "int8_use_native_calibration_table trt_dla_enable trt_engine_cache_enable trt_dump_subgraphs "
        "trt_force_sequential_engine_build trt_context_memory_sharing_enable trt_layer_norm_fp32_fallback "
        "trt_timing_cache_enable trt_force_timing_cache trt_detailed_build_log trt_build_heuristics_enable "
        "trt_sparsity_enable trt_cuda_graph_enable trt_dump_ep_context_model",
        _ORT_TRT,
    ),
    **_keys(
        "text",
        "int8_calibration_table_name trt_engine_cache_path trt_engine_cache_prefix trt_timing_cache_path "
        "trt_tactic_sources trt_extra_plugin_lib_paths trt_profile_min_shapes trt_profile_max_shapes "
        "trt_profile_opt_shapes trt_ep_context_file_path",
        _ORT_TRT,
    ),
}
_TO_TOP = "the backend overwrites it with its default: set it in the top-level parameters"
_BY_BACKEND = "the backend sets it for each instance"
_ORT_CUDA_KEYS: Mapping[str, Key] = {
    **_keys(
        "text",
        "cudnn_conv_use_max_workspace enable_cuda_graph cudnn_conv1d_pad_to_nc1d enable_skip_layer_norm_strict_mode "
        "prefer_nhwc use_tf32 fuse_conv_bias sdpa_kernel tunable_op_enable tunable_op_tuning_enable "
        "tunable_op_max_tuning_duration_ms gpu_external_alloc gpu_external_free gpu_external_empty_cache "
        "user_compute_stream",
        _ORT_CUDA,
    ),
    **_keys("ort bool", "use_ep_level_unified_stream", f"{_ORT}, ModelState::LoadModel"),
    **{name: Key(source=f"{_ORT}, ModelState::LoadModel", ignored=_TO_TOP) for name in _CUDA_LATER},
    **_keys("text", "device_id has_user_compute_stream", f"{_ORT}, ModelState::LoadModel", ignored=_BY_BACKEND),
}
_TFTRT = f"{_TF}, ModelState::CreateModel"

ACCELERATORS: Mapping[tuple[str, str], Mapping[str, Accelerator]] = {
    ("onnxruntime", "gpu"): {
        "tensorrt": Accelerator(_ORT_TRT, _ORT_TRT_KEYS),
        "cuda": Accelerator(f"{_ORT}, ModelState::LoadModel; {_ORT_CUDA}", _ORT_CUDA_KEYS),
    },
    ("onnxruntime", "cpu"): {"openvino": Accelerator(f"{_ORT}, ModelState::LoadModel", unknown="ignored")},
    ("tensorflow", "gpu"): {
        "tensorrt": Accelerator(
            _TFTRT,
            {
                "precision_mode": Key(values=("FP32", "FP16"), source=_TFTRT),
                **_keys("int", "minimum_segment_size max_workspace_size_bytes max_cached_engines", _TFTRT),
            },
        ),
        "auto_mixed_precision": Accelerator(_TFTRT, unknown="ignored"),
        "gpu_io": Accelerator(_TFTRT, unknown="ignored"),
    },
    ("tensorflow", "cpu"): {},
}
"""(Backend, ``gpu`` or ``cpu``) → accelerators it knows; any other name fails the load."""
