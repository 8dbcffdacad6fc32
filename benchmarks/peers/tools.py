"""The tools, how each is installed, and how each converts a model by its own documentation.

In a command ``{model}`` is the folder or file as its owner has it, ``{samples}`` what calibrates (``.npz``),
``{texts}`` the same as lines of JSON, ``{out}`` an empty folder, ``{bin}`` and ``{python}`` those of the tool's
environment.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from accel.core import document

Artifacts = list[tuple[str, str, Path]]
"""What a command left: a label (empty for that of the command), the role of ``child.py``, and the path."""


def onnx_file(out: Path) -> Artifacts:
    """The last ONNX file but for those of a tool's cache."""
    files = [f for f in out.rglob("*.onnx") if "cache" not in f.relative_to(out).parts]
    files.sort(key=lambda f: f.stat().st_mtime)
    return [("", "onnx", files[-1])] if files else []


def ir_file(out: Path) -> Artifacts:
    """The last IR but for those of tokenizers."""
    files = sorted((f for f in out.rglob("*.xml") if "tokenizer" not in f.name), key=lambda f: f.stat().st_mtime)
    return [("", "openvino", files[-1])] if files else []


def navigated(out: Path) -> Artifacts:
    """What Model Navigator's recipe copied."""
    roles = {".onnx": "onnx", ".pt": "torchscript"}
    return [("", roles[f.suffix], f) for f in out.glob("chosen.*")]


def chosen(out: Path) -> Artifacts:
    """What accel chose, and all else that passed."""
    run = out / "run"
    told = document.read(run)
    best = next(d.chosen for d in told.decisions)
    ready = [v.id for v in told.variants if v.status == "ok" and v.id != best]
    return [
        (id + (" (chosen)" if id == best else ""), "accel", run / "repositories" / id)
        for id in (best, *ready)
        if id and not id.startswith(("torch@", "onnx@"))
    ]


@dataclass(frozen=True, slots=True)
class Make:
    """One way to convert a model."""

    label: str
    commands: tuple[tuple[str, ...], ...]
    found: Callable[[Path], Artifacts]


@dataclass(frozen=True, slots=True)
class Tool:
    """A tool.

    Attributes:
        packages: what pip installs; the command that its documentation gives.
        alone: what is installed without its requirements, because some are not to be had here.
        without: what is removed again: the index has it for CUDA alone, and it breaks the rest.
        refuses: why it does not take a model that is not in ``makes``.
    """

    name: str
    source: str
    packages: tuple[str, ...]
    makes: Mapping[str, tuple[Make, ...]] = field(default_factory=dict)
    refuses: str = ""
    alone: tuple[str, ...] = ()
    without: tuple[str, ...] = ()


def _recipe(name: str, *words: str) -> tuple[tuple[str, ...], ...]:
    return (("{python}", f"{{recipes}}/{name}.py", *words),)


def _optimum(*words: str) -> tuple[tuple[str, ...], ...]:
    begin = ("{bin}/optimum-cli", "export", "openvino", "--model", "{model}", "--task", "feature-extraction")
    return ((*begin, "--library", "transformers", *words, "{out}/m"),)


_FOLDERS = "takes models of Hugging Face alone, not an ONNX file"
OLIVE = Tool(
    "olive",
    "https://microsoft.github.io/Olive/how-to/configure-workflows/build-workflow.html",
    ("olive-ai[cpu]", "transformers", "requests"),  # without the last its command cannot be imported
    {
        name: tuple(
            Make(kind, _recipe("by_olive", "{model}", "{samples}", "{out}", kind), onnx_file)
            for kind in ("fp32", "int8-dynamic", "int8-static")
        )
        for name in ("minilm", "pp-ocr-rec")
    },
)
OPTIMUM = Tool(
    "optimum-intel",
    "https://huggingface.co/docs/optimum-intel/openvino/optimization",
    ("optimum-intel[openvino]", "datasets"),
    {
        "minilm": (
            Make("as exported", _optimum(), ir_file),
            Make("int8 weights", _optimum("--weight-format", "int8"), ir_file),
            Make("int8, static", _recipe("by_optimum_intel", "{model}", "{texts}", "{out}"), ir_file),
        )
    },
    _FOLDERS,
    without=("torchvision",),
)
SENTENCES = Tool(
    "sentence-transformers",
    "https://sbert.net/docs/sentence_transformer/usage/efficiency.html",
    ("sentence-transformers[onnx,openvino]", "datasets"),
    {
        "minilm": tuple(
            Make(label, _recipe("by_sentence_transformers", "{model}", "{texts}", "{out}", part), found)
            for label, part, found in (
                ("onnx", "onnx", onnx_file),
                ("onnx, O3", "onnx-o3", onnx_file),
                ("onnx, int8 dynamic", "onnx-int8", onnx_file),
                ("openvino", "openvino", ir_file),
                ("openvino, int8 static", "openvino-int8", ir_file),
            )
        )
    },
    "embeds texts alone",
)
# Its documentation asks for an NVIDIA GPU and NVIDIA's index; numpy and the versions below are its own requirements.
NAVIGATOR = Tool(
    "model-navigator",
    "https://triton-inference-server.github.io/model_navigator/0.14.0/quick_start/",
    (
        *("torch", "transformers", "numpy<2", "onnx~=1.16", "onnxruntime~=1.20", "onnxscript", "polygraphy", "wrapt"),
        *("dacite~=1.8", "fire", "jsonlines", "loguru", "mpmath~=1.3", "onnx_graphsurgeon", "packaging~=24.1"),
        *("psutil", "py-cpuinfo", "pynvml~=11.5", "python-slugify~=8.0", "pyyaml", "tabulate", "tritonclient[grpc]"),
        *("pyee", "rich", "nvidia-modelopt"),
    ),
    {
        name: (Make("its choice", _recipe("by_model_navigator", "{model}", "{samples}", "{out}"), navigated),)
        for name in ("minilm", "pp-ocr-rec")
    },
    alone=("triton-model-navigator==0.14.0",),
)
TOOLS = (OLIVE, OPTIMUM, SENTENCES, NAVIGATOR)
OURS = Tool(
    "accel",
    "README.md",
    (),
    {
        name: (Make("", (("{accel}", "convert", "{model}", *words, "--targets", "cpu", "-o", "{out}/run"),), chosen),)
        for name, words in (("minilm", ("--samples", "{texts}")), ("pp-ocr-rec", ("--samples", "{samples}")))
    },
)
