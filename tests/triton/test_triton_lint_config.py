"""Rules on the config by itself, its parameters and its accelerators: what breaks one gives exactly that finding."""

import pytest
from lint_repositories import (
    CONFIG,
    FRONT,
    MODEL_PY,
    Case,
    add,
    onnx_model,
    openvino_model,
    parameter,
    put,
    swap,
    tensor,
)

CACHE = "response_cache { enable: true }"
CACHE_SH = {"launch.sh": "tritonserver --cache-config=local,size=1"}
GPU = "instance_group { kind: KIND_GPU }"
STATE = 'sequence_batching { state { input_name: "h" output_name: "hn" data_type: TYPE_FP32 dims: 4 %s } }'
WARM = "data_type: TYPE_FP32 dims: 3 zero_data: true"
INITIAL = 'initial_state { name: "zeros" data_type: TYPE_FP32 dims: 4 zero_data: true }'
SEQUENCE = 'sequence_batching { control_input { name: "s" control { %s } } }'
PAIR = "fp32_false_true: [ 0, 1 ]"
FIXED = swap("[ -1, 3 ]", "[ 3 ]", "max_batch_size: 4")
ACCELERATORS = "optimization.execution_accelerators"
TRT, CUDA = f"{ACCELERATORS}.tensorrt", f"{ACCELERATORS}.cuda"


def batching(text: str) -> str:
    return f"dynamic_batching {{ {text} }}"


def batch_input(source: str, kind: str = "FP32") -> str:
    return f'batch_input {{ target_name: "n" data_type: TYPE_{kind} {source} }}'


def batch_output(target: str) -> str:
    return f'batch_output {{ {target} source_input: "x" }}'


def metrics(text: str) -> str:
    return f'model_metrics {{ metric_control {{ metric_identifier {{ family: "f" }} {text} }} }}'


def accelerator(name: str, *keys: tuple[str, str], place: str = "gpu") -> str:
    inside = " ".join(f'parameters {{ key: "{k}" value: "{v}" }}' for k, v in keys)
    return (
        f'optimization {{ execution_accelerators {{ {place}_execution_accelerator {{ name: "{name}" {inside} }} }} }}'
    )


def profiles(**shapes: str) -> str:
    return accelerator("tensorrt", *((f"trt_profile_{p}_shapes", s) for p, s in shapes.items()))


def extra(text: str) -> str:
    return f'input {{ name: "z" data_type: TYPE_FP32 {text} }}'


