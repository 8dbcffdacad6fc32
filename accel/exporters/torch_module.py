"""Torch modules as people have them: compiled, in parallel, quantised, scripted, with arguments that nest tensors."""

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch.utils import _pytree as pytree

from accel.core.calls import as_array
from accel.core.errors import InputError, SampleError
from accel.exporters.axes import known_input
from accel.exporters.positional import HALVES, Nested

QUANTISED = ("torch.ao.nn.quantized", "torch.nn.quantized")
Feeds = tuple[Mapping[str, np.ndarray], ...]


def plain(module: torch.nn.Module) -> torch.nn.Module:
    """Return the module that torch.compile, DataParallel and the like wrap, in eval mode on the CPU, at least FP32.

    An encoder of padded sequences computes what stands behind their ends, as every graph of it does: its nested
    tensors answer zeros there.

    Raises:
        InputError: layers are quantised: they hold packed integers that nothing but eager torch reads.
    """
    module = _unwrapped(module)
    for name, part in module.named_modules():
        kind = type(part)
        if kind.__module__.startswith(QUANTISED):
            raise InputError(
                f"layer {name!r} is quantised ({kind.__module__}.{kind.__name__}): packed weights cannot be exported",
                fix="give the float model, before quantize_dynamic or convert; accel quantises it: --targets "
                "ort-int8,ort-int8-dynamic,openvino-int8",
            )
        if isinstance(part, torch.jit.ScriptModule) and not isinstance(module, torch.jit.ScriptModule):
            raise InputError(
                f"layer {name!r} is TorchScript inside a Python module, and only a whole model of it can be exported",
                fix="return torch.jit.script of the whole module, or build it from the layer's Python class",
            )
        if isinstance(part, torch.nn.TransformerEncoder):
            part.use_nested_tensor = False
    module = module.cpu().eval()
    if any(t.dtype in HALVES for t in module.state_dict().values() if hasattr(t, "dtype")):
        module = module.float()
    return module


def _unwrapped(module: torch.nn.Module) -> torch.nn.Module:
    while True:
        inner = getattr(module, "_orig_mod", None)
        if isinstance(module, torch.nn.DataParallel | torch.nn.parallel.DistributedDataParallel):
            inner = module.module
        if not isinstance(inner, torch.nn.Module):
            break
        module = inner
    if not isinstance(module, torch.jit.ScriptModule):
        module._compiled_call_impl = None  # of ``module.compile()``
        for name, part in list(module.named_children()):
            if (found := _unwrapped(part)) is not part:
                setattr(module, name, found)
    return module


def arguments(module: torch.nn.Module) -> dict[str, bool]:
    """Return the names of a module's inputs, and whether each must be given.

    Raises:
        InputError: a TorchScript module that demands something else than a tensor.
    """
    if isinstance(module, Nested):
        return dict.fromkeys(module.names, True)
    if isinstance(module, torch.jit.ScriptModule):
        found = {}
        for argument in list(module.forward.schema.arguments)[1:]:
            required = not argument.has_default_value()
            if required and str(argument.type) != "Tensor":
                raise InputError(
                    f"argument {argument.name!r} of the TorchScript module is {argument.type}: inputs are tensors",
                    fix="script a module around it that takes tensors and gives it that value, or give the model that "
                    "it was scripted from as `file.py:factory`",
                )
            found[argument.name] = required
        return found
    return {
        p.name: p.default is p.empty for p in _parameters(module) if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)
    }


def _parameters(module: torch.nn.Module) -> list[inspect.Parameter]:
    return list(inspect.signature(module.forward).parameters.values())


