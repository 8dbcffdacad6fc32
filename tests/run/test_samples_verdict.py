"""From no samples to ten thousand: what is compared, whether it passes, and what the verdict is worth."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from accel.core.accuracy import parity
from accel.core.errors import SampleError
from accel.core.feeds import read_feeds, write_feeds
from accel.core.values import Parity
from accel.exporters import sources
from accel.run import tasks

COLUMNS, CLASSES = 6, 3
own = np.random.default_rng(0)
WEIGHT = own.standard_normal((COLUMNS, CLASSES)).astype(np.float32)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """y = tanh(x · W), and a second output that is the same for every x."""
    path = tmp_path_factory.mktemp("model") / "m.onnx"
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["product"], "product"),
        helper.make_node("Tanh", ["product"], ["y"], "tanh"),
        helper.make_node("Softmax", ["product"], ["shares"], "softmax", axis=-1),
        helper.make_node("ReduceSum", ["shares", "last"], ["one"], "sum", keepdims=1),
    ]
    values = [
        helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, ["batch", size])
        for n, size in (("x", COLUMNS), ("y", CLASSES), ("one", 1))
    ]
    stored = [numpy_helper.from_array(WEIGHT, "w"), numpy_helper.from_array(np.array([-1]), "last")]
    graph = helper.make_graph(nodes, "m", values[:1], values[1:], stored)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9), path)
    return path


def variant(x: np.ndarray, *, broken: float = 0.0) -> dict[str, np.ndarray]:
    """Compute the model in another order of summation; ``broken`` is added to one weight."""
    weight = WEIGHT.copy()
    weight[2, 1] += broken
    product = sum(x[:, c, None] * weight[None, c] for c in reversed(range(COLUMNS)))
    shares = np.exp(product) / np.exp(product).sum(1, keepdims=True)
    return {"y": np.tanh(product), "one": shares[:, ::-1].sum(1, keepdims=True)}


def judged(model: Path, samples: Path | None, out: Path) -> tuple[tasks.Described, Parity, Parity]:
    """Describe the model with these samples, and judge an exact and a broken variant at the gate of FP32."""
    request = sources.recognise(str(model), samples=str(samples) if samples else None)
    made = tasks.describe(request, out)
    tasks.reference(made, out, out / "reference.npz")
    feeds = read_feeds(out / "gate.npz") | read_feeds(out / "shapes.npz")
    gate = parity.gate_for("fp32", outputs=made.source.outputs, task=None, overrides={}, items=made.samples.gate_items)
    verdicts = []
    for broken in (0.0, 0.05):
        write_feeds(out / "answers.npz", {n: variant(f["x"], broken=broken) for n, f in feeds.items()})
        verdicts.append(tasks.compare(made, out, out / "reference.npz", out / "answers.npz", gate))
    return made, verdicts[0], verdicts[1]


@pytest.mark.parametrize(
    ("rows", "distinct", "items", "accuracy"),
    [
        (0, 0, 256, "unproved"),
        (1, 1, 1, "unproved"),
        (300, 1, 1, "unproved"),
        (2, 2, 1, "unproved"),
        (300, 40, 26, "unproved"),
        (47, 47, 31, "unproved"),
        (48, 48, 32, "proved"),
        (384, 384, 256, "proved"),
        (10_000, 10_000, 256, "proved"),
    ],
)
def test_every_number_of_samples_has_its_verdict(
    model: Path, tmp_path: Path, rows: int, distinct: int, items: int, accuracy: str
) -> None:
    path = None
    if rows:
        x = np.random.default_rng(1).standard_normal((distinct, COLUMNS)).astype(np.float32)
        path = tmp_path / "s.npz"
        np.savez(path, x=x[np.arange(rows) % distinct])
    made, exact, broken = judged(model, path, tmp_path)
    assert (made.samples.gate_items, made.accuracy) == (items, accuracy)
    assert exact.passed, exact.reasons
    assert all(row.sqnr_db is None or row.sqnr_db > 80 for row in exact.outputs)
    assert not broken.passed
    few = rows > 0 and distinct < 48
    assert ("tolerance_db" in exact.gate) == few
    assert ("give at least 48 distinct ones" in (made.notice or "")) == few
    assert ("inputs are random values" in (made.notice or "")) == (rows == 0)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 1e300])
def test_what_is_not_finite_is_refused_by_sample_and_input(model: Path, tmp_path: Path, bad: float) -> None:
    feeds = {str(i): {"x": np.full((1, COLUMNS), float(i))} for i in range(4)}
    feeds["2"]["x"][0, 3] = bad
    write_feeds(tmp_path / "s.npz", feeds)
    with pytest.raises(SampleError, match=r"sample 2: input 'x' holds \S+ at index \(0, 3\), expected finite float32"):
        judged(model, tmp_path / "s.npz", tmp_path / "out")


def test_a_made_up_feed_that_the_source_answers_with_nan_is_left_out(tmp_path: Path) -> None:
    """A temperature of 0, which no sample has, makes NaN: two runtimes need not make it alike."""
    nodes = [
        helper.make_node("Div", ["x", "temperature"], ["scaled"]),
        helper.make_node("Softmax", ["scaled"], ["y"], axis=-1),
    ]
    sizes = {"x": ["batch", 4], "temperature": [1], "y": ["batch", 4]}
    values = [helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, size) for n, size in sizes.items()]
    graph = helper.make_graph(nodes, "m", values[:2], values[2:])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9), tmp_path / "m.onnx")
    np.savez(tmp_path / "s.npz", x=own.standard_normal((3, 4)).astype(np.float32), temperature=np.float32([0.7]))
    made = tasks.describe(
        sources.recognise(str(tmp_path / "m.onnx"), samples=str(tmp_path / "s.npz")), tmp_path / "out"
    )
    tasks.reference(made, tmp_path / "out", tmp_path / "reference.npz")
    answered = read_feeds(tmp_path / "reference.npz")
    assert "flat low" in read_feeds(tmp_path / "out" / made.samples.coverage.path)
    assert "flat low" not in answered
    assert all(np.isfinite(feed["y"]).all() for feed in answered.values())


def test_what_a_norm_makes_of_a_flat_input_is_no_variants_error(tmp_path: Path) -> None:
    """Where no value differs, a norm scales rounding up to a signal, in float64 less than in any FP32."""
    (tmp_path / "net.py").write_text(
        "import torch\n"
        "class Net(torch.nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.line, self.norm = torch.nn.Linear(32, 32), torch.nn.InstanceNorm1d(32, eps=1e-12)\n"
        "    def forward(self, sound):\n"
        "        return self.norm(self.line(sound).transpose(1, 2))\n"
        "def build():\n"
        "    torch.manual_seed(0)\n"
        "    return Net(), [{'sound': torch.randn(1, 16, 32).numpy()} for _ in range(12)]\n"
    )
    made = tasks.describe(sources.recognise(f"{tmp_path / 'net.py'}:build"), tmp_path / "out")
    tasks.reference(made, tmp_path / "out", tmp_path / "reference.npz")
    noise = tasks.noise(made, tmp_path / "out", tmp_path / "reference.npz", ("flat high",), 80.0)
    assert noise is not None
    assert noise.how == "in float64 or with its inputs moved by 4 units in the last place"
    [output] = noise.outputs
    assert output.sqnr_db > 100
    assert output.by_shape_db["flat high"] < 10
