"""Whose modules and tensors a user gave. No framework is imported: a value of one says that its process has it."""

import sys
from typing import Any

import numpy as np

from accel.core.calls import as_array


def _loaded(name: str) -> Any:
    return sys.modules.get(name)


def is_torch(model: Any) -> bool:
    """Say whether a value is a torch module."""
    return (torch := _loaded("torch")) is not None and isinstance(model, torch.nn.Module)


def is_keras(model: Any) -> bool:
    """Say whether a value is a Keras model or layer."""
    return (keras := _loaded("keras")) is not None and isinstance(model, keras.layers.Layer)


def given(value: Any, like: Any) -> tuple[np.ndarray, Any]:
    """Return a value as an array, and what makes a tensor of its library from an array."""
    if type(value) is np.ndarray:
        return value, like
    if hasattr(value, "detach"):
        from_numpy = sys.modules["torch"].from_numpy
        try:
            return value.numpy(), from_numpy  # what fails lies on another device, has gradients or is bfloat16
        except (RuntimeError, TypeError):
            device = value.device
            return as_array(value), lambda array: from_numpy(array).to(device)
    if (tensorflow := _loaded("tensorflow")) is not None and tensorflow.is_tensor(value):
        return value.numpy(), tensorflow.convert_to_tensor
    return np.asarray(value), like
