"""Write TensorFlow models as SavedModel, ``.keras``, ``.h5``, TensorFlow 1 SavedModel and frozen graph."""

import os
from pathlib import Path
from typing import Any

os.environ.setdefault("KERAS_BACKEND", "tensorflow")

import keras
import tensorflow as tf

layers = keras.layers
CLASSES = 10


def save(model: Any, folder: Path, form: str) -> str:
    """Write a Keras model; returns the path that ``accel convert`` takes."""
    if form == "savedmodel":
        model.export(folder / "saved_model", verbose=False)
        return str(folder / "saved_model")
    if form == "frozen":
        return freeze(model, folder)
    model.save(folder / f"model.{form}")
    return str(folder / f"model.{form}")


def application(name: str, size: int, form: str, folder: Path, **more: Any) -> str:
    keras.utils.set_random_seed(0)
    make = getattr(keras.applications, name)
    return save(make(weights=None, input_shape=(size, size, 3), classes=CLASSES, **more), folder, form)


def own(name: str, form: str, folder: Path) -> str:
    keras.utils.set_random_seed(0)
    return save(OWN[name](), folder, form)


def freeze(model: Any, folder: Path) -> str:
    """Write a frozen graph, variables as constants."""
    from tensorflow.python.framework.convert_to_constants import convert_variables_to_constants_v2

    specs = [tf.TensorSpec(t.shape, t.dtype, name=t.name) for t in model.inputs]
    function = tf.function(lambda *tensors: model(list(tensors) if len(tensors) > 1 else tensors[0], training=False))
    frozen = convert_variables_to_constants_v2(function.get_concrete_function(*specs))
    tf.io.write_graph(frozen.graph, str(folder), "frozen.pb", as_text=False)
    return str(folder / "frozen.pb")


# ---------------------------------------------------------------------------------------------------------------------
# Keras models of one's own


def _rnn(layer: Any) -> Any:
    ids = keras.Input((20,), dtype="int32", name="ids")
    return keras.Model(ids, layers.Dense(3)(layer(layers.Embedding(100, 16)(ids))))


def _mlp() -> Any:
    return keras.Sequential([keras.Input((16,), name="x"), layers.Dense(32, "relu"), layers.Dense(3, "softmax")])


def _lenet() -> Any:
    parts = [layers.Conv2D(6, 5, padding="same", activation="tanh"), layers.AveragePooling2D(2)]
    parts += [layers.Conv2D(16, 5, activation="tanh"), layers.AveragePooling2D(2), layers.Flatten(), layers.Dense(10)]
    return keras.Sequential([keras.Input((28, 28, 1), name="image"), *parts])


def _two_inputs() -> Any:
    numbers, ids = keras.Input((8,), name="numbers"), keras.Input((4,), dtype="int32", name="ids")
    deep = layers.Dense(16, "relu")(layers.Concatenate()([numbers, layers.Flatten()(layers.Embedding(50, 8)(ids))]))
    return keras.Model([numbers, ids], layers.Dense(1, "sigmoid")(layers.Concatenate()([deep, numbers])))


def _two_outputs() -> Any:
    x = keras.Input((16,), name="x")
    body = layers.Dense(32, "relu")(x)
    return keras.Model(x, [layers.Dense(3, name="kind")(body), layers.Dense(1, name="size")(body)])


def _transformer() -> Any:
    x = keras.Input((12, 16), name="x")
    found = layers.LayerNormalization()(x + layers.MultiHeadAttention(2, 8)(x, x))
    feed = layers.Dense(16)(layers.Dense(32, "gelu")(found))
    return keras.Model(x, layers.Dense(4)(layers.GlobalAveragePooling1D()(layers.LayerNormalization()(found + feed))))


def _unet() -> Any:
    x = keras.Input((32, 32, 3), name="image")
    one = layers.Conv2D(8, 3, padding="same", activation="relu")(x)
    two = layers.Conv2D(16, 3, padding="same", activation="relu")(layers.MaxPooling2D()(one))
    up = layers.Concatenate()([layers.Conv2DTranspose(8, 2, 2)(two), one])
    return keras.Model(x, layers.Conv2D(2, 1)(up))


def _fully_convolutional() -> Any:
    x = keras.Input((None, None, 3), name="image")
    body = layers.Conv2D(8, 3, 2, padding="same", activation="relu")(x)
    return keras.Model(x, layers.Dense(5)(layers.GlobalAveragePooling2D()(body)))


def _autoencoder() -> Any:
    parts = [layers.Conv2D(8, 3, 2, padding="same", activation="relu"), layers.UpSampling2D(interpolation="bilinear")]
    return keras.Sequential([keras.Input((32, 32, 1), name="image"), *parts, layers.Conv2D(1, 3, padding="same")])


def _wave() -> Any:
    x = keras.Input((256, 1), name="wave")
    body = x
    for rate in (1, 2, 4):
        body = layers.Conv1D(8, 2, padding="causal", dilation_rate=rate, activation="relu")(body)
    return keras.Model(x, layers.Conv1D(4, 1)(body))


def _convlstm() -> Any:
    x = keras.Input((4, 16, 16, 1), name="clip")
    return keras.Model(x, layers.Conv2D(1, 1)(layers.ConvLSTM2D(4, 3, padding="same")(x)))


