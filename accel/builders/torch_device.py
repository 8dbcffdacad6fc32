"""A torch session on a device: a stream, pinned host memory and device memory of its own for each slot.

Nothing waits before ``wait``: copies in, the model and copies out are queued in order on the slot's stream. Buffers and
the views on them stay for as long as the shapes do, so that a call adds only the copies.
"""

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from accel.builders import Session, timed_parts
from accel.core import gpu
from accel.core.errors import StageError, UnavailableError, first_line, raised_as
from accel.core.feeds import Feed
from accel.core.values import CallSplit, TensorSpec

SLOTS = 2
"""Requests in flight in throughput mode: one is copied while the other computes."""

Call = Callable[..., Sequence[Any]]


@dataclass(slots=True)
class _Input:
    """One input of a slot: host memory, the same memory as an array, and device memory."""

    host: torch.Tensor
    array: np.ndarray
    device: torch.Tensor


@dataclass(slots=True)
class _Slot:
    stream: Any
    inputs: dict[str, _Input] = field(default_factory=dict)
    results: Sequence[Any] = ()
    hosts: list[torch.Tensor] = field(default_factory=list)


def use_cuda() -> torch.device:
    """Return the first CUDA device, with TF32 off for FP32: a variant computes in what its name says.

    Raises:
        UnavailableError: torch is built without CUDA, or finds no usable device.
    """
    with raised_as(
        UnavailableError,
        (AssertionError, RuntimeError),
        f"torch {torch.__version__} cannot use the GPU",
        fix="`accel doctor` shows the driver and what torch is built with",
        say=first_line,
    ):
        torch.cuda.init()
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False  # torch's default allows it in convolutions
    return torch.device("cuda", torch.cuda.current_device())


def failure(error: Exception, shapes: object) -> StageError:
    """Turn what torch raised in a call into accel's error, with a remedy of its own where memory ran out."""
    if gpu.ran_out_of_memory(error):
        return StageError(
            f"the device's memory ran out on inputs of shapes {shapes}: {first_line(error)}",
            fix="free the GPU, or use smaller shapes (--max-shape)",
        )
    return StageError(
        f"torch refused inputs of shapes {shapes}: {first_line(error)}", fix="stay within the profile's shapes"
    )


class TorchDeviceSession(Session):
    """A callable on a device that takes tensors in the order of the inputs and gives them in the order of the outputs.

    Args:
        device: where the callable's weights lie; on a CPU there is neither stream nor pinned memory.
        slots: how many requests may be in flight.
    """

    def __init__(
        self,
        inputs: Sequence[TensorSpec],
        outputs: Sequence[TensorSpec],
        call: Call,
        precision: str,
        *,
        device: torch.device,
        slots: int = 1,
    ) -> None:
        super().__init__(inputs, outputs, slots)
        self._call: Call | None = call
        self._precision = precision
        self._device = device
        self._on_gpu = device.type == "cuda"
        self._slots = [_Slot(self._stream()) for _ in range(slots)]

    def bind(self, inputs: Feed, *, slot: int = 0) -> None:
        """Copy the arrays to pinned memory, and queue the copy from there.

        Raises:
            StageError: memory ran out.
        """
        mine = self._slots[slot]
        with self._queue(mine):
            for spec in self.inputs:
                array = inputs[spec.name]
                held = mine.inputs.get(spec.name)
                if held is None or held.array.shape != array.shape:
                    held = mine.inputs[spec.name] = self._buffers(array)
                np.copyto(held.array, array)
                held.device.copy_(held.host, non_blocking=True)

    def submit(self, *, slot: int = 0) -> None:
        """Queue the model, and the copies of what it gives.

        Raises:
            StageError: torch refused the inputs, or memory ran out.
        """
        self._compute(slot)
        self._fetch(slot)

    def wait(self, *, slot: int = 0) -> None:
        """Wait for the slot's stream.

        Raises:
            StageError: something queued failed on the device.
        """
        mine = self._slots[slot]
        if mine.stream is not None:
            try:
                mine.stream.synchronize()
            except RuntimeError as error:
                raise failure(error, self._shapes(mine)) from error

    def read(self, *, slot: int = 0) -> dict[str, np.ndarray]:
        """Return views of the host memory that the outputs were copied to."""
        return {s.name: h.numpy() for s, h in zip(self.outputs, self._slots[slot].hosts, strict=True)}

    def split(self, inputs: Feed) -> CallSplit | None:
        """Copy in, run and copy out, with the host waiting for the device after each."""

        def copy_in() -> None:
            self.bind(inputs)
            self.wait()

        def compute() -> None:
            self._compute(0)
            self.wait()

        def copy_out() -> Feed:
            self._fetch(0)
            self.wait()
            return self.read()

        return timed_parts(inputs, copy_in=copy_in, compute=compute, copy_out=copy_out)

    def precision(self) -> str:
        """Return the dtype of the parameters; eager torch and AOTInductor compute in it, TF32 being off."""
        return self._precision

    def close(self) -> None:
        """Drop the model, its weights and the buffers."""
        self._call, self._slots = None, []

    def _compute(self, slot: int) -> None:
        if self._call is None:
            raise StageError("the session is closed")
        mine = self._slots[slot]
        try:
            with self._queue(mine), torch.inference_mode():
                mine.results = self._call(*(mine.inputs[s.name].device for s in self.inputs))
        except (AssertionError, RuntimeError) as error:
            raise failure(error, self._shapes(mine)) from error

    def _fetch(self, slot: int) -> None:
        """Queue the copies of the results; memory is taken anew only where a shape changed."""
        mine = self._slots[slot]
        try:
            if [h.shape for h in mine.hosts] != [r.shape for r in mine.results]:
                mine.hosts = [torch.empty(r.shape, dtype=r.dtype, pin_memory=self._on_gpu) for r in mine.results]
            with self._queue(mine):
                for host, result in zip(mine.hosts, mine.results, strict=True):
                    host.copy_(result, non_blocking=True)
        except RuntimeError as error:
            raise failure(error, self._shapes(mine)) from error

    def _buffers(self, array: np.ndarray) -> _Input:
        try:
            dtype = torch.from_numpy(np.empty(0, array.dtype)).dtype
            host = torch.empty(array.shape, dtype=dtype, pin_memory=self._on_gpu)
            return _Input(host, host.numpy(), torch.empty(array.shape, dtype=dtype, device=self._device))
        except RuntimeError as error:
            raise failure(error, array.shape) from error

    def _stream(self) -> Any:
        return torch.cuda.Stream(self._device) if self._on_gpu else None

    def _queue(self, slot: _Slot) -> Any:
        return torch.cuda.stream(slot.stream) if slot.stream is not None else contextlib.nullcontext()

    def _shapes(self, slot: _Slot) -> dict[str, tuple[int, ...]]:
        return {name: held.array.shape for name, held in slot.inputs.items()}
