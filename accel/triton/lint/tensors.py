"""Rules that hold a config against the model file itself: names, types and dims of inputs and outputs.

ONNX files and OpenVINO IRs are read by ``ports``, accel's Python-backend models by their ``artifact.json``. Of other
files that accel built, the manifest has the inputs and outputs.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import PurePosixPath
from typing import Any

from accel.core.dtypes import DATATYPES
from accel.core.errors import InputError
from accel.core.values import FileRef, TensorSpec
from accel.triton.config import type_name
from accel.triton.lint.model import LintedModel, leads_inside, read_text, unsafe
from accel.triton.lint.ports import FileTensor, Ports, read_ports
from accel.triton.manifest import FILENAME, Finding, Manifest

LARGEST_JSON_BYTES = 16 << 20


def onnx_file(model: LintedModel) -> Iterator[Finding]:
    """Hold an onnxruntime config against its ONNX file.

    Source: onnxruntime_backend src/onnxruntime.cc, ModelInstanceState::ValidateInputs and ValidateOutputs;
    src/onnxruntime_utils.cc, CompareDimsSupported.
    """
    if model.backend != "onnxruntime":
        return
    for file in _files(model, ".onnx"):
        try:
            ports = read_ports(model.root, file)
        except InputError as error:
            yield model.error("", error.message, "copy or export it again", file=file)
            continue
        yield from _names(model, ports, file)
        yield from _weights(model, ports, file)
        for field, tensor, port in _pairs(model, ports):
            found = type_name(tensor.data_type)
            if port.type is not None and found not in (port.type, "TYPE_INVALID"):
                yield model.error(f"{field}.data_type", f"is {found}, and {file} has {port.type}", "make them equal")
            if port.dims is not None and tensor.dims:
                yield from _onnx_dims(model, field, tensor, port.dims, file)


def _onnx_dims(model: LintedModel, field: str, tensor: Any, dims: tuple[int, ...], file: str) -> Iterator[Finding]:
    declared = _shape(tensor)
    full = [-1, *declared] if model.batched else declared
    exact = field.startswith("output")
    if getattr(tensor, "allow_ragged_batch", False):
        if dims != (-1,):
            yield model.error(f"{field}.dims", f"is ragged, and {file} has {list(dims)}, not [-1]", "drop ragged")
    elif not dims:
        if any(d != 1 for d in declared):
            yield model.error(f"{field}.dims", f"is {declared}, and {file} has a scalar", "use [1]")
    elif model.batched and dims[0] != -1:
        why = f"the leading dim of {file} is fixed: {list(dims)}, and max_batch_size is {model.config.max_batch_size}"
        yield model.error(f"{field}.dims", why, "set max_batch_size: 0, or export with a free batch axis")
    elif len(full) != len(dims):
        yield model.error(f"{field}.dims", _rank(model, declared, dims, file), "make them fit")
    elif any(m not in (c, -1) for c, m in zip(full, dims, strict=True)):
        batch = " with the batch axis" if model.batched else ""
        yield model.error(f"{field}.dims", f"is {full}{batch}, and {file} has {list(dims)}", "make them fit")
    elif exact and full != list(dims):
        # ONNX Runtime may know the size by its own shape inference, and compares with that.
        why = f"{full} fixes what {file} leaves free, {list(dims)}: it loads only if ONNX Runtime infers the sizes"
        yield model.warning(f"{field}.dims", why, "use -1")


def _rank(model: LintedModel, declared: list[int], dims: tuple[int, ...], file: str) -> str:
    if model.batched and len(declared) == len(dims):
        return f"is {declared}, and {file} has {list(dims)}: a positive max_batch_size adds the batch axis to dims"
    return f"is {declared}{' behind a batch axis' if model.batched else ''}, and {file} has {list(dims)}"


def openvino_file(model: LintedModel) -> Iterator[Finding]:
    """Hold an openvino config against its IR or ONNX file; types may differ, since the backend converts.

    Source: openvino_backend src/openvino.cc, ModelState::ValidateInputs, ValidateOutputs and AutoCompleteBatching;
    src/openvino_utils.cc, CompareDimsSupported and doesMatch.
    """
    if model.backend != "openvino":
        return
    for file in _files(model, ".xml", ".onnx"):
        try:
            ports = read_ports(model.root, file)
        except InputError as error:
            yield model.error("", error.message, "copy or convert it again", file=file)
            continue
        if any(not p.names for p in (*ports.inputs, *ports.outputs)):
            # Source: openvino_backend README, "Known Issues".
            yield model.error("", "has a tensor with no name, which the backend needs", "name it", file=file)
            continue
        yield from _names(model, ports, file)
        yield from _weights(model, ports, file)
        free = model.parameter("RESHAPE_IO_LAYERS").lower() == "yes"
        for field, tensor, port in _pairs(model, ports):
            if port.dims is not None and tensor.dims and not (free and field.startswith("input")):
                yield from _openvino_dims(model, field, tensor, port, file)
        every = (*ports.inputs, *ports.outputs)
        if not model.config.max_batch_size and every and all(p.batch for p in every):
            why = f"is 0, and auto-complete replaces it by its default, since {file} marks a batch axis everywhere"
            yield model.warning("max_batch_size", why, "start the server with --disable-auto-complete-config")


def _openvino_dims(model: LintedModel, field: str, tensor: Any, port: FileTensor, file: str) -> Iterator[Finding]:
    dims, declared = port.dims or (), _shape(tensor)
    is_input, skip = field.startswith("input"), 1 if model.batched else 0
    if len(dims) != len(declared) + skip:
        yield model.error(f"{field}.dims", _rank(model, declared, dims, file), "make them fit")
        return
    for index, size in enumerate(declared, start=skip):
        if is_input and model.batched and size == -1:
            continue
        lowest, highest = port.spans.get(index, (0, None))
        fixed = dims[index] != -1 and dims[index] != size
        beyond = highest is not None and not lowest < size < highest
        if fixed or beyond:
            expected = dims[index] if fixed else f"between {lowest} and {highest}, both excluded"
            why = f"has {size} at axis {index}, and {file} has {expected}"
            yield model.error(f"{field}.dims", why, "make them fit, or set RESHAPE_IO_LAYERS for inputs")
            return


def accel_artifact(model: LintedModel) -> Iterator[Finding]:
    """Hold a config against accel's own ``artifact.json``, which its ``model.py`` serves by."""
    if model.backend != "python":
        return
    for version in model.served():
        file = f"{model.folder}/{version}/artifact.json"
        if not (model.root / file).is_file():
            continue
        spec = _artifact(model, file)
        if spec is None:
            continue
        if spec["batched"] != model.batched:
            why = f"is {model.config.max_batch_size}, and {file} has batched {str(spec['batched']).lower()}"
            yield model.error("max_batch_size", why, "emit the repository again")
            continue
        threads, mode = model.parameter("threads"), model.parameter("mode")
        yield from model.errors(
            (
                model.config.model_transaction_policy.decoupled,
                "model_transaction_policy",
                "is decoupled, and accel's model.py answers each request once",
                "leave it out",
            ),
            (
                threads and not re.fullmatch(r"[1-9]\d{0,5}", threads),
                "parameters.threads",
                f"is {threads!r}, expected a number from 1",
                "correct it, or drop it",
            ),
            (
                mode not in ("", "latency", "throughput"),
                "parameters.mode",
                f"is {mode!r}, expected latency or throughput",
                "correct it, or drop it",
            ),
        )
        if model.row.numpy_below_2 and not spec["numpy_below_2"]:
            why = f"was emitted for another release: under NumPy 2, {model.row.name} gives empty outputs"
            yield model.warning("", why, f"emit it with --triton-release {model.row.name}", file=file)
        for kind in ("input", "output"):
            expected = [_spec(s, batched=model.batched) for s in spec[f"{kind}s"]]
            found = [(t.name, type_name(t.data_type), list(t.dims)) for t in getattr(model.config, kind)]
            for name, types, dims in expected:
                same = next((f for f in found if f[0] == name), None)
                if same is None:
                    yield model.error(f"{kind}.{name}", f"is missing, and {file} has it", "declare it")
                elif same[1:] != (types, dims):
                    why = f"is {same[1]} {same[2]}, and {file} has {types} {dims}"
                    yield model.error(f"{kind}.{name}", why, "make them equal")
            for name in {f[0] for f in found} - {e[0] for e in expected}:
                yield model.error(f"{kind}.{name}", f"is not in {file}", "drop it")


