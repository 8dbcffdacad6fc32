"""Repositories as they are emitted: contract, configs, warmup, files, and what is refused."""

import json
import os
import re
from dataclasses import replace
from pathlib import Path

import embedding
import numpy as np
import pytest
from embedding import SERVED

from accel.core.errors import InputError, OutputError, UsageError
from accel.core.values import ShapeRange, Skipped, TensorSpec
from accel.triton import manifest as manifests
from accel.triton.config import parse
from accel.triton.repository import verify
from accel.triton.samples import ReferencePoint, warmup

BACKENDS = ("onnxruntime", "openvino", "aoti", "python")


def config_of(root: Path, model: str = "embedding"):
    return parse((root / model / "config.pbtxt").read_text())


def client_view(config) -> list[tuple[str, int, list[int]]]:
    """Return what a client sends and gets: names, data types and shapes with the batch axis."""
    lead = [-1] if config.max_batch_size else []
    return [(t.name, t.data_type, lead + list(t.dims)) for t in (*config.input, *config.output)]


@pytest.mark.parametrize("backend", BACKENDS)
def test_config_matches_its_golden_file(bench, golden, backend):
    artifact = bench.artifact(backend)
    repository = bench.emit(artifact, threads=2, hardware="amd-epyc-2cpu")
    for model in repository.models:
        golden(f"triton_{backend}_{model}.pbtxt", (bench.root(artifact) / model / "config.pbtxt").read_text())
    golden(f"triton_{backend}_launch.sh", (bench.root(artifact) / "launch.sh").read_text())


def test_every_backend_shows_clients_the_same_contract(bench):
    seen = []
    for backend in BACKENDS:
        artifact = bench.artifact(backend)
        repository = bench.emit(artifact)
        assert repository.models[0] == "embedding"
        seen.append(client_view(config_of(bench.root(artifact))))
    assert all(view == seen[0] for view in seen)
    assert seen[0][0] == ("input_ids", 9, [-1, -1])


def test_only_the_backends_that_can_batch_get_a_batch_size(bench):
    sizes = {}
    for backend in BACKENDS:
        artifact = bench.artifact(backend)
        batches = bench.emit(artifact).batches
        config = config_of(bench.root(artifact))
        sizes[backend] = (config.max_batch_size, config.HasField("dynamic_batching"))
        assert batches == sizes[backend][1]
    assert sizes == {"onnxruntime": (8, True), "openvino": (0, False), "aoti": (0, False), "python": (8, True)}


def test_the_manifest_names_the_mask_and_an_old_one_means_the_usual(bench):
    artifact = bench.artifact("onnxruntime")
    root = bench.root(artifact)
    bench.emit(artifact, mask="input_ids")
    assert manifests.read(root).mask == "input_ids"
    stated = json.loads((root / manifests.FILENAME).read_text())
    del stated["mask"]
    (root / manifests.FILENAME).write_text(json.dumps(stated))
    assert manifests.read(root).mask == "attention_mask"


def test_an_output_without_the_batch_axis_switches_batching_off(bench):
    artifact = bench.artifact("onnxruntime")
    outputs = (replace(embedding.OUTPUTS[0], dims=("seq", "batch", 4)), embedding.OUTPUTS[1])
    artifact = replace(artifact, built=replace(artifact.built, outputs=outputs))
    reference = dict(np.load(bench.reference))
    np.savez(bench.reference, **{k: v.swapaxes(0, 1) if k.endswith("hidden") else v for k, v in reference.items()})
    bench.emit(artifact, source=replace(embedding.source(), outputs=outputs))
    config = config_of(bench.root(artifact))
    assert config.max_batch_size == 0
    assert [list(t.dims) for t in config.input] == [[-1, -1], [-1, -1]]


