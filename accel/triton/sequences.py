"""Stateful models on the server: how requests are scheduled, and the states that the Python backend's model keeps.

A request of a stateful model is one step of a sequence, which clients name by a correlation id. The server hands the
steps of a sequence to one instance, one after another, and refuses a step of a sequence that did not begin. Backends
that keep states themselves get them from the config (implicit state); for the others accel's Python-backend model keeps
them by correlation id (``Sequences``, shipped beside it). Nothing here knows a runtime. It is read without NumPy.

Source: server docs/user_guide/implicit_state_management.md, docs/user_guide/batcher.md, "Sequence Batcher"; core
src/sequence_batch_scheduler/sequence_batch_scheduler.cc.
"""

import hashlib
import time
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from accel.core.errors import SampleError
from accel.core.values import TensorSpec

if TYPE_CHECKING:
    import numpy as np

IDLE_S = 60
"""A sequence without a request for so long has ended: its place is another's, and its client must begin anew."""
MOST_SEQUENCES = 1024
"""Sequences that one instance serves at once at most; more wait until one ends."""
MOST_BYTES = 256 << 20
"""Most memory that the states of one instance take."""
NO_SEQUENCE = 0
"""Correlation id of a warm-up request alone: the server's batcher refuses one without an id."""


@dataclass(frozen=True, slots=True)
class State:
    """What a step leaves for the next one.

    Attributes:
        input: the input that holds it, as the artifact has it, batch axis included.
        output: the output that left it.
    """

    input: TensorSpec
    output: str

    @property
    def axis(self) -> int | None:
        """Where the batch is; None where the state has none."""
        return self.input.dims.index("batch") if "batch" in self.input.dims else None

    @property
    def shape(self) -> tuple[int, ...]:
        """Its shape for one item."""
        return tuple(d if isinstance(d, int) else 1 for d in self.input.dims)


def scheduling(states: tuple[State, ...], initial: "Mapping[str, np.ndarray]", *, implicit: bool, batch: int) -> Any:
    """Return ``sequence_batching`` of a config: requests of different sequences are merged, the oldest first.

    Args:
        initial: states of a first step, by input.
        implicit: whether the backend keeps them.
        batch: the config's ``max_batch_size``.
    """
    from accel.triton.config import tensor

    each = sum(value.nbytes for value in initial.values())
    fields: dict[str, Any] = {
        "max_sequence_idle_microseconds": IDLE_S * 1_000_000,
        "oldest": {"max_candidate_sequences": max(1, min(MOST_SEQUENCES, MOST_BYTES // max(1, each)))},
    }
    if implicit:
        fields["state"] = [_state(state, initial[state.input.name], tensor, batch) for state in states]
    return fields


def _state(state: State, begin: "np.ndarray", tensor: Any, batch: int) -> dict[str, Any]:
    spec = TensorSpec(state.input.name, state.input.dtype, state.shape[1:] if batch else state.shape)
    zero = not begin.any()
    content = {"zero_data": True} if zero else {"data_file": initial_file(state.input.name)}
    start = {"name": "initial", **tensor(spec), **content}
    return {"input_name": spec.name, "output_name": state.output, **tensor(spec), "initial_state": [start]}


def initial_file(name: str) -> str:
    """Return the name of the file, below ``initial_state/`` of the model, that has a state of a first step."""
    plain = "".join(c if c.isalnum() or c in "_.-" else "_" for c in name)[:100]
    # of two names that differ in other characters each has a file of its own
    return plain + ("" if plain == name else f"-{hashlib.sha256(name.encode()).hexdigest()[:8]}") + ".bin"


class Sequences:
    """The states of the sequences that are under way, by correlation id: at most ``most``, and none idle for long.

    The server does not say that a sequence ended without its last step, so what it would refuse is forgotten here.

    Args:
        initial: states of a first step, by input, for one item.
        most: beyond it the one that waits longest is forgotten; the server has no more under way.
        idle_s: after how long the server ends an idle sequence; here after twice that, since a step may wait in its
            queue.
    """

    def __init__(
        self, states: tuple[State, ...], initial: "Mapping[str, np.ndarray]", *, most: int, idle_s: float
    ) -> None:
        self._states, self._initial = states, dict(initial)
        self._most, self._idle_s = most, idle_s
        self._kept: OrderedDict[int | str, tuple[float, dict[str, np.ndarray]]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._kept)

    def before(self, id: int | str, *, start: bool) -> "dict[str, np.ndarray]":
        """Return the states that a step begins with, by input.

        Raises:
            SampleError: the sequence is not known: it did not begin, or was forgotten.
        """
        if start or id == NO_SEQUENCE:
            self._kept.pop(id, None)
            return dict(self._initial)
        if id not in self._kept:
            raise SampleError(
                f"sequence {id} has no state here: it ended, waited too long or did not begin",
                fix="send its first step again, with sequence_start",
            )
        return dict(self._kept[id][1])

    def after(self, id: int | str, outputs: "Mapping[str, np.ndarray]", *, end: bool) -> None:
        """Keep what a step left; forget it after the last one."""
        now = time.monotonic()
        self._kept.pop(id, None)
        if not end and id != NO_SEQUENCE:
            left = {s.input.name: outputs[s.output].astype(s.input.dtype).reshape(s.shape) for s in self._states}
            self._kept[id] = now, left
        while self._kept and (
            len(self._kept) > self._most or next(iter(self._kept.values()))[0] < now - 2 * self._idle_s
        ):
            self._kept.popitem(last=False)


def seconds(idle_microseconds: str | int) -> float:
    """Return after how long the server ends an idle sequence; without a number of its own that is a second.

    Source: common protobuf/model_config.proto, ModelSequenceBatching.max_sequence_idle_microseconds.
    """
    return (int(idle_microseconds) or 1_000_000) / 1e6