def _artifact(model: LintedModel, file: str) -> dict[str, Any] | None:
    """Return what accel wrote there; None for a file of that name which is not accel's."""
    try:
        spec = json.loads(read_text(model.root, model.root / file, limit=LARGEST_JSON_BYTES))
        ours = {"schema", "builder", "inputs", "outputs", "batched", "numpy_below_2"} <= set(spec)
        tensors = [*spec["inputs"], *spec["outputs"]] if ours else []
        kinds = [(type(s["name"]), type(s["dtype"]), type(s["dims"])) for s in tensors]
        shaped = ours and set(kinds) <= {(str, str, list)}
    except (InputError, ValueError, TypeError, KeyError, RecursionError):
        return None
    return spec if shaped else None


def _spec(spec: Mapping[str, Any], *, batched: bool) -> tuple[str, str, list[int]]:
    dims = [d if isinstance(d, int) else -1 for d in spec["dims"]]
    return spec["name"], DATATYPES.get(spec["dtype"], spec["dtype"]), dims[1 if batched else 0 :]


def emitted(model: LintedModel) -> Iterator[Finding]:
    """Hold the config of the model that clients call against accel's manifest, where the model file says nothing.

    Source: tensorrt_backend src/instance_state.cc, ValidateIO, InitIOBindingBuffers and ValidateShapes;
    src/tensorrt_utils.cc, CompareDimsSupported; src/model_state.cc, AutoCompleteConfigHelper (what a rank says of
    batches). An ensemble in front of a backend that dictates names has the contract itself.
    """
    manifest = model.manifest
    if manifest is None or (model.folder, manifest.version) not in [
        (m, v) for m in manifest.models[:1] for v in model.served()
    ]:
        return
    if model.backend == "python" or _files(model, ".onnx", ".xml"):
        return  # by their own files
    if changed := [f.path for f in manifest.files if f.path.startswith(_built_folder(manifest)) and _differs(model, f)]:
        why = f"describes another {changed[0]} than is there: the config was not compared with it"
        yield model.warning("files", why, "emit the repository again", file=FILENAME)
        return
    ports = Ports(_described(manifest, manifest.inputs), _described(manifest, manifest.outputs), frozenset(), {})
    yield from _names(model, ports, FILENAME)
    without_batch = set()
    for field, tensor, port in _pairs(model, ports):
        found, dims = type_name(tensor.data_type), port.dims or ()
        if port.type is not None and found not in (port.type, "TYPE_INVALID"):
            yield model.error(f"{field}.data_type", f"is {found}, and {FILENAME} has {port.type}", "make them equal")
        if not tensor.dims or getattr(tensor, "allow_ragged_batch", False):
            continue
        declared = _shape(tensor)
        # Without max_batch_size, auto-complete tells by the ranks whether the batch axis is in front.
        lacking = len(dims) - len(declared)
        without_batch.add(lacking)
        if lacking not in (0, 1) or (model.batched and lacking == 0):
            yield model.error(f"{field}.dims", _rank(model, declared, dims, FILENAME), "make them fit")
            continue
        for index, size in enumerate([-1] * lacking + declared):
            low, high = port.spans.get(index, (size, size))
            if -1 not in (size, dims[index]) and size != dims[index]:
                why = f"has {size} at axis {index}, and {FILENAME} has {dims[index]}"
                yield model.error(f"{field}.dims", why, "make them fit")
            elif size != -1 and not low <= size <= high:
                why = f"has {size} at axis {index}, and {FILENAME} has a profile from {low} to {high}"
                yield model.error(f"{field}.dims", why, "stay in the profile, or build with --max-shape")
    if without_batch == {0, 1} and not model.batched:
        why = f"of some tensors have the batch axis of {FILENAME}, of others not"
        yield model.error("dims", why, "leave it out of all, with max_batch_size, or of none")
    batched = all(s.dims[:1] == ("batch",) for s in (*manifest.inputs, *manifest.outputs))
    largest = min((p.spans[0][1] for p in ports.inputs if 0 in p.spans), default=0) if batched else 0
    if model.config.max_batch_size > largest:
        why = f"is {model.config.max_batch_size}, and {FILENAME} has a profile up to {largest}"
        yield model.error("max_batch_size", why, "lower it, or build with --max-shape")


