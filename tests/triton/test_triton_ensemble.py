"""Ensembles around emitted repositories: their configs against the server's rules, their files against the manifest."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import embedding
import numpy as np
import pytest
from embedding import SERVED

from accel.core.errors import InputError
from accel.core.processing import CustomStep, File, Labels, Picture, Pipeline, Pool, Tokenize, carried
from accel.core.values import TensorSpec, TritonModel
from accel.triton import ensemble, manifest as manifests
from accel.triton.config import parse
from accel.triton.grouping import Grouping
from accel.triton.verify import verify

OWN = """
import numpy as np


def before(inputs):
    words = [[int(w) for w in text.decode().split()] for text in inputs["numbers"].ravel()]
    width = max(map(len, words))
    ids = np.array([w + [0] * (width - len(w)) for w in words])
    mask = np.array([[1] * len(w) + [0] * (width - len(w)) for w in words])
    return {"input_ids": ids, "attention_mask": mask, "count": mask.sum(axis=1, keepdims=True)}


def after(inputs):
    return {"total": inputs["pooled"].sum(axis=1, keepdims=True) + 0 * inputs["count"].astype(np.float32)}


def double(inputs):
    return {"twice": 2 * inputs["pooled"]}


def broken(inputs):
    return {"twice": inputs["pooled"].astype(np.float64)}
"""


def tokenizer_file(folder: Path) -> File:
    """Write a tokenizer that knows the words w1 to w49; an unknown word is w1."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    words = {"[PAD]": 0} | {f"w{i}": i for i in range(1, embedding.VOCABULARY)}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="w1"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    path = folder / "words.json"
    tokenizer.save(str(path))
    return carried(path, "the test's tokenizer")


@pytest.fixture
def text(tmp_path: Path) -> Pipeline:
    """Words → ids → the embedding model → the mean vector."""
    return Pipeline(Tokenize(10, tokenizer_file(tmp_path)), Pool("mean", output="hidden"))


@pytest.fixture
def own(tmp_path: Path) -> Pipeline:
    """Two steps of the user's: numbers → ids, mask and a count; the model's vector and the count → their sum."""
    path = tmp_path / "mine.py"
    path.write_text(OWN)
    file = carried(path, "the test's steps")
    numbers = TensorSpec("numbers", "str", ("batch", 1))
    count = TensorSpec("count", "int64", ("batch", 1))
    total = TensorSpec("total", "float32", ("batch", 1))
    return Pipeline(
        CustomStep(file, "before", (numbers,), (count,), packages=("scipy==1.17.1",)),
        CustomStep(file, "after", ("pooled", "count"), (total,)),
    )


def configs(root: Path) -> dict[str, Any]:
    return {p.parent.name: parse(p.read_text(encoding="utf-8")) for p in sorted(root.glob("*/config.pbtxt"))}


