"""Measuring in rounds: all runners opened once, then round after round over all of them, each time in a new order.

Drift of the machine hits all alike, and every round pairs them. What stays in memory together is limited: runners that
do not fit beside each other are opened anew for each round. One that fails leaves; the others go on. Knows neither
what a runner is (a process with a variant, a server with a repository) nor what it does in its turn.
"""

from __future__ import annotations

import random
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol, TypeVar

import numpy as np

from accel.core.errors import AccelError, StageError
from accel.core.hardware import available_memory_bytes
from accel.core.values import Failed, Measurement

MEMORY_RESERVE = 0.25
"""Share of the memory that was free at the start which must stay free while all runners are open."""


class Runner(Protocol):
    """What takes its turn."""

    @property
    def name(self) -> str:
        """Name that no other runner has."""

    def open(self) -> None:
        """Load and warm up; may be called again after ``close``."""

    def turn(self) -> None:
        """Do the work of one round."""

    def close(self) -> None:
        """Give everything back; harmless where nothing is open."""


class MeasuredRunner(Runner, Protocol):
    """A runner that keeps what it measured in its turns."""

    @property
    def log(self) -> Path:
        """Where to look when it failed."""

    def raw(self) -> Mapping[str, np.ndarray]:
        """Return the raw samples of all its turns, keyed ``<point>/<round>``."""

    def points(self, session: str, raw: str) -> tuple[Measurement, ...]:
        """Reduce each of its points to its figures.

        Args:
            session: id of the session.
            raw: path of its raw samples, as the measurements shall name it.

        Raises:
            StageError: what was measured gives no figures.
        """


R = TypeVar("R", bound=Runner)


def interleave(
    runners: Sequence[R],
    rounds: int,
    *,
    opening: str,
    turn: str,
    progress: Callable[[str, str], None],
    free_memory: Sequence[Callable[[], float]] = (available_memory_bytes,),
) -> dict[str, AccelError]:
    """Give every runner its turn in every round; all are closed at the end, also by an exception.

    Args:
        opening / turn: what ``progress`` is told of an ``open``, and of a turn before its number.
        progress: called with (runner's name, what it does).
        free_memory: how much memory of each kind is free, in a unit of its own.

    Returns:
        The error of each runner that failed, by its name.
    """
    failed: dict[str, AccelError] = {}

    @contextmanager
    def watch(runner: R, doing: str) -> Iterator[None]:
        progress(runner.name, doing)
        try:
            yield
        except AccelError as error:
            failed[runner.name] = error
            runner.close()

    def open_all() -> bool:
        """Open all; where memory does not hold them together, close them again and return False."""
        free = [probe() for probe in free_memory]
        for runner in runners:
            with watch(runner, opening):
                runner.open()
            if any(probe() < MEMORY_RESERVE * before for probe, before in zip(free_memory, free, strict=True)):
                for opened in runners:
                    opened.close()
                return False
        return True

    try:
        resident = open_all()
        for number in range(rounds):
            order = [r for r in runners if r.name not in failed]
            random.Random(number).shuffle(order)
            for runner in order:
                with watch(runner, f"{turn} {number + 1} of {rounds}"):
                    if not resident:
                        runner.open()
                    runner.turn()
                if not resident:
                    runner.close()
    finally:
        for runner in runners:
            runner.close()
    return failed


def measure(
    runners: Sequence[MeasuredRunner],
    rounds: int,
    *,
    stage: str,
    opening: str,
    turn: str,
    raw_dir: Path,
    raw_name: str,
    progress: Callable[[str, str], None],
    free_memory: Sequence[Callable[[], float]] = (available_memory_bytes,),
) -> dict[str, tuple[Measurement, ...] | Failed]:
    """Measure all runners in one session.

    Args:
        stage: what a ``Failed`` says failed.
        opening / turn / progress / free_memory: as for ``interleave``.
        raw_dir: folder for the raw samples, one ``.npz`` per runner.
        raw_name: path of such a file relative to the run directory, with ``{}`` for the runner's name.

    Returns:
        For each name its measured points, or how the runner failed.
    """
    session = uuid.uuid4().hex[:12]
    errors = interleave(runners, rounds, opening=opening, turn=turn, progress=progress, free_memory=free_memory)
    raw_dir.mkdir(parents=True, exist_ok=True)
    results: dict[str, tuple[Measurement, ...] | Failed] = {}
    for runner in runners:
        error, raw = errors.get(runner.name), raw_name.format(runner.name)
        if error is None:
            np.savez_compressed(raw_dir / Path(raw).name, **runner.raw())  # type: ignore[arg-type]
            try:
                results[runner.name] = runner.points(session, raw)
                continue
            except StageError as found:
                error = found
        results[runner.name] = Failed(stage, error.message, log=str(runner.log) if runner.log.exists() else None)
    return results
