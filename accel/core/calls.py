"""How Python calls a model: which arguments hold its inputs, and what its result is made of.

Tensors may be nested in tuples, lists, dicts and dataclasses. Each has the name of its path: ``mask``, ``pair_0``,
``batch_ids``; of a result ``output``, ``output_0``, ``logits``. A form has a JSON form like every value, so a
model that is loaded years later, in a process without its framework, is called and answers as it was then.
"""

import dataclasses
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from accel.core.errors import SampleError

if TYPE_CHECKING:
    import numpy as np

CONSTANTS = (bool, int, float, str, type(None))
"""Types of the arguments that are not tensors: they are the same in every call."""


@dataclass(frozen=True, slots=True)
class Structure:
    """What a result is made of.

    Attributes:
        kind: ``tensor``, ``scalar`` (a tensor without axes, which clients get as one element), ``none``, or the
            container; an ``object`` is a dataclass, a named tuple or a mapping of its own class.
        name: of a tensor or scalar, the output; of an object, its class (``module:Class``).
        keys: of a dict or an object.
        parts: what a container holds, in order.
    """

    kind: Literal["tensor", "scalar", "none", "tuple", "list", "dict", "object"]
    name: str = ""
    keys: tuple[str, ...] = ()
    parts: "tuple[Structure, ...]" = ()

    def names(self) -> Iterator[str]:
        """Yield the outputs."""
        if self.kind in ("tensor", "scalar"):
            yield self.name
        for part in self.parts:
            yield from part.names()

    def build(self, outputs: Mapping[str, Any]) -> Any:
        """Make the result of tensors by name."""
        if self.kind == "tensor":
            return outputs[self.name]
        if self.kind == "scalar":
            value = outputs[self.name]
            return value.reshape(()) if tuple(value.shape) == (1,) else value
        if self.kind == "none":
            return None
        parts = [part.build(outputs) for part in self.parts]
        if self.kind == "tuple":
            return tuple(parts)
        if self.kind == "list":
            return parts
        named = dict(zip(self.keys, parts, strict=True))
        if self.kind == "dict":
            return named
        cls = _known_class(self.name)
        return Outputs(named) if cls is None else cls(**named)


@dataclass(frozen=True, slots=True)
class CallForm:
    """How a model is called.

    Attributes:
        parameters: its arguments, in order.
        constants: path of an argument that is not a tensor → the value that it was optimised with.
        result: what it returns; None for its outputs by name (``Outputs``).
        dtypes: output → dtype that the model itself gives, where clients are promised another.
    """

    parameters: tuple[str, ...]
    constants: Mapping[str, Any] = field(default_factory=dict)
    result: Structure | None = None
    dtypes: Mapping[str, str] = field(default_factory=dict)


class Outputs(dict[str, Any]):
    """Outputs by name, as keys, as attributes, or by position."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(f"there is no output {name!r}: {list(self)}") from None

    def __getitem__(self, key: str | int | slice) -> Any:
        return super().__getitem__(key) if isinstance(key, str) else tuple(self.values())[key]


def as_array(value: Any) -> "np.ndarray":
    """Return a tensor of any library as an array, sharing memory where it can; bfloat16 becomes float32."""
    import numpy as np  # reading a run needs none

    if hasattr(value, "detach"):
        value = value.detach().cpu()
        value = (value.float() if str(value.dtype) == "torch.bfloat16" else value).numpy()
    return np.asarray(value)


def is_tensor(value: Any) -> bool:
    """Say whether a value is an array of NumPy, torch, TensorFlow or anything else that has a shape and a dtype."""
    return hasattr(value, "shape") and hasattr(value, "dtype")


def leaves(value: Any, name: str) -> Iterator[tuple[str, Any]]:
    """Yield what a value holds that is not a container, each with its path."""
    items = _items(value)
    if items is None:
        yield name, value
        return
    for key, part in items:
        yield from leaves(part, f"{name}_{key}" if name else key)


def structure(result: Any, taken: Collection[str] = ()) -> Structure:
    """Describe a result.

    Args:
        taken: names of inputs: an output that has one of them is called ``output_<name>``, since neither ONNX nor a
            client can tell the two apart.

    Raises:
        SampleError: it holds something that is neither a tensor nor None, or no tensor at all.
    """
    found = _structure(result, "", taken)
    names = list(found.names())
    if not names or len(set(names)) < len(names):
        raise SampleError(f"the model returned {type(result).__name__} with the tensors {names}: expected some")
    return found


def tensors(result: Any, taken: Collection[str] = ()) -> dict[str, Any]:
    """Return the tensors of a result by the names that its structure gives them; parts that are None are left out.

    Raises:
        SampleError: as ``structure``.
    """
    found = (leaf for _, leaf in leaves(result, "") if leaf is not None)
    return dict(zip(structure(result, taken).names(), found, strict=True))


def _structure(value: Any, name: str, taken: Collection[str]) -> Structure:
    if is_tensor(value):
        name = name or "output"
        while name in taken:
            name = f"output_{name}"
        return Structure("tensor" if len(value.shape) else "scalar", name)
    if value is None:
        return Structure("none")
    items = _items(value)
    if items is None:
        raise SampleError(
            f"the model returned {name or 'a result'} of type {type(value).__name__}: expected tensors, alone or in "
            "tuples, lists, dicts and dataclasses",
            fix="wrap the model in a module whose forward returns tensors",
        )
    plain = isinstance(value, tuple | list) and not hasattr(value, "_fields")
    top = "output_{}" if plain and not name else "{}"
    parts = [(key, top.format(key), part) for key, part in items]
    kept = [(key, _structure(part, f"{name}_{path}" if name else path, taken)) for key, path, part in parts]
    inside = tuple(part for _, part in kept)
    for kind in (tuple, list):
        if type(value) is kind:
            return Structure("tuple" if kind is tuple else "list", parts=inside)
    keys = tuple(key for key, _ in kept)
    if type(value) is dict:
        return Structure("dict", keys=keys, parts=inside)
    if isinstance(value, list):
        return Structure("list", parts=inside)
    return Structure("object", f"{type(value).__module__}:{type(value).__qualname__}", keys, inside)


def _items(value: Any) -> Sequence[tuple[str, Any]] | None:
    """Return the parts of a container with their keys; None of anything else."""
    if isinstance(value, Mapping):
        return [(str(key), part) for key, part in value.items()]
    if isinstance(value, tuple | list):
        return list(zip(getattr(value, "_fields", None) or map(str, range(len(value))), value, strict=True))
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return [(f.name, getattr(value, f.name)) for f in dataclasses.fields(value)]
    return None


def _known_class(name: str) -> type[Any] | None:
    """Return a class of results that this process has loaded by itself; nothing is imported for it."""
    module, _, path = name.partition(":")
    found: Any = sys.modules.get(module)
    for part in path.split("."):
        found = getattr(found, part, None)
    fits = isinstance(found, type) and (dataclasses.is_dataclass(found) or hasattr(found, "_fields"))
    return found if fits else None
