"""The steps around a model, each held against the framework's own."""

import importlib.util
import io
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import model_zoo
from accel.triton import steps
from accel.triton.steps import image, labels, own, pool, tokenizer
from model_zoo._pictures import dead_leaves
from model_zoo._text import minilm_folder, sentences

STANDIN = Path(__file__).with_name("standin")
TEXTS = [*sentences(3), "Ünïcode ☃ and 漢字", "a", "word " * 400]
NAMES = ("input_ids", "attention_mask", "token_type_ids")


def strings(*items: Any) -> np.ndarray:
    """Return a string tensor as the Python backend gives it: bytes in an object array, one a row."""
    return np.array([[i.encode() if isinstance(i, str) else i] for i in items], dtype=np.object_)


# ---------------------------------------------------------------------------------------------------------------------
# Text


def tokenizer_step(**changes: Any) -> tokenizer.Step:
    options = {
        "max_length": 64,
        "min_length": 1,
        "together": False,
        "pad_token": "[PAD]",
        "padding_side": "right",
        "truncation_side": "right",
        "outputs": dict.fromkeys(NAMES, "int64"),
    }
    return tokenizer.Step(options | changes, minilm_folder())


@pytest.mark.parametrize(("side", "length", "dtype"), [("right", 64, "int64"), ("left", 16, "int32")])
def test_tokens_are_transformers_own(side, length, dtype):
    from transformers import AutoTokenizer

    theirs = AutoTokenizer.from_pretrained(minilm_folder(), padding_side=side)
    expected = theirs(TEXTS, padding=True, truncation=True, max_length=length, return_tensors="np")
    step = tokenizer_step(max_length=length, padding_side=side, outputs=dict.fromkeys(NAMES, dtype))
    found = step.answer({"text": strings(*TEXTS)})
    assert expected["input_ids"].shape == (len(TEXTS), length)
    for name in NAMES:
        np.testing.assert_array_equal(found[name], expected[name])
        assert found[name].dtype == dtype


def test_a_request_is_padded_to_its_longest_text_and_at_least_to_the_profile():
    step = tokenizer_step()
    short, long = step.answer({"text": strings("a cat")}), step.answer({"text": strings("a cat", "a cat sat here")})
    assert (short["input_ids"].shape, long["input_ids"].shape) == ((1, 4), (2, 6))
    assert tokenizer_step(min_length=32).answer({"text": strings("a cat")})["input_ids"].shape == (1, 32)


def test_texts_are_padded_to_the_multiple_that_the_model_takes():
    step = tokenizer_step(multiple=64)
    assert step.answer({"text": strings("a cat")})["input_ids"].shape == (1, 64)
    assert tokenizer_step(multiple=4).answer({"text": strings("a cat sat here")})["input_ids"].shape == (1, 8)


def test_requests_of_a_call_get_one_length_where_that_is_asked_for():
    step = tokenizer_step(together=True)
    answers = [step.answer({"text": strings(t)}) for t in ("a cat", "a cat sat here")]
    first, second = step.align(answers)
    assert first["input_ids"].shape == second["input_ids"].shape == (1, 6)
    assert first["attention_mask"].tolist() == [[1, 1, 1, 1, 0, 0]]
    assert first["input_ids"][0, -1] == 0
    assert [a["input_ids"].shape for a in tokenizer_step().align(answers)] == [(1, 4), (1, 6)]
    assert step.align([]) == []


@pytest.mark.parametrize(
    ("items", "why"),
    [
        (["fine", ""], "text 1 of the request is empty"),
        ([" \n"], "text 0 of the request is empty"),
        (["fine", b"\xff\xfe"], "text 1 of the request is not UTF-8: invalid start byte at 0"),
        ([], "holds no text"),
    ],
)
def test_text_that_cannot_be_taken_is_named(items, why):
    with pytest.raises(ValueError, match=why):
        tokenizer_step().answer({"text": strings(*items)})


def test_an_unknown_padding_token_is_refused_at_load():
    with pytest.raises(ValueError, match=r"no token '\[FILL\]'"):
        tokenizer_step(pad_token="[FILL]")


