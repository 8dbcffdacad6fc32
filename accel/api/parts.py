"""A pipeline of modules: its parts are optimised with the inputs that they really get, and put in place.

Real inputs are recorded by hooks while the pipeline runs as its user runs it. What it answers and how long it takes,
end to end, is compared before and after in interleaved rounds.
"""

import contextlib
import inspect
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from accel.api.frameworks import is_torch
from accel.api.live import Watcher
from accel.api.model import Model
from accel.api.optimize import RUNS, optimize
from accel.api.result import Result
from accel.api.samples import array
from accel.bench.stability import ratio_interval
from accel.core.calls import is_tensor, leaves
from accel.core.errors import SampleError, UsageError, nearest

ROUNDS = 8


@dataclass(frozen=True)
class PartsResult:
    """What became of a pipeline.

    Attributes:
        parts: of each part, by name.
        before_ms / after_ms: median time of one run of the pipeline.
        speedup / speedup_ci: before over after, over interleaved rounds, with its 95 % interval.
        max_abs: largest difference of a number that the pipeline gave before and after; None where nothing it gives
            could be compared.
        equal: whether everything else that it gave (texts, whole numbers) is the same.
    """

    parts: Mapping[str, Result]
    before_ms: float
    after_ms: float
    speedup: float
    speedup_ci: tuple[float, float]
    max_abs: float | None
    equal: bool


def replace(parent: Any, name: str, model: Model) -> Any:
    """Put an optimised model in the place of a part, and return the part.

    A part of an ``nn.Module`` becomes a module that calls the model; all else that is asked of it, its configuration
    for instance, the part still answers. Putting the part back with ``setattr`` undoes it.

    Args:
        parent: a module, or any object that has parts.
        name: of the attribute; dots lead to parts of parts (``text.encoder``).

    Raises:
        UsageError: there is no such part.
    """
    holder, last = _holder(parent, name)
    part = getattr(holder, last)
    setattr(holder, last, _module(model, part) if is_torch(part) else model)
    return part


def optimize_parts(
    pipeline: Any,
    parts: Mapping[str, Mapping[str, Any]] | Sequence[str],
    *,
    run: Callable[[Any], Any],
    samples: Sequence[Any],
    out: str | Path | None = None,
    progress: Watcher = None,
    rounds: int = ROUNDS,
    **options: Any,
) -> PartsResult:
    """Optimise parts of a pipeline with the inputs that they get, put them in place and time the whole.

    Args:
        pipeline: the object whose attributes the parts are.
        parts: names of the parts (``encoder``, ``text.decoder``), or name → options of ``accel.optimize`` for it.
        run: runs the whole on one sample, as its user does.
        samples: what ``run`` takes.
        out: folder for the runs of the parts; ``runs/<class of the pipeline>`` when None.
        rounds: interleaved rounds of the end-to-end comparison, at least 2.
        **options: of ``accel.optimize``, for every part.

    Raises:
        UsageError: there is no such part.
        SampleError: a part is never called, or with what no model takes.
        AccelError: as ``accel.optimize``; the pipeline is as it was.
    """
    asked = parts if isinstance(parts, Mapping) else {name: {} for name in parts}
    folder = Path(out) if out is not None else RUNS / type(pipeline).__name__.lower()
    recorded = record(pipeline, list(asked), run=run, samples=samples)
    results: dict[str, Result] = {}
    for name, own in asked.items():
        holder, last = _holder(pipeline, name)
        given = {**options, **own, "out": folder / name, "progress": progress}
        results[name] = optimize(getattr(holder, last), recorded[name], **given)
    models = {name: result.best for name, result in results.items()}
    before, after, answers = _timed(pipeline, models, run, samples, rounds)
    speedup, low, high = ratio_interval(before, after)
    max_abs, equal = _difference(*answers)
    for name, model in models.items():
        replace(pipeline, name, model)
    figures = float(np.median(before)), float(np.median(after)), speedup, (low, high)
    return PartsResult(results, *figures, max_abs, equal)


