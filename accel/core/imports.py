"""Which modules a module runs on: what it imports from accel, the zoo or its own package, at any depth.

From this follow the files that a server's Python backend is given, and the code that a cached result depends on: of a
user's file what it imports that is not installed as a package, too.
Nothing is imported for it: the answer is read from compiled code.
"""

import dis
import functools
import hashlib
import importlib.util
import modulefinder
import sysconfig
import types
from collections.abc import Callable, Iterable, Iterator
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from typing import Any

OWN = ("accel", "model_zoo")
IMPORT = dis.opmap["IMPORT_NAME"]


def modules_of(*modules: str) -> dict[str, Path]:
    """Return name → file of ``modules`` and of all that they import from accel, the zoo or their own packages."""
    tops = {*OWN, *(module.split(".")[0] for module in modules)}
    return _reached(
        modules,
        lambda name: _source_of(name) if name.split(".")[0] in tops else None,
        lambda name, path: _imports(name, path) if name != "accel" else (),  # names the whole public API
    )


def user_files(file: Path) -> dict[str, Path]:
    """Return name → file of a user's file and of all that it imports, at any depth, which nobody installed.

    These are its neighbours, and packages that are found elsewhere than among those of Python and of pip.

    Raises:
        SyntaxError: the file is no Python.
    """

    def source_of(name: str) -> Path | None:
        if name == file.stem:
            return file
        path = _source_of(name, file.parent) if name.split(".")[0] != "accel" else None
        return None if path is None or _is_installed(path) else path

    def imports_of(name: str, path: Path) -> list[str]:
        try:
            return [*_scan(name, path)]
        except (SyntaxError, ImportError):
            if path == file:
                raise
            return []  # who imports it may do without

    return _reached([file.stem], source_of, imports_of)


def _reached(
    names: Iterable[str],
    source_of: Callable[[str], Path | None],
    imports_of: Callable[[str, Path], Iterable[str]],
) -> dict[str, Path]:
    """Return name → file of ``names``, of the packages they lie in, and of all that these import, at any depth.

    Args:
        source_of: gives a module's file, or None where it does not belong to the answer.
        imports_of: gives what a module imports.
    """
    found: dict[str, Path] = {}
    waiting = list(names)
    while waiting:
        name = waiting.pop()
        if name in found or (path := source_of(name)) is None:
            continue
        found[name] = path
        if "." in name:
            waiting.append(name.rpartition(".")[0])
        waiting += imports_of(name, path)
    return dict(sorted(found.items()))


def _is_installed(path: Path) -> bool:
    folders = {sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    marks = {"site-packages", "dist-packages"}
    return any(path.is_relative_to(folder) for folder in folders) or bool(marks & {*path.parts})


def code_hash(module: str) -> str:
    """Hash the source of a module and of all that it imports (``modules_of``)."""
    digest = hashlib.sha256()
    for name, path in modules_of(module).items():
        digest.update(name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


def _source_of(name: str, beside: Path | None = None) -> Path | None:
    spec = _spec(name, beside)
    return Path(spec.origin) if spec is not None and spec.origin and spec.origin.endswith(".py") else None


def _spec(name: str, beside: Path | None = None) -> ModuleSpec | None:
    """Find a module without importing the packages above it, as ``find_spec`` would: that costs a whole framework.

    Args:
        beside: folder in which it is looked for last.
    """
    package, dot, _ = name.rpartition(".")
    try:
        if not dot:
            known = importlib.util.find_spec(name)
            return known or (PathFinder.find_spec(name, [str(beside)]) if beside is not None else None)
        above = _spec(package, beside)
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
            if level and not package:
                continue  # a file that is no part of a package imports nothing so
            base = importlib.util.resolve_name("." * level + base, package) if level else base
            yield base
            yield from (f"{base}.{n}" for n in names or ())
