"""Hand-built ONNX graphs in ONNX's text form: old opsets, odd names, control flow, quantised, odd ranks and types.

A graph is its text and the shapes of its random weights.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Graph:
    """A model to write.

    Attributes:
        text: the graph from its name on, in ONNX's text form.
        weights: shape by weight, or an array.
        opset: version of the default domain.
        ir: version of the file format.
        domains: versions of further domains.
        rename: other names for values, where the text form cannot write them.
        listed: weights are inputs, too, as exporters wrote them before IR version 4.
        external: weights lie in a file beside the model.
    """

    text: str
    weights: Mapping[str, Any] = field(default_factory=dict)
    opset: int = 17
    ir: int = 8
    domains: Mapping[str, int] = field(default_factory=dict)
    rename: Mapping[str, str] = field(default_factory=dict)
    listed: bool = False
    external: bool = False


def write(graph: Graph, folder: Path) -> str:
    """Write the model, weights seeded; returns its path."""
    import onnx
    from onnx import numpy_helper

    domains = ", ".join(f'"{name}" : {version}' for name, version in {"": graph.opset, **graph.domains}.items())
    model = onnx.parser.parse_model(f"<ir_version: {graph.ir}, opset_import: [{domains}]> {graph.text}")
    rng = np.random.default_rng(0)
    for name, shape in graph.weights.items():
        array = shape if isinstance(shape, np.ndarray) else _weights(rng, shape)
        model.graph.initializer.append(numpy_helper.from_array(array, name))
        if graph.listed:
            model.graph.input.append(onnx.helper.make_tensor_value_info(name, 1, array.shape))
    for old, new in graph.rename.items():
        _rename(model.graph, old, new)
    path = folder / "model.onnx"
    more = {"save_as_external_data": True, "location": "weights.bin", "size_threshold": 0} if graph.external else {}
    onnx.save(model, str(path), **more)
    return str(path)


def _weights(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    fan = max(1, int(np.prod(shape)) // max(shape)) if shape else 1
    return np.asarray(rng.standard_normal(shape) / np.sqrt(fan), "float32")


def _rename(graph: Any, old: str, new: str) -> None:
    for node in graph.node:
        for names in (node.input, node.output):
            for i, name in enumerate(names):
                if name == old:
                    names[i] = new
    for value in (*graph.input, *graph.output, *graph.initializer):
        if value.name == old:
            value.name = new


MLP = (
    "net (float[batch,16] x) => (float[batch,4] y) { a = MatMul(x, w1) b = Add(a, b1) c = Relu(b) y = Gemm(c, w2, b2) }"
)
MLP_WEIGHTS = {"w1": (16, 32), "b1": (32,), "w2": (32, 4), "b2": (4,)}
CNN = """net (float[batch,3,32,32] image) => (float[batch,5] scores) {
    a = Conv <pads = [1,1,1,1], strides = [2,2]> (image, w1)
    b = BatchNormalization (a, scale, shift, mean, variance)
    c = Relu (b)
    d = MaxPool <kernel_shape = [2,2], strides = [2,2]> (c)
    e = GlobalAveragePool (d)
    f = Flatten (e)
    g = Gemm <transB = 1> (f, w2, b2)
    scores = Softmax <axis = 1> (g)
}"""
CNN_WEIGHTS = {
    "w1": (8, 3, 3, 3),
    "scale": (8,),
    "shift": (8,),
    "mean": (8,),
    "variance": np.linspace(0.5, 2, 8, dtype="float32"),
    "w2": (5, 8),
    "b2": (5,),
}
LSTM = """net (float[steps,batch,8] x) => (float[steps,1,batch,12] y, float[1,batch,12] last) {
    y, last, cell = LSTM <hidden_size = 12> (x, w, r, b)
}"""
LSTM_WEIGHTS = {"w": (1, 48, 8), "r": (1, 48, 12), "b": (1, 96)}
ATTENTION = """net (float[batch,seq,16] x) => (float[batch,seq,16] y) {
    q = MatMul (x, wq)
    k = MatMul (x, wk)
    v = MatMul (x, wv)
    kt = Transpose <perm = [0,2,1]> (k)
    s = MatMul (q, kt)
    quarter = Constant <value = float {0.25}> ()
    t = Mul (s, quarter)
    p = Softmax <axis = 2> (t)
    o = MatMul (p, v)
    h = Add (o, x)
    y = LayerNormalization (h, scale, shift)
}"""
ATTENTION_WEIGHTS = {"wq": (16, 16), "wk": (16, 16), "wv": (16, 16), "scale": (16,), "shift": (16,)}
IF = """net (float[batch,8] x, bool flag) => (float[batch,8] y) {
    y = If (flag) <then_branch = then () => (float[batch,8] a) { a = Relu (x) },
                   else_branch = other () => (float[batch,8] b) { b = Neg (x) }>
}"""
LOOP = """net (float[batch,8] x) => (float[batch,8] y) {
    trips = Constant <value = int64 {3}> ()
    go = Constant <value = bool {1}> ()
    y = Loop (trips, go, x) <body = body (int64 i, bool c, float[batch,8] s) => (bool d, float[batch,8] t) {
        d = Identity (c)
        m = MatMul (s, w)
        t = Tanh (m)
    }>
}"""
SCAN = """net (float[4] start, float[steps,4] x) => (float[4] total, float[steps,4] sums) {
    total, sums = Scan <num_scan_inputs = 1, body = body (float[4] s, float[4] e) => (float[4] n, float[4] o) {
        n = Add (s, e)
        o = Identity (n)
    }> (start, x)
}"""
QDQ = """net (float[batch,16] x) => (float[batch,4] y) {
    xq = QuantizeLinear (x, sx, zx)
    xd = DequantizeLinear (xq, sx, zx)
    wd = DequantizeLinear (w, sw)
    y = MatMul (xd, wd)
}"""
QDQ_WEIGHTS = {
    "sx": np.array(0.03, "float32"),
    "zx": np.array(0, "int8"),
    "sw": np.array(0.01, "float32"),
    "w": np.arange(64, dtype="int8").reshape(16, 4) - 32,
}
QLINEAR = """net (float[batch,16] x) => (float[batch,4] y) {
    xq = QuantizeLinear (x, sx, zx)
    yq = QLinearMatMul (xq, sx, zx, w, sw, zx, sy, zx)
    y = DequantizeLinear (yq, sy, zx)
}"""
DYNAMIC_QUANT = """net (float[batch,16] x) => (float[batch,4] y) {
    xq, xs, xz = DynamicQuantizeLinear (x)
    a = MatMulInteger (xq, w, xz, zw)
    b = Cast <to = 1> (a)
    s = Mul (xs, sw)
    y = Mul (b, s)
}"""
TREES = """net (float[batch,4] x) => (int64[batch] label, float[batch,3] probabilities) {
    label, probabilities = ai.onnx.ml.TreeEnsembleClassifier <
        classlabels_int64s = [0,1,2], post_transform = "NONE",
        nodes_treeids = [0,0,0,0,0], nodes_nodeids = [0,1,2,3,4], nodes_featureids = [0,0,2,0,0],
        nodes_modes = ["BRANCH_LEQ","LEAF","BRANCH_LEQ","LEAF","LEAF"],
        nodes_values = [0.1,0.0,0.3,0.0,0.0], nodes_truenodeids = [1,0,3,0,0], nodes_falsenodeids = [2,0,4,0,0],
        nodes_missing_value_tracks_true = [0,0,0,0,0], nodes_hitrates = [1.0,1.0,1.0,1.0,1.0],
        class_treeids = [0,0,0], class_nodeids = [1,3,4], class_ids = [0,1,2], class_weights = [1.0,1.0,1.0]> (x)
}"""
LOGISTIC = """net (float[batch,4] x) => (int64[batch] label, float[batch,3] scores) {
    s = ai.onnx.ml.Scaler <offset = [0.1,0.2,0.3,0.4], scale = [1.0,2.0,1.0,0.5]> (x)
    label, scores = ai.onnx.ml.LinearClassifier <classlabels_ints = [0,1,2], multi_class = 1,
        post_transform = "SOFTMAX",
        coefficients = [0.5,-0.2,0.1,0.3,-0.4,0.2,0.6,-0.1,0.1,0.2,-0.5,0.4],
        intercepts = [0.1,0.0,-0.1]> (s)
}"""
DETECT = """net (float[1,40,4] boxes, float[1,3,40] scores) => (int64[found,3] selected) {
    most = Constant <value = int64 {5}> ()
    overlap = Constant <value = float {0.5}> ()
    least = Constant <value = float {0.1}> ()
    selected = NonMaxSuppression (boxes, scores, most, overlap, least)
}"""

GRAPHS: dict[str, tuple[str, str, Graph, tuple[str, ...]]] = {
    **{
        f"mlp-opset{n}": ("MLP", f"hand-built, opset {n}", Graph(MLP, MLP_WEIGHTS, opset=n, ir=ir, listed=ir < 4), ())
        for n, ir in ((7, 3), (9, 4), (11, 6), (13, 7), (15, 8), (17, 8), (21, 10))
    },
    "cnn-opset8-listed": (
        "Small CNN",
        "IR 3, weights listed as inputs",
        Graph(CNN, CNN_WEIGHTS, opset=8, ir=3, listed=True),
        (),
    ),
    "cnn-opset9": ("Small CNN", "hand-built, opset 9", Graph(CNN, CNN_WEIGHTS, opset=9, ir=4), ()),
    "cnn-opset12": ("Small CNN", "hand-built, opset 12", Graph(CNN, CNN_WEIGHTS, opset=12, ir=7), ()),
    "cnn-external": ("Small CNN", "weights in a file beside it", Graph(CNN, CNN_WEIGHTS, external=True), ()),
    "cnn-fixed": ("Small CNN", "a fixed batch of 1", Graph(CNN.replace("batch", "1"), CNN_WEIGHTS), ()),
    "cnn-batch-N": ("Small CNN", "the batch axis is called N", Graph(CNN.replace("batch", "N"), CNN_WEIGHTS), ()),
    "cnn-batch-unnamed": ("Small CNN", "axes without names", Graph(CNN.replace("batch", "?"), CNN_WEIGHTS), ()),
    "cnn-batch-two-names": (
        "Small CNN",
        "the batch axis has two names",
        Graph(CNN.replace("[batch,5]", "[unk__215,5]"), CNN_WEIGHTS),
        (),
    ),
    "names-slashes": (
        "MLP",
        "names with slashes and colons",
        Graph(MLP, MLP_WEIGHTS, rename={"x": "serving/x:0", "y": "out/dense/BiasAdd:0"}),
        (),
    ),
    "names-spaces": (
        "MLP",
        "names with spaces and letters beyond ASCII",
        Graph(MLP, MLP_WEIGHTS, rename={"x": "my input", "y": "größe"}),
        (),
    ),
    "names-numbers": ("MLP", "names that are numbers", Graph(MLP, MLP_WEIGHTS, rename={"x": "0", "y": "12"}), ()),
    "names-dots": (
        "MLP",
        "names with dots",
        Graph(MLP, MLP_WEIGHTS, rename={"x": "input.1", "y": "scale_0.tmp_1"}),
        (),
    ),
    "rank0-input": (
        "Scaled rows",
        "a rank-0 input",
        Graph("net (float[batch,8] x, float s) => (float[batch,8] y) { y = Mul(x, s) }"),
        (),
    ),
    "rank0-int": (
        "Scaled rows",
        "a rank-0 integer input",
        Graph("net (float[batch,8] x, int64 n) => (float[batch,8] y) { s = Cast <to = 1> (n) y = Mul(x, s) }"),
        ("--range", "n=8000:16000"),
    ),
    "rank0-output": (
        "Mean of rows",
        "a rank-0 output",
        Graph("net (float[batch,8] x) => (float y) { y = ReduceMean <keepdims = 0> (x) }"),
        (),
    ),
    "rank1": (
        "Normalised vector",
        "one axis, no batch",
        Graph("net (float[n] x) => (float[n] y) { m = ReduceL2 (x) y = Div (x, m) }"),
        ("--shape", "x:32", "--max-shape", "x:64"),
    ),
    "lstm": (
        "LSTM",
        "time first",
        Graph(LSTM, LSTM_WEIGHTS, opset=14),
        ("--shape", "x:10x1x8", "--max-shape", "x:20x8x8"),
    ),
    "lstm-opset7": (
        "LSTM",
        "opset 7",
        Graph(LSTM, LSTM_WEIGHTS, opset=7, ir=3, listed=True),
        ("--shape", "x:10x1x8", "--max-shape", "x:20x8x8"),
    ),
    "attention": (
        "Transformer encoder",
        "by hand, opset 17",
        Graph(ATTENTION, ATTENTION_WEIGHTS),
        ("--shape", "x:1x12x16", "--max-shape", "x:8x24x16"),
    ),
    "if": ("Branch", "If on an input", Graph(IF), ()),
    "loop": ("Loop network", "Loop with a matrix", Graph(LOOP, {"w": (8, 8)}), ()),
    "scan": ("Running sum", "Scan", Graph(SCAN), ("--shape", "x:6x4", "--max-shape", "x:12x4")),
    "qdq": ("Quantised MLP", "QDQ, INT8", Graph(QDQ, QDQ_WEIGHTS, opset=13), ()),
    "qlinear": (
        "Quantised MLP",
        "QLinearMatMul",
        Graph(QLINEAR, {**QDQ_WEIGHTS, "sy": np.array(0.05, "float32")}, opset=13),
        (),
    ),
    "dynamic-quantised": (
        "Quantised MLP",
        "DynamicQuantizeLinear",
        Graph(
            DYNAMIC_QUANT, {"w": QDQ_WEIGHTS["w"], "zw": np.array(0, "int8"), "sw": np.array(0.01, "float32")}, opset=13
        ),
        (),
    ),
    "trees": ("Random forest", "scikit-learn's operators", Graph(TREES, domains={"ai.onnx.ml": 1}), ()),
    "logistic": ("Logistic regression", "scikit-learn's operators", Graph(LOGISTIC, domains={"ai.onnx.ml": 1}), ()),
    "nms": ("Detection head", "NonMaxSuppression, a length that depends on values", Graph(DETECT, opset=11, ir=6), ()),
    "half": (
        "MLP",
        "FP16 in, out and weights",
        Graph(
            MLP.replace("float[", "float16["),
            {k: np.linspace(-0.5, 0.5, int(np.prod(s)), dtype="float16").reshape(s) for k, s in MLP_WEIGHTS.items()},
        ),
        (),
    ),
    "double": (
        "MLP",
        "float64",
        Graph(
            MLP.replace("float[", "double["),
            {k: np.linspace(-0.5, 0.5, int(np.prod(s))).reshape(s) for k, s in MLP_WEIGHTS.items()},
        ),
        (),
    ),
    "bytes": (
        "Small CNN",
        "uint8 pictures, channels last",
        Graph(
            "net (uint8[batch,16,16,3] image) => (float[batch,4] y) { f = Cast <to = 1> (image) t = "
            "Transpose <perm = [0,3,1,2]> (f) s = Mul (t, scale) a = Conv (s, w) r = Relu (a) g = "
            "GlobalAveragePool (r) y = Flatten (g) }",
            {"scale": np.array(1 / 255, "float32"), "w": (4, 3, 3, 3)},
        ),
        ("--range", "image=0:255"),
    ),
    "bool": (
        "Masked mean",
        "a boolean input",
        Graph(
            "net (float[batch,6,8] x, bool[batch,6,1] mask) => (float[batch,8] y) { m = Cast <to = 1> "
            "(mask) a = Mul (x, m) y = ReduceMean <axes = [1], keepdims = 0> (a) }"
        ),
        (),
    ),
    "embedding": (
        "Embedding bag",
        "INT32 ids",
        Graph(
            "net (int32[batch,6] ids) => (float[batch,8] y) { e = Gather (table, ids) y = ReduceSum "
            "<keepdims = 0> (e, one) }",
            {"table": (50, 8), "one": np.array([1])},
        ),
        ("--range", "ids=0:49"),
    ),
    "passthrough": (
        "Identity",
        "an output that is the input",
        Graph("net (float[batch,8] x) => (float[batch,8] y, float[batch,8] z) { y = Relu (x) z = Identity (x) }"),
        (),
    ),
    "constant-output": (
        "MLP",
        "an output that depends on no input",
        Graph(
            "net (float[batch,8] x) => (float[batch,4] y, float[4] version) { y = MatMul (x, w) "
            "version = Identity (v) }",
            {"w": (8, 4), "v": (4,)},
        ),
        (),
    ),
    "unused-input": (
        "MLP",
        "an input that nothing uses",
        Graph(
            "net (float[batch,8] x, float[batch,3] extra) => (float[batch,4] y) { y = MatMul (x, w) }", {"w": (8, 4)}
        ),
        (),
    ),
    "nonzero": (
        "Sparse indices",
        "a length that depends on values",
        Graph("net (float[8] x) => (int64[1,found] y) { r = Relu (x) y = NonZero (r) }"),
        (),
    ),
    "resize": (
        "Upsampling",
        "opset 9 Upsample",
        Graph(
            'net (float[batch,3,8,8] x) => (float[batch,4,16,16] y) { u = Upsample <mode = "linear"> '
            "(x, s) y = Conv <pads = [1,1,1,1]> (u, w) }",
            {"s": np.array([1, 1, 2, 2], "float32"), "w": (4, 3, 3, 3)},
            opset=9,
            ir=4,
        ),
        (),
    ),
    "segmentation": (
        "Fully convolutional",
        "height and width vary, outputs are a quarter",
        Graph(
            "net (float[batch,3,height,width] image) => (float[batch,2,out_h,out_w] y) { a = Conv "
            "<strides = [2,2], pads = [1,1,1,1]> (image, w1) r = Relu (a) y = Conv <strides = [2,2], "
            "pads = [1,1,1,1]> (r, w2) }",
            {"w1": (8, 3, 3, 3), "w2": (2, 8, 3, 3)},
        ),
        ("--shape", "image:1x3x32x32", "--max-shape", "image:4x3x64x64"),
    ),
    "segmentation-fixed": (
        "Fully convolutional",
        "a dynamic size that the user fixes",
        Graph(
            "net (float[batch,3,height,width] image) => (float[batch,2,out_h,out_w] y) { a = Conv "
            "<strides = [2,2], pads = [1,1,1,1]> (image, w1) r = Relu (a) y = Conv <strides = [2,2], "
            "pads = [1,1,1,1]> (r, w2) }",
            {"w1": (8, 3, 3, 3), "w2": (2, 8, 3, 3)},
        ),
        ("--min-shape", "image:1x3x32x32", "--shape", "image:1x3x32x32", "--max-shape", "image:4x3x32x32"),
    ),
    "contrib": (
        "MLP",
        "com.microsoft FusedMatMul and Gelu",
        Graph(
            "net (float[batch,16] x) => (float[batch,4] y) { a = com.microsoft.FusedMatMul <alpha = "
            "0.5> (x, w1) b = com.microsoft.Gelu (a) y = MatMul (b, w2) }",
            {"w1": (16, 32), "w2": (32, 4)},
            domains={"com.microsoft": 1},
        ),
        (),
    ),
}
"""Name → architecture, origin, graph and arguments."""
HOPELESS = {
    "custom-domain": (
        "MLP",
        "an operator of nobody's domain",
        Graph("net (float[batch,8] x) => (float[batch,8] y) { y = my.company.Magic (x) }", domains={"my.company": 1}),
        (),
    ),
    "strings": (
        "Text",
        "strings in",
        Graph('net (string[batch] x) => (string[batch] y) { y = StringNormalizer <case_change_action = "LOWER"> (x) }'),
        (),
    ),
    "sequence": (
        "Sequence",
        "a sequence out",
        Graph("net (float[4,8] x) => (seq(float[2,8]) y) { y = SplitToSequence (x, two) }", {"two": np.array(2)}),
        (),
    ),
}
"""What no variant can serve."""
