"""A loaded source: what every variant is compared with."""

import contextlib
import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from accel.core.errors import StageError
from accel.core.feeds import Feed, fit_inputs
from accel.core.values import ModelSource
from accel.exporters.axes import batch_axis
from accel.exporters.from_onnx import answers, open_source

if TYPE_CHECKING:
    import torch

    from accel.exporters.positional import Positional
    from accel.exporters.tensorflow_graph import Graph


@dataclass(frozen=True, eq=False)
class SourceModel:
    """A loaded source: the truth that every variant is compared with, and what its framework's builders start from.

    Attributes:
        source: what it is.
        answer: takes inputs that fit ``source.inputs`` and gives at least ``source.outputs``, in the clients' dtypes.
        module: of a torch source: takes tensors by position in the order of ``source.inputs`` and returns a tuple in
            the order of ``source.outputs``; FP32 on CPU, eval mode, the framework's default attention.
        graph: of a TensorFlow source: its function under the client's contract.
    """

    source: ModelSource
    answer: Callable[[Feed], Mapping[str, np.ndarray]]
    module: "Positional | None" = None
    graph: "Graph | None" = None

    def run(self, feed: Feed) -> dict[str, np.ndarray]:
        """Run the source on arrays under the client's names.

        Raises:
            SampleError: the feed does not fit the inputs.
            StageError: the model raised.
        """
        found = self.answer(fit_inputs(feed, self.source.inputs))
        return {s.name: found[s.name] for s in self.source.outputs}


def of_torch(source: ModelSource, model: "torch.nn.Module") -> SourceModel:
    """Make the source model of a torch module, which casts where clients see a narrowed dtype."""
    from accel.exporters.positional import Positional, call, client_array

    module = Positional(
        model,
        [s.name for s in source.inputs],
        outputs=[s.name for s in source.outputs],
        takes={s.name: source.native[s.name] for s in source.inputs if s.name in source.native},
        gives={s.name: s.dtype for s in source.outputs if s.name in source.native},
    )

    def answer(feed: Feed) -> dict[str, np.ndarray]:
        results = call(module, module.inputs, feed)
        return {s.name: client_array(r) for s, r in zip(source.outputs, results, strict=True)}

    return SourceModel(source, answer, module=module)


Answer = Callable[[Feed], Mapping[str, np.ndarray]]
IN_FLOAT64 = "in float64"
MOVED = 4
"""Units in the last place by which inputs are moved: layers round, too. Half precision is 4,096 of them."""
IN_MOVED_INPUTS = f"with its inputs moved by {MOVED} units in the last place"


Lend = Callable[["torch.nn.Module"], contextlib.AbstractContextManager[object]]
"""Lends a module in another form of itself."""


def another_way(model: SourceModel, example: Feed, *, lend: Lend = contextlib.nullcontext) -> tuple[str, Answer] | None:
    """Find another way to the source's answers: in float64 where torch can, else from inputs moved slightly.

    What a change in the last bits of its inputs does to a model, no other order of summation can be asked to undercut
    (backward stability). A source without FP32 inputs answers each item in a feed of its own.

    Args:
        example: a feed to try it on.
        lend: the other form in which the module is to answer in float64. What its own two forms of attention make of a
            row without a key, no third can be held against.

    Returns:
        How, and what answers so; None where none of it can be done.

    Source: Higham, Accuracy and Stability of Numerical Algorithms, section 1.5.
    """
    source = model.source
    if model.module is not None:
        wide = _in_float64(model.module, source, lend)
        with contextlib.suppress(StageError):  # a cast to float32 inside the model does not fit float64 weights
            wide(example)
            return IN_FLOAT64, wide
    if (moved := with_moved_inputs(model)) is not None:
        return IN_MOVED_INPUTS, moved
    axis = batch_axis(source)
    if axis is None or source.profile[source.inputs[0].name].min[0] > 1:
        return None
    if any(not spec.dims or spec.dims[0] != axis for spec in source.outputs):
        return None

    def apart(feed: Feed) -> Mapping[str, np.ndarray]:
        count = next(iter(feed.values())).shape[0]
        rows = [model.run({n: v[i : i + 1] for n, v in feed.items()}) for i in range(count)]
        return {n: np.concatenate([row[n] for row in rows]) for n in rows[0]}

    return "item by item", apart


def with_moved_inputs(model: SourceModel) -> Answer | None:
    """Return what answers from FP32 inputs that are moved up or down at random by ``MOVED`` units in the last place."""
    floats = any(np.dtype(spec.dtype) == np.float32 for spec in model.source.inputs)
    return (lambda feed: model.run(_moved(feed))) if floats else None


def _moved(feed: Feed) -> Feed:
    """Return the feed with each FP32 value moved up or down; zeros stay."""
    rng = np.random.default_rng(0)
    ways = np.array([-MOVED, MOVED], np.float32)
    return {
        name: np.where(value != 0, value + rng.choice(ways, value.shape) * np.spacing(value), value)
        if value.dtype == np.float32
        else value
        for name, value in feed.items()
    }


def _in_float64(module: "Positional", source: ModelSource, lend: Lend) -> Answer:
    import torch

    from accel.exporters.positional import call

    wide = copy.deepcopy(module).in_precision(torch.float64)

    def answer(feed: Feed) -> Mapping[str, np.ndarray]:
        given = {n: v.astype(np.float64) if v.dtype.kind == "f" else v for n, v in feed.items()}
        with lend(wide):
            results = call(wide, module.inputs, given)
        return {s.name: r.numpy() for s, r in zip(source.outputs, results, strict=True)}

    return answer


def of_graph(source: ModelSource, graph: "Graph") -> SourceModel:
    """Make the source model of a TensorFlow function, which holds the casts itself."""
    return SourceModel(source, graph.run, graph=graph)


def of_onnx(source: ModelSource, path: Path) -> SourceModel:
    """Make the source model of an ONNX file, run with every optimisation off."""
    run = answers(open_source(path), [o.name for o in source.outputs])

    def answer(feed: Feed) -> dict[str, np.ndarray]:
        found = run({n: v.astype(source.native.get(n, v.dtype)) for n, v in feed.items()})
        return {s.name: found[s.name].astype(s.dtype, copy=False) for s in source.outputs}

    return SourceModel(source, answer)
