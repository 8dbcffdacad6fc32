"""TensorFlow files that read, write or call what they should not are refused before they do; ordinary ones pass."""

import shutil
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from accel import exporters
from accel.core.errors import InputError
from accel.core.values import GraphChoice
from accel.exporters.sources import recognise
from accel.exporters.tensorflow_operators import check_graph
from accel.exporters.tensorflow_runtime import import_tensorflow

Hostile = Callable[[Any, Path], Any]
"""Takes the model's input and a folder with ``secret`` in it, and gives a number that depends on the operator."""


def describe(path: Path, **choice: Any) -> Any:
    return exporters.describe(recognise(str(path), graph=GraphChoice(**choice)))


def refuses(path: Path, match: str, **choice: Any) -> None:
    with pytest.raises(InputError, match=match) as told:
        describe(path, **choice)
    assert told.value.fix


def save(module: Any, folder: Path, signatures: Any = None) -> Path:
    tf = import_tensorflow()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        tf.saved_model.save(module, str(folder), signatures=signatures)
    return folder


def module(body: Callable[[Any], Any]) -> Any:
    """Return a tf.Module whose call takes floats of shape (None, 2) and gives ``y``."""
    tf = import_tensorflow()
    made = tf.Module()
    made.__call__ = tf.function(
        lambda x: {"y": body(x)}, input_signature=[tf.TensorSpec((None, 2), tf.float32, "x")], autograph=False
    )
    return made


def edit(folder: Path, change: Callable[[Any], None]) -> Path:
    """Change the only graph of a SavedModel in place."""
    from tensorflow.core.protobuf import saved_model_pb2

    file = folder / "saved_model.pb"
    model = saved_model_pb2.SavedModel()
    model.ParseFromString(file.read_bytes())
    change(model.meta_graphs[0])
    file.write_bytes(model.SerializeToString())
    return folder


@pytest.fixture
def area(tmp_path: Path) -> Path:
    """A folder with a line of text, and a checkpoint that belongs to another model."""
    tf = import_tensorflow()
    (tmp_path / "secret").write_text("root:x:0:0\n")
    tf.raw_ops.SaveV2(
        prefix=str(tmp_path / "other"), tensor_names=["v"], shape_and_slices=[""], tensors=[tf.constant([7.0, 7.0])]
    )
    return tmp_path


def _after(operation: Any) -> Any:
    tf = import_tensorflow()
    with tf.control_dependencies([operation]):
        return tf.constant(1.0)


def _print(x: Any, area: Path) -> Any:
    tf = import_tensorflow()
    return _after(tf.print(tf.shape(x), output_stream=f"file://{area}/mark"))


def _save(x: Any, area: Path) -> Any:
    tf = import_tensorflow()
    names = {"tensor_names": ["x"], "shape_and_slices": [""]}
    return _after(tf.raw_ops.SaveV2(prefix=f"{area}/mark", tensors=[x], **names))


def _merge(x: Any, area: Path) -> Any:
    tf = import_tensorflow()
    paths = {"checkpoint_prefixes": [f"{area}/other"], "destination_prefix": f"{area}/mark"}
    return _after(tf.raw_ops.MergeV2Checkpoints(delete_old_dirs=False, **paths))


def _lines(x: Any, area: Path) -> Any:
    tf = import_tensorflow()
    data = tf.raw_ops.TextLineDataset(filenames=f"{area}/secret", compression_type="", buffer_size=1)
    shape = {"output_types": [tf.string], "output_shapes": [()]}
    line = tf.raw_ops.DatasetToSingleElement(dataset=data, **shape)[0]
    return tf.cast(tf.strings.length(line), tf.float32)


def _records(x: Any, area: Path) -> Any:
    tf = import_tensorflow()
    data = tf.data.Dataset.from_tensors("x")._variant_tensor
    return _after(tf.raw_ops.DatasetToTFRecord(input_dataset=data, filename=f"{area}/mark", compression_type=""))