def broken_rules(root: Path) -> Iterator[str]:
    """Yield what the server would refuse in the ensembles of a repository.

    Source: triton-inference-server/core, src/model_config_utils.cc (ValidateEnsembleSchedulingConfig) and
    src/ensemble_scheduler/ensemble_utils.cc (ValidateEnsembleConfig).
    """
    found = configs(root)
    for model in found.values():
        if not model.ensemble_scheduling.step:
            continue
        if model.platform != "ensemble" or model.instance_group or model.HasField("optimization") or model.model_warmup:
            yield f"{model.name} has what an ensemble must not have"
        ends: dict[str, list[tuple[int, list[int], list[int]]]] = {}

        def end(name: str, tensor: Any, batch: int, ends: dict = ends) -> None:
            dims = list(tensor.dims)
            ends.setdefault(name, []).append((tensor.data_type, dims, [-1, *dims] if batch else dims))

        for tensor in (*model.input, *model.output):
            end(tensor.name, tensor, model.max_batch_size)
        written, read = {t.name for t in model.input}, {t.name for t in model.output}
        for step in model.ensemble_scheduling.step:
            inner = found[step.model_name]
            if inner.max_batch_size and inner.max_batch_size < model.max_batch_size:
                yield f"{step.model_name} takes smaller batches than {model.name}"
            for tensors, names, is_input in (
                (inner.input, step.input_map, True),
                (inner.output, step.output_map, False),
            ):
                known = {t.name: t for t in tensors}
                if strangers := set(names) - set(known):
                    yield f"{step.model_name} has no {strangers}"
                if is_input and (missing := set(known) - set(names)):
                    yield f"{missing} of {step.model_name} are not mapped"
                for name, mapped in ((n, m) for n, m in names.items() if n in known):
                    end(mapped, known[name], inner.max_batch_size)
                    if is_input:
                        read.add(mapped)
                        if mapped not in written:
                            yield f"{mapped} is read before it is written"
                    elif mapped in written:
                        yield f"{mapped} is written twice"
            written |= set(step.output_map.values())
        if loose := written ^ read:
            yield f"{loose} are written and not read, or the other way round"
        for name, sides in ends.items():
            first = sides[0]
            for other in sides[1:]:
                same = any(
                    len(a) == len(b) and all(-1 in (x, y) or x == y for x, y in zip(a, b, strict=True))
                    for a, b in ((first[1], other[1]), (first[2], other[2]))
                )
                if first[0] != other[0] or not same:
                    yield f"{name} is {first} and {other}"


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("max_batch_size: 8", "max_batch_size: 9"),
        ('value: "pre.input_ids"', 'value: "input_ids"'),
        ('key: "input_ids"', 'key: "ids"'),
        ("TYPE_STRING", "TYPE_INT32"),
        ("dims: 4", "dims: 5"),
        ('value: "model.hidden"', 'value: "embedding"'),
        ('platform: "ensemble"', 'platform: "ensemble" instance_group { count: 1 }'),
    ],
)
def test_the_rules_of_these_tests_catch_a_broken_ensemble(bench, text, old, new):
    artifact = bench.artifact("onnxruntime")
    bench.emit(artifact)
    ensemble.add(bench.root(artifact), text)
    file = bench.root(artifact) / "embedding_pipeline/config.pbtxt"
    whole = file.read_text()
    assert old in whole
    file.write_text(whole.replace(old, new, 1))
    assert list(broken_rules(bench.root(artifact)))


@pytest.mark.parametrize("static", [False, True])
@pytest.mark.parametrize("backend", ["onnxruntime", "openvino", "aoti", "python"])
def test_an_ensemble_is_what_the_server_takes(bench, text, own, backend, static):
    for number, pipeline in enumerate((text, own, Pipeline(text.pre, None), Pipeline(None, text.post))):
        artifact = bench.artifact(backend, static=static)
        emitted = bench.emit(artifact, model_name=f"m{number}")
        root = bench.root(artifact)
        before = {p: p.read_bytes() for p in root.glob(f"m{number}*/**/*") if p.is_file()}
        names = ensemble.add(root, pipeline)
        assert names[-1] == f"m{number}_pipeline"
        assert list(broken_rules(root)) == []
        assert {p: p.read_bytes() for p in before} == before, "the model itself must stay as it is"
        assert [f for f in verify(root) if f.severity == "error"] == []
        manifest = manifests.read(root)
        assert manifest.models == (*emitted.models, *names)
        assert manifest.pipeline == names[-1]
        found = configs(root)
        assert {found[n].max_batch_size for n in names} == {manifest.max_batch_size}


def test_clients_of_the_pipeline_see_the_same_whatever_batches_behind_it(bench, text):
    seen = {}
    for backend in ("onnxruntime", "openvino", "aoti"):
        artifact = bench.artifact(backend)
        bench.emit(artifact)
        ensemble.add(bench.root(artifact), text)
        model = configs(bench.root(artifact))["embedding_pipeline"]
        lead = [-1] if model.max_batch_size else []
        seen[backend] = [(t.name, t.data_type, [*lead, *t.dims]) for t in (*model.input, *model.output)]
    assert seen["onnxruntime"] == seen["openvino"] == seen["aoti"]
    assert [(name, dims) for name, _, dims in seen["aoti"]] == [("text", [-1, 1]), ("embedding", [-1, 4])]


def test_the_configs_of_an_ensemble(bench, text, golden):
    for backend in ("onnxruntime", "openvino"):
        artifact = bench.artifact(backend)
        bench.emit(artifact)
        for name in ensemble.add(bench.root(artifact), text):
            file = bench.root(artifact) / name / "config.pbtxt"
            golden(f"triton_{backend}_{name}.pbtxt", file.read_text(encoding="utf-8"))


