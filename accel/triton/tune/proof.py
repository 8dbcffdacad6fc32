"""The best few configurations on real load, interleaved, until it is decided which of them carries the most.

Each has a server of its own and searches the greatest load that it holds, one probe a turn (``bench.goodput``), so
that drift of the machine hits all alike. One leaves when what it cannot hold, probed twice, lies below what another
holds; what ships does not. The load found is probed three times. What is compared is of one call, where there is time.
"""

import contextlib
import dataclasses
import math
import tempfile
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from accel.bench.goodput import WITHIN, Bisection, Probe
from accel.bench.machine_noise import Turn
from accel.bench.race import Entry, Race
from accel.bench.rounds import interleave
from accel.core import hardware, temporary
from accel.core.errors import AccelError
from accel.triton.settings import Settings
from accel.triton.tune.lab import Goal, Share, SharedTrial, Subject, Trial, largest_batch, shared_trial, trial

NEXT, AGAIN = "next", "again"
"""What a turn puts on a server: the next load of its search, or the least one that broke once more."""
CONFIRM, GROWTH = 3, 1.15
"""Probes of the load found, and how fast the search grows from the load that was predicted."""
OTHER_CALL = "in another call, at another hour, so that neither is known to be faster; the same command goes on"
"""What follows on a figure that there was no time to measure again beside another."""
LEAST_PROBES = 6
"""What ships has so many, whatever the time, while nothing is held: 6 go down to a sixteenth of the load predicted."""
CONFIRMING_LIMITS, MOST_CONFIRMING_S = 32, 10.0
"""What confirms a load lasts so many times the budget, up to so many seconds: a queue shows that grows by 3 % of
the time. The eight of a search let through a load 10 % above what a server carries (M/D/1 of 400/s, 200 ms).
"""


