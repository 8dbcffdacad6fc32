"""Overrides: every field of Triton's schema is reached or refused with a reason, and nothing is lost on the way."""

import copy
from pathlib import Path

import numpy as np
import pytest
from google.protobuf import text_format
from hypothesis import given, strategies as st
from tritonclient.grpc import model_config_pb2 as pb

from accel.builders import targets
from accel.core.errors import InputError, UsageError
from accel.core.values import TensorSpec
from accel.run.job import assemble
from accel.triton import manifest as manifests, overrides
from accel.triton.config import (
    BATCHING,
    check,
    model_config,
    parse,
    tensor,
    to_text,
)
from accel.triton.verify import accept_configs, verify

INPUT = TensorSpec("ids", "int64", ("seq",))
WARM = tensor(TensorSpec("ids", "int64", (6,))) | {"input_data_file": "opt.bin"}
BASE = model_config(
    "model",
    (INPUT,),
    (TensorSpec("scores", "float32", (4,)),),
    max_batch_size=8,
    version=1,
    backend="onnxruntime",
    default_model_filename="model.onnx",
    dynamic_batching=BATCHING,
    model_warmup=[{"name": "opt_batch1", "batch_size": 1, "count": 1, "inputs": {"ids": WARM}}],
    parameters={"intra_op_thread_count": "2"},
)


def applied(text: str, base=BASE):
    model = copy.deepcopy(base)
    overrides.apply(text, model)
    return model


# ---------------------------------------------------------------------------------------------------------------------
# The whole schema

NAMED = {"input": 'name: "ids"', "output": 'name: "scores"'}
REFUSED = {
    "name",
    "platform",
    "backend",
    "default_model_filename",
    *(f"version_policy.{f}" for f in ("latest.num_versions", "all", "specific.versions")),
    *(f"input.{f}" for f in ("name", "data_type", "dims")),
    *(f"output.{f}" for f in ("name", "data_type", "dims")),
    "ensemble_scheduling.max_inflight_requests",
    "ensemble_scheduling.step.model_name",
    "ensemble_scheduling.step.model_version",
    "ensemble_scheduling.step.model_namespace",
    "ensemble_scheduling.step.input_map",
    "ensemble_scheduling.step.output_map",
}
"""Fields that the layout or the client contract decides."""


def is_map(field) -> bool:
    return field.message_type is not None and field.message_type.GetOptions().map_entry


def value_of(field) -> str:
    """Return a value that is not the field's default."""
    if field.enum_type is not None:
        return field.enum_type.values[-1].name
    if field.cpp_type == field.CPPTYPE_STRING:
        return '"other"'
    return "true" if field.cpp_type == field.CPPTYPE_BOOL else "3"


def leaves(message, path=""):
    """Yield (path, text that sets it) of every field that holds a value, at any depth; an empty message is one."""
    for field in message.fields:
        name = f"{path}{field.name}"
        if is_map(field):
            entry = field.message_type.fields_by_name
            key = f"key: {value_of(entry['key'])}"
            if entry["value"].message_type is None:
                yield name, f"{field.name} {{ {key} value: {value_of(entry['value'])} }}"
                continue
            for below, text in leaves(entry["value"].message_type, f"{name}."):
                yield below, f"{field.name} {{ {key} value {{ {text} }} }}"
        elif field.message_type is not None:
            found = list(leaves(field.message_type, f"{name}."))
            for below, text in found:
                extra = "" if below == f"{name}.name" else NAMED.get(name, "")
                yield below, f"{field.name} {{ {extra} {text} }}"
            if not found:
                yield name, f"{field.name} {{}}"
        else:
            yield name, f"{field.name}: {value_of(field)}"


LEAVES = dict(leaves(pb.ModelConfig.DESCRIPTOR))


def test_the_schema_is_the_one_that_was_looked_at():
    top = {path.partition(".")[0] for path in LEAVES}
    assert top == {f.name for f in pb.ModelConfig.DESCRIPTOR.fields}
    assert len(LEAVES) > 120
    assert set(LEAVES) >= REFUSED


