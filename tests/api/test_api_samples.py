"""What may be given as samples, and what is said of samples that do not fit."""

import dataclasses
from collections import namedtuple
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, TensorDataset

import accel
from accel.api import samples, sources
from accel.api.keywords import in_python
from accel.core.calls import CallForm, Outputs, Structure, structure
from accel.core.errors import InputError, SampleError, StageError, UsageError
from accel.core.values import from_json, to_json

DATA = torch.arange(40, dtype=torch.float32).reshape(10, 4)


def forward(x: Any, mask: Any = None, *, labels: Any = None) -> None:
    """What the samples below are given to."""


class Rows(Dataset[dict[str, Any]]):
    """Items without a batch axis, with a label and a text beside."""

    def __len__(self) -> int:
        return len(DATA)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"x": DATA[index], "mask": [1, 1, 0, 0], "labels": index % 2, "text": f"row {index}"}


def collate(rows: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
    return {"x": torch.stack([row["x"] for row in rows])}


@pytest.mark.parametrize(
    ("given", "count", "shape", "names"),
    [
        ([DATA[:1], DATA[1:3]], 2, (1, 4), ["x"]),
        (DATA, 1, (10, 4), ["x"]),
        ((DATA, DATA), 1, (10, 4), ["x", "mask"]),
        ([{"x": DATA.numpy()}], 1, (10, 4), ["x"]),
        (({"x": row[None]} for row in DATA), 10, (1, 4), ["x"]),
        (DataLoader(TensorDataset(DATA, DATA), batch_size=5), 2, (5, 4), ["x", "mask"]),
        (
            DataLoader(Rows(), batch_size=2, collate_fn=lambda rows: {"x": torch.stack([r["x"] for r in rows])}),
            5,
            (2, 4),
            ["x"],
        ),
        (TensorDataset(DATA), 10, (1, 4), ["x"]),
        (Rows(), 10, (1, 4), ["x", "mask"]),
    ],
    ids=["list", "tensor", "tuple", "arrays", "generator", "loader", "loader-of-dicts", "dataset", "dataset-of-dicts"],
)
def test_kinds_of_samples(given, count, shape, names):
    found = samples.calls(forward, given, "the model")
    assert len(found) == count
    assert list(found[0].feed) == names
    assert tuple(found[0].feed["x"].shape) == shape


def test_labels_beyond_the_arguments_are_left_out():
    loader = DataLoader(TensorDataset(DATA, torch.zeros(10)), batch_size=5)
    assert list(samples.calls(lambda x: None, loader, "the model")[0].feed) == ["x"]


def test_an_endless_generator_is_cut():
    def endless() -> Any:
        while True:
            yield DATA[:1]

    assert len(samples.calls(forward, endless(), "the model")) == samples.MOST


@pytest.mark.parametrize(
    "given", [list(torch.arange(4000.0)[:, None, None]), TensorDataset(torch.arange(4000.0)[:, None])]
)
def test_of_many_samples_some_of_all_places_are_taken(given):
    found = [call.feed["x"].item() for call in samples.calls(forward, given, "the model")]
    assert len(set(found)) == samples.MOST
    assert np.histogram(found, bins=4, range=(0, 4000))[0].min() > samples.MOST / 5


def test_a_sample_of_many_is_named_by_its_own_place():
    given: list[Any] = [DATA] * 4000
    places = [index for index, _ in samples.each(given)]
    given[places[7]] = {"y": DATA}
    with pytest.raises(SampleError, match=f"sample {places[7]} does not fit"):
        samples.calls(forward, given, "the model")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (None, "needs samples"),
        ([], "are empty"),
        (7, "are int"),
        ([{"y": DATA}], "sample 0 does not fit the model"),
        ([{"x": DATA}, {"x": DATA, "mask": DATA}], "sample 1 gives"),
        ([{"x": DATA, "mask": object()}], "argument 'mask' is object"),
        ([{"x": 1.0}], "no tensor"),
    ],
)
def test_samples_that_do_not_fit_are_answered_with_an_example(given, message):
    with pytest.raises(SampleError, match=message) as raised:
        samples.calls(forward, given, "the model")
    assert "samples=[{" in str(raised.value) or "apart" in str(raised.value)


