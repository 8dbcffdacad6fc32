"""Real text and real pictures through ensembles on the real server, held against the framework's own pipelines."""

import io
import json
import os
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import embedding
import numpy as np
import pytest
from PIL import Image
from pipelines import repository
from test_triton_ensemble import OWN, tokenizer_file

from accel.core import environments
from accel.core.processing import CustomStep, Pipeline, Pool, Tokenize, carried
from accel.core.values import TensorSpec
from accel.triton import ensemble, manifest as manifests
from accel.triton.config import model_config, step, to_text
from accel.triton.manifest import Manifest
from accel.triton.repository import emit
from accel.triton.request import ClientModel, EmitRequest
from accel.triton.servers import server
from accel.triton.servers.hosts import EMBEDDED_RELEASE
from model_zoo._pictures import dead_leaves
from model_zoo._text import minilm_folder, sentences

IDS = ("input_ids", "attention_mask", "token_type_ids")


def started(root: Path, log: Path, **how: Any) -> server.Server:
    if not environments.installed("triton"):
        pytest.skip(f"no embedded server here: {environments.fix('triton')}")
    return server.start(root, via="embedded", log=log, **how)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("pipelines")


def infer(running: server.Server, model: str, outputs: list[Any] | None = None, **inputs: np.ndarray) -> Any:
    """Send one request; strings may be given as an array of ``object``."""
    from tritonclient import grpc
    from tritonclient.utils import np_to_triton_dtype

    tensors = []
    for name, value in inputs.items():
        tensor = grpc.InferInput(name, value.shape, np_to_triton_dtype(value.dtype))
        tensors.append(tensor.set_data_from_numpy(value))
    with grpc.InferenceServerClient(running.endpoint.grpc) as client:
        return client.infer(model, tensors, outputs=outputs)


def column(*items: str | bytes) -> np.ndarray:
    return np.array([[i] for i in items], dtype=np.object_)


def refusal(running: server.Server, model: str, **inputs: np.ndarray) -> str:
    """Return the message of the error response that a request must get."""
    from tritonclient.utils import InferenceServerException

    with pytest.raises(InferenceServerException) as caught:
        infer(running, model, **inputs)
    return str(caught.value)


# ---------------------------------------------------------------------------------------------------------------------
# Text, real weights, the Python backend's own repository


@pytest.fixture(scope="module")
def minilm(place: Path) -> Iterator[server.Server]:
    shapes = {
        f"{point}_shapes": dict.fromkeys(IDS, shape)
        for point, shape in (("min", (1, 1)), ("opt", (1, 16)), ("max", (4, 300)))
    }
    root = repository("minilm", place / "minilm", "torch", shapes, release=EMBEDDED_RELEASE)
    with started(root, place / "minilm.log") as running:
        yield running


@pytest.fixture(scope="module")
def encoder() -> Any:
    from sentence_transformers import SentenceTransformer

    return SentenceTransformer(str(minilm_folder()), device="cpu", local_files_only=True)


@pytest.mark.slow
def test_sentence_vectors_are_sentence_transformers_own(minilm, encoder):
    texts = [*sentences(8), "Ünïcode ☃ 漢字", "a", "never ending " * 400]
    expected = encoder.encode(texts)
    alone = np.concatenate([infer(minilm, "minilm_pipeline", text=column(t)).as_numpy("embedding") for t in texts])
    assert alone.dtype == np.float32
    np.testing.assert_allclose(alone, expected, atol=2e-6)
    batch = infer(minilm, "minilm_pipeline", text=column(*texts[-4:])).as_numpy("embedding")
    np.testing.assert_allclose(batch, expected[-4:], atol=2e-6)


@pytest.mark.slow
def test_concurrent_texts_of_many_lengths_keep_apart(minilm, encoder):
    texts = sentences(40)

    def ask(text: str) -> np.ndarray:
        return infer(minilm, "minilm_pipeline", text=column(text)).as_numpy("embedding")[0]

    with ThreadPoolExecutor(8) as pool:
        found = np.stack(list(pool.map(ask, texts)))
    np.testing.assert_allclose(found, encoder.encode(texts), atol=2e-6)


@pytest.mark.slow
def test_text_that_cannot_be_taken_gets_an_error_and_the_server_lives(minilm, encoder):
    assert "text 1 of the request is empty" in refusal(minilm, "minilm_pipeline", text=column("fine", " "))
    assert "text 0 of the request is not UTF-8" in refusal(minilm, "minilm_pipeline", text=column(b"\xff\xfe"))
    assert "batch-size must be <= 4" in refusal(minilm, "minilm_pipeline", text=column(*"abcde"))
    found = infer(minilm, "minilm_pipeline", text=column("fine")).as_numpy("embedding")
    np.testing.assert_allclose(found, encoder.encode(["fine"]), atol=2e-6)


@pytest.mark.slow
def test_clients_of_the_model_itself_notice_nothing(minilm):
    feed = {name: np.ones((1, 3), np.int64) for name in IDS}
    assert infer(minilm, "minilm", **feed).as_numpy("last_hidden_state").shape == (1, 3, 384)


