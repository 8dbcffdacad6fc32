"""May requests of different sizes share calls of a variant? Asked of the variant itself, on the samples' own sizes.

A call's rows do not depend on each other where the mask hides padding and nothing is computed over the whole batch:
dynamic quantisation takes its scale from all rows at once, and moves an answer as far as its neighbours' values go. So
the same rows are answered alone, each at its exact length, and in groups that are worse than any that a server makes:
of arbitrary lengths, each padded to the longest. Without a mask nothing may be padded: the groups are of one shape, and
what else is in them is arbitrary.
"""

import contextlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np

from accel.builders import Session, targets
from accel.core.buckets import buckets, measured_cost, own_lengths
from accel.core.errors import StageError
from accel.core.feeds import Feed, read_feeds, resized
from accel.core.values import Artifact, ModelSource, Parity, RequestTime
from accel.exporters import traffic, verdict
from accel.exporters.axes import batch_axis, extents, hidden_axes, points, sizes_of
from accel.exporters.probe import ended
from accel.run.tasks import Described
from accel.triton.grouping import Answers, Grouping, RequestRow, call, groups, ladder

ROWS = 16
"""Rows of the samples that are compared, at even distances of their lengths; without a mask some of each shape."""


@dataclass(frozen=True, slots=True)
class GroupCheck:
    """How requests may share calls, or why they may not; neither for a model all of whose requests have one shape."""

    grouping: Grouping | None = None
    why_not: str | None = None


def grouped_by(source: ModelSource) -> Literal["length", "shape"] | None:
    """Say what requests that share a call must have in common: about one length under a mask, one shape without one.

    Returns:
        None where there is nothing to ask: no axis varies but the batch, the batch is one row, the mask is another, or
        requests are steps of sequences.
    """
    if source.states:
        return None
    mask = next((s for s in source.inputs if s.name == source.mask), None)
    if mask is not None:
        axis = traffic.length_axis(source)
        return "length" if axis is not None and mask.dims == ("batch", axis) else None
    axes = extents(source.inputs, source.profile)
    return "shape" if source.batched and len(axes) > 1 and axes["batch"].max > 1 else None


def check_groups(
    artifact: Artifact,
    folder: Path,
    described: Described,
    samples_folder: Path,
    gate: Mapping[str, float],
    threads: int,
    times: tuple[RequestTime, ...] = (),
) -> GroupCheck:
    """Hold a variant's answers in groups of arbitrary requests against its answers alone, by the variant's own gate.

    Args:
        folder: where the artifact's files lie.
        gate: of the verdict on the variant.
        times: as of ``lengths``.
    """
    source, gate_file = described.source, samples_folder / described.samples.gate.path
    by = grouped_by(source)
    if by is None or artifact.variant.static is not None:
        return GroupCheck()
    axis = traffic.length_axis(source) if by == "length" else None
    if any(s.dims[:1] != ("batch",) for s in source.outputs) or (axis is not None and axis not in hidden_axes(source)):
        return GroupCheck(why_not="an output has an axis that does not follow the inputs': no answer could be cut back")
    least = extents(source.inputs, source.profile)["batch"].min
    if least > 1:
        return GroupCheck(why_not=f"its batch begins at {least}")
    if axis is not None:
        grouping = lengths(described, samples_folder, axis, str(source.mask), times)
        items = rows_of_lengths(source, gate_file, grouping)
    else:
        grouping = shapes(described, samples_folder)
        items = _rows_of_shapes(source, gate_file, grouping)
    builder = targets.discover()[artifact.variant.target.name]
    with contextlib.closing(builder.open(artifact, folder, threads=threads, mode="latency")) as session:
        try:
            held = hold(source, session, items, grouping, gate)
        except StageError as error:
            return GroupCheck(why_not=f"it does not run each row of the samples alone and in groups: {error.message}")
    if not held.passed:
        cause = "padding or on the other rows of a call" if axis is not None else "the other rows of a call"
        return GroupCheck(why_not=f"its answers depend on {cause}: {held.reasons[0]}")
    return GroupCheck(replace(grouping, compared=len(items), gate=held.gate, found=held.found))


def hold(
    source: ModelSource,
    session: Session,
    items: Sequence[Feed],
    grouping: Grouping,
    gate: Mapping[str, float],
    packed: Session | None = None,
) -> Parity:
    """Compare the answers to single rows, alone at their exact shapes, with those in drawn groups, or in shared rows.

    Args:
        packed: takes shared rows, where ``grouping`` packs.
    """
    alone = [session.run(item) for item in items]
    feeds = dict(enumerate(items))
    asked, truth, found = dict[str, Feed](), dict[str, Feed](), dict[str, Feed]()
    if packed is not None:
        drawn = groups(feeds, grouping) + groups(feeds, grouping.merging(1))
    else:
        drawn = _any_lengths(feeds, grouping) if grouping.mask is not None else _one_shape(feeds, grouping)
    for group in drawn:
        own = {row.request: items[row.request] for row in group}
        answers = Answers(own, source.inputs, source.outputs, grouping.axis)
        outputs = call(group, feeds, source.inputs, source.outputs, grouping, (packed or session).run)
        for index, answer in answers.take(group, outputs):
            name = str(len(found))  # some rows come twice
            asked[name], truth[name], found[name] = items[index], alone[index], answer
    return verdict.compare(source, asked, truth, found, gate)