@dataclasses.dataclass
class Answer:
    logits: Any
    state: Any = None


Pair = namedtuple("Pair", "first second")


@pytest.mark.parametrize(
    ("result", "names"),
    [
        (DATA, ["output"]),
        ((DATA, [DATA, None]), ["output_0", "output_1_0"]),
        ({"a": DATA, "b": {"c": (DATA, DATA)}}, ["a", "b_c_0", "b_c_1"]),
        (Answer(DATA, Pair(DATA, DATA)), ["logits", "state_first", "state_second"]),
    ],
)
def test_a_result_is_made_again_from_its_tensors(result, names):
    found = structure(result)
    assert list(found.names()) == names
    read = from_json(CallForm, to_json(CallForm(("x",), result=found))).result
    again = read.build(dict.fromkeys(names, DATA))
    assert structure(again) == found
    assert type(again) is type(result)


def test_an_output_with_the_name_of_an_input_has_one_of_its_own():
    result = {"wave": DATA, "energy": DATA}
    found = structure(result, ["wave", "output_energy"])
    assert list(found.names()) == ["output_wave", "energy"]
    assert found.build({"output_wave": 1, "energy": 2}) == {"wave": 1, "energy": 2}


def test_a_class_that_this_process_does_not_know_becomes_outputs():
    made = Structure("object", "nowhere.at_all:Answer", ("logits",), (Structure("tensor", "logits"),)).build(
        {"logits": 1}
    )
    assert isinstance(made, Outputs)
    assert made.logits == made["logits"] == made[0] == 1
    with pytest.raises(AttributeError, match="no output 'other'"):
        _ = made.other


@pytest.mark.parametrize("name", ["subprocess:Popen", "builtins:exec", "os:system", "pathlib:Path"])
def test_a_file_cannot_name_a_class_to_be_called(name):
    form = Structure("object", name, ("args",), (Structure("tensor", "args"),))
    assert isinstance(form.build({"args": np.zeros(1)}), Outputs)


def test_what_was_given_by_name_is_called_by_name():
    """Wrappers in transformers add ``use_cache=`` to the keywords of a call: by position it would come twice."""
    call = samples.calls(forward, [{"x": DATA, "mask": DATA}], "the model")[0]
    assert samples.by_keyword(call.bound) == ((), {"x": DATA, "mask": DATA})
    only = samples.calls(lambda x, /, y: None, [(DATA, DATA)], "the model")[0]
    assert samples.by_keyword(only.bound) == ((DATA,), {"y": DATA})
    several = samples.calls(lambda x, *rest: None, [(DATA, DATA)], "the model")[0]
    assert samples.by_keyword(several.bound) == ((DATA, DATA), {})


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch.jit, which people still use
def test_what_cannot_be_taken_says_what_can(tmp_path):
    scripted = torch.jit.script(torch.nn.Linear(2, 3))
    with pytest.raises(UsageError, match="Linear is TorchScript") as caught:
        accel.optimize(scripted, [torch.ones(1, 2)], targets="ort", out=tmp_path)
    assert "torch.jit.save" in caught.value.fix
    with pytest.raises(UsageError, match=r"targts: there is no such option \(did you mean targets\?\)"):
        accel.optimize("model.onnx", targts="ort")