def _table(x: Any, area: Path) -> Any:
    tf = import_tensorflow()
    table = tf.raw_ops.HashTableV2(key_dtype=tf.string, value_dtype=tf.int64)
    fill = tf.raw_ops.InitializeTableFromTextFileV2(
        table_handle=table, filename=f"{area}/secret", key_index=-2, value_index=-1
    )
    with tf.control_dependencies([fill]):
        return tf.cast(tf.raw_ops.LookupTableSizeV2(table_handle=table), tf.float32)


def _memory(x: Any, area: Path) -> Any:
    tf = import_tensorflow()
    return tf.raw_ops.ImmutableConst(dtype=tf.uint8, shape=[4], memory_region_name=f"{area}/secret")


def _immutable(x: Any, area: Path) -> Any:
    tf = import_tensorflow()
    return tf.cast(tf.reduce_sum(_memory(x, area)), tf.float32)


def _restore(x: Any, area: Path) -> Any:
    tf = import_tensorflow()
    return tf.raw_ops.RestoreV2(prefix=f"{area}/other", tensor_names=["v"], shape_and_slices=[""], dtypes=[tf.float32])[
        0
    ]


def _read(x: Any, area: Path) -> Any:
    tf = import_tensorflow()
    return tf.cast(tf.strings.length(tf.io.read_file(f"{area}/secret")), tf.float32)


def _write(x: Any, area: Path) -> Any:
    tf = import_tensorflow()
    return _after(tf.io.write_file(f"{area}/mark", "x"))


def _python(x: Any, area: Path) -> Any:
    tf = import_tensorflow()
    return tf.reshape(tf.py_function(lambda: (area / "mark").write_text("x") * 1.0, [], tf.float32), [])


def _numpy(x: Any, area: Path) -> Any:
    tf = import_tensorflow()
    code = lambda: np.float32((area / "mark").write_text("x"))  # noqa: E731
    return tf.reshape(tf.numpy_function(code, [], tf.float32), [])


def _unigrams(x: Any, area: Path) -> Any:
    tf = import_tensorflow()
    options = {"num_true": 1, "num_sampled": 1, "unique": False, "range_max": 1, "vocab_file": f"{area}/vocabulary"}
    (area / "vocabulary").write_text("a,1\n")
    return tf.raw_ops.FixedUnigramCandidateSampler(true_classes=[[0]], **options)[2][0]


ATTACKS: dict[str, Hostile] = {
    "PrintV2": _print,
    "SaveV2": _save,
    "MergeV2Checkpoints": _merge,
    "TextLineDataset": _lines,
    "DatasetToTFRecord": _records,
    "InitializeTableFromTextFileV2": _table,
    "ImmutableConst": _immutable,
    "RestoreV2": _restore,
    "ReadFile": _read,
    "WriteFile": _write,
    "EagerPyFunc": _python,
    "PyFunc": _numpy,
    "FixedUnigramCandidateSampler": _unigrams,
}


def _cond(hostile: Hostile, x: Any, area: Path) -> Any:
    tf = import_tensorflow()
    return tf.cond(tf.size(x) >= 0, lambda: x + hostile(x, area), lambda: x)


def _while(hostile: Hostile, x: Any, area: Path) -> Any:
    tf = import_tensorflow()
    step = lambda i, y: (i + 1, tf.ensure_shape(y + hostile(x, area), x.shape))  # noqa: E731
    return tf.while_loop(lambda i, y: i < 1, step, (0, x))[1]


def _called(hostile: Hostile, x: Any, area: Path) -> Any:
    tf = import_tensorflow()
    return tf.function(lambda x: x + hostile(x, area), autograph=False)(x)


@pytest.mark.parametrize("name", ATTACKS)
def test_a_hostile_operator_of_a_saved_model_never_runs(area: Path, name: str) -> None:
    made = module(lambda x: x + ATTACKS[name](x, area))
    saved = save(made, area / "saved")
    refuses(saved, f"operator ({name}|TensorDataset) ")
    assert not list(area.glob("mark*"))


@pytest.mark.parametrize("name", ATTACKS)
@pytest.mark.parametrize("place", ["top", "library"])
def test_a_hostile_operator_of_a_frozen_graph_never_runs(area: Path, name: str, place: str) -> None:
    def body(x: Any) -> Any:
        return _called(ATTACKS[name], x, area) if place == "library" else x + ATTACKS[name](x, area)

    made = module(body)
    graph = made.__call__.get_concrete_function().graph.as_graph_def()
    (area / "g.pb").write_bytes(graph.SerializeToString())
    refuses(area / "g.pb", f"operator ({name}|TensorDataset) ", outputs=("Identity",))
    assert not list(area.glob("mark*"))


