"""TorchScript: archives that hold nothing but a model, and the modules that can be made of one.

An archive is code and pickles that torch's own C++ reader opens: no Python runs. The code runs all the same, in torch's
interpreter, some of it while the file is loaded. So it is read first, and only what computes is let through.

Source: torch/csrc/jit/serialization/import.cpp and unpickler.cpp, torch/jit/_serialization.py (2.13).
"""

import ast
import pickletools
import re
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from accel.core.errors import InputError, StageError, first_line, raised_as
from accel.core.values import ShapeRange, TensorSpec
from accel.exporters.axes import extents, points, shapes_at, trace_sizes
from accel.exporters.positional import Nested, call, named_tensors
from accel.exporters.probe import example_arrays
from accel.exporters.torch_module import plain

FIX = "give the model that it was made from as `file.py:factory`, or an ONNX file made where it was trained"
NAMESPACES = {"aten", "prim", "quantized", "torchvision"}
"""Whose operators may be called as ``ops.NAMESPACE.name``; ``torch.name`` is one of ``aten`` or ``prim``."""
REFUSED = {"save", "from_file", "classes"}
"""Operators that open files, also as methods of a tensor, and where foreign classes are found."""
GLOBALS = re.compile(
    r"__torch__(\.\w+)* \w+|torch \w+Storage|torch\._utils _rebuild_(tensor_v2|qtensor|parameter)"
    r"|collections OrderedDict|torch\.jit\._pickle (build_(int|double|bool|tensor)list|restore_type_tag)"
    r"|torch(\._C)? (device|Size)"
)
"""What the pickles of an archive may name: classes that its own code defines, tensors and lists."""
DROPOUT = {
    **dict.fromkeys(("aten::dropout", "aten::feature_dropout", "aten::alpha_dropout"), "p"),
    **dict.fromkeys(("aten::lstm", "aten::gru"), "dropout"),
}
"""Operators that leave values out at random where they ``train``, and the argument that says what share."""
RTOL, ATOL = 1e-4, 1e-5


def read_script(path: Path) -> torch.nn.Module:
    """Load a TorchScript archive, after its code and pickles were held against the rules.

    Raises:
        InputError: broken, or it holds or calls something else than what computes a model.
    """
    with raised_as(
        InputError,
        (RuntimeError, ValueError, LookupError, zipfile.BadZipFile),
        f"torch cannot load {path.name}",
        fix=FIX,
        say=first_line,
    ):
        reader = torch._C.PyTorchFileReader(str(path))
        names = reader.get_all_records()
        with zipfile.ZipFile(path) as archive:
            listed = [name.partition("/")[2] for name in archive.namelist()]
        # torch's reader finds a record whatever the case of its name, so two spellings could hide one another.
        if len({n.lower() for n in names}) != len(names) or set(names) - set(listed):
            raise InputError(f"{path.name} holds two records of one name", fix=FIX)
        if "model.json" in names or not {"data.pkl", "constants.pkl"} <= set(names):
            raise InputError(f"{path.name} is of an old or another format: it has {sorted(names)[:4]}", fix=FIX)
        for name in names:
            record = reader.get_record(name) if name.endswith(("pkl", ".py")) else b""
            if name.endswith(".py"):
                _check_code(record.decode(), f"{path.name}:{name}")
            elif name.endswith("pkl"):
                _check_pickle(record, f"{path.name}:{name}")
        module = torch.jit.load(str(path), map_location="cpu")
    return plain(module)


def _check_pickle(record: bytes, where: str) -> None:
    for operation, argument, _ in pickletools.genops(record):
        if operation.name in ("GLOBAL", "INST") and not GLOBALS.fullmatch(str(argument)):
            raise InputError(f"{where} names {argument!r}, which is not a tensor and none of its own classes", fix=FIX)
        if operation.name in ("STACK_GLOBAL", "EXT1", "EXT2", "EXT4"):
            raise InputError(f"{where} names a class in a way that TorchScript does not use", fix=FIX)


