"""A native repository with a model before it that groups requests by length: files, configs and what is refused."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import embedding
import pytest
from test_triton_ensemble import tokenizer_file
from test_triton_grouping import EMBEDDING, HOW

from accel.core.errors import InputError, OutputError, UsageError
from accel.core.processing import Pipeline, Pool, Tokenize
from accel.core.values import TensorSpec
from accel.run import load_test
from accel.triton import ensemble, manifest as manifests
from accel.triton.config import parse, to_text
from accel.triton.lint import lint
from accel.triton.python_variant import write_python_variant
from accel.triton.reading import CONFIG, read_configs
from accel.triton.routing import why_not, write_routed
from accel.triton.tune import lab
from accel.triton.verify import verify


def native(bench: Any, backend: str, **changes: Any) -> Path:
    artifact = bench.artifact(backend)
    bench.emit(artifact, **(EMBEDDING | changes))
    return Path(bench.root(artifact))


def routed(bench: Any, backend: str, **changes: Any) -> Path:
    out = Path(bench.run_dir) / "routed"
    write_routed(native(bench, backend, **changes), out)
    return out


def errors(root: Path) -> list[manifests.Finding]:
    """Return what verify and lint find, but of the files that stand for an OpenVINO IR here."""
    found = [*verify(root), *lint(root, manifests.read(root).release)]
    return [f for f in found if f.severity == "error" and not f.file.endswith("model.xml")]


@pytest.mark.parametrize("backend", ["onnxruntime", "openvino", "aoti"])
def test_clients_see_the_same_model(bench, backend):
    out = routed(bench, backend)
    before, after = manifests.read(bench.root(bench.artifact(backend))), manifests.read(out)
    assert after.models[0] == before.models[0] == "embedding"
    assert (after.inputs, after.outputs, after.backend) == (before.inputs, before.outputs, before.backend)
    assert after.max_batch_size == 8
    assert not before.groups
    assert after.groups
    front = read_configs(out)["embedding"]
    assert [(t.name, list(t.dims)) for t in front.input] == [("input_ids", [-1]), ("attention_mask", [-1])]
    assert [(t.name, list(t.dims)) for t in front.output] == [("hidden", [-1, embedding.WIDTH]), ("pooled", [4])]
    assert errors(out) == []


@pytest.mark.parametrize("backend", ["onnxruntime", "openvino"])
def test_configs_match_their_golden_files(bench, golden, backend):
    out = routed(bench, backend)
    for model in ("embedding", "embedding_core"):
        golden(f"triton_{backend}_routed_{model}.pbtxt", (out / model / CONFIG).read_text(encoding="utf-8"))


def test_the_server_of_both_needs_numpy_and_nothing_of_the_runtime(bench):
    out = routed(bench, "onnxruntime")
    assert "RUN pip install --no-cache-dir numpy\n" in (out / "Dockerfile").read_text()
    assert manifests.read(out).requires == {}
    assert not list((out / "embedding").rglob("model.onnx"))
    assert not list((out / "embedding").rglob("embedding.py")), "nor the builder"


@pytest.mark.parametrize("backend", ["onnxruntime", "openvino", "aoti"])
def test_the_core_is_warmed_up_at_every_length_and_with_full_groups(bench, backend):
    """The model in front cannot be: the server loads both at once."""
    out = routed(bench, backend)
    configs, core = read_configs(out), str(manifests.read(out).core)
    assert not configs["embedding"].model_warmup
    met = set()
    for sample in configs[core].model_warmup:
        dims = list(next(iter(sample.inputs.values())).dims)
        met.add((sample.batch_size, *dims) if configs[core].max_batch_size else tuple(dims))
    assert {(1, n) for n in HOW.lengths} <= met
    assert {(8, n) for n in HOW.usual} <= met


def test_a_backend_that_dictates_names_is_asked_by_them(bench):
    """The ensemble that renamed tensors is not needed."""
    out = routed(bench, "aoti")
    assert sorted(read_configs(out)) == ["embedding", "embedding_aoti"]
    told = json.loads((out / "embedding" / "1" / "artifact.json").read_text())["core"]
    assert told == {
        "name": "embedding_aoti",
        "input_names": embedding.AOTI_NAMES,
        "output_names": embedding.AOTI_OUTPUTS,
    }


def test_a_place_of_the_models_own_moves_with_it(bench):
    asked = (
        "optimization { execution_accelerators { gpu_execution_accelerator { name: 'tensorrt' parameters "
        "{ key: 'trt_engine_cache_path' value: 'embedding/1/engines' } } } }"
    )
    core = read_configs(routed(bench, "onnxruntime", overrides=asked))["embedding_core"]
    [accelerator] = core.optimization.execution_accelerators.gpu_execution_accelerator
    assert accelerator.parameters["trt_engine_cache_path"] == "embedding_core/1/engines"


def test_what_a_config_says_of_clients_goes_to_the_model_in_front_and_back_again(bench, tmp_path, monkeypatch):
    asked = (
        "dynamic_batching { max_queue_delay_microseconds: 7 } response_cache { enable: true } max_batch_size: 4 "
        "instance_group { count: 3 }"
    )
    out = routed(bench, "onnxruntime", overrides=asked)
    front, core = (read_configs(out)[name] for name in ("embedding", "embedding_core"))
    assert (front.dynamic_batching.max_queue_delay_microseconds, front.max_batch_size) == (7, 4)
    assert front.response_cache.enable
    assert not core.HasField("dynamic_batching")
    assert not core.HasField("response_cache")
    assert (front.instance_group[0].count, core.instance_group[0].count) == (1, 3)
    assert json.loads((out / "embedding/1/artifact.json").read_text())["grouping"]["rows"] == 4
    assert errors(out) == []
    monkeypatch.setattr("accel.builders.targets.discover", lambda: {"onnxruntime": embedding.BUILDER})
    write_python_variant(out, tmp_path / "python", release="24.10")
    [whole] = read_configs(tmp_path / "python").values()
    assert (whole.name, whole.default_model_filename, whole.max_batch_size) == ("embedding", "grouped.py", 4)
    assert whole.dynamic_batching.max_queue_delay_microseconds == 7
    assert whole.response_cache.enable
    assert whole.instance_group[0].count == 3
    assert errors(tmp_path / "python") == []


@pytest.mark.parametrize("backend", ["onnxruntime", "openvino"])
def test_an_ensemble_is_made_anew_around_it_and_tokenises_without_padding(bench, tmp_path, backend):
    root = native(bench, backend)
    step = Tokenize(10, tokenizer_file(tmp_path), padding="max_length")
    names = ensemble.add(root, Pipeline(step, Pool("mean", output="hidden")))
    made = write_routed(root, tmp_path / "routed")
    assert made.models == ("embedding", "embedding_core", *names)
    assert errors(tmp_path / "routed") == []
    options = json.loads((tmp_path / "routed" / "embedding_tokenizer" / "1" / "step.json").read_text())
    assert options["options"]["min_length"] == 1
    steps = read_configs(tmp_path / "routed")["embedding_pipeline"].ensemble_scheduling.step
    assert [s.model_name for s in steps] == ["embedding_tokenizer", "embedding", "embedding_pool"]


def test_what_may_not_be_grouped_or_groups_already_is_refused(bench, tmp_path):
    half = tuple(TensorSpec(s.name, "bfloat16", s.dims) for s in embedding.OUTPUTS)
    refused = {
        "embedding routes already": routed(bench, "onnxruntime"),
        "groups requests by length itself": native(bench, "python"),
        "its answers depend on padding": native(
            bench, "openvino", grouping=None, ungrouped="its answers depend on padding"
        ),
        "has no lengths, or was not asked": native(bench, "aoti", grouping=None),
    }
    for why, given in refused.items():
        assert why in str(why_not(manifests.read(given)))
        with pytest.raises(InputError, match=why):
            write_routed(given, tmp_path / "new")
    unmerged = native(bench, "onnxruntime", overrides="max_batch_size: 0")
    assert why_not(manifests.read(unmerged)) == "its requests are not merged"
    plain = native(bench, "onnxruntime")
    assert why_not(manifests.read(plain)) is None
    told = manifests.read(plain)
    assert "bfloat16" in str(why_not(dataclasses.replace(told, outputs=half)))
    assert not (tmp_path / "new").exists()
    with pytest.raises(OutputError, match="exists already"):
        write_routed(plain, Path(bench.run_dir) / "routed")


def test_the_two_models_are_not_tuned_together(bench, tmp_path):
    with pytest.raises(InputError, match="groups requests for embedding_core"):
        lab.subject(routed(bench, "onnxruntime"), name="embedding", scratch=tmp_path, logs=tmp_path)
    asked = load_test.LoadTestRequest(target=str(Path(bench.run_dir) / "routed"))
    with pytest.raises(UsageError, match="groups requests for embedding_core"):
        load_test.batching_sweep(asked, print, print)


def test_a_core_of_another_batch_size_is_found(bench):
    out = routed(bench, "openvino")
    config = parse((out / "embedding_core" / CONFIG).read_text())
    assert config.max_batch_size == 0
    config.max_batch_size = 4
    (out / "embedding_core" / CONFIG).write_text(to_text(config))
    assert "max_batch_size" in {f.field for f in errors(out)}
