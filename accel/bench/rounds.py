"""Measuring in rounds: all runners opened once, then round after round over all of them, each time in a new order.

Drift of the machine hits all alike, and every round pairs them. A race says who takes part in the next round and when
it is over. What stays in memory together is limited: runners that do not fit beside each other are opened anew for each
round. One that fails leaves; the others go on. What other processes disturbed is timed again, each point by itself: the
shorter a look, the more often it is undisturbed. Knows neither what a runner is (a process with a variant, a server
with a repository) nor what it does in its turn.
"""

import dataclasses
import random
import time
import uuid
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from threading import Event
from typing import NamedTuple, Protocol, TypeVar

import numpy as np

from accel.bench import machine_noise
from accel.bench.race import Entry, Race
from accel.core.errors import AccelError, CheckFailed, StageError, WorkerDied
from accel.core.hardware import available_memory_bytes
from accel.core.values import Failed, MachineNoise, Measurement

MEMORY_RESERVE = 0.25
"""Share of the memory that was free at the start which must stay free while all runners are open."""
REPEATS = 2
"""How often a disturbed turn is repeated."""
CALM_S = 1.0
"""For so long it waits before that until nobody disturbs: what works and rests in turn would meet the repeat, too."""
BUSY_TURNS = 4
"""Turns in a row that stay disturbed, after which the machine counts as busy and no more turns are repeated."""


class Runner(Protocol):
    """What takes its turn."""

    @property
    def name(self) -> str:
        """Name that no other runner has."""

    def open(self) -> None:
        """Load, so that turns may begin; may be called again after ``close``."""

    @property
    def threads(self) -> int:
        """CPU threads that it can use at once."""

    def turn(self, point: str) -> None:
        """Do the work of one round for one of its points."""

    def discard(self) -> None:
        """Forget what ``turn`` found last."""

    def end_turn(self) -> None:
        """Look at what it answered at the points of this round.

        Raises:
            CheckFailed: not what it should.
        """

    def times(self) -> Mapping[str, Sequence[float]]:
        """Return the time of a batch item in each round so far, of each point."""

    def leave(self) -> None:
        """Stop, and keep for the next session what it may use; memory held it beside all others."""

    def close(self) -> None:
        """Give everything back; harmless where nothing is open."""


class Reached(NamedTuple):
    """What a point has shown so far: its memory, the median of its calls, and the throughput of its best round."""

    memory_mib: float
    median_ms: float
    most_per_s: float


class MeasuredRunner(Runner, Protocol):
    """A runner that keeps what it measured in its turns."""

    def reached(self, point: str) -> Reached:
        """Return what a point has shown in its rounds so far, of which there is at least one."""

    @property
    def log(self) -> Path:
        """Where to look when it failed."""

    def raw(self) -> Mapping[str, np.ndarray]:
        """Return the raw samples of all its turns, keyed ``<point>/<round>``."""

    def points(self, session: str, raw: str) -> Mapping[str, Measurement]:
        """Reduce each of its points to its figures.

        Args:
            session: id of the session.
            raw: path of its raw samples, as the measurements shall name it.

        Raises:
            StageError: what was measured gives no figures.
        """


R = TypeVar("R", bound=Runner)


@dataclasses.dataclass(slots=True)
class TurnNoise:
    """What else the machine did in the turns of a point, and how many turns were thrown away for it."""

    turns: list[machine_noise.Turn] = dataclasses.field(default_factory=list)
    repeated: int = 0

    def summary(self, threads: int) -> MachineNoise:
        """Reduce them.

        Args:
            threads: CPU threads that the runner can use at once.
        """
        return machine_noise.summary(self.turns, threads, self.repeated)


