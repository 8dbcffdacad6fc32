"""A Keras model in memory with two inputs and two outputs; needs TensorFlow (``make tensorflow``)."""

import keras
import numpy as np

import accel


def main() -> None:
    keras.utils.set_random_seed(0)
    image, extra = keras.Input((8, 8, 1), name="image"), keras.Input((4,), name="extra")
    seen = keras.layers.GlobalAveragePooling2D()(keras.layers.Conv2D(4, 3, activation="relu")(image))
    logits = keras.layers.Dense(3)(keras.layers.Concatenate()([seen, extra]))
    model = keras.Model({"image": image, "extra": extra}, {"logits": logits, "p": keras.layers.Softmax()(logits)})
    rng = np.random.default_rng(0)
    shapes = {"image": (1, 8, 8, 1), "extra": (1, 4)}
    batches = [{n: rng.standard_normal(s).astype(np.float32) for n, s in shapes.items()} for _ in range(64)]
    result = accel.optimize(model, samples=batches, targets="ort", objective="latency", out="runs/keras", budget_s=5)
    expected, found = model(batches[0]), result.best(batches[0])
    print(result.best, float(np.abs(expected["p"] - found["p"]).max()))


if __name__ == "__main__":
    main()
