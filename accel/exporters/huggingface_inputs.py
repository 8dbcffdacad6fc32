"""Inputs for transformers models, made up from their configs: text, pictures, sound, series, and parts of models."""

import inspect
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from accel.core.errors import UsageError
from accel.core.values import Family, ShapeRange, TensorSpec
from accel.exporters.axes import Extent, profile_of
from accel.exporters.processing_files import PICTURES, read_optional

Inputs = tuple[tuple[TensorSpec, ...], dict[str, ShapeRange], Family]
"""Inputs, their profile, and what kind of network takes them."""
BATCH, FEW = Extent(1, 1, 16), Extent(1, 1, 8)
WAVE = Extent(1600, 16000, 80000)
"""Samples of sound: 0.1, 1 and 5 seconds at 16 kHz, the rate of most speech models."""


def model_inputs(model: Any, folder: Path, part: str | None) -> Inputs:
    """Make up the inputs of a model or of one of its parts.

    Raises:
        UsageError: nothing is known of what the model takes.
    """
    axes: dict[str, Extent] = {}
    specs = _of_part(model, folder, part, axes)
    used = {d for s in specs for d in s.dims}
    family: Family = "other"
    if [s.name for s in specs] == ["pixel_values"]:
        family = "vision"
    elif part is None and specs[0].name == "input_ids" and not _takes(model, "decoder_input_ids", "pixel_values"):
        family = "transformer"
    return tuple(specs), profile_of(specs, {n: e for n, e in axes.items() if n in used}), family


def _of_part(model: Any, folder: Path, part: str | None, axes: dict[str, Extent]) -> list[TensorSpec]:
    config = model.config
    axes["batch"] = BATCH
    if part == "step":
        return _step(config, folder, axes)
    if part == "text" or part == "image":
        return (_text if part == "text" else _picture)(model, folder, axes, "batch")
    # A head that classifies or marks a whole text makes the decoder's ids from the encoder's.
    whole = type(model).__name__.endswith(("ForSequenceClassification", "ForQuestionAnswering"))
    if _takes(model, "decoder_input_ids") and not whole:
        axes |= {"batch": FEW}
        target = TensorSpec(
            "decoder_input_ids", "int64", ("batch", "target"), (0, config.get_text_config(decoder=True).vocab_size - 1)
        )
        axes["target"] = Extent(1, 16, min(64, _limit(config, "max_target_positions", "max_position_embeddings")))
        given = _main(model, folder, axes)
        if part == "encoder":
            return given
        if part is None:
            return [*given, target]
        masks = [s for s in given if s.name == "attention_mask"]
        width = config.get_text_config().hidden_size
        frames: int | str = "seq" if masks else _limit(config, "max_source_positions", "max_position_embeddings")
        return [TensorSpec("encoder_hidden_states", "float32", ("batch", frames, width)), *masks, target]
    if _takes(model, "input_ids", "pixel_values") and hasattr(config, "text_config"):
        # Scores of every text against every picture: each has a number of its own, and nothing is a batch.
        axes |= {"texts": FEW, "images": FEW}
        return [*_text(model, folder, axes, "texts"), *_picture(model, folder, axes, "images")]
    return _main(model, folder, axes)


def _takes(model: Any, *names: str) -> bool:
    return set(names) <= set(inspect.signature(model.forward).parameters)


def _main(model: Any, folder: Path, axes: dict[str, Extent]) -> list[TensorSpec]:
    """Return the inputs of an encoder, a decoder or a model of one kind of input."""
    config, name = model.config, getattr(model, "main_input_name", "unknown")
    mels = getattr(config, "num_mel_bins", None)
    if type(model).__name__.endswith("ForMultipleChoice"):
        raise UsageError(
            f"{type(model).__name__} takes ids (batch, choices, length), and accel makes up texts (batch, length) only",
            fix="write a `file.py:factory` that returns (module, samples)",
        )
    if name == "input_ids":
        return _text(model, folder, axes, "batch")
    if name == "pixel_values":
        return _picture(model, folder, axes, "batch")
    if name == "input_features" and mels and hasattr(config, "max_source_positions"):
        axes["batch"] = FEW
        return [TensorSpec(name, "float32", ("batch", mels, 2 * config.max_source_positions))]
    if name == "input_values" and mels and hasattr(config, "max_length"):
        return [TensorSpec(name, "float32", ("batch", config.max_length, mels))]
    if name == "input_values":
        axes |= {"batch": FEW, "samples": WAVE}
        channels = getattr(config, "audio_channels", None)
        return [TensorSpec(name, "float32", ("batch", *([channels] if channels else []), "samples"))]
    if name == "past_values" and hasattr(config, "context_length"):
        return [TensorSpec(name, "float32", ("batch", config.context_length, config.num_input_channels))]
    raise UsageError(
        f"{type(model).__name__} takes {name!r} and perhaps more: accel makes up inputs for text, pictures, sound and "
        "series only",
        fix="write a `file.py:factory` that returns (module, samples)",
    )


