"""The greatest load that a server carries within a latency budget ("goodput"), by bisection.

A load is held when at least 99 % of its requests are answered within the budget, refusals and failures counted as
late. So it is p99 that is held against the limit, without a percentile that few samples do not have: 300 requests of
which 4 are late have broken it. The search knows neither servers nor models of them; ``probe`` asks a real one.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np

SHARE_LATE = 0.01
"""Requests that may be late: p99 is the percentile that budgets name."""
WITHIN = 0.03
"""A search ends when the greatest load held and the least one broken lie within 3 %: as close as two are equivalent."""
P99_OF = " p99"
"""What ends the name of a model's p99 among ``Probe.slow``."""
GROWTH, LONGEST_STEP = 1.6, 4.0
MOST_PROBES = 16
LEAST_LOAD = 1 / 64
"""A search that began at a load and broke at this share of it has found that nothing is held."""


@dataclass(frozen=True, slots=True)
class Probe:
    """What one load did.

    Attributes:
        load: requests per second of an open loop, or clients of a closed one.
        throughput_per_s: batch items answered per second.
        requests: how many ended, or were due and did not.
        late: how many of those took longer than the budget, or failed.
        p50_ms / p99_ms: latencies of the answered ones, from the intended time; None where too few say.
        failures: how many failed or were refused.
        error: what the first failure said.
        count: how many probes these are.
        over: percentiles (``p50``) whose own budget was not kept, and by how many ms; None where so many failed or
            are not answered that there is no such percentile.
        by_model: of models that share a server, what each did: ``throughput_per_s``, ``p50_ms``, ``p99_ms``; requests,
            late ones and percentiles above are those of the model that did worst.
        slow: of each percentile that has a budget, how many requests took longer than that or are not answered, and of
            how many; of models that share a server of their p99, too (``m p99``).
        calls: of what is kept from call to call, when those calls began that made these probes.
    """

    load: float
    throughput_per_s: float
    requests: int
    late: int
    p50_ms: float | None = None
    p99_ms: float | None = None
    failures: int = 0
    error: str | None = None
    count: int = 1
    over: Mapping[str, float | None] = field(default_factory=dict)
    by_model: Mapping[str, Mapping[str, float | None]] = field(default_factory=dict)
    slow: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    calls: tuple[str, ...] = ()

    def with_more(self, other: "Probe") -> "Probe":
        """Return this probe and another one of the same load as one; percentiles are the means of both."""
        n = self.count + other.count
        slow = {
            name: (found[0] + other.slow[name][0], found[1] + other.slow[name][1])
            for name, found in self.slow.items()
            if name in other.slow
        }

        shared = [found for name, found in slow.items() if name.endswith(P99_OF)]
        late, requests = max(shared, key=_share) if shared else (self.late + other.late, self.requests + other.requests)

        def mean(a: float | None, b: float | None) -> float | None:
            return b if a is None else a if b is None else (a * self.count + b * other.count) / n

        return Probe(
            self.load,
            (self.throughput_per_s * self.count + other.throughput_per_s * other.count) / n,
            requests,
            late,
            mean(self.p50_ms, other.p50_ms),
            mean(self.p99_ms, other.p99_ms),
            self.failures + other.failures,
            self.error or other.error,
            n,
            {k: by for k, by in {**self.over, **other.over}.items() if k not in slow or _exceeds(k, *slow[k])},
            {
                model: {key: mean(value, other.by_model.get(model, {}).get(key)) for key, value in figures.items()}
                for model, figures in self.by_model.items()
            },
            slow,
            tuple(dict.fromkeys((*self.calls, *other.calls))),
        )

    @property
    def held(self) -> bool:
        """Whether the budget was kept."""
        return self.late <= SHARE_LATE * self.requests and not self.over


def over(latency_ms: "np.ndarray", requests: int, limits_ms: Mapping[str, float]) -> dict[str, float | None]:
    """Return which percentiles exceed their budget, and by how many ms; None where the percentile is unanswered.

    Args:
        latency_ms: of the answered requests; the others of ``requests`` count as slower than any.
        limits_ms: percentile (``p50``) → budget.
    """
    import numpy as np

    found: dict[str, float | None] = {}
    known = np.sort(latency_ms)
    for name, limit in limits_ms.items():
        place = max(0, _rank(name, requests) - 1)
        if place >= len(known):
            found[name] = None
        elif known[place] > limit:
            found[name] = float(known[place] - limit)
    return found


def slow(latency_ms: "np.ndarray", requests: int, limits_ms: Mapping[str, float]) -> dict[str, tuple[int, int]]:
    """Return ``Probe.slow``; arguments as of ``over``."""
    unanswered = requests - len(latency_ms)
    return {name: (int((latency_ms > limit).sum()) + unanswered, requests) for name, limit in limits_ms.items()}


def _share(late: tuple[int, int]) -> float:
    """Return which share of requests was late."""
    return late[0] / max(1, late[1])


def _exceeds(name: str, slow: int, requests: int) -> bool:
    """Say whether so many slow requests put a percentile (``p50``, of a model: ``m p50``) beyond its budget."""
    return slow > requests - _rank(name, requests)


def _rank(name: str, requests: int) -> int:
    """Return which of so many requests, in order of latency, a percentile is (``p50``, of a model: ``m p50``)."""
    return math.ceil(float(name.rpartition(" ")[2][1:]) / 100 * requests)


