"""Whether a torch model answers the same inputs alike, and what in it differs where it does not."""

import traceback
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from accel.core.errors import InputError
from accel.exporters.probe import alike

OWN = (str(Path(torch.__file__).parent), str(Path(__file__).parents[1]))


def check(module: torch.nn.Module, run: Callable[[], Mapping[str, np.ndarray]]) -> None:
    """Run a model twice on the same inputs and compare.

    Args:
        module: the model; its tensors and plain attributes are looked at.
        run: gives its outputs.

    Raises:
        InputError: the answers differ; the message names the output, and what draws random numbers or changes.
    """
    first, drawn = run(), _Random()
    with drawn:
        second = run()
    differing = [n for n, v in first.items() if not alike(v, second[n])]
    if not differing:
        return
    before = _state(module)
    run()
    changed = [name for name, value in _state(module).items() if not _equal(value, before.get(name))]
    found = [f"{place} draws random numbers ({', '.join(sorted(names))})" for place, names in drawn.places.items()]
    found += [f"its {name!r} changes with every call" for name in changed]
    eval_mode = "call model.eval(), write F.dropout(x, p, training=self.training), and take noise as an input"
    state = "take the state as an input and return the new one, or write nothing to it in eval mode"
    raise InputError(
        f"the source is not deterministic: output {differing[0]!r} differs between two runs on the same inputs; "
        f"{'; '.join(found) or 'nothing that it holds changes, and no operator of torch draws random numbers'}",
        fix=eval_mode if drawn.places else state,
    )


def marks(module: torch.nn.Module) -> dict[str, Any]:
    """Return what shows that a module's tensors or numbers were written to, by dotted name, without a copy of them."""
    return {
        name: (id(value), None if value.is_inference() else value._version) if torch.is_tensor(value) else value
        for name, value in _held(module)
    }


def check_first_call(
    before: Mapping[str, Any], module: torch.nn.Module, run: Callable[[], Mapping[str, np.ndarray]],
    run_fresh: Callable[[], Mapping[str, np.ndarray]],
) -> None:  # fmt: skip
    """Hold a module that earlier calls wrote to against one that is called for the first time.

    Args:
        before: its ``marks`` when it was new.
        run / run_fresh: give the outputs of the module and of a new one on the same values, which are not those that
            the module was called with first.

    Raises:
        InputError: the answers differ, as they do where the first call initialises the module.
    """
    written = [name for name, mark in marks(module).items() if mark != before.get(name)]
    if not written:
        return
    fresh = run_fresh()
    if differing := [name for name, value in run().items() if not alike(value, fresh[name])]:
        raise InputError(
            f"the source answers by what it was called with before: output {differing[0]!r} of a new one differs; "
            f"{', '.join(map(repr, written[:3]))} changed since",
            fix="initialise it in the factory: call the model with real data there, or load what training left",
        )


class _Random(TorchDispatchMode):
    """Remembers which operators draw random numbers, by the line of the model's code that calls them."""

    def __init__(self) -> None:
        super().__init__()
        self.places: dict[str, set[str]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if torch.Tag.nondeterministic_seeded in func.tags:
            self.places.setdefault(line_of(traceback.extract_stack()), set()).add(str(func))
        return func(*args, **(kwargs or {}))


def line_of(stack: traceback.StackSummary) -> str:
    """Return the innermost line of a stack that is neither torch's nor accel's: ``net.py:12 `x * 2` ``."""
    own = [f for f in stack if not f.filename.startswith((*OWN, "<"))]
    return f"{Path(own[-1].filename).name}:{own[-1].lineno} `{own[-1].line}`" if own else "a layer of torch"


def _state(module: torch.nn.Module) -> dict[str, Any]:
    """Return the tensors and numbers that a module and its parts hold, by dotted name; tensors are copied."""
    return {name: value.detach().clone() if torch.is_tensor(value) else value for name, value in _held(module)}


def _held(module: torch.nn.Module) -> Iterator[tuple[str, Any]]:
    """Yield the tensors and numbers that a module and its parts hold, by dotted name."""
    for name, part in module.named_modules():
        for key, value in {**part._buffers, **part._parameters, **vars(part)}.items():
            if isinstance(value, torch.Tensor | int | float):
                yield f"{name}.{key}".lstrip("."), value


def _equal(value: Any, other: Any) -> bool:
    if isinstance(value, torch.Tensor) and isinstance(other, torch.Tensor):
        return value.shape == other.shape and torch.equal(value, other)
    return bool(value == other)
