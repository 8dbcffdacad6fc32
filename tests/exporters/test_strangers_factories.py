"""Factories as strangers write them: code beside the file, leading axes that are no batch, sizes that follow values."""

import dataclasses
from pathlib import Path

import numpy as np
import onnx
import pytest

from accel.core.errors import InputError, SampleError, StageError, UsageError
from accel.core.values import GraphChoice, ModelSource
from accel.exporters import describe, export_onnx, load
from accel.exporters.samples import make_samples
from accel.exporters.sources import quick_key, recognise
from accel.run import tasks


def factory(folder: Path, code: str, **given) -> ModelSource:
    """Describe what ``make`` of a new file returns."""
    (folder / "net.py").write_text("import torch\nfrom pathlib import Path\nfrom torch import nn\n" + code)
    return describe(recognise(f"{folder / 'net.py'}:make", **given))


def net(forward: str, samples: str, init: str = "pass") -> str:
    """Return the code of a factory of one class."""
    return (
        "class Net(nn.Module):\n    def __init__(self):\n        super().__init__()\n"
        f"        {init}\n    {forward}\ndef make():\n    return Net(), {samples}\n"
    )


NEIGHBOUR = """
from blocks.layers import Block

def make():
    return nn.Sequential(nn.Linear(4, 4), Block()), torch.ones(2, 4)
"""
BLOCK = "import torch\nfrom blocks import scale\nclass Block(torch.nn.Module):\n    def forward(self, x):\n"


def test_what_a_factory_imports_is_part_of_its_key(tmp_path):
    (tmp_path / "blocks").mkdir()
    (tmp_path / "blocks/__init__.py").write_text("")
    (tmp_path / "blocks/scale.py").write_text("BY = 2\n")
    layers = tmp_path / "blocks/layers.py"
    layers.write_text(BLOCK + "        return torch.relu(x) * scale.BY\n")
    first = factory(tmp_path, NEIGHBOUR)
    assert describe(recognise(first.reference)).key == first.key
    layers.write_text(BLOCK + "        return torch.tanh(x) * scale.BY\n")
    edited = factory(tmp_path, NEIGHBOUR)
    assert edited.key != first.key
    (tmp_path / "blocks/scale.py").write_text("BY = 3\n")
    assert factory(tmp_path, NEIGHBOUR).key not in (first.key, edited.key)
    with pytest.raises(InputError, match="other weights or code"):
        load(first)


def test_what_a_generator_or_a_metric_imports_is_part_of_the_samples_key(tmp_path):
    (tmp_path / "own_data.py").write_text("SCALE = 1\n")
    (tmp_path / "feeds.py").write_text(
        "import own_data\ndef real():\n    yield {}\ndef score(a, b):\n    return 1, 1\n"
    )
    request = recognise("minilm", samples=f"{tmp_path / 'feeds.py'}:real", metric=f"{tmp_path / 'feeds.py'}:score")
    first = quick_key(request, "model")
    (tmp_path / "own_data.py").write_text("SCALE = 2\n")
    assert quick_key(request, "model") != first


def test_numbers_that_a_factory_reads_and_its_samples_are_looked_at(tmp_path):
    (tmp_path / "scale.txt").write_text("2.0")
    code = net(
        "def forward(self, x): return self.layer(x) * self.scale",
        f"torch.ones(2, 4) * float(Path({str(tmp_path / 'ones.txt')!r}).read_text())",
        f"self.layer, self.scale = nn.Linear(4, 4), float(Path({str(tmp_path / 'scale.txt')!r}).read_text())",
    )
    (tmp_path / "ones.txt").write_text("1")
    first = factory(tmp_path, code)
    (tmp_path / "scale.txt").write_text("3.0")
    scaled = factory(tmp_path, code)
    assert scaled.key == first.key, "what may differ from call to call does not make it another model"
    assert scaled.given != first.given
    (tmp_path / "ones.txt").write_text("7")
    assert factory(tmp_path, code).given not in (first.given, scaled.given)
    load(first)


