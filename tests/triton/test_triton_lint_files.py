"""Rules on files, the model file against its config, and ensembles: one finding each, none on the valid counterpart."""

import json
from typing import Any

import pytest
from lint_repositories import (
    CONFIG,
    FRONT,
    MODEL_PY,
    TENSORS,
    Case,
    add,
    onnx_model,
    openvino_model,
    parameter,
    put,
    swap,
    tensor,
)

STRINGS = b"\1\0\0\0a\2\0\0\0bc"
STEP = "ensemble_scheduling.step[{}]"
XML = "m/1/model.xml"
SECOND = 'map { key: "x" value: "t" } output_map { key: "y" value: "y" }'
STEP_2 = f'"m" model_version: -1 input_{SECOND}'

STATE = (
    'sequence_batching {{ state {{ input_name: "i" output_name: "o" data_type: TYPE_FP32 dims: 1 '
    'initial_state {{ name: "z" data_type: TYPE_FP32 dims: 1 {} }} }} }}'
)
SCALAR = f'name: "m"\nbackend: "onnxruntime"\n{TENSORS.replace("[ 3 ]", "1")}'
LAYERS = "<net><layers>{}</layers></net>"
UNNAMED = LAYERS.format('<layer id="0" type="Result"/>')
PARAMETER = '<layer id="0" type="Parameter"><data shape="{}"/><output><port id="0" names="x"/></output></layer>'


def warm(data: str = "zero_data: true", *, batch: int = 1, dims: str = "3", kind: str = "FP32") -> str:
    value = f"data_type: TYPE_{kind} dims: [ {dims} ] {data}"
    return f'model_warmup {{ name: "w" batch_size: {batch} inputs {{ key: "x" value {{ {value} }} }} }}'


def warm_file(name: str, **more: Any) -> str:
    return warm(f'input_data_file: "{name}"', **more)


def artifact(**changes: Any) -> dict[str, str]:
    spec = {"dtype": "float32", "dims": ["batch", 3]}
    known = {"schema": 1, "builder": "b", "artifact": {}, "batched": True, "numpy_below_2": True}
    known |= {"inputs": [{"name": "x", **spec}], "outputs": [{"name": "y", **spec}]}
    return {"m/1/artifact.json": json.dumps(known | changes)}


