"""The files of a Python-backend version folder: ``model.py``, what it reads, and the part of accel it runs on.

The image then needs only the artifact's runtime. Which modules are shipped follows from the imports of the builder's
own module, at any depth, so that a builder of a plug-in is served the same way.
"""

from __future__ import annotations

import importlib.util
import json
import modulefinder
import shutil
import sys
import types
from collections.abc import Iterator
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from typing import TYPE_CHECKING

from accel.core.errors import InputError
from accel.core.values import SCHEMA, Artifact, TensorSpec, to_json

if TYPE_CHECKING:
    from accel.builders import Builder

ALWAYS = ("accel.core.values", "accel.core.errors", "accel.core.hardware", "accel.builders")
OWN = ("accel", "model_zoo")
DATA_SUFFIXES = (".txt", ".json")
"""Files beside a shipped module that go along: a zoo entry reads its vocabulary or sentences from there."""


def write_model(
    folder: Path,
    artifact: Artifact,
    *,
    builder: Builder,
    inputs: tuple[TensorSpec, ...],
    outputs: tuple[TensorSpec, ...],
    batched: bool,
    numpy_below_2: bool,
) -> None:
    """Write ``model.py``, ``artifact.json`` and the accel modules it imports into a version folder.

    Args:
        inputs / outputs: the client contract, batch axis included.
        batched: whether the server merges requests along the leading axis.
        numpy_below_2: whether the release's Python backend cannot work with NumPy 2; then the model refuses to load.

    Raises:
        InputError: the builder's module does not offer it as ``BUILDER``.
    """
    module = type(builder).__module__
    if getattr(sys.modules.get(module), "BUILDER", None) is None:
        raise InputError(
            f"the builder of {artifact.variant.target.name} is no module's BUILDER, so the server could not find it",
            fix=f"set BUILDER in {module}",
        )
    folder.mkdir(parents=True, exist_ok=True)
    spec = {
        "schema": SCHEMA,
        "builder": module,
        "environment": builder.environment(artifact.variant.target),
        "artifact": to_json(artifact),
        "inputs": to_json(inputs),
        "outputs": to_json(outputs),
        "batched": batched,
        "numpy_below_2": numpy_below_2,
    }
    (folder / "artifact.json").write_text(json.dumps(spec, indent=2) + "\n", encoding="utf-8")
    shutil.copyfile(Path(__file__).with_name("backend_py") / "model.py", folder / "model.py")
    for name, path in modules_of(module).items():
        parts = name.split(".")
        target = folder.joinpath(*parts, "__init__.py") if path.name == "__init__.py" else folder.joinpath(*parts)
        target = target if target.suffix == ".py" else target.with_suffix(".py")
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, target)
        if path.name == "__init__.py" and parts[0] != "accel":
            for data in sorted(p for p in path.parent.iterdir() if p.suffix in DATA_SUFFIXES):
                shutil.copyfile(data, target.parent / data.name)
    # The package's real front module names the whole public API; serving needs none of it.
    (folder / "accel" / "__init__.py").write_text(
        '"""The part of accel that serves this artifact."""\n', encoding="utf-8"
    )


def modules_of(module: str) -> dict[str, Path]:
    """Return module name → file of everything that ``module`` imports from accel, the zoo or its own package."""
    tops = {*OWN, module.split(".")[0]}
    found: dict[str, Path] = {}
    waiting = [module, *ALWAYS]
    while waiting:
        name = waiting.pop()
        if name in found or name.split(".")[0] not in tops or (path := _source_of(name)) is None:
            continue
        found[name] = path
        if "." in name:
            waiting.append(name.rpartition(".")[0])
        if name != "accel":
            waiting += _imports(name, path)
    return dict(sorted(found.items()))


def _source_of(name: str) -> Path | None:
    spec = _spec(name)
    return Path(spec.origin) if spec is not None and spec.origin and spec.origin.endswith(".py") else None


def _spec(name: str) -> ModuleSpec | None:
    """Find a module without importing the packages above it, as ``find_spec`` would: that costs a whole framework."""
    package, dot, _ = name.rpartition(".")
    try:
        if not dot:
            return importlib.util.find_spec(name)
        above = _spec(package)
        folders = above.submodule_search_locations if above is not None else None
        return PathFinder.find_spec(name, folders) if folders is not None else None
    except (ImportError, ValueError):
        return None


def _imports(name: str, path: Path) -> Iterator[str]:
    """Yield the modules that a file may import; ``from a import b`` gives both ``a`` and ``a.b``.

    Read from the compiled code: syntax trees made in two threads at once upset Python up to 3.11.7 (SystemError).
    Source: https://github.com/python/cpython/issues/106905.
    """
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    finder = modulefinder.ModuleFinder()
    waiting = [compile(path.read_text(encoding="utf-8"), str(path), "exec", dont_inherit=True)]
    while waiting:
        code = waiting.pop()
        waiting += [c for c in code.co_consts if isinstance(c, types.CodeType)]
        for kind, found in finder.scan_opcodes(code):
            if kind == "store":
                continue
            level = found[0] if kind == "relative_import" else 0
            names, base = found[-2:]
            base = importlib.util.resolve_name("." * level + base, package) if level else base
            yield base
            yield from (f"{base}.{n}" for n in names or ())