@pytest.mark.parametrize("place", [_cond, _while, _called])
@pytest.mark.parametrize("name", ["PrintV2", "TextLineDataset", "ReadFile"])
def test_branches_loops_and_functions_are_searched(area: Path, name: str, place: Callable[..., Any]) -> None:
    saved = save(module(lambda x: place(ATTACKS[name], x, area)), area / "saved")
    refuses(saved, f"operator {name} .*function")
    assert not list(area.glob("mark*"))


@pytest.mark.parametrize(
    "name",
    [
        *(
            "DecodeProtoV2",
            "DatasetFromGraph",
            "PyFuncStateless",
            "XlaCallModule",
            "XlaCustomCallV2",
            "SnapshotDatasetV2",
        ),
        *("CacheDataset", "DebugIdentity", "LoadAndRemapMatrix", "MatchingFiles", "InitializeTableFromTextFile"),
        *("Abort", "Timestamp", "_Send", "OfANewerTensorFlow"),
    ],
)
def test_what_is_not_listed_is_refused(name: str) -> None:
    import_tensorflow()
    from tensorflow.core.framework import graph_pb2

    graph = graph_pb2.GraphDef()
    graph.node.add(name="n", op=name)
    with pytest.raises(InputError, match=f"g has the operator {name} "):
        check_graph(graph, "g")


# ---------------------------------------------------------------------------------------------------------------------
# What a loader runs and reads


class Resource:
    """Makes a TrackableResource whose functions do what they are told."""

    def __new__(cls, create: Callable[[], Any], start: Callable[[], Any]) -> Any:
        tf = import_tensorflow()

        class FactoryResult(tf.saved_model.experimental.TrackableResource):  # type: ignore[misc]
            def _create_resource(self) -> Any:
                create()
                return tf.raw_ops.HashTableV2(key_dtype=tf.string, value_dtype=tf.int64)

            def _initialize(self) -> None:
                start()

        return FactoryResult()


@pytest.mark.parametrize("part", ["create", "start"])
def test_initialisers_are_searched(area: Path, part: str) -> None:
    tf = import_tensorflow()
    made = module(lambda x: x * 2)

    def write() -> None:
        if not tf.executing_eagerly():
            tf.print("x", output_stream=f"file://{area}/mark")

    made.table = Resource(write if part == "create" else lambda: None, write if part == "start" else lambda: None)
    made.handle = made.table.resource_handle
    saved = save(made, area / "saved")
    refuses(saved, "operator PrintV2 .*function")
    assert not (area / "mark").exists()


@pytest.mark.parametrize("name", ["_restore_from_tensors", "_initialize", "get_slot_names"])
def test_functions_that_a_loader_finds_by_name_are_searched(area: Path, name: str) -> None:
    tf = import_tensorflow()
    made = module(lambda x: x * 2)
    made.idle = tf.function(lambda x: _print(x, area), input_signature=[tf.TensorSpec((None,), tf.float32)])
    made.idle.get_concrete_function()
    saved = save(made, area / "saved", made.__call__)
    assert describe(saved).kind == "savedmodel"  # nothing calls it

    def rename(meta: Any) -> None:
        for node in meta.object_graph_def.nodes:
            for edge in node.children:
                edge.local_name = name if edge.local_name == "idle" else edge.local_name

    refuses(edit(saved, rename), "operator PrintV2 .*idle|operator PrintV2 .*function")
    assert not (area / "mark").exists()