def test_an_output_of_the_batch_axis_alone_switches_batching_off(bench):
    artifact = bench.artifact("onnxruntime")
    outputs = (embedding.OUTPUTS[0], replace(embedding.OUTPUTS[1], dims=("batch",)))
    artifact = replace(artifact, built=replace(artifact.built, outputs=outputs))
    reference = dict(np.load(bench.reference))
    np.savez(bench.reference, **{k: v[:, 0] if k.endswith("pooled") else v for k, v in reference.items()})
    bench.emit(artifact, source=replace(embedding.source(), outputs=outputs))
    config = config_of(bench.root(artifact))
    assert (config.max_batch_size, list(config.output[1].dims)) == (0, [-1])


def test_a_scalar_is_refused(bench):
    artifact = bench.artifact("onnxruntime")
    outputs = (embedding.OUTPUTS[0], replace(embedding.OUTPUTS[1], dims=()))
    with pytest.raises(InputError, match="scalar"):
        bench.emit(
            replace(artifact, built=replace(artifact.built, outputs=outputs)),
            source=replace(embedding.source(), outputs=outputs),
        )


def test_a_static_build_has_its_fixed_dims_and_one_warmup(bench):
    artifact = bench.artifact("onnxruntime", static=True)
    bench.emit(artifact)
    config = config_of(bench.root(artifact))
    assert client_view(config) == [
        ("input_ids", 9, [1, 6]),
        ("attention_mask", 9, [1, 6]),
        ("hidden", 11, [1, 6, 4]),
        ("pooled", 11, [1, 4]),
    ]
    assert [w.name for w in config.model_warmup] == ["opt"]
    assert manifests.read(bench.root(artifact)).reference_points == ("opt",)


def test_an_ensemble_keeps_the_clients_names_and_leaves_the_rest_inside(bench):
    artifact = bench.artifact("aoti")
    repository = bench.emit(artifact)
    assert repository.models == ("embedding", "embedding_aoti")
    front, inner = (config_of(bench.root(artifact), model) for model in repository.models)
    step = front.ensemble_scheduling.step[0]
    assert dict(step.input_map) == {"ARGS[0]": "input_ids", "ARGS[1]": "attention_mask"}
    assert dict(step.output_map) == {"RESULT[0]": "hidden", "RESULT[1]": "pooled"}
    assert (front.platform, front.backend, len(front.instance_group), len(front.model_warmup)) == ("ensemble", "", 0, 0)
    assert (inner.platform, inner.backend, inner.default_model_filename) == ("torch_aoti", "pytorch", "model.pt2")
    assert [t.name for t in (*inner.input, *inner.output)] == ["ARGS[0]", "ARGS[1]", "RESULT[0]", "RESULT[1]"]
    assert set(inner.model_warmup[0].inputs) == {"ARGS[0]", "ARGS[1]"}


@pytest.mark.parametrize("backend", BACKENDS)
def test_warmup_files_hold_exactly_what_their_dims_say(bench, backend):
    artifact = bench.artifact(backend)
    inner = bench.emit(artifact).models[-1]
    config = config_of(bench.root(artifact), inner)
    names = [w.name for w in config.model_warmup]
    assert names == ["opt_batch1", "opt_batch8", "min_batch1", "odd_batch1", "max_batch1"]
    named = set()
    for sample in config.model_warmup:
        point, size = sample.name.split("_batch")
        ids = embedding.feed(embedding.SHAPES[point])["input_ids"][:1]
        data = next(v for k, v in sample.inputs.items() if k in ("input_ids", "ARGS[0]"))
        rows = data.dims[0] if config.max_batch_size == 0 else 1
        assert (sample.batch_size, rows) == ((1, int(size)) if config.max_batch_size == 0 else (int(size), 1))
        content = (bench.root(artifact) / inner / "warmup" / data.input_data_file).read_bytes()
        stored = np.frombuffer(content, "int64").reshape(rows, -1)
        np.testing.assert_array_equal(stored, np.repeat(ids, rows, axis=0))
        assert list(data.dims)[-1] == embedding.SHAPES[point][1]
        named |= {v.input_data_file for v in sample.inputs.values()}
    assert {p.name for p in (bench.root(artifact) / inner / "warmup").iterdir()} == named


