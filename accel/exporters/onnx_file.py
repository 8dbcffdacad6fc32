"""Read an ONNX file without its weights, and find the side files that hold them."""

import os
from collections.abc import Iterable, Iterator
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from accel.core.errors import InputError, raised_as

if TYPE_CHECKING:
    import onnx
    from google.protobuf.message import Message


DOMAINS = ("", "ai.onnx", "ai.onnx.ml", "ai.onnx.training", "ai.onnx.preview.training", "com.microsoft")
"""Domains whose operators ONNX Runtime has. Source: onnxruntime, docs/OperatorKernels.md"""

CUSTOM_FIX = (
    "export the model with standard operators, convert the PyTorch or TensorFlow model instead, or keep the part "
    "without it: onnx.utils.extract_model(IN, OUT, INPUTS, OUTPUTS)"
)
EXTENSIONS_FIX = (
    "onnxruntime-extensions put its pre- or post-processing into the file: export without, or keep the part between "
    "with onnx.utils.extract_model(IN, OUT, INPUTS, OUTPUTS); --ensemble serves such steps beside the model"
)


def parse(path: Path) -> "onnx.ModelProto":
    """Read the protobuf without its external data.

    Raises:
        InputError: no ONNX, truncated, or with names that are no text.
    """
    import onnx
    from google.protobuf.message import DecodeError

    with raised_as(
        InputError,
        (DecodeError, OSError, ValueError),
        f"{path} is not an ONNX model, or truncated",
        fix="copy or export it again",
    ):
        model = onnx.load(str(path), load_external_data=False)
    if not model.graph.node and not model.graph.output:
        raise InputError(f"{path} holds no graph: truncated, or no ONNX model", fix="copy or export it again")
    if (broken := next(_no_text(model), None)) is not None:
        raise InputError(f"{path} is damaged: {broken!r} in it is not UTF-8", fix="copy or export it again")
    return model


def _no_text(message: "Message") -> Iterator[bytes]:
    """Yield what protobuf hands over as bytes where the format has text: it is not UTF-8."""
    for field, value in message.ListFields():
        values = [value] if isinstance(value, (str, bytes)) or not isinstance(value, Iterable) else value
        if field.type == field.TYPE_STRING:
            yield from (v for v in values if isinstance(v, bytes))
        elif field.type == field.TYPE_MESSAGE:
            for inner in values:
                yield from _no_text(inner)


def nodes(graph: "onnx.GraphProto") -> Iterator["onnx.NodeProto"]:
    """Yield every node of a graph and of its sub-graphs."""
    for node in graph.node:
        yield node
        for attribute in node.attribute:
            for inner in (attribute.g, *attribute.graphs):
                yield from nodes(inner)


def refuse_foreign(path: Path) -> None:
    """Refuse what no runtime here takes: operators of a custom-op library, and inputs or outputs of strings.

    Raises:
        InputError: names the node and its domain, or the tensor.
    """
    import onnx

    model = parse(path)
    own = {function.domain for function in model.functions}
    for node in nodes(model.graph):
        if node.domain not in DOMAINS and node.domain not in own:
            raise InputError(
                f"{path.name}: node {node.name or node.output[0]!r} is {node.domain}:{node.op_type}, which the domain "
                f"{node.domain!r} adds to ONNX: accel loads no custom-op libraries, and no runtime here has it",
                fix=EXTENSIONS_FIX if node.domain == "ai.onnx.contrib" else CUSTOM_FIX,
            )
    for what, values in (("input", model.graph.input), ("output", model.graph.output)):
        for value in values:
            if value.type.tensor_type.elem_type == onnx.TensorProto.STRING:
                raise InputError(
                    f"{path.name}: {what} {value.name!r} holds strings: accel converts models of numbers",
                    fix="onnx.utils.extract_model(IN, OUT, INPUTS, OUTPUTS) keeps what is between tensors of numbers; "
                    "--ensemble serves a tokenizer or labels beside a model",
                )


def _tensors(graph: "onnx.GraphProto") -> Iterator["onnx.TensorProto"]:
    yield from graph.initializer
    for sparse in graph.sparse_initializer:
        yield from (sparse.values, sparse.indices)
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("t"):
                yield attribute.t
            yield from attribute.tensors
            for inner in (attribute.g, *attribute.graphs):
                yield from _tensors(inner)


def external_files(path: Path) -> list[str]:
    """Return the external data files of a model, by name relative to its folder, each inside that folder.

    Raises:
        InputError: a path that leaves the folder, a missing file, or a tensor that reaches past the file's end.
    """
    found: dict[str, None] = {}
    folder = path.parent.resolve()
    for tensor in _tensors(parse(path).graph):
        if tensor.data_location != tensor.EXTERNAL:
            continue
        entries = {e.key: e.value for e in tensor.external_data}
        name = entries.get("location", "")
        inside = PurePosixPath(name)
        target = folder / name
        plain = name and "\0" not in name and not inside.is_absolute() and ".." not in inside.parts
        if not plain or not target.resolve().is_relative_to(folder):
            raise InputError(
                f"{path.name}: tensor {tensor.name!r} keeps its data at {name!r}, outside the model's folder",
                fix="do not use a model that points at other files of this machine; export it again",
            )
        if not os.path.isfile(target):  # noqa: PTH113  a name that no file system takes is a file that is missing
            shown = name if len(name) <= 100 else f"{name[:100]}…"
            raise InputError(f"{path.name}: its data file {shown} is missing", fix=f"put it beside {path.name}")
        try:
            end = int(entries.get("offset", 0)) + int(entries.get("length", 0))
        except ValueError as error:
            raise InputError(f"{path.name}: tensor {tensor.name!r} has a broken data offset") from error
        if end > target.stat().st_size:
            raise InputError(
                f"{path.name}: tensor {tensor.name!r} ends at byte {end} of {name}, which has {target.stat().st_size}: "
                "the data file is truncated",
                fix="copy both files again",
            )
        found.setdefault(inside.as_posix())
    return list(found)