def test_a_buffer_that_is_not_saved_is_part_of_the_key(tmp_path):
    code = net(
        "def forward(self, x): return x + self.shift",
        "torch.ones(2, 4)",
        "self.register_buffer('shift', torch.full((4,), {}), persistent=False)",
    )
    assert factory(tmp_path, code.format(1.0)).key != factory(tmp_path, code.format(2.0)).key


@pytest.mark.parametrize(
    ("forward", "init"),
    [
        ("def forward(self, x): return self.of(x)[0]", "self.of = nn.LSTM(8, 8)"),  # batch_first is False
        ("def forward(self, x): return x - x.mean(0, keepdim=True)", "pass"),
        ("def forward(self, x): return x.softmax(0)", "pass"),
        ("def forward(self, x): return x.flatten(1) @ x.flatten(1).T", "pass"),
    ],
)
def test_a_leading_axis_whose_items_see_each_other_is_no_batch(forward, init, tmp_path):
    source = factory(tmp_path, net(forward, "torch.randn(20, 1, 8)", init))
    assert source.inputs[0].dims == ("x_0", 1, 8)
    assert not source.batched
    assert "is not a batch" in str(source.notice)
    made = make_samples(source, recognise(source.reference), tmp_path)
    assert made.gate_items == 1, "a sequence is not cut into steps"


@pytest.mark.parametrize(
    ("forward", "init"),
    [
        ("def forward(self, x): return self.of(x)[0]", "self.of = nn.LSTM(8, 8, batch_first=True)"),
        ("def forward(self, x): return x.softmax(1)", "pass"),
        ("def forward(self, x): return x * 2, x.sum()", "pass"),  # which no server merges
        ("def forward(self, x): return x.reshape(-1, 8), x", "pass"),
    ],
)
def test_a_batch_stays_one(forward, init, tmp_path):
    source = factory(tmp_path, net(forward, "torch.randn(4, 3, 8)", init))
    assert source.inputs[0].dims == ("batch", 3, 8)


def test_inputs_of_different_length_are_no_common_batch(tmp_path):
    forward = "def forward(self, query, keys): return (query @ keys.T).softmax(-1) @ keys"
    source = factory(tmp_path, net(forward, "[(torch.randn(5, 16), torch.randn(20, 16))]"))
    assert [s.dims for s in source.inputs] == [("query_0", 16), ("keys_0", 16)]
    assert make_samples(source, recognise(source.reference), tmp_path).gate_items == 1
    assert load(source).run({"query": np.ones((3, 16), "f4"), "keys": np.ones((7, 16), "f4")})["output"].shape == (
        3,
        16,
    )


@pytest.mark.parametrize(
    ("forward", "samples", "dims"),
    [
        ("def forward(self, x, table): return x @ table", "(torch.randn(4, 10, 16), torch.randn(16, 16))", "batch"),
        (
            "def forward(self, x, anchors): return x.sum(1, keepdim=True) + anchors[8, 0]",
            "(torch.randn(1, 5), torch.randn(9, 4))",
            "batch",
        ),
        (
            "def forward(self, x, edges): return x[edges[0]] + x[edges[1]]",
            "(torch.randn(5, 8), torch.tensor([[0, 1, 2], [1, 2, 4]]))",
            5,
        ),
    ],
)
def test_what_stands_beside_a_batch_and_does_not_move_is_fixed(forward, samples, dims, tmp_path):
    source = factory(tmp_path, net(forward, f"[{samples}]"))
    assert [s.dims[0] for s in source.inputs] == [dims, *(p.opt[0] for n, p in source.profile.items() if n != "x")]


