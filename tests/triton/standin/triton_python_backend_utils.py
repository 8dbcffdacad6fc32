"""What Triton's Python backend gives a model, as far as accel's model.py uses it.

Names, arguments and behaviour follow python_backend's README ("TRITONBACKEND_Model" and "Error Handling" sections): a
request has its input tensors and the names of the outputs it wants; a response has tensors or one error.
"""

from collections.abc import Sequence
from typing import ClassVar

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


TRITONSERVER_RESPONSE_COMPLETE_FINAL = 1


class MetricFamily:
    """A family of metrics of the server's ``/metrics``."""

    COUNTER = 0
    counted: ClassVar[dict[str, float]] = {}

    def __init__(self, name: str, description: str, kind: int) -> None:
        self._name = name

    def Metric(self, labels: dict[str, str]) -> "MetricFamily":
        return self

    def increment(self, value: float) -> None:
        self.counted[self._name] = self.counted.get(self._name, 0) + value


class InferenceResponseSender:
    """Sends the one response of a request, of a model that is not decoupled."""

    def __init__(self, request: "InferenceRequest") -> None:
        self._request = request

    refuses: ClassVar[int] = 0
    """So many answers with tensors find no room from here on, as when shared memory is full."""

    def send(self, response: "InferenceResponse", flags: int = 0) -> None:
        if response.output_tensors() and type(self).refuses > 0:
            type(self).refuses -= 1
            raise RuntimeError("no space left in shared memory")
        if self._request.sent is not None or flags != TRITONSERVER_RESPONSE_COMPLETE_FINAL:
            raise RuntimeError("a model that is not decoupled sends one response, and it is the final one")
        self._request.sent = response
        InferenceRequest.answered.append(self._request)


class InferenceRequest:
    """One request."""

    answered: ClassVar[list["InferenceRequest"]] = []

    def __init__(self, inputs: Sequence[Tensor], requested_output_names: Sequence[str]) -> None:
        self._inputs, self._wanted = list(inputs), list(requested_output_names)
        self.sent: InferenceResponse | None = None

    def inputs(self) -> list[Tensor]:
        return self._inputs

    def get_response_sender(self) -> InferenceResponseSender:
        return InferenceResponseSender(self)

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
