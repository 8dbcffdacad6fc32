"""Dependencies point one way, and the light parts stay light."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

import accel

PACKAGE = Path(accel.__file__).parent
HEAVY = {
    "torch",
    "onnx",
    "onnxruntime",
    "openvino",
    "nncf",
    "transformers",
    "plotly",
    "tensorflow",
    "scipy",
    "onnxscript",
}


def imports(file: Path, *, top_level: bool) -> set[str]:
    tree = ast.parse(file.read_text())
    nodes = tree.body if top_level else list(ast.walk(tree))
    found = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def test_imports_go_down_only():
    """The contracts stand in pyproject.toml: every file belongs to a room, and no room imports from one above it."""
    done = subprocess.run(
        [Path(sys.executable).with_name("lint-imports")],
        cwd=PACKAGE.parent,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_package_can_be_taken_in_at_a_glance():
    """At most 15 entries, and README's map names every room."""
    entries = {f.name for f in PACKAGE.iterdir() if f.name != "__pycache__"}
    assert len(entries) <= 15, sorted(entries)
    readme = (PACKAGE.parent / "README.md").read_text()
    assert not [name for name in entries if (PACKAGE / name).is_dir() and f"\n      {name}/" not in readme]


def test_a_class_name_means_one_thing():
    """But for what Triton or accel's own backend looks for by its name in a file that is shipped."""
    found: dict[str, list[str]] = {}
    for file in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.ClassDef) and file.parent.name not in ("backend_py", "steps"):
                found.setdefault(node.name, []).append(f"{file.relative_to(PACKAGE)}:{node.lineno}")
    assert not {name: places for name, places in found.items() if len(places) > 1}


def test_a_run_is_read_by_its_one_reader():
    """``core.document`` reads run.json; nobody else parses it."""
    root = PACKAGE.parent
    files = [*PACKAGE.rglob("*.py"), *(root / "benchmarks").rglob("*.py"), *(root / "model_zoo").rglob("*.py")]
    own = re.compile(r"json\.loads?\(.*(run\.json|document\.FILENAME)|run\.json.*\.read_text")
    assert [str(f) for f in files if own.search(f.read_text()) and f != PACKAGE / "core" / "document.py"] == []


@pytest.mark.parametrize("file", sorted(PACKAGE.rglob("*.py")), ids=lambda f: f.relative_to(PACKAGE).as_posix())
def test_nothing_heavy_at_module_level(file):
    heavy = {m.partition(".")[0] for m in imports(file, top_level=True)} & HEAVY
    place = file.relative_to(PACKAGE)
    # modules that only a worker imports, within functions
    lazy = place.parts[0] in {"exporters", "graph"} or place.as_posix() in {
        "builders/torch_device.py",
        "builders/torch_program.py",
    }
    if heavy and not lazy:
        pytest.fail(f"{file.relative_to(PACKAGE)} imports {heavy} at its top")


def loaded_after(code: str) -> set[str]:
    done = subprocess.run(
        [sys.executable, "-c", f"import sys\n{code}\nprint(*sys.modules)"], capture_output=True, text=True, check=True
    )
    return set(done.stdout.split())


def test_help_imports_nothing_heavy():
    assert not loaded_after("import accel.cli") & (HEAVY | {"numpy", "pydantic", "jinja2", "yaml", "google.protobuf"})


def test_the_parent_imports_no_framework():
    code = "import accel.pipeline, accel.run.job, accel.run.doctor as doctor\ndoctor.targets_here(); doctor.zoo()"
    assert not loaded_after(code) & (HEAVY - {"scipy"})


def test_writing_a_repository_imports_no_framework():
    """What a Python-backend model ships is found without importing it: a framework each time would cost seconds."""
    code = (
        "from accel.core.imports import modules_of\n"
        "assert 'accel.exporters.positional' in modules_of('accel.builders.to_torch')"
    )
    assert not loaded_after(code) & (HEAVY - {"scipy"})


def test_the_workers_side_needs_only_numpy():
    """In a foreign environment there is nothing but NumPy and one runtime."""
    loaded = loaded_after("import accel.run.tasks, accel.builders.targets\naccel.builders.targets.discover()")
    foreign = {m.partition(".")[0] for m in loaded} & (
        HEAVY | {"pydantic", "rich", "typer", "yaml", "jinja2", "google", "psutil"}
    )
    assert not foreign