def test_a_range_is_told_and_is_none_where_other_samples_are_given(tmp_path):
    code = net(
        "def forward(self, ids): return self.table(ids)",
        "torch.tensor([[101, 2054]])",
        "self.table = nn.Embedding(3000, 4)",
    )
    source = factory(tmp_path, code)
    assert source.inputs[0].range == (101, 2054)
    assert "input 'ids': values 101 to 2054, as in the factory's samples" in str(source.notice)
    assert "as in the factory's" not in str(factory(tmp_path, code, ranges={"ids": (0, 2999)}).notice)
    np.savez(tmp_path / "real.npz", ids=np.array([[7, 2999]]))
    given = {"samples": str(tmp_path / "real.npz")}
    source = factory(tmp_path, code, **given)
    assert source.inputs[0].range is None
    assert make_samples(source, recognise(source.reference, **given), tmp_path).gate_items == 1


def test_the_dtype_of_an_input_is_that_of_its_samples(tmp_path):
    code = "class Net(nn.Module):\n    def forward(self, x, keep): return x * keep\ndef make():\n    return Net()\n"
    np.savez(tmp_path / "real.npz", x=np.ones((6, 4)), keep=np.ones((6, 4), bool))
    source = factory(tmp_path, code, samples=str(tmp_path / "real.npz"))
    assert [s.dtype for s in source.inputs] == ["float32", "bool"], "64-bit floats are NumPy's default"


def test_options_that_a_factory_cannot_follow_are_refused(tmp_path):
    code = net("def forward(self, x): return x", "torch.ones(1, 3, 32, 32)")
    with pytest.raises(UsageError, match="--inputs-as-nchw is for TensorFlow"):
        factory(tmp_path, code, graph=GraphChoice(nchw=("x",)))
    with pytest.raises(UsageError, match="no input 'y'"):
        factory(tmp_path, code, multiples={"y": (1, 3, 8, 8)})
    shapes = {"min_shapes": {"x": (1, 3, 32, 32)}, "max_shapes": {"x": (4, 3, 64, 64)}}
    source = factory(tmp_path, code, multiples={"x": (1, 1, 32, 32)}, **shapes)
    assert source.profile["x"].multiples[2:] == (32, 32)


FOUND = "def forward(self, x):\n        b = x[0]\n        return b[b[:, 4] > 0.5]"


def test_a_size_that_follows_from_values_is_not_promised(tmp_path):
    source = factory(tmp_path, net(FOUND, "torch.randn(1, 40, 6)"))
    assert [isinstance(dim, str) for dim in source.outputs[0].dims] == [True, False]


def test_numbers_drawn_for_longer_inputs_alone_are_seen(tmp_path):
    longer = "def forward(self, x): return x + torch.rand(()) if x.shape[1] > 5 else x"
    samples = "[{'x': torch.randn(1, n, 4)} for n in (3, 9)]"
    with pytest.raises(InputError, match=r"not deterministic: .*net.py:\d+ `.*torch.rand"):
        factory(tmp_path, net(longer, samples))


FIRST = """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros(4))
        self.cache = None
        self.ready = {ready}
    def forward(self, x):
        if not self.ready:
            self.mean.copy_(x.mean(0))
            self.ready = True
        self.cache = torch.ones(4)
        return (x - self.mean) * self.cache
def make():
    return Net(), [(torch.randn(1, 4) + 5,) for _ in range(4)]
"""


def test_a_model_that_its_first_call_initialises_is_refused(tmp_path):
    with pytest.raises(InputError, match=r"by what it was called with before: output 'output' .*'mean'"):
        factory(tmp_path, FIRST.format(ready=False))
    factory(tmp_path, FIRST.format(ready=True))  # what is only kept changes no answer


def test_a_number_beside_a_batch_is_none(tmp_path):
    source = factory(
        tmp_path, net("def forward(self, x, t): return x * t", "[(torch.randn(1, 4), torch.rand(()))] * 4")
    )
    assert [s.dims for s in source.inputs] == [("batch", 4), (1,)]
    assert source.notice is None


