"""Hugging Face folders and hub ids, through transformers; code from a model repository is never run."""

import re
import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from accel.core.errors import AccelError, InputError, UnavailableError, UsageError, first_line, nearest, raised_as
from accel.core.values import ModelSource, TensorSpec
from accel.exporters.axes import resolve
from accel.exporters.from_torch import probe_outputs, settled
from accel.exporters.hub import download, huggingface_folder
from accel.exporters.huggingface_inputs import model_inputs
from accel.exporters.processing_files import PLAIN_ENCODER, sentence_modules
from accel.exporters.request import SourceRequest
from accel.exporters.sources import content_key

if TYPE_CHECKING:
    import torch

MOST_LAYERS = 10_000
"""The deepest models have some hundred."""
RANDOM = "random(seed=0)"
PARTLY = "random(seed=0) in part"
"""Weights of a checkpoint that lacks some of the class's weights: what it computes has no proved meaning."""
TASKS = {
    "feature-extraction": "AutoModel",
    "text-classification": "AutoModelForSequenceClassification",
    "token-classification": "AutoModelForTokenClassification",
    "question-answering": "AutoModelForQuestionAnswering",
    "fill-mask": "AutoModelForMaskedLM",
    "text-generation": "AutoModelForCausalLM",
    "image-classification": "AutoModelForImageClassification",
    "image-feature-extraction": "AutoModel",
}
"""Task → transformers class. Source: https://huggingface.co/docs/transformers/model_doc/auto"""


def describe(request: SourceRequest) -> ModelSource:
    """Describe a folder or a hub id; a hub id that is not on this machine is downloaded, since the user named it.

    Raises:
        UnavailableError: the hub id cannot be had.
        InputError: the folder's files are broken, or its weights are pickles only.
        UsageError: an unknown task, or a model whose inputs accel cannot make up.
    """
    from accel.exporters.huggingface_parts import part, parts_of

    folder = huggingface_folder(request.reference, request.revision)
    folder = folder or download(request.reference, request.revision)
    key = content_key(request)
    if key is None:
        raise InputError(f"{request.text} vanished while it was read")
    task = request.task or _sentence_task(folder, request.pool)
    whole, missing = open_model(folder, task, random=request.weights == "random")
    parts = parts_of(whole)
    inputs, profile, family = model_inputs(whole, folder, request.part)
    encoder = part(whole, request.part)
    model = _pooled(encoder, folder, request.task, request.pool)
    inputs, profile, _ = resolve(inputs, profile, request)
    inputs, profile, notices = settled(model, inputs, profile, request)
    stored = "local" if Path(request.reference).is_dir() else "pretrained"
    # A tokenizer or a picture size is all it takes to turn the zoo's sentences and pictures into this model's inputs.
    real = family == "vision" or (family == "transformer" and (folder / "tokenizer.json").is_file())
    samples = request.samples_or("zoo" if real else "random")
    if model is not encoder or request.pool not in (None, "none"):
        missing = [name for name in missing if not name.startswith("pooler.")]  # nothing of it reaches the embedding
    if model is not encoder and request.pool is None:
        notices.append(f"pooled into sentence_embedding as modules.json says; {PLAIN_ENCODER}")
    if missing:
        notices.append(f"{len(missing)} weights are not in the checkpoint and were drawn at random ({missing[0]}, …)")
    if samples == "random" and not request.random_samples:
        why = "no tokenizer.json in the folder" if family == "transformer" else "accel has no such data"
        notices.append(f"{why}: inputs are random values, accuracy is unproved")
    if parts and request.part is None:
        notices.append(f"this is the whole model; --part takes {' or '.join(parts)}")
    return ModelSource(
        name=request.name,
        kind="huggingface",
        reference=str(folder) if Path(request.reference).is_dir() else request.reference,
        framework="torch",
        weights=RANDOM if request.weights == "random" else PARTLY if missing else stored,
        revision=folder.name if folder.parent.name == "snapshots" else None,
        key=key,
        inputs=inputs,
        outputs=probe_outputs(model, inputs, profile),
        profile=profile,
        task=request.task,
        part=request.part,
        mask="attention_mask" if any(s.name == "attention_mask" for s in inputs) else None,
        family=family,
        samples=samples,
        notice="; ".join(notices) or None,
    )


def load(source: ModelSource) -> "torch.nn.Module":
    """Load the described model again.

    Raises:
        InputError: its files are gone.
    """
    folder = huggingface_folder(source.reference, source.revision)
    if folder is None:
        raise InputError(f"{source.reference} is gone from this machine", fix="run accel convert again")
    from accel.exporters.huggingface_parts import part

    task = source.task or _sentence_task(folder, source.pool)
    model, _ = open_model(folder, task, random=source.weights == RANDOM)
    return _pooled(part(model, source.part), folder, source.task, source.pool)


def _sentence_task(folder: Path, pool: str | None) -> str | None:
    """Return the task that loads what gives text vectors as sentence-transformers does: without its config's head."""
    return "feature-extraction" if pool not in (None, "none") or sentence_modules(folder) else None


