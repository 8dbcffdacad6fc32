"""Functions of the user's files, ``file.py:function``: factories, sample generators, metrics."""

import contextlib
import importlib.util
import inspect
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from accel.core.errors import AccelError, InputError
from accel.core.imports import user_files
from accel.core.values import sha256_file


def call(reference: str, what: str, before: Callable[[], None] | None = None) -> Any:
    """Import ``/path/file.py`` and call the function after the colon.

    Args:
        before: called in between, when it is known what the file imports.

    Raises:
        InputError: no such file or function, or its code raised.
    """
    found = function(reference, what)
    with running(reference, what):
        if before is not None:
            before()
        return found()


def function(reference: str, what: str) -> Callable[..., Any]:
    """Import ``/path/file.py`` and return the function after the colon.

    Raises:
        InputError: no such file or function, or its code raised.
    """
    file, _, name = reference.rpartition(":")
    path = Path(file)
    spec = importlib.util.spec_from_file_location(f"accel_user_{path.stem}", path)
    if spec is None or spec.loader is None or not path.is_file():
        raise InputError(f"no {what} file at {path}")
    module = importlib.util.module_from_spec(spec)
    # The file may import its neighbours, and dataclasses look their module up by name.
    sys.modules[spec.name] = module
    if str(path.parent) not in sys.path:
        # At the end: a folder called like a package beside the file must not hide that package.
        sys.path.append(str(path.parent))
    with running(reference, what):
        spec.loader.exec_module(module)
    found = getattr(module, name, None)
    if not callable(found):
        names = sorted(n for n, v in vars(module).items() if inspect.isfunction(v) and v.__module__ == spec.name)
        raise InputError(f"{path.name} has no function {name!r}", fix=f"it defines {names}")
    return found


@contextlib.contextmanager
def running(reference: str, what: str, fix: str | None = None) -> Iterator[None]:
    """Turn what a user's code raises into an error of accel's."""
    try:
        yield
    except AccelError:
        raise
    except (Exception, SystemExit) as error:
        said = f"{what} {Path(reference).name} raised {type(error).__name__}: {error}"
        raise InputError(said, fix=fix) from error


def code_of(reference: str) -> list[str]:
    """Hash the code of ``file.py:function``: the file, what it imports from files of the user, and which function."""
    file, _, name = reference.rpartition(":")
    with running(reference, "file"):
        return [name, *(f"{module} {sha256_file(path)}" for module, path in user_files(Path(file)).items())]
