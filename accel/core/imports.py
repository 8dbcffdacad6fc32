"""Which modules a module runs on: what it imports from accel, the zoo or its own package, at any depth.

From this follow the files that a server's Python backend is given, and the code that a cached result depends on.
Nothing is imported for it: the answer is read from compiled code.
"""

import dis
import functools
import hashlib
import importlib.util
import modulefinder
import types
from collections.abc import Iterator
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from typing import Any

OWN = ("accel", "model_zoo")
IMPORT = dis.opmap["IMPORT_NAME"]


def modules_of(*modules: str) -> dict[str, Path]:
    """Return name → file of ``modules`` and of all that they import from accel, the zoo or their own packages."""
    tops = {*OWN, *(module.split(".")[0] for module in modules)}
    found: dict[str, Path] = {}
    waiting = list(modules)
    while waiting:
        name = waiting.pop()
        if name in found or name.split(".")[0] not in tops or (path := _source_of(name)) is None:
            continue
        found[name] = path
        if "." in name:
            waiting.append(name.rpartition(".")[0])
        if name != "accel":  # names the whole public API
            waiting += _imports(name, path)
    return dict(sorted(found.items()))


def code_hash(module: str) -> str:
    """Hash the source of a module and of all that it imports (``modules_of``)."""
    digest = hashlib.sha256()
    for name, path in modules_of(module).items():
        digest.update(name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


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


@functools.cache
def _imports(name: str, path: Path) -> tuple[str, ...]:
    return tuple(_scan(name, path))


def _scan(name: str, path: Path) -> Iterator[str]:
    """Yield the modules that a file may import; ``from a import b`` gives both ``a`` and ``a.b``.

    Read from the compiled code, which Python keeps: syntax trees made in two threads at once upset Python up to 3.11.7
    (SystemError). Source: https://github.com/python/cpython/issues/106905.
    """
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    finder = modulefinder.ModuleFinder()
    waiting: list[Any] = [SourceFileLoader(name, str(path)).get_code(name)]
    while waiting:
        code = waiting.pop()
        waiting += [c for c in code.co_consts if isinstance(c, types.CodeType)]
        if IMPORT not in code.co_code[::2]:
            continue  # scanning every instruction would take most of the time
        for kind, found in finder.scan_opcodes(code):
            if kind == "store":
                continue
            level = found[0] if kind == "relative_import" else 0
            names, base = found[-2:]
            base = importlib.util.resolve_name("." * level + base, package) if level else base
            yield base
            yield from (f"{base}.{n}" for n in names or ())
