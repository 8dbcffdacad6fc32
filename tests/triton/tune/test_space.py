"""Spaces of the user's own: what they make of a config, what is refused, and what a real server makes of them."""

import json
import subprocess

import null_repository
import pytest
from test_tuning import Told, asked, misbehaving, quick  # noqa: F401  the fixture

from accel.bench import goodput
from accel.core.errors import InputError, UsageError
from accel.core.values import from_json
from accel.triton import settings as schedules
from accel.triton.config import parse
from accel.triton.launch import with_more
from accel.triton.settings import Settings
from accel.triton.tune import measured, predict, space
from accel.triton.tune.search import coordinates
from accel.triton.verify import verify

SHIPPED = """
name: "m" max_batch_size: 8 backend: "python" instance_group { count: 1 kind: KIND_CPU }
dynamic_batching { default_queue_policy { max_queue_size: 1024 } }
"""
EXAMPLE = """
model_config_parameters:
  instance_group:
    - [{count: 1, kind: KIND_CPU}]
    - [{count: 2, kind: KIND_CPU}]
  dynamic_batching: [off, null, {preferred_batch_size: [4], max_queue_delay_microseconds: 500}, {priority_levels: 2}]
  optimization: [{input_pinned_memory: {enable: false}}]
environment:
  SPEED: ["", fast, 3]
"""
WRONG_WHEN_TOLD = """

class Told(TritonPythonModel):
    def execute(self, requests):
        import triton_python_backend_utils as utils

        if os.environ.get("ANSWERS") != "wrong":
            return super().execute(requests)
        asked = [utils.get_input_tensor_by_name(r, "input_ids").as_numpy() for r in requests]
        return [
            utils.InferenceResponse([utils.Tensor("pooled", np.ones((len(ids), 4), np.float32))]) for ids in asked
        ]


TritonPythonModel = Told
"""


def read(folder, text):
    file = folder / "space.yaml"
    file.write_text(text)
    return space.read(file)


def test_every_combination_is_a_configuration_and_its_schedule_is_known(tmp_path):
    config = parse(SHIPPED)
    found = read(tmp_path, EXAMPLE).settings(config)
    assert len(found) == len(set(found)) == 2 * 4 * 3
    assert {s.instances for s in found} == {1, 2}
    assert {s.variables for s in found} == {("SPEED=",), ("SPEED=fast",), ("SPEED=3",)}
    by = {(s.instances, s.batching, s.preferred, s.delay_us, "priority_levels" in s.fields) for s in found}
    assert {(2, False, (), 0, False), (1, True, (), 0, False), (1, True, (4,), 500, False)} <= by
    assert (1, True, (), 0, True) in by
    off = next(s for s in found if not s.batching)
    on = next(s for s in found if "priority_levels" in s.fields)
    for settings in (off, on):
        model = parse(SHIPPED)
        schedules.apply(model, settings, cpu_threads=2)
        assert model.HasField("dynamic_batching") == settings.batching
        assert model.optimization.HasField("input_pinned_memory")
        assert not model.optimization.input_pinned_memory.enable
        assert schedules.read(model).instances == settings.instances
    assert model.dynamic_batching.priority_levels == 2
    assert model.dynamic_batching.default_queue_policy.max_queue_size == 1024  # what ships stays


def test_what_only_forms_batches_needs_no_curve_of_its_own(tmp_path):
    found = read(tmp_path, EXAMPLE).settings(parse(SHIPPED))
    setups = {predict.setup(s) for s in found}
    assert len(setups) == 2 * 2 * 3  # instances, priority levels or not, variables
    assert len({coordinates(("r", s)) for s in found}) == len(found)
    assert len({setup.name for setup in setups}) == len(setups)