def _pooled(model: Any, folder: Path, task: str | None, pool: str | None) -> "torch.nn.Module":
    """Return the model with what ``modules.json`` puts after it, where the user asked for no task of its own."""
    modules = sentence_modules(folder) if task is None and pool != "none" else None
    if modules is None:
        return model
    from accel.exporters.sentence_encoder import wrap

    return wrap(model, folder, modules, pool)


def open_model(folder: Path, task: str | None, *, random: bool) -> tuple[Any, list[str]]:
    """Build the model class the config or ``task`` names, FP32, eval, without caches.

    Returns:
        The model, and the names of weights the checkpoint lacks (seeded random values stand there).

    Raises:
        InputError: broken config or weights; UsageError: an unknown task; UnavailableError: needs remote code.
    """
    import torch
    import transformers

    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    torch.manual_seed(0)
    try:
        with warnings.catch_warnings(action="ignore"):
            config = transformers.AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
            _check_layers(folder, config.to_dict())
            chosen = model_class(config, task)
            missing: list[str] = []
            if random:
                build = chosen.from_config if chosen.__name__.startswith("AutoModel") else chosen
                model = build(config)
            else:
                model, info = chosen.from_pretrained(
                    folder,
                    config=config,
                    dtype=torch.float32,
                    use_safetensors=True,
                    local_files_only=True,
                    output_loading_info=True,
                )
                missing = sorted(info["missing_keys"])
    except AccelError:
        raise
    except Exception as error:
        raise _explained(folder, error) from error
    model.config.return_dict = True
    for inner in model.modules():  # a decoder may have a copy of the config
        if getattr(getattr(inner, "config", None), "use_cache", None):
            inner.config.use_cache = False
    return model.float().eval(), missing


def _check_layers(folder: Path, config: Any) -> None:
    """Refuse a config, or one within it, that asks for so many layers that building them would not end."""
    for name, value in config.items() if isinstance(config, dict) else ():
        if isinstance(value, dict):
            _check_layers(folder, value)
        elif isinstance(value, int) and value > MOST_LAYERS and re.search("(layers?|depth|blocks)$", name):
            raise InputError(f"{folder} says {name} is {value}, expected {MOST_LAYERS} at most", fix="copy it again")


def _explained(folder: Path, error: Exception) -> AccelError:
    if "trust_remote_code" in str(error):
        return UnavailableError(
            f"{folder.name} needs code from its repository, which accel does not run",
            fix="write a `file.py:factory` that builds the model from code you trust",
        )
    if not list(folder.glob("*.safetensors")):
        return InputError(
            f"{folder} has no safetensors weights (a pickle like pytorch_model.bin is never opened)",
            fix="convert it where you trust it (from_pretrained, then save_pretrained), or take --weights random",
        )
    return InputError(
        f"transformers cannot load {folder}: {first_line(error)}", fix="check that config and weights belong together"
    )


def model_class(config: Any, task: str | None) -> Any:
    """Return the transformers class for a task, a class name, or the config's own architecture.

    Raises:
        UsageError: neither a task nor a class that transformers has.
    """
    import transformers

    name = TASKS.get(task, task) if task else next(iter(config.architectures or []), "AutoModel")
    found = getattr(transformers, name, None)
    if found is None or not hasattr(found, "from_pretrained") or ("Model" not in name and "For" not in name):
        if task:
            raise UsageError(
                f"unknown --task {task!r}{nearest(task, TASKS)}", fix=f"one of {', '.join(TASKS)}, or a class name"
            )
        raise UnavailableError(f"this transformers has no class {name!r}", fix="--task names another, or upgrade it")
    return found


def tokenise(folder: Path, texts: Iterable[str], inputs: Iterable[TensorSpec], longest: int) -> list[dict[str, Any]]:
    """Tokenise texts with the folder's tokenizer.json, without padding: int64 (1, tokens) per input name.

    Raises:
        InputError: no or a broken tokenizer.json, or an input that a tokenizer does not give.
    """
    from tokenizers import Tokenizer

    path = folder / "tokenizer.json"
    if not path.is_file():
        raise InputError(f"{folder} has no tokenizer.json", fix="save the tokenizer with save_pretrained beside it")
    with raised_as(InputError, Exception, f"{path} is not a tokenizer"):
        tokenizer = Tokenizer.from_file(str(path))
    tokenizer.no_padding()
    tokenizer.enable_truncation(longest)
    specs = list(inputs)
    items = []
    for coded in tokenizer.encode_batch(list(texts)):
        known = {"input_ids": coded.ids, "attention_mask": coded.attention_mask, "token_type_ids": coded.type_ids}
        if unknown := [s.name for s in specs if s.name not in known]:
            raise InputError(f"text cannot give the input {unknown[0]!r}", fix="give --samples as .npz")
        items.append({s.name: np.asarray([known[s.name]], dtype=s.dtype) for s in specs})
    return items
