"""What is timed and served: feeds of the proof with what the source answered, and the shapes that variants take."""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from accel.bench.in_process import TimedShape, TrafficGroup
from accel.core.feeds import Feed, feed_names, fixed_parts, read_feeds
from accel.core.values import ModelSource, TensorSpec, Variant, axis_sizes
from accel.exporters import coverage, traffic
from accel.exporters.axes import batch_axis, batches, sizes_of
from accel.run.decide import Objective
from accel.run.stages import Answered, Stage
from accel.run.tasks import STORED_STEPS, Described, holds, streams_of

FEEDS = 8
"""Different real samples that requests to a server carry, all at the typical shape."""


class Pair(NamedTuple):
    """A feed and what the source answered to it."""

    inputs: Feed
    outputs: Feed


def proved(described: Stage[Described], reference: Stage[Answered]) -> dict[str, Pair]:
    """Return the feeds of the proof that are timed and served, all real samples, by name.

    Those of the traffic alone have padding.
    """
    files, answered = described.value.samples, reference.folder / reference.value.file
    wanted = {"opt", *map(coverage.timed, batches(described.value.source))}
    wanted |= {name for name in feed_names(answered) if traffic.point(name)}
    feeds = read_feeds(described.folder / files.shapes.path, only=wanted)
    feeds |= read_feeds(described.folder / files.coverage.path, only=wanted) if files.coverage else {}
    answers = read_feeds(answered, only=wanted)
    return {n: Pair(feed, answers[n]) for n, feed in feeds.items() if n in answers}


def steps(described: Stage[Described], reference: Stage[Answered]) -> list[Pair]:
    """Return the first steps of a stateful model's first stream, as clients send them, and the source's answers."""
    source, files = described.value.source, described.value.samples
    streams = streams_of(files, described.folder)
    names = {f"s0.{k}": step for k, step in enumerate(streams.steps[0][:STORED_STEPS])}
    answers = read_feeds(reference.folder / reference.value.file, only=names.keys())
    shown = [s.name for s in source.client_outputs]
    return [Pair(step, {o: answers[name][o] for o in shown}) for name, step in names.items()]


def samples(source: ModelSource, pairs: Mapping[str, Pair]) -> list[Pair]:
    """Return up to ``FEEDS`` different samples of the typical shape: rows of a timed batch, where rows are items."""
    axis = batch_axis(source)
    most = max((n for n in batches(source) if n <= FEEDS and coverage.timed(n) in pairs), default=0)
    smallest = source.profile[source.inputs[0].name].min[0] if axis else 0
    if not most or smallest != 1 or any(spec.dims[:1] != (axis,) for spec in source.outputs):
        return [pairs["opt"]]
    inputs, outputs = pairs[coverage.timed(most)]
    rows = [tuple({k: v[i : i + 1] for k, v in side.items()} for side in (inputs, outputs)) for i in range(most)]
    return [Pair(*row) for row in rows]


def points(
    variant: Variant, source: ModelSource, scenario: Objective, pairs: Mapping[str, Pair]
) -> dict[TimedShape, dict[str, Pair]]:
    """Return what a variant is timed at, each point with its feeds; what the source refused is not timed."""
    opt = {name: shape.opt for name, shape in variant.profile.items()}
    if scenario == "traffic":
        made = _fixed_traffic(variant, source, opt, pairs) if variant.static else _traffic(source, pairs)
        batch = next(iter(opt.values()))[0] if source.batched else 1
        return {
            _grouped(key, batch if variant.static else int(key[1:]), source, found): found
            for key, found in made.items()
        }
    if variant.static is not None:
        batch = next(iter(opt.values()))[0] if batch_axis(source) else 1
        key = f"static-{variant.static}"
        return {TimedShape(key, batch, opt): {key: pairs["opt"]}}
    axis = batch_axis(source)
    sizes = batches(source)[:1] if scenario == "latency" else batches(source)
    return {
        TimedShape(name, n, {k: (n, *shape[1:]) if axis else shape for k, shape in opt.items()}): {name: pairs[name]}
        for n in sizes
        if (name := coverage.timed(n)) in pairs
    }


def _traffic(source: ModelSource, pairs: Mapping[str, Pair]) -> dict[str, dict[str, Pair]]:
    """Return the groups of each size, by the key of their point; a pass that lacks a request is none."""
    found: dict[str, dict[str, Pair]] = {}
    for name, pair in pairs.items():
        if (key := traffic.point(name)) is not None:
            found.setdefault(key, {})[name] = pair
    rows = {key: sum(traffic.requests(source, p.inputs)[0] for p in groups.values()) for key, groups in found.items()}
    return {key: groups for key, groups in found.items() if rows[key] >= traffic.REQUESTS}


def _fixed_traffic(
    variant: Variant, source: ModelSource, opt: Mapping[str, tuple[int, ...]], pairs: Mapping[str, Pair]
) -> dict[str, dict[str, Pair]]:
    """Return the requests as a build of one shape takes them, padded to it; nothing where one does not fit."""
    alone = next(iter(_traffic(source, pairs).values()), {})
    if not alone or not all(holds(source, opt, pair.inputs) for pair in alone.values()):
        return {}
    key = f"static-{variant.static}"
    if not source.batched:
        return {key: {f"{key}.{number}": pair for number, pair in enumerate(alone.values())}}
    batch = next(iter(opt.values()))[0]
    if batch > 1 and any(spec.dims[:1] != ("batch",) for spec in source.outputs):
        return {}  # answers that cannot be joined
    one = {name: (1, *shape[1:]) for name, shape in opt.items()}
    rows = [row for pair in alone.values() for row in _fixed(pair, source, one)]
    rows += rows[: -len(rows) % batch]
    parts = [rows[start : start + batch] for start in range(0, len(rows), batch)]
    return {
        key: {
            f"{key}.{number}": Pair(_joined([row.inputs for row in part]), _joined([row.outputs for row in part]))
            for number, part in enumerate(parts)
        }
    }


def _joined(feeds: Sequence[Feed]) -> Feed:
    return {name: np.concatenate([feed[name] for feed in feeds]) for name in feeds[0]}


def _fixed(pair: Pair, source: ModelSource, opt: Mapping[str, tuple[int, ...]]) -> Iterator[Pair]:
    """Cut and pad a feed to a fixed shape, and the answers with it."""
    if all(value.shape == opt[name] for name, value in pair.inputs.items()):
        yield pair
        return
    own = sizes_of(source.inputs, pair.inputs)
    fixed = own | axis_sizes(source.inputs, opt)

    def shape(spec: TensorSpec) -> tuple[int, ...]:
        sizes = zip(spec.dims, pair.outputs[spec.name].shape, strict=True)
        return tuple(fixed[dim] if isinstance(dim, str) else size for dim, size in sizes)

    outputs = fixed_parts(pair.outputs, {spec.name: shape(spec) for spec in source.outputs})
    yield from map(Pair, fixed_parts(pair.inputs, opt), outputs)


def _grouped(key: str, batch: int, source: ModelSource, found: Mapping[str, Pair]) -> TimedShape:
    groups = [TrafficGroup(name, *traffic.requests(source, pair.inputs)) for name, pair in found.items()]
    longest = next(iter(found.values())).inputs
    shapes = {name: value.shape for name, value in longest.items()}
    return TimedShape(key, batch, shapes, tuple(groups))