# ---------------------------------------------------------------------------------------------------------------------
# Pictures, a folder of a small network, a native repository served by its twin


@pytest.fixture(scope="module")
def folder(place: Path) -> Path:
    """Write a Hugging Face folder of a small ResNet with seven named classes."""
    import torch
    from transformers import ResNetConfig, ResNetForImageClassification
    from transformers.image_utils import load_image
    from transformers.models.convnext.image_processing_pil_convnext import ConvNextImageProcessorPil

    torch.manual_seed(0)
    names = ["tench", "goldfish", "tiger cat", "hen", "ostrich", "brambling", "house finch"]
    config = ResNetConfig(
        embedding_size=8,
        hidden_sizes=[8, 16],
        depths=[1, 1],
        layer_type="basic",
        id2label=dict(enumerate(names)),
        label2id={n: i for i, n in enumerate(names)},
    )
    model = ResNetForImageClassification(config).eval()
    imagenet = {"image_mean": [0.485, 0.456, 0.406], "image_std": [0.229, 0.224, 0.225]}
    processor = ConvNextImageProcessorPil(size={"shortest_edge": 64}, crop_pct=0.875, **imagenet)
    seen = [load_image(Image.open(io.BytesIO(data))) for data in PICTURES]
    linear = model.classifier[1]
    with torch.no_grad():
        # Fresh weights hardly tell pictures apart: their scores are centred and spread.
        scores = model(**processor(images=seen, return_tensors="pt")).logits
        factor = 2 / (scores - scores.mean(0)).std()
        linear.weight *= factor
        linear.bias.copy_((linear.bias - scores.mean(0)) * factor)
    model.save_pretrained(place / "small")
    processor.save_pretrained(place / "small")
    return place / "small"


@pytest.fixture(scope="module")
def pictures(place: Path, folder: Path) -> Iterator[server.Server]:
    sizes = {"min_shapes": (1, 3, 64, 64), "opt_shapes": (1, 3, 64, 64), "max_shapes": (4, 3, 64, 64)}
    shapes = {point: {"pixel_values": shape} for point, shape in sizes.items()}
    root = repository(str(folder), place / "pictures", "ort", shapes, release="26.05")
    assert manifests.read(root).backend == "onnxruntime"
    with started(root, place / "pictures.log") as running:
        assert running.python_models == {"small"}
        yield running


def drawn(seed: int, kind: str, mode: str = "RGB") -> bytes:
    file = io.BytesIO()
    Image.fromarray(dead_leaves(seed, 90 + 40 * seed, 200)).convert(mode).save(file, kind)
    return file.getvalue()


PICTURES = [drawn(0, "JPEG"), drawn(1, "PNG"), drawn(2, "PNG", "RGBA"), drawn(3, "JPEG", "L")]


@pytest.mark.slow
def test_labels_and_probabilities_are_transformers_own(pictures, folder):
    from transformers import pipeline

    theirs = pipeline("image-classification", model=str(folder), device="cpu")
    answer = infer(pictures, "small_pipeline", image=column(*PICTURES))
    assert answer.as_numpy("probabilities").shape == (4, 7)
    for row, data in enumerate(PICTURES):
        expected = theirs(Image.open(io.BytesIO(data)), top_k=5)
        assert [label.decode() for label in answer.as_numpy("labels")[row]] == [e["label"] for e in expected]
        np.testing.assert_allclose(answer.as_numpy("scores")[row], [e["score"] for e in expected], rtol=1e-4)
        alone = infer(pictures, "small_pipeline", image=column(data))
        assert alone.as_numpy("class_ids")[0].tolist() == answer.as_numpy("class_ids")[row].tolist()
    assert len({tuple(row) for row in answer.as_numpy("class_ids").tolist()}) > 1


@pytest.mark.slow
def test_the_classification_extension_names_the_labels(pictures):
    from tritonclient.grpc import InferRequestedOutput

    wanted = [InferRequestedOutput("probabilities", class_count=2), InferRequestedOutput("labels")]
    answer = infer(pictures, "small_pipeline", wanted, image=column(PICTURES[0]))
    best = [text.decode().split(":") for text in answer.as_numpy("probabilities")[0]]
    assert [label for _, _, label in best] == [n.decode() for n in answer.as_numpy("labels")[0][:2]]


@pytest.mark.slow
def test_bytes_that_are_no_picture_get_an_error_and_the_server_lives(pictures):
    assert "it is neither JPEG nor PNG" in refusal(pictures, "small_pipeline", image=column(b"no picture"))
    why = refusal(pictures, "small_pipeline", image=column(PICTURES[0], PICTURES[0][:1500]))
    assert "picture 1 of the request cannot be taken" in why
    assert infer(pictures, "small_pipeline", image=column(PICTURES[0])).as_numpy("labels").shape == (1, 5)


# ---------------------------------------------------------------------------------------------------------------------
# Steps of the user's, a model that does not batch, and a model that is an ensemble itself


