"""Streams: what a stateful model is asked, step by step, each with the state that the step before left.

A state is a pair: an output of one step is an input of the next. Users declare it; what looks like one is proposed and
never assumed, since a model that is asked as if every request were the first answers without an error, and wrongly.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from accel.core.errors import InputError, SampleError, StageError, UsageError, nearest, raised_as
from accel.core.feeds import UNREADABLE, Feed
from accel.core.values import ModelSource, TensorSpec, axis_sizes
from accel.exporters.request import SourceRequest

STREAMS, STEPS = 4, 256
"""Most streams, and most steps of each: enough that a slow drift shows."""
LEAST_STEPS = 64
"""What is shorter is repeated up to here."""
INITIAL = "initial"
"""Feed of ``streams.npz`` with the states of a first step."""
BATCH = "batch"
WORDS = frozenset(
    ["h", "c", "hidden", "cell", "state", "memory", "mem", "cache", "context", "carry", "buffer", "rnn", "gru", "lstm"]
)
"""A tensor of a state has one of these words in its name."""
SIDES = frozenset(
    [
        "n",
        "t",
        "in",
        "out",
        "input",
        "output",
        "new",
        "next",
        "prev",
        "previous",
        "past",
        "present",
        "last",
        "initial",
        "init",
        "old",
        "cur",
        "current",
    ]
)
"""Words by which the two tensors of a state differ."""

Run = Callable[[Feed], Mapping[str, np.ndarray]]
Value = TypeVar("Value")


@dataclass(frozen=True, slots=True)
class Streams:
    """What clients send.

    Attributes:
        steps: of each stream, the inputs of every step, without the states.
        initial: the states of a first step, for one item.
        labels: the right answer to each step, or nothing where there are none.
    """

    steps: tuple[tuple[Feed, ...], ...]
    initial: Feed
    labels: tuple[tuple[Any, ...], ...] = ()

    def feeds(self) -> dict[str, Feed]:
        """Return all as feeds: ``s0.12`` is the step 12 of the first stream."""
        return {INITIAL: self.initial, **_by_step(self.steps)}

    def right(self) -> dict[str, list[Any]]:
        """Return the right answer to each step, as ``exporters.verdict`` reads labels."""
        return {name: [label] for name, label in _by_step(self.labels).items()}

    @classmethod
    def of(cls, feeds: Mapping[str, Feed]) -> "Streams":
        """Read what ``feeds`` gave."""
        streams: dict[str, list[Feed]] = {}
        for name, feed in feeds.items():
            if name != INITIAL:
                streams.setdefault(name.partition(".")[0], []).append(feed)
        return cls(tuple(map(tuple, streams.values())), feeds[INITIAL])


def _by_step(streams: Sequence[Sequence[Value]]) -> dict[str, Value]:
    return {f"s{i}.{k}": value for i, stream in enumerate(streams) for k, value in enumerate(stream)}


def declared(source: ModelSource, request: SourceRequest) -> ModelSource:
    """Return the source with the states that the user or the zoo declared, or with a notice of what looks like one.

    Raises:
        UsageError: a name that the model does not have, or a pair that cannot be a state.
    """
    states = request.states or source.states
    if not states:
        if request.initial:
            raise UsageError("--initial-state is for a stateful model", fix="declare its state: --state OUTPUT=INPUT")
        if not (found := proposed(source)):
            return source
        flags = " ".join(f"--state {output}={input}" for input, output in found.items())
        told = f"it looks stateful, and is converted as if every request were the first: {flags} serves sequences"
        return replace(source, notice="; ".join(filter(None, (source.notice, told))))
    inputs, outputs = ({s.name: s for s in side} for side in (source.inputs, source.outputs))
    for known, name in [*((outputs, o) for o in states.values()), *((inputs, i) for i in states)]:
        if name not in known:
            side = "output" if known is outputs else "input"
            raise UsageError(
                f"--state: the model has no {side} {name!r}{nearest(name, list(known))}", fix=f"it has {list(known)}"
            )
    for input, output in states.items():
        if (why := _unfit(inputs[input], outputs[output])) is not None:
            raise UsageError(f"--state {output}={input}: {why}", fix=_remedy(inputs[input]))
    if len(set(states.values())) < len(states):
        raise UsageError("--state: one output is the state of two inputs", fix="give each state a pair of its own")
    if unknown := next((name for name in request.initial if name not in states), None):
        raise UsageError(f"--initial-state {unknown!r} is not a state", fix=f"the states are {list(states)}")
    made = replace(source, states=dict(states), initial=dict(request.initial))
    if not made.client_inputs or not made.client_outputs:
        raise UsageError("every input or every output is a state: clients could not send or get anything")
    initial(made)
    pairs = ", ".join(f"{output} is the next step's {input}" for input, output in made.states.items())
    return replace(made, notice="; ".join(filter(None, (f"stateful: {pairs}", made.notice))))


def proposed(source: ModelSource) -> dict[str, str]:
    """Return what looks like a state, output by input: alike in dtype and dims, and in name but for the side."""
    found: dict[str, str] = {}
    for spec in source.inputs:
        stem = _stem(spec.name)
        alike = [o.name for o in source.outputs if _stem(o.name) == stem and _unfit(spec, o) is None]
        if stem & WORDS and len(alike) == 1 and alike[0] not in found.values():
            found[spec.name] = alike[0]
    return found


def _stem(name: str) -> frozenset[str]:
    """Return the words of a name that do not tell its side: of ``stateN``, ``out_state`` and ``hn`` the state, the h.

    Names that count (``h.1``) keep their number; a 0 at the end of a word is the first step's (``h0``).
    """
    words = re.findall(r"[A-Z]?[a-z]+|[A-Z]+|\d+", re.sub(r"(?<=[A-Za-z])0\b", "", name))
    plain = (w.lower()[:1] if re.fullmatch("[hc]n", w.lower()) else w.lower().removesuffix("s") for w in words)
    return frozenset(w for w in plain if w and w not in SIDES)


def _unfit(input: TensorSpec, output: TensorSpec) -> str | None:
    """Say why two tensors are no state, or None."""
    if input.dtype != output.dtype:
        return f"the output is {output.dtype}, the input {input.dtype}"
    pairs = list(zip(input.dims, output.dims, strict=False))
    if len(input.dims) != len(output.dims) or any(
        a != b for a, b in pairs if isinstance(a, int) and isinstance(b, int)
    ):
        return f"the output has dims {output.dims}, the input {input.dims}"
    if varies := [d for d in input.dims if isinstance(d, str) and d != BATCH]:
        return f"the axis {varies[0]!r} of the input varies: a state has one size, but for the batch"
    if input.dims.count(BATCH) > 1:
        return "the input has the batch in two axes"
    return None


def _remedy(spec: TensorSpec) -> str:
    at = next((i for i, d in enumerate(spec.dims) if isinstance(d, str) and d != BATCH), None)
    if at is None:
        return "name an output and an input of one dtype and size: accel inspect shows them"
    return f"--rename-axes {spec.name}:{at}=batch where that is the batch (ONNX); or fix its size with --max-shape"


def initial(source: ModelSource) -> dict[str, np.ndarray]:
    """Return the states of a first step, for one item.

    Raises:
        InputError: a file cannot be read, or holds another shape or dtype than the state.
    """
    made = {}
    for spec in source.inputs:
        if spec.name not in source.states:
            continue
        shape = tuple(d if isinstance(d, int) else 1 for d in spec.dims)
        made[spec.name] = np.zeros(shape, spec.dtype)
        if (file := source.initial.get(spec.name)) is None:
            continue
        with raised_as(InputError, UNREADABLE, f"the initial state {file} cannot be read", fix="numpy.save one array"):
            value = np.load(Path(file), allow_pickle=False)
        if value.shape != shape or not np.can_cast(value.dtype, spec.dtype, "same_kind"):
            raise InputError(
                f"the initial state of {spec.name!r} is {value.dtype} {value.shape} in {file}",
                fix=f"expected {spec.dtype} {shape}",
            )
        made[spec.name] = value.astype(spec.dtype)
    return made


def without_states(source: ModelSource) -> ModelSource:
    """Return the source as clients see it: what they send has no states."""
    inputs = source.client_inputs
    profile = {s.name: source.profile[s.name] for s in inputs}
    return replace(source, inputs=inputs, outputs=source.client_outputs, profile=profile, states={}, initial={})


def cut(source: ModelSource, recorded: Sequence[Sequence[Feed]], told: Sequence[Sequence[Any]] = ()) -> Streams:
    """Cut recordings to streams of at most ``STEPS``; short ones are repeated to ``LEAST_STEPS``.

    Args:
        told: of each recording the labels of its steps, where there are any.

    Raises:
        SampleError: a step holds more than one item, or there is none.
    """
    pieces: list[tuple[tuple[Feed, Any], ...]] = []
    for number, steps in enumerate(recorded):
        for step in steps:
            sizes = axis_sizes(source.client_inputs, {n: v.shape for n, v in step.items()})
            if sizes.get(BATCH, 1) != 1:
                raise SampleError(
                    f"a step of a stream holds {sizes[BATCH]} items, expected 1",
                    fix="give each stream a file of its own",
                )
        whole = list(zip(steps, told[number] if told else [None] * len(steps), strict=True))
        whole *= -(-LEAST_STEPS // len(steps)) if 0 < len(steps) < LEAST_STEPS else 1
        pieces += [tuple(whole[i : i + STEPS]) for i in range(0, len(whole), STEPS)]
    if not pieces:
        raise SampleError("there is no step to run the model on", fix="give streams with --samples")
    chosen = sorted(pieces, key=len, reverse=True)[:STREAMS]
    steps_of, labels_of = zip(*(zip(*p, strict=True) for p in pieces if any(p is c for c in chosen)), strict=True)
    return Streams(steps_of, initial(source), labels_of if told else ())


def play(source: ModelSource, run: Run, stream: Sequence[Feed], begin: Feed) -> Iterator[tuple[Feed, Feed]]:
    """Yield each step's whole feed and its outputs, the state of each step being what the step before left.

    Args:
        run: the model, or a variant of it.
        begin: the states of the first step.

    Raises:
        StageError: an output that is a state has not the state's shape, or holds a value that is not a finite number.
    """
    state = dict(begin)
    for step in stream:
        given = {**step, **state}
        feed = {s.name: given[s.name] for s in source.inputs}
        outputs = run(feed)
        for input, output in source.states.items():
            value = np.asarray(outputs[output])
            if value.shape != begin[input].shape:
                raise StageError(f"the state {output!r} has shape {value.shape}, expected {begin[input].shape}")
            if not np.isfinite(value).all():
                raise StageError(f"the state {output!r} holds NaN or infinity")
            state[input] = np.array(value, begin[input].dtype)
        yield feed, {name: np.array(value) for name, value in outputs.items()}