def interleave(
    runners: Sequence[R],
    race: Race,
    *,
    opening: str,
    turn: str,
    progress: Callable[[str, str], None],
    free_memory: Sequence[Callable[[], float]] = (available_memory_bytes,),
    at_once: int = 1,
) -> tuple[dict[str, AccelError], dict[Entry, TurnNoise]]:
    """Give every runner that still races its turn in every round; all leave or are closed, also by an exception.

    Args:
        opening / turn: what ``progress`` is told of an ``open``, and of a turn before its number.
        progress: called with (runner's name, what it does).
        free_memory: how much memory of each kind is free, in a unit of its own.
        at_once: how many are opened at a time, before the first turn.

    Returns:
        The error of each runner that failed, by its name, and what else the machine did in the turns of each point.
    """
    failed: dict[str, AccelError] = {}
    noises: defaultdict[Entry, TurnNoise] = defaultdict(TurnNoise)
    busy = 0

    @contextmanager
    def caught(runner: R) -> Iterator[None]:
        try:
            yield
        except AccelError as error:
            failed[runner.name] = error
            runner.close()

    @contextmanager
    def watch(runner: R, doing: str) -> Iterator[None]:
        progress(runner.name, doing)
        with caught(runner):
            yield

    def leave(those: Iterable[R]) -> None:
        for runner in those:
            if runner.name not in failed:
                with caught(runner):
                    runner.leave()

    def open_all() -> bool:
        """Open all; where memory does not hold them together, close them again and return False."""
        free, short = [probe() for probe in free_memory], Event()

        def open_one(runner: R) -> None:
            if not short.is_set():
                with watch(runner, opening):
                    runner.open()
                if any(probe() < MEMORY_RESERVE * before for probe, before in zip(free_memory, free, strict=True)):
                    short.set()

        with ThreadPoolExecutor(at_once) as pool:
            list(pool.map(open_one, runners))
        if short.is_set():
            for runner in runners:
                runner.close()
        return not short.is_set()

    def times() -> dict[Entry, Sequence[float]]:
        return {(r.name, key): t for r in runners if r.name not in failed for key, t in r.times().items()}

    def take_turn(runner: R, points: Collection[str]) -> set[Entry]:
        """Return the points that stayed disturbed."""
        if not points:
            return set()
        before, stayed = machine_noise.NoiseSample.now(), set[Entry]()
        for point in race.in_order(runner.name, points):
            disturbed, before = time_point(runner, point, before)
            stayed |= {(runner.name, point)} if disturbed else set()
        runner.end_turn()
        return stayed

    def time_point(runner: R, point: str, before: machine_noise.NoiseSample) -> tuple[bool, machine_noise.NoiseSample]:
        """Return whether it stayed disturbed, and the counters after it."""
        nonlocal busy
        noise = noises[runner.name, point]
        for attempt in range(1 + REPEATS):
            runner.turn(point)
            after = machine_noise.NoiseSample.now()
            seen = after.since(before)
            was_disturbed = machine_noise.disturbed(seen, runner.threads)
            if not was_disturbed or attempt == REPEATS or busy >= BUSY_TURNS or noise.repeated > len(noise.turns):
                break
            runner.discard()
            noise.repeated += 1
            machine_noise.wait_for_calm(runner.threads, CALM_S)
            before = machine_noise.NoiseSample.now()
        noise.turns.append(seen)
        busy = busy + 1 if was_disturbed else 0
        if busy == BUSY_TURNS:
            progress(runner.name, f"the machine is busy: {machine_noise.busiest() or 'CPU time is taken from outside'}")
        return was_disturbed, after

    try:
        resident, opened = open_all(), list(runners)
        number, wanted, begin = 0, True, time.monotonic()
        while wanted:
            order = [r for r in runners if r.name not in failed and race.racing(r.name)]
            if number:
                random.Random(number).shuffle(order)
            number += 1
            disturbed: set[Entry] = set()
            for runner in order:
                with watch(runner, f"{turn} {number}"):
                    if not resident:
                        runner.open()
                    early = race.opening(runner.name) if number == 1 else frozenset()
                    early = early if early < race.racing(runner.name) else frozenset()
                    if early:
                        stayed = take_turn(runner, early)
                        disturbed |= stayed
                        if not stayed:
                            race.after_opening(runner.name, times())
                    disturbed |= take_turn(runner, race.racing(runner.name) - early)
                if not resident:
                    runner.close()
            wanted = race.after_round(number, times(), time.monotonic() - begin, disturbed)
            wanted = wanted and bool(order)  # one that failed may be wanted for ever
            if resident:
                leave(r for r in order if not race.racing(r.name))
                anew = [r for r in reversed(opened) if wanted and r.name in race.anew and r.name not in failed]
                for runner in anew:
                    runner.close()  # all of them: one that is opened beside the others gets the memory that it had
                for runner in anew:
                    with watch(runner, opening):
                        runner.open()
                opened = [r for r in opened if r not in anew] + anew
        if resident:
            leave(runners)
    finally:
        for runner in runners:
            runner.close()
    return failed, noises


def measure(
    runners: Sequence[MeasuredRunner],
    race: Race,
    *,
    stage: str,
    opening: str,
    turn: str,
    raw_dir: Path,
    raw_name: str,
    progress: Callable[[str, str], None],
    free_memory: Sequence[Callable[[], float]] = (available_memory_bytes,),
    at_once: int = 1,
) -> dict[str, tuple[Measurement, ...] | Failed]:
    """Measure all runners in one session.

    Args:
        stage: what a ``Failed`` says failed.
        opening / turn / progress / free_memory / at_once: as for ``interleave``.
        raw_dir: folder for the raw samples, one ``.npz`` per runner: what its ``raw`` gives, and ``noise/<point>``, a
            row for each turn with the columns of ``machine_noise.Turn``.
        raw_name: path of such a file relative to the run directory, with ``{}`` for the runner's name.

    Returns:
        For each name its measured points, or how the runner failed.
    """
    session = uuid.uuid4().hex[:12]
    errors, noises = interleave(
        runners, race, opening=opening, turn=turn, progress=progress, free_memory=free_memory, at_once=at_once
    )
    raw_dir.mkdir(parents=True, exist_ok=True)
    results: dict[str, tuple[Measurement, ...] | Failed] = {}
    for runner in runners:
        error, raw = errors.get(runner.name), raw_name.format(runner.name)
        if error is None:
            noise = {point: seen for (name, point), seen in noises.items() if name == runner.name}
            rows = {f"noise/{point}": np.array(seen.turns) for point, seen in noise.items()}
            np.savez_compressed(raw_dir / Path(raw).name, **runner.raw(), **rows)  # type: ignore[arg-type]
            try:
                results[runner.name] = tuple(
                    dataclasses.replace(found, noise=noise[point].summary(runner.threads))
                    for point, found in runner.points(session, raw).items()
                )
                continue
            except StageError as found:
                error = found
        log = str(runner.log) if runner.log.exists() else None
        died, wrong = isinstance(error, WorkerDied), isinstance(error, CheckFailed)
        results[runner.name] = Failed(stage, error.message, log=log, died=died, wrong=wrong)
    return results