@pytest.mark.parametrize("mode", ["mean", "max", "cls", "lasttoken"])
def test_pooling_is_sentence_transformers_own(mode):
    import torch
    from sentence_transformers.sentence_transformer.modules.pooling import Pooling

    rng = np.random.default_rng(0)
    vectors = rng.standard_normal((4, 7, 8)).astype(np.float32)
    mask = np.ones((4, 7), np.int64)
    mask[1, 3:] = 0
    mask[2, 1:] = 0
    features = {"token_embeddings": torch.from_numpy(vectors), "attention_mask": torch.from_numpy(mask)}
    expected = Pooling(8, pooling_mode=mode)(features)["sentence_embedding"]
    for normalise in (False, True):
        step = pool.Step({"mode": mode, "normalise": normalise, "input": "hidden", "mask": "mask"}, Path())
        found = step.answer({"hidden": vectors, "mask": mask})["embedding"]
        wanted = torch.nn.functional.normalize(expected) if normalise else expected
        np.testing.assert_allclose(found, wanted.numpy(), rtol=1e-5, atol=1e-6)
        assert found.dtype == np.float32


def test_a_text_without_unmasked_tokens_pools_to_zeros():
    step = pool.Step({"mode": "max", "normalise": True, "input": "hidden", "mask": "mask"}, Path())
    found = step.answer({"hidden": np.ones((1, 2, 3), np.float32), "mask": np.zeros((1, 2), np.int32)})
    assert found["embedding"].tolist() == [[0, 0, 0]]


# ---------------------------------------------------------------------------------------------------------------------
# Pictures


def image_step(**changes: Any) -> image.Step:
    declared = model_zoo.entry("resnet50").pipeline.pre
    options = asdict(declared) | {"output": "pixel_values", "dtype": "float32", "channels": 3}
    return image.Step(options | changes, Path())


def encoded(picture: Image.Image, kind: str, **how: Any) -> bytes:
    file = io.BytesIO()
    picture.save(file, kind, **how)
    return file.getvalue()


def drawn(height: int, width: int, mode: str = "RGB") -> Image.Image:
    return Image.fromarray(dead_leaves(3, height, width)).convert(mode)


def rotated() -> bytes:
    exif = Image.Exif()
    exif[0x0112] = 6
    return encoded(drawn(120, 160), "JPEG", exif=exif)


PICTURES = {
    "wide": encoded(drawn(301, 500), "JPEG"),
    "tall": encoded(drawn(333, 299), "PNG"),
    "small": encoded(drawn(40, 31), "PNG"),
    "transparent": encoded(drawn(64, 64, "RGBA"), "PNG"),
    "grey": encoded(drawn(64, 90, "L"), "JPEG"),
    "palette": encoded(drawn(64, 64, "P"), "PNG"),
    "print colours": encoded(drawn(64, 64, "CMYK"), "JPEG"),
    "turned by EXIF": rotated(),
}


@pytest.mark.parametrize("name", PICTURES)
def test_pictures_are_transformers_own(name):
    """The zoo declares a ConvNeXT processor of size 224 with crop_pct 0.875."""
    from transformers.image_utils import load_image
    from transformers.models.convnext.image_processing_pil_convnext import ConvNextImageProcessorPil

    imagenet = {"image_mean": [0.485, 0.456, 0.406], "image_std": [0.229, 0.224, 0.225]}
    theirs = ConvNextImageProcessorPil(size={"shortest_edge": 224}, crop_pct=0.875, **imagenet)
    expected = theirs(images=load_image(Image.open(io.BytesIO(PICTURES[name]))), return_tensors="np")["pixel_values"]
    found = image_step().answer({"image": strings(PICTURES[name])})["pixel_values"]
    np.testing.assert_array_equal(found, expected)


def test_several_pictures_make_one_batch_in_the_model_s_dtype():
    step = image_step(dtype="float16")
    found = step.answer({"image": strings(PICTURES["wide"], PICTURES["tall"])})["pixel_values"]
    assert (found.shape, found.dtype) == ((2, 3, 224, 224), np.float16)
    np.testing.assert_array_equal(found[1], step.answer({"image": strings(PICTURES["tall"])})["pixel_values"][0])


