"""The cases of the server's own tests that can be reproduced without a server, in our words.

Source: triton-inference-server/server, qa/L0_model_config at e1db8a6; the comment or id names the fixture. What is left
out needs a GPU (plans, GPU ids), a TorchScript file, or a model that answers ``auto_complete_config``.
"""

from collections.abc import Mapping

import pytest
from lint_repositories import (
    CONFIG,
    Edit,
    Files,
    add,
    onnx_base,
    onnx_model,
    openvino_base,
    plain_base,
    python_base,
    swap,
    write,
)

from accel.triton.lint import lint

Step = tuple[str, Mapping[str, str], Mapping[str, str]]
TYPES = {"f": "TYPE_FP32", "i": "TYPE_INT32"}


def tensors(kind: str, names: str, dims: str) -> str:
    """Declare tensors; a name such as ``a:i`` is an int32."""
    pairs = [name.partition(":") for name in names.split()]
    return "".join(f'{kind} {{ name: "{n}" data_type: {TYPES[t or "f"]} dims: [ {dims} ] }}\n' for n, _, t in pairs)


def echo(
    name: str, inputs: str = "a", outputs: str = "b", *, batch: int = 4, dims: str = "16", more: str = ""
) -> Files:
    """Return a model on the server's own identity backend."""
    head = f'name: "{name}"\nbackend: "identity"\nmax_batch_size: {batch}\n{more}\n'
    config = head + tensors("input", inputs, dims) + tensors("output", outputs, dims)
    return {f"{name}/config.pbtxt": config, f"{name}/1": None}


def front(
    *steps: Step, inputs: str = "in", outputs: str = "out", batch: int = 2, dims: str = "16", name: str = "front"
) -> Files:
    """Return an ensemble of steps: model, model input → tensor, model output → tensor."""

    def maps(part: str, mapped: Mapping[str, str]) -> str:
        return "".join(f'{part} {{ key: "{k}" value: "{v}" }} ' for k, v in mapped.items())

    text = "".join(
        f'step {{ {f"""model_name: "{m}" """ if m else ""}model_version: -1 {maps("input_map", i)}'
        f"{maps('output_map', o)}}}\n"
        for m, i, o in steps
    )
    head = f'name: "{name}"\nplatform: "ensemble"\nmax_batch_size: {batch}\n'
    config = head + tensors("input", inputs, dims) + tensors("output", outputs, dims)
    return {f"{name}/config.pbtxt": f"{config}ensemble_scheduling {{\n{text}}}\n", f"{name}/1": None}


ONE: Step = ("one", {"a": "in"}, {"b": "out"})
CHAIN: tuple[Step, Step] = (("one", {"a": "in"}, {"b": "t"}), ("two", {"a": "t"}, {"b": "out"}))
SPREAD: Step = ("three", {"a": "in"}, {"b": "p", "c": "q", "d": "r"})
GATHER: Step = ("four", {"a": "p", "b": "q", "c": "r", "d": "s"}, {"e": "out"})
FIRST: Step = ("one", {"a": "in"}, {"b": "s"})
MODELS = {
    **echo("one"),
    **echo("three", "a", "b c d"),
    **echo("four", "a b c d", "e"),
}
REPEAT = {
    **echo("repeat", "a:i", "b:i c:i", batch=0, dims="1", more="model_transaction_policy { decoupled: true }"),
    **echo("join", "a:i b:i", "c:i", batch=0, dims="1"),
}
STEP = "ensemble_scheduling.step[{}]"

