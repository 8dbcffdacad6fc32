"""TensorFlow: Keras applications, Keras models of one's own, SavedModels of both versions, frozen graphs, factories."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from benchmarks.compatibility.packages import installed
from benchmarks.compatibility.source import Source, checked, factory

APPLICATIONS: dict[str, tuple[str, str, int, str, dict[str, Any]]] = {
    "vgg16": ("VGG", "VGG16", 32, "keras", {"include_top": False, "pooling": "avg"}),
    "resnet50": ("ResNet (bottleneck)", "ResNet50", 32, "savedmodel", {}),
    "resnet50-v2": ("Pre-activation ResNet", "ResNet50V2", 32, "keras", {}),
    "inception-v3": ("Inception v3", "InceptionV3", 75, "savedmodel", {}),
    "xception": ("Xception", "Xception", 71, "h5", {}),
    "mobilenet": ("MobileNet v1", "MobileNet", 32, "savedmodel", {"alpha": 0.25}),
    "mobilenet-v2": ("MobileNet v2", "MobileNetV2", 32, "keras", {"alpha": 0.35}),
    "mobilenet-v3-small": ("MobileNet v3", "MobileNetV3Small", 32, "savedmodel", {"alpha": 0.75}),
    "mobilenet-v3-large": ("MobileNet v3", "MobileNetV3Large", 32, "frozen", {"alpha": 0.75}),
    "densenet121": ("DenseNet", "DenseNet121", 32, "keras", {}),
    "nasnet-mobile": ("NASNet", "NASNetMobile", 32, "savedmodel", {}),
    "efficientnet-b0": ("EfficientNet", "EfficientNetB0", 32, "savedmodel", {}),
    "efficientnet-v2-b0": ("EfficientNet v2", "EfficientNetV2B0", 32, "keras", {}),
    "convnext-tiny": ("ConvNeXt", "ConvNeXtTiny", 32, "savedmodel", {}),
}
"""Name → architecture, function, picture size, form and further arguments."""

IDS = ("--range", "ids=0:99")
OWN = {
    "mlp": ("MLP", ("savedmodel", "keras", "h5", "frozen"), ()),
    "lenet": ("LeNet-5", ("savedmodel", "frozen"), ()),
    "lstm": ("LSTM", ("savedmodel", "keras", "frozen"), IDS),
    "gru": ("GRU", ("savedmodel", "keras"), IDS),
    "rnn": ("RNN", ("keras",), IDS),
    "bilstm": ("BiLSTM", ("savedmodel", "keras"), IDS),
    "stacked-lstm": ("Stacked LSTM", ("keras",), IDS),
    "two-inputs": ("Wide & Deep", ("savedmodel", "keras"), ("--range", "ids=0:49")),
    "two-outputs": ("MLP", ("keras",), ()),
    "transformer": ("Transformer encoder", ("savedmodel", "keras"), ()),
    "unet": ("U-Net", ("keras",), ()),
    "fully-convolutional": (
        "Fully convolutional",
        ("keras",),
        ("--shape", "image:1x32x32x3", "--max-shape", "image:8x64x64x3"),
    ),
    "autoencoder": ("Convolutional autoencoder", ("savedmodel",), ()),
    "wavenet": ("WaveNet", ("keras",), ()),
    "convlstm": ("ConvLSTM", ("savedmodel",), ()),
    "normalised": ("MLP", ("keras",), ()),
    "mixed": ("MLP", ("keras",), ()),
}
"""Name → architecture, forms and arguments."""

FACTORIES = {
    "subclassed": ("MLP", "a subclassed model, never called"),
    "subclassed_built": ("MLP", "a subclassed model, called once"),
    "unbuilt_sequential": ("MLP", "a Sequential model, never built"),
    "dict_in_dict_out": ("MLP", "a subclassed model of dicts"),
    "function": ("Linear model", "a tf.function with an input signature"),
    "module": ("Linear model", "a tf.Module and samples"),
    "while_loop": ("RNN", "a tf.function with a loop"),
}


def _write(function: str, *arguments: Any, **more: Any) -> Callable[[Path], str]:
    def make(folder: Path) -> str:
        from benchmarks.compatibility import tensorflow_writers

        found: str = getattr(tensorflow_writers, function)(*arguments, folder, **more)
        return found

    return make


def _sources() -> Iterator[Source]:
    path = "basic_pitch/saved_models/icassp_2022/nmp"
    make = installed("basic-pitch", path)
    yield Source("tensorflow/basic-pitch", "tensorflow", "Basic Pitch", "basic-pitch 0.4.0, SavedModel", make)
    for name, (what, function, size, form, more) in APPLICATIONS.items():
        make = _write("application", function, size, form, **more)
        yield Source(f"tensorflow/{name}", "tensorflow", what, f"keras.applications.{function}, {form}", make)
    for name, (what, forms, arguments) in OWN.items():
        for form in forms:
            make = _write("own", name, form)
            yield Source(f"tensorflow/{name}-{form}", "tensorflow", what, f"Keras, {form}", make, arguments)
    for form in ("builder", "simple", "frozen"):
        make = _write("tensorflow1", form)
        yield Source(f"tensorflow/v1-{form}", "tensorflow", "MLP", f"TensorFlow 1, {form}", make)
    for form, how in (("one", "one signature"), ("scalar", "a rank-0 input")):
        make = _write("raw", form)
        yield Source(f"tensorflow/raw-{form}", "tensorflow", "Linear model", f"tf.Module, {how}", make)
    make = _write("raw", "two")
    yield Source("tensorflow/raw-two", "tensorflow", "Linear model", "two signatures", make, ("--signature", "best"))
    for name, (what, how) in FACTORIES.items():
        make = factory("keras_models", name)
        yield Source(f"tensorflow/factory-{name.replace('_', '-')}", "tensorflow", what, how, make)
    make = _write("raw", "none")
    yield Source("tensorflow/raw-none", "tensorflow", "Linear model", "no signature", make, wants="message")
    make = _write("own", "lambda", "keras")
    yield Source("tensorflow/lambda", "tensorflow", "MLP", "a Lambda layer, which holds code", make, wants="message")
    make = _write("own", "text", "keras")
    yield Source("tensorflow/text", "tensorflow", "Text classifier", "strings in", make, wants="message")


SOURCES = checked(_sources())
