"""What the parent asks of a process that is timed: open a variant, warm it up, and run rounds of calls.

One session is open at a time; the clock itself is in ``session``.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from accel.bench.checker import SHARE, Check, Checker, checker
from accel.bench.timed_session import TimedSession, now_ns, peak_rss_mib, reset_peak_rss
from accel.builders import targets
from accel.core.feeds import read_feeds
from accel.core.values import Artifact, CallSplit

_timed: list[TimedSession] = []
_loaded: "list[tuple[tuple[Artifact, Path, int], OpenedSession]]" = []
_checked: list[tuple[Check, Checker]] = []


@dataclass(frozen=True, slots=True)
class OpenedSession:
    """How long loading and the first call took, and how many requests the session takes at once."""

    load_ms: float
    first_ms: float
    slots: int


@dataclass(frozen=True, slots=True)
class Round:
    """The ns of each request, the ns of the whole round, and the largest resident size that the process ever had."""

    times_ns: tuple[int, ...]
    elapsed_ns: int
    peak_rss_mib: float


def open_timed(
    artifact: Artifact,
    folder: Path,
    threads: int,
    mode: Literal["latency", "throughput"],
    feeds: Path,
    points: tuple[str, ...],
    check: Check | None = None,
) -> OpenedSession:
    """Load a variant for timing at ``points``; what an earlier session of this process loaded serves again or goes.

    Args:
        folder: where the artifact's files lie.
        feeds: ``.npz`` with keys ``<point>/<input>``.
        points: feeds of that file to load; the traffic's points have several each, ``<point>.<number>``.
        check: what its answers are held against meanwhile: every one of single calls, as many as cost little of others.
    """
    builder = targets.discover()[artifact.variant.target.name]
    wanted = (artifact, folder, threads)
    kept = _timed[0].session if _timed and _timed[0].session.any_mode and _loaded[0][0] == wanted else None
    for other in _timed:
        if kept is None:
            other.session.close()
    _timed.clear()
    reset_peak_rss()
    start = now_ns()
    session = kept or builder.open(artifact, folder, threads=threads, mode=mode)
    loaded = now_ns()
    stored = read_feeds(feeds)
    _checked[:] = [(check, checker(check, share=None if mode == "latency" else SHARE))] if check else []
    look = [made.look for _, made in _checked] or [lambda *_: None]
    _timed[:] = [TimedSession(session, {point: stored[point] for point in points}, *look)]
    first = _timed[0].call_ns(points[0])
    if kept is None:
        _loaded[:] = [(wanted, OpenedSession((loaded - start) / 1e6, first / 1e6, session.slots))]
    return _loaded[0][1]


def wrong() -> tuple[str, ...]:
    """Hold the worst answers so far against their gate; returns what is wrong with them."""
    verdicts = [made.judge(check) for check, made in _checked]
    return tuple(reason for verdict in verdicts if verdict is not None for reason in verdict.reasons)


def warm(point: str, limit_s: float) -> float:
    """Warm the open session up at one point; returns how long its last call took (ms)."""
    return _timed[0].warm(point, limit_s) / 1e6


def split(point: str, calls: int) -> CallSplit | None:
    """Take a call of the open session apart: copies in, the model, copies out; None where nothing is copied."""
    return _timed[0].split(point, calls)


def time_round(
    scenario: Literal["latency", "throughput", "traffic"],
    point: str,
    seconds: float,
    least: int,
    limit_ms: float | None = None,
) -> Round:
    """Run one round of calls: one after another for the latency, as many at once as fit for the throughput.

    For the traffic it is whole passes over all groups of requests.

    Args:
        seconds: least time of the round.
        least: calls made however long they take.
        limit_ms: what a call may take; where calls take longer, ``least`` does not count.
    """
    session = _timed[0]
    if scenario == "latency":
        times = session.latency(point, seconds, least, limit_ms)
        elapsed = sum(times)
    elif scenario == "traffic":
        times, elapsed = session.traffic(point, seconds, least, limit_ms)
    else:
        times, elapsed = session.throughput(point, seconds, least, limit_ms)
    return Round(tuple(times), elapsed, peak_rss_mib())