def _normalised() -> Any:
    x = keras.Input((16,), name="x")
    body = layers.Normalization(mean=[0.5] * 16, variance=[2.0] * 16)(x)
    return keras.Model(x, layers.Dense(1)(layers.BatchNormalization()(layers.Dense(8, "swish")(body))))


def _lambda() -> Any:
    x = keras.Input((16,), name="x")
    return keras.Model(x, layers.Dense(3)(layers.Lambda(lambda t: t * 2.0)(x)))


def _mixed() -> Any:
    return keras.Sequential(
        [
            keras.Input((16,), name="x"),
            layers.Dense(32, "relu", dtype="mixed_float16"),
            layers.Dense(3, dtype="float32"),
        ]
    )


def _ids_of_text() -> Any:
    """Strings come in: no runtime but TensorFlow's own takes them."""
    x = keras.Input((1,), dtype="string", name="text")
    split = layers.TextVectorization(vocabulary=["a", "b", "c"], output_sequence_length=6)
    return keras.Model(x, layers.Dense(2)(layers.GlobalAveragePooling1D()(layers.Embedding(8, 4)(split(x)))))


OWN = {
    "mlp": _mlp,
    "lenet": _lenet,
    "lstm": lambda: _rnn(layers.LSTM(16)),
    "gru": lambda: _rnn(layers.GRU(16)),
    "rnn": lambda: _rnn(layers.SimpleRNN(16)),
    "bilstm": lambda: _rnn(layers.Bidirectional(layers.LSTM(8))),
    "stacked-lstm": lambda: _rnn(keras.Sequential([layers.LSTM(8, return_sequences=True), layers.LSTM(8)])),
    "two-inputs": _two_inputs,
    "two-outputs": _two_outputs,
    "transformer": _transformer,
    "unet": _unet,
    "fully-convolutional": _fully_convolutional,
    "autoencoder": _autoencoder,
    "wavenet": _wave,
    "convlstm": _convlstm,
    "normalised": _normalised,
    "lambda": _lambda,
    "mixed": _mixed,
    "text": _ids_of_text,
}


# ---------------------------------------------------------------------------------------------------------------------
# TensorFlow 1 and raw SavedModels


def _v1_graph(v1: Any) -> tuple[Any, Any]:
    x = v1.placeholder(tf.float32, [None, 8], name="x")
    with v1.variable_scope("net"):
        one = v1.get_variable("one", [8, 16], initializer=v1.glorot_uniform_initializer(seed=0))
        two = v1.get_variable("two", [16, 3], initializer=v1.glorot_uniform_initializer(seed=1))
    return x, tf.nn.softmax(tf.nn.relu(x @ one) @ two, name="scores")


def tensorflow1(form: str, folder: Path) -> str:
    """Write a graph of TensorFlow 1 as its own SavedModel (``builder`` or ``simple``) or frozen graph."""
    v1 = tf.compat.v1
    target = folder / "saved_model"
    with v1.Graph().as_default(), v1.Session() as session:
        x, scores = _v1_graph(v1)
        session.run(v1.global_variables_initializer())
        if form == "frozen":
            frozen = v1.graph_util.convert_variables_to_constants(session, session.graph_def, ["scores"])
            (folder / "frozen.pb").write_bytes(frozen.SerializeToString())
            return str(folder / "frozen.pb")
        if form == "simple":
            v1.saved_model.simple_save(session, str(target), {"x": x}, {"scores": scores})
            return str(target)
        builder = v1.saved_model.builder.SavedModelBuilder(str(target))
        info = v1.saved_model.utils.build_tensor_info
        signature = v1.saved_model.signature_def_utils.build_signature_def(
            {"x": info(x)}, {"scores": info(scores)}, "tensorflow/serving/predict"
        )
        builder.add_meta_graph_and_variables(session, ["serve"], {"serving_default": signature})
        builder.save()
    return str(target)


class _Signatures(tf.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = tf.Variable(tf.random.stateless_normal([8, 3], [0, 1]))

    @tf.function(input_signature=[tf.TensorSpec([None, 8], tf.float32, name="x")])
    def score(self, x: Any) -> Any:
        return {"scores": x @ self.weight}

    @tf.function(input_signature=[tf.TensorSpec([None, 8], tf.float32, name="x")])
    def best(self, x: Any) -> Any:
        return {"best": tf.argmax(x @ self.weight, -1)}

    @tf.function(input_signature=[tf.TensorSpec([], tf.float32, name="scale")])
    def scalar(self, scale: Any) -> Any:
        return {"total": tf.reduce_sum(self.weight) * scale}


def raw(form: str, folder: Path) -> str:
    """Write a SavedModel from tf.Module with one, two or no signatures, or one with a rank-0 input."""
    module = _Signatures()
    wanted = {"one": ["score"], "two": ["score", "best"], "scalar": ["scalar"], "none": []}[form]
    signatures = {name: getattr(module, name) for name in wanted} if len(wanted) != 1 else getattr(module, wanted[0])
    tf.saved_model.save(module, str(folder / "saved_model"), signatures=signatures)
    return str(folder / "saved_model")