ENSEMBLES: dict[str, tuple[Files, list[str]]] = {
    "circular_dependency": (
        front(("other", {"x": "in"}, {"y": "out"}))
        | front(("front", {"in": "x"}, {"out": "y"}), inputs="x", outputs="y", name="other"),
        ["ensemble_scheduling", "ensemble_scheduling"],
    ),
    "self_circular_dependency": (
        MODELS | front(FIRST, ("front", {"in": "s"}, {"out": "out"})),
        ["ensemble_scheduling"],
    ),
    "ensemble_scheduling_no_set": (
        {
            "front/config.pbtxt": 'name: "front"\nplatform: "ensemble"\n'
            + tensors("input", "in", "1")
            + tensors("output", "out", "1"),
            "front/1": None,
        },
        ["ensemble_scheduling"],
    ),
    "inconsistent_data_type": (
        echo("one", "a:i", "b:i") | echo("two", batch=2) | front(*CHAIN),
        [STEP.format(0) + ".input_map.a", STEP.format(1) + ".input_map.a"],
    ),
    "inconsistent_shape": (
        echo("one") | echo("two", dims="16, 16, 16") | front(*CHAIN),
        [STEP.format(1) + ".input_map.a", STEP.format(1) + ".output_map.b"],
    ),
    "invalid_batch_size": (echo("one") | echo("two", batch=2) | front(*CHAIN, batch=3), ["max_batch_size"]),
    "invalid_decoupled_branching": (
        REPEAT
        | front(
            ("repeat", {"a": "in"}, {"b": "p"}),
            ("repeat", {"a": "in"}, {"b": "q"}),
            ("join", {"a": "p", "b": "q"}, {"c": "out"}),
            inputs="in:i",
            outputs="out:i",
            batch=0,
            dims="1",
        ),
        [STEP.format(2) + ".input_map"],
    ),
    "invalid_decoupled_branching_2": (
        REPEAT
        | front(
            ("repeat", {"a": "in"}, {"b": "out"}),
            ("repeat", {"a": "in"}, {"c": "more"}),
            inputs="in:i",
            outputs="out:i more:i",
            batch=0,
            dims="1",
        ),
        ["output"],
    ),
    "invalid_input_map": (
        MODELS | front(FIRST, SPREAD, (GATHER[0], {**GATHER[1], "nothing": "s"}, GATHER[2])),
        [STEP.format(2) + ".input_map.nothing"],
    ),
    "invalid_output_map": (
        MODELS | front(("one", {"a": "in"}, {"b": "out", "nothing": "more"}), outputs="out more"),
        [STEP.format(0) + ".output_map.nothing"],
    ),
    "no_input_map": (
        MODELS | front(("one", {}, {"b": "out"}), ("one", {"a": "in"}, {"b": "more"}), outputs="out more"),
        [STEP.format(0) + ".input_map", STEP.format(0) + ".input_map"],
    ),
    "no_output_map": (MODELS | front(ONE, ("one", {"a": "in"}, {})), [STEP.format(1) + ".output_map"]),
    "no_model_name": (MODELS | front(FIRST, ("", {"a": "s"}, {"b": "out"})), [STEP.format(1) + ".model_name"]),
    "no_step": (MODELS | front(), ["ensemble_scheduling.step"]),
    "non_existing_model": (MODELS | front(FIRST, ("five", {"a": "s"}, {"b": "out"})), [STEP.format(1) + ".model_name"]),
    "output_to_tensor_overmapped": (
        MODELS
        | front(
            FIRST,
            ("three", {"a": "in"}, {"b": "p", "c": "p", "d": "r"}),
            ("four", {"a": "p", "b": "p", "c": "r", "d": "s"}, {"e": "out"}),
        ),
        [STEP.format(1) + ".output_map"],
    ),
    "redundant_tensor_as_input": (
        MODELS | front(ONE, ("one", {"a": "nobody"}, {"b": "unread"})),
        [STEP.format(1) + ".input_map", STEP.format(1) + ".output_map"],
    ),
    "redundant_tensor_as_output": (
        MODELS | front(("three", {"a": "in"}, {"b": "out", "c": "more", "d": "unread"}), outputs="out more"),
        [STEP.format(0) + ".output_map"],
    ),
    "unmapped_input": (
        MODELS | front(SPREAD, ("four", {"b": "p", "c": "q", "d": "r"}, {"e": "out"})),
        [STEP.format(1) + ".input_map"],
    ),
    "unreachable_input": (MODELS | front(ONE, inputs="in unread"), ["input.unread"]),
    "unreachable_output": (MODELS | front(ONE, outputs="out unwritten"), ["output.unwritten"]),
    "unreachable_output_2": (
        MODELS | front(ONE, ("one", {"a": "more"}, {"b": "more"}), outputs="out more"),
        ["ensemble_scheduling.step"],
    ),
    "unreachable_output_3": (
        MODELS | front(ONE, ("one", {"a": "nobody"}, {"b": "more"}), outputs="out more"),
        [STEP.format(1) + ".input_map"],
    ),
}
ACCEPTED: dict[str, Files] = {
    "embedded_ensemble": echo("one")
    | front(ONE, name="inner")
    | front(("inner", {"in": "in"}, {"out": "out"}), name="outer"),
    "inconsistent_shape": echo("one") | echo("two", batch=0, dims="-1, 16") | front(*CHAIN),
    "inconsistent_shape_2": echo("one", batch=0, dims="-1, 16") | echo("two") | front(*CHAIN, batch=0, dims="4, 16"),
    "unmapped_output": echo("one", "a", "b c d") | front(ONE),
    "one tensor for several inputs": MODELS | front(("four", dict.fromkeys("abcd", "in"), {"e": "out"})),
}


