"""Load that grows user by user until the server carries no more, or answers too late.

A phase begins with so many users, gets so many more in a minute, and lasts so long; a user is a closed loop. The users
that come within ``LEAST_S`` come together, so that each number of users is looked at for as long as figures need.

Source: the phases and stopping conditions of load tests in SageMaker's Inference Recommender (its developer guide, "Run
a custom load test"): ``InitialNumberOfUsers``, ``SpawnRate`` a minute, ``DurationInSeconds``; the test ends where
invocations have become flat or a percentile of the latency is above its threshold.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from accel.bench.load import Load
from accel.core.errors import UsageError
from accel.core.values import Measurement

LEAST_S = 3.0
"""Seconds for which a number of users is looked at, at least."""
FLAT, GAIN = 3, 1.03
"""So many steps in a row with more users, none of which carries more than so many times what was carried before."""
LOWER = ("p95", "p90", "p50", "mean")
"""What stands for a percentile that too few answers give, the first that is known of these: it is not above it."""
FORM = "give USERS:MORE_PER_MINUTE:SECONDS, several after commas, such as 1:10:120"


@dataclass(frozen=True, slots=True)
class PhaseLimits:
    """Where the load grows no further.

    Attributes:
        flat: where more users carry no more.
        most_ms: milliseconds by percentile (``p95``).
    """

    flat: bool = True
    most_ms: Mapping[str, float] | None = None

    def broken(self, point: Measurement) -> str | None:
        """Say which percentile of a point is above its limit; None where none is, as far as its answers say."""
        for name, most in (self.most_ms or {}).items():
            known = next(of for of in (name, *LOWER) if getattr(point, f"{of}_ms") is not None)
            if (found := getattr(point, f"{known}_ms")) > most:
                few = "" if known == name else f", with too few answers ({point.samples}) for {name}"
                return f"{known} {found:.4g} ms is above {most:g} ms{few}"
        return f"{point.failures} requests failed" if point.failures else None

    def ends(self, points: Sequence[Measurement]) -> str | None:
        """Say why the load ends after these points; None where it goes on."""
        if (why := self.broken(points[-1])) is not None:
            return why
        before, last = points[:-FLAT], points[-FLAT:]
        if not self.flat or not before:
            return None
        best = max(before, key=lambda point: point.throughput_per_s)
        more = all(point.concurrency > best.concurrency for point in last)
        if more and max(point.throughput_per_s for point in last) <= GAIN * best.throughput_per_s:
            return f"{FLAT} steps with more users than {best.concurrency} carried no more"
        return None


def parse_phases(text: str) -> tuple[Load, ...]:
    """Read phases as the command line writes them; return a load for each number of users, with how long it lasts.

    Raises:
        UsageError: they cannot be read, or have no user or no time.
    """
    loads: list[Load] = []
    for part in text.split(","):
        try:
            users, more, seconds = (float(number) for number in part.split(":"))
        except ValueError:
            raise UsageError(f"--phases {part!r} cannot be read", fix=FORM) from None
        if not (users >= 1 and users.is_integer() and 0 <= more < math.inf and 0 < seconds < math.inf):
            raise UsageError(f"--phases {part!r} has no user, no time, or part of a user", fix=FORM)
        loads += _steps(int(users), more, seconds)
    return tuple(loads)


def _steps(users: int, more: float, seconds: float) -> list[Load]:
    together = max(1, math.ceil(LEAST_S * more / 60))
    each_s = 60 * together / more if more else seconds
    count = max(1, math.floor(seconds / each_s + 1e-9))
    rest_s = seconds - (count - 1) * each_s  # the last one has what is left
    return [Load(concurrency=users + i * together, seconds=each_s if i < count - 1 else rest_s) for i in range(count)]


def carried_at_most(points: Sequence[Measurement], limits: PhaseLimits) -> str:
    """Say what was carried at most within the limits, and why the load ended."""
    end = limits.ends(points) or "the phases are over"
    kept = [point for point in points if limits.broken(point) is None]
    if not kept:
        return f"no number of users keeps the limits: {end}"
    best = max(kept, key=lambda point: point.throughput_per_s)
    return f"at most {60 * best.throughput_per_s:,.0f} items a minute, with {best.concurrency} users; {end}"
