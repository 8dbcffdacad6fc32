"""Exported programs (``.pt2`` of ``torch.export.save``), opened without ever unpickling code."""

from __future__ import annotations

import ast
import io
import json
import re
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from accel.core.errors import AccelError, InputError, UnavailableError
from accel.core.values import ShapeRange, TensorSpec
from accel.exporters.axes import Extent, name_axes, resolve
from accel.exporters.request import SourceRequest
from accel.exporters.sources import content_key

if TYPE_CHECKING:
    import torch


def open_program(
    request: SourceRequest,
) -> tuple[torch.nn.Module, tuple[TensorSpec, ...], dict[str, ShapeRange], str]:
    """Load the program and read its inputs and the bounds of its symbolic sizes.

    Returns:
        The module, the inputs, the profile and the content key.
    """
    path = Path(request.reference)
    program = read_program(path)
    names = list(program.graph_signature.user_inputs)
    values = {n.name: n.meta["val"] for n in program.graph.nodes if n.op == "placeholder"}
    bounds = {str(symbol): (int(r.lower), r.upper) for symbol, r in program.range_constraints.items()}
    shapes, dtypes = {}, {}
    for name in names:
        if name not in values or not hasattr(values[name], "shape"):
            raise InputError(f"{path.name}: input {name!r} is no tensor", fix="export a module that takes tensors only")
        sizes: list[tuple[int, int, int]] = []
        for axis, size in enumerate(values[name].shape):
            e = _extent(size, axis, bounds)
            sizes.append((e.min, e.opt, e.max))
        shapes[name] = ShapeRange(tuple(s[0] for s in sizes), tuple(s[1] for s in sizes), tuple(s[2] for s in sizes))
        dtypes[name] = str(values[name].dtype).removeprefix("torch.")
    specs, profile = name_axes(shapes, dtypes)
    specs, profile, _ = resolve(specs, profile, request)
    key = content_key(request)
    if key is None:
        raise InputError(f"{path} vanished while it was read")
    return flat_module(program), specs, profile, key


def _extent(size: Any, axis: int, bounds: Mapping[str, tuple[int, Any]]) -> Extent:
    if isinstance(size, int):
        return Extent(size, size, size)
    low, high = bounds.get(str(size), (1, None))
    low = max(low, 1)
    top = int(high) if str(high).isdigit() and int(high) < 2**31 else max(16 if axis == 0 else 512, low)
    return Extent(low, max(low, 1) if axis == 0 else min(max(low, 128), top), top)


