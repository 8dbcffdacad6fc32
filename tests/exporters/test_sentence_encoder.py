"""Sentence-transformers folders: pooling and normalisation are part of the model, and equal that library's."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from accel.core.errors import InputError, UsageError
from accel.core.values import ModelSource
from accel.exporters import describe, export_onnx, load
from accel.exporters.ensemble_request import asked
from accel.exporters.processing_files import find
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
    pipeline = find(source, asked(True) or pytest.fail("no ensemble"))
    assert (pipeline.pre is not None, pipeline.post) == (True, None)
    with pytest.raises(UsageError, match="pools by itself"):
        find(source, asked({"post": {"mode": "max"}}) or pytest.fail("no ensemble"))