def test_a_sequence_is_never_longer_than_what_was_proved(bench, text):
    longer = replace(text, pre=replace(text.pre, max_length=100))
    for static, padding, expected in (
        (False, "call", (12, 1)),
        (False, "max_length", (12, 12)),
        (True, "request", (6, 6)),
    ):
        artifact = bench.artifact("python", static=static)
        bench.emit(artifact)
        ensemble.add(bench.root(artifact), replace(longer, pre=replace(longer.pre, padding=padding)))
        step = json.loads((bench.root(artifact) / "embedding_tokenizer/1/step.json").read_text())["options"]
        assert (step["max_length"], step["min_length"]) == expected
        assert step["together"] is (padding == "call")


@pytest.mark.parametrize(
    ("mask", "together", "shortest"), [("attention_mask", False, 1), (None, True, 12)], ids=["mask", "no mask"]
)
def test_texts_are_padded_as_asked_unless_a_mask_lets_the_model_trim_them(bench, text, mask, together, shortest):
    axis, lengths = ("seq", (8, 12)) if mask else (None, ())
    for padding in ("call", "max_length"):
        artifact = bench.artifact("python")
        bench.emit(artifact, mask=mask, grouping=Grouping(mask, axis, lengths, lengths, rows=8))
        pipeline = replace(text, pre=replace(text.pre, max_length=12, padding=padding))
        ensemble.add(bench.root(artifact), pipeline)
        step = json.loads((bench.root(artifact) / "embedding_tokenizer/1/step.json").read_text())["options"]
        assert step["together"] is (together and padding == "call")
        assert step["min_length"] == (shortest if padding == "max_length" else 1)


def test_the_launch_script_names_the_packages_of_the_steps(bench, text, own):
    for backend, there in (("onnxruntime", False), ("python", True)):
        artifact = bench.artifact(backend)
        bench.emit(artifact)
        root = bench.root(artifact)
        assert ("Its Python backend needs" in (root / "launch.sh").read_text()) is there
        ensemble.add(root, replace(own, post=text.post))
        script = (root / "launch.sh").read_text()
        (needs,) = [line for line in script.splitlines() if "Its Python backend needs" in line]
        assert needs.endswith("scipy==1.17.1")
        assert script.count("PYTHON_ENV/bin") == 1
        assert (root / "launch.sh").stat().st_mode & 0o111
        assert manifests.read(root).requires["scipy"] == "1.17.1"


def test_a_repository_tells_what_its_ensemble_was_made_of(bench, text, own):
    """So that the same ensemble can be added to another repository of the model, with the files it carries."""
    for pipeline in (text, own):
        first, second = bench.artifact("openvino"), bench.artifact("python")
        for artifact in (first, second):
            bench.emit(artifact)
        assert ensemble.read(bench.root(first)) is None
        names = ensemble.add(bench.root(first), pipeline)
        told = ensemble.read(bench.root(first))
        assert replace(told, pre=replace(told.pre, file=pipeline.pre.file)).pre == pipeline.pre
        assert Path(told.pre.file.path).is_relative_to(bench.root(first))
        assert ensemble.add(bench.root(second), told) == names
        steps = [p for p in bench.root(first).glob("embedding_*/1/**/*") if p.is_file()]
        assert len(steps) > 6
        for path in steps:
            same = bench.root(second) / path.relative_to(bench.root(first))
            assert same.read_bytes() == path.read_bytes(), path


def test_changed_steps_are_found(bench, text):
    artifact = bench.artifact("onnxruntime")
    bench.emit(artifact)
    ensemble.add(bench.root(artifact), text)
    file = bench.root(artifact) / "embedding_pool/1/step.json"
    file.write_text(file.read_text().replace('"mean"', '"max"'))
    assert [(f.severity, f.file) for f in verify(bench.root(artifact)) if f.severity == "error"] == [
        ("error", "embedding_pool/1/step.json")
    ]


@pytest.fixture
def emitted(bench: Any) -> Path:
    artifact = bench.artifact("python")
    bench.emit(artifact)
    return bench.root(artifact)


