"""What the user named as SOURCE: which kind of source it is, and a content key for it. Runs in the parent.

    SOURCE := ZOO_NAME["@small"] | HUB_ID ("org/name") | FOLDER (with config.json, or a SavedModel) | FILE.py:FACTORY
              | FILE.pt2 | FILE.onnx | FILE.keras | FILE.h5 | FILE.pb (a frozen graph)
              | FILE.pt, FILE.pth, FILE.jit (TorchScript)

Nothing here imports a framework or runs a model: loading is ``accel.exporters``' work, in a worker process. A pickle is
recognised by its suffix and refused: opening one runs whatever code it holds. A TorchScript archive, which often has
the suffix of one, is recognised by the names of its records.
"""

import re
import zipfile
from collections.abc import Mapping
from pathlib import Path

from accel.core.accuracy.metrics import METRICS
from accel.core.accuracy.parity import NAMES
from accel.core.errors import InputError, UsageError, nearest, raised_as
from accel.core.imports import user_files
from accel.core.model_names import check_model_name
from accel.core.values import GraphChoice, sha256_file, sha256_json, to_json
from accel.exporters.hub import huggingface_folder
from accel.exporters.onnx_file import external_files
from accel.exporters.request import (
    FACTORY,
    LONGEST_NAME,
    SAVED_MODEL,
    TENSORFLOW_FILES,
    Kind,
    Pooling,
    SourceRequest,
    Weights,
)
from accel.exporters.sample_files import SAMPLES, sample_files
from accel.exporters.traffic import FROM_SAMPLES
from accel.exporters.zoo import SMALL, zoo

SCRIPTS = {".jit", ".ts", ".torchscript", ".script"}
PICKLES = {".pt", ".pth", ".bin", ".ckpt", ".pkl", ".pickle", ".joblib"}
KERAS: tuple[Kind, str] = "keras", "Keras model"
FILES: Mapping[str, tuple[Kind, str]] = {
    ".keras": KERAS,
    ".h5": KERAS,
    ".hdf5": KERAS,
    ".onnx": ("onnx", "ONNX file"),
    ".pt2": ("exported", "exported program"),
}
"""Suffix → the kind of source, and what a message calls it."""
GIVEN = ".onnx, .pt2, TorchScript, .keras, .h5, a frozen .pb, file.py:factory or a folder"
HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")