@pytest.mark.parametrize("size", [(40, 30), (80, 30), (41, 101)])
def test_the_middle_is_cut_as_transformers_cuts_it(size):
    from transformers.image_transforms import center_crop

    values = dead_leaves(1, *size)
    expected = center_crop(values, (51, 50), input_data_format="channels_last")
    np.testing.assert_array_equal(image.middle(values, (51, 50)), expected)


def test_a_fixed_size_and_a_grey_model():
    step = image_step(resize=[20, 30], crop=None, mean=[], std=[], resample="bilinear", channels=1)
    found = step.answer({"image": strings(PICTURES["wide"])})["pixel_values"]
    expected = Image.open(io.BytesIO(PICTURES["wide"])).convert("L").resize((30, 20), Image.Resampling.BILINEAR)
    np.testing.assert_allclose(found[0, 0], np.asarray(expected, np.float32) / 255, atol=1e-7)


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"no picture", "picture 0 of the request cannot be taken: it is neither JPEG nor PNG"),
        (b"", "neither JPEG nor PNG"),
        (encoded(drawn(20, 20), "GIF"), "neither JPEG nor PNG"),
        (PICTURES["wide"][:2000], "truncated"),
        (PICTURES["tall"][:2000], "truncated"),
        (PICTURES["tall"][:40] + bytes(500), "cannot be taken"),
        (encoded(Image.new("1", (3000, 2000)), "PNG"), "3000 x 2000 pixels, and 5000000 are the limit"),
    ],
)
def test_bytes_that_are_no_picture_are_named(data, why):
    with pytest.raises(ValueError, match=why):
        image_step(max_pixels=5_000_000).answer({"image": strings(data)})


def test_pictures_of_different_sizes_in_one_request_are_refused():
    step = image_step(resize=None, crop=None)
    with pytest.raises(ValueError, match="different sizes"):
        step.answer({"image": strings(PICTURES["wide"], PICTURES["tall"])})
    with pytest.raises(ValueError, match="no picture"):
        step.answer({"image": strings()})


# ---------------------------------------------------------------------------------------------------------------------
# Labels


def labels_step(folder: Path, *, classes: int = 5, **changes: Any) -> labels.Step:
    (folder / "labels.txt").write_text("".join(f"name {i} ü\n" for i in range(classes)), encoding="utf-8")
    options = {"input": "logits", "top_k": 3, "function": "softmax", "labels": "labels.txt"}
    return labels.Step(options | changes, folder)


def test_labels_are_ranked_as_transformers_ranks_them(tmp_path):
    from transformers.pipelines.image_classification import softmax

    scores = np.random.default_rng(0).standard_normal((2, 5)).astype(np.float32) * 4
    scores[1] = [0, 7, 0, 7, 900]
    found = labels_step(tmp_path).answer({"logits": scores})
    for row in range(2):
        truth = softmax(scores[row])
        best = sorted(range(5), key=lambda i: truth[i], reverse=True)[:3]
        assert found["class_ids"][row].tolist() == best
        assert [label.decode() for label in found["labels"][row]] == [f"name {i} ü" for i in best]
        np.testing.assert_allclose(found["scores"][row], truth[best], rtol=1e-5, atol=1e-30)
        np.testing.assert_allclose(found["probabilities"][row], truth, rtol=1e-5, atol=1e-30)
    assert found["class_ids"].dtype == np.int32
    assert found["labels"].dtype == np.object_


def test_scores_that_are_no_distribution(tmp_path):
    scores = np.array([[0.0, 1.0, -2000.0, 3.0, 4.0]], np.float32)
    each = labels_step(tmp_path, function="sigmoid").answer({"logits": scores})
    np.testing.assert_allclose(each["scores"][0], 1 / (1 + np.exp(-np.array([4.0, 3.0, 1.0]))), rtol=1e-6)
    plain = labels_step(tmp_path, function="none").answer({"logits": scores})
    assert plain["scores"].tolist() == [[4.0, 3.0, 1.0]]
    with pytest.raises(ValueError, match="not finite"):
        labels_step(tmp_path).answer({"logits": np.full((1, 5), np.nan)})


# ---------------------------------------------------------------------------------------------------------------------
# Steps of the user's, and what serves a step


