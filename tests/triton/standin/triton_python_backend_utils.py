"""What Triton's Python backend gives a model, as far as accel's model.py uses it.

Names, arguments and behaviour follow python_backend's README ("TRITONBACKEND_Model" and "Error Handling" sections): a
request has its input tensors and the names of the outputs it wants; a response has tensors or one error.
"""

from collections.abc import Sequence

import numpy as np


class Tensor:
    """A named array."""

    def __init__(self, name: str, array: np.ndarray) -> None:
        if not isinstance(array, np.ndarray) or not array.flags["C_CONTIGUOUS"]:
            raise TypeError(f"tensor {name!r} needs a contiguous array")
        self._name, self._array = name, array

    def name(self) -> str:
        return self._name

    def as_numpy(self) -> np.ndarray:
        return self._array


class TritonError:
    """An error with a code."""

    INTERNAL = 1
    INVALID_ARG = 3

    def __init__(self, message: str, code: int = 0) -> None:
        self._message, self._code = message, code

    def message(self) -> str:
        return self._message

    def code(self) -> int:
        return self._code


class InferenceRequest:
    """One request."""

    def __init__(self, inputs: Sequence[Tensor], requested_output_names: Sequence[str]) -> None:
        self._inputs, self._wanted = list(inputs), list(requested_output_names)

    def inputs(self) -> list[Tensor]:
        return self._inputs

    def requested_output_names(self) -> list[str]:
        return self._wanted


class InferenceResponse:
    """One response."""

    def __init__(self, output_tensors: Sequence[Tensor] = (), error: TritonError | None = None) -> None:
        self._tensors, self._error = list(output_tensors), error

    def output_tensors(self) -> list[Tensor]:
        return self._tensors

    def error(self) -> TritonError | None:
        return self._error
