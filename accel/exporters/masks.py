"""Which input says where a text ends, by the names that frameworks give it."""

from collections.abc import Iterable, Sequence

from accel.core.values import Family, TensorSpec

NAMES = ("attention_mask", "input_mask")
"""Of transformers; of TensorFlow's BERT and what was made of it."""
IDS = ("input_ids", "input_word_ids")
NO_MASK = "none"
"""Word of ``--mask`` for a model whose mask hides no padding."""


def usual(inputs: Sequence[TensorSpec]) -> str | None:
    """Return the input that has the name of a mask, with or without TensorFlow's ``:0``.

    ``input_mask`` is one of pictures as well (inpainting): of texts it is (batch, length), as the ids are.
    """
    named = {spec.name.removesuffix(":0"): spec for spec in inputs}
    for name in NAMES:
        spec = named.get(name)
        if spec is not None and (name == NAMES[0] or may_be_mask(spec, inputs)):
            return spec.name
    return None


def may_be_mask(spec: TensorSpec, inputs: Sequence[TensorSpec]) -> bool:
    """Say whether an input is called some mask, and is (batch, length) of integers or bools as another input is."""
    alike = [s for s in inputs if s.dims == spec.dims and len(s.dims) == 2]
    return "mask" in spec.name.lower() and "float" not in spec.dtype and len(alike) > 1


def padded(names: Iterable[str], mask: str | None) -> bool:
    """Say whether inputs of these names have a mask.

    Args:
        mask: the one that the user named, ``none``, or None.
    """
    return mask != NO_MASK and any(name == mask or name.removesuffix(":0") in NAMES for name in names)


def family(inputs: Sequence[TensorSpec], mask: str | None) -> Family:
    """Return ``transformer`` for what takes ids, by their name, and a mask."""
    names = {spec.name.removesuffix(":0") for spec in inputs}
    return "transformer" if names.intersection(IDS) and mask is not None else "other"
