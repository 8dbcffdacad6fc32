"""What a user gives as samples, as calls of the model: lists, data loaders, datasets and generators of inputs.

A sample is what one call takes: a tensor, a tuple or list of arguments, or a dict of them by name, each with its batch
axis. The items of a dataset have none; they get one.
"""

import inspect
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from accel.core.calls import CONSTANTS, as_array, is_tensor, leaves
from accel.core.errors import SampleError, UsageError, nearest
from accel.exporters.samples import CALIBRATION_ITEMS, GATE_ITEMS, shuffled

MOST = CALIBRATION_ITEMS + GATE_ITEMS
"""So many samples are taken; more would calibrate and prove nothing more."""
LABELS = ("label", "labels", "target", "targets")
"""Keys of a dataset that are not inputs, where the model has no such argument or it is optional."""


@dataclass(frozen=True)
class CallArguments:
    """The arguments of one call by name, the tensors among them, and the rest."""

    bound: inspect.BoundArguments
    feed: Mapping[str, Any]
    constants: Mapping[str, Any]


def each(samples: Any) -> Iterator[tuple[int, Any]]:
    """Yield the number of a sample and the sample, one after the other, ``MOST`` at most.

    Of a longer list or a larger dataset they are drawn from all of it, always the same ones: its order is often that of
    its classes. The items of a dataset get a batch axis; a DataLoader gives batches.

    Raises:
        SampleError: it holds none, or is nothing that samples can come from.
    """
    if isinstance(samples, Mapping | tuple) or is_tensor(samples):
        yield 0, samples
        return
    if hasattr(samples, "__getitem__") and hasattr(samples, "__len__") and not hasattr(samples, "batch_size"):
        for index in sorted(shuffled(range(len(samples)), MOST)):
            yield index, samples[index] if isinstance(samples, list) else _with_batch_axis(samples[index])
        return
    if not isinstance(samples, Iterable):
        raise SampleError(
            f"samples are {type(samples).__name__}: expected a list, a DataLoader, a Dataset or a generator of inputs",
            fix="samples=[{'input_ids': ids, 'attention_mask': mask}, …], one dict or tuple of tensors for each call",
        )
    yield from enumerate(itertools.islice(samples, MOST))


def calls(forward: Callable[..., Any], samples: Any, what: str) -> list[CallArguments]:
    """Bind samples to the arguments of a function.

    Args:
        forward: what takes them.
        what: the model, for messages.

    Raises:
        SampleError: there are none, one does not fit the arguments, or they do not all give the same tensors.
    """
    signature = inspect.signature(forward)
    example = f"for example samples=[{_example(signature)}]"
    if samples is None:
        raise SampleError(f"{what} needs samples: a few real inputs to trace, calibrate and compare with", fix=example)
    found = {i: _call(signature, sample, f"sample {i}", example) for i, sample in each(samples)}
    if not found:
        raise SampleError(f"the samples of {what} are empty", fix=example)
    number, first = next(iter(found.items()))
    if not first.feed:
        raise SampleError(f"sample {number} of {what} holds no tensor", fix=example)
    for index, call in found.items():
        if list(call.feed) != list(first.feed) or dict(call.constants) != dict(first.constants):
            raise SampleError(
                f"sample {index} gives {_told(call)}, and sample {number} {_told(first)}: all must give the same",
                fix="an input that some calls have and others have not makes two models: optimise each apart",
            )
    return list(found.values())


def _call(signature: inspect.Signature, sample: Any, where: str, example: str) -> CallArguments:
    args, kwargs = _arguments(signature, sample)
    try:
        bound = signature.bind(*args, **kwargs)
    except TypeError as error:
        unknown = next((n for n in kwargs if n not in signature.parameters), None)
        close = nearest(unknown, signature.parameters) if unknown else ""
        raise SampleError(f"{where} does not fit the model: {error}{close}", fix=example) from error
    feed, constants = {}, {}
    for name, leaf in _leaves(bound):
        if is_tensor(leaf):
            feed[name] = leaf
        elif isinstance(leaf, CONSTANTS):
            constants[name] = leaf
        else:
            raise SampleError(
                f"{where}: argument {name!r} is {type(leaf).__name__}: expected tensors, and numbers or texts that are "
                "the same in every call",
                fix=example,
            )
    return CallArguments(bound, feed, constants)