@dataclass(slots=True)
class ConfigurationRunner:
    """One configuration that is proved; a ``bench.rounds.Runner``.

    Attributes:
        start: where its search begins: the load that was predicted.
        search: what it held and what not.
        keep: called with each probe.
        memory_mib / gpu_memory_mib: the most that was seen in any probe; None where it is not known.
        hit_share: share of the requests that its response cache answered; None without one.
        shares: of models that share a server, the configuration of each; ``subject`` and ``settings`` are the first's.
        call: when the call began whose probes these are; ``known`` ones may be of earlier calls.
    """

    subject: Subject
    settings: Settings
    goal: Goal
    start: float
    probe_s: float
    least: int
    predicted: Probe | None = None
    keep: Callable[["ConfigurationRunner", Probe], None] = lambda runner, probe: None
    known: Sequence[Probe] = ()
    memory_mib: float | None = None
    gpu_memory_mib: float | None = None
    hit_share: float | None = None
    shares: tuple[Share, ...] = ()
    call: str = ""
    search: Bisection = field(init=False)
    _open: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)
    _trial: Trial | SharedTrial | None = None

    def __post_init__(self) -> None:
        closed = self.goal.arrivals is None
        self.search = Bisection(self.start, whole=closed, growth=2 if closed else GROWTH, confirm=CONFIRM)
        for probe in self.known:
            self.search.add(probe)

    @property
    def name(self) -> str:
        """Its repository and settings, of all models that it has."""
        return (
            " + ".join(f"{s.subject.model}/{s.subject.name}: {s.settings}" for s in self.shares)
            or f"{self.subject.name}: {self.settings}"
        )

    @property
    def threads(self) -> int:
        """CPU threads that it can use at once."""
        return hardware.cpu_threads()

    @property
    def held(self) -> float:
        """Items per second of the greatest load held; 0 where none was.

        Of an open loop those of the load, unless fewer came than chance explains: how many happen to come in a probe
        of 300 requests varies by 6 %.
        """
        if (best := self.search.best) is None:
            return 0.0
        sent, chance = self.sent(best), 3 / math.sqrt(max(1, best.requests))
        return best.throughput_per_s if best.throughput_per_s < (1 - chance) * sent else sent

    @property
    def expected(self) -> float:
        """Items per second of the greatest load that it was predicted to hold, counted as in ``held``."""
        if self.predicted is None:
            return 0.0
        return self.sent(self.predicted)

    @property
    def _items(self) -> float:
        """Items of a request, on average."""
        shares = [(s.share, s.subject.sizes) for s in self.shares] or [(1.0, self.subject.sizes)]
        return sum(share * sum(sizes) / len(sizes) for share, sizes in shares)

    @property
    def most(self) -> float:
        """Items per second that it cannot carry: those of the least load that broke, as if all had been answered."""
        broken = [p for p in self.search.probes if not p.held and p.load == self.search.broken]
        if self.goal.arrivals is None and self.search.next() is None:
            return self.held  # more clients were tried, or brought nothing
        if not broken:
            return float("inf")
        return self.sent(broken[0])

    def sent(self, probe: Probe) -> float:
        """Return the items per second that a probe asked for; of a closed loop those that were answered."""
        return probe.load * self._items if self.goal.arrivals else probe.throughput_per_s

    def restart(self) -> None:
        """Begin anew where earlier calls ended: on another day the machine may carry more, or less."""
        best = self.search.best
        self.start = best.load if best else self.search.next() or self.start
        self.known = ()
        self.__post_init__()

    def open(self) -> None:
        """Start its server, unless all is known that it would be asked."""
        if self.search.next() is None:
            return
        scratch = self._open.enter_context(tempfile.TemporaryDirectory(prefix="tune-", dir=temporary.root()))
        if self.shares:
            shared = self._open.enter_context(shared_trial(self.shares, Path(scratch)))
            shared.warm()
            self._trial = shared
        else:
            alone = self._open.enter_context(trial(self.subject, self.settings, Path(scratch)))
            alone.warm(largest_batch(self.subject, self.settings), self.settings.instances)
            self._trial = alone

    def turn(self, point: str) -> None:
        """Probe one load; nothing where its time is over."""
        if (level := self.search.next()) is not None:
            if self._trial is None:  # it had left, and what beat it did not hold
                self.open()
            assert self._trial is not None
            level, seconds = self.search.broken if point == AGAIN else level, self.probe_s
            if self.search.confirms(level):
                seconds = max(seconds, min(MOST_CONFIRMING_S, CONFIRMING_LIMITS * self.goal.budget_ms / 1e3))
            seed = sum(p.count for p in self.search.probes)  # no two probes have the same arrivals
            probe = self._trial.probe(self.goal, level, seconds=seconds, least=self.least, seed=seed)
            self.search.add(dataclasses.replace(probe, calls=(self.call,)))
            used = self._trial.memory_mib(), self._trial.gpu_memory_mib()
            self.memory_mib, self.gpu_memory_mib = map(most, (self.memory_mib, self.gpu_memory_mib), used)
            if self.settings.cached:
                self.hit_share = self._trial.hit_share()
            self.keep(self, probe)

    def end_turn(self) -> None:
        """Do nothing: a probe looks at the answers of its own."""

    def discard(self) -> None:
        """Keep the probe: a disturbed one counts, as another is made of any load that is found."""

    def times(self) -> Mapping[str, Sequence[float]]:
        """Return nothing: it is loads that are compared."""
        return {}

    def close(self) -> None:
        """Stop its server."""
        self._open.close()
        self._trial = None

    def leave(self) -> None:
        """Stop its server, which no other session can use."""
        self.close()


def seen(runner: ConfigurationRunner) -> dict[str, Any]:
    """Return what is kept of a configuration for the next call: its probes, and what else was seen in them."""
    return {
        "probes": runner.search.probes,
        "memory_mib": runner.memory_mib,
        "gpu_memory_mib": runner.gpu_memory_mib,
        "hit_share": runner.hit_share,
    }


def calls(runners: Iterable[ConfigurationRunner]) -> set[str]:
    """Return when the calls began that the figures of some configurations come from: those of one can be compared."""
    return {call for one in runners if (best := one.search.best) is not None for call in best.calls}


def apart(chosen: ConfigurationRunner, default: ConfigurationRunner) -> bool:
    """Say whether two figures come from calls at different hours, so that no ratio of them means anything."""
    return default.held > 0 and len(calls([chosen, default])) > 1


def most(a: float | None, b: float | None) -> float | None:
    """Return the larger of two figures of which either may not be known."""
    return max((v for v in (a, b) if v is not None), default=None)