@pytest.mark.parametrize(
    ("text", "kind", "said"),
    [
        ("- 1", InputError, "is not a space: expected model_config_parameters"),
        ("knobs: {a: [1]}", InputError, "is not a space"),
        ("environment: [A]", InputError, "environment: expected a mapping"),
        ("environment: {A-B: [x]}", InputError, r"A-B: expected NAME: \[text"),
        ("environment: {A: []}", InputError, "A has no choices"),
        ("model_config_parameters: {max_batch_size: [4]}", UsageError, "max_batch_size cannot vary: .* promised"),
        ("model_config_parameters: {backend: [x]}", UsageError, "backend cannot vary: it follows from the target"),
        ("model_config_parameters: {response_cache: [{enable: true}]}", UsageError, "--hit-rate"),
        ("model_config_parameters: {optimization: [off]}", UsageError, "only dynamic_batching can be off"),
        (f"environment: {{A: {list(range(50))}, B: {list(range(50))}}}", UsageError, "2500 combinations"),
    ],
)
def test_a_file_that_is_no_space_is_refused_with_its_reason(tmp_path, text, kind, said):
    with pytest.raises(kind, match=said):
        read(tmp_path, text)


@pytest.mark.parametrize(
    ("field", "said"),
    [
        ("{dynamic_batchin: [{}]}", "dynamic_batchin"),
        ("{dynamic_batching: [{priority_levels: many}]}", "priority_levels: .*many"),
        ("{instance_group: [{count: 2}]}", "instance_group: .*repeated field"),
        ("{instance_group: [[{count: -1}]]}", "count is -1, expected 1 or more"),
        ("{dynamic_batching: [{preferred_batch_size: [99]}]}", "preferred_batch_size is 99, and max_batch_size is"),
        ("{dynamic_batching: [{preferred_batch_size: []}]}", "an empty list"),
    ],
)
def test_what_protobuf_refuses_is_named(tmp_path, field, said):
    with pytest.raises(InputError, match=said):
        read(tmp_path, f"model_config_parameters: {field}").settings(parse(SHIPPED))


def test_the_script_that_starts_the_server_sets_what_nobody_else_has_set(tmp_path):
    root = null_repository.write(tmp_path)
    text = (root / "launch.sh").read_text()
    limited = parse(SHIPPED)
    limited.instance_group[0].rate_limiter.priority = 2
    more = with_more(text, [limited], ["WORDS=a b $HOME", "KEPT=1"])
    assert with_more(text, [parse(SHIPPED)], []) == text
    assert "  --rate-limit=execution_count \\\n" in more
    assert with_more(more, [limited], []) == more
    server = tmp_path / "server"
    server.write_text('#!/bin/sh\necho "$WORDS|$KEPT|$*"\n')
    server.chmod(0o755)
    (tmp_path / "launch.sh").write_text(more)
    said = subprocess.run(
        ["bash", str(tmp_path / "launch.sh"), "--more"],
        env={"PATH": "/usr/bin:/bin", "TRITONSERVER": str(server), "KEPT": ""},
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert said.startswith("a b $HOME||")
    assert "--rate-limit=execution_count" in said
    assert said.rstrip().endswith("--more")


@pytest.mark.campaign
def test_a_space_is_measured_and_what_answers_otherwise_is_out(tmp_path, quick, monkeypatch):  # noqa: F811
    monkeypatch.setattr(measured, "FINALISTS", 2)
    monkeypatch.setattr(goodput, "MOST_PROBES", 3)
    root = misbehaving(tmp_path, WRONG_WHEN_TOLD)
    own = read(
        tmp_path,
        "model_config_parameters: {dynamic_batching: [{priority_levels: 2, default_priority_level: 1}]}\n"
        "environment: {ANSWERS: [right, wrong]}",
    )
    found, folder = Told().tune(asked(root, space=own))
    (unfit,) = {why for name, why in found["unfit"].items() if "ANSWERS=wrong" in name}
    assert "it answers otherwise: outputs/" in unfit
    labels = [row["label"] for row in found["tried"]]
    assert labels[0] == str(from_json(Settings, found["tried"][0]["settings"]))
    assert [label for label in labels[1:] if "priority_levels: 2" in label and "ANSWERS=right" in label]
    rows = {row["label"]: row for row in found["tried"]}
    assert any(row["probes"] for label, row in rows.items() if "ANSWERS=right" in label)
    assert not any("ANSWERS=wrong" in label for label in rows)
    assert not [f for f in verify(folder / "repository") if f.severity == "error"]
    chosen = next(row for row in found["tried"] if row["chosen"])
    told = "ANSWERS=right" in (folder / "repository" / "launch.sh").read_text()
    assert told == ("ANSWERS=right" in chosen["settings"]["variables"])
    assert json.loads((folder / "tune.json").read_text()) == found
