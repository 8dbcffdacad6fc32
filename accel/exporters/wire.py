"""``--io``: float inputs that clients send in a smaller type, cast in the model itself, for every variant of a run.

The source is then the model with the cast before it: what it answers to the smaller values is the truth. Samples must
be such values, or a variant would be judged on what no client can send.
"""

import dataclasses
from collections.abc import Mapping

import numpy as np

from accel.core.errors import SampleError, UsageError
from accel.core.feeds import Feed
from accel.core.values import ModelSource
from accel.exporters.axes import known_input

TYPES: Mapping[str, str] = {"uint8": "uint8", "fp16": "float16"}
"""Word of the option → NumPy's name of what clients send."""
BYTES = 0, 255


def smaller(source: ModelSource, io: Mapping[str, str]) -> ModelSource:
    """Return the source with the inputs that clients send in a smaller type.

    Args:
        io: input → word of ``TYPES``.

    Raises:
        UsageError: no such input, no such type, or an input that is not float32 or holds a state.
    """
    specs = {spec.name: spec for spec in source.inputs}
    changed = {}
    for name, word in io.items():
        known_input(name, specs, "--io")
        if word not in TYPES:
            raise UsageError(f"--io {name}={word}: unknown type", fix=f"give {' or '.join(TYPES)}")
        spec = specs[name]
        if name in source.states:
            raise UsageError(f"--io {name}={word}: it holds a state, which clients do not send", fix="leave it out")
        if spec.dtype != "float32":
            raise UsageError(f"--io {name}={word}: it is {spec.dtype}, and float32 is what is sent smaller")
        changed[name] = dataclasses.replace(spec, dtype=TYPES[word], range=BYTES if word == "uint8" else None)
    return dataclasses.replace(
        source,
        inputs=tuple(changed.get(spec.name, spec) for spec in source.inputs),
        native={**source.native, **dict.fromkeys(changed, "float32")},
    )


def sent(feed: Feed, source: ModelSource) -> dict[str, np.ndarray]:
    """Return a feed of the model's own values with the bytes that clients send; what are bytes already stays.

    Raises:
        SampleError: bytes cannot hold a value.
    """
    found = dict(feed)
    for spec in source.inputs:
        value = np.asarray(feed[spec.name]) if spec.name in feed else None
        if value is None or spec.dtype != "uint8" or spec.name not in source.native or value.dtype.kind != "f":
            continue
        inside = (value >= BYTES[0]) & (value <= BYTES[1]) & (value == np.floor(value))
        if not inside.all():
            index = tuple(int(i) for i in np.argwhere(~inside)[0])
            raise SampleError(
                f"input {spec.name!r} holds {value[index]:.6g} at index {list(index)}, and --io "
                f"{spec.name}=uint8 sends whole numbers from {BYTES[0]} to {BYTES[1]}",
                fix=f"move the scaling into the model and give samples from 0 to 255, or --io {spec.name}=fp16",
            )
        found[spec.name] = value.astype(np.uint8)
    return found