def _built_folder(manifest: Manifest) -> str:
    return f"{manifest.models[-1]}/{manifest.version}/"


def _differs(model: LintedModel, file: FileRef) -> bool:
    """Say whether a file has another size than the manifest says; hashes are for ``accel verify``."""
    path = model.root / file.path
    return not (leads_inside(model.root, path) and path.is_file() and path.stat().st_size == file.bytes)


def _described(manifest: Manifest, specs: tuple[TensorSpec, ...]) -> tuple[FileTensor, ...]:
    """Return tensors as the manifest has them, with the sizes that free axes may have."""
    profile = manifest.artifact.variant.profile
    tensors = []
    for spec in specs:
        shape = profile.get(spec.name)
        limits = zip(spec.dims, shape.min, shape.max, strict=False) if shape is not None else ()
        spans = {i: (low, high) for i, (dim, low, high) in enumerate(limits) if isinstance(dim, str)}
        dims = tuple(d if isinstance(d, int) else -1 for d in spec.dims)
        tensors.append(FileTensor((spec.name,), DATATYPES.get(spec.dtype), dims, spans))
    return tuple(tensors)


AOTI_NAMES = {
    "input": re.compile(r"INPUT__\d+|ARGS(\[[^\[\]\"\s]+\])+|KWARGS\[?[^\[\]\"\s]+\]?(\[[^\[\]\"\s]+\])*"),
    "output": re.compile(r"OUTPUT__\d+|RESULT(\[[^\[\]\"\s]+\])*"),
}


