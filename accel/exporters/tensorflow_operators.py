"""Which operators of a TensorFlow file may run: decided from its graph alone, before TensorFlow loads it.

A graph is a program: its operators can read and write files and call Python. What runs is what the outputs need, the
initialisers, the restoring of the variables, and every function that these call. Of that, operators pass that are on
the lists below; an operator that a newer TensorFlow adds is refused until it is added here, unless it computes from
numbers alone. Files are read under ``variables/`` and ``assets/`` of the model only.

TensorFlow computes constants while it loads, for the shapes of functions that nothing calls too. So operators without
state must pass everywhere in the file. Those with state are never run for that: one that nothing calls, such as the
saving of variables, does not count.

This bounds what a graph is able to ask for. It does not find faults of TensorFlow's own in the operators that pass.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from accel.core.errors import InputError

INITIALISER = "__saved_model_init_op"
"""Signature whose only output initialises tables. Source: tensorflow/python/saved_model/constants.py."""
INITIALISERS = ("saved_model_main_op", "legacy_init_op", "table_initializer")
"""Collections of nodes that the loaders run. Source: loader_impl.py; monitored_session.py, default_local_init_op."""
LOADER_CALLS = ("get_slot", "get_slot_names")
"""Functions that TensorFlow calls on any object that has them, beside all whose names start with an underscore.

Source: tensorflow/python/checkpoint/util.py, serialize_slot_variables.
"""
CALLS = ("PartitionedCall", "StatefulPartitionedCall")
"""Operators whose inputs are the arguments of the function that they call."""
Files = frozenset[str]
"""Tensors that hold nothing but the path of the model's variables, or of one of its assets."""
NONE: Files = frozenset()


def _names(text: str) -> re.Pattern[str]:
    return re.compile("|".join(text.split()))


TAKES_TEXT = _names(r"""
    AsString Batch BatchFunction DataFormat(DimMap|VecPermute) Decode(AndCropJpeg|Base64|Bmp|CSV|Compressed|Gif|Image)
    Decode(JSONExample|Jpeg|PaddedRaw|Png|Raw|Wav|WebP) DenseTo(Dense|Sparse)SetOperation DeserializeManySparse
    DestroyTemporaryVariable Einsum Encode(Base64|Jpeg) (Ref)?Enter ExtractGlimpse(V2)? ExtractJpegShape Fingerprint
    GatherNd ImageProjectiveTransformV[23] InitializeTable LookupTable(Export|Find|Import|Insert|Size)
    (Audio|Image|Tensor)Summary(V2)? (Histogram|Merge|Scalar)Summary Parse(Sequence)?Example(V2)?
    ParseSingle(Sequence)?Example ParseTensor PartitionedCall PreventGradient RaggedCross RaggedTensorToTensor
    ReduceJoin (Static)?Regex(FullMatch|Replace) ScaleAndTranslate(Grad)?
    ScatterNd(Add|Max|Min|NonAliasingAdd|Sub|Update)? ShardedFile(name|spec) SparseCrossV2 SparseToSparseSetOperation
    String(Format|Join|Length|Lower|NGrams|Split|SplitV2|Strip|ToNumber|Upper) StringToHashBucket(Fast|Strong)? Substr
    TensorArray(Close|Concat|Gather|Read|Scatter|Size|Split|Write)(V2)? TensorArray(Pack|Unpack)
    TensorScatter(Add|Max|Min|Sub|Update) Unbatch Unicode(Decode|DecodeWithOffsets|Transcode)
    UniformQuantizedConvolution(Hybrid)? UnsortedSegmentJoin
    Xla(Conv|Dot)(V2)? Xla(Einsum|Gather|Scatter|Sharding) XlaSpmd(FullToShard|ShardToFull)Shape
""")
"""Operators without state that take text, as a tensor or as an attribute, and use it for no file, address or code.

Others that take text are refused: text is what names a file, as it does for ReadFile, ImmutableConst or DecodeProtoV2.
"""
LABELS = ("metadata", "deterministic")
"""Attributes of datasets that say how they are called and ordered."""
KEEPS_STATE = _names(r"""
    VarHandleOp ReadVariableOp Assign(Add|Sub)?VariableOp VarIsInitializedOp VariableShape Variable(V2)?
    TemporaryVariable DestroyResourceOp DisableCopyOnRead Resource(Gather(Nd)?|StridedSliceAssign)
    ResourceScatter(Add|Div|Max|Min|Mul|Sub|Update) ResourceScatterNd(Add|Max|Min|Sub|Update)
    (Anonymous)?HashTable HashTableV2 (Anonymous)?Mutable(DenseHashTable|HashTable(OfTensors)?)
    Mutable(DenseHashTable|HashTable(OfTensors)?)V2 InitializeTableV2
    LookupTable(Export|Find|Import|Insert|Remove|Size)V2
    If While Case StatefulPartitionedCall DeviceIndex Assert CheckNumerics(V2)? Print Empty GuaranteeConst
    TensorArray(V[23])? TensorArray(Close|Concat|Gather|Read|Scatter|Size|Split|Write)V3
    Random(Crop|Gamma|Poisson|PoissonV2|Shuffle|StandardNormal|Uniform|UniformInt) ParameterizedTruncatedNormal
    TruncatedNormal Multinomial SampleDistortedBoundingBox(V2)? NonDeterministicInts StatelessRandomGetAlg
    Stateful(RandomBinomial|StandardNormal(V2)?|TruncatedNormal|Uniform(FullInt|Int)?) RngSkip RngReadAndSkip
    CudnnRNN(V[23])?
""")
"""Operators with state that models need to serve: variables, tables, control flow, arrays and random numbers."""
FROM_FILE = {"Restore": 0, "RestoreSlice": 0, "RestoreV2": 0, "InitializeTableFromTextFileV2": 1}
"""Operators that read a file, and which of their inputs names it."""