@pytest.mark.parametrize("path", LEAVES)
def test_every_field_is_reached_or_refused(path):
    text = LEAVES[path]
    if path in REFUSED:
        with pytest.raises(InputError, match="cannot be overridden"):
            applied(text)
        return
    found = applied(text)
    expected = text_format.Parse(text, pb.ModelConfig())
    for field, value in expected.ListFields():
        mine = getattr(found, field.name)
        if field.name in NAMED:
            tensor = getattr(copy.deepcopy(BASE), field.name)[0]
            tensor.MergeFrom(value[0])
            assert mine[0] == tensor
        elif field.name == "instance_group":
            value[0].count = value[0].count or 1
            if path != "instance_group.kind":
                value[0].kind = pb.ModelInstanceGroup.KIND_GPU if value[0].gpus else pb.ModelInstanceGroup.KIND_CPU
            assert list(mine) == list(value)
        elif hasattr(value, "items"):
            assert all(mine[key] == item for key, item in value.items())
        elif path.startswith("dynamic_batching."):
            merged = copy.deepcopy(BASE).dynamic_batching
            merged.MergeFrom(value)
            assert mine == merged
        else:
            assert to_text_of(mine) == to_text_of(value)


def to_text_of(value) -> str:
    return str(list(value)) if hasattr(value, "extend") else str(value)


@given(st.lists(st.sampled_from(sorted(set(LEAVES) - REFUSED)), min_size=1, max_size=4))
def test_text_keeps_what_was_given(paths):
    text = overrides.merged(*(LEAVES[p] for p in paths))
    assert overrides.merged(text) == text
    assert overrides.merged(text, text) == text


# ---------------------------------------------------------------------------------------------------------------------
# Merging


def test_a_whole_config_given_back_changes_nothing():
    assert applied(to_text(BASE)) == BASE


def test_scalars_and_messages_merge_maps_by_key_and_lists_are_replaced():
    base = copy.deepcopy(BASE)
    found = applied(
        """
        dynamic_batching { max_queue_delay_microseconds: 500 preferred_batch_size: [4, 8] }
        parameters { key: "enable_mem_arena" value { string_value: "0" } }
        optimization { graph { level: -1 } }
        model_warmup { name: "none" batch_size: 0 }
        """
    )
    assert found.dynamic_batching.max_queue_delay_microseconds == 500
    assert {k: v.string_value for k, v in found.parameters.items()} == {
        "intra_op_thread_count": "2",
        "enable_mem_arena": "0",
    }
    assert [w.name for w in found.model_warmup] == ["none"]
    base.ClearField("model_warmup")
    assert found.input == base.input
    assert found.version_policy == base.version_policy


def test_zero_and_false_count_as_given():
    first = "dynamic_batching { preserve_ordering: true } response_cache { enable: true }"
    last = "dynamic_batching { preserve_ordering: false } response_cache { enable: false }"
    found = applied(overrides.merged(first, last))
    assert not found.dynamic_batching.preserve_ordering
    assert not found.response_cache.enable
    assert overrides.max_batch_size("max_batch_size: 0") == 0
    assert overrides.max_batch_size("response_cache {}") is None


def test_another_scheduler_takes_the_place_of_dynamic_batching():
    found = applied("sequence_batching { oldest { max_candidate_sequences: 4 } }")
    assert found.WhichOneof("scheduling_choice") == "sequence_batching"
    assert not found.HasField("dynamic_batching")


def test_an_instance_group_gets_accels_count_and_kind_where_it_says_nothing():
    groups = applied('instance_group [{ count: 2 }, { host_policy: "near" }, { gpus: [0, 1] }]').instance_group
    kinds = pb.ModelInstanceGroup
    assert [(g.count, g.kind) for g in groups] == [(2, kinds.KIND_CPU), (1, kinds.KIND_CPU), (1, kinds.KIND_GPU)]
    assert overrides.instances('instance_group [{ count: 2 }, { host_policy: "near" }]') == 3
    assert overrides.instances("") == 1


