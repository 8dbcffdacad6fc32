"""PyTorch as people have it: how a network is wrapped, fed and answered, whatever the network is."""

from pathlib import Path

import numpy as np
import pytest

from accel.core.errors import InputError, SampleError, StageError
from accel.core.feeds import read_feeds
from accel.exporters import describe, export_onnx, load
from accel.exporters.samples import make_samples
from accel.exporters.sources import recognise
from accel.graph.evaluate import open_unoptimised

pytestmark = pytest.mark.filterwarnings("ignore")  # torch's own, about what people still use

FORMS = """
from collections import namedtuple
from dataclasses import dataclass
from typing import Any
import torch
from torch.nn import functional as F

ROWS = {"x": torch.linspace(-1, 1, 32).reshape(4, 8)}
Pair = namedtuple("Pair", ["scores", "best"])

@dataclass
class Found:
    scores: Any
    best: Any = None

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.two = torch.nn.Linear(8, 6), torch.nn.Linear(6, 3)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x):
        return self.two(self.one(x).relu())

def net(forward, samples=ROWS):
    return type("Own", (Net,), {"forward": forward})(), samples

def run(self, x):
    return Net.forward(self, x)

def two(): return torch.randn(2, 8)

def compiled(): return torch.compile(Net()), ROWS
def compiled_part(): return torch.nn.Sequential(torch.compile(Net())), {"input": ROWS["x"]}
def data_parallel(): return torch.nn.DataParallel(Net()), ROWS
def half(): return Net().half(), {"x": ROWS["x"].half()}
def bfloat16(): return Net().bfloat16(), {"x": ROWS["x"].bfloat16()}
def double_samples(): return Net(), {"x": ROWS["x"].double().numpy()}
def one_tensor(): return Net(), two()
def tuple_argument(): return net(lambda self, pair: run(self, pair[0]) + run(self, pair[1]), {"pair": (two(), two())})
def list_argument(): return net(lambda self, parts: [run(self, p) for p in parts], {"parts": [two(), two()]})
def dict_argument():
    def forward(self, batch):
        found = run(self, batch["x"])
        return {"scores": found, "parts": {"best": found.amax(-1), "all": [found.sum(-1), None]}}
    return net(forward, {"batch": {"x": two()}})
def dict_of_two():
    return net(lambda self, batch: run(self, batch["left"] - batch["right"]), {"left": two(), "right": two()})
def keywords(): return net(lambda self, **given: run(self, given["left"]) - run(self, given["right"]),
                           {"left": two(), "right": two()})
def starred(): return net(lambda self, *given: run(self, given[0] - given[1]), (two(), two()))
def optional_out(): return net(lambda self, x, mask=None, *, flag=True: run(self, x))
def optional_in(): return net(lambda self, x, mask=None: run(self, x if mask is None else x * mask),
                              {**ROWS, "mask": torch.ones(4, 8)})
def with_a_flag(): return net(lambda self, x, flag: run(self, x) if flag else x, {**ROWS, "flag": True})
def dataclass_out(): return net(lambda self, x: Found(run(self, x)))
def namedtuple_out(): return net(lambda self, x: Pair(run(self, x), run(self, x).argmax(-1)))
def input_of_one_name(): return net(lambda self, x: {"x": run(self, x), "best": run(self, x).amax(-1)})
def nested_out(): return net(lambda self, x: (run(self, x), {"best": run(self, x).amax(-1)}))
def model_output():
    def forward(self, x):
        from transformers.modeling_outputs import SequenceClassifierOutput
        return SequenceClassifierOutput(logits=run(self, x), hidden_states=(x, self.one(x)))
    return net(forward)
def without_onnx():
    def forward(self, x): return run(self, x).cummax(-1)[0]
    return net(forward)
def squeezed(): return net(lambda self, x: run(self, x)[:, :1].squeeze())
def ties(): return net(lambda self, x: x.round().clamp(0, 1).topk(4)[1])
def one_row(): return Net(), {"x": torch.randn(8)}
def edges(): return net(lambda self, x, edges: run(self, x)[edges[0]] + run(self, x)[edges[1]],
                        {"x": torch.randn(5, 8), "edges": torch.tensor([[0, 1, 2], [1, 2, 4]])})
class Padded(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = torch.nn.TransformerEncoder(torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 2)
    def forward(self, x, lengths):
        return self.encoder(x, src_key_padding_mask=torch.arange(x.shape[1])[None] >= lengths[:, None])
def padded(): return Padded(), [{"x": torch.randn(1, n, 8), "lengths": torch.tensor([n - n % 2])} for n in (4, 6, 9)]
class Bags(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.bags, self.one = torch.nn.EmbeddingBag(50, 8, mode="sum"), torch.nn.Linear(8, 3)
    def forward(self, ids, offsets): return self.one(self.bags(ids, offsets))
def bags(): return Bags(), [{"ids": torch.arange(n) * 7 % 50, "offsets": torch.arange(0, n, 2)} for n in (9, 12, 7, 16)]
class Graph(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.one = torch.nn.Linear(8 + 4, 3)
    def forward(self, x, edges, weights):
        sent = self.one(torch.cat([x[edges[0]], weights], 1))
        return torch.zeros(x.shape[0], 3).index_add(0, edges[1], sent)
def graph(): return Graph(), [{"x": torch.randn(n, 8), "edges": torch.arange(2 * e).reshape(2, e) % n,
                               "weights": torch.randn(e, 4)} for n, e in ((9, 30), (7, 20), (12, 25))]
def timestamps():
    def forward(self, now, seen): return run(self, ((now[:, None] - seen) / 60).float())
    return net(forward, {"now": torch.tensor([1.7e9 + 0.5]).double(), "seen": 1.7e9 - torch.arange(8.0).double()[None]})
def offsets(): return net(lambda self, x, by: run(self, (x - by).float()), {"x": two().double(), "by": two().double()})

def scripted(): return torch.jit.script(Net()), ROWS
def traced(): return torch.jit.trace(Net().eval(), two()), two()
def script_inside(): return torch.nn.Sequential(torch.jit.script(Net())), {"input": two()}
def quantised(): return torch.ao.quantization.quantize_dynamic(Net().eval(), {torch.nn.Linear}), ROWS
def dropping(): return net(lambda self, x: run(self, F.dropout(x, 0.5)))
def counting():
    def forward(self, x):
        self.calls += 1
        return run(self, x) + self.calls
    return net(forward)
def branching():
    def forward(self, x):
        return run(self, x) * 2 if run(self, x).sum() > 0 else run(self, x) - 1
    return net(forward)
def uneven(): return Net(), [{"x": two()}, {"x": (two(), two())}]
"""