def test_samples_in_which_nothing_is_found_prove_nothing(tmp_path):
    source = factory(tmp_path, net(FOUND, "torch.zeros(1, 40, 6)"))
    described = tasks.Described(source, make_samples(source, recognise(source.reference), tmp_path))
    with pytest.raises(SampleError, match="with nothing in 'output'"):
        tasks.reference(described, tmp_path, tmp_path / "reference.npz")


TABLE = net(
    "def forward(self, ids, scale): return self.head(self.table(ids).mean(1)) * scale",
    "None",
    "self.table, self.head = nn.Embedding(50, 4), nn.Linear(4, 2)",
).replace("Net(), None", "Net()")
IDS, SCALE = np.arange(300).reshape(50, 6) % 50, np.ones((50, 1), np.float32)


@pytest.mark.parametrize(
    ("arrays", "error", "says"),
    [
        ({"ids": np.full((50, 6), "a"), "scale": SCALE}, SampleError, "s.npz: 'ids' holds <U1, expected integers"),
        ({"input_ids": IDS, "scale": SCALE}, UsageError, r"s.npz holds input_ids, scale \(did you mean input_ids\?\)"),
        (
            {"ids": IDS + 0.5, "scale": SCALE},
            StageError,
            r"(.|\n)*fix: the inputs' dtypes and ranks are those of s.npz",
        ),
        (
            {"ids": IDS[:, 0], "scale": SCALE},
            StageError,
            r"(.|\n)*fix: the inputs' dtypes and ranks are those of s.npz",
        ),
        (
            {"ids": IDS, "scale": np.where(np.arange(50) == 7, np.nan, 1)[:, None]},
            SampleError,
            r"sample 0, item 7: input 'scale' holds nan",
        ),
        (
            {"ids": np.where(np.arange(50) == 7, 61, IDS.T).T, "scale": SCALE},
            SampleError,
            r"item 7 of s.npz: the model's forward raised IndexError on ids int64\[1, 6\] of 61 to 61",
        ),
    ],
)
def test_samples_that_the_model_does_not_take_are_told_apart(tmp_path, arrays, error, says):
    np.savez(tmp_path / "s.npz", **arrays)

    def answered() -> None:
        given = {"samples": str(tmp_path / "s.npz")}
        source = factory(tmp_path, TABLE, **given)
        samples = make_samples(source, recognise(source.reference, **given), tmp_path)
        tasks.reference(tasks.Described(source, samples), tmp_path, tmp_path / "reference.npz")

    with pytest.raises(error, match=says):
        answered()


def test_halves_that_a_model_answers_are_floats_for_clients(tmp_path):
    source = factory(tmp_path, net("def forward(self, x): return (x * 2).bfloat16()", "torch.randn(2, 4)"))
    assert source.outputs[0].dtype == "float32"
    assert export_onnx(source, tmp_path / "onnx").outputs[0].dtype == "float32"


def test_complex_answers_are_refused_at_once(tmp_path):
    with pytest.raises(Exception, match="complex") as error:
        factory(tmp_path, net("def forward(self, x): return torch.fft.fft(x)", "torch.randn(2, 4)"))
    assert "view_as_real" in error.value.fix


def test_stacked_samples_fit_a_fixed_first_axis(tmp_path):
    source = factory(tmp_path, net("def forward(self, x): return x * 2", "torch.ones(1, 4)"))
    fixed = dataclasses.replace(
        source,
        inputs=(dataclasses.replace(source.inputs[0], dims=(1, 4)),),
        profile={"x": dataclasses.replace(source.profile["x"], min=(1, 4), max=(1, 4))},
        samples=str(tmp_path / "all.npz"),
    )
    values = np.arange(120, dtype=np.float32).reshape(30, 4)
    np.savez(tmp_path / "all.npz", x=values, right=np.arange(30))
    request = recognise(source.reference, samples=fixed.samples, metric="accuracy", labels="right")
    made = make_samples(fixed, request, tmp_path)
    assert made.gate_items + made.calibration_items >= 30