def refused(root: Path, pipeline: Pipeline, why: str) -> None:
    """Expect an error, and the repository as it was."""
    before = sorted(root.rglob("*"))
    with pytest.raises(InputError, match=why):
        ensemble.add(root, pipeline)
    assert sorted(root.rglob("*")) == before
    assert [p.name for p in root.parent.iterdir()] == [root.name]


def test_what_does_not_fit_the_model_is_refused(emitted, text, own, tmp_path):
    picture = Picture(8, (8, 8), (0.5,) * 3, (0.5,) * 3)
    refused(emitted, Pipeline(picture, text.post), "a picture gives one float tensor")
    refused(emitted, replace(text, post=Pool()), "takes 'last_hidden_state' with 3 axes .* found None")
    refused(emitted, replace(text, post=Labels(output="hidden")), "'hidden' with 2 axes .* found .*'seq', 4")
    refused(emitted, replace(text, post=Labels(names=("a", "b"), output="pooled")), "4 classes, and there are 2 labels")
    declared = TensorSpec("input_ids", "int32", ("batch", "seq"))
    refused(emitted, replace(own, pre=replace(own.pre, outputs=(declared,))), "the model takes int64")
    refused(emitted, replace(own, post=replace(own.post, inputs=("none",))), "reads 'none', which nothing gives")
    refused(emitted, replace(own, post=replace(own.post, inputs=("count",))), "reads none of its outputs")
    clash = (TensorSpec("numbers", "float32", ("batch", 1)),)
    refused(emitted, replace(own, post=replace(own.post, outputs=clash)), "both an input and an output")
    twice = tmp_path / "other/mine.py"
    twice.parent.mkdir()
    twice.write_text("")
    files = (carried(twice, "the test"),)
    refused(emitted, replace(own, pre=replace(own.pre, files=files)), "two files called 'mine.py'")


def test_a_step_of_the_user_s_is_tried_on_the_model_s_own_outputs(emitted, own):
    vector = (TensorSpec("twice", "float32", ("batch", 4)),)
    for function, outputs, why in (
        ("broken", vector, "'twice' is float64, declared float32"),
        ("double", (replace(vector[0], dims=("batch", 3)),), "is .1, 4., declared"),
        ("double", (replace(vector[0], name="thrice"),), "declares 'thrice'"),
        ("missing", vector, "has no attribute 'missing'"),
    ):
        post = replace(own.post, function=function, inputs=(), outputs=outputs)
        refused(emitted, Pipeline(own.pre, post), why)
    ensemble.add(emitted, Pipeline(own.pre, replace(own.post, function="double", inputs=("pooled",), outputs=vector)))
    assert not list(emitted.rglob("__pycache__"))


def test_a_file_that_changed_meanwhile_is_refused(emitted, text):
    Path(text.pre.file.path).write_text("{}")
    refused(emitted, text, "words.json changed while the ensemble was made")


def test_an_ensemble_is_added_once(emitted, text):
    ensemble.add(emitted, text)
    with pytest.raises(InputError, match="has the ensemble embedding_pipeline already"):
        ensemble.add(emitted, text)


def test_a_name_that_is_taken_is_refused(emitted, text):
    (emitted / "embedding_pool").mkdir()
    refused(emitted, text, "a model 'embedding_pool' already")


def test_labels_are_one_a_line_and_known_to_the_classification_extension(bench, text):
    artifact = bench.artifact("onnxruntime")
    bench.emit(artifact)
    root = bench.root(artifact)
    names = ("tabby\ncat", "dog", "ü", "d")
    ensemble.add(root, replace(text, post=Labels(2, names, output="pooled")))
    assert (root / "embedding_labels/labels.txt").read_text(encoding="utf-8") == "tabby cat\ndog\nü\nd\n"
    model = configs(root)["embedding_labels"]
    assert {t.name: t.label_filename for t in model.output} == {
        "labels": "",
        "scores": "",
        "class_ids": "",
        "probabilities": "labels.txt",
    }
    assert {t.name: list(t.dims) for t in model.output}["labels"] == [2]