def recognise(
    text: str | Path,
    *,
    task: str | None = None,
    part: str | None = None,
    weights: Weights = "auto",
    revision: str | None = None,
    samples: str | None = None,
    random_samples: bool = False,
    metric: str | None = None,
    labels: str | None = None,
    ranges: Mapping[str, tuple[int, int]] | None = None,
    min_shapes: Mapping[str, tuple[int, ...]] | None = None,
    opt_shapes: Mapping[str, tuple[int, ...]] | None = None,
    max_shapes: Mapping[str, tuple[int, ...]] | None = None,
    multiples: Mapping[str, tuple[int, ...]] | None = None,
    axis_names: Mapping[str, str] | None = None,
    model_name: str | None = None,
    graph: GraphChoice | None = None,
    traffic: str | None = None,
    pool: Pooling | None = None,
    states: Mapping[str, str] | None = None,
    initial: Mapping[str, Path] | None = None,
    io: Mapping[str, str] | None = None,
    mask: str | None = None,
) -> SourceRequest:
    """Decide what SOURCE is, without opening more than a folder listing.

    Raises:
        UsageError: neither a known zoo name (the nearest is suggested) nor anything else, or a bad ``model_name``.
        InputError: a file or folder that is missing, or of a kind that is refused (a pickle).
    """
    if isinstance(text, Path):
        text = str(text)
    if not isinstance(text, str):
        raise UsageError(
            f"a source is named by a path, a zoo name or a hub id, and this is {type(text).__name__}",
            fix="accel.optimize(model, samples=[…]) takes a model in memory",
        )
    kind, reference = _kind(text.strip())
    if model_name is not None:
        check_model_name(model_name, longest=LONGEST_NAME)
    if weights not in ("auto", "pretrained", "random"):
        raise UsageError(f"--weights is {weights!r}: expected auto, pretrained or random")
    if weights == "random" and kind not in ("zoo", "huggingface"):
        raise UsageError(f"--weights random needs an architecture to draw weights for: {text!r} comes with its weights")
    graph = graph or GraphChoice()
    for given, option, what, kinds in (
        (task is not None, "--task", "Hugging Face sources", ("huggingface",)),
        (part is not None, "--part", "Hugging Face sources", ("huggingface",)),
        (axis_names, "--rename-axes", "ONNX files", ("onnx",)),
        (graph.signature is not None, "--signature", "SavedModels", ("savedmodel",)),
        (graph.inputs, "--input-tensors", "frozen graphs (.pb)", ("graphdef",)),
        (graph.outputs, "--output-tensors", "frozen graphs (.pb)", ("graphdef",)),
        (graph.nchw, "--inputs-as-nchw", "TensorFlow sources", (*TENSORFLOW_FILES, "factory", "zoo")),
    ):
        if given and kind not in kinds:
            raise UsageError(f"{option} is for {what}, which {text!r} is not ({kind})", fix=f"leave {option} out")
    return SourceRequest(
        text=text,
        kind=kind,
        reference=reference,
        task=task,
        part=part,
        weights=weights,
        revision=revision,
        samples=_samples(samples),
        metric=_metric(metric, labels, samples),
        labels=labels,
        random_samples=random_samples,
        ranges=dict(ranges or {}),
        min_shapes=dict(min_shapes or {}),
        opt_shapes=dict(opt_shapes or {}),
        max_shapes=dict(max_shapes or {}),
        multiples=dict(multiples or {}),
        axis_names=dict(axis_names or {}),
        model_name=model_name,
        graph=graph,
        traffic=traffic,
        pool=pool,
        states=dict(states or {}),
        initial={name: str(path.resolve()) for name, path in (initial or {}).items()},
        io=dict(io or {}),
        mask=mask,
    )


def _kind(text: str) -> tuple[Kind, str]:
    if not text:
        raise UsageError("no SOURCE given", fix="name a zoo model (`accel zoo` lists them), a folder or a file")
    known = zoo().entries()
    plain = text.removesuffix(SMALL)
    if plain in known:
        if plain != text and known[plain].small is None:
            raise UsageError(f"{plain} has no reduced model", fix=f"give {plain} itself")
        return "zoo", text
    if match := FACTORY.fullmatch(text):
        path = _file(match["file"], "factory file")
        return "factory", f"{path}:{match['function']}"
    path = _path(text)
    suffix = path.suffix.lower()
    if path.is_dir():
        return _folder(path)
    if suffix in FILES:
        kind, what = FILES[suffix]
        return kind, str(_file(text, what))
    if suffix == ".pb":
        path = _file(text, "graph")
        return ("savedmodel", str(path.parent)) if path.name == SAVED_MODEL else ("graphdef", str(path))
    if (suffix in PICKLES or suffix in SCRIPTS) and _is_script(_file(text, "model")):
        return "torchscript", str(_file(text, "model"))
    if suffix in PICKLES:
        raise InputError(
            f"{text} is a pickle by its suffix: opening one runs whatever code it holds, so accel never does",
            fix="give `file.py:factory`, a function that builds the module and loads the weights (torch.load with "
            "weights_only=True), a Hugging Face folder with safetensors, a .pt2 from torch.export.save, or TorchScript "
            "from torch.jit.save",
        )
    if suffix == ".safetensors":
        _file(text, "model")
        raise InputError(f"{text} holds weights without an architecture", fix="give its folder, with config.json")
    if suffix == ".py":
        raise UsageError(f"{text} names no factory", fix=f"{text}:NAME, the function that returns the module")
    if path.exists():
        raise InputError(f"{text} is not a model file accel knows", fix=f"give {GIVEN}")
    if HUB_ID.fullmatch(text):
        return "huggingface", text
    if "/" in text or text.startswith("."):
        raise InputError(f"no file or folder at {text}")
    raise UsageError(
        f"unknown model {text!r}{nearest(text, known)}",
        fix="`accel zoo` lists the names; a hub id is written org/name, a folder or file by its path",
    )


