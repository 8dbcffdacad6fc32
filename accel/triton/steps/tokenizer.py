"""Text → token ids, attention mask and type ids, padded to one length for each request."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

Arrays = Mapping[str, np.ndarray]


class Step:
    """Encodes text with the ``tokenizer.json`` of its folder.

    Args:
        options: ``max_length``, ``min_length`` (a request is padded to at least that), ``together`` (all requests of a
            call are padded to one length), ``pad_token``, ``padding_side``, ``truncation_side``, and ``outputs``:
            tensor name → dtype, of ``input_ids``, ``attention_mask`` and ``token_type_ids``.
        folder: where the file lies.

    Raises:
        ValueError: the tokenizer does not know the padding token.
    """

    def __init__(self, options: Mapping[str, Any], folder: Path) -> None:
        from tokenizers import Tokenizer

        self.options = options
        self.tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self.tokenizer.no_padding()
        self.tokenizer.enable_truncation(options["max_length"], direction=options["truncation_side"])
        pad = self.tokenizer.token_to_id(options["pad_token"])
        if pad is None:
            raise ValueError(f"tokenizer.json has no token {options['pad_token']!r}")
        self.fill = {"input_ids": pad, "attention_mask": 0, "token_type_ids": 0}

    def answer(self, inputs: Arrays) -> dict[str, np.ndarray]:
        """Encode ``text``: str (texts, 1) → (texts, tokens) for every output.

        Raises:
            ValueError: no text, an empty one, or bytes that are not UTF-8.
        """
        coded = self.tokenizer.encode_batch(texts(inputs["text"]))
        width, step = max(self.options["min_length"], *(len(c.ids) for c in coded)), self.options.get("multiple", 1)
        width = -(-width // step) * step
        values = {
            "input_ids": [c.ids for c in coded],
            "attention_mask": [c.attention_mask for c in coded],
            "token_type_ids": [c.type_ids for c in coded],
        }
        return {
            name: np.stack([self._widen(np.array(row, dtype), name, width) for row in values[name]])
            for name, dtype in self.options["outputs"].items()
        }

    def align(self, answers: Sequence[Arrays]) -> list[dict[str, np.ndarray]]:
        """Pad the answers of one call to one length where the options say so: then the model can merge them."""
        if not self.options["together"]:
            return [dict(a) for a in answers]
        width = max((next(iter(a.values())).shape[1] for a in answers), default=0)
        return [{name: self._widen(value, name, width) for name, value in a.items()} for a in answers]

    def _widen(self, value: np.ndarray, name: str, width: int) -> np.ndarray:
        """Fill the last axis up to ``width``."""
        missing = width - value.shape[-1]
        side = (missing, 0) if self.options["padding_side"] == "left" else (0, missing)
        return np.pad(value, [(0, 0)] * (value.ndim - 1) + [side], constant_values=self.fill[name])


def texts(tensor: np.ndarray) -> list[str]:
    """Decode a string tensor, one text an element.

    Raises:
        ValueError: it is empty, or a text is empty or not UTF-8; the message names its position.
    """
    found = []
    for position, item in enumerate(tensor.ravel()):
        try:
            text = item.decode("utf-8") if isinstance(item, bytes) else str(item)
        except UnicodeDecodeError as error:
            raise ValueError(f"text {position} of the request is not UTF-8: {error.reason} at {error.start}") from error
        if not text.strip():
            raise ValueError(f"text {position} of the request is empty")
        found.append(text)
    if not found:
        raise ValueError("the request holds no text")
    return found