FILES = [
    Case("no version", "python", put({"m/1/model.py": None}), "", file="m"),
    Case(
        "named version",
        "python",
        put({"m/assets/vocab.txt": ""}),
        "",
        put({"m/warmup": None, "m/initial_state": None, "m/configs": None}),
        file="m/assets",
        severity="warning",
    ),
    Case("leading zero", "python", put({"m/02/model.py": MODEL_PY}), "", file="m/02", severity="warning"),
    Case("a copy of a version", "python", put({"m/1_old/model.py": ""}), "", file="m/1_old", severity="warning"),
    Case("number in front", "python", put({"m/2_old/model.py": ""}), "", file="m/2_old", said="counts as version 2"),
    Case(
        "policy on an absent version",
        "python",
        add("version_policy { specific { versions: [ 2 ] } }"),
        "version_policy",
        add("version_policy { specific { versions: [ 1 ] } }"),
    ),
    Case(
        "policy partly absent",
        "python",
        add("version_policy { specific { versions: [ 1, 2 ] } }"),
        "version_policy",
        severity="warning",
    ),
    Case(
        "policy on the latest 0",
        "python",
        add("version_policy { latest { } }"),
        "version_policy",
        add("version_policy { latest { num_versions: 1 } }"),
    ),
    Case("no model file", "python", put({"m/1/model.py": None, "m/1": None}), "default_model_filename"),
    Case(
        "file in no version",
        "python",
        put({"m/2": None}, "version_policy { all { } }"),
        "default_model_filename",
        put({"m/2/model.py": MODEL_PY}, "version_policy { all { } }"),
        said="2/model.py",
    ),
    Case("an older version may lack it", "python", swap('"m"', '"n"'), "name", put({"m/0": None})),
    Case(
        "file elsewhere",
        "python",
        add('default_model_filename: "../1/model.py"'),
        "default_model_filename",
        add('default_model_filename: "model.py"'),
    ),
    Case("absolute file", "python", add('default_model_filename: "/1/model.py"'), "default_model_filename"),
    Case(
        "file for a GPU",
        "tensorrt",
        add('cc_model_filenames { key: "9.0" value: "model_90.plan" }'),
        "cc_model_filenames",
        put({"m/1/model_90.plan": b"PK"}, 'cc_model_filenames { key: "9.0" value: "model_90.plan" }'),
    ),
    Case(
        "no Python class",
        "python",
        put({"m/1/model.py": "class Model: ...\n"}),
        "",
        put({"m/1/model.py": "from served import TritonPythonModel\n"}),
        file="m/1/model.py",
    ),
    Case(
        "Python class by another name",
        "python",
        put({"m/1/model.py": "class Model: ...\n"}),
        "",
        put({"m/1/model.py": "class Model: ...\nTritonPythonModel = Model\n"}),
        file="m/1/model.py",
    ),
    Case("no Python", "python", put({"m/1/model.py": "class :\n"}), "", file="m/1/model.py", severity="warning"),
    Case(
        "no labels",
        "python",
        tensor("y", " }", ' label_filename: "l.txt" }'),
        "output.y.label_filename",
        tensor("y", " }", ' label_filename: "l.txt" }', files={"m/l.txt": "a\n"}),
    ),
    Case(
        "labels elsewhere",
        "python",
        tensor("y", " }", ' label_filename: "../l.txt" }', files={"l.txt": "a\n"}),
        "output.y.label_filename",
        said="..",
    ),
    Case(
        "warm-up of nothing",
        "python",
        add(warm(batch=0)),
        "model_warmup.w.batch_size",
        add(warm(batch=4)),
        severity="warning",
    ),
    Case("warm-up of too many", "onnxruntime", add(warm(batch=5)), "model_warmup.w.batch_size", add(warm(batch=4))),
    Case(
        "warm-up of two unbatched",
        "openvino",
        add(warm(batch=2, dims="2, 3")),
        "model_warmup.w.batch_size",
        add(warm(dims="2, 3")),
    ),
    Case("warm-up of free dims", "python", add(warm(dims="-1")), "model_warmup.w.x.dims"),
    Case("warm-up of other dims", "python", add(warm(dims="1, 3")), "model_warmup.w.x.dims", said="without the batch"),
    Case("warm-up of another type", "python", add(warm(kind="FP16")), "model_warmup.w.x.data_type"),
    Case("warm-up without data", "python", add(warm("")), "model_warmup.w.x"),
    Case("warm-up of no input", "python", add(warm().replace('"x"', '"q"')), "model_warmup.w.q"),
    Case("warm-up without an input", "python", add('model_warmup { name: "w" batch_size: 1 }'), "model_warmup.w.x"),
    Case("warm-up file missing", "python", add(warm_file("x")), "model_warmup.w.x", file="m/warmup/x"),
    Case(
        "warm-up file short",
        "python",
        put({"m/warmup/x": bytes(11)}, warm_file("x")),
        "model_warmup.w.x",
        put({"m/warmup/x": bytes(12)}, warm_file("x")),
        file="m/warmup/x",
        said="11 bytes, expected 12",
    ),
    Case(
        "warm-up file long",
        "python",
        put({"m/warmup/x": bytes(24)}, warm_file("x")),
        "model_warmup.w.x",
        file="m/warmup/x",
        severity="warning",
    ),
    Case("warm-up file elsewhere", "python", add(warm_file("../config.pbtxt")), "model_warmup.w.x.input_data_file"),
    Case("warm-up file by root", "python", add(warm_file("/etc/passwd")), "model_warmup.w.x.input_data_file"),
    Case(
        "warm-up file in a folder",
        "python",
        put({"m/warmup/a/x": bytes(12)}, warm_file("a/x")),
        "model_warmup.w.x.input_data_file",
        severity="warning",
    ),
    Case(
        "warm-up of strings",
        "python",
        tensor("x", "FP32", "STRING", warm_file("x", kind="STRING"), files={"m/warmup/x": STRINGS}),
        "model_warmup.w.x",
        tensor("x", "FP32", "STRING", warm_file("x", kind="STRING"), files={"m/warmup/x": STRINGS + bytes(4)}),
        file="m/warmup/x",
        said="2 strings, expected 3",
    ),
    Case(
        "warm-up of cut strings",
        "python",
        tensor("x", "FP32", "STRING", warm_file("x", kind="STRING"), files={"m/warmup/x": STRINGS[:-1]}),
        "model_warmup.w.x",
        file="m/warmup/x",
        said="cut short",
    ),
    Case(
        "warm-up of a fixed batch",
        "openvino",
        swap("[ -1, 3 ]", "[ 3 ]", "max_batch_size: 1", warm(batch=2)),
        "model_warmup.w.batch_size",
        swap("[ -1, 3 ]", "[ 3 ]", "max_batch_size: 1", warm()),
    ),
    Case(
        "warm-up of strings cut in their length",
        "python",
        tensor("x", "FP32", "STRING", warm_file("x", kind="STRING"), files={"m/warmup/x": STRINGS + b"\1"}),
        "model_warmup.w.x",
        file="m/warmup/x",
        said="cut short",
    ),
    Case(
        "state file missing",
        "onnxruntime",
        add(STATE.format('data_file: "s"')),
        "sequence_batching.state.i.initial_state",
        add(STATE.format("zero_data: true")),
    ),
    Case(
        "state file elsewhere",
        "onnxruntime",
        add(STATE.format('data_file: "../s"')),
        "sequence_batching.state.i.initial_state",
        put({"m/initial_state/s": bytes(4)}, STATE.format('data_file: "s"')),
    ),
]
MODEL = [
    Case("unknown input", "onnxruntime", tensor("x", '"x"', '"ids"'), "input.ids", said="'x'"),
    Case("missing input", "openvino", tensor("x", "input {", "#"), "input", severity="warning"),
    Case("unknown output", "onnxruntime", tensor("y", '"y"', '"scores"'), "output.scores", said="'y'"),
    Case("input too many", "onnxruntime", add('input { name: "z" data_type: TYPE_FP32 dims: 3 }'), "input.z"),
    Case("another type", "onnxruntime", tensor("x", "FP32", "FP64"), "input.x.data_type", said="TYPE_FP32"),
    Case("batch axis in dims", "onnxruntime", tensor("x", "[ 3 ]", "[ -1, 3 ]"), "input.x.dims", said="adds the batch"),
    Case("other size", "onnxruntime", tensor("y", "[ 3 ]", "[ 4 ]"), "output.y.dims"),
    Case(
        "output fixed",
        "onnxruntime",
        put({"m/1/model.onnx": onnx_model("batch", "width")}),
        "output.y.dims",
        swap("[ 3 ]", "[ -1 ]", files={"m/1/model.onnx": onnx_model("batch", "width")}),
        severity="warning",
        said="infers",
    ),
    Case("broken ONNX", "onnxruntime", put({"m/1/model.onnx": onnx_model()[:-20]}), "", file="m/1/model.onnx"),
    Case("no ONNX", "onnxruntime", put({"m/1/model.onnx": bytes(range(256))}), "", file="m/1/model.onnx"),
    Case("an empty ONNX", "onnxruntime", put({"m/1/model.onnx": b""}), "", file="m/1/model.onnx", said="no graph"),
    Case(
        "input too few",
        "onnxruntime",
        put({"m/1/model.onnx": onnx_model(spare=True)}),
        "input.w",
        put({"m/1/model.onnx": onnx_model(spare=True)}, 'input { name: "w" data_type: TYPE_FP32 dims: 3 }'),
    ),
    Case(
        "a folder of ONNX",
        "onnxruntime",
        put({"m/1/model.onnx": None, "m/1/model.onnx/model.onnx": onnx_model()[:-20]}),
        "",
        file="m/1/model.onnx/model.onnx",
    ),
    Case(
        "ragged input",
        "onnxruntime",
        tensor("x", " }", " allow_ragged_batch: true }"),
        "input.x.dims",
        said="not [-1]",
    ),
    Case(
        "a scalar",
        "onnxruntime",
        put({"m/1/model.onnx": onnx_model(scalar=True), CONFIG: SCALAR.replace("dims: 1 }", "dims: 2 }", 1)}),
        "input.x.dims",
        put({"m/1/model.onnx": onnx_model(scalar=True), CONFIG: SCALAR}),
    ),
    Case("openvino's other name", "openvino", tensor("y", '"y"', '"z"'), "output.z", said="'y'"),
    Case(
        "openvino size",
        "openvino",
        tensor("x", "[ -1, 3 ]", "[ -1, -1 ]"),
        "input.x.dims",
        tensor("x", "[ -1, 3 ]", "[ -1, -1 ]", parameter("RESHAPE_IO_LAYERS", "yes")),
    ),
    Case("openvino rank", "openvino", tensor("y", "[ -1, 3 ]", "[ 3 ]"), "output.y.dims"),
    Case(
        "openvino bounds",
        "openvino",
        put({"m/1/model.xml": openvino_model(bounded=True)[0]}),
        "input.x.dims",
        tensor("x", "[ -1, 3 ]", "[ 2, 3 ]", files={"m/1/model.xml": openvino_model(bounded=True)[0]}),
        said="between 1 and 10",
    ),
    Case(
        "openvino without weights",
        "openvino",
        put({"m/1/model.bin": None}),
        "",
        put({"m/1/model.xml": openvino_model(weights=False)[0], "m/1/model.bin": None}),
        file="m/1/model.xml",
    ),
    Case("openvino short weights", "openvino", put({"m/1/model.bin": bytes(4)}), "", file="m/1/model.xml"),
    Case("no IR", "openvino", put({"m/1/model.xml": "<net/>"}), "", file="m/1/model.xml"),
    Case("an IR of no numbers", "openvino", put({XML: LAYERS.format(PARAMETER.format("a"))}), "", file=XML),
    Case(
        "an IR of any rank",
        "openvino",
        put({XML: LAYERS.format(PARAMETER.format("?,2"))}),
        "input.x.dims",
        put({XML: LAYERS.format(PARAMETER.format("..."))}),
    ),
    Case("an IR without a port", "openvino", put({XML: UNNAMED}), "", file=XML, said="no name"),
    Case("no XML", "openvino", put({"m/1/model.xml": bytes(range(256))}), "", file="m/1/model.xml"),
    Case(
        "an IR that expands",
        "openvino",
        put({"m/1/model.xml": '<!DOCTYPE net [<!ENTITY a "aa">]><net>&a;</net>'}),
        "",
        file="m/1/model.xml",
        said="document type",
    ),
    Case(
        "openvino on ONNX",
        "openvino",
        tensor("x", "3 ]", "4 ]", 'default_model_filename: "model.onnx"', files={"m/1/model.onnx": onnx_model()}),
        "input.x.dims",
        put({"m/1/model.onnx": onnx_model()}, 'default_model_filename: "model.onnx"'),
    ),
    Case(
        "accel's types",
        "python",
        put(artifact(inputs=[{"name": "x", "dtype": "int64", "dims": ["batch", 3]}])),
        "input.x",
        put(artifact()),
        said="TYPE_INT64",
    ),
    Case("accel's names", "python", put(artifact(outputs=[])), "output.y"),
    Case(
        "accel's other names",
        "python",
        put(artifact(outputs=[{"name": n, "dtype": "float32", "dims": ["batch", 3]} for n in "yz"])),
        "output.z",
    ),
    Case(
        "accel's model, decoupled",
        "python",
        add("model_transaction_policy { decoupled: true }", files=artifact()),
        "model_transaction_policy",
        add("model_transaction_policy { decoupled: false }", files=artifact()),
        said="answers each request once",
    ),
    Case("accel's batch", "python", put(artifact(batched=False)), "max_batch_size"),
    Case(
        "accel's model of another release",
        "python",
        put(artifact(numpy_below_2=False)),
        "",
        put(artifact()),
        file="m/1/artifact.json",
        release="24.10",
        severity="warning",
    ),
    Case(
        "torch_aoti input",
        "torch_aoti",
        tensor("ARGS[0]", "ARGS[0]", "ids"),
        "input.ids",
        tensor("ARGS[0]", "ARGS[0]", "KWARGS[ids]"),
    ),
    Case(
        "torch_aoti output",
        "torch_aoti",
        tensor("RESULT[0]", "RESULT[0]", "OUTPUT0"),
        "output.OUTPUT0",
        tensor("RESULT[0]", "RESULT[0]", "OUTPUT__0"),
    ),
    Case("torch_aoti batch", "torch_aoti", add("max_batch_size: 4"), "max_batch_size", severity="warning"),
]
ENSEMBLES = [
    Case("instances of an ensemble", "ensemble", add("instance_group { }", config=FRONT), "instance_group", file=FRONT),
    Case("optimization of it", "ensemble", add("optimization { }", config=FRONT), "optimization", file=FRONT),
    Case("warm-up of it", "ensemble", add(warm(), config=FRONT), "model_warmup", file=FRONT),
    Case(
        "batching of it",
        "ensemble",
        add("dynamic_batching { }", config=FRONT),
        "",
        file=FRONT,
        said="ensemble_scheduling",
    ),
    Case("backend of it", "ensemble", add('backend: "python"', config=FRONT), "backend", file=FRONT),
    Case("platform of it", "ensemble", swap('platform: "ensemble"', "", config=FRONT), "platform", file=FRONT),
    Case(
        "decoupled by hand",
        "ensemble",
        add("model_transaction_policy { decoupled: true }", config=FRONT),
        "model_transaction_policy",
        file=FRONT,
        severity="warning",
    ),
    Case(
        "unknown step",
        "ensemble",
        swap(STEP_2, STEP_2.replace('"m"', '"n"'), config=FRONT),
        STEP.format(1) + ".model_name",
        file=FRONT,
    ),
    Case(
        "step by a path",
        "ensemble",
        swap(STEP_2, STEP_2.replace('"m"', '"../m"'), config=FRONT),
        STEP.format(1) + ".model_name",
        file=FRONT,
        said="unsafe",
    ),
    Case(
        "step in an absent version",
        "ensemble",
        swap("-1 input_" + SECOND, "2 input_" + SECOND, config=FRONT),
        STEP.format(1) + ".model_version",
        swap("-1 input_" + SECOND, "1 input_" + SECOND, config=FRONT),
        file=FRONT,
    ),
    Case(
        "no step",
        "ensemble",
        put({FRONT: f'name: "e"\nplatform: "ensemble"\nmax_batch_size: 4\n{TENSORS}\nensemble_scheduling {{ }}'}),
        "ensemble_scheduling.step",
        file=FRONT,
    ),
]
TWO_INPUTS = {
    "k/config.pbtxt": 'name: "k"\nbackend: "python"\nmax_batch_size: 4\n'
    + TENSORS
    + 'input { name: "w" data_type: TYPE_FP32 dims: [ 3 ] }\n',
    "k/1/model.py": MODEL_PY,
}
MAPS = [
    Case(
        "unmapped step input",
        "ensemble",
        swap(STEP_2, STEP_2.replace('"m"', '"k"'), config=FRONT, files=TWO_INPUTS),
        STEP.format(1) + ".input_map",
        swap(
            STEP_2,
            f'"k" model_version: -1 input_map {{ key: "w" value: "t" }} input_{SECOND}',
            config=FRONT,
            files=TWO_INPUTS,
        ),
        file=FRONT,
        said="'w'",
    ),
    Case(
        "unknown step input",
        "ensemble",
        swap(f"input_{SECOND}", f'input_map {{ key: "q" value: "t" }} input_{SECOND}', config=FRONT),
        STEP.format(1) + ".input_map.q",
        file=FRONT,
    ),
    Case(
        "larger than a step",
        "ensemble",
        swap("max_batch_size: 4", "max_batch_size: 8", config=FRONT),
        "max_batch_size",
        swap("max_batch_size: 4", "max_batch_size: 2", config=FRONT),
        file=FRONT,
    ),
    Case(
        "another type than a step",
        "ensemble",
        tensor("y", "FP32", "INT64", config=FRONT),
        STEP.format(1) + ".output_map.y",
        file=FRONT,
    ),
    Case(
        "other dims than a step",
        "ensemble",
        tensor("x", "[ 3 ]", "[ 4 ]", config=FRONT),
        STEP.format(0) + ".input_map.x",
        tensor("x", "[ 3 ]", "[ -1 ]", config=FRONT),
        file=FRONT,
    ),
]
CASES = [*FILES, *MODEL, *ENSEMBLES, *MAPS]


@pytest.mark.parametrize("case", CASES, ids=[c.name.replace(" ", "-") for c in CASES])
def test_what_breaks_a_rule_is_found_and_its_mended_twin_is_clean(case, tmp_path):
    case.check(tmp_path)
