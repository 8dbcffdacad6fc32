"""Several texts in one row: which share a row, what a packed graph is fed, and each text's own answers.

A packed graph (``Builder.open_packed``) takes ``PACKED`` in the place of the mask, and all other inputs as they were. A
position sees those of its own text that the mask shows, positions begin anew with each text, and what is made of a
row's first position is made of each text's. Nothing here knows a runtime.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np

TEXT, SHOWN, POSITION, START = "packed_text", "packed_shown", "packed_position", "packed_start"
PACKED: Mapping[str, tuple[str, ...]] = {
    TEXT: ("rows", "width"),
    SHOWN: ("rows", "width"),
    POSITION: ("rows", "width"),
    START: ("texts",),
}
"""Inputs of a packed graph and their dims, all int32: the text of its row that a position belongs to, from 1, and 0 for
padding; the same where the mask shows the position, else -1, so that no position sees it; its place within its text;
and where in the flattened rows each text begins."""
STEP = 8
"""The width of a call is rounded up to a multiple of this, so that there are few."""


def filled(lengths: Sequence[int], width: int) -> list[list[int]]:
    """Distribute texts over rows by first fit, the longest first.

    The rows that follow each other are filled the same way where only their texts are given.

    Returns:
        The texts of each row, by their places in ``lengths``. One that is longer than a row is alone in its own.
    """
    rows: list[list[int]] = []
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


def extent(lengths: Sequence[int], rows: Sequence[Sequence[int]], most: int) -> int:
    """Return the width of a call with these rows: that of the fullest, rounded up, but no more than ``most``."""
    return min(most, -(-max(sum(lengths[i] for i in row) for row in rows) // STEP) * STEP)


def joined(texts: Sequence[Mapping[str, "np.ndarray"]], mask: str, width: int, most: int) -> dict[str, "np.ndarray"]:
    """Join texts to the feed of one call.

    Args:
        texts: inputs (length,) of each by name, ``mask`` among them, which is not in the feed.
        width: positions of a row.
        most: positions that the model takes at most; no text is longer.

    Returns:
        The other inputs (rows, width), 0 at padding, and ``PACKED``; the texts of ``packed_start`` in the order given.
    """
    import numpy as np

    lengths = [len(text[mask]) for text in texts]
    rows = filled(lengths, width)
    # Of what a model answers where the mask shows nothing, padding may be a part: such a text has its own width.
    hidden = len(texts) == 1 and not texts[0][mask].any()
    shape = (len(rows), lengths[0] if hidden else extent(lengths, rows, most))
    made = {name: np.zeros(shape, value.dtype) for name, value in texts[0].items() if name != mask}
    made |= {name: np.zeros(shape, np.int32) for name in (TEXT, SHOWN, POSITION)}
    starts = np.zeros(len(texts), np.int32)
    for number, row in enumerate(rows):
        begin = 0
        for text, index in enumerate(row, 1):
            place = (number, slice(begin, begin + lengths[index]))
            for name, value in texts[index].items():
                if name != mask:
                    made[name][place] = value
            made[TEXT][place] = text
            made[SHOWN][place] = np.where(texts[index][mask] != 0, text, -1)
            made[POSITION][place] = np.arange(lengths[index])
            starts[index] = number * shape[1] + begin
            begin = place[1].stop
    return made | {START: starts}


def separated(
    feed: Mapping[str, "np.ndarray"],
    outputs: Mapping[str, "np.ndarray"],
    lengths: Sequence[int],
    by_position: Collection[str],
) -> dict[str, list["np.ndarray"]]:
    """Return each output text by text: (length, …) of one by positions, (…) of one by texts.

    Args:
        feed: as ``joined`` made it; ``lengths`` are those of its texts.
        by_position: outputs that have the length axis.

    Raises:
        ValueError: an output has not the rows and the width of the feed, or not a row for each text.
    """
    rows, starts = feed[TEXT].shape, feed[START].tolist()
    made = {}
    for name, value in outputs.items():
        along = name in by_position
        if value.shape[: 1 + along] != (rows if along else (len(starts),)):
            raise ValueError(f"output {name!r} is {value.shape} for {len(starts)} texts in {rows} positions")
        flat = value.reshape(-1, *value.shape[2:]) if along else value
        made[name] = [flat[b : b + n] for b, n in zip(starts, lengths, strict=True)] if along else list(value)
    return made
