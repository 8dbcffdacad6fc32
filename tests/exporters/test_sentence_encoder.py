"""Sentence-transformers folders: pooling and normalisation are part of the model, and equal that library's."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from accel.core.errors import InputError, UsageError
from accel.core.values import ModelSource
from accel.exporters import describe, export_onnx, load
from accel.exporters.ensemble_request import asked
from accel.exporters.huggingface_inputs import longest_text
from accel.exporters.processing_files import resolve_processing_files
from accel.exporters.sources import quick_key, recognise

EVERY = ["cls", "max", "mean", "mean_sqrt_len_tokens", "weightedmean", "lasttoken"]
TEXTS = ["A cat.", "Dogs bark at the mailman, and he walks on.", "x"]
Make = Callable[..., Path]


@pytest.fixture
def sentence_folder(hf_folder: Path, tmp_path: Path) -> Make:
    def make(*after: str, pooling: dict[str, Any], dense: int = 0) -> Path:
        folder = tmp_path / "sentences"
        shutil.copytree(hf_folder, folder)
        config = json.loads((folder / "config.json").read_text())
        # As published ones: the config names the class that the encoder was trained as.
        (folder / "config.json").write_text(json.dumps({**config, "architectures": ["BertForMaskedLM"]}))
        (folder / "tokenizer_config.json").write_text(
            json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", "pad_token": "[PAD]", "model_max_length": 64})
        )
        modules = [{"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"}]
        for index, kind in enumerate(("Pooling", *after), 1):
            inner = folder / f"{index}_{kind}"
            inner.mkdir()
            kind_name = f"sentence_transformers.models.{kind}"
            modules.append({"idx": index, "name": str(index), "path": inner.name, "type": kind_name})
            if kind == "Pooling":
                width = {"word_embedding_dimension": 32, "embedding_dimension": 32}
                (inner / "config.json").write_text(json.dumps({**width, **pooling}))
            if kind == "Dense":
                from safetensors.torch import save_file

                torch.manual_seed(1)
                linear = torch.nn.Linear(dense, 8)
                save_file({f"linear.{n}": v for n, v in linear.state_dict().items()}, inner / "model.safetensors")
                known = {"in_features": dense, "out_features": 8, "bias": True}
                tanh = {"activation_function": "torch.nn.modules.activation.Tanh"}
                (inner / "config.json").write_text(json.dumps({**known, **tanh}))
        (folder / "modules.json").write_text(json.dumps(modules))
        return folder

    return make


def feed_of(folder: Path, source: ModelSource, *, left: bool = False) -> dict[str, np.ndarray]:
    """Tokenise all texts into one padded batch."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.enable_padding(direction="left" if left else "right")
    coded = tokenizer.encode_batch(TEXTS)
    known = {
        "input_ids": [c.ids for c in coded],
        "attention_mask": [c.attention_mask for c in coded],
        "token_type_ids": [c.type_ids for c in coded],
    }
    return {s.name: np.array(known[s.name]) for s in source.inputs}


def recomputed(hidden: np.ndarray, mask: np.ndarray, mode: str) -> np.ndarray:
    """Pool text by text over the tokens that the mask shows, in float64."""
    rows = []
    for vectors, shown in zip(hidden.astype(np.float64), mask.astype(bool), strict=True):
        real = vectors[shown]
        weight = np.arange(1, len(real) + 1)[:, None]
        rows.append(
            {
                "cls": real[0],
                "max": real.max(0),
                "mean": real.mean(0),
                "mean_sqrt_len_tokens": real.sum(0) / np.sqrt(len(real)),
                "weightedmean": (real * weight).sum(0) / weight.sum(),
                "lasttoken": real[-1],
            }[mode]
        )
    return np.stack(rows)


@pytest.mark.parametrize("left", [False, True])
def test_every_pooling_equals_a_plain_computation(sentence_folder: Make, tmp_path: Path, left: bool) -> None:
    folder = sentence_folder("Normalize", pooling={"pooling_mode": EVERY})
    source = describe(recognise(str(folder)))
    assert [(o.name, o.dtype, o.dims) for o in source.outputs] == [("sentence_embedding", "float32", ("batch", 6 * 32))]
    assert (source.accuracy, source.mask) == ("proved", "attention_mask")
    assert "--task feature-extraction" in (source.notice or "")
    plain = describe(recognise(str(folder), task="feature-extraction"))
    assert [o.name for o in plain.outputs] == ["last_hidden_state", "pooler_output"]
    feed = feed_of(folder, source, left=left)
    hidden = load(plain).run(feed)["last_hidden_state"]
    expected = np.concatenate([recomputed(hidden, feed["attention_mask"], mode) for mode in EVERY], axis=1)
    expected /= np.linalg.norm(expected, axis=1, keepdims=True)
    np.testing.assert_allclose(load(source).run(feed)["sentence_embedding"], expected, atol=1e-6, rtol=0)
    if left:
        found = export_onnx(source, tmp_path / "onnx")  # checked against the source at four shapes
        assert "ArgMax" not in found.ops


