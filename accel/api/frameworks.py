"""Whose modules and tensors a user gave. No framework is imported: a value of one says that its process has it."""

import sys
from typing import Any

import numpy as np


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
    if isinstance(value, np.ndarray):
        return value, like
    if hasattr(value, "detach"):
        import torch

        device, value = value.device, value.detach()
        if value.dtype is torch.bfloat16:
            value = value.float()

        def tensor(array: np.ndarray) -> torch.Tensor:
            made = torch.from_numpy(array if array.flags.writeable else array.copy())
            return made if device.type == "cpu" else made.to(device)

        return value.cpu().numpy() if device.type != "cpu" else value.numpy(), tensor
    if (tensorflow := _loaded("tensorflow")) is not None and tensorflow.is_tensor(value):
        return value.numpy(), tensorflow.convert_to_tensor
    return np.asarray(value), like
