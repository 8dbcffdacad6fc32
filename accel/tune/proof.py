"""The best few configurations on real load, interleaved, until it is decided which of them carries the most.

Each has a server of its own and searches the greatest load that it holds, one probe a turn (``bench.goodput``), so
that drift of the machine hits all alike. One leaves when what it cannot hold lies below what another holds; what
ships does not. The load found is probed three times.
"""

import contextlib
import tempfile
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from accel.bench.goodput import WITHIN, Bisection, Probe
from accel.bench.race import Entry, Race
from accel.bench.rounds import interleave
from accel.core import hardware, temporary
from accel.core.errors import AccelError
from accel.triton.settings import Settings
from accel.tune.lab import Goal, Subject, Trial, trial

CONFIRM, GROWTH = 3, 1.15
"""Probes of the load found, and how fast the search grows from the load that was predicted."""


@dataclass(slots=True)
class Contender:
    """One configuration that is proved; a ``bench.rounds.Runner``.

    Attributes:
        start: where its search begins: the load that was predicted.
        search: what it held and what not.
        keep: called with each probe.
    """

    subject: Subject
    settings: Settings
    goal: Goal
    start: float
    probe_s: float
    least: int
    predicted: Probe | None = None
    keep: Callable[["Contender", Probe], None] = lambda contender, probe: None
    known: Sequence[Probe] = ()
    search: Bisection = field(init=False)
    _open: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)
    _trial: Trial | None = None

    def __post_init__(self) -> None:
        closed = self.goal.arrivals is None
        self.search = Bisection(self.start, whole=closed, growth=2 if closed else GROWTH, confirm=CONFIRM)
        for probe in self.known:
            self.search.add(probe)

    @property
    def name(self) -> str:
        """Its repository and settings."""
        return f"{self.subject.name}: {self.settings}"

    @property
    def threads(self) -> int:
        """CPU threads that it can use at once."""
        return hardware.cpu_threads()

    @property
    def held(self) -> float:
        """Items per second of the greatest load held; 0 where none was."""
        return self.search.best.throughput_per_s if self.search.best else 0.0

    @property
    def most(self) -> float:
        """Items per second that it cannot carry: those of the least load that broke, as if all had been answered."""
        scale = sum(self.subject.sizes) / len(self.subject.sizes)
        broken = [p for p in self.search.probes if not p.held and p.load == self.search.broken]
        if not broken:
            return float("inf")
        return broken[0].load * scale if self.goal.arrivals else broken[0].throughput_per_s

    def open(self) -> None:
        """Start its server."""
        scratch = self._open.enter_context(tempfile.TemporaryDirectory(prefix="tune-", dir=temporary.root()))
        self._trial = self._open.enter_context(trial(self.subject, self.settings, Path(scratch)))

    def turn(self, points: Collection[str]) -> None:
        """Probe one load."""
        assert self._trial is not None
        if (level := self.search.next()) is not None:
            probe = self._trial.probe(self.goal, level, seconds=self.probe_s, least=self.least)
            self.search.add(probe)
            self.keep(self, probe)

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


@dataclass(slots=True)
class Bracketing(Race):
    """Says whose search goes on: one that may still carry the most."""

    contenders: Sequence[Contender] = ()
    most_rounds: int = 40
    _over: bool = False

    def racing(self, runner: str) -> frozenset[str]:
        """Return a point where the contender searches on; the first one does to its end: the others' unit of gain."""
        one = next(c for c in self.contenders if c.name == runner)
        best = max(c.held for c in self.contenders)
        beaten = one is not self.contenders[0] and one.most < best
        return frozenset(() if self._over or one.search.next() is None or beaten else ("load",))

    def after_round(self, number: int, times: Mapping[Entry, Sequence[float]], seconds: float) -> bool:
        """Look after a round; return whether another one is wanted."""
        self._over = number >= self.most_rounds or (self.budget_s is not None and seconds >= self.budget_s)
        return any(self.racing(c.name) for c in self.contenders)


def prove(
    contenders: Sequence[Contender], *, progress: Callable[[str, str], None], budget_s: float | None = None
) -> dict[str, AccelError]:
    """Let all search in turns; return the error of each that failed. What each held is in its ``search``."""
    race = Bracketing((), budget_s, contenders=contenders)
    failed, _ = interleave(contenders, race, opening="starting a server", turn="proving, round", progress=progress)
    return failed


def verdict(best: Contender, others: Sequence[Contender]) -> str:
    """Say ``decided`` where no other can carry more, ``equivalent`` within 3 %, else ``undecided``."""
    least = best.held
    if all(c.most <= least for c in others):
        return "decided"
    close = all(c.most <= least or c.most <= least * (1 + WITHIN) ** 2 for c in others)
    return "equivalent" if close else "undecided"