def test_inputs_gain_properties_by_name():
    found = applied('input { name: "ids" optional: true } output { name: "scores" label_filename: "labels.txt" }')
    assert (found.input[0].optional, list(found.input[0].dims)) == (True, [-1])
    assert (len(found.output), found.output[0].label_filename) == (1, "labels.txt")
    same = 'input { name: "ids" data_type: TYPE_INT64 dims: -1 allow_ragged_batch: true }'
    assert applied(same).input[0].allow_ragged_batch


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('name: "other"', "--model-name"),
        ('backend: "python"', "--targets"),
        ('platform: "onnxruntime_onnx"', "--targets"),
        ("version_policy { latest { num_versions: 1 } }", "--model-version"),
        ('default_model_filename: "other.onnx"', "artifact's own file"),
        ("ensemble_scheduling {}", "accel writes the ensembles"),
        ('input { name: "ids" dims: 4 }', "promised to clients"),
        ('input { name: "ids" data_type: TYPE_INT32 }', "promised to clients"),
        ('output { name: "score" label_filename: "x" }', "did you mean scores"),
    ],
)
def test_layout_and_contract_stay(text, message):
    with pytest.raises(InputError, match=message):
        applied(text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("dynamic_batching { preferred_batch_size: 16 }", "preferred_batch_size 16, expected 1 to"),
        ("dynamic_batching { preferred_batch_size: 0 }", "preferred_batch_size 0"),
        ("sequence_batching { oldest { preferred_batch_size: 9 } }", "preferred_batch_size 9"),
        ("max_batch_size: 0", "cannot batch requests"),
        ("sequence_batching {} response_cache { enable: true }", "response_cache with sequence_batching"),
        ("model_transaction_policy { decoupled: true } response_cache { enable: true }", "decoupled"),
        ("instance_group { count: -1 }", "count -1"),
        ('instance_group { host_policy: "a,b=$(id)" }', "becomes a server flag"),
        ('model_warmup { name: "w" batch_size: 1 inputs { key: "ids" value { dims: -1 } } }', "not concrete"),
    ],
)
def test_what_the_server_refuses_is_refused(text, message):
    with pytest.raises(InputError, match=message):
        check(applied(text))


def test_models_of_the_python_backend_answer_once():
    """The server would load it, and accel's own model.py has no sender of responses: every request would fail."""
    model = applied("model_transaction_policy { decoupled: true }")
    model.backend = "python"
    with pytest.raises(InputError, match="answers each request once"):
        check(model)
    model.model_transaction_policy.decoupled = False
    check(model)


# ---------------------------------------------------------------------------------------------------------------------
# Reading


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("dynamic_batching {\n  max_delay: 1\n}", r'o\.pbtxt:2:3 .*no field named "max_delay"'),
        ("instance_group { kind: KIND_TPU }", r"o\.pbtxt:1:24 .*KIND_TPU"),
        ('\n\nmax_batch_size: "8"', r"o\.pbtxt:3:17 .*max_batch_size"),
        ("dynamic_batching {} sequence_batching {}", "another member of oneof"),
        ("max_batch_size: 99999999999", "out of range"),
        ("dynamic_batching {", r"o\.pbtxt:1:1"),
        ("model_warmup: [ ]", r"o\.pbtxt:1:17 .*empty list"),
        ("optimization { execution_accelerators { gpu_execution_accelerator: [] } }", "empty list"),
        ('output { name: "y" label_filename: "absent.txt" }', "label_filename 'absent.txt' is not a file"),
    ],
)
def test_a_text_that_is_wrong_is_refused_with_its_line(tmp_path, text, message):
    (tmp_path / "o.pbtxt").write_text(text)
    with pytest.raises(InputError, match=message):
        overrides.from_file(tmp_path / "o.pbtxt")


def test_a_file_that_cannot_be_read_is_refused(tmp_path):
    with pytest.raises(InputError, match="cannot be read"):
        overrides.from_file(tmp_path / "absent.pbtxt")
    (tmp_path / "binary.pbtxt").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError, match="cannot be read"):
        overrides.from_file(tmp_path / "binary.pbtxt")


