"""Keras and TensorFlow models as factories: subclassed, functional, functions and modules."""

from typing import Any

import keras
import numpy as np
import tensorflow as tf

layers = keras.layers


class Subclassed(keras.Model):
    """A subclass that was never called: only samples say what it takes."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two, self.drop = layers.Dense(16, "relu"), layers.Dense(3), layers.Dropout(0.5)

    def call(self, x: Any, training: bool = False) -> Any:
        return self.two(self.drop(self.one(x), training=training))


def _rows(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).standard_normal(shape).astype("float32")


def subclassed() -> Any:
    return Subclassed(), {"x": _rows(4, 8)}


def subclassed_built() -> Any:
    model = Subclassed()
    model(_rows(1, 8))
    return model, {"x": _rows(4, 8)}


def unbuilt_sequential() -> Any:
    return keras.Sequential([layers.Dense(16, "relu"), layers.Dense(3)]), {"x": _rows(4, 8)}


class TwoHeads(keras.Model):
    """Takes a dict, gives a dict."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.kind, self.size = layers.Dense(16, "relu"), layers.Dense(3), layers.Dense(1)

    def call(self, inputs: Any) -> Any:
        body = self.body(keras.ops.concatenate([inputs["left"], inputs["right"]], -1))
        return {"kind": self.kind(body), "size": self.size(body)}


def dict_in_dict_out() -> Any:
    model = TwoHeads()
    model({"left": _rows(1, 4), "right": _rows(1, 4)})
    return model, {"left": _rows(4, 4), "right": _rows(4, 4)}


def function() -> Any:
    weight = tf.Variable(_rows(8, 3))

    @tf.function(input_signature=[tf.TensorSpec([None, 8], tf.float32, name="x")])
    def score(x: Any) -> Any:
        return {"scores": tf.nn.softmax(x @ weight)}

    return score


class Net(tf.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = tf.Variable(_rows(8, 3))

    @tf.function
    def __call__(self, x: Any) -> Any:
        return tf.nn.relu(x @ self.weight)


def module() -> Any:
    return Net(), {"x": _rows(4, 8)}


def while_loop() -> Any:
    """Control flow in the graph: as many steps as the sequence is long."""
    weight = tf.Variable(0.3 * _rows(8, 8))

    @tf.function(input_signature=[tf.TensorSpec([None, 6, 8], tf.float32, name="x")])
    def run(x: Any) -> Any:
        state = tf.zeros_like(x[:, 0])
        for t in tf.range(tf.shape(x)[1]):
            state = tf.tanh(state @ weight + x[:, t])
        return state

    return run
