"""Families of transformers beyond text encoders and pictures, from tiny configs: inputs and parts."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from accel.core.errors import UsageError
from accel.core.feeds import read_feeds
from accel.exporters import describe, export_onnx, load
from accel.exporters.samples import make_samples
from accel.exporters.sources import recognise

TEXT = {
    "vocab_size": 50,
    "hidden_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 16,
    "max_position_embeddings": 24,
}
PICTURE = {**TEXT, "image_size": 16, "patch_size": 8}
SPEECH = {
    **TEXT,
    "conv_dim": (8, 8),
    "conv_stride": (5, 4),
    "conv_kernel": (10, 4),
    "num_feat_extract_layers": 2,
    "num_conv_pos_embeddings": 4,
    "num_conv_pos_embedding_groups": 2,
}
HALVES = {
    "vocab_size": 50,
    "d_model": 16,
    "encoder_layers": 1,
    "decoder_layers": 1,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 16,
    "decoder_ffn_dim": 16,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "decoder_start_token_id": 1,
}
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "t5": (
        "T5ForConditionalGeneration",
        {"vocab_size": 50, "d_model": 16, "d_kv": 8, "d_ff": 16, "num_layers": 1, "num_heads": 2},
    ),
    "whisper": (
        "WhisperForConditionalGeneration",
        {**HALVES, "num_mel_bins": 4, "max_source_positions": 10, "max_target_positions": 12},
    ),
    "wav2vec2": ("Wav2Vec2ForCTC", SPEECH),
    "clip": ("CLIPModel", {"text_config": TEXT, "vision_config": PICTURE, "projection_dim": 8}),
    "llama": ("LlamaForCausalLM", {**TEXT, "num_key_value_heads": 1}),
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    import torch
    import transformers

    made = {}
    for name, (class_name, values) in FAMILIES.items():
        made[name] = tmp_path_factory.mktemp(name)
        chosen = getattr(transformers, class_name)
        torch.manual_seed(0)
        chosen(chosen.config_class(**values)).save_pretrained(made[name])
    return made


@pytest.mark.parametrize(
    ("name", "part", "inputs", "outputs"),
    [
        (
            "t5",
            None,
            {
                "input_ids": ("batch", "seq"),
                "attention_mask": ("batch", "seq"),
                "decoder_input_ids": ("batch", "target"),
            },
            ["logits", "encoder_last_hidden_state"],
        ),
        (
            "t5",
            "encoder",
            {"input_ids": ("batch", "seq"), "attention_mask": ("batch", "seq")},
            ["encoder_hidden_states"],
        ),
        (
            "t5",
            "decoder",
            {
                "encoder_hidden_states": ("batch", "seq", 16),
                "attention_mask": ("batch", "seq"),
                "decoder_input_ids": ("batch", "target"),
            },
            ["logits"],
        ),
        ("whisper", "encoder", {"input_features": ("batch", 4, 20)}, ["encoder_hidden_states"]),
        (
            "whisper",
            "decoder",
            {"encoder_hidden_states": ("batch", 10, 16), "decoder_input_ids": ("batch", "target")},
            ["logits"],
        ),
        ("wav2vec2", None, {"input_values": ("batch", "samples")}, ["logits"]),
        ("clip", "text", {"input_ids": ("batch", "seq"), "attention_mask": ("batch", "seq")}, ["text_features"]),
        ("clip", "image", {"pixel_values": ("batch", 3, 16, 16)}, ["image_features"]),
        (
            "llama",
            "step",
            {
                "input_ids": ("batch", 1),
                "position_ids": ("batch", 1),
                "past_0_key": ("batch", 1, "past", 8),
                "past_0_value": ("batch", 1, "past", 8),
            },
            ["logits", "present_0_key", "present_0_value"],
        ),
    ],
)
def test_inputs_are_made_up_from_the_config(
    name: str, part: str | None, inputs: dict, outputs: list, folders: dict[str, Path]
) -> None:
    source = describe(recognise(str(folders[name]), part=part))
    assert {s.name: s.dims for s in source.inputs} == inputs
    assert [s.name for s in source.outputs] == outputs
    assert source.part == part
    assert source.accuracy == ("proved" if part == "image" else "unproved")


def test_encoder_and_decoder_together_are_the_whole(folders: dict[str, Path]) -> None:
    """What the parts compute one after the other is what the model computes."""
    whole, encoder, decoder = (
        load(describe(recognise(str(folders["t5"]), part=p))) for p in (None, "encoder", "decoder")
    )
    rng = np.random.default_rng(0)
    text = {"input_ids": rng.integers(0, 50, (2, 7)), "attention_mask": np.ones((2, 7), np.int64)}
    target = rng.integers(0, 50, (2, 5))
    hidden = encoder.run(text)["encoder_hidden_states"]
    found = decoder.run(
        {"encoder_hidden_states": hidden, "attention_mask": text["attention_mask"], "decoder_input_ids": target}
    )
    expected = whole.run({**text, "decoder_input_ids": target})["logits"]
    np.testing.assert_allclose(found["logits"], expected, rtol=1e-4, atol=1e-5)


def test_steps_with_a_cache_are_the_model_without(folders: dict[str, Path]) -> None:
    whole = load(describe(recognise(str(folders["llama"]))))
    step = load(describe(recognise(str(folders["llama"]), part="step")))
    ids = np.random.default_rng(0).integers(0, 50, (2, 4))
    expected = whole.run({"input_ids": ids, "attention_mask": np.ones((2, 4), np.int64)})["logits"]
    past = {n: np.zeros((2, 1, 0, 8), np.float32) for n in ("past_0_key", "past_0_value")}
    for place in range(4):
        found = step.run({"input_ids": ids[:, place : place + 1], "position_ids": np.full((2, 1), place), **past})
        past = {n.replace("present", "past"): v for n, v in found.items() if n != "logits"}
        np.testing.assert_allclose(found["logits"][:, 0], expected[:, place], rtol=1e-4, atol=1e-5)


def test_texts_and_pictures_of_two_towers_are_no_batch(folders: dict[str, Path]) -> None:
    """Scores of every text against every picture: merging requests would mix them."""
    source = describe(recognise(str(folders["clip"])))
    assert {s.name: s.dims[0] for s in source.inputs} == {
        "input_ids": "texts",
        "attention_mask": "texts",
        "pixel_values": "images",
    }
    assert "--part takes text or image" in (source.notice or "")


@pytest.mark.parametrize(("name", "part"), [("t5", "decoder"), ("llama", "step")])
def test_a_part_is_exported_and_proved(name: str, part: str, folders: dict[str, Path], tmp_path: Path) -> None:
    source = describe(recognise(str(folders[name]), part=part))
    assert [s.name for s in export_onnx(source, tmp_path).outputs] == [s.name for s in source.outputs]


def test_a_part_that_there_is_not_names_those_that_there_are(folders: dict[str, Path], tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"no part 'text'(.|\n)*\['encoder', 'decoder'\]"):
        describe(recognise(str(folders["t5"]), part="text"))
    (tmp_path / "m.onnx").write_bytes(b"x")
    with pytest.raises(UsageError, match="--part is for Hugging Face"):
        recognise(str(tmp_path / "m.onnx"), part="encoder")


STAGES = {"embedding_size": 8, "hidden_sizes": [8, 8], "depths": [1, 1], "out_features": ["stage2"]}
BART = {"vocab_size": 50, "d_model": 16, "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 2}
BART |= {"decoder_attention_heads": 2, "encoder_ffn_dim": 16, "decoder_ffn_dim": 16, "max_position_embeddings": 24}


def test_layers_are_lent_for_the_export_and_given_back() -> None:
    """A ResNet inside refuses sdpa, which it has from the start: setting that back raised."""
    import transformers

    from accel.exporters.from_torch import exportable_layers

    layers = {k: v for k, v in BART.items() if k.startswith(("encoder", "decoder"))}
    picture = transformers.DetrConfig(
        backbone_config=transformers.ResNetConfig(**STAGES),
        use_timm_backbone=False,
        backbone=None,
        d_model=16,
        **layers,
    )
    experts = transformers.MixtralConfig(**TEXT, num_key_value_heads=2, num_local_experts=2)
    for made in (transformers.DetrModel(picture), transformers.MixtralModel(experts)):
        configs = [part.config for part in made.modules() if hasattr(part, "set_attn_implementation")]
        before = [(c._attn_implementation, c._experts_implementation) for c in configs]
        with exportable_layers(made):
            assert {c._attn_implementation for c in configs} == {"eager"}
            assert made.config._experts_implementation in ("batched_mm", before[0][1])
        assert [(c._attn_implementation, c._experts_implementation) for c in configs] == before
    with exportable_layers(made):
        assert made.config._experts_implementation == "batched_mm"


def test_texts_end_with_the_end_of_sequence_and_hold_it_nowhere_else(tmp_path: Path) -> None:
    """BART classifies at the last end of sequence: it refuses texts without one, or with different numbers of them."""
    import transformers

    config = transformers.BartConfig(**BART, eos_token_id=2, pad_token_id=0, bos_token_id=1)
    transformers.BartForSequenceClassification(config).save_pretrained(tmp_path)
    request = recognise(str(tmp_path))
    source = describe(request)
    assert [(s.name, s.ends) for s in source.inputs] == [("input_ids", 2), ("attention_mask", None)]
    made = make_samples(source, request, tmp_path / "samples")
    for file in (made.gate, made.shapes):
        for feed in read_feeds(tmp_path / "samples" / file.path).values():
            rows = feed["input_ids"] == 2
            assert (rows.sum(1) == 1).all()
    load(source).run(read_feeds(tmp_path / "samples" / made.shapes.path)["max"])


def test_a_length_of_minus_one_is_any_length(tmp_path: Path) -> None:
    """XLNet's config says -1, of which a text of one token was made."""
    import transformers

    config = transformers.XLNetConfig(vocab_size=50, d_model=16, n_layer=1, n_head=2, d_inner=16)
    transformers.XLNetModel(config).save_pretrained(tmp_path)
    assert describe(recognise(str(tmp_path))).profile["input_ids"].max[1] == 512


def test_a_masked_autoencoder_takes_its_noise(tmp_path: Path) -> None:
    """It draws which patches it sees: with the noise as an input it answers alike."""
    import transformers

    config = transformers.ViTMAEConfig(
        **{k: v for k, v in PICTURE.items() if k not in ("vocab_size", "max_position_embeddings")}
    )
    transformers.ViTMAEModel(config).save_pretrained(tmp_path)
    source = describe(recognise(str(tmp_path)))
    assert [(s.name, s.dims) for s in source.inputs] == [
        ("pixel_values", ("batch", 3, 16, 16)),
        ("noise", ("batch", 4)),
    ]