def _check_code(text: str, where: str) -> None:
    with raised_as(
        InputError,
        (SyntaxError, ValueError, RecursionError, MemoryError),
        f"{where} is not code of TorchScript",
        fix=FIX,
    ):
        tree = ast.parse(text)
    plain: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            raise InputError(f"{where} imports something, which TorchScript does not", fix=FIX)
        if isinstance(node, ast.Attribute):
            known = isinstance(node.value, ast.Name) and node.value.id == "ops" and node.attr in NAMESPACES
            if known:
                plain.add(id(node.value))
            if node.attr in REFUSED:
                raise InputError(f"{where} calls {ast.unparse(node)[:80]!r}, which accel does not run", fix=FIX)
        # An attribute comes before the name that it begins with.
        if isinstance(node, ast.Name) and node.id == "ops" and id(node) not in plain:
            raise InputError(f"{where} uses operators of other namespaces than {sorted(NAMESPACES)}", fix=FIX)


def exportable(
    script: torch.nn.Module, inputs: Sequence[TensorSpec], profile: Mapping[str, ShapeRange]
) -> torch.nn.Module:
    """Make a module of torch's operators from a script and compare the two at several shapes; others stay as they are.

    Raises:
        InputError: it was traced in training mode, with dropout.
        StageError: torch cannot, or the module answers something else than the script.
    """
    if not isinstance(script, torch.jit.ScriptModule):
        return script
    graph = script.inlined_graph
    for kind, share in DROPOUT.items():
        for node in graph.findAllNodes(kind):
            if node.namedInput("train").toIValue() and node.namedInput(share).toIValue() != 0:
                raise InputError(
                    f"the TorchScript module was traced in training mode: its {kind} leaves out values at random",
                    fix="trace it again after model.eval()",
                )
    from torch._export.converter import TS2EPConverter

    class Converter(TS2EPConverter):
        """Keeps the graph as it is before torch traces it again, which would fix sizes that are open."""

        def retrace_as_exported_program(self, gm: torch.fx.GraphModule, name_to_constant: Any) -> Any:
            self.graph_module = gm
            return SimpleNamespace(state_dict=self.ts_model.state_dict())

    names = [s.name for s in inputs]
    sizes = {n: e.opt for n, e in extents(inputs, profile).items()}
    sizes |= trace_sizes({n: e for n, e in extents(inputs, profile).items() if e.min < e.max})
    feed = example_arrays(inputs, shapes_at(inputs, sizes))
    try:
        converter = Converter(script, tuple(torch.from_numpy(feed[n]) for n in names))
        converter.convert()
    except Exception as error:
        raise StageError(
            "torch cannot make an exported program of the TorchScript module: "
            f"{type(error).__name__}: {first_line(error)}",
            fix=f"loops, branches on values and attributes that forward writes cannot be converted: {FIX}",
        ) from error
    spec = torch.utils._pytree.tree_structure(((0,) * len(names), {}))
    module = Nested(converter.graph_module, names, spec)
    for where, at in points(inputs, profile).items():
        _compare(script, module, example_arrays(inputs, shapes_at(inputs, at)), names, where)
    return module


def _compare(
    script: torch.nn.Module, module: torch.nn.Module, feed: dict[str, np.ndarray], names: list[str], where: str
) -> None:
    wanted = named_tensors(call(script, names, feed))
    at = f"at the {where} shape ({', '.join(f'{n} {list(v.shape)}' for n, v in feed.items())})"
    try:
        found = named_tensors(call(lambda *given: module(**dict(zip(names, given, strict=True))), names, feed))
    except StageError as error:
        raise StageError(
            f"torch cannot run what it made of the TorchScript module {at}: {error.__cause__ or error.message}", fix=FIX
        ) from error
    for name, value in wanted.items():
        if not _alike(value, found.get(name)):
            raise StageError(
                f"output {name!r} of the TorchScript module changed when it was converted, {at}",
                fix=f"a size or a state is fixed inside: give equal --min-shape and --max-shape, or {FIX}",
            )


def _alike(one: torch.Tensor, other: torch.Tensor | None) -> bool:
    if other is None or one.shape != other.shape or one.dtype != other.dtype:
        return False
    if not one.is_floating_point():
        return torch.equal(one, other)
    largest = float(one.abs().nan_to_num().max()) if one.numel() else 0.0
    return torch.allclose(one, other, rtol=RTOL, atol=ATOL * largest, equal_nan=True)