def record(
    pipeline: Any, parts: Sequence[str], *, run: Callable[[Any], Any], samples: Sequence[Any]
) -> dict[str, list[dict[str, Any]]]:
    """Run a pipeline on samples and return the arguments of every call of its parts, by part.

    Raises:
        UsageError: there is no such part, or it is no ``nn.Module``.
        SampleError: a part was never called.
    """
    recorded: dict[str, list[dict[str, Any]]] = {name: [] for name in parts}

    def recorder(name: str, part: Any) -> Callable[..., None]:
        signature = inspect.signature(part.forward)

        def note(_: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            bound = signature.bind(*args, **kwargs)
            given: dict[str, Any] = {}
            for argument, value in bound.arguments.items():
                open_ended = signature.parameters[argument].kind is inspect.Parameter.VAR_KEYWORD
                given |= value if open_ended else {argument: value}
            recorded[name].append({argument: _kept(value) for argument, value in given.items()})

        return note

    with contextlib.ExitStack() as hooks:
        for name in parts:
            holder, last = _holder(pipeline, name)
            part = getattr(holder, last)
            if not is_torch(part):
                raise UsageError(f"part {name!r} is {type(part).__name__}: expected an nn.Module")
            handle = part.register_forward_pre_hook(recorder(name, part), with_kwargs=True)
            hooks.callback(handle.remove)
        for sample in samples:
            run(sample)
    for name, found in recorded.items():
        if not found:
            raise SampleError(f"running the pipeline never called its part {name!r}", fix="name the part that it calls")
    return recorded


def _kept(value: Any) -> Any:
    """Return a copy of an argument, which the pipeline may change after the call."""
    if hasattr(value, "detach"):
        return value.detach().cpu().clone()
    if isinstance(value, Mapping):
        return {key: _kept(part) for key, part in value.items()}
    if type(value) in (tuple, list):
        return type(value)(map(_kept, value))
    return value


def _timed(
    pipeline: Any, models: Mapping[str, Model], run: Callable[[Any], Any], samples: Sequence[Any], rounds: int
) -> tuple[list[float], list[float], tuple[list[Any], list[Any]]]:
    """Run the whole with its own parts and with the models in turn; return ms of one run by round, and the answers."""
    times: tuple[list[float], list[float]] = [], []
    answers: tuple[list[Any], list[Any]] = [], []

    def once() -> tuple[float, list[Any]]:
        begin = time.perf_counter_ns()
        found = [run(sample) for sample in samples]
        return (time.perf_counter_ns() - begin) / 1e6 / len(samples), found

    for turn in range(rounds + 1):  # the first warms up
        for side in (0, 1):
            with _in_place(pipeline, models) if side else contextlib.nullcontext():
                elapsed, found = once()
            answers[side][:] = found
            if turn:
                times[side].append(elapsed)
    return *times, answers


@contextlib.contextmanager
def _in_place(pipeline: Any, models: Mapping[str, Model]) -> Iterator[None]:
    own = {name: replace(pipeline, name, model) for name, model in models.items()}
    try:
        yield
    finally:
        for name, part in own.items():
            holder, last = _holder(pipeline, name)
            setattr(holder, last, part)


def _difference(before: list[Any], after: list[Any]) -> tuple[float | None, bool]:
    """Compare what the pipeline gave: floats by their largest difference, all else as it is."""
    largest: float | None = None
    one, other = list(leaves(before, "")), list(leaves(after, ""))
    equal = [name for name, _ in one] == [name for name, _ in other]
    for (_, a), (_, b) in zip(one, other, strict=False):
        if not is_tensor(a) and not isinstance(a, float):
            equal = equal and bool(a == b)
            continue
        x, y = array(a), array(b)
        if x.shape != y.shape or x.dtype.kind not in "fc":
            equal = equal and x.shape == y.shape and bool(np.array_equal(x, y))
        elif x.size:
            largest = max(largest or 0.0, float(np.abs(x - y).max()))
    return largest, equal


def _holder(parent: Any, name: str) -> tuple[Any, str]:
    """Return the object that has the part, and the part's own name."""
    *path, last = name.split(".")
    for step in path:
        parent = getattr(parent, step, None)
    if not hasattr(parent, last):
        named = [key for key, _ in parent.named_children()] if is_torch(parent) else []
        raise UsageError(f"there is no part {name!r}{nearest(last, named)}", fix=f"it has {named}" if named else None)
    return parent, last


def _module(model: Model, part: Any) -> Any:
    """Make a module that calls the model and answers for everything else as the part does."""
    import torch

    class Replaced(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.__dict__["accel_model"], self.__dict__["accel_part"] = model, part  # neither is a submodule
            self.training = False

        def forward(self, *args: Any, **kwargs: Any) -> Any:
            return model(*args, **kwargs)

        def __getattr__(self, name: str) -> Any:
            return getattr(self.__dict__["accel_part"], name)

        def extra_repr(self) -> str:
            return repr(model)

    return Replaced()
