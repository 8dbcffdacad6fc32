"""SavedModels, Keras files, frozen graphs and what a factory returned, opened into one form: ``Opened``."""

import contextlib
import dataclasses
import inspect
import signal
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from accel.core.errors import AccelError, InputError, UsageError, nearest, raised_as
from accel.core.values import GraphChoice
from accel.exporters.factory_result import FactoryResult
from accel.exporters.request import SAVED_MODEL
from accel.exporters.tensorflow_graph import SIGNATURE, Opened, Port, check_dtype, named_tensors, quiet
from accel.exporters.tensorflow_operators import INITIALISER, check_graph, check_saved_model, node_of, upstream
from accel.exporters.tensorflow_runtime import explain, import_tensorflow

SERVE = "serve"
"""Tag of the graph that is meant for serving. Source: tensorflow/python/saved_model/tag_constants.py."""
INTERNAL = (INITIALISER, "__saved_model_train_op")
"""Signatures that TensorFlow writes for itself. Source: tensorflow/python/saved_model/constants.py."""
VARIABLES = {"Variable", "VariableV2", "VarHandleOp", "AutoReloadVariable"}
NO_OUTPUT = {"NoOp", "Assert", "Print", "Placeholder", "Const", "PlaceholderWithDefault"}
"""Operators at the end of a graph that are not what it computes."""
LEAST_CPU_S, BYTES_PER_CPU_S = 30.0, 2e7
"""CPU time that loading a Keras file may take: at least, and by its size, which a disk alone reads ten times faster."""


def open_file(kind: str, path: Path, choice: GraphChoice) -> Opened:
    """Open a SavedModel folder, a Keras file or a frozen graph.

    Raises:
        InputError: broken, without a signature, holding operators that are refused, or taking what is not a number.
        UsageError: a signature or tensor that it does not have, or several outputs and no word which.
    """
    if kind == "savedmodel":
        return open_saved_model(path, choice.signature)
    if kind == "keras":
        return of_keras(_load_keras(path))
    return open_frozen(path, choice)


# ---------------------------------------------------------------------------------------------------------------------
# SavedModel


def open_saved_model(folder: Path, wanted: str | None) -> Opened:
    """Load a SavedModel and one of its signatures."""
    tf = import_tensorflow()
    meta = _serving_graph(folder)
    name = choose_signature(folder, [n for n in meta.signature_def if n not in INTERNAL], wanted)
    _check_signature(meta.signature_def[name], f"signature {name!r} of {folder}")
    check_saved_model(folder, meta, name)
    try:
        with quiet():
            loaded = tf.saved_model.load(str(folder), tags=list(meta.meta_info_def.tags))
    except Exception as error:
        try:
            return _open_main_graph(folder, meta, name)
        except AccelError:
            raise
        except Exception:  # noqa: BLE001  what the loader of TensorFlow 2 said is the reason
            pass
        raise InputError(
            f"TensorFlow {tf.__version__} cannot load {folder}: {explain(error)}",
            fix="save it again; an operator that is not registered belongs to a library that accel does not load",
        ) from error
    function = loaded.signatures[name]
    # Its objects hold the signature once more, and nothing says that it is the one of the main graph.
    check_graph(function.graph.as_graph_def(), f"signature {name!r} of {folder}")
    specs = function.structured_input_signature[1]
    ports = tuple(_port(n, spec.shape, spec.dtype) for n, spec in sorted(specs.items()))

    def call(*tensors: Any) -> dict[str, Any]:
        found = function(**{p.name: t for p, t in zip(ports, tensors, strict=True)})
        return named_tensors({n: found[n] for n in sorted(found)})

    gives = {n: t.dtype.name for n, t in function.structured_outputs.items()}
    return Opened(ports, call, loaded, signature=name, gives=gives)


def _open_main_graph(folder: Path, meta: Any, name: str) -> Opened:
    """Open a signature by the main graph alone, as TensorFlow 1 and servers do, its variables frozen.

    Objects beside the graph (an optimiser of another Keras, say) may be such that TensorFlow 2 cannot make them. What
    this runs is a part of what ``check_saved_model`` has checked.
    """
    tf = import_tensorflow()
    from tensorflow.python.framework import convert_to_constants

    with quiet(), tf.compat.v1.Session(graph=tf.Graph()) as session:
        loaded = tf.compat.v1.saved_model.load(session, list(meta.meta_info_def.tags), str(folder))
        signature = loaded.signature_def[name]
        nodes = sorted({node_of(t.name) for t in signature.outputs.values()})
        frozen = convert_to_constants.convert_variables_to_constants_from_session_graph(
            session, session.graph.as_graph_def(), nodes
        )
    check_graph(frozen, f"signature {name!r} of {folder}")
    inputs, outputs = ({n: t.name for n, t in sorted(part.items())} for part in (signature.inputs, signature.outputs))
    return _imported(frozen, inputs, outputs)