def check_saved_model(folder: Path, meta: Any, signature: str) -> None:
    """Check what loading a SavedModel and calling one of its signatures runs.

    Args:
        meta: its MetaGraphDef.

    Raises:
        InputError: an operator that is refused, or a variable or asset outside the folder.
    """
    _check_paths(folder, meta)
    program = Program(meta.graph_def, str(folder))
    program.check_constants()
    # TensorFlow 2 loads objects and calls their functions; TensorFlow 1 and servers run nodes of the main graph.
    for name, files in _loaded_functions(meta, program.functions):
        program.check_function(name, files)
    program.check_run(_outputs(meta, signature))
    saver = meta.saver_def
    program.check_run([saver.restore_op_name], frozenset([_plain(saver.filename_tensor_name)]))
    program.check_run(_initialisers(meta), frozenset(_plain(a.tensor_info.name) for a in _assets(meta)))


def check_graph(graph: Any, what: str) -> None:
    """Check every node of a GraphDef, and the functions that they call.

    Raises:
        InputError: an operator that is refused.
    """
    program = Program(graph, what)
    program.check_constants()
    program.check_run(program.nodes)


class Program:
    """A GraphDef with its functions.

    Args:
        graph: the GraphDef.
        what: what it is called in errors.

    Raises:
        InputError: two nodes, or two functions, of one name.
    """

    def __init__(self, graph: Any, what: str) -> None:
        library = graph.library
        self.what = what
        self.nodes = {n.name: n for n in graph.node}
        self.functions = {f.signature.name: f for f in library.function}
        if len(self.nodes) < len(graph.node) or len(self.functions) < len(library.function):
            raise InputError(f"{what} has two nodes or two functions of one name", fix="save it again")
        self._gradients = {g.function_name: g.gradient_func for g in library.gradient}
        # TensorFlow may put a function in the place of another that says it computes the same.
        self._alike: dict[bytes, list[str]] = {}
        for name, function in self.functions.items():
            if interface := _text(function, "api_implements"):
                self._alike.setdefault(interface, []).append(name)

    def check_constants(self) -> None:
        """Check the operators without state, wherever they are: TensorFlow may compute them while it loads."""
        bodies = [(name, function.node_def) for name, function in self.functions.items()]
        for where, nodes in [("", self.nodes.values()), *bodies]:
            for node in nodes:
                self._check(node, where, None)

    def check_run(self, tensors: Iterable[str], files: Files = NONE) -> None:
        """Check the nodes of the main graph that these tensors or nodes need, and the functions that those call."""
        self._check_calls([("", upstream(self.nodes, tensors).values(), files | self._variables_with(files))])

    def _variables_with(self, files: Files) -> Files:
        """Return the reads of variables of the main graph that never hold anything but one of ``files``.

        TensorFlow 2 passes the path of an asset to its initialiser by way of such a variable.
        """
        assigned = [n for n in self.nodes.values() if n.op == "AssignVariableOp" and len(n.input) > 1]
        sets = [n for n in assigned if _plain(n.input[1]) in files]
        everywhere = [n for f in self.functions.values() for n in f.node_def] + list(self.nodes.values())
        found: set[str] = set()
        for name in {node_of(n.input[0]) for n in sets}:
            users = [n for n in self.nodes.values() if name in map(node_of, n.input)]
            reads = [n.name for n in users if n.op in ("ReadVariableOp", "VarIsInitializedOp")]
            variable = self.nodes.get(name)
            alike = [
                n for n in everywhere if variable and n.op == "VarHandleOp" and _resource(n) == _resource(variable)
            ]
            if len(alike) == 1 and alike[0] is variable and all(n.name in reads or n in sets for n in users):
                found |= set(reads)
        return frozenset(found)

    def check_function(self, name: str, files: Files = NONE) -> None:
        """Check a function, whose arguments ``files`` are paths of the model's own, and those that it calls."""
        self._check_calls([(name, self.functions[name].node_def, files)])

    def _check_calls(self, todo: list[tuple[str, Iterable[Any], Files]]) -> None:
        seen = set()
        while todo:
            where, nodes, files = todo.pop()
            for node in nodes:
                self._check(node, where, files)
                for name, given in self._called(node, where, files):
                    if (name, given) not in seen:
                        seen.add((name, given))
                        todo.append((name, self.functions[name].node_def, given))

    def _called(self, node: Any, where: str, files: Files) -> Iterator[tuple[str, Files]]:
        """Yield the functions that a node may call, with the arguments that are paths of the model's own."""
        names = {node.op} & set(self.functions)
        for value in node.attr.values():
            names |= set(_functions_in(value))
        for name in names:
            if name not in self.functions:
                raise self._refusal(node, where, f"calls a function {name!r} that the file lacks")
            given = NONE
            if node.op in CALLS and "f" in node.attr and node.attr["f"].func.name == name:
                given = self._passed(node, name, files)
            yield name, given
            interface = _text(self.functions[name], "api_implements")
            for other in [self._gradients.get(name), *self._alike.get(interface or b"", ())]:
                if other in self.functions and other != name:
                    yield other, NONE

    def _passed(self, node: Any, name: str, files: Files) -> Files:
        inputs = [i for i in node.input if not i.startswith("^")]
        arguments = self.functions[name].signature.input_arg
        if len(inputs) != len(arguments) or any(a.number_attr or a.type_list_attr for a in arguments):
            return NONE
        return frozenset(a.name for a, i in zip(arguments, inputs, strict=True) if _plain(i) in files)

    def _check(self, node: Any, where: str, files: Files | None) -> None:
        """Check one node; ``files`` is None where it does not run, unless TensorFlow computes it as a constant."""
        from tensorflow.python.framework import op_def_registry

        if node.op in self.functions:
            return
        operator = op_def_registry.get(node.op)
        if operator is None:
            raise self._refusal(node, where, "is not registered: it belongs to a library that accel does not load")
        if not operator.is_stateful:
            if _takes_text(operator) and not TAKES_TEXT.fullmatch(node.op):
                raise self._refusal(node, where, "can read files, call code, or do what accel does not know of")
        elif files is None or KEEPS_STATE.fullmatch(node.op):
            return
        elif node.op in FROM_FILE:
            if not {_plain(name) for name in node.input[FROM_FILE[node.op] :][:1]} & files:
                raise self._refusal(
                    node, where, "reads a file that is neither the model's variables nor an asset of it"
                )
        elif node.op != "PrintV2" or _text(node, "output_stream") not in (None, b"stderr"):
            raise self._refusal(node, where, "touches files, calls code, or keeps a state that serving does not need")

    def _refusal(self, node: Any, where: str, why: str) -> InputError:
        place = f" of function {where!r}" if where else ""
        return InputError(
            f"{self.what} has the operator {node.op} (node {node.name!r}{place}), which {why}: accel never runs "
            "such a graph",
            fix="save the model without it; a table's file must be saved as an asset (tf.lookup.TextFileInitializer); "
            "code of your own can be given as a `file.py:factory`",
        )