def places(root, files):
    return sorted((f.severity, f.field) for f in lint(write(root, files), "26.08"))


@pytest.mark.parametrize("name", ENSEMBLES)
def test_an_ensemble_that_the_server_refuses(name, tmp_path):
    files, fields = ENSEMBLES[name]
    assert places(tmp_path, files) == [("error", f) for f in sorted(fields)]


@pytest.mark.parametrize("name", ACCEPTED)
def test_an_ensemble_that_the_server_takes(name, tmp_path):
    assert places(tmp_path, ACCEPTED[name]) == []


@pytest.mark.parametrize("steps", [(2,), (-1, 2), (2, -1)], ids=["only", "second", "first"])
def test_a_version_that_is_not_there(steps, tmp_path):
    """no_required_version, _2 and _3."""
    tensor = ["in", *(f"t{i}" for i in range(1, len(steps))), "out"]
    chain = [("one", {"a": tensor[i]}, {"b": tensor[i + 1]}) for i in range(len(steps))]
    files = dict(MODELS | front(*chain))
    parts = str(files["front/config.pbtxt"]).split("model_version: -1")
    versions = [f"model_version: {v}" for v in steps]
    files["front/config.pbtxt"] = parts[0] + "".join(v + p for v, p in zip(versions, parts[1:], strict=True))
    assert places(tmp_path, files) == [("error", STEP.format(steps.index(2)) + ".model_version")]


def test_an_input_mapped_twice_keeps_the_last_tensor(tmp_path):
    """tensor_to_input_overmapped: a map has one value for a key, so the tensor of the first is read by nobody."""
    files = dict(MODELS | front(FIRST, ("one", {"a": "in"}, {"b": "u"}), ("one", {"a": "u"}, {"b": "out"})))
    twice = str(files["front/config.pbtxt"]).replace(
        'input_map { key: "a" value: "u" }', 'input_map { key: "a" value: "u" } input_map { key: "a" value: "s" }'
    )
    files["front/config.pbtxt"] = twice
    assert places(tmp_path, files) == [("error", STEP.format(1) + ".output_map")]


def test_an_ensemble_with_a_backend_and_no_steps(tmp_path):
    """has_backend."""
    files = dict(front(ONE))
    config = str(files["front/config.pbtxt"]).partition("ensemble_scheduling")[0]
    files["front/config.pbtxt"] = config + 'backend: "onnxruntime"'
    assert places(tmp_path, files) == [("error", "backend"), ("error", "ensemble_scheduling")]


IO = 'input {{ name: "z" data_type: TYPE_FP32 {} }}'
OUT = 'output {{ name: "z" data_type: TYPE_FP32 {} }}'
UNBATCHED = ("max_batch_size: 4", "max_batch_size: 0")
RESHAPES = {  # dims and reshape of the fixtures → whether the server takes them batched, and unbatched
    "elementcount0": ("dims: [ 2, 4 ] reshape { shape: [ 2, 3 ] }", False, False),
    "elementcount1": ("dims: [ 2 ] reshape { }", False, False),
    "nobatch_empty": ("dims: [ 1 ] reshape { }", True, False),
    "variable0": ("dims: [ -1, 2 ] reshape { shape: [ 2, 2 ] }", False, False),
    "variable2": ("dims: [ 4, -1, 2 ] reshape { shape: [ 2, -1, 4 ] }", False, False),
    "variable4": ("dims: [ -1, 2, -1 ] reshape { shape: [ 2, -1 ] }", False, False),
    "zerodims": ("dims: [ 2 ] reshape { shape: [ 0 ] }", False, False),
    "documented": ("dims: [ 2, 4, -1, 6 ] reshape { shape: [ 8, -1, 1, 6 ] }", True, True),
}