def bound(module: torch.nn.Module, samples: Any) -> tuple[torch.nn.Module, Feeds]:
    """Turn a factory's samples into feeds of arrays, and the module into one that takes these by keyword.

    A tensor inside a tuple, list or dict is called by its path (``batch_x``, ``pair_0``); numbers, texts and None are
    given to the model as they are, every time.

    Args:
        samples: a dict name → value, a tuple of values in the order of forward's parameters, one tensor, or a list of
            such.

    Raises:
        SampleError: something else, a name that the model does not take, or samples of different structure.
    """
    found = [
        _call(module, sample, index) for index, sample in enumerate(samples if isinstance(samples, list) else [samples])
    ]
    if not found:
        raise SampleError("the factory returned an empty list of samples", fix="return the module alone, or samples")
    leaves, spec = pytree.tree_flatten_with_path(found[0], is_leaf=_is_leaf)
    names, fixed = [], {}
    for place, (path, leaf) in enumerate(leaves):
        if _is_leaf(leaf):
            names.append(_name(path))
        else:
            fixed[place] = leaf
    if len(set(names)) < len(names):
        raise SampleError(f"two tensors of a sample have one name: {names}", fix="rename the keys of the nested sample")
    feeds = []
    for index, sample in enumerate(found):
        own, other = pytree.tree_flatten(sample, is_leaf=_is_leaf)
        if other != spec or any(not _same(own[place], value) for place, value in fixed.items()):
            raise SampleError(f"sample {index} is not made like sample 0: the same tensors and values must be in all")
        arrays = [as_array(leaf) for place, leaf in enumerate(own) if place not in fixed]
        feeds.append(dict(zip(names, arrays, strict=True)))
    scalars = [name for name, array in feeds[0].items() if not array.ndim]
    feeds = [{n: a.reshape(1) if n in scalars else a for n, a in feed.items()} for feed in feeds]
    flat = not found[0][0] and set(names) == set(found[0][1])
    if isinstance(module, torch.jit.ScriptModule) and not flat:
        raise SampleError("a TorchScript module takes tensors by name only", fix=f"it takes {list(arguments(module))}")
    return (module if flat and not scalars else Nested(module, names, spec, fixed, scalars)), tuple(feeds)


def _call(module: torch.nn.Module, sample: Any, index: int) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the positional and keyword arguments that a sample means."""
    if not isinstance(sample, Mapping | tuple) and not _is_array(sample):
        raise SampleError(
            f"sample {index} is {type(sample).__name__}: expected a dict name → array or a tuple of arrays"
        )
    names, required, rest, more = list(arguments(module)), [n for n, r in arguments(module).items() if r], False, False
    if not isinstance(module, torch.jit.ScriptModule):
        kinds = {p.kind for p in _parameters(module)}
        rest, more = inspect.Parameter.VAR_POSITIONAL in kinds, inspect.Parameter.VAR_KEYWORD in kinds
    if isinstance(sample, Mapping):
        if len(required) == 1 and not more and not set(sample) & set(names) and len(sample) > 1:
            return (), {required[0]: dict(sample)}  # the one argument is the dict itself
        for name in sample:
            if not more:
                known_input(name, names, f"sample {index}")
        return (), dict(sample)
    given = sample if isinstance(sample, tuple) else (sample,)
    if rest:
        return given, {}
    if len(given) > len(names):
        raise SampleError(f"sample {index} has {len(given)} arrays, and the model takes {names}")
    return (), dict(zip(names, given, strict=False))


def _name(path: Sequence[Any]) -> str:
    """Return ``batch_x`` for the path of ``kwargs["batch"]["x"]``; positional arguments count from ``input_0``."""
    keys = [str(getattr(key, "key", getattr(key, "idx", getattr(key, "name", key)))) for key in path]
    return "_".join(["input", *keys[1:]] if keys[0] == "0" else keys[1:])


def _is_array(value: Any) -> bool:
    return isinstance(value, torch.Tensor | np.ndarray | np.generic)


def _is_leaf(value: Any) -> bool:
    """Say whether a value is not a structure: nested lists of plain numbers are one array."""
    return _is_array(value) or (isinstance(value, list) and bool(value) and not any(map(_holds_array, value)))


def _holds_array(value: Any) -> bool:
    return any(map(_is_array, pytree.tree_leaves(value)))


def _same(value: Any, other: Any) -> bool:
    return type(value) is type(other) and bool(value == other)