def _any_lengths(feeds: Mapping[int, Feed], grouping: Grouping) -> list[list[RequestRow]]:
    """Draw groups of single rows of arbitrary lengths; the shortest comes once more, padded as far as there is room."""
    rows = [row for group in groups(feeds, grouping) for row in group]
    drawn = [rows[i] for i in np.random.default_rng(0).permutation(len(rows))]
    cut = [drawn[i : i + grouping.rows] for i in range(0, len(drawn), grouping.rows)]
    shortest = min(rows, key=lambda row: row.length)
    return [*cut, [RequestRow(*shortest[:3], grouping.lengths[-1])]]


def _one_shape(feeds: Mapping[int, Feed], grouping: Grouping) -> list[list[RequestRow]]:
    """Draw groups of single rows of one shape: of two, and full ones.

    A row that only fills up a group is in it twice, and its second answer is not looked at.
    """
    rng, made = np.random.default_rng(0), list[list[RequestRow]]()
    for same in groups(feeds, replace(grouping, rows=len(feeds))):
        for size in sorted({2, grouping.rows}):
            order = np.resize(rng.permutation(len(same)), -(-len(same) // size) * size)
            made += [[same[i] for i in part] for part in order.reshape(-1, size).tolist()]
    return made


def lengths(
    described: Described, samples_folder: Path, axis: str, mask: str, times: Sequence[RequestTime] = ()
) -> Grouping:
    """Choose the lengths for what the samples, or the recorded traffic, are like, beside the powers of two.

    Args:
        times: what requests of some lengths were measured to cost on the variant; without them each costs its length.
    """
    source = described.source
    extent = extents(source.inputs, source.profile)[axis]
    lengths_of = Counter[int]()
    for feed in seen(described, samples_folder):
        lengths_of.update(traffic.held(source, n) for n in own_lengths(feed[mask]).tolist())
    cost = measured_cost(times) if times else float
    usual = buckets(lengths_of, cost, traffic.SHAPES) if lengths_of else ()
    steps = {traffic.held(source, n, step=1) for n in ladder(extent.min, extent.max)}
    rows = extents(source.inputs, source.profile)["batch"].max
    return Grouping(mask, axis, tuple(sorted({*usual, *steps})), usual, rows)


def shapes(described: Described, samples_folder: Path) -> Grouping:
    """List the shapes that the samples, or the recorded traffic, have most often: they are met before others are."""
    source = described.source
    counted = Counter[tuple[tuple[str, int], ...]]()
    for feed in seen(described, samples_folder):
        sizes = sizes_of(source.inputs, feed)
        counted[tuple((n, size) for n, size in sizes.items() if n != batch_axis(source))] += sizes["batch"]
    usual = tuple(dict(sizes) for sizes, _ in counted.most_common(traffic.SHAPES))
    rows = extents(source.inputs, source.profile)["batch"].max
    return Grouping(None, None, (), (), rows, shapes=usual)


def seen(described: Described, samples_folder: Path) -> Sequence[Feed]:
    """Return the recorded traffic, or the samples; nothing where these are random."""
    samples = described.samples
    if described.source.samples == "random":
        return []
    known = read_feeds(samples_folder / samples.coverage.path) if samples.coverage else {}
    recorded = [feed for name, feed in known.items() if traffic.point(name) == "t1"]
    return recorded or list(read_feeds(samples_folder / samples.gate.path).values())


def _single(source: ModelSource, gate: Path) -> Sequence[Feed]:
    """Return the rows of the samples, each by itself, without what its mask hides at the end."""
    return [
        traffic.trimmed(source, {n: v[row : row + 1] for n, v in feed.items()})
        for feed in read_feeds(gate).values()
        for row in range(len(next(iter(feed.values()))))
    ]


def _rows_of_shapes(source: ModelSource, gate: Path, grouping: Grouping) -> list[Feed]:
    """Return single rows, some of each of two shapes or more; where the samples have none, others cut or repeated."""
    items, wanted = _single(source, gate), [dict(sizes) for sizes in grouping.shapes or ()]
    for sizes in points(source.inputs, source.profile).values():
        own = {name: size for name, size in sizes.items() if name != batch_axis(source)}
        if len(wanted) < 2 and own not in wanted:
            wanted.append(own)
    chosen = list[Feed]()
    for sizes in wanted:
        nearest = sorted(items, key=lambda item: any(sizes_of(source.inputs, item)[n] != k for n, k in sizes.items()))
        for item in nearest[: max(2, ROWS // len(wanted))]:
            made = resized(item, source.inputs, sizes, source.mask)
            chosen.append({s.name: ended(made[s.name], s) for s in source.inputs})
    return chosen


def rows_of_lengths(source: ModelSource, gate: Path, grouping: Grouping) -> list[Feed]:
    """Return single rows: of the samples, cut to other lengths, and with masks as clients send them."""
    mask, items = str(grouping.mask), sorted(_single(source, gate), key=lambda item: traffic.length_of(source, item))
    chosen = [items[i] for i in sorted({*np.linspace(0, len(items) - 1, ROWS).astype(int).tolist()})]
    longest = chosen[-1]
    size = traffic.length_of(source, longest)
    chosen += [_cut(source, longest, n, grouping) for n in grouping.lengths if n < size]
    for hidden in (lambda at: at < size // 2, lambda at: at % 3 == 1):  # padded on the left, and with holes
        masked = longest[mask].copy()
        masked[:, [at for at in range(size - 1) if hidden(at)]] = 0
        chosen.append({**longest, mask: masked})
    return chosen


def _cut(source: ModelSource, item: Feed, size: int, grouping: Grouping) -> Feed:
    made = {
        s.name: ended(item[s.name][tuple(slice(size if d == grouping.axis else None) for d in s.dims)], s)
        for s in source.inputs
    }
    return {**made, str(grouping.mask): np.ones_like(made[str(grouping.mask)])}
