"""Requests ready to send: every feed is serialised once, before the load begins, for gRPC or for HTTP.

With system shared memory all inputs lie in one region; outputs have a slot for each request under way, as large as the
largest answer. Source: server docs/protocol/extension_shared_memory.md.
"""

import contextlib
import functools
import itertools
import json
import math
import os
import random
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from multiprocessing import shared_memory
from pathlib import Path
from typing import Any

import numpy as np
from tritonclient.utils import InferenceServerException, triton_to_np_dtype

from accel.bench.wire import WireTensor, described, tensor_bytes
from accel.core.errors import InputError, UnavailableError
from accel.core.feeds import Feed

ALIGN = 64
"""Tensors in shared memory begin at multiples of this many bytes."""
CONTENTS, VALUES = 2**32, 256
"""So many requests of one feed differ from each other, by values of which there are at most so many."""

PlainRequest = tuple[Sequence[WireTensor], Sequence[bytes]]
"""A request's tensors, and the bytes of each."""


def plain(feed: Feed) -> PlainRequest:
    """Return the request of a feed."""
    return described(feed), [tensor_bytes(value) for value in feed.values()]


def request(model: str, tensors: Sequence[WireTensor], bodies: Sequence[bytes]) -> Any:
    """Return a ``ModelInferRequest`` with its tensors inline."""
    from tritonclient.grpc import service_pb2

    made = service_pb2.ModelInferRequest(model_name=model)
    for tensor in tensors:
        made.inputs.add(name=tensor.name, datatype=tensor.datatype, shape=tensor.shape)
    made.raw_input_contents.extend(bodies)
    return made


class NewContents:
    """Lets only some requests ask what was asked before: others get a content of their own, at the same cost.

    A new content has other values of one input, which that input had elsewhere, so that they lie in its range.

    Args:
        requests: one for each feed.
        hit_rate: share of the requests, by chance, that stay as they are.

    Attributes:
        requests: the same with the input that varies as the last one: its bytes end what is sent.

    Raises:
        InputError: no input of numbers has enough different values.
    """

    def __init__(self, requests: Sequence[PlainRequest], *, hit_rate: float) -> None:
        # Of no seed that anything else has: when requests come must not tell which of them repeat.
        self._hit_rate, self._drawn = hit_rate, random.Random(secrets.randbits(64))
        self._next = itertools.count(secrets.randbits(60))  # no other process, and no load before, sends the same
        found = [_varied_last(*one) for one in requests]
        self.requests: list[PlainRequest] = [plain for plain, _ in found]
        self._values = [values for _, values in found]

    def of(self, feed: int, message: bytes) -> bytes:
        """Return the serialised request of a feed, or one of a new content in its place."""
        if self._drawn.random() < self._hit_rate:
            return message
        values, made = self._values[feed], bytearray(message)
        place, number = len(message) - len(self.requests[feed][1][-1]), next(self._next) % CONTENTS
        for _ in range(_digits(values)):
            number, digit = divmod(number, len(values))
            made[place : place + len(values[0])] = values[digit]
            place += len(values[0])
        return bytes(made)