def test_a_function_that_nothing_calls_counts_where_loading_computes_it(area: Path) -> None:
    tf = import_tensorflow()
    signature = [tf.TensorSpec((None,), tf.float32)]
    made = module(lambda x: x * 2)
    made.idle = tf.function(lambda x: x + _write(x, area), input_signature=signature)
    made.records = tf.function(lambda x: x + _records(x, area), input_signature=signature)
    for function in (made.idle, made.records):
        function.get_concrete_function()
    assert describe(save(made, area / "idle", made.__call__)).kind == "savedmodel"
    (area / "five").write_text("5")

    def shaped(x: Any) -> Any:
        return tf.reshape(x, [tf.strings.to_number(tf.io.read_file(f"{area}/five"), tf.int32), -1])

    made.shaped = tf.function(shaped, input_signature=signature)
    made.shaped.get_concrete_function()
    refuses(save(made, area / "shaped", made.__call__), "operator ReadFile")


def test_the_signature_among_the_objects_is_searched_too(area: Path) -> None:
    tf = import_tensorflow()
    made = module(lambda x: x * 2)
    spec = tf.TensorSpec((None, 2), tf.float32, "x")
    signatures = {
        "serving_default": made.__call__.get_concrete_function(),
        "other": tf.function(lambda x: {"y": x + _print(x, area)}).get_concrete_function(spec),
    }
    saved = save(made, area / "saved", signatures)
    assert describe(saved).outputs[0].name == "y"
    refuses(saved, "operator PrintV2 ", signature="other")

    def swap(meta: Any) -> None:
        names = {"serving_default": "other", "other": "serving_default"}
        for node in meta.object_graph_def.nodes:
            for edge in node.children:
                edge.local_name = names.get(edge.local_name, edge.local_name)

    refuses(edit(saved, swap), "operator PrintV2 ")
    assert not (area / "mark").exists()


def _gradient_graph(area: Path) -> Any:
    """A graph that computes a gradient, by a function that the file names."""
    tf = import_tensorflow()
    spec = tf.TensorSpec((), tf.float32, "x")
    forward = tf.function(lambda x: x * 2).get_concrete_function(spec)
    backward = tf.function(lambda x, dy: dy + _print(x, area)).get_concrete_function(spec, spec)
    with tf.Graph().as_default() as graph:
        tf.compat.v1.placeholder(tf.float32, (), "x")
    definition = graph.as_graph_def()
    definition.library.function.add().CopyFrom(forward.function_def)
    definition.library.function.add().CopyFrom(backward.function_def)
    names = [f.signature.name for f in definition.library.function]
    definition.library.gradient.add(function_name=names[0], gradient_func=names[1])
    node = definition.node.add(name="y", op="SymbolicGradient", input=["x", "x"])
    node.attr["Tin"].list.type.extend([1, 1])
    node.attr["Tout"].list.type.append(1)
    node.attr["f"].func.name = names[0]
    return definition


def test_gradients_and_functions_that_stand_in_are_searched(area: Path) -> None:
    definition = _gradient_graph(area)
    (area / "g.pb").write_bytes(definition.SerializeToString())
    refuses(area / "g.pb", "operator PrintV2 ")
    node = definition.node[-1]
    forward, backward = definition.library.function
    del definition.library.gradient[:]
    node.op, node.input[:] = "PartitionedCall", ["x"]
    del node.attr["Tin"].list.type[1:]
    (area / "g.pb").write_bytes(definition.SerializeToString())
    assert describe(area / "g.pb").kind == "graphdef"
    for function in (forward, backward):
        function.attr["api_implements"].s = b"same"
    (area / "g.pb").write_bytes(definition.SerializeToString())
    refuses(area / "g.pb", "operator PrintV2 ")


def _vocabulary(area: Path) -> Path:
    """A SavedModel with a table that is filled from an asset."""
    tf = import_tensorflow()
    (area / "words").write_text("1\n2\n3\n")
    made = tf.Module()
    table = tf.lookup.TextFileInitializer(str(area / "words"), tf.string, -2, tf.int64, -1)
    made.table = tf.lookup.StaticHashTable(table, -1)
    made.__call__ = tf.function(
        lambda x: {"y": made.table.lookup(tf.strings.as_string(x))},
        input_signature=[tf.TensorSpec((None, 2), tf.int32, "x")],
    )
    return save(made, area / "saved")


