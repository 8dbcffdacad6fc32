"""The zoo's text models: samples that fit, outputs that depend on the text, steps that agree with whole sentences."""

import json
from pathlib import Path

import numpy as np
import pytest

import model_zoo
from accel.core.errors import InputError
from accel.exporters import describe, export_onnx, load
from accel.exporters.ensemble_request import EnsembleRequest
from accel.exporters.processing_files import resolve_processing_files
from accel.exporters.samples import batched
from accel.exporters.source_model import SourceModel
from accel.exporters.sources import recognise
from model_zoo import _text, gpt2, roberta

TEXT = ("bert", "bert-large", "distilbert", "gpt2", "minilm", "roberta", "t5-encoder")
REPOSITORIES = {
    "bert": "google-bert/bert-base-uncased",
    "bert-large": "google-bert/bert-large-uncased",
    "distilbert": "distilbert/distilbert-base-uncased-finetuned-sst-2-english",
    "gpt2": "openai-community/gpt2",
    "roberta": "FacebookAI/roberta-base",
    "t5-encoder": "google-t5/t5-base",
}


@pytest.fixture(scope="module", params=TEXT)
def small(request: pytest.FixtureRequest) -> SourceModel:
    return load(describe(recognise(f"{request.param}@small")))


def _snapshot(cache: Path, name: str) -> Path:
    """Return the empty folder in which the hub's cache keeps the pinned revision of an entry's weights."""
    entry = model_zoo.entry(name)
    assert entry.hub == REPOSITORIES[name]
    folder = cache / f"models--{entry.hub.replace('/', '--')}" / "snapshots" / str(entry.revision)
    folder.mkdir(parents=True)
    return folder


@pytest.mark.parametrize("name", TEXT)
def test_a_reduced_model_has_the_structure_of_its_entry(name: str) -> None:
    full, reduced = model_zoo.entry(name), model_zoo.entry(f"{name}@small")
    kept = {s.name for s in full.inputs}
    if name == "gpt2":
        kept = {n for n in kept if not n.startswith("past") or int(n.split(".")[1]) < gpt2.SMALL_LAYERS}
    assert {s.name for s in reduced.inputs} == kept
    assert {s.name for s in reduced.outputs} <= {s.name for s in full.outputs}
    named = {s.name: [d for d in s.dims if isinstance(d, str)] for s in (*full.inputs, *full.outputs)}
    assert all([d for d in s.dims if isinstance(d, str)] == named[s.name] for s in (*reduced.inputs, *reduced.outputs))
    assert (full.mask, full.family, full.licence) == (reduced.mask, reduced.family, reduced.licence)
    assert (reduced.hub, reduced.revision, reduced.gate, reduced.weights()) == (None, None, None, None)
    assert reduced.parameters < 1_000_000 < full.parameters


def test_samples_fit_and_outputs_depend_on_the_text(small: SourceModel) -> None:
    source = small.source
    entry = model_zoo.entry(source.reference)
    assert small.module is not None
    assert sum(p.numel() for p in small.module.parameters()) == entry.parameters
    items = entry.samples(48)
    lengths = [i["attention_mask"].shape[1] for i in items]
    assert len(set(lengths)) > 5
    assert len({i["input_ids"].tobytes() + i["attention_mask"].tobytes() for i in items}) > 40
    single = [small.run(item) for item in items]
    for spec in source.outputs:
        width = spec.dims[-1]
        rows = np.concatenate([answer[spec.name].reshape(-1, width) for answer in single])
        moved = np.square(rows - rows.mean(axis=0)).sum()
        # A constant plus a little signal would let INT8 be judged on rounding alone.
        assert moved > 0.2 * np.square(rows).sum(), spec.name
    joined = batched([dict(i) for i in items[:4]], source)["0"]
    assert len({i["attention_mask"].shape for i in items[:4]}) > 1
    for name, together in small.run(joined).items():
        for row, alone in enumerate(single[:4]):
            shape = alone[name].shape
            if not name.startswith("present"):
                cut = together[(slice(row, row + 1), *(slice(n) for n in shape[1:]))]
                np.testing.assert_allclose(cut, alone[name], atol=1e-4)


def test_stand_ins_keep_to_the_vocabulary_and_its_special_ids() -> None:
    for item in _text.stand_ins(60, roberta.INPUTS, first=4, start=(0,), end=(2,)):
        ids = item["input_ids"]
        assert list(item) == ["input_ids", "attention_mask"]
        assert (ids[0, 0], ids[0, -1]) == (0, 2)
        assert ids[0, 1:-1].min() >= 4
        assert ids.max() < roberta.VOCABULARY
    short = _text.stand_ins(60, _text.text_inputs(50), first=9, end=(1,), longest=8)
    assert max(i["input_ids"].shape[1] for i in short) == 8
    assert all(i["input_ids"][0, -1] == 1 and i["input_ids"].max() < 50 for i in short)