def _varied_last(tensors: Sequence[WireTensor], bodies: Sequence[bytes]) -> tuple[PlainRequest, list[bytes]]:
    """Return a request whose input of the most different values comes last, and such values."""
    several: dict[int, list[bytes]] = {}
    for number, (tensor, body) in enumerate(zip(tensors, bodies, strict=True)):
        size = len(body) // max(1, math.prod(tensor.shape))
        if tensor.datatype != "BYTES" and size:
            known = np.unique(np.frombuffer(body, f"u{size}"))
            values = [value.tobytes() for value in known[:: -(-len(known) // VALUES)]]
            if len(values) > 1 and _digits(values) * size <= len(body):
                several[number] = values
    if not several:
        raise InputError(
            "requests of new contents cannot be made of what is sent: no input has enough different numbers",
            fix="send other requests (--data), or leave --hit-rate out",
        )
    last = max(several, key=lambda number: len(several[number]))
    order = [*(n for n in range(len(tensors)) if n != last), last]
    return ([tensors[n] for n in order], [bodies[n] for n in order]), several[last]


def _digits(values: Sequence[bytes]) -> int:
    """Return how many places with one of these values tell ``CONTENTS`` apart."""
    return math.ceil(math.log(CONTENTS, len(values)) - 1e-9)


class RequestPool:
    """Serialised requests, one for each feed, with everything inline.

    Args:
        new: gives some of them a content of their own.
    """

    def __init__(self, requests: Sequence[Any], new: NewContents | None = None) -> None:
        self._bodies, self._new = [made.SerializeToString() for made in requests], new

    def __len__(self) -> int:
        return len(self._bodies)

    def body(self, feed: int, slot: int) -> bytes:
        """Return the request of a feed."""
        return self._bodies[feed] if self._new is None else self._new.of(feed, self._bodies[feed])

    def outputs(self, response: Any, slot: int) -> dict[str, np.ndarray]:
        """Return the arrays of a ``ModelInferResponse``, but for text."""
        return {
            tensor.name: np.frombuffer(body, triton_to_np_dtype(tensor.datatype)).reshape(tensor.shape)
            for tensor, body in zip(response.outputs, response.raw_output_contents, strict=True)
            if tensor.datatype != "BYTES"
        }

    def close(self, client: Any) -> None:
        """Give nothing back: there is nothing."""


@dataclass(frozen=True, slots=True)
class SequenceStep:
    """Which step of which sequence a request of a stateful model is.

    Source: server docs/protocol/extension_sequence.md.
    """

    id: int
    start: bool
    end: bool

    def message(self) -> bytes:
        """Return it as bytes that are put behind a serialised request.

        Source: protobuf reads messages put behind one another as merged (Encoding, "Last One Wins").
        """
        from tritonclient.grpc import service_pb2

        made = service_pb2.ModelInferRequest()
        made.parameters["sequence_id"].int64_param = self.id
        made.parameters["sequence_start"].bool_param = self.start
        made.parameters["sequence_end"].bool_param = self.end
        return bytes(made.SerializeToString())


class SequenceIds:
    """The correlation ids of a stateful model's requests: each slot plays the feeds in order, as one sequence.

    Slots never share an id, in this process or another, and a slot has one request under way: no two sequences are
    mixed up, and each answer is that of its step.

    Args:
        steps: how many feeds make a sequence.
    """

    def __init__(self, steps: int) -> None:
        self._steps, self._first_id = steps, secrets.randbits(60) + 1
        self._next: dict[int, int] = {}

    def step(self, slot: int) -> int:
        """Return which feed a slot sends next."""
        feed = self._next.get(slot, 0)
        self._next[slot] = (feed + 1) % self._steps
        return feed

    def begin(self, slot: int | None = None) -> None:
        """Let a slot, or every one, begin a new sequence: after a step that failed there is no next one."""
        if slot is None:
            self._next.clear()
        else:
            self._next.pop(slot, None)

    def begun(self) -> list[int]:
        """Return the slots whose sequence has not ended."""
        return [slot for slot, feed in self._next.items() if feed]

    def of(self, feed: int, slot: int, *, alone: bool = False) -> SequenceStep:
        """Return what says whose step a request is.

        Args:
            alone: a sequence of this one step.
        """
        return SequenceStep(self._first_id + slot, alone or feed == 0, alone or feed == self._steps - 1)


class HttpPool:
    """Requests of one model as HTTP has them, one for each feed: a JSON header, and the tensors' bytes behind it.

    Args:
        stateful: each request says which step it is, so that its header is made when it is sent.
        new: gives some of those that are not stateful a content of their own.

    Source: server docs/protocol/extension_binary_data.md.
    """

    def __init__(self, feeds: Sequence[PlainRequest], *, stateful: bool, new: NewContents | None = None) -> None:
        self._new = new
        self._inputs = [[_header(t, len(b)) for t, b in zip(*feed, strict=True)] for feed in feeds]
        self._binary = [b"".join(bodies) for _, bodies in feeds]
        if not stateful:
            self._headers = [_header_bytes(inputs, {}) for inputs in self._inputs]
            self._binary = [header + body for header, body in zip(self._headers, self._binary, strict=True)]

    def __len__(self) -> int:
        return len(self._binary)

    def request(self, feed: int, step: SequenceStep | None) -> tuple[int, bytes]:
        """Return the length of the header, and the whole body."""
        if step is None:
            body = self._binary[feed]
            return len(self._headers[feed]), body if self._new is None else self._new.of(feed, body)
        words = {"sequence_id": step.id, "sequence_start": step.start, "sequence_end": step.end}
        header = _header_bytes(self._inputs[feed], words)
        return len(header), header + self._binary[feed]

    def outputs(self, header: int, body: bytes) -> dict[str, np.ndarray]:
        """Return the arrays of an answer, but for text.

        Args:
            header: length of the JSON at its beginning.
        """
        found, place = {}, header
        for tensor in json.loads(body[:header])["outputs"]:
            size = tensor["parameters"]["binary_data_size"]
            if tensor["datatype"] != "BYTES":
                dtype = triton_to_np_dtype(tensor["datatype"])
                found[tensor["name"]] = np.frombuffer(body[place : place + size], dtype).reshape(tensor["shape"])
            place += size
        return found

    def close(self, client: Any) -> None:
        """Give nothing back: there is nothing."""


def _header_bytes(inputs: Sequence[Mapping[str, object]], words: Mapping[str, object]) -> bytes:
    return json.dumps({"inputs": inputs, "parameters": {"binary_data_output": True, **words}}).encode()


def _header(tensor: WireTensor, size: int) -> dict[str, object]:
    plain = {"name": tensor.name, "shape": list(tensor.shape), "datatype": tensor.datatype}
    return {**plain, "parameters": {"binary_data_size": size}}


class SharedPool(RequestPool):
    """Requests whose inputs and outputs lie in system shared memory.

    Args:
        name: what the names of the regions begin with.
        client: synchronous client of the server, which registers the regions.
        requests: one for each feed, tensors inline.
        sizes: for each feed, the bytes of each of its outputs.
        slots: requests that may be under way at once.

    Raises:
        UnavailableError: the regions cannot be made, or the server cannot map them: it runs on another machine.
    """

    def __init__(
        self, name: str, client: Any, requests: Sequence[Any], sizes: Sequence[dict[str, int]], slots: int
    ) -> None:
        self._requests = requests
        self._names = (f"{name}-{os.getpid()}-in", f"{name}-{os.getpid()}-out")
        self._offsets: list[list[int]] = []
        end = 0
        for made in requests:
            self._offsets.append([])
            for body in made.raw_input_contents:
                self._offsets[-1].append(end)
                end += _aligned(len(body))
        self._places, self._slot_bytes = _layout(sizes)
        self._regions: list[shared_memory.SharedMemory] = []
        try:
            for region, size in zip(self._names, (end, self._slot_bytes * slots), strict=True):
                self._regions.append(shared_memory.SharedMemory(region, create=True, size=max(1, size)))
                _reserve(region, max(1, size))
                client.register_system_shared_memory(region, f"/{region}", max(1, size))
        except (OSError, InferenceServerException) as error:
            self.close(client)
            raise UnavailableError(
                f"system shared memory cannot be used with this server: {error}",
                fix="leave --shared-memory out, or run on the server's machine with room in /dev/shm",
            ) from error
        self._fill()
        self.body = functools.cache(self._made)  # type: ignore[method-assign]

    def __len__(self) -> int:
        return len(self._requests)

    def outputs(self, response: Any, slot: int) -> dict[str, np.ndarray]:
        """Return the arrays that the server wrote into the slot; they are views."""
        found = {}
        for tensor in response.outputs:
            if tensor.datatype != "BYTES":
                place = slot * self._slot_bytes + self._places[tensor.name][0]
                dtype = triton_to_np_dtype(tensor.datatype)
                found[tensor.name] = np.ndarray(tuple(tensor.shape), dtype, self._regions[1].buf, place)
        return found

    def close(self, client: Any) -> None:
        """Unregister and remove the regions; a server that is gone has forgotten them."""
        for region in self._regions:
            with contextlib.suppress(InferenceServerException):
                client.unregister_system_shared_memory(region.name)
            region.close()
            region.unlink()
        self._regions = []

    def _fill(self) -> None:
        place = self._regions[0].buf
        assert place is not None
        for made, offsets in zip(self._requests, self._offsets, strict=True):
            for body, offset in zip(made.raw_input_contents, offsets, strict=True):
                place[offset : offset + len(body)] = body

    def _made(self, feed: int, slot: int) -> bytes:
        whole = self._requests[feed]
        made = type(whole)(model_name=whole.model_name)
        for tensor, body, offset in zip(whole.inputs, whole.raw_input_contents, self._offsets[feed], strict=True):
            copy = made.inputs.add(name=tensor.name, datatype=tensor.datatype, shape=tensor.shape)
            _place(copy, self._names[0], offset, len(body))
        for name, (offset, size) in self._places.items():
            _place(made.outputs.add(name=name), self._names[1], slot * self._slot_bytes + offset, size)
        return made.SerializeToString()


def _layout(sizes: Sequence[dict[str, int]]) -> tuple[dict[str, tuple[int, int]], int]:
    """Return each output's offset and largest size within a slot, and the slot's size."""
    places: dict[str, tuple[int, int]] = {}
    end = 0
    for name in sizes[0]:
        size = max(feed[name] for feed in sizes)
        places[name] = (end, size)
        end += _aligned(size)
    return places, end


def _reserve(region: str, size: int) -> None:
    """Take the memory now: where /dev/shm is full, writing later would end the server with a bus error."""
    with Path("/dev/shm", region).open("r+b") as file:
        os.posix_fallocate(file.fileno(), 0, size)


def _place(tensor: Any, region: str, offset: int, size: int) -> None:
    tensor.parameters["shared_memory_region"].string_param = region
    tensor.parameters["shared_memory_offset"].int64_param = offset
    tensor.parameters["shared_memory_byte_size"].int64_param = size


def _aligned(size: int) -> int:
    return -(-size // ALIGN) * ALIGN