@dataclass(slots=True)
class Bracketing(Race):
    """Says whose search goes on: one that may still carry the most."""

    runners: Sequence[ConfigurationRunner] = ()
    most_rounds: int = 40
    stop: Callable[[], bool] = lambda: False
    fits: Callable[[ConfigurationRunner], bool] = lambda runner: True
    _over: bool = False
    _stopped: bool = False
    _begin: float = field(default_factory=time.monotonic)

    def racing(self, runner: str) -> frozenset[str]:
        """Return a point where the runner searches on; the first one does to its end: the others' unit of gain.

        What another beats by a load that broke once is asked that load again: something else may have stalled it.
        """
        one = next(c for c in self.runners if c.name == runner)
        best = max((c.held for c in self.runners if self.fits(c)), default=0.0)
        beaten = one is not self.runners[0] and one.most < best
        late = self.budget_s is not None and one.search.probes and time.monotonic() - self._begin > self.budget_s
        over = self._stopped or ((self._over or late) and not self._without_figure(one))
        if over or one.search.next() is None or (beaten and not one.search.doubtful):
            return frozenset()
        return frozenset((AGAIN,) if beaten else (NEXT,))

    def _without_figure(self, one: ConfigurationRunner) -> bool:
        """Say whether it is what ships, has not had its ``LEAST_PROBES``, and no other held a load either."""
        probed = sum(p.count for p in one.search.probes)
        return one is self.runners[0] and probed < LEAST_PROBES and not any(c.held for c in self.runners)

    def after_round(
        self,
        number: int,
        times: Mapping[Entry, Sequence[float]],
        seconds: float,
        disturbed: Collection[Entry] = (),
    ) -> bool:
        """Look after a round; return whether another one is wanted."""
        over = self.budget_s is not None and seconds >= self.budget_s
        self._over, self._stopped = over or number >= self.most_rounds, self.stop()
        return any(self.racing(c.name) for c in self.runners)


def prove(
    runners: Sequence[ConfigurationRunner],
    *,
    progress: Callable[[str, str], None],
    budget_s: float | None = None,
    stop: Callable[[], bool] = lambda: False,
    fits: Callable[[ConfigurationRunner], bool] = lambda runner: True,
) -> tuple[dict[str, AccelError], list[Turn]]:
    """Let all search in turns. What each held is in its ``search``.

    What earlier calls measured is measured again, where it would be compared with figures of another call.

    Args:
        budget_s: when it is over no further load is put on what was probed once, but for ``LEAST_PROBES``; where it is
            0 nothing is measured again.
        stop: asked after each round whether to end here.
        fits: whether one may be chosen: what others carry is held against those alone.

    Returns:
        The error of each that failed, and what else the machine did meanwhile.
    """
    now = {c.call for c in runners if c.search.next() is not None}
    if budget_s != 0 and len(calls(runners) | now) > 1:
        for one in runners:
            if any(set(p.calls) - {one.call} for p in one.search.probes):
                one.restart()
    race = Bracketing((), budget_s, runners=runners, stop=stop, fits=fits)
    failed, noises = interleave(runners, race, opening="starting a server", turn="proving, round", progress=progress)
    return failed, [turn for noise in noises.values() for turn in noise.turns]


def _once(runner: ConfigurationRunner) -> bool:
    """Say whether the load found is yet to be confirmed."""
    search = runner.search
    return search.best is not None and search.best.count < search.confirm and search.next() is not None


def choose(
    alive: Sequence[ConfigurationRunner], default: ConfigurationRunner
) -> tuple[ConfigurationRunner | None, str]:
    """Choose the configuration that held the greatest load; what ships stays where nothing is better by more than 3 %.

    Args:
        alive: the configurations whose proof came to an end.
        default: the one that ships.

    Returns:
        The configuration and ``decided`` where no other can carry more, ``equivalent`` where none can beyond 3 %, else
        ``undecided``: also where the load that decides was probed once, since one probe in a few lets too much
        through. Where none held any load, None and ``impossible``, or ``undecided`` where a search did not end.
    """
    best = max(alive, key=lambda c: c.held)
    if best.held == 0:
        return None, "impossible" if all(c.search.next() is None for c in alive) else "undecided"
    others = [c for c in alive if c is not best]
    most = max((c.most for c in others), default=0.0)
    ships = default if default in alive and best.held < default.held * (1 + WITHIN) else best
    if _once(best) or any(c.search.doubtful and c.search.next() is not None for c in others):
        return ships, "undecided"
    if most <= best.held:
        return ships, "decided" if ships is best else "equivalent"
    if most > best.held * (1 + WITHIN) ** 2:
        return ships, "undecided"
    return ships, "equivalent"
