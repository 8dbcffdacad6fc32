"""A Keras model in memory is optimised where there is no torch."""

import importlib.util

import keras
import numpy as np

import accel


def main() -> None:
    assert importlib.util.find_spec("torch") is None
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(12, activation="tanh"), keras.layers.Dense(2)])
    batches = [np.random.default_rng(i).standard_normal((1, 6)).astype(np.float32) for i in range(64)]
    result = accel.optimize(model, batches, targets="tf,ort", objective="latency", budget_s=5, out="run")
    assert {v.status for v in result.variants.values()} == {"ok"}, result
    assert np.abs(np.asarray(result.best(batches[0])) - np.asarray(model(batches[0]))).max() < 1e-4
    print(result)


if __name__ == "__main__":
    main()
