"""May texts share rows of a variant, and does that answer more of them? Asked of the variant, in turn with groups.

The session that takes shared rows is made while it is loaded, from the artifact that was proved. So each text's answer
in a shared row is held against its answer alone, by the variant's own gate; then requests of the traffic are answered
in groups by length and in shared rows, pass after pass in turn. What is not faster beyond doubt, and by more than what
decisions call equal, is not kept.
"""

import contextlib
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from accel.bench.race import EQUIVALENT
from accel.bench.stability import ratio_interval
from accel.builders import Session, targets
from accel.core.errors import first_line
from accel.core.feeds import Feed
from accel.core.values import Artifact, ModelSource
from accel.exporters import traffic
from accel.run.group_check import hold, rows_of_lengths, seen
from accel.run.tasks import Described
from accel.triton.grouping import WINDOW, Grouping, Packing, answered

WIDTHS = (64, 128, 256)
"""Positions of a row that are tried, where the model takes so many."""
PLACES = 512
"""Positions of a call. On two cores larger calls answer no more, and the short texts of one wait longer."""
ROOM_DB = 6.0
"""What SQNR may be lower than in groups: sums are taken in another order in both. A gate of INT8 or BF16 leaves room in
which a text could see a little of another. Six variants of BERT and MiniLM: 3 dB higher to 3 dB lower."""
LEAST_ROUNDS, MOST_ROUNDS, ROUNDS_S = 5, 40, 15.0
"""Rounds of a pass each, and the time (s) after which no further one begins that is not needed."""


def check_packing(
    artifact: Artifact, folder: Path, described: Described, samples_folder: Path, grouping: Grouping, threads: int
) -> Grouping:
    """Try to let texts share rows; return the grouping with that, or with the reason why not.

    Args:
        folder: where the artifact's files lie.
        grouping: what the variant was proved to allow.
    """
    source, builder = described.source, targets.discover()[artifact.variant.target.name]
    plain = replace(grouping, packing=None, unpacked=None)
    if not builder.packs or grouping.mask is None or artifact.variant.static is not None:
        return plain
    if odd := [s.name for s in source.inputs if s.dims != ("batch", grouping.axis)]:
        return replace(plain, unpacked=f"input {odd[0]!r} is not one value for each position")
    how: dict[str, Any] = {"threads": threads, "mode": "latency"}
    try:
        with (
            contextlib.closing(builder.open(artifact, folder, **how)) as session,
            contextlib.closing(builder.open_packed(artifact, folder, mask=grouping.mask, **how)) as packed,
        ):
            return _tried(source, session, packed, plain, described, samples_folder)
    except Exception as error:  # noqa: BLE001  whatever a stranger's graph leads to, it costs the shared rows alone
        return replace(plain, unpacked=first_line(error))


def _tried(
    source: ModelSource, session: Session, packed: Session, plain: Grouping, described: Described, samples_folder: Path
) -> Grouping:
    tried = in_rows(plain)
    items = rows_of_lengths(source, samples_folder / described.samples.gate.path, plain)
    held = hold(source, session, items, tried[max(tried)], plain.gate, packed)
    if not held.passed:
        return replace(plain, unpacked=f"answers depend on the texts of a row: {held.reasons[0]}")
    apart, shared = plain.found.get("sqnr_db"), held.found.get("sqnr_db")
    if apart is not None and shared is not None and shared < apart - ROOM_DB:
        said = f"sqnr_db {shared:.1f}, where groups by length keep {apart:.1f}"
        return replace(plain, unpacked=f"answers depend on the texts of a row: {said}")
    if not (asked := _requests(source, described, samples_folder)):
        return replace(plain, unpacked="there are no requests to time")
    ways = {width: _pass(source, packed, way, asked) for width, way in tried.items()}
    grouped = _pass(source, session, plain, asked)
    first = {width: min(_seconds(way), _seconds(way)) for width, way in ways.items()}  # the first meets new shapes
    width = min(first, key=first.__getitem__)
    gain = _gain(grouped, ways[width])
    if gain[1] <= 1 + EQUIVALENT:
        said = f"{gain[0]:.2f}× [{gain[1]:.2f}, {gain[2]:.2f}]"
        return replace(plain, unpacked=f"shared rows answer {said} of the requests that groups by length do")
    return replace(plain, packing=Packing(width, PLACES, gain, len(items), held.gate, held.found))


def in_rows(plain: Grouping) -> dict[int, Grouping]:
    """Return by width how texts may share rows: none is wider than the longest text, where the model's tables end."""
    widths = [width for width in WIDTHS if width <= plain.lengths[-1]] or [plain.lengths[-1]]
    return {width: replace(plain, packing=Packing(width, PLACES)) for width in widths}


def _requests(source: ModelSource, described: Described, samples_folder: Path) -> Mapping[int, Feed]:
    """Return a window of the traffic, or of the samples, at even distances of their lengths."""
    every = [
        traffic.trimmed(source, {n: v[row : row + 1] for n, v in feed.items()})
        for feed in seen(described, samples_folder)
        for row in range(len(next(iter(feed.values()))))
    ]
    every.sort(key=lambda feed: traffic.length_of(source, feed))
    chosen = np.linspace(0, len(every) - 1, min(WINDOW, len(every))).astype(int).tolist()
    return {number: every[i] for number, i in enumerate(chosen)}


def _pass(source: ModelSource, session: Session, grouping: Grouping, asked: Mapping[int, Feed]) -> Callable[[], object]:
    return lambda: answered(asked, source.inputs, source.outputs, grouping, session.run)


def _seconds(way: Callable[[], object]) -> float:
    begin = time.perf_counter()
    way()
    return time.perf_counter() - begin


def _gain(grouped: Callable[[], object], packed: Callable[[], object]) -> tuple[float, float, float]:
    """Time both in turn; return how many requests the second answers for one of the first, and the 99 % interval.

    More rounds come while the interval holds what is not more than equal, and there is time.
    """
    begin = time.perf_counter()
    taken: tuple[list[float], list[float]] = [], []
    _seconds(grouped)
    while True:
        for way in (0, 1) if len(taken[0]) % 2 else (1, 0):
            taken[way].append(_seconds((grouped, packed)[way]))
        if len(taken[0]) < LEAST_ROUNDS:
            continue
        ratio = ratio_interval(*taken)
        settled = not ratio[1] <= 1 + EQUIVALENT <= ratio[2]
        if settled or len(taken[0]) >= MOST_ROUNDS or time.perf_counter() - begin > ROUNDS_S:
            return ratio