def aoti_names(model: LintedModel) -> Iterator[Finding]:
    """Tensors of an AOTInductor package are named by their place.

    Source: pytorch_backend README, "AOT Inductor Support"; src/pt2/model_instance_state.cc, ValidateInputs.
    """
    if model.platform != "torch_aoti" or not model.row.torch_aoti:
        return
    for kind, pattern in AOTI_NAMES.items():
        for tensor in getattr(model.config, kind):
            if not pattern.fullmatch(tensor.name):
                known = "INPUT__0, ARGS[0] or KWARGS[name]" if kind == "input" else "OUTPUT__0, RESULT or RESULT[0]"
                yield model.error(f"{kind}.{tensor.name}", f"is not a name of torch_aoti, such as {known}", "rename it")
    if model.config.max_batch_size > 1:
        # Source: pytorch_backend README, warning below "AOT Inductor Support".
        yield model.warning("max_batch_size", "torch_aoti does not support batches yet", "set 0")


# ---------------------------------------------------------------------------------------------------------------------


def _files(model: LintedModel, *suffixes: str) -> list[str]:
    """Return the model files of the served versions that can be read, relative to the root."""
    if unsafe(model.filename) or PurePosixPath(model.filename).suffix not in suffixes:
        return []
    files = []
    for version in model.served():
        file = f"{model.folder}/{version}/{model.filename}"
        # A folder of that name holds the ONNX file of a large model.
        if (model.root / file).is_dir() and file.endswith(".onnx"):
            file += "/model.onnx"
        if (model.root / file).is_file() and leads_inside(model.root, model.root / file):
            files.append(file)
    return files


def _weights(model: LintedModel, ports: Ports, file: str) -> Iterator[Finding]:
    """The weights lie beside the model, whole."""
    for name, end in ports.weights.items():
        path = (model.root / file).parent / name
        if (reason := unsafe(name)) or not leads_inside(model.root, path):
            why = f"keeps weights at {name!r}: {reason or 'it leaves the repository'}"
            yield model.error("", why, "export it again", file=file)
        elif not path.is_file():
            yield model.error("", f"its weights {name} are not there", "copy both files", file=file)
        elif path.stat().st_size < end:
            why = f"needs {end} bytes of {name}, which has {path.stat().st_size}"
            yield model.error("", why, "copy both files again", file=file)


def _shape(tensor: Any) -> list[int]:
    """Return what the backend sees: the reshape where there is one."""
    return list(tensor.reshape.shape if tensor.HasField("reshape") else tensor.dims)


def _pairs(model: LintedModel, ports: Ports) -> Iterator[tuple[str, Any, FileTensor]]:
    """Yield (field, config tensor, port) for every tensor that both have."""
    targets = {n for b in model.config.batch_output for n in b.target_name}
    for kind, tensors, found in (
        ("input", model.config.input, ports.inputs),
        ("output", model.config.output, ports.outputs),
    ):
        for tensor in tensors:
            port = next((p for p in found if tensor.name in p.names), None)
            if port is not None and not (kind == "output" and tensor.name in targets):
                yield f"{kind}.{tensor.name}", tensor, port


def _names(model: LintedModel, ports: Ports, file: str) -> Iterator[Finding]:
    """Compare names: an input too many or too few fails the load, an output may be left out.

    Controls and states of sequence batching and batch inputs are inputs of the model, too.
    """
    config = model.config
    for kind, tensors, found in (("input", config.input, ports.inputs), ("output", config.output, ports.outputs)):
        if not tensors or not found:
            continue  # config.completeness tells of the one
        usual = [p.names[0] for p in found]
        unknown = 0
        for tensor in tensors:
            port = next((p for p in found if tensor.name in p.names), None)
            if port is None:
                unknown += 1
                why = f"is not an {kind} of {file}, which has {', '.join(map(repr, usual))}"
                yield model.error(f"{kind}.{tensor.name}", why, "correct the name")
            elif tensor.name != port.names[0]:
                why = f"the backend knows this {kind} of {file} as {port.names[0]!r}, the first of its names"
                yield model.error(f"{kind}.{tensor.name}", why, "use that name")
        declared = {t.name for t in tensors} | model.extra_inputs | ports.optional
        missing = [p.names[0] for p in found if kind == "input" and not declared & set(p.names)]
        # As many wrong names as missing ones are taken for the same tensors.
        for name in missing if len(missing) > unknown else ():
            yield model.error(f"{kind}.{name}", f"is missing, and {file} needs it", "declare it")


RULES: tuple[Callable[[LintedModel], Iterator[Finding]], ...] = (
    onnx_file,
    openvino_file,
    accel_artifact,
    emitted,
    aoti_names,
)