def test_assets_are_read_where_they_belong(area: Path) -> None:
    saved = _vocabulary(area)
    shutil.move(area / "words", area / "gone")
    answer = exporters.load(describe(saved)).run({"x": np.array([[1, 3]], np.int32)})
    assert answer["y"].tolist() == [[0, 2]]
    for name in ("../../secret", str(area / "secret"), "../variables/variables.index"):
        copy = shutil.copytree(saved, area / "copy", dirs_exist_ok=True)
        refuses(edit(copy, lambda meta, name=name: _rename_asset(meta, name)), "leaves its assets/")
    linked = shutil.copytree(saved, area / "linked")
    (linked / "assets" / "words").unlink()
    (linked / "assets" / "words").symlink_to(area / "secret")
    refuses(linked, "leaves its assets/")
    linked = shutil.copytree(saved, area / "variables")
    shutil.move(linked / "variables", area / "elsewhere")
    (linked / "variables").symlink_to(area / "elsewhere")
    refuses(linked, "leaves its variables/")


def _rename_asset(meta: Any, name: str) -> None:
    meta.asset_file_def[0].filename = name


def test_an_initialiser_reads_its_asset_and_no_other_file(area: Path) -> None:
    """The initialiser's argument is an asset; the node takes another text."""

    def turn(meta: Any) -> None:
        for function in meta.graph_def.library.function:
            for node in function.node_def:
                if node.op == "InitializeTableFromTextFileV2":
                    path = function.node_def.add(name="path", op="Const")
                    path.attr["dtype"].type = 7
                    path.attr["value"].tensor.dtype = 7
                    path.attr["value"].tensor.tensor_shape.SetInParent()
                    path.attr["value"].tensor.string_val.append(str(area / "secret").encode())
                    node.input[1] = "path:output:0"

    refuses(
        edit(_vocabulary(area), turn), "InitializeTableFromTextFileV2 .* neither the model's variables nor an asset"
    )


# ---------------------------------------------------------------------------------------------------------------------
# TensorFlow 1


def _first(area: Path, change: Callable[[Any], None] = lambda meta: None, *, local: bool = False) -> Path:
    """A SavedModel as TensorFlow 1 wrote them: variables, a table from an asset, and a saver in the main graph."""
    tf = import_tensorflow()
    v1 = tf.compat.v1
    (area / "words").write_text("1\n2\n3\n")
    with warnings.catch_warnings(), tf.Graph().as_default(), v1.Session() as session:
        warnings.simplefilter("ignore")
        x = v1.placeholder(tf.float32, (None, 2), "x")
        weight = v1.get_variable("v", initializer=tf.constant([1.0, 2.0]), use_resource=True)
        asset = tf.constant(str(area / "words"))
        v1.add_to_collection(v1.GraphKeys.ASSET_FILEPATHS, asset)
        table = tf.lookup.StaticHashTable(tf.lookup.TextFileInitializer(asset, tf.string, -2, tf.int64, -1), -1)
        y = x * weight + tf.cast(table.lookup(tf.constant("2")), tf.float32)
        if local:
            y += v1.get_variable(
                "local",
                initializer=lambda: _lines(x, area),
                collections=[v1.GraphKeys.LOCAL_VARIABLES],
                use_resource=True,
            )
        session.run([v1.global_variables_initializer(), v1.tables_initializer()])
        builder = v1.saved_model.Builder(str(area / "first"))
        info = v1.saved_model.utils.build_tensor_info
        signature = v1.saved_model.signature_def_utils.build_signature_def({"x": info(x)}, {"y": info(y)}, "predict")
        builder.add_meta_graph_and_variables(
            session,
            ["serve"],
            signature_def_map={"serving_default": signature},
            assets_collection=v1.get_collection(v1.GraphKeys.ASSET_FILEPATHS),
            main_op=None if local else v1.tables_initializer(),
        )
        builder.save()
    return edit(area / "first", change)


def test_a_model_of_tensorflow_1_passes(area: Path) -> None:
    saved = _first(area)
    answer = exporters.load(describe(saved)).run({"x": np.ones((1, 2), np.float32)})
    assert answer["y"].tolist() == [[2.0, 3.0]]


def test_a_variable_that_is_initialised_from_a_file_is_refused(area: Path) -> None:
    refuses(_first(area, local=True), "operator (TextLineDataset|DatasetToSingleElement) ")