def made(folder: Path, job: str, **given):
    (folder / "job.yaml").write_text(job)
    return assemble({"source": "bert", "targets": "ort,openvino"} | given, folder / "job.yaml", command="accel")


@pytest.mark.parametrize(
    ("job", "message"),
    [
        ("triton:\n  dynamic_batching:\n    max_delay: 5", r":3: triton\.dynamic_batching\.max_delay: .*no field"),
        ("triton:\n  dynamic_batch: {}", r":2: triton\.dynamic_batch: .*no field"),
        ("triton:\n  instance_group:\n  - count: 1\n  - kind: KIND_TPU", r":4: triton\.instance_group\[1\]\.kind"),
        ("triton:\n  instance_group: {count: 2}", r":2: triton\.instance_group: .*repeated field"),
        ("triton:\n  max_batch_size: 1.5", r":2: triton\.max_batch_size: Couldn't parse integer"),
        ("triton:\n  max_batch_size: true", r":2: triton\.max_batch_size: Bool value"),
        ("triton:\n  parameters:\n    a: {string_value: 2}", r":2: triton\.parameters.*: expected string"),
        ("triton:\n  dynamic_batching:", r":2: triton\.dynamic_batching has no value"),
        ("triton:\n  model_warmup: []", r":2: triton\.model_warmup is an empty list"),
        ("triton:\n  targets:\n    ort:\n      name: 3", r":4: triton\.targets\.ort\.name"),
        ("triton:\n  targets: [ort]", r"triton\.targets: expected a mapping"),
        ("triton: 3", "triton: Input should be a valid dictionary"),
    ],
)
def test_a_job_file_that_is_wrong_is_refused_with_field_and_line(tmp_path, job, message):
    with pytest.raises(InputError, match=message):
        made(tmp_path, job)


def test_an_unknown_target_is_refused(tmp_path):
    with pytest.raises(UsageError, match=r"job\.yaml:3: triton\.targets\.openvin: .*did you mean openvino"):
        made(tmp_path, "triton:\n  targets:\n    openvin: {}")


def test_targets_win_over_the_whole_and_the_command_line_over_both(tmp_path):
    (tmp_path / "o.pbtxt").write_text("dynamic_batching { max_queue_delay_microseconds: 3 }")
    job = """
    triton:
      dynamic_batching: {max_queue_delay_microseconds: 1, preserve_ordering: true}
      metric_tags: {team: search}
      targets:
        openvino: {metric_tags: {team: vision}, dynamic_batching: {max_queue_delay_microseconds: 2}}
        openvino.python: {max_batch_size: 4}
    """
    plain = made(tmp_path, job).overrides
    assert applied(plain["ort"]).dynamic_batching.max_queue_delay_microseconds == 1
    assert applied(plain["openvino"]).dynamic_batching.max_queue_delay_microseconds == 2
    assert applied(plain["openvino"]).metric_tags["team"] == "vision"
    assert [overrides.max_batch_size(plain[name]) for name in ("openvino", "openvino.python")] == [None, 4]
    found = made(tmp_path, job, triton_config=tmp_path / "o.pbtxt").overrides
    for target in ("ort", "openvino", "openvino.python"):
        batching = applied(found[target]).dynamic_batching
        assert (batching.max_queue_delay_microseconds, batching.preserve_ordering) == (3, True)
    assert made(tmp_path, "rounds: 3").overrides == {}
    alone = assemble({"source": "bert", "targets": "ort", "triton_config": tmp_path / "o.pbtxt"}, None, command="accel")
    assert applied(alone.overrides["ort"]).dynamic_batching.max_queue_delay_microseconds == 3


# ---------------------------------------------------------------------------------------------------------------------
# In a repository


def config_of(root: Path, name: str = "embedding/config.pbtxt"):
    return parse((root / name).read_text())