class Graph(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner, self.outer = torch.nn.Linear(4, 8), torch.nn.Linear(8, 3)

    def forward(self, x, edges):
        h = torch.relu(self.inner(x))
        return self.outer(h + torch.zeros_like(h).index_add(0, edges[1], h[edges[0]]))


def test_inputs_whose_first_axes_differ_have_axes_of_their_own(tmp_path):
    sizes = range(5, 25)
    graphs = [(torch.randn(n, 4), torch.randint(0, n, (2, 2 * n))) for n in sizes]
    module = Graph()
    with accel.optimize(module, graphs, targets="ort", bench="none", out=tmp_path / "run") as result:
        model = result.variants["ort@cpu"].load()
        for n in (10, 24):
            x, edges = torch.randn(n, 4), torch.randint(0, n, (2, n + 3))
            torch.testing.assert_close(model(x, edges), module(x, edges))


class Sizes(torch.nn.Module):
    """One answer for a batch of one, another for others."""

    def __init__(self):
        super().__init__()
        self.one, self.more = torch.nn.Linear(8, 4), torch.nn.Linear(8, 4)

    def forward(self, x):
        return self.one(x) if x.shape[0] == 1 else self.more(x)


class Counts(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        return x * self.calls


def test_a_program_that_answers_otherwise_than_its_module_is_not_taken(tmp_path):
    ones = [(torch.randn(1, 8),) for _ in range(3)]
    alone = sources.written(Sizes(), ones, tmp_path / "ones", {})
    assert alone.options["max_shapes"] == {"x": (1, 8)}
    with pytest.raises(StageError, match=r"answers otherwise than in memory at x \[1, 8\]"):
        sources.written(Sizes(), [*ones, (torch.randn(4, 8),)], tmp_path / "several", {})
    with pytest.raises(InputError, match=r"not deterministic: .* 'model.calls' changes with every call"):
        sources.written(Counts(), ones, tmp_path / "counts", {})


def test_a_keras_model_is_held_against_what_it_was_traced_to(tmp_path):
    keras = pytest.importorskip("keras")

    class Branching(keras.Model):
        def call(self, x):
            return x * 2 if x.shape[0] == 1 else x

    ones = [(np.ones((1, 3), np.float32),)]
    with pytest.raises(StageError, match=r"answers otherwise than in memory at x \[1, 3\]"):
        sources.written(Branching(), ones, tmp_path / "ones", {})
    alone = sources.written(Branching(), ones, tmp_path / "alone", {"max_shapes": {"x": (1, 3)}})
    assert alone.options["max_shapes"] == {"x": (1, 3)}


class Open(torch.nn.Module):
    """A number and as many tensors as there are; a tensor without axes comes back."""

    def forward(self, scale, *xs):
        found = scale * sum(xs)
        return found, found.sum()


def test_numbers_and_open_arguments_are_called_as_the_module_is(tmp_path):
    samples = [(torch.rand(()), torch.randn(1, 4), torch.randn(1, 4)) for _ in range(4)]
    with accel.optimize(Open(), samples, targets="ort", bench="none", out=tmp_path / "run") as result:
        model = result.variants["ort@cpu"].load()
        given = torch.tensor(0.5), torch.randn(5, 4), torch.randn(5, 4)
        for found, expected in zip(model(*given), Open()(*given), strict=True):
            torch.testing.assert_close(found, expected)


def test_remedies_name_keywords(tmp_path):
    path = tmp_path / "open.onnx"
    value = [onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, ["n", "m"]) for name in "xy"]
    graph = onnx.helper.make_graph([onnx.helper.make_node("Relu", ["x"], ["y"])], "open", value[:1], value[1:])
    onnx.save(onnx.helper.make_model(graph, ir_version=10, opset_imports=[onnx.helper.make_opsetid("", 18)]), path)
    with pytest.raises(UsageError, match="nothing says which sizes") as caught:
        accel.optimize(path, targets="ort", out=tmp_path / "run")
    assert caught.value.fix.startswith("give min_shapes=, opt_shapes= and max_shapes= for x, or samples= FILE.npz")
    assert in_python("--gate, --objective, --range; --other") == "gate=, objective=, ranges=; --other"


def test_a_result_without_tensors_is_refused():
    with pytest.raises(SampleError, match="of type str"):
        structure({"a": "text"})
