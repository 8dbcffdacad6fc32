"""TensorFlow sources of every kind: described, run and exported as TensorFlow answers; what is broken is told."""

import signal
import subprocess
import sys
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from accel import exporters
from accel.core import processes
from accel.core.errors import AccelError, InputError, StageError, UsageError
from accel.core.values import GraphChoice, ModelSource
from accel.exporters.check import reference_points
from accel.exporters.sources import quick_key, recognise
from accel.exporters.tensorflow_runtime import import_tensorflow

FACTORY = """
import keras
import numpy as np
import tensorflow as tf

def text():
    ids = keras.Input((None,), dtype="int32", name="input_ids")
    mask = keras.Input((None,), dtype="int32", name="attention_mask")
    seen = keras.ops.cast(keras.ops.expand_dims(mask, -1), "float32")
    hidden = keras.layers.Dense(8, activation="relu")(keras.layers.Embedding(50, 4)(ids)) * seen
    pooled = keras.ops.sum(hidden, axis=1)
    return keras.Model([ids, mask], {"start": keras.layers.Dense(1)(hidden)[..., 0], "pooled": pooled})

class Scale(tf.Module):
    def __init__(self):
        self.weight = tf.Variable(tf.random.normal((4, 3)))

    @tf.function(input_signature=[tf.TensorSpec((None, 4), tf.float32)])
    def __call__(self, x):
        return {"y": x @ self.weight}

def function():
    scale = Scale()
    call = scale.__call__
    call.keep = scale
    return call

def sampled():
    weight = tf.Variable(tf.random.normal((4, 3)))

    @tf.function
    def net(x, scale=None):
        return x @ weight, tf.reduce_sum(x, 1)

    net.keep = weight
    return net, [{"x": np.ones((2, 4))}, {"x": np.zeros((5, 4))}]

def recurrent():
    return keras.Sequential([keras.Input((6, 3), name="x"), keras.layers.LSTM(4), keras.layers.Dense(2)])

def scalar():
    @tf.function(input_signature=[tf.TensorSpec((None, 4), tf.float32), tf.TensorSpec((), tf.float32)])
    def net(x, scale):
        captured = tf.constant([1.0, 2.0, 3.0, 4.0]) if MEAN is None else MEAN
        return {"y": tf.math.erfc(x - captured) * scale, "total": tf.reduce_sum(x)}

    return net

MEAN = tf.constant([1.0, 2.0, 3.0, 5.0])

def mixed():
    layers = [keras.layers.Dense(3, dtype="mixed_float16"), keras.layers.Activation("linear", dtype="float32")]
    return keras.Sequential([keras.Input((4,), name="x"), *layers])

class Own(keras.Model):
    def __init__(self):
        super().__init__()
        self.dense = keras.layers.Dense(2)

    def call(self, x, training=None):
        return self.dense(x)

def subclassed():
    return Own(), (np.ones((1, 3), np.float32),)

def unnamed():
    return keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])

def shapeless():
    return Own()

def ragged():
    @tf.function(input_signature=[tf.RaggedTensorSpec((None, None), tf.float32)])
    def net(x):
        return x.to_tensor()
    return net

def gives_ragged():
    @tf.function(input_signature=[tf.TensorSpec((None, 4), tf.float32)])
    def net(x):
        return tf.RaggedTensor.from_tensor(x)
    return net

def strings():
    @tf.function(input_signature=[tf.TensorSpec((None,), tf.string)])
    def net(words):
        return tf.strings.length(words)
    return net

def unsupported():
    @tf.function(input_signature=[tf.TensorSpec((None, 4), tf.float32)])
    def net(x):
        return {"y": tf.math.bessel_i0e(x, name="bessel")}
    return net

def unseeded():
    rng = np.random.default_rng()
    weight = tf.Variable(rng.standard_normal((4, 3)), dtype=tf.float32)

    @tf.function(input_signature=[tf.TensorSpec((None, 4), tf.float32)])
    def net(x):
        return x @ weight

    net.keep = weight
    return net

def noisy():
    @tf.function(input_signature=[tf.TensorSpec((None, 4), tf.float32)])
    def net(x):
        return {"y": x + tf.random.normal((4,))}
    return net

def counting():
    seen = tf.Variable(0.0)

    @tf.function(input_signature=[tf.TensorSpec((None, 4), tf.float32)])
    def net(x):
        seen.assign_add(1.0)
        return {"y": x + seen}

    net.keep = seen
    return net

def picture():
    @tf.function(input_signature=[tf.TensorSpec((None, None, None, 3), tf.uint8)])
    def net(x):
        return {"y": tf.reduce_mean(tf.cast(x, tf.float32) / 255, (1, 2))}
    return net

def half():
    @tf.function(input_signature=[tf.TensorSpec((None, 4), tf.float16)])
    def net(x):
        return {"y": x * 2}
    return net

def other():
    return 3

def unbuilt():
    return keras.Sequential([keras.layers.Dense(3)]), {"x": np.ones((4, 8), "float32")}

def built():
    model, samples = unbuilt()
    model(samples["x"])
    return model, samples

class Dicts(keras.Model):
    def __init__(self):
        super().__init__()
        self.head = keras.layers.Dense(3)

    def call(self, inputs):
        return {"sum": self.head(inputs["left"] + inputs["right"])}

def dicts():
    return Dicts(), {"left": np.ones((4, 8), "float32"), "right": np.ones((4, 8), "float32")}
"""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One small picture model as .keras, .h5, SavedModel and frozen graph; and the factories."""
    tf = import_tensorflow()
    import keras

    folder = tmp_path_factory.mktemp("tensorflow")
    keras.utils.set_random_seed(0)
    image = keras.Input((16, 16, 3), name="image")
    hidden = keras.layers.Conv2D(4, 3, strides=2, activation="relu")(image)
    hidden = keras.layers.GlobalAveragePooling2D()(keras.layers.BatchNormalization()(hidden))
    model = keras.Model(image, keras.layers.Dense(3, name="scores")(hidden))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.save(folder / "m.keras")
        model.save(folder / "m.h5")

        def call(image: Any) -> dict[str, Any]:
            return {"scores": model(image, training=False)}

        spec = tf.TensorSpec((None, 16, 16, 3), tf.float32, "image")
        concrete = tf.function(call).get_concrete_function(spec)
        other = tf.function(lambda image: {"mean": tf.reduce_mean(image, [1, 2])}).get_concrete_function(spec)
        words = tf.function(lambda word: {"length": tf.strings.length(word)})
        signatures = {
            "serving_default": concrete,
            "mean": other,
            "words": words.get_concrete_function(tf.TensorSpec((None,), tf.string, "word")),
        }
        tf.saved_model.save(model, str(folder / "saved"), signatures=signatures)
        tf.saved_model.save(tf.Module(), str(folder / "unsigned"))
        tf.saved_model.save(model, str(folder / "two"), signatures={"a": concrete, "b": other})
        from tensorflow.python.framework.convert_to_constants import convert_variables_to_constants_v2

        frozen = convert_variables_to_constants_v2(concrete).graph.as_graph_def()
    (folder / "g.pb").write_bytes(frozen.SerializeToString())
    (folder / "f.py").write_text(FACTORY)
    return folder


@pytest.fixture
def describe(made: Path) -> Callable[..., ModelSource]:
    def go(name: str, **options: Any) -> ModelSource:
        return exporters.describe(recognise(str(made / name), **options))

    return go


@pytest.mark.parametrize(
    ("name", "kind", "output"),
    [
        ("m.keras", "keras", "scores"),
        ("m.h5", "keras", "scores"),
        ("saved", "savedmodel", "scores"),
        ("g.pb", "graphdef", "Identity"),
    ],
)
def test_every_form_of_one_model_gives_the_same(
    made: Path, describe: Callable[..., ModelSource], tmp_path: Path, name: str, kind: str, output: str
) -> None:
    import keras

    source = describe(name)
    assert (source.kind, source.framework, source.weights) == (kind, "tensorflow", "local")
    assert [(s.name, s.dtype, s.dims) for s in source.inputs] == [("image", "float32", ("batch", 16, 16, 3))]
    assert [(s.name, s.dims) for s in source.outputs] == [(output, ("batch", 3))]
    assert source.key == exporters.describe(recognise(str(made / name))).key
    assert quick_key(recognise(str(made / name)))
    model = exporters.load(source)
    image = np.random.default_rng(0).standard_normal((5, 16, 16, 3)).astype(np.float32)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        truth = keras.saving.load_model(str(made / "m.keras"))(image, training=False).numpy()
    np.testing.assert_allclose(model.run({"image": image})[output], truth, atol=1e-6)
    onnx = exporters.export_onnx(source, tmp_path, model=model)
    assert (onnx.opset, onnx.inputs[0].dims, onnx.outputs[0].dims) == (18, ("batch", 16, 16, 3), ("batch", 3))
    assert onnx.ir_version <= 10


def test_channels_first_is_an_option_and_nothing_else(describe: Callable[..., ModelSource], tmp_path: Path) -> None:
    image = np.random.default_rng(1).standard_normal((2, 16, 16, 3)).astype(np.float32)
    plain = exporters.load(describe("saved")).run({"image": image})["scores"]
    source = describe("saved", graph=GraphChoice(nchw=("image",)), max_shapes={"image": (4, 3, 16, 16)})
    assert source.inputs[0].dims == ("batch", 3, 16, 16)
    assert source.profile["image"].max == (4, 3, 16, 16)
    model = exporters.load(source)
    turned = np.ascontiguousarray(image.transpose(0, 3, 1, 2))
    np.testing.assert_allclose(model.run({"image": turned})["scores"], plain, atol=1e-6)
    assert exporters.export_onnx(source, tmp_path, model=model).inputs[0].dims == ("batch", 3, 16, 16)
    with pytest.raises(UsageError, match="no input 'picture'"):
        describe("saved", graph=GraphChoice(nchw=("picture",)))
    with pytest.raises(UsageError, match="expected four axes"):
        describe("f.py:function", graph=GraphChoice(nchw=("x",)))


def test_an_axis_of_which_nothing_says_the_size_has_that_of_the_samples(tmp_path: Path) -> None:
    tf = import_tensorflow()
    module = tf.Module()
    spec = tf.TensorSpec((None, None, None, 3), tf.float32, "image")
    module.mean = tf.function(lambda image: {"mean": tf.reduce_mean(image, [1, 2])}, input_signature=[spec])
    tf.saved_model.save(module, str(tmp_path / "saved"), signatures={"serving_default": module.mean})
    with pytest.raises(UsageError, match="nothing says which sizes axis 1 of input 'image' takes"):
        exporters.describe(recognise(str(tmp_path / "saved")))
    np.savez(tmp_path / "s.npz", **{f"{i}/image": np.zeros((1, 4 + i, 6, 3), np.float32) for i in range(3)})
    source = exporters.describe(recognise(str(tmp_path / "saved"), samples=str(tmp_path / "s.npz")))
    assert (source.profile["image"].min[1:], source.profile["image"].max[1:]) == ((4, 6, 3), (6, 6, 3))


def test_signatures_are_chosen_by_name(describe: Callable[..., ModelSource]) -> None:
    assert [o.name for o in describe("saved", graph=GraphChoice(signature="mean")).outputs] == ["mean"]
    with pytest.raises(UsageError, match=r"several signatures: \['a', 'b'\]"):
        describe("two")
    with pytest.raises(UsageError, match="did you mean mean"):
        describe("saved", graph=GraphChoice(signature="meann"))
    with pytest.raises(InputError, match="has no signatures"):
        describe("unsigned")
    with pytest.raises(InputError, match=r"'word' of signature 'words' .* is of type string"):
        describe("saved", graph=GraphChoice(signature="words"))


def test_tensors_of_a_frozen_graph_are_chosen_by_name(describe: Callable[..., ModelSource]) -> None:
    names = [n.name for n in _graph_nodes(describe)]
    found = next(n for n in names if n.endswith("Relu"))
    source = describe("g.pb", graph=GraphChoice(inputs=("image:0",), outputs=(f"{found}:0", "Identity")))
    assert [o.name for o in source.outputs] == [found, "Identity"]
    assert source.outputs[0].dims == ("batch", 7, 7, 4)
    with pytest.raises(UsageError, match=r"no tensor 'imag:0'.*image"):
        describe("g.pb", graph=GraphChoice(inputs=("imag:0",)))


def _graph_nodes(describe: Callable[..., ModelSource]) -> Any:
    from tensorflow.core.framework import graph_pb2

    graph = graph_pb2.GraphDef()
    graph.ParseFromString(Path(describe("g.pb").reference).read_bytes())
    return graph.node


def test_axes_of_a_text_model_share_their_names(describe: Callable[..., ModelSource], tmp_path: Path) -> None:
    asked = {"ranges": {"input_ids": (0, 49)}, "min_shapes": {"input_ids": (1, 2)}, "max_shapes": {"input_ids": (4, 9)}}
    source = describe("f.py:text", **asked)
    assert [(s.name, s.dtype, s.dims) for s in source.inputs] == [
        ("input_ids", "int32", ("batch", "seq")),
        ("attention_mask", "int32", ("batch", "seq")),
    ]
    assert {o.name: o.dims for o in source.outputs} == {"start": ("batch", "seq"), "pooled": ("batch", 8)}
    assert source.profile["attention_mask"] == source.profile["input_ids"]
    assert source.profile["input_ids"].max == (4, 9)
    assert (source.mask, source.family) == ("attention_mask", "transformer")
    onnx = exporters.export_onnx(source, tmp_path)
    assert [s.dims for s in onnx.inputs] == [("batch", "seq")] * 2
    guessed = describe("f.py:text", ranges={"input_ids": (0, 49)})
    assert "axis 'seq': sizes 1 to 512 assumed" in (guessed.notice or "")


@pytest.mark.parametrize(
    ("name", "outputs"),
    [("function", ["y"]), ("sampled", ["output_0", "output_1"]), ("subclassed", ["output"])],
)
def test_functions_and_subclassed_models_are_sources(
    describe: Callable[..., ModelSource], tmp_path: Path, name: str, outputs: list[str]
) -> None:
    source = describe(f"f.py:{name}")
    assert [s.name for s in source.inputs] == ["x"]
    assert source.inputs[0].dims[0] == "batch"
    assert [o.name for o in source.outputs] == outputs
    assert (source.samples == "random") == (name == "function")
    model = exporters.load(source)
    exporters.export_onnx(source, tmp_path, model=model)
    for point in reference_points(model):
        assert all(np.isfinite(v).all() for v in point.answer.values())


@pytest.mark.parametrize(("name", "inputs"), [("unbuilt", ["x"]), ("built", ["x"]), ("dicts", ["left", "right"])])
def test_the_one_argument_of_a_keras_model_is_called_as_the_samples_call_it(
    describe: Callable[..., ModelSource], name: str, inputs: list[str]
) -> None:
    """A Sequential that was never built is built from its samples; a dict of samples is given as the dict it is."""
    source = describe(f"f.py:{name}")
    assert [s.name for s in source.inputs] == inputs
    found = exporters.load(source).run({n: np.ones((4, 8), np.float32) for n in inputs})
    assert next(iter(found.values())).shape == (4, 3)


def test_a_keras_file_that_was_never_built_says_so(describe: Callable[..., ModelSource], made: Path) -> None:
    import keras

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        keras.Sequential([keras.layers.Dense(3)]).save(made / "unbuilt.keras")
    with pytest.raises(InputError, match="was never built"):
        describe("unbuilt.keras")


def test_objects_that_tensorflow_2_cannot_make_do_not_matter(describe: Callable[..., ModelSource], made: Path) -> None:
    """An optimiser of another Keras has slots, and loads as an object without ``add_slot``: the graph is enough."""
    from tensorflow.core.protobuf import saved_model_pb2

    tf = import_tensorflow()
    net = tf.Module()
    net.weight, net.bias = tf.Variable(tf.eye(4, 3)), tf.Variable(tf.ones(3))
    net.score = tf.function(
        lambda x: {"y": x @ net.weight + net.bias}, input_signature=[tf.TensorSpec((None, 4), name="x")]
    )
    tf.saved_model.save(net, str(made / "slots"), signatures=net.score)
    file = made / "slots" / "saved_model.pb"
    model = saved_model_pb2.SavedModel.FromString(file.read_bytes())
    nodes = model.meta_graphs[0].object_graph_def.nodes
    variables = [i for i, node in enumerate(nodes) if node.WhichOneof("kind") == "variable"]
    optimiser = nodes.add()
    optimiser.user_object.identifier = "optimizer"
    optimiser.user_object.version.producer = 1
    optimiser.slot_variables.add(
        original_variable_node_id=variables[0], slot_name="m", slot_variable_node_id=variables[1]
    )
    nodes[0].children.add(node_id=len(nodes) - 1, local_name="optimizer")
    file.write_bytes(model.SerializeToString())
    with pytest.raises(AttributeError, match="add_slot"):
        tf.saved_model.load(str(made / "slots"))
    source = describe("slots")
    assert [(s.name, s.dims) for s in (*source.inputs, *source.outputs)] == [("x", ("batch", 4)), ("y", ("batch", 3))]
    found = exporters.load(source).run({"x": np.ones((2, 4), np.float32)})["y"]
    np.testing.assert_array_equal(found, np.full((2, 3), 2, np.float32))


def test_names_that_keras_makes_up_stay(describe: Callable[..., ModelSource]) -> None:
    source = describe("f.py:unnamed")
    assert exporters.load(source).run({source.inputs[0].name: np.ones((2, 3), np.float32)})
    assert describe("f.py:unnamed") == source


def test_half_precision_is_hidden_from_clients(describe: Callable[..., ModelSource]) -> None:
    source = describe("f.py:half")
    assert (source.inputs[0].dtype, source.outputs[0].dtype) == ("float32", "float32")
    answer = exporters.load(source).run({"x": np.full((2, 4), 3, np.float32)})["y"]
    np.testing.assert_array_equal(answer, np.full((2, 4), 6, np.float32))


def test_bytes_take_all_values_where_nothing_else_is_said(describe: Callable[..., ModelSource]) -> None:
    shapes = {"min_shapes": {"x": (1, 8, 8, 3)}, "max_shapes": {"x": (4, 16, 16, 3)}}
    source = describe("f.py:picture", **shapes)
    assert [(s.dims, s.range) for s in source.inputs] == [(("batch", "x_1", "x_2", 3), (0, 255))]
    assert "input 'x': values 0 to 255 assumed" in str(source.notice)
    assert describe("f.py:picture", **shapes, ranges={"x": (0, 9)}).inputs[0].range == (0, 9)


@pytest.mark.parametrize(
    ("name", "error", "says"),
    [
        ("ragged", InputError, "'x' of the factory's function is a RaggedTensorSpec"),
        ("gives_ragged", InputError, "returns output: RaggedTensor"),
        ("noisy", InputError, "a state is written, by RandomStandardNormal"),
        ("counting", InputError, "a state is written, by AssignAddVariableOp"),
        ("strings", InputError, "input 'words' is of type string"),
        ("shapeless", UsageError, "what shape input 'x' has"),
        ("other", InputError, "expected an nn.Module, a Keras model or a"),
    ],
)
def test_what_no_target_takes_is_told(
    describe: Callable[..., ModelSource], name: str, error: type[AccelError], says: str
) -> None:
    with pytest.raises(error, match=says) as told:
        describe(f"f.py:{name}")
    assert told.value.fix or name == "other"


def test_an_operator_without_onnx_is_named(describe: Callable[..., ModelSource], tmp_path: Path) -> None:
    with pytest.raises(StageError, match=r"BesselI0e \(node '.*bessel.*'\)") as told:
        exporters.export_onnx(describe("f.py:unsupported"), tmp_path)
    assert "tf" in (told.value.fix or "")


def test_weights_that_change_are_refused(describe: Callable[..., ModelSource]) -> None:
    with pytest.raises(InputError, match="other weights or code"):
        exporters.load(describe("f.py:unseeded"))


def test_broken_files_are_told(made: Path, tmp_path: Path) -> None:
    (tmp_path / "no.pb").write_bytes(b"\xff\xff not a graph")
    (tmp_path / "empty.pb").write_bytes(b"")
    (tmp_path / "cut.pb").write_bytes((made / "g.pb").read_bytes()[:1500])
    (tmp_path / "cut").mkdir()
    (tmp_path / "cut" / "saved_model.pb").write_bytes((made / "saved" / "saved_model.pb").read_bytes()[:3000])
    (tmp_path / "bare").mkdir()
    (tmp_path / "bare" / "saved_model.pb").write_bytes((made / "saved" / "saved_model.pb").read_bytes())
    (tmp_path / "no.keras").write_bytes(b"no archive")
    (tmp_path / "no.h5").write_bytes(b"no file of HDF5")
    with zipfile.ZipFile(tmp_path / "hollow.keras", "w") as archive:
        archive.writestr("config.json", "{}")
    for name in ("no.pb", "empty.pb", "cut.pb", "cut", "bare", "no.keras", "no.h5", "hollow.keras"):
        with pytest.raises(InputError) as told:
            exporters.describe(recognise(str(tmp_path / name)))
        assert told.value.fix, name


def test_graphs_that_were_never_frozen_or_touch_files_are_refused(tmp_path: Path) -> None:
    tf = import_tensorflow()
    with tf.Graph().as_default() as graph:
        x = tf.compat.v1.placeholder(tf.float32, (None, 2), "x")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            weight = tf.compat.v1.get_variable("w", (2, 2), use_resource=False)
        tf.matmul(x, weight, name="y")
    (tmp_path / "v.pb").write_bytes(graph.as_graph_def().SerializeToString())
    with pytest.raises(InputError, match="node 'w' is a variable"):
        exporters.describe(recognise(str(tmp_path / "v.pb"), graph=GraphChoice(outputs=("y",))))
    with tf.Graph().as_default() as graph:
        x = tf.compat.v1.placeholder(tf.float32, (None, 2), "x")
        tf.strings.length(tf.io.read_file("/etc/hostname"), name="length")
        tf.identity(x, name="y")
    (tmp_path / "r.pb").write_bytes(graph.as_graph_def().SerializeToString())
    with pytest.raises(InputError, match="operator ReadFile"):
        exporters.describe(recognise(str(tmp_path / "r.pb"), graph=GraphChoice(outputs=("y",))))
    with tf.Graph().as_default() as graph:
        x = tf.compat.v1.placeholder(tf.float32, (None, 2), "x")
        tf.identity(x, name="a")
        tf.nn.relu(x, name="b")
    (tmp_path / "two.pb").write_bytes(graph.as_graph_def().SerializeToString())
    with pytest.raises(UsageError, match=r"ends in \['a', 'b'\]") as told:
        exporters.describe(recognise(str(tmp_path / "two.pb")))
    assert "--output-tensors" in (told.value.fix or "")


def test_a_lambda_layer_is_code_and_never_runs(tmp_path: Path) -> None:
    import_tensorflow()
    import keras

    x = keras.Input((2,), name="x")
    model = keras.Model(x, keras.layers.Lambda(lambda v: v * 2)(x))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.save(tmp_path / "l.keras")
        model.save(tmp_path / "l.h5")
    for name in ("l.keras", "l.h5"):
        with pytest.raises(InputError, match="Keras cannot load") as told:
            exporters.describe(recognise(str(tmp_path / name)))
        assert "file.py:factory" in (told.value.fix or "")


def test_importing_accel_imports_no_tensorflow() -> None:
    code = (
        "import sys, accel.pipeline, accel.builders.targets, accel.exporters.from_tensorflow, accel.exporters.from_zoo;"
        "accel.builders.targets.discover(); print([m for m in ('tensorflow', 'keras', 'tf2onnx') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_tensorflow_starts_without_a_word() -> None:
    code = (
        "import os; os.environ['OMP_NUM_THREADS'] = '3'\n"
        "from accel.exporters.tensorflow_runtime import import_tensorflow\n"
        "tf = import_tensorflow(); tf.function(lambda x: x @ x, jit_compile=True)(tf.ones((2, 2)))\n"
        "print(tf.config.threading.get_intra_op_parallelism_threads())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert (done.stdout.strip(), done.stderr) == ("3", "")


def test_numbers_captured_tensors_and_erfc_reach_onnx(describe: Callable[..., ModelSource], tmp_path: Path) -> None:
    """A rank-0 input is one element to clients; tf2onnx made captured tensors inputs, and left Erfc as it was."""
    source = describe("f.py:scalar")
    assert {s.name: s.dims for s in (*source.inputs, *source.outputs)} == {
        "x": ("batch", 4),
        "scale": (1,),
        "y": ("batch", 4),
        "total": (1,),
    }
    made = exporters.export_onnx(source, tmp_path / "out")  # which is checked against the source
    assert "Erfc" not in made.ops
    assert source.computes == "fp32"


def test_a_model_of_mixed_precision_is_held_to_half(describe: Callable[..., ModelSource], tmp_path: Path) -> None:
    source = describe("f.py:mixed")
    assert source.computes == "fp16"
    exporters.export_onnx(source, tmp_path / "out")


def test_an_lstm_of_keras_runs_in_openvino(describe: Callable[..., ModelSource], tmp_path: Path) -> None:
    """Its TensorList was no model that OpenVINO loads: written as ONNX it is one LSTM."""
    openvino = pytest.importorskip("openvino")
    source = describe("f.py:recurrent")
    model = exporters.load(source)
    exporters.export_onnx(source, tmp_path / "out", model=model)
    compiled = openvino.Core().compile_model(
        tmp_path / "out" / "model.onnx", "CPU", {"INFERENCE_PRECISION_HINT": "f32"}
    )
    for point in reference_points(model):
        found = compiled(dict(point.feed)).to_dict()
        np.testing.assert_allclose(next(iter(found.values())), next(iter(point.answer.values())), rtol=1e-4, atol=1e-5)


def test_a_damaged_hdf5_file_ends_its_process(tmp_path: Path) -> None:
    """An object of its heap that says it has 2^64 bytes: libhdf5 goes round for ever, and no signal handler runs."""
    import h5py

    path = tmp_path / "model.h5"
    with h5py.File(path, "w") as file:
        file.attrs["model_config"] = '{"class_name": "Sequential"}' * 99
    data = bytearray(path.read_bytes())
    size = data.index(b"GCOL") + 24
    data[size : size + 8] = (2**64 - 16).to_bytes(8, "little")
    path.write_bytes(data)
    code = (
        "import sys; from pathlib import Path; from accel.exporters import tensorflow_files as t\n"
        "t.LEAST_CPU_S = 1.0; t.import_tensorflow(); import keras; t.open_file('keras', Path(sys.argv[1]), None)"
    )
    done = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, check=False, timeout=300)
    assert done.returncode == -signal.SIGPROF, done.stderr
    assert "a file, which is damaged" in processes.how_it_ended(done.returncode)