def _arguments(signature: inspect.Signature, sample: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments that a sample means, without the labels that a data set holds beside the inputs."""
    parameters = signature.parameters
    open_ended = {p.kind for p in parameters.values()}
    if isinstance(sample, Mapping):
        required = [p.name for p in parameters.values() if p.default is p.empty and p.kind is p.POSITIONAL_OR_KEYWORD]
        if len(required) == 1 and len(parameters) == 1 and not set(sample) & set(parameters):
            return (dict(sample),), {}  # the one argument is the dict itself
        labels = {n for n in LABELS if n in sample and (n not in parameters or parameters[n].default is None)}
        return (), {str(k): v for k, v in sample.items() if k not in labels and not isinstance(v, str)}
    given = tuple(sample) if isinstance(sample, tuple | list) else (sample,)
    if inspect.Parameter.VAR_POSITIONAL not in open_ended:
        given = given[: sum(p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) for p in parameters.values())]
    return given, {}


def _leaves(bound: inspect.BoundArguments) -> Iterator[tuple[str, Any]]:
    for name, value in bound.arguments.items():
        open_ended = bound.signature.parameters[name].kind is inspect.Parameter.VAR_KEYWORD
        yield from leaves(value, "" if open_ended else name)


def rebound(bound: inspect.BoundArguments, tensors: Mapping[str, Any]) -> inspect.BoundArguments:
    """Return the same call on other tensors, by name."""

    def filled(value: Any, name: str) -> Any:
        if is_tensor(value):
            return tensors[name]
        path = f"{name}_" if name else ""
        if isinstance(value, Mapping):
            return {key: filled(part, f"{path}{key}") for key, part in value.items()}
        if isinstance(value, tuple | list):
            names = getattr(value, "_fields", None) or map(str, range(len(value)))
            parts = [filled(part, path + key) for key, part in zip(names, value, strict=True)]
            return type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)
        return value

    parameters = bound.signature.parameters
    other = inspect.BoundArguments(bound.signature, type(bound.arguments)())
    for name, value in bound.arguments.items():
        open_ended = parameters[name].kind is inspect.Parameter.VAR_KEYWORD
        other.arguments[name] = filled(value, "" if open_ended else name)
    return other


def by_keyword(bound: inspect.BoundArguments) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments of a call, by name wherever they may be: what wraps a ``forward`` often looks for names."""
    parameters = bound.signature.parameters
    kinds = {name: parameters[name].kind for name in bound.arguments}
    if any(kind is inspect.Parameter.VAR_POSITIONAL for kind in kinds.values()):
        return bound.args, bound.kwargs
    args: list[Any] = []
    kwargs: dict[str, Any] = {}
    for name, value in bound.arguments.items():
        if kinds[name] is inspect.Parameter.POSITIONAL_ONLY:
            args.append(value)
        else:
            kwargs |= value if kinds[name] is inspect.Parameter.VAR_KEYWORD else {name: value}
    return tuple(args), kwargs


def array(value: Any) -> np.ndarray:
    """Return a tensor of any library as an array that is nobody else's."""
    return np.array(as_array(value))


def by_name(samples: Any, names: list[str]) -> list[dict[str, np.ndarray]]:
    """Turn samples into feeds of a model of which only the inputs' names are known: dicts, or tensors in their order.

    Raises:
        SampleError: a sample does not fit the names.
        UsageError: there are none.
    """
    example = f"for example samples=[{{{', '.join(f'{n!r}: array' for n in names)}}}, …]"
    feeds = []
    for index, sample in each(samples):
        if isinstance(sample, Mapping):
            feed = {str(k): v for k, v in sample.items() if k in names or k not in LABELS}
        else:
            given = sample if isinstance(sample, tuple | list) else (sample,)
            feed = dict(zip(names, given, strict=False))
        if set(feed) != set(names):
            raise SampleError(f"sample {index} gives {sorted(feed)}, and the model takes {names}", fix=example)
        feeds.append({name: array(feed[name]) for name in names})
    if not feeds:
        raise UsageError("the samples are empty", fix=example)
    return feeds


def _with_batch_axis(item: Any) -> Any:
    """Return an item of a dataset as a batch of one; labels and texts are left as they are."""
    if isinstance(item, Mapping):
        return {key: value if isinstance(value, str) else np.asarray(array(value))[None] for key, value in item.items()}
    if isinstance(item, tuple | list):
        return tuple(value if isinstance(value, str) else np.asarray(array(value))[None] for value in item)
    return array(item)[None]


def _example(signature: inspect.Signature) -> str:
    kinds = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    named = [p for p in signature.parameters.values() if p.kind not in kinds and p.default is p.empty]
    return f"{{{', '.join(f'{p.name!r}: tensor' for p in named) or repr('x') + ': tensor'}}}, …"


def _told(call: CallArguments) -> str:
    return f"{list(call.feed)}" + (f" with {dict(call.constants)}" if call.constants else "")