@pytest.mark.parametrize("kind", ["input", "output"])
@pytest.mark.parametrize("name", RESHAPES)
def test_reshapes(name, kind, tmp_path):
    """reshape_*: the same for inputs and outputs, with a batch axis of the server's and without."""
    text, batched, unbatched = RESHAPES[name]
    line = (IO if kind == "input" else OUT).format(text)
    expected = [("error", f"{kind}.z.reshape")]
    assert places(tmp_path / "4", add(line)(python_base())) == ([] if batched else expected)
    assert places(tmp_path / "0", swap(*UNBATCHED, line)(python_base())) == ([] if unbatched else expected)


PLAN = plain_base("tensorrt", "tensorrt_plan", "model.plan")
COUNTS = [
    "BATCH_ELEMENT_COUNT",
    "BATCH_ACCUMULATED_ELEMENT_COUNT",
    "BATCH_ACCUMULATED_ELEMENT_COUNT_WITH_ZERO",
    "BATCH_MAX_ELEMENT_COUNT_AS_SHAPE",
]


@pytest.mark.parametrize("kind", COUNTS)
@pytest.mark.parametrize("sources", [[], ["x", "x"]], ids=["less", "many"])
def test_batch_inputs_have_one_source(kind, sources, tmp_path):
    """batch_input_less_source*, batch_input_many_source*."""
    text = f'batch_input {{ kind: {kind} target_name: "n" data_type: TYPE_FP32 source_input: {sources} }}'
    assert places(tmp_path, add(text)(PLAN)) == [("error", "batch_input[0].source_input")]


CONTROL = 'control_input {{ name: "{}" control {{ kind: CONTROL_SEQUENCE_{} {} }} }}'
PAIR = "int32_false_true: [ 0, 1 ]"
SINGLE: dict[str, tuple[Edit, str]] = {
    "batch_input_unknown_source": (
        add('batch_input { target_name: "n" data_type: TYPE_FP32 source_input: "q" }'),
        "batch_input[0].source_input",
    ),
    "batch_output_less_source": (add('batch_output { target_name: "y" }'), "batch_output[0].source_input"),
    "batch_output_many_source": (
        add('batch_output { target_name: "y" source_input: ["x", "x"] }'),
        "batch_output[0].source_input",
    ),
    "batch_output_unknown_source": (
        add('batch_output { target_name: "y" source_input: "q" }'),
        "batch_output[0].source_input",
    ),
    "batch_output_unknown_target": (
        add('batch_output { target_name: "q" source_input: "x" }'),
        "batch_output[0].target_name",
    ),
    "batch_output_duplicated_target": (
        add('batch_output { target_name: ["y", "y"] source_input: "x" }'),
        "batch_output[0].target_name",
    ),
    **{
        f"control_kind_{kind.lower()}_multiple": (
            add(f"sequence_batching {{ {CONTROL.format('s', kind, PAIR)} {CONTROL.format('t', kind, PAIR)} }}"),
            "sequence_batching.control_input",
        )
        for kind in ("START", "END", "READY")
    },
    "control_tensor_multiple": (
        add(f"sequence_batching {{ {CONTROL.format('s', 'START', PAIR)} {CONTROL.format('s', 'END', PAIR)} }}"),
        "sequence_batching.control_input",
    ),
    "control_tensor_no_value": (
        add(f"sequence_batching {{ {CONTROL.format('s', 'READY', '')} }}"),
        "sequence_batching.control_input",
    ),
    "default_priority_level1": (
        add("dynamic_batching { priority_levels: 3 default_priority_level: 4 }"),
        "dynamic_batching.default_priority_level",
    ),
    "priority_level0": (
        add(
            "dynamic_batching { priority_levels: 3 default_priority_level: 1 "
            "priority_queue_policy { key: 0 value { } } }"
        ),
        "dynamic_batching.priority_queue_policy",
    ),
    "preserve_ordering2": (
        add(
            "dynamic_batching { preserve_ordering: true priority_levels: 1 default_priority_level: 1 "
            "priority_queue_policy { key: 1 value { timeout_action: DELAY default_timeout_microseconds: 1 } } }"
        ),
        "dynamic_batching.preserve_ordering",
    ),
    "ensemble_scheduling_set": (
        add(
            'ensemble_scheduling { step { model_name: "k" input_map { key: "a" value: "x" } '
            'output_map { key: "b" value: "y" } } }'
        ),
        "platform",
    ),
    "invalid_cpu": (add("instance_group { kind: KIND_CPU gpus: [ 42 ] }"), "instance_group[0].gpus"),
    "negative_gpu": (
        add("instance_group { kind: KIND_GPU gpus: [ 0 ] }", "instance_group { kind: KIND_GPU gpus: [ -1 ] }"),
        "instance_group[1].gpus",
    ),
    "negative_max_batch_size": (swap("max_batch_size: 4", "max_batch_size: -1"), "max_batch_size"),
    "no_buckets": (
        add('model_metrics { metric_control { metric_identifier { family: "f" } histogram_options { } } }'),
        "model_metrics.metric_control[0].histogram_options",
    ),
    "empty_metric_family": (
        add('model_metrics { metric_control { metric_identifier { family: "" } histogram_options { buckets: 1 } } }'),
        "model_metrics.metric_control[0].metric_identifier",
    ),
    "runtime_escape": (add('runtime: "../elsewhere/libtriton_echo.so"'), "runtime"),
}


