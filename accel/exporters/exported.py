"""Exported programs (``.pt2`` of ``torch.export.save``), opened without ever unpickling code."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from accel.core.errors import InputError, UnavailableError, raised_as
from accel.core.values import ShapeRange, TensorSpec
from accel.exporters.axes import Extent, name_axes, resolve
from accel.exporters.program_rules import refuse_pickles
from accel.exporters.request import SourceRequest
from accel.exporters.sources import content_key

if TYPE_CHECKING:
    import torch


def open_program(
    request: SourceRequest,
) -> tuple["torch.nn.Module", tuple[TensorSpec, ...], dict[str, ShapeRange], str]:
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
            raise InputError(
                f"{path.name}: input {name!r} is not a tensor", fix="export a module that takes tensors only"
            )
        sizes: list[tuple[int, int, int]] = []
        for axis, size in enumerate(values[name].shape):
            e = _extent(size, axis, bounds)
            sizes.append((e.min, e.opt, e.max))
        shapes[name] = ShapeRange(tuple(s[0] for s in sizes), tuple(s[1] for s in sizes), tuple(s[2] for s in sizes))
        dtype = str(values[name].dtype).removeprefix("torch.")
        dtypes[name] = "float32" if dtype == "bfloat16" else dtype  # which NumPy lacks
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


def flat_module(program: "torch.export.ExportedProgram") -> "torch.nn.Module":
    """Make a program take its inputs by keyword, however they were nested when it was exported.

    A ``reshape`` of the source stands in it as the ``view`` that it was with the strides of that day. Traced again, for
    ONNX, an attention may give other strides, which ``view`` refuses: it becomes ``reshape`` again, the same otherwise.
    """
    import torch

    from accel.exporters.positional import Nested

    module = program.module()
    for part in module.modules():
        if isinstance(part, torch.fx.GraphModule):
            for node in part.graph.find_nodes(op="call_function", target=torch.ops.aten.view.default):
                node.target = torch.ops.aten.reshape.default
            part.recompile()
    given = {n.name: n.meta["val"].dtype for n in program.graph.nodes if n.op == "placeholder" and "val" in n.meta}
    names = program.graph_signature.user_inputs
    casts = {name: torch.bfloat16 for name in names if given.get(name) == torch.bfloat16}
    return Nested(module, names, program.call_spec.in_spec, casts=casts)


def read_program(path: Path) -> "torch.export.ExportedProgram":
    """Load a ``.pt2``, refusing one that would need unpickling.

    Raises:
        InputError: not an exported program, truncated, or holding pickled objects.
        UnavailableError: written by a torch whose format this one does not read.
    """
    import torch

    refuse_pickles(path)
    with raised_as(
        UnavailableError,
        Exception,
        f"torch {torch.__version__} cannot load {path.name}",
        fix="export it again with torch.export.save under this version of torch",
    ):
        return torch.export.load(str(path))
