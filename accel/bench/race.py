"""Which variants still need another round: best-arm identification over interleaved rounds.

A contest is between all that are compared by one objective on one device. After a round each entry is held against the
best so far by its interval: what is slower leaves, what lies inside ±3 % is equivalent, and when nothing else is left
the contest is settled. ``stability.ratio_interval`` is made for being looked at so often.
"""

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from accel.bench.stability import Ratio, ratio_interval

LEAST_ROUNDS = 6
"""Rounds that whatever may win takes part in: an interval from fewer is too wide to find equivalents."""
FIRST_LOOK = 3
"""Rounds after which what is slower beyond even so wide an interval may leave, where its percentiles do not matter."""
IN_EACH = {FIRST_LOOK: 1.3, LEAST_ROUNDS: 1.1}
"""Or what is so many times slower in each of them, of as many rounds or more. Of 20,000 draws of recorded rounds of one
and the same artifact none were on a quiet machine; beside a neighbour of half a core 33 threes, one six and no ten.
"""
FAR, ALIKE = 2.0, 1.1
"""After the first round a runner whose best is so many times slower than the best of all goes on with one point: of
those within a tenth of its best the first, which is the cheapest. What it might gain by the others brings it nowhere.
What others are shown relative to keeps all points in the first round, and then its best.
"""
OWN_AT_FIRST, OWN = 3, 2
"""Points of a runner that go on after the first round, and after the first look: its fastest ones. Which of the others
is a little faster decides nothing between runners, and batch sizes that gain no more differ by a few per cent."""
AT_ONCE, BEHIND = 2, 1.2
"""Points of a runner that open its first round; the others follow where they may bring it within so many times the best
time so far: two single rounds may differ by as much.
"""
BETWEEN_LOOKS = 1.2
"""Each look comes when there are so many times the rounds of the look before."""
TOLD, MORE_ROUNDS = 1.3, 6
"""What others are shown relative to goes on beside the winner, for at most so many rounds after the least, while the
upper end of the interval of their ratio is more than so many times its lower end: 5.0 (2.4 to 10.6) tells nobody much.
"""
EQUIVALENT = 0.03
"""Two are equivalent when the interval of their ratio lies inside ±3 %."""
PROCESSES = 0.01
"""What is slower by less for certain is so in this process: two processes of one artifact differ by so much or more for
as long as they live, by where their memory lies, and no number of rounds averages that out
(docs/decisions/0017-rounds-until-decided.md).
"""
CLOSE = 1.05
"""Two that are open and differ by less go on in new processes after each look: what only these differ by changes. None
of them leaves before the first time: what opened first was the slower one by 1.3 % in the mean of 69 A/A races."""

Entry = tuple[str, str]
"""A runner's name, and the key of one of its points."""


def slower(ratio: Ratio) -> bool:
    """Say whether the first of a ratio of times takes longer for certain, and not just in its process."""
    return ratio[1] > 1 + PROCESSES


def faster(ratio: Ratio) -> bool:
    """Say whether the first of a ratio of times takes less time for certain, and not just in its process."""
    return ratio[2] < 1 / (1 + PROCESSES)


