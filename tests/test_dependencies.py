"""Every package that accel imports is declared in pyproject.toml: as a dependency, or in an extra."""

import ast
import re
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

import accel

ROOT = Path(accel.__file__).parents[1]
BROUGHT = {
    "grpc": "tritonclient",
    "cryptography": "model-signing",
    "sigstore": "model-signing",
    "tokenizers": "transformers",
    "huggingface_hub": "transformers",
    "safetensors": "transformers",
    "keras": "tensorflow-cpu",
    "requests": "oras",
    "azure": "adlfs",
    "packageurl": "cyclonedx-python-lib",
    "markupsafe": "jinja2",
    "pydantic_core": "pydantic",
}
"""Module → the declared distribution without which it is never imported, and which always brings it."""
ELSEWHERE = {"modelopt": "an environment of its own", "triton_python_backend_utils": "Triton's Python backend"}
"""Modules that are imported where this project installs nothing."""


def imported() -> dict[str, str]:
    """Return the top-level modules that accel and its zoo import from elsewhere, with one place each."""
    found: dict[str, str] = {}
    for path in sorted([*(ROOT / "accel").rglob("*.py"), *(ROOT / "model_zoo").rglob("*.py")]):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and not node.level:
                names = [node.module or ""]
            for name in names:
                found.setdefault(name.partition(".")[0], f"{path.relative_to(ROOT)}:{node.lineno}")
    return {n: where for n, where in found.items() if n not in sys.stdlib_module_names}


def test_what_is_imported_is_declared():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    lines = [*project["dependencies"], *(line for extra in project["optional-dependencies"].values() for line in extra)]
    declared = {re.split(r"[\[<>=; ]", line)[0].lower().replace("_", "-") for line in lines}
    homes = packages_distributions()
    missing = {}
    for module, where in imported().items():
        names = {name.lower().replace("_", "-") for name in homes.get(module, [module])} | {BROUGHT.get(module, module)}
        if not names & declared and module not in ELSEWHERE:
            missing[module] = f"{where} ({', '.join(sorted(names))})"
    assert missing == {}
