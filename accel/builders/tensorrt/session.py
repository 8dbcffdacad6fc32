"""A loaded plan: inputs and outputs side by side in pinned memory, one copy each way, one stream.

All inputs lie in one block and all outputs in another, on the host and on the device, so a request is three calls
whatever the number of tensors. Addresses and shapes are set only when shapes change.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from accel.builders import Session, timed_parts
from accel.builders.tensorrt.device import Block, Device
from accel.builders.tensorrt.library import Log
from accel.core.errors import SampleError, StageError
from accel.core.feeds import Feed
from accel.core.values import CallSplit, ShapeRange, TensorSpec

ALIGNMENT = 256
"""Bytes; what cudaMalloc aligns to, so that every tensor lies as if it had been allocated alone.

Source: CUDA C++ Programming Guide, "Device Memory Accesses"."""

Shapes = tuple[tuple[int, ...], ...]


@dataclass(slots=True)
class _Arena:
    """One block on the host and one on the device for all tensors of a direction."""

    host: Block
    bytes: np.ndarray
    device: Block


@dataclass(slots=True)
class _Layout:
    """Where each tensor lies for one set of input shapes, as views of the host's memory."""

    shapes: Shapes
    inputs: dict[str, np.ndarray]
    outputs: dict[str, np.ndarray]
    bytes_in: int
    bytes_out: int
    replay: Callable[[], None] | None = None


