"""Inputs, outputs and weights of a model file, read without its framework and without running anything.

ONNX is read without its external data, an OpenVINO IR as XML. A plan, a TorchScript file or a SavedModel tells nothing
without its framework and is left to the server.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from xml.etree.ElementTree import Element, TreeBuilder
from xml.parsers import expat

from accel.core.dtypes import DATATYPES
from accel.core.errors import InputError, raised_as
from accel.triton.lint.model import read_bytes

LARGEST_MODEL_BYTES = 2 << 30
"""No protobuf is larger, and an IR's XML holds no weights."""

Dims = tuple[int, ...] | None
Span = tuple[int, int]


@dataclass(frozen=True, slots=True)
class FileTensor:
    """One input or output of a model file.

    Attributes:
        names: every name it answers to, sorted; a backend that asks for one gets the first.
        type: Triton's name of its type; None where Triton has none, and for an IR, whose types the backend converts.
        dims: -1 for a free one; None where the file does not say.
        spans: lowest and highest size of each bounded free dim, by its index.
        batch: whether the file marks an axis as the batch (OpenVINO's layout).
    """

    names: tuple[str, ...]
    type: str | None
    dims: Dims
    spans: Mapping[int, Span] = field(default_factory=dict)
    batch: bool = False


@dataclass(frozen=True, slots=True)
class Ports:
    """What a model file says.

    Attributes:
        optional: inputs that have a default in the file.
        weights: file beside the model → bytes of it that the model reads.
    """

    inputs: tuple[FileTensor, ...]
    outputs: tuple[FileTensor, ...]
    optional: frozenset[str]
    weights: Mapping[str, int]


def read_ports(root: Path, file: str) -> Ports:
    """Read an ``.onnx`` file or an IR's ``.xml`` below ``root`` (resolved).

    Raises:
        InputError: it is neither, is truncated, or not to be read.
    """
    content = read_bytes(root, root / file, limit=LARGEST_MODEL_BYTES)
    return _openvino(content, Path(file).stem) if file.endswith(".xml") else _onnx(content)


def _onnx(content: bytes) -> Ports:
    import onnx
    from google.protobuf.message import DecodeError

    with raised_as(InputError, (DecodeError, ValueError), "is not an ONNX model, or truncated"):
        graph = onnx.load_model_from_string(content).graph
    if not graph.node and not graph.output:
        raise InputError("is not an ONNX model, or truncated: it holds no graph")
    numbers = onnx.helper.get_all_tensor_dtypes()
    types = {number: DATATYPES.get(onnx.helper.tensor_dtype_to_np_dtype(number).name) for number in numbers}

    def port(value: Any) -> FileTensor:
        tensor = value.type.tensor_type
        dims = tuple(d.dim_value if d.HasField("dim_value") else -1 for d in tensor.shape.dim)
        return FileTensor((value.name,), types.get(tensor.elem_type), dims if tensor.HasField("shape") else None)

    weights: dict[str, int] = {}
    for tensor in graph.initializer:
        entries = {e.key: e.value for e in tensor.external_data} if tensor.data_location == tensor.EXTERNAL else {}
        if "location" in entries:
            end = sum(int(entries[k]) for k in ("offset", "length") if entries.get(k, "").isdigit())
            weights[entries["location"]] = max(weights.get(entries["location"], 0), end)
    defaults = frozenset(t.name for t in graph.initializer) & {i.name for i in graph.input}
    return Ports(tuple(map(port, graph.input)), tuple(map(port, graph.output)), defaults, weights)


def _openvino(content: bytes, stem: str) -> Ports:
    """Read parameters, results and constants of an IR.

    Source: openvino docs, "OpenVINO IR format"; names and layouts as ``openvino.save_model`` writes them.
    """
    root = _xml(content)
    layers = {layer.get("id"): layer for layer in root.iterfind("./layers/layer")}
    into = {e.get("to-layer"): (e.get("from-layer"), e.get("from-port")) for e in root.iterfind("./edges/edge")}
    inputs, outputs, end = [], [], 0
    with raised_as(InputError, ValueError, "is not an OpenVINO IR"):
        for identity, layer in layers.items():
            data = layer.find("data")
            if layer.get("type") == "Parameter":
                inputs.append(_port(layer.find("./output/port"), shape=None if data is None else data.get("shape")))
            elif layer.get("type") == "Result":
                source, place = into.get(identity, (None, None))
                ports = layers[source].iterfind("./output/port") if source in layers else ()
                port = next((p for p in ports if p.get("id") == place), None)
                outputs.append(_port(port, names=layer.get("output_names")))
            elif layer.get("type") == "Const" and data is not None and data.get("offset"):
                end = max(end, int(data.get("offset", "0")) + int(data.get("size", "0")))
    return Ports(tuple(inputs), tuple(outputs), frozenset(), {f"{stem}.bin": end} if end else {})


def _xml(content: bytes) -> Element:
    """Parse an IR; a document type, which brings entities that expand without end, is refused."""
    builder, parser = TreeBuilder(), expat.ParserCreate()

    def refuse(*_: Any) -> None:
        raise InputError("is not an OpenVINO IR: it declares a document type")

    parser.StartDoctypeDeclHandler = refuse
    parser.StartElementHandler = builder.start
    parser.EndElementHandler = builder.end
    parser.CharacterDataHandler = builder.data
    with raised_as(InputError, (expat.ExpatError, ValueError, AssertionError), "is not an OpenVINO IR"):
        parser.Parse(content, True)
        root = builder.close()
    if root.tag != "net" or root.find("layers") is None:
        raise InputError(f"is not an OpenVINO IR: it begins with <{root.tag}>, expected <net> with <layers>")
    return root


def _port(port: Element | None, *, shape: str | None = None, names: str | None = None) -> FileTensor:
    """Describe one port; ``shape`` of a parameter has the bounds (``?,3,1..10``) that its port lacks."""
    if port is None:
        return FileTensor((), None, None)
    written = names or port.get("names") or ""
    known = sorted(n.replace("\\,", ",") for n in re.split(r"(?<!\\),", written) if n)
    layout = next((a.get("layout", "") for a in port.iterfind("./rt_info/attribute[@name='layout']")), "")
    dims: Dims = tuple(int(d.text or "") for d in port.iterfind("dim"))
    spans: dict[int, Span] = {}
    if shape is not None:
        dims, spans = _partial(shape)
    return FileTensor(tuple(known), None, dims, spans, "N" in layout.strip("[]").split(","))


def _partial(text: str) -> tuple[Dims, dict[int, Span]]:
    """Read a shape with free and bounded dims; None for one of free rank (``...``)."""
    dims: list[int] = []
    spans: dict[int, Span] = {}
    for index, part in enumerate(p.strip() for p in text.split(",") if p.strip()):
        if part == "...":
            return None, {}
        lowest, dots, highest = part.partition("..")
        if dots and highest:
            spans[index] = (int(lowest or 0), int(highest))
        dims.append(-1 if dots or part == "?" else int(part))
    return tuple(dims), spans