def _is_script(path: Path) -> bool:
    """Say whether a file is an archive with code of TorchScript beside its pickles."""
    try:
        with zipfile.ZipFile(path) as archive:
            names = {name.partition("/")[2] for name in archive.namelist()}
    except (zipfile.BadZipFile, OSError):
        return False
    return "constants.pkl" in names and any(name.startswith("code/") for name in names)


def _path(text: str) -> Path:
    """Return the path that a text names.

    Raises:
        InputError: an unknown user's home (``~nosuch/x``), a NUL, or a name that no file system takes.
    """
    try:
        path = Path(text).expanduser()
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        pass
    except (OSError, RuntimeError, ValueError) as error:
        shown = text if len(text) <= 100 else f"{text[:100]}… ({len(text)} characters)"
        why = getattr(error, "strerror", None) or error
        raise InputError(f"{shown!r} cannot be opened as a file: {why}", fix="check the path") from error
    return path


def _file(text: str, what: str) -> Path:
    path = _path(text)
    if not path.is_file():
        raise InputError(f"no {what} at {path}", fix="check the path; it is taken from the current folder")
    return path.resolve()


def _folder(path: Path) -> tuple[Kind, str]:
    if (path / "config.json").is_file():
        return "huggingface", str(path.resolve())
    if (path / SAVED_MODEL).is_file():
        return "savedmodel", str(path.resolve())
    found = sorted(p.name for p in path.iterdir())[:5]
    raise InputError(
        f"{path} is neither a Hugging Face folder nor a SavedModel: it has no config.json and no {SAVED_MODEL} (found "
        f"{', '.join(found) or 'nothing'})",
        fix="give the folder that save_pretrained or tf.saved_model.save wrote",
    )


def _samples(text: str | None) -> str | None:
    if text is None:
        return None
    if match := FACTORY.fullmatch(text):
        return f"{_file(match['file'], 'sample generator')}:{match['function']}"
    path = _path(text)
    if path.is_dir():
        sample_files(path)
        return str(path.resolve())
    path = _file(text, "sample file")
    if path.suffix.lower() not in SAMPLES:
        raise UsageError(
            f"--samples {text}: expected .npz, .jsonl, a folder of them or file.py:generator",
            fix="docs/samples.md shows each",
        )
    return str(path)


def _metric(text: str | None, labels: str | None, samples: str | None) -> str | None:
    known = ", ".join(METRICS)
    if text is None:
        if labels is not None:
            raise UsageError(
                "--labels is for a task metric, and none is given", fix=f"--metric {known} or file.py:function"
            )
        return None
    if samples is None:
        raise UsageError(
            f"--metric {text} scores labelled samples, and none are given", fix="--samples FILE --labels NAME"
        )
    if text in METRICS:
        if labels is None:
            raise UsageError(
                f"--metric {text} needs the right answers",
                fix="--labels NAME, the key of each sample that holds its own",
            )
        return text
    match = FACTORY.fullmatch(text)
    if match is None:
        raise UsageError(f"--metric {text}: expected {known} or file.py:function{nearest(text, METRICS)}")
    if match["function"] in NAMES:
        raise UsageError(f"--metric {text}: another gate is called {match['function']}", fix="rename the function")
    return f"{_file(match['file'], 'metric file')}:{match['function']}"