@pytest.mark.parametrize("name", SINGLE)
def test_a_config_that_the_server_refuses(name, tmp_path):
    edit, field = SINGLE[name]
    base = dict(python_base()) if not name.startswith("batch_") else PLAN
    if name == "ensemble_scheduling_set":
        base |= echo("k")
        found = places(tmp_path, edit(base))
        assert ("error", field) in found
        assert ("error", "backend") in found
        return
    assert places(tmp_path, edit(base)) == [("error", field)]


def both(config: str) -> Files:
    return {CONFIG: 'name: "m"\nbackend: "onnxruntime"\nmax_batch_size: 1\n' + config, "m/1/model.onnx": onnx_model()}


ONNX = {
    "bad_input_dims": ("3, 1", "3", "", "input.x.dims"),
    "bad_output_dims": ("3", "1", "", "output.y.dims"),
    "too_many_inputs": ("3", "3", tensors("input", "extra", "3"), "input.extra"),
    "unknown_output": ("3", "3", tensors("output", "unknown", "3"), "output.unknown"),
}


@pytest.mark.parametrize("name", ONNX)
def test_an_onnx_config_that_contradicts_its_model(name, tmp_path):
    x, y, more, field = ONNX[name]
    assert places(tmp_path, both(tensors("input", "x", x) + tensors("output", "y", y) + more)) == [("error", field)]


def test_onnx_with_a_fixed_batch(tmp_path):
    """bad_max_batch_size: every tensor of it."""
    files = dict(both(tensors("input", "x", "3") + tensors("output", "y", "3")))
    files["m/1/model.onnx"] = onnx_model(1, 3)
    assert places(tmp_path, files) == [("error", "input.x.dims"), ("error", "output.y.dims")]


OPENVINO = {
    "bad_input_dims": ("-1, 256", "-1, 3", "", "input.x.dims"),
    "bad_output_dims": ("-1, 3", "-1, 128", "", "output.y.dims"),
    "too_many_inputs": ("-1, 3", "-1, 3", tensors("input", "extra", "1, 4"), "input.extra"),
    "unknown_output": ("-1, 3", "-1, 3", tensors("output", "unknown", "1, 4"), "output.unknown"),
}


@pytest.mark.parametrize("name", OPENVINO)
def test_an_openvino_config_that_contradicts_its_model(name, tmp_path):
    x, y, more, field = OPENVINO[name]
    config = 'name: "m"\nbackend: "openvino"\n' + tensors("input", "x", x) + tensors("output", "y", y) + more
    assert places(tmp_path, {**openvino_base(), CONFIG: config}) == [("error", field)]


