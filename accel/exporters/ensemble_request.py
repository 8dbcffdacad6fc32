"""What a job asks of ensembles: the flag ``--ensemble``, or ``ensemble:`` of a job file, read and checked."""

import ast
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from accel.core.dtypes import datatype
from accel.core.errors import InputError, UsageError, nearest, raised_as
from accel.core.processing import CustomStep, carried
from accel.core.values import TensorSpec

BATCH = "batch"
"""First axis of every tensor that a step declares."""


@dataclass(frozen=True, slots=True)
class EnsembleRequest:
    """What a job asks for.

    Attributes:
        pre / post: changes to the step that the source declares (``{}``: none), a step of the user's, or None for no
            step at all.
        folder: Hugging Face folder that declares the steps, in place of the source.
    """

    pre: CustomStep | Mapping[str, Any] | None = field(default_factory=dict)
    post: CustomStep | Mapping[str, Any] | None = field(default_factory=dict)
    folder: str | None = None


def asked(value: bool | Mapping[str, Any] | EnsembleRequest | None) -> EnsembleRequest | None:
    """Read ``ensemble:`` of a job file, or the flag; None where no ensemble is wanted.

    Raises:
        UsageError: an unknown key, or a step of the user's whose tensors are not declared as they must be.
        InputError: a file is missing, cannot be read, or does not define the function.
    """
    if isinstance(value, bool | None):
        return EnsembleRequest() if value else None
    if isinstance(value, EnsembleRequest):
        return value
    if not isinstance(value, Mapping):
        raise UsageError(f"ensemble is {value!r}: expected true, false or a mapping of pre, post and folder")
    keys = ("pre", "post", "folder")
    if unknown := [k for k in value if k not in keys]:
        raise UsageError(f"ensemble has no key {unknown[0]!r}{nearest(str(unknown[0]), keys)}", fix=f"it has {keys}")
    folder = value.get("folder")
    if folder is not None and not (isinstance(folder, str) and Path(folder).expanduser().is_dir()):
        raise InputError(f"ensemble.folder is {folder!r}, which is not a folder here")
    return EnsembleRequest(
        _asked_step("pre", value.get("pre", {})),
        _asked_step("post", value.get("post", {})),
        str(Path(folder).expanduser().resolve()) if folder else None,
    )


def _asked_step(where: str, value: Any) -> CustomStep | Mapping[str, Any] | None:
    if value is None or (isinstance(value, Mapping) and "function" not in value):
        return value
    key = f"ensemble.{where}"
    tensors = "inputs" if where == "pre" else "outputs"
    declare = f"{key}: {{function: file.py:function, {tensors}: [{{name: …, dtype: …, dims: [{BATCH}, …]}}]}}"
    if not isinstance(value, Mapping):
        raise UsageError(f"{key} is {value!r}: a step of your own needs its tensors declared", fix=declare)
    keys = ("function", "inputs", "outputs", "files", "packages")
    if unknown := [k for k in value if k not in keys]:
        raise UsageError(f"{key} has no key {unknown[0]!r}{nearest(str(unknown[0]), keys)}", fix=f"it has {keys}")
    match = re.fullmatch(r"(?P<file>.+\.py):(?P<function>[A-Za-z_]\w*)", str(value["function"]))
    if match is None:
        raise UsageError(f"{key}.function is {value['function']!r}: expected file.py:function", fix=declare)
    if not value.get(tensors):
        what = "clients send" if where == "pre" else "clients get"
        raise UsageError(f"{key} declares no {tensors}: nothing says what {what}", fix=declare)
    file = carried(Path(match["file"]), key)
    _check_defined(Path(file.path), match["function"])
    named = where == "post"
    inputs = [_tensor(v, f"{key}.inputs", named=named) for v in _listed(value, "inputs", key)]
    outputs = [_tensor(v, f"{key}.outputs", named=False) for v in _listed(value, "outputs", key)]
    for side in (inputs, outputs):
        names = [t if isinstance(t, str) else t.name for t in side]
        if twice := sorted({n for n in names if names.count(n) > 1}):
            raise UsageError(f"{key} declares {twice[0]!r} twice")
    return CustomStep(
        file,
        match["function"],
        tuple(inputs),
        tuple(t for t in outputs if isinstance(t, TensorSpec)),
        tuple(carried(Path(str(v)), key) for v in _listed(value, "files", key)),
        tuple(_pinned(str(v), key) for v in _listed(value, "packages", key)),
    )


def _pinned(text: str, key: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9._-]+==[A-Za-z0-9.!+]+", text):
        raise UsageError(
            f"{key}.packages holds {text!r}: expected name==version, so that the server runs what was tried"
        )
    return text


def _listed(value: Mapping[str, Any], name: str, key: str) -> Sequence[Any]:
    found = value.get(name) or []
    if not isinstance(found, list | tuple):
        raise UsageError(f"{key}.{name} is {found!r}: expected a list")
    return found


def _check_defined(path: Path, function: str) -> None:
    """Check that a file defines a function at its top, without running it."""
    with raised_as(InputError, (SyntaxError, ValueError), f"{path} is not a Python file"):
        tree = ast.parse(path.read_text(encoding="utf-8"))
    defined = [n.name for n in tree.body if isinstance(n, ast.FunctionDef)]
    if function not in defined:
        raise InputError(f"{path.name} defines no function {function!r}{nearest(function, defined)}")


def _tensor(value: Any, where: str, *, named: bool) -> TensorSpec | str:
    """Read ``{name: text, dtype: str, dims: [batch, 1]}``; where ``named``, a name alone stands for a known tensor."""
    if named:
        if not isinstance(value, str):
            raise UsageError(f"{where} holds {value!r}: expected the name of a tensor that the model or pre gives")
        return value
    expected = f"expected {{name: …, dtype: …, dims: [{BATCH}, …]}}"
    if not isinstance(value, Mapping) or value.keys() != {"name", "dtype", "dims"}:
        raise UsageError(f"{where} holds {value!r}: {expected}")
    name, dtype, dims = str(value["name"]), str(value["dtype"]), value["dims"]
    sizes = isinstance(dims, list | tuple) and all(
        isinstance(d, str) or (isinstance(d, int) and not isinstance(d, bool) and d > 0) for d in dims
    )
    if not sizes or len(dims) < 2 or dims[0] != BATCH:
        raise UsageError(
            f"{where}: {name!r} has dims {dims!r}: expected {BATCH!r} and at least one more, each a name or a size",
            fix=f"a single value per item has the dims [{BATCH}, 1]",
        )
    if dtype == "bfloat16":
        raise UsageError(f"{where}: {name!r} is bfloat16, which NumPy cannot hold", fix="take float32")
    try:
        datatype(dtype)
    except InputError as error:
        raise UsageError(f"{where}: {name!r}: {error.message}") from error
    return TensorSpec(name, "str" if dtype == "object" else dtype, tuple(dims))
