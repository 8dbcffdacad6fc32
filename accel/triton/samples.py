"""Sample inputs as a repository needs them: warm-up data and the stored reference.

Source of the warm-up rules: triton-inference-server/core, src/backend_model_instance.cc, GenerateWarmupData. A sample
of ``batch_size`` N is N requests of batch 1 in one execute call; dims must be concrete; a data file must hold at least
one request's bytes; without ``max_batch_size`` the dims are the request's whole shape.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from accel.core.dtypes import datatype
from accel.core.errors import InputError, SampleError
from accel.core.feeds import Feed, fit_inputs, read_feeds, resized
from accel.core.values import Profile, TensorSpec
from accel.triton.grouping import Grouping

POINTS = ("min", "odd", "opt", "max")
FIRST_STEP = "0"
"""Reference point of a stateful model: the steps of one stream are called by their numbers."""
LARGEST_FILE_BYTES = 4 << 20
"""Floating-point warm-up data beyond this is fed as zeros: integers steer the network (ids), floats do not."""
LARGEST_POINT_BYTES = 16 << 20
"""Shape points beyond this stay out of ``reference.npz``; opt is always kept."""


@dataclass(frozen=True, slots=True)
class ReferencePoint:
    """Inputs and reference outputs at one shape."""

    inputs: Feed
    outputs: Feed


@dataclass(frozen=True, slots=True)
class Warmup:
    """Warm-up samples, as ``model_warmup`` of a config has them, and the files they read."""

    samples: tuple[Mapping[str, Any], ...]
    files: Mapping[str, bytes]

    def renamed(self, names: Mapping[str, str]) -> list[Mapping[str, Any]]:
        """Return the samples under the backend's input names."""
        return [{**s, "inputs": {names.get(k, k): data for k, data in s["inputs"].items()}} for s in self.samples]


def load_points(
    samples: Path, reference: Path, *, inputs: tuple[TensorSpec, ...], outputs: tuple[TensorSpec, ...]
) -> dict[str, ReferencePoint]:
    """Read the shape points that fit the contract (a static build fits one), smallest first.

    Of a stateful model these are the steps of a stream, in order, and the first stands for the opt shape.

    Raises:
        InputError: a file is no ``.npz``, or the opt point is missing, does not fit the contract or lacks an output.
    """
    feeds, answers = read_feeds(samples), read_feeds(reference)
    points: dict[str, ReferencePoint] = {}
    steps = tuple(feeds) if FIRST_STEP in feeds else ()
    needed = FIRST_STEP if steps else "opt"
    for point in steps or POINTS:
        given, found = feeds.get(point, {}), answers.get(point, {})
        feed = {s.name: given[s.name] for s in inputs if s.name in given}
        answer = {s.name: found[s.name] for s in outputs if s.name in found}
        try:
            fitted = fit_inputs(feed, inputs)
        except SampleError as error:
            if point == needed or steps:
                raise InputError(f"{samples}: the {point} shape does not fit the model: {error.message}") from error
            continue
        if missing := [s.name for s in outputs if s.name not in answer]:
            if point == needed or steps:
                raise InputError(f"{reference} has no {point}/{missing[0]}: it has {sorted(found)}")
            continue
        size = sum(a.nbytes for a in (*fitted.values(), *answer.values()))
        room = LARGEST_POINT_BYTES - (sum(map(_size, points.values())) if steps else 0)
        if point == needed or size <= room:
            points[point] = ReferencePoint(fitted, answer)
        elif steps:
            break  # a stream without a gap
    return points


def _size(point: ReferencePoint) -> int:
    return sum(a.nbytes for a in (*point.inputs.values(), *point.outputs.values()))


def write_reference(path: Path, points: Mapping[str, ReferencePoint], initial: Feed) -> None:
    """Store the points under ``inputs/<point>/<name>`` and ``outputs/<point>/<name>``, states as ``initial/<name>``."""
    arrays = {
        f"{kind}/{name}/{key}": value
        for name, point in points.items()
        for kind, feed in (("inputs", point.inputs), ("outputs", point.outputs))
        for key, value in feed.items()
    }
    np.savez(path, **arrays, **{f"initial/{name}": value for name, value in initial.items()})  # type: ignore[arg-type]


