"""Nothing outside ``builders`` decides by the name of a target, a runtime or a Triton backend: builders declare."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import accel
from accel.builders import targets

PACKAGE = Path(accel.__file__).parent
BUILDERS = tuple({id(b): b for b in targets.discover().values()}.values())
FAMILIES = {targets.family(name) for name in targets.discover()}
NAMES = {*targets.discover(), *FAMILIES, *(b.name for builder in BUILDERS for b in builder.backends)}
EXCEPTED = {
    "builders": "where targets are",
    "exporters": "an exporter names its own framework",
    "api/frameworks.py": "a module or tensor in memory is its framework's own",
    "triton/lint": "rules of Triton's own backends and formats",
    "triton/releases.py": "what the images carry",
}
FILES = [
    file
    for file in sorted(PACKAGE.rglob("*.py"))
    if not file.relative_to(PACKAGE).as_posix().startswith(tuple(EXCEPTED))
]


def decided_by(tree: ast.AST) -> Iterator[ast.expr | None]:
    """Yield what a file compares with, looks up, or picks a case by."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare):
            yield from (node.left, *node.comparators)
        elif isinstance(node, ast.Dict):
            yield from (*node.keys, *(v for v in node.values if isinstance(v, ast.Tuple)))
        elif isinstance(node, ast.Subscript) and getattr(node.value, "id", "") != "Literal":
            yield node.slice
        elif isinstance(node, ast.MatchValue):
            yield node.value
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            if node.func.attr in ("startswith", "endswith", "removeprefix", "removesuffix", "partition", "get", "pop"):
                yield from node.args
        elif isinstance(node, ast.Assign | ast.AnnAssign) and isinstance(node.value, ast.Tuple | ast.List | ast.Set):
            yield node.value  # a list of names, to be looked into elsewhere


def names_in(expression: ast.expr | None) -> Iterator[str]:
    if isinstance(expression, ast.Tuple | ast.List | ast.Set):
        for element in expression.elts:
            yield from names_in(element)
    elif isinstance(expression, ast.Starred | ast.Call) and (args := getattr(expression, "args", None) or []):
        for element in args:  # frozenset((…))
            yield from names_in(element)
    elif isinstance(expression, ast.Constant) and isinstance(expression.value, str):
        text = expression.value
        if text in NAMES or text.startswith(tuple(f"{family}-" for family in FAMILIES)):
            yield text


@pytest.mark.parametrize("file", FILES, ids=lambda f: f.relative_to(PACKAGE).as_posix())
def test_no_file_decides_by_a_targets_name(file):
    found = {name for expression in decided_by(ast.parse(file.read_text())) for name in names_in(expression)}
    assert not found, f"declare it in the builder: {sorted(found)}"


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
        'x in frozenset({"pytorch"})',
    ],
)
def test_it_would_be_found(text):
    assert [name for expression in decided_by(ast.parse(text)) for name in names_in(expression)]


def test_one_module_opens_onnx_runtime():
    """Outside ``builders``, ONNX Runtime evaluates ONNX files in one place; its quantiser is a library of its own."""
    found = set()
    for file in FILES + sorted((PACKAGE / "exporters").rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Attribute) and node.attr in ("InferenceSession", "SessionOptions"):
                found.add(file.relative_to(PACKAGE).as_posix())
    assert found == {"graph/evaluate.py"}