def test_warmup_leaves_out_large_points_and_repeated_shapes(bench):
    """The file limit keeps a repository small: large floats of the opt shape are zeros, larger points stay out."""
    image = TensorSpec("image", "float32", ("batch", 3, "height", "width"))
    sizes = {"min": (1, 8, 8), "odd": (3, 8, 8), "opt": (1, 700, 700), "max": (4, 800, 800)}
    points = {
        name: ReferencePoint({"image": np.ones((n, 3, height, width), np.float32)}, {})
        for name, (n, height, width) in sizes.items()
    }
    profile = {"image": ShapeRange((1, 3, 8, 8), (1, 3, 700, 700), (4, 3, 800, 800))}
    found = warmup(points, (image,), batch=4, profile=profile)
    assert [(s["name"], s["batch_size"], s["inputs"]["image"]["dims"]) for s in found.samples] == [
        ("opt_batch1", 1, (3, 700, 700)),
        ("opt_batch4", 4, (3, 700, 700)),
        ("min_batch1", 1, (3, 8, 8)),
    ]
    data = [s["inputs"]["image"] for s in found.samples]
    assert [d.get("input_data_file", d.get("zero_data")) for d in data] == [True, True, "min_rows1_0.bin"]
    assert {name: len(data) for name, data in found.files.items()} == {"min_rows1_0.bin": 4 * 3 * 8 * 8}


def test_no_warmup_sample_is_outside_of_the_profile():
    """A server does not load a model that refuses a sample."""
    sound = TensorSpec("x", "float32", ("x_0", 80))
    points = {
        name: ReferencePoint({"x": np.ones((n, 80), np.float32)}, {})
        for name, n in {"min": 16, "odd": 48, "opt": 32, "max": 64}.items()
    }
    profile = {"x": ShapeRange((16, 80), (32, 80), (64, 80))}
    found = warmup(points, (sound,), batch=0, profile=profile)
    assert {s["inputs"]["x"]["dims"] for s in found.samples} == {(16, 80), (48, 80), (32, 80), (64, 80)}
    batch = TensorSpec("x", "float32", ("batch", 80))
    profile = {"x": ShapeRange((4, 80), (8, 80), (16, 80), (4, 1))}
    points = {"opt": ReferencePoint({"x": np.ones((8, 80), np.float32)}, {})}
    found = warmup(points, (batch,), batch=0, profile=profile)
    assert [s["inputs"]["x"]["dims"] for s in found.samples] == [(4, 80), (16, 80)]
    assert warmup(points, (batch,), batch=16, profile=profile).samples == (), "there it would be requests of one row"


@pytest.mark.parametrize("backend", BACKENDS)
def test_an_emitted_repository_verifies(bench, backend):
    artifact = bench.artifact(backend)
    repository = bench.emit(artifact)
    assert repository.root == f"repositories/{backend}@cpu"
    assert [f for f in verify(bench.root(artifact)) if f.severity == "error"] == []


def test_artifact_files_are_hard_links(bench):
    artifact = bench.artifact("openvino")
    bench.emit(artifact)
    for name in ("model.xml", "model.bin"):
        assert (bench.root(artifact) / "embedding" / "1" / name).samefile(bench.folder("openvino") / name)


def test_files_are_copied_where_links_are_impossible(bench, monkeypatch):
    def refuse(*_: object) -> None:
        raise OSError("cross-device link")

    monkeypatch.setattr(os, "link", refuse)
    artifact = bench.artifact("openvino")
    bench.emit(artifact)
    copy = bench.root(artifact) / "embedding" / "1" / "model.bin"
    assert copy.read_bytes() == bytes(16)
    assert not copy.samefile(bench.folder("openvino") / "model.bin")


def test_manifest_says_what_ships(bench):
    artifact = bench.artifact("onnxruntime")
    repository = bench.emit(artifact, release="26.07")
    manifest = manifests.read(bench.root(artifact))
    assert (
        manifest.unverified == repository.unverified == ("built with onnxruntime 1.24.4, Triton 26.07 carries 1.27.0",)
    )
    assert manifest.inputs == embedding.INPUTS
    assert (manifest.variant, manifest.release, manifest.backend) == ("onnxruntime@cpu", "26.07", "onnxruntime")
    assert manifest.artifact.built.facts == {"rows": 50}
    with np.load(bench.root(artifact) / "reference.npz") as stored, np.load(bench.reference) as reference:
        assert manifest.reference_points == ("min", "odd", "opt", "max")
        np.testing.assert_array_equal(stored["outputs/odd/pooled"], reference["odd/pooled"])


