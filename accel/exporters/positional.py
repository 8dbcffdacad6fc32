"""The module that accel exports and compiles: tensors in by position, a tuple of tensors out.

It imports torch at its top, and is itself imported inside functions.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch.utils import _pytree as pytree

from accel.core.calls import tensors
from accel.core.errors import AccelError, SampleError, StageError

HALVES = (torch.float16, torch.bfloat16)


class Positional(torch.nn.Module):
    """Wrap a model so that it takes tensors in the order of ``inputs`` and returns those in ``outputs`` as a tuple.

    Args:
        model: any module that takes its inputs by keyword.
        inputs: names of its inputs, in the order in which this module takes them.
        outputs: names of the outputs wanted, in order; None for all.
        takes: dtype that the model wants of an input where clients give another, by name.
        gives: dtype that clients see of an output where the model gives another, by name.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        inputs: Sequence[str],
        *,
        outputs: Sequence[str] | None,
        takes: Mapping[str, str] | None = None,
        gives: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__()
        # Not eval(): the module of an exported program refuses to be switched.
        self.training = False
        self.model = model
        self.inputs = tuple(inputs)
        self.outputs = None if outputs is None else tuple(outputs)
        self._takes = {name: getattr(torch, dtype) for name, dtype in (takes or {}).items()}
        self._gives = {name: getattr(torch, dtype) for name, dtype in (gives or {}).items()}

    def forward(self, *args: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Run the model on tensors in the order of ``inputs``, with casts where it and its clients differ.

        A scalar is given as one element: Triton has no tensors without dims. Halves become float32, unless ``gives``
        says otherwise: NumPy or clients lack them (``client_array``).
        """
        given = [_cast(a, self._takes.get(name)) for name, a in zip(self.inputs, args, strict=True)]
        tensors = named_tensors(self.result(*given), self.inputs)
        names = tensors if self.outputs is None else self.outputs
        return tuple(_given(torch.atleast_1d(tensors[name]), self._gives.get(name)) for name in names)

    def in_precision(self, dtype: torch.dtype) -> "Positional":
        """Compute in another float type from now on: the weights, and what is cast for the model."""
        self.to(dtype)
        self._takes = {name: dtype if t.is_floating_point else t for name, t in self._takes.items()}
        return self

    def result(self, *args: torch.Tensor) -> Any:
        """Run the model and return its own result, before it is cut down to a tuple."""
        return self.model(**dict(zip(self.inputs, args, strict=True)))


class Nested(torch.nn.Module):
    """Make a module take its tensors by keyword, however its own arguments nest them.

    Args:
        model: the module.
        names: a name for each tensor among its arguments, in the order in which the tree is flattened.
        spec: the tree of ``(args, kwargs)``; a leaf that is not a tensor stands in ``fixed``.
        fixed: place among the tree's leaves → the value that is given there every time.
        scalars: names of tensors without axes, which clients give as one element.
        casts: dtype of each tensor that clients give in another one.
    """

    def __init__(
        self,
        model: Callable[..., Any],
        names: Sequence[str],
        spec: pytree.TreeSpec,
        fixed: Mapping[int, Any] | None = None,
        scalars: Sequence[str] = (),
        casts: Mapping[str, torch.dtype] | None = None,
    ) -> None:
        super().__init__()
        # Not eval(): the module of an exported program refuses to be switched.
        self.training = False
        self.model = model
        self.names = tuple(names)
        self._spec = spec
        self._fixed = dict(fixed or {})
        self.scalars = frozenset(scalars)
        self._casts = dict(casts or {})

    def forward(self, **given: torch.Tensor) -> Any:
        """Run the model on tensors by name."""
        cast = {n: _cast(given[n], self._casts.get(n)) for n in self.names}
        tensors = iter([cast[n].reshape(()) if n in self.scalars else cast[n] for n in self.names])
        leaves = [self._fixed[i] if i in self._fixed else next(tensors) for i in range(self._spec.num_leaves)]
        args, kwargs = pytree.tree_unflatten(leaves, self._spec)
        return self.model(*args, **kwargs)


def _given(tensor: torch.Tensor, dtype: torch.dtype | None) -> torch.Tensor:
    return _cast(tensor, torch.float32 if dtype is None and tensor.dtype in HALVES else dtype)


def _cast(tensor: torch.Tensor, dtype: torch.dtype | None) -> torch.Tensor:
    return tensor if dtype is None else tensor.to(dtype)


def call(function: Callable[..., Any], inputs: Sequence[str], feed: Mapping[str, np.ndarray]) -> Any:
    """Call a module, or its ``result``, on arrays in the order of ``inputs``.

    Raises:
        StageError: the model's code raised; the message names the shapes it was given, and the ends of integers.
    """
    # A copy, since torch cannot take a read-only array; inputs are small beside the work.
    args = [torch.from_numpy(np.array(feed[n])) for n in inputs]
    try:
        with torch.inference_mode():
            return function(*args)
    except AccelError:
        raise
    except Exception as error:
        ends = {
            n: f" of {feed[n].min()} to {feed[n].max()}" for n in inputs if feed[n].dtype.kind in "iu" and feed[n].size
        }
        shapes = ", ".join(f"{n} {feed[n].dtype}{list(feed[n].shape)}{ends.get(n, '')}" for n in inputs)
        raise StageError(
            f"the model's forward raised {type(error).__name__} on {shapes}: {error}",
            fix="run the model by hand on such inputs; shapes are set with --min-shape, --shape and --max-shape, "
            "integers with --range",
        ) from error


def client_array(tensor: torch.Tensor) -> np.ndarray:
    """Return what a client gets; narrow floats, which NumPy or clients lack, as float32, scalars as one element."""
    if tensor.is_complex():
        raise StageError("an output is complex, which no client could receive", fix="return torch.view_as_real(output)")
    plain = tensor.float() if tensor.dtype in HALVES else tensor
    return torch.atleast_1d(plain).numpy()


def named_tensors(result: Any, inputs: Collection[str] = ()) -> dict[str, torch.Tensor]:
    """Give the tensors of a forward's result names.

    A lone tensor is ``output``; else the keys of mappings, the fields of named tuples and dataclasses, and the places
    in tuples and lists (``output_0`` at the top), joined by ``_`` where they are nested. Parts that are None are left
    out; what has the name of an input is called ``output_<name>``.

    Raises:
        StageError: the result holds no tensor, a value that no client could receive, or two parts of one name.
    """
    try:
        found = tensors(result, inputs)
        if foreign := [f"{name} of type {type(v).__name__}" for name, v in found.items() if not torch.is_tensor(v)]:
            raise SampleError(f"the model returned {foreign[0]}: expected tensors of torch")
    except SampleError as error:
        fix = "wrap the model in a `file.py:factory` whose forward returns the tensors that clients need"
        raise StageError(error.message, fix=fix) from error
    return found