OWN = """
import helper


def fine(inputs):
    return {"length": inputs["x"].sum(axis=1, keepdims=True) * helper.FACTOR, "word": [["a"]] * len(inputs["x"])}


def picky(inputs):
    raise ValueError("x must not be so")


def wrong(inputs):
    return inputs["give"](inputs["x"])
"""


def own_step(folder: Path, function: str) -> own.Step:
    (folder / "own").mkdir(exist_ok=True)
    (folder / "own/mine.py").write_text(OWN)
    (folder / "own/helper.py").write_text("FACTOR = 2\n")
    outputs = [["length", "float32", ["batch", 1]], ["word", "str", ["batch", 1]]]
    return own.Step({"file": "mine.py", "function": function, "outputs": outputs}, folder)


def test_a_function_of_the_user_s_is_called_with_its_neighbours_at_hand(tmp_path):
    found = own_step(tmp_path, "fine").answer({"x": np.ones((2, 3), np.float32)})
    assert found["length"].tolist() == [[6.0], [6.0]]
    assert found["word"].tolist() == [["a"], ["a"]]
    with pytest.raises(ValueError, match="must not be so"):
        own_step(tmp_path, "picky").answer({})
    with pytest.raises(AttributeError, match="none_such"):
        own_step(tmp_path, "none_such")


@pytest.mark.parametrize(
    ("gives", "why"),
    [
        (lambda x: [1], "gave list, expected a mapping"),
        (lambda x: {"length": x[:, :1]}, "gave .*'length'.*, and declares 'word'"),
        (lambda x: {"length": x[:, :1].astype(float), "word": [["a"]] * 2}, "'length' is float64, declared float32"),
        (lambda x: {"length": x, "word": [["a"]] * 2}, r"'length' is \(2, 3\), declared \('batch', 1\)"),
        (lambda x: {"length": x[:, 0], "word": [["a"]] * 2}, r"'length' is \(2,\), declared"),
        (lambda x: {"length": x[:, :1], "word": [["a"]]}, r"'word' is \(1, 1\), declared"),
    ],
)
def test_what_a_function_gives_is_held_to_its_declaration(tmp_path, gives, why):
    with pytest.raises(TypeError, match=why):
        own_step(tmp_path, "wrong").answer({"x": np.ones((2, 3), np.float32), "give": gives})


def test_the_model_that_serves_a_step_answers_each_request_on_its_own(tmp_path, monkeypatch):
    """One request that cannot be taken, and one that a fault ends, leave the others their answers."""
    own_step(tmp_path, "fine")
    code = Path(steps.__file__).parent
    (tmp_path / "step.py").write_bytes((code / "own.py").read_bytes())
    outputs = '[["length", "float32", ["batch", 1]], ["word", "str", ["batch", 1]]]'
    options = f'{{"file": "mine.py", "function": "fine", "outputs": {outputs}}}'
    (tmp_path / "step.json").write_text(f'{{"numpy_below_2": false, "options": {options}}}')
    (tmp_path / "model.py").write_bytes((code.parent / "backend_py/step.py").read_bytes())
    monkeypatch.syspath_prepend(STANDIN)
    monkeypatch.delitem(sys.modules, "step", raising=False)
    monkeypatch.setattr(sys, "path", [*sys.path])
    spec = importlib.util.spec_from_file_location("served_step", tmp_path / "model.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    utils = module.pb_utils
    model = module.TritonPythonModel()
    model.initialize({})
    monkeypatch.delitem(sys.modules, "step")

    def request(value: np.ndarray, *wanted: str) -> Any:
        return utils.InferenceRequest([utils.Tensor("x", value)], wanted or ("length", "word"))

    bad = np.full((1, 2), "text", dtype=np.object_)
    sent = [request(np.ones((1, 2), np.float32)), request(bad), request(np.ones((2, 2), np.float32), "word")]
    found = model.execute(sent)
    assert [t.name() for t in found[0].output_tensors()] == ["length", "word"]
    assert found[1].error().code() == utils.TritonError.INTERNAL
    assert [t.name() for t in found[2].output_tensors()] == ["word"]

    model.step.function = lambda inputs: (_ for _ in ()).throw(ValueError("not that"))
    (refused,) = model.execute(sent[:1])
    assert (refused.error().code(), refused.error().message()) == (utils.TritonError.INVALID_ARG, "not that")