def test_a_backend_that_cannot_be_told(tmp_path):
    """no_delimiter, no_version and invalid_platform; ``unknown_backend.unknown`` is a custom backend's."""
    io = tensors("input", "x", "16") + tensors("output", "y", "16")
    assert places(tmp_path / "1", {"plain/1": None}) == [("error", "")]
    assert places(tmp_path / "2", {"m/config.pbtxt": io}) == [("error", ""), ("error", "backend")]
    platform = 'platform: "onnxruntim"\ndefault_model_filename: "model.onnx"\n'
    assert places(tmp_path / "3", {"m/config.pbtxt": platform + io, "m/1/model.onnx": b""}) == [("error", "platform")]
    custom = {"m.acme/config.pbtxt": "", "m.acme/1/model.acme": b""}
    assert places(tmp_path / "4", custom) == [("warning", "backend")]


def test_configs_that_the_backend_completes(tmp_path):
    """empty_config, no_config and partial_config load, unless auto-complete is off."""
    empty = {"m/config.pbtxt": "", "m/1/model.onnx": onnx_model()}
    assert places(tmp_path / "1", empty) == [("warning", "input"), ("warning", "output")]
    assert places(tmp_path / "2", {"m/1/model.onnx": onnx_model()}) == [("warning", "")]
    partial = {**openvino_base(), CONFIG: tensors("output", "y", "-1, 3")}
    assert places(tmp_path / "3", partial) == [("warning", "input")]


def completed(*lines: str, returns: str = "return config", config: str = "", declared: str | None = None) -> Files:
    """Return a Python model whose ``auto_complete_config`` has these lines."""
    body = "\n        ".join([*lines, returns])
    text = f"class TritonPythonModel:\n    @staticmethod\n    def auto_complete_config(config):\n        {body}\n"
    own = tensors("input", "a b", "4") + tensors("output", "y", "4") if declared is None else declared
    return {CONFIG: f'name: "m"\nbackend: "python"\n{config}\n{own}', "m/1/model.py": text}


def told(kind: str, **changed: object) -> str:
    """Return the line that adds a tensor; a property that is None is left out."""
    name = "a" if kind == "input" else "y"
    said = {"name": name, "data_type": "TYPE_FP32", "dims": [4], **changed}
    return f"config.add_{kind}({ {k: v for k, v in said.items() if v is not None} })"


BOTH = (told("input"), "second = dict(name='b', data_type='TYPE_FP32', dims=[4])", "config.add_input(second)")
PYTHON: dict[str, Files] = {
    **{
        f"{kind}_missing_{key}": completed(told(kind, **{key: None}))
        for kind in ("input", "output")
        for key in ("name", "data_type", "dims")
    },
    **{f"{kind}_wrong_property": completed(told(kind, **{"shape:": 1})) for kind in ("input", "output")},
    **{f"{kind}_mismatch_datatype": completed(told(kind, data_type="TYPE_INT32")) for kind in ("input", "output")},
    **{f"{kind}_mismatch_dims": completed(told(kind, dims=[16])) for kind in ("input", "output")},
    "in_a_loop": completed(
        "for each in [{'name': 'a', 'data_type': 'TYPE_INT8', 'dims': [4]}]:\n            config.add_input(each)"
    ),
    "conflicting_max_batch_size": completed("config.set_max_batch_size(4)", config="max_batch_size: 6"),
    "conflicting_scheduler_sequence": completed("config.set_dynamic_batching()", config="sequence_batching { }"),
    "model_transaction_policy_invalid_args": completed("p = {'invalid': 1}", "config.set_model_transaction_policy(p)"),
    "model_transaction_policy_mismatch": completed(
        "config.set_model_transaction_policy(dict(decoupled=True))",
        config="model_transaction_policy { decoupled: false }",
    ),
    "no_return": completed(*BOTH, returns="return"),
}