@pytest.mark.parametrize(
    ("after", "pooling", "dense"),
    [
        ((), {"pooling_mode_mean_tokens": True, "pooling_mode_cls_token": False}, 0),
        (("Normalize",), {"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}, 0),
        (("Dense", "Normalize"), {"pooling_mode_mean_tokens": True, "pooling_mode_max_tokens": True}, 64),
    ],
)
def test_it_gives_what_sentence_transformers_gives(
    sentence_folder: Make, after: tuple[str, ...], pooling: dict[str, bool], dense: int
) -> None:
    from sentence_transformers import SentenceTransformer

    folder = sentence_folder(*after, pooling=pooling, dense=dense)
    expected = SentenceTransformer(str(folder), device="cpu", local_files_only=True).encode(TEXTS)
    source = describe(recognise(str(folder)))
    found = load(source).run(feed_of(folder, source))["sentence_embedding"]
    np.testing.assert_allclose(found, expected, atol=1e-5, rtol=0)


def test_the_key_covers_the_modules(sentence_folder: Make) -> None:
    folder = sentence_folder(pooling={"pooling_mode": "mean"})
    before = quick_key(recognise(str(folder)))
    (folder / "1_Pooling" / "config.json").write_text(json.dumps({"pooling_mode": "cls"}))
    assert quick_key(recognise(str(folder))) != before


def test_what_is_not_built_is_said_with_the_way_around(sentence_folder: Make) -> None:
    folder = sentence_folder("WordWeights", pooling={"pooling_mode": "mean"})
    with pytest.raises(InputError, match=r"asks for .*WordWeights") as caught:
        describe(recognise(str(folder)))
    assert "--task feature-extraction" in (caught.value.fix or "")
    assert describe(recognise(str(folder), task="feature-extraction")).outputs[0].name == "last_hidden_state"


def test_a_projection_of_pickled_weights_is_not_opened(sentence_folder: Make) -> None:
    folder = sentence_folder("Dense", pooling={"pooling_mode": "mean"}, dense=32)
    (folder / "2_Dense" / "model.safetensors").rename(folder / "2_Dense" / "pytorch_model.bin")
    with pytest.raises(InputError, match="a pickle is never opened"):
        describe(recognise(str(folder)))


def test_an_ensemble_needs_no_pooling_step(sentence_folder: Make) -> None:
    folder = sentence_folder("Normalize", pooling={"pooling_mode": "mean"})
    source = describe(recognise(str(folder)))
    pipeline = resolve_processing_files(source, asked(True) or pytest.fail("no ensemble"))
    assert (pipeline.pre is not None, pipeline.post) == (True, None)
    with pytest.raises(UsageError, match="pools by itself"):
        resolve_processing_files(source, asked({"post": {"mode": "max"}}) or pytest.fail("no ensemble"))


@pytest.mark.parametrize("mode", ["mean", "cls", "max", "lasttoken"])
def test_any_encoder_is_pooled_on_request(hf_folder: Path, tmp_path: Path, mode: str) -> None:
    plain = describe(recognise(str(hf_folder), task="feature-extraction"))
    source = describe(recognise(str(hf_folder), pool=mode))  # type: ignore[arg-type]
    assert [(o.name, o.dtype, o.dims) for o in source.outputs] == [("sentence_embedding", "float32", ("batch", 32))]
    assert source.key != plain.key
    feed = feed_of(hf_folder, source)
    hidden = load(plain).run(feed)["last_hidden_state"]
    found = load(source).run(feed)["sentence_embedding"]
    np.testing.assert_allclose(found, recomputed(hidden, feed["attention_mask"], mode), atol=1e-6, rtol=0)
    if mode == "mean":
        assert export_onnx(source, tmp_path / "onnx").outputs[0].name == "sentence_embedding"


def test_a_sentence_folder_keeps_its_other_modules_when_pooled_otherwise(sentence_folder: Make) -> None:
    folder = sentence_folder("Normalize", pooling={"pooling_mode": "mean"})
    plain = describe(recognise(str(folder), pool="none"))
    assert [o.name for o in plain.outputs] == ["last_hidden_state", "pooler_output"]
    source, own = (describe(recognise(str(folder), pool=pool)) for pool in ("max", None))
    assert len({plain.key, source.key, own.key}) == 3
    feed = feed_of(folder, source)
    expected = recomputed(load(plain).run(feed)["last_hidden_state"], feed["attention_mask"], "max")
    expected /= np.linalg.norm(expected, axis=1, keepdims=True)
    np.testing.assert_allclose(load(source).run(feed)["sentence_embedding"], expected, atol=1e-6, rtol=0)


def test_the_zoos_encoder_is_pooled_and_normalised_as_its_folder_says() -> None:
    source, plain = (describe(recognise("minilm", weights="random", pool=pool)) for pool in ("mean", None))
    assert (source.gate, source.outputs[0].dims) == (None, ("batch", plain.outputs[0].dims[2]))
    rng = np.random.default_rng(0)
    mask = (np.arange(6) < [[6], [3]]).astype(np.int64)
    feed = {s.name: mask if s.name == plain.mask else rng.integers(0, 2, (2, 6)) for s in plain.inputs}
    hidden = load(plain).run(feed)["last_hidden_state"]
    expected = recomputed(hidden, mask, "mean")
    expected /= np.linalg.norm(expected, axis=1, keepdims=True)
    np.testing.assert_allclose(load(source).run(feed)["sentence_embedding"], expected, atol=1e-6, rtol=0)


MODULES = """
import numpy as np
import torch

class Tokens(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = torch.nn.Embedding(9, 4)

    def forward(self, input_ids, attention_mask):
        return self.embed(input_ids) * attention_mask[..., None]

class Pooled(Tokens):
    def forward(self, input_ids, attention_mask):
        return super().forward(input_ids, attention_mask).sum(1)

def _made(module):
    torch.manual_seed(0)
    ones = (np.ones((1, n), np.int64) for n in range(1, 8))
    return module(), [{"input_ids": one * one.size, "attention_mask": one} for one in ones]

def tokens():
    return _made(Tokens)

def pooled():
    return _made(Pooled)
"""


def test_a_factory_is_pooled_and_what_has_no_tokens_is_refused(tmp_path: Path) -> None:
    (tmp_path / "m.py").write_text(MODULES)
    source = describe(recognise(f"{tmp_path}/m.py:tokens", pool="max"))
    feed = {"input_ids": np.array([[1, 2, 3]]), "attention_mask": np.array([[1, 1, 0]])}
    embed = load(source).run(feed)["sentence_embedding"]
    plain = load(describe(recognise(f"{tmp_path}/m.py:tokens"))).run(feed)["output"]
    np.testing.assert_allclose(embed, plain[:, :2].max(1))
    with pytest.raises(UsageError, match=r"--pool needs a vector of each token .* gives output \['batch', 4\]"):
        describe(recognise(f"{tmp_path}/m.py:pooled", pool="mean"))


@pytest.mark.parametrize(
    ("declared", "longest"), [(64, 64), (1e30, 512), (float("inf"), 512), ("64 tokens", 512), (-1, 512), ([64], 512)]
)
def test_a_length_that_is_no_number_says_nothing(tmp_path: Path, declared: Any, longest: int) -> None:
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"model_max_length": declared}))
    assert longest_text(tmp_path, SimpleNamespace(max_position_embeddings=512)) == longest


def test_the_mask_that_the_user_names_is_pooled_by(tmp_path: Path) -> None:
    (tmp_path / "m.py").write_text(MODULES.replace("attention_mask", "seen"))
    with pytest.raises(UsageError, match="--pool needs"):
        describe(recognise(f"{tmp_path}/m.py:tokens", pool="max"))
    source = describe(recognise(f"{tmp_path}/m.py:tokens", pool="max", mask="seen"))
    assert (source.mask, source.family) == ("seen", "transformer")
    assert source.inputs[0].range == (0, 7), "0 is what pads ids of several lengths"
    feed = {"input_ids": np.array([[1, 2, 3]]), "seen": np.array([[1, 1, 0]])}
    plain = load(describe(recognise(f"{tmp_path}/m.py:tokens", mask="seen"))).run(feed)["output"]
    np.testing.assert_allclose(load(source).run(feed)["sentence_embedding"], plain[:, :2].max(1))