def parse_shapes(text: str) -> dict[str, tuple[int, ...]]:
    """Read ``input_ids:1x128,attention_mask:1x128`` as trtexec writes shapes.

    Raises:
        UsageError: anything else, a size below one, or an input named twice.
    """
    shapes: dict[str, tuple[int, ...]] = {}
    for item in (part.strip() for part in text.split(",")):
        name, _, dims = item.rpartition(":")
        if not name or not re.fullmatch(r"\d{1,18}(x\d{1,18})*", dims):
            raise UsageError(f"{item!r} is not a shape", fix="write NAME:1x128, several separated by commas")
        sizes = tuple(int(d) for d in dims.split("x"))
        if min(sizes) < 1:
            raise UsageError(f"shape {item!r} has a size of 0: every axis needs at least 1")
        if name in shapes:
            raise UsageError(f"input {name!r} has two shapes in {text!r}")
        shapes[name] = sizes
    return shapes


def parse_range(text: str) -> tuple[str, tuple[int, int]]:
    """Read ``NAME=LO:HI``, both ends included.

    Raises:
        UsageError: anything else, or LO above HI.
    """
    match = re.fullmatch(r"(?P<name>[^=]+)=(?P<lo>-?\d{1,20}):(?P<hi>-?\d{1,20})", text.strip())
    if match is None:
        raise UsageError(f"{text!r} is not a range", fix="write NAME=LO:HI, for example input_ids=0:30521")
    lo, hi = int(match["lo"]), int(match["hi"])
    if lo > hi:
        raise UsageError(f"range {text!r} is empty: {lo} is above {hi}")
    return match["name"].strip(), (lo, hi)


def parse_axis_name(text: str) -> tuple[str, str]:
    """Read ``INPUT:POSITION=NAME`` and return ``INPUT:POSITION`` and the name.

    Raises:
        UsageError: anything else.
    """
    match = re.fullmatch(r"(?P<place>.+:\d{1,2})=(?P<name>[A-Za-z_][\w.-]*)", text.strip())
    if match is None:
        raise UsageError(f"{text!r} renames no axis", fix="write INPUT:POSITION=NAME, for example images:2=height")
    return match["place"], match["name"]


def parse_pair(text: str) -> tuple[str, str]:
    """Read ``A=B`` and return both.

    Raises:
        UsageError: anything else.
    """
    left, _, right = (part.strip() for part in text.partition("="))
    if not left or not right:
        raise UsageError(
            f"{text!r} names no pair",
            fix="--state OUTPUT=INPUT, for example hn=h0; --initial-state INPUT=FILE.npy; --io INPUT=TYPE",
        )
    return left, right


def content_key(request: SourceRequest) -> str | None:
    """Hash everything that decides what the model computes, without importing a framework.

    That is the zoo entry's code and weights, or the source's own files; the request's shapes and samples are not part
    of it. None where only loading can tell: a factory, or weights that must be downloaded first.

    Raises:
        InputError: a file cannot be read.
    """
    with raised_as(InputError, OSError, f"cannot read {request.text}"):
        files = _content_files(request)
        if files is None:
            return None
        hashes = {label: sha256_file(path) for label, path in files.items()}
    weights = request.weights if request.weights == "random" else "stored"
    # Files stand for themselves wherever they lie; only a name that is not a path belongs to the content.
    name = request.reference if request.kind == "zoo" else ""
    return sha256_json([request.kind, name, [request.task, request.part], weights, hashes, to_json(request.graph)])


def quick_key(request: SourceRequest, content: str | None = None) -> str | None:
    """Hash the request, paths and all, together with ``files_key``, whose arguments and errors these are.

    Two requests with one key describe the same ``ModelSource`` and the same samples.
    """
    files = files_key(request, content)
    return None if files is None else sha256_json([files, to_json(request)])