def test_a_picture_model_gets_a_picture_step(bench, tmp_path):
    """The declaration is fitted to the model's channels, size and dtype."""
    spec = TensorSpec("pixels", "float32", ("batch", 3, 8, 8))
    pipeline = Pipeline(Picture(9, (8, 8), (0.5,) * 3, (0.5,) * 3), Labels(output="scores"))
    root = picture_repository(tmp_path, spec)
    ensemble.add(root, pipeline)
    assert list(broken_rules(root)) == []
    options = json.loads((root / "seen_image/1/step.json").read_text())["options"]
    assert (options["output"], options["channels"], options["crop"]) == ("pixels", 3, [8, 8])


@pytest.mark.parametrize(
    ("dims", "why"),
    [
        (("batch", 3, 9, 9), r"takes pictures of \(9, 9\), the picture step makes \(8, 8\)"),
        (("batch", 1, 8, 8), "1 chan"),
    ],
)
def test_a_picture_of_another_size_or_colour_is_refused(tmp_path, dims, why):
    root = picture_repository(tmp_path, TensorSpec("pixels", "float32", dims))
    refused(root, Pipeline(Picture(9, (8, 8), (0.5,) * 3, (0.5,) * 3), Labels(output="scores")), why)


def picture_repository(folder: Path, spec: TensorSpec) -> Path:
    """Emit a repository of a model that takes pictures; it is not run here."""
    from accel.core.values import ShapeRange
    from accel.triton.repository import emit
    from accel.triton.request import ClientModel, EmitRequest

    shape = (1, *spec.dims[1:])
    (folder / "artifact").mkdir()
    (folder / "artifact/weights.npy").write_bytes(b"none")
    outputs = (TensorSpec("scores", "float32", ("batch", 5)),)
    artifact = embedding.artifact(folder / "artifact", "onnxruntime@cpu", inputs=(spec,), outputs=outputs)
    profile = {spec.name: ShapeRange(shape, shape, (4, *shape[1:]))}
    artifact = replace(artifact, variant=replace(artifact.variant, profile=profile))
    np.savez(folder / "samples.npz", **{f"opt/{spec.name}": np.zeros(shape, np.float32)})
    np.savez(folder / "reference.npz", **{"opt/scores": np.zeros((1, 5), np.float32)})
    root = folder / "emitted/root"
    emit(
        artifact,
        folder / "artifact",
        model=ClientModel(model_name="seen", inputs=(spec,), outputs=outputs),
        request=EmitRequest(release="26.05"),
        builder=embedding.EmbeddingBuilder(TritonModel("onnxruntime", "weights.npy", True)),
        root=root,
        run_dir=folder,
        samples=folder / "samples.npz",
        reference=folder / "reference.npz",
    )
    return root


def test_served_models_name_the_folders_they_are_read_from(bench, text):
    """A static build, a version above 1 and the names of Triton's other backends: only the paths change."""
    artifact = bench.artifact("aoti", static=True)
    bench.emit(artifact, model_version=7)
    root = bench.root(artifact)
    ensemble.add(root, text)
    assert SERVED["aoti"].platform == "torch_aoti"
    steps = configs(root)["embedding_pipeline"].ensemble_scheduling.step
    assert [s.model_name for s in steps] == ["embedding_tokenizer", "embedding", "embedding_pool"]
    assert (root / "embedding_tokenizer/7/step.py").is_file()
    assert (root / "embedding_pipeline/7/pipeline.json").is_file()


def test_the_twin_of_a_repository_gets_the_ensemble_anew(bench, text, monkeypatch):
    """The openvino backend cannot batch and its twin can: so can the ensemble around the twin."""
    from accel.builders import targets
    from accel.triton.python_variant import write_python_variant

    artifact = bench.artifact("openvino")
    bench.emit(artifact)
    root = bench.root(artifact)
    names = ensemble.add(root, text)
    monkeypatch.setattr(targets, "discover", lambda: {"openvino": embedding.BUILDER})
    out = bench.run_dir / "twin"
    assert write_python_variant(root, out, release="24.10").models == ("embedding", *names)
    assert [f for f in verify(out) if f.severity == "error"] == []
    assert list(broken_rules(out)) == []
    assert (manifests.read(root).max_batch_size, manifests.read(out).max_batch_size) == (0, 8)
    assert configs(out)["embedding_pipeline"].max_batch_size == 8
    assert manifests.read(out).pipeline == "embedding_pipeline"