def _text(model: Any, folder: Path, axes: dict[str, Extent], batch: str) -> list[TensorSpec]:
    config = getattr(model.config, "text_config", None) or model.config
    top = {"input_ids": config.vocab_size - 1, "attention_mask": 1}
    if getattr(config, "type_vocab_size", 0) > 1:
        top["token_type_ids"] = config.type_vocab_size - 1
    longest = min(512, longest_text(folder, config))
    axes["seq"] = Extent(1, min(128, longest), longest)
    eos = getattr(config, "eos_token_id", None)
    ends = {"input_ids": eos} if isinstance(eos, int) and 0 <= eos < config.vocab_size else {}
    return [
        TensorSpec(n, "int64", (batch, "seq"), (0, most), ends.get(n)) for n, most in top.items() if _takes(model, n)
    ]


def _picture(model: Any, folder: Path, axes: dict[str, Extent], batch: str) -> list[TensorSpec]:
    config = getattr(model.config, "vision_config", None) or model.config
    height, width = picture_size(folder, config)
    specs = [TensorSpec("pixel_values", "float32", (batch, getattr(config, "num_channels", 3), height, width))]
    if _takes(model, "noise"):  # which patches a masked autoencoder sees: drawn at random where nobody says
        patches = (height // config.patch_size) * (width // config.patch_size)
        specs.append(TensorSpec("noise", "float32", (batch, patches)))
    return specs


def _step(config: Any, folder: Path, axes: dict[str, Extent]) -> list[TensorSpec]:
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    longest = min(512, longest_text(folder, config)) - 1
    axes |= {"batch": FEW, "past": Extent(1, min(64, longest), longest)}
    past = [f"past_{layer}_{what}" for layer in range(config.num_hidden_layers) for what in ("key", "value")]
    return [
        TensorSpec("input_ids", "int64", ("batch", 1), (0, config.vocab_size - 1)),
        TensorSpec("position_ids", "int64", ("batch", 1), (0, longest)),
        *(TensorSpec(name, "float32", ("batch", heads, "past", size)) for name in past),
    ]


def _limit(config: Any, *names: str) -> int:
    return next((int(value) for name in names if (value := getattr(config, name, None))), 512)


def longest_text(folder: Path, config: Any) -> int:
    """Return how many tokens the model takes, as tokenizer and config say."""
    limits = [getattr(config, "max_position_embeddings", None) or 512]
    if limits[0] < 0:  # as transformers says of XLNet and others: any length
        limits[0] = 512
    if limits[0] % 2 == 0 and limits[0] % 32 == 2:
        # RoBERTa's family counts positions from the padding id on: 514 positions carry 512 tokens.
        limits[0] -= 2
    declared = read_optional(folder / "tokenizer_config.json").get("model_max_length")
    limits += [int(declared)] if isinstance(declared, int | float) and 0 < declared < 1 << 20 else []
    return max(1, min(limits))


def picture_size(folder: Path, config: Any) -> tuple[int, int]:
    """Return height and width from the config, else from the preprocessor, else 224."""
    found = getattr(config, "image_size", None)
    if not found:
        declared = read_optional(folder / PICTURES)
        found = declared.get("crop_size") or declared.get("size")
    if isinstance(found, Mapping):
        edge = found.get("shortest_edge", 224)
        found = (found.get("height", edge), found.get("width", edge))
    if isinstance(found, list | tuple):
        return int(found[0]), int(found[-1])
    return (int(found), int(found)) if found else (224, 224)
