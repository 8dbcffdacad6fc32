"""What stands before and after a model: text or a picture into its inputs, its outputs into an answer.

These are declarations only. The zoo holds them, a Hugging Face folder's files say the same (``exporters.processing``),
or the user writes steps of their own (``ensembles``); ``triton.ensemble`` serves them, and ``triton.steps`` holds the
code that runs.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from accel.core.errors import InputError
from accel.core.values import TensorSpec, sha256_file

TOKENS = ("input_ids", "attention_mask", "token_type_ids")
"""What a tokenizer gives."""
Resample = Literal["nearest", "lanczos", "bilinear", "bicubic", "box", "hamming"]
"""Pillow's filters, in the order of their numbers. Source: PIL.Image.Resampling."""


@dataclass(frozen=True, slots=True)
class File:
    """A file that a step carries: its absolute path and its sha256 (hex)."""

    path: str
    sha256: str


@dataclass(frozen=True, slots=True)
class Tokenize:
    """Text → token ids, mask and type ids, with a ``tokenizer.json``.

    Attributes:
        max_length: longest sequence in tokens, special ones included; longer text is cut.
        file: the ``tokenizer.json``; None in the zoo, which names a folder instead.
        padding: up to the longest text of a ``request``, of all requests of one ``call`` of the backend (then the model
            can merge them), or always to ``max_length``.
        pad_token: token that fills up; its mask is 0.
        padding_side / truncation_side: where tokens are added and cut.
    """

    max_length: int
    file: File | None = None
    padding: Literal["request", "call", "max_length"] = "request"
    pad_token: str = "[PAD]"
    padding_side: Literal["right", "left"] = "right"
    truncation_side: Literal["right", "left"] = "right"
    kind: Literal["tokenizer"] = "tokenizer"


@dataclass(frozen=True, slots=True)
class Picture:
    """JPEG or PNG bytes → normalised planes, float (batch, channels, height, width).

    Attributes:
        resize: length that the shorter side gets, both sides as (height, width), or None for no resizing.
        crop: (height, width) cut out of the middle, or None.
        resample: the filter.
        scale: factor on the 0…255 values, before mean and deviation.
        mean / std: per channel, on the scaled values.
        max_pixels: larger pictures are refused before they are decoded.
    """

    resize: int | tuple[int, int] | None
    crop: tuple[int, int] | None
    mean: tuple[float, ...]
    std: tuple[float, ...]
    resample: Resample = "bicubic"
    scale: float = 1 / 255
    max_pixels: int = 50_000_000
    kind: Literal["image"] = "image"


@dataclass(frozen=True, slots=True)
class Pool:
    """Token vectors → one vector a text, float32 (batch, width).

    Attributes:
        mode: mean or largest value over unmasked positions, or the vector of the first (``cls``) or last one.
        normalise: whether the vector is brought to length 1.
        output: the model's output that holds the token vectors.
    """

    mode: Literal["mean", "max", "cls", "lasttoken"] = "mean"
    normalise: bool = False
    output: str = "last_hidden_state"
    kind: Literal["pool"] = "pool"


@dataclass(frozen=True, slots=True)
class Labels:
    """Scores per class → the best labels with their probability.

    Attributes:
        top_k: how many labels an answer has; all of them where the model has fewer classes.
        names: label of each class; empty: ``LABEL_0`` and so on.
        function: what turns scores into probabilities.
        output: the model's output that holds the scores, (batch, classes).
    """

    top_k: int = 5
    names: tuple[str, ...] = ()
    function: Literal["softmax", "sigmoid", "none"] = "softmax"
    output: str = "logits"
    kind: Literal["labels"] = "labels"


@dataclass(frozen=True, slots=True)
class CustomStep:
    """A step of the user's: a function from arrays by name to arrays by name, called once for each request.

    Attributes:
        file / function: where it is defined.
        inputs: before the model: what clients send. After it: names of tensors that the model or the step before it
            gives, or that clients send; empty means every output of the model.
        outputs: before the model: what it gives beside the model's inputs. After it: what clients get.
        files: further files that lie beside ``file`` when it runs.
        packages: requirements of the Python backend's interpreter (``scipy==1.17.1``).
    """

    file: File
    function: str
    inputs: tuple[TensorSpec | str, ...] = ()
    outputs: tuple[TensorSpec, ...] = ()
    files: tuple[File, ...] = ()
    packages: tuple[str, ...] = ()
    kind: Literal["own"] = "own"


Before = Tokenize | Picture | CustomStep
After = Pool | Labels | CustomStep


@dataclass(frozen=True, slots=True)
class Pipeline:
    """The steps around a model; None where clients give or get its own tensors."""

    pre: Before | None
    post: After | None


def carried(path: Path, what: str) -> File:
    """Describe a file that a step carries.

    Raises:
        InputError: it is missing or cannot be read.
    """
    path = path.expanduser().resolve()
    try:
        return File(str(path), sha256_file(path))
    except OSError as error:
        raise InputError(f"{what}: cannot read {path}: {error.strerror}") from error