class TensorRtSession(Session):
    """One execution context.

    Args:
        inputs / outputs: the client contract, dtypes as the plan has them.
        profile: shape ranges that the plan serves.
        log: what TensorRT's messages go to.
        engine: the deserialised plan; kept alive with the session.
        precision: what the inspector said most of its matrix products run in.
        device: what copies and waits.
        graph: replay each shape as one CUDA graph.
    """

    def __init__(
        self,
        inputs: Sequence[TensorSpec],
        outputs: Sequence[TensorSpec],
        *,
        profile: Mapping[str, ShapeRange],
        log: Log,
        engine: Any,
        precision: str,
        device: Device,
        graph: bool = False,
    ) -> None:
        super().__init__(inputs, outputs)
        self._profile = profile
        self._log = log
        self._engine = engine
        self._precision = precision
        self._device = device
        self._graph = graph
        log.clear()
        self._context = engine.create_execution_context()
        if self._context is None:
            raise log.failure("TensorRT makes no execution context for the plan")
        self._in = self._arena(ALIGNMENT)
        self._out = self._arena(ALIGNMENT)
        self._layout: _Layout | None = None

    def bind(self, inputs: Feed, *, slot: int = 0) -> None:
        """Copy the arrays into pinned memory.

        Raises:
            SampleError: a shape lies outside the ranges that the plan was built for.
            StageError: the session is closed, or TensorRT refused the shapes.
        """
        shapes = tuple(inputs[spec.name].shape for spec in self.inputs)
        if self._layout is None or self._layout.shapes != shapes:
            self._layout = self._lay_out(shapes)
        for name, view in self._layout.inputs.items():
            np.copyto(view, inputs[name])

    def submit(self, *, slot: int = 0) -> None:
        """Queue copy, plan and copy back.

        Raises:
            StageError: nothing was bound, or TensorRT refused to run.
        """
        layout = self._bound()
        if layout.replay is not None:
            layout.replay()
            return
        self._queue(layout)
        if self._graph:  # TensorRT wants one run of a shape before it is recorded
            self._device.wait()
            layout.replay = self._device.capture(lambda: self._queue(layout))

    def wait(self, *, slot: int = 0) -> None:
        """Wait for the stream.

        Raises:
            StageError: the GPU failed on the request.
        """
        self._device.wait()

    def read(self, *, slot: int = 0) -> dict[str, np.ndarray]:
        """Return views of the pinned outputs."""
        return dict(self._bound().outputs)

    def precision(self) -> str:
        """Return the precision in which most of the plan's matrix products run, as TensorRT's inspector has it."""
        return self._precision

    def split(self, inputs: Feed) -> CallSplit:
        """Run one request part by part, the device synchronised between."""
        device = self._device
        device.wait()

        def copy_in() -> None:
            self.bind(inputs)
            device.copy(self._in.device, self._in.host, self._bound().bytes_in)
            device.wait()

        def compute() -> None:
            self._execute()
            device.wait()

        def copy_out() -> Feed:
            device.copy(self._out.host, self._out.device, self._bound().bytes_out)
            device.wait()
            return self.read()

        return timed_parts(inputs, copy_in=copy_in, compute=compute, copy_out=copy_out)

    def close(self) -> None:
        """Drop the context before the engine, and the memory."""
        self._layout = self._context = self._engine = None

    def _bound(self) -> _Layout:
        if self._context is None:
            raise StageError("the session is closed")
        if self._layout is None:
            raise StageError("no inputs are bound")
        return self._layout

    def _queue(self, layout: _Layout) -> None:
        self._device.copy(self._in.device, self._in.host, layout.bytes_in)
        self._execute()
        self._device.copy(self._out.host, self._out.device, layout.bytes_out)

    def _execute(self) -> None:
        self._log.clear()
        if not self._context.execute_async_v3(self._device.stream):
            raise self._log.failure("TensorRT refused to run the plan")

    def _lay_out(self, shapes: Shapes) -> _Layout:
        """Set shapes and addresses, and grow the memory where it does not suffice."""
        if self._context is None:
            raise StageError("the session is closed")
        self._layout = None  # the old one's addresses are void from here on
        self._check(shapes)
        self._log.clear()
        for spec, shape in zip(self.inputs, shapes, strict=True):
            if not self._context.set_input_shape(spec.name, shape):
                raise self._log.failure(f"TensorRT refused shape {shape} of input {spec.name!r}")
        places_in, bytes_in = _places(self.inputs, shapes)
        self._in = self._grown(self._in, bytes_in)
        inputs = _views(self._in, self.inputs, shapes, places_in)
        for spec in self.inputs:
            self._address(spec.name, self._in, places_in[spec.name])
        if unset := self._context.infer_shapes():
            raise self._log.failure(f"TensorRT cannot work out the output shapes without {list(unset)}")
        found = tuple(tuple(int(d) for d in self._context.get_tensor_shape(spec.name)) for spec in self.outputs)
        for spec, shape in zip(self.outputs, found, strict=True):
            if any(d < 0 for d in shape):
                raise StageError(
                    f"the size of output {spec.name!r} depends on the data ({shape}), which this session cannot hold",
                    fix="give the model a fixed number of results, for example the k best",
                )
        places_out, bytes_out = _places(self.outputs, found)
        self._out = self._grown(self._out, bytes_out)
        outputs = _views(self._out, self.outputs, found, places_out)
        for spec in self.outputs:
            self._address(spec.name, self._out, places_out[spec.name])
        return _Layout(shapes, inputs, outputs, bytes_in, bytes_out)

    def _check(self, shapes: Shapes) -> None:
        for spec, shape in zip(self.inputs, shapes, strict=True):
            range_ = self._profile[spec.name]
            if any(not low <= n <= high for low, n, high in zip(range_.min, shape, range_.max, strict=True)):
                raise SampleError(
                    f"input {spec.name!r} has shape {shape}; the plan was built for {range_.min} to {range_.max}",
                    fix="build it with a wider --min-shape or --max-shape",
                )

    def _address(self, name: str, arena: _Arena, place: int) -> None:
        if not self._context.set_tensor_address(name, arena.device.address + place):
            raise self._log.failure(f"TensorRT refused the address of tensor {name!r}")

    def _arena(self, nbytes: int) -> _Arena:
        host, view = self._device.host(nbytes)
        return _Arena(host, view, self._device.block(nbytes))

    def _grown(self, arena: _Arena, nbytes: int) -> _Arena:
        return arena if arena.device.nbytes >= nbytes else self._arena(max(nbytes, 2 * arena.device.nbytes))


def _places(specs: Sequence[TensorSpec], shapes: Shapes) -> tuple[dict[str, int], int]:
    """Return each tensor's offset, and the bytes of all; a tensor without elements still has an address."""
    places, end = {}, 0
    for spec, shape in zip(specs, shapes, strict=True):
        places[spec.name] = end
        size = max(1, int(np.prod(shape, dtype=np.int64))) * np.dtype(spec.dtype).itemsize
        end += -(-size // ALIGNMENT) * ALIGNMENT
    return places, end


def _views(
    arena: _Arena, specs: Sequence[TensorSpec], shapes: Shapes, places: Mapping[str, int]
) -> dict[str, np.ndarray]:
    views = {}
    for spec, shape in zip(specs, shapes, strict=True):
        dtype = np.dtype(spec.dtype)
        start = places[spec.name]
        size = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        views[spec.name] = arena.bytes[start : start + size].view(dtype).reshape(shape)
    return views