def test_equal_artifacts_give_equal_bytes(bench):
    artifact = bench.artifact("python")
    bench.emit(artifact)
    first = (bench.root(artifact) / "manifest.json").read_bytes()
    bench.emit(artifact)
    assert (bench.root(artifact) / "manifest.json").read_bytes() == first


def test_a_failed_emit_leaves_the_earlier_repository_alone(bench):
    artifact = bench.artifact("onnxruntime")
    bench.emit(artifact)
    before = (bench.root(artifact) / "manifest.json").read_bytes()
    (bench.folder("onnxruntime") / "model.onnx").unlink()
    with pytest.raises(InputError, match="missing"):
        bench.emit(artifact)
    assert (bench.root(artifact) / "manifest.json").read_bytes() == before
    assert [p.name for p in bench.root(artifact).parent.iterdir()] == ["onnxruntime@cpu"]


def test_what_a_killed_emit_left_behind_is_cleared(bench):
    artifact = bench.artifact("onnxruntime")
    bench.emit(artifact)
    root = bench.root(artifact)
    before = (root / "manifest.json").read_bytes()
    (root.parent / f".{root.name}.1.new").mkdir()
    root.rename(root.parent / f".{root.name}.old")
    with pytest.raises(InputError):
        bench.emit(artifact, samples=bench.run_dir / "missing.npz")
    assert (root / "manifest.json").read_bytes() == before
    assert [p.name for p in root.parent.iterdir()] == [root.name]


def test_a_new_repository_replaces_the_whole_earlier_one(bench):
    artifact = bench.artifact("onnxruntime")
    bench.emit(artifact)
    (bench.root(artifact) / "stray.txt").write_text("")
    bench.emit(artifact, model_version=3)
    assert not (bench.root(artifact) / "stray.txt").exists()
    assert [p.name for p in (bench.root(artifact) / "embedding").iterdir() if p.is_dir() and p.name != "warmup"] == [
        "3"
    ]


@pytest.mark.parametrize("name", ["", "a/b", "..", "a..b", ".hidden", "-x", "über", "a b", "x" * 129])
def test_unsafe_model_names_are_refused(bench, name):
    artifact = bench.artifact("onnxruntime")
    with pytest.raises(UsageError, match="cannot name a folder"):
        bench.emit(artifact, model_name=name)
    assert not bench.root(artifact).exists()


def test_a_version_below_one_is_refused(bench):
    with pytest.raises(UsageError, match="model version 0"):
        bench.emit(bench.artifact("onnxruntime"), model_version=0)


def test_a_release_that_cannot_serve_it_is_an_outcome(bench):
    skipped = bench.emit(bench.artifact("aoti"), release="25.02")
    assert isinstance(skipped, Skipped)
    assert "25.02" in skipped.reason
    no_tensorflow = replace(SERVED["onnxruntime"], backend="tensorflow")
    skipped = bench.emit(bench.artifact("onnxruntime"), builder=embedding.EmbeddingBuilder(no_tensorflow))
    assert isinstance(skipped, Skipped)
    said = Skipped("not this one")
    assert bench.emit(bench.artifact("onnxruntime"), builder=embedding.EmbeddingBuilder(said)) is said


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (TensorSpec("input_ids", "int32", ("batch", "seq")), "int32 in the artifact and int64 for clients"),
        (TensorSpec("input_ids", "int64", ("batch", 128)), "fixed to"),
        (TensorSpec("input_ids", "int64", ("batch",)), "has dims"),
        (TensorSpec("ids", "int64", ("batch", "seq")), "has no tensor 'input_ids'"),
    ],
)
def test_an_artifact_that_breaks_the_contract_is_refused(bench, spec, message):
    artifact = bench.artifact("onnxruntime")
    artifact = replace(artifact, built=replace(artifact.built, inputs=(spec, embedding.INPUTS[1])))
    with pytest.raises(InputError, match=re.escape(message)):
        bench.emit(artifact)


