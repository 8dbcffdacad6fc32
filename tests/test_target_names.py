"""Nothing outside ``builders`` knows the name of a target, a runtime or a Triton backend: builders declare."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import accel
from accel.builders import targets
from accel.core.values import PYTHON_BACKEND

PACKAGE = Path(accel.__file__).parent
ZOO = PACKAGE.parent / "model_zoo"
BUILDERS = tuple({id(b): b for b in targets.discover().values()}.values())
FAMILIES = {targets.family(name) for name in targets.discover()}
NAMES = {*targets.discover(), *FAMILIES, *(b.name for builder in BUILDERS for b in builder.backends), PYTHON_BACKEND}
PREFIXES = tuple(f"{family}{mark}" for family in FAMILIES for mark in "-_")
EXCEPTED = {
    "builders": "where targets are",
    "exporters": "an exporter names its own framework",
    "triton/lint": "rules of Triton's own backends and formats",
    "triton/releases.py": "what the images carry",
}
ALLOWED = {
    "api/frameworks.py": {"torch", "tensorflow"},  # a module or tensor in memory is its framework's own
    "api/sources.py": {"torch"},
    "core/environments.py": {"python"},  # the interpreter's file
    "core/processes.py": {"tensorflow"},  # a variable of Keras
    "core/values.py": {"python"},  # the constant that others compare with
    "graph/narrow/__init__.py": {"ort", "onnxruntime"},  # the evaluator of ONNX files
}
FILES = [
    file
    for file in sorted(PACKAGE.rglob("*.py"))
    if not file.relative_to(PACKAGE).as_posix().startswith(tuple(EXCEPTED))
]


def is_name(text: str) -> bool:
    return text in NAMES or text.startswith(PREFIXES)


def no_decision(tree: ast.AST) -> Iterator[ast.AST]:
    """Yield docstrings, the words of a Literal, and the framework that a zoo entry says it is of."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            yield node.value
        elif isinstance(node, ast.Subscript) and getattr(node.value, "id", "") == "Literal":
            yield from ast.walk(node.slice)
        elif isinstance(node, ast.keyword) and node.arg == "framework":
            yield node.value


def names_in(tree: ast.AST) -> set[str]:
    """Return the names among all strings of a file, in whatever expression they stand."""
    passed = set(no_decision(tree))
    texts = (n.value for n in ast.walk(tree) if isinstance(n, ast.Constant) and n not in passed)
    return {text for text in texts if isinstance(text, str) and is_name(text)}


@pytest.mark.parametrize("file", FILES, ids=lambda f: f.relative_to(PACKAGE).as_posix())
def test_no_file_has_a_targets_name(file):
    found = names_in(ast.parse(file.read_text())) - ALLOWED.get(file.relative_to(PACKAGE).as_posix(), set())
    assert not found, f"declare it in the builder: {sorted(found)}"


@pytest.mark.parametrize("file", sorted(ZOO.rglob("*.py")), ids=lambda f: f.name)
def test_no_zoo_entry_has_a_targets_name(file):
    found = names_in(ast.parse(file.read_text())) - {"python"}  # a language that magika knows
    assert not found, f"an entry says what it needs, not which target has it: {sorted(found)}"


def test_no_template_or_script_has_a_targets_name():
    files = [f for kind in ("j2", "js", "css", "html") for f in PACKAGE.rglob(f"*.{kind}")]
    assert files
    for file in files:
        quoted = re.findall(r"""["']([\w-]+)["']""", file.read_text())
        assert not [text for text in quoted if is_name(text)], file


def test_what_is_allowed_is_needed():
    for name, texts in ALLOWED.items():
        assert names_in(ast.parse((PACKAGE / name).read_text())) == texts


@pytest.mark.parametrize(
    "text",
    [
        'x == "ort"',
        'x.backend != "openvino"',
        'name.startswith("trt")',
        'name.startswith(("ort-trt", "x"))',
        'x in ("torch", "tf")',
        'A = {"tensorrt": 1}',
        'NAMES = ("a", "aoti")',
        'table["tensorflow"]',
        'match x:\n    case "null":\n        pass',
        'NAMES = frozenset({"pytorch"})',
        'f(x, "openvino")',
        're.match("trt", x)',
        'fnmatch(x, "trt-*")',
        'for n in ("ort", "trt"): pass',
        'def f(runtime="ort"): pass',
        'f(static=("openvino-fp32",))',
        'parameters.get("trt_engine_cache_path", "")',
        'x.backend == "python"',
        'f"ort-{x}"',
    ],
)
def test_it_would_be_found(text):
    assert names_in(ast.parse(text))


def test_one_module_opens_onnx_runtime():
    """Outside ``builders``, ONNX Runtime evaluates ONNX files in one place; its quantiser is a library of its own."""
    found = set()
    for file in FILES + sorted((PACKAGE / "exporters").rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Attribute) and node.attr in ("InferenceSession", "SessionOptions"):
                found.add(file.relative_to(PACKAGE).as_posix())
    assert found == {"graph/evaluate.py"}