def _imported(definition: Any, inputs: Mapping[str, str], outputs: Mapping[str, str]) -> Opened:
    """Make a function of a graph; ``inputs`` and ``outputs`` are clients' names → tensors."""
    tf = import_tensorflow()
    with quiet():
        whole = tf.compat.v1.wrap_function(lambda: tf.graph_util.import_graph_def(definition, name=""), [])
        feeds, fetches = (
            [whole.graph.get_tensor_by_name(t if ":" in t else f"{t}:0") for t in names.values()]
            for names in (inputs, outputs)
        )
        function = whole.prune(feeds, fetches)
    ports = tuple(_port(n, t.shape, t.dtype) for n, t in zip(inputs, feeds, strict=True))

    def call(*tensors: Any) -> dict[str, Any]:
        return named_tensors(list(function(*tensors)), list(outputs))

    return Opened(ports, call, function)


def _serving_graph(folder: Path) -> Any:
    from google.protobuf.message import DecodeError
    from tensorflow.core.protobuf import saved_model_pb2

    file = folder / SAVED_MODEL
    with raised_as(
        InputError, (OSError, DecodeError), f"{file} is not a SavedModel, or truncated", fix="copy or save it again"
    ):
        model = saved_model_pb2.SavedModel.FromString(file.read_bytes())
    if not model.meta_graphs:
        raise InputError(f"{file} holds no graph: truncated, or no SavedModel", fix="copy or save it again")
    tagged = [m for m in model.meta_graphs if SERVE in m.meta_info_def.tags]
    return (tagged or list(model.meta_graphs))[0]


def choose_signature(folder: Path, names: Sequence[str], wanted: str | None) -> str:
    """Return the signature asked for, else ``serving_default``, else the only one.

    Raises:
        InputError: there is none; UsageError: there are several, or not that one.
    """
    if not names:
        raise InputError(
            f"{folder} has no signatures: nothing says which inputs and outputs clients see",
            fix="save it with tf.saved_model.save(model, folder, signatures=...), or a Keras model with model.export()",
        )
    if wanted is not None and wanted not in names:
        raise UsageError(
            f"{folder} has no signature {wanted!r}{nearest(wanted, names)}", fix=f"its signatures are {sorted(names)}"
        )
    if wanted is None and SIGNATURE not in names and len(names) > 1:
        raise UsageError(f"{folder} has several signatures: {sorted(names)}", fix="choose one with --signature NAME")
    return wanted or (SIGNATURE if SIGNATURE in names else names[0])


def _check_signature(signature: Any, what: str) -> None:
    tf = import_tensorflow()
    if not signature.inputs or not signature.outputs:
        lacking = "inputs" if not signature.inputs else "outputs"
        raise InputError(f"{what} has no {lacking}", fix="choose another with --signature NAME")
    for kind, tensors in (("input", signature.inputs), ("output", signature.outputs)):
        for name, info in sorted(tensors.items()):
            if info.WhichOneof("encoding") != "name":
                raise InputError(
                    f"{kind} {name!r} of {what} is a sparse or ragged tensor, which no target takes",
                    fix="save a signature that takes and returns dense tensors (to_tensor, tf.sparse.to_dense)",
                )
            check_dtype(tf.dtypes.as_dtype(info.dtype), f"{kind} {name!r} of {what}")


def _port(name: str, shape: Any, dtype: Any) -> Port:
    return Port(name, check_dtype(dtype, f"input {name!r}"), None if shape.rank is None else tuple(shape.as_list()))


# ---------------------------------------------------------------------------------------------------------------------
# Keras


@contextlib.contextmanager
def _bounded(path: Path) -> Iterator[None]:
    """End this process (SIGPROF) where reading a file takes more CPU time than its size explains.

    A damaged HDF5 file keeps libhdf5 in a loop that it never returns from, so nothing else would end it before the
    limit of the whole task.
    """
    signal.setitimer(signal.ITIMER_PROF, LEAST_CPU_S + path.stat().st_size / BYTES_PER_CPU_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)


def _load_keras(path: Path) -> Any:
    import_tensorflow()
    import keras

    with (
        raised_as(
            InputError,
            Exception,
            f"Keras cannot load {path}",
            fix="save it again with this version of Keras; a model with layers of its own, or with Lambda layers, "
            "which hold code, is given by a `file.py:factory`",
            say=explain,
        ),
        quiet(),
        _bounded(path),
    ):
        return keras.saving.load_model(str(path), compile=False, safe_mode=True)


