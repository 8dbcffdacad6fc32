"""Hugging Face folders: inputs, classes, weights and samples."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from accel.core.errors import InputError, UnavailableError, UsageError
from accel.core.feeds import read_feeds
from accel.exporters import describe, export_onnx, load
from accel.exporters.from_torch import exportable_layers
from accel.exporters.samples import make_samples
from accel.exporters.source_model import another_way
from accel.exporters.sources import recognise


def test_a_folder_is_described(hf_folder: Path) -> None:
    source = describe(recognise(str(hf_folder)))
    assert [s.name for s in source.inputs] == ["input_ids", "attention_mask", "token_type_ids"]
    assert source.inputs[0].range == (0, 30521)
    assert source.profile["input_ids"].max == (16, 64)
    assert [(o.name, o.dims) for o in source.outputs] == [
        ("last_hidden_state", ("batch", "seq", 32)),
        ("pooler_output", ("batch", 32)),
    ]
    assert (source.weights, source.accuracy, source.mask) == ("local", "proved", "attention_mask")
    assert (source.family, source.samples) == ("transformer", "zoo")


def test_the_export_uses_eager_attention_and_leaves_the_source_alone(hf_folder: Path, tmp_path: Path) -> None:
    source = describe(recognise(str(hf_folder), max_shapes={"input_ids": (3, 16)}, opt_shapes={"input_ids": (1, 8)}))
    model = load(source)
    assert model.module is not None
    before = model.module.model.config._attn_implementation
    found = export_onnx(source, tmp_path, model=model)
    assert before == model.module.model.config._attn_implementation == "sdpa"
    assert "IsNaN" not in found.ops
    assert found.ops["Softmax"] == 2
    assert [s.dims for s in found.inputs] == [("batch", "seq")] * 3
    assert [f.path for f in found.data] == ["model.onnx.data"]
    assert found.opset == 18


def test_axes_fixed_by_the_user_come_out_fixed(hf_folder: Path, tmp_path: Path) -> None:
    shape = {"input_ids": (2, 8)}
    request = recognise(str(hf_folder), min_shapes=shape, opt_shapes=shape, max_shapes=shape)
    source = describe(request)
    assert source.inputs[1].dims == (2, 8)
    assert source.outputs[0].dims == (2, 8, 32)
    assert export_onnx(source, tmp_path / "onnx").inputs[0].dims == (2, 8)
    samples = make_samples(source, request, tmp_path / "samples")
    assert samples.gate_items == 256
    assert {v.shape for f in read_feeds(tmp_path / "samples" / "gate.npz").values() for v in f.values()} == {(2, 8)}


def test_task_overrides_the_class_and_missing_weights_are_told(hf_folder: Path) -> None:
    source = describe(recognise(str(hf_folder), task="text-classification"))
    assert [o.name for o in source.outputs] == ["logits"]
    assert source.accuracy == "unproved"
    assert "drawn at random" in (source.notice or "")
    feed = {s.name: np.ones((1, 4), np.int64) for s in source.inputs}
    np.testing.assert_array_equal(load(source).run(feed)["logits"], load(source).run(feed)["logits"])
    with pytest.raises(UsageError, match="unknown --task"):
        describe(recognise(str(hf_folder), task="text-clasification"))


def test_several_answers_to_one_question_are_refused(tmp_path: Path) -> None:
    from transformers import BertConfig, BertForMultipleChoice

    config = BertConfig(hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8, vocab_size=99)
    BertForMultipleChoice(config).save_pretrained(tmp_path)
    with pytest.raises(UsageError, match=r"takes ids \(batch, choices, length\)"):
        describe(recognise(str(tmp_path)))


def test_random_weights_can_be_asked_for(hf_folder: Path) -> None:
    real, random = (describe(recognise(str(hf_folder), weights=w)) for w in ("auto", "random"))  # type: ignore[arg-type]
    assert (random.weights, random.accuracy) == ("random(seed=0)", "unproved")
    assert random.key != real.key


def test_pickled_weights_are_not_opened(hf_folder: Path, tmp_path: Path) -> None:
    folder = tmp_path / "pickled"
    shutil.copytree(hf_folder, folder)
    (folder / "model.safetensors").unlink()
    torch.save({}, folder / "pytorch_model.bin")
    with pytest.raises(InputError, match="no safetensors weights"):
        describe(recognise(str(folder)))


def test_broken_folders_say_so(hf_folder: Path, tmp_path: Path) -> None:
    folder = tmp_path / "broken"
    shutil.copytree(hf_folder, folder)
    data = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(data[: len(data) // 2])
    with pytest.raises(InputError, match="cannot load"):
        describe(recognise(str(folder)))
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"architectures": ["NoSuchModel"]}))
    with pytest.raises(UnavailableError, match="no class 'NoSuchModel'"):
        describe(recognise(str(folder)))
    (folder / "config.json").write_text(json.dumps(config | {"num_hidden_layers": 1 << 31}))  # it would build for ever
    with pytest.raises(InputError, match="num_hidden_layers is 2147483648"):
        describe(recognise(str(folder)))


def test_code_of_a_repository_is_not_run(hf_folder: Path, tmp_path: Path) -> None:
    folder = tmp_path / "remote"
    shutil.copytree(hf_folder, folder)
    (folder / "code.py").write_text(f"open({str(tmp_path / 'was-run')!r}, 'w')")
    own = {"model_type": "own", "auto_map": {"AutoConfig": "code.Config", "AutoModel": "code.Model"}}
    (folder / "config.json").write_text(json.dumps(own))
    with pytest.raises(UnavailableError, match="needs code from its repository"):
        describe(recognise(str(folder)))
    assert not (tmp_path / "was-run").exists()


def test_an_absent_hub_id_says_how_to_get_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(UnavailableError, match="HF_HUB_OFFLINE"):
        describe(recognise("nobody/nothing"))


def test_a_picture_model_is_described_and_fed(tmp_path: Path) -> None:
    from transformers import ResNetConfig, ResNetForImageClassification

    config = ResNetConfig(embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], num_labels=5, image_size=32)
    ResNetForImageClassification(config).save_pretrained(tmp_path / "net")
    request = recognise(str(tmp_path / "net"))
    source = describe(request)
    assert source.inputs[0].dims == ("batch", 3, 32, 32)
    assert (source.family, source.samples) == ("vision", "zoo")
    export_onnx(source, tmp_path / "onnx")
    samples = make_samples(source, request, tmp_path / "samples")
    assert (samples.calibration_items, samples.gate_items) == (128, 256)


def test_the_sources_noise_holds_both_of_its_forms_of_attention(hf_folder: Path) -> None:
    """A row without a key has no answer that one form of attention could be held to: CLIP, padded at the left."""
    model = load(describe(recognise(str(hf_folder))))
    ids = np.arange(12).reshape(2, 6)
    feed = {spec.name: np.zeros_like(ids) for spec in model.source.inputs} | {"input_ids": ids}
    feed["attention_mask"] = np.stack([np.ones(6, np.int64), np.zeros(6, np.int64)])
    way = another_way(model, feed, lend=exportable_layers)
    assert way is not None
    truth, other = model.run(feed), way[1](feed)
    off = {name: np.abs(truth[name] - other[name]).reshape(2, -1).max(axis=1) for name in truth}
    assert all(error[0] < 1e-5 for error in off.values()), off
    assert any(error[1] > 1e-3 for error in off.values()), off
    assert model.run(feed).keys() == truth.keys()
