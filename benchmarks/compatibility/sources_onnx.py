"""ONNX: real files of packages, the light architectures and operator cases that ``onnx`` ships, hand-built graphs."""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

from benchmarks.compatibility.onnx_graphs import GRAPHS, HOPELESS, Graph, write
from benchmarks.compatibility.packages import installed
from benchmarks.compatibility.source import Source, checked

VAD = "silero_vad/data/"
OCR = "rapidocr/models/"
CHUNKS = (
    *("--min-shape", "input:1x576,state:2x1x128"),
    *("--shape", "input:1x576,state:2x1x128"),
    *("--max-shape", "input:4x576,state:2x4x128"),
)
REAL = {
    "pp-ocr-det": (
        "PP-OCR detection",
        ("rapidocr", OCR + "PP-OCRv6_det_small.onnx"),
        ("--min-shape", "x:1x3x64x64", "--shape", "x:1x3x320x320", "--max-shape", "x:2x3x480x640"),
    ),
    "pp-ocr-rec": (
        "PP-OCR recognition",
        ("rapidocr", OCR + "PP-OCRv6_rec_small.onnx"),
        ("--min-shape", "x:1x3x48x64", "--shape", "x:1x3x48x320", "--max-shape", "x:6x3x48x640"),
    ),
    "pp-ocr-cls": (
        "PP-OCR direction",
        ("rapidocr", OCR + "ch_ppocr_mobile_v2.0_cls_mobile.onnx"),
        ("--min-shape", "x:1x3x48x192", "--shape", "x:1x3x48x192", "--max-shape", "x:6x3x48x192"),
    ),
    "silero-vad": (
        "Silero VAD",
        ("silero-vad", VAD + "silero_vad.onnx"),
        (*CHUNKS, "--range", "sr=16000:16000"),
    ),
    "silero-vad-op15": (
        "Silero VAD",
        ("silero-vad", VAD + "silero_vad_16k_op15.onnx"),
        (*CHUNKS, "--range", "sr=16000:16000"),
    ),
    "silero-vad-ifless": (
        "Silero VAD",
        ("silero-vad", VAD + "silero_vad_op18_ifless.onnx"),
        (*CHUNKS, "--range", "sr=16000:16000"),
    ),
    "silero-vad-half": (
        "Silero VAD",
        ("silero-vad", VAD + "silero_vad_half.onnx"),
        CHUNKS,
    ),
    "silero-vad-openvino": ("Silero VAD", ("silero-vad", VAD + "silero_vad_openvino_16k.onnx"), ()),
    "silero-vad-sequence": (
        "Silero VAD",
        ("silero-vad", VAD + "silero_vad_16k_sequence.onnx"),
        ("--shape", "input:10x576", "--max-shape", "input:50x576"),
    ),
    "magika": ("Magika", ("magika", "magika/models/standard_v3_3/model.onnx"), ("--range", "bytes=0:256")),
    "basic-pitch": ("Basic Pitch", ("basic-pitch", "basic_pitch/saved_models/icassp_2022/nmp.onnx"), ()),
}
"""Name → architecture, package and file, arguments."""

LIGHT = {
    "bvlc_alexnet": "AlexNet",
    "densenet121": "DenseNet",
    "inception_v1": "GoogLeNet",
    "inception_v2": "Inception v2",
    "resnet50": "ResNet (bottleneck)",
    "shufflenet": "ShuffleNet",
    "squeezenet": "SqueezeNet",
    "vgg19": "VGG",
    "zfnet512": "ZFNet",
}

OPERATORS = {
    "pytorch-operator": (
        "add_broadcast add_size1_singleton_broadcast addconstant addmm basic chunk clip concat2 conv convtranspose exp "
        "flatten index max maxpool min mm non_float_params pad params permute2 pow reduced_mean reduced_sum_keepdim "
        "repeat repeat_dim_overflow selu sqrt symbolic_override view"
    ),
    "pytorch-converted": (
        "AvgPool1d_stride AvgPool2d AvgPool3d BatchNorm2d_eval BatchNorm3d_eval ConstantPad2d Conv1d Conv1d_dilated "
        "Conv2d Conv2d_depthwise_with_multiplier Conv2d_dilated Conv2d_groups Conv3d ConvTranspose2d ELU Embedding GLU "
        "LeakyReLU Linear LogSoftmax MaxPool1d MaxPool2d_stride_padding_dilation MaxPool3d PReLU_2d_multiparam "
        "PixelShuffle PoissonNLLLLoss_no_reduce ReLU ReflectionPad2d ReplicationPad2d SELU Sigmoid Softmax Softmin "
        "Softplus Softsign Tanh ZeroPad2d log_softmax_dim3"
    ),
    "simple": (
        "sequence_model1 sequence_model4 sequence_model7 shrink sign_model "
        "single_relu_model strnorm_model_nostopwords_nochangecase"
    ),
}
"""Suite of onnx.backend.test → its cases, without ``test_`` and ``test_operator_``."""
TEXT = ("strnorm",)
"""Cases that take strings, which no target does."""
ARGUMENTS = {"Embedding": ("--range", "0=0:3"), "non_float_params": ("--range", "0=0:3", "--range", "1=0:3")}
"""Case → what says which integers it takes."""


def _data() -> Path:
    from onnx.backend import test

    return Path(test.__file__).parent / "data"


def _light(name: str) -> Callable[[Path], str]:
    def make(folder: Path) -> str:
        return str(shutil.copy(_data() / "light" / f"light_{name}.onnx", folder))

    return make


def _case(suite: str, name: str) -> Callable[[Path], str]:
    def make(folder: Path) -> str:
        prefix = "test_operator_" if suite == "pytorch-operator" else "test_"
        return str(shutil.copy(_data() / suite / f"{prefix}{name}" / "model.onnx", folder))

    return make


def _graph(graph: Graph) -> Callable[[Path], str]:
    return lambda folder: write(graph, folder)


def _sources() -> Iterator[Source]:
    for name, (what, (package, path), arguments) in REAL.items():
        origin = f"{package}, {Path(path).name}"
        yield Source(f"onnx/{name}", "onnx", what, origin, installed(package, path), arguments)
    for name, what in LIGHT.items():
        yield Source(f"onnx/light-{name}", "onnx", what, "onnx.backend.test, light", _light(name))
    for name, (what, origin, graph, arguments) in GRAPHS.items():
        yield Source(f"onnx/{name}", "onnx", what, origin, _graph(graph), arguments)
    for name, (what, origin, graph, arguments) in HOPELESS.items():
        yield Source(f"onnx/{name}", "onnx", what, origin, _graph(graph), arguments, wants="message")
    for suite, names in OPERATORS.items():
        for name in names.split():
            wants = "message" if name.startswith(TEXT) else "variants"
            origin, more = f"onnx.backend.test, {suite}", ARGUMENTS.get(name, ())
            yield Source(f"onnx/{suite}-{name}", "onnx", name, origin, _case(suite, name), more, True, wants)


SOURCES = checked(_sources())
