"""Which steps a source has: the zoo's declarations, and what the files of a Hugging Face folder say."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from accel.core.errors import AccelError, InputError, UsageError
from accel.core.processing import CustomStep, Labels, Picture, Pipeline, Pool, Tokenize
from accel.core.values import ModelSource, ShapeRange, TensorSpec, from_json, to_json
from accel.exporters.ensemble_request import EnsembleRequest, asked
from accel.exporters.processing_files import resolve_processing_files
from accel.exporters.sources import recognise
from model_zoo._text import minilm_folder

IDS = tuple(TensorSpec(n, "int64", ("batch", "seq")) for n in ("input_ids", "attention_mask"))
HIDDEN = TensorSpec("last_hidden_state", "float32", ("batch", "seq", 8))
LOGITS = TensorSpec("logits", "float32", ("batch", 3))
PIXELS = TensorSpec("pixel_values", "float32", ("batch", 3, 32, 32))
PLAIN = EnsembleRequest()


def zoo(name: str, weights: str = "random") -> ModelSource:
    from accel.exporters.from_zoo import describe

    return describe(recognise(name, weights=weights))


def source(folder: Path | None, inputs: tuple[TensorSpec, ...], *outputs: TensorSpec) -> ModelSource:
    """Return a source of a folder, or of an ONNX file where there is none."""
    return ModelSource(
        name="mine",
        kind="huggingface" if folder else "onnx",
        reference=str(folder or "/models/mine.onnx"),
        framework="torch",
        weights="local",
        revision=None,
        key="0" * 64,
        inputs=inputs,
        outputs=outputs,
        profile={s.name: ShapeRange((1, 1), (1, 8), (4, 64)) for s in inputs},
    )


def write(folder: Path, **files: Any) -> Path:
    """Write JSON files: ``config={…}`` becomes ``config.json``; a double underscore is a slash."""
    for name, content in files.items():
        path = folder / f"{name.replace('__', '/')}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(content))
    return folder


@pytest.fixture
def encoder(tmp_path: Path) -> Path:
    return write(
        tmp_path,
        config={"architectures": ["BertModel"], "max_position_embeddings": 64},
        tokenizer={},
        tokenizer_config={"model_max_length": 48, "pad_token": {"content": "<pad>"}, "padding_side": "left"},
    )


def test_the_zoo_declares_what_the_folder_of_minilm_says():
    declared = resolve_processing_files(zoo("minilm", "auto"), PLAIN)
    read = resolve_processing_files(source(minilm_folder(), IDS, HIDDEN), PLAIN)
    assert declared == read
    assert read.post == Pool("mean", normalise=True)
    assert read.pre.max_length == 256
    assert Path(read.pre.file.path) == minilm_folder() / "tokenizer.json"


def test_bert_and_resnet_of_the_zoo():
    bert = resolve_processing_files(zoo("bert"), PLAIN)
    assert (bert.pre.max_length, bert.post) == (512, Pool("mean"))
    resnet = resolve_processing_files(zoo("resnet50"), PLAIN)
    assert isinstance(resnet.pre, Picture)
    assert resnet.post == Labels(5)


def test_a_pipeline_comes_back_from_json(tmp_path):
    (tmp_path / "own.py").write_text("def f(inputs):\n    return inputs\n")
    tensor = {"name": "x", "dtype": "str", "dims": ["batch", 1]}
    step = asked({"pre": {"function": f"{tmp_path}/own.py:f", "inputs": [tensor]}}).pre
    for pipeline in (
        resolve_processing_files(zoo("minilm", "auto"), PLAIN),
        resolve_processing_files(zoo("resnet50"), PLAIN),
        Pipeline(step, None),
    ):
        assert from_json(Pipeline, json.loads(json.dumps(to_json(pipeline)))) == pipeline


def test_an_encoder_s_folder(encoder):
    found = resolve_processing_files(source(encoder, IDS, HIDDEN), PLAIN)
    assert replace(found.pre, file=None) == Tokenize(48, pad_token="<pad>", padding_side="left")
    assert found.post == Pool("mean")


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"id2label": {"1": "yes", "0": "no", "2": "?"}}, Labels(5, ("no", "yes", "?"))),
        ({"problem_type": "multi_label_classification"}, Labels(5, function="sigmoid")),
        ({"id2label": {"0": "score"}}, Labels(5, ("score",), "sigmoid")),
        ({"problem_type": "regression"}, Labels(5, function="none")),
    ],
)
def test_a_classifier_s_folder(encoder, config, expected):
    write(encoder, config={"architectures": ["BertForSequenceClassification"], **config})
    assert resolve_processing_files(source(encoder, IDS, LOGITS), PLAIN).post == expected


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"size": 384, "image_processor_type": "ConvNextImageProcessor"}, ((384, 384), None)),
        ({"size": {"shortest_edge": 32}, "feature_extractor_type": "ConvNextFeatureExtractor"}, (36, (32, 32))),
        ({"size": {"shortest_edge": 40}, "crop_size": 32, "do_center_crop": True}, (40, (32, 32))),
        ({"size": {"height": 32, "width": 30}, "crop_size": 9}, ((32, 30), None)),
        ({"size": 32, "do_resize": False}, (None, None)),
    ],
)
def test_a_picture_model_s_folder(tmp_path, config, expected):
    more = {"image_mean": [0.5] * 3, "image_std": [0.25] * 3, "resample": 2}
    write(tmp_path, config={"architectures": ["ViTForImageClassification"]}, preprocessor_config={**more, **config})
    step = resolve_processing_files(source(tmp_path, (PIXELS,), LOGITS), PLAIN).pre
    assert (step.resize, step.crop) == expected
    assert (step.mean, step.std, step.resample, step.scale) == ((0.5,) * 3, (0.25,) * 3, "bilinear", 1 / 255)
    raw = {"do_normalize": False, "do_rescale": False}
    write(tmp_path, preprocessor_config={**more, **config, **raw})
    step = resolve_processing_files(source(tmp_path, (PIXELS,), LOGITS), PLAIN).pre
    assert (step.mean, step.std, step.scale) == ((), (), 1.0)


@pytest.mark.parametrize(
    ("files", "why"),
    [
        ({"sentence_bert_config": {"do_lower_case": True}}, "lowers the text"),
        ({"config_sentence_transformers": {"default_prompt_name": "query"}}, "puts the prompt 'query'"),
        ({"tokenizer_config": {"model_max_length": 48}}, "no padding token"),
        ({"tokenizer_config": {"pad_token": "p", "model_max_length": 1e30}, "config": {}}, "how long a text may be"),
        ({"modules": [{"type": "a.Transformer"}, {"type": "a.Pooling"}, {"type": "a.Dense"}]}, "asks for .*'Dense'"),
        (
            {
                "modules": [{"type": "a.Transformer"}, {"type": "a.Pooling", "path": "p"}],
                "p__config": {"pooling_mode_mean_tokens": True, "pooling_mode_max_tokens": True},
            },
            "pooling asks for .*'max', 'mean'",
        ),
        (
            {
                "modules": [{"type": "a.Transformer"}, {"type": "a.Pooling", "path": "p"}],
                "p__config": {"pooling_mode": "weightedmean"},
            },
            "pooling asks for .*weightedmean",
        ),
        ({"config": {"architectures": ["BertForTokenClassification"]}}, "of BertForTokenClassification"),
        ({"config": [1]}, "holds list, expected an object"),
    ],
)
def test_what_no_step_does_is_refused_and_not_left_out(encoder, files, why):
    write(encoder, **files)
    with pytest.raises(AccelError, match=why):
        resolve_processing_files(source(encoder, IDS, HIDDEN), PLAIN)


@pytest.mark.parametrize(
    ("config", "why"),
    [
        ({"do_pad": True}, "asks for padding"),
        ({"size": {"longest_edge": 32}}, "asks for the size"),
        ({"size": 32, "resample": 9}, "asks for the filter 9"),
        ({"size": 32, "image_mean": None}, "asks for the mean None"),
    ],
)
def test_picture_processors_that_no_step_replaces(tmp_path, config, why):
    more = {"image_mean": [0.5] * 3, "image_std": [0.25] * 3}
    write(tmp_path, config={"architectures": ["ViTForImageClassification"]}, preprocessor_config={**more, **config})
    with pytest.raises(InputError, match=why):
        resolve_processing_files(source(tmp_path, (PIXELS,), LOGITS), PLAIN)


def test_a_newer_folder_names_one_pooling_mode(encoder):
    modules = [{"type": "a.Transformer"}, {"type": "a.Pooling", "path": "p"}, {"type": "a.Normalize"}]
    write(encoder, modules=modules, p__config={"pooling_mode": "cls"})
    assert resolve_processing_files(source(encoder, IDS, HIDDEN), PLAIN).post == Pool("cls", normalise=True)


def test_a_file_without_a_folder_needs_one_or_steps_of_the_user_s(encoder, tmp_path):
    onnx = source(None, IDS, HIDDEN)
    with pytest.raises(UsageError, match="nothing says how text or pictures become the inputs of mine"):
        resolve_processing_files(onnx, PLAIN)
    found = resolve_processing_files(onnx, EnsembleRequest(folder=str(encoder)))
    assert (found.pre.max_length, found.post) == (48, Pool())
    assert resolve_processing_files(onnx, EnsembleRequest(folder=str(encoder), post=None)).post is None
    with pytest.raises(UsageError, match="nothing says what the outputs of mine mean"):
        resolve_processing_files(onnx, EnsembleRequest(pre=None))
    with pytest.raises(UsageError, match="neither a step before the model nor one after it"):
        resolve_processing_files(onnx, EnsembleRequest(None, None))


def test_steps_of_the_user_s_replace_the_source_s(encoder, tmp_path):
    (tmp_path / "own.py").write_text("def f(inputs):\n    return inputs\n")
    tensor = {"name": "x", "dtype": "str", "dims": ["batch", 1]}
    wanted = asked({"pre": {"function": f"{tmp_path}/own.py:f", "inputs": [tensor]}})
    found = resolve_processing_files(source(encoder, IDS, HIDDEN), wanted)
    assert isinstance(found.pre, CustomStep)
    assert found.post == Pool()


def test_a_job_file_changes_fields_of_a_step(encoder, tmp_path):
    (tmp_path / "names.txt").write_text("red\ngreen\nblue\n")
    write(encoder, config={"architectures": ["BertForSequenceClassification"]})
    wanted = asked(
        {"pre": {"max_length": 16, "padding": "call"}, "post": {"top_k": 2, "labels": f"{tmp_path}/names.txt"}}
    )
    found = resolve_processing_files(source(encoder, IDS, LOGITS), wanted)
    assert (found.pre.max_length, found.pre.padding) == (16, "call")
    assert found.post == Labels(2, ("red", "green", "blue"))


@pytest.mark.parametrize(
    ("wanted", "why"),
    [
        ({"pre": {"max_lenght": 3}}, "kind tokenizer has no 'max_lenght' .did you mean max_length"),
        ({"pre": {"max_length": "long"}}, "expected int, found 'long'"),
        ({"pre": {"max_length": 0}}, "max_length is 0, expected 1 or more"),
        ({"pre": {"padding": "some"}}, "expected one of .*'call'"),
        ({"post": {"output": "last_hiden_state"}}, "no output 'last_hiden_state' .did you mean last_hidden_state"),
        ({"post": {"output": "logits"}}, "output 'logits' of mine has dims .*, a step of kind pool takes 3"),
        ({"post": {"labels": "x"}}, "kind pool has no 'labels'"),
    ],
)
def test_a_change_that_fits_no_field_is_refused(encoder, wanted, why):
    with pytest.raises(UsageError, match=why):
        resolve_processing_files(source(encoder, IDS, HIDDEN, LOGITS), asked(wanted))


def test_inputs_that_are_neither_text_nor_a_picture(encoder):
    write(encoder, preprocessor_config={})
    for inputs, why in (
        ((*IDS, TensorSpec("position_ids", "int64", ("batch", "seq"))), "does not give the input 'position_ids'"),
        ((TensorSpec("x", "float32", ("batch", 8)),), "neither from text nor from a picture"),
    ):
        with pytest.raises(UsageError, match=why):
            resolve_processing_files(source(encoder, inputs, HIDDEN), PLAIN)
