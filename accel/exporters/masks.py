"""Which input says where a text ends, by the names that frameworks give it."""

from collections.abc import Iterable

from accel.core.values import Family, TensorSpec

NAMES = ("attention_mask", "input_mask")
"""Of transformers, and of TensorFlow's BERT and what was made of it."""
IDS = ("input_ids", "input_word_ids")


def usual(inputs: Iterable[TensorSpec]) -> str | None:
    """Return the input that has the name of a mask, with or without TensorFlow's ``:0``."""
    names = {spec.name.removesuffix(":0"): spec.name for spec in inputs}
    return next((names[name] for name in NAMES if name in names), None)


def family(inputs: Iterable[TensorSpec]) -> Family:
    """Return ``transformer`` for what takes ids and a mask, by the names."""
    names = {spec.name.removesuffix(":0") for spec in inputs}
    return "transformer" if names.intersection(IDS) and names.intersection(NAMES) else "other"