def test_the_openvino_backend_may_convert_dtypes(bench):
    artifact = bench.artifact("openvino")
    inputs = tuple(replace(s, dtype="int32") for s in embedding.INPUTS)
    bench.emit(replace(artifact, built=replace(artifact.built, inputs=inputs)))
    assert config_of(bench.root(artifact)).input[0].data_type == 9


def test_an_artifact_file_outside_its_folder_is_refused(bench):
    artifact = bench.artifact("openvino")
    escaping = replace(artifact.files[0], path="../../shapes.npz")
    with pytest.raises(InputError, match="outside"):
        bench.emit(replace(artifact, files=(*artifact.files, escaping)))


def test_a_link_among_the_artifacts_files_is_refused(bench):
    artifact = bench.artifact("openvino")
    model = bench.folder("openvino") / "model.bin"
    model.unlink()
    model.symlink_to("/dev/zero")
    with pytest.raises(InputError, match="not a plain file"):
        bench.emit(artifact)


def test_samples_without_the_opt_shape_are_refused(bench):
    np.savez(bench.samples, **{"min/input_ids": np.ones((1, 1), np.int64)})
    with pytest.raises(InputError, match="opt shape"):
        bench.emit(bench.artifact("onnxruntime"))
    bench.samples.write_bytes(b"not an archive")
    with pytest.raises(InputError, match="cannot be read"):
        bench.emit(bench.artifact("onnxruntime"))


def test_an_unwritable_place_is_an_output_error(bench):
    artifact = bench.artifact("onnxruntime")
    (bench.run_dir / "file").write_text("")
    with pytest.raises(OutputError, match=r"cannot write to .*below"):
        bench.emit(artifact, root=bench.run_dir / "file" / "below")


def test_one_name_for_an_input_and_an_output_cannot_be_mapped(bench):
    artifact = bench.artifact("aoti")
    outputs = (replace(embedding.OUTPUTS[0], name="input_ids"), embedding.OUTPUTS[1])
    built = replace(artifact.built, outputs=tuple(replace(s, name=f"RESULT[{i}]") for i, s in enumerate(outputs)))
    served = replace(SERVED["aoti"], output_names={"input_ids": "RESULT[0]", "pooled": "RESULT[1]"})
    reference = {k.replace("hidden", "input_ids"): v for k, v in dict(np.load(bench.reference)).items()}
    np.savez(bench.reference, **reference)
    with pytest.raises(InputError, match="both an input and an output"):
        bench.emit(
            replace(artifact, built=built),
            source=replace(embedding.source(), outputs=outputs),
            builder=embedding.EmbeddingBuilder(served),
        )


def test_the_aoti_package_is_never_batched(bench):
    served = replace(SERVED["aoti"], dynamic_batching=True)
    artifact = bench.artifact("aoti")
    bench.emit(artifact, builder=embedding.EmbeddingBuilder(served))
    assert config_of(bench.root(artifact), "embedding_aoti").max_batch_size == 0


def test_an_entry_that_is_not_there_is_refused(bench):
    missing = replace(SERVED["onnxruntime"], filename="other.onnx")
    with pytest.raises(InputError, match=r"other\.onnx"):
        bench.emit(bench.artifact("onnxruntime"), builder=embedding.EmbeddingBuilder(missing))


def test_python_folder_is_self_contained(bench):
    artifact = bench.artifact("python")
    bench.emit(artifact)
    folder = bench.root(artifact) / "embedding" / "1"
    spec = json.loads((folder / "artifact.json").read_text())
    assert (spec["builder"], spec["batched"]) == ("embedding", True)
    for name in (
        "model.py",
        "embedding.py",
        "artifact/weights.npy",
        "accel/builders/__init__.py",
        "accel/core/errors.py",
    ):
        assert (folder / name).is_file()
    assert not (folder / "accel" / "triton").exists()
    assert "numpy" in (bench.root(artifact) / "launch.sh").read_text()