CORE = [
    Case("name", "onnxruntime", swap('name: "m"', 'name: "n"'), "name"),
    Case("no such field", "onnxruntime", add("max_batch_sise: 4"), "", said="max_batch_sise"),
    Case("binary garbage", "onnxruntime", put({CONFIG: bytes(range(256))}), "", said="UTF-8"),
    Case("two schedulers", "python", add("dynamic_batching { } sequence_batching { }"), ""),
    Case(
        "metrics too early",
        "python",
        add(metrics("histogram_options { buckets: 1 }")),
        "model_metrics",
        release="24.10",
    ),
    Case(
        "in-flight limit too early",
        "ensemble",
        swap("ensemble_scheduling {", "ensemble_scheduling { max_inflight_requests: 2", config=FRONT),
        "ensemble_scheduling.max_inflight_requests",
        file=FRONT,
        release="25.10",
    ),
    Case("backend misspelt", "onnxruntime", swap("onnxruntime", "onnxruntim"), "backend", said="onnxruntime?"),
    Case("platform misspelt", "onnxruntime", swap('backend: "onnxruntime"', 'platform: "onnxruntim"'), "platform"),
    Case("no backend", "python", swap('backend: "python"', "", files={"m/1/model.py": None, "m/1": None}), "backend"),
    Case(
        "platform of another backend",
        "onnxruntime",
        add('platform: "tensorrt_plan"'),
        "platform",
        add('platform: "onnxruntime_onnx"'),
    ),
    Case("libtorch platform", "libtorch", swap("pytorch_libtorch", "libtorch"), "platform"),
    Case("tensorflow is gone", "tensorflow", add(), "backend", None, release="25.03", said="25.02"),
    Case("torch_aoti too early", "torch_aoti", add(), "platform", None, release="26.04"),
    Case("runtime escapes", "python", add('runtime: "../lib.so"'), "runtime", add('runtime: "model.py"')),
    Case("negative batch", "python", swap("max_batch_size: 4", "max_batch_size: -1"), "max_batch_size"),
    Case("dim 0", "python", tensor("x", "[ 3 ]", "[ 0 ]"), "input.x.dims"),
    Case("dim -2", "python", tensor("x", "[ 3 ]", "[ -2 ]"), "input.x.dims"),
    Case("huge dims", "python", tensor("x", "[ 3 ]", "[ 9223372036854775807, 2 ]"), "input.x.dims"),
    Case(
        "huge dims of an old release",
        "python",
        tensor("x", "[ 3 ]", "[ 9223372036854775807, 2 ]"),
        "input.x.dims",
        release="26.02",
        severity="warning",
    ),
    Case(
        "no dims",
        "python",
        tensor("x", "dims: [ 3 ]", ""),
        "input.x.dims",
        tensor("x", "[ 3 ]", "[ 1 ] reshape { }"),
    ),
    Case("no type", "python", tensor("x", "data_type: TYPE_FP32", ""), "input.x.data_type"),
    Case("no tensor name", "python", tensor("x", 'name: "x"', ""), "input[0].name"),
    Case("one input twice", "onnxruntime", add('input { name: "x" data_type: TYPE_FP32 dims: [ 3 ] }'), "input.x"),
    Case(
        "one output twice",
        "python",
        add('output { name: "y" data_type: TYPE_FP32 dims: [ 3 ] }'),
        "output.y",
        severity="warning",
    ),
    Case(
        "empty reshape unbatched",
        "python",
        swap("max_batch_size: 4", "", extra("dims: [ 1 ] reshape { }")),
        "input.z.reshape",
        add(extra("dims: [ 1 ] reshape { }")),
    ),
    Case(
        "reshape to other elements",
        "python",
        add(extra("dims: [ -1, 4 ] reshape { shape: [ 4, -1 ] }")),
        "input.z.reshape",
        add(extra("dims: [ -1, 4 ] reshape { shape: [ -1, 2, 2 ] }")),
    ),
    Case("reshape dim 0", "python", add(extra("dims: [ 1 ] reshape { shape: [ 0 ] }")), "input.z.reshape"),
    Case(
        "image format",
        "python",
        add(extra("dims: [ 3 ] format: FORMAT_NCHW")),
        "input.z.format",
        add(extra("dims: [ 3, 2, 2 ] format: FORMAT_NCHW")),
    ),
    Case("shape tensor", "python", tensor("x", " }", " is_shape_tensor: true }"), "input.x.is_shape_tensor"),
    Case(
        "shape tensor of floats", "tensorrt", tensor("x", " }", " is_shape_tensor: true }"), "input.x.is_shape_tensor"
    ),
    Case(
        "linear format",
        "tensorrt",
        tensor("x", " }", " is_non_linear_format_io: true }"),
        "input.x.is_non_linear_format_io",
        tensor("x", "[ 3 ] }", "[ 3, 2, 2 ] is_non_linear_format_io: true }"),
    ),
    Case("optional and batched", "onnxruntime", tensor("x", " }", " optional: true }"), "input.x.optional"),
    Case("optional in openvino", "openvino", tensor("x", " }", " optional: true }"), "input.x.optional"),
    Case("double in openvino", "openvino", tensor("y", "FP32", "FP64"), "output.y.data_type"),
    Case("uint16 in torch", "libtorch", tensor("y", "FP32", "UINT16"), "output.y.data_type"),
    Case(
        "bf16 too early",
        "onnxruntime",
        tensor("y", "FP32", "BF16", files={"m/1/model.onnx": onnx_model(out="BFLOAT16")}),
        "output.y.data_type",
        release="26.02",
    ),
    Case("no outputs", "python", tensor("y", "output {", "#"), "output", severity="warning", said="auto-complete"),
    Case("no outputs in torch", "libtorch", tensor("y", "output {", "#"), "output"),
    Case(
        "openvino batch",
        "openvino",
        FIXED,
        "max_batch_size",
        swap("[ -1, 3 ]", "[ 3 ]", "max_batch_size: 1"),
        severity="warning",
    ),
    Case(
        "openvino padding",
        "openvino",
        swap("[ -1, 3 ]", "[ 3 ]", "max_batch_size: 4", parameter("ENABLE_BATCH_PADDING", "YES")),
        "parameters.ENABLE_BATCH_PADDING",
        severity="warning",
        said="115",
    ),
    Case(
        "openvino auto-complete",
        "openvino",
        put({"m/1/model.xml": openvino_model(layout=True)[0]}),
        "max_batch_size",
        severity="warning",
        said="--disable-auto-complete-config",
    ),
    Case("batch input alone", "tensorrt", add(batch_input("")), "batch_input[0].source_input"),
    Case(
        "batch input of nothing",
        "tensorrt",
        add(batch_input('source_input: "q"')),
        "batch_input[0].source_input",
        add(batch_input('source_input: "x"')),
    ),
    Case("batch input type", "tensorrt", add(batch_input('source_input: "x"', "INT64")), "batch_input[0].data_type"),
    Case(
        "batch output of nothing",
        "tensorrt",
        add(batch_output('target_name: "q"')),
        "batch_output[0].target_name",
        add(batch_output('target_name: "y"')),
    ),
    Case("batch output twice", "tensorrt", add(batch_output('target_name: ["y", "y"]')), "batch_output[0].target_name"),
    Case(
        "preferred above max",
        "python",
        add(batching("preferred_batch_size: [ 2, 8 ]")),
        "dynamic_batching.preferred_batch_size",
        add(batching("preferred_batch_size: [ 2, 4 ]")),
    ),
    Case("preferred 0", "python", add(batching("preferred_batch_size: 0")), "dynamic_batching.preferred_batch_size"),
    Case("batching nothing", "openvino", add(batching("")), "dynamic_batching", severity="warning"),
    Case(
        "default priority 0",
        "python",
        add(batching("priority_levels: 2")),
        "dynamic_batching.default_priority_level",
        add(batching("priority_levels: 2 default_priority_level: 2")),
    ),
    Case(
        "policy of no level",
        "python",
        add(batching("priority_levels: 2 default_priority_level: 1 priority_queue_policy { key: 3 value { } }")),
        "dynamic_batching.priority_queue_policy",
    ),
    Case(
        "level without levels",
        "python",
        add(batching("default_priority_level: 1")),
        "dynamic_batching.priority_levels",
        severity="warning",
    ),
    Case(
        "a queue with a limit",
        "python",
        add(batching("default_queue_policy { max_queue_size: 64 }")),
        "dynamic_batching.default_queue_policy",
        severity="warning",
    ),
    Case(
        "a queue whose requests end",
        "python",
        add(batching("default_queue_policy { default_timeout_microseconds: 9 }")),
        "dynamic_batching.default_queue_policy",
        severity="warning",
    ),
    Case(
        "order and priorities",
        "python",
        add(batching("preserve_ordering: true priority_levels: 2 default_priority_level: 1")),
        "dynamic_batching.preserve_ordering",
        add(batching("preserve_ordering: true priority_levels: 1 default_priority_level: 1")),
    ),
    Case(
        "order and delay",
        "python",
        add(
            batching(
                "preserve_ordering: true priority_levels: 1 default_priority_level: 1 priority_queue_policy "
                "{ key: 1 value { timeout_action: DELAY default_timeout_microseconds: 9 } }"
            )
        ),
        "dynamic_batching.preserve_ordering",
        add(
            batching(
                "preserve_ordering: true priority_levels: 1 default_priority_level: 1 priority_queue_policy "
                "{ key: 1 value { default_timeout_microseconds: 9 } }"
            )
        ),
    ),
    Case(
        "cache and sequences",
        "python",
        add("sequence_batching { }", CACHE, files=CACHE_SH),
        "response_cache",
        add("sequence_batching { }"),
    ),
    Case(
        "cache and decoupled",
        "python",
        add("model_transaction_policy { decoupled: true }", CACHE, files=CACHE_SH),
        "response_cache",
        add("model_transaction_policy { decoupled: true }"),
    ),
    Case(
        "cache without a server's",
        "python",
        add(CACHE),
        "response_cache",
        add(CACHE, files=CACHE_SH),
        severity="warning",
    ),
    Case(
        "limits without a limiter",
        "python",
        add("instance_group { rate_limiter { priority: 2 } }"),
        "instance_group.rate_limiter",
        add("instance_group { rate_limiter { priority: 2 } }", files={"launch.sh": "tritonserver --rate-limit=x"}),
        severity="warning",
    ),
    Case(
        "host policy without a flag",
        "python",
        add('instance_group { host_policy: "n0" }', files={"launch.sh": "tritonserver"}),
        "instance_group.host_policy",
        add('instance_group { host_policy: "n0" }', files={"launch.sh": "tritonserver --host-policy=n0,numa-node=0"}),
        severity="warning",
    ),
    Case(
        "control without a pair", "python", add(SEQUENCE % ""), "sequence_batching.control_input", add(SEQUENCE % PAIR)
    ),
    Case(
        "control with two pairs",
        "python",
        add(SEQUENCE % f"{PAIR} int32_false_true: [ 0, 1 ]"),
        "sequence_batching.control_input",
    ),
    Case(
        "a state for the python backend", "python", add(STATE % INITIAL), "sequence_batching.state", severity="warning"
    ),
    Case(
        "a warm-up of implicit state",
        "onnxruntime",
        add(STATE % INITIAL, f'model_warmup {{ name: "w" batch_size: 1 inputs {{ key: "x" value {{ {WARM} }} }} }}'),
        "model_warmup",
    ),
    Case(
        "an initial state without a name",
        "onnxruntime",
        add(STATE % INITIAL.replace('name: "zeros"', "")),
        "sequence_batching.state.h.initial_state",
        add(STATE % INITIAL),
    ),
    Case(
        "an initial state of another size",
        "onnxruntime",
        add(STATE % INITIAL.replace("dims: 4", "dims: 5")),
        "sequence_batching.state.h.initial_state",
    ),
    Case(
        "an initial state of another type",
        "onnxruntime",
        add(STATE % INITIAL.replace("FP32", "INT32")),
        "sequence_batching.state.h.initial_state",
    ),
    Case("control with half a pair", "python", add(SEQUENCE % "fp32_false_true: 1"), "sequence_batching.control_input"),
    Case(
        "one control twice",
        "python",
        add(
            f'sequence_batching {{ control_input {{ name: "s" control {{ {PAIR} }} }} '
            f'control_input {{ name: "t" control {{ {PAIR} }} }} }}'
        ),
        "sequence_batching.control_input",
        said="CONTROL_SEQUENCE_START",
    ),
    Case(
        "correlation id of a float",
        "python",
        add(SEQUENCE % "kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_FP32"),
        "sequence_batching.control_input",
        add(SEQUENCE % "kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_UINT64"),
    ),
    Case(
        "correlation id with a pair",
        "python",
        add(SEQUENCE % f"kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_UINT64 {PAIR}"),
        "sequence_batching.control_input",
    ),
    Case(
        "oldest prefers too many",
        "python",
        add("sequence_batching { oldest { preferred_batch_size: 9 } }"),
        "sequence_batching.oldest.preferred_batch_size",
        add("sequence_batching { oldest { preferred_batch_size: 4 } }"),
    ),
    Case(
        "slot utilization",
        "python",
        add("sequence_batching { direct { minimum_slot_utilization: 1.5 } }"),
        "sequence_batching.direct.minimum_slot_utilization",
    ),
    Case("sequences in torch_aoti", "torch_aoti", add("sequence_batching { }"), "sequence_batching"),
    Case("openvino on a GPU", "openvino", swap("KIND_CPU", "KIND_GPU"), "instance_group[0].kind"),
    Case("openvino anywhere", "openvino", swap("KIND_CPU", "KIND_AUTO"), "instance_group[0].kind", severity="warning"),
    Case("tensorrt on a CPU", "tensorrt", add("instance_group { kind: KIND_CPU }"), "instance_group[0].kind", add(GPU)),
    Case(
        "gpus on a CPU",
        "python",
        add("instance_group { kind: KIND_CPU gpus: [ 0 ] }"),
        "instance_group[0].gpus",
        add("instance_group { kind: KIND_GPU gpus: [ 0 ] }"),
    ),
    Case("gpu -1", "python", add("instance_group { kind: KIND_GPU gpus: -1 }"), "instance_group[0].gpus"),
    Case("count -1", "python", add("instance_group { count: -1 }"), "instance_group[0].count", severity="warning"),
    Case("profile elsewhere", "python", add('instance_group { profile: "0" }'), "instance_group[0].profile"),
    Case(
        "profile by name",
        "tensorrt",
        add('instance_group { kind: KIND_GPU profile: "opt" }'),
        "instance_group[0].profile",
        add('instance_group { kind: KIND_GPU profile: "1" }'),
    ),
    Case("CUDA graphs elsewhere", "python", add("optimization { cuda { } }"), "optimization.cuda", severity="warning"),
    Case(
        "graph level 3",
        "onnxruntime",
        add("optimization { graph { level: 3 } }"),
        "optimization.graph.level",
        add("optimization { graph { level: 2 } }"),
        severity="warning",
    ),
    Case(
        "graph level elsewhere",
        "openvino",
        add("optimization { graph { level: 1 } }"),
        "optimization.graph",
        severity="warning",
    ),
    Case(
        "operators elsewhere",
        "openvino",
        add('model_operations { op_library_filename: "/o.so" }'),
        "model_operations",
        severity="warning",
    ),
    Case(
        "histogram without buckets",
        "python",
        add(metrics("")),
        "model_metrics.metric_control[0].histogram_options",
        add(metrics("histogram_options { buckets: 1 }")),
    ),
    Case(
        "histogram without a family",
        "python",
        add("model_metrics { metric_control { histogram_options { buckets: 1 } } }"),
        "model_metrics.metric_control[0].metric_identifier",
    ),
]
BACKENDS = [
    Case(
        "backend of nobody",
        "onnxruntime",
        swap("onnxruntime", "acme"),
        "backend",
        swap("onnxruntime", "acme", files={"m/libtriton_acme.so": b""}),
        severity="warning",
    ),
    Case(
        "backend of another image",
        "onnxruntime",
        swap("onnxruntime", "vllm"),
        "backend",
        severity="warning",
        said="vllm-python-py3",
    ),
    Case(
        "unknown parameter",
        "onnxruntime",
        add(parameter("intra_op_threads", "2")),
        "parameters.intra_op_threads",
        add(parameter("intra_op_thread_count", "2")),
        severity="warning",
        said="intra_op_thread_count",
    ),
    Case(
        "openvino parameter in lower case",
        "openvino",
        add(parameter("performance_hint", "LATENCY")),
        "parameters.performance_hint",
        add(parameter("PERFORMANCE_HINT", "latency")),
        severity="warning",
    ),
    Case(
        "openvino precision",
        "openvino",
        add(parameter("INFERENCE_PRECISION_HINT", "f32")),
        "parameters.INFERENCE_PRECISION_HINT",
        severity="warning",
    ),
    Case("openvino hint", "openvino", add(parameter("PERFORMANCE_HINT", "FAST")), "parameters.PERFORMANCE_HINT"),
    Case(
        "openvino bf16 off",
        "openvino",
        add(parameter("HINT_BF16", "NO")),
        "parameters.HINT_BF16",
        add(parameter("HINT_BF16", "YES")),
    ),
    Case(
        "openvino threads",
        "openvino",
        add(parameter("INFERENCE_NUM_THREADS", "all")),
        "parameters.INFERENCE_NUM_THREADS",
        add(parameter("INFERENCE_NUM_THREADS", "4")),
    ),
    Case(
        "openvino streams",
        "openvino",
        add(parameter("NUM_STREAMS", "MANY")),
        "parameters.NUM_STREAMS",
        add(parameter("NUM_STREAMS", "numa")),
    ),
    Case(
        "openvino flag by number",
        "openvino",
        add(parameter("SKIP_OV_DYNAMIC_BATCHSIZE", "1")),
        "parameters.SKIP_OV_DYNAMIC_BATCHSIZE",
        add(parameter("SKIP_OV_DYNAMIC_BATCHSIZE", "Yes")),
        severity="warning",
    ),
    Case("openvino empty", "openvino", add(parameter("NUM_STREAMS", "")), "parameters.NUM_STREAMS", severity="warning"),
    Case(
        "openvino device too early",
        "openvino",
        add(parameter("TARGET_DEVICE", "GPU")),
        "parameters.TARGET_DEVICE",
        release="25.09",
        severity="warning",
    ),
    Case(
        "execution mode",
        "onnxruntime",
        add(parameter("execution_mode", "2")),
        "parameters.execution_mode",
        add(parameter("execution_mode", "1")),
    ),
    Case(
        "threads by word",
        "onnxruntime",
        add(parameter("intra_op_thread_count", "two")),
        "parameters.intra_op_thread_count",
    ),
    Case(
        "threads beyond int",
        "onnxruntime",
        add(parameter("inter_op_thread_count", "3000000000")),
        "parameters.inter_op_thread_count",
    ),
    Case(
        "arena by word",
        "onnxruntime",
        add(parameter("enable_mem_arena", "yes")),
        "parameters.enable_mem_arena",
        add(parameter("enable_mem_arena", "On")),
    ),
    Case(
        "allocator too early",
        "onnxruntime",
        add(parameter("session.use_device_allocator_for_initializers", "1")),
        "parameters.session.use_device_allocator_for_initializers",
        release="25.01",
        severity="warning",
    ),
    Case(
        "cudnn search by word",
        "onnxruntime",
        add(parameter("cudnn_conv_algo_search", "EXHAUSTIVE")),
        "parameters.cudnn_conv_algo_search",
        add(parameter("cudnn_conv_algo_search", "1")),
    ),
    Case(
        "torch_aoti parameter",
        "torch_aoti",
        add(parameter("INTRA_OP_THREAD_COUNT", "2")),
        "parameters.INTRA_OP_THREAD_COUNT",
        severity="warning",
        said="no effect",
    ),
    Case(
        "libtorch parameter",
        "libtorch",
        add(parameter("INFERENCE_MODE", "maybe")),
        "parameters.INFERENCE_MODE",
        add(parameter("INFERENCE_MODE", "true")),
    ),
    Case(
        "tensorrt strategy",
        "tensorrt",
        add(parameter("execution_context_allocation_strategy", "LAZY")),
        "parameters.execution_context_allocation_strategy",
        add(parameter("execution_context_allocation_strategy", "STATIC")),
    ),
    Case(
        "tensorflow parameter",
        "tensorflow",
        add(parameter("TF_THREADS", "2")),
        "parameters.TF_THREADS",
        release="25.02",
        severity="warning",
    ),
    Case(
        "strategy and sequences",
        "python",
        add("sequence_batching { }", parameter("TRITON_BATCH_STRATEGY_PATH", "/models/m/b.so")),
        "parameters.TRITON_BATCH_STRATEGY_PATH",
    ),
    Case(
        "strategy elsewhere",
        "python",
        add(parameter("TRITON_BATCH_STRATEGY_PATH", "/opt/b.so")),
        "parameters.TRITON_BATCH_STRATEGY_PATH",
        severity="warning",
    ),
    Case(
        "strategy from somewhere",
        "onnxruntime",
        add(parameter("TRITON_BATCH_STRATEGY_PATH", "b.so"), parameter("MAX_BATCH_VOLUME", "its own")),
        "parameters.TRITON_BATCH_STRATEGY_PATH",
        severity="warning",
    ),
    Case(
        "unknown accelerator",
        "onnxruntime",
        add(GPU, accelerator("directml")),
        f"{ACCELERATORS}.directml",
        add(GPU, accelerator("cuda")),
    ),
    Case(
        "openvino among the GPUs",
        "onnxruntime",
        add(GPU, accelerator("openvino")),
        f"{ACCELERATORS}.openvino",
        add(accelerator("openvino", place="cpu")),
    ),
    Case(
        "parameters of openvino",
        "onnxruntime",
        add(accelerator("openvino", ("num_of_threads", "2"), place="cpu")),
        f"{ACCELERATORS}.openvino.num_of_threads",
        severity="warning",
    ),
    Case("accelerator of nobody", "python", add(accelerator("cuda")), ACCELERATORS, severity="warning"),
    Case(
        "accelerator without a GPU",
        "onnxruntime",
        add("instance_group { kind: KIND_CPU }", accelerator("cuda")),
        CUDA,
        severity="warning",
    ),
    Case(
        "unknown tensorrt key",
        "onnxruntime",
        add(GPU, accelerator("tensorrt", ("trt_fp16_enable", "1"))),
        f"{TRT}.trt_fp16_enable",
        add(GPU, accelerator("tensorrt", ("precision_mode", "FP16"), ("trt_engine_cache_enable", "True"))),
    ),
    Case(
        "tensorrt boolean",
        "onnxruntime",
        add(GPU, accelerator("tensorrt", ("trt_engine_cache_enable", "on"))),
        f"{TRT}.trt_engine_cache_enable",
    ),
    Case(
        "tensorrt workspace",
        "onnxruntime",
        add(GPU, accelerator("tensorrt", ("max_workspace_size_bytes", "all"))),
        f"{TRT}.max_workspace_size_bytes",
        add(GPU, accelerator("tensorrt", ("max_workspace_size_bytes", "1073741824"))),
    ),
    Case(
        "unknown precision",
        "onnxruntime",
        add(GPU, accelerator("tensorrt", ("precision_mode", "FP8"))),
        f"{TRT}.precision_mode",
    ),
    Case(
        "bf16 precision too early",
        "onnxruntime",
        add(GPU, accelerator("tensorrt", ("precision_mode", "BF16"))),
        f"{TRT}.precision_mode",
        release="26.01",
    ),
    Case(
        "precision under TensorRT 11",
        "onnxruntime",
        add(GPU, accelerator("tensorrt", ("precision_mode", "FP16"))),
        f"{TRT}.precision_mode",
        add(GPU, accelerator("tensorrt", ("precision_mode", "FP32"))),
        release="26.08",
        severity="warning",
        said="TensorRT 11",
    ),
    Case(
        "calibration under TensorRT 11",
        "onnxruntime",
        add(GPU, accelerator("tensorrt", ("int8_calibration_table_name", "c.flatbuffers"))),
        f"{TRT}.int8_calibration_table_name",
        release="26.06",
        severity="warning",
    ),
    Case(
        "profiles in part",
        "onnxruntime",
        add(GPU, profiles(min="x:1x3", max="x:4x3")),
        f"{TRT}.trt_profile_opt_shapes",
        add(GPU, profiles(min="x:1x3", opt="x:2x3", max="x:4x3")),
        severity="warning",
    ),
    Case(
        "profile with a comma",
        "onnxruntime",
        add(GPU, profiles(min="x:1,x:3", opt="x:2x3", max="x:4x-3")),
        f"{TRT}.trt_profile_max_shapes",
        severity="warning",
    ),
    Case(
        "profile of no input",
        "onnxruntime",
        add(GPU, profiles(min="q:1x3", opt="x:2x3", max="x:4x3")),
        f"{TRT}.trt_profile_min_shapes",
        severity="warning",
    ),
    Case(
        "overwritten",
        "onnxruntime",
        add(GPU, accelerator("cuda", ("gpu_mem_limit", "1000"))),
        f"{CUDA}.gpu_mem_limit",
        add(GPU, accelerator("cuda", ("use_tf32", "0")), parameter("gpu_mem_limit", "1000")),
        severity="warning",
        said="top-level",
    ),
    Case(
        "unknown cuda key",
        "onnxruntime",
        add(GPU, accelerator("cuda", ("use_fp16", "1"))),
        f"{CUDA}.use_fp16",
    ),
    Case(
        "CPU accelerator of tensorflow",
        "tensorflow",
        add(accelerator("openvino", place="cpu")),
        f"{ACCELERATORS}.openvino",
        release="25.02",
    ),
    Case(
        "TF-TRT key",
        "tensorflow",
        add(GPU, accelerator("tensorrt", ("trt_min_subgraph_size", "3"))),
        f"{TRT}.trt_min_subgraph_size",
        add(GPU, accelerator("tensorrt", ("minimum_segment_size", "3"), ("precision_mode", "FP16"))),
        release="25.02",
    ),
    Case(
        "numpy 2 under 24.10",
        "python",
        put({"m/requirements.txt": "tokenizers\nnumpy>=2.1\n"}),
        "",
        put({"m/requirements.txt": "numpy<2\n"}),
        file="m/requirements.txt",
        release="24.10",
        severity="warning",
    ),
]
CASES = [*CORE, *BACKENDS]


@pytest.mark.parametrize("case", CASES, ids=[c.name.replace(" ", "-") for c in CASES])
def test_what_breaks_a_rule_is_found_and_its_mended_twin_is_clean(case, tmp_path):
    case.check(tmp_path)


def test_the_names_of_the_cases_differ():
    assert len({c.name for c in CASES}) == len(CASES)


def test_a_multi_device_plan_may_be_on_no_device_of_its_own(tmp_path):
    """The tensorrt backend loads KIND_MODEL where it shards over several GPUs itself."""
    kind = "instance_group { kind: KIND_MODEL }"
    wide = add(kind, parameter("enable_multi_device", "true"), parameter("multi_device_gpus", "0,1"))
    Case("", "tensorrt", add(kind), "instance_group[0].kind", wide, release="26.06").check(tmp_path)


def test_a_python_model_may_have_any_parameter(tmp_path):
    Case("", "python", swap('"m"', '"n"'), "name", add(parameter("anything", "goes"))).check(tmp_path)
    assert MODEL_PY.startswith("class TritonPythonModel")