def _text(node: Any, attribute: str) -> bytes | None:
    """Return a text attribute of a node or function, or None where it does not have it."""
    return node.attr[attribute].s if attribute in node.attr else None


def _resource(node: Any) -> bytes:
    """Return the name under which a variable is found; two nodes of one name are one variable."""
    return _text(node, "shared_name") or node.name.encode()


def _takes_text(operator: Any) -> bool:
    from tensorflow.core.framework.types_pb2 import DT_STRING, DT_STRING_REF

    free = (a for a in operator.attr if not a.HasField("allowed_values") and a.name not in LABELS)
    return any(i.type in (DT_STRING, DT_STRING_REF) for i in operator.input_arg) or any(
        a.type in ("string", "list(string)") for a in free
    )


def _functions_in(value: Any) -> Iterator[str]:
    """Yield the functions that an attribute names, and those that their own attributes name."""
    todo = [value]
    while todo:
        found = todo.pop()
        for function in [found.func, *found.list.func]:
            if function.name:
                yield function.name
            todo += function.attr.values()


def node_of(tensor: str) -> str:
    """Return the node that makes a tensor (``x:0``) or is waited for (``^x``)."""
    return tensor.removeprefix("^").partition(":")[0]


def upstream(nodes: Mapping[str, Any], tensors: Iterable[str]) -> dict[str, Any]:
    """Return the nodes that these tensors or nodes need, by name."""
    reached: dict[str, Any] = {}
    todo = [node_of(t) for t in tensors]
    while todo:
        name = todo.pop()
        if name in nodes and name not in reached:
            reached[name] = nodes[name]
            todo += [node_of(i) for i in nodes[name].input]
    return reached