def warmup(
    points: Mapping[str, ReferencePoint],
    inputs: tuple[TensorSpec, ...],
    *,
    batch: int,
    profile: Profile,
    grouping: Grouping | None = None,
) -> Warmup:
    """Make warm-up samples: each shape point at batch 1, and the opt shape at the largest batch.

    Runtimes prepare kernels and memory for each shape they meet, so the shapes that were measured are met before the
    server is ready. Points whose data is larger than ``LARGEST_FILE_BYTES`` stay out, but opt, whose large floats
    become zeros. The same shape is run once, and the same data stored once.

    What leads the inputs and is no batch stays as the points have it, and no sample is outside of the profile: a sample
    that is refused ends the load of the model (core, src/backend_model_instance.cc, WarmUp).

    Args:
        points: inputs by point, fitted to ``inputs``; opt is among them.
        inputs: the contract, batch axis included.
        batch: the config's ``max_batch_size``; 0 where the server does not batch.
        profile: shape ranges of the artifact, for the largest batch where the model has a batch axis of its own.
        grouping: lengths that requests are padded to: each is met alone, those of the samples in a full group, too.
            Without a mask the samples' shapes, both ways; large floats of theirs become zeros, too.
    """
    rows_vary = all(s.dims[:1] == ("batch",) for s in inputs)
    least = max((profile[s.name].min[0] for s in inputs), default=1) if rows_vary else 1
    step = max((profile[s.name].multiples[0] for s in inputs), default=1) if rows_vary else 1
    if batch and least > 1:  # a sample of a server that batches is requests of one row, which the model refuses
        return Warmup((), {})
    largest = batch or (min(profile[s.name].max[0] for s in inputs) if rows_vary else 1)
    feeds = {name: point.inputs for name, point in points.items()}
    wanted = [("opt", 1), ("opt", largest), *((name, 1) for name in points if name != "opt")]
    always = {"opt"}
    if grouping is not None:
        sized = {f"length{n}": {str(grouping.axis): n} for n in grouping.lengths}
        usual = {f"length{n}" for n in grouping.usual}
        shapes = {"x".join(["shape", *map(str, sizes.values())]): sizes for sizes in grouping.shapes or ()}
        feeds |= {n: resized(feeds["opt"], inputs, s, grouping.mask) for n, s in (*sized.items(), *shapes.items())}
        wanted += [(name, size) for name in sized for size in ((1, largest) if name in usual else (1,))]
        wanted += [(name, size) for name in shapes for size in (1, largest)]
        always |= shapes.keys()
    samples: dict[tuple[int, tuple[tuple[int, ...], ...]], Mapping[str, Any]] = {}
    files: dict[str, bytes] = {}
    for point, size in wanted:
        requests, rows = (size, 1) if batch else (1, -(-max(size, least) // step) * step)
        feed = dict(feeds[point])
        if rows_vary:
            feed = {name: np.resize(value, (rows, *value.shape[1:])) for name, value in feed.items()}
        shape = (requests, tuple(feed[s.name].shape for s in inputs))
        if shape in samples or (point not in always and sum(v.nbytes for v in feed.values()) > LARGEST_FILE_BYTES):
            continue
        data: dict[str, Mapping[str, Any]] = {}
        for index, spec in enumerate(inputs):
            value = feed[spec.name]
            source: dict[str, Any] = {"zero_data": True}
            if value.dtype.kind in "iub" or (value.dtype.kind == "f" and value.nbytes <= LARGEST_FILE_BYTES):
                # Requests of one sample share its data, so batch 1 and N requests of batch 1 read the same file.
                name = f"{point}_rows{rows}_{index}.bin" if rows_vary else f"{point}_{index}.bin"
                source = {"input_data_file": name}
                files[name] = value.tobytes()
            data[spec.name] = {"data_type": datatype(spec.dtype), "dims": value.shape[1 if batch else 0 :], **source}
        label = f"{point}_batch{size}" if rows_vary else point
        samples[shape] = {"name": label, "batch_size": requests, "count": 1, "inputs": data}
    return Warmup(tuple(samples.values()), files)