def behind(times: Sequence[float], others: Sequence[float]) -> tuple[float, int, int] | None:
    """Return by what factor one is slower at least, in how many of the rounds that both had, and how many those are.

    None where it is not ``IN_EACH`` times slower in each, one of ten left out. A machine that changes its speed in the
    middle of a session gives ratios so unlike that their interval is wide, also where each of them says the same.
    """
    ratios = sorted(own / other for own, other in zip(times, others, strict=False))
    count = len(ratios)
    kept = ratios[count // 10 :]
    far = any(count >= rounds and kept[0] > by for rounds, by in IN_EACH.items())
    return (kept[0], len(kept), count) if far else None


def equivalent(ratio: Ratio) -> bool:
    """Say whether the difference is known to be too small to matter."""
    return ratio[1] >= 1 / (1 + EQUIVALENT) and ratio[2] <= 1 + EQUIVALENT


@dataclass(slots=True)
class Contest:
    """Entries that one objective compares on one device.

    Attributes:
        entries: all of them; those of a runner the cheapest first.
        choosable: runners that may win; the others are timed for the least number of rounds.
        most: rounds after which it ends undecided.
        least: rounds before it may be settled; as many as ``most`` for a fixed number of rounds.
        first: rounds that every runner takes part in; None for ``least``, and for all points.
        fits: says of an entry whether it may still keep the limits that the choice must keep; one that cannot is timed
            as those that may not win are, and beats nobody.
        enough: says of an entry whether it has the calls that its percentiles take, or will not get them; what has won
            goes on until it has, and so do its equivalents.
        doubling: whether a runner's entries are batch sizes, each at most twice the one before: the first two then say
            what the others may gain.
        reloads: whether what is open and close is loaded anew after each look, in another process.
        compared: runners whose best point stays for ``least`` rounds, however slow, and while the interval of its ratio
            is wide (``TOLD``): others are shown relative to it.
        racing: entries that the next round times.
        anew: runners that are to be loaded anew before it.
        settled: whether the winner is known up to equivalents.
    """

    entries: tuple[Entry, ...]
    choosable: frozenset[str]
    most: int
    least: int = LEAST_ROUNDS
    first: int | None = None
    compared: frozenset[str] = frozenset()
    fits: Callable[[Entry], bool] = lambda _: True
    enough: Callable[[Entry], bool] = lambda _: True
    doubling: bool = False
    reloads: bool = False
    racing: set[Entry] = field(init=False)
    anew: set[str] = field(init=False, default_factory=set)
    settled: bool = False
    _next: int = field(init=False)
    _best_one: Entry | None = None
    _telling: set[Entry] = field(default_factory=set)
    _renewed: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.racing = set(self.entries)
        self.least = min(self.least, self.most)
        self._next = min(self.least, self.first or self.least)

    def opening(self, runner: str) -> frozenset[Entry]:
        """Return what a runner's first turn times: its first points where others may leave before they are timed."""
        own = self._own(runner)
        return frozenset(own[:AT_ONCE] if self.doubling and self.first is not None else own)

    def after_opening(self, runner: str, times: Mapping[Entry, Sequence[float]]) -> None:
        """Take a runner's other points out where the first two say that they bring it nowhere.

        If each of them gained as much again as the second did over the first, it would still be clearly behind the best
        of those that had their turn.
        """
        own, best = self._own(runner), self._best(times)
        opened, rest = own[:AT_ONCE], own[AT_ONCE:]
        if not rest or runner in self.compared or best is None or not all(entry in times for entry in opened):
            return
        first, last = times[opened[0]][0], times[opened[-1]][0]
        if last / max(1.0, first / last) ** len(rest) > BEHIND * best:
            self.racing -= set(rest)

    def _own(self, runner: str) -> list[Entry]:
        return [entry for entry in self.entries if entry[0] == runner]

    def _best(self, times: Mapping[Entry, Sequence[float]]) -> float | None:
        """Return the shortest first round of what may win."""
        may_win = (e for e in times if e in self.racing and e[0] in self.choosable and self.fits(e))
        return min((times[entry][0] for entry in may_win), default=None)

    def after_round(
        self, number: int, times: Mapping[Entry, Sequence[float]], disturbed: Collection[Entry] = ()
    ) -> None:
        """Look at what the rounds so far say, where it is time to.

        Args:
            number: rounds that were done.
            times: time of a batch item in each of its rounds, of each entry whose runner did not fail.
            disturbed: entries that other processes disturbed in this round: a single such round says nothing against
                them.
        """
        self.racing -= self._telling
        self.anew = set()
        self._look(number, times, disturbed)
        self._telling = self._wide(number, times) - self.racing
        self.racing |= self._telling

    def _look(self, number: int, times: Mapping[Entry, Sequence[float]], disturbed: Collection[Entry]) -> None:
        if self.settled:
            self._end(number)
        if self.settled or not self.racing:
            return
        if number == 1 < self._next and self.first is not None:
            self._leave_points({entry: series for entry, series in times.items() if entry not in disturbed})
        if number < self._next:
            return
        early = number < self.least
        self._next = self.least if early else min(self.most, max(number + 1, math.ceil(number * BETWEEN_LOOKS)))

        def speed(entry: Entry) -> float:
            return float(np.median(times[entry]))

        shown = [[e for e in self.racing if e[0] == name and e in times] for name in self.compared]
        self.racing &= {entry for entry in times if entry[0] in self.choosable and self.fits(entry)}
        if not self.racing:
            self.settled = True
            return
        best = self._best_one = min(self.racing, key=speed)
        against = {e: ratio_interval(times[e], times[best]) for e in self.racing if e != best}
        others = {e: ratio for e, ratio in against.items() if e[0] != best[0]}
        close = {e for e, ratio in others.items() if self.reloads and 1 / CLOSE < ratio[0] < CLOSE}
        unsure = {e for e in close if not {e[0], best[0]} <= self._renewed}
        self.racing -= {e for e, ratio in against.items() if slower(ratio) and not equivalent(ratio)} - unsure
        self.racing -= {entry for entry in against if behind(times[entry], times[best])}
        if early:
            self._keep_fastest(OWN, {entry: speed(entry) for entry in self.racing})
        open_ = {e for e in self.racing & others.keys() if not equivalent(others[e])}
        self.anew = {name for e in close & open_ for name in (e[0], best[0])}
        self._renewed |= self.anew
        if early:
            self.racing |= {min(own, key=speed) for own in shown if own}
            return
        self.settled = not open_
        if self.settled or number >= self.most:
            self._end(number)

    def _wide(self, number: int, times: Mapping[Entry, Sequence[float]]) -> set[Entry]:
        """Return what goes on, and the winner, since the interval of their ratio is wide."""
        best, wanted = self._best_one, set[Entry]()
        if best is None or best not in times or not self.least <= number < min(self.most, self.least + MORE_ROUNDS):
            return wanted
        for name in self.compared - {best[0]}:
            for entry in self._own(name):
                if len(times.get(entry, ())) == len(times[best]) == number:  # both took every round
                    _, low, high = ratio_interval(times[entry], times[best])
                    wanted |= {entry, best} if high > TOLD * low else set()
        return wanted

    def _end(self, number: int) -> None:
        self.racing = {entry for entry in self.racing if number < self.most and not self.enough(entry)}

    def _keep_fastest(self, most: int, times: Mapping[Entry, float]) -> None:
        """Let each runner of ``times`` go on with so many of its points; of equals with the cheaper."""
        for name in {entry[0] for entry in times}:
            own = sorted((entry for entry in self._own(name) if entry in times), key=times.__getitem__)
            self.racing -= set(own[most:])

    def _leave_points(self, times: Mapping[Entry, Sequence[float]]) -> None:
        """Let what is far behind go on with one of its points, and others with their fastest."""
        spent = {entry: times[entry][0] for entry in self.racing if entry in times}
        fastest = self._best(times)
        for name in {entry[0] for entry in spent}:
            own = [entry for entry in self._own(name) if entry in spent]
            best = min(spent[entry] for entry in own)
            if len(own) > 1 and fastest is not None and best > FAR * fastest:
                alike = 1.0 if name in self.compared else ALIKE
                kept = next(entry for entry in own if spent[entry] <= alike * best)
                self.racing -= set(own) - {kept}
        self._keep_fastest(OWN_AT_FIRST, {entry: spent[entry] for entry in self.racing if entry in spent})


@dataclass(slots=True)
class Race:
    """The contests of one session, and the time they share.

    Attributes:
        budget_s: no round begins later than this after the first; None for no limit.
    """

    contests: Sequence[Contest]
    budget_s: float | None = None

    def racing(self, runner: str) -> frozenset[str]:
        """Return the keys of the points that a runner's next turn times; empty where it has left."""
        return frozenset(key for contest in self.contests for name, key in contest.racing if name == runner)

    @property
    def anew(self) -> frozenset[str]:
        """Return the runners that are to be loaded anew before the next round, which they take part in."""
        return frozenset(name for contest in self.contests for name in contest.anew if self.racing(name))

    def in_order(self, runner: str, points: Collection[str]) -> list[str]:
        """Return points of a runner in the order of its entries, the cheapest first."""
        entries = [entry for contest in self.contests for entry in contest.entries]
        return sorted(points, key=lambda point: entries.index((runner, point)) if entries else 0)

    def opening(self, runner: str) -> frozenset[str]:
        """Return the keys of the points that a runner's first turn times before ``after_opening``."""
        return frozenset(key for contest in self.contests for _, key in contest.opening(runner) & contest.racing)

    def after_opening(self, runner: str, times: Mapping[Entry, Sequence[float]]) -> None:
        """Look after a runner's first turn at what it opened with; the others of its points may leave.

        Args:
            times: as for ``Contest.after_round``, of all that had their turn.
        """
        for contest in self.contests:
            contest.after_opening(runner, times)

    def after_round(
        self,
        number: int,
        times: Mapping[Entry, Sequence[float]],
        seconds: float,
        disturbed: Collection[Entry] = (),
    ) -> bool:
        """Look after a round; return whether another one is wanted.

        Args:
            number / times / disturbed: as for ``Contest.after_round``.
            seconds: since the first round began.
        """
        for contest in self.contests:
            contest.after_round(number, times, disturbed)
        least = all(number >= contest.least for contest in self.contests)
        if least and self.budget_s is not None and seconds >= self.budget_s:
            return False
        return any(contest.racing for contest in self.contests)