@pytest.mark.parametrize("name", PYTHON)
def test_a_python_model_that_contradicts_its_config(name, tmp_path):
    found = [(f.severity, f.file, f.field) for f in lint(write(tmp_path / "m", PYTHON[name]), "26.08")]
    assert ("error", "m/1/model.py", "auto_complete_config") in found
    script = {"launch.sh": "tritonserver --disable-auto-complete-config"}
    assert not [f for f in lint(write(tmp_path / "off", {**PYTHON[name], **script}), "26.08") if f.severity == "error"]


SOUND = {
    "the same": completed(*BOTH, told("output"), "config.set_max_batch_size(0)", "config.set_dynamic_batching()"),
    "incomplete_input": completed(*BOTH, told("output"), declared='input { name: "a" } output { name: "y" dims: 4 }'),
    "model_transaction_policy": completed("config.set_model_transaction_policy({'decoupled': True})"),
    "a raise of the batch": completed("config.set_max_batch_size(8)", config="max_batch_size: 4"),
    "what cannot be known": completed("k = choose()", "config.add_input({'name': 'a', 'data_type': k, 'dims': D})"),
    "what may not run": completed("if CHOICE:\n            config.add_input({'name': 'a', 'dims': [9]})"),
    "a dict that changed": completed("t = {'name': 'a'}", "t.update(REST)", "config.add_input(t)"),
    "a dict with an item set": completed(
        "t = {'name': 'a'}", "t['data_type'] = 'TYPE_FP32'", "t['dims'] = [4]", "config.add_input(t)"
    ),
    "another backend fills": {CONFIG: 'backend: "own" input { name: "x" } output { name: "y" }', "m/1": None},
    "an agent brings it": {
        CONFIG: 'backend: "onnxruntime" model_repository_agents { agents: { name: "fetch" } }'
        + tensors("input", "x", "1"),
        "m/1": None,
    },
    "a file name of its own": {
        CONFIG: 'backend: "own" default_model_filename: "any"\n' + tensors("input", "x", "1"),
        "m/1": None,
    },
}


@pytest.mark.parametrize("name", SOUND)
def test_what_may_load_is_no_error(name, tmp_path):
    assert not [f for f in lint(write(tmp_path, SOUND[name]), "26.08") if f.severity == "error"]


PASSIVE = "instance_group { kind: KIND_CPU passive: true }"
FATAL: dict[str, tuple[Edit, Edit, str]] = {
    "only passive instances": (add(PASSIVE), add(PASSIVE + "instance_group { kind: KIND_CPU }"), "instance_group"),
    "invalid_gpu": (
        add("instance_group { kind: KIND_GPU gpus: 42 }"),
        add("instance_group { kind: KIND_GPU gpus: 1 }"),
        "instance_group[0].gpus",
    ),
    "invalid_runtime": (add('runtime: "libother.so"'), add('runtime: "libtriton_onnxruntime.so"'), "runtime"),
    "no arena": (
        add('parameters { key: "memory.enable_memory_arena_shrinkage" value { string_value: "yes" } }'),
        add('parameters { key: "memory.enable_memory_arena_shrinkage" value { string_value: "cpu:0;gpu:1" } }'),
        "parameters.memory.enable_memory_arena_shrinkage",
    ),
}


@pytest.mark.parametrize("name", FATAL)
def test_what_ends_the_server_or_the_load_is_an_error(name, tmp_path):
    broken, mended, field = FATAL[name]
    base = onnx_base()
    assert ("error", field) in places(tmp_path / "1", broken(base))
    assert not [p for p in places(tmp_path / "2", mended(base)) if p[0] == "error"]


def test_a_number_of_threads_below_1(tmp_path):
    def said(base: Files, key: str) -> set[str]:
        text = f'parameters {{ key: "{key}" value {{ string_value: "-1" }} }}'
        return {s for s, f in places(tmp_path / key, add(text)(base)) if f == f"parameters.{key}"}

    assert said(onnx_base(), "intra_op_thread_count") == {"warning"}  # the backend takes it for 0
    torch = {
        CONFIG: f'platform: "pytorch_libtorch" {tensors("input", "INPUT__0", "1")}{tensors("output", "OUTPUT__0", "1")}'
    }
    assert said({**torch, "m/1/model.pt": ""}, "NUM_THREADS") == {"error"}