def files_key(request: SourceRequest, content: str | None = None) -> str | None:
    """Hash the content of every file that a request names, the samples included, wherever they lie.

    None for a factory and for weights that must be downloaded: a worker has to load those.

    Args:
        content: the source's own key, where a worker has loaded it.

    Raises:
        InputError: a file cannot be read.
    """
    content = content or content_key(request)
    if content is None:
        return None
    samples = None
    if request.traffic not in (None, FROM_SAMPLES):
        samples = [sha256_file(Path(str(request.traffic)))]
    if request.samples is not None:
        match = FACTORY.fullmatch(request.samples)
        path = Path(match["file"] if match else request.samples)
        files = factory_files(match["file"]) if match else sample_files(path) if path.is_dir() else [path]
        samples = [*(samples or ()), *(sha256_file(file) for file in files)]
        samples += metric_files(request.metric)
    with raised_as(InputError, OSError, "the initial state cannot be read", fix="--initial-state INPUT=FILE.npy"):
        begins = [sha256_file(Path(file)) for file in request.initial.values()]
    return sha256_json([content, samples, begins])


def metric_files(metric: str | None) -> list[str]:
    """Return the hashes of a metric's file and of its neighbours that it imports, where it is one."""
    match = FACTORY.fullmatch(metric or "")
    return [sha256_file(file) for file in factory_files(match["file"])] if match else []


def factory_files(file: str) -> list[Path]:
    """Return a user's file and what it imports; the file alone where that cannot be read: whoever runs it says so."""
    try:
        return list(user_files(Path(file)).values())
    except (OSError, SyntaxError, ValueError):
        return [Path(file)]


def _content_files(request: SourceRequest) -> dict[str, Path] | None:
    if request.kind == "factory":
        return None
    if request.kind == "zoo":
        entry = zoo().entry(request.reference)
        files = dict(entry.code_files())
        folder = None if request.weights == "random" else entry.weights()
        if folder is None and request.weights == "pretrained":
            return None
        if folder is not None and folder.is_file():
            return files | {folder.name: folder}
        return files | (_every(folder) if folder and entry.stored else _listing(folder) if folder else {})
    if request.kind == "huggingface":
        local = huggingface_folder(request.reference, request.revision)
        return _listing(local) if local else None
    path = Path(request.reference)
    if request.kind == "savedmodel":
        return _every(path)
    if request.kind in ("exported", "torchscript", "keras", "graphdef"):
        return {path.name: path}
    return {path.name: path} | {name: path.parent / name for name in external_files(path)}


def _every(folder: Path) -> dict[str, Path]:
    return {p.relative_to(folder).as_posix(): p for p in sorted(folder.rglob("*")) if p.is_file()}


def _listing(folder: Path) -> dict[str, Path]:
    """List the files of a Hugging Face folder that can take part: no pickles, nothing hidden.

    That is its own level and, of sentence-transformers, the modules' folders.
    """
    keep = (p for p in sorted(folder.iterdir()) if p.is_file() and not p.name.startswith("."))
    found = {p.name: p for p in keep if p.suffix in (".json", ".safetensors", ".txt", ".model")}
    if "modules.json" in found:
        inner = (p for name in ("config.json", "model.safetensors") for p in sorted(folder.glob(f"*/{name}")))
        found |= {p.relative_to(folder).as_posix(): p for p in inner}
    return found


def licence_of(request: SourceRequest) -> str | None:
    """Return the licence of a source's weights as the zoo or its model card says it; None where neither does.

    Source: https://huggingface.co/docs/hub/model-cards, "Specifying a license" (``license`` and ``license_name`` in the
    YAML at the head of README.md).
    """
    import yaml  # a worker may be without it

    if request.kind == "zoo":
        return zoo().entry(request.reference).licence
    folder = huggingface_folder(request.reference, request.revision) if request.kind == "huggingface" else None
    if folder is None or not (folder / "README.md").is_file():
        return None
    head = re.match(r"---\n(.*?\n)---\n", (folder / "README.md").read_text(encoding="utf-8", errors="replace"), re.S)
    try:
        said = yaml.safe_load(head[1]) if head else None
    except yaml.YAMLError:
        return None
    if not isinstance(said, dict):
        return None
    licence = said.get("license_name") if said.get("license") == "other" else said.get("license")
    return licence if isinstance(licence, str) else None
