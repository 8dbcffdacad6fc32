"""May requests of different lengths share calls of a variant? Asked of the variant itself, on the samples' own lengths.

A call's rows do not depend on each other where the mask hides padding and nothing is computed over the whole batch:
dynamic quantisation takes its scale from all rows at once, and moves an answer as far as its neighbours' values go. So
the same rows are answered alone, each at its exact length, and in groups that are worse than any that a server makes:
of arbitrary lengths, each padded to the longest.
"""

import contextlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from accel.builders import Session, targets
from accel.core.buckets import buckets, measured_cost, own_lengths
from accel.core.errors import StageError
from accel.core.feeds import Feed, read_feeds
from accel.core.values import Artifact, ModelSource, Parity, RequestTime
from accel.exporters import traffic, verdict
from accel.exporters.axes import extents, hidden_axes
from accel.exporters.probe import ended
from accel.run.tasks import Described
from accel.triton.grouping import Answers, Grouping, RequestRow, groups, joined, ladder

ROWS = 16
"""Rows of the samples that are compared, at even distances of their lengths."""


@dataclass(frozen=True, slots=True)
class GroupCheck:
    """How requests may share calls, or why they may not; neither for a model without lengths or a mask."""

    grouping: Grouping | None = None
    why_not: str | None = None


def check_groups(
    artifact: Artifact,
    folder: Path,
    described: Described,
    samples_folder: Path,
    gate: Mapping[str, float],
    threads: int,
    times: tuple[RequestTime, ...] = (),
) -> GroupCheck:
    """Hold a variant's answers in groups of arbitrary lengths against its answers alone, by the variant's own gate.

    Args:
        folder: where the artifact's files lie.
        gate: of the verdict on the variant.
        times: as of ``lengths``.
    """
    source = described.source
    axis = traffic.length_axis(source)
    mask = next((s for s in source.inputs if s.name == source.mask), None)
    if mask is None or axis is None or artifact.variant.static is not None or mask.dims != ("batch", axis):
        return GroupCheck()
    if axis not in hidden_axes(source) or any(s.dims[:1] != ("batch",) for s in source.outputs):
        return GroupCheck(why_not="an output has an axis that does not follow the inputs': no answer could be cut back")
    least = extents(source.inputs, source.profile)["batch"].min
    if least > 1:
        return GroupCheck(why_not=f"its batch begins at {least}")
    grouping = lengths(described, samples_folder, axis, mask.name, times)
    items = _rows(source, samples_folder / described.samples.gate.path, grouping)
    builder = targets.discover()[artifact.variant.target.name]
    with contextlib.closing(builder.open(artifact, folder, threads=threads, mode="latency")) as session:
        try:
            held = hold(source, session, items, grouping, gate)
        except StageError as error:
            return GroupCheck(why_not=f"it does not run each row of the samples alone and in groups: {error.message}")
    if not held.passed:
        return GroupCheck(why_not=f"its answers depend on padding or on the other rows of a call: {held.reasons[0]}")
    return GroupCheck(replace(grouping, compared=len(items), gate=held.gate, found=held.found))


def hold(
    source: ModelSource, session: Session, items: Sequence[Feed], grouping: Grouping, gate: Mapping[str, float]
) -> Parity:
    """Compare the answers to single rows, alone at their exact lengths, with those in drawn groups."""
    alone = {str(i): session.run(item) for i, item in enumerate(items)}
    feeds = dict(enumerate(items))
    rows = [row for group in groups(feeds, grouping) for row in group]
    drawn = [rows[i] for i in np.random.default_rng(0).permutation(len(rows))]
    cut = [drawn[i : i + grouping.rows] for i in range(0, len(drawn), grouping.rows)]
    shortest = min(rows, key=lambda row: row.length)
    cut.append([RequestRow(*shortest[:3], grouping.lengths[-1])])
    found: dict[str, dict[str, np.ndarray]] = {}
    asked = dict[str, Feed]()
    for group in cut:
        own = {row.request: items[row.request] for row in group}
        answers = Answers(own, source.inputs, source.outputs, grouping.axis)
        outputs = session.run(joined(group, feeds, source.inputs, grouping.axis))
        for index, answer in answers.take(group, outputs):
            name = str(len(items) if str(index) in found else index)  # the shortest comes twice
            asked[name], alone[name], found[name] = items[index], alone[str(index)], answer
    return verdict.compare(source, asked, alone, found, gate)


def lengths(
    described: Described, samples_folder: Path, axis: str, mask: str, times: Sequence[RequestTime] = ()
) -> Grouping:
    """Choose the lengths for what the samples, or the recorded traffic, are like, beside the powers of two.

    Args:
        times: what requests of some lengths were measured to cost on the variant; without them each costs its length.
    """
    source, samples = described.source, described.samples
    extent = extents(source.inputs, source.profile)[axis]
    known = read_feeds(samples_folder / samples.coverage.path) if samples.coverage else {}
    recorded = [feed for name, feed in known.items() if traffic.point(name) == "t1"]
    seen = Counter[int]()
    if source.samples != "random":
        for feed in recorded or read_feeds(samples_folder / samples.gate.path).values():
            seen.update(traffic.held(source, n) for n in own_lengths(feed[mask]).tolist())
    usual = buckets(seen, measured_cost(times) if times else float, traffic.SHAPES) if seen else ()
    steps = {traffic.held(source, n, step=1) for n in ladder(extent.min, extent.max)}
    rows = extents(source.inputs, source.profile)["batch"].max
    return Grouping(mask, axis, tuple(sorted({*usual, *steps})), usual, rows)


def _rows(source: ModelSource, gate: Path, grouping: Grouping) -> list[Feed]:
    """Return single rows: of the samples, cut to other lengths, and with masks as clients send them."""
    items = []
    for feed in read_feeds(gate).values():
        for row in range(len(feed[grouping.mask])):
            items.append(traffic.trimmed(source, {n: v[row : row + 1] for n, v in feed.items()}))
    items.sort(key=lambda item: traffic.length_of(source, item))
    chosen = [items[i] for i in sorted({*np.linspace(0, len(items) - 1, ROWS).astype(int).tolist()})]
    longest = chosen[-1]
    size = traffic.length_of(source, longest)
    chosen += [_cut(source, longest, n, grouping) for n in grouping.lengths if n < size]
    for hidden in (lambda at: at < size // 2, lambda at: at % 3 == 1):  # padded on the left, and with holes
        masked = longest[grouping.mask].copy()
        masked[:, [at for at in range(size - 1) if hidden(at)]] = 0
        chosen.append({**longest, grouping.mask: masked})
    return chosen


def _cut(source: ModelSource, item: Feed, size: int, grouping: Grouping) -> Feed:
    made = {
        s.name: ended(item[s.name][tuple(slice(size if d == grouping.axis else None) for d in s.dims)], s)
        for s in source.inputs
    }
    return {**made, grouping.mask: np.ones_like(made[grouping.mask])}
