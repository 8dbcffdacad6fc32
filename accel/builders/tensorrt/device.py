"""The CUDA calls of a TensorRT session, through PyTorch: one stream, pinned and device memory, graphs.

The session knows only the public names of ``Device``, so that it can be driven without a GPU.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from accel.core.errors import StageError


class Block:
    """A piece of memory, held by a tensor of bytes: its address, and its size in bytes."""

    __slots__ = ("address", "nbytes", "tensor")

    def __init__(self, tensor: Any) -> None:
        self.tensor = tensor
        self.address = int(tensor.data_ptr())
        self.nbytes = int(tensor.numel())


class Device:
    """The first CUDA device, by PyTorch's own bindings of the CUDA runtime. All work goes to one stream, in order.

    Attributes:
        stream: handle of the stream, as TensorRT takes it.

    Raises:
        StageError: PyTorch finds no device.
    """

    def __init__(self) -> None:
        import torch

        if not torch.cuda.is_available():
            raise StageError(
                f"PyTorch {torch.__version__} finds no CUDA device",
                fix="install the CUDA build of torch; `accel doctor` shows what is here",
            )
        self._torch = torch
        self._stream = torch.cuda.Stream()
        self.stream = int(self._stream.cuda_stream)

    def host(self, nbytes: int) -> tuple[Block, np.ndarray]:
        """Take pinned host memory, and the same bytes as a ``uint8`` array."""
        tensor = self._torch.empty(nbytes, dtype=self._torch.uint8, pin_memory=True)
        return Block(tensor), tensor.numpy()

    def block(self, nbytes: int) -> Block:
        """Take device memory.

        Raises:
            StageError: there is not enough.
        """
        try:
            return Block(self._torch.empty(nbytes, dtype=self._torch.uint8, device="cuda"))
        except self._torch.OutOfMemoryError as error:
            raise StageError(
                f"the GPU's memory ran out while {nbytes} bytes were taken for tensors: {error}",
                fix="lower --max-shape, or free the GPU",
            ) from error

    def copy(self, target: Block, source: Block, nbytes: int) -> None:
        """Queue a copy of the first ``nbytes`` bytes; asynchronous, since the host's side is pinned."""
        with self._torch.cuda.stream(self._stream):
            target.tensor[:nbytes].copy_(source.tensor[:nbytes], non_blocking=True)

    def wait(self) -> None:
        """Synchronise the stream.

        Raises:
            StageError: a kernel or a copy failed.
        """
        try:
            self._stream.synchronize()
        except RuntimeError as error:
            raise StageError(f"the GPU failed on the request: {error}") from error

    def capture(self, act: Callable[[], None]) -> Callable[[], None]:
        """Record what ``act`` queues as a CUDA graph, without doing it; what is returned queues it again."""
        graph = self._torch.cuda.CUDAGraph()
        with self._torch.cuda.graph(graph, stream=self._stream):
            act()

        def replay() -> None:
            with self._torch.cuda.stream(self._stream):
                graph.replay()

        return replay