@pytest.fixture(scope="module")
def forms(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("forms") / "forms.py"
    file.write_text(FORMS)
    return file


ROW, ROWS = (8,), ("batch", 8)


@pytest.mark.parametrize(
    ("form", "inputs", "outputs"),
    [
        ("compiled", {"x": ROWS}, ["output"]),
        ("compiled_part", {"input": ROWS}, ["output"]),
        ("data_parallel", {"x": ROWS}, ["output"]),
        ("scripted", {"x": ROWS}, ["output"]),
        ("traced", {"x": ROWS}, ["output"]),
        ("half", {"x": ROWS}, ["output"]),
        ("bfloat16", {"x": ROWS}, ["output"]),
        ("double_samples", {"x": ROWS}, ["output"]),
        ("one_tensor", {"x": ROWS}, ["output"]),
        ("tuple_argument", {"pair_0": ROWS, "pair_1": ROWS}, ["output"]),
        ("list_argument", {"parts_0": ROWS, "parts_1": ROWS}, ["output_0", "output_1"]),
        ("dict_argument", {"batch_x": ROWS}, ["scores", "parts_best", "parts_all_0"]),
        ("dict_of_two", {"batch_left": ROWS, "batch_right": ROWS}, ["output"]),
        ("keywords", {"left": ROWS, "right": ROWS}, ["output"]),
        ("starred", {"input_0": ROWS, "input_1": ROWS}, ["output"]),
        ("optional_out", {"x": ROWS}, ["output"]),
        ("optional_in", {"x": ROWS, "mask": ROWS}, ["output"]),
        ("with_a_flag", {"x": ROWS}, ["output"]),
        ("dataclass_out", {"x": ROWS}, ["scores"]),
        ("namedtuple_out", {"x": ROWS}, ["scores", "best"]),
        ("nested_out", {"x": ROWS}, ["output_0", "output_1_best"]),
        ("input_of_one_name", {"x": ROWS}, ["output_x", "best"]),
        ("model_output", {"x": ROWS}, ["logits", "hidden_states_0", "hidden_states_1"]),
        ("one_row", {"x": ROW}, ["output"]),
        ("edges", {"x": (5, 8), "edges": (2, 3)}, ["output"]),
        ("graph", {"x": ("x_0", 8), "edges": (2, "seq"), "weights": ("seq", 4)}, ["output"]),
        ("padded", {"x": ("batch", "x_1", 8), "lengths": ("batch",)}, ["output"]),
    ],
)
def test_a_form_is_taken_as_it_is(form: str, inputs: dict, outputs: list, forms: Path) -> None:
    """Nested tensors are called by their path; what is not a tensor is given to the model every time."""
    source = describe(recognise(f"{forms}:{form}"))
    assert {s.name: s.dims for s in source.inputs} == inputs
    assert all(s.dtype == "float32" for s in source.inputs if s.name not in ("edges", "lengths"))
    assert [s.name for s in source.outputs] == outputs


@pytest.mark.parametrize("form", ["dict_argument", "one_row", "input_of_one_name", "padded", "graph", "bags"])
def test_a_form_is_exported_and_proved(form: str, forms: Path, tmp_path: Path) -> None:
    """An encoder computes what stands behind the ends of sequences, where its nested tensors answer zeros."""
    source = describe(recognise(f"{forms}:{form}"))
    found = export_onnx(source, tmp_path)
    assert [s.name for s in found.inputs] == [s.name for s in source.inputs]


@pytest.mark.parametrize(
    ("form", "name", "limit"),
    [("graph", "edges", ("x", 0, -1)), ("padded", "lengths", ("x", 1, 0)), ("bags", "offsets", ("ids", 0, -1))],
)
def test_values_follow_the_size_of_another_input(
    form: str, name: str, limit: tuple, forms: Path, tmp_path: Path
) -> None:
    """Rows that an edge names, or a text's length: samples of several sizes show it, and no feed breaks it."""
    source = describe(request := recognise(f"{forms}:{form}"))
    assert next(s for s in source.inputs if s.name == name).at_most == limit
    make_samples(source, request, tmp_path)
    other, axis, more = limit
    feeds = [feed for file in ("gate", "shapes", "coverage") for feed in read_feeds(tmp_path / f"{file}.npz").values()]
    assert len({feed[other].shape[axis] for feed in feeds}) > 3
    assert all(feed[name].max() <= feed[other].shape[axis] + more for feed in feeds)
    if form == "bags":  # offsets begin at 0 and rise, in every feed: the model takes no others
        assert all(feed[name][0] == 0 and (np.diff(feed[name]) >= 0).all() for feed in feeds)


@pytest.mark.parametrize(
    ("form", "dtype"), [("timestamps", "float64"), ("offsets", "float32"), ("double_samples", "float32")]
)
def test_float64_stays_where_the_model_answers_otherwise_in_fp32(form: str, dtype: str, forms: Path) -> None:
    """Samples of NumPy's default are no wish; differences of timestamps in FP32 were wrong, in the reference, too."""
    source = describe(recognise(f"{forms}:{form}"))
    assert {s.dtype for s in source.inputs} == {dtype}
    assert {s.dtype for s in source.outputs} == {"float32"}


def test_first_axes_of_which_other_sizes_are_given_are_no_one_batch(forms: Path) -> None:
    shapes = {
        "min_shapes": {"x": (7, 8), "edges": (2, 20), "weights": (20, 4)},
        "opt_shapes": {"x": (9, 8), "edges": (2, 40), "weights": (40, 4)},
        "max_shapes": {"x": (12, 8), "edges": (2, 80), "weights": (80, 4)},
    }
    source = describe(recognise(f"{forms}:graph", **shapes))
    (x, rows), (_, edges), (weights, _) = (spec.dims for spec in source.inputs)
    assert isinstance(x, str)
    assert (rows, weights) == (8, edges)
    assert [source.profile[name].opt for name in ("x", "edges", "weights")] == list(shapes["opt_shapes"].values())


def test_the_weights_are_the_wrapped_ones(forms: Path) -> None:
    """A wrapper changes nothing: what is loaded answers as the network itself does."""
    feed = {"x": np.ones((2, 8), np.float32)}
    bare, *wrapped = (load(describe(recognise(f"{forms}:{form}"))) for form in ("one_tensor", "compiled", "scripted"))
    for model in wrapped:
        np.testing.assert_array_equal(model.run(feed)["output"], bare.run(feed)["output"])


@pytest.mark.parametrize(
    ("form", "error", "says", "fix"),
    [
        ("quantised", InputError, r"layer 'one' is quantised \(torch.ao.nn.quantized", "give the float model"),
        ("dropping", InputError, r"not deterministic: output 'output' .* forms.py:\d+ `.*dropout", r"model.eval\(\)"),
        (
            "counting",
            InputError,
            "not deterministic: .* its 'calls' changes with every call",
            "take the state as an input",
        ),
        (
            "script_inside",
            InputError,
            "layer '0' is TorchScript inside a Python module",
            "torch.jit.script of the whole",
        ),
        ("uneven", SampleError, "sample 1 is not made like sample 0", None),
    ],
)
def test_what_cannot_be_right_is_named(form: str, error: type, says: str, fix: str | None, forms: Path) -> None:
    with pytest.raises(error, match=says) as caught:
        describe(recognise(f"{forms}:{form}"))
    if fix:
        assert caught.match(fix)


def test_a_branch_on_values_is_named_by_its_line(forms: Path, tmp_path: Path) -> None:
    source = describe(recognise(f"{forms}:branching"))
    with pytest.raises(
        StageError, match=r"decides by the values of a tensor at forms.py:\d+ `return run(.|\n)*torch.cond"
    ):
        export_onnx(source, tmp_path)


def test_an_operator_that_onnx_lacks_is_named_with_its_line(forms: Path, tmp_path: Path) -> None:
    source = describe(recognise(f"{forms}:without_onnx"))
    with pytest.raises(
        StageError,
        match=r"ONNX has no operator for aten.cummax at forms.py:\d+ `def forward\(self, x\)(.|\n)*torch, aoti",
    ):
        export_onnx(source, tmp_path)


@pytest.mark.parametrize(
    ("form", "says"),
    [
        (
            "squeezed",
            r"\(x \[1, 8\]\), the source gives \(1,\): its rank changes(.|\n)*squeeze\(-1\), or.* --min-shape",
        ),
        ("ties", r"\d+ of \d+ differ, the first at \[0, \d\]: \d, the source gives \d\n  fix: (.|\n)*break ties"),
    ],
)
def test_what_differs_in_onnx_is_told_with_its_cause(form: str, says: str, forms: Path, tmp_path: Path) -> None:
    source = describe(recognise(f"{forms}:{form}"))
    with pytest.raises(StageError, match=says):
        export_onnx(source, tmp_path)


def test_a_branch_on_sizes_is_told_where_the_sizes_disagree(tmp_path: Path) -> None:
    file = tmp_path / "net.py"
    file.write_text(OPERATORS)
    with pytest.raises(StageError, match=r"differs from the source by \S+ at the max shape") as caught:
        export_onnx(describe(recognise(f"{file}:longer")), tmp_path / "out")
    assert caught.value.fix.startswith("the two agree at the min and the odd shape. Where forward decides by a size")


OPERATORS = """
import torch
class Longer(torch.nn.Module):
    def forward(self, x):
        return x * 2 if x.shape[1] > 30 else x
def longer(): return Longer(), [{"x": torch.rand(1, n, 4)} for n in (5, 40)]
class Distances(torch.nn.Module):
    def __init__(self, p):
        super().__init__()
        self.p = p
    def forward(self, x, temperature):
        pooled = torch.nn.functional.adaptive_max_pool2d(x[:, None], (3, 2)).flatten(1)
        return torch.cdist(x, 0.5 * x + 1, p=self.p) * temperature, pooled
def samples():
    return {"x": torch.linspace(-1, 2, 140).reshape(5, 7, 4), "temperature": torch.tensor(0.5)}
class Bag(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.mean, self.max = torch.nn.EmbeddingBag(9, 4), torch.nn.EmbeddingBag(9, 4, mode="max")
    def forward(self, ids):
        return self.mean(ids) + self.max(ids)
class Reversed(torch.nn.Module):
    def forward(self, x, mask):
        scaled = torch.rsub(x, 2.5, alpha=2), torch.rsub(mask, 2.5, alpha=3)
        return x * (1.0 - mask), 3 - mask, *scaled, torch.rsub(mask, x)
def reverse(): return Reversed(), {"x": torch.ones(2, 3), "mask": torch.tensor([[0, 1, 1], [1, 0, 7]])}
class Projected(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.one = torch.nn.LSTM(4, 8, batch_first=True, bidirectional=True, proj_size=3)
        self.two = torch.nn.LSTM(6, 8, proj_size=3, bias=False)
    def forward(self, x):
        y, (h, c) = self.one(x)
        z, _ = self.two(y.transpose(0, 1), (h[:1], c[:1]))
        return y, h.transpose(0, 1), c.transpose(0, 1), z.transpose(0, 1)
def projected(): return Projected(), [{"x": torch.randn(1, n, 4)} for n in (5, 9)]
def bag(): return Bag(), {"ids": torch.arange(8).reshape(2, 4)}
class Decoder(torch.nn.Module):
    def __init__(self):
        super().__init__()
        layer = torch.nn.TransformerDecoderLayer(8, 2, 16, batch_first=True)
        self.body = torch.nn.TransformerDecoder(layer, 1)
    def forward(self, target, memory):
        length = target.shape[1]
        return self.body(target, memory, tgt_mask=torch.full((length, length), -torch.inf).triu(1))
def decoder(): return Decoder(), {"target": torch.rand(2, 5, 8), "memory": torch.rand(2, 7, 8)}
class Ordered(torch.nn.Module):
    def forward(self, x):
        return torch.nn.functional.logsigmoid(x), *torch.sort(x.round(), dim=1, stable=True)
def ordered(): return Ordered(), {"x": torch.linspace(-2, 2, 24).reshape(3, 8)}
def euclid(): return Distances(2.0), samples()
def cubic(): return Distances(3.0), samples()
"""


@pytest.mark.parametrize("name", ["euclid", "cubic"])
def test_numbers_as_tensors_and_operators_that_torch_cannot_write(tmp_path: Path, name: str) -> None:
    """A rank-0 input is one element to clients; cdist and adaptive max pooling have an ONNX of accel's own."""
    file = tmp_path / "net.py"
    file.write_text(OPERATORS)
    source = describe(recognise(f"{file}:{name}"))
    assert [(s.name, s.dims) for s in source.inputs] == [("x", ("batch", 7, 4)), ("temperature", (1,))]
    made = export_onnx(source, tmp_path / "out")  # which is checked against the source
    assert made.inputs[1].dims == (1,)


def test_a_logarithm_of_small_sigmoids_stays_finite_and_equal_values_stay_in_order(tmp_path: Path) -> None:
    """As torch.onnx writes it, it is that of 0 below -17; and it finds no operator for a stable sort."""
    file = tmp_path / "net.py"
    file.write_text(OPERATORS)
    source = describe(recognise(f"{file}:ordered"))
    made = export_onnx(source, tmp_path / "out")  # which is checked against the source
    feed = {"x": np.array([[-80.0, -40.0, -18.0, 0.0, 0.1, 40.0, 80.0, -0.2]], np.float32)}
    found = open_unoptimised(tmp_path / "out" / made.file.path).run(None, feed)
    for value, expected in zip(found, load(source).run(feed).values(), strict=True):
        np.testing.assert_allclose(value, expected, rtol=1e-5, atol=1e-30)


def test_a_transformer_with_a_mask_is_exported(tmp_path: Path) -> None:
    """torch looks into the mask for whether it is causal: a value that decides, which no graph has."""
    file = tmp_path / "net.py"
    file.write_text(OPERATORS)
    export_onnx(describe(recognise(f"{file}:decoder")), tmp_path / "out")  # which is checked against the source


def test_bags_of_one_length_are_no_loop(tmp_path: Path) -> None:
    """OpenVINO refused torch's loop over bags."""
    file = tmp_path / "net.py"
    file.write_text(OPERATORS)
    made = export_onnx(describe(recognise(f"{file}:bag")), tmp_path / "out")  # which is checked against the source
    assert "Loop" not in made.ops


def test_a_number_minus_integers_is_exported(tmp_path: Path) -> None:
    """``1.0 - mask`` of an int64 mask: torch.onnx finds no operator whose first operand is a number."""
    file = tmp_path / "net.py"
    file.write_text(OPERATORS)
    made = export_onnx(describe(recognise(f"{file}:reverse")), tmp_path / "out")  # which is checked against the source
    assert [s.dtype for s in made.outputs] == ["float32", "int64", "float32", "float32", "float32"]


def test_an_lstm_with_projections_is_one_without_and_a_product(tmp_path: Path) -> None:
    """torch.onnx wrote an LSTM of ONNX, which has no projections: it could not run."""
    file = tmp_path / "net.py"
    file.write_text(OPERATORS)
    source = describe(recognise(f"{file}:projected"))
    assert source.inputs[0].dims == ("batch", "x_1", 4)
    made = export_onnx(source, tmp_path / "out")  # which is checked against the source
    assert made.ops["LSTM"] == 3


def test_projections_of_several_layers_both_ways_and_from_a_state() -> None:
    import torch

    from accel.exporters.torch_layers import exportable_forwards

    torch.manual_seed(0)
    lstm = torch.nn.LSTM(4, 8, num_layers=2, bidirectional=True, proj_size=3)
    x, state = torch.randn(5, 2, 4), (torch.randn(4, 2, 3), torch.randn(4, 2, 8))
    for given in ((x,), (x, state)):
        expected, last = lstm(*given)
        with exportable_forwards(lstm):
            found, end = lstm(*given)
        for one, other in zip((expected, *last), (found, *end), strict=True):
            torch.testing.assert_close(other, one, rtol=1e-5, atol=1e-6)