def test_restoring_reads_the_models_own_variables(area: Path) -> None:
    def turn(meta: Any) -> None:
        nodes = {n.name: n for n in meta.graph_def.node}
        path = meta.graph_def.node.add(name="path", op="Const")
        path.CopyFrom(nodes["save/Const"] if nodes["save/Const"].op == "Const" else nodes["save/filename/input"])
        path.name = "path"
        path.attr["value"].tensor.string_val[:] = [str(area / "other").encode()]
        nodes["save/RestoreV2"].input[0] = "path"

    refuses(_first(area, turn), "RestoreV2 .* neither the model's variables nor an asset")


# ---------------------------------------------------------------------------------------------------------------------
# Ordinary models pass


def _dense() -> Any:
    from keras import Input, Sequential, layers

    image = [layers.Conv2D(4, 3), layers.BatchNormalization(), layers.Flatten(), layers.Dropout(0.5), layers.Dense(3)]
    return Sequential([Input((8, 8, 3), name="x"), *image])


def _recurrent() -> Any:
    from keras import Input, Sequential, layers

    steps = [layers.Embedding(30, 4), layers.LSTM(4, return_sequences=True), layers.GRU(4), layers.Dense(2)]
    return Sequential([Input((6,), dtype="int32", name="x"), *steps])


def _lookup() -> Any:
    from keras import Input, Model, layers

    x = Input((6,), dtype="int64", name="x")
    return Model(x, layers.Embedding(10, 4)(layers.IntegerLookup(vocabulary=[3, 4, 5])(x)))


def _attention() -> Any:
    from keras import Input, Model, layers

    x = Input((6, 8), name="x")
    noisy = layers.GaussianNoise(0.1)(layers.LayerNormalization()(x))
    return Model(x, layers.MultiHeadAttention(2, 4)(noisy, noisy))


@pytest.mark.parametrize("make", [_dense, _recurrent, _lookup, _attention])
@pytest.mark.parametrize("how", ["export", "save", "keras"])
def test_ordinary_models_of_keras_pass(tmp_path: Path, make: Callable[[], Any], how: str) -> None:
    import_tensorflow()
    model = make()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if how == "export":
            model.export(str(tmp_path / "m"), verbose=False)
        elif how == "keras":
            model.save(tmp_path / "m.keras")
        else:
            save(model, tmp_path / "m")
    source = describe(tmp_path / ("m.keras" if how == "keras" else "m"))
    shape = [d if isinstance(d, int) else 1 for d in source.inputs[0].dims]
    assert exporters.load(source).run({source.inputs[0].name: np.ones(shape, source.inputs[0].dtype)})


def test_strings_tables_loops_and_random_numbers_pass(area: Path) -> None:
    tf = import_tensorflow()
    import keras

    text = keras.layers.TextVectorization(vocabulary=["1", "2"], output_sequence_length=3)
    words = keras.layers.StringLookup(vocabulary=["1", "2"])
    counts = tf.lookup.experimental.MutableHashTable(tf.int64, tf.float32, 0.0)
    counts.insert(tf.constant([1], tf.int64), [3.0])
    steps = tf.Variable(0)

    def body(x: Any) -> Any:
        steps.assign_add(1)
        tf.debugging.assert_all_finite(x, "finite")
        tf.print("a line", output_stream=sys.stderr)
        found = tf.strings.as_string(tf.cast(x[:, 0], tf.int32))
        tokens = tf.reduce_sum(tf.cast(text(found) + words(found)[:, None], tf.float32), 1)
        looped = tf.while_loop(lambda i, y: i < 3, lambda i, y: (i + 1, y * 2), (0, x))[1]
        mapped = tf.map_fn(lambda row: tf.cond(tf.reduce_sum(row) > 0, lambda: row, lambda: -row), looped)
        noise = tf.random.uniform((2,)) + tf.random.stateless_normal((2,), [1, 2])
        return mapped + 0 * noise + (tokens + counts.lookup(tf.cast(x[:, 0], tf.int64)))[:, None]

    made = module(body)
    made.parts = [text, words, counts, steps]
    saved = save(made, area / "saved")
    assert exporters.load(describe(saved)).run({"x": np.ones((1, 2), np.float32)})["y"].shape == (1, 2)