def test_overrides_reach_the_repository_and_its_manifest(bench):
    artifact = bench.artifact("onnxruntime")
    bench.emit(artifact, overrides="response_cache { enable: true } max_batch_size: 4")
    config = config_of(bench.root(artifact))
    assert (config.response_cache.enable, config.max_batch_size) == (True, 4)
    assert [w.batch_size for w in config.model_warmup if w.name.startswith("opt_")] == [1, 4]
    manifest = manifests.read(bench.root(artifact))
    assert manifest.max_batch_size == 4
    assert overrides.max_batch_size(manifest.overrides) == 4
    assert verify(bench.root(artifact)) == ()


def test_batching_can_be_switched_off_without_clients_noticing(bench):
    artifact = bench.artifact("python")
    bench.emit(artifact, overrides="max_batch_size: 0")
    config = config_of(bench.root(artifact))
    assert [list(t.dims) for t in config.input] == [[-1, -1], [-1, -1]]
    assert not config.HasField("dynamic_batching")
    assert [w.batch_size for w in config.model_warmup] == [1] * len(config.model_warmup)
    assert verify(bench.root(artifact)) == ()


@pytest.mark.parametrize(
    ("backend", "text", "message"),
    [
        ("onnxruntime", "max_batch_size: 9", "expected 0 to 8 .the profile's largest batch"),
        ("onnxruntime", "max_batch_size: -1", "expected 0 to 8"),
        ("openvino", "max_batch_size: 8", "cannot batch"),
        ("openvino", "dynamic_batching {}", "cannot batch"),
        ("openvino", "instance_group { kind: KIND_GPU }", "KIND_CPU"),
        ("aoti", "dynamic_batching {}", "cannot batch"),
        ("onnxruntime", 'cc_model_filenames { key: "9.0" value: "../h100.onnx" }', "not a file of the artifact"),
    ],
)
def test_what_the_backend_cannot_do_is_refused(bench, backend, text, message):
    with pytest.raises(InputError, match=message):
        bench.emit(bench.artifact(backend), overrides=text)
    assert not bench.root(bench.artifact(backend)).exists()


def test_of_a_pair_the_inner_model_is_changed_under_the_clients_names(bench, tmp_path):
    labels = tmp_path / "mine" / "labels.txt"
    labels.parent.mkdir()
    labels.write_text("a\nb\nc\nd\n")
    data = np.arange(6, dtype=np.int64)
    (tmp_path / "mine" / "ids.bin").write_bytes(data.tobytes())
    (tmp_path / "mine" / "o.pbtxt").write_text(
        """
        instance_group { count: 2 }
        metric_tags { key: "team" value: "search" }
        output { name: "pooled" label_filename: "labels.txt" }
        model_warmup {
          name: "mine"  batch_size: 1
          inputs { key: "input_ids" value { data_type: TYPE_INT64 dims: [1, 6] input_data_file: "ids.bin" } }
          inputs { key: "attention_mask" value { data_type: TYPE_INT64 dims: [1, 6] zero_data: true } }
        }
        """
    )
    artifact = bench.artifact("aoti")
    text = overrides.from_file(tmp_path / "mine" / "o.pbtxt")
    bench.emit(artifact, overrides=text)
    root = bench.root(artifact)
    front, inner = config_of(root), config_of(root, "embedding_aoti/config.pbtxt")
    assert (len(front.instance_group), len(front.metric_tags), len(front.model_warmup)) == (0, 0, 0)
    assert (inner.instance_group[0].count, inner.metric_tags["team"]) == (2, "search")
    assert front.output[1].label_filename == inner.output[1].label_filename == "labels.txt"
    assert (
        (root / "embedding/labels.txt").read_text()
        == (root / "embedding_aoti/labels.txt").read_text()
        == "a\nb\nc\nd\n"
    )
    assert set(inner.model_warmup[0].inputs) == {"ARGS[0]", "ARGS[1]"}
    assert [p.name for p in (root / "embedding_aoti/warmup").iterdir()] == ["ids.bin"]
    assert str(tmp_path) not in manifests.read(root).overrides
    assert verify(root) == ()
    before = overrides.file_hashes(text)
    labels.write_text("other\n")
    assert overrides.file_hashes(text) != before
    (tmp_path / "mine" / "ids.bin").write_bytes(bytes(8))
    with pytest.raises(InputError, match=r"ids\.bin .* has 8 bytes, its dims say 48"):
        bench.emit(artifact, overrides=text)