def _plain(tensor: str) -> str:
    return tensor.removesuffix(":0")


# ---------------------------------------------------------------------------------------------------------------------
# What a loader runs


def _outputs(meta: Any, signature: str) -> list[str]:
    return [t.name for t in meta.signature_def[signature].outputs.values()]


def _initialisers(meta: Any) -> list[str]:
    from tensorflow.core.framework import variable_pb2

    found = _outputs(meta, INITIALISER) if INITIALISER in meta.signature_def else []
    collections = dict(meta.collection_def)
    for key in INITIALISERS:
        found += collections[key].node_list.value if key in collections else ()
    variables = collections["local_variables"].bytes_list.value if "local_variables" in collections else ()
    return [*found, *(variable_pb2.VariableDef.FromString(value).initializer_name for value in variables)]


def _loaded_functions(meta: Any, functions: Mapping[str, Any]) -> Iterator[tuple[str, Files]]:
    """Yield the functions that TensorFlow calls on the objects that it loads, with the arguments that are assets.

    It finds them by name, on whatever object has that name: ``_initialize``, ``_restore_from_tensors`` and so on.
    """
    objects = meta.object_graph_def
    called = set()
    for node in objects.nodes:
        users_own = node.WhichOneof("kind") == "user_object" and not node.registered_name
        for edge in [*node.children, *node.dependencies]:
            users_name = users_own or re.fullmatch(r"(trace|capture)_\d+", edge.local_name)
            if not users_name or edge.local_name.startswith("_") or edge.local_name in LOADER_CALLS:
                called.add(edge.node_id)
        for saveable in node.saveable_objects.values():
            called |= {saveable.save_function, saveable.restore_function}
    nodes = dict(enumerate(objects.nodes))
    for number in called & set(nodes):
        bare = nodes[number].bare_concrete_function.concrete_function_name
        for name in [*nodes[number].function.concrete_functions, *([bare] if bare else [])]:
            if name in functions:
                captured = [nodes.get(i) for i in objects.concrete_functions[name].bound_inputs]
                arguments = functions[name].signature.input_arg
                last = arguments[len(arguments) - len(captured) :]
                yield name, frozenset(a.name for a, n in zip(last, captured, strict=False) if n and _is_asset(n))


def _is_asset(node: Any) -> bool:
    return node.WhichOneof("kind") == "asset" and not node.registered_name and not node.children


# ---------------------------------------------------------------------------------------------------------------------
# What a loader reads


def _assets(meta: Any) -> list[Any]:
    from tensorflow.core.protobuf import meta_graph_pb2

    if meta.asset_file_def or "saved_model_assets" not in meta.collection_def:
        return list(meta.asset_file_def)
    values = meta.collection_def["saved_model_assets"].any_list.value
    return [meta_graph_pb2.AssetFileDef.FromString(value.value) for value in values]


def _check_paths(folder: Path, meta: Any) -> None:
    root = folder.resolve()
    named = [(root / "assets", a.filename) for a in _assets(meta)]
    named += [(root / "variables", f.name) for f in (root / "variables").glob("*")]
    for parent, name in named:
        try:
            inside = (parent / name).resolve().is_relative_to(parent)
        except (OSError, ValueError, RuntimeError):  # a loop of links, or a name that no file can have
            inside = False
        if not inside:
            raise InputError(
                f"{folder} reads {name!r}, which leaves its {parent.name}/: accel reads nothing else of a model",
                fix="save the model again; where the folder holds links to files elsewhere, copy it with `cp -rL`",
            )