def combined(load: float, probes: Mapping[str, Probe]) -> Probe:
    """Return what a load on several models did, as one probe: held where each of them held.

    Args:
        load: requests per second of all together.
        probes: by model.
    """
    worst = max(probes.values(), key=lambda p: (p.late / max(1, p.requests), len(p.over)))
    return Probe(
        load,
        sum(p.throughput_per_s for p in probes.values()),
        worst.requests,
        worst.late,
        worst.p50_ms,
        worst.p99_ms,
        sum(p.failures for p in probes.values()),
        next((p.error for p in probes.values() if p.error), None),
        over={f"{model} {name}": by for model, p in probes.items() for name, by in p.over.items()},
        by_model={
            model: {"throughput_per_s": p.throughput_per_s, "p50_ms": p.p50_ms, "p99_ms": p.p99_ms}
            for model, p in probes.items()
        },
        slow={
            **{f"{model} {name}": found for model, p in probes.items() for name, found in p.slow.items()},
            **{f"{model}{P99_OF}": (p.late, p.requests) for model, p in probes.items()},
        },
    )


@dataclass(slots=True)
class Bisection:
    """The search for the greatest load held, one probe at a time, so that several can take turns.

    Attributes:
        start: the first load: an estimate.
        whole: loads are whole numbers (clients).
        growth: how fast the load grows while nothing broke.
        confirm: how often the load found is probed in all: chance lets one probe in a few hold too much. Where that is
            more than once, the least load that broke is probed a second time: one stall must not bound it for ever.
        probes: what was probed so far, the probes of one load together.
    """

    start: float
    whole: bool = False
    growth: float = GROWTH
    confirm: int = 1
    probes: list[Probe] = field(default_factory=list)

    def add(self, probe: Probe) -> None:
        """Add what a probe found, to what earlier ones of that load have found."""
        same = next((i for i, p in enumerate(self.probes) if p.load == probe.load), None)
        if same is None:
            self.probes.append(probe)
        else:
            self.probes[same] = self.probes[same].with_more(probe)

    @property
    def best(self) -> Probe | None:
        """The greatest load held; of clients the fewest that carry as much as any, within 3 %."""
        held = [p for p in self.probes if p.held]
        if not self.whole:
            return max(held, key=lambda p: p.load, default=None)
        best = max(held, key=lambda p: p.throughput_per_s, default=None)
        if best is None:
            return best
        alike = (p for p in held if p.throughput_per_s * (1 + WITHIN) >= best.throughput_per_s)
        return min(alike, key=lambda p: p.load)

    @property
    def broken(self) -> float:
        """The least load that was not held; infinite where all were."""
        return min((p.load for p in self.probes if not p.held), default=math.inf)

    def next(self) -> float | None:
        """Return the load to probe next, or None where the search is over."""
        held = max((p.load for p in self.probes if p.held and p.load < self.broken), default=0.0)
        if not self.probes:
            return self._rounded(self.start)
        probed = sum(p.count for p in self.probes)
        # Where nothing is held the few steps down to the least load are made beyond the most probes, too: a load that
        # held once and broke when it was confirmed does not show that nothing is held.
        if self.best is not None and (probed >= MOST_PROBES or self._flat()):
            return self._unconfirmed() if probed < MOST_PROBES + 2 * self.confirm else None
        if not held:
            lower = self._rounded(self.broken / min(LONGEST_STEP, self.growth ** (1 + len(self.probes))))
            return self._unconfirmed() if lower >= self.broken or self.broken <= LEAST_LOAD * self.start else lower
        if math.isinf(self.broken):
            # An estimate that was far too low is left behind in ever longer steps; that of clients is flat before long.
            steps = 1 if self.whole else len(self.probes)
            return self._rounded(held * min(LONGEST_STEP, self.growth**steps), up=True)
        if self.broken / held <= 1 + WITHIN or (self.whole and self.broken - held <= 1):
            return self._unconfirmed()
        return (held + self.broken) // 2 if self.whole else math.sqrt(held * self.broken)

    def _unconfirmed(self) -> float | None:
        best = self.best
        if best is not None and best.count < self.confirm:
            return best.load
        return self.broken if self.doubtful else None

    @property
    def doubtful(self) -> bool:
        """Whether the least load that broke was probed once, and is to be probed again."""
        return self.confirm > 1 and any(p.load == self.broken and p.count == 1 for p in self.probes)

    def confirms(self, load: float) -> bool:
        """Say whether a load was probed before."""
        return any(p.load == load for p in self.probes)

    def _flat(self) -> bool:
        """Say whether more load gave no more throughput: a closed loop goes on for ever otherwise.

        Source: Amazon SageMaker Developer Guide, "Run a custom load test", ``FlatInvocations`` with ``Stop``.
        """
        held = sorted((p for p in self.probes if p.held), key=lambda p: p.load)
        return self.whole and len(held) > 2 and held[-1].throughput_per_s < (1 + WITHIN) * held[-3].throughput_per_s

    def _rounded(self, load: float, *, up: bool = False) -> float:
        return max(1, math.ceil(load) if up else math.floor(load)) if self.whole else load


def search(probe: Callable[[float], Probe], start: float, *, whole: bool = False) -> Bisection:
    """Search to the end with one prober."""
    found = Bisection(start, whole)
    while (load := found.next()) is not None:
        found.add(probe(load))
    return found
