"""The module that accel exports and compiles: tensors in by position, a tuple of tensors out.

The only module of accel that imports torch at its top; it is imported inside functions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from accel.core.errors import AccelError, StageError


class Positional(torch.nn.Module):
    """Wrap a model so that it takes tensors in the order of ``inputs`` and returns those in ``outputs`` as a tuple.

    Args:
        model: any module.
        inputs: names of its inputs, in the order in which this module takes them.
        outputs: names of the outputs wanted, in order; None for all.
        by_name: whether the model takes its inputs as keywords, else by position.
        takes: dtype that the model wants of an input where clients give another, by name.
        gives: dtype that clients see of an output where the model gives another, by name.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        inputs: Sequence[str],
        *,
        outputs: Sequence[str] | None,
        by_name: bool,
        takes: Mapping[str, str] | None = None,
        gives: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__()
        # Not eval(): the module of an exported program refuses to be switched.
        self.training = False
        self.model = model
        self.inputs = tuple(inputs)
        self.outputs = None if outputs is None else tuple(outputs)
        self.by_name = by_name
        self._takes = {name: getattr(torch, dtype) for name, dtype in (takes or {}).items()}
        self._gives = {name: getattr(torch, dtype) for name, dtype in (gives or {}).items()}

    def forward(self, *args: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Run the model on tensors in the order of ``inputs``, with casts where it and its clients differ.

        A scalar is given as one element: Triton has no tensors without dims.
        """
        given = [_cast(a, self._takes.get(name)) for name, a in zip(self.inputs, args, strict=True)]
        tensors = named_tensors(self.result(*given))
        names = tensors if self.outputs is None else self.outputs
        return tuple(_cast(torch.atleast_1d(tensors[name]), self._gives.get(name)) for name in names)

    def result(self, *args: torch.Tensor) -> Any:
        """Run the model and return its own result, before it is cut down to a tuple."""
        return self.model(**dict(zip(self.inputs, args, strict=True))) if self.by_name else self.model(*args)


def _cast(tensor: torch.Tensor, dtype: torch.dtype | None) -> torch.Tensor:
    return tensor if dtype is None else tensor.to(dtype)


def call(function: Callable[..., Any], inputs: Sequence[str], feed: Mapping[str, np.ndarray]) -> Any:
    """Call a module, or its ``result``, on arrays in the order of ``inputs``.

    Raises:
        StageError: the model's code raised; the message names the shapes it was given.
    """
    # A copy, since torch cannot take a read-only array; inputs are small beside the work.
    args = [torch.from_numpy(np.array(feed[n])) for n in inputs]
    try:
        with torch.inference_mode():
            return function(*args)
    except AccelError:
        raise
    except Exception as error:
        shapes = ", ".join(f"{n} {feed[n].dtype}{list(feed[n].shape)}" for n in inputs)
        raise StageError(
            f"the model's forward raised {type(error).__name__} on {shapes}: {error}",
            fix="run the model by hand on such inputs; shapes are set with --min-shape, --shape and --max-shape, "
            "integers with --range",
        ) from error


def client_array(tensor: torch.Tensor) -> np.ndarray:
    """Return what a client gets; narrow floats, which NumPy or clients lack, as float32, scalars as one element."""
    plain = tensor.float() if tensor.dtype in (torch.bfloat16, torch.float16) else tensor
    return torch.atleast_1d(plain).numpy()


def named_tensors(result: Any) -> dict[str, torch.Tensor]:
    """Give the tensors of a forward's result names: mapping keys, ``output``, or ``output_0``, ``output_1``, …

    Raises:
        StageError: the result holds no tensor, or a nested or foreign value that no client could receive.
    """
    if isinstance(result, torch.Tensor):
        return {"output": result}
    if isinstance(result, Mapping):
        items = [(str(k), v) for k, v in result.items() if v is not None]
    elif isinstance(result, tuple | list):
        names = getattr(result, "_fields", None) or [f"output_{i}" for i in range(len(result))]
        items = [(n, v) for n, v in zip(names, result, strict=True) if v is not None]
    else:
        items = []
    if not items or any(not isinstance(v, torch.Tensor) for _, v in items):
        kinds = ", ".join(f"{n}: {type(v).__name__}" for n, v in items) or type(result).__name__
        raise StageError(
            f"the model's forward returned {kinds}: expected a tensor, or a flat tuple or dict of tensors",
            fix="wrap the model in a `file.py:factory` whose forward returns the tensors that clients need",
        )
    return dict(items)