def test_files_of_one_name_cannot_both_come_along(tmp_path):
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "labels.txt").write_text(folder)
    text = "".join(f'output {{ name: "{f}" label_filename: "{tmp_path / f}/labels.txt" }}' for f in ("one", "two"))
    with pytest.raises(InputError, match=r"would both be labels\.txt"):
        overrides.take_files(text)


def test_a_file_cannot_take_the_place_of_the_config(bench, tmp_path):
    (tmp_path / "config.pbtxt").write_text("x")
    text = f'output {{ name: "pooled" label_filename: "{tmp_path}/config.pbtxt" }}'
    artifact = bench.artifact("onnxruntime")
    with pytest.raises(InputError, match="has that name already"):
        bench.emit(artifact, overrides=text)


@pytest.mark.parametrize(
    ("backend", "instances", "expected"),
    [
        ("onnxruntime", 1, {"intra_op_thread_count": "4"}),
        ("onnxruntime", 3, {"intra_op_thread_count": "1"}),
        ("onnxruntime", 9, {"intra_op_thread_count": "1"}),
        ("openvino", 1, {"PERFORMANCE_HINT": "LATENCY", "INFERENCE_NUM_THREADS": "4"}),
        ("openvino", 2, {"PERFORMANCE_HINT": "THROUGHPUT", "NUM_STREAMS": "2", "INFERENCE_NUM_THREADS": "4"}),
        ("python", 2, {"threads": "2"}),
        ("pytorch", 1, {}),
        ("tensorrt", 1, {}),
    ],
)
def test_instances_share_the_threads_of_the_measurement(backend, instances, expected):
    assert targets.backend(backend).parameters(4, instances) == expected


def test_the_hardware_names_a_config_of_its_own(bench):
    for backend, inner, pinned in (("openvino", "embedding", True), ("python", "embedding", False)):
        artifact = bench.artifact(backend)
        bench.emit(artifact, threads=4, hardware="amd-epyc-4cpu", overrides="instance_group { count: 2 }")
        root = bench.root(artifact)
        plain, named = config_of(root), config_of(root, f"{inner}/configs/amd-epyc-4cpu.pbtxt")
        threads = {"openvino": ("NUM_STREAMS", "2"), "python": ("threads", "2")}[backend]
        assert named.parameters[threads[0]].string_value == threads[1]
        assert (threads[0] in plain.parameters) == pinned
        for config in (named, plain):
            config.parameters.pop("threads", None)
        assert named == plain
        assert verify(root)[1:] == ()
        assert manifests.read(root).hardware == "amd-epyc-4cpu"


def test_the_config_of_other_hardware_may_join_and_is_checked(bench):
    artifact = bench.artifact("python")
    bench.emit(artifact, threads=4, hardware="amd-epyc-4cpu")
    root = bench.root(artifact)
    text = (root / "embedding/configs/amd-epyc-4cpu.pbtxt").read_text()
    (root / "embedding/configs/intel-xeon-8cpu.pbtxt").write_text(text.replace('"4"', '"8"'))
    assert [f.file for f in verify(root)] == ["embedding/configs/intel-xeon-8cpu.pbtxt"]
    accept_configs(root)
    assert verify(root) == ()
    (root / "embedding/configs/other.pbtxt").write_text(text.replace("TYPE_INT64", "TYPE_INT32"))
    (root / "embedding/configs/note.txt").write_text("")
    found = {(f.file, f.field) for f in verify(root)}
    assert ("embedding/configs/note.txt", "") in found
    assert ("embedding/configs/other.pbtxt", "input") in found
