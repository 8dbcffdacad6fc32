"""Which input says where a text ends, by the names that frameworks give it."""

from collections.abc import Sequence

from accel.core.values import Family, TensorSpec

NAMES = ("attention_mask", "input_mask")
"""Of transformers; of TensorFlow's BERT and what was made of it."""
IDS = ("input_ids", "input_word_ids")


def usual(inputs: Sequence[TensorSpec]) -> str | None:
    """Return the input that has the name of a mask, with or without TensorFlow's ``:0``.

    ``input_mask`` is one of pictures as well (inpainting): of texts it is (batch, length), as the ids are.
    """
    named = {spec.name.removesuffix(":0"): spec for spec in inputs}
    for name in NAMES:
        spec = named.get(name)
        alike = [s for s in inputs if spec is not None and s.dims == spec.dims and len(s.dims) == 2]
        if spec is not None and (name == NAMES[0] or len(alike) > 1):
            return spec.name
    return None


def may_be_mask(spec: TensorSpec, inputs: Sequence[TensorSpec]) -> bool:
    """Say whether an input is called some mask, and is (batch, length) of integers or bools as another input is."""
    alike = [s for s in inputs if s.dims == spec.dims and len(s.dims) == 2]
    return "mask" in spec.name.lower() and "float" not in spec.dtype and len(alike) > 1


def family(inputs: Sequence[TensorSpec]) -> Family:
    """Return ``transformer`` for what takes ids and a mask, by the names."""
    names = {spec.name.removesuffix(":0") for spec in inputs}
    return "transformer" if names.intersection(IDS) and usual(inputs) is not None else "other"