def of_keras(model: Any) -> Opened:
    """Open a Keras model that knows its inputs; outputs have the names of a dict that it returns, or of its layers.

    Raises:
        InputError: an input that is not a dense tensor of numbers.
    """
    tf = import_tensorflow()
    import keras

    shape = _input_structure(model)
    if shape is None:
        raise InputError(
            f"the Keras model {model.name!r} was never built: it has no weights and nothing says what it takes",
            fix="call it once, or model.build(shape), before it is saved; a factory may return it with samples",
        )
    tensors = keras.tree.flatten(shape)
    for tensor in tensors:
        if tensor.sparse or getattr(tensor, "ragged", False):
            raise InputError(f"input {tensor.name!r} of the Keras model is sparse or ragged, which no target takes")
    ports = tuple(_port(t.name, tf.TensorShape(t.shape), tf.dtypes.as_dtype(t.dtype)) for t in tensors)
    names = getattr(model, "output_names", None) or [layer.name for layer in model.layers[-1:]]
    distinct = names if len(set(names)) == len(names) else None

    def call(*given: Any) -> dict[str, Any]:
        return named_tensors(model(keras.tree.pack_sequence_as(shape, list(given)), training=False), distinct)

    return Opened(ports, call, model)


# ---------------------------------------------------------------------------------------------------------------------
# What a factory returned


def open_made(made: FactoryResult, given: Sequence[str]) -> Opened:
    """Open what a factory returned.

    Args:
        given: inputs about which the user said something, or the source's; they take part though they have a default.

    Raises:
        InputError: an input that is not a dense tensor of numbers, or no inputs at all.
    """
    tf = import_tensorflow()
    model = made.module
    if _knows_inputs(model):
        opened = of_keras(model)
        ports = opened.ports
        if made.samples and len(ports) == 1:  # the samples' name, where Keras made one up
            ports = (dataclasses.replace(ports[0], name=next(iter(made.samples[0]))),)
        return Opened(ports, opened.call, model, made.samples)
    specs = _declared(model)
    if specs is None:
        wanted = list(made.samples[0]) if made.samples else _required(model, given)
        dtypes = {n: made.samples[0][n].dtype.name if made.samples else "float32" for n in wanted}
        # A 64-bit float sample is NumPy's default more often than a wish.
        ports = tuple(Port(n, "float32" if d == "float64" else d, None) for n, d in dtypes.items())
    else:
        ports = tuple(_port(n, s.shape, s.dtype) for n, s in specs.items())
    if not ports:
        raise InputError(f"the factory's {type(model).__name__} names no inputs", fix="give its parameters names")
    fixed = {"training": False} if "training" in _parameters(model) and not isinstance(model, tf.Module) else {}

    required = _required(model, given)
    names = {p.name for p in ports}
    whole = specs is None and len(required) == 1 and not names & set(required)

    def call(*tensors: Any) -> dict[str, Any]:
        parts = {p.name: t for p, t in zip(ports, tensors, strict=True)}
        if whole:  # the samples are the one argument, or the parts of the dict that it is
            return named_tensors(model(parts if len(parts) > 1 else tensors[0], **fixed))
        return named_tensors(model(**parts, **fixed))

    return Opened(ports, call, model, made.samples)


def input_names(model: Any, sample: Any) -> list[str]:
    """Return the names that samples may have, in order.

    A model of one argument takes a sample of other names as that argument, or as the dict that it is.
    """
    if _knows_inputs(model):
        names = required = [p.name for p in of_keras(model).ports]
    else:
        specs = _declared(model)
        names = list(_parameters(model)) if specs is None else list(specs)
        required = _required(model, ()) if specs is None else []
    own = isinstance(sample, Mapping) and len(required) == 1 and not set(sample) & set(names)
    return list(sample) if own and (len(sample) == 1 or not _knows_inputs(model)) else names


def _knows_inputs(model: Any) -> bool:
    import_tensorflow()
    import keras

    return isinstance(model, keras.Model) and _input_structure(model) is not None


def _input_structure(model: Any) -> Any:
    """Return a Keras model's inputs, nested as it takes them; None for a subclass that was never built."""
    for part in ("input", "inputs"):  # a Sequential model that was never called has the latter alone
        try:
            found = getattr(model, part)
        except (AttributeError, ValueError):
            continue
        if found is not None:
            return found[0] if part == "inputs" and len(found) == 1 else found
    return None