def words(place: Path, name: str, *, batches: bool = True) -> Path:
    """Emit a repository of the embedding model for the embedded server."""
    run = place / name
    (run / "files").mkdir(parents=True)
    samples, reference = embedding.write_points(run)
    np.save(run / "files/weights.npy", embedding.table())
    served = replace(embedding.SERVED["python"], dynamic_batching=batches)
    emit(
        embedding.artifact(run / "files"),
        run / "files",
        model=ClientModel(model_name=name, inputs=embedding.INPUTS, outputs=embedding.OUTPUTS),
        request=EmitRequest(release=EMBEDDED_RELEASE),
        builder=embedding.EmbeddingBuilder(served),
        root=run / "repository",
        run_dir=run,
        samples=samples,
        reference=reference,
    )
    return run / "repository"


def put_behind(root: Path, manifest: Manifest) -> None:
    """Put an ensemble that only renames before the model, as a backend that dictates names gets one."""
    name, inner = manifest.models[0], f"{manifest.models[0]}_inner"
    (root / name).rename(root / inner)
    config = (root / inner / "config.pbtxt").read_text()
    (root / inner / "config.pbtxt").write_text(config.replace(f'name: "{name}"', f'name: "{inner}"', 1))
    work = step(inner, {s.name: s.name for s in manifest.inputs}, {s.name: s.name for s in manifest.outputs})
    (root / name / "1").mkdir(parents=True)
    front = model_config(
        name,
        [TensorSpec(s.name, s.dtype, s.dims[1:]) for s in manifest.inputs],
        [TensorSpec(s.name, s.dtype, s.dims[1:]) for s in manifest.outputs],
        max_batch_size=manifest.max_batch_size,
        version=1,
        steps=[work],
    )
    (root / name / "config.pbtxt").write_text(to_text(front))
    manifests.write(replace(manifest, models=(name, inner)), root)


@pytest.fixture(scope="module")
def small(place: Path) -> Iterator[server.Server]:
    """One server with three pipelines around the embedding model."""
    text = Pipeline(Tokenize(10, tokenizer_file(place), "call"), Pool("mean", output="hidden"))
    (place / "mine.py").write_text(OWN)
    file = carried(place / "mine.py", "the test's steps")
    own = Pipeline(
        CustomStep(
            file, "before", (TensorSpec("numbers", "str", ("batch", 1)),), (TensorSpec("count", "int64", ("batch", 1)),)
        ),
        CustomStep(file, "after", ("pooled", "count"), (TensorSpec("total", "float32", ("batch", 1)),)),
    )
    root = place / "all"
    root.mkdir()
    for name, pipeline in (("mine", own), ("single", text), ("nested", text)):
        made = words(place, name, batches=name != "single")
        if name == "nested":
            put_behind(made, manifests.read(made))
        ensemble.add(made, pipeline)
        for model in manifests.read(made).models:
            shutil.copytree(made / model, root / model, copy_function=os.link)
    with started(root, place / "small.log", flags=("--disable-auto-complete-config",)) as running:
        yield running


def pooled(*texts: str) -> np.ndarray:
    """Return what the embedding model makes of words, computed here: the mean over each text's words."""
    rows = [embedding.table()[[int(w.removeprefix("w")) for w in t.split()]].mean(axis=0) for t in texts]
    return 2 * np.stack(rows)


@pytest.mark.slow
@pytest.mark.parametrize("model", ["single_pipeline", "nested_pipeline"])
def test_a_pipeline_answers_the_same_whether_its_model_batches_or_is_an_ensemble(small, model):
    texts = ["w3 w4 w5", "w7", " ".join(f"w{i}" for i in range(1, 11))]
    for asked in ([texts[0]], texts):
        found = infer(small, model, text=column(*asked)).as_numpy("embedding")
        np.testing.assert_allclose(found, pooled(*asked), rtol=1e-6)
    assert "text 0 of the request is empty" in refusal(small, model, text=column(""))


@pytest.mark.slow
def test_steps_of_the_user_s_run_around_the_model(small):
    found = infer(small, "mine_pipeline", numbers=column("3 4 5", "7"))
    np.testing.assert_allclose(found.as_numpy("total")[:, 0], pooled("w3 w4 w5", "w7").sum(axis=1), rtol=1e-5)
    assert "invalid literal for int" in refusal(small, "mine_pipeline", numbers=column("three"))
    assert "expected values in [0, 49]" in refusal(small, "mine_pipeline", numbers=column("50"))
    assert infer(small, "mine_pipeline", numbers=column("1")).as_numpy("total").shape == (1, 1)


@pytest.mark.slow
def test_requests_of_one_call_are_padded_to_one_length_where_that_is_asked_for(small, place):
    """The pipeline still answers each text by its own words, whatever stood beside it."""
    texts = [" ".join(["w2"] * n) for n in range(1, 10)] * 4
    with ThreadPoolExecutor(12) as pool:
        found = list(pool.map(lambda t: infer(small, "nested_pipeline", text=column(t)).as_numpy("embedding"), texts))
    np.testing.assert_allclose(np.concatenate(found), pooled(*texts), rtol=1e-6)
    step = json.loads((place / "all/nested_tokenizer/1/step.json").read_text())
    assert step["options"]["together"] is True