def flat_module(program: torch.export.ExportedProgram) -> torch.nn.Module:
    """Make a program take its inputs by position, however they were nested when it was exported."""
    import torch

    class Flat(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.training = False
            self.program = program.module()
            self.spec = program.call_spec.in_spec

        def forward(self, *flat: torch.Tensor) -> Any:
            args, kwargs = torch.utils._pytree.tree_unflatten(list(flat), self.spec)
            return self.program(*args, **kwargs)

    return Flat()


def read_program(path: Path) -> torch.export.ExportedProgram:
    """Load a ``.pt2``, refusing one that would need unpickling.

    Raises:
        InputError: not an exported program, truncated, or holding pickled objects.
        UnavailableError: written by a torch whose format this one does not read.
    """
    import torch

    refuse_pickles(path)
    try:
        return torch.export.load(str(path))
    except AccelError:
        raise
    except Exception as error:
        raise UnavailableError(
            f"torch {torch.__version__} cannot load {path.name}: {error or type(error).__name__}",
            fix="export it again with torch.export.save under this version of torch",
        ) from error


ARITHMETIC = {"Symbol", "Integer", "Rational", "Float", "Add", "Mul", "Pow", "Mod", "Max", "Min", "floor", "ceiling"}
"""Names of sympy that a size may call, beside torch's own functions of sizes."""


PICKLED = re.compile(r"custom_obj|opaque_obj|\.pkl$|serialized_")
"""Names of records that torch unpickles without restriction: foreign constants, and all of the format before 2.8."""


def refuse_pickles(path: Path) -> None:
    """Raise InputError where loading the archive would run code that it holds.

    ``torch.export.load`` falls back to an unrestricted unpickler for example inputs and for weights that are marked
    as pickled, and hands symbolic sizes to sympy's evaluator. So the archive is read first with torch's own reader
    (no second parser that could disagree), and anything but plain tensors and plain arithmetic is refused.

    Source: torch/export/pt2_archive/_package.py and torch/_export/serde/serialize.py (2.13).
    """
    import torch

    fix = "export it again with torch.export.save, from a program whose inputs and constants are plain tensors"
    try:
        reader = torch._C.PyTorchFileReader(str(path))
        names = reader.get_all_records()
        with zipfile.ZipFile(path) as archive:
            listed = [*names, *archive.namelist()]
    except (RuntimeError, zipfile.BadZipFile) as error:
        raise InputError(f"{path} is no exported program: {error}", fix="give a file of torch.export.save") from error
    if not any(n.startswith("models/") for n in names):
        raise InputError(f"{path} holds no exported program (found {names[:4]})", fix=fix)
    # torch's reader finds a record whatever the case of its name, so two spellings could hide one another.
    if len({n.lower() for n in names}) != len(names):
        raise InputError(f"{path.name} holds two records of one name", fix=fix)
    for name in listed:
        if PICKLED.search(name.lower()):
            raise InputError(f"{path.name} holds a pickled object ({name}), which accel never opens", fix=fix)
    for name in names:
        kind = name.lower()
        if kind.endswith(".json") or kind.startswith("models/"):
            try:
                _check_json(json.loads(reader.get_record(name)), f"{path.name}:{name}", fix)
            except ValueError as error:
                raise InputError(f"{path.name}: {name} is no JSON: {error}", fix=fix) from error
        elif kind.endswith(".pt") and (raw := reader.get_record(name)):
            try:
                torch.load(io.BytesIO(raw), weights_only=True)
            except Exception as error:
                raise InputError(
                    f"{path.name}: {name} is a pickle of more than plain tensors, which accel never opens", fix=fix
                ) from error


def _check_json(value: Any, where: str, fix: str) -> None:
    if isinstance(value, list):
        for item in value:
            _check_json(item, where, fix)
    elif isinstance(value, Mapping):
        if value.get("use_pickle") or PICKLED.search(str(value.get("path_name", "")).lower()):
            raise InputError(f"{where} marks {value.get('path_name')} as a pickle, which accel never opens", fix=fix)
        text = value.get("expr_str")
        if isinstance(text, str) and not is_arithmetic(text):
            raise InputError(f"{where} has a size that is no arithmetic: {text[:80]!r}", fix=fix)
        for item in value.values():
            _check_json(item, where, fix)


def is_arithmetic(text: str) -> bool:
    """Say whether an expression holds numbers, symbols, operators and calls of known functions, and nothing else."""
    from torch.utils._sympy import functions

    known = ARITHMETIC | set(functions.__all__)
    allowed = (
        *(ast.Expression, ast.BinOp, ast.UnaryOp, ast.BoolOp, ast.Compare, ast.Call, ast.keyword, ast.Name, ast.Load),
        *(ast.Constant, ast.operator, ast.unaryop, ast.boolop, ast.cmpop),
    )
    try:
        tree = ast.parse(text.strip(), mode="eval")
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    for node in ast.walk(tree):
        if not isinstance(node, allowed):
            return False
        if isinstance(node, ast.Call) and not (isinstance(node.func, ast.Name) and node.func.id in known):
            return False
        if (
            isinstance(node, ast.Name)
            and node.id not in known
            and not re.fullmatch(r"-?(s|u|zf|zuf)\d+|(int_)?oo", node.id)
        ):
            return False
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and not re.fullmatch(r"\w+", node.value):
            return False
    return True
