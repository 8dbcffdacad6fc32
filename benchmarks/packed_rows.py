"""Sentences packed into rows by first fit, the feeds of packed graphs, and each sentence's answers found again."""

from collections.abc import Iterator, Sequence

import numpy as np

from accel.core.feeds import Feed

STEP = 8
"""Widths are rounded up to a multiple of this."""
Call = tuple[list[int], dict[str, np.ndarray]]
"""The sentences of a call in the order of its answers, and its feed."""
Rows = list[list[int]]


def packed_rows(lengths: Sequence[int], width: int) -> Rows:
    """Distribute sentences over rows of ``width`` by first fit, the longest first.

    Returns:
        The sentences of each row, by their places in ``lengths``. One that is longer than a row is alone in its own.
    """
    rows: Rows = []
    left: list[int] = []
    for index in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        place = next((n for n, free in enumerate(left) if free >= lengths[index]), None)
        if place is None:
            rows.append([index])
            left.append(width - lengths[index])
        else:
            rows[place].append(index)
            left[place] -= lengths[index]
    return rows


def packed_feed(rows: Rows, requests: Sequence[Feed], mask: str) -> dict[str, np.ndarray]:
    """Join packed rows to one feed, as wide as the fullest row, rounded up to 8.

    Args:
        requests: inputs (1, length) by name, ``mask`` among them, which is not in the feed.

    Returns:
        The other inputs (rows, width), 0 at padding; ``segments``, ``positions`` (rows, width) and ``starts``
        (sentences,), int32. Sentences are in the order of ``rows``.
    """
    fullest = max(sum(requests[i][mask].shape[1] for i in row) for row in rows)
    width = -(-fullest // STEP) * STEP
    names = [name for name in requests[0] if name != mask]
    made = {name: np.zeros((len(rows), width), requests[0][name].dtype) for name in names}
    made |= {name: np.zeros((len(rows), width), np.int32) for name in ("segments", "positions")}
    starts = []
    for number, row in enumerate(rows):
        begin = 0
        for segment, index in enumerate(row, 1):
            kept = (number, slice(begin, begin + requests[index][mask].shape[1]))
            for name in names:
                made[name][kept] = requests[index][name][0]
            made["segments"][kept] = segment
            made["positions"][kept] = np.arange(kept[1].stop - begin)
            starts.append(number * width + begin)
            begin = kept[1].stop
    return made | {"starts": np.array(starts, np.int32)}


def unpacked(feed: Feed, outputs: Feed) -> Iterator[dict[str, np.ndarray]]:
    """Yield each sentence's own outputs (1, length, …) or (1, …), in the order of ``starts``."""
    shape = feed["segments"].shape
    flat = feed["segments"].ravel()
    for number, start in enumerate(feed["starts"]):
        row_end = (int(start) // shape[1] + 1) * shape[1]
        length = int((flat[start:row_end] == flat[start]).sum())
        yield {
            name: value.reshape(-1, *value.shape[2:])[None, start : start + length]
            if value.shape[:2] == shape
            else value[None, number]
            for name, value in outputs.items()
        }


def packed_calls(requests: Sequence[Feed], mask: str, width: int, places: int, window: int) -> list[Call]:
    """Return the calls with packed rows, ``places // width`` rows each, the emptiest rows together."""
    made: list[Call] = []
    for begin in range(0, len(requests), window):
        lengths = [feed[mask].shape[1] for feed in requests[begin : begin + window]]
        rows = [[begin + i for i in row] for row in packed_rows(lengths, width)]
        rows.sort(key=lambda row: -sum(requests[i][mask].shape[1] for i in row))
        longer = [[row] for row in rows if sum(requests[i][mask].shape[1] for i in row) > width]
        usual, most = rows[len(longer) :], max(1, places // width)
        for call in (*longer, *(usual[i : i + most] for i in range(0, len(usual), most))):
            made.append(([i for row in call for i in row], packed_feed(call, requests, mask)))
    return made