def test_a_generator_that_fails_is_named(tmp_path):
    (tmp_path / "feeds.py").write_text("def real():\n    yield {'x': [1.0] * 4}\n    raise KeyError('ids')\n")
    given = {"samples": f"{tmp_path / 'feeds.py'}:real"}
    source = factory(tmp_path, net("def forward(self, x): return x * 2", "torch.ones(1, 4)"), **given)
    with pytest.raises(InputError, match=r"sample generator feeds\.py:real raised KeyError"):
        make_samples(source, recognise(source.reference, **given), tmp_path)
    (tmp_path / "feeds.py").write_text("def real():\n    print('forgot to return')\n")
    with pytest.raises(SampleError, match="returned nothing"):
        make_samples(source, recognise(source.reference, **given), tmp_path)


def test_weights_do_not_depend_on_the_threads_of_a_process(tmp_path):
    """Sums do, in their last bits: each process that builds a variant calls the factory, and has threads of its own."""
    import torch

    (tmp_path / "sums.py").write_text(
        "import torch\n"
        "class Sums(torch.nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.register_buffer('sums', torch.randn(1_000_003).mul(1e3).sum())\n"
        "    def forward(self, x): return x * self.sums\n"
        "def build(): return Sums(), torch.ones(1, 4)\n"
    )
    keys, before = set(), torch.get_num_threads()
    try:
        for count in (1, 2, 3):
            torch.set_num_threads(count)
            keys.add(describe(recognise(f"{tmp_path / 'sums.py'}:build")).key)
            assert torch.get_num_threads() == count
    finally:
        torch.set_num_threads(before)
    assert len(keys) == 1


GRAPH = """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner, self.outer = nn.Linear(8, 16), nn.Linear(16, 3)
    def forward(self, x, edges):
        h = torch.relu(self.inner(x))
        return self.outer(h + torch.zeros_like(h).index_add(0, edges[1], h[edges[0]]))
def make():
    return Net()
"""


@pytest.fixture(scope="module")
def graphs(tmp_path_factory) -> Path:
    """Graphs of 5 to 24 nodes and 30 to 49 edges, each with keys of its own."""
    rng, found = np.random.default_rng(0), {}
    for i in range(20):
        found[f"{i}/x"] = rng.normal(size=(i + 5, 8)).astype(np.float32)
        found[f"{i}/edges"] = rng.integers(0, i + 5, (2, 30 + i))
    np.savez(path := tmp_path_factory.mktemp("graphs") / "graphs.npz", **found)
    return path


def test_samples_of_a_file_show_what_a_factorys_own_would(graphs, tmp_path):
    source = factory(tmp_path, GRAPH, samples=str(graphs))
    nodes, edges = source.inputs
    assert (nodes.dims, edges.dims) == (("batch", 8), (2, "seq"))
    assert (edges.at_most, edges.range) == (("x", 0, -1), None)
    assert (source.profile["x"].max, source.profile["edges"].max) == ((24, 8), (2, 49))


@pytest.mark.parametrize("named", [True, False])
def test_samples_show_the_sizes_and_limits_of_an_onnx_file(graphs, tmp_path, named):
    (tmp_path / "net.py").write_text("import torch\nfrom torch import nn\n" + GRAPH)
    source = describe(recognise(f"{tmp_path / 'net.py'}:make", samples=str(graphs)))
    path = tmp_path / "out" / export_onnx(source, tmp_path / "out").file.path
    if not named:
        model = onnx.load(path)
        for value in (*model.graph.input, *model.graph.output):
            for dim in value.type.tensor_type.shape.dim:
                if dim.dim_param:
                    dim.Clear()
        onnx.save(model, path)
    found = describe(recognise(str(path), samples=str(graphs)))
    assert found.inputs[1].at_most == ("x", 0, -1)
    assert (found.profile["x"].min, found.profile["x"].max) == ((1, 8), (24, 8))
    assert found.profile["edges"].max == (2, 512 if named else 49), "seq has a range of its own"