def _declared(model: Any) -> dict[str, Any] | None:
    """Return name → TensorSpec where a function has an input signature, else None.

    Raises:
        InputError: an input that is nested, sparse or ragged.
    """
    tf = import_tensorflow()
    if isinstance(model, tf.types.experimental.ConcreteFunction):
        args, kwargs = model.structured_input_signature
        specs = {s.name: s for s in args if hasattr(s, "name")} | dict(kwargs)
    elif getattr(model, "input_signature", None) is not None:
        specs = dict(zip(_parameters(model), model.input_signature, strict=False))
    else:
        return None
    for name, spec in specs.items():
        if not isinstance(spec, tf.TensorSpec):
            raise InputError(
                f"input {name!r} of the factory's function is a {type(spec).__name__}, which no target takes",
                fix="take dense tensors as parameters of their own, and nest or sparsify them inside",
            )
    return specs


def _parameters(model: Any) -> Mapping[str, inspect.Parameter]:
    for part in ("python_function", "call", "__call__"):
        function = getattr(model, part, None)
        if function is not None:
            found = inspect.signature(function).parameters
            return {n: p for n, p in found.items() if n != "self" and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)}
    return {}


def _required(model: Any, given: Sequence[str]) -> list[str]:
    found = _parameters(model)
    return [n for n, p in found.items() if p.default is p.empty or n in given]


# ---------------------------------------------------------------------------------------------------------------------
# Frozen graphs


def open_frozen(path: Path, choice: GraphChoice) -> Opened:
    """Open a frozen GraphDef; inputs and outputs not named are found: the placeholders, and the only end of the graph.

    Raises:
        InputError: no graph, corrupt, or with variables that were never frozen.
        UsageError: a tensor that it does not have, or several ends.
    """
    tf = import_tensorflow()
    definition = _read_graph(path)
    check_graph(definition, str(path))
    nodes = {n.name: n for n in definition.node}
    if variable := next((n for n in definition.node if n.op in VARIABLES), None):
        raise InputError(
            f"{path.name} is not frozen: node {variable.name!r} is a variable, whose value is not in the file",
            fix="freeze it with convert_variables_to_constants_v2, or give the SavedModel",
        )
    outputs = list(choice.outputs) or [_only_end(path, nodes)]
    for tensor in [*choice.inputs, *outputs]:
        if node_of(tensor) not in nodes:
            raise UsageError(f"{path.name} has no tensor {tensor!r}{nearest(node_of(tensor), nodes)}")
    inputs = list(choice.inputs) or _placeholders(nodes, outputs)
    if not inputs:
        raise InputError(f"{path.name} has no placeholder before {outputs}: it computes a constant")
    with raised_as(
        InputError,
        Exception,
        f"TensorFlow {tf.__version__} cannot import {path.name}",
        fix="name other --input-tensors and --output-tensors, or freeze the graph again",
        say=explain,
    ):
        return _imported(definition, *({client_name(t): t for t in names} for names in (inputs, outputs)))


def client_name(tensor: str) -> str:
    """Return what clients call a tensor of a graph: ``scores:0`` is ``scores``, ``split:1`` is ``split_1``."""
    node, _, index = tensor.partition(":")
    return node if index in ("", "0") else f"{node}_{index}"


def _read_graph(path: Path) -> Any:
    from google.protobuf.message import DecodeError
    from tensorflow.core.framework import graph_pb2

    with raised_as(
        InputError,
        (OSError, DecodeError),
        f"{path} is not a frozen graph, or truncated",
        fix="give a binary GraphDef, or copy it again",
    ):
        definition = graph_pb2.GraphDef.FromString(path.read_bytes())
    if not any(n.op for n in definition.node):
        raise InputError(f"{path} holds no graph: truncated, or no GraphDef", fix="copy or freeze it again")
    return definition


def _only_end(path: Path, nodes: Mapping[str, Any]) -> str:
    used = {node_of(i) for n in nodes.values() for i in n.input}
    ends = [name for name, n in nodes.items() if name not in used and n.op not in NO_OUTPUT]
    if len(ends) != 1:
        raise UsageError(
            f"{path.name} ends in {ends[:8] or 'nothing that computes'}: there is no one way to tell its outputs",
            fix="name them with --output-tensors",
        )
    return ends[0]


def _placeholders(nodes: Mapping[str, Any], outputs: Sequence[str]) -> list[str]:
    """Return the placeholders that the outputs depend on, in the order of the file."""
    reached = upstream(nodes, outputs)
    return [name for name, n in nodes.items() if name in reached and n.op == "Placeholder"]