def test_a_model_uses_its_own_tokenizer_where_its_folder_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tokenizers import Tokenizer, models, pre_tokenizers

    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    stood_in = model_zoo.entry("roberta").samples(2)
    with pytest.raises(InputError, match="tokenizer of roberta") as refused:
        resolve_processing_files(describe(recognise("roberta")), EnsembleRequest())
    assert "FacebookAI/roberta-base" in str(refused.value.fix)
    folder = _snapshot(tmp_path, "roberta")
    (folder / "config.json").write_text(json.dumps({"model_type": "roberta"}))
    (folder / "model.safetensors").write_bytes(b"")
    words = sorted({w for t in _text.sentences(2) for w in t.split()})
    tokenizer = Tokenizer(models.WordLevel({w: i for i, w in enumerate(["<unk>", *words])}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.save(str(folder / "tokenizer.json"))
    own = model_zoo.entry("roberta").samples(2)
    assert [i["input_ids"].shape[1] for i in own] == [len(t.split()) for t in _text.sentences(2)]
    assert [i["input_ids"].tobytes() for i in own] != [i["input_ids"].tobytes() for i in stood_in]
    step = resolve_processing_files(describe(recognise("roberta", weights="random")), EnsembleRequest()).pre
    assert step is not None
    assert (step.kind, getattr(step, "pad_token", "")) == ("tokenizer", "<pad>")


def test_a_head_that_no_checkpoint_has_leaves_accuracy_unproved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from transformers import BertConfig, BertModel

    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    assert describe(recognise("bert-large")).weights == "random(seed=0)"
    BertModel(BertConfig(**_text.small_bert_config())).save_pretrained(_snapshot(tmp_path, "bert-large"))
    source = describe(recognise("bert-large"))
    assert (source.weights, source.accuracy) == ("random(seed=0) in part", "unproved")
    assert source.revision == model_zoo.entry("bert-large").revision
    assert "classification head" in (source.notice or "")
    feed = model_zoo.entry("bert-large@small").samples(1)[0]
    first, second = (load(source).run(feed)["logits"] for _ in range(2))
    assert first.shape == (1, 2)
    np.testing.assert_array_equal(first, second)


def test_a_step_of_gpt2_answers_as_the_whole_sentence_does() -> None:
    import torch

    step = gpt2.load_small(None)
    texts = [item["input_ids"] for item in _text.stand_ins(12, _text.text_inputs(1024), first=0, longest=20)]
    texts = [t for t in texts if t.shape[1] > 1]
    moved = []
    for ids, item in zip(texts, gpt2.steps(step, texts), strict=True):
        fed = {n: torch.from_numpy(v) for n, v in item.items()}
        padded = {
            n: v
            if n == "input_ids"
            else torch.nn.functional.pad(v, (0, 2))
            if n == "attention_mask"
            else torch.nn.functional.pad(v, (0, 0, 0, 2), value=3.0)
            for n, v in fed.items()
        }
        with torch.inference_mode():
            whole = step.model(input_ids=torch.from_numpy(ids))
            answer, beside = step(**fed), step(**padded)
            blind = step(**{n: v * 0 if n.startswith("past") else v for n, v in fed.items()})
        np.testing.assert_allclose(answer["logits"], whole.logits[:, -1], atol=1e-4)
        np.testing.assert_allclose(beside["logits"], answer["logits"], atol=1e-4)
        np.testing.assert_allclose(answer["present.1.key"], whole.past_key_values.layers[1].keys, atol=1e-4)
        np.testing.assert_array_equal(answer["present.0.value"][:, :, :-1], fed["past_key_values.0.value"])
        moved.append(float((blind["logits"] - answer["logits"]).std() / answer["logits"].std()))
    assert np.mean(moved) > 0.3


def test_gpt2_keeps_its_axes_in_onnx(tmp_path: Path) -> None:
    source = describe(recognise("gpt2@small"))
    exported = export_onnx(source, tmp_path)
    assert [s.dims[:3] for s in exported.inputs][:3] == [("batch", 1), ("batch", "past"), ("batch", 4, "past")]
    assert [s.name for s in exported.outputs] == [s.name for s in source.outputs]
    assert all(isinstance(s.dims[2], str) for s in exported.outputs[1:])


def test_label_agreement_counts_rows_and_refuses_nan() -> None:
    truth = [{"logits": np.array([[1.0, 2.0], [3.0, 0.0]])}, {"logits": np.array([[0.0, 1.0]])}]
    turned = [{"logits": np.array([[1.0, 0.0], [3.0, 0.0]])}, {"logits": np.array([[0.0, 1.0]])}]
    assert _text.label_agreement(truth, truth, []) == 1
    assert _text.label_agreement(truth, turned, []) == pytest.approx(2 / 3)
    assert _text.label_agreement(truth, [truth[0], {"logits": np.array([[np.nan, 1.0]])}], []) == -1
