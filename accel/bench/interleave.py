"""Contestants in turn: all opened once, then round after round over all of them, each time in a new order.

Drift of the machine hits all alike, and every round pairs them. What stays in memory together is limited: contestants
that do not fit beside each other are opened anew for each round. One that fails leaves; the others go on. Knows neither
what a contestant is (a process, a server) nor what it does in its turn.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

from accel.core.errors import AccelError
from accel.core.hardware import available_memory_bytes

MEMORY_RESERVE = 0.25
"""Share of the memory that was free at the start which must stay free while all contestants are open."""


class Contestant(Protocol):
    """What takes its turn."""

    @property
    def name(self) -> str:
        """Name that no other contestant has."""

    def open(self) -> None:
        """Load and warm up; may be called again after ``close``."""

    def turn(self) -> None:
        """Do the work of one round."""

    def close(self) -> None:
        """Give everything back; harmless where nothing is open."""


def interleave(
    contestants: Sequence[Contestant],
    rounds: int,
    *,
    opening: str,
    turn: str,
    progress: Callable[[str, str], None],
    rooms: Sequence[Callable[[], float]] = (available_memory_bytes,),
) -> dict[str, AccelError]:
    """Give every contestant its turn in every round; all are closed at the end, also by an exception.

    Args:
        opening / turn: what ``progress`` is told of an ``open``, and of a turn before its number.
        progress: called with (contestant's name, what it does).
        rooms: how much memory of each kind is free, in a unit of its own.

    Returns:
        The error of each contestant that failed, by its name.
    """
    failed: dict[str, AccelError] = {}

    @contextmanager
    def watch(contestant: Contestant, doing: str) -> Iterator[None]:
        progress(contestant.name, doing)
        try:
            yield
        except AccelError as error:
            failed[contestant.name] = error
            contestant.close()

    def open_all() -> bool:
        """Open all; where memory does not hold them together, close them again and return False."""
        free = [room() for room in rooms]
        for contestant in contestants:
            with watch(contestant, opening):
                contestant.open()
            if any(room() < MEMORY_RESERVE * before for room, before in zip(rooms, free, strict=True)):
                for opened in contestants:
                    opened.close()
                return False
        return True

    try:
        resident = open_all()
        for number in range(rounds):
            order = [c for c in contestants if c.name not in failed]
            random.Random(number).shuffle(order)
            for contestant in order:
                with watch(contestant, f"{turn} {number + 1} of {rounds}"):
                    if not resident:
                        contestant.open()
                    contestant.turn()
                if not resident:
                    contestant.close()
    finally:
        for contestant in contestants:
            contestant.close()
    return failed
